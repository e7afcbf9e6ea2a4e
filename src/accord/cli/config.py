"""Read the TOML file of a run: sections data, model, network, method and run."""

from __future__ import annotations

import inspect
import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

from .. import data, samplers
from ..base.checks import whole_number
from ..base.errors import is_users, unknown_name_error
from ..base.progress import Progress
from ..data.missing import in_files
from ..data.studies import MISSING
from ..engines import Local, Silo
from ..engines.fingerprint import keyed, keyed_rows, versions
from ..models.documents import (
    MODELS,
    columns_beside,
    keys_of_data,
    keys_of_glm,
    read_problem,
    read_study,
    sites_named,
)
from ..models.formula import columns_of_formula
from ..models.regression import Regression
from ..models.sections import (
    as_float,
    built,
    call,
    imported,
    pop_name,
    require_known,
    require_placed,
    require_type,
    require_types,
)
from ..network import Network
from ..posterior import Posterior
from ..results.run import Run
from ..samplers import combine
from ..samplers.by_sums.method import BySums
from ..samplers.engine import Builder
from ..samplers.protocol import Sampler, Tunable
from ..samplers.schedules import Polynomial, diminishing
from ..sampling.rounds import Rounds
from ..sampling.sample import ENGINES, sample

METHODS: dict[str, type[Sampler]] = {name: getattr(samplers, name) for name in samplers.__all__}
ONE_SHOT = combine.METHODS
SCHEDULES: dict[str, Callable[..., Polynomial]] = {"polynomial": Polynomial, "diminishing": diminishing}
SECTIONS = ("data", "model", "network", "run")
OPTIONAL_SECTIONS = ("method", "silo", "priors")
WALKING_OPTIONS = ("burn_in", "thin", "whiten", "checkpoint_every")
ENGINE_OPTIONS = ("masks", "consensus")
RUN_OPTIONS = ("draws", "chains", "seed", "keep", "engine", "checkpoint", *WALKING_OPTIONS, *ENGINE_OPTIONS)
ONE_SHOT_OPTIONS = ("draws", "chains", "seed")


@dataclass(frozen=True, eq=False)
class Job:
    """A run, ready to be drawn.

    Parameters
    ----------
    title
        Description of the run, one line.
    draw
        `draw(progress=...)` samples.
    sites
        Names of the agents.
    output
        Folder for results.
    engine
        Name of the engine.
    draws
        Number of draws per chain.
    has_checkpoint
        Whether the run has a checkpoint folder.
    agreed
        Summaries that the sites of a study share.
    inputs
        `inputs(key)` identifies the run apart from its configuration: values by name, with digests of rows and of the
        user's modules under a key. None for rows at remote sites.
    sds
        For each standardised column, the standard deviation that it was divided by.
    post, network, builder
        Posterior, network and engine of the run. The network is None if shards are sampled separately.
    """

    title: str
    draw: Callable[..., Run]
    sites: tuple[str, ...]
    output: Path
    engine: str
    draws: int
    has_checkpoint: bool
    agreed: data.Agreed | None = None
    inputs: Callable[[bytes], dict[str, str]] | None = None
    sds: Mapping[str, float] = field(default_factory=dict)
    post: Posterior | None = None
    network: Network | None = None
    builder: str | Builder = "local"


