"""The engine of a federation: a run's sums are made by sites that answer a study and nothing else."""

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
    """What carries requests to sites, and their answers back."""

    def __call__(self, requests: dict[str, bytes]) -> dict[str, bytes]:
        """The answer of each site, by name, to a request of its own; it waits for all, unless one is an error."""
        ...


class Flower:
    """Sums over the sites of a federation; an engine for `accord.sample`, made where the study is led.

    Parameters
    ----------
    study
        What the sites' policies allow.
    channel
        Who carries messages: `accord.flower.server_app` has one over Flower.
    """

    # its sums go to the server
    consensus = None

    def __init__(self, study: StudyDocument, channel: Channel) -> None:
        self.study, self.channel = study, channel
        self.masks = study.masks
        if self.masks:
            require_masks(len(study.sites))
        # of this run, in which sites know each other by keys of their own
        self.session = secrets.token_hex(8)
        self._count, self._begun = 0, False
        self._answers: Sequence[Any] = []
        self._model: Posterior | None = None

    def model(self) -> Posterior:
        """The study's model, whose rows stay with the sites, once these have agreed on it."""
        if self._model is None:
            self._model = self.study.at(self)
        return self._model

    # --- as `accord.data.study_at_sites` has it ---

    @contextmanager
    def asking(self, agents: int) -> Iterator[Ask]:
        """What asks each site for its next answer to making the model."""
        self._begin()

        def ask(work: Any, sites: Sequence[str], answers: Sequence[Any]) -> list[Any]:
            # to which the answer to this question is added when it is known
            self._answers = answers
            found = self._ask("meet", {"answers": plain(answers), "count": self._next_count()})
            if self.same(found, "kind") == "gathered":
                return [revived(one.head["own"]) for one in found]
            if not self.masks:
                return [{name: np.asarray(revived(value)) for name, value in one.head["own"].items()} for one in found]
            # one sum for all of them: nobody's own is known
            return [figures.numbers_of(self.total_words(found), self.same(found, "shapes"), len(found))]

        yield ask

    # --- as `accord.engines.engine.Builder` has it ---

    def check(self, post: Posterior, sampler: Sampler) -> NoReturn:
        """No method that sends messages along edges: sites talk to nobody but the server."""
        raise TypeError(f"{type(sampler).__name__} gossips; a federation goes with Importance() or ChEES()")

    def states_here(self, num_agents: int) -> int:
        """None: sites have no states."""
        return 0

    @contextmanager
    def placed(self, post: Posterior) -> Iterator[Posterior]:
        """The posterior whose data the sites have."""
        yield post.with_data_at(_Owners(self))

    def preliminary(self, post: Posterior, network: Network, bound: Bound, *, chains: int = 1) -> NoReturn:
        """See `check`."""
        self.check(post, bound.sampler)

    def build(self, post: Posterior, network: Network, bound: Bound, **options: Any) -> NoReturn:
        """See `check`."""
        self.check(post, bound.sampler)

    # --- requests ---

    def _begin(self) -> None:
        """See that all sites are there and take part, and let them agree on keys."""
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
        """What all sites, or some, answer about the model that they agreed on."""
        self._begin()
        head = {**question.head, "answers": plain(self._answers), "count": self._next_count()}
        return self._ask(kind, head, question.arrays, sites)

    def same(self, found: Sequence[Packet], key: str) -> Any:
        """What all sites say alike; `DataError` names one that says something else."""
        for site, one in zip(self.study.sites, found, strict=True):
            if one.head.get(key) != found[0].head.get(key):
                raise DataError(f"{site} answers something else than {self.study.sites[0]}: its {key} is another one")
        return found[0].head[key]

    def total_words(self, found: Sequence[Packet]) -> Words:
        """The sum of the words of all sites; `DataError` names one that has none of the right shape."""
        words = [one.arrays.get("words", np.empty(0)) for one in found]
        for site, own in zip(self.study.sites, words, strict=True):
            if own.dtype != np.uint64 or own.shape != words[0].shape or own.ndim != 2:
                raise DataError(f"{site} answers something else than {self.study.sites[0]}: its words are {own.shape}")
        return added(*words)

    def _ask(
        self,
        kind: str,
        head: dict[str, Any],
        arrays: dict[str, np.ndarray] | None = None,
        sites: Sequence[str] | None = None,
    ) -> list[Packet]:
        """What every site answers, or each of some, in their order.

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
        # of those who had time for one, where a site has an error
        found = {site: read(answers[site]) for site in sites if site in answers}
        errors = [one.head for one in found.values() if "error" in one.head]
        if errors:
            text = "\n  ".join(dict.fromkeys(one["error"] for one in errors))
            raise (RefusedError if all(one["refused"] for one in errors) else DataError)(text)
        return [found[site] for site in sites]


class _Owners:
    """Sites as the owners of a posterior's data."""

    # no site's data lies with the server
    mine = range(0)

    def __init__(self, engine: Flower) -> None:
        self.engine = engine

    def each(self, function: Callable[..., PyTree], arguments: tuple[Any, ...], own: tuple[Any, ...]) -> PyTree:
        """How many rows each site has; in a study without masks also its own numbers at positions."""
        name = name_of(function, EACH)
        if name != "count":
            return self._own_numbers(name, arguments, own)
        found = [one.head for one in self.engine.ask_agreed("rows", packet({}))]
        rows, splits = (np.array([one[key] for one in found]) for key in ("rows", "splits"))
        # groups of rows are the site's own affair
        none = np.zeros(len(found), np.int64)
        return rows, splits, none, none

    def _own_numbers(self, name: str, arguments: tuple[Any, ...], own: tuple[Any, ...]) -> np.ndarray:
        """Numbers of each site, (site, point), asked one site after another, as no site is to see another's positions.

        All sites have the positions `arguments`, and `own` may mark who is asked; else `own` has positions by site.
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
        """Sites have folders of their own."""

    def keep_latents(self, run: str, agents: Sequence[int], positions: Sequence[np.ndarray], seed: int) -> list[str]:
        """Nothing: sites draw latents when they are given the run's draws, see `keep_draws`."""
        return [""] * len(agents)

    def latents_place(self, run: str) -> str:
        """Where a site keeps its latents."""
        return f"the folder of each site's policy, {self.engine.session}-agent-*"


def keep_draws(engine: Flower, draws: np.ndarray, seed: int) -> None:
    """Let every site keep the draws of a run, (chain, draw, dim), and draw latents of its own."""
    engine.ask_agreed("draws", packet({"seed": seed}, draws=draws))


class _FlowerTotals:
    """Sums of sites' answers."""

    def __init__(self, engine: Flower) -> None:
        self.engine = engine

    def __call__(self, function: Callable[..., PyTree], *arguments: Any, **options: Any) -> PyTree:
        """The sum over all sites of a function that they answer."""
        found = self.engine.ask_agreed("sum", written(name_of(function, SUMS), arguments, **options))
        if not self.engine.masks:
            return reduce(np.add, [one.arrays["part"] for one in found])
        shape = tuple(self.engine.same(found, "shape"))
        (total,) = decoded(self.engine.total_words(found), [np.empty(shape)], len(found))
        return total
