"""The page of a rehearsal: a verdict, coverage, errors against pooled NUTS, and what leaves each site."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy

from ..base import figures
from ..base.atomic import write_whole
from ..base.figures import COLORS, SOFT
from ..base.page import Cell, bullets, document, number, paragraph, table
from ..base.text import __version__, counted, human_bytes, human_seconds
from ..data import Policy
from ..results import forest
from .rehearsal import Attempt, Rehearsal, Step

# Probabilities of the intervals whose coverage is counted.
_PROBABILITIES = (0.5, 0.9)
# Chance that low coverage of correct intervals raises a warning, over all parameters.
_CHANCE = 0.01
# Standard errors by which the coverage of all parameters may be low.
_ERRORS = 3.0
# Largest error of a mean against pooled NUTS in posterior sds, and of the log of an sd.
_MEAN, _SD = 0.3, 0.25
# Fewest rows per parameter without a warning.
_ROWS = 10
# Share of the prior's sd from which on rows say little about a coefficient.
_PRIOR = 0.8
# Largest number of parameters with a plot.
_PLOTS = 12
# Largest number of characters in a title of a plot.
_LETTERS = 28
# Seconds between looks into a shared folder, as in `accord study answer --wait 10`.
_WAIT = 10.0
# Largest number of reasons that are listed.
_REASONS = 5


class Verdict(NamedTuple):
    """What a rehearsal found.

    Parameters
    ----------
    text
        The first sentence.
    problems
        Reasons why the study should not run as it is.
    warnings
        Other remarks, each with a remedy.
    """

    text: str
    problems: tuple[str, ...]
    warnings: tuple[str, ...]


class _Found:
    """Numbers of a rehearsal."""

    def __init__(self, rehearsal: Rehearsal) -> None:
        self.rehearsal, self.names, self.finished = rehearsal, rehearsal.names, rehearsal.finished

    @cached_property
    def covered(self) -> dict[float, np.ndarray]:
        """By probability, whether intervals contain the truth, (data set, parameter), of known parameters."""
        return {p: self.rehearsal.covered(p)[:, self.known] for p in _PROBABILITIES}

    @cached_property
    def known(self) -> np.ndarray:
        """Places of the parameters with a known true value."""
        return np.flatnonzero(np.isfinite(self.rehearsal.truths).all(axis=0))

    @cached_property
    def certified(self) -> int:
        """Number of data sets with a certified run."""
        return sum(bool(a.run and a.run.certificate and a.run.certificate.holds) for a in self.finished)

    @cached_property
    def errors(self) -> list[tuple[np.ndarray, np.ndarray, float, float]]:
        """Errors against pooled NUTS: means in sds, logs of sds, log evidence, and its standard error."""
        found = []
        for attempt in self.finished:
            if attempt.reference is not None and attempt.run is not None:
                flat = attempt.run.average.reshape(-1, len(self.names)).astype(float)
                of, mean = attempt.reference, flat.mean(axis=0)
                try:
                    value, error = attempt.run.log_evidence
                except (ArithmeticError, AttributeError):
                    value = error = np.nan
                together = float(np.hypot(error, of.error))
                apart = np.log(flat.std(axis=0) / of.sd)
                found.append(((mean - of.mean) / of.sd, apart, value - of.log_evidence, together))
        return found

    @cached_property
    def seconds(self) -> float:
        """Median seconds of a data set, after the first, which compiles programs."""
        own = [attempt.seconds for attempt in self.rehearsal.attempts]
        return float(np.median(own[1:] or own))

    @cached_property
    def typical(self) -> Attempt:
        """The data set with the median number of steps."""
        of = sorted(self.finished or self.rehearsal.attempts, key=lambda attempt: len(attempt.steps))
        return of[len(of) // 2]

    @property
    def range(self) -> str:
        """The least and the most steps of a data set."""
        counts = [len(attempt.steps) for attempt in self.finished or self.rehearsal.attempts]
        return f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"

    @cached_property
    def coefficients(self) -> dict[str, float]:
        """The prior sd of each coefficient except the intercept."""
        runs = [attempt.run for attempt in self.finished if attempt.run is not None]
        return {name: sd for name, _, sd, _ in runs[0].info.coefficients} if runs else {}

    @property
    def passes(self) -> int:
        """Times that all sites wait for entries of others. Steps with a plan need two."""
        return sum(1 + own[0].planned for own in self.typical.steps)


def verdict(rehearsal: Rehearsal) -> Verdict:
    """What a rehearsal found, in sentences."""
    found, count = _Found(rehearsal), len(rehearsal.attempts)
    problems, warned = list(rehearsal.refusals), list[str]()
    stopped = [attempt.stopped for attempt in rehearsal.attempts if attempt.run is None]
    for reason in list(dict.fromkeys(stopped))[:_REASONS]:
        # the advice about another seed is for studies of real rows
        text = reason.replace(". The study ends here. Repair the cause and begin it with another seed", "")
        text = re.sub(r"\n\s*", "; ", text)
        problems.append(f"the study stopped on {stopped.count(reason)} of {counted(count, 'data set')}: {text}")
    failed = [a for a in found.finished if a.run and a.run.certificate and not a.run.certificate.holds]
    if failed and failed[0].run is not None and failed[0].run.certificate is not None:
        why = failed[0].run.certificate.why
        problems.append(f"the draws of {len(failed)} of {counted(count, 'data set')} are not certified, such as: {why}")
    if found.finished:
        problems += _low_coverage(found)
        # draws with differential privacy differ by their noise
        if rehearsal.study.private is None:
            problems += _far_from_nuts(found)
        warned += _of_rows(found)
    warned += _of_assumptions(rehearsal)
    for text in dict.fromkeys(text for attempt in rehearsal.attempts for text in attempt.warned):
        # failed certificates are problems
        if "not certified" in text:
            continue
        warned.append(f"a site or the study warns: {text}")
    if problems:
        text = f"Do not run this study as it is: {counted(len(problems), 'problem')} below."
    else:
        text = f"The study would run: {found.certified} of {counted(count, 'synthetic data set')} are certified"
        text += ", and no interval misses its true values too often."
    return Verdict(text, tuple(problems), tuple(warned))


def _low_coverage(found: _Found) -> list[str]:
    texts, count = [], len(found.finished)
    for probability, inside in found.covered.items():
        size = inside.shape[1]
        low = [
            f"{found.names[place]} ({hits} of {count})"
            for place, hits in zip(found.known, inside.sum(axis=0), strict=True)
            if scipy.stats.binom.cdf(hits, count, probability) < _CHANCE / size / len(_PROBABILITIES)
        ]
        shares = inside.mean(axis=1)
        spread = max(float(shares.std()), float(np.sqrt(probability * (1.0 - probability) / max(size, 1))))
        if low:
            texts.append(
                f"coverage is low: {probability:.0%} intervals of {', '.join(low)} miss their true values too often. "
                "Check that the prior allows these values, or collect more rows"
            )
        elif size and shares.mean() < probability - _ERRORS * spread / np.sqrt(count):
            texts.append(
                f"coverage is low: {probability:.0%} intervals contain {shares.mean():.0%} of the true values. Check "
                "the priors, or collect more rows"
            )
    return texts


def _far_from_nuts(found: _Found) -> list[str]:
    texts = []
    for mean, sd, *_ in found.errors:
        far = (np.abs(mean) > _MEAN) | (np.abs(sd) > _SD)
        if far.any():
            named = ", ".join(f"{found.names[d]} ({mean[d]:+.2f} sds)" for d in np.flatnonzero(far))
            texts.append(f"the draws differ from pooled NUTS in {named}. Increase draws, or collect more rows")
    return texts


def _of_rows(found: _Found) -> list[str]:
    texts, rows, dim = [], sum(found.rehearsal.synthetic.rows), len(found.names)
    if rows < _ROWS * dim:
        texts.append(f"{counted(rows, 'row')} are few for {counted(dim, 'parameter')}: use fewer columns or more rows")
    counts = [attempt.made.positives for attempt in found.finished if attempt.made.positives is not None]
    if counts:
        rarer = int(np.median([min(one, rows - one) for one in counts]))
        if rarer < _ROWS * dim:
            texts.append(
                f"the rarer response has about {counted(rarer, 'row')}, few for {counted(dim, 'parameter')}: estimates "
                "depend on the prior"
            )
    for name, prior in found.coefficients.items():
        if name in found.names:
            place = found.names.index(name)
            own = [a.run.average[..., place].std() / prior for a in found.finished if a.run is not None]
            if np.median(own) > _PRIOR:
                texts.append(
                    f"the rows say little about {name}: its posterior sd is {np.median(own):.0%} of its prior sd"
                )
    return texts


def _of_assumptions(rehearsal: Rehearsal) -> list[str]:
    synthetic, texts = rehearsal.synthetic, []
    if synthetic.has_assumed_rows:
        texts.append(f"each site has {synthetic.rows[0]} rows, the default. Pass others, as in --rows 150,80,300")
    if synthetic.assumed:
        listed = "; ".join(f"{name}: {synthetic.columns[name]}" for name in synthetic.assumed)
        texts.append(
            f"columns without a description have default cells ({listed}). Describe them, as in --column "
            "'age = {mean = 60, sd = 10}' or --column 'sex = [\"f\", \"m\"]'"
        )
    if not rehearsal.study.coarse:
        texts.append("coarse = false gives exact numbers, and needs exact = true in the policy of each site")
    if rehearsal.study.report:
        texts.append("report = true takes a few more steps, which this rehearsal does not run")
    return texts


def lines(rehearsal: Rehearsal) -> list[str]:
    """A short summary for the terminal."""
    found, own = _Found(rehearsal), verdict(rehearsal)
    texts = [own.text, *(f"problem: {text}" for text in own.problems), *(f"warning: {text}" for text in own.warnings)]
    if found.finished:
        for probability, inside in found.covered.items():
            texts.append(f"{probability:.0%} intervals contain {inside.sum()} of {inside.size} true values")
        texts += _sentences_of_errors(found)
    return [*texts, *_sentences_of_cost(found)]


def _sentences_of_errors(found: _Found) -> list[str]:
    texts = []
    for place, (mean, sd, evidence, error) in enumerate(found.errors, 1):
        text = f"Data set {place} against pooled NUTS: means differ by at most {np.abs(mean).max():.3f} posterior sds, "
        text += f"and sds by at most {np.expm1(np.abs(sd)).max():.1%}"
        if np.isfinite(evidence):
            text += f"; log evidence by {evidence:+.3f} from one process with exact sums (standard error {error:.2g})"
        texts.append(text + ".")
    return texts


def _sentences_of_cost(found: _Found) -> list[str]:
    steps, sites = found.typical.steps, found.rehearsal.study.sites
    if not steps:
        return []
    most = human_bytes(max(_bytes(steps, site) for site in sites))
    planned, time = sum(own[0].planned for own in steps), found.passes * _WAIT + found.seconds
    return [
        f"The study takes {found.range} steps. In each step every site writes one entry. In a typical data set of "
        f"{len(steps)} steps, a site writes {most} at most. In {planned} of these steps the first site answers before "
        f"the others, so that sites wait {found.passes} times for each other.",
        f"All {len(sites)} sites together compute {human_seconds(found.seconds)} in one process. If sites look into a "
        f"shared folder every {_WAIT:.0f} seconds, the study takes about {human_seconds(time)}.",
    ]


# --- the page ---


def write_page(rehearsal: Rehearsal, path: Path) -> None:
    """Write the page of a rehearsal, one file that loads nothing.

    Raises
    ------
    ImportError
        Matplotlib is not installed.
    OSError
        The file cannot be written.
    """
    figures.require()
    found = _Found(rehearsal)
    sections = [(title, section(found)) for title, section in _SECTIONS]
    links = "".join(f'<a href="#{_anchor(title)}">{escape(title)}</a>' for title, _ in sections)
    body = [f"<nav>{links}</nav>"]
    body += [f'<section id="{_anchor(t)}"><h2>{escape(t)}</h2>\n{text}</section>' for t, text in sections]
    title = f"Rehearsal of a study: {rehearsal.study.arguments['formula']}"
    write_whole(path, document(f"{title} (accord)", "\n".join(body), title).encode())


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def _verdict(found: _Found) -> str:
    own, rehearsal = verdict(found.rehearsal), found.rehearsal
    look = "verdict bad" if own.problems else "verdict"
    count, rows = len(rehearsal.attempts), sum(rehearsal.synthetic.rows)
    size = (
        f"{counted(count, 'synthetic data set')} of {counted(rows, 'row')} at {len(rehearsal.study.sites)} sites. No "
        "row of a site was read."
    )
    parts = [f'<div class="{look}"><strong>{escape(own.text)}</strong>{paragraph(size)}</div>']
    for title, texts in (("Problems", own.problems), ("Warnings", own.warnings)):
        if texts:
            parts += [f"<h3>{title}</h3>", bullets([f"{text[:1].upper()}{text[1:].rstrip('.')}." for text in texts])]
    parts.append("<h3>In short</h3>")
    parts.append(bullets([*_coverage_in_words(found), *_sentences_of_errors(found), *_sentences_of_cost(found)]))
    return "\n".join(parts)


def _coverage_in_words(found: _Found) -> list[str]:
    if not found.finished:
        return []
    texts = [f"{found.certified} of {counted(len(found.rehearsal.attempts), 'data set')} have a certified result."]
    for probability, inside in found.covered.items():
        texts.append(
            f"{probability:.0%} intervals contain {inside.sum()} of {inside.size} true values ({inside.mean():.0%})."
        )
    return texts


def _estimates(found: _Found) -> str:
    if not found.finished:
        return paragraph("No study finished, so there are no estimates.")
    low, high = found.rehearsal.quantiles(0.05, 0.95)
    count, names, truths = len(found.finished), found.names, found.rehearsal.truths
    means = np.stack([a.run.average.mean(axis=(0, 1)) for a in found.finished if a.run is not None])
    sds = np.stack([a.run.average.std(axis=(0, 1)) for a in found.finished if a.run is not None])
    places = {place: column for column, place in enumerate(found.known)}
    rows = []
    for d, name in enumerate(names):
        hits = [f"{inside[:, places[d]].sum()} of {count}" if d in places else "" for inside in found.covered.values()]
        bias = f"{np.mean((means[:, d] - truths[:, d]) / sds[:, d]):+.2f}" if d in places else ""
        excluded = int(((low[:, d] > 0) | (high[:, d] < 0)).sum())
        # other parameters may be positive
        power = f"{excluded} of {count}" if name in found.coefficients or (low[:, d] < 0).any() else ""
        rows.append((name, *map(number, (*hits, bias, f"{np.median(sds[:, d]):.2g}", power))))
    heads = ["50% interval contains it", "90% interval contains it", "mean error in sds", "posterior sd", "0 excluded"]
    limits = [scipy.stats.binom.ppf([0.01, 0.99], count, probability) for probability in _PROBABILITIES]
    text = (
        "How often the interval of a parameter contains its true value. Of correct intervals, "
        f"{limits[0][0]:.0f} to {limits[0][1]:.0f} of {count} (50%) and {limits[1][0]:.0f} to {limits[1][1]:.0f} of "
        f"{count} (90%) contain it in 98 of 100 rehearsals. The mean error is the mean of (posterior mean minus true "
        "value) / posterior sd. The last column counts the data sets whose 90% interval excludes 0."
    )
    panels = [_intervals(found, d, low[:, d], high[:, d]) for d in found.known[:_PLOTS]]
    more = f" The first {_PLOTS} of {len(found.known)} parameters." if len(found.known) > _PLOTS else ""
    caption = (
        f"90% intervals of each data set (lines) and true values (points), orange where the interval misses.{more}"
    )
    return table(["parameter", *_right(heads)], rows) + paragraph(text) + _figure(panels, caption)


def _intervals(found: _Found, d: int, low: np.ndarray, high: np.ndarray) -> str:
    truth, place = found.rehearsal.truths[:, d], np.arange(1, len(low) + 1)
    inside = (low <= truth) & (truth <= high)

    def draw(ax: Any) -> None:
        for own, color in ((inside, COLORS["blue"]), (~inside, COLORS["vermillion"])):
            ax.vlines(place[own], low[own], high[own], color=color, linewidth=2.0)
            ax.plot(place[own], truth[own], "o", color=color, markeredgecolor=color, markersize=4.0)
        ax.set_title(forest.shortened(found.names[d], _LETTERS), parse_math=False)
        ax.set(xlabel="data set", ylabel="value", xlim=(0.4, len(low) + 0.6))
        ax.xaxis.get_major_locator().set_params(integer=True)

    return figures.inline(draw, f"90% intervals and true values of {found.names[d]}", 2.75, 2.1)


def _against_nuts(found: _Found) -> str:
    if not found.errors:
        return paragraph("No data set was compared with pooled NUTS.")
    rows, heads = [], ["data set", "parameter", "error of the mean, in posterior sds", "error of the sd"]
    for place, (mean, sd, *_) in enumerate(found.errors, 1):
        for name, of_mean, of_sd in zip(found.names, mean, np.expm1(sd), strict=True):
            rows.append((number(f"{place}"), name, number(f"{of_mean:+.3f}"), number(f"{of_sd:+.1%}")))
    heading = [Cell(heads[0], "number"), heads[1], *_right(heads[2:])]
    text = (
        "Pooled NUTS (BlackJAX, 8,000 draws) sees all rows in one place, with the same columns and priors. The errors "
        "contain the random errors of both. NUTS has no log evidence, so accord compares it with importance sampling "
        "in one process with exact sums."
    )

    def draw(ax: Any) -> None:
        for (mean, sd, *_), color in zip(found.errors, _cycled(len(found.errors)), strict=True):
            line = np.arange(len(found.names))
            ax.plot(mean, line - 0.12, "o", color=color, markeredgecolor=color, markersize=4.5)
            ax.plot(sd, line + 0.12, "D", color=color, markerfacecolor="none", markersize=4.0)
        for limit in (-0.1, 0.1):
            ax.axvline(limit, color=SOFT, linewidth=0.6, linestyle=":")
        ax.axvline(0.0, color=SOFT, linewidth=0.8, linestyle="--")
        ax.set(xlabel="error")
        forest.lines(ax, found.names)

    height = forest.EDGES + 1.4 * forest.LINE * len(found.names)
    drawing = figures.inline(draw, "Errors of means and sds against pooled NUTS", 5.0, height)
    caption = "Points: error of the mean in posterior sds. Diamonds: log ratio of sds. Dotted: 0.1."
    return table(heading, rows) + paragraph(text) + _figure([drawing], caption) + bullets(_sentences_of_errors(found))


def _cycled(count: int) -> list[str]:
    colors = list(COLORS.values())
    return [colors[place % len(colors)] for place in range(count)]


def _leaves(found: _Found) -> str:
    steps = found.typical.steps
    if not steps:
        return paragraph("No entry was written.")
    rows = []
    for first, own in _grouped(steps):
        numbers, largest = max(one.numbers for one in own), max(one.bytes for one in own)
        readers = "only as sums over all sites" if own[0].hidden else "everyone with the entries"
        sent = human_bytes(sum(one.bytes for one in own))
        cells = map(number, (f"{len(own)}", f"{numbers:,}", human_bytes(largest), sent))
        rows.append((number(f"{first}"), _words(own[0]), readers, *cells))
    heads = ["steps", "numbers of a step, at most", "bytes of a step, at most", "bytes of all steps"]
    totals = [
        (site, *map(number, (f"{rows_there:,}", f"{len(steps)}", human_bytes(_bytes(steps, site)))))
        for site, rows_there in zip(found.rehearsal.study.sites, found.rehearsal.synthetic.rows, strict=True)
    ]
    noise = (
        "Each site adds secret noise to these numbers and rounds them."
        if found.rehearsal.study.coarse
        else "The numbers are exact (coarse = false)."
    )
    text = (
        "These are the entries of the last site. The entries of the first site also have the plan of each step. The "
        "words are also in the audit file of a site, which has one line for each entry with its bytes and its hash. "
        f"{noise} Rows and names of groups stay at the sites. Sums over small sites reveal their rows."
    )
    sizes = np.array([max(step.bytes for step in own) for own in steps])

    def draw(ax: Any) -> None:
        ax.bar(np.arange(len(sizes)), sizes / 1000.0, width=0.8, color=COLORS["blue"])
        ax.set(xlabel="step", ylabel="largest entry, kB")
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.grid(False, axis="x")

    drawing = figures.inline(draw, "Bytes of the largest entry of each step", 6.4, 2.2)
    return "\n".join(
        [
            table([*_right(["first step"]), "what leaves the site", "who can read it", *_right(heads)], rows),
            paragraph(text),
            _figure([drawing], "Bytes of the largest entry of each step."),
            table(["site", *_right(["rows", "entries", "bytes"])], totals),
            bullets(_sentences_of_cost(found)),
        ]
    )


def _bytes(steps: Sequence[Sequence[Step]], site: str) -> int:
    return sum(step.bytes for own in steps for step in own if step.site == site)


def _right(heads: Sequence[str]) -> list[Cell]:
    return [Cell(head, "number") for head in heads]


def _grouped(steps: Sequence[Sequence[Step]]) -> list[tuple[int, list[Step]]]:
    """The entries of the last site by content, each with its first step."""
    found: dict[tuple[str, bool], tuple[int, list[Step]]] = {}
    for place, own in enumerate(steps):
        found.setdefault((_words(own[-1]), own[-1].hidden), (place, []))[1].append(own[-1])
    return list(found.values())


def _words(step: Step) -> str:
    """The content in words, without the number of positions and the names of sums."""
    words = re.sub(r",? at [\d,]+ positions?", "", step.what).partition(", for the model:")
    return words[0] + (", from which the sites build the model" if words[1] else "")


def _study(found: _Found) -> str:
    """Settings and priors of the study, and the floors of each site."""
    study, policies = found.rehearsal.study, found.rehearsal.policies
    facts = [
        ("study", study.hash),
        ("formula", study.arguments["formula"]),
        ("family", study.arguments.get("family", "normal")),
        ("method", str(study.method).partition("(")[0]),
        (
            "masks",
            "true: only sums over all sites are visible"
            if study.masks
            else "false: everyone with the entries sees the numbers of each site",
        ),
        (
            "coarse",
            "true: each site adds noise to its numbers and rounds them" if study.coarse else "false: exact numbers",
        ),
    ]
    runs = [attempt.run for attempt in found.finished if attempt.run is not None]
    given = {name: str(prior) for name, prior in study.arguments.get("priors", {}).items()}
    priors = runs[0].info.priors if runs else tuple(given.items())
    floors = []
    for site in study.sites:
        own = policies[site].floors if site in policies else Policy()
        numbers = (f"{own.rows}", f"{own.cells}", f"{own.parameters:g}")
        floors.append((site, "given" if site in policies else "default", *map(number, numbers), own.rare))
    heads = ["least rows", "least rows of a level", "most parameters per row"]
    return "\n".join(
        [
            table(["", ""], facts),
            "<h3>Priors</h3>",
            table(["parameter", "prior"], priors) if priors else paragraph("The default priors."),
            "<h3>Floors</h3>",
            table(["site", "policy", *_right(heads), "rare levels"], floors),
        ]
    )


def _shape(found: _Found) -> str:
    rehearsal = found.rehearsal
    synthetic, study = rehearsal.synthetic, rehearsal.study
    rows = [(name, f"{column}{' (assumed)' if name in synthetic.assumed else ''}") for name, column in
            synthetic.columns.items()]  # fmt: skip
    way = (
        "The true coefficients are normal around the middle of their priors, with half of a large but plausible change "
        "of the response per standard deviation of the column."
        if synthetic.truth == "plausible"
        else "The true parameters are drawn from the prior."
    )
    effects = [f"{name} = {value:g}" for name, value in synthetic.effects.items()]
    fixed = f" Given true values: {', '.join(effects)}." if effects else ""
    facts = [
        ("rows", ", ".join(f"{site} {rows:,}" for site, rows in zip(study.sites, synthetic.rows, strict=True))),
        ("seed of the rehearsal", f"{rehearsal.seed}"),
    ]
    text = (
        f"{way}{fixed} Means of numbers differ between sites by {synthetic.apart:g} standard deviations, and the logs "
        f"of shares of levels by {synthetic.apart:g}. Cells are independent of each other. Real rows may have "
        "correlated columns, missing cells and outliers, and the model may not fit them."
    )
    made = paragraph(f"Made by accord {__version__}.", "soft")
    return "\n".join([table(["", ""], facts), table(["column", "synthetic cells"], rows), paragraph(text), made])


def _sets(found: _Found) -> str:
    rows = []
    for place, attempt in enumerate(found.rehearsal.attempts, 1):
        certificate = attempt.run.certificate if attempt.run is not None else None
        good = certificate is not None and certificate.holds
        text = attempt.stopped or ("" if certificate is None else str(certificate).splitlines()[0])
        result = Cell(
            "certified" if good else "stopped" if attempt.stopped else "not certified", "holds" if good else "fails"
        )
        rows.append(
            (number(f"{place}"), result, number(f"{len(attempt.steps)}"), number(f"{attempt.seconds:.1f}"), text)
        )
    heads = [Cell("data set", "number"), "result", Cell("steps", "number"), Cell("seconds", "number"), "details"]
    return table(heads, rows)


def _figure(drawings: Sequence[str], caption: str) -> str:
    return f'<figure><div class="drawings">{"".join(drawings)}</div><figcaption>{escape(caption)}</figcaption></figure>'


_SECTIONS: tuple[tuple[str, Callable[[_Found], str]], ...] = (
    ("Verdict", _verdict),
    ("Intervals and true values", _estimates),
    ("Against pooled NUTS", _against_nuts),
    ("What leaves a site", _leaves),
    ("Study and floors", _study),
    ("Data sets", _sets),
    ("Synthetic rows", _shape),
)
