"""What a method's draws will be worth: its stationary law and the memory of its draws, from its answer to one shock.

On a Gaussian posterior the stationary state is a sum of answers to the noise of all rounds before, so that the answers
r_k to a unit of noise k rounds ago tell all: the covariance is sum_k r_k r_k', and the variance of a long mean is that
of one draw times (sum_k r_k)^2 / sum_k r_k^2. They are found by running the method's own rounds, one chain a unit of
noise: no matrix over all agents' states is built, as `accord.law` does.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .checks import whole_number
from .engines.exchange import Dense
from .engines.rounds import Problem, build_problem, initial_state, network_round, positions, silence
from .law import affine_sampler
from .network import Network
from .posterior import Posterior
from .sampler import MixingSampler, Sampler

# Rounds between two looks at whether the answers have died away.
_BLOCK = 64
# What is left of an answer, of its largest value, when it counts as nothing; what it has grown to when it will not.
_NOTHING, _TOO_MUCH = 1e-7, 1e8


class Response(NamedTuple):
    """The stationary law of the agents and of their average, and how long draws remember.

    Parameters
    ----------
    mean, sd
        Of each agent's draws, shape (agent, dim).
    memory
        Rounds per effective draw of each agent's mean, shape (agent, dim); below 1 where draws alternate.
    average_mean, average_sd, average_memory
        The same of the plain average of the agents, shape (dim,).
    decay
        Rounds until a shock has fallen to a hundredth of its largest effect: what a start takes to be forgotten.
    """

    mean: np.ndarray
    sd: np.ndarray
    memory: np.ndarray
    average_mean: np.ndarray
    average_sd: np.ndarray
    average_memory: np.ndarray
    decay: int


class _Sums(NamedTuple):
    """What is summed over the rounds, for the agents and, as one more of them, for their average."""

    state: Any
    # the largest answer so far, the one of the last round, and the last round in which it was above a hundredth
    peak: Array
    last: Array
    decay: Array
    answers: Float[Array, "one_more dim unit"]
    squares: Float[Array, "one_more dim"]


def respond(post: Posterior, net: Network, sampler: Sampler, *, most_rounds: int = 20_000) -> Response:
    """The stationary law of a method with constant steps whose noise is normal, and the memory of its draws.

    Parameters
    ----------
    post
        A posterior with quadratic potentials.
    net, sampler
        As in `accord.sample`.
    most_rounds
        Rounds after which a method that still remembers a shock is given up, >= 1.

    Raises
    ------
    TypeError, ValueError
        As `accord.law` does; the method's step follows a schedule.
    ArithmeticError
        The method is unstable on this posterior and network, or it remembers for longer than `most_rounds`.
    """
    sampler = affine_sampler(post, net, sampler)
    if not sampler.is_constant():
        raise ValueError("a method with a step schedule has no stationary law")
    most_rounds = whole_number("most_rounds", most_rounds, 1)
    with jax.enable_x64(True):
        problem = _problem(post, net, sampler)
        quiet = silence(problem, chains=1)
        units = sum(leaf.size for leaf in jax.tree.leaves(quiet))
        sums = _begin(problem, jnp.asarray(_center(post)), units)
        for first in range(2, most_rounds + 2, _BLOCK):
            sums = _go_on(problem, sums, np.int32(first), units)
            peak, last = float(sums.peak), float(sums.last)
            if not last < _TOO_MUCH * max(peak, 1.0) or not np.isfinite(peak) or peak > _TOO_MUCH:
                raise ArithmeticError(f"{type(sampler).__name__} is unstable on this posterior and network")
            if last <= _NOTHING * peak:
                break
        else:
            raise ArithmeticError(
                f"{type(sampler).__name__} still remembers after {most_rounds} rounds: what is left of a shock is "
                f"{last / peak:.2g} of its largest effect"
            )
        settled = np.asarray(positions(problem, sums.state)[..., 0])
    mean = np.concatenate([settled, settled.mean(axis=0, keepdims=True)])
    variance, total = np.asarray(sums.squares), np.asarray(sums.answers)
    memory = np.square(total).sum(axis=2) / np.maximum(variance, np.finfo(float).tiny)
    sd = np.sqrt(variance)
    return Response(mean[:-1], sd[:-1], memory[:-1], mean[-1], sd[-1], memory[-1], int(sums.decay))


def _problem(post: Posterior, net: Network, sampler: Sampler) -> Problem:
    """The method's problem; several exchanges are one by the matrix that they come to, so that all compile to one."""
    prepared = sampler.prepare(post, net)
    if not isinstance(sampler, MixingSampler):
        return build_problem(post, net, sampler, 0, prepared)
    weights = jnp.asarray(sampler.effective_weights(net).toarray())
    problem = build_problem(post, net, replace(sampler, mix_rounds=1), 0, prepared)
    return replace(problem, exchange=replace(problem.exchange, mix=Dense(weights)))


def _center(post: Posterior) -> np.ndarray:
    """Where to start: the closer to the means, the fewer rounds until they are reached."""
    x = post.exact().mean
    return np.broadcast_to(x[:, None], (post.num_agents, post.dim, 1))


@partial(jax.jit, static_argnames="units")
def _begin(problem: Problem, center: Float[Array, "agent dim 1"], units: int) -> _Sums:
    """Chain 0 hears no noise; in round 1 every other chain hears one unit of it. Round 0 may be unlike the others."""
    chains = units + 1
    still = silence(problem, chains)
    start = jnp.broadcast_to(center, (*center.shape[:2], chains))
    state = network_round(problem, initial_state(problem, start, still), still, 0)
    leaves: list[Array]
    treedef: Any
    leaves, treedef = jax.tree.flatten(still)
    shocks, first = [], 1
    for leaf in leaves:
        count = leaf[..., 0].size
        unit = jnp.arange(count)[:, None] + first == jnp.arange(chains)[None]
        shocks.append(unit.astype(leaf.dtype).reshape(leaf.shape))
        first += count
    state = network_round(problem, state, treedef.unflatten(shocks), 1)
    answers = _answers(problem, state)
    largest = jnp.abs(answers).max()
    return _Sums(state, largest, largest, jnp.zeros((), int), answers, jnp.square(answers).sum(axis=2))


@partial(jax.jit, static_argnames="units")
def _go_on(problem: Problem, sums: _Sums, first: Array, units: int) -> _Sums:
    still = silence(problem, units + 1)

    def one(k: Array, sums: _Sums) -> _Sums:
        state = network_round(problem, sums.state, still, first + k)
        answers = _answers(problem, state)
        last = jnp.abs(answers).max()
        peak = jnp.maximum(sums.peak, last)
        decay = jnp.where(last > 0.01 * peak, first + k - 1, sums.decay)
        return _Sums(state, peak, last, decay, sums.answers + answers, sums.squares + jnp.square(answers).sum(axis=2))

    return jax.lax.fori_loop(0, _BLOCK, one, sums)


def _answers(problem: Problem, state: Any) -> Float[Array, "one_more dim unit"]:
    """How far each unit of noise has moved the agents' positions, and their average."""
    x = positions(problem, state)
    moved = x[..., 1:] - x[..., :1]
    return jnp.concatenate([moved, moved.mean(axis=0, keepdims=True)])
