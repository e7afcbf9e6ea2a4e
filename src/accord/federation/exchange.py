"""The exchange of a study: one entry per site and step, signed, stored, and never made again."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np

from ..base.atomic import make_private, write_private, write_whole
from ..base.text import cleaned
from ..data.collectives import raise_all
from ..posterior.coordinates import Coordinates
from ..samplers.by_sums.proposal import Drawn, Mixture
from .entry import (
    LINES,
    MOST_BYTES,
    Entry,
    ForgedError,
    canonical,
    digest_of,
    plain,
    require_like,
    revived,
    signed_line,
)
from .keys import digest

Content = TypeVar("Content")
Result = TypeVar("Result")
# Largest difference between a site's own plan and the written one, in standard deviations or relative.
_APART = 1e-6
# Key of the problems in the content of an entry.
_REFUSED = "refused"


class Pending(Exception):  # noqa: N818 - control flow, not an error
    """Raised to suspend the program until these sites have made their entries of a step."""

    def __init__(self, step: int, sites: Sequence[str]) -> None:
        super().__init__(f"step {step} waits for {', '.join(sites)}")
        self.step, self.sites = step, tuple(sites)


class EntryFolder:
    """Entries as files in a folder, `step-003/hospital-1.json`.

    Parameters
    ----------
    folder
        The folder. It is created with the first entry.
    private
        Whether only this user may read the files.
    """

    def __init__(self, folder: Path, *, private: bool = False) -> None:
        self.folder, self.private = folder, private

    def path(self, step: int, site: str) -> Path:
        """The file of an entry."""
        return self.folder / f"step-{step:03d}" / f"{site}.json"

    def read(self, step: int, site: str) -> bytes | None:
        """An entry, or None if it is not there. In a shared folder, a file that is still copied is not there.

        Raises
        ------
        ForgedError
            The file is a link, a device or a pipe, or it is too large.
        """
        path = self.path(step, site)
        try:
            # a link could lead to any file of this machine, and a pipe would block
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise ForgedError(f"{path} is no file with an entry: {error.strerror}") from error
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or about.st_size > MOST_BYTES:
            os.close(descriptor)
            raise ForgedError(f"{path} is no file, or has more than {MOST_BYTES:,} bytes")
        with open(descriptor, "rb") as file:
            found = file.read(MOST_BYTES + 1)
        is_whole = found.endswith(b"\n") and found.count(b"\n") >= LINES
        return found if self.private or is_whole else None

    def is_incomplete(self, step: int, site: str) -> bool:
        """Whether there is a file of an entry that is still copied."""
        return self.path(step, site).is_file() and self.read(step, site) is None

    def write(self, step: int, site: str, entry: bytes) -> None:
        """Write an entry."""
        path = self.path(step, site)
        if self.private:
            write_private(path, entry)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.parent.is_symlink():
            raise ForgedError(f"{path.parent} is a link to another folder")
        # another program may copy the folder at any time, or put a link in the place of this file
        write_whole(path, entry)

    def all(self, sites: Sequence[str]) -> dict[tuple[int, str], bytes]:
        """All entries of some sites by step and site."""
        found = {}
        for folder in sorted(self.folder.glob("step-*")):
            step = folder.name.removeprefix("step-")
            if step.isdecimal():
                for site in sites:
                    entry = self.read(int(step), site)
                    if entry is not None:
                        found[int(step), site] = entry
        return found


@dataclass(frozen=True)
class Plan:
    """What a step evaluates, and where.

    Parameters
    ----------
    what
        Name of the function or of the collective.
    parts
        Numbers, arrays, `Coordinates` and `Drawn` points by name.
    """

    what: str
    parts: Mapping[str, Any]

    def written(self, *, with_points: bool = False) -> dict[str, Any]:
        """The plan as JSON values, `with_points` also with the points of `Drawn`, for sites that cannot draw them."""
        found: dict[str, Any] = {}
        for name, part in self.parts.items():
            if isinstance(part, Drawn):
                mixture, count, seed, batch = part.recipe
                # all sites draw the same points from this recipe
                found[name] = {"mixture": mixture._asdict(), "drawn": [count, seed, batch]}
                if with_points:
                    found[name]["points"] = part.points
            elif isinstance(part, Coordinates):
                found[name] = {"origin": np.asarray(part.origin), "factor": np.asarray(part.factor)}
            else:
                found[name] = part
        return {"what": self.what, "parts": plain(found)}

    def adopted(self, written: Mapping[str, Any]) -> Plan:
        """The written plan, if it agrees with this plan.

        Raises
        ------
        ForgedError
            The plans differ by more than rounding.
        """
        name, parts = "parts", dict[str, Any]()
        try:
            if written["what"] != self.what or written["parts"].keys() != self.parts.keys():
                raise ValueError(f"it evaluates {cleaned(written['what'], 80)}, and this site {self.what}")
            for name, part in self.parts.items():
                parts[name] = _adopted(name, part, revived(written["parts"][name]))
        except (LookupError, TypeError, AttributeError, ArithmeticError) as error:
            raise ForgedError(f"{name} in the plan has another format: {error!r}") from error
        except ValueError as error:
            digests = f"{digest_of(written)[:16]} and {digest_of(self.written())[:16]}"
            raise ForgedError(f"the written plan is not the plan of this site ({digests}): {error}") from error
        return Plan(self.what, parts)


def _adopted(name: str, own: Any, written: Any) -> Any:
    """A part of the written plan, if it agrees with a site's own part; else `ValueError`."""
    if isinstance(own, Drawn):
        mixture, *recipe = own.recipe
        if list(recipe) != written["drawn"]:
            raise ValueError(f"{name} has the count, seed and batch {written['drawn']}, not {recipe}")
        proposal = Mixture(*(np.asarray(written["mixture"][field], np.float64) for field in Mixture._fields))
        _require_same_mixture(name, mixture, proposal)
        drawn = Drawn(proposal, *recipe)
        if "points" in written:
            _require_close(f"the points of {name}", drawn.points, np.asarray(written["points"], np.float64))
        return drawn
    if isinstance(own, Coordinates):
        place = Coordinates(np.asarray(written["origin"], float), np.asarray(written["factor"], float))
        if place.factor.shape != own.factor.shape or place.origin.shape != own.origin.shape:
            raise ValueError(f"{name} has another shape")
        _require_near(name, own.origin, own.factor, place.origin, place.factor)
        return place
    return _require_close(name, np.asarray(own), np.asarray(written))


