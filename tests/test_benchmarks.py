"""What the benchmarks make of what they measure."""

from functools import partial
from types import SimpleNamespace

import answers
import bench
import jax.numpy as jnp
import measured
import numpy as np
import pytest
import rounds
from measured import Line, Ratio, Skipped, at_least, at_most, compared, enough, fastest, side_by_side
from rich.console import Console

import accord
from accord.base.pytree import pytree
from accord.samplers.de_sgld import DESGLDState


@pytree
class Slowed(accord.samplers.DESGLD):
    """DE-SGLD with the same draws, whose agents do needless work in every round."""

    def update(self, agent, state, inbox, noise):
        found = super().update(agent, state, inbox, noise).position
        needless = found
        for _ in range(100):
            needless = jnp.sin(needless + noise.normal)
        return DESGLDState(found + 1e-30 * needless)


@pytest.mark.slow
@pytest.mark.busy
def test_a_slower_round_is_noticed():
    shape, usual = rounds.WATCHED[0]
    assert rounds.not_worse(shape._replace(sampler=Slowed(rounds.STEP)), usual).verdict == "not met"


def test_one_good_measurement_is_enough_and_none_is_not(monkeypatch):
    ratios = iter([3.0, 1.49, 1.51, 1.6, 2.0, 9.0, 1.52])
    monkeypatch.setattr(rounds, "measured", lambda *_, **__: iter([Line("a", "b", Ratio.of([next(ratios)]))]))
    good, bad = (rounds.not_worse(rounds.WATCHED[0][0], 1.0) for _ in range(2))
    assert (good.verdict, good.ratio.median) == ("met", 1.49)
    assert (bad.verdict, bad.ratio.median) == ("not met", 1.52) and next(ratios, None) is None


@pytest.fixture
def waits(monkeypatch):
    """Work that takes so many seconds a round, by a clock that nothing else moves."""
    now = 0.0

    def work(seconds, rounds):
        nonlocal now
        now += seconds * rounds

    monkeypatch.setattr(measured, "time", SimpleNamespace(perf_counter=lambda: now, sleep=lambda seconds: None))
    return lambda seconds: partial(work, seconds)


def test_ratios_are_of_the_time_of_a_round_whatever_their_numbers(waits):
    found, own, other = compared(waits(4.0), waits(0.25), repeats=5, seconds=7.0)
    assert (found.median, found.low, found.high, own, other) == (16.0, 16.0, 16.0, 4.0, 0.25)


def test_rounds_are_enough_and_the_fastest_way_is_taken(waits):
    assert enough(waits(1.0), 8.0) == 8 and enough(waits(1.0), 9.0) == 16 and enough(waits(9.0), 8.0) == 1
    ways = [waits(2.0), waits(0.5), waits(4.0)]
    assert fastest(ways, repeats=2, seconds=4.0) is ways[1]


def test_compiling_for_a_number_of_rounds_is_none_of_their_time(waits):
    walk, compiling, known = waits(1.0), waits(100.0), set()

    def compiled(rounds):
        if rounds not in known:
            known.add(rounds)
            compiling(1)
        walk(rounds)

    found, own, other = compared(walk, compiled, repeats=3, seconds=8.0)
    assert (found.median, own, other) == (1.0, 1.0, 1.0) and max(known) == 8


def test_sides_take_turns_in_either_order():
    order = []
    found = side_by_side({name: partial(order.append, name) for name in "ab"}, 3)
    assert "".join(order) == "ab" + "ba" + "ab" + "ba"
    assert all(seconds.shape == (3,) for seconds in found.values())


def test_goals_are_kept_from_their_side():
    ratio = Ratio.of([1.0, 2.0, 3.0])
    assert (ratio.median, ratio.low, ratio.high) == (2.0, 1.5, 2.5)
    assert [goal.met(ratio) for goal in (at_most(2.0), at_most(1.9), at_least(2.0), at_least(2.1))] == [1, 0, 1, 0]
    assert Line("a", "b", ratio).verdict == "-"


def test_the_page_says_what_is_not_met_and_what_is_left_out(capsys):
    found = [
        Line("one", "ring", Ratio.of([1.0, 1.1, 1.2]), at_most(1.15), "1 us / 2 us"),
        Skipped("three", "no such package"),
        Line("two", "star", Ratio.of([2.0]), at_most(1.15)),
        Line("four", "path", Ratio.of(np.ones(3))),
    ]
    section = bench.run("Title", "About.", iter(found), Console(width=200))
    printed = capsys.readouterr().out
    assert "one" in printed and "not met" in printed and "left out: three: no such package" in printed
    earlier = bench.Before("the source of long ago", {("one", "ring"): "3: 5 us / 2 us", ("two", "ring"): "9: 1 us"})
    text = bench.page([section], "Benchmarks", "make bench", earlier)
    assert "1 of 2" in text and "make bench" in text and f"jax {bench.version('jax')}" in text
    assert "| one | ring | 1.1 | 1.05 to 1.15 | at most 1.15 | met | 1 us / 2 us | 3: 5 us / 2 us |" in text
    assert "| two | star | 2 | - | at most 1.15 | **not met** |  | - |" in text
    assert "| four | path | 1 | - | - | - |  | - |" in text
    assert "Left out: three: no such package" in text and "note of the source of long ago." in text


def test_what_was_before_is_of_lines_that_there_are():
    earlier = bench.before()
    assert earlier.found and all(earlier.found.values())
    # and found by the names that rounds have now
    assert any(shape == told.name for told in rounds.shapes(False) for _, shape in earlier.found)


def test_a_rival_that_fails_is_left_out_and_the_others_are_compared(monkeypatch):
    def found(program, posterior):
        if program == "Pathfinder":
            raise ChildProcessError("it failed: RESOURCE_EXHAUSTED: out of memory")
        answer = answers.Answer(1.0 if program == "accord" else 4.0, 3, "", 4000.0, [0.0], [1.0])
        return answer, answer

    monkeypatch.setattr(answers, "answers", found)
    *lines, left_out = answers.programs_on("wine", 2)
    assert left_out == Skipped("Pathfinder on wine", "it failed: RESOURCE_EXHAUSTED: out of memory")
    assert [line.ratio.median for line in lines if "cold" in line.what] == [0.25, 0.25]


@pytest.mark.long
def test_a_program_that_ends_in_an_error_tells_it():
    with pytest.raises(ChildProcessError, match="it failed: .*KeyError.*no such posterior"):
        answers.answers("Pathfinder", "no such posterior")
    with pytest.raises(SystemExit, match="accord on no such posterior failed"):
        answers.answers("accord", "no such posterior")
