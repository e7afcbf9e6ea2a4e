"""Forecasts: a method's bias and cost on a posterior, from its exact law on the nearest Gaussian."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .. import models
from ..network import Network
from ..posterior import Posterior
from ..posterior.potential import Potential, Shard
from ..results.traffic import Cost, Traffic
from ..samplers.by_sums.method import BySums
from ..samplers.costs import float_bytes, messages_per_round, rows_per_gradient
from ..samplers.protocol import Bound, Expanding, HasLaw, Sampler
from .impulse_response import respond_bound, stationary_bound
from .warmup import Warmup

# Draws that an agent's Hessian is averaged over.
_LOOKS = 16
# Of the tolerance, what the Gaussian approximation may take up: the rest is left to what the posterior is beyond it.
SHARE = 0.1
# What errors at one of the stiffest draws count as, beside errors on the Gaussian approximation, where a method has
# none of these: with half the tolerance there, draws were within it on four regressions of scikit-learn's data sets.
_STIFF_SHARE = 0.2
# Rounds after which a method counts as too slow to be followed.
_MOST_ROUNDS = 500_000
# Times the burn-in that a forecast has is what a run takes.
BURN_INS = 3


class Model(NamedTuple):
    """The Gaussian posterior that stands for another one.

    Parameters
    ----------
    whitened
        As methods in whitened coordinates see it.
    plain
        As the others do; None where only the largest curvatures are modelled.
    stiff
        The same with the agents' Hessians at one of the stiffest draws; None where only the largest are modelled.
    """

    whitened: Posterior
    plain: Posterior | None
    stiff: Model | None

    def of(self, whitened: bool) -> Posterior | None:
        """As a method sees it that moves in whitened coordinates, or does not."""
        return self.whitened if whitened else self.plain


@dataclass(frozen=True, eq=False)
class Forecast:
    """The bias and cost of a method with given hyper-parameters, without the noise of minibatches.

    Parameters
    ----------
    sampler
        The method.
    mean, sd
        The stationary means' errors in posterior standard deviations, and the standard deviations over the
        posterior's, shape (agent, dim).
    average_mean, average_sd
        The same of the agents' average, shape (dim,).
    burn_in
        Rounds until a start is forgotten.
    rounds, exchanges, bytes_sent, gradient_rows, sums
        Of the busiest agent per effective draw of the mean, the least over agents and parameters. A proximal step and
        a Metropolis or rejection step count as one gradient.
    """

    sampler: Sampler
    mean: np.ndarray
    sd: np.ndarray
    average_mean: np.ndarray
    average_sd: np.ndarray
    burn_in: int
    rounds: float
    exchanges: float
    bytes_sent: float
    gradient_rows: float
    sums: float = 0.0

    def cost(self, draws: int, chains: int, before: Traffic) -> Cost:
        """The cost of `chains` chains of so many effective draws, in all, after what came before them.

        Parameters
        ----------
        draws, chains
            Chains that run side by side, and the effective draws of each.
        before
            What finding coordinates and numbers took.
        """
        first = Cost.of(before)
        rounds = BURN_INS * self.burn_in + draws * self.rounds
        share = rounds / self.rounds
        return Cost(
            first.rounds + rounds,
            first.sums + share * self.sums,
            first.exchanges + share * self.exchanges,
            first.bytes_sent + chains * share * self.bytes_sent,
            first.gradient_rows + chains * share * self.gradient_rows,
            first.value_rows,
        )

    @property
    def bias(self) -> float:
        """The largest error of any agent's mean or standard deviation, in posterior standard deviations."""
        return _worst(self.mean, self.sd)

    @property
    def average_bias(self) -> float:
        """The same of the agents' average."""
        return _worst(self.average_mean, self.average_sd)

    def meets(self, tolerance: float) -> bool:
        """Whether every agent's draws stay within a tolerance.

        A tenth of it is allowed on the Gaussian approximation; the rest is left to what the posterior is beyond that.
        """
        return self.bias <= SHARE * tolerance


def left_out(sampler: Sampler | BySums) -> str:
    """A sentence on noise that a forecast leaves out, and its remedy; empty if there is none."""
    rows = None if isinstance(sampler, BySums) else sampler.needs(1).batch_size
    if rows is None:
        return ""
    return (
        f"This leaves out the noise of minibatches (batch_size={rows}), which makes draws wider than forecast: look at "
        "the temperature that run.summary() measures, and where it is above 1 take a larger batch_size, smaller steps "
        "or all rows"
    )


def _worst(mean: np.ndarray, sd: np.ndarray) -> float:
    return float(max(np.abs(mean).max(), np.abs(sd - 1.0).max()))


