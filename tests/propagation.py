"""The law of an engine's own rounds, exactly: chains that hear one unit of noise each, and nothing else.

On quadratic potentials a round is affine in the noise, so that what each unit of it does to all agents tells mean and
covariance without a random number. The rounds are those of the local engine, its loop and its records included; only
where it draws noise it is given these units, so that noise of a wrong round, agent or size is seen for what it is.
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

# What two programs of one formula may differ by, of the largest number.
CLOSE = 1e-11


def assert_exact(post, net, sampler, potentials, rounds=(1, 2, 5, 20), init=None):
    """The engine does what the method's recursion says, and the law is that of what it does.

    The recursion is another program altogether: it sees a fault in a method, an exchange, a gradient or a schedule. The
    law is made of the same functions as the engine's rounds: it sees one in the loop that carries states and noise and
    records positions, in which round it is, and in the law's own bookkeeping. What neither sees is how numbers are
    drawn, which is put in the place of: see `test_draws_follow_law`.
    """
    init = start(post.dim) if init is None else init
    found = propagate(post, net, sampler, max(rounds), init)
    # with a law for it; that of minibatches is the law of full gradients
    exact = isinstance(sampler, HasLaw) and getattr(sampler, "batch_size", None) is None
    law = accord.law(post, net, sampler, init=init) if exact else None
    by_rounds = by_hand(sampler, net, potentials, found.start, found.heard)

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
    # whose noise of which round is what: in the end, for nothing is forgotten to the last digit
    close(by_source(x, found.source), by_source(expected, found.source), "answers to each source of noise")
    if law is not None:
        for name, positions, gaussian in (
            ("agent 1", x[1], law.at(k).agent(1)),
            ("average", found.averages[k - 1], law.at(k).average),
        ):
            mean, cov = moments(positions)
            close(gaussian.mean, mean, f"mean of {name}")
            close(gaussian.cov, cov, f"covariance of {name}")


class Heard(NamedTuple):
    """The noise of one round in all chains, (agent or 1, ..., chain); None where a method draws none."""

    normal: np.ndarray | None = None
    local: np.ndarray | None = None
    # the same in all chains: whose message each agent is handed, (agent,), and the rows of minibatches, (agent, row)
    order: np.ndarray | None = None
    rows: np.ndarray | None = None


class Propagation(NamedTuple):
    """What chains heard, and where that took them. Chain 0 heard nothing and started at the mean."""

    # where they started, (agent, dim, chain), and the noise before round 0 and of each round
    start: np.ndarray
    heard: list[Heard]
    # after each round: positions (round, agent, dim, chain), and what the engine records as their average
    positions: np.ndarray
    averages: np.ndarray
    # which source each chain heard a unit of: what an agent draws in one round, or at the start; -1: none
    source: np.ndarray


def propagate(post, net, sampler, rounds, init):
    """Run so many rounds in double precision, one chain a unit of noise of the start and of every round."""
    n, dim = post.num_agents, post.dim
    means, factors = starting_law(init, post)
    with jax.enable_x64(True):
        engine = UnitEngine(post, net, sampler.bind(post, net), chains=1, seed=0, keep=np.arange(n))
        shapes = {name: leaf.shape[:-1] for name, leaf in _drawn(engine.problem).items()}
        units, starts = sum(map(math.prod, shapes.values())), 0 if factors is None else n * dim
        engine.chains, engine.capacity = 1 + rounds * units + starts, rounds
        heard, source, first = [Heard(rows=_rows(engine.problem, -1))], np.full(engine.chains, -1), 1
        for k in range(rounds):
            found = {"rows": _rows(engine.problem, k)}
            for name, shape in shapes.items():
                size = math.prod(shape)
                found[name] = np.zeros((*shape, engine.chains))
                found[name].reshape(size, -1)[np.arange(size), first + np.arange(size)] = 1.0
                # numbers are counted agent by agent
                source[first : first + size] = source.max() + 1 + np.arange(size) // (size // shape[0])
                first += size
            if engine.problem.needs.inbox == "permuted":
                found["order"] = np.argsort(_order(n)[k])
            heard.append(Heard(**found))
        start = np.repeat(means[:, :, None], engine.chains, axis=2)
        for agent in range(n if starts else 0):
            own = slice(first + agent * dim, first + (agent + 1) * dim)
            start[agent, :, own] += factors[agent]
            source[own] = source.max() + 1
        with mock.patch.multiple(loop, draw_noise=_units, draw_batch=_first_batch):
            _, records = engine.record(engine.start(start, None), rounds, 1)
    return Propagation(start, heard, records.draws, records.average, source)


class UnitEngine(LocalEngine):
    """The local engine, whose programs are traced anew: with noise that is put in the place of what it draws."""

    def _programs(self):
        return super()._programs()._replace(start=_start, record=_record)


# functions of their own: JAX would hand the local engine's programs to the same ones, and these to it


@partial(jax.jit, static_argnames="chains")
def _start(*arguments, chains):
    return loop.start(*arguments, chains=chains)


@partial(jax.jit, static_argnames=("chains", "capacity"))
def _record(*arguments, chains, capacity):
    return loop.record(*arguments, chains=chains, capacity=capacity)


def _drawn(problem):
    """The noise of a round of one chain, zeros, by name; what a method draws none of is left out."""
    still = zero_noise(problem, chains=1) if problem.sampler.temperature > 0 else Heard()
    return {name: leaf for name in ("normal", "local") if (leaf := getattr(still, name)) is not None}


# as many rounds as have an order and rows of their own, and numbers of rows enough
_ROUNDS, _MOST_ROWS = 64, 16


def _order(num_agents):
    """Numbers by whose order messages are handed out, (round, agent)."""
    rounds = np.tile(np.arange(num_agents, dtype=np.uint32), (_ROUNDS, 1))
    return np.random.default_rng(0).permuted(rounds, axis=1)


def _rows(problem, round):
    """The rows of a round's minibatches, (agent, row), before they are taken modulo the rows that there are; or None.

    Those of round -1 are for gradients before round 0.
    """
    needs, n = problem.needs, problem.num_agents
    if needs.batch_size is None:
        return None
    table = np.random.default_rng(1).integers(0, 2**32, (_ROUNDS, n, _MOST_ROWS), dtype=np.uint32)
    table = table[:, :, : needs.batch_size * int(np.max(needs.gradients))]
    return table[round] if isinstance(round, int) else jnp.asarray(table)[round]


def _first_batch(problem, round, chains, stream):
    """In place of `draw_batch` before round 0."""
    return _rows_alike(_rows(problem, -1), chains)


def _rows_alike(rows, chains):
    """Words that choose rows, the same in all chains, as an engine carries them; or None."""
    return None if rows is None else paired(disguised(_alike(rows, chains)))


def _alike(numbers, chains):
    """Numbers (agent, count) in two halves, the same in all chains; or None."""
    if numbers is None:
        return None
    half = (numbers.shape[1] + 1) // 2
    numbers = jnp.pad(jnp.asarray(numbers), ((0, 0), (0, 2 * half - numbers.shape[1])))
    numbers = jnp.broadcast_to(numbers[..., None], (*numbers.shape, chains))
    return _carried(numbers[:, :half]), _carried(numbers[:, half:])


def _carried(half):
    """A half (agent, number, chain) of numbers as an engine carries it: all of a chain side by side."""
    return half.reshape(-1, half.shape[-1]).T


def _units(problem, round, chains):
    """In place of `draw_noise`: number j of the noise of round k is 1 in chain 1 + k units + j, and 0 in all others."""
    drawn, noise = _drawn(problem), {}
    first = 1 + round * sum(leaf.size for leaf in drawn.values())
    for name, leaf in drawn.items():
        agents, count = leaf.shape[0], leaf[0].size
        number = jnp.arange(leaf.size).reshape(agents, count, 1)
        values = jnp.where(jnp.arange(chains)[None, None] == first + number, 1.0, 0.0)
        # in two halves, as an engine carries it; an odd count is filled up with a number that nobody may read
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

    Other than what a single chain heard, it does not turn on the axes that an agent's own noise is drawn along.
    """
    D = (x - x[..., :1]).reshape(-1, x.shape[-1])
    D = D[:, np.argsort(source, kind="stable")]
    heard = np.split(D, np.cumsum(np.bincount(source + 1))[:-1], axis=1)[1:]
    return np.stack([answers @ answers.T for answers in heard])
