"""Verdicts on claims: the decision rule, and undecided claims on pages and in the terminal."""

import csv
import html
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from screens import rows
from typer.testing import CliRunner

from accord.cli.commands import app
from accord_papers import commands, experiments
from accord_papers.experiments import frame, gallery, verdicts
from accord_papers.experiments.dadmms import fig6 as dadmms_fig6
from accord_papers.experiments.frame import Claim, Experiment, Size
from accord_papers.experiments.verdicts import Estimate, Verdict

HOLDS, FAILS, UNDECIDED = Verdict


@pytest.mark.parametrize(
    ("estimate", "verdict"),
    [
        # at least three standard errors from 1
        (Estimate(0.6, 0.1), HOLDS),
        (Estimate(0.8, 0.1), UNDECIDED),
        (Estimate(1.2, 0.1), UNDECIDED),
        (Estimate(1.4, 0.1), FAILS),
        # the trend adds to the errors
        (Estimate(0.6, 0.1, 0.2), UNDECIDED),
        (Estimate(0.4, 0.1, 0.2), HOLDS),
        (Estimate(1.6, 0.1, 0.2), FAILS),
        # no uncertainty
        (Estimate(0.999, 0.0), HOLDS),
        (Estimate(1.001, 0.0), FAILS),
        # runs too short for an error or a number
        (Estimate(0.0, np.inf), UNDECIDED),
        (Estimate(0.0, np.nan), UNDECIDED),
        (Estimate(0.0, 0.1, np.inf), UNDECIDED),
        (Estimate(np.nan, 0.1), UNDECIDED),
        (Estimate(np.inf, 0.1), FAILS),
    ],
)
def test_a_number_decides_beyond_its_doubt(estimate, verdict):
    assert estimate.below(1.0) is verdict
    assert Estimate(-estimate.value, *estimate[1:]).above(-1.0) is verdict
    assert estimate.within(1.0) is verdict
    assert Estimate(-estimate.value, *estimate[1:]).within(1.0) is verdict


def test_verdicts_on_several_statements():
    assert Verdict.all([]) is HOLDS and Verdict.all([HOLDS, HOLDS]) is HOLDS
    assert Verdict.all([HOLDS, UNDECIDED, HOLDS]) is UNDECIDED
    assert Verdict.all([UNDECIDED, FAILS, HOLDS]) is FAILS
    assert (Verdict.of(True), Verdict.of(False)) == (HOLDS, FAILS)


@pytest.mark.long
def test_the_rate_of_wrong_verdicts():
    # means of five normal numbers of mean 1 + 1e-9, wrongly below 1 at the rate of three standard errors
    draws = 1.0 + 1e-9 + np.random.default_rng(0).normal(size=(20_000, 5))
    found = [verdicts.mean_of(some).below(1.0) for some in draws]
    wrong = np.mean([verdict is HOLDS for verdict in found])
    # the probability is 0.00135, hence 27 of 20,000 with sd five
    assert 8 <= 20_000 * wrong <= 50
    assert np.mean([verdict is UNDECIDED for verdict in found]) > 0.99


def test_more_draws_decide_what_few_do_not():
    draws = 0.9 + np.random.default_rng(0).normal(size=20_000)
    assert verdicts.mean_of(draws[:50]).below(1.0) is UNDECIDED
    assert verdicts.mean_of(draws).below(1.0) is HOLDS
    assert verdicts.mean_of(draws).below(0.8) is FAILS
    assert verdicts.mean_of(draws[:1]).below(100.0) is UNDECIDED


CURVES = {
    "1 / t": lambda t: 3.0 + 50.0 / t,
    "1 / t^2": lambda t: 3.0 - 50.0 / t**2,
    "t^-0.3": lambda t: 3.0 - t**-0.3,
    "exponential": lambda t: 3.0 + np.exp(-t / 40.0),
    "late exponential": lambda t: 3.0 - np.exp(-t / 1000.0),
}


