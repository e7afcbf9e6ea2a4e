"""`accord.report`: writes the page of a run, for which the agents may be asked once more."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..base import figures
from ..base.atomic import write_whole
from ..network import Network
from ..posterior import Posterior
from ..results.points import Points
from ..results.run import Run
from ..samplers.engine import Builder
from .agents import MASKED, Agents, agents_of, kept_running
from .loo import Loo, loo
from .page import Answers, Page, html
from .predictive import Histogram, check_of
from .sites import BySite, by_site, found_or_why, names_of_sites, why_none

_NOT_ASKED = "No agent was asked for this page: it was made without the posterior and the network."


def report(
    run: Run,
    path: str | Path = "report.html",
    post: Posterior | None = None,
    network: Network | None = None,
    *,
    sites: Sequence[str] | None = None,
    engine: str | Builder = "local",
) -> Path:
    """Write a page that says what was asked, what was found and whether it can be relied on; see docs/report.md.

    It is one file that loads nothing from anywhere.

    Parameters
    ----------
    run
        A run, which may come from a file.
    path
        The file, which is replaced where it is there.
    post, network
        The posterior and the network that the run was sampled with. With both, the agents are asked for more parts of
        the page: each site alone and left out, a predictive check, leave-one-out figures. None leaves
        these parts out.
    sites
        Names of all agents, to name them by; None: those that the run knows, or their numbers.
    engine
        What places the data, as in `accord.sample`.

    Returns
    -------
    Path
        Of the file.

    Raises
    ------
    ValueError
        The run is of another posterior or network, only one of these is given, or sites or path are no names.
    ImportError
        Matplotlib is not installed.
    OSError
        The file cannot be written.
    """
    figures.require()
    if not str(path):
        raise ValueError("the path of the page is empty: name a file, such as study.html")
    if (post is None) != (network is None):
        raise ValueError("a page for which agents are asked needs the posterior and the network: give both, or none")
    names = names_of_sites(run, sites)
    if post is None or network is None:
        answers = Answers(_NOT_ASKED, _NOT_ASKED, _NOT_ASKED)
    else:
        answers = _answers(run, post, network, names, engine)
    write_whole(Path(path), html(Page(run, names, answers)).encode())
    return Path(path)


def _answers(run: Run, post: Posterior, network: Network, names: tuple[str, ...], engine: str | Builder) -> Answers:
    """The agents' answers, and what they were asked for."""
    with kept_running(engine) as builder:
        with agents_of(run, post, network, builder) as agents:
            of_sites, asked = _of_sites(run, agents, names)
            check = found_or_why(lambda: check_of(run, agents), "posterior predictive check")
        left_out = found_or_why(lambda: loo(run, post, network, engine=builder), "leave-one-out figures")
    if run.points is not None:
        asked = ("one sum of log densities at three points of the run, to see that the posterior is the run's", *asked)
    if isinstance(check, Histogram):
        asked += ("whole histograms of responses, summed over the sites, under the floors that the caption names",)
    if isinstance(left_out, Loo):
        asked += ("six sums over their rows, each left out in turn",)
    return Answers(of_sites, check, left_out, asked)


def _of_sites(run: Run, agents: Agents, names: tuple[str, ...]) -> tuple[BySite | str, tuple[str, ...]]:
    """The posteriors by site, and what each site was asked for."""
    if len(names) < 2:
        return "No sites to compare: there is one.", ()
    if agents.masks:
        return MASKED + ".", ()
    found = by_site(run, agents, names)
    kinds = {"about its own posterior": found.alone, "of the run": found.without}
    asked = tuple(
        f"the log likelihood of each site's rows at points {of}, not summed over sites"
        for of, own in kinds.items()
        if any(isinstance(one, Points) for one in own)
    )
    return why_none(found) or found, asked
