"""What a report tells: plain values, gathered from a run by `results.gathered`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


class Site(NamedTuple):
    """A site.

    Parameters
    ----------
    name
        Its name.
    rows
        Its rows; None: they are not known here.
    bytes_sent, rows_read
        Bytes that it sent over the run, and rows that it read for gradients and values.
    """

    name: str
    rows: int | None
    bytes_sent: int
    rows_read: int


class Line(NamedTuple):
    """A parameter in the table: of the average or, with its name, of the agent furthest from it."""

    mean: float
    sd: float
    low: float
    high: float
    ess: float
    rhat: float
    agent: str


class Ratio(NamedTuple):
    """The exponential of a coefficient: median, 5% and 95% quantiles, and the probability that it is above 1."""

    name: str
    median: float
    low: float
    high: float
    above: float


class Interval(NamedTuple):
    """A mean with 5% and 95% quantiles of each parameter, (dim,); or in `why` a sentence why there are none."""

    mean: np.ndarray | None
    low: np.ndarray | None
    high: np.ndarray | None
    why: str = ""


class OfSite(NamedTuple):
    """The posterior of one site's data alone, and that without it."""

    name: str
    alone: Interval
    without: Interval


class Histogram(NamedTuple):
    """Responses of the sites that take part in the check, in bins.

    Parameters
    ----------
    labels
        Of the bins.
    observed
        Rows in each, (bin,).
    replicated
        The same of responses drawn from the model at draws of the run, (draw, bin).
    sites, of_sites
        Sites that take part, and all.
    rows
        Their rows.
    floor
        The smallest count of a site that enters.
    """

    labels: tuple[str, ...]
    observed: np.ndarray
    replicated: np.ndarray
    sites: int
    of_sites: int
    rows: int
    floor: int


class LeaveOneOut(NamedTuple):
    """The figures of `Run.loo`, by its names."""

    elpd: float
    se: float
    p: float
    rows: int
    good_k: float
    bad: int
    k: float


@dataclass(frozen=True)
class Told:
    """All that a page tells of a run; where a part is missing, a sentence says why in its place.

    Parameters
    ----------
    model, formula, priors
        What was asked: the family, the formula, and lines of names and priors; empty where nothing is known of them.
    notes
        Sentences beside the table of coefficients.
    method, network, settings
        How it was drawn: the method, the network, and other numbers by name.
    drawing
        The network as an SVG, or "".
    sites
        Who was asked.
    certificate
        Whether each check holds, its name and its sentence; empty where the method has none.
    warnings
        Of `Run.summary`, each with a remedy.
    names, draws
        The parameters, and draws of the average, (chain, draw, dim).
    average, worst
        Lines of the table by parameter; `worst` is empty where no agent's draws were kept.
    ratio, ratios
        What the exponential of a coefficient is, as "odds ratio", and those of this run; or why there are none.
    units
        What a unit of a column is, to be said of ratios; "" where it is that of the model.
    weights
        Of the points that the draws are of, of mean one, (point,); or why there are none.
    of_sites
        What each site's data says; or why that is not known.
    check
        The posterior predictive check.
    loo, evidence
        Leave-one-out figures; log evidence and its standard error.
    rounds, exchanges, sums, seconds
        What it took.
    meaning
        What left a site, in words.
    asked_later
        What the agents were asked for by this page, in sentences.
    """

    model: str
    formula: str
    priors: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    method: str
    network: str
    settings: tuple[tuple[str, str], ...]
    drawing: str
    sites: tuple[Site, ...]
    certificate: tuple[tuple[bool, str, str], ...]
    warnings: tuple[str, ...]
    names: tuple[str, ...]
    draws: np.ndarray
    average: tuple[Line, ...]
    worst: tuple[Line, ...]
    ratio: str
    ratios: tuple[Ratio, ...] | str
    units: str
    weights: np.ndarray | str
    of_sites: tuple[OfSite, ...] | str
    check: Histogram | str
    loo: LeaveOneOut | str
    evidence: tuple[float, float] | str
    rounds: int
    exchanges: int
    sums: int
    seconds: float
    meaning: str
    asked_later: tuple[str, ...]
