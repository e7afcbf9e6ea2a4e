"""The program of a study, which every site runs on its own rows."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from ..base.atomic import write_private
from ..base.errors import DataError
from ..data.policy import Policy
from ..engines.silo.latents import keep
from ..examine.report import report
from ..models.regression import Regression
from ..network import Network
from ..posterior import Posterior
from ..results.run import Run
from ..sampling.sample import sample
from . import audit
from .document import StudyDocument
from .engine import NoiseOf, StudyCollectives, StudyEngine, SumExchange, prior_limit
from .entry import HIDDEN, Entry, ForgedError, signed_line, unsigned
from .exchange import EntryFolder, Exchange, Pending, Plan, prepared, refuses
from .keys import SiteMasks, alone, digest, secret_noise
from .ledger import Ledger
from .meter import Meter, Reading
from .policy import RefusedError, SitePolicy

# Largest number of characters of an error in the audit file.
_LONGEST = 500
# Options of a study for `sample`.
_OPTIONS = ("draws", "chains", "seed")
# Share of the largest distance from the prior that draws may have.
_NEAR_LIMIT = 0.9
# The step with the first counts of rows, in studies without differential privacy.
_COUNTS = 2
# File of the report of a study.
_REPORT = "report.html"


class SiteError(DataError):
    """A site failed, for a reason that only its own audit file may contain."""


@dataclass(frozen=True)
class Progress:
    """How far a site has come.

    Parameters
    ----------
    step
        Number of the first step without the entries of all sites.
    waits_for
        The sites whose entries are missing. Empty if the study is finished.
    entries
        All entries of this site by step.
    has
        The sites whose entries of this step the site has.
    run
        The run, if the study is finished.
    reading
        What this site's answers show of one row, over all studies. None if nothing was measured.
    """

    step: int
    waits_for: tuple[str, ...]
    entries: dict[int, bytes]
    has: tuple[str, ...] = ()
    run: Run | None = None
    reading: Reading | None = None


def follow(
    study: StudyDocument,
    sums: SumExchange,
    file: Path | None,
    floors: Policy,
    noise_of: NoiseOf,
    progress: bool | None = None,
) -> tuple[Run, Posterior, StudyEngine]:
    """The run of a study, with its posterior and the engine that makes its sums.

    Parameters
    ----------
    study
        The study.
    sums
        The sums over all sites.
    file
        The site's file. None: a process without rows.
    floors
        Disclosure floors of the site.
    noise_of
        This site's generator of noise for a context, for coarse answers.
    progress
        As in `accord.sample`.

    Raises
    ------
    Pending
        Entries of other sites are missing.
    """
    sums.agree_on_keys()
    noise = noise_of if study.coarse else None
    try:
        post = study.model(StudyCollectives(sums, noise), file, floors)
    except ForgedError:
        raise
    except ValueError:
        # other sites must not wait for this one, whose reason may be about its rows
        if sums.exchange.site is not None:
            with suppress(Pending, ValueError):
                sums.refuse([f"{sums.exchange.site}: its file does not fit the model; the reason is in its audit file"])
        raise
    if study.private is not None and file is not None:
        _log_unfit(study, post, file, sums)
    if sums.meter is not None and isinstance(post, Regression):
        if reasons := sums.meter.refusals(sum(post.agreed.rows)):
            sums.refuse(reasons)
    # the size of the smallest group at other sites is unknown
    post = post.finely() if post.has_latents else post
    engine = StudyEngine(sums, noise)
    options = {key: value for key, value in study.run.items() if key in _OPTIONS}
    run = sample(post, _network(study), study.method, engine=engine, progress=progress, **options)
    _require_near_prior(post, run)
    # all sites have the same draws
    flat = run.average.reshape(-1, run.average.shape[2])
    result = Plan("result", {"means": flat.mean(axis=0), "sds": flat.std(axis=0)})
    sums.exchange.gather(result, lambda plan, context: None, "the means and sds of the draws, which all sites have")
    return run, post, engine


def _log_unfit(study: StudyDocument, post: Posterior, file: Path, sums: SumExchange) -> None:
    """Log which of the site's cells do not fit, which no other site may know."""
    for place in sums.exchange.here:
        fits: Any = post.source(place)
        if unfit := int((fits["weight"] == 0.0).sum()):
            sums.log(unfit_rows(unfit, len(fits["weight"])))
        if warning := study.fitted(place, file).warning:
            sums.log(warning)


