"""Where chains begin: at weighted points, at the mode, or around the posterior's init."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...base.counters import generator
from ...posterior.coordinates import Coordinates
from ...posterior.newton import NotIdentifiedError, own_scale
from ..session import Session
from .evaluations import expand
from .laplace import laplace, nearest_gaussian, supported
from .mode_search import look, other_modes


class Start(NamedTuple):
    """Where the posterior is, as far as is known, in coordinates.

    Parameters
    ----------
    place
        Coordinates in which a standard normal stands for the posterior.
    others
        Positions elsewhere that hold mass or may hold some: other modes, points of large weights; (position, dim).
    points, weight
        Weighted points that stand for the posterior better than the normal does, (point, dim) and (point,), or None.
    """

    place: Coordinates
    others: np.ndarray
    points: np.ndarray | None = None
    weight: np.ndarray | None = None

    def positions(self, count: int, seed: int) -> np.ndarray:
        """Some positions to begin at, shape (count, dim); half of them are `others`, where there are so many.

        Chains that stay where they began, and others elsewhere, are told by R-hat: so they begin wherever there may be
        mass.
        """
        numbers = generator(seed, "starts")
        others = self.others[: count // 2]
        rest = count - len(others)
        if self.points is None or self.weight is None:
            usual = numbers.standard_normal((rest, self.place.origin.size))
        else:
            edges = (np.arange(rest) + numbers.random()) / rest
            chosen = np.searchsorted(np.cumsum(self.weight) / self.weight.sum(), edges)
            usual = self.points[chosen.clip(0, self.weight.size - 1)]
        return numbers.permutation(np.concatenate([usual, others]))


def start_without_points(session: Session) -> Start:
    """At the mode, with the scale of the curvature there; where there is no mode, at the Gaussian nearest to it.

    Raises
    ------
    NotIdentifiedError
        The potential is flat along a direction, so that there is no posterior.
    ArithmeticError
        The potential is not finite at init, nor at positions around it.
    """
    post = session.job.post
    try:
        place = laplace(session)
    except NotIdentifiedError:
        raise
    except ArithmeticError:
        init: np.ndarray | None = post.init
        here = expand(session, post.init)
        if not here.finite:
            init = supported(session)
            if init is None:
                raise
            here = expand(session, init)
            if not here.finite:
                raise
        # the density may have no bound where there is no mass, as the neck of a funnel: averages do not go there
        place = Coordinates(init, np.diag(own_scale(np.abs(np.diagonal(here.hessian)))))
        return Start(nearest_gaussian(session, place), np.zeros((0, post.dim)))
    return Start(place, other_modes(session, place, look(session, place)).ends)
