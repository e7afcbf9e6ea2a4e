"""Latents that belong to a site or to a group of its rows: integrated out there, and drawn there at the end."""

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

# Nodes of the quadrature for each latent of a group, by how many latents it has, from so many rows on in the smallest
# group: what its latents' law is off from a normal one falls with the rows, and a check looks at what is left.
_NODES = {1: {0: 15, 20: 9, 200: 7}, 2: {0: 9, 20: 7, 200: 5}}
# Draws of importance sampling where there are more latents, and those of which one is taken where latents are drawn.
_DRAWS, _CANDIDATES = 100, 32
# The largest number of nodes for each latent that a user may ask for.
MOST_NODES = 100
# Nodes more for each latent, in sums that tell what the quadrature is off.
_FINER = 6
# Where, in standard deviations, these sums look for what lies further out than all nodes.
_FAR = np.geomspace(8.0, 300.0, 16)
# Degrees of freedom of the proposals for latents.
_FREEDOM = 5.0
# Newton steps at most, and how near to a mode they end, in standard deviations: nodes need not be centred on it.
_MOST_STEPS, _LAST_STEP = 50, 0.05
# Products for a sum over groups, above which rows are added one after another.
_MOST_PRODUCTS = 1_000_000
# Curvature where each latent's own is one, below which a direction is taken to have that much.
_LEAST_CURVATURE = 1e-6


@dataclass(frozen=True)
class Local:
    """Latents of which every site, or every group of rows at a site, has its own: random effects.

    They never leave the site. It integrates them out for every value of the parameters, by adaptive Gauss-Hermite
    quadrature where a group has one or two of them (Liu & Pierce 1994) and by importance sampling otherwise, which is
    unbiased and leaves the whole exact (Tran et al. 2013).

    Parameters
    ----------
    log_prior
        `log_prior(params, latents, row)`: the log density of one group's latents given the parameters, a scalar.
        `latents` is like `init`; `row` is the group's first row, for what is the same in all of them.
    init
        The latents of one group to start from: any pytree of floats.
    group
        `group(rows)`: the group of each row, whole numbers from 0 to the number of this agent's groups less one, shape
        (rows,). None: all rows of an agent are one group.
    constraints
        As `Posterior` has them.

    With it, `log_likelihood(params, latents, rows)` is given for each row the latents of its group: leaves as those of
    `init` with a leading axis of rows.
    """

    log_prior: Callable[[PyTree, PyTree, PyTree], Array]
    init: PyTree
    group: Callable[[PyTree], Any] | None = None
    constraints: Mapping[str, Any] = field(default_factory=dict)


class Groups(NamedTuple):
    """The groups of an agent's rows: each row's, (row,), and each group's first row, (group,).

    Their number, the rows of the smallest, and whose they are.
    """

    of_row: Any
    first: Any
    count: Any
    fewest: Any
    agent: Any


class Evaluated(NamedTuple):
    """What latents are integrated with: `terms(z)` is each group's log density (group,) at latents (group, latent)."""

    terms: Callable[[Array], Array]
    mode: Float[Array, "group latent"]
    root: Float[Array, "group latent latent"]
    # of a unit of standardised positions
    log_volume: Float[Array, " group"]

    def at(self, x: Float[Array, "*node group latent"]) -> Float[Array, "*node group latent"]:
        """Latents at standardised positions."""
        moved = jnp.einsum("gij,...gj->...gi", self.root, x)
        return jnp.broadcast_to(self.mode, moved.shape) + moved


