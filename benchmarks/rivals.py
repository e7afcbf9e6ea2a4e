"""Rows of gradients a second beside what users would take in accord's place, on the same work.

BlackJAX's SGLD and SGHMC walk one chain with minibatches of ten times as many rows as each of ten agents has; desgld,
a package in pure Python, and DE-SGLD as one would write it in NumPy walk the same agents and chains.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import problems
from measured import Goal, Line, Skipped, against, at_least, compared, effort
from rounds import advancing, floor

import accord

TITLE = "Rounds beside what users would take"
ABOUT = """\
Rows of gradients a second, accord's over the other's. Ten agents on a ring with minibatches of b rows each beside one
chain of BlackJAX with 10 b rows in a `lax.scan`, which exchanges nothing and draws a tenth of the normals. SGHMC is
measured twice: by BlackJAX's diffusion, with a minibatch for each gradient as accord has, and by its sampler, whose ten
gradients of a step share one minibatch: rows are chosen and gathered for one gradient in ten there, which is less
work. Six agents that all talk to all, with 100 chains, beside the package desgld, and beside DE-SGLD in NumPy without
loops over agents or chains. *At most* is what it would be if accord's rounds were nothing but their gradients and
random numbers: where that is below the goal, the goal is out of reach of this machine. It is beaten where XLA makes
worse loops of these alone. The note has the time of one of
accord's rounds and of as many of the other's rows."""
STEP = 1e-6


def lines(small: bool) -> Iterator[Line | Skipped]:
    turns, chains = effort(small), 2 if small else 100
    yield from beside_blackjax(*((100, 5) if small else (10_000, 50)), turns)
    yield from beside_desgld(chains, turns)
    yield from beside_numpy(chains, turns)


def faster(
    what: str, shape: str, own: Callable[[int], Any], other: Callable[[int], Any], goal: Goal | None, turns: dict
) -> Line:
    """How many times faster accord's rounds are."""
    found, ours, theirs = compared(other, own, **turns)
    return Line(what, shape, found, goal, against(theirs, ours))


def beside_blackjax(count: int, dim: int, turns: dict) -> Iterator[Line | Skipped]:
    try:
        import blackjax
    except ImportError as error:
        yield Skipped("BlackJAX", str(error))
        return
    X, y = problems.table(count, dim)
    post, net = accord.models.logistic_regression(problems.split(X, y, 10), 1.0), accord.Network.ring(10)
    rows = jnp.asarray(X), jnp.asarray(y)

    def log_prior(x: Any) -> Any:
        return -jnp.sum(x**2) / 2.0

    def log_likelihood(x: Any, row: Any) -> Any:
        covariates, answer = row
        score = covariates @ x
        return answer * score - jnp.logaddexp(0.0, score)

    gradient = blackjax.sgmcmc.gradients.grad_estimator(log_prior, log_likelihood, count)
    diffuse = blackjax.sgmcmc.diffusions.sghmc()

    def once(key: Any, state: Any, some: Any, step: float) -> Any:
        position, momentum = state
        return jnp.stack(diffuse(key, position, momentum, gradient(position, some), step))

    desgld, desghmc = accord.samplers.DESGLD, partial(accord.samplers.DESGHMC, friction=1.0)
    alone, moving = jnp.zeros(dim), jnp.zeros((2, dim))
    cases = [
        ("SGLD", desgld, blackjax.sgld(gradient).step, alone, 1),
        # not by the sampler with one gradient a step: no position depends on it there, and XLA leaves it out
        ("SGHMC", desghmc, once, moving, 1),
        ("SGHMC, 10 gradients of a minibatch", desghmc, blackjax.sghmc(gradient).step, alone, 10),
    ]
    for batch in (10, 100, None):
        for name, method, step, start, gradients in cases:
            own = advancing(post, net, method(STEP, batch_size=batch), 1)[1]
            other = chain(step, rows, None if batch is None else 10 * batch, start, gradients)
            shape = f"logistic, {count:,} x {dim}, b = {batch or 'all'}"
            yield faster(f"BlackJAX {name}", shape, own, other, at_least(1.0), turns)


