"""Runs rounds in chunks of about equal time, and stops at the first position that is not finite."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..base.errors import DivergenceError
from ..base.terminal import ProgressBar
from ..engines.engine import Engine
from ..samplers.protocol import Monitored
from ..samplers.validation import cheap_bound
from ..schedules import at
from .checkpointing import Journal
from .recorder import Tape

# Seconds of one chunk of rounds: how often progress is shown and Ctrl-C is heard.
_CHUNK_SECONDS = 0.5


def drive(
    machine: Engine,
    carry: Any,
    tape: Tape,
    journal: Journal | None,
    bar: ProgressBar,
    stopped: Callable[[], bool],
) -> None:
    """Run burn-in and draws in chunks of about equal time, recording to the tape."""
    tape.message_bytes = machine.message_bytes(carry)
    _require_finite(machine, carry, carry, 0, tape)
    if journal is not None:
        carry = journal.resume(carry)
        bar.update(tape.rounds, None)
    chunk = _Chunk(machine, stopped)
    while tape.rounds < tape.total_rounds:
        left = tape.total_rounds if journal is None else journal.rounds_left()
        if tape.rounds < tape.burn_in:
            rounds = chunk.size(min(tape.burn_in - tape.rounds, left))
            before, carry = carry, chunk.timed(partial(machine.advance, carry, rounds), rounds)
            _require_finite(machine, before, carry, rounds, tape)
            error = None
        else:
            # a checkpoint is made at the first draw at which it is due
            draws = min(tape.draws - tape.count, -(-left // tape.thin))
            count = min(chunk.size(draws * tape.thin, tape.thin) // tape.thin, machine.capacity)
            rounds, before = count * tape.thin, carry
            carry, records = chunk.timed(partial(machine.record, carry, count, tape.thin), rounds, tape.thin)
            _require_finite(machine, before, carry, rounds, tape, records)
            tape.append(records, count)
            error = float(records.statistics["consensus_error"][-1].mean())
        tape.rounds += rounds
        if journal is not None and (rounds >= left or tape.rounds == tape.total_rounds):
            journal.save(carry)
        bar.update(tape.rounds, error)


class _Chunk:
    """How many rounds to run between two looks at the clock."""

    def __init__(self, machine: Engine, stopped: Callable[[], bool]) -> None:
        self.machine, self.stopped, self.rounds = machine, stopped, 32

    def size(self, left: int, least: int = 1) -> int:
        return min(max(self.rounds, least), left)

    def timed(self, work: Callable[[], Any], rounds: int, grain: int = 1) -> Any:
        import jax

        start = time.perf_counter()
        result = jax.block_until_ready(work())
        # where one process is told to stop, all do so after the same chunk
        elapsed = self.machine.agreed(-1.0 if self.stopped() else time.perf_counter() - start)
        if elapsed < 0:
            raise KeyboardInterrupt
        if elapsed < _CHUNK_SECONDS / 2 and rounds + grain > self.rounds:
            self.rounds *= 2
        elif elapsed > 2 * _CHUNK_SECONDS:
            self.rounds = max(1, self.rounds // 2)
        return result


def _require_finite(machine: Engine, before: Any, after: Any, rounds: int, tape: Tape, records: Any = None) -> None:
    """Stop at the first round of a chunk whose positions are not finite, keeping the draws before it."""
    trouble = machine.trouble(before, after, rounds)
    if trouble is None:
        return
    if rounds == 0:
        raise ValueError("init is too large for the float width of the run: it became infinite")
    agent, bad = trouble
    if records is not None:
        tape.append(records, (bad - 1) // tape.thin)
    last = tape.rounds + bad - 1
    tape.rounds += bad
    sampler = tape.bound.sampler
    why = sampler.explain(tape.bound, agent) if isinstance(sampler, Monitored) else None
    kept = f"; {tape.count} draws before it are in this error's `run`" if tape.count else ""
    what = (
        f"agent {agent} stopped in round {last}: {why}" if why else f"agent {agent} became non-finite in round {last}"
    )
    message = what + ("" if why else _remedy(tape, last)) + kept
    raise DivergenceError(message, agent=agent, round=last, run=tape.run() if tape.count else None)


def _remedy(tape: Tape, last: int) -> str:
    """What to say of a diverged run: the step's bound where one is known."""
    sampler, step = tape.bound.sampler, getattr(tape.bound.sampler, "step_size", None)
    try:
        bound = cheap_bound(tape.post, tape.net, sampler)
    except (ArithmeticError, ValueError):
        # a bound is a help, not worth losing the draws over
        bound = None
    if bound is None or step is None or not np.isfinite(bound):
        return ""
    return (
        f"; {type(sampler).__name__} is stable for step_size below {bound:.6g}, by the curvature at the posterior's "
        f"init, and it was {float(at(step, last)):.6g} in that round"
    )
