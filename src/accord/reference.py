"""Pooled NUTS: the reference that draws from split data are compared with. It sees all data: a check, not a method."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from .posterior import Posterior


def nuts(
    post: Posterior, *, draws: int = 1000, warmup: int = 1000, chains: int = 4, seed: int = 0, dense: bool = True
) -> np.ndarray:
    """Draw from the pooled posterior by BlackJAX's NUTS with its window adaptation.

    Parameters
    ----------
    post
        The posterior; its shards are pooled on this machine.
    draws, warmup, chains
        Draws kept, and adaptation steps before them, in each chain.
    seed
        A whole number >= 0.
    dense
        Adapt a dense metric; else a diagonal one.

    Returns
    -------
    np.ndarray
        Shape (chain, draw, dim).

    Raises
    ------
    ImportError
        BlackJAX is not installed.
    """
    try:
        import blackjax
    except ImportError as error:
        raise ImportError("pooled NUTS needs BlackJAX: pip install 'accord[nuts]'") from error

    def one_chain(key: jax.Array) -> jax.Array:
        adapt_key, draw_key = jax.random.split(key)
        adaptation = blackjax.window_adaptation(blackjax.nuts, post.logdensity, is_mass_matrix_diagonal=not dense)
        (state, parameters), _ = adaptation.run(adapt_key, jnp.asarray(post.init, jnp.result_type(float)), warmup)
        kernel = blackjax.nuts(post.logdensity, **parameters)

        def step(state, key):  # type: ignore[no-untyped-def]
            state, _ = kernel.step(key, state)
            return state, state.position

        return jax.lax.scan(step, state, jax.random.split(draw_key, draws))[1]

    return np.asarray(jax.jit(jax.vmap(one_chain))(jax.random.split(jax.random.key(seed), chains)))
