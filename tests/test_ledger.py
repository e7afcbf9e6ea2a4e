"""The ledger compares the files of studies without differential privacy, so that two of them reveal no few rows."""

import itertools
import json

import numpy as np
import pytest
from test_federation import COARSE, SITES, Federation
from test_private_study import STUDY as PRIVATE

from accord.base.errors import DataError
from accord.federation import RefusedError, StudyDocument
from accord.federation.check import check
from accord.federation.ledger import Ledger
from accord.federation.meter import Meter

FLOOR = 10
REFUSED = "refused, fewer than 10 rows .* both studies together would reveal these rows. Keep the old file"


def again(found, study=None, **changes):
    """The same sites and files in another study, by default with another seed."""
    number = next(found.numbers)
    found.text = COARSE.replace("draws = 200", f"draws = 200\nseed = {number}") if study is None else study
    found.board = type(found.board)(found.folder / f"board {number}")
    for site in SITES:
        found.write(site, exact=False, **changes)
    return found


@pytest.fixture
def sites(tmp_path):
    found = Federation(tmp_path, COARSE)
    found.numbers = itertools.count(1)
    return again(found)


def lines_of(found):
    return (found.folder / "north" / "rows.csv").read_text().splitlines()


def put(found, lines):
    (found.folder / "north" / "rows.csv").write_text("\n".join(lines))


def entered(found):
    """Enter the study at the first site, as `Site.answer` does."""
    policy, study = found.policy("north"), found.study
    folder = policy.folder / study.hash[:16]
    folder.mkdir(parents=True)
    Ledger(policy).add(study, folder)


def assert_passes(found):
    Ledger(found.policy("north")).require(found.study)


def assert_refused(found):
    with pytest.raises(RefusedError, match=REFUSED):
        Ledger(found.policy("north")).require(found.study)


def new(number, first=0):
    """Lines of patients that no file has."""
    return [f"{30 + (first + k) / 7:.3f},a,no" for k in range(number)]


def test_two_studies_that_differ_in_one_patient_are_refused(sites):
    """The host of the folder, without any row, found this patient's age to .03 standard deviations."""
    sites.run(until=4)
    put(again(sites), [*lines_of(sites), "81.3,b,yes"])
    with pytest.raises(RefusedError, match=REFUSED) as refused:
        sites.answer("north")
    assert sites.audit("north")[-1]["refused"] == str(refused.value) and "81.3" not in str(refused.value)
    assert not sites.store("north").all(["north"])
    assert check(sites.study, sites.policy("north")).wrong == [str(refused.value)]
    # over Flower, the server and its log have the reason
    request = json.dumps({"study": sites.text, "since": 0, "entries": []}).encode()
    assert str(refused.value) in json.loads(sites.message("north", request))["error"]
    # the old file passes
    put(sites, lines_of(sites)[:-1])
    sites.answer("north")


@pytest.mark.parametrize(
    ("change", "passes"),
    [
        (lambda lines: lines, True),
        (lambda lines: [lines[0], *reversed(lines[1:])], True),
        (lambda lines: [*lines, *new(1)], False),
        (lambda lines: lines[:-1], False),
        (lambda lines: [*lines[:-1], lines[-1].replace(lines[-1].split(",")[0], "51.5")], False),
        (lambda lines: [*lines, *new(FLOOR - 1)], False),
        (lambda lines: [*lines, *new(FLOOR)], True),
        (lambda lines: lines[: 1 - FLOOR], False),
        (lambda lines: lines[:-FLOOR], True),
        (lambda lines: [*lines[:-1], *new(FLOOR)], False),
        (lambda lines: [*lines[:-FLOOR], *new(1)], False),
        (lambda lines: [*lines[:-FLOOR], *new(FLOOR)], True),
        (lambda lines: [*lines[:-FLOOR], *(line.replace(",a,", ",b,") for line in lines[-FLOOR:])], False),
        (lambda lines: [*lines[:-40], *(line.replace(",a,", ",b,") for line in lines[-40:])], True),
        # a copy of a row is a row
        (lambda lines: [*lines, lines[1]], False),
    ],
)
def test_files_that_differ_in_few_rows_are_refused(sites, change, passes):
    entered(sites)
    put(again(sites), change(lines_of(sites)))
    (assert_passes if passes else assert_refused)(sites)


