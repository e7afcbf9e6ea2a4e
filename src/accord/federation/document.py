"""The document of a study: data, formula, family and priors in TOML, identified by its hash."""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from unicodedata import is_normalized
from unicodedata import name as character

from .. import models
from ..base.checks import whole_number
from ..base.errors import DataError
from ..data.collectives import SiteCollectives
from ..data.files import Dialects
from ..data.formula_names import FormulaNames
from ..data.missing import in_files
from ..data.policy import Policy
from ..data.ranges import Fitted, Ranges, records, require_lines
from ..data.studies import study_at
from ..engines.noise import seed_words
from ..models.documents import arguments_of_glm, keys_of_data, keys_of_glm, options_of_study
from ..models.effects import INTEGRATED, require_integrated
from ..models.formula import columns_of_formula, require_groups_of_sites
from ..models.glm import glm_within, ranges_of
from ..models.regression import Regression
from ..models.sections import require_known, require_placed, require_type
from ..models.tables import family_of, needed
from ..posterior import Posterior
from ..posterior.masks import FEWEST
from ..samplers.by_sums.auto import Auto
from ..samplers.by_sums.importance import Importance
from ..samplers.by_sums.method import BySums
from ..samplers.by_sums.private import Private
from .module import KEYS as MODULE
from .module import ApprovedModule

# Sections of a document, and the keys of [run] with their types.
_SECTIONS = ("data", "model", "priors", "run", "private", "rehearsal")
_RUN = {
    "draws": "int",
    "chains": "int",
    "seed": "int",
    "masks": "bool",
    "coarse": "bool",
    "fallback": "bool",
    "report": "bool",
    "points": "bool",
}
# Keys of [private] with their types.
_PRIVATE = {"epsilon": "float", "delta": "float", "colluding": "int"}
# Keys of [run] that a private study cannot have, and the only ones of [data] and [model].
_NOT_PRIVATE = ("coarse", "fallback", "report", "points")
_PRIVATE_DATA = ("sites", "separator", "decimal", "thousands", "encoding", "header")
_PRIVATE_MODEL = ("formula", "family", "ranges")
# Keys of [rehearsal].
REHEARSAL = ("rows", "columns", "effects", "apart")
# Keys of [data] that a study cannot have.
_AT_SITES = ("files", "file", "site", "split", "agents", "column", "seed", "at_sites", "policy")


def hash_of(text: str) -> str:
    """The hash of the text of a study, which does not depend on line endings."""
    return hashlib.sha256(_normal(text).encode()).hexdigest()


def _normal(text: str) -> str:
    return text.removeprefix("\ufeff").replace("\r\n", "\n")


def _tables_of(document: dict[str, Any]) -> dict[str, Collection[str]]:
    """The keys of each section."""
    model = document.get("model")
    keys = MODULE if isinstance(model, dict) and "numpyro" in model else keys_of_glm()
    data = (keys_of_data() | {"sites"}).difference(_AT_SITES)
    return {"data": data, "model": keys, "run": _RUN, "private": _PRIVATE, "rehearsal": REHEARSAL}


