"""The meter: derivatives are right, attackers are not better, information adds up, and policies refuse."""

import re
import shutil

import attacks
import jax
import meter_families
import numpy as np
import pytest
from test_federation import COARSE, SITES, STUDY, Federation, hash_of
from typer.testing import CliRunner

import accord
from accord.base.errors import DataError
from accord.cli import app
from accord.federation import RefusedError, SitePolicy, meter
from accord.federation.check import check
from accord.federation.keys import row_hashes
from accord.federation.meter import Account, Cells, Measured, Meter, rounded_down
from accord.posterior.coarse import CoarseTotals, Noise
from accord.samplers import Importance

# All studies below change the default policies of the tests, which allow exact answers.
USUAL = dict.fromkeys(SITES, {"exact": False})


def answers_of(post, monkeypatch):
    """The questions of a run with coarse answers, with the coder and the numbers of the first agent."""
    found, own, usual = [], post.alone(0), CoarseTotals._summed

    def recorded(self, coder, question):
        found.append((question, coder, question.answered(own.totals_here())[0]))
        return usual(self, coder, question)

    monkeypatch.setattr(CoarseTotals, "_summed", recorded)
    options = {"draws": 50, "engine": accord.engines.Local(coarse=True), "progress": False}
    accord.sample(post, accord.Network.star(post.num_agents), Importance(), **options)
    return found


def differences(post, question, size=1e-4):
    """Derivatives of the first agent's numbers with respect to the cells of X of each row, (row, cell, number)."""
    X, y = post.shards[0]

    def at(row, cell, by):
        moved = X.copy()
        moved[row, cell] += by
        return question.answered(post.with_shards([(moved, y), *post.shards[1:]]).alone(0).totals_here())[0]

    rows, cells = X.shape
    steps = [[(at(i, j, size) - at(i, j, -size)) / (2.0 * size) for j in range(cells)] for i in range(rows)]
    return np.array(steps)


def test_information_agrees_with_finite_differences(monkeypatch):
    rng = np.random.default_rng(0)
    shards = [(rng.normal(size=(rows, 2)), np.arange(rows) % 2.0) for rows in (4, 30, 30)]
    post = accord.models.logistic_regression(shards, prior_variance=4.0)
    cells = Cells.of(post.shards[0])
    with jax.enable_x64(True):
        found = answers_of(post, monkeypatch)
        functions = {function.__name__ for question, *_ in found for function in question.functions}
        assert {"expansion_of", "mode_of", "jet_of", "slope_of", "value_of"} <= functions
        assert any(question.needs_origin for question, *_ in found)
        for question, coder, part in found:
            sent = np.abs(part) < 1e3
            own = meter.information(post.alone(0), cells, question, coder, part, sent)[:, :2, :2]
            scaled = differences(post, question) * (sent / np.sqrt(coder.noise**2 + coder.grid**2 / 12.0))
            expected = scaled @ np.swapaxes(scaled, 1, 2)
            # a site stops near its own mode
            close = 0.5 if question.functions[0].__name__ == "mode_of" else 1e-3
            np.testing.assert_allclose(own, expected, rtol=close, atol=close * np.abs(expected).max())


@pytest.mark.parametrize("kind", ["linear", "poisson"])
def test_families_without_a_bound_show_no_row(kind):
    """Without the limits of far positions, the most exposed cell was known to 1e-5 (linear) and 7e-5 (Poisson)."""
    with jax.enable_x64(True):
        sds, _ = meter_families.measured(kind, 100, 4, 3, 0, attacked=False)
    assert sds.min() > 0.002 and np.median(sds) > 0.02


@pytest.mark.long
def test_attackers_are_not_better_than_the_meter():
    """`benchmarks/attacks.py meter` has 8 to 50 rows and 3 and 6 columns."""
    with jax.enable_x64(True):
        sds, off = attacks.against_the_meter(8, 2, range(1))
    assert 0.005 < np.median(sds) < 0.1
    # the rows of one run have the same noise
    assert 0.4 < np.sqrt(np.square(off).mean()) < 2.5


@pytest.mark.long
@pytest.mark.parametrize("dim", [3, 6])
@pytest.mark.parametrize("rows", [8, 20, 50])
def test_attackers_are_not_better_than_the_meter_in_more_runs(rows, dim):
    with jax.enable_x64(True):
        _, off = attacks.against_the_meter(rows, dim, range(8))
    squares = np.square(off).mean(axis=(1, 2))
    assert squares.mean() > 1.0 - 3.0 * squares.std(ddof=1) / len(squares) ** 0.5


def test_clipped_numbers_show_nothing():
    coder = Noise(3, 2, 100).coder("slope", np.zeros(3))
    noisy = np.zeros((3, 3))
    noisy[1, 0], noisy[2, 1] = 1e12, -1e12
    # a value is hidden with its gradient, and a gradient with its value
    expected = np.array([[True] * 3, [False] * 3, [False] * 3])
    np.testing.assert_array_equal(coder.unclipped(noisy.ravel()).reshape(3, 3), expected)


