import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from accord.base.special import logistic, softplus

Z = np.concatenate([np.linspace(-40.0, 40.0, 401), [0.0, -1e4, 1e4, -90.0, 90.0]])


@pytest.mark.parametrize("wide", [False, True])
def test_values_are_exact_to_the_last_digits_and_derivatives_the_logistic_function(wide):
    with jax.enable_x64(wide):
        z = jnp.asarray(Z)
        rounding = float(jnp.finfo(z.dtype).eps)
        exact = np.logaddexp(0.0, np.asarray(z, np.longdouble))
        np.testing.assert_allclose(softplus(z), exact, rtol=3 * rounding, atol=float(jnp.finfo(z.dtype).tiny))
        np.testing.assert_array_equal(softplus(jnp.array([jnp.inf, -jnp.inf, jnp.nan])), [np.inf, 0.0, np.nan])
        bend = jax.vmap(jax.hessian(softplus))(z)
        # the value computed together with a gradient
        beside, slope = jax.vmap(jax.value_and_grad(softplus))(z)
        np.testing.assert_allclose(beside, exact, rtol=4 * rounding, atol=float(jnp.finfo(z.dtype).tiny))
        right = scipy.special.expit(np.asarray(z, np.float64))
        smallest = float(jnp.finfo(z.dtype).tiny)
        np.testing.assert_allclose(slope, right, rtol=8 * rounding, atol=smallest)
        # 1 - slope is rounded where the slope is about 1
        np.testing.assert_allclose(bend, right * (1.0 - right), atol=4 * rounding)


def test_the_logistic_function_is_exact_to_the_last_digits_and_has_all_derivatives():
    with jax.enable_x64(True):
        z = jnp.asarray(np.concatenate([Z, [708.0, 708.5, -708.0, -708.5, -745.0, 1e-300]]))
        np.testing.assert_allclose(
            logistic(z), scipy.special.expit(np.asarray(z)), rtol=5e-16, atol=np.finfo(float).tiny
        )
        # the NA of R among them, whose last digits are no zeros
        missing = np.uint64(0x7FF80000000007A2).view(np.float64)
        odd = jnp.asarray(np.array([np.inf, -np.inf, np.nan, missing, -missing]))
        np.testing.assert_array_equal(logistic(odd), [1.0, 0.0, np.nan, np.nan, np.nan])
        p = scipy.special.expit(0.3)
        third = jax.jacfwd(jax.jacrev(jax.grad(softplus)))
        np.testing.assert_allclose(third(0.3), p * (1 - p) * (1 - 2 * p), rtol=1e-14)


def test_vmap_keeps_axes_in_place():
    columns = jnp.asarray(np.random.default_rng(0).standard_normal((5, 3)), jnp.float32)
    for function in (softplus, logistic):
        found = jax.make_jaxpr(jax.vmap(function, in_axes=1, out_axes=1))(columns)
        assert "transpose" not in str(found)
        np.testing.assert_array_equal(jax.vmap(function, in_axes=1, out_axes=1)(columns), function(columns))


def transcendental(function):
    """Transcendental functions that a program of its value and gradient evaluates for each number."""
    gradient = jax.jit(jax.value_and_grad(lambda z: function(z).sum()))
    return gradient.lower(jnp.zeros(1024)).compile().cost_analysis()["transcendentals"] / 1024


@pytest.mark.busy
def test_a_value_and_a_gradient_take_one_transcendental_function():
    assert transcendental(softplus) == 1
    assert transcendental(jax.nn.softplus) > 1