@dataclass(frozen=True)
class StudyDocument:
    """A study in TOML. It names no files, and lists the participating sites in `[data] sites`.

    Parameters
    ----------
    text
        The document.

    Raises
    ------
    ValueError
        The document is not TOML, or a section, key or value is wrong.
    """

    text: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", _normal(self.text))
        document = self._document
        require_placed(document, _tables_of(document))
        require_known("section of a study", document, _SECTIONS)
        for section in ("data", "model"):
            if not isinstance(document.get(section), dict):
                raise ValueError(f"a study must have a [{section}] section")
        if "formula" not in document["model"] and "numpyro" not in document["model"]:
            raise ValueError(
                "[model] of a study must have a formula, or name a module of NumPyro that sites have installed: models "
                "come as data, never as code"
            )
        for key in _AT_SITES:
            if key in document["data"]:
                raise ValueError(f"[data] of a study names no {key}: each site has its own, which its policy names")
        if not isinstance(self.rehearsal, dict):
            raise ValueError(f"[rehearsal] must be a section, found {self.rehearsal!r}")
        sites = document["data"].get("sites")
        if not isinstance(sites, list) or not all(isinstance(name, str) for name in sites) or len(sites) < 2:
            raise ValueError(f"[data] of a study must list its sites, sites = [...], found {sites!r}")
        if len({name.casefold() for name in sites}) < len(sites):
            raise ValueError(f"the sites of a study must have different names, found {sites}; case does not count")
        for name in sites:
            # names of files
            if re.fullmatch(r"\w([\w.-]| (?! )){0,63}(?<![ .])", name) is None or not is_normalized("NFKC", name):
                raise ValueError(
                    "a site's name has at most 64 letters, digits, single spaces and . _ - only, and ends in none of "
                    f"space and dot, found {name[:80]!r}"
                )
        # letters of two scripts look alike
        letters = [c for c in "".join(sites) if c.isalpha() or not c.isascii()]
        if 0 < len(latin := [c for c in letters if "LATIN" in character(c, "")]) < len(letters):
            other = next(c for c in letters if c not in latin)
            raise ValueError(
                "the sites of a study have names with Latin letters only, or without Latin letters, found "
                f"{character(other, ascii(other))} in {sites}"
            )
        require_known("key of [run] of a study", self.run, _RUN)
        for key, value in self.run.items():
            require_type("[run]", key, value, _RUN[key])
        for key in ("draws", "chains"):
            whole_number(f"{key} in [run]", self.run.get(key, 1), 1)
        seed_words(self.run.get("seed", 0))
        if self.masks and len(sites) < FEWEST:
            raise ValueError(
                f"masks hide nothing of fewer than {FEWEST} sites, found {len(sites)}. Two sites can set masks = false "
                "in [run]: each then sees the numbers of the other, and both policies need own_numbers = true"
            )
        if not self.masks and len(sites) >= FEWEST:
            raise ValueError(f"masks = false is for two sites, found {len(sites)}: remove it from [run]")
        if self.private is not None:
            self._require_private()
        elif "ranges" in document["model"]:
            raise ValueError("ranges in [model] is for differential privacy: add a [private] section with an epsilon")
        for key in ("fallback", "report"):
            if self.coarse and self.run.get(key, False):
                raise ValueError(
                    f"{key} = true in [run] needs exact sums: set coarse = false, which policies must allow"
                )
        # errors in options and arguments are raised now
        if self.module is None:
            self._options  # noqa: B018
            family_of(self._arguments.get("family", "normal"))
            require_groups_of_sites(self._arguments["formula"])
            require_integrated(self._arguments.get("effects", INTEGRATED))
        elif set(document["data"]) > {"sites"} or "priors" in document:
            raise ValueError("a study of a NumPyro model has nothing but sites in [data], and no [priors]")

    @classmethod
    def read(cls, path: str | Path) -> StudyDocument:
        """A document from a file. Errors name the file."""
        try:
            return cls(Path(path).read_text(encoding="utf-8-sig"))
        except (ValueError, OSError) as error:
            raise ValueError(f"study {path}: {error}") from error

    @property
    def hash(self) -> str:
        """SHA-256 of the text in hexadecimal digits, which policies of sites list."""
        return hash_of(self.text)

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the participating sites."""
        return tuple(self._document["data"]["sites"])

    @property
    def run(self) -> dict[str, Any]:
        """The options in [run]."""
        return dict(self._document.get("run", {}))

    @property
    def rehearsal(self) -> dict[str, Any]:
        """The section [rehearsal], which only `accord rehearse` reads."""
        found: dict[str, Any] = self._document.get("rehearsal", {})
        return found

    @property
    def masks(self) -> bool:
        """Whether sums are masked, by default True."""
        return bool(self.run.get("masks", True))

    @property
    def coarse(self) -> bool:
        """Whether sites add noise to their numbers and round them, by default True."""
        return bool(self.run.get("coarse", True))

    @property
    def points(self) -> bool:
        """Whether plans have the drawn points themselves, for sites with R, by default False."""
        return bool(self.run.get("points", False))

    @property
    def report(self) -> bool:
        """Whether the sites check the model together after the run, for a report. By default False."""
        return bool(self.run.get("report", False))

    @property
    def method(self) -> BySums:
        """The method: `Importance()`, `Private(...)` with a section [private], or the default with `fallback = true`.

        The default may need many sums.
        """
        return self.private or (Auto() if self.run.get("fallback", False) else Importance())

    @cached_property
    def private(self) -> Private | None:
        """The method of a study with differential privacy, or None without a section [private]."""
        section = self._document.get("private")
        if section is None:
            return None
        require_known("key of [private]", section, _PRIVATE)
        for key, value in section.items():
            require_type("[private]", key, value, _PRIVATE[key])
        if "epsilon" not in section:
            raise ValueError("[private] has no epsilon, such as epsilon = 1.0")
        return Private(**section)

    @cached_property
    def ranges(self) -> Ranges:
        """The declared ranges of the columns of a study with differential privacy."""
        own = self._arguments
        return ranges_of(own.get("ranges", {}), own["formula"], own.get("family", "normal"))

    def _require_private(self) -> None:
        """Raise `ValueError` if the document has anything that depends on rows."""
        model, data = self._document["model"], self._document["data"]
        if "formula" not in model:
            raise ValueError("a study with [private] needs a formula in [model]")
        for section, own, known in (("model", model, _PRIVATE_MODEL), ("data", data, _PRIVATE_DATA)):
            if beyond := [key for key in own if key not in known]:
                raise ValueError(f"[{section}] of a study with [private] cannot have {beyond[0]}")
        for key in _NOT_PRIVATE:
            if key in self.run:
                raise ValueError(f"[run] of a study with [private] cannot have {key}: sites send noised sums only")
        for site in self.sites:
            require_lines(self.dialects.at(site))
        # errors of the formula, the family and the ranges are raised now
        assert self.private is not None
        self.private.require(self.model_within([1] * len(self.sites), {}))

    def model_within(self, rows: Sequence[int], here: Mapping[str, Fitted]) -> Regression:
        """The model of a study with differential privacy: arguments as in `accord.models.glm.glm_within`."""
        arguments = {key: value for key, value in self._arguments.items() if key != "ranges"}
        return glm_within(self.ranges, self.sites, rows, here, **arguments)

    @property
    def columns(self) -> frozenset[str]:
        """The columns that the study may read. Names of functions are included."""
        if self.module is not None:
            return self.module.columns
        requested = needed(*self._named)
        named = self._options.get("columns")
        return frozenset(FormulaNames.of(requested["formula"]).names if named is None else named)

    @property
    def needed_columns(self) -> frozenset[str]:
        """The columns that the file of each site must have."""
        if self.module is not None:
            return self.module.columns
        formula, *beside = self._named
        found = columns_of_formula(formula) | {name for name in beside if name is not None}
        return frozenset(in_files(found, self._options.get("missing", "error")))

    @property
    def dialects(self) -> Dialects:
        """The formats of the files of sites."""
        return Dialects.pop_from({} if self.module is not None else dict(self._options))

    @cached_property
    def module(self) -> ApprovedModule | None:
        """The module with the model, or None for a formula."""
        model = self._document["model"]
        return ApprovedModule.of(model) if "numpyro" in model else None

    @cached_property
    def _document(self) -> dict[str, Any]:
        try:
            return tomllib.loads(self.text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise ValueError(f"not valid TOML: {error}") from error

    @cached_property
    def _arguments(self) -> dict[str, Any]:
        return arguments_of_glm(self._document)

    @cached_property
    def _options(self) -> dict[str, Any]:
        data = {key: value for key, value in self._document["data"].items() if key != "sites"}
        return options_of_study({**self._document, "data": data})

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of `accord.models.glm`, for a formula."""
        return dict(self._arguments)

    @property
    def options(self) -> dict[str, Any]:
        """The options of `accord.data.study` about columns and formats of files, for a formula."""
        return {**needed(*self._named), **self._options}

    @property
    def _named(self) -> tuple[Any, ...]:
        return tuple(self._arguments.get(key) for key in ("formula", "weights", "exposure"))

    def model(self, meeting: SiteCollectives, file: Path | None, floors: Policy) -> Posterior:
        """The model in the process of one site, with the rows of its own file, or of none without a file."""
        if self.module is not None:
            sources = [self.module.refusing()] * len(self.sites)
            if file is None:
                return self.module.posterior(sources)
            (here,) = meeting.here
            sources[here] = partial(self.module.read, file, self.sites[here], floors)
            post = self.module.posterior(sources)
            _require_few_parameters(post.alone(here), self.sites[here], floors)
            return post
        if self.private is not None:
            return self._private_model(meeting, file, floors)
        return models.glm(study_at(meeting, file, floors, **self.options), **self._arguments)

    def _private_model(self, meeting: SiteCollectives, file: Path | None, floors: Policy) -> Posterior:
        """The model of a study with differential privacy. The number of rows is all that leaves the site."""
        here, own = dict[str, Fitted](), list[dict[str, int]]()
        for place in meeting.here:
            assert file is not None
            here[self.sites[place]] = fitted = self.fitted(place, file)
            own.append({"rows": fitted.fits.size})
        rows = [int(one["rows"]) for one in meeting.gathered(own)]
        post = self.model_within(rows, here)
        meeting.require([floors.refusals(site, post.dim, fitted.fits.size) for site, fitted in here.items()])
        return post

    def fitted(self, place: int, file: Path) -> Fitted:
        """The rows of a site in a study with differential privacy."""
        dialect = self.dialects.at(self.sites[place])
        try:
            return self.ranges.within(records(file, dialect), dialect)
        except (DataError, ValueError) as error:
            raise DataError(f"{self.sites[place]} ({file.name}): {error}") from None


def _require_few_parameters(post: Posterior, site: str, floors: Policy) -> None:
    """Raise `DataError` if a model has too many parameters for the number of rows of a site."""
    for refusal in floors.refusals(site, post.dim, int(post.sizes[0])):
        raise DataError(refusal)
