"""Studies: named columns by site, the summaries that sites agree on, and disclosure floors."""

import io
import json
import os
import re
import warnings
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from typer.testing import CliRunner

import accord
from accord import data
from accord.base.errors import DataError
from accord.base.terminal import folded
from accord.cli.commands import app
from accord.cli.describe import _numbers, blocks
from accord.data.formula_names import FormulaNames
from accord.data.summaries import QUANTILES

SITES = ("east", "north", "south", "west")
DATES = {"admitted": {"format": "%d.%m.%Y", "since": "2020-01-01"}}
OPTIONS = {"dates": DATES, "positive": {"died": "yes"}}
LOW = data.Policy(rows=1, cells=1)
# warnings about the messy tables
OTHER_UNIT = pytest.warns(UserWarning, match="column 'crp' varies .* times as much at east as at")


def raises(message, error=DataError):
    return pytest.raises(error, match=re.escape(message))


def people(site, rows=80, seed=0):
    """A clean table of one hospital, as text."""
    rng = np.random.default_rng([seed, SITES.index(site)])
    days = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 700, rows), unit="D")
    return pd.DataFrame(
        {
            "died": rng.choice(["yes", "no"], rows),
            "age": rng.normal(60, 12, rows).round(1).astype(str),
            "smoking": rng.choice(["never", "former", "current"], rows),
            "crp": np.exp(rng.normal(2, 1, rows)).round(3).astype(str),
            "admitted": days.strftime("%d.%m.%Y"),
            "icu": rng.choice(["true", "False", "TRUE", "false"], rows),
        }
    )


def write(folder, tables):
    for site, table in tables.items():
        table.to_csv(folder / f"{site}.csv", index=False)
    return str(folder / "*.csv")


@pytest.fixture
def clean(tmp_path):
    return write(tmp_path, {site: people(site, 60 + 10 * n) for n, site in enumerate(SITES)})


