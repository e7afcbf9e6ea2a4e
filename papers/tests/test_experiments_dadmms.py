"""Figures of the D-ADMMS paper: recursions, W2 of fitted trials, and each figure at a tiny size."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import optimize, stats

import accord
from accord import Gaussian
from accord_papers.experiments import EXPERIMENTS, frame
from accord_papers.experiments.agreement import Tally
from accord_papers.experiments.dadmms import common as dadmms
from accord_papers.experiments.dadmms.curves import Curve, both, distances, fitted, outside, refitted, written_out
from accord_papers.experiments.dadmms.logistic import Data
from accord_papers.experiments.frame import Size
from accord_papers.experiments.verdicts import Verdict

TINY = {
    "dadmms-fig1": {"agents": 5, "simulated": 5, "every_method": 1, "data_sets": 1},
    "dadmms-fig2": {"agents": 5, "simulated": 5, "every_method": 0, "data_sets": 1},
    "dadmms-fig3": {"values": 2},
    "dadmms-fig4": {"starts": 2},
    "dadmms-fig5": {"trials": 100},
    "dadmms-fig6": {"fewest": 5, "most": 5},
}


def gaussians(count, seed=0):
    rng = np.random.default_rng(seed)
    roots = rng.standard_normal((count, 2, 2))
    return [Gaussian(rng.standard_normal(2), A @ A.T) for A in roots]


@pytest.mark.parametrize("name", dadmms.METHODS)
@pytest.mark.parametrize("kind", ["ring", pytest.param("complete", marks=pytest.mark.slow)])
def test_the_law_equals_the_printed_equations(kind, name):
    post = dadmms.regression(5, 6, np.random.default_rng(1))
    law = accord.law(post, dadmms.NETWORKS[kind](5), dadmms.METHODS[name](kind), init=dadmms.START)
    for k, joint in enumerate(dadmms.recursion(name, kind, post).walk(dadmms.START, 5, 4)):
        np.testing.assert_allclose(law.at(k).joint.mean, joint.mean, atol=1e-12)
        np.testing.assert_allclose(law.at(k).joint.cov, joint.cov, atol=1e-12)


def test_without_neighbours_d_admms_goes_to_each_agents_own_mode():
    post = dadmms.regression(4, 6, np.random.default_rng(1))
    own = np.linalg.solve(post.hessians(), -post.gradients(np.zeros(2))[..., None])[..., 0]
    for name in dadmms.ALONE:
        _, first, second = dadmms.recursion(name, "no edges", post).walk(dadmms.START, 4, 2)
        for joint in (first, second):
            np.testing.assert_allclose(joint.mean, own.ravel(), rtol=1e-12)
            np.testing.assert_allclose(joint.cov, 0.0, atol=1e-30)


def in_place(name, post, network, x, v):
    """One round of the authors' loops without noise: positions and velocities (agent, dim)."""
    W, gradients, x, v = network.mixing(), np.stack([post.gradients(y)[i] for i, y in enumerate(x)]), x.copy(), v.copy()
    for i in range(len(x)):
        if name == "D-SGHMC":
            v[i] = v[i] - dadmms.SGHMC_STEP * (dadmms.FRICTION * v[i] + gradients[i])
            x[i] = W[i] @ x + dadmms.SGHMC_STEP * v[i]
        elif name == "D-SGLD":
            x[i] = W[i] @ x - dadmms.SGLD_STEP * gradients[i]
        else:
            alpha, zeta = (step(0) for step in dadmms.ULA["ring"])
            pull = sum(x[i] - x[j] for j in network.neighbors(i))
            x[i] = x[i] - zeta * pull - len(x) * alpha * gradients[i]
    return x, v


@pytest.mark.parametrize("name", dadmms.BASELINES)
def test_the_scripts_mix_in_place(name):
    rng = np.random.default_rng(2)
    post, network = dadmms.regression(4, 6, rng), accord.Network.ring(4)
    x, v = rng.standard_normal((2, 4, 2))
    expected = in_place(name, post, network, x, v)
    A, c, _ = dadmms.recursion(name, "ring", post, scripts=True).step(0)
    moved = A @ (np.concatenate([x.ravel(), v.ravel()]) if name == "D-SGHMC" else x.ravel()) + c
    np.testing.assert_allclose(moved[:8], expected[0].ravel(), rtol=1e-12)
    plain = dadmms.recursion(name, "ring", post).step(0)
    assert np.abs(plain[0] - A).max() > 1e-3


