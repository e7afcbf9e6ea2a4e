"""The silo engine with Ray in a network namespace. The tests are in silo_inside.py."""

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
    # few quick tests, because each part starts Ray
    [
        pytest.param("not slow", "", id="quick"),
        pytest.param("slow", "same_draws", id="draws", marks=pytest.mark.slow),
        pytest.param("slow", "not same_draws", id="faults", marks=pytest.mark.slow),
    ],
)
def test_inside(which, part):
    pytest.importorskip("ray")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", which, "-k", part]
    command.append(HERE / "silo_inside.py")
    # Ray's processes import modules of the tests
    path = os.pathsep.join([str(HERE), *(os.environ.get("PYTHONPATH") or "").split(os.pathsep)]).rstrip(os.pathsep)
    # cache small programs too, which agents compile in every run
    kept = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
    # Ray lowers the priority of its processes by default, so that parallel tests would delay them
    environment = {**os.environ, **kept, "PYTHONPATH": path, "RAY_worker_niceness": "0"}
    found = subprocess.run([*alone(), *command], env=environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout[-5000:] + found.stderr[-2000:]


class FakeRay(types.ModuleType):
    """The parts of Ray for starting and ending a pool."""

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


def test_every_run_has_its_own_processes(fake_ray):
    post = accord.models.gaussian([[0.0], [1.0]], [[[1.0]], [[1.0]]])
    first, second = (engine_of("silo") for _ in range(2))
    with first.placed(post) as held:
        with second.placed(post) as other:
            assert held.owners is not other.owners
            own = set(map(id, held.owners._actors))
            assert len(own) == 2 and not own & set(map(id, other.owners._actors))
        # the end of the second run keeps the processes of the first run and the cluster
        assert len(fake_ray.killed) == 2 and not own & set(map(id, fake_ray.killed)) and fake_ray.running
    assert len(fake_ray.killed) == 4 and not fake_ray.running and fake_ray.begun == 1


def begun(size):
    return workers.WorkerPool([{}] * size, None, workers.Limits(timeout=300.0, late="raise", start_timeout=120.0))


def test_ray_runs_until_the_last_pool_closes(fake_ray):
    first, second = begun(2), begun(3)
    first.close()
    first.close()
    assert fake_ray.running and len(second._actors) == 3
    second.close()
    assert not fake_ray.running


def test_ray_started_by_the_user_keeps_running(fake_ray):
    fake_ray.init()
    begun(2).close()
    assert fake_ray.running and fake_ray.begun == 1


@pytest.mark.parametrize("raised", [jax.errors.JaxRuntimeError("INTERNAL"), ValueError("INTERNAL")], ids=type)
def test_an_agent_raises_the_original_error_of_a_callback(raised, monkeypatch):
    agent, gone = Worker(0, "127.0.0.1", {}), ConnectionError("agent 1 is gone")

    def lead(goal):
        raise raised

    monkeypatch.setattr(agent, "_lead", lead)
    agent.acting, agent.communicator = True, types.SimpleNamespace(failure=gone)
    with pytest.raises(ConnectionError) as caught:
        agent.work(Goal(0, 1, 0, 1, 1), None, b"")
    agent.channels.close()
    assert caught.value is gone


def test_the_documentation_sets_the_token_before_starting_a_cluster():
    text = (HERE.parent / "docs" / "silo.md").read_text(encoding="utf-8")
    assert text.index("ray get-auth-token") < text.index("RAY_AUTH_MODE=token") < text.index("ray start --head")


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install 'accord\[silo\]'"):
        workers.require_ray()
    post = accord.models.gaussian([[0.0], [1.0]], [[[1.0]], [[1.0]]])
    with pytest.raises(ImportError, match=r"accord\[silo\]"):
        accord.sample(post, accord.Network.complete(2), accord.samplers.DESGLD(0.1), engine="silo")
