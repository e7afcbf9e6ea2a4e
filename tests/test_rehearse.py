"""Rehearsals: synthetic rows, the program of all sites, and a page that warns of studies that should not run."""

import dataclasses
import html
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import accord
from accord.cli import app
from accord.federation import SitePolicy, StudyDocument
from accord.federation.keys import new_identity
from accord.federation.rehearsal import rehearse
from accord.federation.rehearsal_page import lines, verdict, write_page
from accord.federation.synthetic import Synthetic, column_of, drawn

STUDY = """
[data]
sites = ["north", "south", "west"]

[model]
formula = "died ~ scale(age) + ward"
family = "bernoulli"
positive = "yes"

[run]
draws = 200

[rehearsal]
rows = [60, 50, 70]

[rehearsal.columns]
age = {mean = 50, sd = 9}
ward = ["a", "b"]
"""
FAMILIES = {
    "normal": "y",
    "student": "y",
    "gamma": "y",
    "beta": "y",
    "poisson": "y",
    "negative_binomial": "y",
    "categorical": "y",
    "binomial": "prop(y, trials)",
    "weibull": "surv(time, event)",
    "cox": "surv(time, event)",
    "piecewise_exponential": "surv(time, event)",
}


def study_of(family, left, right="scale(x) + C(k)"):
    text = f'[data]\nsites = ["a", "b", "c"]\n[model]\nformula = "{left} ~ {right}"\nfamily = "{family}"\n'
    return StudyDocument(text)


@pytest.fixture(scope="module")
def rehearsed():
    return rehearse(StudyDocument(STUDY), repetitions=2, references=0, seed=1)