@pytree
class Latents:
    """The latents of a group, as a potential knows them.

    Parameters
    ----------
    log_prior
        Of `Local`.
    parameters
        How positions (latent,) stand for one group's latents.
    start
        The position that stands for `init`.
    nodes
        Of the quadrature, for each latent; 0: importance sampling. As many as ever, where rows are not known.
    """

    log_prior: Partial
    parameters: Parameters
    start: Float[np.ndarray, " latent"]
    nodes: int = static()

    @classmethod
    def of(cls, local: Local) -> Latents:
        """Those that a user declares."""
        check_variables([name for name, _ in variables(local.init)])
        parameters, start = unconstrained(local.init, local.constraints, "init of local")
        prior = local.log_prior if isinstance(local.log_prior, Partial) else Partial(local.log_prior)
        return cls(prior, parameters, start, _nodes(start.size, 0))

    def for_rows(self, fewest: int) -> Latents:
        """The same with the nodes that are enough where no group has fewer rows."""
        return self.with_nodes(_nodes(self.start.size, fewest))

    def with_nodes(self, nodes: int) -> Latents:
        """The same with another number of nodes for each latent."""
        return altered(self, nodes=nodes)

    def log_marginal(self, params: PyTree, log_likelihood: Partial, shard: Any, x: Float[Array, " dim"]) -> Array:
        """The log likelihood of an agent's rows, all latents integrated out.

        `x` is the position that `params` are at, from which random numbers come where there are some: each of them has
        its own, and the same at every look.
        """
        return self._integral(self._expanded(params, log_likelihood, shard), shard, x)

    def quadrature_error(
        self, params: PyTree, log_likelihood: Partial, shard: Any, x: Float[Array, " dim"]
    ) -> Float[Array, ""]:
        """How far `log_marginal` is off, by a finer quadrature that looks far out, too."""
        found = self._expanded(params, log_likelihood, shard)
        return jnp.abs(self._integral(found, shard, x) - self._integral(found, shard, x, finer=True))

    def _integral(self, found: Evaluated, shard: Any, x: Float[Array, " dim"], *, finer: bool = False) -> Array:
        """The log of the integrals over latents, by nodes about their modes; `finer`: more nodes, some far out."""
        # an integral does not depend on its nodes, so that derivatives leave these where they are
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
        """Latents of each group given parameters, in the user's scale, leaves (group, ...): one of some candidates."""
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


# traced once, and not for every look, derivative and program: users' models take long to
@jax.jit
def _terms(
    log_prior: Partial,
    parameters: Parameters,
    log_likelihood: Partial,
    shard: Any,
    params: PyTree,
    z: Float[Array, "group latent"],
) -> Float[Array, " group"]:
    """The log density of each group's rows and latents at positions of its latents."""
    own, volume = jax.vmap(parameters.with_volume)(z)
    row = jax.tree.map(lambda leaf: leaf[shard.groups.first], shard.rows)
    prior = jax.vmap(log_prior, (None, 0, 0))(params, own, row) + volume
    of_row = shard.groups.of_row
    if len(prior) == 1:
        # broadcast: the derivative of a lookup is added up row by row
        of_rows = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (*of_row.shape, *leaf.shape[1:])), own)
    else:
        of_rows = jax.tree.map(lambda leaf: leaf[of_row], own)
    per_row = log_likelihood(params, of_rows, shard.rows)
    per_row = jnp.where(jnp.arange(per_row.shape[0]) < shard.size, per_row, 0.0)
    if len(prior) == 1:
        return prior + per_row.sum()
    # a group that is there for padding is a standard normal
    padded = -0.5 * jnp.square(z).sum(axis=1)
    real = jnp.arange(len(prior)) < shard.groups.count
    return jnp.where(real, _summed(per_row, of_row, len(prior)) + prior, padded)


def _summed(per_row: Float[Array, " row"], of_row: Any, groups: int) -> Float[Array, " group"]:
    """The sum over each group's rows."""
    if groups * per_row.size > _MOST_PRODUCTS:
        return jnp.zeros(groups, per_row.dtype).at[of_row].add(per_row)
    # of many nodes and positions at once a product is many times as fast as additions one after another
    return (of_row[None] == jnp.arange(groups)[:, None]).astype(per_row.dtype) @ per_row


