"""Networks with lossy, late, changing or one-way links: arrivals, conserved sums, laws and errors."""

import itertools
import pickle
import re

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest
from tables import AGENTS, LINKS, NETWORKS, OVER_LINKS, Z_BOUND, among, start, unequal_curvature, worst_z

import accord
from accord.engines.local import LocalEngine
from accord.samplers import (
    DADMMS,
    DESGLD,
    DMAHMC,
    EXTRASGLD,
    GTBAOAB,
    GTDULA,
    ChEES,
    DIGingSGLD,
    Gibbs,
    HubSGLD,
    Importance,
)
from accord.samplers.protocol import HasLaw
from accord.samplers.validation import bind

RING = NETWORKS["ring"]
# Methods that need both directions of an edge: differences, and averages without gradient tracking.
TWO_WAY = ("DESGLD", "DADMMS", "EXTRASGLD")
RUNS = [run for run in itertools.product(LINKS, OVER_LINKS) if run[0] != "one-way" or run[1] not in TWO_WAY]


def runs(*quick):
    """All compatible links and methods as parameters of a test, slow except for the quick ones."""
    assert set(quick) <= set(RUNS)
    return [pytest.param(*run, marks=() if run in quick else pytest.mark.slow) for run in RUNS]


def engine(network, method, dim=1, post=None):
    """The local engine before its first round, and its carry."""
    post = unequal_curvature(dim) if post is None else post
    made = LocalEngine(post, network, bind(post, network, method), chains=2, seed=3, keep=np.arange(AGENTS))
    return made, made.start(np.ones((AGENTS, dim)), None)


# --- arrivals ---


def arrivals(network, rounds):
    """For each round, receiver and neighbour: whether a message arrives, the newest one's delay, whether it is new."""
    made, _ = engine(network, DESGLD(0.1, mix_rounds=4))
    links, index = made.problem.links, made.problem.index
    found = jax.lax.map(lambda slot: links._arrivals(index, slot), jnp.arange(rounds))
    return [np.asarray(each) for each in found]


@pytest.mark.parametrize("burst", [1, 8])
def test_the_fraction_of_lost_messages_is_the_requested_one(burst):
    comes, *_ = arrivals(RING.links(loss=0.3, burst=burst), 40_000)
    # over all links, long outages reduce the number of independent samples
    looks = comes.size / (2 * burst)
    assert abs(1.0 - comes.mean() - 0.3) < 4.0 * (0.3 * 0.7 / looks) ** 0.5


def test_an_outage_has_the_requested_length():
    comes, *_ = arrivals(RING.links(loss=0.1, burst=5), 20_000)
    link = ~comes[:, 0, 0]
    edges = np.flatnonzero(np.diff(link.astype(int)))
    first = edges[0] if link[edges[0] + 1] else edges[1]
    lengths = np.diff(edges[edges >= first])[::2]
    assert lengths.min() == 5  # two outages may follow one another
    assert len(lengths) > 100


def test_the_directions_of_a_link_lose_messages_independently():
    comes, *_ = arrivals(accord.Network.ring(AGENTS).links(loss=0.5), 20_000)
    # agent 0 receives from 1 in slot 0, agent 1 from 0 in slot 0
    assert abs(np.corrcoef(comes[:, 0, 0], comes[:, 1, 0])[0, 1]) < 4.0 / 20_000**0.5


def test_delays_are_uniform():
    comes, newest, fresh = arrivals(RING.links(delay=(1, 3)), 20_000)
    later = slice(3, None)
    assert set(np.unique(newest[later][comes[later]])) == {1, 2, 3}
    assert fresh[~comes].sum() == 0
    # no message is new after a later one has arrived: stamps only grow
    stamps = np.arange(20_000)[:, None, None] - newest
    for receiver, slot in itertools.product(range(AGENTS), range(2)):
        seen = stamps[fresh[:, receiver, slot], receiver, slot]
        assert np.all(np.diff(seen) > 0)


def test_a_schedule_is_followed_and_repeats():
    comes, *_ = arrivals(LINKS["changing"], 6)
    # agent 0 receives from 1 in even rounds and from 5 in odd ones
    np.testing.assert_array_equal(comes[:, 0, 0], [True, False] * 3)
    np.testing.assert_array_equal(comes[:, 0, 1], [False, True] * 3)
    np.testing.assert_array_equal(arrivals(LINKS["by a function"], 6)[0].shape, comes.shape)


# --- conserved sums ---


