"""Studies with differential privacy: what leaves, the ledger, and the draws of one process."""

import csv
import io
import json
import shutil
import warnings
from dataclasses import replace

import numpy as np
import pytest
from test_federation import SITES, Federation
from typer.testing import CliRunner

import accord
from accord.base.errors import DataError
from accord.cli import app
from accord.federation import RefusedError, Site, StudyDocument, result
from accord.federation.check import check
from accord.federation.engine import CoarseStudyTotals
from accord.federation.ledger import Ledger, _plain
from accord.federation.program import remedy
from accord.samplers.by_sums import private_model
from accord.samplers.by_sums.private import spent, strength

STUDY = """
[data]
sites = ["north", "south", "west"]

[model]
formula = "died ~ scale(age) + ward"
family = "bernoulli"

[model.ranges]
age = [20, 90]
ward = ["a", "b", "c"]
died = [0, 1]

[private]
epsilon = 3.0

[run]
draws = 200
"""
# The same columns without differential privacy.
OPEN = STUDY.replace(STUDY[STUDY.index("[model.ranges]") : STUDY.index("[run]")], "")
ROWS = 2000


def table(place, rows=ROWS):
    rng = np.random.default_rng(place)
    age, ward = rng.uniform(20, 90, rows), rng.choice(["a", "b", "c"], rows, p=[0.5, 0.3, 0.2])
    died = rng.random(rows) < 1 / (1 + np.exp(-(0.03 * (age - 55) + 0.4 * (ward == "b"))))
    return {"age": age, "ward": ward, "died": died.astype(int)}


def written(found):
    return "\n".join([",".join(found), *(",".join(map(str, row)) for row in zip(*found.values(), strict=True))])


def federation(folder, study=STUDY, **changes):
    found = Federation(folder, study, **{site: {"exact": False} | changes for site in SITES})
    for place, site in enumerate(SITES):
        (folder / site / "rows.csv").write_text(written(table(place)))
    return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    found = federation(tmp_path_factory.mktemp("private"))
    return found, found.run()


def test_all_sites_have_the_same_certified_draws(finished):
    found, runs = finished
    first, *others = (runs[site] for site in SITES)
    assert first.certificate.holds, first.certificate
    for other in [*others, result(found.study, found.board.folder, found.public)]:
        np.testing.assert_array_equal(first.draws, other.draws)
    assert first.private["epsilon"] == 3.0 and first.traffic.sums == 2
    # keys, numbers of rows, two sums and the result
    assert len(found.board.all(SITES)) == 5 * 3


def test_draws_are_near_those_without_noise(finished):
    found, runs = finished
    ranges = {name: tuple(own) for name, own in found.study.ranges.columns.items()}
    post = accord.models.glm([table(k) for k in range(3)], "died ~ scale(age) + ward", "bernoulli", ranges=ranges)
    exact = accord.sample(post, accord.Network.star(3), draws=1000)
    off = runs["north"].draws.mean(axis=(0, 1, 2)) - exact.draws.mean(axis=(0, 1, 2))
    assert (np.abs(off) < 3.0 * runs["north"].draws.std(axis=(0, 1, 2))).all()


def test_nothing_but_row_counts_leaves_before_noised_sums(finished):
    found, _ = finished
    for site in SITES:
        contents = [json.loads(found.board.read(step, site).splitlines()[0])["content"] for step in range(5)]
        assert contents[1] == {"rows": ROWS} and contents[4] is None
        assert [set(contents[step]) for step in (0, 2, 3)] == [{"accord", "identity", "masks"}, {"coarse"}, {"coarse"}]


