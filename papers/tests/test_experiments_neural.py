"""Experiments on real data and neural networks: their functions, and each experiment at a tiny size on random data."""

import csv
import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import accord
from accord.samplers import DGLMC, DULA, GCMC, HubSGLD
from accord_papers import datasets
from accord_papers.experiments import frame, longrun
from accord_papers.experiments import neural as networks
from accord_papers.experiments.dglmc import fig3 as dglmc_fig3
from accord_papers.experiments.dglmc import fig4 as dglmc_fig4
from accord_papers.experiments.dglmc import laws as dglmc_laws
from accord_papers.experiments.frame import Size
from accord_papers.experiments.gtdula import fig3 as gtdula_fig3
from accord_papers.experiments.verdicts import Verdict

pytestmark = pytest.mark.long

TINY = {
    gtdula_fig3: {"own": 20, "other": 2, "batch": 5, "rounds": 12, "points": 4, "looked_at": 30, "trained_on": 30},
    dglmc_fig3: {"rows": 320, "rounds": 400, "chains": 2},
    dglmc_fig4: {"rows": 100, "shards": 5, "rounds": 12, "thin": 1, "looked_at": 30},
}


def digits(rows=60):
    """`rows` pictures of each digit, with a bright row for the digit."""
    rng, labels = np.random.default_rng(0), np.repeat(np.arange(10), rows)
    pictures = rng.integers(60, size=(len(labels), 28, 28)).astype(np.uint8)
    pictures[np.arange(len(labels)), 4 + 2 * labels] = 255
    return datasets.Digits(pictures, labels.astype(np.uint8), pictures[::10], labels[::10].astype(np.uint8))


def covers(rows=400):
    rng = np.random.default_rng(1)
    X = rng.integers(0, 1000, size=(rows, 54)).astype(np.float32)
    return datasets.Covers(X, np.where(X[:, 0] + rng.normal(0, 300, rows) > 500, 2, 1).astype(np.uint8))


@pytest.fixture
def data(tmp_path, monkeypatch):
    np.savez(tmp_path / "mnist.npz", **digits()._asdict())
    np.savez(tmp_path / "covtype.npz", **covers()._asdict())
    monkeypatch.setenv("ACCORD_DATA", str(tmp_path))


@pytest.mark.parametrize("module", TINY)
def test_missing_data_raises_before_the_run(tmp_path, monkeypatch, module):
    monkeypatch.setenv("ACCORD_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(datasets.DatasetError, match="nowhere.* does not exist"):
        frame.reproduce(module.EXPERIMENT, tmp_path / "out", progress=lambda what, share: pytest.fail("began"))
    assert list((tmp_path / "out").iterdir()) == []


def test_missing_flax_raises_with_the_remedy(data, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "flax", None)
    with pytest.raises(ImportError, match=r"accord-papers"):
        frame.reproduce(dglmc_fig4.EXPERIMENT, tmp_path / "out")


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_a_convolution_by_slices_equals_that_of_flax(padding):
    from flax import linen as nn

    usual = nn.Conv(3, (5, 5), padding=padding)
    ours = nn.Conv(3, (5, 5), padding=padding, conv_general_dilated=networks._by_slices)
    x = jax.random.normal(jax.random.key(0), (4, 9, 8, 2))
    params = usual.init(jax.random.key(1), x)

    def total(module, params):
        return jnp.sum(jnp.sin(module.apply(params, x)))

    expected, found = (jax.value_and_grad(total, argnums=1)(module, params) for module in (usual, ours))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), expected, found)


def test_networks_have_the_papers_numbers_of_parameters():
    shape = jax.ShapeDtypeStruct((1, 28, 28), np.uint8)
    for module, count in ((networks.lenet(), 61_706), (networks.perceptron(), 784 * 128 + 128 + 128 * 10 + 10)):
        params = jax.eval_shape(module.init, jax.random.key(0), shape)
        assert sum(leaf.size for leaf in jax.tree.leaves(params)) == count


