"""Agents of a silo that hang or end, as threads instead of Ray's processes."""

import gc
import json
import os
import pickle
import signal
import threading
import time
import weakref
from contextlib import contextmanager
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import thread_ray
from tables import walk

import accord
from accord.engines.checkpoint import CheckpointStore
from accord.engines.silo.engine import SiloEngine
from accord.engines.silo.worker import Goal, Holds, Report, Status, Worker, clear_forgotten
from accord.engines.silo.workers import Limits, Patience, SetbackError, WorkerPool
from accord.samplers import DESGLD

LIMITS = {"timeout": 30.0, "late": "raise", "start_timeout": 10.0}
ROWS = np.arange(12.0).reshape(4, 3, 1)


def log_likelihood(x, rows):
    return -jnp.sum((rows - x[None]) ** 2, axis=1) / 2.0


def log_prior(x):
    return -jnp.sum(x**2) / 20.0


def first_row(potential, shard):
    return shard.rows[0][0]


def posterior(shards):
    return accord.Posterior(log_likelihood, log_prior, shards, np.zeros(1))


@pytest.fixture
def ray(monkeypatch, tmp_path):
    found = thread_ray.install(monkeypatch)
    # the sites' temporary folder
    (tmp_path / "site").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "site"))
    yield found
    for actor in found.actors:
        actor.end(False)


class Hanging:
    """A function that hangs at its first calls until the test ends, and then returns a value."""

    def __init__(self, value=None, times=1):
        self.value, self.left, self.over = value, times, threading.Event()

    def __call__(self, *arguments):
        self.left -= 1
        if self.left >= 0:
            self.over.wait(30.0)
            raise RuntimeError("the test is over")
        return self.value


@pytest.fixture
def hanging():
    made = []

    def make(*arguments, **options):
        made.append(Hanging(*arguments, **options))
        return made[-1]

    yield make
    for one in made:
        one.over.set()


@contextmanager
def pool_of(shards, like=log_likelihood, **limits):
    pool = WorkerPool([{f"site_{i}": 1} for i in range(len(shards))], None, Limits(**{**LIMITS, **limits}))
    try:
        pool.hold(accord.Posterior(like, log_prior, shards, np.zeros(1)))
        yield pool
    finally:
        pool.close()


# --- hangs ---


def hangs_at(name, stuck, agent=1):
    """A method that hangs in one agent."""
    method = getattr(Worker, name)

    def step(self, *arguments):
        if self.index == agent and stuck.left > 0:
            return stuck()
        return method(self, *arguments)

    return step


@pytest.mark.long
@pytest.mark.parametrize("late", ["raise", "restart"])
def test_an_agent_that_hangs_while_reading_is_late(late, ray, hanging, monkeypatch):
    # not in the function of a shard, where a hanging thread holds locks that processes do not share
    stuck = hanging()
    if late == "raise":
        # the other agent reads nothing, as it may be late on a busy machine
        monkeypatch.setattr(Worker, "load", lambda self, *arguments: stuck() if self.index == 1 else None)
        expected = r"^agent 1 \(site_1, 127\.0\.0\.1\) made no progress for 2\.1 s: reading its data$"
        with pytest.raises(TimeoutError, match=expected), pool_of(list(ROWS[:2]), timeout=2.0, late=late):
            pass
    else:
        monkeypatch.setattr(Worker, "load", hangs_at("load", stuck))
        with pool_of(list(ROWS[:2]), timeout=6.0, late=late) as pool:
            np.testing.assert_array_equal(pool.each(first_row, (), ()), ROWS[:2, 0, 0])
    # on a busy machine the other agent may be late too
    assert 1 in ray.ended


def test_an_agent_that_always_hangs_while_reading_ends_the_run(ray, hanging, monkeypatch):
    monkeypatch.setattr("accord.engines.silo.workers._MOST_READS", 2)
    monkeypatch.setattr(Worker, "load", hangs_at("load", hanging(times=100), 0))
    with pytest.raises(RuntimeError, match="agents ended 2 times while they read their data, the last time agent 0"):
        with pool_of([ROWS[0]], timeout=0.3, late="restart"):
            pass


def working(monkeypatch, **steps):
    """Let agents run replacement methods without an assignment."""
    monkeypatch.setattr(Worker, "acting", True, raising=False)
    for name, step in {"_lead": lambda self, goal: Report(True, None, {}), "save": lambda *a: None, **steps}.items():
        monkeypatch.setattr(Worker, name, step)