@pytest.fixture(scope="module")
def page(rehearsed, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "rehearsal.html"
    write_page(rehearsed, path)
    return path.read_text()


# --- synthetic rows ---


# effects from wide priors give sites absurd responses
@pytest.mark.filterwarnings("ignore:.*do both use the same unit", "ignore:some made-up responses were moved")
@pytest.mark.parametrize("truth", ["plausible", pytest.param("prior", marks=pytest.mark.long)])
@pytest.mark.parametrize("family", FAMILIES)
def test_synthetic_rows_fit_the_model_of_each_family(tmp_path, family, truth):
    study = study_of(family, FAMILIES[family])
    made = Synthetic(study, {"rows": 40}, truth).make(tmp_path, [0, 1])
    assert [path.stem for path in made.files] == ["a", "b", "c"]
    again = tmp_path / "again"
    again.mkdir()
    other = Synthetic(study, {"rows": 40}, truth).make(again, [0, 1])
    assert other.truth == made.truth
    assert [path.read_bytes() for path in other.files] == [path.read_bytes() for path in made.files]
    table = accord.data.study(list(map(str, made.files)), policy=accord.data.Policy.none(), **study.options)
    post = accord.models.glm(table, **study.arguments)
    # cuts of times are quantiles of the responses, so that intervals have other names
    assert {name.partition("[0")[0] for name in post.names if "log_hazard" not in name} <= set(made.truth)
    assert len(table.agreed.rows) == 3 and sum(table.agreed.rows) == 120


@pytest.mark.filterwarnings("ignore:some made-up responses were moved", "ignore:.*do both use the same unit")
@pytest.mark.filterwarnings("ignore:.*has no event in any row")
@pytest.mark.parametrize("family", ["beta", "gamma", "negative_binomial", "poisson", "student", "weibull"])
def test_responses_of_wild_priors_lie_within_the_support(tmp_path, family):
    study = study_of(family, FAMILIES[family])
    for seed in range(8):
        made = Synthetic(study, {"rows": 30}, "prior").make(tmp_path, [seed, 5])
        table = accord.data.study(list(map(str, made.files)), policy=accord.data.Policy.none(), **study.options)
        accord.models.glm(table, **study.arguments)


@pytest.mark.parametrize(
    ("family", "effects", "low", "high"),
    [
        ("beta", {"precision": 0.01}, np.finfo(np.float32).tiny, 1.0 - 2.0**-24),
        ("gamma", {"shape": 0.002}, np.finfo(np.float32).tiny, 1e15),
        ("poisson", {"Intercept": 800.0}, 1.0, 1e15),
        ("weibull", {"shape": 0.002}, 1e-14, 1e15),
        ("piecewise_exponential", {"x": 1e4}, 1e-14, 1e15),
    ],
)
def test_responses_of_extreme_parameters_are_moved_inside_with_a_warning(tmp_path, family, effects, low, high):
    study = study_of(family, FAMILIES[family], "x")
    with pytest.warns(UserWarning, match="some made-up responses were moved into the range"):
        made = Synthetic(study, {"rows": 30, "effects": effects}).make(tmp_path, [2])
    for file in made.files:
        rows = np.genfromtxt(file, delimiter=",", names=True)
        response = rows["time" if "time" in FAMILIES[family] else "y"]
        assert (response >= low).all() and (response <= high).all()
        assert (np.float32(response) > 0.0).all() and (family != "beta" or (np.float32(response) < 1.0).all())


@pytest.mark.parametrize(
    ("family", "ends", "names"),
    [("bernoulli", [0, 1], []), ("poisson", [0, 20], []), ("normal", [60.0, 240.0], ["sigma"])],
)
def test_rows_of_a_private_study_lie_within_its_ranges(tmp_path, family, ends, names):
    text = f"""
[data]
sites = ["a", "b", "c"]
[model]
formula = "y ~ scale(age) + ward + smoker"
family = "{family}"
[model.ranges]
age = [18, 90]
ward = ["1", "2"]
smoker = [0, 1]
y = {ends}
[private]
epsilon = 1.0
"""
    study = StudyDocument(text)
    synthetic = Synthetic(study, {"rows": 2000})
    made = synthetic.make(tmp_path, [1])
    assert str(synthetic.columns["age"]) == "numbers from 18 to 90" and synthetic.assumed == []
    assert set(made.truth) == {"Intercept", "scale(age)", "ward[2]", "smoker", *names}
    fitted = [study.fitted(place, file) for place, file in enumerate(made.files)]
    assert all(own.unfit == 0 and sum(own.clipped.values()) < 100 for own in fitted)
    # the true parameters have the units of the study
    post = study.model_within([2000] * 3, dict(zip(study.sites, fitted, strict=True)))
    run = accord.sample(post, accord.Network.star(3), draws=500, progress=False)
    off = run.average.mean(axis=(0, 1)) - [made.truth[name] for name in run.names]
    assert (np.abs(off) < 5.0 * run.average.std(axis=(0, 1))).all()


def test_rehearsed_columns_must_lie_within_the_ranges(tmp_path):
    text = '[data]\nsites = ["a", "b", "c"]\n[model]\nformula = "y ~ ward"\nfamily = "bernoulli"\n[model.ranges]\n'
    study = StudyDocument(text + 'ward = ["a", "b"]\ny = [0, 1]\n[private]\nepsilon = 1.0')
    with pytest.raises(ValueError, match="must lie within the ranges .* a cell of ward does not fit"):
        Synthetic(study, {"columns": {"ward": ["a", "z"]}}).make(tmp_path, [1])


def test_responses_follow_the_true_parameters(tmp_path):
    effects = {"Intercept": 2.0, "x": -1.5, "sigma": 0.3}
    study = study_of("normal", "y", "x")
    made = Synthetic(study, {"rows": 4000, "effects": effects}).make(tmp_path, [3])
    assert made.truth == effects
    found = np.concatenate([np.genfromtxt(path, delimiter=",", names=True) for path in made.files])
    X = np.column_stack([np.ones(len(found)), found["x"]])
    estimate, (residual,), *_ = np.linalg.lstsq(X, found["y"], rcond=None)
    np.testing.assert_allclose(estimate, [2.0, -1.5], atol=4 * 0.3 / np.sqrt(len(found)))
    assert np.sqrt(residual / len(found)) == pytest.approx(0.3, rel=4 / np.sqrt(2 * len(found)))


def test_groups_differ_by_their_standard_deviation(tmp_path):
    effects = {"Intercept": 0.0, "sigma": 0.01, "group_sd[Intercept|site:ward]": 2.0}
    given = {"rows": 4000, "effects": effects, "columns": {"ward": {"groups": 200}}}
    made = Synthetic(study_of("normal", "y", "(1 | site:ward)"), given).make(tmp_path, [3])
    means = []
    for path in made.files:
        found = np.genfromtxt(path, delimiter=",", names=True)
        means += [found["y"][found["ward"] == ward].mean() for ward in np.unique(found["ward"])]
    assert np.std(means) == pytest.approx(2.0, rel=4 / np.sqrt(2 * len(means)))


def test_sites_differ(tmp_path):
    def means(apart):
        given = {"rows": 2000, "apart": apart}
        made = Synthetic(study_of("normal", "y", "x"), given).make(tmp_path, [0])
        return [np.genfromtxt(path, delimiter=",", names=True)["x"].mean() for path in made.files]

    assert np.ptp(means(0.0)) < 0.15 < np.ptp(means(1.0))


def test_yes_no_responses_have_the_texts_of_the_study(tmp_path):
    made = Synthetic(StudyDocument(STUDY)).make(tmp_path, [0])
    texts = "".join(path.read_text() for path in made.files)
    assert made.positives == len(re.findall(r",yes$", texts, re.MULTILINE)) > 0
    assert len(re.findall(r",no$", texts, re.MULTILINE)) == 180 - made.positives


@pytest.mark.parametrize(
    ("prior", "mean", "sd"),
    [
        (accord.models.priors.Normal(1.0, 2.0), 1.0, 2.0),
        (accord.models.priors.Laplace(1.0, 2.0), 1.0, 8.0**0.5),
        (accord.models.priors.StudentT(8.0, 1.0, 2.0), 1.0, 2.0 * (8.0 / 6.0) ** 0.5),
        (accord.models.priors.Uniform(-1.0, 3.0), 1.0, 4.0 / 12.0**0.5),
        (accord.models.priors.Exponential(2.0), 2.0, 2.0),
        (accord.models.priors.Gamma(4.0, 2.0), 2.0, 1.0),
        (accord.models.priors.HalfNormal(2.0), 2.0 * (2.0 / np.pi) ** 0.5, 2.0 * (1.0 - 2.0 / np.pi) ** 0.5),
    ],
)
def test_draws_of_priors_have_their_moments(prior, mean, sd):
    rng = np.random.default_rng(0)
    draws = [drawn(prior, rng) for _ in range(4000)]
    assert np.mean(draws) == pytest.approx(mean, abs=4 * sd / 4000**0.5)
    assert np.std(draws) == pytest.approx(sd, rel=0.12)


def test_a_flat_prior_has_no_draws():
    with pytest.raises(ValueError, match="from the prior Flat: use --truth plausible"):
        drawn(accord.models.priors.Flat(), np.random.default_rng(0))


# --- input ---


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rows": [10, 20]}, "has 2 numbers, and the study 3 sites"),
        ({"rows": 2}, "rows of north in the rehearsal must be a whole number >= 3, found 2"),
        ({"rows": 10**7}, "rows of north in the rehearsal must be at most 1,000,000, found 10,000,000"),
        ({"columns": {"Age": ["a"]}}, "unknown column of the rehearsal 'Age', did you mean 'age'"),
        ({"columns": {"age": {"mean": 1.0, "sd": 0.0}}}, "sd of column age of the rehearsal must be > 0, found 0"),
        ({"columns": {"age": {"low": 1.0, "high": 0.0}}}, "low of column age of the rehearsal must be below high"),
        ({"columns": {"age": 3}}, "column age of the rehearsal must be .* found 3"),
        ({"columns": {"ward": {"a": -1.0, "b": 1.0}}}, "the shares of column ward of the rehearsal must be > 0"),
        ({"effects": {"scale(age)": "x"}}, "effect scale.age. of .rehearsal. must be a number, found 'x'"),
        ({"apart": -1}, "apart of .rehearsal. must be a number >= 0, found -1"),
        ({"row": 3}, "unknown key of .rehearsal. 'row', did you mean 'rows'"),
    ],
)
def test_wrong_input_is_an_error(given, message):
    with pytest.raises(ValueError, match=message):
        rehearse(StudyDocument(STUDY), given=given)


