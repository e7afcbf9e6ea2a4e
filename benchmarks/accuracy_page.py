"""The page of the comparison of all methods: text, tables and plots, from results alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from accord.base.text import human_bytes
from accord.schedules import diminishing

# What is called close: an error of so many posterior sds in every coordinate.
PRECISION = 0.1
# What so few draws cannot tell from exact: a worst agent nearer than this many floors.
NEAR = 2.0
WIDTH_TOLERANCE = 0.1
# Methods whose agents hold different chains.
TRAVELLING = ("HubSGLD", "FSGLD")
# Okabe and Ito's colours, which differ under every kind of colour blindness, and a marker each.
STYLES = {
    "network": ("#0072B2", "o", "neighbours only"),
    "hub": ("#D55E00", "s", "with a hub"),
    "totals": ("#CC79A7", "D", "by sums alone"),
    "one-shot": ("#009E73", "^", "one-shot"),
}


def page(results: list[dict], budget) -> str:
    """The whole page."""
    parts = [introduction(results, budget), overview(results)]
    parts += [section(result) for result in results]
    return "\n".join(parts)


def write(folder: Path, text: str, results: list[dict]) -> None:
    """Write methods.md, with plots where matplotlib is installed."""
    folder.mkdir(exist_ok=True)
    (folder / "methods.md").write_text(text)
    for result in results:
        plot(result, folder / f"methods-{result['name']}.png")


def introduction(results: list[dict], budget) -> str:
    machines = sorted({result["machine"] for result in results})
    minutes = sum(result["seconds"] for result in results) / 60
    return f"""# All methods on three posteriors

Every method of `accord.samplers`, `accord.combine` and `accord_papers.combine` on every one of three posteriors, good
or bad: the script stops if one of them has no row. The command that wrote this page, about {minutes:.0f} minutes:

    make accuracy

It ran on {"; ".join(machines)}. Random seeds are fixed.

## What is measured

- **W2** is the 2-Wasserstein distance between the Gaussian with the draws' mean and covariance and the one with the
  reference's, after dividing every coordinate by the reference's standard deviation: 1 is an error of one posterior sd
  in one coordinate. It is taken for every agent's own draws (the *worst* and the *median* agent) and for the draws of
  the plain average of all agents at one round. Only means and covariances enter it.
- **Floor** is the W2 that as many independent exact draws would show as the row has effective ones, all coordinates
  taken to have as few as the slowest: a row at or below it cannot be told from exact.
- **sd ratio** is a standard deviation over the reference's, smallest .. largest over coordinates (and agents).
- **Rounds**, **sums** (over all agents) and **hops** (exchanges of messages that follow one another) serve all chains
  at once, as one message carries them. **Sent** is what one agent sends for all chains, over all its edges;
  **gradients** and **values** are the data rows that it reads for them, for gradients and for values of its potential
  without one. These are means over agents; a potential that does not split into rows counts as one row. All include
  burn-in, warm-up, set-up and certificates. Methods with rounds do not tell values from gradients, and have both among
  the gradients.
- **Effective draws** are those of ArviZ (bulk), all chains together, the smallest over coordinates and over the
  average, the first, the middle and the last agent. **per MB** divides them by the megabytes that all agents together
  sent in all chains; **per s** by the wall seconds of the run on the machine above, which may have had other work, all
  agents in one process. Compilation is left out, as a first run compiles the same programs, and short runs count with
  the fastest of several; one-shot methods that take more than half a minute run once.

## What every method may use

- The methods that talk in rounds have one budget: {budget.rounds:,} rounds, of which {budget.burn_in:,} are burn-in;
  one of every {budget.thin} others is kept, {budget.draws:,} draws in each of {budget.chains} chains. All start at the
  posterior's `init`, which is the origin.
- *Replicated* chains have a round for every draw: {budget.warmup} rounds of warm-up and {budget.draws:,} draws in each
  of {budget.chains} chains. One-shot methods have {budget.warmup} steps of warm-up and {budget.draws:,} draws in each
  of 4 chains at every agent. Methods by sums alone are asked for {budget.draws:,} draws in each of {budget.chains}
  chains, and given no numbers.
- **Steps** are chosen by one rule. On a Gaussian posterior with known potentials (the posterior itself, its expansion
  at the mode, or what the section says) `accord.law` gives a method's exact law. Of the steps whose Langevin step on F,
  times the largest curvature of F, is a power of two, the one with the smallest predicted error is taken, the root of
  the sum of three squares: the stationary W2 of the worst agent by the law, and for a chain of Langevin steps of that
  size what the draws' mean keeps of the start, and its Monte Carlo error. So each method gets the step that its own
  theory says is best for this budget, and none is tuned on its results.
- D-ULA and GT-DULA mix with the weights 1 / (1 + largest degree), which are also those of DE-SGLD on these networks:
  with constant steps D-ULA and DE-SGLD are then one recursion with the same noise, so that what sets their rows apart
  is rounding, and for time the clock. DE-SGHMC tries two frictions, which take 0.1 or 0.5 of the velocity in a step.
  D-ASG has the momentum of its docstring.
