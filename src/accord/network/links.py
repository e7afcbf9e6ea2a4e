"""Unreliable links: loss, delay, outages, schedules and one-way edges."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.sparse as sp
from scipy.sparse import csgraph

from ..base.checks import whole_number
from ..base.given import Given

# A function from a traced round to booleans (edge,), True for edges that are up.
Schedule = Callable[[Any], Any]
# Rounds in which a schedule function is checked to join all agents.
_CHECKED_ROUNDS = 1000


class Graph(NamedTuple):
    """The network that links belong to: its name, edges (edge, 2), adjacency matrix and labels."""

    name: str
    edges: np.ndarray
    adjacency: sp.csr_array
    labels: tuple[Hashable, ...]


@dataclass(frozen=True, eq=False)
class Links:
    """The links of a network. `Network.links` constructs them and describes the arguments.

    Parameters
    ----------
    loss, burst, delay, seed
        As in `Network.links`, with the delay as (smallest, largest).
    one_way
        One-way edges as pairs (sender, receiver), (arc, 2).
    table
        Edges that are up in each round of a period, (round, edge). None: no periodic schedule.
    function
        A schedule as a function of the round. None: no such schedule.
    up_share
        Fraction of rounds in which an edge is up, smallest over all edges.
    longest_gap
        Largest number of consecutive rounds in which an edge is down.
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
        """Probability that an outage of `burst` rounds begins in a round."""
        return 1.0 - (1.0 - self.loss) ** (1.0 / self.burst)

    @property
    def prompt(self) -> float:
        """Fraction of messages on the worst link that arrive in the first round in which they can."""
        low, high = self.delay
        return self.up_share * (1.0 - self.loss) / (high - low + 1)

    @property
    def caution(self) -> float:
        """Factor that keeps the integration of differences stable on these links.

        With disagreement x and its running sum u, `x' = -q x - u` and `u' = g x` with a delay of tau rounds is damped
        while g is below q / tau. Here q is the fraction of messages that arrive in time, and tau is the sum of the
        longest delay, the longest gap and a mean outage.
        """
        return self.prompt / (self.delay[1] + self.longest_gap + self.burst / (1.0 - self.loss))

    def up_in(self, edges: np.ndarray, round: int) -> np.ndarray:
        """Booleans (edge,), True for edges that are up in a round."""
        if self.table is not None:
            return self.table[round % len(self.table)]
        if self.function is None:
            return np.ones(len(edges), bool)
        return np.asarray(self.function(np.int32(round)))

    def arcs(self, adjacency: sp.csr_array) -> sp.csr_array:
        """Directed adjacency matrix without losses: 1 at (receiver, sender) if the link exists."""
        arcs = adjacency
        if len(self.one_way):
            senders, receivers = self.one_way.T
            shape = arcs.shape
            missing = sp.coo_array((np.ones(len(senders)), (senders, receivers)), shape=shape).tocsr()
            arcs = sp.csr_array(arcs - missing)
            arcs.eliminate_zeros()
        return arcs

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


def checked_links(graph: Graph, before: Links | None, **given: Any) -> Links:
    """`before` updated by a user's arguments that are not None. `ValueError` if some agents cannot reach others."""
    links = Links(0.0, 1, (0, 0), 0, np.zeros((0, 2), np.int64)) if before is None else before
    checks: dict[str, Callable[[Any], Any]] = {
        "loss": _loss,
        "delay": _delays,
        "burst": lambda burst: whole_number("burst", burst, 1),
        "seed": lambda seed: whole_number("seed", seed, 0, 2**32 - 1),
    }
    checked: dict[str, Any] = {name: check(given[name]) for name, check in checks.items() if given[name] is not None}
    links = replace(links, **checked)
    if given["directed"] is not None:
        links = replace(links, one_way=_one_way(graph, given["directed"]))
    if given["schedule"] is not None:
        table, function = _schedule(graph, given["schedule"])
        links = replace(links, table=table, function=function)
    return _settled(graph, links)


def _loss(loss: Any) -> float:
    number = isinstance(loss, int | float | np.number) and not isinstance(loss, bool)
    if not number or not 0 <= loss < 1:
        raise ValueError(f"loss must be in [0, 1), the fraction of lost messages, found {loss!r}")
    return float(loss)


def links_without(graph: Graph, links: Links, agent: int, stays: np.ndarray) -> Links:
    """The links of a network without `agent`. `graph` is that network, `stays` (edge,) marks the edges that remain."""
    one_way = links.one_way[~(links.one_way == agent).any(axis=1)]
    left = replace(
        links,
        one_way=one_way - (one_way > agent),
        table=None if links.table is None else links.table[:, stays],
        function=None if links.function is None else SomeEdges(links.function, tuple(np.flatnonzero(stays).tolist())),
    )
    return _settled(graph, left)


@dataclass(frozen=True)
class SomeEdges:
    """A schedule restricted to some edges of another."""

    schedule: Schedule
    edges: tuple[int, ...]

    def __call__(self, round: Any) -> Any:
        """Booleans (edge,), True for edges that are up in a round."""
        return self.schedule(round)[np.array(self.edges, int)]


