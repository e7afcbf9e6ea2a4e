"""Latents of a site or of a group of its rows: integrated out at the site, and drawn there after a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jax.tree_util import Partial
from jaxtyping import Array, Float, PyTree, UInt32

from ..base.pytree import altered, pytree, static
from .parameters import Parameters, check_variables, unconstrained, variables
from .validation import returned

# Quadrature nodes per latent, {latents per group: {least rows of the smallest group: nodes}}.
_NODES = {1: {0: 15, 20: 9, 200: 7}, 2: {0: 9, 20: 7, 200: 5}}
# Importance samples per group, for three or more latents.
_DRAWS = 100
# Candidates for each draw of a group's latents.
_CANDIDATES = 32
# Largest number of quadrature nodes per latent that a user may choose.
MOST_NODES = 100
# Extra nodes per latent in the estimate of the quadrature error.
_FINER = 6
# Distances of far nodes in the estimate of the quadrature error, in standard deviations.
_FAR = np.geomspace(8.0, 300.0, 16)
# Degrees of freedom of the t proposals for latents.
_FREEDOM = 5.0
# Largest number of Newton steps.
_MOST_STEPS = 50
# Distance to the mode at which Newton's method stops, in standard deviations.
_LAST_STEP = 0.05
# Largest size of the one-hot matrix that sums rows by group.
_MOST_PRODUCTS = 1_000_000
# Stand-in for a log density of -inf in that sum.
_LEAST = -1e30
# Smallest absolute eigenvalue of a Hessian scaled to unit diagonal.
_LEAST_CURVATURE = 1e-6


@dataclass(frozen=True)
class Local:
    """Latent variables of each site, or of each group of rows at a site: random effects.

    Latents never leave their site. The site integrates them out at every value of the parameters, by adaptive
    Gauss-Hermite quadrature for one or two latents per group (Liu & Pierce 1994), else by importance sampling. Its
    unbiased likelihood estimates leave the posterior exact (Tran et al. 2013).

    Parameters
    ----------
    log_prior
        `log_prior(params, latents, row)`: the log density of one group's latents given the parameters, a scalar.
        `latents` has the structure of `init`. `row` is the group's first row, for covariates of the group.
    init
        The initial latents of one group: any pytree of floats.
    group
        `group(rows)`: the group of each row, shape (rows,), integers from 0 to the agent's number of groups minus one.
        None: all rows of an agent are one group.
    constraints
        As in `Posterior`.

    `log_likelihood(params, latents, rows)` then receives, for each row, the latents of its group: a pytree like `init`
    with a leading axis of rows.
    """

    log_prior: Callable[[PyTree, PyTree, PyTree], Array]
    init: PyTree
    group: Callable[[PyTree], Any] | None = None
    constraints: Mapping[str, Any] = field(default_factory=dict)


class Groups(NamedTuple):
    """Group of each row (row,), first row of each group (group,), number of groups, smallest group size, and agent."""

    of_row: Any
    first: Any
    count: Any
    fewest: Any
    agent: Any


class Evaluated(NamedTuple):
    """The log densities of groups, (group,), as a function `terms` of latents (group, latent), with their modes."""

    terms: Callable[[Array], Array]
    mode: Float[Array, "group latent"]
    # inverse root of the curvature at the mode
    root: Float[Array, "group latent latent"]
    # log |det root|
    log_volume: Float[Array, " group"]

    def at(self, x: Float[Array, "*node group latent"]) -> Float[Array, "*node group latent"]:
        """The latents at standardised positions."""
        moved = jnp.einsum("gij,...gj->...gi", self.root, x)
        return jnp.broadcast_to(self.mode, moved.shape) + moved


@pytree
class Latents:
    """The latents of a group, with the method that integrates them out of a potential.

    Parameters
    ----------
    log_prior
        The `log_prior` of `Local`.
    parameters
        The map from positions (latent,) to the latents of one group.
    start
        The position of `init`.
    nodes
        Quadrature nodes per latent. 0: importance sampling.
    """

    log_prior: Partial
    parameters: Parameters
    start: Float[np.ndarray, " latent"]
    nodes: int = static()

    @classmethod
    def of(cls, local: Local) -> Latents:
        """The latents of a user's declaration, with the most nodes of `_NODES`."""
        check_variables([name for name, _ in variables(local.init)])
        parameters, start = unconstrained(local.init, local.constraints, "init of local")
        prior = local.log_prior if isinstance(local.log_prior, Partial) else Partial(local.log_prior)
        return cls(prior, parameters, start, _nodes(start.size, 0))

    def for_rows(self, fewest: int) -> Latents:
        """The same latents, with the number of nodes for groups of at least `fewest` rows."""
        return self.with_nodes(_nodes(self.start.size, fewest))

    def with_nodes(self, nodes: int) -> Latents:
        """The same latents, with another number of nodes per latent."""
        return altered(self, nodes=nodes)

    def log_marginal(self, params: PyTree, log_likelihood: Partial, shard: Any, x: Float[Array, " dim"]) -> Array:
        """The log likelihood of an agent's rows, with all latents integrated out.

        `x` is the position of `params`. It seeds importance sampling, so that repeated calls give the same value.
        """
        return self._integral(self._expanded(params, log_likelihood, shard), shard, x)

    def quadrature_error(
        self, params: PyTree, log_likelihood: Partial, shard: Any, x: Float[Array, " dim"]
    ) -> Float[Array, ""]:
        """The error of `log_marginal`, estimated by a finer quadrature with far nodes."""
        found = self._expanded(params, log_likelihood, shard)
        return jnp.abs(self._integral(found, shard, x) - self._integral(found, shard, x, finer=True))

    def _integral(self, found: Evaluated, shard: Any, x: Float[Array, " dim"], *, finer: bool = False) -> Array:
        """The log of the integral over latents, by nodes around the modes. `finer` adds nodes, some of them far out."""
        # derivatives treat the nodes as constant, because the integral does not depend on them
        real = jnp.arange(shard.groups.first.shape[0]) < shard.groups.count
        groups, width = found.mode.shape
        if self.nodes:
            nodes, log_weight = _quadrature(self.nodes + finer * _FINER, width)
            if finer:
                nodes, log_weight = _with_far_nodes(nodes, log_weight)
            t = jnp.broadcast_to(nodes[:, None], (len(nodes), groups, width))
            log_proposal = jnp.broadcast_to(-log_weight[:, None], t.shape[:2])
        else:
            t, log_density = _student(_key(x, shard.groups.agent), (_DRAWS, groups), width)
            log_proposal = log_density + jnp.log(_DRAWS)
        own = logsumexp(jax.vmap(found.terms)(found.at(t)) - log_proposal, axis=0) + found.log_volume
        return jnp.sum(jnp.where(real, own, 0.0))

    def draw(self, params: PyTree, log_likelihood: Partial, shard: Any, key: UInt32[Array, " word"]) -> PyTree:
        """Draw latents of each group given parameters, in the user's scale, leaves (group, ...), from candidates."""
        found = self._expanded(params, log_likelihood, shard)
        groups, width = found.mode.shape
        numbers, choice = jax.random.split(jax.random.fold_in(key, shard.groups.agent))
        t, log_density = _student(numbers, (_CANDIDATES, groups), width)
        z = found.at(t)
        chosen = jax.random.categorical(choice, jax.vmap(found.terms)(z) - log_density, axis=0)
        return jax.vmap(self.parameters)(jnp.take_along_axis(z, chosen[None, :, None], axis=0)[0])

    def _expanded(self, params: PyTree, log_likelihood: Partial, shard: Any) -> Evaluated:
        """The modes of all groups' latents, and the inverse roots of their curvature."""
        known = (self.log_prior, self.parameters, log_likelihood, shard)
        start = jnp.broadcast_to(jnp.asarray(self.start), (shard.groups.first.shape[0], self.start.size))
        found = _modes(known, jax.lax.stop_gradient(params), start)
        return Evaluated(partial(_terms, *known, params), *jax.lax.stop_gradient(found))


