"""Carry entries over messages: the server sends a site the entries that it lacks, and the site returns its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ...base.atomic import make_private
from ...base.errors import DataError
from ...base.text import cleaned, json_of
from .. import audit
from ..document import StudyDocument, hash_of
from ..entry import ForgedError, signed_line, unsigned
from ..exchange import EntryFolder
from ..policy import RefusedError, SitePolicy
from ..program import Site, result


class Channel(Protocol):
    """A transport of requests and answers between server and sites."""

    def __call__(self, requests: dict[str, bytes]) -> dict[str, bytes]:
        """The answer of each site to its request, by name. Blocks until all have answered, or one with an error."""
        ...


# --- at a site ---


def answered(policy: SitePolicy, request: bytes, log: Callable[[str], None] = lambda text: None) -> bytes:
    """The site's answer to a message of the server. Refusals are answers too.

    Parameters
    ----------
    policy
        The policy of the site.
    request
        A message of `collect`: the study, entries of other sites, and the first step of which the server lacks the
        entry of this site.
    log
        Prints a line to the site's own log.
    """
    try:
        message = json_of(request)
        text, since = str(message["study"]), int(message["since"])
        entries = {(int(step), str(site)): str(entry).encode() for step, site, entry in message["entries"]}
    except (ValueError, KeyError, TypeError) as error:
        wrong = DataError(f"{policy.site}: a message of {len(request)} bytes is no request: {type(error).__name__}")
        return _refused(policy, wrong, log)
    try:
        # check the hash before parsing the document
        policy.require_hash(hash_of(text))
        study = StudyDocument(text)
        if not study.masks:
            raise RefusedError(f"{policy.site}: refused, a study without masks travels by files only")
    except (ValueError, RecursionError) as error:
        return _refused(policy, error, log, study=hash_of(text))
    known = {place: entry for place, entry in entries.items() if place[1] in study.sites}
    try:
        found = Site(policy, log).answer(study, known)
    except (ValueError, ArithmeticError) as error:
        return failed(str(error), policy.site, refused=isinstance(error, RefusedError))
    own = [[step, entry.decode()] for step, entry in sorted(found.entries.items()) if step >= since]
    answer = {"site": policy.site, "step": found.step, "waits_for": found.waits_for, "has": found.has, "entries": own}
    return json.dumps(answer).encode()


def _refused(policy: SitePolicy, error: Exception, log: Callable[[str], None], **study: str) -> bytes:
    """The answer to a message that the site does not process. Its audit file has the reason too."""
    make_private(policy.folder)
    audit.note(policy.folder, **study, refused=str(error))
    log(str(error))
    return failed(str(error), policy.site, refused=isinstance(error, RefusedError))


def failed(text: str, site: str | None = None, *, refused: bool = False) -> bytes:
    """An answer with an error."""
    named = {} if site is None else {"site": site}
    return json.dumps({"error": text, "refused": refused, **named}).encode()


# --- at the server ---


@dataclass(frozen=True)
class _State:
    """What the server knows of a site: its step, the sites whose entries of this step it has, and if it finished."""

    step: int = 0
    has: tuple[str, ...] = ()
    finished: bool = False


def lead(study: StudyDocument, channel: Channel, folder: Path, log: Callable[[str], None]) -> None:
    """Collect the entries of a study in a folder, and store its run there. An interrupted study continues."""
    entries = EntryFolder(folder / "entries")
    log(f"study {study.hash}; sites {', '.join(study.sites)}")
    collect(study, channel, entries, log)
    run = result(study, entries.folder)
    run.save(folder / "run.nc")
    log(f"{run.traffic.sums} sums; {folder / 'run.nc'}")
    print(run.summary().to_string(), flush=True)


def collect(study: StudyDocument, channel: Channel, folder: EntryFolder, log: Callable[[str], None]) -> None:
    """Carry entries between the sites of a study until all have finished. The server cannot change them unnoticed.

    Parameters
    ----------
    study
        The study.
    channel
        Transport of messages.
    folder
        All entries. A restarted server continues with them.
    log
        Prints a line for each step.

    Raises
    ------
    RefusedError
        Sites refuse by their policies.
    DataError
        Sites cannot answer, or none can continue.
    """
    states: dict[str, _State] = {}
    shown, messages, sent, received = -1, 0, 0, 0
    while not all(site in states and states[site].finished for site in study.sites):
        requests = {}
        for site in study.sites:
            state = states.get(site)
            lacks = _lacks(study, folder, site, state)
            if state is None or (lacks and not state.finished):
                since = 0
                while folder.read(since, site) is not None:
                    since += 1
                message = {"study": study.text, "since": since, "entries": lacks}
                requests[site] = json.dumps(message).encode()
        if not requests:
            raise DataError("no site can continue: each waits for an entry that no site has made")
        found = channel(requests)
        messages += len(requests)
        sent += sum(map(len, requests.values()))
        received += sum(map(len, found.values()))
        answers = {site: json_of(answer) for site, answer in found.items()}
        _raise(answers)
        for site, answer in answers.items():
            states[site] = _State(int(answer["step"]), tuple(answer["has"]), not answer["waits_for"])
            for step, entry in answer["entries"]:
                _store(folder, int(step), site, str(entry).encode())
        step = min(state.step for state in states.values())
        if step > shown and (words := _words_of(study, folder, step)):
            shown = step
            log(f"step {step}: {words}")
    log(f"{messages} messages, {sent / 1e3:.0f} kB to the sites and {received / 1e3:.0f} kB from them")


def _lacks(study: StudyDocument, folder: EntryFolder, site: str, state: _State | None) -> list[list[Any]]:
    """The entries of other sites that a site does not have yet."""
    if state is None:
        return []
    found: list[list[Any]] = []
    step = state.step
    while True:
        there = {other: folder.read(step, other) for other in study.sites if other != site}
        new = {other: entry for other, entry in there.items() if entry is not None}
        if not new:
            return found
        found += [[step, other, new[other].decode()] for other in new if step > state.step or other not in state.has]
        step += 1


def _store(folder: EntryFolder, step: int, site: str, entry: bytes) -> None:
    before = folder.read(step, site)
    if before is not None and signed_line(before) != signed_line(entry):
        raise ForgedError(f"{site} sent two different entries of step {step}")
    if before is None:
        folder.write(step, site, entry)


def _words_of(study: StudyDocument, folder: EntryFolder, step: int) -> str:
    """The content of a step in words, from its first entry; empty if there is none."""
    found = [(site, entry) for site in study.sites if (entry := folder.read(step, site)) is not None]
    return cleaned(unsigned(found[0][1], f"the entry of {found[0][0]} in step {step}").get("what")) if found else ""


def _raise(answers: Mapping[str, dict[str, Any]]) -> None:
    """Raise the errors in answers, if there are any."""
    errors = [answer for answer in answers.values() if "error" in answer]
    if errors:
        text = "\n  ".join(cleaned(answer["error"]) for answer in errors)
        raise (RefusedError if all(answer.get("refused") for answer in errors) else DataError)(text)