def test_a_networks_posterior_is_its_likelihood_times_its_prior():
    module, (x, y, *_) = networks.perceptron(3), digits(2)
    start = jax.tree.map(np.asarray, networks.start(module, 0))
    post = networks.posterior(module, [(x[:7], y[:7]), (x[7:], y[7:])], start, 0.5)
    first, second = start["Dense_0"], start["Dense_1"]
    hidden = 1.0 / (1.0 + np.exp(-(x.reshape(-1, 784) / 255.0 @ first["kernel"] + first["bias"])))
    logits = hidden @ second["kernel"] + second["bias"]
    table = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(start)])
    expected = table[np.arange(len(y)), y].sum() - (flat**2).sum() / (2 * 0.5**2)
    np.testing.assert_allclose(post.logdensity(jnp.asarray(flat)), expected, rtol=1e-5)
    np.testing.assert_allclose(networks.log_probabilities(module, start, flat[None], x)[0], table, rtol=1e-4)


def test_lenets_prior_has_the_variance_of_its_start():
    shards = [(x[None], y[None]) for x, y in zip(digits(1).x_train, digits(1).y_train, strict=True)]
    post = gtdula_fig3.posterior(shards, 0)
    # the prior's gradient is x / variance, with a tenth in each potential
    sd = post._log_prior.args[0]
    start, sds = post.unravel(post.init), post.unravel(sd)
    for layer in start.values():
        assert np.ravel(layer["bias"]).any() == 0
    kernel, scale = start["Dense_0"]["kernel"], sds["Dense_0"]["kernel"]
    # relative error of the variance of 48,000 uniform numbers: about 0.9 / sqrt(48,000)
    np.testing.assert_allclose(np.var(kernel) / scale[0, 0] ** 2, 1.0, atol=0.02)
    np.testing.assert_allclose(np.abs(kernel).max(), scale[0, 0] * 3**0.5, rtol=0.01)


def test_agents_hold_their_own_digit_and_a_few_others():
    found = digits(60)
    shards = gtdula_fig3.unequal(found, 20, 3, np.random.default_rng(0))
    for agent, (_, labels) in enumerate(shards):
        assert np.bincount(labels, minlength=10).tolist() == [20 if digit == agent else 3 for digit in range(10)]
    rows = np.concatenate([pictures for pictures, _ in shards]).reshape(-1, 784)
    assert len(np.unique(rows, axis=0)) == 10 * (20 + 9 * 3)
    with pytest.raises(datasets.DatasetError, match="needs 65 pictures of the digit 0, found 60"):
        gtdula_fig3.unequal(found, 20, 5, np.random.default_rng(0))


def test_the_distance_from_noise_alone():
    n, step = gtdula_fig3.AGENTS, 1e-3
    W = np.eye(n) - 0.3 * gtdula_fig3.NETWORK.laplacian
    cov, center = np.zeros((n, n)), np.eye(n) - 1.0 / n
    for _ in range(500):
        cov = W @ cov @ W + 2.0 * step * n * np.eye(n)
    expected = np.sqrt(7 * np.trace(center @ cov @ center) / n)
    assert gtdula_fig3.noise_alone(7, step) == pytest.approx(expected, rel=1e-9)


def equal_shards(curvature, shards):
    hessians = np.tile(np.diag(curvature / shards), (shards, 1, 1))
    return accord.models.quadratic(hessians, np.random.default_rng(0).normal(size=(shards, len(curvature))))


CURVATURE, RHO, STEP = np.array([0.5, 3.0, 40.0]), 0.3, 0.04


def test_closed_forms_of_gibbs_samplers_equal_the_exact_law():
    post, net = equal_shards(CURVATURE, 4), accord.Network.star(4)
    for method, found in (
        (DGLMC(RHO, STEP, 10), dglmc_laws.gibbs(CURVATURE, 4, RHO, STEP, 10)),
        (GCMC(RHO, conditional="exact"), dglmc_laws.gibbs(CURVATURE, 4, RHO)),
    ):
        law = accord.law(post, net, method, init=accord.Gaussian(post.exact().mean + 1.0, 1e-9 * np.eye(3)))
        still = law.stationary().agent(0)
        np.testing.assert_allclose(found.variance, np.diag(still.cov), rtol=1e-9)
        before, after = (law.at(k).agent(0).mean - still.mean for k in (2, 3))
        np.testing.assert_allclose(found.factor, after / before, rtol=1e-6)
        assert found.excess(CURVATURE) == pytest.approx(np.trace(np.diag(CURVATURE) @ still.cov) / 2.0)


