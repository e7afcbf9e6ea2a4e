"""Checkpoints of a run while it runs, so that the same call takes it up again where it was lost."""

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
# Where no number of rounds is given: seconds between two checkpoints, at least, and in times of what writing one takes,
# so that short rounds do not wait for the disk.
_SECONDS, _TIMES = 10.0, 20.0
# First rounds of a run, which a resumed run makes again: some, as velocities begin at zero.
_FIRST_ROUNDS = 3
# Largest difference of a number that is made again, in roundings of its float width.
_ROUNDINGS = 10.0


class Checkpointer:
    """Checkpoints of a run: the engine's state now and then, the newest two of them, and all draws so far.

    Draws are written in pieces, one file for each checkpoint.

    Parameters
    ----------
    engine, recorder
        The run.
    folder
        Where it is kept: `process-0` and so on, one for each process, and what the engine adds.
    every
        Rounds between two checkpoints; None: about ten seconds, and twenty times what writing one takes.
    fingerprint
        The run's.
    """

    def __init__(
        self, engine: Engine, recorder: Recorder, folder: Path, every: int | None, fingerprint: dict[str, str]
    ) -> None:
        self.engine, self.recorder, self.folder, self.every = engine, recorder, folder, every
        self.pieces = CheckpointStore(process_folder(folder) / "draws", combined(fingerprint), keep=None)
        self.saved_draws, self.since, self.writing = 0, 0.0, 0.0

    def rounds_left(self) -> int:
        """Rounds until the next checkpoint is due, whatever the clock says."""
        if self.every is None:
            return self.recorder.total_rounds - self.recorder.rounds
        return self.every - self.recorder.rounds % self.every

    def is_late(self, seconds: float) -> bool:
        """Whether the clock says that one is due, after so many more seconds by that of all processes."""
        self.since += seconds
        return self.every is None and self.since >= max(_SECONDS, _TIMES * self.writing)

    def save(self, carry: Any) -> None:
        """Write the carry, and the draws since it was last written."""
        began = time.perf_counter()
        self._write(carry)
        # the slowest process', as all processes are told
        self.writing, self.since = -self.engine.agreed(began - time.perf_counter()), 0.0

    def _write(self, carry: Any) -> None:
        recorder, span = self.recorder, slice(self.saved_draws, self.recorder.count)
        piece = {"seconds": np.asarray(recorder.seconds), "first": np.asarray(span.start)}
        if recorder.average is not None and recorder.agent_draws is not None and recorder.count > span.start:
            piece |= {"average": recorder.average[:, span], "agents": recorder.agent_draws[:, span]}
            piece |= {_STATISTIC + name: values[:, span] for name, values in recorder.statistics.items()}
        # a carry whose draws are lost would be of no use, draws without it are
        self.pieces.write(recorder.rounds, piece)
        self.engine.save(carry, self.folder)
        self.saved_draws = recorder.count

    def resume(self, carry: Any) -> Any:
        """The carry of the newest round for which all is whole everywhere, the recorder wound there; else `carry`."""
        rounds = self.engine.saved(self.folder)
        self._require_same_rounds(carry)
        seconds, held = self._read()
        usable = [r for r in rounds if self._draws_at(r) <= held]
        # a round of which all draws are there has those of the rounds before it too
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
        """Store the average after the first rounds, or make these again and raise `ValueError` if it differs."""
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
                f"cannot resume from {self.folder}: the first {_FIRST_ROUNDS} rounds, made again, end elsewhere: "
                "the method has changed since the run began. Name a new checkpoint folder"
            )

    def _draws_at(self, round: int) -> int:
        return max(0, round - self.recorder.burn_in) // self.recorder.thin

    def _read(self) -> tuple[dict[int, float], int]:
        """Give all pieces to the recorder.

        Returns the seconds until each, by round, and how many draws from the first on are there.

        Pieces may overlap where a run was taken up with another `every`; their draws are the same.
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
