"""Leave-one-out cross-validation over rows that stay at their agents. Each agent returns sums over its rows."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from ..network import Network
from ..posterior import Posterior
from ..posterior.joint import joint
from ..results.diagnostics import diagnostics, good_k
from ..results.run import Run
from ..samplers.engine import Builder
from .agents import agents_of, kept_running, require_types
from .rows_left_out import LEVELS, RowSums, Sampled, row_sums

# Largest R-hat of the draws without a warning.
_RHAT = 1.05


class Loo(NamedTuple):
    """Pareto smoothed leave-one-out cross-validation (PSIS-LOO; Vehtari et al. 2017), with the names of ArviZ.

    Parameters
    ----------
    elpd
        Expected log predictive density: the sum over rows of the log density of a row given all other rows.
    se
        Standard error of `elpd`.
    p
        Effective number of parameters.
    rows, draws
        Numbers of rows and draws.
    good_k
        The largest Pareto k for which this number of draws suffices.
    bad
        Number of rows with a larger k. Their part of `elpd` is unreliable. A row whose weights are all close to the
        mean has no k here, while ArviZ fits a k to their rounding errors.
    k
        The largest k of a row, rounded up to a hundredth; 0 if no k is above 0, inf above 2.
    """

    elpd: float
    se: float
    p: float
    rows: int
    draws: int
    good_k: float
    bad: int
    k: float

    def __repr__(self) -> str:
        counts = {"good": self.rows - self.bad, "bad": self.bad}
        signs = {"good": f"<= {self.good_k:.2f}", "bad": f"> {self.good_k:.2f}"}
        return "\n".join(
            [
                f"PSIS-LOO of {self.rows:,} rows, from {self.draws:,} draws",
                "",
                f"{'':8}  {'estimate':>10}  {'se':>8}",
                f"elpd_loo  {self.elpd:10.2f}  {self.se:8.2f}",
                f"p_loo     {self.p:10.2f}",
                "",
                f"{'Pareto k':16}  {'rows':>8}",
                *(f"{f'k {signs[kind]} ({kind})':16}  {n:8,}  {n / self.rows:6.1%}" for kind, n in counts.items()),
                f"largest k: {self.k:.2f}",
            ]
        )


def loo(run: Run, post: Posterior, network: Network, *, engine: str | Builder = "local") -> Loo:
    """Leave-one-out cross-validation (PSIS-LOO) over all rows of all agents, as ArviZ computes it from pooled data.

    Each agent leaves out its own rows, one at a time, and returns sums over its rows, to be summed over all agents.
    The draws are the average's. `elpd` is a log density only if the likelihood is normalised.

    Parameters
    ----------
    run, post, network
        A run, also one from a file, with its posterior and its network. Agents must have the order of the run: agents
        with equal numbers of rows in another order have the same sums, so only their site names reveal it.
    engine
        Engine that places the data, as in `accord.sample`.

    Raises
    ------
    ValueError
        The run is of another posterior or network, the log likelihood does not return one number per row, or there
        are fewer than 25 draws.
    ArithmeticError
        The draws are not certified or not at temperature 1, or a log likelihood is not finite at some draw.

    Warns
    -----
    UserWarning
        The Pareto k of some rows is too large.
    """
    found, _ = loos({"this run": (run, post)}, network, engine, "loo")
    return found["this run"]


def loos(
    runs: Mapping[str, tuple[Run, Posterior]], network: Network, engine: str | Builder, what: str
) -> tuple[dict[str, Loo], np.ndarray]:
    """The result of each run by name, and standard errors of the pairwise differences of elpd, (run, run).

    Parameters
    ----------
    runs
        Runs with their posteriors, of the same agents and rows in the same order.
    network, engine
        As in `loo`.
    what
        Name of the caller, for errors.
    """
    for run, post in runs.values():
        require_types(run, post, network)
    responses = {name: run.info.formula.partition("~")[0].strip() for name, (run, _) in runs.items()}
    if len({*responses.values()} - {""}) > 1:
        listed = ", ".join(f"{name} models {response}" for name, response in responses.items() if response)
        raise ValueError(f"{what} needs models of one response: {listed}")
    sampled = [Sampled.of(certified_draws(run, what)) for run, _ in runs.values()]
    sums = _sums(runs, network, engine, sampled)
    rows, found = round(float(sums.rows)), {}
    # contrasts: the first posterior, and the first plus the difference of each other one
    own = np.eye(len(runs))
    own[:, 0] = 1.0
    for place, (name, one) in enumerate(zip(runs, sampled, strict=True)):
        infinite = round(float(sums.infinite[place]))
        if infinite:
            raise ArithmeticError(
                f"leave-one-out divides by each row's likelihood, and {infinite} of {rows} rows have a log likelihood "
                f"in {name} that is not finite at some draw"
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
                f"{figures.k:.2f}: elpd is unreliable for these rows. If k is slightly above, take more draws. "
                "Otherwise use a model with heavier tails, or sample again without such rows",
                stacklevel=3,
            )
    return found, np.array([[_error(sums, one - other) for other in own] for one in own])


def certified_draws(run: Run, name: str) -> np.ndarray:
    """Draws of the average, (chain, draw, dim), for the caller `name`; `ArithmeticError` if they are unreliable."""
    if run.certificate is not None and not run.certificate.holds:
        raise ArithmeticError(f"{name} needs certified draws, and they are not certified: {run.certificate.why}")
    temperature = run.settings.get("temperature", 1.0)
    if temperature != 1.0:
        raise ArithmeticError(
            f"{name} needs draws of the posterior, and this run drew at temperature {temperature:g}: sample at "
            "temperature 1"
        )
    if run.certificate is None:
        rhat = float(np.nanmax(diagnostics(run.moved.average)[1], initial=1.0))
        if rhat > _RHAT:
            text = f"{name}: the chains disagree (largest R-hat {rhat:.2f}, limit {_RHAT}): run.summary() has remedies"
            warnings.warn(text, stacklevel=4)
    return run.moved.average.astype(np.float64)


def _sums(
    runs: Mapping[str, tuple[Run, Posterior]], network: Network, engine: str | Builder, sampled: Sequence[Sampled]
) -> RowSums:
    """Sums over rows for all runs, by one sum over agents."""
    posts, masks = {}, False
    with kept_running(engine) as builder:
        for name, (run, post) in runs.items():
            with agents_of(run, post, network, builder) as agents:
                posts[name], masks = agents.post, masks or agents.masks
        whole, potentials = joint(posts)
        with jax.enable_x64(True), builder.placed(whole) as placed:
            return placed.totals(network, masks=masks)(row_sums, potentials, tuple(sampled))


def _error(sums: RowSums, contrast: np.ndarray) -> float:
    """Standard error of a sum over rows: the root of the number of rows times their variance, as in ArviZ."""
    square, total = contrast @ sums.products @ contrast, contrast @ sums.elpd
    return float(np.sqrt(max(square - total**2 / float(sums.rows), 0.0)))