@pytest.fixture
def messy(tmp_path):
    """Columns in another order, spaces, a byte order mark, other scales, missing cells in three spellings."""
    tables = {site: people(site) for site in SITES}
    tables["north"] = tables["north"][list(tables["north"])[::-1]]
    tables["south"].loc[[3, 8, 20, 33], "crp"] = ["", "NA", "", "nan"]
    tables["west"].loc[[1, 2, 3, 4, 5], "smoking"] = ""
    tables["east"]["crp"] = (tables["east"]["crp"].astype(float) * 1e3).astype(str)
    pattern = write(tmp_path, tables)
    text = (tmp_path / "north.csv").read_text().replace(",", " , ")
    (tmp_path / "north.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    return pattern


def whole(study):
    return pd.concat(study.frames)


# --- reading ---


def test_a_study_has_named_columns_by_site(clean, tmp_path):
    study = data.study(clean, **OPTIONS)
    assert study.sites == study.agreed.sites == SITES
    assert study.agreed.rows == tuple(map(len, study.frames)) == (60, 70, 80, 90)
    assert study.agreed.kinds == {
        "died": "yes-no",
        "age": "number",
        "smoking": "factor",
        "crp": "number",
        "admitted": "number",
        "icu": "yes-no",
    }
    for site, frame in zip(SITES, study.frames, strict=True):
        source = pd.read_csv(tmp_path / f"{site}.csv")
        assert {str(frame[name].dtype) for name in ("died", "age", "crp", "admitted", "icu")} == {"float64"}
        np.testing.assert_array_equal(frame["age"], source["age"])
        np.testing.assert_array_equal(frame["smoking"], source["smoking"])
        np.testing.assert_array_equal(frame["died"], source["died"] == "yes")
        np.testing.assert_array_equal(frame["icu"], source["icu"].astype(str).str.lower() == "true")
        days = pd.to_datetime(source["admitted"], format="%d.%m.%Y") - pd.Timestamp("2020-01-01")
        np.testing.assert_array_equal(frame["admitted"], days.dt.days)
    assert study.agreed.levels == {"smoking": ("current", "former", "never")}


def test_a_messy_table_equals_the_clean_one_at_cells_with_values(messy):
    with OTHER_UNIT, pytest.warns(UserWarning, match="left out: 4 at south, 5 at west"):
        study = data.study(messy, missing="drop", **OPTIONS)
    assert study.agreed.dropped == (0, 0, 4, 5)
    assert [len(frame) for frame in study.frames] == [80, 80, 76, 75]
    own = people("north")
    np.testing.assert_array_equal(study.frames[1]["age"], own["age"].astype(float))
    np.testing.assert_array_equal(study.frames[1]["smoking"], own["smoking"])
    kept = people("south").drop(index=[3, 8, 20, 33])
    np.testing.assert_array_equal(study.frames[2]["crp"], kept["crp"].astype(float))
    np.testing.assert_array_equal(study.frames[0]["crp"], people("east")["crp"].astype(float) * 1e3)


def test_missing_cells_are_filled_and_marked(messy):
    with OTHER_UNIT:
        study = data.study(messy, missing="indicator", formula="died ~ age + smoking + crp", positive={"died": "yes"})
    assert list(study.agreed.columns) == ["died", "age", "smoking", "crp", "crp_missing"]
    east, north, south, west = study.frames
    present = np.concatenate([frame["crp"][frame["crp_missing"] == 0] for frame in study.frames])
    assert len(present) == 316
    np.testing.assert_allclose(study.agreed.means["crp"], present.mean(), rtol=1e-14)
    np.testing.assert_allclose(study.agreed.sds["crp"], present.std(), rtol=1e-14)
    np.testing.assert_array_equal(np.flatnonzero(south["crp_missing"]), [3, 8, 20, 33])
    np.testing.assert_array_equal(south["crp"][[3, 8, 20, 33]], study.agreed.means["crp"])
    np.testing.assert_array_equal(np.flatnonzero(west["smoking"] == "missing"), [1, 2, 3, 4, 5])
    # every site has every column, also where it has all values
    assert {tuple(frame) for frame in study.frames} == {tuple(east)}
    assert east["crp_missing"].sum() == 0 and "missing" not in set(north["smoking"])
    assert study.agreed.levels["smoking"] == ("current", "former", "missing", "never")
    assert study.agreed.columns["crp"].missing == 4 and study.agreed.columns["smoking"].missing == 5


def test_the_response_is_never_filled(messy):
    with raises("south (south.csv): column 'crp': lines 5, 10, 22, 35 have no value"):
        data.study(messy, missing="indicator", formula="crp ~ age")
    with OTHER_UNIT:
        assert data.study(messy, missing="indicator", formula="age ~ crp").agreed.columns["age"].missing == 0
    with pytest.raises(DataError, match="no site has a column 'agge', did you mean 'age'"):
        data.study(messy, missing="indicator", formula="crp ~ agge + I(smoking == 'aeg')")
    with pytest.raises(DataError, match="no site has a column 'agge', did you mean 'age'"):
        data.study(messy, columns=["agge"])


def test_a_site_column_names_the_sites(tmp_path):
    tables = [people(site).assign(hospital=site) for site in SITES]
    pd.concat(tables).sample(frac=1.0, random_state=0).to_csv(tmp_path / "all.csv", index=False)
    study = data.study(file=tmp_path / "all.csv", site="hospital", **OPTIONS)
    assert study.sites == SITES
    assert "hospital" not in study.agreed.columns
    assert sorted(study.frames[2]["age"]) == sorted(people("south")["age"].astype(float))
    with raises("all.csv: there is no column 'hopital' with the names of the sites"):
        data.study(file=tmp_path / "all.csv", site="hopital")


def test_a_formula_selects_columns_and_their_kinds(tmp_path):
    for site in SITES:
        own = people(site)
        own["stage"] = np.random.default_rng(1).choice(["1", "2", "10"], len(own))
        own["ward"] = [f"{site}-{n % 4}" for n in range(len(own))]
        own["notes"] = [f"free text {n}" for n in range(len(own))]  # no model could use it
        own.to_csv(tmp_path / f"{site}.csv", index=False)
    formula = "died ~ log(age) + C(stage) + (1 + age | ward)"
    study = data.study(str(tmp_path / "*.csv"), formula=formula, positive={"died": "yes", "icu": "true"})
    assert study.agreed.kinds == {"died": "yes-no", "age": "number", "stage": "factor", "ward": "group"}
    assert study.agreed.levels == {"stage": ("1", "2", "10")}  # in natural order
    # groups are for their site
    assert study.frames[0]["ward"][0] == "east-0" and "east-0" not in study.agreed.to_json()
    with raises("4 problems:"):
        data.study(str(tmp_path / "*.csv"), **OPTIONS, columns=["notes", "age"])


def test_columns_beside_a_formula_may_be_constant():
    rng = np.random.default_rng(0)
    table = {"x": rng.normal(size=12), "dead": rng.integers(0, 5, 12), "n": np.full(12, 9), "w": np.ones(12)}
    for formula in ("prop(dead, n) ~ x", ["prop(dead, n) ~ x", "w"]):
        assert data.as_study([table], formula=formula).agreed.sds["n"] == 0.0
    with raises("column 'n' is the same in every row"):
        data.as_study([table], formula="dead ~ x + n")
    with raises("column 'w' is the same in every row"):
        data.as_study([table], formula="dead ~ w")


def test_blanks_name_texts_for_missing_values():
    table = {"x": ["1", "-9", "3", ""] * 3}
    with pytest.warns(UserWarning, match="left out: 6 at agent 0"):
        study = data.as_study([table], blanks=["-9"], missing="drop", policy=data.Policy(rows=6))
    np.testing.assert_array_equal(study.frames[0]["x"], [1.0, 3.0] * 3)


@pytest.mark.parametrize("cells", [["-999", "-999.0"] * 3, [-999, -999.0] * 3, ["NA", "-999.00", ""] * 2])
def test_a_numeric_blank_matches_all_its_spellings(cells):
    table = {"x": [*cells, *map(float, range(12))], "y": [*cells, *["a", "b"] * 6]}
    with pytest.warns(UserWarning, match="left out: 6 at agent 0"):
        study = data.as_study([table], blanks=["-999"], missing="drop")
    np.testing.assert_array_equal(study.frames[0]["x"], range(12))
    assert study.agreed.levels["y"] == ("a", "b")


def test_a_blank_in_strings_is_a_level():
    table = {"country": ["NA", "ZA"] * 6}
    with raises("column 'country': rows 0, 2, 4, 6, 8 and 1 more have no value"):
        data.as_study([table])
    assert data.as_study([table], strings={"country": {"NA": []}}).agreed.levels == {"country": ("NA", "ZA")}


def test_names_in_formulas():
    found = FormulaNames.of(["log(y) ~ x.1 + `a b`:C( z ) + (x.1 | g/h) + (1 | z)", "exposure"])
    assert found.names == {"log", "y", "x.1", "a b", "C", "z", "g", "h", "exposure"}
    assert (found.responses, found.factors, found.groups) == ({"log", "y"}, {"z"}, {"g", "h"})


@pytest.mark.parametrize(
    ("how", "value"),
    [
        ("%Y-%m-%d", 18328.0),
        (data.Dates("%Y-%m-%d", "2020-02-29"), 7.0),
        ({"format": "%Y-%m-%d", "since": "2019-03-08", "unit": "years"}, 365 / 365.2425),
    ],
)
def test_dates_count_from_a_day(how, value):
    day = ["2020-03-07"] * 5 + ["2021-01-01"] * 5
    study = data.as_study([{"day": day}], dates={"day": how})
    np.testing.assert_allclose(study.frames[0]["day"][:5], value, rtol=1e-15)


# --- memory ---


def test_tables_in_memory_make_a_study():
    rng = np.random.default_rng(3)
    frame = pd.DataFrame(
        {
            "x": rng.normal(size=20).astype(np.float32),
            "n": pd.array([*range(19), None], dtype="Int64"),
            "yes": rng.random(20) > 0.5,
            "level": pd.Categorical(["a", "b"] * 10),
            "day": pd.date_range("1970-01-02", periods=20),
        }
    )
    arrays = {
        "level": ["a", "c"] * 8,
        "x": rng.normal(size=16),
        "yes": np.ones(16),
        "day": np.arange(16),
        "n": np.arange(16),
    }
    with pytest.warns(UserWarning, match="left out: < 3 at agent 0"):
        study = data.as_study([frame, arrays], missing="drop", policy=data.Policy(cells=3, rows=10))
    assert study.sites == ("agent 0", "agent 1")
    assert study.agreed.kinds == {"x": "number", "n": "number", "yes": "yes-no", "level": "factor", "day": "number"}
    assert study.agreed.dropped == ("< 3", 0)
    np.testing.assert_array_equal(study.frames[0]["x"], frame["x"][:19].astype(float))
    np.testing.assert_array_equal(study.frames[0]["day"], np.arange(1.0, 20.0))
    assert study.agreed.levels["level"] == ("a", "b", "c")
    named = data.as_study({"n": arrays, "s": {**arrays, "x": arrays["x"] + 1}}, constant=["yes"])
    assert named.sites == ("n", "s") and data.as_study(named) is named


def test_other_types_than_tables_are_an_error():
    ones = {"x": np.arange(12.0)}
    bad = [3, "a.csv", b"a", [], {}, ones, [[1, 2]], [np.ones((12, 2))], {"north": 3.0}, None]
    for table in bad:
        with raises("a table must be an accord.data.Study, or a sequence or mapping with one pandas", TypeError):
            data.as_study(table)
    frame = pd.DataFrame({"site": ["north"] * 12 + ["south"] * 13, "x": np.arange(25.0)})
    with raises('found a DataFrame. To split a DataFrame by site: dict(list(frame.groupby("site")))', TypeError):
        data.as_study(frame)
    assert data.as_study(dict(list(frame.groupby("site"))), columns=["x"]).agreed.rows == (12, 13)
    with raises("agent 0: columns must have one shape (row,), found (11,), (12,)"):
        data.as_study([{"x": np.arange(12), "y": np.arange(11)}])
    with raises("agent 0: columns must have one shape (row,), found (12, 1)"):
        data.as_study([{"x": np.ones((12, 1))}])
    with raises("options cannot be changed for a Study, found missing", TypeError):
        data.as_study(data.as_study([ones]), missing="drop")


def test_the_repr_of_a_study_has_no_rows(clean):
    study = data.study(clean, **OPTIONS)
    shown = repr(study) + repr(study.agreed)
    assert "4 sites east, north, south, west; 300 rows; died, age, smoking" in shown
    values = {cell for site in SITES for column in ("age", "crp") for cell in people(site)[column]}
    assert not [value for value in values if re.search(rf"\b{re.escape(value)}\b", shown)]


# --- summaries ---


def test_summaries_equal_pooled_ones(clean):
    study = data.study(clean, **OPTIONS)
    pooled = whole(study)
    for name, column in study.agreed.columns.items():
        if column.kind == "factor":
            assert dict(column.levels) == pooled[name].value_counts().to_dict()
            continue
        np.testing.assert_allclose(column.mean, pooled[name].mean(), rtol=1e-14)
        np.testing.assert_allclose(column.sd, pooled[name].std(ddof=0), rtol=1e-13)
        if column.kind == "number":
            exact = np.quantile(pooled[name], QUANTILES, method="inverted_cdf")
            assert tuple(share for share, _ in column.quantiles) == QUANTILES
            found = np.array([value for _, value in column.quantiles])
            assert (np.abs(found - exact) < 1.5e-3 * column.sd).all()
    for frame, own in zip(study.frames, study.agreed.by_site, strict=True):
        np.testing.assert_allclose(own["age"].mean, frame["age"].mean(), rtol=1e-14)
        np.testing.assert_allclose(own["age"].sd, frame["age"].std(ddof=0), rtol=1e-13)
        # 5% of 60 rows are three
        exact = np.quantile(frame["age"], QUANTILES, method="inverted_cdf")
        assert (np.abs([value for _, value in own["age"].quantiles] - exact) < 1.5e-3 * own["age"].sd).all()


@pytest.mark.parametrize("shift", [0.0, 1e9])
@pytest.mark.parametrize("values", ["ties", "heavy", "two"])
def test_quantiles_and_sds_of_awkward_columns(values, shift):
    rng = np.random.default_rng(5)
    x = {"ties": rng.integers(0, 4, 400), "heavy": rng.standard_t(2, 400), "two": rng.integers(0, 2, 400) * 3.0}[values]
    x = x + shift
    study = data.as_study([{"x": x[:100]}, {"x": x[100:]}])
    column = study.agreed.columns["x"]
    np.testing.assert_allclose(column.sd, (x - shift).std(), rtol=1e-6)
    exact = np.quantile(x, QUANTILES, method="inverted_cdf")
    found = np.array([value for _, value in column.quantiles])
    # the range of the 5% quantile is 4.6 sds wide, an end of a bin may be a tie
    assert (np.abs(found - exact) < 1.5e-3 * column.sd).all()


def test_agreed_summaries_round_trip_as_json(messy):
    with OTHER_UNIT:
        agreed = data.describe(messy, **OPTIONS)
    again = data.Agreed.from_json(agreed.to_json())
    assert again == agreed and again.means == agreed.means
    assert again != data.describe(messy, columns=["age"])
    assert "Infinity" not in agreed.to_json() and json.loads(agreed.to_json())["sites"] == list(SITES)


def test_summaries_contain_no_extreme():
    x = np.random.default_rng(0).normal(size=100)
    x[7] = -12345.678
    shown = data.as_study([{"x": x}, {"x": x[8:]}]).agreed.to_json()
    assert "12345.678" not in shown and not re.search(r"-123[34]\d\.", shown)
    # and no mean that is dominated by one cell
    assert not re.search(r"-1[12]\d\.", shown)


# --- floors ---


def test_small_counts_are_shown_as_bounds():
    levels = ["a"] * 20 + ["b"] * 2 + ["c"] * 8
    died = [1] + [0] * 29
    tables = [{"f": levels, "died": died, "x": np.arange(30.0)}, {"f": ["a"] * 15 + ["b"] * 15, "died": [0, 1] * 15}]
    tables[1]["x"] = np.arange(30.0)
    with pytest.warns(UserWarning, match="1 of 3 levels"):
        study = data.as_study(tables, policy=data.Policy(rare="warn"))
    first, second = study.agreed.by_site
    # a single hidden count would follow from the number of rows
    assert dict(first["f"].levels) == {"a": 20, "b": "< 3", "c": "hidden"}
    assert dict(second["f"].levels) == {"a": 15, "b": 15}
    assert dict(study.agreed.columns["f"].levels) == {"a": 35, "b": ">= 15", "c": "hidden"}
    # the mean of a yes-no column and the number of rows give a count
    assert first["died"].mean is None and second["died"].mean == 0.5
    assert study.agreed.means["died"] == 16 / 60
    assert [value is None for _, value in first["x"].quantiles] == [True, False, False, False, True]


def test_hidden_counts_do_not_follow_from_their_sum(tmp_path):
    # 30 rows: if 28 were shown, the other two levels would have one row each
    levels = ["a"] * 16 + ["d"] * 12 + ["b", "c"]
    write(tmp_path, {"n": pd.DataFrame({"f": levels}), "s": pd.DataFrame({"f": ["a", "b", "c"] * 10})})
    levels = data.describe(str(tmp_path / "*.csv")).by_site[0]["f"].levels
    assert dict(levels) == {"a": 16, "b": "< 3", "c": "< 3", "d": "hidden"}


def test_means_that_reveal_a_small_count_are_hidden(tmp_path):
    n = pd.DataFrame({"died": [1] + [0] * 29, "x": [*map(str, range(6)), *[""] * 24]})
    s = pd.DataFrame({"died": [1, 0] * 15, "x": range(30)})
    agreed = data.describe(write(tmp_path, {"n": n, "s": s}))
    first, second = agreed.by_site
    assert first["died"].mean is None and second["died"].mean == 0.5
    # it would follow from the other means and the rows
    assert agreed.columns["died"].mean is None
    assert (first["x"].mean, first["x"].missing, second["x"].mean) == (None, 24, 14.5)
    assert agreed.columns["x"].mean is None
    # of two sites with six cells each, only their joint mean follows
    agreed = data.describe(write(tmp_path, {"m": n}))
    assert [site["x"].mean for site in agreed.by_site] == [None, None, 14.5]
    np.testing.assert_allclose(agreed.columns["x"].mean, (2 * 15 + 30 * 14.5) / 42, rtol=1e-14)


@pytest.mark.parametrize("x", [[7.25] + [0.0] * 29, [7.25, 3.0] + [1.0] * 28, [7e9, *np.linspace(0.0, 1.0, 29)]])
def test_summaries_of_nearly_constant_columns_are_hidden(x, tmp_path):
    others = np.random.default_rng(0).normal(size=30)
    tables = {"n": pd.DataFrame({"x": x}), "s": pd.DataFrame({"x": others}), "w": pd.DataFrame({"x": others})}
    agreed = data.describe(write(tmp_path, tables))
    hidden = data.summaries.Column("number", 0)
    # it does not follow from the pooled and the other summaries either
    assert agreed.by_site[0]["x"] == agreed.columns["x"] == hidden and agreed.by_site[1]["x"].mean is not None
    study = data.as_study(tables)
    assert study.agreed.by_site[0]["x"] == study.agreed.columns["x"] == hidden
    study = data.as_study(tables, policy=data.Policy(rare="warn"))
    assert study.agreed.by_site[0]["x"] == hidden
    np.testing.assert_allclose(study.agreed.means["x"], whole(study).x.mean(), rtol=1e-12)
    # a hidden mean fills no cell
    tables["s"].loc[3, "x"] = np.nan
    with raises("column 'x' has missing cells and no mean to fill them with"):
        data.as_study(tables, missing="indicator")


@pytest.mark.parametrize("other", [data.Policy(12, 2, 0.2, "refuse"), data.Policy(8, 4, 0.05, "warn")])
def test_stricter_takes_the_stricter_of_each_floor(other):
    own = data.Policy(10, 3, 0.1, "warn")
    for policy in (own.stricter(other), other.stricter(own)):
        assert (policy.rows, policy.cells) == (max(10, other.rows), max(3, other.cells))
        assert policy.parameters == min(0.1, other.parameters) and policy.rare == other.rare


def test_a_site_refuses_rare_levels_unless_its_policy_allows_them():
    tables = [{"f": ["a"] * 20 + ["pipe"] * 2}, {"f": ["a", "pipe"] * 10}]
    with raises("agent 0: column 'f': 1 of 2 levels have fewer than 3 rows, the floor of the site") as caught:
        data.as_study(tables)
    assert "pipe" not in str(caught.value)
    with pytest.warns(UserWarning, match="agent 0: column 'f': 1 of 2 levels have fewer than 3 rows"):
        assert data.as_study(tables, policy=data.Policy(rare="warn")).agreed.levels == {"f": ("a", "pipe")}
    assert data.as_study(tables, policy=data.Policy(cells=2)).agreed.levels == {"f": ("a", "pipe")}


def test_a_site_with_few_rows_refuses():
    with raises("agent 1: refused, there are fewer than 10 rows, the floor of the site"):
        data.as_study([{"x": np.arange(10.0)}, {"x": np.arange(9.0)}])
    assert data.as_study([{"x": np.arange(10.0)}, {"x": np.arange(9.0)}], policy=LOW).agreed.rows == (10, 9)


def test_parameters_are_limited_to_a_tenth_of_the_rows():
    study = data.as_study({"n": {"x": np.arange(40.0)}, "s": {"x": np.arange(30.0)}})
    study.check_parameters(3)
    with raises("s: 4 parameters are more than 0.1 of the rows, the floor of the site: use fewer columns. Its "):
        study.check_parameters(4)
    with raises("in a Flower study the file with `studies`, else s.policy.toml or policy.toml beside the data"):
        study.check_parameters(4)


def test_the_share_in_a_refusal_is_enough(tmp_path):
    for parameters, rows in [(4, 30), (29, 100), (7, 100), (5, 15), (3, 2)]:
        (text,) = data.Policy(parameters=0.01).refusals("s", parameters, rows)
        (tmp_path / "policy.toml").write_text(re.search("`(parameters = .*?)` in the site's policy file", text)[1])
        assert data.Policy.beside(tmp_path / "s.csv").refusals("s", parameters, rows) == []


def test_a_sites_own_policy_holds(clean, tmp_path):
    (tmp_path / "north.policy.toml").write_text("rows = 71\n")
    with raises("north (north.csv): refused, there are fewer than 71 rows, the floor of the site"):
        data.study(clean, **OPTIONS)
    # the argument cannot lower it
    with raises("north (north.csv): refused, there are fewer than 71 rows, the floor of the site"):
        data.study(clean, policy=LOW, **OPTIONS)
    (tmp_path / "north.policy.toml").write_text("rows = 70\n")
    study = data.study(clean, policy=data.Policy(cells=5), **OPTIONS)
    assert study.policies == (data.Policy(cells=5), data.Policy(70, 5), data.Policy(cells=5), data.Policy(cells=5))
    (tmp_path / "policy.toml").write_text("cells = 4\nparameters = 0.05\n")
    study = data.study(clean, **OPTIONS)
    assert study.policies[0] == data.Policy(cells=4, parameters=0.05) and study.policies[1] == data.Policy(70)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("row = 3", "unknown key 'row', did you mean 'rows'?"),
        ("rows = '3'", "rows of a policy must be a whole number >= 1, found '3'"),
        ("cells = true", "cells of a policy must be a whole number >= 1, found True"),
        ("parameters = 0", "parameters of a policy must be a share of the rows > 0, found 0"),
        ("rare = 'ask'", "unknown rare of a policy 'ask'"),
        ("rows = = 3", "Invalid value"),
    ],
)
def test_an_invalid_policy_file_is_named(clean, tmp_path, text, message):
    (tmp_path / "south.policy.toml").write_text(text)
    with raises(message, ValueError) as caught:
        data.study(clean)
    assert "south.policy.toml: " in str(caught.value)


