"""Starts of chains: weighted points, the mode, or the neighbourhood of the posterior's init."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ...base.counters import generator
from ...posterior.coordinates import Coordinates
from ...posterior.newton import Expansion, NotIdentifiedError, newton_step, own_scale
from ..session import Session
from .centring import Centring
from .evaluations import expand
from .laplace import laplace, nearest_gaussian, supported
from .mode_search import other_modes, probe

# Most other positions at which groups of chains start.
_MOST_OTHERS = 8
# Energies per parameter above which a position is too far away to start chains there, without and with a hierarchy.
# Typical draws have 1/2. Without one, effects may be non-centred by hand, and their mode narrow. With one, derivatives
# at the start decide how far effects are centred.
_FAR, _FAR_OF_EFFECTS = 1e4, 100.0
# Largest slope of F along the scale of a parameter at the start: that of a Gaussian where F is `_FAR` above its mode.
_STEEP = (2.0 * _FAR) ** 0.5
# Longest step towards the mass of an unconstrained number of a constrained parameter.
_LONGEST = 4.0
# Most steps of Newton's method towards the mass, and halvings of each.
_MOST_STEPS, _MOST_HALVINGS = 50, 30
# Least curvature of a mode, relative to its largest one.
_FLAT = 1e-12


class Start(NamedTuple):
    """An approximation of the posterior from which chains start.

    Parameters
    ----------
    coordinates
        Coordinates in which the posterior is about standard normal.
    others
        Further positions that may have mass, such as other modes and points of large weights, (position, dim). Groups
        of chains start there, so that R-hat detects chains that do not leave them.
    points, weight
        Weighted points, (point, dim) and (point,), a better approximation than the normal, or None.
    """

    coordinates: Centring
    others: np.ndarray
    points: np.ndarray | None = None
    weight: np.ndarray | None = None

    def positions(self, count: int, seed: int) -> np.ndarray:
        """Starts of chains around the origin, normal with standard deviations between 0 and 1, (count, dim)."""
        numbers = generator(seed, "starts")
        return numbers.standard_normal((count, self.coordinates.post.dim)) * numbers.random((count, 1))

    def around_init(self, session: Session) -> Start:
        """The start in coordinates around init, scaled by the curvature there; itself if F is not finite there.

        Chains that start at init find the mass even if a mode or a failed fit is far from it. Of the other positions
        only modes remain, as chains may be stuck elsewhere. One sum, and one for each of the other positions.
        """
        post = session.job.post
        x, here = _near(session)
        free = Centring.by_information(post, x, here.hessian)
        there = free.expansion(x, here)
        if not there.finite:
            return self
        own = replace(free, place=_around(free.z(x[None])[0], there))
        others = self.coordinates.x(self.others[:_MOST_OTHERS])
        modes = np.array([_is_mode(session, other) for other in others], bool)
        points = None if self.points is None else own.z(self.coordinates.x(self.points))
        return Start(own, own.z(others[modes]), points, self.weight)


def _near(session: Session) -> tuple[np.ndarray, Expansion]:
    """A position near enough to the mass for chains to start there, (dim,), and F there.

    Newton's method from init, with effects as they are or non-centred, whichever lowers F more. It ends long before a
    mode. At least one sum, and some for each step.
    """
    post = session.job.post
    x, here = post.init, expand(session, post.init)
    free = Centring.non_centred(post)
    ways = [free] if free.is_affine else [free, Centring.none(post, free.place)]
    enough = post.dim * (_FAR if post.hierarchy is None else _FAR_OF_EFFECTS)
    for _ in range(_MOST_STEPS):
        steps = [(own, *newton_step(*there[1:])) for own in ways if (there := own.expansion(x, here)).finite]
        if min((length for *_, length in steps), default=0.0) ** 2 / 2.0 <= enough:
            break
        lower = [_moved(session, own, x, here, step) for own, step, _ in steps if np.isfinite(step).all()]
        found = [one for one in lower if one is not None]
        if not found:
            break
        x, here = min(found, key=lambda one: one[1].value)
    return x, here


def _moved(
    session: Session, own: Centring, x: np.ndarray, here: Expansion, step: np.ndarray
) -> tuple[np.ndarray, Expansion] | None:
    """The position after a step in z, halved as long as F falls, and F there. None if F does not fall below F at x.

    F is nearly linear in the log of a scale that is too large, so that steps of constrained parameters have a limit.
    """
    parameters = session.job.post.parameters
    bounded = parameters.repeated([transform is not None for transform in parameters.transforms])
    step = np.where(bounded, np.clip(step, -_LONGEST, _LONGEST), step)
    z, best = own.z(x[None])[0], None
    for _ in range(_MOST_HALVINGS):
        position = own.x((z + step)[None])[0]
        there = expand(session, position)
        if there.finite and there.value < (here if best is None else best[1]).value:
            best = position, there
        elif best is not None:
            break
        step = step / 2.0
    return best


def _around(x: np.ndarray, here: Expansion) -> Coordinates:
    """Coordinates around x in which each parameter has the scale of its own curvature there.

    Where F is nearly linear, this scale has no bound. So the slope of F along it is at most `_STEEP`.
    """
    with np.errstate(divide="ignore"):
        steep = _STEEP / np.abs(here.gradient)
    return Coordinates(x, np.diag(np.minimum(own_scale(np.abs(np.diagonal(here.hessian))), steep)))


def _is_mode(session: Session, x: np.ndarray) -> bool:
    """Whether F has a minimum at or near x."""
    here = expand(session, x)
    if not here.finite:
        return False
    curvatures = np.linalg.eigvalsh(here.hessian)
    if curvatures[0] <= _FLAT * curvatures[-1]:
        return False
    return bool(here.gradient @ np.linalg.solve(here.hessian, here.gradient) < 1.0)


def start_without_points(session: Session) -> Start:
    """Starts around the mode, scaled by the curvature there; if there is no mode, around the nearest Gaussian.

    Raises
    ------
    NotIdentifiedError
        The potential is flat along a direction, so the posterior is improper.
    ArithmeticError
        The potential is not finite at init, nor at positions around it.
    """
    post = session.job.post
    try:
        place = laplace(session)
    except NotIdentifiedError:
        raise
    except ArithmeticError:
        init, here = post.init, expand(session, post.init)
        if not here.finite:
            found = supported(session)
            if found is None:
                raise
            init, here = found, expand(session, found)
            if not here.finite:
                raise
        # no mode: the density may be unbounded in a region without mass, such as the neck of a funnel. The nearest
        # Gaussian averages over the mass and avoids such a region.
        place = _around(init, here)
        return Start(Centring.none(post, nearest_gaussian(session, place)), np.zeros((0, post.dim)))
    return Start(Centring.none(post, place), other_modes(session, place, probe(session, place)).ends)
