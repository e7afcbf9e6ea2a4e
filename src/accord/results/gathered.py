"""What a report tells, gathered from a run; where a part is missing, why."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ..base.errors import DataError
from ..base.weights import quantiles
from ..network.drawing import svg
from ..report.told import Histogram, Interval, LeaveOneOut, Line, OfSite, Ratio, Site, Told
from .alone import Alone
from .asked import Asked
from .loo import Loo
from .points import Points
from .reported import Reported
from .reweighting import LeftOut

if TYPE_CHECKING:
    import pandas as pd

Found = TypeVar("Found")
# Settings that a page has lines of its own for, or no room.
_ELSEWHERE = ("method", "network", "sites", "agreed", "chosen", "local", "sds")

# Priors that one note lists.
_MOST_PRIORS = 8


def told(run: Reported, sites: Sequence[str] | None = None, ask: bool = True) -> Told:
    """All that a page tells of a run.

    Parameters
    ----------
    run
        The run.
    sites
        Names of all agents; None: those that the run knows, or their numbers.
    ask
        Whether to ask the agents again for what the page shows of their rows.
    """
    names = site_names(run, sites)
    asked, table = run.asked, run.table(names)
    why = "No agent was asked for this page (ask=False)."
    of_sites, later = _of_sites(run, names) if ask else (why, ())
    check = _or_why(run.predictive_check, "posterior predictive check") if ask else why
    loo = _or_why(lambda: _figures(run.loo()), "leave-one-out figures") if ask else why
    if isinstance(check, Histogram):
        later += ("for whole histograms of responses, summed over the sites, under the floors that the caption names",)
    if isinstance(loo, LeaveOneOut):
        later += ("for six sums over their rows, each left out in turn",)
    found = _or_why(lambda: _ratios(run), "ratios")
    return Told(
        model=asked.model,
        formula=asked.formula,
        priors=asked.priors,
        notes=notes_of(run),
        method=_method(run.settings),
        network=str(run.settings.get("network", "")).strip("<>"),
        settings=tuple(
            (n, str(value)) for n, value in run.settings.items() if n not in _ELSEWHERE and value is not False
        ),
        drawing=_drawing(asked, names),
        sites=_sites(run, names),
        certificate=()
        if run.certificate is None
        else tuple((check.holds, check.name, check.text) for check in run.certificate.checks),
        warnings=(*_of_temperature(run), *run.warnings(names)),
        names=run.names,
        draws=run.average.astype(np.float64),
        average=_lines(table, "average"),
        worst=_lines(table, "worst agent"),
        ratio=asked.ratio,
        ratios=found,
        units=" as it was in the files, before it was standardised"
        if run.settings.get("sds")
        else " as the model was given it",
        weights=_weights(run),
        of_sites=of_sites,
        check=check,
        loo=loo,
        evidence=_or_why(lambda: run.log_evidence, "evidence"),
        rounds=run.traffic.rounds,
        exchanges=run.traffic.exchanges,
        sums=run.traffic.sums,
        seconds=run.seconds,
        meaning=_meaning(run),
        asked_later=later,
    )


def site_names(run: Reported, sites: Sequence[str] | None = None) -> tuple[str, ...]:
    """A name for each agent: those given, those that the run knows, or numbers."""
    count = run.traffic.bytes_sent.size
    if sites is not None and (isinstance(sites, str) or len(set(sites)) < len(sites)):
        raise ValueError(f"sites must be {count} different names, one an agent, found {sites!r}")
    for known in (sites, run.settings.get("sites"), run.asked.sites):
        if known is not None and len(known) == count:
            return tuple(map(str, known))
        if sites is not None and known is sites:
            raise ValueError(f"sites must be {count} names, one an agent, found {len(sites)}")
    return tuple(f"agent {agent}" for agent in range(count))


def _or_why(find: Callable[[], Found], what: str) -> Found | str:
    """What is found, or in a sentence why it is not."""
    try:
        with warnings.catch_warnings():
            # bad rows and the like are in what is found
            warnings.simplefilter("ignore", UserWarning)
            return find()
    except (AttributeError, ArithmeticError, ValueError, TypeError, DataError) as error:
        # of a run that knows no agents, is not certified, ...; a federation's sites refuse what they do not answer
        text = str(error)
        return text if text.startswith("No ") else f"No {what}: {text}."


def _of_temperature(run: Reported) -> tuple[str, ...]:
    """What draws at another temperature are, of which `warnings` says nothing."""
    temperature = run.settings.get("temperature", 1.0)
    if temperature == 1.0:
        return ()
    if temperature == 0.0:
        return ("these are no draws: at temperature 0 the method only optimises; sample at temperature 1",)
    return (f"these draws are at temperature {temperature:g}, and not of the posterior; sample at temperature 1",)


def _method(settings: Mapping[str, Any]) -> str:
    chosen = settings.get("chosen")
    return str(settings.get("method", "not known")) + (f". Chosen: {chosen}" if chosen else "")


def _drawing(asked: Asked, names: Sequence[str]) -> str:
    if asked.edges is None or len(names) < 2:
        return ""
    return svg(np.array(asked.edges, dtype=np.int64).reshape(-1, 2), names)


def notes_of(run: Reported) -> tuple[str, ...]:
    """Sentences beside the table of a run: rows left out, reference levels, units, and priors."""
    sds, priors = run.settings.get("sds", {}), run.asked.priors
    notes = list(run.asked.notes)
    if sds:
        listed = ", ".join(f"{name} {sd:.3g}" for name, sd in sds.items())
        notes.append(f"Coefficients are per standard deviation of the column: {listed}.")
    named = [f"{name} {prior}" for name, prior in priors if name]
    if named:
        more = f"; and {len(named) - _MOST_PRIORS} more" if len(named) > _MOST_PRIORS else ""
        notes.append(f"Priors: {'; '.join(named[:_MOST_PRIORS])}{more}.")
    return (*notes, *(note for name, note in priors if not name))


def _sites(run: Reported, names: Sequence[str]) -> tuple[Site, ...]:
    traffic, count = run.traffic, len(names)
    # of one chain where chains walk by themselves; sums are those of all chains
    chains = 1 if run.certificate is not None else run.average.shape[0]
    sent = np.broadcast_to(traffic.bytes_sent, count) * chains
    read = (np.broadcast_to(traffic.gradient_rows, count) + np.broadcast_to(traffic.value_rows, count)) * chains
    rows = run.asked.rows if len(run.asked.rows) == count else (None,) * count
    return tuple(
        Site(*one) for one in zip(names, rows, sent.astype(int).tolist(), read.astype(int).tolist(), strict=True)
    )


def _meaning(run: Reported) -> str:
    """What left the sites, in words."""
    if run.certificate is not None:
        masked = (
            " Each site masked its numbers, so that nobody saw them before they were summed."
            if run.settings.get("masks")
            else " Who passes sums on, and a hub, sees the numbers of those below; masks=True hides them."
        )
        return (
            "What left a site: values, slopes and curvatures of its log likelihood at points that all sites are asked "
            f"at, added up over the sites; no row.{masked} A sum tells of the rows too: this is no privacy guarantee."
        )
    if "network" not in run.settings:
        return (
            "What left a site: the draws of its own data's posterior, or what stands for them, once; no row. Draws "
            "tell of the rows too: this is no privacy guarantee."
        )
    return (
        "What left a site: the messages of the method, as positions or gradients, sent to its neighbours in each "
        "round, and sums of its warm-up; no row. A message tells of the rows too: this is no privacy guarantee."
    )


def _lines(table: pd.DataFrame, block: str) -> tuple[Line, ...]:
    if block not in table:
        return ()
    own = table[block]
    numbers = own[["mean", "sd", "5%", "95%", "ess", "rhat"]].to_numpy(dtype=float)
    agents = [str(agent) for agent in own["agent"]] if "agent" in own else [""] * len(own)
    return tuple(Line._make([*line, agent]) for line, agent in zip(numbers.tolist(), agents, strict=True))


def _ratios(run: Reported) -> tuple[Ratio, ...]:
    table = run.ratios()
    return tuple(
        Ratio(str(name), *numbers) for name, numbers in zip(table.index, table.to_numpy().tolist(), strict=True)
    )


def _weights(run: Reported) -> np.ndarray | str:
    if run.points is not None:
        return run.points.weight
    return f"No weights: {str(run.settings.get('method', 'the method')).partition('(')[0]} draws without them."


def _figures(found: Loo) -> LeaveOneOut:
    return LeaveOneOut(found.elpd, found.se, found.p, found.rows, found.good_k, found.bad, found.k)


def _of_sites(run: Reported, names: Sequence[str]) -> tuple[tuple[OfSite, ...] | str, tuple[str, ...]]:
    """What each site's data says, and what it was asked for."""
    if len(names) < 2:
        return "No sites to compare: there is one.", ()
    found = by_site(run, names)
    asked: tuple[str, ...] = ()
    alone, without = ([getattr(one, part) for one in found] for part in ("alone", "without"))
    if any(own.mean is not None for own in alone):
        asked += ("each for the log likelihood of its rows at points about its own posterior, told by itself",)
    if any(own.mean is not None for own in without):
        asked += ("each for the log likelihood of its rows at the points of the run, told by itself",)
    if not asked:
        return " ".join(dict.fromkeys([alone[0].why, without[0].why])), ()
    return found, asked


