import io

import numpy as np
import pytest
from scipy.special import digamma, polygamma

from accord.results.diagnostics import diagnostics
from accord.samplers.by_sums import lockstep

CHAINS = 64


class Counted:
    """A target that counts its calls and asserts finite positions."""

    def __init__(self, target):
        self.target, self.calls = target, 0

    def __call__(self, x):
        assert np.isfinite(x).all()
        self.calls += 1
        values, gradients = self.target(x)
        x[:] = np.nan  # a target may overwrite its argument
        return values, gradients


def gaussian(dim, seed=0):
    rng = np.random.default_rng(seed)
    mean, factor = rng.normal(size=dim), np.linalg.qr(rng.normal(size=(dim, dim)))[0] * np.geomspace(0.4, 2.5, dim)
    precision = np.linalg.inv(factor @ factor.T)

    def evaluate(x):
        away = x - mean
        return 0.5 * ((away @ precision) * away).sum(axis=1), away @ precision

    return evaluate, mean, factor @ factor.T


def log_gamma(x, shape=1.5):
    """The logarithm of a gamma variable, whose mean and variance are polygamma functions of the shape."""
    with np.errstate(over="ignore"):
        return (np.exp(x) - shape * x).sum(axis=1), np.exp(x) - shape


def half_normal(x, missing=np.nan, values=True):
    """A standard normal in two dimensions, finite only for a positive first coordinate."""
    outside = x[:, 0] < 0
    gradients = np.where(outside[:, None], missing, x)
    return np.where(outside & values, missing, 0.5 * (x**2).sum(axis=1)), gradients


SCHOOLS = np.array([[28, 8, -3, 7, -1, 1, 18, 12], [15, 10, 16, 11, 9, 11, 10, 18]], float)


def eight_schools(x):
    """Non-centred eight schools in (mean / 5, log tau, standardised effects), half-Cauchy(5) prior on tau."""
    mean, log_tau, raw = 5.0 * x[:, :1], x[:, 1:2], x[:, 2:]
    tau = np.exp(np.minimum(log_tau, 300.0))
    (y, sd), ratio = SCHOOLS, (tau / 5.0) ** 2
    rest = (mean + tau * raw - y) / sd
    values = 0.5 * ((rest**2).sum(axis=1) + (raw**2).sum(axis=1) + (x[:, 0]) ** 2)
    values += (np.log1p(ratio) - log_tau)[:, 0]
    slope = rest / sd
    return values, np.concatenate(
        [
            5.0 * slope.sum(axis=1, keepdims=True) + x[:, :1],
            tau * (slope * raw).sum(axis=1, keepdims=True) + 2.0 * ratio / (1.0 + ratio) - 1.0,
            tau * slope + raw,
        ],
        axis=1,
    )


def exact_schools():
    """Mean and sd of the first two coordinates on a grid, with the effects integrated analytically."""
    mean, log_tau = np.meshgrid(np.linspace(-6, 6, 601), np.linspace(-25, 9, 3001), indexing="ij")
    log_density = -0.5 * mean**2 - np.log1p((np.exp(log_tau) / 5.0) ** 2) + log_tau
    for y, sd in SCHOOLS.T:
        variance = sd**2 + np.exp(2.0 * log_tau)
        log_density -= 0.5 * (np.log(variance) + (y - 5.0 * mean) ** 2 / variance)
    weight = np.exp(log_density - log_density.max())
    weight /= weight.sum()
    means = np.array([(weight * mean).sum(), (weight * log_tau).sum()])
    return means, np.sqrt([(weight * mean**2).sum(), (weight * log_tau**2).sum()] - means**2)


def run(evaluate, start, seed=0, warmup=lockstep.WARMUP, draws=0):
    state, kept = lockstep.begin(evaluate, start, seed), []
    for number in range(warmup + draws):
        state = lockstep.transition(evaluate, state, seed=seed, warmup=warmup)
        if number >= warmup:
            kept.append(state.positions)
    return state, np.stack(kept, axis=1) if kept else None


def starts(dim, chains=CHAINS, sd=1.0, seed=5):
    return sd * np.random.default_rng(seed).normal(size=(chains, dim))


