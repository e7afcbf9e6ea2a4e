"""Models from formulas: columns, priors and likelihoods against pooled data, and error messages."""

import pickle
import re
from itertools import combinations
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
import scipy.stats
import statsmodels.api as sm
from formulae import design_matrices
from numpyro.distributions.transforms import SimplexToOrderedTransform
from statsmodels.miscmodels.ordinal_model import OrderedModel
from statsmodels.othermod.betareg import BetaModel

import accord
from accord.base import memory
from accord.engines.fingerprint import fingerprint
from accord.examine.page import notes_of
from accord.models import families, glm, priors
from accord.models.documents import read_problem
from accord.models.formula import Formula
from accord.models.tables import FAMILIES

# no floors, as the tables are small
POLICY = accord.data.Policy(rows=1, cells=1, parameters=10.0)


def sites(frame, count=3, **options):
    """A table split over sites of unequal sizes."""
    cuts = [0, *(len(frame) * np.cumsum(np.arange(1, count)) // (count * (count + 1) // 2)), len(frame)]
    parts = {f"s{i}": frame.iloc[a:b] for i, (a, b) in enumerate(zip(cuts[:-1], cuts[1:], strict=True))}
    return accord.data.as_study(parts, policy=POLICY, **options)


def flat(*others):
    return {"coefficients": priors.Flat(), "Intercept": priors.Flat(), **{name: priors.Flat() for name in others}}


def log_likelihood(post, params):
    """The log likelihood over all shards, and its gradient."""
    likelihood = post._log_likelihood

    def total(params):
        return sum(jnp.sum(likelihood(params, jax.tree.map(jnp.asarray, shard))) for shard in post.shards)

    with jax.enable_x64(True):
        value, slopes = jax.jit(jax.value_and_grad(total))({name: jnp.asarray(value) for name, value in params.items()})
        return float(value), jax.tree.map(np.asarray, slopes)


def log_density(post, params):
    """The log density of the user's parameters: prior and likelihood, without Jacobians of constraints."""
    with jax.enable_x64(True):
        prior = float(jax.jit(post._log_prior)({name: jnp.asarray(value) for name, value in params.items()}))
    return prior + log_likelihood(post, params)[0]


# --- columns ---

FORMULAS = [
    "y ~ x * g",
    "y ~ C(g) + scale(log(z)) + I(x**2)",
    "y ~ 0 + g:x",
    "y ~ center(x) + np.log1p(z) + C(g, Sum)",
    "y ~ g * x - 1",
    "y ~ {x / z} + I(x > 3) + T(g, 'b')",
    "y ~ g:h + x:z",
]


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    n = 60
    columns = {"y": rng.normal(size=n), "x": rng.normal(3, 1, n), "z": rng.gamma(2, 1, n), "u": rng.gamma(2, 1, n)}
    frame = pd.DataFrame({**columns, "h": rng.choice(["p", "q"], n), "g": rng.choice(["a", "b", "c"], n)})
    # no site has all levels
    frame.loc[:10, "g"], frame.loc[10:30, "g"], frame.loc[30:, "g"] = "a", "c", "b"
    frame.loc[5:8, "g"] = "c"
    return frame


@pytest.mark.parametrize("formula", FORMULAS)
def test_sites_have_the_columns_of_the_pooled_table(formula, table):
    post = glm(sites(table), formula)
    found = np.concatenate([shard["design"] for shard in post.shards])
    pooled = design_matrices(formula, table, extra_namespace={"log": np.log, "np": np})
    np.testing.assert_allclose(found, pooled.common.design_matrix, rtol=1e-12, atol=1e-12)
    assert post.names[:-1] == tuple(pooled.common.as_dataframe().columns)


def test_offsets_exposures_and_weights_are_columns(table):
    counts = table.assign(y=np.arange(60.0) % 5, w=np.arange(60.0) % 3)
    by_offset = glm(sites(counts), "y ~ x + offset(log(z)) + offset(log(u))", "poisson")
    by_exposure = glm(sites(counts), "y ~ x + offset(log(u))", "poisson", exposure="z", weights="w")
    np.testing.assert_allclose(
        np.concatenate([shard["offset"] for shard in by_exposure.shards]), np.log(table.z * table.u), rtol=1e-12
    )
    for first, second in zip(by_offset.shards, by_exposure.shards, strict=True):
        np.testing.assert_allclose(first["offset"], second["offset"], rtol=1e-12)
    # a row of weight 2 equals two rows, a row of weight 0 none
    repeated = counts.loc[counts.index.repeat(counts.w.astype(int))]
    params = {"coefficients": np.array([0.3, -0.2])}
    post = glm(sites(repeated), "y ~ x + offset(log(u) + log(z))", "poisson")
    np.testing.assert_allclose(log_likelihood(by_exposure, params)[0], log_likelihood(post, params)[0], rtol=1e-12)


# --- priors ---


def test_default_priors_fit_the_scale_of_the_data_and_are_printed(table):
    post = glm(sites(table), "y ~ x + g", priors={"g": priors.Laplace(0, 1), "g[c]": priors.StudentT(3, 0, 2)})
    assert post.priors["x"].scale == pytest.approx(2.5 * table.y.std(ddof=0) / table.x.std(ddof=0), rel=1e-14)
    assert post.priors["Intercept"].loc == pytest.approx(table.y.mean())
    assert post.priors["Intercept"].scale == pytest.approx(2.5 * table.y.std(ddof=0))
    assert post.priors["g[b]"] == priors.Laplace(0, 1) and post.priors["g[c]"] == priors.StudentT(3, 0, 2)
    assert post.priors["sigma"].scale == pytest.approx(table.y.std(ddof=0))
    *lines, note = repr(post.priors).splitlines()
    assert [line.split()[0] for line in lines] == list(post.names)
    assert "Laplace(loc=0, scale=1)" in repr(post.priors) and note.startswith("The prior of Intercept")
    logits = glm(sites(table.assign(y=1.0 * (table.y > 0))), "y ~ x", "bernoulli")
    assert logits.priors["x"].scale == pytest.approx(2.5 / table.x.std(ddof=0))
    assert logits.priors["Intercept"] == priors.Normal(0, 2.5)


def test_the_prior_of_the_intercept_is_that_at_the_means_and_its_draws_are_at_zero(table):
    own = {"Intercept": priors.Normal(1.0, 0.3), "x": priors.Normal(0.5, 2.0), "sigma": priors.HalfNormal(2.0)}
    post = glm(sites(table), "y ~ x", priors=own)
    params = {"coefficients": np.array([0.4, -0.7]), "sigma": np.array(1.3)}
    expected = scipy.stats.norm.logpdf(0.4 - 0.7 * table.x.mean(), 1.0, 0.3)
    expected += scipy.stats.norm.logpdf(-0.7, 0.5, 2.0) + scipy.stats.halfnorm.logpdf(1.3, scale=2.0)
    expected += scipy.stats.norm.logpdf(table.y, 0.4 - 0.7 * table.x, 1.3).sum()
    np.testing.assert_allclose(log_density(post, params), expected, rtol=1e-10)
    # the linear predictor at the centre is subtracted from cutpoints
    classes = table.assign(y=np.digitize(table.y, [-0.5, 0.5]) * 1.0)
    cut = glm(sites(classes), "y ~ x", "ordinal", {"cutpoints": priors.Normal(0, 1), "x": priors.Flat()})
    params = {"coefficients": np.array([0.6]), "cutpoints": np.array([1.0, 2.5])}
    at_centre = params["cutpoints"] - 0.6 * table.x.mean()
    expected = scipy.stats.norm.logpdf(at_centre).sum() + np.log(2.0) + log_likelihood(cut, params)[0]
    np.testing.assert_allclose(log_density(cut, params), expected, rtol=1e-10)


def test_several_predictors_have_priors_by_class_and_column(table):
    classes = table.assign(y=np.resize(["p", "q", "r"], 60))
    post = glm(sites(classes), "y ~ x", "categorical", {"x": priors.Laplace(0, 1), "x|r": priors.Normal(0, 3)})
    assert post.names == ("Intercept|q", "Intercept|r", "x|q", "x|r")
    params = {"coefficients": np.array([[0.1, 0.2], [0.3, -0.4]])}
    centred = params["coefficients"][0] + params["coefficients"][1] * table.x.mean()
    expected = scipy.stats.norm.logpdf(centred, 0, 2.5).sum() + scipy.stats.laplace.logpdf(0.3)
    expected += scipy.stats.norm.logpdf(-0.4, 0, 3) + log_likelihood(post, params)[0]
    np.testing.assert_allclose(log_density(post, params), expected, rtol=1e-10)


# --- maximum likelihood on real data, against statsmodels ---


def data(name):
    return getattr(sm.datasets, name).load_pandas().data


def _normal():
    frame = data("longley")
    y, X = frame.TOTEMP, sm.add_constant(frame[["GNP", "UNEMP"]])
    fit = sm.OLS(y, X).fit()
    sigma = np.sqrt(fit.ssr / len(y))
    return frame, "TOTEMP ~ GNP + UNEMP", "normal", {"coefficients": fit.params, "sigma": sigma}, fit.llf


def _bernoulli():
    frame = data("anes96")
    fit = sm.Logit(frame.vote, sm.add_constant(frame[["age", "educ"]])).fit(disp=0)
    return frame, "vote ~ age + educ", "bernoulli", {"coefficients": fit.params}, fit.llf


def _binomial():
    frame = data("star98")
    frame = frame.assign(n=frame.NABOVE + frame.NBELOW)
    X = sm.add_constant(frame[["LOWINC", "PCTAF"]])
    fit = sm.GLM(frame[["NABOVE", "NBELOW"]], X, family=sm.families.Binomial()).fit(tol=1e-14)
    return frame, "prop(NABOVE, n) ~ LOWINC + PCTAF", "binomial", {"coefficients": fit.params}, fit.llf


def _visits():
    frame = data("randhie").iloc[::40].reset_index(drop=True)
    frame = frame.assign(time=np.linspace(0.5, 2.0, len(frame)))
    return frame, sm.add_constant(frame[["lncoins", "disea"]])


def _poisson():
    frame, X = _visits()
    fit = sm.Poisson(frame.mdvis, X, offset=np.log(frame.time)).fit(disp=0, method="newton")
    formula = "mdvis ~ lncoins + disea + offset(log(time))"
    return frame, formula, "poisson", {"coefficients": fit.params}, fit.llf


def _negative_binomial():
    frame, X = _visits()
    fit = sm.NegativeBinomial(frame.mdvis, X).fit(disp=0, method="newton", maxiter=200)
    params = {"coefficients": fit.params.to_numpy()[:-1], "concentration": 1.0 / fit.params["alpha"]}
    return frame, "mdvis ~ lncoins + disea", "negative_binomial", params, fit.llf


def _gamma():
    frame = data("scotland")
    X = sm.add_constant(frame[["UNEMPF", "MOR"]])
    fit = sm.GLM(frame.YES, X, family=sm.families.Gamma(sm.families.links.Log())).fit(tol=1e-14)
    shape = 7.0
    params = {"coefficients": fit.params, "shape": shape}
    return frame, "YES ~ UNEMPF + MOR", "gamma", params, fit.family.loglike(frame.YES, fit.mu, scale=1.0 / shape)


def _beta():
    frame = data("statecrime").reset_index(drop=True)
    frame = frame.assign(share=frame.poverty / 100.0)
    model = BetaModel(frame.share, sm.add_constant(frame[["hs_grad", "urban"]]))
    # the default optimiser stops at a machine-dependent point
    fit = model.fit(disp=0, method="newton", maxiter=200)
    params = {"coefficients": fit.params.to_numpy()[:-1], "precision": np.exp(fit.params.to_numpy()[-1])}
    return frame, "share ~ hs_grad + urban", "beta", params, fit.llf


def _categorical():
    frame = data("anes96").assign(income=lambda f: np.minimum(f.income // 8, 2.0))
    fit = sm.MNLogit(frame.income, sm.add_constant(frame[["age", "educ"]])).fit(disp=0, method="newton")
    return frame, "income ~ age + educ", "categorical", {"coefficients": fit.params}, fit.llf


def _ordinal():
    frame = data("anes96")
    model = OrderedModel(frame.PID, frame[["age", "educ"]], distr="logit")
    fit = model.fit(disp=0, method="bfgs", gtol=1e-8, maxiter=500)
    cuts = model.transform_threshold_params(fit.params.to_numpy())[1:-1]
    return frame, "PID ~ age + educ", "ordinal", {"coefficients": fit.params.to_numpy()[:2], "cutpoints": cuts}, fit.llf


def _cox(efron):
    frame = data("heart").sample(frac=1.0, random_state=0).reset_index(drop=True)
    frame = frame.assign(time=np.ceil(frame.survival / 60.0) + 1.0)
    study = sites(frame)
    strata = np.repeat(np.arange(3), [len(own) for own in study.frames])
    ties = "efron" if efron else "breslow"
    fit = sm.PHReg(frame.time, frame[["age"]], status=frame.censors, strata=strata, ties=ties).fit(disp=0)
    return frame, "surv(time, censors) ~ age", families.Cox(efron=efron), {"coefficients": fit.params}, fit.llf


FITS = {
    "normal": _normal,
    "bernoulli": _bernoulli,
    "binomial": _binomial,
    "poisson": _poisson,
    "negative binomial": _negative_binomial,
    "gamma": _gamma,
    "beta": _beta,
    "categorical": _categorical,
    "ordinal": _ordinal,
    "cox, efron": lambda: _cox(True),
    "cox, breslow": lambda: _cox(False),
}


@pytest.mark.long
@pytest.mark.parametrize("name", FITS)
@pytest.mark.filterwarnings("ignore::statsmodels.tools.sm_exceptions.ConvergenceWarning")
def test_maximum_likelihood_estimates_match_statsmodels(name):
    frame, formula, family, params, expected = FITS[name]()
    params = {name: np.asarray(value, float) for name, value in params.items()}
    others = [name for name in params if name != "coefficients"]
    own = flat(*others) if "cutpoints" not in params and "cox" not in name else {"coefficients": priors.Flat()}
    post = glm(sites(frame, constant=[name for name in frame if name == "n"]), formula, family, own)
    value, slopes = log_likelihood(post, params)
    np.testing.assert_allclose(value, expected, rtol=1e-7)
    # statsmodels' shape of the gamma is not the maximum likelihood estimate
    slopes.pop("shape", None)
    units = {key: np.maximum(np.abs(params[key]), 1e-3) for key in slopes}
    for key, slope in slopes.items():
        assert (np.abs(slope * units[key]) < 2e-3 * np.sqrt(len(frame))).all(), key


# --- posteriors on real data, against NUTS on the pooled rows ---


def _heart():
    frame = data("heart")
    return frame.assign(survival=frame.survival + 1.0)


def _diabetes():
    from sklearn.datasets import load_diabetes

    return load_diabetes(as_frame=True).frame[["target", "bmi", "bp"]]


def _student():
    return _diabetes(), "target ~ bmi + bp", "student"


def _weibull():
    return _heart(), "surv(survival, censors) ~ age", "weibull"


def _piecewise():
    return _heart(), "surv(survival, censors) ~ age", families.PiecewiseExponential(cuts=(30.0, 200.0))


SAMPLED = {
    **{name: (lambda fit=fit: fit()[:3]) for name, fit in FITS.items() if "cox" not in name},
    "student": _student,
    "weibull": _weibull,
    "piecewise": _piecewise,
}


def _responses(family, y, params, eta):
    """The log likelihood of the responses, by NumPyro's distributions if there are any."""
    sigma, shape = params.get("sigma"), params.get("shape")
    spent = jnp.where(y[0] > 0, y[0], 1.0)
    precision, half = params.get("precision", 1.0), jax.nn.sigmoid(eta)
    spread = params.get("concentration", 1.0)
    return {
        "normal": lambda: dist.Normal(eta, sigma).log_prob(y[0]),
        "student": lambda: dist.StudentT(params["nu"], eta, sigma).log_prob(y[0]),
        "bernoulli": lambda: dist.Bernoulli(logits=eta).log_prob(y[0]),
        "binomial": lambda: dist.Binomial(y[1], logits=eta).log_prob(y[0]),
        "poisson": lambda: dist.Poisson(jnp.exp(eta)).log_prob(y[0]),
        "negative_binomial": lambda: dist.NegativeBinomial2(jnp.exp(eta), spread).log_prob(y[0]),
        "gamma": lambda: dist.Gamma(shape, shape / jnp.exp(eta)).log_prob(y[0]),
        "beta": lambda: dist.Beta(precision * half, precision * (1.0 - half)).log_prob(y[0]),
        "categorical": lambda: dist.Categorical(logits=jnp.c_[jnp.zeros(len(eta)), eta]).log_prob(y[0]),
        "ordinal": lambda: dist.OrderedLogistic(eta, params["cutpoints"]).log_prob(y[0]),
        "weibull": lambda: jnp.where(
            y[1] == 1, dist.Weibull(jnp.exp(eta), shape).log_prob(y[0]), -((y[0] / jnp.exp(eta)) ** shape)
        ),
        # a Poisson number of events in each interval
        "piecewise_exponential": lambda: jnp.where(
            y[0] > 0, dist.Poisson(jnp.exp(params["log_hazard"][None] + eta[:, None]) * spent).log_prob(y[1]), 0.0
        ),
    }[family]().sum()


def _as_numpyro(prior):
    return {
        "Normal": lambda: dist.Normal(prior.loc, prior.scale),
        "Exponential": lambda: dist.Exponential(1.0 / prior.scale),
        "HalfCauchy": lambda: dist.HalfCauchy(prior.scale),
        "Gamma": lambda: dist.Gamma(prior.shape, prior.rate),
    }[type(prior).__name__]()


def _pooled(post, X, y):
    """The NumPyro model of all rows, with standardised columns and coefficients on the scale of the data."""
    mean, sd = X.mean(axis=0), X.std(axis=0)
    several = len(post.family.predictors)
    at_zero = post.family.has_intercept

    def slope(name, place):
        prior = post.priors[name]
        return numpyro.sample(name, dist.Normal(0.0, prior.scale * sd[place])) / sd[place]

    def predictor(names, intercept):
        b = jnp.stack([slope(name, place) for place, name in enumerate(names)])
        if not at_zero:
            return b, X @ b, mean @ b
        centred = numpyro.sample(f"c {intercept}", _as_numpyro(post.priors[intercept]))
        return jnp.concatenate([(centred - mean @ b)[None], b]), centred + (X - mean) @ b, 0.0

    def model():
        columns = [name for name in post.priors if not name.startswith("Intercept")]
        if several:
            own = [
                predictor([n for n in columns if n.endswith(f"|{k}")], f"Intercept|{k}") for k in post.family.predictors
            ]
            b, eta, params = jnp.stack([b for b, *_ in own], 1), jnp.stack([eta for _, eta, _ in own], 1), {}
        else:
            others = [n for n in columns if n in ("sigma", "nu", "shape", "precision", "concentration")]
            vectors = [n for n in columns if n in ("cutpoints", "log_hazard")]
            b, eta, shift = predictor([n for n in columns if n not in (*others, *vectors)], "Intercept")
            params = {name: numpyro.sample(name, _as_numpyro(post.priors[name])) for name in others}
            if "cutpoints" in vectors:
                count = len(post.family.levels)
                drawn = dist.TransformedDistribution(dist.Dirichlet(jnp.ones(count)), SimplexToOrderedTransform())
                params["cutpoints"] = numpyro.sample("at centre", drawn) + shift
            if "log_hazard" in vectors:
                own = _as_numpyro(post.priors["log_hazard"]).expand([len(post.family.cuts) + 1]).to_event(1)
                params["log_hazard"] = numpyro.sample("at centre", own) - shift
        numpyro.deterministic("all", jnp.concatenate([b.ravel(), *(jnp.ravel(params[n]) for n in sorted(params))]))
        numpyro.factor("rows", _responses(post.family.name, y, params, eta))

    return model


@pytest.mark.slow
@pytest.mark.busy
@pytest.mark.parametrize("name", SAMPLED)
def test_posteriors_of_families_match_nuts_on_the_pooled_rows(name):
    frame, formula, family = SAMPLED[name]()
    if name == "poisson":
        formula = "mdvis ~ lncoins + disea"
    if name == "ordinal":
        frame = frame.assign(PID=frame.PID // 2)
    study = sites(frame, constant=[name for name in ["n"] if name in frame])
    post = glm(study, formula, family)
    design = np.concatenate([shard["design"] for shard in post.shards]).astype(float)
    X = design[:, 1:] if post.family.has_intercept else design
    y = [np.concatenate([shard[part] for shard in post.shards]) for part in ("y", "trials") if part in post.shards[0]]
    if "event" in post.shards[0]:
        y = [np.concatenate([shard[part] for shard in post.shards]) for part in ("time", "event")]
    if name == "piecewise":
        time, event = y
        ends = np.array([0.0, 30.0, 200.0, np.inf])
        spent = np.clip(time[:, None] - ends[:-1], 0.0, np.diff(ends))
        last = (time[:, None] > ends[:-1]) & (time[:, None] <= ends[1:])
        y = [spent, event[:, None] * last]
    with jax.enable_x64(True):
        sampler = numpyro.infer.NUTS(_pooled(post, X, y), target_accept_prob=0.9)
        chains = numpyro.infer.MCMC(sampler, num_warmup=500, num_samples=5000, progress_bar=False)
        chains.run(jax.random.key(0))
        expected = np.asarray(chains.get_samples()["all"])
    run = accord.sample(post, accord.Network.complete(3), draws=1500, chains=4, seed=1)
    drawn = run.draws[:, :, 0].reshape(-1, len(post.names)).astype(float)
    off = np.abs(drawn.mean(axis=0) - expected.mean(axis=0)) / expected.std(axis=0)
    assert (off < 0.1).all(), dict(zip(post.names, off, strict=True))
    ratio = drawn.std(axis=0) / expected.std(axis=0)
    assert (np.abs(np.log(ratio)) < 0.08).all(), dict(zip(post.names, ratio, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("efron", [True, False])
def test_a_cox_posterior_is_statsmodels_partial_likelihood_times_the_prior(efron):
    frame, formula, family, params, _ = _cox(efron)
    post = glm(sites(frame), formula, family)
    strata = np.repeat(np.arange(3), [len(own) for own in sites(frame).frames])
    ties = "efron" if efron else "breslow"
    model = sm.PHReg(frame.time, frame[["age"]], status=frame.censors, strata=strata, ties=ties)
    grid = np.linspace(-0.15, 0.25, 801)
    log = np.array([model.loglike(np.array([b])) for b in grid])
    log += scipy.stats.norm.logpdf(grid, 0, post.priors["age"].scale)
    weights = np.exp(log - log.max()) / np.exp(log - log.max()).sum()
    mean = weights @ grid
    sd = np.sqrt(weights @ (grid - mean) ** 2)
    drawn = accord.sample(post, accord.Network.complete(3), draws=1500, chains=4, seed=1).draws[:, :, 0].astype(float)
    assert abs(drawn.mean() - mean) < 0.06 * sd
    assert abs(np.log(drawn.std() / sd)) < 0.05


# --- effects of groups ---


@pytest.mark.parametrize(
    ("efron", "coefficient", "at_zero", "at_fit"),
    [(False, 1.475285, -4.564348, -3.824750), (True, 1.676857, -4.276666, -3.358975)],
)
@pytest.mark.parametrize("first", [0.0, 1.0])
def test_cox_matches_the_r_package_survival_with_times_of_0(efron, coefficient, at_zero, at_fit, first):
    # data set 1 of the vignette "validate" of R's package survival, with first time 1 there
    frame = pd.DataFrame(
        {"time": [first, first, 6, 6, 8, 9.0], "event": [1.0, 0, 1, 1, 0, 1], "x": [1.0, 1, 1, 0, 0, 0]}
    )
    study = accord.data.as_study({"all": frame}, policy=POLICY)
    post = glm(study, "surv(time, event) ~ x", families.Cox(efron=efron))
    assert log_likelihood(post, {"coefficients": [0.0]})[0] == pytest.approx(at_zero, abs=1e-6)
    value, slopes = log_likelihood(post, {"coefficients": [coefficient]})
    assert value == pytest.approx(at_fit, abs=1e-6)
    np.testing.assert_allclose(slopes["coefficients"], 0.0, atol=1e-6)


def test_a_formula_before_the_tables_is_refused(table):
    with pytest.raises(TypeError, match="glm needs the tables, then the formula as text: .* Found str, then dict"):
        glm("y ~ x", {"north": table})


@pytest.mark.parametrize("family", ["weibull", "piecewise_exponential", "cox"])
def test_times_below_the_domain_raise(family, table):
    time = np.where(table.x > 2.0, 0.0, table.x) - (family == "cox")
    study = sites(table.assign(event=1.0, time=time), constant=["event"])
    with pytest.raises(ValueError, match="some responses of .* at site 's0' are not at times >=? 0") as found:
        glm(study, "surv(time, event) ~ z", family)
    if family != "cox":
        assert "as in surv(maximum(time, 0.5), event), or use the family cox" in str(found.value)
    if family == "weibull":
        assert glm(study, "surv(maximum(time, 0.5), event) ~ z", family).dim == 3


def test_a_posterior_of_times_shows_its_rows(table):
    post = glm(sites(table.assign(one=np.arange(60.0) % 2)), "surv(z, one) ~ x", "cox")
    assert repr(post) == "<Posterior: 1 parameter, 3 agents, 60 rows>" and "60" in post._repr_html_()


@pytest.mark.parametrize("family", ["weibull", "piecewise_exponential", "cox"])
def test_a_site_without_an_event_is_warned_of(family, table):
    # one site codes events as 1 and 2, the other one as 0 and 1
    coded = table.assign(time=np.exp(table.x), status=1.0 + (table.h == "p"))
    frames = [coded, coded.assign(status=coded.status - 1.0)]
    with pytest.warns(UserWarning, match=r"^surv\(time, status == 2\) at site 'agent 1' has no event") as warned:
        glm(frames, "surv(time, status == 2) ~ z", family)
    assert warned[0].filename == __file__


@pytest.mark.parametrize(
    "formula", ["y ~ x + (1 | site)", "y ~ x + (1 | ward)", "y ~ x + (1 + x | site:h)", "y ~ (0 + x | site:g)"]
)
@pytest.mark.long_from(2)
def test_effects_of_groups_are_integrated_out(formula, table):
    study = sites(table.assign(ward=table.g + "-" + (np.arange(60) // 10).astype(str)))
    slopes = "(1 + x" in formula
    post = glm(study, formula, "normal", flat("sigma", "group_sd", *["group_sd_2"] * slopes))
    params = {"coefficients": np.array([0.4, -0.7][: 1 + ("~ x" in formula)]), "sigma": np.array(1.3)}
    params |= {"group_sd": np.array(0.8)}
    if slopes:
        params |= {"group_sd_2": np.array(0.5), "group_correlation": np.array(-0.6)}
        assert post.names[2:] == (
            "group_correlation[Intercept, x|site:h]",
            "group_sd[Intercept|site:h]",
            "group_sd_2[x|site:h]",
            "sigma",
        )
    spread = np.array([[0.64, -0.24], [-0.24, 0.25]]) if slopes else np.array([[0.64]])
    expected = 0.0
    for frame in study.frames:
        name = formula.rstrip(")").split("| ")[1].removeprefix("site:")
        for _, own in frame.groupby(frame[name]) if name != "site" else [(0, frame)]:
            columns = (
                np.c_[np.ones(len(own)), own.x] if slopes else np.c_[own.x if "(0" in formula else np.ones(len(own))]
            )
            mean = 0.4 - 0.7 * own.x if "~ x" in formula else np.full(len(own), 0.4)
            cov = columns @ spread @ columns.T + 1.69 * np.eye(len(own))
            expected += scipy.stats.multivariate_normal.logpdf(own.y, mean, cov)
    with jax.enable_x64(True):
        free = jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(_unconstrained(params))])
        volume = post.parameters.with_volume(free)[1]
        found = float(jax.jit(post.logdensity)(free) - volume)
    expected += np.log(0.5) if slopes else 0.0
    np.testing.assert_allclose(found, expected, rtol=1e-7)


GROUPED = {
    "y ~ x + (1 | site)": ("Intercept|site=s0", "Intercept|site=s2", 3),
    "y ~ x + (1 | ward)": ("Intercept|ward=a-0", "Intercept|ward=b-5", 7),
    "y ~ x + (1 + x | site:h)": ("Intercept|site:h=s0:p", "x|site:h=s2:q", 12),
}


@pytest.mark.parametrize("formula", GROUPED)
@pytest.mark.long_from(1)
def test_effects_as_parameters_are_normal_given_their_scales(formula, table):
    study = sites(table.assign(ward=table.g + "-" + (np.arange(60) // 10).astype(str)))
    slopes = "(1 + x" in formula
    post = glm(study, formula, "normal", flat("sigma", "group_sd", *["group_sd_2"] * slopes), effects="parameters")
    own = [name for name in post.names if name.startswith("group_effect")]
    first, last, count = GROUPED[formula]
    assert (own[0], own[-1], len(own)) == (f"group_effect[{first}]", f"group_effect[{last}]", count)
    spread = np.array([[0.64, -0.24], [-0.24, 0.25]]) if slopes else np.array([[0.64]])
    others = {"coefficients": np.array([0.4, -0.7]), "sigma": np.array(1.3), "group_sd": np.array(0.8)}
    if slopes:
        others |= {"group_sd_2": np.array(0.5), "group_correlation": np.array(-0.6)}
    z = np.random.default_rng(2).normal(size=(count // len(spread), len(spread)))
    effects = z @ np.linalg.cholesky(spread).T
    with jax.enable_x64(True):
        leaves = jax.tree.leaves({**_unconstrained(others), "group_effect": z})
        free = jnp.concatenate([jnp.ravel(leaf) for leaf in leaves])
        found = float(jax.jit(post.logdensity)(free))
    drawn = post.parameters.reported(np.asarray(free)[None])[0]
    np.testing.assert_allclose(drawn[[post.names.index(name) for name in own]], effects.ravel(), rtol=1e-12)
    # standardised effects are a priori independent of the other parameters
    expected, group = scipy.stats.norm.logpdf(z).sum(), 0
    for site, frame in zip(study.sites, study.frames, strict=True):
        name = formula.rstrip(")").split("| ")[1].removeprefix("site:")
        for _, rows in frame.groupby(frame[name]) if name != "site" else [(site, frame)]:
            mean = 0.4 - 0.7 * rows.x + effects[group, 0] + (effects[group, 1] * rows.x if slopes else 0.0)
            expected, group = expected + scipy.stats.norm.logpdf(rows.y, mean, 1.3).sum(), group + 1
    volume = np.log(0.8) + np.log(1.3) + (np.log(0.5) + np.log(0.64 / 2.0) if slopes else 0.0)
    np.testing.assert_allclose(found, expected + volume + (np.log(0.5) if slopes else 0.0), rtol=1e-9)
    sent = pickle.loads(pickle.dumps(post.alone(1)))
    np.testing.assert_array_equal(sent.gradients(post.init), post.alone(1).gradients(post.init))
    assert " at 0x" not in repr(post._constraints) and not post.has_latents


@pytest.mark.parametrize(
    ("left", "family"),
    [("count", "poisson"), ("prop(count, trials)", "binomial"), ("g", families.Ordinal(("a", "b", "c")))]
    + [("z", name) for name in ("student", "gamma")]
    + [("surv(z, event)", name) for name in ("weibull", "piecewise_exponential")],
)
@pytest.mark.long
def test_both_kinds_of_effects_have_the_same_likelihood_of_rows(left, family, table):
    columns = {"count": np.arange(60.0) % 4, "trials": 9.0, "event": 1.0 * (np.arange(60) % 3 > 0)}
    study = sites(table.assign(**columns), constant=["trials"])
    formula = f"{left} ~ x + (1 + x | site:h)"
    kept, apart = (glm(study, formula, family, effects=effects) for effects in ("parameters", "integrated"))
    rng, found = np.random.default_rng(3), []
    z = rng.normal(size=kept._params["group_effect"].shape)
    params = {**kept._params, "group_correlation": np.array(0.3)}
    with jax.enable_x64(True):
        own, _ = kept.parameters.transforms[list(params).index("group_effect")](jnp.asarray(z), params)
        for rows in kept.shards:
            one = kept._log_likelihood({**params, "group_effect": own}, rows)
            found.append((one, apart._log_likelihood(params, jnp.asarray(z)[rows["group"]], rows)))
    for one, other in found:
        np.testing.assert_allclose(one, other, rtol=1e-12)
    assert np.ptp(found[0][0]) > 0


def toenails(patients):
    """Data like the toenail trial (De Backer et al. 1998): seven visits a patient, effects of patients with sd 4."""
    rng, month = np.random.default_rng(0), np.array([0, 1, 2, 3, 6, 9, 12.0])
    effects, frames = 4.0 * scipy.stats.norm.ppf((np.arange(patients) + 0.5) / patients), {}
    names = np.repeat([f"p{place}" for place in range(patients)], len(month))
    for site in ("north", "south", "west"):
        infected = 1.0 * (rng.random((patients, 7)) < scipy.special.expit(effects[:, None] - 1.5 - 0.4 * month))
        columns = {"infected": infected.ravel(), "month": np.tile(month, patients), "patient": names}
        frames[site] = pd.DataFrame(columns)
    return frames


TOENAILS = ("infected ~ month + (1 | site:patient)", "bernoulli")


def by_dense_quadrature(frames, post, found):
    """Means and standard deviations of the parameters and of one patient's effect, by importance sampling.

    Effects are integrated out on a fixed grid of 801 points up to 10 standard deviations.
    """
    grid = np.linspace(-10.0, 10.0, 801)
    log_weight = scipy.stats.norm.logpdf(grid) + np.log(grid[1] - grid[0])
    centre = found.mean(axis=0), np.cov(found.T)
    points = scipy.stats.multivariate_t.rvs(*centre, df=6, size=4000, random_state=0)
    month = frames["north"].month.to_numpy()
    y = np.concatenate([frame.infected.to_numpy().reshape(-1, 7) for frame in frames.values()])
    log_density, effect = [], []
    for a, b, log_sd in points:
        eta = (a + b * month[:7])[:, None] + np.exp(log_sd) * grid
        each = y @ eta - np.logaddexp(0.0, eta).sum(axis=0) + log_weight
        integral = scipy.special.logsumexp(each, axis=1)
        effect.append(np.exp(each[0] - integral[0]) @ (grid * np.exp(log_sd)))
        level, slope, sd = (post.priors[name] for name in ("Intercept", "month", "group_sd"))
        prior = scipy.stats.norm.logpdf(a + b * month.mean(), level.loc, level.scale) - np.exp(log_sd) / sd.scale
        prior += scipy.stats.norm.logpdf(b, slope.loc, slope.scale)
        log_density.append(integral.sum() + prior + log_sd)
    weight = np.asarray(log_density) - scipy.stats.multivariate_t.logpdf(points, *centre, df=6)
    weight = np.exp(weight - scipy.special.logsumexp(weight))
    assert 1.0 / (weight**2).sum() > 2000
    values = np.c_[points[:, :2], np.exp(points[:, 2]), effect]
    mean = weight @ values
    return mean, np.sqrt(weight @ (values - mean) ** 2)


@pytest.mark.slow
@pytest.mark.busy
def test_effects_far_from_normal_are_right_by_either_remedy_of_the_certificate():
    frames, network = toenails(10), accord.Network.complete(3)
    with pytest.warns(
        UserWarning, match=r'integrals .* glm\(\.\.\., nodes=63\), or .* glm\(\.\.\., effects="parameters"\)'
    ):
        run = accord.sample(glm(frames, *TOENAILS), network, draws=1000, seed=1)
    assert [check.name for check in run.certificate.checks if not check.holds] == ["integration"]
    finer, kept = (glm(frames, *TOENAILS, **remedy) for remedy in ({"nodes": 63}, {"effects": "parameters"}))
    assert finer.latents.nodes == 63 and kept.dim == 33
    runs = [accord.sample(post, network, draws=1000, seed=1) for post in (finer, kept)]
    assert all(run.certificate.holds for run in runs)
    drawn = [run.draws[:, :, 0].reshape(-1, run.draws.shape[-1]) for run in runs]
    own = [[post.names.index(name) for name in finer.names] for post in (finer, kept)]
    of_three = drawn[0].copy()
    of_three[:, 2] = np.log(of_three[:, 2])
    mean, sd = by_dense_quadrature(frames, finer, of_three)
    for draws, places in zip(drawn, own, strict=True):
        assert (np.abs(draws[:, places].mean(axis=0) - mean[:3]) < 0.1 * sd[:3]).all()
        assert (np.abs(np.log(draws[:, places].std(axis=0) / sd[:3])) < 0.1).all()
    effect = drawn[1][:, kept.names.index("group_effect[Intercept|site:patient=north:p0]")]
    assert abs(effect.mean() - mean[3]) < 0.1 * effect.std()


def test_nodes_sets_the_quadrature(tmp_path):
    frames = toenails(6)
    post = glm(frames, *TOENAILS, nodes=40)
    # also after changes of the data
    assert post.latents.nodes == post.finely().latents.nodes == 40 and not post.is_coarse
    assert post.with_shards(post.shards).latents.nodes == 40
    assert fingerprint(post, accord.Network.complete(3), None) != fingerprint(
        post.finely(41), accord.Network.complete(3), None
    )
    for site, frame in frames.items():
        frame.to_csv(tmp_path / f"{site}.csv", index=False)
    document = {"data": {"files": "*.csv"}, "model": {"formula": TOENAILS[0], "family": "bernoulli"}}
    found = {
        key: read_problem({**document, "model": {**document["model"], key: value}}, tmp_path)[1]
        for key, value in {"nodes": 40, "effects": "parameters"}.items()
    }
    assert found["nodes"].latents.nodes == 40
    assert found["effects"].names == glm(frames, *TOENAILS, effects="parameters").names


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"effects": "parameter"}, "unknown effects 'parameter', did you mean 'parameters'"),
        ({"nodes": 0}, r"nodes must be a whole number in 1\.\.100, found 0"),
        ({"nodes": 101}, r"nodes must be a whole number in 1\.\.100, found 101"),
        ({"nodes": 30, "effects": "parameters"}, 'nodes needs effects = "integrated"'),
        ({"nodes": 30, "formula": "y ~ x"}, r"nodes needs effects of groups such as \(1 \| site\)"),
        ({"effects": "parameters", "formula": "y ~ x"}, 'effects = "parameters" needs effects of groups'),
        ({"effects": "parameters", "priors": {"group_effect": priors.Normal(0, 1)}}, "unknown prior of 'group_effect'"),
    ],
)
def test_effects_and_nodes_are_checked(options, message, table):
    with pytest.raises(ValueError, match=message):
        glm(sites(table), **{"formula": "y ~ x + (1 | site)", **options})


@pytest.mark.slow
@pytest.mark.busy
def test_effects_of_groups_have_the_posterior_of_nuts_on_effects_and_all():
    rng = np.random.default_rng(4)
    n, wards = 420, 30
    ward = np.sort(rng.integers(0, wards, n))
    x = rng.normal(1.0, 1.0, n)
    u = rng.normal(size=(wards, 2))
    effects = np.c_[0.8 * u[:, 0], 0.5 * (-0.5 * u[:, 0] + np.sqrt(0.75) * u[:, 1])]
    eta = 0.3 - 0.6 * x + effects[ward, 0] + effects[ward, 1] * x
    y = 1.0 * (rng.random(n) < scipy.special.expit(eta))
    frame = pd.DataFrame({"x": x, "ward": [f"w{i}" for i in ward], "y": y})
    places = np.flatnonzero(np.isin(np.arange(n), np.searchsorted(ward, [10, 20])))
    parts = [frame.iloc[a:b] for a, b in zip([0, *places], [*places, n], strict=True)]
    study = accord.data.as_study(parts, policy=POLICY)
    post = glm(study, "y ~ x + (1 + x | ward)", "bernoulli")

    def model():
        centred = numpyro.sample("c", _as_numpyro(post.priors["Intercept"]))
        slope = numpyro.sample("x", _as_numpyro(post.priors["x"]))
        sds = [numpyro.sample(name, _as_numpyro(post.priors[name])) for name in ("group_sd", "group_sd_2")]
        rho = numpyro.sample("rho", dist.Uniform(-1.0, 1.0))
        z = numpyro.sample("z", dist.Normal(jnp.zeros((wards, 2)), 1.0).to_event(2))
        own = jnp.stack([sds[0] * z[:, 0], sds[1] * (rho * z[:, 0] + jnp.sqrt(1.0 - rho**2) * z[:, 1])], axis=1)
        logits = centred + slope * (x - x.mean()) + own[ward, 0] + own[ward, 1] * x
        numpyro.factor("rows", dist.Bernoulli(logits=logits).log_prob(y).sum())
        numpyro.deterministic("all", jnp.stack([centred - slope * x.mean(), slope, rho, *sds]))

    with jax.enable_x64(True):
        sampler = numpyro.infer.NUTS(model, target_accept_prob=0.95)
        chain = numpyro.infer.MCMC(sampler, num_warmup=500, num_samples=5000, progress_bar=False)
        chain.run(jax.random.key(0))
        expected = np.asarray(chain.get_samples()["all"])
    run = accord.sample(post, accord.Network.complete(3), draws=1500, chains=4, seed=1)
    drawn = run.draws[:, :, 0].reshape(-1, 5).astype(float)
    off = np.abs(drawn.mean(axis=0) - expected.mean(axis=0)) / expected.std(axis=0)
    assert (off < 0.1).all(), dict(zip(post.names, off, strict=True))
    ratio = drawn.std(axis=0) / expected.std(axis=0)
    assert (np.abs(np.log(ratio)) < 0.08).all(), dict(zip(post.names, ratio, strict=True))


def _unconstrained(params):
    logs = {name: np.log(value) for name, value in params.items() if "sd" in name or name == "sigma"}
    turned = {name: scipy.special.logit((value + 1) / 2) for name, value in params.items() if "correlation" in name}
    return {**params, **logs, **turned}


# --- pickling and documentation ---


def test_a_posterior_travels_with_its_priors(table):
    post = glm(sites(table), "y ~ x + (1 + x | site:g)")
    sent = pickle.loads(pickle.dumps(post.alone(1)))
    assert (sent.formula, sent.family, dict(sent.priors)) == (post.formula, post.family, dict(post.priors))
    np.testing.assert_array_equal(sent.gradients(post.init), post.alone(1).gradients(post.init))


def test_the_page_names_every_family():
    page = (Path(__file__).parents[1] / "docs" / "models.md").read_text(encoding="utf-8")
    section = page.partition("## Families")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]*) \|", section, flags=re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", " ".join(rows))) == set(FAMILIES)


# --- errors and warnings ---

ERRORS = {
    "column": (("y ~ q",), "unknown column in the formula 'q'"),
    "site": (("y ~ x + C(site)",), r"site in the formula is no column: write \(1 \| site\) for effects of sites, or"),
    "function": (("y ~ sqr(x)",), "unknown function in the formula 'sqr'.*sqrt"),
    "own figures": (("y ~ poly(x, 2)",), "depends on all rows of a site"),
    "spline": (("y ~ bs(x, df=4)",), "depends on all rows of a site"),
    "numbers as levels": (("y ~ C(x)",), "needs a text column"),
    "response": (("x + z",), "has no response"),
    "syntax": (("y ~ x +",), "cannot be read"),
    "a group without parentheses": (("y ~ x | g",), r"cannot be parsed, \| g: write effects"),
    "a product of groups": (("y ~ z + (x | g) * z",), "effects of groups must be in parentheses"),
    "not finite": (("y ~ log(x - 3)",), r"some rows of site 's0': .*log\(maximum\(x, 0.5\)\)"),
    "strata": (
        ("surv(z, one) ~ x + strata(g)", "cox"),
        "cox has one baseline for each site, .* as a term",
    ),
    "family": (("y ~ x", "gauss"), "unknown family 'gauss'"),
    "domain": (("x ~ z", "poisson"), "some responses of x at site 's0' are not counts"),
    "text": (("g ~ z", "bernoulli"), "the response of g at site 's0' must hold 0 or 1 .name the level"),
    "yes as 2": (
        ("I(one + 1) ~ z", "bernoulli"),
        r"some responses of I\(one \+ 1\) at site 's0' are not 0 or 1: .* as in I\(y == 2\)",
    ),
    "event as 2": (
        ("surv(z, I(one + 1)) ~ x", "weibull"),
        r"some responses of surv\(z, I\(one \+ 1\)\) at site 's0' are not events 0 or 1: .*surv\(time, event == 2\)",
    ),
    "event as 2 before intervals are found": (
        ("surv(z, I(one + 1)) ~ x", "piecewise_exponential"),
        "at site 's0' are not events 0 or 1: write the event as a comparison",
    ),
    "level": (("g['k'] ~ z", "bernoulli"), "unknown level of g 'k'"),
    "level of numbers": (("x['k'] ~ z", "bernoulli"), "x is numeric and has no levels"),
    "pair": (
        ("y ~ z", "binomial"),
        r"binomial needs prop\(y, trials\) .*, found y; for a column of 0 and 1 use the family bernoulli",
    ),
    "survival": (("y ~ z", "cox"), r"cox needs surv\(time, event\)"),
    "order": (("g ~ z", "ordinal"), "order of classes is not known"),
    "baseline": (("surv(z, one) ~ 0 + x", "cox"), "baseline in place of an intercept"),
    "no coefficient": (("y ~ 0",), "has no coefficient|cannot be read"),
    "prior of nothing": (("y ~ x", "normal", {"zz": priors.Flat()}), "unknown prior of 'zz'"),
    "prior of no intercept": (
        ("surv(z, one) ~ x", "cox", {"Intercept": priors.Flat()}),
        "unknown prior of 'Intercept'",
    ),
    "prior that is none": (("y ~ x", "normal", {"x": 2.5}), "must be one of accord.models.priors, found 2.5"),
    "prior of a scale": (("y ~ x", "normal", {"sigma": priors.Normal(0, 1)}), "sigma must be one of numbers > 0"),
    "prior of a coefficient": (("y ~ x", "normal", {"x": priors.HalfNormal(1)}), "x must be one of any number"),
    "collinear": (("y ~ x + I(2 * x)", "normal", {"x": priors.Flat(), "I(2 * x)": priors.Flat()}), "x, I.* collinear"),
    "separated": (("one ~ sign", "bernoulli", {"sign": priors.Flat()}), "sign separates the responses completely"),
    "separated by two": (("two ~ x + z", "bernoulli", flat()), "unbounded, probably because columns separate.* along"),
    "zero counts": (("many ~ sign", "poisson", {"sign": priors.Flat()}), "sign separates"),
    "factors": (
        ("y ~ x + (1 | g) + (1 | h)",),
        r"one grouping factor, found \['g', 'h'\]: write the others as terms, as in C\(column\)",
    ),
    "groups of several sites": (("y ~ x + (1 | h)",), "a group of h has rows at several sites, 's0' and 's1'"),
    "grouping": (
        ("y ~ x + (1 | g:h)",),
        "must be grouped by site, a column, or site:column; .*: combine several columns into one",
    ),
    "group": (("y ~ x + (1 | ward)",), "unknown column in the formula 'ward'"),
    "effects": (("y ~ x + (1 + x + z | site:h)",), "two effects at most"),
    "effects of classes": (("g ~ x + (1 | site)", "categorical"), "does not support effects of groups: .* bernoulli"),
    "effects and cox": (
        ("surv(z, one) ~ x + (1 | site)", "cox"),
        "does not support effects of groups: use the family piecewise_exponential or weibull",
    ),
}


@pytest.mark.parametrize("family", ["normal", "student", "gamma", "beta", "weibull"])
def test_a_response_that_is_the_same_number_everywhere_is_refused(family, table):
    # 0.1 is not exact in binary, so the mean has rounding error
    alike = sites(table.assign(y=0.1, event=1.0), constant=["y", "event"])
    formula = "surv(y, event) ~ x" if family == "weibull" else "y ~ x"
    with pytest.raises(ValueError, match="the same number in all rows of all sites: there is nothing to explain"):
        glm(alike, formula, family)
    if family in ("gamma", "weibull"):
        assert glm(alike, f"{formula} + offset(log(z + 9))", family).dim == 3


@pytest.mark.parametrize("name", ERRORS)
def test_invalid_models_raise(name, table):
    arguments, message = ERRORS[name]
    one = np.arange(60.0) % 2
    extended = table.assign(one=one, sign=np.where(one > 0, 1.0 + table.z, -table.z), many=one * 3)
    extended = extended.assign(two=1.0 * (extended.x + extended.z > 5.0))
    if name == "zero counts":
        extended = extended.assign(sign=1.0 - one)
    with pytest.raises(ValueError, match=message):
        glm(sites(extended), *arguments)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"exposure": "z", "family": "normal"}, "has no exposure"),
        ({"exposure": "y"}, "exposure must be finite and > 0, and some rows of column 'y' at site 's0' are not"),
        ({"weights": "y"}, "weights must be finite and >= 0"),
        ({"weights": "nothing"}, "unknown column of weights 'nothing'"),
        ({"exposure": "nothing"}, "unknown column of exposure 'nothing'"),
        ({"weights": "z", "family": "cox", "formula": "surv(z, one) ~ x"}, "cox has no weights"),
    ],
)
def test_columns_of_weights_and_exposures_are_checked(options, message, table):
    counts = table.assign(one=np.arange(60.0) % 2)
    with pytest.raises(ValueError, match=message):
        glm(sites(counts), **{"formula": "one ~ x", "family": "poisson", **options})


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("gaussian", "normal"),
        ("Negbin", "negative_binomial"),
        ("nbinom", "negative_binomial"),
        ("logistic", "bernoulli"),
    ],
)
def test_family_names_of_other_packages_are_understood(name, meant, table):
    with pytest.raises(ValueError, match=f"unknown family '{name}', did you mean '{meant}'"):
        glm(sites(table), "y ~ x", name)