def test_the_autocorrelation_time_equals_that_of_the_recursion():
    found, h = dglmc_laws.gibbs(CURVATURE, 4, RHO, STEP, 10), CURVATURE / 4

    def after(z, theta):
        for _ in range(10):
            z = (1.0 - STEP / RHO - STEP * h) * z + STEP / RHO * theta
        return z

    stays, follows = after(np.ones(3), np.zeros(3)), after(np.zeros(3), np.ones(3))
    covariances = [stays * (found.variance - RHO / 4) + follows * found.variance]
    while np.abs(covariances[-1]).max() > 1e-9:
        covariances.append((stays + follows) * covariances[-1])
    squares = ((CURVATURE * np.array(covariances)) ** 2).sum()
    expected = 1.0 + 2.0 * squares / ((CURVATURE * found.variance) ** 2).sum()
    assert found.rounds(CURVATURE) == pytest.approx(expected, rel=1e-6)


@pytest.mark.long
def test_travelling_chains_have_the_closed_form_variance():
    post, net = equal_shards(CURVATURE, 4), accord.Network.star(4)
    mean, chains = post.exact().mean, 1000
    found = dglmc_laws.visits(CURVATURE, (post.gradients(mean) ** 2).mean(axis=0), 4, 0.01, 10)
    run = accord.sample(
        post,
        net,
        accord.Rounds(HubSGLD(0.01, local_steps=10), burn_in=120, init=mean),
        draws=1,
        chains=chains,
        progress=False,
    )
    # the start's influence is factor^(2 * 120), below 1e-5
    scores = (run.draws[:, 0, 0].var(axis=0) / found.variance - 1.0) / np.sqrt(2.0 / chains)
    assert np.abs(scores).max() < 4.5, scores


def test_covers_are_scaled_and_split_and_their_potential_has_all_rows():
    found = covers()
    post = dglmc_fig3.problem(found, 330, np.random.default_rng(0))
    assert post.num_agents == 16 and post.sizes.sum() == 330
    X, y = (np.concatenate(part) for part in zip(*post.shards, strict=True))
    assert X.min() >= 0.0 and X.max() <= 1.0
    x = np.random.default_rng(1).normal(size=(2, 5, 54)) / 10
    logits = x @ X.T.astype(np.float64)
    expected = (
        (np.logaddexp(0.0, logits) - y * logits).sum(axis=-1) + (x**2).sum(axis=-1) / 2.0 + 27.0 * np.log(2.0 * np.pi)
    )
    np.testing.assert_allclose(dglmc_fig3.potentials(post, x), expected, rtol=1e-10)


def test_rivals_are_matched_to_the_mean_of_dglmc():
    post = dglmc_fig3.problem(covers(), 320, np.random.default_rng(0))
    mode = post.mode()
    hessian = post.hessians(mode).sum(axis=0)
    curvature = np.linalg.eigvalsh(hessian)
    methods = dglmc_fig3.methods(post, mode, hessian)
    (main, law), *others = methods.values()
    largest = np.array([np.linalg.eigvalsh(h)[-1] for h in post.hessians(post.init)])
    np.testing.assert_allclose(main.rho, 1.0 / largest, rtol=1e-6)
    np.testing.assert_allclose(main.step_size, 0.25 * main.rho / (1.0 + main.rho * largest), rtol=1e-6)
    assert law.excess(curvature) > len(curvature) / 2
    for _, other in others:
        assert other.excess(curvature) == pytest.approx(law.excess(curvature), rel=1e-6)


