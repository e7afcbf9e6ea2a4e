"""A site in R: its numbers, its part in a study with sites in Python, and its refusals."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from test_federation import STUDY, Federation, back, drawn_here

import accord
from accord.base.text import __version__
from accord.federation import Entry
from accord.federation.document import hash_of
from accord.federation.engine import prior_limit
from accord.federation.entry import digest_of
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


def site_in_r(federation, command="answer", *more, text=""):
    """The output of the program in R at one site."""
    study = federation.folder / "study.toml"
    study.write_text(federation.text)
    words = [study, federation.folder / SITE / "site.toml", *([federation.board.folder] if command == "answer" else [])]
    return subprocess.run(
        [str(RSCRIPT), str(R / "accord-site.R"), command, *map(str, words), *more],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


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
                total = function(items) lapply(items, function(own) 3 * own$x))
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
    shown |= {"first": points[0], "offsets": points[:3] - points[0], "init": post.init[None]}
    shown |= {"two": points[:2], "three": points[2:]}
    arrays = {name: {"shape": list(x.shape), "type": "<f8", "values": x.ravel().tolist()} for name, x in shown.items()}
    coordinates, both = {"origin": arrays["origin"], "factor": arrays["factor"]}, Together((slope_of, value_of))
    asked = {
        "study": str(study),
        "data": str(data),
        "parts": {"points": arrays["points"], "argument 0": 1e12, "coordinates": coordinates},
        "mean_expansion": {"argument 0": arrays["first"], "argument 1": arrays["offsets"], "coordinates": coordinates},
        "mode_of": {"points": arrays["init"]},
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
            "mode_of": here.each(mode_of, points=post.init[None], at_once=1),
            "jet_of": here.each(jet_of, points=points, coordinates=place),
            both.__name__: here.each(both, points=(points[:2], points[2:]), coordinates=place),
        }
    assert found.keys() == expected.keys()
    for what, numbers in expected.items():
        np.testing.assert_allclose(np.array(found[what]), np.asarray(numbers)[0], rtol=1e-9, atol=1e-9, err_msg=what)


def test_the_program_answers_studies_of_this_version():
    assert f'VERSION <- "{__version__}"' in (R / "accord-site.R").read_text()


def test_lines_and_length():
    for name in ("accord-site.R", "accord-data.R", "accord-model.R", "accord-density.R", "accord.R"):
        lines = (R / name).read_text().splitlines()
        assert len(lines) <= 500 and max(map(len, lines)) <= 120, name


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
    assert hash_of(WITH_R) in found.stdout and "age (number), ward (factor), died (yes-no)" in found.stdout
    assert "west can take part" in found.stdout


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
        (("coarse = false", "coarse = true"), "exact answers, coarse = false"),
        (("points = true", "points = false"), "positions in the plan, points = true"),
        (("+ ward", "+ log(age)"), "the formula has the term log(age)"),
        (('["north", "south", "west"]', '["west", "south", "north"]'), "it is the first site of the study"),
        (('name = "Normal"', 'name = "Laplace"'), "a site with R knows Normal"),
    ],
)
def test_a_study_beyond_r_is_refused(tmp_path, change, message):
    federation = Federation(tmp_path, WITH_R.replace(*change))
    found = site_in_r(federation, "check")
    assert message in found.stderr + found.stdout


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
