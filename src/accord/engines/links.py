"""The exchange of a round over links with loss, delay, changing edges or one direction only.

A method's `Needs` distinguish two kinds of content. *Pulled* values are averaged over the messages that arrive within
the step. The agent itself gets the weight of lost messages, so agents in consensus stay there under any loss.
*Pushed* values are conserved sums and count once, at any delay. A link sends the running sum of all its input, so the
next message to arrive includes all lost ones (Hadjicostis, Vaidya & Dominguez-Garcia 2016; Tian, Sun & Scutari 2020,
arXiv:1803.10359). Here a link stores the amount that it owes its receiver, the running sum minus the received sum,
without loss of digits. Pushed sums leave agents unevenly. Each agent therefore pushes a share of `mass` in the same
way (push-sum), and the method reads the pushed sum divided by the share.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from jaxtyping import Array, Bool, Float, Int, PyTree, UInt32

from ..base.pytree import pytree, static
from ..network import Network
from ..network.links import Schedule
from ..samplers.agent import Inbox
from ..samplers.protocol import Needs
from .collectives import Collectives, along, neighbour_sums
from .noise import Stream, at_links, seed_words, uniform

# Inverse of the grain of the mass, whose multiples up to 16 are exact in single precision.
_GRAIN = 2.0**20
# Smallest weight of an agent for itself.
_LEAST_KEPT = 1e-6


class Account(NamedTuple):
    """Amounts of conserved sums that links owe their receivers, arrays (agent, slot, ...)."""

    owed: PyTree
    # amounts sent in the last rounds, newest first, (agent, slot, delay, ...)
    recent: PyTree


class Held(NamedTuple):
    """The state of all links between two rounds.

    `mass` is each agent's share of a total mass of N, (agent, chain), None if nothing is pushed.
    """

    mass: Array | None
    account: Account


class Linked(NamedTuple):
    """The states of a method and of the links."""

    own: Any
    held: Held


class Step(NamedTuple):
    """The loop state over the exchanges of a step."""

    pulled: PyTree
    pushed: PyTree
    differences: PyTree
    account: Account
    # the neighbours' pulled values in this step's last exchanges, newest first, (agent, slot, delay, ...)
    earlier: PyTree


@pytree
class LinkedExchange:
    """The exchanges of one round over unreliable links, with one slot per neighbour of an agent.

    Counter-based random numbers select the messages that arrive.
    """

    # rows of the neighbours' messages
    senders: Int[Array, "agent slot"]
    # mixing weights, 0 for empty slots and for neighbours that do not send to this agent
    weights: Float[Array, "agent slot"]
    # the neighbours' weights for this agent's pushed values
    pushing: Float[Array, "agent slot"]
    edges: Int[Array, "agent slot"]
    # exchanges per step, an array so that all its values share one program
    exchanges: Int[Array, ""]
    table: Bool[Array, "round edge"] | None
    outage: Float[Array, ""]
    seed: UInt32[Array, 2]
    burst: int = static()
    schedule: Schedule | None = static()
    needs: Needs = static()
    delay: tuple[int, int] = static()

    def begin(self, messages: PyTree) -> Held:
        """The state of the links before round 0, given messages (agent, ..., chain)."""
        pulled, pushed = self._parts(messages)
        first = jax.tree.leaves(messages)[0]
        mass = jnp.ones((first.shape[0], first.shape[-1]), first.dtype) if pushed else None
        return Held(mass, self._opened(None if mass is None else (pushed, mass), self._differences(pulled)))

    def __call__(
        self, messages: PyTree, held: Held, index: Array, degree: Array, round: Array, collectives: Collectives
    ) -> tuple[Inbox, Held]:
        """All agents' inboxes and the state of the links after a round's exchanges."""
        pulled, pushed = self._parts(messages)
        differences = jax.tree.map(jnp.zeros_like, self._differences(pulled))
        sums = None if held.mass is None else (pushed, held.mass)
        step = Step(pulled, sums, differences, held.account, self._no_earlier(pulled))

        def exchange(k: Any, step: Step) -> Step:
            return self._exchange(step, index, round * self.exchanges + k, k, collectives)

        step = jax.lax.fori_loop(0, self.exchanges, exchange, step)
        mass, shares, parts = None, None, step.pulled
        if held.mass is not None:
            sums, mass = step.pushed
            parts, shares = parts | sums, (held.mass, mass)
        found = self._message(messages, parts)
        if self.needs.inbox == "neighbour_sum":
            # lost messages are replaced by the agent's own
            apart = jax.tree.map(jnp.subtract, messages, found)
            inbox = Inbox(summed=neighbour_sums(messages, apart, degree), apart=apart)
        else:
            inbox = Inbox(mixed=found)
        if self.needs.differences is not None:
            inbox = inbox._replace(differenced=self._message(messages, step.differences))
        return inbox._replace(shares=shares), Held(mass, step.account)

    def sent(self, messages: PyTree, held: Held) -> PyTree:
        """The arrays that an agent sends to one neighbour in an exchange, (agent, ..., chain).

        They are the message, the share of the mass, and the running sum of the differences.
        """
        return messages, held.mass, messages if self.needs.differences is not None else None

    def _counts(self, slot: Array) -> Array:
        """Whether a communication round accumulates differences."""
        assert self.needs.differences is not None
        return slot >= self.needs.differences * self.exchanges

    def _up(self, rounds: Int[Array, " age"]) -> Bool[Array, "age agent slot"]:
        """Whether the schedule has each link up, by round."""
        rounds = jnp.maximum(rounds, 0)
        if self.table is not None:
            return self.table[rounds % len(self.table)][:, self.edges]
        if self.schedule is not None:
            return jax.vmap(self.schedule)(rounds)[:, self.edges]
        return jnp.ones((rounds.size, *self.edges.shape), bool)

    def _parts(self, messages: PyTree) -> tuple[dict[str, PyTree], dict[str, PyTree]]:
        """The pulled and the pushed parts of messages by name."""
        parts = messages._asdict() if hasattr(messages, "_asdict") else {"": messages}
        if missing := set(self.needs.pushed) - set(parts):
            raise TypeError(
                f"needs() names {sorted(missing)} as pushed, but message() gives a {type(messages).__name__} without "
                "such fields"
            )
        pushed = {name: parts[name] for name in self.needs.pushed}
        return {name: part for name, part in parts.items() if name not in pushed}, pushed

    @staticmethod
    def _message(like: PyTree, parts: dict[str, PyTree]) -> PyTree:
        return type(like)(**parts) if hasattr(like, "_asdict") else parts[""]

    def _differences(self, pulled: dict[str, PyTree]) -> dict[str, PyTree] | None:
        """The parts with accumulated differences, or None."""
        return pulled if self.needs.differences is not None else None

    def _opened(self, pushed: PyTree, differences: PyTree) -> Account:
        """The account before round 0, for pushed values and for differences."""
        slots, sums = self.senders.shape[1], (pushed, differences)

        def nothing(leaf: Array, *more: int) -> Array:
            return jnp.zeros((leaf.shape[0], slots, *more, *leaf.shape[1:]), leaf.dtype)

        owed = jax.tree.map(nothing, sums)
        return Account(owed, jax.tree.map(lambda leaf: nothing(leaf, self.delay[1]), sums))

    def _no_earlier(self, pulled: PyTree) -> PyTree:
        """Zeros for the neighbours' earlier messages at the start of a step."""
        shape = self.senders.shape[1], self.delay[1]
        return jax.tree.map(lambda leaf: jnp.zeros((leaf.shape[0], *shape, *leaf.shape[1:]), leaf.dtype), pulled)

    def marked(self, held: Held) -> Held:
        """The state of the links with arrays of True for mass, and of False for content of the method."""
        nothing = jax.tree.map(lambda leaf: np.zeros(leaf.shape, bool), held)
        if held.mass is None:
            return nothing

        def marked(sums: PyTree) -> PyTree:
            (parts, mass), differences = sums
            return (parts, np.ones_like(mass)), differences

        owed, recent = nothing.account
        return Held(np.ones_like(nothing.mass), Account(marked(owed), marked(recent)))

    def _exchange(self, step: Step, index: Array, slot: Array, k: Array, collectives: Collectives) -> Step:
        """The k-th exchange of a step, in communication round `slot`."""
        arrived, newest, fresh = self._arrivals(index, slot)
        pulled, pushed = collectives.gathered(self.senders, (step.pulled, step.pushed))
        in_step = arrived & (newest <= k)

        def pull(own: Array, values: Array) -> Array:
            value = _at_age(values, newest)
            weight = along(self.weights * in_step, value)
            return own + jnp.sum(weight * (value - own[:, None]), axis=1)

        stacked = jax.tree.map(_newest_first, pulled, step.earlier)
        # links that the schedule has down get no input, as both ends know the schedule
        up = self._up(slot[None])[0]
        taken = self.weights * up
        given = _portions(taken, pushed), None
        if self.needs.differences is not None:
            counts = self._counts(slot)
            apart = jax.tree.map(lambda own, x: counts * along(taken, x) * (own[:, None] - x), step.pulled, pulled)
            given = given[0], apart
        account, came = self._settled(step.account, given, newest, fresh)
        pushed_sums, differences = jax.tree.map(lambda x: jnp.sum(x, axis=1), came)
        # subtract what was sent: multiplying by an own weight adds rounding errors that grow
        sent = _portions(self.pushing * up, jax.tree.map(lambda own: own[:, None], step.pushed))
        return Step(
            jax.tree.map(pull, step.pulled, stacked),
            jax.tree.map(lambda own, out, new: own - jnp.sum(out, axis=1) + new, step.pushed, sent, pushed_sums),
            jax.tree.map(jnp.add, step.differences, differences),
            account,
            jax.tree.map(lambda values: values[:, :, : self.delay[1]], stacked),
        )

    def _settled(self, account: Account, given: PyTree, newest: Array, fresh: Array) -> tuple[Account, PyTree]:
        """The accounts after new input and delivery by the newest message, and the delivered amounts."""
        sent = jax.tree.map(_newest_first, given, account.recent)
        # a message delivers all input up to its round
        since = jnp.arange(self.delay[1] + 1)[None, None] < newest[..., None]

        def due(owed: Array, now: Array, rounds: Array) -> Array:
            still = jnp.sum(along(since, rounds) * rounds, axis=2)
            return along(fresh, owed) * (owed + now - still)

        came = jax.tree.map(due, account.owed, given, sent)
        owed = jax.tree.map(lambda owed, now, came: owed + now - came, account.owed, given, came)
        return Account(owed, jax.tree.map(lambda rounds: rounds[:, :, : self.delay[1]], sent)), came

    def _arrivals(self, index: Array, slot: Array) -> tuple[Array, Array, Array]:
        """By agent and neighbour, whether a message arrives, its age, and whether no newer one arrived before."""
        low, high = self.delay
        ages = jnp.arange(high + self.burst)
        loss, wait = at_links(self.seed, slot - ages, Stream.LINK, index, self.senders)
        out = uniform(loss, self.outage.dtype) < self.outage
        # an outage lasts `burst` rounds, and no messages exist before round 0
        lost = jnp.stack([out[a : a + self.burst].any(axis=0) for a in range(high + 1)])
        rounds = slot - ages[: high + 1]
        lost |= ~self._up(rounds) | (rounds < 0)[:, None, None]
        # uniform delay from low to high
        late = low + (wait[: high + 1] % np.uint32(high - low + 1)).astype(jnp.int32)
        late = jnp.where(lost, high + 1, late)
        age = jnp.broadcast_to(ages[: high + 1, None, None], late.shape)
        comes = late == age
        newest = jnp.where(comes, age, high + 1).min(axis=0)
        # a message sent later arrived earlier
        overtaken = jnp.any((age < newest[None]) & (late < age), axis=0)
        arrived = newest <= high
        return arrived, newest, arrived & ~overtaken


