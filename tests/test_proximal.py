"""Proximal steps by closed form and Newton's method, with and without Hessians at init, tested for optimality."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from tables import walk

import accord
from accord.engines.build import build_problem
from accord.posterior.curvature import HESSIAN_DIM, Curvature
from accord.samplers import DADMMS, proximal
from accord.samplers.protocol import Bound


def agent_of(post):
    """The first agent of a posterior."""
    problem = build_problem(post, accord.Network.ring(post.num_agents), Bound(DADMMS(1.0)), 0)
    agents = problem.agents(0)
    return type(agents)(
        index=agents.index[0],
        degree=agents.degree[0],
        shard=jax.tree.map(lambda leaf: leaf[0], agents.shard),
        own=agents.own,
        round=agents.round,
        facts=agents.facts,
        shared=agents.shared,
        potential=agents.potential,
    )


def regression(model, dim=4, rows=12, agents=2):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((agents, rows, dim))
    y = X[..., 0] + rng.standard_normal((agents, rows))
    data = {"linear_regression": y, "logistic_regression": y > 0, "poisson_regression": np.round(np.abs(y))}[model]
    known = {"noise_scale": 1.0} if model == "linear_regression" else {}
    return getattr(accord.models, model)([(x, t.astype(float)) for x, t in zip(X, data, strict=True)], **known)


POSTERIORS = {
    "linear": lambda: regression("linear_regression"),
    "logistic": lambda: regression("logistic_regression"),
    "poisson": lambda: regression("poisson_regression"),
    "power-4": lambda: accord.models.power(np.ones((2, 4)), 4.0),
    "power-1.5": lambda: accord.models.power(np.ones((2, 4)), 1.5),
}


def solved():
    for row, target in enumerate(POSTERIORS):
        for column, known in enumerate((True, False)):
            for turn, strength in enumerate((0.1, 1.0, 100.0)):
                for x64 in (False, True):
                    # the quick tests take every target and width once, with and without curvature, at cyclic strengths
                    marks = () if (row + column + x64) % 3 == turn else pytest.mark.slow
                    yield pytest.param(target, known, strength, x64, marks=marks)


_solve = jax.jit(proximal._newton)


def by_iterations(agent):
    """The agent without the closed form of its quadratic potential, but with its Hessian."""
    form = agent.shard.quadratic
    if form is None:
        return agent
    curvature = Curvature(form.eigenvalues, form.eigenvectors)
    return replace(agent, shard=agent.shard._replace(quadratic=None, curvature=curvature))


def without_curvature(agent):
    return replace(agent, shard=agent.shard._replace(curvature=None))


@jax.jit
@jax.value_and_grad
def _value_and_gradient(x, agent, center, strength):
    return agent.value(x) + strength * jnp.sum((x - center) ** 2) / 2


@pytest.mark.parametrize(("target", "known", "strength", "x64"), list(solved()))
@pytest.mark.long_from(1)
def test_newton_reaches_the_stated_tolerance(target, known, strength, x64):
    tolerance, center = 1e-6 if x64 else 1e-4, np.array([2.0, -1.0, 0.5, 1.0])
    with jax.enable_x64(x64):
        agent = by_iterations(agent_of(POSTERIORS[target]()))
        agent = agent if known else without_curvature(agent)
        found, error, _ = _solve(agent, center, strength, np.zeros(4), tolerance)
        assert error <= tolerance
    # the reference: the same problem in double precision by another library
    with jax.enable_x64(True):
        exact_agent = agent_of(POSTERIORS[target]())
        truth = scipy.optimize.minimize(
            lambda x: jax.tree.map(np.asarray, _value_and_gradient(x, exact_agent, center, strength)),
            np.asarray(found, np.float64),
            jac=True,
            method="BFGS",
            options={"gtol": 1e-11},
        ).x
    assert np.linalg.norm(np.asarray(found, np.float64) - truth) <= 3 * tolerance


def test_closed_form_is_the_minimum():
    post = regression("linear_regression")
    agent, center = agent_of(post), jnp.arange(4.0)
    point, error, _ = proximal.proximal_point(
        agent, center, jnp.asarray(3.0), start=center, tolerance=jnp.asarray(1e-9)
    )
    np.testing.assert_allclose(agent.gradient(point) + 3.0 * (point - center), 0.0, atol=1e-4)
    assert error == 0.0


def test_no_hessian_of_many_parameters_is_formed():
    wide = accord.models.power(np.ones((2, HESSIAN_DIM + 1)), 4.0)
    agent = agent_of(wide)
    assert agent.shard.curvature is None
    center = jnp.full(wide.dim, 2.0)
    step = lambda c: proximal.proximal_point(agent, c, jnp.asarray(5.0), start=c, tolerance=jnp.asarray(1e-4))  # noqa: E731
    assert f"{wide.dim},{wide.dim}" not in str(jax.make_jaxpr(step)(center))
    point, error, _ = jax.jit(step)(center)
    assert error == 0.0
    # 4 (x - 1)^3 + 5 (x - 2) = 0 in every coordinate
    residual = 4 * (np.asarray(point, float) - 1) ** 3 + 5 * (np.asarray(point, float) - 2)
    np.testing.assert_allclose(residual, 0.0, atol=5e-3)


def scaled(scales, rows=60):
    """A logistic regression whose columns have these scales."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2, rows, len(scales)))
    y = X[..., 0] + rng.standard_normal((2, rows)) > 0
    return accord.models.logistic_regression([(x * scales, t.astype(float)) for x, t in zip(X, y, strict=True)])


