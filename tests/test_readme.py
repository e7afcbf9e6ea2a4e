"""What the README, the pages of docs/ and the docstrings show runs as it is shown."""

import doctest
import importlib
import importlib.util
import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import accord

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {page.name: page for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]}
SESSIONS = sorted(name for name, page in PAGES.items() if "\n>>> " in page.read_text(encoding="utf-8"))
MODULES = sorted(m.name for m in pkgutil.walk_packages(accord.__path__, "accord.") if not m.name.endswith("__main__"))


def test_the_readmes_example_runs_and_prints_what_is_shown(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    (shown,) = re.findall(r"```text\n(.*?)```", README, flags=re.DOTALL)
    names = {}
    exec(code, names)
    printed = capsys.readouterr().out
    distance = float(printed.splitlines()[-1])
    # every agent has the posterior: that is what the example is there to show
    assert distance < 0.003
    for agent in range(10):
        draws = names["run"].draws[:, :, agent].reshape(-1, 3).astype(float)
        own = accord.Gaussian(draws.mean(axis=0), np.cov(draws.T))
        assert accord.metrics.wasserstein2(own, names["post"].exact()) < 0.003
    # agents are so close to one another that rounding may name another one as the furthest
    (heading, *rows, _), (own_heading, *own_rows, _) = (text.splitlines() for text in (shown, printed))
    assert heading.split() == own_heading.split() == ["agent", "mean", "sd", "5%", "95%", "ess", "rhat"]
    assert len(rows) == len(own_rows) == 3
    for row, own_row in zip(rows, own_rows, strict=True):
        (name, _, *numbers), (own_name, _, *own_numbers) = row.split(), own_row.split()
        assert name == own_name
        np.testing.assert_allclose(np.array(numbers[:4], float), np.array(own_numbers[:4], float), atol=0.0011)


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 80


def test_the_table_of_all_methods_is_complete():
    page = PAGES["choosing.md"].read_text(encoding="utf-8")
    table = page.partition("## All methods")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`\w+\([^|]*) \|", table, flags=re.MULTILINE)
    named = {name for cell in cells for name in re.findall(r"`(\w+)\(", cell)}
    assert named == set(accord.samplers.__all__)


# models of the slow pages have tests of their own
@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if name in ("numpyro.md", "pymc.md") else name for name in SESSIONS],
)
def test_pages_run_as_they_are_shown(name, monkeypatch):
    # paths on the pages are relative to the repository
    monkeypatch.chdir(ROOT)
    failed, attempted = doctest.testfile(
        str(PAGES[name]), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE, encoding="utf-8"
    )
    assert (failed, attempted > 0) == (0, True)


def test_the_page_on_new_methods_is_among_them():
    assert "new-method.md" in SESSIONS


def test_the_method_to_copy_follows_its_law():
    spec = importlib.util.spec_from_file_location("method_to_copy", ROOT / "examples" / "new_method" / "my_method.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.check()


@pytest.mark.parametrize("name", sorted(PAGES))
def test_links_lead_somewhere(name):
    page = PAGES[name]
    links = re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


def test_rooms_are_in_the_order_that_lint_holds():
    page = PAGES["architecture.md"].read_text(encoding="utf-8")
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    layers = tools["importlinter"]["contracts"][0]["layers"]
    level = {room: n for n, layer in enumerate(reversed(layers)) for room in layer.split(" : ")}
    rooms = re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE)
    assert set(rooms) == set(level) - {"__main__"}
    assert [level[room] for room in rooms] == sorted(level[room] for room in rooms)


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.long
def test_docstrings_run(module):
    if module in ("accord.federation.flower.client_app", "accord.federation.flower.server_app"):
        pytest.importorskip("flwr")
    failed, _ = doctest.testmod(importlib.import_module(module), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert failed == 0


def test_importing_makes_no_array_and_imports_no_extra():
    script = (
        "import sys, jax, accord; "
        "assert jax.live_arrays() == [], jax.live_arrays(); "
        "heavy = {'blackjax', 'cryptography', 'sklearn', 'ot', 'matplotlib', 'pandas', 'xarray', 'arviz_stats', "
        "'numpyro', 'pymc', 'pytensor'}; "
        "heavy &= set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
