"""Every form of a neighbour sum is the same matrix product."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse

import accord
from accord.engines import operators as exchange

GRAPHS = {
    "ring": (accord.Network.ring(400), exchange.Shifts),
    "path": (accord.Network.path(300), exchange.Shifts),
    "grid": (accord.Network.grid(20, 20), exchange.Shifts),
    "small random": (accord.Network.erdos_renyi(40, 0.3, seed=0), exchange.Dense),
    "dense random": (accord.Network.erdos_renyi(300, 0.5, seed=0), exchange.Dense),
    "sparse random": (accord.Network.regular(400, 5, seed=0), exchange.Gather),
    "star": (accord.Network.star(400), exchange.Segments),
    "tree": (accord.Network.tree(9), exchange.Gather),
    "one": (accord.Network.ring(1), exchange.Dense),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_operators_are_the_matrix(name):
    net, form = GRAPHS[name]
    x = jnp.asarray(np.random.default_rng(0).standard_normal((net.num_agents, 6)))
    for matrix in (net.weights("metropolis"), net.adjacency):
        apply = exchange.operator(matrix)
        np.testing.assert_allclose(apply(x), scipy.sparse.csr_array(matrix) @ x, rtol=1e-4, atol=1e-5)
    assert isinstance(exchange.operator(net.weights("metropolis")), form)
