"""The exchange of a round whose messages are waited for until a deadline only: what did not come is as if lost.

Here nobody knows what a neighbour has heard. So every message is numbered by its exchange and carries the running sums
of all that its sender ever gave this link, and who hears it takes what they grew by since the newest that it heard:
whatever was lost before comes with the next message, and one that comes again or was overtaken brings nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from jaxtyping import Array, Bool, Int, PyTree, UInt32

from ...base.pytree import pytree
from ...network import Network
from ...samplers.protocol import Needs
from ..collectives import along
from ..links import GRAIN, Held, Step, UnreliableExchange, at_age, by_slots, newest_first, portions


class Sum(NamedTuple):
    """A running sum as two numbers: what rounding took from the first is in the second.

    Positions are added up for as long as a run takes, and what is read is how much a sum grew.
    """

    high: Array
    low: Array

    def grown(self, x: Array) -> Sum:
        """The sum with some more (Knuth's two-sum, made normal)."""
        high = self.high + x
        added = high - self.high
        low = self.low + ((self.high - (high - added)) + (x - added))
        total = high + low
        return Sum(total, low - (total - high))

    def since(self, before: Sum) -> Array:
        """By how much it is more than another one."""
        return (self.high - before.high) + (self.low - before.low)


class Sums(NamedTuple):
    """The running sums of a link, arrays (agent, slot, ..., chain); None where a method has none.

    The mass is counted in grains of 2^-20, and its sum goes round: what it grew by is exact however long a run is.
    """

    pushed: PyTree
    mass: UInt32[Array, "agent slot chain"] | None
    # of what is pulled, where differences are counted
    values: PyTree


class Letter(NamedTuple):
    """A message to each neighbour, arrays (agent, slot, ..., chain)."""

    pulled: PyTree
    sums: Sums


class Ledger(NamedTuple):
    """What links were given and what was heard of them, (agent, slot, ...)."""

    sent: Sums
    # without those of values, which are compared with the agent's own
    heard: Sums
    # the number of the newest message heard, -1 before the first
    newest: Int[Array, "agent slot"]
    # the agent's own running sums after the last exchanges, newest first, (agent, slot, delay, ...)
    earlier: PyTree
    # differences counted so far, without their weights
    counted: PyTree


@pytree
class DeadlineExchange(UnreliableExchange):
    """The exchange of one round with neighbours whose messages may not come in time.

    What is pulled is averaged over those neighbours of whom a message of the same step has come; the agent itself takes
    the weight of the others. An agent that is behind finds its neighbours' messages waiting and takes those of its own
    exchange; one that is ahead does without those who are behind. So values of different steps are never averaged: they
    would differ by the noise that all agents share in a step, part of which would count twice. Sums count whenever
    they come, and differences up to as many exchanges late as the network's `delay` says.
    """

    def sent(self, messages: PyTree, held: Held) -> PyTree:
        """The pulled parts, and the running sums of one link."""
        one = jax.tree.map(lambda leaf: leaf[:, :1], held.account.sent)
        return self._parts(messages)[0], one

    def _opened(self, pushed: PyTree, differences: PyTree) -> Ledger:
        slots = self.senders.shape[1]

        def nothing(leaf: Array) -> Sum:
            zero = jnp.zeros((leaf.shape[0], slots, *leaf.shape[1:]), leaf.dtype)
            return Sum(zero, zero)

        parts, mass = (None, None) if pushed is None else pushed
        grains = None if mass is None else jnp.zeros((mass.shape[0], slots, mass.shape[1]), jnp.uint32)
        values = jax.tree.map(nothing, differences)
        sums = Sums(jax.tree.map(nothing, parts), grains, values)
        late = self.delay[1]
        earlier = jax.tree.map(lambda leaf: jnp.repeat(leaf[:, :, None], late, axis=2), values)
        counted = _each(lambda value: value.high, values)
        return Ledger(sums, sums._replace(values=None), jnp.full(self.senders.shape, -1, jnp.int32), earlier, counted)

    def _exchange(self, step: Step, index: Array, slot: Array, k: Array, collectives: Any) -> Step:
        ledger: Ledger = step.account
        up = self._up(slot[None])[0]
        given = portions(self.pushing * up, jax.tree.map(lambda own: own[:, None], step.pushed))
        sent = self._given(ledger.sent, given, step.pulled, up, slot)
        pulled = jax.tree.map(lambda own: jnp.repeat(own[:, None], up.shape[1], axis=1), step.pulled)
        tells, hears = up & (self.pushing > 0), up & (self.weights > 0)
        letter, number = collectives.delivered(slot, tells, hears, Letter(pulled, sent))
        # one that was sent later may have come before
        fresh = number > ledger.newest
        in_step = fresh & (slot - number <= k)

        def pull(own: Array, value: Array) -> Array:
            return own + jnp.sum(along(self.weights * in_step, value) * (value - own[:, None]), axis=1)

        news = letter.sums._replace(values=None)
        heard = jax.tree.map(lambda new, old: jnp.where(along(fresh, new), new, old), news, ledger.heard)
        earlier, counted, differences = self._compared(ledger, sent.values, letter.sums.values, slot - number, fresh)
        return Step(
            jax.tree.map(pull, step.pulled, letter.pulled),
            self._handed_on(step.pushed, given, heard, ledger.heard),
            jax.tree.map(jnp.add, step.differences, differences),
            Ledger(sent, heard, jnp.maximum(number, ledger.newest), earlier, counted),
            None,
        )

    def _given(self, sums: Sums, given: PyTree, pulled: PyTree, up: Bool[Array, "agent slot"], slot: Array) -> Sums:
        """The running sums with what the links are given now."""
        pushed, mass, values = sums
        if given is not None:
            parts, share = given
            pushed = _each(Sum.grown, pushed, parts)
            mass = mass + (share * GRAIN).astype(jnp.uint32)
        if self.needs.differences is not None:
            counts = up & self._counts(slot)
            values = _each(lambda value, own: value.grown(along(counts, own[:, None]) * own[:, None]), values, pulled)
        return Sums(pushed, mass, values)

    @staticmethod
    def _handed_on(own: PyTree, given: PyTree, heard: Sums, before: Sums) -> PyTree:
        """What is left of what an agent pushes, and what came of its neighbours'."""
        if own is None:
            return None
        (parts, share), (given_parts, given_share) = own, given
        came = _each(Sum.since, heard.pushed, before.pushed)
        # as a whole number of either sign, to which the sum that goes round is exact
        assert heard.mass is not None and before.mass is not None
        grains = jax.lax.bitcast_convert_type(heard.mass - before.mass, jnp.int32).astype(share.dtype)

        def left(own: Array, out: Array, new: Array) -> Array:
            return own - jnp.sum(out, axis=1) + jnp.sum(new, axis=1)

        return jax.tree.map(left, parts, given_parts, came), left(share, given_share, grains / GRAIN)

    def _compared(
        self, ledger: Ledger, own: PyTree, theirs: PyTree, age: Array, fresh: Array
    ) -> tuple[PyTree, PyTree, PyTree]:
        """The own sums to remember, the differences counted so far, and those that count now.

        Both ends of a link count the same differences: those of exchanges that both have added up.
        """
        if self.needs.differences is None:
            return None, None, None
        sums = jax.tree.map(newest_first, own, ledger.earlier)
        known = fresh & (age <= self.delay[1])

        def gap(own: Sum, other: Sum, before: Array) -> Array:
            then = Sum(*(at_age(part, age) for part in own))
            return jnp.where(along(known, before), then.since(other), before)

        counted = _each(gap, sums, theirs, ledger.counted)
        due = jax.tree.map(
            lambda now, before: jnp.sum(along(self.weights, now) * (now - before), axis=1), counted, ledger.counted
        )
        return jax.tree.map(lambda leaf: leaf[:, :, : self.delay[1]], sums), counted, due


def deadline_exchange(
    network: Network, weights: sp.csr_array | None, needs: Needs, held: np.ndarray
) -> DeadlineExchange | None:
    """The exchange of a network whose links are unreliable, for the agents held; None where they are reliable."""
    links = network.unreliable
    return None if links is None else DeadlineExchange(**by_slots(network, links, weights, needs, held))


def _each(function: Any, sums: PyTree, *rest: PyTree) -> PyTree:
    """A function of every `Sum` of a pytree, and of what others have in its place."""
    return jax.tree.map(function, sums, *rest, is_leaf=lambda node: isinstance(node, Sum))
