"""Studies and matrices of files that the agents of an engine read at their sites."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from jaxtyping import Float

from .collectives import SiteCollectives
from .files import Dialects, site_names
from .policy import Policy
from .studies import SETTINGS, Matrix, Study, require_chosen, require_options, study, study_at

# Options of `study` for `study_at_sites`, and for `at_sites`, which has its own argument `columns`.
_OF_STUDY = tuple(name for name in (*SETTINGS, "policy", *Dialects.options()) if name != "formula")
_OF_ROWS = tuple(name for name in _OF_STUDY if name != "columns")
# The same function for every site, which reads the site's own file.
Work = Callable[[SiteCollectives], Any]
# `ask(work, sites, answers)`: the next answer of each site, given the answers so far.
Ask = Callable[[Work, Sequence[str], Sequence[Any]], list[Any]]


class AsksSites(Protocol):
    """An engine whose agents read their own files."""

    def asking(self, agents: int) -> AbstractContextManager[Ask]:
        """A context with a function that asks each agent for its next answer."""
        ...


@dataclass(frozen=True)
class RemoteStudy:
    """The files of a study and the engine whose agents read them. Made by `study_at_sites`."""

    engine: AsksSites
    files: tuple[str, ...]
    sites: tuple[str, ...]
    options: dict[str, Any]

    def __repr__(self) -> str:
        return f"<RemoteStudy: {len(self.sites)} sites {', '.join(self.sites)}>"

    def study(self, meeting: SiteCollectives, **options: Any) -> Study:
        """The study in the process of one site, or in a process without a table. Agents are in the order of files."""
        file = self.files[meeting.here[0]] if meeting.here else None
        constant = [*options.get("constant", ()), *self.options.get("constant", ())]
        return study_at(meeting, file, **{"policy": None, **options, **self.options, "constant": constant})

    def __reduce__(self) -> Any:
        # sites get no engine
        return RemoteStudy, (None, self.files, self.sites, self.options)


def study_at_sites(files: Sequence[str | os.PathLike[str]], engine: AsksSites, **options: Any) -> RemoteStudy:
    """A study of files that each agent of an engine reads at its site. Only names, counts and sums leave a site.

    Pass the result to `accord.models.glm` in place of a `Study`. The sites agree on levels, means and other summaries
    for the formula through the engine, under the policy files beside their data.

    Parameters
    ----------
    files : sequence of str or path
        The file of each agent, as a path at its site. ``~`` and relative paths are resolved there.
    engine : accord.Silo
        The engine whose agents read the files.
    **options
        `dates`, `positive`, `strings`, `blanks`, `missing`, `constant`, `policy`, `separator`, `decimal`, `thousands`,
        `encoding` and `header` of `accord.data.study`.

    Raises
    ------
    ValueError
        `files` is a pattern or empty. Problems with a file are raised by `accord.models.glm`.

    Examples
    --------
    >>> with accord.Silo() as sites:  # doctest: +SKIP
    ...     table = study_at_sites(["~/rows.csv", "~/rows.csv"], sites, missing="drop")
    ...     run = accord.sample(accord.models.glm(table, "died ~ age", "bernoulli"), network, engine=sites)
    """
    if isinstance(files, str | os.PathLike) or len(files) == 0:
        raise ValueError(f"files must list one file per agent, found {files!r}")
    if not hasattr(engine, "asking"):
        raise ValueError(f"engine must be one whose agents read files, such as accord.Silo(), found {engine!r}")
    require_options("study_at_sites", options, _OF_STUDY)
    names = site_names([Path(os.path.expanduser(file)) for file in files])
    return RemoteStudy(engine, tuple(os.fspath(file) for file in files), tuple(names), dict(options))


def at_sites(
    files: Sequence[str | os.PathLike[str]],
    *,
    target: str,
    columns: Sequence[str],
    intercept: bool = True,
    **options: Any,
) -> Matrix:
    """A matrix of one CSV file per agent, which only the agent reads.

    Nothing is read here: the shards are functions that an agent calls when it needs its data. So you must name the
    columns. Columns are not standardised, which would need means over all sites. Use the same units at all sites, or
    standardise the files yourself, and choose a prior on that scale.

    Parameters
    ----------
    files : sequence of str or path
        The file of each agent, as a path at its site. ``~`` and relative paths are resolved there. Several agents may
        have the same path.
    target : str
        The column of the response.
    columns : sequence of str
        The columns of X, in this order.
    intercept : bool, default True
        Put a column of ones first.
    **options
        `positive`, `dates`, `blanks`, `missing`, `separator`, `decimal`, `thousands`, `encoding` and
        `header` of `study`.

    Returns
    -------
    Matrix
        Functions that read the shards, the names of the columns, and the names of the agents (from their files).

    Raises
    ------
    ValueError
        `files` is a pattern or empty, or `columns` is empty, lists a column twice or lists the target. Problems with a
        file are raised when it is read, as by `study`.

    Examples
    --------
    >>> table = at_sites(["~/north.csv", "~/south.csv"], target="ill", columns=["age", "dose"])
    >>> table.sites, table.columns
    (('north', 'south'), ('intercept', 'age', 'dose'))
    >>> post = accord.models.logistic_regression(table.shards, names=table.columns)  # doctest: +SKIP
    """
    if isinstance(files, str | os.PathLike):
        raise ValueError(
            f"files must list one file per agent, found {os.fspath(files)!r}: a pattern cannot be expanded here, as "
            "the files are at their sites"
        )
    if isinstance(columns, str):
        raise ValueError(f"columns must be a list of names, found {columns!r}")
    if options.get("missing") == "indicator":
        raise ValueError('missing = "indicator" needs the mean over all sites: use missing = "drop" with at_sites')
    if len(files) == 0:
        raise ValueError("files is an empty list")
    require_options("at_sites", options, _OF_ROWS)
    require_chosen(columns, target, intercept=intercept)
    read_one = partial(_read_site, target=target, columns=tuple(columns), intercept=intercept, options=options)
    names = ("intercept", *columns) if intercept else tuple(columns)
    return Matrix([partial(read_one, os.fspath(file)) for file in files], names, site_names([Path(f) for f in files]))


def _read_site(
    file: str, target: str, columns: tuple[str, ...], intercept: bool, options: Mapping[str, Any]
) -> tuple[Float[np.ndarray, "row dim"], Float[np.ndarray, " row"]]:
    # a column may be constant at one site
    own = {"constant": [*columns, target], "policy": Policy.none(), **options}
    found = study([file], columns=[*columns, target], **own)
    return found.matrix(target, columns, standardise=False, intercept=intercept).shards[0]
