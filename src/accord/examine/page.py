"""The HTML report of a run, section by section."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base import figures
from ..base.figures import COLORS, INK
from ..base.page import Cell, bullets, document, number, paragraph, table
from ..base.text import __version__, counted, human_bytes
from ..network.drawing import svg
from ..results import forest
from ..results.points import Points
from ..results.run import Run
from ..results.warnings import uncertified
from . import drawings
from .loo import Loo
from .meta_analysis import MetaAnalysis, Pooled
from .predictive import Histogram
from .sites import BySite, draw_sites, found_or_why

if TYPE_CHECKING:
    import pandas as pd

# Largest number of parameters with small plots. Of more parameters those with the smallest ESS have plots.
_MOST = 30
# Largest number of sites in a plot.
_MOST_SITES = 24
# Largest number of lines of forest plots.
_MOST_LINES = 120
# Largest number of parameters with a plot by site. Of more parameters those that depend most on a site have plots.
_MOST_BY_SITE = 12
# Largest number of characters in the title of a small plot.
_LETTERS = 28
# Width and height of a small plot, in inches of 96 pixels.
_SMALL = (2.75, 2.0)
_NO_ONE_SHOT = "No one-shot estimate (BFI): the curvatures of the sites together do not determine a position."
_TITLE = "Report of a run"
# Settings with lines of their own, or too long for the report.
_ELSEWHERE = ("method", "network", "sites", "agreed", "chosen", "local", "sds")
# Largest number of priors in one note.
_MOST_PRIORS = 8

_GLOSSARY = (
    ("agent, site", "one owner of data. The rows stay there."),
    ("draws", "values of the parameters, distributed as data and prior imply."),
    ("interval", "from the 5% to the 95% quantile of the draws. It contains the parameter with probability 0.9."),
    ("ESS", "effective sample size: the number of independent draws with the same precision. Below 400 is low."),
    ("R-hat", "close to 1 if the chains agree. Above 1.01 they disagree."),
    ("certificate", "checks that the draws follow the posterior, made with sums over all sites."),
    ("worst agent", "for each parameter, the agent whose draws differ most from the average's."),
    (
        "one shot (BFI)",
        "Bayesian federated inference: the mean of the sites' modes, weighted by their curvatures, from one sum.",
    ),
    ("tau", "standard deviation between the true values of the sites. It is 0 if all sites have one value."),
    ("exchange", "one message from every agent to its neighbours. A sum over all sites takes several exchanges."),
)


@dataclass(frozen=True)
class Answers:
    """Results that needed the agents. A sentence replaces a missing result and gives the reason, an empty text none.

    Parameters
    ----------
    of_sites
        The posterior of each site's data alone, and without the site.
    check
        The posterior predictive check.
    loo
        Leave-one-out cross-validation.
    meta
        The meta-analysis of the sites' own estimates.
    requests
        Sentences about the messages that the agents sent for these results.
    """

    of_sites: BySite | str
    check: Histogram | str
    loo: Loo | str
    meta: MetaAnalysis | str
    requests: tuple[str, ...] = ()


@dataclass(frozen=True)
class Page:
    """A run with the names of its sites, and the agents' answers."""

    run: Run
    sites: tuple[str, ...]
    answers: Answers

    @cached_property
    def average(self) -> pd.DataFrame:
        """Summary of the average's draws."""
        return self._table["average"]

    @cached_property
    def worst(self) -> pd.DataFrame | None:
        """Summary of the worst agents' draws, or None if the run kept no agents."""
        return self._table["worst agent"] if "worst agent" in self._table else None

    @cached_property
    def _table(self) -> pd.DataFrame:
        return self.run.table(self.sites)

    @cached_property
    def draws(self) -> np.ndarray:
        """Draws of the average in double precision, (chain, draw, dim)."""
        return self.run.average.astype(np.float64)

    @cached_property
    def warnings(self) -> list[str]:
        """Warnings of the run, each with a remedy, without failed checks of its certificate."""
        temperature = self.run.settings.get("temperature", 1.0)
        found = [text for text in self.run.warnings(self.sites) if text != uncertified(self.run.certificate)]
        if temperature == 0.0:
            return ["these are no draws: at temperature 0 the method only optimises; sample at temperature 1", *found]
        if temperature != 1.0:
            why = f"these draws are at temperature {temperature:g}, and not of the posterior; sample at temperature 1"
            return [why, *found]
        return found

    @cached_property
    def bytes_sent(self) -> np.ndarray:
        """Bytes that each site sent, (site,)."""
        return self._of_all_chains(self.run.traffic.bytes_sent)

    @cached_property
    def rows_read(self) -> np.ndarray:
        """Rows that each site read for gradients and values, (site,)."""
        traffic = self.run.traffic
        return self._of_all_chains(traffic.gradient_rows) + self._of_all_chains(traffic.value_rows)

    def _of_all_chains(self, counts: Any) -> np.ndarray:
        # sum-based methods count all chains together, others count one chain
        chains = 1 if self.run.certificate is not None else self.run.average.shape[0]
        return (np.broadcast_to(counts, len(self.sites)) * chains).astype(int)

    @property
    def method(self) -> str:
        """Name of the method."""
        return str(self.run.settings.get("method", "the method")).partition("(")[0]


