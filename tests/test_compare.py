"""Leave-one-out cross-validation and comparisons of models from sums, against ArviZ on pooled data."""

from dataclasses import replace
from functools import partial

import arviz_base
import arviz_stats
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arviz_stats.base.array import array_stats
from rich.console import Console
from scipy.special import gammaln
from scipy.stats import norm

import accord
from accord.examine import loo
from accord.examine.rows_left_out import RowSums, left_out
from accord.posterior.joint import joint
from accord.results.certificate import Certificate
from accord.results.points import Points
from accord.samplers import DESGLD, GTBAOAB, Importance
from accord.samplers.by_sums.evaluations import value_of

# most draws of these tests are random walks, whose chains disagree
pytestmark = pytest.mark.filterwarnings("ignore:.*the chains disagree")

RING = accord.Network.ring(4)
# agents have different numbers of rows
SIZES = (30, 17, 25, 40)


def shards(columns=3, seed=0):
    """Labels that three columns explain; the first ones of them."""
    rng = np.random.default_rng(seed)
    found = []
    for size in SIZES:
        X = rng.standard_normal((size, 3))
        labels = rng.random(size) < 1.0 / (1.0 + np.exp(-X @ [1.0, -2.0, 0.5]))
        found.append((X[:, :columns], labels.astype(float)))
    return found


def bernoulli(logits, y):
    return y * logits - np.logaddexp(0.0, logits)


def poisson(logits, y):
    return y * logits - np.exp(logits) - gammaln(y + 1.0)


POSTS = {
    "one column": (accord.models.logistic_regression(shards(1)), bernoulli),
    "all columns": (accord.models.logistic_regression(shards(), 10.0), bernoulli),
    "counts": (accord.models.poisson_regression(shards()), poisson),
    "walked": (accord.models.logistic_regression(shards(), 10.0), bernoulli),
}


@pytest.fixture(scope="module")
def sampled():
    return accord.sample(POSTS["one column"][0], RING, Importance(), draws=300)


@pytest.fixture(scope="module")
def drawn(sampled):
    """A run with its posterior and given draws (chain, draw, dim)."""

    def make(post, draws):
        kept = np.broadcast_to(draws[:, :, None], (*draws.shape[:2], 4, draws.shape[2]))
        changes = {"names": post.names, "variables": post.variables, "kept": kept, "statistics": {}}
        changes["info"] = replace(sampled.info, rows=(), model="", priors=())
        return replace(sampled, average=draws, points=None, certificate=None, **changes), post

    return make


@pytest.fixture(scope="module")
def runs(sampled, drawn):
    noise = np.random.default_rng(1)
    # chains of different length, with memory
    noisy = {name: np.cumsum(noise.standard_normal((4, 150 + len(name), 3)), axis=1) / 100.0 for name in POSTS}
    noisy["all columns"] += [1.0, -1.5, 0.4]
    walk = accord.sample(POSTS["walked"][0], RING, accord.Rounds(GTBAOAB(0.05, 1.0), burn_in=50), draws=150)
    other = {name: drawn(POSTS[name][0], noisy[name]) for name in ("all columns", "counts")}
    # log weights larger by 25 than the other model's, at different points
    weight, post = sampled.points.log_weight + 25.0, POSTS["all columns"][0]
    positions = noise.standard_normal((weight.size, 3))
    with jax.enable_x64(True):
        density = -np.asarray(post.totals(RING)(value_of, points=positions))
    better = replace(other["all columns"][0], points=Points(positions, density, density - weight, positions))
    other["all columns"] = better, post
    return {"one column": (sampled, POSTS["one column"][0]), **other, "walked": (walk, POSTS["walked"][0])}


def loo_of(pair, **options):
    return accord.loo(*pair, RING, **options)


def pooled(name, run):
    """Draws and pooled log likelihoods for ArviZ."""
    post, log_likelihood = POSTS[name]
    X, y = (np.concatenate(part) for part in zip(*post.shards, strict=True))
    draws = run.average.astype(float)
    return arviz_base.from_dict({"posterior": {"x": draws}, "log_likelihood": {"y": log_likelihood(draws @ X.T, y)}})


