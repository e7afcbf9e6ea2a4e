"""The class `Posterior`: a log likelihood, a log prior, and one shard of data for each agent."""

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
from ..base.widths import in_either_width
from ..network import Network
from ..network.averaging import Averaging
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
from .totals import ConsensusTotals, Totals, TotalsHere, masked_here, parts_of, sums_rows
from .validation import check_prior, check_rows_alone, is_rowwise

# Agents whose facts are found at the same time; one after another where parameters are many.
_AGENTS_AT_ONCE = 1024


class Counts(NamedTuple):
    """Rows and groups of each agent, and rows of its smallest group, (agent,); and whether rows have terms.

    Shards that do not split count as one row; there may be no groups.
    """

    rows: np.ndarray
    groups: np.ndarray
    fewest: np.ndarray
    rowwise: bool


class DataOwners(Protocol):
    """Processes that hold the data of a posterior: they evaluate functions of it where it lies."""

    @property
    def mine(self) -> Sequence[int]:
        """The agents whose data lies in this process."""
        ...

    def each(self, function: Callable[..., PyTree], arguments: tuple[Any, ...], own: tuple[Any, ...]) -> PyTree:
        """What `Posterior.each` returns, evaluated where the data lies; `own` has a row for every agent."""
        ...

    def totals(self, network: Network, masks: bool = False) -> Totals:
        """What `Posterior.totals` returns, of the posterior in the user's parameters."""
        ...


