"""The exact law of an engine's rounds, from chains that each receive one unit of noise.

On quadratic potentials a round is affine in the noise, so that the responses to all units give mean and covariance
without random numbers. The local engine runs the rounds, with its loop and records. Only its noise is replaced by
units, so that noise of a wrong round, agent or size is detected.
"""

import math
from functools import partial
from typing import NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from recursions import by_hand
from tables import start

import accord
from accord.engines import loop
from accord.engines.draws import RawNoise, zero_noise
from accord.engines.local import LocalEngine
from accord.engines.noise import disguised, paired
from accord.posterior.starts import starting_law
from accord.samplers.protocol import HasLaw

# Allowed difference of two programs for one formula, relative to the largest number.
CLOSE = 1e-11


def assert_exact(post, net, sampler, potentials, rounds=(1, 2, 5, 20), init=None):
    """Assert that the engine follows the method's recursion, and that the law is the engine's.

    The recursion is an independent program, and detects faults in a method, an exchange, a gradient or a schedule. The
    law uses the same functions as the engine's rounds, and detects faults in the engine's loop, its records and round
    numbers, and in the law's bookkeeping. Random numbers are replaced here, `test_draws_follow_law` tests them.
    """
    init = start(post.dim) if init is None else init
    found = propagate(post, net, sampler, max(rounds), init)
    # the law of minibatches is that of full gradients, and is not compared
    exact = isinstance(sampler, HasLaw) and getattr(sampler, "batch_size", None) is None
    law = accord.law(post, net, sampler, init=init) if exact else None
    by_rounds = by_hand(sampler, net, potentials, found.start, found.noises)

    def close(values, others, what):
        error, scale = np.abs(values - others).max(), 1.0 + np.abs(others).max()
        assert error < CLOSE * scale, f"{what}: {error:.3g} of {scale:.3g}"

    for k in rounds:
        x, expected = found.positions[k - 1], by_rounds[k - 1]
        (mean, cov), (expected_mean, expected_cov) = moments(x), moments(expected)
        close(mean, expected_mean, f"mean, round {k}")
        close(cov, expected_cov, f"covariance, round {k}")
        close(found.averages[k - 1], x.mean(axis=0), f"average, round {k}")
        if law is not None:
            close(law.at(k).joint.mean, expected_mean, f"mean of the law, round {k}")
            close(law.at(k).joint.cov, expected_cov, f"covariance of the law, round {k}")
    # compare noise by agent and round at the end, because no noise decays below rounding
    close(by_source(x, found.source), by_source(expected, found.source), "answers to each source of noise")
    if law is not None:
        for name, positions, gaussian in (
            ("agent 1", x[1], law.at(k).agent(1)),
            ("average", found.averages[k - 1], law.at(k).average),
        ):
            mean, cov = moments(positions)
            close(gaussian.mean, mean, f"mean of {name}")
            close(gaussian.cov, cov, f"covariance of {name}")


class RoundNoise(NamedTuple):
    """The noise of one round in all chains, (agent or 1, ..., chain), or None if a method draws none."""

    normal: np.ndarray | None = None
    local: np.ndarray | None = None
    # the sender of each agent's message in all chains, (agent,)
    order: np.ndarray | None = None
    # rows of minibatches in all chains, (agent, row)
    rows: np.ndarray | None = None


class Propagation(NamedTuple):
    """Noise and positions of all chains. Chain 0 has no noise and starts at the mean."""

    # starts, (agent, dim, chain)
    start: np.ndarray
    # the noise before round 0 and of each round
    noises: list[RoundNoise]
    # after each round, (round, agent, dim, chain)
    positions: np.ndarray
    # their averages as recorded by the engine
    averages: np.ndarray
    # source of each chain's unit, an agent's noise of one round or at the start; -1: no noise
    source: np.ndarray


def propagate(post, net, sampler, rounds, init):
    """Run rounds in double precision, with one chain per unit of noise at the start and in every round."""
    n, dim = post.num_agents, post.dim
    means, factors = starting_law(init, post)
    with jax.enable_x64(True):
        engine = UnitEngine(post, net, sampler.bind(post, net), chains=1, seed=0, keep=np.arange(n))
        shapes = {name: leaf.shape[:-1] for name, leaf in _drawn(engine.problem).items()}
        units, starts = sum(map(math.prod, shapes.values())), 0 if factors is None else n * dim
        engine.chains, engine.capacity = 1 + rounds * units + starts, rounds
        noises, source, first = [RoundNoise(rows=_rows(engine.problem, -1))], np.full(engine.chains, -1), 1
        for k in range(rounds):
            found = {"rows": _rows(engine.problem, k)}
            for name, shape in shapes.items():
                size = math.prod(shape)
                found[name] = np.zeros((*shape, engine.chains))
                found[name].reshape(size, -1)[np.arange(size), first + np.arange(size)] = 1.0
                # numbers are ordered by agent
                source[first : first + size] = source.max() + 1 + np.arange(size) // (size // shape[0])
                first += size
            if engine.problem.needs.inbox == "permuted":
                found["order"] = np.argsort(_order(n)[k])
            noises.append(RoundNoise(**found))
        start = np.repeat(means[:, :, None], engine.chains, axis=2)
        for agent in range(n if starts else 0):
            own = slice(first + agent * dim, first + (agent + 1) * dim)
            start[agent, :, own] += factors[agent]
            source[own] = source.max() + 1
        with mock.patch.multiple(loop, draw_noise=_units, draw_batch=_first_batch):
            _, records = engine.record(engine.start(start, None), rounds, 1)
    return Propagation(start, noises, records.draws, records.average, source)


