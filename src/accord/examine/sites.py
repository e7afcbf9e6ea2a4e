"""Comparison of sites: the posterior of each site's data alone, and of all data without the site."""

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
from .alone import alone_of
from .reweighting import each_left_out

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Found = TypeVar("Found")


class BySite(NamedTuple):
    """Weighted points of each site's data alone, and of all data without the site, or a sentence with the reason."""

    names: tuple[str, ...]
    alone: tuple[Points | str, ...]
    without: tuple[Points | str, ...]


def plot_sites(
    run: Run,
    post: Posterior,
    network: Network,
    parameter: str,
    ax: Axes | None = None,
    *,
    engine: str | Builder = "local",
) -> Axes:
    """Forest plot of a parameter by site: each site alone, without each site, and all sites together.

    Parameters
    ----------
    run, post, network, engine
        As in `accord.loo`.
    parameter
        Name of the parameter.
    ax
        Matplotlib axes; None creates a figure.

    Raises
    ------
    ValueError
        There is no such parameter, no site's posterior is known, the sums of the run are masked, or the run is of
        another posterior or network.
    ImportError
        Matplotlib is not installed.
    """
    if parameter not in run.names:
        raise unknown_name_error("parameter", parameter, run.names)
    with agents_of(run, post, network, engine, single=True) as agents:
        found = by_site(run, agents, names_of_sites(run))
    if why := why_none(found):
        raise ValueError(why)
    place = run.names.index(parameter)
    ax = figures.axes(6.0, forest.EDGES + 1.7 * forest.LINE * len(found.names)) if ax is None else ax
    draw_sites(ax, found, run.average[..., place], place)
    ax.set_xlabel(parameter, parse_math=False)
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False, fontsize=8)
    return ax


def names_of_sites(run: Run, sites: Sequence[str] | None = None) -> tuple[str, ...]:
    """A name for each agent: `sites`, the names that the run knows, or "agent" and the number."""
    count = run.traffic.bytes_sent.size
    if sites is None:
        return run.sites or tuple(f"agent {agent}" for agent in range(count))
    if isinstance(sites, str) or len(set(sites)) < len(sites):
        raise ValueError(f"sites must be {count} different names, one per agent, found {sites!r}")
    if len(sites) != count:
        raise ValueError(f"sites must be {count} names, one per agent, found {len(sites)}")
    return tuple(map(str, sites))


def by_site(run: Run, agents: Agents, names: tuple[str, ...]) -> BySite:
    """The posterior of each site's data alone, and of all data without the site, for agents without masked sums."""
    own = found_or_why(lambda: alone_of(run, agents), "posterior of a site alone")
    others = found_or_why(lambda: each_left_out(run, agents), "posterior without a site")
    alone = [own] * len(names) if isinstance(own, str) else [one.why or one.points for one in own]
    if isinstance(others, str):
        return BySite(names, tuple(alone), (others,) * len(names))
    # replace agent numbers by names
    without = [
        one.replace(f"agent {agent}", name) if isinstance(one, str) else one.points
        for agent, (one, name) in enumerate(zip(others, names, strict=True))
    ]
    return BySite(names, tuple(alone), tuple(without))


def why_none(found: BySite) -> str:
    """The reason why no site's posterior is known; empty if one is known."""
    if any(isinstance(own, Points) for own in (*found.alone, *found.without)):
        return ""
    return " ".join(dict.fromkeys([str(found.alone[0]), str(found.without[0])]))


def found_or_why(find: Callable[[], Found], what: str) -> Found | str:
    """The result of `find`, or a sentence with the reason if it fails."""
    try:
        with warnings.catch_warnings():
            # the result repeats the content of the warnings
            warnings.simplefilter("ignore", UserWarning)
            return find()
    except (AttributeError, ArithmeticError, ValueError, TypeError) as error:
        # for example, a run that is not certified, or sites of a federation that refuse a query
        text = str(error)
        return text if text.startswith("No ") else f"No {what}: {text}."


def draw_sites(ax: Any, found: BySite, draws: np.ndarray, parameter: int) -> None:
    """Plot one parameter by site alone and without the site. The band shows `draws` of all data, (chain, draw)."""
    flat = draws.ravel().astype(np.float64)
    low, high = np.quantile(flat, [0.05, 0.95])
    ax.axvspan(low, high, color=SOFT, alpha=0.15, linewidth=0, label="all together")
    ax.axvline(flat.mean(), color=SOFT, linewidth=1.0)
    kinds = [
        (found.alone, COLORS["vermillion"], "o", "the site alone"),
        (found.without, COLORS["blue"], "s", "without the site"),
    ]
    # kinds without any known interval are explained in the text of the report
    known = [kind for kind in kinds if any(isinstance(own, Points) for own in kind[0])]
    offsets = (0.0,) if len(known) == 1 else (-0.17, 0.17)
    for offset, (sites, color, marker, label) in zip(offsets, known, strict=False):
        # marker for a legend
        ax.scatter([], [], color=color, marker=marker, s=12, label=label)
        for place, own in enumerate(sites):
            _interval(ax, own, parameter, place + offset, color, marker)
    ax.set(xlabel="value", ylabel="site")
    forest.lines(ax, [forest.shortened(name, 20) for name in found.names])


def _interval(ax: Any, own: Points | str, parameter: int, place: float, color: str, marker: str) -> None:
    if isinstance(own, str):
        # at the left edge of the plot
        ax.text(0.01, place, "not known", color=color, fontsize=7, va="center", transform=ax.get_yaxis_transform())
        return
    low, high = quantiles(own.values[:, [parameter]], own.weight, (0.05, 0.95))
    ax.hlines(place, low[0], high[0], color=color, linewidth=1.5)
    ax.plot(own.mean[parameter], place, marker, color=color, markeredgecolor=color, markersize=3.5)
