"""Bayesian Federated Inference: every agent sends its mode and curvature once, and the hub adds them up."""

from __future__ import annotations

import time
from typing import NamedTuple

import jax
import numpy as np

from ...base.checks import whole_number
from ...base.compiler import compiled
from ...base.gaussian import Gaussian
from ...base.memory import require_memory
from ...posterior import Posterior
from ...posterior.potential import Potential, Shard
from ...results.run import Run
from .subsets import Combination, as_run, lowest_alone


class Fits(NamedTuple):
    """The agents' modes (agent, dim), curvatures (agent, dim, dim) and numbers of gradient evaluations (agent,)."""

    modes: np.ndarray
    curvatures: np.ndarray
    gradients: np.ndarray


def bfi(post: Posterior, *, draws: int = 1000, chains: int = 4, seed: int = 0, local_prior: float = 1.0) -> Run:
    """Bayesian Federated Inference.

    From agent i:  the mode m_i and the Hessian A_i there of `l_i + s pi`, l_i = -log likelihood of its rows, pi = -log
    prior, s = `local_prior`. At the hub: independent draws of `N(A^-1 sum_i A_i m_i, A^-1)`,
    `A = sum_i A_i + (1 - N s) P` with P the prior's precision.

    Jonker, Pazira and Coolen 2024 (Bayesian federated inference for estimating statistical models based on non-shared
    multicenter data sets, Statistics in Medicine 43) and the R package BFI, for normal priors with mean 0. Extension in
    accord: other priors are expanded to second order, at m_i for the prior that is subtracted and at the
    precision-weighted mean of the m_i for the prior that is added. Exact for Gaussian shards. Otherwise a Laplace
    approximation with every shard expanded at its own mode. Its error grows with the difference of a shard's log
    likelihood from a parabola between m_i and the result. Unlike in `parametric`, no shard has to identify all
    parameters alone, because each local fit includes the prior.

    Parameters
    ----------
    post
        The posterior.
    draws, chains
        Draws of the combined Gaussian per chain, and chains.
    seed
        A whole number >= 0.
    local_prior
        s >= 0, the power of the prior at each agent. 1 (default) is the paper's choice. 0 is maximum likelihood, which
        needs a mode at every shard.

    Returns
    -------
    Run
        The same draws for every agent.

    Raises
    ------
    ValueError
        A number is out of its range, or an agent's `l_i + s pi` has no mode (the message names agent and rows).
    ArithmeticError
        A is not positive definite.

    Examples
    --------
    >>> import accord
    >>> post = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0, 2.0, 3.0])
    >>> run = accord.samplers.combine.bfi(post, draws=50, chains=2)
    >>> run.draws.shape
    (2, 50, 3, 1)
    """
    for name, value, low in (("draws", draws, 1), ("chains", chains, 1), ("seed", seed, 0)):
        whole_number(name, value, low)
    if not 0 <= local_prior < float("inf"):
        raise ValueError(f"local_prior must be a finite number >= 0, found {local_prior}")
    post.require_unchanged()
    require_memory(draws=draws, chains=chains, positions=post.num_agents, dim=post.dim)
    began, dim = time.perf_counter(), post.dim
    fits = local_fits(post, float(local_prior))
    combined = added(post, fits, float(local_prior))
    normals = np.random.default_rng([seed, 1]).standard_normal((chains, draws, dim))
    facts = {"method": f"bfi(local_prior={local_prior:g})", "seed": seed}
    return as_run(
        post,
        Combination(combined.mean + normals @ combined.factor().T, facts=facts),
        # one fit for all chains
        gradients=fits.gradients / chains,
        # a mode and the upper half of a curvature
        bytes_sent=(dim + dim * (dim + 1) // 2) * np.dtype(np.float64).itemsize,
        seconds=time.perf_counter() - began,
    )


def local_fits(post: Posterior, local_prior: float) -> Fits:
    """Modes and Hessians of every agent's `l_i + local_prior pi`.

    Raises
    ------
    ValueError
        An agent has no mode.
    """
    with jax.enable_x64(True):
        shards = post.stacked()
        functions = [compiled(f) for f in (_value, _slope, _curvature)]
        found = [
            lowest_alone(
                post, i, (post.potential, jax.tree.map(lambda leaf, i=i: leaf[i], shards), local_prior), *functions
            )
            for i in range(post.num_agents)
        ]
    modes, _, hessians, gradients = zip(*found, strict=True)
    return Fits(np.stack(modes), np.stack(hessians), np.array(gradients, np.float64))


def added(post: Posterior, fits: Fits, local_prior: float) -> Gaussian:
    """Combine the fits at the hub.

    Raises
    ------
    ArithmeticError
        The combined curvature is not positive definite.
    """
    middle = np.linalg.solve(fits.curvatures.sum(axis=0), np.einsum("nij,nj->i", fits.curvatures, fits.modes))
    with jax.enable_x64(True):
        at = np.vstack([fits.modes, middle])
        slopes, bends = (np.asarray(part) for part in _expanded(post.potential, at))
    # x' P x / 2 - b' x about each point: b = P x - slope
    linear = np.einsum("nij,nj->ni", bends, at) - slopes
    precision = fits.curvatures.sum(axis=0) - local_prior * bends[:-1].sum(axis=0) + bends[-1]
    total = np.einsum("nij,nj->i", fits.curvatures, fits.modes) - local_prior * linear[:-1].sum(axis=0) + linear[-1]
    smallest = float(np.linalg.eigvalsh(precision)[0])
    if not smallest > 0:
        raise ArithmeticError(
            f"the combined curvature is not positive definite: its smallest eigenvalue is {smallest:.3g}. Use a "
            f"smaller local_prior, found {local_prior:g}"
        )
    cov = np.linalg.inv(precision)
    return Gaussian(cov @ total, (cov + cov.T) / 2)


def _value(potential: Potential, shard: Shard, power: float, x: jax.Array) -> jax.Array:
    return -potential.shard_log_likelihood(shard, x) + power * _prior(potential, x)


def _slope(potential: Potential, shard: Shard, power: float, x: jax.Array) -> jax.Array:
    return jax.grad(_value, 3)(potential, shard, power, x)


def _curvature(potential: Potential, shard: Shard, power: float, x: jax.Array) -> jax.Array:
    return jax.hessian(_value, 3)(potential, shard, power, x)


def _prior(potential: Potential, x: jax.Array) -> jax.Array:
    return -potential.log_prior_at(x)


@compiled
def _expanded(potential: Potential, points: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Gradients and Hessians of pi at points (point, dim)."""

    def one(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.grad(_prior, 1)(potential, x), jax.hessian(_prior, 1)(potential, x)

    return jax.vmap(one)(points)