def groups_of(local: Local, rows: PyTree, agent: int) -> np.ndarray:
    """The group of each of an agent's rows, checked; shape (row,)."""
    count = len(jax.tree.leaves(rows)[0])
    if local.group is None:
        return np.zeros(count, np.int32)
    found = np.asarray(local.group(rows))
    if found.shape != (count,):
        raise ValueError(f"group must give one number a row, shape ({count},), found shape {found.shape}")
    whole = found.astype(np.int64)
    if (whole != found).any() or whole.min() < 0:
        raise ValueError(f"groups of agent {agent} must be whole numbers from 0 on")
    missing = np.setdiff1d(np.arange(whole.max() + 1), whole)
    if missing.size:
        raise ValueError(
            f"groups of agent {agent} must be numbered without a gap: none of its rows is of group {missing[0]}, and "
            f"some are of group {whole.max()}"
        )
    return whole.astype(np.int32)


def check_local(local: Local, params: PyTree, rows: PyTree) -> None:
    """Raise `ValueError` unless the log prior of latents is one number."""
    row = jax.tree.map(lambda leaf: leaf[0], rows)
    shape = getattr(returned("log_prior of local", local.log_prior, params, local.init, row), "shape", None)
    if shape != ():
        raise ValueError(f"log_prior of local must return one number, that of one group; found shape {shape}")


def with_latents(local: Local, log_likelihood: Partial) -> Partial:
    """A log likelihood of parameters and rows, for latents as they start."""
    return Partial(_at_start, log_likelihood, local.init)


def _at_start(log_likelihood: Partial, init: PyTree, params: PyTree, rows: PyTree) -> Array:
    return log_likelihood(params, at_start(init, len(jax.tree.leaves(rows)[0])), rows)


def at_start(init: PyTree, rows: int) -> PyTree:
    """The latents of a number of rows as they start."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(jnp.asarray(leaf), (rows, *np.shape(leaf))), init)


def padded_groups(groups: Sequence[np.ndarray], agents: Sequence[int], rows: int, count: int) -> Groups:
    """Groups of several agents, stacked on a leading axis, filled up to so many rows and groups."""
    of_row = np.stack([own[np.minimum(np.arange(rows), len(own) - 1)] for own in groups])
    firsts = [np.unique(own, return_index=True)[1] for own in groups]
    first = np.stack([own[np.minimum(np.arange(count), len(own) - 1)] for own in firsts]).astype(np.int32)
    counts = np.array([len(own) for own in firsts], np.int32)
    fewest = np.array([np.bincount(own).min() for own in groups], np.int32)
    return Groups(of_row, first, counts, fewest, np.asarray(agents, np.int32))


class _Climb(NamedTuple):
    """Newton's method under way: where each group is, its value and slope there, and what is tried next.

    The slope is that in coordinates whose `root` makes the curvature one.
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
        """How far the mode is, in standard deviations."""
        return jnp.sqrt(jnp.sum(self.slope**2, axis=1))


# traced once, as `_terms` is
@jax.jit
def _modes(
    known: tuple[Any, ...], params: PyTree, start: Float[Array, "group latent"]
) -> tuple[Float[Array, "group latent"], Float[Array, "group latent latent"], Float[Array, " group"]]:
    """Modes by Newton's method, all groups at once, the inverse roots of the curvature there, and their log volumes."""

    def summed(z: Array) -> tuple[Array, Array]:
        found = _terms(*known, params, z)
        return found.sum(), found

    def step(now: _Climb) -> _Climb:
        gradient, along, value = jax.linearize(jax.grad(summed, has_aux=True), now.trial, has_aux=True)
        # groups do not depend on one another: a column of every group's Hessian at once
        axes = jnp.broadcast_to(jnp.eye(start.shape[1], dtype=start.dtype)[:, None], (start.shape[1], *start.shape))
        root, log_volume = _inverse_root(-jnp.moveaxis(jax.vmap(along)(axes), 0, -1))
        found = (now.trial, value, jnp.einsum("gji,gj->gi", root, gradient), root, log_volume)
        # where a step does not go up the mode lies before it
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
    """R with R' |H| R = 1 and log |det R|, for each Hessian H; |H| has the sizes of the eigenvalues, diagonal one."""
    width = matrices.shape[-1]
    own = jnp.abs(jnp.diagonal(matrices, axis1=1, axis2=2))
    # latents may be in units far apart
    scale = jnp.maximum(own, jnp.finfo(matrices.dtype).tiny ** 0.5) ** -0.5
    scaled = matrices * scale[:, :, None] * scale[:, None, :]
    if width > 2:
        values, vectors = jnp.linalg.eigh((scaled + jnp.swapaxes(scaled, 1, 2)) / 2.0)
    elif width == 1:
        values, vectors = scaled[..., 0], jnp.ones_like(scaled)
    else:
        # a call of a library for each matrix takes longer than these
        a, b, c = scaled[:, 0, 0], scaled[:, 0, 1], scaled[:, 1, 1]
        angle = jnp.arctan2(2.0 * b, a - c) / 2.0
        cos, sin, half = jnp.cos(angle), jnp.sin(angle), jnp.hypot((a - c) / 2.0, b)
        values = jnp.stack([(a + c) / 2.0 + half, (a + c) / 2.0 - half], axis=-1)
        vectors = jnp.stack([jnp.stack([cos, -sin], axis=-1), jnp.stack([sin, cos], axis=-1)], axis=-2)
    sizes = jnp.maximum(jnp.abs(values), _LEAST_CURVATURE)
    log_volume = jnp.log(scale).sum(axis=1) - jnp.log(sizes).sum(axis=1) / 2.0
    return scale[:, :, None] * vectors * (sizes**-0.5)[:, None, :], log_volume