@pytest.mark.long
def test_the_noise_of_sites_has_the_stated_size(tmp_path, monkeypatch):
    """Against t sites, the noise of the others is that of one owner."""
    seen, usual = [], CoarseStudyTotals._sender

    def recorded(self, coder, question):
        seen.append(coder)
        return usual(self, coder, question)

    monkeypatch.setattr(CoarseStudyTotals, "_sender", recorded)
    found = federation(tmp_path)
    runs = found.run()
    steps = runs["north"].private["noise"]
    for step, coder in zip(steps, (seen[0], seen[-1]), strict=True):
        # the noise of all three, of which two are enough
        assert coder.noise[0] * 3**0.5 == pytest.approx(step["gradient"])
    mu = strength(3.0, 1e-6)
    sensitivity = [step["gradient"] / (3 / 2) ** 0.5 for step in steps]
    radii = [one * mu * share**0.5 / 2 for one, share in zip(sensitivity, (0.14, 0.86), strict=True)]
    # a row's gradient has at most the norm of its columns
    assert all(0.5 * 4**0.5 <= radius <= 2.0 * 4**0.5 for radius in radii)


def test_the_model_does_not_depend_on_rows(tmp_path):
    """Rows that do not fit, other levels and numbers beyond the range change no word that leaves."""
    found = federation(tmp_path)
    odd = table(0)
    odd["age"] = [*odd["age"][:-3], "", "abc", 1e300]
    odd["ward"] = [*odd["ward"][:-4], "a", "a", "a", "zz"]
    odd["died"] = [*odd["died"][:-5], 2, 0, 1, 0, 1]
    (tmp_path / "north" / "rows.csv").write_text(written(odd))
    runs = found.run()
    assert runs["north"].certificate.holds and any("4 of 2000 rows are left out" in line for line in found.log)
    content = json.loads(found.board.read(1, "north").splitlines()[0])["content"]
    assert content == {"rows": ROWS} and runs["north"].private["wider"].keys() == runs["south"].private["wider"].keys()


