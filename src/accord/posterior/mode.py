"""The mode of a posterior whose data lies in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import numpy as np
import scipy
from jaxtyping import Array

from ..base.compiler import compiled
from .newton import Expansion, NotIdentifiedError, newton, spectrum

# Largest number of parameters for Newton's method.
NEWTON_DIM = 500


def lowest(
    total: Callable[[Array], Array],
    init: np.ndarray,
    names: Sequence[str],
    gradients: Callable[[np.ndarray], np.ndarray],
    remedy: Callable[[], str],
) -> np.ndarray:
    """The minimum of F, shape (dim,), by Newton's method, or by L-BFGS for more than 500 parameters.

    Parameters
    ----------
    total
        F, written in JAX, called in double precision.
    init
        The initial position, shape (dim,).
    names
        Names of the parameters, for errors.
    gradients
        The gradients of all agents' potentials, (agent, dim). They set the scale of a small gradient.
    remedy
        The advice for an F that is not finite at init.

    Raises
    ------
    ArithmeticError
        F has no minimum, or it was not found.
    """
    value_and_gradient = compiled(jax.value_and_grad(total))
    if init.size > NEWTON_DIM:
        found = scipy.optimize.minimize(
            value_and_gradient, init, jac=True, method="L-BFGS-B", options={"gtol": 1e-9, "maxiter": 10_000}
        )
        slope, scale = np.abs(found.jac).max(), 1.0 + np.abs(gradients(found.x)).max()
        if not slope <= 1e-6 * scale:
            raise ArithmeticError(f"no mode found: the gradient is still {slope:.3g} after {found.nit} iterations")
        return np.asarray(found.x)
    hessian = compiled(jax.hessian(total))

    def expand(x: np.ndarray) -> Expansion:
        value, gradient = value_and_gradient(x)
        return Expansion(float(value), np.asarray(gradient), np.asarray(hessian(x)))

    mode, curvature = newton(expand, init, names, last_step=1e-6, remedy=remedy)
    seen = spectrum(curvature)
    if not seen.enough[0]:
        raise NotIdentifiedError(
            f"no mode found: the potential is flat along a direction dominated by {names[seen.flattest]} "
            "(a rank-deficient design under a flat prior does this)"
        )
    return mode
