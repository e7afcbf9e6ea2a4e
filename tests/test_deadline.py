"""Messages that are waited for until a deadline only: what is conserved, what is drawn, what is told, and refusals."""

import itertools
import pickle
import random
from collections import defaultdict

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tables import AGENTS, LINKS, OVER_LINKS, unequal_curvature, walk

import accord
from accord.base.pytree import pytree
from accord.engines.build import build_problem
from accord.engines.collectives import Collectives
from accord.engines.links import linked_exchange
from accord.engines.local import LocalEngine
from accord.engines.silo.collectives import SiloCollectives
from accord.engines.silo.deadline import Sum, deadline_exchange
from accord.engines.silo.losses import Losses, Tally
from accord.samplers import GTBAOAB, Gibbs, Importance
from accord.samplers.validation import bind

QUICK = [("lossy", "GTBAOAB"), ("late", "GTDULA"), ("late", "DADMMS"), ("changing", "EXTRASGLD")]
# Differences need both directions of an edge, and averages of gradients that are not tracked.
TWO_WAY = ("DESGLD", "DADMMS", "EXTRASGLD")

# --- the exchange by itself ---


class Post:
    """What carries letters between agents: it loses, delays, repeats and reorders them."""

    def __init__(self, network, loss=0.2, most_late=4, twice=0.2, seed=0):
        self.random, self.loss, self.most_late, self.twice = random.Random(seed), loss, most_late, twice
        neighbours = [network.neighbors(i).tolist() for i in range(network.num_agents)]
        # the place of each letter at its sender, by the place at its receiver
        self.places = {
            (i, slot): (j, neighbours[j].index(i)) for i, own in enumerate(neighbours) for slot, j in enumerate(own)
        }
        self.waiting = {place: [] for place in self.places}
        self.carried = 0

    def swap_in_time(self, round, number, tells, hears, *leaves):
        number, tells = int(number), np.asarray(tells)
        leaves = [np.asarray(leaf) for leaf in leaves]
        found, numbers = [np.zeros_like(leaf) for leaf in leaves], np.full(tells.shape, -1, np.int32)
        for to, sender in self.places.items():
            if tells[sender] and self.random.random() >= self.loss:
                for _ in range(1 + (self.random.random() < self.twice)):
                    letter = [leaf[sender].copy() for leaf in leaves]
                    self.waiting[to].append((number + self.random.randint(0, self.most_late), number, letter))
            due = [one for one in self.waiting[to] if one[0] <= number]
            if due:
                # any of them, also one that a newer one has overtaken; the others are lost
                _, numbers[to], letter = self.random.choice(due)
                self.waiting[to] = [one for one in self.waiting[to] if one[0] > number]
                self.carried += 1
                for leaf, part in zip(found, letter, strict=True):
                    leaf[to] = part
        return [*found, numbers]


class AsDrawn(Post):
    """It delivers what the network's links, drawn from counters, would."""

    def __init__(self, network, arrivals):
        super().__init__(network)
        self.arrivals, self.letters = arrivals, []

    def swap_in_time(self, round, number, tells, hears, *leaves):
        number, leaves = int(number), [np.asarray(leaf).copy() for leaf in leaves]
        comes, age, _ = (each[number] for each in self.arrivals)
        self.letters.append(leaves)
        found, numbers = [np.zeros_like(leaf) for leaf in leaves], np.full(comes.shape, -1, np.int32)
        for to, sender in self.places.items():
            if comes[to]:
                numbers[to] = number - age[to]
                for leaf, sent in zip(found, self.letters[number - age[to]], strict=True):
                    leaf[to] = sent[sender]
        return [*found, numbers]


class Forgetful(Post):
    """The same where letters bring what was given in their exchange, and not what was lost before."""

    before, brought = 0, 0

    def swap_in_time(self, round, number, tells, hears, position, *sums):
        sums = [np.asarray(leaf).copy() for leaf in sums]
        given = [now - old for now, old in zip(sums, self.before or [0] * len(sums), strict=True)]
        self.before = sums
        pulled, *found, numbers = super().swap_in_time(round, number, tells, hears, position, *given)
        self.brought = [new + old for new, old in zip(found, self.brought or [0] * len(sums), strict=True)]
        return [pulled, *(leaf.copy() for leaf in self.brought), numbers]