@pytest.mark.long
def test_a_site_without_a_fitting_row_takes_part(tmp_path):
    found = federation(tmp_path)
    (tmp_path / "north" / "rows.csv").write_text(written({**table(0), "died": np.full(ROWS, 7)}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = found.run()["south"]
    assert [check.name for check in run.certificate.checks if not check.holds] == ["rows"]
    assert "about 6" in str(run.certificate) and "of the rows count" in str(run.certificate)


@pytest.mark.parametrize("line", ['50,"a,1', "50,a,1,1", "50", "\udcfc50,a,1", "71.5,a,1", "1e999,a,1", "x,y,z"])
def test_no_line_of_a_file_stops_a_study(tmp_path, line):
    """Entries before the noised sums are the same whatever a row contains."""
    found = federation(tmp_path)
    path = tmp_path / "north" / "rows.csv"
    lines = path.read_text().splitlines()
    path.write_bytes("\n".join([*lines[:7], line, *lines[8:]]).encode(errors="surrogateescape"))
    found.run(until=2)
    content = json.loads(found.board.read(1, "north").splitlines()[0])["content"]
    assert content == {"rows": ROWS} and found.board.read(2, "north")


@pytest.mark.long
def test_a_linear_study(tmp_path):
    text = (
        STUDY.replace("died ~ scale(age)", "pressure ~ died")
        .replace("bernoulli", "normal")
        .replace("age = [20, 90]", "pressure = [60.0, 200.0]")
    )
    found, tables = federation(tmp_path, text), []
    for place, site in enumerate(SITES):
        random, own = np.random.default_rng(place + 10), table(place)
        own["pressure"] = 125.0 + 6.0 * own["died"] - 3.0 * (own["ward"] == "b") + 15.0 * random.standard_normal(ROWS)
        (tmp_path / site / "rows.csv").write_text(written(own))
        tables.append(own)
    runs = found.run()
    exact = accord.models.glm(tables, "pressure ~ died + ward", "normal")
    expected = accord.sample(exact, accord.Network.star(3), draws=1000).draws.mean(axis=(0, 1, 2))
    assert runs["north"].certificate.holds, runs["north"].certificate
    off = runs["north"].draws.mean(axis=(0, 1, 2)) - expected
    assert (np.abs(off) < 3.5 * runs["north"].draws.std(axis=(0, 1, 2))).all()


# Regressions of counts in a wide range.
COUNTS = STUDY.replace("died ~", "visits ~").replace("bernoulli", "negative_binomial")
COUNTS = COUNTS.replace("died = [0, 1]", "visits = [0, 200]")


def counts(folder, text=COUNTS):
    """Sites with counts that are Poisson, or have the variance mean + mean^2 / 2."""
    found = federation(folder, text)
    for place, site in enumerate(SITES):
        random, own = np.random.default_rng(place + 10), table(place)
        age = (own["age"] - 55.0) / (70.0 / 12.0**0.5)
        mean = np.exp(1.0 + 0.3 * age + 0.4 * (own["ward"] == "b"))
        frailty = random.gamma(2.0, 0.5, ROWS) if "negative" in text else 1.0
        (folder / site / "rows.csv").write_text(written({**own, "visits": random.poisson(mean * frailty)}))
    return found


def test_sites_send_sums_of_another_family_with_noise(tmp_path, monkeypatch):
    monkeypatch.setattr(private_model, "_REPLICATES", 20)
    found = counts(tmp_path)
    seen = check(found.study, found.policy("north"))
    assert not seen.wrong and not seen.perhaps and seen.coverage.is_enough
    found.run(until=2)
    content = json.loads(found.board.read(2, "north").splitlines()[0])["content"]
    assert set(content) == {"coarse"}
    # the site has entered the study
    other = StudyDocument(COUNTS.replace("draws = 200", "draws = 100"))
    assert epsilon(found.policy("north"), other) == pytest.approx(spent(2**0.5 * strength(3.0, 1e-6), 1e-6), rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["poisson", "negative_binomial"])
def test_a_study_of_counts(family, tmp_path, monkeypatch):
    monkeypatch.setattr(private_model, "_REPLICATES", 20)
    found = counts(tmp_path, COUNTS.replace("negative_binomial", family))
    runs = found.run()
    first = runs["north"]
    assert first.certificate.holds, first.certificate
    assert first.traffic.sums == 3 and first.private["epsilon"] == 3.0
    for other in [runs["south"], runs["west"], result(found.study, found.board.folder, found.public)]:
        np.testing.assert_array_equal(first.draws, other.draws)
    truth = [1.0, 0.3, 0.4, 0.0, 2.0][: first.draws.shape[-1]]
    off = first.draws.mean(axis=(0, 1, 2)) - truth
    assert (np.abs(off) < 3.5 * first.draws.std(axis=(0, 1, 2))).all()
    for site in SITES:
        assert epsilon(found.policy(site), found.study) == pytest.approx(3.0, rel=1e-6)


# --- ledger ---


def again(found, study):
    """The same sites, which have the same files, in another study."""
    found.text, found.board = study, type(found.board)(found.board.folder.parent / f"board {hash(study)}")
    for site in SITES:
        found.write(site, exact=False, **found.changes)
    return found


@pytest.fixture
def ledger(tmp_path):
    found = federation(tmp_path)
    found.changes = {}
    return found


def entered(policy, study):
    """Enter a study as a site does."""
    folder = policy.folder / study.hash[:16]
    folder.mkdir(parents=True, exist_ok=True)
    Ledger(policy).add(study, folder)


def epsilon(policy, study):
    return Ledger(policy).state(study)[0]


def test_epsilons_add_up_over_studies_and_versions_of_the_file(ledger):
    study, policy = ledger.study, ledger.policy("north")
    assert epsilon(policy, study) == pytest.approx(3.0, rel=1e-6)
    entered(policy, study)
    entered(policy, study)
    other = StudyDocument(STUDY.replace("draws = 200", "draws = 100"))
    expected = spent(2**0.5 * strength(3.0, 1e-6), 1e-6)
    assert epsilon(policy, other) == pytest.approx(expected, rel=1e-6) and 3.5 < expected < 6.0
    # one row of the old file is left
    lines = written(table(0)).splitlines()
    fresh = written(table(9)).splitlines()
    (ledger.folder / "north" / "rows.csv").write_text("\n".join([*fresh[:-1], lines[5]]))
    assert epsilon(policy, other) == pytest.approx(expected, rel=1e-6)
    (ledger.folder / "north" / "rows.csv").write_text("\n".join(fresh))
    assert epsilon(policy, other) == pytest.approx(3.0, rel=1e-6)


def test_another_folder_of_a_study_is_another_release(ledger):
    study, policy = ledger.study, ledger.policy("north")
    ledger.answer("north")
    ledger.answer("north")
    assert epsilon(policy, study) == pytest.approx(3.0, rel=1e-6)
    shutil.rmtree(policy.folder / study.hash[:16])
    assert epsilon(policy, study) == pytest.approx(spent(2**0.5 * strength(3.0, 1e-6), 1e-6), rel=1e-6)


def test_a_study_cannot_make_rows_look_new(ledger):
    policy = ledger.policy("north")
    path = ledger.folder / "north" / "rows.csv"
    path.write_text(
        "\ufeff" + path.read_text().replace("age,ward,died", "age,ward,died,größe").replace(",0\n", ",0,1\n")
    )
    entered(policy, ledger.study)
    for keys in ('encoding = "cp437"', 'encoding = "koi8-r"', 'separator = ";"', "header = 2"):
        other = StudyDocument(STUDY.replace("[model]", f"{keys}\n[model]", 1))
        assert epsilon(policy, other) > 3.5
    # nor does another order of the columns
    path.write_text("\n".join(",".join(reversed(line.split(","))) for line in path.read_text().splitlines()))
    assert epsilon(policy, StudyDocument(STUDY.replace("draws = 200", "draws = 100"))) > 3.5


def test_a_large_delta_is_not_a_small_epsilon(ledger):
    policy = ledger.policy("north")
    weak = StudyDocument(STUDY.replace("epsilon = 3.0", "epsilon = 0.001\ndelta = 0.009"))
    assert epsilon(policy, weak) > 0.05
    with pytest.raises(ValueError, match="delta must be between"):
        StudyDocument(STUDY.replace("epsilon = 3.0", "epsilon = 0.001\ndelta = 0.9"))


def test_a_policy_limits_colluding(ledger):
    ledger.changes = {}
    text = STUDY.replace("epsilon = 3.0", "epsilon = 3.0\ncolluding = 0")
    with pytest.raises(RefusedError, match="needs protection against 1 colluding"):
        again(ledger, text).answer("north")
    ledger.changes = {"colluding": 0}
    again(ledger, text).answer("north")


def test_a_study_protects_against_all_other_sites_at_most(ledger):
    with pytest.raises(ValueError, match="at most 2, .* found 3"):
        StudyDocument(STUDY.replace("epsilon = 3.0", "epsilon = 3.0\ncolluding = 3"))
    ledger.changes = {"colluding": 3}
    with pytest.raises(RefusedError, match="against 1. A study of 3 sites can protect against 2 at most"):
        again(ledger, STUDY).answer("north")


def test_a_damaged_ledger_is_an_error(ledger):
    policy = ledger.policy("north")
    entered(policy, ledger.study)
    (damaged,) = (policy.folder / "ledger").glob("*.npz")
    damaged.write_bytes(b"PK")
    with pytest.raises(DataError, match="damaged file, .*restore it"):
        epsilon(policy, StudyDocument(STUDY.replace("draws = 200", "draws = 100")))


@pytest.mark.parametrize("limit", [0.1, 0.5, 1.0, 3.0])
def test_a_study_of_exactly_the_limit_is_allowed(ledger, limit):
    ledger.changes = {"epsilon": limit}
    again(ledger, STUDY.replace("epsilon = 3.0", f"epsilon = {limit}"))
    Ledger(ledger.policy("north")).require(ledger.study)


def test_a_policy_limits_epsilon(ledger):
    ledger.changes = {"epsilon": 4.0}
    again(ledger, STUDY)
    ledger.answer("north")
    again(ledger, STUDY.replace("draws = 200", "draws = 100"))
    with pytest.raises(RefusedError, match="allows an epsilon of 4"):
        ledger.answer("north")
    assert "allows an epsilon of 4" in check(ledger.study, ledger.policy("north")).wrong[0]
    # the same study goes on
    again(ledger, STUDY)
    ledger.answer("north")


@pytest.mark.parametrize(("first", "second"), [(STUDY, OPEN), (OPEN, STUDY)])
def test_both_kinds_of_studies_never_read_the_same_rows(ledger, first, second):
    again(ledger, first).answer("north")
    with pytest.raises(RefusedError, match="does not allow that by `mixed`"):
        again(ledger, second).answer("north")
    assert "does not allow that by `mixed`" in check(ledger.study, ledger.policy("north")).wrong[0]
    ledger.changes = {"mixed": True}
    again(ledger, second).answer("north")


@pytest.mark.parametrize("text", ["{}.0", "0{}", " {}", "{},0", '"{}"'])
def test_an_id_with_the_same_number_is_the_same_person(ledger, text):
    def write(ids):
        path = ledger.folder / "north" / "rows.csv"
        path.write_text(written({**table(0), "id": ids}).replace(",", ";"))

    ledger.changes = {"person": "id"}
    write(np.arange(ROWS))
    again(ledger, STUDY)
    entered(ledger.policy("north"), ledger.study)
    write([text.format(k).replace(",", "#") for k in range(ROWS)])
    path = ledger.folder / "north" / "rows.csv"
    path.write_text(path.read_text().replace("#", ","))
    assert epsilon(ledger.policy("north"), StudyDocument(STUDY.replace("draws = 200", "draws = 100"))) > 3.5


def other():
    return StudyDocument(STUDY.replace("draws = 200", "draws = 100"))


@pytest.mark.parametrize("person", ["id", None])
@pytest.mark.parametrize("separator", [",", ";", "\t", " "])
def test_another_way_to_quote_or_separate_cells_makes_no_new_rows(ledger, person, separator):
    """A name with a comma stands before the column that recognises rows."""

    def write(separator, quoting):
        content = io.StringIO()
        lines = csv.writer(content, delimiter=separator, quoting=quoting, lineterminator="\n")
        lines.writerows([["name", "id", *table(0)], *rows])
        (ledger.folder / "north" / "rows.csv").write_text(content.getvalue())

    found = zip(*table(0).values(), strict=True)
    rows = [[f"Smith{k % 7}, John; jr.", f"P{k}", *own] for k, own in enumerate(found)]
    ledger.changes = {"person": person} if person else {}
    write(",", csv.QUOTE_MINIMAL)
    again(ledger, STUDY)
    entered(ledger.policy("north"), ledger.study)
    if person:
        # a name changes, and a person does not
        rows = [[f"Smith{k % 5}, J.", *own[1:]] for k, own in enumerate(rows)]
    write(separator, csv.QUOTE_ALL)
    hashes = Ledger(ledger.policy("north")).require(other()).rows
    (line,) = Ledger(ledger.policy("north"))._others(other())
    assert set(hashes) == set(line.rows) and hashes.size == ROWS


def test_a_name_with_a_comma_hides_no_second_row_of_a_person(ledger):
    rows = [f'"Smith, visit {k}",P{k // 2},50,a,1' for k in range(ROWS)]
    path = ledger.folder / "north" / "rows.csv"
    path.write_text("\n".join(["name,id,age,ward,died", *rows]))
    ledger.changes = {"person": "id"}
    with pytest.raises(RefusedError, match="several rows of one person"):
        again(ledger, STUDY).answer("north")


def test_lines_that_a_study_leaves_out_are_rows_of_the_ledger(ledger):
    path = ledger.folder / "north" / "rows.csv"
    odd = ["1", "50,a,1,7,8", '50,"a,1', "", '50,"a"b,1,7', "50,a,1,7,8"]
    path.write_text("\n".join([written({**table(0), "id": np.arange(ROWS)}), *odd]))
    ledger.changes = {"person": "id"}
    again(ledger, STUDY).answer("north")
    assert epsilon(ledger.policy("north"), other()) > 3.5
    (line,) = Ledger(ledger.policy("north"))._others(other())
    assert line.rows.size == ROWS + 5


def test_a_header_may_be_below_other_lines(ledger):
    path = ledger.folder / "north" / "rows.csv"
    path.write_text("An export; with a title, and\n\n" + written({**table(0), "id": np.arange(ROWS)}))
    ledger.changes = {"person": "id"}
    again(ledger, STUDY.replace("[model]", "header = 3\n[model]", 1)).answer("north")
    assert Ledger(ledger.policy("north")).require(ledger.study).rows.size == ROWS


@pytest.mark.parametrize(
    ("cell", "same"),
    [
        ("1e+05", "100000"),
        (".7", "0.70"),
        ("7e3", "7000.0"),
        ("1e-7", "0.0000001"),
        (",5", "5E-1"),
        ("-0.0", "0"),
        ("+0012", "12"),
        ("12345678901234567890", "12345678901234567890.0"),
        ("Infinity", "1e999"),
        ("0e99999999999999999999", "0"),
    ],
)
def test_spellings_of_a_number(cell, same):
    assert _plain(cell) == _plain(same)


@pytest.mark.parametrize(
    ("cell", "different"),
    [
        ("12345678901234567890", "12345678901234567891"),
        ("1" * 40, "1" * 39 + "2"),
        ("0.12345678901234567890", "0.12345678901234567891"),
        ("1_000", "1000"),
        ("-1", "1"),
        ("1,2,3", "1.23"),
        ("100", "10"),
    ],
)
def test_different_numbers(cell, different):
    assert _plain(cell) != _plain(different)


@pytest.mark.parametrize(("before", "after"), [("id", None), (None, "id"), ("id", "number")])
def test_rows_are_recognised_by_one_column_in_all_studies(ledger, before, after):
    path = ledger.folder / "north" / "rows.csv"
    path.write_text(written({**table(0), "id": np.arange(ROWS), "number": np.arange(ROWS)}))
    names = {name: {"person": name} if name else {} for name in (before, after)}
    ledger.changes = names[before]
    again(ledger, STUDY).answer("north")
    ledger.changes = names[after]
    again(ledger, STUDY.replace("draws = 200", "draws = 100"))
    remedy = 'set person = "id" again' if before else "remove `person`"
    with pytest.raises(RefusedError, match=f"by which all rows look new. In the policy, {remedy}"):
        ledger.answer("north")
    assert remedy in check(ledger.study, ledger.policy("north")).wrong[0]
    # nor may a study of the other kind look as if it read other rows
    again(ledger, OPEN)
    with pytest.raises(RefusedError, match="all rows look new"):
        ledger.answer("north")
    assert remedy in check(ledger.study, ledger.policy("north")).wrong[0]
    ledger.changes = names[before]
    again(ledger, STUDY.replace("draws = 200", "draws = 100")).answer("north")


def test_rows_are_recognised_by_person(ledger):
    def file(number, shift=0):
        found = table(number)
        return written({**found, "id": np.arange(ROWS) + shift})

    path = ledger.folder / "north" / "rows.csv"
    path.write_text(file(0))
    ledger.changes = {"person": "id"}
    again(ledger, STUDY)
    entered(ledger.policy("north"), ledger.study)
    other = StudyDocument(STUDY.replace("draws = 200", "draws = 100"))
    # other cells, the same persons
    path.write_text(file(5))
    assert epsilon(ledger.policy("north"), other) > 3.5
    path.write_text(file(5, ROWS))
    assert epsilon(ledger.policy("north"), other) == pytest.approx(3.0, rel=1e-6)
    path.write_text(file(0).replace(",1\n", ",0\n", 1))
    with pytest.raises(RefusedError, match="several rows of one person"):
        epsilon(ledger.policy("north"), other)
    ledger.changes = {"person": "patient"}
    again(ledger, STUDY)
    with pytest.raises(DataError, match="no column 'patient'"):
        epsilon(ledger.policy("north"), other)


# --- the document and the check ---


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("epsilon = 3.0", "delta = 1e-6", "no epsilon"),
        ("epsilon = 3.0", "epsilon = -1.0", "epsilon must be"),
        ("epsilon = 3.0", "epsilon = 1e-12", "epsilon must be between"),
        ("+ ward", "+ C(age) + ward", "needs levels"),
        ("[model]\n", 'encoding = "utf-16"\n[model]\n', "needs an encoding"),
        ("epsilon = 3.0", 'epsilon = "3"', "epsilon in .private. must be"),
        ("epsilon = 3.0", "epsilon = 3.0\nrho = 1.0", "rho"),
        ('ward = ["a", "b", "c"]\n', "", "ranges has no entry for ward"),
        ("age = [20, 90]", "age = [90, 20]", "age needs a lowest and a higher number"),
        (
            "age = [20, 90]",
            "age = [20, 90]\nagee = [0, 1]",
            "entry for 'agee', and the formula has age, died, ward only",
        ),
        ('family = "bernoulli"', 'family = "student"', "needs known degrees of freedom"),
        ("+ ward", "+ (1 | ward)", "cannot have effects of groups"),
        ("draws = 200", "draws = 200\ncoarse = false", "cannot have coarse"),
        ("draws = 200", "draws = 200\nreport = true", "cannot have report: sites send noised sums only"),
        ("draws = 200", "draws = 200\nfallback = true", "cannot have fallback"),
        ("epsilon = 3.0", "epsilon = 3.0\ndelta = 0", "delta must be"),
        ("scale(age) +", "0 + scale(age) +", "remove 0 . from the formula"),
        (
            "age = [20, 90]",
            "age = [20, 90]\ndose = [0, 1]",
            "entry for 'dose', and the formula has age, died, ward only",
        ),
        ("scale(age)", "log(age - 20)", "not finite in some rows that the declared ranges allow"),
        (
            'sites = ["north", "south", "west"]',
            'sites = ["north", "south", "west"]\nmissing = "drop"',
            "cannot have missing",
        ),
        ('family = "bernoulli"', 'family = "bernoulli"\nweights = "w"', "cannot have weights"),
        ("[private]\nepsilon = 3.0\n", "", "add a .private. section"),
    ],
)
def test_wrong_documents_raise(before, after, message):
    with pytest.raises(ValueError, match=message):
        StudyDocument(STUDY.replace(before, after))


