"""Decentralised Metropolis-adjusted HMC: exactness with agreement, and the error without."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from tables import AGENTS, NETWORKS, POSTERIORS, Z_BOUND, unequal_curvature, unequal_shards, worst_z

import accord
from accord.engines.local import LocalEngine
from accord.network.averaging import contraction, exchanges_for
from accord.samplers import DMAHMC
from accord.samplers.protocol import HasLaw, pytree

pytestmark = pytest.mark.busy
COMPLETE, PATH = NETWORKS["complete"], NETWORKS["path"]


@pytree
class Unadjusted(DMAHMC, HasLaw):
    """D-MAHMC without the test and with trajectories of one step, so that a round is affine."""

    def needs(self, dim):
        return super().needs(dim)._replace(key=False)

    def accepts(self, noise, change):
        return jnp.ones((), bool)

    def conserved(self, agent, state):
        return state.tracker - state.gradient


def leapfrog(post, h):
    """The stationary law of one leapfrog step with fresh momenta: P^-1 (I - h^2 P / 4)^-1 for the precision P."""
    exact = post.exact()
    precision = np.linalg.inv(exact.cov)
    return exact.mean, np.linalg.inv(precision @ (np.eye(post.dim) - h**2 * precision / 4.0))


@pytest.mark.parametrize("name", POSTERIORS)
@pytest.mark.long
def test_without_the_test_every_agent_has_the_law_of_leapfrog(name):
    post = POSTERIORS[name](2)
    h = 1.2 / np.sqrt(np.linalg.eigvalsh(post.hessians().sum(axis=0))[-1])
    mean, cov = leapfrog(post, h)
    law = accord.law(post, COMPLETE, Unadjusted(h, remainder=False)).stationary()
    for agent in (0, 5):
        np.testing.assert_allclose(law.agent(agent).mean, mean, rtol=1e-8)
        np.testing.assert_allclose(law.agent(agent).cov, cov, rtol=1e-7)
    # on a path gradient tracking makes the mean correct for any number of exchanges
    some = accord.law(post, PATH, Unadjusted(h / 4.0, remainder=False, mix_rounds=6)).stationary()
    np.testing.assert_allclose(some.joint.mean.reshape(AGENTS, 2), np.tile(mean, (AGENTS, 1)), rtol=1e-6)
    most = accord.law(post, PATH, Unadjusted(h, remainder=False, mix_rounds=40)).stationary()
    np.testing.assert_allclose(most.agent(3).cov, cov, rtol=1e-6)


@pytest.mark.long
def test_draws_without_the_test_follow_their_law():
    post, init = unequal_shards(2), accord.Gaussian(np.ones(2), np.eye(2))
    method = Unadjusted(0.15, remainder=False, mix_rounds=6)
    law = accord.law(post, PATH, method, init=init)
    run = accord.sample(post, PATH, accord.Rounds(method, burn_in=0, init=init), draws=20, chains=5000, seed=1)
    for k in (1, 2, 5, 20):
        assert worst_z(run.draws[:, k - 1], law.at(k).joint) < Z_BOUND


@pytest.mark.long
@pytest.mark.parametrize(
    ("steps", "remainder", "temperature"), [(1, False, 1.0), pytest.param(2, True, 2.0, marks=pytest.mark.slow)]
)
def test_gaussian_posteriors_are_exact_at_steps_that_are_biased_without_the_test(steps, remainder, temperature):
    post = unequal_curvature(2)
    exact = post.exact()
    method = DMAHMC(1.2, steps, remainder, temperature=temperature)
    rounds = 60 * steps
    run = accord.sample(
        post, COMPLETE, accord.Rounds(method, burn_in=rounds, whiten=True), draws=1, chains=10_000, seed=2
    )
    law = accord.Gaussian(exact.mean, temperature * exact.cov)
    assert worst_z(run.draws[:, 0, :1], law) < Z_BOUND
    # agents take the same decision, from one random number
    assert run.statistics["consensus_error"].max() < 1e-4
    assert 0.6 < run.statistics["acceptance_rate"].mean() < 0.95
    # without the test it is a quarter wider
    assert worst_z(run.draws[:, 0, :1], accord.Gaussian(exact.mean, law.cov / (1 - 1.2**2 / 4))) > 3 * Z_BOUND


COUNTS, EXPOSURES = np.array([3.0, 8.0, 2.0, 5.0]), np.array([1.0, 2.0, 2.0, 1.0])


def log_rate():
    """The log rate of Poisson counts: the log of a gamma variable, skewed."""
    shards = [{"count": c, "exposure": e} for c, e in zip(COUNTS, EXPOSURES, strict=True)]

    def likelihood(x, shard):
        return shard["count"] * x[0] - shard["exposure"] * jnp.exp(x[0])

    return accord.Posterior(likelihood, lambda x: 0.0 * x[0], shards, np.zeros(1))


def off_by(run):
    """Errors of the first agent's mean and variance in Monte Carlo errors, and of the mean in standard deviations."""
    shape, x = COUNTS.sum(), run.draws[:, -1, 0, 0].astype(np.float64)
    mean = scipy.special.digamma(shape) - np.log(EXPOSURES.sum())
    second, fourth = scipy.special.polygamma(1, shape), scipy.special.polygamma(3, shape)
    sd = np.sqrt(second)
    # the fourth cumulant is that of the log of a gamma variable
    of_square = np.sqrt((fourth + 2.0 * second**2) / len(x))
    of_mean = (x.mean() - mean) / (sd / np.sqrt(len(x)))
    return of_mean, (np.mean((x - mean) ** 2) - second) / of_square, (x.mean() - mean) / sd


