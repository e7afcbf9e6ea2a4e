"""Tables and notes of docs/methods.md."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from pages import table

from accord.base.text import human_bytes

# error per coordinate, in posterior sds, of rows that count as close
PRECISION = 0.1
# multiple of the floor within which a worst agent may be exact
NEAR = 2.0
# relative error of an sd within which error bars are correct
WIDTH_TOLERANCE = 0.1
# methods with chains that move between agents
TRAVELLING = ("HubSGLD", "FSGLD")


class Result(NamedTuple):
    """All rows of a target, and the W2 of independent exact draws by number of draws."""

    title: str
    dim: int
    floors: dict[int, float]
    rows: list[Any]


def overview(results: list[Result]) -> str:
    """The worst agent of every method on all posteriors."""
    lines = []
    for rows in zip(*(result.rows for result in results), strict=True):
        cells = ["cannot run" if row.error else _number(row.worst) for row in rows]
        lines.append([rows[0].label + marks(rows[0]), *cells])
    return table(["method", *(result.title for result in results)], lines)


def section(result: Result) -> str:
    """Both tables and the notes of one posterior."""
    floors = ", ".join(f"{_number(w)} for {n:,} draws" for n, w in sorted(result.floors.items()))
    parts = [f"W2 of independent exact draws (Monte Carlo error): {floors}.", ""]
    parts += [
        main_table(result),
        *(f"- {note}" for note in notes(result)),
        "",
        "Settings, with the W2 by the law and in the run:",
    ]
    return "\n".join([*parts, "", settings_table(result)])


def floor_of(result: Result, row: Any) -> float | None:
    # W2 of n draws falls as the square root of n
    return None if row.effective is None else result.floors[1000] * np.sqrt(1000 / row.effective)


def main_table(result: Result) -> str:
    head = ["method", "W2 worst agent", "median agent", "average", "floor", "sd ratio, agents", "sd ratio, average"]
    head += ["rounds", "sums", "hops", "sent", "gradients", "values", "per MB", "per s"]
    lines = []
    for row in result.rows:
        if row.error:
            lines.append([row.label, f"cannot run: {_escaped(row.error)}", *[""] * (len(head) - 2)])
            continue
        cells = [row.label + marks(row), *map(_number, (row.worst, row.median, row.average, floor_of(result, row)))]
        cells += [_range(row.sd_agents), _range(row.sd_average)]
        cells += [*map(_count, (row.rounds, row.sums, row.exchanges)), human_bytes(row.bytes_sent)]
        cells += [_count(row.gradient_rows), _count(row.value_rows)]
        lines.append([*cells, _number(row.per_megabyte), _number(row.per_second)])
    return table(head, lines)


def marks(row: Any) -> str:
    """Footnote signs of a row."""
    return (" [1]" if row.optimiser else "") + (" [2]" if row.method in TRAVELLING else "")


def settings_table(result: Result) -> str:
    head = ["method", "setting", "law: worst agent", "run: worst agent"]
    lines = []
    for row in result.rows:
        numbers = row.predicted_worst, row.worst, row.predicted_average, row.average
        lines.append([row.label, f"`{row.setting}`" if row.setting else "", *map(_number, numbers)])
    return table([*head, "law: average", "run: average"], lines, texts=2)


def notes(result: Result) -> list[str]:
    """Summary of the table, and warnings of runs."""
    rows = [row for row in result.rows if not row.error]
    sampled = [row for row in rows if not row.optimiser]
    limit = PRECISION * np.sqrt(result.dim)
    close = [row for row in sampled if row.worst <= limit]
    unclear = [row for row in sampled if limit < row.worst <= NEAR * floor_of(result, row)]
    wide = [row for row in sampled if row.sd_agents[1] > 1 + WIDTH_TOLERANCE]
    narrow = [row for row in sampled if row.sd_agents[0] < 1 - WIDTH_TOLERANCE]
    good = [row for row in sampled if row not in wide and row not in narrow]
    found = [
        f"W2 of every agent at most {limit:.2g} ({PRECISION:g} sd per coordinate): {_listed(close)}.",
        f"W2 above that but within {NEAR:g} floors, so more draws are needed: {_listed(unclear)}.",
        f"Error bars of an agent more than {WIDTH_TOLERANCE:.0%} too wide: {_listed(wide)}.",
        f"Error bars of an agent more than {WIDTH_TOLERANCE:.0%} too narrow: {_listed(narrow)}.",
    ]
    for key, unit in (("per_megabyte", "megabyte"), ("per_second", "second")):
        best = max(good, key=lambda row, k=key: getattr(row, k), default=None)
        if best:
            found.append(f"Most effective draws per {unit} with correct error bars: {best.label}.")
    for row in result.rows:
        found += [f"{row.label} warned: {_escaped(text)}" for text in row.warned]
    return found


def _number(value: float | None) -> str:
    if value is None or not np.isfinite(value):
        return "-"
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{max(0, 2 - int(np.floor(np.log10(abs(value)))))}f}" if abs(value) >= 1e-3 else f"{value:.1e}"


def _count(number: float | None) -> str:
    return f"{number:,.0f}" if number else "-"


def _range(pair: tuple[float, float] | None) -> str:
    return "-" if pair is None else f"{pair[0]:.3g} .. {pair[1]:.3g}"


def _listed(rows: list[Any]) -> str:
    return "; ".join(row.label for row in rows) or "none"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
