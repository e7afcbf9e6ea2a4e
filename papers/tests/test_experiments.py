"""`accord reproduce` and `accord report`: complete folders, claims, and self-contained pages."""

import csv
import json
import re
import sys

import numpy as np
import pytest
from scipy import stats
from screens import in_terminal, piped, rows, shown, unfolded
from typer.testing import CliRunner

import accord
from accord.cli.commands import app
from accord_papers import commands, experiments
from accord_papers.base import figures
from accord_papers.experiments import agreement, frame
from accord_papers.experiments.frame import Claim, Experiment, Size
from accord_papers.experiments.verdicts import Verdict

SIZE = Size(minutes=0.5, memory=0.2, numbers={"chains": 3})


def trial(run=None, name="trial"):
    """A small experiment that draws a figure."""

    def usual(size, seed, folder, progress):
        progress("all", 1.0)
        frame.write_table(folder / "data.csv", ["seed", "chains"], [[seed, size.numbers["chains"]]])
        with figures.figure(folder, "figure") as (axes,):
            axes.plot([0, 1], [0, seed])
        why = "a <b>bound</b>"
        return [
            Claim("section 1", "it is so", Verdict.of(True), why, paper=1.0, ours=1.25),
            Claim("x", "y", Verdict.of(False), "z", kind="check"),
        ]

    return Experiment(name, "A trial & more", "A paper", "Figure 9", {"small": SIZE, "paper": SIZE}, run or usual)