def html(page: Page) -> str:
    """The whole report.

    Raises
    ------
    ImportError
        matplotlib is not installed.
    """
    figures.require()
    made = ((title, anchor, section(page)) for title, anchor, section in _SECTIONS)
    sections = [own for own in made if own[2]]
    links = "".join(f'<a href="#{anchor}">{escape(title)}</a>' for title, anchor, _ in sections)
    body = [f"<nav>{links}</nav>"]
    body += [f'<section id="{anchor}"><h2>{escape(title)}</h2>\n{text}</section>' for title, anchor, text in sections]
    of = page.run.info.formula or page.run.info.model
    title = f"{_TITLE}: {of}" if of else _TITLE
    return document(f"{title} (accord)", "\n".join(body), title)


# --- verdict ---


def _verdict(page: Page) -> str:
    certificate, count = page.run.certificate, len(page.warnings)
    if certificate is None:
        text = f"Not certified: {page.method} has no certificate."
    elif certificate.holds:
        text = f"Certified: all {len(certificate.checks)} checks passed."
        text += " They test the draws, and not whether the model fits the data."
    else:
        text = f"Not certified: {certificate.why}."
    if count:
        text += f" {counted(count, 'warning')} below: fix {'it' if count == 1 else 'them'} before you use the draws."
        look = " bad"
    elif certificate is None:
        found = page.run.findings
        bias = "estimated" if found.estimated else "predicted"
        text += (
            f" ESS, R-hat and tails raise no warning. No bias was predicted: {found.reason}."
            if found.expected is None
            else f" ESS, R-hat, tails and the {bias} bias of the method raise no warning."
        )
        look = " open"
    else:
        look = "" if certificate.holds else " bad"
    box = f'<div class="verdict{look}"><strong>{escape(text)}</strong>{_size(page)}</div>'
    return "\n".join([box, "<h3>Warnings</h3>", bullets(page.warnings)] if page.warnings else [box])


def _size(page: Page) -> str:
    chains, count, dim = page.draws.shape
    least = page.average["ess"].to_numpy(dtype=float)
    ess = f", at least {np.nanmin(least):,.0f} effective draws" if np.isfinite(least).any() else ""
    return paragraph(f"{counted(chains, 'chain')} of {counted(count, 'draw')} of {counted(dim, 'parameter')}{ess}.")


# --- posterior ---


