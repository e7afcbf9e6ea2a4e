"""One posterior in N parts: shards of data that stay with their agents, a log likelihood, and 1/N of the prior each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jax.tree_util import Partial
from jaxtyping import Array, Float, PyTree, UInt32

from .gaussian import Gaussian
from .pytree import pytree, static

# Above this many parameters the mode is found without Hessians.
_NEWTON_DIM = 500


class Quadratic(NamedTuple):
    """f(x) = x' H x / 2 - b' x + constant, of one agent (or of all, stacked over agents)."""

    # Shapes (dim, dim) and (dim,).
    hessian: Any
    linear: Any
    # Eigenvalues (dim,) and eigenvectors (dim, dim) of the Hessian; only where proximal steps need them, else None.
    eigenvalues: Any = None
    eigenvectors: Any = None


class Shard(NamedTuple):
    """What one agent owns: rows padded to the longest shard, their real number, and a quadratic form if any."""

    rows: PyTree
    size: Any
    quadratic: Quadratic | None


@pytree
class Potential:
    """The potential f_i = -(log likelihood of shard i) - (log prior) / N, of a shard and a flat position."""

    log_likelihood: Partial
    log_prior: Partial
    num_agents: int = static()
    splits: bool = static()
    shapes: tuple[tuple[int, ...], ...] = static()
    treedef: Any = static()

    def unravel(self, x: Float[Array, " dim"]) -> PyTree:
        """The parameters, as the user's pytree, at a flat position."""
        leaves, start = [], 0
        for shape in self.shapes:
            stop = start + int(np.prod(shape, dtype=int))
            leaves.append(x[start:stop].reshape(shape))
            start = stop
        return self.treedef.unflatten(leaves)

    def value(self, shard: Shard, x: Float[Array, " dim"], batch: UInt32[Array, " batch"] | None = None) -> Array:
        """f_i(x), or its unbiased estimate from the rows `batch % n_i`, scaled by n_i / len(batch)."""
        params = self.unravel(x)
        prior = self.log_prior(params) / self.num_agents
        if not self.splits:
            return -self.log_likelihood(params, shard.rows) - prior
        if batch is None:
            per_row = self.log_likelihood(params, shard.rows)
            return -jnp.sum(jnp.where(jnp.arange(per_row.shape[0]) < shard.size, per_row, 0.0)) - prior
        chosen = (batch % shard.size.astype(jnp.uint32)).astype(jnp.int32)
        per_row = self.log_likelihood(params, jax.tree.map(lambda leaf: leaf[chosen], shard.rows))
        return -jnp.mean(per_row) * shard.size - prior

    def gradient(self, shard: Shard, x: Float[Array, " dim"], batch: Array | None = None) -> Float[Array, " dim"]:
        """Gradient of `value`; two matrix products where the potential is quadratic and the batch is everything."""
        if batch is None and shard.quadratic is not None:
            return shard.quadratic.hessian @ x - shard.quadratic.linear
        return jax.grad(self.value, argnums=1)(shard, x, batch)

    def hessian(self, shard: Shard, x: Float[Array, " dim"]) -> Float[Array, "dim dim"]:
        """Hessian of f_i."""
        if shard.quadratic is not None:
            return shard.quadratic.hessian
        return jax.hessian(self.value, argnums=1)(shard, x)