@pytest.mark.long
@pytest.mark.parametrize("name", LINKS)
@pytest.mark.parametrize("method", ["GTDULA", "GTBAOAB", "DIGingSGLD"])
def test_pushed_sums_are_conserved_with_messages_in_flight(name, method):
    with jax.enable_x64(True):
        made, carry = engine(LINKS[name], OVER_LINKS[method](), dim=2)
        carry = made.advance(carry, 57)
        own, held = carry.state
        owed, mass = held.account.owed[0]
        in_flight = owed["tracker"].sum(axis=(0, 1))
        tracked = own.tracker.sum(axis=0)
        np.testing.assert_allclose(tracked + in_flight, own.gradient.sum(axis=0), rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(held.mass.sum(axis=0) + mass.sum(axis=(0, 1)), AGENTS, rtol=1e-12)
        assert np.ptp(np.asarray(held.mass)[:, 0]) > 0 or name == "changing"


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "memory", "gain"), [("DADMMS", "dual", 0.7), ("EXTRASGLD", "correction", 0.5 / 0.15)]
)
@pytest.mark.parametrize("name", ["lossy", "late", "bursts", "changing"])
def test_late_differences_count_once(name, method, memory, gain):
    with jax.enable_x64(True):
        made, carry = engine(LINKS[name], OVER_LINKS[method](), dim=2)
        carry = made.advance(carry, 57)
        own, held = carry.state
        caution = LINKS[name].unreliable.caution
        # an agent's sum of differences, and those still in flight
        (owed,) = jax.tree.leaves(held.account.owed[1])
        due = gain * caution * owed.sum(axis=(0, 1))
        remembered = getattr(own, memory).sum(axis=0)
        np.testing.assert_allclose(remembered + due, 0.0, atol=1e-9)
        assert np.abs(remembered).max() > 1e-3 or name == "changing"


@pytest.mark.parametrize("name", ["late", "bursts", "one-way", "changing"])
@pytest.mark.long_from(2)
def test_rounds_are_those_of_queues_and_running_sums(name):
    """GT-DULA without noise, by queues of messages with their sender's running sums."""
    network, (step, beta), rounds = LINKS[name], (0.002, 0.1), 60
    post = unequal_curvature(1)
    slope, constant = np.asarray(post.hessians())[:, 0, 0], np.zeros(AGENTS)
    with jax.enable_x64(True):
        method = GTDULA(step, beta, beta, temperature=0.0)
        run = accord.sample(
            post, network, accord.Rounds(method, burn_in=0, init=np.ones(1)), draws=rounds, chains=1, seed=0
        )
        constant = np.asarray(post.each(lambda potential, shard: potential.gradient(shard, jnp.zeros(1))))[:, 0]
        made, _ = engine(network, method)
        comes, newest, _ = (
            np.asarray(each)
            for each in jax.lax.map(lambda k: made.problem.links._arrivals(made.problem.index, k), jnp.arange(rounds))
        )
    gradient = lambda x: slope * x + constant  # noqa: E731
    x = np.ones(AGENTS)
    tracker, mass = gradient(x), np.ones(AGENTS)
    received = {(i, int(j)): 0.0 for i in range(AGENTS) for j in network.neighbors(i)}
    received_mass, given, given_mass = dict(received), dict(received), dict(received)
    queue, arcs = {}, network.unreliable.arcs(network.adjacency).toarray() > 0
    for k in range(rounds):
        up = {
            tuple(edge)
            for edge, on in zip(network.edges.tolist(), network.unreliable.up_in(network.edges, k), strict=True)
            if on
        }
        before, before_mass, positions = tracker.copy(), mass.copy(), x.copy()
        for i, j in received:
            if arcs[i, j] and (min(i, j), max(i, j)) in up:
                portion = np.floor(beta * before_mass[j] * 2**20) / 2**20
                given[i, j], given_mass[i, j] = given[i, j] + beta * before[j], given_mass[i, j] + portion
                tracker[j], mass[j] = tracker[j] - beta * before[j], mass[j] - portion
            queue[i, j, k] = given[i, j], given_mass[i, j]
        pulled = positions.copy()
        for i in range(AGENTS):
            for slot, j in enumerate(map(int, network.neighbors(i))):
                if not comes[k, i, slot]:
                    continue
                sums = queue[i, j, k - newest[k, i, slot]]
                # an old message adds nothing, because sums of a later one were received
                if sums[1] >= received_mass[i, j]:
                    tracker[i] += sums[0] - received[i, j]
                    mass[i] += sums[1] - received_mass[i, j]
                    received[i, j], received_mass[i, j] = sums
                if newest[k, i, slot] == 0 and arcs[i, j]:
                    pulled[i] += beta * (positions[j] - positions[i])
        old = gradient(x)
        x = pulled - step * AGENTS * before / np.maximum(before_mass, 0.1)
        tracker += gradient(x) - old
        np.testing.assert_allclose(run.draws[0, k, :, 0], x, rtol=1e-9, atol=1e-9, err_msg=str(k))


