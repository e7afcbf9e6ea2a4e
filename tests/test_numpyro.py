"""NumPyro models over sites: parts against NumPyro's own densities, and errors of models that do not split."""

import inspect
import json

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import textbook
from numpyro.infer.util import log_density, potential_energy
from scipy import stats

import accord
from accord.models.bridges.numpyro import NumPyroProgram
from accord.samplers import Importance


@pytest.fixture(autouse=True)
def as_users_have_it():
    """NumPyro's own code promotes ranks."""
    with jax.numpy_rank_promotion("allow"):
        yield


def unconstrained(post, x):
    """A position in the form of NumPyro: a dict of unconstrained numbers."""
    leaves, start = [], 0
    for shape in post.parameters.shapes:
        stop = start + int(np.prod(shape, dtype=int))
        leaves.append(x[start:stop].reshape(shape))
        start = stop
    return post.parameters.treedef.unflatten(leaves)


def small(book, rows):
    """The model with fewer rows, split over sites of unequal size."""
    pooled = {name: value[:rows] for name, value in book.pooled.items()}
    parts = np.split(np.arange(rows), [3, rows // 2])
    return book.model, pooled, [{name: value[part] for name, value in pooled.items()} for part in parts]


@pytest.mark.long
@pytest.mark.parametrize("make", [textbook.wells, textbook.nes2000, textbook.dogs])
def test_the_density_is_numpyros_own(make):
    model, pooled, shards = small(make(), 40)
    post = accord.from_numpyro(model, shards)
    assert post.num_agents == 3 and list(post.sizes) == [3, 17, 20]
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        for _ in range(3):
            x = post.init + 0.3 * rng.standard_normal(post.dim)
            expected = -potential_energy(model, (), pooled, unconstrained(post, x))
            np.testing.assert_allclose(post.logdensity(x), expected, rtol=1e-9)


def slopes(y, x, ward, wards, u, shrink=2.0):
    """Two latents a ward, a covariate of wards, a constant, and an observed site without a plate."""
    mean = numpyro.sample("mean", dist.Normal(0, 3).expand([2]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(shrink))
    shares = numpyro.sample("shares", dist.Dirichlet(jnp.ones(2)))
    with numpyro.plate("ward", wards):
        b = numpyro.sample("b", dist.Normal(mean, scale).to_event(1))
        numpyro.deterministic("shifted", b[:, 0] + u)
    numpyro.sample("y", dist.Normal(b[ward, 0] + u[ward] * shares[0] + b[ward, 1] * x, 0.5), obs=y)


def wards(site, counts):
    rng = np.random.default_rng(site)
    ward = np.repeat(np.arange(len(counts)), counts)
    rows = rng.permutation(len(ward))
    y, x = rng.standard_normal((2, len(ward)))
    return {"y": y, "x": x, "ward": ward[rows], "wards": len(counts), "u": rng.standard_normal(len(counts))}


def pooled_wards(shards):
    first = np.cumsum([0, *(one["wards"] for one in shards)])
    joined = {name: np.concatenate([one[name] for one in shards]) for name in ("y", "x", "u")}
    ward = np.concatenate([one["ward"] + k for one, k in zip(shards, first, strict=False)])
    return {**joined, "ward": ward, "wards": int(first[-1])}


@pytest.mark.slow
def test_latents_of_groups_are_integrated_out_of_numpyros_density():
    shards = [wards(0, [3, 1, 4]), wards(1, [2, 5]), wards(2, [1])]
    post = accord.from_numpyro(slopes, shards, local="ward")
    assert post.names == ("mean[0]", "mean[1]", "scale", "shares[0]", "shares[1]")
    pooled = pooled_wards(shards)
    with jax.enable_x64(True):
        x = post.init + 0.2
        params = post.unravel(x)
        prior, _ = log_density(slopes, (), {**pooled}, {**params, "b": jnp.zeros((6, 2))})
        # the exact normal marginal of the rows given the parameters
        same = pooled["ward"][:, None] == pooled["ward"]
        cov = 0.25 * np.eye(len(same)) + same * params["scale"] ** 2 * (1.0 + np.outer(pooled["x"], pooled["x"]))
        mean = params["mean"][0] + pooled["u"][pooled["ward"]] * params["shares"][0] + params["mean"][1] * pooled["x"]
        marginal = jax.scipy.stats.multivariate_normal.logpdf(pooled["y"], mean, cov)
        # NumPyro's log prior of the parameters
        zero = jnp.zeros(2)
        effects = jnp.sum(dist.Normal(params["mean"], params["scale"]).log_prob(jnp.zeros((6, 2))))
        rows = dist.Normal(pooled["u"][pooled["ward"]] * params["shares"][0], 0.5).log_prob(pooled["y"]).sum()
        _, volume = post.parameters.with_volume(x)
        assert zero.shape == (2,)
        np.testing.assert_allclose(post.logdensity(x), prior - effects - rows + volume + marginal, rtol=1e-9)


@pytest.mark.long
def test_latents_of_rows_stay_at_the_rows():
    book = textbook.glmm_poisson()
    post = accord.from_numpyro(book.model, book.shards, local="rows")
    assert post.extent == (8, 8) and post.dim == 5
    with pytest.raises(ValueError, match=r"e has one latent for each row: set local='rows' to keep it at its site"):
        accord.from_numpyro(book.model, book.shards)


def test_a_pickled_model_has_no_rows():
    canary = 31415.926535
    shards = [{"y": np.full(3, canary + k), "x": np.full((3, 2), canary - k)} for k in range(3)]

    def model(y, x):
        b = numpyro.sample("b", dist.Normal(0, 10).expand([2]).to_event(1))
        numpyro.sample("y", dist.Normal(x @ b, 1.0), obs=y)

    post = accord.from_numpyro(model, shards)
    sent = cloudpickle.dumps(post.alone(1))
    found = [np.float64(canary + k).tobytes() in sent for k in (0, 1, 2)]
    assert found == [False, True, False]
    assert np.float64(canary).tobytes() not in sent.replace(np.float64(canary + 1).tobytes(), b"")


@pytest.mark.long
def test_remote_shards_need_an_example():
    shards = [wards(0, [3, 2]), wards(1, [2, 5])]
    given = accord.from_numpyro(slopes, shards, local="ward")
    example = wards(5, [1, 2, 1])
    read = accord.from_numpyro(slopes, [lambda s=s: s for s in shards], local="ward", example=example)
    assert not read.is_read and "not read" in repr(read)
    np.testing.assert_allclose(read.gradients(given.init), given.gradients(given.init), rtol=1e-9)
    with pytest.raises(ValueError, match="shards that are functions or files need example"):
        accord.from_numpyro(slopes, [lambda s=s: s for s in shards], local="ward")


def one_level(**changes):
    """The posterior of a model with two sites, after `changes` to the model."""

    def model(y, extra=None):
        a = numpyro.sample("a", changes.get("prior", dist.Normal(0, 1)))
        changes.get("more", lambda a, y, extra: None)(a, y, extra)
        with numpyro.plate("rows", len(y), subsample_size=changes.get("subsample")):
            numpyro.sample("y", dist.Normal(a, 1.0), obs=y[: changes.get("subsample")])

    shards = [{"y": np.arange(3.0)}, {"y": np.arange(2.0)}]
    for site, shard in enumerate(shards):
        if "extra" in changes:
            shard["extra"] = changes["extra"][site]
    return accord.from_numpyro(model, shards, **changes.get("options", {}))


def across_groups(y, ward, wards):
    s = numpyro.sample("s", dist.HalfNormal(1))
    with numpyro.plate("ward", wards):
        b = numpyro.sample("b", dist.Normal(0, s))
    numpyro.sample("y", dist.Normal(b[ward] + 0.5 * b[0], 1.0), obs=y)


def of_all_sites(y, ward, wards):
    s = numpyro.sample("s", dist.HalfNormal(1))
    with numpyro.plate("ward", wards):
        b = numpyro.sample("b", dist.Normal(0, s))
    numpyro.sample("y", dist.Normal(b[ward], 1.0), obs=y)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prior": dist.Bernoulli(0.5)}, "a is discrete: marginalise it"),
        ({"subsample": 2}, "plate 'rows' is subsampled"),
        ({"more": lambda a, y, e: numpyro.param("w", 1.0)}, "w is a numpyro.param"),
        ({"more": lambda a, y, e: numpyro.factor("f", -(a**2))}, "f is observed outside of plate 'rows'"),
        (
            {"more": lambda a, y, e: numpyro.sample("b", dist.Uniform(0, jnp.exp(a)))},
            "the support of b depends on other latents",
        ),
        (
            {"more": lambda a, y, e: numpyro.sample("b", dist.Normal(0, y.max()))},
            "at site 0 the parts of the model do not sum to .* prior depends on data",
        ),
        (
            {"more": lambda a, y, e: numpyro.sample("b", dist.Normal(0, y.std()))},
            "fails on one row of artificial data, so its prior",
        ),
        ({"extra": [np.ones(5), np.zeros(5)]}, "argument extra differs between sites, with shapes .* no axis of rows"),
        ({"options": {"local": "ward"}}, r"no plate 'ward' at site 0; its plates are \['rows'\]"),
        ({"options": {"init": {"c": 1.0}}}, r"init has 'c'; the latents of the model are \['a'\]"),
    ],
)
def test_models_that_do_not_split_raise(changes, message):
    with pytest.raises(ValueError, match=message):
        one_level(**changes)


def test_a_factor_of_rows_is_a_likelihood_term():
    def model(y):
        a = numpyro.sample("a", dist.Normal(0, 1))
        with numpyro.plate("rows", len(y)):
            numpyro.factor("f", -0.5 * (y - a) ** 2)

    post = accord.from_numpyro(model, [{"y": np.arange(3.0)}, {"y": np.ones(1)}])
    exact = (np.arange(3.0).sum() + 1.0) / 5.0
    np.testing.assert_allclose(post.mode(), exact, atol=1e-6)


def test_plates_that_are_not_of_the_site_are_refused():
    rows = {"y": np.zeros(3), "ward": np.array([0, 1, 1]), "wards": 2}
    with pytest.raises(ValueError, match="row 1 of site 0 depends on several members of plate 'ward'"):
        accord.from_numpyro(across_groups, [rows, rows], local="ward")
    elsewhere = {**rows, "ward": np.array([2, 3, 3]), "wards": 4}
    with pytest.raises(ValueError, match="plate 'ward' of site 0 has 4 members, and no row depends on member 2"):
        accord.from_numpyro(of_all_sites, [{**rows, "wards": 4}, elsewhere], local="ward")


def late_reaction(y, late, ward, wards):
    mu = numpyro.sample("mu", dist.Normal(0, 10))
    with numpyro.plate("ward", wards):
        level = numpyro.sample("level", dist.Normal(mu, 3.0))
    # the later rows do not depend on levels below 2
    mean = jnp.where(late > 0, jnp.maximum(level[ward] - 2.0, 0.0), level[ward])
    numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


@pytest.mark.long
def test_groups_are_found_for_rows_that_react_far_from_the_start_only():
    ward = np.repeat(np.arange(3), 4)
    rows = {"y": np.full(12, 9.0), "late": np.tile([0.0, 1.0], 6), "ward": ward, "wards": 3}
    post = accord.from_numpyro(late_reaction, [rows], local="ward")
    np.testing.assert_array_equal(post.shards[0]["group"], ward)

    def never(y, late, ward, wards):
        mu = numpyro.sample("mu", dist.Normal(0, 10))
        with numpyro.plate("ward", wards):
            level = numpyro.sample("level", dist.Normal(mu, 3.0))
        numpyro.sample("y", dist.Normal(jnp.where(late > 0, 0.0, level[ward]), 1.0), obs=y)

    with pytest.raises(ValueError, match="row 1 of site 0 depends on no member of plate 'ward'"):
        accord.from_numpyro(never, [rows], local="ward")


# --- textbook models ---

NUTS = json.loads((textbook.DATA / "nuts.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("make", textbook.TEXTBOOKS)
def test_textbook_models_match_pooled_nuts(make):
    """Means within 0.03 sds and sds within 2%, for parameters and local latents."""
    book = make()
    post = accord.from_numpyro(book.model, book.shards, local=book.local)
    run = accord.sample(post, accord.Network.complete(post.num_agents), draws=10_000)
    assert run.certificate.holds and run.settings["method"].startswith("Importance")
    found, start = {}, 0
    for name, shape in run.variables:
        count = int(np.prod(shape, dtype=int))
        found[name] = run.average[..., start : start + count].reshape(-1, count)
        start += count
    local = accord.latents(run, post, accord.Network.complete(post.num_agents)) if book.local else {}
    for name in local[0] if local else ():
        found[name] = np.concatenate([own[name].reshape(40_000, -1) for own in local.values()], axis=1)
    for name, expected in NUTS[make.__name__].items():
        mean, sd, effective = (np.atleast_1d(expected[key]) for key in ("mean", "sd", "effective"))
        # the largest of many differences has Monte Carlo error of both runs
        error = 1.0 / np.sqrt(effective) + 1.0 / np.sqrt(run.points.effective)
        off = np.abs(found[name].mean(axis=0) - mean) / sd
        print(make.__name__, name, "mean off", off.max(), "sd ratio", (found[name].std(axis=0) / sd).round(3))
        np.testing.assert_array_less(off, np.maximum(0.03, 3.0 * error))
        centred = found[name] - found[name].mean(axis=0)
        # heavy tails make sds less certain
        tails = np.sqrt(np.mean(centred**4, axis=0) / np.mean(centred**2, axis=0) ** 2 - 1.0) / 2.0
        np.testing.assert_array_less(np.abs(found[name].std(axis=0) / sd - 1.0), np.maximum(0.02, 3.0 * tails * error))


@pytest.mark.long
def test_the_evidence_of_a_numpyro_model_is_normalised():
    rng = np.random.default_rng(0)
    y = rng.standard_normal(12)

    def model(y):
        a = numpyro.sample("a", dist.Normal(0, 2))
        numpyro.sample("y", dist.Normal(a, 1.0), obs=y)

    post = accord.from_numpyro(model, [{"y": y[:5]}, {"y": y[5:]}])
    run = accord.sample(post, accord.Network.complete(2), Importance(), draws=500)
    exact = dist.MultivariateNormal(jnp.zeros(12), jnp.eye(12) + 4.0).log_prob(y)
    assert abs(run.log_evidence[0] - float(exact)) < 4.0 * run.log_evidence[1] + 1e-3


@pytest.mark.parametrize("number", ["trials", "df"])
@pytest.mark.long
def test_an_integer_may_equal_the_number_of_rows(number):
    def counted(y, trials):
        p = numpyro.sample("p", dist.Beta(1, 1))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Binomial(trials, p), obs=y)

    def student(y, df):
        a = numpyro.sample("a", dist.Normal(0, 1))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.StudentT(df, a), obs=y)

    y = np.arange(20)
    chosen, given = (counted, {"trials": 20}) if number == "trials" else (student, {"df": 20})
    post = accord.from_numpyro(chosen, [{"y": y, **given}, {"y": y[::-1], **given}])
    terms = post.each(log_likelihood_at, post.init)
    exact = stats.binom(20, 0.5).logpmf(y).sum() if number == "trials" else stats.t(20).logpdf(y).sum()
    np.testing.assert_allclose(terms, [exact, exact], rtol=1e-6)


def test_an_integer_that_sets_the_number_of_rows_is_detected():
    def model(n, y):
        a = numpyro.sample("a", dist.Normal(0, 1))
        with numpyro.plate("rows", n):
            numpyro.sample("y", dist.Normal(a, 1), obs=y)

    post = accord.from_numpyro(model, [{"n": 7, "y": np.zeros(7)}, {"n": 7, "y": np.ones(7)}])
    assert post.sizes.tolist() == [7, 7]


def log_likelihood_at(potential, shard, x):
    return potential.shard_log_likelihood(shard, x)


def binned(lo, hi, n):
    """Counts in bins of a log-normal. The log of a difference of cdfs is -inf away from the data."""
    mu, s = numpyro.sample("mu", dist.Normal(5.5, 2)), numpyro.sample("s", dist.HalfNormal(2))
    with numpyro.plate("rows", len(n)):
        below = [dist.Normal(0, 1).cdf((jnp.log(edge) - mu) / s) for edge in (lo, hi)]
        numpyro.factor("counts", n * jnp.log(below[1] - below[0]))


@pytest.mark.parametrize("init", [None, {"mu": 5.5, "s": 1.0}])
@pytest.mark.long
def test_a_density_of_zero_away_from_the_data_is_no_error(init):
    parts = [
        ((1e-3, 150, 300), (150, 300, 1e7), (542, 527, 831)),
        ((1e-3, 100, 200, 400), (100, 200, 400, 1e7), (120, 200, 150, 160)),
        ((1e-3, 250), (250, 1e7), (300, 260)),
    ]
    shards = [dict(zip(("lo", "hi", "n"), np.array(part, float), strict=True)) for part in parts]
    run = accord.sample(accord.from_numpyro(binned, shards, init=init), accord.Network.complete(3), draws=1000, seed=0)
    assert run.certificate.holds
    mu, s = np.meshgrid(np.linspace(5.3, 5.7, 401), np.linspace(0.75, 1.15, 401), indexing="ij")
    log_p = -0.5 * ((mu - 5.5) / 2) ** 2 - 0.5 * (s / 2) ** 2
    for part in parts:
        for lo, hi, n in zip(*part, strict=True):
            log_p += n * np.log(stats.norm.cdf((np.log(hi) - mu) / s) - stats.norm.cdf((np.log(lo) - mu) / s))
    weight = np.exp(log_p - log_p.max())
    mean = [np.average(x, weights=weight) for x in (mu, s)]
    sd = [np.average((x - m) ** 2, weights=weight) ** 0.5 for x, m in zip((mu, s), mean, strict=True)]
    np.testing.assert_allclose(run.points.mean, mean, atol=0.1 * min(sd))
    np.testing.assert_allclose(run.points.sd, sd, rtol=0.06)


def test_a_density_that_is_nan_everywhere_raises():
    def model(y):
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        with numpyro.plate("rows", len(y)):
            numpyro.factor("f", y * jnp.log(-scale))

    with pytest.raises(ValueError, match="at site 0 the model's log density is NaN at all .* around scale = 1"):
        accord.from_numpyro(model, [{"y": np.ones(3)}, {"y": np.ones(2)}])


def test_masked_nan_is_named_by_its_argument():
    def model(x, y):
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        ok = ~jnp.isnan(y)
        with numpyro.plate("rows", len(y)), numpyro.handlers.mask(mask=ok):
            numpyro.sample("y", dist.Normal(slope * x, 1.0), obs=jnp.where(ok, y, -100.0))

    x = np.linspace(0.0, 1.0, 8)
    holed = np.where(np.arange(8) == 5, np.nan, x)
    with pytest.raises(
        ValueError, match=r"argument y of shard 1 holds NaN, first at index \[5\]: pass the mask as an arg"
    ):
        accord.from_numpyro(model, [{"x": x, "y": x}, {"x": x, "y": holed}])
    with pytest.raises(ValueError, match=r"argument x of shard 0 holds NaN, first at index \[5\]"):
        accord.from_numpyro(model, [{"x": holed, "y": x}])


def test_infinity_in_rows_is_named_by_its_argument():
    def model(x):
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", len(x)):
            numpyro.factor("f", -slope * jnp.exp(-x))

    with pytest.raises(
        ValueError, match=r"argument x of shard 1 holds NaN or infinity, first at index \[2\]: replace it by finite"
    ):
        accord.from_numpyro(model, [{"x": np.zeros(3)}, {"x": np.array([0.0, 1.0, np.inf])}])


def test_a_mask_may_be_an_argument():
    def model(x, y, ok):
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", len(y)), numpyro.handlers.mask(mask=ok):
            numpyro.sample("y", dist.Normal(slope * x, 1.0), obs=y)

    x, ok = np.linspace(0.0, 1.0, 8), np.arange(8) != 5
    shards = [{"x": x, "y": np.where(ok, 2.0 * x, 0.0), "ok": ok}] * 3
    run = accord.sample(accord.from_numpyro(model, shards), accord.Network.complete(3), draws=500, seed=0)
    precision = 1.0 + 3.0 * np.square(x[ok]).sum()
    np.testing.assert_allclose(run.points.mean, 6.0 * np.square(x[ok]).sum() / precision, atol=0.1 * precision**-0.5)
    np.testing.assert_allclose(run.points.sd, precision**-0.5, rtol=0.06)


RNG = np.random.default_rng(8)
Y, COUNTS, PLACE = RNG.uniform(0.1, 0.9, 7), RNG.integers(0, 5, 7), np.arange(7) % 3
# (distribution of a row from two normal numbers, rows)
CHECKED = {
    "beta": (lambda a: dist.Beta(a[0] * 4.0, (1.0 - a[0]) * 4.0), Y),
    "beta-binomial": (lambda a: dist.BetaBinomial(a[0], a[1], 6), COUNTS),
    "beta-proportion": (lambda a: dist.BetaProportion(a[0], 4.0), Y),
    "binomial": (lambda a: dist.Binomial(6, a[0] + a[1]), COUNTS),
    "categorical": (lambda a: dist.Categorical(jnp.stack([a[0], a[1], 1.0 - a[0] - a[1]])), PLACE),
    "censored": (lambda a: dist.RightCensoredDistribution(dist.Weibull(a[0], 1.5), np.ones(1)), Y),
    "dirichlet-multinomial": (
        lambda a: dist.DirichletMultinomial(jnp.stack([a[0], a[1], 1.0]), 4),
        RNG.multinomial(4, [0.3, 0.3, 0.4], 7),
    ),
    "gamma": (lambda a: dist.Gamma(2.0, a[0] + a[1]), Y),
    "log-normal": (lambda a: dist.LogNormal(a[0], a[1]), Y),
    "mixture": (lambda a: dist.MixtureSameFamily(dist.Categorical(jnp.stack([a[0], 1.0 - a[0]])), TWO), Y),
    "mixture of scales": (lambda a: dist.MixtureSameFamily(dist.Categorical(HALVES), dist.Normal(a, a)), Y),
    "mixture of two": (lambda a: dist.Mixture(dist.Categorical(HALVES), [dist.Exponential(a[0]), dist.Gamma(2.0)]), Y),
    "negative-binomial": (lambda a: dist.NegativeBinomial2(a[0] + a[1], 2.0), COUNTS),
    "negative-binomial concentration": (lambda a: dist.NegativeBinomial2(2.0, a[0]), COUNTS),
    "normal": (lambda a: dist.Normal(a[0], a[1]), Y),
    "ordered": (lambda a: dist.OrderedLogistic(0.3, a), PLACE),
    "pareto": (lambda a: dist.Pareto(0.05, a[0]), Y),
    "poisson": (lambda a: dist.Poisson(a[0] + a[1]), COUNTS),
    "student": (lambda a: dist.StudentT(a[0], 0.5, 1.0), Y),
    "truncated": (lambda a: dist.TruncatedNormal(a[0], a[1], low=0.0), Y),
    "uniform": (lambda a: dist.Uniform(0.0, 0.6 + a[0] ** 2), Y),
    "vector": (lambda a: dist.Laplace(0.5, a).to_event(1), np.stack([Y, Y**2], axis=1)),
    "zero-inflated": (lambda a: dist.ZeroInflatedPoisson(a[0], 1.5), COUNTS),
}
TWO, HALVES = dist.Normal(np.zeros(2), np.array([1.0, 2.0])), np.full(2, 0.5)


# about rows of artificial data and rows outside of a support
@pytest.mark.filterwarnings("ignore:Out-of-support values")
@pytest.mark.long_from(3)
@pytest.mark.parametrize("name", CHECKED)
def test_density_is_zero_where_parameters_violate_constraints(name):
    observe, rows = CHECKED[name]

    def model(y):
        a = numpyro.sample("a", dist.Normal(0.5, 1.0).expand([2]).to_event(1))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", observe(a), obs=y)

    post = accord.from_numpyro(model, [{"y": rows[:3]}, {"y": rows[3:]}])
    inside, rng = [], np.random.default_rng(1)
    with jax.enable_x64(True):
        density = jax.jit(jax.value_and_grad(post.logdensity))
        for x in [[0.3, 0.4], *rng.normal(0.5, 1.0, (20, 2))]:
            try:
                # NumPyro raises for invalid parameters
                with numpyro.validation_enabled():
                    expected = log_density(model, (), {"y": rows}, {"a": np.asarray(x)})[0]
            except ValueError:
                expected = -np.inf
            value, slope = density(jnp.asarray(x))
            inside.append(np.isfinite(expected))
            np.testing.assert_allclose(value, expected, rtol=1e-9)
            assert not inside[-1] or np.isfinite(slope).all()
    assert 0 < sum(inside) < len(inside)


@pytest.mark.long
def test_a_location_beyond_its_bounds_has_the_draws_of_its_own_posterior():
    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0.5, 1.0))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Beta(mu * 5.0, (1.0 - mu) * 5.0), obs=y)

    y = np.random.default_rng(0).beta(3.0, 2.0, 8)
    run = accord.sample(accord.from_numpyro(model, [{"y": y[:4]}, {"y": y[4:]}]), accord.Network.complete(2))
    mu = np.linspace(0.0, 1.0, 2001)[1:-1]
    log_p = stats.norm.logpdf(mu, 0.5, 1.0) + stats.beta.logpdf(y[:, None], 5.0 * mu, 5.0 * (1.0 - mu)).sum(axis=0)
    mean = np.average(mu, weights=np.exp(log_p - log_p.max()))
    sd = np.average((mu - mean) ** 2, weights=np.exp(log_p - log_p.max())) ** 0.5
    assert run.certificate.holds
    np.testing.assert_allclose(run.points.mean, mean, atol=0.1 * sd)
    np.testing.assert_allclose(run.points.sd, sd, rtol=0.06)


