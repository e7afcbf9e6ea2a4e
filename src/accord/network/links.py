"""Links as they are: what loses, delays or never carries the messages between the agents of a network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.sparse as sp
from scipy.sparse import csgraph

from ..base.checks import whole_number

# A traced number of a communication round -> which edges are up in it, booleans of shape (edge,).
Schedule = Callable[[Any], Any]
# Communication rounds in which all agents must be joined where the schedule is a function, which has no end.
_ROUNDS_LOOKED_AT = 1000


class Graph(NamedTuple):
    """The network that links belong to: its name, its edges (edge, 2), and its adjacency matrix."""

    name: str
    edges: np.ndarray
    adjacency: sp.csr_array


@dataclass(frozen=True, eq=False)
class Links:
    """How a network's links treat messages; made by `Network.links`, which describes the fields.

    Parameters
    ----------
    loss, burst, delay, seed
        As there; the delay as its smallest and largest number of rounds.
    one_way
        Pairs (sender, receiver) of edges that carry messages in this direction only, (arc, 2).
    table
        Which edges are up in the rounds of a period, (round, edge), or None.
    function
        The same as a function of the round, or None.
    up_share, longest_gap
        Of the edge that the schedule serves worst: the share of rounds in which it is up, and the most rounds in a row
        in which it is not.
    """

    loss: float
    burst: int
    delay: tuple[int, int]
    seed: int
    one_way: np.ndarray
    table: np.ndarray | None = None
    function: Schedule | None = None
    up_share: float = 1.0
    longest_gap: int = 0

    @cached_property
    def outage(self) -> float:
        """The probability that an outage of `burst` rounds begins in a round."""
        return 1.0 - (1.0 - self.loss) ** (1.0 / self.burst)

    @property
    def prompt(self) -> float:
        """The share of messages that arrive in the round that they are sent in, on the worst link."""
        low, high = self.delay
        return self.up_share * (1.0 - self.loss) / (high - low + 1) if low == 0 else 0.0

    @property
    def caution(self) -> float:
        """The share of its usual step with which a running sum of differences may be followed.

        With disagreement x and a sum u of it, `x' = -q x - u` and `u' = g x` some tau rounds late: damped while g is
        below q / tau. q is what arrives in time of all messages, tau the longest delay, gap and a mean outage.
        """
        return self.prompt / (self.delay[1] + self.longest_gap + self.burst / (1.0 - self.loss))

    def up_in(self, edges: np.ndarray, round: int) -> np.ndarray:
        """Which edges are up in a round, (edge,)."""
        if self.table is not None:
            return self.table[round % len(self.table)]
        if self.function is None:
            return np.ones(len(edges), bool)
        return np.asarray(self.function(np.int32(round)))

    def without(self, agent: int, stays: np.ndarray) -> Links:
        """The links of the others, of whose edges are told which stay, (edge,)."""
        function, table = self.function, self.table
        one_way = self.one_way[~(self.one_way == agent).any(axis=1)]
        return replace(
            self,
            one_way=one_way - (one_way > agent),
            table=None if table is None else table[:, stays],
            function=None if function is None else lambda round: function(round)[stays],
        )

    def arcs(self, adjacency: sp.csr_array) -> sp.csr_array:
        """Who hears whom, whatever is lost: 1 at (receiver, sender), of those whom the network joins."""
        heard = adjacency
        if len(self.one_way):
            senders, receivers = self.one_way.T
            shape = heard.shape
            missing = sp.coo_array((np.ones(len(senders)), (senders, receivers)), shape=shape).tocsr()
            heard = sp.csr_array(heard - missing)
            heard.eliminate_zeros()
        return heard

    def __repr__(self) -> str:
        low, high = self.delay
        parts = [f"loss={self.loss:g}"] if self.loss else []
        parts += [f"burst={self.burst}"] if self.burst > 1 else []
        parts += [f"delay={high}" if low == 0 else f"delay=({low}, {high})"] if high else []
        parts += [f"{len(self.one_way)} one-way"] if len(self.one_way) else []
        if self.table is not None:
            parts.append(f"schedule of {len(self.table)} rounds")
        parts += ["schedule"] if self.function is not None else []
        return f"links({', '.join(parts)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Links) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[Any, ...]:
        table = None if self.table is None else (self.table.shape, self.table.tobytes())
        return self.loss, self.burst, self.delay, self.seed, self.one_way.tobytes(), table, self.function


def checked_links(graph: Graph, loss: float, delay: Any, burst: int, schedule: Any, directed: Any, seed: int) -> Links:
    """The links that a user asks for; `ValueError` where messages could not reach everybody."""
    number = isinstance(loss, int | float | np.number) and not isinstance(loss, bool)
    if not number or not 0 <= loss < 1:
        raise ValueError(f"loss must be in [0, 1), the share of messages that are lost, found {loss!r}")
    table, function = _schedule(graph, schedule)
    links = Links(
        float(loss),
        whole_number("burst", burst, 1),
        _delays(delay),
        whole_number("seed", seed, 0, 2**32 - 1),
        _one_way(graph, directed),
        table,
        function,
    )
    _require_reachable(graph, links)
    if table is None and function is None:
        return links
    ups = np.stack([links.up_in(graph.edges, k) for k in range(_rounds(links))])
    ups = ups[:, ups.any(axis=0)]
    return replace(links, up_share=float(ups.mean(axis=0).min()), longest_gap=max(map(_gap, ups.T)))


def _rounds(links: Links) -> int:
    """Rounds of the schedule that are looked at: its period, where it has one."""
    return _ROUNDS_LOOKED_AT if links.table is None else len(links.table)


def _gap(up: np.ndarray) -> int:
    """The most rounds in a row in which an edge is down, of rounds that begin again after the last."""
    rounds = np.flatnonzero(np.concatenate([up, up]))
    return int(np.diff(rounds).max()) - 1


def _delays(delay: Any) -> tuple[int, int]:
    """The least and the largest delay."""
    if isinstance(delay, Sequence) and len(delay) == 2:
        low = whole_number("the least delay", delay[0], 0)
        return low, whole_number("the largest delay", delay[1], low)
    return 0, whole_number("delay", delay, 0)


def _one_way(graph: Graph, directed: Any) -> np.ndarray:
    """The one-way edges as (sender, receiver), sorted."""
    arcs = np.zeros((0, 2), np.int64) if directed is None else np.asarray(list(directed))
    if arcs.size == 0:
        return np.zeros((0, 2), np.int64)
    if arcs.ndim != 2 or arcs.shape[1] != 2 or arcs.dtype.kind not in "iu":
        raise ValueError(f"directed must be pairs (sender, receiver) of agents, found shape {arcs.shape}")
    arcs = np.unique(arcs.astype(np.int64), axis=0)
    edges, given = set(map(tuple, graph.edges.tolist())), set(map(tuple, arcs.tolist()))
    for i, j in sorted(given):
        if (min(i, j), max(i, j)) not in edges:
            raise ValueError(f"directed names ({i}, {j}), but no edge of {graph.name} joins these agents")
        if (j, i) in given:
            raise ValueError(f"directed names ({i}, {j}) and ({j}, {i}): leave out an edge that carries both ways")
    return arcs


def _schedule(graph: Graph, schedule: Any) -> tuple[np.ndarray | None, Schedule | None]:
    """The schedule as a table of one period or as a function."""
    if schedule is None:
        return None, None
    if callable(schedule):
        shape = jax.eval_shape(schedule, np.int32(0))
        if getattr(shape, "shape", None) != (len(graph.edges),) or shape.dtype != bool:
            raise ValueError(
                f"schedule must give one boolean an edge of {graph.name}, ({len(graph.edges)},), found {shape}"
            )
        return None, schedule
    rounds = [_edges_of(each) for each in schedule]
    if not rounds:
        raise ValueError("schedule must name the edges of at least one round, found none")
    place = {edge: k for k, edge in enumerate(map(tuple, graph.edges.tolist()))}
    table = np.zeros((len(rounds), len(place)), bool)
    for k, edges in enumerate(rounds):
        for i, j in edges:
            edge = (min(i, j), max(i, j))
            if edge not in place:
                raise ValueError(f"schedule names the edge ({i}, {j}) in round {k}, which {graph.name} does not have")
            table[k, place[edge]] = True
    return table, None


def _edges_of(graph: Any) -> list[tuple[int, int]]:
    """The edges of a network or of pairs."""
    return [(int(i), int(j)) for i, j in getattr(graph, "edges", graph)]


def _require_reachable(graph: Graph, links: Links) -> None:
    """Raise `ValueError` unless news from every agent reaches all others, over all rounds."""
    heard = links.arcs(graph.adjacency)
    rounds = _rounds(links)
    if links.table is not None or links.function is not None:
        ever = np.any([links.up_in(graph.edges, k) for k in range(rounds)], axis=0)
        i, j = graph.edges[ever].T
        joined = sp.coo_array((np.ones(2 * len(i)), (np.concatenate([i, j]), np.concatenate([j, i]))), heard.shape)
        heard = sp.csr_array(heard.multiply(joined.tocsr()))
        heard.eliminate_zeros()
    count, part = csgraph.connected_components(heard, directed=True, connection="strong")
    if count == 1:
        return
    outside = int(np.argmax(part != part[0]))
    reached = csgraph.breadth_first_order(heard.T, 0, return_predecessors=False)
    there = outside in reached
    first, second = (outside, 0) if there else (0, outside)
    way = f"what agent {first} says never reaches agent {second}"
    if links.table is not None or links.function is not None:
        raise ValueError(f"the schedule never joins all agents in {rounds} rounds: {way}")
    raise ValueError(f"the directed links do not join all agents both ways (not strongly connected): {way}")
