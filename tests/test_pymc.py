"""PyMC models over sites: parts against the same models in NumPyro and PyMC's own density, and errors."""

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytensor
import pytest
import scipy.stats
import textbook
from pymc.logprob.utils import ParameterValueError

import accord

# PyMC's densities of small arrays: compiling C would take longer than evaluating them
pytensor.config.cxx = ""


@pytest.fixture(autouse=True)
def as_users_have_it():
    """PyTensor's functions promote ranks."""
    with jax.numpy_rank_promotion("allow"):
        yield


def eight_schools(y, sigma):
    with pm.Model() as model:
        y, sigma = pm.Data("y", y, dims="school"), pm.Data("sigma", sigma, dims="school")
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
        theta = pm.Normal("theta", mu, tau, dims="school")
        pm.Normal("effect", theta, sigma, observed=y, dims="school")
    return model


def radon(log_radon, log_uppm, floor, idx, county):
    with pm.Model(coords={"county": range(county)}) as model:
        log_radon, log_uppm = pm.Data("log_radon", log_radon, dims="rows"), pm.Data("log_uppm", log_uppm, dims="rows")
        floor, idx = pm.Data("floor", floor, dims="rows"), pm.Data("idx", idx, dims="rows")
        mu, b = pm.Normal("mu", 0, 10), pm.Normal("b", 0, 10, shape=2)
        s_a, s_y = pm.HalfNormal("s_a", 1), pm.HalfNormal("s_y", 1)
        alpha = pm.Normal("alpha", mu, s_a, dims="county")
        mean = pm.Deterministic("mean", alpha[idx] + b[0] * log_uppm + b[1] * floor, dims="rows")
        pm.Normal("level", mean, s_y, observed=log_radon, dims="rows")
    return model


def wells(**data):
    with pm.Model() as model:
        held = {name: pm.Data(name, value) for name, value in data.items()}
        alpha, b = pm.Flat("alpha"), pm.Flat("b", shape=3)
        logit = alpha + b[0] * held["dist100"] + b[1] * held["arsenic"] + b[2] * held["educ4"]
        pm.Bernoulli("switch", logit_p=logit, observed=held["switched"])
    return model


def as_pymc(shard):
    """A shard of a textbook model, with the number of groups under the name of their dim."""
    names = {"county": "idx", "counties": "county"}
    return {names.get(name, name): value for name, value in shard.items()}


def in_both(make, sites):
    """Posteriors of a textbook model at some of its sites, from NumPyro and from PyMC."""
    book = getattr(textbook, make.__name__)()
    shards = [as_pymc(shard) for shard in book.shards[:sites]]
    post = accord.from_pymc(make(**shards[0]), shards, local=book.local)
    return accord.from_numpyro(book.model, book.shards[:sites], local=book.local), post


@pytest.mark.long
@pytest.mark.parametrize(
    ("make", "sites"), [(eight_schools, 2), pytest.param(radon, 2, marks=pytest.mark.slow), (wells, 2)]
)
def test_densities_match_numpyro(make, sites):
    expected, post = in_both(make, sites)
    assert post.names == expected.names and list(post.sizes) == list(expected.sizes)
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        x = [post.init + 0.3 * rng.standard_normal(post.dim) for _ in range(3)]
        off = [float(post.logdensity(one) - expected.logdensity(one)) for one in x]
    # PyMC has a constant of the half-normal in single precision
    np.testing.assert_allclose(off, off[0], atol=1e-9)
    assert abs(off[0]) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("make", [eight_schools, radon, wells])