def assert_moments(draws, mean, sd, errors=4.0):
    """Assert that means and mean squared deviations are within some Monte Carlo errors of the exact ones."""
    for values, exact in ((draws, mean), ((draws - mean) ** 2, np.square(sd))):
        ess, rhat = diagnostics(values)
        error = values.std(axis=(0, 1)) / np.sqrt(ess)
        assert (rhat < 1.1).all()
        # the next line is a real test only with small errors
        assert (error < 0.1 * (np.asarray(sd) if values is draws else np.square(sd))).all()
        assert (np.abs(values.mean(axis=(0, 1)) - exact) < errors * error).all()


def assert_same(one, other):
    for name, a, b in zip(one._fields, one, other, strict=True):
        np.testing.assert_array_equal(a, b, err_msg=name)


@pytest.mark.parametrize("sd", [0.001, 1.0, 20.0])
def test_gaussian_from_narrow_and_wide_starts(sd):
    evaluate, mean, cov = gaussian(10)
    state, draws = run(evaluate, starts(10, sd=sd), draws=60)
    assert_moments(draws, mean, np.sqrt(cov.diagonal()))
    # the scale approximates the covariance, up to shrinkage and the noise of 64 chains
    relative = np.linalg.eigvalsh(np.linalg.solve(cov, state.scale @ state.scale.T))
    assert 0.4 < relative.min() and relative.max() < 2.5
    assert state.calls - state.warmup_calls < 60 * 5


def test_scores_find_the_covariance_from_far_away():
    evaluate, mean, cov = gaussian(10)
    start = mean + 100.0 * np.sqrt(cov.diagonal()) + starts(10, chains=512)
    far = lockstep.transition(evaluate, lockstep.begin(evaluate, start, 0), seed=0)
    relative = np.linalg.eigvalsh(np.linalg.solve(cov, far.scale @ far.scale.T))
    assert 0.99 < relative.min() and relative.max() < 1.01


def test_warmup_moves_chains_that_are_astray_or_stuck_and_no_others():
    evaluate, mean, cov = gaussian(3)
    state = lockstep.begin(evaluate, mean + starts(3, chains=100) @ np.linalg.cholesky(cov).T, 0)
    astray = state._replace(values=np.where(np.arange(100) < 2, state.values + 1000.0, state.values))
    assert (lockstep._gathered(astray, 0).values[:2] < 100.0).all()
    assert_same(lockstep._gathered(state, 0), state)
    for stuck, moved in ((3, True), (30, False)):
        still = np.where(np.arange(100) < stuck, 9, 0)
        found = lockstep._gathered(state._replace(still=still), 0)
        assert (found.positions[:stuck] != state.positions[:stuck]).any() == moved
        np.testing.assert_array_equal(found.positions[stuck:], state.positions[stuck:])
    # many stuck chains may be in a narrow mode
    warm = lockstep.settled(16)
    late = astray._replace(transition=warm)
    after = lockstep.transition(evaluate, late, seed=0, warmup=16)
    assert not np.array_equal(after.positions, late.positions)


def test_half_of_the_groups_start_furthest_out():
    state = lockstep.begin(gaussian(3)[0], starts(3, chains=256), 0)
    found = lockstep.grouped(state, 8, seed=1)
    groups = found.positions.reshape(32, 8, 3)
    assert (groups == groups[:, :1]).all() and len(np.unique(groups[:, 0], axis=0)) == 32
    for extreme in (np.argmin, np.argmax):
        furthest = state.positions[extreme(state.positions, axis=0)]
        assert all((groups[:, 0] == position).all(axis=1).any() for position in furthest)
    assert groups[:, 0].std() > 1.1 * state.positions.std()


def test_eight_schools():
    start = starts(10, chains=128)
    # a start that only short steps can leave
    start[0, 1] = 4.5
    state, draws = run(eight_schools, start, draws=150)
    assert np.ptp(draws, axis=1).min() > 0.0
    mean, sd = exact_schools()
    assert_moments(draws[..., :2], mean, sd)
    np.testing.assert_allclose(draws[..., :2].std(axis=(0, 1)), sd, rtol=0.05)
    assert lockstep.nested_rhat(draws, 8).max() < 1.02
    # about 4,000 effective draws in 300 sums
    assert diagnostics(draws)[0].min() / (state.calls - state.warmup_calls) > 10.0


