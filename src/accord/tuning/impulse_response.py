"""Stationary mean, covariance and autocorrelation time of a method on a Gaussian posterior, from impulse responses.

On a Gaussian posterior the state is linear in the noise of all earlier rounds. Let r_k be the response to a unit of
noise k rounds ago. The stationary covariance is sum_k r_k r_k', and the variance of a long mean is the variance of one
draw times (sum_k r_k)^2 / sum_k r_k^2. The responses come from the method's own rounds, with one chain per unit of
noise. Unlike `accord.law`, this builds no matrix over all agents' states.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..base.checks import whole_number
from ..base.gaussian import Gaussian
from ..base.memory import require_room
from ..engines.build import build_problem
from ..engines.draws import zero_noise
from ..engines.loop import state_bytes
from ..engines.operators import Dense
from ..engines.round import Problem, initial_state, messages_of, network_round, positions
from ..network import Network
from ..posterior import Posterior
from ..samplers.mixing import Gossip
from ..samplers.protocol import Bound, HasLaw, Sampler
from .law import affine_bound, flat, unflat

# Rounds between two convergence checks.
_BLOCK = 64
# Share of its peak at which a response counts as decayed.
_NOTHING = 1e-7
# Size of a response that counts as unstable.
_TOO_MUCH = 1e8
# Rounds simulated before switching to matrix doubling.
_FEW_ROUNDS = 1024
# Largest number of states for matrix doubling.
_MOST_STATES = 1300
# Rounds before the shocks on unreliable links, whose losses differ from round to round.
_TIMES = (0, 10_007)
# Budget of multiplications for a simulation: some seconds on two cores.
_MOST_WORK = 1e10


class SlowError(ArithmeticError):
    """Raised if a method's responses do not decay within the allowed rounds."""


class Response(NamedTuple):
    """The stationary law of the agents and of their average, and the autocorrelation of draws.

    Parameters
    ----------
    mean, sd
        Mean and standard deviation of each agent's draws, shape (agent, dim).
    memory
        Rounds per effective draw of each agent's mean, shape (agent, dim). Below 1 for antithetic draws.
    average_mean, average_sd
        Mean and standard deviation of the agents' average, shape (dim,).
    decay
        Rounds until a shock has fallen to a hundredth of its largest effect: the burn-in from a start.
    exact
        The posterior, in the coordinates of the draws.
    message_size
        Numbers in one message.
    """

    mean: np.ndarray
    sd: np.ndarray
    memory: np.ndarray
    average_mean: np.ndarray
    average_sd: np.ndarray
    decay: int
    exact: Gaussian
    message_size: int


class _Sums(NamedTuple):
    """Sums of responses over the rounds. The agents' average is one more agent."""

    state: Any
    peak: Any  # largest response so far
    last: Any  # largest response of the last round
    decay: Any  # last round with a response above a hundredth of the peak
    responses: Any  # sum of r_k, (one_more, dim, unit)
    squares: Any  # sum of r_k^2, (one_more, dim)


def respond(post: Posterior, network: Network, sampler: Sampler, *, most_rounds: int = 20_000) -> Response:
    """The stationary law and autocorrelation of a method with constant steps and normal noise.

    Parameters
    ----------
    post
        A posterior with quadratic potentials.
    network, sampler
        As in `accord.sample`.
    most_rounds
        Largest number of rounds to simulate, >= 1. Large networks and posteriors get fewer.

    Raises
    ------
    TypeError, ValueError
        As `accord.law` does, or the method has a step schedule.
    ArithmeticError
        The method is unstable on this posterior and network, its responses do not fit into memory, or (`SlowError`)
        they have not decayed after `most_rounds`.
    """
    return respond_bound(post, network, stationary_bound(post, network, sampler), most_rounds=most_rounds)


