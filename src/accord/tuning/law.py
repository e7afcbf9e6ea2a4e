"""The exact law of a method on a Gaussian posterior: mean and covariance of all agents at every round.

On quadratic potentials one round of a network is affine in (state, noise). Its matrices are the Jacobians of the
functions that the engines run, so a method needs no second implementation for its law. All options that keep the round
affine are covered: mixing, noise, temperature, calibration, schedules, several exchanges a round. With a batch_size the
law uses the full gradient. The mean is still exact, because minibatch gradients are unbiased. The covariance leaves out
minibatch noise.

On unreliable links (`Network.links`) losses and delays are a function of the links' seed. Each round then has its own
affine map, because losses do not depend on the draws. The stationary law is that of draws pooled over many rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array, Float

from ..base.checks import whole_number
from ..base.compiler import compiled
from ..base.gaussian import Gaussian
from ..base.memory import require_matrices
from ..engines.build import build_problem
from ..engines.consensus_mode import bind
from ..engines.draws import zero_noise
from ..engines.round import Problem, everywhere, initial_state, network_round, own_state, positions
from ..network import Network
from ..posterior import Posterior
from ..posterior.starts import starting_law
from ..samplers import validation
from ..samplers.protocol import Bound, HasLaw, Sampler

# Dense covariances in memory during a round: before it, after it, and of its noise.
_MATRICES = 3
# Columns of a Jacobian computed at once: bounds memory, not the result.
_COLUMNS = 256
# Share of non-zeros below which a sparse-dense product beats a dense one.
_SPARSE = 0.1
# A late round, to check that a method with constant steps does the same in all rounds.
_LATE = 1_000_000
# Rounds of a block on unreliable links.
_BLOCK = 100
# Smallest number of later blocks on unreliable links.
_BLOCKS = 4
# Largest number of rounds on unreliable links.
_MOST_ROUNDS = 4000
# Difference of two halves of the rounds that counts as converged, in standard deviations.
_ALIKE = 0.01
# Difference of two halves of the rounds that raises an error, in standard deviations.
_FAR_APART = 0.2
# Growth of a covariance that counts as unstable.
_UNSTABLE = 1e6
# 2^40 rounds: an eigenvalue whose powers have not vanished by then equals 1 up to rounding.
_DOUBLINGS = 40

Matrix = Float[np.ndarray, "state state"]
Columns = Float[Array, "number chain"]


class Affine(NamedTuple):
    """A round z -> A z + B w + c with standard normal w, and Q = B B'."""

    A: Any
    Q: Matrix
    c: np.ndarray


@dataclass(frozen=True, eq=False)
class Moments:
    """The joint law of all agents' positions at one round.

    Parameters
    ----------
    joint
        Gaussian on R^(agent * dim), agents in order.
    num_agents
        N.
    """

    joint: Gaussian
    num_agents: int

    def agent(self, i: int) -> Gaussian:
        """The law of one agent's position."""
        i = whole_number("agent", i, 0, self.num_agents - 1)
        dim = self.joint.dim // self.num_agents
        span = slice(i * dim, (i + 1) * dim)
        return Gaussian(self.joint.mean[span], self.joint.cov[span, span])

    @property
    def average(self) -> Gaussian:
        """The law of the plain average of all agents' positions."""
        n, dim = self.num_agents, self.joint.dim // self.num_agents
        cov = self.joint.cov.reshape(n, dim, n, dim).mean(axis=(0, 2))
        return Gaussian(self.joint.mean.reshape(n, dim).mean(axis=0), cov)