def _posterior(page: Page) -> str:
    kind, found = page.run.info.ratio, found_or_why(page.run.ratios, "ratios")
    beside: dict[str, list[Cell]] = {}
    head = ["parameter", *_headings("mean", "sd", "5%", "95%", "ESS", "R-hat")]
    if not isinstance(found, str):
        head += _headings(kind, f"{kind} 5%", f"{kind} 95%", f"P({kind} > 1)")
        for name, (*values, above) in zip(found.index, found.to_numpy().tolist(), strict=True):
            beside[name] = [number(cell) for cell in _ratios(*values)] + [number(f"{above:.3f}")]
    empty = [number("")] * (0 if isinstance(found, str) else 4)
    rows = [(name, *_cells(line), *beside.get(str(name), empty)) for name, line in page.average.iterrows()]
    notes = ["Draws of the average over all agents, in the units of the columns passed to the model."]
    if isinstance(found, str):
        notes.append(found)
    else:
        standardised = page.run.settings.get("sds")
        units = "in the files, before it was standardised" if standardised else "passed to the model"
        notes.append(f"{kind[:1].upper()}{kind[1:]}: median of exp(coefficient), one more unit of the column {units}.")
    parts = [table(head, rows), bullets([*notes, *notes_of(page.run)])]
    if page.worst is None:
        return "\n".join(parts)
    shown = ["mean", "sd", "5%", "95%"]
    if page.worst[shown].equals(page.average[shown]):
        return "\n".join([*parts, paragraph("All agents have the same draws.")])
    own = [(name, line["agent"], *_cells(line)) for name, line in page.worst.iterrows()]
    return "\n".join([*parts, "<h3>At the worst agent</h3>", table([head[0], "agent", *head[1:7]], own)])


def notes_of(run: Run) -> tuple[str, ...]:
    """Notes for the table of a run: dropped rows, reference levels, units and priors."""
    sds, priors = run.settings.get("sds", {}), run.info.priors
    notes = list(run.info.notes)
    if sds:
        listed = ", ".join(f"{name} {sd:.3g}" for name, sd in sds.items())
        notes.append(f"Coefficients are per standard deviation of the column: {listed}.")
    named = [f"{name} {prior}" for name, prior in priors if name]
    if named:
        more = f"; and {len(named) - _MOST_PRIORS} more" if len(named) > _MOST_PRIORS else ""
        notes.append(f"Priors: {'; '.join(named[:_MOST_PRIORS])}{more}.")
    unseen = "" if run.certificate is None else run.certificate.unseen
    return (*notes, *(note for name, note in priors if not name), *([f"{unseen}."] if unseen else []))


def _ratios(middle: float, low: float, high: float) -> list[str]:
    """A ratio and its interval with three significant digits, and more if the interval is narrow."""
    width = np.log10(high - low) if high > low else np.inf
    return [
        f"{x:#.{int(np.clip(np.floor(np.log10(x)) - np.floor(width) + 1, 3, 8)) if x > 0 else 3}g}"
        for x in (middle, low, high)
    ]


def _headings(*names: str) -> list[Any]:
    return [Cell(name, "number") for name in names]


def _cells(line: Mapping[str, Any]) -> list[Cell]:
    """Numbers of a row, with decimals for two digits of the standard deviation."""
    decimals = int(np.clip(1 - np.floor(np.log10(line["sd"])), 0, 8)) if line["sd"] > 0 else 3
    cells = [f"{line[name]:.{decimals}f}" for name in ("mean", "sd", "5%", "95%")]
    for name, form in (("ess", ",.0f"), ("rhat", ".3f")):
        cells.append(format(line[name], form) if np.isfinite(line[name]) else "")
    return [number(cell) for cell in cells]


# --- forest plot ---