def linked_exchange(
    network: Network, weights: sp.csr_array | None, needs: Needs, held: np.ndarray
) -> LinkedExchange | None:
    """The exchange over a network's unreliable links for the agents `held`, None if links are reliable."""
    links = network.unreliable
    if links is None:
        return None
    arcs = links.arcs(network.adjacency)
    sent = sp.csr_array((arcs if weights is None else weights).multiply(arcs)).tocsr()
    neighbours = [network.neighbors(int(i)) for i in held]
    slots = max(1, *map(len, neighbours))
    number = {tuple(edge): k for k, edge in enumerate(network.edges.tolist())}
    senders, edges = (np.zeros((len(held), slots), np.int32) for _ in range(2))
    weight, pushing = np.zeros((2, len(held), slots))
    for row, (i, others) in enumerate(zip(held.tolist(), neighbours, strict=True)):
        for slot, j in enumerate(others.tolist()):
            senders[row, slot], edges[row, slot] = j, number[min(i, j), max(i, j)]
            weight[row, slot], pushing[row, slot] = sent[i, j], sent[j, i]
    if weights is not None:
        kept = 1.0 - np.maximum(sent.sum(axis=0), sent.sum(axis=1))
        least = min(float(weight.min()), float(kept.min()))
        if weight.min() < 0 or kept.min() < _LEAST_KEPT:
            raise ValueError(
                "on unreliable links no mixing weight may be negative, and each agent needs a positive weight for "
                f"itself: use smaller weights, found down to {least:.6g}"
            )
    return LinkedExchange(
        senders=jax.device_put(senders),
        weights=jax.device_put(weight),
        pushing=jax.device_put(pushing),
        edges=jax.device_put(edges),
        exchanges=jax.device_put(np.int32(needs.exchanges)),
        table=None if links.table is None else jax.device_put(links.table),
        outage=jax.device_put(np.float64(links.outage)),
        seed=seed_words(links.seed),
        burst=links.burst,
        schedule=links.function,
        needs=needs._replace(exchanges=1),
        delay=links.delay,
    )


def _portions(weights: Float[Array, "agent slot"], pushed: Any) -> Any:
    """The links' input from pushed parts and mass, arrays (agent, slot or 1, ...).

    Portions of the mass are multiples of 2^-20, so that single precision adds them without rounding. A drift of the
    total mass would change the temperature of all draws.
    """
    if pushed is None:
        return None
    parts, mass = pushed
    exact = jnp.floor(along(weights, mass) * mass * _GRAIN) / _GRAIN
    return jax.tree.map(lambda part: along(weights, part) * part, parts), exact


def _newest_first(now: Array, before: Array) -> Array:
    """Present values followed by earlier ones, along the axis after the slots."""
    return jnp.concatenate([now[:, :, None], before], axis=2)


def _at_age(values: Float[Array, "agent slot delay ..."], age: Int[Array, "agent slot"]) -> Array:
    """Values of a given age, from values ordered newest first."""
    if values.shape[2] == 1:
        return values[:, :, 0]
    place = along(jnp.minimum(age, values.shape[2] - 1)[..., None], values)
    return jnp.take_along_axis(values, place, axis=2)[:, :, 0]