@pytest.mark.parametrize("curve", CURVES.values(), ids=CURVES)
def test_the_trend_covers_the_limit(curve):
    for rounds in (60.0, 100.0, 1000.0, 5000.0):
        found = verdicts.moving(Estimate(curve(rounds), 0.0), curve(rounds / 2.0), curve(rounds / 4.0))
        assert found.trend >= abs(found.value - 3.0) * (1.0 - 1e-9)
    # the trend is small after a long run
    found = verdicts.moving(Estimate(curve(1e6), 0.0), curve(5e5), curve(25e4))
    assert found.trend < 0.05 and found.below(2.9) is FAILS and found.below(3.1) is HOLDS


def test_changes_that_do_not_decrease_have_an_infinite_trend():
    assert verdicts.to_come(0.2, 0.1) == verdicts.to_come(0.1, 0.1) == verdicts.to_come(0.1, 0.0) == np.inf
    assert (
        verdicts.to_come(0.0, 0.0) == 0.0 and verdicts.to_come(np.nan, 0.3) == verdicts.to_come(0.1, np.nan) == np.inf
    )
    assert verdicts.to_come(0.1, 0.3) == 0.1 and verdicts.to_come(0.2, 0.3) == pytest.approx(0.4)


def test_stationary_noise_is_decided():
    draws = 3.0 + 0.1 * np.random.default_rng(0).normal(size=(200, 3))
    found = [verdicts.moving(Estimate(now, 0.1), halfway, quarter) for now, halfway, quarter in draws]
    # differences of two values are within three of their standard errors
    assert np.mean([one.trend < 0.45 for one in found]) > 0.98
    assert np.mean([one.below(4.0) is HOLDS for one in found]) > 0.98


def test_arithmetic_of_estimates_has_the_error_of_simulations():
    rng, one, two = np.random.default_rng(0), Estimate(3.0, 0.03, 0.1), Estimate(-2.0, 0.04, 0.2)
    x, y = (each.value + each.error * rng.normal(size=200_000) for each in (one, two))
    for found, drawn in ((one.less(two), x - y), (one.over(two), x / y), (two.times(-3.0), -3.0 * y)):
        assert found.value == pytest.approx(drawn.mean(), rel=2e-3)
        assert found.error == pytest.approx(drawn.std(), rel=1e-2)
    assert one.less(two).trend == pytest.approx(0.3)
    assert one.over(two).trend == pytest.approx(1.5 * (0.1 / 3.0 + 0.2 / 2.0))
    assert two.times(-3.0).trend == pytest.approx(0.6)


def test_the_error_of_an_estimate_is_the_sd_of_its_copies():
    copies = np.random.default_rng(0).normal(7.0, 0.5, size=4000)
    assert verdicts.by_copies(7.0, copies).error == pytest.approx(0.5, rel=0.05)


def accuracy(*curve):
    """A hundred trials of ten agents with this curve of mean accuracy."""
    noise = 0.02 * np.random.default_rng(len(curve)).normal(size=(100, len(curve), 10))
    return np.array(curve)[:, None] + noise - noise.mean(axis=(0, 2))[:, None]


def test_arrives_first_is_undecided_if_rounds_are_uncertain():
    fast, slow, edge = accuracy(0.1, 0.9, 0.95, 0.95), accuracy(0.1, 0.3, 0.5, 0.9), accuracy(0.1, 0.3, 0.8, 0.8)
    for others, verdict in (([slow], HOLDS), ([slow, fast], FAILS), ([slow, slow], HOLDS)):
        assert dadmms_fig6.arrives_first({str(k): one for k, one in enumerate([fast, *others])}, 0.8) is verdict
    assert dadmms_fig6.arrives_first({"a": edge, "b": slow}, 0.8) is UNDECIDED
    assert dadmms_fig6.arrives_first({"a": slow, "b": edge}, 0.8) is UNDECIDED
    assert dadmms_fig6.arrives_first({"a": slow, "b": fast}, 0.8) is FAILS


SIZES = {name: Size(minutes, 0.2, {"chains": 3}) for name, minutes in (("small", 0.5), ("deciding", 90.0))}
KINDS = {
    "claim": (HOLDS, HOLDS, FAILS, UNDECIDED, UNDECIDED, UNDECIDED),
    "check": (HOLDS, HOLDS),
    "remark": (UNDECIDED,),
}