# --- problems are listed in one error without cells ---

CANARY = "zq7canary"


def broken(folder):
    """Four files with several problems each, and canaries in their cells."""
    tables = {site: people(site, 30) for site in SITES}
    tables["east"].loc[4, "age"] = CANARY
    tables["east"].loc[9, "crp"] = ""
    tables["north"]["smoking"] = "1"
    tables["north"].loc[[2, 3], "admitted"] = [f"{CANARY}-date", "2020-31-31"]
    tables["south"].loc[0, "died"] = CANARY
    tables["south"] = tables["south"].drop(columns="icu")
    tables["west"].loc[6, "crp"] = "1e999"
    tables["west"] = tables["west"].head(7)
    for table in tables.values():
        table["unit"] = "mg" + CANARY
    return write(folder, tables)


def test_one_error_lists_all_problems(tmp_path):
    pattern = broken(tmp_path)
    with pytest.raises(DataError) as caught, warnings.catch_warnings():
        warnings.simplefilter("error")
        data.study(pattern, **OPTIONS)
    lines = [line.strip() for line in str(caught.value).splitlines()]
    assert lines[0] == "9 problems:"
    assert set(lines[1:]) == {
        "south (south.csv): there is no column 'icu', which east has (names must match exactly)",
        "east (east.csv): column 'age': line 6 has a text where others have numbers: correct them, "
        "name them in blanks if they are missing, or name the column in strings if it is a factor",
        "north (north.csv): column 'admitted': lines 4, 5 have no date of the format %d.%m.%Y",
        "south (south.csv): column 'died': line 2 has a third text besides the two of a yes-no column: "
        'name all spellings of 1 in positive, and all of 0 in strings, as {COLUMN = {no = ["No", "0"]}}',
        "west (west.csv): column 'crp': line 8 has no finite float64 number",
        "column 'smoking' holds 0 and 1 at north and texts at east, south, west: "
        "name it in strings or positive, or correct the files",
        "east (east.csv): column 'crp': line 11 has no value: missing = \"drop\" leaves such rows out, "
        'missing = "indicator" fills such cells and marks them',
        "west (west.csv): refused, there are fewer than 10 rows, the floor of the site (`rows` in its policy)",
        "column 'unit' is the same in every row: leave it out, or name it in constant",
    }
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("x,y\n", "there are no rows below the header"),
        ("x,x\n1,2\n", "columns 1 and 2 have the same name"),
        (",\n1,2\n", "no column has a name"),
        (f"3.5,{CANARY}\n1,2\n", "the name of column 1 is a number: is the header missing?"),
        (f'x,y\n1,2\n"{CANARY}\nend",3,4\n1\n\n1,2\n', "the header has 2 columns, lines 4, 5 have fewer or more cells"),
        (f'x,y\n1,"{CANARY}\n', "line 2 cannot be read as CSV: unexpected end of data"),
        (b"x,y\n1,\xff" + CANARY.encode(), "the file is not UTF-8 text"),
    ],
)
def test_invalid_files_are_named_with_the_others(tmp_path, text, message):
    (tmp_path / "b.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError) as caught:
        data.study([tmp_path / "b.csv", tmp_path / "none.csv"])
    assert f"b (b.csv): {message}" in str(caught.value)
    assert "none (none.csv): there is no such file" in str(caught.value)
    assert CANARY not in str(caught.value)


def test_warnings_quote_no_cell(tmp_path):
    tables = {site: people(site, 30) for site in SITES}
    tables["east"].loc[[1, 2], "smoking"] = CANARY
    tables["west"].loc[[1, 2, 5], "age"] = ""
    pattern = write(tmp_path, tables)
    with pytest.warns(UserWarning) as caught:
        data.study(pattern, missing="drop", policy=data.Policy(rare="warn"), **OPTIONS)
    texts = [str(warning.message) for warning in caught]
    assert len(texts) == 2 and CANARY not in "".join(texts)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"x": [""] * 12}, "column 'x': no cell of any site has a value"),
        ({"x": [0.1] * 12}, "column 'x' is the same in every row: leave it out, or name it in constant"),
        ({"x": ["a"] * 12}, "column 'x' is the same in every row"),
        ({"x": [True] * 12}, "column 'x' is the same in every row"),
        ({"x": [1e200, -1e200] * 6}, "column 'x': the sum of its squares overflows float64: change its unit"),
        ({"x": [1e308] * 12}, "column 'x': the sum of its squares overflows float64: change its unit"),
        ({"x": [np.inf] + [1.0] * 11}, "agent 0: column 'x': row 0 has no finite float64 number"),
    ],
)
def test_unusable_columns_are_an_error(columns, message):
    with raises(message):
        data.as_study([columns, columns], missing="drop")