class UnitEngine(LocalEngine):
    """The local engine with its own traces of the programs, in which units replace random noise."""

    def _programs(self):
        return super()._programs()._replace(start=_start, record=_record)


# separate functions, because JAX caches programs by function and would mix these with the local engine's


@partial(jax.jit, static_argnames="chains")
def _start(*arguments, chains):
    return loop.start(*arguments, chains=chains)


@partial(jax.jit, static_argnames=("chains", "capacity"))
def _record(*arguments, chains, capacity):
    return loop.record(*arguments, chains=chains, capacity=capacity)


def _drawn(problem):
    """Zero noise of a round of one chain, by name, without the kinds that a method does not draw."""
    still = zero_noise(problem, chains=1) if problem.sampler.temperature > 0 else RoundNoise()
    return {name: leaf for name in ("normal", "local") if (leaf := getattr(still, name)) is not None}


# numbers of rounds with an order and rows, and of rows
_ROUNDS, _MOST_ROWS = 64, 16


def _order(num_agents):
    """Numbers whose order permutes the messages, (round, agent)."""
    rounds = np.tile(np.arange(num_agents, dtype=np.uint32), (_ROUNDS, 1))
    return np.random.default_rng(0).permuted(rounds, axis=1)


def _rows(problem, round):
    """The rows of a round's minibatches (agent, row), before the modulo by the number of rows, or None.

    Round -1 is for gradients before round 0.
    """
    needs, n = problem.needs, problem.num_agents
    if needs.batch_size is None:
        return None
    table = np.random.default_rng(1).integers(0, 2**32, (_ROUNDS, n, _MOST_ROWS), dtype=np.uint32)
    table = table[:, :, : needs.batch_size * int(np.max(needs.gradients))]
    return table[round] if isinstance(round, int) else jnp.asarray(table)[round]


def _first_batch(problem, round, chains, stream):
    """Replacement of `draw_batch` before round 0."""
    return _rows_alike(_rows(problem, -1), chains)


def _rows_alike(rows, chains):
    """Words that select rows, the same in all chains, in the engine's layout, or None."""
    return None if rows is None else paired(disguised(_alike(rows, chains)))


def _alike(numbers, chains):
    """Numbers (agent, count) in two halves, the same in all chains, or None."""
    if numbers is None:
        return None
    half = (numbers.shape[1] + 1) // 2
    numbers = jnp.pad(jnp.asarray(numbers), ((0, 0), (0, 2 * half - numbers.shape[1])))
    numbers = jnp.broadcast_to(numbers[..., None], (*numbers.shape, chains))
    return _carried(numbers[:, :half]), _carried(numbers[:, half:])


def _carried(half):
    """A half (agent, number, chain) in the engine's layout, with the numbers of a chain side by side."""
    return half.reshape(-1, half.shape[-1]).T


def _units(problem, round, chains):
    """Replacement of `draw_noise`: number j of round k is 1 in chain 1 + k units + j, and 0 in all others."""
    drawn, noise = _drawn(problem), {}
    first = 1 + round * sum(leaf.size for leaf in drawn.values())
    for name, leaf in drawn.items():
        agents, count = leaf.shape[0], leaf[0].size
        number = jnp.arange(leaf.size).reshape(agents, count, 1)
        values = jnp.where(jnp.arange(chains)[None, None] == first + number, 1.0, 0.0)
        # two halves in the engine's layout, with NaN as the padding of an odd count
        half = (count + 1) // 2
        values = jnp.pad(values, ((0, 0), (0, 2 * half - count), (0, 0)), constant_values=jnp.nan)
        noise[name] = paired((_carried(values[:, :half]), _carried(values[:, half:])))
        first += leaf.size
    order = None
    if problem.needs.inbox == "permuted":
        order = jnp.asarray(_order(problem.num_agents))[round][:, None]
    rows = _rows_alike(_rows(problem, round), chains)
    return RawNoise(noise.get("normal"), rows, noise.get("local"), None, _alike(order, chains))


def moments(x):
    """Mean and covariance of positions (..., chain), flat."""
    D = (x[..., 1:] - x[..., :1]).reshape(-1, x.shape[-1] - 1)
    return x[..., 0].ravel(), D @ D.T


def by_source(x, source):
    """The covariance that each source of noise adds to positions (..., chain), (source, number, number).

    It does not depend on the axes along which an agent's noise is drawn.
    """
    D = (x - x[..., :1]).reshape(-1, x.shape[-1])
    D = D[:, np.argsort(source, kind="stable")]
    answers = np.split(D, np.cumsum(np.bincount(source + 1))[:-1], axis=1)[1:]
    return np.stack([answer @ answer.T for answer in answers])