@pytest.mark.parametrize("late", ["raise", "restart"])
@pytest.mark.parametrize(("step", "doing"), [("save", "saving its state"), ("_lead", "running its rounds")])
@pytest.mark.long
def test_an_agent_without_neighbours_that_hangs_is_late(step, doing, late, ray, hanging, monkeypatch, tmp_path):
    stuck = hanging(Report(True, None, {}))
    working(monkeypatch, **{step: lambda self, *arguments: stuck()})
    goal = (Goal(0, 1, 0, 1, 1), tmp_path, b"key")
    expected = TimeoutError if late == "raise" else SetbackError
    with pool_of([ROWS[0]]) as pool:
        # after reading, which may take longer on a busy machine
        pool.limits = Limits(**{**LIMITS, "timeout": 0.5, "late": late})
        text = f"made no progress for 0.6 s: {doing}$" if late == "raise" else "the actor died"
        with pytest.raises(expected, match=rf"^agent 0 \(site_0, 127\.0\.0\.1\)(:)? {text}"):
            pool.call("work", [goal])
        # both policies restart the process
        pool.limits = Limits(**LIMITS)
        pool.revive()
        assert pool.call("work", [goal])[0].finite


@pytest.mark.slow
@pytest.mark.parametrize("late", ["raise", "restart"])
def test_an_agent_that_hangs_in_a_function_of_its_data_is_late(late, ray, hanging, monkeypatch):
    monkeypatch.setattr(Worker, "each", hangs_at("each", hanging()))
    with pool_of(list(ROWS[:2])) as pool:
        pool.limits = Limits(**{**LIMITS, "timeout": 4.0, "late": late})
        if late == "raise":
            with pytest.raises(TimeoutError, match="agent 1 .*: evaluating a function of its data"):
                pool.each(first_row, (), ())
        else:
            np.testing.assert_array_equal(pool.each(first_row, (), ()), ROWS[:2, 0, 0])


