"""`accord.from_pymc`: a PyMC model, split into its prior, its rows, and the latents of each site."""

from __future__ import annotations

import importlib
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from ...base.errors import DataError
from ...base.progress import Progress, stage
from ...posterior import Posterior
from ...posterior.shards import Source
from .arguments import Size
from .split import Densities, Latent, MisfitError, examples, posterior

# A variable of PyTensor, with its graph.
Graph = Any
_DISPATCH = "pytensor.link.jax.dispatch"


def from_pymc(
    model: Any,
    shards: Sequence[Source],
    rows: str = "rows",
    local: str | None = None,
    *,
    init: Mapping[str, Any] | None = None,
    example: Mapping[str, Any] | None = None,
) -> Posterior:
    """The posterior of a PyMC model whose data lies at several sites.

    You build the model once, with its data in `pm.Data`, and JAX evaluates it on the data of each site. Latents without
    the dims `rows` and `local` are parameters that all sites share. Observed variables are terms of the likelihood, one
    for each row. Latents with the dim `local` belong to a site or to groups of its rows: the site integrates them out,
    and they never leave it, see `accord.Local`. Shared latents with a normal prior whose location or scale depends on
    other latents are the `hierarchy` of the posterior. At each site, accord checks that the parts sum to the log
    density of the model. Where PyMC's checks of parameters fail, the density is 0.

    Parameters
    ----------
    model
        A `pymc.Model`. Observed values, and data that differs between sites, must be `pm.Data`, and accord keeps none
        of its contents. Numbers of rows or groups must follow from dims or from the shape of a `pm.Data`. Discrete
        latents, minibatches, imputed missing values, transforms without an equivalent in NumPyro, and bounds that
        depend on other latents are errors. Deterministics are ignored. A `pm.Potential` must have one term for each
        row.
    shards
        One dict for each site, with the value of every `pm.Data`, or a function or path that returns it at the agent,
        see `Posterior`. If no `pm.Data` has the dim `local`, the dict also has its length or coordinates under the
        name of the dim. Arrays with a first axis of rows, or of groups of the site, differ between sites. All other
        values must be the same at all sites.
    rows
        The dim of the rows. Observed variables without it have rows on their first axis.
    local
        The dim of the latents that stay at their site. Its members are the groups of a site, or one for the whole site.
        Each row must depend on exactly one member, which accord detects.
    init
        Initial values by the name of a latent, on the scale of the model. The default is 0 in unconstrained space.
    example
        A shard with artificial numbers, required if shards are functions or paths.

    Raises
    ------
    ValueError
        The model cannot be split, or its parts do not sum to its log density at a site.
    NotImplementedError
        PyTensor cannot convert a part of the model to JAX.
    ImportError
        PyMC is not installed.
    """
    known = examples(shards, example)
    with Progress("from_pymc"):
        stage("splitting the model")
        with jax.enable_x64(True):
            program = PyMCProgram.of(model, known[0], rows, local)
        return posterior(program, shards, known, init)


