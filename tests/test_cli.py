"""`accord run` on files: what it prints and writes, and one clear line for each mistake."""

import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import typer
import xarray as xr
from screens import in_terminal, piped, shown
from typer.testing import CliRunner

import accord
from accord.cli import commands, config
from accord.cli.commands import app
from accord.results.run import Traffic
from accord.samplers.by_sums.method import BySums

# the command prints warnings
pytestmark = pytest.mark.filterwarnings("default::UserWarning")

EXAMPLES = Path(__file__).parents[1] / "examples"
EXAMPLE = EXAMPLES / "hospitals" / "config.toml"

CONFIG = """
[data]
{data}
[model]
{model}
[network]
{network}
[method]
{method}
[run]
{run}
"""

GOOD = {
    "data": 'files = "site-*.csv"\ntarget = "y"',
    "model": 'name = "logistic_regression"\nprior_variance = 2.0',
    "network": 'name = "path"',
    "method": 'name = "DESGLD"\nstep_size = 0.02',
    "run": 'draws = 20\nburn_in = 5\nchains = 2\nseed = 1\noutput = "out"',
}


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for site in range(3):
        X = rng.normal(size=(6 + site, 2))
        frame = pd.DataFrame({"dose": X[:, 0], "age": X[:, 1], "y": (X[:, 0] > 0).astype(int)})
        frame.to_csv(tmp_path / f"site-{site}.csv", index=False)
    return tmp_path


def invoke(folder, *arguments, **sections):
    path = folder / "job.toml"
    path.write_text(CONFIG.format(**{**GOOD, **sections}))
    return CliRunner().invoke(app, ["run", str(path), *arguments], env={"COLUMNS": "100"})


def test_a_run_prints_the_table_and_writes_its_files(folder):
    result = invoke(folder)
    assert result.exit_code == 0, result.output
    for word in ("intercept", "dose", "age", "ESS", "R-hat", "5%", "95%", "average", "worst agent", "25 rounds"):
        assert word in result.stdout
    run = accord.Run.load(folder / "out" / "run.nc")
    assert run.draws.shape == (2, 20, 3, 3)
    assert run.names == ("intercept", "dose", "age")
    with xr.open_datatree(folder / "out" / "run.nc", engine="h5netcdf") as tree:
        assert tree["posterior"]["age"].dims[:3] == ("chain", "draw", "agent")
    table = pd.read_csv(folder / "out" / "summary.csv", index_col="parameter")
    # six digits
    np.testing.assert_allclose(table["average mean"], run.average.astype(float).mean(axis=(0, 1)), rtol=1e-5)
    assert set(table["worst agent"]) <= {"site-0", "site-1", "site-2"}
    assert (folder / "out" / "config.toml").read_text() == (folder / "job.toml").read_text()


def test_the_draws_are_those_of_the_library(folder):
    assert invoke(folder, "--quiet").exit_code == 0
    table = accord.data.study(str(folder / "site-*.csv"), policy=accord.data.Policy.none()).matrix("y")
    post = accord.models.logistic_regression(table.shards, prior_variance=2.0)
    run = accord.sample(
        post, accord.Network.path(3), accord.Rounds(accord.samplers.DESGLD(0.02), burn_in=5), draws=20, chains=2, seed=1
    )
    np.testing.assert_array_equal(accord.Run.load(folder / "out" / "run.nc").draws, run.draws)


@pytest.mark.long
def test_the_engine_is_an_option(folder):
    assert invoke(folder, "--quiet", "--engine", "mesh").exit_code == 0
    mesh = accord.Run.load(folder / "out" / "run.nc")
    assert invoke(folder, "--quiet", "--output", str(folder / "more")).exit_code == 0
    local = accord.Run.load(folder / "more" / "run.nc")
    np.testing.assert_allclose(mesh.draws, local.draws, rtol=1e-5, atol=1e-5)
    result = invoke(folder, "--engine", "mash", "--output", str(folder / "other"))
    assert result.exit_code == 1 and "unknown engine 'mash', did you mean 'mesh'" in result.stderr