def test_agents_with_progress_or_waiting_are_not_late(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    patience = Patience(10.0)

    def answers(*progress, waits=()):
        return {i: Status(0, waits, {}, "counting", (count, 0)) for i, count in enumerate(progress)}

    for step in range(5):
        now[0] += 6.0
        # agent 0 makes progress, agent 1 waits, agent 2 does neither, agent 3 does not respond
        found = {**answers(step), **{1: answers(0, 0, waits=(2,))[1]}, 2: answers(0, 0, 0)[2]}
        late = patience.overdue([0, 1, 2, 3], found)
        assert late == ([2, 3] if step in (1, 3) else [])
    assert patience.doing(2) == "counting" and patience.doing(3) == "no response"


@pytest.mark.long
def test_slow_agents_with_progress_are_not_late(ray, monkeypatch):
    turns = []

    def slow(self, function, arguments, own):
        for _ in range(10):
            time.sleep(0.15)
            turns.append(self.index)
            self._turn_to("counting")
        return np.ones(1)

    monkeypatch.setattr(Worker, "each", slow)
    pool = WorkerPool([{}], None, Limits(**{**LIMITS, "timeout": 1.0}))
    try:
        pool.revive()
        assert pool.each(len, (), ()).shape == (1,) and len(turns) == 10
    finally:
        pool.close()


def test_repeated_setbacks_end_the_run(ray, monkeypatch):
    monkeypatch.setattr("accord.engines.silo.workers.MOST_SETBACKS", 3)
    pool = WorkerPool([{}], None, Limits(**LIMITS))

    def call(*arguments: object, **options: object):
        raise SetbackError("agent 0: it fell over", 0)

    try:
        pool.revive()
        monkeypatch.setattr(pool, "call", call)
        with pytest.raises(RuntimeError, match="gave up after 3 setbacks without progress, the last one: agent 0"):
            pool.each(len, (), ())
    finally:
        pool.close()


# --- ends ---


def run(shards, **options):
    # no edges, because agents in one process must not wait for one another
    options = {"draws": 20, "burn_in": 5, "chains": 2, "whiten": False, **options}
    return walk(posterior(shards), accord.Network.empty(len(shards)), DESGLD(0.01), **options)


class Ends:
    """Ends an agent in its next calls of a method."""

    def __init__(self, ray, monkeypatch, method, agent=0, times=1):
        self.ray, self.method, self.agent, self.left = ray, method, agent, times
        step = getattr(Worker, method)

        def ending(worker, *arguments):
            if worker.index == agent and self.left > 0:
                self.left -= 1
                # the actor ends as if from another thread
                ray.kill(next(one for one in reversed(ray.actors) if one.index == agent), no_restart=False)
                raise RuntimeError("this process has ended")
            return step(worker, *arguments)

        monkeypatch.setattr(Worker, method, ending)


@pytest.mark.parametrize("method", ["saved", "work"])
@pytest.mark.long_from(1)
def test_an_agent_that_ends_changes_no_draw(method, ray, monkeypatch, tmp_path):
    Ends(ray, monkeypatch, method)
    message = r"agents restarted, which changes no draw. Restarts: agent 0 \(127\.0\.0\.1\) 1$"
    # one agent, because several threads that catch warnings lose some
    with pytest.warns(UserWarning, match=message):
        found = run([ROWS[0]], engine=accord.Silo(timeout=30.0), checkpoint=tmp_path)
    monkeypatch.undo()
    np.testing.assert_allclose(found.draws, run([ROWS[0]], engine="local").draws, rtol=1e-5)


# --- data that changes, folders and keys ---


def test_data_that_changed_before_a_restart_is_refused(ray, tmp_path):
    np.savez(tmp_path / "rows.npz", rows=ROWS[1])
    shards = [{"rows": ROWS[0]}, tmp_path / "rows.npz"]
    with pool_of(shards, like=lambda x, data: log_likelihood(x, data["rows"])) as pool:
        ray.kill(ray.actors[1], no_restart=False)
        # the same rows in another file format
        np.savez_compressed(tmp_path / "rows.npz", rows=ROWS[1])
        pool.revive()
        assert pool.restarts.tolist() == [0, 1]
        np.savez(tmp_path / "rows.npz", rows=ROWS[1] + 1e-6)
        ray.kill(ray.actors[1], no_restart=False)
        with pytest.raises(
            accord.base.errors.DataError, match="the data of agent 1 or a function of the posterior changed"
        ):
            pool.revive()


def test_the_next_run_may_have_other_data(ray):
    with pool_of([ROWS[0]]) as pool:
        pool.hold(posterior([ROWS[1]]))
        np.testing.assert_array_equal(pool.each(first_row, (), ()), ROWS[1, 0])


def interrupted(monkeypatch, **options):
    """Start a run that ends after its second chunk and leaves its checkpoints."""
    with monkeypatch.context() as patch:
        record, times = SiloEngine.record, []

        def lost(self, *arguments):
            times.append(1)
            if len(times) > 1:
                raise OSError("the power failed")
            return record(self, *arguments)

        patch.setattr(SiloEngine, "record", lost)
        with pytest.raises(OSError, match="power"):
            run(checkpoint_every=5, **options)


@pytest.mark.long
def test_a_run_is_not_resumed_with_other_data(ray, monkeypatch, tmp_path):
    options = {"engine": "silo", "checkpoint": tmp_path / "kept"}
    interrupted(monkeypatch, shards=list(ROWS[:2]), **options)
    with pytest.raises(accord.base.errors.DataError, match="kept/agent-1: the data of agent 1 or a function"):
        run([ROWS[0], ROWS[2]], checkpoint_every=5, **options)
    found = run(list(ROWS[:2]), checkpoint_every=5, **options)
    np.testing.assert_allclose(found.draws, run(list(ROWS[:2])).draws, rtol=1e-5)


@pytest.mark.long
def test_checkpoints_of_a_site_are_signed_and_private(ray, monkeypatch, tmp_path):
    options = {"engine": "silo", "checkpoint": tmp_path / "kept", "shards": [ROWS[0]]}
    interrupted(monkeypatch, **options)
    site = tmp_path / "kept" / "agent-0"
    assert site.stat().st_mode & 0o777 == 0o700
    files = [path for path in (tmp_path / "kept").rglob("*") if path.is_file()]
    assert (
        {path.name for path in files} >= {"key", "run.json"}
        and list(site.glob("*.npz"))
        and list(site.glob("posterior/*.npz"))
    )
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    # a valid file with another key
    newest = max(site.glob("*.npz"))
    with np.load(newest) as content:
        arrays = dict(content)
    about = json.loads(str(arrays.pop("checkpoint")))
    CheckpointStore(site, about["tag"], None, b"x" * 32).write(about["round"], arrays)
    with pytest.raises(ValueError, match=r"agent-0/round-.* is not signed with this run's key"):
        run(checkpoint_every=5, **options)
    CheckpointStore(site, about["tag"], None, (tmp_path / "kept" / "key").read_bytes()).write(about["round"], arrays)
    assert run(checkpoint_every=5, **options).draws.shape[1] == 20


@pytest.mark.long
def test_no_temporary_files_stay_at_a_site(ray, monkeypatch, tmp_path):
    site, seen, record = tmp_path / "site", [], SiloEngine.record

    def watched(self, *arguments):
        seen.extend(path.name for path in site.glob("accord-*/agent-*/*"))
        assert {path.stat().st_mode & 0o777 for path in site.glob("accord-*/**")} == {0o700}
        return record(self, *arguments)

    monkeypatch.setattr(SiloEngine, "record", watched)
    run(list(ROWS[:2]), engine="silo")
    # there were states and values of the potential
    assert "posterior" in seen and any(name.endswith(".npz") for name in seen)
    assert list(site.iterdir()) == []
    for error in (RuntimeError, KeyboardInterrupt):
        interrupted_by = lambda self, *arguments, error=error: (_ for _ in ()).throw(error)  # noqa: E731
        monkeypatch.setattr(SiloEngine, "record", interrupted_by)
        with pytest.raises(error):
            run(list(ROWS[:2]), engine="silo")
        assert list(site.iterdir()) == []


def test_folders_of_a_killed_driver_are_removed_after_a_day(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    names = {name: tmp_path / name for name in ("accord-" + 15 * "0" + end for end in "abc")}
    old, held, new = names.values()
    foreign = tmp_path / "accord-federation-x"
    long_ago = time.time() - 90_000.0
    for folder in (old, held, new, foreign):
        (folder / "agent-0").mkdir(parents=True)
        (folder / "agent-0" / "state").write_text("numbers")
        for path in [*folder.rglob("*"), folder]:
            os.utime(path, (long_ago, long_ago))
    (new / "agent-0" / "state").write_text("numbers")
    holds = Holds()
    holds.hold(held)
    clear_forgotten()
    assert [folder.exists() for folder in (old, held, new, foreign)] == [False, True, True, True]
    holds.let_go(held)
    clear_forgotten()
    assert not held.exists() and foreign.exists()


def test_sites_have_their_own_temporary_folders(ray, monkeypatch, tmp_path):
    with pool_of([ROWS[0]]) as pool:
        folder = pool.new_folder()
        # relative, independent of the driver's folders
        assert not folder.is_absolute()
        own = ray.actors[0].worker._own(folder)
        assert own == tmp_path / "site" / folder / "agent-0"
        assert ray.actors[0].worker._own(Path("/study")) == Path("/study/agent-0")


def test_a_restarted_agent_removes_its_temporary_files(ray, tmp_path):
    with pool_of(list(ROWS[:2])):
        assert len(list((tmp_path / "site").glob("*/agent-*"))) == 2
        ray.kill(ray.actors[1], no_restart=False)
    assert not list((tmp_path / "site").iterdir())


def test_sigterm_keeps_the_draws_of_a_silo_and_writes_its_checkpoint(ray, monkeypatch, tmp_path):
    record, calls = SiloEngine.record, []

    def interrupted(self, *arguments):
        calls.append(1)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return record(self, *arguments)

    options = {"engine": "silo", "checkpoint": tmp_path / "kept", "checkpoint_every": 10_000, "shards": [ROWS[0]]}
    # one draw per chunk
    monkeypatch.setattr("accord.engines.silo.engine._BUFFER_BYTES", 1)
    with monkeypatch.context() as patch:
        patch.setattr(SiloEngine, "record", interrupted)
        with pytest.warns(UserWarning, match="interrupted: the run keeps"):
            part = run(**options)
    newest = max((tmp_path / "kept" / "agent-0").glob("*.npz"))
    assert int(newest.stem.removeprefix("round-")) == 5 + part.draws.shape[1] and part.draws.shape[1] < 20
    whole = run(**options)
    np.testing.assert_array_equal(whole.draws[:, : part.draws.shape[1]], part.draws)
    assert not list((tmp_path / "site").iterdir())


@pytest.mark.long
def test_a_kept_silo_releases_earlier_runs(ray):
    runs = []
    with accord.Silo() as sites:
        for _ in range(4):
            run([ROWS[0]], engine=sites)
            runs.append(weakref.ref(ray.actors[0].worker.communicator))
        # communicators of earlier runs are freed, after a moment
        ends = time.monotonic() + 10.0
        while any(one() is not None for one in runs[:-1]) and time.monotonic() < ends:
            gc.collect()
            time.sleep(0.1)
        assert [one() is None for one in runs] == [True, True, True, False]


def test_runs_of_two_threads_on_one_silo_are_sequential(ray):
    found, expected = {}, [posterior([rows]) for rows in ROWS[:2]]
    with accord.Silo() as sites:

        def ask(number):
            with sites.placed(expected[number]) as post:
                time.sleep(0.2)
                found[number] = post.each(first_row)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30.0)
        again = pickle.loads(pickle.dumps(sites))
        assert again.timeout == sites.timeout and again._pool is None
    np.testing.assert_array_equal([found[0], found[1]], ROWS[:2, :1, 0])
