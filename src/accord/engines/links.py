"""The exchange of a round over links that lose, delay, change or carry one way: what arrives, and what is still owed.

Two kinds of content travel, as a method's `Needs` say. What is *pulled* is averaged over what arrives within the step,
the agent itself taking the weight of what does not: agents that agree stay where they are, whatever is lost. What is
*conserved* must count once however late: a link sends the running sum of all that it was ever given, so that the next
message that arrives brings everything that was lost before it (Hadjicostis, Vaidya & Dominguez-Garcia 2016; Tian, Sun
& Scutari 2020, arXiv:1803.10359). Here a link holds what it still owes its receiver, which is that running sum less
what was heard, and keeps all digits of it. Sums that are pushed so leave an agent unevenly; the agent's share of
`mass`, pushed in the same way, says how much (push-sum), and the method reads the sum divided by it.
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

# Multiples of its inverse are exact in single precision up to 16.
_GRAIN = 2.0**20
# The least weight that an agent may have for itself.
_LEAST_KEPT = 1e-6


class Account(NamedTuple):
    """What links owe their receivers of sums that must not be lost, arrays (agent, slot, ...)."""

    owed: PyTree
    # what was sent in the last rounds, newest first, (agent, slot, delay, ...)
    recent: PyTree


class Held(NamedTuple):
    """What the links of all agents hold between two rounds.

    `mass` is each agent's share of a mass that is N in all, (agent, chain); None where nothing is pushed.
    """

    mass: Array | None
    account: Account


class Linked(NamedTuple):
    """The states of a method, and what the links hold."""

    own: Any
    held: Held


class Step(NamedTuple):
    """What changes from one exchange of a step to the next."""

    pulled: PyTree
    pushed: PyTree
    differences: PyTree
    account: Account
    # the neighbours' pulled values of this step's last exchanges, newest first, (agent, slot, delay, ...)
    earlier: PyTree


@pytree
class LinkedExchange:
    """The exchanges of one round over unreliable links; slots number the neighbours of an agent.

    Which messages arrive is drawn from counters.
    """

    # rows of the neighbours' messages; where a slot stands for no neighbour, or for one that is not heard, weight 0
    senders: Int[Array, "agent slot"]
    weights: Float[Array, "agent slot"]
    # the weights by which the neighbours take what this agent pushes
    pushing: Float[Array, "agent slot"]
    edges: Int[Array, "agent slot"]
    # exchanges of a step: a number, so that plans of many compile to one program
    exchanges: Int[Array, ""]
    table: Bool[Array, "round edge"] | None
    outage: Float[Array, ""]
    seed: UInt32[Array, 2]
    burst: int = static()
    schedule: Schedule | None = static()
    needs: Needs = static()
    delay: tuple[int, int] = static()

    def begin(self, messages: PyTree) -> Held:
        """What the links hold before round 0, given the shapes of messages, (agent, ..., chain)."""
        pulled, pushed = self._parts(messages)
        first = jax.tree.leaves(messages)[0]
        mass = jnp.ones((first.shape[0], first.shape[-1]), first.dtype) if pushed else None
        return Held(mass, self._opened(None if mass is None else (pushed, mass), self._differences(pulled)))

    def __call__(
        self, messages: PyTree, held: Held, index: Array, degree: Array, round: Array, collectives: Collectives
    ) -> tuple[Inbox, Held]:
        """Every agent's inbox after a round's exchanges, and what the links hold then."""
        pulled, pushed = self._parts(messages)
        differences = jax.tree.map(jnp.zeros_like, self._differences(pulled))
        sums = None if held.mass is None else (pushed, held.mass)
        step = Step(pulled, sums, differences, held.account, self._unheard(pulled))

        def exchange(k: Any, step: Step) -> Step:
            return self._exchange(step, index, round * self.exchanges + k, k, collectives)

        step = jax.lax.fori_loop(0, self.exchanges, exchange, step)
        mass, shares, parts = None, None, step.pulled
        if held.mass is not None:
            sums, mass = step.pushed
            parts, shares = parts | sums, (held.mass, mass)
        found = self._message(messages, parts)
        if self.needs.inbox == "neighbour_sum":
            # what did not arrive counts as the agent's own
            apart = jax.tree.map(jnp.subtract, messages, found)
            inbox = Inbox(summed=neighbour_sums(messages, apart, degree), apart=apart)
        else:
            inbox = Inbox(mixed=found)
        if self.needs.differences is not None:
            inbox = inbox._replace(differenced=self._message(messages, step.differences))
        return inbox._replace(shares=shares), Held(mass, step.account)

    def sent(self, messages: PyTree, held: Held) -> PyTree:
        """The arrays that an agent sends to one neighbour in an exchange, (agent, ..., chain).

        They are the message, the share of the mass, and the running sum of what differences are counted of.
        """
        return messages, held.mass, messages if self.needs.differences is not None else None

    def _counts(self, slot: Array) -> Array:
        """Whether differences count in a communication round."""
        assert self.needs.differences is not None
        return slot >= self.needs.differences * self.exchanges

    def _up(self, rounds: Int[Array, " age"]) -> Bool[Array, "age agent slot"]:
        """Which links the schedule lets carry messages in some rounds."""
        rounds = jnp.maximum(rounds, 0)
        if self.table is not None:
            return self.table[rounds % len(self.table)][:, self.edges]
        if self.schedule is not None:
            return jax.vmap(self.schedule)(rounds)[:, self.edges]
        return jnp.ones((rounds.size, *self.edges.shape), bool)

    def _parts(self, messages: PyTree) -> tuple[dict[str, PyTree], dict[str, PyTree]]:
        """The parts of messages by name, those that are pulled and those that are pushed."""
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
        """Of what differences are counted, if they are."""
        return pulled if self.needs.differences is not None else None

    def _opened(self, pushed: PyTree, differences: PyTree) -> Account:
        """The account before round 0, for what is pushed, and for that of which differences are counted."""
        slots, sums = self.senders.shape[1], (pushed, differences)

        def nothing(leaf: Array, *more: int) -> Array:
            return jnp.zeros((leaf.shape[0], slots, *more, *leaf.shape[1:]), leaf.dtype)

        owed = jax.tree.map(nothing, sums)
        return Account(owed, jax.tree.map(lambda leaf: nothing(leaf, self.delay[1]), sums))

    def _unheard(self, pulled: PyTree) -> PyTree:
        """The neighbours' earlier messages of a step that has none yet."""
        shape = self.senders.shape[1], self.delay[1]
        return jax.tree.map(lambda leaf: jnp.zeros((leaf.shape[0], *shape, *leaf.shape[1:]), leaf.dtype), pulled)

    def marked(self, held: Held) -> Held:
        """What the links hold, with arrays of True where it is mass, which is a number of the links alone."""
        nothing = jax.tree.map(lambda leaf: np.zeros(leaf.shape, bool), held)
        if held.mass is None:
            return nothing

        def marked(sums: PyTree) -> PyTree:
            (parts, mass), differences = sums
            return (parts, np.ones_like(mass)), differences

        owed, recent = nothing.account
        return Held(np.ones_like(nothing.mass), Account(marked(owed), marked(recent)))

    def _exchange(self, step: Step, index: Array, slot: Array, k: Array, collectives: Collectives) -> Step:
        """One exchange, the k-th of its step, in a communication round."""
        arrived, newest, fresh = self._arrivals(index, slot)
        pulled, pushed = collectives.gathered(self.senders, (step.pulled, step.pushed))
        in_step = arrived & (newest <= k)

        def pull(own: Array, values: Array) -> Array:
            value = _at_age(values, newest)
            weight = along(self.weights * in_step, value)
            return own + jnp.sum(weight * (value - own[:, None]), axis=1)

        stacked = jax.tree.map(_newest_first, pulled, step.earlier)
        # one sum a link and kind of content: what it was given now, and how much of what it owes comes now
        # nothing is given to an edge that the schedule has down, which both of its ends know
        up = self._up(slot[None])[0]
        taken = self.weights * up
        given = _portions(taken, pushed), None
        if self.needs.differences is not None:
            counts = self._counts(slot)
            apart = jax.tree.map(lambda own, x: counts * along(taken, x) * (own[:, None] - x), step.pulled, pulled)
            given = given[0], apart
        account, came = self._settled(step.account, given, newest, fresh)
        pushed_sums, differences = jax.tree.map(lambda x: jnp.sum(x, axis=1), came)
        # what stays is what was not given: by a weight of its own it would grow or shrink by rounding
        sent = _portions(self.pushing * up, jax.tree.map(lambda own: own[:, None], step.pushed))
        return Step(
            jax.tree.map(pull, step.pulled, stacked),
            jax.tree.map(lambda own, out, new: own - jnp.sum(out, axis=1) + new, step.pushed, sent, pushed_sums),
            jax.tree.map(jnp.add, step.differences, differences),
            account,
            jax.tree.map(lambda values: values[:, :, : self.delay[1]], stacked),
        )

    def _settled(self, account: Account, given: PyTree, newest: Array, fresh: Array) -> tuple[Account, PyTree]:
        """The accounts after a link was given some more and delivered what its newest message brings, and that."""
        sent = jax.tree.map(_newest_first, given, account.recent)
        # a message brings what was sent until it left
        since = jnp.arange(self.delay[1] + 1)[None, None] < newest[..., None]

        def due(owed: Array, now: Array, rounds: Array) -> Array:
            still = jnp.sum(along(since, rounds) * rounds, axis=2)
            return along(fresh, owed) * (owed + now - still)

        came = jax.tree.map(due, account.owed, given, sent)
        owed = jax.tree.map(lambda owed, now, came: owed + now - came, account.owed, given, came)
        return Account(owed, jax.tree.map(lambda rounds: rounds[:, :, : self.delay[1]], sent)), came

    def _arrivals(self, index: Array, slot: Array) -> tuple[Array, Array, Array]:
        """Of each agent and neighbour: whether a message comes now, how late the newest is, and if it is news."""
        low, high = self.delay
        ages = jnp.arange(high + self.burst)
        loss, wait = at_links(self.seed, slot - ages, Stream.LINK, index, self.senders)
        out = uniform(loss, self.outage.dtype) < self.outage
        # an outage lasts so many rounds; before round 0 there was nothing to send
        lost = jnp.stack([out[a : a + self.burst].any(axis=0) for a in range(high + 1)])
        rounds = slot - ages[: high + 1]
        lost |= ~self._up(rounds) | (rounds < 0)[:, None, None]
        # the share of the delay's range that the word stands for
        late = low + (wait[: high + 1] % np.uint32(high - low + 1)).astype(jnp.int32)
        late = jnp.where(lost, high + 1, late)
        age = jnp.broadcast_to(ages[: high + 1, None, None], late.shape)
        comes = late == age
        newest = jnp.where(comes, age, high + 1).min(axis=0)
        # one that was sent later came before
        overtaken = jnp.any((age < newest[None]) & (late < age), axis=0)
        arrived = newest <= high
        return arrived, newest, arrived & ~overtaken


