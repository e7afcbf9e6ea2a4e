"""Newton's method for the mode of a posterior, which does not depend on the units of the parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

# Newton steps after which there is said to be no mode.
_MOST_STEPS = 50
# Halvings of one step.
_MOST_HALVINGS = 30
# Largest relative change of the curvature on the way to the mode.
_LAST_CHANGE = 0.1
# Curvature in a direction, relative to the largest where every parameter's own is one, below which it counts as none.
_FLAT = 1e-12
# Share of an eigenvector's largest part from which on a parameter is named.
_PART = 0.1
# Parameters that are named at most.
_SHOWN = 8
# Share of a parameter's curvature at the start above which curvature stands still.
_STILL = 0.1
# Length of the last of all steps, in posterior standard deviations, that counts as none where rounding allows no less.
_STANDS = 1e-2
# Curvature below minus so much, on the same scale, at which the gradient vanishes at a saddle and at no mode.
_SADDLE = 1e-4
# Length of the last step, in posterior standard deviations, above which F had not come to an end.
_FAR = 0.1


class NotFiniteAtInitError(ArithmeticError):
    """Raised where F, its gradient or its Hessian is not finite at the position where a search begins."""


class NotIdentifiedError(ArithmeticError):
    """Raised where F is flat along a direction as far as it can be evaluated, so that there is no posterior."""


class NearlyFlatError(ArithmeticError):
    """Raised where steps stay long though curvature stands still: one direction is nearly flat beside the others."""


class Expansion(NamedTuple):
    """F = sum_i f_i at a position, or the mean over some: its value, gradient (dim,) and Hessian (dim, dim)."""

    value: float
    gradient: np.ndarray
    hessian: np.ndarray

    @property
    def finite(self) -> bool:
        """Whether all numbers are finite."""
        return all(np.isfinite(part).all() for part in self)


class Spectrum(NamedTuple):
    """A Hessian's eigenvalues where every parameter's own curvature is one: x = scale * z.

    Parameters
    ----------
    scale
        Shape (dim,), in the units of the parameters.
    values, vectors
        Of the Hessian in z, ascending; shapes (dim,) and (dim, dim), one vector a column.
    """

    scale: np.ndarray
    values: np.ndarray
    vectors: np.ndarray

    @property
    def enough(self) -> np.ndarray:
        """In which directions there is curvature, shape (dim,)."""
        return self.values > _FLAT * np.abs(self.values).max()

    @property
    def flattest(self) -> int:
        """The parameter that is the largest part of the direction of the least curvature."""
        return int(np.argmax(np.abs(self.vectors[:, 0])))

    def largest(self, which: int, names: Sequence[str]) -> str:
        """Names of the parameters that are the largest parts of an eigenvector."""
        parts = np.abs(self.vectors[:, which])
        places = np.flatnonzero(parts > _PART * parts.max())
        return ", ".join([names[k] for k in places[:_SHOWN]] + (["..."] if places.size > _SHOWN else []))

    @property
    def size(self) -> np.ndarray:
        """The eigenvalues' sizes, none of them below what counts as curvature, shape (dim,)."""
        values = np.abs(self.values)
        return np.maximum(values, _FLAT * values.max() + np.finfo(float).tiny)

    def hessian(self, values: np.ndarray) -> np.ndarray:
        """The Hessian in the user's parameters with other eigenvalues."""
        return (self.vectors * values) @ self.vectors.T / np.outer(self.scale, self.scale)


def own_scale(curvature: np.ndarray) -> np.ndarray:
    """The scale of each parameter by its own curvature; where it has none, that of the most curved one. Both (dim,)."""
    most = curvature.max()
    return np.where(curvature > 0, curvature, most if most > 0 else 1.0) ** -0.5


def spectrum(hessian: np.ndarray) -> Spectrum:
    """The eigenvalues of a Hessian, scaled by its own diagonal."""
    scale = own_scale(np.abs(np.diagonal(hessian)))
    return Spectrum(scale, *np.linalg.eigh(hessian * np.outer(scale, scale)))


def not_identified(parts: str) -> NotIdentifiedError:
    """The error for parameters, in words, that the data and the prior leave undetermined together."""
    return NotIdentifiedError(
        f"the posterior is not identified: the potential is flat in a direction of which {parts} are the largest parts "
        "(collinear columns under flat priors do this): give these parameters a proper prior, or leave one column out"
    )