SMALL = {
    "DASG": "step_size = 0.02\nmomentum = 0.5",
    "DESGHMC": "step_size = 0.02\nfriction = 1.0",
    "DULA": "step_size = {schedule = 'diminishing', first = 0.002}\nconsensus_step = 0.1",
    "AsynchronousULA": "step_size = 0.002\nconsensus_step = 0.1",
    "EventTriggeredULA": "step_size = 0.002\nconsensus_step = 0.1\nthreshold = 0.1",
    "GTBAOAB": "step_size = 0.05\nfriction = 1.0",
    "SplitGTBAOAB": "step_size = 0.05\nfriction = 1.0",
    "GTDULA": "step_size = 0.002\nconsensus_step = 0.1\ntracking_step = 0.1",
    "DADMMS": "rho = 5.0",
    "ProximalDESGLD": "step_size = 0.002\nconstraint = 'positive'",
    "Gibbs": "eta = 0.1\nconditional = 'mala'",
    "GCMC": "rho = 0.1\ntolerances = [1.0, 0.3]\nrounds_per_tolerance = 2",
    "HubSGLD": "step_size = 0.01\nlocal_steps = [1, 2, 3]",
    "FSGLD": "step_size = 0.01\nlocal_steps = [1, 2, 3]",
    "Replicated": "kernel = 'mala'\nwarmup = 5",
    # methods that cannot choose a step
    **dict.fromkeys(("DMAHMC", "ELF", "QLSD"), "step_size = 0.02"),
}


# methods without rounds have no burn-in, which the file gives
WALK = [name for name in accord.samplers.__all__ if not issubclass(getattr(accord.samplers, name), BySums)]


@pytest.mark.parametrize("name", WALK)
def test_every_method_is_built_from_a_file(folder, name):
    path = folder / "job.toml"
    path.write_text(CONFIG.format(**{**GOOD, "method": f'name = "{name}"\n' + SMALL.get(name, "step_size = 0.02")}))
    job = config.load(path)
    assert job.title.endswith(f"<Network.path(3): 3 agents, 2 edges> by {name}")


@pytest.mark.slow
@pytest.mark.parametrize("name", WALK)
def test_every_method_runs_from_a_file(folder, name):
    result = invoke(folder, "--quiet", method=f'name = "{name}"\n' + SMALL.get(name, ""))
    assert result.exit_code == 0, result.output
    assert accord.Run.load(folder / "out" / "run.nc").draws.shape == (2, 20, 3, 3)


@pytest.mark.parametrize("method", ["name = 'Importance'\nbatch = 200", "name = 'ChEES'\nlockstep = 32", None])
@pytest.mark.long_from(1)
def test_methods_without_rounds_run_from_a_file(folder, method):
    path = folder / "job.toml"
    text = CONFIG.format(**{**GOOD, "method": method or "", "run": GOOD["run"].replace("burn_in = 5\n", "")})
    path.write_text(text if method else text.replace("[method]\n", ""))
    result = CliRunner().invoke(app, ["run", str(path), "--quiet"])
    assert result.exit_code == 0, result.output
    run = accord.Run.load(folder / "out" / "run.nc")
    assert run.draws.shape == (2, 20, 3, 3) and run.certificate is not None


@pytest.mark.long
@pytest.mark.parametrize("name", ["consensus", "median"])
def test_one_shot_methods_run_from_a_file_without_a_network(folder, name):
    run = 'draws = 20\nchains = 2\nseed = 1\noutput = "out"'
    sections = {**GOOD, "method": f'name = "{name}"\nwarmup = 200', "run": run}
    path = folder / "job.toml"
    path.write_text(CONFIG.replace("[network]\n{network}\n", "").format(**sections))
    result = CliRunner().invoke(app, ["run", str(path)], env={"COLUMNS": "100"})
    assert result.exit_code == 0, result.output
    assert f"each shard separately, by {name}" in result.stdout
    assert accord.Run.load(folder / "out" / "run.nc").draws.shape == (2, 20, 3, 3)
    sections["run"] = run + "\nburn_in = 5"
    path.write_text(CONFIG.format(**sections))
    result = CliRunner().invoke(app, ["run", str(path)])
    assert result.exit_code == 1 and "unknown key of [run] 'burn_in'" in result.stderr