def _coefficients(page: Page) -> str:
    run = page.run
    flat = page.draws.reshape(-1, len(run.names))
    (low, first, third, high), mean = np.quantile(flat, [0.05, 0.25, 0.75, 0.95], axis=0), flat.mean(axis=0)
    shown, made = run.names[:_MOST_LINES], []
    groups = forest.of_one_size(np.maximum(np.abs(low), np.abs(high))[: len(shown)], _MOST)
    for own in groups:
        names = [shown[d] for d in own]
        inner, outer = np.stack([first[own], third[own]]), np.stack([low[own], high[own]])

        def draw(ax: Any, names: Any = names, own: Any = own, inner: Any = inner, outer: Any = outer) -> None:
            forest.forest(ax, names, mean[own], inner, outer)

        alt = f"Forest plot of {', '.join(names)}: means with 50% and 90% intervals"
        made.append(figures.inline(draw, alt, 4.4, forest.EDGES + forest.LINE * len(names)))
    caption = "Mean, 50% interval (thick) and 90% interval (thin) of each parameter. The dashed line is 0."
    if len(groups) > 1:
        caption += " Parameters of different magnitude have separate axes."
    if len(shown) < len(run.names):
        caption += f" The first {len(shown)} of {len(run.names)} parameters."
    return _figure(_grid(made), caption)


# --- checks ---


def _checks(page: Page) -> str:
    certificate = page.run.certificate
    if certificate is None:
        return paragraph("No certificate: only sum-based methods, such as Importance() and ChEES(), have one.")
    rows = [
        (Cell(c.result, "holds" if c.holds else "fails"), c.name, number(c.number), Cell(c.limit, "short"), c.text)
        for c in certificate.checks
    ]
    return table(["result", "check", Cell("value", "number"), "limit", "details"], rows)


def _predictive(page: Page) -> str:
    check = page.answers.check
    if not isinstance(check, Histogram):
        return _why(check)
    alt = f"Posterior predictive check: responses in {len(check.labels)} bins, observed and drawn from the model"
    drawing = figures.inline(lambda ax: _histogram(ax, check), alt, 4.8, 3.0)
    left_out = check.of_sites - check.sites
    far = outside(check)
    if left_out:
        # the remaining sites were selected by their observed counts, and replicated counts were not
        verdict = (
            "Sites are left out because of their observed counts, and counts drawn from the model are not selected in "
            "this way. Counts outside of the model's range are therefore no evidence against the model."
        )
    elif far.size:
        verdict = (
            f"In {len(far)} of {len(check.labels)} bins ({', '.join(check.labels[i] for i in far)}) fewer than 2 of "
            "100 draws from the model reach the observed count: the model does not explain it."
        )
    else:
        verdict = "Every observed count is plausible under the model."
    missing = f" {left_out} of {check.of_sites} sites have a bin below that floor and are left out." if left_out else ""
    caption = (
        f"{check.rows:,} rows of {check.sites} sites, summed over the sites. No site sends a count above 0 and below "
        f"{check.floor}.{missing} {len(check.replicated)} draws."
    )
    return paragraph(verdict) + _figure(drawing, caption)


def _why(text: str) -> str:
    """The reason why a result is missing, or nothing."""
    return paragraph(text) if text else ""


def _prediction(page: Page) -> str:
    loo, evidence = page.answers.loo, found_or_why(lambda: page.run.log_evidence, "evidence")
    parts = [_why(loo) if isinstance(loo, str) else _loo(loo)]
    if isinstance(evidence, str):
        return "\n".join([*parts, paragraph(evidence)])
    return "\n".join([*parts, paragraph(f"Log evidence: {evidence[0]:.2f}, standard error {evidence[1]:.2g}.")])


def _loo(loo: Loo) -> str:
    reliable = "all" if loo.bad == 0 else f"{loo.rows - loo.bad:,}"
    rows = [
        ("elpd (expected log predictive density)", number(f"{loo.elpd:.1f}"), number(f"{loo.se:.1f}")),
        ("effective parameters", number(f"{loo.p:.1f}"), number("")),
    ]
    text = (
        f"Leave-one-out cross-validation of {loo.rows:,} rows. Estimates are reliable for rows with a Pareto k of at "
        f"most {loo.good_k:.2f}: {reliable} of the rows. The largest k is {loo.k:.2f}."
    )
    return table(["", *_headings("estimate", "standard error")], rows) + paragraph(text)


