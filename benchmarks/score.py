"""One table of the whole product: costs, certificates and errors, compared with the best that was ever stored.

python benchmarks/score.py                    # measure all rows, compare, write score.json and docs/score.md
python benchmarks/score.py --check            # the same, and write nothing
python benchmarks/score.py --quick            # some cheap rows, and write nothing
python benchmarks/score.py --only wine        # rows whose name contains a text
python benchmarks/score.py --references       # measure missing reference means and sds first (--only renews some)

A worse row ends the script with status 1. If a row has to be worse, run `make score` and write `"why": "..."` beside
its `now` in score.json. It then may be as bad as stored, and the page lists the reason.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from measured import in_process, report

Numbers = dict[str, Any]
STORED, REFERENCES = Path(__file__).with_name("score.json"), Path(__file__).with_name("score_references.json")
# Costs may grow by this share and by one unit over the best.
SHARE, UNIT = 0.1, 1.0
COSTS = "sums", "entries", "handoffs", "kb", "kb_others", "evaluations", "lines"
# Errors may grow by this much over the best.
ERRORS = {"mean": 0.02, "sd": 0.02}
# Verdicts of `make misses` that may not grow.
VERDICTS = "refused", "silent"
# Effective draws of a reference, draws of each of four chains of NUTS, and sds by which both may differ.
POINTS, DRAWS, APART = 1_000_000, 5_000, 0.02


class Failure(NamedTuple):
    """A number of a row that is worse than allowed."""

    row: str
    column: str
    best: Any
    found: Any

    def __str__(self) -> str:
        shown = [f"{value:.4g}" if isinstance(value, float) else str(value) for value in (self.best, self.found)]
        return f"{self.row}: {self.column}: best {shown[0]}, found {shown[1]}"


def summary(now: Numbers, seeds: int | None = None) -> Numbers:
    """The numbers that are compared: mean and largest over the first seeds, and the certified method of each seed."""
    if "missing" in now:
        return {"missing": now["missing"]}
    runs = now["runs"][:seeds]
    found: Numbers = {"seeds": len(runs)}
    if "certified" in runs[0]:
        found["certified"] = [run["method"] if run["certified"] else None for run in runs]
    for column in (*COSTS, *ERRORS, *VERDICTS):
        values = [run[column] for run in runs if column in run]
        if values:
            found[column] = [float(np.mean(values)), float(max(values))]
    return found


def words(found: Numbers) -> str:
    """A summary in one line: means, with the largest in brackets."""
    if "missing" in found:
        return f"cannot run: {found['missing']}"
    texts = (
        [f"certified {', '.join(method or 'none' for method in found['certified'])}"] if "certified" in found else []
    )
    numbers = {column: own for column, own in found.items() if isinstance(own, list) and column != "certified"}
    return ", ".join([*texts, *(f"{column} {own[0]:.4g} ({own[1]:.4g})" for column, own in numbers.items())])


def held(found: Numbers) -> int:
    """The number of certified seeds of a summary."""
    return sum(method is not None for method in found.get("certified", []))


def failures(name: str, limit: Numbers, now: Numbers) -> list[Failure]:
    """What is worse in `now` than `limit`, a `summary`, allows."""
    if "missing" in limit:
        return []
    found = summary(now, limit["seeds"])
    if "missing" in found:
        return [Failure(name, "runs", "yes", found["missing"])]
    failed = []
    for seed, method in enumerate(limit.get("certified", [])):
        own = found["certified"][seed] if seed < len(found.get("certified", [])) else "not run"
        if method is not None and own != method:
            failed.append(Failure(name, f"certified, seed {seed}", method, own or "not certified"))
    # runs without a certificate may have stopped early
    costs = () if held(found) > held(limit) else COSTS
    for column in (*costs, *ERRORS, *VERDICTS):
        if column in limit and column not in found and any(found.get("certified", [True])):
            failed.append(Failure(name, column, limit[column][0], "absent"))
        for kind, best, own in zip(("mean", "most"), limit.get(column, ()), found.get(column, ()), strict=False):
            if column in VERDICTS:
                bad = own > best
            elif column in ERRORS:
                bad = own > best + ERRORS[column]
            else:
                bad = own > best * (1.0 + SHARE) and own > best + UNIT
            if bad:
                failed.append(Failure(name, f"{column} ({kind})", best, own))
    return failed


def better(first: Numbers, second: Numbers) -> Numbers:
    """The better one of each number of two summaries, or the summary with more certified seeds."""
    if "missing" in first or "missing" in second:
        return first if "missing" in second else second
    if held(first) != held(second):
        return max(first, second, key=held)
    found = {**second, **first}
    for column in first.keys() & second.keys() - {"seeds", "certified"}:
        found[column] = [min(pair) for pair in zip(first[column], second[column], strict=True)]
    if "certified" in found:
        pairs = zip(first["certified"], second["certified"], strict=False)
        found["certified"] = [own or other for own, other in pairs]
    return found


def compared(name: str, stored: Numbers | None, now: Numbers) -> tuple[list[Failure], Numbers]:
    """What is worse in a row than the stored row allows, and the row to store.

    A reason allows the numbers that were stored when it was written. A worse row loses its reason.
    """
    if stored is None:
        return [], {"best": summary(now), "now": now}
    limit, seeds = stored["best"], stored["best"].get("seeds")
    found = summary(now, seeds)
    row = {"best": better(limit, found), "now": now}
    worse = failures(name, limit, now)
    if worse and stored.get("why"):
        limit = stored.get("allowed") or summary(stored["now"], seeds)
        worse = failures(name, limit, now)
        if not worse:
            row |= {"why": stored["why"], "allowed": better(limit, found)}
    return worse, row | ({"allowed": found} if worse else {})


def measured(name: str, seeds: int) -> Numbers:
    """A row, measured in a process of its own."""
    try:
        return {"runs": in_process(__file__, "--row", name, "--seeds", str(seeds))}
    except ChildProcessError as error:
        return {"missing": str(error)}


def run_row(name: str, seeds: int) -> None:
    """Measure a row in this process, and report the numbers of each seed."""
    from score_rows import ONCE, ROWS

    warnings.simplefilter("ignore")
    measure = ROWS[name](json.loads(REFERENCES.read_text()) if REFERENCES.exists() else {})
    for seed in range(1 if name in ONCE else seeds):
        report(measure(seed))


def reference(name: str) -> Numbers:
    """Means and sds by a long certified run, compared with pooled NUTS. Exact for eight schools."""
    import jax
    from arviz_stats.base.array import array_stats
    from score_rows import EFFECTS, ERRORS, REFERRED

    import accord
    from accord.posterior.reference import nuts

    if "schools" in name:
        from fallback import normal_means

        exact = normal_means(np.array(EFFECTS), np.array(ERRORS), 5.0, centred=True)
        return {"mean": exact.mean.tolist(), "sd": exact.sd.tolist(), "points": "exact"}
    post = REFERRED[name]()
    options = {"draws": POINTS // 4, "seed": 10**6, "keep": "average", "progress": False}
    run = accord.sample(post, accord.Network.star(post.num_agents), accord.samplers.Importance(), **options)
    if not run.certificate.holds:
        raise ArithmeticError(f"the reference of {name} is not certified: {run.certificate.why}")
    mean, sd, effective = run.points.mean, run.points.sd, run.points.effective
    with jax.enable_x64(True):
        draws = nuts(post, draws=DRAWS, chains=4)
    independent = np.array([array_stats.ess(draws[:, :, k], chain_axis=0, draw_axis=1) for k in range(draws.shape[2])])
    difference = np.abs(draws.mean(axis=(0, 1)) - mean) / sd
    error = np.sqrt(1.0 / independent + 1.0 / effective)
    if (difference > APART + 3.0 * error).any():
        raise ArithmeticError(f"the reference of {name} differs from NUTS by {difference.max():.3f} sd")
    nuts_of = {"draws": 4 * DRAWS, "difference": float(difference.max()), "error": float(error.max())}
    return {"mean": mean.tolist(), "sd": sd.tolist(), "points": round(float(effective)), "nuts": nuts_of}


def store_references(only: str) -> None:
    """Measure the references that are missing, or those whose name contains a text."""
    from score_rows import REFERRED

    found = json.loads(REFERENCES.read_text()) if REFERENCES.exists() else {}
    for name in REFERRED:
        if only in name if only else name not in found:
            found[name] = reference(name)
            REFERENCES.write_text(json.dumps(found, indent=1) + "\n")
            print(
                f"{name}: { ({what: found[name][what] for what in ('points', 'nuts') if what in found[name]}) }",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a part of the names of rows")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of each row, at least 3")
    parser.add_argument("--out", type=Path, default=STORED, help="file of the stored numbers; another one has no page")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    for option, what in (("check", "write nothing"), ("quick", "some cheap rows"), ("references", "of means and sds")):
        parser.add_argument(f"--{option}", action="store_true", help=what)
    given = parser.parse_args()
    if given.row:
        return run_row(given.row, given.seeds)
    if given.references:
        return store_references(given.only)
    if given.seeds < 3:
        parser.error(f"--seeds must be at least 3, found {given.seeds}")
    from score_rows import QUICK, ROWS

    stored = json.loads(given.out.read_text())["rows"] if given.out.exists() else {}
    names = [name for name in (QUICK if given.quick else ROWS) if given.only in name]
    whole, rows, worse = len(names) == len(ROWS), dict(stored), []
    with ThreadPoolExecutor(2) as pool:
        for name, now in zip(names, pool.map(partial(measured, seeds=given.seeds), names), strict=True):
            failed, rows[name] = compared(name, stored.get(name), now)
            worse += failed
            print(f"{name}: {words(summary(now))}; best: {words(rows[name]['best'])}", flush=True)
    worse += [Failure(name, "runs", "yes", "no such row") for name in stored if whole and name not in names]
    if not (given.check or given.quick):
        from pages import measured_on

        rows = {name: rows[name] for name in (*ROWS, *(name for name in rows if name not in ROWS)) if name in rows}
        given.out.write_text(json.dumps({"measured on": measured_on(), "rows": rows}, indent=1) + "\n")
        if given.out == STORED:
            from score_page import write

            write(json.loads(STORED.read_text()))
    print("\n".join(f"WORSE {failure}" for failure in worse) or "no row is worse")
    sys.exit(bool(worse))


if __name__ == "__main__":
    main()