def test_numeric_dtypes_have_one_kind():
    study = data.as_study([{"x": [0, 1] * 6}, {"x": [0, 7] * 6}])
    assert study.agreed.kinds == {"x": "number"}
    # underscores belong to names, not to numbers
    assert data.as_study([{"x": ["1_0", "2_0"] * 6}]).agreed.kinds == {"x": "factor"}


def test_a_column_may_be_constant_at_one_site():
    study = data.as_study([{"x": np.zeros(12), "f": ["a"] * 12}, {"x": np.ones(12), "f": ["b"] * 12}])
    assert study.agreed.sds == {"x": 0.5} and study.agreed.levels == {"f": ("a", "b")}
    assert data.as_study([{"x": np.full(12, 5.0)}], constant=["x"]).agreed.sds == {"x": 0.0}
    with raises("constant: no site has a column 'trails', did you mean 'trials'?"):
        data.as_study([{"trials": np.full(12, 5.0)}], constant=["trails"])
    with raises("constant must be a list of names, found 'x'", ValueError):
        data.as_study([{"x": np.full(12, 5.0)}], constant="x")


def test_numbers_may_be_levels(tmp_path):
    tables = {"n": pd.DataFrame({"stage": ["1", "2"] * 6}), "s": pd.DataFrame({"stage": ["2", "unknown"] * 6})}
    pattern = write(tmp_path, tables)
    with raises("s (s.csv): column 'stage': lines 3, 5, 7, 9, 11 and 1 more have a text where others have numbers"):
        data.study(pattern)
    assert data.study(pattern, strings=["stage"]).agreed.levels == {"stage": ("1", "2", "unknown")}
    in_memory = data.as_study([{"stage": np.array([1.0, 2.5] * 6)}, {"stage": [1, 2] * 6}], strings=["stage"])
    assert in_memory.agreed.levels == {"stage": ("1", "2", "2.5")}


