"""`accord.from_numpyro`: a NumPyro model, split into its prior, its rows, and the latents of each site."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, PyTree

from ..posterior import Local, Posterior
from ..posterior.shards import Source, is_unread, read
from .arguments import Arguments, Size, scattered

Model = Callable[..., Any]


class Latent(NamedTuple):
    """A latent site: its support, where to start, and the axis of the plate of groups: None for what all sites share.

    Where groups have one each, the start is that of one group.
    """

    support: Any
    start: np.ndarray
    axis: int | None


def from_numpyro(
    model: Model,
    shards: Sequence[Source],
    rows: str = "rows",
    local: str | None = None,
    *,
    init: Mapping[str, Any] | None = None,
    example: Mapping[str, Any] | None = None,
) -> Posterior:
    """The posterior of a NumPyro model whose data lies at several sites.

    The model is run once for every site, on its own data. What it samples outside of plates of rows and groups are
    parameters of all sites, with NumPyro's transforms; what it observes are terms of rows, one after another; what it
    samples in the plate `local` belongs to the site or to groups of its rows, is integrated out there and never leaves
    it, see `accord.Local`. The parts of every site are checked against the model's own density.

    Parameters
    ----------
    model
        A function of keyword arguments. Discrete latents, subsampled plates, `numpyro.param` and supports that depend
        on other parameters are refused; deterministic sites are left out.
    shards
        Keyword arguments of the model, one dict a site; or functions or paths that are read as one where the data lies,
        as `Posterior` has them. An array whose first axis is that of the rows, or of the site's groups, is the site's
        own; numbers that count these are found out; all else must be the same at every site.
    rows
        The plate of the rows. Without one, the first axis of what is observed is that of the rows.
    local
        The plate of the latents that stay at their site: its members are the site's own groups, or just one. Each row
        may depend on one of them; which it is, is found out.
    init
        Where to start, by the name of a latent, in the model's scale; None: where unconstrained numbers are 0.
    example
        A shard with made-up numbers, which tells what arguments are, where shards are read elsewhere.

    Raises
    ------
    ValueError
        The model does not split so, or its parts do not sum to its density at some site; what is wrong is named.
    ImportError
        NumPyro is not installed.
    """
    unread = any(map(is_unread, shards))
    if unread and example is None:
        raise ValueError("example must be given, a shard with made-up numbers, where shards are functions or files")
    examples: list[Any] = [example] if unread else list(shards)
    if not examples:
        raise ValueError("a posterior needs at least one shard, found none")
    for site, own in enumerate(examples):
        if not isinstance(own, Mapping):
            raise ValueError(
                f"shard {site} must be a dict of the model's keyword arguments, found {type(own).__name__}"
            )
    with jax.enable_x64(True):
        split = Split.of(model, [dict(own) for own in examples], rows, local)
    sources = [partial(split.read, site, own) if unread else split.shard(site, own) for site, own in enumerate(shards)]
    start = {name: latent.start for name, latent in split.latents.items()} | dict(init or {})
    for name in init or {}:
        if name not in split.latents:
            raise ValueError(f"init is of {name!r}, and the latents of the model are {sorted(split.latents)}")
    shared, own = split.names(local=False), split.names(local=True)
    if not shared:
        raise ValueError("the model has no parameter that sites have in common: there is nothing to agree on")
    effects = None
    if own:
        constraints = {name: split.latents[name].support for name in own}
        prior = Partial(split.log_local_prior)
        effects = Local(prior, {name: start[name] for name in own}, split.group, constraints)
    return Posterior(
        Partial(split.log_likelihood if own else split.log_likelihood_of_rows),
        Partial(split.log_prior),
        sources,
        {name: start[name] for name in shared},
        constraints={name: split.latents[name].support for name in shared},
        local=effects,
    )


@dataclass(frozen=True, eq=False)
class Split:
    """A model's parts, as functions of rows.

    Parameters
    ----------
    model
        The model.
    rows, local
        Names of its plates of rows and of groups.
    arguments
        How its arguments are made of rows.
    latents
        Its latent sites by name.
    """

    model: Model
    rows: str
    local: str | None
    arguments: Arguments
    latents: dict[str, Latent]

    @classmethod
    def of(cls, model: Model, shards: Sequence[Mapping[str, Any]], rows: str, local: str | None) -> Split:
        """Run the model on every site's data, and see what it is made of."""
        traces = [_trace(model, own, seed=0) for own in shards]
        sizes = [_size(trace, rows, local, site) for site, trace in enumerate(traces)]
        latents = {name: _latent(site, rows, local) for name, site in _sampled(traces[0], observed=False).items()}
        again = {
            name: _latent(site, rows, local) for name, site in _sampled(_trace(model, shards[0], 1), False).items()
        }
        for name, latent in latents.items():
            if name not in again or str(again[name].support) != str(latent.support):
                raise ValueError(f"the support of {name} depends on other latents; give it one of fixed bounds")
        return cls(model, rows, local, Arguments.sorted(shards, sizes), latents)

    def __repr__(self) -> str:
        return f"Split({getattr(self.model, '__qualname__', type(self.model).__qualname__)})"

    def names(self, *, local: bool) -> list[str]:
        """Latents of sites, or those of all."""
        return [name for name, latent in self.latents.items() if (latent.axis is not None) == local]

    # --- the parts ---

    def log_prior(self, params: Mapping[str, Array]) -> Array:
        """The log density of the parameters that sites have in common."""
        trace = self._traced(params, self._latents_of_one(), self.arguments.made_up())
        return self._sum(trace, self.names(local=False))

    def log_local_prior(self, params: Mapping[str, Array], latents: PyTree, row: Mapping[str, Array]) -> Array:
        """The log density of one group's latents."""
        own = {name: jnp.expand_dims(latents[name], self._axis(name)) for name in latents}
        return self._sum(self._traced(params, own, self.arguments.of_one_group(row)), self.names(local=True))

    def log_likelihood_of_rows(self, params: Mapping[str, Array], rows: Mapping[str, Array]) -> Array:
        """One number a row, where there are no latents."""
        return self.log_likelihood(params, {}, rows)

    def log_likelihood(self, params: Mapping[str, Array], latents: PyTree, rows: Mapping[str, Array]) -> Array:
        """One number a row, given each row's latents."""
        size = len(jax.tree.leaves(rows)[0])
        whole = {name: jnp.moveaxis(scattered(latents[name], rows["group"]), 0, self._axis(name)) for name in latents}
        return self._of_rows(self._traced(params, whole, self.arguments.of_rows(rows, size)), size)

    @staticmethod
    def group(rows: Mapping[str, Array]) -> Array:
        """The group of each row."""
        return rows["group"]

    # --- shards ---

    def read(self, site: int, source: Source) -> PyTree:
        """The shard of a site that is read where its data lies."""
        return self.shard(site, read(source, site))

    def shard(self, site: int, arguments: Mapping[str, Any]) -> PyTree:
        """A site's arguments as rows, once the parts have been seen to sum to the model's density."""
        with jax.enable_x64(True):
            trace = _trace(self.model, arguments, seed=site + 2)
            size = _size(trace, self.rows, self.local, site)
            params = {name: trace[name]["value"] for name in self.names(local=False)}
            latents = {name: trace[name]["value"] for name in self.names(local=True)}
            group = self._groups(site, arguments, params, latents, size) if latents else None
            found = self.arguments.rows(arguments, group)
            if not found:
                raise ValueError("no argument of the model is of rows: there is nothing that a site could hold")
            self._check(site, trace, params, latents, found, size)
        return found

    def _groups(
        self, site: int, arguments: Mapping[str, Any], params: PyTree, latents: PyTree, size: Size
    ) -> np.ndarray:
        """The group of each row, found by moving the latents of some groups and seeing which rows' terms change."""

        def terms(moved: np.ndarray) -> np.ndarray:
            # groups keep their latents, or have those of another draw
            own = {
                name: jnp.where(_along(moved, self._axis(name), value), other[name], value)
                for name, value in latents.items()
            }
            return np.asarray(self._of_rows(self._traced(params, own, arguments), size.rows))

        again = _trace(self.model, arguments, seed=site + 10_002)
        other = {name: again[name]["value"] for name in latents}
        before, numbers = terms(np.zeros(size.groups, bool)), np.arange(size.groups)
        group = np.zeros(size.rows, np.int64)
        for bit in range(max(1, int(size.groups - 1).bit_length())):
            has = (numbers >> bit) % 2 == 1
            by_those, by_others = terms(has) != before, terms(~has) != before
            both = np.flatnonzero(by_those & by_others)
            if both.size:
                raise ValueError(
                    f"row {both[0]} of site {site} depends on several members of plate {self.local!r}: latents that "
                    "stay at a site are of one group each"
                )
            group += by_those.astype(np.int64) << bit
        missing = np.setdiff1d(numbers, group)
        if missing.size:
            raise ValueError(
                f"plate {self.local!r} of site {site} has {size.groups} members, and no row depends on member "
                f"{missing[0]}: a local plate holds the site's own groups, numbered from 0, and no others"
            )
        return group

    def _check(self, site: int, trace: Any, params: PyTree, latents: PyTree, rows: PyTree, size: Size) -> None:
        """Raise `ValueError` unless the parts sum to the model's own density at one position."""
        whole = float(sum(jnp.sum(_log_prob(one)) for one in _sampled(trace).values()))
        own = {name: jnp.moveaxis(value, self._axis(name), 0) for name, value in latents.items()}
        of_row = jax.tree.map(lambda leaf: leaf[rows["group"]], own) if own else {}
        try:
            prior = float(self.log_prior(params))
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"the model's prior fails on one row of made-up data, so that it is of data: {error}"
            ) from error
        parts = prior + float(self.log_likelihood(params, of_row, rows).sum())
        if own:
            first = np.unique(rows["group"], return_index=True)[1]
            row = jax.tree.map(lambda leaf: leaf[first], rows)
            parts += float(jax.vmap(self.log_local_prior, (None, 0, 0))(params, own, row).sum())
        if not abs(parts - whole) <= 1e-6 * (1.0 + abs(whole)):
            raise ValueError(
                f"at site {site} the parts of the model sum to {parts:.9g}, and its log density is {whole:.9g}: its "
                "prior depends on data, or its rows on one another"
            )

    # --- one run of the model ---

    def _traced(self, params: Mapping[str, Array], latents: Mapping[str, Array], arguments: Mapping[str, Any]) -> Any:
        return _trace(self.model, arguments, 0, {**params, **latents})

    def _latents_of_one(self) -> dict[str, Array]:
        names = self.names(local=True)
        return {name: jnp.expand_dims(self.latents[name].start, self._axis(name)) for name in names}

    def _axis(self, name: str) -> int:
        axis = self.latents[name].axis
        assert axis is not None
        return axis

    @staticmethod
    def _sum(trace: Any, names: Sequence[str]) -> Array:
        return sum((jnp.sum(_log_prob(trace[name])) for name in names), jnp.zeros(()))

    def _of_rows(self, trace: Any, size: int) -> Array:
        """The sum of all that is observed, for each row."""
        found = jnp.zeros(size)
        for name, site in _sampled(trace, observed=True).items():
            terms = jnp.asarray(_log_prob(site))
            axis = _axis_of(site, self.rows, terms.ndim)
            axis = 0 if axis is None and terms.shape[:1] == (size,) else axis
            if axis is None:
                raise ValueError(
                    f"{name} is observed outside of plate {self.rows!r}, and its log density has shape {terms.shape}: "
                    f"one number for each of the {size} rows is needed"
                )
            found = found + jnp.moveaxis(terms, axis, 0).reshape(size, -1).sum(axis=1)
        return found


