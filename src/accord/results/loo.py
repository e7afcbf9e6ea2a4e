"""Leave-one-out cross-validation of rows that stay with their agents: each says sums over its own, and no more."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from .diagnostics import efficiency, good_k

# Levels of Pareto k above which rows are counted, so that the largest is known to a hundredth.
_LEVELS = np.arange(201) / 100
# Draws that weights can be smoothed by at all: five of them are a tail.
_FEWEST = 25
# Effective draws up to which a tail is a fifth of all draws.
_FEW = 225


class Sampled(NamedTuple):
    """Draws of a posterior, as agents are asked about them.

    Parameters
    ----------
    positions
        The draws, (draw, dim).
    quantiles
        Those of a distribution that the largest weights are replaced by, one for each, ascending from 0 to 1.
    levels
        Values of Pareto k above which rows are to be counted, (level,).
    """

    positions: np.ndarray
    quantiles: np.ndarray
    levels: np.ndarray


class RowSums(NamedTuple):
    """What the agents say of their rows: sums over all rows of all agents, of several posteriors.

    Each posterior but the first is told by its differences from the first, so that differences of models that are much
    alike do not drown in rounding.

    Parameters
    ----------
    rows
        Their number.
    elpd
        Of the first posterior's log predictive densities of rows given all others, and of the others' differences from
        it, (posterior,).
    products
        Of products of these, (posterior, posterior).
    p
        How much less the density of a row is than where that row was known too, (posterior,).
    above
        Rows with a Pareto k above each level, (posterior, level).
    infinite
        Rows that are left out of all this since their log likelihood is not finite at some draw, (posterior,).
    """

    rows: Any
    elpd: Any
    products: Any
    p: Any
    above: Any
    infinite: Any


class RowOwners(Protocol):
    """Who answers for rows."""

    def row_sums(self, others: Mapping[str, RowOwners], sampled: Sequence[Sampled]) -> RowSums:
        """The sums, by one total, of these and other owners' posteriors by name, themselves the first of them."""
        ...


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
        The largest Pareto k with which so many draws are enough.
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


def loo(owners: Mapping[str, RowOwners], sampled: Sequence[Sampled]) -> tuple[dict[str, Loo], np.ndarray]:
    """Each posterior's figures by name, and the standard errors of their differences of elpd, (posterior, posterior).

    Parameters
    ----------
    owners
        Who answers for the rows of each posterior, by name: the same agents, whose rows are in the same order.
    sampled
        The draws of each.

    Raises
    ------
    ArithmeticError
        A log likelihood is not finite at some draw.

    Warns
    -----
    UserWarning
        Rows have a Pareto k that is too large, with their number.
    """
    # any of them can ask about all: each agent has all its data
    sums = next(iter(owners.values())).row_sums(owners, sampled)
    rows, found = round(float(sums.rows)), {}
    # what turns (first, differences) into each posterior's own
    own = np.eye(len(owners))
    own[:, 0] = 1.0
    for place, (name, one) in enumerate(zip(owners, sampled, strict=True)):
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
            k=float(_LEVELS[int((above[1:] > 0).sum())]) if above[-1] == 0 else np.inf,
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


def sampled(draws: np.ndarray) -> Sampled:
    """Draws (chain, draw, dim) as agents are asked about them.

    Raises
    ------
    ValueError
        They are too few.
    """
    count = draws[..., 0].size
    if count < _FEWEST or draws.shape[1] < 4:
        raise ValueError(
            f"loo needs at least {_FEWEST} draws, and 4 a chain; found {draws.shape[0]} chains of {draws.shape[1]}"
        )
    # as many weights as are a tail (Vehtari et al. 2024)
    share = efficiency(draws)
    tail = int(3.0 * np.sqrt(count / share)) if count * share > _FEW else count // 5
    positions = draws.reshape(count, -1).astype(np.float64)
    return Sampled(positions, (np.arange(tail) + 0.5) / tail, np.r_[good_k(count), _LEVELS])


def _error(sums: RowSums, contrast: np.ndarray) -> float:
    """The standard error of a sum over rows, as ArviZ has it: the root of the rows' number times their variance."""
    square, total = contrast @ sums.products @ contrast, contrast @ sums.elpd
    return float(np.sqrt(max(square - total**2 / float(sums.rows), 0.0)))