def load(
    path: str | Path,
    output: str | Path | None = None,
    engine: str | None = None,
    checkpoint: str | Path | None = None,
) -> Job:
    """Read a TOML file.

    Parameters
    ----------
    path
        The file. Paths in it are relative to its folder, except `files` with `at_sites`, which the sites resolve.
    output
        Folder for results, in place of `run.output`.
    engine
        Engine, in place of `run.engine`.
    checkpoint
        Folder for checkpoints, in place of `run.checkpoint`.

    Raises
    ------
    FileNotFoundError
        The file, or a file that it names, does not exist.
    ValueError
        The file is not TOML, lacks a section or key, or has an unknown name. The message has the nearest known name.
    """
    path = Path(path)
    document, one_shot = _read_document(path, SECTIONS)
    run = dict(document["run"])
    for known in (sample, Rounds, Local):
        require_types("[run]", run, known)
    if "output" in run:
        require_type("[run]", "output", run["output"], "str")
    if engine is not None:
        run["engine"] = engine
    if checkpoint is not None:
        run["checkpoint"] = Path(checkpoint)
    elif "checkpoint" in run:
        if run["checkpoint"] == "":
            raise ValueError("checkpoint in [run] is empty: name a folder, or remove the line")
        run["checkpoint"] = path.parent / run["checkpoint"]
    require_known("key of [run]", run, (*(ONE_SHOT_OPTIONS if one_shot else RUN_OPTIONS), "output"))
    if output is None and "output" not in run:
        raise ValueError('[run] must name an output folder: output = "results"')
    folder = Path(output) if output is not None else path.parent / run["output"]
    run.pop("output", None)
    _check_options(run)
    if not one_shot:
        run["engine"] = _build_engine(run, document.get("silo", {}))
    table, posterior = read_problem(document, path.parent, run.get("engine"))
    sampler = None if one_shot else _named_method(document, path.parent)
    network = None
    if one_shot:
        title, draw = _one_shot(posterior, document, run)
    else:
        network = _build_network(dict(document["network"]), posterior.num_agents)
        title, draw = _over_network(posterior, network, sampler, run)
    defaults = inspect.signature(sample).parameters
    name = engine or document["run"].get("engine", defaults["engine"].default)
    agreed = posterior.agreed if isinstance(posterior, Regression) else None
    draw, draws = partial(_drawn, draw, table.sites), run.get("draws", defaults["draws"].default)
    kept, elsewhere = "checkpoint" in run, document["data"].get("at_sites", False)
    modules = _modules(path.parent, document)
    of = None if elsewhere else partial(_inputs, posterior, modules, name, table.sites)
    sds = table.sds if isinstance(table, data.Matrix) else {}
    return Job(
        title,
        draw,
        table.sites,
        folder,
        name,
        draws,
        has_checkpoint=kept,
        agreed=agreed,
        inputs=of,
        sds=sds,
        post=posterior,
        network=network,
        builder=run.get("engine", "local"),
    )


def load_problem(path: str | Path) -> tuple[Posterior, Network, Sampler | None]:
    """Read the posterior, the network and the optional method of a TOML file, for `accord plan`.

    Raises
    ------
    FileNotFoundError, ValueError
        As `load` does, or the method combines draws of separate shards and needs no network.
    """
    path = Path(path)
    document, one_shot = _read_document(path, SECTIONS[:3])
    if one_shot:
        raise ValueError(f"{document['method']['name']} samples each shard separately: there is nothing to plan")
    _, posterior = read_problem(document, path.parent)
    network = _build_network(dict(document["network"]), posterior.num_agents)
    return posterior, network, _named_method(document, path.parent)


def load_description(path: str | Path) -> data.Agreed:
    """Summarise the columns that a TOML file names, for `accord describe`.

    Raises
    ------
    FileNotFoundError, ValueError
        As `load` does, or the data has no sites here: a rule splits it, or sites read it remotely.
    """
    path = Path(path)
    document, _ = _read_document(path, SECTIONS[:1])
    section = dict(document["data"])
    for key in ("split", "at_sites"):
        if section.pop(key, False):
            raise ValueError(f"[data] with {key} cannot be described: give files, one per site, or file and site")
    model = document["model"] if isinstance(document.get("model"), dict) else {}
    # without a formula, the data section has the arguments of `Study.matrix`
    functions = (data.study,) if "formula" in model else (data.study, data.Study.matrix)
    known = {key for function in functions for key in inspect.signature(function).parameters if key != "self"}
    require_known("key of [data] for a study", section, sorted(known))
    for function in functions:
        require_types("[data]", section, function)
    # drop arguments that `describe` does not have
    others = known - set(inspect.signature(data.describe).parameters)
    rest = {key: section.pop(key) for key in others if key in section}
    missing, agents = rest.get("missing", "error"), rest.get("agents")
    if missing not in MISSING:
        raise unknown_name_error("missing", missing, MISSING)
    if isinstance(model.get("formula"), str):
        section.setdefault("columns", _columns_of_model(model, missing))
    agreed: data.Agreed = read_study(data.describe, section, model, path.parent)
    if agents is not None and agents != len(agreed.sites):
        raise ValueError(f"agents is {agents}, but there are {len(agreed.sites)} sites")
    return agreed


def _columns_of_model(model: Mapping[str, Any], missing: str) -> list[str]:
    """The columns that a formula and the keys beside it name, in order of appearance."""
    formula = model["formula"]
    names = sorted(columns_of_formula(formula), key=lambda name: (formula.find(name), name))
    return in_files([*names, *columns_beside(model)], missing)


