"""What weighted points say of other posteriors: without one agent's data, or with more data; without sampling again."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from .diagnostics import pareto
from .points import Points

# Largest Pareto k of weights that one may rely on (Vehtari et al. 2024).
_LARGEST_K = 0.7


class Agents(Protocol):
    """Who answers for the data of a run."""

    def log_likelihood(self, positions: np.ndarray, agent: int) -> np.ndarray:
        """The log likelihood of one agent's rows at some positions (point, dim), told by that agent; (point,)."""
        ...

    def log_likelihood_of(self, rows: dict[int, Any], positions: np.ndarray) -> np.ndarray:
        """The sum of the log likelihoods of new rows of some agents, alike."""
        ...


class LeftOut(NamedTuple):
    """The posterior without the data of one agent.

    Parameters
    ----------
    agent
        Whose.
    points
        The run's points, with the weights that they have for it: `points.mean`, `.sd`, `.weight`, `.log_evidence`.
    pull
        How far the agent's data moves each mean, in standard deviations of the posterior of all data, shape (dim,).
    log_predictive
        The log of the density of the agent's data given that of all others.
    k
        Pareto k of the new weights over the old.
    """

    agent: int
    points: Points
    pull: np.ndarray
    log_predictive: float
    k: float


def leave_out(points: Points, agents: Agents, agent: int) -> LeftOut:
    """The posterior without the data of one agent, as `Run.leave_out` has it."""
    log_ratio = -agents.log_likelihood(points.positions, agent)
    without = points.reweighted(log_ratio)
    k = reliable(without, f"leaving out agent {agent}", f"sample the posterior of the others without agent {agent}")
    pull = (points.mean - without.mean) / points.sd
    return LeftOut(agent, without, pull, points.log_evidence[0] - without.log_evidence[0], k)


def reliable(points: Points, what: str, remedy: str) -> float:
    """The Pareto k of weights.

    Raises
    ------
    ArithmeticError
        It is too large to rely on them.
    """
    k = pareto(points.log_weight)
    if not k <= _LARGEST_K:
        raise ArithmeticError(
            f"{what} changes the posterior too much for the points of this run: Pareto k is {k:.2f}, above "
            f"{_LARGEST_K}, with {points.effective:.0f} effective draws left; {remedy}"
        )
    return k
