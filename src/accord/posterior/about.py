"""What a posterior says of itself: words for reports of its runs, and how responses are drawn from its model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from jaxtyping import Array, PyTree


class Predictive(Protocol):
    """How responses are drawn from a model, where its rows are."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes that responses are numbered by; empty where they are numbers."""
        ...

    @property
    def whole(self) -> bool:
        """Whether responses are whole numbers."""
        ...

    def observed(self, rows: PyTree) -> Array:
        """The responses that there are, (row,)."""
        ...

    def replicated(self, params: PyTree, rows: PyTree, key: Array) -> Array:
        """Responses of the same rows drawn from the model, (row,)."""
        ...


@dataclass(frozen=True)
class Said:
    """A model in words.

    Parameters
    ----------
    model, formula
        The family or model, and its formula; empty where nobody said.
    priors
        Lines of names and priors.
    sites, rows
        Names of the agents, and rows of each; empty where the posterior knows them or nobody does.
    ratio
        What the exponential of a coefficient is, as "odds ratio"; empty where it is nothing.
    ratios
        The names of the coefficients of which it is one.
    notes
        Sentences that a table of coefficients needs beside it: rows left out, reference levels, units, priors.
    coefficients
        Coefficients whose prior has a mean and a standard deviation: name, these two, and the standard deviation of the
        column over all rows.
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


@dataclass(frozen=True)
class About(Said):
    """What a posterior is of.

    Parameters
    ----------
    predictive
        How responses are drawn; None where nobody knows.
    floor
        The smallest count above 0 that a site tells, the strictest of all sites.
    why_no_check
        Why there is no `predictive`, in words.
    is_whole
        Whether the rows of all agents were in the process that made it.
    """

    predictive: Predictive | None = field(default=None, compare=False)
    floor: int = 3
    why_no_check: str = "the model does not say how its responses are drawn"
    is_whole: bool = True
