"""Warnings of `run.summary()`: each has the number found and a remedy."""

import dataclasses
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
from accord.results.certificate import Certificate, Check
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
    """A run of given draws. Without `kept` three agents have the draws of the average."""
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


def warned(run, *sites):
    """Warnings of the summary."""
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
    """DE-SGLD with too large a step."""
    covariances = np.arange(1.0, 7.0)[:, None, None] * np.eye(2)
    post = accord.models.gaussian(np.array([[0.0, 5.0], *[[1.0, 0.0]] * 5]), covariances)
    return post, accord.sample(post, RING, accord.Rounds(DESGLD(0.3), burn_in=100, thin=5), draws=1000, seed=0)


@pytest.fixture(scope="module")
def default():
    """A run of a round-based method chosen by accord."""
    return accord.sample(unequal_curvature(2), RING, accord.Rounds(whiten=True), draws=1000, seed=0)


@pytest.mark.long
def test_a_run_of_the_method_that_accord_chose_has_no_warnings(default, tmp_path, monkeypatch):
    # the run uses the forecast of the choice
    monkeypatch.delattr(honesty, "_forecast")
    assert "findings" not in vars(default)
    assert warned(default) == []
    assert default.findings.expected is not None and default.findings.reason == ""
    assert abs(default.findings.temperature - 1.0) < 4 * default.findings.temperature_error + 0.02
    default.save(tmp_path / "run.nc")
    loaded = accord.Run.load(tmp_path / "run.nc")
    for found, before in zip(loaded.findings.expected, default.findings.expected, strict=True):
        np.testing.assert_array_equal(found, before)
    for found, before in zip(loaded.findings.balance, default.findings.balance, strict=True):
        np.testing.assert_array_equal(found, before)
    assert loaded.findings[1:-1] == default.findings[1:-1] and warned(loaded) == []


def test_too_large_a_step_shows_in_the_law_and_between_agents(coarse, tmp_path):
    post, run = coarse
    bias, apart = warned(run)
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
    assert f"agent {agent} is {ratio[agent, d]:.2f} sds away from the average in x[{d}]" in apart
    assert "Above 0.32" in apart and "mix_rounds" in apart
    # a loaded run has the same warnings, with the names of sites if they are given
    run.save(tmp_path / "run.nc")
    loaded = accord.Run.load(tmp_path / "run.nc")
    assert warned(loaded) == [bias, apart]
    assert f"{'abcdef'[agent]} is {ratio[agent, d]:.2f} sds" in warned(loaded, "abcdef")[1]
    assert warned(pickle.loads(pickle.dumps(run))) == [bias, apart]


@pytest.mark.filterwarnings("ignore:.*has no digest")
def test_a_file_without_a_forecast_has_the_other_warnings(coarse, tmp_path):
    _, run = coarse
    run.to_datatree().to_netcdf(tmp_path / "run.nc", engine="h5netcdf")
    (apart,) = warned(accord.Run.load(tmp_path / "run.nc"))
    assert "the agents disagree" in apart


def test_bias_within_the_tolerance_gives_no_warning():
    assert warned(made(normal(), findings=Findings(expected(sd=np.full((3, 2), 1.049))))) == []
    sd = np.ones((3, 2))
    sd[2, 1] = 0.94
    (text,) = warned(made(normal(), findings=Findings(expected(sd=sd))))
    assert "the sd of dose at agent 2 is 0.94 times the posterior's, more than the 0.05 allowed" in text
    assert "the average is right within 0 posterior sds" in text
    # agents without kept draws are not checked, the average always is
    alone = normal()
    run = made(alone, np.empty((4, 1000, 0, 2)), Findings(expected(sd=sd)))
    assert warned(run) == []
    run = made(alone, np.empty((4, 1000, 0, 2)), Findings(expected(average_mean=np.array([-0.2, 0.0]))))
    (text,) = warned(run)
    assert "the mean of age in the average is off by -0.2 posterior sds" in text and "; the average" not in text