def test_positive_may_have_spellings():
    cells = ["Yes", "yes", "no"] * 5
    with raises("agent 0: column 'died': rows 0, 1, 2, 3, 4 and 10 more have several texts, none of them in positive"):
        data.as_study([{"died": ["Yes", "no", "no"] * 5}], positive={"died": "yes"})
    study = data.as_study([{"died": cells}], positive={"died": ["yes", "Yes"]})
    np.testing.assert_array_equal(study.frames[0]["died"], [1.0, 1.0, 0.0] * 5)
    with raises("positive of 'died' must be a text or a list of texts, found 1", ValueError):
        data.as_study([{"died": cells}], positive={"died": 1})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"missing": "impute"}, "unknown missing 'impute'"),
        ({"columns": "age"}, "columns must be a list of names, found 'age'"),
        ({"dates": {"admitted": 3}}, "dates of 'admitted' must be a format such as '%Y-%m-%d', found 3"),
        ({"dates": {"admitted": {"since": "2020-01-01"}}}, "dates of 'admitted' must have format"),
        ({"dates": {"admitted": {"format": "%Y", "since": "1.1.2020"}}}, "since of dates must be a date"),
        ({"dates": {"admitted": {"format": "%Y", "unit": "weeks"}}}, "unknown unit of dates 'weeks'"),
        ({"columns": ["age", "aeg"]}, "no site has a column 'aeg'"),
        ({"positive": {"dead": "yes"}}, "no site has a column 'dead'"),
        ({"site": "hospital"}, "site is an argument for file (one file for all sites), found it with files"),
        ({"file": "a.csv"}, "pass either files or file, found both"),
    ],
)
def test_invalid_arguments(clean, options, message):
    with raises(message, ValueError):
        data.study(clean, **options)


