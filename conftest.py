import gc
import importlib.metadata
import importlib.util
import os
import resource
import warnings
from collections import Counter
from pathlib import Path

# XLA compilation dominates the time of the suite, so most programs are hardly optimised, which halves the time. Tests
# marked `busy` run longer than they compile. Their programs use LLVM's optimisation level 2 (level 1 is not faster, and
# LLVM fails there on an instruction of AVX-512). The older fusion emitters compile a third faster, and parallel code
# generation only adds work because tests use both cores. The flags must be set before JAX is imported, also for
# processes that tests start. A level in `XLA_FLAGS` has priority.
if "xla_backend_optimization_level" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    _flags = ["--xla_backend_optimization_level=2", "--xla_cpu_parallel_codegen_split_count=1"]
    # later versions have no such flag, and unknown flags end the process
    if tuple(map(int, importlib.metadata.version("jaxlib").split(".")[:2])) < (0, 11):
        _flags.append("--xla_cpu_use_fusion_emitters=false")
    os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *_flags]).strip()

import jax
import jax.monitoring
import pytest

# Traces make many small long-lived objects, and frequent garbage collection costs a twentieth of the time.
gc.set_threshold(100_000, 50, 100)

# Cache of compiled programs for later runs and for the other worker.
jax.config.update("jax_compilation_cache_dir", str(Path(__file__).parent / ".cache" / "jax"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
jax.config.update("jax_numpy_rank_promotion", "raise")

# The longest tests, with several processes, start first to balance the workers.
_FIRST = ("test_silo.py::test_inside", "test_mesh.py::test_four_devices", "test_processes.py", "test_readme.py")


def pytest_configure(config):
    # ArviZ 1.3 replaces NumPyro by a lazy module, after which NumPyro's import is incomplete (docs/faq.md)
    if importlib.util.find_spec("numpyro"):
        importlib.import_module("numpyro.distributions")
    # ArviZ, which PyMC imports, writes a file at its first import, which fails for two workers at once
    if getattr(config.option, "numprocesses", None) and importlib.util.find_spec("arviz"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module("arviz")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    before = Counter()
    for item in items:
        if mark := item.get_closest_marker("long_from"):
            function = item.nodeid.partition("[")[0]
            if before[function] >= mark.args[0]:
                item.add_marker("long")
            before[function] += 1
    items.sort(key=lambda item: not any(name in item.nodeid for name in _FIRST))


# Programs in a worker's cache above which it is cleared at the end of a module.
_MOST_PROGRAMS = 2000
# Memory above which the cache is cleared within a module.
_MOST_BYTES = 1.5 * 2**30
# The same for memory mappings: Linux allows 65,530, XLA crashes beyond, and a program has ten to hundreds.
_MOST_MAPPINGS = 40_000
# Programs between two checks of memory and mappings.
_OFTEN = 100
_PROCESS = Path("/proc/self")
_programs = []


def _count(event, duration, **_):
    if event == "/jax/core/compile/backend_compile_duration":
        _programs.append(event)


jax.monitoring.register_event_duration_secs_listener(_count)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    # before fixtures of modules, which also compile programs
    hasty = "JAX_DISABLE_MOST_OPTIMIZATIONS" in os.environ
    jax.config.update("jax_disable_most_optimizations", hasty and item.get_closest_marker("busy") is None)
    reports = yield
    # a module's tests share programs
    at_end = nextitem is None or nextitem.path != item.path
    if (at_end and len(_programs) > _MOST_PROGRAMS) or _crowded():
        jax.clear_caches()
        gc.collect()
        _programs.clear()
    return reports


def _crowded():
    if len(_programs) // _OFTEN == _count.seen // _OFTEN or not _PROCESS.exists():
        return False
    _count.seen = len(_programs)
    with (_PROCESS / "maps").open("rb") as lines:
        mappings = sum(1 for _ in lines)
    pages = int((_PROCESS / "statm").read_text().split()[1])
    return mappings > _MOST_MAPPINGS or pages * resource.getpagesize() > _MOST_BYTES


_count.seen = 0
