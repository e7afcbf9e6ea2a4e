"""Pages with reproduced figures and claims: one self-contained HTML page, or Markdown pages."""

from __future__ import annotations

import base64
import csv
import json
import os
from html import escape
from pathlib import Path
from typing import Any

from ..base.page import Cell, document, number, paragraph, table
from ..base.text import counted
from .frame import CARD, CLAIMS, FORMAT
from .verdicts import Verdict, tally

# Largest table that is embedded in the page. Larger tables are linked.
_EMBEDDED_BYTES = 300_000
_TITLE = "Reproduced figures of the papers"
_LEGEND = (
    "Claims are statements of the papers about their figures. Checks are tests of accord itself, such as that draws "
    "follow their exact law. Remarks are statements of accord that are not in the paper. The linked pages have the "
    "figures, and each verdict with both numbers and the reason. The seconds in a page's first line are from the last "
    "session. If a run was resumed, the last row has the rounds of all sessions."
)
# Columns of counts in the overview, by kind of claim.
_KINDS = {"claim": "the paper's claims", "check": "checks of accord", "remark": "remarks"}
# Definitions at the top of the HTML page.
_WORDS = (
    (
        "experiment",
        "A figure or table of a paper, reproduced from its corrected equations. Its first line has the size.",
    ),
    ("claim", "A statement of the paper about that figure, in its text or numbers, with its place in the paper."),
    ("check", "A test of accord itself, such as that draws follow their exact law."),
    ("remark", "A statement of accord that is not in the paper, such as what its published scripts compute."),
    (
        "holds, does not hold",
        "The verdict at this size and seed: our number agrees with the paper or the law, or it does not. The last "
        "column has the criterion.",
    ),
    (
        "undecided",
        "The run is too short for a verdict: the threshold is within the uncertainty of our number (after ±), which is "
        "three Monte Carlo standard errors plus the possible change with more rounds.",
    ),
    ("exact law", "The same number without draws: the mean and covariance of the method on a Gaussian posterior."),
    ("agent, average", "The draws of one data owner, and the average of all owners' draws in a round."),
    ("W2", "The 2-Wasserstein distance of two distributions, in the units of the parameters unless stated otherwise."),
)
# An experiment's folder, its metadata, and the rows of its claims.
Entry = tuple[Path, dict[str, Any], list[dict[str, str]]]
# CSS class of each verdict, and a mark for readers who do not see colours.
_LOOKS = {Verdict.HOLDS: ("holds", "✓"), Verdict.FAILS: ("fails", "✗"), Verdict.UNDECIDED: ("undecided", "?")}
_TYPES = {".svg": "image/svg+xml", ".png": "image/png", ".csv": "text/csv"}


def write(folder: Path) -> Path:
    """Write `report.html` from all experiments in a folder of `accord reproduce`.

    Parameters
    ----------
    folder
        Parent of the experiments' folders.

    Returns
    -------
    Path
        Path of the page, which embeds figures and small tables and loads nothing.

    Raises
    ------
    ValueError
        The folder has no experiment, or one of an older accord, without undecided verdicts.
    """
    entries = _entries(folder)
    body = "\n".join([_opening(entries), _overview(entries), *(_section(*entry) for entry in entries)])
    return _replaced(folder / "report.html", document("accord: figures of the papers", body, _TITLE))


def write_markdown(folder: Path) -> Path:
    """Write `README.md` into a folder of `accord reproduce` and into the folder of each experiment.

    Parameters
    ----------
    folder
        Parent of the experiments' folders.

    Returns
    -------
    Path
        Path of the overview, which links to the experiments' pages with PNG figures and claims.

    Raises
    ------
    ValueError
        The folder has no experiment, or one of an older accord, without undecided verdicts.
    """
    entries = _entries(folder)
    heads = " | ".join(["experiment", "what it shows", *_KINDS.values()])
    lines = [f"# {_TITLE}", "", _LEGEND, "", f"| {heads} |", "| --- " * (2 + len(_KINDS)) + "|"]
    for path, card, claims in entries:
        link = f"[{card['name']}]({path.name}/README.md)"
        counts = " | ".join(_counts(claims, kind) for kind in _KINDS)
        lines.append(f"| {link} | {_cell(card['title'])} | {counts} |")
        own = [f"# {card['name']}: {card['title']}", "", _made(card), ""]
        own += [f"![{card['figure']}: {image.stem}]({image.name})\n" for image in sorted(path.glob("*.png"))]
        own += ["| verdict | where | claim | paper | ours | exact law | why |", "| --- " * 7 + "|"]
        own += [f"| {' | '.join(map(_cell, _texts(row)))} |" for row in claims]
        own += ["", _remedy(card, claims)] if _remedy(card, claims) else []
        _replaced(path / "README.md", "\n".join(own) + "\n")
    return _replaced(folder / "README.md", "\n".join(lines) + "\n")


def _entries(folder: Path) -> list[Entry]:
    # folders that begin with a dot belong to unfinished runs
    found = sorted(card.parent for card in folder.glob(f"*/{CARD}") if not card.parent.name.startswith("."))
    if not found:
        raise ValueError(f"there is nothing to report in {folder}: run accord reproduce first")
    return [(path, _card(path), _claims(path)) for path in found]


def _card(path: Path) -> dict[str, Any]:
    try:
        card: dict[str, Any] = dict(json.loads((path / CARD).read_text(encoding="utf-8")))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path / CARD} is damaged ({error}): run accord reproduce {path.name} again") from error
    if card.get("format") != FORMAT:
        # older versions have undecided claims as holding
        raise ValueError(f"{path} is from an accord without undecided verdicts: run accord reproduce {path.name} again")
    return card


