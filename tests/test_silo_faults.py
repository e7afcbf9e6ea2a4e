"""Agents of a silo that hang or end, without Ray's processes: each is a thread here."""

import threading
import time
from contextlib import contextmanager

import jax.numpy as jnp
import numpy as np
import pytest
import thread_ray

import accord
from accord.engines.silo.patience import Patience
from accord.engines.silo.worker import Goal, Report, Status, Worker
from accord.engines.silo.workers import Limits, SetbackError, WorkerPool
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
def ray(monkeypatch):
    found = thread_ray.install(monkeypatch)
    yield found
    for actor in found.actors:
        actor.end(False)


class Hanging:
    """Hangs at its first calls, until the test ends; then returns what it was given."""

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
def pool_of(shards, **limits):
    pool = WorkerPool([{f"site_{i}": 1} for i in range(len(shards))], None, Limits(**{**LIMITS, **limits}))
    try:
        pool.hold(posterior(shards))
        yield pool
    finally:
        pool.close()


# --- hangs ---


def hangs_at(name, stuck, agent=1):
    """A method of agents at which one of them hangs."""
    method = getattr(Worker, name)

    def step(self, *arguments):
        if self.index == agent and stuck.left > 0:
            return stuck()
        return method(self, *arguments)

    return step


@pytest.mark.parametrize("late", ["raise", "restart"])
def test_an_agent_that_hangs_while_it_reads_is_late(late, ray, hanging, monkeypatch):
    # not in the function of a shard: a thread that hangs there holds locks that a process has for itself
    monkeypatch.setattr(Worker, "load", hangs_at("load", hanging()))
    if late == "raise":
        expected = r"^agent 1 \(site_1, 127\.0\.0\.1\) came no further for 2\.1 s: it reads its data$"
        with pytest.raises(TimeoutError, match=expected), pool_of(list(ROWS[:2]), timeout=2.0, late=late):
            pass
    else:
        with pool_of(list(ROWS[:2]), timeout=2.0, late=late) as pool:
            np.testing.assert_array_equal(pool.each(first_row, (), ()), ROWS[:2, 0, 0])
    assert ray.ended[0] == 1


def test_an_agent_that_always_hangs_while_it_reads_ends_the_run(ray, hanging, monkeypatch):
    monkeypatch.setattr("accord.engines.silo.workers._MOST_READS", 2)
    monkeypatch.setattr(Worker, "load", hangs_at("load", hanging(times=100), 0))
    with pytest.raises(RuntimeError, match="agents ended 2 times while they read their data, the last time agent 0"):
        with pool_of([ROWS[0]], timeout=0.3, late="restart"):
            pass


def working(monkeypatch, **steps):
    """Agents of which every one is as if assigned, and does these things in place of rounds."""
    monkeypatch.setattr(Worker, "acting", True, raising=False)
    for name, step in {"_lead": lambda self, goal: Report(True, None, {}), "save": lambda *a: None, **steps}.items():
        monkeypatch.setattr(Worker, name, step)


@pytest.mark.parametrize("late", ["raise", "restart"])
@pytest.mark.parametrize(("step", "said"), [("save", "saves its state"), ("_lead", "runs its rounds")])
def test_an_agent_without_neighbours_that_hangs_is_late(step, said, late, ray, hanging, monkeypatch, tmp_path):
    stuck = hanging(Report(True, None, {}))
    working(monkeypatch, **{step: lambda self, *arguments: stuck()})
    goal = (Goal(0, 1, 0, 1, 1), tmp_path)
    expected = TimeoutError if late == "raise" else SetbackError
    with pool_of([ROWS[0]], timeout=0.5, late=late) as pool:
        text = f"came no further for 0.6 s: it {said}$" if late == "raise" else "the actor died"
        with pytest.raises(expected, match=rf"^agent 0 \(site_0, 127\.0\.0\.1\)(:)? {text}"):
            pool.call("work", [goal])
        # either way there is another process in its place
        pool.limits = Limits(**LIMITS)
        pool.revive()
        assert pool.call("work", [goal])[0].finite


