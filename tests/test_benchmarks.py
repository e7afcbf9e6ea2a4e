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
import score
import score_page
import score_rows
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


@pytest.mark.parametrize(
    "page, names", [("benchmarks.md", bench.SECTIONS), ("methods.md", ["linear", "overview"]), ("score.md", ["rows"])]
)
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


def run_of(**changed):
    """The numbers of one seed of an invented row."""
    found = {
        "method": "A",
        "certified": True,
        "sums": 100,
        "kb": 5.0,
        "mean": 0.03,
        "sd": 0.01,
        "silent": 1,
        "cpu": 1.0,
    }
    return {what: value for what, value in (found | changed).items() if value is not None}


def now_of(*changes):
    return {"runs": [run_of(**(changes[seed] if seed < len(changes) else {})) for seed in range(3)]}


STORED = {"best": score.summary(now_of()), "now": now_of()}


@pytest.mark.parametrize(
    ("worse", "columns"),
    [
        ({"certified": False}, ["certified, seed 0"]),
        ({"method": "B"}, ["certified, seed 0"]),
        ({"sums": 112}, ["sums (most)"]),
        ({"sums": 140}, ["sums (mean)", "sums (most)"]),
        ({"kb": 6.1}, ["kb (most)"]),
        ({"mean": 0.051}, ["mean (most)"]),
        ({"sd": 0.031}, ["sd (most)"]),
        ({"silent": 2}, ["silent (mean)", "silent (most)"]),
    ],
)
def test_a_worse_row_of_the_score_fails(worse, columns):
    failed, row = score.compared("a", STORED, now_of(worse))
    assert [failure.column for failure in failed] == columns
    assert row["best"] == STORED["best"] and row["now"] == now_of(worse) and "why" not in row


@pytest.mark.parametrize(
    "change",
    [{"sums": 109}, {"kb": 5.9}, {"mean": 0.049}, {"sd": 0.029}, {"silent": 1}, {"cpu": 1000.0}, {"sums": 1}],
)
def test_a_row_of_the_score_within_its_limits_passes(change):
    assert score.compared("a", STORED, now_of(change))[0] == []


def test_better_numbers_of_the_score_become_the_best():
    _, row = score.compared("a", STORED, now_of(*[{"sums": 90, "mean": 0.04}] * 3))
    assert row["best"]["sums"] == [90.0, 90.0] and row["best"]["mean"] == pytest.approx([0.03, 0.03])
    # small losses do not add up
    failed, _ = score.compared("a", row, now_of(*[{"sums": 105}] * 3))
    assert [failure.column for failure in failed] == ["sums (mean)", "sums (most)"]


def test_runs_without_a_certificate_have_no_best_costs():
    lacking = now_of({"certified": False, "sums": 10})
    failed, row = score.compared("a", {"best": score.summary(lacking), "now": lacking}, now_of())
    assert failed == [] and row["best"] == STORED["best"]
    assert score.compared("a", STORED, lacking)[1]["best"] == STORED["best"]


def test_a_reason_allows_the_stored_numbers_and_nothing_beyond():
    worse, beyond = now_of(*[{"sums": 150}] * 3), now_of(*[{"sums": 170}] * 3)
    failed, row = score.compared("a", STORED, worse)
    assert failed and score.compared("a", row, worse)[0]
    row["why"] = "the search looks further"
    passed, kept = score.compared("a", row, now_of(*[{"sums": 160}] * 3))
    assert passed == [] and kept["why"] == row["why"] and kept["best"]["sums"] == [100.0, 100.0]
    # 160 is within 10% of 150, and 170 is not
    failed, lost = score.compared("a", kept, beyond)
    assert failed and "why" not in lost
    assert [failure.best for failure in failed] == [150.0, 150.0]
    assert "why" not in score.compared("a", kept, now_of())[1]
    # a reason that was written beside the first stored numbers
    assert score.compared("a", {**STORED, "now": worse, "why": "so"}, worse)[0] == []
    # a reason for a row's sums is none for its certificate
    assert score.compared("a", kept, now_of({"sums": 150, "certified": False}))[0]


def test_a_row_of_the_score_that_cannot_run_fails():
    missing = {"missing": "TypeError: no such argument"}
    failed, row = score.compared("a", STORED, missing)
    assert [str(failure) for failure in failed] == ["a: runs: best yes, found TypeError: no such argument"]
    assert row["best"] == STORED["best"] and row["now"] == missing
    assert score.compared("a", row, missing)[0] and score.compared("a", row, now_of())[0] == []
    assert score.compared("a", None, missing) == ([], {"best": missing, "now": missing})
    assert score.compared("a", {"best": missing, "now": missing}, now_of())[1]["best"] == STORED["best"]


def test_further_seeds_are_not_compared_and_lost_columns_are():
    more = {"runs": [*now_of()["runs"], run_of(sums=1000, certified=False)]}
    assert score.compared("a", STORED, more)[0] == []
    lost = now_of(*[{"kb": None}] * 3)
    assert [failure.column for failure in score.compared("a", STORED, lost)[0]] == ["kb"]


def test_rows_and_pages_of_the_score(tmp_path, monkeypatch):
    assert set(score_rows.QUICK) <= set(score_rows.ROWS) and len(score_rows.POSTERIORS) == 16
    page = tmp_path / "score.md"
    page.write_text((pages.DOCS / "score.md").read_text("utf-8"))
    monkeypatch.setattr(score_page, "PAGE", page)
    verdicts = {"runs": [{"ok": 3, "refused": 2, "warned": 1, "silent": 0}]}
    rows = {
        "a, exact": {**STORED, "why": "the search looks further"},
        "b": {"best": {}, "now": {"missing": "no"}},
        "misses, two": {"best": {}, "now": verdicts},
        "lines of src/accord": {"best": {"lines": [9.0, 9.0]}, "now": {"runs": [{"lines": 10}]}},
    }
    score_page.write({"measured on": "a machine", "rows": rows})
    text = page.read_text()
    assert (
        "| a, exact | 3 of 3 A | 100 |" in text and "| b | cannot run |" in text and "| two | 3 | 2 | 1 | 0 |" in text
    )
    assert "- a, exact: the search looks further" in text and "10 (fewest 9)" in text
