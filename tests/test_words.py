"""Lint: texts and names contain no words to avoid."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Word by word: an underscore ends a word too, so that names are searched as well.
AVOID = re.compile(
    r"(?<![a-z])(told|tells?|telling|hears?|heard|nobody|so many|from outside|what it is|those of|of one's own"
    r"|is taken|is left to|says? of|said of)(?![a-z])",
    re.IGNORECASE,
)
TEXTS = ("src", "papers", "docs", "tests", "benchmarks", "examples", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")


def found(text: str) -> list[tuple[int, str]]:
    """Line numbers and words to avoid in a text."""
    lines = text.splitlines()
    return [(number, word[0]) for number, line in enumerate(lines, 1) for word in AVOID.finditer(line)]


@pytest.mark.parametrize("place", TEXTS)
def test_texts_have_no_words_to_avoid(place):
    path = ROOT / place
    files = [path] if path.is_file() else [file for kind in ("*.py", "*.md") for file in path.rglob(kind)]
    files = [file for file in files if "generated" not in file.parts and file != Path(__file__)]
    assert files
    words = {str(file.relative_to(ROOT)): found(file.read_text(encoding="utf-8")) for file in files}
    assert {file: here for file, here in words.items() if here} == {}


@pytest.mark.parametrize(
    "line",
    ["agents are told a mean", "heard = 3", "as Nobody knows", "own_told", "the draws are those of a run", "it tells"],
)
def test_a_word_to_avoid_is_found(line):
    assert len(found(f"plain\n{line}")) == 1 and found(f"plain\n{line}")[0][0] == 2


@pytest.mark.parametrize("line", ["a shear force", "atoll d", "intelligent", "the mean of those", "satellites"])
def test_other_words_are_not(line):
    assert found(line) == []
