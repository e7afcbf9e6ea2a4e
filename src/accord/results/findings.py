"""Findings about a run: predicted bias, measured temperature and tests of the draws against F and its gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

Examination = Callable[[np.ndarray], "Findings"]


class Expected(NamedTuple):
    """Bias that a method's exact law predicts on the Gaussian nearest to the posterior, by user parameter.

    A one-shot method has no law. Its bias is estimated from gradients of F at its draws, in their standard deviations.

    Parameters
    ----------
    mean, sd
        Errors of the agents' means in posterior standard deviations, and ratios of the agents' standard deviations to
        the posterior's, shape (agent, dim).
    average_mean, average_sd
        The same for the average over agents, shape (dim,).
    """

    mean: np.ndarray
    sd: np.ndarray
    average_mean: np.ndarray
    average_sd: np.ndarray


class Balance(NamedTuple):
    """Tests of draws against F and its gradient, by user parameter.

    Under exp(-F / T) the mean of `h(u) g - T h'(u)` is 0 for any function h of bounded growth (Stein's identity, by
    integration by parts). Here u is a parameter, centred and scaled to about standard deviation 1. g is the slope of F
    along the regression of all parameters on u, which equals u for a Gaussian.

    Parameters
    ----------
    off, error
        Means that should be 0 and their Monte Carlo errors, shape (feature, dim), for each function in `FEATURES`.
    batches
        Number of batches of draws from which the errors are estimated.
    rise, allowed
        The largest F of a draw minus the mean F, and its limit for this number of draws.
    modes, mass
        Modes that contain no draw, in user parameters, (mode, dim), and their masses relative to the mass of the
        mode with the draws, by Laplace's approximation, (mode,). Empty if none was found or none was searched for.
    """

    off: np.ndarray
    error: np.ndarray
    batches: int
    rise: float
    allowed: float
    modes: np.ndarray
    mass: np.ndarray


class Feature(NamedTuple):
    """A function h of a standardised parameter and its derivative."""

    function: Callable[[np.ndarray], np.ndarray]
    slope: Callable[[np.ndarray], np.ndarray]


def _log_cosh(u: np.ndarray) -> np.ndarray:
    return np.logaddexp(u, -u) - np.log(2.0)


def _square_of_sech(u: np.ndarray) -> np.ndarray:
    return 1.0 - np.square(np.tanh(u))


# Sensitive to, in order: standard deviations, standard deviations of the bulk, and means with skewness. A constant is
# useless, as gradient steps of any length make its mean 0.
FEATURES = (Feature(lambda u: u, np.ones_like), Feature(np.tanh, _square_of_sech), Feature(_log_cosh, np.tanh))


class Findings(NamedTuple):
    """Findings about a run beyond its draws.

    Parameters
    ----------
    expected
        Predicted bias of the method, or None if unknown.
    reason
        Why no law predicts the bias; else empty.
    target_temperature
        Temperature of the method. At 0 the method only optimises.
    temperature, temperature_error
        Temperature of the average's draws and its Monte Carlo error; NaN if not measured.
    agreeing
        Whether the method drives its agents to consensus, so that distances between agents are errors.
    left_out
        A sentence about the minibatch noise that `expected` leaves out, with a remedy; else empty.
    balance
        Tests of the draws against F and its gradient, or None if they were not run.
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
    def estimated(self) -> bool:
        """Whether `expected` was estimated from the draws, and not predicted by a law."""
        return self.expected is not None and bool(self.reason)

    @property
    def measured(self) -> bool:
        """Whether the temperature of the draws is known and applies to every agent."""
        return bool(np.isfinite(self.temperature) and np.isfinite(self.temperature_error)) and self.agreeing


UNKNOWN = Findings(reason="the law of these draws is unknown")


def recalled(findings: Findings, average: np.ndarray) -> Findings:
    """Return stored findings: the `Examination` of a run that was examined before."""
    return findings


# Default tolerance for errors of an agent's mean and standard deviation, in posterior standard deviations.
TOLERANCE = 0.05
