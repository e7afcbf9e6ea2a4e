"""Leave-one-out cross-validation of rows that stay with their agents, each of which returns sums over its rows."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from ..network import Network
from ..posterior import Posterior
from ..posterior.joint import joint
from ..results.diagnostics import good_k
from ..results.run import Run
from ..samplers.engine import Builder
from .agents import agents_of, kept_running
from .rows_left_out import LEVELS, RowSums, Sampled, row_sums


class Loo(NamedTuple):
    """Pareto smoothed leave-one-out cross-validation (PSIS-LOO; Vehtari et al. 2017), in the words of ArviZ.

    Parameters
    ----------
    elpd
        Expected log predictive density: the sum over rows of the log density of a row given all others.
    se
        Its standard error.
    p
        Effective number of parameters.
    rows, draws
        Their numbers.
    good_k
        The largest Pareto k at which this number of draws is enough.
    bad
        Rows whose k is above that: their part of `elpd` may be off. Rows that every draw foresees about as well have no
        k here, whereas ArviZ finds one in the last digits of their weights.
    k
        The largest k of a row, rounded up to a hundredth; 0 where none is above, inf above 2.
    """

    elpd: float
    se: float
    p: float
    rows: int
    draws: int
    good_k: float
    bad: int
    k: float

    def __str__(self) -> str:
        reliable = "all" if self.bad == 0 else f"{self.rows - self.bad} of them"
        return (
            f"elpd {self.elpd:.1f} (standard error {self.se:.1f}), p {self.p:.1f}, of {self.rows} rows, {reliable} "
            f"with Pareto k at most {self.good_k:.2f}; the largest is {self.k:.2f}"
        )


def loo(run: Run, post: Posterior, network: Network, *, engine: str | Builder = "local") -> Loo:
    """How well all rows but one predict that one, over all rows: PSIS-LOO, as ArviZ computes it from pooled data.

    Each agent leaves out its own rows, one after another, and returns sums over its rows, which are summed over all
    agents. The draws are those of the average. The likelihood must be normalised for `elpd` to be a log density.

    Parameters
    ----------
    run, post, network
        A run, which may come from a file, and the posterior and the network that it was sampled with.
    engine
        What places the data, as in `accord.sample`.

    Raises
    ------
    ValueError
        The run is of another posterior or network, the log likelihood does not give one number a row, or draws are
        fewer than 25.
    ArithmeticError
        The draws are not certified or not of temperature 1, or a log likelihood is not finite at some draw.

    Warns
    -----
    UserWarning
        Rows have a Pareto k that is too large, with their number.
    """
    found, _ = loos({"this run": (run, post)}, network, engine, "loo")
    return found["this run"]


def loos(
    runs: Mapping[str, tuple[Run, Posterior]], network: Network, engine: str | Builder, what: str
) -> tuple[dict[str, Loo], np.ndarray]:
    """Each run's figures by name, and the standard errors of their differences of elpd, (run, run).

    Parameters
    ----------
    runs
        Runs with their posteriors, of the same agents, whose rows are in the same order.
    network, engine
        As in `loo`.
    what
        What needs the figures, for errors.
    """
    sampled = [Sampled.of(certified_draws(run, what)) for run, _ in runs.values()]
    sums = _sums(runs, network, engine, sampled)
    rows, found = round(float(sums.rows)), {}
    # what turns (first, differences) into each posterior's own
    own = np.eye(len(runs))
    own[:, 0] = 1.0
    for place, (name, one) in enumerate(zip(runs, sampled, strict=True)):
        infinite = round(float(sums.infinite[place]))
        if infinite:
            raise ArithmeticError(
                f"leaving rows out weighs draws by the inverse of each row's likelihood, and {infinite} of {rows} rows "
                f"have a log likelihood in {name} that is not finite at some draw"
            )
        above = np.round(sums.above[place]).astype(int)
        draws, row = len(one.positions), own[place]
        found[name] = Loo(
            elpd=float(row @ sums.elpd),
            se=_error(sums, row),
            p=float(sums.p[place]),
            rows=rows,
            draws=draws,
            good_k=good_k(draws),
            bad=int(above[0]),
            k=float(LEVELS[int((above[1:] > 0).sum())]) if above[-1] == 0 else np.inf,
        )
    for name, figures in found.items():
        if figures.bad:
            warnings.warn(
                f"{figures.bad} of {rows} rows have a Pareto k above {figures.good_k:.2f} in {name}, the largest "
                f"{figures.k:.2f}: the draws say too little of the posterior without them. More draws help where k is "
                "little above; else a model with heavier tails, or sampling anew without such rows",
                stacklevel=3,
            )
    return found, np.array([[_error(sums, one - other) for other in own] for one in own])


def certified_draws(run: Run, name: str) -> np.ndarray:
    """The average's draws, (chain, draw, dim), for what has this name; `ArithmeticError` where they are unreliable."""
    if run.certificate is not None and not run.certificate.holds:
        raise ArithmeticError(f"{name} rests on draws that are not certified: {run.certificate.why}")
    temperature = run.settings.get("temperature", 1.0)
    if temperature != 1.0:
        raise ArithmeticError(
            f"{name} is of the posterior, and this run drew at temperature {temperature:g}: sample at temperature 1"
        )
    return run.moved.average.astype(np.float64)


def _sums(
    runs: Mapping[str, tuple[Run, Posterior]], network: Network, engine: str | Builder, sampled: Sequence[Sampled]
) -> RowSums:
    """The sums over rows of all runs, by one total: each agent has the rows of all of them."""
    posts, masks = {}, False
    with kept_running(engine) as builder:
        for name, (run, post) in runs.items():
            with agents_of(run, post, network, builder) as agents:
                posts[name], masks = agents.post, masks or agents.masks
        whole, potentials = joint(posts)
        with jax.enable_x64(True), builder.placed(whole) as placed:
            return placed.totals(network, masks=masks)(row_sums, potentials, tuple(sampled))


def _error(sums: RowSums, contrast: np.ndarray) -> float:
    """The standard error of a sum over rows, as ArviZ has it: the root of the rows' number times their variance."""
    square, total = contrast @ sums.products @ contrast, contrast @ sums.elpd
    return float(np.sqrt(max(square - total**2 / float(sums.rows), 0.0)))
