"""The wheels alone, in an environment of their own: the command line runs from any folder."""

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(folder, *command):
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "JAX_", "XLA_"))}
    done = subprocess.run(
        list(map(str, command)), cwd=folder, env=outside, capture_output=True, text=True, timeout=1200
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def top_level(wheel):
    """The packages in a wheel."""
    names = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    return {name for name in names if not name.endswith(".dist-info")}


@pytest.mark.slow
def test_the_wheel_runs_from_another_folder(tmp_path):
    run(ROOT, sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path / "dist", ".")
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert top_level(wheel) == {"accord"}
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    run(tmp_path, python, "-m", "pip", "install", "--quiet", f"{wheel}[demo,models]")
    where = run(tmp_path, python, "-c", "import accord; print(accord.__file__)")
    assert where.startswith(str(tmp_path / "venv"))
    accord = python.with_name("accord")
    assert "NUTS" in run(tmp_path, accord, "demo")
    shutil.copytree(ROOT / "examples" / "hospitals", tmp_path / "study")
    shown = run(tmp_path / "study", accord, "run", "config.toml")
    assert "wrote" in shown and (tmp_path / "study" / "results" / "run.nc").exists()
    # the papers' wheel adds commands
    assert "reproduce" not in run(tmp_path, accord, "--help")
    papers = ROOT / "papers"
    run(ROOT, sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path / "more", papers)
    (wheel,) = (tmp_path / "more").glob("*.whl")
    assert top_level(wheel) == {"accord_papers"}
    run(tmp_path, python, "-m", "pip", "install", "--quiet", wheel)
    assert "gtdula-fig1" in run(tmp_path, accord, "reproduce", "--list")