def _trace(model: Model, arguments: Mapping[str, Any], seed: int, latents: Mapping[str, Any] | None = None) -> Any:
    """A run of the model with some latents, all of them, or None: some where densities are finite."""
    try:
        from numpyro import handlers
    except ImportError as error:
        raise ImportError("from_numpyro needs NumPyro: pip install 'accord[models]'") from error
    from numpyro.infer import init_to_uniform

    # priors that cannot be drawn from have such, too
    given = {"substitute_fn": init_to_uniform(radius=1.0)} if latents is None else {"data": latents}
    seeded = handlers.seed(model, jax.random.PRNGKey(seed))
    return handlers.trace(handlers.substitute(seeded, **given)).get_trace(**arguments)


def _sampled(trace: Any, observed: bool | None = None) -> dict[str, Any]:
    """The sample sites of a trace: those that are observed, those that are not, or all."""
    return {
        name: site
        for name, site in trace.items()
        if site["type"] == "sample" and (observed is None or site["is_observed"] == observed)
    }


def _log_prob(site: Any) -> Array:
    """The log density of a site, shape of its plates and batch, scaled as handlers say."""
    args = (site["intermediates"],) if site["intermediates"] else ()
    found = site["fn"].log_prob(site["value"], *args)
    return found if site["scale"] is None else site["scale"] * found


