"""One-shot methods: combinations of exact Gaussian draws against exact laws, then the whole way from NUTS."""

import sys
from functools import partial

import arviz_stats.base.array as arviz_array
import jax
import numpy as np
import ot
import pytest
from accord.combine.nonparametric import kernel_product
from accord.combine.semiparametric import corrected_product
from accord.combine.trees import CUTS, _corners, forest, grow
from accord.combine.weierstrass import tree_of_pairs
from tables import POSTERIORS, Z_BOUND, quadrature, quadrature_moments

import accord
from accord.combine import kernels, subsets
from accord.combine.consensus import weighted_average
from accord.combine.median import geometric_median, weiszfeld
from accord.combine.parametric import gaussian_product
from accord.combine.wasp import barycentre

pytestmark = pytest.mark.busy


def even_shards(dim, agents=4, rows=15):
    """Linear regression whose shards are random parts of the data, so that all subset posteriors overlap."""
    rng = np.random.default_rng(1)
    shards = [
        (X, X @ np.arange(1.0, dim + 1) + rng.standard_normal(rows)) for X in rng.standard_normal((agents, rows, dim))
    ]
    return accord.models.linear_regression(shards, noise_scale=1.0, prior_variance=10.0)


POSTS = {**POSTERIORS, "even": even_shards}


def subset_laws(post, power=1):
    """Means and covariances of the Gaussian subset posteriors exp(-power f_i)."""
    hessians = post.hessians()
    linear = -post.gradients(np.zeros(post.dim))
    return np.linalg.solve(hessians, linear[..., None])[..., 0], np.linalg.inv(hessians) / power


def exact_draws(post, seed, draws=400, chains=2, power=1):
    means, covariances = subset_laws(post, power)
    normals = np.random.default_rng(seed).standard_normal((chains, draws, *means.shape))
    return means + np.einsum("nij,ctnj->ctni", np.linalg.cholesky(covariances), normals)


def product(means, covariances):
    """The product of Gaussians, by its definition."""
    precisions = np.linalg.inv(covariances)
    cov = np.linalg.inv(precisions.sum(axis=0))
    return accord.Gaussian(cov @ np.einsum("nij,nj->i", precisions, means), cov)


def replicated_z(combine, replicates, law):
    """Worst |z| of mean and covariance over independent replicates of subset draws, and the worst error of one mean.

    The draws of one combination share the errors of its subset draws, which no effective sample size of theirs can
    show; the spread of the estimates between replicates does. Estimates are in units of the law's standard deviations.
    """
    white = np.linalg.inv(np.linalg.cholesky(law.cov))
    means, covariances = [], []
    for index, draws in enumerate(replicates):
        combined = combine(draws, np.random.default_rng([index, 1])).draws
        assert combined.shape == (*draws.shape[:2], draws.shape[3])
        x = (combined.reshape(-1, law.dim) - law.mean) @ white.T
        means.append(x.mean(axis=0))
        covariances.append(x.T @ x / len(x))
    z = [
        np.abs(np.mean(x, axis=0) - truth) / (np.std(x, axis=0, ddof=1) / np.sqrt(len(x)))
        for x, truth in ((means, 0.0), (covariances, np.eye(law.dim)))
    ]
    return max(z[0].max(), z[1].max()), np.std(means, axis=0).max()


def check(combine, post, law, *, draws=400, repeats=12, noise=0.5):
    z, error = replicated_z(combine, [exact_draws(post, [seed, 2], draws) for seed in range(repeats)], law)
    assert z < Z_BOUND
    # a bound on the noise, without which |z| would be no test: no replicate is far from the law. Half a standard
    # deviation is what kernel estimates from a few hundred draws reach for shards three standard deviations apart.
    assert error < noise


EXACT = {
    "consensus": weighted_average,
    "parametric": gaussian_product,
    "nonparametric": partial(kernel_product, warmup=100, sweeps=10),
    "weierstrass": tree_of_pairs,
}


