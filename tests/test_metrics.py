"""Distances against closed forms and brute force."""

import numpy as np
import pytest

import accord
from accord import metrics


def random_gaussian(dim, seed):
    rng = np.random.default_rng(seed)
    factor = rng.standard_normal((dim, dim + 1))
    return accord.Gaussian(rng.standard_normal(dim), factor @ factor.T)


def test_wasserstein2_of_gaussians():
    p, q = accord.Gaussian(0.0, 1.0), accord.Gaussian(3.0, 4.0)
    assert metrics.wasserstein2(p, q) == pytest.approx(np.sqrt(9.0 + 1.0))
    # commuting covariances: the distance of their roots
    a, b = np.diag([1.0, 9.0]), np.diag([4.0, 0.0])
    assert metrics.wasserstein2(accord.Gaussian(np.zeros(2), a), accord.Gaussian(np.zeros(2), b)) == pytest.approx(
        np.sqrt(1.0 + 9.0)
    )
    p, q = random_gaussian(3, 0), random_gaussian(3, 1)
    assert metrics.wasserstein2(p, p) == pytest.approx(0.0, abs=1e-6)
    assert metrics.wasserstein2(p, q) == pytest.approx(metrics.wasserstein2(q, p))


def test_wasserstein2_of_draws_is_the_best_matching():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((30, 2))
    shifted = x[rng.permutation(30)] + np.array([0.01, 0.0])
    assert metrics.wasserstein2(x, shifted) == pytest.approx(0.01, rel=1e-6)
    one = metrics.wasserstein2(x[:, 0], x[:, 1])
    assert one == pytest.approx(np.sqrt(np.mean((np.sort(x[:, 0]) - np.sort(x[:, 1])) ** 2)))


def test_kl():
    p, q = accord.Gaussian(1.0, 2.0), accord.Gaussian(0.0, 3.0)
    assert metrics.kl(p, q) == pytest.approx((2.0 / 3.0 + 1.0 / 3.0 - 1.0 + np.log(1.5)) / 2.0)
    assert metrics.kl(p, p) == pytest.approx(0.0, abs=1e-12)
    assert metrics.kl(accord.Gaussian(np.zeros(2), np.diag([1.0, 0.0])), random_gaussian(2, 0)) == np.inf


def test_consensus_error():
    draws = np.array([[[1.0, 0.0], [-1.0, 0.0]], [[2.0, 2.0], [2.0, 2.0]]])
    np.testing.assert_allclose(metrics.consensus_error(draws), [1.0, 0.0])


def test_hpd_error_and_accuracy():
    rng = np.random.default_rng(0)
    reference = rng.standard_normal((400, 2))

    def potential(x):
        return x @ x / 2.0

    assert metrics.hpd_error(potential, reference, reference) == 0.0
    # twice the spread is four times the threshold
    assert metrics.hpd_error(potential, 2.0 * reference, reference) == pytest.approx(3.0)
    X, y = np.array([[1.0], [-1.0], [2.0]]), np.array([1, 0, 0])

    def probability(x, X):
        return 1.0 / (1.0 + np.exp(-X @ x))

    assert metrics.accuracy(probability, np.array([[1.0], [2.0]]), X, y) == pytest.approx(2.0 / 3.0)


def test_bad_input():
    p = accord.Gaussian(0.0, 1.0)
    with pytest.raises(TypeError, match="one of each"):
        metrics.wasserstein2(p, np.zeros(3))
    with pytest.raises(ValueError, match="same dimension, found 1 and 2"):
        metrics.wasserstein2(p, random_gaussian(2, 0))
    with pytest.raises(ValueError, match="finite"):
        metrics.wasserstein2(np.array([np.nan]), np.zeros(3))
    with pytest.raises(ValueError, match="level"):
        metrics.hpd_error(lambda x: 0.0, np.zeros((3, 1)), np.zeros((3, 1)), level=1.0)
    with pytest.raises(ValueError, match="positive definite"):
        metrics.kl(random_gaussian(2, 0), accord.Gaussian(np.zeros(2), np.diag([1.0, 0.0])))