# --- sites ---


def _of_sites(page: Page) -> str:
    found, names = page.answers.of_sites, page.run.names
    if isinstance(found, str):
        return _why(found)
    drawn = BySite(found.names[:_MOST_SITES], found.alone[:_MOST_SITES], found.without[:_MOST_SITES])
    chosen, made = _dependent(page, found), []
    for d in chosen:

        def draw(ax: Any, d: int = d) -> None:
            draw_sites(ax, drawn, page.draws[..., d], d)
            ax.set_title(forest.shortened(names[d], _LETTERS), parse_math=False)

        alt = f"{names[d]} by site: each site alone, without each site, and all together"
        made.append(figures.inline(draw, alt, 3.4, forest.EDGES + 1.7 * forest.LINE * len(drawn.names)))
    more = len(found.names) - len(drawn.names)
    caption = (
        "Red circles: posterior of one site's data alone, searched near the posterior of all data. Blue squares: "
        "posterior of all data without the site. Grey: posterior of all data. Mean and 90% interval."
        + (f" {more} more sites have no plot." if more else "")
    )
    if len(chosen) < len(names):
        caption += f" The {len(chosen)} of {len(names)} parameters that depend most on a site."
    parts = [_figure(_grid(made), caption)]
    parts += _not_known(found.names, found.alone, "alone")
    parts += _not_known(found.names, found.without, "left out")
    return "\n".join(parts)


def _dependent(page: Page, found: BySite) -> list[int]:
    """The parameters that depend most on the data of one site, in ascending order."""
    mean, sd = (page.average[name].to_numpy(dtype=float) for name in ("mean", "sd"))
    moved = np.zeros(len(mean))
    for own in zip(found.without, found.alone, strict=True):
        known = [one for one in own if isinstance(one, Points)]
        for one in known[:1]:
            moved = np.maximum(moved, np.abs(one.mean - mean) / np.maximum(sd, np.finfo(float).tiny))
    return sorted(np.argsort(-moved, kind="stable")[:_MOST_BY_SITE].tolist())


def _not_known(names: Sequence[str], found: Sequence[Points | str], what: str) -> list[str]:
    """Reasons for unknown intervals, merged if all sites have the same reason."""
    reasons = {name: why for name, why in zip(names, found, strict=True) if isinstance(why, str)}
    if not reasons:
        return []
    if len(reasons) == len(found) and len(set(reasons.values())) == 1:
        return [paragraph(f"Each site {what}: not known. {next(iter(reasons.values()))}")]
    listed = [f"{name}: {why}" for name, why in reasons.items()]
    return [paragraph(f"Sites {what} with an unknown interval:"), bullets(listed)]