# jit: users' models are slow to trace, so derivatives and programs share one trace
@jax.jit
def _terms(
    log_prior: Partial,
    parameters: Parameters,
    log_likelihood: Partial,
    shard: Any,
    params: PyTree,
    z: Float[Array, "group latent"],
) -> Float[Array, " group"]:
    """The joint log density of each group's rows and latents, at positions of the latents."""
    own, volume = jax.vmap(parameters.with_volume)(z)
    row = jax.tree.map(lambda leaf: leaf[shard.groups.first], shard.rows)
    prior = jax.vmap(log_prior, (None, 0, 0))(params, own, row) + volume
    of_row = shard.groups.of_row
    if len(prior) == 1:
        # broadcast: the derivative of indexing adds row by row
        of_rows = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (*of_row.shape, *leaf.shape[1:])), own)
    else:
        of_rows = jax.tree.map(lambda leaf: leaf[of_row], own)
    per_row = log_likelihood(params, of_rows, shard.rows)
    per_row = jnp.where(jnp.arange(per_row.shape[0]) < shard.size, per_row, 0.0)
    if len(prior) == 1:
        return prior + per_row.sum()
    # groups for padding are standard normal
    padded = -0.5 * jnp.square(z).sum(axis=1)
    real = jnp.arange(len(prior)) < shard.groups.count
    return jnp.where(real, _summed(per_row, of_row, len(prior)) + prior, padded)


