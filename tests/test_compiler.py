"""Compiled sums are correct, releases of jaxlib with wrong sums are refused, and the compilation cache works."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
import pytest

from accord.base import compiler

DRAW = """
import jax, numpy as np, accord
post = accord.models.linear_regression([(np.ones((5, 1)), np.arange(5.0))] * 2, 1.0, 10.0)
accord.sample(post, accord.Network.ring(2), draws=50)
print(jax.config.values["jax_compilation_cache_dir"])
"""


def test_large_sums_over_the_first_axis_are_right():
    x = np.random.default_rng(0).standard_normal((6, 2, 20_000)).astype(np.float32)
    scaled = jax.jit(lambda x: jnp.broadcast_to((x / jnp.arange(1.0, 7.0)[:, None, None]).sum(axis=0), x.shape))(x)
    expected = (x / np.arange(1.0, 7.0)[:, None, None]).sum(axis=0)
    np.testing.assert_allclose(scaled[0], expected, rtol=1e-4, atol=1e-5)


def test_large_products_and_their_sums_are_right():
    x = np.zeros((40_000, 3), np.float32)
    x[:, 0] = np.arange(40_000)
    squares = jax.jit(jax.vmap(lambda row: jnp.sum((jnp.eye(3) @ row) ** 2)))(x)
    np.testing.assert_allclose(squares, x[:, 0] ** 2, rtol=1e-6)


@pytest.mark.parametrize("version", ["0.10.2", "0.11.0"])
def test_releases_with_wrong_sums_are_refused(version, monkeypatch):
    monkeypatch.setattr(jaxlib, "__version__", version)
    with pytest.raises(ImportError, match=f"jaxlib {version} computes wrong sums of large arrays on CPUs: install"):
        compiler.get_ready.__wrapped__()


@pytest.mark.long
@pytest.mark.parametrize("extra", [{}, {"JAX_COMPILATION_CACHE_DIR": "own"}, {"JAX_ENABLE_COMPILATION_CACHE": "false"}])
def test_programs_are_kept_in_the_users_cache_folder(extra, tmp_path):
    names = ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "JAX_ENABLE_COMPILATION_CACHE")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment |= {"XDG_CACHE_HOME": str(tmp_path), "HOME": str(tmp_path), **extra}
    done = subprocess.run(
        [sys.executable, "-c", DRAW], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    folder = {"JAX_COMPILATION_CACHE_DIR": "own", "JAX_ENABLE_COMPILATION_CACHE": "None"}
    quiet = str(tmp_path / "accord") if compiler._READS_QUIETLY else "None"
    expected = folder[next(iter(extra))] if extra else quiet
    assert done.stdout.strip() == expected and (done.stderr == "" or not compiler._READS_QUIETLY)
    if expected == quiet != "None":
        assert list((tmp_path / "accord").iterdir())
