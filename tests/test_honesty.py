"""A run says what is wrong with it: what was found, and a remedy."""

import pickle
import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tables import AGENTS, NETWORKS, unequal_curvature, unequal_shards

import accord
from accord.posterior.coordinates import Coordinates
from accord.results import warnings as complaints
from accord.results.diagnostics import pareto
from accord.results.findings import Expected, Findings, recalled
from accord.results.netcdf import as_tree
from accord.results.run import Traffic
from accord.samplers import DADMMS, DESGLD, EXTRASGLD, GTBAOAB, HubSGLD, Replicated
from accord.samplers.schedules import diminishing
from accord.sampling import diagnostics as honesty
from accord.sampling.diagnostics import examination, examine

RING = NETWORKS["ring"]
NAMES = ("age", "dose")


def made(average, kept=None, findings=None):
    """A run of given draws, of three agents with those of the average where none are given."""
    chains, draws, dim = average.shape
    kept = np.repeat(average[:, :, None], 3, axis=2) if kept is None else kept
    counts = np.zeros(kept.shape[2], dtype=int)
    return accord.Run(
        average=average,
        agents=np.arange(kept.shape[2]),
        kept=kept,
        statistics={"consensus_error": np.zeros((chains, draws))},
        names=NAMES[:dim],
        variables=(("x", (dim,)),),
        traffic=Traffic(draws, draws, counts, counts),
        seconds=1.0,
        examine=None if findings is None else partial(recalled, findings),
    )


def normal(draws=1000, seed=0):
    return np.random.default_rng(seed).standard_normal((4, draws, 2))