def _summed(per_row: Float[Array, " row"], of_row: Any, groups: int) -> Float[Array, " group"]:
    """The sum over each group's rows."""
    if groups * per_row.size > _MOST_PRODUCTS:
        return jnp.zeros(groups, per_row.dtype).at[of_row].add(per_row)
    # for many nodes and positions at once, a matrix product is much faster than a scatter; -inf * 0 would be NaN
    finite = jnp.where(jnp.isneginf(per_row), _LEAST, per_row)
    found = (of_row[None] == jnp.arange(groups)[:, None]).astype(per_row.dtype) @ finite
    return jnp.where(found < _LEAST / 2.0, -jnp.inf, found)


def groups_of(local: Local, rows: PyTree, agent: int) -> np.ndarray:
    """The group of each of an agent's rows, checked; shape (row,)."""
    count = len(jax.tree.leaves(rows)[0])
    if local.group is None:
        return np.zeros(count, np.int32)
    found = np.asarray(local.group(rows))
    if found.shape != (count,):
        raise ValueError(f"group must return one number per row, shape ({count},), found shape {found.shape}")
    whole = found.astype(np.int64)
    if (whole != found).any() or whole.min() < 0:
        raise ValueError(f"groups of agent {agent} must be whole numbers from 0 on")
    missing = np.setdiff1d(np.arange(whole.max() + 1), whole)
    if missing.size:
        raise ValueError(
            f"groups of agent {agent} must be numbered without a gap: no row is in group {missing[0]}, and some rows "
            f"are in group {whole.max()}"
        )
    return whole.astype(np.int32)


def check_local(local: Local, params: PyTree, rows: PyTree) -> None:
    """Raise `ValueError` unless the log prior of latents returns a scalar."""
    row = jax.tree.map(lambda leaf: leaf[0], rows)
    shape = getattr(returned("log_prior of local", local.log_prior, params, local.init, row), "shape", None)
    if shape != ():
        raise ValueError(f"log_prior of local must return one number, for one group; found shape {shape}")


def with_latents(local: Local, log_likelihood: Partial) -> Partial:
    """A log likelihood of parameters and rows, at the initial latents."""
    return Partial(_at_start, log_likelihood, local.init)


def _at_start(log_likelihood: Partial, init: PyTree, params: PyTree, rows: PyTree) -> Array:
    return log_likelihood(params, at_start(init, len(jax.tree.leaves(rows)[0])), rows)