def test_draws_match_the_model_in_numpyro(make):
    expected, post = in_both(make, None)
    runs = [accord.sample(one, accord.Network.complete(one.num_agents), draws=5000) for one in (expected, post)]
    assert all(run.certificate.holds for run in runs)
    of_numpyro, of_pymc = (run.average.reshape(-1, post.init.size) for run in runs)
    sd = of_numpyro.std(axis=0)
    error = 1.0 / np.sqrt(min(run.points.effective for run in runs))
    np.testing.assert_array_less(np.abs(of_pymc.mean(axis=0) - of_numpyro.mean(axis=0)) / sd, max(0.03, 4.0 * error))
    np.testing.assert_array_less(np.abs(of_pymc.std(axis=0) / sd - 1.0), max(0.02, 4.0 * error))
    if expected.latents is not None:
        net = accord.Network.complete(post.num_agents)
        local = [accord.latents(run, one, net) for run, one in zip(runs, (expected, post), strict=True)]
        shapes = [jax.tree.map(np.shape, dict(own[0])) for own in local]
        assert shapes[0] == shapes[1]


@pytest.mark.slow
def test_every_constraint_is_of_pymcs_density():
    def model():
        with pm.Model() as made:
            y = pm.Data("y", np.zeros(4), dims="rows")
            a, p = pm.Uniform("a", -2.0, 3.0), pm.Beta("p", 2.0, 3.0)
            cut = pm.Normal("cut", 0.0, 1.0, shape=3, transform=pm.distributions.transforms.ordered, initval=range(3))
            shares = pm.Dirichlet("shares", np.array([1.0, 2.0, 3.0]))
            over = pm.Pareto("over", 2.0, 0.5)
            below = pm.distributions.transforms.Interval(None, -0.5)
            under = pm.Normal("under", 0.0, 1.0, transform=below, initval=-1.0)
            nu = pm.Exponential("nu", 0.1)
            mean = a + p * cut[0] + shares[0] * cut[2] + over + under
            pm.StudentT("row", nu, mu=mean, sigma=cut[1] ** 2 + 0.1, observed=y, dims="rows")
            pm.Potential("weight", -0.01 * (y - a) ** 2, dims="rows")
            pm.Censored("cut off", pm.Laplace.dist(a, 1.0), lower=-1.0, upper=1.0, observed=y.clip(-1.0, 1.0))
        return made

    shards = [{"y": np.arange(4.0)}, {"y": -np.ones(2)}]
    post = accord.from_pymc(model(), shards)
    pooled = model()
    with pooled:
        pm.set_data({"y": np.concatenate([shard["y"] for shard in shards])})
    inputs = pooled.value_vars
    own = pooled.compile_fn(pooled.logp(jacobian=False), inputs=inputs, point_fn=False, mode="FAST_COMPILE")
    rng = np.random.default_rng(1)
    with jax.enable_x64(True):
        for _ in range(3):
            x = post.init + 0.3 * rng.standard_normal(post.dim)
            params, volume = post.parameters.with_volume(x)
            params = {name: np.asarray(value, np.float64) for name, value in params.items()}
            free = [pooled.rvs_to_transforms[rv] for rv in pooled.free_RVs]
            values = [
                params[rv.name] if one is None else one.forward(params[rv.name], *rv.owner.inputs).eval()
                for rv, one in zip(pooled.free_RVs, free, strict=True)
            ]
            np.testing.assert_allclose(post.logdensity(x), float(own(*values)) + float(volume), rtol=1e-6)


def slopes(shards):
    """Two latents a ward, a covariate of wards, lengths by dims and by shapes of data."""
    with pm.Model() as model:
        held = {name: pm.Data(name, shards[0][name], dims="rows") for name in ("y", "x", "ward")}
        u = pm.Data("u", shards[0]["u"], dims="ward_id")
        scale = pm.HalfNormal("scale", 2.0)
        b = pm.MvNormal("b", np.zeros(2), np.eye(2), dims=("ward_id", "effect"), shape=(u.shape[0], 2))
        base = pm.math.zeros_like(held["y"]) if hasattr(pm.math, "zeros_like") else 0.0 * held["y"]
        mean = base + scale * b[held["ward"], 0] + u[held["ward"]] + b[held["ward"], 1] * held["x"]
        pm.Normal("row", mean, 0.5, observed=held["y"], dims="rows")
    return model