@dataclass(frozen=True, eq=False)
class PyMCProgram:
    """A PyMC model as a `Program`: its log densities as PyTensor graphs of placeholders.

    Parameters
    ----------
    rows, local
        Names of the dims of rows and of groups.
    data
        Placeholders of all `pm.Data`, by name.
    lengths
        Placeholders of the lengths of these two dims, and the lengths in the model, if no `pm.Data` has the dim.
    values
        Placeholders of all latents, by name.
    terms
        Log densities of latents and observed variables, by name.
    observed
        Graphs of the observed variables and their axes of rows, by name.
    groups
        The length of the dim `local`, or None.
    latents
        The latents by name.
    """

    rows: str
    local: str | None
    data: dict[str, Graph]
    lengths: dict[str, tuple[Graph, int]]
    values: dict[str, Graph]
    terms: dict[str, Graph]
    observed: dict[str, tuple[Graph, int]]
    groups: Graph | None
    latents: dict[str, Latent]
    # rewritten graphs by shapes: a rewrite takes about 0.1 s
    cache: dict[Any, Any] = field(default_factory=dict, repr=False)

    def __eq__(self, other: object) -> bool:
        from pytensor.graph.basic import equal_computations

        if not isinstance(other, PyMCProgram):
            return NotImplemented
        if self._names() != other._names():
            return False
        (own, inputs), (others, their_inputs) = self._ends(), other._ends()
        return bool(equal_computations(own, others, inputs, their_inputs))

    def __hash__(self) -> int:
        return hash(tuple(self.terms))

    def _names(self) -> list[Any]:
        return [self.rows, self.local, *map(list, (self.data, self.lengths, self.values, self.terms, self.observed))]

    def _ends(self) -> tuple[list[Graph], list[Graph]]:
        """All graphs, and their placeholders."""
        places = [*self.data.values(), *(place for place, _ in self.lengths.values()), *self.values.values()]
        groups = [] if self.groups is None else [self.groups]
        return [*self.terms.values(), *(graph for graph, _ in self.observed.values()), *groups], places

    @classmethod
    def of(cls, model: Any, given: Mapping[str, Any], rows: str, local: str | None) -> PyMCProgram:
        """Split a model; `given` is the data of one site."""
        import pytensor.tensor as pt
        from pymc.logprob.basic import transformed_conditional_logp
        from pymc.logprob.utils import replace_rvs_by_values
        from pytensor.graph.replace import clone_replace

        _check(model, local)
        free, observed, factors = model.free_RVs, model.observed_RVs, model.potentials
        supports = {rv.name: _support(rv, model.rvs_to_transforms[rv]) for rv in free}
        # densities on the user's scale: accord adds the Jacobians
        values = {rv: model.rvs_to_values[rv] for rv in observed} | {rv: rv.type(rv.name) for rv in free}
        none, own = dict.fromkeys(values), [*free, *observed]
        terms = transformed_conditional_logp(own, rvs_to_values=values, rvs_to_transforms=none, jacobian=False)
        terms += replace_rvs_by_values(factors, rvs_to_values=values)
        # placeholders replace the data of the model, and constants replace other lengths
        fixed = {dim: one for dim, one in model.dim_lengths.items() if _is_shared(one)}
        held = {one: one.type(one.name) for one in model.data_vars}
        lengths = {dim: (one.type(dim), int(one.get_value())) for dim, one in fixed.items() if dim in (rows, local)}
        twice = sorted({one.name for one in held} & set(lengths))
        if twice:
            raise ValueError(
                f"{twice[0]!r} names both a dim and a pm.Data, which would be one key of the shards: rename one"
            )
        numbers = {one: pt.constant(one.get_value()) for dim, one in fixed.items() if dim not in lengths}
        replaced = {**held, **numbers, **{fixed[dim]: place for dim, (place, _) in lengths.items()}}
        seen = [*(values[rv] for rv in observed), *terms[len(own) :]]
        groups = [] if local is None else [model.dim_lengths[local]]
        graphs = iter(clone_replace([*terms, *seen, *groups, *(rv.shape for rv in free)], replaced))
        made = cls(
            rows,
            local,
            {one.name: place for one, place in held.items()},
            lengths,
            {rv.name: values[rv] for rv in free},
            {rv.name: next(graphs) for rv in [*own, *factors]},
            {rv.name: (next(graphs), _place(_dims(model, rv), rows) or 0) for rv in [*observed, *factors]},
            next(graphs) if groups else None,
            {},
        )
        made._check_inputs()
        shapes = made._numbers(list(graphs), made.arguments(given, 0))
        for rv, shape in zip(free, shapes, strict=True):
            place, dims = _place(_dims(model, rv), local), _dims(model, rv)
            if place is not None and place >= rv.ndim - rv.owner.op.ndim_supp:
                raise ValueError(
                    f"the members of {rv.name} depend on one another along dim {local!r}, so it cannot be local"
                )
            size = tuple(int(n) for n in shape)
            made.latents[rv.name] = Latent.of(rv.name, supports[rv.name], size, place, rows in dims, (rows, local))
        return made

    @property
    def axis_word(self) -> str:
        """See `Program`."""
        return "dim"

    def __repr__(self) -> str:
        return f"PyMCProgram({', '.join(self.terms)})"

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "cache": {}}

    def arguments(self, given: Mapping[str, Any], site: int) -> dict[str, Any]:
        """Data with the dtypes of its containers, and lengths of dims."""
        own = [dim for dim in self.lengths if dim != self.rows]
        missing, others = sorted(set(self.data) - set(given)), sorted(set(given) - {*self.data, *own})
        if missing or others:
            raise DataError(
                f"shard {site} must have a value for every pm.Data of the model, {sorted(self.data)}"
                + (f", and may have the length of dim {own[0]!r}" if own else "")
                + f"; missing are {missing}, unknown are {others}"
            )
        found: dict[str, Any] = {
            name: _as_in(one, given[name], f"{name} of shard {site}") for name, one in self.data.items()
        }
        for dim in own:
            length = given.get(dim, self.lengths[dim][1])
            found[dim] = int(length) if np.ndim(length) == 0 else len(length)
        if self.rows in self.lengths:
            found[self.rows] = self._row_count({**found, self.rows: 1}, site)
        return found

    def size(self, arguments: Mapping[str, Any], site: int) -> Size:
        """The number of rows of the observed variables, and the length of the dim `local`."""
        groups = [] if self.groups is None else self._numbers([self.groups], arguments)
        return Size(self._row_count(arguments, site), int(groups[0]) if groups else 0)

    def densities(self, arguments: Mapping[str, Any], values: Mapping[str, Array]) -> Densities:
        """See `Program`; JAX evaluates all graphs at once."""
        dispatch, names = _jax_dispatch(), list(self.values)
        shapes = self._key(arguments), tuple(np.shape(values[name]) for name in names)
        # the warnings are about double precision, which graphs request and JAX may not have enabled
        with self._explained(arguments), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if shapes not in self.cache:
                self.cache[shapes] = self._write(arguments, values)
            run = dispatch.jax_funcify(self.cache[shapes])
            found = run(*(arguments[name] for name in self.data), *(values[name] for name in names))
        terms = dict(zip(self.terms, map(jax.numpy.asarray, found), strict=True))
        axes = {name: axis if axis < terms[name].ndim else None for name, (_, axis) in self.observed.items()}
        return Densities(
            {name: terms[name] for name in names}, {name: (terms[name], axis) for name, axis in axes.items()}
        )

    # --- graphs ---

    @contextmanager
    def _explained(self, arguments: Mapping[str, Any]) -> Iterator[None]:
        """Convert errors of the evaluation of graphs into errors with an explanation."""
        try:
            yield
        except NotImplementedError as error:
            raise NotImplementedError(f"the model has a part that JAX cannot evaluate: {error}") from error
        except (TypeError, ValueError, IndexError) as error:
            found = {name: np.shape(arguments[name]) for name in self.data}
            raise MisfitError(
                f"the model cannot be evaluated on data of shapes {found}: the shapes do not match, or the model has a "
                "hard-coded number of rows or groups. Take such numbers from a dim or from the shape of a pm.Data. "
                f"PyTensor's error: {error}"
            ) from error

    def _check_inputs(self) -> None:
        """Raise `ValueError` if terms depend on shared variables, or observed variables do not depend on `pm.Data`."""
        from pytensor.graph.traversal import graph_inputs

        for one in graph_inputs(list(self.terms.values())):
            if _is_shared(one):
                raise ValueError(
                    f"the density depends on {one}, which is neither pm.Data nor a latent: make it pm.Data"
                )
        for name, (graph, _) in self.observed.items():
            if graph.ndim == 0:
                raise ValueError(f"{name} is a scalar: it must have one value for each row")
            if not set(graph_inputs([graph])) & set(self.data.values()):
                raise ValueError(
                    f"{name} is observed as an array: observe a pm.Data, so that each site can have its own values"
                )

    def _key(self, arguments: Mapping[str, Any]) -> tuple[Any, ...]:
        """Shapes of data, and values of integers that may be lengths."""
        return tuple(
            int(one) if _is_length(one) else np.shape(one)
            for one in (arguments[k] for k in (*self.data, *self.lengths))
        )

    def _placed(self, graphs: Sequence[Graph], arguments: Mapping[str, Any], values: Mapping[str, Any]) -> Any:
        """Inputs with the static shapes of data and latents, and the graphs as functions of them."""
        import pytensor.tensor as pt
        from pytensor.graph.replace import clone_replace

        # JAX needs static shapes, and axes of length 1 must broadcast
        places = {**self.data, **{k: one for k, one in self.values.items() if k in values}}
        inputs = {
            k: pt.tensor(k, dtype=one.dtype, shape=np.shape({**arguments, **values}[k])) for k, one in places.items()
        }
        replaced = {one: inputs[k] for k, one in places.items()}
        numbers = {**self.data, **{dim: one for dim, (one, _) in self.lengths.items()}}
        replaced |= {
            one: pt.constant(np.asarray(arguments[k], one.dtype))
            for k, one in numbers.items()
            if _is_length(arguments[k])
        }
        return list(inputs.values()), clone_replace(list(graphs), replaced, rebuild_strict=False)

    def _numbers(self, graphs: Sequence[Graph], arguments: Mapping[str, Any]) -> Sequence[Any]:
        """The values of graphs that depend only on shapes of data."""
        from pymc.pytensorf import constant_fold

        with self._explained(arguments):
            return constant_fold(self._placed(graphs, arguments, {})[1])

    def _row_count(self, arguments: Mapping[str, Any], site: int) -> int:
        """The number of rows of a site."""
        counts = self._numbers([graph.shape[axis] for graph, axis in self.observed.values()], arguments)
        if len(set(map(int, counts))) > 1:
            found = dict(zip(self.observed, map(int, counts), strict=True))
            raise DataError(f"the observed variables at site {site} have different numbers of rows: {found}")
        return int(counts[0])

    def _write(self, arguments: Mapping[str, Any], values: Mapping[str, Any]) -> Any:
        """The terms as a graph that JAX can run, -inf where a check of parameters fails."""
        import pytensor.tensor as pt
        from pymc.logprob.utils import CheckParameterValue
        from pytensor.compile.mode import get_mode
        from pytensor.graph.fg import FunctionGraph
        from pytensor.graph.traversal import graph_inputs

        inputs, outputs = self._placed(list(self.terms.values()), arguments, values)
        graph = FunctionGraph(inputs=inputs, outputs=outputs, clone=True)
        shared = {name for name, latent in self.latents.items() if latent.axis is None}
        varying = {one for one in graph.inputs if one.name not in shared}
        for node in graph.toposort():
            if isinstance(node.op, CheckParameterValue):
                checked, *checks = node.inputs
                for condition in chain.from_iterable(map(_conditions, checks)):
                    is_varying = not varying.isdisjoint(graph_inputs([condition]))
                    met = _by_element(condition, checked) if is_varying else pt.all(condition)
                    checked = pt.switch(met, checked, -np.inf)
                graph.replace(node.outputs[0], pt.cast(checked, node.outputs[0].type.dtype))
        get_mode("JAX").optimizer.rewrite(graph)
        return graph