def test_an_effect_of_no_parameter_is_an_error():
    with pytest.raises(ValueError, match="unknown effect of .rehearsal. 'age'.*scale.age."):
        rehearse(StudyDocument(STUDY), given={"effects": {"age": 1.0}}, references=0)


def test_a_study_of_a_module_or_an_expression_is_an_error():
    text = f'[data]\nsites = ["a", "b", "c"]\n[model]\nnumpyro = "m:f"\nhash = "{"0" * 64}"\n[model.arguments]\nx = "x"'
    with pytest.raises(ValueError, match="accord rehearse needs a formula"):
        Synthetic(StudyDocument(text))
    with pytest.raises(ValueError, match=r"cannot make responses of 'I\(y == 2\)'"):
        Synthetic(study_of("bernoulli", "I(y == 2)"))


def test_a_section_of_another_type_is_an_error():
    with pytest.raises(ValueError, match=r"\[rehearsal\] must be a section, found 3"):
        StudyDocument("rehearsal = 3\n" + STUDY.partition("[rehearsal]")[0])


def test_columns_are_printed():
    assert str(column_of("x", {"mean": 60, "sd": 10})) == "numbers of mean 60 and sd 10"
    assert str(column_of("x", {"low": 1, "high": 9})) == "numbers from 1 to 9"
    assert str(column_of("x", {"groups": 4})) == "4 groups at each site"
    assert str(column_of("x", {"f": 1, "m": 3})) == "25% f, 75% m"


