"""Newton's method with coarse answers: sums have noise, whose scale is the scale of the coordinates."""

from __future__ import annotations

import jax
import numpy as np
from jaxtyping import Array, Float

from ...base.compiler import compiled
from ...posterior.coarse import Noise
from ...posterior.coordinates import Coordinates
from ...posterior.newton import NotFiniteAtInitError, not_identified, oriented
from ...posterior.potential import Potential
from ..session import Session
from .evaluations import NOWHERE, Expansions, expansions

# Most sums.
_MOST_SUMS = 60
# Length of the last Newton step, in standard deviations. It includes noise of the gradient of .3.
_LAST_STEP = 0.5
# Largest change of curvature in the last step, above noise.
_LAST_CHANGE = 0.2
# Sds of noise that a rise of F, and a curvature, must exceed to count.
_SURE = 3.0
# Growth of the scale along a direction whose curvature is hidden by noise.
_WIDER = 16.0
# Largest scale along a direction, relative to the first one, at which it counts as flat.
_FLAT = 1e9
# Least eigenvalue of a prior's precision, as a correlation matrix, that the first coordinates follow.
_ALIKE = 1e-9
# Reduction of a step after which F rose.
_SHORTER = 0.25
# What may prevent a mode, if sums show nothing.
_UNKNOWN = (
    "The log likelihood may have kinks or jumps, or no mode: smooth it, use narrower priors, or begin at another init"
)
# Ratio of a slope's change to the change that second derivatives imply, from which on they do not agree.
_UNLIKE = 3.0


def rough(session: Session, origin: np.ndarray) -> Coordinates:
    """Coordinates around a position, (dim,), before any curvature is known.

    The scale of a parameter is the smaller of 1 and its sd under the prior, divided by sqrt(rows). Correlations are the
    same as under the prior. Default priors follow the scale and the mean of a column, so that derivatives with respect
    to the coefficient of a column in dollars are not huge.
    """
    assert session.noise is not None
    with jax.enable_x64(True):
        curvature = np.nan_to_num(np.asarray(_of_prior(session.job.post.potential, origin), np.float64), posinf=0.0)
    # an improper prior counts as one of sd 1
    own = np.diagonal(curvature)
    sd = np.where(own > 0.0, own, 1.0) ** -0.5
    alike = sd[:, None] * curvature * sd
    np.fill_diagonal(alike, 1.0)
    # symmetric, as sites of a study must have the same coordinates, and eigenvectors are not unique
    values, vectors = np.linalg.eigh(alike)
    root = (vectors / np.sqrt(np.maximum(values, _ALIKE))) @ vectors.T
    scale = np.minimum(1.0, 1.0 / sd) * max(1.0, float(session.noise.rows)) ** -0.5
    return Coordinates(origin, sd[:, None] * root * scale)


@compiled
def _of_prior(potential: Potential, x: Float[Array, " dim"]) -> Array:
    """The Hessian of minus the log prior."""
    return -jax.hessian(potential.log_prior_at)(x)


def whitened(session: Session) -> Coordinates:
    """Coordinates around init in which F has about the curvature 1; one sum.

    A curvature below the noise counts as the noise.

    Raises
    ------
    NotFiniteAtInitError
        F is not finite at init.
    """
    assert session.noise is not None
    place = rough(session, session.job.post.init)
    values, vectors = np.linalg.eigh(_at_init(session, place).hessian[0])
    # symmetric, as sites of a study must have the same coordinates, and eigenvectors are not unique
    root = (vectors / np.sqrt(np.maximum(np.abs(values), session.noise.blur))) @ vectors.T
    return place.after(Coordinates(np.zeros(len(root)), root))