def test_quiet_prints_nothing_but_warnings(folder):
    result = invoke(folder, "--quiet")
    assert (result.exit_code, result.stdout) == (0, "")
    lines = result.stderr.splitlines()
    assert all(line.startswith("warning: ") for line in lines)
    # each warning appears once and names the sites
    assert len(lines) == len(set(lines)) == 3
    assert "at site-" in lines[0] and lines[1].startswith("warning: ESS is") and "disagree: site-" in lines[2]


def test_one_file_with_a_split_rule_and_a_schedule(folder):
    whole = pd.concat([pd.read_csv(folder / f"site-{site}.csv") for site in range(3)])
    whole.to_csv(folder / "all.csv", index=False)
    result = invoke(
        folder,
        data='file = "all.csv"\nsplit = "by-column"\ncolumn = "age"\nagents = 4\ntarget = "y"',
        network='name = "erdos_renyi"\np = 0.9\nseed = 0',
        method='name = "DULA"\nstep_size = {a = 0.01, b = 2.0, chi = 0.6}\nconsensus_step = 0.2\nnoise = "common"',
    )
    assert result.exit_code == 0, result.output
    assert accord.Run.load(folder / "out" / "run.nc").draws.shape == (2, 20, 4, 3)


def test_a_custom_model(folder):
    (folder / "mymodel.py").write_text(
        "import accord\n\ndef build(shards, scale):\n"
        "    return accord.models.linear_regression(shards, noise_scale=scale)\n"
    )
    result = invoke(folder, model='name = "mymodel:build"\nscale = 2.0')
    assert result.exit_code == 0, result.output


@pytest.mark.long
def test_a_custom_method_runs_from_a_file(folder):
    shutil.copy(EXAMPLES / "new_method" / "my_method.py", folder)
    result = invoke(folder, method='name = "my_method:MyMethod"\nstep_size = 0.02')
    assert result.exit_code == 0, result.output
    assert "edges> by MyMethod" in result.stdout
    own = accord.Run.load(folder / "out" / "run.nc").draws
    # the file to copy is DE-SGLD
    assert invoke(folder, "--quiet", "--output", str(folder / "again")).exit_code == 0
    np.testing.assert_array_equal(own, accord.Run.load(folder / "again" / "run.nc").draws)


@pytest.mark.long
def test_a_custom_method_is_planned(folder):
    shutil.copy(EXAMPLES / "new_method" / "my_method.py", folder)
    own = config.tunable_methods(["my_method:MyMethod"], folder)
    assert [(type(method).__name__, method.noise, method.left_out) for method in own] == [
        ("MyMethod", "independent", ("step_size",)),
        ("MyMethod", "common", ("step_size",)),
    ]
    path = folder / "job.toml"
    sections = {
        **GOOD,
        "model": 'name = "linear_regression"\nnoise_scale = 1.0',
        "method": 'name = "my_method:MyMethod"',
    }
    path.write_text(CONFIG.format(**sections))
    options = ["--only", "DESGLD", "--table", str(folder / "plan.csv")]
    result = CliRunner().invoke(app, ["plan", str(path), *options], env={"COLUMNS": "150"})
    assert result.exit_code == 0, result.output
    table = pd.read_csv(folder / "plan.csv").set_index("method")
    assert set(table.index) == {"MyMethod, independent noise", "DESGLD, independent noise", "DESGLD, common noise"}
    columns = ["whitened", "meets", "bias", "average_bias", "rounds", "exchanges", "bytes_sent"]
    mine, theirs = (table.loc[f"{name}, independent noise", columns].astype(float) for name in ("MyMethod", "DESGLD"))
    assert np.isfinite(mine["bias"]).sum() > 3
    np.testing.assert_allclose(mine, theirs, rtol=1e-12)


