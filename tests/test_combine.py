"""One-shot methods: combinations of exact Gaussian draws against exact laws, then complete runs with NUTS."""

import sys
from functools import partial

import arviz_stats.base.array as arviz_array
import jax
import numpy as np
import ot
import pytest
from one_shot import (
    POSTS,
    SIZES,
    WRONG_NUMBERS,
    Method,
    check,
    even_shards,
    exact_draws,
    logistic,
    replicated_z,
    require_combination,
    require_proper_shards,
    require_quadrature,
    skewed,
    subset_laws,
)
from tables import POSTERIORS, Z_BOUND

import accord
from accord.samplers.combine import consensus, median, parametric, subsets, wasp
from accord.samplers.combine.consensus import weighted_average
from accord.samplers.combine.median import geometric_median, weiszfeld
from accord.samplers.combine.parametric import gaussian_product
from accord.samplers.combine.wasp import barycentre

pytestmark = pytest.mark.busy

EXACT = {"consensus": weighted_average, "parametric": gaussian_product}


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("name", POSTERIORS)
@pytest.mark.parametrize("method", EXACT)
@pytest.mark.long_from(3)
def test_gaussian_shards_are_combined_exactly(method, name, dim):
    post = POSTERIORS[name](dim)
    check(EXACT[method], post, post.exact())


@pytest.mark.slow
@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("name", POSTS)
@pytest.mark.parametrize("method", EXACT)
def test_gaussian_shards_are_combined_exactly_by_more_draws(method, name, dim):
    post = POSTS[name](dim)
    check(EXACT[method], post, post.exact(), draws=1500, repeats=16, noise=0.35)


def test_wasp_is_exact_in_one_dimension():
    post = POSTERIORS["curvature"](1)
    power = post.num_agents
    means, covariances = subset_laws(post, power)
    law = accord.Gaussian(means.mean(axis=0), np.sqrt(covariances).mean() ** 2)
    replicates = [exact_draws(post, [seed, 3], power=power) for seed in range(16)]
    z, error = replicated_z(barycentre, replicates, law)
    assert z < Z_BOUND and error < 0.05


@pytest.mark.parametrize("dim", [2, 3])
def test_wasp_is_as_near_to_the_barycentre_as_its_own_draws(dim):
    post = POSTERIORS["shards"](dim)
    power = post.num_agents
    law = accord.Gaussian(*ot.gaussian.bures_wasserstein_barycenter(*subset_laws(post, power)))
    draws = exact_draws(post, 0, draws=200, power=power)
    found = barycentre(draws, np.random.default_rng(0), support=200).draws
    # each batch of atoms has the mean of its matched draws
    np.testing.assert_allclose(found.mean(axis=(0, 1)), draws.mean(axis=(0, 1, 2)), rtol=1e-9)
    rng = np.random.default_rng(1)
    fresh = law.mean + rng.standard_normal((20, 400, dim)) @ law.factor().T
    between = [accord.metrics.wasserstein2(x, fresh[0]) for x in fresh[1:]]
    # probability 1/20 if the atoms were no better than independent draws
    assert accord.metrics.wasserstein2(found.reshape(-1, dim), fresh[0]) < max(between)
    # the test has power: the subset posteriors differ from their barycentre
    assert min(accord.metrics.wasserstein2(draws[:, :, i].reshape(-1, dim), fresh[0]) for i in range(6)) > max(between)


def kernel_products(means, covariances, h2):
    """Inner products of Gaussians under the kernel exp(-(x - y)' h2^-1 (x - y) / 2), in closed form."""
    agents, dim = means.shape
    gram = np.zeros((agents, agents))
    for i in range(agents):
        for j in range(agents):
            total = h2 + covariances[i] + covariances[j]
            apart = means[i] - means[j]
            gram[i, j] = np.sqrt(np.linalg.det(h2) / np.linalg.det(total)) * np.exp(
                -apart @ np.linalg.solve(total, apart) / 2
            )
    return gram


