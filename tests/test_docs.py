"""The pages of the site: every public name has an entry, and quoted messages occur in the source."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs" / "api").glob("*.md"))
QUESTIONS = (ROOT / "docs" / "faq.md").read_text(encoding="utf-8")
# rooms that users import from, and of theirs only what is public
PUBLIC = [
    "accord",
    "accord.samplers.combine",
    "accord.data",
    "accord.tuning",
    "accord.federation",
    "accord.models",
    "accord.models.families",
    "accord.network",
    "accord.posterior",
    "accord.samplers",
    "accord.samplers.protocol",
]
# of modules without a list of public names, what is made there
MODULES = ["accord.samplers.balance", "accord.metrics", "accord.samplers.schedules", "accord.tuning.warmup"]
# a value, not a thing to document
PLAIN = {"accord.__version__", "accord.samplers.combine.METHODS", "accord.data.SPLITS"}


def listed(pages: list[str]) -> set[str]:
    """The full names that the pages' tables list, by the module that each table is of."""
    found = set()
    for page in pages:
        for module, names in re.findall(r"currentmodule:: (\S+)(.*?)```", page, flags=re.DOTALL):
            found |= {f"{module}.{name}" for name in re.findall(r"^   ([\w.]+)$", names, flags=re.MULTILINE)}
    return found


def things(names: set[str]) -> set[int]:
    """What the names stand for: a class has one page, by whatever path it is imported."""
    return {id(pkgutil.resolve_name(name)) for name in names}


def public(rooms: list[str], modules: list[str]) -> set[str]:
    """The full names of all that is public and no module."""
    names = {f"{name}.{part}" for name in rooms for part in importlib.import_module(name).__all__}
    for name in modules:
        module = importlib.import_module(name)
        names |= {
            f"{name}.{part}"
            for part, value in vars(module).items()
            if not part.startswith("_") and callable(value) and getattr(value, "__module__", "") == name
        }
    return {name for name in names if not isinstance(pkgutil.resolve_name(name), ModuleType)} - PLAIN


def undocumented(pages: list[str], rooms: list[str] = PUBLIC, modules: list[str] = MODULES) -> list[str]:
    """Public names that no table has."""
    known = things(listed(pages))
    return sorted(name for name in public(rooms, modules) if id(pkgutil.resolve_name(name)) not in known)


def test_every_public_name_is_in_the_reference():
    assert undocumented([page.read_text(encoding="utf-8") for page in PAGES]) == []


@pytest.mark.parametrize("name", ["compare", "Importance", "as_study"])
def test_a_name_that_is_left_out_is_noticed(name):
    pages = [re.sub(rf"^   {name}\n", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE) for page in PAGES]
    assert [found.rsplit(".", 1)[1] for found in undocumented(pages)] == [name]


def said() -> list[str]:
    """What accord may say: texts of its source, with … where a name or number is put in."""
    found = []
    for path in (ROOT / "src" / "accord").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
                found.append("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def unsaid(message: str, texts: list[str]) -> list[str]:
    """Fixed words of a message that stand in no text of the source, where it is put together of several."""
    if any(message.strip("…") in text for text in texts):
        return []
    words = [part.strip(" ,.:;") for part in message.split("…")]
    return [part for part in words if len(part) > 3 and not any(part in text for text in texts)]


def quoted() -> list[str]:
    """The messages that the page of questions quotes."""
    return re.findall(r"^> (.+)$", QUESTIONS, flags=re.MULTILINE)


def test_messages_in_the_questions_are_those_of_the_source():
    texts = said()
    assert len(quoted()) > 25
    assert {message: missing for message in quoted() if (missing := unsaid(message, texts))} == {}


def test_a_message_that_was_reworded_is_noticed():
    texts = said()
    assert unsaid("the network … is not in one piece: it has … components", texts) == ["is not in one piece: it has"]
    assert unsaid("the draws are not certified: …", texts) == []
