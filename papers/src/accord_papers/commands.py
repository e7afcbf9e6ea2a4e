"""The commands that this package adds to `accord`: `reproduce` and `report`.

accord imports this module at its start, so that it imports nothing heavy; accord shows what a command raises.
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
        str, typer.Option(help="small (a minute or so), paper, or deciding: the least that decides the claims.")
    ] = "small",
    output: Annotated[Path, typer.Option(help="Folder to make the experiment's folder in.")] = Path("reproduced"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of data and draws.")] = 0,
    data: Annotated[
        Path | None, typer.Option(help="Folder of mnist.npz and covtype.npz; else $ACCORD_DATA, else they are fetched.")
    ] = None,
    show: Annotated[bool, typer.Option("--list", help="List all experiments and what they take.")] = False,
) -> None:
    """Make a figure or table of the papers again: its data, the figure, and each claim beside our numbers."""
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
        # all of size deciding are those that have one
        every = [one for one in EXPERIMENTS.values() if size not in SIZES or size in one.sizes]
        for experiment in every if name == "all" else [find(name)]:
            try:
                with share_done(experiment.name) as progress:
                    claims = reproduced(experiment, output, size=size, seed=seed, progress=progress)
            except KeyboardInterrupt:
                print(f"interrupted: {experiment.name} is left as it was", file=sys.stderr)
                raise typer.Exit(130) from None
            except (DatasetError, ImportError) as error:
                if name != "all":
                    raise
                # what the others need may be there
                print(f"error: {experiment.name} is left as it was: {error}", file=sys.stderr)
                lacking.append(experiment.name)
                continue
            _verdicts(claims)
            counts = [tally(claim.verdict for claim in claims if claim.kind == kind) for kind in ("claim", "check")]
            print(f"claims of the paper: {counts[0]}; checks of accord: {counts[1]}")
            print(f"wrote {output / experiment.name}; accord report {output} shows it")
            checks = [claim for claim in claims if claim.kind == "check"]
            broken += [f"{experiment.name}: {claim.text}" for claim in checks if claim.verdict is not Verdict.HOLDS]
        complaints = ["checks of accord itself fail: " + "; ".join(broken)] if broken else []
        complaints += [f"not made, for lack of what they need: {', '.join(lacking)}"] if lacking else []
        if complaints:
            raise ValueError("; ".join(complaints))


def report(
    folder: Annotated[Path, typer.Argument(help="What accord reproduce wrote its folders to.")] = Path("reproduced"),
    markdown: Annotated[bool, typer.Option("--markdown", help="Pages of Markdown in the folders instead.")] = False,
) -> None:
    """Gather reproduced figures and claims in one HTML page that needs no other file."""
    from .experiments.gallery import write, write_markdown

    print(f"wrote {write_markdown(folder) if markdown else write(folder)}")


def _list(experiments: Iterable[Experiment]) -> None:
    """Print name, figure, and minutes and memory at each size, of all experiments."""
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
