"""The network: its edges, and every number derived from them."""

import copy
import pickle
import tracemalloc
from dataclasses import FrozenInstanceError

import networkx as nx
import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
from scipy.linalg import eigvalsh_tridiagonal

from accord.base.errors import DivergenceError, unknown_name_error
from accord.network import Network
from accord.network.spectrum import extreme_eigenvalues, largest_curvature

NAMED = ["metropolis", "max-degree", "laplacian", "lazy"]

NETWORKS = {
    "one": Network.ring(1),
    "two": Network.ring(2),
    "even ring": Network.ring(10),
    "odd ring": Network.ring(7),
    "complete": Network.complete(6),
    "star": Network.star(6),
    "path": Network.path(5),
    "grid": Network.grid(3, 4),
    "tree": Network.tree(4),
    "empty": Network.empty(4),
    "random": Network.erdos_renyi(30, 0.15, seed=3),
    "regular": Network.regular(12, 3, seed=1),
    "two parts": Network.from_edges(6, [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5)]),
}
every_network = pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS.keys())


def eigenvalues_but_one(matrix, left_out):
    """All sorted eigenvalues except the one nearest `left_out`, by the dense solver."""
    values = np.linalg.eigvalsh(matrix)
    return np.delete(values, np.argmin(np.abs(values - left_out)))


@pytest.mark.parametrize(
    ("network", "edges"),
    [
        (Network.ring(1), []),
        (Network.ring(2), [(0, 1)]),
        (Network.ring(4), [(0, 1), (0, 3), (1, 2), (2, 3)]),
        (Network.complete(4), [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]),
        (Network.star(4), [(0, 1), (0, 2), (0, 3)]),
        (Network.star(1), []),
        (Network.path(4), [(0, 1), (1, 2), (2, 3)]),
        (Network.path(1), []),
        (Network.grid(2, 3), [(0, 1), (0, 3), (1, 2), (1, 4), (2, 5), (3, 4), (4, 5)]),
        (Network.tree(1), []),
        (Network.tree(3), [(0, 1), (0, 2), (1, 3), (1, 4), (2, 5), (2, 6)]),
        (Network.empty(3), []),
        (Network.erdos_renyi(4, 0.0, seed=0), []),
        (Network.erdos_renyi(3, 1.0, seed=0), [(0, 1), (0, 2), (1, 2)]),
        (Network.regular(4, 3, seed=0), [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]),
        (Network.from_edges(4, [(3, 1), (1, 3), (0, 1), (1, 3)]), [(0, 1), (1, 3)]),
        (Network.from_edges(4, np.array([(3, 1), (0, 1)], np.uint64)), [(0, 1), (1, 3)]),
    ],
    ids=lambda value: value.name if isinstance(value, Network) else "",
)
def test_edges_are_those_of_the_hand_drawn_network(network, edges):
    assert network.edges.shape == (len(edges), 2)
    assert network.edges.dtype == np.int64
    assert network.edges.tolist() == [list(edge) for edge in edges]


def test_agents_are_counted():
    assert [Network.grid(2, 3).num_agents, Network.tree(3).num_agents, Network.empty(3).num_agents] == [6, 7, 3]
    assert type(Network.ring(np.int64(4)).num_agents) is int


def test_degrees_neighbors_and_adjacency_of_a_path_with_a_spur():
    network = Network.from_edges(5, [(3, 1), (1, 0), (2, 1)])
    assert network.degrees.tolist() == [1, 3, 1, 1, 0]
    assert network.max_degree == 3
    assert [network.neighbors(i).tolist() for i in range(5)] == [[1], [0, 2, 3], [1], [1], []]
    expected = np.zeros((5, 5))
    for i, j in [(0, 1), (1, 2), (1, 3)]:
        expected[i, j] = expected[j, i] = 1
    np.testing.assert_array_equal(network.adjacency.toarray(), expected)
    np.testing.assert_array_equal(network.laplacian, np.diag([1, 3, 1, 1, 0]) - expected)
    np.testing.assert_array_equal(network.sparse_laplacian.toarray(), network.laplacian)