def _meta(page: Page) -> str:
    found = page.answers.meta
    if isinstance(found, str):
        return _why(found)

    def interval(middle: float, low: float, high: float) -> Cell:
        return number(f"{middle:.3g} ({low:.3g} to {high:.3g})")

    def pooled(one: Pooled) -> Cell:
        return interval(one.estimate, one.low, one.high)

    rows, known = [], bool(np.isfinite(found.one_shot).all())
    for place, (name, own) in enumerate(zip(found.names, found.pooled, strict=True)):
        count = f"{int(np.isfinite(found.estimate[:, place]).sum())} of {len(found.sites)}"
        cells = [number("")] * 4
        if own is not None:
            low, high = own.predicted
            predicted = f"{low:.3g} to {high:.3g}" if np.isfinite(low) else ""
            cells = [pooled(own.fixed), pooled(own.reml), number(f"{own.reml.tau:.2g}"), number(predicted)]
        one_shot = number(f"{found.one_shot[place]:.3g} (sd {found.one_shot_sd[place]:.2g})" if known else "")
        rows.append((name, interval(found.mean[place], *found.interval[place]), one_shot, number(count), *cells))
    headings = _headings(
        "posterior of all rows",
        "one shot (BFI)",
        "sites with an estimate",
        "fixed effect",
        "random effects",
        "tau",
        "another site",
    )
    text = (
        "What a meta-analysis of the sites' own estimates finds, beside the posterior of all rows. Each site estimates "
        "the parameters from its own rows by maximum likelihood, without the prior. The estimates are weighted by "
        "their precisions: as if all sites had one value (fixed effect), or with a standard deviation tau between "
        "sites (random effects, restricted maximum likelihood). The last column is the prediction interval for another "
        "site. Intervals have probability 0.95. Parameters are unconstrained, such as the log of a standard deviation."
    )
    missing = [f"{site}: no estimate of {', '.join(names)}" for site, names in found.without_estimate().items()]
    more = len(missing) - _MOST_SITES
    parts = [table(["", *headings], rows), paragraph(text), paragraph(_one_shot(found) if known else _NO_ONE_SHOT)]
    if missing:
        parts += [
            paragraph(
                "Some sites have no estimate of their own, because their rows do not determine it or the search for "
                "the maximum failed. The posterior uses these rows too:"
            ),
            bullets([*missing[:_MOST_SITES], *([f"and {more} more"] if more > 0 else [])]),
        ]
    return "\n".join(parts)


def _one_shot(found: MetaAnalysis) -> str:
    """What the one-shot estimate is, and how far it is from the posterior."""
    apart, ratio = np.abs(found.one_shot - found.mean) / found.sd, found.one_shot_sd / found.sd
    worst = int(np.argmax(apart))
    return (
        "One shot: Bayesian federated inference (BFI, Jonker et al. 2024) averages the sites' modes with their "
        "curvatures as weights, and reports a normal distribution with the sum of the curvatures. Here each site has "
        f"an equal share of the prior. The worst parameter, {found.names[worst]}, is {apart[worst]:.2f} posterior "
        f"standard deviations from the posterior mean. The standard deviations are {ratio.min():.2f} to "
        f"{ratio.max():.2f} times the posterior's."
    )


# --- draws ---


def _densities(page: Page) -> str:
    caption = "One line per chain. Grey: 90% interval."
    return _panels(page, drawings.density, "Density of the draws of", caption)


def _chains(page: Page) -> str:
    if page.run.points is not None:
        return paragraph("No traces: importance sampling draws independent points. See the weights.")
    step = drawings.thinned(page.draws.shape[1])
    caption = "Draws of each chain in order" + (f", every {step}th draw." if step > 1 else ".")
    return _panels(page, drawings.trace, "Trace of", caption)


def _ranks(page: Page) -> str:
    if page.draws.shape[0] < 2:
        return paragraph("No rank plots: they need two chains or more.")
    caption = (
        "Histogram of the ranks of each chain's draws among all draws, uniform if the chains agree. Grey: 95% of the "
        "counts of independent draws. Counts of autocorrelated draws vary more."
    )
    return _panels(page, drawings.ranks, "Ranks of the draws by chain of", caption)


def _weights(page: Page) -> str:
    if page.run.points is None:
        return paragraph(f"No weights: {page.method} draws without weights.")
    weight = page.run.points.weight
    alt = f"Weights of {weight.size} points from the largest to the smallest"
    drawing = figures.inline(lambda ax: drawings.weights(ax, weight), alt, 4.0, 2.4)
    effective = weight.sum() ** 2 / np.square(weight).sum()
    caption = (
        f"{weight.size:,} weighted points, {effective:,.0f} effective draws. The heaviest point has "
        f"{weight.max() / weight.sum():.2%} of the total weight. The dashed line is the mean weight."
    )
    return _figure(drawing, caption)


