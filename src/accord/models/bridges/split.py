"""Models of other libraries, split into prior, likelihood of rows, and latents of each site."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, PyTree

from ...base.errors import DataError
from ...base.progress import stage, step
from ...posterior import Local, Posterior
from ...posterior.shards import Source, is_unread, read
from .arguments import ArgumentLayout, Size, require_numbers, scattered


class MisfitError(DataError):
    """Raised if a model cannot be evaluated on data of the given shapes."""


class Latent(NamedTuple):
    """A latent: support, initial value, and axis of groups (None for a parameter that sites share).

    If it has an axis of groups, `start` is the initial value of one group.
    """

    support: Any
    start: np.ndarray
    axis: int | None

    @classmethod
    def of(
        cls, name: str, support: Any, shape: tuple[int, ...], axis: int | None, in_rows: bool, axes: tuple[str, Any]
    ) -> Latent:
        """A latent from its shape, its axis of groups, and the names of the axes (rows, local)."""
        rows, local = axes
        if axis is None and in_rows:
            raise ValueError(f"{name} has one latent for each row: set local={rows!r} to keep it at its site")
        if in_rows and axis is not None and local != rows:
            raise ValueError(f"{name} has one latent for each row within {local!r}: only one of these can be local")
        start = _middle(support, shape)
        return cls(support, start if axis is None else np.take(start, 0, axis=axis), axis)


class Densities(NamedTuple):
    """Log densities of latents and observed variables by name.

    Observed ones come as pairs (log density, axis of rows), with None for an axis without a name.
    """

    latents: dict[str, Array]
    observed: dict[str, tuple[Array, int | None]]


class Program(Protocol):
    """A model of another library. Programs of the same model are equal."""

    @property
    def axis_word(self) -> str:
        """The library's word for a named axis, for messages."""
        ...

    @property
    def rows(self) -> str:
        """The name of the axis of rows."""
        ...

    @property
    def local(self) -> str | None:
        """The name of the axis of groups, or None."""
        ...

    @property
    def latents(self) -> dict[str, Latent]:
        """The latents by name."""
        ...

    def arguments(self, given: Mapping[str, Any], site: int) -> dict[str, Any]:
        """The model's arguments at a site, from a shard of the user; `ValueError` if it does not match."""
        ...

    def size(self, arguments: Mapping[str, Any], site: int) -> Size:
        """The numbers of rows and groups of a site; `ValueError` if the model cannot be split."""
        ...

    def densities(self, arguments: Mapping[str, Any], values: Mapping[str, Array]) -> Densities:
        """The log densities of all variables, given arguments and all latents."""
        ...


