"""`accord study`: studies between organisations, by files or over Flower."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..base.text import cleaned
from .errors import users_errors

if TYPE_CHECKING:
    from ..federation import EntryFolder, StudyDocument
    from ..results.run import Run

commands = typer.Typer(no_args_is_help=True, help="Studies between organisations (docs/federations.md).")

# Most characters of an entry in the clear that are shown before it leaves.
_LONGEST = 2_000

_Study = Annotated[Path, typer.Argument(help="TOML file of the study.")]
_Policy = Annotated[Path, typer.Argument(help="TOML file of the site's policy.")]
_Folder = Annotated[Path, typer.Argument(help="Folder with the entries of all sites.")]


@commands.command(name="check")
def check_command(study: _Study, policy: _Policy) -> None:
    """Check at a site that its policy allows a study and that its file fits. Nothing is sent."""
    from ..federation import SitePolicy, StudyDocument
    from ..federation.check import check
    from ..federation.program import unfit_rows

    with users_errors():
        document, own = StudyDocument.read(study), SitePolicy.read(policy)
        found = check(document, own)
        columns = ", ".join(f"{name} ({kind})" for name, kind in found.kinds.items())
        typer.echo(f"study {document.hash}\n{own.site}: {found.rows} rows" + (f"; {columns}" if columns else ""))
        if found.forecast is not None:
            typer.echo(
                f"forecast with as many rows at all sites: someone with all other rows of {own.site} knows the most "
                f"exposed cell to about {found.forecast:.1g} standard deviations of its column"
            )
        if found.unfit:
            typer.echo(f"this site only: {unfit_rows(found.unfit, found.rows)}")
            cells = ", ".join(f"{count} of {name}" for name, count in found.misfits.items() if count)
            typer.echo(f"this site only: cells that do not fit: {cells}")
        for name, count in found.clipped.items():
            if count:
                typer.echo(f"this site only: {count} of {found.rows} numbers of {name} are beyond its range")
        if found.epsilon is not None:
            typer.echo(
                f"epsilon of its rows over all studies, this one included: {found.epsilon:.3g} for delta {own.delta:g}"
            )
        if found.mixed:
            typer.echo("studies without differential privacy have read these rows too, which no epsilon bounds")
        if found.coverage is not None:
            typer.echo(
                f"forecast with as many rows at all sites: intervals of 90% cover {found.coverage.share:.0%} of the "
                f"time, and are {found.coverage.width}, for columns spread evenly over their ranges"
            )
        for text in found.perhaps:
            typer.echo(f"perhaps: with rows like these at all sites, {text}")
        for text in found.wrong:
            typer.echo(f"wrong: {text}", err=True)
        if found.wrong:
            raise typer.Exit(1)
        typer.echo(
            f"{own.site} can take part"
            + (". If the other sites are like this one, the study fails, see above" if found.perhaps else "")
        )


@commands.command(name="answer")
def answer_command(
    study: _Study,
    policy: _Policy,
    folder: _Folder,
    yes: Annotated[bool, typer.Option("--yes", help="Release entries without a question.")] = False,
    wait: Annotated[
        float | None, typer.Option(min=0.1, help="Seconds between looks into the folder, until the study is finished.")
    ] = None,
) -> None:
    """Make this site's next entry of a study, and put it into a folder that all sites share or exchange."""
    from ..federation import EntryFolder, Site, SitePolicy, StudyDocument

    with users_errors():
        document, own, board = StudyDocument.read(study), SitePolicy.read(policy), EntryFolder(folder)
        site = Site(own, lambda text: typer.echo(f"this site only: {text}"))
        _require_folder(document, board, own.site, len(site.entries(document)))
        waited = ""
        while True:
            try:
                found = site.answer(document, board.all(document.sites), progress=False)
            except (ValueError, ArithmeticError):
                # the last entry says why the site refuses
                _release(site.entries(document), document, board, own.site, yes=yes)
                raise
            except KeyboardInterrupt:
                raise KeyboardInterrupt("interrupted: the same command continues the study") from None
            if found.reading is not None and any(board.read(step, own.site) is None for step in found.entries):
                typer.echo(f"this site only: {found.reading}")
            new = _release(found.entries, document, board, own.site, yes=yes)
            if found.run is not None:
                kept = own.folder / document.hash[:16] / "run.nc"
                verdict = found.run.certificate
                shown = "" if verdict is None else verdict.verdict if verdict.holds else f"{verdict}"
                typer.echo(f"the study is finished: {kept}\n{found.run.summary().to_string()}\n{shown}")
                _advise(document, found.run)
                return
            absent = found.waits_for[0] if len(found.waits_for) == 1 else "SITE"
            line = f"step {found.step} waits for {', '.join(found.waits_for)}"
            line += f", whose `accord study answer` writes {board.path(found.step, absent)}"
            copied = [name for name in found.waits_for if board.is_incomplete(found.step, name)]
            line += f" (incomplete files of {', '.join(copied)})" if copied else ""
            if line != waited:
                waited = line
                typer.echo(line)
            if wait is None:
                return
            if not new:
                time.sleep(wait)