def test_an_event_may_be_a_comparison(table):
    coded = table.assign(time=table.y**2 + 1.0, status=1.0 + np.arange(60) % 2)
    post, same = (glm(sites(coded), f"surv(time, {event}) ~ x", "weibull") for event in ("status == 2", "status - 1"))
    np.testing.assert_array_equal(post.shards[0]["event"], same.shards[0]["event"])


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("Intercept", "y ~ Intercept"),
        ("Intercept", "y ~ 0 + Intercept"),
        ("group_sd", "y ~ group_sd + (1 | site)"),
        ("coefficients", "y ~ x + coefficients"),
        ("sigma", "y ~ sigma"),
        ("sigma", "y ~ sigma:x + sigma"),
    ],
)
def test_a_column_with_the_name_of_a_parameter_is_refused(name, formula, table):
    message = f"the column '{name}' has the name of a parameter of the model: rename the column"
    with pytest.raises(ValueError, match=message):
        glm(sites(table.assign(**{name: table.x})), formula)
    with pytest.raises(ValueError, match=message):
        glm(sites(table.assign(**{name: table.g})), formula)


def test_columns_with_names_like_those_of_parameters_are_fine(table):
    named = table.assign(intercept=table.x, group_sd=table.z)
    assert glm(sites(named), "y ~ intercept + group_sd").names == ("Intercept", "intercept", "group_sd", "sigma")