@pytest.mark.long
@pytest.mark.parametrize("name", ["one column", "walked"])
def test_loo_equals_arviz_on_pooled_data(name, runs):
    found, expected = loo_of(runs[name]), arviz_stats.loo(pooled(name, runs[name][0]), pointwise=True)
    for field in ("elpd", "se", "p", "good_k"):
        np.testing.assert_allclose(getattr(found, field), getattr(expected, field), rtol=1e-9)
    assert found.rows == expected.n_data_points == sum(SIZES) and found.draws == expected.n_samples
    assert found.bad == 0 and not expected.warning
    weights = 1.0 / np.exp(pooled(name, runs[name][0])["log_likelihood"]["y"].values).reshape(found.draws, -1)
    k = expected.pareto_k.values[weights.max(axis=0) > 5.0 * weights.mean(axis=0)].max(initial=0.0)
    assert found.k - 0.01 <= k <= found.k
    lines = repr(found).splitlines()
    assert lines[0] == f"PSIS-LOO of {sum(SIZES)} rows, from {found.draws:,} draws"
    assert f"elpd_loo {expected.elpd:.2f} {expected.se:.2f}".split() == lines[3].split()
    assert f"k <= {found.good_k:.2f} (good) {sum(SIZES)} 100.0%".split() == lines[7].split()


@pytest.fixture(scope="module")
def comparison(runs):
    return accord.compare(runs, RING)


@pytest.mark.long
# ArviZ sorts in place
@pytest.mark.filterwarnings("ignore:The inplace keyword")
def test_comparisons_equal_arviz_on_pooled_data(runs, comparison):
    found = comparison.table()
    expected = arviz_stats.compare({name: pooled(name, run) for name, (run, _) in runs.items()})
    assert list(found.index) == list(expected.index)
    for column in ("rank", "elpd", "p", "elpd_diff", "se", "dse", "warning"):
        np.testing.assert_allclose(found[column].astype(float), expected[column].astype(float), rtol=1e-8, atol=1e-9)


@pytest.mark.long
def test_runs_with_weights_have_evidence(runs, comparison):
    table = comparison.table()
    assert table.loc[["walked", "counts"], ["log_evidence", "log_bf"]].isna().all(axis=None)
    best, other = runs["all columns"][0].log_evidence, runs["one column"][0].log_evidence
    np.testing.assert_allclose(best[0], other[0] + 25.0)
    for name, pair in (("all columns", best), ("one column", other)):
        np.testing.assert_array_equal(table.loc[name, ["log_evidence", "log_evidence_se"]].astype(float), pair)
    assert table.loc["all columns", "log_bf"] == table.loc["all columns", "log_bf_se"] == 0.0
    np.testing.assert_allclose(table.loc["one column", "log_bf"], 25.0)
    np.testing.assert_allclose(table.loc["one column", "log_bf_se"], np.hypot(best[1], other[1]))


def shown(comparison):
    console = Console(width=100)
    with console.capture() as text:
        console.print(comparison)
    return text.get().splitlines()


@pytest.mark.long
def test_a_comparison_shows_one_line_per_model(comparison):
    lines = shown(comparison)
    assert [line.split("  ")[0].strip() for line in lines[1:5]] == list(comparison.loos)
    assert "log Bayes f." in lines[0] and f"0 of {sum(SIZES)}" in lines[1]
    assert repr(comparison) == f"<Comparison: 4 models, largest elpd: {next(iter(comparison.loos))}>"


@pytest.mark.long
def test_equal_models_have_no_difference(runs):
    comparison = accord.compare({"a": runs["walked"], "b": runs["walked"]}, RING)
    table = comparison.table()
    np.testing.assert_array_equal(table[["elpd_diff", "dse"]], 0.0)
    assert table[["log_evidence", "log_bf"]].isna().all(axis=None)
    assert not any("evidence" in line for line in shown(comparison))


# --- messages of an agent ---


