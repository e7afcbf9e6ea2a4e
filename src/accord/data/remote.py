"""Files that are read where they lie, by an engine's agents: a study of them is made by correspondence."""

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

# Options of `study` for files that are read at their sites, and those of them for a matrix, which names its columns.
_OF_STUDY = tuple(name for name in (*SETTINGS, "policy", *Dialects.options()) if name != "formula")
_OF_ROWS = tuple(name for name in _OF_STUDY if name != "columns")
# What every site does on its own file: the same function at all of them.
Work = Callable[[SiteCollectives], Any]
# `ask(work, sites, answers)`: what each site answers next, given the answers so far.
Ask = Callable[[Work, Sequence[str], Sequence[Any]], list[Any]]


class AsksSites(Protocol):
    """An engine whose agents read files of their own."""

    def asking(self, agents: int) -> AbstractContextManager[Ask]:
        """What asks each agent, while the context lasts."""
        ...


@dataclass(frozen=True)
class RemoteStudy:
    """Files of a study, and the engine whose agents read them; made by `study_at_sites`."""

    engine: AsksSites
    files: tuple[str, ...]
    sites: tuple[str, ...]
    options: dict[str, Any]

    def __repr__(self) -> str:
        return f"<RemoteStudy: {len(self.sites)} sites {', '.join(self.sites)}>"

    def met(self, meeting: SiteCollectives, **options: Any) -> Study:
        """The study as one of the sites that meet knows it, or who has no table; its agents are numbered as files."""
        file = self.files[meeting.here[0]] if meeting.here else None
        constant = [*options.get("constant", ()), *self.options.get("constant", ())]
        return study_at(meeting, file, **{"policy": None, **options, **self.options, "constant": constant})

    def __reduce__(self) -> Any:
        # sites do not need the engine that asks them
        return RemoteStudy, (None, self.files, self.sites, self.options)


def study_at_sites(files: Sequence[str | os.PathLike[str]], engine: AsksSites, **options: Any) -> RemoteStudy:
    """A study of files that each agent of an engine reads where it runs; only names, counts and sums leave it.

    `accord.models.glm` takes it as it takes a `Study`: sites agree on levels, means and whatever else the formula needs
    over the engine, under the floors of the policy files beside their data.

    Parameters
    ----------
    files : sequence of str or path
        The file of each agent, by its name where it is read: ``~`` and relative paths are those of that process.
    engine : accord.Silo
        Whose agents read the files.
    **options
        `dates`, `positive`, `strings`, `blanks`, `missing`, `constant`, `policy`, `separator`, `decimal`, `thousands`,
        `encoding` and `header` of `accord.data.study`.

    Raises
    ------
    ValueError
        If `files` is a pattern or empty. What is wrong with a file is raised by `accord.models.glm`.

    Examples
    --------
    >>> with accord.Silo() as sites:  # doctest: +SKIP
    ...     table = study_at_sites(["~/rows.csv", "~/rows.csv"], sites, missing="drop")
    ...     run = accord.sample(accord.models.glm(table, "died ~ age", "bernoulli"), network, engine=sites)
    """
    if isinstance(files, str | os.PathLike) or len(files) == 0:
        raise ValueError(f"files must list one file an agent, found {files!r}")
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
    """Name one CSV file an agent, to be read at its site only.

    Nothing is read here: the shards are functions that a model calls where an agent's data is needed. So the columns
    have to be named, and nothing is pooled. Columns are not standardised, as that takes the mean and the spread over
    all sites: agree on units, or standardise at the sites, and give the model a prior that fits them.

    Parameters
    ----------
    files : sequence of str or path
        The file of each agent, by its name where it is read: ``~`` and relative paths are those of that process. Two
        sites may use the same name.
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
        Functions that read the shards, names of the columns, names of the agents (after the files).

    Raises
    ------
    ValueError
        If `files` is a pattern or empty, or `columns` is empty, names a column twice or the target.
        What is wrong with a file is raised where it is read, as by `study`.

    Examples
    --------
    >>> table = at_sites(["~/north.csv", "~/south.csv"], target="ill", columns=["age", "dose"])
    >>> table.sites, table.columns
    (('north', 'south'), ('intercept', 'age', 'dose'))
    >>> post = accord.models.logistic_regression(table.shards, names=table.columns)  # doctest: +SKIP
    """
    if isinstance(files, str | os.PathLike):
        raise ValueError(
            f"files must list one file an agent, found {os.fspath(files)!r}: what a pattern matches is known only "
            "where the files lie"
        )
    if isinstance(columns, str):
        raise ValueError(f"columns must be a list of names, found {columns!r}")
    if options.get("missing") == "indicator":
        raise ValueError('missing = "indicator" needs the mean over all sites: take missing = "drop" where sites read')
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
    # of one site, columns may look constant
    own = {"constant": [*columns, target], "policy": Policy.none(), **options}
    found = study([file], columns=[*columns, target], **own)
    return found.matrix(target, columns, standardise=False, intercept=intercept).shards[0]
