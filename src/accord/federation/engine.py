"""Sums over the sites of a study by an exchange of entries. Every site computes them in its own process."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, reduce
from typing import Any, NoReturn

import jax
import numpy as np
from jaxtyping import PyTree

from ..base.counters import Normals
from ..base.errors import DataError
from ..base.text import __version__, counted
from ..data.cells import AboutCells
from ..data.collectives import Noisy, Numbers, SiteCollectives
from ..models.regression import Regression
from ..network import Network
from ..posterior import Posterior
from ..posterior.coarse import CoarseTotals, Coder, Noise, Question, Sender
from ..posterior.evaluate import count
from ..posterior.masks import added, decoded, encoded, require_masks, require_public_key
from ..posterior.totals import Together, Totals
from ..samplers.by_sums.evaluations import mean_expansion
from ..samplers.protocol import Bound, Sampler
from . import figures
from .exchange import Exchange, Plan
from .keys import SiteMasks, bytes_of, text_of
from .meter import Meter

# Returns a site's generator of noise for a context.
NoiseOf = Callable[[str], Normals]
# Distance from the prior's centre, in its standard deviations, from which on sites evaluate nothing.
_PRIOR_SDS = 10.0
# The least such distance beyond the root of the dimension, which is the distance of usual draws of the prior.
_BEYOND = 5.0


def prior_limit(dim: int) -> float:
    """Distance from the prior's centre, in its standard deviations, from which on sites evaluate nothing."""
    return max(_PRIOR_SDS, dim**0.5 + _BEYOND)


class SumExchange:
    """Sums of arrays over all sites, masked if the study is.

    Parameters
    ----------
    exchange
        Gathers the entries.
    masks
        This site's masks. None: numbers travel without masks, or this process has no rows.
    masked
        Whether the sums of the study are masked.
    count_points
        Called with the number of positions before this site evaluates its rows there.
    log
        Called with problems of this site's cells and their lines, which no other site gets.
    meter
        Measures this site's answers before they leave. None: answers are not measured.
    """

    def __init__(
        self,
        exchange: Exchange,
        masks: SiteMasks | None,
        masked: bool,
        count_points: Callable[[int], None] = lambda points: None,
        log: Callable[[str], None] = lambda text: None,
        meter: Meter | None = None,
    ) -> None:
        self.exchange, self.masks, self.masked, self.count_points = exchange, masks, masked, count_points
        self.log, self.meter = log, meter
        if masked:
            require_masks(len(exchange.sites))

    def agree_on_keys(self) -> None:
        """Exchange public keys, also for readers of the entries who have no policy."""
        exchange, masks = self.exchange, self.masks

        def keys(plan: Plan, context: str) -> dict[str, str]:
            identity = exchange.public[exchange.sites[exchange.here[0]]]
            own = {"identity": identity, "accord": __version__}
            return own | ({"masks": text_of(masks.begin())} if masks is not None else {})

        def read(content: Any) -> tuple[str, bytes]:
            version, key = content["accord"], bytes_of(content["masks"]) if self.masked else b""
            if re.fullmatch(r"[\w.+-]{1,40}", version, re.ASCII) is None:
                raise ValueError("not a version")
            if self.masked:
                require_public_key(key)
            return version, key

        found = exchange.gather(Plan("keys", {}), keys, "public keys of this site, and the version of accord there")
        each = exchange.each(found, read)
        versions = {site: version for site, (version, _) in zip(exchange.sites, each, strict=True)}
        if set(versions.values()) != {__version__}:
            others = ", ".join(f"{version} at {site}" for site, version in versions.items() if version != __version__)
            raise DataError(
                f"all sites need one version of accord: the study began with {others}, and this process has "
                f"{__version__}"
            )
        if masks is not None:
            masks.agree(exchange.here[0], [key for _, key in each], exchange.study)

    def gathered(self, own: Sequence[Any], words: str) -> list[Any]:
        """JSON values of all sites, in the clear. They must have the same types."""
        return self.exchange.gather(Plan("gathered", {}), lambda plan, context: own[0], words)

    def refuse(self, problems: Sequence[str]) -> NoReturn:
        """End the study at all sites, with the problems of this site."""
        for text in problems:
            if isinstance(text, AboutCells):
                self.log(text)
        self.exchange.refuse(problems)

    def total(
        self, plan: Plan, points: int, own: Callable[[Plan], tuple[Sequence[np.ndarray], Any]], words: str
    ) -> tuple[list[np.ndarray], Any]:
        """The sums of arrays of all sites, and the JSON value that describes them.

        Parameters
        ----------
        plan
            What is evaluated.
        points
            Number of positions.
        own
            This site's arrays and their description, which is the same at all sites, given the written plan.
        words
            The content in words.

        Raises
        ------
        DataError
            Sites have arrays of different shapes, dtypes or descriptions.
        """
        sites, masked = self.exchange.sites, self.masked

        def content(chosen: Plan, context: str) -> dict[str, Any]:
            self.count_points(points)
            leaves, about = own(chosen)
            head = {"about": about, "like": [[leaf.dtype.str, *leaf.shape] for leaf in leaves]}
            if not masked:
                return {**head, "own": list(leaves)}
            assert self.masks is not None
            words_here = encoded(leaves, len(sites))
            return {**head, "masked": self.masks.masked(self.exchange.step, context, words_here)}

        def read(one: Any) -> tuple[Any, list[list[Any]], Any]:
            like: list[list[Any]] = [[str(kind), *map(int, shape)] for kind, *shape in one["like"]]
            if masked:
                return one["about"], like, np.asarray(one["masked"], np.uint64)
            leaves = zip(one["own"], like, strict=True)
            return one["about"], like, [np.asarray(leaf, kind).reshape(shape) for leaf, (kind, *shape) in leaves]

        found = self.exchange.each(self.exchange.gather(plan, content, words), read)
        about, like, numbers = found[0]
        size = np.shape(numbers) if masked else ()
        for site, (named, shapes, own_numbers) in zip(sites, found, strict=True):
            if (named, shapes, np.shape(own_numbers) if masked else ()) != (about, like, size):
                raise DataError(
                    f"{site} and {sites[0]} have numbers of different shapes or names in step {self.exchange.step - 1}"
                )
        if not masked:
            return [reduce(np.add, leaves) for leaves in zip(*(leaves for *_, leaves in found), strict=True)], about
        shapes_of_sums = [np.empty(shape, kind) for kind, *shape in like]
        return decoded(added(*(words_of_site for *_, words_of_site in found)), shapes_of_sums, len(found)), about

    def integers(
        self, plan: Plan, coder: Coder, points: int, own: Callable[[Plan], np.ndarray], words: str
    ) -> np.ndarray:
        """The sums of integers of all sites, of the widths of a coder, (number,). Arguments as in `total`."""

        def content(chosen: Plan, context: str) -> dict[str, Any]:
            self.count_points(points)
            numbers = own(chosen)
            if self.masks is not None:
                numbers = self.masks.masked_integers(self.exchange.step, context, numbers, coder.mask)
            return {"coarse": coder.packed(numbers)}

        found = self.exchange.gather(plan, content, words)
        return coder.added_up(self.exchange.each(found, lambda one: coder.unpacked(np.asarray(one["coarse"]))))