@pytest.mark.parametrize("late", ["raise", "restart"])
def test_an_agent_that_hangs_over_a_function_of_its_data_is_late(late, ray, hanging, monkeypatch):
    monkeypatch.setattr(Worker, "each", hangs_at("each", hanging()))
    with pool_of(list(ROWS[:2]), timeout=2.0, late=late) as pool:
        if late == "raise":
            with pytest.raises(TimeoutError, match="agent 1 .*: it evaluates a function of its data"):
                pool.each(first_row, (), ())
        else:
            np.testing.assert_array_equal(pool.each(first_row, (), ()), ROWS[:2, 0, 0])


def test_who_comes_further_or_waits_is_not_late(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    patience = Patience(10.0)

    def answers(*progress, waits=()):
        return {i: Status(0, waits, {}, "it counts", (count, 0)) for i, count in enumerate(progress)}

    for step in range(5):
        now[0] += 6.0
        # agent 0 comes further; agent 1 waits; agent 2 neither, agent 3 is silent
        found = {**answers(step), **{1: answers(0, 0, waits=(2,))[1]}, 2: answers(0, 0, 0)[2]}
        late = patience.overdue([0, 1, 2, 3], found)
        assert late == ([2, 3] if step in (1, 3) else [])
    assert patience.doing(2) == "it counts" and patience.doing(3) == "it does not answer"


def test_slow_agents_that_come_further_are_waited_for(ray, monkeypatch):
    turns = []

    def slow(self, function, arguments, own):
        for _ in range(8):
            time.sleep(0.15)
            turns.append(self.index)
            self._turn_to("counts")
        return np.ones(1)

    monkeypatch.setattr(Worker, "each", slow)
    pool = WorkerPool([{}], None, Limits(**{**LIMITS, "timeout": 0.4}))
    try:
        pool.revive()
        assert pool.each(len, (), ()).shape == (1,) and len(turns) == 8
    finally:
        pool.close()


def test_what_ends_again_and_again_ends_the_run(ray, monkeypatch):
    monkeypatch.setattr("accord.engines.silo.workers.MOST_SETBACKS", 3)
    pool = WorkerPool([{}], None, Limits(**LIMITS))

    def call(*arguments: object, **options: object):
        raise SetbackError("agent 0: it fell over")

    try:
        pool.revive()
        monkeypatch.setattr(pool, "call", call)
        with pytest.raises(RuntimeError, match="gave up after 3 setbacks without progress, the last one: agent 0"):
            pool.each(len, (), ())
    finally:
        pool.close()


# --- ends ---


def run(shards, **options):
    # agents that talk to nobody: in one process their rounds must not wait for one another
    options = {"draws": 20, "burn_in": 5, "chains": 2, "whiten": False, **options}
    return accord.sample(posterior(shards), accord.Network.empty(len(shards)), DESGLD(0.01), **options)


class Ends:
    """Lets an agent end as often as it is asked for something, once it was asked for something else."""

    def __init__(self, ray, monkeypatch, method, agent=0, times=1):
        self.ray, self.method, self.agent, self.left = ray, method, agent, times
        step = getattr(Worker, method)

        def ending(worker, *arguments):
            if worker.index == agent and self.left > 0:
                self.left -= 1
                # from another thread, as it waits for nobody
                ray.kill(next(one for one in reversed(ray.actors) if one.index == agent), no_restart=False)
                raise RuntimeError("this process has ended")
            return step(worker, *arguments)

        monkeypatch.setattr(Worker, method, ending)


@pytest.mark.parametrize("method", ["saved", "work"])
def test_an_agent_that_ends_changes_no_draw(method, ray, monkeypatch, tmp_path):
    Ends(ray, monkeypatch, method)
    found = run(list(ROWS[:2]), engine=accord.Silo(timeout=30.0), checkpoint=tmp_path)
    assert ray.ended[0] == 0
    monkeypatch.undo()
    np.testing.assert_allclose(found.draws, run(list(ROWS[:2]), engine="local").draws, rtol=1e-5)
