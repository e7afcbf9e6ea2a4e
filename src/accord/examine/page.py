"""The page of a run: its parts in the order in which they are read."""

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
from . import drawings
from .loo import Loo
from .predictive import Histogram
from .sites import BySite, draw_sites, found_or_why

if TYPE_CHECKING:
    import pandas as pd

# Parameters that are drawn one by one, those whose chains agree least where there are more, and sites in a drawing.
_MOST, _MOST_SITES = 30, 24
# Lines of forest plots.
_MOST_LINES = 120
# Parameters that are drawn site by site, those that most depend on a site where there are more.
_MOST_BY_SITE = 12
# Letters of a name above a small drawing.
_LETTERS = 28
# Width and height of a small drawing, in inches of 96 pixels.
_SMALL = (2.75, 1.75)
_TITLE = "Report of a run"
# Settings that the page has lines of its own for, or no room.
_ELSEWHERE = ("method", "network", "sites", "agreed", "chosen", "local", "sds")
# Priors that one note lists.
_MOST_PRIORS = 8

_WORDS = (
    ("agent, site", "one owner of data. Its rows stay with it."),
    ("draws", "values of the parameters, as likely as the data and the prior make them."),
    ("interval", "from the 5% to the 95% quantile of the draws: the parameter is in it with probability 0.9."),
    ("ESS", "effective sample size: how many independent draws would be worth as much. Below 400 is few."),
    ("R-hat", "near 1 where chains agree. Above 1.01 they do not."),
    ("certificate", "checks, made with sums over all sites, that the draws are of the posterior."),
    ("worst agent", "the agent whose own draws of a parameter are furthest from the average's."),
    ("exchange", "neighbours send to one another once. A sum over all sites takes several."),
)


@dataclass(frozen=True)
class Answers:
    """The agents' answers for a page; a sentence says why in place of one that is missing.

    Parameters
    ----------
    of_sites
        The posterior of each site's data alone, and without it.
    check
        The posterior predictive check.
    loo
        Leave-one-out figures.
    asked
        What the agents were asked for, in sentences.
    """

    of_sites: BySite | str
    check: Histogram | str
    loo: Loo | str
    asked: tuple[str, ...] = ()


@dataclass(frozen=True)
class Page:
    """A run with the names of its sites, and the agents' answers."""

    run: Run
    sites: tuple[str, ...]
    answers: Answers

    @cached_property
    def average(self) -> pd.DataFrame:
        """The table of the average's draws."""
        return self._table["average"]

    @cached_property
    def worst(self) -> pd.DataFrame | None:
        """The table of the worst agents' draws; None where the run kept none."""
        return self._table["worst agent"] if "worst agent" in self._table else None

    @cached_property
    def _table(self) -> pd.DataFrame:
        return self.run.table(self.sites)

    @cached_property
    def draws(self) -> np.ndarray:
        """The average's draws, (chain, draw, dim), in double precision."""
        return self.run.average.astype(np.float64)

    @cached_property
    def warnings(self) -> list[str]:
        """The warnings of the run, each with a remedy."""
        temperature, found = self.run.settings.get("temperature", 1.0), self.run.warnings(self.sites)
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
        # of one chain where chains walk by themselves; sums are those of all chains
        chains = 1 if self.run.certificate is not None else self.run.average.shape[0]
        return (np.broadcast_to(counts, len(self.sites)) * chains).astype(int)


def html(page: Page) -> str:
    """The whole page.

    Raises
    ------
    ImportError
        matplotlib is not installed.
    """
    figures.require()
    parts = [(title, anchor, part(page)) for title, anchor, part in _PARTS]
    links = "".join(f'<a href="#{anchor}">{escape(title)}</a>' for title, anchor, _ in parts)
    body = [f"<nav>{links}</nav>"]
    body += [f'<section id="{anchor}"><h2>{escape(title)}</h2>\n{text}</section>' for title, anchor, text in parts]
    of = page.run.info.formula or page.run.info.model
    title = f"{_TITLE}: {of}" if of else _TITLE
    return document(f"{title} (accord)", "\n".join(body), title)


# --- what was found, first in words ---