def _settled(graph: Graph, links: Links) -> Links:
    """Links with `up_share` and `longest_gap` computed. `ValueError` if some agents cannot reach others."""
    if links.table is None and links.function is None:
        _require_reachable(graph, links, None)
        return links
    ups = np.stack([links.up_in(graph.edges, k) for k in range(_rounds(links))])
    _require_reachable(graph, links, ups)
    ups = ups[:, ups.any(axis=0)]
    return replace(links, up_share=float(ups.mean(axis=0).min()), longest_gap=max(map(_gap, ups.T)))


def _rounds(links: Links) -> int:
    """Number of rounds to check: the period of a table, else `_CHECKED_ROUNDS`."""
    return _CHECKED_ROUNDS if links.table is None else len(links.table)


def _gap(up: np.ndarray) -> int:
    """Largest number of consecutive rounds in which an edge of a periodic schedule is down."""
    rounds = np.flatnonzero(np.concatenate([up, up]))
    return int(np.diff(rounds).max()) - 1


def _delays(delay: Any) -> tuple[int, int]:
    if np.ndim(delay) > 0 and np.shape(delay) != (2,):
        raise ValueError(f"delay must be a whole number or two, the least and the largest, found {delay!r}")
    if np.ndim(delay) == 1 and len(delay) == 2:
        low = whole_number("the least delay", delay[0], 0)
        return low, whole_number("the largest delay", delay[1], low)
    return 0, whole_number("delay", delay, 0)


def _one_way(graph: Graph, directed: Any) -> np.ndarray:
    pairs = [tuple(pair) if np.ndim(pair) == 1 else (pair,) for pair in directed]
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError(f"directed must be pairs (sender, receiver) of agents, found {directed!r}")
    arcs = np.array([(_number(graph, i), _number(graph, j)) for i, j in pairs], np.int64).reshape(-1, 2)
    arcs = np.unique(arcs, axis=0)
    edges, given = set(map(tuple, graph.edges.tolist())), set(map(tuple, arcs.tolist()))
    for i, j in sorted(given):
        if (min(i, j), max(i, j)) not in edges:
            raise ValueError(f"directed names ({i}, {j}), but no edge of {graph.name} joins these agents")
        if (j, i) in given:
            raise ValueError(f"directed names ({i}, {j}) and ({j}, {i}): leave out an edge that carries both ways")
    return arcs


def _schedule(graph: Graph, schedule: Any) -> tuple[np.ndarray | None, Schedule | None]:
    """The schedule as a table of one period or as a function. The other is None."""
    if callable(schedule):
        shape = jax.eval_shape(schedule, np.int32(0))
        if getattr(shape, "shape", None) != (len(graph.edges),) or shape.dtype != bool:
            raise ValueError(
                f"schedule must return one boolean per edge of {graph.name}, ({len(graph.edges)},), found {shape}"
            )
        return None, Given(schedule)
    rounds = [_edges_of(graph, each) for each in schedule]
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


def _edges_of(graph: Graph, given: Any) -> list[tuple[int, int]]:
    """The edges of a network, or pairs of agents given by numbers or labels."""
    edges = getattr(given, "edges", given)
    try:
        pairs = [tuple(edge) for edge in (() if isinstance(edges, str) else edges)]
        if isinstance(edges, str) or any(len(pair) != 2 for pair in pairs):
            raise TypeError
    except TypeError:
        raise ValueError(f"schedule must list networks or lists of edges, found the entry {given!r}") from None
    return [(_number(graph, i), _number(graph, j)) for i, j in pairs]


def _number(graph: Graph, agent: Any) -> int:
    """The number of an agent, from its number or label."""
    if isinstance(agent, int | np.integer):
        return int(agent)
    if agent in graph.labels:
        return graph.labels.index(agent)
    raise ValueError(f"agents must be given by number or label, found {agent!r}")


def _require_reachable(graph: Graph, links: Links, ups: np.ndarray | None) -> None:
    """Raise `ValueError` unless messages of every agent reach all others within the rounds `ups` (round, edge)."""
    arcs = links.arcs(graph.adjacency)
    if ups is not None:
        i, j = graph.edges[ups.any(axis=0)].T
        joined = sp.coo_array((np.ones(2 * len(i)), (np.concatenate([i, j]), np.concatenate([j, i]))), arcs.shape)
        arcs = sp.csr_array(arcs.multiply(joined.tocsr()))
        arcs.eliminate_zeros()
    count, part = csgraph.connected_components(arcs, directed=True, connection="strong")
    if count == 1:
        return
    outside = int(np.argmax(part != part[0]))
    reached = csgraph.breadth_first_order(arcs.T, 0, return_predecessors=False)
    there = outside in reached
    first, second = (outside, 0) if there else (0, outside)
    gap = f"messages of agent {first} never reach agent {second}"
    if ups is not None:
        raise ValueError(f"the schedule never joins all agents in {len(ups)} rounds: {gap}")
    raise ValueError(f"the directed links do not join all agents both ways (not strongly connected): {gap}")