# --- the draws ---


@pytest.mark.long
@pytest.mark.parametrize("method", ["DESGLD", "GTDULA", "DADMMS", "EXTRASGLD"])
def test_links_without_losses_change_nothing(method):
    runs = [
        accord.sample(unequal_curvature(2), network, accord.Rounds(OVER_LINKS[method](), burn_in=20), draws=20, seed=4)
        for network in (RING, RING.links())
    ]
    np.testing.assert_allclose(runs[0].draws, runs[1].draws, rtol=1e-4, atol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize(("name", "method"), runs(("lossy", "GTBAOAB"), ("late", "DADMMS"), ("one-way", "GTDULA")))
def test_draws_follow_the_law_of_their_losses(name, method):
    post, network, sampler = unequal_curvature(2), LINKS[name], OVER_LINKS[method]()
    run = accord.sample(
        post, network, accord.Rounds(sampler, burn_in=24, init=start(2)), draws=1, chains=20_000, seed=1
    )
    assert worst_z(run.draws[:, 0], accord.law(post, network, sampler, start(2)).at(25).joint) < Z_BOUND


def test_a_law_is_the_same_in_any_order_of_rounds():
    law = accord.law(unequal_curvature(1), LINKS["lossy"], OVER_LINKS["GTBAOAB"]())
    late = law.at(30).joint
    early = law.at(10).joint
    fresh = accord.law(unequal_curvature(1), LINKS["lossy"], OVER_LINKS["GTBAOAB"]())
    np.testing.assert_array_equal(fresh.at(10).joint.mean, early.mean)
    np.testing.assert_array_equal(law.at(30).joint.cov, late.cov)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "method"), RUNS)
def test_draws_of_many_rounds_follow_the_law_over_rounds(name, method):
    post, network, sampler = unequal_curvature(1), LINKS[name], OVER_LINKS[method]()
    law = accord.law(post, network, sampler).stationary()
    run = accord.sample(post, network, accord.Rounds(sampler, burn_in=999), draws=2000, chains=400, seed=1)
    draws = run.draws[..., 0].astype(float)
    for agent in range(AGENTS):
        own, expected = draws[..., agent], law.agent(agent)
        mean, variance = expected.mean[0], expected.cov[0, 0]
        for found, truth, scale in ((own, mean, variance**0.5), ((own - mean) ** 2, variance, variance)):
            # chains have the same losses, rounds have different ones
            over_chains = found.mean(axis=1).std(ddof=1) / len(found) ** 0.5
            batches = found.mean(axis=0).reshape(20, -1).mean(axis=1)
            error = np.hypot(over_chains, batches.std(ddof=1) / 20**0.5)
            # the law averages over rounds until their halves agree to 1% of a standard deviation
            assert abs(found.mean() - truth) < 5.0 * error + 0.02 * scale, (agent, truth)


@pytest.mark.long
def test_the_second_moment_is_that_of_all_losses():
    """Moments over the 16 patterns of two links, compared with a mean over the rounds of one run."""
    loss, step = 0.4, 0.2
    post, network = accord.models.gaussian([-1.0, 0.5, 2.0], [1.0, 2.0, 0.7]), accord.Network.path(3)
    H, mu = np.array([1.0, 0.5, 1.0 / 0.7]), np.array([-1.0, 0.5, 2.0])
    W = network.mixing()
    arcs = [(0, 1), (1, 0), (1, 2), (2, 1)]
    mean_map, square_map = np.zeros((3, 3)), np.zeros((9, 9))
    for up in itertools.product([0, 1], repeat=4):
        chance = np.prod([1.0 - loss if u else loss for u in up])
        A = np.eye(3)
        for (i, j), u in zip(arcs, up, strict=True):
            A[i, j] += u * W[i, j]
            A[i, i] -= u * W[i, j]
        A -= step * np.diag(H)
        mean_map += chance * A
        square_map += chance * np.kron(A, A)
    c = step * H * mu
    mean = np.linalg.solve(np.eye(3) - mean_map, c)
    # E x x' = E A (x x') A' + A m c' + c m' A' + c c' + Q
    half = np.outer(mean_map @ mean, c)
    constant = half + half.T + np.outer(c, c) + 2.0 * step * np.eye(3)
    second = np.linalg.solve(np.eye(9) - square_map, constant.ravel()).reshape(3, 3)
    law = accord.law(post, network.links(loss=loss), DESGLD(step)).stationary().joint
    # 2,000 rounds with a correlation time of about ten
    np.testing.assert_allclose(law.mean, mean, atol=0.05)
    np.testing.assert_allclose(law.cov, second - np.outer(mean, mean), rtol=0.05, atol=0.05)