def _verdict(page: Page) -> str:
    checks = () if page.run.certificate is None else page.run.certificate.checks
    sound = not page.warnings and all(check.holds for check in checks)
    if sound and checks:
        text = "The draws can be relied on: every check of their certificate holds, and nothing is warned of."
    elif sound:
        text = (
            "Nothing is warned of in these draws. Their method has no certificate: what was looked at are ESS, R-hat, "
            "tails, and the method's own law."
        )
    else:
        count = len(page.warnings)
        text = f"Do not rely on these draws yet: {count} warning{'' if count == 1 else 's'} below, each with a remedy."
    box = f'<div class="verdict{"" if sound else " bad"}"><strong>{escape(text)}</strong>{_first_words(page)}</div>'
    parts = [box]
    if page.warnings:
        parts += ["<h3>Warnings</h3>", bullets(page.warnings)]
    if checks:
        lines = [
            (Cell("holds", "holds") if check.holds else Cell("does not hold", "fails"), check.name, check.text)
            for check in checks
        ]
        parts += ["<h3>Certificate</h3>", table(["", "check", "what was found"], lines)]
    else:
        parts.append(
            paragraph("No certificate: only methods that work by sums, as Importance() and ChEES(), have one.")
        )
    return "\n".join(parts)


def _first_words(page: Page) -> str:
    chains, count, dim = page.draws.shape
    least = page.average["ess"].to_numpy(dtype=float)
    ess = f", worth at least {np.nanmin(least):,.0f} independent ones" if np.isfinite(least).any() else ""
    return paragraph(f"{counted(chains, 'chain')} of {counted(count, 'draw')} of {counted(dim, 'parameter')}{ess}.")


# --- what was asked, and of whom ---


def _asked(page: Page) -> str:
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
        parts.append(
            paragraph("No formula and priors: the model was made of functions, which do not say what they are.")
        )
    parts += ["<h3>Sites, and what left them</h3>", _sites(page)]
    if info.edges is not None and len(page.sites) > 1:
        edges = np.array(info.edges, dtype=np.int64).reshape(-1, 2)
        parts.append(_figure(svg(edges, page.sites), "Who talks to whom."))
    return "\n".join(parts)


def _sites(page: Page) -> str:
    count, known = len(page.sites), page.run.info.rows
    counts = [f"{rows:,}" for rows in known] if len(known) == count else ["not known"] * count
    lines = list(zip(page.sites, counts, page.bytes_sent.tolist(), page.rows_read.tolist(), strict=True))
    if len(known) == count:
        lines.append(("together", f"{sum(known):,}", int(page.bytes_sent.sum()), int(page.rows_read.sum())))
    cells = [(name, number(rows), number(human_bytes(sent)), number(f"{read:,}")) for name, rows, sent, read in lines]
    head = ["site", *(Cell(name, "number") for name in ("rows", "sent", "rows read"))]
    parts = [table(head, cells), paragraph(_meaning(page.run))]
    if page.answers.asked:
        parts.append(paragraph("For this page the sites were asked once more, beyond the bytes above:"))
        parts.append(bullets(page.answers.asked))
    return "\n".join(parts)


def _meaning(run: Run) -> str:
    """What left the sites, in words."""
    if run.certificate is not None:
        masked = (
            " Each site masked its numbers, so that only their sum was visible."
            if run.settings.get("masks")
            else " Who passes sums on, and a hub, sees the numbers of those below; masks=True hides them."
        )
        return (
            "What left a site: values, slopes and curvatures of its log likelihood at points that all sites are asked "
            f"at, added up over the sites; no row.{masked} A sum depends on the rows too: this is no privacy guarantee."
        )
    if "network" not in run.settings:
        return (
            "What left a site: the draws of its own data's posterior, or what stands for them, once; no row. Draws "
            "tell of the rows too: this is no privacy guarantee."
        )
    return (
        "What left a site: the messages of the method, as positions or gradients, sent to its neighbours in each "
        "round, and sums of its warm-up; no row. A message depends on the rows too: this is no privacy guarantee."
    )