def trial(name="trial", sizes=SIZES):
    def run(size, seed, folder, progress):
        frame.write_table(folder / "data.csv", ["seed"], [[seed]])
        return [
            Claim("section 1", f"{kind} {k} is so", verdict, "why", ours=0.04, doubt=0.05123, kind=kind)
            for kind, given in KINDS.items()
            for k, verdict in enumerate(given)
        ]

    return Experiment(name, "A trial", "A paper", "Figure 9", sizes, run)


@pytest.fixture
def reproduced(tmp_path, monkeypatch):
    monkeypatch.setattr(
        experiments, "EXPERIMENTS", {"trial": trial(), "other": trial("other", {"small": SIZES["small"]})}
    )
    return lambda *arguments: CliRunner().invoke(app, [*arguments, "--output", str(tmp_path)], env={"COLUMNS": "200"})


class Cells(HTMLParser):
    """The class and text of each cell in a page's tables, by row."""

    def __init__(self, page):
        super().__init__()
        self.rows, self.open = [], False
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.rows.append([])
        self.open = self.open or tag == "td"
        if tag == "td":
            self.rows[-1].append((dict(attrs).get("class", ""), ""))

    def handle_data(self, data):
        if self.open:
            look, text = self.rows[-1][-1]
            self.rows[-1][-1] = look, text + data

    def handle_endtag(self, tag):
        self.open = self.open and tag != "td"


COUNTS, REMARKS = "2 hold, 1 does not hold, 3 undecided", "1 undecided"


def test_the_command_line_counts_three_verdicts(reproduced):
    result = reproduced("reproduce", "trial")
    assert result.exit_code == 0, result.output
    table = rows(result.stdout)
    shown = {row[2]: row[0] for row in table if row[1:2] == ["section 1"]}
    assert [shown[f"claim {k} is so"] for k in range(6)] == [str(verdict) for verdict in KINDS["claim"]]
    assert f"claims of the paper: {COUNTS}; checks of accord: 2 hold" in result.stdout


def test_an_undecided_check_is_an_error(reproduced, monkeypatch):
    monkeypatch.setitem(KINDS, "check", (HOLDS, UNDECIDED))
    result = reproduced("reproduce", "trial")
    assert result.exit_code == 1 and "checks of accord itself fail: trial: check 1 is so" in result.stderr


def test_the_html_page_shows_undecided_claims(reproduced, tmp_path):
    reproduced("reproduce", "trial")
    page = html.unescape(gallery.write(tmp_path).read_text())
    assert f"of the papers' claims {COUNTS}; of accord's own checks 2 hold." in page
    cells = Cells(page).rows
    assert [text for _, text in cells[1]] == ["trial", "A trial", COUNTS, "2 hold", REMARKS]
    for kind, given in KINDS.items():
        for k, verdict in enumerate(given):
            (row,) = [row for row in cells if len(row) == 7 and row[2][1] == f"{kind} {k} is so"]
            look, text = row[0]
            # colour, mark and text
            assert look == {HOLDS: "holds", FAILS: "fails", UNDECIDED: "undecided"}[verdict]
            assert text == {HOLDS: "✓ holds", FAILS: "✗ does not hold", UNDECIDED: "? undecided"}[verdict]
            assert row[4][1] == "0.04 ± 0.051"
    # three colours in light and dark mode
    style = re.findall(r"td\.(holds|fails|undecided) {([^}]*)}", page)
    assert len({re.search(r"color: ([^;]*);", rule)[1] for _, rule in style}) == len(style) == 3
    assert "Larger sizes of trial: deciding (90 minutes on two cores)" in page


def test_markdown_pages_show_undecided_claims(reproduced, tmp_path):
    reproduced("reproduce", "trial")
    gallery.write_markdown(tmp_path)
    assert f"| A trial | {COUNTS} | 2 hold | {REMARKS} |" in (tmp_path / "README.md").read_text()
    page = (tmp_path / "trial" / "README.md").read_text()
    for kind, given in KINDS.items():
        for k, verdict in enumerate(given):
            (line,) = [line for line in page.splitlines() if f"| {kind} {k} is so |" in line]
            assert line.startswith(f"| {gallery._LOOKS[verdict][1]} {verdict} |")
            assert ("holds" in line) is (verdict is HOLDS)
    assert "Larger sizes of trial: deciding (90 minutes on two cores)." in page