def _conditions(check: Graph) -> Iterator[Graph]:
    """The conditions that PyMC combined into one number, each with its own shape."""
    from pytensor.tensor.basic import MakeVector, ScalarFromTensor
    from pytensor.tensor.math import All

    op = check.owner and check.owner.op
    if isinstance(op, ScalarFromTensor | MakeVector) or (isinstance(op, All) and check.ndim == 0):
        for one in check.owner.inputs:
            yield from _conditions(one)
    else:
        yield check


def _by_element(condition: Graph, density: Graph) -> Graph:
    """A condition for each element of a density, so that latents of a group affect its own rows only."""
    import pytensor.tensor as pt

    one = pt.as_tensor(condition)
    one = pt.all(one, axis=tuple(range(density.ndim, one.ndim)))
    ends = zip(reversed(one.type.shape), reversed(density.type.shape), strict=False)
    return one if all(axis == 1 or (axis is not None and axis == other) for axis, other in ends) else pt.all(one)


def _import() -> Any:
    """The module `pymc`, or `ImportError` with a hint."""
    try:
        import pymc
    except ImportError as error:
        raise ImportError("from_pymc needs PyMC: pip install 'accord[pymc]'") from error
    return pymc


def _jax_dispatch() -> Any:
    """PyTensor's module that converts graphs to JAX functions."""
    if _DISPATCH not in sys.modules:
        # The import enables double precision for the process, so reset it afterwards. A new thread does not inherit a
        # temporary setting of this one.
        def load() -> None:
            before = jax.config.values["jax_enable_x64"]
            importlib.import_module(_DISPATCH)
            jax.config.update("jax_enable_x64", before)

        thread = threading.Thread(target=load)
        thread.start()
        thread.join()
    return importlib.import_module(_DISPATCH)


