"""The tables of docs/score.md."""

from __future__ import annotations

from typing import Any

import numpy as np
from pages import DOCS, fill, table

PAGE = DOCS / "score.md"
COLUMNS = {
    "sums": "sums",
    "exchanges": "exchanges",
    "entries": "entries",
    "handoffs": "hand-offs",
    "kb": "kB",
    "kb_others": "kB of others",
    "evaluations": "evaluations",
    "mean": "mean, sds",
    "sd": "sd",
}
VERDICTS = "ok", "refused", "warned", "silent"


def _cell(column: str, runs: list[dict[str, Any]]) -> str:
    """The mean over seeds, and the largest in brackets if it differs."""
    values = [run[column] for run in runs if column in run]
    if not values:
        return ""
    form = "{:.3f}" if column == "mean" else "{:.1%}" if column == "sd" else "{:,.0f}"
    mean, most = form.format(np.mean(values)), form.format(max(values))
    return mean if mean == most else f"{mean} ({most})"


def _line(name: str, row: dict[str, Any]) -> list[str]:
    now = row["now"]
    if "missing" in now:
        return [name, "cannot run", *[""] * (len(COLUMNS) + 2)]
    runs = now["runs"]
    methods = sorted({run["method"].partition(":")[0] for run in runs if "method" in run})
    held = f"{sum(run['certified'] for run in runs)} of {len(runs)}" if "certified" in runs[0] else ""
    seconds = [f"{run['cpu']:.1f}" if "cpu" in run else "" for run in runs[:2]]
    return [name, f"{held} {', '.join(methods)}".strip(), *(_cell(column, runs) for column in COLUMNS), *seconds]


def write(stored: dict[str, Any]) -> None:
    """Write the tables of stored rows into the page."""
    rows = stored["rows"]
    verdicts = {name: row["now"] for name, row in rows.items() if name.startswith("misses")}
    counted = {name: row for name, row in rows.items() if name.startswith("lines")}
    main = [_line(name, row) for name, row in rows.items() if name not in {**verdicts, **counted}]
    text = table(["row", "certified", *COLUMNS.values(), "s, cold", "s, warm"], main, texts=2)
    fill(PAGE, "rows", f"{text}\nMeasured on {stored['measured on']}.")
    lines = [
        [
            name.removeprefix("misses, "),
            *(str(now["runs"][0][verdict]) if "runs" in now else "-" for verdict in VERDICTS),
        ]
        for name, now in verdicts.items()
    ]
    fill(PAGE, "verdicts", table(["family", *VERDICTS], lines))
    sizes = [
        f"- {name}: {row['now']['runs'][0]['lines']:,} (fewest {row['best']['lines'][0]:,.0f})"
        for name, row in counted.items()
    ]
    reasons = [f"- {name}: {row['why']}" for name, row in rows.items() if "why" in row]
    fill(PAGE, "reasons", "\n".join(reasons or ["No row is worse than its best."]))
    fill(PAGE, "lines", "\n".join(sizes))