class Posterior:
    """The posterior exp(-sum_i f_i), f_i = -(log likelihood of shard i) - (log prior) / N, of N agents.

    Parameters
    ----------
    log_likelihood
        `log_likelihood(params, rows)`: one number a row, shape (rows,), so that padding, minibatches and unequal
        shards work. A scalar is allowed for shards that do not split; then all have one shape.
    log_prior
        `log_prior(params)`: a scalar, the whole prior (each agent takes 1/N of it).
    shards
        One pytree of arrays an agent, N >= 1. The leading axis of every leaf counts rows; lengths may differ
        between agents.
    init
        The parameters to start from: any pytree of floats; its structure is that of `params`.
    names
        A name for each of the `dim` flat parameters; found from `init` when left out.
    quadratic
        Says that every f_i is a quadratic function (Gaussian posterior). It is checked.

    Raises
    ------
    ValueError
        No shard or an empty one, NaN or infinity in data, shards of different columns or dtypes of structure,
        a log likelihood of the wrong shape, a wrong number of names, or `quadratic=True` for what is not.
    """

    def __init__(
        self,
        log_likelihood: Callable[[PyTree, PyTree], Array],
        log_prior: Callable[[PyTree], Array],
        shards: Sequence[PyTree],
        init: PyTree,
        *,
        names: Sequence[str] | None = None,
        quadratic: bool = False,
    ) -> None:
        if len(shards) == 0:
            raise ValueError("a posterior needs at least one shard, found none")
        paths: Any
        treedef: Any
        paths, treedef = jax.tree_util.tree_flatten_with_path(init)
        if not paths:
            raise ValueError("init holds no parameter: it must be a pytree with at least one array")
        leaves = [np.asarray(leaf, dtype=np.float64) for _, leaf in paths]
        self.init = np.concatenate([leaf.ravel() for leaf in leaves])
        if not np.isfinite(self.init).all():
            raise ValueError("init must be finite, found NaN or infinity")
        self.shards = [jax.tree.map(np.asarray, shard) for shard in shards]
        self.variables = tuple(
            (jax.tree_util.keystr(path, simple=True, separator=".") or "x", leaf.shape)
            for (path, _), leaf in zip(paths, leaves, strict=True)
        )
        _check_variables([name for name, _ in self.variables])
        self.names = _names(self.variables) if names is None else tuple(names)
        if len(self.names) != self.dim or len(set(self.names)) != self.dim:
            raise ValueError(f"names must be {self.dim} different strings, one a parameter, found {list(self.names)}")
        self.quadratic = quadratic
        shapes = tuple(leaf.shape for leaf in leaves)
        _check_leaves(self.shards)
        # Bare functions become pytrees so that a posterior can be an argument of compiled code.
        likelihood, prior = (f if isinstance(f, Partial) else Partial(f) for f in (log_likelihood, log_prior))
        splits = _splits(likelihood, treedef.unflatten(leaves), self.shards)
        self.potential = Potential(likelihood, prior, len(shards), splits, shapes, treedef)
        self.sizes = _check_rows(self.shards) if splits else _check_one_shape(self.shards)
        if quadratic:
            self._check_quadratic()

    @property
    def num_agents(self) -> int:
        """Number of agents N."""
        return len(self.shards)

    @property
    def dim(self) -> int:
        """Number of flat parameters."""
        return self.init.size

    @property
    def splits(self) -> bool:
        """Whether the log likelihood is given row by row, so that minibatches exist."""
        return self.potential.splits

    def __repr__(self) -> str:
        kind = "Gaussian posterior" if self.quadratic else "Posterior"
        rows = f", {self.sizes.sum()} rows" if self.splits else ""
        return f"<{kind}: {self.dim} parameters, {self.num_agents} agents{rows}>"

    def unravel(self, x: Any) -> PyTree:
        """The parameters as the user's pytree at a flat position, shape (dim,)."""
        return self.potential.unravel(jnp.asarray(x))

    @cached_property
    def _padded(self) -> PyTree:
        # Padding repeats the last real row: a value the likelihood is known to accept, so that
        # the gradient under the mask is never 0 * inf.
        if not self.splits:
            return jax.tree.map(lambda *leaves: np.stack(leaves), *self.shards)
        longest = int(self.sizes.max())

        def pad(*leaves: np.ndarray) -> np.ndarray:
            return np.stack([leaf[np.minimum(np.arange(longest), len(leaf) - 1)] for leaf in leaves])

        return jax.tree.map(pad, *self.shards)

    def _rows(self) -> Shard:
        """All shards on the device in the present float width; never kept, as widths change and traces end."""
        return jax.tree.map(jnp.asarray, Shard(self._padded, self.sizes.astype(np.int32), None))

    @cached_property
    def _quadratic_form(self) -> Quadratic:
        with jax.enable_x64(True):
            raw = self._rows()
            zero = jnp.zeros(self.dim)

            def expand(shard: Shard) -> Quadratic:
                gradient = jax.grad(self.potential.value, argnums=1)
                hessian = jax.jacfwd(gradient, argnums=1)(shard, zero)
                return Quadratic(hessian, -gradient(shard, zero))

            form = jax.jit(lambda shards: jax.lax.map(expand, shards, batch_size=1024))(raw)
            return Quadratic(*(np.asarray(part) for part in form[:2]))

    @cached_property
    def _spectral_form(self) -> Quadratic:
        form = self._quadratic_form
        return Quadratic(*form[:2], *np.linalg.eigh(form.hessian))

    def stacked(self, *, spectral: bool = False) -> Shard:
        """All agents' shards stacked on a leading agent axis, as device arrays of the present float width.

        Parameters
        ----------
        spectral
            Also the eigenvectors of quadratic potentials, which closed-form proximal steps use.
        """
        form = None
        if self.quadratic:
            form = self._spectral_form if spectral else self._quadratic_form
        return self._rows()._replace(quadratic=jax.tree.map(jnp.asarray, form))

    def _check_quadratic(self) -> None:
        form = self._quadratic_form
        x = self.init + np.random.default_rng(0).standard_normal(self.dim)
        expected = np.einsum("nij,j->ni", form.hessian, x) - form.linear
        with jax.enable_x64(True):
            found = np.asarray(self._map(jax.grad(self.potential.value, argnums=1), x))
        error = np.abs(found - expected).max(axis=1)
        allowed = 1e-6 * (1.0 + np.abs(expected).max(axis=1))
        # written so that NaN counts as a violation
        if not (error <= allowed).all():
            agent = int(np.argmax(~(error <= allowed)))
            raise ValueError(
                f"quadratic=True, but the potential of agent {agent} is not quadratic: "
                f"its gradient is off by {error[agent]:.3g}"
            )

    def _map(self, function: Callable[[Shard, Array], PyTree], x: np.ndarray) -> PyTree:
        return jax.jit(jax.vmap(function, in_axes=(0, None)))(self._rows(), jnp.asarray(x))

    def gradients(self, x: np.ndarray) -> np.ndarray:
        """Gradients of all potentials at one position, shape (agent, dim), in double precision."""
        with jax.enable_x64(True):
            return np.asarray(self._map(jax.grad(self.potential.value, argnums=1), np.asarray(x, np.float64)))

    def hessians(self, x: np.ndarray | None = None) -> np.ndarray:
        """Hessians of all potentials at one position (default: init), shape (agent, dim, dim), in double precision."""
        if self.quadratic:
            return np.asarray(self._quadratic_form.hessian)
        with jax.enable_x64(True):
            at = np.asarray(self.init if x is None else x, np.float64)
            return np.asarray(self._map(jax.hessian(self.potential.value, argnums=1), at))

    def logdensity(self, x: Float[Array, " dim"]) -> Array:
        """Log density of the pooled posterior, up to a constant, at a flat position; differentiable."""
        values = jax.vmap(self.potential.value, in_axes=(0, None))(self._rows(), x)
        return -jnp.sum(values)

    def mode(self) -> np.ndarray:
        """The pooled mode, shape (dim,), by trust-region Newton (L-BFGS for many parameters) in double precision.

        Raises
        ------
        ArithmeticError
            No mode was found: the posterior may have none (separated labels under a flat prior, for instance).
        """
        if self.quadratic:
            return self.exact().mean
        with jax.enable_x64(True):
            shards = self._rows()

            def total(x: Array) -> Array:
                return jnp.sum(jax.vmap(self.potential.value, in_axes=(0, None))(shards, x))

            value, gradient = jax.jit(total), jax.jit(jax.grad(total))
            newton = self.dim <= _NEWTON_DIM
            found = scipy.optimize.minimize(
                lambda x: float(value(x)),
                self.init,
                jac=lambda x: np.asarray(gradient(x)),
                hess=jax.jit(jax.hessian(total)) if newton else None,
                method="trust-exact" if newton else "L-BFGS-B",
                options={"gtol": 1e-9, "maxiter": 10_000},
            )
            slope = np.abs(np.asarray(gradient(found.x))).max()
            scale = 1.0 + np.abs(self.gradients(found.x)).max()
            if not slope <= 1e-6 * scale:
                raise ArithmeticError(f"no mode found: the gradient is still {slope:.3g} after {found.nit} iterations")
            if newton:
                # a potential that flattens out for ever also has a small gradient, but no curvature
                curvature = np.linalg.eigvalsh(self.hessians(found.x).sum(axis=0))[0]
                at_start = np.linalg.eigvalsh(self.hessians(self.init).sum(axis=0))[-1]
                if not curvature > 1e-6 * at_start:
                    raise ArithmeticError(
                        f"no mode found: the potential flattens out, its curvature fell to {curvature:.3g} "
                        f"from {at_start:.3g} at init (separated labels under a flat prior do this)"
                    )
        return found.x

    def exact(self) -> Gaussian:
        """The posterior itself where it is Gaussian.

        Raises
        ------
        TypeError
            The posterior is not declared `quadratic`.
        ValueError
            The sum of the Hessians is not positive definite, so that no posterior exists.
        """
        if not self.quadratic:
            raise TypeError("only Gaussian posteriors have an exact() law; use laplace() for an approximation")
        form = self._quadratic_form
        precision = form.hessian.sum(axis=0)
        smallest = np.linalg.eigvalsh(precision)[0]
        if not smallest > 1e-12 * np.abs(precision).max():
            raise ValueError(f"the posterior is improper: its precision has the eigenvalue {smallest:.3g}")
        cov = np.linalg.inv(precision)
        return Gaussian(np.linalg.solve(precision, form.linear.sum(axis=0)), (cov + cov.T) / 2)

    def laplace(self) -> Posterior:
        """The Gaussian posterior whose local potentials are the second-order expansions at the pooled mode."""
        from .models import quadratic

        if self.quadratic:
            return self
        mode = self.mode()
        hessians = self.hessians(mode)
        linear = np.einsum("nij,j->ni", hessians, mode) - self.gradients(mode)
        expansion = quadratic(hessians, linear, names=self.names)
        expansion.init = mode
        return expansion


