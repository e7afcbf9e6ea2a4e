"""Ready-made posteriors, and `glm`, which builds a posterior from tables and a formula."""

from . import families, priors
from .glm import glm
from .ready import gaussian, linear_regression, logistic_regression, poisson_regression, power, quadratic

__all__ = [
    "families",
    "gaussian",
    "glm",
    "linear_regression",
    "logistic_regression",
    "poisson_regression",
    "power",
    "priors",
    "quadratic",
]