def test_random_networks_follow_their_seed_and_their_parameters():
    assert Network.erdos_renyi(30, 0.3, seed=4) == Network.erdos_renyi(30, 0.3, seed=4)
    assert Network.erdos_renyi(30, 0.3, seed=4) != Network.erdos_renyi(30, 0.3, seed=5)
    pairs = 400 * 399 / 2
    found = len(Network.erdos_renyi(400, 0.1, seed=0).edges)
    assert abs(found - 0.1 * pairs) < 4 * np.sqrt(pairs * 0.1 * 0.9)
    assert Network.regular(50, 4, seed=2).degrees.tolist() == [4] * 50
    assert Network.regular(50, 4, seed=2) == Network.regular(50, 4, seed=2)
    assert Network.regular(50, 4, seed=2) != Network.regular(50, 4, seed=3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Network.ring(0), "n must be a whole number >= 1, found 0"),
        (lambda: Network.star(2.0), r"n must be a whole number >= 1, found 2\.0"),
        (lambda: Network.complete(True), "n must be a whole number >= 1, found True"),
        (lambda: Network.path("3"), "n must be a whole number >= 1, found '3'"),
        (lambda: Network.empty(-1), "n must be a whole number >= 1, found -1"),
        (lambda: Network.grid(2, 0), "columns must be a whole number >= 1, found 0"),
        (lambda: Network.tree(0), "layers must be a whole number >= 1, found 0"),
        (lambda: Network.erdos_renyi(5, 1.5, seed=0), r"p must be a number in \[0, 1\], found 1\.5"),
        (lambda: Network.erdos_renyi(5, float("nan"), seed=0), r"p must be a number in \[0, 1\], found nan"),
        (lambda: Network.erdos_renyi(5, 0.5, seed=None), "seed must be a whole number >= 0, found None"),
        (lambda: Network.regular(5, 2, seed=None), "seed must be a whole number >= 0, found None"),
        (lambda: Network.regular(5, 3, seed=0), r"n \* degree must be even, found 5 \* 3 = 15"),
        (lambda: Network.regular(4, 4, seed=0), "degree must be below n, found degree = 4 and n = 4"),
        (lambda: Network.from_edges(3, [(0, 3)]), r"edge \(0, 3\) leaves the agents 0\.\.2"),
        (lambda: Network.from_edges(3, [(-1, 0)]), r"edge \(-1, 0\) leaves the agents 0\.\.2"),
        (lambda: Network.from_edges(3, [(0, 1), (2, 2)]), r"edge \(2, 2\) joins an agent to itself"),
        (lambda: Network.from_edges(3, [(0, 1, 2)]), r"found int64 of shape \(1, 3\)"),
        (lambda: Network.from_edges(3, [(0.0, 1.0)]), "edges must be integers .* found float64"),
        (lambda: Network(3, [(0, 1)], labels=["a", "b", "a"]), "labels must be 3 distinct names, found 2 in 3"),
        (lambda: Network.ring(3).neighbors(3), r"i must be a whole number in 0\.\.2, found 3"),
        (lambda: Network.ring(3).spanning_tree(-1), r"root must be a whole number in 0\.\.2, found -1"),
    ],
)
def test_invalid_arguments_are_named_with_their_value(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_random_networks_need_a_seed():
    with pytest.raises(TypeError, match="seed"):
        Network.erdos_renyi(5, 0.5)
    with pytest.raises(TypeError, match="seed"):
        Network.regular(6, 3)


def test_from_networkx_numbers_nodes_in_order_and_keeps_their_names():
    graph = nx.Graph()
    graph.add_nodes_from(["rome", "oslo", "bern"])
    graph.add_edge("bern", "rome", weight=7.0)
    network = Network.from_networkx(graph)
    assert network.labels == ("rome", "oslo", "bern")
    assert network.edges.tolist() == [[0, 2]]
    back = network.to_networkx()
    assert list(back) == ["rome", "oslo", "bern"]
    assert list(back.edges) == [("rome", "bern")]


def test_to_networkx_survives_labels_that_are_a_permutation_of_the_numbers():
    graph = nx.Graph([(2, 0), (0, 1)])
    network = Network.from_networkx(graph)
    assert network.labels == (2, 0, 1)
    back = network.to_networkx()
    assert list(back) == [2, 0, 1]
    assert nx.utils.graphs_equal(back, graph)


@pytest.mark.parametrize(
    ("graph", "error", "message"),
    [
        (nx.DiGraph([(0, 1)]), ValueError, "directed"),
        (nx.Graph([("a", "b"), ("b", "b")]), ValueError, "self loop at node 'b'"),
        (nx.Graph(), ValueError, "num_agents must be a whole number >= 1, found 0"),
        ([(0, 1)], TypeError, "found list"),
    ],
)
def test_from_networkx_refuses_invalid_graphs(graph, error, message):
    with pytest.raises(error, match=message):
        Network.from_networkx(graph)


def test_networks_are_values():
    network = Network.ring(4)
    same = Network.from_edges(4, [(3, 0), (2, 3), (1, 2), (1, 0)])
    assert network == same
    assert hash(network) == hash(same)
    assert network != Network.path(4)
    assert Network.empty(3) != Network.empty(4)
    assert network != "ring(4)"
    assert repr(network) == "<Network.ring(4): 4 agents, 4 edges>"


def test_networks_are_immutable_and_stay_so_through_pickle_and_copy():
    network = Network.from_networkx(nx.Graph([("a", "b"), ("b", "c")]))
    network.coloring()
    for one in [network, pickle.loads(pickle.dumps(network)), copy.deepcopy(network)]:
        assert (one, one.labels, one.name) == (network, network.labels, network.name)
        with pytest.raises(FrozenInstanceError):
            one.num_agents = 5
        with pytest.raises(ValueError, match="read-only"):
            one.edges[0, 0] = 2
        with pytest.raises(ValueError, match="read-only"):
            one.degrees[0] = 2
        one.adjacency.data[:] = 9.0
        assert one.adjacency.sum() == 4


@pytest.mark.parametrize(
    ("name", "num_agents", "options", "expected"),
    [
        ("ring", 5, {}, Network.ring(5)),
        ("complete", 5, {}, Network.complete(5)),
        ("star", 5, {}, Network.star(5)),
        ("path", 5, {}, Network.path(5)),
        ("empty", 5, {}, Network.empty(5)),
        ("grid", 6, {"rows": 2, "columns": 3}, Network.grid(2, 3)),
        ("tree", 7, {"layers": 3}, Network.tree(3)),
        ("erdos_renyi", 9, {"p": 0.4, "seed": 1}, Network.erdos_renyi(9, 0.4, 1)),
        ("regular", 8, {"degree": 3, "seed": 1}, Network.regular(8, 3, 1)),
        ("edges", 3, {"edges": [[0, 1], [1, 2]]}, Network.path(3)),
    ],
)
def test_build_makes_each_network_by_name(name, num_agents, options, expected):
    assert Network.build(name, num_agents, **options) == expected


@pytest.mark.parametrize(
    ("name", "num_agents", "options", "message"),
    [
        ("rign", 5, {}, "unknown network 'rign', did you mean 'ring'"),
        ("tree", 10, {"layers": 3}, r"tree\(3\) has 7 agents, but 10 are required"),
        ("ring", 5, {"rows": 3}, "network 'ring' has no option 'rows': it has no options"),
        ("grid", 6, {"shape": 3}, "network 'grid' has no option 'shape': its options are rows, columns"),
        ("ring", 5, {"n": 5}, "network 'ring' has no option 'n'"),
        ("regular", 8, {"degree": 3}, "network 'regular' needs the options seed"),
        ("ring", 0, {}, "num_agents must be a whole number >= 1, found 0"),
    ],
)
def test_build_names_the_error(name, num_agents, options, message):
    with pytest.raises(ValueError, match=message):
        Network.build(name, num_agents, **options)


def test_connected_components_are_counted_and_an_outsider_is_named():
    network = NETWORKS["two parts"]
    assert (network.is_connected, network.components, network.is_empty) == (False, 2, False)
    with pytest.raises(ValueError, match="has 2 components, and agent 3 cannot be reached from agent 0"):
        network.require_connected()
    with pytest.raises(ValueError, match="has 3 components, and agent 1 cannot"):
        Network.empty(3).require_connected()
    assert (Network.empty(3).is_empty, Network.empty(1).is_empty, Network.ring(3).is_empty) == (True, False, False)
    for connected in [Network.ring(1), Network.ring(2), Network.grid(3, 3)]:
        assert (connected.is_connected, connected.components) == (True, 1)
        connected.require_connected()


STAR = np.array([[0, 1, 1, 1], [1, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]])
PATH = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]])


