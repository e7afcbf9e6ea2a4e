"""Posteriors that several benchmarks share."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

import accord

# Sites of `regression`.
SITES = 6


def table(count: int, dim: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Standard normal covariates, and responses 0 or 1 from a logistic regression."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((count, dim))
    y = rng.random(count) < 1.0 / (1.0 + np.exp(-X @ rng.standard_normal(dim) / dim**0.5))
    return X, y.astype(float)


def split(X: np.ndarray, y: np.ndarray, agents: int) -> list[tuple[np.ndarray, np.ndarray]]:
    return list(zip(np.array_split(X, agents), np.array_split(y, agents), strict=True))


def logistic(agents: int, dim: int, rows: int, prior_variance: float = 1.0) -> accord.Posterior:
    """Logistic regression with `rows` rows for each agent."""
    return accord.models.logistic_regression(split(*table(agents * rows, dim), agents), prior_variance)


def linear(agents: int, dim: int, rows: int) -> accord.Posterior:
    """Linear regression, a quadratic potential, with `rows` rows for each agent."""
    X, noise = table(agents * rows, dim)
    return accord.models.linear_regression(split(X, X.sum(axis=1) + noise, agents), noise_scale=1.0)


def gaussian(agents: int, dim: int, seed: int = 0) -> accord.Posterior:
    """Gaussian potentials with full covariances."""
    rng = np.random.default_rng(seed)
    factor = rng.standard_normal((agents, dim, dim))
    covariances = np.eye(dim) + factor @ np.swapaxes(factor, 1, 2) / dim
    return accord.models.gaussian(rng.standard_normal((agents, dim)), covariances)


def _log_likelihood(x, rows):
    return -jnp.sum((rows - x[None]) ** 2, axis=1) / 2.0


def _flat(x):
    return jnp.zeros(())


def spheres(agents: int, dim: int) -> accord.Posterior:
    """The potentials |x - c_i|^2 / 2 as a custom model, with the cheapest gradient."""
    rows = np.random.default_rng(0).standard_normal((agents, 1, dim))
    return accord.Posterior(_log_likelihood, _flat, list(rows), np.zeros(dim))


def breast_cancer(agents: int = 10, columns: int = 30, prior_variance: float = 10.0) -> accord.Posterior:
    """Logistic regression on scikit-learn's breast cancer data, sorted by the first covariate."""
    from sklearn.datasets import load_breast_cancer

    X, y = load_breast_cancer(return_X_y=True)
    order = np.argsort(X[:, 0], kind="stable")
    X = np.column_stack([np.ones(len(X)), (X - X.mean(axis=0)) / X.std(axis=0)])[:, : 1 + columns]
    return accord.models.logistic_regression(split(X[order], y[order].astype(float), agents), prior_variance)


def wine() -> accord.Posterior:
    """Ten agents, 178 rows, 14 parameters, nearly separable."""
    from sklearn.datasets import load_wine

    X, y = load_wine(return_X_y=True)
    X = np.column_stack([np.ones(len(X)), (X - X.mean(axis=0)) / X.std(axis=0)])
    return accord.models.logistic_regression(split(X, (y == 1).astype(float), 10), 10.0)


def digits() -> accord.Posterior:
    """Ten agents, 1,797 images: whether a digit is below 5, from 20 principal components and an intercept."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    X = X - X.mean(axis=0)
    scores = X @ np.linalg.svd(X, full_matrices=False)[2][:20].T
    X = np.column_stack([np.ones(len(X)), scores / scores.std(axis=0)])
    return accord.models.logistic_regression(split(X, (y < 5).astype(float), 10), 10.0)


def intercepts() -> accord.Posterior:
    """Random intercepts of 20 groups at five agents, integrated out."""
    import pandas as pd

    rng = np.random.default_rng(3)
    tables = []
    for site in range(5):
        ward = np.repeat([f"{site}{k}" for k in range(4)], 15)
        x = rng.standard_normal(60)
        effect = np.repeat(rng.standard_normal(4) * 0.7, 15)
        y = (rng.random(60) < 1.0 / (1.0 + np.exp(-(0.5 + x + effect)))).astype(float)
        tables.append(pd.DataFrame({"y": y, "x": x, "ward": ward}))
    return accord.models.glm(tables, "y ~ x + (1 | ward)", "bernoulli")


def tables(seed: int, rows: int, columns: int) -> tuple[np.random.Generator, np.ndarray, list[str], np.ndarray]:
    """Covariates at unlike sites: each site has its own means and scales. Also names and sites of rows."""
    rng = np.random.default_rng(seed)
    site = np.sort(rng.integers(0, SITES, rows))
    shift, scale = 0.7 * rng.standard_normal((SITES, columns)), rng.uniform(0.5, 1.5, (SITES, columns))
    x = shift[site] + scale[site] * rng.standard_normal((rows, columns))
    return rng, x, [f"x{k}" for k in range(columns)], site


def regression(family: str, seed: int, rows: int, columns: int) -> accord.Posterior:
    """A regression with an intercept and some columns."""
    rng, x, names, site = tables(seed, rows, columns)
    eta = 0.3 + x @ (0.35 * rng.standard_normal(columns))
    import pandas as pd

    table = pd.DataFrame(x, columns=names)
    response = "y"
    if family == "bernoulli":
        table["y"] = (rng.random(rows) < 1.0 / (1.0 + np.exp(-eta))).astype(float)
    elif family == "rare":
        table["y"] = (rng.random(rows) < 1.0 / (1.0 + np.exp(2.5 - eta))).astype(float)
        family = "bernoulli"
    elif family == "binomial":
        table["n"] = rng.integers(1, 12, rows)
        table["y"] = rng.binomial(table["n"], 1.0 / (1.0 + np.exp(-eta)))
        response = "prop(y, n)"
    elif family == "poisson":
        table["y"] = rng.poisson(np.exp(eta))
    elif family == "negative_binomial":
        table["y"] = rng.poisson(np.exp(eta) * rng.gamma(2.0, 0.5, rows))
    elif family == "gamma":
        table["y"] = np.exp(eta) * rng.gamma(3.0, 1.0 / 3.0, rows)
    elif family == "normal":
        table["y"] = eta + rng.standard_normal(rows)
    elif family == "student":
        table["y"] = eta + rng.standard_t(4.0, rows)
    elif family == "ordinal":
        table["y"] = np.digitize(eta + rng.logistic(size=rows), [-1.0, 1.0])
    elif family == "cox":
        time, censored = rng.exponential(np.exp(-eta)), rng.exponential(3.0, rows)
        table["time"], table["event"] = np.minimum(time, censored), (time <= censored).astype(float)
        response = "surv(time, event)"
    parts = [part.reset_index(drop=True) for _, part in table.groupby(site)]
    # no floors; older versions have no Policy.none
    mine = accord.data.as_study(parts, policy=accord.data.Policy(1, 1, np.inf))
    return accord.models.glm(mine, f"{response} ~ {' + '.join(names)}", family)
