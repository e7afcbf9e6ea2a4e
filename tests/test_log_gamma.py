from math import factorial, fsum, log

import jax
import numpy as np
import pytest
from scipy import special

from accord.base.special import log_gamma, log_rising

X = np.concatenate([np.geomspace(1e-8, 1e8, 100), np.linspace(0.5, 20.0, 100)])


def derivative(function, order):
    for _ in range(order):
        function = jax.grad(function)
    return jax.jit(jax.vmap(function))


@pytest.mark.parametrize("order", range(4))
def test_log_gamma_and_its_derivatives_are_those_of_scipy(order):
    with jax.enable_x64():
        found = np.asarray(derivative(log_gamma, order)(X))
    exact = special.gammaln(X) if order == 0 else special.polygamma(order - 1, X)
    # near a zero of the function, an absolute error
    np.testing.assert_allclose(found, exact, rtol=1e-14, atol=1e-14 if order < 2 else 0.0)


def test_log_gamma_holds_in_single_precision():
    x = X[X < 1e6].astype(np.float32)
    np.testing.assert_allclose(jax.jit(log_gamma)(x), special.gammaln(x.astype(float)), rtol=1e-6, atol=4e-6)


@pytest.mark.parametrize("order", range(4))
def test_rising_factorials_lose_no_digits(order):
    x, counts = np.array([1e-6, 0.3, 9.99, 10.0, 77.0, 1e6, 1e12]), np.array([0.0, 1.0, 2.0, 10.0, 1000.0])
    with jax.enable_x64():
        found = derivative(log_rising, order)(np.repeat(x, len(counts)), np.tile(counts, len(x)))
    scale = (-1.0) ** (order - 1) * factorial(order - 1) if order else 0.0
    steps = [[a + k for k in range(int(y))] for a in x for y in counts]
    exact = [fsum(scale * s**-order if order else log(s) for s in own) for own in steps]
    np.testing.assert_allclose(found, exact, rtol=2e-13, atol=1e-15)


def test_rising_factorials_of_large_counts_are_finite_in_single_precision():
    x, y = np.meshgrid([1e-6, 0.1, 1.0, 7.3, 100.0, 1e6], [0.0, 1.0, 1e4, 1e6, 1e9], indexing="ij")
    found = jax.jit(log_rising)(x.ravel().astype(np.float32), y.ravel().astype(np.float32))
    exact = special.gammaln(x + y) - special.gammaln(x)
    np.testing.assert_allclose(found, exact.ravel(), rtol=2e-6, atol=1e-5)