def gaussian_shards():
    some = {("shards", 1), ("curvature", 2)}
    for method in EXACT:
        for name in POSTERIORS:
            for dim in (1, 2, 3):
                # kernel methods take seconds a case
                quick = method in ("consensus", "parametric") or (name, dim) in some
                yield pytest.param(method, name, dim, marks=() if quick else pytest.mark.slow)


@pytest.mark.parametrize(("method", "name", "dim"), list(gaussian_shards()))
@pytest.mark.long_from(3)
def test_gaussian_shards_are_combined_exactly(method, name, dim):
    post = POSTERIORS[name](dim)
    check(EXACT[method], post, post.exact())


# Not on `curvature`: shards three standard deviations from the product leave the correction nothing to rest on.
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
def test_the_papers_kernels_widen_gaussian_shards_as_they_must():
    post, h = even_shards(2), 0.5
    means, covariances = subset_laws(post)
    law = product(means, covariances + h**2 * np.eye(2))
    # far from the posterior, so that the two are told apart
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
    fitted, h = kernels.moments(points), 0.6
    centres = fitted.means[:, None] + kernels.shrinkage_factor(h) * (points - fitted.means[:, None])
    again = kernels.moments(centres)
    np.testing.assert_allclose(again.means, fitted.means, atol=1e-14)
    np.testing.assert_allclose(again.covariances + h**2 * fitted.covariances, fitted.covariances)


def test_effective_shares_are_those_of_reweighted_draws():
    post, h = even_shards(1, agents=2), 0.5
    means, covariances = subset_laws(post)
    fitted = kernels.Moments(means, covariances, np.linalg.inv(covariances))
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
def test_far_shards_are_named_where_they_leave_nothing_to_correct():
    post = POSTERIORS["curvature"](1)
    with pytest.warns(UserWarning, match=r"the draws of agent \d lie too far from the product"):
        corrected_product(exact_draws(post, 0), np.random.default_rng(0), warmup=1, sweeps=1)


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
    # would be the largest of 20 by chance once in 20, were the atoms no better than independent draws
    assert accord.metrics.wasserstein2(found.reshape(-1, dim), fresh[0]) < max(between)
    # and the subset posteriors themselves are told apart from their barycentre
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
    # blocks without points of both sets are none; the rest of the box is theirs
    assert sum(np.prod(far - near) for _, (near, far) in leaves) <= np.prod(high - low) * (1 + 1e-9)


def test_histograms_multiply_to_the_product_of_densities():
    # densities 1 and 2 x on (0, 1), whose product is 2 x again
    points, rng = 20_000, np.random.default_rng(1)
    draws = np.stack([rng.random((1, points)), np.sqrt(rng.random((1, points)))], axis=-1)[..., None]
    x = forest(draws, rng, smoothing=False).draws
    # of the mean: 1/18 of the draws, and int (x - 2/3)^2 q^2 / p of each set, q the product and p its own density
    error = np.sqrt((1 / 18 + 1 / 18 + 4 * (1 / 5 - 1 / 3 + 4 / 27)) / points)
    assert abs(x.mean() - 2 / 3) < Z_BOUND * error
    # four Monte Carlo errors: 1.4 (3 / points) for a square of each of the three
    assert abs(x.var() * 18 - 1) < 0.06
    # block by block: the share below 1/2 is 1/4
    assert abs((x < 0.5).mean() - 0.25) < Z_BOUND * np.sqrt(3 * 0.25 * 0.75 / points)


def test_trees_follow_modes_that_averages_fall_between():
    rng = np.random.default_rng(0)
    draws = 0.5 * rng.standard_normal((2, 1000, 4, 1)) + 3.0 * rng.choice([-1.0, 1.0], (2, 1000, 4, 1))
    averaged = weighted_average(draws, rng).draws
    found = forest(draws, rng).draws
    # only where all four draws are of one mode, once in eight, is the average there
    assert (np.abs(averaged) < 2.0).mean() > 0.8
    assert (np.abs(found) < 2.0).mean() < 0.002
    # each mode of the product has half the mass and half the width
    assert abs((found > 0).mean() - 0.5) < 0.15
    np.testing.assert_allclose(found[found > 0].std(), 0.25, rtol=0.15)