def test_a_page_without_undecided_claims_or_larger_sizes_names_no_sizes(reproduced, tmp_path, monkeypatch):
    reproduced("reproduce", "other")
    reproduced("reproduce", "trial", "--size", "deciding")
    assert "Larger sizes" not in gallery.write(tmp_path).read_text()
    for kind in KINDS:
        monkeypatch.setitem(KINDS, kind, (HOLDS, FAILS))
    frame.reproduce(trial(), tmp_path)
    assert "Larger sizes" not in gallery.write(tmp_path).read_text()


def test_a_page_with_undecided_claims_has_the_text_beyond(tmp_path, monkeypatch):
    frame.reproduce(replace(trial(), beyond="It takes two days on two cores."), tmp_path)
    text = "Larger sizes of trial: deciding (90 minutes on two cores). It takes two days on two cores."
    assert text in gallery.write(tmp_path).read_text()
    gallery.write_markdown(tmp_path)
    assert text in (tmp_path / "trial" / "README.md").read_text()
    for kind in KINDS:
        monkeypatch.setitem(KINDS, kind, (HOLDS, FAILS))
    frame.reproduce(replace(trial(), beyond="It takes two days on two cores."), tmp_path)
    assert "two days" not in gallery.write(tmp_path).read_text()


def test_folders_with_two_verdicts_are_refused(reproduced, tmp_path):
    reproduced("reproduce", "trial")
    card = tmp_path / "trial" / frame.CARD
    old = {name: value for name, value in json.loads(card.read_text()).items() if name != "format"}
    card.write_text(json.dumps(old))
    result = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert result.exit_code == 1 and "run accord reproduce trial again" in result.stderr
    assert not (tmp_path / "report.html").exists()
    # a new run replaces the folder
    assert reproduced("reproduce", "trial").exit_code == 0
    assert CliRunner().invoke(app, ["report", str(tmp_path)]).exit_code == 0


def test_an_unknown_verdict_is_refused(reproduced, tmp_path):
    reproduced("reproduce", "trial")
    table = tmp_path / "trial" / frame.CLAIMS
    table.write_text(table.read_text().replace("undecided", "perhaps", 1))
    result = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert result.exit_code == 1 and "'perhaps' is not a verdict" in result.stderr and str(table) in result.stderr


@pytest.mark.parametrize("text", ["{\n", "[1]\n", '{"format": "cut o'])
def test_a_damaged_card_is_named(reproduced, tmp_path, text):
    reproduced("reproduce", "trial")
    card = tmp_path / "trial" / frame.CARD
    card.write_text(text)
    result = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert result.exit_code == 1 and f"{card} is damaged" in result.stderr


def test_sizes_are_chosen_by_name(reproduced, tmp_path):
    result = reproduced("reproduce", "all", "--size", "deciding")
    # only experiments with this size
    assert result.exit_code == 0 and sorted(path.name for path in tmp_path.iterdir()) == ["trial"]
    assert json.loads((tmp_path / "trial" / frame.CARD).read_text())["size"] == "deciding"
    result = reproduced("reproduce", "other", "--size", "deciding")
    assert result.exit_code == 1 and "other has no size deciding" in result.stderr
    result = reproduced("reproduce", "all", "--size", "decidng")
    assert result.exit_code == 1 and "unknown size 'decidng', did you mean 'deciding'" in result.stderr


def test_the_gallery_of_the_docs_has_three_verdicts():
    tables = sorted((Path(__file__).parents[2] / "docs" / "gallery").glob("*/claims.csv"))
    assert len(tables) == len(experiments.EXPERIMENTS)
    for path in tables:
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                assert row["verdict"] in list(Verdict) and "too short" not in row["claim"]


def test_a_table_in_a_terminal_has_each_verdict(capsys):
    commands._verdicts([Claim("x", "it is so", verdict, "why") for verdict in Verdict])
    assert [row[0] for row in rows(capsys.readouterr().out)[:4]] == ["verdict", "holds", "does not hold", "undecided"]
