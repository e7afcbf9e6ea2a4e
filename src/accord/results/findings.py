"""Findings about a run: the bias that its method's law predicts, and its draws beside F and its gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

Examination = Callable[[np.ndarray], "Findings"]


class Expected(NamedTuple):
    """Bias that a method's exact law predicts on the Gaussian nearest to the posterior, by parameter of the user.

    Parameters
    ----------
    mean, sd
        Errors of the agents' means in posterior standard deviations, and their standard deviations over the
        posterior's, shape (agent, dim).
    average_mean, average_sd
        The same of the agents' average, shape (dim,).
    """

    mean: np.ndarray
    sd: np.ndarray
    average_mean: np.ndarray
    average_sd: np.ndarray


class Balance(NamedTuple):
    """Draws beside the gradient of F, by parameter of the user, and beside F itself.

    Under exp(-F / T) the mean of `h(u) g - T h'(u)` is 0 for any function h of bounded growth (Stein's identity;
    integrate by parts). Here u is a parameter, centred and in about its standard deviations, and g the slope of F in
    the direction in which that parameter moves with all others as a Gaussian's do, which for a Gaussian is u itself.

    Parameters
    ----------
    off, error
        Means that should be 0, and their Monte Carlo errors, shape (feature, dim), for the functions `FEATURES`.
    batches
        Batches of draws that the errors are from.
    rise, allowed
        How far F is above its mean at the draw where it is highest, and how far it may be for so many draws.
    modes, mass
        Other modes, of which no draw is, in the user's parameters, (mode, dim), and their masses relative to that of
        the draws by Laplace's approximation, (mode,). Empty, too, where nobody looked.
    """

    off: np.ndarray
    error: np.ndarray
    batches: int
    rise: float
    allowed: float
    modes: np.ndarray
    mass: np.ndarray


class Feature(NamedTuple):
    """A function h of a standardised parameter, and its derivative."""

    function: Callable[[np.ndarray], np.ndarray]
    slope: Callable[[np.ndarray], np.ndarray]


def _log_cosh(u: np.ndarray) -> np.ndarray:
    return np.logaddexp(u, -u) - np.log(2.0)


def _square_of_sech(u: np.ndarray) -> np.ndarray:
    return 1.0 - np.square(np.tanh(u))


# The first sees standard deviations, the second those of the bulk, whatever the tails, the third means and skewness. A
# constant sees nothing: steps along a gradient make its mean 0 however long they are.
FEATURES = (Feature(lambda u: u, np.ones_like), Feature(np.tanh, _square_of_sech), Feature(_log_cosh, np.tanh))


class Findings(NamedTuple):
    """Findings about a run beyond its draws.

    Parameters
    ----------
    expected
        What to expect of its method, or None.
    reason
        Why that is None, else empty.
    target_temperature
        The temperature that the method samples at; at 0 it only optimises.
    temperature, temperature_error
        The temperature of the average's draws and its Monte Carlo error, NaN where it was not measured.
    agreeing
        Whether the method brings its agents to agree, so that their distance from one another is an error.
    left_out
        What `expected` leaves out, the noise of minibatches, and what to do about it, in a sentence; else empty.
    balance
        The draws beside F and its gradient, or None where nobody looked.
    """

    expected: Expected | None = None
    reason: str = ""
    target_temperature: float = 1.0
    temperature: float = np.nan
    temperature_error: float = np.nan
    agreeing: bool = True
    left_out: str = ""
    balance: Balance | None = None

    @property
    def measured(self) -> bool:
        """Whether the temperature of the draws is known, and says something of every agent's."""
        return bool(np.isfinite(self.temperature) and np.isfinite(self.temperature_error)) and self.agreeing


UNKNOWN = Findings(reason="nothing is known of the law of these draws")


def recalled(findings: Findings, average: np.ndarray) -> Findings:
    """Findings that were made before."""
    return findings


# Largest error of an agent's mean and standard deviation that is allowed where none is given, in posterior deviations.
TOLERANCE = 0.05
