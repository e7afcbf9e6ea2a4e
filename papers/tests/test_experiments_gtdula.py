"""Experiments of GT-DULA: their functions, and each experiment at a tiny size."""

import csv
from dataclasses import replace

import numpy as np
import pytest

from accord import law, metrics
from accord.network import Network
from accord_papers.experiments import frame
from accord_papers.experiments.frame import Size
from accord_papers.experiments.gtdula import claims as gtdula_claims
from accord_papers.experiments.gtdula import common as gtdula
from accord_papers.experiments.gtdula import fig1 as gtdula_fig1
from accord_papers.experiments.gtdula import fig2 as gtdula_fig2
from accord_papers.experiments.gtdula import ring as gtdula_ring
from accord_papers.experiments.verdicts import Verdict


def points(seed):
    return np.random.default_rng(seed).normal(0.5, 1.0, size=(5, 80)) * gtdula.SIGMA[:, None]


@pytest.mark.parametrize("name", gtdula.METHODS)
def test_the_equations_have_the_laws_stationary_bias(name):
    hessians, b = gtdula.potentials(1, np.random.default_rng(3))
    problem = gtdula.Problem(hessians, b[:, 0], 0.12)
    for alpha in (1e-2, 1e-5):
        method = gtdula.method(name, alpha, 0.12)
        average = law(problem.post, gtdula.NETWORK, method).stationary().average
        found, error = gtdula.asymptotic(name, hessians, b, alpha, 0.12)
        np.testing.assert_allclose(found, metrics.kl(average, problem.target), rtol=1e-4)
        assert error.shape == (1,) and error > 0


@pytest.mark.parametrize("name", gtdula.METHODS)
@pytest.mark.parametrize("n", [5, 10, 25, 40])
def test_the_ring_has_the_equations_average(name, n):
    rng, alpha, beta = np.random.default_rng(n), 1e-3, 0.1
    hessians, b = (
        np.stack(values) for values in zip(*[gtdula_ring.split(points(1), n, rng) for _ in range(2)], strict=True)
    )
    assert np.ptp(hessians.sum(axis=1)) < 1e-12 and np.ptp(b.sum(axis=1)) < 1e-12
    for split in range(2):
        equations = gtdula.Equations(
            name == "GT-DULA", Network.ring(n), hessians[split], b[split][:, None], alpha, beta
        )
        mean, cov = equations.stationary()
        variance = gtdula_ring.average_variance(name, hessians, alpha, beta)[split]
        np.testing.assert_allclose(variance, cov[:n, :n].mean(), rtol=1e-8)
        np.testing.assert_allclose(
            gtdula_ring.average_mean(name, hessians, b, alpha, beta)[split], mean[:n].mean(), rtol=1e-6
        )


def test_rises_have_the_error_of_resampled_splits():
    copies = np.random.default_rng(0).normal([0.0, 1.0, 2.0], 0.1, size=(2000, 3))
    for last, verdict in ((2.0, Verdict.HOLDS), (1.2, Verdict.UNDECIDED), (0.0, Verdict.FAILS)):
        rises = gtdula_fig2.steps(np.array([0.0, 1.0, last]), copies)
        assert [rise.error for rise in rises] == pytest.approx([0.1 * 2**0.5] * 2, rel=0.1)
        assert [rise.above(0.0) for rise in rises] == [Verdict.HOLDS, verdict]


def test_a_wrong_recursion_differs_from_the_law(monkeypatch):
    hessians, b = gtdula.potentials(1, np.random.default_rng(3))
    problem, step = gtdula.Problem(hessians, b[:, 0], 0.12), lambda k: 1e-3
    assert gtdula.apart(problem, "GT-DULA", step, 5) < gtdula_fig1.SAME
    monkeypatch.setattr(gtdula, "method", lambda name, step, beta: gtdula.GTDULA(step, beta, 0.9 * beta))
    assert gtdula.apart(problem, "GT-DULA", step, 5) > 1e-3


@pytest.mark.slow
def test_fig1_at_a_tiny_size(tmp_path):
    size = Size(minutes=0.1, memory=0.5, numbers={"chains": 600, "rounds": 20})
    tiny = replace(gtdula_fig1.EXPERIMENT, sizes={"small": size})
    shares = []
    claims = frame.reproduce(tiny, tmp_path, progress=lambda what, share: shares.append(share))
    assert shares == sorted(shares) and shares[-1] == pytest.approx(1.0)
    checks = [claim for claim in claims if claim.kind == "check"]
    assert [claim.source for claim in checks] == ["accord.law", "accord.sample"]
    assert all(claim.verdict is Verdict.HOLDS for claim in checks), [claim.why for claim in checks]
    folder = tmp_path / "gtdula-fig1"
    assert all(file.stat().st_size < 300_000 for file in folder.iterdir())
    with (folder / "curves.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * (2 + 12)
    assert {row["alpha"] for row in rows} == {"0.01", "0.001", "0.0001", "1e-05", "1e-06", "1e-07"}
    verdicts = {claim.text: claim.verdict is Verdict.HOLDS for claim in claims}
    assert not verdicts["the printed expression is the true posterior from all the data"]
    assert verdicts["GT-DULA results in a lower bias than DULA"]
    assert gtdula_claims.SATURATION in {claim.paper for claim in claims}


@pytest.mark.slow
def test_fig2_at_a_tiny_size(tmp_path):
    tiny = replace(gtdula_fig2.EXPERIMENT, sizes={"small": Size(minutes=0.1, memory=0.5, numbers={"splits": 4})})
    claims = frame.reproduce(tiny, tmp_path)
    assert [claim.verdict for claim in claims if claim.kind == "check"] == [Verdict.HOLDS]
    assert all(file.stat().st_size < 300_000 for file in (tmp_path / "gtdula-fig2").iterdir())
