"""A site in R: its numbers, its part in a study with sites in Python, and its refusals."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from test_carried_files import CHANGES, DEEP, FORGED
from test_federation import STUDY, Federation, back, drawn_here

import accord
from accord.base.errors import DataError
from accord.base.text import __version__
from accord.data.files import Dialect, read_sheet
from accord.federation import Entry
from accord.federation.check import check
from accord.federation.document import hash_of
from accord.federation.engine import prior_limit
from accord.federation.entry import digest_of
from accord.federation.keys import signature, text_of
from accord.posterior.coordinates import Coordinates
from accord.posterior.totals import Together
from accord.samplers.by_sums.evaluations import (
    expansion_of,
    jet_of,
    mean_expansion,
    mode_of,
    slope_of,
    value_of,
)

R = Path(__file__).parents[1] / "r"
RSCRIPT = shutil.which("Rscript")
NEEDED = "q(status = !all(sapply(c('jsonlite', 'openssl'), requireNamespace, quietly = TRUE)))"
HAS_R = (
    RSCRIPT is not None and subprocess.run([RSCRIPT, "-e", NEEDED], capture_output=True, check=False).returncode == 0
)
pytestmark = pytest.mark.skipif(not HAS_R, reason="needs Rscript with the packages jsonlite and openssl")

WITH_R = STUDY.replace("coarse = false", "coarse = false\npoints = true")
# The site with R. The first site must have Python.
SITE = "west"
# A first step whose plan has positions.
PLANNED = 6


def words_of(federation, command="answer", *more):
    """The command of the program in R at one site."""
    study = federation.folder / "study.toml"
    study.write_text(federation.text)
    words = [study, federation.folder / SITE / "site.toml", *([federation.board.folder] if command == "answer" else [])]
    return [str(RSCRIPT), str(R / "accord-site.R"), command, *map(str, words), *more]


def site_in_r(federation, command="answer", *more, text="", **env):
    """The output of the program in R at one site."""
    words = words_of(federation, command, *more)
    options = {"capture_output": True, "text": True, "check": False, "timeout": 300, "env": os.environ | env}
    return subprocess.run(words, input=text, **options)


def run_mixed(federation, steps=60):
    """Answer at two sites with Python and at one with R. The runs by site and R's last output."""
    runs = {}
    for _ in range(steps):
        for name in federation.sites:
            if name == SITE:
                found = site_in_r(federation, "answer", "--yes")
                assert found.returncode == 0, found.stderr
            else:
                progress = federation.answer(name)
                if progress.run is not None:
                    runs[name] = progress.run
        if len(runs) == len(federation.sites) - 1:
            return runs, found.stdout
    raise AssertionError("the study has not finished")


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    federation = Federation(tmp_path_factory.mktemp("mixed"), WITH_R)
    return federation, *run_mixed(federation)


@pytest.fixture
def at(mixed, tmp_path):
    """A copy of the finished study before a step."""

    def make(step, only=None):
        return back(mixed[0], tmp_path / f"before {step}", step, only)

    return make


# --- numbers ---

FORMULAS = {
    "normal": "y ~ scale(age) + ward + dose",
    "bernoulli": "died ~ age + C(stage)",
    "binomial": "prop(y, trials) ~ center(age) + ward",
    "poisson": "y ~ scale(age) + ward",
    "negative_binomial": "y ~ age + ward",
}
PROGRAM = """
source(commandArgs(TRUE)[1])
asked <- fromJSON(commandArgs(TRUE)[2], simplifyVector = FALSE)
study <- read_study(asked$study)
policy <- list(site = "west", data = asked$data, sheet = read_sheet(study, list(site = "west", data = asked$data)),
               floors = list(rows = 10L, cells = 3L, parameters = 1, rare = "refuse"))
meeting <- list(gathered = function(own) rep(list(own), 3), require = function(problems) stopifnot(!length(problems)),
                total = function(of) lapply(of(NULL), function(own) 3 * own$x))
model <- build_model(study, policy, meeting, print)
answers <- lapply(setNames(names(FUNCTIONS), names(FUNCTIONS)), function(what)
  answer_of(model, what, lapply(asked[[if (is.null(asked[[what]])) "parts" else what]][FUNCTIONS[[what]]], revived)))
cat(toJSON(c(answers, list(names = model$names)), digits = I(17)))
"""


def table_of(rows=90):
    rng = np.random.default_rng(3)
    age, dose = rng.normal(50, 9, rows).round(2), rng.normal(0, 1, rows).round(3)
    ward, stage = rng.choice(["a", "b", "c10", "c9"], rows), rng.choice([1, 2, 3], rows)
    trials = rng.integers(5, 9, rows)
    y = rng.binomial(trials, 1 / (1 + np.exp(-(age - 50) / 9)))
    lines = ["age,dose,ward,stage,trials,y,died"]
    columns = zip(age, dose, ward, stage, trials, y, np.where(y > 3, "yes", "no"), strict=True)
    return "\n".join([*lines, *(",".join(map(str, row)) for row in columns)])