def unfit_rows(unfit: int, rows: int) -> str:
    """The message for the site's own log about rows that are left out."""
    return (
        f"{unfit} of {rows} rows are left out: a cell is missing, is no number where the study has a range, is not 0 "
        "or 1, or is no level of the study"
    )


def _require_near_prior(post: Posterior, run: Run) -> None:
    """Raise `ArithmeticError` if draws come near the distance from the prior beyond which sites evaluate nothing."""
    draws, limit = run.moved.average, prior_limit(post.dim)
    farthest = float(post.in_parameters().prior_distance(draws.reshape(-1, draws.shape[2])).max())
    if farthest > _NEAR_LIMIT * limit:
        raise ArithmeticError(
            f"a draw is {farthest:.1f} standard deviations of the prior from its centre, and sites evaluate nothing "
            f"beyond {limit:.1f}, so that the draws may be cut off: use wider priors"
        )


def _network(study: StudyDocument) -> Network:
    """All sites, each with the entries of all others."""
    return Network.star(len(study.sites))


class Site:
    """A site that takes part in studies that its policy allows.

    Parameters
    ----------
    policy
        The policy of the site.
    log
        Prints a line to the site's own log, which no one else sees.
    """

    def __init__(self, policy: SitePolicy, log: Callable[[str], None] = lambda text: None) -> None:
        self.policy, self.log = policy, log

    def answer(
        self, study: StudyDocument, entries: Mapping[tuple[int, str], bytes], progress: bool | None = False
    ) -> Progress:
        """Take the entries of other sites, and run the program of a study as far as they reach.

        Parameters
        ----------
        study
            The study.
        entries
            Entries by step and site, from any carrier.
        progress
            As in `accord.sample`.

        Raises
        ------
        RefusedError
            The policy does not allow the study.
        ForgedError
            An entry was changed, or contradicts what this site has.
        DataError
            The site's file does not fit the study.
        SiteError
            Another error, whose text is in the audit file only.
        TypeError
            `entries` has other keys.
        """
        if wrong := [key for key in entries if not (isinstance(key, tuple) and len(key) == 2)]:
            raise TypeError(
                f"the keys of entries must be pairs (step, site), found {wrong[0]!r}. For the entries of another "
                "site's Progress: {(step, site): entry for step, entry in progress.entries.items()}"
            )
        policy = self.policy
        own_folder = policy.folder / study.hash[:16]
        store = prepared(own_folder)
        with alone(policy.folder):
            try:
                policy.require_study(study)
                self._require_same_data(own_folder)
                return self._answer(study, own_folder, store, entries, progress)
            except (ValueError, ArithmeticError) as error:
                audit.note(policy.folder, study=study.hash, refused=str(error)[:_LONGEST])
                self.log(str(error)[:_LONGEST])
                raise
            except Exception as error:
                # the message may contain data
                audit.note(policy.folder, study=study.hash, failed=traceback.format_exc())
                raise SiteError(f"{policy.site}: {type(error).__name__}, see its audit file") from None

    def entries(self, study: StudyDocument) -> dict[int, bytes]:
        """All entries that this site has made for a study, by step. The last one may say why the site refuses."""
        return self._own(prepared(self.policy.folder / study.hash[:16]))

    def _answer(
        self,
        study: StudyDocument,
        folder: Path,
        store: EntryFolder,
        entries: Mapping[tuple[int, str], bytes],
        progress: bool | None,
    ) -> Progress:
        policy = self.policy
        # the bound of a study with differential privacy is in the ledger
        meter = Meter(policy, study) if study.private is None else None
        if not (folder / "data.txt").is_file():
            Ledger(policy).add(study, folder)

        def made(entry: Entry, text: bytes) -> None:
            # entries of step 0 have keys only
            if entry.step >= 1 and not (folder / "data.txt").is_file():
                write_private(folder / "data.txt", digest(policy.data.read_bytes()).encode())
            if entry.step <= _COUNTS and refuses(entry):
                # the file may be repaired for another study
                Ledger(policy).remove(study, folder)
            # the audit comes first: an extra line is harmless, a missing one is not
            noted = {"step": entry.step, "what": entry.what, "bytes": len(text), "hash": digest(text)}
            if entry.step == 1:
                noted |= self._absent(study)
            if meter is not None and meter.fresh is not None:
                noted["disclosure"], meter.fresh = meter.fresh.rounded, None
            # numbers of sums stay in the entry, which the site's folder has
            if not (isinstance(entry.content, dict) and entry.content.keys() & HIDDEN):
                noted["sent"] = entry.content
            audit.note(policy.folder, study=study.hash, **noted)

        def count_points(points: int) -> None:
            self._count_points(folder, points)

        exchange = Exchange(
            study.hash,
            study.sites,
            policy.site,
            store,
            policy.peers,
            policy.identity,
            made,
            with_points=study.points,
        )
        exchange.take({(step, site): text for (step, site), text in entries.items() if site != policy.site})
        self._require_own(store, entries)
        masks = SiteMasks(folder) if study.masks else None
        sums = SumExchange(exchange, masks, study.masks, count_points, self.log, meter)
        try:
            run, post, engine = follow(study, sums, policy.data, policy.floors, partial(secret_noise, folder), progress)
            self._keep(study, folder, run, post.alone(*exchange.here))
            if study.report and not (folder / _REPORT).is_file():
                report(run, folder / _REPORT, post, _network(study), sites=study.sites, engine=engine)
        except Pending as stop:
            has = tuple(site for site in study.sites if site not in stop.sites and store.read(stop.step, site))
            return Progress(stop.step, stop.sites, self._own(store), has, reading=meter.reading() if meter else None)
        return Progress(exchange.step, (), self._own(store), run=run, reading=meter.reading() if meter else None)

    def _own(self, store: EntryFolder) -> dict[int, bytes]:
        return {step: text for (step, _), text in store.all([self.policy.site]).items()}

    def _require_own(self, store: EntryFolder, entries: Mapping[tuple[int, str], bytes]) -> None:
        """Raise `ForgedError` if entries contain one of this site that it has not stored."""
        for (step, site), text in entries.items():
            if site == self.policy.site and signed_line(store.read(step, site) or b"") != signed_line(text):
                raise ForgedError(
                    f"the entry of {site} in step {step} is not the one that this site made. If its folder was lost, "
                    "the study cannot continue: begin a study with another seed"
                )

    def _keep(self, study: StudyDocument, folder: Path, run: Run, own: Posterior) -> None:
        """Store the run and the site's latents once."""
        if (folder / "run.nc").is_file():
            return
        run.save(folder / "run.nc")
        if own.has_latents:
            keep(own, run.draws[:, :, 0], study.run.get("seed", 0), str(folder), "latents")
        audit.note(self.policy.folder, study=study.hash, finished=str(folder / "run.nc"))

    def _absent(self, study: StudyDocument) -> dict[str, Any]:
        """The missing columns of the site's file. They are logged too."""
        absent = self.policy.absent(study)
        for name, near in absent.items():
            self.log(absent_column(self.policy.data.name, name, near))
        return {"absent": absent} if absent else {}

    def _require_same_data(self, folder: Path) -> None:
        """Raise `DataError` if the site's file has changed since an entry was made from it."""
        if not self.policy.data.is_file():
            raise DataError(f"{self.policy.site}: its policy's `data` names no file ({self.policy.data.name})")
        path = folder / "data.txt"
        if path.is_file() and path.read_text() != digest(self.policy.data.read_bytes()):
            raise DataError(f"{self.policy.site}: its data has changed since this study began")

    def _count_points(self, folder: Path, points: int) -> None:
        """Record positions before they are evaluated. Raises `RefusedError` above the policy's limit."""
        path = folder / "points.txt"
        found = path.read_text().strip() if path.is_file() else "0"
        if not found.isdecimal():
            raise DataError(f"{self.policy.site}: its file {path.name} is damaged and must be repaired")
        before = int(found)
        if before + points > self.policy.points:
            raise RefusedError(
                f"{self.policy.site}: refused, its policy allows sums at {self.policy.points} positions of a study, "
                f"{before} were evaluated before, and now {points} more"
            )
        write_private(path, str(before + points).encode())