@pytest.mark.parametrize("observe", [dist.Gamma, dist.Weibull])
def test_an_invalid_group_leaves_other_groups_alone(observe):
    def model(y, ward, wards):
        level, shape = numpyro.sample("level", dist.Normal(1.0, 1.0)), numpyro.sample("shape", dist.HalfNormal(1.0))
        with numpyro.plate("ward", wards):
            effect = numpyro.sample("effect", dist.Normal(level, 0.7))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", observe(effect[ward], shape), obs=y)

    ward = np.repeat(np.arange(3), 5)
    y = np.random.default_rng(9).gamma(2.0, 1.0, 15) * np.array([0.5, 1.0, 3.0])[ward]
    post = accord.from_numpyro(model, [{"y": y, "ward": ward, "wards": 3}], local="ward")
    at = np.linspace(-5.0, 7.0, 24001)[:, None]
    for level, shape in ((0.7, 1.3), (0.2, 0.8)):
        expected = stats.norm.logpdf(level, 1.0, 1.0) + stats.halfnorm.logpdf(shape)
        for group in range(3):
            own = y[ward == group]
            with np.errstate(all="ignore"):
                if observe is dist.Gamma:
                    terms = stats.gamma.logpdf(own, at, scale=1.0 / shape).sum(axis=1)
                else:
                    terms = stats.weibull_min.logpdf(own, shape, scale=at).sum(axis=1)
            terms = np.where(at[:, 0] > 0.0, terms, -np.inf) + stats.norm.logpdf(at[:, 0], level, 0.7)
            expected += np.log(np.exp(terms).sum() * (at[1, 0] - at[0, 0]))
        with jax.enable_x64(True):
            value, slope = jax.value_and_grad(post.logdensity)(jnp.array([level, np.log(shape)]))
        np.testing.assert_allclose(value, expected + np.log(shape), atol=0.05)
        assert np.isfinite(slope).all()


