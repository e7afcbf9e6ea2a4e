"""Other posteriors from a run's weighted points: without one agent's data, or with more data; nothing is sampled."""

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
from ..network import Network
from ..posterior import Posterior
from ..posterior.potential import Potential, Shard
from ..posterior.totals import of_rows
from ..results.certificate import Certificate, Check
from ..results.diagnostics import pareto
from ..results.points import Points
from ..results.run import Run
from ..results.unconstrained import for_all
from ..samplers.engine import Builder
from .agents import Agents, agents_of

# Largest Pareto k of weights that one may rely on, above which they have no error bars, and the fewest effective draws:
# means are then within some .05 standard deviations.
LARGEST_K, FEWEST = 0.5, 400.0
# Points that the optimum of new rows is looked for from, and how far the log density there may be above all points'.
_STARTS, _ABOVE = 8, 3.0


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


def leave_out(run: Run, post: Posterior, network: Network, agent: int, *, engine: str | Builder = "local") -> LeftOut:
    """The posterior without the data of one agent, from the points of a run: nothing is sampled.

    The agent returns the log likelihood of its rows at the points.

    Parameters
    ----------
    run, post, network, engine
        As in `accord.loo`; a run with weighted points.
    agent
        The agent's number.

    Raises
    ------
    ValueError
        The method has no weights, there is no such agent, the sums of the run are masked, or the run is of another
        posterior or network.
    ArithmeticError
        The weights are not certified, or that data changes the posterior too much for them.
    """
    points = run.weighted("leave_out")
    whole_number("agent", agent, 0, run.traffic.bytes_sent.size - 1)
    with agents_of(run, post, network, engine, single=True) as agents:
        placed, positions = agents.placed, points.positions
        if placed.reads_in_chunks:
            # no row of another agent is read
            found = placed.alone(agent).each(log_likelihood_at, positions)[0]
        else:
            # the others answer zeros
            asked = (np.arange(placed.num_agents) == agent).astype(float)
            found = placed.each(log_likelihood_at, positions, own=(asked,))[agent]
    return without(points, np.asarray(found), agent)


def leave_each_out(
    run: Run, post: Posterior, network: Network, *, engine: str | Builder = "local"
) -> tuple[LeftOut | str, ...]:
    """`leave_out` of every agent in one question; a sentence says why in place of a posterior that is not known."""
    run.weighted("leave_each_out")
    with agents_of(run, post, network, engine, single=True) as agents:
        return each_left_out(run, agents)


def each_left_out(run: Run, agents: Agents) -> tuple[LeftOut | str, ...]:
    """`leave_each_out`, of agents whose sums are not masked."""
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
    run: Run, post: Posterior, network: Network, rows: Mapping[int, Any], *, engine: str | Builder = "local"
) -> Run:
    """The run on more data, from the points of a run: nothing is sampled, and the agents answer one sum.

    Parameters
    ----------
    run, post, network, engine
        As in `accord.loo`; a run with weighted points.
    rows
        New rows of some agents, by their numbers: shards as `Posterior` takes them, in addition to those before.

    Returns
    -------
    Run
        Its `certificate` has what was checked; its traffic is that of the run before. Questions about it, a further
        update among them, need the posterior of all rows.

    Raises
    ------
    ValueError
        The method has no weights, there is no such agent, its rows are not what the model takes, or the run is of
        another posterior or network.
    ArithmeticError
        The weights are not certified, or the new data changes the posterior too much for them.
    """
    points, last = run.weighted("update"), run.traffic.bytes_sent.size - 1
    new = {whole_number("agent", agent, 0, last): own for agent, own in rows.items()}
    with agents_of(run, post, network, engine) as agents:
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
        # latents that agents have kept are of the draws before
        settings={name: value for name, value in run.settings.items() if name != "local"},
    )


def without(points: Points, log_likelihood: np.ndarray, agent: int) -> LeftOut:
    """The posterior without the data of an agent whose log likelihood at the points, (point,), is known."""
    left = points.reweighted(-log_likelihood)
    k = reliable(left, f"leaving out agent {agent}", f"sample the posterior of the others without agent {agent}")
    pull = (points.mean - left.mean) / points.sd
    return LeftOut(agent, left, pull, points.log_evidence[0] - left.log_evidence[0], k)


def _updated(points: Points, agents: Agents, added: list[Posterior]) -> tuple[Points, Certificate]:
    """The points for more data, and what was checked.

    Raises
    ------
    ArithmeticError
        The points are too few where the new posterior is, or it has a place that they do not reach.
    """
    found = points.reweighted(_log_likelihood(added, points.positions))
    remedy = "sample the posterior of all data anew"
    k = reliable(found, "the new data", remedy)
    # weights know of the points only: new rows may have made another mode
    heaviest = points.positions[np.argsort(-found.weight, kind="stable")[:_STARTS]]
    middle = points.weight @ points.positions / points.weight.size
    optima = _optima(added, np.concatenate([heaviest, middle[None]]))
    there = agents.log_density(optima) + _log_likelihood(added, optima)
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


def _as_posteriors(agents: Agents, rows: dict[int, Any]) -> list[Posterior]:
    """Each agent's new rows as a posterior of one agent; what is wrong with them is named."""
    if rows and not agents.placed.splits:
        raise ValueError(
            "new rows cannot be added where an agent's log likelihood is no sum over rows, as with latents of a "
            "site or a scalar log likelihood: sample the posterior of all data anew"
        )
    made = []
    for agent, own in rows.items():
        try:
            made.append(agents.post.with_shards([own]))
        except ValueError as error:
            raise ValueError(str(error).replace("agent 0", f"agent {agent}")) from error
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"the new rows of agent {agent} are not built as the posterior's shards are: "
                f"{type(error).__name__}: {error}"
            ) from error
    return made


def _log_likelihood(added: list[Posterior], positions: np.ndarray) -> np.ndarray:
    """The sum of the log likelihoods of new rows at positions (point, dim); (point,)."""
    found = np.zeros(len(positions))
    for post in added:
        found += post.each(log_likelihood_at, positions)[0]
    return found


def _optima(added: list[Posterior], starts: np.ndarray) -> np.ndarray:
    """Where the log likelihood of new rows is largest near some positions, (start, dim)."""

    def falling(x: np.ndarray) -> tuple[float, np.ndarray]:
        found = [post.each(_falling, x)[0] for post in added]
        numbers = np.sum(found, axis=0) if found else np.zeros(1 + x.size)
        return float(numbers[0]), numbers[1:]

    return np.stack([scipy.optimize.minimize(falling, x, jac=True, method="L-BFGS-B").x for x in starts])


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


def _falling(potential: Potential, shard: Shard, x: Float[Array, " dim"]) -> Float[Array, " number"]:
    """Minus the log likelihood of an agent's rows, and its gradient."""
    value, gradient = jax.value_and_grad(lambda x: -potential.shard_log_likelihood(shard, x))(x)
    return jnp.concatenate([value[None], gradient])


@of_rows
def log_likelihood_at(
    potential: Potential, shard: Shard, positions: Float[Array, "point dim"], asked: Float[Array, ""] | float = 1.0
) -> Float[Array, " point"]:
    """An agent's log likelihood at positions; zeros where `asked` is 0."""
    return asked * jax.lax.map(
        partial(potential.shard_log_likelihood, shard), positions, batch_size=min(len(positions), 64)
    )