def wards(site, counts):
    rng = np.random.default_rng(site)
    ward = rng.permutation(np.repeat(np.arange(len(counts)), counts))
    y, x = rng.standard_normal((2, len(ward)))
    return {"y": y, "x": x, "ward": ward, "u": rng.standard_normal(len(counts))}


@pytest.mark.slow
def test_latents_of_groups_are_integrated_out():
    shards = [wards(0, [3, 1, 4]), wards(1, [2, 5]), wards(2, [1])]
    with pytest.raises(ValueError, match="no dim 'ward'; its dims are"):
        accord.from_pymc(slopes(shards), shards, local="ward")
    post = accord.from_pymc(slopes(shards), shards, local="ward_id")
    assert post.names == ("scale",) and list(post.sizes) == [8, 7, 1]
    with jax.enable_x64(True):
        x, expected = np.array([0.3]), 0.0
        s = np.exp(0.3)
        for shard in shards:
            same = shard["ward"][:, None] == shard["ward"]
            cov = 0.25 * np.eye(len(same)) + same * (s**2 + np.outer(shard["x"], shard["x"]))
            mean = shard["u"][shard["ward"]]
            expected += jax.scipy.stats.multivariate_normal.logpdf(shard["y"], mean, cov)
        expected += np.log(2.0) - 0.5 * np.log(2.0 * np.pi * 4.0) - s**2 / 8.0 + 0.3
        np.testing.assert_allclose(post.logdensity(x), expected, rtol=1e-7)


def test_a_pickled_model_has_no_rows():
    canary = 31415.926535
    shards = [{"y": np.full(3, canary + k)} for k in range(3)]

    def model(y):
        with pm.Model() as made:
            y, a = pm.Data("y", y), pm.Normal("a", 0.0, 10.0)
            pm.Normal("row", a, 1.0, observed=y)
        return made

    post = accord.from_pymc(model(shards[0]["y"]), shards)
    sent = cloudpickle.dumps(post.alone(1))
    assert [np.float64(canary + k).tobytes() in sent for k in (0, 1, 2)] == [False, True, False]
    back = cloudpickle.loads(cloudpickle.dumps(post))
    np.testing.assert_array_equal(back.gradients(post.init), post.gradients(post.init))


@pytest.mark.slow
def test_remote_shards_need_an_example():
    shards = [wards(0, [3, 2]), wards(1, [2, 5])]
    given = accord.from_pymc(slopes(shards), shards, local="ward_id")
    example = wards(5, [1, 2, 1])
    read = accord.from_pymc(slopes(shards), [lambda s=s: s for s in shards], local="ward_id", example=example)
    assert not read.is_read and "not read" in repr(read)
    np.testing.assert_allclose(read.gradients(given.init), given.gradients(given.init), rtol=1e-6)
    with pytest.raises(ValueError, match="shards that are functions or files need example"):
        accord.from_pymc(slopes(shards), [lambda s=s: s for s in shards], local="ward_id")


def one_level(more=lambda y, a: None, prior=lambda: pm.Normal("a", 0, 1), observed=lambda y: y, **options):
    """The posterior of a model with two sites, from parts of the model and options."""
    shards = options.pop("shards", [{"y": np.arange(3.0)}, {"y": np.arange(2.0)}])
    with pm.Model(coords={"ward": range(2), "k": range(3)}) as model:
        y, a = pm.Data("y", np.arange(3.0), dims="rows"), prior()
        more(y, a)
        pm.Normal("row", a, 1.0, observed=observed(y))
    return accord.from_pymc(model, shards, **options)


def effects(y, a):
    b = pm.Normal("b", 0, 1, dims="ward")
    pm.Normal("more", b[(y > 0.5).astype(int)], 1.0, observed=1 * y)


def across(y, a):
    b = pm.Normal("b", 0, 1, dims="ward")
    pm.Normal("more", b[(y > 0.5).astype(int)] + 0.5 * b[0], 1.0, observed=1 * y)


