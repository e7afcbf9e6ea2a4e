"""Bad configuration files: whatever they say, one clean error of accord's own, or a job."""

import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from accord.cli import config
from accord.cli.commands import app

pytestmark = pytest.mark.filterwarnings("default::UserWarning")

# What `config.load` may raise: the command makes one line of each.
OWN = (ValueError, FileNotFoundError, PermissionError, IsADirectoryError)
# The same documents each time.
QUICK = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
TABLE = {
    "data": {"files": '"site-*.csv"', "target": '"y"'},
    "model": {"name": '"logistic_regression"', "prior_variance": "2.0"},
    "network": {"name": '"path"'},
    "method": {"name": '"DESGLD"', "step_size": "0.02"},
    "run": {"draws": "20", "chains": "2", "output": '"out"'},
}
FORMULA = {
    **TABLE,
    "data": {"files": '"site-*.csv"'},
    "model": {"formula": '"y ~ dose"', "family": '"bernoulli"'},
}
SPLIT = {**TABLE, "data": {"file": '"site-0.csv"', "target": '"y"', "split": '"iid"', "agents": "2"}}
SILO = {**TABLE, "run": {**TABLE["run"], "engine": '"silo"'}, "silo": {"timeout": "5.0"}}
KEYS = {
    "data": "files file site target split agents columns column standardise intercept seed at_sites dates positive "
    "strings blanks missing constant policy formula separator decimal thousands encoding",
    "model": "name prior_variance noise_scale names formula family weights exposure priors positive shards",
    "network": "name seed probability degree edges branching shape weights rows columns num_agents",
    "method": "name step_size noise temperature batch_size friction momentum rho tolerances kernel conditional",
    "run": "draws burn_in thin chains seed keep whiten engine checkpoint checkpoint_every masks consensus output init",
    "silo": "address resources timeout late start_timeout latents",
    "priors": "dose intercept sigma",
}


def quoted(text):
    """A text as TOML has it, every character but letters and digits by its number."""
    scalars = [c for c in text if not 0xD800 <= ord(c) < 0xE000]
    return '"' + "".join(c if c.isascii() and c.isalnum() else f"\\U{ord(c):08x}" for c in scalars) + '"'


ODD = ["", "abc", "\u0000", "\ufeffy", "ÿ→😀", "y ~", "~", "1|site", "a" * 5000, "../..", "nan", "[", "x:", ":y"]
TEXTS = st.one_of(st.sampled_from(ODD), st.text(max_size=6)).map(quoted)
HUGE = ["1e400", "-1e400", "nan", "inf", "1e-320", "9" * 25, "-" + "9" * 25, "9" * 400]
NUMBERS = st.sampled_from(["0", "-1", "3", "0.5", "true", "false", *HUGE])
TIMES = st.sampled_from(["1979-05-27", "07:32:00", "1979-05-27T07:32:00Z"])
TABLES = st.sampled_from(['{name = "Normal"}', '{name = "Normal", scale = "x"}', "{rows = -1}"])
VALUES = st.recursive(
    st.one_of(
        TEXTS, NUMBERS, TIMES, st.sampled_from(['{name = "Normal"}', '{name = "Normal", scale = "x"}', "{rows = -1}"])
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda found: f"[{', '.join(found)}]"),
        st.dictionaries(st.sampled_from(["name", "a", "schedule", "rows"]), inner, max_size=2).map(
            lambda found: "{" + ", ".join(f"{k} = {v}" for k, v in found.items()) + "}"
        ),
    ),
    max_leaves=4,
)


def written(document):
    return "".join(f"[{name}]\n" + "".join(f"{k} = {v}\n" for k, v in own.items()) for name, own in document.items())