@pytest.mark.long
def test_trees_are_near_gaussian_products_and_off_by_what_is_documented():
    post = even_shards(2)
    law, found = post.exact(), []
    for seed in range(6):
        x = forest(exact_draws(post, seed, 1000), np.random.default_rng(seed)).draws.reshape(-1, 2)
        found.append([*(x.mean(axis=0) - law.mean) / law.sd, *x.std(axis=0) / law.sd])
    found = np.array(found)
    assert np.abs(found[:, :2]).max() < 0.3
    assert 0.8 < found[:, 2:].min() < 0.97 and found[:, 2:].max() < 1.1


def test_sets_that_share_no_block_are_multiplied_as_gaussians():
    rng = np.random.default_rng(0)
    draws = rng.standard_normal((1, 2000, 2, 1)) + np.array([0.0, 40.0])[:, None]
    combined = forest(draws, rng)
    assert combined.facts["blocks"] == 1.0
    assert abs(combined.draws.mean() - 20.0) < 0.2
    assert abs(combined.draws.std() * np.sqrt(2.0) - 1.0) < 0.1


# From here on the whole way, on few compiled programs: one posterior and one set of sizes.
SIZES = dict(draws=400, chains=12, warmup=300)
METHODS = {
    "consensus": (1, weighted_average, {}),
    "parametric": (1, gaussian_product, {}),
    "nonparametric": (1, partial(kernel_product, warmup=300, bandwidth=0.5, sweeps=5), {"bandwidth": 0.5, "sweeps": 5}),
    "semiparametric": (
        1,
        partial(corrected_product, warmup=300, bandwidth=0.5, sweeps=5),
        {"bandwidth": 0.5, "sweeps": 5},
    ),
    "weierstrass": (1, partial(tree_of_pairs, bandwidth=0.4), {"bandwidth": 0.4}),
    "trees": (1, partial(forest, count=4, share=0.05), {"count": 4, "share": 0.05}),
    "wasp": (4, partial(barycentre, support=100), {"support": 100}),
    "median": (4, partial(geometric_median, kernel_draws=100), {"kernel_draws": 100}),
}
# what asks for something else than draws: tests/test_combine_modes.py
MODES = ["bfi", "surrogate", "variational"]


@pytest.fixture(scope="module")
def post():
    return even_shards(2)


@pytest.fixture(scope="module")
def sampled(post):
    """Draws of the subset posteriors of both powers."""
    return {power: subsets.sample_subsets(post, power, seed=3, **SIZES).draws for power in (1, 4)}


def test_every_method_is_here():
    assert sorted([*METHODS, *MODES]) == sorted(accord.combine.__all__)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:(ESS|R-hat) is")
@pytest.mark.parametrize("method", METHODS)
def test_a_run_is_the_combination_of_the_subset_draws(method, post, sampled, tmp_path):
    power, combine, options = METHODS[method]
    run = getattr(accord.combine, method)(post, seed=3, **SIZES, **options)
    expected = combine(sampled[power], np.random.default_rng([3, 1]))
    np.testing.assert_array_equal(run.average, expected.draws.astype(np.float32))
    assert run.draws.shape == (12, 400, 4, 2)
    assert (run.draws == run.average[:, :, None]).all()
    assert (run.statistics["consensus_error"] == 0).all()
    assert all(x.shape == (12, 400) for x in run.statistics.values())
    assert run.traffic.rounds == run.traffic.exchanges == 1
    # two numbers a draw; all parametric sends is two means and three covariances, for all chains together
    assert (run.traffic.bytes_sent == (np.ceil(5 * 8 / 12) if method == "parametric" else 400 * 2 * 4)).all()
    assert run.settings["method"].startswith(f"{method}(") and run.settings["seed"] == 3
    # NUTS evaluates at least one gradient a transition
    assert (run.traffic.gradient_rows >= 15 * 700).all()
    assert run.settings["gradients"] >= run.settings["gradients_largest"] >= 700
    # whole rows an agent
    assert abs(run.traffic.gradient_rows.sum() - 15 * run.settings["gradients"]) <= run.traffic.gradient_rows.size
    assert list(run.summary().index) == list(post.names)
    run.save(tmp_path / "run.nc")
    again = accord.Run.load(tmp_path / "run.nc")
    np.testing.assert_array_equal(again.draws, run.draws)
    assert again.settings["method"] == run.settings["method"]