def test_few_effective_draws_and_large_r_hat_give_warnings(monkeypatch):
    (text,) = warned(made(normal(60)))
    assert "ESS is" in text and "in the average, below 400" in text and "thin" in text
    certified = Certificate((Check("weights", 0.1, 0.5, True, ""),))
    (text,) = warned(dataclasses.replace(made(normal(60)), certificate=certified))
    assert "below 400" in text and text.endswith(": take more draws")
    kept = np.repeat(normal()[:, :, None], 3, axis=2)
    kept[0, :, 1, 1] += 0.4
    (text,) = warned(made(normal(), kept))
    assert "R-hat is 1.0" in text and "for dose at agent 1, above 1.01" in text and "burn_in" in text
    # a value that rounds to the limit is printed above it
    monkeypatch.setattr(complaints, "diagnostics", lambda series: np.array([[900.0] * 2, [1.0101] * 2]))
    (text,) = warned(made(normal(), np.empty((4, 1000, 0, 2))))
    assert "R-hat is 1.011 for age in the average, above 1.01" in text
    monkeypatch.undo()
    (text,) = warned(made(normal(), kept), ["north", "south", "west"])
    assert "for dose at south" in text
    stuck = normal()
    stuck[2, :, 0] = 0.0
    (text,) = warned(made(stuck))
    assert "the draws of age in the average are all equal in a chain" in text
    (text,) = warned(made(normal(3)))
    assert "3 draws per chain are too few" in text


def test_tails_without_a_standard_deviation_give_a_warning():
    rng, usual = np.random.default_rng(0), normal()
    for few in (slice(0, 30), slice(None)):
        drawn = usual[:, few] if few.stop is None else usual
        assert "tails" not in " ".join(warned(made(drawn)))
    for heavy in (rng.standard_t(3, usual.shape[:2]), np.exp(rng.standard_normal(usual.shape[:2]))):
        drawn = usual.copy()
        drawn[..., 1] = heavy
        assert warned(made(drawn)) == []
    # an excursion of one chain that R-hat and effective draws do not detect
    strayed = usual.copy()
    strayed[0, 300:340, 1] -= np.linspace(0.0, 80.0, 40)
    (text,) = warned(made(strayed))
    assert "the draws of dose in the average have tails too heavy for a standard deviation" in text
    assert "smaller steps, or Replicated()" in text
    drawn[..., 1] = rng.standard_cauchy(usual.shape[:2])
    assert "tails too heavy" in warned(made(drawn))[-1]


def test_tails_of_equal_numbers_are_not_heavy():
    drawn = normal()
    drawn[..., 1] = drawn[..., 1].clip(-1.0, 1.0)
    assert warned(made(drawn)) == []
    # one bounded tail and one heavy tail
    drawn[..., 1] = np.random.default_rng(0).standard_cauchy(drawn.shape[:2]).clip(None, 1.0)
    assert "the draws of dose in the average have tails too heavy" in warned(made(drawn))[-1]
    assert pareto(np.repeat([0.0, -50.0], [100, 900])) == -np.inf


def random_intercepts(agents=4):
    """A logistic regression with non-centred random intercepts per site, whose sd tau may go to 0."""
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
def test_long_excursions_of_a_fixed_step_give_a_warning():
    # three times the step that accord chooses: the sd of log tau is about ten times too large
    method = GTBAOAB(step_size=0.25, friction=0.3)
    run = accord.sample(
        random_intercepts(), accord.Network.ring(4), accord.Rounds(method, thin=30, whiten=True), draws=1000, seed=0
    )
    x = run.draws[:, :, 0, run.names.index("log_tau")].astype(float)
    assert x.std() > 3.0 * np.subtract(*np.quantile(x, [0.75, 0.25])) / 1.349
    # the named parameter depends on the excursions
    for warning in ("have tails too heavy for a standard deviation", "a draw is where the posterior has no mass"):
        assert any(warning in text for text in warned(run)), warning


def test_of_many_agents_the_least_mixed_are_checked(monkeypatch):
    monkeypatch.setattr(complaints, "_COUNTED", 4)
    kept = np.repeat(normal()[:, :, None], 8, axis=2) + 0.01 * np.random.default_rng(1).standard_normal((4, 1000, 8, 2))
    assert warned(made(normal(), kept)) == []
    kept[:, :, 5, 0] += np.array([-0.2, -0.1, 0.1, 0.2])[:, None]
    (text,) = warned(made(normal(), kept))
    assert "for age at agent 5" in text


