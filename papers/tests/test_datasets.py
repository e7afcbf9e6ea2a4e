"""Data sets from a folder or scikit-learn: checks of arrays, and errors for missing data."""

import sys
from urllib.error import URLError

import numpy as np
import pytest
import sklearn.datasets
from typer.testing import CliRunner

from accord.cli.commands import app
from accord_papers import datasets, experiments
from accord_papers.experiments.frame import Claim, Experiment, Size
from accord_papers.experiments.verdicts import Verdict


def digits(rows=20):
    rng = np.random.default_rng(0)
    names = {"train": rows, "test": rows // 2}
    pictures = {f"x_{part}": rng.integers(256, size=(n, 28, 28)).astype(np.uint8) for part, n in names.items()}
    return {**pictures, **{f"y_{part}": rng.integers(10, size=n).astype(np.int64) for part, n in names.items()}}


def covers(rows=20):
    rng = np.random.default_rng(1)
    return {"X": rng.integers(-173, 7173, size=(rows, 54)).astype(np.int16), "y": rng.integers(1, 8, size=rows)}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.delenv("ACCORD_DATA", raising=False)
    np.savez(tmp_path / "mnist.npz", **digits())
    np.savez(tmp_path / "covtype.npz", **covers(), more=np.arange(3))
    return tmp_path


def test_a_folder_comes_from_an_argument_or_the_environment(folder, monkeypatch):
    given = datasets.mnist(folder)
    for name, array in digits().items():
        found = getattr(given, name)
        assert found.dtype == np.uint8
        np.testing.assert_array_equal(found, array)
    monkeypatch.setenv("ACCORD_DATA", str(folder))
    X, y = datasets.covtype()
    assert (X.dtype, y.dtype) == (np.float32, np.uint8)
    np.testing.assert_array_equal(X, covers()["X"])
    np.testing.assert_array_equal(y, covers()["y"])
    # the argument has priority
    with pytest.raises(datasets.DatasetError, match="covtype: .*elsewhere.covtype.npz does not exist.*arrays X, y"):
        datasets.covtype(folder / "elsewhere")


@pytest.mark.parametrize(
    ("read", "arrays", "message"),
    [
        (datasets.mnist, {"x_train": np.zeros((2, 28, 28))}, "must hold the arrays x_train, y_train, x_test, y_test"),
        (datasets.mnist, {**digits(), "x_test": np.zeros((10, 784))}, r"mnist: x_test .* found shapes \(10, 784\)"),
        (datasets.mnist, {**digits(), "x_train": digits()["x_train"] / 255.0}, "x_train must be .* from 0 to 255"),
        (datasets.mnist, {**digits(), "y_train": np.full(20, 10)}, "y_train their digits"),
        (datasets.mnist, {**digits(), "y_test": digits()["y_test"][1:]}, r"\(9,\)"),
        (datasets.covtype, {**covers(), "y": np.zeros(20, int)}, "covtype: .* types .* from 1 to 7"),
        (datasets.covtype, {**covers(), "X": np.full((20, 54), np.nan)}, "finite numbers"),
        (datasets.covtype, {**covers(), "X": np.zeros((20, 10))}, r"\(20, 10\)"),
        (datasets.covtype, {"X": np.zeros((0, 54)), "y": np.zeros(0, int)}, r"\(0, 54\)"),
        (datasets.covtype, {**covers(), "X": np.full((20, 54), "a")}, "finite numbers"),
        (datasets.covtype, {**covers(), "y": np.array([None] * 20)}, "could not be read as an .npz file"),
    ],
)
def test_wrong_arrays_are_named(tmp_path, read, arrays, message):
    np.savez(tmp_path / f"{read.__name__}.npz", **arrays)
    with pytest.raises(datasets.DatasetError, match=message):
        read(tmp_path)


def test_a_file_that_is_not_npz_is_refused(tmp_path):
    (tmp_path / "covtype.npz").write_text("a page that says 404")
    with pytest.raises(datasets.DatasetError, match=r"covtype.npz could not be read as an .npz file"):
        datasets.covtype(tmp_path)


def test_without_a_folder_scikit_learn_fetches(monkeypatch):
    monkeypatch.delenv("ACCORD_DATA", raising=False)
    requested = {}

    def fetch_openml(name, **options):
        requested[name] = options
        pictures = np.concatenate([digits()["x_train"], digits()["x_test"]]).reshape(30, 784).astype(float)
        return pictures, np.concatenate([digits()["y_train"], digits()["y_test"]]).astype(str).astype(object)

    monkeypatch.setattr(sklearn.datasets, "fetch_openml", fetch_openml)
    monkeypatch.setattr(sklearn.datasets, "fetch_covtype", lambda return_X_y: (covers()["X"] * 1.0, covers()["y"]))
    monkeypatch.setattr(datasets, "_TRAINING", 20)
    for name, array in digits().items():
        np.testing.assert_array_equal(getattr(datasets.mnist(), name), array)
    assert requested == {"mnist_784": {"version": 1, "as_frame": False, "return_X_y": True}}
    np.testing.assert_array_equal(datasets.covtype().X, covers()["X"])


@pytest.mark.parametrize("error", [URLError("no route to host"), ConnectionResetError("reset"), ValueError("bad md5")])
def test_a_failed_download_names_the_folder(monkeypatch, error):
    def fetch(**options):
        raise error

    monkeypatch.delenv("ACCORD_DATA", raising=False)
    monkeypatch.setattr(sklearn.datasets, "fetch_covtype", fetch)
    with pytest.raises(
        datasets.DatasetError, match=f"could not be fetched .{type(error).__name__}.*set ACCORD_DATA to"
    ):
        datasets.covtype()


def test_without_scikit_learn_the_remedies_are_named(monkeypatch):
    monkeypatch.delenv("ACCORD_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    monkeypatch.delattr("sklearn.datasets")
    with pytest.raises(ImportError, match=r"pip install accord-papers.* set ACCORD_DATA to a folder with mnist.npz"):
        datasets.mnist()


@pytest.fixture
def trials(monkeypatch):
    size = Size(minutes=0.1, memory=0.1, numbers={})

    def needing(size, seed, folder, progress):
        return [Claim("x", f"{len(datasets.covtype().y)} rows", Verdict.HOLDS, "counted")]

    def other(size, seed, folder, progress):
        return [Claim("x", "needs nothing", Verdict.HOLDS, "so it is")]

    made = {"needing": needing, "other": other}
    found = {name: Experiment(name, name, name, name, {"small": size}, run) for name, run in made.items()}
    monkeypatch.setattr(experiments, "EXPERIMENTS", found)


def reproduce(*arguments):
    return CliRunner().invoke(app, ["reproduce", *map(str, arguments)], env={"COLUMNS": "150"})


def test_the_command_reads_its_data_folder(folder, tmp_path, trials):
    result = reproduce("needing", "--output", tmp_path / "out", "--data", folder)
    assert result.exit_code == 0 and "20 rows" in result.stdout, result.output
    # the environment is unchanged
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "sklearn.datasets", None)
        patch.delattr("sklearn.datasets")
        result = reproduce("needing", "--output", tmp_path / "out")
    assert result.exit_code == 1 and "set ACCORD_DATA" in result.stderr


def test_all_makes_the_experiments_with_data(tmp_path, trials):
    result = reproduce("all", "--output", tmp_path / "out", "--data", tmp_path)
    assert result.exit_code == 1
    assert "the files of needing are unchanged: covtype: " in result.stderr
    assert "data or packages are missing for needing" in result.stderr
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["other"]
    result = reproduce("needing", "--output", tmp_path / "out", "--data", tmp_path)
    assert result.exit_code == 1 and result.stderr.startswith("error: covtype: ")