@pytest.mark.parametrize(
    # of more than 2,048 rows, modes of parts are added
    ("family", "rows"),
    [*((family, 90) for family in FORMULAS), ("negative_binomial", 2100)],
)
def test_values_and_derivatives_equal_those_in_python(family, rows, tmp_path):
    formula, data = FORMULAS[family], tmp_path / "rows.csv"
    data.write_text(table_of(rows))
    positive = 'positive = {died = "yes"}' if family == "bernoulli" else ""
    study = tmp_path / "study.toml"
    study.write_text(
        f'[data]\nsites = ["a", "b", "west"] # three\n{positive}\n[model]\nformula = "{formula}"\nfamily = "{family}"\n'
        "[run]\ncoarse = false\npoints = true\n"
    )
    options = {"positive": {"died": "yes"}} if positive else {}
    files = []
    for name in ("a", "b", "west"):
        files.append(tmp_path / f"{name}.csv")
        files[-1].write_text(table_of(rows))
    post = accord.models.glm(accord.data.study(files, formula=formula, **options), formula, family)
    rng, dim = np.random.default_rng(0), post.dim
    place = Coordinates(post.init, 0.1 * np.eye(dim) + 0.02 * rng.standard_normal((dim, dim)))
    points = rng.standard_normal((5, dim))
    # far from the prior, where sites evaluate nothing
    points[4] = 1e5
    shown = {"points": points, "origin": place.origin, "factor": place.factor}
    shown |= {"first": points[0], "offsets": points[:3] - points[0], "start": np.zeros((1, dim))}
    shown |= {"two": points[:2], "three": points[2:]}
    arrays = {name: {"shape": list(x.shape), "type": "<f8", "values": x.ravel().tolist()} for name, x in shown.items()}
    coordinates, both = {"origin": arrays["origin"], "factor": arrays["factor"]}, Together((slope_of, value_of))
    asked = {
        "study": str(study),
        "data": str(data),
        "parts": {"points": arrays["points"], "argument 0": 1e12, "coordinates": coordinates},
        "mean_expansion": {"argument 0": arrays["first"], "argument 1": arrays["offsets"], "coordinates": coordinates},
        "mode_of": {"points": arrays["start"], "coordinates": coordinates},
        both.__name__: {"points 1": arrays["two"], "points 2": arrays["three"], "coordinates": coordinates},
    }
    (tmp_path / "program.R").write_text(PROGRAM)
    words = [str(RSCRIPT), str(tmp_path / "program.R"), str(R / "accord-site.R"), json.dumps(asked)]
    out = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert out.returncode == 0, out.stderr
    found = json.loads(out.stdout)
    assert found.pop("names") == [name.replace("'", "") for name in post.names]
    with jax.enable_x64(True):
        here = post.alone(2).near_prior(prior_limit(dim)).totals_here()
        expected = {
            "value_of": here.each(value_of, points=points, coordinates=place),
            "slope_of": here.each(slope_of, points=points, coordinates=place),
            "expansion_of": here.each(expansion_of, 1e12, points=points, coordinates=place),
            "mean_expansion": here.each(mean_expansion, points[0], points[:3] - points[0], coordinates=place),
            "mode_of": here.each(mode_of, points=np.zeros((1, dim)), at_once=1, coordinates=place),
            "jet_of": here.each(jet_of, points=points, coordinates=place),
            both.__name__: here.each(both, points=(points[:2], points[2:]), coordinates=place),
        }
    assert found.keys() == expected.keys()
    for what, numbers in expected.items():
        np.testing.assert_allclose(np.array(found[what]), np.asarray(numbers)[0], rtol=1e-9, atol=1e-9, err_msg=what)


def test_the_program_answers_studies_of_this_version():
    assert f'VERSION <- "{__version__}"' in (R / "accord-site.R").read_text()


def test_lines_and_length():
    for name in ("accord-site.R", "accord-data.R", "accord-model.R", "accord-density.R", "accord-noise.R", "accord.R"):
        lines = (R / name).read_text().splitlines()
        assert len(lines) <= 500 and max(map(len, lines)) <= 120, name


# --- files ---

