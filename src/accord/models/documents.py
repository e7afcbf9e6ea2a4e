"""The sections data, model and priors: a posterior of files."""

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
    """The data and the model: a study where the model is a formula, a table of numbers otherwise.

    `engine` is what the agents run in, where they read their own files.
    """
    section, model = dict(document["data"]), dict(document["model"])
    if "formula" in model:
        study = _study_of(section, model, folder, engine)
        with sites_named(study.sites):
            return study, call("[model] with a formula", models.glm, study, **arguments_of_glm(document))
    if "priors" in document:
        raise ValueError("[priors] goes with a formula in [model]; found none")
    table = _read_matrix(section, folder)
    with sites_named(table.sites):
        return table, _build_model(model, table, folder)


def arguments_of_glm(document: dict[str, Any]) -> dict[str, Any]:
    """What [model] with a formula and [priors] say to `accord.models.glm`."""
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
    """What [data] and [model] with a formula say of the columns of a study whose files are elsewhere."""
    options = _with_columns_of(dict(document["data"]), dict(document["model"]))
    for key in ("file", "site", "formula"):
        # glm adds what its formula names
        options.pop(key, None)
    return options


def _build_priors(section: Any) -> dict[str, Prior]:
    if not isinstance(section, dict):
        raise ValueError(f"[priors] must be a section, found {section!r}")
    return {key: _build_named(f"{key} in [priors]", value, PRIORS) for key, value in section.items()}


def _build_named(what: str, value: Any, choices: Mapping[str, Callable[..., Any]]) -> Any:
    """What a table such as {name = "Normal", scale = 2.0} says, of some choices."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise ValueError(
            f'{what} must be a table with a name, as {{name = "{next(iter(choices))}", ...}}, found {value!r}'
        )
    numbers = dict(value)
    name = numbers.pop("name")
    if name not in choices:
        raise unknown_name_error(what, name, choices)
    require_known(f"number of {name}, {what},", numbers, inspect.signature(choices[name]).parameters)
    require_types(what, numbers, choices[name])
    return call(what, choices[name], **numbers)


@contextmanager
def sites_named(sites: Sequence[str]) -> Iterator[None]:
    """Name the site beside the number of an agent in an error."""

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
        raise ValueError('[data] at sites with a formula goes with an engine whose agents read files: engine = "silo"')
    require_given("[data]", section, ("files",))
    for key in ("file", "site"):
        if key in section:
            raise ValueError(f"[data] at sites has files, one an agent; found {key}")
    options = options_of_study({"data": section, "model": model})
    return data.study_at_sites(options.pop("files"), engine, **options)


def read_study(read: Callable[..., Any], section: dict[str, Any], model: dict[str, Any], folder: Path) -> Any:
    """What a function of the arguments of `accord.data.study` makes of [data], with what [model] says of columns."""
    return read(**_placed(_with_columns_of(section, model, read), folder))


def _at_sites(section: dict[str, Any]) -> bool:
    """Take out of [data] whether each file is read where it lies."""
    return bool(require_type("[data]", "at_sites", section.pop("at_sites", False), "bool"))


def columns_beside(model: Mapping[str, Any]) -> list[str]:
    """The columns that [model] names beside its formula."""
    return [model[key] for key in ("weights", "exposure") if isinstance(model.get(key), str)]


def _with_columns_of(
    section: dict[str, Any], model: dict[str, Any], read: Callable[..., Any] = data.study
) -> dict[str, Any]:
    """The arguments that [data] has for a function such as `accord.data.study`, with what [model] says of columns."""
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
    """Replace the policy of [data], a table of floors, by what it says."""
    if isinstance(section.get("policy"), dict):
        require_known("key of policy in [data]", section["policy"], inspect.signature(data.Policy).parameters)
        section["policy"] = data.Policy(**section["policy"])


def _read_matrix(section: dict[str, Any], folder: Path) -> data.Matrix:
    study, matrix = (inspect.signature(function).parameters for function in (data.study, data.Study.matrix))
    of_matrix = [name for name in matrix if name != "self"]
    if _at_sites(section):
        # each file is read where it lies, by a path of that machine
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
        # what is not divided by its spread may be the same in every row
        section.setdefault("constant", columns)
    # sites agree on nothing for a matrix but means, so that the default floors have nothing to guard
    _make_policy(section)
    section.setdefault("policy", data.Policy.none())
    return data.study(**_placed(section, folder)).matrix(**options)


def _placed(section: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The section with paths of files from the folder of the config file."""
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
