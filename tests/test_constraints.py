"""The versions that `make` installs: exact ones, of all that is needed, within the ranges of pyproject.toml."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PAPERS = tomllib.loads((ROOT / "papers" / "pyproject.toml").read_text())["project"]
FILES = sorted((ROOT / "constraints").glob("python*.txt"))


def required(*extras):
    """What the project and some extras of it ask for."""
    lists = [PROJECT["dependencies"], *(PROJECT["optional-dependencies"][extra] for extra in extras)]
    return all_of(lists)


def all_of(lists):
    """What some lists of requirements ask for, without the project itself."""
    for requirement in (Requirement(text) for requirements in lists for text in requirements):
        if requirement.name == PROJECT["name"]:
            yield from required(*requirement.extras)
        else:
            yield requirement


def test_there_are_constraints_for_the_oldest_and_the_newest_python():
    supported = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)]
    assert {supported[0], supported[-1]} <= {path.stem.removeprefix("python") for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_constraints_are_exact_versions_of_all_that_is_required(path):
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    # no addresses, paths or editable installs
    pinned = dict(re.fullmatch(r"([\w.-]+)==([\w.+!]+)", line).groups() for line in lines)
    assert not {"accord", "accord-papers"} & set(pinned)
    normal = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pinned.items()}
    for requirement in [*required("test", "dev"), *all_of([PAPERS["dependencies"]])]:
        version = normal[re.sub(r"[-_.]+", "-", requirement.name).lower()]
        assert requirement.specifier.contains(version), f"{requirement} excludes {version}"