def _check(model: Any, local: str | None) -> None:
    """Raise `ValueError` if a model cannot be split."""
    pm = _import()
    from pymc.data import MinibatchOp
    from pymc.variational.minibatch_rv import MinibatchRandomVariable
    from pytensor.graph.traversal import ancestors

    if not isinstance(model, pm.Model):
        raise ValueError(f"model must be a pymc.Model, found {type(model).__name__}")
    if local is not None and local not in model.dim_lengths:
        raise ValueError(f"the model has no dim {local!r}; its dims are {sorted(model.dim_lengths)}")
    if not model.observed_RVs and not model.potentials:
        raise ValueError("the model has no observed variable")
    for rv in model.free_RVs:
        base = rv.name.removesuffix("_unobserved")
        if base != rv.name and f"{base}_observed" in model.named_vars:
            raise ValueError(f"{base} has missing values, which PyMC would impute: remove such rows")
    for rv in model.free_RVs:
        if rv.dtype.startswith(("int", "uint", "bool")):
            raise ValueError(
                f"{rv.name} is discrete: marginalise it, as a mixture (pm.Mixture, or pymc_extras.marginalize)"
            )
    values = [model.rvs_to_values[rv] for rv in model.observed_RVs]
    for one in ancestors([*model.basic_RVs, *model.potentials, *values]):
        if one.owner is not None and isinstance(one.owner.op, MinibatchOp | MinibatchRandomVariable):
            raise ValueError("the model uses minibatches: use all rows, as accord draws the minibatches")


