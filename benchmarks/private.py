"""Coverage and width of intervals under differential privacy, for simulated regressions.

python benchmarks/private.py               # the table of docs/privacy.md, 1,000 studies each, 40 minutes of one core
python benchmarks/private.py 200 corr      # 200 studies each with correlated columns
python benchmarks/private.py 200 linear    # linear regressions: coefficients, then the residual sd
python benchmarks/private.py 200 student   # the same with residuals of Student's t with 4 degrees of freedom
python benchmarks/private.py 200 laplace   # and of other laws: student3, student5, student10, exponential, mixture
python benchmarks/private.py 200 outside   # the same with 2% of the responses beyond their range
python benchmarks/private.py 200 poisson   # Poisson regressions with mean counts of 2
python benchmarks/private.py 200 rare      # the same with mean counts of .3
python benchmarks/private.py 200 negative  # mean counts of 2 with the variance of a negative binomial, twice the mean
python benchmarks/private.py 200 slightly  # the same, 1.2 times the mean
python benchmarks/private.py 200 zeros     # mean counts of 2 before 20% of further zeros
python benchmarks/private.py 200 gamma     # gamma regressions: coefficients, then the log of the shape
python benchmarks/private.py 200 counts    # negative binomial regressions with mean counts of 2, the same
python benchmarks/private.py 200 beta      # beta regressions, the same
python benchmarks/private.py 200 tails     # regressions with Student's t with 4 degrees of freedom, the same
"""

from __future__ import annotations

import os
import sys
from functools import partial
from multiprocessing import get_context

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import expit

from accord.base.counters import generator
from accord.models.families import Beta, Gamma, NegativeBinomial, Poisson, Student
from accord.samplers.by_sums.evaluations import raised
from accord.samplers.by_sums.private_families import OTHERS, FamilyScores
from accord.samplers.by_sums.private_linear import Linear, answers
from accord.samplers.by_sums.private_logistic import Logistic
from accord.samplers.by_sums.private_model import Budget, Covered, Release, likely, strength

SIZES = [(1_000, 5), (5_000, 5), (20_000, 5), (1_000, 15), (5_000, 15), (20_000, 15)]
EPSILONS = (0.5, 1.0, 3.0)
DELTA = 1e-6
# Sd of each coefficient, for columns between -1 and 1, and of its prior.
COEFFICIENT, PRIOR = 0.5, 2.5
INTERVAL = 1.6449
# Laws of residuals, of any variance and mean 0: of random numbers and rows.
RESIDUALS = {
    "student": lambda random, rows: random.standard_t(4, rows) / 2.0**0.5,
    "student3": lambda random, rows: random.standard_t(3, rows) / 3.0**0.5,
    "student5": lambda random, rows: random.standard_t(5, rows) * 0.6**0.5,
    "student10": lambda random, rows: random.standard_t(10, rows) * 0.8**0.5,
    "laplace": lambda random, rows: random.laplace(size=rows) / 2.0**0.5,
    "exponential": lambda random, rows: random.exponential(size=rows) - 1.0,
    # one in twenty has the threefold sd
    "mixture": lambda random, rows: (
        random.standard_normal(rows) * np.where(random.random(rows) < 0.05, 3, 1) / 1.4**0.5
    ),
}
LINEAR = ("linear", "outside", "unfit", *RESIDUALS)
# Family, declared range, linear predictor of the intercept, its unit, and other parameter.
FAMILIES = {
    "poisson": (Poisson(), (0.0, 20.0), np.log(2.0) - 0.125, 1.0, None),
    "rare": (Poisson(), (0.0, 5.0), np.log(0.3) - 0.125, 1.0, None),
    "gamma": (Gamma(), (0.01, 200.0), np.log(5.0), 1.0, 2.0),
    "counts": (NegativeBinomial(), (0.0, 40.0), np.log(2.0), 1.0, 2.0),
    "beta": (Beta(), (1e-4, 1.0 - 1e-4), -0.5, 1.0, 5.0),
    "tails": (Student(nu=4.0), (-1.0, 1.0), 0.0, 0.3, 0.15),
}
FAMILIES |= dict.fromkeys(("negative", "slightly", "zeros"), FAMILIES["poisson"])
# Variance of counts relative to their mean.
DISPERSION = {"negative": 2.0, "slightly": 1.2}
# Sds of their linear predictor and of their intercept.
LOG_RATE, LOG_MEAN = 0.5, 0.1
# Sds of the linear predictor, of the intercept and of the residuals, for a response between -1 and 1.
PREDICTOR, INTERCEPT, RESIDUAL = 0.15, 0.1, 0.15


