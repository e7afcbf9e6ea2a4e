"""The description of a model for reports and run files, and its posterior predictive distribution."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

from jaxtyping import Array, PyTree


class Predictive(Protocol):
    """Draws responses from a model, at the site that holds the rows."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of a categorical response; empty for numbers."""
        ...

    @property
    def whole(self) -> bool:
        """Whether responses are integers."""
        ...

    def observed(self, rows: PyTree) -> Array:
        """The observed responses, shape (row,)."""
        ...

    def replicated(self, params: PyTree, rows: PyTree, key: Array) -> Array:
        """Responses drawn from the model for the same rows, shape (row,)."""
        ...


@dataclass(frozen=True)
class ModelInfo:
    """The description of a model.

    A `Posterior` has one as `info`. A `Run` keeps a copy, also in its file, without the fields that need the model.

    Parameters
    ----------
    model, formula
        The family or model, and its formula; empty if unknown.
    priors
        Pairs (parameter, prior).
    sites, rows
        Names of the agents, and the number of rows of each; empty if unknown.
    ratio
        What the exponential of a coefficient is called, such as "odds ratio"; empty if it has no name.
    ratios
        Names of the coefficients whose exponential is such a ratio.
    notes
        Sentences below a table of coefficients: dropped rows, reference levels, units, priors.
    coefficients
        One tuple for each coefficient whose prior has moments: name, prior mean, prior standard deviation, and the
        standard deviation of the column over all rows.
    edges
        Pairs of agents that are neighbours; None without a network, or if the network is too large to be drawn.
    predictive
        Draws responses from the model; None if that is not possible.
    floor
        The smallest nonzero count that a site reveals: the largest floor of all sites.
    why_no_check
        The reason why `predictive` is None.
    is_whole
        Whether one process held the rows of all agents when the posterior was made.
    """

    model: str = ""
    formula: str = ""
    priors: tuple[tuple[str, str], ...] = ()
    sites: tuple[str, ...] = ()
    rows: tuple[int, ...] = ()
    ratio: str = ""
    ratios: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    coefficients: tuple[tuple[str, float, float, float], ...] = ()
    edges: tuple[tuple[int, int], ...] | None = None
    predictive: Predictive | None = field(default=None, compare=False)
    floor: int = field(default=3, compare=False)
    why_no_check: str = field(default="the model does not say how its responses are drawn", compare=False)
    is_whole: bool = field(default=True, compare=False)

    def to_json(self) -> str:
        """The fields that a run keeps, as JSON."""
        return json.dumps({one.name: getattr(self, one.name) for one in fields(self) if one.compare})

    @classmethod
    def from_plain(cls, found: dict[str, Any]) -> ModelInfo:
        """A description from the parsed JSON of `to_json`.

        Raises
        ------
        KeyError, TypeError, ValueError
            A field is missing or has another type.
        """
        edges = None if found["edges"] is None else tuple((int(i), int(j)) for i, j in found["edges"])
        return cls(
            model=_text(found["model"]),
            formula=_text(found["formula"]),
            ratio=_text(found["ratio"]),
            priors=tuple((_text(name), _text(prior)) for name, prior in found["priors"]),
            sites=tuple(map(_text, found["sites"])),
            rows=tuple(map(int, found["rows"])),
            ratios=tuple(map(_text, found["ratios"])),
            notes=tuple(map(_text, found.get("notes", ()))),
            edges=edges,
            # older files have no coefficients
            coefficients=tuple(
                (_text(name), float(loc), float(sd), float(of_column))
                for name, loc, sd, of_column in found.get("coefficients", ())
            ),
        )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a text is of type {type(value).__name__}")
    return value
