"""DG-LMC: Propositions 2 to 5, Table 1 and the guidelines of section 3.2 (Plassier et al. 2021).

The module covers the explicit results of the text. The constants C_1 (for several local steps), C_2, C_3, C_4, A_rho
and B_rho are in the paper's supplement and left out. Operators A_i are identities.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..base.checks import one_an_agent, whole_number
from .problem import Constants, check_curvature


class Guidelines(NamedTuple):
    """Section 3.2: guidelines for the parameters of the method.

    Parameters
    ----------
    rho : np.ndarray, (agent,)
        1 / M_i (3.2.1).
    low, high : np.ndarray, (agent,)
        The range of the step, 0.1 and 0.5 of rho_i / (rho_i M_i + 1).
    step_size : np.ndarray, (agent,)
        A fraction of rho_i / (rho_i M_i + 1).
    local_steps : int
        ceil(mean of rho_i / (gamma_i (rho_i M_i + 1))), for all agents (3.2.2).
    """

    rho: np.ndarray
    low: np.ndarray
    high: np.ndarray
    step_size: np.ndarray
    local_steps: int


class Powers(NamedTuple):
    """Exponents in O(d^dim) or O(epsilon^accuracy), without logarithms.

    Parameters
    ----------
    dim, accuracy : int
        The powers of the dimension d and of the W2 accuracy epsilon.
    """

    dim: int
    accuracy: int


class Scaling(NamedTuple):
    """A row of Table 1: orders of magnitude for an accuracy epsilon in W2.

    Parameters
    ----------
    rho, step_size, local_steps, rounds, gradients : Powers
        Parameters of the method, mixing time in rounds, and gradients of one agent.
    """

    rho: Powers
    step_size: Powers
    local_steps: Powers
    rounds: Powers
    gradients: Powers


# Table 1: smooth and strongly convex potentials (H1, H2).
SMOOTH = Scaling(Powers(-1, 1), Powers(-3, 4), Powers(1, -2), Powers(2, -2), Powers(3, -4))
# Table 1: potentials with Lipschitz Hessians as well (H1, H2, H3).
LIPSCHITZ_HESSIAN = Scaling(Powers(-1, 1), Powers(-2, 2), Powers(0, 0), Powers(2, -2), Powers(2, -2))


def max_step(problem: Constants, *, rho: Any) -> np.ndarray:
    """Section 3.1.1: gamma_i <= 2 / (M_i + m_i + 1 / rho_i) makes one local step per round (N_i = 1) a contraction.

    Parameters
    ----------
    problem
        The constants m_i and M_i.
    rho
        Tolerances > 0, one number or one per agent.

    Returns
    -------
    np.ndarray, (agent,)

    Raises
    ------
    ValueError
        A number is out of range, or the number of values differs from the number of agents.

    Examples
    --------
    >>> import accord
    >>> from accord_papers import theory
    >>> post = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0, 0.5, 0.25])
    >>> theory.dg_lmc.max_step(theory.constants(post), rho=0.5)
    array([0.5       , 0.33333333, 0.2       ])
    """
    rho = _each("rho", rho, problem)
    return 2.0 / (problem.smoothness + problem.strong_convexity + 1.0 / rho)


def contraction(problem: Constants, *, step_size: Any, local_steps: int) -> float:
    """Proposition 2: the factor per round by which W2 to the stationary law falls.

    With one local step it is 1 - min_i gamma_i m_i, for gamma_i <= 1 / max_i (M_i + 1 / rho_i) (Proposition S5, quoted
    in the text). With N local steps it is 1 - min_i N gamma_i m_i / 2, if N gamma_i is below C_1. The text gives C_1
    only as "of order min rho_i^2", so the value for several steps may be too small, see docs/theory.md.

    Parameters
    ----------
    problem
        The constants m_i.
    step_size
        gamma_i > 0, one number or one per agent.
    local_steps
        N >= 1, the same for all agents.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        A number out of its range.
    """
    step = _each("step_size", step_size, problem)
    steps = whole_number("local_steps", local_steps, 1)
    slowest = float(np.min(steps * step * problem.strong_convexity))
    return 1.0 - (slowest if steps == 1 else slowest / 2.0)


def max_tolerance(problem: Constants) -> float:
    """Proposition 3: the bound O(max rho_i) in W2 holds for tolerances up to 1 / (12 sigma_U^2).

    sigma_U^2 = b max_i M_i^2 / m_U with m_U = sum_i m_i (eq. 6). The paper prints sigma_U^2 / 12, which has the units
    of 1 / rho and would grow with the curvature. The reciprocal is our reading. The constants of the bound are in the
    supplement.

    Raises
    ------
    ValueError
        m_i or M_i out of range.
    """
    check_curvature(problem)
    ratio = problem.num_agents * problem.largest**2 / float(problem.strong_convexity.sum())
    return 1.0 / (12.0 * ratio)


def max_biased_step(problem: Constants, *, rho: Any) -> np.ndarray:
    """Propositions 4 and 5, eq. 9: the largest steps gamma_i for their bounds on the Langevin bias, (agent,).

    Parameters and errors as in `max_step`.
    """
    rho = _each("rho", rho, problem)
    m, M = problem.strong_convexity, problem.smoothness + 1.0 / rho
    return m / (40.0 * M**2) * _evenness(m / M)


def biased_steps(problem: Constants, *, rho: Any, step_size: Any) -> np.ndarray:
    """Propositions 4 and 5, eq. 10: the local steps N_i for these gamma_i, (agent,).

    The bounds on W2^2 are C_3 sum_i d gamma_i (M_i + 1 / rho_i)^2 and, for Lipschitz Hessians,
    C_4 sum_i d gamma_i ((M_i + 1 / rho_i)^-2 + gamma_i (M_i + 1 / rho_i)^2). C_3 and C_4 are in the supplement.

    Parameters
    ----------
    problem, rho
        As in `max_step`.
    step_size
        gamma_i, at most `max_biased_step(problem, rho=rho)`.

    Returns
    -------
    np.ndarray, (agent,)
        At least 2.

    Raises
    ------
    ValueError
        As in `max_step`, or a step is above the bound of eq. 9.
    """
    step, bound = _each("step_size", step_size, problem), max_biased_step(problem, rho=rho)
    over = step > bound * (1.0 + 1e-9)
    if over.any():
        agent = int(np.argmax(step / bound))
        raise ValueError(f"step_size must be at most {bound[agent]:.6g} (eq. 9), agent {agent} has {step[agent]:.6g}")
    # eq. 10 has 20 instead of 40 in eq. 9. The last factor keeps rounding from turning 2 into 1.
    return np.floor(2.0 * bound / step * (1.0 + 1e-9)).astype(np.int64)


def best_horizon(problem: Constants, *, rho: Any) -> np.ndarray:
    """Section 3.2: the order of the best N_i gamma_i, m_i rho_i^2 / (rho_i M_i + 1)^2 (Lemma S26), (agent,).

    Parameters and errors as in `max_step`.
    """
    rho = _each("rho", rho, problem)
    return problem.strong_convexity * (rho / (rho * problem.smoothness + 1.0)) ** 2


def guidelines(problem: Constants, *, fraction: float = 0.25) -> Guidelines:
    """Section 3.2: rho, the range of the step, a step within it, and the number of local steps.

    Parameters
    ----------
    problem
        The constants M_i.
    fraction
        The step as a fraction of rho_i / (rho_i M_i + 1), in [0.1, 0.5].

    Returns
    -------
    Guidelines
        At a fraction of 0.25, the defaults of `DGLMC()`.

    Raises
    ------
    ValueError
        m_i, M_i or the fraction is out of range.

    Examples
    --------
    >>> import accord
    >>> from accord_papers import theory
    >>> post = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0, 0.5, 0.25])
    >>> found = theory.dg_lmc.guidelines(theory.constants(post))
    >>> found.rho, found.local_steps
    (array([1.  , 0.5 , 0.25]), 4)
    """
    check_curvature(problem)
    if not 0.1 <= fraction <= 0.5:
        raise ValueError(f"fraction must be in [0.1, 0.5], found {fraction}")
    rho = 1.0 / problem.smoothness
    stable = rho / (rho * problem.smoothness + 1.0)
    step = fraction * stable
    steps = int(np.ceil(np.mean(stable / step) - 1e-9))
    return Guidelines(rho, 0.1 * stable, 0.5 * stable, step, steps)


def _evenness(ratio: np.ndarray) -> float:
    return float((ratio.min() / ratio.max()) ** 2)


def _each(name: str, value: Any, problem: Constants) -> np.ndarray:
    check_curvature(problem)
    found = one_an_agent(name, value, problem.num_agents).astype(np.float64)
    wrong = ~((found > 0) & np.isfinite(found))
    if wrong.any():
        agent = int(np.argmax(wrong))
        raise ValueError(f"{name} must be a finite number > 0, agent {agent} has {found[agent]}")
    return found
