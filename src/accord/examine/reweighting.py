"""Posteriors without one agent's data, or with more data, by reweighting a run's points. Nothing is sampled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Float

from ..base.checks import whole_number
from ..base.errors import unknown_name_error
from ..network import Network
from ..posterior import Posterior
from ..posterior.masks import FEWEST as FEWEST_SITES
from ..posterior.potential import Potential, Shard
from ..posterior.totals import of_rows
from ..results.certificate import Certificate, Check
from ..results.diagnostics import pareto
from ..results.points import Points
from ..results.run import Run
from ..results.unconstrained import for_all
from ..samplers.engine import Builder
from .agents import Agents, agents_of

# Largest Pareto k of reliable weights. Above it, the weights have infinite variance.
LARGEST_K = 0.5
# Smallest number of effective draws. Means are then accurate to about 0.05 standard deviations.
FEWEST = 400.0
# Number of points from which the optimum of new rows is searched.
_STARTS = 8
# Largest excess of the log density at an optimum over the largest log density of a point.
_ABOVE = 3.0


class LeftOut(NamedTuple):
    """The posterior without the data of one agent.

    Parameters
    ----------
    agent
        Number of the agent.
    points
        The run's points, weighted for the posterior without the agent.
    pull
        Shift of each mean by the agent's data, in standard deviations of the posterior of all data, shape (dim,).
    log_predictive
        Log density of the agent's data given the data of all other agents.
    k
        Pareto k of the new weights.
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


def leave_out(
    run: Run, post: Posterior, network: Network, agent: int | str, *, engine: str | Builder = "local"
) -> LeftOut:
    """The posterior without the data of one agent, by reweighting the points of a run. Nothing is sampled.

    The agent returns the log likelihood of its rows at the points.

    Parameters
    ----------
    run, post, network, engine
        As in `accord.loo`. The run must have weighted points.
    agent
        Number or site name of the agent.

    Raises
    ------
    ValueError
        The method has no weights, there is no such agent, the sums of the run are masked, or the run is of another
        posterior or network.
    ArithmeticError
        The weights are not certified, or the agent's data changes the posterior too much for reweighting.
    """
    points = run.weighted("leave_out")
    agent = _number(run, agent)
    with agents_of(run, post, network, engine, single=True) as agents:
        placed, positions = agents.placed, points.positions
        if placed.reads_in_chunks:
            # read no rows of other agents
            found = placed.alone(agent).each(log_likelihood_at, positions)[0]
        else:
            # other agents return zeros
            selected = (np.arange(placed.num_agents) == agent).astype(float)
            found = placed.each(log_likelihood_at, positions, own=(selected,))[agent]
    return without(points, np.asarray(found), agent)


def _number(run: Run, agent: int | str) -> int:
    if isinstance(agent, str):
        if not run.sites:
            raise ValueError(f"this run has no names of sites: give the number of the agent, found {agent!r}")
        if agent not in run.sites:
            raise unknown_name_error("site", agent, run.sites)
        return run.sites.index(agent)
    return whole_number("agent", agent, 0, run.traffic.bytes_sent.size - 1)


def leave_each_out(
    run: Run, post: Posterior, network: Network, *, engine: str | Builder = "local"
) -> tuple[LeftOut | str, ...]:
    """`leave_out` for every agent in one query. A sentence with the reason replaces an unreliable posterior."""
    run.weighted("leave_each_out")
    with agents_of(run, post, network, engine, single=True) as agents:
        return each_left_out(run, agents)


def each_left_out(run: Run, agents: Agents) -> tuple[LeftOut | str, ...]:
    """`leave_each_out`, for agents without masked sums."""
    points = run.weighted("leave_each_out")
    log_likelihoods = np.asarray(agents.placed.each(log_likelihood_at, points.positions))
    found: list[LeftOut | str] = []
    for agent, log_likelihood in enumerate(log_likelihoods):
        try:
            found.append(without(points, log_likelihood, agent))
        except ArithmeticError as error:
            found.append(str(error))
    return tuple(found)