@pytest.mark.parametrize(("dim", "h"), [(1, 1.5), (2, 3.0)])  # no weight close to 1 / (2 N), where it is cut
def test_median_weights_follow_from_closed_form_inner_products(dim, h):
    post = POSTERIORS["shards"](dim)
    power = post.num_agents
    means, covariances = subset_laws(post, power)
    gram = kernel_products(means, covariances, h**2 * covariances.mean(axis=0))
    expected = weiszfeld(gram)
    expected = np.where(expected < 0.5 / power, 0.0, expected)
    expected /= expected.sum()
    found = []
    for seed in range(8):
        draws = exact_draws(post, [seed, 4], power=power)
        combined = geometric_median(draws, np.random.default_rng(seed), bandwidth=h, kernel_draws=800)
        found.append([float(w) for w in combined.facts["weights"].split()])
        source = combined.statistics["source"]
        # every draw is the draw of its source at the same place
        chain, draw = np.indices(source.shape)
        np.testing.assert_array_equal(combined.draws, draws[chain, draw, source])
    found = np.array(found)
    kept = expected > 0
    assert ((found > 0) == kept).all()
    error = found[:, kept].std(axis=0, ddof=1) / np.sqrt(len(found))
    assert (np.abs(found[:, kept].mean(axis=0) - expected[kept]) < Z_BOUND * error).all()
    share = np.bincount(source.ravel(), minlength=power) / source.size
    assert (np.abs(share - found[-1]) <= Z_BOUND * np.sqrt(found[-1] * (1 - found[-1]) / source.size)).all()


def test_weiszfeld_finds_the_geometric_median_of_points():
    # under the linear kernel the median of points of a plane, which minimises the sum of distances
    points = np.random.default_rng(0).standard_normal((7, 2))
    median = weiszfeld(points @ points.T) @ points
    away = points - median
    np.testing.assert_allclose((away / np.linalg.norm(away, axis=1)[:, None]).sum(axis=0), 0.0, atol=1e-8)


def test_median_leaves_out_a_shard_that_is_far_away():
    post = even_shards(2)
    draws = exact_draws(post, 0, power=4)
    draws[:, :, 1] += 1e3
    combined = geometric_median(draws, np.random.default_rng(0))
    assert [float(w) > 0 for w in combined.facts["weights"].split()] == [True, False, True, True]


@pytest.mark.parametrize("method", EXACT)
@pytest.mark.long_from(2)
def test_one_agent_keeps_its_law(method):
    post = even_shards(2, agents=1)
    check(EXACT[method], post, post.exact(), repeats=6)


# Complete runs.
METHODS = {
    "consensus": Method(consensus, 1, weighted_average, {}),
    "parametric": Method(parametric, 1, gaussian_product, {}),
    "wasp": Method(wasp, 4, partial(barycentre, support=100), {"support": 100}),
    "median": Method(median, 4, partial(geometric_median, kernel_draws=100), {"kernel_draws": 100}),
}
# methods that combine other quantities than draws: tests/test_combine_modes.py
MODES = ["bfi", "surrogate"]


@pytest.fixture(scope="module")
def post():
    return even_shards(2)


@pytest.fixture(scope="module")
def sampled(post):
    """Draws of the subset posteriors of both powers."""
    return {power: subsets.sample_subsets(post, power, seed=3, **SIZES).draws for power in (1, 4)}


@pytest.fixture(scope="module")
def regression():
    return skewed(1, 3)


def test_every_method_is_tested():
    assert sorted([*METHODS, *MODES]) == sorted(accord.samplers.combine.METHODS)


