"""Proximal steps: closed form, Newton and L-BFGS against one another and against optimality."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import accord
from accord.engines.round import build_problem
from accord.samplers import DADMMS, proximal
from accord.samplers.protocol import Bound


def agent_of(post):
    """The first agent of a posterior, as methods see it."""
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


SOLVERS = {"newton": proximal._newton, "lbfgs": proximal._lbfgs}
POSTERIORS = {
    "linear": lambda: regression("linear_regression"),
    "logistic": lambda: regression("logistic_regression"),
    "poisson": lambda: regression("poisson_regression"),
    "power-4": lambda: accord.models.power(np.ones((2, 4)), 4.0),
    "power-1.5": lambda: accord.models.power(np.ones((2, 4)), 1.5),
}


def solved():
    for row, target in enumerate(POSTERIORS):
        for column, solver in enumerate(SOLVERS):
            for turn, strength in enumerate((0.1, 1.0, 100.0)):
                for x64 in (False, True):
                    # quickly every target, solver and width meet once, at strengths that go round
                    marks = () if (row + column + x64) % 3 == turn else pytest.mark.slow
                    yield pytest.param(target, solver, strength, x64, marks=marks)


@partial(jax.jit, static_argnums=0)
def _solve(solver, *arguments):
    return solver(*arguments)


@jax.jit
@jax.value_and_grad
def _value_and_gradient(x, agent, center, strength):
    return agent.value(x) + strength * jnp.sum((x - center) ** 2) / 2


@pytest.mark.parametrize(("target", "solver", "strength", "x64"), list(solved()))
def test_solvers_reach_the_stated_tolerance(target, solver, strength, x64):
    tolerance, center = 1e-6 if x64 else 1e-4, np.array([2.0, -1.0, 0.5, 1.0])
    with jax.enable_x64(x64):
        agent = agent_of(POSTERIORS[target]())
        found, error, _ = _solve(SOLVERS[solver], agent, center, strength, np.zeros(4), tolerance)
        assert error <= tolerance
    # the truth: the same problem in double precision, to the last digits, by another library
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


def test_solver_is_chosen_by_the_number_of_parameters():
    wide = accord.models.power(np.ones((2, proximal.NEWTON_DIM + 1)), 4.0)
    agent = agent_of(wide)
    center = jnp.full(wide.dim, 2.0)
    step = lambda c: proximal.proximal_point(agent, c, jnp.asarray(5.0), start=c, tolerance=jnp.asarray(1e-4))  # noqa: E731
    # Newton would form a Hessian of dim x dim; L-BFGS does not
    assert f"{wide.dim},{wide.dim}" not in str(jax.make_jaxpr(step)(center))
    point, error, _ = jax.jit(step)(center)
    assert error == 0.0
    # 4 (x - 1)^3 + 5 (x - 2) = 0 in every coordinate
    residual = 4 * (np.asarray(point, float) - 1) ** 3 + 5 * (np.asarray(point, float) - 2)
    np.testing.assert_allclose(residual, 0.0, atol=5e-3)


@pytest.mark.long
def test_a_missed_tolerance_warns(monkeypatch):
    monkeypatch.setattr(proximal, "MAX_ITERATIONS", 1)
    post = accord.models.power(np.array([[0.0], [30.0], [60.0]]), 4.0)
    with pytest.warns(UserWarning, match="a proximal step of D-ADMMS missed its tolerance"):
        run = accord.sample(post, accord.Network.ring(3), DADMMS(1.0), draws=3, burn_in=0, chains=1)
    assert run.statistics["unsolved_error"].max() > 0
    # rounds between kept draws count as much
    with pytest.warns(UserWarning, match="missed its tolerance"):
        thinned = accord.sample(post, accord.Network.ring(3), DADMMS(1.0), draws=1, burn_in=1, thin=2, chains=1)
    assert thinned.statistics["unsolved_error"][0, -1] == run.statistics["unsolved_error"][0, -1]


@pytest.mark.long
def test_every_solver_in_a_run():
    # the same draws whichever solver a run uses
    post = regression("logistic_regression", agents=4)
    net = accord.Network.ring(4)
    runs = []
    for limit in (300, 0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(proximal, "NEWTON_DIM", limit)
            # the limit is read where a program is traced: so many chains are another program
            chains = 2 if limit else 3
            runs.append(
                accord.sample(post, net, DADMMS(1.0, tolerance=1e-5), draws=20, burn_in=0, chains=chains, seed=0)
            )
    np.testing.assert_allclose(runs[0].draws, runs[1].draws[:2], atol=2e-3)