@pytest.mark.long
def test_a_seed_gives_the_same_draws_and_another_gives_others(post):
    runs = [
        accord.combine.nonparametric(post, seed=seed, bandwidth=0.5, sweeps=5, **SIZES).average for seed in (0, 0, 1)
    ]
    np.testing.assert_array_equal(runs[0], runs[1])
    assert (runs[0] != runs[2]).all()


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


@pytest.mark.parametrize("method", [*EXACT, "semiparametric"])
@pytest.mark.long
def test_from_nuts_to_the_posterior(method, post, sampled):
    combine = {**EXACT, "semiparametric": partial(corrected_product, warmup=100, sweeps=10)}[method]
    z, error = replicated_z(combine, np.split(sampled[1], 12), post.exact())
    assert z < Z_BOUND and error < 0.5


def logistic(rows=200, agents=3):
    """Logistic regression whose shards are random parts of the data, with its subset posteriors close to Gaussian."""
    rng = np.random.default_rng(5)
    X = rng.standard_normal((agents, rows, 2))
    y = (rng.random((agents, rows)) < 1 / (1 + np.exp(-X @ np.array([1.0, -0.5])))).astype(float)
    return accord.models.logistic_regression(list(zip(X, y, strict=True)), prior_variance=10.0)


@pytest.fixture(scope="module")
def regression():
    """A posterior that is not Gaussian: its moments, and draws of its subsets for each power, in replicates."""
    post = logistic()
    replicates = {
        power: np.split(subsets.sample_subsets(post, power, draws=300, chains=8, seed=1, warmup=300).draws, 8)
        for power in (1, post.num_agents)
    }
    return post, quadrature(post, 161), replicates


def averaged(post, points=161):
    """The mean of the average of subset draws weighted by their precisions: not the posterior's, where it is skew."""
    alone = [accord.models.logistic_regression([shard], prior_variance=30.0) for shard in post.shards]
    means, covariances = zip(*(quadrature_moments(one, points) for one in alone), strict=True)
    return product(np.stack(means), np.stack(covariances)).mean


@pytest.mark.long
@pytest.mark.parametrize("method", METHODS)
def test_logistic_regression_against_quadrature(method, regression):
    post, (mean, sd), replicates = regression
    if method == "consensus":
        mean = averaged(post)
    power, combine, _ = METHODS[method]
    power = min(power, post.num_agents)
    results = [combine(x, np.random.default_rng([r, 2])) for r, x in enumerate(replicates[power])]
    means = np.stack([result.draws.mean(axis=(0, 1)) for result in results])
    error = means.std(axis=0, ddof=1) / np.sqrt(len(means))
    if power > 1:
        # a weighted mean of subset means, each of which lies about the posterior's with N times its variance
        weights = np.full(power, 1 / power)
        if method == "median":
            weights = np.mean([[float(w) for w in result.facts["weights"].split()] for result in results], axis=0)
        error = np.hypot(error, sd * np.sqrt(power * np.sum(weights**2)))
    assert (np.abs(means.mean(axis=0) - mean) < Z_BOUND * error).all()
    if method in ("median", "trees"):
        # the width of one is that of a mixture, wider by how far the subsets' means lie apart; blocks have a width
        return
    spreads = np.stack([np.log(result.draws.std(axis=(0, 1)) / sd) for result in results])
    error = spreads.std(axis=0, ddof=1) / np.sqrt(len(spreads))
    assert (np.abs(spreads.mean(axis=0)) < Z_BOUND * error).all()


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
    run = accord.combine.consensus(accord.models.power(centers, 1.5), draws=200, chains=4, warmup=200)
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