def read(folder):
    with (folder / "claims.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def invoke(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "150"})


@pytest.fixture
def trials(monkeypatch):
    monkeypatch.setattr(experiments, "EXPERIMENTS", {"trial": trial(), "other": trial(name="other")})


def test_a_folder_holds_data_figure_claims_and_card(tmp_path):
    claims = frame.reproduce(trial(), tmp_path / "deep" / "down", seed=7)
    folder = tmp_path / "deep" / "down" / "trial"
    assert {file.name for file in folder.iterdir()} == {
        *("claims.csv", "data.csv", "experiment.json", "figure.png", "figure.svg")
    }
    assert [claim.verdict for claim in claims] == ["holds", "does not hold"]
    first, second = read(folder)
    assert (first["kind"], first["verdict"], first["paper"], first["ours"], first["law"]) == (
        *("claim", "holds", "1", "1.25", ""),
    )
    assert (second["kind"], second["verdict"]) == ("check", "does not hold")
    card = json.loads((folder / "experiment.json").read_text())
    assert (card["seed"], card["size"], card["numbers"]) == (7, "small", {"chains": 3})
    assert (folder / "data.csv").read_text() == "seed,chains\n7,3\n"


def test_no_cell_of_a_table_is_a_formula(tmp_path):
    frame.write_table(tmp_path / "table.csv", ["=a", "b"], [["=1", -1.5], ["x", -2], ["plain\r=1", 3]])
    assert (tmp_path / "table.csv").read_text().split("\n") == ["'=a,b", "'=1,-1.5", "x,-2", '"plain', '=1",3', ""]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_whatever_stops_a_run_leaves_the_earlier_folder(tmp_path, error):
    def broken(size, seed, folder, progress):
        (folder / "data.csv").write_text("half")
        raise error

    with pytest.raises(error):
        frame.reproduce(trial(broken), tmp_path)
    assert list(tmp_path.iterdir()) == []
    frame.reproduce(trial(), tmp_path, seed=7)
    with pytest.raises(error):
        frame.reproduce(trial(broken), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["trial"]
    assert (tmp_path / "trial" / "data.csv").read_text() == "seed,chains\n7,3\n"
    frame.reproduce(trial(), tmp_path, seed=8)
    assert [path.name for path in tmp_path.iterdir()] == ["trial"]
    assert (tmp_path / "trial" / "data.csv").read_text() == "seed,chains\n8,3\n"


def test_a_folder_of_something_else_is_not_replaced(tmp_path):
    (tmp_path / "trial").mkdir()
    (tmp_path / "trial" / "thesis.tex").write_text("years")
    with pytest.raises(ValueError, match="is not an earlier run"):
        frame.reproduce(trial(), tmp_path)
    assert (tmp_path / "trial" / "thesis.tex").read_text() == "years"


def test_an_interrupted_sample_raises(monkeypatch):
    post, net = accord.models.gaussian([-1.0, 1.0], [1.0, 2.0]), accord.Network.ring(2)
    method = accord.samplers.DULA(0.05, 0.2)
    run = accord.sample(post, net, accord.Rounds(method, burn_in=0), draws=3, chains=1)
    monkeypatch.setattr(frame, "sample", lambda *_, **__: run)
    assert frame.whole_run(post, net, method, draws=3) is run
    with pytest.raises(KeyboardInterrupt):
        frame.whole_run(post, net, method, draws=4)


def test_the_list_shows_every_experiment():
    result = invoke("reproduce", "--list")
    assert result.exit_code == 0, result.output
    for name, experiment in experiments.EXPERIMENTS.items():
        assert name in result.stdout and experiment.figure in result.stdout
        for takes in experiment.sizes.values():
            assert f"{takes.minutes:g} min, {takes.memory:g} GB" in result.stdout


HEADINGS = ["name", "paper", "figure", "sizes"]


def listed():
    """Expected rows of the list."""
    for experiment in experiments.EXPERIMENTS.values():
        sizes = [f"{name} {size.minutes:g} min, {size.memory:g} GB" for name, size in experiment.sizes.items()]
        yield [experiment.name, experiment.paper, experiment.figure, "; ".join(sizes)]


@pytest.mark.long
def test_a_pipe_gets_one_line_for_each_experiment():
    expected = [HEADINGS, *listed()]
    assert rows(CliRunner().invoke(app, ["reproduce", "--list"], env={"COLUMNS": "40"}).stdout) == expected
    assert rows(piped("reproduce", "--list")) == expected


@pytest.mark.parametrize("columns", [60, 100])
@pytest.mark.long_from(1)
def test_a_terminal_folds_the_list_and_cuts_nothing(columns, monkeypatch):
    lines = shown(monkeypatch, columns, commands._list, experiments.EXPERIMENTS.values())
    assert unfolded(lines, HEADINGS) == [
        "".join("".join(cells).split()) for cells in zip(HEADINGS, *listed(), strict=True)
    ]
    if columns == 100:
        assert [line.split()[0] for line in lines if line[0] != " "] == ["name", *experiments.EXPERIMENTS]
        assert in_terminal(columns, "reproduce", "--list") == lines


def test_verdicts_are_folded_in_a_terminal_and_nowhere_else(monkeypatch, capsys):
    claims = [
        Claim(
            "section 5.1, figure 1(c), of the longer version",
            "bias falls [as alpha] :smile: " * 9,
            Verdict.of(True),
            "bound",
        ),
        Claim("appendix", "un" + "believably" * 20, Verdict.of(False), "bound"),
    ]
    headings, cells = ["verdict", "where", "claim"], [[c.verdict, c.source, c.text.strip()] for c in claims]
    commands._verdicts(claims)
    assert rows(capsys.readouterr().out) == [headings, *cells]
    for columns in (40, 80):
        lines = shown(monkeypatch, columns, commands._verdicts, claims)
        assert unfolded(lines, headings) == [
            "".join("".join(cell).split()) for cell in zip(headings, *cells, strict=True)
        ]


def test_an_unknown_name_gets_the_nearest_name(tmp_path):
    result = invoke("reproduce", "gtdula-figg1", "--output", tmp_path)
    assert result.exit_code == 1 and "unknown experiment 'gtdula-figg1', did you mean 'gtdula-fig1'" in result.stderr
    result = invoke("reproduce", "--output", tmp_path)
    assert result.exit_code == 1 and f"name an experiment: {next(iter(experiments.EXPERIMENTS))}, " in result.stderr


def test_without_matplotlib_the_remedy_is_named(tmp_path, monkeypatch, trials):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = invoke("reproduce", "trial", "--output", tmp_path)
    assert result.exit_code == 1 and "pip install accord-papers" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_commands_write_all_and_one_page(tmp_path, trials):
    result = invoke("reproduce", "all", "--size", "small", "--output", tmp_path, "--seed", 2)
    # a failed check is an error, a failed claim is not
    assert result.exit_code == 1 and "checks of accord itself fail: trial: y; other: y" in result.stderr
    assert "does not hold" in result.stdout and f"wrote {tmp_path / 'other'}" in result.stdout
    result = invoke("report", tmp_path)
    assert (result.exit_code, result.stdout) == (0, f"wrote {tmp_path / 'report.html'}\n")
    page = (tmp_path / "report.html").read_text()
    assert page.count("<h2") == 2 and "A trial &amp; more" in page and "a &lt;b&gt;bound&lt;/b&gt;" in page
    # the page loads nothing
    links = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert len(links) == 8 and all(link.startswith(("data:", "#")) for link in links)
    assert "http" not in page and "url(" not in page and "@import" not in page


def test_markdown_pages_have_valid_links(tmp_path, trials):
    invoke("reproduce", "all", "--output", tmp_path)
    result = invoke("report", tmp_path, "--markdown")
    assert (result.exit_code, result.stdout) == (0, f"wrote {tmp_path / 'README.md'}\n")
    overview = (tmp_path / "README.md").read_text()
    assert "[trial](trial/README.md) | A trial & more | 1 holds | 1 does not hold |" in overview
    page = (tmp_path / "trial" / "README.md").read_text()
    assert "![Figure 9: figure](figure.png)" in page and "Size small: 3 chains; seed 0;" in page
    assert "| ✓ holds | section 1 | it is so | 1 | 1.25 |  | a &lt;b>bound&lt;/b> |" in page
    for folder in (tmp_path, tmp_path / "trial"):
        links = re.findall(r"\]\(([^)]*)\)", (folder / "README.md").read_text())
        assert links and all((folder / link).is_file() for link in links)


def test_a_large_table_is_linked_beside_the_page(tmp_path, trials):
    frame.reproduce(trial(), tmp_path)
    with (tmp_path / "trial" / "data.csv").open("a") as file:
        file.write("1,2\n" * 100_000)
    assert invoke("report", tmp_path).exit_code == 0
    assert 'href="trial/data.csv"' in (tmp_path / "report.html").read_text()


def test_an_empty_folder_is_an_error(tmp_path):
    result = invoke("report", tmp_path)
    assert result.exit_code == 1 and "run accord reproduce first" in result.stderr


def test_scores_are_standard_normal():
    rng = np.random.default_rng(0)
    means, variances = rng.normal(size=(40, 50)), rng.uniform(0.5, 2.0, size=(40, 50))
    tally = agreement.Tally(means, variances)
    for _ in range(4):
        tally.add(means + np.sqrt(variances) * rng.normal(size=(5, 40, 50)))
    assert tally.chains == 20
    for scores in (tally.mean_scores(), tally.variance_scores()):
        assert stats.kstest(scores.ravel(), "norm").pvalue > 0.001
        assert np.abs(scores).max() < agreement.bound(scores.size)


def test_numbers_of_another_law_have_scores_beyond_the_bound():
    draws = np.random.default_rng(0).normal(size=(2000, 1, 1))
    for mean, variance in ((0.2, 1.0), (0.0, 1.5), (0.0, 0.7)):
        tally = agreement.Tally(np.full((1, 1), mean), np.full((1, 1), variance))
        tally.add(draws)
        worst = max(np.abs(tally.mean_scores()).max(), np.abs(tally.variance_scores()).max())
        assert worst > agreement.bound(2)


def test_ctrl_c_leaves_complete_folders(tmp_path, monkeypatch):
    def stopped(size, seed, folder, progress):
        raise KeyboardInterrupt

    chosen = {"trial": trial(), "other": trial(stopped, name="other")}
    monkeypatch.setattr(experiments, "EXPERIMENTS", chosen)
    result = invoke("reproduce", "all", "--output", tmp_path)
    assert result.exit_code == 130 and "interrupted: the files of other are unchanged" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["trial"]
