"""Communication of one agent, called from its compiled round, by neighbour exchange or over a spanning tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...network import Network
from .connections import Channels, ForeignMessageError, Label

Content = bytes | bytearray

# First byte of the hub's messages, a query or the end of queries.
_QUERY, _DONE = b"\x01", b"\x00"
# Directions of messages in a label: between neighbours, up the tree and down the tree.
_WAYS = 3
_FLAT, _UP, _DOWN = range(_WAYS)
# Stands for all colours, in whose turn all agents send to all neighbours.
EVERY_COLOR = -1


class Communicator:
    """An agent's side of all collective operations, which all agents must call in the same order.

    A "letter" below is the message of one agent, forwarded over the tree without summation.

    Parameters
    ----------
    network
        The network of the agents.
    agent
        Number of this agent.
    channels
        Its connections.
    run
        Hash of the run, 16 bytes.
    limit
        Timeout in seconds for a neighbour.
    """

    def __init__(self, network: Network, agent: int, channels: Channels, run: bytes, limit: float) -> None:
        self.num_agents, self.agent, self.channels = network.num_agents, agent, channels
        self.run, self.limit = run, limit
        self.neighbours = [int(j) for j in network.neighbors(agent)]
        self.attempt, self.round, self._operation = 0, 0, 0
        # number of operations since construction
        self.operations = 0
        # bytes of all chains' messages since construction, without labels
        self.bytes_sent = 0
        self.failure: Exception | None = None
        self._colors = network.coloring()
        self.parent: int | None = None
        self.below: dict[int, list[int]] = {}
        if network.is_connected:
            self._grow(network)

    def _grow(self, network: Network) -> None:
        """Find the agent's parent in the spanning tree and the agents below each child."""
        parents = network.spanning_tree(network.aggregation.root)
        if parents[self.agent] >= 0:
            self.parent = int(parents[self.agent])
        subtrees: dict[int, list[int]] = {i: [i] for i in range(network.num_agents)}
        for i in _leaves_first(parents):
            if parents[i] >= 0:
                subtrees[int(parents[i])] += subtrees[i]
        self.below = {j: sorted(subtrees[j]) for j in self.neighbours if parents[j] == self.agent}

    def begin(self, attempt: int, round: int) -> None:
        """Continue in a round with new connections."""
        self.attempt, self.round, self._operation = attempt, round, 0
        self.failure = None

    def swap(self, round: Any, color: Any, *leaves: Any) -> list[np.ndarray]:
        """The neighbours' messages, each array stacked in the order of the neighbours.

        In the turn of a colour only its agents receive messages. Other agents get zeros.
        """
        self._next(round)
        arrays, turn = [np.asarray(leaf) for leaf in leaves], int(color)
        receives = turn in (EVERY_COLOR, self._colors[self.agent])
        receivers = [j for j in self.neighbours if turn in (EVERY_COLOR, self._colors[j])]
        own = _packed(arrays)
        # all agents' messages have the same length
        due = dict.fromkeys(self.neighbours if receives else (), len(own))
        found = self._exchange(_FLAT, dict.fromkeys(receivers, own), due)
        if not (receives and self.neighbours):
            return [np.zeros((len(self.neighbours), *leaf.shape[1:]), leaf.dtype) for leaf in arrays]
        rows = [_unpacked(found[j], arrays) for j in self.neighbours]
        return [np.concatenate(column) for column in zip(*rows, strict=True)]

    def total(
        self, round: Any, *own: Any, add: Callable[[list[np.ndarray]], np.ndarray] | None = None
    ) -> list[np.ndarray]:
        """The sums of all agents' arrays, with the same bytes at every agent, computed up the tree and sent down.

        `add` sums a list of arrays of one shape and type, by default NumPy's sum in this type.
        """
        self._next(round)
        arrays = [np.asarray(leaf) for leaf in own]
        length = sum(leaf.nbytes for leaf in arrays)
        found = self._exchange(_UP, {}, dict.fromkeys(self.below, length))
        parts = [arrays, *(_unpacked(found[child], arrays) for child in self.below)]
        sums = [(add or _sum)(list(column)) for column in zip(*parts, strict=True)]
        if self.parent is not None:
            self._exchange(_UP, {self.parent: _packed(sums)}, {})
            sums = _unpacked(self._exchange(_DOWN, {}, {self.parent: length})[self.parent], arrays)
        self._exchange(_DOWN, dict.fromkeys(self.below, _packed(sums)), {})
        return sums

    def permute(self, round: Any, order: Any, *own: Any) -> list[np.ndarray]:
        """The message of another agent in each chain, by a random order of the agents.

        All letters go up to the root, which sends each agent its new one.
        """
        self._next(round)
        arrays, order = [np.asarray(leaf) for leaf in own], np.asarray(order)
        letter = _packed(arrays)
        letters = self._gathered(letter)
        if self.parent is None:
            opened = [_unpacked(letters[i], arrays) for i in range(self.num_agents)]
            mixed = [_reordered(np.concatenate(column), order) for column in zip(*opened, strict=True)]
            new = {i: _packed([leaf[i : i + 1] for leaf in mixed]) for i in range(self.num_agents)}
        else:
            due = len(letters) * len(letter)
            content = self._exchange(_DOWN, {}, {self.parent: due})[self.parent]
            new = _letters(content, sorted(letters), len(letter))
        self._exchange(_DOWN, {child: b"".join(new[i] for i in under) for child, under in self.below.items()}, {})
        return _unpacked(new[self.agent], arrays)

    def query(self, question: Any, own: Any) -> np.ndarray:
        """As the hub, the answers of all agents, (..., agent, answer), to a query (..., question)."""
        self._next(self.round)
        own = np.asarray(own)
        self._exchange(_DOWN, dict.fromkeys(self.below, _QUERY + _packed([np.asarray(question)])), {})
        letters = self._gathered(_packed([own]))
        return np.stack([_unpacked(letters[i], [own])[0] for i in range(self.num_agents)], axis=-2)

    def answer(self, reply: Callable[[bytes], bytes], length: int) -> None:
        """Answer the hub's queries of `length` bytes and forward queries and answers until the hub ends."""
        assert self.parent is not None
        while True:
            self._next(self.round)
            content = bytes(self._exchange(_DOWN, {}, {self.parent: len(_QUERY) + length})[self.parent])
            if content != _DONE and (len(content), content[:1]) != (len(_QUERY) + length, _QUERY):
                raise ForeignMessageError(f"a message has {len(content)} bytes, expected {length + 1}")
            self._exchange(_DOWN, dict.fromkeys(self.below, content), {})
            if content == _DONE:
                return
            self._gathered(reply(content[len(_QUERY) :]))

    def dismiss(self) -> None:
        """As the hub, announce the end of queries."""
        self._next(self.round)
        self._exchange(_DOWN, dict.fromkeys(self.below, _DONE), {})

    def _gathered(self, own: bytes) -> dict[int, bytes]:
        """Collect the letters of this agent and all agents below it, and forward them to the parent."""
        letters = {self.agent: own}
        found = self._exchange(_UP, {}, {child: len(under) * len(own) for child, under in self.below.items()})
        for child, under in self.below.items():
            letters |= _letters(found[child], under, len(own))
        if self.parent is not None:
            self._exchange(_UP, {self.parent: b"".join(letters[i] for i in sorted(letters))}, {})
        return letters

    def _next(self, round: Any) -> None:
        """Number the next operation within its round."""
        round = int(round)
        self._operation = self._operation + 1 if round == self.round else 0
        self.round, self.operations = round, self.operations + 1

    def _exchange(self, way: int, outgoing: dict[int, bytes], incoming: dict[int, int]) -> dict[int, bytearray]:
        self.bytes_sent += sum(map(len, outgoing.values()))
        label = Label(self.run, self.attempt, self.round, _WAYS * self._operation + way)
        try:
            return self.channels.exchange(label, outgoing, incoming, self.limit)
        except Exception as error:
            # a compiled program passes on only the text of an error
            self.failure = error
            raise


