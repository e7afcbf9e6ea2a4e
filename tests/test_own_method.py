"""Custom methods that violate the protocol raise errors before the first round."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tables import AGENTS, LINKS, NETWORKS, unequal_curvature, unequal_shards

import accord
from accord.samplers import DADMMS
from accord.samplers.protocol import Bound, HasLaw, Needs, Sampler, pytree

RING = NETWORKS["ring"]


class State(NamedTuple):
    position: jax.Array


class Plain(Sampler):
    """DE-SGLD with a step of 0.05. Each method below changes a part of it."""

    def needs(self, dim):
        return Needs("mix", common=self.noise == "common")

    def init(self, agent, position, noise):
        return State(position)

    def message(self, agent, state):
        return state.position

    def drift(self, agent, gradient):
        return 0.05 * gradient

    def update(self, agent, state, inbox, noise):
        drift = self.drift(agent, agent.gradient(state.position))
        return State(inbox.mix() - drift + 0.1**0.5 * noise.normal)

    def bind(self, post, network):
        return Bound(self, network.weights("metropolis"))


@pytree
class OtherInbox(Plain):
    def needs(self, dim):
        return Needs("mixed")


@pytree
class Undeclared(Plain):
    def needs(self, dim):
        return Needs("mix")


@pytree
class Unbound(Plain):
    def bind(self, post, network):
        return network.weights("metropolis")


@pytree
class OffTheEdges(Plain):
    def bind(self, post, network):
        return Bound(self, NETWORKS["complete"].weights("metropolis"))


@pytree
class Leaking(Plain):
    def bind(self, post, network):
        return Bound(self, 0.5 * network.weights("metropolis"))


@pytree
class TooFew(Plain):
    def bind(self, post, network):
        return Bound(self, network.weights("metropolis"), own=np.ones(AGENTS - 1))


@pytest.mark.parametrize(
    ("method", "error", "message"),
    [
        (OtherInbox(), TypeError, "the inbox that OtherInbox needs must be one of 'mix', .*, found 'mixed'"),
        (Undeclared(noise="common"), TypeError, "Undeclared has noise='common', but its needs"),
        (Unbound(), TypeError, r"Unbound.bind\(\) must return a Bound, found"),
        (OffTheEdges(), ValueError, r"must be zero between agents without an edge, found W\[\d, \d\] = 0.16"),
        (Leaking(), ValueError, "rows of the mixing matrix must sum to 1, found 0.5 in row 0"),
        (TooFew(), ValueError, r"must have a row for each of 6 agents, found shape \(5,\)"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Sampler) else "",
)
def test_the_protocol_is_checked(method, error, message):
    with pytest.raises(error, match=message):
        accord.sample(unequal_curvature(1), RING, accord.Rounds(method, burn_in=0), draws=1, chains=1)


@pytree
class AsDeclared(Plain, HasLaw):
    pass


@pytree
class Clipped(Plain, HasLaw):
    def drift(self, agent, gradient):
        return 0.05 * jnp.clip(gradient, -10.0, 10.0)


@pytree
class Later(Plain, HasLaw):
    def drift(self, agent, gradient):
        return jnp.where(agent.round >= 20, 0.3, 0.05) * gradient


@pytree
class Early(Plain, HasLaw):
    def drift(self, agent, gradient):
        return jnp.where(agent.round < 5, 0.3, 0.05) * gradient


def test_a_law_is_refused_if_rounds_differ_from_the_declaration():
    post, far = unequal_curvature(1), np.array([200.0])
    accord.law(post, RING, AsDeclared(), far).at(3)
    # affine near zero, but not at the start
    with pytest.raises(TypeError, match="a round of Clipped is not affine"):
        accord.law(post, RING, Clipped(), far).at(3)
    for method in (Later(), Early()):
        with pytest.raises(TypeError, match=r"rounds 1 and 1000000 of .* differ although is_constant\(\) returns True"):
            accord.law(post, RING, method).at(3)


@pytree
class BySums(DADMMS):
    """D-ADMMS that reads only the sums of its neighbours' messages."""

    def transition(self, agent, state, inbox, noise):
        apart = agent.degree * state.position - inbox.neighbour_sum()
        return super().transition(agent, state, inbox._replace(apart=apart), noise)


@pytest.mark.parametrize("net", [NETWORKS["irregular"], LINKS["lossy"]], ids=["reliable", "lossy"])
@pytest.mark.long
def test_sums_of_neighbours_and_disagreement_are_equivalent(net):
    post = unequal_shards(2)
    with jax.enable_x64(True):
        apart, sums = (
            accord.sample(post, net, accord.Rounds(of(0.7), burn_in=5), draws=30, seed=0) for of in (DADMMS, BySums)
        )
    np.testing.assert_allclose(sums.draws, apart.draws, rtol=1e-9, atol=1e-9)
    assert np.ptp(sums.draws, axis=2).max() > 0.1
