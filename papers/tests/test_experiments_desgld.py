"""Experiments of the DE-SGLD slides: their functions, and each experiment at a tiny size."""

from dataclasses import replace

import numpy as np
import pytest

from accord import Gaussian, law, metrics
from accord.network import Network
from accord.samplers import DESGLD
from accord_papers.experiments import frame
from accord_papers.experiments.desgld import common as desgld
from accord_papers.experiments.desgld import fig4 as desgld_fig4
from accord_papers.experiments.desgld import fig_networks as desgld_fig_networks
from accord_papers.experiments.desgld import fig_networks_kinetic as desghmc_fig_networks
from accord_papers.experiments.frame import Size
from accord_papers.experiments.verdicts import Verdict

TINY = {
    desgld_fig_networks: {"agents": 6, "rounds": 12, "runs": 120},
    desghmc_fig_networks: {"agents": 6, "rounds": 12, "runs": 120},
    desgld_fig4: {"agents": 6, "rounds": 12, "runs": 120},
}


def test_moments_without_minibatches_equal_those_of_the_law():
    data, net = desgld.regression(5, np.random.default_rng(0)), Network.ring(5)
    written = desgld.by_recursion(data, net, 0.009, 6)
    exact = desgld.by_law(law(data.post, net, DESGLD(0.009)), 6)
    np.testing.assert_allclose(written.means, exact.means, rtol=1e-9)
    np.testing.assert_allclose(written.covs, exact.covs, rtol=1e-9, atol=1e-15)


def test_row_covariance_equals_that_of_drawn_rows():
    rng = np.random.default_rng(1)
    data = desgld.regression(2, rng)
    m, P = rng.normal(size=(2, 2)), np.array([np.diag([0.5, 0.1]), [[0.2, 0.1], [0.1, 0.3]]])
    found = desgld._row_covariance(data, m, P)
    for i in range(2):
        # the law of total covariance with draws of x_i
        x = rng.multivariate_normal(m[i], P[i], size=40_000)
        rows = ((x @ data.X[i].T - data.y[i]) / desgld.XI**2)[..., None] * data.X[i]
        off = rows - rows.mean(axis=1, keepdims=True)
        np.testing.assert_allclose(found[i], np.einsum("cja,cjb->ab", off, off) / off[..., 0].size, rtol=0.05)


def test_distances_are_wasserstein():
    rng = np.random.default_rng(2)
    roots = rng.normal(size=(3, 4, 2, 2))
    moments = desgld.Moments(rng.normal(size=(3, 4, 2)), roots @ np.swapaxes(roots, -1, -2))
    target = Gaussian([0.1, -0.2], [[2.0, 0.5], [0.5, 1.0]])
    for k, n in ((0, 0), (2, 3)):
        expected = metrics.wasserstein2(Gaussian(moments.means[k, n], moments.covs[k, n]), target)
        assert moments.distances(target)[k, n] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("gaussian", [True, False])
def test_runs_of_another_law_score_beyond_the_bound(gaussian):
    rng, shape = np.random.default_rng(3), (3, 5, 2)
    moments = desgld.Moments(np.zeros(shape), np.broadcast_to(np.eye(2), (*shape, 2)))
    drawn = rng.normal(size=(400, *shape))
    worst, limit = desgld.worst_score(drawn, moments, gaussian, 1)
    assert worst < limit
    for wrong in (drawn + 0.4, 1.4 * drawn):
        worst, limit = desgld.worst_score(wrong, moments, gaussian, 1)
        assert worst > limit


@pytest.mark.slow
@pytest.mark.parametrize("module", TINY)
def test_at_a_tiny_size(tmp_path, module):
    size = Size(minutes=0.1, memory=0.5, numbers=TINY[module])
    shares = []
    experiment = replace(module.EXPERIMENT, sizes={"small": size})
    claims = frame.reproduce(experiment, tmp_path, progress=lambda what, share: shares.append(share))
    assert shares == sorted(shares) and shares[-1] == 1.0
    checks = [claim for claim in claims if claim.kind == "check"]
    assert checks and all(claim.verdict is Verdict.HOLDS for claim in checks), [claim.why for claim in checks]
    folder = tmp_path / module.EXPERIMENT.name
    assert (folder / "figure.png").is_file() and all(file.stat().st_size < 300_000 for file in folder.iterdir())