@pytest.mark.parametrize(
    ("network", "name", "delta", "expected"),
    [
        (Network.star(4), "metropolis", None, STAR / 4 + np.diag([1 / 4, 3 / 4, 3 / 4, 3 / 4])),
        (Network.star(4), "lazy", None, STAR / 8 + np.diag([5 / 8, 7 / 8, 7 / 8, 7 / 8])),
        (Network.path(3), "metropolis", None, PATH / 3 + np.diag([2 / 3, 1 / 3, 2 / 3])),
        (Network.path(3), "max-degree", None, PATH / 3 + np.diag([2 / 3, 1 / 3, 2 / 3])),
        # The edge (0, 1) sees degrees 1 and 2 and (1, 2) sees 2 and 2, so the two rules differ here.
        (
            Network.from_edges(5, [(0, 1), (1, 2), (2, 3), (2, 4)]),
            "metropolis",
            None,
            [
                [2 / 3, 1 / 3, 0, 0, 0],
                [1 / 3, 5 / 12, 1 / 4, 0, 0],
                [0, 1 / 4, 1 / 4, 1 / 4, 1 / 4],
                [0, 0, 1 / 4, 3 / 4, 0],
                [0, 0, 1 / 4, 0, 3 / 4],
            ],
        ),
        (Network.path(3), "laplacian", 0.2, PATH * 0.2 + np.diag([0.8, 0.6, 0.8])),
        # lambda_2 = 1 and lambda_max = 3, so the default is 2 / 4.
        (Network.path(3), "laplacian", None, PATH / 2 + np.diag([1 / 2, 0, 1 / 2])),
        (Network.complete(4), "laplacian", None, np.full((4, 4), 1 / 4)),
        (Network.complete(4), "metropolis", None, np.full((4, 4), 1 / 4)),
        (Network.ring(2), "metropolis", None, np.full((2, 2), 1 / 2)),
        # A disconnected network has lambda_2 = 0: the default is 1 / (1 + max_degree).
        (
            Network.from_edges(4, [(0, 1), (1, 2)]),
            "laplacian",
            None,
            [[2 / 3, 1 / 3, 0, 0], [1 / 3, 1 / 3, 1 / 3, 0], [0, 1 / 3, 2 / 3, 0], [0, 0, 0, 1]],
        ),
    ],
)
def test_weights_are_those_computed_by_hand(network, name, delta, expected):
    np.testing.assert_allclose(network.mixing(name, delta), expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("name", NAMED)
@every_network
def test_weights_are_symmetric_doubly_stochastic_and_on_the_edges(network, name):
    W = network.mixing(name)
    assert W.dtype == np.float64
    np.testing.assert_array_equal(W, W.T)
    np.testing.assert_allclose(W.sum(axis=1), 1, rtol=0, atol=1e-14)
    off = ~np.eye(network.num_agents, dtype=bool)
    np.testing.assert_array_equal((W != 0)[off], (network.adjacency.toarray() != 0)[off])
    assert np.abs(np.linalg.eigvalsh(W)).max() < 1 + 1e-12
    sparse = network.weights(name)
    assert sp.issparse(sparse) and sparse.format == "csr"
    np.testing.assert_array_equal(sparse.toarray(), W)


@pytest.mark.parametrize("name", NAMED)
def test_agents_without_edges_keep_their_values(name):
    np.testing.assert_array_equal(Network.empty(3).mixing(name), np.eye(3))
    np.testing.assert_array_equal(Network.ring(1).mixing(name), [[1.0]])


def test_laplacian_default_is_the_best_constant_edge_weight():
    network = NETWORKS["random"]
    assert network.is_connected
    best = network.spectral_gap("laplacian")
    smallest, largest = network.laplacian_extremes()
    delta = 2 / (smallest + largest)
    assert network.spectral_gap("laplacian", delta) == pytest.approx(best, rel=1e-12)
    for factor in [0.99, 1.01]:
        assert network.spectral_gap("laplacian", factor * delta) < best


@pytest.mark.parametrize("delta", [0.0, -0.1, 0.5, float("nan"), float("inf")])
def test_delta_outside_its_range_prints_the_bound(delta):
    # lambda_max of a ring of four agents is 4.
    with pytest.raises(ValueError, match=r"delta must be in \(0, 2 / lambda_max\(L\)\) = \(0, 0\.5\), found"):
        Network.ring(4).weights("laplacian", delta=delta)


def test_unknown_mixing_names_and_inapplicable_deltas_are_refused():
    network = Network.ring(4)
    with pytest.raises(ValueError, match="unknown mixing 'max_degree', did you mean 'max-degree'"):
        network.weights("max_degree")
    with pytest.raises(ValueError, match="only the 'laplacian' mixing takes delta, found delta = 0.1 with 'lazy'"):
        network.mixing("lazy", delta=0.1)
    with pytest.raises(ValueError, match="found delta = 0.1 with a matrix"):
        network.weights(np.eye(4), delta=0.1)


@pytest.mark.parametrize("kind", [np.asarray, sp.csr_matrix, sp.coo_array], ids=["dense", "csr_matrix", "coo_array"])
def test_a_custom_matrix_is_returned(kind):
    W = np.array([[0.5, 0.3, 0.2], [0.3, 0.7, 0.0], [0.2, 0.0, 0.8]])
    np.testing.assert_allclose(Network.star(3).mixing(kind(W)), W, rtol=0, atol=1e-15)


def test_rounding_of_a_matrix_in_single_precision_is_removed():
    network = NETWORKS["random"]
    exact = network.mixing("metropolis")
    rounded = exact.astype(np.float32)
    assert np.abs(rounded.astype(float).sum(axis=1) - 1).max() > 1e-8
    W = network.mixing(rounded)
    np.testing.assert_allclose(W, exact, rtol=0, atol=1e-6)
    np.testing.assert_allclose(W.sum(axis=1), 1, rtol=0, atol=1e-15)
    # samplers keep a custom matrix in double precision, and accept the same rounding
    np.testing.assert_allclose(network.mixing(rounded.astype(float)), W, rtol=0, atol=1e-15)


def test_asymmetry_within_the_tolerance_is_removed():
    W = Network.path(3).mixing()
    W[0, 1] += 8e-9
    found = Network.path(3).mixing(W)
    assert found[0, 1] == found[1, 0] == pytest.approx(1 / 3 + 4e-9, rel=0, abs=1e-15)


def spoiled(change):
    W = Network.path(4).mixing("metropolis")
    change(W)
    return W


def set_pair(i, j, value):
    def change(W):
        # The diagonal compensates, so that only one condition is violated.
        W[i, i] += W[i, j] - value
        W[j, j] += W[j, i] - value
        W[i, j] = W[j, i] = value

    return change


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.eye(3), r"must have shape \(4, 4\), found \(3, 3\)"),
        (np.ones((4, 3)), r"must have shape \(4, 4\), found \(4, 3\)"),
        (np.ones(4), r"must have 2 axes, found shape \(4,\)"),
        (np.eye(4, dtype=complex), "must contain real numbers, found dtype complex128"),
        (None, "must contain real numbers, found dtype object"),
        (spoiled(lambda W: W.__setitem__((2, 1), np.nan)), r"must be finite, found W\[2, 1\] = nan"),
        (spoiled(lambda W: W.__setitem__((0, 3), -np.inf)), r"must be finite, found W\[0, 3\] = -inf"),
        (
            spoiled(lambda W: W.__setitem__((1, 2), 0.25)),
            r"must be symmetric, found W\[1, 2\] = 0\.25 and W\[2, 1\] = 0\.3333333333",
        ),
        (spoiled(lambda W: W.__setitem__((2, 2), 0.5)), r"must sum to 1, found 1\.166666667 in row 2"),
        (spoiled(set_pair(0, 3, 0.125)), r"between agents without an edge, found W\[0, 3\] = 0\.125"),
        (spoiled(set_pair(0, 2, -2e-6)), r"between agents without an edge, found W\[0, 2\] = -2e-06"),
    ],
)
def test_each_violated_condition_of_a_custom_matrix_is_named(matrix, message):
    with pytest.raises(ValueError, match=message):
        Network.path(4).weights(matrix)


