"""Environments of test processes, with numbers of devices and network namespaces."""

import os
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).parent


def environment(devices):
    """Environment of a process with `devices` devices, double precision and the suite's compilation cache."""
    return {
        **os.environ,
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}".strip(),
        "JAX_ENABLE_X64": "1",
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(HERE.parent / ".cache" / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


def alone():
    """A command prefix for a network namespace with loopback only, or None without permission."""
    if shutil.which("unshare") is None or shutil.which("nsenter") is None:
        return None
    prefix = ["unshare", "-n", "sh", "-c", 'ip link set lo up; exec "$@"', "_"]
    return prefix if subprocess.run([*prefix, "true"], capture_output=True).returncode == 0 else None
