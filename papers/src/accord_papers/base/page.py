"""Self-contained HTML pages for light and dark screens and for print."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

STYLE = """
:root { color-scheme: light dark; --ink: #222; --soft: #5c5c5c; --line: #d5d5d5; --ground: #fff; --good: #006b4e;
  --bad: #a34700; --blue: #0072b2; }
@media screen and (prefers-color-scheme: dark) { :root { --ink: #e4e4e4; --soft: #aaa; --line: #454545;
  --ground: #16181a; --good: #4fd1a5; --bad: #ffa35c; --blue: #58b4ee; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem; color: var(--ink);
  background: var(--ground); overflow-wrap: break-word; }
h1 { line-height: 1.2; } h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line); }
a { color: var(--blue); }
img { width: 100%; height: auto; background: #fff; }
table { border-collapse: collapse; font-size: 14px; margin: 1rem 0; }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem; border-bottom: 1px solid var(--line); }
th { vertical-align: bottom; }
td.number, th.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
td.holds { color: var(--good); white-space: nowrap; }
td.fails { color: var(--bad); font-weight: 600; white-space: nowrap; }
td.undecided { color: var(--soft); font-style: italic; white-space: nowrap; }
.wide { overflow-x: auto; } .wide table { margin-top: .3rem; }
p, dd { max-width: 52rem; }
dt { font-weight: 600; } dd { margin: 0 0 .5rem 1.5rem; }
@media screen and (max-width: 32rem) { table { font-size: 12.5px; } th, td { padding: .25rem .2rem; }
  th.number { white-space: normal; } }
@media print, (min-width: 60rem) { .claims table { table-layout: fixed; width: 100%; }
  .claims :is(th, td):nth-child(1) { width: 8%; white-space: normal; } .claims :is(th, td):nth-child(2) { width: 14%; }
  .claims :is(th, td):nth-child(3) { width: 24%; } .claims :is(th, td):nth-child(7) { width: 20%; } }
@page { size: A4; margin: 15mm; }
@media print { body { font-size: 10.5pt; max-width: none; margin: 0; padding: 0; }
  h2 { break-after: avoid; } tr { break-inside: avoid; } .wide { overflow: visible; }
  table { font-size: 9pt; } th, td { padding: .15rem .35rem; } }
"""


@dataclass(frozen=True)
class Cell:
    """A table cell: its text and its CSS class."""

    text: str
    look: str = ""


def number(text: str) -> Cell:
    """A cell with a number."""
    return Cell(text, "number")


def paragraph(text: str) -> str:
    """A paragraph."""
    return f"<p>{escape(text)}</p>"


def table(head: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """A table of texts and `Cell`s that scrolls if it is wider than the screen. Empty heads are left out."""
    titles = [*head]
    lines = [_row("th", titles)] if any(titles) else []
    lines += [_row("td", row) for row in rows]
    return f'<div class="wide"><table>{"".join(lines)}</table></div>'


def document(title: str, body: str, heading: str) -> str:
    """A complete HTML page with a heading above the body."""
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{escape(title)}</title>\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n<h1>{escape(heading)}</h1>\n"
        f"{body}\n</body>\n</html>\n"
    )


def _row(tag: str, cells: Iterable[object]) -> str:
    made = [cell if isinstance(cell, Cell) else Cell(str(cell)) for cell in cells]
    return f"<tr>{''.join(f'<{tag}{_look(cell.look)}>{escape(cell.text)}</{tag}>' for cell in made)}</tr>"


def _look(name: str) -> str:
    return f' class="{name}"' if name else ""