def distance(agent, point, center, strength):
    """Distance of a point to the proximal point, by one Newton step in double precision."""
    with jax.enable_x64(True):
        x = jnp.asarray(np.asarray(point, float))
        slope = agent.gradient(x) + strength * (x - center)
        return float(jnp.linalg.norm(jnp.linalg.solve(agent.hessian(x) + strength * jnp.eye(x.size), slope)))


@pytest.mark.parametrize("strength", [1e-2, 4.0])
@pytest.mark.long
def test_units_of_columns_cost_neither_products_nor_accuracy(strength):
    spent = []
    for scales in (np.ones(8), np.tile([1.0, 1e4], 4)):
        agent, center = agent_of(scaled(scales)), jnp.linspace(-1.0, 1.0, 8) / scales
        found = jax.jit(proximal.proximal_point)(agent, center, strength, start=center, tolerance=1e-4)
        assert found.error == 0.0
        with jax.enable_x64(True):
            assert distance(agent_of(scaled(scales)), found.point, center, strength) <= 3e-4
        spent.append(found.evaluations)
    # as many as in equal units, for which plain conjugate gradients would need dozens
    assert spent[1] <= 2 * spent[0]


@pytest.mark.long
def test_unsolved_steps_report_their_error():
    # with units 1e5 apart and no Hessian, single precision fails
    scales = np.geomspace(1.0, 1e5, 8)
    agent, center = without_curvature(agent_of(scaled(scales))), jnp.ones(8)
    found = jax.jit(proximal.proximal_point)(agent, center, 4.0, start=jnp.zeros(8), tolerance=1e-6)
    with jax.enable_x64(True):
        away = distance(agent_of(scaled(scales)), found.point, np.ones(8), 4.0)
    assert away > 3e-5 and found.error >= away


def test_products_with_hessians_are_counted():
    agent = by_iterations(agent_of(regression("linear_regression")))
    step = jax.jit(
        lambda agent: proximal._newton(agent, jnp.ones(4), jnp.asarray(1.0), jnp.zeros(4), jnp.asarray(1e-4))
    )
    # with the Hessian: the gradient at the start, one product that verifies the step, and the gradient after it
    assert step(agent).evaluations == 3
    # without: as many products as parameters, or one less, and some more due to rounding
    assert 5 <= step(without_curvature(agent)).evaluations <= 12


def test_a_start_near_the_solution_is_solved_at_once():
    # closer than the tolerance, which the gradient alone does not show
    agent, tolerance, strength = by_iterations(agent_of(regression("linear_regression"))), 1e-2, jnp.asarray(0.1)
    steepest = agent.shard.curvature.vectors[:, -1]
    exact = proximal._newton(agent, jnp.ones(4), strength, jnp.zeros(4), jnp.asarray(1e-5)).point
    start = exact + tolerance / 5 * steepest
    slope = agent.gradient(start) + strength * (start - 1.0)
    assert jnp.linalg.norm(slope) / strength > 10 * tolerance
    found = proximal.proximal_point(agent, jnp.ones(4), strength, start=start, tolerance=jnp.asarray(tolerance))
    assert found.error == 0.0 and found.evaluations <= 4
    assert jnp.linalg.norm(found.point - exact) <= tolerance


@pytest.mark.long
def test_a_missed_tolerance_warns(monkeypatch):
    monkeypatch.setattr(proximal, "MAX_ITERATIONS", 1)
    post = accord.models.power(np.array([[0.0], [30.0], [60.0]]), 4.0)
    with pytest.warns(UserWarning, match="a proximal step of D-ADMMS missed its tolerance"):
        run = accord.sample(post, accord.Network.ring(3), accord.Rounds(DADMMS(1.0), burn_in=0), draws=3, chains=1)
    assert run.statistics["unsolved_error"].max() > 0
    # rounds between recorded draws count as well
    with pytest.warns(UserWarning, match="missed its tolerance"):
        thinned = accord.sample(
            post, accord.Network.ring(3), accord.Rounds(DADMMS(1.0), burn_in=1, thin=2), draws=1, chains=1
        )
    assert thinned.statistics["unsolved_error"][0, -1] == run.statistics["unsolved_error"][0, -1]


@pytest.mark.long
def test_a_run_is_the_same_without_hessians(monkeypatch):
    net, method, options = accord.Network.ring(4), DADMMS(1.0, tolerance=1e-5), {"draws": 20, "burn_in": 0, "chains": 2}
    known = walk(regression("logistic_regression", agents=4), net, method, seed=0, **options)
    monkeypatch.setattr("accord.posterior.posterior.HESSIAN_DIM", 0)
    unknown = walk(regression("logistic_regression", agents=4), net, method, seed=0, **options)
    np.testing.assert_allclose(known.draws, unknown.draws, atol=2e-3)
    # known Hessians save products
    assert known.statistics["gradients"][:, -1].mean() < unknown.statistics["gradients"][:, -1].mean()
