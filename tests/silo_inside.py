"""Tests of the silo engine, run by test_silo.py in a network namespace, because Ray listens beyond loopback."""

import contextlib
import glob
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest
import ray
import silo_chaos
import silo_latents
import xarray
from mesh_worker import ALL, draw, problem
from silo_chaos import agents_below
from tables import walk
from typer.testing import CliRunner
from unsealed import unsealed

import accord
from accord.cli.commands import app
from accord.engines.consensus_mode import bind
from accord.engines.silo.engine import SiloEngine
from accord.engines.silo.workers import WorkerPool
from accord.posterior.masks import encoded
from accord.samplers import DESGLD, DGLMC, GTBAOAB, Gibbs
from accord.samplers.costs import messages_per_round

RING = accord.Network.ring(4)

# exchange of all agents at once, and in turns of colours
QUICK = ["three/GTDULA", "three/Gibbs"]
SLOW = [f"{network}/{method}" for network in ("ring", "star", "irregular") for method in ALL]
SLOW += ["lossy/GTBAOAB", "late/DADMMS", "one-way/GTDULA"]


@pytest.fixture(scope="session", autouse=True)
def cluster():
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(include_dashboard=False, _node_ip_address="127.0.0.1", log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def six():
    with accord.Silo() as sites, jax.enable_x64(True):
        yield sites


@pytest.mark.parametrize("case", [*QUICK, *(pytest.param(case, marks=pytest.mark.slow) for case in SLOW)])
def test_processes_have_the_same_draws_as_one_device(case, six):
    with jax.enable_x64(True):
        found, expected = draw(case, six), draw(case, "local")
    # sums have another order, in double precision for a tight tolerance
    for name in ("draws", "average"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-9, atol=1e-10)
    for name, values in expected.statistics.items():
        np.testing.assert_allclose(found.statistics[name], values, rtol=1e-9, atol=1e-10)
    np.testing.assert_array_equal(found.traffic.bytes_sent, expected.traffic.bytes_sent)


# without Replicated, whose hub traffic is counted as sums but sent as letters
SENT = [f"irregular/{method}" for method in ("DESGLD-mixed", "GTDULA", "Gibbs", "GCMC", "HubSGLD")]


@pytest.mark.parametrize("case", ["three/Gibbs", *(pytest.param(case, marks=pytest.mark.slow) for case in SENT)])
def test_traffic_equals_sent_bytes(case, six):
    with jax.enable_x64(True):
        post, net, sampler = problem(case)
        n = net.num_agents
        with six.placed(post) as held:
            bound = bind(held, net, sampler)
            machine = six.build(held, net, bound, chains=3, seed=1, keep=np.arange(n), fingerprint={})
            carry = machine.advance(machine.start(np.zeros((n, 2)), None), 7)
            _, messages = messages_per_round(bound.sampler.needs(2), net)
            np.testing.assert_array_equal(machine.bytes_sent(), 7 * 3 * messages * machine.message_bytes(carry))
            machine.close()


# --- data ---

CANARY = np.array([[1234.56789, -9876.54321]])


def read(path, agent):
    rows = np.load(path)[agent]
    return rows, np.array([1.0])


def sites_data(tmp_path):
    rows = np.random.default_rng(0).standard_normal((4, 1, 2))
    rows[2] = CANARY
    np.save(tmp_path / "rows.npy", rows)
    return [partial(read, tmp_path / "rows.npy", agent) for agent in range(4)]


class Wire(threading.Thread):
    """Captures all packets on loopback."""

    def __init__(self):
        super().__init__(daemon=True)
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**26)
        self.socket.bind(("lo", 0))
        self.content, self.ended = bytearray(), False

    def run(self):
        self.socket.settimeout(0.2)
        while not self.ended:
            try:
                self.content += self.socket.recv(2**16)
            except TimeoutError:
                continue

    def dropped(self):
        """Number of dropped packets."""
        return struct.unpack("II", self.socket.getsockopt(263, 6, 8))[1]


def patterns():
    """The bytes of the canary in double and single precision."""
    return [CANARY.astype(dtype).tobytes() for dtype in (np.float64, np.float32)]


