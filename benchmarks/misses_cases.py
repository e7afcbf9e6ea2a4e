"""Posteriors of known means and standard deviations, split over 3 agents, for `misses.py`."""

from functools import partial
from math import exp, gamma, inf, sqrt
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import problems

import accord

# Each agent's share of a scalar log likelihood.
SHARES = (0.5, 0.3, 0.2)


class Case(NamedTuple):
    """A posterior, and its true means and sds (None: unknown), each (number,)."""

    family: str
    name: str
    post: accord.Posterior
    mean: np.ndarray | None = None
    sd: np.ndarray | None = None


def flat(params):
    return 0.0 * sum(jnp.sum(leaf) for leaf in jax.tree.leaves(params))


def shared(**numbers):
    """One shard for each agent, with equal numbers and its share of the log likelihood."""
    return [{**{k: np.asarray(v, float) for k, v in numbers.items()}, "share": np.asarray(s)} for s in SHARES]


def split(t, y, **numbers):
    """One shard for each agent, with a third of the rows and equal other numbers."""
    order = np.random.default_rng(0).permutation(len(t))
    same = {k: np.asarray(v, float) for k, v in numbers.items()}
    return [{"t": t[rows], "y": y[rows], **same} for rows in np.array_split(order, 3)]


# --- mixtures of Gaussians ---


def _mixture(x, s):
    z = x - s["mean"]
    squares = jnp.einsum("ki,kij,kj->k", z, s["precision"], z)
    return s["share"] * jax.scipy.special.logsumexp(s["log_mass"] - squares / 2.0)


def mixture(family, name, weight, mean, cov):
    """A mixture of Gaussians with the first component's mean as `init`."""
    weight, mean, cov = (np.asarray(a, float) for a in (weight, mean, cov))
    log_mass = np.log(weight) - np.linalg.slogdet(cov)[1] / 2.0
    shards = shared(mean=mean, precision=np.linalg.inv(cov), log_mass=log_mass)
    middle = weight @ mean
    variance = weight @ (np.square(mean - middle) + np.diagonal(cov, axis1=1, axis2=2))
    return Case(family, name, accord.Posterior(_mixture, flat, shards, mean[0]), middle, np.sqrt(variance))


def equal(dim, rho, sd=1.0):
    return sd**2 * ((1.0 - rho) * np.eye(dim) + rho)


def two(dim, distance, weight, scale=1.0, along="axis", third=None):
    """Two Gaussians at `distance` sds of the first. `third` is the weight of a third one at the same distance."""
    rng = np.random.default_rng(dim)
    random = rng.standard_normal(dim)
    direction = {"axis": np.eye(dim)[0], "diagonal": np.ones(dim) / sqrt(dim), "random": random}[along]
    direction = direction / np.linalg.norm(direction)
    means, weights = [np.zeros(dim), distance * direction], [1.0 - weight, weight]
    name = f"d={dim} distance={distance} weight={weight} scale={scale} {along}"
    if third is not None:
        other = rng.standard_normal(dim)
        other -= (other @ direction) * direction if dim > 1 else 2.0 * other
        means.append(distance * other / np.linalg.norm(other))
        weights, name = [1.0 - weight - third, weight, third], f"{name} third={third}"
    covs = [np.eye(dim), *[scale**2 * np.eye(dim)] * (len(means) - 1)]
    return mixture("two", name, weights, means, covs)


def shelf(dim, rho, wide, weight, narrow=1.0, count=1):
    """A correlated peak and a component that is wide along the last `count` parameters, without correlation."""
    sd = np.full(dim, narrow)
    sd[-count:] = wide
    name = f"shelf d={dim} rho={rho} wide={wide} weight={weight} narrow={narrow} along {count}"
    covs = [equal(dim, rho), np.diag(sd**2)]
    return mixture("plateau", name, [1.0 - weight, weight], np.zeros((2, dim)), covs)


def slabs(dim, rho, wide, weight):
    """Independent spikes and slabs, x = L z, as a mixture of 2^dim Gaussians."""
    factor = np.linalg.cholesky(equal(dim, rho))
    which = (np.arange(2**dim)[:, None] >> np.arange(dim)) % 2
    covs = [factor @ np.diag(np.where(w, wide, 1.0) ** 2) @ factor.T for w in which]
    weights = np.where(which, weight, 1.0 - weight).prod(axis=1)
    name = f"spikes and slabs d={dim} rho={rho} wide={wide} weight={weight}"
    return mixture("plateau", name, weights, np.zeros((2**dim, dim)), covs)


# --- curves with one nonlinear parameter ---

