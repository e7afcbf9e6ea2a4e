"""One-shot methods that multiply densities: exact Gaussian draws against exact laws, then draws of NUTS."""

from functools import partial

import numpy as np
import pytest
from one_shot import (
    POSTS,
    SIZES,
    WRONG_NUMBERS,
    Method,
    check,
    even_shards,
    exact_draws,
    product,
    replicated_z,
    require_combination,
    require_proper_shards,
    require_quadrature,
    skewed,
    subset_laws,
)
from tables import POSTERIORS, Z_BOUND

import accord
import accord_papers.combine
from accord.samplers.combine import Moments, moments, subsets
from accord.samplers.combine.consensus import weighted_average
from accord_papers.combine import kernels, nonparametric, semiparametric, trees, weierstrass
from accord_papers.combine.nonparametric import kernel_product
from accord_papers.combine.semiparametric import corrected_product
from accord_papers.combine.trees import CUTS, _corners, forest, grow
from accord_papers.combine.weierstrass import tree_of_pairs

pytestmark = pytest.mark.busy

EXACT = {
    "nonparametric": partial(kernel_product, warmup=100, sweeps=10),
    "weierstrass": tree_of_pairs,
}


def gaussian_shards():
    some = {("shards", 1), ("curvature", 2)}
    for method in EXACT:
        for name in POSTERIORS:
            for dim in (1, 2, 3):
                # kernel methods take seconds per case
                yield pytest.param(method, name, dim, marks=() if (name, dim) in some else pytest.mark.slow)


@pytest.mark.parametrize(("method", "name", "dim"), list(gaussian_shards()))
@pytest.mark.long
def test_gaussian_shards_are_combined_exactly(method, name, dim):
    post = POSTERIORS[name](dim)
    check(EXACT[method], post, post.exact())


# Without `curvature`: shards three standard deviations from the product have no draws for the correction.
@pytest.mark.parametrize(
    ("name", "dim"), [("shards", 1), ("shards", 2), pytest.param("even", 3, marks=pytest.mark.slow)]
)
@pytest.mark.long
def test_corrected_gaussians_are_exact_where_shards_overlap(name, dim):
    post = POSTS[name](dim)
    # three dimensions need more draws to correct with
    check(partial(corrected_product, warmup=100, sweeps=10), post, post.exact(), draws=1000 if dim == 3 else 400)


@pytest.mark.slow
@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("name", POSTS)
@pytest.mark.parametrize("method", EXACT)
def test_gaussian_shards_are_combined_exactly_by_more_draws(method, name, dim):
    post = POSTS[name](dim)
    check(EXACT[method], post, post.exact(), draws=1500, repeats=16, noise=0.35)


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "bandwidth"),
    [pytest.param("nonparametric", 0.3, marks=pytest.mark.slow), ("nonparametric", 1.0), ("weierstrass", 0.7)],
)
def test_shrinkage_is_exact_at_every_bandwidth(method, bandwidth):
    post = even_shards(2)
    check(partial(EXACT[method], bandwidth=bandwidth), post, post.exact())


@pytest.mark.long
def test_the_papers_kernels_widen_gaussian_shards():
    post, h = even_shards(2), 0.5
    means, covariances = subset_laws(post)
    law = product(means, covariances + h**2 * np.eye(2))
    # far from the posterior, to distinguish the two
    assert (law.sd > 1.3 * post.exact().sd).all()
    check(partial(kernel_product, warmup=100, sweeps=10, bandwidth=h, shrinkage=False), post, law)


@pytest.mark.long
def test_the_papers_annealed_bandwidth():
    post, draws = even_shards(2), 400
    means, covariances = subset_laws(post)
    steps = np.arange(1.0, draws + 1) ** (-1.0 / 6.0)
    laws = [product(means, covariances + h**2 * np.eye(2)) for h in steps]
    mean = np.mean([law.mean for law in laws], axis=0)
    second = np.mean([law.cov + np.outer(law.mean - mean, law.mean - mean) for law in laws], axis=0)
    method = partial(kernel_product, warmup=100, sweeps=10, shrinkage=False)
    check(method, post, accord.Gaussian(mean, second), draws=draws)
    found = method(exact_draws(post, 0), np.random.default_rng(0)).statistics
    np.testing.assert_allclose(found["bandwidth"], np.broadcast_to(steps, (2, draws)))


@pytest.mark.long
def test_the_papers_kernels_leave_corrected_gaussians_exact():
    post = even_shards(2)
    law, widest = post.exact(), 2.0 * np.linalg.eigvalsh(subset_laws(post)[1]).min()
    h = 0.2
    assert h**2 < widest  # the condition for weights of finite variance
    check(partial(corrected_product, warmup=100, sweeps=10, bandwidth=h, scaled=False), post, law)


