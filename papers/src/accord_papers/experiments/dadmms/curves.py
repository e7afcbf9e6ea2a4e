"""W2 to the posterior by round, the curves of figures 1 to 4 of the D-ADMMS paper: by the exact law and by trials."""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import numpy as np

from accord import Gaussian, Law, Network, Posterior, Sampler, law
from accord.metrics import wasserstein2
from accord.tuning import Moments

from ..agreement import Tally, bound
from ..frame import Claim, whole_run
from ..verdicts import Verdict
from .common import ROUNDS, START, Recursion

SAME = 1e-8  # tolerance for rounding between law and recursion
TENTH = 0.1  # share of an agent's first distance that counts as converged
CHANCE = 0.001  # false alarm rate of each check of trials


def distances(means: np.ndarray, covs: np.ndarray, target: Gaussian) -> np.ndarray:
    """W2 to the target of Gaussians on the plane, (...,), from means (..., 2) and covariances (..., 2, 2)."""
    # the root of a 2 x 2 matrix M has the trace sqrt(tr M + 2 sqrt det M)
    overlap = np.einsum("ij,...ji->...", target.cov, covs)
    determinant = np.linalg.det(target.cov) * np.linalg.det(covs)
    overlap = np.sqrt(overlap + 2.0 * np.sqrt(np.clip(determinant, 0.0, None)))
    spread = np.trace(target.cov) + np.trace(covs, axis1=-2, axis2=-1) - 2.0 * overlap
    return np.sqrt(np.clip(((means - target.mean) ** 2).sum(axis=-1) + spread, 0.0, None))


def fitted(draws: np.ndarray, target: Gaussian) -> np.ndarray:
    """W2 to the target of Gaussians fitted to trials, (...,), from draws (trial, ..., 2)."""
    means = draws.mean(axis=0)
    off = draws - means
    return distances(means, np.einsum("t...i,t...j->...ij", off, off) / len(draws), target)