def _require_close(name: str, own: np.ndarray, found: np.ndarray) -> np.ndarray:
    """The written array, if it agrees with a site's own array; else `ValueError`."""
    if found.shape != own.shape or not np.allclose(found, own, rtol=_APART, atol=_APART, equal_nan=True):
        raise ValueError(f"{name} has other numbers or another shape")
    return found


def _require_same_mixture(name: str, own: Mixture, found: Mixture) -> None:
    if any(a.shape != b.shape for a, b in zip(own, found, strict=True)):
        raise ValueError(f"{name} has {len(found.share)} components, not {len(own.share)}")
    for k in range(len(own.share)):
        _require_near(name, own.mean[k], own.factor[k], found.mean[k], found.factor[k])
    for field in ("share", "freedom"):
        if not np.allclose(getattr(own, field), getattr(found, field), rtol=_APART, atol=_APART):
            raise ValueError(f"{name} has another {field}")


def _require_near(name: str, mean: Any, factor: Any, other_mean: Any, other_factor: Any) -> None:
    """Raise `ValueError` unless means and factors agree in standard deviations.

    Another factor of the same covariance is refused too: sites read sums of the points of their own factor.
    """
    with np.errstate(all="ignore"):
        apart = np.linalg.solve(factor, other_mean - mean)
        change = np.linalg.solve(factor, other_factor) - np.eye(len(mean))
        worst = max(np.abs(apart).max(initial=0.0), np.abs(change).max(initial=0.0))
    if not worst <= _APART:
        raise ValueError(f"the means or factors of {name} differ by {worst:.2g} standard deviations")