- GT-BAOAB, whole and split, is given no numbers, as it is meant to be used: a plan chooses them, with exchanges in each
  round, in whitened coordinates. "Per s" leaves out the warm-up that finds these; hops, sums, bytes and rows have it.
- Diminishing steps, `first / (1 + k)^{diminishing(1.0).chi:g}` (`accord.schedules.diminishing`), pass through the
  constant step in the middle of the draws, unless they would then start above 0.9 of the stability bound.
  One more row has the schedules of the D-ADMMS paper for rings, as printed there.
- Gibbs and GCMC with rejection or MALA take the step of their exact counterparts; rejection a smaller one where its
  docstring asks for it. The falling tolerances of GCMC are 8, 4 and 2 times the last; once the start is forgotten its
  draws join those without them, as the noise is the same. DG-LMC has two rows: the guideline's numbers (its defaults),
  and rho_i chosen by the rule as a multiple of them. D-SGLD with a hub is judged by the first two moments of a
  travelling chain, which are known in closed form.
"""


def overview(results: list[dict]) -> str:
    """Every method's worst agent on all posteriors side by side."""
    head = ["method", *(result["title"] for result in results)]
    lines = []
    for rows in zip(*(result["rows"] for result in results), strict=True):
        cells = ["cannot run" if row["error"] else _number(row["worst"]) for row in rows]
        lines.append([rows[0]["label"] + marks(rows[0]), *cells])
    text = ["## W2 of the worst agent", "", "The first column of the tables below, side by side.", ""]
    return "\n".join(text + table(head, lines)) + "\n"


def section(result: dict) -> str:
    """Title, text, both tables and notes of one posterior."""
    lines = [f"## {result['title']}", "", result["text"] + f" Network: `{result['network']}`.", ""]
    lines += [floor_text(result), ""]
    lines += table(*main_table(result)) + [""]
    lines += [f"- {note}" for note in notes(result)] + [""]
    lines += [
        f"![worst agent's W2 against bytes sent for an effective draw](methods-{result['name']}.png)\n"
        if can_plot()
        else "",
        "Settings, and what the law predicts for them"
        + (", exactly, for this posterior:" if result["exact"] else " on the Gaussian surrogate:"),
        "",
    ]
    lines += table(*settings_table(result))
    lines += ["", "*With start and Monte Carlo* is the predicted error by which the step was chosen."]
    return "\n".join(lines) + "\n"


def floor_text(result: dict) -> str:
    counts = {int(n): w for n, w in result["floors"].items()}
    shown = ", ".join(f"{_number(w)} for {n:,}" for n, w in sorted(counts.items()))
    return f"W2 of independent exact draws, which is Monte Carlo error alone: {shown} of them."


def floor_of(result: dict, row: dict) -> float | None:
    if row["effective"] is None:
        return None
    counts = {int(n): w for n, w in result["floors"].items()}
    # W2 of n draws falls as the square root of n
    return counts[1000] * np.sqrt(1000 / row["effective"])


def main_table(result: dict) -> tuple[list[str], list[list[str]]]:
    head = ["method", "W2 worst agent", "median agent", "average", "floor", "sd ratio, agents", "sd ratio, average"]
    head += ["rounds", "sums", "hops", "sent", "gradients", "values", "per MB", "per s"]
    lines = []
    for row in result["rows"]:
        if row["error"]:
            lines.append([row["label"], f"cannot run: {_escaped(row['error'])}", *[""] * (len(head) - 2)])
            continue
        lines.append(
            [
                row["label"] + marks(row),
                *(_number(row[key]) for key in ("worst", "median", "average")),
                _number(floor_of(result, row)),
                _range(row["sd_agents"]),
                _range(row["sd_average"]),
                *(_count(row[key]) for key in ("rounds", "sums", "exchanges")),
                human_bytes(row["bytes_sent"]),
                *(_count(row[key]) for key in ("gradient_rows", "value_rows")),
                _number(row["per_megabyte"]),
                _number(row["per_second"]),
            ]
        )
    return head, lines


def marks(row: dict) -> str:
    """Footnote signs of a row."""
    return (" [1]" if row["optimiser"] else "") + (" [2]" if row["method"] in TRAVELLING else "")


def settings_table(result: dict) -> tuple[list[str], list[list[str]]]:
    head = ["method", "setting", "law: worst agent", "with start and Monte Carlo", "run: worst agent"]
    head += ["law: average", "run: average"]
    head += ["worst agent in the parameters' units"]
    if result["has_quantile"]:
        head.append("worst coordinate by quantiles")
    lines = []
    for row in result["rows"]:
        keys = ["predicted_worst", "predicted_error", "worst", "predicted_average", "average", "unscaled"]
        keys += ["quantile"] if result["has_quantile"] else []
        lines.append([row["label"], f"`{row['setting']}`" if row["setting"] else "", *(_number(row[k]) for k in keys)])
    return head, lines