@pytest.mark.parametrize("command", ["run", "plan"])
def test_a_method_that_cannot_be_loaded_is_one_line(folder, command):
    (folder / "broken_method.py").write_text("1 / 0\n")
    path = folder / "job.toml"
    path.write_text(CONFIG.format(**{**GOOD, "method": 'name = "broken_method:Mine"'}))
    result = CliRunner().invoke(app, [command, str(path)])
    assert result.exit_code == 1
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    place = f"ZeroDivisionError in <module>, line 1 of {folder / 'broken_method.py'}"
    assert line == f"error: method 'broken_method:Mine' cannot be loaded: {place}: division by zero"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere:Mine", "method 'nowhere:Mine' cannot be loaded: ModuleNotFoundError"),
        ("accord.samplers:DASG", "method 'accord.samplers:DASG' must inherit from Tunable"),
        ("DESGDL", "unknown method 'DESGDL', did you mean 'DESGLD'?"),
    ],
)
def test_only_tunable_methods_are_planned(folder, name, message):
    path = folder / "job.toml"
    path.write_text(CONFIG.format(**GOOD))
    result = CliRunner().invoke(app, ["plan", str(path), "--only", name])
    assert result.exit_code == 1
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert message in line


def test_the_example_runs(tmp_path):
    result = CliRunner().invoke(app, ["run", str(EXAMPLE), "--output", str(tmp_path / "deep" / "results")])
    assert (result.exit_code, result.stderr) == (0, "")
    table = pd.read_csv(tmp_path / "deep" / "results" / "summary.csv", index_col="parameter")
    # the data were made with recovery rising with the dose and falling with age
    assert table.loc["dose", "average 5%"] > 0 > table.loc["age", "average 95%"]


def test_another_run_is_never_overwritten(folder):
    assert invoke(folder, "--quiet").exit_code == 0
    before = (folder / "out" / "run.nc").read_bytes()
    result = invoke(folder, run='draws = 6\nburn_in = 0\noutput = "out"')
    assert result.exit_code == 1
    assert "holds another run (draws in [run] is 6, and was " in result.stderr
    assert (folder / "out" / "run.nc").read_bytes() == before


@pytest.mark.long
def test_a_diverging_run_keeps_its_draws(folder):
    result = invoke(
        folder,
        model='name = "poisson_regression"',
        method='name = "DESGLD"\nstep_size = 3.0\ntemperature = 50.0',
        run='draws = 5000\nburn_in = 0\nchains = 1\nseed = 0\noutput = "out"',
    )
    assert result.exit_code == 1
    assert "became non-finite in round" in result.stderr
    assert "DESGLD is stable for step_size below" in result.stderr
    assert np.isfinite(accord.Run.load(folder / "out" / "run.nc").draws).all()


