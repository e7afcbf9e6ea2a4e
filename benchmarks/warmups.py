"""What a warm-up costs beside the run that it serves, and beside the adaptation of NUTS: counted, not timed."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

from answers import EFFECTIVE
from measured import Line, Ratio, Skipped, at_most

import accord

TITLE = "Warm-up"
ABOUT = """\
Gradients of all rows, and exchanges, of the warm-up of a method that walks and is given no numbers (`whiten=True`),
over those of the run that it serves, of 1,000 draws in 4 chains on a ring of 10; and its gradients over those of the
adaptation of pooled NUTS, a dense metric, 1,000 steps in 4 chains. They are counted, so that they have no spread.
The run is the default one; the share of one that goes on until the average has 4,000 effective draws, in proportion,
stands beside. What is drawn where nothing at all is given needs no warm-up. Both posteriors are far from Gaussian, so
that warm-up makes a pilot run: less than that whitens their draws worse. The note has both counts."""
CHAINS = 4


def lines(small: bool) -> Iterator[Line | Skipped]:
    try:
        import no_knobs
    except ImportError as error:
        yield Skipped("all", str(error))
        return
    for name in ("wine",) if small else ("wine", "breast-cancer"):
        post, net = no_knobs.posterior(name, 10), accord.Network.ring(10)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run = accord.sample(post, net, chains=CHAINS, seed=0, progress=False, whiten=True)
            spent = no_knobs.warm_up(post, net).spent
        rows = post.sizes.sum()
        gradients, exchanges = float(spent.gradient_rows.sum() / rows), float(spent.exchanges)
        walked = CHAINS * float((run.traffic.gradient_rows - spent.gradient_rows).sum() / rows)
        adapting = no_knobs.adaptation(name, True)
        ess, _ = no_knobs.least_ess(run.average)
        method = run.settings["method"].partition("(")[0]
        yield _line("gradients over the run's", f"{name}, {method}", gradients, walked, 0.1)
        longer = f"gradients over those of {EFFECTIVE:,} effective draws"
        yield _line(longer, f"{name}, {method}", gradients, walked * EFFECTIVE / ess, None)
        yield _line("exchanges over the run's", f"{name}, {method}", exchanges, run.traffic.exchanges - exchanges, 0.1)
        yield _line("gradients over those of NUTS' adaptation", name, gradients, adapting, 1.0)


def _line(what: str, shape: str, own: float, other: float, most: float | None) -> Line:
    goal = None if most is None else at_most(most)
    return Line(what, shape, Ratio.of([own / other]), goal, f"{own:,.0f} / {other:,.0f}")
