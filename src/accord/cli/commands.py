"""The command line: `accord run`, `describe`, `plan`, `demo`, `study` and `rehearse`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import numpy as np
import typer
from rich.table import Table

from ..base import figures
from ..base.errors import DivergenceError, unknown_name_error
from ..base.interruptions import terminations
from ..base.progress import Progress
from ..base.terminal import console, fits, folded, table_width
from ..base.text import human_bytes, no_formula
from ..examine.page import notes_of
from ..examine.report import report as write_report
from ..results.run import Run
from ..samplers.validation import is_complete
from .errors import users_errors
from .output import REPORT, WORST, Place
from .rehearse import rehearse
from .study import commands

if TYPE_CHECKING:
    import pandas as pd

_HEADINGS = {"ess": "ESS", "rhat": "R-hat"}
_FORMATS = {"ess": ".0f", "rhat": ".3f"}

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Draw samples from one Bayesian posterior of data that stays with its owners.",
)


def _version(show: bool) -> None:
    if show:
        from ..base.text import __version__

        typer.echo(f"accord {__version__}")
        raise typer.Exit


app.add_typer(commands, name="study")
app.command()(rehearse)


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Draw samples from one Bayesian posterior of data that stays with its owners."""


@app.command()
def run(
    config: Annotated[Path, typer.Argument(help="TOML file with the sections data, model, network, method and run.")],
    output: Annotated[Path | None, typer.Option(help="Folder for results. By default, run.output of the file.")] = None,
    engine: Annotated[
        str | None,
        typer.Option(help="In place of run.engine: local, mesh (all JAX devices) or silo (one process per agent)."),
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Folder for checkpoints. The same command resumes an interrupted run from it.")
    ] = None,
    coordinator: Annotated[
        str | None, typer.Option(help="HOST:PORT of process 0, if several processes run this command.")
    ] = None,
    num_processes: Annotated[int | None, typer.Option(help="Number of processes that run this command.")] = None,
    process_id: Annotated[int | None, typer.Option(help="Number of this process, from 0.")] = None,
    distributed: Annotated[
        bool,
        typer.Option("--distributed", help="Get the three options above from the cluster (SLURM, Open MPI, ...)."),
    ] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the other processes at the start.")] = 60.0,
    heartbeat: Annotated[float, typer.Option(help="Seconds of silence after which a process counts as lost.")] = 20.0,
    report: Annotated[bool, typer.Option("--report", help="Also write report.html, with plots and checks.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the files of another run in the output folder.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress bar and no tables.")] = False,
) -> None:
    """Draw from the posterior of a TOML file, print a summary, and write run.nc and summary.csv."""
    with users_errors() as warned, terminations() as interrupted:
        from . import config as configs

        if report:
            # a missing package is an error before sampling
            figures.require()

        several = distributed or (coordinator, num_processes, process_id) != (None, None, None)
        place = (coordinator, num_processes, process_id, timeout, heartbeat)
        try:
            with _among(*place) if several else nullcontext(0) as number:
                with Progress("reading the files", False if quiet else None):
                    job = configs.load(config, output, engine, checkpoint)
                if several and job.engine != "mesh":
                    raise ValueError(f"several processes need the engine 'mesh', found {job.engine!r}")
                # only process 0 prints and writes
                first, quiet = number == 0, quiet or number != 0
                # the bytes that were read, as the file may change during the run
                files = Place(job, config.read_bytes(), with_report=report, overwrite=overwrite, warned=warned)
                done = files.claim() if first else None
                if done is not None and several:
                    raise ValueError(
                        f"the output folder {job.output} holds this finished run: add --overwrite to repeat it"
                    )
                if not quiet:
                    console().print(job.title)
                drawn = job.draw(progress=False if quiet else None) if done is None else done
        except DivergenceError as error:
            if error.run is not None and first:
                folder, _ = files.write(error.run)
                print(f"the draws before the error are in {folder / 'run.nc'}", file=sys.stderr)
            raise
        if first:
            with Progress("checking the draws", False if quiet else None):
                folder, table = files.write(drawn) if done is None else (job.output, done.summary(job.sites))
                again = [] if done is None else files.complete(done, table)
        if not quiet:
            _report(drawn, table)
            if done is not None:
                changed = (
                    f"wrote {' and '.join(again)} again in {folder}" if again else f"nothing in {folder} was changed"
                )
                print(f"this run was finished before: {changed}. Add --overwrite to repeat it")
            else:
                print(f"wrote {folder / 'run.nc'} and {folder / 'summary.csv'}")
            if "local" in drawn.settings:
                print(f"each agent stored its own latents at its site, in {drawn.settings['local']}")
        if first and report and (done is None or not (folder / REPORT).exists()):
            # several processes are disconnected by now, and each has only some of the rows
            problem = (None, None) if several or job.network is None else (job.post, job.network)
            with Progress("writing the report", False if quiet else None):
                page = write_report(drawn, folder / REPORT, *problem, engine=job.builder)
            if not quiet:
                print(f"wrote {page}")
        if done is None and (interrupted() or drawn.settings.get("interrupted")):
            if not drawn.settings.get("interrupted"):
                print(f"interrupted after the last draw: all files of the run are in {folder}", file=sys.stderr)
            raise typer.Exit(130)