@pytest.mark.parametrize("warmup", [0, 100])
@pytest.mark.long
def test_large_frozen_steps_are_exact(warmup):
    shape = 1.5
    state, _ = run(log_gamma, starts(1), warmup=warmup)
    state = state._replace(mean_log_step=np.log(1.35), mean_log_length=np.log(4.0), scale=np.eye(1))
    draws, acceptance = [], []
    for number in range(2040):
        state = lockstep.transition(log_gamma, state, seed=3, warmup=warmup)
        if number >= 40:
            draws.append(state.positions)
            acceptance.append(state.acceptance)
    assert 0.4 < np.mean(acceptance) < 0.8
    assert_moments(np.stack(draws, axis=1), digamma(shape), np.sqrt(polygamma(1, [shape])))


def test_resumes_from_every_transition_bit_for_bit():
    evaluate, *_ = gaussian(3)
    warmup, total = 12, 16
    states = [lockstep.begin(evaluate, starts(3, chains=8), 7)]
    for _ in range(total):
        states.append(lockstep.transition(evaluate, states[-1], seed=7, warmup=warmup))
    for number, state in enumerate(states):
        file = io.BytesIO()
        np.savez(file, **state._asdict())
        file.seek(0)
        with np.load(file) as saved:
            state = lockstep.LockstepState(**saved)
        for _ in range(total - number):
            state = lockstep.transition(evaluate, state, seed=7, warmup=warmup)
        assert_same(state, states[-1])


def test_after_warmup_nothing_adapts():
    evaluate, *_ = gaussian(3)
    state, _ = run(evaluate, starts(3), warmup=20)
    later = state
    for _ in range(10):
        later = lockstep.transition(evaluate, later, seed=0, warmup=20)
    moving = {"positions", "values", "gradients", "transition", "calls", "divergences", "acceptance", "still"}
    still = set(state._fields) - moving
    assert all(np.array_equal(getattr(state, name), getattr(later, name)) for name in still)
    assert not np.array_equal(state.positions, later.positions)
    assert later.transition == 30


def test_calls_are_counted_and_positions_are_not_reevaluated():
    evaluate = Counted(gaussian(4)[0])
    state = lockstep.begin(evaluate, starts(4), 0)
    assert (evaluate.calls, state.calls, state.warmup_calls) == (1, 1, 1)
    for _ in range(40):
        state = lockstep.transition(evaluate, state, seed=0, warmup=30)
        assert state.calls == evaluate.calls
        if state.transition == 30:
            in_warmup = evaluate.calls
    assert state.warmup_calls == in_warmup < evaluate.calls
    values, gradients = gaussian(4)[0](state.positions)
    np.testing.assert_array_equal(state.values, values)
    np.testing.assert_array_equal(state.gradients, gradients)


@pytest.mark.parametrize("missing, values", [(np.nan, True), (np.inf, True), (-np.inf, True), (np.nan, False)])
def test_non_finite_proposals_are_rejected(missing, values):
    state, draws = run(lambda x: half_normal(x, missing, values), np.abs(starts(2)), draws=150)
    assert all(np.isfinite(part).all() for part in state)
    assert draws[..., 0].min() > 0.0
    assert 0 < state.warmup_divergences < state.divergences < 250 * CHAINS
    mean = np.sqrt(2.0 / np.pi)
    assert_moments(draws, np.array([mean, 0.0]), np.array([np.sqrt(1.0 - mean**2), 1.0]))


def test_every_chain_that_diverges_is_counted():
    def outside(x):
        return np.full(len(x), np.nan), np.full_like(x, np.nan)

    begun = lockstep.begin(gaussian(3)[0], starts(3), 0)
    evaluate = Counted(outside)
    state = lockstep.transition(evaluate, begun, seed=0, warmup=0)
    # stops after one step, as all chains have diverged
    assert (state.divergences, state.acceptance, evaluate.calls) == (CHAINS, 0.0, 1)
    np.testing.assert_array_equal(state.positions, begun.positions)

    # finite, but with an energy error above 1000: a step of 1000 on a normal target
    begun = lockstep.begin(gaussian(3)[0], starts(3), 0)._replace(mean_log_step=np.log(1e3))
    state = lockstep.transition(gaussian(3)[0], begun, seed=0, warmup=0)
    assert (state.divergences, state.acceptance, state.warmup_divergences) == (CHAINS, 0.0, 0)
    np.testing.assert_array_equal(state.positions, begun.positions)

    # the target is not evaluated at non-finite positions
    begun = begun._replace(mean_log_step=np.log(1e308))
    state = lockstep.transition(Counted(log_gamma), begun, seed=0, warmup=0)
    assert state.divergences == CHAINS
    np.testing.assert_array_equal(state.positions, begun.positions)