@pytest.mark.slow
def test_a_shard_is_in_no_message_log_or_checkpoint(tmp_path):
    def seen(shards, folder):
        wire = Wire()
        wire.start()
        post = accord.models.linear_regression(shards, noise_scale=1.0, names=["a", "b"])
        options = {"draws": 50, "burn_in": 50, "chains": 2, "checkpoint": folder, "checkpoint_every": 50}
        # without encryption
        with unsealed():
            run = walk(post, RING, DESGLD(1e-9), engine="silo", **options)
        time.sleep(1.0)
        wire.ended = True
        wire.join()
        dropped = wire.dropped()
        wire.socket.close()
        assert dropped == 0
        assert np.isfinite(run.draws).all()
        return any(pattern in wire.content for pattern in patterns()), len(wire.content)

    found, size = seen(sites_data(tmp_path), tmp_path / "read-there")
    assert not found and size > 2 * 100 * 8 * 2 * 4  # messages of two chains over eight edges
    written = [Path(name) for name in glob.glob(f"{tmp_path}/read-there/**", recursive=True)]
    written += [Path(name) for name in glob.glob("/tmp/ray/session_latest/logs/**", recursive=True)]
    written = [path for path in written if path.is_file()]
    assert any("agent-3" in str(path) for path in written) and any("logs" in str(path) for path in written)
    for path in written:
        content = path.read_bytes()
        assert not any(pattern in content for pattern in patterns()), path
        assert b"1234.56" not in content and b"9876.54" not in content, path
    # the same search finds arrays that the driver sends to agents
    here = [source() for source in sites_data(tmp_path)]
    assert seen(here, tmp_path / "sent-there")[0]


# --- latents ---


def kept_by(run, agent):
    """An agent's latents and the path of their file."""
    path = Path(run.settings["local"].replace("*", str(agent)))
    with xarray.open_datatree(path, engine="h5netcdf") as tree:
        assert tree.attrs["agent"] == agent and tree.attrs["run"] in str(path)
        assert int(tree.attrs["seed"]) == run.settings["seed"]
        return tree["posterior"]["effect"].values, path


def assert_kept_as_here(run, here):
    for agent in run.agents:
        found, path = kept_by(run, agent)
        assert found.shape == (2, run.draws.shape[1], 2)
        np.testing.assert_allclose(found, here[agent]["effect"][:, : found.shape[1]], rtol=1e-9)
        assert [one.name for one in path.parent.iterdir()] == ["latents.nc"]
        assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:processes of agents restarted:UserWarning")
def test_agents_store_the_latents_of_a_local_run(tmp_path, monkeypatch):
    rows, kept = tmp_path / "rows", tmp_path / "kept"
    silo_latents.write_rows(rows)
    others = set(agents_below(os.getpid()))
    post, net = silo_latents.posterior(rows), accord.Network.ring(silo_latents.AGENTS)
    with jax.enable_x64(True), accord.Silo(latents=str(kept)) as sites:
        for method in silo_latents.METHODS:
            run = silo_latents.draw(rows, method, "local")
            here = accord.latents(run, post, net)
            assert_kept_as_here(silo_latents.draw(rows, method, sites), here)
        assert kept.stat().st_mode & 0o777 == 0o700
        # only agents in `keep` store latents
        some = silo_latents.draw(rows, "DESGLD", sites, keep=[2])
        assert len(list(kept.glob(f"{Path(some.settings['local']).parent.name}"))) == 1
        assert_kept_as_here(some, here)
        with pytest.raises(
            ValueError, match=r"in a file at its site, .*/kept/.*-agent-\*/latents\.nc, and never sends them"
        ):
            accord.latents(some, post, net, engine=sites)
        none = silo_latents.draw(rows, "DESGLD", sites, keep="average")
        assert "local" not in none.settings
        with pytest.raises(ValueError, match="latents need draws of agents"):
            accord.latents(none, post, net, engine=sites)
        # an interrupted run stores latents of its draws, the resumed run latents of all draws
        with monkeypatch.context() as patch:
            record, times = SiloEngine.record, []

            def interrupted(self, *arguments):
                times.append(1)
                # the first call records the first three rounds
                if len(times) > 2:
                    raise KeyboardInterrupt
                return record(self, *arguments)

            patch.setattr(SiloEngine, "record", interrupted)
            with pytest.warns(UserWarning, match="interrupted: the run keeps"):
                part = silo_latents.draw(rows, "DESGLD", sites, checkpoint=tmp_path / "checkpoint")
        assert 0 < part.draws.shape[1] < 50
        assert_kept_as_here(part, here)
        whole = silo_latents.draw(rows, "DESGLD", sites, checkpoint=tmp_path / "checkpoint")
        assert whole.settings["local"] != part.settings["local"]
        assert_kept_as_here(whole, here)
        # an agent killed meanwhile restarts, and other agents' files stay
        with monkeypatch.context() as patch:
            keep = WorkerPool.keep_latents

            def killing(self, run, *arguments):
                keep(self, run, *arguments)
                os.remove(kept / f"{run}-agent-1" / "latents.nc")
                os.kill(min(set(agents_below(os.getpid())) - others), signal.SIGKILL)
                return keep(self, run, *arguments)

            patch.setattr(WorkerPool, "keep_latents", killing)
            again = silo_latents.draw(rows, "DESGLD", sites)
        assert sites.restarts.sum() == 1
        assert_kept_as_here(again, here)
        # a missing folder at the end loses no draw
        with monkeypatch.context() as patch:
            patch.setattr(sites._pool, "_latents", "/proc/accord-latents")
            patch.setattr(WorkerPool, "prepare_latents", lambda self: None)
            with pytest.warns(UserWarning, match=r"agent \d did not save its latents: .*No such file or directory"):
                lost = silo_latents.draw(rows, "DESGLD", sites)
        np.testing.assert_array_equal(lost.draws, again.draws)
        # at the start it is an error
        with monkeypatch.context() as patch:
            patch.setattr(sites._pool, "_latents", "/proc/accord-latents")
            with pytest.raises(OSError, match=r"agent \d cannot write its latents: .*/proc/accord-latents"):
                silo_latents.draw(rows, "Importance", sites)