def test_the_check_shows_epsilon_and_coverage(tmp_path, monkeypatch):
    found = federation(tmp_path)
    (tmp_path / "study.toml").write_text(STUDY)
    words = ["study", "check", str(tmp_path / "study.toml"), str(tmp_path / "north" / "site.toml")]
    out = CliRunner().invoke(app, words)
    assert out.exit_code == 0, out.output
    assert (
        "this one included: 3" in out.output
        and "times as wide as without noise, for columns spread evenly" in out.output
    )
    assert not (tmp_path / "north" / "kept" / "ledger").exists()
    monkeypatch.setattr(private_model, "COVERAGE", 1.0)
    assert "Use more rows" in check(found.study, found.policy("north")).perhaps[0]


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("died", ["yes"] * ROWS, "rows are left out"),
        ("age", np.full(ROWS, 700.0), "numbers of age are beyond its range"),
    ],
)
def test_the_check_sees_cells_that_do_not_fit(tmp_path, column, values, message):
    found = federation(tmp_path)
    (tmp_path / "north" / "rows.csv").write_text(written({**table(0), column: values}))
    (text,) = check(found.study, found.policy("north")).wrong
    assert f"{ROWS} of {ROWS} {message}" in text and "look at units" in text


def test_the_site_alone_learns_of_numbers_beyond_their_ranges(tmp_path):
    found = federation(tmp_path)
    own = table(0)
    own["age"][:100] = 999
    (tmp_path / "north" / "rows.csv").write_text(written(own))
    with pytest.warns(UserWarning, match="north .rows.csv.: column 'age' has a number such as -999 .* in 100 rows"):
        check(found.study, found.policy("north"))
    found.run(until=2)
    (line,) = {line for line in found.log if "beyond its range" in line}
    assert "more than 1% of the numbers of age" in line and found.board.read(2, "north")


