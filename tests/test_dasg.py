"""D-ASG: its law, its stability bound, its limits, minibatches and errors."""

import jax
import numpy as np
import pytest
from propagation import assert_exact
from tables import NETWORKS, POTENTIALS, Z_BOUND, unequal_curvature, unequal_shards

import accord
from accord.samplers import DASG, DESGLD


@pytest.mark.parametrize("network", ["star", "irregular"])
def test_rounds_and_law_are_the_recursion(network):
    assert_exact(unequal_curvature(2), NETWORKS[network], DASG(0.15, 0.4), POTENTIALS["curvature"](2))


@pytest.mark.parametrize(("rounds", "momentum"), [(1, 0.0), (1, 0.3), (1, 0.9), (2, 0.3)])
@pytest.mark.parametrize("mixing", ["lazy", "metropolis"])
def test_stability_bound_is_where_the_spectral_radius_crosses_one(rounds, momentum, mixing):
    post, net = unequal_curvature(2), NETWORKS["irregular"]
    make = lambda step: DASG(step, momentum, mixing=mixing, mix_rounds=rounds)  # noqa: E731
    bound = make(1e-3).max_step(net, post.hessians())
    assert accord.law(post, net, make(bound * 0.999)).spectral_radius < 1.0
    assert accord.law(post, net, make(bound * 1.001)).spectral_radius > 1.0


def test_it_converges_to_the_limit_of_decentralised_gradient_descent_faster():
    post, net = unequal_shards(2), NETWORKS["ring"]
    plain = DESGLD(0.02, mixing="lazy", temperature=0.0)
    fast = DASG(0.02, momentum=0.6)
    laws = [accord.law(post, net, method) for method in (plain, fast)]
    np.testing.assert_allclose(laws[1].stationary().joint.mean, laws[0].stationary().joint.mean, rtol=1e-8)
    np.testing.assert_allclose(laws[1].stationary().joint.cov, 0.0, atol=1e-20)
    rates = [-np.log(law.spectral_radius) for law in laws]
    assert rates[1] > 2.0 * rates[0]
    with jax.enable_x64(True):
        run = accord.sample(post, net, accord.Rounds(fast, burn_in=2000), draws=1, chains=1)
    np.testing.assert_allclose(run.draws[0, 0].ravel(), laws[1].stationary().joint.mean, atol=1e-8)


def test_one_agent_is_nesterovs_method():
    H, b = np.array([[2.0, 0.3], [0.3, 0.5]]), np.array([1.0, -1.0])
    post = accord.models.quadratic(H[None], b[None])
    with jax.enable_x64(True):
        run = accord.sample(post, accord.Network.ring(1), accord.Rounds(DASG(0.3, 0.5), burn_in=0), draws=30, chains=1)
    x = y = np.zeros(2)
    for k in range(30):
        new = y - 0.3 * (H @ y - b)
        x, y = new, new + 0.5 * (new - x)
        np.testing.assert_allclose(run.draws[0, k, 0], x, rtol=1e-10)


def test_minibatches_are_unbiased():
    post, chains = unequal_shards(1), 40_000
    point = np.array([0.7])
    runs = [
        accord.sample(
            post,
            NETWORKS["path"],
            accord.Rounds(DASG(0.05, 0.5, batch_size=b), burn_in=0, init=point),
            draws=3,
            chains=c,
            seed=0,
        ).draws[:, 2]
        for b, c in ((2, chains), (None, 1))
    ]
    error = runs[0].std(axis=0, dtype=np.float64) / np.sqrt(chains)
    assert (error > 0).all()
    assert (np.abs(runs[0].mean(axis=0, dtype=np.float64) - runs[1][0]) < Z_BOUND * error).all()


NEARLY_SWAPPED = np.array([[0.05, 0.95], [0.95, 0.05]])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DASG(0.0, 0.5), "step_size must be a finite number > 0"),
        (lambda: DASG(0.1, 1.0), r"momentum must be in \[0, 1\), found 1.0"),
        (lambda: DASG(0.1, -0.1), r"momentum must be in \[0, 1\), found -0.1"),
        (lambda: DASG(0.1, 0.5, temperature=1.0), "an optimiser: its temperature must be 0, found 1.0"),
        (lambda: DASG(0.1, 0.5, noise="common"), 'noise must be "independent" in DASG'),
        (lambda: sample(DASG(10.0, 0.5)), "is not below .*, the stability bound of DASG"),
        (lambda: sample(DASG(0.1, 0.5, mixing=NEARLY_SWAPPED)), r"needs eigenvalues above -0.5, found -0.9; .*lazy"),
    ],
)
def test_invalid_arguments_raise_clear_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def sample(method):
    post = accord.models.gaussian(np.zeros(2), np.ones(2))
    return accord.sample(post, accord.Network.path(2), accord.Rounds(method, burn_in=0), draws=1, chains=1)