class Law:
    """The exact mean and covariance of a method's draws; made by `accord.law`."""

    def __init__(self, post: Posterior, network: Network, bound: Bound, init: Any) -> None:
        self.num_agents, self.dim = post.num_agents, post.dim
        self._post, self._network, self._bound, self._init = post, network, bound, init
        sampler = bound.sampler
        assert isinstance(sampler, HasLaw)
        self._name, self._constant = type(sampler).__name__, sampler.is_constant() and network.unreliable is None
        self._unreliable = None if network.unreliable is None or not sampler.is_constant() else network.unreliable
        self._maps: dict[int, Affine] = {}
        means, factors = starting_law(init, post)
        with jax.enable_x64(True):
            self._problem = build_problem(post, network, bound, 0)
            numbers = sum(leaf.size for leaf in jax.tree.leaves(_state_shapes(self._problem)))
            what = f"covariances of the states of {post.num_agents:,} agents of {post.dim:,} parameters"
            require_matrices(what, numbers, _MATRICES, "take fewer agents or parameters, or sample")
            root, z = _linear(_start, self._problem, means.reshape(-1, 1))
            size, reported = len(z), self.num_agents * self.dim
            self._given = _given(self._problem)
            seen, value = _linear(_seen, self._problem, np.zeros((size, 1)))
        self._select, self._origin = seen[:reported], value[:reported, 0]
        self._conserved = seen[reported:] if len(value) > reported and network.unreliable is None else None
        P = np.zeros((size, size))
        if factors is not None:
            # sparse arrays: SciPy 1.20 will return them for dense blocks too
            root = root @ scipy.sparse.block_diag([scipy.sparse.coo_array(factor) for factor in factors], format="csr")
            P = (root @ root.T).toarray()
        self._known = {0: (z[:, 0], P)}

    def _affine(self, k: int, before: np.ndarray) -> Affine:
        """The map of round k, given the mean state before it, which sets the mass on unreliable links.

        With constant steps all rounds from 1 on share one map. Round 0 may differ.
        """
        key = min(k, 1) if self._constant else k
        if key not in self._maps:
            if not self._constant:
                self._maps.clear()
            self._maps[key] = self._differentiate(key, before)
        return self._maps[key]

    def _differentiate(self, k: int, before: np.ndarray) -> Affine:
        size = self._known[0][0].size
        with jax.enable_x64(True):
            numbers = size + sum(leaf.size for leaf in jax.tree.leaves(zero_noise(self._problem, chains=1)))
            point, noise = np.split(np.random.default_rng(0).standard_normal((2, numbers)), [size], axis=1)
            # zero, a random point and the start: a round may be affine in part of the space only
            states = np.stack([np.zeros(size), point[0], self._known[0][0]], axis=1)
            # the links' mass is the same in all chains, and the round is not affine in it
            states[self._given] = before[self._given, None]
            points = np.concatenate([states, np.stack([np.zeros(numbers - size), *noise], axis=1)])
            matrix, values = _linear(_round, self._problem, points, k)
            later = _values(_round, self._problem, points, _LATE) if self._constant and k > 0 else values
        c = values[:, 0] - matrix @ points[:, 0]
        expected = matrix @ points + c[:, None]
        if not _close(values, expected):
            raise TypeError(f"a round of {self._name} is not affine in state and noise: it has no exact law")
        if not _close(later, values):
            raise TypeError(
                f"rounds {k} and {_LATE} of {self._name} differ although is_constant() returns True: it has no exact "
                "law. Return False from is_constant()"
            )
        A, B = matrix[:, :size], matrix[:, size:]
        return Affine(A if A.nnz < _SPARSE * size**2 else A.toarray(), (B @ B.T).toarray(), c)

    def at(self, k: int) -> Moments:
        """The law after k rounds, k >= 0. Draw t of a run is the state after k = `burn_in + (t + 1) * thin` rounds."""
        k = whole_number("k", k, 0)
        nearest = max(r for r in self._known if r <= k)
        z, P = self._known[nearest]
        for r in range(nearest, k):
            A, Q, c = self._affine(r, z)
            with np.errstate(over="ignore", invalid="ignore"):
                z, P = self._conserving(A @ z + c, _sandwich(A, P) + Q)
            self._known = {0: self._known[0], r + 1: (z, P)}
            if not np.isfinite(P).all():
                raise ArithmeticError(f"the covariance overflows at round {r + 1}: the recursion is unstable")
        # the start and the latest round stay cached, so that increasing k computes each round once
        return self._moments(z, P)

    def _conserving(self, z: np.ndarray, P: Matrix) -> tuple[np.ndarray, Matrix]:
        """Mean and covariance with the conserved sums restored, in which rounding errors would never decay."""
        if self._conservation is None:
            return z, P
        C, inverse, value = self._conservation
        P = P - inverse @ (C @ P)
        return z - inverse @ (C @ z - value), P - (P @ C.T) @ inverse.T

    @cached_property
    def _conservation(self) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """C, its pseudo-inverse and C z if all starts share the same conserved sums, else None."""
        z, P = self._known[0]
        if self._conserved is None:
            return None
        C = self._conserved.toarray()
        if np.linalg.norm(C @ P) > 1e-12 * np.linalg.norm(C) * np.linalg.norm(P):
            return None
        return C, C.T @ np.linalg.inv(C @ C.T), C @ z

    def _moments(self, z: np.ndarray, P: Matrix) -> Moments:
        S = self._select
        cov = S @ (S @ P).T
        return Moments(Gaussian(S @ z + self._origin, (cov + cov.T) / 2.0), self.num_agents)

    @cached_property
    def _contraction(self) -> tuple[Matrix, Matrix, np.ndarray]:
        """The stationary round without its conserved sums: A - C^+ C, Q, c + C^+ C z_0."""
        if self._unreliable is not None:
            raise ValueError(
                f"with {self._unreliable} every round has a different map, so there is no spectral radius. Use at(k) "
                "or stationary()"
            )
        if not self._constant:
            raise ValueError("a method with a step schedule has no stationary law. Use at(k)")
        A, Q, c = self._affine(1, self._known[0][0])
        A = A.toarray() if scipy.sparse.issparse(A) else A.copy()
        if self._conserved is not None:
            C = self._conserved.toarray()
            # Rows of C are left eigenvectors with eigenvalue 1. All reachable states share the value of C z, and on
            # them A z = (A - C^+ C) z + C^+ (C z_0): the same round without its eigenvalues 1.
            inverse = C.T @ np.linalg.inv(C @ C.T)
            A -= inverse @ C
            c = c + inverse @ (C @ self._known[0][0])
        return A, Q, c

    @cached_property
    def spectral_radius(self) -> float:
        """The largest modulus of a round's eigenvalues without conserved sums. Below 1 a stationary law exists."""
        # Gelfand: |A^m|^(1/m) for m = 2, 4, 8, ..., each power scaled to norm one. Squaring a large matrix is several
        # times cheaper than computing its eigenvalues.
        power, logarithm, radius = self._contraction[0], 0.0, 0.0
        for doubling in range(48):
            norm = np.linalg.norm(power)
            if norm == 0:
                return 0.0
            logarithm += np.log(norm) / 2.0**doubling
            if abs(np.exp(logarithm) - radius) <= 1e-13 * radius:
                break
            radius = float(np.exp(logarithm))
            power = power / norm
            power = power @ power
        return float(np.exp(logarithm))

    def stationary(self) -> Moments:
        """The law after infinitely many rounds.

        On unreliable links: the mean and covariance of draws pooled over the later half of the rounds, started from
        the law on reliable links, until two halves agree to 1% of a standard deviation, or after 4,000 rounds.

        Raises
        ------
        ValueError
            The recursion is unstable (the message has the spectral radius), the method has a step schedule, or the law
            on unreliable links does not converge.
        """
        return self._moments(*self._settled) if self._unreliable is None else self._over_rounds

    @cached_property
    def _over_rounds(self) -> Moments:
        """The pooled law of the later half of the rounds, once its own halves agree or after `_MOST_ROUNDS`."""
        blocks: list[Gaussian] = []
        z, P = self._settled_without_loss()
        for first in range(1, _MOST_ROUNDS, _BLOCK):
            laws = []
            for r in range(first, first + _BLOCK):
                A, Q, c = self._affine(r, z)
                z, P = A @ z + c, _sandwich(A, P) + Q
                laws.append(self._moments(z, P).joint)
            blocks.append(_together(laws))
            grown = np.abs(blocks[-1].cov).max() / max(np.abs(blocks[0].cov).max(), np.finfo(float).tiny)
            if not grown < _UNSTABLE:
                raise ValueError(
                    f"{self._name} is unstable on this posterior and network with {self._unreliable}: its covariance "
                    "grows"
                )
            later = blocks[len(blocks) // 2 :]
            if len(later) >= _BLOCKS and _apart(later) <= _ALIKE:
                break
        if _apart(later) > _FAR_APART:
            raise ValueError(
                f"{self._name} has not settled in {_MOST_ROUNDS} rounds with {self._unreliable}: two halves of the "
                f"later rounds differ by {_apart(later):.2g} standard deviations. It is unstable or mixes very slowly"
            )
        return Moments(_together(later), self.num_agents)

    def _settled_without_loss(self) -> tuple[np.ndarray, Matrix]:
        """The stationary law on reliable links with empty links, or the start if there is none."""
        z, P = self._known[0]
        reliable = replace(self._network, unreliable=None)
        try:
            own, cov = Law(self._post, reliable, self._bound, self._init)._settled
        except (ValueError, ArithmeticError):
            return z, P
        # agents' states come first, then the links' state
        z, P = z.copy(), np.zeros_like(P)
        z[: len(own)], P[: len(own), : len(own)] = own, cov
        return z, P

    @cached_property
    def _settled(self) -> tuple[np.ndarray, Matrix]:
        """Stationary mean and covariance of all states, for constant rounds."""
        A, Q, c = self._contraction
        # Doubling: after j steps P is the covariance of 2^j rounds started from a point.
        P, power = Q, A
        with np.errstate(over="ignore", invalid="ignore"):
            for _ in range(_DOUBLINGS):
                added = _sandwich(power, P)
                P = P + added
                if not np.isfinite(P).all():
                    break
                # the contraction is checked too, because without noise P is zero from the start
                if np.linalg.norm(power) < 1e-3 and np.abs(added).max() <= 1e-15 * np.abs(P).max():
                    return np.linalg.solve(np.eye(len(c)) - A, c), (P + P.T) / 2.0
                power = power @ power
        raise ValueError(
            f"{self._name} is unstable on this posterior and network: its spectral radius is "
            f"{self.spectral_radius:.6g}, not below 1"
        )


def law(post: Posterior, network: Network, sampler: Sampler, init: Any = None) -> Law:
    """The exact law of a method on a Gaussian posterior.

    Parameters
    ----------
    post
        A posterior with quadratic potentials; `post.laplace()` approximates others.
    network, sampler
        As in `accord.sample`. With a batch_size the law uses the full gradient.
    init
        The agents' start: None (the posterior's init), an array of shape (dim,) or (agent, dim), an
        `accord.Gaussian` from which every agent draws independently, or one `Gaussian` per agent.

    Returns
    -------
    Law
        `law.at(k)` and `law.stationary()` with the Gaussians `.agent(i)` and `.average`, and `law.spectral_radius`.
        It uses dense matrices over all agents' states, which limits agent * dim to about 2,000.

    Raises
    ------
    TypeError
        The posterior is not quadratic, or the method uses random decisions such as accept/reject steps.
    ValueError
        Posterior, network and method do not fit.

    Examples
    --------
    >>> import accord
    >>> post = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0, 2.0, 3.0])
    >>> law = accord.law(post, accord.Network.ring(3), accord.samplers.DADMMS(rho=2.0))
    >>> law.stationary().average.dim
    1
    """
    return Law(post, network, affine_bound(post, network, sampler), init)


def affine_bound(post: Posterior, network: Network, sampler: Sampler) -> Bound:
    """The method with full gradients, bound to the problem. Raises the errors of `law`."""
    if not post.quadratic:
        raise TypeError("an exact law needs a Gaussian posterior. Use accord.law(post.laplace(), ...) for others")
    validation.check_compatible(post, network, sampler)
    validation.check_complete(sampler)
    if not isinstance(sampler, HasLaw) or sampler.needs(post.dim).key:
        raise TypeError(
            f"{type(sampler).__name__} with these options uses randomness beyond normal noise, so its law is not "
            "Gaussian and has no closed form"
        )
    validation.check_rows(post, sampler)
    return bind(post, network, sampler.linear())


# --- differentiated functions of columns of numbers, one column per independent chain ---


def _start(problem: Problem, x: Columns, k: Array) -> Columns:
    """Positions -> states before round 0."""
    chains = x.shape[1]
    place = x.reshape(problem.index.size, problem.dim, chains)
    return flat(initial_state(problem, place, zero_noise(problem, chains)))


def _round(problem: Problem, x: Columns, k: Array) -> Columns:
    """States and, below them, the noise of round k -> states after it."""
    like, still = _state_shapes(problem), zero_noise(problem, chains=1)
    size = sum(leaf.size for leaf in jax.tree.leaves(like))
    return flat(network_round(problem, unflat(x[:size], like), unflat(x[size:], still), k))


def _seen(problem: Problem, x: Columns, k: Array) -> Columns:
    """States -> all agents' positions and, below them, the method's conserved sums."""
    state = unflat(x, _state_shapes(problem))
    assert isinstance(problem.sampler, HasLaw)
    found = everywhere(problem.sampler.conserved, problem.agents(0), (own_state(problem, state),))
    return flat((positions(problem, state), () if found is None else found.sum(axis=0)))


def _given(problem: Problem) -> np.ndarray:
    """Indices of a state's numbers that all chains share: the mass on unreliable links."""
    shapes = _state_shapes(problem)
    marked = jax.tree.map(lambda leaf: np.zeros(leaf.shape, bool), shapes)
    if problem.links is not None:
        marked = marked._replace(held=problem.links.marked(marked.held))
    return np.flatnonzero(np.concatenate([leaf.reshape(-1) for leaf in jax.tree.leaves(marked)]))


def _state_shapes(problem: Problem) -> Any:
    """The structure and shapes of the states of one chain."""
    place = jnp.zeros((problem.index.size, problem.dim, 1), problem.degree.dtype)
    return jax.eval_shape(initial_state, problem, place, zero_noise(problem, chains=1))


@compiled(static_argnames=("function", "count"))
def _expansion(
    function: Callable[[Problem, Columns, Array], Columns],
    problem: Problem,
    points: Columns,
    k: Array,
    first: Array,
    count: int,
) -> tuple[Columns, Columns]:
    """`count` columns from `first` on of the Jacobian at the first point, and the values at all points.

    The problem is an argument, so that methods, data and networks that differ only in numbers share a program.
    """
    size = len(points)
    x = jnp.concatenate([jnp.broadcast_to(points[:, :1], (size, count)), points], axis=1)
    unit = jnp.arange(size)[:, None] == jnp.arange(x.shape[1])[None] + first
    values, pushed = jax.jvp(lambda x: function(problem, x, k), (x,), (unit.astype(x.dtype),))
    return pushed[:, :count], values[:, count:]


def _linear(
    function: Callable[[Problem, Columns, Array], Columns], problem: Problem, points: np.ndarray, k: int = 0
) -> tuple[scipy.sparse.csr_array, np.ndarray]:
    """The Jacobian at the first point, as a sparse matrix, and the values at all points, one column each."""
    size = len(points)
    count, blocks, values = min(_COLUMNS, size), [], np.zeros(0)
    for first in range(0, size, count):
        block, values = _expansion(function, problem, points, np.int32(k), np.int32(first), count)
        blocks.append(scipy.sparse.csr_array(np.asarray(block)))
    return scipy.sparse.csr_array(scipy.sparse.hstack(blocks, format="csr")[:, :size]), np.asarray(values)


def _values(
    function: Callable[[Problem, Columns, Array], Columns], problem: Problem, points: np.ndarray, k: int
) -> np.ndarray:
    """The values at the points, by the compiled program of `_linear`."""
    count = min(_COLUMNS, len(points))
    return np.asarray(_expansion(function, problem, points, np.int32(k), np.int32(0), count)[1])


def _together(laws: Sequence[Gaussian]) -> Gaussian:
    """The mean and covariance of an equal mixture of several laws."""
    means = np.stack([law.mean for law in laws])
    apart = means - means.mean(axis=0)
    cov = np.mean([law.cov for law in laws], axis=0) + apart.T @ apart / len(laws)
    return Gaussian(means.mean(axis=0), cov)


def _apart(blocks: Sequence[Gaussian]) -> float:
    """The largest difference of two halves in mean or standard deviation, in standard deviations."""
    half = len(blocks) // 2
    one, other = _together(blocks[:half]), _together(blocks[half:])
    # without noise the scale is a small share of the mean
    scale = np.maximum(one.sd, 1e-9 * (1.0 + np.abs(one.mean)))
    return float(np.abs(np.concatenate([one.mean - other.mean, other.sd - one.sd]) / np.tile(scale, 2)).max())


def _close(values: np.ndarray, expected: np.ndarray) -> bool:
    return np.allclose(values, expected, rtol=1e-8, atol=1e-8 * (1.0 + np.abs(expected).max()))


def _sandwich(A: Any, P: Matrix) -> Matrix:
    """A P A'."""
    half = A @ P
    return (A @ half.T).T


def flat(state: Any) -> Float[Array, "number chain"]:
    """The numbers of a pytree of arrays (..., chain), leaves concatenated along the first axis."""
    return jnp.concatenate([leaf.reshape(-1, leaf.shape[-1]) for leaf in jax.tree.leaves(state)])


def unflat(rows: Float[Array, "number chain"], like: Any) -> Any:
    """The inverse of `flat`: a pytree with the structure, dtypes and shapes of `like`, with the chains of `rows`."""
    leaves: list[Array]
    treedef: Any
    leaves, treedef = jax.tree.flatten(like)
    found, start = [], 0
    for leaf in leaves:
        stop = start + math.prod(leaf.shape[:-1])
        found.append(rows[start:stop].reshape(*leaf.shape[:-1], rows.shape[1]).astype(leaf.dtype))
        start = stop
    return treedef.unflatten(found)
