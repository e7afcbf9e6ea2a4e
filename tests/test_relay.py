"""Exact averages over a spanning tree in place of mixing: the same draws as on a complete network, at their cost."""

import jax
import numpy as np
import pytest
from tables import AGENTS, NETWORKS, among, start, unequal_curvature, worst_z

import accord
from accord.samplers import DESGHMC, DESGLD, EXTRASGLD, GTBAOAB, DIGingSGLD

RELAYED = {
    "DESGLD": lambda mixing: DESGLD(0.15, mixing),
    "DESGHMC": lambda mixing: DESGHMC(0.2, 1.5, mixing=mixing),
    "GTBAOAB": lambda mixing: GTBAOAB(0.2, 1.5, mixing, mix_rounds=1),
    "EXTRASGLD": lambda mixing: EXTRASGLD(0.15, mixing=mixing),
    "DIGingSGLD": lambda mixing: DIGingSGLD(0.1, mixing),
}


def draw(network, method):
    with jax.enable_x64(True):
        return accord.sample(
            unequal_curvature(2), network, accord.Rounds(method, burn_in=20), draws=20, chains=2, seed=3
        )


@pytest.mark.parametrize("method", among(RELAYED, "GTBAOAB", "EXTRASGLD"))
@pytest.mark.parametrize("network", ["path", "irregular"])
def test_relayed_averages_give_the_draws_of_a_complete_network(network, method):
    # Metropolis weights on a complete network are 1 / N
    found, expected = (
        draw(NETWORKS[network], RELAYED[method]("relay")),
        draw(NETWORKS["complete"], RELAYED[method]("metropolis")),
    )
    np.testing.assert_allclose(found.draws, expected.draws, rtol=1e-9, atol=1e-9)


def test_relays_cost_a_sum_over_the_tree():
    network, tree = NETWORKS["path"], NETWORKS["path"].aggregation
    run = draw(network, RELAYED["GTBAOAB"]("relay"))
    assert run.traffic.exchanges == 40 * 2 * tree.height
    np.testing.assert_array_equal(run.traffic.bytes_sent, 40 * tree.sums_sent * 3 * 2 * 8)


@pytest.mark.long
def test_relayed_draws_follow_the_law():
    post, network, method = unequal_curvature(2), NETWORKS["path"], RELAYED["GTBAOAB"]("relay")
    run = accord.sample(post, network, accord.Rounds(method, burn_in=14, init=start(2)), draws=1, chains=20_000, seed=1)
    assert worst_z(run.draws[:, 0], accord.law(post, network, method, start(2)).at(15).joint) < 5.5


def test_a_plan_of_relays_takes_one_round_per_draw():
    run = accord.sample(unequal_curvature(1), NETWORKS["path"], GTBAOAB(mixing="relay"), draws=50, chains=2, seed=0)
    assert "mixing='relay'" in run.settings["method"] and "mix_rounds=1," in run.settings["method"]


def test_relays_refuse_unsupported_options():
    with pytest.raises(ValueError, match="omit mix_rounds, found 3"):
        GTBAOAB(0.1, mixing="relay", mix_rounds=3)
    with pytest.raises(ValueError, match="a lost message would change the sum"):
        accord.sample(unequal_curvature(1), NETWORKS["path"].links(loss=0.1), RELAYED["DESGLD"]("relay"), draws=1)
    with pytest.raises(ValueError, match="not connected"):
        accord.sample(unequal_curvature(1), accord.Network.empty(AGENTS), RELAYED["DESGLD"]("relay"), draws=1)