def table(head: list[str], lines: list[list[str]]) -> list[str]:
    def joined(cells: list[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    rule = ["---" if name in ("method", "setting") else "---:" for name in head]
    return [joined(head), joined(rule), *(joined(line) for line in lines)]


def notes(result: dict) -> list[str]:
    """What the table shows, from its numbers, and what needs saying about some rows."""
    rows = [row for row in result["rows"] if not row["error"]]
    sampled = [row for row in rows if not row["optimiser"]]
    found = []
    limit = PRECISION * np.sqrt(result["dim"])
    close = [row for row in sampled if row["worst"] <= limit]
    found.append(
        f"Every agent's W2 at most {limit:.2g}, an error of {PRECISION:g} sd in every coordinate: "
        f"{_listed([row['label'] for row in close])}."
    )
    unclear = [row["label"] for row in sampled if limit < row["worst"] <= NEAR * floor_of(result, row)]
    found.append(
        f"Further, but within {NEAR:g} floors, so that more draws would be needed to tell: {_listed(unclear)}."
    )
    wide = [row["label"] for row in sampled if row["sd_agents"][1] > 1 + WIDTH_TOLERANCE]
    narrow = [row["label"] for row in sampled if row["sd_agents"][0] < 1 - WIDTH_TOLERANCE]
    found.append(f"Some agent's error bars more than {WIDTH_TOLERANCE:.0%} too wide: {_listed(wide)}.")
    found.append(f"More than {WIDTH_TOLERANCE:.0%} too narrow: {_listed(narrow)}.")
    good = [
        row for row in sampled if max(abs(row["sd_agents"][0] - 1), abs(row["sd_agents"][1] - 1)) <= WIDTH_TOLERANCE
    ]
    for key, unit in (("per_megabyte", "megabyte"), ("per_second", "second")):
        best = max(good, key=lambda row, k=key: row[k], default=None)
        if best:
            found.append(
                f"Most effective draws per {unit} among those with every sd within {WIDTH_TOLERANCE:.0%}: "
                f"{best['label']}, {_number(best[key])}."
            )
    if result["exact"]:
        known = [row for row in sampled if row["predicted_worst"] is not None]
        gaps = [abs(row["worst"] - row["predicted_worst"]) / floor_of(result, row) for row in known]
        last = int(np.argmax(gaps))
        found.append(
            f"Run and law: over {len(known)} rows the worst agent's W2 differs from the law's by at most "
            f"{gaps[last]:.2g} floors ({known[last]['label']}: {_number(known[last]['worst'])} and "
            f"{_number(known[last]['predicted_worst'])})."
        )
    if any(row["optimiser"] for row in rows):
        found.append("[1] An optimiser: it has no spread: its sd ratio is next to 0, and effective draws mean nothing.")
    if any(row["method"] in TRAVELLING for row in rows):
        found.append(
            "[2] Agents hold different chains: the average of them is no draw of the posterior, and its columns are "
            "given for completeness."
        )
    for row in result["rows"]:
        found += [f"{row['label']} warned: {_escaped(text)}" for text in row["warned"]]
    return found


def can_plot() -> bool:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def plot(result: dict, path: Path) -> None:
    """Worst agent's W2 against the bytes that an agent sends for an effective draw."""
    if not can_plot():
        return
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(10, 7), layout="constrained")
    rows = sorted((row for row in result["rows"] if row["effective"]), key=lambda row: row["worst"])
    for kind, (color, marker, label) in STYLES.items():
        own = [row for row in rows if row["kind"] == kind]
        points = [bytes_a_draw(result, row) for row in own], [row["worst"] for row in own]
        axes.loglog(*points, marker, color=color, label=label, ls="none")
    # labels in a column at the right, in the points' order, so that none covers another
    heights = np.linspace(0.01, 0.99, len(rows))
    for row, height in zip(rows, heights, strict=True):
        axes.annotate(
            row["label"],
            (bytes_a_draw(result, row), row["worst"]),
            (1.04, height),
            textcoords="axes fraction",
            va="center",
            fontsize=8,
            color=STYLES[row["kind"]][0],
            arrowprops={"arrowstyle": "-", "color": "0.8", "lw": 0.6, "relpos": (0, 0.5), "shrinkB": 3},
        )
    axes.set_xlabel("bytes that an agent sends for one effective draw")
    axes.set_ylabel("worst agent's W2, in posterior sds")
    axes.set_title(result["title"])
    axes.legend(loc="best")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def bytes_a_draw(result: dict, row: dict) -> float:
    """Bytes that one agent sends, on average over the agents, for one effective draw."""
    return 1e6 / (row["per_megabyte"] * result["agents"])


def _number(value: float | None) -> str:
    if value is None or not np.isfinite(value):
        return "-"
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{max(0, 2 - int(np.floor(np.log10(abs(value)))))}f}" if abs(value) >= 1e-3 else f"{value:.1e}"


def _count(number: float) -> str:
    return f"{number:,.0f}" if number else "-"


def _range(pair: list[float] | None) -> str:
    return "-" if pair is None else f"{pair[0]:.3g} .. {pair[1]:.3g}"


def _listed(names: list[str]) -> str:
    return "; ".join(names) if names else "none"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