def told(run, *sites):
    """What the summary warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run.summary(*sites)
    assert all(warning.category is UserWarning for warning in caught)
    return [str(warning.message) for warning in caught]


def expected(agents=3, **changed):
    right = {"mean": np.zeros((agents, 2)), "sd": np.ones((agents, 2)), "average_mean": np.zeros(2)}
    return Expected(**{**right, "average_sd": np.ones(2), **changed})


@pytest.fixture(scope="module")
def coarse():
    """Raw DE-SGLD with too large a step."""
    covariances = np.arange(1.0, 7.0)[:, None, None] * np.eye(2)
    post = accord.models.gaussian(np.array([[0.0, 5.0], *[[1.0, 0.0]] * 5]), covariances)
    return post, accord.sample(post, RING, accord.Rounds(DESGLD(0.3), burn_in=100, thin=5), draws=1000, seed=0)


@pytest.fixture(scope="module")
def default():
    """Without method or numbers, of the methods that walk."""
    return accord.sample(unequal_curvature(2), RING, accord.Rounds(whiten=True), draws=1000, seed=0)


@pytest.mark.long
def test_a_run_by_accords_own_choice_warns_of_nothing(default, tmp_path, monkeypatch):
    # what the choice expected is handed on
    monkeypatch.delattr(honesty, "_forecast")
    assert "findings" not in vars(default)
    assert told(default) == []
    assert default.findings.expected is not None and default.findings.reason == ""
    assert abs(default.findings.temperature - 1.0) < 4 * default.findings.temperature_error + 0.02
    default.save(tmp_path / "run.nc")
    loaded = accord.Run.load(tmp_path / "run.nc")
    for found, before in zip(loaded.findings.expected, default.findings.expected, strict=True):
        np.testing.assert_array_equal(found, before)
    for found, before in zip(loaded.findings.balance, default.findings.balance, strict=True):
        np.testing.assert_array_equal(found, before)
    assert loaded.findings[1:-1] == default.findings[1:-1] and told(loaded) == []


def test_too_large_a_step_is_told_by_the_law_and_by_the_agents(coarse, tmp_path):
    post, run = coarse
    bias, apart = told(run)
    law, exact = accord.law(post, RING, DESGLD(0.3)).stationary(), post.exact()
    own = [law.agent(i) for i in range(AGENTS)]
    mean = np.array([(x.mean - exact.mean) / exact.sd for x in own])
    sd = np.array([x.sd / exact.sd for x in own])
    np.testing.assert_allclose(run.findings.expected.mean, mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(run.findings.expected.sd, sd, rtol=1e-4)
    agent, d = np.unravel_index(np.abs(mean).argmax(), mean.shape)
    assert np.abs(mean).max() > np.abs(sd - 1).max()
    assert f"the mean of x[{d}] at agent {agent} is off by {mean[agent, d]:+.2g} posterior sds" in bias
    assert "Smaller steps" in bias and "accord.plan" in bias
    average, kept = run.average.astype(float), run.kept.astype(float)
    ratio = np.sqrt(np.square(kept - average[:, :, None]).mean(axis=(0, 1))) / average.std(axis=(0, 1))
    agent, d = np.unravel_index(ratio.argmax(), ratio.shape)
    assert f"agent {agent} is {ratio[agent, d]:.2f} sds of the average away from it in x[{d}]" in apart
    assert "above 0.32" in apart and "mix_rounds" in apart
    # what is read again warns alike, and names the sites where it is given their names
    run.save(tmp_path / "run.nc")
    loaded = accord.Run.load(tmp_path / "run.nc")
    assert told(loaded) == [bias, apart]
    assert f"{'abcdef'[agent]} is {ratio[agent, d]:.2f} sds" in told(loaded, "abcdef")[1]
    assert told(pickle.loads(pickle.dumps(run))) == [bias, apart]


@pytest.mark.filterwarnings("ignore:.*has no digest")
def test_a_file_without_a_forecast_is_checked_on_the_rest(coarse, tmp_path):
    _, run = coarse
    run.to_datatree().to_netcdf(tmp_path / "run.nc", engine="h5netcdf")
    (apart,) = told(accord.Run.load(tmp_path / "run.nc"))
    assert "the agents disagree" in apart


def test_bias_within_the_tolerance_is_none():
    assert told(made(normal(), findings=Findings(expected(sd=np.full((3, 2), 1.049))))) == []
    sd = np.ones((3, 2))
    sd[2, 1] = 0.94
    (text,) = told(made(normal(), findings=Findings(expected(sd=sd))))
    assert "the sd of dose at agent 2 is 0.94 times the posterior's, more than the 0.05 allowed" in text
    assert "the average is right within 0 posterior sds" in text
    # agents whose draws were not kept are nobody's concern, the average always is
    alone = normal()
    run = made(alone, np.empty((4, 1000, 0, 2)), Findings(expected(sd=sd)))
    assert told(run) == []
    run = made(alone, np.empty((4, 1000, 0, 2)), Findings(expected(average_mean=np.array([-0.2, 0.0]))))
    (text,) = told(run)
    assert "the mean of age in the average is off by -0.2 posterior sds" in text and "; the average" not in text


def test_few_effective_draws_and_chains_that_disagree():
    (text,) = told(made(normal(60)))
    assert "ESS is" in text and "in the average, below 400" in text and "thin" in text
    kept = np.repeat(normal()[:, :, None], 3, axis=2)
    kept[0, :, 1, 1] += 0.4
    (text,) = told(made(normal(), kept))
    assert "R-hat is 1.0" in text and "for dose at agent 1, above 1.01" in text and "burn_in" in text
    (text,) = told(made(normal(), kept), ["north", "south", "west"])
    assert "for dose at south" in text
    stuck = normal()
    stuck[2, :, 0] = 0.0
    (text,) = told(made(stuck))
    assert "the draws of age in the average are all the same in a chain" in text
    (text,) = told(made(normal(3)))
    assert "3 draws a chain are too few" in text


def test_tails_without_a_standard_deviation_are_told():
    rng, usual = np.random.default_rng(0), normal()
    for few in (slice(0, 30), slice(None)):
        drawn = usual[:, few] if few.stop is None else usual
        assert "tails" not in " ".join(told(made(drawn)))
    for heavy in (rng.standard_t(3, usual.shape[:2]), np.exp(rng.standard_normal(usual.shape[:2]))):
        drawn = usual.copy()
        drawn[..., 1] = heavy
        assert told(made(drawn)) == []
    # a chain that strays far and comes back: R-hat and effective draws see nothing of it
    strayed = usual.copy()
    strayed[0, 300:340, 1] -= np.linspace(0.0, 80.0, 40)
    (text,) = told(made(strayed))
    assert "the draws of dose in the average have tails too heavy for a standard deviation" in text
    assert "smaller steps, or Replicated()" in text
    drawn[..., 1] = rng.standard_cauchy(usual.shape[:2])
    assert "tails too heavy" in told(made(drawn))[-1]


def test_tails_of_numbers_that_are_all_alike_are_no_heavy_ones():
    drawn = normal()
    drawn[..., 1] = drawn[..., 1].clip(-1.0, 1.0)
    assert told(made(drawn)) == []
    # one tail is bounded, the other as heavy as can be
    drawn[..., 1] = np.random.default_rng(0).standard_cauchy(drawn.shape[:2]).clip(None, 1.0)
    assert "the draws of dose in the average have tails too heavy" in told(made(drawn))[-1]
    assert pareto(np.repeat([0.0, -50.0], [100, 900])) == -np.inf


def random_intercepts(agents=4):
    """A logistic regression with an intercept for each site, whole and not centred: its tau may go to 0."""
    rng = np.random.default_rng(3)
    shards = []
    for site, rows in enumerate((120, 150, 151, 150)):
        X = rng.standard_normal((rows, 3))
        logits = -0.5 + X @ [0.8, -0.5, 0.3] + 0.25 * rng.standard_normal()
        shards.append((X, (rng.random(rows) < 1.0 / (1.0 + np.exp(-logits))).astype(float), np.full(rows, site)))

    def log_likelihood(p, rows):
        X, y, site = rows
        logits = p["base"] + X @ p["slopes"] + jnp.exp(p["log_tau"]) * p["z"][site.astype(int)]
        return y * logits - jax.nn.softplus(logits)

    def log_prior(p):
        wide = p["base"] ** 2 + jnp.sum(p["slopes"] ** 2)
        return -0.5 * (wide / 6.25 + jnp.sum(p["z"] ** 2) + jnp.exp(2.0 * p["log_tau"])) + p["log_tau"]

    init = {"base": np.zeros(()), "slopes": np.zeros(3), "log_tau": np.zeros(()), "z": np.zeros(agents)}
    return accord.Posterior(log_likelihood, log_prior, shards, init)


@pytest.mark.slow
def test_excursions_that_a_fixed_step_cannot_come_back_from_are_told():
    # three times the step that accord takes: the sd of log tau is some ten times too wide
    method = GTBAOAB(step_size=0.25, friction=0.3)
    run = accord.sample(
        random_intercepts(), accord.Network.ring(4), accord.Rounds(method, thin=30, whiten=True), draws=1000, seed=0
    )
    x = run.draws[:, :, 0, run.names.index("log_tau")].astype(float)
    assert x.std() > 3.0 * np.subtract(*np.quantile(x, [0.75, 0.25])) / 1.349
    # which parameter is named hangs on the excursions
    for warning in ("have tails too heavy for a standard deviation", "a draw is where the posterior has no mass"):
        assert any(warning in text for text in told(run)), warning


def test_of_many_agents_the_least_mixed_are_looked_at(monkeypatch):
    monkeypatch.setattr(complaints, "_COUNTED", 4)
    kept = np.repeat(normal()[:, :, None], 8, axis=2) + 0.01 * np.random.default_rng(1).standard_normal((4, 1000, 8, 2))
    assert told(made(normal(), kept)) == []
    kept[:, :, 5, 0] += np.array([-0.2, -0.1, 0.1, 0.2])[:, None]
    (text,) = told(made(normal(), kept))
    assert "for age at agent 5" in text


def test_disagreement_counts_from_where_an_agents_sd_is_wrong_by_the_tolerance():
    noise = np.random.default_rng(1).standard_normal((4, 1000, 3, 2))
    for scale, many in ((0.29, 0), (0.35, 1)):
        kept = normal()[:, :, None] + scale * noise
        texts = told(made(normal(), kept))
        assert len(texts) == many
        # chains that travel are drawn one by one
        assert told(made(normal(), kept, Findings(agreeing=False))) == []
    wrong = np.std(normal()[:, :, None] + (1.05**2 - 1) ** 0.5 * noise)
    assert abs(wrong - 1.05) < 0.02


def test_an_optimiser_has_no_draws_to_warn_of():
    run = accord.sample(
        unequal_shards(2), RING, accord.Rounds(DADMMS(1.0, temperature=0.0), burn_in=50), draws=8, chains=2
    )
    assert told(run) == []


SHAPE, RATE = 1.5, 2.0


def skewed():
    """exp(-F) is the law of the logarithm of a gamma variable, split over three agents."""
    return accord.Posterior(
        lambda x, rows: (SHAPE * x[0] - RATE * jnp.exp(x[0])) * rows,
        lambda x: 0.0 * x[0],
        [np.full(1, share) for share in (0.2, 0.3, 0.5)],
        np.zeros(1),
        names=["age"],
    )


@pytest.mark.parametrize("temperature", [1.0, 1.5])
def test_the_temperature_is_that_of_the_draws_whatever_their_shape(temperature):
    post, net, method = skewed(), accord.Network.ring(3), GTBAOAB(0.3, 1.0)
    law = Expected(np.zeros((3, 1)), np.ones((3, 1)), np.zeros(1), np.ones(1))
    # exact draws of exp(-F / temperature)
    x = np.log(np.random.default_rng(0).gamma(SHAPE / temperature, temperature / RATE, (4, 1000, 1)))
    found = examine(post, net, method, None, law, x)
    assert 0.01 < found.temperature_error < 0.05 and abs(found.temperature - temperature) < 4 * found.temperature_error
    # their variance would not tell: 1 / SHAPE is that of the Gaussian nearest to exp(-F), whose curvature is RATE e^x
    assert x.var() > 1.2 * temperature / SHAPE
    moved = examine(post.transformed(Coordinates([0.4], [0.8])), net, method, None, law, x)
    np.testing.assert_allclose(moved.temperature, found.temperature, rtol=1e-6)
    texts = told(made(x, findings=found))
    assert len(texts) == (temperature > 1.0)
    assert all("too wide. Smaller steps help" in text for text in texts)
    # where there are some
    texts = told(made(x, findings=found._replace(left_out="the noise of minibatches")))
    assert any("too wide. Minibatches heat, so a larger batch_size" in text for text in texts) == (temperature > 1.0)
    (cold,) = told(made(x, findings=found._replace(temperature=0.7)))
    assert "the temperature 0.70, give or take" in cold and "too narrow" in cold and "burn_in" in cold


def test_a_temperature_that_the_law_says_is_told_as_bias_only():
    wide = expected(average_sd=np.full(2, 1.2), sd=np.full((3, 2), 1.2))
    texts = told(made(normal(), findings=Findings(wide, temperature=1.44, temperature_error=0.01)))
    assert len(texts) == 1 and "exact law" in texts[0]


@pytest.mark.long
def test_minibatches_heat():
    post = unequal_shards(2)
    run = accord.sample(
        post, RING, accord.Rounds(GTBAOAB(0.2, 1.5, batch_size=1), burn_in=200, thin=5), draws=1000, seed=0
    )
    texts = told(run)
    assert "batch_size" in texts[-1] and f"the temperature {run.findings.temperature:.2f}, give or take" in texts[-1]
    assert run.findings.temperature > 1.3
    assert "where the method's law, which leaves out the noise of minibatches, has" in texts[-1]
    assert "(batch_size=1)" in run.findings.left_out and "run.summary()" in run.findings.left_out


def test_what_the_law_of_minibatches_leaves_out_is_said_wherever_it_is_quoted(tmp_path):
    left_out = "This leaves out the noise of minibatches (batch_size=3)"
    measured = Findings(expected(), temperature=1.01, temperature_error=0.01, left_out=left_out)
    assert told(made(normal(), findings=measured)) == []
    (unseen,) = told(made(normal(), findings=Findings(expected(), left_out=left_out)))
    assert "leaves out the noise of minibatches" in unseen and "was not measured: compare with a run with" in unseen
    (bias,) = told(made(normal(), findings=measured._replace(expected=expected(sd=np.full((3, 2), 1.2)))))
    assert "exact law" in bias and bias.endswith(left_out)
    run = made(normal(), findings=measured)
    run.save(tmp_path / "run.nc")
    assert accord.Run.load(tmp_path / "run.nc").findings.left_out == left_out
    # files were written without
    tree = run.to_datatree()
    tree["forecast"] = as_tree(measured, run.names)
    del tree["forecast"].attrs["left_out"]
    tree.to_netcdf(tmp_path / "earlier.nc", engine="h5netcdf")
    with pytest.warns(UserWarning, match="has no digest"):
        earlier = accord.Run.load(tmp_path / "earlier.nc").findings
    assert earlier.left_out == "" and earlier[1:] == measured._replace(left_out="")[1:]


def test_without_a_law_there_is_a_reason():
    post, x = unequal_shards(2), normal(8)
    empty, ring = accord.Network.empty(AGENTS), RING
    for net, sampler, reason in (
        (ring, DESGLD(diminishing(0.01)), "step schedule"),
        (ring, HubSGLD(0.01), "HubSGLD is not known"),
        (ring, Replicated(), "Replicated is not known"),
        (ring, DESGLD(0.01, temperature=2.0), "the temperature 2"),
        (ring, DESGLD(50.0), "unstable"),
        (empty, DESGLD(0.01), "connected"),
    ):
        found = examine(post, net, sampler, None, None, x)
        assert found.expected is None and reason in found.reason
        assert found.target_temperature == sampler.temperature and found.agreeing is not isinstance(sampler, HubSGLD)
    many = accord.models.quadratic(np.ones((2, 1, 1)) * np.eye(201), np.zeros((2, 201)))
    found = examine(many, accord.Network.ring(2), DESGLD(0.01), None, None, np.zeros((1, 2, 201)))
    assert "201 parameters" in found.reason and np.isnan(found.temperature)


def test_where_the_data_is_elsewhere_only_what_was_expected_before_is_known():
    post = unequal_curvature(2).with_data_at(object())
    found = examination(post, RING, DESGLD(0.1), None, None)(normal())
    assert "elsewhere" in found.reason and np.isnan(found.temperature)
    law = expected(AGENTS)
    found = examination(post, RING, GTBAOAB(0.2, 1.0), None, law)(normal())
    assert found.expected == law and np.isnan(found.temperature)
    assert found.left_out == ""
    found = examination(post, RING, GTBAOAB(0.2, 1.0, batch_size=1), None, law)(normal())
    assert "(batch_size=1)" in found.left_out and "temperature" in told(made(normal(), findings=found))[-1]


@pytest.mark.long
@pytest.mark.parametrize("network", ["star", "ring"])
@pytest.mark.parametrize("method", [DADMMS(20.0, noise="common"), EXTRASGLD(0.05, noise="common")])
def test_what_adds_up_differences_does_not_drift_far_from_zero(method, network):
    agents = np.random.default_rng(0).standard_normal((10, 2))
    post = accord.models.gaussian(1e4 + agents, np.array([10.0 * np.eye(2)] * 10))
    net = getattr(accord.Network, network)(10)
    run = accord.sample(
        post, net, accord.Rounds(method, burn_in=12_000, thin=4, init=np.full(2, 1e4)), draws=10_000, chains=16, seed=0
    )
    draws = run.average[..., 0].astype(float) - post.exact().mean[0]
    # sums over neighbours put D-ADMMS on the star 20 standard deviations off, whose rounding adds up in its duals
    assert abs(draws.mean()) < 0.15 and abs(draws.std() - 1.0) < 0.1
