"""An agent as a Ray actor. Importing this module needs Ray."""

from __future__ import annotations

from typing import Any

import ray

from .worker import Status, Worker


class WorkerProcess(Worker):
    """An agent that listens at its machine's address in the cluster. Parameters as in `Worker`."""

    def __init__(self, index: int, settings: dict[str, Any]) -> None:
        super().__init__(index, ray.util.get_node_ip_address(), settings)

    @ray.method(concurrency_group="look")
    def status(self) -> Status:
        """The agent's activity, computed in a separate thread while it works."""
        return super().status()
