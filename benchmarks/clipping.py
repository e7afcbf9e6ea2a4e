"""Bias, coverage and width if the gradients of rows are clipped without a correction: python benchmarks/clipping.py.

Five coefficients and one other parameter, at a position that is the truth, with a clip that is a quantile of the norms
of rows. That is the best case: a real clip cannot follow from the rows. Coverage of intervals of 90% follows from the
mean and the covariance of one row's gradient. Of the budget, 60% is for this sum, as in `Private`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import norm

from accord.models.families import Family, Gamma, NegativeBinomial, Student
from accord.samplers.by_sums.private_families import OTHERS
from accord.samplers.by_sums.private_model import strength

ROWS, DELTA, SHARE, INTERVAL = 400_000, 1e-6, 0.6, 1.6449
TRUTH = np.array([0.7, 0.4, -0.4, 0.3, -0.3])
FAMILIES = ((Gamma(), 2.0), (NegativeBinomial(), 2.0), (Student(nu=4.0), 1.0))
QUANTILES = (0.8, 0.95, 0.99, 0.999)
SIZES, EPSILONS = (1_000, 5_000, 20_000), (1.0, 3.0)


def gradients(family: Family, other: float) -> np.ndarray:
    """Gradients of simulated rows by the coefficients and by the log of the other parameter, (row, 6)."""
    x = np.random.default_rng(0).uniform(-1.0, 1.0, (ROWS, len(TRUTH)))
    x[:, 0] = 1.0
    eta, name = jnp.asarray(x @ TRUTH), OTHERS[family.name][0]
    y = family.replicated({name: jnp.asarray(other)}, eta, {}, jax.random.key(1)).astype(float)

    def density(eta: jax.Array, log_other: jax.Array, y: jax.Array) -> jax.Array:
        return family.log_density({name: jnp.exp(log_other)}, eta, {"y": y})

    slopes = jax.jit(jax.vmap(jax.grad(density, (0, 1)), (0, None, 0)))
    by_eta, by_other = map(np.asarray, slopes(eta, jnp.log(other), y))
    return np.column_stack([by_eta[:, None] * x, by_other])


def main() -> None:
    """Print the table."""
    print("| family | clip | rows | epsilon | largest bias in sds | coverage | least coverage | width |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for family, other in FAMILIES:
        rows = gradients(family, other)
        norms, exact = np.linalg.norm(rows, axis=1), np.diagonal(np.linalg.inv(rows.T @ rows / ROWS)) ** 0.5
        for quantile in QUANTILES:
            clip = np.quantile(norms, quantile)
            clipped = rows * np.minimum(1.0, clip / norms)[:, None]
            hessian = clipped.T @ rows / ROWS
            inverse = np.linalg.inv(hessian)
            for count in SIZES:
                for epsilon in EPSILONS:
                    # gradient and Hessian share one norm
                    noise = 2.0 * 2.0**0.5 * clip / (strength(epsilon, DELTA) * SHARE**0.5) / count
                    of_noise = noise**2 * np.eye(len(hessian))
                    claimed = np.diagonal(inverse @ (hessian / count + of_noise) @ inverse) ** 0.5
                    sds = np.diagonal(inverse @ (np.cov(clipped.T) / count + of_noise) @ inverse) ** 0.5
                    bias, end = inverse @ clipped.mean(axis=0), INTERVAL * claimed
                    covered = norm.cdf((end - bias) / sds) - norm.cdf((-end - bias) / sds)
                    width = np.median(claimed / exact) * count**0.5
                    print(
                        f"| {family.name} | {quantile:.1%} | {count:,} | {epsilon:g} | "
                        f"{np.abs(bias / claimed).max():.1f} | {covered.mean():.0%} | {covered.min():.0%} | "
                        f"{width:.2f} |"
                    )


if __name__ == "__main__":
    with jax.enable_x64(True):
        main()
