"""Arrays of NumPy within functions, in the float width of who calls them."""

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import accord  # noqa: F401, which has JAX keep widths apart


def slope(scale):
    return jax.grad(lambda x: -0.5 * jnp.sum((x * scale) ** 2))


@pytest.mark.parametrize("wide_first", [False, True])
def test_derivatives_have_the_width_at_hand_whatever_came_before(wide_first):
    gradient = slope(np.array([1.0, -2.0]))
    programs = []
    for wide in (wide_first, not wide_first) * 2:
        # programs keep their constants, and all of them stay
        programs.append(jax.jit(lambda x: gradient(x)))
        with jax.enable_x64(wide):
            compiled, eager = programs[-1](jnp.ones(2)), gradient(jnp.ones(2))
        assert compiled.dtype == eager.dtype == (np.float64 if wide else np.float32)
        np.testing.assert_allclose([compiled, eager], [[-1.0, -4.0]] * 2)


def test_doubles_are_not_those_that_were_rounded_to_single():
    tenth = np.array([0.1])
    program = jax.jit(lambda x: x + tenth)
    assert program(jnp.zeros(1)).dtype == np.float32
    with jax.enable_x64(True):
        np.testing.assert_array_equal(jax.jit(lambda x: x + tenth)(jnp.zeros(1)), tenth)


def test_an_array_that_is_used_twice_is_one_constant_and_ends_with_its_programs():
    scale = np.arange(3.0)
    traced = jax.make_jaxpr(lambda x: x * scale + scale)(jnp.float32(1.0))
    assert len(traced.consts) == 1
    gone = weakref.ref(scale)
    del scale, traced
    gc.collect()
    assert gone() is None