def absent_column(file: str, name: str, near: str | None) -> str:
    """The message for the site's own log about a column that its file lacks."""
    return (
        f"{file} has no column {name!r}, which the study needs"
        + (f". It has {near!r}" if near is not None else "")
        + " (names must match exactly)"
    )


def result(
    study: StudyDocument | str | Path,
    folder: str | Path,
    public: Mapping[str, str] | None = None,
) -> Run:
    """The run of a finished study, from the entries of all sites. It needs no rows.

    Parameters
    ----------
    study
        The study, or its file.
    folder
        Folder of all entries.
    public
        Public keys of all sites by name. None: the keys that the entries name. Someone who replaced all entries could
        then have made them.

    Raises
    ------
    DataError
        Entries are missing.
    ForgedError
        An entry was changed.
    """
    study = study if isinstance(study, StudyDocument) else StudyDocument.read(study)
    store = EntryFolder(Path(folder))
    if public is None:
        public = named_keys(study, store)
    exchange = Exchange(study.hash, study.sites, None, store, public, with_points=study.points)
    try:
        run, *_ = follow(study, SumExchange(exchange, None, study.masks), None, Policy.none(), _no_noise)
    except Pending as stop:
        raise DataError(
            f"the study is not finished: {folder} has no entry of {', '.join(stop.sites)} for step {stop.step}"
        ) from None
    return run