def by_site(run: Reported, names: Sequence[str]) -> tuple[OfSite, ...]:
    """The posterior of each site's data alone, and without it."""
    alone = _or_why(run.alone, "posterior of a site alone")
    without = _or_why(run.leave_each_out, "posterior without a site")
    return tuple(
        OfSite(
            name,
            _not_known(alone) if isinstance(alone, str) else _of_alone(alone[agent]),
            _not_known(without) if isinstance(without, str) else _of_left_out(without[agent], agent, name),
        )
        for agent, name in enumerate(names)
    )


def together(average: np.ndarray) -> Interval:
    """The posterior of all data, from draws (chain, draw, dim)."""
    flat = average.reshape(-1, average.shape[2]).astype(np.float64)
    low, high = np.quantile(flat, [0.05, 0.95], axis=0)
    return Interval(flat.mean(axis=0), low, high)


def _not_known(why: str) -> Interval:
    return Interval(None, None, None, why)


def _of_left_out(one: LeftOut | str, agent: int, name: str) -> Interval:
    # a run knows agents by number, and a page by name
    return _not_known(one.replace(f"agent {agent}", name)) if isinstance(one, str) else _of_points(one.points)


def _of_alone(one: Alone) -> Interval:
    return _not_known(one.why) if one.why else _of_points(one.points)


def _of_points(points: Points) -> Interval:
    low, high = quantiles(points.values, points.weight, (0.05, 0.95))
    return Interval(points.mean, low, high)