def test_errors_of_hpd_thresholds_equal_errors_of_quantiles():
    truth, found = (dglmc_fig3.Found(np.arange(1.0, 102.0)[None, :, None] * s, None, None) for s in (1.0, 1.1))
    expected = 0.1 * dglmc_fig3.eta(truth.above) / (50.0 + dglmc_fig3.eta(truth.above))
    np.testing.assert_allclose(dglmc_fig3.errors(found.above, truth, 50.0), expected)
    # alpha = 0.02 leaves 2% of the draws above
    assert dglmc_fig3.eta(truth.above)[0] == pytest.approx(99.0)


def test_autocorrelation_times_of_an_autoregression_with_long_and_short_chains():
    rng, kept = np.random.default_rng(0), 0.9
    x = np.empty((400, 600))
    x[:, 0] = rng.standard_normal(400)
    for k in range(1, x.shape[1]):
        x[:, k] = kept * x[:, k - 1] + (1.0 - kept**2) ** 0.5 * rng.standard_normal(400)
    exact = dglmc_fig3.THIN * (1.0 + kept) / (1.0 - kept)
    # a quarter of the shorter chains is too short for a trend
    for length, settled in ((600, True), (150, False)):
        found = dglmc_fig3.Found(x[:, :length, None], None, None)
        time = found.log_rounds
        # the window omits a share below exp(-2.5 * 2)
        assert abs(time.value - np.log(exact)) < 3.0 * time.error + 0.02
        assert time.error == pytest.approx((10.0 * exact / dglmc_fig3.THIN / x[:, :length].size) ** 0.5, rel=0.05)
        assert (time.trend < 0.2) == settled
    assert np.isnan(dglmc_fig3.Found(x[:, :60, None], None, None).rounds)


def test_a_long_run_keeps_checkpoints_until_done_and_has_equal_draws(tmp_path, monkeypatch):
    monkeypatch.setattr(longrun, "_PARTS", 3)
    post, net = accord.models.gaussian([-1.0, 1.0], [1.0, 2.0]), accord.Network.ring(2)
    folder, shares = tmp_path / "out" / ".trial-x" / "new", []
    folder.mkdir(parents=True)
    options = {"draws": 45, "burn_in": 3, "thin": 2, "chains": 2, "seed": 5}
    runs = longrun.LongRuns("trial", Size(60.0, 1.0, {"rounds": 90}), 5, folder)
    run = runs.run("one", post, net, DULA(0.05, 0.2), progress=shares.append, **options)
    np.testing.assert_array_equal(run.draws, frame.whole_run(post, net, DULA(0.05, 0.2), **options).draws)
    assert shares == sorted(shares) and shares[-1] == 1.0
    (kept,) = [path for path in (tmp_path / "out").iterdir() if path != folder.parent]
    assert (kept / "one").is_dir()
    # the same experiment in another folder resumes and has no draws left
    again = longrun.LongRuns("trial", Size(60.0, 1.0, {"rounds": 90}), 5, tmp_path / "out" / ".trial-y" / "new")
    resumed = again.run("one", post, net, DULA(0.05, 0.2), progress=shares.append, **options)
    np.testing.assert_array_equal(resumed.draws, run.draws)
    again.done()
    assert not kept.exists()
    short = longrun.LongRuns("trial", Size(1.0, 1.0, {"rounds": 90}), 5, folder)
    short.run("one", post, net, DULA(0.05, 0.2), progress=shares.append, **options)
    assert list((tmp_path / "out").iterdir()) == [folder.parent]


def curve(rate, points=400, noise=0.0, final=0.9, begun=0.0):
    """Accuracies of ten agents that converge to `final` at this rate per round, a point every ten rounds."""
    rounds = 10 * np.arange(1, points + 1)
    rng = np.random.default_rng(0)
    accuracy = final * (1.0 - np.exp(-rate * (rounds - begun).clip(0)))[:, None] + noise * rng.normal(size=(points, 10))
    return gtdula_fig3.Curve(rounds, accuracy, 1.0 - accuracy, np.zeros((2, points)), None, None, begun)


