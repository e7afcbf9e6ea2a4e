"""`accord.from_numpyro`: a NumPyro model, split into its prior, its rows, and the latents of each site."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import partial
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
# Attributes of distributions that hold distributions.
_PARTS = ("base_dist", "component_distribution", "component_distributions", "mixing_distribution", "marginal_dist")
# Largest error of probabilities and of their sum.
_ROUNDING = 1e-4


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

    accord runs the model on the data of each site and splits its log density. Latents outside of the plates `rows` and
    `local` are parameters that all sites share, with NumPyro's transforms. Observed sites of the model are terms of the
    likelihood, one for each row. Latents in the plate `local` belong to a site or to groups of its rows: the site
    integrates them out, and they never leave it, see `accord.Local`. Shared latents with a normal prior whose location
    or scale depends on other latents are the `hierarchy` of the posterior. At each site, accord checks that the parts
    sum to the log density of the model. Where parameters of a distribution violate its constraints, the density is
    0.

    Parameters
    ----------
    model
        A function of keyword arguments. Discrete latents, subsampled plates, `numpyro.param` and supports that depend
        on other latents are errors. Deterministic sites are ignored.
    shards
        One dict of keyword arguments for each site, or a function or path that returns it at the agent, see
        `Posterior`. Arrays with a first axis of rows, or of groups of the site, differ between sites. Integers that
        count rows or groups are detected. All other arguments must be the same at all sites.
    rows
        The plate of the rows. Without this plate, rows are the first axis of the observed sites.
    local
        The plate of the latents that stay at their site. Its members are the groups of a site, or one for the whole
        site. Each row must depend on exactly one member, which accord detects. None: latents of all other plates are
        parameters that all sites share. A plate of the same size at every site, such as one for the whole site, is
        shared without a message.
    init
        Initial values by the name of a latent, on the scale of the model. The default is 0 in unconstrained space.
    example
        A shard with artificial numbers, required if shards are functions or paths.

    Raises
    ------
    ValueError
        The model cannot be split, or its parts do not sum to its log density at a site.
    ImportError
        NumPyro is not installed.
    """
    known = examples(shards, example)
    with Progress("from_numpyro"):
        stage("splitting the model")
        with jax.enable_x64(True):
            program = NumPyroProgram.of(model, known[0], rows, local)
        return posterior(program, shards, known, init)


@dataclass(frozen=True)
class NumPyroProgram:
    """A NumPyro model as a `Program`.

    Parameters
    ----------
    model
        The model.
    rows, local
        Names of the plates of rows and of groups.
    latents
        The latent sites by name.
    """

    model: Model
    rows: str
    local: str | None
    # determined by the model and its arguments, so not compared
    latents: dict[str, Latent] = field(compare=False)

    @classmethod
    def of(cls, model: Model, arguments: Mapping[str, Any], rows: str, local: str | None) -> NumPyroProgram:
        """Run the model with two seeds to find its latents."""
        trace, another = _trace(model, arguments, seed=0), _trace(model, arguments, seed=1)
        # errors about plates come before errors about latents
        _size(trace, rows, local, 0)
        latents, again = ({k: _latent(s, rows, local) for k, s in _sampled(t, False).items()} for t in (trace, another))
        for name, latent in latents.items():
            if name not in again or str(again[name].support) != str(latent.support):
                raise ValueError(f"the support of {name} depends on other latents: use fixed bounds")
        return cls(model, rows, local, latents)

    @property
    def axis_word(self) -> str:
        """See `Program`."""
        return "plate"

    def __repr__(self) -> str:
        return str(getattr(self.model, "__qualname__", type(self.model).__qualname__))

    def arguments(self, given: Mapping[str, Any], site: int) -> dict[str, Any]:
        """A copy of `given`."""
        return dict(given)

    def size(self, arguments: Mapping[str, Any], site: int) -> Size:
        """The sizes of the plates; `ValueError` if a parameter of a distribution is an invalid constant."""
        found: list[Size] = []

        def run() -> None:
            found.append(_size(_trace(self.model, arguments, 0, validate=True), self.rows, self.local, site))

        # under tracing, NumPyro only checks constants
        jax.eval_shape(run)
        return found[0]

    def densities(self, arguments: Mapping[str, Any], values: Mapping[str, Array]) -> Densities:
        """The log densities of all sample sites, from one run."""
        trace = _trace(self.model, arguments, 0, values)
        latents = {name: _log_prob(site) for name, site in _sampled(trace, observed=False).items()}
        observed = {name: (site, jnp.asarray(_log_prob(site))) for name, site in _sampled(trace, observed=True).items()}
        return Densities(
            latents, {name: (own, _axis_of(site, self.rows, own.ndim)) for name, (site, own) in observed.items()}
        )


