"""Families of times until an event, `surv(time, event)`: event 1 if it was observed, 0 if the time is censored."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ...base.checks import whole_number
from ...base.counters import Normals
from ...data.collectives import Numbers, SiteCollectives
from ..priors import HalfCauchy, Normal
from .family import Family, Parameter, Rows, Summary, numbers, require, require_varied

# Least number of events of an interval, in sds of the noise in counts.
_NOISES = 5.0
# Parts of an interval of log times in one round of the search for quantiles.
_PARTS = 64
# Rounds of the search, to a relative precision of 2^-48.
_ROUNDS = 8


class _Survival(Family):
    columns = ("time", "event")
    left = "surv(time, event)"
    is_log_linear = True
    # whether times of 0 are allowed
    has_zero: ClassVar[bool] = False

    def times(self, where: str, columns: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Times and events of one site, after checks."""
        time, event = (numbers(where, column) for column in columns)
        if self.has_zero:
            require(where, time >= 0, "at times >= 0")
        else:
            require(
                where,
                time > 0,
                "at times > 0: replace times of 0, as in surv(maximum(time, 0.5), event), or use the family cox, "
                "which allows them",
            )
        is_event = np.isin(event, [0.0, 1.0])
        require(where, is_event, "events 0 or 1: write the event as a comparison, as in surv(time, event == 2)")
        return time, event

    def timed(self, where: str, columns: Sequence[np.ndarray]) -> Rows:
        """Times and events of one site, with a warning if it has no event."""
        time, event = self.times(where, columns)
        if not event.any():
            warnings.warn(
                f"{where} has no event in any row: check that the site codes events as the other sites do",
                stacklevel=5,
            )
        return {"time": time, "event": event}

    def amounts(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        return rows["time"], rows["event"]


@dataclasses.dataclass(frozen=True)
class Weibull(_Survival):
    """Times with survival function exp(-(t / exp(eta))^shape). Positive coefficients mean longer times."""

    name = "weibull"
    ratio = "ratio of times"

    def rows(self, where: str, columns: Sequence[np.ndarray]) -> Rows:
        return self.timed(where, columns)

    def parameters(self, summary: Summary) -> dict[str, Parameter]:
        require_varied(summary)
        return {"shape": Parameter(np.array(1.0), "positive", HalfCauchy(1.0))}

    def start(self, summary: Summary) -> float:
        return _log_mean_time(summary)

    def log_density(self, params: dict[str, Array], eta: Array, rows: dict[str, Array]) -> Array:
        shape, log_time = params["shape"], jnp.log(rows["time"])
        log_hazard = shape * (log_time - eta)
        return rows["event"] * (log_hazard + jnp.log(shape) - log_time) - jnp.exp(log_hazard)


@dataclasses.dataclass(frozen=True)
class PiecewiseExponential(_Survival):
    """Proportional hazards with the hazard exp(log_hazard_k + eta) in the k-th interval.

    Parameters
    ----------
    cuts
        Boundaries between intervals, increasing, > 0; None: quantiles of the event times of all sites, computed from
        sums of counts.
    intervals
        Number of intervals if `cuts` is None, default 5.
    """

    cuts: tuple[float, ...] | None = None
    intervals: int = 5
    name = "piecewise_exponential"
    ratio = "hazard ratio"
    has_intercept = False

    def __post_init__(self) -> None:
        whole_number("intervals", self.intervals, 1)
        if self.cuts is not None:
            object.__setattr__(self, "cuts", tuple(float(cut) for cut in self.cuts))
            if not (np.diff([0.0, *self.cuts]) > 0).all():
                raise ValueError(f"cuts must be increasing times > 0, found {list(self.cuts)}")

    def settled(self, meeting: SiteCollectives, responses: Sequence[Sequence[np.ndarray]]) -> PiecewiseExponential:
        if self.cuts is not None:
            return self
        events = []
        for site, columns in zip(meeting.names_here, responses, strict=True):
            time, event = self.times(f"{self.left} at site {site!r}", columns)
            events.append(np.sort(time[event == 1]))
        seen = int(meeting.total([{"events": len(own)} for own in events])["events"])
        if seen < self.intervals:
            raise ValueError(f"{seen} events of all sites are too few for {self.intervals} intervals")
        if meeting.is_coarse and seen < _NOISES * len(meeting.sites) ** 0.5 * self.intervals:
            raise ValueError(
                f"{seen} events of all sites are too few for {self.intervals} intervals, whose cuts are from counts "
                "with noise: name the cuts, as in PiecewiseExponential(cuts=(1.0, 5.0)), or use fewer intervals"
            )
        shares = np.arange(1, self.intervals) / self.intervals

        def below(times: np.ndarray) -> np.ndarray:
            counts = [{"events": np.searchsorted(own, times.ravel(), side="right")} for own in events]
            noisy = [partial(_with_noise, own) for own in counts]
            return np.asarray(meeting.total(counts, noisy)["events"]).reshape(times.shape)

        cuts = tuple(_quantiles(below, shares * seen).tolist())
        if len(set(cuts)) < len(cuts):
            raise ValueError(f"the times have too many ties for {self.intervals} intervals: use fewer intervals")
        return dataclasses.replace(self, cuts=cuts)

    def rows(self, where: str, columns: Sequence[np.ndarray]) -> Rows:
        assert self.cuts is not None
        rows = self.timed(where, columns)
        time, ends = rows["time"], np.array([0.0, *self.cuts, np.inf])
        spent = np.clip(time[:, None], ends[:-1], ends[1:]) - ends[:-1]
        interval = np.searchsorted(self.cuts, time, side="left").astype(np.int32)
        return {**rows, "interval": interval, "spent": spent}

    def parameters(self, summary: Summary) -> dict[str, Parameter]:
        assert self.cuts is not None
        log_hazard = -_log_mean_time(summary)
        init = np.full(len(self.cuts) + 1, log_hazard)
        ends = [f"{end:.4g}" for end in (0.0, *self.cuts)] + ["inf"]
        labels = tuple(f"{start}-{end}" for start, end in zip(ends[:-1], ends[1:], strict=True))
        return {"log_hazard": Parameter(init, None, Normal(log_hazard, 2.5), 1.0, labels)}

    def log_density(self, params: dict[str, Array], eta: Array, rows: dict[str, Array]) -> Array:
        log_hazard = params["log_hazard"]
        cumulative = rows["spent"] @ jnp.exp(log_hazard)
        return rows["event"] * (log_hazard[rows["interval"]] + eta) - cumulative * jnp.exp(eta)


@dataclasses.dataclass(frozen=True)
class Cox(_Survival):
    """Proportional hazards with an unknown baseline for each site: Cox's partial likelihood, stratified by site.

    The partial likelihood is one term for each site, so there are no minibatches. It uses only the order of the times,
    so times may be 0, and it is not a density of times.

    Parameters
    ----------
    efron
        Efron's treatment of ties, the default; False: Breslow's.
    """

    efron: bool = True
    name = "cox"
    ratio = "hazard ratio"
    has_intercept = False
    has_zero = True
    splits = False

    def rows(self, where: str, columns: Sequence[np.ndarray]) -> Rows:
        return self.timed(where, columns)

    def shard(self, rows: Rows, longest: int) -> Rows:
        """Rows sorted from the latest time to the earliest, padded with zeros to `longest` rows."""
        order = np.argsort(-rows["time"], kind="stable")
        time, event = rows["time"][order], rows["event"][order]
        _, tie = np.unique(-time, return_inverse=True)
        # at risk are all rows up to the last one with the same time
        last = np.searchsorted(tie, tie, side="right") - 1
        events_before = np.cumsum(event) - event
        first = np.searchsorted(tie, tie, side="left")
        place = events_before - events_before[first]
        tied = np.bincount(tie, weights=event)[tie]
        # Efron: at the k-th of m tied events, a share (k - 1) / m of the tied risk is gone
        gone = place / np.maximum(tied, 1.0) if self.efron else np.zeros(len(time))
        missing = longest - len(time)
        kept = {name: leaf[order] for name, leaf in rows.items() if name not in ("time", "event")}
        own = {
            "event": event,
            "tie": tie.astype(np.int32),
            "last": last.astype(np.int32),
            "gone": gone,
            "real": np.ones(len(time)),
        }
        return {name: _filled(leaf, missing) for name, leaf in {**kept, **own}.items()}

    def log_density(self, params: dict[str, Array], eta: Array, rows: dict[str, Array]) -> Array:
        log_risk = _log_cumulative(eta, rows["real"])[rows["last"]]
        # padding rows have no event
        had_event = rows["event"] > 0
        shares = jnp.where(had_event, jnp.exp(jnp.where(had_event, eta - log_risk, 0.0)), 0.0)
        together = jax.ops.segment_sum(shares, rows["tie"], num_segments=eta.shape[0])[rows["tie"]]
        each = eta - log_risk - jnp.log1p(-rows["gone"] * together)
        return jnp.sum(jnp.where(had_event, each, 0.0))


def _log_cumulative(eta: Array, real: Array) -> Array:
    """The cumulative log-sum-exp of eta over the real rows.

    `jax.lax.cumlogsumexp` has the same values, but its derivatives take four times as long to compile. Predictors are
    clipped to at most 700 below the largest one of the site (86 in single precision), which keeps the density concave
    and never makes it too large.
    """
    lowest = 0.99 * math.log(float(jnp.finfo(eta.dtype).tiny))
    largest = jnp.max(jnp.where(real > 0, eta, -jnp.inf))
    return largest + jnp.log(jnp.cumsum(jnp.where(real > 0, jnp.exp(jnp.maximum(eta - largest, lowest)), 0.0)))


def _filled(leaf: np.ndarray, missing: int) -> np.ndarray:
    """A leaf padded with rows of zeros."""
    return np.concatenate([leaf, np.zeros((missing, *leaf.shape[1:]), leaf.dtype)])


def _log_mean_time(summary: Summary) -> float:
    """The log of the observed time per event."""
    if not np.isfinite(summary.mean):
        raise ValueError("no site has an event, so the time until an event cannot be estimated")
    return float(np.log(summary.mean))


def _with_noise(counts: Numbers, normals: Normals) -> Numbers:
    """Counts with noise of sd 1."""
    return {name: count + normals.standard_normal(count.shape) for name, count in counts.items()}


def _quantiles(below: Callable[[np.ndarray], np.ndarray], wanted: np.ndarray) -> np.ndarray:
    """Times up to which there are `wanted` events; `below(times)` counts events for times of shape (share, time)."""
    low, high = np.full(wanted.size, -80.0), np.full(wanted.size, 80.0)
    for _ in range(_ROUNDS):
        edges = np.linspace(low, high, _PARTS + 1, axis=1)
        enough = below(np.exp(edges[:, 1:])) >= wanted[:, None]
        # the last edge has enough events, except for noise
        part = np.where(enough.any(axis=1), enough.argmax(axis=1), _PARTS - 1)[:, None]
        low, high = (np.take_along_axis(edges, part + end, axis=1)[:, 0] for end in (0, 1))
    return np.exp(high)
