"""Gossip methods that correct for unequal gradients: EXTRA-SGLD and DIGing-SGLD."""

import numpy as np
import pytest
from tables import AGENTS, NETWORKS, unequal_curvature

import accord
from accord.samplers import DESGLD, EXTRASGLD, GTDULA, DIGingSGLD


@pytest.mark.parametrize("network", NETWORKS)
def test_no_agents_mean_is_biased(network):
    post, net = unequal_curvature(2), NETWORKS[network]

    def bias(method):
        means = accord.law(post, net, method).stationary().joint.mean.reshape(AGENTS, 2)
        return np.abs(means - post.mode()).max(axis=1)

    assert bias(EXTRASGLD(0.1)).max() < 1e-9 and bias(EXTRASGLD(0.1, 0.2)).max() < 1e-9
    assert bias(DIGingSGLD(0.08)).max() < 1e-9
    assert bias(DESGLD(0.1)).min() > 0.03


def test_the_spread_of_extra_draws_matches_the_docstring():
    # at small steps a mode of W with the eigenvalue v is ARMA(2, 1): its variance is 2 / ((1 - c)(1 + b + c)) times
    # the noise's, with b = 1 + v and c = blend + (1 - blend) v, and under DE-SGLD 1 / (1 - v^2) times
    step, net = 1e-4, NETWORKS["path"]
    post = accord.models.gaussian(np.zeros((AGENTS, 1)), np.ones((AGENTS, 1, 1)))
    values, vectors = np.linalg.eigh(net.mixing("metropolis"))
    v, squares = values[:-1], vectors[:, :-1] ** 2

    def excess(method):
        law = accord.law(post, net, method).stationary()
        return np.array([law.agent(i).cov[0, 0] for i in range(AGENTS)]) - law.average.cov[0, 0]

    plain = excess(DESGLD(step))
    np.testing.assert_allclose(plain, 2.0 * step * squares @ (1.0 / (1.0 - v**2)), rtol=2e-3)
    for blend in (0.5, 0.2, 0.01):
        c = blend + (1.0 - blend) * v
        found = excess(EXTRASGLD(step, blend))
        np.testing.assert_allclose(found, 2.0 * step * squares @ (2.0 / ((1.0 - c) * (2.0 + v + c))), rtol=5e-3)
        assert (found < plain / (1.0 - blend)).all()


def test_diging_is_gt_dula_with_equal_mixing():
    # consensus steps equal to max-degree weights, and N times the step
    post, net = unequal_curvature(2), NETWORKS["irregular"]
    along = 1.0 / (1.0 + net.max_degree)
    laws = [
        accord.law(post, net, method)
        for method in (DIGingSGLD(0.06, "max-degree"), GTDULA(0.06 / AGENTS, along, along))
    ]
    for k in (1, 2, 7):
        one, other = (law.at(k).joint for law in laws)
        np.testing.assert_allclose(one.mean, other.mean, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(one.cov, other.cov, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("blend", [0.0, 0.51, -0.1, float("nan")])
def test_an_invalid_blend_is_named(blend):
    with pytest.raises(ValueError, match=rf"blend must be in \(0, 1/2\], found {blend}"):
        EXTRASGLD(0.1, blend)
