"""Findings about a run: the bias that its method's law predicts, and the temperature of its draws."""

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
    """

    expected: Expected | None = None
    reason: str = ""
    target_temperature: float = 1.0
    temperature: float = np.nan
    temperature_error: float = np.nan
    agreeing: bool = True
    left_out: str = ""

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