def _axis_of(site: Any, plate: str | None, ndim: int) -> int | None:
    """The axis of a plate in an array of so many axes that are the site's batch; None: it is not in that plate."""
    for frame in site["cond_indep_stack"]:
        if frame.name == plate:
            return ndim + int(frame.dim)
    return None


def _along(moved: np.ndarray, axis: int, value: Array) -> np.ndarray:
    """Which groups, along the axis of an array of that shape."""
    shape = [1] * value.ndim
    shape[axis] = moved.size
    return np.broadcast_to(moved.reshape(shape), value.shape)


def _size(trace: Any, rows: str, local: str | None, site: int) -> Size:
    """Rows and groups of a site, once its trace is known to be one that can be split."""
    for name, one in trace.items():
        if one["type"] in ("param", "mutable"):
            raise ValueError(
                f"{name} is a numpyro.{one['type']}: posteriors are of latents, give it a prior or a value"
            )
        if one["type"] == "plate" and one["args"][1] not in (None, one["args"][0]):
            raise ValueError(
                f"plate {name!r} is subsampled: give the model all rows, minibatches are accord's business"
            )
    plates = {name: int(one["args"][0]) for name, one in trace.items() if one["type"] == "plate"}
    if local is not None and local not in plates:
        raise ValueError(f"the model has no plate {local!r} at site {site}; its plates are {sorted(plates)}")
    observed = _sampled(trace, observed=True)
    if not observed:
        raise ValueError("the model observes nothing")
    if rows in plates:
        count = plates[rows]
    else:
        shapes = {name: np.shape(_log_prob(one)) for name, one in observed.items()}
        counts = {shape[0] for shape in shapes.values() if shape}
        if len(counts) != 1 or not all(shapes.values()):
            raise ValueError(f"the model has no plate {rows!r}, and what it observes has the shapes {shapes}: name it")
        (count,) = counts
    return Size(count, 0 if local is None else plates[local])


def _latent(site: Any, rows: str, local: str | None) -> Latent:
    """What a latent site is."""
    name, support = site["name"], site["fn"].support
    if support.is_discrete:
        raise ValueError(f"{name} is discrete: sum it out, as a mixture (numpyro.distributions.MixtureSameFamily)")
    axis = _axis_of(site, local, len(site["fn"].batch_shape))
    if axis is None and _axis_of(site, rows, 0) is not None:
        raise ValueError(f"{name} is a latent of every row: it stays at its site with local={rows!r}")
    if local == rows or axis is None or _axis_of(site, rows, 0) is None:
        start = _middle(support, np.shape(site["value"]))
        return Latent(support, start if axis is None else np.take(start, 0, axis=axis), axis)
    raise ValueError(f"{name} is a latent of every row in plate {local!r}: one of the two can stay at its site")


def _middle(support: Any, shape: tuple[int, ...]) -> np.ndarray:
    """The value whose unconstrained numbers are 0."""
    from numpyro.distributions import biject_to

    transform = biject_to(support)
    return np.asarray(transform(jnp.zeros(transform.inverse_shape(shape))))
