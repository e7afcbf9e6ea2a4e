"""Runs of hours: checkpoints, progress, and their cost."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax

from accord import Network, Posterior, Run, Sampler

from .frame import Claim, Size, whole_run
from .verdicts import Verdict

# Minutes up to which an experiment has no checkpoints.
_SHORT = 10.0
# Checkpoints and progress reports of a long run.
_PARTS = 20


class LongRuns:
    """The runs of one experiment.

    Runs of a long experiment have checkpoints until `done`, in a folder beside the experiment's folder. The same
    command resumes them.

    Parameters
    ----------
    name, size, seed, folder
        Arguments of the experiment's `run`.
    """

    def __init__(self, name: str, size: Size, seed: int, folder: Path) -> None:
        which = hashlib.sha256(json.dumps([dict(size.numbers), seed]).encode()).hexdigest()[:8]
        self._folder = folder.parents[1] / f".{name}-{which}" if size.minutes > _SHORT else None

    def run(
        self,
        name: str,
        post: Posterior,
        network: Network,
        method: Sampler,
        *,
        draws: int,
        progress: Callable[[float], None],
        **options: Any,
    ) -> Run:
        """`frame.whole_run` with checkpoints. `progress` is a callback with the finished share."""
        if self._folder is None:
            return whole_run(post, network, method, draws=draws, **options)
        kept = {"checkpoint": self._folder / name, "checkpoint_every": options.get("thin", 1) * -(-draws // _PARTS)}
        for part in range(1, _PARTS + 1):
            run = whole_run(post, network, method, draws=-(-draws * part // _PARTS), **kept, **options)
            progress(part / _PARTS)
        return run

    def done(self) -> None:
        """Delete the checkpoints."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def cost(runs: Iterable[Run]) -> Claim:
    """A remark with the time and memory of runs."""
    pairs = [(run.seconds, run.traffic.rounds) for run in runs]
    seconds, rounds = sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs)
    device = jax.devices()[0]
    memory = (device.memory_stats() or {}).get("peak_bytes_in_use")
    used = f", {memory / 1e9:.2g} GB at most on the device" if memory else ""
    took = 1000.0 * seconds / rounds
    return Claim(
        "this run",
        f"{took:.3g} ms a round on {device.device_kind}{used}",
        Verdict.of(True),
        f"{rounds:,} rounds of all agents in {seconds:.3g} s, compilation included",
        ours=took,
        kind="remark",
    )
