"""The engine of a federation: sums over sites that answer only the requests of a study."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any, NoReturn, Protocol

import numpy as np
from jaxtyping import PyTree

from ..base.errors import DataError
from ..data.remote import Ask
from ..network import Network
from ..posterior import Posterior
from ..posterior.masks import Words, added, decoded, require_masks
from ..posterior.totals import Totals
from ..samplers.protocol import Bound, Sampler
from . import figures
from .policy import RefusedError
from .questions import EACH, SUMS, name_of, written
from .study import StudyDocument
from .wire import Packet, packet, plain, read, revived


class Channel(Protocol):
    """A transport of requests and answers between server and sites."""

    def __call__(self, requests: dict[str, bytes]) -> dict[str, bytes]:
        """The answer of each site to its request, by name. Blocks until all have answered, or one with an error."""
        ...


class Flower:
    """An engine for `accord.sample` whose sums go over the sites of a federation. It runs at the server.

    Parameters
    ----------
    study
        The study, which the policies of all sites must allow.
    channel
        Transport of messages. `accord.flower.server_app` has one over Flower.
    """

    # the server computes the sums
    consensus = None

    def __init__(self, study: StudyDocument, channel: Channel) -> None:
        self.study, self.channel = study, channel
        self.masks = study.masks
        if self.masks:
            require_masks(len(study.sites))
        # name of this run, with its own keys for masks
        self.session = secrets.token_hex(8)
        self._count, self._begun = 0, False
        self._answers: Sequence[Any] = []
        self._model: Posterior | None = None

    def model(self) -> Posterior:
        """The model of the study. On first use the sites agree on it. Their rows stay at the sites."""
        if self._model is None:
            self._model = self.study.at(self)
        return self._model

    # --- interface of `accord.data.remote.AsksSites` ---

    @contextmanager
    def asking(self, agents: int) -> Iterator[Ask]:
        """A context with a function that requests the next answer of each site for building the model."""
        self._begin()

        def ask(work: Any, sites: Sequence[str], answers: Sequence[Any]) -> list[Any]:
            # a reference: the answer to this question is appended later
            self._answers = answers
            found = self._ask("meet", {"answers": plain(answers), "count": self._next_count()})
            if self.same(found, "kind") == "gathered":
                return [revived(one.head["own"]) for one in found]
            if not self.masks:
                return [{name: np.asarray(revived(value)) for name, value in one.head["own"].items()} for one in found]
            # masked numbers are known as a sum only
            return [figures.numbers_of(self.total_words(found), self.same(found, "shapes"), len(found))]

        yield ask

    # --- interface of `accord.samplers.engine.Builder` ---

    def check(self, post: Posterior, sampler: Sampler) -> NoReturn:
        """Refuse methods that send messages along edges: sites are connected to the server only."""
        raise TypeError(
            f"{type(sampler).__name__} sends messages between agents: in a federation use Importance() or ChEES()"
        )

    def states_here(self, num_agents: int) -> int:
        """Zero, as sites have no states."""
        return 0

    @contextmanager
    def placed(self, post: Posterior) -> Iterator[Posterior]:
        """The posterior with its data at the sites."""
        yield post.with_data_at(_Owners(self))

    def preliminary(self, post: Posterior, network: Network, bound: Bound, *, chains: int = 1) -> NoReturn:
        """See `check`."""
        self.check(post, bound.sampler)

    def build(self, post: Posterior, network: Network, bound: Bound, **options: Any) -> NoReturn:
        """See `check`."""
        self.check(post, bound.sampler)

    # --- requests ---

    def _begin(self) -> None:
        """Connect to all sites, and exchange keys for masks."""
        if self._begun:
            return
        self._ask("hello", {})
        if self.masks:
            keys = [[one.head["public"], one.head["signature"]] for one in self._ask("key", {})]
            self._ask("keys", {"keys": keys})
        self._begun = True

    def _next_count(self) -> int:
        self._count += 1
        return self._count

    def ask_agreed(self, kind: str, question: Packet, sites: Sequence[str] | None = None) -> list[Packet]:
        """The answers of all sites, or of some, about the model that they agreed on."""
        self._begin()
        head = {**question.head, "answers": plain(self._answers), "count": self._next_count()}
        return self._ask(kind, head, question.arrays, sites)

    def same(self, found: Sequence[Packet], key: str) -> Any:
        """A value that all sites must share. Raises `DataError` with the name of a site that differs."""
        for site, one in zip(self.study.sites, found, strict=True):
            if one.head.get(key) != found[0].head.get(key):
                raise DataError(f"{site} does not agree with {self.study.sites[0]}: its {key} differs")
        return found[0].head[key]

    def total_words(self, found: Sequence[Packet]) -> Words:
        """The sum of the words of all sites. Raises `DataError` with the name of a site whose shape differs."""
        words = [one.arrays.get("words", np.empty(0)) for one in found]
        for site, own in zip(self.study.sites, words, strict=True):
            if own.dtype != np.uint64 or own.shape != words[0].shape or own.ndim != 2:
                raise DataError(
                    f"{site} does not agree with {self.study.sites[0]}: its words have the shape {own.shape}"
                )
        return added(*words)

    def _ask(
        self,
        kind: str,
        head: dict[str, Any],
        arrays: dict[str, np.ndarray] | None = None,
        sites: Sequence[str] | None = None,
    ) -> list[Packet]:
        """The answers of all sites, or of some, in their order.

        Raises
        ------
        RefusedError
            Sites refuse by their policies.
        DataError
            Sites cannot answer.
        """
        common = {**head, "study": self.study.text, "session": self.session, "kind": kind}
        request = Packet(common, arrays or {}).to_bytes()
        sites = self.study.sites if sites is None else sites
        answers = self.channel(dict.fromkeys(sites, request))
        # after an error, some answers may be missing
        found = {site: read(answers[site]) for site in sites if site in answers}
        errors = [one.head for one in found.values() if "error" in one.head]
        if errors:
            text = "\n  ".join(dict.fromkeys(one["error"] for one in errors))
            raise (RefusedError if all(one["refused"] for one in errors) else DataError)(text)
        return [found[site] for site in sites]


class _Owners:
    """The sites as owners of the data of a posterior."""

    # the server has no data
    mine = range(0)

    def __init__(self, engine: Flower) -> None:
        self.engine = engine

    def each(self, function: Callable[..., PyTree], arguments: tuple[Any, ...], own: tuple[Any, ...]) -> PyTree:
        """The number of rows of each site. Without masks, also the numbers of each site at positions."""
        name = name_of(function, EACH)
        if name != "count":
            return self._own_numbers(name, arguments, own)
        found = [one.head for one in self.engine.ask_agreed("rows", packet({}))]
        rows, splits = (np.array([one[key] for one in found]) for key in ("rows", "splits"))
        # numbers of groups stay at the sites
        none = np.zeros(len(found), np.int64)
        return rows, splits, none, none

    def _own_numbers(self, name: str, arguments: tuple[Any, ...], own: tuple[Any, ...]) -> np.ndarray:
        """Numbers of each site, (site, point). Sites get separate requests, as positions may reveal another's rows.

        `arguments` has positions for all sites, with a mask of sites in `own`. Without it, `own` has them by site.
        """
        sites = self.engine.study.sites
        marks = own[0] if arguments and own else np.ones(len(sites))
        positions = [arguments[0]] * len(sites) if arguments else own[0]
        found = np.zeros((len(sites), len(positions[0])))
        for place in np.flatnonzero(marks):
            question = packet({"name": name, "of": sites[place]}, positions=np.asarray(positions[place]))
            (answer,) = self.engine.ask_agreed("own", question, [sites[place]])
            found[place] = answer.arrays["part"]
        return found

    def totals(self, network: Network, masks: bool = False) -> Totals:
        """Sums over all sites."""
        if masks != self.engine.masks:
            raise ValueError(f"masks={masks}, but the study says masks = {str(self.engine.masks).lower()} in [run]")
        return _FlowerTotals(self.engine)

    # --- latents, see `posterior.latent_keepers` ---

    def prepare_latents(self) -> None:
        """Nothing to prepare, as each site has its own folder."""

    def keep_latents(self, run: str, agents: Sequence[int], positions: Sequence[np.ndarray], seed: int) -> list[str]:
        """Empty names, as sites draw latents later in `keep_draws`."""
        return [""] * len(agents)

    def latents_place(self, run: str) -> str:
        """The place of the latents at the sites, for messages."""
        return f"the folder of each site's policy, {self.engine.session}-agent-*"


def keep_draws(engine: Flower, draws: np.ndarray, seed: int) -> None:
    """Send the draws of a run, (chain, draw, dim), to all sites, which store them and draw their latents."""
    engine.ask_agreed("draws", packet({"seed": seed}, draws=draws))


class _FlowerTotals:
    """Sums over the answers of all sites."""

    def __init__(self, engine: Flower) -> None:
        self.engine = engine

    def __call__(self, function: Callable[..., PyTree], *arguments: Any, **options: Any) -> PyTree:
        """The sum of a function over all sites."""
        found = self.engine.ask_agreed("sum", written(name_of(function, SUMS), arguments, **options))
        if not self.engine.masks:
            return reduce(np.add, [one.arrays["part"] for one in found])
        shape = tuple(self.engine.same(found, "shape"))
        (total,) = decoded(self.engine.total_words(found), [np.empty(shape)], len(found))
        return total
