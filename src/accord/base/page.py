"""Self-contained HTML pages with one style for light and dark screens and for print."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

# Colours are CSS variables, which inline figures share, so that they follow the dark mode.
STYLE = """
:root { color-scheme: light dark; --ink: #222; --soft: #5c5c5c; --line: #d5d5d5; --ground: #fff; --raised: #f5f6f7;
  --good: #006b4e; --bad: #a34700; --blue: #0072b2; --vermillion: #c65500; --green: #00835f; --purple: #a8598a;
  --orange: #a87400; --sky: #2a86b8; }
@media screen and (prefers-color-scheme: dark) { :root { --ink: #e4e4e4; --soft: #aaa; --line: #454545;
  --ground: #16181a; --raised: #22262a; --good: #4fd1a5; --bad: #ffa35c; --blue: #58b4ee; --vermillion: #ff8a3d;
  --green: #2fc79b; --purple: #e59ac4; --orange: #f0b429; --sky: #8fd0f5; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem; color: var(--ink);
  background: var(--ground); overflow-wrap: break-word; }
h1 { line-height: 1.2; } h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line); }
a { color: var(--blue); }
svg { max-width: 100%; height: auto; } svg * { stroke-linejoin: round; }
svg text { font-family: system-ui, sans-serif; }
.drawings { display: flex; flex-wrap: wrap; gap: .6rem 1rem; align-items: flex-start; }
figure { margin: 1rem 0; } figcaption, .soft { color: var(--soft); font-size: 14px; }
table { border-collapse: collapse; font-size: 14px; margin: 1rem 0; }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem; border-bottom: 1px solid var(--line); }
th { vertical-align: bottom; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; } td.number { white-space: nowrap; }
td.holds { color: var(--good); } .holds, .short { white-space: nowrap; }
td.fails { color: var(--bad); font-weight: 600; white-space: nowrap; }
.wide { overflow-x: auto; } .wide table { margin-top: .3rem; }
p, li, dd, figcaption { max-width: 52rem; }
.verdict { border-left: .4rem solid var(--good); background: var(--raised); padding: .6rem 1rem; margin: 1rem 0; }
.verdict.bad { border-color: var(--bad); } .verdict.open { border-color: var(--soft); }
nav { font-size: 14px; } nav a { margin-right: .8rem; white-space: nowrap; }
dt { font-weight: 600; } dd { margin: 0 0 .5rem 1.5rem; }
@media screen and (max-width: 32rem) { table { font-size: 12.5px; } th, td { padding: .25rem .4rem; } }
@page { size: A4; margin: 15mm; }
@media print { .drawings { display: block; } .drawings svg { max-width: 48%; } .small svg { max-width: 31%; }
  body { font-size: 10.5pt; max-width: none; margin: 0; padding: 0; } nav { display: none; }
  h1, h2, h3, dt { break-after: avoid; } figure, svg, tr, li, .verdict { break-inside: avoid; }
  figure:has(svg:nth-of-type(13)) { break-inside: auto; } figcaption { break-before: avoid; }
  thead { display: table-header-group; } .wide { overflow: visible; }
  table, figcaption, .soft { font-size: 9pt; } th, td { padding: .15rem .35rem; } }
"""


@dataclass(frozen=True)
class Cell:
    """A table cell: its text and its CSS class."""

    text: str
    look: str = ""


def number(text: str) -> Cell:
    """A right-aligned cell."""
    return Cell(text, "number")


def paragraph(text: str, look: str = "") -> str:
    """A paragraph."""
    return f"<p{_look(look)}>{escape(text)}</p>"


def bullets(texts: Iterable[str]) -> str:
    """A list of sentences."""
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>"


def table(headings: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """A table of texts and `Cell`s that scrolls horizontally if it is too wide. Without titles it has no header."""
    titles = [*headings]
    head = f"<thead>{_row('th', titles)}</thead>" if any(titles) else ""
    lines = "".join(_row("td", row) for row in rows)
    return f'<div class="wide"><table>{head}<tbody>{lines}</tbody></table></div>'


def document(title: str, body: str, heading: str | None = None) -> str:
    """A whole page. `heading` replaces the title above the body."""
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{escape(title)}</title>\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n<h1>{escape(title if heading is None else heading)}</h1>\n"
        f"{body}\n</body>\n</html>\n"
    )


def _row(tag: str, cells: Iterable[object]) -> str:
    made = [cell if isinstance(cell, Cell) else Cell(str(cell)) for cell in cells]
    return f"<tr>{''.join(f'<{tag}{_look(cell.look)}>{escape(cell.text)}</{tag}>' for cell in made)}</tr>"


def _look(name: str) -> str:
    return f' class="{name}"' if name else ""