class Exchange:
    """Gathers the entries of all sites, one step after another.

    Entries that are stored are used again, so that a new process continues where an earlier one stopped. A site's own
    entry of a step is made once: repetition would average noise away, and two entries under one mask reveal their
    difference.

    Parameters
    ----------
    study
        Hash of the study.
    sites
        Names of all sites.
    site
        This site. None: a process without rows, which has the entries of all sites.
    store
        The entries of all sites so far, which only this site can write.
    public
        Public keys of all sites by name.
    identity
        File with this site's private key.
    made
        Called with each new entry before it is stored.
    with_points
        Whether plans have the points themselves, see `Plan.written`.
    """

    def __init__(
        self,
        study: str,
        sites: Sequence[str],
        site: str | None,
        store: EntryFolder,
        public: Mapping[str, str],
        identity: Path | None = None,
        made: Callable[[Entry, bytes], None] = lambda entry, text: None,
        *,
        with_points: bool = False,
    ) -> None:
        self.study, self.sites, self.site, self.store = study, tuple(sites), site, store
        self.public, self.identity, self.made, self.with_points = public, identity, made, with_points
        # plan of the last step, with the written numbers
        self.adopted: Plan | None = None
        # number of the next step, and digest of all entries of earlier steps
        self.step, self.before = 0, hashlib.sha256(study.encode()).hexdigest()

    @property
    def here(self) -> tuple[int, ...]:
        """The place of this site, or none."""
        return () if self.site is None else (self.sites.index(self.site),)

    def gather(self, plan: Plan, own: Callable[[Plan, str], Any], words: str) -> list[Any]:
        """The contents of all sites' entries of the next step, in the order of sites.

        Parameters
        ----------
        plan
            What this site would evaluate. The first site's plan is written into its entry, and all sites use it.
        own
            Makes this site's content, given the written plan, and a digest of the plan and of all earlier entries.
        words
            The content in words.

        Raises
        ------
        Pending
            Entries of other sites are missing.
        ForgedError
            An entry contradicts this site's entries, or the written plan is not this site's plan.
        DataError
            A site refuses.
        """
        first, entries = self.sites[0], self._entries()
        if any(map(refuses, entries.values())):
            self.refuse(())
        if entries[first] is None and plan.parts and self.site != first:
            raise Pending(self.step, [first])
        leader = entries[first]
        written = plan.written(with_points=self.with_points) if leader is None else leader.written
        try:
            self.adopted = adopted = plan.adopted(written)
        except ForgedError as error:
            raise ForgedError(cleaned(f"the entry of {first} in step {self.step}: {error}")) from error
        if leader is not None and leader.plan != digest_of(written):
            raise ForgedError(f"the entry of {first} has a plan with another digest")
        chosen = digest_of(written)
        if self.site is not None and entries[self.site] is None:
            plan_there = written if self.site == first else {}
            entries[self.site] = self._make(words, chosen, plan_there, own(adopted, self.before + chosen))
        whole = self._whole(entries)
        for entry in whole:
            if entry.plan != chosen:
                raise ForgedError(f"{entry.site} evaluated another plan in step {self.step} than {first}")
        lines = [signed_line(self.store.read(self.step, site) or b"") for site in self.sites]
        self.before = hashlib.sha256("".join([self.before, *map(digest, lines)]).encode()).hexdigest()
        self.step += 1
        found = self.each([entry.content for entry in whole], revived)
        ours = found[self.here[0] if self.here else 0]
        return self.each(found, lambda content: require_like(content, ours))

    def each(
        self, contents: Sequence[Content], read: Callable[[Content], Result], step: int | None = None
    ) -> list[Result]:
        """What each site's content of a step holds, by default the last one.

        Raises
        ------
        ForgedError
            The content of a site has another format. The error names the site.
        """
        found, step = [], self.step - 1 if step is None else step
        for site, content in zip(self.sites, contents, strict=True):
            try:
                found.append(read(content))
            except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
                raise ForgedError(
                    f"the entry of {site} in step {step} has another content than accord writes: "
                    f"{type(error).__name__}, {cleaned(error)}"
                ) from error
        return found

    def refuse(self, problems: Sequence[str]) -> NoReturn:
        """Send problems in place of numbers, and end the study once all sites have made their entries of this step.

        Raises
        ------
        DataError
            With the problems of all sites.
        Pending
            Entries of other sites are missing.
        """
        entries = self._entries()
        if self.site is not None and entries[self.site] is None:
            words = "the reasons why this site refuses" if problems else "nothing, as another site refuses"
            entries[self.site] = self._make(words, "", {}, {_REFUSED: list(problems)})
        each = self.each(self._whole(entries), _problems, self.step)
        # no texts, if this site has another reason than when it made its entry
        found = [text for own in each for text in own] or list(problems)
        if found:
            found[-1] += ". The study ends here. Repair the cause and begin it with another seed"
            raise_all(found)
        raise RuntimeError("a site refused without a reason")

    def _entries(self) -> dict[str, Entry | None]:
        """The stored entries of this step by site."""
        return {site: self._entry(site) for site in self.sites}

    def _whole(self, entries: Mapping[str, Entry | None]) -> list[Entry]:
        """The entries of all sites, or `Pending`."""
        missing = [site for site, entry in entries.items() if entry is None]
        if missing:
            raise Pending(self.step, missing)
        return [entry for entry in entries.values() if entry is not None]

    def _entry(self, site: str) -> Entry | None:
        """The stored entry of a site in this step, or None."""
        text = self.store.read(self.step, site)
        if text is None:
            return None
        entry = self._read(self.step, site, text)
        if entry.before != self.before:
            raise ForgedError(
                f"{site} has other entries of the steps before {self.step} than this site: an entry was changed, or a "
                "site made two entries of one step"
            )
        return entry

    def _read(self, step: int, site: str, text: bytes) -> Entry:
        """The entry in bytes, which must be of this study, step and site."""
        where = f"the entry of {site} in step {step}"
        entry = Entry.read(text, self.public, where)
        if (entry.study, entry.step, entry.site) != (self.study, step, site):
            other = cleaned(f"{entry.site} in step {entry.step} of the study {entry.study[:16]}", 200)
            raise ForgedError(f"{where} is one of {other}")
        return entry

    def _make(self, words: str, plan: str, written: dict[str, Any], content: Any) -> Entry:
        """Make and store this site's entry of this step."""
        assert self.site is not None and self.identity is not None
        entry = Entry(self.study, self.step, self.site, self.before, words, plan, written, plain(content))
        text = entry.signed(self.identity)
        self.made(entry, text)
        self.store.write(entry.step, entry.site, text)
        return entry

    def take(self, entries: Mapping[tuple[int, str], bytes]) -> None:
        """Store the new entries of other sites.

        Raises
        ------
        ForgedError
            An entry is not signed by its site, is of another study or step, or differs from the stored one.
        """
        own = [step for step, _ in self.store.all([self.site])] if self.site is not None else []
        # no honest site is further
        last = max(own, default=-1) + 1
        for (step, site), text in sorted(entries.items()):
            if self.site is not None and step > last:
                continue
            where = f"the entry of {site} in step {step}"
            stored = self.store.read(step, site)
            if stored is not None and signed_line(stored) == signed_line(text):
                continue
            if stored is not None:
                raise ForgedError(
                    f"{where} differs from the one that this site received before ({digest(signed_line(text))[:16]} "
                    f"and {digest(signed_line(stored))[:16]}): a step has one entry of each site"
                )
            self._read(step, site, text)
            if site == self.site:
                raise ForgedError(f"{where} is signed by this site, which has not stored it: restore its folder")
            self.store.write(step, site, canonical(text))


def refuses(entry: Entry | None) -> bool:
    """Whether a site refuses, or has learned that another one does."""
    return entry is not None and isinstance(entry.content, dict) and _REFUSED in entry.content


def _problems(entry: Entry) -> list[str]:
    """The problems for which a site refuses, or none."""
    found = entry.content[_REFUSED] if refuses(entry) else []
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise TypeError("no list of texts")
    return list(map(cleaned, found))


def prepared(folder: Path) -> EntryFolder:
    """The private store in a folder."""
    make_private(folder)
    return EntryFolder(folder / "entries", private=True)
