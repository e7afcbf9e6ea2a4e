"""The page: its parts in the order in which they are read, each from what was `told`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import numpy as np

from ..base import figures
from ..base.page import Cell, bullets, document, number, paragraph, table
from ..base.text import __version__, counted, human_bytes
from . import draws, forest, predictive
from .told import Histogram, Interval, Line, Told

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


def page(told: Told) -> str:
    """The whole page.

    Raises
    ------
    ImportError
        matplotlib is not installed.
    """
    figures.require()
    parts = [(title, anchor, part(told)) for title, anchor, part in _PARTS]
    links = "".join(f'<a href="#{anchor}">{escape(title)}</a>' for title, anchor, _ in parts)
    body = [f"<nav>{links}</nav>"]
    body += [f'<section id="{anchor}"><h2>{escape(title)}</h2>\n{text}</section>' for title, anchor, text in parts]
    of = told.formula or told.model
    title = f"{_TITLE}: {of}" if of else _TITLE
    return document(f"{title} (accord)", "\n".join(body), title)


# --- what was found, first in words ---


def _verdict(told: Told) -> str:
    failed = [text for holds, _, text in told.certificate if not holds]
    sound = not told.warnings and not failed
    if sound and told.certificate:
        text = "The draws can be relied on: every check of their certificate holds, and nothing is warned of."
    elif sound:
        text = (
            "Nothing is warned of in these draws. Their method has no certificate: what was looked at are ESS, R-hat, "
            "tails, and the method's own law."
        )
    else:
        count = len(told.warnings)
        text = f"Do not rely on these draws yet: {count} warning{'' if count == 1 else 's'} below, each with a remedy."
    box = f'<div class="verdict{"" if sound else " bad"}"><strong>{escape(text)}</strong>{_first_words(told)}</div>'
    parts = [box]
    if told.warnings:
        parts += ["<h3>Warnings</h3>", bullets(told.warnings)]
    if told.certificate:
        checks = [
            (Cell("holds" if holds else "does not hold", "holds" if holds else "fails"), name, text)
            for holds, name, text in told.certificate
        ]
        parts += ["<h3>Certificate</h3>", table(["", "check", "what was found"], checks)]
    else:
        parts.append(
            paragraph("No certificate: only methods that work by sums, as Importance() and ChEES(), have one.")
        )
    return "\n".join(parts)


def _first_words(told: Told) -> str:
    chains, count, _ = told.draws.shape
    least = np.array([line.ess for line in told.average])
    ess = f", worth at least {np.nanmin(least):,.0f} independent ones" if np.isfinite(least).any() else ""
    return paragraph(
        f"{counted(chains, 'chain')} of {counted(count, 'draw')} of {counted(len(told.names), 'parameter')}{ess}."
    )


# --- what was asked, and of whom ---


def _asked(told: Told) -> str:
    facts = [("model", told.model), ("formula", told.formula), ("method", told.method), ("network", told.network)]
    facts = [(name, value) for name, value in (*facts, *told.settings) if value]
    parts = [table(["", ""], [(Cell(name), value) for name, value in facts])]
    if told.priors:
        parts += ["<h3>Priors</h3>", table(["parameter", "prior"], told.priors)]
    else:
        parts.append(
            paragraph("No formula and priors: the model was made of functions, which do not say what they are.")
        )
    parts += ["<h3>Sites, and what left them</h3>", _sites(told)]
    if told.drawing:
        parts.append(_figure(told.drawing, "Who talks to whom."))
    return "\n".join(parts)


def _sites(told: Told) -> str:
    rows = [
        (
            one.name,
            number("not known" if one.rows is None else f"{one.rows:,}"),
            number(human_bytes(one.bytes_sent)),
            number(f"{one.rows_read:,}"),
        )
        for one in told.sites
    ]
    known = [one.rows for one in told.sites if one.rows is not None]
    if len(known) == len(told.sites):
        sent, read = sum(one.bytes_sent for one in told.sites), sum(one.rows_read for one in told.sites)
        rows.append(("together", number(f"{sum(known):,}"), number(human_bytes(sent)), number(f"{read:,}")))
    head = ["site", *(Cell(name, "number") for name in ("rows", "sent", "rows read"))]
    parts = [table(head, rows), paragraph(told.meaning)]
    if told.asked_later:
        parts.append(paragraph("For this page the sites were asked once more, beyond the bytes above:"))
        parts.append(bullets(told.asked_later))
    return "\n".join(parts)


# --- numbers ---


def _numbers(told: Told) -> str:
    head = ["parameter", *(Cell(name, "number") for name in ("mean", "sd", "5%", "95%", "ESS", "R-hat"))]
    rows = [(name, *_cells(line)) for name, line in zip(told.names, told.average, strict=True)]
    parts = [paragraph("Draws of the average over all agents, in the units that the model was given.")]
    if told.notes:
        parts.append(bullets(told.notes))
    parts.append(table(head, rows))
    if told.worst:
        parts.append("<h3>At the worst agent</h3>")
        own = [(n, line.agent, *_cells(line)) for n, line in zip(told.names, told.worst, strict=True)]
        same = all(a[:4] == w[:4] for a, w in zip(told.average, told.worst, strict=True))
        parts.append(
            paragraph("All agents have the same draws.") if same else table([head[0], "agent", *head[1:]], own)
        )
    parts.append(f"<h3>{escape(told.ratio[:1].upper() + told.ratio[1:] + 's' if told.ratio else 'Ratios')}</h3>")
    if isinstance(told.ratios, str):
        return "\n".join([*parts, paragraph(told.ratios)])
    head = ["parameter", *(Cell(name, "number") for name in (told.ratio, "5%", "95%", "probability above 1"))]
    rows = [
        (one.name, *(number(f"{x:#.3g}") for x in (one.median, one.low, one.high)), number(f"{one.above:.3f}"))
        for one in told.ratios
    ]
    note = f"The {told.ratio} of one unit more of a column{told.units}: median and 90% interval of exp(coefficient)."
    return "\n".join([*parts, paragraph(note), table(head, rows)])


def _cells(line: Line) -> list[Cell]:
    """A line's numbers with as many decimals as show two digits of the standard deviation."""
    decimals = int(np.clip(1 - np.floor(np.log10(line.sd)), 0, 8)) if line.sd > 0 else 3
    cells = [f"{x:.{decimals}f}" for x in (line.mean, line.sd, line.low, line.high)]
    cells += [f"{line.ess:,.0f}" if np.isfinite(line.ess) else "", f"{line.rhat:.3f}" if np.isfinite(line.rhat) else ""]
    return [number(cell) for cell in cells]