def update(
    run: Run, post: Posterior, network: Network, rows: Mapping[int | str, Any], *, engine: str | Builder = "local"
) -> Run:
    """The run with more data, by reweighting the points of a run. Nothing is sampled, and one sum is needed.

    Parameters
    ----------
    run, post, network, engine
        As in `accord.loo`. The run must have weighted points.
    rows
        Additional rows by number or site name of the agent, as shards with the structure of `post.shards[0]`. For a
        model of `glm`, pass `accord.models.glm([frame], formula, family).shards[0]`. The formula
        must make the same columns of the new rows, with the same levels, as in the run's model.

    Returns
    -------
    Run
        The updated run with a new `certificate`. Its traffic is the traffic of `run`. Functions that query the agents
        about it, such as a further `update`, need the posterior of all rows.

    Raises
    ------
    ValueError
        The method has no weights, there is no such agent, the rows do not fit the model, the run is of another
        posterior or network, or its sums are masked and fewer than three agents have new rows: the change of the
        weights would reveal the new rows.
    ArithmeticError
        The weights are not certified, or the new data changes the posterior too much for reweighting.
    """
    points = run.weighted("update")
    new = {_number(run, agent): own for agent, own in rows.items()}
    if len(new) < len(rows):
        raise ValueError(f"rows name an agent twice, by number and by site: {', '.join(map(repr, rows))}")
    with agents_of(run, post, network, engine) as agents:
        if agents.masks and len(new) < FEWEST_SITES:
            raise ValueError(
                f"the sums of this run are masked, and the change of its weights would reveal the new rows of "
                f"{len(new)} agents: update at least {FEWEST_SITES} agents at once, or sample the posterior of all data"
            )
        added = _as_posteriors(agents, new)
        found, certificate = _updated(points, agents, added)
    more = dict(zip(new, (int(own.sizes[0]) for own in added), strict=True))
    counts = tuple(count + more.get(agent, 0) for agent, count in enumerate(run.info.rows))
    chains, draws = run.average.shape[:2]
    chosen = found.chains(chains, draws, int(run.settings.get("seed", 0)))
    values, free = found.values[chosen], run.unconstrained
    if free is not None:
        average = found.positions[chosen]
        free = free._replace(average=average, kept=for_all(average, run.agents.size))
    return replace(
        run,
        average=values,
        kept=for_all(values, run.agents.size),
        unconstrained=free,
        points=found,
        certificate=certificate,
        info=replace(run.info, rows=counts),
        # latents stored at the agents belong to the old draws
        settings={name: value for name, value in run.settings.items() if name != "local"},
    )


def without(points: Points, log_likelihood: np.ndarray, agent: int) -> LeftOut:
    """The posterior without the data of an agent, given the agent's log likelihood at the points, (point,)."""
    left = points.reweighted(-log_likelihood)
    k = reliable(left, f"leaving out agent {agent}", f"sample the posterior of all agents without agent {agent}")
    pull = (points.mean - left.mean) / points.sd
    return LeftOut(agent, left, pull, points.log_evidence[0] - left.log_evidence[0], k)


def _updated(points: Points, agents: Agents, added: list[Posterior]) -> tuple[Points, Certificate]:
    """The points reweighted for more data, and their certificate.

    Raises
    ------
    ArithmeticError
        The weights are unreliable, or the new posterior has a mode without points.
    """
    found = points.reweighted(_log_likelihood(added, points.positions))
    remedy = "sample the posterior of all data again"
    k = reliable(found, "the new data", remedy)
    # weights reveal no mode without points, which the new rows may have created
    heaviest = points.positions[np.argsort(-found.weight, kind="stable")[:_STARTS]]
    middle = points.weight @ points.positions / points.weight.size
    optima = _optima(added, np.concatenate([heaviest, middle[None]]))
    there = agents.log_density(optima) + _log_likelihood(added, optima)
    above = float(there.max() - found.log_density.max())
    if above > _ABOVE:
        raise ArithmeticError(
            "the new data has a mode far from all points of this run: the posterior density there is "
            f"exp({above:.3g}) times the density at any point; {remedy}"
        )
    checks = (
        Check("weights", k, LARGEST_K, True, f"Pareto k of the weights after the update is {k:.2f}"),
        Check("effective draws", found.effective, FEWEST, True, f"{found.effective:.0f} effective draws are left"),
        Check("new modes", above, _ABOVE, True, "no new mode at the optimum of the new rows; no other search was made"),
    )
    return found, Certificate(checks)


