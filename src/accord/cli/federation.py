"""`accord flower`: a study's app, its hash, a site's key, and whether a site can take part."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .errors import users_errors

commands = typer.Typer(no_args_is_help=True, help="Studies over Flower, between organisations (docs/flower.md).")

_Study = Annotated[Path, typer.Argument(help="The study, a TOML file.")]


@commands.command(name="app")
def app_command(
    folder: Annotated[Path, typer.Argument(help="Where to write the app; an empty or new folder.")],
    study: Annotated[Path, typer.Option(help="The study, a TOML file.")],
    output: Annotated[Path | None, typer.Option(help="Where the server keeps the run; DIR-results by default.")] = None,
) -> None:
    """Write the Flower app of a study, which `flwr run` takes."""
    from ..flower.bundle import write_app
    from ..flower.study import StudyDocument

    with users_errors():
        found = StudyDocument.read(study)
        output = folder.with_name(f"{folder.name}-results") if output is None else output
        write_app(found, folder, output)
        typer.echo(f"{folder}: the app of the study {found.hash}; its run will be kept in {output}")


@commands.command(name="check")
def check_command(
    study: _Study,
    policy: Annotated[Path, typer.Argument(help="The site's policy, a TOML file.")],
) -> None:
    """At a site: see whether its policy allows a study, and its file fits; nobody is asked, and nothing leaves."""
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
    """Print the hash by which sites' policies name a study."""
    from ..flower.study import StudyDocument

    with users_errors():
        typer.echo(StudyDocument.read(study).hash)


@commands.command(name="key")
def key_command(path: Annotated[Path, typer.Argument(help="A new file for the private key.")]) -> None:
    """Make a site's key, and print the public one, which the policies of all sites name."""
    from ..flower.keys import new_identity

    with users_errors():
        typer.echo(new_identity(path))
