"""A site: it answers the questions of studies that its policy allows, and keeps an account of them."""

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

# Numbers of one answer at most, and characters of an error in the audit file.
_MOST_NUMBERS, _LONGEST = 50_000_000, 500


class Site:
    """What answers at a site, to a server that may ask for nothing but what is here.

    Parameters
    ----------
    policy
        What the site's administrator allows.
    tell
        What is told to the site's own log, and to nobody else.
    """

    def __init__(self, policy: SitePolicy, tell: Callable[[str], None] = lambda text: None) -> None:
        self.policy, self.tell = policy, tell

    def answer(self, request: bytes) -> bytes:
        """The answer to a request, both as `wire.Packet.to_bytes` makes them; refusals are answers."""
        make_private(self.policy.folder)
        with alone(self.policy.folder):
            return self._answer(request)

    def _answer(self, request: bytes) -> bytes:
        policy, asked = self.policy, dict[str, str]()
        # a request that comes again, as its answer was lost, has the very same answer
        for kept in (policy.folder / "answered").glob(f"*-{digest(request)}"):
            answer = kept.read_bytes()
            audit.note(policy.folder, again=kept.name, hash=digest(answer))
            return answer
        try:
            head, arrays = read(request)
            text, session, kind = (str(head[name]) for name in ("study", "session", "kind"))
            asked = _named(session, hash_of(text), kind)
            # what nobody approved is not looked at any further
            policy.require_hash(hash_of(text))
            study = StudyDocument(text)
            policy.require_study(study)
            if not asked.keys() >= {"run", "kind"}:
                raise RefusedError(f"{policy.site}: refused, it answers {', '.join(_ANSWERS)} of a run")
            run = _SiteRun(session, study, policy.folder / "runs" / session, request)
            make_private(run.folder)
            self._require_same_data(run)
            found, said = _ANSWERS[kind](self, run, Packet(head, arrays))
        except json.JSONDecodeError:
            audit.note(policy.folder, **asked, failed=traceback.format_exc())
            text = f"{policy.site}: what it keeps of this run is damaged, see its audit file; begin another run"
            return self._failure(text, refused=False)
        except (RefusedError, DataError, ValueError, ArithmeticError) as error:
            audit.note(policy.folder, **asked, refused=str(error)[:_LONGEST])
            self.tell(str(error)[:_LONGEST])
            return self._failure(str(error), refused=isinstance(error, RefusedError))
        except Exception as error:
            # what else fails may quote anything: it is told here, and not to others
            audit.note(policy.folder, **asked, failed=traceback.format_exc())
            return self._failure(f"{policy.site}: {type(error).__name__}, see its audit file", refused=False)
        # nodes come and go: every answer says whose it is
        answer = Packet({**found.head, "site": policy.site}, found.arrays).to_bytes()
        # a line too many does no harm, one too few does
        audit.note(policy.folder, **asked, **said, bytes=len(answer), hash=digest(answer))
        _keep_newest(policy.folder / "answered", session, digest(request), answer)
        return answer

    def _failure(self, text: str, *, refused: bool) -> bytes:
        return packet({"error": text, "refused": refused, "site": self.policy.site}).to_bytes()

    # --- what it answers: the answer, and what is noted of it ---

    def _hello(self, asked: _SiteRun, request: Packet) -> tuple[Packet, dict[str, Any]]:
        return packet({}), {}

    def _key(self, asked: _SiteRun, request: Packet) -> tuple[Packet, dict[str, Any]]:
        """A public key for the masks of this run, signed."""
        public = asked.masks.begin()
        if self.policy.identity is None:
            raise RefusedError(f"{self.policy.site}: refused, its policy names no `identity` to sign its key with")
        signed = signature(self.policy.identity, statement(asked.session, asked.study.hash, self.policy.site, public))
        return packet({"public": text_of(public), "signature": text_of(signed)}), {}

    def _keys(self, asked: _SiteRun, request: Packet) -> tuple[Packet, dict[str, Any]]:
        """The masks' keys, from the signed public keys of all sites."""
        publics = []
        for site, (public, signed) in zip(asked.study.sites, request.head["keys"], strict=True):
            publics.append(bytes_of(public))
            message = statement(asked.session, asked.study.hash, site, publics[-1])
            if not is_signed(self.policy.peers[site], message, bytes_of(signed)):
                raise RefusedError(
                    f"{self.policy.site}: refused, the key that is given out for {site} is not signed by it"
                )
        asked.masks.agree(self._place(asked), publics, f"{asked.session} {asked.study.hash}".encode())
        return packet({}), {}

    def _meet(self, asked: _SiteRun, request: Packet) -> tuple[Packet, dict[str, Any]]:
        """The site's next answer in making the model, given those of all sites so far."""
        answers = revived(request.head["answers"])
        self._require_continued(asked, request.head["answers"])
        try:
            self._model(asked, answers)
        except Pending as stop:
            question = stop.question
        else:
            raise ValueError(f"{self.policy.site}: the model has been made, and asks for nothing more")
        (said,) = question.own
        if question.kind == "gathered":
            noted = {"question": len(answers), "told": plain(said)} | self._absent(asked, len(answers))
            for text in said if isinstance(said, list) else ():
                if isinstance(text, AboutCells):
                    self.tell(text)
            return packet({"kind": "gathered", "own": plain(said)}), noted
        shapes = figures.shapes_of(said)
        noted = {"question": len(answers), "shapes": shapes}
        self._count_points(asked, sum(int(np.prod(shape, dtype=int)) for shape in shapes.values()))
        if asked.masked:
            words = asked.masked_words(figures.leaves_of(said), int(request.head["count"]))
            return packet({"kind": "total", "shapes": shapes}, words=words), noted
        return packet({"kind": "total", "own": plain(said)}), noted

    def _absent(self, asked: _SiteRun, question: int) -> dict[str, Any]:
        """What is noted, at the first question, of columns that the site's file has not; its log has it too."""
        absent = self.policy.absent(asked.study) if question == 0 else {}
        for name, near in absent.items():
            self.tell(absent_column(self.policy.data.name, name, near))
        return {"absent": absent} if absent else {}

    def _rows(self, asked: _SiteRun, request: Packet) -> tuple[Packet, dict[str, Any]]:
        """How many rows the site has in the model."""
        model = self._agreed(asked, request)
        rows = int(model.sizes[0])
        return packet({"rows": rows, "splits": bool(model.potential.rowwise)}), {"rows": rows}

    def _sum(self, asked: _SiteRun, request: Packet) -> tuple[Packet, dict[str, Any]]:
        """The site's part of a sum, under its masks."""
        model, name = self._agreed(asked, request), str(request.head["name"])
        if name not in SUMS:
            raise RefusedError(f"{self.policy.site}: refused, it answers {', '.join(SUMS)}, and not {name!r}")
        arguments, options, points = understood(request, model.dim)
        if points * (model.dim + 1) ** 2 > _MOST_NUMBERS:
            raise RefusedError(f"{self.policy.site}: refused, {points} points are too many for one question")
        self._count_points(asked, points)
        with jax.enable_x64(True):
            here = model.totals_here()
            (part,) = np.asarray(here.each(SUMS[name], *arguments, **options), np.float64)
        said = {"question": name, "points": points, "shape": list(part.shape)}
        if not asked.masked:
            return packet({}, part=part), said
        words = asked.masked_words([part], int(request.head["count"]))
        return packet({"shape": list(part.shape)}, words=words), said

    def _own(self, asked: _SiteRun, request: Packet) -> tuple[Packet, dict[str, Any]]:
        """The site's own numbers at positions, after a study without masks, which its policy has allowed."""
        if asked.masked:
            raise RefusedError(
                f"{self.policy.site}: refused, its own numbers reveal its rows, and the sums of this study are masked"
            )
        if request.head["of"] != self.policy.site:
            # a node that had not named its site is sent what another is asked
            return packet({}), {"of": request.head["of"]}
        model, name = self._agreed(asked, request), str(request.head["name"])
        if name not in OWN:
            raise RefusedError(f"{self.policy.site}: refused, it answers {', '.join(OWN)}, and not {name!r}")
        positions = np.asarray(request.arrays["positions"], np.float64)
        _, _, points = understood(packet({"arguments": 0, "at_once": None}, points=positions), model.dim)
        if points * (model.dim + 1) > _MOST_NUMBERS:
            raise RefusedError(f"{self.policy.site}: refused, {points} points are too many for one question")
        self._count_points(asked, points)
        (part,) = model.each(OWN[name], positions)
        return packet({}, part=np.asarray(part, np.float64)), {"question": name, "points": points, "shape": [points]}

    def _draws(self, asked: _SiteRun, request: Packet) -> tuple[Packet, dict[str, Any]]:
        """Keep the run's draws, and draw the site's own latents, in the site's folder."""
        model, draws = self._agreed(asked, request), request.arrays["draws"]
        if draws.ndim != 3 or draws.shape[2] != model.dim or draws.size > _MOST_NUMBERS:
            raise ValueError(f"draws must be of shape (chain, draw, {model.dim}), found {draws.shape}")
        if (asked.folder / "draws.npz").exists():
            raise RefusedError(f"{self.policy.site}: refused, it has the draws of this run already")
        np.savez(asked.folder / "draws.npz", draws=draws, names=np.array(model.names))
        if model.has_latents:
            with jax.enable_x64(True):
                keep(model, draws, int(request.head["seed"]), str(self.policy.folder), asked.session)
        return packet({}), {"draws": list(draws.shape)}

    # --- its model ---

    def _place(self, asked: _SiteRun) -> int:
        return asked.study.sites.index(self.policy.site)

    def _model(self, asked: _SiteRun, answers: list[Any]) -> Posterior:
        meeting = _OwnKept(asked.study.sites, (self._place(asked),), answers)
        model = asked.study.model(meeting, self.policy.data, self.policy.floors)
        if not meeting.is_complete:
            raise RefusedError(f"{self.policy.site}: refused, other answers were given out than it has questions")
        return model

    def _agreed(self, asked: _SiteRun, request: Packet) -> Posterior:
        """The model of what all sites agreed on, which stays the same to the end of a run."""
        answers = request.head["answers"]
        self._require_continued(asked, answers)
        model = self._model(asked, revived(answers)).alone(self._place(asked))
        # how many rows the smallest group of others has is not known
        return model.finely() if model.has_latents else model

    def _require_continued(self, asked: _SiteRun, answers: list[Any]) -> None:
        """Raise `RefusedError` unless answers go on from those that were given out before in this run."""
        path, count = asked.folder / "answers.json", len(answers)
        before: dict[str, Any] = {"count": 0, "hash": _hash_of_answers([])}
        if path.is_file():
            before = json.loads(path.read_text())
        if count < before["count"] or _hash_of_answers(answers[: before["count"]]) != before["hash"]:
            raise RefusedError(
                f"{self.policy.site}: refused, other answers were given out before as those of all sites"
            )
        if count > before["count"]:
            now = {"count": count, "hash": _hash_of_answers(answers)}
            write_private(path, json.dumps(now).encode())

    def _require_same_data(self, asked: _SiteRun) -> None:
        """Raise `DataError` where the site's file is another one than at the beginning of the run."""
        if not self.policy.data.is_file():
            raise DataError(f"{self.policy.site}: its policy's `data` names no file ({self.policy.data.name})")
        path, now = asked.folder / "data.txt", digest(self.policy.data.read_bytes())
        if not path.is_file():
            write_private(path, now.encode())
        elif path.read_text() != now:
            raise DataError(f"{self.policy.site}: its data has changed since this run began")

    def _count_points(self, asked: _SiteRun, points: int) -> None:
        """Note positions that a study has asked for, before they are answered; refuse those beyond the policy's."""
        path = self.policy.folder / f"points-{asked.study.hash[:16]}.txt"
        found = path.read_text().strip() if path.is_file() else "0"
        if not found.isdecimal():
            raise DataError(f"{self.policy.site}: its file {path.name} is damaged; its administrator has to mend it")
        before = int(found)
        if before + points > self.policy.points:
            raise RefusedError(
                f"{self.policy.site}: refused, its policy allows sums at {self.policy.points} positions of a study, "
                f"{before} have been asked for, and now {points} more"
            )
        write_private(path, str(before + points).encode())