@pytree
class Posted(SiloCollectives):
    """All agents on one device, whose letters are posted in place of sent by a communicator."""

    total = Collectives.total


def posted(post):
    """An engine of all agents on one device, whose letters this carries."""

    class PostedEngine(LocalEngine):
        def _problem(self, posterior, network, seed):
            return build_problem(
                posterior, network, self.bound, seed, collectives=Posted(communicator=post), linked=deadline_exchange
            )

    return PostedEngine


def begun(network, method, post, dim=2):
    posterior = unequal_curvature(dim)
    made = posted(post)(posterior, network, bind(posterior, network, method), chains=2, seed=3, keep=np.arange(AGENTS))
    return made, made.start(np.ones((AGENTS, dim)), None)


def in_flight(post, ledger):
    """Of the trackers and the mass what was sent and not heard yet; the mass in grains."""
    sent, heard = (sums.pushed["tracker"] for sums in (ledger.sent, ledger.heard))
    parts, mass = 0.0, 0
    for to, sender in post.places.items():
        parts = parts + (sent.high[sender] - heard.high[to]) + (sent.low[sender] - heard.low[to])
        mass = mass + (ledger.sent.mass[sender] - ledger.heard.mass[to]).astype(np.int32)
    return parts, mass


@pytest.mark.parametrize("name", ["lossy", "one-way", "by a function"])
@pytest.mark.parametrize("method", ["GTDULA", "GTBAOAB"])
@pytest.mark.long_from(2)
def test_what_is_pushed_is_conserved_with_what_is_in_flight(name, method):
    network = LINKS[name]
    with jax.enable_x64(True):
        post = Post(network)
        made, carry = begun(network, OVER_LINKS[method](), post)
        carry = made.advance(carry, 57)
        own, held = jax.tree.map(np.asarray, carry.state)
        flying, mass = in_flight(post, held.account)
        total = own.gradient.sum(axis=0)
        np.testing.assert_allclose(own.tracker.sum(axis=0) + flying, total, rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(held.mass.sum(axis=0) + mass / 2.0**20, AGENTS)
        assert post.carried > 57 and np.abs(flying).max() > 1e-3 and mass.min() > 0


def test_letters_without_running_sums_lose_what_is_pushed():
    """What running sums are for: the check above finds what is lost without them."""
    network = LINKS["lossy"]
    with jax.enable_x64(True):
        for carrier, right in ((Post, True), (Forgetful, False)):
            # nothing is late or comes twice: that would be lost too
            post = carrier(network, most_late=0, twice=0.0)
            made, carry = begun(network, OVER_LINKS["GTDULA"](), post)
            own, held = jax.tree.map(np.asarray, made.advance(carry, 57).state)
            # the others' sums are not of what was sent; at most one portion is on its way there
            flying = in_flight(post, held.account)[0] if right else 0.0
            off = np.abs(own.tracker.sum(axis=0) + flying - own.gradient.sum(axis=0)).max()
            assert off < 1e-12 if right else off > 1.0, (carrier, off)


def drawn_arrivals(network, needs, rounds):
    """For each exchange, receiver and neighbour what links drawn from counters deliver."""
    links = linked_exchange(network, network.weights("metropolis"), needs, np.arange(AGENTS))
    index = jnp.arange(AGENTS, dtype=jnp.uint32)
    found = jax.lax.map(lambda slot: links._arrivals(index, slot), jnp.arange(rounds * needs.exchanges))
    return [np.asarray(each) for each in found]


# Drawn links average within a step also over a message that another has overtaken, which no connection delivers.
CASES = [
    pytest.param(name, method, marks=() if (name, method) in QUICK else pytest.mark.slow)
    for name, method in itertools.product(LINKS, OVER_LINKS)
    if (name != "one-way" or method not in TWO_WAY) and (name, method) != ("late", "GTBAOAB")
]


@pytest.mark.long
@pytest.mark.parametrize(("name", "method"), CASES)
def test_where_the_same_is_lost_the_draws_are_those_of_drawn_losses(name, method):
    network, sampler, rounds = LINKS[name], OVER_LINKS[method](), 40
    with jax.enable_x64(True):
        post = AsDrawn(network, drawn_arrivals(network, sampler.needs(2), rounds))
        options = {"draws": rounds - 10, "burn_in": 10, "chains": 2, "seed": 5, "init": np.ones(2)}
        found, expected = (
            walk(unequal_curvature(2), network, sampler, engine=engine, **options) for engine in (posted(post), "local")
        )
    np.testing.assert_allclose(found.draws, expected.draws, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(("method", "memory", "gain"), [("DADMMS", "dual", 0.7), ("EXTRASGLD", "correction", 10 / 3)])
def test_differences_count_once_however_late(method, memory, gain):
    network = LINKS["late"]
    with jax.enable_x64(True):
        post = Post(network)
        made, carry = begun(network, OVER_LINKS[method](), post)
        own, held = jax.tree.map(np.asarray, made.advance(carry, 57).state)
        values, (counted,) = jax.tree.leaves(held.account.sent.values), jax.tree.leaves(held.account.counted)
        total, weights = sum(values), np.asarray(made.problem.links.weights)
        due = sum(weights[to] * (total[to] - total[sender] - counted[to]) for to, sender in post.places.items())
        remembered = getattr(own, memory).sum(axis=0)
        np.testing.assert_allclose(remembered + gain * network.unreliable.caution * due, 0.0, atol=1e-9)
        assert np.abs(remembered).max() > 1e-3


# --- numbers that grow for as long as a run takes ---


def test_a_running_sum_loses_nothing_to_rounding():
    x = np.random.default_rng(0).uniform(50.0, 150.0, 200_000).astype(np.float32)
    begun = Sum(jnp.float32(0.0), jnp.float32(0.0))
    halfway = jax.lax.fori_loop(0, 199_000, lambda k, s: s.grown(jnp.asarray(x)[k]), begun)
    whole = jax.lax.fori_loop(199_000, 200_000, lambda k, s: s.grown(jnp.asarray(x)[k]), halfway)
    grew = x[199_000:].astype(float).sum()
    assert abs(float(whole.since(halfway)) - grew) < 1e-6 * grew
    # in one number it does
    naive = [np.cumsum(x, dtype=np.float32)[k] for k in (198_999, 199_999)]
    assert abs(float(naive[1]) - float(naive[0]) - grew) > 1e-4 * grew


def test_the_mass_is_exact_when_its_running_sums_go_round():
    network = LINKS["lossy"]
    post = Post(network)
    made, carry = begun(network, OVER_LINKS["GTDULA"](), post)
    held = carry.state.held
    nearly = jax.tree.map(lambda mass: mass + jnp.uint32(2**32 - 2**19), held.account.sent.mass)
    account = held.account._replace(
        sent=held.account.sent._replace(mass=nearly), heard=held.account.heard._replace(mass=nearly)
    )
    carry = carry._replace(state=carry.state._replace(held=held._replace(account=account)))
    own, held = jax.tree.map(np.asarray, made.advance(carry, 400).state)
    # they have gone round, in single precision
    assert held.account.sent.mass.max() < 2**31 and held.mass.dtype == np.float32
    np.testing.assert_array_equal(held.mass.sum(axis=0) + in_flight(post, held.account)[1] / 2.0**20, AGENTS)


# --- what is met ---


def counted(came, patience=0):
    """Due, missed, outages and the longest of messages that came so many exchanges late, None for never."""
    tally, heard = Tally(patience), defaultdict(list)
    for one, late in enumerate(came):
        if late is not None:
            heard[one + late].append(one)
    for number in range(len(came) + 30):
        tally.after(number, number < len(came), heard[number])
    return list(tally.taken())


@pytest.mark.parametrize(
    ("came", "patience", "expected"),
    [
        ([0, 0, 0], 0, [3, 0, 0, 0]),
        ([0, 1, 0, None, None, 0], 0, [6, 3, 2, 2]),
        ([0, 1, 0, None, None, 0], 1, [6, 2, 1, 2]),
        ([2, 1, 0, 3], 2, [4, 1, 1, 1]),
        ([None] * 5, 0, [5, 5, 1, 5]),
    ],
)
def test_messages_are_counted_by_when_they_came(came, patience, expected):
    assert counted(came, patience) == expected


def met(network, lost):
    """Losses of a network whose agent 0 missed these of the messages from its first neighbour, the others none."""
    losses = Losses(network)
    everyone = [np.array([[len(lost), 0, 0, 0]] * len(network.neighbors(agent))) for agent in range(network.num_agents)]
    everyone[0][0] = counted([None if one else 0 for one in lost])
    losses.add(everyone)
    return losses


def test_more_loss_than_was_declared_is_told_and_no_less():
    rng = np.random.default_rng(0)
    network = accord.Network.ring(4).links(loss=0.1)
    more = met(network, rng.random(5000) < 0.2)
    assert "from agent 1 to agent 0: " in more.warning() and "on 1 of 8 links" in more.warning()
    told = more.told()
    assert told["worst_link"] == [1, 0] and told["declared"] == 0.1
    assert 0.18 < told["worst"] < 0.22 and abs(told["mean"] - told["worst"] / 8) < 1e-12
    # by chance, and where nothing is lost, or a single message of links that should lose none
    for loss in (0.1, 0.08, 0.0):
        assert all(met(network, rng.random(1000) < loss).warning() is None for _ in range(5))
    assert met(accord.Network.ring(4).links(), np.arange(1000) == 500).warning() is None
    assert met(accord.Network.ring(4).links(), np.arange(1000) % 10 == 0).warning() is not None


def test_few_long_outages_are_less_certain_than_as_many_lost_by_chance():
    network = accord.Network.ring(4).links(loss=0.1)
    one = np.zeros(2000, bool)
    one[500:800] = True
    assert "more often" not in met(network, one).warning()
    assert "more often" in met(network, np.random.default_rng(0).permutation(one)).warning()


@pytest.mark.long
@pytest.mark.parametrize(
    ("loss", "burst"),
    [(0.1, 1), *(pytest.param(*rest, marks=pytest.mark.slow) for rest in [(0.0, 1), (0.6, 1), (0.1, 20)])],
)
def test_an_outage_beyond_what_was_declared_is_told_whatever_the_share(loss, burst):
    network, rng = accord.Network.ring(4).links(loss=loss, burst=burst), np.random.default_rng(1)
    begins = rng.random((200, 5000)) < 1.0 - (1.0 - loss) ** (1.0 / burst)
    lost = np.stack([np.roll(begins, k, axis=1) for k in range(burst)]).any(axis=0)
    # what was declared is silent
    assert not any("in a row" in (met(network, one).warning() or "") for one in lost)
    one = np.zeros(5000, bool)
    one[:200] = True
    found = met(network, one)
    assert "200 messages in a row came too late, or not at all, from agent 1 to agent 0" in found.warning()
    assert found.told()["longest_outage"] == 200


# --- refusals ---


@pytest.mark.parametrize("method", [GTBAOAB(0.1, mix_rounds=2), Importance(), None])
def test_a_deadline_needs_links_that_may_lose(method):
    with pytest.raises(ValueError, match=r"deadline=0.1 goes on without .*ring\(6\) has links that deliver all.*loss="):
        accord.sample(unequal_curvature(1), accord.Network.ring(AGENTS), method, engine=accord.Silo(deadline=0.1))


@pytest.mark.parametrize("deadline", [0.0, -1.0, float("nan"), float("inf")])
def test_a_deadline_is_a_time(deadline):
    with pytest.raises(ValueError, match="deadline must be a finite number > 0, found"):
        accord.Silo(deadline=deadline)
    assert pickle.loads(pickle.dumps(accord.Silo(deadline=0.5))).deadline == 0.5


def test_methods_that_need_every_message_are_refused_as_on_all_such_links():
    network = accord.Network.ring(AGENTS).links(loss=0.1)
    with pytest.raises(ValueError, match="colours take turns"):
        accord.sample(unequal_curvature(1), network, Gibbs(0.1), engine=accord.Silo(deadline=0.1))