def gaussian_model(post: Posterior, warmup: Warmup) -> Model:
    """The Gaussian posterior that stands for another one, from what warm-up found.

    Its local potentials are quadratic, with each agent's mean Hessian over draws of the Gaussian that warm-up's
    coordinates stand for, and its gradient at the mean. Where warm-up sent no Hessians, above 200 parameters, the model
    has one parameter only, in which every agent has the largest curvature of its own in whitened coordinates.

    Parameters
    ----------
    post
        The posterior in the coordinates that warm-up found.
    warmup
        What it found.
    """
    if warmup.coordinates.factor.ndim == 1:
        largest = warmup.curvature[:, 1]
        return Model(models.quadratic(largest[:, None, None], np.zeros((post.num_agents, 1))), None, None)
    half = np.random.default_rng(2).standard_normal((_LOOKS // 2, post.dim))
    looks = np.concatenate([half, -half])
    hessians, gradients, stiff = (np.asarray(x, np.float64) for x in post.each(_hessians, looks, warmup.stiff_draw))
    # the sums vanish up to the error of warm-up, which is none of the method's
    linear = gradients.mean(axis=0) - gradients
    place = warmup.coordinates
    back = np.linalg.inv(place.factor)

    def modelled(hessians: np.ndarray, stiff: Model | None) -> Model:
        there = back.T @ hessians @ back
        plain = models.quadratic((there + np.moveaxis(there, 1, 2)) / 2.0, linear @ back + there @ place.origin)
        return Model(plain.transformed(place), plain, stiff)

    return modelled(hessians, modelled(stiff, None))


def _hessians(
    potential: Potential, shard: Shard, z: Float[Array, "look dim"], stiff_draw: Float[Array, " dim"]
) -> tuple[Float[Array, "dim dim"], Float[Array, " dim"], Float[Array, "dim dim"]]:
    """The mean Hessian at some draws, the gradient at their mean, and the Hessian at a stiff draw."""
    zero = jnp.zeros_like(z[0])
    if shard.quadratic is not None:
        hessian = potential.hessian(shard, zero)
        return hessian, potential.gradient(shard, zero), hessian
    total = potential.hessian(shard, z[0])
    for x in z[1:]:
        total = total + potential.hessian(shard, x)
    return total / z.shape[0], potential.gradient(shard, zero), potential.hessian(shard, stiff_draw)


def forecast(model: Posterior, sizes: np.ndarray, network: Network, sampler: Sampler) -> Forecast:
    """Forecast the bias and cost of a method on a Gaussian posterior.

    Parameters
    ----------
    model
        The posterior, one of the two of `gaussian_model`.
    sizes
        Rows of each agent, shape (agent,).
    network, sampler
        As in `accord.sample`; the method with all its numbers.

    Raises
    ------
    TypeError
        The method draws more than normal numbers, so that its law is unknown.
    ValueError
        A step follows a schedule, or something does not fit.
    ArithmeticError
        The method is unstable, or forgets too slowly to be followed.
    """
    linear = sampler.linear() if isinstance(sampler, HasLaw) else sampler
    return forecast_bound(model, sizes, network, sampler, stationary_bound(model, network, linear))


def forecast_bound(model: Posterior, sizes: np.ndarray, network: Network, sampler: Sampler, law: Bound) -> Forecast:
    """The same of a method whose linear form, as `stationary_bound` gives it, is known already."""
    found = respond_bound(model, network, law, most_rounds=_MOST_ROUNDS)
    # the law reads all rows, the method its minibatches
    needs = law.sampler.needs(model.dim)._replace(batch_size=sampler.needs(model.dim).batch_size)
    exact = found.exact
    mean, sd = (found.mean - exact.mean) / exact.sd, found.sd / exact.sd
    average_mean, average_sd = (found.average_mean - exact.mean) / exact.sd, found.average_sd / exact.sd
    # draws that alternate make means precise and nothing else
    rounds = max(1.0, float(found.memory.max()))
    exchanges, messages = messages_per_round(needs, network)
    gradients = rounds * np.max(rows_per_gradient(needs, sizes) * needs.gradients)
    sent = rounds * float(messages.max()) * float_bytes() * found.message_size
    return Forecast(
        sampler,
        mean,
        sd,
        average_mean,
        average_sd,
        burn_in=found.decay,
        rounds=rounds,
        exchanges=rounds * exchanges,
        bytes_sent=sent,
        gradient_rows=float(gradients),
        sums=rounds if needs.sums else 0.0,
    )


def forecast_beyond(found: Forecast, model: Model, whitened: bool, network: Network) -> Forecast:
    """A forecast of a method that knows the Gaussian part itself, with what it errs where only the rest decides.

    Its errors on the Gaussian say nothing. They are taken from the model of the stiffest draws, where the agents'
    curvatures are furthest from what the method knows; a draw in fifty is as stiff, and a share of these errors counts
    as the Gaussian part's do. They are infinite where the method is unstable there, or the posterior is no Gaussian's
    because -F bends upwards, as in a funnel's neck.
    """
    assert model.stiff is not None
    typical, stiff = model.of(whitened), model.stiff.of(whitened)
    assert typical is not None and stiff is not None
    assert isinstance(found.sampler, Expanding) and isinstance(found.sampler, HasLaw)
    if np.linalg.eigvalsh(stiff.hessians().sum(axis=0))[0] <= 0.0:
        return replace(found, mean=np.full_like(found.mean, np.inf))
    law = stationary_bound(stiff, network, found.sampler.expanded(typical).linear())
    try:
        there = respond_bound(stiff, network, law, most_rounds=_MOST_ROUNDS)
    except ArithmeticError:
        return replace(found, mean=np.full_like(found.mean, np.inf))
    exact = there.exact

    def worse(error: np.ndarray, there: np.ndarray) -> np.ndarray:
        return np.where(np.abs(error) > _STIFF_SHARE * np.abs(there), error, _STIFF_SHARE * there)

    return replace(
        found,
        mean=worse(found.mean, (there.mean - exact.mean) / exact.sd),
        sd=1.0 + worse(found.sd - 1.0, there.sd / exact.sd - 1.0),
    )
