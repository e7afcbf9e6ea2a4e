"""Base of the one-shot methods: NUTS samples each shard alone, and all agents get the combined draws."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from ...base.checks import whole_number
from ...base.compiler import compiled
from ...base.memory import require_matrices, require_memory
from ...posterior import Posterior
from ...posterior.potential import Potential, Shard
from ...posterior.reference import nuts_chain, require_blackjax
from ...results.findings import Expected, Findings
from ...results.run import Run, Traffic
from ...results.unconstrained import in_both_scales
from ..by_sums.evaluations import NOWHERE, slope_of

# Rise of a proper potential on both sides of its mode along every axis of its curvature, in nats.
_RISE = 1.0
# Distance within which the potential must rise, in units of 1 + |mode|.
_REACH = 1e6
# Share of divergent transitions above which a warning is raised.
_DIVERGENT_SHARE = 0.01
# Most numbers of data (rows times parameters) read to examine combined draws.
_READ = 5e8
# Fewest combined draws that are examined.
_FEWEST_DRAWS = 200
# Probability of a false alarm about combined draws, over all means and standard deviations together.
_FALSE_ALARM = 1e-4


@dataclass(frozen=True, eq=False)
class Subsets:
    """Draws of every subset posterior.

    Parameters
    ----------
    draws
        Shape (chain, draw, agent, dim), double precision.
    gradients
        Gradient evaluations of NUTS per agent, warm-up included, mean over chains, shape (agent,).
    message_bytes
        Bytes of one draw in a message.
    """

    draws: np.ndarray
    gradients: np.ndarray
    message_bytes: int


@dataclass(frozen=True, eq=False)
class Combination:
    """The draws that the hub made from the subset draws.

    Parameters
    ----------
    draws
        Shape (chain, draw, dim).
    statistics
        Arrays of shape (chain, draw).
    facts
        Texts and numbers for the run's settings.
    numbers_sent
        Numbers that each agent sent for all chains. None: its draws.
    asked, rounds
        Positions at which every agent then evaluated its value and gradient for the hub, and the number of rounds.
    """

    draws: np.ndarray
    statistics: dict[str, np.ndarray] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    numbers_sent: int | None = None
    asked: int = 0
    rounds: int = 1


def one_shot(
    post: Posterior,
    combine: Callable[[np.ndarray, np.random.Generator], Combination],
    *,
    method: str,
    likelihood_power: int = 1,
    draws: int = 1000,
    chains: int = 4,
    seed: int = 0,
    warmup: int = 1000,
) -> Run:
    """Sample every subset posterior, combine the draws at a hub, and send them to all agents.

    All one-shot methods that combine draws call this function with their rule.

    Parameters
    ----------
    post
        The posterior. Every shard must identify all parameters alone.
    combine
        The rule: a function of subset draws (chain, draw, agent, dim) and a NumPy generator.
    method
        The method with its options, as text for the run's settings.
    likelihood_power
        p of the subset posteriors exp(-p f_i): 1, or N if each approximates the whole posterior.
    draws, chains, seed, warmup
        As in `consensus`.

    Returns
    -------
    Run
        The same draws for every agent.

    Raises
    ------
    ValueError, ImportError
        As in `consensus`.

    Examples
    --------
    The plain average of the agents' draws:

    >>> import accord
    >>> from accord.samplers.combine import Combination, one_shot
    >>> def average(subsets, rng):
    ...     return Combination(subsets.mean(axis=2))
    >>> post = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0, 2.0, 3.0])
    >>> run = one_shot(post, average, method="average()", draws=50, chains=2, warmup=200)
    >>> run.draws.shape
    (2, 50, 3, 1)
    """
    began = time.perf_counter()
    subsets = sample_subsets(post, likelihood_power, draws=draws, chains=chains, seed=seed, warmup=warmup)
    # a separate stream, so that the hub's randomness does not depend on how NUTS uses the seed
    combined = combine(subsets.draws, np.random.default_rng([seed, 1]))
    total = subsets.message_bytes * chains * draws
    if combined.numbers_sent is not None:
        total = combined.numbers_sent * np.dtype(np.float64).itemsize
    total += combined.asked * (post.dim + 1) * np.dtype(np.float64).itemsize
    facts = {"method": method, "seed": seed, "warmup": warmup, **combined.facts}
    combined = replace(combined, facts=facts)
    return as_run(
        post,
        combined,
        gradients=subsets.gradients + combined.asked / chains,
        bytes_sent=total,
        seconds=time.perf_counter() - began,
        rounds=combined.rounds,
        # each further round is a request and a reply
        exchanges=2 * combined.rounds - 1,
    )


def as_run(
    post: Posterior,
    combined: Combination,
    *,
    gradients: np.ndarray,
    bytes_sent: np.ndarray | int,
    seconds: float,
    rounds: int = 1,
    exchanges: int = 1,
) -> Run:
    """The run of combined draws, with the same draws for all agents.

    Parameters
    ----------
    post
        The posterior.
    combined
        The draws, with the run's settings as facts.
    gradients
        Gradient evaluations of each agent per chain, shape (agent,).
    bytes_sent
        Bytes that each agent sent for all chains, a number or an array (agent,).
    seconds
        Wall time.
    rounds, exchanges
        Number of requests to the agents, and of one-way exchanges.
    """
    average = combined.draws.astype(np.dtype(jnp.result_type(float)))
    chains, draws, _ = average.shape
    each = -(-np.broadcast_to(bytes_sent, post.num_agents) // chains)
    return Run(
        **in_both_scales(post, average, post.num_agents),
        agents=np.arange(post.num_agents),
        statistics={"consensus_error": np.zeros((chains, draws), average.dtype), **combined.statistics},
        traffic=Traffic(
            rounds=rounds,
            exchanges=exchanges,
            bytes_sent=each.astype(np.int64),
            gradient_rows=np.round(gradients * post.sizes).astype(np.int64),
        ),
        seconds=seconds,
        settings={
            # agents work in parallel: the sum is the total work, the largest determines the wall time
            "gradients": float(gradients.sum()),
            "gradients_largest": float(gradients.max()),
            **combined.facts,
        },
        examine=partial(examined, post),
    )


def examined(post: Posterior, average: np.ndarray) -> Findings:
    """Errors of combined draws (chain, draw, dim) of means and standard deviations, from the gradient g of F there.

    Let C be the covariance of the draws, x a parameter with mean m and variance v, and s its component of C g. The mean
    of s is the error of m, and the mean of (x - m) s / v is the ratio of v to the posterior's variance. Both are exact
    if F is quadratic. Errors within the Monte Carlo error count as 0.
    """
    from arviz_stats.base.array import array_stats

    reason = "a one-shot method has no law"
    chains, draws, dim = average.shape
    most = max(_FEWEST_DRAWS, int(_READ / (float(post.sizes.sum()) * dim)))
    x = average[:, np.unique(np.linspace(0, draws - 1, max(1, most // chains)).astype(int))].astype(np.float64)
    if x.shape[1] < 4 or not np.ptp(x, axis=1).all():
        return Findings(reason=reason)
    with jax.enable_x64(True):
        found = np.asarray(post.in_parameters().totals_here()(slope_of, points=x.reshape(-1, dim)), np.float64)
    if found[:, 0].max() >= NOWHERE:
        return Findings(reason=reason)
    cov = np.atleast_2d(np.cov(x.reshape(-1, dim).T))
    sd = np.sqrt(np.diag(cov))
    slope = (found[:, 1:] @ cov / sd).reshape(x.shape)
    numbers = np.concatenate([slope, (x - x.mean(axis=(0, 1))) / sd * slope - 1.0], axis=2)
    off = numbers.mean(axis=(0, 1))
    effective = array_stats.ess(numbers, chain_axis=0, draw_axis=1, method="mean")
    allowed = scipy.stats.norm.isf(_FALSE_ALARM / (4 * dim)) * numbers.std(axis=(0, 1)) / np.sqrt(effective)
    mean, variance = np.split(np.where(np.abs(off) > allowed, off, 0.0), 2)
    ratio = np.sqrt(np.maximum(1.0 + variance, 0.0))
    every = (post.num_agents, 1)
    return Findings(Expected(np.tile(mean, every), np.tile(ratio, every), mean, ratio), reason)


def sample_subsets(
    post: Posterior, likelihood_power: int = 1, *, draws: int, chains: int, seed: int, warmup: int
) -> Subsets:
    """Draw from every subset posterior exp(-p f_i) by NUTS with a dense metric, starting around its mode.

    Parameters
    ----------
    post
        The posterior.
    likelihood_power
        p. With p = N a shard's likelihood counts N times and the prior once, because f_i has 1/N of the prior.
    draws, chains, seed, warmup
        As in `consensus`.

    Raises
    ------
    ValueError
        A number is out of its range, the draws are too few for a covariance, or a subset posterior is improper.
    ArithmeticError
        NUTS drew NaN or infinity (the message names the agent).
    ImportError
        BlackJAX is not installed.
    """
    for name, value, low in (("draws", draws, 1), ("chains", chains, 1), ("warmup", warmup, 1), ("seed", seed, 0)):
        whole_number(name, value, low)
    if draws * chains <= post.dim:
        raise ValueError(
            f"draws * chains must exceed the {post.dim} parameters for covariances, found {draws} * {chains}"
        )
    post.require_unchanged()
    require_memory(draws=draws, chains=chains, positions=post.num_agents, dim=post.dim)
    require_blackjax("a one-shot method")
    modes, factors = subset_modes(post, likelihood_power)
    width = jnp.result_type(float)
    normals = np.random.default_rng([seed, 0]).standard_normal((post.num_agents, chains, post.dim))
    # dispersed starts: draws of the Gaussian approximation, so that R-hat detects chains that do not mix
    starts = modes[:, None] + np.einsum("nij,ncj->nci", factors, normals)
    keys = jax.vmap(lambda key: jax.random.split(key, chains))(
        jax.vmap(jax.random.fold_in, in_axes=(None, 0))(jax.random.key(seed), jnp.arange(post.num_agents))
    )
    found = _draw(
        post.potential,
        post.stacked(),
        keys,
        jnp.asarray(starts, width),
        jnp.asarray(likelihood_power, width),
        draws=draws,
        warmup=warmup,
    )
    positions, divergent, gradients = (np.asarray(part) for part in found)
    finite = np.isfinite(positions).all(axis=(1, 2, 3))
    if not finite.all():
        agent = int(np.argmin(finite))
        raise ArithmeticError(f"NUTS on the shard of agent {agent} ({_rows(post, agent)}) drew NaN or infinity")
    share = divergent.mean(axis=(1, 2), dtype=np.float64)
    if (share > _DIVERGENT_SHARE).any():
        agent = int(np.argmax(share))
        warnings.warn(
            f"{100 * share[agent]:.2g}% of NUTS transitions on the shard of agent {agent} ({_rows(post, agent)}) "
            "diverged: its draws and the combined draws may be wrong",
            stacklevel=2,
        )
    return Subsets(
        draws=np.moveaxis(positions, 0, 2).astype(np.float64),
        gradients=gradients.mean(axis=1, dtype=np.float64),
        message_bytes=post.dim * positions.dtype.itemsize,
    )


@compiled(static_argnames=("draws", "warmup"))
def _draw(
    potential: Potential,
    shards: Shard,
    keys: jax.Array,
    starts: jax.Array,
    likelihood_power: jax.Array,
    *,
    draws: int,
    warmup: int,
) -> Any:
    def one_agent(shard: Shard, keys: jax.Array, starts: jax.Array) -> Any:
        def logdensity(x: jax.Array) -> jax.Array:
            return -likelihood_power * potential.value(shard, x)

        def one_chain(key: jax.Array, start: jax.Array) -> Any:
            return nuts_chain(key, logdensity, start, draws=draws, warmup=warmup, dense=True)

        return jax.vmap(one_chain)(keys, starts)

    return jax.vmap(one_agent)(shards, keys, starts)


def subset_modes(post: Posterior, likelihood_power: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Modes (agent, dim) and approximate covariance factors (agent, dim, dim) of the subset posteriors exp(-p f_i).

    The width along an axis of the curvature is the distance in which the potential rises by 1/2: one standard deviation
    of a Gaussian. It also exists if the Hessian at the mode is 0 or infinite, as for |x|^4 and |x|^1.5.

    Raises
    ------
    ValueError
        A subset posterior is improper or has no mode. The message names agent, rows and the smallest eigenvalue of the
        Hessian.
    """
    if post.quadratic:
        hessians = post.hessians()
        values, vectors = np.linalg.eigh(hessians)
        flat = ~(values[:, 0] > 1e-12 * np.abs(hessians).max(axis=(1, 2)))
        if flat.any():
            agent = int(np.argmax(flat))
            raise _improper(post, agent, values[agent, 0])
        modes = -np.linalg.solve(hessians, post.gradients(np.zeros(post.dim))[..., None])[..., 0]
        return modes, vectors / np.sqrt(values * likelihood_power)[:, None, :]
    with jax.enable_x64(True):
        shards = post.stacked()
        functions = [compiled(f) for f in (_value, _slope, _curvature)]
        found = []
        for agent in range(post.num_agents):
            own = (post.potential, jax.tree.map(lambda leaf, i=agent: leaf[i], shards))
            found.append(lowest_alone(post, agent, own, *functions, power=likelihood_power))
    return np.stack([one.mode for one in found]), np.stack([one.factor for one in found])