class Posterior:
    """The posterior exp(-sum_i f_i), f_i = -(log likelihood of shard i) - (log prior) / N, of N agents.

    Parameters
    ----------
    log_likelihood
        `log_likelihood(params, rows)`: one number a row, shape (rows,), so that padding, minibatches and unequal
        shards work. A scalar is allowed for shards that do not split; then all have one shape. With `local`,
        `log_likelihood(params, latents, rows)`.
    log_prior
        `log_prior(params)`: a scalar, the whole prior (each agent takes 1/N of it).
    shards
        One pytree of arrays an agent, N >= 1. The leading axis of every leaf counts rows; lengths may differ
        between agents. A shard may also be a function without arguments that returns one, or the path of an `.npz`
        file, whose X and y become the pair (X, y) if it holds just these, else a dict. If any is, nothing is read at
        construction: each shard is read and checked at first use, in the process that needs it.
    init
        The parameters to start from: any pytree of floats; its structure is that of `params`.
    names
        A name for each number of the parameters; found from `init` when left out.
    constraints
        By the name of a variable of `init`, what its values must be: one of NumPyro's
        `numpyro.distributions.constraints`, or its name, such as "positive", "unit_interval" or "simplex". `params`,
        `init` and what a run reports are in the user's scale; methods move in unconstrained numbers, and the prior is
        told the volume that the transform takes (needs NumPyro).
    local
        Latents of which every site, or group of rows at a site, has its own; see `accord.Local`.
    quadratic
        Says that every f_i is a quadratic function (Gaussian posterior). It is checked.
    check
        `check(agent, shard)` raises `ValueError` where a shard is not what the model takes; called with each shard as
        it is read.

    Raises
    ------
    ValueError
        No shard or an empty one, NaN or infinity in data, shards of different columns or dtypes of structure,
        a log likelihood of the wrong shape, a wrong number of names, an init that violates a constraint, groups that
        are not numbered from 0 on, or `quadratic=True` for what is not.
    DataError
        A function or a file failed, or data is asked for that does not lie here; the agent is named.
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
            raise ValueError(f"names must be {count} different strings, one a parameter, found {list(self.names)}")
        if quadratic and (self.parameters.constrained or local is not None):
            raise ValueError(
                "quadratic=True says that all parameters are normal: it goes without constraints and local"
            )
        self.quadratic = quadratic
        self.num_agents = len(shards)
        # what methods move in, where that is not the user's parameters themselves
        self.coordinates: Coordinates | None = None
        # what it says of itself, where what made it knows
        self.info = ModelInfo()
        # who answers `each`, if the data lies elsewhere
        self.owners: DataOwners | None = None
        self._params = jax.tree.map(lambda leaf: np.asarray(leaf, dtype=np.float64), init)
        self._start, self._constraints = self.init, constraints
        self._local = None if local is None else replace(local, log_prior=given(local.log_prior))
        # what is wrong with a declaration is said before data is read
        self._latents, self._finely = None if self._local is None else Latents.of(self._local), False
        # pytrees, so that a posterior can be an argument of compiled code
        self._log_likelihood, self._log_prior = given(log_likelihood), given(log_prior)
        check_prior(self._log_prior, self._params)
        self._log_prior = in_either_width(self._log_prior, self._params)
        self._check = check
        # of arrays as they were first read in this process
        self._checksums: dict[int, int] = {}
        # by agent, of those that are held here
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
        """The agents whose data this posterior holds, or can read: all, unless it is `alone` or `with_data_at`."""
        return tuple(self._sources)

    @property
    def is_read(self) -> bool:
        """Whether all data was given as arrays, so that there is nothing to read."""
        return len(self._sources) == self.num_agents and not any(map(is_unread, self._sources.values()))

    @property
    def is_held_elsewhere(self) -> bool:
        """Whether the data lies with `owners`, so that what is found out about it has to travel."""
        return self.owners is not None

    @property
    def shards(self) -> list[PyTree]:
        """The data of all agents, as arrays of NumPy."""
        self._require(range(self.num_agents))
        return list(self._read.values())

    @property
    def sizes(self) -> np.ndarray:
        """Rows of each agent, shape (agent,) of those held here or elsewhere; 1 where shards do not split."""
        return self._counts.rows

    @property
    def counted_rows(self) -> tuple[int, ...]:
        """Rows of each agent where they were counted before; empty where they were not, or shards do not split."""
        if "_counts" not in vars(self) or not self._counts.rowwise or len(self.sizes) != self.num_agents:
            return ()
        return tuple(int(rows) for rows in self.sizes)

    @property
    def splits(self) -> bool:
        """Whether the log likelihood is a sum over rows, so that minibatches exist."""
        return self._counts.rowwise and self._local is None

    @property
    def reads_in_chunks(self) -> bool:
        """Whether sums over rows read them in chunks, as memory does not hold what is here of them."""
        if self.is_held_elsewhere or not self.splits or self.quadratic:
            return False
        return is_large(self._read, int(self.sizes.max()))

    @property
    def extent(self) -> Extent:
        """What shards are filled up to."""
        counts = self._counts
        rows = int(counts.rows.max()) if counts.rowwise else None
        return Extent(rows, None if self._local is None else int(counts.groups.max()))

    @property
    def has_latents(self) -> bool:
        """Whether sites have latents of their own, which is known without data."""
        return self._latents is not None

    @property
    def latents(self) -> Latents | None:
        """The latents of a group, or None."""
        if self._latents is None or self._finely:
            return self._latents
        return self._latents.for_rows(int(self._counts.fewest.min()))

    @property
    def is_coarse(self) -> bool:
        """Whether latents could be integrated out by more nodes than they are."""
        return self.latents is not None and self._latents is not None and self.latents.nodes < self._latents.nodes

    def finely(self, nodes: int | None = None) -> Posterior:
        """The same posterior with a finer quadrature over the latents of groups.

        Parameters
        ----------
        nodes
            Nodes for each latent of a group, from 1 to 100. None: as many as small groups have.

        Raises
        ------
        ValueError
            `nodes` is out of its range, or the posterior has no latents that a quadrature integrates out.
        """
        # how many rows there are does not depend on it
        known = {"_counts": self._counts} if "_counts" in vars(self) else {}
        if nodes is None:
            return self._with(_finely=True, **known)
        if self._latents is None or self._latents.nodes == 0:
            raise ValueError("nodes goes with one or two latents a group, and this posterior has none or more of them")
        latents = self._latents.with_nodes(whole_number("nodes", nodes, 1, MOST_NODES))
        return self._with(_latents=latents, _finely=True, **known)

    @property
    def unconstrained_names(self) -> tuple[str, ...]:
        """A name for each of the `dim` numbers that methods move in; those of `names` where these are as many."""
        free = tuple((name, shape) for (name, _), shape in zip(self.variables, self.parameters.shapes, strict=True))
        return self.names if free == tuple(self.variables) else flat_names(free)

    @cached_property
    def potential(self) -> Potential:
        """The potential, to be evaluated with one agent's shard."""
        # counting also looks at the functions
        rowwise = self._counts.rowwise
        functions = (self._log_likelihood, self._log_prior, self.coordinates)
        return Potential(*functions, self.parameters, self.latents, self.num_agents, rowwise)

    def __repr__(self) -> str:
        kind = "Gaussian posterior" if self.quadratic else "Posterior"
        if "_counts" in vars(self):
            count = int(self.sizes.sum()) if self._counts.rowwise else sum(self.info.rows)
            rows = f", {counted(count, 'row')}" if count else ""
        else:
            # showing a posterior is no reason to read its data
            rows = ", data not read"
        return f"<{kind}: {counted(self.dim, 'parameter')}, {counted(self.num_agents, 'agent')}{rows}>"

    def _repr_html_(self) -> str:
        """What it is of, for notebooks; its data is not read for that."""
        rows = self.counted_rows or self.info.rows
        facts = [
            ("model", self.info.model),
            ("formula", self.info.formula),
            ("agents", f"{self.num_agents:,}"),
            ("rows", f"{sum(rows):,}" if rows else ""),
            ("parameters", f"{self.dim}: {', '.join(self.names[:20])}" + (", ..." if len(self.names) > 20 else "")),
            *((f"prior of {name}" if name else "", prior) for name, prior in self.info.priors[:20]),
        ]
        return f"<strong>Posterior</strong>{table(['', ''], [fact for fact in facts if fact[1]])}"

    def __getstate__(self) -> dict[str, Any]:
        # what was read or worked out from data stays in this process
        derived = {name for name in vars(self) if isinstance(getattr(type(self), name, None), cached_property)}
        kept = {name: value for name, value in vars(self).items() if name not in derived}
        return {**kept, "_checksums": {}}

    def _with(self, **changes: Any) -> Posterior:
        other = object.__new__(type(self))
        vars(other).update({**self.__getstate__(), "_checksums": self._checksums, **changes})
        return other

    def alone(self, *agents: int) -> Posterior:
        """The same posterior of N agents with the data of one or some of them, and nothing of the others'.

        Pickled, it carries arrays if its shards were given as arrays; a function or path stays unread.
        """
        if len(agents) == 0 or len(set(agents)) < len(agents):
            raise ValueError(f"agents must be one or more different numbers, found {list(agents)}")
        self._require(agents)
        return self._with(_sources={agent: self._sources[agent] for agent in agents})

    def with_shards(self, shards: Sequence[Source]) -> Posterior:
        """The same model of other data: one shard an agent, checked and read as at construction."""
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
        )
        return found._with(_latents=self._latents, _finely=True) if self._finely else found

    def reading(self, sources: Sequence[Source]) -> Posterior:
        """The same posterior whose shards are functions or files, one an agent, read where the data lies."""
        return self._with(_sources=dict(enumerate(sources)), _checksums={})

    def source(self, agent: int) -> Source:
        """What the shard of an agent was given as."""
        self._require([agent])
        return self._sources[agent]

    def with_data_at(self, owners: DataOwners) -> Posterior:
        """The same posterior without any data: `each` is answered by those who hold it."""
        return self._with(_sources={}, owners=owners)

    def transformed(self, coordinates: Coordinates) -> Posterior:
        """The same posterior as methods see it in other coordinates z.

        Potentials, derivatives, `init`, `mode` and `exact` are those of z. What a run or a law reports is mapped back,
        so that its positions are the user's x.
        """
        if self.coordinates is not None:
            raise ValueError("the posterior is in other coordinates already")
        if coordinates.origin.shape != (self.dim,):
            raise ValueError(f"the coordinates are of {coordinates.origin.size} parameters, not of {self.dim}")
        return self._with(coordinates=coordinates, init=coordinates.inverse(self.init))

    def in_parameters(self) -> Posterior:
        """The same posterior in the user's parameters x, of which totals are, whatever coordinates this one is in."""
        if self.coordinates is None:
            return self
        return self._with(coordinates=None, init=self._start)

    def require_unchanged(self) -> None:
        """Raise `ValueError` if arrays or files of shards have changed since this process read them.

        Raise `RuntimeError` in a fork of a process that had used JAX.
        """
        require_no_fork()
        get_ready()
        for agent, read_then in self._checksums.items():
            if agent in self._sources and checksum(self._sources[agent]) != read_then:
                raise ValueError(
                    f"the shard of agent {agent} was changed in place, or its file was written, after this posterior "
                    "had read it: make a new Posterior of the new rows, or change a copy"
                )

    def _require(self, agents: Sequence[int]) -> None:
        for agent in agents:
            if agent not in self._sources:
                held = f"that of agents {list(self.held)} only" if self.held else "none"
                raise DataError(f"the data of agent {agent} is not here: this posterior holds {held}")

    def unravel(self, x: Any) -> PyTree:
        """The parameters as the user's pytree at a flat position, shape (dim,)."""
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
            # the rows' numbers are asked for with latents as they start
            log_likelihood = with_latents(self._local, self._log_likelihood)
            check_local(self._local, self._params, shards[first])
        if is_rowwise(log_likelihood, self._params, shards[first]):
            counts = row_counts(shards)
            # ready models have checks of their own, and rows that do not
            if self._check is None:
                check_rows_alone(log_likelihood, self._params, shards[first], first)
            own = [] if self._local is None else [np.bincount(group) for group in self._groups]
            groups, fewest = (np.array([f(one) for one in own]) if own else none for f in (np.size, np.min))
            self._allow_both_widths(shards[first])
            return Counts(counts, groups, fewest, True)
        if self._local is not None:
            raise ValueError("with local, log_likelihood must return one number a row, found a scalar")
        check_one_shape(shards)
        self._allow_both_widths(shards[first])
        return Counts(np.ones(len(shards), dtype=np.int64), none, none, False)

    def _allow_both_widths(self, rows: PyTree) -> None:
        """Let functions of rows be traced in both float widths, whatever arrays they close over."""
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
        """The group of each row, of each agent held here."""
        assert self._local is not None
        return [groups_of(self._local, rows, agent) for agent, rows in self._read.items()]

    @cached_property
    def _padded(self) -> PyTree:
        return self._filled(self.extent.rows)

    def _filled(self, rows: int | None) -> PyTree:
        """Shards stacked and filled up to so many rows, which memory has to hold."""
        if rows is not None:
            require_memory_for(self._read, rows)
        return padded(self._read, rows)

    def _rows(self, extent: Extent | None = None) -> Shard:
        """The shards held here, without quadratic forms, as arrays of NumPy."""
        groups, extent = None, self.extent if extent is None else extent
        rows = self._padded if extent.rows == self.extent.rows else self._filled(extent.rows)
        if self._local is not None:
            assert extent.rows is not None and extent.groups is not None
            groups = padded_groups(self._groups, self.held, extent.rows, extent.groups)
        return Shard(rows, self.sizes.astype(np.int32), None, groups)

    def _pooled(self) -> Shard:
        """All shards on the device in the present float width; never kept, as widths change and traces end."""
        self._require(range(self.num_agents))
        return _on_device(self._rows())

    @cached_property
    def _coarse_column(self) -> str:
        return coarse_column(self._padded, np.float32)

    @cached_property
    def _quadratic_form(self) -> Quadratic:
        remedy = "leave quadratic=True out, which forms them, or take fewer parameters"
        require_matrices("quadratic forms of the agents", self.dim, len(self.held), remedy)
        x = self.init + np.random.default_rng(0).standard_normal(self.dim)
        with jax.enable_x64(True):
            asked = evaluate(quadratic_at, self.potential, self._rows(), (x,), (), _AGENTS_AT_ONCE)
            hessian, linear, found = map(np.asarray, asked)
        expected = np.einsum("nij,j->ni", hessian, x) - linear
        error = np.abs(found - expected).max(axis=1)
        allowed = 1e-6 * (1.0 + np.abs(expected).max(axis=1))
        # written so that NaN counts as a violation
        if not (error <= allowed).all():
            place = int(np.argmax(~(error <= allowed)))
            raise ValueError(
                f"quadratic=True, but the potential of agent {self.held[place]} is not quadratic: "
                f"its gradient is off by {error[place]:.3g}"
            )
        # near where the posterior has its mass, which an agent's own minimum need not be
        center = minimum(hessian.sum(axis=0), linear.sum(axis=0))
        if center is None:
            return Quadratic(hessian, linear)
        with jax.enable_x64(True):
            asked = evaluate(slope_at, self.potential, self._rows(), (center,), (), _AGENTS_AT_ONCE)
            level, slope = map(np.asarray, asked)
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
        """Agents' shards stacked on a leading agent axis, as device arrays of the present float width.

        Parameters
        ----------
        spectral
            Also the eigenvectors of Hessians, by which proximal steps are solved: of quadratic potentials, and of
            others at init, where parameters are not too many.
        agents
            Whose shards, in this order; None: those of all.
        extent
            What to fill up to, at least that of these shards; None: no more than that. Shards that do not split are
            left as they are.
        """
        agents = range(self.num_agents) if agents is None else agents
        self._require(agents)
        if self.held != tuple(agents):
            return self.alone(*agents).stacked(spectral=spectral, agents=agents, extent=extent)
        if extent is not None and extent.rows is not None and extent.rows < self.sizes.max():
            longest = int(self.sizes.argmax())
            raise ValueError(
                f"rows must be at least those of the longest shard, {self.sizes[longest]} of agent "
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

        What it returns is all that leaves the agent, so that it is better a number than a matrix. What is marked as a
        sum over rows (`of_rows`) is given some at a time where memory does not hold them.

        Parameters
        ----------
        function
            A function of a module, or a `functools.partial` of one, that JAX can trace; it runs in double precision.
        arguments
            Arrays that are the same for all agents.
        own
            Arrays with a leading agent axis; each agent is given its row.

        Returns
        -------
        pytree
            What the function returns, as arrays of NumPy with a leading agent axis: of all agents, or where this
            posterior is `alone`, of those it holds.
        """
        if self.owners is not None:
            if self.coordinates is not None:
                function, arguments = partial(moved, function), (self.coordinates, *arguments)
            return self.owners.each(function, arguments, own)
        if sums_rows(function) and self.reads_in_chunks:
            return self._each_in_chunks(function, arguments, own)
        shards = self._rows()._replace(quadratic=self._quadratic_form if self.quadratic else None)
        # derivatives of many parameters take memory: one agent after another
        at_once = None if self.dim > NEWTON_DIM else _AGENTS_AT_ONCE
        with jax.enable_x64(True):
            found = evaluate(function, self.potential, shards, arguments, tuple(own), at_once)
            return jax.tree.map(np.asarray, found)

    def _each_in_chunks(
        self, function: Callable[..., PyTree], arguments: tuple[Any, ...], own: tuple[Any, ...]
    ) -> PyTree:
        """`each` of a sum over rows, one agent after another."""

        def of(place: int, agent: int) -> PyTree:
            its = jax.tree.map(lambda leaf: leaf[place], own)
            return self.alone(agent).totals_here().each(function, *arguments, *its)

        with jax.enable_x64(True):
            found = [of(place, agent) for place, agent in enumerate(self.held)]
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *found)

    def require_agents_of(self, network: Network) -> None:
        """Raise `ValueError` unless a network has as many agents as this posterior has shards."""
        if network.num_agents != self.num_agents:
            raise ValueError(
                f"the network has {network.num_agents} agents but the posterior has {self.num_agents} shards"
            )

    def totals(self, network: Network, masks: bool = False, consensus: float | None = None) -> Totals:
        """Sums over all agents of functions of their data; only the sums leave the agents, over a network's tree.

        The function takes the `potential`, which is the same for all agents, the agent's `shard` (its data, padded, as
        `shard.rows`, of which the first `shard.size` count) and the arguments that it is called with.

        Where this posterior is `alone`, of those it holds.

        Parameters
        ----------
        network
            Who talks to whom.
        masks
            Whether each agent masks its numbers before they leave it, so that who passes them on sees noise; the sum
            itself is seen by all. Sums then miss the exact ones by at most num_agents * 2^-65 and by rounding to double
            precision, and raise `ArithmeticError` where an agent's numbers are NaN, infinite, or not below
            2^62 / num_agents in size. `docs/masks.md` says what this hides, and what not.
        consensus
            A precision, at most 1e-3: no tree is used, and agents average with their neighbours until every one has the
            sum to so much of num_agents times the largest number in size. What comes back is the first agent's.

        Raises
        ------
        ValueError
            The posterior is in other coordinates or the network of another size; with masks, there are fewer than 3
            agents, or this posterior does not hold all of them.
        ImportError
            With masks: `cryptography` is not installed.
        """
        if self.coordinates is not None:
            raise ValueError("totals are those of the user's parameters: give coordinates with each of them")
        self.require_agents_of(network)
        if masks:
            require_masks(self.num_agents)
        if consensus is not None:
            self._require_gossip(masks)
        if self.owners is not None:
            return self.owners.totals(network, masks=masks)
        here = self.totals_here()
        if consensus is not None:
            return ConsensusTotals(here, Averaging(network, consensus))
        if not masks:
            return here
        if self.held != tuple(range(self.num_agents)):
            raise ValueError(
                f"masks cancel in the sum over all {self.num_agents} agents, and this posterior holds the data of "
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
        """Raise `ValueError` where sums cannot be made by gossip."""
        if masks:
            raise ValueError("masks cancel in a sum up a tree and not in averages over neighbours: masks or consensus")
        if self.owners is not None or self.held != tuple(range(self.num_agents)):
            raise ValueError(
                "consensus is played by all agents in one process: this posterior's data lies elsewhere, where sums go "
                "over a tree"
            )

    def gradients(self, x: np.ndarray) -> np.ndarray:
        """Gradients of all potentials at one position, shape (agent, dim), in double precision."""
        return self.each(gradient_at, np.asarray(x, np.float64))

    def hessians(self, x: np.ndarray | None = None) -> np.ndarray:
        """Hessians of all potentials at one position (default: init), shape (agent, dim, dim), in double precision."""
        require_matrices("Hessians", self.dim, self.num_agents, "take fewer parameters, or methods without Hessians")
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
        """What to do where the potential is not finite at init; who brings NaN is named where the data is held here."""
        if not self.is_held_elsewhere:
            nan = np.isnan(self.each(value_at, self.init))
            # where it is that of all, init or the prior is at fault
            if nan.any() and not nan.all():
                agent = self.held[int(nan.argmax())]
                return f"that of agent {agent} is nan, whose rows may hold NaN; else give another init"
        return (
            "give another init, or write the density so that it is finite there: log_ndtr and logsumexp stay finite "
            "where the log of a cdf or of a difference is -inf"
        )

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
        self._require(range(self.num_agents))
        form = self._quadratic_form
        precision = form.hessian.sum(axis=0)
        # in units in which its diagonal is one: columns may be in any
        units = units_of(precision)
        scaled = precision * units[:, None] * units
        smallest = np.linalg.eigvalsh(scaled)[0]
        if not smallest > 1e-12 * np.abs(scaled).max():
            raise ValueError(
                "the posterior is improper: its precision, in units in which its diagonal is one, has the eigenvalue "
                f"{smallest:.3g}"
            )
        cov = np.linalg.inv(scaled) * units[:, None] * units
        mean = units * np.linalg.solve(scaled, units * form.linear.sum(axis=0))
        return Gaussian(mean, (cov + cov.T) / 2)

    def laplace(self) -> Posterior:
        """The Gaussian posterior whose local potentials are the second-order expansions at the pooled mode."""
        if self.quadratic:
            return self
        mode = self.mode()
        hessians = self.hessians(mode)
        linear = np.einsum("nij,j->ni", hessians, mode) - self.gradients(mode)
        shards = [{"hessian": h, "linear": b} for h, b in zip(hessians, linear, strict=True)]
        functions = Partial(quadratic_likelihood), Partial(flat_prior)
        return Posterior(*functions, shards, mode, names=self.unconstrained_names, quadratic=True)


def _on_device(shards: Shard) -> Shard:
    """The shards on the device, in the present float width.

    Narrowed here and not by JAX: an array of NumPy that was once put there in single precision and is then asked for in
    double has been seen to come back as it was.
    """
    kinds = {"f": jnp.result_type(float), "i": jnp.result_type(int)}

    def narrowed(leaf: Any) -> Any:
        array = np.asarray(leaf)
        wide = array.dtype.itemsize == 8 and array.dtype.kind in kinds
        return array.astype(kinds[array.dtype.kind]) if wide else array

    return jax.device_put(jax.tree.map(narrowed, shards))
