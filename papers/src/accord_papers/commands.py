"""The commands that this package adds to `accord`: `reproduce` and `report`.

accord imports this module at startup, so heavy imports are inside functions. accord prints errors of commands.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from .base.terminal import console, folded, share_done

if TYPE_CHECKING:
    from .experiments.frame import Claim, Experiment


def reproduce(
    name: Annotated[str | None, typer.Argument(help="An experiment, or all; --list names them.")] = None,
    size: Annotated[
        str, typer.Option(help="small (about a minute), paper, or deciding: the least that decides the claims.")
    ] = "small",
    output: Annotated[Path, typer.Option(help="Folder for the experiment's folder.")] = Path("reproduced"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of data and draws.")] = 0,
    data: Annotated[
        Path | None, typer.Option(help="Folder with mnist.npz and covtype.npz. Default: $ACCORD_DATA, or a download.")
    ] = None,
    show: Annotated[bool, typer.Option("--list", help="List all experiments, with time and memory.")] = False,
) -> None:
    """Reproduce a figure or table of the papers: data, figure, and each claim beside our numbers."""
    from .datasets import DatasetError, found_in

    with found_in(data):
        from .experiments import EXPERIMENTS, find
        from .experiments.frame import SIZES
        from .experiments.frame import reproduce as reproduced
        from .experiments.verdicts import Verdict, tally

        if show:
            _list(EXPERIMENTS.values())
            return
        if name is None:
            raise ValueError(f"name an experiment: {', '.join(EXPERIMENTS)}, or all")
        broken, lacking = [], []
        # all, or the experiments with this size
        every = [one for one in EXPERIMENTS.values() if size not in SIZES or size in one.sizes]
        for experiment in every if name == "all" else [find(name)]:
            try:
                with share_done(experiment.name) as progress:
                    claims = reproduced(experiment, output, size=size, seed=seed, progress=progress)
            except KeyboardInterrupt:
                print(f"interrupted: the files of {experiment.name} are unchanged", file=sys.stderr)
                raise typer.Exit(130) from None
            except (DatasetError, ImportError) as error:
                if name != "all":
                    raise
                # other experiments may not need the missing data or package
                print(f"error: the files of {experiment.name} are unchanged: {error}", file=sys.stderr)
                lacking.append(experiment.name)
                continue
            _verdicts(claims)
            counts = [tally(claim.verdict for claim in claims if claim.kind == kind) for kind in ("claim", "check")]
            print(f"claims of the paper: {counts[0]}; checks of accord: {counts[1]}")
            print(f"wrote {output / experiment.name}; run accord report {output} for a page")
            checks = [claim for claim in claims if claim.kind == "check"]
            broken += [f"{experiment.name}: {claim.text}" for claim in checks if claim.verdict is not Verdict.HOLDS]
        failures = ["checks of accord itself fail: " + "; ".join(broken)] if broken else []
        failures += [f"data or packages are missing for {', '.join(lacking)}"] if lacking else []
        if failures:
            raise ValueError("; ".join(failures))


def report(
    folder: Annotated[Path, typer.Argument(help="The output folder of accord reproduce.")] = Path("reproduced"),
    markdown: Annotated[bool, typer.Option("--markdown", help="Write Markdown pages in the folders instead.")] = False,
) -> None:
    """Write all reproduced figures and claims to one self-contained HTML page."""
    from .experiments.gallery import write, write_markdown

    print(f"wrote {write_markdown(folder) if markdown else write(folder)}")


def _list(experiments: Iterable[Experiment]) -> None:
    """Print the name, paper, figure and sizes of all experiments, with minutes and memory."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("name", "paper", "figure", "sizes"):
        table.add_column(heading, no_wrap=heading == "name")
    for experiment in experiments:
        sizes = (f"{name} {one.minutes:g} min, {one.memory:g} GB" for name, one in experiment.sizes.items())
        table.add_row(experiment.name, experiment.paper, experiment.figure, "; ".join(sizes))
    shown = console()
    shown.print(folded(table, shown.width))


def _verdicts(claims: list[Claim]) -> None:
    """Print each claim with its verdict."""
    from .experiments.verdicts import Verdict

    styles = {Verdict.FAILS: "yellow", Verdict.UNDECIDED: "cyan"}
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("verdict", "where", "claim"):
        table.add_column(heading, no_wrap=heading == "verdict")
    for claim in claims:
        table.add_row(claim.verdict, claim.source, claim.text, style=styles.get(claim.verdict))
    shown = console()
    shown.print(folded(table, shown.width))