def notes_of(run: Run) -> tuple[str, ...]:
    """Sentences beside the table of a run: rows left out, reference levels, units, and priors."""
    sds, priors = run.settings.get("sds", {}), run.info.priors
    notes = list(run.info.notes)
    if sds:
        listed = ", ".join(f"{name} {sd:.3g}" for name, sd in sds.items())
        notes.append(f"Coefficients are per standard deviation of the column: {listed}.")
    named = [f"{name} {prior}" for name, prior in priors if name]
    if named:
        more = f"; and {len(named) - _MOST_PRIORS} more" if len(named) > _MOST_PRIORS else ""
        notes.append(f"Priors: {'; '.join(named[:_MOST_PRIORS])}{more}.")
    return (*notes, *(note for name, note in priors if not name))


# --- numbers ---


def _numbers(page: Page) -> str:
    head = ["parameter", *(Cell(name, "number") for name in ("mean", "sd", "5%", "95%", "ESS", "R-hat"))]
    rows = [(name, *_cells(line)) for name, line in page.average.iterrows()]
    parts = [paragraph("Draws of the average over all agents, in the units that the model was given.")]
    if notes := notes_of(page.run):
        parts.append(bullets(notes))
    parts.append(table(head, rows))
    if page.worst is not None:
        parts.append("<h3>At the worst agent</h3>")
        own = [(name, line["agent"], *_cells(line)) for name, line in page.worst.iterrows()]
        shown = ["mean", "sd", "5%", "95%"]
        same = page.worst[shown].equals(page.average[shown])
        parts.append(
            paragraph("All agents have the same draws.") if same else table([head[0], "agent", *head[1:]], own)
        )
    ratio, found = page.run.info.ratio, found_or_why(page.run.ratios, "ratios")
    parts.append(f"<h3>{escape(ratio[:1].upper() + ratio[1:] + 's' if ratio else 'Ratios')}</h3>")
    if isinstance(found, str):
        return "\n".join([*parts, paragraph(found)])
    head = ["parameter", *(Cell(name, "number") for name in (ratio, "5%", "95%", "probability above 1"))]
    rows = [
        (name, *(number(f"{x:#.3g}") for x in numbers), number(f"{above:.3f}"))
        for name, (*numbers, above) in zip(found.index, found.to_numpy().tolist(), strict=True)
    ]
    standardised = page.run.settings.get("sds")
    units = "it was in the files, before it was standardised" if standardised else "the model was given it"
    note = f"The {ratio} of one unit more of a column as {units}: median and 90% interval of exp(coefficient)."
    return "\n".join([*parts, paragraph(note), table(head, rows)])


def _cells(line: Mapping[str, Any]) -> list[Cell]:
    """A line's numbers with as many decimals as show two digits of the standard deviation."""
    decimals = int(np.clip(1 - np.floor(np.log10(line["sd"])), 0, 8)) if line["sd"] > 0 else 3
    cells = [f"{line[name]:.{decimals}f}" for name in ("mean", "sd", "5%", "95%")]
    for name, form in (("ess", ",.0f"), ("rhat", ".3f")):
        cells.append(format(line[name], form) if np.isfinite(line[name]) else "")
    return [number(cell) for cell in cells]


# --- drawings ---


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
        caption += " Parameters of another size have an axis of their own."
    if len(shown) < len(run.names):
        caption += f" The first {len(shown)} of {len(run.names)} parameters."
    return _figure(_grid(made), caption)


def _of_sites(page: Page) -> str:
    found, names = page.answers.of_sites, page.run.names
    if isinstance(found, str):
        return paragraph(found)
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
        "Circles, red: the posterior of one site's data alone, near that of all: a mode elsewhere is not looked for. "
        "Squares, blue: that of all data without the site. Grey: "
        "all together. Mean and 90% interval." + (f" {more} more sites are not drawn." if more else "")
    )
    if len(chosen) < len(names):
        caption += f" The {len(chosen)} of {len(names)} parameters that most depend on a site."
    parts = [_figure(_grid(made), caption)]
    parts += _not_known(found.names, found.alone, "alone")
    parts += _not_known(found.names, found.without, "left out")
    return "\n".join(parts)


def _dependent(page: Page, found: BySite) -> list[int]:
    """The parameters that are drawn site by site: those that a site's data moves most, in their order."""
    mean, sd = (page.average[name].to_numpy(dtype=float) for name in ("mean", "sd"))
    moved = np.zeros(len(mean))
    for own in zip(found.without, found.alone, strict=True):
        known = [one for one in own if isinstance(one, Points)]
        for one in known[:1]:
            moved = np.maximum(moved, np.abs(one.mean - mean) / np.maximum(sd, np.finfo(float).tiny))
    return sorted(np.argsort(-moved, kind="stable")[:_MOST_BY_SITE].tolist())