def _value(potential: Potential, shard: Shard, x: jax.Array) -> jax.Array:
    return potential.value(shard, x)


def _slope(potential: Potential, shard: Shard, x: jax.Array) -> jax.Array:
    return potential.gradient(shard, x)


def _curvature(potential: Potential, shard: Shard, x: jax.Array) -> jax.Array:
    return potential.hessian(shard, x)


class Lowest(NamedTuple):
    """The mode of one agent's potential, with an approximate covariance factor of exp(-power potential) there."""

    mode: np.ndarray
    factor: np.ndarray
    hessian: np.ndarray
    gradients: int


def lowest_alone(
    post: Posterior,
    agent: int,
    own: tuple[Any, ...],
    value: Callable[..., Any],
    slope: Callable[..., Any],
    curvature: Callable[..., Any],
    *,
    power: int = 1,
) -> Lowest:
    """Find the mode of one agent's potential, in double precision, with a covariance factor.

    Parameters
    ----------
    post, agent
        The posterior, whose `init` is the start, and the agent.
    own
        Arguments of the three functions before the position.
    value, slope, curvature
        The potential, its gradient and its Hessian.
    power
        p of the covariance factor, which is for exp(-p potential).

    Raises
    ------
    ValueError
        exp(-potential) is improper, or no mode was found.
    """
    remedy = "use a method of accord.sample without whiten, which needs no such matrices"
    require_matrices("an agent's Hessian and its eigenvectors", post.dim, 3, remedy)
    found = scipy.optimize.minimize(
        lambda x: float(value(*own, x)),
        post.init,
        jac=lambda x: np.asarray(slope(*own, x)),
        hess=lambda x: np.asarray(curvature(*own, x)),
        method="trust-exact",
        options={"gtol": 1e-9, "maxiter": 2000},
    )
    hessian = np.asarray(curvature(*own, found.x))
    if not (np.isfinite(hessian).all() and np.isfinite(found.fun)):
        raise ValueError(f"{_subset_name(post, agent)} has no mode: the search ended at a non-finite potential")
    values, vectors = np.linalg.eigh(hessian)
    steepness = np.abs(np.asarray(slope(*own, found.x))).max()
    scale = 1.0 + np.abs(np.asarray(slope(*own, post.init))).max()
    widths = [_width(own, value, found, axis, 0.5 / power) for axis in vectors.T]
    if not all(np.isfinite(_width(own, value, found, axis, _RISE)) for axis in vectors.T):
        raise _improper(post, agent, values[0])
    # a loose tolerance: Newton steps converge slowly to modes without a Hessian, such as the mode of |x|^1.5
    if not steepness <= 1e-3 * scale:
        raise ValueError(
            f"{_subset_name(post, agent)} has no mode that could be found: after {found.nit} iterations the gradient "
            f"is still {steepness:.3g}, and the smallest eigenvalue of its Hessian is {values[0]:.3g}"
        )
    # a Hessian counts as `dim` gradients
    return Lowest(found.x, vectors * np.array(widths), hessian, int(found.njev + post.dim * found.nhev))


def _width(own: tuple[Any, ...], value: Any, found: Any, axis: np.ndarray, rise: float) -> float:
    """The distance in which a potential rises by `rise` on both sides of its mode; infinite if beyond reach."""
    reach = (1.0 + np.abs(found.x).max()) * np.geomspace(1.0 / _REACH, _REACH, 49)
    furthest = 0.0
    for side in (axis, -axis):
        # NaN, which overflow may give, counts as no rise, and infinity as a rise
        risen = (step for step in reach if float(value(*own, found.x + step * side)) >= found.fun + rise)
        furthest = max(furthest, next(risen, np.inf))
    return furthest


def _improper(post: Posterior, agent: int, smallest: float) -> ValueError:
    return ValueError(
        f"{_subset_name(post, agent)} is improper: the smallest eigenvalue of its Hessian is {smallest:.3g}. One-shot "
        "methods need shards that identify all parameters alone: add rows to this agent or a proper prior to the model"
    )


def _subset_name(post: Posterior, agent: int) -> str:
    return f"the subset posterior of agent {agent} ({_rows(post, agent)}, {post.dim} parameters)"


def _rows(post: Posterior, agent: int) -> str:
    return f"{post.sizes[agent]} rows" if post.splits else "a shard that does not split"
