"""The ledger of a site: which rows were read by which studies, and how much of their privacy is spent.

A row is recognised by a keyed hash, in every version of the site's file: by the hash of the column `person` that the
policy names, otherwise by that of all its cells. Studies with differential privacy that read the same row are together
one Gaussian mechanism. A study without it has no bound, so that both kinds never read the same row unless the policy
allows it.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..base.atomic import write_private
from ..base.errors import DataError
from ..data.files import read_sheet
from ..samplers.by_sums.private import spent, strength
from .document import StudyDocument
from .keys import row_hashes
from .policy import RefusedError, SitePolicy


class Line(NamedTuple):
    """What the ledger has about one study.

    Parameters
    ----------
    rows
        Keyed hashes of the rows that it read, (row,).
    mu
        The strength of its guarantee, infinite without differential privacy, see `accord.samplers.Private`.
    """

    rows: np.ndarray
    mu: float


class Ledger:
    """The ledger of a site.

    Parameters
    ----------
    policy
        The policy of the site. The ledger is in its folder.
    """

    def __init__(self, policy: SitePolicy) -> None:
        self.policy, self.folder = policy, policy.folder / "ledger"

    def epsilon(self, study: StudyDocument) -> float:
        """The largest epsilon of a row after a study, for the delta of the study.

        Raises
        ------
        RefusedError
            The study and others must not read the same rows, or the rows of one person are several.
        """
        return self._after(study, self._line(study))

    def add(self, study: StudyDocument) -> None:
        """Enter a study before the first number about rows leaves.

        Raises
        ------
        RefusedError
            As `epsilon`, or the study would spend more than the policy allows.
        """
        policy, own = self.policy, self._line(study)
        after = self._after(study, own)
        if policy.epsilon is not None and study.private is not None and after > policy.epsilon:
            raise RefusedError(
                f"{policy.site}: refused, its policy allows an epsilon of {policy.epsilon:g} for each row over all "
                f"studies, and after this one it would be {after:.3g} for delta {study.private.delta:g}"
            )
        content = io.BytesIO()
        np.savez_compressed(content, rows=own.rows, mu=own.mu)
        write_private(self._path(study), content.getvalue())

    def _path(self, study: StudyDocument) -> Path:
        return self.folder / f"{study.hash[:16]}.npz"

    def _after(self, study: StudyDocument, own: Line) -> float:
        """The largest epsilon of a row after a study."""
        squares, here = np.full(own.rows.size, own.mu**2), study.private is not None
        for other in self._others(study):
            shared = np.isin(own.rows, other.rows)
            if shared.any() and np.isfinite(other.mu) != here and not self.policy.mixed:
                kinds = ("without", "with") if here else ("with", "without")
                raise RefusedError(
                    f"{self.policy.site}: refused, a study {kinds[0]} differential privacy has read rows that this "
                    f"study, {kinds[1]} it, would read too, and the policy does not allow that by `mixed`"
                )
            squares[shared] += other.mu**2 if np.isfinite(other.mu) and here else 0.0
        if study.private is None or not own.rows.size:
            return 0.0
        return spent(float(squares.max()) ** 0.5, study.private.delta)

    def _others(self, study: StudyDocument) -> Iterator[Line]:
        for path in sorted(self.folder.glob("*.npz")):
            if path != self._path(study):
                with np.load(path, allow_pickle=False) as found:
                    yield Line(found["rows"], float(found["mu"]))

    def _line(self, study: StudyDocument) -> Line:
        """What a study reads: the rows that the site's file has now."""
        policy, person = self.policy, self.policy.person
        sheet = read_sheet(policy.data, study.dialects.at(policy.site))
        if sheet.problems:
            raise DataError(f"{policy.site} ({policy.data.name}): {sheet.problems[0]}")
        cells = [dict(zip(sheet.header, row, strict=True)) for row in sheet.rows]
        if person is not None:
            if person not in sheet.header:
                raise DataError(f"{policy.site}: its file has no column {person!r}, which its policy names as `person`")
            cells = [{person: row[person]} for row in cells]
            if study.private is not None and len({row[person] for row in cells}) < len(cells):
                raise RefusedError(
                    f"{policy.site}: refused, its file has several rows of one person, and the study protects single "
                    "rows: keep one row of each person"
                )
        private = study.private
        mu = np.inf if private is None else strength(private.epsilon, private.delta)
        return Line(row_hashes(policy.folder, cells), mu)