ODD = {
    "plain": "a,b\n1,x\n2,y\n",
    "no end of the last line": "a,b\n1,x\n2,y",
    "CRLF": "a,b\r\n1,x\r\n2,y\r\n",
    "CR only": "a,b\r1,x\r2,y\r",
    "byte order mark": "\ufeffa,b\n1,x\n",
    "quote within a cell": 'a,b\n1,24" tube\n2,y\n3,30" tube\n4,z\n',
    "quote without an end": 'a,b\n1,"x\n2,y\n',
    "text after a quoted cell": 'a,b\n1,"i"cu\n',
    "doubled quotes": 'a,b\n1,"a ""b"" c"\n2,""""\n3,""\n',
    "doubled quotes in a plain cell": 'a,b\n1,x""y\n',
    "backslash before a quote": 'a,b\n1,"i\\""\n',
    "apostrophe and number sign": "a,b\n1,d'Or\n2,#1\n",
    "spaces around cells": ' a , b \n 1 , x \n2, "y" \n',
    "spaces before a quoted cell": 'a,b\n1,  "x"\n',
    "spaces in a quoted cell": 'a,b\n1," x "\n',
    "tab before a quoted cell": 'a,b\n1,\t"x"\n',
    "separator in a cell": 'a,b\n1,"x,y"\n',
    "line break in a cell": 'a,b\n1,"x\ny"\n2,"x\r\ny"\n3,"\n"\n',
    "several line breaks in a cell": 'a,b\n1,"x\n\n\ny"\n2,z\n',
    "whole rows in a cell": 'a,b\n1,"x\n2,y\n3,z"\n',
    "quoted header": '"a","b\n"\n1,x\n',
    "no-break space": "a,b\n1,icu\u00a0\n2,\u00a0icu\n",
    "other spaces": "a,b\n\f1,icu\x0b\n2,icu\u2028\n3,icu\x1c\n4,\u3000icu\n5,\u200bicu\n",
    "inner spaces": "a,b\n1,i\u00a0cu\n2,i\x85cu\n",
    "other scripts": "größe,b\n1,Zürich\n2,日本\n",
    "NUL": "a,b\n1,i\0cu\n",
    "UTF-16": "a,b\n1,x\n".encode("utf-16"),
    "UTF-16 without a mark": "a,b\n1,x\n".encode("utf-16-le"),
    "Latin-1": "a,b\n1,\u00e4\n".encode("latin-1"),
    "compressed": b"\x1f\x8b\x08\0",
    "trailing separators": "a,b,\n1,x,\n",
    "trailing separators in rows": "a,b\n1,x,\n2,y,\n",
    "row names": ",a,b\n1,1,x\n2,2,y\n",
    "blank lines": "\n\na,b\n\n1,x\n\n\n2,y\n\n",
    "line of spaces": "a,b\n1,x\n   \n2,y\n",
    "line of spaces above": "   \na,b\n1,x\n",
    "row of separators": "a,b\n,\n1,x\n",
    "short row": "a,b\n1\n2,x\n",
    "long row": "a,b\n1,x,y\n2,x\n",
    "one column": "a\n1\n \n2\n",
    "semicolons": "a;b\n1,5;x\n2,5;y\n",
    "text above the header": "of today\na;b\n1;x\n2;y\n",
    "separator named above": "sep=,\na,b\n1,x\n",
    "two columns of one name": "a,b,a\n1,x,2\n",
    "unnamed columns": "a,,b,\n1,q,x,\n",
    "number in the header": "1,x\n2,y\n",
    "no rows": "a,b\n",
    "empty": "",
    "long cell": f"a,b\n1,{'x' * 131_073}\n",
}
# Python reads this file, a site with R refuses it.
ONLY_PYTHON = {"NUL"}
READ = """
source(commandArgs(TRUE)[1])
files <- commandArgs(TRUE)[-1]
cat(json(lapply(setNames(files, basename(files)), function(file) {
  sheet <- read_sheet(list(separator = ","), list(site = "west", data = file))
  list(problem = sheet$problem, names = as.list(names(sheet$columns)), lines = as.list(sheet$lines),
       columns = lapply(unname(sheet$columns), as.list))
})))
"""


def test_files_are_read_as_in_python(tmp_path):
    (tmp_path / "read.R").write_text(READ)
    files = [tmp_path / str(place) for place in range(len(ODD))]
    for file, text in zip(files, ODD.values(), strict=True):
        file.write_bytes(text.encode() if isinstance(text, str) else text)
    words = [str(RSCRIPT), str(tmp_path / "read.R"), str(R / "accord-site.R"), *map(str, files)]
    # without a locale
    env = os.environ | {"LC_ALL": "C"}
    out = subprocess.run(words, capture_output=True, check=False, timeout=120, env=env)
    assert out.returncode == 0, out.stderr
    refused = 0
    for (what, found), file in zip(json.loads(out.stdout).items(), files, strict=True):
        what, sheet = list(ODD)[int(what)], read_sheet(file, Dialect())
        assert bool(found["problem"]) == (bool(sheet.problems) or what in ONLY_PYTHON), (what, found, sheet.problems)
        refused += bool(found["problem"])
        if not found["problem"]:
            columns = {name: own.tolist() for name, own in sheet.columns.items()}
            assert dict(zip(found["names"], found["columns"], strict=True)) == columns, what
            assert found["lines"] == sheet.lines, what
    assert 15 < refused < len(ODD) - 15


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("// from the ward\nage;cost;died\n" + "40,5;1205,5;0\n" * 9, "the header has 1 column, lines 2, 3"),
        ("age;cost;died\n" + "40,5;1205,5;0\n" * 9 + "// end\n", "the header has 3 columns, line 11 has fewer cells"),
        ("2016;2017\n" + "1;2\n" * 9, "column 1 is a number: is the header missing? If it is a name, begin it with a"),
    ],
)
def test_messages_about_a_right_separator_suggest_no_other_one(text, said, tmp_path):
    (tmp_path / "rows.csv").write_text(text)
    (tmp_path / "read.R").write_text(READ.replace('separator = ","', 'separator = ";"'))
    words = [str(RSCRIPT), str(tmp_path / "read.R"), str(R / "accord-site.R"), str(tmp_path / "rows.csv")]
    out = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120)
    in_python = read_sheet(tmp_path / "rows.csv", Dialect(separator=";")).problems
    for problem in (json.loads(out.stdout)["rows.csv"]["problem"], *in_python):
        assert said in problem and "separated by" not in problem


def test_large_files_are_read_in_seconds(tmp_path):
    cells = [[f'"{(row * 7919 + column) % 1000 / 7:.4f}"' for column in range(20)] for row in range(5000)]
    header = ",".join(f"v{column}" for column in range(20))
    (tmp_path / "rows.csv").write_text("\n".join([header, *map(",".join, cells)]))
    (tmp_path / "read.R").write_text(
        "source(commandArgs(TRUE)[1])\n"
        "policy <- list(site = 'west', data = commandArgs(TRUE)[2])\n"
        "time <- system.time(x <- read_sheet(list(separator = ','), policy))\n"
        "stopifnot(length(x$lines) == 5000, x$columns$v3[5000] == sprintf('%.4f', (4999 * 7919 + 3) %% 1000 / 7))\n"
        "cat(time[['user.self']] + time[['sys.self']])"
    )
    words = [str(RSCRIPT), str(tmp_path / "read.R"), str(R / "accord-site.R"), str(tmp_path / "rows.csv")]
    out = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert out.returncode == 0 and float(out.stdout) < 5, out.stderr


