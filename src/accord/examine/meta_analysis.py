"""Two-stage meta-analysis of the sites' own estimates, to compare with the posterior of all rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np
import scipy
from jaxtyping import Array, Float

from ..network import Network
from ..posterior import Posterior
from ..posterior.potential import Potential, Shard
from ..results.run import Run
from ..samplers.by_sums.evaluations import UndeterminedError, combination, mode_of
from ..samplers.engine import Builder
from .agents import Agents, agents_of
from .sites import names_of_sites

if TYPE_CHECKING:
    import pandas as pd

# Most Newton steps, and the least factor of a step.
_MOST_STEPS, _SHORTEST = 100, 1e-12
# Squared length of the last Newton step, in standard deviations of the estimate.
_LAST_STEP = 1e-14
# Information of a site about a direction, relative to the posterior of all data, below which it has no estimate.
_FLAT = 1e-6
# Share of a parameter in such directions from which on it has no estimate.
_PART = 1e-3
# Probability of intervals.
_INTERVAL = 0.95


class Pooled(NamedTuple):
    """A pooled estimate of the sites' estimates.

    Parameters
    ----------
    estimate, se
        The estimate and its standard error.
    low, high
        The 95% confidence interval, with normal quantiles.
    tau
        Standard deviation of the sites' true values, 0 with a fixed effect.
    """

    estimate: float
    se: float
    low: float
    high: float
    tau: float


class Pooling(NamedTuple):
    """Fixed and random effects of one parameter.

    Parameters
    ----------
    fixed
        Weights by inverse variances, as if all sites had the same value.
    dl, reml
        Random effects. tau is by DerSimonian and Laird (1986), or by restricted maximum likelihood.
    Q, p, I2
        Cochran's Q, its p-value, and the percentage of the variation of estimates that is due to heterogeneity (Higgins
        & Thompson 2002, from Q).
    predicted
        95% prediction interval for the value of another site, from `reml` with t quantiles of K - 2 degrees of freedom
        (Riley, Higgins & Deeks 2011). Not a number for two sites.
    """

    fixed: Pooled
    dl: Pooled
    reml: Pooled
    Q: float
    p: float
    I2: float
    predicted: tuple[float, float]


@dataclass(frozen=True, eq=False)
class MetaAnalysis:
    """Two-stage meta-analysis of every parameter.

    Parameters
    ----------
    names
        Names of the unconstrained parameters.
    sites
        Names of the sites.
    estimate, se
        Maximum likelihood estimates of each site's own rows and their standard errors, (site, parameter). Not a number
        if the site has no estimate of this parameter, for example because its rows are separated.
    pooled
        The pooled estimates of each parameter, None if fewer than two sites have an estimate.
    mean, sd
        Means and standard deviations of the posterior of all rows, (parameter,).
    interval
        Its 2.5% and 97.5% quantiles, (parameter, 2).
    one_shot, one_shot_sd
        Mean and standard deviations of the one-shot estimate, (parameter,): the Gaussian
        N(A^-1 sum_i A_i m_i, A^-1), A = sum_i A_i, with the mode m_i and the curvature A_i of site i's own rows and its
        equal share of the prior. This is Bayesian federated inference (Jonker, Pazira and Coolen 2024) with this share
        as the local prior. The paper's local prior is the whole prior, as in `accord.samplers.combine.bfi`. Modes are
        found to a tenth of the standard deviations of a site. Not a number if A is not positive definite.
    """

    names: tuple[str, ...]
    sites: tuple[str, ...]
    estimate: np.ndarray
    se: np.ndarray
    pooled: tuple[Pooling | None, ...]
    mean: np.ndarray
    sd: np.ndarray
    interval: np.ndarray
    one_shot: np.ndarray
    one_shot_sd: np.ndarray

    def __repr__(self) -> str:
        return f"<MetaAnalysis: {len(self.names)} parameters of {len(self.sites)} sites>"

    @property
    def table(self) -> pd.DataFrame:
        """One row per parameter: posterior, one-shot and pooled estimates, tau, and the prediction interval."""
        import pandas as pd

        rows = []
        for place, found in enumerate(self.pooled):
            row: dict[str, float] = {"sites": int(np.isfinite(self.estimate[:, place]).sum())}
            row |= {"posterior": self.mean[place], "sd": self.sd[place]}
            row |= {"one shot": self.one_shot[place], "one shot sd": self.one_shot_sd[place]}
            if found is not None:
                row |= {"fixed": found.fixed.estimate, "fixed se": found.fixed.se}
                row |= {"random": found.reml.estimate, "random se": found.reml.se, "tau": found.reml.tau}
                row |= {"predicted low": found.predicted[0], "predicted high": found.predicted[1]}
            rows.append(row)
        return pd.DataFrame(rows, index=list(self.names))

    def without_estimate(self) -> dict[str, tuple[str, ...]]:
        """The parameters without an estimate, by site. Sites with all estimates are left out."""
        missing = ~np.isfinite(self.estimate)
        return {
            site: tuple(name for name, is_missing in zip(self.names, own, strict=True) if is_missing)
            for site, own in zip(self.sites, missing, strict=True)
            if own.any()
        }


def meta_analysis(run: Run, post: Posterior, network: Network, *, engine: str | Builder = "local") -> MetaAnalysis:
    """What a meta-analysis of the sites' own estimates would find, beside the posterior of all rows.

    Each site estimates all parameters from its own rows by maximum likelihood, without the prior. Then the estimates
    of each parameter are pooled, with fixed and with random effects. The posterior needs no site to have an estimate of
    its own. The one-shot estimate is the Gaussian of Bayesian federated inference, from the first sum of `Importance`.
    Parameters are unconstrained ones: the log of a standard deviation, for example.

    Parameters
    ----------
    run, post, network, engine
        As in `accord.loo`.

    Raises
    ------
    ValueError
        The sums of the run are masked or coarse, as estimates of single sites would reveal what they hide. Or the run
        is of another posterior or network.

    Examples
    --------
    >>> import accord
    >>> post = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0, 2.0, 3.0])
    >>> net = accord.Network.ring(3)
    >>> found = accord.meta_analysis(accord.sample(post, net, seed=0), post, net)
    >>> found.table["fixed"].round(3).tolist(), round(found.pooled[0].fixed.se ** -2, 3)
    ([-0.364], 1.833)
    """
    with agents_of(run, post, network, engine, single=True) as agents:
        return analysed(run, agents, names_of_sites(run))


def analysed(run: Run, agents: Agents, sites: tuple[str, ...]) -> MetaAnalysis:
    """`meta_analysis`, for agents without masked sums."""
    draws = run.moved.average.astype(np.float64)
    flat = draws.reshape(-1, draws.shape[2])
    mean, covariance = flat.mean(axis=0), np.cov(flat, rowvar=False).reshape(flat.shape[1], flat.shape[1])
    estimate, se = _estimates(agents, mean, np.linalg.cholesky(covariance))
    pooled = [
        pool(own[known], errors[known]) if (known := np.isfinite(own)).sum() > 1 else None
        for own, errors in zip(estimate.T, se.T, strict=True)
    ]
    names = agents.post.unconstrained_names
    interval = np.quantile(flat, [(1.0 - _INTERVAL) / 2.0, (1.0 + _INTERVAL) / 2.0], axis=0).T
    sd, one_shot = np.sqrt(np.diagonal(covariance)), _one_shot(agents)
    return MetaAnalysis(names, sites, estimate, se, tuple(pooled), mean, sd, interval, *one_shot)


def _one_shot(agents: Agents) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviations of the one-shot estimate, (dim,), by the first sum of `Importance`."""
    post = agents.post
    try:
        (numbers,) = agents.totals(mode_of, points=post.init[None], at_once=1)
        _, mean, precision = combination(np.asarray(numbers, np.float64), post.dim)
    except UndeterminedError:
        return np.full(post.dim, np.nan), np.full(post.dim, np.nan)
    return mean, np.sqrt(np.diagonal(np.linalg.inv(precision)))