class Driver:
    """A driver in its own process, with its packets on loopback and its files."""

    def __init__(self, folder, method, leaks):
        self.folder, self.wire = folder, Wire()
        silo_latents.write_rows(folder / "rows")
        (folder / "tmp").mkdir()
        environment = {
            **os.environ,
            "RAY_ADDRESS": ray.get_runtime_context().gcs_address,
            "TMPDIR": str(folder / "tmp"),
        }
        command = [
            sys.executable,
            "-c",
            f"import silo_latents; silo_latents.main({str(folder)!r}, {method!r}, {leaks})",
        ]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.wire.start()
        with open(folder / "log", "w") as log:
            self.process = subprocess.Popen(command, env=environment, stderr=log, **pipes)
        output = self.process.stdout.readline()
        time.sleep(1.0)
        self.wire.ended = True
        self.wire.join()
        dropped = self.wire.dropped()
        self.wire.socket.close()
        assert output == b"look\n", (folder / "log").read_text()[-3000:]
        assert dropped == 0

    def places(self):
        """Contents to search, by name."""
        apart = ("rows", "kept", "leaked", "public")
        written = [one for one in self.folder.iterdir() if one.name not in apart]
        temporary = glob.glob("/tmp/accord-" + 16 * "[0-9a-f]")
        return {
            "wire": [bytes(self.wire.content)],
            "memory": silo_latents.memory(self.process.pid),
            "files": silo_latents.files(*written),
            "logs": silo_latents.files("/tmp/ray/session_latest/", *temporary),
        }

    def close(self):
        self.process.communicate(b"\n", timeout=60)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "leaks"), [("Importance", False), ("DESGLD", False), ("Importance", True)])
def test_latents_are_only_in_their_own_files(method, leaks, tmp_path):
    driver = Driver(tmp_path, method, leaks)
    try:
        draws = silo_latents.doubles(np.load(tmp_path / "public" / "draws.npy"))
        secret = set()
        for agent in range(silo_latents.AGENTS):
            (path,) = tmp_path.glob(f"kept/*-agent-{agent}/latents.nc")
            with xarray.open_datatree(path, engine="h5netcdf") as tree:
                values = tree["posterior"]["effect"].values
            y, _ = silo_latents.rows(agent)
            # the search finds latents in their files
            assert silo_latents.holds([path.read_bytes()], silo_latents.doubles(values)) == silo_latents.doubles(values)
            assert silo_latents.holds(silo_latents.files(path.parent), draws) == set()
            site = [np.load(tmp_path / "rows" / f"site-{agent}.npz")["y"].tobytes()]
            assert silo_latents.holds(site, silo_latents.doubles(y)) == silo_latents.doubles(y)
            for numbers in (values, values[..., 0], y):
                secret |= silo_latents.doubles(numbers) | silo_latents.floats(numbers) | silo_latents.texts(numbers)
        if leaks:
            secret = set().union(*map(silo_latents.doubles, np.load(tmp_path / "leaked" / "by-agent.npy")))
        found = {name: silo_latents.holds(where, secret | draws) for name, where in driver.places().items()}
        # the parameters' draws are in allowed places
        assert found["memory"] >= draws and found["files"] >= draws and found["wire"] & draws
        if leaks:
            assert found["memory"] >= secret and found["wire"] & secret
        else:
            assert {name: one & secret for name, one in found.items()} == dict.fromkeys(found, set())
    finally:
        driver.close()


