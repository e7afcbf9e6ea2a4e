"""Ray as pools of processes share it: begun once, and ended by the last of them."""

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
        It is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise ImportError("engine=\"silo\" needs Ray: pip install 'accord[silo]'") from error
    return ray


# The crews that use a Ray which was begun here: runs in several threads share it, and the last one ends it.
_sharing = 0
_lock = threading.Lock()


def share_ray(ray: Any, address: str | None) -> bool:
    """Begin Ray, or join it; whether it was begun here, for this pool or for others."""
    global _sharing
    with _lock:
        if not ray.is_initialized():
            _begin_ray(ray, address)
        elif _sharing == 0:
            # the user's own, who also ends it
            return False
        _sharing += 1
        return True


def leave_ray(ray: Any) -> None:
    """End Ray, if no other pool uses what was begun here."""
    global _sharing
    with _lock:
        _sharing -= 1
        if _sharing == 0:
            ray.shutdown()


def _begin_ray(ray: Any, address: str | None) -> None:
    address = address or os.environ.get("RAY_ADDRESS")
    # what runs on private data does not call home unless told to
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address is not None:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        return
    with warnings.catch_warnings():
        # Ray starts programs by fork and exec, which JAX's threads do not disturb
        warnings.filterwarnings("ignore", message=".*os.fork.*", category=RuntimeWarning)
        # without an address it would join what another program on this machine has begun
        ray.init(
            address="local",
            include_dashboard=False,
            _node_ip_address="127.0.0.1",
            log_to_driver=False,
            logging_level="ERROR",
        )
