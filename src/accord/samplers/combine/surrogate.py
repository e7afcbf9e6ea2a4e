"""Surrogate likelihood: one agent samples its own rows with a linear term that corrects the gradient."""

from __future__ import annotations

import time
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ...base.checks import whole_number
from ...base.compiler import compiled
from ...base.memory import require_memory
from ...posterior import Posterior
from ...posterior.potential import Potential, Shard
from ...posterior.reference import nuts_chain, require_blackjax
from ...results.run import Run
from .subsets import Combination, as_run, lowest_alone


class Tilted(NamedTuple):
    """An agent's surrogate after some rounds."""

    weight: float
    tilt: np.ndarray  # (dim,)
    mode: np.ndarray  # (dim,)
    curvature: np.ndarray  # at the mode, (dim, dim)
    factor: np.ndarray  # covariance factor at the mode, (dim, dim)
    moves: np.ndarray  # distance by which each round moved the mode, in standard deviations, (round,)
    gradients: int  # evaluations by the agent


def surrogate(
    post: Posterior,
    *,
    draws: int = 1000,
    chains: int = 4,
    seed: int = 0,
    warmup: int = 1000,
    rounds: int = 3,
    agent: int | None = None,
) -> Run:
    """Communication-efficient surrogate likelihood.

    From agent i:  with l_j = -log likelihood of agent j's rows, n rows in total, n_i at agent i and w = n / n_i, in
    each round `g = sum_j grad l_j(theta)` over all agents, `theta+ = argmin_x w l_i(x) - log prior(x)
    + x' (g - w grad l_i(theta))`, at the start without the last term. NUTS on agent i's rows then draws from `exp(-`
    the last function `)`.

    Jordan, Lee and Yang 2019 (Communication-efficient distributed statistical inference, JASA 114; arXiv:1605.07689),
    the surrogate loss, its iterated minimiser and its quasi-posterior, in sums over rows. Each round multiplies the
    distance to the pooled mode by about `I - H_i^-1 H`, with H the Hessian of F and H_i the Hessian of the surrogate.
    If shards are random parts of the data, this is of order 1 / sqrt(n_i), and a few rounds reach the mode. Standard
    deviations come from H_i. Their relative error is of order 1 / sqrt(n_i) for random parts. If shards differ, the
    error stays in every round: an agent with twice the curvature per row gives 0.71 of the standard deviation. A
    warning is raised if the rounds do not converge.

    Parameters
    ----------
    post
        The posterior.
    draws, chains, seed, warmup
        As in `consensus`, without its lower bound on draws.
    rounds
        Number of sums of all agents' gradients, >= 1.
    agent
        The agent that samples. None: the agent with the most rows.

    Returns
    -------
    Run
        That agent's draws, for every agent. Settings: `agent`, and `last_move`, the distance by which the last round
        moved the mode, in standard deviations.

    Raises
    ------
    ValueError
        A number is out of its range, or the surrogate has no mode.
    ImportError
        BlackJAX is not installed.

    Examples
    --------
    >>> import accord
    >>> post = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0, 2.0, 3.0])
    >>> run = accord.samplers.combine.surrogate(post, draws=50, chains=2, warmup=200, rounds=5)
    >>> run.draws.shape
    (2, 50, 3, 1)
    """
    numbers = (("draws", draws, 1), ("chains", chains, 1), ("warmup", warmup, 1), ("seed", seed, 0))
    for name, value, low in (*numbers, ("rounds", rounds, 1)):
        whole_number(name, value, low)
    lead = int(np.argmax(post.sizes)) if agent is None else agent
    if lead not in range(post.num_agents):
        raise ValueError(f"agent must be one of 0 to {post.num_agents - 1}, found {agent!r}")
    post.require_unchanged()
    require_memory(draws=draws, chains=chains, positions=post.num_agents, dim=post.dim)
    require_blackjax("a surrogate")
    began = time.perf_counter()
    found = tilted(post, lead, rounds)
    starts = np.random.default_rng([seed, 0]).standard_normal((chains, post.dim)) @ found.factor.T + found.mode
    width = jnp.result_type(float)
    arguments = (starts, np.float64(found.weight), found.tilt)
    positions, divergent, evaluated = _draw(
        post.potential,
        _shard(post, lead),
        jax.random.split(jax.random.key(seed), chains),
        *(jnp.asarray(part, width) for part in arguments),
        draws=draws,
        warmup=warmup,
    )
    if not np.isfinite(positions).all():
        raise ArithmeticError(f"NUTS on the surrogate of agent {lead} drew NaN or infinity")
    if (share := float(np.mean(divergent))) > 0.01:
        warnings.warn(
            f"{100 * share:.2g}% of NUTS transitions on the surrogate of agent {lead} diverged: the draws may be wrong",
            stacklevel=2,
        )
    # one request for the gradients serves all chains
    gradients = np.full(post.num_agents, rounds / chains)
    gradients[lead] += found.gradients / chains + float(np.mean(evaluated))
    facts = {
        "method": f"surrogate(rounds={rounds}, agent={lead})",
        "seed": seed,
        "warmup": warmup,
        "agent": lead,
        "last_move": float(found.moves[-1]),
    }
    return as_run(
        post,
        Combination(np.asarray(positions, np.float64), facts=facts),
        gradients=gradients,
        # one gradient per round, and one point from the agent that samples
        bytes_sent=rounds * post.dim * np.dtype(np.float64).itemsize,
        seconds=time.perf_counter() - began,
        rounds=rounds,
        exchanges=2 * rounds,
    )