DRAWN = pytensor.shared(np.float64(1.0), "outside")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prior": lambda: pm.Bernoulli("a", 0.5)}, "a is discrete: marginalise it"),
        ({"prior": lambda: pm.VonMises("a", 0.0, 1.0)}, r"a has the transform 'circular' \(CircularTransform\)"),
        ({"prior": lambda: pm.HalfNormal("a", default_transform=None)}, "a has bounds but no transform"),
        ({"more": lambda y, a: pm.Uniform("b", 0.0, a)}, "the bounds of b depend on data or other latents"),
        ({"more": lambda y, a: pm.Normal("b", 0.0, y.sum())}, "at site 0 the parts of the model do not sum to"),
        ({"more": lambda y, a: pm.Normal("b", 0.0, DRAWN)}, "the density depends on outside, which is neither pm.Data"),
        ({"more": lambda y, a: pm.Normal("b", 0.0, 1.0, dims="rows")}, "b has one latent for each row: set"),
        ({"more": lambda y, a: pm.Potential("p", -(a**2))}, "p is a scalar: it must have one value for each row"),
        ({"observed": lambda y: np.zeros(3)}, "row is observed as an array: observe a pm.Data"),
        (
            {"observed": lambda y: np.ma.masked_equal([0.0, 1.0, 2.0], 1.0)},
            "row has missing values, which PyMC",
        ),
        ({"observed": lambda y: pm.Minibatch(y, batch_size=2)}, "the model uses minibatches"),
        (
            {"more": lambda y, a: pm.Normal("b", a, 1.0, observed=y + np.zeros(3))},
            "hard-coded number of rows or groups",
        ),
        (
            {"more": lambda y, a: pm.Normal("b", a + np.ones(3), 1.0, observed=1 * y)},
            "hard-coded number of rows or groups",
        ),
        ({"more": lambda y, a: pm.MvNormal("b", a + y, np.eye(3), observed=1 * y)}, "rows"),
        (
            {
                "more": effects,
                "local": "ward",
                "shards": [{"y": np.arange(3.0), "ward": 2}, {"y": np.zeros(2), "ward": 2}],
            },
            "dim 'ward' of site 1 has 2 members, and no row depends on member 1",
        ),
        ({"more": across, "local": "ward"}, "row 1 of site 0 depends on several members of dim 'ward'"),
        ({"more": lambda y, a: pm.ZeroSumNormal("b", dims="ward"), "local": "ward"}, "b has the transform 'zerosum'"),
        (
            {"more": lambda y, a: pm.GaussianRandomWalk("b", init_dist=pm.Normal.dist(), dims="ward"), "local": "ward"},
            "the members of b depend on one another along dim 'ward'",
        ),
        ({"shards": [{}, {"y": np.zeros(2)}]}, r"every pm.Data of the model, \['y'\]; missing are \['y'\]"),
        ({"shards": [{"y": np.zeros((2, 2))}]}, r"y of shard 0 has shape \(2, 2\); its pm.Data has 1 axes"),
        ({"init": {"c": 1.0}}, r"init has 'c'; the latents of the model are \['a'\]"),
    ],
)
@pytest.mark.filterwarnings("ignore:Data in row contains missing values", "ignore:total_size not provided")
@pytest.mark.long_from(4)
def test_models_that_do_not_split_raise(changes, message):
    with pytest.raises(ValueError, match=message):
        one_level(**changes)


def shares(a):
    return pytensor.tensor.stack([a[0], a[1], 1.0 - a[0] - a[1]])


