"""Families of responses."""

from .classes import Categorical, Ordinal
from .counts import Bernoulli, Binomial, NegativeBinomial, Poisson
from .family import Family
from .numbers import Beta, Gamma, Normal, Student
from .survival import Cox, PiecewiseExponential, Weibull

__all__ = [
    "Bernoulli",
    "Beta",
    "Binomial",
    "Categorical",
    "Cox",
    "Family",
    "Gamma",
    "NegativeBinomial",
    "Normal",
    "Ordinal",
    "PiecewiseExponential",
    "Poisson",
    "Student",
    "Weibull",
]