@app.command()
def describe(
    config: Annotated[Path, typer.Argument(help="TOML file with the section data. Other sections are optional.")],
    output: Annotated[Path | None, typer.Option(help="Also write the summaries to this JSON file.")] = None,
) -> None:
    """Summarise the columns of all sites: rows, missing cells, means, standard deviations, quantiles and levels."""
    with users_errors():
        from . import config as configs
        from .describe import blocks

        agreed = configs.load_description(config)
        shown = console()
        width = table_width(shown.width)
        for table in blocks(agreed):
            shown.print(folded(table, width), width=width)
            shown.print()
        shown.print('The floors of a site hide numbers: these are shown as "< 3", "hidden" or "-".', style="dim")
        if output is not None:
            output.write_text(agreed.to_json(), encoding="utf-8")


@app.command()
def plan(
    config: Annotated[
        Path, typer.Argument(help="TOML file with the sections data, model and network. Its method is compared too.")
    ],
    tolerance: Annotated[
        float,
        typer.Option(
            help="Largest error of any agent's mean and sd, in posterior standard deviations. The forecast uses a "
            "Gaussian approximation, so it must stay within a tenth of this."
        ),
    ] = 0.05,
    cost: Annotated[
        str, typer.Option(help="Cost to compare: exchanges, bytes_sent, gradient_rows or rounds.")
    ] = "exchanges",
    draws: Annotated[int, typer.Option(help="Effective draws per chain for which to forecast the cost.")] = 1000,
    chains: Annotated[int, typer.Option(help="Number of chains.")] = 4,
    only: Annotated[
        list[str] | None, typer.Option(help="Compare only this method, a name or module:Class. May be repeated.")
    ] = None,
    table: Annotated[Path | None, typer.Option(help="Write all evaluated settings to this CSV file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Plot bias against bytes to this file (.png, .svg, .pdf).")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress and no table.")] = False,
) -> None:
    """Forecast the accuracy and cost of each method on your posterior and network, without running it."""
    with users_errors():
        from ..sampling.planning import every_method
        from ..sampling.planning import plan as planned
        from . import config as configs

        for path in (table, plot):
            if path is not None and not path.parent.is_dir():
                raise ValueError(f"there is no folder {path.parent} to write {path.name} to")
        post, network, sampler = configs.load_problem(config)
        methods = every_method(post, network)
        known = {type(method).__name__ for method in methods}
        outside = [name for name in only or () if ":" in name]
        for name in only or ():
            if name not in known and name not in outside:
                raise unknown_name_error("method", name, [*known, "module:Class"])
        methods = [method for method in methods if not only or type(method).__name__ in only]
        methods += configs.tunable_methods(outside, config.parent)
        if sampler is not None and (is_complete(sampler) or type(sampler).__name__ not in known):
            # the file's method may be in the list already
            methods += [sampler] if repr(sampler) not in map(repr, methods) else []
        progress = False if quiet else None
        found = planned(
            post, network, methods, tolerance=tolerance, cost=cost, draws=draws, chains=chains, progress=progress
        )
        if not quiet:
            shown = console()
            shown.print(f"{post!r} on {network!r}")
            shown.print(found)
        if table is not None:
            found.table().map(no_formula).to_csv(table, index=False)
        if plot is not None:
            axes: Any = found.plot()
            axes.figure.savefig(plot)


@app.command()
def demo(seed: Annotated[int, typer.Option(help="Random seed, a whole number >= 0.")] = 0) -> None:
    """Compare methods on real data, split over ten agents, with NUTS on the pooled data."""
    with users_errors():
        from . import demo as demonstration

        demonstration.main(seed)


@contextmanager
def _among(
    coordinator: str | None, num_processes: int | None, process_id: int | None, timeout: float, heartbeat: float
) -> Iterator[int]:
    """Join the processes of a mesh run. Yields the number of this process."""
    from ..engines import processes

    errors = sys.stderr.fileno()
    sys.stdout, sys.stderr = _kept(sys.stdout), _kept(sys.stderr)
    member = processes.join(coordinator, num_processes, process_id, timeout=timeout, heartbeat=heartbeat)
    # standard error again receives errors of JAX's libraries
    os.dup2(sys.stderr.fileno(), errors)
    with member as joined:
        yield joined.process_id


def _kept(stream: TextIO) -> TextIO:
    """A duplicate of a stream for accord's own output. The original is redirected to the null device for JAX."""
    stream.flush()
    own = os.dup(stream.fileno())
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())
    return os.fdopen(own, "w", buffering=1, encoding=stream.encoding)


