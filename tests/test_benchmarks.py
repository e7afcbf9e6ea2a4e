"""Benchmarks: timing, goals, the gate, and tables in pages."""

from functools import partial
from types import SimpleNamespace

import answers
import bench
import jax.numpy as jnp
import measured
import pages
import pytest
import rounds
from measured import Line, Ratio, Skipped, compared, enough, fastest, side_by_side
from rich.console import Console

import accord
from accord.base.pytree import pytree
from accord.samplers.de_sgld import DESGLDState


@pytree
class Slowed(accord.samplers.DESGLD):
    """DE-SGLD with the same draws and needless work in every round."""

    def update(self, agent, state, inbox, noise):
        found = super().update(agent, state, inbox, noise).position
        needless = found
        for _ in range(100):
            needless = jnp.sin(needless + noise.normal)
        return DESGLDState(found + 1e-30 * needless)


@pytest.mark.slow
@pytest.mark.busy
def test_the_gate_notices_a_slower_round():
    shape, usual = rounds.WATCHED[0]
    assert rounds.not_worse(shape._replace(sampler=Slowed(rounds.STEP)), usual).verdict == "not met"


def test_the_gate_needs_one_good_measurement(monkeypatch):
    ratios = iter([3.0, 1.49, 1.51, 1.6, 2.0, 9.0, 1.52])
    monkeypatch.setattr(rounds, "over_floor", lambda *_, **__: iter([Line("a", "b", Ratio.of([next(ratios)]))]))
    good, bad = (rounds.not_worse(rounds.WATCHED[0][0], 1.0) for _ in range(2))
    assert (good.verdict, good.ratio.median) == ("met", 1.49)
    assert (bad.verdict, bad.ratio.median) == ("not met", 1.52) and next(ratios, None) is None


@pytest.fixture
def waits(monkeypatch):
    """Work that takes some seconds a round by a simulated clock."""
    now = 0.0

    def work(seconds, rounds):
        nonlocal now
        now += seconds * rounds

    monkeypatch.setattr(measured, "time", SimpleNamespace(perf_counter=lambda: now, sleep=lambda seconds: None))
    return lambda seconds: partial(work, seconds)


def test_ratios_are_of_the_time_of_one_round(waits):
    found, own, other = compared(waits(4.0), waits(0.25), repeats=5, seconds=7.0)
    assert (found.median, found.low, found.high, own, other) == (16.0, 16.0, 16.0, 4.0, 0.25)


def test_numbers_of_rounds_and_the_fastest_side(waits):
    assert enough(waits(1.0), 8.0) == 8 and enough(waits(1.0), 9.0) == 16 and enough(waits(9.0), 8.0) == 1
    ways = [waits(2.0), waits(0.5), waits(4.0)]
    assert fastest(ways, repeats=2, seconds=4.0) is ways[1]


def test_times_exclude_compilation(waits):
    walk, compiling, known = waits(1.0), waits(100.0), set()

    def compiled(rounds):
        if rounds not in known:
            known.add(rounds)
            compiling(1)
        walk(rounds)

    found, own, other = compared(walk, compiled, repeats=3, seconds=8.0)
    assert (found.median, own, other) == (1.0, 1.0, 1.0) and max(known) == 8


def test_sides_take_turns_in_alternating_order():
    order = []
    found = side_by_side({name: partial(order.append, name) for name in "ab"}, 3)
    assert "".join(order) == "ab" + "ba" + "ab" + "ba"
    assert all(seconds.shape == (3,) for seconds in found.values())


def test_goals_are_bounds_of_the_median():
    ratio = Ratio.of([1.0, 2.0, 3.0])
    assert (ratio.median, ratio.low, ratio.high) == (2.0, 1.5, 2.5)
    bounds = [{"most": 2.0}, {"most": 1.9}, {"least": 2.0}, {"least": 2.1}, {}]
    verdicts = [Line("a", "b", ratio, **bound).verdict for bound in bounds]
    assert verdicts == ["met", "not met", "met", "not met", "-"]


def test_a_section_is_printed_and_replaces_its_part_of_the_page(tmp_path, capsys):
    lines = [
        Line("one", "ring", Ratio.of([1.0, 1.1, 1.2]), "1 us / 2 us", most=1.15),
        Skipped("three", "no such package"),
        Line("two", "star", Ratio.of([2.0]), most=1.15),
    ]
    found = bench.run("rounds", iter(lines), Console(width=200))
    printed = capsys.readouterr().out
    assert "one" in printed and "not met" in printed and "left out: three: no such package" in printed
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- rounds -->\nold\n<!-- end of rounds -->\nafter\n")
    pages.fill(page, "rounds", bench.text(*found, 61.0))
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text
    assert "| one | ring | 1.1 | 1.05 to 1.15 | at most 1.15 | met | 1 us / 2 us |" in text
    assert "| two | star | 2 | - | at most 1.15 | **not met** |  |" in text
    assert "Left out: three: no such package." in text and f"jax {pages.version('jax')}" in text
    with pytest.raises(ValueError, match="no place for 'other'"):
        pages.fill(page, "other", "")


@pytest.mark.parametrize("page, names", [("benchmarks.md", bench.SECTIONS), ("methods.md", ["linear", "overview"])])
def test_pages_have_a_place_for_every_section(page, names):
    text = (pages.DOCS / page).read_text("utf-8")
    assert all(f"<!-- {name} -->" in text and f"<!-- end of {name} -->" in text for name in names)


def test_a_program_that_fails_is_left_out_and_the_others_are_compared(monkeypatch):
    def found(program, posterior):
        if program == "NumPyro's NUTS":
            raise ChildProcessError("RESOURCE_EXHAUSTED: out of memory")
        answer = answers.Answer(1.0 if program == "accord" else 4.0, 3, 4000.0, [0.0], [1.0])
        return answer, answer

    monkeypatch.setattr(answers, "answers", found)
    left_out, *lines = answers.programs_on("wine", 2)
    assert left_out == Skipped("NumPyro's NUTS on wine", "RESOURCE_EXHAUSTED: out of memory")
    assert [line.ratio.median for line in lines if "cold" in line.what] == [0.25]


@pytest.mark.long
def test_the_error_of_a_program_is_reported():
    with pytest.raises(ChildProcessError, match="ValueError: "):
        answers.answers("accord", "no such posterior")
