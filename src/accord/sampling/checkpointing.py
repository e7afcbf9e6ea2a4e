"""Checkpoints of a run in progress, from which the same call resumes it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from ..engines.arrays import process_folder
from ..engines.checkpoint import CheckpointStore
from ..engines.fingerprint import combined
from ..samplers.engine import Engine
from .recorder import Recorder

_STATISTIC = "statistic "
# Least seconds between two checkpoints, if `every` is None.
_SECONDS = 10.0
# Least time between two checkpoints in units of the writing time, so that short rounds do not wait for the disk.
_TIMES = 20.0
# First rounds of a run, which a resumed run repeats. More than one, as velocities begin at zero.
_FIRST_ROUNDS = 3
# Largest difference of a repeated number, in machine epsilons of its dtype.
_ROUNDINGS = 10.0


class Checkpointer:
    """Writes checkpoints of a run, and resumes it from them.

    A checkpoint is the engine's state and the draws since the checkpoint before it. The two newest states and the draws
    of all checkpoints stay on disk.

    Parameters
    ----------
    engine, recorder
        The run.
    folder
        The checkpoint folder, with one subfolder per process (`process-0`, ...) and the engine's files.
    every
        Rounds between two checkpoints. None: at least ten seconds and twenty times the writing time apart.
    fingerprint
        The fingerprint of the run.
    """

    def __init__(
        self, engine: Engine, recorder: Recorder, folder: Path, every: int | None, fingerprint: dict[str, str]
    ) -> None:
        self.engine, self.recorder, self.folder, self.every = engine, recorder, folder, every
        self.pieces = CheckpointStore(process_folder(folder) / "draws", combined(fingerprint), keep=None)
        self.saved_draws, self.since, self.writing = 0, 0.0, 0.0

    def rounds_left(self) -> int:
        """Rounds until the next checkpoint is due by number of rounds."""
        if self.every is None:
            return self.recorder.total_rounds - self.recorder.rounds
        return self.every - self.recorder.rounds % self.every

    def is_late(self, seconds: float) -> bool:
        """Whether a checkpoint is due by time, after `seconds` more on the clock that all processes share."""
        self.since += seconds
        return self.every is None and self.since >= max(_SECONDS, _TIMES * self.writing)

    def save(self, carry: Any) -> None:
        """Write the carry and the draws since the last checkpoint."""
        began = time.perf_counter()
        self._write(carry)
        # the writing time of the slowest process, the same number in all processes
        self.writing, self.since = -self.engine.agreed(began - time.perf_counter()), 0.0

    def _write(self, carry: Any) -> None:
        recorder, span = self.recorder, slice(self.saved_draws, self.recorder.count)
        piece = {"seconds": np.asarray(recorder.seconds), "first": np.asarray(span.start)}
        if recorder.average is not None and recorder.agent_draws is not None and recorder.count > span.start:
            piece |= {"average": recorder.average[:, span], "agents": recorder.agent_draws[:, span]}
            piece |= {_STATISTIC + name: values[:, span] for name, values in recorder.statistics.items()}
        # draws first: they are of use without a carry, and a carry without its draws is not
        self.pieces.write(recorder.rounds, piece)
        self.engine.save(carry, self.folder)
        self.saved_draws = recorder.count

    def resume(self, carry: Any) -> Any:
        """The carry of the newest complete checkpoint, with the recorder set to that round; else `carry`."""
        rounds = self.engine.saved(self.folder)
        self._require_same_rounds(carry)
        seconds, held = self._read()
        usable = [r for r in rounds if self._draws_at(r) <= held]
        # a process with all draws of a round also has all draws of earlier rounds
        count = int(self.engine.agreed(float(len(usable))))
        if count == 0:
            return carry
        round, recorder = usable[count - 1], self.recorder
        carry = self.engine.load(carry, self.folder, round)
        recorder.rounds, recorder.count = min(round, recorder.total_rounds), min(self._draws_at(round), recorder.draws)
        recorder.began = time.perf_counter() - max((s for r, s in seconds.items() if r <= round), default=0.0)
        self.saved_draws = recorder.count
        return carry

    def _require_same_rounds(self, carry: Any) -> None:
        """Store the average after the first rounds, or repeat these rounds and raise `ValueError` if it differs."""
        store = CheckpointStore(process_folder(self.folder) / "first", self.pieces.tag)
        _, records = self.engine.record(carry, 1, _FIRST_ROUNDS)
        made: np.ndarray = records.average[0]
        if not store.rounds():
            store.write(_FIRST_ROUNDS, {"average": made})
        stored = store.read(_FIRST_ROUNDS)["average"]
        allowed = _ROUNDINGS * np.finfo(stored.dtype).eps * np.abs(stored).max(axis=1, keepdims=True)
        same = bool((np.abs(made - stored) <= allowed).all()) or not np.isfinite(stored).all()
        # all processes raise if one does
        if not self.engine.agreed(float(same)):
            raise ValueError(
                f"cannot resume from {self.folder}: repeating the first {_FIRST_ROUNDS} rounds gives other positions, "
                "so the method has changed since the run began. Name a new checkpoint folder"
            )

    def _draws_at(self, round: int) -> int:
        return max(0, round - self.recorder.burn_in) // self.recorder.thin

    def _read(self) -> tuple[dict[int, float], int]:
        """Read all pieces into the recorder.

        Returns the run's seconds at each piece, by round, and the number of draws without a gap from the first.
        Pieces may overlap if a run was resumed with another `every`. Their draws are the same.
        """
        seconds, spans = {}, []
        for round in self.pieces.rounds():
            piece = self.pieces.read(round)
            seconds[round] = float(piece["seconds"])
            if "average" in piece:
                first, average = int(piece["first"]), piece["average"]
                names = [name for name in piece if name.startswith(_STATISTIC)]
                statistics = {name.removeprefix(_STATISTIC): piece[name] for name in names}
                self.recorder.put(first, average, piece["agents"], statistics)
                spans.append((first, first + average.shape[1]))
        held = 0
        for first, end in sorted(spans):
            if first > held:
                break
            held = max(held, end)
        return seconds, held
