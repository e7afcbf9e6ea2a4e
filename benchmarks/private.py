"""Coverage and width of intervals under differential privacy, for simulated logistic regressions.

python benchmarks/private.py           # the table of docs/privacy.md, 1,000 studies each, about 40 minutes
python benchmarks/private.py 200 corr  # 200 studies each with correlated columns
"""

from __future__ import annotations

import sys

import numpy as np
from scipy.special import expit

from accord.base.counters import generator
from accord.samplers.by_sums.private import Budget, _answered, _likely, strength

SIZES = [(1_000, 5), (5_000, 5), (20_000, 5), (1_000, 15), (5_000, 15), (20_000, 15)]
EPSILONS = (0.5, 1.0, 3.0)
DELTA = 1e-6
# Sd of each coefficient, for columns between -1 and 1, and of its prior.
COEFFICIENT, PRIOR = 0.5, 2.5
INTERVAL = 1.6449


def columns(random: np.random.Generator, rows: int, dim: int, design: str) -> np.ndarray:
    """Columns between -1 and 1, the first one constant, shape (row, dim)."""
    if design == "uniform":
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


def study(budget: Budget, rows: int, dim: int, design: str, seed: int) -> tuple[float, ...]:
    """Coverage, width without noise = 1, coverage without noise, coverage if noise is ignored, noise of the Hessian."""
    random = generator(seed, "study")
    x, truth = columns(random, rows, dim, design), COEFFICIENT * random.standard_normal(dim)
    y, precision = (random.random(rows) < expit(x @ truth)).astype(float), np.eye(dim) / PRIOR**2

    def answer(position, step):
        return _answered(x, y, random, position, step)

    releases, found = budget.released(dim, answer, lambda position: (np.zeros(dim), precision), seed)
    low, high = np.quantile(found.draws(2_000, random), [0.05, 0.95], axis=0)
    mode, hessian = newton(x, y, precision)
    sds, last = np.sqrt(np.diagonal(np.linalg.inv(hessian))), releases[-1]
    values, vectors = np.linalg.eigh(last.hessian)
    ignored = (vectors * np.maximum(values, 1e-3)) @ vectors.T
    naive = np.linalg.solve(ignored + precision, ignored @ last.position + last.gradient)
    naive_sds = np.sqrt(np.diagonal(np.linalg.inv(ignored + precision)))
    return (
        np.mean((low < truth) & (truth < high)),
        np.mean((high - low) / (2.0 * INTERVAL * sds)),
        np.mean(np.abs(truth - mode) < INTERVAL * sds),
        np.mean(np.abs(truth - naive) < INTERVAL * naive_sds),
        # of a symmetric random matrix
        last.of_hessian * (2.0 * dim) ** 0.5 / np.linalg.eigvalsh(hessian)[0],
    )


def main(studies: int = 1_000, design: str = "uniform") -> None:
    """Print the table."""
    print("| rows, parameters | epsilon | coverage | width | without noise | noise ignored | noise of H | simulated |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for rows, dim in SIZES:
        for epsilon in EPSILONS:
            budget = Budget(strength(epsilon, DELTA), 1.0)
            found = np.array([study(budget, rows, dim, design, seed) for seed in range(studies)])
            likely = _likely(budget, rows, tuple(map(tuple, (np.eye(dim) / PRIOR**2).tolist())))
            error = found[:, 0].std() / studies**0.5
            verdict = f"{likely.share:.2f}" + ("" if likely.is_enough else ", refused")
            print(
                f"| {rows:,}, {dim} | {epsilon:g} | {found[:, 0].mean():.3f} +- {error:.3f} | "
                f"{np.median(found[:, 1]):.2f} | {found[:, 2].mean():.2f} | {found[:, 3].mean():.2f} | "
                f"{np.median(found[:, 4]):.2f} | {verdict} |",
                flush=True,
            )


if __name__ == "__main__":
    main(*(int(text) if text.isdigit() else text for text in sys.argv[1:]))