# --- runs ---


def test_the_program_of_a_rehearsal_is_that_of_the_sites(rehearsed):
    found = rehearsed.attempts[0]
    assert len(found.steps) > 10 and all(len(own) == 3 for own in found.steps)
    assert found.steps[0][0].what.startswith("public keys") and not found.steps[0][0].hidden
    # numbers of rows travel in the clear, and sums are masked
    assert [own[1].hidden for own in found.steps[:4]] == [False, False, False, True]
    assert any(own[0].planned for own in found.steps) and found.steps[-1][1].numbers == 0
    # value, gradient and triangle of three parameters, and a mark
    assert next(step.numbers for step, *_ in found.steps if "Hessian" in step.what) in (11, 12)
    assert found.run.settings["coarse"] and found.run.settings["masks"]


@pytest.mark.long
def test_draws_of_a_rehearsal_are_near_pooled_nuts(tmp_path):
    rehearsed = rehearse(StudyDocument(STUDY), repetitions=2, references=1, seed=1)
    found = rehearsed.attempts[0]
    write_page(rehearsed, tmp_path / "page.html")
    assert "Errors of means and sds against pooled NUTS" in (tmp_path / "page.html").read_text()
    assert any("against pooled NUTS: means differ" in text for text in lines(rehearsed))
    draws, of = found.run.average, found.reference
    assert found.run.certificate.holds and all(attempt.reference is None for attempt in rehearsed.attempts[1:])
    assert np.abs((draws.mean(axis=(0, 1)) - of.mean) / of.sd).max() < 0.3
    assert np.abs(np.log(draws.std(axis=(0, 1)) / of.sd)).max() < 0.2
    assert abs(found.run.log_evidence[0] - of.log_evidence) < 0.2


def test_equal_seeds_give_equal_draws(rehearsed):
    again = rehearse(StudyDocument(STUDY), repetitions=1, references=0, seed=1).attempts[0]
    np.testing.assert_array_equal(again.run.draws, rehearsed.attempts[0].run.draws)
    assert again.steps == rehearsed.attempts[0].steps
    other = rehearse(StudyDocument(STUDY), repetitions=1, references=0, seed=2).attempts[0]
    assert other.made.truth != again.made.truth


def test_the_page_has_the_verdict_and_what_leaves(rehearsed, page):
    own = verdict(rehearsed)
    assert own.problems == () and own.text.startswith("The study would run: 2 of 2 synthetic data sets are certified")
    assert page.index(own.text) < page.index("<h2>Intervals and true") < page.index("<h2>What leaves a site")
    assert "public keys of this site" in page and "only as sums over all sites" in page and page.count("<svg") == 4
    assert not re.search(r"(?:src|href)=\"(?!#)", page)
    assert lines(rehearsed)[0] == own.text and any(text.startswith("90% intervals") for text in lines(rehearsed))


def test_the_page_has_priors_floors_and_settings(rehearsed, page, tmp_path):
    text = html.unescape(re.sub(r"\s+", " ", re.sub("<[^>]+>", " ", page)))
    for name, prior in rehearsed.attempts[0].run.info.priors:
        assert f"{name} {prior}".strip() in text
    assert "masks true: only sums over all sites are visible" in text and "coarse true: each site adds noise" in text
    assert "south default 10 3 0.1 refuse" in text
    # with another policy, and no run
    strict = SitePolicy("south", Path(), Path(), (), floors=accord.data.Policy(rows=55, cells=5, rare="warn"))
    other = dataclasses.replace(
        rehearsed,
        study=StudyDocument(STUDY.replace("[run]", '[priors]\nward = {name = "Flat"}\n[run]\ncoarse = false')),
        attempts=tuple(dataclasses.replace(one, run=None, stopped="no") for one in rehearsed.attempts),
        policies={"south": strict},
    )
    write_page(other, tmp_path / "other.html")
    text = html.unescape(re.sub(r"\s+", " ", re.sub("<[^>]+>", " ", (tmp_path / "other.html").read_text())))
    assert "south given 55 5 0.1 warn" in text and "ward Flat()" in text and "coarse false: exact numbers" in text