def test_models_of_many_columns_are_refused_before_their_columns_are_made(monkeypatch):
    levels = [f"g{k}" for k in range(2000) for _ in range(3)]
    tables = {site: {"g": levels, "y": np.arange(6000.0)} for site in ("north", "south")}
    monkeypatch.setattr(Formula, "_template_rows", lambda *arguments: pytest.fail("columns are made"))
    with pytest.raises(ValueError, match=r"north: 1999 parameters .* `parameters = 0.34` in the site.s policy file"):
        glm(tables, "y ~ 0 + g")
    study = accord.data.as_study(tables, policy=accord.data.Policy(parameters=1.0))
    monkeypatch.setattr(memory, "memory_bytes", lambda: 8.0 * 1999 * (12_000 + 1999) - 1)
    with pytest.raises(
        ValueError, match="at least 1,999 columns of 12,000 rows, .* take 224 MB at least; .* merge levels"
    ):
        glm(study, "y ~ 0 + C(g)")


@pytest.mark.parametrize("prior", [priors.Normal(0.0, 1e-3), priors.StudentT(4.0, 0.0, 1e-3)])
@pytest.mark.long_from(1)
def test_a_posterior_that_is_its_prior_is_reported(prior, table, tmp_path):
    post = glm(sites(table), "y ~ x + z", priors={"x": prior})
    (sd,) = (sd for name, *_, sd in post.info.coefficients if name == "x")
    run = accord.sample(post, accord.Network.complete(len(post.shards)))
    (text,) = run.warnings()
    assert re.search(r"no information about the coefficient of x: its posterior .* its prior .mean 0, sd 0.001", text)
    assert f"The column has the sd {sd:.3g}, so the prior allows" in text and "check the column's unit" in text
    run.save(tmp_path / "run.nc")
    assert accord.Run.load(tmp_path / "run.nc").warnings() == [text]
    assert accord.sample(glm(sites(table), "y ~ x + z"), accord.Network.complete(len(post.shards))).warnings() == []


