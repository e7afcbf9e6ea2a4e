"""A site: it answers the questions of studies that its policy allows, and keeps an account of them."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..base.errors import DataError
from ..data.meeting import ByCorrespondence, Unanswered
from ..engines.silo.latents import keep
from ..models.regression import Regression
from ..posterior import Posterior
from ..posterior.masks import encoded
from ..posterior.totals import TotalsHere
from . import audit, figures
from .keys import KeptMasks, bytes_of, digest, is_signed, own, signature, statement, text_of
from .packets import Packet, packet, plain, read, revived
from .policy import RefusedError, SitePolicy
from .questions import SUMS, understood
from .study import StudyDocument


class Site:
    """What answers at a site, to a server that may ask for nothing but what is here.

    Parameters
    ----------
    policy
        What the site's administrator allows.
    """

    def __init__(self, policy: SitePolicy) -> None:
        self.policy = policy
        self._models: dict[str, Posterior] = {}

    def answer(self, request: bytes) -> bytes:
        """The answer to a request, both as `packets.Packet.to_bytes` makes them; refusals are answers."""
        policy, asked = self.policy, {"kind": "unclear"}
        own(policy.folder)
        # a request that comes again, as its answer was lost, has the very same answer: masks are not used twice
        kept = policy.folder / "answered" / digest(request)
        if kept.is_file():
            return kept.read_bytes()
        try:
            head, arrays = read(request)
            study = StudyDocument(head["study"])
            session, kind = str(head["session"]), str(head["kind"])
            asked = {"run": session, "study": study.hash, "kind": kind}
            policy.require_study(study)
            if not session.isalnum() or kind not in _ANSWERS:
                raise RefusedError(f"{policy.site}: refused, it answers {', '.join(_ANSWERS)}")
            found, said = _ANSWERS[kind](
                self, _Asked(session, study, own(policy.folder / session)), Packet(head, arrays)
            )
        except (RefusedError, DataError, ValueError, ArithmeticError) as error:
            audit.note(policy.folder, **asked, refused=str(error))
            told = {"error": str(error), "refused": isinstance(error, RefusedError)}
            return packet({**told, "site": policy.site}).to_bytes()
        except Exception as error:
            # what else fails may quote anything: it is told here, and not to others
            audit.note(policy.folder, **asked, failed=traceback.format_exc())
            name = type(error).__name__
            told = {"error": f"{policy.site}: {name}, see its audit file", "refused": False}
            return packet({**told, "site": policy.site}).to_bytes()
        # nodes come and go: every answer says whose it is
        answer = Packet({**found.head, "site": policy.site}, found.arrays).to_bytes()
        _keep_alone(kept, answer)
        audit.note(policy.folder, **asked, **said, bytes=len(answer), hash=digest(answer))
        return answer

    # --- what it answers: the answer, and what is noted of it ---

    def _hello(self, asked: _Asked, request: Packet) -> tuple[Packet, dict[str, Any]]:
        return packet({}), {}

    def _key(self, asked: _Asked, request: Packet) -> tuple[Packet, dict[str, Any]]:
        """A public key for the masks of this run, signed."""
        public = asked.masks.begin()
        if self.policy.identity is None:
            raise RefusedError(f"{self.policy.site}: refused, its policy names no `identity` to sign its key with")
        signed = signature(self.policy.identity, statement(asked.session, asked.study.hash, self.policy.site, public))
        return packet({"public": text_of(public), "signature": text_of(signed)}), {}

    def _keys(self, asked: _Asked, request: Packet) -> tuple[Packet, dict[str, Any]]:
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

    def _meet(self, asked: _Asked, request: Packet) -> tuple[Packet, dict[str, Any]]:
        """The site's next answer in making the model, given those of all sites so far."""
        answers = revived(request.head["answers"])
        try:
            self._model(asked, answers)
        except Unanswered as stop:
            question = stop.question
        else:
            raise ValueError(f"{self.policy.site}: the model has been made, and asks for nothing more")
        (said,) = question.own
        if question.kind == "gathered":
            return packet({"kind": "gathered", "own": plain(said)}), {"question": len(answers), "told": plain(said)}
        shapes = figures.shapes_of(said)
        if asked.masked:
            words = asked.masks.masked(
                int(request.head["count"]), encoded(figures.leaves_of(said), len(asked.study.sites))
            )
            return packet({"kind": "total", "shapes": shapes}, words=words), {
                "question": len(answers),
                "shapes": shapes,
            }
        return packet({"kind": "total", "own": plain(said)}), {"question": len(answers), "shapes": shapes}

    def _rows(self, asked: _Asked, request: Packet) -> tuple[Packet, dict[str, Any]]:
        """How many rows the site has in the model."""
        model = self._agreed(asked, request)
        rows = int(model.sizes[0])
        return packet({"rows": rows, "splits": bool(model.potential.rowwise)}), {"rows": rows}

    def _sum(self, asked: _Asked, request: Packet) -> tuple[Packet, dict[str, Any]]:
        """The site's part of a sum, under its masks."""
        model, name = self._agreed(asked, request), str(request.head["name"])
        if name not in SUMS:
            raise RefusedError(f"{self.policy.site}: refused, it answers {', '.join(SUMS)}, and not {name!r}")
        arguments, options, points = understood(request)
        self._count_points(asked, points)
        with jax.enable_x64(True):
            here = TotalsHere(model.potential, model.stacked(agents=model.held))
            (part,) = np.asarray(here.each(SUMS[name], *arguments, **options), np.float64)
        said = {"question": name, "points": points, "shape": list(part.shape)}
        if not asked.masked:
            return packet({}, part=part), said
        words = asked.masks.masked(int(request.head["count"]), encoded([part], len(asked.study.sites)))
        return packet({"shape": list(part.shape)}, words=words), said

    def _draws(self, asked: _Asked, request: Packet) -> tuple[Packet, dict[str, Any]]:
        """Keep the run's draws, and draw the site's own latents, in the site's folder."""
        model, draws = self._agreed(asked, request), request.arrays["draws"]
        np.savez(asked.folder / "draws.npz", draws=draws, names=np.array(model.names))
        if model.latents is not None:
            with jax.enable_x64(True):
                keep(model, draws, int(request.head["seed"]), str(self.policy.folder), asked.session)
        return packet({}), {"draws": list(draws.shape)}

    # --- its model ---

    def _place(self, asked: _Asked) -> int:
        return asked.study.sites.index(self.policy.site)

    def _model(self, asked: _Asked, answers: list[Any]) -> Regression:
        meeting = ByCorrespondence(asked.study.sites, (self._place(asked),), answers)
        return asked.study.model(meeting, self.policy.data, self.policy.floors)

    def _agreed(self, asked: _Asked, request: Packet) -> Posterior:
        """The model of what all sites agreed on, which stays the same to the end of a run."""
        answers = request.head["answers"]
        name = digest(json.dumps([asked.study.hash, answers]).encode())
        kept = asked.folder / "agreed.txt"
        if kept.is_file() and kept.read_text() != name:
            raise RefusedError(
                f"{self.policy.site}: refused, other answers were given out as those of all sites before"
            )
        kept.write_text(name)
        if name not in self._models:
            model = self._model(asked, revived(answers)).alone(self._place(asked))
            # how many rows the smallest group of others has is not known
            self._models = {name: model if model.latents is None else model.finely()}
        return self._models[name]

    def _count_points(self, asked: _Asked, points: int) -> None:
        """Note positions that a study has asked for, before they are answered; refuse those beyond the policy's."""
        path = self.policy.folder / f"points-{asked.study.hash[:16]}.txt"
        before = int(path.read_text()) if path.is_file() else 0
        if before + points > self.policy.points:
            raise RefusedError(
                f"{self.policy.site}: refused, its policy allows sums at {self.policy.points} positions of a study, "
                f"{before} have been asked for, and now {points} more"
            )
        path.write_text(str(before + points))


def _keep_alone(path: Path, answer: bytes) -> None:
    """Keep an answer in place of the one before."""
    for before in own(path.parent).iterdir():
        before.unlink()
    partial = path.with_suffix(".partial")
    partial.touch(mode=0o600)
    partial.write_bytes(answer)
    partial.replace(path)


class _Asked:
    """A run of a study as a site sees it."""

    def __init__(self, session: str, study: StudyDocument, folder: Path) -> None:
        self.session, self.study, self.folder = session, study, folder
        self.masks, self.masked = KeptMasks(folder), study.run.get("masks", True)


_ANSWERS: dict[str, Callable[..., tuple[Packet, dict[str, Any]]]] = {
    "hello": Site._hello,
    "key": Site._key,
    "keys": Site._keys,
    "meet": Site._meet,
    "rows": Site._rows,
    "sum": Site._sum,
    "draws": Site._draws,
}
