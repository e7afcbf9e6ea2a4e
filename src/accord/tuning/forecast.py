"""Forecasts of a method's bias and cost on a posterior, from its exact law on a Gaussian approximation."""

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

# Draws over which an agent's Hessian is averaged.
_LOOKS = 16
# Share of the tolerance allowed on the Gaussian approximation. The rest is a margin for the non-Gaussian part.
SHARE = 0.1
# Weight of errors at a stiff draw relative to errors on the Gaussian approximation. With it, draws met the tolerance on
# four regressions with scikit-learn's data sets.
_STIFF_SHARE = 0.2
# Rounds after which a method counts as mixing too slowly.
_MOST_ROUNDS = 500_000
# Burn-in of a run in multiples of the forecast burn-in.
BURN_INS = 3


class Model(NamedTuple):
    """The Gaussian approximation of a posterior.

    Parameters
    ----------
    whitened
        The approximation in whitened coordinates.
    plain
        The approximation in the user's coordinates. None if only the largest curvatures are modelled.
    stiff
        A second model with the agents' Hessians at a stiff draw. None if only the largest curvatures are modelled.
    """

    whitened: Posterior
    plain: Posterior | None
    stiff: Model | None

    def of(self, whitened: bool) -> Posterior | None:
        """The approximation in whitened or in the user's coordinates."""
        return self.whitened if whitened else self.plain


@dataclass(frozen=True, eq=False)
class Forecast:
    """The bias and cost of a method with given hyper-parameters, without minibatch noise.

    Parameters
    ----------
    sampler
        The method.
    mean, sd
        Errors of the stationary means in posterior standard deviations, and ratios of the standard deviations to the
        posterior's, shape (agent, dim).
    average_mean, average_sd
        The same for the agents' average, shape (dim,).
    burn_in
        Rounds until the effect of the start has decayed to a hundredth.
    rounds, exchanges, bytes_sent, gradient_rows, sums
        Cost of the busiest agent per effective draw of the mean of the slowest parameter. A proximal, Metropolis or
        rejection step counts as one gradient.
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
        """The total cost of a run, warm-up and burn-in included.

        Parameters
        ----------
        draws, chains
            Effective draws per chain, and chains that run in parallel.
        before
            The traffic of warm-up.
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
        """The largest error of the agents' average, in posterior standard deviations."""
        return _worst(self.average_mean, self.average_sd)

    def meets(self, tolerance: float) -> bool:
        """Whether the bias is at most a tenth of the tolerance, which leaves a margin for the non-Gaussian part."""
        return self.bias <= SHARE * tolerance


def left_out(sampler: Sampler | BySums) -> str:
    """A sentence about noise that the forecast leaves out, with the remedy. Empty if it leaves out nothing."""
    rows = None if isinstance(sampler, BySums) else sampler.needs(1).batch_size
    if rows is None:
        return ""
    return (
        f"This leaves out the noise of minibatches (batch_size={rows}), which makes draws wider than forecast. If "
        "run.summary() measures a temperature above 1, use a larger batch_size, smaller steps or all rows"
    )


def _worst(mean: np.ndarray, sd: np.ndarray) -> float:
    return float(max(np.abs(mean).max(), np.abs(sd - 1.0).max()))


def gaussian_model(post: Posterior, warmup: Warmup) -> Model:
    """The Gaussian approximation of a posterior after warm-up.

    Its local potentials are quadratic, with each agent's mean Hessian over standard normal draws in warm-up's
    coordinates and each agent's gradient at the mean. If warm-up sent no Hessians (above 200 parameters), the model has
    a single parameter, in which every agent has its largest curvature in whitened coordinates.

    Parameters
    ----------
    post
        The posterior in warm-up's coordinates.
    warmup
        The result of warm-up.
    """
    if warmup.coordinates.factor.ndim == 1:
        largest = warmup.curvature[:, 1]
        return Model(models.quadratic(largest[:, None, None], np.zeros((post.num_agents, 1))), None, None)
    half = np.random.default_rng(2).standard_normal((_LOOKS // 2, post.dim))
    looks = np.concatenate([half, -half])
    hessians, gradients, stiff = (np.asarray(x, np.float64) for x in post.each(_hessians, looks, warmup.stiff_draw))
    # the gradients sum to zero at the exact mean: warm-up's error is no bias of the method
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
    """The mean Hessian over draws, the gradient at zero, and the Hessian at a stiff draw."""
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
        A Gaussian posterior, `Model.whitened` or `Model.plain`.
    sizes
        Rows of each agent, shape (agent,).
    network, sampler
        As in `accord.sample`. The method must have all its numbers.

    Raises
    ------
    TypeError
        The method uses randomness beyond normal noise, so that its law is unknown.
    ValueError
        The method has a step schedule, or posterior, network and method do not fit.
    ArithmeticError
        The method is unstable or mixes too slowly.
    """
    linear = sampler.linear() if isinstance(sampler, HasLaw) else sampler
    return forecast_bound(model, sizes, network, sampler, stationary_bound(model, network, linear))


def forecast_bound(model: Posterior, sizes: np.ndarray, network: Network, sampler: Sampler, law: Bound) -> Forecast:
    """`forecast` for a method already bound by `stationary_bound`."""
    found = respond_bound(model, network, law, most_rounds=_MOST_ROUNDS)
    # the law uses all rows, the method's cost is that of minibatches
    needs = law.sampler.needs(model.dim)._replace(batch_size=sampler.needs(model.dim).batch_size)
    exact = found.exact
    mean, sd = (found.mean - exact.mean) / exact.sd, found.sd / exact.sd
    average_mean, average_sd = (found.average_mean - exact.mean) / exact.sd, found.average_sd / exact.sd
    # antithetic draws (memory below 1) sharpen only means, so that a draw costs at least one round
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
    """The forecast of a method with local expansions, with errors from the model at a stiff draw.

    Such a method is exact on the Gaussian approximation. Its errors are therefore computed with the agents' Hessians at
    a draw among the stiffest fiftieth and enter with weight `_STIFF_SHARE`. The errors are infinite if the method is
    unstable there or if F's Hessian has a negative eigenvalue there, as in a funnel.
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