# --- floors of columns ---


def wards(oldest=103.0):
    """Two sites under default floors. One person at the first site has a unique age."""
    rng = np.random.default_rng(7)
    tables = {}
    for site in ("north", "south"):
        n = 90
        tables[site] = pd.DataFrame(
            {
                "y": rng.normal(size=n),
                "died": rng.permutation([0.0, 1.0] * 45),
                "age": rng.integers(20, 95, n).astype(float),
                "crp": rng.lognormal(2.0, 1.0, n),
                "sex": rng.permutation(["f", "m"] * 45),
                "stage": rng.permutation(["i"] * 60 + ["ii"] * 30),
                "lone": np.zeros(n),
                "times": np.ones(n),
            }
        )
    tables["north"].loc[11, ["age", "lone", "times"]] = [oldest, 1.0, 2.0]
    # sex and stage have enough rows, but only one row is an m in stage ii
    rare = tables["north"]
    rare["sex2"] = np.where(rare.stage == "ii", "f", rare.sex)
    rare.loc[rare.index[rare.stage == "ii"][0], "sex2"] = "m"
    tables["south"]["sex2"] = tables["south"].sex
    return tables


# formula, options, and the term in the message
SINGLED_OUT = [
    ("died ~ I(age == 103)", {}, "I(age == 103)"),
    ("died ~ center(I((age == 103) * crp))", {}, "center(I((age == 103) * crp))"),
    ("died ~ scale(I((age == 103) * crp))", {}, "scale(I((age == 103) * crp))"),
    ("died ~ center(lone) + age", {}, "center(lone)"),
    ("died ~ lone", {}, "lone"),
    # sums with cells of other persons
    ("died ~ center(I((age == 103) * crp + 0.1 * y))", {}, "center(I((age == 103) * crp + 0.1 * y))"),
    ("died ~ standardize(log(1 + lone + crp))", {}, "standardize(log(1 + lone + crp))"),
    ("died ~ I(crp ** 40)", {}, "I(crp ** 40)"),
    ("died ~ exp(3 * age)", {}, "exp(3 * age)"),
    ("died ~ maximum(age, 102)", {}, "maximum(age, 102)"),
    ("died ~ sex2 * stage", {}, "sex2[m]:stage[ii]"),
    ("died ~ I(age == 103):crp", {}, "I(age == 103):crp"),
    ("died ~ age + offset(lone * crp)", {}, "offset(lone * crp)"),
    ("died ~ age + (I(age == 103) | site)", {}, "I(age == 103)"),
    ("died ~ age", {"weights": "times"}, "times"),
    ("died ~ age", {"family": "poisson", "exposure": "times"}, "times"),
    ("I((age == 103) * crp) ~ sex", {"family": "normal"}, "I((age == 103) * crp)"),
    ("surv(crp, I(age == 103)) ~ sex", {"family": "cox"}, "surv(crp, I(age == 103))"),
]