def _as_posteriors(agents: Agents, rows: dict[int, Any]) -> list[Posterior]:
    """Each agent's new rows as a posterior of one agent; `ValueError` if the rows do not fit the model."""
    if rows and not agents.placed.splits:
        raise ValueError(
            "new rows need a log likelihood that is a sum over rows, without latents of a site and not a scalar: "
            "sample the posterior of all data again"
        )
    made = []
    remedy = ""
    if agents.post.info.formula:
        remedy = ". For a model of glm, pass accord.models.glm([frame], formula, family).shards[0]"
    for agent, own in rows.items():
        try:
            if hasattr(own, "columns"):
                raise TypeError(f"found a {type(own).__name__}")
            made.append(agents.post.with_shards([own]))
        except ValueError as error:
            raise ValueError(str(error).replace("agent 0", f"agent {agent}") + remedy) from error
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"the new rows of agent {agent} differ in structure from the posterior's shards: "
                f"{type(error).__name__}: {error}{remedy}"
            ) from error
    return made


def _log_likelihood(added: list[Posterior], positions: np.ndarray) -> np.ndarray:
    """Log likelihood of all new rows at positions (point, dim), shape (point,)."""
    found = np.zeros(len(positions))
    for post in added:
        found += post.each(log_likelihood_at, positions)[0]
    return found


def _optima(added: list[Posterior], starts: np.ndarray) -> np.ndarray:
    """Local maxima of the log likelihood of new rows near some positions, (start, dim)."""

    def negated(x: np.ndarray) -> tuple[float, np.ndarray]:
        found = [post.each(_negated, x)[0] for post in added]
        numbers = np.sum(found, axis=0) if found else np.zeros(1 + x.size)
        return float(numbers[0]), numbers[1:]

    return np.stack([scipy.optimize.minimize(negated, x, jac=True, method="L-BFGS-B").x for x in starts])


def reliable(points: Points, what: str, remedy: str) -> float:
    """Pareto k of the weights.

    Raises
    ------
    ArithmeticError
        k is too large or the effective draws are too few.
    """
    k = pareto(points.log_weight)
    if not (k <= LARGEST_K and points.effective >= FEWEST):
        raise ArithmeticError(
            f"{what} changes the posterior too much for the points of this run: {shortfall(k, points.effective)}; "
            f"{remedy}"
        )
    return k


def shortfall(k: float, effective: float) -> str:
    """Pareto k and the effective draws with their limits, rounded towards the worse."""
    return (
        f"Pareto k is {np.ceil(1000 * k) / 1000:.3f} (at most {LARGEST_K} allowed) and {np.floor(effective):.0f} "
        f"effective draws are left (at least {FEWEST:.0f} needed)"
    )


def _negated(potential: Potential, shard: Shard, x: Float[Array, " dim"]) -> Float[Array, " number"]:
    """Negative log likelihood of an agent's rows, and its gradient."""
    value, gradient = jax.value_and_grad(lambda x: -potential.shard_log_likelihood(shard, x))(x)
    return jnp.concatenate([value[None], gradient])


@of_rows
def log_likelihood_at(
    potential: Potential, shard: Shard, positions: Float[Array, "point dim"], selected: Float[Array, ""] | float = 1.0
) -> Float[Array, " point"]:
    """An agent's log likelihood at positions; zeros if `selected` is 0."""
    return selected * jax.lax.map(
        partial(potential.shard_log_likelihood, shard), positions, batch_size=min(len(positions), 64)
    )