def test_a_person_with_another_cell_is_a_changed_row(sites):
    rows = [f"{line},{'id' if not k else f'P{k}'}" for k, line in enumerate(lines_of(sites))]
    put(again(sites, person="id"), rows)
    entered(sites)
    # a new column makes no new persons
    put(again(sites, person="id"), [f"{line},{k}" for k, line in enumerate(rows)])
    assert_passes(sites)
    put(sites, [f"{line},{k}" for k, line in enumerate([*rows, "50.5,a,no,P999"])])
    assert_refused(sites)
    for number, passes in [(1, False), (FLOOR, True)]:
        put(sites, [*rows[:-number], *(line.replace(",P", "0,P") for line in rows[-number:])])
        (assert_passes if passes else assert_refused)(sites)
    again(sites)
    with pytest.raises(RefusedError, match="recognised the rows of earlier studies by the column 'id'"):
        Ledger(sites.policy("north")).require(sites.study)


def test_the_policy_has_the_number_of_rows(sites):
    entered(sites)
    for rows, passes in [(1, True), (3, True), (4, False)]:
        put(again(sites, rows=rows), [*lines_of(sites)[:91], *new(3)])
        if passes:
            assert_passes(sites)
        else:
            with pytest.raises(RefusedError, match="fewer than 4 rows"):
                assert_passes(sites)


def test_private_studies_may_differ_in_one_row(sites):
    put(again(sites, PRIVATE), [line.replace("yes", "1").replace("no", "0") for line in lines_of(sites)])
    entered(sites)
    put(again(sites, PRIVATE.replace("draws = 200", "draws = 100")), lines_of(sites)[:-1])
    assert_passes(sites)
    # nor is a study without differential privacy compared with one that has it
    again(sites, mixed=True)
    assert_passes(sites)


def test_three_files(sites):
    """With rows that all of three files have, no sum and difference of the three has 1 to 9 rows if no pair has."""
    first = lines_of(sites)
    entered(sites)
    put(again(sites), [*first, *new(FLOOR)])
    entered(sites)
    put(again(sites), [*first, *new(FLOOR - 1)])
    assert_refused(sites)
    put(sites, [*first[:-1], *new(FLOOR)])
    assert_refused(sites)
    put(sites, [*first, *new(FLOOR), *new(1, first=500)])
    assert_refused(sites)
    put(sites, [*first, *new(2 * FLOOR)])
    assert_passes(sites)


def test_pairs_suffice_for_three_files_with_common_rows():
    """What `docs/trust.md` states, by the numbers of rows in one, two or all of three files."""
    weights = [np.array(w) for w in itertools.product(range(-3, 4), repeat=3) if any(w)]
    parts = np.array([part for part in itertools.product([0, 1], repeat=3) if 0 < sum(part) < 3])
    rng, tried = np.random.default_rng(0), 0
    for counts in rng.choice([0, 1, 2, 5, 9, 10, 11, 30], (3000, 6)):
        gained = [counts @ (parts[:, i] > parts[:, j]) for i, j in itertools.permutations(range(3), 2)]
        if any(0 < one < FLOOR for one in gained):
            continue
        tried += 1
        # a weighted sum in which the common rows cancel
        rows = [counts @ (parts @ w != 0) for w in weights if not w.sum()]
        assert not any(0 < one < FLOOR for one in rows)
    assert tried > 100


def test_other_options_and_formulas_of_the_same_file_pass(sites):
    """Rows without a value are left out by one formula and not by the other. The file is the same."""
    lines = [f"{line},{'crp' if not k else '' if k % 40 == 3 else k % 7}" for k, line in enumerate(lines_of(sites))]
    put(again(sites), lines)
    entered(sites)
    for changes in [
        {"+ ward": "+ ward + crp"},
        {"+ ward": ""},
        {"[data]": '[data]\nmissing = "drop"', "+ ward": "+ crp"},
        {"[data]": '[data]\nmissing = "indicator"', "+ ward": "+ crp"},
        {"[data]": '[data]\nencoding = "cp1252"'},
    ]:
        text = COARSE.replace("draws = 200", "draws = 123")
        for old, by in changes.items():
            text = text.replace(old, by)
        again(sites, text)
        assert_passes(sites)


def test_a_file_may_be_repaired_after_a_study_that_ended_before_its_counts(sites):
    lines = lines_of(sites)
    put(sites, [*lines[:-1], ",a,no"])
    with pytest.raises(DataError, match="no value"):
        sites.run()
    put(again(sites), lines)
    sites.run(until=3)
    # counts have left now
    put(again(sites), [*lines[:-1], "50.5,a,no"])
    assert_refused(sites)


def test_another_encoding_begins_no_new_account(sites):
    """`söder` is another text in cp437, and the same row."""
    put(sites, [line.replace(",b,", ",söder,") for line in lines_of(sites)])
    first = sites.text
    sites.run(until=8)
    again(sites, first.replace("[data]", '[data]\nencoding = {north = "cp437"}'))
    sites.run(until=8)
    account = Meter(sites.policy("north"), sites.study).account
    one, two = account.read(StudyDocument(first).hash), account.read(sites.study.hash)
    assert len(two.rows) == 90 and set(one.rows) == set(two.rows)