def test_a_converged_curve_decides_and_a_rising_one_does_not():
    for begun in (0.0, 2000.0):
        slow, fast = (curve(rate, noise=0.01, begun=begun) for rate in (2e-4, 1e-2))
        assert fast.final.above(0.88) is Verdict.HOLDS and fast.final.above(0.92) is Verdict.FAILS
        assert fast.end_loss.above(0.08) is Verdict.HOLDS
        assert slow.final.above(0.88) is Verdict.UNDECIDED
        assert slow.final.value + slow.final.doubt > 0.9
    # the sd over ten agents, and the error of its mean over points
    assert curve(1e-2, noise=0.01).band.below(0.02) is Verdict.HOLDS
    assert curve(1e-2, noise=0.01, points=8).band.below(0.012) is Verdict.UNDECIDED


def test_a_subset_of_pictures_adds_to_the_error():
    known = curve(1e-2, noise=0.01)
    fewer = known._replace(unseen=np.full((2, 400), 0.05))
    assert fewer.final.error == pytest.approx(0.05, rel=0.01) and fewer.final.above(0.88) is Verdict.UNDECIDED
    values = np.random.default_rng(0).normal(size=(3, 400)).mean(axis=0, keepdims=True)
    some = gtdula_fig3.Looked(np.zeros(100), np.zeros(100), 400)
    means = [np.random.default_rng(k).permutation(values[0])[:100].mean() for k in range(2000)]
    assert some.unseen(values[:, :100]) == pytest.approx(np.std(means), rel=0.2)
    assert some._replace(whole=100).unseen(values[:, :100]) == 0.0


def test_the_delay_is_the_time_constant_of_an_exponential():
    for rate in (2e-3, 1e-2):
        found = curve(rate).delay
        assert abs(found.value - 1.0 / rate) < found.doubt < 0.2 / rate + 25
    slow, fast = curve(2e-3).delay, curve(1e-2).delay
    assert fast.less(slow).below(0.0) is Verdict.HOLDS and slow.less(fast).below(0.0) is Verdict.FAILS
    assert slow.less(slow).below(0.0) is Verdict.UNDECIDED


