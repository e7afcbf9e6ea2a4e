"""Partly centred effects in the fallback: the map, the choice, and models that declare a hierarchy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import accord
from accord.posterior.coordinates import Coordinates
from accord.samplers import ChEES, Importance
from accord.samplers.by_sums.centring import Centring
from accord.samplers.by_sums.evaluations import expand
from accord.samplers.session import Job, Session

ALONE = accord.Network.empty(1)
Y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
SIGMA = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def normal(x, mean=0.0, sd=1.0):
    return -0.5 * ((x - mean) / sd) ** 2 - jnp.log(sd)


def schools(error=SIGMA, hierarchy="declared"):
    """Eight schools with centred effects: params are mean, log_sd and effect."""

    def log_likelihood(params, rows):
        return normal(rows["y"], params["effect"][rows["school"]], rows["error"])

    def log_prior(params):
        whole = normal(params["mean"], 0.0, 5.0) - jnp.log1p(jnp.exp(2 * params["log_sd"]) / 25) + params["log_sd"]
        return whole + normal(params["effect"], params["mean"], jnp.exp(params["log_sd"])).sum()

    own = {
        "declared": lambda params: {"effect": (params["mean"], jnp.exp(params["log_sd"]))},
        "wrong": lambda params: {"effect": (2.0 + 0.5 * params["mean"], 3.0 * jnp.exp(0.5 * params["log_sd"]))},
        None: None,
    }[hierarchy]
    rows = [{"y": Y[i::2], "school": np.arange(8)[i::2], "error": np.broadcast_to(error, 8)[i::2]} for i in range(2)]
    init = {"mean": 0.0, "log_sd": 0.0, "effect": np.zeros(8)}
    return accord.Posterior(log_likelihood, log_prior, rows, init, hierarchy=own)


def exact(error=SIGMA):
    """Mean and sd of log_sd and of the first effect, by quadrature over log_sd."""
    log_sd = np.linspace(-14.0, 7.0, 4001)
    total = np.exp(2 * log_sd)[:, None] + np.broadcast_to(error, 8) ** 2
    of_mean = 1.0 / (1.0 / 25.0 + (1.0 / total).sum(axis=1))
    mean = of_mean * (Y / total).sum(axis=1)
    log_weight = -0.5 * (np.log(total) + Y**2 / total).sum(axis=1) + 0.5 * mean**2 / of_mean + 0.5 * np.log(of_mean)
    weight = np.exp(log_weight - log_weight.max() - np.log1p(np.exp(2 * log_sd) / 25.0) + log_sd)
    weight /= weight.sum()
    share = (np.broadcast_to(error, 8) ** 2 / total)[:, 0]
    own = share * mean + (1 - share) * Y[0]
    variance = share * np.exp(2 * log_sd) + share**2 * of_mean
    first, center = weight @ log_sd, weight @ own
    return (first, np.sqrt(weight @ log_sd**2 - first**2)), (center, np.sqrt(weight @ (own**2 + variance) - center**2))


def two_levels():
    """Effects of effects: a ~ N(m, s), b ~ N(a, exp(s / 2))."""

    def log_prior(params):
        whole = normal(params["m"]) + normal(params["s"]) + normal(params["a"], params["m"], jnp.exp(params["s"])).sum()
        return whole + normal(params["b"], params["a"], jnp.exp(params["s"] / 2)).sum()

    def hierarchy(params):
        return {"a": (params["m"], jnp.exp(params["s"])), "b": (params["a"], jnp.exp(params["s"] / 2))}

    init = {"a": np.full(2, 0.3), "b": np.zeros(2), "m": 0.5, "s": -1.0}
    return accord.Posterior(
        lambda p, rows: -0.5 * (rows - p["b"][0]) ** 2, log_prior, [np.ones(3)], init, hierarchy=hierarchy
    )


@pytest.mark.parametrize("shares", [(0.0, 0.0), (0.3, 0.8), (1.0, 0.2)])
def test_the_map_is_a_bijection_with_the_right_density(shares):
    """F in z equals F of the posterior at x less the log Jacobian determinant of x(z), by JAX."""
    post = two_levels()
    share = np.array([shares[0]] * 2 + [shares[1]] * 2 + [1.0, 1.0])
    random = np.random.default_rng(0)
    place = Coordinates(random.standard_normal(6), np.eye(6) + 0.2 * random.standard_normal((6, 6)))
    own, z = Centring(post, share, place), random.standard_normal((5, 6))
    np.testing.assert_allclose(own.z(own.x(z)), z, atol=1e-12)
    with jax.enable_x64(True):
        session, x = Session(Job(post, ALONE)), own.x(z[0])
        (values, gradients), expansion = own.slopes(session, z), own.expansion(x, expand(session, x))

    def moved(z):
        y, (a, b) = place.origin + place.factor @ z, shares
        m, s = y[4], y[5]
        first = m + jnp.exp((1 - a) * s) * (y[:2] - a * m)
        second = first + jnp.exp((1 - b) * s / 2) * (y[2:4] - b * first)
        return jnp.concatenate([first, second, y[4:]])

    def potential(z):
        x = moved(z)
        params = {"a": x[:2], "b": x[2:4], "m": x[4], "s": x[5]}
        whole = post._log_prior(params) - 0.5 * 3 * (1.0 - x[2]) ** 2
        return -whole - jnp.linalg.slogdet(jax.jacobian(moved)(z))[1]

    with jax.enable_x64(True):
        expected = [jax.value_and_grad(potential)(jnp.asarray(one)) for one in z]
        np.testing.assert_allclose(own.x(z), [moved(one) for one in z], atol=1e-12)
        np.testing.assert_allclose(expansion.hessian, jax.hessian(potential)(jnp.asarray(z[0])), rtol=1e-8, atol=1e-8)
    # F of accord has no constants of the volume of `place`
    volume = np.linalg.slogdet(place.factor)[1]
    np.testing.assert_allclose(values, [float(f) + volume for f, _ in expected], rtol=1e-10)
    np.testing.assert_allclose(gradients, [np.asarray(g) for _, g in expected], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(expansion.value, values[0], rtol=1e-10)
    np.testing.assert_allclose(expansion.gradient, gradients[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("error, low, high", [(0.1, 0.95, 1.0), (100.0, 0.0, 0.05)])
def test_effects_are_centred_where_rows_know_more_than_the_prior(error, low, high):
    post = schools(error)
    random, x = np.random.default_rng(0), np.zeros((512, 10))
    # flat order: effect, log_sd, mean
    x[:, 8:] = random.standard_normal((512, 2)) * 0.3
    x[:, :8] = x[:, 9:] + np.exp(x[:, 8:9]) * random.standard_normal((512, 8))
    place = Coordinates(np.zeros(10), np.eye(10))
    session = Session(Job(post, accord.Network.complete(2)))
    with jax.enable_x64(True):
        fitted, (z, values, gradients) = Centring.none(post, place).fitted(session, x)
        again = fitted.slopes(session, z)
    assert ((low <= fitted.share[:8]) & (fitted.share[:8] <= high)).all() and (fitted.share[8:] == 1.0).all()
    np.testing.assert_allclose(fitted.x(z), x, atol=1e-9)
    np.testing.assert_allclose(values, again[0], rtol=1e-9)
    np.testing.assert_allclose(gradients, again[1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("error", [SIGMA, 1.0])
def test_centred_effects_are_right_and_certified(error):
    run = accord.sample(schools(error), accord.Network.complete(2), ChEES(), seed=0)
    assert run.certificate.holds and run.traffic.sums < 1300
    draws = run.average.reshape(-1, 10)
    for column, (mean, sd) in zip((draws[:, 8], draws[:, 0]), exact(error), strict=True):
        assert abs(column.mean() - mean) < 0.1 * sd and abs(column.std() / sd - 1.0) < 0.1


def test_centred_effects_without_a_hierarchy_are_refused():
    with pytest.warns(UserWarning, match="not certified: .*chains move .* times as often"):
        accord.sample(schools(hierarchy=None), accord.Network.complete(2), ChEES(), seed=0)


@pytest.mark.long
def test_a_wrong_hierarchy_costs_sums_and_not_correctness():
    run = accord.sample(schools(1.0, "wrong"), accord.Network.complete(2), ChEES(), seed=0)
    assert run.certificate.holds
    mean, sd = exact(1.0)[1]
    draws = run.average.reshape(-1, 10)[:, 0]
    assert abs(draws.mean() - mean) < 0.1 * sd and abs(draws.std() / sd - 1) < 0.1


@pytest.mark.parametrize(
    "mean, between, within", [(1_700.0, 15.0, 25.0), (1e5, 15.0, 25.0), (5.0, 300.0, 2.0), (0.5, 0.3, 1e-3)]
)
def test_chains_find_groups_far_from_init(mean, between, within):
    """Rows of 12 groups, whose means and sds are far from their init of 0 and 1."""
    random = np.random.default_rng(0)
    group = np.repeat(np.arange(12), random.integers(5, 40, 12))
    y = (mean + between * random.standard_normal(12))[group] + within * random.standard_normal(len(group))

    def log_prior(params):
        sds = jnp.log1p((params["between"] / 100) ** 2) + jnp.log1p((params["within"] / 100) ** 2)
        return (
            normal(params["mean"], 0.0, 1e6) - sds + normal(params["effect"], params["mean"], params["between"]).sum()
        )

    post = accord.Posterior(
        lambda params, rows: normal(rows[:, 0], params["effect"][rows[:, 1].astype(int)], params["within"]),
        log_prior,
        [np.stack([y, group], axis=1)],
        {"mean": 0.0, "between": 1.0, "within": 1.0, "effect": np.zeros(12)},
        constraints={"between": "positive", "within": "positive"},
        hierarchy=lambda params: {"effect": (params["mean"], params["between"])},
    )
    assert repr(post) == "<Posterior: 15 parameters, 1 agent, 237 rows, a hierarchy of effect>"
    run = accord.sample(post, ALONE, ChEES(), seed=0)
    assert run.certificate.holds and run.traffic.sums < 400
    draws = dict(zip(post.names, run.average.reshape(-1, 15).T, strict=True))
    assert abs(draws["within"].mean() / within - 1.0) < 0.2
    for k in range(12):
        own = y[group == k]
        assert abs(draws[f"effect[{k}]"].mean() - own.mean()) < 4.0 * within / len(own) ** 0.5


def test_chains_stay_near_where_the_log_density_is_nearly_linear():
    """Three densities sech(x - 100)**2 from an init of 0, where the curvature of F is e**-200."""
    post = accord.Posterior(
        lambda x, rows: 0.0 * rows[:, 0],
        lambda x: -2.0 * jnp.logaddexp(x - 100.0, 100.0 - x).sum(),
        [np.ones((3, 1))],
        np.zeros(3),
    )
    run = accord.sample(post, ALONE, ChEES(), seed=0)
    draws = run.average.reshape(-1, 3)
    assert run.certificate.holds and np.abs(draws.mean(axis=0) - 100.0).max() < 0.1
    np.testing.assert_allclose(draws.std(axis=0), np.pi / 12**0.5, rtol=0.1)


def test_chains_far_away_do_not_spoil_the_coordinates():
    post, x = schools(), np.zeros((64, 10))
    x[:, 8] = np.concatenate([[1e4, -1e4], np.linspace(-1.0, 1.0, 62)])
    x[:, :8] = np.random.default_rng(0).standard_normal((64, 8))
    with jax.enable_x64(True):
        session, own = (
            Session(Job(post, accord.Network.complete(2))),
            Centring.none(post, Coordinates(x[9], np.eye(10))),
        )
        fitted, _ = own.fitted(session, own.z(x))
    assert (fitted.share[:8] < 0.1).all() and np.abs(np.log(np.diag(fitted.place.factor)[:9])).max() < 2.0


def test_a_hierarchy_does_not_change_importance():
    runs = [accord.sample(schools(0.1, kind), accord.Network.complete(2), Importance()) for kind in ("declared", None)]
    np.testing.assert_array_equal(*(run.average for run in runs))


@pytest.mark.parametrize(
    "hierarchy, message",
    [
        (lambda p: {"efect": (0.0, 1.0)}, "variable in hierarchy"),
        (lambda p: {"sd": (0.0, 1.0)}, "hierarchy has sd, which has a constraint"),
        (lambda p: {"effect": (jnp.zeros(3), 1.0)}, r"the location of effect has shape \(3,\), and effect has \(2,\)"),
        (lambda p: {"effect": (jnp.roll(p["effect"], 1), p["sd"])}, "the prior of effect depends on itself"),
        (lambda p: {"effect": (p["b"], 1.0), "b": (p["effect"].sum(), 1.0)}, "the prior of b and of effect depends"),
        (lambda p: {"effect": (jnp.nan_to_num(p["effect"][0]), 1.0)}, "the prior of effect depends on itself"),
        (lambda p: {"effect": (0.0, 1.0 + (p["effect"].max() > 2.0))}, "the prior of effect depends on itself"),
        (lambda p: {"effect": (0.0, jnp.log(p["sd"]))}, "the scale of effect must be finite and positive, found 0"),
        (lambda p: {"effect": (0.0, None)}, "dict of pairs.*found tuple for effect"),
        (lambda p: [("effect", 0.0, p["sd"])], "dict of pairs"),
        (lambda p: {"effect": p["sd"]}, "dict of pairs.*for effect"),
        (lambda p: p["sd"], "dict of pairs"),
        (lambda p: {"effect": (0.0, float(p["sd"]))}, "hierarchy must be written in jax.numpy"),
    ],
)
def test_a_wrong_hierarchy_is_an_error_before_anything_runs(hierarchy, message):
    with pytest.raises((ValueError, TypeError), match=message):
        accord.Posterior(
            lambda p, rows: -((rows - p["effect"][0]) ** 2),
            lambda p: -jnp.sum(p["effect"] ** 2) - p["sd"] - p["b"] ** 2,
            [np.ones(3)],
            {"effect": np.zeros(2), "sd": 1.0, "b": 0.0},
            constraints={"sd": "positive"},
            hierarchy=hierarchy,
        )


def test_numpyro_models_declare_their_effects():
    import numpyro
    import numpyro.distributions as dist

    def model(y, group):
        mean, sd = numpyro.sample("mean", dist.Normal(0, 5)), numpyro.sample("sd", dist.HalfCauchy(5))
        numpyro.sample("fixed", dist.Normal(0, 1))
        numpyro.sample("heavy", dist.StudentT(4, 0, sd))
        numpyro.sample("positive", dist.LogNormal(mean, sd))
        numpyro.sample("joint", dist.MultivariateNormal(jnp.zeros(2), sd * jnp.eye(2)))
        with numpyro.plate("groups", 4):
            effect = numpyro.sample("effect", dist.Normal(mean, sd))
            inner = numpyro.sample("inner", dist.Normal(effect, 2.0))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(inner[group], 1.0), obs=y)

    post = accord.from_numpyro(model, [{"y": np.zeros(4), "group": np.arange(4)}])
    params = {name: jnp.asarray(value) for name, value in post._params.items()}
    found = post.hierarchy({**params, "mean": jnp.asarray(2.0), "sd": jnp.asarray(3.0), "effect": jnp.arange(4.0)})
    assert set(found) == {"effect", "inner"}
    for name, location, scale in (("effect", 2.0, 3.0), ("inner", np.arange(4.0), 2.0)):
        np.testing.assert_allclose(found[name][0], np.broadcast_to(location, 4), atol=1e-5)
        np.testing.assert_allclose(found[name][1], scale, rtol=1e-5)
