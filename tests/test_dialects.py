"""Files as people have them: separators, decimals, encodings, quotes, blanks, index columns, lines above the header."""

import contextlib
import csv
import io
import itertools
import os
import re
import threading
import warnings
from functools import partial

import numpy as np
import pandas as pd
import pytest

import accord
from accord import data
from accord.base.errors import DataError
from accord.data.files import Dialect

ROWS = 24


def people(site, seed=0):
    """A data frame with numbers, a factor that looks like numbers, texts and a yes or no."""
    rng = np.random.default_rng([seed, site])
    return pd.DataFrame(
        {
            "age": rng.normal(1200, 300, ROWS).round(2),
            "dose": np.resize([0.5, 1.0, 1.5, 2.0], ROWS),
            "stage": np.resize(["1", "2", "3"], ROWS),
            "ward": np.resize(["Süd, oben", "north"], ROWS),
            "died": rng.permutation(np.resize(["yes", "no"], ROWS)),
        }
    )


def written(frame, separator, decimal, thousands, quoting, word, index):
    """A data frame as text, with one cell of age missing."""

    def cell(value):
        whole, _, part = f"{value:,.2f}".partition(".")
        return whole.replace(",", thousands) + decimal + part

    table = frame.copy().astype(object)
    table["age"] = [word, *map(cell, frame["age"][1:])]
    table["dose"] = [str(value).replace(".", decimal) for value in frame["dose"]]
    stream = io.StringIO()
    table.to_csv(stream, sep=separator, quoting=quoting, index=index)
    return stream.getvalue()


def drawn_dialects(count, seed=0):
    """A random selection of `count` combinations of options."""
    choices = [
        [",", ";", "\t", "|"],
        [".", ","],
        ["", ",", ".", " ", "'"],
        ["utf-8", "utf-8-sig", "cp1252", "latin-1", "utf-16"],
        [csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC],
        ["", "NA", "NaN", "null"],
        [False, True],
        ["", "\n\n", "a report, of\nsome kind\n"],
    ]
    every = [one for one in itertools.product(*choices) if one[1] != one[2]]
    chosen = np.random.default_rng(seed).choice(len(every), count, replace=False)
    return [every[k] for k in chosen]


@pytest.mark.parametrize("dialect", drawn_dialects(100), ids=str)
def test_a_dialect_equals_its_data_frame_or_an_error_names_the_option(tmp_path, dialect):
    separator, decimal, thousands, encoding, quoting, word, index, above = dialect
    frames = {f"s{site}": people(site) for site in range(3)}
    for name, frame in frames.items():
        text = above + written(frame, separator, decimal, thousands, quoting, word, index)
        (tmp_path / f"{name}.csv").write_bytes(text.encode(encoding))
        frame.loc[0, "age"] = np.nan
    options = {"strings": ["stage"], "positive": {"died": "yes"}, "missing": "indicator"}
    expected = data.as_study(frames, **options)
    encodings = {"utf-8-sig": "utf-8", "latin-1": "cp1252"}
    right = {"separator": separator, "decimal": decimal, "encoding": encodings.get(encoding, encoding)}
    right |= {"thousands": thousands or None, "header": above.count("\n") + 1}
    given = {}
    # each message names one option, until all files are read
    for _ in range(6):
        try:
            found = data.study(tmp_path / "*.csv", **options, **given)
            break
        except DataError as error:
            said = str(error)
        said = said.replace("\\t", "\t")
        named = {key: value for key, value in right.items() if f'{key} = "{value}"' in said}
        if f"header = {right['header']}" in said:
            named["header"] = right["header"]
        assert named.items() - given.items(), said
        given |= named
    else:
        pytest.fail(f"not read with {given}: {said}")
    for own, frame in zip(found.frames, expected.frames, strict=True):
        pd.testing.assert_frame_equal(own[frame.columns], frame)


# --- messages for a wrong format ---


def study_of(tmp_path, text, sites="abc", **options):
    for site in sites:
        path = tmp_path / f"{site}.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return data.study(tmp_path / "*.csv", **options)


def lines(header, *rows, times=10):
    return "\n".join([header, *rows * times]) + "\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (lines("age;crp;died", "40;1.0;0", "50;2.0;1"), 'separated by semicolons[?] Write separator = ";"$'),
        (lines("\ufeffage;crp;died", "40;1.0;0", "50;2.0;1"), 'separated by semicolons[?] Write separator = ";"$'),
        (lines("age\tcrp\tdied", "40\t1.0\t0"), r'separated by tabs[?] Write separator = "\\t"$'),
        (lines("age|crp|died", "40|1.0|0"), r'separated by bars[?] Write separator = "\|"$'),
        (lines("age;crp;died", "40;1,0;0", "50;2,5;1"), 'Write separator = ";" and decimal = ","$'),
        (
            lines("A report\n\nage;crp;died", "40;1,0;0", "50;2,5;1"),
            'Write separator = ";", decimal = "," and header = 3',
        ),
        (lines("A report\n\nage,crp,died", "40,1.0,0"), "Is the header in line 3[?] Write header = 3$"),
        (
            lines("age,crp,died", '40,"1,5",0', '50,"2,5",1'),
            "column 'crp'.*numbers in another format: write decimal = \",\"",
        ),
        (
            lines("age,crp,died", '40,"1,234",0', "50,950,1"),
            'column \'crp\'.*write decimal = "," or thousands = ",", or name the column in strings',
        ),
        (lines("age,crp,died", '40,"1,234.5",0', "50,950,1"), "column 'crp'.*: write thousands = \",\""),
        (lines("age,crp,died", "40,1 234,0", "50,950,1"), "column 'crp'.*: write thousands = \" \""),
        (lines("age,crp,died", "40,<1.0,0", "50,3,1", "50,4,1"), 'column \'crp\'.*a number after "<" or ">"'),
        (lines("age,crp,died", "40,1,0", "50,3,1", "total,4,1"), "column 'age'.*a text where others have numbers"),
        (
            lines('"age" "died"', '"1" 50 1', '"2" 60 0'),
            "all rows have one cell more than the header|cannot be read as CSV",
        ),
        (lines("age,died", "1,50,1", "2,60,0"), "all rows have one cell more than the header .2.: name the column"),
        (
            lines("age,crp,died", "40,2020-01-31,0", "50,2020-02-01,1"),
            'dates with the format "%Y-%m-%d", or in strings',
        ),
        (lines("age,crp,died", "40,01.02.2020,0", "50,31.01.2020,1"), 'dates with the format "%d.%m.%Y"'),
        ("age,ort\n40,S\xfcd\n".encode("latin-1"), 'not UTF-8 text: write its encoding, such as encoding = "cp1252"'),
        ("age,ort\n40,Süd\n".encode("utf-16"), 'UTF-16 text: write encoding = "utf-16"'),
        (
            lines(",age,died", "0,40,NA", "1,50,1"),
            'no value: missing = "drop" leaves such rows out, missing = "indicator"',
        ),
    ],
)
def test_a_wrong_guess_names_the_option(tmp_path, text, said):
    with pytest.raises(DataError, match=said):
        study_of(tmp_path, text)


