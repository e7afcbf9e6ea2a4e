"""`ChEES` on hierarchies kept whole, funnels and heavy tails: sums, errors, and whether certified runs are right.

python benchmarks/fallback.py             # all posteriors, 5 seeds each
python benchmarks/fallback.py funnel 2    # posteriors whose name contains a text, 2 seeds
python benchmarks/fallback.py --default   # the default method instead of ChEES

References are exact for `hier`, `funnel`, `student`, `schools` and the scales of `brownian`. For `seeds` and
`glmm` they are long runs of NUTS, in tests/data/posteriordb. The ending _c stands for centred effects, and _h for the
same with the argument `hierarchy` of the posterior.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import log_sigmoid, softplus

import accord
from accord.samplers import ChEES

DATA = Path(__file__).parents[1] / "tests" / "data" / "posteriordb"
# A run is wrong if a mean is off by more than this number of sds, or an sd by more than this share. Random errors of
# 4,000 effective draws are .016 sds and 1.1%, and about three times as large in the worst of 50 parameters.
MEAN, SD = 0.1, 0.1


class Target(NamedTuple):
    """A posterior: log density, dim, means and sds, and what they are of, from positions (draw, dim).

    If it has effects, they follow `others` numbers, which give the location and scale of their prior.
    """

    log_density: Callable[[jax.Array], jax.Array]
    dim: int
    mean: np.ndarray
    sd: np.ndarray
    of: Callable[[np.ndarray], np.ndarray] = lambda x: x
    others: int = 0
    prior: Callable[[jax.Array], tuple[Any, Any]] | None = None

    def posterior(self, declared: bool) -> accord.Posterior:
        """The posterior of one agent, with the prior of effects if it is declared."""
        count = self.others

        def log_density(params):
            return self.log_density(jnp.concatenate([params["others"], params["rest"]]))

        return accord.Posterior(
            lambda params, rows: jnp.zeros(rows.shape[0]),
            log_density,
            [np.zeros((1, 1))],
            {"others": np.zeros(count), "rest": np.zeros(self.dim - count)},
            hierarchy=(lambda params: {"rest": self.prior(params["others"])}) if declared else None,
        )


def normal(x, mean=0.0, sd=1.0):
    return -0.5 * ((x - mean) / sd) ** 2 - jnp.log(sd)


def half_cauchy(sd, scale):
    return -jnp.log1p((sd / scale) ** 2)


def moments(weight: np.ndarray, mean: np.ndarray, variance: np.ndarray | float = 0.0) -> tuple[float, float]:
    """Mean and sd of a mixture."""
    center = float((weight * mean).sum())
    return center, float(np.sqrt((weight * (mean**2 + variance)).sum() - center**2))


def normal_means(y: np.ndarray, error: np.ndarray, width: float, centred: bool) -> Target:
    """Means y of groups with known errors: a normal population with a half-Cauchy sd. Exact by quadrature."""

    def log_density(x):
        tau = jnp.exp(x[1])
        effect = x[2:] if centred else x[0] + tau * x[2:]
        prior = normal(x[2:], x[0], tau) if centred else normal(x[2:])
        whole = normal(x[0], 0.0, 5.0) + half_cauchy(tau, width) + x[1]
        return whole + prior.sum() + normal(y, effect, error).sum()

    log_tau = np.linspace(-14.0, 7.0, 4001)
    tau = np.exp(log_tau)[:, None]
    total = tau**2 + error**2
    of_mu = 1.0 / (1.0 / 25.0 + (1.0 / total).sum(axis=1))
    mu = of_mu * (y / total).sum(axis=1)
    log_weight = -0.5 * np.log(total).sum(axis=1) - 0.5 * (y**2 / total).sum(axis=1) + 0.5 * mu**2 / of_mu
    log_weight += 0.5 * np.log(of_mu) - np.log1p((tau[:, 0] / width) ** 2) + log_tau
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    found = [moments(weight, mu, of_mu), moments(weight, log_tau)]
    for k in range(len(y)):
        share = (error**2 / total)[:, k]
        if centred:
            found.append(moments(weight, share * mu + (1 - share) * y[k], share * tau[:, 0] ** 2 + share**2 * of_mu))
        else:
            slope = (tau / total)[:, k]
            found.append(moments(weight, slope * (y[k] - mu), share + slope**2 * of_mu))
    mean, sd = np.array(found).T
    return Target(log_density, 2 + len(y), mean, sd, others=2, prior=lambda x: (x[0], jnp.exp(x[1])))


def hierarchy(groups: int, error: float, centred: bool) -> Target:
    rng = np.random.default_rng(1)
    y = 1.0 + 0.5 * rng.standard_normal(groups) + error * rng.standard_normal(groups)
    return normal_means(y, np.full(groups, error), 2.0, centred)


def schools(centred: bool) -> Target:
    found = json.loads((DATA / "eight_schools.json").read_text())
    return normal_means(np.array(found["y"], float), np.array(found["sigma"], float), 5.0, centred)


def reference(name: str, *names: str) -> tuple[np.ndarray, np.ndarray]:
    found = json.loads((DATA / "nuts.json").read_text())[name]
    mean, sd = (np.concatenate([np.ravel(found[k][what]) for k in names]) for what in ("mean", "sd"))
    return mean, sd


def seeds(centred: bool) -> Target:
    """Seeds of posteriordb: a binomial regression with an effect of each plate."""
    found = json.loads((DATA / "seeds_data.json").read_text())
    n, total, x1, x2 = (np.array(found[k], float) for k in ("n", "N", "x1", "x2"))

    def log_density(x):
        s = jnp.exp(x[4])
        effect, prior = (x[5:], normal(x[5:], 0.0, s)) if centred else (s * x[5:], normal(x[5:]))
        logit = x[0] + x[1] * x1 + x[2] * x2 + x[3] * x1 * x2 + effect
        whole = normal(x[:4]).sum() + half_cauchy(s, 1.0) + x[4] + prior.sum()
        return whole + (n * logit - total * softplus(logit)).sum()

    def of(x):
        s = np.exp(x[:, 4:5])
        return np.concatenate([x[:, :4], s, x[:, 5:] if centred else s * x[:, 5:]], axis=1)

    return Target(log_density, 26, *reference("seeds", "a", "s", "b"), of, 5, lambda x: (0.0, jnp.exp(x[4])))


def glmm(centred: bool) -> Target:
    """GLMM_Poisson of posteriordb: counts by year, with an effect of each year."""
    found = json.loads((DATA / "GLMM_Poisson_data.json").read_text())
    counts, year = (np.array(found[k], float) for k in ("C", "year"))
    low, high = np.array([-20.0, *[-10.0] * 3, 0.0]), np.array([20.0, *[10.0] * 3, 5.0])
    powers = np.stack([np.ones(40), year, year**2, year**3], axis=1)

    def log_density(x):
        ends = low + (high - low) * jax.nn.sigmoid(x[:5])
        s = ends[4]
        effect, prior = (x[5:], normal(x[5:], 0.0, s)) if centred else (s * x[5:], normal(x[5:]))
        rate = powers @ ends[:4] + effect
        whole = (log_sigmoid(x[:5]) + log_sigmoid(-x[:5])).sum() + prior.sum()
        return whole + (counts * rate - jnp.exp(rate)).sum()

    def of(x):
        ends = low + (high - low) / (1.0 + np.exp(-x[:, :5]))
        return np.concatenate([ends, x[:, 5:] if centred else ends[:, 4:] * x[:, 5:]], axis=1)

    known = reference("glmm_poisson", "alpha", "beta", "s", "e")
    return Target(log_density, 45, *known, of, 5, lambda x: (0.0, 5.0 * jax.nn.sigmoid(x[4])))


def brownian() -> Target:
    """A random walk with 10 of 30 noisy positions missing, and both scales unknown: a funnel in the noise."""
    rng = np.random.default_rng(3)
    walk = np.cumsum(0.1 * rng.standard_normal(30))
    y, seen = walk + 0.15 * rng.standard_normal(30), np.r_[0:10, 20:30]

    def log_density(x):
        step, noise, z = jnp.exp(x[0]), jnp.exp(x[1]), x[2:]
        whole = normal(x[:2], 0.0, 2.0).sum() + normal(z[0], 0.0, step) + normal(z[1:], z[:-1], step).sum()
        return whole + normal(y[seen], z[seen], noise).sum()

    first, second = np.linspace(-8.0, 2.0, 401), np.linspace(-14.0, 2.0, 801)
    values, vectors = np.linalg.eigh(np.minimum.outer(seen, seen) + 1.0)
    squares = (vectors.T @ y[seen]) ** 2
    variance = np.exp(2.0 * first)[:, None, None] * values + np.exp(2.0 * second)[:, None]
    log_weight = -0.5 * (squares / variance + np.log(variance)).sum(axis=2) - first[:, None] ** 2 / 8 - second**2 / 8
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    found = [moments(weight.sum(axis=1), first), moments(weight.sum(axis=0), second)]
    mean, sd = np.array(found).T
    return Target(log_density, 32, mean, sd, lambda x: x[:, :2])


def funnel(dim: int) -> Target:
    """Neal's funnel; the reference is of the scale, as the others have no practical sd."""
    return Target(
        lambda x: normal(x[0], 0.0, 3.0) + normal(x[1:], 0.0, jnp.exp(x[0] / 2)).sum(),
        dim,
        np.zeros(1),
        np.full(1, 3.0),
        lambda x: x[:, :1],
    )


