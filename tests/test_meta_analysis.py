"""Two-stage meta-analysis: sites' estimates against statsmodels, pooled ones against metafor (tests/data/metafor.R)."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm

import accord
from accord.examine import meta_analysis as analysis
from accord.examine.meta_analysis import pool
from accord.samplers.by_sums import cubic
from accord.samplers.by_sums.evaluations import UndeterminedError

METAFOR = json.loads((Path(__file__).parent / "data" / "metafor.json").read_text())


@pytest.mark.parametrize("name", METAFOR)
def test_pooled_estimates_are_the_ones_of_metafor(name):
    expected = METAFOR[name]
    found = pool(np.array(expected["yi"]), np.array(expected["sei"]))
    for kind, rtol in (("fixed", 1e-9), ("dl", 1e-9), ("reml", 1e-5)):
        own, other = getattr(found, kind), expected[kind]
        np.testing.assert_allclose(own, [other[key] for key in own._fields], rtol=rtol, atol=1e-9)
    np.testing.assert_allclose([found.Q, found.p, found.I2], [expected[key] for key in ("Q", "p", "I2")], rtol=1e-9)
    if expected["predicted"] is None:
        assert np.isnan(found.predicted).all()
    else:
        np.testing.assert_allclose(found.predicted, expected["predicted"], rtol=1e-5)


def tables(sizes=(60, 90, 40, 12), seed=0):
    rng, found = np.random.default_rng(seed), {}
    for place, rows in enumerate(sizes):
        x, g = rng.standard_normal(rows), rng.choice(["a", "b"], rows)
        eta = 0.3 + 0.2 * place + 0.8 * x - 0.5 * (g == "b")
        found[f"s{place}"] = pd.DataFrame(
            {"y": (rng.random(rows) < 1 / (1 + np.exp(-eta))).astype(int), "x": x, "g": g}
        )
    return found


def sampled(own, formula="y ~ x + g", family="bernoulli"):
    post = accord.models.glm(
        accord.data.as_study(own, formula=formula, policy=accord.data.Policy.none()), formula, family
    )
    network = accord.Network.star(len(own))
    return accord.sample(post, network, seed=0, progress=False), post, network


def test_estimates_of_sites_are_the_ones_of_statsmodels():
    own = tables()
    run, post, network = sampled(own)
    found = accord.meta_analysis(run, post, network)
    for place, table in enumerate(own.values()):
        X = np.column_stack([np.ones(len(table)), table.x, table.g == "b"])
        fit = sm.GLM(table.y, X, sm.families.Binomial()).fit(tol=1e-14)
        np.testing.assert_allclose(found.estimate[place], fit.params, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(found.se[place], fit.bse, rtol=1e-6)
    assert found.sites == ("s0", "s1", "s2", "s3") and found.without_estimate() == {}
    table = found.table
    assert list(table.index) == ["Intercept", "x", "g[b]"] and (table["sites"] == 4).all()
    # with a weak prior and many rows both summaries are near
    assert np.abs(table["fixed"] - table["posterior"]).max() < 0.7 * table["sd"].max()
    expected = pool(found.estimate[:, 1], found.se[:, 1])
    np.testing.assert_allclose(table.loc["x", ["random", "tau"]].tolist(), [expected.reml.estimate, expected.reml.tau])


def test_sites_without_an_estimate_are_named():
    own = tables()
    own["s1"]["g"] = "a"
    # complete separation by x
    own["s3"]["y"] = (own["s3"].x > 0).astype(int)
    run, post, network = sampled(own)
    found = accord.meta_analysis(run, post, network)
    assert found.without_estimate()["s1"] == ("g[b]",)
    assert "x" in found.without_estimate()["s3"] and {"s0", "s2"}.isdisjoint(found.without_estimate())
    # a level that a site lacks takes no other estimate from it
    table = own["s1"]
    fit = sm.GLM(table.y, np.column_stack([np.ones(len(table)), table.x]), sm.families.Binomial()).fit(tol=1e-14)
    np.testing.assert_allclose(found.estimate[1, :2], fit.params, rtol=1e-6)
    np.testing.assert_allclose(found.se[1, :2], fit.bse, rtol=1e-6)
    assert found.table.loc["x", "sites"] == 3 and np.isfinite(found.table["fixed"]).all()


def test_the_report_shows_the_meta_analysis_and_the_sites_without_an_estimate(tmp_path):
    own = tables()
    own["s1"]["g"] = "a"
    run, post, network = sampled(own)
    found = accord.meta_analysis(run, post, network)
    text = accord.report(run, tmp_path / "report.html", post, network).read_text()
    fixed = found.pooled[1].fixed
    assert f"{fixed.estimate:.3g} ({fixed.low:.3g} to {fixed.high:.3g})" in text
    assert "s1: no estimate of g[b]" in text and "3 of 4" in text
    assert "own maximum likelihood estimates and standard errors" in text


def test_a_parameter_with_one_estimate_is_not_pooled():
    own = tables((60, 90))
    own["s1"]["g"] = "a"
    run, post, network = sampled(own)
    found = accord.meta_analysis(run, post, network)
    assert found.pooled[2] is None and np.isnan(found.table.loc["g[b]", "fixed"])


def test_constrained_parameters_are_estimated_without_constraint():
    own = {
        name: table.assign(y=table.x + np.random.default_rng(3).normal(0, 2, len(table)))
        for name, table in tables().items()
    }
    run, post, network = sampled(own, family="normal")
    found = accord.meta_analysis(run, post, network)
    table = own["s0"]
    X = np.column_stack([np.ones(len(table)), table.x, table.g == "b"])
    fit = sm.OLS(table.y, X).fit()
    np.testing.assert_allclose(found.estimate[0, :3], fit.params, rtol=1e-6)
    # maximum likelihood divides by the number of rows
    np.testing.assert_allclose(found.se[0, :3], fit.bse * ((len(table) - 3) / len(table)) ** 0.5, rtol=1e-6)
    assert len(found.names) == 4 and np.isfinite(found.estimate[0, 3])


def test_masked_and_coarse_runs_are_refused():
    own = tables((30, 30, 30))
    _, post, network = sampled(own)
    for options, text in (({"masks": True}, "masked"), ({"coarse": True}, "coarse")):
        engine = accord.engines.Local(**options)
        run = accord.sample(post, network, seed=0, engine=engine, progress=False)
        with pytest.raises(ValueError, match=text):
            accord.meta_analysis(run, post, network)


def test_the_one_shot_estimate_is_the_posterior_of_gaussian_shards():
    rng = np.random.default_rng(5)
    factors = rng.standard_normal((4, 3, 3))
    post = accord.models.gaussian(rng.standard_normal((4, 3)), factors @ np.swapaxes(factors, 1, 2) + np.eye(3))
    network = accord.Network.ring(4)
    found = accord.meta_analysis(accord.sample(post, network, seed=0, progress=False), post, network)
    law = post.exact()
    np.testing.assert_allclose(found.one_shot, law.mean, atol=1e-9)
    np.testing.assert_allclose(found.one_shot_sd, np.sqrt(np.diagonal(law.cov)), rtol=1e-9)
    assert found.table[["one shot", "one shot sd"]].to_numpy().T.tolist() == [
        found.one_shot.tolist(),
        found.one_shot_sd.tolist(),
    ]


def fitted_alone(X, y, precision):
    """Mode and curvature of a logistic regression with a normal prior, by Newton's method."""
    x = np.zeros(X.shape[1])
    for _ in range(200):
        p = 1.0 / (1.0 + np.exp(-X @ x))
        hessian = (X.T * (p * (1.0 - p))) @ X + precision * np.eye(len(x))
        step = np.linalg.solve(hessian, X.T @ (p - y) + precision * x)
        # damped: the first steps are too long if no row has the outcome
        x = x - step / max(1.0, np.linalg.norm(step))
    assert np.linalg.norm(step) < 1e-9
    return x, hessian