def test_entries_without_their_sites_raise(tmp_path):
    found = federation(tmp_path)
    entries = Site(found.policy("north")).answer(found.study, {}).entries
    with pytest.raises(TypeError, match=r"must be pairs \(step, site\), found 0"):
        Site(found.policy("south")).answer(found.study, entries)


def test_the_check_doubts_a_study_that_is_not_certified(tmp_path):
    found = federation(tmp_path)
    own = table(0)
    own["ward"][: ROWS // 8] = "d"
    (tmp_path / "north" / "rows.csv").write_text(written(own))
    done = check(found.study, found.policy("north"))
    assert done.wrong == [] and done.misfits == {"age": 0, "ward": ROWS // 8, "died": 0}
    assert done.perhaps == [
        "the study is not certified: 250 of 2000 rows are left out, at most 10% of the rows of all sites may be"
    ]
    (tmp_path / "study.toml").write_text(STUDY)
    words = ["study", "check", str(tmp_path / "study.toml"), str(tmp_path / "north" / "site.toml")]
    out = CliRunner().invoke(app, words)
    assert "cells that do not fit: 250 of ward\n" in out.output
    assert "north can take part. If the other sites are like this one, the study fails" in out.output


def test_a_refused_study_has_no_forecast_of_the_meter(tmp_path):
    found = federation(tmp_path)
    found.write("north", exact=False, columns=["age"])
    done = check(found.study, found.policy("north"))
    assert "does not allow the columns" in done.wrong[0] and done.forecast is None


def test_too_much_noise_is_refused_before_a_sum(tmp_path):
    text = STUDY.replace("epsilon = 3.0", "epsilon = 0.02")
    found = federation(tmp_path, text)
    (doubt,) = check(found.study, found.policy("north")).perhaps
    assert "about as wide as without any rows" in doubt and "larger epsilon" in doubt
    with pytest.raises(ValueError, match="Nothing was released"):
        found.run()
    assert not found.board.read(2, "north")


def test_a_failed_private_study_spends_its_epsilon(finished):
    found, runs = finished
    failed = runs["north"].certificate._replace(checks=(runs["north"].certificate.checks[0]._replace(holds=False),))
    text = remedy(found.study, replace(runs["north"], certificate=failed))
    assert "epsilon is spent" in text and "larger epsilon" in text and "coarse" not in text


def test_without_a_column_a_site_refuses_before_it_enters_the_ledger(tmp_path):
    found = federation(tmp_path)
    (tmp_path / "north" / "rows.csv").write_text(written({k: v for k, v in table(0).items() if k != "ward"}))
    assert any("no column 'ward'" in text for text in check(found.study, found.policy("north")).wrong)
