"""All forms of a neighbour sum equal the matrix product."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse

import accord
from accord.engines import operators
from accord.engines.local import LocalEngine
from accord.samplers import DESGLD, EXTRASGLD

GRAPHS = {
    "ring": (accord.Network.ring(400), operators.Shifts),
    "path": (accord.Network.path(300), operators.Shifts),
    "grid": (accord.Network.grid(20, 20), operators.Shifts),
    "small ring": (accord.Network.ring(6), operators.Shifts),
    "small random": (accord.Network.erdos_renyi(40, 0.3, seed=0), operators.Dense),
    "dense random": (accord.Network.erdos_renyi(300, 0.5, seed=0), operators.Dense),
    "sparse random": (accord.Network.regular(400, 5, seed=0), operators.Gather),
    "star": (accord.Network.star(400), operators.Segments),
    "tree": (accord.Network.tree(9), operators.Gather),
    "one": (accord.Network.ring(1), operators.Shifts),
}


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.long_from(7)
def test_operators_equal_the_matrix(name):
    net, form = GRAPHS[name]
    x = jnp.asarray(np.random.default_rng(0).standard_normal((net.num_agents, 6)))
    for matrix in (net.weights("metropolis"), net.adjacency):
        apply = operators.operator(matrix)
        np.testing.assert_allclose(apply(x), scipy.sparse.csr_array(matrix) @ x, rtol=1e-4, atol=1e-5)
    assert isinstance(operators.operator(net.weights("metropolis")), form)


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.long_from(3)
def test_differences_are_rounded_relative_to_the_differences(name):
    net, _ = GRAPHS[name]
    apart = np.random.default_rng(0).standard_normal((net.num_agents, 20))
    # multiples of 2^-10 are exact in single precision
    x = np.float32(1e4 + np.round(apart * 1024) / 1024)
    for matrix in (net.weights("metropolis"), net.adjacency):
        sums = np.asarray(matrix.sum(axis=1)).reshape(-1, 1)
        right = sums * x.astype(float) - matrix @ x.astype(float)
        for columns in (slice(6), slice(None)):
            own = jnp.asarray(x[:, columns])
            found = operators.operator(matrix).differences(own, own)
            np.testing.assert_allclose(found, right[:, columns], rtol=1e-5, atol=2e-4)
            # they sum to zero over the agents, while sums of the numbers have errors of about 1e-3 per agent
            np.testing.assert_allclose(np.asarray(found, float).sum(axis=0), 0.0, atol=2e-4)


@pytest.mark.parametrize("exchanges", [1, 2, 5])
def test_differences_over_several_exchanges_sum_to_zero(exchanges):
    net = accord.Network.path(8)
    x = np.float32(1e4 + np.random.default_rng(0).standard_normal((8, 3, 5)))
    method = EXTRASGLD(0.01, mix_rounds=exchanges)
    post = accord.models.gaussian(np.zeros((8, 3)), np.array([np.eye(3)] * 8))
    made = LocalEngine(post, net, method.bind(post, net), chains=5, seed=0, keep=np.arange(8))
    inbox = made.problem.exchange(jnp.asarray(x), made.problem.degree, made.problem.collectives)
    right = np.einsum("ij,jdc->idc", np.eye(8) - method.effective_weights(net).toarray(), x.astype(float))
    np.testing.assert_allclose(inbox.differences(), right, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(inbox.mix(), x - right, rtol=2e-7)
    np.testing.assert_allclose(np.asarray(inbox.differences(), float).sum(axis=0), 0.0, atol=1e-5)


FORMS = {
    "shifts": operators.shifts,
    "dense": operators.dense,
    "gather": operators.gather,
    "segments": operators.segments,
}
# odd and even numbers of agents, hubs, isolated agents, one and two agents
PATTERNS = {
    "ring": accord.Network.ring(7),
    "path": accord.Network.path(8),
    "regular": accord.Network.regular(12, 5, seed=1),
    "star": accord.Network.star(9),
    "tree": accord.Network.tree(4),
    "random": accord.Network.erdos_renyi(11, 0.4, seed=2),
    "pairs": accord.Network.from_edges(5, [(0, 3), (1, 4)]),
    "two": accord.Network.path(2),
    "one": accord.Network.ring(1),
}


def one_way(net, seed=0):
    """Asymmetric weights on the edges and the diagonal, which detect a transpose."""
    rng = np.random.default_rng(seed)
    pattern = net.adjacency + scipy.sparse.eye_array(net.num_agents)
    return scipy.sparse.csr_array(pattern.multiply(rng.standard_normal(pattern.shape)))


@pytest.mark.parametrize("double", [False, True], ids=["float32", "float64"])
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.long_from(1)
def test_all_forms_equal_the_matrix_product(pattern, double):
    matrix, rng = one_way(PATTERNS[pattern]), np.random.default_rng(1)
    n, dtype = matrix.shape[0], np.float64 if double else np.float32
    shapes = {"2-d": (n, 3), "3-d": (n, 2, 4), "4-d": (n, 5, 2, 3)}
    messages = {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}
    expected = {name: np.zeros(shape) for name, shape in shapes.items()}
    for name, x in messages.items():
        for i in range(n):
            for j in range(n):
                expected[name][i] += matrix[i, j] * x[j].astype(np.float64)
    sums = np.asarray(matrix.sum(axis=1))
    differences = {name: sums.reshape(-1, *[1] * (x.ndim - 1)) * x - expected[name] for name, x in messages.items()}
    with jax.enable_x64(double):
        # all forms in one program
        forms = {form: make(matrix) for form, make in FORMS.items()}
        found = jax.jit(lambda forms, x: {form: operators.over_agents(apply, x) for form, apply in forms.items()})(
            forms, messages
        )
    for form in FORMS:
        for name in shapes:
            y = np.asarray(found[form][name])
            # sums of at most nine products of numbers below 4, each rounded
            error = np.abs(y - expected[name]).max()
            assert y.dtype == dtype and error < 100 * np.finfo(dtype).eps, f"{form}, {name}: {error:.3g}"
            with jax.enable_x64(double):
                flat = jnp.asarray(messages[name].reshape(n, -1))
                y = np.asarray(forms[form].differences(flat, flat)).reshape(messages[name].shape)
            error = np.abs(y - differences[name]).max()
            assert y.dtype == dtype and error < 100 * np.finfo(dtype).eps, f"differences, {form}, {name}: {error:.3g}"


@pytest.mark.parametrize("form", FORMS)
def test_an_engine_mixes_with_every_form(form):
    # on flat potentials several exchanges apply the Chebyshev polynomial of the weights
    net, rounds, dim = PATTERNS["random"], 3, 2
    n = net.num_agents
    post = accord.models.quadratic(np.zeros((n, dim, dim)), np.zeros((n, dim)))
    start = np.random.default_rng(0).standard_normal((n, dim))
    W = net.mixing("metropolis")
    values, vectors = np.linalg.eigh(W)
    s = max(abs(values[0]), abs(values[-2]))
    T = np.polynomial.chebyshev.Chebyshev.basis(rounds)
    P = vectors @ np.diag(T(values / s) / T(1.0 / s)) @ vectors.T
    with jax.enable_x64(True):
        sampler = DESGLD(0.1, temperature=0.0, mix_rounds=rounds)
        engine = LocalEngine(post, net, sampler.bind(post, net), chains=2, seed=0, keep=np.arange(n))
        exchange = replace(engine.problem.exchange, mix=FORMS[form](net.weights("metropolis")))
        engine.problem = replace(engine.problem, exchange=exchange)
        carry = engine.start(start, None)
        for k in range(1, 4):
            carry, records = engine.record(carry, 1, 1)
            expected = np.linalg.matrix_power(P, k) @ start
            np.testing.assert_allclose(records.draws[0, :, :, 1], expected, atol=1e-12)