@pytest.mark.parametrize(("formula", "options", "term"), SINGLED_OUT)
def test_a_column_of_one_person_is_refused_before_anything_is_summed(formula, options, term, monkeypatch):
    tables = wards()
    # a formula may quote a number of its sender, but no message quotes a number of the file
    crp = tables["north"].crp[11]
    summed = []
    monkeypatch.setattr(accord.models.formula, "means_and_sds", lambda *given: summed.append(given))
    monkeypatch.setattr(accord.models.tables, "means_and_sds", lambda *given: summed.append(given))
    study = accord.data.as_study(tables, formula=[formula, "times"])
    with pytest.raises(accord.base.errors.DataError) as caught:
        glm(study, formula, **{"family": "bernoulli", **options})
    text = str(caught.value)
    words = (
        "fewer than 3 rows differ from the most frequent value (within a thousandth of the range), the floor of the "
        "site. Leave the term out"
    )
    assert f"north: refused, in {term}, {words}" in text and str(crp)[:5] not in text
    assert not summed


def test_under_the_laxer_policy_such_a_column_passes_with_a_warning():
    policy = accord.data.Policy(rare="warn")
    study = accord.data.as_study(wards(), formula="died ~ center(lone * crp)", policy=policy)
    with pytest.warns(UserWarning, match="fewer than 3 rows differ from the most frequent value") as caught:
        glm(study, "died ~ center(lone * crp)", "bernoulli")
    named = {str(one.message).split(", fewer")[0] for one in caught}
    assert named == {"north: in center(lone * crp)", "north: in lone"}


