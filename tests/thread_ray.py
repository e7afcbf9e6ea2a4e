"""The parts of Ray for a pool of agents, with each agent as a thread that can hang and be ended."""

import copy
import threading
import types
from concurrent.futures import FIRST_COMPLETED, Future, wait

from accord import Posterior
from accord.engines.silo import workers
from accord.engines.silo.worker import Worker


class RayError(Exception):
    pass


class RayActorError(RayError):
    pass


class GetTimeoutError(RayError):
    pass


class FailedError(RayError):
    def __init__(self, cause):
        super().__init__(str(cause))
        self.cause = cause


class Method:
    def __init__(self, call):
        self.remote = call


class Actor:
    """An agent with sequential calls in threads, concurrent `status`, and a restart after its end."""

    def __init__(self, index, settings):
        self.index, self.settings, self.lock = index, settings, threading.RLock()
        self.call_if_current, self.status = Method(self._call), Method(self._status)
        self._begin()

    def _begin(self):
        self.worker, self.pending, self.last = Worker(self.index, "127.0.0.1", self.settings), [], None

    def _call(self, *arguments):
        found, worker, before = Future(), self.worker, self.last
        # a process receives a posterior that has read no data
        arguments = tuple(copy.copy(one) if isinstance(one, Posterior) else one for one in arguments)

        def run():
            if before is not None:
                before.join()
            try:
                value, error = worker.call_if_current(*arguments), None
            except Exception as failure:
                value, error = None, FailedError(failure)
            with self.lock:
                if found.done():
                    return
                found.set_exception(error) if error else found.set_result(value)

        self.last = threading.Thread(target=run, daemon=True)
        self.pending.append(found)
        self.last.start()
        return found

    def _status(self):
        found = Future()
        found.set_result(self.worker.status())
        return found

    def end(self, restarts):
        with self.lock:
            for found in self.pending:
                if not found.done():
                    found.set_exception(RayActorError("the actor died"))
            self.worker.channels.close()
            if restarts:
                self._begin()


class ThreadRay(types.ModuleType):
    """The module `ray`."""

    exceptions = types.SimpleNamespace(
        RayError=RayError,
        RayActorError=RayActorError,
        ObjectLostError=type("ObjectLostError", (RayError,), {}),
        NodeDiedError=type("NodeDiedError", (RayError,), {}),
        GetTimeoutError=GetTimeoutError,
    )

    def __init__(self):
        super().__init__("ray")
        self.actors, self.running, self.ended = [], False, []

    def is_initialized(self):
        return self.running

    def init(self, **options):
        self.running = True

    def shutdown(self):
        self.running = False

    def remote(self, **options):
        def begin(*arguments):
            self.actors.append(Actor(*arguments))
            return self.actors[-1]

        made = types.SimpleNamespace(remote=begin)
        return lambda actor: types.SimpleNamespace(options=lambda **options: made)

    def wait(self, futures, num_returns=1, timeout=None):
        done, _ = wait(futures, timeout, FIRST_COMPLETED)
        return [one for one in futures if one in done], [one for one in futures if one not in done]

    def get(self, future, timeout=None):
        if not future.done():
            raise GetTimeoutError
        return future.result()

    def kill(self, actor, no_restart=True):
        self.ended.append(actor.index)
        actor.end(not no_restart)


def install(monkeypatch):
    """Replace Ray by threads and return the module."""
    ray = ThreadRay()
    monkeypatch.setitem(__import__("sys").modules, "ray", ray)
    monkeypatch.setitem(
        __import__("sys").modules, "accord.engines.silo.actor", types.SimpleNamespace(WorkerProcess=object)
    )
    monkeypatch.setattr(workers, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(workers, "_SETTLE_SECONDS", 0.1)
    return ray
