"""Newton's method for the mode of a posterior, invariant to the units of the parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

# Largest number of Newton steps.
_MOST_STEPS = 50
# Largest number of halvings of a step.
_MOST_HALVINGS = 30
# Largest relative change of the curvature in the last step.
_LAST_CHANGE = 0.1
# Eigenvalue of the Hessian scaled to unit diagonal, relative to the largest, up to which a direction is flat.
_FLAT = 1e-12
# Smallest component of an eigenvector that is named, relative to the largest.
_PART = 0.1
# Largest number of parameters in a message.
_SHOWN = 8
# Smallest ratio of a parameter's last curvature to its initial one that counts as stable.
_STILL = 0.1
# Largest length of the last step, in posterior standard deviations, if rounding prevents a shorter one.
_STANDS = 1e-2
# Smallest size of a negative eigenvalue at a saddle, relative to the largest eigenvalue.
_SADDLE = 1e-4
# Length of the last step, in posterior standard deviations, above which the search is far from a mode.
_FAR = 0.1


class NotFiniteAtInitError(ArithmeticError):
    """Raised if F, its gradient or its Hessian is not finite at the initial position."""


class NotIdentifiedError(ArithmeticError):
    """Raised if F is flat along a direction, so that the posterior is improper."""


class NearlyFlatError(ArithmeticError):
    """Raised if rounding along a nearly flat direction prevents convergence."""


class Expansion(NamedTuple):
    """F = sum_i f_i at a position, or its mean over several: value, gradient (dim,) and Hessian (dim, dim)."""

    value: float
    gradient: np.ndarray
    hessian: np.ndarray

    @property
    def finite(self) -> bool:
        """Whether all numbers are finite."""
        return all(np.isfinite(part).all() for part in self)


class Spectrum(NamedTuple):
    """The eigendecomposition of a Hessian scaled to unit diagonal, in z with x = scale * z.

    Parameters
    ----------
    scale
        Shape (dim,), in the units of the parameters.
    values, vectors
        Ascending eigenvalues, (dim,), and eigenvectors as columns, (dim, dim), of the Hessian in z.
    """

    scale: np.ndarray
    values: np.ndarray
    vectors: np.ndarray

    @property
    def enough(self) -> np.ndarray:
        """Whether each eigenvector has positive curvature, shape (dim,)."""
        return self.values > _FLAT * np.abs(self.values).max()

    @property
    def flattest(self) -> int:
        """The index of the parameter that dominates the direction of least curvature."""
        return int(np.argmax(np.abs(self.vectors[:, 0])))

    def largest(self, which: int, names: Sequence[str]) -> str:
        """Names of the parameters that dominate an eigenvector."""
        parts = np.abs(self.vectors[:, which])
        places = np.flatnonzero(parts > _PART * parts.max())
        return ", ".join([names[k] for k in places[:_SHOWN]] + (["..."] if places.size > _SHOWN else []))

    @property
    def size(self) -> np.ndarray:
        """Absolute eigenvalues, bounded below by the threshold of flat directions, shape (dim,)."""
        values = np.abs(self.values)
        return np.maximum(values, _FLAT * values.max() + np.finfo(float).tiny)

    def hessian(self, values: np.ndarray) -> np.ndarray:
        """The Hessian in the user's parameters, with these eigenvalues instead."""
        return (self.vectors * values) @ self.vectors.T / np.outer(self.scale, self.scale)


def own_scale(curvature: np.ndarray) -> np.ndarray:
    """The scale curvature**-0.5 of each parameter, (dim,). A curvature of zero is replaced by the largest one."""
    most = curvature.max()
    return np.where(curvature > 0, curvature, most if most > 0 else 1.0) ** -0.5


def spectrum(hessian: np.ndarray) -> Spectrum:
    """The eigendecomposition of a Hessian scaled to unit diagonal."""
    scale = own_scale(np.abs(np.diagonal(hessian)))
    values, vectors = np.linalg.eigh(hessian * np.outer(scale, scale))
    return Spectrum(scale, values, oriented(vectors))


def oriented(vectors: np.ndarray) -> np.ndarray:
    """Eigenvectors, the columns, with signs that are the same on all machines."""
    towards = np.cos(np.arange(1.0, 1.0 + len(vectors)))
    return vectors * np.where(towards @ vectors < 0, -1.0, 1.0)


def not_identified(parts: str) -> NotIdentifiedError:
    """The error for a flat direction dominated by `parts`, names of parameters."""
    return NotIdentifiedError(
        f"the posterior is not identified: the potential is flat along a direction dominated by {parts} (collinear "
        "columns under flat priors do this). Give these parameters a proper prior, or leave one column out"
    )