def linked_exchange(
    network: Network, weights: sp.csr_array | None, needs: Needs, held: np.ndarray
) -> LinkedExchange | None:
    """The exchange of a network whose links are unreliable, for the agents held; None where they are reliable."""
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
                "on unreliable links no mixing weight may be negative, and an agent must keep some of its own: take "
                f"smaller weights, found down to {least:.6g}"
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
    """What links are given of what is pushed, parts and mass, arrays (agent, slot or 1, ...).

    Portions of the mass are multiples of 2^-20, so that single precision adds them without rounding: a mass that drifts
    would heat or cool all draws in the end, which a sum about zero does not.
    """
    if pushed is None:
        return None
    parts, mass = pushed
    exact = jnp.floor(along(weights, mass) * mass * _GRAIN) / _GRAIN
    return jax.tree.map(lambda part: along(weights, part) * part, parts), exact


def _newest_first(now: Array, before: Array) -> Array:
    """Values of now before earlier ones, along the axis after the slots."""
    return jnp.concatenate([now[:, :, None], before], axis=2)


def _at_age(values: Float[Array, "agent slot delay ..."], age: Int[Array, "agent slot"]) -> Array:
    """Of values newest first those of an age."""
    if values.shape[2] == 1:
        return values[:, :, 0]
    place = along(jnp.minimum(age, values.shape[2] - 1)[..., None], values)
    return jnp.take_along_axis(values, place, axis=2)[:, :, 0]