def examples(shards: Sequence[Source], example: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Shards with the structure of the model's data: all shards, or `example` if agents read them."""
    unread = any(map(is_unread, shards))
    if unread and example is None:
        raise ValueError("shards that are functions or files need example, a shard with artificial numbers")
    found: list[Any] = [example] if unread else list(shards)
    if not found:
        raise ValueError("a posterior needs at least one shard, found none")
    for site, own in enumerate(found):
        if not isinstance(own, Mapping):
            raise ValueError(
                f"shard {site} must be a dict of the model's keyword arguments, found {type(own).__name__}"
            )
        require_numbers(own, f"shard {site}")
    return [dict(own) for own in found]


def posterior(
    program: Program, shards: Sequence[Source], known: Sequence[Mapping[str, Any]], init: Mapping[str, Any] | None
) -> Posterior:
    """The posterior of a model over sites; `known` is the result of `examples`."""
    with jax.enable_x64(True):
        split = Split.of(program, known)
    unread = any(map(is_unread, shards))
    sources: list[Source] = []
    for site, own in enumerate(shards):
        stage("checking the parts of the model at each site")
        step(site, len(shards))
        sources.append(partial(split.read, site, own) if unread else split.shard(site, own))
    stage("building the posterior")
    start = {name: latent.start for name, latent in program.latents.items()} | dict(init or {})
    for name in init or {}:
        if name not in program.latents:
            raise ValueError(f"init has {name!r}; the latents of the model are {sorted(program.latents)}")
    shared, own = split.names(local=False), split.names(local=True)
    if not shared:
        raise ValueError("the model has no parameter that sites share: at least one latent must be outside of local")
    effects = None
    if own:
        constraints = {name: program.latents[name].support for name in own}
        prior = Partial(SplitMethod(split, "log_local_prior"))
        effects = Local(prior, {name: start[name] for name in own}, split.group, constraints)
    return Posterior(
        Partial(SplitMethod(split, "log_likelihood" if own else "log_likelihood_of_rows")),
        Partial(SplitMethod(split, "log_prior")),
        sources,
        {name: start[name] for name in shared},
        constraints={name: program.latents[name].support for name in shared},
        local=effects,
        hierarchy=Partial(hierarchy) if (hierarchy := Hierarchy.of(split)).names else None,
    )


# Half-widths, in unconstrained space, of random latents that test which rows depend on which group.
_RADII = (1.0, 4.0, 16.0, 64.0)
# Half-widths, in unconstrained space, of random latents in the search for a finite density.
_SUPPORT_RADII = (1.0, 2.0, 4.0, 8.0)
# Number of random latents in this search.
_TRIES = 100


def _sets_size(program: Program, arguments: Mapping[str, Any], size: Size, leaf: int) -> bool:
    """Whether a leaf of the arguments sets the number of rows or groups: increasing it by 1 changes `size` or fails."""
    treedef: Any
    leaves, treedef = jax.tree.flatten(dict(arguments))
    leaves[leaf] = leaves[leaf] + 1
    try:
        return program.size(treedef.unflatten(leaves), 0) != size
    except Exception:  # user models raise any error for lengths that do not match
        return True


@dataclass(frozen=True)
class SplitMethod:
    """A method of `Split` as a callable. Methods of equal models are equal, so that they share compiled programs."""

    split: Split
    name: str

    def __call__(self, *arguments: Any) -> Array:
        """Call the method."""
        found: Array = getattr(self.split, self.name)(*arguments)
        return found


@dataclass(frozen=True)
class Hierarchy:
    """Locations and scales of effects: shared latents whose prior is normal given other latents.

    Parameters
    ----------
    split
        The parts of the model.
    names
        The effects.
    """

    split: Split
    names: tuple[str, ...]

    @classmethod
    def of(cls, split: Split) -> Hierarchy:
        """Find the effects of a model, from its prior at random latents."""
        from numpyro.distributions import constraints

        names = split.names(local=False)
        real = [name for name in names if split.program.latents[name].support is constraints.real]
        with jax.enable_x64(True), warnings.catch_warnings():
            # about the made-up row
            warnings.simplefilter("ignore")
            one, other = ({k: split._drawn(seed, Size(1, 1))[k] for k in names} for seed in (0, 1))
            every = cls(split, tuple(real))
            shapes = jax.eval_shape(lambda own: {name: every._terms(name, own, own[name]) for name in real}, one)
            # one term for each number
            every = cls(split, tuple(name for name in real if shapes[name].shape == one[name].shape))
            prior = jax.jit(every._at)
            here, elsewhere, changed = prior(one, 0.0), prior(one, 1.0), prior(other, 0.0)
        # normal, with a location or scale that depends on other latents
        found = [k for k in every.names if _alike(here[k], elsewhere[k]) and not _alike(here[k], changed[k])]
        return cls(split, tuple(found))

    def __call__(self, params: Mapping[str, Array]) -> dict[str, tuple[Array, Array]]:
        """Location and scale of the prior of each effect."""
        return self._at(params, 0.0)

    def _at(self, params: Mapping[str, Array], at: Any) -> dict[str, tuple[Array, Array]]:
        """The same, from the derivatives of each prior's log density at a value, as if the prior were normal."""
        return {name: self._prior(name, params, at) for name in self.names}

    def _prior(self, name: str, params: Mapping[str, Array], at: Any) -> tuple[Array, Array]:
        x = jnp.full_like(params[name], at)
        slopes = jax.grad(lambda own: jnp.sum(self._terms(name, params, own)))
        slope, curvature = jax.jvp(slopes, (x,), (jnp.ones_like(x),))
        return x - slope / curvature, (-curvature) ** -0.5

    def _terms(self, name: str, params: Mapping[str, Array], own: Array) -> Array:
        """The log densities of a latent's prior at its own values."""
        split = self.split
        values = {**params, **split._latents_of_one(), name: own}
        return split.program.densities(split.layout.dummy(), values).latents[name]


def _alike(one: tuple[Array, Array], other: tuple[Array, Array]) -> bool:
    return all(np.allclose(a, b, rtol=1e-6, atol=1e-9) for a, b in zip(one, other, strict=True))


@dataclass(frozen=True)
class Split:
    """The parts of a model as functions of rows. Splits of equal programs are equal.

    Parameters
    ----------
    program
        The model.
    layout
        The kinds of its arguments.
    """

    program: Program
    layout: ArgumentLayout

    @classmethod
    def of(cls, program: Program, shards: Sequence[Mapping[str, Any]]) -> Split:
        """Infer the layout of the arguments from the shards of all sites."""
        given = [program.arguments(own, site) for site, own in enumerate(shards)]
        sizes = [program.size(own, site) for site, own in enumerate(given)]
        split = cls(program, ArgumentLayout.infer(given, sizes, partial(_sets_size, program, given[0], sizes[0])))
        split._check_lengths()
        return split

    def __repr__(self) -> str:
        return f"Split({self.program})"

    def names(self, *, local: bool) -> list[str]:
        """Names of the local or of the shared latents."""
        return [name for name, latent in self.program.latents.items() if (latent.axis is not None) == local]

    # --- the parts ---

    def log_prior(self, params: Mapping[str, Array]) -> Array:
        """The log prior of the shared parameters."""
        found = self.program.densities(self.layout.dummy(), {**params, **self._latents_of_one()})
        return self._sum(found, self.names(local=False))

    def log_local_prior(self, params: Mapping[str, Array], latents: PyTree, row: Mapping[str, Array]) -> Array:
        """The log prior of the latents of one group."""
        own = {name: jnp.expand_dims(latents[name], self._axis(name)) for name in latents}
        found = self.program.densities(self.layout.of_one_group(row), {**params, **own})
        return self._sum(found, self.names(local=True))

    def log_likelihood_of_rows(self, params: Mapping[str, Array], rows: Mapping[str, Array]) -> Array:
        """The log likelihood of each row, for models without local latents."""
        return self.log_likelihood(params, {}, rows)

    def log_likelihood(self, params: Mapping[str, Array], latents: PyTree, rows: Mapping[str, Array]) -> Array:
        """The log likelihood of each row, given the latents of its group."""
        size = len(jax.tree.leaves(rows)[0])
        whole = {name: jnp.moveaxis(scattered(latents[name], rows["group"]), 0, self._axis(name)) for name in latents}
        return self._of_rows(self.program.densities(self.layout.of_rows(rows, size), {**params, **whole}), size)

    @staticmethod
    def group(rows: Mapping[str, Array]) -> Array:
        """The group of each row."""
        return rows["group"]

    # --- shards ---

    def read(self, site: int, source: Source) -> PyTree:
        """Read a source at the agent and convert it to a shard."""
        return self.shard(site, read(source, site))

    def shard(self, site: int, given: Mapping[str, Any]) -> PyTree:
        """The shard of a site from its arguments, after a check that the parts sum to the model's log density."""
        with jax.enable_x64(True):
            require_numbers(given, f"shard {site}")
            arguments = self.program.arguments(given, site)
            size = self.program.size(arguments, site)
            self.layout.require_finite(arguments, site)
            values = self._supported(site, arguments, size)
            group = self._groups(site, arguments, values, size) if self.names(local=True) else None
            found = self.layout.rows(arguments, group)
            if not found:
                raise DataError("no argument of the model has an axis of rows or groups, so sites have no data")
            self._check(site, arguments, values, found, size)
        return found

    def _drawn(self, seed: int, size: Size, radius: float = 1.0) -> dict[str, Array]:
        """Random values of all latents at a site, uniform in (-radius, radius) in unconstrained space."""
        from numpyro.distributions import biject_to

        rng, found = np.random.default_rng(seed), {}
        for name, latent in self.program.latents.items():
            transform = biject_to(latent.support)
            shape = latent.start.shape if latent.axis is None else (size.groups, *latent.start.shape)
            value = transform(jnp.asarray(rng.uniform(-radius, radius, transform.inverse_shape(shape))))
            found[name] = value if latent.axis is None else jnp.moveaxis(value, 0, latent.axis)
        return found

    def _supported(self, site: int, arguments: Mapping[str, Any], size: Size) -> dict[str, Array]:
        """Values of all latents with a finite log density at a site, or else the first ones with density 0.

        Raises
        ------
        DataError
            The density is NaN at all tested values.
        """
        tried = [self._drawn(site, size)]
        tried += [self._drawn(site + 30_000 + k, size, r) for k, r in enumerate(np.resize(_SUPPORT_RADII, _TRIES))]
        seen = []
        for values in tried:
            seen.append(self._density(arguments, values))
            if np.isfinite(seen[-1]):
                return values
        # densities of 0 can be compared, NaN cannot
        if np.isnan(seen).all():
            middle = {name: np.asarray(latent.start).ravel()[:3] for name, latent in self.program.latents.items()}
            at = ", ".join(f"{name} = {' '.join(f'{v:.3g}' for v in value)}" for name, value in middle.items())
            raise DataError(
                f"at site {site} the model's log density is NaN at all {len(tried)} tested values of its parameters, "
                f"around {at}: a distribution of the model is not defined there, or its arithmetic overflows"
            )
        return tried[int(np.argmin(np.isnan(seen)))]

    def _density(self, arguments: Mapping[str, Any], values: Mapping[str, Array]) -> float:
        """The joint log density of all variables of the model."""
        found = self.program.densities(arguments, values)
        of_latents = self._sum(found, list(found.latents))
        return float(of_latents + sum(jnp.sum(terms) for terms, _ in found.observed.values()))

    def _groups(self, site: int, arguments: Mapping[str, Any], values: Mapping[str, Array], size: Size) -> np.ndarray:
        """The group of each row, from the terms that change when the latents of some groups change."""
        axis, numbers = f"{self.program.axis_word} {self.program.local!r}", np.arange(size.groups)
        group, reacts = np.zeros(size.rows, np.int64), np.zeros(size.rows, bool)
        for probe, radius in enumerate(_RADII):
            # a row may react to its latent at some values only
            values = values if probe == 0 else self._drawn(site + 20_000 + probe, size, radius)
            found, changed = self._probed(
                site, axis, arguments, values, self._drawn(site + 10_000 + probe, size, radius), size
            )
            disagree = np.flatnonzero(reacts & changed & (found != group))
            if disagree.size:
                raise DataError(
                    f"row {disagree[0]} of site {site} depends on several members of {axis}: each row must depend on "
                    "exactly one"
                )
            group, reacts = np.where(changed, found, group), reacts | changed
        if not reacts.all():
            raise DataError(
                f"row {int(np.argmin(reacts))} of site {site} depends on no member of {axis} at any tested value, so "
                "its group is unknown: remove such rows, or keep the latents as parameters"
            )
        missing = np.setdiff1d(numbers, group)
        if missing.size:
            raise DataError(
                f"{axis} of site {site} has {size.groups} members, and no row depends on member {missing[0]}: a local "
                f"{self.program.axis_word} must have exactly the groups of the site, numbered from 0"
            )
        return group

    def _probed(
        self,
        site: int,
        axis: str,
        arguments: Mapping[str, Any],
        values: Mapping[str, Array],
        other: Mapping[str, Array],
        size: Size,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The group of each row, and a mask of rows that changed, from latents that change from `values` to `other`."""

        def terms(moved: np.ndarray) -> np.ndarray:
            own = {
                name: jnp.where(_along(moved, self._axis(name), values[name]), other[name], values[name])
                for name in self.names(local=True)
            }
            return np.asarray(self._of_rows(self.program.densities(arguments, {**values, **own}), size.rows))

        before, numbers = terms(np.zeros(size.groups, bool)), np.arange(size.groups)
        group, changed = np.zeros(size.rows, np.int64), np.ones(size.rows, bool)
        for bit in range(max(1, int(size.groups - 1).bit_length())):
            has = (numbers >> bit) % 2 == 1
            # NaN carries no information
            with np.errstate(invalid="ignore"):
                by_those, by_others = ((now != before) & ~np.isnan(now - before) for now in (terms(has), terms(~has)))
            both = np.flatnonzero(by_those & by_others)
            if both.size:
                raise DataError(
                    f"row {both[0]} of site {site} depends on several members of {axis}: each row must depend on "
                    "exactly one"
                )
            group += by_those.astype(np.int64) << bit
            changed &= by_those | by_others
        return group, changed

    def _check(
        self, site: int, arguments: Mapping[str, Any], values: Mapping[str, Array], rows: PyTree, size: Size
    ) -> None:
        """Raise `ValueError` unless the parts sum to the log density of the model at `values`."""
        whole = self._density(arguments, values)
        params = {name: values[name] for name in self.names(local=False)}
        own = {name: jnp.moveaxis(values[name], self._axis(name), 0) for name in self.names(local=True)}
        of_row = jax.tree.map(lambda leaf: leaf[rows["group"]], own) if own else {}
        parts = float(self.log_prior(params)) + float(self.log_likelihood(params, of_row, rows).sum())
        if own:
            _, first = np.unique(rows["group"], return_index=True)
            of_group = jax.tree.map(lambda leaf: leaf[first], rows)
            parts += float(jax.vmap(partial(self.log_local_prior, params))(own, of_group).sum())
        # equal infinities have the difference NaN
        if parts != whole and not abs(parts - whole) <= 1e-6 * (1.0 + abs(whole)):
            raise DataError(
                f"at site {site} the parts of the model do not sum to its log density (relative difference "
                f"{abs(parts - whole) / (1.0 + abs(whole)):.2g}): its prior depends on data, its rows depend on one "
                "another, or a term is NaN"
            )

    def _check_lengths(self) -> None:
        """Raise `ValueError` for hard-coded numbers of rows or groups, which show on dummy data of one row."""
        params = {name: jnp.asarray(self.program.latents[name].start) for name in self.names(local=False)}
        dummy, values = self.layout.dummy(), {**params, **self._latents_of_one()}

        def terms() -> dict[str, Array]:
            found = self.program.densities(dummy, values).observed
            return {name: own if axis is None else jnp.moveaxis(own, axis, 0) for name, (own, axis) in found.items()}

        try:
            size, found = self.program.size(dummy, 0), jax.eval_shape(terms)
        except MisfitError:
            raise
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"the model fails on one row of artificial data, so its prior depends on data: {error}"
            ) from error
        if size.rows != 1 or size.groups > 1:
            raise ValueError(
                f"on data of one row and one group the model has {size.rows} rows and {size.groups} groups: compute "
                "these numbers from the data instead of hard-coding them"
            )
        for name, own in found.items():
            if own.shape[:1] not in ((), (1,)):
                raise ValueError(
                    f"on data of one row the log density of {name} has shape {own.shape}: compute the number of rows "
                    "from the data instead of hard-coding it"
                )

    # --- one run of the model ---

    def _latents_of_one(self) -> dict[str, Array]:
        return {
            name: jnp.expand_dims(self.program.latents[name].start, self._axis(name)) for name in self.names(local=True)
        }

    def _axis(self, name: str) -> int:
        axis = self.program.latents[name].axis
        assert axis is not None
        return axis

    @staticmethod
    def _sum(found: Densities, names: Sequence[str]) -> Array:
        return sum((jnp.sum(found.latents[name]) for name in names), jnp.zeros(()))

    def _of_rows(self, densities: Densities, size: int) -> Array:
        """The sum of all observed terms, for each row."""
        found = jnp.zeros(size)
        for name, (terms, named) in densities.observed.items():
            axis = 0 if named is None and terms.shape[:1] == (size,) else named
            if axis is None or terms.shape[axis : axis + 1] != (size,):
                raise DataError(
                    f"{name} is observed outside of {self.program.axis_word} {self.program.rows!r}, and its log "
                    f"density has shape {terms.shape}: one number for each of the {size} rows is needed"
                )
            found = found + jnp.moveaxis(terms, axis, 0).reshape(size, -1).sum(axis=1)
        return found


def _middle(support: Any, shape: tuple[int, ...]) -> np.ndarray:
    """The value at 0 in unconstrained space."""
    from numpyro.distributions import biject_to

    transform = biject_to(support)
    return np.asarray(transform(jnp.zeros(transform.inverse_shape(shape))))


def _along(moved: np.ndarray, axis: int, value: Array) -> np.ndarray:
    """A mask of groups, broadcast along an axis to the shape of an array."""
    shape = [1] * value.ndim
    shape[axis] = moved.size
    return np.broadcast_to(moved.reshape(shape), value.shape)
