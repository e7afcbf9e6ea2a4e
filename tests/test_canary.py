"""A canary in bad cells appears in no error, cause, warning, output or file."""

import logging
import traceback
import warnings
from functools import partial

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import accord
from accord import models
from accord.base.errors import DataError, place_of, safe_text
from accord.cli.commands import app
from accord.data import Policy, as_study, at_sites, describe, study

TEXT, NUMBER = "zq7canary", 73313.25
SIGNS = (TEXT, "73313")

pytestmark = pytest.mark.filterwarnings("default::UserWarning")


def said(call, capfd=None):
    """All text of a call: its error with causes and contexts as Python prints them, warnings, logs and output."""
    records, failed = [], ""
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())
    logging.getLogger().addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                call()
            except Exception as error:
                failed = "".join(traceback.format_exception(error))
    finally:
        logging.getLogger().removeHandler(handler)
    output = "" if capfd is None else "".join(capfd.readouterr())
    # the source line of a raise is code, and holds no cell
    return failed, "\n".join([failed, *(str(one.message) for one in caught), *records, output])


def require_silent(text):
    for sign in SIGNS:
        assert sign not in text, text[max(0, text.index(sign) - 300) : text.index(sign) + 100]


def test_the_look_sees_causes_contexts_warnings_and_output(capfd):
    def cause():
        try:
            float(TEXT)
        except ValueError as error:
            raise RuntimeError("no more") from error

    def context():
        try:
            float(TEXT)
        except ValueError:
            raise RuntimeError("no more")  # noqa: B904

    calls = [cause, context, lambda: warnings.warn(TEXT, stacklevel=1), lambda: print(NUMBER), partial(float, TEXT)]
    for call in [*calls, lambda: logging.getLogger("jax").warning(TEXT)]:
        _, text = said(call, capfd)
        with pytest.raises(AssertionError):
            require_silent(text)


# --- files ---


def rows(count=12, seed=0):
    rng = np.random.default_rng(seed)
    return "".join(f"{x:.3f},{k % 2},{'ab'[k % 2]}\n" for k, x in enumerate(rng.normal(size=count)))


HEAD = "x,y,s\n"
# What is in the second file.
FILES = {
    "text": HEAD + rows() + f"{TEXT},1,a\n" + rows(),
    "response": HEAD + rows() + f"1.5,{TEXT},a\n",
    "infinite": HEAD + rows() + "1e999,1,a\n" + f"{NUMBER},0,b\n",
    "too long": HEAD + rows() + f"1.5,1,a,{TEXT}\n",
    "too short": HEAD + rows() + f"{TEXT}\n",
    "quote": HEAD + rows() + f'1.5,"{TEXT}\n',
    "no header": f"{TEXT},1,{NUMBER}\n" + rows(),
    "header twice": f"{TEXT},{TEXT},a\n" + rows(),
    "no UTF-8": (HEAD + rows() + f"1.5,1,{TEXT}").encode() + b"\xff\n",
    "no UTF-8 header": b"x,y," + TEXT.encode() + b"\xff\n" + rows().encode(),
    "constant": HEAD + "".join(f"{NUMBER},{k % 2},a\n" for k in range(12)),
    "endless": HEAD + rows() + "1.5,1," + TEXT + "x" * 200_000 + "\n",
    "response out of range": HEAD + rows() + f"1.5,{NUMBER},a\n" + rows(seed=1),
    "response below zero": HEAD + rows() + f"1.5,-{NUMBER},a\n" + rows(seed=1),
}
FILE_FAMILIES = ("gaussian", "bernoulli", "poisson")


@pytest.fixture
def good(tmp_path):
    path = tmp_path / "good.csv"
    path.write_text(HEAD + rows(seed=2))
    return path


