"""Runs rounds in chunks of about equal time, and stops at the first position that is not finite."""

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

# Seconds of one chunk of rounds: how often progress is shown and Ctrl-C is heard.
_CHUNK_SECONDS = 0.5


def drive(
    engine: Engine,
    carry: Any,
    recorder: Recorder,
    checkpointer: Checkpointer | None,
    line: Progress,
    stopped: Callable[[], bool],
) -> None:
    """Run burn-in and draws in chunks of about equal time, recording draws.

    Raises
    ------
    KeyboardInterrupt
        It was stopped; the recorder has all draws until then, and the checkpointer its state.
    """
    recorder.message_bytes = engine.message_bytes(carry)
    _require_finite(engine, carry, carry, 0, recorder)
    if checkpointer is not None:
        carry = checkpointer.resume(carry)
    chunk, line_of_rounds = _Chunk(engine, stopped), _ProgressLine(line, recorder)
    while recorder.rounds < recorder.total_rounds:
        left = recorder.total_rounds if checkpointer is None else checkpointer.rounds_left()
        if recorder.rounds < recorder.burn_in:
            rounds = chunk.size(min(recorder.burn_in - recorder.rounds, left))
            before, carry = carry, chunk.timed(partial(engine.advance, carry, rounds), rounds)
            _require_finite(engine, before, carry, rounds, recorder)
            error = None
        else:
            # a checkpoint is made at the first draw at which it is due
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
        line_of_rounds.after(rounds, error)
        if chunk.is_stopped and recorder.rounds < recorder.total_rounds:
            raise KeyboardInterrupt


class _ProgressLine:
    """What is said of the rounds: how many a second, and how far the agents are apart, which burn-in does not tell."""

    def __init__(self, line: Progress, recorder: Recorder) -> None:
        self.line, self.recorder, self.rounds = line, recorder, 0
        self.began = time.monotonic()

    def after(self, rounds: int, error: float | None) -> None:
        """Some more rounds are done."""
        if self.rounds == 0:
            # what comes before took the time of compiling
            self.line.say("rounds")
            self.began = time.monotonic()
        self.rounds += rounds
        seconds = time.monotonic() - self.began
        speed = f"{self.rounds / seconds:,.0f} rounds/s" if self.rounds > rounds and seconds > 0 else ""
        apart = "" if error is None else f"consensus error {error:.3g}"
        text = ", ".join(filter(None, (speed, apart)))
        self.line.advance(self.recorder.rounds, self.recorder.total_rounds, text)


class _Chunk:
    """How many rounds to run between two looks at the clock."""

    def __init__(self, engine: Engine, stopped: Callable[[], bool]) -> None:
        self.engine, self.stopped, self.rounds = engine, stopped, 32
        self.is_stopped, self.seconds = False, 0.0

    def size(self, left: int, least: int = 1) -> int:
        return min(max(self.rounds, least), left)

    def timed(self, work: Callable[[], Any], rounds: int, grain: int = 1) -> Any:
        import jax

        start = time.perf_counter()
        result = jax.block_until_ready(work())
        # where one process is told to stop, all do so after the same chunk
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
    """Stop at the first round of a chunk whose positions are not finite, keeping the draws before it."""
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
    """What to say of a diverged run: who chose its step, and the step's bound where one is known."""
    return _bound_of_step(recorder, last) + _other_methods(recorder)


def _other_methods(recorder: Recorder) -> str:
    """What to take where nobody gave the numbers of a diverged run."""
    if not recorder.chosen:
        return ""
    return (
        ". Its numbers were chosen here, for the Gaussian nearest to the posterior and the stiffest draw that was "
        "seen: Importance(), ChEES() or Replicated(), which correct for steps that are too long, do not diverge"
    )


def _bound_of_step(recorder: Recorder, last: int) -> str:
    sampler, step = recorder.bound.sampler, getattr(recorder.bound.sampler, "step_size", None)
    try:
        bound = cheap_bound(recorder.post, recorder.network, sampler)
    except (ArithmeticError, ValueError):
        # a bound is a help, not worth losing the draws over
        bound = None
    if bound is None or step is None or not np.isfinite(bound):
        return ""
    if recorder.network.unreliable is not None:
        return (
            f"; with {recorder.network.unreliable} {type(sampler).__name__} takes a smaller step than on links that "
            "deliver, or more mix_rounds: accord.law(post.laplace(), network, method).stationary() tells"
        )
    taken = float(at(step, last))
    # a bound that was kept is not what to mend
    apart = (" or agents came apart", " or more mix_rounds") if hasattr(sampler, "mix_rounds") else ("", "")
    beyond = (
        f". The curvature is larger where it went{apart[0]}: take a smaller step{apart[1]}" if taken < bound else ""
    )
    return (
        f"; {type(sampler).__name__} is stable for step_size below {bound:.6g}, by the curvature at the posterior's "
        f"init, and it was {taken:.6g} in that round{beyond}"
    )
