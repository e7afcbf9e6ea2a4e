"""`accord run` in several processes has the draws of one process, also after kills, and one-line errors."""

import contextlib
import itertools
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pandas as pd
import pytest
from several import alone, environment

import accord
from accord.engines import processes
from accord.engines.fingerprint import versions

CONFIG = """
[data]
files = "site-*.csv"
target = "y"
[model]
name = "linear_regression"
noise_scale = 1.0
[network]
name = "{network}"
[method]
name = "{method}"
step_size = {step}
[run]
draws = {draws}
burn_in = 30
chains = 2
thin = 2
seed = {seed}
engine = "{engine}"
output = "out"
checkpoint_every = 20
"""
GOOD = {"network": "ring", "method": "DESGLD", "step": 0.002, "draws": 40, "seed": 3, "engine": "mesh"}
PORTS = itertools.count(29600)
NUMBERS = itertools.count()

needs_a_room = pytest.mark.skipif(alone() is None, reason="needs a network namespace of its own")


@pytest.fixture(scope="module")
def room():
    """A command prefix for a network namespace."""
    keeper = subprocess.Popen([*alone(), "sleep", "infinity"])
    time.sleep(0.5)
    yield ["nsenter", "-t", str(keeper.pid), "-n"]
    keeper.kill()
    keeper.wait()


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for site in range(6):
        X = rng.normal(size=(6 + site, 2))
        y = X @ [1.0, -2.0] + rng.normal(size=6 + site)
        frame = pd.DataFrame({"dose": X[:, 0], "age": X[:, 1], "y": y})
        frame.to_csv(tmp_path / f"site-{site}.csv", index=False)
    write(tmp_path)
    return tmp_path


def write(folder, name="job.toml", **changes):
    (folder / name).write_text(CONFIG.format(**{**GOOD, **changes}))
    return name


STARTED = []


@pytest.fixture(autouse=True)
def tidy():
    """No process outlives its test."""
    yield
    for one in STARTED:
        one.kill(signal.SIGCONT)
        one.kill()
        one.process.wait()
    STARTED.clear()


class Started:
    """A running command and its output."""

    def __init__(self, room, folder, *arguments, name="job.toml"):
        command = [*room, sys.executable, "-m", "accord", "run", name, *map(str, arguments)]
        # files, because a full pipe without a reader blocks the process
        self.files = [folder / f"{next(NUMBERS)}.{kind}" for kind in ("stdout", "stderr")]
        self.began = time.monotonic()
        with self.files[0].open("w") as stdout, self.files[1].open("w") as stderr:
            self.process = subprocess.Popen(
                command, cwd=folder, env={**environment(2), "COLUMNS": "200"}, stdout=stdout, stderr=stderr
            )
        STARTED.append(self)

    def end(self, timeout=180):
        self.process.wait(timeout)
        # drop messages of XLA about cached programs
        self.stdout, self.stderr = (
            "".join(line for line in file.read_text().splitlines(True) if "cpu_aot_loader" not in line)
            for file in self.files
        )
        self.seconds = time.monotonic() - self.began
        return self.process.returncode

    def kill(self, number=signal.SIGKILL):
        self.process.send_signal(number)

    @property
    def errors(self):
        # on a busy machine long stages are shown
        progress = re.compile(r"^warning: |, \d+ (s|min)$")
        return [line for line in self.stderr.splitlines() if line and not progress.search(line)]


def start(room, folder, count=2, *arguments, ids=None, port=None, **options):
    port = port or next(PORTS)
    common = ["--coordinator", f"127.0.0.1:{port}", "--num-processes", count, *arguments]
    return [Started(room, folder, *common, "--process-id", i, **options) for i in (ids or range(count))]


def finish(started):
    codes = [one.end() for one in started]
    assert codes == [0] * len(codes), [one.stderr for one in started]


def load(folder, output="out"):
    return accord.Run.load(folder / output / "run.nc")