def test_the_papers_weierstrass_kernels_widen_by_level():
    post, h = even_shards(2), 0.5
    means, covariances = subset_laws(post)
    sets = [accord.Gaussian(m, s) for m, s in zip(means, covariances, strict=True)]
    while len(sets) > 1:
        sets = [
            product(np.stack([a.mean, b.mean]), (1 + h**2) * np.stack([a.cov, b.cov]))
            for a, b in zip(sets[::2], sets[1::2], strict=True)
        ]
    # two levels of equal inflation
    np.testing.assert_allclose(sets[0].cov, (1 + h**2) ** 2 * post.exact().cov)
    check(partial(tree_of_pairs, bandwidth=h, shrinkage=False), post, sets[0])


def test_shrunken_kernels_keep_mean_and_covariance():
    points = np.random.default_rng(0).standard_normal((1, 100, 2)) @ np.array([[1.0, 0.5], [0.0, 2.0]])
    fitted, h = moments(points), 0.6
    centres = fitted.means[:, None] + kernels.shrinkage_factor(h) * (points - fitted.means[:, None])
    again = moments(centres)
    np.testing.assert_allclose(again.means, fitted.means, atol=1e-14)
    np.testing.assert_allclose(again.covariances + h**2 * fitted.covariances, fitted.covariances)


def test_effective_shares_match_reweighted_draws():
    post, h = even_shards(1, agents=2), 0.5
    means, covariances = subset_laws(post)
    fitted = Moments(means, covariances, np.linalg.inv(covariances))
    law, a2 = post.exact(), 1 - h**2
    for agent in range(2):
        m, s = means[agent, 0], covariances[agent, 0, 0]
        z = (a2 * (law.mean[0] - m), s * a2 * h**2 + a2**2 * law.cov[0, 0])
        x = np.linspace(-60, 60, 400_001) * np.sqrt(s)
        p, q = (np.exp(-((x - u) ** 2) / (2 * v)) / np.sqrt(2 * np.pi * v) for u, v in ((0.0, a2 * s), z))
        inside = p > 1e-290
        expected = 1.0 / (np.sum(q[inside] ** 2 / p[inside]) * (x[1] - x[0]))
        np.testing.assert_allclose(kernels.effective_shares(fitted, h)[agent], expected, rtol=1e-6)


@pytest.mark.long
def test_far_shards_are_named_in_a_warning():
    post = POSTERIORS["curvature"](1)
    with pytest.warns(UserWarning, match=r"the draws of agent \d lie too far from the product"):
        corrected_product(exact_draws(post, 0), np.random.default_rng(0), warmup=1, sweeps=1)


@pytest.mark.parametrize("method", EXACT)
@pytest.mark.long
def test_one_agent_keeps_its_law(method):
    post = even_shards(2, agents=1)
    check(EXACT[method], post, post.exact(), repeats=6)


@pytest.mark.parametrize("cut", CUTS)
def test_blocks_of_a_tree_fill_the_box_and_hold_all_points(cut):
    rng = np.random.default_rng(0)
    sets = [rng.standard_normal((200, 2)), 0.5 + 0.7 * rng.standard_normal((200, 2))]
    low, high = _corners(sets)
    leaves = list(grow(sets, (low, high), 0.02, CUTS[cut], rng))
    assert len(leaves) > 5
    seen = [[], []]
    for block, (near, far) in leaves:
        counts = [len(i) for i in block.members]
        # |A| n_1 / |A| n_2 / |A|
        np.testing.assert_allclose(block.log_mass, np.log(np.prod(counts) / np.prod(far - near)))
        for own, i, places in zip(sets, block.members, seen, strict=True):
            inside = ((own >= near) & (own <= far)).all(axis=1)
            assert set(i) <= set(np.flatnonzero(inside)) and inside.sum() <= len(i) + 1
            places.extend(i)
    assert all(len(places) == len(set(places)) for places in seen)
    # the rest of the box belongs to blocks without points of both sets
    assert sum(np.prod(far - near) for _, (near, far) in leaves) <= np.prod(high - low) * (1 + 1e-9)


def test_histograms_multiply_to_the_product_of_densities():
    # densities 1 and 2 x on (0, 1), whose product is 2 x again
    points, rng = 20_000, np.random.default_rng(1)
    draws = np.stack([rng.random((1, points)), np.sqrt(rng.random((1, points)))], axis=-1)[..., None]
    x = forest(draws, rng, smoothing=False).draws
    # variance of the mean: 1/18 from the draws, and int (x - 2/3)^2 q^2 / p from each set, q the product, p its density
    error = np.sqrt((1 / 18 + 1 / 18 + 4 * (1 / 5 - 1 / 3 + 4 / 27)) / points)
    assert abs(x.mean() - 2 / 3) < Z_BOUND * error
    # four Monte Carlo errors: 1.4 (3 / points) for a square of each of the three
    assert abs(x.var() * 18 - 1) < 0.06
    # block by block: the share below 1/2 is 1/4
    assert abs((x < 0.5).mean() - 0.25) < Z_BOUND * np.sqrt(3 * 0.25 * 0.75 / points)