def student(dim: int, freedom: float) -> Target:
    return Target(
        lambda x: -0.5 * (freedom + dim) * jnp.log1p((x**2).sum() / freedom),
        dim,
        np.zeros(dim),
        np.full(dim, np.sqrt(freedom / (freedom - 2.0))),
    )


TARGETS: dict[str, Callable[[], Target]] = {
    "seeds": lambda: seeds(False),
    "glmm": lambda: glmm(False),
    "schools": lambda: schools(False),
    "seeds_c": lambda: seeds(True),
    "glmm_c": lambda: glmm(True),
    "schools_c": lambda: schools(True),
    "seeds_h": lambda: seeds(True),
    "glmm_h": lambda: glmm(True),
    "schools_h": lambda: schools(True),
    "brownian": brownian,
    **{
        f"hier {groups}, {error}{end}": lambda g=groups, e=error, c=bool(end): hierarchy(g, e, c)
        for end in ("_c", "_h", "")
        for groups in (5, 10, 20, 50)
        for error in (0.25, 0.5, 1.0, 2.0)
    },
    **{f"funnel {dim}": lambda d=dim: funnel(d) for dim in (2, 3, 5, 10, 20)},
    **{f"student {nu}, {dim}": lambda d=dim, n=nu: student(d, n) for nu in (2.5, 4.0) for dim in (1, 3, 10)},
}


