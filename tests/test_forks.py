"""A fork of a process that has used JAX raises an error. Processes forked earlier, or spawned, draw."""

import multiprocessing
import os
import subprocess
import sys

import numpy as np
import pytest

import accord

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no forks")

FORKED = """
import os, sys, warnings
import numpy as np
import accord

warnings.simplefilter("ignore")

def draw(post=None):
    rows = np.ones((20, 1)), np.arange(20.0)
    post = accord.models.linear_regression([rows] * 3, 1.0) if post is None else post
    return accord.sample(post, accord.Network.ring(3), draws=10, progress=False), post

post = draw()[1] if {uses_jax} else None
child = os.fork()
if child == 0:
    try:
        print(draw({given})[0].draws.shape, flush=True)
    except RuntimeError as error:
        print(error, flush=True)
    finally:
        os._exit(0)
os.waitpid(child, 0)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("uses_jax", "given", "expected"),
    [
        (True, "post", 'forked after JAX had started threads .* with multiprocessing.get_context("spawn")'),
        (True, "None", "forked after JAX had started threads"),
        (False, "None", "(4, 10, 3, 1)"),
    ],
)
def test_a_fork_of_a_process_that_used_jax_is_refused(uses_jax, given, expected):
    script = FORKED.format(uses_jax=uses_jax, given=given)
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    for part in expected.split(" .* "):
        assert part in found.stdout, found.stderr


def draw(seed):
    post = accord.models.linear_regression([(np.ones((20, 1)), np.arange(20.0))] * 3, 1.0)
    return accord.sample(post, accord.Network.ring(3), draws=10, seed=seed, progress=False).draws


@pytest.mark.long
def test_a_process_that_is_spawned_draws():
    here = draw(1)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        np.testing.assert_array_equal(pool.apply_async(draw, (1,)).get(timeout=120), here)
