"""Experiments: their declaration, and a run of one into a folder that is either whole or not there."""

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

# What is being done, and the share of the whole that is done, from 0 to 1.
Progress = Callable[[str, float], None]

CARD, CLAIMS = "experiment.json", "claims.csv"
# "deciding": the least size that decides the claims, where neither of the others is one that can be waited for.
SIZES = ("small", "paper", "deciding")
# Of the files in a folder: from 2 on claims have three verdicts.
FORMAT = 2
_COLUMNS = ("kind", "source", "claim", "paper", "ours", "doubt", "law", "verdict", "why")


@dataclass(frozen=True)
class Size:
    """One size of an experiment.

    Parameters
    ----------
    minutes
        Expected wall minutes on two CPU cores, compilation included.
    memory
        Expected peak memory of the process in GB.
    numbers
        Its numbers by name, such as that of chains.
    """

    minutes: float
    memory: float
    numbers: Mapping[str, int]


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper, or a check of ours, beside what was found.

    Parameters
    ----------
    source
        Where the paper says so, such as "section 5.1, figure 1(c)".
    text
        What it says.
    verdict
        Whether it holds, or that a run of this size cannot decide it.
    why
        How that was decided, with the bound; where it does not hold or is undecided, the reason.
    paper, ours, law
        The number that the paper prints, the one found by simulation, and that of the exact law; None: there is none.
    doubt
        How far `ours` may be off, both ways, as `Estimate.doubt` has it; None: nothing is decided by it.
    kind
        "claim" of the paper; "check" of ours, which must hold whatever the paper says, as accord is wrong where it does
        not; or "remark" of ours, on what the paper leaves out.
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
        What `accord reproduce` calls it.
    title, paper, figure
        What it shows, the paper, and where it is printed there.
    sizes
        A `Size` for each of "small" and "paper", and for "deciding" where that is another one.
    run
        `run(size, seed, folder, progress)` writes data and figures into the folder, and returns the claims.
    beyond
        Of claims that no size decides: why, and in how many hours what would, on two CPU cores and on a GPU.
    """

    name: str
    title: str
    paper: str
    figure: str
    sizes: Mapping[str, Size]
    run: Callable[[Size, int, Path, Progress], list[Claim]] = field(repr=False)
    beyond: str = ""

    def size(self, name: str) -> Size:
        """The size of that name, or a `ValueError` that names those there are."""
        if name not in SIZES:
            raise unknown_name_error("size", name, SIZES)
        if name not in self.sizes:
            raise ValueError(f"{self.name} has no size {name}: its claims are decided at small or paper size")
        return self.sizes[name]


def reproduce(
    experiment: Experiment, parent: Path, *, size: str = "small", seed: int = 0, progress: Progress | None = None
) -> list[Claim]:
    """Run an experiment into `parent / experiment.name`, in place of an earlier one there.

    Files are written to a temporary folder beside it, which takes its place at the end: whatever stops the run, the
    folder holds one whole run, the earlier or the new one.

    Parameters
    ----------
    experiment
        What to run.
    parent
        The folder to make the experiment's folder in; made where it is missing.
    size
        "small", "paper" or, where there is one, "deciding".
    seed
        Of data and draws, >= 0.
    progress
        Told what is being done and the share that is done; None: nobody is.

    Returns
    -------
    list of Claim
        As in the `claims.csv` of the folder.

    Raises
    ------
    ImportError
        matplotlib is missing.
    ValueError
        There is no such size, or the folder exists and holds something else than a run of an experiment.
    """
    chosen = experiment.size(size)
    figures.require()
    folder = parent / experiment.name
    if folder.exists() and not (folder / CARD).is_file():
        raise ValueError(f"{folder} is no folder of an earlier run (it has no {CARD}); name another --output")
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
        # stopped between the two renames: the earlier run goes back
        if (work / "old").exists() and not folder.exists():
            (work / "old").rename(folder)
        shutil.rmtree(work, ignore_errors=True)
    return claims


# Options of `accord.Rounds` that the figures need.
_ROUNDS = ("burn_in", "thin", "init", "whiten", "checkpoint_every")


def whole_run(post: Posterior, network: Network, method: Sampler, *, draws: int, **options: Any) -> Run:
    """`accord.sample` without a bar of its own; Ctrl-C is passed on, where `sample` would return the draws so far.

    `options` are those of `accord.sample` and of `accord.Rounds`.
    """
    walking = Rounds(method, **{name: options.pop(name) for name in _ROUNDS if name in options})
    with warnings.catch_warnings():
        # that sample keeps what it has is not what happens here
        warnings.filterwarnings("ignore", "interrupted: ")
        run = sample(post, network, walking, draws=draws, progress=False, **options)
    if run.average.shape[1] < draws:
        raise KeyboardInterrupt
    return run


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a CSV file; numbers with six digits, None as nothing."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(map(no_formula, columns))
        writer.writerows([_cell(value) for value in row] for row in rows)


def listed(values: Iterable[Any], joint: str = ", ") -> str:
    """Numbers with three digits, and texts, for a sentence of a claim."""
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
        # what there is to do about claims that are undecided: sizes that take longer, in minutes on two cores
        "larger": {name: one.minutes for name, one in experiment.sizes.items() if one.minutes > taken.minutes},
        "beyond": experiment.beyond,
        "seed": seed,
        "seconds": round(seconds, 1),
        "accord": __version__,
    }
