"""Declared ranges: a model that depends on no row."""

import re
import sys
import warnings
from datetime import date

import numpy as np
import pandas as pd
import pytest

import accord
from accord.base.errors import DataError
from accord.data.files import Dialect
from accord.data.ranges import Ranges, records

# The function has the name of its module.
glm_module = sys.modules["accord.models.glm"]
RANGES = {"age": (20, 90), "dose": (0.0, 2.5), "ward": ("a", "b", "c"), "died": (0, 1)}


def table(seed, rows=60):
    rng = np.random.default_rng(seed)
    found = {"age": rng.uniform(20, 90, rows), "dose": rng.uniform(0, 2.5, rows)}
    return {**found, "ward": rng.choice(["a", "b", "c"], rows), "died": rng.integers(0, 2, rows)}


def model(*tables, formula="died ~ scale(age) + log(dose + 1) + ward", **options):
    return accord.models.glm(list(tables), formula, "bernoulli", ranges=RANGES, **options)


def test_made_up_rows_fill_the_ranges():
    found = Ranges(RANGES).made_up()
    assert (found["age"].min(), found["age"].max()) == (20, 90)
    assert found["age"].mean() == pytest.approx(55.0) and found["age"].std() == pytest.approx(70 / 12**0.5, rel=2e-3)
    assert (found["dose"].min(), found["dose"].max()) == (0.0, 2.5) and (found["dose"] % 1 != 0).any()
    assert set(found["ward"]) == {"a", "b", "c"} and set(found["died"]) == {0.0, 1.0}
    for name, again in Ranges(RANGES).made_up().items():
        np.testing.assert_array_equal(again, found[name])
    assert np.abs(np.corrcoef(found["age"], found["dose"])[0, 1]) < 0.1


def test_the_model_is_the_same_for_other_rows():
    one, other = model(table(0), table(1)), model(table(2), {**table(3), "ward": ["a"] * 60})
    assert one.names == other.names and str(one.priors) == str(other.priors) and one.ranges == other.ranges
    for x in np.random.default_rng(0).standard_normal((5, one.dim)):
        assert one.alone(0).potential.log_prior_at(x) == other.alone(0).potential.log_prior_at(x)
    low, high = one.ranges["log(dose + 1)"]
    assert (low, high) == pytest.approx((0.0, np.log(3.5)))


def test_rows_have_the_columns_of_a_usual_formula():
    found = table(0)
    post, usual = model(found), accord.models.glm([found], "died ~ age + log(dose + 1) + ward", "bernoulli")
    own, expected = post.shards[0], usual.shards[0]
    np.testing.assert_array_equal(own["y"], expected["y"])
    np.testing.assert_array_equal(own["design"][:, 2:], expected["design"][:, 2:])
    # scaled by the range, and not by these rows
    np.testing.assert_allclose(own["design"][:, 1], (found["age"] - 55.0) / (70 / 12**0.5), rtol=2e-3, atol=1e-12)


def test_rows_that_do_not_fit_have_no_weight():
    found = {name: list(values) for name, values in table(0).items()}
    found["age"][0], found["ward"][1], found["died"][2], found["dose"][3] = None, "z", 2, "abc"
    found["age"][4], found["age"][5] = 1e9, -1e9
    with pytest.warns(
        UserWarning, match="more than 1% of the numbers of age are beyond its range and count as its end"
    ):
        post = model(found, table(1))
    rows = post.shards[0]
    np.testing.assert_array_equal(np.flatnonzero(rows["weight"] == 0.0), [0, 1, 2, 3])
    assert list(post.sizes) == [60, 60] and post.agreed.rows == (60, 60)
    low, high = post.ranges["scale(age)"]
    assert rows["design"][4:6, 1] == pytest.approx([high, low])
    # they add nothing to the likelihood
    x = np.full(post.dim, 0.3)
    kept = {name: [value for k, value in enumerate(values) if k > 3] for name, values in found.items()}
    with pytest.warns(UserWarning, match="beyond its range"):
        expected = model(kept, table(1)).gradients(x)[0]
    np.testing.assert_allclose(post.gradients(x)[0], expected, rtol=1e-6)