OPTIMISERS = {
    "GTDULA": GTDULA(0.01, 0.1, 0.1, temperature=0.0),
    "GTBAOAB": GTBAOAB(0.2, 1.5, mix_rounds=6, temperature=0.0),
    "DADMMS": DADMMS(2.0, temperature=0.0, noise="common"),
    "EXTRASGLD": EXTRASGLD(0.1, temperature=0.0),
    "DIGingSGLD": DIGingSGLD(0.03, temperature=0.0),
}


@pytest.mark.parametrize(
    ("name", "method"),
    [
        run
        for run in runs(("late", "DADMMS"), ("one-way", "GTDULA"), ("bursts", "GTBAOAB"))
        if run.values[1] in OPTIMISERS
    ],
)
def test_without_noise_every_agent_reaches_the_mode(name, method):
    with jax.enable_x64(True):
        post = unequal_curvature(2)
        run = accord.sample(
            post, LINKS[name], accord.Rounds(OPTIMISERS[method], burn_in=6000), draws=1, chains=1, seed=0
        )
        np.testing.assert_allclose(run.draws[0, 0], np.tile(post.mode(), (AGENTS, 1)), atol=1e-6)


class Naive(GTDULA):
    """GT-DULA that does not declare its tracker as pushed."""

    def needs(self, dim):
        return super().needs(dim)._replace(pushed=())

    conserved = HasLaw.conserved


@pytest.mark.long
def test_dropped_messages_falsify_a_sum_that_is_not_pushed():
    """The same check passes with running sums and fails without."""
    post = unequal_curvature(1)
    exact = post.exact()
    naive = accord.base.pytree.pytree(Naive)
    for cls, right in ((GTDULA, True), (naive, False)):
        method = cls(0.002, 0.15, 0.15, noise="common")
        run = accord.sample(
            post, RING.links(loss=0.05), accord.Rounds(method, burn_in=2000), draws=2000, chains=50, seed=0
        )
        off = np.abs(run.draws.mean(axis=(0, 1))[:, 0] - exact.mean[0]).max() / exact.sd[0]
        assert (off < 0.1) == right, (cls, off)


LONG = {
    "outages": RING.links(loss=0.01, burst=40),
    "often": RING.links(loss=0.02, burst=14),
    "away": RING.links(schedule=[RING] * 8 + [[edge for edge in RING.edges.tolist() if 0 not in edge]] * 8),
}


@pytest.mark.long
@pytest.mark.parametrize("name", among(LONG, "often", "away"))
@pytest.mark.parametrize("method", [GTDULA(0.005, 0.2, 0.2, noise="common"), GTBAOAB(0.1, 1.0, mix_rounds=4)], ids=type)
def test_an_agent_without_messages_for_long_does_not_diverge(name, method):
    post = unequal_curvature(1)
    run = accord.sample(post, LONG[name], accord.Rounds(method, burn_in=1000), draws=15_000, chains=8, seed=0)
    exact, draws = post.exact(), run.draws[..., 0].astype(float)
    assert np.abs(draws - exact.mean).max() < 9.0 * exact.sd
    assert np.abs(draws.std(axis=(0, 1)) / exact.sd - 1.0).max() < 0.15


@pytest.mark.long
def test_the_mass_neither_grows_nor_shrinks_by_rounding():
    """In single precision weights of a third sum to more than 1, so that a mass kept by them grew 3e-8 per exchange."""
    made, carry = engine(LOSSY, OVER_LINKS["GTDULA"]())
    carry = made.advance(carry, 200_000)
    _, held = carry.state
    owed = held.account.owed[0][1].sum(axis=(0, 1))
    np.testing.assert_array_equal(held.mass.sum(axis=0) + owed, AGENTS)


