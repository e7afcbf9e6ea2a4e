"""The sections [data], [model] and [priors] of a configuration file."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .. import data, models
from ..base.errors import DivergenceError, unknown_name_error
from ..posterior import Posterior
from .glm import FAMILIES
from .priors import Prior
from .sections import call, call_users, imported, pop_name, require_given, require_known, require_type, require_types

MODELS: dict[str, Callable[..., Posterior]] = {
    "linear_regression": models.linear_regression,
    "logistic_regression": models.logistic_regression,
    "poisson_regression": models.poisson_regression,
}
PRIORS: dict[str, type[Prior]] = {
    name: cls for name, cls in vars(models.priors).items() if isinstance(cls, type) and issubclass(cls, Prior)
}
PRIORS.pop("Prior")


def read_problem(
    document: dict[str, Any], folder: Path, engine: Any = None
) -> tuple[data.Matrix | data.Study | data.RemoteStudy, Posterior]:
    """The data and the posterior: a study for a formula, a numeric matrix otherwise.

    `engine` is the engine whose agents read their own files, or None.
    """
    section, model = dict(document["data"]), dict(document["model"])
    if "formula" in model:
        study = _study_of(section, model, folder, engine)
        with sites_named(study.sites):
            return study, call("[model] with a formula", models.glm, study, **arguments_of_glm(document))
    if "priors" in document:
        raise ValueError("[priors] needs a formula in [model]")
    table = _read_matrix(section, folder)
    with sites_named(table.sites):
        return table, _build_model(model, table, folder)


def keys_of_data() -> set[str]:
    """The keys of [data]."""
    functions = (data.study, data.Study.matrix)
    return {"at_sites", *(key for function in functions for key in inspect.signature(function).parameters)} - {"self"}


def keys_of_glm() -> set[str]:
    """The keys of [model] with a formula."""
    return {"positive", *inspect.signature(models.glm).parameters} - {"table", "priors"}


def arguments_of_glm(document: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `accord.models.glm` from [model] and [priors]."""
    model = dict(document["model"])
    model.pop("positive", None)
    known = [name for name in inspect.signature(models.glm).parameters if name != "table"]
    require_known("key of [model] with a formula", model, known)
    require_types("[model]", model, models.glm)
    if not isinstance(model.get("family", ""), str | dict):
        raise ValueError(f"family in [model] must be a string or a table, found {model['family']!r}")
    if "priors" in document:
        model["priors"] = _build_priors(document["priors"])
    if isinstance(model.get("family"), dict):
        model["family"] = _build_named("family in [model]", model["family"], FAMILIES)
    return model


def options_of_study(document: dict[str, Any]) -> dict[str, Any]:
    """The options of a study with remote files, from [data] and [model]."""
    options = _with_columns_of(dict(document["data"]), dict(document["model"]))
    for key in ("file", "site", "formula"):
        # `glm` adds the columns of its formula
        options.pop(key, None)
    return options


def _build_priors(section: Any) -> dict[str, Prior]:
    if not isinstance(section, dict):
        raise ValueError(f"[priors] must be a section, found {section!r}")
    return {key: _build_named(f"{key} in [priors]", value, PRIORS) for key, value in section.items()}


