"""The policy of a site, which limits the requests that it answers."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ..base.checks import positive, whole_number
from ..base.errors import DataError, nearest, unknown_name_error
from ..data.files import read_sheet
from ..data.policy import Policy
from ..data.ranges import records
from .document import StudyDocument
from .keys import bytes_of, is_digest

_KEY_BYTES = 32
_FLOORS = tuple(f.name for f in fields(Policy))


class RefusedError(DataError):
    """A site refuses a request because of its policy."""


@dataclass(frozen=True)
class SitePolicy:
    """The policy of a site, in a TOML file that only its administrator writes.

    Parameters
    ----------
    site
        Name of the site, as in studies.
    data
        CSV file of the site.
    folder
        Folder for the audit file, the state of runs and the site's own results. Only the site reads it.
    studies
        Hashes of the studies that the site takes part in, see `StudyDocument.hash`.
    columns
        The columns that studies may read, all if None.
    points
        Largest number of positions at which a study may evaluate the rows.
    own_numbers
        Whether the other site of a study of two sites may see this site's part of every sum, which reveals its rows.
        Studies of more sites have masks.
    exact
        Whether studies may have exact answers, `coarse = false`. Sums of exact numbers reveal rows of small sites.
    disclosure
        The least sd of a cell that answers may leave to someone with all other rows, in sds of its column, see
        `accord.federation.meter`. None, the default: answers are measured and not refused.
    epsilon
        The largest epsilon of a row over all studies with differential privacy. None: the site's ledger adds them up
        and refuses nothing.
    delta
        The delta for which the ledger has its epsilons, below 1.
    colluding
        The least number of colluding sites against which a study with differential privacy must protect.
    mixed
        Whether studies with and without differential privacy may read the same rows. The first kind then protects
        nothing that the second one reveals.
    person
        Column that identifies a person, by which the ledger recognises rows. None: by all cells.
    identity
        File with the private key of the site, which signs its entries, see `accord study key`.
    peers
        Public keys of all sites by name, including its own.
    modules
        For NumPyro models, hashes of the approved module files by module name. Their code runs at the site.
    floors
        Disclosure floors, in the file as `rows`, `cells`, `parameters` and `rare`.
    """

    site: str
    data: Path
    folder: Path
    studies: tuple[str, ...]
    columns: tuple[str, ...] | None = None
    points: int = 1_000_000
    own_numbers: bool = False
    exact: bool = False
    disclosure: float | None = None
    epsilon: float | None = None
    delta: float = 1e-6
    colluding: int = 1
    mixed: bool = False
    person: str | None = None
    identity: Path | None = None
    peers: dict[str, str] = field(default_factory=dict)
    modules: dict[str, str] = field(default_factory=dict)
    floors: Policy = field(default_factory=Policy)

    @classmethod
    def read(cls, path: str | Path) -> SitePolicy:
        """A policy from its file. Paths in it are relative to the folder of the file.

        Raises
        ------
        ValueError
            The file is not TOML, or a key or value is wrong. The message names the file.
        """
        path = Path(path).expanduser()
        try:
            found = tomllib.loads(path.read_text(encoding="utf-8-sig"))
            return cls._of(found, path.parent)
        except (ValueError, OSError, RecursionError) as error:
            raise ValueError(f"policy {path}: {error}") from error

    @classmethod
    def _of(cls, found: dict[str, Any], folder: Path) -> SitePolicy:
        kinds = {
            "site": str, "data": str, "folder": str, "studies": list, "columns": list, "points": int,
            "own_numbers": bool, "exact": bool, "disclosure": float, "epsilon": float, "delta": float, "mixed": bool,
            "colluding": int, "person": str, "identity": str, "peers": dict, "modules": dict,
        }  # fmt: skip
        floors = Policy(**{name: found.pop(name) for name in _FLOORS if name in found})
        for name in ("disclosure", "epsilon", "delta"):
            if type(found.get(name)) is int:
                found[name] = float(found[name])
        for name, value in found.items():
            if name not in kinds:
                raise unknown_name_error("key", name, [*kinds, *_FLOORS])
            if not isinstance(value, kinds[name]):
                raise ValueError(f"{name} must be of the type {kinds[name].__name__}, found {value!r}")
        for name in ("site", "data", "folder", "studies"):
            if name not in found:
                raise ValueError(f"{name} is missing")
        for name in ("studies", "columns"):
            if not all(isinstance(item, str) for item in found.get(name, ())):
                raise ValueError(f"{name} must be a list of texts, found {found[name]!r}")
        for name in ("data", "folder", "identity"):
            if name in found:
                found[name] = folder / Path(found[name]).expanduser()
        for name in ("studies", "columns"):
            if name in found:
                found[name] = tuple(found[name])
        hashes = {f"studies, entry {place}": one for place, one in enumerate(found["studies"], 1)}
        hashes |= {f"{name} in [modules]": one for name, one in found.get("modules", {}).items()}
        for name, one in hashes.items():
            if not is_digest(one):
                raise ValueError(f"{name}: a hash is 64 hexadecimal digits in lower case, found {one!r}")
        for name, one in found.get("peers", {}).items():
            if not _is_public_key(one):
                raise ValueError(
                    f"{name} in [peers]: a public key is what `accord study key` prints, found {one!r}. Other keys of "
                    "the policy stand above [peers]"
                )
        if not found["site"].strip():
            raise ValueError("site must be a name, found none")
        if found["folder"].exists() and not found["folder"].is_dir():
            raise ValueError(f"folder is {found['folder']}, which is a file")
        whole_number("points", found.get("points", 1), 1)
        for name in ("disclosure", "epsilon"):
            positive(name, found.get(name, 1.0))
        if not 0.0 < found.get("delta", 0.5) < 1.0:
            raise ValueError(f"delta must be between 0 and 1, found {found['delta']!r}")
        whole_number("colluding", found.get("colluding", 1), 0)
        if not found.get("person", "id").strip():
            raise ValueError("person must be a name of a column, found none")
        return cls(**found, floors=floors)

    def _header(self, study: StudyDocument) -> set[str]:
        """The columns of the site's file, as the study reads them."""
        dialect = study.dialects.at(self.site)
        if study.private is not None:
            return set(records(self.data, dialect))
        sheet = read_sheet(self.data, dialect)
        if sheet.problems:
            raise DataError(f"{self.site} ({self.data.name}): {sheet.problems[0]}")
        return set(sheet.header)

    def require_hash(self, found: str) -> None:
        """Raise `RefusedError` unless the site takes part in the study with this hash."""
        if found not in self.studies:
            raise RefusedError(self._unknown(found))

    def _unknown(self, found: str) -> str:
        return (
            f"{self.site}: refused, its policy does not allow the study of hash {found}: its administrator has to read "
            "the study and to add the hash to `studies`"
        )

    def absent(self, study: StudyDocument) -> dict[str, str | None]:
        """The columns that a study needs and the site's file lacks, each with the nearest name in the file."""
        header = self._header(study)
        return {name: nearest(name, header) for name in sorted(study.needed_columns - header)}

    def require_study(self, study: StudyDocument) -> None:
        """Raise `RefusedError` unless the policy allows a study."""
        for text in self.refusals(study):
            raise RefusedError(text)

    def refusals(self, study: StudyDocument) -> Iterator[str]:
        """The reasons in the policy against taking part in a study."""
        if study.hash not in self.studies:
            yield self._unknown(study.hash)
        if self.site not in study.sites:
            yield f"{self.site}: refused, the study lists the sites {', '.join(study.sites)}"
        module = study.module
        if module is not None and self.modules.get(module.name) != module.hash:
            yield (
                f"{self.site}: refused, its policy does not allow the module {module.name} of hash {module.hash}: its "
                "administrator has to read that file and to add the hash to `modules`"
            )
        if self.columns is not None and (beyond := sorted((study.columns - set(self.columns)) & self._header(study))):
            yield f"{self.site}: refused, its policy does not allow the columns {', '.join(beyond)}"
        if not study.masks and not self.own_numbers:
            yield (
                f"{self.site}: refused, the study has no masks, so that the other site sees this site's own numbers, "
                "and the policy does not allow that by `own_numbers`"
            )
        if not study.coarse and not self.exact:
            yield (
                f"{self.site}: refused, the study has exact answers (coarse = false), which reveal more of its rows, "
                "and the policy does not allow that by `exact`"
            )
        if not study.coarse and self.disclosure is not None:
            yield (
                f"{self.site}: refused, its policy needs an sd of {self.disclosure:g} for each cell (disclosure), and "
                "exact answers (coarse = false) leave none to someone with all other rows"
            )
        private = study.private
        if private is not None and study.masks and private.colluding < self.colluding:
            yield (
                f"{self.site}: refused, its policy needs protection against {self.colluding} colluding sites "
                f"(colluding), and the study protects against {private.colluding}. A study of {len(study.sites)} sites "
                f"can protect against {len(study.sites) - 1} at most"
            )
        if self.identity is None:
            yield f"{self.site}: refused, its policy names no `identity` to sign its entries with"
        known = [self.peers[name] for name in study.sites if name in self.peers]
        if len(set(known)) < len(known):
            yield f"{self.site}: refused, its policy has one public key for two sites in `peers`"
        if missing := [name for name in study.sites if name not in self.peers]:
            yield f"{self.site}: refused, its policy has no public key of {', '.join(missing)} in `peers`"


def _is_public_key(text: Any) -> bool:
    try:
        return isinstance(text, str) and len(bytes_of(text)) == _KEY_BYTES
    except ValueError:
        return False