# --- drawings ---


def _coefficients(told: Told) -> str:
    flat = told.draws.reshape(-1, len(told.names))
    (low, first, third, high), mean = np.quantile(flat, [0.05, 0.25, 0.75, 0.95], axis=0), flat.mean(axis=0)
    shown, made = told.names[:_MOST_LINES], []
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
    if len(shown) < len(told.names):
        caption += f" The first {len(shown)} of {len(told.names)} parameters."
    return _figure(_grid(made), caption)


def _of_sites(told: Told) -> str:
    if isinstance(told.of_sites, str):
        return paragraph(told.of_sites)
    flat = told.draws.reshape(-1, len(told.names))
    low, high = np.quantile(flat, [0.05, 0.95], axis=0)
    together, found = Interval(flat.mean(axis=0), low, high), told.of_sites[:_MOST_SITES]
    chosen = _dependent(told, together)
    made = []
    for d in chosen:

        def draw(ax: Any, d: int = d) -> None:
            forest.sites(ax, found, together, d)
            ax.set_title(forest.shortened(told.names[d], _LETTERS), parse_math=False)

        alt = f"{told.names[d]} by site: each site alone, without each site, and all together"
        made.append(figures.inline(draw, alt, 3.4, forest.EDGES + 1.7 * forest.LINE * len(found)))
    more = len(told.of_sites) - len(found)
    caption = (
        "Circles, red: the posterior of one site's data alone, near that of all: a mode elsewhere is not looked for. "
        "Squares, blue: that of all data without the site. Grey: "
        "all together. Mean and 90% interval." + (f" {more} more sites are not drawn." if more else "")
    )
    if len(chosen) < len(told.names):
        caption += f" The {len(chosen)} of {len(told.names)} parameters that most depend on a site."
    parts = [_figure(_grid(made), caption)]
    parts += _not_known([(one.name, one.alone.why) for one in told.of_sites], "alone")
    parts += _not_known([(one.name, one.without.why) for one in told.of_sites], "left out")
    return "\n".join(parts)


def _dependent(told: Told, together: Interval) -> list[int]:
    """The parameters that are drawn site by site: those that a site's data moves most, in their order."""
    assert together.mean is not None and not isinstance(told.of_sites, str)
    sd = np.maximum([line.sd for line in told.average], np.finfo(float).tiny)
    moved = np.zeros(len(told.names))
    for one in told.of_sites:
        for own in (one.without, one.alone):
            if own.mean is not None:
                moved = np.maximum(moved, np.abs(own.mean - together.mean) / sd)
                break
    return sorted(np.argsort(-moved, kind="stable")[:_MOST_BY_SITE].tolist())


def _not_known(reasons: Sequence[tuple[str, str]], what: str) -> list[str]:
    """Why some intervals are not known; a sentence of all where it is the same for all."""
    said = [(name, why) for name, why in reasons if why]
    if not said:
        return []
    if len(said) == len(reasons) and len({why for _, why in said}) == 1:
        return [paragraph(f"Each site {what}: not known. {said[0][1]}")]
    return [paragraph(f"Sites {what} whose interval is not known:"), bullets(f"{name}: {why}" for name, why in said)]