def test_the_one_shot_estimate_is_off_if_outcomes_are_rare(tmp_path):
    rng, variance, sites = np.random.default_rng(2), 10.0, 5
    X = np.concatenate([np.ones((sites, 80, 1)), rng.standard_normal((sites, 80, 2))], axis=2)
    y = (rng.random((sites, 80)) < 1.0 / (1.0 + np.exp(2.5 - X @ [0.0, 1.0, -0.5]))).astype(float)
    # no row of the first site has the outcome
    y[0] = 0.0
    post = accord.models.logistic_regression(list(zip(X, y, strict=True)), variance)
    network = accord.Network.star(sites)
    run = accord.sample(post, network, seed=0, progress=False)
    found = accord.meta_analysis(run, post, network)
    modes, hessians = zip(*(fitted_alone(*own, 1.0 / variance / sites) for own in zip(X, y, strict=True)), strict=True)
    total = np.sum(hessians, axis=0)
    expected = np.linalg.solve(total, np.einsum("nij,nj->i", hessians, modes))
    # the library finds modes to a tenth of an sd of the site, and its next Newton step is in the sum
    np.testing.assert_allclose((found.one_shot - expected) / found.sd, 0.0, atol=0.03)
    np.testing.assert_allclose(found.one_shot_sd, np.sqrt(np.diagonal(np.linalg.inv(total))), rtol=0.01)
    assert np.abs((found.one_shot - found.mean) / found.sd).max() > 1.0
    text = accord.report(run, tmp_path / "report.html", post, network).read_text()
    worst = np.abs((found.one_shot - found.mean) / found.sd)
    assert f"{worst.max():.2f} posterior standard deviations from the posterior mean" in text
    assert f"{found.one_shot[0]:.3g} (sd {found.one_shot_sd[0]:.2g})" in text