def first_row(potential, shard):
    return shard.rows[0][0]


def spoiled(potential, shard, number):
    return jax.numpy.where(shard.rows[0][0] == CANARY[0], number, shard.rows[0][0])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:processes of agents restarted:UserWarning")
def test_masked_sums_send_no_numbers_of_one_agent(tmp_path):
    sources = sites_data(tmp_path)
    expected = sum(source()[0][0] for source in sources)
    words = encoded([CANARY], 4)
    # doubles, and the low and high words before masking
    unmasked = [CANARY.tobytes(), words[0].tobytes(), words[1].tobytes()]

    def seen(held, masks):
        wire = Wire()
        wire.start()
        total = held.totals(RING, masks=masks)
        np.testing.assert_allclose(total(first_row), expected, rtol=1e-12)
        time.sleep(1.0)
        wire.ended = True
        wire.join()
        dropped = wire.dropped()
        wire.socket.close()
        assert dropped == 0
        return total, [pattern in wire.content for pattern in unmasked]

    post = accord.models.linear_regression(sources, noise_scale=1.0, names=["a", "b"])
    with jax.enable_x64(True), unsealed(), accord.Silo() as sites, sites.placed(post) as held:
        assert seen(held, True)[1] == [False, False, False]
        # the same search finds an agent at the end of the tree without masks
        assert seen(held, False)[1] == [True, False, False]
    others = set(agents_below(os.getpid()))
    with jax.enable_x64(True), accord.Silo() as sites, sites.placed(post) as held:
        # TLS hides it
        assert seen(held, False)[1] == [False, False, False]
        total, _ = seen(held, True)
        np.testing.assert_allclose(total(first_row), expected, rtol=1e-12)
        keys = total.keys
        with pytest.raises(ArithmeticError, match="1 of 4 agents have numbers that a masked sum cannot carry"):
            total(spoiled, np.nan)
        np.testing.assert_allclose(total(first_row), expected, rtol=1e-12)
        assert total.keys == keys
        # after a restart all agents have new keys
        os.kill(min(set(agents_below(os.getpid())) - others), signal.SIGKILL)
        np.testing.assert_allclose(total(first_row), expected, rtol=1e-12)
        assert sites.restarts.sum() >= 1 and total.keys != keys
    # each site's log has the keys
    logs = [Path(log).read_text() for log in glob.glob("/tmp/ray/session_latest/logs/worker-*.out")]
    for agent in range(4):
        assert any(f"agent {agent} masks its sums with the keys {total.keys}" in log for log in logs)


# --- crashes and late agents ---


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:processes of agents restarted:UserWarning")
def test_twenty_kills_change_no_draw(tmp_path):
    with jax.enable_x64(True):
        with accord.Silo(timeout=120.0) as sites:
            calm = silo_chaos.draw(sites)
            kills = silo_chaos.Kills(20, seed=1)
            with kills:
                # `Kills` sees every fiftieth round
                found = silo_chaos.draw(sites, checkpoint=tmp_path, checkpoint_every=50)
            restarts = sites.restarts
    # twenty different processes, some of which were killed before they had the assignment
    assert len(kills.victims) == 20
    assert 0 < restarts.sum() <= 20
    np.testing.assert_array_equal(found.draws, calm.draws)
    np.testing.assert_array_equal(found.average, calm.average)
    np.testing.assert_array_equal(found.statistics["consensus_error"], calm.statistics["consensus_error"])


def short(engine, **options):
    post = accord.models.gaussian(np.arange(8.0).reshape(4, 2), np.tile(np.eye(2), (4, 1, 1)))
    options = {"draws": 40, "burn_in": 20, "chains": 2, "seed": 4, **options}
    return walk(post, RING, DESGLD(0.1), engine=engine, **options)