def chain(move: Any, rows: Any, batch: int | None, start: Any, gradients: int) -> Callable[[int], Any]:
    """One chain of BlackJAX from a start: a function of a number of gradients, a multiple of those of a step."""
    count = rows[1].size

    def step(rows: Any, x: Any, key: Any) -> tuple[Any, None]:
        choose, own = jax.random.split(key)
        some = rows
        if batch is not None:
            chosen = jax.random.randint(choose, (batch,), 0, count)
            some = jax.tree.map(lambda leaf: leaf[chosen], rows)
        return move(own, x, some, STEP), None

    @partial(jax.jit, static_argnames="steps")
    def walk(rows: Any, x: Any, key: Any, steps: int) -> Any:
        return jax.lax.scan(partial(step, rows), x, jax.random.split(key, steps))[0]

    def run(rounds: int) -> Any:
        # never fewer than a step; numbers of rounds are powers of two, of steps too
        steps = max(1, rounds // gradients)
        return walk(rows, start, jax.random.key(0), steps)

    return run


# desgld's own example: 1,000 rows, an intercept and two covariates, minibatches of 32
AGENTS, DIM, BATCH, ROWS = 6, 3, 32, 167


def everybody(
    what: str, batch: int | None, other: Callable[[int], Any], goal: Goal, chains: int, turns: dict
) -> Iterator[Line]:
    """Lines of six agents beside another's, and of their gradients and random numbers alone."""
    shape = f"{AGENTS} agents, {chains} chains, d={DIM}, b = {batch or 'all'}"
    post, sampler = problems.logistic(AGENTS, DIM, ROWS), accord.samplers.DESGLD(STEP, batch_size=batch)
    engine, own = advancing(post, accord.Network.complete(AGENTS), sampler, chains)
    yield faster(what, shape, own, other, goal, turns)
    least = floor(engine, post.init, repeats=7, seconds=turns["seconds"] / 4)
    yield faster(f"{what}, at most", shape, least, other, None, turns)


def beside_desgld(chains: int, turns: dict) -> Iterator[Line | Skipped]:
    try:
        # which imports matplotlib too, and prints
        with contextlib.redirect_stdout(io.StringIO()):
            import desgld
    except ImportError as error:
        yield Skipped("desgld", str(error))
        return
    X, y = map(list, zip(*problems.split(*problems.table(AGENTS * ROWS, DIM), AGENTS), strict=True))
    weights = np.full((AGENTS, AGENTS), 1.0 / AGENTS)

    def other(rounds: int) -> Any:
        walk = desgld.DeSGLD(AGENTS, chains, 1.0, STEP, rounds, DIM, BATCH, 10.0, X, y, weights, [0.5], "logistic")
        return walk.vanila_desgld()[0]

    yield from everybody("desgld", BATCH, other, at_least(500.0), chains, turns)


def beside_numpy(chains: int, turns: dict) -> Iterator[Line]:
    for batch in (BATCH, None):
        for dtype in (np.float64, np.float32):
            what = f"NumPy, {'double' if dtype is np.float64 else 'single'} precision"
            other = partial(in_numpy, chains=chains, batch=batch, dtype=dtype)
            yield from everybody(what, batch, other, at_least(3.0), chains, turns)


def in_numpy(rounds: int, chains: int, batch: int | None, dtype: Any) -> np.ndarray:
    """DE-SGLD of logistic regression: all agents and chains at once, (agent, chain, dim)."""
    X, y = problems.table(AGENTS * ROWS, DIM)
    X, y = X.reshape(AGENTS, ROWS, DIM).astype(dtype), y.reshape(AGENTS, ROWS).astype(dtype)
    weights = np.full((AGENTS, AGENTS), 1.0 / AGENTS, dtype)
    rng = np.random.default_rng(0)
    x = np.zeros((AGENTS, chains, DIM), dtype)
    agent = np.arange(AGENTS)[:, None, None]
    for _ in range(rounds):
        if batch is None:
            wrong = 1.0 / (1.0 + np.exp(-x @ X.transpose(0, 2, 1))) - y[:, None]
            gradient = wrong @ X
        else:
            chosen = rng.integers(0, ROWS, (AGENTS, chains, batch))
            some = X[agent, chosen]
            wrong = 1.0 / (1.0 + np.exp(-np.einsum("acbd,acd->acb", some, x))) - y[agent, chosen]
            gradient = np.einsum("acb,acbd->acd", wrong, some) * dtype(ROWS / batch)
        gradient += x / dtype(AGENTS)
        mixed = (weights @ x.reshape(AGENTS, -1)).reshape(x.shape)
        x = mixed - dtype(STEP) * gradient + dtype((2.0 * STEP) ** 0.5) * rng.standard_normal(x.shape, dtype)
    return x
