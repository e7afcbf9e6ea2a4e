"""A run on disk while it runs, so that the same call takes it up again where it was lost."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from ..engines.arrays import process_folder
from ..engines.engine import Engine
from ..storage.checkpoint import Shelf
from ..storage.fingerprint import combined
from .recorder import Tape

_STATISTIC = "statistic "


class Journal:
    """The engine's carry every so many rounds, the newest two, and all draws, in pieces that end at these rounds.

    Parameters
    ----------
    machine, tape
        The run.
    folder
        Where it is kept: `process-0` and so on, one for each process, and what the engine adds.
    every
        Rounds between two checkpoints.
    fingerprint
        The run's.
    """

    def __init__(self, machine: Engine, tape: Tape, folder: Path, every: int, fingerprint: dict[str, str]) -> None:
        self.machine, self.tape, self.folder, self.every = machine, tape, folder, every
        self.pieces = Shelf(process_folder(folder) / "draws", combined(fingerprint), keep=None)
        self.saved_draws = 0

    def rounds_left(self) -> int:
        """Rounds until the next checkpoint is due."""
        return self.every - self.tape.rounds % self.every

    def save(self, carry: Any) -> None:
        """Write the carry, and the draws since it was last written."""
        tape, span = self.tape, slice(self.saved_draws, self.tape.count)
        piece = {"seconds": np.asarray(tape.seconds), "first": np.asarray(span.start)}
        if tape.average is not None and tape.agents is not None and tape.count > span.start:
            piece |= {"average": tape.average[:, span], "agents": tape.agents[:, span]}
            piece |= {_STATISTIC + name: values[:, span] for name, values in tape.statistics.items()}
        # a carry whose draws are lost would be of no use, draws without it are
        self.pieces.write(tape.rounds, piece)
        self.machine.save(carry, self.folder)
        self.saved_draws = tape.count

    def resume(self, carry: Any) -> Any:
        """The carry of the newest round for which all is whole everywhere, the tape wound there; else `carry`."""
        rounds = self.machine.saved(self.folder)
        seconds, held = self._read()
        usable = [r for r in rounds if self._draws_at(r) <= held]
        # a round of which all draws are there has those of the rounds before it too
        count = int(self.machine.agreed(float(len(usable))))
        if count == 0:
            return carry
        round, tape = usable[count - 1], self.tape
        carry = self.machine.load(carry, self.folder, round)
        tape.rounds, tape.count = min(round, tape.total_rounds), min(self._draws_at(round), tape.draws)
        tape.began = time.perf_counter() - max((s for r, s in seconds.items() if r <= round), default=0.0)
        self.saved_draws = tape.count
        return carry

    def _draws_at(self, round: int) -> int:
        return max(0, round - self.tape.burn_in) // self.tape.thin

    def _read(self) -> tuple[dict[int, float], int]:
        """Put all pieces on the tape: the seconds until each, by round, and how many draws from the first on are there.

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
                self.tape.put(first, average, piece["agents"], statistics)
                spans.append((first, first + average.shape[1]))
        held = 0
        for first, end in sorted(spans):
            if first > held:
                break
            held = max(held, end)
        return seconds, held
