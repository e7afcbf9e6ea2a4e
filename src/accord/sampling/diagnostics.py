"""Checks of a finished run: the bias that its method's law predicts, and its draws beside F and its gradient."""

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
from .balance import Measured, looks_here, measure

# Parameters up to which a warm-up sums Hessians; above, a forecast knows the largest curvatures only.
_MOST_PARAMETERS = 200


def examination(
    post: Posterior,
    network: Network,
    sampler: Sampler,
    warmup: Warmup | None,
    foreseen: Forecast | None,
    measured: Measured | None = None,
) -> Examination:
    """A function that examines a run's average, shape (chain, draw, dim), when it is called.

    Parameters
    ----------
    post, network, sampler
        As the method ran, in the coordinates that it moved in.
    warmup
        What warm-up found, if these are its coordinates.
    foreseen
        What the choice of the method already expected of it.
    measured
        What was measured of its draws, and is part of its traffic; None: it is measured when it is asked for, where the
        data lies in this process.
    """
    if post.is_held_elsewhere:
        # those who hold the data are gone when a run is summarised, and what they send for it would have to be counted
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
    """Examine a run, as `examination` defers it; takes seconds where no warm-up and forecast were made before."""
    if measured is None:
        measured = _measured_here(post, network, sampler, average)
    return _found(post, network, sampler, warmup, foreseen, measured)


def _measured_here(post: Posterior, network: Network, sampler: Sampler, average: np.ndarray) -> Measured:
    if sampler.temperature == 0 or not sampler.samples_posterior or not network.is_connected:
        return Measured()
    return measure(post, network, sampler.temperature, average, looks_here(post))


def _found(
    post: Posterior,
    network: Network,
    sampler: Sampler,
    warmup: Warmup | None,
    foreseen: Forecast | None,
    measured: Measured,
) -> Findings:
    expected, reason = _expected(post, network, sampler, warmup, foreseen)
    told = (measured.temperature, measured.error, agreeing(sampler), _left_out(expected, sampler), measured.balance)
    return Findings(expected, reason, sampler.temperature, *told)


def _left_out(expected: Expected | None, sampler: Sampler) -> str:
    return "" if expected is None else left_out(sampler)


def agreeing(sampler: Sampler) -> bool:
    """Whether a method brings its agents to agree, so that their average is a draw."""
    # travelling chains are drawn one by one
    return sampler.needs(1).inbox != "permuted"


def _expected(
    post: Posterior, network: Network, sampler: Sampler, warmup: Warmup | None, foreseen: Forecast | None
) -> tuple[Expected | None, str]:
    """The bias predicted for a method, or the reason why it is not known."""
    if sampler.temperature != 1.0:
        return None, f"the method samples at the temperature {sampler.temperature:g}, which is not the posterior's"
    if post.dim > _MOST_PARAMETERS or (foreseen is not None and foreseen.mean.shape[1] != post.dim):
        return None, f"{post.dim} parameters are too many for a forecast of each"
    if foreseen is None:
        if post.is_held_elsewhere:
            return None, "the data lies elsewhere, where nothing was asked about the method's law"
        if isinstance(sampler, HasLaw) and not sampler.is_constant():
            return None, "a method with a step schedule has no stationary law"
        if not isinstance(sampler, HasLaw) or sampler.needs(post.dim).key:
            return None, f"the law of {type(sampler).__name__} is not known exactly"
        try:
            foreseen = _forecast(post, network, sampler, warmup)
        except (ArithmeticError, TypeError, ValueError) as error:
            return None, str(error)
    return Expected(foreseen.mean, foreseen.sd, foreseen.average_mean, foreseen.average_sd), ""


def _forecast(post: Posterior, network: Network, sampler: Sampler, warmup: Warmup | None) -> Forecast:
    # what a warm-up warns of it has said before, or is none of a run's that had none
    with warnings.catch_warnings(), jax.enable_x64(True):
        warnings.simplefilter("ignore")
        if warmup is not None:
            model: Posterior | None = gaussian_model(post, warmup).whitened
        else:
            warmup = warm_up(post, network)
            model = gaussian_model(post.transformed(warmup.coordinates), warmup).plain
        assert model is not None
        return forecast(model, post.sizes, network, sampler)
