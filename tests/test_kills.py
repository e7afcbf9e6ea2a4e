"""kills.py reports every difference between the draws of killed and uninterrupted runs."""

import random
import subprocess
import sys

import kills
import numpy as np
import pytest
from lossy_link import is_allowed
from several import HERE

EXPECTED = np.array([[1.0, 2.0], [3.0, 4.0]])


@pytest.mark.parametrize(
    ("found", "apart"),
    [
        (EXPECTED, 0.0),
        (np.nextafter(EXPECTED, 9.0), 2.0**-50),
        (EXPECTED[:1], np.inf),
        (np.where(EXPECTED > 3.0, np.nan, EXPECTED), np.nan),
    ],
    ids=["the same", "one bit", "fewer", "not a number"],
)
def test_the_largest_difference_is_reported(found, apart, monkeypatch, tmp_path):
    def disturbed(place, folder, log, chance, seconds, due):
        np.savez(folder / "out.npz", draws=found if due else EXPECTED, average=EXPECTED)
        return due, due

    monkeypatch.setattr(kills, "disturbed", disturbed)
    count, cells, worst = kills.row(0, tmp_path, random.Random(0), 1.0)
    assert count == kills.CASES[0].kills
    np.testing.assert_equal(worst, apart)
    assert cells[-2] == f"{apart:.1e}"


@pytest.mark.slow
@pytest.mark.skipif(not is_allowed(), reason="needs network namespaces")
@pytest.mark.parametrize("engine", ["local", "mesh", "silo"])
def test_a_few_kills_change_no_draw(engine):
    pytest.importorskip("ray")
    script = [sys.executable, HERE / "kills.py", "--kills", "0.1", "--only", engine]
    found = subprocess.run(script, capture_output=True, text=True, timeout=600)
    assert found.returncode == 0, found.stdout[-2000:] + found.stderr[-2000:]
    assert "draws are at most 0.0e+00" in found.stdout