def test_numbers_of_unequal_rows_are_cells():
    rows = {"design": np.array([[1.0, 2.0], [1.0, 3.0]]), "interval": np.array([0, 1]), "y": np.array([0.0, 1.0])}
    cells = Cells.of(rows)
    # without the intercept and without codes
    np.testing.assert_array_equal(cells.values, [[2.0, 0.0], [3.0, 1.0]])
    np.testing.assert_array_equal(cells.at([1]).values, [[3.0, 1.0]])


def measured(names, rows, information, **changes):
    given = {"step": 1, "two": np.zeros(len(names), bool), "exact": False, **changes}
    return Measured(rows=np.array(rows), names=np.array(names), information=np.array(information, float), **given)


def test_information_of_several_studies_adds_up():
    first = measured(["age", "dose"], ["a", "b"], [np.diag([1.0, 4.0]), np.diag([9.0, 16.0])])
    again = measured(["dose", "crp"], ["b", "c"], [np.diag([9.0, 1.0]), np.diag([100.0, 100.0])])
    alone, both = meter.reading([first]), meter.reading([first, again])
    assert alone.least == pytest.approx(1 / 4) and alone.least_known == pytest.approx(17**-0.5)
    assert both.least == pytest.approx(1 / 5)
    # a third study with exact answers about one of the rows
    exact = measured(["age"], ["b"], np.zeros((1, 1, 1)), exact=True)
    assert meter.reading([first, exact]).least == 0.0


def test_cells_of_two_values_have_a_distance():
    two = measured(["age", "sex"], ["a"], [[[4.0, 3.0], [3.0, 9.0]]], two=np.array([False, True]))
    found = meter.reading([two])
    # sex counts as known
    assert found.apart == pytest.approx(3.0) and found.least == pytest.approx(0.5)
    assert "(d')" in str(found)


@pytest.mark.parametrize(("sd", "found"), [(0.3, 0.25), (0.25, 0.25), (0.0, 0.0), (np.inf, 1.0), (0.01, 2.0**-7)])
def test_shown_sds_are_rounded_down(sd, found):
    assert rounded_down(sd) == found


def test_hashes_of_rows_are_keyed_and_different(tmp_path):
    rows = ["50", "51", "50"]
    hashes = row_hashes(tmp_path / "first", rows)
    assert len(set(hashes)) == 3 and hashes == row_hashes(tmp_path / "first", rows)
    # the order of rows does not matter
    assert set(row_hashes(tmp_path / "first", rows[::-1])) == set(hashes)
    assert not set(row_hashes(tmp_path / "other", rows)) & set(hashes)
    assert (tmp_path / "first" / "rows.key").stat().st_mode & 0o777 == 0o600


# --- studies ---


@pytest.fixture(scope="module")
def coarse(tmp_path_factory):
    changes = {**USUAL, "north": {"exact": False, "disclosure": 0.001}}
    federation = Federation(tmp_path_factory.mktemp("meter"), COARSE, **changes)
    return federation, federation.run()


def reading_at(federation, name):
    return Meter(federation.policy(name), federation.study).reading()


def test_a_site_measures_a_study_with_noise(coarse):
    federation, runs = coarse
    assert len(runs) == 3
    found = reading_at(federation, "north")
    assert 0.001 < found.least < found.typical < 0.2 and found.apart > 1.0
    noted = [line["disclosure"] for line in federation.audit("north") if "disclosure" in line]
    assert noted[-1] == found.rounded and noted == sorted(noted, key=lambda one: -one["least"])
    # a site alone has its numbers
    entries = federation.board.all(SITES).values()
    assert not any(b"disclosure" in entry for entry in entries)
    own = federation.policy("north")
    sheet = Account(own.folder).read(federation.study.hash)
    assert sheet.names.tolist() == ["age", "ward[b]", "died, y 0"] and sheet.two.tolist() == [False, True, True]


def test_the_forecast_is_near_the_measured_sd(coarse):
    federation, _ = coarse
    found = check(federation.study, federation.policy("north"))
    measured_sds = [reading_at(federation, name).least for name in SITES]
    assert found.forecast / 4.0 < min(measured_sds) and max(measured_sds) < 4.0 * found.forecast
    assert found.perhaps == []


def test_an_answer_that_is_made_again_counts_once(coarse, tmp_path):
    federation, _ = coarse
    before = reading_at(federation, "south")
    copied = Federation.__new__(Federation)
    shutil.copytree(federation.folder, tmp_path / "again")
    copied.__dict__ |= federation.__dict__ | {"folder": tmp_path / "again"}
    steps = sorted(step for step, _ in copied.store("south").all(["south"]))
    # the process ended before its entry was stored
    for step in steps[-3:]:
        copied.store("south").path(step, "south").unlink()
    copied.answer("south", {key: text for key, text in federation.board.all(SITES).items() if key[1] != "south"})
    assert reading_at(copied, "south") == before