def wait_for(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
@needs_a_room
def test_two_processes_have_the_draws_of_one(room, folder):
    both = start(room, folder)
    finish(both)
    assert "wrote" in both[0].stdout and "Gloo" not in both[0].stdout
    assert (both[1].stdout, both[0].errors, both[1].stderr) == ("", [], "")
    alone = Started(room, folder, "--engine", "local", "--output", "local")
    finish([alone])
    # sums over devices have another order, in double precision
    np.testing.assert_allclose(load(folder).draws, load(folder, "local").draws, rtol=1e-10, atol=1e-12)


@pytest.mark.slow
@needs_a_room
def test_a_run_killed_ten_times_has_the_same_draws(room, folder):
    # enough draws that ten starts and kills do not finish the run
    draws, rng = 4000, np.random.default_rng()
    rounds = 30 + 2 * draws
    write(folder, draws=draws)
    seed = int(rng.integers(2**31))
    print("seed", seed)
    rng = np.random.default_rng(seed)
    undisturbed = start(room, folder, 2, "--output", "undisturbed")
    finish(undisturbed)
    whole_run = max(process.seconds for process in undisturbed)
    expected = load(folder, "undisturbed")
    write(folder, draws=draws)
    (folder / "job.toml").write_text((folder / "job.toml").read_text() + 'checkpoint = "kept"\n')
    states, reached = folder / "kept" / "process-0" / "states", []

    def newest():
        return max((int(path.stem.removeprefix("round-")) for path in states.glob("*.npz")), default=0)

    for attempt in range(10):
        both, before = start(room, folder, 2, "--timeout", 20), newest()
        # half of the kills at any time from the start, the others after the run made progress
        if attempt % 2:
            wait_for(lambda before=before: newest() > before)
        time.sleep(rng.uniform(0, 1.0 if attempt % 2 else 6.0))
        victim = int(rng.integers(2))
        both[victim].kill()
        killed = time.monotonic()
        both[1 - victim].end()
        both[victim].end()
        reached.append(newest())
        # the other process waits 20 s for one that was killed before it connected
        assert time.monotonic() - killed < 20 + whole_run
        assert both[1 - victim].process.returncode == 1, both[1 - victim].stderr
        line, *more = both[1 - victim].errors
        assert not more, both[1 - victim].stderr
        assert line.startswith("error: ") and (f"process {victim}" in line or "coordinator" in line), line
        assert not (folder / "out" / "run.nc").exists()
    print("rounds reached", reached)
    assert 0 < reached[-1] < rounds
    finish(start(room, folder))
    found = load(folder)
    np.testing.assert_array_equal(found.draws, expected.draws)
    np.testing.assert_array_equal(found.average, expected.average)
    for name, values in expected.statistics.items():
        np.testing.assert_array_equal(found.statistics[name], values)
    np.testing.assert_array_equal(found.traffic.bytes_sent, expected.traffic.bytes_sent)
    assert found.traffic.rounds == expected.traffic.rounds == rounds


@pytest.mark.slow
@needs_a_room
def test_a_checkpoint_of_other_processes_is_refused(room, folder):
    finish(start(room, folder, 2, "--checkpoint", "kept"))
    three = start(room, folder, 3, "--checkpoint", "kept", "--output", "more")
    for one in three:
        assert one.end() == 1
        (line,) = one.errors
        assert "processes changed (2 with 4 devices then, 3 with 6 devices now)" in line


@pytest.mark.slow
@needs_a_room
def test_changed_rows_are_detected_in_all_processes(room, folder):
    finish(start(room, folder, 2, "--checkpoint", "kept"))
    agents = []
    for process in range(2):
        (path,) = (folder / "kept" / f"process-{process}" / "posterior").glob("*.npz")
        with np.load(path) as content:
            agents.append(content["agents"].tolist())
    assert agents == [[0, 1, 2, 3, 4, 5]] * 2
    frame = pd.read_csv(folder / "site-5.csv")
    frame.loc[2, "y"] += 1e-3
    frame.to_csv(folder / "site-5.csv", index=False)
    for one in start(room, folder, 2, "--checkpoint", "kept", "--output", "more"):
        assert one.end() == 1
        (line,) = one.errors
        assert "the data of agent 5 (site-5) or a function of the posterior changed" in line


@pytest.mark.slow
@needs_a_room
def test_ctrl_c_in_one_stops_all_after_the_same_draw(room, folder):
    write(folder, draws=20000)
    both = start(room, folder, 2, "--checkpoint", "kept")
    states = folder / "kept" / "process-1" / "states"
    wait_for(lambda: len(list(states.glob("*.npz"))) == 2)
    both[1].kill(signal.SIGTERM)
    assert [one.end() for one in both] == [130, 130], [one.stderr for one in both]
    assert all("interrupted: the run keeps the" in one.stderr for one in both)
    partial = load(folder).draws
    assert 0 < partial.shape[1] < 20000
    # the same command resumes and overwrites its partial result
    again = start(room, folder, 2, "--checkpoint", "kept")
    newest = max(states.glob("*.npz"))
    wait_for(lambda: max(states.glob("*.npz")) > newest)
    both[0].end()
    again[0].kill(signal.SIGINT)
    assert [one.end() for one in again] == [130, 130], [one.stderr for one in again]
    more = load(folder).draws
    assert more.shape[1] > partial.shape[1]
    np.testing.assert_array_equal(more[:, : partial.shape[1]], partial)


# process ids with their options, and the error of every process
MISTAKES = {
    "no coordinator": ([(1, {})], "process 1 could not reach the coordinator at 127.0.0.1:{port} within 4 s"),
    "too few": ([(0, {"count": 3}), (2, {"count": 3})], "only 2 of 3 processes connected to {at} within 4 s"),
    "twice": ([(0, {"count": 3}), (1, {"count": 3}), (1, {"count": 3})], "two processes claim to be process 1 of 3"),
    "other count": ([(0, {}), (1, {"count": 3})], "num_processes is 3 in process 1, and 2 in process 0"),
    "seed": ([(0, {}), (1, {"seed": 4})], "process 1 and process 0 have different settings: seed 4 and seed 3"),
    "draws": ([(0, {}), (1, {"draws": 41})], "have different settings: draws 41 and draws 40"),
    "network": ([(0, {}), (1, {"network": "star"})], "process 1 and process 0 have different settings: network star"),
    "method": ([(0, {}), (1, {"step": 0.003})], "process 1 and process 0 have different settings: method DESGLD"),
}


def quick(names, chosen):
    """All names, with all except the chosen ones marked slow, because each starts processes."""
    return [name if name in chosen else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.long
@needs_a_room
@pytest.mark.parametrize("name", quick(MISTAKES, ["seed"]))
def test_a_mistake_is_a_one_line_error_in_every_process(name, room, folder):
    commands, message = MISTAKES[name]
    port = next(PORTS)
    started = []
    for place, (number, changes) in enumerate(commands):
        changes = dict(changes)
        count = changes.pop("count", 2)
        config = write(folder, f"job-{place}.toml", **changes)
        # processes that connect need no short timeout
        wait = 4 if name in ("no coordinator", "too few") else 60
        options = ["--output", "out", "--timeout", wait]
        started += start(room, folder, count, *options, ids=[number], port=port, name=config)
    expected = message.format(port=port, at=f"127.0.0.1:{port}")
    for one in started:
        assert one.end() == 1
        (line,) = one.errors
        assert line.startswith("error: ") and expected in line
        assert one.seconds < 60
    assert not (folder / "out" / "run.nc").exists()


ONE_SIDED = {
    "missing file": (1, "process 1 stopped: no such config file: nowhere.toml"),
    "engine": (1, "process 1 stopped: several processes need the engine 'mesh', found 'local'"),
    "claimed": (0, "process 0 stopped: the output folder out holds run.nc without the record of its run"),
}


@pytest.mark.long
@pytest.mark.long
@needs_a_room
@pytest.mark.parametrize("name", quick(ONE_SIDED, ["claimed"]))
def test_an_error_in_one_process_stops_the_others_with_its_message(name, room, folder):
    culprit, message = ONE_SIDED[name]
    configs = ["job.toml", "job.toml"]
    if name == "missing file":
        configs[1] = "nowhere.toml"
    if name == "engine":
        configs[1] = write(folder, "local.toml", engine="local")
    if name == "claimed":
        (folder / "out").mkdir()
        (folder / "out" / "run.nc").touch()
    port = next(PORTS)
    started = [start(room, folder, ids=[i], port=port, name=configs[i])[0] for i in (0, 1)]
    for number, one in enumerate(started):
        assert one.end() == 1
        (line,) = one.errors
        expected = message.split(" stopped: ")[1] if number == culprit else message
        assert line.startswith(f"error: {expected}")


@pytest.mark.slow
@needs_a_room
def test_an_unresponsive_process_is_named(room, folder):
    write(folder, draws=200000)
    both = start(room, folder, 2, "--heartbeat", 3, "--checkpoint", "kept")
    wait_for(lambda: list((folder / "kept").glob("process-1/states/*.npz")))
    both[1].kill(signal.SIGSTOP)
    try:
        began = time.monotonic()
        assert both[0].end() == 1
        assert time.monotonic() - began < 15
        (line,) = both[0].errors
        assert line == "error: process 1 was silent for 3 s: its machine or the network is down"
    finally:
        both[1].kill(signal.SIGCONT)
    assert both[1].end() == 1
    (line,) = both[1].errors
    assert line.startswith("error: ")


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (("127.0.0.1:1", 2, 2), r"process_id must be a whole number in 0..1, found 2"),
        (("127.0.0.1:1", 2, -1), r"process_id must be a whole number in 0..1, found -1"),
        (("127.0.0.1:1", 0, 0), r"num_processes must be a whole number >= 1, found 0"),
        (("127.0.0.1", 2, 0), r"coordinator must be HOST:PORT, found '127.0.0.1'"),
        (("127.0.0.1:x", 2, 0), r"coordinator must be HOST:PORT, found '127.0.0.1:x'"),
        ((None, 2, 0), r"go together, coordinator is missing"),
        (("127.0.0.1:1", None, None), r"num_processes and process_id is missing"),
    ],
)
def test_an_invalid_place_is_refused(place, message):
    with pytest.raises(ValueError, match=message):
        processes.join(*place)
    with pytest.raises(ValueError, match="timeout must be a finite number > 0"):
        processes.join(*place, timeout=-1.0)