def at_start(init: PyTree, rows: int) -> PyTree:
    """The initial latents, repeated for a number of rows."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(jnp.asarray(leaf), (rows, *np.shape(leaf))), init)


def padded_groups(groups: Sequence[np.ndarray], agents: Sequence[int], rows: int, count: int) -> Groups:
    """The groups of several agents, stacked on a leading axis and padded to `rows` rows and `count` groups."""
    of_row = np.stack([own[np.minimum(np.arange(rows), len(own) - 1)] for own in groups])
    firsts = [np.unique(own, return_index=True)[1] for own in groups]
    first = np.stack([own[np.minimum(np.arange(count), len(own) - 1)] for own in firsts]).astype(np.int32)
    counts = np.array([len(own) for own in firsts], np.int32)
    fewest = np.array([np.bincount(own).min() for own in groups], np.int32)
    return Groups(of_row, first, counts, fewest, np.asarray(agents, np.int32))


class _Climb(NamedTuple):
    """The state of Newton's method: position, value and slope of each group, and the next trial position.

    The slope is in coordinates in which the curvature is the identity. `share` scales the step.
    """

    z: Float[Array, "group latent"]
    value: Float[Array, " group"]
    slope: Float[Array, "group latent"]
    root: Float[Array, "group latent latent"]
    log_volume: Float[Array, " group"]
    trial: Float[Array, "group latent"]
    share: Float[Array, " group"]
    steps: Array

    @property
    def length(self) -> Float[Array, " group"]:
        """The estimated distance to the mode, in standard deviations."""
        return jnp.sqrt(jnp.sum(self.slope**2, axis=1))


# jit: one trace, as for `_terms`
@jax.jit
def _modes(
    known: tuple[Any, ...], params: PyTree, start: Float[Array, "group latent"]
) -> tuple[Float[Array, "group latent"], Float[Array, "group latent latent"], Float[Array, " group"]]:
    """Modes of all groups by Newton's method, inverse roots of the curvature there, and log |det root|."""

    def summed(z: Array) -> tuple[Array, Array]:
        found = _terms(*known, params, z)
        return found.sum(), found

    def step(now: _Climb) -> _Climb:
        gradient, along, value = jax.linearize(jax.grad(summed, has_aux=True), now.trial, has_aux=True)
        # groups are independent: one product gives a column of every group's Hessian
        axes = jnp.broadcast_to(jnp.eye(start.shape[1], dtype=start.dtype)[:, None], (start.shape[1], *start.shape))
        root, log_volume = _inverse_root(-jnp.moveaxis(jax.vmap(along)(axes), 0, -1))
        found = (now.trial, value, jnp.einsum("gji,gj->gi", root, gradient), root, log_volume)
        # shorten the step of groups whose value falls
        up = value >= now.value - 1e-6 * (1.0 + jnp.abs(now.value))
        own = [jnp.where(up.reshape(-1, *[1] * (a.ndim - 1)), a, b) for a, b in zip(found, now[:5], strict=True)]
        z, value, slope, root, log_volume = own
        share = jnp.where(up, jnp.minimum(1.0, 4.0 * now.share), now.share / 4.0)
        trial = z + share[:, None] * jnp.einsum("gij,gj->gi", root, slope)
        return _Climb(z, value, slope, root, log_volume, trial, share, now.steps + 1)

    def going(now: _Climb) -> Array:
        return (now.length > _LAST_STEP).any() & (now.steps < _MOST_STEPS)

    ones = jnp.ones_like(start)
    lowest = jnp.full(len(start), -jnp.finfo(start.dtype).max)
    root = jnp.broadcast_to(jnp.eye(start.shape[1], dtype=start.dtype), (*start.shape, start.shape[1]))
    first = _Climb(start, lowest, ones, root, jnp.zeros_like(lowest), start, ones[:, 0], jnp.zeros((), jnp.int32))
    found = jax.lax.while_loop(going, step, first)
    return found.z, found.root, found.log_volume