def test_an_unnamed_column_is_ignored(tmp_path):
    for header, row in ((",age,died", "{0},{1},{2}"), ("age,died,", "{1},{2},")):
        rows = [row.format(k, 40 + k, k % 2) for k in range(12)]
        found = study_of(tmp_path, lines(header, *rows, times=1), formula="died ~ age")
        assert list(found.agreed.columns) == ["age", "died"]
        assert list(study_of(tmp_path, lines(header, *rows, times=1)).agreed.columns) == ["age", "died"]


# --- amounts, titles, comments and names that are numbers ---

AMOUNTS = [
    ["91%", "88.5%", "97 %"],
    ["\u20ac50", "\u20ac61.50", "7 \u20ac"],
    ["$1,200", "-$900", "$50.5"],
    ["5 mg/dl", "7.1 mg/dL", "1e2 mg/dl"],
    ["50kg", "61 kg", "111 lb"],
    ["EUR 5", "6 EUR"],
    ["36.6\u00b0C", "37 \u00b0C"],
    ["61%", "62", "63.5"],
]
LABELS = [
    *(["(1)", "(2)"], ["1-", "2-"], ["\u2013", "\u2013 none"]),
    *(["1st", "2nd", "3rd"], ["4th", "5th"], ["T1", "T2"], ["stage 1", "stage 2"], ["A1", "B2"], ["10A", "11A"]),
    *(
        ["2D", "3D"],
        ["3G", "4G"],
        ["1+", "2+"],
        ["<65", ">=65"],
        ["10-19", "20-29"],
        ["20s", "30s"],
        ["3 West", "4 West"],
    ),
    ["91%", "95%", "high"],
]


@pytest.mark.parametrize("cells", AMOUNTS, ids=str)
def test_numbers_with_a_unit_are_no_factor(tmp_path, cells):
    text = lines("x,died", *(f'"{cell}",{k % 2}' for k, cell in enumerate(cells)))
    for formula in ("died ~ x", "died ~ scale(x)", "died ~ died:x", None):
        with pytest.raises(DataError, match="numbers with a sign or a unit, such as % or kg: remove it") as error:
            study_of(tmp_path, text, formula=formula)
        assert not any(cell in str(error.value) for cell in cells)
    with pytest.raises(DataError, match="numbers with a sign or a unit"):
        data.as_study(two(cells * 6, cells * 6))
    assert study_of(tmp_path, text, strings=["x"]).agreed.kinds["x"] == "factor"


RARE = {
    "a dash": (["4.5 ng/l", "6.1 ng/l"], "-", "a sign or a unit"),
    "a word": (["12 weeks", "16 weeks"], "Unknown", "a sign or a unit"),
    "a remark": (["71%", "88%"], "not seen", "a sign or a unit"),
    "an error": (["71%", "88%"], "88q", "a sign or a unit"),
    "a number": (["$5", "$6"], "5", "a sign or a unit"),
    "decimal commas": (["1,5", "2,75"], "n.d.", 'numbers in another format: write decimal = ","'),
    "limits": (["<0.5", "2.0", "0.7"], "None", 'a number after "<" or ">"'),
    "dates": (["2021-03-30", "2021-04-02"], "-", 'dates: name the column in dates with the format "%Y-%m-%d"'),
}


@pytest.mark.parametrize("case", RARE)
def test_a_rare_other_cell_does_not_hide_the_form_of_the_rest(case):
    cells, rare, said = RARE[case]
    # words for missing values may be frequent
    for times in (1, 4) if rare in ("-", "Unknown") else (1,):
        with pytest.raises(DataError) as error:
            data.as_study(two(cells * 9 + [rare] * times, NUMBERS), policy=data.Policy.none())
        assert said in str(error.value) and f" {rare} " not in str(error.value)
        assert ("Correct the other texts, or name them in blanks" in str(error.value)) == (case != "a number")


@pytest.mark.parametrize("cell", ["(0.8)", "(1,250)", "\u22120.8", "\u2212 3", "\u20131e3", "7.5-"])
@pytest.mark.parametrize("times", [1, 9])
def test_negative_numbers_in_another_form_are_named(cell, times):
    cells = (["2.5", cell] + ["3"] * (9 - times)) * times
    with pytest.raises(DataError, match="rows? 1.* ha(s|ve) negative numbers in another form, such as with") as error:
        data.as_study(two(cells, NUMBERS))
    assert cell not in str(error.value) and "rows 0" not in str(error.value)
    assert data.as_study(two(cells, cells), strings=["x"], policy=data.Policy.none()).agreed.kinds["x"] == "factor"