COLUMNS = {
    "list": list,
    "tuple": tuple,
    "objects": lambda cells: pd.Series(cells, dtype=object),
    "array": lambda cells: np.array(cells, object),
    "categories": lambda cells: pd.Categorical(cells),
    "nullable": lambda cells: pd.array(cells, dtype="boolean" if isinstance(cells[0], bool) else "Int64"),
}
ODD = [None, float("nan"), "x", 1.5, 2, True, b"x", 1j, np.float32(1), [1]]


@pytest.mark.parametrize("kind", COLUMNS)
@pytest.mark.parametrize(
    ("own", "cells"),
    [
        (("True", "False"), [True, False]),
        ((0, 1), [True, False]),
        (("0", "1"), [0, 1]),
        (("0", "1"), [True, False]),
        (("100000000000000001", "100000000000000003"), [100000000000000001, 100000000000000003]),
    ],
)
def test_one_cell_decides_about_its_own_row_only(kind, own, cells):
    """One odd cell would change the type of the others, if a list became an array."""
    found, declared = [], {"x": (0.0, 1.0), "flag": own, "died": (0, 1)}
    odd = ODD[:2] if kind in ("categories", "nullable") else ODD
    for value in [cells[1], *odd]:
        flag = COLUMNS[kind]([*cells * 3, value, *cells * 10])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tables = [{"x": np.full(27, 0.5), "flag": flag, "died": [0, 1, 1] * 9}]
            rows = accord.models.glm(tables, "died ~ x + flag", "bernoulli", ranges=declared).shards[0]
        found.append(np.delete(np.column_stack([rows["weight"], rows["design"]]), 6, axis=0))
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


def test_draws_do_not_need_fitting_rows_at_every_agent():
    empty = {**table(0), "died": np.full(60, 3)}
    with pytest.warns(UserWarning, match="agent 0: more than a fifth of the rows are left out, most .* of died"):
        post = model(empty, table(1))
    run = accord.sample(post, accord.Network.star(2), draws=100)
    alone = accord.sample(model(table(1)), accord.Network.star(1), draws=100)
    np.testing.assert_allclose(run.draws.mean(axis=(0, 1, 2)), alone.draws.mean(axis=(0, 1, 2)), atol=0.2)


def test_a_row_with_an_infinite_term_counts_as_none_without_a_word():
    formula = "died ~ I(1 / (dose - 1.25))"
    found = table(0)
    found["dose"][7] = 1.25
    post = model(found, table(1), formula=formula)
    np.testing.assert_array_equal(np.flatnonzero(post.shards[0]["weight"] == 0.0), [7])
    assert np.isfinite(post.shards[0]["design"]).all()
    # the made-up rows raise an error for everyone
    with pytest.raises(ValueError, match="is not finite in some rows that the declared ranges allow"):
        model(found, formula="died ~ log(dose)")
    with pytest.raises(ValueError, match="one column on its left"):
        model(found, formula="log(dose) ~ age")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"age": (20, 20)}, "lowest and a higher number"),
        ({"age": (20,)}, "age needs"),
        ({"age": (20, np.nan)}, "age needs"),
        ({"age": (True, False)}, "age needs"),
        ({"ward": "abc"}, "ward needs"),
        ({"ward": ("a", "a")}, "twice"),
        ({"ward": ("a", "NA")}, "means a missing cell"),
        ({"ward": ("a ", "b")}, "ends with a space"),
        ({"age": (0, 10**20)}, "beyond 2"),
        ({"ward": ("a", 1)}, "ward needs"),
        ({"age": ("2020-01-01", "2024-12-31")}, "dates cannot be a range, found .* write days"),
        ({"age": (date(2020, 1, 1), date(2024, 12, 31))}, "dates cannot be a range"),
    ],
)
def test_wrong_ranges_raise(wrong, message):
    with pytest.raises(ValueError, match=message):
        Ranges({**RANGES, **wrong})


