"""DG-LMC's tolerances, steps and numbers of local steps by the guidelines of its paper, section 3.2."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float, Int

from ..base.checks import one_an_agent

# Guideline 3.2.1: the step is 0.1 to 0.5 of rho_i / (1 + rho_i M_i).
_STEP_FRACTION = 0.25


def guided(
    rho: Any, step_size: Any, local_steps: Any, curvature: Float[np.ndarray, " agent"]
) -> tuple[Float[np.ndarray, " agent"], Float[np.ndarray, " agent"], Int[np.ndarray, " agent"]]:
    """rho_i, gamma_i and N_i, one an agent each; those that are None are chosen by the guidelines.

    Parameters
    ----------
    rho, step_size, local_steps
        As in `DGLMC`.
    curvature
        M_i, the largest eigenvalue of the Hessian of each U_i.

    Raises
    ------
    ValueError
        A count other than one an agent, a step above its bound, or no curvature to choose `rho` from.
    """
    n = curvature.size
    if rho is None and not (curvature > 0).all():
        agent = int(np.argmin(curvature))
        raise ValueError(
            f"rho must be given: the Hessian of agent {agent} at init has no positive finite eigenvalue to choose "
            "it from"
        )
    rho = 1.0 / curvature if rho is None else one_an_agent("rho", rho, n)
    bound = rho / (1.0 + rho * curvature)
    step = _STEP_FRACTION * bound if step_size is None else one_an_agent("step_size", step_size, n)
    if (step > bound * (1.0 + 1e-9)).any():
        agent = int(np.argmax(step / bound))
        raise ValueError(
            f"step_size {step[agent]:.6g} of agent {agent} is above {bound[agent]:.6g}, its stability bound "
            "rho_i / (1 + rho_i M_i)"
        )
    if local_steps is None:
        return rho, step, np.full(n, int(np.ceil(np.mean(bound / step) - 1e-9)))
    return rho, step, one_an_agent("local_steps", local_steps, n)
