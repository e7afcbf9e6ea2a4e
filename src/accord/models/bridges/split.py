"""Models of other libraries, split into their prior, their rows, and the latents of each site."""

from __future__ import annotations

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
from .arguments import Arguments, Size, require_numbers, scattered


class MisfitError(DataError):
    """A model cannot be evaluated on data of some shape, and says so."""


class Latent(NamedTuple):
    """A latent: its support, where to start, and its axis of groups: None for what all sites share.

    Where groups have one each, the start is that of one group.
    """

    support: Any
    start: np.ndarray
    axis: int | None

    @classmethod
    def of(
        cls, name: str, support: Any, shape: tuple[int, ...], axis: int | None, in_rows: bool, axes: tuple[str, Any]
    ) -> Latent:
        """What a latent of a shape is, by where it lies in the axes of rows and of groups of these names."""
        rows, local = axes
        if axis is None and in_rows:
            raise ValueError(f"{name} is a latent of every row: it stays at its site with local={rows!r}")
        if in_rows and axis is not None and local != rows:
            raise ValueError(f"{name} is a latent of every row in {local!r}: one of the two can stay at its site")
        start = _middle(support, shape)
        return cls(support, start if axis is None else np.take(start, 0, axis=axis), axis)


class Densities(NamedTuple):
    """Log densities of all that a model samples, by name.

    Those of what it observes come with the axis of the rows, or None where it is not named.
    """

    latents: dict[str, Array]
    observed: dict[str, tuple[Array, int | None]]


class Program(Protocol):
    """A model, as it is split; two of the same model are equal.

    `latents` are its latents by name; `rows` and `local` name its axes of rows and of groups.
    """

    @property
    def axes(self) -> str:
        """What the model's library calls an axis that has a name."""
        ...

    @property
    def rows(self) -> str:
        """The name of the axis of rows."""
        ...

    @property
    def local(self) -> str | None:
        """The name of the axis of groups."""
        ...

    @property
    def latents(self) -> dict[str, Latent]:
        """Its latents by name."""
        ...

    def arguments(self, given: Mapping[str, Any], site: int) -> dict[str, Any]:
        """A site's arguments from what the user gives, or `ValueError`."""
        ...

    def size(self, arguments: Mapping[str, Any], site: int) -> Size:
        """Rows and groups of a site, or `ValueError` where the model cannot be split."""
        ...

    def densities(self, arguments: Mapping[str, Any], values: Mapping[str, Array]) -> Densities:
        """The log densities of all that it samples, given arguments and all latents."""
        ...