def test_only_sums_leave_and_masks_change_nothing(runs, monkeypatch):
    sent, requests, own, totals = [], [], loo.row_sums, accord.Posterior.totals

    def watched(*arguments):
        sent.append(own(*arguments))
        return sent[-1]

    def recorded(post, network, **options):
        requests.append(options)
        return totals(post, network, **options)

    monkeypatch.setattr(loo, "row_sums", watched)
    monkeypatch.setattr(accord.Posterior, "totals", recorded)
    run, post = runs["one column"]
    masked = replace(run, settings={**run.settings, "masks": True})
    np.testing.assert_allclose(accord.loo(masked, post, RING), accord.loo(run, post, RING), rtol=1e-6)
    # per run one sum to verify the posterior, and one with a size that does not depend on the rows
    assert requests == 2 * [{"masks": True}] + 2 * [{"masks": False}]
    for sums in sent:
        assert jax.tree.map(jnp.shape, sums) == RowSums((), (1,), (1, 1), (1,), (1, 202), (1,))


@pytest.mark.parametrize("masks", [False, True])
def test_sums_after_a_masked_run_are_masked(masks, monkeypatch):
    run = accord.sample(POSTS["one column"][0], RING, Importance(), draws=50, engine=accord.engines.Local(masks=masks))
    requests, totals = [], accord.Posterior.totals

    def recorded(post, network, **options):
        requests.append(options)
        return totals(post, network, **options)

    monkeypatch.setattr(accord.Posterior, "totals", recorded)
    # also with an engine that does not mask
    accord.loo(run, POSTS["one column"][0], RING)
    assert run.settings["masks"] == masks and requests == 2 * [{"masks": masks}]


def refused():
    raise AssertionError("rows were read")


def test_a_joint_posterior_reads_no_rows():
    posts = {"a": accord.models.logistic_regression([refused] * 4, names=["x"]), "b": POSTS["one column"][0]}
    whole, _ = joint(posts)
    assert repr(whole) == "<Posterior: 2 parameters, 4 agents, data not read>"


def test_shards_read_at_their_agents_give_the_same_loo(runs, drawn):
    unread = [partial(dict, X=X, y=y) for X, y in shards(1)]
    run = drawn(accord.Posterior(_likelihood, _prior, unread, np.zeros(1)), runs["one column"][0].average)
    beside = accord.compare({"as functions": run, "as arrays": runs["one column"]}, RING)
    np.testing.assert_allclose(beside.elpd_diff, 0.0, atol=1e-9)
    np.testing.assert_allclose(beside.loos["as functions"], loo_of(runs["one column"]), rtol=1e-9)


def _likelihood(x, rows):
    logits = rows["X"] @ x
    return rows["y"] * logits - jax.nn.softplus(logits)


def _prior(x):
    return -0.5 * jnp.sum(x**2)


# --- large Pareto k ---

PLACES = np.array([0.3, -0.8, 1.1, 0.2, -0.1, 0.9, -1.2, 9.0])


def location(log_likelihood, places=PLACES):
    return accord.Posterior(log_likelihood, _prior, [places[agent::4] for agent in range(4)], np.zeros(1))