def test_columns_in_which_no_row_or_enough_rows_differ_pass():
    tables = wards(oldest=90.0)
    for table in tables.values():
        table["lone"] = 0.0
        table["at"] = 0.0 + (table is tables["south"])
        table.loc[:2, "lone"] = 1.0
    glm(tables, "died ~ at + lone", "bernoulli")
    glm(tables, "died ~ scale(log(crp)) + sex * stage + I(age > 60) + offset(0.1 * y)", "bernoulli")
    # no such row at one site
    tables["south"]["lone"] = 0.0
    glm(tables, "died ~ center(lone)", "bernoulli")


@pytest.mark.parametrize("rows", [30, 300])
def test_skewed_columns_pass(rows):
    policy = accord.data.Policy()
    rng = np.random.default_rng(0)
    refused = [policy.singles_out(rng.lognormal(0.0, 1.5, rows)) for _ in range(2000)]
    assert not any(refused)
    # heavy tails are rarely refused
    refused = [policy.singles_out(rng.standard_cauchy(rows)) for _ in range(2000)]
    assert np.mean(refused) < 0.005


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([0.0] * 20, False),
        ([0.1] * 20 + [0.3], True),
        ([0.0] * 20 + [1.0, 2.0], True),
        ([0.0] * 20 + [1.0, 2.0, 3.0], False),
        ([1.0, 2.0, 3.0], True),
        (list(range(20)), False),
        # negligible compared with the largest value
        ([1e6, *range(20)], True),
        ([1e6, *range(0, 20_000, 1000)], False),
        ([1e308, -1e308, *[0.0] * 20], True),
        ([np.inf, *[0.0] * 20], True),
        ([5e-324, *[0.0] * 20], True),
        ([], False),
    ],
)
def test_what_singles_out_rows(values, found):
    assert accord.data.Policy().singles_out(np.array(values)) is found
    assert not accord.data.Policy(cells=1).singles_out(np.array(values))


# --- floors of all columns together ---


def patients():
    """Two sites whose columns pass their floors. One person at the first site is 60.2 years old, two are about 40."""
    rng = np.random.default_rng(5)
    tables = {}
    for site in ("north", "south"):
        n = 90
        tables[site] = pd.DataFrame(
            {
                "y": rng.normal(size=n),
                "died": rng.permutation([0.0, 1.0] * 45),
                "grade": rng.permutation(["i", "ii", "iii"] * 30),
                # 60.15 to 60.25 and 40.05 to 40.45 are free
                "age": np.floor(rng.uniform(25, 85, n)) + 0.6,
                "crp": rng.lognormal(2.0, 1.0, n),
                "ward": rng.permutation(["a"] * 30 + ["b"] * 60),
            }
        )
        tables[site]["sex"] = np.where(tables[site].ward == "a", "m", rng.permutation(["f", "m"] * 45))
    rare = tables["north"]
    rare.loc[[3, 4, 5, 6], "age"] = [60.2, 40.1, 40.4, 96.6]
    rare.loc[rare.index[rare.ward == "a"][0], "sex"] = "f"
    tables["south"].loc[tables["south"].index[tables["south"].ward == "a"][:9], "sex"] = "f"
    return tables


TOGETHER = [
    ("crp ~ I(age > 60.15) + I(age > 60.25)", {"family": "gamma"}),
    ("crp ~ 0 + I(age > 60.15) + I(age > 60.25)", {"family": "gamma"}),
    ("died ~ ward * sex", {}),
    ("died ~ crp:minimum(age, 60.15) + crp:minimum(age, 60.2) + crp:minimum(age, 60.25)", {}),
    ("died ~ log(crp) * (minimum(age, 60.15) + minimum(age, 60.2) + minimum(age, 60.25))", {}),
    # a pair of minima, and what is the same above both
    ("died ~ minimum(age, 60.15) + minimum(age, 60.25) + I(age > 60.25)", {}),
    ("died ~ I((age / 100) ** 40)", {}),
    ("died ~ log(crp) + I(age ** 3) + I((age / 100) ** 40)", {}),
    # two persons
    ("died ~ I(age > 40.05) + I(age > 40.45)", {}),
    ("died ~ I((age > 40.05) * crp) + I((age > 40.45) * crp)", {}),
    # means that leave before the columns of a formula
    ("died ~ scale(I((age > 60.15) * crp)) + center(I((age > 60.25) * crp))", {}),
    # other predictors, a baseline in place of an intercept, and effects of groups
    ("grade ~ I(age > 60.15) + I(age > 60.25)", {"family": "categorical"}),
    ("grade ~ ward * sex", {"family": families.Ordinal(["i", "ii", "iii"])}),
    ("surv(crp, died) ~ ward * sex", {"family": "cox"}),
    ("died ~ I(age > 60.15) + (I(age > 60.25) | site)", {}),
]


@pytest.mark.parametrize(("formula", "options"), TOGETHER)
def test_columns_that_single_out_rows_together_are_refused_before_anything_is_summed(formula, options, monkeypatch):
    summed = []
    monkeypatch.setattr(accord.models.formula, "means_and_sds", lambda *given: summed.append(given))
    monkeypatch.setattr(accord.models.tables, "means_and_sds", lambda *given: summed.append(given))
    study = accord.data.as_study(patients(), formula=formula, policy=accord.data.Policy())
    with pytest.raises(accord.base.errors.DataError) as caught:
        glm(study, formula, **{"family": "bernoulli", **options})
    # no term, row or cell
    assert str(caught.value) == (
        "north: refused, together the terms of the formula single out fewer than 3 rows, the floor of the site. Leave "
        "out an interaction, a cut-off or a power, or take log(x) of a column with a few large values. Its "
        'administrator may allow it (rare = "warn" in its policy)'
    )
    assert not summed