def test_masked_rows_may_have_invalid_parameters():
    def model(y, x, ok):
        slope = numpyro.sample("slope", dist.Normal(1.0, 1.0))
        with numpyro.plate("rows", len(y)), numpyro.handlers.mask(mask=ok):
            numpyro.sample("y", dist.Poisson(slope * x), obs=y)

    x, ok = np.array([1.0, -1.0, 2.0, 0.5]), np.array([True, False, True, True])
    given = {"y": np.arange(4.0), "x": x, "ok": ok}
    post = accord.from_numpyro(model, [given, given])
    with jax.enable_x64(True):
        expected = stats.norm.logpdf(1.3, 1.0) + 2.0 * stats.poisson.logpmf(np.arange(4)[ok], 1.3 * x[ok]).sum()
        np.testing.assert_allclose(post.logdensity(jnp.array([1.3])), expected, rtol=1e-9)
        assert post.logdensity(jnp.array([-1.3])) == -np.inf


def test_constants_outside_their_constraints_raise():
    with pytest.raises(ValueError, match="Normal distribution got invalid scale parameter"):
        one_level(more=lambda a, y, e: numpyro.sample("b", dist.Normal(0.0, -1.0)))


def distributions():
    """Distributions of NumPyro whose constraints suffice to instantiate them, and a few others."""
    for name in dist.__all__:
        kind = getattr(dist, name)
        needed = inspect.signature(kind).parameters if inspect.isclass(kind) else {}
        own = {k: c for k, c in getattr(kind, "arg_constraints", {}).items() if k in needed}
        own = {k: c for k, c in own.items() if needed[k].default is inspect.Parameter.empty}
        try:
            given = {k: c.feasible_like(jnp.full((3,) * c.event_dim, 0.5)) for k, c in own.items()}
            fn = kind(**given) if own else None
        except (AssertionError, NotImplementedError, TypeError, ValueError):
            continue
        if fn is not None and name not in ("GaussianStateSpace", "MatrixNormal"):
            yield name, fn
    yield "covariance", dist.MultivariateNormal(jnp.zeros(2), jnp.array([[2.0, 0.3], [0.3, 1.0]]))
    yield "LKJ", dist.LKJ(3, 2.0)
    yield "Uniform", dist.Uniform(-1.0, 2.0)
    yield "ZeroSumNormal", dist.ZeroSumNormal(2.0, (3,))
    yield "float32 shares", dist.Categorical(jax.nn.softmax(jnp.linspace(-3.0, 3.0, 2000, dtype=jnp.float32)))
    yield "masked", dist.Normal(jnp.zeros(3), 1.0).mask(jnp.array([True, False, True]))
    yield "zero-inflated", dist.ZeroInflatedDistribution(dist.NegativeBinomial2(2.0, 3.0), gate_logits=0.3)


@pytest.mark.long
def test_densities_at_valid_parameters_are_numpyros_to_the_last_bit():
    seen = 0
    for name, fn in distributions():
        value = fn.sample(jax.random.PRNGKey(1))

        def model(fn=fn, value=value):
            numpyro.sample("y", fn, obs=value)

        own = NumPyroProgram(model, "rows", None, {}).densities({}, {}).observed["y"][0]
        assert own.sum() == log_density(model, (), {}, {})[0], name
        seen += 1
    assert seen > 50