def absent_column(file: str, name: str, near: str | None) -> str:
    """What a site tells itself of a column that its file has not."""
    return (
        f"{file} has no column {name!r}, which the study needs"
        + (f"; it has {near!r}" if near is not None else "")
        + ": names are compared letter by letter"
    )


def _named(session: str, study: str, kind: str) -> dict[str, str]:
    """A run, a study and a question as the audit file names them, without what can be none."""
    found = {"run": session, "study": study, "kind": kind}
    if re.fullmatch("[0-9a-f]{16}", session) is None:
        del found["run"]
    if kind not in _ANSWERS:
        del found["kind"]
    return found


def _keep_newest(folder: Path, session: str, request: str, answer: bytes) -> None:
    """Keep an answer in place of the one before of its run."""
    make_private(folder)
    for before in folder.glob(f"{session}-*"):
        before.unlink()
    write_private(folder / f"{session}-{request}", answer)


def _hash_of_answers(answers: list[Any]) -> str:
    return digest(json.dumps(answers).encode())


class _OwnKept(ReplayCollectives):
    """A meeting in which a site sees to it that what it said is among the answers as it said it.

    What it refuses, and what kinds its columns are, is said by itself: nobody else may say it for the site.
    """

    def gathered(self, own: Sequence[Any]) -> list[Any]:
        """See `SiteCollectives`."""
        found = super().gathered(own)
        (place,) = self.here
        if len(found) != len(self.sites) or plain(found[place]) != plain(own[0]):
            raise RefusedError(f"{self.sites[place]}: refused, its own answer was not given back as it was")
        return found


class _SiteRun:
    """A run of a study as a site sees it."""

    def __init__(self, session: str, study: StudyDocument, folder: Path, request: bytes) -> None:
        self.session, self.study, self.folder, self.request = session, study, folder, request
        self.masks, self.masked = KeptMasks(folder), study.masks

    def masked_words(self, leaves: Sequence[np.ndarray], count: int) -> Words:
        """A site's numbers as words under its masks of this request."""
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