# Columns of each curve at t, given the nonlinear parameter.
CURVES = {
    "decay": lambda t, k: [jnp.exp(-jnp.exp(k) * t), jnp.ones_like(t)],
    "change": lambda t, k: [jnp.ones_like(t), jax.nn.sigmoid((t - k) / 0.1)],
    "saturation": lambda t, k: [t / (jnp.exp(k) + t)],
    "wave": lambda t, k: [jnp.sin(jnp.pi * jax.nn.sigmoid(k) * t), jnp.cos(jnp.pi * jax.nn.sigmoid(k) * t)],
}


def _of_curve(name):
    def log_likelihood(x, s):
        fitted = sum(b * column for b, column in zip(x[:-1], CURVES[name](s["t"], x[-1]), strict=True))
        return -jnp.sum(jnp.square(s["y"] - fitted)) / s["noise"] ** 2 / 2.0 + _prior(x, s)

    return log_likelihood


def _prior(x, s):
    """A third of the log density of a normal prior."""
    return -jnp.sum(jnp.square((x - s["centre"]) / s["width"])) / 6.0


def curve(name, t, truth, noise, width, own=1.0, seed=0):
    """A curve of t with normal priors around 0, with sd `own` for linear parameters and `width` for the last."""
    t, truth = np.asarray(t, float), np.asarray(truth, float)

    def columns(k):
        return np.stack(CURVES[name](t, k), axis=1)

    y = columns(truth[-1]) @ truth[:-1] + noise * np.random.default_rng(seed).standard_normal(t.size)
    centre, width = np.zeros(truth.size), np.append(np.full(truth.size - 1, own), width)
    grid = np.linspace(-8.0, 8.0, 20_001) * width[-1]
    with jax.enable_x64(True):
        designs = np.moveaxis(np.asarray(jax.vmap(lambda k: jnp.stack(CURVES[name](t, k)))(grid)), 1, 2)
    # integrate linear parameters out
    precision = np.einsum("gti,gtj->gij", designs, designs) / noise**2 + np.eye(truth.size - 1) / own**2
    slope = np.einsum("gti,t->gi", designs, y) / noise**2
    covs = np.linalg.inv(precision)
    best = np.einsum("gij,gj->gi", covs, slope)
    log_mass = (best * slope).sum(axis=1) / 2.0 + np.linalg.slogdet(covs)[1] / 2.0 - np.square(grid / width[-1]) / 2.0
    mass = np.exp(log_mass - log_mass.max())
    mass /= mass.sum()
    means = np.column_stack([best, grid])
    middle = mass @ means
    extra = np.column_stack([np.diagonal(covs, axis1=1, axis2=2), np.zeros(grid.size)])
    sd = np.sqrt(mass @ (np.square(means - middle) + extra))
    shards = split(t, y, noise=noise, centre=centre, width=width)
    peak = grid[np.argmax(mass)]
    away = mass[np.abs(grid - peak) > 0.25 * width[-1]].sum()
    label = f"{name} rows={t.size} noise={noise} width={width[-1]} away={away:.2f}"
    return Case("plateau", label, accord.Posterior(_of_curve(name), flat, shards, truth), middle, sd)


def _sine(x, s):
    size = jnp.where(s["log"] > 0, jnp.exp(x[0]), x[0])
    fitted = size * jnp.sin(jnp.pi * jax.nn.sigmoid(x[2]) * s["t"] + x[1])
    return -jnp.sum(jnp.square(s["y"] - fitted)) / s["noise"] ** 2 / 2.0 + _prior(x, s)