def test_a_file_is_read_once(clean, tmp_path):
    os.symlink(tmp_path / "east.csv", tmp_path / "again.csv")
    with raises("are links to one file: its rows would count twice", ValueError):
        data.study(clean)


# --- in a configuration file ---

CONFIG = """
[data]
files = "*.csv"
{data}
[model]
{model}
[network]
{network}
[run]
draws = 500
{run}
{more}
"""
GOOD = {
    "data": 'missing = "drop"\ndates = {admitted = {format = "%d.%m.%Y", since = "2020-01-01", unit = "years"}}',
    "model": 'formula = "died ~ age + C(smoking) + log(crp) + admitted"\nfamily = "bernoulli"\npositive = "yes"',
    "network": 'name = "ring"',
    "run": 'output = "out"',
    "more": '[priors]\nage = {name = "Normal", loc = 0.0, scale = 0.1}',
}


def invoke(folder, command, **sections):
    path = folder / "job.toml"
    path.write_text(CONFIG.format(**{**GOOD, **sections}))
    return CliRunner().invoke(app, [command, str(path)], env={"COLUMNS": "100"})


@pytest.mark.long
@pytest.mark.filterwarnings("default::UserWarning")
def test_a_config_file_makes_a_posterior_of_messy_tables(messy, tmp_path):
    # only columns in the formula are read, even if another one has the name of the family
    east = pd.read_csv(tmp_path / "east.csv", dtype=str)
    east.assign(bernoulli="").to_csv(tmp_path / "east.csv", index=False)
    result = invoke(tmp_path, "run")
    assert result.exit_code == 0, result.output
    assert "warning: rows with a missing cell are left out: 4 at south, 5 at west" in result.stderr
    run = accord.Run.load(tmp_path / "out" / "run.nc")
    assert run.names == ("Intercept", "age", "C(smoking)[former]", "C(smoking)[never]", "log(crp)", "admitted")
    # the file has the names of sites and their summaries
    agreed = data.Agreed.from_json(run.settings["agreed"])
    assert agreed.dropped == (0, 0, 4, 5) and agreed.kinds["admitted"] == "number" and "icu" not in agreed.kinds
    assert set(run.summary()["worst agent", "agent"]) <= set(SITES)
    notes = (tmp_path / "out" / "summary.txt").read_text().splitlines()
    assert notes[:3] == [
        "Rows left out, as a cell has no value: 4 at south, 5 at west.",
        "Texts that are 1: died 'yes'.",
        "Reference levels: smoking 'current'.",
    ]
    assert "age Normal(loc=0, scale=0.1)" in notes[3] and " ".join(notes[:4]) in " ".join(result.stdout.split())
    assert "Warning: rows with a missing cell are left out: 4 at south, 5 at west" in notes[4:]
    with pytest.warns(UserWarning, match="left out"):
        study = data.study(
            messy,
            formula="died ~ age + C(smoking) + log(crp) + admitted",
            missing="drop",
            positive={"died": "yes"},
            dates={"admitted": data.Dates("%d.%m.%Y", "2020-01-01", "years")},
        )
    assert study.agreed == agreed