def _trace(
    model: Model,
    arguments: Mapping[str, Any],
    seed: int,
    latents: Mapping[str, Any] | None = None,
    validate: bool = False,
) -> Any:
    """The trace of the model at the given latents, or at random latents if None."""
    try:
        from numpyro import handlers, validation_enabled
    except ImportError as error:
        raise ImportError("from_numpyro needs NumPyro: pip install 'accord[models]'") from error
    from numpyro.infer import init_to_uniform

    # works for priors without a sampler, too
    given = {"substitute_fn": init_to_uniform(radius=1.0)} if latents is None else {"data": latents}
    seeded = handlers.seed(model, jax.random.PRNGKey(seed))
    # at some latents, parameters of distributions may be invalid
    with validation_enabled(validate):
        return handlers.trace(handlers.substitute(seeded, **given)).get_trace(**arguments)


def _sampled(trace: Any, observed: bool | None = None) -> dict[str, Any]:
    """The observed, latent or (None) all sample sites of a trace."""
    return {
        name: site
        for name, site in trace.items()
        if site["type"] == "sample" and (observed is None or site["is_observed"] == observed)
    }


def _log_prob(site: Any) -> Array:
    """The log density of a site, of its batch shape, with the scale of handlers. -inf at invalid parameters."""
    args, scale, fn = (site["intermediates"],) if site["intermediates"] else (), site["scale"], site["fn"]
    # NumPyro compares with bounds by the library of the value
    valid, value = _is_valid(fn), jnp.asarray(site["value"])
    if not args and _is_elementwise(fn):
        # NaN derivatives of invalid elements do not reach the others
        fn, value = (_constant_unless(valid, fn.batch_shape, one) for one in (fn, value))
    found = fn.log_prob(value, *args)
    if scale is None:
        return jnp.where(valid, found, -jnp.inf)
    return jnp.where(valid | (jnp.asarray(scale) == 0), scale * found, -jnp.inf)


def _is_elementwise(fn: Any) -> bool:
    """Whether elements of the log density only depend on the same elements of the parameters."""
    from numpyro.distributions import constraints

    parts, kinds = [getattr(fn, name) for name in _PARTS if hasattr(fn, name)], fn.arg_constraints.values()
    simple = not fn.event_shape and not any(constraints.is_dependent(one) or one.event_dim for one in kinds)
    return simple and len(parts) <= 1 and all(map(_is_elementwise, parts))


def _constant_unless(valid: Array, batch: tuple[int, ...], leaf: Any) -> Any:
    """A copy of a parameter, or of a distribution with its parameters, without derivatives where `valid` is False."""
    from numpyro.distributions import Distribution

    if isinstance(leaf, Distribution):
        own, made = partial(_constant_unless, valid, batch), copy(leaf)
        vars(made).update(jax.tree.map(own, dict(vars(leaf)), is_leaf=lambda one: isinstance(one, Distribution)))
        return made
    if not isinstance(leaf, jax.Array) or not jnp.issubdtype(leaf.dtype, jnp.inexact) or valid.ndim == 0:
        return leaf
    shape = jnp.broadcast_shapes(batch, leaf.shape) if leaf.ndim <= len(batch) else leaf.shape
    kept = valid.reshape(*valid.shape, *[1] * (len(shape) - len(batch)))
    return jnp.where(kept, jnp.broadcast_to(leaf, shape), jax.lax.stop_gradient(leaf))