def sine(rows, noise, width, log=True, seed=0, place=-0.4):
    """A sine with normal priors on its amplitude (or log amplitude), phase, and logit of twice the frequency."""
    t, truth = np.arange(rows, dtype=float), np.array([0.0 if log else 1.0, 0.5, place])
    size = np.exp(truth[0]) if log else truth[0]
    y = size * np.sin(np.pi / (1.0 + np.exp(-place)) * t + truth[1])
    y = y + noise * np.random.default_rng(seed).standard_normal(rows)
    centre, sds = np.zeros(3), np.array([1.0, 1.0, width])
    grids = [np.linspace(-m, m, n) * s for m, n, s in zip((6.0, 6.0, 6.0), (121, 97, 2401), sds, strict=True)]
    angle = np.pi / (1.0 + np.exp(-grids[2][:, None])) * t
    sin, cos = np.sin(angle), np.cos(angle)
    a = (np.exp(grids[0]) if log else grids[0])[:, None, None]
    # a sin(angle + phase) is linear in a cos(phase) and a sin(phase)
    c, d = a * np.cos(grids[1])[:, None], a * np.sin(grids[1])[:, None]
    fit = c * (sin @ y) + d * (cos @ y)
    fit -= (c**2 * np.square(sin).sum(axis=1) + d**2 * np.square(cos).sum(axis=1)) / 2.0
    fit -= c * d * (sin * cos).sum(axis=1)
    fit /= noise**2
    for axis, (grid, sd) in enumerate(zip(grids, sds, strict=True)):
        fit -= np.square(grid / sd).reshape([-1 if k == axis else 1 for k in range(3)]) / 2.0
    mass = np.exp(fit - fit.max())
    mass /= mass.sum()
    sides = [mass.sum(axis=tuple(k for k in range(3) if k != axis)) for axis in range(3)]
    middle = np.array([side @ grid for side, grid in zip(sides, grids, strict=True)])
    sd = np.sqrt([side @ np.square(grid - m) for side, grid, m in zip(sides, grids, middle, strict=True)])
    away = sides[2][np.abs(grids[2] - place) > 0.25].sum()
    shards = split(t, y, noise=noise, centre=centre, width=sds, log=float(log))
    label = f"sine rows={rows} noise={noise} width={width} {'log' if log else 'normal'} away={away:.2f}"
    return Case("sine", label, accord.Posterior(_sine, flat, shards, truth), middle, sd)


# --- positive parameters ---


def _positive(x, s):
    """Log-normal, gamma, inverse gamma or half Cauchy x["scale"], and x["rest"] normal around a multiple of its log."""
    log = jnp.log(x["scale"])
    density = -jnp.square(log / s["sd"]) / 2.0 - log
    density = jnp.where(s["kind"] == 1.0, (s["shape"] - 1.0) * log - x["scale"], density)
    density = jnp.where(s["kind"] == 2.0, -(s["shape"] + 1.0) * log - 1.0 / x["scale"], density)
    density = jnp.where(s["kind"] == 3.0, -jnp.log1p(jnp.square(x["scale"])), density)
    return s["share"] * (density - jnp.sum(jnp.square(x["rest"] - s["slope"] * log)) / 2.0)


def positive(kind, number, mean, sd, dim=1, slope=0.0, spread=1.0, family="wide"):
    """One positive parameter with known mean and sd, and others that depend on its log, which has sd `spread`."""
    code = ("log-normal", "gamma", "inverse gamma", "half Cauchy").index(kind)
    shards = shared(kind=float(code), sd=number, shape=number, slope=slope)
    init = {"scale": 1.0, "rest": np.zeros(dim - 1)}
    post = accord.Posterior(_positive, flat, shards, init, constraints={"scale": "positive"})
    rest = sqrt(1.0 + (slope * spread) ** 2)
    # leaves of a dict are sorted by name
    means, sds = np.zeros(dim), np.full(dim, rest)
    where = post.names.index("scale")
    means[where], sds[where] = mean, sd
    return Case(family, f"{kind} {number} d={dim} slope={slope}", post, means, sds)


def log_normal(sd, dim=1, slope=0.0):
    mean = exp(sd**2 / 2.0)
    return positive("log-normal", sd, mean, mean * sqrt(exp(sd**2) - 1.0), dim, slope, sd)


def inverse_gamma(shape):
    mean = 1.0 / (shape - 1.0)
    return positive("inverse gamma", shape, mean, mean / sqrt(shape - 2.0) if shape > 2.0 else inf)


def _normal_rows(x, s):
    return -jnp.sum(jnp.square((s["y"] - x["mean"]) / x["sd"]) / 2.0 + jnp.log(x["sd"])) - jnp.log(x["sd"]) / 3.0


def few_rows(rows):
    """Mean and sd of a normal from few rows, under the prior 1 / sd."""
    y = np.random.default_rng(rows).standard_normal(rows)
    post = accord.Posterior(
        _normal_rows, flat, split(np.zeros(rows), y), {"mean": 0.0, "sd": 1.0}, constraints={"sd": "positive"}
    )
    left, square = rows - 1, np.square(y - y.mean()).sum()
    scale = sqrt(square / 2.0) * gamma((left - 1) / 2.0) / gamma(left / 2.0)
    finite = left > 2
    sds = [sqrt(square / rows / (left - 2)), sqrt(square / (left - 2) - scale**2)] if finite else [inf, inf]
    return Case("wide", f"mean and sd of {rows} rows", post, np.array([y.mean(), scale]), np.array(sds))


# --- easy ---


def easy(dim):
    return Case("easy", f"logistic d={dim} rows=300", problems.logistic(3, dim, 100, 10.0))