def test_disagreement_counts_if_the_sd_of_an_agent_is_wrong_by_the_tolerance():
    noise = np.random.default_rng(1).standard_normal((4, 1000, 3, 2))
    for scale, many in ((0.29, 0), (0.35, 1)):
        kept = normal()[:, :, None] + scale * noise
        texts = warned(made(normal(), kept))
        assert len(texts) == many
        # travelling chains are independent
        assert warned(made(normal(), kept, Findings(agreeing=False))) == []
    wrong = np.std(normal()[:, :, None] + (1.05**2 - 1) ** 0.5 * noise)
    assert abs(wrong - 1.05) < 0.02


def test_an_optimiser_has_no_warnings_about_draws():
    run = accord.sample(
        unequal_shards(2), RING, accord.Rounds(DADMMS(1.0, temperature=0.0), burn_in=50), draws=8, chains=2
    )
    assert warned(run) == []


SHAPE, RATE = 1.5, 2.0


def skewed():
    """The law of the logarithm of a gamma variable, split over three agents."""
    return accord.Posterior(
        lambda x, rows: (SHAPE * x[0] - RATE * jnp.exp(x[0])) * rows,
        lambda x: 0.0 * x[0],
        [np.full(1, share) for share in (0.2, 0.3, 0.5)],
        np.zeros(1),
        names=["age"],
    )


@pytest.mark.parametrize("temperature", [1.0, 1.5])
def test_the_measured_temperature_is_right_for_skewed_draws(temperature):
    post, net, method = skewed(), accord.Network.ring(3), GTBAOAB(0.3, 1.0)
    law = Expected(np.zeros((3, 1)), np.ones((3, 1)), np.zeros(1), np.ones(1))
    # exact draws of exp(-F / temperature)
    x = np.log(np.random.default_rng(0).gamma(SHAPE / temperature, temperature / RATE, (4, 1000, 1)))
    found = examine(post, net, method, None, law, x)
    assert 0.01 < found.temperature_error < 0.05 and abs(found.temperature - temperature) < 4 * found.temperature_error
    # the variance does not: the Gaussian nearest to exp(-F), whose curvature is RATE e^x, has variance 1 / SHAPE
    assert x.var() > 1.2 * temperature / SHAPE
    moved = examine(post.transformed(Coordinates([0.4], [0.8])), net, method, None, law, x)
    np.testing.assert_allclose(moved.temperature, found.temperature, rtol=1e-6)
    texts = warned(made(x, findings=found))
    assert len(texts) == (temperature > 1.0)
    assert all("too wide. Smaller steps help" in text for text in texts)
    # with minibatches
    texts = warned(made(x, findings=found._replace(left_out="the noise of minibatches")))
    assert any("too wide. Minibatches heat, so a larger batch_size" in text for text in texts) == (temperature > 1.0)
    (cold,) = warned(made(x, findings=found._replace(temperature=0.7)))
    assert "the temperature 0.70 ± " in cold and "too narrow" in cold and "burn_in" in cold


def test_a_temperature_that_the_law_predicts_is_reported_as_bias_only():
    wide = expected(average_sd=np.full(2, 1.2), sd=np.full((3, 2), 1.2))
    texts = warned(made(normal(), findings=Findings(wide, temperature=1.44, temperature_error=0.01)))
    assert len(texts) == 1 and "exact law" in texts[0]


@pytest.mark.long
def test_minibatches_heat_the_draws():
    post = unequal_shards(2)
    run = accord.sample(
        post, RING, accord.Rounds(GTBAOAB(0.2, 1.5, batch_size=1), burn_in=200, thin=5), draws=1000, seed=0
    )
    texts = warned(run)
    assert "batch_size" in texts[-1] and f"the temperature {run.findings.temperature:.2f} ± " in texts[-1]
    assert run.findings.temperature > 1.3
    assert "the method's law, which leaves out the noise of minibatches, predicts" in texts[-1]
    assert "(batch_size=1)" in run.findings.left_out and "run.summary()" in run.findings.left_out