def test_the_one_shot_estimate_is_the_first_sum_of_importance(monkeypatch):
    # so it reveals nothing that the run did not
    seen, usual = [], cubic.combined
    monkeypatch.setattr(cubic, "combined", lambda *given: seen.append(usual(*given)) or seen[-1])
    run, post, network = sampled(tables((30, 30, 30)))
    found = accord.meta_analysis(run, post, network)
    np.testing.assert_array_equal(found.one_shot, seen[0][1])


def test_no_one_shot_estimate_if_sites_do_not_determine_it(tmp_path, monkeypatch):
    run, post, network = sampled(tables((30, 30, 30)))
    monkeypatch.setattr(analysis, "combination", refused)
    found = accord.meta_analysis(run, post, network)
    assert np.isnan([found.one_shot, found.one_shot_sd]).all() and np.isfinite(found.table["fixed"]).all()
    text = accord.report(run, tmp_path / "report.html", post, network).read_text()
    assert "No one-shot estimate (BFI)" in text


def refused(numbers, dim):
    raise UndeterminedError


@pytest.mark.parametrize("means", [(0.0, 0.5, 2.5), (0.0, 0.0, 1.5, 0.0), (0.0, 0.3, 12.0, 0.1)])
def test_sites_far_from_the_pooled_mean_have_an_estimate(means):
    # the likelihood of a scale is not convex there
    rng = np.random.default_rng(0)
    own = {f"s{k}": pd.DataFrame({"y": rng.normal(mean, 1.0, 40)}) for k, mean in enumerate(means)}
    run, post, network = sampled(own, "y ~ 1", "normal")
    found = accord.meta_analysis(run, post, network)
    np.testing.assert_allclose(found.estimate[:, 0], [table.y.mean() for table in own.values()], rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(np.exp(found.estimate[:, 1]), [table.y.std(ddof=0) for table in own.values()], rtol=1e-6)


def test_estimates_of_counts_are_found_from_far_away():
    rng = np.random.default_rng(1)
    counts = {"few": rng.poisson(0.4, 50), "many": rng.poisson(20.0, 50)}
    own = {name: pd.DataFrame({"y": y, "x": rng.normal(size=50)}) for name, y in counts.items()}
    run, post, network = sampled(own, "y ~ x", "poisson")
    found = accord.meta_analysis(run, post, network)
    for place, table in enumerate(own.values()):
        fit = sm.GLM(table.y, sm.add_constant(table.x), sm.families.Poisson()).fit(tol=1e-14)
        np.testing.assert_allclose(found.estimate[place], fit.params, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(found.se[place], fit.bse, rtol=1e-6)
