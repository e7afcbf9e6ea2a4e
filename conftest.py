import gc
import importlib.metadata
import importlib.util
import os
import resource
import warnings
from collections import Counter
from pathlib import Path

# Most of the suite's time is XLA compiling programs that run for a moment, so they are hardly optimised, which halves
# it. Tests that run for longer than they compile are marked `busy`; their programs are made with LLVM's second level
# (the first takes no less, and there LLVM fails to select an instruction of AVX-512). The older emitters of fused loops
# take a third less, and both cores are taken by tests, so that splitting a program between threads only adds work. Said
# before JAX is imported, here and in the processes that tests start; a level in `XLA_FLAGS` stays.
if "xla_backend_optimization_level" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    _flags = ["--xla_backend_optimization_level=2", "--xla_cpu_parallel_codegen_split_count=1"]
    # later ones have no others, and end where they are given a flag that they do not know
    if tuple(map(int, importlib.metadata.version("jaxlib").split(".")[:2])) < (0, 11):
        _flags.append("--xla_cpu_use_fusion_emitters=false")
    os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *_flags]).strip()

import jax
import jax.monitoring
import pytest

# Traces make many small objects that live long: looking through all of them again and again takes a twentieth of the
# time.
gc.set_threshold(100_000, 50, 100)

# The same programs come again: a later run, or the other worker, reads them.
jax.config.update("jax_compilation_cache_dir", str(Path(__file__).parent / ".cache" / "jax"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
jax.config.update("jax_numpy_rank_promotion", "raise")

# Tests of several processes take longest, a minute or more: begun first, they do not keep one worker at the end.
_FIRST = ("test_silo.py::test_inside", "test_mesh.py::test_four_devices", "test_processes.py", "test_readme.py")


def pytest_configure(config):
    # ArviZ 1.3 puts a lazy module in NumPyro's place, and imported after it NumPyro lacks a part (docs/faq.md)
    if importlib.util.find_spec("numpyro"):
        importlib.import_module("numpyro.distributions")
    # ArviZ, which PyMC imports, writes down the day of its first import, and two workers that do so at once fail
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


# Programs that a worker keeps before it lets go of all of them, at the end of a module; in its midst where they take so
# much memory, or so many mappings of it, of which Linux gives a process 65,530: XLA crashes for want of one. A program
# takes ten, a large one hundreds; they are counted after so many programs.
_MOST_PROGRAMS = 2000
_MOST_BYTES = 1.5 * 2**30
_MOST_MAPPINGS = 40_000
_OFTEN = 100
_PROCESS = Path("/proc/self")
_programs = []


def _count(event, duration, **_):
    if event == "/jax/core/compile/backend_compile_duration":
        _programs.append(event)


jax.monitoring.register_event_duration_secs_listener(_count)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    # before the fixtures of modules, which run as long
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