def test_columns_that_single_out_synthetic_rows_together_stop_a_rehearsal():
    study = StudyDocument(STUDY.replace("scale(age)", "exp(age / 1.5)"))
    stopped = rehearse(study, repetitions=1, references=0).attempts[0].stopped
    assert "refused, together the terms of the formula single out fewer than 3 rows" in stopped


def test_intervals_that_miss_the_truth_are_a_problem():
    text = STUDY.replace("[run]", '[priors]\nward = {name = "Normal", loc = 0.0, scale = 0.1}\n[run]')
    found = rehearse(StudyDocument(text), given={"effects": {"ward[b]": 3.0}}, repetitions=5, references=0)
    own = verdict(found)
    assert any("90% intervals of " in text and "ward[b] (0 of 5)" in text for text in own.problems)
    assert any("the rows say little about ward[b]" in text for text in own.warnings)


def test_too_few_rows_are_a_problem(tmp_path):
    found = rehearse(StudyDocument(STUDY), given={"rows": [8, 9, 60]}, repetitions=2)
    own = verdict(found)
    assert found.finished == [] and all("fewer than 10 rows" in text for text in own.problems)
    assert own.problems[0].startswith("the study stopped on ") and "another seed" not in own.problems[0]
    write_page(found, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "Do not run this study as it is" in page and "No study finished" in page and "verdict bad" in page


def test_policies_of_sites_apply(tmp_path):
    public = new_identity(tmp_path / "key")
    policy = SitePolicy(
        "south", tmp_path / "absent.csv", tmp_path, (), columns=("died", "ward"), identity=tmp_path / "key",
        peers={"south": public}, floors=accord.data.Policy(rows=55),
    )  # fmt: skip
    found = rehearse(StudyDocument(STUDY), policies=[policy], repetitions=1, references=0)
    texts = "\n".join(verdict(found).problems)
    assert "does not allow the study of hash" in texts and "does not allow the columns age" in texts
    assert "no public key of north, west" in texts and "fewer than 55 rows" in texts
    other = SitePolicy("east", Path(), Path(), ())
    with pytest.raises(ValueError, match="unknown site of a policy 'east'"):
        rehearse(StudyDocument(STUDY), policies=[other])


def test_a_study_with_few_events_is_warned_about():
    found = rehearse(
        StudyDocument(STUDY), given={"rows": 35, "effects": {"Intercept": -2.0}}, repetitions=1, references=0
    )
    assert any(text.startswith("the rarer response has about") for text in verdict(found).warnings)


# --- the command ---


def test_the_command_writes_a_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("study.toml").write_text(STUDY)
    options = ["--repetitions", "1", "--references", "0", "--rows", "40,50,60", "--seed", "3"]
    options += ["--column", "age = {mean = 60, sd = 10}", "--effect", "scale(age) = 0.5"]
    found = CliRunner().invoke(app, ["rehearse", "study.toml", *options])
    assert found.exit_code == 0, found.output
    assert "data set 1 of 1" in found.output and "wrote rehearsal.html" in found.output
    page = Path("rehearsal.html").read_text()
    assert "north 40, south 50, west 60" in page and "numbers of mean 60 and sd 10" in page
    assert "scale(age) = 0.5" in page


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rows", "x"], "--rows must be numbers separated by commas, as in 150,80,300, found 'x'"),
        (["--column", "age"], "--column must be NAME = VALUE in TOML, found 'age'"),
        (["--effect", "ward[b] = a"], "--effect must be NAME = VALUE in TOML"),
        (["--output", "absent/page.html"], "name a file in an existing folder"),
        (["--truth", "guess"], "unknown truth 'guess'"),
        (["--repetitions", "0"], "repetitions must be a whole number >= 1, found 0"),
    ],
)
def test_wrong_options_are_one_error(tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    Path("study.toml").write_text(STUDY)
    found = CliRunner().invoke(app, ["rehearse", "study.toml", *options])
    assert found.exit_code == 1 and message in found.output.replace("\n", " ")
    assert not Path("rehearsal.html").exists()


@pytest.mark.slow
def test_intervals_of_draws_from_the_prior_are_calibrated():
    text = STUDY.replace("scale(age) + ward", "scale(age) + (1 | site:ward)")
    text = text.replace('ward = ["a", "b"]', "ward = {groups = 5}")
    found = rehearse(StudyDocument(text), repetitions=20, references=0, truth="prior")
    assert len(found.finished) >= 15
    for probability in (0.5, 0.9):
        inside = found.covered(probability)
        error = (probability * (1 - probability) / len(inside)) ** 0.5
        assert np.abs(inside.mean(axis=0) - probability).max() < 4 * error