def test_the_scripts_tie_d_admms_to_the_first_agents():
    post = dadmms.regression(4, 6, np.random.default_rng(2))
    A, c, _ = dadmms.recursion("C-ADMM", "ring", post, scripts=True).step(0)
    x = np.random.default_rng(3).standard_normal((4, 2))
    moved = (A @ np.concatenate([x.ravel(), np.zeros(8)]) + c)[:8].reshape(4, 2)
    # degree 2: agents 0 and 1 replace the neighbours of every agent
    for i in range(4):
        slope = post.gradients(moved[i])[i] + 2 * dadmms.RHO * sum(moved[i] - (x[i] + x[j]) / 2 for j in (0, 1))
        np.testing.assert_allclose(slope, 0.0, atol=1e-10)


def test_in_place_mixing_heats_the_average():
    """The factor is 1.5 to 1.7 for five agents, so the printed curves differ from the equations."""
    post = dadmms.regression(5, 50, np.random.default_rng(0))
    for kind in ("ring", "complete"):
        plain, scripts = (written_out(dadmms.recursion("D-SGLD", kind, post, scripts=s), post) for s in (False, True))
        assert 1.0 < plain.variance_ratio < 1.25 < 1.45 < scripts.variance_ratio < 1.85


def test_distances_equal_wasserstein2():
    target, *others = gaussians(20)
    others.append(Gaussian(np.ones(2), np.zeros((2, 2))))
    found = distances(np.stack([one.mean for one in others]), np.stack([one.cov for one in others]), target)
    np.testing.assert_allclose(found, [accord.metrics.wasserstein2(one, target) for one in others], rtol=1e-7)
    assert distances(target.mean, target.cov, target) < 1e-7


def test_refitted_distances_have_the_law_of_fitted_trials():
    source, target = gaussians(2, seed=3)
    rng = np.random.default_rng(4)
    draws = source.mean + rng.standard_normal((30, 3000, 2)) @ source.factor().T
    assert stats.ks_2samp(fitted(draws, target), refitted(source, target, 30, 3000, rng)).pvalue > 0.001


@pytest.mark.parametrize(("factor", "found"), [(1.0, 0), (3.0, 2)])
def test_trials_of_another_law_lie_outside(factor, found):
    source, target = gaussians(2, seed=3)
    rng = np.random.default_rng(5)
    wider = Gaussian(source.mean, factor * source.cov)
    trials = np.array([[refitted(wider, target, 100, 1, rng)[0] for _ in range(2)]])
    tally = Tally(np.zeros((1, 1)), np.ones((1, 1)))
    tally.add(np.zeros((100, 1, 1)))
    curve = Curve(trials, None, (source, source), target, trials=trials, tally=tally)
    assert outside([curve], rng)[:2] == (found, 2)


def test_agent_and_average_equal_those_of_the_law():
    post = dadmms.regression(4, 6, np.random.default_rng(1))
    moments = accord.law(post, accord.Network.ring(4), dadmms.METHODS["D-SGLD"]("ring")).at(3)
    for ours, theirs in zip(both(moments.joint, 4), (moments.agent(0), moments.average), strict=True):
        np.testing.assert_allclose(ours.mean, theirs.mean)
        np.testing.assert_allclose(ours.cov, theirs.cov)


def test_logistic_minima_equal_those_of_scipy():
    data = Data(3, np.random.default_rng(0))
    center = np.random.default_rng(1).standard_normal((3, 3))
    for strength in (0.0, 20.0):
        found = data.minimum(np.zeros((3, 3)), center, strength)
        for i in range(3):

            def value(x, i=i, strength=strength):
                logits = data.X[i] @ x
                loss = (
                    np.logaddexp(0.0, -logits)[data.y[i] == 1].sum() + np.logaddexp(0.0, logits)[data.y[i] == 0].sum()
                )
                return loss + x @ x / (2 * dadmms.PRIOR_VARIANCE * 3) + strength * np.sum((x - center[i]) ** 2) / 2

            best = optimize.minimize(value, np.zeros(3), method="BFGS", options={"gtol": 1e-8})
            assert value(found[i]) <= best.fun + 1e-9
            np.testing.assert_allclose(found[i], best.x, atol=1e-4)
    own = np.stack([data.post.gradients(x)[i] for i, x in enumerate(center)])
    np.testing.assert_allclose(data.gradient(center), own, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_a_figure_at_a_tiny_size(name, tmp_path):
    tiny = replace(EXPERIMENTS[name], sizes={"small": Size(minutes=0.5, memory=1.0, numbers=TINY[name])})
    shares = []
    claims = frame.reproduce(tiny, tmp_path, progress=lambda what, share: shares.append(share))
    assert shares == sorted(shares) and 0 <= shares[0] and shares[-1] <= 1
    checks = [claim for claim in claims if claim.kind == "check"]
    assert len(checks) >= 2 and all(check.verdict is Verdict.HOLDS for check in checks), [
        (c.text, c.why) for c in checks if c.verdict is not Verdict.HOLDS
    ]
    assert all(file.stat().st_size < 300_000 for file in (tmp_path / name).iterdir())
