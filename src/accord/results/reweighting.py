"""What weighted points say of other posteriors: without one agent's data, or with more data; without sampling again."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from ..report.told import Histogram
from .certificate import Certificate, Check
from .diagnostics import pareto
from .loo import RowOwners
from .points import Points

# Largest Pareto k of weights that one may rely on, above which they have no error bars, and the fewest effective draws:
# means are then within some .05 standard deviations.
LARGEST_K, FEWEST = 0.5, 400.0
# Points that the optimum of new rows is looked for from, and how far the log density there may be above all points'.
_STARTS, _ABOVE = 8, 3.0


class Agents(RowOwners, Protocol):
    """Who answers for the data of a run."""

    def log_likelihood(self, positions: np.ndarray, agent: int) -> np.ndarray:
        """The log likelihood of one agent's rows at some positions (point, dim), told by that agent; (point,)."""
        ...

    def log_likelihoods(self, positions: np.ndarray) -> np.ndarray:
        """That of every agent, each told by itself; (agent, point)."""
        ...

    def of_rows(self, positions: np.ndarray) -> tuple[np.ndarray, ...]:
        """That of each row of every agent, (point, row); `ValueError` where rows are elsewhere or have none."""
        ...

    def log_likelihood_of(self, rows: dict[int, Any], positions: np.ndarray) -> np.ndarray:
        """The sum of the log likelihoods of new rows of some agents, alike."""
        ...

    def optima_of(self, rows: dict[int, Any], starts: np.ndarray) -> np.ndarray:
        """Where these are largest near some positions, (start, dim)."""
        ...

    def latent_agents(self) -> tuple[int, ...]:
        """The agents whose latents are drawn in this process; `AttributeError` where there are none."""
        ...

    def latents(self, agent: int, positions: np.ndarray, seed: int) -> dict[str, np.ndarray]:
        """Draws of an agent's own latents by name, (chain, draw, group, ...), at positions (chain, draw, dim)."""
        ...

    def alone(self, positions: np.ndarray) -> np.ndarray:
        """The log density of the posterior of each agent's data alone, at positions of its own (agent, point, dim)."""
        ...

    def reported(self, positions: np.ndarray) -> np.ndarray:
        """Positions (point, dim) as people read them."""
        ...

    def predicted(self, positions: np.ndarray, seed: int) -> Histogram | str:
        """A posterior predictive check of some draws (draw, dim), or why there is none, in a sentence."""
        ...

    def log_density(self, positions: np.ndarray) -> np.ndarray:
        """-F of the run's posterior at some positions; (point,), one sum."""
        ...


class LeftOut(NamedTuple):
    """The posterior without the data of one agent.

    Parameters
    ----------
    agent
        Whose.
    points
        The run's points, with the weights that they have for it: its `mean`, `weight` and evidence.
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

    @property
    def mean(self) -> np.ndarray:
        """Means, shape (number,)."""
        return self.points.mean

    @property
    def cov(self) -> np.ndarray:
        """Covariances, shape (number, number)."""
        return self.points.cov

    @property
    def weights(self) -> np.ndarray:
        """Weights of the run's points, of mean one, shape (point,)."""
        return self.points.weight


def leave_out(points: Points, agents: Agents, agent: int) -> LeftOut:
    """The posterior without the data of one agent, as `Run.leave_out` has it."""
    return without(points, agents.log_likelihood(points.positions, agent), agent)


def leave_each_out(points: Points, agents: Agents) -> tuple[LeftOut | str, ...]:
    """The posterior without each agent's data, by one question to all of them; or why it is not known."""
    found: list[LeftOut | str] = []
    for agent, log_likelihood in enumerate(agents.log_likelihoods(points.positions)):
        try:
            found.append(without(points, log_likelihood, agent))
        except ArithmeticError as error:
            found.append(str(error))
    return tuple(found)


def without(points: Points, log_likelihood: np.ndarray, agent: int) -> LeftOut:
    """The posterior without the data of an agent whose log likelihood at the points, (point,), is known."""
    left = points.reweighted(-log_likelihood)
    k = reliable(left, f"leaving out agent {agent}", f"sample the posterior of the others without agent {agent}")
    pull = (points.mean - left.mean) / points.sd
    return LeftOut(agent, left, pull, points.log_evidence[0] - left.log_evidence[0], k)


def updated(points: Points, agents: Agents, rows: dict[int, Any]) -> tuple[Points, Certificate]:
    """The points for more data, as `Run.update` has them, and what was checked.

    Raises
    ------
    ArithmeticError
        The points are too few where the new posterior is, or it has a place that they do not reach.
    """
    found = points.reweighted(agents.log_likelihood_of(rows, points.positions))
    remedy = "sample the posterior of all data anew"
    k = reliable(found, "the new data", remedy)
    # weights know of the points only: new rows may have made another mode
    heaviest = points.positions[np.argsort(-found.weight, kind="stable")[:_STARTS]]
    middle = points.weight @ points.positions / points.weight.size
    optima = agents.optima_of(rows, np.concatenate([heaviest, middle[None]]))
    there = agents.log_density(optima) + agents.log_likelihood_of(rows, optima)
    above = float(there.max() - found.log_density.max())
    if above > _ABOVE:
        raise ArithmeticError(
            "the new data has a mode that no point of this run is near: the posterior's density there is "
            f"exp({above:.3g}) times that at any point; {remedy}"
        )
    checks = (
        Check("weights", k, LARGEST_K, True, f"Pareto k of the weights after the update is {k:.2f}"),
        Check("effective draws", found.effective, FEWEST, True, f"{found.effective:.0f} effective draws are left"),
        Check("new modes", above, _ABOVE, True, "none at the optimum of the new rows; nothing else was looked for"),
    )
    return found, Certificate(checks)


def reliable(points: Points, what: str, remedy: str) -> float:
    """The Pareto k of weights.

    Raises
    ------
    ArithmeticError
        It is too large to rely on them.
    """
    k = pareto(points.log_weight)
    if not (k <= LARGEST_K and points.effective >= FEWEST):
        raise ArithmeticError(
            f"{what} changes the posterior too much for the points of this run: {shortfall(k, points.effective)}; "
            f"{remedy}"
        )
    return k


def shortfall(k: float, effective: float) -> str:
    """Pareto k and the effective draws beside their limits, rounded so that none looks better than it is."""
    return (
        f"Pareto k is {np.ceil(1000 * k) / 1000:.3f} and {np.floor(effective):.0f} effective draws are left, where at "
        f"most {LARGEST_K} and at least {FEWEST:.0f} are needed"
    )
