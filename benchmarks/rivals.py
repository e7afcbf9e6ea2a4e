"""Gradient rows per second relative to BlackJAX's SGLD and SGHMC."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import problems
from measured import Line, Skipped, against, compared, effort
from rounds import STEP, advancing

import accord


def lines(small: bool) -> Iterator[Line | Skipped]:
    """Lines that compare ten agents with one chain of BlackJAX with minibatches of ten times as many rows."""
    try:
        import blackjax
    except ImportError as error:
        yield Skipped("BlackJAX", str(error))
        return
    count, dim = (100, 5) if small else (10_000, 50)
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
        # the sampler with one gradient a step would not use it for positions, so XLA would remove it
        ("SGHMC", desghmc, once, moving, 1),
        ("SGHMC, 10 gradients per minibatch", desghmc, blackjax.sghmc(gradient).step, alone, 10),
    ]
    for batch in (10, 100, None):
        for name, method, step, start, gradients in cases:
            own = advancing(post, net, method(STEP, batch_size=batch), 1)[1]
            other = chain(step, rows, None if batch is None else 10 * batch, start, gradients)
            shape = f"logistic, {count:,} x {dim}, b = {batch or 'all'}"
            found, theirs, ours = compared(other, own, **effort(small))
            yield Line(f"BlackJAX {name}", shape, found, against(ours, theirs), least=1.0)


def chain(move: Any, rows: Any, batch: int | None, start: Any, gradients: int) -> Callable[[int], Any]:
    """One chain of BlackJAX: a function of a number of gradients, a multiple of the gradients of a step."""
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

    # one program for each number of steps
    return lambda rounds: walk(rows, start, jax.random.key(0), steps=max(1, rounds // gradients))
