"""One process an agent, by Ray, in a network of its own; the tests themselves are in silo_inside.py."""

import os
import subprocess
import sys

import pytest
from several import HERE, alone

import accord
from accord.engines.silo import workers as crew

pytestmark = pytest.mark.skipif(alone() is None, reason="needs a network namespace of its own")


@pytest.mark.parametrize("which", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_inside(which):
    pytest.importorskip("ray")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", which, HERE / "silo_inside.py"]
    # Ray's processes import what the tests give them
    path = os.pathsep.join([str(HERE), *(os.environ.get("PYTHONPATH") or "").split(os.pathsep)]).rstrip(os.pathsep)
    # agents compile the same small programs in every run: where these are kept too, later runs read them
    kept = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
    environment = {**os.environ, **kept, "PYTHONPATH": path}
    found = subprocess.run([*alone(), *command], env=environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout[-5000:] + found.stderr[-2000:]


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install 'accord\[silo\]'"):
        crew.require_ray()
    post = accord.models.gaussian([[0.0], [1.0]], [[[1.0]], [[1.0]]])
    with pytest.raises(ImportError, match=r"accord\[silo\]"):
        accord.sample(post, accord.Network.complete(2), accord.samplers.DESGLD(0.1), engine="silo")
