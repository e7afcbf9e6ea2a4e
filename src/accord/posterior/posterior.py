"""The class `Posterior`: a log likelihood, a log prior, and one data shard per agent."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from math import prod
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float, PyTree

from ..base.checks import whole_number
from ..base.compiler import get_ready, require_no_fork
from ..base.errors import DataError
from ..base.gaussian import Gaussian
from ..base.given import given
from ..base.memory import require_matrices
from ..base.page import table
from ..base.pytree import altered
from ..base.text import counted
from ..base.widths import in_doubles, in_either_width
from ..network import Network
from ..network.averaging import Averaging
from .coarse import CoarseTotals, Noise
from .coordinates import Coordinates, moved
from .curvature import HESSIAN_DIM, Curvature, curvature
from .evaluate import count, evaluate, gradient_at, hessian_at, quadratic_at, slope_at, value_at
from .latents import MOST_NODES, Latents, Local, at_start, check_local, groups_of, padded_groups, with_latents
from .masks import require_masks
from .mode import NEWTON_DIM, lowest
from .model_info import ModelInfo
from .parameters import check_variables, flat_names, unconstrained, variables
from .potential import Potential, Shard
from .quadratic import Quadratic, flat_prior, minimum, quadratic_likelihood, units_of, with_eigenvectors
from .shards import (
    Extent,
    Shards,
    Source,
    check_leaves,
    check_one_shape,
    checksum,
    coarse_column,
    is_unread,
    padded,
    read,
    row_counts,
)
from .streamed import TotalsInChunks, is_large, require_memory_for
from .totals import ConsensusTotals, Totals, TotalsHere, agreed_masks, masked_here, parts_of, sums_rows
from .validation import check_hierarchy, check_prior, check_rows_alone, is_rowwise

# Batch size over agents in `each`, for up to NEWTON_DIM parameters.
_AGENTS_AT_ONCE = 1024


class Counts(NamedTuple):
    """Rows, groups and smallest group size of each agent, shape (agent,), and whether the likelihood is rowwise.

    A shard that does not split counts as one row. Without `local`, `groups` and `fewest` are 0.
    """

    rows: np.ndarray
    groups: np.ndarray
    fewest: np.ndarray
    rowwise: bool


class DataOwners(Protocol):
    """Processes that hold the data of a posterior and evaluate functions of it."""

    @property
    def mine(self) -> Sequence[int]:
        """The agents whose data lies in this process."""
        ...

    def each(self, function: Callable[..., PyTree], arguments: tuple[Any, ...], own: tuple[Any, ...]) -> PyTree:
        """The result of `Posterior.each`, computed where the data lies; arrays in `own` have a row per agent."""
        ...

    def totals(self, network: Network, masks: bool = False) -> Totals:
        """The result of `Posterior.totals`, in the user's parameters."""
        ...