def main(only: str, seeds: int, default: bool) -> None:
    print("| posterior | sums | certified | right | error of means, of sds | failed checks |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, make in TARGETS.items():
        if only not in name:
            continue
        target = make()
        post = target.posterior(declared=name.endswith("_h"))
        sums, certified, right, both, means, sds, failed = [], 0, 0, 0, [], [], set()
        for seed in range(seeds):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                method = () if default else (ChEES(),)
                run = accord.sample(post, accord.Network.empty(1), *method, seed=seed)
            x = target.of(run.average.reshape(-1, target.dim))
            means.append(np.abs((x.mean(axis=0) - target.mean) / target.sd).max())
            sds.append(np.abs(x.std(axis=0) / target.sd - 1.0).max())
            is_right = means[-1] < MEAN and sds[-1] < SD
            sums.append(run.traffic.sums)
            certified += run.certificate.holds
            right += is_right
            both += is_right and run.certificate.holds
            failed |= {check.name for check in run.certificate.checks if not check.holds}
        shown = f"{certified} of {seeds}" + (f" ({certified - both} wrong)" if certified > both else "")
        errors = f"{max(means):.2f}, {max(sds):.0%}"
        print(f"| {name} | {min(sums)} to {max(sums)} | {shown} | {right} | {errors} | {', '.join(sorted(failed))} |")


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    main(words[0] if words else "", int(words[1]) if len(words) > 1 else 5, "--default" in sys.argv)