def _nodes(width: int, fewest: int) -> int:
    """Nodes for each of a group's latents, 0 where there are too many latents for them."""
    return next((n for rows, n in reversed(_NODES.get(width, {}).items()) if fewest >= rows), 0)


def _quadrature(count: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes (node, latent) and log weights (node,) of integrals over standardised latents; none without weight."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(count)
    log_weight = np.log(weights) + nodes**2 / 2.0
    grid = np.stack(np.meshgrid(*[nodes] * width, indexing="ij"), axis=-1).reshape(-1, width)
    total = np.stack(np.meshgrid(*[log_weight] * width, indexing="ij"), axis=-1).reshape(-1, width).sum(axis=1)
    kept = total - np.square(grid).sum(axis=1) / 2.0 > np.log(1e-14)
    return grid[kept], total[kept]


def _with_far_nodes(nodes: np.ndarray, log_weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same with nodes far out along each axis, which see what lies beyond the others, to its order of size."""
    width = nodes.shape[1]
    distance = np.concatenate([_FAR, -_FAR])
    axes = np.concatenate([distance[:, None] * row for row in np.eye(width)])
    # across an axis as wide as near the mode
    spacing = np.log(np.abs(distance) * np.log(_FAR[1] / _FAR[0])) + (width - 1) / 2.0 * np.log(2.0 * np.pi)
    return np.concatenate([nodes, axes]), np.concatenate([log_weight, np.tile(spacing, width)])


def _key(x: Float[Array, " dim"], agent: Any) -> UInt32[Array, " word"]:
    """Random numbers of a position: others at every other one, and for every agent."""
    words = jax.lax.bitcast_convert_type(jax.lax.stop_gradient(x), jnp.uint32).ravel()

    def mixed(found: Array, word: Array) -> tuple[Array, None]:
        found = (found ^ word) * jnp.uint32(0x9E3779B1)
        return found ^ (found >> 15), None

    word, _ = jax.lax.scan(mixed, jnp.uint32(1), words)
    return jax.random.fold_in(jax.random.PRNGKey(word), agent)


def _student(key: Array, shape: tuple[int, ...], width: int) -> tuple[Array, Array]:
    """Draws of a multivariate t, (*shape, width), and their log densities (*shape)."""
    normal, chi = jax.random.split(key)
    z = jax.random.normal(normal, (*shape, width))
    scale = jax.random.chisquare(chi, _FREEDOM, shape=shape) / _FREEDOM
    t = z / jnp.sqrt(scale)[..., None]
    half = (_FREEDOM + width) / 2.0
    norm = jax.scipy.special.gammaln(half) - jax.scipy.special.gammaln(_FREEDOM / 2.0)
    norm = norm - width / 2.0 * jnp.log(_FREEDOM * jnp.pi)
    return t, norm - half * jnp.log1p(jnp.square(t).sum(axis=-1) / _FREEDOM)