def drawn(network, method, rounds=60):
    return accord.sample(log_rate(), network, accord.Rounds(method, burn_in=rounds), draws=1, chains=20_000, seed=1)


@pytest.mark.long
@pytest.mark.parametrize("steps", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_skewed_posterior_is_exact_with_the_remainder(steps):
    h = 1.2 / np.sqrt(COUNTS.sum())
    run = drawn(accord.Network.complete(4), DMAHMC(h, steps), 60 * steps)
    assert np.abs(off_by(run)[:2]).max() < Z_BOUND
    assert run.statistics["acceptance_rate"].mean() < 0.95


@pytest.mark.long
def test_the_taylor_approximation_is_biased_by_the_square_of_the_step():
    sizes = []
    for h in (0.7, 1.4):
        of_mean, _, off = off_by(drawn(accord.Network.complete(4), DMAHMC(h / np.sqrt(COUNTS.sum()), remainder=False)))
        assert of_mean < -Z_BOUND
        sizes.append(-off)
    assert 0.02 < sizes[0] < 0.07 and 0.09 < sizes[1] < 0.16


@pytest.mark.long
def test_on_a_ring_agents_are_exact_up_to_disagreement():
    run = drawn(accord.Network.ring(4), DMAHMC(1.2 / np.sqrt(COUNTS.sum())))
    of_mean, of_variance, _ = off_by(run)
    # errors of 20,000 draws are 0.007 standard deviations for a mean, 0.01 for a variance: allow 0.02 more
    assert abs(of_mean) < Z_BOUND + 0.02 / 0.007 and abs(of_variance) < Z_BOUND + 0.02 / 0.01
    # agents rarely decide differently
    error = run.statistics["consensus_error"]
    assert error.max() > 0.1 and (error > 0.02).mean() < 0.02


@pytest.mark.slow
def test_one_agent_makes_plain_hmc():
    post = accord.models.gaussian([1.0], [4.0])
    run = accord.sample(
        post, accord.Network.ring(1), accord.Rounds(DMAHMC(2.0, 2), burn_in=60), draws=1, chains=10_000, seed=1
    )
    assert worst_z(run.draws[:, 0], accord.Gaussian([1.0], [4.0])) < Z_BOUND


@pytest.mark.long
def test_trackers_keep_the_sum_of_gradients_if_agents_decide_differently():
    post = unequal_curvature(2)
    method = DMAHMC(0.5, 2, mix_rounds=1)
    with jax.enable_x64(True):
        engine = LocalEngine.preliminary(post, PATH, method.bind(post, PATH), chains=50)
        state = engine.states(engine.advance(engine.start(np.ones((AGENTS, 2)), None), 40))
        np.testing.assert_allclose(state.tracker.sum(axis=0), state.gradient.sum(axis=0), rtol=1e-6, atol=1e-8)
        for chain in (0, 7):
            own = [post.gradients(x)[i] for i, x in enumerate(state.moving[..., chain])]
            np.testing.assert_allclose(state.gradient[..., chain], own, rtol=1e-6, atol=1e-8)
    # here they did: agents' draws differ
    apart = np.abs(state.position - state.position.mean(axis=0)).max(axis=(0, 1))
    assert apart.max() > 0.2


def test_omitted_exchanges_are_the_fewest_that_agree():
    for network in NETWORKS.values():
        weights = network.weights("metropolis")
        count = exchanges_for(weights, 0.03)
        assert contraction(weights, count) <= 0.03 and (count == 1 or contraction(weights, count - 1) > 0.03)
    assert exchanges_for(accord.Network.empty(3).weights("metropolis"), 0.03) == 1
    assert DMAHMC(0.1).bind(unequal_shards(1), COMPLETE).sampler.mix_rounds == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", POSTERIORS)
@pytest.mark.parametrize("network", NETWORKS)
def test_agents_with_unlike_shards_are_within_a_hundredth(network, name):
    post = POSTERIORS[name](2)
    exact, chains = post.exact(), 10_000
    run = accord.sample(
        post, NETWORKS[network], accord.Rounds(DMAHMC(0.8, 2), burn_in=120, whiten=True), draws=1, chains=chains, seed=1
    )
    x = run.draws[:, 0].astype(np.float64)
    assert (np.abs(x.mean(axis=0) - exact.mean) < (Z_BOUND / np.sqrt(chains) + 0.01) * exact.sd).all()
    assert (np.abs(x.std(axis=0) / exact.sd - 1.0) < Z_BOUND / np.sqrt(2 * chains) + 0.01).all()


@pytest.mark.long
def test_few_accepted_trajectories_warn():
    with pytest.warns(UserWarning, match=r"DMAHMC accepted .*% of its trajectories: take a step_size below 9"):
        accord.sample(
            log_rate(), accord.Network.complete(4), accord.Rounds(DMAHMC(9.0), burn_in=0), draws=20, chains=4, seed=0
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"step_size": 0.0}, "step_size must be"),
        ({"step_size": 0.1, "steps": 0}, "steps must be a whole number >= 1, found 0"),
        ({"step_size": 0.1, "mix_rounds": 0}, "mix_rounds must be a whole number >= 1, found 0"),
        ({"step_size": 0.1, "temperature": 0.0}, "temperature must be"),
        ({"step_size": 0.1, "noise": "independent"}, "noise must be \"common\" in DMAHMC, found 'independent'"),
    ],
)
def test_invalid_arguments_raise_clear_errors(options, message):
    with pytest.raises(ValueError, match=message):
        DMAHMC(**options)


def test_a_step_above_the_bound_of_leapfrog_is_refused():
    post = unequal_shards(2)
    bound = 2.0 / np.sqrt(np.linalg.eigvalsh(post.hessians().sum(axis=0))[-1])
    with pytest.raises(ValueError, match=f"step_size .* is not below {bound:.6g}, the stability bound of DMAHMC"):
        accord.sample(post, PATH, accord.Rounds(DMAHMC(1.01 * bound), burn_in=0), draws=1, chains=1)