@pytest.mark.parametrize("name", FILES)
def test_files(tmp_path, good, name):
    path = tmp_path / "bad.csv"
    content = FILES[name]
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    both, chosen = [good, path], {"target": "y", "columns": ["x"]}

    def matrix(files, columns=None, **options):
        return study(files, columns=columns and [*columns, "y"], policy=Policy(1), **options).matrix("y", columns)

    def regression(build):
        return build(study(both, columns=["x", "y"]).matrix("y", standardise=False).shards)

    def elsewhere():
        return models.logistic_regression(at_sites(both, **chosen).shards, names=("intercept", "x")).sizes

    def formula(family):
        return models.glm(study(both, formula="y ~ x + s"), "y ~ x + s", family)

    ways = {
        "matrix": lambda: matrix(both, ["x"]),
        "matrix alone": lambda: matrix([path], ["x"]),
        "matrix of all": lambda: matrix(both),
        "split": lambda: study(file=path, split="iid", agents=2, columns=["x", "y"]).matrix("y"),
        "at sites": elsewhere,
        "logistic": lambda: regression(models.logistic_regression),
        "poisson": lambda: regression(models.poisson_regression),
        "linear": lambda: regression(models.linear_regression),
        "study": lambda: study(both),
        "study of dates": lambda: study(both, dates={"x": "%Y-%m-%d"}),
        "study of words": lambda: study(both, positive={"s": "a"}),
        "study without": lambda: study(both, missing="drop"),
        "study of one file": lambda: study(file=path, site="s"),
        "describe": lambda: describe(both),
        **{family: partial(formula, family) for family in FILE_FAMILIES},
    }
    failures = {}
    for way, call in ways.items():
        failures[way], text = said(call)
        require_silent(text)
    # each raises an error somewhere, so the canary could have been in it
    assert any(failures.values())


def test_a_bad_cell_is_named_by_file_column_and_line(tmp_path):
    path = tmp_path / "north.csv"
    path.write_text(f"x,y\n1,0\n\n2,1\n{TEXT},1\n")
    with pytest.raises(DataError) as caught:
        study([path], policy=Policy(1))
    assert "north (north.csv): column 'x': line 5 has a text where others have numbers" in str(caught.value)