def refitted(source: Gaussian, target: Gaussian, trials: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """`count` draws of `fitted` for `trials` trials of a Gaussian on the plane, without drawing the trials."""
    root = source.factor()
    means = source.mean + rng.standard_normal((count, 2)) @ root.T / trials**0.5
    # Bartlett: the scatter of standard normals is T T'
    T = np.zeros((count, 2, 2))
    T[:, 0, 0], T[:, 1, 1] = (rng.chisquare(trials - 1 - i, count) ** 0.5 for i in range(2))
    T[:, 1, 0] = rng.standard_normal(count)
    spread = root @ T
    return distances(means, spread @ np.swapaxes(spread, 1, 2) / trials, target)


@dataclass
class Curve:
    """W2 of agent 0 and of the average to the posterior by round, in arrays of shape (round + 1, 2).

    Parameters
    ----------
    law
        W2 of the exact law.
    apart
        Largest difference between `accord.law` and the recursion, means in posterior sds, covariances in posterior
        variances, relative if they are large. None without `accord.law`.
    last
        The laws of agent 0 and of the average after the last round.
    trials
        W2 of Gaussians fitted to trials. None without trials.
    expected
        Mean W2 of Gaussians fitted to the same number of trials of the law.
    tally
        Moments of the trials for every agent and the average from round 1 on.
    exact
        The law from `accord.law`.
    """

    law: np.ndarray
    apart: float | None
    last: tuple[Gaussian, Gaussian]
    target: Gaussian
    trials: np.ndarray | None = None
    expected: np.ndarray | None = None
    tally: Tally | None = field(default=None, repr=False)
    exact: Law | None = field(default=None, repr=False)

    @property
    def variance_ratio(self) -> float:
        """Variance of the average in the last round over the posterior's."""
        return float(np.trace(self.last[1].cov) / np.trace(self.target.cov))

    @property
    def limit(self) -> Moments:
        """The law after infinitely many rounds."""
        assert self.exact is not None
        return self.exact.stationary()

    def reached(self) -> float:
        """The first round in which agent 0 is within a tenth of its first distance, or infinity."""
        near = np.flatnonzero(self.law[:, 0] <= TENTH * self.law[0, 0])
        return float(near[0]) if near.size else np.inf


def both(joint: Gaussian, agents: int) -> tuple[Gaussian, Gaussian]:
    """The laws of agent 0 and of the average."""
    d = joint.dim // agents
    average = joint.cov.reshape(agents, d, agents, d).mean(axis=(0, 2))
    return Gaussian(joint.mean[:d], joint.cov[:d, :d]), Gaussian(joint.mean.reshape(agents, d).mean(axis=0), average)


def written_out(found: Recursion, post: Posterior, start: Gaussian = START, rounds: int = ROUNDS) -> Curve:
    """The curve of a recursion, without `accord.law` and without trials."""
    target, n = post.exact(), post.num_agents
    pairs = [both(joint, n) for joint in found.walk(start, n, rounds)]
    return Curve(np.array([[wasserstein2(one, target) for one in pair] for pair in pairs]), None, pairs[-1], target)


def curve(
    post: Posterior,
    network: Network,
    sampler: Sampler,
    written: Recursion,
    *,
    start: Gaussian = START,
    rounds: int = ROUNDS,
    trials: int = 0,
    rng: np.random.Generator,
) -> Curve:
    """The curve of a method by `accord.law`, compared with its recursion, and optionally with trials."""
    n, target, exact = post.num_agents, post.exact(), law(post, network, sampler, init=start)
    apart, pairs, means, variances = 0.0, [], [], []
    for k, other in enumerate(written.walk(start, n, rounds)):
        joint = exact.at(k).joint
        scale = np.tile(target.sd, n)
        off = np.abs(joint.mean - other.mean) / (scale + np.abs(other.mean))
        wide = np.abs(joint.cov - other.cov) / (np.outer(scale, scale) + np.abs(other.cov).max())
        apart = max(apart, float(off.max()), float(wide.max()))
        pair = both(joint, n)
        pairs.append(pair)
        means.append(np.concatenate([joint.mean, pair[1].mean]))
        variances.append(np.concatenate([np.diag(joint.cov), np.diag(pair[1].cov)]))
    by_round = np.array([[wasserstein2(one, target) for one in pair] for pair in pairs])
    found = Curve(by_round, apart, pairs[-1], target, exact=exact)
    if trials:
        with jax.enable_x64(True):
            seed = int(rng.integers(2**63))
            run = whole_run(
                post, network, sampler, draws=rounds, burn_in=0, thin=1, chains=trials, seed=seed, init=start
            )
        found.tally = Tally(np.array(means[1:]), np.array(variances[1:]))
        found.tally.add(np.concatenate([run.draws.reshape(trials, rounds, -1), run.average], axis=2))
        shown = fitted(np.stack([run.draws[:, :, 0], run.average], axis=2), target)
        # a run does not record round 0
        found.trials = np.concatenate([np.full((1, 2), np.nan), shown])
        found.expected = np.array([[refitted(one, target, trials, 200, rng).mean() for one in pair] for pair in pairs])
    return found


def worst_score(curves: list[Curve]) -> tuple[float, float]:
    """The largest score of trials against the law, and the bound for a false alarm rate of 0.001."""
    tallies = [curve.tally for curve in curves if curve.tally is not None]
    scores = [score for tally in tallies for score in (tally.mean_scores(), tally.variance_scores())]
    return max(float(np.abs(score).max()) for score in scores), bound(sum(score.size for score in scores), CHANCE)


def outside(curves: list[Curve], rng: np.random.Generator) -> tuple[int, int, int]:
    """Distances in the last round outside the range of `count` draws from the law: their number, all, and `count`.

    Under the law, each distance is outside with probability 2 / (count + 1), and any with probability at most CHANCE.
    """
    shown = [curve for curve in curves if curve.trials is not None]
    count, found = int(np.ceil(2 * 2 * len(shown) / CHANCE)), 0
    for curve in shown:
        assert curve.trials is not None and curve.tally is not None
        for one, value in zip(curve.last, curve.trials[-1], strict=True):
            drawn = refitted(one, curve.target, curve.tally.chains, count, rng)
            found += not drawn.min() <= value <= drawn.max()
    return found, 2 * len(shown), count


def checks(curves: list[Curve], rng: np.random.Generator) -> list[Claim]:
    """Checks of the law against the equations, and of the trials against the law."""
    apart = max(found.apart for found in curves if found.apart is not None)
    score, most = worst_score(curves)
    out, tests, count = outside(curves, rng)
    return [
        Claim(
            "accord.law",
            "the exact law is that of the printed equations written out as matrices",
            Verdict.of(apart < SAME),
            f"largest difference at any round, of means in posterior sds, of covariances in variances; bound {SAME:g}",
            law=apart,
            kind="check",
        ),
        Claim(
            "accord.sample",
            "the trials have the exact law at every round",
            Verdict.of(score < most),
            f"largest score of means and variances over agents, average and rounds; bound {most:.3g}, which trials of "
            f"that law exceed with a chance of {CHANCE:g}",
            ours=score,
            kind="check",
        ),
        Claim(
            "accord.sample",
            "the trials' curves agree with the law's",
            Verdict.of(out == 0),
            f"of {tests} distances fitted to trials of the last round, how many lie outside the range of {count} that "
            f"were fitted to draws of the exact law; with a chance of {CHANCE:g} at most one would",
            ours=float(out),
            kind="check",
        ),
    ]
