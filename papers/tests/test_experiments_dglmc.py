"""Figure 2 and table 1 of DG-LMC: their functions, and each experiment at a tiny size."""

from dataclasses import replace

import numpy as np
import pytest

from accord import law
from accord.network import Network
from accord.samplers import DGLMC
from accord_papers.experiments import frame
from accord_papers.experiments.dglmc import fig2 as dglmc_fig2
from accord_papers.experiments.dglmc import scaling as dglmc_scaling
from accord_papers.experiments.dglmc import table1 as dglmc_table1
from accord_papers.experiments.dglmc import toy as dglmc_toy
from accord_papers.experiments.frame import Size
from accord_papers.experiments.verdicts import Verdict

TINY = {dglmc_fig2: {"rows": 400, "chains": 12, "rounds": 600}, dglmc_table1: {"points": 4}}


def toy():
    return dglmc_toy.problem(400, np.random.default_rng(0))


def test_the_toy_posterior_is_the_conjugate_one():
    known = toy()
    precision = 400 * np.linalg.inv(dglmc_toy.SIGMA_1) + np.linalg.inv(dglmc_toy.SIGMA_0)
    np.testing.assert_allclose(np.linalg.inv(known.target.cov), precision, rtol=1e-9)
    mean = np.linalg.solve(precision, np.linalg.inv(dglmc_toy.SIGMA_1) @ known.rows.sum(axis=(0, 1)))
    np.testing.assert_allclose(known.target.mean, mean, rtol=1e-9)
    np.testing.assert_allclose(known.post.exact().mean, mean, rtol=1e-4)


@pytest.mark.parametrize("steps", [1, 3])
def test_d_sgld_has_the_moments_of_its_equation_written_out(steps):
    known, batch, step = toy(), 4, 2e-4
    rng, chains = np.random.default_rng(1), 20_000
    exact = dglmc_toy.visits_law(known, batch, step, steps)
    x = rng.multivariate_normal(known.target.mean, exact.cov, size=chains)
    precision, prior = np.linalg.inv(dglmc_toy.SIGMA_1), np.linalg.inv(dglmc_toy.SIGMA_0)
    size = known.rows.shape[1]
    for _ in range(8):
        shard = rng.integers(dglmc_toy.B, size=chains)
        for _ in range(steps):
            rows = known.rows[shard[:, None], rng.integers(size, size=(chains, batch))].mean(axis=1)
            gradient = size * (x - rows) @ precision + x @ prior / dglmc_toy.B
            x = x - step * dglmc_toy.B * gradient + (2 * step) ** 0.5 * rng.normal(size=x.shape)
    # stationary from the start
    np.testing.assert_allclose(np.cov(x.T), exact.cov, atol=5e-2 * np.trace(exact.cov))


def test_the_contraction_of_dg_lmc_equals_that_of_its_law():
    # two laws with starts that differ along one direction
    known, method = toy(), DGLMC(2e-3, 4e-4, 3)
    found = dglmc_toy.gibbs_law(known, method, 3)
    flattest = np.linalg.eigh(known.hessian)[1][:, 0]
    starts = [
        law(known.cheap, Network.star(dglmc_toy.B), method, init=known.target.mean + d * flattest) for d in (0, 1)
    ]
    left = [np.subtract(*(one.at(k).agent(0).mean for one in starts[::-1])) @ flattest for k in (3, 4)]
    assert left[1] / left[0] == pytest.approx(found.factor, rel=1e-6)


def test_needs_are_met_exactly():
    rho, step, steps, rounds, _ = dglmc_scaling.needs(8, 0.01)
    assert dglmc_scaling.error(8, rho, None) == pytest.approx(0.005, rel=1e-6)
    assert dglmc_scaling.error(8, rho, step, steps) == pytest.approx(0.0075, rel=1e-6)
    late, early = (dglmc_scaling.error(8, rho, step, steps, k) for k in (rounds, rounds - 1))
    assert late <= 0.01 < early


def test_a_power_is_found():
    line = dglmc_scaling.sweep(np.array([4, 8, 16]), np.array([0.01]))
    rows = zip(line.found, line.at, line.log, strict=True)
    made = [one._replace(rho=dim**-1.5, rounds=7.0 * dim**2 * log) for one, dim, log in rows]
    line = line._replace(found=made)
    assert (line.power("rho"), line.power("rounds")) == (pytest.approx(-1.5), pytest.approx(2.0))


@pytest.mark.slow
@pytest.mark.parametrize("module", TINY)
def test_at_a_tiny_size(tmp_path, module):
    experiment = replace(module.EXPERIMENT, sizes={"small": Size(minutes=0.1, memory=0.5, numbers=TINY[module])})
    shares = []
    claims = frame.reproduce(experiment, tmp_path, progress=lambda what, share: shares.append(share))
    assert shares == sorted(shares) and shares[-1] == 1.0
    checks = [claim for claim in claims if claim.kind == "check"]
    assert checks and all(claim.verdict is Verdict.HOLDS for claim in checks), [claim.why for claim in checks]
    folder = tmp_path / module.EXPERIMENT.name
    assert all(file.stat().st_size < 300_000 for file in folder.iterdir())