def _not_known(names: Sequence[str], found: Sequence[Points | str], what: str) -> list[str]:
    """Why some intervals are not known; a sentence of all where it is the same for all."""
    reasons = {name: why for name, why in zip(names, found, strict=True) if isinstance(why, str)}
    if not reasons:
        return []
    if len(reasons) == len(found) and len(set(reasons.values())) == 1:
        return [paragraph(f"Each site {what}: not known. {next(iter(reasons.values()))}")]
    listed = [f"{name}: {why}" for name, why in reasons.items()]
    return [paragraph(f"Sites {what} whose interval is not known:"), bullets(listed)]


def _densities(page: Page) -> str:
    caption = "A line for each chain. Grey: the 90% interval."
    return _panels(page, drawings.density, "Density of the draws of", caption)


def _chains(page: Page) -> str:
    if page.run.points is not None:
        return paragraph("No traces: points were drawn one by one, and have no order. Their weights are below.")
    step = drawings.thinned(page.draws.shape[1])
    caption = "The draws of each chain in their order" + (f", one of {step}." if step > 1 else ".")
    return _panels(page, drawings.trace, "Trace of", caption)


def _ranks(page: Page) -> str:
    if page.draws.shape[0] < 2:
        return paragraph("No ranks: a single chain has none to be compared with.")
    caption = (
        "How the ranks of each chain's draws among all are spread: even where chains agree. Grey: where 19 of 20 "
        "counts of independent draws are; draws that depend on one another stray further."
    )
    return _panels(page, drawings.ranks, "Ranks of the draws by chain of", caption)


def _weights(page: Page) -> str:
    if page.run.points is None:
        method = str(page.run.settings.get("method", "the method")).partition("(")[0]
        return paragraph(f"No weights: {method} draws without them.")
    weight = page.run.points.weight
    alt = f"Weights of {weight.size} points from the largest to the smallest"
    drawing = figures.inline(lambda ax: drawings.weights(ax, weight), alt, 4.0, 2.4)
    worth = weight.sum() ** 2 / np.square(weight).sum()
    caption = (
        f"{weight.size:,} weighted points, worth {worth:,.0f} independent draws. The heaviest carries "
        f"{weight.max() / weight.sum():.2%} of all; the dashed line is the mean."
    )
    return _figure(drawing, caption)


def _check(page: Page) -> str:
    check = page.answers.check
    if not isinstance(check, Histogram):
        return paragraph(check)
    alt = f"Posterior predictive check: responses in {len(check.labels)} bins, observed and drawn from the model"
    drawing = figures.inline(lambda ax: _histogram(ax, check), alt, 4.8, 2.8)
    left_out = check.of_sites - check.sites
    far = outside(check)
    if left_out:
        # the others are those whose counts happened to be large enough: draws from the model were not chosen so
        verdict = (
            "Sites are left out by what they observed, and draws of the model are not: that some counts lie outside of "
            "the draws says nothing of the model here."
        )
    elif far.size:
        verdict = (
            f"In {len(far)} of {len(check.labels)} bins ({', '.join(check.labels[i] for i in far)}) the count is one "
            "that fewer than 2 of 100 draws from the model reach: the model does not explain it."
        )
    else:
        verdict = "Every count is one that the model makes itself."
    missing = f" {left_out} of {check.of_sites} sites have a bin below that floor and are left out." if left_out else ""
    caption = (
        f"{check.rows:,} rows of {check.sites} sites, summed over them; no site returns a count above 0 and below "
        f"{check.floor}.{missing} {len(check.replicated)} draws."
    )
    return paragraph(verdict) + _figure(drawing, caption)


