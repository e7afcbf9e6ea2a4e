"""A run that kills its own process during a sum, for test_importance: `killed.py FOLDER SUM BLOCK OUT`."""

import os
import signal
import sys
from functools import partial
from pathlib import Path

import numpy as np
from posteriors import many_parameters

import accord
from accord.engines import recorded_totals
from accord.posterior import totals
from accord.posterior.totals import TotalsHere

DRAWS = 50


def draw(**options):
    """A run that falls back from importance sampling to chains."""
    return accord.sample(many_parameters(40, 25), accord.Network.ring(4), draws=DRAWS, progress=False, **options)


def main():
    folder, limit, block, out = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    recorded_totals._SECONDS = 0.0
    requests, call, program = [], TotalsHere.__call__, totals._total

    def counted(self, *arguments, **options):
        requests.append(0)
        return call(self, *arguments, **options)

    class Dying:
        def of(self, abreast):
            return partial(self, program.of(abreast))

        def __call__(self, compiled, *arguments):
            requests[-1] += 1
            if len(requests) == limit and requests[-1] == block:
                os.kill(os.getpid(), signal.SIGKILL)
            return compiled(*arguments)

    TotalsHere.__call__, totals._total = counted, Dying()
    run = draw(checkpoint=folder)
    np.savez(out, draws=run.draws, requests=len(requests), sums=run.traffic.sums)


if __name__ == "__main__":
    main()
