"""An error in a user's module is one line with the module and the line number."""

import re

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import accord
from accord.cli import config
from accord.cli.commands import app

pytestmark = pytest.mark.filterwarnings("default::UserWarning")

JOB = """
[data]
files = "site-*.csv"
target = "y"
[model]
{model}
[network]
{network}
[method]
{method}
[run]
draws = 20
burn_in = 5
chains = 2
output = "out"
{run}
"""
GOOD = {
    "model": 'name = "mine:build"',
    "network": 'name = "path"',
    "method": 'name = "DESGLD"\nstep_size = 0.02',
    "run": "",
}
CELL = 73313.25


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for site in range(2):
        frame = pd.DataFrame({"x": rng.normal(size=24), "y": np.arange(24) % 2})
        frame.to_csv(tmp_path / f"site-{site}.csv", index=False)
    return tmp_path


def invoke(folder, source="", **sections):
    # a module of its own for each test: Python keeps what it has imported
    name = re.sub(r"\W", "_", folder.name)
    (folder / f"{name}.py").write_text(source)
    (folder / "job.toml").write_text(JOB.format(**{**GOOD, **sections}).replace("mine:", f"{name}:"))
    result = CliRunner().invoke(app, ["run", str(folder / "job.toml"), "--quiet"])
    return result, folder / f"{name}.py"


def error_of(result):
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit), result.exception
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert "Traceback" not in result.stderr
    return line


LOADED = {
    "key": ("settings = {}\nsettings['rate']\n", "KeyError in <module>, line 2 of {path}: 'rate'"),
    "syntax": ("import json\ndef build(shards:\n", "SyntaxError in line 2 of {path}: '(' was never closed"),
    "indentation": (
        "def build(shards):\nreturn 1\n",
        "IndentationError in line 2 of {path}: expected an ind",
    ),
    "import": ("\n\nimport no_such_package\n", "ModuleNotFoundError in <module>, line 3 of {path}: No module named"),
    "name": ("from json import no_such_name\n", "ImportError in <module>, line 1 of {path}: cannot import name"),
    "leaves": ("import sys\nsys.exit('no licence')\n", "SystemExit in <module>, line 2 of {path}: no licence"),
    "nothing": ("", "AttributeError: module '"),
    "zero bytes": ("\0", "SyntaxError"),
}


@pytest.mark.parametrize("name", LOADED)
@pytest.mark.parametrize("section", ["model", "method"])
def test_a_module_that_cannot_be_loaded(folder, name, section):
    source, message = LOADED[name]
    model = {"model": 'name = "logistic_regression"'} if section == "method" else {}
    result, path = invoke(folder, source, **model, **{section: 'name = "mine:build"'})
    line = error_of(result)
    assert line.startswith(f"error: {section} '") and "cannot be loaded: " + message.format(path=path) in line


CALLED = {
    "key": ("{}[shards[0][0][0, 1]]", "failed: KeyError in build, line 3 of {path} (its text may quote data)"),
    "library": (
        "int(str(shards[0][0][0, 1]))",
        "failed: ValueError in build, line 3 of {path} (its text may quote data)",
    ),
    "index": ("[][3]", "failed: IndexError in build, line 3 of {path}"),
    "own words": (
        "raise ValueError(f'a strange {shards[0][0][0, 1]}')",
        "failed: ValueError in build, line 3 of {path} (its text may quote data)",
    ),
    "own key": ("raise KeyError(shards[0][0][0, 1])", "failed: KeyError in build, line 3 of {path} (its text may"),
    "leaves": ("raise SystemExit(3)", "failed: SystemExit in build, line 3 of {path} (its text may quote data)"),
    "of accord": ("return accord.Posterior(None, None, [], 0.0)", "error: "),
    "nothing": ("pass", "must return an accord.Posterior, found NoneType"),
}


@pytest.mark.parametrize("name", CALLED)
def test_a_function_that_fails(folder, name):
    frame = pd.read_csv(folder / "site-0.csv")
    frame.loc[0, "x"] = CELL
    frame.to_csv(folder / "site-0.csv", index=False)
    source, message = CALLED[name]
    result, path = invoke(
        folder, f"import accord\ndef build(shards):\n    {source}\n", model='name = "mine:build"', run="seed = 1"
    )
    line = error_of(result)
    assert message.format(path=path) in line and "73313" not in result.output


def test_a_likelihood_that_fails_when_it_is_traced(folder):
    source = """
import accord, jax.numpy as jnp, numpy as np
def likelihood(x, rows):
    return {}["rate"]
def prior(x):
    return -jnp.sum(x ** 2)
def build(shards):
    return accord.Posterior(likelihood, prior, list(shards), np.zeros(2))
"""
    result, path = invoke(folder, source)
    assert f"KeyError in likelihood, line 4 of {path}" in error_of(result)


def test_a_good_module_is_a_job(folder):
    (folder / "good_module.py").write_text(
        "import accord\ndef build(shards):\n    return accord.models.logistic_regression(shards)\n"
    )
    (folder / "job.toml").write_text(JOB.format(**{**GOOD, "model": 'name = "good_module:build"'}))
    assert config.load(folder / "job.toml").sites == ("site-0", "site-1")


# --- values of the wrong type ---

