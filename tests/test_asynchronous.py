"""D-ULA with agents that wake at random."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tables import NETWORKS, Z_BOUND, equal_curvature, unequal_curvature, unequal_shards, walk

import accord
from accord.samplers import DULA, AsynchronousULA
from accord.samplers.schedules import Polynomial

NET = NETWORKS["irregular"]


class RandomRounds:
    """Moments of asynchronous rounds x+ = A x + c + noise of one parameter, over who is awake, on quadratics."""

    def __init__(self, post, step, beta, awake):
        n, links = post.num_agents, NET.adjacency.toarray()
        H, b = post.hessians()[:, 0, 0], -post.gradients(np.zeros(1))[:, 0]
        self.rounds = []
        for who in itertools.product([0.0, 1.0], repeat=n):
            a = np.array(who)
            open_links = links * np.outer(a, a)
            pulls = np.diag(open_links.sum(axis=1)) - open_links
            A, own = np.eye(n) - beta * pulls - np.diag(a * step * n * H), a * step * n
            self.rounds.append((np.prod(np.where(a > 0, awake, 1.0 - awake)), A, own * b, 2.0 * np.diag(own)))

    def at(self, k):
        """Mean and covariance after k rounds from zero, in the first of which all are awake."""
        _, A, c, Q = self.rounds[-1]
        mean, square = c, Q + np.outer(c, c)
        for _ in range(k - 1):
            square = sum(
                share * (A @ square @ A.T + np.outer(A @ mean, c) + np.outer(c, A @ mean) + np.outer(c, c) + Q)
                for share, A, c, Q in self.rounds
            )
            mean = sum(share * (A @ mean + c) for share, A, c, _ in self.rounds)
        return mean, square - np.outer(mean, mean)

    def stationary(self):
        n = len(self.rounds[0][2])
        first = sum(share * A for share, A, _, _ in self.rounds)
        mean = np.linalg.solve(np.eye(n) - first, sum(share * c for share, _, c, _ in self.rounds))
        second, square = np.zeros((n * n, n * n)), np.zeros((n, n))
        for share, A, c, Q in self.rounds:
            shift = A @ mean + c - mean
            second, square = second + share * np.kron(A, A), square + share * (Q + np.outer(shift, shift))
        return mean, np.linalg.solve(np.eye(n * n) - second, square.ravel()).reshape(n, n)


@pytest.mark.long
@pytest.mark.parametrize("awake", [0.3, 0.8])
def test_asynchronous_draws_have_the_moments_of_their_random_rounds(awake):
    post, method = unequal_curvature(1), AsynchronousULA(0.02, 0.15, awake)
    exact = RandomRounds(post, 0.02, 0.15, awake)
    run = accord.sample(post, NET, accord.Rounds(method, burn_in=0, init=np.zeros(1)), draws=30, chains=10_000, seed=3)
    for k in (1, 2, 5, 30):
        mean, cov = exact.at(k)
        x = run.draws[:, k - 1, :, 0].astype(float) - mean
        assert np.abs(x.mean(axis=0) / (x.std(axis=0) / np.sqrt(len(x)))).max() < Z_BOUND
        # products of non-Gaussian draws, compared with their own spread
        products = np.einsum("ci,cj->cij", x, x)
        z = (products.mean(axis=0) - cov) / (products.std(axis=0) / np.sqrt(len(x)))
        assert np.abs(z).max() < Z_BOUND
    updates = run.statistics["updates"][:, -1].mean()
    # the largest count of all agents: above the mean by at most some standard deviations
    assert 30 * awake < updates < 30 * awake + 4.0 * np.sqrt(30 * awake * (1.0 - awake))


def test_the_bias_and_extra_temperature_match_the_docstring():
    # with equal curvatures the average depends on disagreement only by the choice of gradients
    post, beta, awake, step = equal_curvature(1), 0.15, 0.4, 1e-4
    H, exact = post.hessians()[:, 0, 0], post.exact().cov[0, 0]
    mean, cov = RandomRounds(post, step, beta, awake).stationary()
    slopes = (post.gradients(post.mode())[:, 0] ** 2 + H**2 * exact).sum()
    # in addition to the excess variance of the Langevin step
    heat = cov.mean() / exact - 1.0 - awake * step * H.sum() / 2.0
    assert heat == pytest.approx(step * (1.0 - awake) * slopes / 2.0, rel=0.02)
    # agents differ as under D-ULA with the step and pull of agents that are awake at once
    plain = accord.law(post, NET, DULA(awake * step, awake**2 * beta)).stationary().joint.mean
    np.testing.assert_allclose(mean, plain, rtol=1e-8)


@pytest.mark.long
def test_with_all_agents_awake_it_is_dula():
    steps = (Polynomial(0.05, 4.0, 0.8), Polynomial(0.3, 2.0, 0.3))
    lengths = dict(draws=30, burn_in=0, chains=2, seed=2)
    with jax.enable_x64(True):
        plain = walk(unequal_shards(2), NET, DULA(*steps, batch_size=2), **lengths)
        run = walk(unequal_shards(2), NET, AsynchronousULA(*steps, 1.0, batch_size=2), **lengths)
    np.testing.assert_allclose(run.draws, plain.draws, atol=1e-10)


def test_sleeping_agents_send_zeros():
    method = AsynchronousULA(0.1, 0.1)
    state = method.init(None, jnp.ones(2), None)._replace(awake=jnp.zeros(()))
    for leaf in jax.tree.leaves(method.message(None, state)):
        assert not np.any(leaf)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AsynchronousULA(0.1, 0.1, 0.0), r"awake must be a probability in \(0, 1\], found 0.0"),
        (lambda: AsynchronousULA(0.1, 0.1, 1.1), r"awake must be a probability in \(0, 1\], found 1.1"),
        (lambda: AsynchronousULA(0.1, 0.1, noise="common"), 'noise must be "independent" in AsynchronousULA'),
        (lambda: sample(AsynchronousULA(9.0, 0.1)), "stability bound of AsynchronousULA"),
        (lambda: sample(AsynchronousULA(0.01, 9.0)), r"consensus_step must be below 2 / lambda_max\(L\)"),
    ],
)
def test_invalid_arguments_raise_clear_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def sample(method):
    return accord.sample(unequal_shards(2), NET, method, draws=1)