@pytest.mark.parametrize("command", ["run", "describe", "plan"])
@pytest.mark.parametrize("name", ["text", "response out of range", "no header", "quote", "no UTF-8", "header twice"])
@pytest.mark.parametrize("model", ['name = "logistic_regression"', 'formula = "y ~ x + s"\nfamily = "bernoulli"'])
def test_commands(tmp_path, good, command, name, model, capfd):
    content = FILES[name]
    (tmp_path / "sad.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    columns = '\ntarget = "y"\ncolumns = ["x"]' if "name" in model else ""
    (tmp_path / "job.toml").write_text(
        f'[data]\nfiles = "*.csv"{columns}\n[model]\n{model}\n[network]\nname = "path"\n[run]\noutput = "out"\n'
    )
    result = CliRunner().invoke(app, [command, str(tmp_path / "job.toml")])
    failed = "".join(traceback.format_exception(result.exception)) if result.exception else ""
    require_silent(result.output + failed + "".join(capfd.readouterr()))
    # a description leaves out what a study refuses
    assert result.exit_code == (0 if command == "describe" and name in ("response out of range", "text") else 1)


def test_what_a_run_writes_has_no_rows(tmp_path):
    rng = np.random.default_rng(3)
    for site in range(2):
        frame = pd.DataFrame({"x": rng.normal(size=15) + NUMBER, "y": np.arange(15) % 2, "s": [TEXT, "b", "c"] * 5})
        frame.loc[3, "x"] = NUMBER
        frame.to_csv(tmp_path / f"site-{site}.csv", index=False)
    (tmp_path / "job.toml").write_text(
        '[data]\nfiles = "*.csv"\ntarget = "y"\ncolumns = ["x"]\n[model]\nname = "logistic_regression"\n'
        '[network]\nname = "path"\n[run]\noutput = "out"\ndraws = 50\nchains = 2\ncheckpoint = "kept"\n'
    )
    result = CliRunner().invoke(app, ["run", str(tmp_path / "job.toml")])
    assert result.exit_code == 0, result.output
    # a mean of all rows would be its neighbour, and standardised rows are no longer the canary: raw ones must not be
    written = [path for folder in ("out", "kept") for path in (tmp_path / folder).rglob("*") if path.is_file()]
    assert {path.suffix for path in written} >= {".nc", ".csv", ".npz"}
    signs = [TEXT.encode(), np.float64(NUMBER).tobytes(), np.float32(NUMBER).tobytes(), b"73313.25"]
    for path in written:
        assert not any(sign in path.read_bytes() for sign in signs), path
    require_silent(result.output)


# --- in memory ---


def columns(**others):
    rng = np.random.default_rng(1)
    return {"x": rng.normal(size=20), "y": np.arange(20) % 2, "s": np.array(["a", "b"] * 10, object), **others}


NAMES = np.array([TEXT] * 10 + ["b"] * 10, object)
TABLES = {
    "object": {"x": np.array([1.0] * 19 + [TEXT], object)},
    "nested": {"x": [1.0] * 19 + [[TEXT]]},
    "series": {"x": pd.Series([1.0] * 19 + [TEXT])},
    "category": {"s": pd.Categorical(NAMES)},
    "names": {"s": NAMES},
    "far": {"y": np.r_[np.arange(19) % 2, NUMBER]},
    "below": {"y": np.r_[np.arange(19) % 2, -NUMBER]},
    "weights": {"w": np.full(20, -NUMBER)},
}
FORMULAS = ("y ~ x + s", "y ~ scale(s)", "y ~ np.log(s)", "y ~ I(s * 2)", "y ~ offset(s)", "s ~ x", "np.log(s) ~ x")


@pytest.mark.parametrize("name", TABLES)
def test_tables_in_memory(name):
    tables = [columns(**{"w": np.ones(20), **TABLES[name]}), columns(w=np.ones(20))]
    for call in (lambda: as_study(tables), lambda: as_study([pd.DataFrame(tables[0]), pd.DataFrame(tables[1])])):
        require_silent(said(call)[1])
    for formula in FORMULAS if name == "names" else FORMULAS[:1]:
        for family in ("gaussian", "bernoulli", "poisson", "beta"):
            require_silent(said(partial(models.glm, tables, formula, family))[1])
    for options in ({"weights": "w"}, {"weights": "s"}, {"exposure": "s"}, {"exposure": "w"}):
        require_silent(said(partial(models.glm, tables, "y ~ x", "poisson", **options))[1])


X = np.arange(10.0).reshape(5, 2)


def raising(error):
    raise error


SHARDS = {
    "label": lambda: (X, np.array([0, 0, 0, 0, NUMBER])),
    "below": lambda: (X, np.array([0, 0, 0, 0, -NUMBER])),
    "object": lambda: (X, np.array([0, 0, 0, 0, TEXT], object)),
    "texts": lambda: (np.array([[TEXT, "1"]] * 5), np.zeros(5)),
    "not finite": lambda: (np.full((5, 2), np.nan), np.full(5, NUMBER)),
    "no pair": lambda: TEXT,
    "conversion": lambda: (X, np.array([0, 0, 0, 0, TEXT], object).astype(float)),
    "key": lambda: {}[TEXT],
    "pandas": lambda: pd.to_numeric(pd.Series([TEXT])).to_numpy(),
    "loadtxt": lambda: np.loadtxt([TEXT]),
    "own words": lambda: raising(RuntimeError(f"there is {TEXT}")),
    "disk": lambda: raising(OSError(f"there is {TEXT}")),
    "cause": lambda: raising(ValueError(NUMBER)),
}


@pytest.mark.parametrize("build", [models.linear_regression, models.logistic_regression, models.poisson_regression])
@pytest.mark.parametrize("name", SHARDS)
def test_shards(build, name):
    source = SHARDS[name]
    failed, text = said(lambda: build([lambda: (X, np.zeros(5)), source], names=["a", "b"]).sizes)
    assert failed or (name in ("label", "below"))
    require_silent(text)
    if name in ("label", "below", "object", "texts", "not finite", "no pair"):
        require_silent(said(lambda: build([(X, np.zeros(5)), source()]))[1])


def likelihood(params, shard):
    return -((shard["x"] - params["m"]) ** 2)


def prior(params):
    return -(params["m"] ** 2)


def archives(folder):
    """Shards that are no archives of numbers."""
    (folder / "text.npz").write_bytes(TEXT.encode() * 50)
    np.savez(folder / "strings.npz", x=np.array([TEXT]))
    np.savez(folder / "objects.npz", x=np.array([TEXT], object))
    np.save(folder / "one.npy", np.array([NUMBER]))
    np.savez(folder / "other.npz", x=np.ones(3))
    whole = (folder / "other.npz").read_bytes()
    (folder / "broken.npz").write_bytes(whole.replace(b"'descr'", TEXT[:7].encode()))
    (folder / "torn.npz").write_bytes(whole[:-30])
    return ["text.npz", "strings.npz", "objects.npz", "one.npy", "broken.npz", "torn.npz", "nowhere.npz"]


def test_files_of_shards(tmp_path):
    for name in archives(tmp_path):
        posterior = accord.Posterior(likelihood, prior, [tmp_path / name], {"m": 0.0})
        failed, text = said(lambda posterior=posterior: posterior.sizes)
        assert "agent 0" in failed and (name == "strings.npz" or name in failed)
        require_silent(text)


def test_arrays_of_a_posterior():
    shards = [np.array([NUMBER, np.nan]), np.array([TEXT]), np.array([1.0, TEXT], object), [1.0, TEXT]]
    for values in [*shards, np.array([73313 * 10**9])]:
        failed, text = said(partial(accord.Posterior, likelihood, prior, [{"x": values}], {"m": 0.0}))
        assert failed
        require_silent(text)


# --- models of other libraries ---

ARGUMENTS = {
    "texts": {"x": np.array([TEXT] * 5)},
    "objects": {"x": np.array([1, 2, 3, 4, TEXT], object)},
    "list": {"x": [1, 2, 3, 4, TEXT]},
    "response": {"y": np.array([TEXT] * 5)},
    "text": {"x": TEXT},
    "number": {"x": NUMBER},
    "not finite": {"x": np.array([NUMBER, np.nan, 1, 1, 1])},
    "below": {"y": np.full(5, -NUMBER)},
    "fraction": {"g": np.array([0, 1, NUMBER, 1, 1])},
    "member": {"g": np.array([0, 1, 73313, 1, 1])},
    "names": {"g": np.array([TEXT] * 5)},
}


def arguments(**others):
    return {"x": np.arange(5.0), "y": np.ones(5), "g": np.array([0, 0, 1, 1, 1]), **others}


def numpyro_model(x, y, g):
    import numpyro
    import numpyro.distributions as dist

    slope = numpyro.sample("slope", dist.Normal(0, 1))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Poisson(jnp.exp(slope * x + jnp.zeros(2)[g])), obs=y)