BAD = {
    "method": ({"method": 'name = "DESGDL"\nstep_size = 0.1'}, "unknown method 'DESGDL', did you mean 'DESGLD'?"),
    "number": (
        {"method": 'name = "DESGLD"\nstepsize = 0.1'},
        "unknown number of DESGLD 'stepsize', did you mean 'step_size'?",
    ),
    "missing number": (
        {"method": 'name = "DASG"\nstep_size = 0.1'},
        "method DASG: missing a required argument: 'momentum'",
    ),
    "schedule": ({"method": 'name = "DESGLD"\nstep_size = {a = 1.0, c = 2.0}'}, "schedule step_size of DESGLD"),
    "network": ({"network": 'name = "rng"'}, "unknown network 'rng', did you mean 'ring'?"),
    "model": ({"model": 'name = "logistic"'}, "unknown model 'logistic', did you mean 'logistic_regression'?"),
    "module": ({"model": 'name = "nowhere:build"'}, "'nowhere:build' cannot be loaded"),
    "method module": ({"method": 'name = "nowhere:Mine"'}, "method 'nowhere:Mine' cannot be loaded: ModuleNotFound"),
    "method class": ({"method": 'name = "json:Mine"'}, "module 'json' has no attribute 'Mine'"),
    "no method": (
        {"method": 'name = "json:JSONDecoder"'},
        "method 'json:JSONDecoder' must be a subclass of accord.Sampler, found <class 'json.decoder.JSONDecoder'>",
    ),
    "no class": ({"method": 'name = "json:dumps"'}, "method 'json:dumps' must be a subclass of accord.Sampler"),
    "outside number": (
        {"method": 'name = "accord.samplers:DESGLD"\nstepsize = 0.1'},
        "unknown number of accord.samplers:DESGLD 'stepsize', did you mean 'step_size'?",
    ),
    "model number": (
        {"model": 'name = "logistic_regression"\nvariance = 1.0'},
        "unexpected keyword argument 'variance'",
    ),
    "whiten": ({"run": 'whiten = "yes"\noutput = "out"'}, "whiten in [run] must be true or false, found 'yes'"),
    "draws": ({"run": 'draws = 0\noutput = "out"'}, "draws in [run] must be a whole number >= 1, found 0"),
    "negative draws": ({"run": 'draws = -5\noutput = "out"'}, "found -5"),
    "run key": ({"run": 'drws = 5\noutput = "out"'}, "unknown key of [run] 'drws', did you mean 'draws'?"),
    "output": ({"run": "draws = 5"}, "[run] must name an output folder"),
    "data key": ({"data": 'file = "site-0.csv"\ntarget = "y"\nagnts = 3'}, "did you mean 'agents'?"),
    "policy key": ({"data": 'files = "site-*.csv"\ntarget = "y"\npolicy = {row = 5}'}, "did you mean 'rows'?"),
    "target": ({"data": 'files = "site-*.csv"'}, "[data] must have the key 'target'"),
    "column": ({"data": 'files = "site-*.csv"\ntarget = "yy"'}, "unknown column 'yy', did you mean 'y'?"),
    "labels": (
        {"data": 'files = "site-*.csv"\ntarget = "age"'},
        "labels of a logistic regression must be 0 or 1, agent 0 (site-0) has",
    ),
    "glob": ({"data": 'files = "nothing-*.csv"\ntarget = "y"'}, "no file matches"),
    "toml": ({"data": "files = = 3"}, "is not valid TOML"),
    "step": ({"method": 'name = "DESGLD"\nstep_size = -1.0'}, "step_size must be a finite number > 0, found -1.0"),
    "unstable": (
        {"model": 'name = "linear_regression"\nnoise_scale = 1.0', "method": 'name = "DESGLD"\nstep_size = 30.0'},
        "the stability bound of DESGLD",
    ),
}


def test_the_floors_of_a_policy_hold_for_a_target(folder):
    result = invoke(folder, data='files = "site-*.csv"\ntarget = "y"\npolicy = {rows = 1000}')
    assert result.exit_code == 1 and result.stderr.count("fewer than 1000 rows") == 3


@pytest.mark.parametrize("name", BAD)
def test_a_mistake_is_one_line_and_nothing_is_written(folder, name):
    sections, message = BAD[name]
    result = invoke(folder, **sections)
    assert result.exit_code == 1
    # one line without a traceback
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert message in line
    assert "Traceback" not in result.output
    assert not (folder / "out" / "run.nc").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("dose,age,y\n", "site-1.csv"),
        ('dose,age,y\n1,"2\n', "site-1.csv"),
        ("dose,age,y\n1,nan,0\n", "site-1.csv"),
    ],
    ids=["empty", "header", "broken", "nan"],
)
def test_a_bad_csv_is_named(folder, content, message):
    (folder / "site-1.csv").write_text(content)
    result = invoke(folder)
    assert result.exit_code == 1
    assert message in result.stderr
    assert "site-1.csv" in result.stderr