def _panels(page: Page, draw: Callable[[Any, np.ndarray], None], what: str, caption: str) -> str:
    """Small plots, one per selected parameter."""
    made = []
    for d in _drawn(page):

        def titled(ax: Any, d: int = d) -> None:
            draw(ax, page.draws[..., d])
            ax.set_title(forest.shortened(page.run.names[d], _LETTERS), parse_math=False)
            ax.xaxis.get_major_locator().set_params(nbins=5)

        made.append(figures.inline(titled, f"{what} {page.run.names[d]}", *_SMALL))
    return _figure(_grid(made, "drawings small"), f"{caption}{_which(page)}")


def _drawn(page: Page) -> list[int]:
    """The parameters with small plots, in ascending order."""
    if len(page.run.names) <= _MOST:
        return list(range(len(page.run.names)))
    ess = np.nan_to_num(page.average["ess"].to_numpy(dtype=float), nan=0.0)
    return sorted(np.argsort(ess, kind="stable")[:_MOST].tolist())


def _which(page: Page) -> str:
    count = len(page.run.names)
    return "" if count <= _MOST else f" The {_MOST} of {count} parameters with the smallest ESS."


def _grid(drawings: Sequence[str], look: str = "drawings") -> str:
    return f'<div class="{look}">{"".join(drawings)}</div>'


def _figure(drawing: str, caption: str) -> str:
    return f"<figure>{drawing}<figcaption>{escape(caption)}</figcaption></figure>"


# --- model, data and cost ---


def _model(page: Page) -> str:
    info, settings = page.run.info, page.run.settings
    chosen = f". Chosen: {settings['chosen']}" if settings.get("chosen") else ""
    network = str(settings.get("network", "")).strip("<>")
    facts = [("model", info.model), ("formula", info.formula)]
    facts += [("method", f"{settings.get('method', 'not known')}{chosen}"), ("network", network)]
    facts += [(n, str(value)) for n, value in settings.items() if n not in _ELSEWHERE and value is not False]
    parts = [table(["", ""], [(Cell(name), value) for name, value in facts if value])]
    if info.priors:
        parts += ["<h3>Priors</h3>", table(["parameter", "prior"], info.priors)]
    else:
        parts.append(paragraph("Formula and priors are unknown: the model is a Python function."))
    parts += ["<h3>Sites and their messages</h3>", _sites(page)]
    if info.edges is not None and len(page.sites) > 1:
        edges = np.array(info.edges, dtype=np.int64).reshape(-1, 2)
        parts.append(_figure(svg(edges, page.sites), "The network: lines connect sites that exchange messages."))
    return "\n".join(parts)


def _sites(page: Page) -> str:
    count, known = len(page.sites), page.run.info.rows
    counts = [f"{rows:,}" for rows in known] if len(known) == count else ["not known"] * count
    lines = list(zip(page.sites, counts, page.bytes_sent.tolist(), page.rows_read.tolist(), strict=True))
    if len(known) == count:
        lines.append(("together", f"{sum(known):,}", int(page.bytes_sent.sum()), int(page.rows_read.sum())))
    cells = [(name, number(rows), number(human_bytes(sent)), number(f"{read:,}")) for name, rows, sent, read in lines]
    parts = [table(["site", *_headings("rows", "sent", "rows read")], cells), paragraph(_messages(page.run))]
    if page.answers.requests:
        parts.append(paragraph("For this report the sites sent more messages, which the table does not count:"))
        parts.append(bullets(page.answers.requests))
    return "\n".join(parts)


