"""Ready-made posteriors: Gaussian, linear, logistic and Poisson regression, power potentials.

Regressions have normalised likelihoods and priors, so that a run estimates the evidence of the model. Gaussian and
power potentials are not normalised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float

from ..base.checks import positive
from ..base.linear import linear_predictor
from ..base.memory import require_matrices
from ..base.special import log_gamma, softplus
from ..posterior import Posterior
from ..posterior.model_info import ModelInfo
from ..posterior.quadratic import flat_prior, quadratic_likelihood
from ..posterior.shards import Source, is_unread, require_finite
from .families import Bernoulli, Family, Normal, Poisson
from .predictive import PairsPredictive
from .priors import HalfCauchy

# Copies of each agent's covariance in memory: given, symmetrised, inverted, and stored as a Hessian.
_COPIES = 4


def quadratic(hessians: np.ndarray, linear: np.ndarray, *, names: Sequence[str] | None = None) -> Posterior:
    """Quadratic potentials `f_i(x) = x' H_i x / 2 - b_i' x`. A single H_i may be singular, their sum may not.

    Parameters
    ----------
    hessians
        Shape (agent, dim, dim), each symmetric.
    linear
        The vectors b_i, shape (agent, dim).
    names
        Names of the `dim` parameters.
    """
    hessians, linear = np.asarray(hessians, np.float64), np.asarray(linear, np.float64)
    if linear.ndim != 2 or hessians.shape != (*linear.shape, linear.shape[1]):
        raise ValueError(
            f"hessians must have shape (agent, dim, dim) and linear (agent, dim), "
            f"found {hessians.shape} and {linear.shape}"
        )
    asymmetry = np.abs(hessians - np.swapaxes(hessians, 1, 2)).max(axis=(1, 2))
    if (asymmetry > 1e-6 * np.abs(hessians).max()).any():
        agent = int(np.argmax(asymmetry))
        raise ValueError(f"hessian of agent {agent} must be symmetric, found a difference of {asymmetry[agent]:.3g}")
    shards = [{"hessian": h, "linear": b} for h, b in zip(hessians, linear, strict=True)]
    init = np.zeros(linear.shape[1])
    return Posterior(Partial(quadratic_likelihood), Partial(flat_prior), shards, init, names=names, quadratic=True)


def gaussian(means: np.ndarray, covariances: np.ndarray) -> Posterior:
    """Gaussian potentials `f_i(x) = (x - mu_i)' S_i^-1 (x - mu_i) / 2`.

    Parameters
    ----------
    means
        The means mu_i, shape (agent, dim), or (agent,) for dim = 1.
    covariances
        The covariances S_i, shape (agent, dim, dim), positive definite; or variances, shape (agent,), for dim = 1.

    Raises
    ------
    ValueError
        The shapes do not match, or an S_i is not symmetric positive definite (the message names the agent).
    """
    means, covariances = np.asarray(means, np.float64), np.asarray(covariances, np.float64)
    if means.ndim == 1:
        means, covariances = means[:, None], covariances.reshape(-1, 1, 1)
    if means.ndim != 2 or covariances.shape != (*means.shape, means.shape[1]):
        raise ValueError(
            f"means must have shape (agent, dim) and covariances (agent, dim, dim), "
            f"found {means.shape} and {covariances.shape}"
        )
    require_matrices(
        "covariances, their eigenvalues and inverses",
        means.shape[1],
        _COPIES * len(means),
        "write the agents' models as a function of their data, with Posterior, or use fewer parameters",
    )
    finite = np.isfinite(covariances).all(axis=(1, 2))
    smallest = np.linalg.eigvalsh(np.where(finite[:, None, None], covariances, 0.0))[:, 0]
    asymmetry = np.abs(covariances - np.swapaxes(covariances, 1, 2)).max(axis=(1, 2))
    wrong = ~finite | ~(smallest > 0) | (asymmetry > 1e-6 * np.abs(covariances).max(axis=(1, 2)))
    if wrong.any():
        agent = int(np.argmax(wrong))
        raise ValueError(
            f"covariance of agent {agent} must be finite, symmetric and positive definite, found the smallest "
            f"eigenvalue {smallest[agent]:.3g}"
        )
    precisions = np.linalg.inv(covariances)
    precisions = (precisions + np.swapaxes(precisions, 1, 2)) / 2
    return quadratic(precisions, np.einsum("nij,nj->ni", precisions, means))


def linear_regression(
    shards: Sequence[Source],
    noise_scale: float | None = None,
    prior_variance: float = 1.0,
    *,
    names: Sequence[str] | None = None,
) -> Posterior:
    """Linear regression `y ~ N(X x, noise_scale^2)`, prior x ~ N(0, prior_variance I).

    With a known noise_scale the posterior is Gaussian. Otherwise the noise scale is a parameter `sigma` with a
    half-Cauchy prior, whose median is sqrt(prior_variance).

    Parameters
    ----------
    shards
        One (X_i, y_i) for each agent, shapes (rows, dim) and (rows,); rows may differ between agents.
        Functions and file paths are read by the agents, see `Posterior`.
    noise_scale
        Standard deviation of y given X, > 0, in the units of y; None, the default: unknown.
    prior_variance
        Variance of each coefficient under the prior, > 0.
    names
        Names of the coefficients, the columns of X; required if a shard is a function or a file.
    """
    if noise_scale is not None:
        positive("noise_scale", noise_scale)
        likelihood = Partial(_linear, float(noise_scale) ** -2)
        post = _regression(likelihood, prior_variance, shards, names, _any_number, quadratic=True)
        return _info(post, "linear regression", Normal(), prior_variance, noise_scale)
    dim, check = _checked(shards, names, _any_number)
    positive("prior_variance", prior_variance)
    post = Posterior(
        Partial(_linear_with_sigma),
        Partial(_normal_with_sigma, float(prior_variance)),
        list(shards),
        {"coefficients": np.zeros(dim), "sigma": np.sqrt(prior_variance)},
        names=None if names is None else (*names, "sigma"),
        check=check,
        constraints={"sigma": "positive"},
    )
    return _info(post, "linear regression", Normal(), prior_variance)


def logistic_regression(
    shards: Sequence[Source], prior_variance: float = 1.0, *, names: Sequence[str] | None = None
) -> Posterior:
    """Logistic regression `P(y = 1) = 1 / (1 + exp(-X x))`, prior x ~ N(0, prior_variance I).

    Parameters
    ----------
    shards
        One (X_i, y_i) for each agent, shapes (rows, dim) and (rows,), labels 0 or 1.
        Functions and file paths are read by the agents, see `Posterior`.
    prior_variance
        Variance of each coefficient under the prior, > 0.
    names
        Names of the coefficients, the columns of X; required if a shard is a function or a file.

    Raises
    ------
    ValueError
        A label is not 0 or 1 (the message names agent and row).
    """
    post = _regression(Partial(_logistic), prior_variance, shards, names, _labels)
    return _info(post, "logistic regression", Bernoulli(), prior_variance)


def poisson_regression(
    shards: Sequence[Source], prior_variance: float = 1.0, *, names: Sequence[str] | None = None
) -> Posterior:
    """Poisson regression `y ~ Poisson(exp(X x))`, prior x ~ N(0, prior_variance I).

    Parameters
    ----------
    shards
        One (X_i, y_i) for each agent, shapes (rows, dim) and (rows,), counts 0, 1, 2, ...
        Functions and file paths are read by the agents, see `Posterior`.
    prior_variance
        Variance of each coefficient under the prior, > 0.
    names
        Names of the coefficients, the columns of X; required if a shard is a function or a file.

    Raises
    ------
    ValueError
        A count is negative or not an integer (the message names agent and row).
    """
    post = _regression(Partial(_poisson), prior_variance, shards, names, _counts)
    return _info(post, "Poisson regression", Poisson(), prior_variance)


def power(centers: np.ndarray | Sequence[Source], exponent: float, *, names: Sequence[str] | None = None) -> Posterior:
    """Power potentials `f_i(x) = sum_k |x_k - c_ik|^exponent` (client-only Gibbs paper, section 6).

    Parameters
    ----------
    centers
        The centers c_i, shape (agent, dim), or (agent,) for dim = 1; or functions and file paths, see `Posterior`.
    exponent
        The exponent, > 1, so that potentials are convex with a continuous gradient; 1.5 in the paper.
    names
        Names of the `dim` parameters; required if a center is a function or a file.
    """
    positive("exponent - 1", exponent - 1.0)
    likelihood = Partial(_power, float(exponent))
    if any(map(is_unread, centers)):
        dim, shards = _count(names), list(centers)
    else:
        centers = np.asarray(centers, np.float64)
        centers = centers[:, None] if centers.ndim == 1 else centers
        if centers.ndim != 2:
            raise ValueError(f"centers must have shape (agent, dim), found {centers.shape}")
        dim, shards = centers.shape[1], list(centers)
    check = partial(_check_center, dim=dim)
    return Posterior(likelihood, Partial(flat_prior), shards, np.zeros(dim), names=names, check=check)


def _regression(
    likelihood: Partial,
    prior_variance: float,
    shards: Sequence[Source],
    names: Sequence[str] | None,
    check_response: Callable[[int, np.ndarray], None],
    quadratic: bool = False,
) -> Posterior:
    positive("prior_variance", prior_variance)
    dim, check = _checked(shards, names, check_response)
    prior = Partial(_normal, float(prior_variance))
    return Posterior(likelihood, prior, list(shards), np.zeros(dim), names=names, quadratic=quadratic, check=check)


def _info(
    post: Posterior, model: str, family: Family, prior_variance: float, noise_scale: float | None = None
) -> Posterior:
    """The posterior, with a description for reports."""
    coefficients = tuple(name for name in post.names if name != "sigma")
    priors = [("coefficients", f"Normal(loc=0, scale={np.sqrt(prior_variance):.3g})")]
    if "sigma" in post.names:
        priors.append(("sigma", f"HalfCauchy(scale={np.sqrt(prior_variance):.3g})"))
    post.info = ModelInfo(
        model=model + (f", noise of sd {noise_scale:g}" if noise_scale is not None else ""),
        priors=tuple(priors),
        ratio=family.ratio,
        ratios=tuple(name for name in coefficients if name != "intercept") if family.ratio else (),
        predictive=PairsPredictive(family, noise_scale),
    )
    return post


def _checked(
    shards: Sequence[Source], names: Sequence[str] | None, check_response: Callable[[int, np.ndarray], None]
) -> tuple[int, partial[None]]:
    """The number of coefficients, and the check of a shard."""
    if len(shards) == 0:
        raise ValueError("a regression needs at least one shard, found none")
    check = partial(_check_rows, check_response=check_response, dim=None)
    if any(map(is_unread, shards)):
        dim = _count(names)
        return dim, partial(check, dim=dim)
    check(0, shards[0])
    return np.shape(shards[0][0])[1], check


def _count(names: Sequence[str] | None) -> int:
    """The number of parameters from their names, for data that is not read here."""
    if names is None:
        raise ValueError(
            "shards that are functions or files need names, one for each parameter, as the number of parameters is "
            "unknown before they are read"
        )
    return len(names)


# --- checks of a shard, with clearer errors than Posterior; `dim` is None if it follows from the shard ---


def _check_rows(agent: int, shard: Any, check_response: Callable[[int, np.ndarray], None], dim: int | None) -> None:
    if not isinstance(shard, tuple | list) or len(shard) != 2:
        raise ValueError(f"shard of agent {agent} must be a pair (X, y), found a {type(shard).__name__}")
    X, y = map(np.asarray, shard)
    if X.ndim != 2 or y.shape != X.shape[:1]:
        raise ValueError(
            f"shard of agent {agent} must be X of shape (rows, dim) and y of shape (rows,), "
            f"found {X.shape} and {y.shape}"
        )
    if len(y) == 0:
        raise ValueError(f"shard of agent {agent} is empty: X has shape {X.shape}")
    if dim is not None and X.shape[1] != dim:
        raise ValueError(f"X of agent {agent} has {X.shape[1]} columns, but there are names for {dim}")
    for part in (X, y):
        require_finite(agent, part)
    check_response(agent, y)


def _any_number(agent: int, y: np.ndarray) -> None:
    return None


def _labels(agent: int, y: np.ndarray) -> None:
    _require_each("labels of a logistic regression must be 0 or 1", agent, (y == 0) | (y == 1))


def _counts(agent: int, y: np.ndarray) -> None:
    _require_each("counts of a Poisson regression must be 0, 1, 2, ...", agent, (y >= 0) & (y == np.round(y)))


def _require_each(rule: str, agent: int, right: np.ndarray) -> None:
    """Raise `ValueError` if a response breaks a rule. The message quotes no response, which may be private."""
    wrong = np.flatnonzero(~right)
    if wrong.size:
        raise ValueError(
            f"{rule}, agent {agent} has others in {wrong.size} of {right.size} rows, first in row {wrong[0]}"
        )


def _check_center(agent: int, center: Any, dim: int) -> None:
    if np.shape(center) != (dim,):
        raise ValueError(f"the center of agent {agent} must have shape ({dim},), found {np.shape(center)}")


def _normal(variance: Array, x: Float[Array, " dim"]) -> Array:
    return -jnp.sum(x**2) / (2.0 * variance) - x.size / 2.0 * jnp.log(2.0 * jnp.pi * variance)


def _linear(precision: Array, x: Float[Array, " dim"], rows: tuple[Array, Array]) -> Float[Array, " row"]:
    X, y = rows
    return -precision * (y - linear_predictor(X, x)) ** 2 / 2.0 + jnp.log(precision / (2.0 * jnp.pi)) / 2.0


def _linear_with_sigma(params: dict[str, Array], rows: tuple[Array, Array]) -> Float[Array, " row"]:
    return _linear(params["sigma"] ** -2, params["coefficients"], rows)


def _normal_with_sigma(variance: Array, params: dict[str, Array]) -> Array:
    prior_of_sigma = HalfCauchy(1.0).log_density(params["sigma"] / jnp.sqrt(variance)) - jnp.log(variance) / 2.0
    return _normal(variance, params["coefficients"]) + prior_of_sigma


def _logistic(x: Float[Array, " dim"], rows: tuple[Array, Array]) -> Float[Array, " row"]:
    X, y = rows
    logits = linear_predictor(X, x)
    return y * logits - softplus(logits)


def _poisson(x: Float[Array, " dim"], rows: tuple[Array, Array]) -> Float[Array, " row"]:
    X, y = rows
    log_rate = linear_predictor(X, x)
    return y * log_rate - jnp.exp(log_rate) - log_gamma(y + 1.0)


def _power(exponent: Array, x: Float[Array, " dim"], center: Float[Array, " dim"]) -> Array:
    distance = jnp.abs(x - center)
    # the derivative of |u|^p is 0 at u = 0, where automatic differentiation of the power returns NaN
    away = distance > 0
    return -jnp.sum(jnp.where(away, jnp.where(away, distance, 1.0) ** exponent, 0.0))