def test_every_quoted_law_mentions_that_it_omits_minibatch_noise(tmp_path):
    left_out = "This leaves out the noise of minibatches (batch_size=3)"
    measured = Findings(expected(), temperature=1.01, temperature_error=0.01, left_out=left_out)
    assert warned(made(normal(), findings=measured)) == []
    (unseen,) = warned(made(normal(), findings=Findings(expected(), left_out=left_out)))
    assert "leaves out the noise of minibatches" in unseen and "was not measured: compare with a run with" in unseen
    (bias,) = warned(made(normal(), findings=measured._replace(expected=expected(sd=np.full((3, 2), 1.2)))))
    assert "exact law" in bias and bias.endswith(left_out)
    run = made(normal(), findings=measured)
    run.save(tmp_path / "run.nc")
    assert accord.Run.load(tmp_path / "run.nc").findings.left_out == left_out
    # files of earlier versions lack the attribute
    tree = run.to_datatree()
    tree["forecast"] = as_tree(measured, run.names)
    del tree["forecast"].attrs["left_out"]
    tree.to_netcdf(tmp_path / "earlier.nc", engine="h5netcdf")
    with pytest.warns(UserWarning, match="has no digest"):
        earlier = accord.Run.load(tmp_path / "earlier.nc").findings
    assert earlier.left_out == "" and earlier[1:] == measured._replace(left_out="")[1:]


def test_findings_without_a_law_have_a_reason():
    post, x = unequal_shards(2), normal(8)
    empty, ring = accord.Network.empty(AGENTS), RING
    for net, sampler, reason in (
        (ring, DESGLD(diminishing(0.01)), "step schedule"),
        (ring, HubSGLD(0.01), "HubSGLD has no exact law"),
        (ring, Replicated(), "Replicated has no exact law"),
        (ring, DESGLD(0.01, temperature=2.0), "samples at temperature 2"),
        (ring, DESGLD(50.0), "unstable"),
        (empty, DESGLD(0.01), "connected"),
    ):
        found = examine(post, net, sampler, None, None, x)
        assert found.expected is None and reason in found.reason
        assert found.target_temperature == sampler.temperature and found.agreeing is not isinstance(sampler, HubSGLD)
    many = accord.models.quadratic(np.ones((2, 1, 1)) * np.eye(201), np.zeros((2, 201)))
    found = examine(many, accord.Network.ring(2), DESGLD(0.01), None, None, np.zeros((1, 2, 201)))
    assert "201 parameters" in found.reason and np.isnan(found.temperature)


def test_remote_data_has_no_findings_beyond_the_forecast_of_the_run():
    post = unequal_curvature(2).with_data_at(object())
    found = examination(post, RING, DESGLD(0.1), None, None)(normal())
    assert "at other sites" in found.reason and np.isnan(found.temperature)
    law = expected(AGENTS)
    found = examination(post, RING, GTBAOAB(0.2, 1.0), None, law)(normal())
    assert found.expected == law and np.isnan(found.temperature)
    assert found.left_out == ""
    found = examination(post, RING, GTBAOAB(0.2, 1.0, batch_size=1), None, law)(normal())
    assert "(batch_size=1)" in found.left_out and "temperature" in warned(made(normal(), findings=found))[-1]


@pytest.mark.long
@pytest.mark.parametrize("network", ["star", "ring"])
@pytest.mark.parametrize("method", [DADMMS(20.0, noise="common"), EXTRASGLD(0.05, noise="common")])
def test_methods_that_sum_differences_do_not_drift_far_from_zero(method, network):
    agents = np.random.default_rng(0).standard_normal((10, 2))
    post = accord.models.gaussian(1e4 + agents, np.array([10.0 * np.eye(2)] * 10))
    net = getattr(accord.Network, network)(10)
    run = accord.sample(
        post, net, accord.Rounds(method, burn_in=12_000, thin=4, init=np.full(2, 1e4)), draws=10_000, chains=16, seed=0
    )
    draws = run.average[..., 0].astype(float) - post.exact().mean[0]
    # with sums over neighbours, rounding errors in the duals put D-ADMMS on the star 20 standard deviations off
    assert abs(draws.mean()) < 0.15 and abs(draws.std() - 1.0) < 0.1