SINGLED_OUT = """
source(commandArgs(TRUE)[1])
designs <- fromJSON(commandArgs(TRUE)[2], simplifyVector = FALSE)
cat(toJSON(lapply(designs, function(rows) {
  design <- do.call(rbind, lapply(rows, unlist))
  lapply(1:3, function(cells) singles_out_together(design, cells))
}), auto_unbox = TRUE))
"""


def test_columns_single_out_rows_together_as_in_python(tmp_path):
    rng, designs = np.random.default_rng(0), []
    for place in range(60):
        rows, columns = rng.integers(12, 40), rng.integers(1, 4)
        designs.append(rng.lognormal(0.0, rng.uniform(0.5, 2.5), (rows, columns)))
        if place % 2:
            # few rows in a cell, in two columns that are one elsewhere
            cell = np.arange(rows) < place % 5
            designs[-1] = np.column_stack([designs[-1], 1e9 * designs[-1][:, 0] + 1e7 * cell, 1.0 - cell])
    (tmp_path / "program.R").write_text(SINGLED_OUT)
    asked = json.dumps([design.tolist() for design in designs])
    words = [str(RSCRIPT), str(tmp_path / "program.R"), str(R / "accord-site.R"), asked]
    out = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert out.returncode == 0, out.stderr
    policies = [accord.data.Policy(cells=cells) for cells in (1, 2, 3)]
    expected = [[policy.singles_out_together(design) for policy in policies] for design in designs]
    assert json.loads(out.stdout) == expected
    assert {tuple(one) for one in expected} == {(False,) * 3, (False, False, True), (False, True, True)}


# --- a study ---


@pytest.mark.slow
def test_draws_with_a_site_in_r_equal_the_draws_of_one_process(mixed):
    federation, runs, output = mixed
    expected = drawn_here(federation)
    for run in runs.values():
        assert run.certificate.holds
        np.testing.assert_allclose(run.draws, expected.draws, rtol=1e-9, atol=1e-9)
    assert "the study is finished" in output and "ward[b]" in output
    # plans have the drawn points
    plans = [json.loads(path.read_text().splitlines()[0]) for path in federation.board.folder.rglob("north.json")]
    parts = [part for plan in plans for part in plan["written"].get("parts", {}).values()]
    drawn = [part for part in parts if isinstance(part, dict) and "drawn" in part]
    assert drawn and all("points" in one for one in drawn)
    assert {"mode_of", "jet_of", "slope_of and value_of"} <= {plan["written"].get("what") for plan in plans}