def newton(
    expand: Callable[[np.ndarray], Expansion],
    x: np.ndarray,
    names: Sequence[str],
    last_step: float = 1e-2,
    remedy: Callable[[], str] = lambda: "give another init",
) -> tuple[np.ndarray, np.ndarray]:
    """The mode and the Hessian there, by Newton's method with step halving.

    Steps use absolute eigenvalues, so that they descend along negative curvature too. The search leaves a saddle along
    its most negative curvature. Rescaled parameters give rescaled steps.

    Parameters
    ----------
    expand
        The expansion of F at a position.
    x
        The initial position, shape (dim,).
    names
        Names of the parameters, for errors.
    last_step
        Largest length of the last step, in posterior standard deviations. The error is about its square.
    remedy
        The advice for an F that is not finite at x.

    Raises
    ------
    NotFiniteAtInitError
        F, its gradient or its Hessian is not finite at x.
    NearlyFlatError
        Rounding along a nearly flat direction prevents convergence.
    ArithmeticError
        No mode was found. The message describes F at the last position.
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
        # a Hessian of zeros gives an infinite step
        moved = _downhill(expand, x, here, step) if np.isfinite(step).all() else None
        if moved is None:
            break
        changed = change(here.hessian, moved[1].hessian)
        x, here = moved
        if length <= last_step and changed <= _LAST_CHANGE:
            away = _from_saddle(expand, x, here)
            if away is None:
                # if the float spacing is this large, a step of length zero is no evidence
                coarse = _rounded(x, here, _FAR, names)
                if coarse:
                    raise ArithmeticError(f"no mode found: {coarse}")
                return x, here.hessian
            x, here = away
    coarse = _rounded(x, here, last_step, names)
    # rounded gradients may keep steps above `last_step` at a mode
    if not coarse and length <= _STANDS and changed <= _LAST_CHANGE and _from_saddle(expand, x, here) is None:
        return x, here.hessian
    own = np.abs(np.diagonal(here.hessian))
    stands = length <= _FAR and (own > _STILL * at_start).all() and not spectrum(here.hessian).enough.all()
    if stands and not coarse:
        found = spectrum(here.hessian)
        raise NearlyFlatError(
            f"no mode found in {taken} Newton steps: the potential is nearly flat along a direction dominated by "
            f"{found.largest(0, names)}. Centre and scale the columns, give these parameters a proper prior, or leave "
            "one column out"
        )
    raise ArithmeticError(f"no mode found in {taken} Newton steps: {coarse or _seen(here, length, at_start, names)}")


def newton_step(gradient: np.ndarray, hessian: np.ndarray) -> tuple[np.ndarray, float]:
    """A Newton step with absolute eigenvalues, and its length in standard deviations."""
    found = spectrum(hessian)
    slope = found.vectors.T @ (found.scale * gradient)
    # a step along almost no curvature may overflow
    with np.errstate(over="ignore"):
        length = float(np.sqrt((slope**2 / found.size).sum()))
        return -found.scale * (found.vectors @ (slope / found.size)), length


def _downhill(
    expand: Callable[[np.ndarray], Expansion], x: np.ndarray, here: Expansion, step: np.ndarray
) -> tuple[np.ndarray, Expansion] | None:
    """The first position at which F falls, among halvings of a step, and F there. None: F falls at none."""
    for _ in range(_MOST_HALVINGS):
        there = expand(x + step)
        # allow for rounding of large sums
        if there.finite and there.value <= here.value + 1e-6 * (1.0 + abs(here.value)):
            return x + step, there
        step = step / 2.0
    return None


def _from_saddle(
    expand: Callable[[np.ndarray], Expansion], x: np.ndarray, here: Expansion
) -> tuple[np.ndarray, Expansion] | None:
    """A lower position beside a saddle, one standard deviation along its most negative curvature. None at a mode."""
    found = spectrum(here.hessian)
    if found.values[0] >= -_SADDLE * found.values[-1]:
        return None
    step = found.scale * found.vectors[:, 0] / np.sqrt(found.size[0])
    # either side works, because the gradient is nearly zero
    return _downhill(expand, x, here, step)


def _rounded(x: np.ndarray, here: Expansion, most: float, names: Sequence[str]) -> str:
    """A message if floats near x are more than `most` standard deviations apart, else ""."""
    width = jnp.result_type(float)
    sds = np.spacing(np.abs(x).astype(width)) * np.sqrt(np.abs(np.diagonal(here.hessian)))
    worst = int(np.argmax(sds))
    if not sds[worst] > most:
        return ""
    if width == np.float64:
        return (
            f"the potential along {names[worst]} is so narrow near {x[worst]:.6g} that float64 numbers are "
            f"{sds[worst]:.2g} standard deviations apart. It may have no lower bound, as when the scale of a hierarchy "
            "goes to 0"
        )
    return (
        f"{width} numbers near {names[worst]} = {x[worst]:.6g} are {sds[worst]:.2g} posterior standard deviations "
        'apart. Shift the data towards zero, or use double precision: jax.config.update("jax_enable_x64", True)'
    )


def _seen(here: Expansion, length: float, at_start: np.ndarray, names: Sequence[str]) -> str:
    """A description of F at the last position of a failed search."""
    if not here.hessian.any():
        return (
            f"at {here.value:.6g} the potential has no curvature in any direction, like a piecewise linear function "
            "(absolute values) between its kinks. Its curvature does not determine the posterior's width"
        )
    if length > _FAR:
        return (
            f"at {here.value:.6g} the potential still falls, and the next step is {length:.3g} standard deviations "
            "long. It may have no lower bound, as when the scale of a hierarchy goes to 0, or init is far away"
        )
    own = np.abs(np.diagonal(here.hessian))
    worst = int(np.argmin(own / np.where(at_start > 0, at_start, 1.0)))
    return (
        f"the potential flattens out, its curvature along {names[worst]} is {own[worst]:.3g} after "
        f"{at_start[worst]:.3g} at init (separated labels under a flat prior do this)"
    )


def change(before: np.ndarray, after: np.ndarray) -> float:
    """The largest relative change of curvature in any direction."""
    found = spectrum(before)
    root = found.scale[:, None] * found.vectors / np.sqrt(found.size)
    return float(np.abs(np.linalg.eigvalsh(root.T @ (after - before) @ root)).max())