def _replaced(page: Path, text: str) -> Path:
    """Write a page atomically."""
    unfinished = page.with_name(page.name + ".partial")
    unfinished.write_text(text, encoding="utf-8")
    os.replace(unfinished, page)
    return page


def _counts(claims: list[dict[str, str]], kind: str) -> str:
    return tally(Verdict(row["verdict"]) for row in claims if row["kind"] == kind)


def _texts(row: dict[str, str]) -> list[str]:
    """The cells of a claim, verdict first."""
    verdict, doubt = Verdict(row["verdict"]), row["doubt"]
    ours = f"{row['ours']} ± {_short(doubt, 2)}" if doubt else row["ours"]
    return [f"{_LOOKS[verdict][1]} {verdict}", row["source"], row["claim"], row["paper"], ours, row["law"], row["why"]]


def _remedy(card: dict[str, Any], claims: list[dict[str, str]]) -> str:
    """If a claim is undecided, a text with the larger sizes and `Experiment.beyond`. Else ""."""
    if all(row["verdict"] != Verdict.UNDECIDED for row in claims):
        return ""
    larger = [f"{size} ({minutes:,g} minutes on two cores)" for size, minutes in card["larger"].items()]
    parts = [f"Larger sizes of {card['name']}: {', '.join(larger)}."] if larger else []
    # older files have no "beyond"
    parts += [card["beyond"]] if card.get("beyond") else []
    return " ".join(["For undecided claims this run is too short.", *parts]) if parts else ""


def _made(card: dict[str, Any]) -> str:
    """The figure, size, seed and time of a run as text."""
    numbers = ", ".join(f"{value:,} {name}" for name, value in card["numbers"].items())
    return (
        f"{card['figure']} of {card['paper']}. Size {card['size']}: {numbers}; seed {card['seed']}; "
        f"{card['seconds']:,.0f} s; accord {card['accord']}."
    )


def _cell(text: str) -> str:
    """A text in a cell of a Markdown table."""
    return text.replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;").replace("\n", " ")


def _claims(path: Path) -> list[dict[str, str]]:
    with (path / CLAIMS).open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        if row["verdict"] not in list(Verdict):
            raise ValueError(f"{path / CLAIMS}: {row['verdict']!r} is not a verdict: {', '.join(Verdict)}")
    return rows


def _opening(entries: list[Entry]) -> str:
    """The counts of experiments and verdicts, and the definitions."""
    rows = [row for _, _, claims in entries for row in claims]
    papers = len({card["paper"] for _, card, _ in entries})
    summary = (
        f"{counted(len(entries), 'experiment')} of {counted(papers, 'paper')}: of the papers' claims "
        f"{_counts(rows, 'claim')}; of accord's own checks {_counts(rows, 'check')}. Each section has the figure, the "
        "claims with both numbers, and the data behind them."
    )
    words = "".join(f"<dt>{escape(word)}</dt><dd>{escape(meaning)}</dd>" for word, meaning in _WORDS)
    return f"{paragraph(summary)}<dl>{words}</dl>"


def _overview(entries: list[Entry]) -> str:
    rows = []
    for _, card, claims in entries:
        kinds = [f"<td>{_counts(claims, kind)}</td>" for kind in _KINDS]
        link = f'<a href="#{escape(card["name"])}">{escape(card["name"])}</a>'
        rows.append(f"<tr><td>{link}</td><td>{escape(card['title'])}</td>{''.join(kinds)}</tr>")
    head = "".join(f"<th>{name}</th>" for name in ("experiment", "what it shows", *_KINDS.values()))
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"


def _section(path: Path, card: dict[str, Any], claims: list[dict[str, str]]) -> str:
    parts = [
        f'<h2 id="{escape(card["name"])}">{escape(card["name"])}: {escape(card["title"])}</h2>',
        f"<p>{escape(_made(card))}</p>",
        *(
            f'<img alt="{escape(card["figure"])}: {escape(image.stem)}" src="{_data(image)}">'
            for image in _images(path)
        ),
        _table(claims),
        paragraph(_remedy(card, claims)) if _remedy(card, claims) else "",
        f"<p>Data: {', '.join(_link(file) for file in sorted(path.glob('*.csv')))}</p>",
    ]
    return "\n".join(parts)


def _images(path: Path) -> list[Path]:
    """Each figure once, as SVG if there is one."""
    stems = sorted({image.stem for kind in ("svg", "png") for image in path.glob(f"*.{kind}")})
    files = [path / f"{stem}.svg" for stem in stems]
    return [file if file.exists() else file.with_suffix(".png") for file in files]


def _table(claims: list[dict[str, str]]) -> str:
    rows = []
    for row in claims:
        short = {name: _short(row[name]) for name in ("paper", "ours", "law")}
        verdict, source, claim, *numbers, why = _texts({**row, **short})
        look = _LOOKS[Verdict(row["verdict"])][0]
        rows.append([Cell(verdict, look), source, claim, *map(number, numbers), why])
    return f'<div class="claims">{table(["", "where", "claim", "paper", "ours", "exact law", "why"], rows)}</div>'


def _short(text: str, digits: int = 4) -> str:
    """A number with `digits` significant digits. Other text is unchanged."""
    try:
        return f"{float(text):.{digits}g}"
    except ValueError:
        return text


def _link(file: Path) -> str:
    """A download link to a table, which is embedded unless it is large."""
    size = file.stat().st_size
    where = _data(file) if size <= _EMBEDDED_BYTES else f"{file.parent.name}/{file.name}"
    return f'<a download="{escape(file.name)}" href="{escape(where)}">{escape(file.name)}</a> ({size / 1000:,.0f} kB)'


def _data(file: Path) -> str:
    return f"data:{_TYPES[file.suffix]};base64,{base64.b64encode(file.read_bytes()).decode()}"