RNG = np.random.default_rng(8)
# the first: a finite formula beyond the support, a check that PyMC raises, as many shares as rows
CHECKED = {
    "beta": (lambda a, y: pm.Beta("row", mu=a[0], sigma=a[1], observed=y), RNG.uniform(0.1, 0.9, 7)),
    "censored": (
        lambda a, y: pm.Censored("row", pm.Laplace.dist(0.0, a[0]), -a[1], 0.5, observed=y),
        RNG.uniform(0.0, 0.5, 7),
    ),
    "dirichlet-multinomial": (
        lambda a, y: pm.DirichletMultinomial("row", 4, pytensor.tensor.stack([a[0], a[1], 1.0]), observed=y),
        RNG.multinomial(4, [0.3, 0.3, 0.4], 7),
    ),
    "beta-binomial": (lambda a, y: pm.BetaBinomial("row", a[0], a[1], 6, observed=y), RNG.integers(0, 5, 7)),
    "categorical": (lambda a, y: pm.Categorical("row", shares(a), observed=y), RNG.integers(0, 3, 7)),
    "dirichlet": (
        lambda a, y: pm.Dirichlet("row", pytensor.tensor.stack([a[0], a[1], 1.0]), observed=y),
        RNG.dirichlet([1.0, 1.0, 1.0], 7),
    ),
    "gamma": (lambda a, y: pm.Gamma("row", mu=a[0], sigma=a[1], observed=y), RNG.gamma(2.0, 1.0, 7)),
    "inverse-gamma": (lambda a, y: pm.InverseGamma("row", mu=a[0], sigma=a[1], observed=y), RNG.gamma(2.0, 1.0, 7)),
    "multinomial": (
        lambda a, y: pm.Multinomial("row", 4, shares(a), observed=y),
        RNG.multinomial(4, [0.3, 0.3, 0.4], 7),
    ),
    "negative-binomial": (
        lambda a, y: pm.NegativeBinomial("row", mu=a[0], alpha=a[1], observed=y),
        RNG.integers(0, 5, 7),
    ),
    "triangular": (lambda a, y: pm.Triangular("row", a[0] - 1.0, 2.0, a[1], observed=y), RNG.uniform(0.1, 0.9, 7)),
    "uniform": (lambda a, y: pm.Uniform("row", a[0], a[1] + 1.0, observed=y), RNG.uniform(0.4, 0.6, 7)),
}


@pytest.mark.long_from(3)
@pytest.mark.parametrize("name", CHECKED)
def test_density_is_zero_where_pymc_checks_of_parameters_fail(name):
    observe, rows = CHECKED[name]

    def model(rows):
        with pm.Model() as made:
            observe(pm.Normal("a", 0.5, 1.0, shape=2), pm.Data("y", rows))
        return made

    # as many rows at the first site as a probability vector has numbers
    post = accord.from_pymc(model(rows[:3]), [{"y": rows[:3]}, {"y": rows[3:]}])
    pooled, inside, rng = model(rows).compile_logp(), [], np.random.default_rng(1)
    with jax.enable_x64(True):
        density = jax.jit(jax.value_and_grad(post.logdensity))
        for x in [[0.4, 0.3], *rng.normal(0.5, 1.0, (40, 2))]:
            try:
                expected = float(pooled({"a": np.asarray(x)}))
            except ParameterValueError:
                # PyMC raises where the bounds of censoring are in the wrong order
                expected = -np.inf
            value, slope = density(jnp.asarray(x))
            inside.append(np.isfinite(expected))
            np.testing.assert_allclose(value, expected, rtol=1e-9)
            assert not inside[-1] or np.isfinite(slope).all()
    assert 0 < sum(inside) < len(inside)