@pytest.mark.parametrize(
    "formula",
    [
        "died ~ age + log(crp) + ward + sex",
        "died ~ age + I(age ** 2) + I(age > 60)",
        "died ~ minimum(age, 60.25) + log(crp) * I(age > 50)",
        "died ~ scale(age) * sex + ward + (1 + age | site)",
        # three persons, and columns that are one
        "died ~ I(age > 40.05) + I(age > 40.65) + log(crp)",
        "died ~ age + I(2 * age) + ward + I(ward == 'b')",
    ],
)
@pytest.mark.filterwarnings("ignore:the columns of .* are collinear")
def test_usual_columns_together_pass(formula):
    tables = patients()
    tables["north"].loc[[6, 7], "age"] = [70.6, 40.2]
    glm(accord.data.as_study(tables, formula=formula, policy=accord.data.Policy()), formula, "bernoulli")


def test_own_tables_without_a_policy_and_a_laxer_policy_only_warn():
    formula, text = "died ~ ward * sex", "north: together the terms of the formula single out fewer than 3 rows"
    for options in ({}, {"policy": accord.data.Policy(rare="warn")}):
        with pytest.warns(UserWarning, match=text) as caught:
            glm(accord.data.as_study(patients(), **options), formula, "bernoulli")
        assert len(caught) == 1 and caught[0].filename == __file__
    glm(accord.data.as_study(patients(), policy=accord.data.Policy.none()), formula, "bernoulli")


def test_files_have_the_floor_of_all_columns(tmp_path):
    files = [tmp_path / f"{site}.csv" for site in patients()]
    for file, table in zip(files, patients().values(), strict=True):
        table.to_csv(file, index=False)
    with pytest.raises(accord.base.errors.DataError, match="north: refused, together the terms"):
        glm(accord.data.study(files), "died ~ ward * sex", "bernoulli")
    (tmp_path / "policy.toml").write_text("cells = 1\n")
    glm(accord.data.study(files), "died ~ ward * sex", "bernoulli")


def test_too_many_columns_are_refused_as_such():
    rng = np.random.default_rng(0)
    tables = [{"y": rng.normal(size=12), **{f"x{k}": rng.normal(size=12) for k in range(11)}} for _ in range(2)]
    formula = "y ~ " + " + ".join(f"x{k}" for k in range(11))
    text = "agent 0: 1[23] parameters are more than 0.1 of the rows"
    for options in ({}, {"policy": accord.data.Policy()}):
        with pytest.raises(accord.base.errors.DataError, match=text):
            glm(accord.data.as_study(tables, **options), formula)


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 4])
def test_what_columns_single_out_together(rows):
    rng = np.random.default_rng(1)
    first, last = np.zeros(60), rng.normal(size=60)
    first[:30] = 1.0
    second = first.copy()
    second[:rows] = 0.0
    # units that differ by more than float64 holds in squares
    design = np.column_stack([1e-200 * first, 1e200 * second, last])
    for cells in (1, 2, 3, 5):
        # four rows in one cell pass also if the floor is higher
        found = accord.data.Policy(cells=cells).singles_out_together(design)
        assert found is (0 < rows < min(cells, 3))
    assert not accord.data.Policy().singles_out_together(np.empty((60, 0)))


def test_two_rows_are_found_as_by_all_pairs():
    rng = np.random.default_rng(2)
    found = 0
    for _ in range(60):
        rows, columns = rng.integers(12, 40), rng.integers(1, 4)
        design = rng.lognormal(0.0, rng.uniform(0.5, 2.5), (rows, columns))
        design[:, 0] = np.arange(rows) < 2
        design[rng.random(rows) < 0.2, 0] += rng.normal(scale=0.2)
        whole = np.column_stack([np.ones(rows), design])
        hat = whole @ np.linalg.pinv(whole)
        pairs = [np.linalg.eigvalsh(hat[np.ix_(two, two)])[-1] for two in map(list, combinations(range(rows), 2))]
        expected = max(pairs) > 0.99 or np.diag(hat).max() > 0.9
        assert accord.data.Policy().singles_out_together(design) is bool(expected)
        found += expected
    assert 10 < found < 50


def test_overlap_and_priors_are_silent_about_separation(table):
    one = np.arange(60.0) % 2
    apart = table.assign(one=one, sign=np.where(one > 0, 1.0 + table.z, -table.z))
    glm(sites(apart), "one ~ sign", "bernoulli")
    glm(sites(apart.assign(sign=table.x)), "one ~ sign", "bernoulli", {"sign": priors.Flat()})
    glm(sites(apart.assign(many=one * 3)), "many ~ sign", "poisson", {"sign": priors.Flat()})


def test_errors_about_collinear_columns_name_a_level_of_one_site(table):
    lone = table.assign(only=1.0 * (np.arange(60) < 10), g=np.where(np.arange(60) < 10, "new", table.h))
    with pytest.warns(UserWarning, match=r"the columns of Intercept, g\[p\], g\[q\], only are collinear"):
        glm(sites(lone), "y ~ g + only")
    with pytest.raises(ValueError, match=r"only .*collinear \(possibly because only s0 has a level"):
        glm(sites(lone), "y ~ g + only", "normal", flat())


def test_linear_regression_without_a_noise_scale_has_it_as_a_parameter(table):
    X, y = np.c_[np.ones(60), table.x], table.y.to_numpy()
    post = accord.models.linear_regression([(X[i::3], y[i::3]) for i in range(3)], prior_variance=4.0, names=["a", "b"])
    assert post.names == ("a", "b", "sigma") and not post.quadratic
    params = {"coefficients": np.array([0.4, -0.7]), "sigma": np.array(1.3)}
    expected = scipy.stats.norm.logpdf(y, X @ params["coefficients"], 1.3).sum()
    expected += scipy.stats.norm.logpdf(params["coefficients"], 0, 2).sum() + scipy.stats.halfcauchy.logpdf(
        1.3, scale=2
    )
    likelihood = log_likelihood(post, params)[0]
    with jax.enable_x64(True):
        prior = float(jax.jit(post._log_prior)(jax.tree.map(jnp.asarray, params)))
    np.testing.assert_allclose(likelihood + prior, expected, rtol=1e-10)


@pytest.mark.slow
def test_the_example_of_eight_cities_finds_the_pooled_odds_ratio(tmp_path):
    """The posterior of the odds ratio agrees with the Mantel-Haenszel estimate from the same counts."""
    from accord.cli.config import load

    with pytest.warns(UserWarning, match="rows with a missing cell are left out"):
        job = load(Path(__file__).parents[1] / "examples" / "smoking" / "config.toml", output=tmp_path)
    run = job.draw(progress=False)
    counts = sm.datasets.china_smoking.load_pandas().data
    # smoking by cancer
    tables = [row.to_numpy().reshape(2, 2) for _, row in counts.iterrows()]
    exact = sm.stats.StratifiedTable(tables)
    draws = run.average[..., run.names.index("smoker[yes]")]
    low, high = np.exp(np.quantile(draws, [0.025, 0.975]))
    assert run.certificate.holds and low < exact.oddsratio_pooled < high
    assert abs(draws.mean() - exact.logodds_pooled) < 0.5 * draws.std()
    # effects of cities, which the run does not save
    own = accord.latents(run, job.post, job.network)
    assert own[3][next(iter(own[3]))].shape[:2] == (4, 1000)


# --- spelling ---


def spelt(formula):
    rng = np.random.default_rng(0)
    tables = [{"x": rng.normal(50, 5, 60), "z": rng.normal(size=60), "y": rng.normal(size=60)} for _ in range(2)]
    return tables, glm(tables, formula, priors={"coefficients": priors.Flat()})


@pytest.mark.parametrize(
    "term, name, values",
    [
        ("I((x-50)**2)", "I((x - 50) ** 2)", lambda x, z: (x - 50) ** 2),
        ("I(x - (z - 1))", "I(x - (z - 1))", lambda x, z: x - (z - 1)),
        ("log((x+10)*2)", "log((x + 10) * 2)", lambda x, z: np.log((x + 10) * 2)),
        ("exp(-(z**2))", "exp(-z ** 2)", lambda x, z: np.exp(-(z**2))),
        ("I((-z)**2)", "I((-z) ** 2)", lambda x, z: z**2),
        ("I(-2*z**2)", "I(-2 * z ** 2)", lambda x, z: -2 * z**2),
        ("{x - (z - 1)}", "I(x - (z - 1))", lambda x, z: x - (z - 1)),
    ],
)
def test_terms_keep_their_spelling_and_values(term, name, values):
    tables, post = spelt(f"y ~ {term} + z")
    assert post.names == ("Intercept", name, "z", "sigma")
    np.testing.assert_allclose(post.shards[0]["design"][:, 1], values(tables[0]["x"], tables[0]["z"]))


def test_priors_are_named_as_terms_are_written():
    tables = [{"x": np.linspace(40.0, 60.0, 60), "y": np.linspace(0.0, 1.0, 60) ** 2} for _ in range(2)]
    given = {"I((x-50)**2)": priors.Normal(0.0, 3.0)}
    assert glm(tables, "y ~ I((x - 50)**2)", priors=given).priors["I((x - 50) ** 2)"] == priors.Normal(0.0, 3.0)


@pytest.mark.parametrize("term", ["exp(-z**2)", "I(10 - -z**2)", "I(2**z**2)", "offset(-z ** 2)", "I(-log(x)**2)"])
def test_ambiguous_powers_raise(term):
    with pytest.raises(ValueError, match="write parentheses"):
        spelt(f"y ~ x + {term}")


def test_two_functions_of_one_name_are_refused():
    with pytest.raises(ValueError, match="formulae cannot distinguish"):
        spelt("y ~ I((x-50)**2) + I(x-50**2)")


@pytest.mark.parametrize("name", ["x", "coefficients", "Intercept", "sigma"])
def test_uniform_priors_raise(name):
    tables = [{"x": np.linspace(0.0, 1.0, 60), "y": np.linspace(0.0, 1.0, 60) ** 2} for _ in range(2)]
    with pytest.raises(ValueError, match="have no such limits"):
        glm(tables, "y ~ x", priors={name: priors.Uniform(0.5, 1.0)})
    with pytest.raises(ValueError, match="low must be below high"):
        priors.Uniform(1.0, 1.0)