def around(mean, sd, count=4000):
    """Independent draws."""
    return mean + sd * np.random.default_rng(0).standard_normal((4, count // 4, 1))


def normal(x, rows):
    return -0.5 * (rows - x[0]) ** 2 - 0.5 * jnp.log(2.0 * jnp.pi)


def contaminated(x, rows):
    """Normal, except for one row in a hundred, which is uniform between -50 and 50."""
    return jnp.logaddexp(jnp.log(0.99) + normal(x, rows), jnp.log(0.01 / 100.0))


@pytest.mark.long
def test_an_outlier_has_a_warning(drawn):
    run = drawn(location(normal), around(PLACES.sum() / 9.0, 1.0 / 3.0))
    with pytest.warns(UserWarning, match=r"1 of 8 rows have a Pareto k above 0.70 in this run, the largest \d\.\d\d: "):
        found = loo_of(run)
    assert found.bad == 1 and found.k > 0.7
    assert [line.split()[-2:] for line in str(found).splitlines()[-3:-1]] == [["7", "87.5%"], ["1", "12.5%"]]
    robust = drawn(location(contaminated), around(PLACES[:-1].sum() / 8.0, 8.0**-0.5))
    with pytest.warns(UserWarning, match="1 of 8 rows .* in narrow, the largest"):
        table = accord.compare({"narrow": run, "wide": robust}, RING).table()
    assert list(table.index) == ["wide", "narrow"]
    assert list(table["warning"]) == [False, True] and list(table["bad_rows"]) == [0, 1]


def test_rows_with_nearly_equal_weights_have_no_warning(drawn):
    # labels far from the boundary: weights are 1 up to rounding errors, in which ArviZ finds heavy tails
    y = np.array([0.0, 1.0] * 8)
    X = (2.0 * y - 1.0)[:, None]
    draws = around(15.0, 2.5)
    values = bernoulli(draws.ravel(), 1.0)
    assert array_stats.loo(values[None])[1] > 0.7
    post = accord.models.logistic_regression([(X[agent::4], y[agent::4]) for agent in range(4)])
    found = loo_of(drawn(post, draws))
    assert found.bad == 0 and found.k == 0.0


def test_equal_weights_have_no_warning(drawn):
    draws = around(PLACES[:-1].sum() / 8.0, 8.0**-0.5)
    # weights are equal up to rounding errors
    assert loo_of(drawn(location(contaminated), draws)).bad == 0
    # rows that do not depend on the parameters at all
    still = loo_of(drawn(location(lambda x, rows: 0.0 * rows * x[0] - 1.5), draws))
    assert still.bad == 0 and still.k == 0.0
    np.testing.assert_allclose([still.elpd, still.p, still.se], [-12.0, 0.0, 0.0], atol=1e-6)


def smoothed(values):
    tail = int(3.0 * np.sqrt(values.size))
    with jax.enable_x64(True):
        return [float(x) for x in left_out(jnp.asarray(values), jnp.asarray((np.arange(tail) + 0.5) / tail))]


NOISE = np.random.default_rng(0).standard_normal(1000)
SERIES = {
    "normal": NOISE,
    "heavy": 30.0 * np.random.default_rng(1).standard_t(3.0, 1000),
    "bounded": np.square(NOISE),
    "wide": 60.0 * NOISE,
    "narrow": 1e-6 * NOISE - 700.0,
}


@pytest.mark.parametrize("name", SERIES)
@pytest.mark.long
def test_weights_are_smoothed_as_in_arviz(name):
    elpd, k, p = array_stats.loo(SERIES[name][None], r_eff=1.0)
    # weights below five times their mean are harmless
    k = -np.inf if name in ("bounded", "narrow") else k
    np.testing.assert_allclose(smoothed(SERIES[name]), [elpd, p, k], rtol=1e-8, atol=1e-9)


def test_tails_without_a_fit_have_infinite_k():
    # weights that overflow, and a chain that does not move at the start of the tail, which ArviZ before 1.3 lacks
    still = np.sort(NOISE)
    still[50:100] = still[100]
    for values in (1e3 * NOISE, still):
        elpd, p, k = smoothed(values)
        assert np.isfinite([elpd, p]).all() and k == np.inf
    np.testing.assert_allclose([elpd, p], smoothed(NOISE)[:2], rtol=0.2)


def test_loo_equals_the_closed_form(drawn):
    """Each row of a normal location given all other rows."""
    rows = PLACES[:-1]
    found = loo_of(drawn(location(normal, rows), around(rows.sum() / 8.0, 8.0**-0.5, 40_000)))
    exact = norm.logpdf(rows, (rows.sum() - rows) / 7.0, np.sqrt(1.0 + 1.0 / 7.0))
    np.testing.assert_allclose([found.elpd, found.se], [exact.sum(), np.sqrt(7 * exact.var())], atol=0.01)


# --- errors ---


def test_models_of_different_rows_are_refused(runs, drawn):
    run = runs["one column"]
    few = accord.models.logistic_regression(shards(1)[:3])
    with pytest.raises(ValueError, match=r"same agents: all has 4 agents, few has 3"):
        joint({"all": run[1], "few": few})
    with pytest.raises(ValueError, match=r"the run has 4 agents, and the posterior has 3"):
        accord.compare({"all": run, "few": drawn(few, run[0].average)}, RING)
    rows = shards(1)
    rows[2] = tuple(np.concatenate([part, part[:3]]) for part in rows[2])
    more = drawn(accord.models.logistic_regression(rows), run[0].average)
    with pytest.raises(ValueError, match=r"same rows: agent 2 has 25 in a, 25 in b, 28 in c"):
        accord.compare({"a": run, "b": run, "c": more}, RING)
    with pytest.raises(ValueError, match="two or more runs by name, found 1"):
        accord.compare({"all": run}, RING)


def test_a_log_likelihood_per_shard_is_refused(drawn):
    post = accord.models.gaussian(np.zeros((4, 1)), np.ones((4, 1, 1)))
    with pytest.raises(ValueError, match="this run returns one for the whole shard"):
        loo_of(drawn(post, around(0.0, 0.5)))


def test_rows_that_are_impossible_at_a_draw_are_refused(drawn):
    def bounded(x, rows):
        return jnp.where(rows < x[0] + 5.0, normal(x, rows), -jnp.inf)

    with pytest.raises(ArithmeticError, match=r"1 of 8 rows have a log likelihood in this run that is not finite"):
        loo_of(drawn(location(bounded), around(0.0, 0.3)))


def test_runs_from_files_have_the_same_comparison(runs, comparison, tmp_path):
    loaded = {}
    for name, (run, post) in runs.items():
        run.save(tmp_path / f"{name}.nc")
        loaded[name] = accord.Run.load(tmp_path / f"{name}.nc"), post
    found = accord.compare(loaded, RING)
    assert list(found.loos) == list(comparison.loos)
    np.testing.assert_allclose(found.elpd_diff, comparison.elpd_diff, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(found.log_evidence, comparison.log_evidence)


def test_models_of_different_responses_are_refused(runs):
    (run, post), (other, own) = runs["one column"], runs["all columns"]
    first, second = (replace(r, info=replace(r.info, formula=f)) for r, f in ((run, "falls ~ x"), (other, "died ~ x")))
    with pytest.raises(ValueError, match="models of one response: a models falls, b models died"):
        accord.compare({"a": (first, post), "b": (second, own)}, RING)
    with pytest.raises(TypeError, match=r"needs a pair \(run, post\) .* found Run for 'a'"):
        accord.compare({"a": run, "b": other}, RING)


def test_chains_that_disagree_have_a_warning(drawn):
    apart = around(PLACES[:-1].sum() / 8.0, 8.0**-0.5) + np.array([0.0, 0.0, 0.0, 3.0])[:, None, None]
    with pytest.warns(UserWarning, match=r"loo: the chains disagree \(largest R-hat \d\.\d\d, limit 1.05\)"):
        loo_of(drawn(location(contaminated), apart))


def test_runs_without_draws_of_the_posterior_are_refused(sampled, drawn):
    post = POSTS["one column"][0]
    updated = accord.update(sampled, post, RING, {0: shards(1, seed=1)[0]})
    for ask in (
        lambda: accord.loo(updated, post, RING),
        lambda: accord.compare({"a": (sampled, post), "b": (updated, post)}, RING),
    ):
        with pytest.raises(ValueError, match="the rows of the run's agents are 60, 17, 25, 40, and the posterior's"):
            ask()
    hot = accord.sample(post, RING, accord.Rounds(DESGLD(0.01, temperature=2.0), burn_in=0), draws=50)
    with pytest.raises(ArithmeticError, match="drew at temperature 2: sample at temperature 1"):
        accord.loo(hot, post, RING)
    with pytest.raises(ValueError, match="at least 25 draws and 4 per chain, found 4 chains of 5"):
        loo_of(drawn(post, around(0.0, 1.0, 20)))
    first, *others = sampled.certificate.checks
    doubted = replace(sampled, certificate=Certificate((first._replace(holds=False), *others)))
    with pytest.raises(ArithmeticError, match="loo needs certified draws, and they are not certified: "):
        accord.loo(doubted, post, RING)