def _check_variables(names: list[str]) -> None:
    """Names of variables must be usable in the tree of a run: unique, no dimension's name, no path."""
    for name in names:
        if name in ("chain", "draw", "agent") or "/" in name or names.count(name) > 1:
            raise ValueError(
                f"the name {name!r} in init cannot be used: names must differ, hold no '/', and not be chain, draw "
                "or agent"
            )


def _names(variables: tuple[tuple[str, tuple[int, ...]], ...]) -> tuple[str, ...]:
    names = []
    for name, shape in variables:
        names += [name + (str(list(index)) if shape else "") for index in np.ndindex(*shape)]
    return tuple(names)


def _splits(log_likelihood: Partial, params: PyTree, shards: Sequence[PyTree]) -> bool:
    shape = jax.eval_shape(log_likelihood, params, shards[0])
    if not hasattr(shape, "shape"):
        raise ValueError(f"log_likelihood must return one array, found {type(shape).__name__}")
    if shape.shape == ():
        return False
    leading = jax.tree.leaves(shards[0])[0].shape[:1]
    if len(leading) == 1 and shape.shape == leading:
        return True
    raise ValueError(
        f"log_likelihood must return one number a row, shape {leading}, or a scalar; found shape {shape.shape}"
    )


def _check_leaves(shards: Sequence[PyTree]) -> None:
    structure: Any = jax.tree.structure(shards[0])
    if structure.num_leaves == 0:
        raise ValueError("shard of agent 0 holds no array")
    reference = [leaf.shape[1:] for leaf in jax.tree.leaves(shards[0])]
    for agent, shard in enumerate(shards):
        if jax.tree.structure(shard) != structure:
            raise ValueError(
                f"shards must be built alike: agent {agent} has {jax.tree.structure(shard)}, agent 0 has {structure}"
            )
        for leaf, trailing in zip(jax.tree.leaves(shard), reference, strict=True):
            if leaf.ndim > 0 and leaf.shape[0] == 0:
                raise ValueError(f"shard of agent {agent} is empty: an array of it has shape {leaf.shape}")
            if leaf.shape[1:] != trailing:
                raise ValueError(
                    f"shards of different columns: agent {agent} has rows of shape {leaf.shape[1:]}, agent 0 {trailing}"
                )
            if leaf.dtype.kind not in "fiub":
                raise ValueError(f"shard of agent {agent} must hold numbers, found dtype {leaf.dtype}")
            if leaf.dtype.kind in "iu" and np.abs(leaf.astype(np.float64)).max() > 2**31 - 1:
                raise ValueError(f"shard of agent {agent} holds whole numbers beyond 32 bits; pass them as floats")
            if not np.isfinite(leaf).all():
                where = [int(i) for i in np.argwhere(~np.isfinite(leaf))[0]]
                raise ValueError(f"shard of agent {agent} holds NaN or infinity, first at index {where}")


def _check_rows(shards: Sequence[PyTree]) -> np.ndarray:
    sizes = np.zeros(len(shards), dtype=np.int64)
    for agent, shard in enumerate(shards):
        if any(leaf.ndim == 0 for leaf in jax.tree.leaves(shard)):
            raise ValueError(f"shard of agent {agent} holds a single number: every array needs an axis of rows")
        lengths = {len(leaf) for leaf in jax.tree.leaves(shard)}
        if len(lengths) > 1:
            raise ValueError(f"arrays in the shard of agent {agent} differ in rows: {sorted(lengths)}")
        sizes[agent] = lengths.pop()
    return sizes


def _check_one_shape(shards: Sequence[PyTree]) -> np.ndarray:
    reference = [leaf.shape for leaf in jax.tree.leaves(shards[0])]
    for agent, shard in enumerate(shards):
        found = [leaf.shape for leaf in jax.tree.leaves(shard)]
        if found != reference:
            raise ValueError(
                "a scalar log_likelihood needs shards of one shape (return one number a row to allow unequal "
                f"shards): agent {agent} has {found}, agent 0 has {reference}"
            )
    return np.ones(len(shards), dtype=np.int64)