@pytest.mark.long
@pytest.mark.parametrize("step", [0.15, 2e-3])
def test_the_law_over_rounds_without_losses_is_that_of_reliable_links(step):
    post, method = unequal_curvature(1), DESGLD(step)
    found, expected = (accord.law(post, net, method).stationary().joint for net in (RING.links(), RING))
    np.testing.assert_allclose(found.mean, expected.mean, atol=1e-6)
    np.testing.assert_allclose(found.cov, expected.cov, rtol=1e-6)


@pytest.mark.long
def test_a_law_that_does_not_converge_is_an_error():
    post = accord.models.gaussian(np.zeros(AGENTS), np.ones(AGENTS))
    reliable = accord.law(post, RING, DESGLD(0.668))
    assert 1.0 < reliable.spectral_radius < 1.01
    with pytest.raises(ValueError, match="unstable|has not settled"):
        accord.law(post, RING.links(loss=1e-6), DESGLD(0.668)).stationary()


@pytest.mark.slow
def test_a_plan_takes_more_exchanges_if_messages_are_lost():
    post = unequal_curvature(1)
    taken = {}
    for loss in (0.0, 0.3):
        network = RING.links(loss=loss)
        run = accord.sample(post, network, GTBAOAB(), draws=400, chains=4, seed=0)
        taken[loss] = int(re.search(r"mix_rounds=(\d+)", run.settings["method"])[1])
        assert np.abs(run.draws.var(axis=(0, 1)) / np.diag(post.exact().cov) - 1.0).max() < 0.25
    assert taken[0.3] > taken[0.0]


# --- errors ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": 1}, r"loss must be in \[0, 1\).*found 1"),
        ({"loss": -0.1}, "found -0.1"),
        ({"loss": float("nan")}, "found nan"),
        ({"delay": -1}, "delay must be a whole number >= 0, found -1"),
        ({"delay": [1, 2, 3]}, "delay must be a whole number or two"),
        ({"schedule": "alternate"}, "schedule must list networks or lists of edges, found the entry 'a'"),
        ({"directed": [("a", "b")]}, "agents must be given by number or label, found 'a'"),
        ({"delay": (3, 1)}, "the largest delay must be a whole number >= 3, found 1"),
        ({"burst": 0}, "burst must be a whole number >= 1, found 0"),
        ({"schedule": [[(0, 1)], [(3, 4)]]}, "the schedule never joins all agents in 2 rounds: messages of agent"),
        ({"schedule": lambda k: jnp.zeros(AGENTS, bool)}, "never joins all agents in 1000 rounds"),
        ({"schedule": []}, "at least one round"),
        ({"schedule": [[(0, 3)]]}, r"names the edge \(0, 3\) in round 0, which ring\(6\) does not have"),
        ({"schedule": lambda k: k}, "one boolean per edge"),
        ({"directed": [(0, 1), (2, 1)]}, "not strongly connected.*never reach agent"),
        ({"directed": [(0, 3)]}, r"no edge of ring\(6\) joins"),
        ({"directed": [(0, 1), (1, 0)]}, "leave out an edge that carries both ways"),
    ],
)
def test_invalid_links_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        RING.links(**options)


LOSSY, SLOW = RING.links(loss=0.1), RING.links(delay=(2, 3))


@pytest.mark.parametrize(
    ("network", "method", "message"),
    [
        (LOSSY, Gibbs(0.1), "colours take turns"),
        (LOSSY, HubSGLD(0.01), "a lost message would change the sum"),
        (LOSSY, DMAHMC(0.1), "its agents take a joint decision in every round"),
        (LOSSY, Importance(), "use a round-based method"),
        (LOSSY, ChEES(), "use a round-based method"),
        (LOSSY, GTDULA(0.01, 0.2, 0.1), "one constant number as both consensus_step and tracking_step"),
        (LOSSY, DADMMS(lambda k: 1.0 + k), "use constant steps"),
        (LINKS["one-way"], DADMMS(1.0), "both ends of an edge must receive their difference"),
        (LINKS["one-way"], DESGLD(0.01), "averages weight agents unequally"),
        (
            accord.Network.complete(AGENTS).links(loss=0.1),
            GTDULA(1e-4, 0.2, 0.2),
            "each agent needs a positive weight for itself",
        ),
        (SLOW, GTBAOAB(0.1, mix_rounds=2), "set mix_rounds=3 or more"),
        (SLOW, DADMMS(1.0), "no message arrives within a step"),
        (LOSSY, GTDULA(0.01, 0.45, 0.45), None),
        (accord.Network.star(AGENTS).links(loss=0.1), GTDULA(0.001, 0.3, 0.3), "no mixing weight may be negative"),
    ],
)
def test_methods_that_need_reliable_links_are_refused_with_the_reason(network, method, message):
    if message is None:
        accord.sample(unequal_curvature(1), network, accord.Rounds(method, burn_in=1), draws=1)
        return
    with pytest.raises(ValueError, match=message):
        accord.sample(unequal_curvature(1), network, method, draws=1)


