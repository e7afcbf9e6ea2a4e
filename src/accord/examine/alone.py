"""The posterior of each site's data alone, by adaptive importance sampling that starts at the draws of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import jax
import numpy as np
import scipy
from jaxtyping import Array, Float

from ..base.counters import generator
from ..base.weights import effective
from ..network import Network
from ..posterior import Posterior
from ..posterior.potential import Potential, Shard
from ..results.diagnostics import pareto
from ..results.points import Points
from ..results.run import Run
from ..samplers.engine import Builder
from .agents import Agents, agents_of
from .reweighting import FEWEST, LARGEST_K, shortfall

# Number of points per site in each pass: few until a proposal fits, then more.
_POINTS = (2000, 2000, 2000, 2000, 8000, 8000, 8000)
# Smallest degrees of freedom of the proposals. With many parameters, heavier tails would hold nearly all points.
_FREEDOM = 5.0
# Effective draws per parameter for refitting a covariance. Weights are tempered to reach this number.
_REFIT = 30.0
# Factor by which a proposal's covariance is inflated.
_WIDER = 1.2
# Number of points of the final search for other modes.
_LOOKS = 8000
# Scale of the Cauchy distribution of these points, in standard deviations.
_FAR = 10.0
# Distance beyond which a point counts as elsewhere, in standard deviations.
_ELSEWHERE = 6.0
# Largest share of the mass elsewhere.
_SHARE = 0.03


Densities = Callable[[np.ndarray], np.ndarray]


class Alone(NamedTuple):
    """The posterior of the data of one agent alone, with the whole prior.

    Parameters
    ----------
    agent
        Number of the agent.
    points
        Weighted points, with mean and standard deviation.
    k
        Pareto k of the weights.
    why
        Reason why the weights are unreliable; empty if they are reliable.
    """

    agent: int
    points: Points
    k: float
    why: str


def alone(run: Run, post: Posterior, network: Network, *, engine: str | Builder = "local") -> tuple[Alone, ...]:
    """The posterior of each agent's data alone, as weighted points.

    Each agent returns its log likelihood at the points. Read means and standard deviations from `points`, and check
    `why` first: it is empty if the weights are reliable. The run need not be certified.

    Parameters
    ----------
    run, post, network, engine
        As in `accord.loo`.

    Raises
    ------
    ValueError
        The sums of the run are masked, or the run is of another posterior or network.
    """
    with agents_of(run, post, network, engine, single=True) as agents:
        return alone_of(run, agents)


def alone_of(run: Run, agents: Agents) -> tuple[Alone, ...]:
    """`alone`, for agents without masked sums."""
    draws, post = run.moved.average.astype(np.float64), agents.post

    def log_densities(positions: np.ndarray) -> np.ndarray:
        return np.asarray(agents.placed.each(log_density_alone, own=(positions,)))

    flat, seed = draws.reshape(-1, draws.shape[2]), int(run.settings.get("seed", 0))
    found = []
    for one in by_points(flat, log_densities, post.num_agents, seed):
        values = np.asarray(post.parameters.reported(one.points.positions))
        found.append(one._replace(points=replace(one.points, values=values)))
    return tuple(found)


def by_points(draws: np.ndarray, log_densities: Densities, num_agents: int, seed: int) -> list[Alone]:
    """The posterior of each agent's data alone, as points in unconstrained coordinates.

    The covariance of the first proposal is the covariance of the draws times the number of agents. Proposals are
    refitted to the weighted points until the weights are reliable or the passes are used up.

    Parameters
    ----------
    draws
        Unconstrained draws of the posterior of all data, (draw, dim).
    log_densities
        Function that returns the log density of each agent's own posterior, (agent, point, dim) to (agent, point).
    num_agents
        Number of agents.
    seed
        Seed of the points.
    """
    dim = draws.shape[1]
    mean = np.repeat(draws.mean(axis=0)[None], num_agents, axis=0)
    cov = np.repeat(np.cov(draws, rowvar=False).reshape(dim, dim)[None] * num_agents, num_agents, axis=0)
    found: dict[int, Alone] = {}
    random = generator(seed, "alone")
    for step, count in enumerate(_POINTS):
        laws = [_proposal(mean[agent], cov[agent]) for agent in range(num_agents)]
        positions = np.stack([law.rvs(count, random_state=random).reshape(count, dim) for law in laws])
        values = log_densities(positions)
        for agent, law in enumerate(laws):
            if agent in found and not found[agent].why:
                continue
            proposal = np.reshape(law.logpdf(positions[agent]), count)
            # points with an undefined likelihood have no mass
            value = np.where(np.isfinite(values[agent]), values[agent], -np.inf)
            found[agent] = _judged(agent, positions[agent], value, proposal)
            if found[agent].why and step + 1 < len(_POINTS):
                mean[agent], cov[agent] = _refitted(positions[agent], value - proposal)
        if not any(one.why for one in found.values()):
            break
    return _elsewhere([found[agent] for agent in range(num_agents)], log_densities, random)


def _elsewhere(found: list[Alone], log_densities: Densities, random: np.random.Generator) -> list[Alone]:
    """Mark agents as unreliable if a wide search finds mass elsewhere: weights near one mode do not reveal another."""
    if all(one.why for one in found):
        return found
    dim = found[0].points.positions.shape[1]
    around = [_moments(one.points) for one in found]
    laws = [scipy.stats.multivariate_t(mean, _FAR**2 * cov, df=1) for mean, cov in around]
    positions = np.stack([law.rvs(_LOOKS, random_state=random).reshape(_LOOKS, dim) for law in laws])
    seen = []
    values = log_densities(positions)
    for one, (mean, cov), law, x, value in zip(found, around, laws, positions, values, strict=True):
        off = np.linalg.norm(np.linalg.solve(np.linalg.cholesky(cov), (x - mean).T), axis=0) > _ELSEWHERE
        with np.errstate(over="ignore"):
            ratio = np.exp(value - np.reshape(law.logpdf(x), _LOOKS) - one.points.log_evidence[0])
        there = np.where(np.isfinite(ratio) & off, ratio, 0.0).mean()
        share = there / (1.0 + there)
        why = f"A search at {_LOOKS:,} points found {share:.0%} of its mass elsewhere: it has more than one mode."
        seen.append(one if one.why or share <= _SHARE else one._replace(why=why))
    return seen


def _moments(points: Points) -> tuple[np.ndarray, np.ndarray]:
    """Weighted mean and covariance of points, with a small diagonal for directions without spread."""
    weight = points.weight if np.isfinite(points.weight).all() else np.ones(len(points.positions))
    mean = np.average(points.positions, axis=0, weights=weight)
    cov = np.atleast_2d(np.cov(points.positions, rowvar=False, aweights=weight))
    return mean, cov + (1e-10 * np.trace(cov) / len(cov) + np.finfo(float).tiny) * np.eye(len(cov))


def _proposal(mean: np.ndarray, cov: np.ndarray) -> scipy.stats.multivariate_t:
    """Student's t proposal, with a small diagonal for directions without spread."""
    floor = 1e-10 * np.trace(cov) / len(cov) + np.finfo(float).tiny
    return scipy.stats.multivariate_t(mean, _WIDER * cov + floor * np.eye(len(cov)), df=max(_FREEDOM, len(cov)))