class Posterior:
    """The posterior exp(-sum_i f_i) of N agents, with f_i = -(log likelihood of shard i) - (log prior) / N.

    Parameters
    ----------
    log_likelihood
        `log_likelihood(params, rows)`: one number per row, shape (rows,), which allows unequal shards and minibatches.
        A scalar is allowed if shards do not split into rows. All shards then need the same shape. With `local`,
        the function is `log_likelihood(params, latents, rows)`.
    log_prior
        `log_prior(params)`: the log density of the whole prior, a scalar. Each agent uses 1/N of it.
    shards
        One pytree of arrays per agent, N >= 1. The leading axis of every leaf is the row axis. Numbers of rows may
        differ between agents. A shard may also be a function without arguments that returns a pytree, or the path of
        an `.npz` file. A file with exactly the arrays X and y gives the pair (X, y), any other file a dict. If any
        shard is a function or a path, each shard is read and checked at first use, in the process that needs it.
    init
        The initial parameters: any pytree of floats. It fixes the structure of `params`.
    names
        One name per scalar parameter. Default: derived from the structure of `init`.
    constraints
        The support of each constrained variable of `init`, by name: a constraint from
        `numpyro.distributions.constraints` or its name, such as "positive", "unit_interval" or "simplex". `params`,
        `init` and the results of a run are in the user's scale. Methods sample unconstrained numbers, and accord adds
        the log Jacobian of the transform to the log prior. Needs NumPyro.
    local
        Latent variables of each site, or of each group of rows at a site. See `accord.Local`.
    hierarchy
        `hierarchy(params)`: the locations and scales of priors that depend on other parameters, such as
        `{"effect": (params["mean"], params["sd"])}`, by the name of an unconstrained variable. `ChEES` then moves in
        coordinates between centred and non-centred ones. Draws stay in the user's scale, and the posterior is the same.
    quadratic
        Whether every f_i is a quadratic function, so that the posterior is Gaussian. accord verifies it.
    check
        `check(agent, shard)`: called with each shard after reading. It raises `ValueError` if the shard does not fit
        the model.

    Raises
    ------
    ValueError
        There is no shard, a shard is empty or holds NaN or infinity, shards differ in structure or columns, the log
        likelihood has the wrong shape, the number of names is wrong, `init` violates a constraint, groups are not
        numbered from 0 without a gap, or `quadratic=True` and an f_i is not quadratic.
    DataError
        A function or file failed, or the data of an agent is not in this process. The error names the agent.
    """

    def __init__(
        self,
        log_likelihood: Callable[[PyTree, PyTree], Array],
        log_prior: Callable[[PyTree], Array],
        shards: Sequence[Source],
        init: PyTree,
        *,
        names: Sequence[str] | None = None,
        quadratic: bool = False,
        check: Callable[[int, PyTree], None] | None = None,
        constraints: Mapping[str, Any] | None = None,
        local: Local | None = None,
        hierarchy: Callable[[PyTree], Mapping[str, tuple[Any, Any]]] | None = None,
    ) -> None:
        require_no_fork()
        get_ready()
        if len(shards) == 0:
            raise ValueError("a posterior needs at least one shard, found none")
        self.parameters, self.init = unconstrained(init, constraints or {})
        self.variables = variables(init)
        check_variables([name for name, _ in self.variables])
        self.names = flat_names(self.variables) if names is None else tuple(names)
        count = sum(prod(shape) for _, shape in self.variables)
        if len(self.names) != count or len(set(self.names)) != count:
            raise ValueError(f"names must be {count} different strings, one per parameter, found {list(self.names)}")
        if quadratic and (self.parameters.constrained or local is not None):
            raise ValueError(
                "quadratic=True declares a Gaussian posterior, which cannot have constraints or local: remove them"
            )
        self.quadratic = quadratic
        self.num_agents = len(shards)
        # None: methods move in the user's parameters
        self.coordinates: Coordinates | None = None
        self.info = ModelInfo()
        # None: the data lies in this process
        self.owners: DataOwners | None = None
        self._params = jax.tree.map(lambda leaf: np.asarray(leaf, dtype=np.float64), init)
        self._start, self._constraints = self.init, constraints
        self._local = None if local is None else replace(local, log_prior=given(local.log_prior))
        # a wrong declaration raises before data is read
        self._latents, self._finely = None if self._local is None else Latents.of(self._local), False
        # pytrees, so that a posterior can be an argument of compiled code
        self._log_likelihood, self._log_prior = given(log_likelihood), given(log_prior)
        check_prior(self._log_prior, self._params)
        self.hierarchy = None if hierarchy is None else given(hierarchy)
        self._effects: tuple[str, ...] = ()
        if self.hierarchy is not None:
            self._effects = check_hierarchy(self.hierarchy, self._params, self.parameters.transforms)
        self._log_prior = in_either_width(self._log_prior, self._params)
        self._check = check
        # checksums of shards at their first read in this process, by agent
        self._checksums: dict[int, int] = {}
        # sources of the held agents
        self._sources: dict[int, Source] = dict(enumerate(shards))
        if not any(map(is_unread, shards)):
            self._counts  # noqa: B018 - reads and checks
            if quadratic:
                self._quadratic_form  # noqa: B018

    @property
    def dim(self) -> int:
        """Number of flat parameters."""
        return self.init.size

    @property
    def held(self) -> tuple[int, ...]:
        """The agents whose data this posterior holds or can read: all, except after `alone` or `with_data_at`."""
        return tuple(self._sources)

    @property
    def is_read(self) -> bool:
        """Whether all shards were given as arrays."""
        return len(self._sources) == self.num_agents and not any(map(is_unread, self._sources.values()))

    @property
    def is_held_elsewhere(self) -> bool:
        """Whether the data lies with `owners`, in other processes."""
        return self.owners is not None

    @property
    def shards(self) -> list[PyTree]:
        """The data of all agents, as NumPy arrays."""
        self._require(range(self.num_agents))
        return list(self._read.values())

    @property
    def sizes(self) -> np.ndarray:
        """Rows of each held agent, or of all agents with `owners`, shape (agent,). 1 if shards do not split."""
        return self._counts.rows

    @property
    def counted_rows(self) -> tuple[int, ...]:
        """Rows of each agent, if all were counted already. Empty otherwise, or if shards do not split."""
        if "_counts" not in vars(self) or not self._counts.rowwise or len(self.sizes) != self.num_agents:
            return ()
        return tuple(int(rows) for rows in self.sizes)

    @property
    def splits(self) -> bool:
        """Whether the log likelihood is a sum over rows without latents, which minibatches need."""
        return self._counts.rowwise and self._local is None

    @property
    def reads_in_chunks(self) -> bool:
        """Whether sums over rows read them in chunks, because the held shards do not fit in memory."""
        if self.is_held_elsewhere or not self.splits or self.quadratic:
            return False
        return is_large(self._read, int(self.sizes.max()))

    @property
    def extent(self) -> Extent:
        """The shape that shards are padded to."""
        counts = self._counts
        rows = int(counts.rows.max()) if counts.rowwise else None
        return Extent(rows, None if self._local is None else int(counts.groups.max()))

    @property
    def effects(self) -> tuple[str, ...]:
        """Variables whose priors `hierarchy` returns; empty without a hierarchy."""
        return self._effects

    @property
    def has_latents(self) -> bool:
        """Whether sites have local latents. Reads no data."""
        return self._latents is not None

    @property
    def latents(self) -> Latents | None:
        """The latents of a group, or None. The number of quadrature nodes depends on the smallest group."""
        if self._latents is None or self._finely:
            return self._latents
        return self._latents.for_rows(int(self._counts.fewest.min()))

    @property
    def is_coarse(self) -> bool:
        """Whether the quadrature over latents uses fewer nodes than `finely()` would."""
        return self.latents is not None and self._latents is not None and self.latents.nodes < self._latents.nodes

    def finely(self, nodes: int | None = None) -> Posterior:
        """The same posterior with a finer quadrature over the latents of groups.

        Parameters
        ----------
        nodes
            Nodes per latent, 1 to 100. None: the number for the smallest groups.

        Raises
        ------
        ValueError
            `nodes` is out of range, or no quadrature integrates the posterior's latents.
        """
        # row counts stay valid
        known = {"_counts": self._counts} if "_counts" in vars(self) else {}
        if nodes is None:
            return self._with(_finely=True, **known)
        if self._latents is None or self._latents.nodes == 0:
            raise ValueError("nodes needs a posterior with one or two latents per group, found none or more than two")
        latents = self._latents.with_nodes(whole_number("nodes", nodes, 1, MOST_NODES))
        return self._with(_latents=latents, _finely=True, **known)

    @property
    def unconstrained_names(self) -> tuple[str, ...]:
        """One name for each of the `dim` unconstrained numbers; equal to `names` if no transform changes a shape."""
        free = tuple((name, shape) for (name, _), shape in zip(self.variables, self.parameters.shapes, strict=True))
        return self.names if free == tuple(self.variables) else flat_names(free)

    @cached_property
    def potential(self) -> Potential:
        """The potential, a function of one agent's shard and a position."""
        # counting also makes the functions work in both float widths
        rowwise = self._counts.rowwise
        functions = (self._log_likelihood, self._log_prior, self.coordinates)
        return Potential(*functions, self.parameters, self.latents, self.num_agents, rowwise)

    def __repr__(self) -> str:
        kind = "Gaussian posterior" if self.quadratic else "Posterior"
        if "_counts" in vars(self):
            count = int(self.sizes.sum()) if self._counts.rowwise else sum(self.info.rows)
            rows = f", {counted(count, 'row')}" if count else ""
        else:
            # a repr reads no data
            rows = ", data not read"
        effects = f", a hierarchy of {', '.join(self.effects)}" if self.effects else ""
        return f"<{kind}: {counted(self.dim, 'parameter')}, {counted(self.num_agents, 'agent')}{rows}{effects}>"

    def _repr_html_(self) -> str:
        """The model as a table for notebooks. Reads no data."""
        rows = self.counted_rows or self.info.rows
        facts = [
            ("model", self.info.model),
            ("formula", self.info.formula),
            ("agents", f"{self.num_agents:,}"),
            ("rows", f"{sum(rows):,}" if rows else ""),
            ("parameters", f"{self.dim}: {', '.join(self.names[:20])}" + (", ..." if len(self.names) > 20 else "")),
            ("hierarchy of", ", ".join(self.effects)),
            *((f"prior of {name}" if name else "", prior) for name, prior in self.info.priors[:20]),
        ]
        return f"<strong>Posterior</strong>{table(['', ''], [fact for fact in facts if fact[1]])}"

    def __getstate__(self) -> dict[str, Any]:
        # cached values, such as data that was read, stay in this process
        derived = {name for name in vars(self) if isinstance(getattr(type(self), name, None), cached_property)}
        kept = {name: value for name, value in vars(self).items() if name not in derived}
        return {**kept, "_checksums": {}}

    def _with(self, **changes: Any) -> Posterior:
        other = object.__new__(type(self))
        vars(other).update({**self.__getstate__(), "_checksums": self._checksums, **changes})
        return other

    def alone(self, *agents: int) -> Posterior:
        """The same posterior of N agents, with the data of the given agents only.

        Its pickle contains shards that were given as arrays. Functions and paths stay unread.
        """
        if len(agents) == 0 or len(set(agents)) < len(agents):
            raise ValueError(f"agents must be one or more different numbers, found {list(agents)}")
        self._require(agents)
        return self._with(_sources={agent: self._sources[agent] for agent in agents})

    def with_shards(self, shards: Sequence[Source]) -> Posterior:
        """The same model for other data: one shard per agent, read and checked as at construction."""
        found = Posterior(
            self._log_likelihood,
            self._log_prior,
            shards,
            self._params,
            names=self.names,
            quadratic=self.quadratic,
            check=self._check,
            constraints=self._constraints,
            local=self._local,
            hierarchy=self.hierarchy,
        )
        return found._with(_latents=self._latents, _finely=True) if self._finely else found

    def reading(self, sources: Sequence[Source]) -> Posterior:
        """The same posterior with other sources of its shards: one function or file per agent, read at first use."""
        return self._with(_sources=dict(enumerate(sources)), _checksums={})

    def source(self, agent: int) -> Source:
        """The source of an agent's shard, as the user gave it."""
        self._require([agent])
        return self._sources[agent]

    def with_data_at(self, owners: DataOwners) -> Posterior:
        """The same posterior without data: `owners` evaluate `each` and `totals`."""
        return self._with(_sources={}, owners=owners)

    def transformed(self, coordinates: Coordinates) -> Posterior:
        """The same posterior as a function of coordinates z, in which methods move.

        Potentials, derivatives, `init`, `mode` and `exact` refer to z. Runs and laws map their results back to the
        user's x.
        """
        if self.coordinates is not None:
            raise ValueError("the posterior already has coordinates: call in_parameters() first")
        if coordinates.origin.shape != (self.dim,):
            raise ValueError(f"the coordinates have {coordinates.origin.size} dimensions, the posterior {self.dim}")
        return self._with(coordinates=coordinates, init=coordinates.inverse(self.init))

    def near_prior(self, sds: float) -> Posterior:
        """The same posterior with density 0 far from the prior, where likelihoods reveal most about rows.

        Far means that the prior's density is below exp(-sds^2 / 2) times its density at `init`, as a normal prior's is
        at `sds` standard deviations from its mean. There the result does not depend on rows.
        """
        lowest = float(in_doubles(lambda: self._log_prior(self._params))) - sds**2 / 2.0
        return self._with(_log_likelihood=Partial(_near, lowest, self._log_prior, self._log_likelihood))

    def prior_distance(self, x: Float[np.ndarray, "position dim"]) -> Float[np.ndarray, " position"]:
        """Distances of positions from `init` in standard deviations of a normal prior with the same density."""

        def log_prior() -> Array:
            return jax.lax.map(lambda one: self._log_prior(self.parameters(one)), jnp.asarray(x))

        fall = in_doubles(lambda: self._log_prior(self._params) - log_prior())
        return np.asarray(np.sqrt(2.0 * np.maximum(np.asarray(fall), 0.0)))

    def in_parameters(self) -> Posterior:
        """The same posterior without coordinates, as a function of the user's parameters x."""
        if self.coordinates is None:
            return self
        return self._with(coordinates=None, init=self._start)

    def require_unchanged(self) -> None:
        """Raise `ValueError` if an array or file of a shard has changed since this process read it.

        Raise `RuntimeError` in a fork of a process that has used JAX.
        """
        require_no_fork()
        get_ready()
        for agent, read_then in self._checksums.items():
            if agent in self._sources and checksum(self._sources[agent]) != read_then:
                raise ValueError(
                    f"the shard of agent {agent} was changed in place, or its file was written, after this posterior "
                    "read it: create a new Posterior, or change a copy of the data"
                )

    def _require(self, agents: Sequence[int]) -> None:
        for agent in agents:
            if agent not in self._sources:
                held = f"only agents {list(self.held)}" if self.held else "no data"
                raise DataError(f"the data of agent {agent} is not in this process: this posterior holds {held}")

    def unravel(self, x: Any) -> PyTree:
        """The user's pytree of parameters at a flat position, shape (dim,)."""
        return self.parameters(jnp.asarray(x))

    @cached_property
    def _read(self) -> Shards:
        found = {}
        for agent, source in self._sources.items():
            found[agent] = read(source, agent)
            if self._check is not None:
                self._check(agent, found[agent])
        check_leaves(found)
        for agent, source in self._sources.items():
            self._checksums.setdefault(agent, checksum(source))
        return found

    @cached_property
    def _counts(self) -> Counts:
        if self.owners is not None:
            rows, rowwise, groups, fewest = self.each(count)
            rows, groups, fewest = (x.astype(np.int64) for x in (rows, groups, fewest))
            return Counts(rows, groups, fewest, bool(rowwise.all()))
        shards = self._read
        first = self.held[0]
        log_likelihood, none = self._log_likelihood, np.zeros(len(shards), np.int64)
        if self._local is not None:
            # the shape is checked at the initial latents
            log_likelihood = with_latents(self._local, self._log_likelihood)
            check_local(self._local, self._params, shards[first])
        if is_rowwise(log_likelihood, self._params, shards[first]):
            counts = row_counts(shards)
            # the library's models have a check, and their rows are independent
            if self._check is None:
                check_rows_alone(log_likelihood, self._params, shards[first], first)
            own = [] if self._local is None else [np.bincount(group) for group in self._groups]
            groups, fewest = (np.array([f(one) for one in own]) if own else none for f in (np.size, np.min))
            self._allow_both_widths(shards[first])
            return Counts(counts, groups, fewest, True)
        if self._local is not None:
            raise ValueError("with local, log_likelihood must return one number per row, found a scalar")
        check_one_shape(shards)
        self._allow_both_widths(shards[first])
        return Counts(np.ones(len(shards), dtype=np.int64), none, none, False)

    def _allow_both_widths(self, rows: PyTree) -> None:
        """Make functions of rows traceable in single and double precision, whatever arrays they close over."""
        arguments = [self._params, rows]
        if self._local is not None:
            assert self._latents is not None
            row = jax.tree.map(lambda leaf: leaf[0], rows)
            prior = in_either_width(self._latents.log_prior, self._params, self._local.init, row)
            self._latents = altered(self._latents, log_prior=prior)
            arguments.insert(1, at_start(self._local.init, len(jax.tree.leaves(rows)[0])))
        self._log_likelihood = in_either_width(self._log_likelihood, *arguments)

    @cached_property
    def _groups(self) -> list[np.ndarray]:
        """The group of each row, one array per held agent."""
        assert self._local is not None
        return [groups_of(self._local, rows, agent) for agent, rows in self._read.items()]

    @cached_property
    def _padded(self) -> PyTree:
        return self._filled(self.extent.rows)

    def _filled(self, rows: int | None) -> PyTree:
        """Shards stacked and padded to a number of rows; `ValueError` if they do not fit in memory."""
        if rows is not None:
            require_memory_for(self._read, rows)
        return padded(self._read, rows)

    def _rows(self, extent: Extent | None = None) -> Shard:
        """The held shards as NumPy arrays, stacked and padded, without quadratic forms."""
        groups, extent = None, self.extent if extent is None else extent
        rows = self._padded if extent.rows == self.extent.rows else self._filled(extent.rows)
        if self._local is not None:
            assert extent.rows is not None and extent.groups is not None
            groups = padded_groups(self._groups, self.held, extent.rows, extent.groups)
        return Shard(rows, self.sizes.astype(np.int32), None, groups)

    def _pooled(self) -> Shard:
        """All shards on the device in the current float width. Not cached: widths change and traces end."""
        self._require(range(self.num_agents))
        return _on_device(self._rows())

    @cached_property
    def _coarse_column(self) -> str:
        return coarse_column(self._padded, np.float32)

    @cached_property
    def _quadratic_form(self) -> Quadratic:
        remedy = "remove quadratic=True, or use fewer parameters"
        require_matrices("quadratic forms of the agents", self.dim, len(self.held), remedy)
        x = self.init + np.random.default_rng(0).standard_normal(self.dim)
        with jax.enable_x64(True):
            terms = evaluate(quadratic_at, self.potential, self._rows(), (x,), (), _AGENTS_AT_ONCE)
            hessian, linear, found = map(np.asarray, terms)
        expected = np.einsum("nij,j->ni", hessian, x) - linear
        error = np.abs(found - expected).max(axis=1)
        allowed = 1e-6 * (1.0 + np.abs(expected).max(axis=1))
        # NaN counts as a violation
        if not (error <= allowed).all():
            place = int(np.argmax(~(error <= allowed)))
            raise ValueError(
                f"quadratic=True, but the potential of agent {self.held[place]} is not quadratic: "
                f"its gradient is off by {error[place]:.3g}"
            )
        # the mode of the posterior: an agent's own minimum may be far from its mass
        center = minimum(hessian.sum(axis=0), linear.sum(axis=0))
        if center is None:
            return Quadratic(hessian, linear)
        with jax.enable_x64(True):
            terms = evaluate(slope_at, self.potential, self._rows(), (center,), (), _AGENTS_AT_ONCE)
            level, slope = map(np.asarray, terms)
        return Quadratic(hessian, linear, np.tile(center, (len(level), 1)), level, slope)

    @cached_property
    def _spectral_form(self) -> Quadratic:
        return with_eigenvectors(self._quadratic_form)

    @cached_property
    def _curvature(self) -> Curvature | None:
        return None if self.dim > HESSIAN_DIM else curvature(self.hessians())

    def stacked(
        self, *, spectral: bool = False, agents: Sequence[int] | None = None, extent: Extent | None = None
    ) -> Shard:
        """Shards stacked on a leading agent axis, as device arrays in the current float width.

        Parameters
        ----------
        spectral
            Whether to add the eigenvectors of Hessians, which proximal steps use. Hessians of potentials that are not
            quadratic are taken at init, for up to 300 parameters.
        agents
            The agents, in this order. None: all.
        extent
            The shape to pad to, at least as large as these shards. None: the smallest possible shape. Shards that do
            not split are not padded.
        """
        agents = range(self.num_agents) if agents is None else agents
        self._require(agents)
        if self.held != tuple(agents):
            return self.alone(*agents).stacked(spectral=spectral, agents=agents, extent=extent)
        if extent is not None and extent.rows is not None and extent.rows < self.sizes.max():
            longest = int(self.sizes.argmax())
            raise ValueError(
                f"extent must have at least the {self.sizes[longest]} rows of the longest shard, of agent "
                f"{self.held[longest]}; found {extent.rows}"
            )
        shards = self._rows(extent)
        if jnp.result_type(float) == np.float32 and not self.quadratic and self._coarse_column:
            warnings.warn(self._coarse_column, stacklevel=2)
        if self.quadratic:
            shards = shards._replace(quadratic=self._spectral_form if spectral else self._quadratic_form)
        elif spectral:
            shards = shards._replace(curvature=self._curvature)
        return _on_device(shards)

    def each(self, function: Callable[..., PyTree], *arguments: Any, own: tuple[Any, ...] = ()) -> PyTree:
        """`function(potential, shard, *arguments, *own_i)` of every agent, evaluated where its data lies.

        Only the return value leaves the agent, so return small arrays. A function marked with `of_rows` receives the
        rows in chunks if they do not fit in memory.

        Parameters
        ----------
        function
            A module-level function, or a `functools.partial` of one, that JAX can trace. It runs in double precision.
        arguments
            Arrays that are the same for all agents.
        own
            Arrays with a leading agent axis. Each agent receives its row.

        Returns
        -------
        pytree
            The function's values as NumPy arrays with a leading agent axis: of all agents, or after `alone` of the
            held agents.
        """
        if self.owners is not None:
            if self.coordinates is not None:
                function, arguments = partial(moved, function), (self.coordinates, *arguments)
            return self.owners.each(function, arguments, own)
        if sums_rows(function) and self.reads_in_chunks:
            return self._each_in_chunks(function, arguments, own)
        shards = self._rows()._replace(quadratic=self._quadratic_form if self.quadratic else None)
        # one agent at a time: derivatives in many parameters need memory
        at_once = None if self.dim > NEWTON_DIM else _AGENTS_AT_ONCE
        with jax.enable_x64(True):
            found = evaluate(function, self.potential, shards, arguments, tuple(own), at_once)
            return jax.tree.map(np.asarray, found)

    def _each_in_chunks(
        self, function: Callable[..., PyTree], arguments: tuple[Any, ...], own: tuple[Any, ...]
    ) -> PyTree:
        """`each` for a sum over rows that are read in chunks, one agent at a time."""

        def of(place: int, agent: int) -> PyTree:
            its = jax.tree.map(lambda leaf: leaf[place], own)
            return self.alone(agent).totals_here().each(function, *arguments, *its)

        with jax.enable_x64(True):
            found = [of(place, agent) for place, agent in enumerate(self.held)]
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *found)

    def require_agents_of(self, network: Network) -> None:
        """Raise `ValueError` unless the network has one agent per shard."""
        if network.num_agents != self.num_agents:
            raise ValueError(
                f"the network has {network.num_agents} agents but the posterior has {self.num_agents} shards"
            )

    def totals(
        self, network: Network, masks: bool = False, consensus: float | None = None, coarse: bool = False
    ) -> Totals:
        """Sums over agents of functions of their data, added up along a spanning tree of the network.

        The function receives the `potential`, which is the same for all agents, the agent's `shard` (padded data in
        `shard.rows`, with `shard.size` real rows) and the arguments of the call.

        After `alone`, the sums are over the held agents.

        Parameters
        ----------
        network
            The network of the agents.
        masks
            Whether each agent masks its numbers before they leave it. Agents that pass numbers on then see noise, and
            every agent sees the sum. Masked sums are exact up to num_agents * 2^-65 and rounding to double precision.
            They raise `ArithmeticError` if an agent's numbers are NaN, infinite, or not below 2^62 / num_agents in
            size. `docs/masks.md` describes what masks hide.
        consensus
            A precision, at most 1e-3. Agents then average with their neighbours, without a tree, until every agent's
            sum is within this share of num_agents times the largest number in size. The result is the first agent's.
        coarse
            Whether each agent adds noise to its numbers and rounds them; see `posterior.coarse`.

        Raises
        ------
        ValueError
            The posterior has coordinates, or the network has another number of agents. With masks: there are fewer
            than 3 agents, or this posterior does not hold all of them.
        ImportError
            With masks: `cryptography` is not installed.
        """
        if self.coordinates is not None:
            raise ValueError("totals() needs the user's parameters: call in_parameters(), pass coordinates to sums")
        self.require_agents_of(network)
        if masks:
            require_masks(self.num_agents)
        if consensus is not None:
            self._require_gossip(masks)
        if self.owners is not None:
            return self.owners.totals(network, masks=masks)
        if coarse and (consensus is not None or self.held != tuple(range(self.num_agents))):
            raise ValueError("coarse answers need all agents in this process, without consensus")
        here = self.totals_here()
        if coarse:
            noise = Noise(self.num_agents, self.dim, int(np.sum(self.sizes)))
            return CoarseTotals(here, noise, masks=agreed_masks(self.num_agents) if masks else ())
        if consensus is not None:
            return ConsensusTotals(here, Averaging(network, consensus))
        if not masks:
            return here
        if self.held != tuple(range(self.num_agents)):
            raise ValueError(
                f"masks cancel only in the sum over all {self.num_agents} agents, and this posterior holds the data of "
                f"agents {list(self.held)} only"
            )
        return masked_here(here, self.num_agents)

    def totals_here(self) -> TotalsHere:
        """Sums over the agents whose data this posterior holds, in the user's parameters."""
        if not self.splits or self.quadratic:
            return TotalsHere(self.potential, self.stacked(agents=self.held))
        if self.reads_in_chunks:
            return TotalsInChunks(self.potential, self._read)
        longest = int(self.sizes.max())
        parts = parts_of(longest)
        filled = Extent(parts * -(-longest // parts), None)
        return TotalsHere(self.potential, self.stacked(agents=self.held, extent=filled), parts)

    def _require_gossip(self, masks: bool) -> None:
        """Raise `ValueError` if gossip cannot compute the sums."""
        if masks:
            raise ValueError("masks and consensus exclude each other: masks do not cancel in averages over neighbours")
        if self.owners is not None or self.held != tuple(range(self.num_agents)):
            raise ValueError(
                "consensus needs the data of all agents in this process, and some lies elsewhere: leave consensus out "
                "to sum over a tree"
            )

    def gradients(self, x: np.ndarray) -> np.ndarray:
        """Gradients of all potentials at one position, shape (agent, dim), in double precision."""
        return self.each(gradient_at, np.asarray(x, np.float64))

    def hessians(self, x: np.ndarray | None = None) -> np.ndarray:
        """Hessians of all potentials at one position (default: init), shape (agent, dim, dim), in double precision."""
        require_matrices("Hessians", self.dim, self.num_agents, "use fewer parameters, or a method without Hessians")
        return self.each(hessian_at, np.asarray(self.init if x is None else x, np.float64))

    def logdensity(self, x: Float[Array, " dim"]) -> Array:
        """Log density of the pooled posterior, up to a constant, at a flat position; differentiable."""
        values = jax.vmap(self.potential.value, in_axes=(0, None))(self._pooled(), x)
        return -jnp.sum(values)

    def mode(self) -> np.ndarray:
        """The pooled mode, shape (dim,), by Newton's method (L-BFGS for many parameters) in double precision.

        Raises
        ------
        ArithmeticError
            No mode was found: the posterior may have none (separated labels under a flat prior, for instance).
        """
        self.require_unchanged()
        if self.quadratic:
            return self.exact().mean
        with jax.enable_x64(True):
            shards = self._pooled()

            def total(x: Array) -> Array:
                return jnp.sum(jax.vmap(self.potential.value, in_axes=(0, None))(shards, x))

            return lowest(total, self.init, self.unconstrained_names, self.gradients, self.remedy_at_init)

    def remedy_at_init(self) -> str:
        """The remedy for a potential that is not finite at init. It names an agent with NaN if the data lies here."""
        if not self.is_held_elsewhere:
            nan = np.isnan(self.each(value_at, self.init))
            # NaN at all agents comes from init or the prior
            if nan.any() and not nan.all():
                agent = self.held[int(nan.argmax())]
                return f"the potential of agent {agent} is NaN: check its log likelihood, or give another init"
        return (
            "give another init, or write the density so that it is finite there: log_ndtr and logsumexp stay finite "
            "where the log of a cdf or of a difference is -inf"
        )

    def exact(self) -> Gaussian:
        """The posterior as a `Gaussian`.

        Raises
        ------
        TypeError
            The posterior is not declared `quadratic`.
        ValueError
            The posterior is improper: the sum of the Hessians is not positive definite.
        """
        if not self.quadratic:
            raise TypeError("only Gaussian posteriors have an exact() law; use laplace() for an approximation")
        self._require(range(self.num_agents))
        form = self._quadratic_form
        precision = form.hessian.sum(axis=0)
        # scaled to unit diagonal, because columns may have any units
        units = units_of(precision)
        scaled = precision * units[:, None] * units
        smallest = np.linalg.eigvalsh(scaled)[0]
        if not smallest > 1e-12 * np.abs(scaled).max():
            raise ValueError(
                "the posterior is improper: its precision matrix, scaled to unit diagonal, has the eigenvalue "
                f"{smallest:.3g}. Add a proper prior, or remove collinear columns"
            )
        cov = np.linalg.inv(scaled) * units[:, None] * units
        mean = units * np.linalg.solve(scaled, units * form.linear.sum(axis=0))
        return Gaussian(mean, (cov + cov.T) / 2)

    def laplace(self) -> Posterior:
        """The Laplace approximation at the pooled mode, as a posterior with one quadratic potential per agent."""
        if self.quadratic:
            return self
        mode = self.mode()
        hessians = self.hessians(mode)
        linear = np.einsum("nij,j->ni", hessians, mode) - self.gradients(mode)
        shards = [{"hessian": h, "linear": b} for h, b in zip(hessians, linear, strict=True)]
        functions = Partial(quadratic_likelihood), Partial(flat_prior)
        return Posterior(*functions, shards, mode, names=self.unconstrained_names, quadratic=True)


def _on_device(shards: Shard) -> Shard:
    """The shards on the device, in the current float width.

    NumPy narrows the arrays, not JAX: `device_put` of an array that was put in single precision before has been seen to
    return single precision when double was enabled.
    """
    kinds = {"f": jnp.result_type(float), "i": jnp.result_type(int)}

    def narrowed(leaf: Any) -> Any:
        array = np.asarray(leaf)
        wide = array.dtype.itemsize == 8 and array.dtype.kind in kinds
        return array.astype(kinds[array.dtype.kind]) if wide else array

    return jax.device_put(jax.tree.map(narrowed, shards))


def _near(lowest: float, log_prior: Partial, log_likelihood: Partial, params: PyTree, *others: PyTree) -> PyTree:
    """A log likelihood that is -inf where the log prior is below `lowest`."""
    found = log_likelihood(params, *others)
    return jax.tree.map(lambda leaf: jnp.where(log_prior(params) >= lowest, leaf, -jnp.inf), found)