class StudyCollectives(SiteCollectives):
    """Collectives for building the model of a study, whose answers are entries.

    Parameters
    ----------
    sums
        The sums of the study.
    noise_of
        As in `StudyEngine`.
    """

    def __init__(self, sums: SumExchange, noise_of: NoiseOf | None) -> None:
        self.sums, self.noise_of, self.is_coarse = sums, noise_of, noise_of is not None
        self.sites, self.here = sums.exchange.sites, sums.exchange.here

    def gathered(self, own: Sequence[Any]) -> list[Any]:
        """See `SiteCollectives`."""
        return self.sums.gathered(
            own, "names, kinds and levels of columns, numbers of rows and missing cells, or floors"
        )

    def require(self, problems: Sequence[Sequence[str]]) -> None:
        """See `SiteCollectives`. Problems travel in place of the next numbers."""
        if problems and problems[0]:
            self.sums.refuse(problems[0])

    def total(self, own: Sequence[Numbers], noisy: Sequence[Noisy] = ()) -> Numbers:
        """See `SiteCollectives`."""
        shapes = figures.shapes_of(own[0]) if own else {}
        size = sum(int(np.prod(shape, dtype=int)) for shape in shapes.values())
        words, context = f"sums over rows, for the model: {', '.join(shapes)}", self.sums.exchange.before

        def content(plan: Plan) -> tuple[Sequence[np.ndarray], Any]:
            if self.noise_of is None or not noisy:
                return figures.leaves_of(own[0]), shapes
            return figures.leaves_of(noisy[0](self.noise_of(context))), shapes

        sums, named = self.sums.total(Plan("summaries", {}), size, content, words)
        return figures.numbers_of(sums, named)