def _inverse_root(
    matrices: Float[Array, "group latent latent"],
) -> tuple[Float[Array, "group latent latent"], Float[Array, " group"]]:
    """R with R' |H| R = I, and log |det R|, for each Hessian H. |H| has the absolute eigenvalues at unit diagonal."""
    width = matrices.shape[-1]
    own = jnp.abs(jnp.diagonal(matrices, axis1=1, axis2=2))
    # unit diagonal, because latents may have very different units
    scale = jnp.maximum(own, jnp.finfo(matrices.dtype).tiny ** 0.5) ** -0.5
    scaled = matrices * scale[:, :, None] * scale[:, None, :]
    if width > 2:
        values, vectors = jnp.linalg.eigh((scaled + jnp.swapaxes(scaled, 1, 2)) / 2.0)
    elif width == 1:
        values, vectors = scaled[..., 0], jnp.ones_like(scaled)
    else:
        # closed form, faster than one LAPACK call per matrix
        a, b, c = scaled[:, 0, 0], scaled[:, 0, 1], scaled[:, 1, 1]
        angle = jnp.arctan2(2.0 * b, a - c) / 2.0
        cos, sin, half = jnp.cos(angle), jnp.sin(angle), jnp.hypot((a - c) / 2.0, b)
        values = jnp.stack([(a + c) / 2.0 + half, (a + c) / 2.0 - half], axis=-1)
        vectors = jnp.stack([jnp.stack([cos, -sin], axis=-1), jnp.stack([sin, cos], axis=-1)], axis=-2)
    sizes = jnp.maximum(jnp.abs(values), _LEAST_CURVATURE)
    log_volume = jnp.log(scale).sum(axis=1) - jnp.log(sizes).sum(axis=1) / 2.0
    return scale[:, :, None] * vectors * (sizes**-0.5)[:, None, :], log_volume


def _nodes(width: int, fewest: int) -> int:
    """Quadrature nodes per latent. 0 for more than two latents."""
    return next((n for rows, n in reversed(_NODES.get(width, {}).items()) if fewest >= rows), 0)


def _quadrature(count: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes (node, latent) and log weights (node,) for integrals over standardised latents, without tiny weights."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(count)
    log_weight = np.log(weights) + nodes**2 / 2.0
    grid = np.stack(np.meshgrid(*[nodes] * width, indexing="ij"), axis=-1).reshape(-1, width)
    total = np.stack(np.meshgrid(*[log_weight] * width, indexing="ij"), axis=-1).reshape(-1, width).sum(axis=1)
    kept = total - np.square(grid).sum(axis=1) / 2.0 > np.log(1e-14)
    return grid[kept], total[kept]


def _with_far_nodes(nodes: np.ndarray, log_weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The nodes and log weights, with far nodes along each axis that estimate mass beyond the others roughly."""
    width = nodes.shape[1]
    distance = np.concatenate([_FAR, -_FAR])
    axes = np.concatenate([distance[:, None] * row for row in np.eye(width)])
    # across an axis, the width is the one near the mode
    spacing = np.log(np.abs(distance) * np.log(_FAR[1] / _FAR[0])) + (width - 1) / 2.0 * np.log(2.0 * np.pi)
    return np.concatenate([nodes, axes]), np.concatenate([log_weight, np.tile(spacing, width)])


def _key(x: Float[Array, " dim"], agent: Any) -> UInt32[Array, " word"]:
    """A random key, a hash of a position and an agent."""
    words = jax.lax.bitcast_convert_type(jax.lax.stop_gradient(x), jnp.uint32).ravel()

    def mixed(found: Array, word: Array) -> tuple[Array, None]:
        found = (found ^ word) * jnp.uint32(0x9E3779B1)
        return found ^ (found >> 15), None

    word, _ = jax.lax.scan(mixed, jnp.uint32(1), words)
    return jax.random.fold_in(jax.random.PRNGKey(word), agent)


def _student(key: Array, shape: tuple[int, ...], width: int) -> tuple[Array, Array]:
    """Draws from a multivariate t, (*shape, width), and their log densities, (*shape)."""
    normal, chi = jax.random.split(key)
    z = jax.random.normal(normal, (*shape, width))
    scale = jax.random.chisquare(chi, _FREEDOM, shape=shape) / _FREEDOM
    t = z / jnp.sqrt(scale)[..., None]
    half = (_FREEDOM + width) / 2.0
    norm = jax.scipy.special.gammaln(half) - jax.scipy.special.gammaln(_FREEDOM / 2.0)
    norm = norm - width / 2.0 * jnp.log(_FREEDOM * jnp.pi)
    return t, norm - half * jnp.log1p(jnp.square(t).sum(axis=-1) / _FREEDOM)