CRP = {"data": 'target = "age"\ncolumns = ["crp"]', "more": ""}
SILO = 'output = "out"\nengine = "silo"'
BAD = {
    "formula": ({"model": "formula = 3"}, "formula in [model] must be a string, found 3"),
    "nodes": (
        {"model": 'formula = "died ~ age + (1 | site)"\nnodes = "30"'},
        "nodes in [model] must be a whole number, found '30'",
    ),
    "effects": (
        {"model": 'formula = "died ~ age + (1 | site)"\npositive = "yes"\nfamily = "bernoulli"\neffects = "kept"'},
        "unknown effects 'kept'",
    ),
    "missing": ({"data": "missing = true"}, "missing in [data] must be a string, found True"),
    "strings": (
        {"data": 'strings = "stage"'},
        "strings in [data] must be a list of strings or a table, as {name = ...}, found 'stage'",
    ),
    "dates": ({"data": 'dates = "%Y"'}, "dates in [data] must be a table, as {name = ...}, found '%Y'"),
    "positive": ({"data": 'positive = ["yes"]'}, "positive in [data] must be a table, as {name = ...}, found ['yes']"),
    "columns": ({"data": "columns = [1, 2]"}, "columns in [data] must be a list of strings, found [1, 2]"),
    "key": ({"data": "postive = {}"}, "unknown key of [data] for a study 'postive', did you mean 'positive'?"),
    "other section": (
        {"model": 'formula = "died ~ age"\nmissing = "drop"'},
        "missing is a key of [data], found in [model]",
    ),
    "section of a method": (
        {"more": '[method]\nname = "GTDULA"\ndraws = 10'},
        "draws is a key of [run], found in [method]: move it there",
    ),
    "section of a network": ({"network": 'name = "ring"\nthin = 2'}, "thin is a key of [run], found in [network]"),
    "policy": ({"data": "policy = {row = 3}"}, "unknown key of policy in [data] 'row', did you mean 'rows'?"),
    "prior": (
        {"more": "[priors]\nage = 3"},
        'age in [priors] must be a table with a name, as {name = "Flat", ...}, found 3',
    ),
    "prior name": (
        {"more": '[priors]\nage = {name = "normal"}'},
        "unknown name of age in [priors] 'normal', did you mean 'Normal'",
    ),
    "prior number": (
        {"more": '[priors]\nage = {name = "Normal", loc = "0", scale = 1}'},
        "loc in age in [priors] must be a number, found '0'",
    ),
    "no formula": (
        {"data": 'target = "age"', "model": 'name = "linear_regression"'},
        "[priors] needs a formula in [model]",
    ),
    "output": ({"more": "", "run": "output = 3"}, "output in [run] must be a string, found 3"),
    "seed": ({"run": 'output = "out"\nseed = "1"'}, "seed in [run] must be a whole number, found '1'"),
    "keep": (
        {"run": 'output = "out"\nkeep = ["a"]'},
        "keep in [run] must be a string or a list of whole numbers, found ['a']",
    ),
    "checkpoint": ({"run": 'output = "out"\ncheckpoint = true'}, "checkpoint in [run] must be a string, found True"),
    "network": (
        {"network": 'name = "erdos_renyi"\np = "0.9"\nseed = 0'},
        "p in [network] must be a number, found '0.9'",
    ),
    "method": (
        {"more": '[method]\nname = "Replicated"\nkernel = "nuts"\nwarmup = "3"'},
        "warmup in [method] must be a whole number, found '3'",
    ),
    "silo": ({"run": SILO, "more": "[silo]\nlatents = 3"}, "latents in [silo] must be a string, found 3"),
    "latents": (
        {"run": SILO, "more": '[silo]\nlatents = "kept"'},
        "latents must be a folder that starts with / or ~, found 'kept'",
    ),
    "toml": ({"data": "missing = drop"}, "Invalid value (at line 4, column 11), the key 'missing' of [data]"),
    "twice": ({"more": "draws = 3"}, "the key 'draws' of [run]"),
    "standardise": (
        {"data": 'target = "age"\nstandardise = "false"', "model": 'name = "linear_regression"', "more": ""},
        "standardise in [data] must be true or false, found 'false'",
    ),
    "number": (
        {
            "data": 'target = "age"\ncolumns = ["crp"]',
            "model": 'name = "linear_regression"\nnoise_scale = "1"',
            "more": "",
        },
        "noise_scale in [model] must be a number, found '1'",
    ),
    "flag": (
        {
            "data": 'target = "age"\ncolumns = ["crp"]',
            "model": 'name = "linear_regression"\nnoise_scale = true',
            "more": "",
        },
        "noise_scale in [model] must be a number, found True",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_mistake_in_the_file_names_section_key_and_value(clean, tmp_path, name):
    sections, message = BAD[name]
    result = invoke(tmp_path, "run", **sections)
    assert result.exit_code == 1
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert message in line
    assert "Traceback" not in result.output and not (tmp_path / "out").exists()


def test_the_command_prints_all_problems_of_a_study(tmp_path):
    broken(tmp_path)
    result = invoke(tmp_path, "run", data='dates = {admitted = "%d.%m.%Y"}')
    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 1 + 7
    assert CANARY not in result.output
    for text in ("(east.csv): column 'age': line 6", "(south.csv): column 'died': line 2", "west (west.csv): refused"):
        assert text in result.stderr


# --- accord describe ---


@pytest.mark.filterwarnings("default::UserWarning")
def test_describe_prints_columns_by_site_and_pooled(messy, tmp_path):
    smoking = (tmp_path / "west.csv").read_text().replace("never", CANARY, 2)
    (tmp_path / "west.csv").write_text(smoking)
    path = tmp_path / "job.toml"
    # only [data] is needed, and its arguments for the model are ignored
    path.write_text('[data]\nfiles = "*.csv"\nmissing = "drop"\npositive = {died = "yes"}\ntarget = "died"\n')
    result = CliRunner().invoke(app, ["describe", str(path), "--output", str(tmp_path / "agreed.json")])
    assert result.exit_code == 0, result.output
    agreed = data.Agreed.from_json((tmp_path / "agreed.json").read_text())
    with OTHER_UNIT, pytest.warns(UserWarning, match="column 'admitted': .* have dates: name the column in dates"):
        assert agreed == data.describe(messy, positive={"died": "yes"})
    assert "have dates: name the column in dates with the format" in " ".join(result.stderr.split())
    shown = result.stdout
    blocks = {block.split(":")[0]: block for block in shown.split("\n\n")}
    assert re.search(r"^together +320 *$", shown.split("\n\n")[0], re.MULTILINE)
    east = people("east")["age"].astype(float)
    line = re.search(r"^east +(.*)$", blocks["age"], re.MULTILINE)[1].split()
    assert line[0] == "0" and float(line[1]) == round(east.mean(), 1) and float(line[2]) == round(east.std(ddof=0), 1)
    quantiles = np.quantile(east, QUANTILES, method="inverted_cdf")
    assert (np.abs(np.array(line[3:], float) - quantiles) < 1.5e-3 * east.std() + 0.05).all()
    assert re.search(r"^south +4 ", blocks["crp"], re.MULTILINE)
    # rare levels are not named
    assert CANARY not in shown and CANARY not in agreed.to_json()
    assert "1 more that are too rare to be named" in blocks["smoking"]


def test_a_description_in_a_pipe_has_at_most_100_columns(tmp_path):
    name = "a long name of a column " * 6
    for site in ("north", "south"):
        (tmp_path / f"{site * 20}.csv").write_text(f"{name}\n" + "".join(f"{k}.5\n" for k in range(20)))
    (tmp_path / "job.toml").write_text('[data]\nfiles = "*.csv"\n')
    result = CliRunner().invoke(app, ["describe", str(tmp_path / "job.toml")])
    assert result.exit_code == 0 and max(map(len, result.stdout.splitlines())) <= 100


def test_rounded_zeros_have_no_sign():
    assert _numbers(2.0, -1e-9, -0.5) == ["0.00", "-0.50"] and _numbers(None, -1e-9) == ["0.000"]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_narrow_terminal_shows_all_columns(messy, width):
    with OTHER_UNIT:
        agreed = data.describe(messy, positive={"died": "yes"}, dates=DATES)

    def text(columns):
        stream = io.StringIO()
        console = Console(file=stream, width=columns, markup=False, highlight=False)
        for table in blocks(agreed):
            console.print(folded(table, columns))
        return stream.getvalue()

    narrow = text(width)
    assert max(map(len, narrow.splitlines())) <= width
    assert Counter("".join(narrow.split())) == Counter("".join(text(1000).split()))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('file = "east.csv"\nsplit = "iid"\nagents = 3', "[data] with split cannot be described"),
        ("at_sites = true", "[data] with at_sites cannot be described"),
        ('files = "*.csv"\ncolumn = ["age"]\nstandardize = true', "unknown key of [data] for a study 'standardize'"),
        ("files = 3", "files in [data] must be"),
        ('files = "*.csv"\ncolumns = ["icu", "agee"]', "no site has a column 'agee'"),
        ('files = "*.csv"\n[model]\nformula = "died ~ agee + C(smoking)"', "no site has a column 'agee'"),
        ('files = "*.csv"\nmissing = "dropp"', "unknown missing 'dropp', did you mean 'drop'?"),
        ('files = "*.csv"\ncolumns = ["age"]\nagents = 5', "agents is 5, but there are 4 sites"),
        ('files = "*.csv"\nagents = "5"', "agents in [data] must be"),
        (
            'files = "*.csv"\ntarget = "died"\n[model]\nformula = "died ~ age"',
            "unknown key of [data] for a study 'target'",
        ),
    ],
)
def test_an_error_of_describe_is_one_line(clean, tmp_path, text, message):
    (tmp_path / "job.toml").write_text(f"[data]\n{text}\n")
    result = CliRunner().invoke(app, ["describe", str(tmp_path / "job.toml")])
    assert result.exit_code == 1 and message in result.stderr, result.stderr
    assert len([line for line in result.stderr.splitlines() if line.startswith("error: ")]) == 1


