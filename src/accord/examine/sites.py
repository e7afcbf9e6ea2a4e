"""A parameter by site: the posterior of each site's data alone, and that of all data without the site."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from ..base import figures
from ..base.errors import unknown_name_error
from ..base.figures import COLORS, SOFT
from ..base.weights import quantiles
from ..network import Network
from ..posterior import Posterior
from ..results import forest
from ..results.points import Points
from ..results.run import Run
from ..samplers.engine import Builder
from .agents import Agents, agents_of
from .alone import Alone, alone_of
from .reweighting import LeftOut, each_left_out

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Found = TypeVar("Found")


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


def plot_sites(
    run: Run,
    post: Posterior,
    network: Network,
    parameter: str,
    ax: Axes | None = None,
    *,
    engine: str | Builder = "local",
) -> Axes:
    """Forest plot of the sites: a parameter by each site alone, without each site, and of all together.

    Parameters
    ----------
    run, post, network
        A run, which may come from a file, and the posterior and the network that it was sampled with.
    parameter
        The parameter's name.
    ax
        Axes to draw on; None makes a figure.
    engine
        What places the data, as in `accord.sample`.

    Raises
    ------
    ValueError
        There is no such parameter, or no site's posterior is known, as where the sums of the run are masked or it is
        of another posterior or network.
    ImportError
        Matplotlib is not installed.
    """
    if parameter not in run.names:
        raise unknown_name_error("parameter", parameter, run.names)
    with agents_of(run, post, network, engine, single=True) as agents:
        found = by_site(run, agents, names_of_sites(run))
    if all(own.mean is None for one in found for own in (one.alone, one.without)):
        raise ValueError(" ".join(dict.fromkeys([found[0].alone.why, found[0].without.why])))
    ax = figures.axes(6.0, forest.EDGES + 1.7 * forest.LINE * len(found)) if ax is None else ax
    draw_sites(ax, found, together(run.average), run.names.index(parameter))
    ax.set_xlabel(parameter, parse_math=False)
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False, fontsize=8)
    return ax


def names_of_sites(run: Run, sites: Sequence[str] | None = None) -> tuple[str, ...]:
    """A name for each agent: those given, those that the run knows, or numbers."""
    count = run.traffic.bytes_sent.size
    if sites is None:
        return run.sites or tuple(f"agent {agent}" for agent in range(count))
    if isinstance(sites, str) or len(set(sites)) < len(sites):
        raise ValueError(f"sites must be {count} different names, one an agent, found {sites!r}")
    if len(sites) != count:
        raise ValueError(f"sites must be {count} names, one an agent, found {len(sites)}")
    return tuple(map(str, sites))


def by_site(run: Run, agents: Agents, names: Sequence[str]) -> tuple[OfSite, ...]:
    """The posterior of each site's data alone, and without it, from agents whose sums are not masked."""
    own = found_or_why(lambda: alone_of(run, agents), "posterior of a site alone")
    others = found_or_why(lambda: each_left_out(run, agents), "posterior without a site")
    return tuple(
        OfSite(
            name,
            Interval(None, None, None, own) if isinstance(own, str) else _of_alone(own[agent]),
            Interval(None, None, None, others) if isinstance(others, str) else _left_out(others[agent], agent, name),
        )
        for agent, name in enumerate(names)
    )


def together(average: np.ndarray) -> Interval:
    """The posterior of all data, from draws (chain, draw, dim)."""
    flat = average.reshape(-1, average.shape[2]).astype(np.float64)
    low, high = np.quantile(flat, [0.05, 0.95], axis=0)
    return Interval(flat.mean(axis=0), low, high)


def found_or_why(find: Callable[[], Found], what: str) -> Found | str:
    """What is found, or a sentence why there is none."""
    try:
        with warnings.catch_warnings():
            # bad rows and the like are in what is found
            warnings.simplefilter("ignore", UserWarning)
            return find()
    except (AttributeError, ArithmeticError, ValueError, TypeError) as error:
        # of a run that is not certified, ...; sites of a federation refuse questions that they do not answer
        text = str(error)
        return text if text.startswith("No ") else f"No {what}: {text}."


def _left_out(one: LeftOut | str, agent: int, name: str) -> Interval:
    # a run knows agents by number, and a page by name
    if isinstance(one, str):
        return Interval(None, None, None, one.replace(f"agent {agent}", name))
    return _of_points(one.points)


def _of_alone(one: Alone) -> Interval:
    return Interval(None, None, None, one.why) if one.why else _of_points(one.points)


def _of_points(points: Points) -> Interval:
    low, high = quantiles(points.values, points.weight, (0.05, 0.95))
    return Interval(points.mean, low, high)


def draw_sites(ax: Any, found: Sequence[OfSite], together: Interval, parameter: int) -> None:
    """One parameter by each site alone, without each site, and of all together, which is the band."""
    assert together.mean is not None and together.low is not None and together.high is not None
    low, high = together.low[parameter], together.high[parameter]
    ax.axvspan(low, high, color=SOFT, alpha=0.15, linewidth=0, label="all together")
    ax.axvline(together.mean[parameter], color=SOFT, linewidth=1.0)
    kinds = [
        ([one.alone for one in found], COLORS["vermillion"], "o", "the site alone"),
        ([one.without for one in found], COLORS["blue"], "s", "without the site"),
    ]
    # where no site's is known, the reason stands below once
    known = [kind for kind in kinds if any(own.mean is not None for own in kind[0])]
    offsets = (0.0,) if len(known) == 1 else (-0.17, 0.17)
    for offset, (intervals, color, marker, label) in zip(offsets, known, strict=False):
        # one for the legend, if there is to be one
        ax.scatter([], [], color=color, marker=marker, s=12, label=label)
        for place, own in enumerate(intervals):
            _interval(ax, own, parameter, place + offset, color, marker)
    forest.lines(ax, [forest.shortened(one.name, 20) for one in found])


def _interval(ax: Any, own: Interval, parameter: int, place: float, color: str, marker: str) -> None:
    if own.mean is None or own.low is None or own.high is None:
        # beside the axis, where no interval is
        ax.text(0.01, place, "not known", color=color, fontsize=7, va="center", transform=ax.get_yaxis_transform())
        return
    ax.hlines(place, own.low[parameter], own.high[parameter], color=color, linewidth=1.5)
    ax.plot(own.mean[parameter], place, marker, color=color, markeredgecolor=color, markersize=3.5)
