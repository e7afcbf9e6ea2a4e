"""A resumed run has the draws of an uninterrupted run, also after damage to its files."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from mesh_worker import ALL
from tables import NETWORKS, unequal_shards, walk
from typer.testing import CliRunner

import accord
from accord.base.interruptions import terminations
from accord.cli.commands import app
from accord.engines.checkpoint import CheckpointStore, held
from accord.engines.fingerprint import claim, combined, fingerprint, first_difference
from accord.posterior.totals import TotalsHere
from accord.sampling import checkpointing


class LostError(Exception):
    """A crash."""


def draw(case="ring/DESGLD", folder=None, **changes):
    network, method = case.split("/")
    options = {
        "draws": 12,
        "burn_in": 20,
        "thin": 3,
        "chains": 3,
        "seed": 7,
        "init": accord.Gaussian([1.0, -1.0], np.eye(2)),
        "checkpoint": folder,
        "checkpoint_every": 8,
    }
    return walk(unequal_shards(2), NETWORKS[network], ALL[method](), **{**options, **changes})


def lose(monkeypatch, saves, *arguments, error=LostError, **options):
    """Start a run that crashes after `saves` checkpoints. Returns the rounds of the checkpoints."""
    save, made = checkpointing.Checkpointer.save, []

    def counted(self, carry):
        save(self, carry)
        made.append(self.recorder.rounds)
        if len(made) == saves:
            raise error

    with monkeypatch.context() as patch, pytest.raises(error):
        patch.setattr(checkpointing.Checkpointer, "save", counted)
        draw(*arguments, **options)
    return made


def first_rounds_alone(patch):
    """Let the local engine run the first rounds of the resume check, and no others."""
    record = accord.engines.local.LocalEngine.record

    def few(self, carry, draws, thin):
        assert (int(carry.round), draws, thin) == (0, 1, checkpointing._FIRST_ROUNDS)
        return record(self, carry, draws, thin)

    patch.setattr(accord.engines.local.LocalEngine, "record", few)


def assert_same(found, expected):
    np.testing.assert_array_equal(found.draws, expected.draws)
    np.testing.assert_array_equal(found.average, expected.average)
    assert found.statistics.keys() == expected.statistics.keys()
    for name, values in expected.statistics.items():
        np.testing.assert_array_equal(found.statistics[name], values)
    assert (found.traffic.rounds, found.traffic.exchanges) == (expected.traffic.rounds, expected.traffic.exchanges)
    np.testing.assert_array_equal(found.traffic.bytes_sent, expected.traffic.bytes_sent)
    np.testing.assert_array_equal(found.traffic.gradient_rows, expected.traffic.gradient_rows)
    assert found.settings == expected.settings


QUICK = ["ring/DESGHMC", "star/DADMMS", "irregular/Gibbs", "ring/GCMC-tolerances"]
SLOW = ["ring/GCMC-mala", "star/HubSGLD", "irregular/Replicated-mala"]


def resumed():
    for case in (*QUICK, *SLOW):
        yield pytest.param(case, "local", marks=() if case in QUICK else pytest.mark.slow)
    # the mesh engine saves arrays with the code of the local engine
    for case in ("irregular/Gibbs", "ring/GCMC-mala"):
        yield pytest.param(case, "mesh", marks=() if case in QUICK else pytest.mark.slow)


@pytest.mark.parametrize(("case", "engine"), list(resumed()))
@pytest.mark.long_from(1)
def test_resumed_equals_uninterrupted(case, engine, tmp_path, monkeypatch):
    expected = draw(case, engine=engine)
    # crashes in burn-in, at its end and among the draws, as 8 is no multiple of thin
    assert lose(monkeypatch, 2, case, folder=tmp_path, engine=engine) == [8, 16]
    assert lose(monkeypatch, 1, case, folder=tmp_path, engine=engine) == [26]
    assert lose(monkeypatch, 2, case, folder=tmp_path, engine=engine) == [32, 41]
    assert_same(draw(case, tmp_path, engine=engine), expected)


def test_with_thin_one_no_draw_is_lost_or_duplicated(tmp_path, monkeypatch):
    expected = draw(thin=1)
    # the newest checkpoint has all 32 - 20 draws
    assert lose(monkeypatch, 4, folder=tmp_path, thin=1) == [8, 16, 24, 32]
    with monkeypatch.context() as patch:
        first_rounds_alone(patch)
        assert_same(draw(folder=tmp_path, thin=1), expected)
    # the previous checkpoint resumes at its own draws
    files(tmp_path, "states")[-1].unlink()
    assert_same(draw(folder=tmp_path, thin=1), expected)


def test_a_finished_run_is_returned_and_can_be_extended(tmp_path, monkeypatch):
    first = draw(folder=tmp_path)
    with monkeypatch.context() as patch:
        first_rounds_alone(patch)
        patch.setattr(accord.engines.local.LocalEngine, "advance", None)
        again = draw(folder=tmp_path)
        assert_same(again, first)
        assert again.seconds > first.seconds / 2
        np.testing.assert_array_equal(draw(folder=tmp_path, draws=5).draws, first.draws[:, :5])
    assert_same(draw(folder=tmp_path, draws=31, checkpoint_every=50), draw(draws=31))


def test_checkpoints_follow_the_clock_without_checkpoint_every(tmp_path, monkeypatch):
    options = {"draws": 400, "thin": 1, "checkpoint_every": None}
    expected = draw(**options)
    # no minimum interval
    monkeypatch.setattr(checkpointing, "_SECONDS", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(checkpointing, "_TIMES", 0.0)
        made = lose(patch, 3, folder=tmp_path, **options)
        assert made[0] <= 20 and made[-1] < 420
        assert_same(draw(folder=tmp_path, **options), expected)
    with monkeypatch.context() as patch:
        patch.setattr(checkpointing, "_TIMES", 1e9)
        rare = lose(patch, 2, folder=tmp_path / "rare", **options)
    # the first checkpoint measures the time of a write, the second is at the end
    assert rare == [made[0], 420]
    assert len(files(tmp_path, "draws")) > len(files(tmp_path / "rare", "draws"))


def files(folder, kind):
    return sorted((folder / "process-0" / kind).glob("*.npz"))


def damage(path, rng):
    """Truncate a file or change some of its bytes."""
    content = bytearray(path.read_bytes())
    if rng.random() < 0.5:
        path.write_bytes(content[: rng.integers(len(content))])
    else:
        for place in rng.integers(len(content), size=3):
            content[place] ^= int(rng.integers(1, 256))
        path.write_bytes(content)


@pytest.mark.parametrize("attempt", range(12))
@pytest.mark.long_from(5)
def test_damaged_files_are_named_and_change_no_draw(attempt, tmp_path, monkeypatch):
    rng = np.random.default_rng(attempt)
    expected = draw()
    lose(monkeypatch, 5, folder=tmp_path)
    everything = files(tmp_path, "states") + files(tmp_path, "draws")
    assert len(files(tmp_path, "states")) == 2
    chosen = rng.choice(everything, size=rng.integers(1, len(everything) + 1), replace=False)
    # attempt 0 loses the newest state, attempt 1 both
    chosen = {0: everything[1:2], 1: everything[:2]}.get(attempt, chosen)
    for path in chosen:
        damage(path, rng)
    with pytest.warns(UserWarning, match="is truncated or corrupt and is skipped") as warned:
        assert_same(draw(folder=tmp_path), expected)
    assert {str(path) for path in chosen} == {str(w.message).split()[2] for w in warned}
    # all files were rewritten
    assert_same(draw(folder=tmp_path), expected)


def test_an_interrupted_write_keeps_the_previous_file(tmp_path, monkeypatch):
    expected = draw()
    lose(monkeypatch, 4, folder=tmp_path)
    for path in (tmp_path / "process-0" / "states", tmp_path / "process-0" / "draws"):
        (path / "round-000000000041.npz.partial").write_bytes(b"accord check")
    assert_same(draw(folder=tmp_path), expected)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"case": "ring/DULA"}, "method changed (DESGLD then, DULA now)"),
        ({"case": "star/DESGLD"}, "network changed (ring"),
        ({"seed": 8}, "seed changed (7 then, 8 now)"),
        ({"chains": 4}, "chains changed (3 then, 4 now)"),
        ({"thin": 2}, "thin changed (3 then, 2 now)"),
        ({"engine": "mesh"}, "engine changed (local then, mesh now)"),
        ({"keep": [1]}, "keep changed (an array, with other values)"),
        ({"init": None}, "init changed (an array then, None now)"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
@pytest.mark.long_from(3)
def test_another_run_in_the_folder_is_refused(changes, named, tmp_path):
    draw(folder=tmp_path)
    with pytest.raises(ValueError, match="cannot resume from") as found:
        draw(**{"folder": tmp_path, **changes})
    assert named in str(found.value)
    # without run.json the checkpoint files still identify the run
    (tmp_path / "process-0" / "run.json").unlink()
    with pytest.raises(ValueError, match="belongs to another run"):
        draw(**{"folder": tmp_path, **changes})


@pytest.mark.parametrize("change", ["name", "shape"])
def test_states_of_another_version_are_refused(change, tmp_path, monkeypatch):
    write = CheckpointStore.write

    def older(self, round, arrays):
        if ".round@" in arrays:
            arrays = {f".older{name}" if change == "name" else name: array[None] for name, array in arrays.items()}
        write(self, round, arrays)

    with monkeypatch.context() as before:
        before.setattr(CheckpointStore, "write", older)
        draw(folder=tmp_path)
    with pytest.raises(ValueError, match="another version of accord wrote the state of round .* with other arrays"):
        draw(folder=tmp_path, draws=20)


def test_ctrl_c_keeps_the_draws_and_the_checkpoint(tmp_path, monkeypatch):
    record, calls = accord.engines.local.LocalEngine.record, []

    def interrupted(self, *arguments):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return record(self, *arguments)

    expected = draw()
    with monkeypatch.context() as patch, pytest.warns(UserWarning, match="interrupted: the run keeps"):
        patch.setattr(accord.engines.local.LocalEngine, "record", interrupted)
        partial = draw(folder=tmp_path)
    count = partial.draws.shape[1]
    assert 0 < count < 12
    np.testing.assert_array_equal(partial.draws, expected.draws[:, :count])
    assert_same(draw(folder=tmp_path), expected)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("engine", ["local", "mesh"])
@pytest.mark.long_from(2)
def test_a_signal_keeps_the_draws_and_writes_the_checkpoint(engine, number, tmp_path, monkeypatch):
    builder = {"local": accord.engines.local.LocalEngine, "mesh": accord.engines.mesh.engine.MeshEngine}[engine]
    record, calls, before = builder.record, [], [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]

    def interrupted(self, *arguments):
        calls.append(1)
        # the first call runs the rounds of the resume check
        if len(calls) == 3:
            os.kill(os.getpid(), number)
        return record(self, *arguments)

    expected = draw(engine=engine)
    with monkeypatch.context() as patch, pytest.warns(UserWarning, match="interrupted: the run keeps"):
        patch.setattr(builder, "record", interrupted)
        # chunks of one draw without regular checkpoints
        patch.setattr(builder, "buffer_bytes", 1)
        partial = draw(folder=tmp_path, engine=engine, checkpoint_every=10_000)
    assert partial.settings["interrupted"] is True and partial.draws.shape[1] == 2
    np.testing.assert_array_equal(partial.draws, expected.draws[:, :2])
    # the checkpoint of the last draw
    (newest,) = (tmp_path / "process-0" / "states").glob("*.npz")
    assert int(newest.stem.removeprefix("round-")) == partial.traffic.rounds
    again = draw(folder=tmp_path, engine=engine, checkpoint_every=10_000)
    assert "interrupted" not in again.settings
    assert_same(again, expected)
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_signal_between_sums_writes_them(tmp_path, monkeypatch):
    call, requests = TotalsHere.__call__, []

    def interrupted(self, *arguments, **options):
        requests.append(0)
        if len(requests) == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        return call(self, *arguments, **options)

    post = accord.models.gaussian(np.zeros((3, 2)), np.tile(np.eye(2), (3, 1, 1)))
    with monkeypatch.context() as patch:
        patch.setattr(TotalsHere, "__call__", interrupted)
        with pytest.raises(KeyboardInterrupt):
            accord.sample(post, accord.Network.ring(3), draws=20, checkpoint=tmp_path)
    assert list((tmp_path / "process-0" / "sums").glob("*.npz"))


def test_sigterm_interrupts_unless_a_handler_is_installed():
    with pytest.raises(KeyboardInterrupt), terminations():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1.0)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    received = []
    before = signal.signal(signal.SIGTERM, lambda *arguments: received.append(1))
    try:
        with terminations():
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert received == [1]


def test_a_second_run_on_a_folder_is_refused(tmp_path):
    with held(tmp_path / "process-0"):
        with pytest.raises(ValueError, match=rf"folder {tmp_path}/process-0 is in use by process {os.getpid()} on "):
            draw(folder=tmp_path)
    run = draw(folder=tmp_path)
    assert (tmp_path / "process-0" / "in-use").stat().st_mode & 0o777 == 0o600
    # methods without rounds
    post, net = accord.models.gaussian(np.zeros((3, 2)), np.tile(np.eye(2), (3, 1, 1))), accord.Network.ring(3)
    with held(tmp_path / "sums" / "process-0"), pytest.raises(ValueError, match="is in use by process"):
        accord.sample(post, net, draws=20, checkpoint=tmp_path / "sums")
    assert_same(run, draw())


def test_a_killed_run_releases_its_lock(tmp_path):
    (tmp_path / "process-0").mkdir()
    script = (
        "import fcntl, sys, time\n"
        "file = open(sys.argv[1], 'w'); fcntl.flock(file, fcntl.LOCK_EX)\n"
        "file.write('process 0 on nowhere'); file.flush(); print(1, flush=True); time.sleep(60)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "process-0" / "in-use")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        with pytest.raises(ValueError, match="is in use by process 0 on nowhere"):
            draw(folder=tmp_path)
        other.kill()
    assert_same(draw(folder=tmp_path), draw())


def test_a_store_keeps_the_newest_valid_files(tmp_path):
    store = CheckpointStore(tmp_path, "one")
    arrays = {"x/y": np.arange(3, dtype=np.uint32), "": np.array(np.nan, np.float32), "none": np.zeros((0, 4))}
    for round in (3, 20, 100):
        store.write(round, arrays)
    assert store.rounds() == [20, 100]
    found = store.read(100)
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype
    # a damaged file does not count among the two
    (tmp_path / "round-000000000100.npz").write_bytes(b"")
    store = CheckpointStore(tmp_path, "one")
    store.write(200, arrays)
    with pytest.warns(UserWarning, match="000100.npz is truncated or corrupt"):
        assert store.rounds() == [20, 200]
    with pytest.raises(ValueError, match="truncated or corrupt"):
        store.read(100)
    assert not list(tmp_path.glob("*.partial"))
    with pytest.raises(ValueError, match="belongs to another run"):
        CheckpointStore(tmp_path, "other").rounds()


def test_numpy_opens_a_checkpoint_without_pickles(tmp_path):
    arrays = {"x/y": np.arange(3, dtype=np.uint32), "": np.array(np.nan, np.float32), "none": np.zeros((0, 4))}
    CheckpointStore(tmp_path, "one").write(3, arrays)
    with np.load(tmp_path / "round-000000000003.npz", allow_pickle=False) as found:
        assert set(found) == {*arrays, "checkpoint"}
        assert json.loads(str(found["checkpoint"])) == {"tag": "one", "round": 3}
        for name, array in arrays.items():
            np.testing.assert_array_equal(found[name], array, strict=True)
    with pytest.raises(ValueError, match="a checkpoint holds arrays of numbers, found objects under 'bad'"):
        CheckpointStore(tmp_path, "one").write(4, {"good": np.zeros(2), "bad": np.array([None])})
    assert CheckpointStore(tmp_path, "one").rounds() == [3]


def test_every_truncated_file_and_flipped_byte_is_detected(tmp_path):
    store, path = CheckpointStore(tmp_path, "one"), tmp_path / "round-000000000003.npz"
    store.write(3, {"x": np.arange(3, dtype=np.uint32), "none": np.zeros((0, 4))})
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    flips = rng.integers(1, 256, len(whole))
    truncated = [whole[:length] for length in range(len(whole))]
    flipped = [whole[:k] + bytes([whole[k] ^ flips[k]]) + whole[k + 1 :] for k in range(len(whole))]
    for content in [*truncated, *flipped, whole + b"\0"]:
        path.write_bytes(content)
        with pytest.raises(ValueError, match="truncated or corrupt"):
            store.read(3)
    # a valid file under the name of another round
    path.write_bytes(whole)
    path.rename(tmp_path / "round-000000000004.npz")
    with pytest.warns(UserWarning, match=r"000004.npz contains round 3 and is skipped"):
        assert store.rounds() == []


def test_a_checkpoint_of_an_earlier_version_is_refused(tmp_path):
    draw(folder=tmp_path)
    path = tmp_path / "process-0" / "run.json"
    written = json.loads(path.read_text())
    # the first version wrote no format
    for older in ({}, {"format": "1"}):
        path.write_text(json.dumps({name: text for name, text in written.items() if name != "format"} | older))
        with pytest.raises(ValueError, match="cannot resume from .*: another version of accord wrote it"):
            draw(folder=tmp_path)


def test_a_fingerprint_distinguishes_runs_and_is_independent_of_the_data(tmp_path):
    net, method = NETWORKS["ring"], accord.samplers.DESGLD(0.02)
    post = unequal_shards(2)
    mine = fingerprint(post, net, method, seed=1, draws=5)
    rng = np.random.default_rng(5)
    other = accord.models.linear_regression(
        [(rng.standard_normal((4, 2)), rng.standard_normal(4)) for _ in range(6)], noise_scale=1.0, prior_variance=10.0
    )
    same_model = accord.models.linear_regression(
        [(rng.standard_normal((3, 2)), rng.standard_normal(3)) for _ in range(6)], noise_scale=1.0, prior_variance=10.0
    )
    assert fingerprint(other, net, method) == fingerprint(same_model, net, method)
    # the precision follows from the method, so the method is the reason of a refusal
    walked = fingerprint(post, net, accord.samplers.DULA(0.02, 0.2), seed=1, draws=5) | {"precision": "float64"}
    assert first_difference(walked, mine | {"precision": "float32"}).startswith("method DULA")
    assert combined(mine) == combined({**mine, "draws": "6"}) != combined({**mine, "seed": "2"})
    changed = [
        fingerprint(post, net, accord.samplers.DESGLD(step))["method"]
        for step in (0.02, 0.03, lambda k: 0.02 / (1 + k), *(_constant(value) for value in (0.02, 0.03)))
    ]
    assert len(set(changed)) == len(changed)
    assert first_difference(mine, dict(mine)) is None
    assert first_difference(mine, {**mine, "jax": "0.9"}) == f"jax {mine['jax']} and jax 0.9"
    claim(tmp_path, mine)
    claim(tmp_path, {**mine, "draws": "6"})
    with pytest.raises(ValueError, match=r"seed changed \(1 then, 2 now\)"):
        claim(tmp_path, {**mine, "seed": "2"})


def _constant(value):
    return lambda k: value


JOB = """
[data]
file = "rows.csv"
split = "iid"
agents = 3
target = "y"
[model]
name = "linear_regression"
noise_scale = 1.0
[network]
name = "ring"
[method]
name = "DESGLD"
step_size = 0.002
[run]
draws = 30
burn_in = 5
chains = 2
output = "out"
checkpoint_every = 10
"""


@pytest.mark.filterwarnings("default::UserWarning")
@pytest.mark.long
def test_the_same_command_resumes_a_run(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    np.savetxt(tmp_path / "rows.csv", rng.normal(size=(30, 3)), delimiter=",", header="a,b,y", comments="")
    (tmp_path / "job.toml").write_text(JOB + 'checkpoint = "kept"\n')
    (tmp_path / "plain.toml").write_text(JOB)

    def invoke(*arguments, name="job.toml"):
        return CliRunner().invoke(app, ["run", str(tmp_path / name), "--quiet", *map(str, arguments)])

    def load(output="out"):
        return accord.Run.load(tmp_path / output / "run.nc").draws

    assert invoke("--output", tmp_path / "other", name="plain.toml").exit_code == 0
    record, calls = accord.engines.local.LocalEngine.record, []

    def stopped_by(error, at):
        def stopped(self, *arguments):
            calls.append(1)
            if len(calls) == at:
                raise error
            return record(self, *arguments)

        return stopped

    # the first call of each process records the first three rounds
    with monkeypatch.context() as patch:
        patch.setattr(accord.engines.local.LocalEngine, "record", stopped_by(OSError("lost"), 3))
        assert invoke().exit_code == 1
        assert (tmp_path / "kept" / "process-0" / "states").is_dir()
        # the same command may replace the partial result of Ctrl-C
        patch.setattr(accord.engines.local.LocalEngine, "record", stopped_by(KeyboardInterrupt, 6))
        result = invoke()
        assert result.exit_code == 130 and "interrupted: the run keeps the" in result.stderr
        assert 0 < load().shape[1] < 30
    result = invoke(name="plain.toml")
    assert result.exit_code == 1 and "holds another run" in result.stderr
    assert invoke().exit_code == 0
    np.testing.assert_array_equal(load(), load("other"))
    # a finished result stays
    before = (tmp_path / "out" / "run.nc").read_bytes()
    assert invoke().exit_code == 0
    assert (tmp_path / "out" / "run.nc").read_bytes() == before
    # the option overrides the folder of the file
    result = invoke("--checkpoint", tmp_path / "new", "--output", tmp_path / "third")
    assert result.exit_code == 0 and (tmp_path / "new" / "process-0").is_dir()
    (tmp_path / "job.toml").write_text(JOB.replace("0.002", "0.003") + 'checkpoint = "kept"\n')
    result = invoke("--output", tmp_path / "fourth")
    assert result.exit_code == 1 and "method changed (DESGLD, with other values)" in result.stderr
    (tmp_path / "job.toml").write_text(JOB.replace("every = 10", "every = 0"))
    result = invoke("--output", tmp_path / "fourth")
    assert result.exit_code == 1 and "checkpoint_every in [run] must be a whole number >= 1, found 0" in result.stderr


def forge(folder):
    """Replace all numbers of a checkpoint by 42, with valid hashes."""
    for path in folder.rglob("round-*.npz"):
        with np.load(path) as found:
            about = json.loads(str(found["checkpoint"]))
            arrays = {name: found[name] for name in found if name != "checkpoint"}
        changed = {
            name: np.full_like(x, 42.0) if np.issubdtype(x.dtype, np.floating) else x for name, x in arrays.items()
        }
        CheckpointStore(path.parent, about["tag"], keep=None).write(about["round"], changed)


def test_a_forged_checkpoint_is_skipped_with_a_key(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCORD_CHECKPOINT_KEY", "secret")
    draw(folder=tmp_path)
    with monkeypatch.context() as patch:
        # the forger has no key
        patch.delenv("ACCORD_CHECKPOINT_KEY")
        forge(tmp_path)
    with pytest.warns(UserWarning, match="is truncated or corrupt and is skipped"):
        assert_same(draw(folder=tmp_path), draw())
    with monkeypatch.context() as patch:
        patch.setenv("ACCORD_CHECKPOINT_KEY", "another secret")
        forge(tmp_path)
    with pytest.raises(ValueError, match="is not signed with this run's key"):
        draw(folder=tmp_path)