def test_a_link_does_not_bypass_a_policy(tmp_path):
    (tmp_path / "a.csv").write_text("x\n" + "\n".join(map(str, range(20))) + "\n")
    (tmp_path / "a.policy.toml").write_text("rows = 40\n")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "b.csv").symlink_to(tmp_path / "a.csv")
    with pytest.raises(DataError, match="fewer than 40 rows"):
        accord.data.describe(tmp_path / "elsewhere" / "*.csv")


def test_a_wrong_positive_does_not_reveal_the_rows_of_the_rarer_text():
    tables = [{"died": ["yes"] * 2 + ["no"] * 28}]
    with pytest.raises(DataError, match="several texts, none of them in positive") as error:
        accord.data.as_study(tables, positive={"died": "ja"})
    assert "26 more" not in str(error.value) and "25 more" in str(error.value)


# --- floors of filled cells and of matrices ---


def test_means_of_few_cells_do_not_fill_others():
    x = np.random.default_rng(0).normal(size=60)
    for present in (1, 4, 9):
        sparse = np.where(np.arange(60) < present, x, np.nan)
        tables = {"a": {"x": sparse, "y": x}, "b": {"x": x, "y": x}}
        with raises("column 'x' has missing cells and no mean to fill them with: at some site, few cells have a value"):
            data.as_study(tables, missing="indicator")
        agreed = data.as_study(tables, missing="indicator", policy=data.Policy.none()).agreed
        assert agreed.by_site[0]["x"].missing == 60 - present
    enough = {"a": {"x": np.where(np.arange(60) < 10, x, np.nan)}, "b": {"x": x}}
    assert data.as_study(enough, missing="indicator").agreed.means["x"] == pytest.approx(np.mean([*x[:10], *x]))


def test_a_count_of_missing_cells_does_not_reveal_a_small_count(tmp_path):
    cells = ["1.5", "2.5", *[""] * 58]
    tables = {"a": pd.DataFrame({"x": cells}), "b": pd.DataFrame({"x": ["1.0", "1.5", "2.0", "2.5", "3.0"] * 12})}
    agreed = data.describe(write(tmp_path, tables))
    assert [site["x"].missing for site in agreed.by_site] == ["hidden", 0]


def test_a_level_called_missing_is_not_merged_with_missing_cells():
    table = {"g": ["a", "missing", ""] * 6}
    with raises("column 'g' already has a level 'missing', which would hold its missing cells"):
        data.as_study([table], missing="indicator")
    found = data.as_study([{"g": ["a", "b", "missing", ""] * 6}], missing="indicator", blanks=["missing"])
    assert found.agreed.levels["g"] == ("a", "b", "missing")


def test_the_floors_of_models_hold_for_a_matrix():
    rng = np.random.default_rng(0)
    table = {"x": rng.normal(size=60), "income": np.where(np.arange(60) == 7, 103.5, 0.0), "y": rng.normal(size=60)}
    study = data.as_study({"a": table, "b": table})
    with raises("a: refused, in income, fewer than 3 rows differ from the most frequent value"):
        study.matrix("y")
    assert study.matrix("y", ["x"]).columns == ("intercept", "x")
    with raises("a: 2 parameters are more than 0.01 of the rows"):
        data.as_study({"a": table}, policy=data.Policy(parameters=0.01)).matrix("y", ["x"])
    assert data.as_study([table], policy=data.Policy.none()).matrix("y").sds["income"] > 0


def test_the_response_of_a_matrix_is_never_filled(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"x": rng.normal(size=60), "y": rng.normal(size=60)})
    table.loc[:19, "y"] = np.nan
    study = data.as_study([table], missing="indicator")
    with raises("column 'y' is the response and has missing cells: pass missing = \"drop\""):
        study.matrix("y")
    assert study.matrix("x").columns == ("intercept", "y", "y_missing")
    with raises('missing = "indicator" needs the mean over all sites', ValueError):
        data.at_sites([tmp_path / "a.csv"], target="y", columns=["x"], missing="indicator")


def test_an_error_lists_problems_up_to_a_limit():
    tables = {f"c{i}": ["1"] * 20 + ["x"] for i in range(120)}
    with pytest.raises(DataError) as error:
        data.as_study([tables])
    assert len(str(error.value).splitlines()) == 52 and str(error.value).endswith("and 70 more")


def test_a_description_of_many_columns_is_short(tmp_path):
    rows = [",".join(f"c{i}" for i in range(120)), *[",".join(["1"] * 120)] * 20, ",".join(["x"] * 120)]
    (tmp_path / "a.csv").write_text(
        "\n".join(["n," + rows[0], *[f"{n},{row}" for n, row in enumerate(rows[1:])]]) + "\n"
    )
    with pytest.warns(UserWarning, match="skipped these columns") as caught:
        data.describe(tmp_path / "*.csv")
    (text,) = [str(one.message) for one in caught if "skipped" in str(one.message)]
    assert len(text.splitlines()) == 52 and text.endswith("and 70 more")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda t: data.as_study([t], seperator=";"), TypeError, "unknown option of as_study 'seperator'"),
        (lambda t: data.as_study([t], mising="drop"), TypeError, "'mising', did you mean 'missing'?"),
        (lambda t: data.as_study([t], separator=";"), TypeError, "unknown option of as_study 'separator'"),
        (lambda t: data.as_study({1: t, "1": t}), ValueError, "two tables have the site name '1'"),
        (lambda t: data.study(file="a.csv", split=3, agents=2), ValueError, "split must be a rule"),
        (lambda t: data.study(file="a.csv", split="iid", agents="3"), ValueError, "agents must be a whole number >= 1"),
        (lambda t: data.study(file="a.csv", split="iid", agents=2.5), ValueError, "agents must be a whole number >= 1"),
        (
            lambda t: data.study(file="a.csv", split="iid", agents=2, seed="a"),
            ValueError,
            "seed must be a whole number >= 0, found 'a'",
        ),
    ],
)
def test_invalid_options_are_named(call, error, message):
    with raises(message, error):
        call({"x": np.arange(20.0)})