WRONG = {
    "resources": (
        {"run": 'engine = "silo"\n[silo]\nresources = "abc"'},
        "resources in [silo] must be a list of tables",
    ),
    "agents": (
        {"network": 'name = "path"\nnum_agents = "abc"'},
        "[network]: multiple values for argument 'num_",
    ),
    "number of a method": (
        {"method": 'name = "GCMC"\nrho = 1.0\ntolerances = ["abc"]\nrounds_per_tolerance = 2'},
        "method GCMC cannot have rho = 1.0, tolerances = ['abc'], rounds_per_tolerance = 2: ValueError",
    ),
    "number of a schedule": (
        {"method": 'name = "DESGLD"\nstep_size = {a = "x", b = 1.0, chi = 0.6}'},
        "a must be a finite number > 0, found 'x'",
    ),
    "schedule": (
        {"method": 'name = "DESGLD"\nstep_size = {schedule = {a = 1}}'},
        "schedule in step_size of [method] must be a string, found {'a': 1}",
    ),
    "step": ({"method": 'name = "DESGLD"\nstep_size = "abc"'}, "step_size must be a number or a function of the round"),
}
FORMULA = {
    "family": ('family = ["a"]', "family in [model] must be a string or a table, found ['a']"),
    "weights": ("weights = []", "weights in [model] must be a string, found []"),
    "priors": ('priors = "abc"', "priors in [model] must be a table, as {name = ...}, found 'abc'"),
    "formula": ("formula = 3", "formula in [model] must be a string, found 3"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_value_of_the_wrong_type_is_named_with_its_key(folder, name):
    sections, message = WRONG[name]
    (folder / "job.toml").write_text(JOB.format(**{**GOOD, "model": 'name = "logistic_regression"', **sections}))
    with pytest.raises(ValueError) as caught:
        config.load(folder / "job.toml")
    assert message in str(caught.value)


@pytest.mark.parametrize("name", FORMULA)
def test_a_value_of_the_wrong_type_beside_a_formula(folder, name):
    value, message = FORMULA[name]
    model = value if name == "formula" else f'formula = "y ~ x"\n{value}'
    (folder / "job.toml").write_text(JOB.format(**{**GOOD, "model": model}).replace('target = "y"\n', ""))
    with pytest.raises(ValueError) as caught:
        config.load(folder / "job.toml")
    assert message in str(caught.value)


@pytest.mark.parametrize("value", ["[" * 5000, "{a = " * 5000, "9" * 5000])
def test_errors_of_unreadable_files_have_the_path(folder, value):
    (folder / "job.toml").write_text(f"[data]\nfiles = {value}\n")
    with pytest.raises(ValueError) as caught:
        config.load(folder / "job.toml")
    assert str(caught.value).startswith(f"{folder / 'job.toml'} is not valid TOML: ")


def test_seconds_of_a_silo_may_be_whole():
    assert config._build_silo({"timeout": 5}) == accord.Silo(timeout=5.0)
    with pytest.raises(ValueError, match=r"timeout in \[silo\] must be a finite number, found one of 400 digits"):
        config._build_silo({"timeout": 10**399})


def test_at_sites_is_true_or_false(folder):
    text = JOB.format(**{**GOOD, "model": 'name = "logistic_regression"'})
    (folder / "job.toml").write_text(text.replace("[model]", 'at_sites = "no"\n[model]'))
    with pytest.raises(ValueError, match=r"at_sites in \[data\] must be true or false, found 'no'"):
        config.load(folder / "job.toml")


def test_resources_of_agents_are_tables():
    section = {"resources": [{"site_a": 1}, {"site_b": 0.5}]}
    assert config._build_silo(section) == accord.Silo(resources=[{"site_a": 1}, {"site_b": 0.5}])
    for wrong in ("abc", ["abc"], {"site_a": 1}, [{"site_a": "x"}], [{"site_a": True}]):
        with pytest.raises(ValueError, match=r"resources in \[silo\] must be a list of tables of numbers"):
            config._build_silo({"resources": wrong})


@pytest.mark.parametrize("name", ["job.toml", "site-0.csv", "policy.toml"])
def test_a_byte_order_mark_is_no_part_of_a_file(folder, name):
    (folder / "policy.toml").write_text("rows = 5\n")
    text = JOB.format(**{**GOOD, "model": 'formula = "y ~ x"\nfamily = "bernoulli"'})
    (folder / "job.toml").write_text(text.replace('target = "y"\n', ""))
    path = folder / name
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert config.load(folder / "job.toml").agreed.columns.keys() == {"x", "y"}


MODEL = """
import jax.numpy as jnp, {helpers}, accord
def build(shards):
    log_likelihood = lambda x, rows: -0.5 * (rows[1] - x) ** 2
    return accord.Posterior(log_likelihood, {helpers}.log_prior, shards, 0.0)
"""


def test_a_run_of_an_edited_module_is_another_one(folder):
    own = re.sub(r"\W", "_", folder.name)
    source, helpers = MODEL.format(helpers=f"{own}_helpers"), folder / f"{own}_helpers.py"
    prior = "def log_prior(x):\n    return -0.5 * x**2\n"
    helpers.write_text(prior)
    assert [invoke(folder, source)[0].exit_code for _ in range(2)] == [0, 0]
    result, _ = invoke(folder, source + "# other\n")
    assert f"holds another run (with another module {own}): add --overwrite" in error_of(result)
    # and one that it imports
    helpers.write_text(prior + "# other\n")
    result, _ = invoke(folder, source)
    assert f"holds another run (with another module {own}_helpers): add --overwrite" in error_of(result)
    helpers.write_text(prior)
    assert invoke(folder, source)[0].exit_code == 0
