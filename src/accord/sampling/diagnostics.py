"""Checks of a finished run: the bias that the method's law predicts, and its draws against F and its gradient."""

from __future__ import annotations

import warnings
from functools import partial

import jax
import numpy as np

from ..network import Network
from ..posterior import Posterior
from ..results.findings import Examination, Expected, Findings, recalled
from ..samplers.protocol import HasLaw, Sampler
from ..tuning.forecast import Forecast, forecast, gaussian_model, left_out
from ..tuning.warmup import Warmup, warm_up
from .balance import Measured, measure, num_evaluated_here

# Most parameters for a forecast: in more dimensions warm-up has only the largest curvatures, not the Hessian.
_MOST_PARAMETERS = 200


def examination(
    post: Posterior,
    network: Network,
    sampler: Sampler,
    warmup: Warmup | None,
    foreseen: Forecast | None,
    measured: Measured | None = None,
) -> Examination:
    """A function that examines the average of a run, shape (chain, draw, dim), when it is called.

    Parameters
    ----------
    post, network, sampler
        The arguments of the run, in the coordinates in which the method moved.
    warmup
        The warm-up that found these coordinates, if any.
    foreseen
        The forecast by which the method was chosen, if any.
    measured
        Measurements of the draws, whose cost is in the run's traffic. None: measured at the call, if the data is in
        this process.
    """
    if post.is_held_elsewhere:
        # the sites have disconnected when a run is summarised, and their messages would not be counted
        known = _found(post, network, sampler, warmup, foreseen, Measured() if measured is None else measured)
        return partial(recalled, known)
    return partial(examine, post, network, sampler, warmup, foreseen, measured=measured)


def examine(
    post: Posterior,
    network: Network,
    sampler: Sampler,
    warmup: Warmup | None,
    foreseen: Forecast | None,
    average: np.ndarray,
    measured: Measured | None = None,
) -> Findings:
    """Examine a run, with the arguments of `examination`. Takes seconds without a warm-up and a forecast."""
    if measured is None:
        measured = _measured_here(post, network, sampler, average)
    return _found(post, network, sampler, warmup, foreseen, measured)


def _measured_here(post: Posterior, network: Network, sampler: Sampler, average: np.ndarray) -> Measured:
    if sampler.temperature == 0 or not sampler.samples_posterior or not network.is_connected:
        return Measured()
    return measure(post, network, sampler.temperature, average, num_evaluated_here(post))


def _found(
    post: Posterior,
    network: Network,
    sampler: Sampler,
    warmup: Warmup | None,
    foreseen: Forecast | None,
    measured: Measured,
) -> Findings:
    expected, reason = _expected(post, network, sampler, warmup, foreseen)
    fields = (measured.temperature, measured.error, agreeing(sampler), _left_out(expected, sampler), measured.balance)
    return Findings(expected, reason, sampler.temperature, *fields)


def _left_out(expected: Expected | None, sampler: Sampler) -> str:
    return "" if expected is None else left_out(sampler)


def agreeing(sampler: Sampler) -> bool:
    """Whether the agents of a method reach consensus, so that their average is a draw."""
    # travelling chains are independent
    return sampler.needs(1).inbox != "permuted"


def _expected(
    post: Posterior, network: Network, sampler: Sampler, warmup: Warmup | None, foreseen: Forecast | None
) -> tuple[Expected | None, str]:
    """The predicted bias of a method, or None and the reason why it is unknown."""
    if sampler.temperature != 1.0:
        return None, f"the method samples at temperature {sampler.temperature:g}, the posterior has temperature 1"
    if post.dim > _MOST_PARAMETERS or (foreseen is not None and foreseen.mean.shape[1] != post.dim):
        return None, f"{post.dim} parameters are too many for a forecast of each"
    if foreseen is None:
        if post.is_held_elsewhere:
            return None, "the data is at other sites, and no forecast of the method was made during the run"
        if isinstance(sampler, HasLaw) and not sampler.is_constant():
            return None, "a method with a step schedule has no stationary law"
        if not isinstance(sampler, HasLaw) or sampler.needs(post.dim).key:
            return None, f"{type(sampler).__name__} has no exact law"
        try:
            foreseen = _forecast(post, network, sampler, warmup)
        except (ArithmeticError, TypeError, ValueError) as error:
            return None, str(error)
    return Expected(foreseen.mean, foreseen.sd, foreseen.average_mean, foreseen.average_sd), ""


def _forecast(post: Posterior, network: Network, sampler: Sampler, warmup: Warmup | None) -> Forecast:
    # warnings of warm-up were shown during the run
    with warnings.catch_warnings(), jax.enable_x64(True):
        warnings.simplefilter("ignore")
        if warmup is not None:
            model: Posterior | None = gaussian_model(post, warmup).whitened
        else:
            warmup = warm_up(post, network)
            model = gaussian_model(post.transformed(warmup.coordinates), warmup).plain
        assert model is not None
        return forecast(model, post.sizes, network, sampler)