COUNTS = """
[data]
sites = ["north", "south", "west"]
missing = "drop"

[model]
formula = "falls ~ scale(age) + C(ward)"
family = "negative_binomial"

[run]
draws = 200
coarse = false
points = true
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:rows with a missing cell")
def test_counts_with_missing_cells(tmp_path):
    federation = Federation(tmp_path, COUNTS)
    files = [tmp_path / name / "rows.csv" for name in federation.sites]
    for place, file in enumerate(files):
        rng = np.random.default_rng(place)
        age, ward = rng.normal(50 + place, 9, 150).round(2), rng.choice([1, 2, 10], 150)
        falls = rng.negative_binomial(2, 1 / (1 + np.exp((age - 50) / 20)))
        cells = zip(np.where(np.arange(150) % 17, age.astype(str), ""), ward, falls, strict=True)
        file.write_text("\n".join(["age,ward,falls", *(",".join(map(str, row)) for row in cells)]))
    runs, output = run_mixed(federation)
    formula = "falls ~ scale(age) + C(ward)"
    table = accord.data.study(files, formula=formula, missing="drop")
    post = accord.models.glm(table, formula, "negative_binomial")
    expected = accord.sample(post, accord.Network.star(3), draws=200)
    for run in runs.values():
        np.testing.assert_allclose(run.draws, expected.draws, rtol=1e-9, atol=1e-9)
    assert "concentration" in output and "C(ward)[10]" in output


@pytest.mark.slow
def test_a_finished_study_has_no_new_entries(mixed):
    federation = mixed[0]
    store = federation.store(SITE).folder
    before = {path: path.read_bytes() for path in store.rglob("*.json")}
    found = site_in_r(federation, "answer", "--yes")
    assert found.returncode == 0 and "the study is finished" in found.stdout
    assert before == {path: path.read_bytes() for path in store.rglob("*.json")}


# --- refusals ---


def refused(federation, message):
    """The program refuses with a message, and makes no entry of this step with numbers."""
    found = site_in_r(federation, "answer", "--yes")
    assert found.returncode == 1 and message in found.stderr, found.stderr
    return found.stderr


@pytest.mark.slow
def test_a_forged_entry_is_refused(at):
    federation = at(PLANNED)
    federation.answer("north")
    line, signed = federation.board.read(PLANNED, "north").splitlines()
    federation.board.write(PLANNED, "north", line.replace(b"position", b"Position") + b"\n" + signed + b"\n")
    refused(federation, "the entry of north in step 6 is not signed by north")


@pytest.mark.slow
def test_another_history_is_refused(at):
    federation = at(PLANNED)
    federation.answer("north")
    federation.change(PLANNED, "north", before="0" * 64)
    refused(federation, "north has other entries of the steps before 6 than this site")


@pytest.mark.slow
def test_a_plan_with_another_function_is_refused(at):
    federation = at(PLANNED)
    federation.answer("north")
    entry = Entry.read(federation.board.read(PLANNED, "north"), federation.public, "north")
    written = {**entry.written, "what": "rows_of"}
    federation.change(PLANNED, "north", written=written, plan=digest_of(written))
    refused(federation, "evaluates rows_of: a site with R evaluates only value_of")


@pytest.mark.slow
def test_a_plan_with_another_digest_is_refused(at):
    federation = at(PLANNED)
    federation.answer("north")
    federation.change(PLANNED, "north", plan="0" * 64)
    refused(federation, "has a plan with another digest")


@pytest.mark.slow
def test_more_positions_than_the_policy_allows_are_refused(at):
    federation = at(PLANNED)
    federation.write(SITE, points=10)
    federation.answer("north")
    refused(federation, "refused, its policy allows sums at 10 positions of a study")


@pytest.fixture
def begun(tmp_path):
    return Federation(tmp_path, WITH_R)


def test_a_site_can_check_a_study(begun):
    found = site_in_r(begun, "check")
    assert found.returncode == 0, found.stderr
    assert hash_of(WITH_R) in found.stdout and "90 rows; age (number), ward (factor), died (yes-no)" in found.stdout
    assert "west can take part" in found.stdout


@pytest.mark.parametrize(
    ("study", "row", "message"),
    [
        ((), "51,a,yes", ""),
        ((), ",a,yes", "line 92 has no value"),
        ((), "51,,yes", "line 92 has no value"),
        ((), "51,a,perhaps", "line 92 has a third text"),
        ((), "51,rare,yes", "1 of 3 levels have fewer than 3 rows"),
        ((), "500,a,yes", "together the terms of the formula single out fewer than 3 rows"),
        (("scale(age)", "age"), "500,a,yes", "together the terms of the formula single out fewer than 3 rows"),
        ((), "old,a,yes", "column 'age': line 92 has a text"),
        ((), "51,a,yes,9", "line 92 has more cells"),
        ((), '51,a,"yes', "line 92 cannot be read as CSV"),
        ((), '51,"a"b,yes', "line 92 cannot be read as CSV"),
        (("scale(age)", "scale(agee)"), "51,a,yes", "there is no column 'agee', which the study needs"),
        (('died = "yes"', 'died = "ja"'), "51,a,yes", "several texts, none of them in positive"),
        (("ward = {", "wart = {"), "51,a,yes", "perhaps: with rows like these at all sites, the prior of wart belongs"),
        (("[priors]", '[priors]\n"ward[b]" = {name = "Normal", loc = 0.0, scale = 1.0}'), "51,a,yes", ""),
    ],
)
def test_check_finds_what_python_finds(tmp_path, study, row, message):
    federation = Federation(tmp_path, WITH_R.replace(*study) if study else WITH_R)
    rows = tmp_path / SITE / "rows.csv"
    rows.write_text(rows.read_text() + "\n" + row)
    found, expected = site_in_r(federation, "check"), check(federation.study, federation.policy(SITE))
    assert found.returncode == bool(expected.wrong), (found.stdout, found.stderr, expected)
    assert ("perhaps" in found.stdout) == bool(expected.perhaps)
    assert message in found.stdout + found.stderr
    assert ("west can take part" in found.stdout) == (not expected.wrong)


def test_rows_left_out_are_counted(tmp_path):
    federation = Federation(tmp_path, WITH_R.replace("[data]", '[data]\nmissing = "drop"'))
    rows = tmp_path / SITE / "rows.csv"
    rows.write_text(rows.read_text() + "\n,a,yes\n51,NA,no")
    found = site_in_r(federation, "check")
    assert found.returncode == 0 and "2 of 92 rows have a missing cell and are left out" in found.stdout


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_names_and_levels_of_any_language(tmp_path, locale):
    federation = Federation(tmp_path, WITH_R.replace("scale(age)", "scale(größe)"))
    rows = tmp_path / SITE / "rows.csv"
    rows.write_text(rows.read_text().replace("age", "größe").replace(",a,", ",Zürich,"), encoding="utf-8")
    (tmp_path / "study.toml").write_text(federation.text, encoding="utf-8")
    found = site_in_r(federation, "check", LC_ALL=locale)
    assert found.returncode == 0 and "größe (number)" in found.stdout, found.stderr


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"studies": ["0" * 64]}, "its policy does not allow the study of hash"),
        ({"exact": False}, "the study has exact answers"),
        ({"columns": ["age", "died"]}, "its policy does not allow the columns ward"),
    ],
)
def test_a_policy_refuses(begun, changes, message):
    begun.write(SITE, **changes)
    found = site_in_r(begun, "check")
    assert found.returncode == 1 and message in found.stderr


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("coarse = false", "coarse = 0"), "coarse in [run] must be true or false"),
        (("points = true", "points = false"), "positions in the plan, points = true"),
        (("+ ward", "+ log(age)"), "the formula has the term log(age)"),
        (('["north", "south", "west"]', '["west", "south", "north"]'), "it is the first site of the study"),
        (('name = "Normal"', 'name = "Laplace"'), "a site with R knows Normal"),
        (("scale = 2.0", "scale = 0.0"), "the numbers loc and scale, and scale above 0"),
        (("scale = 2.0", "sd = 2.0"), "the numbers loc and scale, and scale above 0"),
        (("scale = 2.0", 'scale = "2"'), "the numbers loc and scale, and scale above 0"),
        (("draws = 200", "draws = -5"), "draws in [run] as a whole number above 0"),
        (("draws = 200", 'draws = 200\nseed = "1"'), "seed in [run] as a whole number"),
        (("points = true", 'points = "yes"'), "points in [run] must be true or false"),
        (("[model]", "[data]\n[model]"), "is not the TOML that a site with R reads: see `[ data ] twice`"),
    ],
)
def test_a_study_beyond_r_is_refused(tmp_path, change, message):
    federation = Federation(tmp_path, WITH_R.replace(*change))
    found = site_in_r(federation, "check")
    assert found.returncode == 1 and message in found.stderr


def test_nothing_leaves_without_an_answer(begun):
    begun.answer("north")
    for answer in ("", "n\n"):
        found = site_in_r(begun, text=answer)
        assert found.returncode == 1 and "step 0, " in found.stdout and "nothing leaves west" in found.stderr
        assert begun.board.read(0, SITE) is None
    made = begun.store(SITE).read(0, SITE)
    found = site_in_r(begun, text="y\n")
    assert found.returncode == 0 and "step 0 waits for south" in found.stdout
    assert begun.board.read(0, SITE) == made
    assert (
        begun.board.path(0, SITE).stat().st_mode & 0o077 and not begun.store(SITE).path(0, SITE).stat().st_mode & 0o077
    )


def test_a_bad_file_is_refused_without_its_cells(begun):
    rows = begun.folder / SITE / "rows.csv"
    good = rows.read_text()
    rows.write_text(good + "\n51,a,perhaps")
    for _ in range(2):
        for name in ("north", "south"):
            begun.answer(name)
        found = site_in_r(begun, "answer", "--yes")
    assert found.returncode == 1 and "some cells have a third text besides the two" in found.stderr
    assert "line 92 has a third text" in found.stdout and "perhaps" not in found.stdout + found.stderr
    content = json.loads(begun.board.read(2, SITE).splitlines()[0])["content"]
    assert "some cells have a third text" in content["refused"][0] and "92" not in content["refused"][0]
    rows.write_text(good + "\n51,a")
    found = site_in_r(begun, "check")
    assert found.returncode == 1 and "line 92 has fewer cells" in found.stderr


SECRET = "sesame"


@pytest.mark.parametrize(
    "content",
    [
        lambda rows: rows.replace("age,ward", f"age\0,{SECRET}", 1).encode(),
        lambda rows: f"{rows}\n51,{SECRET},yes".encode("utf-16"),
        lambda rows: f"{rows}\n51,{SECRET},yes".encode("utf-16-le"),
        lambda rows: f"{rows}\n51,{SECRET}\u00e4,yes".encode("latin-1"),
        lambda rows: f'{rows}\n51,"{SECRET},yes'.encode(),
        lambda rows: f'{rows}\n51,"{SECRET}"a,yes'.encode(),
        lambda rows: f"{rows}\n{SECRET},a,yes".encode(),
        lambda rows: f"{rows}\n51,a,{SECRET}".encode(),
        lambda rows: "\n".join(rows.splitlines()[1:]).replace("a", SECRET).encode(),
    ],
)
def test_no_cell_is_in_a_message(begun, content):
    rows = begun.folder / SITE / "rows.csv"
    rows.write_bytes(content(rows.read_text()))
    outputs, reasons = [site_in_r(begun, "check")], []
    for _ in range(3):
        for name in ("north", "south"):
            try:
                begun.answer(name)
            except DataError as error:
                reasons.append(str(error))
        outputs.append(site_in_r(begun, "answer", "--yes"))
    assert outputs[0].returncode == outputs[-1].returncode == 1
    # the other sites end too
    assert any(SITE in reason for reason in reasons)
    written = [path.read_bytes() for path in (begun.folder / SITE / "kept").rglob("*") if path.is_file()]
    written += [path.read_bytes() for path in begun.board.folder.rglob("*.json")]
    for text in [*(found.stdout.encode() + found.stderr.encode() for found in outputs), *written]:
        assert SECRET.encode() not in text.replace(b"\0", b"") and SECRET not in text.decode().replace("\\u0000", "")


def test_an_unexpected_error_shows_no_cell(begun, tmp_path):
    program = tmp_path / "program.R"
    program.write_text(
        "source(commandArgs(TRUE)[1])\n"
        f"parse_csv <- function(...) stop('{SECRET}')\n"
        "print(read_sheet(list(separator = ','), list(site = 'west', data = commandArgs(TRUE)[2])))"
    )
    words = [str(RSCRIPT), str(program), str(R / "accord-site.R"), str(begun.folder / SITE / "rows.csv")]
    out = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert out.returncode == 0 and "an error of R in parse_csv while reading the file" in out.stdout
    assert SECRET not in out.stdout + out.stderr


ONCE = """
source(commandArgs(TRUE)[1])
of_file <- bytes_of_file
bytes_of_file <- function(path) {
  bytes <- of_file(path)
  if (basename(path) == "rows.csv") unlink(path)
  bytes
}
main(commandArgs(TRUE)[-1])
"""


@pytest.mark.parametrize("command", ["check", "answer"])
def test_the_file_is_read_once(begun, tmp_path, command):
    (tmp_path / "once.R").write_text(ONCE)
    rows = begun.folder / SITE / "rows.csv"
    content = rows.read_bytes()
    for _ in range(2 if command == "answer" else 1):
        rows.write_bytes(content)
        for name in ("north", "south"):
            begun.answer(name)
        rscript, program, *words = words_of(begun, command, *(["--yes"] if command == "answer" else []))
        out = subprocess.run(
            [rscript, str(tmp_path / "once.R"), program, *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert out.returncode == 0 and not rows.exists(), out.stderr
    if command == "answer":
        assert "step 2 waits for" in out.stdout
        kept = begun.store(SITE).folder.parent
        assert (kept / "data.txt").read_text() == hashlib.sha256(content).hexdigest()


def test_a_site_can_wait(begun):
    begun.answer("north")
    words = words_of(begun, "answer", "--yes", "--wait", "0.1")
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            lines = iter(process.stdout.readline, "")
            assert "step 0 waits for south\n" in lines
            begun.answer("south")
            assert any(line.startswith("step 1 waits for ") for line in lines)
        finally:
            process.kill()


def test_a_content_that_is_shown_in_part_ends_with_dots(begun):
    words = "x".join(map(str, range(1000)))
    rows = "".join(f"{50 + k},{words}{k % 2},{'yes' if k % 3 else 'no'}\n" for k in range(90))
    (begun.folder / SITE / "rows.csv").write_text(f"age,ward,died\n{rows}")
    shown = ""
    for _ in range(3):
        begun.answer("north")
        begun.answer("south")
        shown += site_in_r(begun, "answer", "--yes").stdout
    (line,) = [line for line in shown.splitlines() if "0x1x2x3" in line]
    assert line.endswith(" ...") and len(line) == 2 + 2000 + 4


def test_damaged_entries_on_the_board(begun):
    begun.answer("north")
    text = begun.board.read(0, "north")
    begun.board.path(0, "north").write_bytes(text[:-20])
    found = site_in_r(begun, "answer", "--yes")
    assert found.returncode == 0 and "step 0 waits for north, south (incomplete files of north)" in found.stdout
    own = begun.board.path(0, SITE)
    own.write_bytes(own.read_bytes().replace(b"west", b"East"))
    refused(begun, "the entry of west in step 0 is not the one that this site made")


def test_an_entry_does_not_name_files_of_the_site(begun):
    """A text that is a path or an address is no JSON, and nothing is opened."""
    begun.answer("north")
    line, signed = begun.board.read(0, "north").splitlines()
    (begun.folder / "elsewhere.json").write_bytes(signed)
    begun.board.write(0, "north", line + b"\n" + str(begun.folder / "elsewhere.json").encode() + b"\n")
    refused(begun, "the entry of north in step 0 is not signed by north")


def test_pipes_in_the_shared_folder_do_not_block(begun):
    begun.board.path(0, "north").parent.mkdir(parents=True)
    os.mkfifo(begun.board.path(0, "north"))
    found = subprocess.run(words_of(begun, "answer", "--yes"), capture_output=True, text=True, check=False, timeout=60)
    assert found.returncode == 0 and "step 0 waits for north, south" in found.stdout


def test_links_in_the_shared_folder_are_not_followed(begun):
    path = begun.board.path(0, SITE)
    path.parent.mkdir(parents=True)
    own = begun.folder / SITE / "rows.csv"
    before = own.read_bytes()
    path.with_name(f"{SITE}.json.new").symlink_to(own)
    assert site_in_r(begun, "answer", "--yes").returncode == 0
    assert own.read_bytes() == before and path.is_file() and not path.is_symlink()
    path.unlink()
    path.parent.rename(begun.folder / "elsewhere")
    path.parent.symlink_to(begun.folder / "elsewhere")
    refused(begun, f"{path.parent} is a link to another folder")


@pytest.mark.parametrize("key", ["accord", "accord\\u0000x"])
def test_an_entry_that_r_and_python_read_in_different_ways_is_refused(begun, key):
    """R reads the first one of a key twice, and ends texts at NUL characters."""
    begun.answer("north")
    line = begun.board.read(0, "north").splitlines()[0].replace(b'"accord":', f'"{key}": "0", "accord":'.encode())
    signed = {"signature": text_of(signature(begun.folder / "north" / "key", b"accord entry 1\n" + line))}
    begun.board.write(0, "north", line + b"\n" + json.dumps(signed).encode() + b"\n")
    assert begun.answer("south").waits_for == (SITE,)
    refused(begun, "the entry of north in step 0 has a key twice or a NUL character")


@pytest.mark.parametrize("change", CHANGES)
def test_bytes_that_no_site_signed_change_nothing(begun, change):
    begun.answer("north")
    whole = begun.board.read(0, "north")
    begun.board.path(0, "north").write_bytes(CHANGES[change](whole))
    assert site_in_r(begun, "answer", "--yes").returncode == 0
    # the true bytes later, and other bytes of a site to itself
    begun.board.path(0, "north").write_bytes(whole)
    own = begun.board.path(0, SITE)
    own.write_bytes(CHANGES[change](own.read_bytes()))
    for _ in range(2):
        begun.answer("south")
        begun.answer("north")
        found = site_in_r(begun, "answer", "--yes")
        assert found.returncode == 0, found.stderr
    assert "step 3 waits for south" in found.stdout


def test_texts_of_other_sites_are_printed_as_short_lines(begun):
    for name in ("north", "south"):
        begun.answer(name)
    site_in_r(begun, "answer", "--yes")
    begun.answer("north")
    begun.change(1, "north", content={"refused": [FORGED] * 60})
    found = site_in_r(begun, "answer", "--yes")
    assert found.returncode == 1 and "the study ends here: west: refused  [2J  Certified" in found.stderr, found.stderr
    assert len(found.stderr) < 60_000 and not set("\x1b\r\u202e\ud800") & set(found.stderr)
    assert not any(line.startswith("Certified") for line in found.stderr.splitlines())


def test_deep_values_are_refused(begun):
    begun.answer("north")
    line, signed = begun.board.read(0, "north").splitlines()
    begun.board.path(0, "north").write_bytes(line + b"\n" + DEEP + b"\n")
    refused(begun, "the entry of north in step 0 is not signed by north")
    deep = line.replace(b'"identity": ', b'"x": ' + DEEP + b', "identity": ')
    signed = {"signature": text_of(signature(begun.folder / "north" / "key", b"accord entry 1\n" + deep))}
    begun.board.path(0, "north").write_bytes(deep + b"\n" + json.dumps(signed).encode() + b"\n")
    refused(begun, "the entry of north in step 0 ")


@pytest.mark.parametrize("name", ["north.", "../north", "north  1"])
def test_a_wrong_name_of_a_site_is_refused(begun, name):
    begun.text = WITH_R.replace('"north"', json.dumps(name))
    refused(begun, "a site's name has at most 64 letters")


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"header": [[1]]}, "content header 1 is a list, not text"),
        ({"kinds": {"age": []}}, "content kinds age is a list, not text"),
        ({"kinds": None}, "content kinds is null, not a dictionary"),
        ({"more": 3}, "content has other keys"),
    ],
)
def test_an_error_names_the_site_and_the_field_of_a_wrong_type(begun, changed, field):
    for _ in range(2):
        for name in ("north", "south"):
            begun.answer(name)
        found = site_in_r(begun, "answer", "--yes")
    assert begun.board.read(1, SITE) is not None, found.stderr
    content = Entry.read(begun.board.read(1, "north"), begun.public, "north").content
    begun.store(SITE).path(1, "north").unlink(missing_ok=True)
    begun.change(1, "north", content=content | changed)
    refused(begun, f"the entry of north in step 1 has another content than accord writes: {field}")


def test_offsets_count_as_positions(tmp_path):
    (tmp_path / "count.R").write_text(
        "source(commandArgs(TRUE)[1])\n"
        "plan <- fromJSON(commandArgs(TRUE)[2], simplifyVector = FALSE)\n"
        "cat(length_of(plan))"
    )
    parts = {"argument 0": {"shape": [2]}, "argument 1": {"shape": [20_000, 2]}}
    plan = json.dumps({"what": "mean_expansion", "parts": parts})
    words = [str(RSCRIPT), str(tmp_path / "count.R"), str(R / "accord-site.R"), plan]
    out = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert out.returncode == 0 and float(out.stdout) == 20_000, out.stderr


@pytest.mark.slow
def test_a_damaged_count_of_positions_is_refused(at):
    federation = at(PLANNED)
    federation.answer("north")
    (federation.store(SITE).folder.parent / "points.txt").write_text("")
    refused(federation, "its file points.txt is damaged")


# --- the analyst's side ---

ANALYST = """
source(commandArgs(TRUE)[1])
draws <- accord_result(commandArgs(TRUE)[2], commandArgs(TRUE)[3])
stopifnot(inherits(draws, "draws_df"), identical(tail(names(draws), 3), c(".chain", ".iteration", ".draw")))
cat(attr(draws, "certificate"), "\n", file = stderr())
flat <- unclass(draws)
cat(jsonlite::toJSON(list(names = names(flat), last = sapply(flat, tail, 1)), digits = NA))
"""


@pytest.mark.slow
def test_an_analyst_reads_the_draws(mixed, tmp_path):
    federation, runs, _ = mixed
    (tmp_path / "analyst.R").write_text(ANALYST)
    (tmp_path / "study.toml").write_text(federation.text)
    words = ["analyst.R", str(R / "accord.R"), "study.toml", str(federation.board.folder)]
    has = subprocess.run([str(RSCRIPT), "-e", "library(reticulate)"], capture_output=True, check=False)
    if has.returncode:
        pytest.skip("needs the package reticulate")
    env = os.environ | {"RETICULATE_PYTHON": sys.executable, "PYTHONPATH": str(Path(accord.__file__).parents[1])}
    out = subprocess.run(
        [str(RSCRIPT), *words], cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=300
    )
    assert out.returncode == 0 and "Certified" in out.stderr, out.stderr
    found, run = json.loads(out.stdout), runs["north"]
    assert found["names"][:-3] == list(run.names) and found["last"][-3:] == [4, 200, 800]
    np.testing.assert_allclose(found["last"][:-3], run.average[-1, -1], rtol=1e-12)


IN_MEMORY = """
source(commandArgs(TRUE)[1])
set.seed(1)
table <- function(n) data.frame(age = rnorm(n, 50, 9), ward = factor(sample(c("b", "a"), n, TRUE), c("b", "a")),
                                died = sample(c("yes", "no"), n, TRUE))
tables <- list(north = table(60), south = table(60))
tables$north$age[3] <- NA
tables$south$ward[5] <- NA
again <- function(...) accord_sample(tables, "died ~ age + ward", "bernoulli", draws = 50, chains = 1,
                                     positive = list(died = "yes"), ...)
refused <- tryCatch(again(), error = conditionMessage)
stopifnot(is.character(refused), grepl("row 2 has no value", refused))
draws <- suppressWarnings(again(missing = "drop"))
stopifnot(nrow(draws) == 50, identical(names(draws)[1:3], c("Intercept", "age", "ward[b]")))
"""


@pytest.mark.slow
def test_an_analyst_samples_tables_with_missing_cells(tmp_path):
    (tmp_path / "analyst.R").write_text(IN_MEMORY)
    has = subprocess.run([str(RSCRIPT), "-e", "library(reticulate)"], capture_output=True, check=False)
    if has.returncode:
        pytest.skip("needs the package reticulate")
    env = os.environ | {"RETICULATE_PYTHON": sys.executable, "PYTHONPATH": str(Path(accord.__file__).parents[1])}
    words = [str(RSCRIPT), str(tmp_path / "analyst.R"), str(R / "accord.R")]
    out = subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert out.returncode == 0, out.stderr