@pytest.mark.parametrize("far", [1e6, 1e8])
def test_a_column_far_from_zero_separates_nothing(far):
    rng = np.random.default_rng(0)
    x = rng.standard_normal(240)
    frame = pd.DataFrame({"x": far + x, "y": (rng.random(240) < 1.0 / (1.0 + np.exp(-x))).astype(int)})
    with pytest.raises(ValueError, match=r"Intercept, x are not ident.* or centre a column far from 0, as center\(x\)"):
        glm(sites(frame), "y ~ x", "bernoulli", flat())
    post = glm(sites(frame), "y ~ x", "bernoulli", {"x": priors.Flat()})
    run = accord.sample(post, accord.Network.complete(3), draws=500, seed=0)
    assert run.certificate.holds
    fitted = sm.Logit(frame.y.to_numpy(), sm.add_constant(frame.x.to_numpy() - far)).fit(disp=False)
    np.testing.assert_allclose(run.points.mean[1], fitted.params[1], atol=0.3 * fitted.bse[1])
    np.testing.assert_allclose(run.points.sd[1], fitted.bse[1], rtol=0.1)


def test_a_function_of_a_column_with_one_large_value_is_allowed():
    rng = np.random.default_rng(0)
    sites = {
        name: {"lab": np.append(rng.lognormal(size=60), 50_000.0), "y": rng.normal(size=61)} for name in ("a", "b")
    }
    for term in ("log(lab)", "minimum(lab, 20)", "I(lab > 2)", "scale(log(lab))"):
        assert glm(sites, f"y ~ {term}", "normal").names[1:] != ()
    for term in ("lab", "scale(lab)", "log(lab + y ** 2)", "maximum(lab, y)"):
        with pytest.raises(accord.base.errors.DataError, match="fewer than 3 rows differ"):
            glm(sites, f"y ~ {term}", "normal")


def test_a_text_column_of_the_name_of_the_sites_may_stand_beside_effects_of_sites():
    rng = np.random.default_rng(0)
    sites = {
        name: {"site": np.full(40, name), "x": rng.normal(size=40), "y": rng.normal(size=40)}
        for name in ("a", "b", "c")
    }
    assert glm(sites, "y ~ x + (1 | site)", "normal").names[:2] == ("Intercept", "x")


def test_a_response_among_the_terms_is_refused():
    rng = np.random.default_rng(0)
    sites = [{"x": rng.normal(size=40), "y": rng.normal(size=40)} for _ in range(2)]
    with pytest.raises(ValueError, match="the response y of the formula 'y ~ x [+] y' is also among its terms"):
        glm(sites, "y ~ x + y", "normal")


def test_a_policy_is_no_mapping():
    with pytest.raises(TypeError, match=r"policy must be a Policy, such as accord.data.Policy"):
        accord.data.as_study([{"x": np.arange(20.0)}] * 2, policy={"rare": "warn"})


def test_a_policy_of_files_is_no_mapping(tmp_path):
    (tmp_path / "a.csv").write_text("x\n1\n2\n")
    with pytest.raises(TypeError, match=r"policy must be a Policy, such as accord.data.Policy"):
        accord.data.study([tmp_path / "a.csv"], policy={"rare": "warn"})


def test_notes_name_references_scaled_columns_and_priors():
    rng = np.random.default_rng(0)
    tables = {
        site: {"y": rng.integers(0, 2, 80), "dose": rng.choice(["low", "mid", "top"], 80), "age": rng.normal(50, 9, 80)}
        for site in ("north", "south")
    }
    formulas = {
        "y ~ scale(age) + dose": "Reference levels: dose 'low'.",
        "y ~ scale(age) + C(dose, Treatment('mid'))": "Reference levels: dose 'mid'.",
    }
    for formula, reference in formulas.items():
        post = glm(tables, formula, "bernoulli")
        sd = post.agreed.sds["age"]
        assert post.info.notes == (reference, f"Coefficients are per standard deviation of the column: age {sd:.3g}.")
    # with a coefficient for each level there is no reference level
    assert glm(tables, "y ~ 0 + dose", "bernoulli").info.notes == ()
    run = accord.sample(post, accord.Network.complete(2), draws=100)
    notes = notes_of(run)
    assert notes[:2] == post.info.notes and notes[2].startswith(
        "Priors: Intercept Normal(loc=0, scale=2.5); scale(age)"
    )
    assert "value at the mean of all columns" in notes[3]


def two_sites(**columns):
    """Tables of two sites with 60 rows each: a response y, a column x, and other columns."""
    rng = np.random.default_rng(3)
    return {
        site: {"y": rng.normal(size=60), "x": rng.normal(size=60), **{name: own(rng) for name, own in columns.items()}}
        for site in ("north", "south")
    }


def test_columns_that_no_formula_names_are_suggested():
    tables = two_sites(weight=lambda rng: np.ones(60), xray=lambda rng: rng.normal(size=60))
    with pytest.raises(ValueError, match="no site has a column 'weigth', did you mean 'weight'"):
        glm(tables, "y ~ x", weights="weigth")
    with pytest.raises(ValueError, match="no site has a column 'xry', did you mean 'xray'"):
        glm(tables, "y ~ xry")


@pytest.mark.parametrize(("formula", "value"), [("I(n == 9) ~ x", 0), ("I(n < 9) ~ x", 1)])
def test_a_response_of_0_and_1_that_is_the_same_everywhere_is_warned_of(formula, value):
    tables = two_sites(n=lambda rng: rng.integers(0, 4, 60))
    with pytest.warns(UserWarning, match=f"is {value} in all rows of all sites: the posterior depends on the prior"):
        glm(tables, formula, "bernoulli")


@pytest.mark.parametrize(
    ("terms", "named"),
    [
        ("x + g + I(2 * x)", "x, I(2 * x)"),
        ("x + g + I(g == 'b')", "g[b], I(g == 'b')"),
        ("x + g + I(g == 'a')", "Intercept, g[b], g[c], I(g == 'a')"),
        ("0 + x + g + I(g != 'a')", "g[b], g[c], I(g != 'a')"),
    ],
)
def test_collinear_columns_are_warned_of_by_name(terms, named):
    tables = two_sites(g=lambda rng: rng.permutation(["a", "b", "c"] * 20))
    with pytest.warns(UserWarning, match="are collinear, so only priors identify") as found:
        glm(tables, f"y ~ {terms}")
    assert len(found) == 1
    assert str(found[0].message).startswith(f"the columns of {named} are collinear")


@pytest.mark.parametrize("far", [0.0, 1e4, 1e8])
def test_powers_and_columns_far_from_zero_are_not_collinear(far):
    tables = two_sites(z=lambda rng: far + rng.normal(size=60))
    glm(tables, "y ~ x + z")
    if far < 1e8:
        glm(tables, "y ~ x + z + I(z ** 2)")


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        (
            "y ~ I(x * 10 ** 30)",
            r"deviation of I\(x .* is .*e\+\d+, and must be between 1e-15 and 1e\+15: change the unit",
        ),
        ("y ~ I(x / 10 ** 60)", r"deviation of I\(x .* is .*e-6\d, and must be between"),
        ("y ~ I(x * 10 ** 200)", r"deviation of I\(x .* is inf, and must be between"),
        ("I(y / 10 ** 40) ~ x", "deviation of the response I.*e-4[01], and must be between"),
        ("y ~ x + (I(x * 10 ** 30) | site)", r"deviation of (the effect of )?I\(x"),
        ("y ~ I(x + 10 ** 13)", r"I\(x \+ 10 \*\* 13\) has the mean 1e\+13 and .*: subtract a constant"),
        ("I(y + 10 ** 13) ~ x", r"the response I\(y .*\) has the mean 1e\+13 and .*: subtract a constant"),
        ("I(y / 10 ** 12) ~ I(x * 10 ** 12)", "the response .* varies by .* and I.* by .*: change the unit of one"),
    ],
)
def test_columns_of_extreme_scales_are_refused_before_anything_is_drawn(formula, message):
    with pytest.raises(ValueError, match=message):
        glm(two_sites(), formula)


@pytest.mark.parametrize(
    ("formula", "family"),
    [
        ("y ~ I(x * 10 ** 12)", "normal"),
        ("y ~ I(x / 10 ** 12)", "normal"),
        ("I(y * 10 ** 12) ~ x", "normal"),
        ("I(y / 10 ** 12) ~ x", "normal"),
        ("I((y / 10 ** 6) ** 2) ~ x", "gamma"),
        ("y ~ I(x + 10 ** 9)", "normal"),
        ("I(y + 10 ** 9) ~ x", "normal"),
    ],
)
def test_columns_of_large_and_small_units_pass(formula, family):
    assert glm(two_sites(), formula, family).dim == 3


def test_a_column_of_the_name_of_the_sites_with_other_groups_is_refused():
    message = "means the sites of the study, north, south, and the table has a column site with other"
    for tables in (
        two_sites(site=lambda rng: rng.permutation(["u", "v"] * 30)),
        two_sites(site=lambda rng: np.full(60, "u")),
    ):
        for effects in ("(1 | site)", "(1 | site:ward)"):
            own = {site: {**table, "ward": np.arange(60) % 5} for site, table in tables.items()}
            with pytest.raises(ValueError, match=f"{message} groups: rename or remove the column"):
                glm(own, f"y ~ x + {effects}")


def test_filled_groups_are_warned_of_and_filled_responses_and_weights_are_refused():
    def with_blanks(values):
        return lambda rng: np.where(np.arange(60) % 6 == 0, None, values(rng))

    tables = two_sites(
        ward=with_blanks(lambda rng: rng.permutation(["p", "q", "r"] * 20)),
        n=with_blanks(lambda rng: rng.integers(1, 9, 60)),
        count=lambda rng: rng.integers(0, 5, 60),
    )
    study = accord.data.as_study(tables, missing="indicator", formula="y ~ x + (1 | site:ward)")
    with pytest.warns(UserWarning, match="rows without a value of ward form one group, 'missing', at each site"):
        glm(study, "y ~ x + (1 | site:ward)")
    study = accord.data.as_study(tables, missing="indicator", columns=["y", "x", "n", "count"])
    for options, what in (
        ({"formula": "n ~ x"}, "a response"),
        ({"formula": "y ~ x", "weights": "n"}, "weights"),
        ({"formula": "count ~ x", "exposure": "n"}, "an exposure"),
    ):
        message = f"missing cells of n were filled when the study was read, and {what} must not be filled: read the"
        with pytest.raises(ValueError, match=message):
            glm(study, **{"family": "poisson", **options})
    with pytest.warns(UserWarning, match="rows with a missing cell are left out"):
        dropped = accord.data.as_study(tables, missing="drop", columns=["y", "x", "n"])
    assert glm(dropped, "n ~ x", "poisson").dim == 2