def _sum(arrays: list[np.ndarray]) -> np.ndarray:
    return np.asarray(np.sum(arrays, axis=0, dtype=arrays[0].dtype))


def _packed(arrays: list[np.ndarray]) -> bytes:
    return b"".join(leaf.tobytes() for leaf in arrays)


def _unpacked(content: Content, like: list[np.ndarray]) -> list[np.ndarray]:
    """Arrays of known shapes from their bytes."""
    _require_length(content, sum(leaf.nbytes for leaf in like))
    arrays, start = [], 0
    for leaf in like:
        arrays.append(np.frombuffer(content, leaf.dtype, leaf.size, start).reshape(leaf.shape))
        start += leaf.nbytes
    return arrays


def _letters(content: Content, agents: list[int], length: int) -> dict[int, bytes]:
    """Split letters of equal length by agent."""
    _require_length(content, len(agents) * length)
    return {i: bytes(content[place * length : (place + 1) * length]) for place, i in enumerate(agents)}


def _require_length(content: Content, due: int) -> None:
    if len(content) != due:
        raise ForeignMessageError(f"a message has {len(content)} bytes, expected {due}")


def _reordered(everyone: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Messages (agent, ..., chain) permuted over the agents by an order (agent, 1, chain)."""
    return np.take_along_axis(everyone, order.reshape(len(order), *[1] * (everyone.ndim - 2), order.shape[-1]), axis=0)


def _leaves_first(parents: np.ndarray) -> list[int]:
    """The agents of a tree in an order with each agent before its parent."""
    depth = np.zeros(len(parents), int)
    for i in range(len(parents)):
        j = i
        while parents[j] >= 0:
            j, depth[i] = parents[j], depth[i] + 1
    return [int(i) for i in np.argsort(-depth, kind="stable")]