def test_trees_follow_modes_and_averages_fall_between_them():
    rng = np.random.default_rng(0)
    draws = 0.5 * rng.standard_normal((2, 1000, 4, 1)) + 3.0 * rng.choice([-1.0, 1.0], (2, 1000, 4, 1))
    averaged = weighted_average(draws, rng).draws
    found = forest(draws, rng).draws
    # the average is at a mode only if all four draws are, once in eight
    assert (np.abs(averaged) < 2.0).mean() > 0.8
    assert (np.abs(found) < 2.0).mean() < 0.002
    # each mode of the product has half the mass and half the width
    assert abs((found > 0).mean() - 0.5) < 0.15
    np.testing.assert_allclose(found[found > 0].std(), 0.25, rtol=0.15)


@pytest.mark.long
def test_trees_approximate_gaussian_products_as_documented():
    post = even_shards(2)
    law, found = post.exact(), []
    for seed in range(6):
        x = forest(exact_draws(post, seed, 1000), np.random.default_rng(seed)).draws.reshape(-1, 2)
        found.append([*(x.mean(axis=0) - law.mean) / law.sd, *x.std(axis=0) / law.sd])
    found = np.array(found)
    assert np.abs(found[:, :2]).max() < 0.3
    assert 0.8 < found[:, 2:].min() < 0.97 and found[:, 2:].max() < 1.1


def test_sets_without_common_blocks_are_multiplied_as_gaussians():
    rng = np.random.default_rng(0)
    draws = rng.standard_normal((1, 2000, 2, 1)) + np.array([0.0, 40.0])[:, None]
    combined = forest(draws, rng)
    assert combined.facts["blocks"] == 1.0
    assert abs(combined.draws.mean() - 20.0) < 0.2
    assert abs(combined.draws.std() * np.sqrt(2.0) - 1.0) < 0.1


# From NUTS to the posterior.
METHODS = {
    "nonparametric": Method(
        nonparametric,
        1,
        partial(kernel_product, warmup=300, bandwidth=0.5, sweeps=5),
        {"bandwidth": 0.5, "sweeps": 5},
    ),
    "semiparametric": Method(
        semiparametric,
        1,
        partial(corrected_product, warmup=300, bandwidth=0.5, sweeps=5),
        {"bandwidth": 0.5, "sweeps": 5},
    ),
    "weierstrass": Method(weierstrass, 1, partial(tree_of_pairs, bandwidth=0.4), {"bandwidth": 0.4}),
    "trees": Method(trees, 1, partial(forest, count=4, share=0.05), {"count": 4, "share": 0.05}),
}


@pytest.fixture(scope="module")
def post():
    return even_shards(2)


@pytest.fixture(scope="module")
def sampled(post):
    """Draws from the subset posteriors."""
    return {power: subsets.sample_subsets(post, power, seed=3, **SIZES).draws for power in (1,)}


@pytest.fixture(scope="module")
def regression():
    return skewed(1)


def test_every_method_is_tested():
    # variational, which evaluates F, is in test_variational.py
    assert sorted([*METHODS, "variational"]) == sorted(accord_papers.combine.__all__)


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
    runs = [nonparametric(post, seed=seed, bandwidth=0.5, sweeps=5, **SIZES).average for seed in (0, 0, 1)]
    np.testing.assert_array_equal(runs[0], runs[1])
    assert (runs[0] != runs[2]).all()


@pytest.mark.parametrize("method", [*EXACT, "semiparametric"])
@pytest.mark.long
def test_from_nuts_to_the_posterior(method, post, sampled):
    combine = {**EXACT, "semiparametric": partial(corrected_product, warmup=100, sweeps=10)}[method]
    z, error = replicated_z(combine, np.split(sampled[1], 12), post.exact())
    assert z < Z_BOUND and error < 0.5


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("nonparametric", {"bandwidth": 1.5}, r"bandwidth must be in \(0, 1\], .* found 1.5"),
        ("nonparametric", {"bandwidth": 0.0, "shrinkage": False}, "bandwidth must be a finite number > 0, found 0.0"),
        ("nonparametric", {"sweeps": 0}, "sweeps must be a whole number >= 1, found 0"),
        ("semiparametric", {"bandwidth": float("nan")}, r"bandwidth must be in \(0, 1\], .* found nan"),
        ("semiparametric", {"sweeps": 1.0}, "sweeps must be a whole number >= 1, found 1.0"),
        ("weierstrass", {"bandwidth": float("inf"), "shrinkage": False}, "a finite number > 0, found inf"),
        ("trees", {"count": 0}, "count must be a whole number >= 1, found 0"),
        ("trees", {"share": 0.0}, r"share must be in \(0, 1\], found 0.0"),
        ("trees", {"cut": "mean"}, "cut .*mean.*median"),
    ],
)
def test_wrong_options_are_named(method, options, message, post):
    with pytest.raises(ValueError, match=message):
        METHODS[method].run(post, **options)
