"""`accord flower`: write the app of a study, check it at a site, print its hash, create a site's key."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .errors import users_errors

commands = typer.Typer(no_args_is_help=True, help="Studies between organisations over Flower (docs/flower.md).")

_Study = Annotated[Path, typer.Argument(help="TOML file of the study.")]


@commands.command(name="app")
def app_command(
    folder: Annotated[Path, typer.Argument(help="New or empty folder for the app.")],
    study: Annotated[Path, typer.Option(help="TOML file of the study.")],
    output: Annotated[
        Path | None, typer.Option(help="Folder of the run at the server. By default, DIR-results.")
    ] = None,
) -> None:
    """Write the Flower app of a study, for `flwr run`."""
    from ..flower.bundle import write_app
    from ..flower.study import StudyDocument

    with users_errors():
        found = StudyDocument.read(study)
        output = folder.with_name(f"{folder.name}-results") if output is None else output
        write_app(found, folder, output)
        typer.echo(f"{folder}: the app of the study {found.hash}. Its run will be in {output}")


@commands.command(name="check")
def check_command(
    study: _Study,
    policy: Annotated[Path, typer.Argument(help="TOML file of the site's policy.")],
) -> None:
    """Check at a site that its policy allows a study and that its file fits. Nothing is sent."""
    from ..flower.check import check
    from ..flower.policy import SitePolicy
    from ..flower.study import StudyDocument

    with users_errors():
        document, own = StudyDocument.read(study), SitePolicy.read(policy)
        found = check(document, own)
        columns = ", ".join(f"{name} ({kind})" for name, kind in found.kinds.items())
        typer.echo(f"study {document.hash}\n{own.site}: {found.rows} rows" + (f"; {columns}" if columns else ""))
        for text in found.perhaps:
            typer.echo(f"perhaps: with rows like these at all sites, {text}")
        for text in found.wrong:
            typer.echo(f"wrong: {text}", err=True)
        if found.wrong:
            raise typer.Exit(1)
        typer.echo(f"{own.site} can take part")


@commands.command(name="hash")
def hash_command(study: _Study) -> None:
    """Print the hash of a study, which policies of sites list."""
    from ..flower.study import StudyDocument

    with users_errors():
        typer.echo(StudyDocument.read(study).hash)


@commands.command(name="key")
def key_command(path: Annotated[Path, typer.Argument(help="New file for the private key.")]) -> None:
    """Create the private key of a site, and print its public key for the policies of all sites."""
    from ..flower.keys import new_identity

    with users_errors():
        typer.echo(new_identity(path))