# Those that compile nothing are quick.
QUICK = ("objects", "text", "names")
EACH = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in ARGUMENTS]


@pytest.mark.parametrize("name", EACH)
def test_a_model_of_numpyro(name):
    own, other = arguments(**ARGUMENTS[name]), arguments()
    require_silent(said(lambda: accord.from_numpyro(numpyro_model, [own, other]))[1])
    require_silent(said(lambda: accord.from_numpyro(numpyro_model, [lambda: own, other], example=other).sizes)[1])


@pytest.fixture(scope="module")
def pymc_model():
    pymc = pytest.importorskip("pymc")
    with pymc.Model() as model:
        data = {name: pymc.Data(name, value) for name, value in arguments().items()}
        level, slope = pymc.Normal("level", shape=2), pymc.Normal("slope")
        pymc.Normal("seen", level[data["g"]] + slope * data["x"], 1.0, observed=data["y"])
    return model


@pytest.mark.parametrize("name", EACH)
def test_a_model_of_pymc(pymc_model, name):
    own, other = arguments(**ARGUMENTS[name]), arguments()
    require_silent(said(lambda: accord.from_pymc(pymc_model, [own, other]))[1])
    require_silent(said(lambda: accord.from_pymc(pymc_model, [lambda: own, other], example=other).sizes)[1])


# --- error messages without data ---


def test_other_errors_are_described_by_type_and_line():
    def unlucky():
        return int(TEXT)

    try:
        unlucky()
    except ValueError as error:
        found = safe_text(error)
    line = unlucky.__code__.co_firstlineno + 1
    assert found == f"ValueError in unlucky, line {line} of {__file__} (its text may quote data)"
    assert safe_text(DataError("line 3 of it")) == "line 3 of it"
    assert safe_text(FileNotFoundError(2, "No such file", "a.csv")) == "FileNotFoundError: No such file: a.csv"
    assert place_of(ValueError()) == ""
