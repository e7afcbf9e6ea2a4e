"""Posteriors without one agent's data, or with more data, by reweighting, against exact laws."""

import dataclasses
import pickle

import numpy as np
import pandas as pd
import pytest

import accord
from accord.examine.reweighting import shortfall
from accord.samplers import Importance

SIGMA, TAU = 0.7, 1.5
RING = accord.Network.ring(4)


def data(count=160, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((count, 3))
    return X, X @ [1.0, -1.0, 0.5] + SIGMA * rng.standard_normal(count)


def regression(shards):
    return accord.models.linear_regression(shards, SIGMA, TAU**2)


def evidence(X, y):
    """Log density of y with all coefficients integrated out."""
    cov = SIGMA**2 * np.eye(len(y)) + TAU**2 * X @ X.T
    return -0.5 * (y @ np.linalg.solve(cov, y) + np.linalg.slogdet(2.0 * np.pi * cov)[1])


X, Y = data()
SHARDS = [(X[i::4], Y[i::4]) for i in range(4)]


@pytest.fixture(scope="module")
def run():
    return accord.sample(regression(SHARDS), RING, Importance(), draws=2000)


def close(points, law, loose=1.0):
    error = loose * 4.0 / np.sqrt(points.effective)
    np.testing.assert_array_less(np.abs(points.mean - law.mean) / law.sd, error)
    np.testing.assert_array_less(np.abs(points.sd / law.sd - 1.0), error)


@pytest.mark.parametrize("agent", range(4))
def test_leave_out_equals_the_posterior_without_the_agent(run, agent):
    others = [shard for i, shard in enumerate(SHARDS) if i != agent]
    law, whole = regression(others).exact(), regression(SHARDS).exact()
    found = accord.leave_out(run, regression(SHARDS), RING, agent)
    close(found.points, law)
    np.testing.assert_allclose(found.mean, law.mean, atol=0.1 * law.sd.max())
    np.testing.assert_allclose(found.cov, law.cov, atol=0.1 * law.cov.max())
    assert abs(found.weights.mean() - 1.0) < 1e-9
    np.testing.assert_allclose(found.pull, (whole.mean - law.mean) / whole.sd, atol=0.1)
    rest = [np.concatenate(part) for part in zip(*others, strict=True)]
    assert abs(found.log_predictive - (evidence(X, Y) - evidence(*rest))) < 0.1
    assert found.k < 0.7


@pytest.mark.long
def test_update_equals_the_posterior_of_all_rows(run):
    more = {0: data(20, seed=1), 2: data(13, seed=2)}
    updated = accord.update(run, regression(SHARDS), RING, more)
    law = regression([*SHARDS, *more.values()]).exact()
    close(updated.points, law)
    drawn = updated.draws[:, :, 3]
    np.testing.assert_array_less(np.abs(drawn.mean((0, 1)) - law.mean) / law.sd, 0.15)
    np.testing.assert_allclose(drawn.std((0, 1)) / law.sd, 1.0, atol=0.1)
    every = [np.concatenate(part) for part in zip((X, Y), *more.values(), strict=True)]
    assert abs(updated.log_evidence[0] - evidence(*every)) < 4.0 * updated.log_evidence[1]
    # the original run is unchanged
    close(run.points, regression(SHARDS).exact())
    with pytest.raises(
        ValueError, match="the rows of the run's agents are 60, 40, 53, 40, and the posterior's are 40,"
    ):
        accord.leave_out(updated, regression(SHARDS), RING, 0)
    # the posterior of all rows is accepted
    together = [
        tuple(map(np.concatenate, zip(own, more[i], strict=True))) if i in more else own for i, own in enumerate(SHARDS)
    ]
    left = accord.leave_out(updated, regression(together), RING, 2)
    close(left.points, regression([own for i, own in enumerate(together) if i != 2]).exact())


def test_surprising_rows_are_refused_with_the_numbers(run):
    surprising = X[:40], Y[:40] + 30.0
    with pytest.raises(ArithmeticError, match=r"Pareto k is .* and \d+ effective draws are left \(.*\); sample"):
        accord.update(run, regression(SHARDS), RING, {1: surprising})


def test_numbers_are_rounded_towards_the_worse():
    assert shortfall(0.50003, 399.9).startswith("Pareto k is 0.501 (at most 0.5 allowed) and 399 effective draws")
    assert shortfall(0.5, 400.0).startswith("Pareto k is 0.500 (at most 0.5 allowed) and 400 effective draws")


@pytest.mark.long
def test_invalid_queries_are_refused(run):
    post = regression(SHARDS)
    with pytest.raises(ValueError, match=r"agent must be a whole number in 0..3, found 4"):
        accord.leave_out(run, post, RING, 4)
    with pytest.raises(ValueError, match="agent 2"):
        accord.update(run, post, RING, {2: (np.full((1, 3), np.nan), np.zeros(1))})
    with pytest.raises(ValueError, match="no names of sites: give the number of the agent, found 'north'"):
        accord.leave_out(run, post, RING, "north")


def test_agents_can_be_given_by_site(run):
    post = regression(SHARDS)
    named = dataclasses.replace(run, settings={**run.settings, "sites": ["north", "south", "west", "east"]})
    by_name, by_number = (accord.leave_out(named, post, RING, agent) for agent in ("west", 2))
    assert by_name.agent == 2
    np.testing.assert_array_equal(by_name.mean, by_number.mean)
    with pytest.raises(ValueError, match="unknown site 'wset', did you mean 'west'"):
        accord.leave_out(named, post, RING, "wset")
    row = (np.zeros((1, 3)), np.zeros(1))
    with pytest.raises(ValueError, match="rows name an agent twice, by number and by site: 'west', 2"):
        accord.update(named, post, RING, {"west": row, 2: row})
    walked = accord.sample(
        regression(SHARDS), RING, accord.Rounds(accord.samplers.GTBAOAB(0.05, 1.0), burn_in=0), draws=5
    )
    for ask in (lambda: accord.leave_out(walked, post, RING, 0), lambda: accord.update(walked, post, RING, {})):
        with pytest.raises(ValueError, match="needs the weights of Importance"):
            ask()
    with pytest.raises(AttributeError, match="log_evidence needs the weights of Importance"):
        walked.log_evidence  # noqa: B018


# --- a run from a file, and a run of another posterior ---


def questions(run, post, net=RING, **options):
    """Functions that query the agents, by name."""
    return {
        "leave_out": lambda: accord.leave_out(run, post, net, 1, **options).weights,
        "leave_each_out": lambda: np.stack([one.weights for one in accord.leave_each_out(run, post, net, **options)]),
        "alone": lambda: np.stack([one.points.mean for one in accord.alone(run, post, net, **options)]),
        "log_likelihood": lambda: accord.log_likelihood(run, post, net, **options)["rows"].values,
        "plot_sites": lambda: accord.plot_sites(run, post, net, run.names[0], **options).get_xlim(),
        "update": lambda: accord.update(run, post, net, {2: data(5, seed=3)}, **options).average,
        "loo": lambda: accord.loo(run, post, net, **options),
    }


def test_a_run_from_a_file_gives_the_same_results(run, tmp_path):
    run.save(tmp_path / "run.nc")
    loaded, sent = accord.Run.load(tmp_path / "run.nc"), pickle.loads(pickle.dumps(run))
    fresh = {name: ask() for name, ask in questions(run, regression(SHARDS)).items()}
    for other in (loaded, sent):
        for name, ask in questions(other, regression(SHARDS)).items():
            np.testing.assert_allclose(ask(), fresh[name], rtol=1e-10, err_msg=name)


OTHERS = {
    "one row changed": ([(SHARDS[0][0], SHARDS[0][1] + np.eye(40)[0] * 1e-2), *SHARDS[1:]], SIGMA, TAU),
    "another prior": (SHARDS, SIGMA, 1.001 * TAU),
    "another model": (SHARDS, 1.001 * SIGMA, TAU),
}


@pytest.mark.parametrize("other", OTHERS)
def test_another_posterior_than_the_runs_is_refused(run, other, tmp_path):
    shards, sigma, tau = OTHERS[other]
    post = accord.models.linear_regression(shards, sigma, tau**2)
    asks = {
        **questions(run, post),
        "predictive_check": lambda: accord.predictive_check(run, post, RING),
        "report": lambda: accord.report(run, tmp_path / "page.html", post, RING),
        "compare": lambda: accord.compare({"a": (run, regression(SHARDS)), "b": (run, post)}, RING),
    }
    for ask in asks.values():
        with pytest.raises(ValueError, match=r"posterior is not the run's posterior: its log density .*\. Pass the"):
            ask()
    assert not (tmp_path / "page.html").exists()


def test_agents_in_another_order_are_refused(run):
    # sums do not depend on the order, but numbers of rows and names do
    rows = [(x[: 30 + i], y[: 30 + i]) for i, (x, y) in enumerate(SHARDS)]
    uneven = accord.sample(regression(rows), RING, Importance(), draws=200)
    with pytest.raises(ValueError, match="rows of the run's agents are 30, 31, 32, 33, and the posterior's are 33, 32"):
        accord.alone(uneven, regression(rows[::-1]), RING)
    sites = {f"site {i}": {"x": x[:, 0], "y": y} for i, (x, y) in enumerate(SHARDS)}
    named = accord.sample(accord.models.glm(sites, "y ~ x", "normal"), RING, Importance(), draws=200)
    with pytest.raises(ValueError, match="the sites of the run's agents are site 0, .* posterior's are site 3, site 2"):
        accord.leave_out(named, accord.models.glm(dict(reversed(sites.items())), "y ~ x", "normal"), RING, 0)


def test_new_rows_of_a_formula_are_a_shard_of_its_model():
    sites = {f"site {i}": {"x": x[:, 0], "y": y} for i, (x, y) in enumerate(SHARDS)}
    post = accord.models.glm(sites, "y ~ x", "normal")
    run = accord.sample(post, RING, Importance(), draws=1000)
    more = sites["site 0"]
    for rows in (pd.DataFrame(more), more):
        with pytest.raises(ValueError, match=r"agent 1 .* glm, pass accord.models.glm\(\[frame\], formula, family\)"):
            accord.update(run, post, RING, {1: rows})
    shard = accord.models.glm([more], "y ~ x", "normal").shards[0]
    assert accord.update(run, post, RING, {1: shard}).info.rows[1] == 80


def test_other_agents_names_and_numbers_are_refused(run):
    post = regression(SHARDS)
    for ask in questions(run, regression(SHARDS[:3]), accord.Network.ring(3)).values():
        with pytest.raises(ValueError, match="the run has 4 agents, and the posterior has 3"):
            ask()
    for ask in questions(run, post, accord.Network.ring(5)).values():
        with pytest.raises(ValueError, match="the run has 4 agents, and the network has 5"):
            ask()
    named = accord.models.linear_regression(SHARDS, SIGMA, TAU**2, names=["a", "b", "c"])
    for ask in questions(run, named).values():
        with pytest.raises(ValueError, match=r"the run has the parameters x\[0\], .* and the posterior has a, b, c"):
            ask()


def test_single_sites_are_not_queried_after_masked_sums(tmp_path):
    masked = accord.sample(
        regression(SHARDS), RING, Importance(), draws=400, chains=2, engine=accord.engines.Local(masks=True)
    )
    masked.save(tmp_path / "run.nc")
    post = regression(SHARDS)
    for run in (masked, accord.Run.load(tmp_path / "run.nc")):
        # with any engine
        for engine in ("local", "mesh", accord.engines.Local(masks=True)):
            asks = questions(run, post, engine=engine)
            for name in ("leave_out", "leave_each_out", "alone", "log_likelihood", "plot_sites"):
                with pytest.raises(ValueError, match="No numbers of single sites: the sums of this run") as caught:
                    asks[name]()
                assert "\n" not in str(caught.value)
        # masked sums work
        assert np.isfinite(run.log_evidence[0])
        assert accord.update(run, post, RING, {i: data(5, seed=i) for i in range(3)}).certificate.holds


def test_masks_protect_the_new_rows_of_fewer_than_three_agents(run):
    masked, post = accord.engines.Local(masks=True), regression(SHARDS)
    more = {agent: data(9, seed=agent) for agent in range(3)}
    for few in ({0: more[0]}, {0: more[0], 1: more[1]}):
        with pytest.raises(ValueError, match=f"would reveal the new rows of {len(few)} agents: update at least 3"):
            accord.update(run, post, RING, few, engine=masked)
    law = regression([*SHARDS, *more.values()]).exact()
    close(accord.update(run, post, RING, more, engine=masked).points, law)


def test_masks_of_the_engine_protect_single_sites_too(run):
    with pytest.raises(ValueError, match="No numbers of single sites"):
        accord.alone(run, regression(SHARDS), RING, engine=accord.engines.Local(masks=True))


LOGISTIC = [(X[i::4], (Y[i::4] > 0).astype(float)) for i in range(4)]


@pytest.fixture(scope="module")
def logistic():
    return accord.sample(accord.models.logistic_regression(LOGISTIC), RING, Importance(), draws=1000)


@pytest.mark.long
@pytest.mark.parametrize("agent", [2, *(pytest.param(agent, marks=pytest.mark.slow) for agent in (0, 1, 3))])
def test_leave_out_of_a_logistic_regression_equals_a_new_run(logistic, agent):
    others = accord.models.logistic_regression([shard for i, shard in enumerate(LOGISTIC) if i != agent])
    anew = accord.sample(others, accord.Network.ring(3), Importance(), draws=1000, seed=1)
    found = accord.leave_out(logistic, accord.models.logistic_regression(LOGISTIC), RING, agent)
    close(found.points, anew.points)
    errors = [one.log_evidence[1] for one in (found.points, anew, logistic)]
    predictive = logistic.log_evidence[0] - anew.log_evidence[0]
    assert abs(found.log_predictive - predictive) < 4.0 * np.linalg.norm(errors)


def test_chains_store_log_densities_to_verify_the_posterior():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((4, 60, 2))
    y = (rng.random((4, 60)) < 1.0 / (1.0 + np.exp(-X @ [1.0, -2.0]))).astype(float)

    def posterior(X, y, variance=10.0):
        return accord.models.logistic_regression(list(zip(X, y, strict=True)), variance)

    net = accord.Network.ring(4)
    run = accord.sample(posterior(X, y), net, accord.samplers.ChEES(), draws=100)
    assert np.isfinite(accord.loo(run, posterior(X, y), net).elpd)
    for other in (posterior(X, 1.0 - y), posterior(2.0 * X, y), posterior(X, y, 0.1)):
        with pytest.raises(ValueError, match="not the run's posterior"):
            accord.loo(run, other, net)


def test_slightly_different_rows_are_refused_despite_a_large_potential():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((4, 60, 2))
    y = 1e4 + X @ [1.0, 2.0] + rng.standard_normal((4, 60))
    changed = y.copy()
    changed[0, :10] += 0.5 * np.sign(X[0, :10, 0])
    net = accord.Network.ring(4)
    post, other = (accord.models.linear_regression(list(zip(X, each, strict=True)), 1.0, 10.0) for each in (y, changed))
    run = accord.sample(post, net, draws=100)
    with pytest.raises(ValueError, match="not the run's posterior"):
        accord.leave_out(run, other, net, 0)
