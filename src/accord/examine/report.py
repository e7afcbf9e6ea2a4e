"""`accord.report`: writes the HTML report of a run, for which agents may be queried."""

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
from .meta_analysis import MetaAnalysis, analysed
from .page import Answers, Page, html
from .predictive import Histogram, check_of
from .sites import BySite, by_site, found_or_why, names_of_sites, why_none

_NOT_QUERIED = (
    "Not computed: this report was made without the posterior and the network, so no agent was queried. The "
    "report also has no leave-one-out cross-validation, no posterior by site and no meta-analysis."
)


def report(
    run: Run,
    path: str | Path = "report.html",
    post: Posterior | None = None,
    network: Network | None = None,
    *,
    sites: Sequence[str] | None = None,
    engine: str | Builder = "local",
) -> Path:
    """Write an HTML report of a run: verdict, posterior, plots, checks, model and cost; see docs/report.md.

    The report is one file that loads nothing from other files or the network.

    Parameters
    ----------
    run
        A run, also one from a file.
    path
        Path of the report. An existing file is replaced.
    post, network
        The posterior and the network of the run. With both, agents are queried for more sections: each site alone and
        left out, a posterior predictive check, leave-one-out cross-validation. None leaves these sections out.
    sites
        Names of all agents; None: the names that the run knows, else numbers.
    engine
        Engine that places the data, as in `accord.sample`.

    Returns
    -------
    Path
        Path of the report.

    Raises
    ------
    ValueError
        The run is of another posterior or network, only one of them is given, or `sites` or `path` is invalid.
    ImportError
        Matplotlib is not installed.
    OSError
        The file cannot be written.
    """
    figures.require()
    if not str(path):
        raise ValueError("the path of the report is empty: name a file, such as study.html")
    if Path(path).is_dir():
        raise ValueError(f"the path of the report, {path}, is a folder: name a file in it, such as study.html")
    if (post is None) != (network is None):
        raise ValueError("a report that queries agents needs the posterior and the network: pass both or neither")
    names = names_of_sites(run, sites)
    if post is None or network is None:
        answers = Answers(of_sites="", check=_NOT_QUERIED, loo="", meta="")
    else:
        answers = _answers(run, post, network, names, engine)
    write_whole(Path(path), html(Page(run, names, answers)).encode())
    return Path(path)


def _answers(run: Run, post: Posterior, network: Network, names: tuple[str, ...], engine: str | Builder) -> Answers:
    """Query the agents for all sections that need them."""
    with kept_running(engine) as builder:
        with agents_of(run, post, network, builder) as agents:
            of_sites, requests = _of_sites(run, agents, names)
            meta = _meta(run, agents, names)
            check = found_or_why(lambda: check_of(run, agents), "posterior predictive check")
        left_out = found_or_why(lambda: loo(run, post, network, engine=builder), "leave-one-out cross-validation")
    if run.points is not None:
        requests = ("one sum of log densities at three points of the run, to verify the posterior", *requests)
    if isinstance(check, Histogram):
        requests += ("histograms of responses, summed over the sites, without small counts as the caption explains",)
    if isinstance(left_out, Loo):
        requests += ("six sums over rows for leave-one-out cross-validation, summed over the sites",)
    if isinstance(meta, MetaAnalysis):
        requests += (
            "each site's own maximum likelihood estimates and standard errors, "
            "with gradients and curvatures of its log likelihood on the way",
            "one sum of the sites' modes and curvatures, as in the first sum of Importance()",
        )
    return Answers(of_sites, check, left_out, meta, requests)


def _of_sites(run: Run, agents: Agents, names: tuple[str, ...]) -> tuple[BySite | str, tuple[str, ...]]:
    """The posteriors by site, and sentences about the messages of the sites."""
    if len(names) < 2:
        return "No sites to compare: the run has one site.", ()
    if agents.masks:
        return MASKED + ".", ()
    found = by_site(run, agents, names)
    kinds = {"near its own posterior": found.alone, "of the run": found.without}
    requests = tuple(
        f"each site's own log likelihood at points {of}, not summed with other sites"
        for of, own in kinds.items()
        if any(isinstance(one, Points) for one in own)
    )
    return why_none(found) or found, requests


def _meta(run: Run, agents: Agents, names: tuple[str, ...]) -> MetaAnalysis | str:
    """The meta-analysis of the sites' own estimates, or the reason why there is none."""
    if len(names) < 2:
        return "No meta-analysis: the run has one site."
    if agents.masks:
        return MASKED + "."
    return found_or_why(lambda: analysed(run, agents, names), "meta-analysis")
