"""Surrogate likelihood: one agent samples its own rows, tilted so that they have the slope of everybody's."""

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
    """An agent's surrogate after some rounds.

    Its weight, its tilt (dim,), its mode (dim,) with the curvature and a factor of the spread there (dim, dim), how far
    each round moved the mode (round,), in its standard deviations, and the gradients that the agent evaluated.
    """

    weight: float
    tilt: np.ndarray
    mode: np.ndarray
    curvature: np.ndarray
    factor: np.ndarray
    moves: np.ndarray
    gradients: int


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

    From agent i:  with l_j = -log likelihood of agent j's rows, n rows in all, n_i its own and w = n / n_i, in each
    round `g = sum_j grad l_j(theta)`, asked of all, `theta+ = argmin_x w l_i(x) - log prior(x)
    + x' (g - w grad l_i(theta))`; at the start without the last term. Draws are those of `exp(-` the last function `)`,
    by NUTS on its own rows.

    Jordan, Lee and Yang 2019 (Communication-efficient distributed statistical inference, JASA 114; arXiv:1605.07689),
    the surrogate loss, its iterated minimiser and its quasi-posterior, in sums over rows. Each round multiplies the
    distance to the pooled mode by about `I - H_i^-1 H`, H the curvature of F and H_i that of the surrogate: of the
    order 1 / sqrt(n_i) where shards are random parts of the data, so that a few rounds reach the mode. Error bars are
    those of H_i: off by the order of 1 / sqrt(n_i) for random parts, and for shards that differ by as much as these
    do, in every round (agents with twice the curvature a row say 0.71 of the standard deviation). Rounds that do not
    come closer warn.

    Parameters
    ----------
    post
        The posterior.
    draws, chains, seed, warmup
        As in `consensus`; draws may be few.
    rounds
        How often all agents are asked for their slope, >= 1.
    agent
        Who samples; None: the one with the most rows.

    Returns
    -------
    Run
        The draws of that agent, for every agent. Settings: `agent`, and `last_move`, how far the last round moved the
        mode, in its standard deviations.

    Raises
    ------
    ValueError
        A number out of its range, or a surrogate that has no mode.
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
            f"{100 * share:.2g}% of NUTS transitions on the surrogate of agent {lead} diverged: its draws may be wrong",
            stacklevel=2,
        )
    # the slopes are asked for once, for all chains
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
        # one slope a round, of the agent that samples one point
        bytes_sent=rounds * post.dim * np.dtype(np.float64).itemsize,
        seconds=time.perf_counter() - began,
        rounds=rounds,
        exchanges=2 * rounds,
    )


def tilted(post: Posterior, agent: int, rounds: int) -> Tilted:
    """The surrogate of one agent after so many rounds; warns where these do not come closer to the mode.

    Raises
    ------
    ValueError
        It has no mode.
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
            f"the surrogate of agent {agent} comes no closer to the mode: its last two rounds moved it by "
            f"{moves[-2]:.3g} and {moves[-1]:.3g} standard deviations. Its shard is too unlike the others'",
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
