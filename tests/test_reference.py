"""The pooled reference and the demo's comparison."""

import sys

import arviz_stats.base.array as arviz_array
import numpy as np
import pytest

import accord
from accord.cli import demo
from accord.posterior.reference import nuts


@pytest.mark.long
@pytest.mark.parametrize("dense", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_nuts_draws_from_a_gaussian_posterior(dense):
    rng = np.random.default_rng(0)
    shards = [(rng.standard_normal((10 + i, 3)), rng.standard_normal(10 + i)) for i in range(3)]
    post = accord.models.linear_regression(shards, noise_scale=1.0)
    exact, draws = post.exact(), nuts(post, draws=1500, warmup=500, chains=4, seed=0, dense=dense).astype(float)
    assert draws.shape == (4, 1500, 3)
    for values, mean, sd in (
        (draws, exact.mean, exact.sd),
        ((draws - exact.mean) ** 2, exact.sd**2, np.sqrt(2.0) * exact.sd**2),
    ):
        ess = arviz_array.array_stats.ess(values, chain_axis=0, draw_axis=1, method="mean")
        assert (np.abs(values.mean(axis=(0, 1)) - mean) < 4.5 * sd / np.sqrt(ess)).all()


@pytest.mark.parametrize(("module", "extra"), [("blackjax", "nuts"), ("sklearn", "demo")])
def test_a_missing_extra_is_named(monkeypatch, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=rf"pip install 'accord\[{extra}\]'"):
        if extra == "nuts":
            nuts(accord.models.gaussian([0.0], [1.0]))
        else:
            demo.breast_cancer()


def test_the_demos_data_are_split_by_a_covariate():
    post = demo.breast_cancer()
    assert (post.num_agents, post.dim, post.sizes.sum()) == (10, 31, 569)
    radius = post.names.index("mean radius")
    edges = [(X[:, radius].min(), X[:, radius].max()) for X, _ in post.shards]
    assert all(a[1] <= b[0] for a, b in zip(edges[:-1], edges[1:], strict=True))


def test_trust_needs_accurate_means_and_error_bars():
    def row(low, high, error):
        return demo.Row("a", low, high, error, 1, 1, 1.0)

    assert row(0.95, 1.05, 0.05).trusted
    assert not row(0.85, 1.05, 0.05).trusted
    assert not row(0.95, 1.15, 0.05).trusted
    assert not row(0.95, 1.05, 0.15).trusted


@pytest.mark.slow
def test_the_demo_separates_right_from_wrong_error_bars(capsys):
    demo.main(seed=1)
    out = capsys.readouterr().out
    labels = [entry.label for entry in demo.ENTRIES]
    lines = [line.rstrip() for line in out.splitlines() if line.rstrip().endswith((" yes", " no"))]
    trusted = {label: line.endswith("yes") for label, line in zip(labels, lines, strict=True) if line.startswith(label)}
    assert trusted == {
        "default": True,
        "GT-BAOAB, tuned by accord": True,
        "DE-SGLD": False,
        "GT-DULA": False,
        "GT-DULA, common noise": True,
        "D-ADMMS as published": False,
        "D-ADMMS calibrated, common noise": True,
    }