@pytest.fixture
def second(coarse, tmp_path):
    """A function that runs another study at the same sites, after a change of a file."""

    def make(change=lambda text: text):
        shutil.copytree(coarse[0].folder, tmp_path / "second")
        federation = Federation.__new__(Federation)
        federation.__dict__ |= coarse[0].__dict__ | {"folder": tmp_path / "second", "log": []}
        federation.text = COARSE.replace("draws = 200", "draws = 200\nseed = 1")
        federation.board = type(coarse[0].board)(tmp_path / "second-board")
        path = tmp_path / "second" / "south" / "rows.csv"
        path.write_text(change(path.read_text()))
        for name in SITES:
            federation.write(name, exact=False)
        federation.run()
        return federation

    return make


@pytest.mark.long
def test_two_studies_on_the_same_rows_add_up(coarse, second):
    before, after = coarse[0], second()
    account = Account(after.policy("south").folder)
    first, own = account.read(before.study.hash), account.read(after.study.hash)
    assert (np.sort(first.rows) == np.sort(own.rows)).all()
    both, alone = reading_at(after, "south"), meter.reading([own])
    assert both.least < 0.9 * alone.least and both.typical < 0.9 * alone.typical
    assert both == pytest.approx(meter.reading([own, first]))


@pytest.mark.long
def test_changed_rows_keep_the_account_of_the_other_rows(coarse, second):
    after = second(lambda text: re.sub(r"\n[^,]*,", "\n51.125,", text, count=10))
    account = Account(after.policy("south").folder)
    first, own = account.read(coarse[0].study.hash), account.read(after.study.hash)
    assert len(np.intersect1d(first.rows, own.rows)) == len(own.rows) - 10 == 80


def test_exact_answers_are_refused(tmp_path):
    federation = Federation(tmp_path, STUDY, south={"disclosure": 0.001})
    assert "exact answers (coarse = false) leave none" in check(federation.study, federation.policy("south")).wrong[0]
    with pytest.raises(RefusedError, match="disclosure"):
        federation.run()
    assert not federation.store("south").all(["south"])


@pytest.mark.long
def test_exact_answers_leave_nothing(tmp_path):
    federation = Federation(tmp_path, STUDY)
    federation.run(until=8)
    found = reading_at(federation, "north")
    assert (found.least, found.typical, found.apart) == (0.0, 0.0, np.inf)
    assert federation.audit("north")[-1].get("disclosure", {"least": 0.0})["least"] == 0.0


def test_a_site_refuses_by_the_forecast_before_its_first_answer(tmp_path):
    federation = Federation(tmp_path, COARSE, **{**USUAL, "south": {"exact": False, "disclosure": 0.5}})
    found = check(federation.study, federation.policy("south"))
    assert found.wrong == [] and "needs an sd of 0.5 for each cell" in found.perhaps[0]
    with pytest.raises(DataError, match="the answers of this study would leave about 0.0"):
        federation.run()
    # the reason is from public facts
    assert reading_at(federation, "south") is None


def test_a_site_refuses_an_answer_that_would_leave_too_little(tmp_path, monkeypatch):
    federation = Federation(tmp_path, COARSE, **{**USUAL, "south": {"exact": False, "disclosure": 0.2}})
    monkeypatch.setattr(meter, "forecast", lambda *_, **__: 1.0)
    with pytest.raises(RefusedError, match=r"needs an sd of 0.2 for each cell .*this answer would leave 0"):
        federation.run()
    # what was sent before leaves more
    assert reading_at(federation, "south").least >= 0.2
    assert "this answer would leave" in federation.audit("south")[-1]["refused"]


def test_other_families_have_no_optimistic_forecast(coarse):
    federation, _ = coarse
    few, many = (meter.forecast(3, rows, 4000, bounded=True) for rows in (300, 1200))
    assert many == pytest.approx(2.0 * few)
    assert meter.forecast(3, 300, 4000, bounded=False) == 0.25 * few


def test_commands_show_the_numbers_of_the_site(coarse):
    federation, _ = coarse
    study = federation.folder / "study.toml"
    study.write_text(federation.text)
    site, runner = str(federation.folder / "north" / "site.toml"), CliRunner()
    checked = runner.invoke(app, ["study", "check", str(study), site])
    assert "forecast with as many rows at all sites" in checked.output
    empty = federation.folder / "another-board"
    shutil.copytree(federation.board.folder, empty)
    for path in empty.rglob("north.json"):
        path.unlink()
    answered = runner.invoke(app, ["study", "answer", str(study), site, str(empty), "--yes"])
    assert "this site only: someone with all other rows knows the most exposed cell to 0.0" in answered.output


@pytest.mark.parametrize(
    ("line", "text"),
    [("disclosure = 0", "a finite number > 0"), ("disclosure = true", "type float"), ('disclosure = "a"', "float")],
)
def test_a_wrong_key_of_a_policy_is_an_error(tmp_path, line, text):
    federation = Federation(tmp_path)
    path = tmp_path / "north" / "site.toml"
    path.write_text(f"{line}\n{path.read_text()}")
    with pytest.raises(ValueError, match=text):
        federation.policy("north")
    path.write_text(path.read_text().replace(line, "disclosure = 1"))
    assert SitePolicy.read(path).disclosure == 1.0 and hash_of(federation.text) in SitePolicy.read(path).studies