# --- first stage ---


def negative_log_likelihood(
    potential: Potential, shard: Shard, x: Float[Array, " dim"]
) -> tuple[Array, Float[Array, " dim"], Float[Array, "dim dim"]]:
    """Value, gradient and Hessian of an agent's negative log likelihood."""

    def value(x: Float[Array, " dim"]) -> Array:
        return -potential.shard_log_likelihood(shard, x)

    return value(x), jax.grad(value)(x), jax.hessian(value)(x)


def _estimates(agents: Agents, start: np.ndarray, factor: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Maximum likelihood estimates and standard errors, (agent, dim), by Newton's method at all agents in lockstep.

    Directions are scaled by a factor of the posterior's covariance, (dim, dim).
    """
    count = agents.post.num_agents
    at, shrink = np.repeat(start[None], count, axis=0), np.ones(count)

    def expanded(at: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        value, gradient, hessian = (
            np.asarray(part, np.float64) for part in agents.placed.each(negative_log_likelihood, own=(at,))
        )
        finite = np.isfinite(value) & np.isfinite(gradient).all(axis=1) & np.isfinite(hessian).all(axis=(1, 2))
        return np.where(finite, value, np.inf), gradient @ factor, factor.T @ hessian @ factor

    here = expanded(at)
    for _ in range(_MOST_STEPS):
        steps = np.stack([_step(g, h) for g, h in zip(here[1], here[2], strict=True)])
        # squared lengths of the steps in standard deviations of the estimates
        found = -(steps * here[1]).sum(axis=1) < _LAST_STEP
        if (found | (shrink < _SHORTEST) | ~np.isfinite(here[0])).all():
            break
        moved = at + np.where(found, 0.0, shrink)[:, None] * (steps @ factor.T)
        there = expanded(moved)
        better = there[0] <= here[0] + 1e-12 * np.abs(here[0])
        at = np.where(better[:, None], moved, at)
        here = tuple(  # type: ignore[assignment]
            np.where(better.reshape(-1, *[1] * (new.ndim - 1)), new, old) for new, old in zip(there, here, strict=True)
        )
        shrink = np.where(better, np.minimum(1.0, 2.0 * shrink), shrink / 4.0)
    se = np.stack([_standard_errors(h, factor) for h in here[2]])
    se[~(found & np.isfinite(here[0]))] = np.nan
    return np.where(np.isfinite(se), at, np.nan), se


def _step(gradient: np.ndarray, hessian: np.ndarray) -> np.ndarray:
    """The Newton step along directions that the rows of a site determine."""
    if not np.isfinite(hessian).all():
        return np.zeros(len(gradient))
    values, vectors = np.linalg.eigh(hessian)
    sizes = np.abs(values)
    return np.asarray(-vectors @ np.where(sizes > _FLAT, vectors.T @ gradient / np.maximum(sizes, _FLAT), 0.0))


def _standard_errors(hessian: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """Standard errors at an estimate, (dim,), not a number for parameters that the site's rows do not determine."""
    if not np.isfinite(hessian).all():
        return np.full(len(factor), np.nan)
    values, vectors = np.linalg.eigh(hessian)
    directions, is_flat = factor @ vectors, values <= _FLAT
    part = np.linalg.norm(directions[:, is_flat], axis=1)
    se = np.linalg.norm(directions[:, ~is_flat] / np.sqrt(values[~is_flat]), axis=1)
    return np.where(part > _PART * np.linalg.norm(factor, axis=1), np.nan, se)


# --- second stage ---


def pool(estimate: Float[np.ndarray, " site"], se: Float[np.ndarray, " site"]) -> Pooling:
    """Pool at least two estimates with standard errors > 0."""
    weight, free = se**-2.0, len(estimate) - 1
    fixed = _pooled(estimate, se, 0.0)
    Q = float(weight @ (estimate - fixed.estimate) ** 2)
    dl = max(0.0, (Q - free) / (weight.sum() - (weight**2).sum() / weight.sum()))
    reml = _pooled(estimate, se, _reml(estimate, se))
    spread = scipy.stats.t.ppf((1.0 + _INTERVAL) / 2.0, free - 1) * np.hypot(reml.tau, reml.se) if free > 1 else np.nan
    return Pooling(
        fixed,
        _pooled(estimate, se, dl),
        reml,
        Q,
        float(scipy.stats.chi2.sf(Q, free)),
        100.0 * max(0.0, (Q - free) / Q) if Q > 0.0 else 0.0,
        (float(reml.estimate - spread), float(reml.estimate + spread)),
    )


def _pooled(estimate: np.ndarray, se: np.ndarray, tau2: float) -> Pooled:
    """The mean weighted by inverse variances, where tau2 is the variance between sites."""
    weight = 1.0 / (se**2 + tau2)
    mean, error = float(weight @ estimate / weight.sum()), float(weight.sum() ** -0.5)
    half = scipy.stats.norm.ppf((1.0 + _INTERVAL) / 2.0) * error
    return Pooled(mean, error, mean - half, mean + half, tau2**0.5)


def _reml(estimate: np.ndarray, se: np.ndarray) -> float:
    """The variance between sites by restricted maximum likelihood, >= 0."""

    def slope(tau2: float) -> float:
        # twice the derivative of the negative restricted log likelihood
        weight = 1.0 / (se**2 + tau2)
        mean = weight @ estimate / weight.sum()
        return float(weight.sum() - (weight**2).sum() / weight.sum() - (weight**2) @ (estimate - mean) ** 2)

    def loss(tau2: float) -> float:
        weight = 1.0 / (se**2 + tau2)
        mean = weight @ estimate / weight.sum()
        return float(np.log(weight.sum()) - np.log(weight).sum() + weight @ (estimate - mean) ** 2)

    # local minima lie between a falling and a rising place; beyond the last place the likelihood only falls
    most = 10.0 * (np.ptp(estimate) ** 2 + (se**2).max())
    grid = np.concatenate([[0.0], np.geomspace(1e-8 * most, most, 200)])
    slopes = np.array([slope(tau2) for tau2 in grid])
    falls = np.flatnonzero((slopes[:-1] < 0.0) & (slopes[1:] >= 0.0))
    minima = [0.0, *(float(scipy.optimize.brentq(slope, *grid[k : k + 2], xtol=1e-14 * most)) for k in falls)]
    return min(minima, key=loss)
