"""Hard posteriors with known means and sds, to find silent errors of the default method.

Each case of `misses_cases.py` is split over 3 agents and sampled by `Importance()`. Its true means and standard
deviations, on the scale of `run.draws`, come from a closed form or from quadrature. A certified run is `ok` if all
means are within .2 sd and all ratios of sds within .8 to 1.25. Other certified runs are `warned` if they had a warning,
and `SILENT` otherwise. Runs without a certificate are `refused`. Easy regressions have no known truth. They measure
costs and false refusals.

    python benchmarks/misses.py --only sine --seeds 4
"""

import argparse
import time
import warnings
from collections import Counter

import numpy as np
from misses_cases import cases

import accord

NETWORK = accord.Network.complete(3)
VERDICTS = ("ok", "refused", "warned", "SILENT")


def judged(case, seed):
    """The verdict on one run of a case, its sums, points and evaluations, and its line."""
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        try:
            run = accord.sample(case.post, NETWORK, accord.samplers.Importance(), draws=1000, seed=seed, progress=False)
            run.summary()
        except ArithmeticError as error:
            return "refused", (0, 0, 0), f"{error}"[:80]
    seconds = time.perf_counter() - began
    draws = run.draws[:, :, 0].reshape(-1, run.draws.shape[-1]).astype(np.float64)
    off, least, most = 0.0, 1.0, 1.0
    if case.mean is not None:
        ratio = draws.std(axis=0) / case.sd
        with np.errstate(invalid="ignore"):
            off = np.nanmax(np.abs(draws.mean(axis=0) - case.mean) / case.sd, initial=0.0)
        least, most = ratio.min(), ratio.max()
    right = off <= 0.2 and least >= 0.8 and most <= 1.25
    verdict = ("ok" if right else "warned" if raised else "SILENT") if run.certificate.holds else "refused"
    traffic = run.traffic
    evaluations = round((traffic.gradient_rows + traffic.value_rows).sum() / case.post.sizes.sum())
    costs = traffic.sums, len(run.points.positions), evaluations
    line = f"{off:5.2f} {least:6.2f} {most:6.2f} {costs[0]:>4} {costs[1]:>6} {costs[2]:>11} {seconds:7.1f}"
    return verdict, costs, line if run.certificate.holds else f"{line} {run.certificate.why[:80]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a family, or a part of the names of cases")
    parser.add_argument("--seeds", type=int, default=2, help="seeds of each case")
    arguments = parser.parse_args()
    counts, spent = {}, {}
    print(f"{'case':<68} seed verdict   mean  least   most sums points evaluations seconds")
    for make in cases():
        case = make()
        if arguments.only not in f"{case.family} {case.name}":
            continue
        for seed in range(arguments.seeds):
            verdict, costs, line = judged(case, seed)
            counts.setdefault(case.family, Counter())[verdict] += 1
            spent[case.family] = np.add(spent.get(case.family, 0), costs)
            print(f"{case.name[:68]:<68} {seed:>4} {verdict:<8} {line}", flush=True)
    print(f"\n{'family':<8}{''.join(f'{verdict:>8}' for verdict in VERDICTS)}    sums   points evaluations")
    for family, count in counts.items():
        sums, points, evaluations = spent[family]
        verdicts = "".join(f"{count[verdict]:>8}" for verdict in VERDICTS)
        print(f"{family:<8}{verdicts} {sums:>7} {points:>8} {evaluations:>11}")


if __name__ == "__main__":
    main()
