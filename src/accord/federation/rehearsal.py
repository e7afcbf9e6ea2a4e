"""A rehearsal of a study: the program of all sites on synthetic rows, in one process, over several data sets."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from ..base.atomic import write_private
from ..base.checks import whole_number
from ..base.errors import unknown_name_error
from ..network import Network
from ..posterior import Posterior
from ..posterior.coarse import Coder
from ..posterior.reference import nuts, require_blackjax
from ..results.run import Run
from ..samplers.by_sums.importance import Importance
from ..sampling.sample import sample
from .document import StudyDocument
from .engine import SumExchange
from .entry import HIDDEN, Entry
from .exchange import EntryFolder, Exchange, Pending, Plan
from .keys import SiteMasks, secret_noise
from .policy import RefusedError, SitePolicy
from .program import follow
from .synthetic import MOVED, Made, Synthetic

# Copies of a number in a masked sum of summaries: in two scales, and a mark.
_COPIES = 3
# Draws of each of four chains of pooled NUTS.
_DRAWS = 2000


@dataclass(frozen=True)
class Step:
    """The entry of one site in one step.

    Parameters
    ----------
    site
        Name of the site.
    what
        The content in words, as in the audit file.
    numbers
        Number of numbers, or of JSON values in the clear.
    bytes
        Bytes of the entry.
    hidden
        Whether masks hide the numbers.
    planned
        Whether the first site must answer before the others.
    """

    site: str
    what: str
    numbers: int
    bytes: int
    hidden: bool
    planned: bool


@dataclass(frozen=True)
class Reference:
    """The posterior of all rows in one place, with the columns and priors of the study.

    Parameters
    ----------
    mean, sd
        Of pooled NUTS, (parameter,).
    log_evidence, error
        Of `Importance()` with exact sums in one process, and its standard error. NaN if it is not certified.
    """

    mean: np.ndarray
    sd: np.ndarray
    log_evidence: float
    error: float


@dataclass(frozen=True)
class Attempt:
    """The study on one synthetic data set.

    Parameters
    ----------
    made
        The true parameters.
    run
        The run, or None if the study stopped.
    stopped
        Why the study stopped; empty if it did not.
    steps
        The entries of all sites by step.
    seconds
        Seconds of all sites together in this process, without the reference.
    reference
        The pooled posterior, or None.
    warned
        Warnings of the program.
    """

    made: Made
    run: Run | None
    stopped: str
    steps: tuple[tuple[Step, ...], ...]
    seconds: float
    reference: Reference | None = None
    warned: tuple[str, ...] = ()

    @property
    def truth(self) -> np.ndarray:
        """The true value of each parameter of the run, (parameter,). NaN if it is not known."""
        assert self.run is not None
        truth = self.made.truth
        return np.array([truth.get(name, truth.get(name.partition("[")[0], np.nan)) for name in self.run.names])


@dataclass(frozen=True)
class Rehearsal:
    """The result of `rehearse`.

    Parameters
    ----------
    study
        The study.
    synthetic
        The shape of the synthetic rows.
    attempts
        The study on each data set.
    refusals
        Reasons in the given policies against the study.
    policies
        The given policies by site. Other sites have the default floors.
    seed
        Seed of the rehearsal.
    """

    study: StudyDocument
    synthetic: Synthetic
    attempts: tuple[Attempt, ...]
    refusals: tuple[str, ...]
    policies: Mapping[str, SitePolicy]
    seed: int
    seconds: float = field(compare=False, default=0.0)

    @property
    def finished(self) -> list[Attempt]:
        """The data sets on which the study finished."""
        return [attempt for attempt in self.attempts if attempt.run is not None]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters, empty if no study finished."""
        runs = [attempt.run for attempt in self.finished if attempt.run is not None]
        return runs[0].names if runs else ()

    def quantiles(self, *levels: float) -> np.ndarray:
        """Quantiles of the draws of the finished studies, (level, data set, parameter)."""
        found = [np.quantile(_flat(attempt.run), levels, axis=0) for attempt in self.finished if attempt.run]
        return np.stack(found, axis=1)

    @property
    def truths(self) -> np.ndarray:
        """The true parameters of the finished studies, (data set, parameter)."""
        return np.stack([attempt.truth for attempt in self.finished])

    def covered(self, probability: float) -> np.ndarray:
        """Whether the central interval of each parameter contains its true value, (data set, parameter)."""
        low, high = self.quantiles((1.0 - probability) / 2.0, (1.0 + probability) / 2.0)
        return (low <= self.truths) & (self.truths <= high)


def _flat(run: Run) -> np.ndarray:
    return run.average.reshape(-1, run.average.shape[2]).astype(np.float64)