@pytest.mark.filterwarnings("ignore:.* for their owner only")
@pytest.mark.parametrize(
    ("family", "own", "rule"),
    [
        ("gamma", (0.0, 500.0), "numbers > 0"),
        ("beta", (0.0, 1.0), "numbers between 0 and 1, both excluded"),
        ("bernoulli", (0, 2), "0 or 1"),
        ("poisson", (0.5, 5.0), "counts 0, 1, 2, ..."),
        ("normal", ("a", "b"), "numbers"),
    ],
)
def test_a_range_that_does_not_fit_the_family_is_named(family, own, rule):
    text = f"the range of died, {own!r}, does not fit the family {family}, whose responses are {rule}: declare a range"
    text += " of such numbers only" + ", without decimal points" * (own in ((0, 2), (0.5, 5.0)))
    with pytest.raises(ValueError, match=re.escape(text)):
        accord.models.glm([table(0)], "died ~ age", family, ranges={"age": (20, 90), "died": own})


def test_wrong_calls_raise():
    with pytest.raises(ValueError, match="effects of groups"):
        model(table(0), formula="died ~ age + (1 | ward)")
    with pytest.raises(ValueError, match=r"a factor in C\(age\), so it needs levels"):
        model(table(0), formula="died ~ C(age)")
    with pytest.raises(ValueError, match=r"scale\(ward\) needs .* ranges: write its lowest and its highest number"):
        model(table(0), formula="died ~ scale(ward)")
    with pytest.raises(ValueError, match="cannot have an offset"):
        model(table(0), formula="died ~ age + offset(dose)")
    with pytest.raises(ValueError, match="no weights"):
        model(table(0), weights="dose")
    with pytest.raises(DataError, match=r"agent 0: there is no column 'ward'"):
        model({name: values for name, values in table(0).items() if name != "ward"})
    with pytest.raises(TypeError, match="pass the tables themselves"):
        accord.models.glm(accord.data.as_study([table(0)]), "died ~ age", "bernoulli", ranges=RANGES)


def test_texts_are_numbers_in_the_dialect_of_the_file():
    cells = {name: np.array(list(map(str, values)), object) for name, values in table(0).items()}
    cells["age"] = np.array([text.replace(".", ",") for text in cells["age"]], object)
    found = Ranges(RANGES).within(cells, Dialect(decimal=",", separator=";"))
    assert not found.fits.any()
    cells["dose"] = np.array([text.replace(".", ",") for text in cells["dose"]], object)
    found = Ranges(RANGES).within(cells, Dialect(decimal=",", separator=";"))
    assert found.fits.all()
    np.testing.assert_array_equal(found.columns["dose"], table(0)["dose"])


def test_levels_may_be_written_as_numbers():
    ranges = Ranges({"ward": ("1", "2", "03")})
    found = ranges.within({"ward": np.array(["1.0", "2", "03", "3"], object)}, Dialect())
    np.testing.assert_array_equal(found.fits, [True, True, True, False])
    assert list(found.columns["ward"]) == ["1", "2", "03"]


def test_numbers_beyond_their_range_are_counted():
    found = Ranges({"age": (20, 90), "dose": (0.0, 1.0)}).within(
        {"age": np.array([19.4, 50.5, 1e400, None]), "dose": np.full(4, 0.5)}, Dialect()
    )
    assert found.clipped == {"age": 2, "dose": 0} and list(found.columns["age"]) == [20, 50.5, 90]
    assert found.misfits == {"age": 1, "dose": 0}