def predictive(middle, move=0.0, count=64, rows=200, memories=5.0):
    """Draws of the probability of label 1 of 2 around `middle`, lower by `move` in the first half."""
    draws = middle + 0.02 * np.random.default_rng(0).normal(size=(count, rows))
    draws[: count // 2] -= move
    return dglmc_fig4.Found(np.stack([1.0 - draws, draws], axis=2), memories, None)


def test_predictions_with_a_trend_are_undecided():
    def verdicts(*found):
        labels = np.ones(found[0].every.shape[1], int)
        claims = dglmc_fig4.predictive_claims(dict(zip(("DG-LMC", "D-SGLD"), found, strict=True)), labels)
        return [claim.verdict for claim in claims]

    sure, same, other, moving = predictive(0.8), predictive(0.81), predictive(0.2), predictive(0.8, move=0.6)
    assert verdicts(sure, same) == [Verdict.HOLDS, Verdict.HOLDS]
    assert verdicts(sure, other) == [Verdict.FAILS, Verdict.FAILS]
    assert verdicts(sure, moving) == [Verdict.UNDECIDED, Verdict.UNDECIDED]
    # chains shorter than a time constant are undecided
    stuck = [predictive(middle, memories=0.5) for middle in (0.8, 0.81, 0.2)]
    assert verdicts(*stuck[:2]) == verdicts(sure, stuck[2]) == [Verdict.UNDECIDED, Verdict.UNDECIDED]
    # equal labels on 50 pictures do not decide for 10,000
    assert verdicts(*(predictive(middle, rows=50) for middle in (0.8, 0.81))) == [Verdict.UNDECIDED, Verdict.HOLDS]


def chains(factor, count, draws=400, mean=30.0):
    """F - min F along autoregressive chains."""
    x = np.random.default_rng(round(1e3 * factor)).normal(size=(count, draws))
    for t in range(1, draws):
        x[:, t] = factor * x[:, t - 1] + (1.0 - factor**2) ** 0.5 * x[:, t]
    return dglmc_fig3.Found(mean + 5.0 * x[:, :, None], None, None)


def test_long_chains_distinguish_autocorrelation_times():
    # their times are 19 and 4.26 draws
    slow, fast = ([chains(factor, count).log_rounds for count in (2, 100)] for factor in (0.9, 0.62))
    assert slow[0].less(fast[0]).below(0.0) is Verdict.UNDECIDED
    assert slow[1].less(fast[1]).below(0.0) is Verdict.FAILS
    assert fast[1].less(slow[1]).below(0.0) is Verdict.HOLDS
    assert abs(slow[1].value - np.log(190.0)) < slow[1].doubt


def test_the_error_of_hpd_errors_equals_the_spread_over_chains():
    truth = chains(0.5, 50)
    found = dglmc_fig3.worst_error(chains(0.8, 12), truth, 300.0)
    others = [dglmc_fig3.Found(chains(0.8 + k / 1e4, 12).above, None, None) for k in range(1, 10)]
    spread = np.std([dglmc_fig3.errors(other.above, truth, 300.0).max() for other in others])
    assert spread / 3.0 < found.error < 3.0 * spread
    assert found.below(0.03) is Verdict.HOLDS
    assert dglmc_fig3.worst_error(chains(0.8, 12, mean=50.0), truth, 300.0).below(0.03) is Verdict.FAILS
    assert dglmc_fig3.worst_error(chains(0.99, 1), truth, 10.0).below(0.03) is not Verdict.HOLDS
    assert len(chains(0.8, 1).blocks()) >= dglmc_fig3.BLOCKS


@pytest.mark.slow
@pytest.mark.parametrize("module", TINY, ids=lambda module: module.EXPERIMENT.name)
def test_experiments_at_a_tiny_size(tmp_path, data, module):
    size = Size(minutes=0.1, memory=1.0, numbers=TINY[module])
    tiny, shares = replace(module.EXPERIMENT, sizes={"small": size}), []
    claims = frame.reproduce(tiny, tmp_path / "out", progress=lambda what, share: shares.append(share))
    assert shares == sorted(shares) and 0.0 <= shares[-1] <= 1.0
    assert all(claim.verdict is Verdict.HOLDS for claim in claims if claim.kind == "check")
    assert claims[-1].text.endswith(f"ms a round on {jax.devices()[0].device_kind}")
    folder = tmp_path / "out" / module.EXPERIMENT.name
    assert all(file.stat().st_size < 300_000 for file in folder.iterdir())
    for table in folder.glob("*.csv"):
        with table.open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert rows and None not in rows[0].values()
    # every declared size has the numbers that the run reads
    assert all(set(declared.numbers) == set(TINY[module]) for declared in module.EXPERIMENT.sizes.values())


TABLE = {gtdula_fig3: "curves.csv", dglmc_fig3: "trace.csv", dglmc_fig4: "probabilities.csv"}


@pytest.mark.slow
@pytest.mark.parametrize("module", TABLE, ids=lambda module: module.EXPERIMENT.name)
def test_a_resumed_experiment_equals_an_uninterrupted_one(tmp_path, data, monkeypatch, module):
    monkeypatch.setattr(longrun, "_PARTS", 4)

    def stopping(what, share):
        if share > 0.7:
            raise KeyboardInterrupt

    for folder, minutes, progress in (("whole", 0.1, None), ("parts", 60.0, stopping), ("parts", 60.0, None)):
        size = Size(minutes=minutes, memory=1.0, numbers=TINY[module])
        tiny = replace(module.EXPERIMENT, sizes={"small": size})
        if progress is None:
            frame.reproduce(tiny, tmp_path / folder)
        else:
            with pytest.raises(KeyboardInterrupt):
                frame.reproduce(tiny, tmp_path / folder, progress=progress)
            assert not (tmp_path / folder / module.EXPERIMENT.name).exists()
    assert [path.name for path in (tmp_path / "parts").iterdir()] == [module.EXPERIMENT.name]
    whole, parts = (tmp_path / folder / module.EXPERIMENT.name / TABLE[module] for folder in ("whole", "parts"))
    assert whole.read_text() == parts.read_text()