def test_a_support_that_depends_on_parameters_has_the_draws_of_its_own_posterior():
    rng = np.random.default_rng(6)
    rows = np.clip(rng.beta(1.2, 1.6, 60), 0.01, 0.99)
    with pm.Model() as model:
        y, mu, sd = pm.Data("y", np.full(1, 0.5)), pm.Beta("mu", 1, 1), pm.Uniform("sd", 0, 1)
        pm.Beta("row", mu=mu, sigma=sd, observed=y)
    run = accord.sample(accord.from_pymc(model, [{"y": rows[:25]}, {"y": rows[25:]}]), accord.Network.complete(2))
    at, spread = (grid.ravel() for grid in np.meshgrid(np.linspace(0.2, 0.7, 300), np.linspace(0.15, 0.45, 300)))
    total = at * (1.0 - at) / spread**2 - 1.0
    kept = total > 0.0
    shapes = (at * total)[kept], ((1.0 - at) * total)[kept]
    log_density = sum(scipy.stats.beta.logpdf(one, *shapes) for one in rows)
    weight = np.exp(log_density - log_density.max())
    for name, values in (("mu", at[kept]), ("sd", spread[kept])):
        mean = np.average(values, weights=weight)
        sd = np.average((values - mean) ** 2, weights=weight) ** 0.5
        drawn = np.asarray(run.average).reshape(-1, 2)[:, list(run.names).index(name)]
        assert abs(drawn.mean() - mean) < 0.1 * sd
        assert abs(drawn.std() / sd - 1.0) < 0.1


def test_a_group_outside_its_support_leaves_other_groups_alone():
    rng, which = np.random.default_rng(9), np.repeat(np.arange(3), 5)
    rows = rng.beta(1.0, np.array([6.0, 1.0, 0.4])[which]).clip(0.01, 0.99)
    with pm.Model(coords={"ward": range(1)}) as model:
        y, place = pm.Data("y", np.full(1, 0.5), dims="rows"), pm.Data("which", np.zeros(1, int), dims="rows")
        level, sd = pm.Normal("level"), pm.Normal("sd", 0.3, 0.1)
        mean = pm.math.sigmoid(pm.Normal("e", level, 1.5, dims="ward"))[place]
        pm.Beta("row", mu=mean, sigma=sd, observed=y, dims="rows")
    post = accord.from_pymc(model, [{"y": rows, "which": which, "ward": 3}], local="ward")
    alone = [{"y": rows[which == k], "which": np.zeros(5, int), "ward": 1} for k in range(3)]
    apart = accord.from_pymc(model, alone, local="ward")
    with jax.enable_x64(True):
        for x in ([2.0, 0.3], [0.0, 0.2]):
            # Newton's method stops near the modes
            np.testing.assert_allclose(post.logdensity(jnp.array(x)), apart.logdensity(jnp.array(x)), rtol=0, atol=1e-4)
    z = np.linspace(-6.0, 6.0, 6001)
    at = 1.0 / (1.0 + np.exp(-z))
    for level, sd in ((-0.5, 0.3), (0.0, 0.4)):
        expected = scipy.stats.norm.logpdf(level) + scipy.stats.norm.logpdf(sd, 0.3, 0.1)
        kept = at * (1.0 - at) > sd**2
        total = (at * (1.0 - at) / sd**2 - 1.0)[kept]
        for group in range(3):
            own = rows[which == group, None]
            terms = scipy.stats.beta.logpdf(own, at[kept] * total, (1.0 - at[kept]) * total).sum(axis=0)
            terms += scipy.stats.norm.logpdf(z[kept], level, 1.5)
            expected += np.log(np.exp(terms).sum() * (z[1] - z[0]))
        with jax.enable_x64(True):
            value, slope = jax.value_and_grad(post.logdensity)(jnp.array([level, sd]))
        np.testing.assert_allclose(value, expected, atol=0.02)
        assert np.isfinite(slope).all()


def test_invalid_models_raise():
    with pytest.raises(ValueError, match=r"model must be a pymc.Model, found function"):
        accord.from_pymc(wells, [{"y": np.zeros(2)}])
    with pm.Model() as silent:
        pm.Normal("a")
    with pytest.raises(ValueError, match="the model has no observed variable"):
        accord.from_pymc(silent, [{"y": np.zeros(2)}])
    with pm.Model() as counted:
        pm.Poisson("row", pm.HalfNormal("rate"), observed=pm.Data("y", np.arange(3)))
    with pytest.raises(ValueError, match="y of shard 1 has dtype float64, and its pm.Data int32: it would be rounded"):
        accord.from_pymc(counted, [{"y": np.arange(3)}, {"y": np.array([0.5])}])


