"""The functions that sites answer, by name, and the encoding of their arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..examine.alone import log_density_alone
from ..examine.reweighting import log_likelihood_at
from ..posterior.coordinates import Coordinates
from ..posterior.evaluate import count
from ..samplers.by_sums.evaluations import expansion_of, mean_expansion, slope_of, value_of
from ..samplers.by_sums.integration import off
from ..samplers.by_sums.proposal import Drawn, Mixture
from .wire import Packet, packet

# Functions that are summed over sites: a potential, its derivatives and the error of its integrals.
SUMS: dict[str, Callable[..., Any]] = {
    "value": value_of,
    "slope": slope_of,
    "expansion": expansion_of,
    "mean expansion": mean_expansion,
    "off": off,
}
# Functions of a single site at positions (point, dim), which need `SitePolicy.own_numbers`.
OWN: dict[str, Callable[..., Any]] = {"log likelihood": log_likelihood_at, "log density alone": log_density_alone}
# Functions that a run evaluates at each site.
EACH: dict[str, Callable[..., Any]] = {"count": count, **OWN}


def name_of(function: Callable[..., Any], among: dict[str, Callable[..., Any]]) -> str:
    """The request name of a function.

    Raises
    ------
    TypeError
        Sites do not answer this function.
    """
    for name, known in among.items():
        if known is function:
            return name
    raise TypeError(
        f"sites answer only {', '.join(among)}, found {_called(function)}: a federation needs "
        "Importance() or ChEES(), and supports neither leave-one-out figures nor predictive checks"
    )


def _called(function: Any) -> Any:
    """The name of a function or partial."""
    return getattr(getattr(function, "func", function), "__name__", function)


def written(
    name: str,
    arguments: tuple[Any, ...],
    coordinates: Coordinates | None = None,
    points: Any = None,
    at_once: int | None = None,
) -> Packet:
    """The request for a function with its arguments."""
    arrays = {f"argument {k}": np.asarray(leaf) for k, leaf in enumerate(arguments)}
    head: dict[str, Any] = {"name": name, "arguments": len(arguments), "at_once": at_once}
    if coordinates is not None:
        arrays |= {"origin": np.asarray(coordinates.origin), "factor": np.asarray(coordinates.factor)}
    if isinstance(points, Drawn):
        mixture, *head["drawn"] = points.recipe
        arrays |= {f"mixture {field}": np.asarray(leaf) for field, leaf in mixture._asdict().items()}
    elif points is not None:
        arrays["points"] = np.asarray(points)
    return packet(head, **arrays)


def understood(question: Packet, dim: int) -> tuple[tuple[Any, ...], dict[str, Any], int]:
    """The arguments and options of a request for `dim` parameters, and its number of points.

    Raises
    ------
    ValueError
        The request does not have the format of `written`.
    """
    head, arrays = question
    try:
        arguments = tuple(arrays[f"argument {k}"] for k in range(int(head["arguments"])))
        options: dict[str, Any] = {} if head["at_once"] is None else {"at_once": max(1, int(head["at_once"]))}
        if "origin" in arrays:
            options["coordinates"] = Coordinates(arrays["origin"], arrays["factor"])
        if "drawn" in head:
            count_, seed, batch = map(int, head["drawn"])
            mixture = Mixture(*(arrays[f"mixture {field}"] for field in Mixture._fields))
            if min(count_ - 1, seed, batch) < 0 or mixture.mean.shape[1:] != (dim,):
                raise ValueError("a question with invalid points")
            options["points"] = Drawn(mixture, count_, seed, batch)
            return (), options, count_
    except (KeyError, TypeError) as error:
        raise ValueError(f"a question without {error}") from error
    if "points" in arrays and all(argument.ndim == 0 for argument in arguments):
        options["points"] = looks = np.asarray(arrays["points"], np.float64)
    elif len(arguments) == 2 and arguments[0].shape == (dim,) and "points" not in arrays:
        # an origin and offsets
        looks = arguments[1]
    else:
        raise ValueError("a question without points, or with too many")
    if looks.ndim != 2 or len(looks) < 1 or looks.shape[1] != dim:
        raise ValueError(f"points must be of shape (point, {dim}), found {looks.shape}")
    return arguments, options, len(looks)