def test_a_custom_rule_makes_a_method(post, sampled):
    def average(draws, rng):
        return accord.samplers.combine.Combination(draws.mean(axis=2), facts={"note": "plain"})

    run = accord.samplers.combine.one_shot(post, average, method="average()", seed=3, **SIZES)
    np.testing.assert_array_equal(run.average, sampled[1].mean(axis=2).astype(np.float32))
    assert (run.settings["method"], run.settings["note"]) == ("average()", "plain")


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:(ESS|R-hat) is", "ignore:the combined draws do not fit")
@pytest.mark.parametrize("method", METHODS)
def test_a_run_is_the_combination_of_the_subset_draws(method, post, sampled, tmp_path):
    require_combination(METHODS[method], post, sampled, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("method", METHODS)
def test_logistic_regression_against_quadrature(method, regression):
    require_quadrature(METHODS[method], regression)


@pytest.mark.parametrize("method", METHODS)
def test_a_shard_too_small_is_named(method):
    require_proper_shards(METHODS[method])


@pytest.mark.parametrize(("options", "message"), WRONG_NUMBERS)
@pytest.mark.parametrize("method", METHODS)
def test_wrong_numbers_are_named(method, options, message, post):
    with pytest.raises(ValueError, match=message):
        METHODS[method].run(post, **options)


@pytest.mark.long
def test_a_seed_gives_the_same_draws_and_another_gives_others(post):
    runs = [consensus(post, seed=seed, **SIZES).average for seed in (0, 0, 1)]
    np.testing.assert_array_equal(runs[0], runs[1])
    assert (runs[0] != runs[2]).all()


@pytest.mark.parametrize("method", EXACT)
@pytest.mark.long
def test_from_nuts_to_the_posterior(method, post, sampled):
    z, error = replicated_z(EXACT[method], np.split(sampled[1], 12), post.exact())
    assert z < Z_BOUND and error < 0.5


@pytest.mark.parametrize("power", [1, 4])
@pytest.mark.long
def test_nuts_draws_from_every_subset_posterior(power, post, sampled):
    means, covariances = subset_laws(post, power)
    for agent, (mean, cov) in enumerate(zip(means, covariances, strict=True)):
        x, variance = sampled[power][:, :, agent] - mean, np.diag(cov)
        for values, truth, sd in ((x, 0.0, np.sqrt(variance)), (x**2, variance, np.sqrt(2.0) * variance)):
            ess = arviz_array.array_stats.ess(values, chain_axis=0, draw_axis=1, method="mean")
            assert (np.abs(values.mean(axis=(0, 1)) - truth) < Z_BOUND * sd / np.sqrt(ess)).all()
        x = x[..., 0] * x[..., 1]
        ess = arviz_array.array_stats.ess(x, chain_axis=0, draw_axis=1, method="mean")
        sd = np.sqrt(variance.prod() + cov[0, 1] ** 2)
        assert abs(x.mean() - cov[0, 1]) < Z_BOUND * sd / np.sqrt(ess)


@pytest.mark.long
def test_modes_and_curvatures_of_subsets():
    post = logistic(rows=40)
    modes, factors = subsets.subset_modes(post, 3)
    for agent, shard in enumerate(post.shards):
        alone = accord.models.logistic_regression([shard], prior_variance=30.0)
        np.testing.assert_allclose(modes[agent], alone.mode(), rtol=1e-6)
        axes = np.linalg.eigh(alone.hessians(modes[agent])[0])[1]
        widths = np.linalg.norm(factors[agent], axis=0)
        np.testing.assert_allclose(np.abs(factors[agent]), np.abs(axes) * widths, atol=1e-9)
        # three times the potential rises by a half there, and not yet at the place before on the grid
        with jax.enable_x64(True):
            base = float(alone.logdensity(modes[agent]))
            rise = [
                [
                    3 * (base - float(alone.logdensity(modes[agent] + side * f * factors[agent, :, k])))
                    for side in (1, -1)
                ]
                for f in (1.0, 1e12 ** (-1 / 48))
                for k in (0, 1)
            ]
        assert np.min(rise[:2]) >= 0.5 and np.all(np.min(rise[2:], axis=1) < 0.5)


@pytest.mark.parametrize("exponent", [1.2, 1.5, 4.0])
def test_modes_without_a_curvature_are_found_with_their_spread(exponent):
    # the first two modes are where the search starts: the Hessian there is said to be 0
    centers = np.array([[0.0, 0.0], [0.0, 0.0], [0.5, 3.0]])
    modes, factors = subsets.subset_modes(accord.models.power(centers, exponent))
    np.testing.assert_allclose(modes, centers, atol=0.1 if exponent > 2 else 1e-3)
    # |x|^p rises by a half at (1/2)^(1/p)
    widths = np.linalg.norm(factors, axis=1)
    assert (widths >= 0.99 * 0.5 ** (1 / exponent)).all() and (widths <= 2.2 * 0.5 ** (1 / exponent)).all()


# consensus is what combines posteriors of any shape; another posterior is another NUTS to compile, seconds long
@pytest.mark.slow
def test_power_potentials_are_combined():
    centers = np.array([0.0, 0.5, 1.0, 1.5])
    run = accord.samplers.combine.consensus(accord.models.power(centers, 1.5), draws=200, chains=4, warmup=200)
    # the posterior is symmetric about the middle of the centres, and so is what consensus makes of it
    x = run.average[..., 0].astype(np.float64)
    ess = arviz_array.array_stats.ess(x[..., None], chain_axis=0, draw_axis=1)[0]
    assert abs(x.mean() - 0.75) < Z_BOUND * x.std() / np.sqrt(ess)


def flat_logistic(shards):
    """Logistic regression with a flat prior."""

    def log_likelihood(x, rows):
        X, y = rows
        return y * (X @ x) - jax.nn.softplus(X @ x)

    return accord.Posterior(log_likelihood, lambda x: 0.0 * x.sum(), shards, np.zeros(2))


GOOD = (np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0], [1.0, 3.0]]), np.array([1.0, 0.0, 1.0, 0.0]))


