"""Posteriors without one agent's data, or with more data, from the points of a run; against exact laws."""

import numpy as np
import pytest
from accord.results.reweighting import shortfall

import accord
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
    """The log density of y, every coefficient integrated out."""
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
def test_leaving_an_agent_out_is_sampling_without_it(run, agent):
    others = [shard for i, shard in enumerate(SHARDS) if i != agent]
    law, whole = regression(others).exact(), regression(SHARDS).exact()
    found = run.leave_out(agent)
    close(found.points, law)
    np.testing.assert_allclose(found.mean, law.mean, atol=0.1 * law.sd.max())
    np.testing.assert_allclose(found.cov, law.cov, atol=0.1 * law.cov.max())
    assert abs(found.weights.mean() - 1.0) < 1e-9
    np.testing.assert_allclose(found.pull, (whole.mean - law.mean) / whole.sd, atol=0.1)
    rest = [np.concatenate(part) for part in zip(*others, strict=True)]
    assert abs(found.log_predictive - (evidence(X, Y) - evidence(*rest))) < 0.1
    assert found.k < 0.7


@pytest.mark.long
def test_new_rows_of_two_agents_are_one_sum_away(run):
    more = {0: data(20, seed=1), 2: data(13, seed=2)}
    updated = run.update(more)
    law = regression([*SHARDS, *more.values()]).exact()
    close(updated.points, law)
    drawn = updated.draws[:, :, 3]
    np.testing.assert_array_less(np.abs(drawn.mean((0, 1)) - law.mean) / law.sd, 0.15)
    np.testing.assert_allclose(drawn.std((0, 1)) / law.sd, 1.0, atol=0.1)
    every = [np.concatenate(part) for part in zip((X, Y), *more.values(), strict=True)]
    assert abs(updated.log_evidence[0] - evidence(*every)) < 4.0 * updated.log_evidence[1]
    # the run itself stays what it was
    close(run.points, regression(SHARDS).exact())
    with pytest.raises(AttributeError, match="sample anew"):
        updated.leave_out(0)


def test_too_much_news_is_refused_with_the_number(run):
    surprising = X[:40], Y[:40] + 30.0
    with pytest.raises(ArithmeticError, match=r"Pareto k is .* and \d+ effective draws are left, where .*; sample"):
        run.update({1: surprising})


def test_numbers_beyond_their_limits_are_not_rounded_to_these():
    assert shortfall(0.50003, 399.9).startswith("Pareto k is 0.501 and 399 effective draws are left, where at most 0.5")
    assert shortfall(0.5, 400.0).startswith("Pareto k is 0.500 and 400 effective draws")


@pytest.mark.long
def test_what_cannot_be_answered_is_refused(run, tmp_path):
    with pytest.raises(ValueError, match=r"agent must be a whole number in 0..3, found 4"):
        run.leave_out(4)
    with pytest.raises(ValueError, match="agent 2"):
        run.update({2: (np.full((1, 3), np.nan), np.zeros(1))})
    run.save(tmp_path / "run.nc")
    with pytest.raises(AttributeError, match="was read from a file"):
        accord.Run.load(tmp_path / "run.nc").leave_out(0)
    walked = accord.sample(
        regression(SHARDS), RING, accord.Rounds(accord.samplers.GTBAOAB(0.05, 1.0), burn_in=0), draws=5
    )
    for ask in (lambda: walked.leave_out(0), lambda: walked.update({}), lambda: walked.log_evidence):
        with pytest.raises(AttributeError, match="needs the weights of Importance"):
            ask()


def test_no_site_is_asked_by_itself_after_masked_sums():
    masked = accord.sample(
        regression(SHARDS), RING, Importance(), draws=400, chains=2, engine=accord.engines.Local(masks=True)
    )
    questions = {
        "leave_out": lambda: masked.leave_out(1),
        "leave_each_out": masked.leave_each_out,
        "alone": masked.alone,
        "plot_sites": lambda: masked.plot_sites(masked.names[0]),
    }
    for ask in questions.values():
        with pytest.raises(AttributeError, match="No site by itself: the sums of this run are masked") as caught:
            ask()
        assert "\n" not in str(caught.value)
    # sums go on, under masks
    assert np.isfinite(masked.log_evidence[0]) and masked.update({2: SHARDS[2]}).certificate.holds


LOGISTIC = [(X[i::4], (Y[i::4] > 0).astype(float)) for i in range(4)]


@pytest.fixture(scope="module")
def logistic():
    return accord.sample(accord.models.logistic_regression(LOGISTIC), RING, Importance(), draws=1000)


@pytest.mark.long
@pytest.mark.parametrize("agent", [2, *(pytest.param(agent, marks=pytest.mark.slow) for agent in (0, 1, 3))])
def test_leaving_an_agent_out_of_a_logistic_regression_is_sampling_anew_without_it(logistic, agent):
    others = accord.models.logistic_regression([shard for i, shard in enumerate(LOGISTIC) if i != agent])
    anew = accord.sample(others, accord.Network.ring(3), Importance(), draws=1000, seed=1)
    found = logistic.leave_out(agent)
    close(found.points, anew.points)
    errors = [one.log_evidence[1] for one in (found.points, anew, logistic)]
    predictive = logistic.log_evidence[0] - anew.log_evidence[0]
    assert abs(found.log_predictive - predictive) < 4.0 * np.linalg.norm(errors)