def tilted(post: Posterior, agent: int, rounds: int) -> Tilted:
    """The surrogate of one agent after `rounds` rounds, with a warning if they do not converge.

    Raises
    ------
    ValueError
        The surrogate has no mode.
    """
    weight = float(post.sizes.sum() / post.sizes[agent])
    tilt, moves, gradients = np.zeros(post.dim), [], 0
    with jax.enable_x64(True):
        functions = [compiled(f) for f in (_value, _slope, _curvature)]
        shard = _shard(post, agent)
        found = lowest_alone(post, agent, (post.potential, shard, weight, tilt), *functions)
        for _ in range(rounds):
            slopes, before = post.each(_slope_of_rows, found.mode), found
            tilt = slopes.sum(axis=0) - weight * slopes[agent]
            found = lowest_alone(post, agent, (post.potential, shard, weight, tilt), *functions)
            move = found.mode - before.mode
            moves.append(np.sqrt(move @ found.hessian @ move))
            gradients += before.gradients
    if len(moves) > 1 and not moves[-1] < moves[-2]:
        warnings.warn(
            f"the surrogate of agent {agent} does not converge to the mode: its last two rounds moved it by "
            f"{moves[-2]:.3g} and {moves[-1]:.3g} standard deviations. Its shard differs too much from the others: "
            "choose another agent",
            stacklevel=3,
        )
    gradients += found.gradients
    return Tilted(weight, tilt, found.mode, found.hessian, found.factor, np.array(moves), gradients)


def _shard(post: Posterior, agent: int) -> Shard:
    return jax.tree.map(lambda leaf: leaf[0], post.stacked(agents=[agent]))


def _value(potential: Potential, shard: Shard, weight: Any, tilt: Any, x: jax.Array) -> jax.Array:
    return -weight * potential.shard_log_likelihood(shard, x) - potential.log_prior_at(x) + tilt @ x


def _slope(potential: Potential, shard: Shard, weight: Any, tilt: Any, x: jax.Array) -> jax.Array:
    return jax.grad(_value, 4)(potential, shard, weight, tilt, x)


def _curvature(potential: Potential, shard: Shard, weight: Any, tilt: Any, x: jax.Array) -> jax.Array:
    return jax.hessian(_value, 4)(potential, shard, weight, tilt, x)


def _slope_of_rows(potential: Potential, shard: Shard, x: jax.Array) -> jax.Array:
    return -jax.grad(potential.shard_log_likelihood, 1)(shard, x)


@compiled(static_argnames=("draws", "warmup"))
def _draw(
    potential: Potential,
    shard: Shard,
    keys: jax.Array,
    starts: jax.Array,
    weight: jax.Array,
    tilt: jax.Array,
    *,
    draws: int,
    warmup: int,
) -> Any:
    def one_chain(key: jax.Array, start: jax.Array) -> Any:
        return nuts_chain(
            key, lambda x: -_value(potential, shard, weight, tilt, x), start, draws=draws, warmup=warmup, dense=True
        )

    return jax.vmap(one_chain)(keys, starts)