def respond_bound(post: Posterior, network: Network, bound: Bound, *, most_rounds: int = 20_000) -> Response:
    """`respond` for the result of `stationary_bound`."""
    most_rounds = whole_number("most_rounds", most_rounds, 1)
    with jax.enable_x64(True):
        problem = _problem(post, network, bound)
        units = sum(leaf.size for leaf in jax.tree.leaves(zero_noise(problem, chains=1)))
        _require_response_memory(problem, units)
        exact = _reported(post)
        scale = jnp.asarray(exact.sd)
        begun = _begin(problem, jnp.asarray(_center(post)), scale, units, np.int32(0))
        size = sum(leaf[..., 0].size for leaf in jax.tree.leaves(begun.state))
        followed = int(_MOST_WORK / (post.num_agents * post.dim**2 * (units + 1)))
        if size <= _MOST_STATES:
            few = min(_FEW_ROUNDS, max(_BLOCK, followed // 10))
        else:
            few = most_rounds = min(most_rounds, max(_BLOCK, followed))
        if problem.links is not None:
            return _over_times(post, problem, scale, units, min(followed, most_rounds))
        try:
            sums = _follow(problem, begun, scale, units, min(few, most_rounds))
        except SlowError:
            if most_rounds <= few:
                raise
            sums = _double(problem, begun, scale, size, most_rounds)
    return _response(problem, sums, exact)


def _over_times(post: Posterior, problem: Problem, scale: Array, units: int, most_rounds: int) -> Response:
    """The response on unreliable links, averaged over shocks at several times with different losses."""
    center, exact = jnp.asarray(_center(post)), _reported(post)
    found = []
    for time in _TIMES:
        begun = _begin(problem, center, scale, units, np.int32(time))
        try:
            sums = _follow(problem, begun, scale, units, min(_FEW_ROUNDS, most_rounds), time)
        except SlowError as error:
            # not a SlowError: a setting with more exchanges may still decay in time
            raise ArithmeticError(str(error)) from error
        found.append(_response(problem, sums, exact))

    def over(name: str) -> np.ndarray:
        return np.stack([getattr(each, name) for each in found])

    numbers: dict[str, Any] = {}
    for of in ("", "average_"):
        mean, sd = over(f"{of}mean"), over(f"{of}sd")
        numbers[f"{of}mean"] = mean.mean(axis=0)
        numbers[f"{of}sd"] = np.sqrt(np.square(sd).mean(axis=0) + mean.var(axis=0))
    memory = over("memory").mean(axis=0)
    return found[0]._replace(**numbers, memory=memory, decay=max(each.decay for each in found))


def _response(problem: Problem, sums: _Sums, exact: Gaussian) -> Response:
    with jax.enable_x64(True):
        settled, sent = np.asarray(positions(problem, sums.state)[..., 0]), _message_size(problem, sums)
    mean = np.concatenate([settled, settled.mean(axis=0, keepdims=True)])
    variance, total = np.asarray(sums.squares), np.asarray(sums.responses)
    memory = np.square(total).sum(axis=2) / np.maximum(variance, np.finfo(float).tiny)
    sd, decay = np.sqrt(variance) * exact.sd, int(sums.decay)
    return Response(mean[:-1], sd[:-1], memory[:-1], mean[-1], sd[-1], decay, exact, sent)


def stationary_bound(post: Posterior, network: Network, sampler: Sampler) -> Bound:
    """The method bound for its stationary law. `TypeError` or `ValueError` if there is none."""
    bound = affine_bound(post, network, sampler)
    if not (isinstance(bound.sampler, HasLaw) and bound.sampler.is_constant()):
        raise ValueError("a method with a step schedule has no stationary law")
    return bound


def _follow(problem: Problem, sums: _Sums, scale: Array, units: int, most_rounds: int, time: int = 0) -> _Sums:
    """Simulate until the shocks of round `time` + 1 have decayed."""
    for first in range(2, most_rounds + 2, _BLOCK):
        sums = _go_on(problem, sums, np.int32(first), scale, units, np.int32(time))
        if _has_decayed(problem, float(sums.peak), float(sums.last)):
            return sums
    raise _slow(problem, most_rounds, float(sums.last / sums.peak))


def _double(problem: Problem, begun: _Sums, scale: Array, size: int, most_rounds: int) -> _Sums:
    """The sums of a slowly decaying method, by repeated squaring of a round's matrix.

    With R = sum_{k<m} A^k B and P = sum_{k<m} A^k B B' A'^k, doubling m adds A^m R and A^m P A'^m.
    """
    power, drift, seen = (np.asarray(part) for part in _matrices(problem, begun.state, scale, size))
    # JAX arrays: sums with NumPy arrays stay JAX arrays
    state: Any = flat(begun.state)
    shocks = state[:, 1:] - state[:, :1]
    settled, total, spread = state[:, :1], shocks, shocks @ shocks.T
    largest = peak = np.abs(seen @ shocks).max()
    rounds, decay = 1, 0.0
    while True:
        settled, drift = power @ settled + drift, power @ drift + drift
        total = total + power @ total
        spread = spread + power @ spread @ power.T
        before, last = largest, float(np.abs(seen @ (power @ shocks)).max())
        largest, peak = last, max(peak, last)
        if last > 0.01 * peak:
            decay = float(rounds)
        elif before > 0.01 * peak:
            # interpolates geometrically between the two rounds
            decay = rounds / 2.0 * (1.0 + np.log(before / (0.01 * peak)) / np.log(before / max(last, 1e-300)))
        if _has_decayed(problem, peak, last):
            break
        if rounds >= most_rounds:
            raise _slow(problem, rounds, last / peak)
        rounds, power = 2 * rounds, power @ power
    responses = (seen @ total).reshape(*begun.responses.shape)
    squares = np.einsum("is,st,it->i", seen, spread, seen, optimize=True).reshape(begun.squares.shape)
    return _Sums(unflat(settled, begun.state), peak, last, round(decay), responses, squares)


def _has_decayed(problem: Problem, peak: float, last: float) -> bool:
    """Whether the responses have decayed. `ArithmeticError` if they grow."""
    if not last < _TOO_MUCH * max(peak, 1.0) or not np.isfinite(peak) or peak > _TOO_MUCH:
        raise ArithmeticError(f"{type(problem.sampler).__name__} is unstable on this posterior and network")
    return last <= _NOTHING * peak


def _slow(problem: Problem, rounds: int, left: float) -> SlowError:
    return SlowError(
        f"{type(problem.sampler).__name__} mixes too slowly for a forecast: after {rounds} rounds {left:.2g} of a "
        "shock's largest effect is left"
    )


@partial(jax.jit, static_argnames="size")
def _matrices(problem: Problem, like: Any, scale: Array, size: int) -> tuple[Array, Array, Array]:
    """A and c of the round z -> A z + c, and the matrix from z to all positions and their average."""
    still = zero_noise(problem, size + 1)
    unit = jnp.concatenate([jnp.zeros((size, 1)), jnp.eye(size)], axis=1)
    states = unflat(unit, like)
    moved = flat(network_round(problem, states, still, 1))
    seen = _responses(problem, states, scale)
    return moved[:, 1:] - moved[:, :1], moved[:, :1], seen.reshape(-1, size)


def _reported(post: Posterior) -> Gaussian:
    """The posterior in the coordinates of the draws."""
    exact, place = post.exact(), post.coordinates
    if place is None:
        return exact
    root = np.diag(place.factor) if place.factor.ndim == 1 else place.factor
    return Gaussian(place.origin + root @ exact.mean, root @ exact.cov @ root.T)


def _message_size(problem: Problem, sums: _Sums) -> int:
    messages = jax.eval_shape(messages_of, problem, sums.state)
    return sum(math.prod(leaf.shape[1:-1]) for leaf in jax.tree.leaves(messages))


def _require_response_memory(problem: Problem, units: int) -> None:
    """Raise `ArithmeticError` unless memory holds the states of all units of noise, before and after a round."""
    take = 2.0 * state_bytes(problem) * problem.index.size * (units + 1)
    name, agents = type(problem.sampler).__name__, problem.index.size
    try:
        what = f"the impulse responses of {name}'s states to {units:,} units of noise at {agents:,} agents"
        require_room(what, take, "there is no forecast. Set all numbers of the method to sample without one")
    except ValueError as error:
        # a plan skips this method and goes on with the others
        raise ArithmeticError(str(error)) from error


def _problem(post: Posterior, network: Network, bound: Bound) -> Problem:
    """The method's problem, with `mix_rounds` exchanges merged into one matrix so that all settings share a program."""
    sampler = bound.sampler
    if not isinstance(sampler, Gossip) or sampler.relays:
        return build_problem(post, network, bound, 0)
    if network.unreliable is not None:
        # losses differ between exchanges, so that no single matrix replaces them
        return replace(build_problem(post, network, bound, 0), sampler=replace(sampler, mix_rounds=1))
    weights = jnp.asarray(sampler.effective_weights(network).toarray())
    problem = build_problem(post, network, bound._replace(sampler=replace(sampler, mix_rounds=1)), 0)
    return replace(problem, exchange=replace(problem.exchange, mix=Dense(weights)))


def _center(post: Posterior) -> np.ndarray:
    """The start, shape (agent, dim, 1): the posterior mean, close to the stationary mean."""
    x = post.exact().mean
    return np.broadcast_to(x[:, None], (post.num_agents, post.dim, 1))


@partial(jax.jit, static_argnames="units")
def _begin(
    problem: Problem, center: Float[Array, "agent dim 1"], scale: Float[Array, " dim"], units: int, time: Array
) -> _Sums:
    """The sums after round 0 and the shocks: in round 1 + `time` each chain except chain 0 gets one unit of noise."""
    chains = units + 1
    still = zero_noise(problem, chains)
    start = jnp.broadcast_to(center, (*center.shape[:2], chains))
    state = network_round(problem, initial_state(problem, start, still), still, 0)
    shocks = jnp.concatenate([jnp.zeros((units, 1)), jnp.eye(units)], axis=1)
    state = network_round(problem, state, unflat(shocks, still), time + 1)
    responses = _responses(problem, state, scale)
    largest = jnp.abs(responses).max()
    return _Sums(state, largest, largest, jnp.zeros((), int), responses, jnp.square(responses).sum(axis=2))


@partial(jax.jit, static_argnames="units")
def _go_on(problem: Problem, sums: _Sums, first: Array, scale: Float[Array, " dim"], units: int, time: Array) -> _Sums:
    still = zero_noise(problem, units + 1)

    def one(k: Array, sums: _Sums) -> _Sums:
        state = network_round(problem, sums.state, still, time + first + k)
        responses = _responses(problem, state, scale)
        last = jnp.abs(responses).max()
        peak = jnp.maximum(sums.peak, last)
        decay = jnp.where(last > 0.01 * peak, first + k - 1, sums.decay)
        squares = sums.squares + jnp.square(responses).sum(axis=2)
        return _Sums(state, peak, last, decay, sums.responses + responses, squares)

    return jax.lax.fori_loop(0, _BLOCK, one, sums)


def _responses(problem: Problem, state: Any, scale: Float[Array, " dim"]) -> Float[Array, "one_more dim unit"]:
    """The shift of all positions and of their average by each unit of noise, in posterior standard deviations."""
    x = positions(problem, state)
    moved = (x[..., 1:] - x[..., :1]) / scale[None, :, None]
    return jnp.concatenate([moved, moved.mean(axis=0, keepdims=True)])