def test_a_missing_config_and_a_missing_section(folder):
    result = CliRunner().invoke(app, ["run", str(folder / "none.toml")])
    assert (result.exit_code, "no such config file" in result.stderr) == (1, True)
    (folder / "half.toml").write_text('[data]\nfile = "a.csv"\n')
    result = CliRunner().invoke(app, ["run", str(folder / "half.toml")])
    assert (result.exit_code, "must have a [model] section" in result.stderr) == (1, True)
    (folder / "typo.toml").write_text("[dta]\n")
    result = CliRunner().invoke(app, ["run", str(folder / "typo.toml")])
    assert "unknown section 'dta', did you mean 'data'?" in result.stderr


COMMANDS = typer.main.get_command(app).commands


def words(text):
    """Text without boxes and line breaks."""
    return " ".join(text.replace("│", " ").split())


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_is_complete(command):
    out = words(CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "80"}).stdout)
    for text in (COMMANDS[command].help, *(parameter.help for parameter in COMMANDS[command].params)):
        assert words(text) in out
    assert words(COMMANDS[command].help) in words(CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"}).stdout)


@pytest.mark.long
def test_the_help_is_the_same_in_a_terminal_and_in_a_pipe():
    section = "TOML file with the sections data, model, network, method and run."
    terminal, pipe = (words(text) for text in ("\n".join(in_terminal(80, "run", "--help")), piped("run", "--help")))
    assert section in terminal
    # the environment of the pipe has 40 columns
    assert section in pipe


def characters(text):
    return Counter("".join(text.split()))


@pytest.mark.parametrize("columns", [60, 80, 100, 200])
def test_a_summary_fits_the_terminal_and_100_columns_of_a_pipe(columns, monkeypatch, capsys):
    names = ("intercept", "dose[mg] of the new medicine per kilogram of body weight :pill:")
    sites = ["university hospital of the northern region, ward 12", "south"]
    draws = np.random.default_rng(0).standard_normal((4, 1000, 2)) * [1.0, 1e-6]
    kept = np.repeat(draws[:, :, None], 2, axis=2) + np.array([[1e-3], [0.0]])
    run = accord.Run(
        draws,
        np.arange(2),
        kept,
        {"consensus_error": np.zeros((4, 1000))},
        names,
        (("x", (2,)),),
        Traffic(1000, 1000, np.full(2, 4000), np.full(2, 10)),
        1.0,
    )
    with pytest.warns(UserWarning):
        summary = run.summary(sites)
    commands._report(run, summary)
    pipe = capsys.readouterr().out
    table = pipe.splitlines()
    # the table is at most 100 columns wide, and the line of costs is not folded
    assert max(map(len, table[:-1])) <= 100 and table[1].startswith("intercept") and "…" not in pipe
    assert "1,000 rounds in 1.0 s" in table[-1] and "consensus error" in table[-1]
    lines = "\n".join(shown(monkeypatch, columns, commands._report, run, summary))
    if columns > 60:
        numbers = [token for token in pipe.split() if token[-1].isdigit() and "." in token]
        assert len(numbers) >= 20 and not Counter(numbers) - Counter(lines.split())
    # a table with both blocks has the names of the parameters once
    assert characters(lines + "".join(names if columns > 100 else ())) == characters(pipe)


def test_a_table_shows_equal_agents_once(capsys):
    run = accord.sample(accord.models.gaussian([-1.0, 0.0, 1.0], [1.0] * 3), accord.Network.ring(3), draws=200)
    commands._report(run, run.table())
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["all", "agents", "mean", "sd", "5%", "95%", "ESS", "R-hat"]
    assert len(lines[1].split()) == 7 and "certified" in lines[-1]


def test_version():
    result = CliRunner().invoke(app, ["--version"])
    assert result.stdout == f"accord {accord.__version__}\n"
