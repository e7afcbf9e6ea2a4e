"""The ledger of a site: which rows were read by which studies, and how much of their privacy is spent.

A row is recognised by a keyed hash, in every version of the site's file: of the cell in the column `person` that the
policy names, otherwise of all its cells. Cells with the same number count as equal, as in 1, 1.0, 01 and 1e0. Each
line of the ledger has the column by which its rows were recognised, because hashes of different columns never agree.

Studies with differential privacy that read the same row are together one Gaussian mechanism. A study without it has no
bound, so that both kinds never read the same row unless the policy allows it.

Two studies without it show sums over the rows by which their files differ. So the site refuses a study if its file has
gained or lost rows since an earlier one, but fewer than the floor `rows` of the policy. Whole files are compared. The
rows without missing cells would differ between honest formulas.
"""

from __future__ import annotations

import codecs
import io
import os
import re
import zipfile
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..base.atomic import write_private
from ..base.errors import DataError
from ..data.files import Dialect
from ..data.ranges import cells_of
from ..samplers.by_sums.private import spent, strength
from .document import StudyDocument
from .keys import row_hashes
from .policy import RefusedError, SitePolicy

# Separators of cells that a file may have.
_SEPARATORS = ",;\t| "
# Ratio of strengths up to which two are equal.
_EXACTLY = 1.0 + 1e-9
# Lines of a file that show its separator.
_FIRST = 200
# Format of numbers, after decimal commas were replaced.
_NUMBERS = Dialect()
# Numbers, not 0 or infinite in double precision, in the spelling of `_plain`. Most cells have it.
_IS_PLAIN = re.compile(r"-?([1-9][0-9]{0,299}(\.[0-9]{0,299}[1-9])?|0\.[0-9]{0,299}[1-9])").fullmatch


class Line(NamedTuple):
    """What the ledger has about one study.

    Parameters
    ----------
    rows
        Keyed hashes of the rows that it read, (row,).
    cells
        For a study without differential privacy in which `person` recognises rows: keyed hashes of all cells of each
        row, in which a corrected cell shows, (row,). Otherwise none, (0,).
    mu
        The strength of its guarantee, infinite without differential privacy, see `accord.samplers.Private`.
    person
        The column by which rows were recognised, empty for all cells.
    """

    rows: np.ndarray
    cells: np.ndarray
    mu: float
    person: str