def test_each_line_of_a_file_is_a_row_of_its_own(tmp_path):
    path, good = tmp_path / "rows.csv", "50,1.0,a,1"
    wrong = [
        "50,1.0,a,1,2",
        '50,1.0,"a,1',
        "50",
        "M\u00fc,1.0,a,1",
        '"' + "x" * 200_000 + '",1,a,1',
        '50,1.0,"a',
        "a,b,c,d",
    ]
    for one in wrong:
        path.write_bytes("\n".join(["age,dose,ward,died", good, "", one, good]).encode("latin-1"))
        cells = records(path, Dialect())
        assert all(len(own) == 3 for own in cells.values())
        np.testing.assert_array_equal(Ranges(RANGES).within(cells, Dialect()).fits, [True, False, True])
    with pytest.raises(ValueError, match="no header in line 9"):
        records(path, Dialect(header=9))
    with pytest.raises(ValueError, match='an encoding such as "utf-8"'):
        records(path, Dialect(encoding="utf-16"))


def test_no_row_shows_itself_by_an_error(monkeypatch):
    """Whatever raises for some rows of a site, the others count, and each row decides for itself."""
    usual = glm_module.study_of_made_up

    def fragile(ranges, tables, formula):
        if any((own["age"] == 33.0).any() for own in tables.values()):
            raise ValueError("a level of 33")
        return usual(ranges, tables, formula)

    found = {**table(0), "age": np.linspace(40, 60, 60)}
    found["age"][[5, 59]] = 33
    monkeypatch.setattr(glm_module, "study_of_made_up", fragile)
    post = model(found, table(1), formula="died ~ age")
    np.testing.assert_array_equal(np.flatnonzero(post.shards[0]["weight"] == 0.0), [5, 59])
    np.testing.assert_array_equal(post.shards[1]["weight"], table(1)["age"] != 33)


def test_only_counts_are_rounded():
    cells = {"crea": np.array([0.6, 1.4, 2.9]), "days": np.array([0.6, 1.4, 2.9]), "died": np.array([0, 1, 0.5])}
    ranges = {"crea": (0, 3), "days": (0, 3), "died": (0, 1)}
    for family, days in (("poisson", [1.0, 1.0, 3.0]), ("normal", [0.6, 1.4, 2.9])):
        found = glm_module.ranges_of(ranges, "days ~ crea + died", family)
        own = found.within(cells, Dialect())
        np.testing.assert_array_equal(own.fits, [True, True, False])
        assert list(own.columns["crea"]) == [0.6, 1.4] and list(own.columns["days"]) == days[:2]
        assert (found.made_up()["days"] % 1 == 0).all() == (family == "poisson")


def test_many_cells_beyond_a_range_are_a_warning():
    with pytest.warns(UserWarning, match="agent 0: more than 1% of the numbers of age are beyond its range"):
        accord.models.glm([table(0)], "died ~ age", "bernoulli", ranges={"age": (60, 70), "died": (0, 1)})


@pytest.mark.parametrize(("odd", "is_many"), [(2, False), (3, True)])
def test_a_code_for_missing_values_in_a_few_rows_is_a_warning(odd, is_many):
    age = np.full(200, 50.0)
    age[:odd] = 999
    found = Ranges({"age": (20, 90)}).within({"age": age}, Dialect())
    assert found.codes == {"age": odd} and ("codes such as 999" in found.warning) == is_many
    # 99 is a usual number here, and others are not far
    assert Ranges({"age": (20, 90)}).within({"age": np.append(age + 40, 99)}, Dialect()).codes == {"age": 0}


def test_a_missing_range_is_named_and_others_are_not_used():
    found = {"age": (20, 90), "died": (0, 1), "weight": (30, 200)}
    assert accord.models.glm([table(0)], "died ~ age", "bernoulli", ranges=found).names == ("Intercept", "age")
    with pytest.raises(ValueError, match="ranges has no entry for age"):
        accord.models.glm([table(0)], "died ~ age", "bernoulli", ranges={"died": (0, 1)})