class StudyEngine:
    """An engine for `accord.sample` in the process of one site: sums go over all sites of a study.

    Parameters
    ----------
    sums
        The sums of the study.
    noise_of
        Returns this site's generator of noise for a context, for coarse answers. None: answers are exact.
    """

    # every site computes the sums
    consensus = None
    # a site would confirm a result that the others do not have
    whole = True

    def __init__(self, sums: SumExchange, noise_of: NoiseOf | None) -> None:
        self.sums, self.masks, self.noise_of, self.coarse = sums, sums.masked, noise_of, noise_of is not None

    def check(self, post: Posterior, sampler: Sampler) -> NoReturn:
        """Refuse methods that send messages along edges."""
        raise TypeError(
            f"{type(sampler).__name__} sends messages between agents: a study needs Importance() or ChEES()"
        )

    def states_here(self, num_agents: int) -> int:
        """Zero, as sites have no states."""
        return 0

    @contextmanager
    def placed(self, post: Posterior) -> Iterator[Posterior]:
        """The posterior with its data at the sites, of which this process evaluates its own rows."""
        here = self.sums.exchange.here
        model = post.alone(*here).near_prior(prior_limit(post.dim)) if here else None
        yield post.with_data_at(_Owners(self.sums, post, model, self.noise_of))

    def preliminary(self, post: Posterior, network: Network, bound: Bound, *, chains: int = 1) -> NoReturn:
        """See `check`."""
        self.check(post, bound.sampler)

    def build(self, post: Posterior, network: Network, bound: Bound, **options: Any) -> NoReturn:
        """See `check`."""
        self.check(post, bound.sampler)


class _Owners:
    """The sites with the rows, see `accord.posterior.posterior.DataOwners`."""

    mine: tuple[int, ...] = ()

    def __init__(self, sums: SumExchange, post: Posterior, model: Posterior | None, noise_of: NoiseOf | None) -> None:
        self.sums, self.post, self.model, self.noise_of = sums, post, model, noise_of

    def each(self, function: Callable[..., PyTree], arguments: tuple[Any, ...], own: tuple[Any, ...]) -> PyTree:
        """The number of rows of each site. Other numbers of single sites do not travel."""
        if function is not count:
            raise TypeError("sites of a study send sums only, and no numbers of single sites")
        return self._counts

    @cached_property
    def _counts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        post, model = self.post, self.model
        if isinstance(post, Regression):
            found = [[rows, post.family.splits] for rows in post.agreed.rows]
        else:
            here = [] if model is None else [[int(model.sizes[0]), bool(model.potential.rowwise)]]
            found = self.sums.gathered(here, "the number of rows")
        rows, splits = (np.array(column) for column in zip(*found, strict=True))
        # numbers of groups stay at the sites
        none = np.zeros(len(found), np.int64)
        return rows, splits, none, none

    def totals(self, network: Network, masks: bool = False) -> Totals:
        """Sums over all sites."""
        exact = StudyTotals(self.sums, self.model)
        if self.noise_of is None:
            return exact
        return CoarseStudyTotals(
            exact, Noise(network.num_agents, self.post.dim, int(self._counts[0].sum())), self.noise_of
        )

    # --- latents, see `posterior.latent_keepers` ---

    def prepare_latents(self) -> None:
        """Nothing to prepare, as each site has its own folder."""

    def keep_latents(self, run: str, agents: Sequence[int], positions: Sequence[np.ndarray], seed: int) -> list[str]:
        """Empty names, as each site draws its latents after the run."""
        return [""] * len(agents)

    def latents_place(self, run: str) -> str:
        """The place of the latents at the sites, for messages."""
        return "the folder of each site's policy"


class StudyTotals:
    """Sums of functions of each site's rows over all sites."""

    def __init__(self, sums: SumExchange, model: Posterior | None) -> None:
        self.sums, self.model = sums, model

    def __call__(self, function: Callable[..., PyTree], *arguments: Any, **options: Any) -> PyTree:
        """The sum of a function over all sites."""
        parts, given = _written(arguments)
        at_once, model = options.pop("at_once", None), self.model
        options = {name: part for name, part in options.items() if part is not None}
        # offsets from one position are positions too
        looked, several = len(arguments[1]) if function is mean_expansion else 1, isinstance(function, Together)
        points = dict[str, Any]()
        if "points" in options:
            given_points = options.pop("points")
            points = _points(given_points if several else (given_points,))
            looked = sum(map(len, points.values()))

        def own(plan: Plan) -> tuple[Sequence[np.ndarray], Any]:
            assert model is not None
            more = {name: plan.parts[name] for name in options} | ({} if at_once is None else {"at_once": at_once})
            chosen = tuple(plan.parts[name] for name in points)
            if chosen:
                more["points"] = chosen if several else chosen[0]
            with jax.enable_x64(True):
                found = jax.tree.leaves(model.totals_here().each(function, *given(plan), **more))
            if self.sums.meter is not None:
                self.sums.meter.exact(model, self.sums.exchange.step)
            return [np.asarray(leaf)[0] for leaf in found], None

        plan = Plan(_name(function), {**parts, **options, **points})
        sums, _ = self.sums.total(plan, looked, own, f"{_described(function)} At {counted(looked, 'position')}.")
        if len(sums) == 1 or model is None:
            return sums[0]
        with jax.enable_x64(True):
            first = jax.tree.map(lambda leaf: leaf[0], model.stacked(agents=model.held))
            shapes: Any = jax.eval_shape(function, model.potential, first, *given(plan))
        names_of_sums: Any = jax.tree.structure(shapes)
        return names_of_sums.unflatten(sums)