@pytest.mark.parametrize("cells", [["\u22121.5", "\u22122"], ["\u22125 %", "3 %"], ["($50)", "$61"]], ids=ascii)
def test_negative_numbers_in_another_form_are_no_factor(cells):
    with pytest.raises(DataError, match="rows 0.* have (negative )?numbers (in another form|with a sign or a unit)"):
        data.as_study(two(cells * 6, NUMBERS))


def test_messages_about_units_name_the_rows_with_a_unit():
    cells = ["30", "-", "8%", "31", "9 %", "32"] + ["33"] * 10
    with pytest.raises(DataError, match="rows 2, 4 have numbers with a sign or a unit"):
        data.as_study(two(cells, NUMBERS))


@pytest.mark.parametrize("cells", [["5 mg", "9 mg", "placebo"], ["10%", "high", "low"], ["-", "mild"]], ids=str)
def test_amounts_among_many_words_are_levels(cells):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert data.as_study(two(cells * 6, cells * 6)).agreed.levels == {"x": tuple(sorted(cells))}


@pytest.mark.parametrize("cells", LABELS, ids=str)
def test_labels_with_digits_are_a_factor_without_a_warning(cells):
    assert data.as_study(two(cells * 6, cells * 6)).agreed.levels == {"x": tuple(sorted(cells))}


@pytest.mark.parametrize(
    ("above", "line"),
    [
        ("Hospital export,,\n,,\n", 3),
        ("Hospital export,2021,\n", 2),
        (",Report,\n,,\n,,\n", 4),
        ("2021,,\nby the registry,,\n", 3),
        ("# exported, 2021\n", 2),
        ("# exported\n# in 2021, again\n", 3),
        ("# one, two, three\n# four\n", 3),
        ("Hospital export,,\nby the registry\n", 3),
        ("# one, two, three\n", 2),
        ("// from, the database\n", 2),
        ("Export of,the ward\n", 2),
    ],
)
def test_a_title_or_a_comment_names_the_line_of_the_header(tmp_path, above, line):
    text = above + lines("age,crp,died", "50,2.1,1", "61,3.4,0", "70,NA,0")
    for read in (study_of, lambda folder, text, **beside: data.describe(folder / "*.csv", **beside)):
        with pytest.raises(DataError, match=f"Is the header in line {line}[?] Write header = {line}$"):
            read(tmp_path, text, formula="died ~ age + crp")
    with pytest.warns(UserWarning, match="left out: 10 at a"):
        found = study_of(tmp_path, text, header=line, missing="drop")
    assert list(found.agreed.columns) == ["age", "crp", "died"]


BESIDE = {
    "a comment": ("// from the ward\n{}", "", "has 1 column, lines .*[?] Write header = 2$"),
    "a footer": ("{}", "exported by ward 3\n", "has 3 columns, line 22 has fewer cells: delete lines below the table$"),
    "both": ("// from the ward\n{}", "// end\n", "has 1 column, lines .*[?] Write header = 2$"),
    "short rows": ("{}", "8;9,5\n" * 30, "has 3 columns, lines 22, .* have fewer cells$"),
    "a short line": ("{}", "8;9,5\n7;2,5;1\n", "has 3 columns, line 22 has fewer cells$"),
}


@pytest.mark.parametrize("case", BESIDE)
@pytest.mark.parametrize("separator", [";", "\t", ","])
def test_lines_beside_the_table_suggest_no_other_separator(tmp_path, case, separator):
    above, below, said = BESIDE[case]
    text = above.format(lines("age;cost;died", "40,5;1 205,5 NOK;0", "52,5;1 310,25 NOK;1")) + below
    text = text.replace(",", ".") if separator == "," else text
    with pytest.raises(DataError, match=said):
        study_of(tmp_path, text.replace(";", separator), separator=separator, decimal="." if separator == "," else ",")


@pytest.mark.parametrize(
    ("header", "rows"),
    [
        ("#id,sex,died", ("1,f,0", "2,m,1")),
        ("sex,died,", ("f,0,x", "m,1,")),
        ("sex,,died", ("f,,0", "m,9,1")),
        (",sex,died", ("p,f,0", "q,m,1")),
    ],
)
def test_a_header_with_a_sign_or_an_unnamed_column_is_a_header(tmp_path, header, rows):
    assert list(study_of(tmp_path, lines(header, *rows), formula="died ~ sex").agreed.columns) == ["sex", "died"]


@pytest.mark.parametrize(
    "header", ["land,2019,2020,died,x", "land,inf,nan,died,x", "NaN,Inf,z,died,x", "a,1e5,-1,died,x"]
)
def test_a_column_may_have_a_number_as_its_name(tmp_path, header):
    text = lines(header, *(f"{'abc'[k % 3]},{k},{k % 7},{k % 2},{k * k % 11}" for k in range(12)))
    for beside in ({"formula": "died ~ x"}, {"columns": ["died", "x"]}):
        assert list(study_of(tmp_path, text, **beside).agreed.columns) == ["died", "x"]
    assert set(header.split(",")) == set(study_of(tmp_path, text).agreed.columns)


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("2016,died", "{0}.5,{1}"),
        ("ort,2016,2017,2018,died", "{2},{0}.5,{0}12,{0},{1}"),
        ("7,died", "{0},{1}"),
    ],
)
def test_years_and_a_single_number_are_names_among_words(tmp_path, header, row):
    rows = [row.format(k, k % 2, "bc"[k % 2]) for k in range(10, 22)]
    found = study_of(tmp_path, lines(header, *rows, times=1))
    assert set(found.agreed.columns) == set(header.split(","))


