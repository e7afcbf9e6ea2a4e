"""A site: it answers requests of studies that its policy allows, and records them in its audit file."""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..base.atomic import make_private, write_private
from ..base.errors import DataError
from ..data.cells import AboutCells
from ..data.collectives import Pending, ReplayCollectives
from ..engines.silo.latents import keep
from ..posterior import Posterior
from ..posterior.masks import Words, encoded
from . import audit, figures
from .keys import KeptMasks, alone, bytes_of, digest, is_signed, signature, statement, text_of
from .policy import RefusedError, SitePolicy
from .questions import OWN, SUMS, understood
from .study import StudyDocument, hash_of
from .wire import Packet, packet, plain, read, revived

# Largest number of numbers in one answer.
_MOST_NUMBERS = 50_000_000
# Largest number of characters of an error in the audit file.
_LONGEST = 500


class Site:
    """Answers the requests of a study's server at a site. Other requests are refused.

    Parameters
    ----------
    policy
        Policy of the site.
    log
        Prints a line to the site's own log, which no one else sees.
    """

    def __init__(self, policy: SitePolicy, log: Callable[[str], None] = lambda text: None) -> None:
        self.policy, self.log = policy, log

    def answer(self, request: bytes) -> bytes:
        """The answer to a request, both encoded by `wire.Packet.to_bytes`. Refusals are answers too."""
        make_private(self.policy.folder)
        with alone(self.policy.folder):
            return self._answer(request)

    def _answer(self, request: bytes) -> bytes:
        policy, labels = self.policy, dict[str, str]()
        # a repeated request, whose answer was lost, gets the same answer
        for kept in (policy.folder / "answered").glob(f"*-{digest(request)}"):
            answer = kept.read_bytes()
            audit.note(policy.folder, again=kept.name, hash=digest(answer))
            return answer
        try:
            head, arrays = read(request)
            text, session, kind = (str(head[name]) for name in ("study", "session", "kind"))
            labels = _named(session, hash_of(text), kind)
            # check the hash before parsing the document
            policy.require_hash(hash_of(text))
            study = StudyDocument(text)
            policy.require_study(study)
            if not labels.keys() >= {"run", "kind"}:
                raise RefusedError(f"{policy.site}: refused, it answers {', '.join(_ANSWERS)} of a run")
            run = _SiteRun(session, study, policy.folder / "runs" / session, request)
            make_private(run.folder)
            self._require_same_data(run)
            found, noted = _ANSWERS[kind](self, run, Packet(head, arrays))
        except json.JSONDecodeError:
            audit.note(policy.folder, **labels, failed=traceback.format_exc())
            text = f"{policy.site}: its files of this run are damaged, see its audit file. Begin another run"
            return self._failure(text, refused=False)
        except (RefusedError, DataError, ValueError, ArithmeticError) as error:
            audit.note(policy.folder, **labels, refused=str(error)[:_LONGEST])
            self.log(str(error)[:_LONGEST])
            return self._failure(str(error), refused=isinstance(error, RefusedError))
        except Exception as error:
            # the message may contain data, and is recorded at the site only
            audit.note(policy.folder, **labels, failed=traceback.format_exc())
            return self._failure(f"{policy.site}: {type(error).__name__}, see its audit file", refused=False)
        # every answer names its site, as nodes change
        answer = Packet({**found.head, "site": policy.site}, found.arrays).to_bytes()
        # the audit comes first: an extra line is harmless, a missing one is not
        audit.note(policy.folder, **labels, **noted, bytes=len(answer), hash=digest(answer))
        _keep_newest(policy.folder / "answered", session, digest(request), answer)
        return answer

    def _failure(self, text: str, *, refused: bool) -> bytes:
        return packet({"error": text, "refused": refused, "site": self.policy.site}).to_bytes()

    # --- answers, each with the entries of its audit line ---

    def _hello(self, run: _SiteRun, request: Packet) -> tuple[Packet, dict[str, Any]]:
        return packet({}), {}

    def _key(self, run: _SiteRun, request: Packet) -> tuple[Packet, dict[str, Any]]:
        """A signed public key for the masks of this run."""
        public = run.masks.begin()
        if self.policy.identity is None:
            raise RefusedError(f"{self.policy.site}: refused, its policy names no `identity` to sign its key with")
        signed = signature(self.policy.identity, statement(run.session, run.study.hash, self.policy.site, public))
        return packet({"public": text_of(public), "signature": text_of(signed)}), {}

    def _keys(self, run: _SiteRun, request: Packet) -> tuple[Packet, dict[str, Any]]:
        """Derive the keys of the masks from the signed public keys of all sites."""
        publics = []
        for site, (public, signed) in zip(run.study.sites, request.head["keys"], strict=True):
            publics.append(bytes_of(public))
            message = statement(run.session, run.study.hash, site, publics[-1])
            if not is_signed(self.policy.peers[site], message, bytes_of(signed)):
                raise RefusedError(
                    f"{self.policy.site}: refused, the key that is given out for {site} is not signed by it"
                )
        run.masks.agree(self._place(run), publics, f"{run.session} {run.study.hash}".encode())
        return packet({}), {}

    def _meet(self, run: _SiteRun, request: Packet) -> tuple[Packet, dict[str, Any]]:
        """The site's next answer for building the model, given the answers so far."""
        answers = revived(request.head["answers"])
        self._require_continued(run, request.head["answers"])
        try:
            self._model(run, answers)
        except Pending as stop:
            question = stop.question
        else:
            raise ValueError(f"{self.policy.site}: the model is complete and needs no more answers")
        (own,) = question.own
        if question.kind == "gathered":
            noted = {"question": len(answers), "sent": plain(own)} | self._absent(run, len(answers))
            for text in own if isinstance(own, list) else ():
                if isinstance(text, AboutCells):
                    self.log(text)
            return packet({"kind": "gathered", "own": plain(own)}), noted
        shapes = figures.shapes_of(own)
        noted = {"question": len(answers), "shapes": shapes}
        self._count_points(run, sum(int(np.prod(shape, dtype=int)) for shape in shapes.values()))
        if run.masked:
            words = run.masked_words(figures.leaves_of(own), int(request.head["count"]))
            return packet({"kind": "total", "shapes": shapes}, words=words), noted
        return packet({"kind": "total", "own": plain(own)}), noted

    def _absent(self, run: _SiteRun, question: int) -> dict[str, Any]:
        """The missing columns of the site's file, at the first question. They are logged too."""
        absent = self.policy.absent(run.study) if question == 0 else {}
        for name, near in absent.items():
            self.log(absent_column(self.policy.data.name, name, near))
        return {"absent": absent} if absent else {}

    def _rows(self, run: _SiteRun, request: Packet) -> tuple[Packet, dict[str, Any]]:
        """The number of rows of the site in the model."""
        model = self._agreed(run, request)
        rows = int(model.sizes[0])
        return packet({"rows": rows, "splits": bool(model.potential.rowwise)}), {"rows": rows}

    def _sum(self, run: _SiteRun, request: Packet) -> tuple[Packet, dict[str, Any]]:
        """The site's part of a sum, masked if the study is."""
        model, name = self._agreed(run, request), str(request.head["name"])
        if name not in SUMS:
            raise RefusedError(f"{self.policy.site}: refused, it answers {', '.join(SUMS)}, and not {name!r}")
        arguments, options, points = understood(request, model.dim)
        if points * (model.dim + 1) ** 2 > _MOST_NUMBERS:
            raise RefusedError(f"{self.policy.site}: refused, {points} points are too many for one question")
        self._count_points(run, points)
        with jax.enable_x64(True):
            here = model.totals_here()
            (part,) = np.asarray(here.each(SUMS[name], *arguments, **options), np.float64)
        noted = {"question": name, "points": points, "shape": list(part.shape)}
        if not run.masked:
            return packet({}, part=part), noted
        words = run.masked_words([part], int(request.head["count"]))
        return packet({"shape": list(part.shape)}, words=words), noted

    def _own(self, run: _SiteRun, request: Packet) -> tuple[Packet, dict[str, Any]]:
        """The site's own numbers at positions, for a study without masks, if its policy allows them."""
        if run.masked:
            raise RefusedError(
                f"{self.policy.site}: refused, its own numbers reveal its rows, and the sums of this study are masked"
            )
        if request.head["of"] != self.policy.site:
            # an unknown node gets the request of another site
            return packet({}), {"of": request.head["of"]}
        model, name = self._agreed(run, request), str(request.head["name"])
        if name not in OWN:
            raise RefusedError(f"{self.policy.site}: refused, it answers {', '.join(OWN)}, and not {name!r}")
        positions = np.asarray(request.arrays["positions"], np.float64)
        _, _, points = understood(packet({"arguments": 0, "at_once": None}, points=positions), model.dim)
        if points * (model.dim + 1) > _MOST_NUMBERS:
            raise RefusedError(f"{self.policy.site}: refused, {points} points are too many for one question")
        self._count_points(run, points)
        (part,) = model.each(OWN[name], positions)
        return packet({}, part=np.asarray(part, np.float64)), {"question": name, "points": points, "shape": [points]}

    def _draws(self, run: _SiteRun, request: Packet) -> tuple[Packet, dict[str, Any]]:
        """Store the draws of the run and draw the site's own latents, in the site's folder."""
        model, draws = self._agreed(run, request), request.arrays["draws"]
        if draws.ndim != 3 or draws.shape[2] != model.dim or draws.size > _MOST_NUMBERS:
            raise ValueError(f"draws must be of shape (chain, draw, {model.dim}), found {draws.shape}")
        if (run.folder / "draws.npz").exists():
            raise RefusedError(f"{self.policy.site}: refused, it has the draws of this run already")
        np.savez(run.folder / "draws.npz", draws=draws, names=np.array(model.names))
        if model.has_latents:
            with jax.enable_x64(True):
                keep(model, draws, int(request.head["seed"]), str(self.policy.folder), run.session)
        return packet({}), {"draws": list(draws.shape)}

    # --- the model ---

    def _place(self, run: _SiteRun) -> int:
        return run.study.sites.index(self.policy.site)

    def _model(self, run: _SiteRun, answers: list[Any]) -> Posterior:
        meeting = _OwnKept(run.study.sites, (self._place(run),), answers)
        model = run.study.model(meeting, self.policy.data, self.policy.floors)
        if not meeting.is_complete:
            raise RefusedError(f"{self.policy.site}: refused, there are more answers than questions")
        return model

    def _agreed(self, run: _SiteRun, request: Packet) -> Posterior:
        """The model that all sites agreed on, which is fixed for the run."""
        answers = request.head["answers"]
        self._require_continued(run, answers)
        model = self._model(run, revived(answers)).alone(self._place(run))
        # the size of the smallest group at other sites is unknown
        return model.finely() if model.has_latents else model

    def _require_continued(self, run: _SiteRun, answers: list[Any]) -> None:
        """Raise `RefusedError` unless these answers continue the earlier ones of this run."""
        path, count = run.folder / "answers.json", len(answers)
        before: dict[str, Any] = {"count": 0, "hash": _hash_of_answers([])}
        if path.is_file():
            before = json.loads(path.read_text())
        if count < before["count"] or _hash_of_answers(answers[: before["count"]]) != before["hash"]:
            raise RefusedError(
                f"{self.policy.site}: refused, the answers of all sites differ from the earlier ones of this run"
            )
        if count > before["count"]:
            now = {"count": count, "hash": _hash_of_answers(answers)}
            write_private(path, json.dumps(now).encode())

    def _require_same_data(self, run: _SiteRun) -> None:
        """Raise `DataError` if the site's file has changed since the run began."""
        if not self.policy.data.is_file():
            raise DataError(f"{self.policy.site}: its policy's `data` names no file ({self.policy.data.name})")
        path, now = run.folder / "data.txt", digest(self.policy.data.read_bytes())
        if not path.is_file():
            write_private(path, now.encode())
        elif path.read_text() != now:
            raise DataError(f"{self.policy.site}: its data has changed since this run began")

    def _count_points(self, run: _SiteRun, points: int) -> None:
        """Record the requested positions before they are answered. Raises `RefusedError` above the policy's limit."""
        path = self.policy.folder / f"points-{run.study.hash[:16]}.txt"
        found = path.read_text().strip() if path.is_file() else "0"
        if not found.isdecimal():
            raise DataError(
                f"{self.policy.site}: its file {path.name} is damaged and must be repaired by its administrator"
            )
        before = int(found)
        if before + points > self.policy.points:
            raise RefusedError(
                f"{self.policy.site}: refused, its policy allows sums at {self.policy.points} positions of a study, "
                f"{before} were requested before, and now {points} more"
            )
        write_private(path, str(before + points).encode())