def test_a_name_of_both_a_dim_and_data_is_refused():
    # PyMC 6 raises its own error
    with pytest.raises(
        ValueError, match=r"'ward' (names both a dim and a pm.Data|conflicts with an existing dimension)"
    ):
        with pm.Model(coords={"ward": range(2)}) as model:
            ward, b = pm.Data("ward", np.zeros(2, int)), pm.Normal("b", 0, 1, dims="ward")
            pm.Normal("row", b[ward], pm.HalfNormal("s"), observed=pm.Data("y", np.zeros(2)))
        accord.from_pymc(model, [{"y": np.zeros(2), "ward": np.arange(2)}], local="ward")


def test_hard_coded_groups_raise():
    with pm.Model() as model:
        ward, b = pm.Data("which", np.zeros(2, int)), pm.Normal("b", 0, 1, shape=2, dims="ward")
        pm.Normal("row", b[ward], pm.HalfNormal("s"), observed=pm.Data("y", np.zeros(2)))
    with pytest.raises(ValueError, match="on data of one row and one group the model has 1 rows and 2 groups"):
        accord.from_pymc(model, [{"y": np.zeros(2), "which": np.arange(2)}], local="ward")


@pytest.mark.skipif(int(pm.__version__.split(".")[0]) >= 6, reason="PyTensor has all of it for JAX there")
def test_parts_without_a_jax_version_raise():
    with pm.Model() as model:
        pm.Censored("row", pm.Normal.dist(pm.Normal("a"), 1.0), -1.0, 1.0, observed=pm.Data("y", np.zeros(2)))
    with pytest.raises(NotImplementedError, match="the model has a part that JAX cannot evaluate: .* erfcx"):
        accord.from_pymc(model, [{"y": np.zeros(2)}])


def test_a_hard_coded_number_of_rows_raises():
    def model(extra):
        with pm.Model() as made:
            y, a = pm.Data("y", np.zeros(3)), pm.Normal("a")
            pm.Normal("row", a + extra(y), 1.0, observed=y)
        return made

    shards = [{"y": np.arange(3.0)}, {"y": np.ones(3)}]
    with pytest.raises(ValueError, match=r"on data of shapes \{'y': \(1,\)\}: .* number of rows or groups"):
        accord.from_pymc(model(lambda y: np.ones(3)), shards)
    accord.from_pymc(model(lambda y: np.ones(1)), shards)
    accord.from_pymc(model(lambda y: pytensor.tensor.arange(y.shape[0] + 1)[1:]), [{"y": np.zeros(1)}])


def test_from_pymc_leaves_double_precision_off():
    assert not jax.config.jax_enable_x64


def test_effects_with_a_normal_prior_are_the_hierarchy():
    with pm.Model() as model:
        y, group = pm.Data("y", np.zeros(4)), pm.Data("group", np.arange(4))
        mean, sd = pm.Normal("mean", 0, 5), pm.HalfCauchy("sd", 5)
        effect = pm.Normal("effect", mean, sd, shape=4)
        pm.StudentT("heavy", nu=4, mu=0, sigma=sd)
        pm.GaussianRandomWalk("walk", sigma=sd, init_dist=pm.Normal.dist(0, 1), shape=3)
        pm.Normal("obs", effect[group], 1.0, observed=y)
    post = accord.from_pymc(model, [{"y": np.zeros(4), "group": np.arange(4)}])
    params = {name: jnp.asarray(value) for name, value in post._params.items()}
    found = post.hierarchy({**params, "mean": jnp.asarray(2.0), "sd": jnp.asarray(3.0)})
    assert set(found) == {"effect"}
    np.testing.assert_allclose(found["effect"][0], 2.0, rtol=1e-5)
    np.testing.assert_allclose(found["effect"][1], 3.0, rtol=1e-5)