def test_both_computations_of_the_largest_curvature_agree():
    # above 500 rows no dense matrix is used
    rng = np.random.default_rng(0)
    network = Network.ring(200)
    factor = rng.standard_normal((200, 3, 3))
    hessians = factor @ np.swapaxes(factor, 1, 2)
    metric = sp.csr_array(sp.eye_array(200) + network.weights("metropolis"))
    blocks = scipy.linalg.block_diag(*hessians)
    dense = scipy.linalg.eigh(blocks, np.kron(metric.toarray(), np.eye(3)), eigvals_only=True)[-1]
    assert largest_curvature(hessians, metric) == pytest.approx(dense, rel=1e-5)


def test_specks_off_the_edges_are_dropped():
    W = Network.path(4).mixing(spoiled(set_pair(0, 2, 5e-9)))
    assert W[0, 2] == W[2, 0] == 0
    np.testing.assert_allclose(W, Network.path(4).mixing(), rtol=0, atol=2e-8)


@pytest.mark.parametrize("n", [3, 4, 9, 10, 100_000, 100_001])
def test_ring_spectrum_is_the_analytic_one(n):
    # W has eigenvalues 1 - (4/3) sin^2(pi k / n), k = 0..n-1. This form keeps the digits of a tiny gap.
    network = Network.ring(n)
    smallest, largest = 4 * np.sin(np.pi / n) ** 2, 4 * np.sin(np.pi * (n // 2) / n) ** 2
    np.testing.assert_allclose(network.laplacian_extremes(), (smallest, largest), rtol=1e-12)
    np.testing.assert_allclose(network.spectral_gap(), min(smallest / 3, 2 - largest / 3), rtol=1e-12)
    np.testing.assert_allclose(network.spectral_gap("lazy"), smallest / 6, rtol=1e-12)
    found = extreme_eigenvalues(network.weights())
    np.testing.assert_allclose(found, (1 - largest / 3, 1 - smallest / 3), rtol=0, atol=1e-15)


@pytest.mark.parametrize("name", NAMED)
@every_network
def test_spectral_facts_agree_with_all_eigenvalues(network, name):
    if network.num_agents == 1:
        assert network.spectral_gap(name) == 1
        assert network.laplacian_extremes() == (0, 0)
        assert extreme_eigenvalues(network.weights(name)) == (0, 0)
        return
    values = eigenvalues_but_one(network.mixing(name), 1)
    np.testing.assert_allclose(extreme_eigenvalues(network.weights(name)), values[[0, -1]], rtol=0, atol=1e-13)
    np.testing.assert_allclose(network.spectral_gap(name), 1 - np.abs(values).max(), rtol=0, atol=1e-13)
    values = eigenvalues_but_one(network.laplacian, 0)
    np.testing.assert_allclose(network.laplacian_extremes(), values[[0, -1]], rtol=0, atol=1e-12)


def test_gap_is_exactly_zero_without_connection():
    assert NETWORKS["two parts"].spectral_gap() == 0
    assert Network.empty(4).spectral_gap() == 0
    assert Network.empty(5000).laplacian_extremes() == (0, 0)


def test_gap_of_a_bipartite_matrix_sees_the_negative_end():
    # Eigenvalues 1 and -0.8: disagreement of the two agents shrinks by 0.8, changing sign each round.
    W = np.array([[0.1, 0.9], [0.9, 0.1]])
    assert Network.ring(2).spectral_gap(W) == pytest.approx(0.2, rel=1e-14)
    assert extreme_eigenvalues(W) == pytest.approx((-0.8, -0.8), rel=1e-14)


def test_a_matrix_that_increases_disagreement_is_refused():
    # Moving away from the average: the eigenvalues are 1, 1.2 and 1.6.
    W = Network.path(3).mixing("laplacian", 0.2)
    W = np.eye(3) + (np.eye(3) - W)
    with pytest.raises(ValueError, match=r"must not let disagreement grow, found the eigenvalue 1\.6"):
        Network.path(3).weights(W)
    # a bipartite network without self weights oscillates: eigenvalue -1
    with pytest.raises(ValueError, match=r"must not let disagreement grow, found the eigenvalue -1"):
        Network.path(2).weights(np.array([[0.0, 1.0], [1.0, 0.0]]))


# The analytic spectrum of a path is 4 sin^2(pi k / 2n); of a star 0, 1, n; of a product the sums.
def path_eigenvalue(n, k):
    return 4 * np.sin(np.pi * k / (2 * n)) ** 2


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        (Network.path(5000), (path_eigenvalue(5000, 1), path_eigenvalue(5000, 4999))),
        (Network.star(3000), (1, 3000)),
        (Network.grid(30, 50), (path_eigenvalue(50, 1), path_eigenvalue(30, 29) + path_eigenvalue(50, 49))),
        # Thin enough that plain Lanczos fails and the factorisation is used.
        (Network.grid(3, 3000), (path_eigenvalue(3000, 1), path_eigenvalue(3, 2) + path_eigenvalue(3000, 2999))),
    ],
    ids=["path", "star", "grid", "thin grid"],
)
@pytest.mark.long_from(3)
def test_large_sparse_spectra_are_the_analytic_ones(network, expected):
    np.testing.assert_allclose(network.laplacian_extremes(), expected, rtol=1e-7)