def _judged(agent: int, positions: np.ndarray, value: np.ndarray, proposal: np.ndarray) -> Alone:
    log_weight = value - proposal
    if not np.isfinite(log_weight).any():
        points = Points(positions, np.zeros(len(positions)), proposal, positions)
        return Alone(agent, points, np.inf, "Its likelihood is not finite near the posterior of all data.")
    points = Points(positions, value, proposal, positions)
    k, count = pareto(log_weight), effective(log_weight)
    good = k <= LARGEST_K and count >= FEWEST
    why = "" if good else f"Reweighting failed: {shortfall(k, count)}. Its data may not identify some parameters."
    return Alone(agent, points, k, why)


def _refitted(positions: np.ndarray, log_weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of points with weights tempered to enough effective draws."""
    wanted = min(_REFIT * positions.shape[1], 0.2 * len(positions))
    finite = np.isfinite(log_weight)
    positions, log_weight = positions[finite], log_weight[finite]
    low, high = 0.0, 1.0
    if effective(log_weight) < wanted:
        for _ in range(30):
            middle = (low + high) / 2.0
            low, high = (middle, high) if effective(middle * log_weight) >= wanted else (low, middle)
        log_weight = low * log_weight
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    mean = weight @ positions
    apart = positions - mean
    return mean, (apart.T * weight) @ apart


def log_density_alone(
    potential: Potential, shard: Shard, positions: Float[Array, "point dim"]
) -> Float[Array, " point"]:
    """Log density of the posterior of an agent's data alone, with the whole prior."""

    def value(x: Float[Array, " dim"]) -> Array:
        return potential.shard_log_likelihood(shard, x) + potential.log_prior_at(x)

    return jax.lax.map(value, positions, batch_size=min(len(positions), 64))
