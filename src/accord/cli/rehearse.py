"""`accord rehearse`: a study on synthetic rows, before any row is read."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer

from ..base import figures
from ..base.text import human_seconds
from .errors import users_errors


def rehearse(
    study: Annotated[Path, typer.Argument(help="TOML file of the study.")],
    output: Annotated[Path, typer.Option(help="File for the page.")] = Path("rehearsal.html"),
    rows: Annotated[
        str | None, typer.Option(help="Rows of each site, as in 150,80,300, or one number for all sites.")
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(help="Cells of a column in TOML, as in 'age = {mean = 60, sd = 10}'."),
    ] = None,
    effect: Annotated[list[str] | None, typer.Option(help="True value of a parameter, as in 'dose = 0.8'.")] = None,
    policy: Annotated[
        list[Path] | None, typer.Option(help="Policy of a site, whose floors then apply. Its data is not read.")
    ] = None,
    repetitions: Annotated[int, typer.Option(help="Number of synthetic data sets.")] = 10,
    references: Annotated[int, typer.Option(help="Number of data sets to compare with pooled NUTS.")] = 1,
    truth: Annotated[str, typer.Option(help="True parameters: plausible, or drawn from the prior.")] = "plausible",
    seed: Annotated[int, typer.Option(help="Equal seeds give equal rows, keys, noise and draws.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no line for each data set.")] = False,
) -> None:
    """Run a study on synthetic rows, and write a page: is it certified, and what leaves each site."""
    with users_errors():
        figures.require()
        from ..federation import SitePolicy, StudyDocument
        from ..federation.rehearsal import rehearse as rehearsed
        from ..federation.rehearsal_page import lines, write_page

        if output.is_dir() or not output.absolute().parent.is_dir():
            raise ValueError(f"{output}: name a file in an existing folder, such as rehearsal.html")
        given: dict[str, Any] = {} if rows is None else {"rows": _rows(rows)}
        if column:
            given["columns"] = dict(_pair("--column", text) for text in column)
        if effect:
            given["effects"] = dict(_pair("--effect", text) for text in effect)
        found = rehearsed(
            StudyDocument.read(study),
            given=given,
            policies=[SitePolicy.read(path) for path in policy or ()],
            repetitions=repetitions,
            references=references,
            truth=truth,
            seed=seed,
            report=(lambda text: None) if quiet else typer.echo,
        )
        write_page(found, output)
        for text in lines(found):
            typer.echo(text)
        typer.echo(f"wrote {output} in {human_seconds(found.seconds)}")


def _rows(text: str) -> int | list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--rows must be numbers separated by commas, as in 150,80,300, found {text!r}") from None
    return found if "," in text else found[0]


def _pair(option: str, text: str) -> tuple[str, Any]:
    """The name and the TOML value in NAME = VALUE."""
    name, equals, value = text.partition("=")
    try:
        if not equals or not name.strip():
            raise ValueError("it has no = between name and value")
        return name.strip(), tomllib.loads(f"value = {value}")["value"]
    except ValueError as error:
        raise ValueError(f"{option} must be NAME = VALUE in TOML, found {text!r}: {error}") from None
