"""Pooled NUTS, a reference for draws from split data. It needs all data in one place."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..base.checks import whole_number
from ..base.compiler import compiled
from ..base.memory import require_room
from .posterior import Posterior

# Bytes per draw beside the position: key, divergence, number of gradients.
_BESIDE = 13
# Largest R-hat without a warning.
_MOST_RHAT = 1.05
# Fewest draws for R-hat.
_FEWEST = 100


class NutsChain(NamedTuple):
    """One chain of NUTS: positions (draw, dim), whether each transition diverged (draw,), and gradients evaluated."""

    positions: jax.Array
    divergent: jax.Array
    gradients: jax.Array


def require_blackjax(purpose: str) -> None:
    """Raise `ImportError` with the extra to install, if BlackJAX is missing."""
    try:
        import blackjax  # noqa: F401
    except ImportError as error:
        raise ImportError(f"{purpose} needs BlackJAX: pip install 'accord[nuts]'") from error


def nuts_chain(
    key: jax.Array,
    logdensity: Callable[[jax.Array], jax.Array],
    start: jax.Array,
    *,
    draws: int,
    warmup: int,
    dense: bool,
) -> NutsChain:
    """One chain of BlackJAX's NUTS after window adaptation. Call it inside compiled code."""
    import blackjax

    adapt_key, draw_key = jax.random.split(key)
    adaptation = blackjax.window_adaptation(
        blackjax.nuts,
        logdensity,
        is_mass_matrix_diagonal=not dense,
        # the default keeps the metric of every step
        adaptation_info_fn=lambda state, info, adaptation: info.num_integration_steps,
    )
    (state, parameters), steps = adaptation.run(adapt_key, start, warmup)
    kernel = blackjax.nuts(logdensity, **parameters)

    def step(state, key):  # type: ignore[no-untyped-def]
        state, info = kernel.step(key, state)
        return state, (state.position, info.is_divergent, info.num_integration_steps)

    positions, divergent, more = jax.lax.scan(step, state, jax.random.split(draw_key, draws))[1]
    return NutsChain(positions, divergent, steps.sum() + more.sum())


def nuts(
    post: Posterior, *, draws: int = 1000, warmup: int = 1000, chains: int = 4, seed: int = 0, dense: bool = True
) -> np.ndarray:
    """Draws from the pooled posterior, by BlackJAX's NUTS with window adaptation in double precision.

    Parameters
    ----------
    post
        The posterior. Its shards are pooled on this machine.
    draws, warmup, chains
        Draws and adaptation steps of each chain, and the number of chains.
    seed
        An integer >= 0.
    dense
        Whether to adapt a dense metric instead of a diagonal one.

    Returns
    -------
    np.ndarray
        Shape (chain, draw, dim), in the parameters of `run.draws`, with the names `run.names`.

    Warns
    -----
    UserWarning
        The chains differ: R-hat of a parameter is above 1.05.

    Raises
    ------
    ImportError
        BlackJAX is not installed.
    ValueError
        A number is out of range, or the draws do not fit in memory.
    """
    require_blackjax("pooled NUTS")
    from arviz_stats.base.array import array_stats

    draws, warmup, chains = (
        whole_number(name, value, least)
        for name, value, least in (("draws", draws, 1), ("warmup", warmup, 0), ("chains", chains, 1))
    )
    what = f"draws = {draws:,} in {chains:,} chains, of {post.dim:,} numbers, and their random keys"
    numbers = post.dim * np.dtype(float).itemsize + _BESIDE
    require_room(what, float(draws) * chains * numbers, "draw fewer")
    post.require_unchanged()

    def one_chain(key: jax.Array) -> jax.Array:
        start = jnp.asarray(post.init, float)
        return nuts_chain(key, post.logdensity, start, draws=draws, warmup=warmup, dense=dense).positions

    with jax.enable_x64(True):
        positions = np.asarray(compiled(jax.vmap(one_chain))(jax.random.split(jax.random.key(seed), chains)))
    if chains > 1 and draws >= _FEWEST:
        worst = float(np.max(array_stats.rhat(positions, chain_axis=0, draw_axis=1)))
        if not worst <= _MOST_RHAT:
            warnings.warn(f"chains of pooled NUTS differ: R-hat is {worst:.3g}; raise warmup or draws", stacklevel=2)
    return post.parameters.reported(positions)