def newton(
    expand: Callable[[np.ndarray], Expansion],
    x: np.ndarray,
    names: Sequence[str],
    last_step: float = 1e-2,
    remedy: Callable[[], str] = lambda: "give another init",
) -> tuple[np.ndarray, np.ndarray]:
    """The mode and the Hessian there, by Newton's method with steps halved until F falls.

    Steps descend where curvature is negative too, and a saddle is left along its steepest curvature. Rescaling
    parameters rescales the steps and nothing else.

    Parameters
    ----------
    expand
        F about a position.
    x
        Where to begin, shape (dim,).
    names
        Of the parameters, for errors.
    last_step
        Length of the last step, in posterior standard deviations: quadratic convergence leaves about its square.
    remedy
        What to do where F is not finite at x, in words.

    Raises
    ------
    NotFiniteAtInitError
        F, its gradient or its Hessian is not finite at x.
    NearlyFlatError
        Rounding in a direction that is nearly flat keeps the search from its end.
    ArithmeticError
        F has no mode that could be found; the message says what was seen instead.
    """
    here = expand(x)
    if not here.finite:
        raise NotFiniteAtInitError(
            f"no mode found: the potential at init is {here.value:.6g}, and it or a derivative of it is not finite "
            f"there; {remedy()}"
        )
    at_start, length, changed, taken = np.abs(np.diagonal(here.hessian)), np.inf, np.inf, 0
    while taken < _MOST_STEPS:
        taken += 1
        step, length = newton_step(here.gradient, here.hessian)
        # without any curvature it has no end
        moved = _downhill(expand, x, here, step) if np.isfinite(step).all() else None
        if moved is None:
            break
        changed = change(here.hessian, moved[1].hessian)
        x, here = moved
        if length <= last_step and changed <= _LAST_CHANGE:
            away = _from_saddle(expand, x, here)
            if away is None:
                # where positions are that coarse a step of length zero says nothing
                coarse = _rounded(x, here, _FAR, names)
                if coarse:
                    raise ArithmeticError(f"no mode found: {coarse}")
                return x, here.hessian
            x, here = away
    coarse = _rounded(x, here, last_step, names)
    # rounding of gradients may keep steps above the last one's length, where curvature stands still
    if not coarse and length <= _STANDS and changed <= _LAST_CHANGE and _from_saddle(expand, x, here) is None:
        return x, here.hessian
    own = np.abs(np.diagonal(here.hessian))
    stands = length <= _FAR and (own > _STILL * at_start).all() and not spectrum(here.hessian).enough.all()
    if stands and not coarse:
        found = spectrum(here.hessian)
        raise NearlyFlatError(
            f"no mode found in {taken} Newton steps: the potential is nearly flat in a direction of which "
            f"{found.largest(0, names)} are the largest parts. Centre and scale the columns, give these parameters a "
            "proper prior, or leave one column out"
        )
    raise ArithmeticError(f"no mode found in {taken} Newton steps: {coarse or _seen(here, length, at_start, names)}")


def newton_step(gradient: np.ndarray, hessian: np.ndarray) -> tuple[np.ndarray, float]:
    """A Newton step, which descends where curvature is negative too, and its length in standard deviations."""
    found = spectrum(hessian)
    slope = found.vectors.T @ (found.scale * gradient)
    # where there is next to no curvature a step may be infinitely many of them long
    with np.errstate(over="ignore"):
        length = float(np.sqrt((slope**2 / found.size).sum()))
        return -found.scale * (found.vectors @ (slope / found.size)), length


def _downhill(
    expand: Callable[[np.ndarray], Expansion], x: np.ndarray, here: Expansion, step: np.ndarray
) -> tuple[np.ndarray, Expansion] | None:
    """Where F is lower along a step, and F there; None where it is so nowhere."""
    for _ in range(_MOST_HALVINGS):
        there = expand(x + step)
        # rounding of large sums is no rise
        if there.finite and there.value <= here.value + 1e-6 * (1.0 + abs(here.value)):
            return x + step, there
        step = step / 2.0
    return None


def _from_saddle(
    expand: Callable[[np.ndarray], Expansion], x: np.ndarray, here: Expansion
) -> tuple[np.ndarray, Expansion] | None:
    """A lower place beside a saddle, a standard deviation along its most negative curvature; None at a mode."""
    found = spectrum(here.hessian)
    if found.values[0] >= -_SADDLE * found.values[-1]:
        return None
    step = found.scale * found.vectors[:, 0] / np.sqrt(found.size[0])
    # the gradient is nearly zero, so that either side will do
    return _downhill(expand, x, here, step)


def _rounded(x: np.ndarray, here: Expansion, most: float, names: Sequence[str]) -> str:
    """What rounding does to positions, where that is more standard deviations than it may be; else empty."""
    width = jnp.result_type(float)
    sds = np.spacing(np.abs(x).astype(width)) * np.sqrt(np.abs(np.diagonal(here.hessian)))
    worst = int(np.argmax(sds))
    if not sds[worst] > most:
        return ""
    return (
        f"numbers of type {width} near {names[worst]} = {x[worst]:.6g} are {sds[worst]:.2g} standard deviations apart. "
        'Take an origin nearer to the data, or double precision: jax.config.update("jax_enable_x64", True)'
    )


def _seen(here: Expansion, length: float, at_start: np.ndarray, names: Sequence[str]) -> str:
    """What there is in place of a mode."""
    if not here.hessian.any():
        return (
            f"at {here.value:.6g} the potential has no curvature in any direction, as between the kinks of one made of "
            "straight pieces (absolute values): its curvature says nothing of the posterior's width"
        )
    if length > _FAR:
        return (
            f"at {here.value:.6g} the potential still falls, the next step is {length:.3g} standard deviations long. "
            "It has no mode where it has no lower bound, as where a scale of a hierarchy goes to 0; or init is far away"
        )
    own = np.abs(np.diagonal(here.hessian))
    worst = int(np.argmin(own / np.where(at_start > 0, at_start, 1.0)))
    return (
        f"the potential flattens out, its curvature along {names[worst]} is {own[worst]:.3g} from "
        f"{at_start[worst]:.3g} at init (separated labels under a flat prior do this)"
    )


def change(before: np.ndarray, after: np.ndarray) -> float:
    """The largest relative change of curvature in any direction."""
    found = spectrum(before)
    root = found.scale[:, None] * found.vectors / np.sqrt(found.size)
    return float(np.abs(np.linalg.eigvalsh(root.T @ (after - before) @ root)).max())