def test_spectrum_of_a_large_tree_is_that_of_its_layers():
    # An eigenvector of the Laplacian either depends on the layer alone, or vanishes above some agent and is opposite
    # in its two subtrees. Either way it solves a tridiagonal problem, one row a layer, off-diagonal -sqrt(2).
    layers = 12
    values = []
    for depth in range(1, layers + 1):
        diagonal = np.full(depth, 3.0)
        diagonal[-1] = 1.0
        if depth == layers:
            diagonal[0] = 2.0
        values.extend(eigvalsh_tridiagonal(diagonal, np.full(depth - 1, -np.sqrt(2))))
    values = np.sort(values)
    assert abs(values[0]) < 1e-12
    np.testing.assert_allclose(Network.tree(layers).laplacian_extremes(), values[[1, -1]], rtol=1e-9)


def test_spectrum_of_large_random_regular_networks():
    network = Network.regular(1500, 4, seed=1)
    values = np.linalg.eigvalsh(network.mixing())
    np.testing.assert_allclose(extreme_eigenvalues(network.weights()), values[[0, -2]], rtol=1e-10)
    # Friedman: the eigenvalues of A but the first come to fill [-2 sqrt(3), 2 sqrt(3)] as agents are added.
    found = Network.regular(5000, 4, seed=1).laplacian_extremes()
    np.testing.assert_allclose(found, (4 - 2 * np.sqrt(3), 4 + 2 * np.sqrt(3)), rtol=0, atol=0.02)