@pytest.mark.parametrize(
    ("shard", "message"),
    [
        ((GOOD[0][:1], GOOD[1][:1]), r"agent 1 \(1 rows, 2 parameters\) is improper: the smallest eigenvalue .* is "),
        ((GOOD[0], np.array([0.0, 0.0, 1.0, 1.0])), r"agent 1 \(4 rows, 2 parameters\) is improper"),
    ],
    ids=["fewer rows than parameters", "separated labels"],
)
def test_an_improper_shard_is_named_with_its_rows(shard, message):
    with pytest.raises(ValueError, match=message):
        accord.samplers.combine.consensus(flat_logistic([GOOD, shard]))


def test_a_shard_without_a_mode_is_named():
    # the potential of agent 1 has no lower bound, though that of all has a minimum
    post = accord.Posterior(
        lambda x, rows: -(x[0] ** 2) * rows["weight"],
        lambda x: 0.0 * x[0],
        [{"weight": np.array([2.0])}, {"weight": np.array([-1.0])}],
        np.ones(1),
    )
    with pytest.raises(ValueError, match=r"the subset posterior of agent 1 .* (has no mode|is improper)"):
        accord.samplers.combine.parametric(post)


def test_draws_in_a_plane_are_named():
    draws = np.random.default_rng(0).standard_normal((2, 50, 3, 2))
    draws[:, :, 1, 1] = 2.0 * draws[:, :, 1, 0]
    with pytest.raises(ArithmeticError, match="subset draws of agent 1 lie in a plane"):
        weighted_average(draws, np.random.default_rng(0))


@pytest.mark.parametrize("module", ["blackjax", "ot"])
def test_a_missing_extra_is_named(monkeypatch, module, post):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"pip install 'accord\[{'nuts' if module == 'blackjax' else 'metrics'}\]'"):
        accord.samplers.combine.wasp(post)


def test_bad_transitions_are_named(monkeypatch, post):
    positions = np.zeros((4, 2, 10, 2), np.float32)
    divergent = np.zeros((4, 2, 10), bool)
    monkeypatch.setattr(subsets, "_draw", lambda *args, **sizes: (positions, divergent, np.ones((4, 2))))
    divergent[2, 0, :5] = True
    with pytest.warns(UserWarning, match=r"^25% of NUTS transitions on the shard of agent 2 \(15 rows\) diverged"):
        subsets.sample_subsets(post, draws=10, chains=2, seed=0, warmup=1)
    positions[3, 1, 4, 0] = np.nan
    with pytest.raises(ArithmeticError, match=r"NUTS on the shard of agent 3 \(15 rows\) drew NaN or infinity"):
        subsets.sample_subsets(post, draws=10, chains=2, seed=0, warmup=1)


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("wasp", {"support": 1}, "support must be a whole number >= 2, found 1"),
        ("median", {"bandwidth": -1.0}, "bandwidth must be a finite number > 0, found -1.0"),
        ("median", {"kernel_draws": 1}, "kernel_draws must be a whole number >= 2, found 1"),
    ],
)
def test_wrong_options_are_named(method, options, message, post):
    with pytest.raises(ValueError, match=message):
        METHODS[method].run(post, **options)