def test_non_finite_starts_are_replaced():
    start = starts(2)
    evaluate = Counted(half_normal)
    state = lockstep.begin(evaluate, start, 0)
    outside = start[:, 0] < 0
    assert evaluate.calls == 1 and state.divergences == outside.sum() > 0
    np.testing.assert_array_equal(state.positions[~outside], start[~outside])
    assert all((start[~outside] == row).all(axis=1).any() for row in state.positions[outside])
    np.testing.assert_array_equal(state.values, half_normal(state.positions)[0])
    with pytest.raises(ArithmeticError, match="at any of the 64 starts"):
        lockstep.begin(half_normal, -np.abs(start), 0)


def test_draws_depend_on_the_seed_only():
    evaluate, *_ = gaussian(3)
    one, same, other = (run(evaluate, starts(3), seed=seed, warmup=8)[0] for seed in (1, 1, 2))
    assert_same(one, same)
    assert (one.positions != other.positions).all()
    # noise differs between transitions: from one position, short accepted steps end at different ones
    begun = lockstep.begin(evaluate, starts(3), 0)._replace(mean_log_step=np.log(0.01), mean_log_length=np.log(0.001))
    later = lockstep.transition(evaluate, begun._replace(transition=2), seed=0, warmup=0)
    assert (lockstep.transition(evaluate, begun, seed=0, warmup=0).positions != later.positions).any(axis=1).all()


def test_wrong_arguments_are_refused():
    evaluate, *_ = gaussian(3)
    for wrong in (starts(3)[0], starts(3)[:1], np.zeros((4, 0))):
        with pytest.raises(ValueError, match="positions must have shape"):
            lockstep.begin(evaluate, wrong, 0)
    state = lockstep.begin(evaluate, starts(3), 0)
    with pytest.raises(ValueError, match="seed must be"):
        lockstep.transition(evaluate, state, seed=-1)
    with pytest.raises(ValueError, match="warmup must be"):
        lockstep.transition(evaluate, state, seed=0, warmup=-1)
    with pytest.raises(ValueError, match="evaluate must return"):
        lockstep.begin(lambda x: (x, x), starts(3), 0)


def test_nested_rhat():
    rng = np.random.default_rng(0)
    draws = rng.normal(size=(128, 20, 2))
    assert (lockstep.nested_rhat(draws, 8) < 1.01).all()
    apart = draws + np.repeat([0.0, 0.5], 64)[:, None, None]
    assert (lockstep.nested_rhat(apart, 2) > 1.05).all()
    # equations 8 and 9 of the paper
    groups = apart.reshape(4, 32, 20, 2)
    means = groups.mean(axis=2)
    between = sum((means[k].mean(axis=0) - apart.mean(axis=(0, 1))) ** 2 for k in range(4)) / 3
    chains = sum(((means[k] - means[k].mean(axis=0)) ** 2).sum(axis=0) / 31 for k in range(4)) / 4
    within = sum(((groups[k, m] - means[k, m]) ** 2).sum(axis=0) / 19 for k in range(4) for m in range(32)) / 128
    np.testing.assert_allclose(lockstep.nested_rhat(apart, 4), np.sqrt(1.0 + between / (chains + within)))
    # one draw per chain, and one chain per group
    expected = np.sqrt(
        1.0
        + draws[:, 0].reshape(8, 16, 2).mean(1).var(0, ddof=1) / draws[:, 0].reshape(8, 16, 2).var(1, ddof=1).mean(0)
    )
    np.testing.assert_allclose(lockstep.nested_rhat(draws[:, :1], 8), expected)
    assert (lockstep.nested_rhat(draws, 128) < 1.05).all()
    still = np.zeros((4, 5, 2)) + np.array([0.0, 1.0]) * np.arange(4)[:, None, None]
    np.testing.assert_array_equal(lockstep.nested_rhat(still, 4), [np.nan, np.inf])
    for wrong in (1, 3, 256):
        with pytest.raises(ValueError, match="groups"):
            lockstep.nested_rhat(draws, wrong)