def test_without_a_cluster_arguments_are_required():
    # a process that has not used JAX
    script = "import accord; accord.engines.processes.join()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "ValueError: no cluster was detected (" in done.stderr


def test_joining_after_computing_is_refused():
    accord.Network.ring(3)
    np.asarray(accord.samplers.DESGLD(lambda k: 0.1 / (1 + k)).step_size(1))
    with pytest.raises(RuntimeError, match="must join before JAX computes anything"):
        import jax

        jax.devices()
        processes.join("127.0.0.1:1", 2, 0)


def test_other_versions_are_named():
    place = processes.Place("127.0.0.1:29598", 3, 0)
    good = {"process": 1, "of": 3, "versions": versions()}
    assert processes._mismatch(place, good, {}) == ""
    old = {**good, "versions": {**versions(), "jax": "0.9.0"}}
    assert processes._mismatch(place, old, {}).startswith("process 1 and process 0 differ: jax 0.9.0 and jax ")
    assert processes._mismatch(place, {**good, "process": 0}, {}) == "two processes claim to be process 0 of 3"
    with socket.socket() as connection:
        peers = {1: processes._Peer(connection)}
        assert processes._mismatch(place, good, peers) == "two processes claim to be process 1 of 3"


GREETING = {"greeting": "accord 1", "process": 1, "of": 2, "versions": versions()}
STRANGERS = {
    "silent": b"",
    "HTTP": b"GET / HTTP/1.1\n",
    "half a line": b'{"greeting"',
    "no JSON": b"{greeting: accord 1}\n",
    "no text": b"\xff\xfe\n",
    "a number": b"7\n",
    "nothing": b"null\n",
    "too deep": b"[" * 60_000 + b"\n",
    "too deep in a key": b'{"greeting": ' * 6_000 + b"\n",
    "too long": b" " * 200_000,
    "older": b'{"greeting": "accord 0"}\n',
    "no number": {"process": None},
    "a text for a number": {"process": "1"},
    "a yes for a number": {"process": True},
    "too large a number": {"process": 7},
    "a negative number": {"process": -1},
    "no count": {"of": None},
    "no versions": {"versions": None},
    "versions of something else": {"versions": {"jax": [1]}},
    "keys missing": {"process": ..., "of": ..., "versions": ...},
}


def line(changes):
    if isinstance(changes, bytes):
        return changes
    return json.dumps({key: x for key, x in {**GREETING, **changes}.items() if x is not ...}).encode() + b"\n"


@pytest.mark.parametrize("name", [*STRANGERS, "200 silent ones"])
def test_strangers_neither_end_nor_fail_the_start(name):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    found, called = {}, []

    def receive():
        found[0] = processes._receive_all(processes.Place(f"127.0.0.1:{port}", 2, 0), 4.0)

    first = threading.Thread(target=receive, daemon=True)
    first.start()
    for _ in range(200 if name not in STRANGERS else 1):
        wait_for(lambda: called.append(_call(port)) or called[-1] is not None, 10)
        with contextlib.suppress(OSError):
            called[-1].sendall(line(STRANGERS.get(name, b"")))
    began = time.monotonic()
    peers, service = processes._connect(processes.Place(f"127.0.0.1:{port}", 2, 1), 4.0)
    first.join(5.0)
    # strangers cause no delay
    assert found[0][1] == service and list(found[0][0]) == [1] and time.monotonic() - began < 2.0
    for peer in (*peers.values(), *found[0][0].values()):
        peer.close()
    for stranger in filter(None, called):
        stranger.close()


def _call(port):
    try:
        return socket.create_connection(("127.0.0.1", port))
    except OSError:
        return None


def test_a_trickling_peer_times_out(monkeypatch):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        peer, over = processes._Peer(ours), threading.Event()

        def trickle():
            while not over.wait(0.005):
                theirs.sendall(b" ")

        thread = threading.Thread(target=trickle, daemon=True)
        thread.start()
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            peer.first(0.3)
        assert time.monotonic() - began < 2.0
        over.set()
        thread.join()


NONSENSE = [b"{}\n", b'{"service": "x"}\n', b'{"service": null}\n', b"[" * 50_000 + b"\n", b"7\n"]


@pytest.mark.parametrize("answer", NONSENSE, ids=["empty", "text", "null", "deep", "number"])
def test_an_invalid_answer_of_the_coordinator_is_an_error(answer):
    with socket.create_server(("127.0.0.1", 0)) as server:
        at = f"127.0.0.1:{server.getsockname()[1]}"

        def respond():
            caller, _ = server.accept()
            with caller:
                caller.recv(65536)
                caller.sendall(answer)
                caller.recv(65536)

        threading.Thread(target=respond, daemon=True).start()
        with pytest.raises(ConnectionError, match=f"(coordinator at|listening at) {at}"):
            processes._connect(processes.Place(at, 2, 1), 2.0)


@pytest.mark.slow
@needs_a_room
def test_a_stranger_does_not_take_a_place(room, folder):
    port = next(PORTS)
    (first,) = start(room, folder, ids=[0], port=port)
    stranger = """
import socket, sys, time
for attempt in range(600):
    try:
        one = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
        break
    except OSError:
        time.sleep(0.1)
one.sendall(b"GET / HTTP/1.1\\n")
other = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
other.sendall(b'{"greeting": "accord 0"}\\n')
time.sleep(1)
"""
    subprocess.run([*room, sys.executable, "-c", stranger, str(port)], check=True)
    (second,) = start(room, folder, ids=[1], port=port)
    finish([first, second])


@pytest.mark.long
@needs_a_room
def test_an_address_in_use_or_of_another_program_is_named(room, folder):
    port = next(PORTS)
    listen = (
        f"import socket, time; s = socket.create_server(('127.0.0.1', {port})); print(1, flush=True); c = s.accept()"
    )
    other = subprocess.Popen([*room, sys.executable, "-c", listen], stdout=subprocess.PIPE)
    other.stdout.readline()
    for number, message in ((0, f"process 0 cannot listen at 127.0.0.1:{port}"), (1, "the connection of process 1")):
        (one,) = start(room, folder, ids=[number], port=port)
        assert one.end() == 1
        (line,) = one.errors
        assert line.startswith("error: ") and message in line
    other.communicate()
