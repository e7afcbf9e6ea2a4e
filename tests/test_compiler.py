"""Compiled sums are right: releases of XLA that get them wrong are guarded against."""

import jax
import jax.numpy as jnp
import numpy as np

import accord  # noqa: F401  (its import is the guard)


def test_large_sums_over_the_first_axis_are_right():
    x = np.random.default_rng(0).standard_normal((6, 2, 20_000)).astype(np.float32)
    scaled = jax.jit(lambda x: jnp.broadcast_to((x / jnp.arange(1.0, 7.0)[:, None, None]).sum(axis=0), x.shape))(x)
    expected = (x / np.arange(1.0, 7.0)[:, None, None]).sum(axis=0)
    np.testing.assert_allclose(scaled[0], expected, rtol=1e-4, atol=1e-5)


def test_large_products_and_their_sums_are_right():
    x = np.zeros((40_000, 3), np.float32)
    x[:, 0] = np.arange(40_000)
    squares = jax.jit(jax.vmap(lambda row: jnp.sum((jnp.eye(3) @ row) ** 2)))(x)
    np.testing.assert_allclose(squares, x[:, 0] ** 2, rtol=1e-6)
