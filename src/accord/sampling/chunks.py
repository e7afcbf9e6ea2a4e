"""Run rounds in chunks of about equal time, up to the first non-finite position."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..base.errors import DivergenceError
from ..base.progress import Progress
from ..samplers.engine import Engine
from ..samplers.protocol import Monitored
from ..samplers.schedules import at
from ..samplers.validation import cheap_bound
from .checkpointing import Checkpointer
from .recorder import Recorder

# Seconds per chunk of rounds, between two checks for Ctrl-C and two updates of progress.
_CHUNK_SECONDS = 0.5


def drive(
    engine: Engine,
    carry: Any,
    recorder: Recorder,
    checkpointer: Checkpointer | None,
    line: Progress,
    stopped: Callable[[], bool],
) -> None:
    """Run burn-in and draws in chunks of about equal time, and record the draws.

    Raises
    ------
    KeyboardInterrupt
        `stopped()` is true. The recorder has all draws so far, and the checkpointer has written the state.
    DivergenceError
        A position became non-finite.
    """
    recorder.message_bytes = engine.message_bytes(carry)
    _require_finite(engine, carry, carry, 0, recorder)
    if checkpointer is not None:
        carry = checkpointer.resume(carry)
    chunk, shown = _Chunk(engine, stopped), _ProgressLine(line, recorder)
    while recorder.rounds < recorder.total_rounds:
        left = recorder.total_rounds if checkpointer is None else checkpointer.rounds_left()
        if recorder.rounds < recorder.burn_in:
            rounds = chunk.size(min(recorder.burn_in - recorder.rounds, left))
            before, carry = carry, chunk.timed(partial(engine.advance, carry, rounds), rounds)
            _require_finite(engine, before, carry, rounds, recorder)
            error = None
        else:
            # the chunk ends at the first draw at which a checkpoint is due
            draws = min(recorder.draws - recorder.count, -(-left // recorder.thin))
            count = min(chunk.size(draws * recorder.thin, recorder.thin) // recorder.thin, engine.capacity)
            rounds, before = count * recorder.thin, carry
            carry, records = chunk.timed(partial(engine.record, carry, count, recorder.thin), rounds, recorder.thin)
            _require_finite(engine, before, carry, rounds, recorder, records)
            recorder.append(records, count)
            error = float(records.statistics["consensus_error"][-1].mean())
        recorder.rounds += rounds
        ends = chunk.is_stopped or recorder.rounds == recorder.total_rounds
        if checkpointer is not None and (rounds >= left or ends or checkpointer.is_late(chunk.seconds)):
            checkpointer.save(carry)
        shown.after(rounds, error)
        if chunk.is_stopped and recorder.rounds < recorder.total_rounds:
            raise KeyboardInterrupt


class _ProgressLine:
    """Progress of the rounds: rounds per second and, after burn-in, the consensus error."""

    def __init__(self, line: Progress, recorder: Recorder) -> None:
        self.line, self.recorder, self.rounds = line, recorder, 0
        self.began = time.monotonic()

    def after(self, rounds: int, error: float | None) -> None:
        """Update the line after `rounds` more rounds."""
        if self.rounds == 0:
            # the time of the first chunk includes compiling
            self.line.begin("rounds")
            self.began = time.monotonic()
        self.rounds += rounds
        seconds = time.monotonic() - self.began
        speed = f"{self.rounds / seconds:,.0f} rounds/s" if self.rounds > rounds and seconds > 0 else ""
        consensus = "" if error is None else f"consensus error {error:.3g}"
        text = ", ".join(filter(None, (speed, consensus)))
        self.line.advance(self.recorder.rounds, self.recorder.total_rounds, text)


class _Chunk:
    """The number of rounds of a chunk, adapted to its running time."""

    def __init__(self, engine: Engine, stopped: Callable[[], bool]) -> None:
        self.engine, self.stopped, self.rounds = engine, stopped, 32
        self.is_stopped, self.seconds = False, 0.0

    def size(self, left: int, least: int = 1) -> int:
        return min(max(self.rounds, least), left)

    def timed(self, work: Callable[[], Any], rounds: int, grain: int = 1) -> Any:
        import jax

        start = time.perf_counter()
        result = jax.block_until_ready(work())
        # a stop in one process stops all processes after the same chunk
        elapsed = self.engine.agreed(-1.0 if self.stopped() else time.perf_counter() - start)
        self.seconds = max(elapsed, 0.0)
        if elapsed < 0:
            self.is_stopped = True
        elif elapsed < _CHUNK_SECONDS / 2 and rounds + grain > self.rounds:
            self.rounds *= 2
        elif elapsed > 2 * _CHUNK_SECONDS:
            self.rounds = max(1, self.rounds // 2)
        return result


def _require_finite(
    engine: Engine, before: Any, after: Any, rounds: int, recorder: Recorder, records: Any = None
) -> None:
    """Raise `DivergenceError` at the first round of a chunk with non-finite positions, with the draws before it."""
    found = engine.first_non_finite(before, after, rounds)
    if found is None:
        return
    if rounds == 0:
        raise ValueError("init is too large for the float width of the run: it became infinite")
    agent, bad = found
    if records is not None:
        recorder.append(records, (bad - 1) // recorder.thin)
    last = recorder.rounds + bad - 1
    recorder.rounds += bad
    sampler = recorder.bound.sampler
    why = sampler.explain(recorder.bound, agent) if isinstance(sampler, Monitored) else None
    kept = f"; {recorder.count} draws before it are in this error's `run`" if recorder.count else ""
    what = (
        f"agent {agent} stopped in round {last}: {why}" if why else f"agent {agent} became non-finite in round {last}"
    )
    message = what + ("" if why else _remedy(recorder, last)) + kept
    raise DivergenceError(message, agent=agent, round=last, run=recorder.run() if recorder.count else None)


def _remedy(recorder: Recorder, last: int) -> str:
    """The remedy for a diverged run: the bound of the step if it is known, and other methods if accord chose it."""
    return _bound_of_step(recorder, last) + _other_methods(recorder)


def _other_methods(recorder: Recorder) -> str:
    if not recorder.chosen:
        return ""
    return (
        ". accord chose the step from a Gaussian approximation and the stiffest draw of warm-up. Use Importance(), "
        "ChEES() or Replicated(), which correct for steps that are too long and do not diverge"
    )


def _bound_of_step(recorder: Recorder, last: int) -> str:
    sampler, step = recorder.bound.sampler, getattr(recorder.bound.sampler, "step_size", None)
    try:
        bound = cheap_bound(recorder.post, recorder.network, sampler)
    except (ArithmeticError, ValueError):
        # an error here would hide the divergence and its draws
        bound = None
    if bound is None or step is None or not np.isfinite(bound):
        return ""
    if recorder.network.unreliable is not None:
        return (
            f"; with {recorder.network.unreliable} {type(sampler).__name__} needs a smaller step or more mix_rounds "
            "than on reliable links. To check a step, use accord.law(post.laplace(), network, method).stationary()"
        )
    taken = float(at(step, last))
    apart = (" or the agents drifted apart", " or more mix_rounds") if hasattr(sampler, "mix_rounds") else ("", "")
    beyond = f". The curvature is larger elsewhere{apart[0]}: use a smaller step{apart[1]}" if taken < bound else ""
    return (
        f"; {type(sampler).__name__} is stable for step_size below {bound:.6g}, by the curvature at the posterior's "
        f"init, and it was {taken:.6g} in that round{beyond}"
    )