def _is_valid(fn: Any) -> Array:
    """Whether the parameters of a distribution are valid, of a shape that broadcasts to its batch shape."""
    from numpyro.distributions import MaskedDistribution

    checks = [_holds(fn.arg_constraints[name], jnp.asarray(value)) for name, value in fn.get_args().items()]
    for name in _PARTS:
        parts = getattr(fn, name, None) or []
        for part in parts if isinstance(parts, list) else [parts]:
            own = jnp.broadcast_to(_is_valid(part), part.batch_shape)
            checks.append(own.all(axis=-1) if name == "component_distribution" else own)
    valid = jnp.asarray(True)
    for check in checks:
        own = check.all(axis=tuple(range(len(fn.batch_shape), check.ndim)))
        ends = zip(reversed(own.shape), reversed(fn.batch_shape), strict=False)
        valid = valid & (own if all(axis in (1, size) for axis, size in ends) else own.all())
    if isinstance(fn, MaskedDistribution):
        leaves = jax.tree.leaves(fn, is_leaf=lambda leaf: leaf is fn.base_dist)
        (mask,) = (leaf for leaf in leaves if leaf is not fn.base_dist)
        valid = valid | jnp.logical_not(mask)
    return valid


def _holds(constraint: Any, value: Array) -> Array:
    """Whether a value meets a constraint of its numbers; True for matrices, dependent constraints and NaN."""
    from numpyro.distributions import constraints

    if isinstance(constraint, constraints.independent):
        own = _holds(constraint.base_constraint, value)
        return own.all(axis=tuple(range(max(0, own.ndim - constraint.reinterpreted_batch_ndims), own.ndim)))
    if constraint is constraints.simplex:
        return ~((value < -_ROUNDING).any(axis=-1) | (jnp.abs(value.sum(axis=-1) - 1.0) > _ROUNDING))
    if constraint is constraints.ordered_vector:
        return ~(value[..., 1:] < value[..., :-1]).any(axis=-1)
    if isinstance(constraint, constraints.integer_greater_than):
        return ~(value < constraint.lower_bound)
    bounded = isinstance(constraint, constraints.greater_than | constraints.less_than | constraints.interval)
    # the density of an angle is periodic in its location
    if bounded and constraint is not constraints.circular:
        return constraint(value) | jnp.isnan(value)
    return jnp.asarray(True)


def _axis_of(site: Any, plate: str | None, ndim: int) -> int | None:
    """The axis of a plate in an array with the site's batch shape and `ndim` axes; None outside of the plate."""
    for frame in site["cond_indep_stack"]:
        if frame.name == plate:
            return ndim + int(frame.dim)
    return None


def _size(trace: Any, rows: str, local: str | None, site: int) -> Size:
    """The numbers of rows and groups of a site; `DataError` if the model cannot be split."""
    for name, one in trace.items():
        if one["type"] in ("param", "mutable"):
            raise DataError(f"{name} is a numpyro.{one['type']}, not a latent: give it a prior or a fixed value")
        if one["type"] == "plate" and one["args"][1] not in (None, one["args"][0]):
            raise DataError(f"plate {name!r} is subsampled: use all rows in the model, as accord draws the minibatches")
    plates = {name: int(one["args"][0]) for name, one in trace.items() if one["type"] == "plate"}
    if local is not None and local not in plates:
        raise DataError(f"the model has no plate {local!r} at site {site}; its plates are {sorted(plates)}")
    observed = _sampled(trace, observed=True)
    if not observed:
        raise DataError("the model has no observed site")
    if rows in plates:
        count = plates[rows]
    else:
        shapes = {name: np.shape(_log_prob(one)) for name, one in observed.items()}
        counts = {shape[0] for shape in shapes.values() if shape}
        if len(counts) != 1 or not all(shapes.values()):
            raise DataError(f"the model has no plate {rows!r}, and its observed sites have shapes {shapes}: set rows")
        (count,) = counts
    return Size(count, 0 if local is None else plates[local])


def _latent(site: Any, rows: str, local: str | None) -> Latent:
    """The `Latent` of a latent site."""
    name, support = site["name"], site["fn"].support
    if support.is_discrete:
        raise ValueError(f"{name} is discrete: marginalise it, as a mixture (numpyro.distributions.MixtureSameFamily)")
    axis = _axis_of(site, local, len(site["fn"].batch_shape))
    in_rows = _axis_of(site, rows, 0) is not None
    return Latent.of(name, support, np.shape(site["value"]), axis, in_rows, (rows, local))