class CoarseStudyTotals(CoarseTotals):
    """Sums to which each site adds noise, see `accord.posterior.coarse`.

    Parameters
    ----------
    exact
        The sums without noise, whose plans and rows are used.
    noise
        The noise of all sums.
    noise_of
        This site's generator of noise for a context. The same context gives the same noise, as different noise on the
        same numbers could be averaged away.
    """

    def __init__(self, exact: StudyTotals, noise: Noise, noise_of: NoiseOf) -> None:
        super().__init__(_NoRows(), noise, [])
        self.exact, self.noise_of = exact, noise_of

    def _sender(self, coder: Coder, question: Question) -> Sender:
        """See `CoarseTotals`. A site computes its numbers when a step has no entry of it."""
        sums, model, functions = self.exact.sums, self.exact.model, question.functions
        context, name = sums.exchange.before, " and ".join(map(_name, functions))
        options = {name: part for name, part in question.options.items() if part is not None and name != "at_once"}
        at_once = {name: part for name, part in question.options.items() if name == "at_once"}
        parts, given = _written(question.arguments)
        points = _points(question.points)
        # a site with R cannot know the regions of mass
        radii = {"radii": np.concatenate(question.radii)} if sums.exchange.with_points else {}
        looked = sum(map(len, question.points))
        words = f"{' '.join(map(_described, functions))} With noise and rounded, at {counted(looked, 'position')}."
        first: Plan | None = None
        last: Coder | None = None

        def send(wide: Coder, whole: Coder) -> np.ndarray:
            nonlocal first, last

            # a wider message is of the same positions as the first one, as it has the same noise
            def own(adopted: Plan, before: Plan | None = first, narrow: Coder | None = last) -> np.ndarray:
                assert model is not None
                plan = before or adopted
                chosen = question._replace(
                    arguments=given(plan),
                    points=tuple(plan.parts[name] for name in points),
                    options={name: plan.parts[name] for name in options} | at_once,
                )
                with jax.enable_x64(True):
                    (part,) = chosen.answered(model.totals_here())
                noisy = coder.noisy(part, self.noise_of(context))
                if sums.meter is not None:
                    sent = wide.unclipped(noisy)
                    if narrow is not None:
                        sent &= ~narrow.unclipped(noisy)
                    sums.meter.measure(model, sums.exchange.step, chosen, coder, part, sent)
                return wide.message(noisy)

            last = wide
            if first is not None:
                return sums.integers(Plan(f"{name}, wider, {self.sums}", {}), whole, 0, own, words)
            total = sums.integers(Plan(name, {**parts, **options, **points, **radii}), whole, looked, own, words)
            first = sums.exchange.adopted
            return total

        return send


class _NoRows:
    """Stands for the agents in this process, which `CoarseStudyTotals` evaluates itself."""

    def each(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> NoReturn:
        raise NotImplementedError


def _points(points: tuple[Any, ...]) -> dict[str, Any]:
    """The points of each function of a sum by name, as parts of a plan."""
    return {"points" if len(points) == 1 else f"points {k + 1}": some for k, some in enumerate(points)}


def _written(arguments: tuple[Any, ...]) -> tuple[dict[str, Any], Callable[[Plan], tuple[Any, ...]]]:
    """The leaves of arguments by name, as parts of a plan, and the function that reads arguments from a plan."""
    leaves: list[Any]
    structure: Any
    leaves, structure = jax.tree.flatten(arguments)
    names = [f"argument {k}" for k in range(len(leaves))]
    parts = dict(zip(names, leaves, strict=True))
    return parts, lambda plan: tuple(structure.unflatten([plan.parts[name] for name in names]))


def _name(function: Callable[..., Any]) -> str:
    """The name of a function, also of a partial one."""
    return str(getattr(function, "func", function).__name__)


def _described(function: Callable[..., Any]) -> str:
    """The first line of a function's docstring."""
    if isinstance(function, Together):
        return " ".join(map(_described, function.functions))
    return str(getattr(function, "func", function).__doc__ or _name(function)).strip().splitlines()[0]