def _build_named(what: str, value: Any, choices: Mapping[str, Callable[..., Any]]) -> Any:
    """The object of a table such as {name = "Normal", scale = 2.0}, by its name among `choices`."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise ValueError(
            f'{what} must be a table with a name, as {{name = "{next(iter(choices))}", ...}}, found {value!r}'
        )
    numbers = dict(value)
    name = numbers.pop("name")
    if name not in choices:
        raise unknown_name_error(f"name of {what}", name, choices)
    require_known(f"number of {name}, {what},", numbers, inspect.signature(choices[name]).parameters)
    require_types(what, numbers, choices[name])
    return call(what, choices[name], **numbers)


@contextmanager
def sites_named(sites: Sequence[str]) -> Iterator[None]:
    """Add the name of the site to agent numbers in errors."""

    def named(found: re.Match[str]) -> str:
        agent = int(found[1])
        return f"{found[0]} ({sites[agent]})" if agent < len(sites) and sites[agent] != found[0] else found[0]

    try:
        yield
    except DivergenceError as error:
        text = re.sub(r"\bagent (\d+)\b", named, str(error))
        raise DivergenceError(text, agent=error.agent, round=error.round, run=error.run) from error
    except ValueError as error:
        text = re.sub(r"\bagent (\d+)\b", named, str(error))
        raise (error if text == str(error) else ValueError(text)) from error.__cause__


def _study_of(
    section: dict[str, Any], model: dict[str, Any], folder: Path, engine: Any
) -> data.Study | data.RemoteStudy:
    if not _at_sites(section):
        study: data.Study = read_study(data.study, section, model, folder)
        return study
    if not hasattr(engine, "asking"):
        raise ValueError('[data] at sites with a formula needs an engine whose agents read files: engine = "silo"')
    require_given("[data]", section, ("files",))
    for key in ("file", "site"):
        if key in section:
            raise ValueError(f"[data] at sites needs files, one for each agent; found {key}")
    options = options_of_study({"data": section, "model": model})
    return data.study_at_sites(options.pop("files"), engine, **options)


def read_study(read: Callable[..., Any], section: dict[str, Any], model: dict[str, Any], folder: Path) -> Any:
    """The result of `read`, a function with the arguments of `accord.data.study`, for [data] and [model]."""
    return read(**_placed(_with_columns_of(section, model, read), folder))


def _at_sites(section: dict[str, Any]) -> bool:
    """Remove and return `at_sites` of [data]: whether agents read the files."""
    return bool(require_type("[data]", "at_sites", section.pop("at_sites", False), "bool"))


def columns_beside(model: Mapping[str, Any]) -> list[str]:
    """The columns of weights and exposure in [model]."""
    return [model[key] for key in ("weights", "exposure") if isinstance(model.get(key), str)]


def _with_columns_of(
    section: dict[str, Any], model: dict[str, Any], read: Callable[..., Any] = data.study
) -> dict[str, Any]:
    """The arguments of `read` from [data], with the columns that [model] names."""
    require_known("key of [data] for a study", section, inspect.signature(read).parameters)
    require_types("[data]", section, read)
    if "formula" in model:
        formula = require_type("[model]", "formula", model["formula"], "str")
        section.setdefault("formula", [formula, *columns_beside(model)])
        if "positive" in model:
            response = formula.partition("~")[0].strip()
            section["positive"] = {response: model["positive"], **section.get("positive", {})}
    _make_policy(section)
    return section


def _make_policy(section: dict[str, Any]) -> None:
    """Replace the table `policy` of [data] by an `accord.data.Policy`."""
    if isinstance(section.get("policy"), dict):
        require_known("key of policy in [data]", section["policy"], inspect.signature(data.Policy).parameters)
        section["policy"] = data.Policy(**section["policy"])


def _read_matrix(section: dict[str, Any], folder: Path) -> data.Matrix:
    study, matrix = (inspect.signature(function).parameters for function in (data.study, data.Study.matrix))
    of_matrix = [name for name in matrix if name != "self"]
    if _at_sites(section):
        # the sites resolve the paths
        require_known("key of [data] at sites", section, [*study, *of_matrix])
        require_types("[data]", section, data.study)
        require_types("[data]", section, data.at_sites)
        _make_policy(section)
        return call("[data] at sites", data.at_sites, **section)
    require_known("key of [data]", section, [*study, *of_matrix])
    require_given("[data]", section, ("target",))
    require_types("[data]", section, data.study)
    require_types("[data]", section, data.Study.matrix)
    options = {name: section.pop(name) for name in of_matrix if name in section}
    columns = options.get("columns")
    rule = section.get("split", "").partition("(")[0]
    if rule not in ("", "iid", "by-column"):
        section.setdefault("column", options["target"])
    if columns is not None:
        section["columns"] = [*columns, options["target"]]
    if not options.get("standardise", True) and columns is not None:
        # columns that are not standardised may be constant
        section.setdefault("constant", columns)
    # sites share only means for a matrix, so the default floors are not needed
    _make_policy(section)
    section.setdefault("policy", data.Policy.none())
    return data.study(**_placed(section, folder)).matrix(**options)


def _placed(section: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The section with file paths relative to the folder of the configuration file."""
    for key in ("files", "file"):
        if isinstance(section.get(key), str):
            section[key] = str(folder / section[key])
        elif isinstance(section.get(key), list):
            section[key] = [str(folder / name) for name in section[key]]
    return section


def _build_model(section: dict[str, Any], table: data.Matrix, folder: Path) -> Posterior:
    name = pop_name("model", section)
    if ":" not in name:
        if name not in MODELS:
            raise unknown_name_error("model", name, [*MODELS, "module:function"])
        require_types("[model]", section, MODELS[name])
        section.setdefault("names", table.columns)
        return call(f"model {name}", MODELS[name], table.shards, **section)
    posterior = call_users(f"model {name}", imported("model", name, folder), table.shards, **section)
    if not isinstance(posterior, Posterior):
        raise ValueError(f"{name} must return an accord.Posterior, found {type(posterior).__name__}")
    return posterior