def _prediction(page: Page) -> str:
    loo, evidence = page.answers.loo, found_or_why(lambda: page.run.log_evidence, "evidence")
    if isinstance(loo, str):
        parts = [paragraph(loo)]
    else:
        sound = "all rows" if loo.bad == 0 else f"{loo.rows - loo.bad:,} of them"
        parts = [
            paragraph(
                f"Leave-one-out: elpd {loo.elpd:.1f}, standard error {loo.se:.1f}; {loo.p:.1f} effective parameters; "
                f"of {loo.rows:,} rows. {sound[:1].upper()}{sound[1:]} have a Pareto k of at most {loo.good_k:.2f}, up "
                f"to which the figure can be relied on; the largest is {loo.k:.2f}."
            )
        ]
    if isinstance(evidence, str):
        return "\n".join([*parts, paragraph(evidence)])
    return "\n".join([*parts, paragraph(f"Log evidence: {evidence[0]:.2f}, standard error {evidence[1]:.2g}.")])


def _cost(page: Page) -> str:
    traffic, sent = page.run.traffic, page.bytes_sent
    facts = [
        ("seconds, compilation included", f"{page.run.seconds:.1f}"),
        ("rounds", f"{traffic.rounds:,}" if traffic.rounds else ""),
        ("sums over all sites", f"{traffic.sums:,}" if traffic.sums else ""),
        ("exchanges, one after another", f"{traffic.exchanges:,}"),
        ("sent by the busiest site", human_bytes(int(sent.max(initial=0)))),
        ("sent by all sites", human_bytes(int(sent.sum()))),
    ]
    return table(["", ""], [(name, number(value)) for name, value in facts if value])


def _words(page: Page) -> str:
    listed = "".join(f"<dt>{escape(word)}</dt><dd>{escape(meaning)}</dd>" for word, meaning in _WORDS)
    return f"<dl>{listed}</dl>{paragraph(f'Made by accord {__version__}.', 'soft')}"


def _panels(page: Page, draw: Callable[[Any, np.ndarray], None], what: str, caption: str) -> str:
    """A small drawing for each parameter that is drawn."""
    made = []
    for d in _drawn(page):

        def titled(ax: Any, d: int = d) -> None:
            draw(ax, page.draws[..., d])
            ax.set_title(forest.shortened(page.run.names[d], _LETTERS), parse_math=False)
            ax.xaxis.get_major_locator().set_params(nbins=5)

        made.append(figures.inline(titled, f"{what} {page.run.names[d]}", *_SMALL))
    return _figure(_grid(made, "drawings small"), f"{caption}{_which(page)}")


def _drawn(page: Page) -> list[int]:
    """The parameters that are drawn one by one, in their order."""
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


_PARTS: tuple[tuple[str, str, Callable[[Page], str]], ...] = (
    ("Can it be relied on?", "verdict", _verdict),
    ("What was asked, and of whom", "asked", _asked),
    ("The parameters", "numbers", _numbers),
    ("Forest plot", "forest", _coefficients),
    ("Site by site", "sites", _of_sites),
    ("Densities", "densities", _densities),
    ("Traces", "traces", _chains),
    ("Ranks", "ranks", _ranks),
    ("Weights", "weights", _weights),
    ("Does the model make such data?", "check", _check),
    ("Prediction and evidence", "prediction", _prediction),
    ("Traffic and time", "cost", _cost),
    ("Words", "words", _words),
)


def _histogram(ax: Any, check: Histogram) -> None:
    """Observed rows in each bin, and what the model's own responses make of them: the median and nine of ten draws."""
    place = np.arange(len(check.labels))
    low, middle, high = np.quantile(check.replicated, [0.05, 0.5, 0.95], axis=0)
    ax.bar(place, check.observed, width=0.8, color=COLORS["sky"], alpha=0.55, label="observed")
    ax.vlines(place, low, high, color=INK, linewidth=1.5, label="model, 9 of 10")
    ax.plot(place, middle, "o", color=INK, markeredgecolor=INK, markersize=3.5, label="model, median")
    crowded = len(place) > 6
    turned = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if crowded else {}
    ax.set_xticks(place, check.labels, parse_math=False, **turned)
    ax.set_ylabel("rows")
    ax.grid(False, axis="x")
    # over all bars
    ax.set_ylim(0.0, 1.1 * max(check.observed.max(), high.max(), 1.0))
    handles, labels = ax.get_legend_handles_labels()
    # the data first
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
    """Bins whose observed count is outside what 98 of 100 replicated ones are in."""
    low, high = np.quantile(check.replicated, [0.01, 0.99], axis=0)
    return np.flatnonzero((check.observed < low) | (check.observed > high))