def cases():
    """Functions without arguments, one for each case."""
    made = [(sine, (24, *numbers)) for numbers in [(1.2, 1.0), (1.2, 2.0), (1.4, 2.0), (1.2, 3.0), (1.4, 3.0)]]
    made += [(sine, numbers) for numbers in [(12, 1.2, 2.0), (12, 1.4, 3.0), (39, 1.4, 2.0), (39, 1.8, 2.0)]]
    made += [(sine, numbers) for numbers in [(24, 1.0, 2.0), (24, 1.1, 3.0), (12, 0.9, 2.0), (39, 1.2, 2.0)]]
    made += [(sine, (*numbers, False)) for numbers in [(24, 1.2, 2.0), (24, 1.4, 1.0), (12, 1.2, 2.0)]]
    curves = [("wave", np.arange(24), [0.7, 0.7, -0.4], 1.0), ("decay", np.linspace(0, 6, 12), [1.0, 0.5, -0.7], 0.4)]
    curves += [("change", np.linspace(-1, 1, 24), [-0.5, 1.0, 0.1], 0.7)]
    curves += [("saturation", np.linspace(0.1, 3, 12), [1.0, -0.5], 0.4)]
    made += [(curve, (*numbers, width)) for width in (2.0, 5.0) for numbers in curves]
    shelves = [(2, 0.9, 20.0, 0.3), (2, 0.9, 20.0, 0.3, 0.3), (3, 0.9, 10.0, 0.4, 0.3), (4, 0.8, 30.0, 0.2, 0.5)]
    shelves += [(5, 0.9, 20.0, 0.5, 0.3), (8, 0.8, 20.0, 0.3, 0.3), (8, 0.0, 20.0, 0.3), (5, 0.9, 15.0, 0.3, 0.3, 2)]
    made += [(shelf, numbers) for numbers in shelves]
    made += [(slabs, numbers) for numbers in [(2, 0.8, 15.0, 0.3), (4, 0.8, 10.0, 0.2)]]
    pairs = [(1, 6, 0.3), (1, 20, 0.5, 0.5), (1, 40, 0.3, 2.0), (2, 8, 0.3), (2, 12, 0.1, 0.5, "random"), (2, 40, 0.5)]
    pairs += [(3, 6, 0.3, 2.0, "diagonal"), (3, 12, 0.5, 1.0, "random"), (3, 20, 0.3, 0.5, "random")]
    pairs += [(5, 4, 0.5, 1.0, "random"), (5, 8, 0.3, 1.0, "random"), (5, 12, 0.5, 0.5, "diagonal")]
    pairs += [(5, 20, 0.7, 2.0, "random"), (10, 6, 0.3, 1.0, "random"), (10, 20, 0.05, 2.0, "random")]
    pairs += [
        (10, distance, w, 1.0, a) for distance in (8, 12) for w in (0.3, 0.5) for a in ("axis", "diagonal", "random")
    ]
    pairs += [(10, 40, 0.5, 0.5), (20, 6, 0.5, 1.0, "random"), (20, 8, 0.3, 1.0, "diagonal"), (20, 20, 0.7)]
    pairs += [(20, 12, 0.5, 2.0, "random"), (20, 12, 0.5, 0.5, "random")]
    pairs += [(2, 8, 0.3, 1.0, "random", 0.3), (5, 12, 0.3, 0.5, "random", 0.3), (10, 8, 0.3, 1.0, "random", 0.3)]
    made += [(two, numbers) for numbers in pairs]
    made += [(log_normal, (sd,)) for sd in (1.0, 1.5, 2.0, 2.5, 3.0)]
    made += [(log_normal, numbers) for numbers in [(1.5, 3, 0.5), (2.5, 3, 0.5), (2.0, 6, 1.0)]]
    made += [(positive, ("gamma", shape, shape, sqrt(shape))) for shape in (0.2, 1.0)]
    made += [(inverse_gamma, (shape,)) for shape in (1.5, 2.1, 2.5, 3.0, 5.0)]
    made += [(positive, ("half Cauchy", 1.0, inf, inf)), *((few_rows, (rows,)) for rows in (3, 6, 12))]
    made += [(mixture, ("easy", "Gaussian d=10", [1.0], np.zeros((1, 10)), [equal(10, 0.7)]))]
    made += [(positive, ("gamma", 4.0, 4.0, 2.0, 1, 0.0, 1.0, "easy"))]
    made += [(easy, (dim,)) for dim in (3, 5, 11, 20)]
    return [partial(make, *numbers) for make, numbers in made]