def rehearse(
    study: StudyDocument,
    *,
    given: Mapping[str, Any] | None = None,
    policies: Sequence[SitePolicy] = (),
    repetitions: int = 10,
    references: int = 1,
    truth: str = "plausible",
    seed: int = 0,
    report: Callable[[str], None] = lambda text: None,
) -> Rehearsal:
    """Run a study on synthetic rows: all sites in this process, with their policies, noise and masks.

    Parameters
    ----------
    study
        The study, with a formula.
    given
        Keys and values that replace those in [rehearsal], see `Synthetic`.
    policies
        Policies of some sites. Other sites have the default floors. No file of rows is read.
    repetitions
        Number of synthetic data sets, at least 1.
    references
        Number of data sets that are compared with pooled NUTS, at least 0.
    truth
        As in `Synthetic`.
    seed
        An integer >= 0. Equal seeds give equal rows, keys, noise and draws.
    report
        Called with a line about each data set.

    Raises
    ------
    ImportError
        BlackJAX is not installed, and `references` is not 0.
    ValueError
        A number is out of range, a policy is of no site of the study, or `Synthetic` raises it.
    """
    repetitions = whole_number("repetitions", repetitions, 1)
    references = whole_number("references", references, 0)
    seed = whole_number("seed", seed, 0)
    if references:
        require_blackjax("a rehearsal that is compared with pooled NUTS (--references 0 leaves it out)")
    synthetic, own = Synthetic(study, given or {}, truth), {policy.site: policy for policy in policies}
    for site in own:
        if site not in study.sites:
            raise unknown_name_error("site of a policy", site, study.sites)
    began, attempts, refusals = time.monotonic(), [], list[str]()
    for place in range(repetitions):
        with tempfile.TemporaryDirectory(prefix="accord-rehearse-") as name:
            folder = Path(name)
            with warnings.catch_warnings():
                # placeholders of responses may be unusual
                warnings.simplefilter("ignore")
                warnings.filterwarnings("default", MOVED)
                made = synthetic.make(folder, [seed, place])
            if place == 0:
                refusals = [text for policy in policies for text in _refusals(study, policy, made)]
            table = _Table(study, made, own, folder, seed, place)
            attempts.append(table.attempt(place < references))
        found = attempts[-1]
        verdict = found.stopped or str(found.run.certificate).splitlines()[0] if found.run else found.stopped
        report(f"data set {place + 1} of {repetitions}, {found.seconds:.0f} s: {verdict}")
    return Rehearsal(study, synthetic, tuple(attempts), tuple(refusals), own, seed, time.monotonic() - began)


def _refusals(study: StudyDocument, policy: SitePolicy, made: Made) -> list[str]:
    """The reasons in a policy against the study, whose rows are not read."""
    there = made.files[study.sites.index(policy.site)]
    return list(dataclasses.replace(policy, data=there).refusals(study))


class _Board(EntryFolder):
    """The entries of all sites in memory. One site computes at a time."""

    def __init__(self) -> None:
        super().__init__(Path())
        self.entries: dict[tuple[int, str], bytes] = {}
        self.turn, self.failed = threading.Condition(), False

    def read(self, step: int, site: str) -> bytes | None:
        """See `EntryFolder`."""
        return self.entries.get((step, site))

    def write(self, step: int, site: str, entry: bytes) -> None:
        """See `EntryFolder`."""
        self.entries[step, site] = entry
        self.turn.notify_all()

    def wait(self, stop: Pending) -> None:
        """Let other sites compute until they have made their entries of a step."""
        self.turn.wait_for(lambda: self.failed or all((stop.step, site) in self.entries for site in stop.sites))
        if self.failed:
            raise stop


class _Waiting(Exchange):
    """An exchange that waits for the entries of other sites in this process."""

    def gather(self, plan: Plan, own: Callable[[Plan, str], Any], words: str) -> list[Any]:
        """See `Exchange`."""
        while True:
            try:
                return super().gather(plan, own, words)
            except Pending as stop:
                self._wait(stop)

    def refuse(self, problems: Sequence[str]) -> NoReturn:
        """See `Exchange`."""
        while True:
            try:
                super().refuse(problems)
            except Pending as stop:
                self._wait(stop)

    def _wait(self, stop: Pending) -> None:
        assert isinstance(self.store, _Board)
        self.store.wait(stop)


class _Counting(SumExchange):
    """Sums of which the number of rounded numbers of each step is counted."""

    counts: dict[int, int]

    def integers(
        self, plan: Plan, coder: Coder, points: int, own: Callable[[Plan], np.ndarray], words: str
    ) -> np.ndarray:
        """See `SumExchange`."""
        self.counts[self.exchange.step] = len(coder.width)
        return super().integers(plan, coder, points, own, words)