def method_class(name: str, folder: Path) -> type[Sampler]:
    """A method by name: a class of `accord.samplers`, or "module:Class" from a module that may be in `folder`.

    Raises
    ------
    ValueError
        The name is unknown, its module cannot be imported, or the class is no subclass of `accord.Sampler`.
    """
    if ":" not in name:
        if name not in METHODS:
            raise unknown_name_error("method", name, [*METHODS, *ONE_SHOT, "module:Class"])
        return METHODS[name]
    found = imported("method", name, folder)
    if not (isinstance(found, type) and issubclass(found, Sampler)):
        raise ValueError(f"method {name!r} must be a subclass of accord.Sampler, found {found!r}")
    return found


def tunable_methods(names: Iterable[str], folder: Path) -> list[Sampler]:
    """Methods without hyper-parameters, one for each noise that a class supports.

    Raises
    ------
    ValueError
        As `method_class` does, or a class does not inherit from `Tunable`.
    """
    classes = {name: method_class(name, folder) for name in names}
    for name, cls in classes.items():
        if not issubclass(cls, Tunable):
            raise ValueError(f"method {name!r} must inherit from Tunable to be planned without its hyper-parameters")
    return [cls(noise=noise) for cls in classes.values() for noise in cls.noises]


def _read_document(path: Path, needed: Iterable[str]) -> tuple[dict[str, Any], bool]:
    """The sections of a file, and whether its method combines draws of separate shards."""
    if not path.is_file():
        raise FileNotFoundError(f"no such config file: {path}")
    text = ""
    try:
        # some editors write a byte order mark
        text = path.read_text(encoding="utf-8-sig")
        document = tomllib.loads(text)
    except RecursionError:
        raise ValueError(f"{path} is not valid TOML: its brackets are nested too deeply") from None
    except ValueError as error:
        # invalid TOML, invalid UTF-8, or a number with too many digits
        raise ValueError(f"{path} is not valid TOML: {error}{_key_of(text, str(error))}") from error
    require_placed(document, _tables_of(document))
    require_known("section", document, (*SECTIONS, *OPTIONAL_SECTIONS))
    method = document.get("method", {})
    if not isinstance(method, dict):
        raise ValueError(f"[method] must be a section, found {method!r}")
    one_shot = method.get("name") in list(ONE_SHOT)
    for section in needed:
        # one-shot methods need no network
        if not isinstance(document.get(section), dict) and not (one_shot and section == "network"):
            raise ValueError(f"{path} must have a [{section}] section")
    return document, one_shot


def _tables_of(document: Mapping[str, Any]) -> dict[str, set[str]]:
    """The keys of each section. A custom model or method may have any key."""
    found: dict[str, set[str]] = {
        "data": keys_of_data(),
        "run": {*RUN_OPTIONS, "output"},
        "silo": {one.name for one in fields(Silo)},
    }
    builders: dict[str, Callable[[str], Any]] = {
        "model": MODELS.get,
        "network": lambda name: getattr(Network, name, None),
        "method": {**METHODS, **ONE_SHOT}.get,
    }
    for section, builder_of in builders.items():
        content = document.get(section)
        if not isinstance(content, dict):
            continue
        if section == "model" and "formula" in content:
            found[section] = keys_of_glm()
        elif callable(builder := builder_of(str(content.get("name")))):
            found[section] = {"name", *inspect.signature(builder).parameters} - {"n", "post", "shards"}
            found[section] |= {"links"} if section == "network" else set()
    return found


def _key_of(text: str, message: str) -> str:
    """The key in the line of a TOML error, as text for a message."""
    place = re.search(r"at line (\d+)", message)
    lines = text.splitlines()[: int(place[1])] if place else []
    key = re.match(r"\s*([^=\[#]+?)\s*=", lines[-1]) if lines else None
    sections = [found[1] for line in lines if (found := re.match(r"\s*\[+([^\]]+)\]", line))]
    if key is None:
        return ""
    return f", the key {key[1]!r}" + (f" of [{sections[-1]}]" if sections else "")


def _named_method(document: dict[str, Any], folder: Path) -> Sampler | None:
    """The method of [method], or None without that section, which leaves the choice to accord."""
    return _build_method(dict(document["method"]), folder) if "method" in document else None


def _over_network(
    posterior: Posterior, network: Network, sampler: Sampler | None, run: dict[str, Any]
) -> tuple[str, Callable[..., Run]]:
    walking = {key: run.pop(key) for key in WALKING_OPTIONS if key in run}
    method = _with_options(sampler, walking)
    name = "the default method" if sampler is None else type(sampler).__name__
    title = f"{posterior!r} on {network!r} by {name}"
    return title, partial(sample, posterior, network, method, **run)