@pytest.mark.parametrize(
    ("header", "row"),
    [("2016,2017", "20{0},20{0}"), ("2016,died", "20{0},{1}"), ("15,died", "{0},{1}"), ("1.5,died", "{0},{1}")],
)
def test_a_number_as_a_name_has_a_remedy(tmp_path, header, row):
    text = lines(header, *(row.format(k, k % 2) for k in range(10, 22)), times=1)
    with pytest.raises(DataError, match="is the header missing[?] If it is a name, begin it with a letter"):
        study_of(tmp_path, text)


def test_several_numbers_other_than_years_are_no_names(tmp_path):
    with pytest.raises(DataError, match="the name of column 2 is a number: is the header missing[?]"):
        study_of(tmp_path, lines("unclear,105,1250", *(f"{k},{k},{k * 10}" for k in range(10, 22)), times=1))


@pytest.mark.parametrize("row", ["a,1,2,0,3", "a,b,2,c,3", "1,2,3,4,x", "a,NA,2,0,b"])
def test_a_missing_header_is_an_error_without_cells(tmp_path, row):
    with pytest.raises(DataError, match="is a number: is the header missing[?]") as error:
        study_of(tmp_path, lines(row, row), formula="died ~ x")
    assert row not in str(error.value)


def test_a_number_that_is_none_is_refused():
    with pytest.raises(DataError, match="rows 1, 3, 5, 7, 9 and 1 more have no finite float64 number"):
        data.as_study(two(["1", "NAN"] * 6, NUMBERS))


def test_numbers_at_a_site_and_texts_at_another_conflict_in_a_factor(tmp_path):
    sizes = [str(10 + k) for k in range(12)], ["<=20", "20-50", ">50"] * 4, ["small", "large"] * 6
    tables = {site: {"size": cells, "died": [0, 1] * 6} for site, cells in zip("abc", sizes, strict=True)}
    for formula in ("died ~ C(size)", "died ~ size", "died ~ C(size) + died:C(size)"):
        with pytest.raises(DataError, match="column 'size' holds numbers at a and texts at b, c: name it in strings"):
            data.as_study(tables, formula=formula)
    assert (
        data.as_study(tables, formula="died ~ C(size)", strings="size", policy=data.Policy.none()).agreed.kinds["size"]
        == "factor"
    )
    tables["c"]["size"] = ["10", "small"] * 6
    assert data.as_study(tables, formula="died ~ C(size)", policy=data.Policy.none()).agreed.kinds["size"] == "factor"


def test_numbers_of_a_dialect():
    german, swiss = Dialect(decimal=",", thousands="."), Dialect(thousands="'")
    assert german.number("1.234.567,5") == 1234567.5 and german.number("-0,25") == -0.25
    assert german.number("1.23") is None and german.number("12.34,5") is None
    assert swiss.number("1'234.5") == 1234.5 and swiss.number("1'23") is None and swiss.number("1_000") is None
    assert Dialect(decimal=",").number("1.5") is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"separator": ";;"}, "separator must be one character"),
        ({"decimal": ";"}, 'decimal must be "." or ",", found \';\''),
        ({"thousands": "x"}, "thousands must be one of"),
        ({"thousands": "."}, "decimal and thousands must differ"),
        ({"encoding": "latin-99"}, "encoding must be a codec that Python knows"),
    ],
)
def test_invalid_dialects(tmp_path, options, said):
    with pytest.raises(ValueError, match=said):
        data.study(tmp_path / "*.csv", **options)


def test_describe_warns_of_likely_thousands_separators(tmp_path):
    rows = [f"{40 + k},1.{200 + 7 * k},{k + 0.5}" for k in range(20)]
    for site in "ab":
        (tmp_path / f"{site}.csv").write_text(lines("age,cost,dose", *rows, times=1))
    with pytest.warns(
        UserWarning,
        match="column 'cost': all non-integer numbers of a, b have three digits after '.'",
    ):
        data.describe(tmp_path / "*.csv")


def test_a_pipe_is_read_once(tmp_path):
    path = tmp_path / "pipe.csv"
    os.mkfifo(path)
    rows = lines("age,died", *(f"{40 + k},{k % 2}" for k in range(12)), times=1)
    writer = threading.Thread(target=path.write_text, args=(rows,), daemon=True)
    writer.start()
    assert sum(data.study([path]).agreed.rows) == 12
    writer.join(10)
    assert not writer.is_alive()


# --- levels ---


def test_whole_numbers_with_a_point_are_the_same_level(tmp_path):
    counts = {"a": (9, 15, 24), "b": (12, 18, 27), "c": (9, 15, 24)}
    frames = {}
    for site, died in counts.items():
        rows = [(k, int(i < d)) for k, d in zip((1, 2, 3), died, strict=True) for i in range(30)]
        line = "{:.1f},{}" if site == "b" else "{},{}"
        (tmp_path / f"{site}.csv").write_text(lines("stage,died", *(line.format(*row) for row in rows), times=1))
        frames[site] = pd.DataFrame(rows, columns=["stage", "died"])
    for options in ({"formula": "died ~ C(stage)"}, {"strings": ["stage"]}):
        found, expected = data.study(tmp_path / "*.csv", **options), data.as_study(frames, **options)
        assert found.agreed.levels == {"stage": ("1", "2", "3")}
        assert found.agreed == expected.agreed
        for own, frame in zip(found.frames, expected.frames, strict=True):
            pd.testing.assert_frame_equal(own, frame)


@pytest.mark.filterwarnings("default::UserWarning")
def test_other_spellings_stay_levels_with_a_warning(tmp_path):
    rows = [
        f"{code},{ward},{k % 2}"
        for k, code in enumerate(["250.1", "250.10", "01", "1"] * 3)
        for ward in ("A b", "a  B")
    ]
    with pytest.warns(UserWarning, match="has levels that look alike") as caught:
        found = study_of(tmp_path, lines("code,ward,died", *rows, times=3), strings=["code"])
    assert found.agreed.levels["code"] == ("01", "1", "250.1", "250.10")
    said = "".join(str(one.message) for one in caught)
    assert all(pair in said for pair in ("'01' and '1'", "'250.1' and '250.10'", "'A b' and 'a  B'"))