@dataclass
class _Table:
    """All sites of a study around one table, each in a thread with its own keys."""

    study: StudyDocument
    made: Made
    policies: Mapping[str, SitePolicy]
    folder: Path
    seed: int
    place: int

    def __post_init__(self) -> None:
        self.board, self.counts = _Board(), dict[int, int]()
        self.done: dict[str, tuple[Run, Posterior]] = {}
        self.errors: dict[str, Exception] = {}
        self.public = {site: self._keys(site) for site in self.study.sites}

    def attempt(self, with_reference: bool) -> Attempt:
        """Run the study."""
        began = time.monotonic()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            threads = [threading.Thread(target=self._answer, args=(site,)) for site in self.study.sites]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            seconds = time.monotonic() - began
            for error in self.errors.values():
                if not isinstance(error, ValueError | ArithmeticError | Pending):
                    raise error
            # warnings of libraries have other classes
            warned = tuple(dict.fromkeys(str(one.message) for one in caught if one.category is UserWarning))
            steps = self._steps()
            if self.errors:
                reasons = {str(error): None for error in self.errors.values() if not isinstance(error, Pending)}
                return Attempt(self.made, None, _first(reasons), steps, seconds, None, warned)
            runs = [self.done[site] for site in self.study.sites]
            run = runs[0][0]
            reference = self._reference(run, [post for _, post in runs]) if with_reference else None
        return Attempt(self.made, run, "", steps, seconds, reference, warned)

    def _answer(self, site: str) -> None:
        """The program of one site."""
        study, policy, folder = self.study, self.policies.get(site), self.folder / f"site-{site}"
        place, board = study.sites.index(site), self.board
        floors = SitePolicy(site, Path(), Path(), ()).floors if policy is None else policy.floors
        most, points = np.inf if policy is None else policy.points, 0

        def count_points(more: int) -> None:
            nonlocal points
            points += more
            if points > most:
                raise RefusedError(f"{site}: refused, its policy allows sums at {most} positions of a study")

        with board.turn:
            try:
                exchange = _Waiting(study.hash, study.sites, site, board, self.public, folder / "identity")
                sums = _Counting(exchange, SiteMasks(folder) if study.masks else None, study.masks, count_points)
                sums.counts = self.counts
                file, noise_of = self.made.files[place], partial(secret_noise, folder)
                run, post, _ = follow(study, sums, file, floors, noise_of, progress=False)
                self.done[site] = run, post
            except Exception as error:
                self.errors[site] = error
                board.failed = True
            finally:
                board.turn.notify_all()

    def _keys(self, site: str) -> str:
        """Write the keys of a site, made from the seed. Returns the public key."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        folder = self.folder / f"site-{site}"
        folder.mkdir()

        def key(purpose: str) -> bytes:
            return hashlib.sha256(json.dumps([self.seed, self.place, site, purpose]).encode()).digest()

        def text(found: bytes) -> str:
            return base64.b64encode(found).decode()

        write_private(folder / "identity", text(key("identity")).encode())
        write_private(folder / "noise.key", text(key("noise")).encode())
        private = key("masks")
        public = X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
        write_private(folder / "masks.json", json.dumps({"private": text(private), "public": text(public)}).encode())
        return text(Ed25519PrivateKey.from_private_bytes(key("identity")).public_key().public_bytes_raw())

    def _steps(self) -> tuple[tuple[Step, ...], ...]:
        """The entries of all sites by step."""
        found: dict[int, list[Step]] = {}
        for (number, site), text in sorted(self.board.entries.items()):
            entry = Entry.read(text, self.public, site)
            first = self.board.read(number, self.study.sites[0])
            planned = first is not None and bool(Entry.read(first, self.public, site).written.get("parts"))
            content = entry.content if isinstance(entry.content, dict) else {}
            numbers, hidden = _leaves(entry.content), self.study.masks and not content.keys().isdisjoint(HIDDEN)
            if "like" in content:
                numbers = sum(int(np.prod(shape, dtype=int)) for _, *shape in content["like"])
                numbers //= _COPIES if content["about"] else 1
            elif "coarse" in content:
                numbers = self.counts[number]
            step = Step(site, entry.what, numbers, len(text), hidden, planned)
            found.setdefault(number, []).append(step)
        return tuple(tuple(own) for _, own in sorted(found.items()))

    def _reference(self, run: Run, posts: Sequence[Posterior]) -> Reference:
        """The posterior of all rows, with the columns that the sites agreed on."""
        pooled = posts[0].with_shards([post.source(place) for place, post in enumerate(posts)])
        # reads the rows before NUTS is compiled
        pooled.sizes  # noqa: B018
        drawn = nuts(pooled, draws=_DRAWS, seed=self.seed)
        flat = drawn.reshape(-1, drawn.shape[2])
        value = error = np.nan
        try:
            here = sample(pooled, Network.star(len(posts)), Importance(), draws=1000, seed=self.seed, progress=False)
            value, error = here.log_evidence
        except ArithmeticError:
            # not certified, or no mode
            pass
        return Reference(flat.mean(axis=0), flat.std(axis=0), value, error)


def _leaves(value: Any) -> int:
    """The number of JSON values in nested lists and tables."""
    if isinstance(value, dict):
        return sum(map(_leaves, value.values()))
    return sum(map(_leaves, value)) if isinstance(value, list) else int(value is not None)


def _first(reasons: Mapping[str, None]) -> str:
    return next(iter(reasons), "a site stopped without a reason")
