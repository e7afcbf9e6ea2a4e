"""The class `Network`: agents and edges, with mixing weights, spectrum, colouring and spanning tree."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from typing import Any, NamedTuple

import networkx as nx
import numpy as np
import scipy.sparse as sp
from scipy.sparse import csgraph

from ..base.checks import whole_number
from ..base.errors import unknown_name_error
from ..base.memory import require_room
from .drawing import svg
from .links import Graph, Links, checked_links, links_without
from .spectrum import extremes_off_average, laplacian_of, off_diagonal, row_sums
from .weights import RULES, Edges, checked_weights

_DSATUR_AGENTS = 1000  # above this, networkx's DSATUR is too slow: it takes quadratic time

# Least bytes of an (agent, edge): in arrays, and in the dictionaries of networkx.
_IN_ARRAYS, _IN_DICTS = (40.0, 32.0), (300.0, 400.0)


@dataclass(frozen=True, eq=False, repr=False)
class Network:
    """An undirected network of agents, in which edges join the pairs that exchange messages.

    Immutable and sparse: only the properties `mixing` and `laplacian` return dense (agent, agent) arrays. Two networks
    are equal if they have the same number of agents, the same edges and the same links.

    Parameters
    ----------
    num_agents : int
        Number of agents, at least 1. They are numbered from 0.
    edges : array_like of int, shape (edge, 2)
        Pairs of neighbours. A repeated or reversed pair is one edge.
    name : str, optional
        Name of the construction, for messages.
    labels : sequence of hashable, optional
        Distinct names of the agents. Default: their numbers.
    unreliable : Links, optional
        Behaviour of the links, set by `links`. None: every message arrives in its round.

    Raises
    ------
    ValueError
        If a number is out of range, an edge joins an agent to itself, or the labels do not fit.

    Examples
    --------
    >>> Network.ring(10)
    <Network.ring(10): 10 agents, 10 edges>
    >>> Network.star(4).neighbors(0)
    array([1, 2, 3])
    """

    num_agents: int
    edges: np.ndarray
    name: str = "unnamed"
    labels: tuple[Hashable, ...] = ()
    unreliable: Links | None = None

    def __post_init__(self) -> None:
        """Check the fields, and sort the edges with i < j and without repetitions."""
        n = whole_number("num_agents", self.num_agents, 1)
        edges = _canonical_edges(n, self.edges)
        labels = tuple(self.labels) or tuple(range(n))
        if len(labels) != n or len(set(labels)) != n:
            raise ValueError(f"labels must be {n} distinct names, found {len(set(labels))} in {len(labels)}")
        for field, value in [("num_agents", n), ("edges", edges), ("labels", labels)]:
            object.__setattr__(self, field, value)

    @classmethod
    def ring(cls, n: int) -> Network:
        """A circle of n >= 1 agents. Two agents share one edge, a single agent has none."""
        n = whole_number("n", n, 1)
        _require_room("a ring-shaped", n, n)
        i = np.arange(n if n > 2 else n - 1)
        return cls(n, np.column_stack([i, (i + 1) % n]), f"ring({n})")

    @classmethod
    def complete(cls, n: int) -> Network:
        """A network of n >= 1 agents that are all neighbours."""
        n = whole_number("n", n, 1)
        _require_room(
            "a complete", n, n * (n - 1) // 2, "use a sparser network, such as Network.star or Network.regular"
        )
        return cls(n, np.column_stack(np.triu_indices(n, 1)), f"complete({n})")

    @classmethod
    def star(cls, n: int) -> Network:
        """A star of n >= 1 agents: agent 0, the hub, is a neighbour of all others."""
        n = whole_number("n", n, 1)
        _require_room("a star-shaped", n, n - 1)
        return cls(n, np.column_stack([np.zeros(n - 1, int), np.arange(1, n)]), f"star({n})")

    @classmethod
    def path(cls, n: int) -> Network:
        """A line of n >= 1 agents."""
        n = whole_number("n", n, 1)
        _require_room("a path-shaped", n, n - 1)
        return cls(n, np.column_stack([np.arange(n - 1), np.arange(1, n)]), f"path({n})")

    @classmethod
    def grid(cls, rows: int, columns: int) -> Network:
        """A grid of rows * columns agents, numbered row by row."""
        rows, columns = whole_number("rows", rows, 1), whole_number("columns", columns, 1)
        _require_room("a grid-shaped", rows * columns, 2 * rows * columns - rows - columns, by=_IN_DICTS)
        graph = nx.grid_2d_graph(rows, columns)
        return cls(rows * columns, _graph_edges(graph, sorted(graph)), f"grid({rows}, {columns})")

    @classmethod
    def tree(cls, layers: int) -> Network:
        """The perfect binary tree of 2**layers - 1 agents, numbered layer by layer from the root."""
        layers = whole_number("layers", layers, 1)
        n = 2**layers - 1
        _require_room("a tree-shaped", n, n - 1, by=_IN_DICTS)
        return cls(n, _graph_edges(nx.balanced_tree(2, layers - 1), range(n)), f"tree({layers})")

    @classmethod
    def empty(cls, n: int) -> Network:
        """A network of n >= 1 agents without edges."""
        n = whole_number("n", n, 1)
        _require_room("an empty", n, 0)
        return cls(n, np.zeros((0, 2), np.int64), f"empty({n})")

    @classmethod
    def erdos_renyi(cls, n: int, p: float, seed: int) -> Network:
        """A random network of n >= 1 agents: each edge exists with probability p in [0, 1]. May be disconnected."""
        n, seed = whole_number("n", n, 1), whole_number("seed", seed, 0)
        if isinstance(p, bool) or not isinstance(p, (int, float, np.number)) or not 0 <= p <= 1:
            raise ValueError(f"p must be a number in [0, 1], found {p!r}")
        _require_room("a random", n, round(p * n * (n - 1) / 2), "use a smaller p", by=_IN_DICTS)
        graph = nx.fast_gnp_random_graph(n, float(p), seed=seed)
        return cls(n, _graph_edges(graph, range(n)), f"erdos_renyi({n}, {float(p)}, seed={seed})")

    @classmethod
    def regular(cls, n: int, degree: int, seed: int) -> Network:
        """A random network of n agents with `degree` neighbours each, 0 <= degree < n, n * degree even."""
        n, degree, seed = whole_number("n", n, 1), whole_number("degree", degree, 0), whole_number("seed", seed, 0)
        if degree >= n:
            raise ValueError(f"degree must be below n, found degree = {degree} and n = {n}")
        if n * degree % 2:
            raise ValueError(f"n * degree must be even, found {n} * {degree} = {n * degree}")
        _require_room("a random regular", n, n * degree // 2, by=_IN_DICTS)
        graph = nx.random_regular_graph(degree, n, seed=seed)
        return cls(n, _graph_edges(graph, range(n)), f"regular({n}, {degree}, seed={seed})")

    @classmethod
    def from_networkx(cls, G: nx.Graph) -> Network:
        """The network of a networkx graph. A directed graph gives one-way links (see `links`).

        Agents are numbered in the order of `G.nodes`, whose names become `labels`. Edge weights are ignored.
        """
        if not isinstance(G, nx.Graph):
            raise TypeError(f"from_networkx needs a networkx Graph, found {type(G).__name__}")
        if G.is_directed():
            return cls._from_digraph(G)
        for node in nx.nodes_with_selfloops(G):
            raise ValueError(f"the graph has a self loop at node {node!r}")
        return cls(G.number_of_nodes(), _graph_edges(G, G), f"from_networkx({G.name})", tuple(G))

    @classmethod
    def _from_digraph(cls, G: nx.DiGraph) -> Network:
        number = {node: k for k, node in enumerate(G)}
        one_way = [(number[i], number[j]) for i, j in G.edges() if not G.has_edge(j, i)]
        return cls.from_networkx(nx.Graph(G)).links(directed=one_way)

    @classmethod
    def from_edges(cls, n: int, edges: Any) -> Network:
        """A network of n >= 1 agents with these edges, pairs of agents (edge, 2). Repeated edges count once."""
        n = whole_number("n", n, 1)
        return cls(n, edges, f"from_edges({n})")

    @classmethod
    def build(cls, name: str, num_agents: int, **options: Any) -> Network:
        """A network by name, as in configuration files.

        Parameters
        ----------
        name : str
            One of ring, complete, star, path, empty (no options), grid (rows, columns), tree (layers), erdos_renyi (p,
            seed), regular (degree, seed) and edges (edges).
        num_agents : int
            Required number of agents.
        **options
            Arguments of that constructor, except the number of agents.

        Raises
        ------
        ValueError
            The name or an option is unknown, an option is missing, or the number of agents differs.
        """
        num_agents = whole_number("num_agents", num_agents, 1)
        if name not in _BUILDERS:
            raise unknown_name_error("network", name, _BUILDERS)
        builder = _BUILDERS[name]
        parameters = list(inspect.signature(builder).parameters)
        wanted = [parameter for parameter in parameters if parameter != "n"]
        for option in options:
            if option not in wanted:
                known = f"its options are {', '.join(wanted)}" if wanted else "it has no options"
                raise ValueError(f"network {name!r} has no option {option!r}: {known}")
        if missing := [option for option in wanted if option not in options]:
            raise ValueError(f"network {name!r} needs the options {', '.join(missing)}")
        network = builder(num_agents, **options) if "n" in parameters else builder(**options)
        if network.num_agents != num_agents:
            raise ValueError(f"{network.name} has {network.num_agents} agents, but {num_agents} are required")
        return network

    def links(
        self,
        loss: float | None = None,
        delay: int | Sequence[int] | None = None,
        *,
        burst: int | None = None,
        schedule: Any = None,
        directed: Any = None,
        seed: int | None = None,
    ) -> Network:
        """The network with links that lose messages, delay them, follow a schedule, or work one way only.

        A communication round is one exchange. A method with `mix_rounds=K` has K of them in a step. The fate of a
        message is a pure function of the seed, the link and the round, so that every engine, every chain and
        `accord.law` see the same losses. Losses are simulated on top of links that deliver. Omitted arguments keep
        their values. Initially nothing is lost or late.

        Parameters
        ----------
        loss : float
            Fraction of messages that never arrive, in [0, 1).
        delay : int or (int, int)
            Largest delay in rounds, or the smallest and the largest. The delay of each message is uniform between them.
        burst : int
            Rounds that an outage of a link lasts, >= 1. The fraction of lost messages stays `loss`.
        schedule : sequence or callable, optional
            Edges that are up in each round: a sequence of networks or lists of edges, repeated periodically, or a
            function of the round, traceable by JAX, that returns booleans of shape (edge,) for `edges`. Validation
            looks at the function's first 1,000 rounds.
        directed : iterable of (int, int), optional
            One-way edges as (sender, receiver). All others carry messages both ways.
        seed : int
            Seed of losses and delays, from 0 to 2**32 - 1.

        Raises
        ------
        ValueError
            A number out of range, an edge that the network does not have, or an agent whose messages cannot reach all
            others over all rounds of the schedule.

        Examples
        --------
        >>> Network.ring(10).links(loss=0.3, delay=2)
        <Network.ring(10).links(loss=0.3, delay=2): 10 agents, 10 edges>
        """
        self.require_connected()
        given = {"loss": loss, "delay": delay, "burst": burst, "schedule": schedule, "directed": directed, "seed": seed}
        return replace(self, unreliable=checked_links(self._graph, self.unreliable, **given))

    @property
    def _graph(self) -> Graph:
        return Graph(self.name, self.edges, self._adjacency, self.labels)

    @cached_property
    def out_degrees(self) -> np.ndarray:
        """Number of neighbours that each agent sends to (agent,). One-way links reduce it below the degree."""
        if self.unreliable is None:
            return self.degrees
        return _frozen(np.asarray(self.unreliable.arcs(self._adjacency).sum(axis=0), np.int64).ravel())

    def without(self, agent: int) -> Network:
        """The network without an agent. The others keep labels and links. `ValueError` if it is not connected."""
        agent = whole_number("agent", agent, 0, self.num_agents - 1)
        stays = ~(self.edges == agent).any(axis=1)
        edges = self.edges[stays] - (self.edges[stays] > agent)
        labels = tuple(label for i, label in enumerate(self.labels) if i != agent)
        rest = type(self)(self.num_agents - 1, edges, f"{self.name} without {self.labels[agent]}", labels)
        if not self.is_empty:
            rest.require_connected()
        if self.unreliable is None:
            return rest
        return replace(rest, unreliable=links_without(rest._graph, self.unreliable, agent, stays))

    @cached_property
    def _adjacency(self) -> sp.csr_array:
        return self._spread(np.ones(len(self.edges)))

    @property
    def adjacency(self) -> sp.csr_array:
        """A copy of the adjacency matrix, (agent, agent), with 1.0 for each edge."""
        return self._adjacency.copy()

    @cached_property
    def degrees(self) -> np.ndarray:
        """Number of neighbours of each agent, (agent,)."""
        return _frozen(np.bincount(self.edges.ravel(), minlength=self.num_agents))

    @property
    def max_degree(self) -> int:
        """The largest number of neighbours."""
        return int(self.degrees.max())

    @property
    def is_empty(self) -> bool:
        """Whether there are several agents and no edges."""
        return self.num_agents > 1 and len(self.edges) == 0

    @cached_property
    def _component_of(self) -> np.ndarray:
        """The component of each agent, (agent,). Agent 0 is in component 0."""
        return csgraph.connected_components(self._adjacency, directed=False)[1]

    @property
    def components(self) -> int:
        """The number of connected components."""
        return int(self._component_of.max()) + 1

    @property
    def is_connected(self) -> bool:
        """Whether a path joins every two agents."""
        return self.components == 1

    def require_connected(self) -> None:
        """Raise `ValueError` if the network is not connected."""
        if not self.is_connected:
            outside = int(np.argmax(self._component_of != self._component_of[0]))
            raise ValueError(
                f"the network {self.name} is not connected: it has {self.components} components, "
                f"and agent {outside} cannot be reached from agent 0"
            )

    def neighbors(self, i: int) -> np.ndarray:
        """The neighbours of agent i in increasing order, (degree,)."""
        i = whole_number("i", i, 0, self.num_agents - 1)
        start, stop = self._adjacency.indptr[i : i + 2]
        return self._adjacency.indices[start:stop].astype(np.int64)

    def weights(self, mixing: Any = "metropolis", delta: float | None = None) -> sp.csr_array:
        """The mixing matrix W: symmetric, rows that sum to 1, zero for pairs of agents without an edge.

        Parameters
        ----------
        mixing : str or array_like or sparse array, shape (agent, agent)
            - ``"metropolis"``: W_ij = 1 / (1 + max(deg_i, deg_j)).
            - ``"max-degree"``: W = I - L / (1 + max_degree).
            - ``"laplacian"``: W = I - delta L.
            - ``"lazy"``: (I + W) / 2 of the metropolis W, with eigenvalues >= 0.
            - A custom matrix, checked to 1e-6. Rounding errors are removed: it is symmetrised, and its diagonal is set
              so that the rows sum to 1.
        delta : float, optional
            For ``"laplacian"`` only, in (0, 2 / lambda_max(L)). Default: 2 / (lambda_2 + lambda_max), the best constant
            edge weight (Xiao and Boyd 2004), or 1 / (1 + max_degree) if the network is disconnected.

        Returns
        -------
        scipy.sparse.csr_array, shape (agent, agent), float64

        Raises
        ------
        ValueError
            The name is unknown, delta is out of range or not applicable, or the matrix violates a condition.
        """
        named = isinstance(mixing, str)
        if named and mixing not in RULES:
            raise unknown_name_error("mixing", mixing, RULES)
        if delta is not None and not (named and mixing == "laplacian"):
            found = repr(mixing) if named else "a matrix"
            raise ValueError(f"only the 'laplacian' mixing takes delta, found delta = {delta!r} with {found}")
        options = {} if delta is None else {"delta": delta}
        S = (
            self._spread(RULES[mixing](self._edge_facts, **options))
            if named
            else checked_weights(self._adjacency, mixing)
        )
        return (S + sp.diags_array(1.0 - row_sums(S))).tocsr()

    @property
    def _edge_facts(self) -> Edges:
        return Edges(self.degrees[self.edges], self.max_degree, self.laplacian_extremes)

    def mixing(self, name: Any = "metropolis", delta: float | None = None) -> np.ndarray:
        """`weights` as a dense array, (agent, agent) of float64."""
        return self.weights(name, delta).toarray()

    @property
    def sparse_laplacian(self) -> sp.csr_array:
        """The Laplacian L = D - A as a sparse array, (agent, agent)."""
        return laplacian_of(self._adjacency)

    @property
    def laplacian(self) -> np.ndarray:
        """The Laplacian L = D - A as a dense array, (agent, agent) of float64."""
        return self.sparse_laplacian.toarray()

    def laplacian_extremes(self) -> tuple[float, float]:
        """(lambda_2, lambda_max) of the Laplacian, (0, 0) for one agent."""
        return self._laplacian_extremes

    @cached_property
    def _laplacian_extremes(self) -> tuple[float, float]:
        return extremes_off_average(self._adjacency)

    def spectral_gap(self, mixing: Any = "metropolis", delta: float | None = None) -> float:
        """1 - s, where s is the largest modulus among the eigenvalues of W, without one eigenvalue 1.

        A round multiplies disagreement by at most s. The gap is 0 for a disconnected network and 1 for one agent.
        """
        if self.num_agents == 1:
            return 1.0
        # Computed from eigenvalues m of I - W: 1 - |1 - m| = min(m, 2 - m) keeps all digits of a small gap.
        smallest, largest = extremes_off_average(off_diagonal(self.weights(mixing, delta)))
        return min(smallest, 2.0 - largest)

    def coloring(self) -> np.ndarray:
        """Colours 0, 1, ... that differ between neighbours, (agent,). Agent 0 has colour 0.

        A bipartite network has two colours. Others are coloured greedily (DSATUR, or largest first for large networks).
        """
        graph = self._numbered_graph()
        if nx.is_bipartite(graph):
            colors = nx.bipartite.color(graph)
        else:
            strategy = "DSATUR" if self.num_agents <= _DSATUR_AGENTS else "largest_first"
            colors = nx.greedy_color(graph, strategy)
        found = np.array([colors[i] for i in range(self.num_agents)])
        # Renumber by first use: networkx starts bipartite components with colour 1.
        _, first, inverse = np.unique(found, return_index=True, return_inverse=True)
        return np.argsort(np.argsort(first))[inverse]

    def spanning_tree(self, root: int = 0) -> np.ndarray:
        """The parent of each agent in the breadth-first tree from `root`, (agent,), and -1 at the root.

        Raises `ValueError` if the network is not connected.
        """
        root = whole_number("root", root, 0, self.num_agents - 1)
        self.require_connected()
        _, parents = csgraph.breadth_first_order(self._adjacency, root, directed=False)
        return np.where(np.arange(self.num_agents) == root, -1, parents).astype(np.int64)

    @cached_property
    def aggregation(self) -> Aggregation:
        """The spanning tree on which sums over all agents are computed, with a root near the network's centre.

        Raises `ValueError` if the network is not connected.
        """
        self.require_connected()
        root = self._central_agent()
        order, parents = csgraph.breadth_first_order(self._adjacency, root, directed=False)
        depth, size = np.zeros(self.num_agents, np.int64), np.ones(self.num_agents, np.int64)
        for agent in order[1:]:
            depth[agent] = depth[parents[agent]] + 1
        for agent in order[:0:-1]:
            size[parents[agent]] += size[agent]
        below = np.arange(self.num_agents) != root
        children = np.bincount(parents[below], minlength=self.num_agents)
        return Aggregation(root, int(depth.max()), below + children, np.where(below, size, 0) + size - 1)

    def _central_agent(self) -> int:
        """A neighbour of all other agents if there is one, else the middle of a long shortest path.

        Two breadth-first searches find the path. On trees its middle is the centre.
        """
        if self.max_degree == self.num_agents - 1:
            return int(self.degrees.argmax())
        first = csgraph.breadth_first_order(self._adjacency, 0, directed=False, return_predecessors=False)[-1]
        order, parents = csgraph.breadth_first_order(self._adjacency, first, directed=False)
        path = [int(order[-1])]
        while path[-1] != first:
            path.append(int(parents[path[-1]]))
        return path[len(path) // 2]

    def to_networkx(self) -> nx.Graph:
        """A networkx graph whose nodes are `labels`, in the order of the agents."""
        return nx.relabel_nodes(self._numbered_graph(), dict(enumerate(self.labels)))

    def _numbered_graph(self) -> nx.Graph:
        graph = nx.empty_graph(self.num_agents)
        graph.add_edges_from(self.edges.tolist())
        return graph

    def _spread(self, values: np.ndarray) -> sp.csr_array:
        """The symmetric (agent, agent) array with one value per edge."""
        i, j = self.edges.T
        indices = np.concatenate([i, j]), np.concatenate([j, i])
        shape = (self.num_agents, self.num_agents)
        return sp.coo_array((np.concatenate([values, values]), indices), shape=shape).tocsr()

    def __repr__(self) -> str:
        links = "" if self.unreliable is None else f".{self.unreliable!r}"
        return f"<Network.{self.name}{links}: {self.num_agents} agents, {len(self.edges)} edges>"

    def _repr_html_(self) -> str:
        """A picture for notebooks. Large networks show their numbers only."""
        drawing = svg(self.edges, list(map(str, self.labels)))
        return f"<figure>{drawing}<figcaption>{escape(repr(self))}</figcaption></figure>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Network):
            return NotImplemented
        same = self.num_agents == other.num_agents and np.array_equal(self.edges, other.edges)
        return same and self.unreliable == other.unreliable

    def __hash__(self) -> int:
        return hash((self.num_agents, self.edges.tobytes(), self.unreliable))

    def __reduce__(self) -> tuple[type[Network], tuple[Any, ...]]:
        """Pickle by the constructor, which makes the edges read-only again."""
        return type(self), (self.num_agents, self.edges, self.name, self.labels, self.unreliable)


_BUILDERS: dict[str, Callable[..., Network]] = {
    "ring": Network.ring,
    "complete": Network.complete,
    "star": Network.star,
    "path": Network.path,
    "grid": Network.grid,
    "tree": Network.tree,
    "empty": Network.empty,
    "erdos_renyi": Network.erdos_renyi,
    "regular": Network.regular,
    "edges": Network.from_edges,
}


def _graph_edges(graph: nx.Graph, nodes: Iterable[Hashable]) -> np.ndarray:
    number = {node: k for k, node in enumerate(nodes)}
    return np.array([(number[i], number[j]) for i, j in graph.edges()], np.int64).reshape(-1, 2)


def _canonical_edges(n: int, edges: Any) -> np.ndarray:
    """The edges as a read-only int array, sorted, with i < j and without repetitions."""
    edges = np.asarray(edges)
    if edges.size == 0:
        edges = np.zeros((0, 2), np.int64)
    if edges.ndim != 2 or edges.shape[1] != 2 or edges.dtype.kind not in "iu":
        found = f"{edges.dtype} of shape {edges.shape}"
        raise ValueError(f"edges must be integers of shape (edge, 2), found {found}")
    edges = edges.astype(np.int64)
    for wrong, why in [
        (((edges < 0) | (edges >= n)).any(axis=1), f"leaves the agents 0..{n - 1}"),
        (edges[:, 0] == edges[:, 1], "joins an agent to itself"),
    ]:
        if wrong.any():
            raise ValueError(f"edge {tuple(edges[np.argmax(wrong)].tolist())} {why}")
    keys = np.unique(edges.min(axis=1) * n + edges.max(axis=1))
    return _frozen(np.column_stack(np.divmod(keys, n)))


def _frozen(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


def _require_room(
    kind: str, agents: int, edges: int, remedy: str = "use fewer agents", by: tuple[float, float] = _IN_ARRAYS
) -> None:
    """Raise `ValueError` if a network of this size does not fit into memory."""
    of_agent, of_edge = by
    what = f"{edges:,} edges of {kind} network of {agents:,} agents"
    require_room(what, max(of_agent * agents, of_edge * edges), remedy)


class Aggregation(NamedTuple):
    """A spanning tree on which sums go up and results come down.

    Parameters
    ----------
    root : int
        The agent that computes the total: the hub, if one agent is a neighbour of all others.
    height : int
        Exchanges from the farthest agent to the root.
    sums_sent : np.ndarray, (agent,)
        Messages that each agent sends for one total known to all: a sum to its parent, the total to its children.
    letters_sent : np.ndarray, (agent,)
        Messages that each agent sends or forwards if the root collects every agent's message unsummed and returns one
        message to every agent.
    """

    root: int
    height: int
    sums_sent: np.ndarray
    letters_sent: np.ndarray
