"""Public data sets for figures of the papers: from a folder of `.npz` files, or downloaded by scikit-learn."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32, UInt8

# Environment variable with the default folder.
FOLDER = "ACCORD_DATA"
_TRAINING = 60_000  # training rows, the first of OpenML's 70,000


class DatasetError(ValueError):
    """Raised if a data set is missing, invalid, or cannot be downloaded."""


class Digits(NamedTuple):
    """MNIST: images with pixels from 0 to 255, and their digits from 0 to 9."""

    x_train: UInt8[np.ndarray, "row 28 28"]
    y_train: UInt8[np.ndarray, " row"]
    x_test: UInt8[np.ndarray, "row 28 28"]
    y_test: UInt8[np.ndarray, " row"]


class Covers(NamedTuple):
    """Covertype: 54 columns for each patch of forest, and its type from 1 to 7."""

    X: Float32[np.ndarray, "row 54"]
    y: UInt8[np.ndarray, " row"]


def mnist(folder: str | Path | None = None) -> Digits:
    """The handwritten digits MNIST.

    Parameters
    ----------
    folder
        Folder with `mnist.npz`, which has the arrays x_train, y_train, x_test and y_test. None: the folder in the
        environment variable ACCORD_DATA. If it is not set, scikit-learn downloads and caches "mnist_784" from OpenML.

    Raises
    ------
    DatasetError
        The file is missing or invalid, or the download failed.
    ImportError
        Without a folder: scikit-learn is missing.
    """
    found = _found("mnist", folder, Digits._fields, _fetch_mnist)
    for part in ("train", "test"):
        pictures, labels = found[f"x_{part}"], found[f"y_{part}"]
        shaped = pictures.ndim == 3 and pictures.shape[1:] == (28, 28) and labels.shape == pictures.shape[:1]
        if not (shaped and len(labels) and _whole_between(pictures, 0, 255) and _whole_between(labels, 0, 9)):
            raise DatasetError(
                f"mnist: x_{part} must be pictures (row, 28, 28) of whole numbers from 0 to 255 and y_{part} their "
                f"digits (row,), found shapes {pictures.shape} and {labels.shape} of {pictures.dtype} and "
                f"{labels.dtype}"
            )
    return Digits(**{name: array.astype(np.uint8) for name, array in found.items()})


def covtype(folder: str | Path | None = None) -> Covers:
    """The forest cover types of Blackard and Dean: all rows of the file, 581,012 in the full data set.

    Parameters
    ----------
    folder
        Folder with `covtype.npz`, which has the arrays X and y. None: the folder in the environment variable
        ACCORD_DATA. If it is not set, scikit-learn downloads and caches all rows.

    Raises
    ------
    DatasetError
        The file is missing or invalid, or the download failed.
    ImportError
        Without a folder: scikit-learn is missing.
    """
    X, y = _found("covtype", folder, Covers._fields, _fetch_covtype).values()
    shaped = X.ndim == 2 and X.shape[1] == 54 and y.shape == X.shape[:1] and len(y) > 0
    if not (shaped and X.dtype.kind in "iuf" and np.isfinite(X).all() and _whole_between(y, 1, 7)):
        raise DatasetError(
            f"covtype: X must be finite numbers (row, 54) and y types (row,) from 1 to 7, found shapes {X.shape} and "
            f"{y.shape} of {X.dtype} and {y.dtype}"
        )
    return Covers(X.astype(np.float32), y.astype(np.uint8))


@contextmanager
def found_in(folder: str | Path | None) -> Iterator[None]:
    """Context manager that sets the default folder of data sets. None: no change."""
    before = os.environ.get(FOLDER)
    if folder is not None:
        os.environ[FOLDER] = str(folder)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(FOLDER, None)
        else:
            os.environ[FOLDER] = before


def _found(
    name: str, folder: str | Path | None, arrays: tuple[str, ...], fetch: Callable[[], Mapping[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """The arrays of a data set with these names, in this order."""
    folder = folder or os.environ.get(FOLDER)
    if not folder:
        return dict(_fetched(name, fetch))
    path = Path(folder).expanduser() / f"{name}.npz"
    if not path.is_file():
        raise DatasetError(f"{name}: {path} does not exist; it must hold the arrays {', '.join(arrays)}")
    try:
        with np.load(path, allow_pickle=False) as file:
            missing = [array for array in arrays if array not in file.files]
            if missing:
                raise DatasetError(f"{name}: {path} must hold the arrays {', '.join(arrays)}, found {file.files}")
            return {array: file[array] for array in arrays}
    except DatasetError:
        raise
    except Exception as error:  # damaged files raise various errors
        raise DatasetError(f"{name}: {path} could not be read as an .npz file: {error}") from error


def _fetched(name: str, fetch: Callable[[], Mapping[str, np.ndarray]]) -> Mapping[str, np.ndarray]:
    try:
        import sklearn.datasets  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"fetching {name} needs scikit-learn: pip install accord-papers, or set {FOLDER} to a folder with "
            f"{name}.npz"
        ) from error
    try:
        return fetch()
    except (OSError, ValueError, HTTPException) as error:
        raise DatasetError(
            f"{name} could not be fetched ({type(error).__name__}: {error}); with no network, set {FOLDER} to a folder "
            f"with {name}.npz"
        ) from error


def _fetch_mnist() -> dict[str, np.ndarray]:
    from sklearn.datasets import fetch_openml

    X, y = fetch_openml("mnist_784", version=1, as_frame=False, return_X_y=True)
    pictures, digits, cut = np.asarray(X).reshape(-1, 28, 28), np.asarray(y).astype(np.int64), _TRAINING
    return {"x_train": pictures[:cut], "y_train": digits[:cut], "x_test": pictures[cut:], "y_test": digits[cut:]}


def _fetch_covtype() -> dict[str, np.ndarray]:
    from sklearn.datasets import fetch_covtype

    X, y = fetch_covtype(return_X_y=True)
    return {"X": X, "y": y}


def _whole_between(values: Any, least: int, most: int) -> bool:
    """Whether all values are integers in this range."""
    if values.dtype.kind not in "iuf":
        return False
    return bool(((values >= least) & (values <= most) & (values == np.round(values))).all())
