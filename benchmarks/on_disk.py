"""A total over rows that memory does not hold: seconds, and the memory that it took.

python benchmarks/on_disk.py 10 FOLDER           10 GB of logistic regression of 50 columns, ten agents, in FOLDER
"""

from __future__ import annotations

import argparse
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import jax
import numpy as np

import accord
from accord.base.memory import memory_bytes
from accord.fitting.evaluations import slope_of
from accord.posterior import streamed

AGENTS, DIM = 10, 50
# Rows that are drawn; the files repeat them.
DRAWN = 100_000
POINTS = 16


def written(folder: Path, gigabytes: float) -> list[tuple[np.ndarray, np.ndarray]]:
    """Shards on disk, as maps of files."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((DRAWN, DIM), np.float32)
    y = (rng.random(DRAWN) < 1.0 / (1.0 + np.exp(-X @ rng.standard_normal(DIM) / DIM**0.5))).astype(np.float32)
    times = max(1, round(gigabytes * 1e9 / AGENTS / X.nbytes))
    shards = []
    for agent in range(AGENTS):
        own = []
        for name, part in (("X", X), ("y", y)):
            path = folder / f"{name}{agent}.npy"
            shape = (times * DRAWN, *part.shape[1:])
            file = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape)
            for k in range(times):
                file[k * DRAWN : (k + 1) * DRAWN] = part
            file.flush()
            del file
            own.append(np.load(path, mmap_mode="r"))
        shards.append(tuple(own))
    return shards


def own_memory() -> int:
    """Bytes that this process has for itself: pages of files that it maps are the system's, which takes them back."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("gigabytes", type=float)
    parser.add_argument("folder", type=Path, nargs="?")
    given = parser.parse_args()
    with TemporaryDirectory(dir=given.folder) as folder:
        shards = written(Path(folder), given.gigabytes)
        total = sum(part.nbytes for shard in shards for part in shard)
        print(f"{total / 1e9:.1f} GB of rows, {memory_bytes() / 1e9:.1f} GB of memory", flush=True)
        began = time.perf_counter()
        post = accord.models.logistic_regression(shards, prior_variance=1.0)
        print(f"read and checked in {time.perf_counter() - began:.1f} s", flush=True)
        most, ended = [own_memory()], threading.Event()

        def watch() -> None:
            while not ended.wait(0.05):
                most.append(own_memory())

        watcher = threading.Thread(target=watch)
        watcher.start()
        with jax.enable_x64(True):
            # in chunks however little it is
            made = streamed.TotalsInChunks(post.potential, dict(enumerate(post.shards)))
            for count in (1, POINTS):
                points = 0.1 * np.random.default_rng(1).standard_normal((count, DIM))
                began = time.perf_counter()
                made(slope_of, points=points)
                seconds = time.perf_counter() - began
                print(f"value and gradient at {count} points: {seconds:.1f} s, {total / seconds / 1e9:.2f} GB/s")
        ended.set()
        watcher.join()
        print(f"{most[0] / 1e6:.0f} MB before, at most {max(most) / 1e6:.0f} MB then, in {made.chunks} chunks")


if __name__ == "__main__":
    main()