def examples(shards: Sequence[Source], example: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Shards that tell what a model is: all of them, or a made-up one where they are read elsewhere."""
    unread = any(map(is_unread, shards))
    if unread and example is None:
        raise ValueError("example must be given, a shard with made-up numbers, where shards are functions or files")
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
    """The posterior of a model whose data lies at several sites; `known` are its `examples`."""
    with jax.enable_x64(True):
        split = Split.of(program, known)
    unread = any(map(is_unread, shards))
    sources: list[Source] = []
    for site, own in enumerate(shards):
        stage("checking the parts of the model at each site")
        step(site, len(shards))
        sources.append(partial(split.read, site, own) if unread else split.shard(site, own))
    stage("the posterior")
    start = {name: latent.start for name, latent in program.latents.items()} | dict(init or {})
    for name in init or {}:
        if name not in program.latents:
            raise ValueError(f"init is of {name!r}, and the latents of the model are {sorted(program.latents)}")
    shared, own = split.names(local=False), split.names(local=True)
    if not shared:
        raise ValueError("the model has no parameter that sites have in common: there is nothing to agree on")
    effects = None
    if own:
        constraints = {name: program.latents[name].support for name in own}
        prior = Partial(Part(split, "log_local_prior"))
        effects = Local(prior, {name: start[name] for name in own}, split.group, constraints)
    return Posterior(
        Partial(Part(split, "log_likelihood" if own else "log_likelihood_of_rows")),
        Partial(Part(split, "log_prior")),
        sources,
        {name: start[name] for name in shared},
        constraints={name: program.latents[name].support for name in shared},
        local=effects,
    )


# How far from the middle, in unconstrained numbers, latents are moved to see which rows depend on them.
_RADII = (1.0, 4.0, 16.0, 64.0)
# Distances from the middle, in unconstrained numbers, at which values with a finite density are searched.
_SUPPORT_RADII = (1.0, 2.0, 4.0, 8.0)
# Values of all latents that are tried for a finite density.
_TRIES = 100


def _sets_size(program: Program, arguments: Mapping[str, Any], size: Size, leaf: int) -> bool:
    """Whether there are other rows or groups, or none that fit, where a leaf of a site's arguments is larger."""
    treedef: Any
    leaves, treedef = jax.tree.flatten(dict(arguments))
    leaves[leaf] = leaves[leaf] + 1
    try:
        return program.size(treedef.unflatten(leaves), 0) != size
    except Exception:  # whatever the user's model raises where lengths do not fit
        return True


@dataclass(frozen=True)
class Part:
    """A function of `Split`, by its name: those of equal models are equal, so that they share programs."""

    split: Split
    name: str

    def __call__(self, *arguments: Any) -> Array:
        """What the function returns."""
        found: Array = getattr(self.split, self.name)(*arguments)
        return found


@dataclass(frozen=True)
class Split:
    """A model's parts, as functions of rows; those of equal programs are equal.

    Parameters
    ----------
    program
        The model.
    made_of
        How its arguments are made of rows.
    """

    program: Program
    made_of: Arguments

    @classmethod
    def of(cls, program: Program, shards: Sequence[Mapping[str, Any]]) -> Split:
        """Look at every site's arguments, and see what they are made of."""
        given = [program.arguments(own, site) for site, own in enumerate(shards)]
        sizes = [program.size(own, site) for site, own in enumerate(given)]
        split = cls(program, Arguments.sorted(given, sizes, partial(_sets_size, program, given[0], sizes[0])))
        split._check_lengths()
        return split

    def __repr__(self) -> str:
        return f"Split({self.program})"

    def names(self, *, local: bool) -> list[str]:
        """Latents of sites, or those of all."""
        return [name for name, latent in self.program.latents.items() if (latent.axis is not None) == local]

    # --- the parts ---

    def log_prior(self, params: Mapping[str, Array]) -> Array:
        """The log density of the parameters that sites have in common."""
        found = self.program.densities(self.made_of.made_up(), {**params, **self._latents_of_one()})
        return self._sum(found, self.names(local=False))

    def log_local_prior(self, params: Mapping[str, Array], latents: PyTree, row: Mapping[str, Array]) -> Array:
        """The log density of one group's latents."""
        own = {name: jnp.expand_dims(latents[name], self._axis(name)) for name in latents}
        found = self.program.densities(self.made_of.of_one_group(row), {**params, **own})
        return self._sum(found, self.names(local=True))

    def log_likelihood_of_rows(self, params: Mapping[str, Array], rows: Mapping[str, Array]) -> Array:
        """One number a row, where there are no latents."""
        return self.log_likelihood(params, {}, rows)

    def log_likelihood(self, params: Mapping[str, Array], latents: PyTree, rows: Mapping[str, Array]) -> Array:
        """One number a row, given each row's latents."""
        size = len(jax.tree.leaves(rows)[0])
        whole = {name: jnp.moveaxis(scattered(latents[name], rows["group"]), 0, self._axis(name)) for name in latents}
        return self._of_rows(self.program.densities(self.made_of.of_rows(rows, size), {**params, **whole}), size)

    @staticmethod
    def group(rows: Mapping[str, Array]) -> Array:
        """The group of each row."""
        return rows["group"]

    # --- shards ---

    def read(self, site: int, source: Source) -> PyTree:
        """The shard of a site that is read where its data lies."""
        return self.shard(site, read(source, site))

    def shard(self, site: int, given: Mapping[str, Any]) -> PyTree:
        """A site's arguments as rows, once the parts have been seen to sum to the model's density."""
        with jax.enable_x64(True):
            require_numbers(given, f"shard {site}")
            arguments = self.program.arguments(given, site)
            size = self.program.size(arguments, site)
            self.made_of.require_finite(arguments, site)
            values = self._supported(site, arguments, size)
            group = self._groups(site, arguments, values, size) if self.names(local=True) else None
            found = self.made_of.rows(arguments, group)
            if not found:
                raise DataError("no argument of the model is of rows: there is nothing that a site could hold")
            self._check(site, arguments, values, found, size)
        return found

    def _drawn(self, seed: int, size: Size, radius: float = 1.0) -> dict[str, Array]:
        """Some value of every latent at a site, near the middle or not; priors without draws have such, too."""
        from numpyro.distributions import biject_to

        rng, found = np.random.default_rng(seed), {}
        for name, latent in self.program.latents.items():
            transform = biject_to(latent.support)
            shape = latent.start.shape if latent.axis is None else (size.groups, *latent.start.shape)
            value = transform(jnp.asarray(rng.uniform(-radius, radius, transform.inverse_shape(shape))))
            found[name] = value if latent.axis is None else jnp.moveaxis(value, 0, latent.axis)
        return found

    def _supported(self, site: int, arguments: Mapping[str, Any], size: Size) -> dict[str, Array]:
        """Values of every latent at which the model's density at a site is finite.

        Where none is found, the first values whose density is 0.

        Raises
        ------
        DataError
            The density is NaN at all values that were tried.
        """
        tried = [self._drawn(site, size)]
        tried += [self._drawn(site + 30_000 + k, size, r) for k, r in enumerate(np.resize(_SUPPORT_RADII, _TRIES))]
        seen = []
        for values in tried:
            seen.append(self._density(arguments, values))
            if np.isfinite(seen[-1]):
                return values
        # a density of 0 can be compared with a density of 0, and NaN with nothing
        if np.isnan(seen).all():
            middle = {name: np.asarray(latent.start).ravel()[:3] for name, latent in self.program.latents.items()}
            at = ", ".join(f"{name} = {' '.join(f'{v:.3g}' for v in value)}" for name, value in middle.items())
            raise DataError(
                f"at site {site} the model's log density is NaN at all {len(tried)} values of its parameters that were "
                f"tried, around {at}: a distribution of the model is not defined there, or its arithmetic overflows"
            )
        return tried[int(np.argmin(np.isnan(seen)))]

    def _density(self, arguments: Mapping[str, Any], values: Mapping[str, Array]) -> float:
        """The log density of all that a model samples."""
        found = self.program.densities(arguments, values)
        of_latents = self._sum(found, list(found.latents))
        return float(of_latents + sum(jnp.sum(terms) for terms, _ in found.observed.values()))

    def _groups(self, site: int, arguments: Mapping[str, Any], values: Mapping[str, Array], size: Size) -> np.ndarray:
        """The group of each row, found by moving the latents of some groups and seeing which rows' terms change."""
        axis, numbers = f"{self.program.axes} {self.program.local!r}", np.arange(size.groups)
        group, reacts = np.zeros(size.rows, np.int64), np.zeros(size.rows, bool)
        for probe, radius in enumerate(_RADII):
            # what a row does not react to near one value of its latent it may react to far from there
            values = values if probe == 0 else self._drawn(site + 20_000 + probe, size, radius)
            found, changed = self._probed(
                site, axis, arguments, values, self._drawn(site + 10_000 + probe, size, radius), size
            )
            disagree = np.flatnonzero(reacts & changed & (found != group))
            if disagree.size:
                raise DataError(
                    f"row {disagree[0]} of site {site} depends on several members of {axis}: latents that stay at a "
                    "site are of one group each"
                )
            group, reacts = np.where(changed, found, group), reacts | changed
        if not reacts.all():
            raise DataError(
                f"row {int(np.argmin(reacts))} of site {site} depends on no member of {axis}, wherever that was looked "
                "at: whose it is cannot be found out; leave such rows out, or keep the latents as parameters"
            )
        missing = np.setdiff1d(numbers, group)
        if missing.size:
            raise DataError(
                f"{axis} of site {site} has {size.groups} members, and no row depends on member {missing[0]}: a local "
                f"{self.program.axes} holds the site's own groups, numbered from 0, and no others"
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
        """The group of each row, and which rows changed at all, where latents are moved from some values to others."""

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
            # numbers that are none say nothing
            by_those, by_others = ((now != before) & ~np.isnan(now - before) for now in (terms(has), terms(~has)))
            both = np.flatnonzero(by_those & by_others)
            if both.size:
                raise DataError(
                    f"row {both[0]} of site {site} depends on several members of {axis}: latents that stay at a site "
                    "are of one group each"
                )
            group += by_those.astype(np.int64) << bit
            changed &= by_those | by_others
        return group, changed

    def _check(
        self, site: int, arguments: Mapping[str, Any], values: Mapping[str, Array], rows: PyTree, size: Size
    ) -> None:
        """Raise `ValueError` unless the parts sum to the model's own density at one position."""
        whole = self._density(arguments, values)
        params = {name: values[name] for name in self.names(local=False)}
        own = {name: jnp.moveaxis(values[name], self._axis(name), 0) for name in self.names(local=True)}
        of_row = jax.tree.map(lambda leaf: leaf[rows["group"]], own) if own else {}
        parts = float(self.log_prior(params)) + float(self.log_likelihood(params, of_row, rows).sum())
        if own:
            _, first = np.unique(rows["group"], return_index=True)
            of_group = jax.tree.map(lambda leaf: leaf[first], rows)
            parts += float(jax.vmap(partial(self.log_local_prior, params))(own, of_group).sum())
        # densities of 0 are equal, and their logs have no difference
        if parts != whole and not abs(parts - whole) <= 1e-6 * (1.0 + abs(whole)):
            raise DataError(
                f"at site {site} the parts of the model do not sum to its log density (they are off by "
                f"{abs(parts - whole) / (1.0 + abs(whole)):.2g} of it): its prior depends on data, or its rows on one "
                "another, or a number of its data is none"
            )

    def _check_lengths(self) -> None:
        """Raise `ValueError` where a number of rows is built into the model: for one row its densities have others."""
        params = {name: jnp.asarray(self.program.latents[name].start) for name in self.names(local=False)}
        made_up, values = self.made_of.made_up(), {**params, **self._latents_of_one()}

        def terms() -> dict[str, Array]:
            found = self.program.densities(made_up, values).observed
            return {name: own if axis is None else jnp.moveaxis(own, axis, 0) for name, (own, axis) in found.items()}

        try:
            size, found = self.program.size(made_up, 0), jax.eval_shape(terms)
        except MisfitError:
            raise
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"the model's prior fails on one row of made-up data, so that it is of data: {error}"
            ) from error
        if size.rows != 1 or size.groups > 1:
            raise ValueError(
                f"for one row of one group the model has {size.rows} rows and {size.groups} groups: numbers of them "
                "are built into it, which it must take from its data"
            )
        for name, own in found.items():
            if own.shape[:1] not in ((), (1,)):
                raise ValueError(
                    f"for one row the log density of {name} has shape {own.shape}: a number of rows is built into the "
                    "model, which must take it from its data"
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
        """The sum of all that is observed, for each row."""
        found = jnp.zeros(size)
        for name, (terms, named) in densities.observed.items():
            axis = 0 if named is None and terms.shape[:1] == (size,) else named
            if axis is None or terms.shape[axis : axis + 1] != (size,):
                raise DataError(
                    f"{name} is observed outside of {self.program.axes} {self.program.rows!r}, and its log density has "
                    f"shape {terms.shape}: one number for each of the {size} rows is needed"
                )
            found = found + jnp.moveaxis(terms, axis, 0).reshape(size, -1).sum(axis=1)
        return found


def _middle(support: Any, shape: tuple[int, ...]) -> np.ndarray:
    """The value whose unconstrained numbers are 0."""
    from numpyro.distributions import biject_to

    transform = biject_to(support)
    return np.asarray(transform(jnp.zeros(transform.inverse_shape(shape))))


def _along(moved: np.ndarray, axis: int, value: Array) -> np.ndarray:
    """Which groups, along the axis of an array of that shape."""
    shape = [1] * value.ndim
    shape[axis] = moved.size
    return np.broadcast_to(moved.reshape(shape), value.shape)
