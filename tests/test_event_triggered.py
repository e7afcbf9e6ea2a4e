"""D-ULA with agents that broadcast after they have moved."""

import jax
import numpy as np
import pytest
from tables import AGENTS, NETWORKS, Z_BOUND, equal_curvature, unequal_curvature, unequal_shards, walk, worst_z

import accord
from accord.samplers import DULA, EventTriggeredULA
from accord.samplers.schedules import Polynomial

NET = NETWORKS["irregular"]


@pytest.mark.long
@pytest.mark.parametrize("noise", ["independent", "common"])
@pytest.mark.parametrize("batch_size", [None, 2])
def test_without_a_threshold_it_is_dula(noise, batch_size):
    steps = (Polynomial(0.05, 4.0, 0.8), Polynomial(0.3, 2.0, 0.3))
    options = dict(noise=noise, batch_size=batch_size, temperature=0.7)
    lengths = dict(draws=40, burn_in=0, chains=3, seed=2)
    plain = walk(unequal_shards(2), NET, DULA(*steps, **options), **lengths)
    run = walk(unequal_shards(2), NET, EventTriggeredULA(*steps, 0.0, **options), **lengths)
    np.testing.assert_array_equal(run.draws, plain.draws)
    # all agents broadcast in every round
    np.testing.assert_array_equal(run.statistics["broadcasts"], np.tile(np.arange(1, 41), (3, 1)))


@pytest.mark.long
@pytest.mark.parametrize("threshold", [0.3, 2.0, 1e6])
def test_the_average_has_dulas_law_at_any_threshold(threshold):
    post, start = equal_curvature(2), np.ones(2)
    law = accord.law(post, NET, DULA(0.02, 0.15), init=start)
    method = EventTriggeredULA(0.02, 0.15, threshold)
    run = accord.sample(
        post, NET, accord.Rounds(method, burn_in=0, init=start), draws=60, chains=10_000, seed=1, keep=[0]
    )
    for k in (1, 2, 20, 60):
        assert worst_z(run.average[:, k - 1], law.at(k).average) < Z_BOUND
    if threshold == 1e6:
        # no broadcast after the first one
        assert (run.statistics["broadcasts"] == 1).all()


def test_agents_broadcast_in_rounds_after_large_moves():
    # two agents simulated by hand: consensus terms use the last broadcasts
    post = accord.models.gaussian(np.array([[3.0], [-1.0]]), np.ones((2, 1, 1)))
    step, beta, threshold = 0.05, 0.2, 0.4
    with jax.enable_x64(True):
        run = accord.sample(
            post,
            accord.Network.path(2),
            accord.Rounds(EventTriggeredULA(step, beta, threshold, temperature=0.0), burn_in=0, init=np.zeros(1)),
            draws=50,
            chains=1,
        )
    x, sent, broadcasts_made = np.zeros(2), np.zeros(2), np.ones(2, int)
    for k in range(50):
        x = x - beta * (sent - sent[::-1]) - 2.0 * step * (x - [3.0, -1.0])
        np.testing.assert_allclose(run.draws[0, k, :, 0], x, atol=1e-12)
        assert run.statistics["broadcasts"][0, k] == broadcasts_made.max()
        moved = np.abs(x - sent) > threshold
        sent, broadcasts_made = np.where(moved, x, sent), broadcasts_made + moved
    assert 3 < broadcasts_made.max() < 40


def test_larger_thresholds_save_broadcasts_and_spread_agents():
    # the fractions of broadcasts in the docstring
    post, net, step = equal_curvature(1), accord.Network.ring(AGENTS), 0.01
    kick, shares, spread = np.sqrt(2.0 * step * AGENTS), [], []
    for size in (0.0, 1.0, 2.0):
        method = EventTriggeredULA(step, 0.3, size * kick)
        run = accord.sample(post, net, accord.Rounds(method, burn_in=50), draws=300, chains=100, seed=0)
        shares.append(run.statistics["broadcasts"][:, -1].mean() / 350)
        spread.append((run.draws - run.average[:, :, None]).var())
    assert shares[0] == 1.0 and 0.45 < shares[1] < 0.55 and 0.27 < shares[2] < 0.35
    assert spread[0] < spread[1] < spread[2]


def test_a_decreasing_threshold_leaves_dulas_fixed_point():
    post, net = unequal_curvature(2), NET
    fixed = accord.law(post, net, DULA(0.025, 0.15, temperature=0.0)).stationary().joint.mean

    def fading(k):
        return 0.98**k

    with jax.enable_x64(True):
        method = EventTriggeredULA(0.025, 0.15, fading, temperature=0.0)
        run = accord.sample(post, net, accord.Rounds(method, burn_in=2000), draws=1, chains=1)
    np.testing.assert_allclose(run.draws[0, 0].ravel(), fixed, atol=1e-8)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EventTriggeredULA(0.1, 0.1, -1.0), "threshold must be a finite number >= 0, found -1.0"),
        (lambda: EventTriggeredULA(0.1, 0.1, float("nan")), "threshold must be a finite number >= 0, found nan"),
        (lambda: EventTriggeredULA(-0.1, 0.1, 1.0), "step_size must be a finite number > 0, found -0.1"),
        (lambda: sample(EventTriggeredULA(9.0, 0.1, 1.0)), "stability bound of EventTriggeredULA"),
        (lambda: sample(EventTriggeredULA(0.01, 9.0, 1.0)), r"consensus_step must be below 2 / lambda_max\(L\)"),
    ],
)
def test_invalid_arguments_raise_clear_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_threshold_must_be_a_number():
    with pytest.raises(TypeError, match="threshold must be a number or a function of the round, found '1'"):
        EventTriggeredULA(0.1, 0.1, "1")


def sample(method):
    return accord.sample(unequal_shards(2), NET, method, draws=1)