@every_network
def test_coloring_is_proper_and_two_colours_where_bipartite(network):
    colors = network.coloring()
    assert colors.shape == (network.num_agents,)
    assert not np.any(colors[network.edges[:, 0]] == colors[network.edges[:, 1]])
    assert np.unique(colors).tolist() == list(range(colors.max() + 1))
    assert colors[0] == 0
    if nx.is_bipartite(network.to_networkx()):
        assert colors.max() == (1 if len(network.edges) else 0)


def test_coloring_of_known_networks():
    assert Network.star(4).coloring().tolist() == [0, 1, 1, 1]
    assert Network.path(4).coloring().tolist() == [0, 1, 0, 1]
    assert Network.ring(7).coloring().max() == 2
    assert sorted(Network.complete(5).coloring()) == [0, 1, 2, 3, 4]
    large = Network.regular(3000, 3, seed=0)
    colors = large.coloring()
    assert not np.any(colors[large.edges[:, 0]] == colors[large.edges[:, 1]])
    assert colors.max() <= 3  # greedy needs at most max_degree + 1 colours


def test_spanning_tree_is_breadth_first():
    assert Network.tree(3).spanning_tree().tolist() == [-1, 0, 0, 1, 1, 2, 2]
    assert Network.path(4).spanning_tree(root=2).tolist() == [1, 2, -1, 2]
    assert Network.ring(1).spanning_tree().tolist() == [-1]
    with pytest.raises(ValueError, match="has 2 components"):
        NETWORKS["two parts"].spanning_tree()