class Ledger:
    """The ledger of a site.

    Parameters
    ----------
    policy
        The policy of the site. The ledger is in its folder.
    """

    def __init__(self, policy: SitePolicy) -> None:
        self.policy, self.folder = policy, policy.folder / "ledger"

    def state(self, study: StudyDocument) -> tuple[float, bool]:
        """The largest epsilon of a row after a study, and whether a study of the other kind has read any of its rows.

        Epsilon is for the delta of the policy, and 0 after a study without differential privacy.

        Raises
        ------
        DataError
            The ledger is damaged, the file has several rows of one person, earlier studies recognised rows by another
            column, or the study and an earlier one would show a sum over too few rows.
        """
        mu, mixed = self._after(study, self._line(study))
        return spent(mu, self.policy.delta) if study.private is not None else 0.0, mixed

    def require(self, study: StudyDocument) -> Line:
        """The line of a study that the policy allows.

        Raises
        ------
        DataError
            As in `state`.
        RefusedError
            The study would spend more than the policy allows, or read rows of a study of the other kind.
        """
        policy, own, here = self.policy, self._line(study), study.private is not None
        mu, mixed = self._after(study, own)
        if mixed and not policy.mixed:
            kinds = ("without", "with") if here else ("with", "without")
            raise RefusedError(
                f"{policy.site}: refused, a study {kinds[0]} differential privacy has read rows that this study, "
                f"{kinds[1]} it, would read too, and the policy does not allow that by `mixed`"
            )
        # a study of exactly the limit is allowed
        if here and policy.epsilon is not None and mu > _EXACTLY * strength(policy.epsilon, policy.delta):
            raise RefusedError(
                f"{policy.site}: refused, its policy allows an epsilon of {policy.epsilon:g} for each row over all "
                f"studies, and after this one it would be {spent(mu, policy.delta):.3g} for delta {policy.delta:g}"
            )
        return own

    def add(self, study: StudyDocument, folder: Path) -> None:
        """Enter a study before the first number about rows leaves. Raises as `require`.

        `folder` is the site's folder of the study. Another folder of the same study is another line, as its noise is
        another one.
        """
        mark, own = folder / "ledger.txt", self.require(study)
        if not mark.is_file():
            write_private(mark, os.urandom(8).hex().encode())
        content = io.BytesIO()
        np.savez_compressed(content, **own._asdict())
        write_private(self._path(study, mark), content.getvalue())

    def remove(self, study: StudyDocument, folder: Path) -> None:
        """Remove a study without differential privacy that ends before the first number about rows has left."""
        mark = folder / "ledger.txt"
        if study.private is None and mark.is_file():
            self._path(study, mark).unlink(missing_ok=True)

    def hashes(self, header: int) -> dict[int, str]:
        """Keyed hashes of the rows below a line of the site's file, by line."""
        return self._read(header, self.policy.person)[0]

    def _path(self, study: StudyDocument, mark: Path) -> Path:
        return self.folder / f"{study.hash}-{mark.read_text()}.npz"

    def _after(self, study: StudyDocument, own: Line) -> tuple[float, bool]:
        """The largest strength of the guarantees for a row after a study, and whether it is mixed, see `state`."""
        squares, here, mixed = np.full(own.rows.size, own.mu**2), study.private is not None, False
        for other in self._others(study):
            is_same_kind = np.isfinite(other.mu) == here
            if other.person != own.person and (is_same_kind or not self.policy.mixed):
                raise RefusedError(
                    f"{self.policy.site}: refused, its ledger recognised the rows of earlier studies by "
                    f"{_by(other.person)}, and its policy now names {_by(own.person)}, by which all rows look new. "
                    f"{_restored(other.person)}"
                )
            if is_same_kind and not here:
                self._require_many(own.rows, other.rows)
                self._require_many(own.cells, other.cells)
                continue
            shared = np.isin(own.rows, other.rows)
            if is_same_kind:
                squares[shared] += other.mu**2
            else:
                mixed |= bool(shared.any())
        return float(squares.max(initial=0.0)) ** 0.5, mixed

    def _require_many(self, own: np.ndarray, other: np.ndarray) -> None:
        """Raise `RefusedError` if a file has gained or lost rows, but fewer than the floor. Hashes are different."""
        floor, kept = self.policy.floors.rows, int(np.isin(own, other).sum())
        if any(0 < len(rows) - kept < floor for rows in (own, other)):
            raise RefusedError(
                f"{self.policy.site}: refused, fewer than {floor} rows (`rows` in its policy) of its file were added, "
                "taken away or corrected since an earlier study, and both studies together would reveal these rows. "
                f"Keep the old file for this study, or wait until {floor} rows have changed"
            )

    def _others(self, study: StudyDocument) -> Iterator[Line]:
        """The lines of all other studies, and of other folders of this one."""
        mark = self.policy.folder / study.hash[:16] / "ledger.txt"
        own = self._path(study, mark) if mark.is_file() else None
        for path in sorted(self.folder.glob("*.npz")):
            if path != own:
                try:
                    with np.load(path, allow_pickle=False) as found:
                        yield Line(found["rows"], found["cells"], float(found["mu"]), str(found["person"]))
                except (OSError, ValueError, KeyError, zipfile.BadZipFile):
                    raise DataError(
                        f"{self.policy.site}: its ledger has a damaged file, {path.name}: restore it from a copy"
                    ) from None

    def _line(self, study: StudyDocument) -> Line:
        """What a study reads: the rows that the site's file has now.

        The rows do not follow from the study, so that no study can make old rows look new.
        """
        private, header = study.private, study.dialects.at(self.policy.site).header
        person = self.policy.person
        found, twice = self._read(header, person)
        own = self._read(header, None)[0] if person is not None and private is None else {}
        rows, cells = (np.array(list(each.values()), "U32") for each in (found, own))
        if private is None:
            return Line(rows, cells, np.inf, person or "")
        if twice:
            raise RefusedError(
                f"{self.policy.site}: refused, its file has several rows of one person, and the study protects single "
                "rows: keep one row of each person"
            )
        return Line(rows, cells, strength(private.epsilon, private.delta), person or "")

    def _read(self, header: int, person: str | None) -> tuple[dict[int, str], bool]:
        """Keyed hashes of the rows below a line of the site's file, by line, and whether a person has several rows.

        Without `person`, of all cells.
        """
        lines = {number: own for number, own in enumerate(self._lines, 1) if number >= header and own[0].strip()}
        first = min(lines, default=0)
        names = lines.pop(first)[1] or [] if lines else []
        if person is None:
            # the order of columns does not matter
            texts = ["\n".join(sorted(map(_plain, cells or [line]))) for line, cells in lines.values()]
            return dict(zip(lines, row_hashes(self.policy.folder, texts), strict=True)), False
        if person not in names:
            raise DataError(
                f"{self.policy.site}: its file has no column {person!r}, which its policy names as `person`"
            )
        place = names.index(person)
        # a line that studies leave out has no person, so all of it counts
        known = [cells is not None and len(cells) == len(names) for _, cells in lines.values()]
        own = [
            _plain(cells[place]) if cells and is_row else line
            for (line, cells), is_row in zip(lines.values(), known, strict=True)
        ]
        persons = [name for name, is_row in zip(own, known, strict=True) if is_row]
        return dict(zip(lines, row_hashes(self.policy.folder, own), strict=True)), len(set(persons)) < len(persons)

    @cached_property
    def _lines(self) -> list[tuple[str, list[str] | None]]:
        """The lines of the site's file and their cells, by the separator that fits most of the first lines.

        The separator does not follow from the study, which would make old rows look new by another one.
        """
        content = self.policy.data.read_bytes()
        is_wide = content[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        text = content.decode("utf-16" if is_wide else "utf-8", "surrogateescape").removeprefix("\ufeff")
        lines = re.split(r"\r?\n|\r", text)

        def fit(separator: str) -> tuple[bool, int, bool, int]:
            dialect = Dialect(separator=separator)
            cells = [cells_of(line, dialect) or [] for line in lines[:_FIRST]]
            usual = Counter(len(own) for own in cells if len(own) > 1).most_common(1)
            number, times = usual[0] if usual else (1, 0)
            return any(self.policy.person in own for own in cells), times, separator != " ", number

        dialect = Dialect(separator=max(_SEPARATORS, key=fit))
        return [(line, cells_of(line, dialect)) for line in lines]


def _plain(cell: str) -> str:
    """A cell, with one spelling of each number, to its last digit. A comma may be the decimal sign."""
    if _IS_PLAIN(cell):
        return cell
    text = cell.replace(",", ".")
    number = _NUMBERS.number(text)
    if number is None:
        return cell
    if number == 0.0 or not np.isfinite(number):
        return f"{number + 0.0:g}"
    plain = f"{Decimal(text):f}"
    return plain.rstrip("0").rstrip(".") if "." in plain else plain


def _by(person: str) -> str:
    """The key `person` of a policy in words."""
    return f"the column {person!r}" if person else "no column `person`, so that all cells count"


def _restored(person: str) -> str:
    """What to do about a changed key `person`."""
    key = f'set person = "{person}" again' if person else "remove `person`"
    return f"In the policy, {key}. To change it for good, move the ledger's folder away: all rows then start at zero"