def absent_column(file: str, name: str, near: str | None) -> str:
    """The message for the site's own log about a column that its file lacks."""
    return (
        f"{file} has no column {name!r}, which the study needs"
        + (f". It has {near!r}" if near is not None else "")
        + " (names must match exactly)"
    )


def _named(session: str, study: str, kind: str) -> dict[str, str]:
    """Labels of a run, a study and a question for the audit file, without invalid ones."""
    found = {"run": session, "study": study, "kind": kind}
    if re.fullmatch("[0-9a-f]{16}", session) is None:
        del found["run"]
    if kind not in _ANSWERS:
        del found["kind"]
    return found


def _keep_newest(folder: Path, session: str, request: str, answer: bytes) -> None:
    """Store an answer and remove the previous one of its run."""
    make_private(folder)
    for before in folder.glob(f"{session}-*"):
        before.unlink()
    write_private(folder / f"{session}-{request}", answer)


def _hash_of_answers(answers: list[Any]) -> str:
    return digest(json.dumps(answers).encode())


class _OwnKept(ReplayCollectives):
    """Collectives of a site that check that its own answers came back unchanged.

    So a server cannot alter the site's refusals or the kinds of its columns.
    """

    def gathered(self, own: Sequence[Any]) -> list[Any]:
        """See `SiteCollectives`."""
        found = super().gathered(own)
        (place,) = self.here
        if len(found) != len(self.sites) or plain(found[place]) != plain(own[0]):
            raise RefusedError(f"{self.sites[place]}: refused, its own answer came back changed")
        return found


class _SiteRun:
    """A run of a study at a site."""

    def __init__(self, session: str, study: StudyDocument, folder: Path, request: bytes) -> None:
        self.session, self.study, self.folder, self.request = session, study, folder, request
        self.masks, self.masked = KeptMasks(folder), study.masks

    def masked_words(self, leaves: Sequence[np.ndarray], count: int) -> Words:
        """Arrays of the site as masked words for this request."""
        return self.masks.masked(count, encoded(leaves, len(self.study.sites)), self.request)


_ANSWERS: dict[str, Callable[..., tuple[Packet, dict[str, Any]]]] = {
    "hello": Site._hello,
    "key": Site._key,
    "keys": Site._keys,
    "meet": Site._meet,
    "rows": Site._rows,
    "sum": Site._sum,
    "own": Site._own,
    "draws": Site._draws,
}
