"""`accord.from_numpyro`: a NumPyro model, split into its prior, its rows, and the latents of each site."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ...base.errors import DataError
from ...base.progress import Progress, stage
from ...posterior import Posterior
from ...posterior.shards import Source
from .arguments import Size
from .split import Densities, Latent, examples, posterior

Model = Callable[..., Any]


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
    known = examples(shards, example)
    with Progress("from_numpyro"):
        stage("taking the model apart")
        with jax.enable_x64(True):
            program = Traced.of(model, known[0], rows, local)
        return posterior(program, shards, known, init)


@dataclass(frozen=True)
class Traced:
    """A NumPyro model, run for all that is asked of it.

    Parameters
    ----------
    model
        The model.
    rows, local
        Names of its plates of rows and of groups.
    latents
        Its latent sites by name.
    """

    model: Model
    rows: str
    local: str | None
    # they follow from the model and its arguments
    latents: dict[str, Latent] = field(compare=False)

    @classmethod
    def of(cls, model: Model, arguments: Mapping[str, Any], rows: str, local: str | None) -> Traced:
        """Run the model twice, to see its latents."""
        trace, another = _trace(model, arguments, seed=0), _trace(model, arguments, seed=1)
        # what plates there are is told before what latents do in them
        _size(trace, rows, local, 0)
        latents, again = ({k: _latent(s, rows, local) for k, s in _sampled(t, False).items()} for t in (trace, another))
        for name, latent in latents.items():
            if name not in again or str(again[name].support) != str(latent.support):
                raise ValueError(f"the support of {name} depends on other latents; give it one of fixed bounds")
        return cls(model, rows, local, latents)

    @property
    def axes(self) -> str:
        """What such an axis is called."""
        return "plate"

    def __repr__(self) -> str:
        return str(getattr(self.model, "__qualname__", type(self.model).__qualname__))

    def arguments(self, given: Mapping[str, Any], site: int) -> dict[str, Any]:
        """What is given."""
        return dict(given)

    def size(self, arguments: Mapping[str, Any], site: int) -> Size:
        """Of the plates."""
        return _size(_trace(self.model, arguments, seed=0), self.rows, self.local, site)

    def densities(self, arguments: Mapping[str, Any], values: Mapping[str, Array]) -> Densities:
        """Of all sample sites of one run."""
        trace = _trace(self.model, arguments, 0, values)
        latents = {name: _log_prob(site) for name, site in _sampled(trace, observed=False).items()}
        observed = {name: (site, jnp.asarray(_log_prob(site))) for name, site in _sampled(trace, observed=True).items()}
        return Densities(
            latents, {name: (own, _axis_of(site, self.rows, own.ndim)) for name, (site, own) in observed.items()}
        )


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


def _size(trace: Any, rows: str, local: str | None, site: int) -> Size:
    """Rows and groups of a site, once its trace is known to be one that can be split."""
    for name, one in trace.items():
        if one["type"] in ("param", "mutable"):
            raise DataError(f"{name} is a numpyro.{one['type']}: posteriors are of latents, give it a prior or a value")
        if one["type"] == "plate" and one["args"][1] not in (None, one["args"][0]):
            raise DataError(f"plate {name!r} is subsampled: give the model all rows, minibatches are accord's business")
    plates = {name: int(one["args"][0]) for name, one in trace.items() if one["type"] == "plate"}
    if local is not None and local not in plates:
        raise DataError(f"the model has no plate {local!r} at site {site}; its plates are {sorted(plates)}")
    observed = _sampled(trace, observed=True)
    if not observed:
        raise DataError("the model observes nothing")
    if rows in plates:
        count = plates[rows]
    else:
        shapes = {name: np.shape(_log_prob(one)) for name, one in observed.items()}
        counts = {shape[0] for shape in shapes.values() if shape}
        if len(counts) != 1 or not all(shapes.values()):
            raise DataError(f"the model has no plate {rows!r}, and what it observes has the shapes {shapes}: name it")
        (count,) = counts
    return Size(count, 0 if local is None else plates[local])


def _latent(site: Any, rows: str, local: str | None) -> Latent:
    """What a latent site is."""
    name, support = site["name"], site["fn"].support
    if support.is_discrete:
        raise ValueError(f"{name} is discrete: sum it out, as a mixture (numpyro.distributions.MixtureSameFamily)")
    axis = _axis_of(site, local, len(site["fn"].batch_shape))
    in_rows = _axis_of(site, rows, 0) is not None
    return Latent.of(name, support, np.shape(site["value"]), axis, in_rows, (rows, local))
