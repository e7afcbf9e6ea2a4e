"""Gaussian approximations of a posterior: Laplace's at its mode, and the nearest (variational) one."""

from __future__ import annotations

import warnings
from functools import partial

import numpy as np

from ...base.counters import generator
from ...posterior.coordinates import Coordinates
from ...posterior.newton import NotFiniteAtInitError, Spectrum, change, newton, not_identified, spectrum
from ..session import Session
from .evaluations import NOWHERE, expand, slopes
from .noisy_mode import noisy_mode, rough

# Length of the last Newton step, in standard deviations. Rough is enough, as the mode is only a start.
_LAST_STEP = 0.3
# Distances along a direction without curvature, in standard deviations of the best determined direction.
_FAR_OUT = 10.0 ** np.arange(13.0)
# Number of these distances at which the closed form of a quadratic potential exceeds rounding errors.
_CLOSED_FORM = 8
# Least rise of F at some of these distances in an identified direction.
_RISEN = 1.0
# Half widths of the cubes around init and around 0, unconstrained, that are searched for a finite density.
_RADII = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
# Positions per cube.
_POSITIONS = 64
# Most iterations for the nearest Gaussian.
_MOST_MOVES = 20


def laplace(session: Session, start: Coordinates | None = None) -> Coordinates:
    """Coordinates in which the posterior is about standard normal at its mode.

    Newton's method starts at the origin of `start`, where F is finite, and with noise in these coordinates. None: at
    init.

    A direction without curvature has the scale of the flattest curved direction, or the larger scale at which F rises.

    Raises
    ------
    NotIdentifiedError
        F is flat along a direction, so the posterior is improper.
    ArithmeticError
        There is no mode.
    """
    post = session.job.post
    if session.noise is not None:
        try:
            return noisy_mode(session, start)
        except NotFiniteAtInitError:
            near = supported(session)
            if near is None:
                raise
            return noisy_mode(session, rough(session, near))
    search = partial(newton, partial(expand, session), names=post.unconstrained_names, last_step=_LAST_STEP)
    try:
        mode, hessian = search(post.init if start is None else start.origin, remedy=post.remedy_at_init)
    except NotFiniteAtInitError as error:
        near = supported(session)
        if near is None:
            responses = "check also that each response lies in the support of its distribution"
            raise NotFiniteAtInitError(f"{error}; {responses}") from error
        mode, hessian = search(near, remedy=post.remedy_at_init)
    found = spectrum(hessian)
    if not found.enough.any():
        raise ArithmeticError("the posterior has no curvature at its mode in any direction")
    if found.enough.all():
        return Coordinates.whitening(mode, hessian)
    values = np.where(found.enough, found.values, found.values[found.enough].min())
    values = _flattened(session, mode, found, values)
    # by eigenvectors: this Hessian is too ill-conditioned for a Cholesky factor in double precision
    return Coordinates(mode, found.scale[:, None] * found.vectors / np.sqrt(values))


def _flattened(session: Session, mode: np.ndarray, found: Spectrum, values: np.ndarray) -> np.ndarray:
    """Eigenvalues, (dim,), lowered in directions without curvature to match the rise of F far out; one sum.

    Raises
    ------
    NotIdentifiedError
        F does not rise along one of these directions.
    """
    post = session.job.post
    flat, most = np.flatnonzero(~found.enough), found.values.max()
    directions = (found.scale[:, None] * found.vectors[:, flat]).T
    away = _FAR_OUT[None, :, None] * directions[:, None, :] / np.sqrt(most)
    points = np.concatenate([[mode], (mode + away).reshape(-1, mode.size), (mode - away).reshape(-1, mode.size)])
    value = slopes(session, None, points)[0]
    # both sides of each direction
    rise = (value[1:] - value[0]).reshape(2, flat.size, _FAR_OUT.size)
    # rounding errors of closed forms are relative to the largest curvature
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
    """The random position around init or 0 with the least F, (dim,); None if F is finite at none. One sum."""
    post = session.job.post
    offsets = generator(0, "support").uniform(-1.0, 1.0, (len(_RADII), _POSITIONS, post.dim))
    offsets = (offsets * np.array(_RADII)[:, None, None]).reshape(-1, post.dim)
    positions = np.concatenate([post.init + offsets[::2], offsets[1::2]])
    value = slopes(session, None, positions)[0]
    best = int(np.argmin(value))
    return positions[best] if value[best] < NOWHERE else None


def nearest_gaussian(session: Session, start: Coordinates, *, looks: int = 32, still: float = 0.25) -> Coordinates:
    """Coordinates of the Gaussian nearest to the posterior (variational; Opper & Archambeau 2009).

    Under this Gaussian the mean gradient of F is zero, and the mean Hessian of F is the inverse covariance.

    Parameters
    ----------
    session
        Makes the sums, one of (dim + 1)(dim + 2) / 2 numbers per iteration.
    start
        Coordinates of the first Gaussian, such as Laplace's. They are returned if there is no nearest Gaussian.
    looks
        Antithetic draws (z and -z) per expectation.
    still
        Step at which iterations stop, in standard deviations. Rough is enough, as the result is only a start.
    """
    dim = start.origin.size
    half = np.random.default_rng(0).standard_normal((looks // 2, dim))
    z = np.concatenate([half, -half])
    # in the coordinates `start`, which have no units
    place, precision = Coordinates(np.zeros(dim), np.eye(dim)), np.eye(dim)
    for _ in range(_MOST_MOVES):
        mean = expand(session, *(place.origin + z @ place.factor.T), coordinates=start)
        # damped by half, as the mean Hessian depends on the Gaussian
        following = (precision + mean.hessian) / 2.0
        if not np.isfinite(following).all() or np.linalg.eigvalsh(following)[0] <= 0:
            warnings.warn(
                "the posterior is not log-concave on average: coordinates follow its curvature at one position instead",
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