def _support(rv: Any, transform: Any) -> Any:
    """NumPyro's constraint for the support of a PyMC transform."""
    from numpyro.distributions import constraints
    from pymc.distributions import transforms

    if transform is None and _is_bounded(rv):
        raise ValueError(f"{rv.name} has bounds but no transform: remove default_transform=None")
    kind, exact = type(transform), {type(None): "real", transforms.LogTransform: "positive"}
    exact |= {transforms.LogExpM1: "positive", transforms.LogOddsTransform: "unit_interval"}
    exact |= {transforms.SimplexTransform: "simplex", transforms.SumTo1: "simplex"}
    if kind in exact:
        return getattr(constraints, exact[kind])
    if kind in (transforms.Interval, transforms.IntervalTransform):
        return _between(rv, transform)
    if kind is transforms.Ordered and transform.ascending:
        return constraints.positive_ordered_vector if transform.positive else constraints.ordered_vector
    raise ValueError(f"{rv.name} has the transform {transform.name!r} ({kind.__name__}), which accord does not support")


def _is_bounded(rv: Any) -> bool:
    """Whether PyMC's default for a variable is a transform."""
    import pymc

    alike = rv.owner.clone().outputs[rv.owner.outputs.index(rv)]
    model = pymc.Model(model=None)
    model.register_rv(alike, "alike")
    return model.rvs_to_transforms[alike] is not None


def _between(rv: Any, transform: Any) -> Any:
    """The constraint of an interval."""
    import pytensor.tensor as pt
    from numpyro.distributions import constraints
    from pymc.pytensorf import constant_fold

    ends = [
        pt.as_tensor(open_end if end is None else end)
        for end, open_end in zip(transform.args_fn(*rv.owner.inputs), (-np.inf, np.inf), strict=True)
    ]
    low, high = constant_fold(ends, raise_not_constant=False)
    if not all(isinstance(end, np.ndarray | np.generic) for end in (low, high)):
        raise ValueError(f"the bounds of {rv.name} depend on data or other latents: use fixed bounds")
    bounded = np.isfinite(low).all(), np.isfinite(high).all()
    if not all(there or np.isinf(end).all() for there, end in zip(bounded, (low, high), strict=True)):
        raise ValueError(f"only some elements of {rv.name} have bounds: split it into two latents")
    kinds = {
        (True, True): lambda: constraints.interval(low, high),
        (True, False): lambda: constraints.greater_than(low),
        (False, True): lambda: constraints.less_than(high),
        (False, False): lambda: constraints.real,
    }
    return kinds[bool(bounded[0]), bool(bounded[1])]()


def _as_in(container: Graph, value: Any, what: str) -> np.ndarray:
    """A value converted to the dtype of its `pm.Data`, after checks of its axes."""
    array = np.asarray(value)
    if array.ndim != container.ndim:
        raise DataError(f"{what} has shape {array.shape}; its pm.Data has {container.ndim} axes")
    if array.dtype.kind not in "fiub":
        raise DataError(f"{what} must hold numbers, found {array.dtype}")
    found = array.astype(container.dtype)
    if found.dtype.kind != "f" and not np.array_equal(found, array):
        raise DataError(f"{what} has dtype {array.dtype}, and its pm.Data {container.dtype}: it would be rounded")
    return found


def _dims(model: Any, rv: Any) -> tuple[str, ...]:
    return tuple(model.named_vars_to_dims.get(rv.name) or ())


def _place(dims: tuple[str, ...], dim: str | None) -> int | None:
    """The axis of a dim, or None."""
    return dims.index(dim) if dim in dims else None


def _is_shared(one: Any) -> bool:
    from pytensor.compile import SharedVariable

    return isinstance(one, SharedVariable)


def _is_length(value: Any) -> bool:
    """Whether a value is an integer scalar, on which shapes may depend."""
    return np.ndim(value) == 0 and np.issubdtype(np.result_type(value), np.integer)
