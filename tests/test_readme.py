"""What the README and the docstrings show runs as it is shown."""

import doctest
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import accord

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
MODULES = sorted(m.name for m in pkgutil.walk_packages(accord.__path__, "accord.") if not m.name.endswith("__main__"))


def test_the_readmes_example_runs(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    exec(code, {})
    distance = float(capsys.readouterr().out.splitlines()[-1])
    # every agent has the posterior: that is what the example is there to show
    assert distance < 0.003


def test_the_readmes_table_names_every_method():
    named = set(re.findall(r"^\| `(\w+)\(", README, flags=re.MULTILINE))
    assert named == set(accord.samplers.__all__)


@pytest.mark.parametrize("module", MODULES)
def test_docstrings_run(module):
    failed, _ = doctest.testmod(importlib.import_module(module), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert failed == 0


def test_importing_makes_no_array_and_imports_no_extra():
    script = (
        "import sys, jax, accord; "
        "assert jax.live_arrays() == [], jax.live_arrays(); "
        "heavy = {'blackjax', 'sklearn', 'ot', 'matplotlib', 'pandas', 'xarray', 'arviz_stats'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
