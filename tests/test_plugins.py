"""Commands that other packages add to `accord` by entry points."""

import sys
import types
from importlib.metadata import EntryPoint
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from accord.cli import plugins


def greet(name: Annotated[str, typer.Argument(help="Whom.")], loud: bool = False) -> None:
    """Greet somebody."""
    if name == "nemo":
        raise ValueError("no one is there")
    if name == "end":
        raise typer.Exit(3)
    print(f"hello {name}{'!' if loud else ''}")


@pytest.fixture
def invoke(monkeypatch):
    """`accord` with two commands of a package, one of which cannot be imported."""
    package = types.ModuleType("another_package")
    package.greet = greet
    monkeypatch.setitem(sys.modules, "another_package", package)
    points = [
        EntryPoint("greet", "another_package:greet", plugins.GROUP),
        EntryPoint("broken", "package_that_is_not_there:run", plugins.GROUP),
    ]
    monkeypatch.setattr(plugins, "entry_points", lambda group: points if group == plugins.GROUP else [])
    app = typer.Typer()
    plugins.add_commands(app)
    return lambda *arguments: CliRunner().invoke(app, list(arguments), env={"COLUMNS": "150"})


def test_a_command_of_another_package_takes_its_arguments(invoke):
    result = invoke("greet", "you", "--loud")
    assert (result.exit_code, result.stdout) == (0, "hello you!\n")
    assert "Greet somebody." in invoke("greet", "--help").stdout


def test_its_errors_are_a_line_each_and_its_exit_is_its_own(invoke):
    result = invoke("greet", "nemo")
    assert (result.exit_code, result.stderr) == (1, "error: no one is there\n")
    result = invoke("greet", "end")
    assert (result.exit_code, result.stderr) == (3, "")


def test_a_command_that_cannot_be_imported_leaves_the_others_alone(invoke):
    assert "Not available: No module named 'package_that_is_not_there'" in " ".join(invoke("--help").stdout.split())
    result = invoke("broken")
    assert result.exit_code == 1
    assert "error: the command broken of package_that_is_not_there:run cannot be loaded" in result.stderr