def test_an_undeclared_conserved_sum_is_refused():
    class Undeclared(GTDULA):
        def needs(self, dim):
            return super().needs(dim)._replace(pushed=())

    method = accord.base.pytree.pytree(Undeclared)(0.01, 0.1, 0.1)
    with pytest.raises(ValueError, match="name no part of the message as pushed"):
        accord.sample(unequal_curvature(1), LOSSY, method, draws=1)


# --- the description ---


def test_a_directed_graph_is_a_network_with_one_way_links():
    graph = nx.DiGraph([("a", "b"), ("b", "c"), ("c", "a"), ("a", "c")])
    network = accord.Network.from_networkx(graph)
    assert network.labels == ("a", "b", "c")
    np.testing.assert_array_equal(network.unreliable.one_way, [[0, 1], [1, 2]])
    # rows are receivers
    np.testing.assert_array_equal(
        network.unreliable.arcs(network.adjacency).toarray(), [[0, 0, 1], [1, 0, 0], [1, 1, 0]]
    )


def test_omitted_arguments_keep_their_values():
    graph = nx.DiGraph([("a", "b"), ("b", "c"), ("c", "a")])
    network = accord.Network.from_networkx(graph).links(loss=0.2).links(delay=2)
    assert network.unreliable.loss == 0.2 and network.unreliable.delay == (0, 2)
    np.testing.assert_array_equal(network.unreliable.one_way, [[0, 1], [1, 2], [2, 0]])
    assert accord.Network.ring(3).links(schedule=[[(0, 1), (1, 2)]]).unreliable.table.tolist() == [[True, False, True]]
    named = accord.Network.from_networkx(nx.path_graph(["x", "y", "z"])).links(schedule=[[("x", "y")], [("z", "y")]])
    assert named.unreliable.table.tolist() == [[True, False], [False, True]]


def test_links_without_an_agent():
    both_ways = RING.links(loss=0.1)
    assert both_ways.without(2).unreliable.loss == 0.1
    with pytest.raises(ValueError, match="not strongly connected"):
        LINKS["one-way"].without(2)
    by_function = LINKS["by a function"].without(5)
    again = pickle.loads(pickle.dumps(RING.links(schedule=every_edge).without(5)))
    assert again.num_agents == 5 and again.unreliable.up_in(again.edges, 0).tolist() == [True] * 4
    # edges (0, 1), (1, 2), ..., in turns, without the edges of agent 5
    ups = np.stack([by_function.unreliable.up_in(by_function.edges, k) for k in range(2)])
    assert ups.shape == (2, 4) and (ups.sum(axis=0) == 1).all()


def every_edge(round):
    """A schedule with all edges up in every round."""
    return np.ones(AGENTS, bool)


def test_networks_with_different_links_differ():
    assert RING.links(loss=0.3) == RING.links(loss=0.3)
    assert len({RING, RING.links(), RING.links(loss=0.3), RING.links(loss=0.3, seed=1)}) == 4
    assert repr(RING.links(loss=0.3, delay=2, burst=3)) == (
        "<Network.ring(6).links(loss=0.3, burst=3, delay=2): 6 agents, 6 edges>"
    )


def test_a_message_includes_the_mass():
    sent = {}
    # one way each agent sends to one neighbour in place of two
    for network in (RING, LOSSY, LINKS["one-way"]):
        run = accord.sample(
            unequal_curvature(2), network, accord.Rounds(GTDULA(0.002, 0.1, 0.1), burn_in=0), draws=5, chains=1
        )
        sent[network] = run.traffic.bytes_sent[0] / (5 * 2)
    assert sent[LOSSY] - sent[RING] == 4  # one float
    assert sent[LINKS["one-way"]] == sent[LOSSY] / 2
