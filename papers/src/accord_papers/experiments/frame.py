"""Declaration of experiments, and runs that write complete folders or none."""

from __future__ import annotations

import csv
import json
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from accord import Network, Posterior, Rounds, Run, Sampler, __version__, sample

from ..base import figures
from ..base.checks import unknown_name_error
from ..base.text import no_formula
from .verdicts import Verdict

# Callback with the current stage and the finished share, 0 to 1.
Progress = Callable[[str, float], None]

CARD, CLAIMS = "experiment.json", "claims.csv"
# "deciding" is the smallest size that decides the claims, if "small" does not and "paper" takes too long.
SIZES = ("small", "paper", "deciding")
# Version of the files in a folder. Since version 2 claims have three verdicts.
FORMAT = 2
_COLUMNS = ("kind", "source", "claim", "paper", "ours", "doubt", "law", "verdict", "why")


@dataclass(frozen=True)
class Size:
    """One size of an experiment.

    Parameters
    ----------
    minutes
        Expected wall-clock minutes on two CPU cores, including compilation.
    memory
        Expected peak memory of the process in GB.
    numbers
        Settings by name, such as the number of chains.
    """

    minutes: float
    memory: float
    numbers: Mapping[str, int]


@dataclass(frozen=True)
class Claim:
    """A statement of a paper or of accord, with the result of the run.

    Parameters
    ----------
    source
        Place in the paper, such as "section 5.1, figure 1(c)".
    text
        The statement.
    verdict
        Holds, does not hold, or undecided at this size.
    why
        The criterion with its bound, and the reason if the statement does not hold or is undecided.
    paper, ours, law
        The number in the paper, from simulation, and from the exact law. None if there is none.
    doubt
        Half-width of the uncertainty of `ours`, from `Estimate.doubt`. None if the verdict does not depend on it.
    kind
        "claim" of the paper. "check" of accord, which must always hold: if it fails, accord has a bug. "remark" of
        accord on something that the paper omits.
    """

    source: str
    text: str
    verdict: Verdict
    why: str
    paper: float | None = None
    ours: float | None = None
    law: float | None = None
    doubt: float | None = None
    kind: Literal["claim", "check", "remark"] = "claim"


@dataclass(frozen=True)
class Experiment:
    """A figure or a table of a paper.

    Parameters
    ----------
    name
        Name for `accord reproduce`.
    title, paper, figure
        Its content, the paper, and its number in the paper.
    sizes
        A `Size` for "small" and "paper", and optionally for "deciding".
    run
        `run(size, seed, folder, progress)` writes data and figures into the folder, and returns the claims.
    beyond
        Text for the page if no size decides all claims: the reason, and the hours that a decision takes.
    """

    name: str
    title: str
    paper: str
    figure: str
    sizes: Mapping[str, Size]
    run: Callable[[Size, int, Path, Progress], list[Claim]] = field(repr=False)
    beyond: str = ""

    def size(self, name: str) -> Size:
        """The size with this name. Raises `ValueError` if there is none."""
        if name not in SIZES:
            raise unknown_name_error("size", name, SIZES)
        if name not in self.sizes:
            raise ValueError(f"{self.name} has no size {name}: its claims are decided at small or paper size")
        return self.sizes[name]


def reproduce(
    experiment: Experiment, parent: Path, *, size: str = "small", seed: int = 0, progress: Progress | None = None
) -> list[Claim]:
    """Run an experiment into `parent / experiment.name`, which replaces an earlier run.

    The run writes to a temporary folder, which replaces the target folder at the end. After an interruption the target
    is unchanged.

    Parameters
    ----------
    experiment
        The experiment.
    parent
        Parent of the experiment's folder. It is created if it is missing.
    size
        "small", "paper", or "deciding" if the experiment has it.
    seed
        Seed of data and draws, >= 0.
    progress
        Callback with the current stage and the finished share. None: no progress.

    Returns
    -------
    list of Claim
        The claims, as in `claims.csv` of the folder.

    Raises
    ------
    ImportError
        matplotlib is missing.
    ValueError
        The experiment has no such size, or the folder exists and is not an earlier run.
    """
    chosen = experiment.size(size)
    figures.require()
    folder = parent / experiment.name
    if folder.exists() and not (folder / CARD).is_file():
        raise ValueError(f"{folder} is not an earlier run (it has no {CARD}); choose another --output")
    parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{experiment.name}-", dir=parent))
    try:
        begun = time.perf_counter()
        made = work / "new"
        made.mkdir()
        claims = experiment.run(chosen, seed, made, progress or (lambda what, share: None))
        write_table(made / CLAIMS, _COLUMNS, map(_row, claims))
        card = _card(experiment, size, seed, time.perf_counter() - begun)
        (made / CARD).write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
        if folder.exists():
            folder.rename(work / "old")
        made.rename(folder)
    finally:
        # interrupted between the two renames: restore the earlier run
        if (work / "old").exists() and not folder.exists():
            (work / "old").rename(folder)
        shutil.rmtree(work, ignore_errors=True)
    return claims


# Options that `whole_run` passes to `accord.Rounds`.
_ROUNDS = ("burn_in", "thin", "init", "whiten", "checkpoint_every")


def whole_run(post: Posterior, network: Network, method: Sampler, *, draws: int, **options: Any) -> Run:
    """`accord.sample` without a progress bar. Ctrl-C raises `KeyboardInterrupt` instead of returning partial draws.

    `options` are options of `accord.sample` and of `accord.Rounds`.
    """
    walking = Rounds(method, **{name: options.pop(name) for name in _ROUNDS if name in options})
    with warnings.catch_warnings():
        # sample warns that it returns partial draws, which this function discards
        warnings.filterwarnings("ignore", "interrupted: ")
        run = sample(post, network, walking, draws=draws, progress=False, **options)
    if run.average.shape[1] < draws:
        raise KeyboardInterrupt
    return run


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a CSV file with six digits for numbers and empty cells for None."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(map(no_formula, columns))
        writer.writerows([_cell(value) for value in row] for row in rows)


def listed(values: Iterable[Any], joint: str = ", ") -> str:
    """Join numbers, with three digits, and texts."""
    return joint.join(value if isinstance(value, str) else f"{value:.3g}" for value in values)


def _cell(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float | np.floating) else no_formula(value)


def _row(claim: Claim) -> list[Any]:
    numbers = [claim.paper, claim.ours, claim.doubt, claim.law]
    return [claim.kind, claim.source, claim.text, *numbers, claim.verdict, claim.why]


def _card(experiment: Experiment, size: str, seed: int, seconds: float) -> dict[str, Any]:
    taken = experiment.sizes[size]
    return {
        "format": FORMAT,
        "name": experiment.name,
        "title": experiment.title,
        "paper": experiment.paper,
        "figure": experiment.figure,
        "size": size,
        "numbers": dict(taken.numbers),
        # larger sizes, which may decide undecided claims, in minutes on two cores
        "larger": {name: one.minutes for name, one in experiment.sizes.items() if one.minutes > taken.minutes},
        "beyond": experiment.beyond,
        "seed": seed,
        "seconds": round(seconds, 1),
        "accord": __version__,
    }
