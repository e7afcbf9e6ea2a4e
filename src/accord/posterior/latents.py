"""Latents that belong to a site or to a group of its rows: integrated out there, and drawn there at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jax.tree_util import Partial
from jaxtyping import Array, Float, PyTree, UInt32

from ..base.pytree import pytree, static
from .parameters import Parameters, check_variables, unconstrained, variables

# Nodes of the quadrature for each latent of a group, by how many latents it has; draws of importance sampling where
# there are more, and those of which one is taken where latents are drawn.
_NODES, _DRAWS, _CANDIDATES = {1: 15, 2: 9}, 100, 32
# Nodes more for each latent, in sums that tell what the quadrature is off.
_FINER = 6
# Where, in standard deviations, these sums look for what lies further out than all nodes.
_FAR = np.geomspace(8.0, 300.0, 16)
# Degrees of freedom of the proposals for latents.
_FREEDOM = 5.0
# Newton steps at most, and the length of the last one in standard deviations: any node near the mode will do.
_MOST_STEPS, _LAST_STEP = 50, 0.03
# Curvature below which a latent is taken to have that much.
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
    """The groups of an agent's rows: each row's, (row,), each group's first row, (group,), their number, and whose."""

    of_row: Any
    first: Any
    count: Any
    agent: Any


class Evaluated(NamedTuple):
    """What latents are integrated with: `terms(z)` is each group's log density (group,) at latents (group, latent)."""

    terms: Callable[[Array], Array]
    mode: Float[Array, "group latent"]
    root: Float[Array, "group latent latent"]

    def at(self, x: Float[Array, "*node group latent"]) -> Float[Array, "*node group latent"]:
        """Latents at standardised positions."""
        moved = jnp.einsum("gij,...gj->...gi", self.root, x)
        return jnp.broadcast_to(self.mode, moved.shape) + moved

    @property
    def log_volume(self) -> Float[Array, " group"]:
        """Of a unit of standardised positions."""
        return jnp.linalg.slogdet(self.root)[1]


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
        Of the quadrature, for each latent; 0: importance sampling.
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
        return cls(prior, parameters, start, _NODES.get(start.size, 0))

    def log_marginal(
        self, params: PyTree, log_likelihood: Partial, shard: Any, x: Float[Array, " dim"], finer: bool = False
    ) -> Array:
        """The log likelihood of an agent's rows, all latents integrated out.

        `x` is the position that `params` are at, from which random numbers come where there are some: each of them has
        its own, and the same at every look.
        """
        # an integral does not depend on its nodes, so that derivatives leave these where they are
        found = self._expanded(params, log_likelihood, shard)
        real = jnp.arange(shard.groups.first.shape[0]) < shard.groups.count
        groups, width = found.mode.shape
        if self.nodes:
            nodes, log_weight = _quadrature(self.nodes + (_FINER if finer else 0), width)
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
        real = jnp.arange(shard.groups.first.shape[0]) < shard.groups.count
        row = jax.tree.map(lambda leaf: leaf[shard.groups.first], shard.rows)

        def terms(z: Float[Array, "group latent"], params: PyTree = params) -> Float[Array, " group"]:
            latents, volume = jax.vmap(self.parameters.with_volume)(z)
            prior = jax.vmap(self.log_prior, (None, 0, 0))(params, latents, row) + volume
            per_row = log_likelihood(params, jax.tree.map(lambda leaf: leaf[shard.groups.of_row], latents), shard.rows)
            per_row = jnp.where(jnp.arange(per_row.shape[0]) < shard.size, per_row, 0.0)
            if len(prior) == 1:
                return prior + per_row.sum()
            # a group that is there for padding is a standard normal
            padded = -0.5 * jnp.square(z).sum(axis=1)
            return jnp.where(real, jnp.zeros_like(prior).at[shard.groups.of_row].add(per_row) + prior, padded)

        fixed = jax.lax.stop_gradient(params)
        start = jnp.broadcast_to(jnp.asarray(self.start), (len(real), self.start.size))
        mode, root = _modes(lambda z: terms(z, fixed), start)
        return Evaluated(terms, *jax.lax.stop_gradient((mode, root)))


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
    shape = getattr(jax.eval_shape(local.log_prior, params, local.init, row), "shape", None)
    if shape != ():
        raise ValueError(f"log_prior of local must return one number, that of one group; found shape {shape}")