@st.composite
def documents(draw):
    """A good document with one to three changes: keys, sections, or letters that come, change or go."""
    document = {name: dict(own) for name, own in draw(st.sampled_from([TABLE, FORMULA, SPLIT, SILO])).items()}
    # several changes often hide one another
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
        section = draw(st.sampled_from([*(name for name in document if name in KEYS), *sorted(KEYS)]))
        own = document.get(section, {})
        change = draw(st.sampled_from(["set"] * 7 + ["take", "section", "rename"]))
        if change == "set":
            document[section] = {**own, draw(st.sampled_from(KEYS[section].split())): draw(VALUES)}
        elif change == "take" and own:
            own.pop(draw(st.sampled_from(sorted(own))))
        elif change == "section":
            document.pop(section, None)
        elif change == "rename" and own:
            document[section + draw(st.sampled_from(["s", ".a", "-"]))] = document.pop(section)
    text = written(document)
    if draw(st.integers(0, 19)) == 13:
        place = draw(st.integers(0, len(text)))
        text = text[:place] + draw(st.text(max_size=3)) + text[place + draw(st.integers(0, 5)) :]
    if draw(st.integers(0, 19)) == 13:
        # a section that is a value
        text = f"{draw(st.sampled_from(sorted(KEYS)))} = {draw(VALUES)}\n" + text
    return text


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    rng = np.random.default_rng(0)
    for site in range(3):
        values = {"dose": rng.normal(size=24), "age": rng.normal(size=24), "y": np.arange(24) % 2}
        pd.DataFrame(values).to_csv(folder / f"site-{site}.csv", index=False)
    return folder


def load(folder, text):
    path = folder / "job.toml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    return [config.load, config.load_problem, config.load_description], path


def require_own(folder, text):
    loads, path = load(folder, text)
    for function in loads:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                function(path)
            except OWN as error:
                assert str(error)


@pytest.mark.long
@QUICK
@given(text=documents())
def test_a_configuration_is_a_job_or_an_error_of_accord(folder, text):
    require_own(folder, text)


@pytest.mark.slow
@settings(QUICK, max_examples=5_000, derandomize=False)
@given(text=documents())
def test_many_configurations_that_are_others_each_time(folder, text):
    require_own(folder, text)


@settings(QUICK, max_examples=60)
@given(content=st.binary(max_size=200))
@pytest.mark.long
def test_bytes_are_a_configuration_or_an_error_of_accord(folder, content):
    path = folder / "bytes.toml"
    path.write_bytes(content)
    for function in (config.load, config.load_problem, config.load_description):
        with pytest.raises(OWN):
            function(path)


@pytest.mark.long
# Nothing is drawn: these are all refused, or stopped where drawing would begin.
@settings(QUICK, max_examples=60)
@given(text=documents(), command=st.sampled_from(["run", "describe", "plan"]))
def test_a_command_ends_by_itself(folder, text, command):
    _, path = load(folder, text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "_drawn", stop)
        patch.setattr("accord.sampling.planning.plan", stop)
        result = CliRunner().invoke(app, [command, str(path)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code in (0, 1, 2), result.output
    if result.exit_code:
        errors = [line for line in result.stderr.splitlines() if line.startswith(("error: ", "Error: "))]
        assert len(errors) == 1 and "Traceback" not in result.stderr


def stop(*arguments, **options):
    raise ValueError("nothing is drawn here")


KNOWN = ["run", "plan", "describe", "demo", "--seed", "--output", "--timeout", "nan", "-1", "x.toml", "--", ""]
WORDS = st.one_of(st.sampled_from(KNOWN), st.text(max_size=5))


@settings(QUICK, max_examples=60)
@given(words=st.lists(WORDS, max_size=4))
@pytest.mark.long
def test_words_on_the_command_line(folder, words):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("accord.cli.demo.main", stop)
        result = CliRunner().invoke(app, words)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code in (0, 1, 2)


def test_the_look_would_see_another_error(folder, monkeypatch):
    (folder / "job.toml").write_text(written(TABLE))
    monkeypatch.delattr(config, "METHODS")
    with pytest.raises(NameError):
        config.load(folder / "job.toml")
    result = CliRunner().invoke(app, ["run", str(folder / "job.toml")])
    assert isinstance(result.exception, NameError)