def noisy_mode(session: Session, place: Coordinates | None = None) -> Coordinates:
    """Coordinates in which the posterior is about standard normal at its mode, from noisy expansions.

    Each expansion is made in the coordinates of the last one, whitened by its Hessian, so that noise of one size is
    small in every direction. A direction whose curvature is below the noise gets a larger scale.

    Parameters
    ----------
    session
        Makes the sums.
    place
        The first coordinates. None: around init, see `rough`.

    Raises
    ------
    NotFiniteAtInitError
        F is not finite at the first position.
    NotIdentifiedError
        F is flat along a direction.
    ArithmeticError
        There is no mode.
    """
    post, noise = session.job.post, session.noise
    assert noise is not None
    dim = post.dim
    gradient, blur = noise.expanded[0], noise.blur
    rise = rise_of_noise(noise)
    place = rough(session, post.init) if place is None else place
    first = np.abs(place.factor).max(axis=1)
    here = _at_init(session, place)
    length, sums, why = np.inf, 1, ""
    while sums < _MOST_SUMS:
        values, vectors = np.linalg.eigh(here.hessian[0])
        # sites of a study must have the same coordinates
        vectors = oriented(vectors)
        changed = float(np.abs(values - 1.0).max())
        slope = vectors.T @ here.gradient[0]
        size = np.maximum(np.abs(values), _SURE * blur)
        if length <= _LAST_STEP and changed <= _LAST_CHANGE + _SURE * blur and values[0] > 0.0:
            # one more step without a sum
            inner = Coordinates(-vectors @ (slope / size), vectors / np.sqrt(np.maximum(values, blur)))
            found = place.after(inner)
            return Coordinates(found.origin, np.linalg.cholesky(found.factor @ found.factor.T))
        hidden = (np.abs(values) < _SURE * blur) & (np.abs(slope) < _SURE * gradient)
        if hidden.any():
            inner = Coordinates(np.zeros(dim), vectors * np.where(hidden, _WIDER, size**-0.5))
            place = place.after(inner)
            widest = np.abs(place.factor).max(axis=1) / first
            if widest.max() > _FLAT:
                raise not_identified(post.unconstrained_names[int(np.argmax(widest))])
            here, sums, length = _expanded(session, place), sums + 1, np.inf
            continue
        step, length = -slope / np.sqrt(size), float(np.linalg.norm(slope / np.sqrt(size)))
        inner = Coordinates(np.zeros(dim), vectors / np.sqrt(size))
        while sums < _MOST_SUMS:
            moved = place.after(Coordinates(inner.factor @ step, inner.factor))
            there, sums = _expanded(session, moved), sums + 1
            why = _unlike(noise, inner.factor, step, here, there) or why
            if there.value[0] <= here.value[0] + rise:
                break
            step = _SHORTER * step
        place, here = moved, there
    raise ArithmeticError(
        f"no mode found in {sums} sums with coarse answers: the last step was {length:.3g} standard deviations long. "
        f"{why or _UNKNOWN}. Without coarse answers (in a study: coarse = false and fallback = true), the default "
        "method also tries ChEES(), whose chains need slopes only"
    )


def _unlike(noise: Noise, factor: np.ndarray, step: np.ndarray, here: Expansions, there: Expansions) -> str:
    """What contradicts two derivatives at both ends of a step, in words; empty if nothing does.

    Parameters
    ----------
    noise
        The noise of the expansions.
    factor
        The factor of the coordinates of `there` in the coordinates of `here`, (dim, dim).
    step
        The step in the coordinates of `there`, (dim,).
    here, there
        The expansions at both ends.
    """
    length = float(np.linalg.norm(step))
    slopes = np.array([here.gradient[0] @ factor @ step, there.gradient[0] @ step]) / length
    bends = np.array([(factor @ step) @ here.hessian[0] @ (factor @ step), step @ there.hessian[0] @ step]) / length**2
    # noise of the first expansion is larger in the coordinates of the second one
    wide = max(1.0, float(np.linalg.norm(factor, 2)))
    doubt = _SURE * (noise.expanded[0] * (1.0 + wide) + noise.blur * (1.0 + wide**2) * length)
    change, implied = float(slopes[1] - slopes[0]), float(np.abs(bends).max()) * length
    if abs(change) > _UNLIKE * implied + doubt:
        return (
            f"Over a step of {length:.3g}, the slope changed by {change:.3g}, and second derivatives at both ends "
            f"imply at most {implied:.3g}: the log likelihood seems to have kinks, such as a Laplace likelihood"
        )
    rise, between = float(there.value[0] - here.value[0]), np.sort(slopes * length)
    beyond = max(rise - between[1], between[0] - rise)
    if beyond > np.ptp(between) + rise_of_noise(noise) + doubt * length:
        return (
            f"Over a step of {length:.3g}, the potential changed by {rise:.3g}, and slopes at both ends imply "
            f"{between[0]:.3g} to {between[1]:.3g}: the log likelihood seems to have jumps"
        )
    return ""


def rise_of_noise(noise: Noise) -> float:
    """The rise of F between two positions that noise may hide."""
    return _SURE * 2.0**0.5 * float(noise.value(np.zeros(1))[0])


def _at_init(session: Session, place: Coordinates) -> Expansions:
    """The expansion of F at the first position."""
    found = _expanded(session, place)
    if found.value[0] >= NOWHERE:
        remedy = session.job.post.remedy_at_init()
        raise NotFiniteAtInitError(
            "no mode found: the potential is not finite at init, or its derivatives there are too large for coarse "
            f"answers, as for a parameter of scale 1e-6; {remedy}"
        )
    return found


def _expanded(session: Session, place: Coordinates) -> Expansions:
    """The expansion of F at the origin of coordinates; one sum."""
    return expansions(session, place, np.zeros((1, place.origin.size)))