def _report(drawn: Run, summary: pd.DataFrame) -> None:
    """Print the posterior table, notes and costs. Blocks of the summary are stacked if they do not fit side by side."""
    from ..results.table import Table as Summary

    shown, summary = console(), Summary(summary).shown
    width = table_width(shown.width)
    table = _posterior(summary)
    blocks = list(dict.fromkeys(block for block, _ in summary.columns))
    if len(blocks) == 1 or fits(table, width):
        shown.print(folded(table, width), width=width)
    else:
        for block in blocks:
            shown.print(folded(_posterior(summary[[block]]), width), width=width)
    for note in notes_of(drawn):
        shown.print(note, style="dim")
    shown.print(_cost(drawn), style="dim italic")


def _posterior(summary: pd.DataFrame) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0))
    first = summary.columns[0][0]
    table.add_column("" if first == WORST[0] else first)
    for block, name in summary.columns:
        named = (block, name) == WORST
        table.add_column(
            "worst agent" if named else _HEADINGS.get(name, name),
            justify="left" if named else "right",
            style="cyan" if named else None,
            no_wrap=not named,
        )
    for parameter, row in summary.iterrows():
        # two significant digits of the sd
        sd = row[summary.columns[0][0], "sd"]
        decimals = int(np.clip(1 - np.floor(np.log10(sd)), 0, 8)) if sd > 0 else 3
        cells = [str(v) if c == WORST else format(v, _FORMATS.get(c[1], f".{decimals}f")) for c, v in row.items()]
        table.add_row(str(parameter), *cells)
    return table


def _cost(drawn: Run) -> str:
    traffic = drawn.traffic
    if drawn.certificate is not None:
        certified = "certified" if drawn.certificate.holds else "not certified"
        return (
            f"{drawn.settings['method'].split('(')[0]}, {certified}: {traffic.sums:,} sums, {traffic.exchanges:,} "
            f"exchanges in {drawn.seconds:.1f} s, at most {human_bytes(int(traffic.bytes_sent.max()))} sent by an agent"
        )
    chains = drawn.average.shape[0]
    most = chains * int(traffic.bytes_sent.max())
    return (
        f"{traffic.rounds:,} rounds in {drawn.seconds:.1f} s, at most {human_bytes(most)} sent by an agent "
        f"over {chains} chains, consensus error {drawn.statistics['consensus_error'].mean():.3g}"
    )
