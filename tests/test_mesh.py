"""The mesh engine has the draws of the local engine, on four devices of one process and on two processes."""

import shlex
import subprocess
import sys

import jax
import numpy as np
import pytest
import scipy.sparse
import shares_worker
from mesh_worker import ALL, draw
from several import HERE, alone, environment

import accord
from accord.engines.mesh.halo import halo

PLACES = ("ring", "star", "irregular")


def assert_same_as_local(found, cases):
    for case in cases:
        with jax.enable_x64(True):
            run = draw(case, "local")
        expected = {"draws": run.draws, "average": run.average, "error": run.statistics["consensus_error"]}
        for name, values in expected.items():
            # sums have another order, in double precision for a tight tolerance
            np.testing.assert_allclose(found[f"{case}/{name}"], values, rtol=1e-9, atol=1e-10, err_msg=case)
        np.testing.assert_array_equal(found[f"{case}/bytes"], run.traffic.bytes_sent)


# mixing (a path fetches border rows, a small ring all rows), colours, totals and permutations
QUICK = ["path/GTDULA", "irregular/Gibbs", "ring/GCMC-tolerances", "star/HubSGLD", "late/GTBAOAB"]
SLOW = ["lossy/DADMMS", "one-way/GTDULA", "bursts/DESGLD", "by a function/GTBAOAB"]
SLOW += [case for network in PLACES for method in ALL if (case := f"{network}/{method}") not in QUICK]


@pytest.mark.long
@pytest.mark.parametrize("chosen", [QUICK, pytest.param(SLOW, marks=pytest.mark.slow)], ids=["quick", "slow"])
def test_four_devices_have_the_draws_of_one(chosen, tmp_path):
    output = tmp_path / "draws.npz"
    # six agents on four devices with two rows each, so that the last device has padding only
    subprocess.run([sys.executable, HERE / "mesh_worker.py", output, *chosen], env=environment(4), check=True)
    found = np.load(output)
    assert found["devices"] == 4
    assert_same_as_local(found, chosen)


@pytest.mark.slow
@pytest.mark.skipif(alone() is None, reason="needs a network namespace of its own")
def test_two_processes_have_the_draws_of_one(tmp_path):
    output, chosen = tmp_path / "draws.npz", [*QUICK, *SLOW]
    script = HERE / "mesh_worker.py"
    one = f'"{sys.executable}" "{script}" "{output}" {shlex.join(chosen)} --coordinator 127.0.0.1:29517 --processes 2'
    both = f"{one} --process 1 & {one} --process 0; wait"
    subprocess.run([*alone(), "sh", "-c", both], env=environment(2), check=True, timeout=1500)
    found = np.load(output)
    assert found["devices"] == 4
    assert_same_as_local(found, chosen)


# with little data DG-LMC warns about its bias
@pytest.mark.filterwarnings("ignore:no setting of DGLMC")
@pytest.mark.slow
@pytest.mark.skipif(alone() is None, reason="needs a network namespace of its own")
def test_each_process_reads_the_data_of_its_own_agents_only(tmp_path):
    output = tmp_path / "draws.npz"
    one = f'"{sys.executable}" "{HERE / "shares_worker.py"}" "{output}" 127.0.0.1:29519'
    subprocess.run([*alone(), "sh", "-c", f"{one} 1 & {one} 0; wait"], env=environment(2), check=True, timeout=600)
    found = np.load(output)
    for method in shares_worker.METHODS:
        with jax.enable_x64(True):
            run = shares_worker.draw([0] * shares_worker.AGENTS, method, "local")
        np.testing.assert_allclose(found[f"{method}/draws"], run.draws, rtol=1e-9, atol=1e-10, err_msg=method)
    # each process stores values of its own agents' data
    kept = [np.load(tmp_path / f"draws.npz-kept/process-{k}/posterior/round-000000000000.npz") for k in range(2)]
    assert [values["agents"].tolist() for values in kept] == [[0, 1, 2, 3], [4, 5]]
    # each process has the latents of its own agents
    local = shares_worker.draw_latents([0] * shares_worker.AGENTS, "local")
    parts = [np.load(f"{output}-latents-{process}.npz") for process in range(2)]
    assert [list(part) for part in parts] == [["0", "1", "2", "3"], ["4", "5"]]
    for agent in local:
        np.testing.assert_allclose(parts[agent // 4][str(agent)], local[agent]["effect"], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("devices", [1, 2, 3, 4, 7])
def test_halos_equal_the_matrix(devices):
    # the exchange with NumPy, shift by shift
    net = accord.Network.erdos_renyi(11, 0.3, seed=2)
    W = scipy.sparse.csr_array(net.weights("metropolis"))
    rows = -(-11 // devices)
    x = np.random.default_rng(0).standard_normal((devices * rows, 3))
    found = halo(W, devices, rows)
    blocks, result = x.reshape(devices, rows, 3), []
    matrix = np.asarray(found.part.matrix).reshape(devices, rows, -1)
    for device in range(devices):
        held = [blocks[device]]
        for shift, sent in zip(found.shifts, found.sent, strict=True):
            sender = (device - shift) % devices
            held.append(blocks[sender][np.asarray(sent).reshape(devices, -1)[sender]])
        result.append(matrix[device] @ np.concatenate(held))
    result = np.concatenate(result)
    np.testing.assert_allclose(result[:11], W @ x[:11], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(result[11:], x[11:], rtol=1e-6)


def test_a_ring_on_many_devices_sends_border_rows_only():
    found = halo(scipy.sparse.csr_array(accord.Network.ring(1000).weights("metropolis")), 8, 125)
    assert found.shifts == (1, 7)
    assert [sent.size for sent in found.sent] == [8, 8]


@pytest.mark.long
def test_a_mesh_of_one_device_works():
    case = "irregular/GTDULA"
    np.testing.assert_allclose(draw(case, "mesh").draws, draw(case, "local").draws, rtol=1e-5, atol=1e-5)