def with_latents(local: Local, log_likelihood: Partial) -> Partial:
    """A log likelihood of parameters and rows, for latents as they start."""
    return Partial(_at_start, log_likelihood, local.init)


def _at_start(log_likelihood: Partial, init: PyTree, params: PyTree, rows: PyTree) -> Array:
    count = len(jax.tree.leaves(rows)[0])
    latents = jax.tree.map(lambda leaf: jnp.broadcast_to(jnp.asarray(leaf), (count, *np.shape(leaf))), init)
    return log_likelihood(params, latents, rows)


def padded_groups(groups: Sequence[np.ndarray], agents: Sequence[int], rows: int, count: int) -> Groups:
    """Groups of several agents, stacked on a leading axis, filled up to so many rows and groups."""
    of_row = np.stack([own[np.minimum(np.arange(rows), len(own) - 1)] for own in groups])
    firsts = [np.unique(own, return_index=True)[1] for own in groups]
    first = np.stack([own[np.minimum(np.arange(count), len(own) - 1)] for own in firsts]).astype(np.int32)
    counts = np.array([len(own) for own in firsts], np.int32)
    return Groups(of_row, first, counts, np.asarray(agents, np.int32))


def _modes(
    terms: Callable[[Array], Array], start: Float[Array, "group latent"]
) -> tuple[Float[Array, "group latent"], Float[Array, "group latent latent"]]:
    """Modes by Newton's method, all groups at once, and the inverse roots of the curvature there."""
    gradient = jax.grad(lambda z: terms(z).sum())

    def curvature(z: Array) -> tuple[Array, Array]:
        along = [jnp.zeros_like(z).at[:, k].set(1.0) for k in range(z.shape[1])]
        # groups do not depend on one another: a column of every group's Hessian at once
        hessian = jnp.stack([jax.jvp(gradient, (z,), (one,))[1] for one in along], axis=-1)
        values, vectors = jnp.linalg.eigh(-(hessian + jnp.swapaxes(hessian, 1, 2)) / 2.0)
        return jnp.maximum(jnp.abs(values), _LEAST_CURVATURE), vectors

    def step(state: tuple[Array, Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array, Array]:
        z, value, share, _, count = state
        values, vectors = curvature(z)
        slope = jnp.einsum("gji,gj->gi", vectors, gradient(z))
        length = jnp.sqrt(jnp.sum(slope**2 / values, axis=1))
        there = z + share[:, None] * jnp.einsum("gij,gj->gi", vectors, slope / values)
        found = terms(there)
        up = found >= value - 1e-6 * (1.0 + jnp.abs(value))
        z, value = jnp.where(up[:, None], there, z), jnp.where(up, found, value)
        share = jnp.where(up, jnp.minimum(1.0, 4.0 * share), share / 4.0)
        # where a step does not go up the mode may be behind it; one that is there has been taken
        return z, value, share, jnp.where(up, length, jnp.inf), count + 1

    def going(state: tuple[Array, Array, Array, Array, Array]) -> Array:
        return (state[3] > _LAST_STEP).any() & (state[4] < _MOST_STEPS)

    share = jnp.ones(len(start), start.dtype)
    state = (start, terms(start), share, jnp.inf * share, jnp.zeros((), jnp.int32))
    mode = jax.lax.while_loop(going, step, state)[0]
    values, vectors = curvature(mode)
    return mode, vectors * (values**-0.5)[:, None, :]


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