def _densities(told: Told) -> str:
    caption = "A line for each chain. Grey: the 90% interval."
    return _panels(told, draws.density, "Density of the draws of", caption)


def _chains(told: Told) -> str:
    if not isinstance(told.weights, str):
        return paragraph("No traces: points were drawn one by one, and have no order. Their weights are below.")
    step = draws.thinned(told.draws.shape[1])
    caption = "The draws of each chain in their order" + (f", one of {step}." if step > 1 else ".")
    return _panels(told, draws.trace, "Trace of", caption)


def _ranks(told: Told) -> str:
    if told.draws.shape[0] < 2:
        return paragraph("No ranks: a single chain has none to be compared with.")
    caption = (
        "How the ranks of each chain's draws among all are spread: even where chains agree. Grey: where 19 of 20 "
        "counts of independent draws are; draws that depend on one another stray further."
    )
    return _panels(told, draws.ranks, "Ranks of the draws by chain of", caption)


def _weights(told: Told) -> str:
    weight = told.weights
    if isinstance(weight, str):
        return paragraph(weight)
    alt = f"Weights of {weight.size} points from the largest to the smallest"
    drawing = figures.inline(lambda ax: draws.weights(ax, weight), alt, 4.0, 2.4)
    worth = weight.sum() ** 2 / np.square(weight).sum()
    caption = (
        f"{weight.size:,} weighted points, worth {worth:,.0f} independent draws. The heaviest carries "
        f"{weight.max() / weight.sum():.2%} of all; the dashed line is the mean."
    )
    return _figure(drawing, caption)


def _check(told: Told) -> str:
    check = told.check
    if not isinstance(check, Histogram):
        return paragraph(check)
    alt = f"Posterior predictive check: responses in {len(check.labels)} bins, observed and drawn from the model"
    drawing = figures.inline(lambda ax: predictive.histogram(ax, check), alt, 4.8, 2.8)
    left_out = check.of_sites - check.sites
    far = predictive.outside(check)
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
        f"{check.rows:,} rows of {check.sites} sites, summed over them; no site tells a count above 0 and below "
        f"{check.floor}.{missing} {len(check.replicated)} draws."
    )
    return paragraph(verdict) + _figure(drawing, caption)


def _prediction(told: Told) -> str:
    loo, evidence = told.loo, told.evidence
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


def _cost(told: Told) -> str:
    sent = [one.bytes_sent for one in told.sites]
    facts = [
        ("seconds, compilation included", f"{told.seconds:.1f}"),
        ("rounds", f"{told.rounds:,}" if told.rounds else ""),
        ("sums over all sites", f"{told.sums:,}" if told.sums else ""),
        ("exchanges, one after another", f"{told.exchanges:,}"),
        ("sent by the busiest site", human_bytes(max(sent, default=0))),
        ("sent by all sites", human_bytes(sum(sent))),
    ]
    return table(["", ""], [(name, number(value)) for name, value in facts if value])


def _words(told: Told) -> str:
    listed = "".join(f"<dt>{escape(word)}</dt><dd>{escape(meaning)}</dd>" for word, meaning in _WORDS)
    return f"<dl>{listed}</dl>{paragraph(f'Made by accord {__version__}.', 'soft')}"


def _panels(told: Told, draw: Callable[[Any, np.ndarray], None], what: str, caption: str) -> str:
    """A small drawing for each parameter that is drawn."""
    made = []
    for d in _drawn(told):

        def titled(ax: Any, d: int = d) -> None:
            draw(ax, told.draws[..., d])
            ax.set_title(forest.shortened(told.names[d], _LETTERS), parse_math=False)
            ax.xaxis.get_major_locator().set_params(nbins=5)

        made.append(figures.inline(titled, f"{what} {told.names[d]}", *_SMALL))
    return _figure(_grid(made, "drawings small"), f"{caption}{_which(told)}")


def _drawn(told: Told) -> list[int]:
    """The parameters that are drawn one by one, in their order."""
    if len(told.names) <= _MOST:
        return list(range(len(told.names)))
    ess = np.nan_to_num([line.ess for line in told.average], nan=0.0)
    return sorted(np.argsort(ess, kind="stable")[:_MOST].tolist())


def _which(told: Told) -> str:
    return "" if len(told.names) <= _MOST else f" The {_MOST} of {len(told.names)} parameters with the smallest ESS."


def _grid(drawings: Sequence[str], look: str = "drawings") -> str:
    return f'<div class="{look}">{"".join(drawings)}</div>'


def _figure(drawing: str, caption: str) -> str:
    return f"<figure>{drawing}<figcaption>{escape(caption)}</figcaption></figure>"


_PARTS: tuple[tuple[str, str, Callable[[Told], str]], ...] = (
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
