"""Ray as a shared resource of process pools, started by the first and shut down by the last."""

from __future__ import annotations

import os
import threading
import warnings
from typing import Any


def require_ray() -> Any:
    """The module `ray`.

    Raises
    ------
    ImportError
        Ray is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise ImportError("engine=\"silo\" needs Ray: pip install 'accord[silo]'") from error
    return ray


# Number of pools, also in other threads, that use a Ray started by accord.
_sharing = 0
_lock = threading.Lock()


def share_ray(ray: Any, address: str | None) -> bool:
    """Start Ray or join it. Returns whether accord started it, for this pool or another one."""
    global _sharing
    with _lock:
        if not ray.is_initialized():
            _begin_ray(ray, address)
        elif _sharing == 0:
            # started by the user, who also shuts it down
            return False
        _sharing += 1
        return True


def leave_ray(ray: Any) -> None:
    """Shut down Ray if this was the last pool."""
    global _sharing
    with _lock:
        _sharing -= 1
        if _sharing == 0:
            ray.shutdown()


def _begin_ray(ray: Any, address: str | None) -> None:
    address = address or os.environ.get("RAY_ADDRESS")
    # no usage statistics by default, because the data is private
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address is not None:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        return
    with warnings.catch_warnings():
        # Ray calls exec after fork, which is safe with JAX's threads
        warnings.filterwarnings("ignore", message=".*os.fork.*", category=RuntimeWarning)
        # without "local" Ray joins a cluster of another program on this machine
        ray.init(
            address="local",
            include_dashboard=False,
            _node_ip_address="127.0.0.1",
            log_to_driver=False,
            logging_level="ERROR",
        )
