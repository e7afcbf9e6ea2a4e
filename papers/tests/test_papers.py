"""The package as a whole: docstrings run, public names are documented, imports are light."""

import doctest
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_docs import PAGES, undocumented

import accord_papers

ROOT = Path(__file__).parents[2]
MODULES = sorted(m.name for m in pkgutil.walk_packages(accord_papers.__path__, "accord_papers."))
PUBLIC = ["accord_papers.combine", "accord_papers.theory"]
# modules without a list of public names
PLAIN_MODULES = ["accord_papers.datasets"]
PLAIN_MODULES += [
    f"accord_papers.theory.{paper}" for paper in ("d_admms", "de_sghmc", "de_sgld", "dg_lmc", "gibbs", "gt_dula")
]


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.long
def test_docstrings_run(module):
    failed, _ = doctest.testmod(importlib.import_module(module), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert failed == 0


def test_every_public_name_is_in_the_reference():
    pages = [page.read_text(encoding="utf-8") for page in PAGES]
    assert undocumented(pages, PUBLIC, PLAIN_MODULES) == []


def test_links_of_the_readme_lead_somewhere():
    page = ROOT / "papers" / "README.md"
    links = re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))
    assert links and all((page.parent / link).exists() for link in links)


def test_the_commands_import_light():
    script = (
        "import sys, accord_papers.commands; "
        "heavy = {'accord', 'jax', 'numpy', 'scipy', 'matplotlib', 'flax', 'sklearn'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