def remedy(study: StudyDocument, run: Run) -> str:
    """What to do about a run that is not certified; empty if it is certified."""
    if run.certificate is None or run.certificate.holds:
        return ""
    if study.private is not None:
        return (
            "do not report these draws, because a check failed. Their epsilon is spent. Another study spends more: it "
            "needs more rows, a larger epsilon, narrower ranges or fewer columns"
        )
    advice = "narrower priors or fewer columns"
    if not study.run.get("fallback", False):
        exact = "coarse = false (each policy needs exact = true) and " if study.coarse else ""
        advice = f"{exact}fallback = true in [run], which also tries ChEES() in hundreds of steps, or with {advice}"
    return f"do not report these draws, because a check failed. Begin another study with {advice}"


def _no_noise(context: str) -> NoReturn:
    raise NotImplementedError("a process without rows adds no noise")


def named_keys(study: StudyDocument, store: EntryFolder) -> dict[str, str]:
    """The public keys that the sites name in their first entries."""
    found = {}
    for site in study.sites:
        text = store.read(0, site)
        if text is None:
            raise DataError(f"the study has not begun: there is no entry of {site} for step 0 in {store.folder}")
        where = f"the entry of {site} in step 0"
        try:
            found[site] = str(unsigned(text, where)["content"]["identity"])
        except (LookupError, TypeError) as error:
            raise ForgedError(f"{where} is no entry of a study: {type(error).__name__}") from error
    return found