@pytest.mark.parametrize("method", METHODS)
def test_a_shard_too_small_is_named(method):
    hessians = np.array([np.eye(2), [[1.0, 1.0], [1.0, 1.0]]])
    post = accord.models.quadratic(hessians, np.zeros((2, 2)))
    with pytest.raises(ValueError, match=r"agent 1 \(a shard that does not split, 2 parameters\) is improper: the sma"):
        getattr(accord.combine, method)(post)


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
        accord.combine.consensus(flat_logistic([GOOD, shard]))


def test_a_shard_without_a_mode_is_named():
    # the potential of agent 1 has no lower bound, though that of all has a minimum
    post = accord.Posterior(
        lambda x, rows: -(x[0] ** 2) * rows["weight"],
        lambda x: 0.0 * x[0],
        [{"weight": np.array([2.0])}, {"weight": np.array([-1.0])}],
        np.ones(1),
    )
    with pytest.raises(ValueError, match=r"the subset posterior of agent 1 .* (has no mode|is improper)"):
        accord.combine.parametric(post)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draws": 0}, "draws must be a whole number >= 1, found 0"),
        ({"draws": 2.5}, "draws must be a whole number >= 1, found 2.5"),
        ({"chains": True}, "chains must be a whole number >= 1, found True"),
        ({"warmup": 0}, "warmup must be a whole number >= 1, found 0"),
        ({"seed": -1}, "seed must be a whole number >= 0, found -1"),
        ({"draws": 1, "chains": 2}, r"draws \* chains must exceed the 2 parameters for covariances, found 1 \* 2"),
    ],
)
@pytest.mark.parametrize("method", METHODS)
def test_wrong_numbers_are_named(method, options, message, post):
    with pytest.raises(ValueError, match=message):
        getattr(accord.combine, method)(post, **options)


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("nonparametric", {"bandwidth": 1.5}, r"bandwidth must be in \(0, 1\], .* found 1.5"),
        ("nonparametric", {"bandwidth": 0.0, "shrinkage": False}, "bandwidth must be a finite number > 0, found 0.0"),
        ("nonparametric", {"sweeps": 0}, "sweeps must be a whole number >= 1, found 0"),
        ("semiparametric", {"bandwidth": float("nan")}, r"bandwidth must be in \(0, 1\], .* found nan"),
        ("semiparametric", {"sweeps": 1.0}, "sweeps must be a whole number >= 1, found 1.0"),
        ("weierstrass", {"bandwidth": float("inf"), "shrinkage": False}, "a finite number > 0, found inf"),
        ("wasp", {"support": 1}, "support must be a whole number >= 2, found 1"),
        ("median", {"bandwidth": -1.0}, "bandwidth must be a finite number > 0, found -1.0"),
        ("trees", {"count": 0}, "count must be a whole number >= 1, found 0"),
        ("trees", {"share": 0.0}, r"share must be in \(0, 1\], found 0.0"),
        ("trees", {"cut": "mean"}, "cut .*mean.*median"),
        ("median", {"kernel_draws": 1}, "kernel_draws must be a whole number >= 2, found 1"),
    ],
)
def test_wrong_options_are_named(method, options, message, post):
    with pytest.raises(ValueError, match=message):
        getattr(accord.combine, method)(post, **options)


def test_draws_in_a_plane_are_named():
    draws = np.random.default_rng(0).standard_normal((2, 50, 3, 2))
    draws[:, :, 1, 1] = 2.0 * draws[:, :, 1, 0]
    with pytest.raises(ArithmeticError, match="subset draws of agent 1 lie in a plane"):
        weighted_average(draws, np.random.default_rng(0))


@pytest.mark.parametrize("module", ["blackjax", "ot"])
def test_a_missing_extra_is_named(monkeypatch, module, post):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"pip install 'accord\[{'nuts' if module == 'blackjax' else 'metrics'}\]'"):
        accord.combine.wasp(post)


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