@pytest.mark.slow
def test_a_damaged_checkpoint_falls_back_to_the_previous_one(tmp_path, monkeypatch):
    expected = short("local", draws=100)
    with accord.Silo() as sites:
        with monkeypatch.context() as patch:
            record, times = SiloEngine.record, []

            def lost(self, *arguments):
                times.append(1)
                if len(times) > 4:
                    raise OSError("the power failed")
                return record(self, *arguments)

            patch.setattr(SiloEngine, "record", lost)
            with pytest.raises(OSError, match="power"):
                short(sites, draws=100, checkpoint=tmp_path, checkpoint_every=10)
        newest = sorted(tmp_path.glob("agent-2/*.npz"))[-1]
        newest.write_bytes(newest.read_bytes()[:-7])
        other = sorted(tmp_path.glob("agent-1/*.npz"))[-1]
        assert newest.name == other.name
        with pytest.warns(UserWarning, match="agent-2.*is truncated or corrupt and is skipped"):
            found = short(sites, draws=100, checkpoint=tmp_path, checkpoint_every=10)
    np.testing.assert_allclose(found.draws, expected.draws, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:processes of agents restarted:UserWarning")
def test_a_crash_between_calls_changes_no_draw():
    post = accord.models.gaussian(np.arange(8.0).reshape(4, 2), np.tile(np.eye(2), (4, 1, 1)))
    options = {"chains": 2, "seed": 4, "keep": np.arange(4), "fingerprint": {}}
    others = set(agents_below(os.getpid()))
    with accord.Silo() as sites, sites.placed(post) as held:
        records = []
        for builder, known in ((sites, held), (accord.engines.local.LocalEngine, post)):
            before = set(agents_below(os.getpid()))
            machine = builder.build(known, RING, bind(known, RING, DESGLD(0.1)), **options)
            carry = machine.advance(machine.start(np.zeros((4, 2)), None), 30)
            if builder is sites:
                os.kill(min(before - others), signal.SIGKILL)
                # wait for the restart, so that the next call reaches a process without state
                while len(set(agents_below(os.getpid())) - before) < 1:
                    time.sleep(0.5)
                time.sleep(4.0)
            records.append(machine.record(carry, 20, 1)[1])
            machine.close()
        assert sites.restarts.sum() == 1
    np.testing.assert_allclose(records[0].draws, records[1].draws, rtol=1e-5, atol=1e-5)


class Stopper(threading.Thread):
    """Stops (SIGSTOP) an agent's process of the next run after its first checkpoint."""

    def __init__(self, checkpoint):
        super().__init__(daemon=True)
        self.checkpoint = checkpoint
        # processes of an earlier run may still be ending
        self.before, self.stopped = set(agents_below(os.getpid())), None

    def run(self):
        while len(new := set(agents_below(os.getpid())) - self.before) < 4:
            time.sleep(0.2)
        while not any(self.checkpoint.glob("agent-*/*.npz")):
            time.sleep(0.01)
        self.stopped = min(new)
        os.kill(self.stopped, signal.SIGSTOP)


@pytest.mark.filterwarnings("ignore:processes of agents restarted:UserWarning")
@pytest.mark.slow
@pytest.mark.parametrize("late", ["raise", "restart"])
def test_a_late_agent_is_named_or_restarts(late, tmp_path):
    stopper = Stopper(tmp_path)
    stopper.start()
    silo = accord.Silo(timeout=15.0, late=late)
    try:
        if late == "raise":
            # its neighbours name it, or between two chunks the driver
            named = r"agent \d waited 15 s for agent \d in round \d+|agent \d \(127.0.0.1\) made no progress for 45 s"
            with pytest.raises(TimeoutError, match=named):
                short(silo, draws=1_000_000, checkpoint=tmp_path, checkpoint_every=1000)
        else:
            found = short(silo, draws=20_000, checkpoint=tmp_path, checkpoint_every=1000)
            np.testing.assert_allclose(found.draws, short("local", draws=20_000).draws, rtol=1e-4, atol=1e-5)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(stopper.stopped, signal.SIGKILL)


# --- lost agents ---

TEN = accord.Network.erdos_renyi(10, 0.6, seed=3)


def ten_gaussians():
    rng = np.random.default_rng(0)
    return accord.models.gaussian(2.0 * rng.standard_normal((10, 2)), rng.uniform(0.4, 2.0, (10, 2, 1)) * np.eye(2))


class Leaver(threading.Thread):
    """Ends an agent's process without restart after a checkpoint of some round."""

    def __init__(self, silo, agent, checkpoint, round):
        super().__init__(daemon=True)
        self.silo, self.agent, self.checkpoint, self.round = silo, agent, checkpoint, round

    def run(self):
        def newest():
            return max(
                (int(path.stem.split("-")[1]) for path in self.checkpoint.glob("agent-*/round-*.npz")), default=0
            )

        while newest() < self.round:
            time.sleep(0.05)
        ray.kill(self.silo._pool._actors[self.agent], no_restart=True)


@pytest.mark.slow
def test_a_run_continues_without_a_lost_agent(tmp_path):
    post, gone, method = ten_gaussians(), 4, GTBAOAB(0.3, 1.0, mix_rounds=5)
    silo = accord.Silo(late="leave", start_timeout=90.0, timeout=300.0)
    Leaver(silo, gone, tmp_path, 500).start()
    options = {"draws": 1000, "burn_in": 200}
    with pytest.warns(UserWarning, match="agent 4 left for good.*the other 9 agents' data"):
        run = walk(
            post,
            TEN,
            accord.Rounds(method, checkpoint_every=200),
            chains=32,
            seed=1,
            engine=silo,
            checkpoint=tmp_path,
            **options,
        )
    assert run.draws.shape[2] == 9
    assert "agent 4 left for good" in run.settings["left"]
    others = post.with_shards([post.source(agent) for agent in range(10) if agent != gone])
    for found, exact in ((run, others.exact()), (run.before, post.exact())):
        # chains are independent
        means, squares = found.draws.mean(axis=1), ((found.draws - exact.mean) ** 2).mean(axis=1)
        spread = squares.mean(axis=0) / np.diag(exact.cov)
        assert np.abs((means.mean(axis=0) - exact.mean) / (means.std(axis=0) / 32**0.5)).max() < 5.0
        assert np.abs(spread - 1.0).max() < 0.05 + 5.0 * (squares.std(axis=0) / 32**0.5 / np.diag(exact.cov)).max()
    # the posterior of all agents differs
    assert np.abs(others.exact().mean - post.exact().mean).max() > 0.3 * post.exact().sd.min()


# --- bad input ---


def failing():
    raise OSError("the disk is asleep")


def test_bad_input_is_named():
    shards = [partial(np.zeros, (3, 2))] * 3
    with pytest.raises(
        accord.base.errors.DataError, match="the data of agent 3 could not be read: OSError in failing, line"
    ):
        post = accord.Posterior(silo_chaos.log_likelihood, silo_chaos.log_prior, [*shards, failing], np.zeros(2))
        accord.sample(post, RING, DESGLD(0.1), draws=5, engine="silo")
    with pytest.raises(ValueError, match="resources must hold one entry for each of the 4 agents, found 1"):
        short(accord.Silo(resources=[{"here": 1}]))
    with pytest.raises(TimeoutError, match="not all of the 4 agents' processes started within 1 s"):
        short(accord.Silo(resources=[{"elsewhere": 1}] * 4, start_timeout=1.0))
    with pytest.raises(ValueError, match="unknown late 'wait'"):
        accord.Silo(late="wait")
    with pytest.raises(ValueError, match="timeout must be a finite number > 0, found 0"):
        accord.Silo(timeout=0.0)


@pytest.mark.slow
def test_other_versions_are_named(monkeypatch):
    versions = accord.engines.silo.workers.versions()
    monkeypatch.setattr("accord.engines.silo.workers.versions", lambda: {**versions, "jax": "0.9.0"})
    with pytest.raises(ValueError, match=r"the driver and agent 0 have different versions: jax 0\.9\.0 and jax 0\.10"):
        short("silo")


@pytest.mark.slow
def test_divergence_names_agent_and_round_and_keeps_the_draws():
    post = accord.Posterior(silo_chaos.log_likelihood, silo_chaos.log_prior, [np.ones((3, 2))] * 4, np.ones(2))
    options = {"draws": 400, "burn_in": 10, "chains": 2}
    errors = []
    for engine in ("local", "silo"):
        with pytest.raises(accord.DivergenceError, match="became non-finite in round") as caught:
            walk(post, RING, DESGLD(3.0), engine=engine, **options)
        errors.append(caught.value)
    assert (errors[0].agent, errors[0].round) == (errors[1].agent, errors[1].round)
    np.testing.assert_allclose(errors[0].run.draws, errors[1].run.draws, rtol=1e-3)


# with little data DG-LMC warns about its bias
@pytest.mark.filterwarnings("ignore:no setting of DGLMC")
@pytest.mark.slow
@pytest.mark.parametrize("sampler", [DGLMC(), Gibbs(0.3, "rejection", recentre=True)], ids=["DGLMC", "Gibbs"])
def test_tuning_works_on_data_at_the_agents(sampler):
    def shard(agent):
        rng = np.random.default_rng(agent)
        X = rng.standard_normal((5 + 5 * agent, 2))
        return X, (rng.random(len(X)) < 0.5).astype(float)

    sources = [partial(shard, agent) for agent in range(4)]
    post = accord.models.logistic_regression(sources, names=["a", "b"])
    options = {"draws": 50, "burn_in": 5, "thin": 1}
    runs = [walk(post, RING, sampler, engine=engine, **options) for engine in ("silo", "local")]
    np.testing.assert_allclose(runs[0].draws, runs[1].draws, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(runs[0].traffic.bytes_sent, runs[1].traffic.bytes_sent)


@pytest.mark.filterwarnings("default::UserWarning")
def test_the_command_line_reads_files_at_their_sites(tmp_path):
    rng = np.random.default_rng(1)
    for agent in range(3):
        rows = [f"{x:.3f},{y:.3f}" for x, y in rng.standard_normal((8, 2))]
        (tmp_path / f"site{agent}.csv").write_text("\n".join(["dose,effect", *rows]) + "\n")
    files = ", ".join(f'"{tmp_path}/site{agent}.csv"' for agent in range(3))
    (tmp_path / "job.toml").write_text(
        f"""
        [data]
        at_sites = true
        files = [{files}]
        target = "effect"
        columns = ["dose"]
        [model]
        name = "linear_regression"
        noise_scale = 1.0
        [network]
        name = "ring"
        [method]
        name = "DESGLD"
        step_size = 0.01
        [run]
        output = "out"
        draws = 20
        burn_in = 10
        engine = "silo"
        [silo]
        timeout = 60.0
        """
    )
    result = CliRunner().invoke(app, ["run", str(tmp_path / "job.toml")])
    assert result.exit_code == 0, result.output
    found = accord.Run.load(tmp_path / "out" / "run.nc")
    local = CliRunner().invoke(
        app, ["run", str(tmp_path / "job.toml"), "--engine", "local", "--output", f"{tmp_path}/o"]
    )
    assert local.exit_code == 0, local.output
    expected = accord.Run.load(tmp_path / "o" / "run.nc")
    np.testing.assert_allclose(found.draws, expected.draws, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("default::UserWarning")
def test_effects_of_a_formula_are_stored_at_their_sites(tmp_path):
    rng = np.random.default_rng(1)
    for agent in range(3):
        rows = [f"{x:.3f},{x + agent + y:.3f}" for x, y in rng.standard_normal((60, 2))]
        (tmp_path / f"site{agent}.csv").write_text("\n".join(["dose,effect", *rows]) + "\n")
    (tmp_path / "job.toml").write_text(
        f"""
        [data]
        files = "site*.csv"
        [model]
        formula = "effect ~ dose + (1 | site)"
        family = "normal"
        [network]
        name = "ring"
        [run]
        output = "out"
        draws = 100
        engine = "silo"
        [silo]
        latents = "{tmp_path}/kept"
        """
    )
    result = CliRunner().invoke(app, ["run", str(tmp_path / "job.toml")], env={"COLUMNS": "300"})
    assert result.exit_code == 0, result.output
    assert f"each agent stored its own latents at its site, in {tmp_path}/kept/" in result.output
    run = accord.Run.load(tmp_path / "out" / "run.nc")
    assert not any("effect" in name for name in run.names)
    for agent in range(3):
        path = Path(run.settings["local"].replace("*", str(agent)))
        with xarray.open_datatree(path, engine="h5netcdf") as tree:
            (values,) = tree["posterior"].data_vars.values()
            assert values.shape[:2] == run.average.shape[:2] and np.isfinite(values).all() and values.std() > 0.0


@pytest.mark.slow
@pytest.mark.parametrize("masks", [False, True])
def test_methods_without_rounds_have_the_same_draws_as_one_device(masks):
    post, local = logistic_of_four(), accord.engines.Local(masks=masks)
    here = accord.sample(post, RING, draws=200, engine=local)
    with accord.Silo(masks=masks) as sites:
        there = accord.sample(post, RING, draws=200, engine=sites)
        # agents evaluate their own rows
        found = accord.loo(there, post, RING, engine=sites)
    np.testing.assert_allclose(there.draws, here.draws, rtol=1e-9, atol=1e-10)
    assert there.traffic.sums == here.traffic.sums and there.certificate.holds
    np.testing.assert_allclose(found, accord.loo(here, post, RING), rtol=1e-6)
    walked = accord.sample(post, RING, accord.Rounds(DESGLD(0.01), burn_in=50, thin=20), draws=50, engine="silo")
    runs = {"there": (there, post), "walked": (walked, post), "here": (here, post)}
    beside = accord.compare(runs, RING, engine="silo")
    np.testing.assert_allclose(beside.loos["there"], beside.loos["here"], rtol=1e-6)


def logistic_of_four():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((4, 30, 3)), (rng.random((4, 30)) < 0.5).astype(float)
    return accord.models.logistic_regression(list(zip(X, y, strict=True)), 4.0)


def messy_files(folder):
    rng = np.random.default_rng(5)
    for agent in range(3):
        numbers, kinds = rng.standard_normal((80, 2)), rng.choice(["a", "b"], 80)
        rows = [f"{x:.3f},{'yes' if x + z > 0 else 'no'},{kind}" for (x, z), kind in zip(numbers, kinds, strict=True)]
        (folder / f"site{agent}.csv").write_text("\n".join(["dose,ill,kind", *rows]) + "\n")
    return [folder / f"site{agent}.csv" for agent in range(3)]


@pytest.mark.slow
def test_a_formula_of_files_at_agents_equals_that_of_local_files(tmp_path):
    files, formula, net = messy_files(tmp_path), "ill ~ scale(dose) + kind", accord.Network.star(3)
    here = accord.models.glm(accord.data.study(files, formula=formula, positive={"ill": "yes"}), formula, "bernoulli")
    with accord.Silo() as sites:
        table = accord.data.study_at_sites(files, sites, positive={"ill": "yes"})
        there = accord.models.glm(table, formula, "bernoulli")
        assert there.names == here.names and there.agreed.rows == here.agreed.rows
        # sums of sites are added in another order, and make no quantiles
        for name, column in here.agreed.columns.items():
            found = there.agreed.columns[name]
            same = replace(column, mean=found.mean, sd=found.sd, quantiles=())
            assert found == same
            for one, other in ((found.mean, column.mean), (found.sd, column.sd)):
                assert one == (None if other is None else pytest.approx(other, rel=1e-12))
        # sites do not share their own figures
        assert all(column.mean is None for own in there.agreed.by_site for column in own.values())
        # an earlier run in single precision has no effect
        accord.sample(there, net, DESGLD(1e-3), draws=4, engine=sites)
        found = accord.sample(there, net, draws=200, engine=sites)
    expected = accord.sample(here, net, draws=200)
    assert found.certificate.holds
    np.testing.assert_allclose(found.draws, expected.draws, rtol=1e-8, atol=1e-9)


@pytest.mark.slow
@pytest.mark.filterwarnings("default::UserWarning")
def test_a_config_file_names_files_that_agents_read(tmp_path):
    files = ", ".join(f'"{path}"' for path in messy_files(tmp_path))
    (tmp_path / "job.toml").write_text(
        f"""
        [data]
        files = [{files}]
        at_sites = true
        [model]
        formula = "ill ~ dose + kind"
        positive = "yes"
        family = "bernoulli"
        [network]
        name = "star"
        [run]
        output = "out"
        draws = 100
        engine = "silo"
        """
    )
    result = CliRunner().invoke(app, ["run", str(tmp_path / "job.toml")], env={"COLUMNS": "300"})
    assert result.exit_code == 0, result.output
    assert "dose" in result.output and "kind[b]" in result.output
    (tmp_path / "site1.csv").write_text("dose,ill,kind\n1.0,JOHN-DOE,a\n")
    result = CliRunner().invoke(app, ["run", str(tmp_path / "job.toml")], env={"COLUMNS": "300"})
    assert result.exit_code == 1 and "site1 (site1.csv): refused" in result.output
    assert "JOHN" not in result.output