def _with_options(method: Sampler | BySums | None, options: dict[str, Any]) -> Sampler | BySums | Rounds | None:
    """The method with options of [run] for methods with rounds. Options without a method need a planned method."""
    if not options:
        return method
    if isinstance(method, BySums):
        key, value = next(iter(options.items()))
        raise ValueError(
            f"{key} in [run] is for methods with rounds, which {type(method).__name__} does not have: remove it "
            f"(found {value!r})"
        )
    return Rounds(method, **options)


def _drawn(draw: Callable[..., Run], sites: tuple[str, ...], progress: bool | None = None) -> Run:
    with sites_named(sites):
        return draw(progress=progress)


def _inputs(
    posterior: Posterior, modules: Mapping[str, Path], engine: str, sites: tuple[str, ...], key: bytes
) -> dict[str, str]:
    files = {f"module {name}": keyed(file.read_bytes(), key) for name, file in sorted(modules.items())}
    data = {"data": keyed_rows(posterior, key)}
    return {**versions(), **data, **files, "engine": engine, "sites": json.dumps(sites)}


def _modules(folder: Path, document: Mapping[str, Any]) -> dict[str, Path]:
    """Files of the user's modules by name: modules that a document names, and modules imported from its folder."""
    sections = (document.get(section, {}) for section in ("model", "method"))
    named = {str(section.get("name")).partition(":")[0] for section in sections}
    files = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}
    return {
        name: Path(file)
        for name, file in files.items()
        if file and is_users(file) and (name in named or Path(file).is_relative_to(folder.resolve()))
    }


def _build_engine(run: dict[str, Any], silo: Any) -> Builder:
    """The engine of [run] and [silo]. Its options are removed from `run`."""
    name, options = run.get("engine", "local"), {key: run.pop(key) for key in ENGINE_OPTIONS if key in run}
    if name not in ENGINES:
        raise unknown_name_error("engine", name, ENGINES)
    if name != "silo":
        return ENGINES[name](**options)
    if "consensus" in options:
        raise ValueError('consensus in [run] is for engine = "local"')
    return _build_silo(silo, **options)


def _build_silo(section: Any, masks: bool = False) -> Silo:
    if not isinstance(section, dict):
        raise ValueError(f"[silo] must be a section, found {section!r}")
    require_known("key of [silo]", section, [f.name for f in fields(Silo)])
    require_types("[silo]", section, Silo)
    seconds = {key: as_float("[silo]", key, section[key]) for key in ("timeout", "start_timeout") if key in section}
    return Silo(**{"masks": masks, **section, **seconds})


def _one_shot(posterior: Posterior, document: dict[str, Any], run: dict[str, Any]) -> tuple[str, Callable[..., Run]]:
    options = dict(document["method"])
    name = pop_name("method", options)
    known = [option for option in inspect.signature(ONE_SHOT[name]).parameters if option not in ONE_SHOT_OPTIONS]
    require_known(f"number of {name}", options, known[1:])

    def draw(progress: bool | None = None) -> Run:
        with Progress(f"{name}: sampling each shard separately", progress):
            return ONE_SHOT[name](posterior, **run, **options)

    return f"{posterior!r}, each shard separately, by {name}", draw


def _check_options(run: dict[str, Any]) -> None:
    """Check options before data is read. `sample` checks them again."""
    for name, least in (("draws", 1), ("burn_in", 0), ("thin", 1), ("chains", 1), ("checkpoint_every", 1)):
        if name in run:
            whole_number(f"{name} in [run]", run[name], least)


def _build_network(section: dict[str, Any], num_agents: int) -> Network:
    name, links = pop_name("network", section), section.pop("links", None)
    if callable(builder := getattr(Network, name, None)):
        require_types("[network]", section, builder)
    network: Network = call("[network]", Network.build, name, num_agents, **section)
    if links is None:
        return network
    if not isinstance(links, dict):
        raise ValueError(f"links in [network] must be a table such as {{loss = 0.1}}, found {links!r}")
    require_types("links of [network]", links, Network.links)
    return call("links of [network]", network.links, **links)


def _build_method(section: dict[str, Any], folder: Path) -> Sampler:
    name = pop_name("method", section)
    method = method_class(name, folder)
    require_known(f"number of {name}", section, [f.name for f in fields(method)])
    require_types("[method]", section, method)
    for key, value in section.items():
        if isinstance(value, dict):
            schedule = require_type(f"{key} of [method]", "schedule", value.pop("schedule", "polynomial"), "str")
            if schedule not in SCHEDULES:
                raise unknown_name_error("schedule", schedule, SCHEDULES)
            section[key] = built(f"schedule {key} of {name}", SCHEDULES[schedule], value)
    return built(f"method {name}", method, section)
