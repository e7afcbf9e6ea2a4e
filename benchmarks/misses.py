"""Posteriors of known means and sds on which the default method could be silently wrong.

Each case of `misses_cases.py` is split over 3 agents and drawn from by `Importance()`. Its true means and standard
deviations, on the scale of `run.draws`, come from a closed form or from quadrature. A certified run is `ok` if all
means are within .2 sd and all ratios of sds within .8 to 1.25. Another certified run is `warned` if a warning came, and
`SILENT` if none did. A run that is not certified is `refused`. Easy regressions have no known truth: they count costs
and false refusals.

    python benchmarks/misses.py --only sine --seeds 4 --csv misses.csv
"""

import argparse
import csv
import time
import warnings

import numpy as np
from misses_cases import cases

import accord

NETWORK = accord.Network.complete(3)
COLUMNS = ("case", "seed", "verdict", "certified", "warned", "mean", "least", "most")
COLUMNS = (*COLUMNS, "sums", "points", "evaluations", "seconds", "why")


def judged(case, seed):
    """One run of a case: a row of the table."""
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        try:
            run = accord.sample(case.post, NETWORK, accord.samplers.Importance(), draws=1000, seed=seed, progress=False)
            run.summary()
        except ArithmeticError as error:
            return {"case": case.name, "seed": seed, "verdict": "refused", "why": f"{error}"}
    seconds = time.perf_counter() - began
    draws = run.draws[:, :, 0].reshape(-1, run.draws.shape[-1]).astype(np.float64)
    off, least, most = 0.0, 1.0, 1.0
    if case.mean is not None:
        ratio = draws.std(axis=0) / case.sd
        with np.errstate(invalid="ignore"):
            off = np.nanmax(np.abs(draws.mean(axis=0) - case.mean) / case.sd, initial=0.0)
        least, most = ratio.min(), ratio.max()
    right = off <= 0.2 and least >= 0.8 and most <= 1.25
    traffic = run.traffic
    evaluations = (traffic.gradient_rows + traffic.value_rows).sum() / case.post.sizes.sum()
    certified = run.certificate.holds
    verdict = ("ok" if right else "warned" if raised else "SILENT") if certified else "refused"
    cells = case.name, seed, verdict, certified, bool(raised), off, least, most, traffic.sums
    cells = *cells, len(run.points.positions), round(evaluations), seconds, "" if certified else run.certificate.why
    return dict(zip(COLUMNS, cells, strict=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a family, or a part of the names of cases")
    parser.add_argument("--seeds", type=int, default=2, help="seeds of each case")
    parser.add_argument("--csv", help="file that the table is written to")
    arguments = parser.parse_args()
    rows = []
    print(f"{'case':<68} seed verdict  warned  mean  least   most sums points evaluations seconds")
    for make in cases():
        case = make()
        if arguments.only not in f"{case.family} {case.name}":
            continue
        for seed in range(arguments.seeds):
            row = {"family": case.family, **dict.fromkeys(COLUMNS, ""), **judged(case, seed)}
            rows.append(row)
            numbers = [row[k] if row[k] != "" else np.nan for k in ("mean", "least", "most", "sums", "points")]
            print(
                f"{case.name[:68]:<68} {seed:>4} {row['verdict']:<8} {row['warned']!s:<6} {numbers[0]:5.2f} "
                f"{numbers[1]:6.2f} {numbers[2]:6.2f} {numbers[3]:>4} {numbers[4]:>6} {row['evaluations']!s:>11} "
                f"{row['seconds'] or np.nan:7.1f} {row['why'][:80]}",
                flush=True,
            )
    print(f"\n{'family':<8} runs   ok refused warned SILENT   sums   points evaluations")
    for family in dict.fromkeys(row["family"] for row in rows):
        own = [row for row in rows if row["family"] == family]
        count = [sum(row["verdict"] == v for row in own) for v in ("ok", "refused", "warned", "SILENT")]
        sums, points, evaluations = (sum(row[k] or 0 for row in own) for k in ("sums", "points", "evaluations"))
        print(
            f"{family:<8} {len(own):>4} {count[0]:>4} {count[1]:>7} {count[2]:>6} {count[3]:>6} "
            f"{sums:>6} {points:>8} {evaluations:>11}"
        )
    if arguments.csv:
        with open(arguments.csv, "w", newline="") as file:
            writer = csv.DictWriter(file, ["family", *COLUMNS])
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
