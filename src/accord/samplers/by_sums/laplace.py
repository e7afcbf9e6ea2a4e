"""Coordinates of Gaussians near a posterior: the one at its mode, and the nearest one."""

from __future__ import annotations

import warnings
from functools import partial

import numpy as np

from ...base.counters import generator
from ...posterior.coordinates import Coordinates
from ...posterior.newton import NotFiniteAtInitError, Spectrum, change, newton, not_identified, spectrum
from ..session import Session
from .evaluations import NOWHERE, expand, slopes

# Length of the last Newton step, in standard deviations: the mode is where methods begin, no more.
_LAST_STEP = 0.3
# Distances along a direction without curvature, in standard deviations of the best determined direction.
_FAR_OUT = 10.0 ** np.arange(13.0)
# Number of these distances at which the closed form of a quadratic potential is more than rounding.
_CLOSED_FORM = 8
# Rise of F at one of these distances from which on a direction is identified.
_RISEN = 1.0
# Distances from init and from 0, in unconstrained numbers, at which a position with a finite density is searched.
_RADII = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
# Positions at each distance.
_POSITIONS = 64
# Most iterations towards the nearest Gaussian.
_MOST_MOVES = 20


def laplace(session: Session) -> Coordinates:
    """Coordinates in which the posterior is about standard normal at its mode.

    Directions without curvature are scaled as the flattest that has some, or by the rise of F far out where that is
    wider. Their tails are examined like any other's.

    Raises
    ------
    NotIdentifiedError
        F is flat along a direction, so that there is no posterior.
    ArithmeticError
        There is no mode.
    """
    post = session.job.post
    search = partial(newton, partial(expand, session), names=post.unconstrained_names, last_step=_LAST_STEP)
    try:
        mode, hessian = search(post.init, remedy=post.remedy_at_init)
    except NotFiniteAtInitError:
        near = supported(session)
        if near is None:
            raise
        mode, hessian = search(near, remedy=post.remedy_at_init)
    found = spectrum(hessian)
    if not found.enough.any():
        raise ArithmeticError("the posterior has no curvature at its mode in any direction")
    if found.enough.all():
        return Coordinates.whitening(mode, hessian)
    values = np.where(found.enough, found.values, found.values[found.enough].min())
    values = _flattened(session, mode, found, values)
    # a Hessian of such a condition has no Cholesky factor in double precision
    return Coordinates(mode, found.scale[:, None] * found.vectors / np.sqrt(values))


def _flattened(session: Session, mode: np.ndarray, found: Spectrum, values: np.ndarray) -> np.ndarray:
    """Eigenvalues, (dim,), where those without curvature follow F's rise far out; one sum.

    Raises
    ------
    NotIdentifiedError
        F rises nowhere along one of these directions.
    """
    post = session.job.post
    flat, most = np.flatnonzero(~found.enough), found.values.max()
    directions = (found.scale[:, None] * found.vectors[:, flat]).T
    away = _FAR_OUT[None, :, None] * directions[:, None, :] / np.sqrt(most)
    points = np.concatenate([[mode], (mode + away).reshape(-1, mode.size), (mode - away).reshape(-1, mode.size)])
    value = slopes(session, None, points)[0]
    # both sides of each direction
    rise = (value[1:] - value[0]).reshape(2, flat.size, _FAR_OUT.size)
    # closed forms round to the last digit of the largest curvature
    seen = slice(_CLOSED_FORM if post.quadratic else None)
    new = values.copy()
    for k, which in enumerate(flat):
        low, high = rise[:, k].min(axis=0), rise[:, k].max(axis=0)
        if not (high[seen] >= _RISEN).any():
            raise not_identified(found.largest(int(which), post.unconstrained_names))
        if not (low >= _RISEN).any():
            continue
        first = int(np.argmax(low >= _RISEN))
        if low[first] < NOWHERE:
            new[which] = min(values[which], 2.0 * low[first] / _FAR_OUT[first] ** 2 * most)
    return new


def supported(session: Session) -> np.ndarray | None:
    """The likeliest of some random positions around init and around 0, shape (dim,); one sum.

    None if the density or its gradient is finite at none of them.
    """
    post = session.job.post
    offsets = generator(0, "support").uniform(-1.0, 1.0, (len(_RADII), _POSITIONS, post.dim))
    offsets = (offsets * np.array(_RADII)[:, None, None]).reshape(-1, post.dim)
    positions = np.concatenate([post.init + offsets[::2], offsets[1::2]])
    value = slopes(session, None, positions)[0]
    best = int(np.argmin(value))
    return positions[best] if value[best] < NOWHERE else None


def nearest_gaussian(session: Session, start: Coordinates, *, looks: int = 32, still: float = 0.25) -> Coordinates:
    """Coordinates of the Gaussian nearest to the posterior (variational; Opper & Archambeau 2009).

    Its mean gradient of F is zero, and its inverse covariance is the mean of F's Hessian.

    Parameters
    ----------
    session
        Sums over the network: one an iteration, of (dim + 1)(dim + 2) / 2 numbers.
    start
        Those of the mode, or of another Gaussian to begin at; they are returned where there is no nearest one.
    looks
        Antithetic draws (z and -z) for each expectation.
    still
        Step, in standard deviations, at which iterations stop. Rough is enough: it is a start.
    """
    dim = start.origin.size
    half = np.random.default_rng(0).standard_normal((looks // 2, dim))
    z = np.concatenate([half, -half])
    # in those of the mode, where units are gone
    place, precision = Coordinates(np.zeros(dim), np.eye(dim)), np.eye(dim)
    for _ in range(_MOST_MOVES):
        mean = expand(session, *(place.origin + z @ place.factor.T), coordinates=start)
        # half the way: the mean Hessian moves with the Gaussian
        following = (precision + mean.hessian) / 2.0
        if not np.isfinite(following).all() or np.linalg.eigvalsh(following)[0] <= 0:
            warnings.warn(
                "the posterior is not log-concave on average where its draws are: coordinates are those of its "
                "curvature at one position",
                stacklevel=4,
            )
            return start
        step = -np.linalg.solve(following, mean.gradient) / 2.0
        length = float(np.sqrt(step @ following @ step))
        changed = change(precision, mean.hessian)
        place, precision = Coordinates.whitening(place.origin + step, following), following
        if length <= still and changed <= 2.0 * still:
            break
    return start.after(place)
