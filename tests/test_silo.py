"""One process an agent, by Ray, in a network of its own; the tests themselves are in silo_inside.py."""

import os
import subprocess
import sys
import types

import jax
import pytest
from several import HERE, alone

import accord
from accord.engines.silo import workers
from accord.engines.silo.worker import Goal, Worker
from accord.sampling.sample import engine_of


@pytest.mark.long
@pytest.mark.skipif(alone() is None, reason="needs a network namespace of its own")
@pytest.mark.parametrize(
    ("which", "part"),
    # the quick ones are few: most of their time is Ray, which starts once for each piece
    [
        pytest.param("not slow", "", id="quick"),
        pytest.param("slow", "draw_what", id="draws", marks=pytest.mark.slow),
        pytest.param("slow", "not draw_what", id="faults", marks=pytest.mark.slow),
    ],
)
def test_inside(which, part):
    pytest.importorskip("ray")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", which, "-k", part]
    command.append(HERE / "silo_inside.py")
    # Ray's processes import what the tests give them
    path = os.pathsep.join([str(HERE), *(os.environ.get("PYTHONPATH") or "").split(os.pathsep)]).rstrip(os.pathsep)
    # agents compile the same small programs in every run: where these are kept too, later runs read them
    kept = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
    # Ray's processes give way to all others of a machine unless told, and tests beside these would hold them up
    environment = {**os.environ, **kept, "PYTHONPATH": path, "RAY_worker_niceness": "0"}
    found = subprocess.run([*alone(), *command], env=environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout[-5000:] + found.stderr[-2000:]


class FakeRay(types.ModuleType):
    """As much of Ray as making and ending a pool asks for."""

    def __init__(self):
        super().__init__("ray")
        self.running, self.begun, self.killed = False, 0, []

    def is_initialized(self):
        return self.running

    def init(self, **options):
        self.running, self.begun = True, self.begun + 1

    def shutdown(self):
        self.running = False

    def remote(self, **options):
        process = types.SimpleNamespace(remote=lambda *arguments: object())
        return lambda actor: types.SimpleNamespace(options=lambda **options: process)

    def kill(self, actor):
        self.killed.append(actor)


@pytest.fixture
def fake_ray(monkeypatch):
    ray = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "accord.engines.silo.actor", types.SimpleNamespace(WorkerProcess=object))
    monkeypatch.setattr(workers.WorkerPool, "hold", lambda self, post: post.with_data_at(self))
    return ray


def test_every_run_has_processes_of_its_own(fake_ray):
    post = accord.models.gaussian([[0.0], [1.0]], [[[1.0]], [[1.0]]])
    first, second = (engine_of("silo") for _ in range(2))
    with first.placed(post) as held:
        with second.placed(post) as other:
            assert held.owners is not other.owners
            own = set(map(id, held.owners._actors))
            assert len(own) == 2 and not own & set(map(id, other.owners._actors))
        # the second run's end leaves the first one's processes and their cluster alone
        assert len(fake_ray.killed) == 2 and not own & set(map(id, fake_ray.killed)) and fake_ray.running
    assert len(fake_ray.killed) == 4 and not fake_ray.running and fake_ray.begun == 1


def begun(size):
    return workers.WorkerPool([{}] * size, None, workers.Limits(timeout=300.0, late="raise", start_timeout=120.0))


def test_the_first_of_two_runs_to_end_leaves_ray_to_the_other(fake_ray):
    first, second = begun(2), begun(3)
    first.close()
    first.close()
    assert fake_ray.running and len(second._actors) == 3
    second.close()
    assert not fake_ray.running


def test_ray_that_the_user_began_goes_on(fake_ray):
    fake_ray.init()
    begun(2).close()
    assert fake_ray.running and fake_ray.begun == 1


@pytest.mark.parametrize("raised", [jax.errors.JaxRuntimeError("INTERNAL"), ValueError("INTERNAL")], ids=type)
def test_an_agent_tells_what_failed_and_not_what_its_program_made_of_it(raised, monkeypatch):
    agent, gone = Worker(0, "127.0.0.1", {}), ConnectionError("agent 1 is gone")

    def lead(goal):
        raise raised

    monkeypatch.setattr(agent, "_lead", lead)
    agent.acting, agent.communicator = True, types.SimpleNamespace(failure=gone)
    with pytest.raises(ConnectionError) as caught:
        agent.work(Goal(0, 1, 0, 1, 1), None, b"")
    agent.channels.close()
    assert caught.value is gone


def test_the_page_puts_the_token_before_what_begins_a_cluster():
    text = (HERE.parent / "docs" / "silo.md").read_text(encoding="utf-8")
    assert text.index("ray get-auth-token") < text.index("RAY_AUTH_MODE=token") < text.index("ray start --head")


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install 'accord\[silo\]'"):
        workers.require_ray()
    post = accord.models.gaussian([[0.0], [1.0]], [[[1.0]], [[1.0]]])
    with pytest.raises(ImportError, match=r"accord\[silo\]"):
        accord.sample(post, accord.Network.complete(2), accord.samplers.DESGLD(0.1), engine="silo")