def sexes(*levels, rows=30):
    rng = np.random.default_rng(0)
    return {"x": [own for own in levels for _ in range(rows // len(levels))], "y": rng.normal(size=rows)}


def test_levels_that_look_alike_are_one_warning():
    tables = {"north": sexes("M", "F", rows=80), "south": sexes("m", "f", rows=80)}
    with pytest.warns(UserWarning) as caught:
        accord.models.glm(tables, "y ~ x")
    (said,) = [str(one.message) for one in caught]
    assert said == (
        "column 'x' has levels that look alike, 'F' and 'f', and 'M' and 'm', each with its own effect: if they mean "
        'the same, give them one spelling in the files, or write strings = {x = {"F" = ["f"], "M" = ["m"]}}'
    )


def test_levels_that_look_alike_come_before_the_advice_of_a_floor():
    # three more levels exceed the share of parameters
    tables = {"north": sexes("M", "F", rows=40), "south": sexes("m", "f", rows=40)}
    with pytest.warns(UserWarning, match="look alike"), pytest.raises(DataError) as caught:
        accord.models.glm(tables, "y ~ x")
    first = str(caught.value).splitlines()[1]
    assert "column 'x' has levels that look alike, 'F' and 'f'" in first and "give them one spelling" in first
    assert "north: 5 parameters are more than" in str(caught.value)


def test_rare_levels_that_look_alike_are_named_before_the_floor():
    table = sexes("M", "F")
    table["x"][0] = "m"
    with pytest.raises(DataError) as caught:
        data.as_study({"north": table})
    assert re.search(
        "column 'x' has levels that look alike .* one spelling .* the floor of the site$", str(caught.value)
    )
    assert "'m'" not in str(caught.value) and "leave the column out" not in str(caught.value)
    # a rare level that looks like no other one
    table["x"][0] = "other"
    with pytest.raises(DataError, match="1 of 3 levels have fewer than 3 rows, .* merge levels, or leave"):
        data.as_study({"north": table})


def test_positive_matches_whole_numbers_with_a_point(tmp_path):
    frames = study_of(tmp_path, lines("x,died", "1,1.0", "2,0.0", "3,1"), positive={"died": "1"}).frames
    assert frames[0]["died"].tolist()[:3] == [1.0, 0.0, 1.0]


# --- missing ---


@pytest.mark.parametrize("word", ["NA", "", "null"])
def test_a_site_without_a_value_is_missing(tmp_path, word):
    rows = [f"{site},{40 + i},{int(i % 3 == 0)}" for site in ("north", "south", word) for i in range(12)]
    path = tmp_path / "all.csv"
    path.write_text(lines("hospital,age,died", *rows, times=1))
    with pytest.raises(DataError, match="column 'hospital': lines 26, .* have no site: missing = \"drop\" leaves"):
        data.study(file=path, site="hospital")
    with pytest.warns(UserWarning, match="rows without a site in column 'hospital' are left out: 12 in all.csv"):
        found = data.study(file=path, site="hospital", missing="drop")
    assert found.sites == ("north", "south") and sum(found.agreed.rows) == 24


def test_a_formula_without_the_mark_of_filled_cells_warns():
    rows = {"crp": [""] * 4 + list(map(str, range(36))), "died": [0, 1] * 20}
    found = data.as_study([rows] * 2, missing="indicator")
    with pytest.warns(UserWarning, match='but not crp_missing: add it.*Or read the study with missing = "drop"'):
        accord.models.glm(found, "died ~ crp", "bernoulli")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        accord.models.glm(found, "died ~ crp + crp_missing", "bernoulli")


def test_formats_by_site(tmp_path):
    frames = {name: people(site) for site, name in enumerate(("uk", "de"))}
    for name, frame in frames.items():
        dialect = (",", ".", "") if name == "uk" else (";", ",", ".")
        text = written(frame, *dialect, csv.QUOTE_MINIMAL, "", False)
        (tmp_path / f"{name}.csv").write_text(text, encoding="utf-8" if name == "uk" else "cp1252")
        frame.loc[0, "age"] = np.nan
    own = {"separator": {"de": ";"}, "decimal": {"de": ","}, "thousands": {"de": "."}, "encoding": {"de": "cp1252"}}
    # levels of decimals have one spelling
    options = {"strings": ["stage", "dose"], "positive": {"died": "yes"}, "missing": "drop"}
    with pytest.warns(UserWarning, match="left out"):
        found = data.study([tmp_path / "uk.csv", tmp_path / "de.csv"], **options, **own)
    with pytest.warns(UserWarning, match="left out"):
        expected = data.as_study(frames, **options)
    assert found.agreed == expected.agreed and found.agreed.levels["dose"] == ("0.5", "1", "1.5", "2")
    for one, frame in zip(found.frames, expected.frames, strict=True):
        pd.testing.assert_frame_equal(one[frame.columns], frame)
    with pytest.raises(ValueError, match="unknown site of an option such as decimal 'dee', did you mean 'de'"):
        data.study(tmp_path / "*.csv", decimal={"dee": ","})
    with pytest.raises(ValueError, match="a single file for all sites has one format"):
        data.study(file=tmp_path / "uk.csv", site="ward", decimal={"de": ","})


def test_utf_8_is_not_decoded_in_another_encoding(tmp_path):
    with pytest.raises(DataError, match='the file is UTF-8 text: write encoding = "utf-8"'):
        study_of(tmp_path, "age,ort\n40,Süd\n", encoding="cp1252")


def test_files_and_data_frames_have_the_same_posterior(tmp_path):
    rng = np.random.default_rng(3)
    frames = {}
    for site in ("a", "b", "c"):
        pain = rng.choice([1.0, 2.0, 3.0, 4.0], 80)
        if site != "a":
            # whole numbers beside blank cells have a point
            pain[:4] = np.nan
        frames[site] = pd.DataFrame({"cp": pain, "num": rng.integers(0, 2, 80)})
        table = frames[site].astype({"cp": "Int64"}) if site == "a" else frames[site]
        table.to_csv(tmp_path / f"{site}.csv", index=site == "b")
    assert ",1.0," in (tmp_path / "b.csv").read_text() and "\n1," in (tmp_path / "a.csv").read_text()
    runs = []
    for read in (lambda **options: data.study(tmp_path / "*.csv", **options), partial(data.as_study, frames)):
        with pytest.warns(UserWarning, match="left out: 4 at b, 4 at c"):
            table = read(formula="num ~ C(cp)", missing="drop")
        post = accord.models.glm(table, "num ~ C(cp)", "bernoulli")
        runs.append(accord.sample(post, accord.Network.complete(3), draws=100))
    assert runs[0].names == ("Intercept", "C(cp)[2]", "C(cp)[3]", "C(cp)[4]") == runs[1].names
    np.testing.assert_array_equal(runs[0].draws, runs[1].draws)


def test_too_many_columns_or_levels_are_refused(tmp_path):
    wide = lines(",".join(f"c{k}" for k in range(5_001)), ",".join(["1.5"] * 5_001))
    with pytest.raises(DataError, match="a .a.csv.: 5,001 columns would be read, the limit is 5,000: name"):
        study_of(tmp_path, wide, sites="a")
    assert list(study_of(tmp_path, wide, sites="a", formula="c1 ~ c2", constant=["c1", "c2"]).agreed.columns) == [
        "c1",
        "c2",
    ]
    names = lines("name,y", *(f"person{k},{k % 2}" for k in range(5_001)), times=1)
    with pytest.raises(
        DataError, match="column 'name': .* have more than 5,000 different texts, like names of persons"
    ):
        study_of(tmp_path, names, sites="a")


# --- likely mistakes ---


def two(north, south, **beside):
    """Two sites with one column and a constant one."""
    return {site: {"x": cells, **beside} for site, cells in (("north", north), ("south", south))}


NUMBERS = [40.0 + k for k in range(12)]

DOUBTS = {
    "a spelling": (
        two(["M", "F"] * 6, ["m", "F"] * 6),
        'if they mean the same, give them one spelling in the files, or write strings = {x = {"M" = ["m"]}}',
    ),
    "a word": (two(["a", "?"] * 6, ["a", "b"] * 6), "the level '?': if it means a missing value, name it in"),
    "letters of two signs": (
        two(["caf\u00e9", "bar"] * 6, ["cafe\u0301", "bar"] * 6),
        'one spelling in the files, or write strings = {x = {"cafe\u0301" = ["caf\u00e9"]}}',
    ),
    "a code": (
        two([*NUMBERS[:-1], -999], NUMBERS),
        "north: column 'x' has a number such as -999 or 99, far from all others, in < 3 rows: if",
    ),
    "another unit": (two(NUMBERS, [1000 * x for x in NUMBERS]), "varies 1000 times as much at south as at north: do"),
    "groups": (
        two([f"2.{100 + k}" for k in range(12)], [2000 + 7 * k for k in range(12)]),
        "all non-integer numbers of north have three digits after '.'",
    ),
}


@pytest.mark.parametrize("case", DOUBTS)
def test_likely_mistakes_are_warned_of(case):
    tables, said = DOUBTS[case]
    with pytest.warns(UserWarning) as warned:
        data.as_study(tables)
    assert len(warned) == 1 and said in str(warned[0].message)
    assert warned[0].filename == __file__


@pytest.mark.parametrize("word", ["None", "<NA>", "NaT", "NA_character_", ".A", "#DIV/0!", "\\N", "(null)", "nil"])
def test_other_spellings_of_missing_are_warned_of_in_levels_and_sites(tmp_path, word):
    said = f"{word!r}: if it means a missing value, name it in blanks"
    with pytest.warns(UserWarning, match=re.escape("has the level " + said)):
        data.as_study(two([word, "a"] * 6, ["a", "b"] * 6), missing="drop")
    (tmp_path / "all.csv").write_text(lines("ward,age,died", "a,50,1", f"{word},61,0", "b,70,1", "b,71,0", "a,72,0"))
    beside = {"file": tmp_path / "all.csv", "site": "ward", "missing": "drop", "policy": data.Policy.none()}
    constant = ["age", "died"]
    with pytest.warns(UserWarning, match=re.escape("a site has the name " + said)):
        data.study(**beside, constant=constant)
    with pytest.warns(UserWarning, match="rows without a site"):
        assert data.study(**beside, constant=constant, blanks=[word]).sites == ("a", "b")


@pytest.mark.parametrize("cells", [["none", "mild"], ["Nash", "a"], ["no", "None at all"]])
def test_words_like_missing_ones_are_no_alarm(cells):
    assert data.as_study(two(cells * 6, cells * 6)).agreed.kinds == {"x": "factor"}


@pytest.mark.parametrize("code", [999, -9])
def test_warnings_of_codes_show_no_cell(code):
    with pytest.warns(UserWarning, match="if it means a missing value") as warned:
        data.as_study(two([0.0, 1.0] * 6 + [code], [0.0, 1.0] * 6 + [0.0]), policy=data.Policy.none())
        wards = two(["a", "b", str(code)] * 4, ["a", "b", "c"] * 4, y=NUMBERS)
        data.as_study(wards, formula="y ~ 1 + (1 | site:x)")
    assert len(warned) == 2 and "column 'x' has a level such as '?' or '999': if" in str(warned[1].message)
    assert "such as -999 or 99, far from all others, in 1 rows" in str(warned[0].message)


def test_sites_without_a_level_in_common_are_warned_of(tmp_path):
    tables = two(["M", "F"] * 6, ["man", "woman"] * 6, y=NUMBERS)
    said = "column 'x': no level of north, south occurs at another site"
    with pytest.warns(UserWarning, match=said) as warned:
        accord.models.glm(data.as_study(tables, policy=data.Policy.none()), "y ~ x")
    assert warned[0].filename == __file__
    # groups are local to a site
    accord.models.glm(data.as_study(tables, policy=data.Policy.none()), "y ~ 1 + (1 | site:x)")
    for site, table in tables.items():
        pd.DataFrame(table).to_csv(tmp_path / f"{site}.csv", index=False)
    with pytest.warns(UserWarning, match=said):
        data.describe(tmp_path / "*.csv")


ZEROS = {
    "another spelling of 1": (two(["yes", "no"] * 6, ["Yes"] * 12), "the text for 0 at south differs from other"),
    "another spelling of 0": (
        two(["yes", "no"] * 6, ["yes", "nein"] * 6),
        "the text for 0 at south differs from",
    ),
    "all of them 0": (two(["yes", "no"] * 6, ["no"] * 12), None),
}


@pytest.mark.parametrize("case", ZEROS)
def test_a_different_text_for_0_is_warned_of(case):
    tables, said = ZEROS[case]
    with pytest.warns(UserWarning, match=said) if said else contextlib.nullcontext():
        data.as_study(tables, positive={"x": "yes"})


def test_similar_names_of_sites_are_warned_of():
    table = {"x": NUMBERS}
    with pytest.warns(UserWarning, match="the sites 'North' and 'north' have similar names: are they one site"):
        data.as_study({"North": table, "north": table})


def test_spellings_of_a_number_are_the_same_site(tmp_path):
    (tmp_path / "all.csv").write_text(
        lines("site,age", *(f"{s},{k}" for k in range(12) for s in ("1", "1.0", "2")), times=1)
    )
    assert data.study(file=tmp_path / "all.csv", site="site").sites == ("1", "2")


FINE = {
    "a code that is a number like others": two([-9.0, *range(-11, 0)], range(12)),
    "three digits everywhere": two([f"{k}.1{k:02}" for k in range(1, 13)], [f"{k}.2{k:02}" for k in range(1, 13)]),
    "larger numbers": two(NUMBERS, [90 * x for x in NUMBERS]),
    "skewed": two([1.0, 2.0, 3.0, 500.0] * 3, [1.0, 2.0, 3.0, 7.0] * 3),
}


@pytest.mark.parametrize("case", FINE)
def test_correct_tables_cause_no_warning(case):
    data.as_study(FINE[case])


def test_different_units_are_warned_of(tmp_path):
    for site, scale in (("a", 1.0), ("b", 365.25), ("c", 1.0)):
        (tmp_path / f"{site}.csv").write_text(lines("age", *(f"{scale * (40 + k)}" for k in range(40)), times=1))
    with pytest.warns(UserWarning, match="column 'age' varies 365 times as much at b as at [ac]: do both use"):
        data.describe(tmp_path / "*.csv")
    with pytest.warns(UserWarning, match="column 'age' varies 365 times as much at b as at [ac]: do both use"):
        data.study(tmp_path / "*.csv")


def test_levels_have_other_spellings():
    tables = two(["M", "F", "male", "f"] * 3, ["1", "2.0", "m", "F"] * 3)
    spellings = {"x": {"F": ["f", "2"], "M": ["m", "male", "1"]}}
    assert data.as_study(tables, strings=spellings).agreed.levels["x"] == ("F", "M")
    for ones in ("M", ["M"]):
        found = data.as_study(tables, strings=spellings, positive={"x": ones})
        np.testing.assert_array_equal(found.frames[0]["x"], [1.0, 0.0] * 6)
        np.testing.assert_array_equal(found.frames[1]["x"], [1.0, 0.0] * 6)


@pytest.mark.parametrize(
    ("strings", "said"),
    [
        ({"x": ["M"]}, r"strings of 'x' must be a table of levels, as \{F = \[\"f\", \"female\"\]\}, found \['M'\]"),
        ({"x": {"M": 3}}, "the spellings of 'M' in strings of 'x' must be a text or a list of texts, found 3"),
        ({"x": {"M": ["m"], "F": ["m"]}}, "strings of 'x': 'm' is listed for two levels"),
    ],
)
def test_invalid_spellings(strings, said):
    with pytest.raises(ValueError, match=said):
        data.as_study(two(["M", "F"] * 6, ["M", "F"] * 6), strings=strings)


def test_dates_have_a_time_of_day_and_a_zone():
    hours = [f"2020-01-01T{k:02}:30:00" for k in range(12)]
    texts, stamps = {"t": [f"{hour}+02:00" for hour in hours]}, {"t": np.array(hours, "datetime64[ns]")}
    zoned = data.as_study([texts], dates={"t": {"format": "%Y-%m-%dT%H:%M:%S%z", "since": "2020-01-01"}})
    np.testing.assert_allclose(zoned.frames[0]["t"], (np.arange(12) - 1.5) / 24, rtol=1e-10)
    in_memory = data.as_study([stamps], dates={"t": data.Dates("", "2020-01-01")})
    np.testing.assert_allclose(in_memory.frames[0]["t"], (np.arange(12) + 0.5) / 24, rtol=1e-10)
    in_texts = data.as_study([{"t": hours}], dates={"t": data.Dates("%Y-%m-%dT%H:%M:%S", "2020-01-01")})
    np.testing.assert_array_equal(in_texts.frames[0]["t"], in_memory.frames[0]["t"])
    with pytest.raises(DataError, match='name the column in dates with the format "%Y-%m-%dT%H:%M:%S%z"'):
        data.as_study([texts])


def test_whole_numbers_beyond_float64_are_separate_levels(tmp_path):
    cells = 2**53 + np.arange(18) // 3
    (tmp_path / "a.csv").write_text(lines("x", *map(str, cells.tolist()), times=1))
    in_file = data.study(tmp_path / "*.csv", strings=["x"])
    in_memory = data.as_study({"a": {"x": cells}}, strings=["x"])
    assert in_memory.agreed.levels == in_file.agreed.levels and len(in_file.agreed.levels["x"]) == 6


@pytest.mark.parametrize("cell", ["0,123", "01,234", "000,123"])
def test_a_group_of_thousands_does_not_begin_with_0(cell):
    assert Dialect(thousands=",").number(cell) is None
    assert Dialect(thousands=",").number("1,234,567.5") == 1234567.5
    assert Dialect(thousands=",").number("-12,345") == -12345.0


def test_a_redundant_thousands_separator_is_explained(tmp_path):
    text = lines("cost", *(f'"{k},5"' for k in range(12)), times=1)
    with pytest.raises(DataError, match='write decimal = "," and no thousands, or'):
        study_of(tmp_path, text, thousands=",")


def test_rows_within_a_quoted_cell_are_found(tmp_path):
    rows = [f"{k},{k % 2},n{k}" for k in range(20)]
    rows[5], rows[15] = '5,1,"n5', '15,1,n15"'
    with pytest.raises(DataError, match="the quoted cell that ends in line 17 holds whole rows"):
        study_of(tmp_path, lines("age,died,note", *rows, times=1))
    rows[5], rows[15] = '5,1,"a note, of\ntwo lines, or\nthree"', "15,1,n"
    assert sum(study_of(tmp_path, lines("age,died,note", *rows, times=1), columns=["age"]).agreed.rows) == 60


@pytest.mark.parametrize(
    ("begins", "said"),
    [(b"\x1f\x8b\x08", r"compressed \(gzip\)"), (b"PK\x03\x04", "a workbook or a zip archive"), (b"PAR1", "Parquet")],
)
def test_binary_files_are_named(tmp_path, begins, said):
    with pytest.raises(DataError, match=f"the file is {said}, not text: save it as CSV"):
        study_of(tmp_path, begins + b"\x00" * 20)


def test_date_formats_by_site(tmp_path):
    days = [f"{k + 1:02}" for k in range(12)]
    (tmp_path / "nord.csv").write_text(lines("day", *(f"{day}.03.2021" for day in days), times=1))
    (tmp_path / "west.csv").write_text(lines("day", *(f"03/{day}/2021" for day in days), times=1))
    formats = {"nord": "%d.%m.%Y", "west": "%m/%d/%Y"}
    found = data.study(tmp_path / "*.csv", dates={"day": {"format": formats, "since": "2021-03-01"}})
    for frame in found.frames:
        np.testing.assert_array_equal(frame["day"], range(12))
    for wrong, said in (
        ({"nord": "%d.%m.%Y"}, "dates of 'day' have no format for west"),
        ({**formats, "wset": "%d"}, "unknown site in dates of 'day' 'wset', did you mean 'west'"),
        ({}, "format of dates must be a text such as"),
    ):
        with pytest.raises(ValueError, match=said):
            data.study(tmp_path / "*.csv", dates={"day": {"format": wrong}})


@pytest.mark.parametrize("sign", [" ", "\N{NO-BREAK SPACE}", "\N{NARROW NO-BREAK SPACE}", "\N{THIN SPACE}"])
def test_a_space_between_thousands_is_any_space(tmp_path, sign):
    text = lines("cost", *(f"1{sign}{200 + k}" for k in range(12)), times=1)
    with pytest.raises(DataError, match='write thousands = " "'):
        study_of(tmp_path, text)
    for given in (" ", sign):
        np.testing.assert_array_equal(study_of(tmp_path, text, thousands=given).frames[0]["cost"], range(1200, 1212))


def test_header_lines_by_site(tmp_path):
    rows = [f"{40 + k}" for k in range(12)]
    (tmp_path / "a.csv").write_text('A title, "with a quote\nof 2021\n' + lines("age", *rows, times=1))
    (tmp_path / "b.csv").write_text(lines("age", *rows, times=1))
    found = data.study(tmp_path / "*.csv", header={"a": 3})
    np.testing.assert_array_equal(found.frames[0]["age"], found.frames[1]["age"])
    (tmp_path / "a.csv").write_text("sep=;\n" + lines("age;old", *(f"{row};?" for row in rows), times=1))
    with pytest.raises(DataError, match=r'a \(a.csv\): .* separated by semicolons[?] Write separator = ";"$'):
        data.study(tmp_path / "*.csv", columns=["age"])
    found = data.study(tmp_path / "*.csv", columns=["age"], separator={"a": ";"})
    np.testing.assert_array_equal(found.frames[0]["age"], found.frames[1]["age"])
    for wrong in (0, -1, True, 1.0, "3"):
        with pytest.raises(ValueError, match="header must be the number of a line, from 1, found"):
            data.study(tmp_path / "*.csv", header=wrong)
    with pytest.raises(DataError, match="there is no line 99"):
        data.study(tmp_path / "*.csv", header=99)


def test_lines_are_counted_from_the_top_of_the_file(tmp_path):
    text = "A title\n" + lines("age,died", "40,0", "x,1", times=1) + lines("41,1", "42,0", times=5)
    with pytest.raises(DataError, match="column 'age': line 4 has a text where others have numbers"):
        study_of(tmp_path, text, header=2)