@pytest.mark.parametrize("root", [0, 7])
def test_spanning_tree_uses_edges_and_shortest_paths(root):
    network = NETWORKS["random"]
    parents = network.spanning_tree(root)
    distances = nx.single_source_shortest_path_length(network.to_networkx(), root)
    for agent in range(network.num_agents):
        if agent == root:
            assert parents[agent] == -1
        else:
            assert parents[agent] in network.neighbors(agent)
            assert distances[int(parents[agent])] == distances[agent] - 1


def test_a_ring_of_a_hundred_thousand_needs_no_dense_array():
    n = 100_000
    tracemalloc.start()
    try:
        network = Network.ring(n)
        weights = network.weights()
        gap = network.spectral_gap()
        connected, peak = network.is_connected, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 200e6
    assert connected
    assert 0 < gap < 1e-8
    assert weights.nnz == 3 * n
    expected = {(i, i + 1) for i in range(n - 1)} | {(0, n - 1)}
    assert set(map(tuple, network.edges.tolist())) == expected


def test_unknown_name_error_finds_the_nearest_name():
    message = str(unknown_name_error("sampler", "desgld", ["DESGLD", "Gibbs"]))
    assert message == "unknown sampler 'desgld', did you mean 'DESGLD'? The choices are 'DESGLD', 'Gibbs'"
    message = str(unknown_name_error("sampler", "xyz", ["DESGLD", "Gibbs"]))
    assert message == "unknown sampler 'xyz'. The choices are 'DESGLD', 'Gibbs'"