def columns(random: np.random.Generator, rows: int, dim: int, design: str) -> np.ndarray:
    """Columns between -1 and 1, the first one constant, shape (row, dim)."""
    if design in ("uniform", *LINEAR, *FAMILIES):
        found = random.uniform(-1.0, 1.0, (rows, dim))
    else:
        # a third of the range is one sd, and columns have correlation 1/2
        normal, common = random.standard_normal((rows, dim)), random.standard_normal((rows, 1))
        found = np.clip((normal + common * (design == "corr")) / 3.0 / (1.0 + (design == "corr")) ** 0.5, -1.0, 1.0)
    found[:, 0] = 1.0
    return found


def newton(x: np.ndarray, y: np.ndarray, precision: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mode without noise (dim,) and the Hessian there (dim, dim)."""
    mode = np.zeros(x.shape[1])
    for _ in range(25):
        mean = expit(x @ mode)
        hessian = (x * (mean * (1.0 - mean))[:, None]).T @ x + precision
        mode = mode + np.linalg.solve(hessian, x.T @ (y - mean) - precision @ mode)
    return mode, hessian


def logistic(budget: Budget, rows: int, dim: int, design: str, seed: int) -> tuple[np.ndarray, ...]:
    """Of one study: whether intervals cover and their width without noise = 1, each (dim,), and two numbers.

    Coverage is with noise, without noise, and if noise is ignored. The numbers are the noise of H, and whether the
    checks of the model hold.
    """
    random, model = generator(seed, "study"), Logistic()
    x, truth = columns(random, rows, dim, design), COEFFICIENT * random.standard_normal(dim)
    y, precision = (random.random(rows) < expit(x @ truth)).astype(float), np.eye(dim) / PRIOR**2

    def answer(position, step):
        mean = expit(x @ position)
        exact = np.concatenate([x.T @ (y - mean), ((x * (mean * (1 - mean))[:, None]).T @ x)[np.triu_indices(dim)]])
        return exact + step.noise(dim) * random.standard_normal(exact.size)

    prior = np.zeros(dim), precision
    releases, found = budget.released(model, dim, rows, answer, lambda position: prior, seed)
    low, high = np.quantile(found.draws(2_000, random), [0.05, 0.95], axis=0)
    mode, hessian = newton(x, y, precision)
    sds, last = np.sqrt(np.diagonal(np.linalg.inv(hessian))), releases[-1]
    ignored = raised(last.hessian, 1e-3)
    naive = np.linalg.solve(ignored + precision, ignored @ last.position + last.gradient)
    naive_sds = np.sqrt(np.diagonal(np.linalg.inv(ignored + precision)))
    return (
        (low < truth) & (truth < high),
        (high - low) / (2.0 * INTERVAL * sds),
        np.abs(truth - mode) < INTERVAL * sds,
        np.abs(truth - naive) < INTERVAL * naive_sds,
        noise_of_hessian(releases[-1:], hessian),
        all(check.holds for check in model.checks(found, releases, rows)),
    )


def linear(budget: Budget, rows: int, dim: int, design: str, seed: int) -> tuple[np.ndarray, ...]:
    """The same of a linear regression, (dim + 1,) with the log of the residual sd last."""
    random, model = generator(seed, "study"), Linear(all_count=design != "unfit")
    x, sds = columns(random, rows, dim, design), np.full(dim, PREDICTOR * (3.0 / (dim - 1)) ** 0.5)
    sds[0] = INTERCEPT
    truth = np.append(sds * random.standard_normal(dim), np.log(RESIDUAL))
    residuals = RESIDUALS[design](random, rows) if design in RESIDUALS else random.standard_normal(rows)
    y = x @ truth[:-1] + RESIDUAL * residuals
    exact = linear_fit(x.T @ x, x.T @ y, y @ y, rows)
    if design == "outside":
        y[random.random(rows) < 0.02] = 5.0
    if design == "unfit":
        counted = random.random(rows) > 0.05
        x, y = x * counted[:, None], y * counted
        exact = linear_fit(x.T @ x, x.T @ y, y @ y, counted.sum())
    answer = answers(x, np.clip(y, -1.0, 1.0), random)
    prior = np.zeros(dim + 1), np.eye(dim + 1) / PRIOR**2
    releases, found = budget.released(model, dim + 1, rows, answer, lambda position: prior, seed)
    low, high = np.quantile(found.draws(2_000, random), [0.05, 0.95], axis=0)
    last = releases[-1]
    fit, naive_sds = linear_fit(raised(last.hessian, 1e-3), last.gradient, last.square, rows)
    naive = fit + np.append(last.position[:-1], 0.0)
    return (
        (low < truth) & (truth < high),
        (high - low) / (2.0 * INTERVAL * exact[1]),
        np.abs(truth - exact[0]) < INTERVAL * exact[1],
        np.abs(truth - naive) < INTERVAL * naive_sds,
        noise_of_hessian(releases, x.T @ x),
        all(check.holds for check in model.checks(found, releases, rows)),
    )


def of_family(budget: Budget, rows: int, dim: int, design: str, seed: int) -> tuple[np.ndarray, ...]:
    """The same of another family, with the log of the other parameter last, if there is one."""
    family, ends, intercept, unit, other = FAMILIES[design]
    random, model = generator(seed, "study"), FamilyScores(family, ends)
    x, truth = columns(random, rows, dim, design), unit * LOG_RATE * (3.0 / (dim - 1)) ** 0.5
    truth = truth * random.standard_normal(dim)
    truth[0] = intercept + unit * LOG_MEAN * random.standard_normal()
    with jax.enable_x64(True):
        own = {OTHERS[family.name][0]: jnp.asarray(other)} if other else {}
        predictor = x @ truth
        if design in DISPERSION:
            beyond = DISPERSION[design] - 1.0
            predictor = np.log(beyond * random.gamma(np.exp(predictor) / beyond) + 1e-300)
        y = np.asarray(family.replicated(own, jnp.asarray(predictor), {}, jax.random.key(seed)), float)
        if design == "zeros":
            # the mean has a log link still
            y, truth[0] = y * (random.random(rows) > 0.2), truth[0] + np.log(0.8)
        truth = np.append(truth, [np.log(other)] if other else [])
        mode = truth
        for _ in range(6):
            gradient, hessian = map(np.asarray, slopes(design, mode, x, y))
            mode = mode - np.linalg.solve(hessian, gradient)
    origin, unit, *log_other = model.origin
    scales, count = np.append(np.full(dim, unit), np.ones(len(log_other))), len(truth)
    shift = np.concatenate([[origin], np.zeros(dim - 1), log_other])
    truth, mode, sds = (truth - shift) / scales, (mode - shift) / scales, np.diagonal(np.linalg.inv(-hessian)) ** 0.5
    prior = np.zeros(count), np.eye(count) / PRIOR**2
    answer = model.answers(x, y, random)
    releases, found = budget.released(model, count, rows, answer, lambda position: prior, seed)
    low, high = np.quantile(found.draws(2_000, random), [0.05, 0.95], axis=0)
    last = releases[-1]
    units, ignored = model.units(last), raised(last.hessian, 1e-3)
    naive = last.position + np.linalg.solve(ignored, last.gradient) / units
    naive_sds = np.sqrt(np.diagonal(np.linalg.inv(ignored))) / units
    quiet = last.step._replace(of_gradient=0.0, of_hessian=0.0)
    return (
        (low < truth) & (truth < high),
        (high - low) / (2.0 * INTERVAL * sds / scales),
        np.abs(truth - mode) < INTERVAL * sds / scales,
        np.abs(truth - naive) < INTERVAL * naive_sds,
        noise_of_hessian([last], Release.of(last.position, quiet, answer(last.position, quiet)).hessian),
        all(check.holds for check in model.checks(found, releases, rows)),
    )


@partial(jax.jit, static_argnums=0)
def slopes(design: str, at: jax.Array, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The gradient and the Hessian of the log likelihood of a family, without noise."""
    family, dim = FAMILIES[design][0], x.shape[1]

    def log_density(at: jax.Array) -> jax.Array:
        own = {OTHERS[family.name][0]: jnp.exp(at[dim])} if len(at) > dim else {}
        return family.log_density(own, x @ at[:dim], {"y": y}).sum()

    return jax.grad(log_density)(at), jax.hessian(log_density)(at)


def linear_fit(hessian: np.ndarray, gradient: np.ndarray, square: float, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Least squares coefficients and log residual sd, and their sds."""
    fit, free = np.linalg.solve(hessian, gradient), rows - len(gradient)
    variance = max(square - gradient @ fit, 1e-6 * rows) / free
    sds = np.append(np.sqrt(variance * np.diagonal(np.linalg.inv(hessian))), (2.0 * free) ** -0.5)
    return np.append(fit, np.log(variance) / 2.0), sds


def noise_of_hessian(releases: list[Release], hessian: np.ndarray) -> float:
    """The largest eigenvalue of the noise, a symmetric random matrix, relative to the smallest one of the Hessian."""
    sd = sum(one.step.of_hessian**-2.0 for one in releases) ** -0.5
    return sd * (2.0 * len(hessian)) ** 0.5 / np.linalg.eigvalsh(hessian)[0]


def main(studies: int = 1_000, design: str = "uniform", cells: str = "") -> None:
    """Print the table. Cells are rows/parameters/epsilon, separated by commas, by default all."""
    model, study = (Linear(all_count=design != "unfit"), linear) if design in LINEAR else (Logistic(), logistic)
    if design in FAMILIES:
        model, study = FamilyScores(*FAMILIES[design][:2]), of_family
    has_other = design in LINEAR or FAMILIES.get(design, (None,))[-1] is not None
    print(
        "| rows, parameters | epsilon | coverage | of the intercept | width | without noise | noise ignored | "
        "noise of H | simulated | checks hold |"
    )
    print("| --- " * 10 + "|")
    every = [(rows, dim, epsilon) for rows, dim in SIZES for epsilon in EPSILONS]
    chosen = [cell.split("/") for cell in cells.split(",") if cell]
    # each process has one thread
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    with get_context("spawn").Pool() as pool:
        started = []
        for rows, dim, epsilon in [(int(rows), int(dim), float(eps)) for rows, dim, eps in chosen] or every:
            budget, count = Budget(strength(epsilon, DELTA), 1.0), dim + has_other
            precision = tuple(map(tuple, (np.eye(count) / PRIOR**2).tolist()))
            before = pool.apply_async(likely, (model, budget, rows, precision))
            started.append(
                (rows, dim, epsilon, before, pool.map_async(partial(study, budget, rows, dim, design), range(studies)))
            )
        for rows, dim, epsilon, before, each in started:
            show(f"{rows:,}, {dim} | {epsilon:g}", dim, before.get(), each.get())


def show(cell: str, dim: int, before: Covered, each: list[tuple[np.ndarray, ...]]) -> None:
    """Print a line of the table: the forecast and all studies of a cell."""
    covered, width, without, ignored, noise, holds = (np.array(numbers) for numbers in zip(*each, strict=True))
    # coefficients, and another parameter
    parts = [slice(0, dim)] + [slice(dim, None)] * (covered.shape[1] > dim)

    def shown(numbers: np.ndarray, digits: int, parts: list[slice] = parts) -> str:
        return " / ".join(f"{numbers[:, part].mean():.{digits}f}" for part in parts)

    errors = " / ".join(f"{covered[:, part].mean(axis=1).std() / len(each) ** 0.5:.3f}" for part in parts)
    widths = " / ".join(f"{np.median(width[:, part].mean(axis=1)):.2f}" for part in parts)
    verdict = f"{before.share:.2f}" + ("" if before.is_enough else ", refused")
    print(
        f"| {cell} | {shown(covered, 3)} +- {errors} | {shown(covered, 3, [slice(0, 1)])} | {widths} | "
        f"{shown(without, 2)} | {shown(ignored, 2)} | {np.median(noise):.2f} | {verdict} | {holds.mean():.0%} |",
        flush=True,
    )


if __name__ == "__main__":
    main(*(int(text) if text.isdigit() else text for text in sys.argv[1:]))