def _messages(run: Run) -> str:
    """Sentences about the content of the messages."""
    end = "It sent no row. This is no privacy guarantee, as the messages are functions of the rows."
    if run.certificate is not None:
        masked = (
            "Masks hid the numbers of a single site, so only their sum was visible."
            if run.settings.get("masks")
            else "Agents that forward partial sums, and a hub, see the numbers of sites below. masks=True hides them."
        )
        return (
            "Each site sent values, slopes and curvatures of its log likelihood at common points, to be summed over "
            f"the sites. {masked} {end}"
        )
    if "network" not in run.settings:
        return f"Each site sent the draws of its own data's posterior, or a summary of them, once. {end}"
    return (
        "In each round, each site sent the method's messages, such as positions or gradients, to its neighbours. "
        f"A warm-up also summed numbers over the sites. {end}"
    )


def _cost(page: Page) -> str:
    traffic, sent = page.run.traffic, page.bytes_sent
    facts = [
        ("seconds, including compilation", f"{page.run.seconds:.1f}"),
        ("rounds", f"{traffic.rounds:,}" if traffic.rounds else ""),
        ("sums over all sites", f"{traffic.sums:,}" if traffic.sums else ""),
        ("successive exchanges", f"{traffic.exchanges:,}"),
        ("sent by the busiest site", human_bytes(int(sent.max(initial=0)))),
        ("sent by all sites", human_bytes(int(sent.sum()))),
    ]
    return table(["", ""], [(name, number(value)) for name, value in facts if value])


def _glossary(page: Page) -> str:
    listed = "".join(f"<dt>{escape(word)}</dt><dd>{escape(meaning)}</dd>" for word, meaning in _GLOSSARY)
    return f"<dl>{listed}</dl>{paragraph(f'Made by accord {__version__}.', 'soft')}"


_SECTIONS: tuple[tuple[str, str, Callable[[Page], str]], ...] = (
    ("Verdict", "verdict", _verdict),
    ("Posterior", "posterior", _posterior),
    ("Forest plot", "forest", _coefficients),
    ("Checks", "checks", _checks),
    ("Posterior predictive check", "predictive", _predictive),
    ("Leave-one-out and evidence", "prediction", _prediction),
    ("Site by site", "sites", _of_sites),
    ("Beside a meta-analysis", "meta", _meta),
    ("Densities", "densities", _densities),
    ("Traces", "traces", _chains),
    ("Rank plots", "ranks", _ranks),
    ("Importance weights", "weights", _weights),
    ("Model, method and sites", "model", _model),
    ("Communication and time", "cost", _cost),
    ("Glossary", "glossary", _glossary),
)


def _histogram(ax: Any, check: Histogram) -> None:
    """Observed rows in each bin, with median and 90% interval of the replicated rows."""
    place = np.arange(len(check.labels))
    low, middle, high = np.quantile(check.replicated, [0.05, 0.5, 0.95], axis=0)
    ax.bar(place, check.observed, width=0.8, color=COLORS["sky"], alpha=0.55, label="observed")
    ax.vlines(place, low, high, color=INK, linewidth=1.5, label="model, 90%")
    ax.plot(place, middle, "o", color=INK, markeredgecolor=INK, markersize=3.5, label="model, median")
    crowded = len(place) > 6
    turned = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if crowded else {}
    ax.set_xticks(place, check.labels, parse_math=False, **turned)
    ax.set(xlabel="response", ylabel="rows")
    ax.grid(False, axis="x")
    # legend above the bars
    ax.set_ylim(0.0, 1.1 * max(check.observed.max(), high.max(), 1.0))
    handles, labels = ax.get_legend_handles_labels()
    # observed first
    order = sorted(range(len(labels)), key=lambda i: labels[i] != "observed")
    ax.legend(
        [handles[i] for i in order],
        [labels[i] for i in order],
        ncols=3,
        loc="lower center",
        columnspacing=1.0,
        bbox_to_anchor=(0.5, 1.0),
    )


def outside(check: Histogram) -> np.ndarray:
    """Bins with an observed count outside the central 98% of the replicated counts."""
    low, high = np.quantile(check.replicated, [0.01, 0.99], axis=0)
    return np.flatnonzero((check.observed < low) | (check.observed > high))