def _require_folder(study: StudyDocument, board: EntryFolder, site: str, sent: int) -> None:
    """Raise `ValueError` for a folder that cannot be the shared one of a study, and print a doubt.

    `sent` is the number of entries that the site has made.
    """
    folder = board.folder
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file: name the folder that all sites share")
    # the entry of step 0 may not have been released
    if sent > 1 and not folder.is_dir():
        raise ValueError(f"there is no folder {folder}, and {site} has sent entries of this study before")
    from ..federation.entry import unsigned

    found = board.all(study.sites)
    for (step, name), text in found.items():
        try:
            of = cleaned(unsigned(text, name)["study"], 64)
        except (ValueError, LookupError, TypeError):
            # reported as a damaged entry
            continue
        if of != study.hash:
            raise ValueError(
                f"{board.path(step, name)} is an entry of another study ({of[:16]}..., not {study.hash[:16]}...): name "
                "the folder of this study, or an empty one"
            )
    if sent > 1 and not any(name == site for _, name in found):
        typer.echo(f"{folder} has no entry of {site}, which has sent {sent} before: is it the folder of this study?")


def _release(entries: Mapping[int, bytes], study: StudyDocument, board: EntryFolder, site: str, *, yes: bool) -> bool:
    """Put the new entries of a site into the folder, after showing each and asking. Returns whether there were any."""
    from ..federation.entry import HIDDEN

    new = {step: text for step, text in sorted(entries.items()) if board.read(step, site) is None}
    for step, text in new.items():
        found = json.loads(text.splitlines()[0])
        content, shown = found["content"], json.dumps(found["content"])
        typer.echo(f"step {step}, {len(text)} bytes: {found['what']}")
        # masked numbers look random
        if not (study.masks and isinstance(content, dict) and content.keys() & HIDDEN):
            typer.echo(f"  {shown if len(shown) <= _LONGEST else f'{shown[:_LONGEST]} ...'}")
        if not yes and not typer.confirm("release?"):
            typer.echo(f"nothing leaves {site}. The same command asks again.")
            raise typer.Exit(1)
        board.write(step, site, text)
    return bool(new)


def _advise(study: StudyDocument, run: Run) -> None:
    """Print what to do about a run that is not certified."""
    from ..federation.program import remedy

    if text := remedy(study, run):
        typer.echo(text)


@commands.command(name="result")
def result_command(
    study: _Study,
    folder: _Folder,
    policy: Annotated[Path | None, typer.Option(help="Policy with the public keys of all sites.")] = None,
    output: Annotated[Path | None, typer.Option(help="File for the run, such as run.nc.")] = None,
    report: Annotated[Path | None, typer.Option(help="File for the report, such as report.html.")] = None,
) -> None:
    """Print the posterior of a finished study from the entries of all sites. No rows are needed."""
    from ..examine.report import report as write_report
    from ..federation import EntryFolder, SitePolicy, StudyDocument, result
    from ..federation.program import named_keys

    with users_errors():
        document = StudyDocument.read(study)
        public: Mapping[str, str] | None = None if policy is None else SitePolicy.read(policy).peers
        for path in (output, report):
            if path is not None and not path.absolute().parent.is_dir():
                raise ValueError(f"{path}: its folder does not exist")
        run = result(document, folder, public)
        typer.echo(f"{run.summary().to_string()}\n{run.certificate}")
        _advise(document, run)
        if public is None:
            typer.echo("the entries are signed by these keys, which only the sites can confirm:")
            for site, key in named_keys(document, EntryFolder(folder)).items():
                typer.echo(f"  {site} = {key}")
        if output is not None:
            run.save(output)
        if report is not None:
            write_report(run, report, sites=document.sites)
            if document.report:
                typer.echo(f"{report} has no checks of the model, which need rows: see the reports of the sites")


@commands.command(name="hash")
def hash_command(study: _Study) -> None:
    """Print the hash of a study, which policies of sites list."""
    from ..federation import StudyDocument

    with users_errors():
        typer.echo(StudyDocument.read(study).hash)


@commands.command(name="key")
def key_command(path: Annotated[Path, typer.Argument(help="New file for the private key.")]) -> None:
    """Create the private key of a site, and print its public key for the policies of all sites."""
    from ..federation.keys import new_identity

    with users_errors():
        typer.echo(new_identity(path))


@commands.command(name="app")
def app_command(
    folder: Annotated[Path, typer.Argument(help="New or empty folder for the app.")],
    study: Annotated[Path, typer.Option(help="TOML file of the study.")],
    output: Annotated[
        Path | None, typer.Option(help="Folder of the entries and the run at the server. By default, DIR-results.")
    ] = None,
) -> None:
    """Write the Flower app of a study, for `flwr run`."""
    from ..federation import StudyDocument
    from ..federation.flower.bundle import write_app

    with users_errors():
        found = StudyDocument.read(study)
        output = folder.with_name(f"{folder.name}-results") if output is None else output
        write_app(found, folder, output)
        typer.echo(f"{folder}: the app of the study {found.hash}. Its results will be in {output}")