def test_divergence_error_carries_the_place_and_the_run_through_pickle():
    error = DivergenceError("agent 3 is not finite", agent=3, round=17, run=[1.0])
    for one in [error, pickle.loads(pickle.dumps(error))]:
        assert isinstance(one, ArithmeticError)
        assert (str(one), one.agent, one.round, one.run) == ("agent 3 is not finite", 3, 17, [1.0])
    assert DivergenceError("no run", agent=0, round=0).run is None


AGGREGATED = {
    "one": Network.ring(1),
    "star": Network.star(6),
    "complete": Network.complete(5),
    "path": Network.path(6),
    "odd-path": Network.path(7),
    "tree": Network.tree(4),
    "grid": Network.grid(3, 5),
    "random": Network.erdos_renyi(20, 0.3, seed=1),
}


@pytest.mark.parametrize("name", AGGREGATED)
def test_aggregation_sums_over_a_spanning_tree(name):
    net = AGGREGATED[name]
    n, found = net.num_agents, net.aggregation
    depth = nx.single_source_shortest_path_length(net.to_networkx(), found.root)
    assert found.height == max(depth.values())
    # every edge of the tree carries a sum up and a total down
    assert found.sums_sent.sum() == 2 * (n - 1)
    # and every agent's message travels its depth up, and another one down
    assert found.letters_sent.sum() == 2 * sum(depth.values())
    if name in ("path", "odd-path", "tree"):
        assert found.height == nx.radius(net.to_networkx())
    if name in ("star", "complete"):
        assert found.height == 1 and found.sums_sent[found.root] == n - 1


def test_aggregation_by_hand():
    # 0 - 1 - 2 - 3 - 4, root 2: the ends send one sum up, 1 and 3 send one up and one down, the root two down
    found = Network.path(5).aggregation
    assert (found.root, found.height) == (2, 2)
    np.testing.assert_array_equal(found.sums_sent, [1, 2, 2, 2, 1])
    np.testing.assert_array_equal(found.letters_sent, [1, 3, 4, 3, 1])


def test_aggregation_needs_a_connected_network():
    with pytest.raises(ValueError, match="not connected"):
        Network.empty(3).aggregation  # noqa: B018
