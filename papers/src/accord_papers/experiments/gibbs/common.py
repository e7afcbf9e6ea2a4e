"""Appendix A.5.2 of the client-only Gibbs paper: unit Gaussians on trees and circles, and the numbers of its tables.

The potential of every agent is that of N(1, I). Agents start from N(0, I) and have ties sigma = 1/3, as printed. (The
section names Metropolis weights. On these trees they are 1/4, which is the same sampler at 4/3 of eta.) The section
does not state eta, the dimension, or the agent of the distance. The search in `gibbs-table1` finds d = 5, as elsewhere
in the paper, eta = 0.05, and the first agent (the root of a tree) at iterations 0 to 40. As in the paper, the distance
is to a Gaussian fitted to 100 chains, so it has a Monte Carlo floor. The law's numbers have the same floor: they are
means over many sets of 100 chains drawn from the exact law of an agent's path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np

from accord import Gaussian, Network, Posterior, law
from accord.models import gaussian
from accord.samplers import Gibbs

from ...base.figures import COLORS
from ..agreement import Tally, bound
from ..frame import Claim, listed, whole_run
from ..verdicts import Verdict, mean_of

PAPER = "Anonymous: Client-only Distributed Markov Chain Monte Carlo Sampling over a Network (under review)"
NODES = (7, 15, 31, 63)
CHAINS, SEEDS, ROUNDS, DIM, ETA, SIGMA = 100, 5, 40, 5, 0.05, 1.0 / 3.0
SAME = 1e-9  # tolerance for rounding between law and equations
BLOCK = 400  # sets in a batch of about 100 MB
# Sizes of both tables: seeds of `accord.sample`, sets of the law, and sets for a second look at undecided numbers.
SMALL_SETS = {"seeds": 5, "law_sets": 400, "close_sets": 400}
PAPER_SETS = {"seeds": 50, "law_sets": 1600, "close_sets": 100_000}
GRAPHS: dict[str, Callable[[int], Network]] = {
    "tree": lambda n: Network.tree(n.bit_length()),
    "circle": Network.ring,
}
Number = Literal["slope", "distance"]
LABEL: dict[Number, str] = {"slope": "slope of log W2 by iteration", "distance": "least W2 of 40 iterations"}
SOURCE: dict[Number, str] = {"slope": "appendix A.5.2, table 1", "distance": "appendix A.5.2, table 2"}
COLUMNS = ["graph", "nodes", "printed", "printed_2sigma", "ours", "ours_2sigma"]
COLUMNS += ["law", "law_2sigma", "law_endless_chains"]


class Printed(NamedTuple):
    """Means over five seeds of tables 1 and 2, by `NODES`, and their 2-sigma errors."""

    mean: np.ndarray
    error: np.ndarray


PRINTED: dict[Number, dict[str, Printed]] = {
    "slope": {
        "tree": Printed(np.array([-0.054, -0.047, -0.039, -0.034]), np.array([0.003, 0.002, 0.002, 0.001])),
        "circle": Printed(np.array([-0.056, -0.038, -0.028, -0.024]), np.array([0.003, 0.002, 0.002, 0.001])),
    },
    "distance": {
        "tree": Printed(np.array([0.170, 0.270, 0.376, 0.457]), np.array([0.043, 0.020, 0.024, 0.035])),
        "circle": Printed(np.array([0.187, 0.367, 0.526, 0.637]), np.array([0.013, 0.016, 0.015, 0.025])),
    },
}


def unit_gaussians(nodes: int, dim: int = DIM) -> Posterior:
    """The potential of N(1, I) at every node."""
    return gaussian(np.ones((nodes, dim)), np.broadcast_to(np.eye(dim), (nodes, dim, dim)))


def weights(network: Network) -> np.ndarray:
    """The mixing matrix with 1/3 on every edge."""
    ties = network.adjacency.toarray() * SIGMA
    return np.diag(1.0 - ties.sum(axis=1)) + ties


def method(network: Network, eta: float = ETA) -> Gibbs:
    """Algorithm 2 with ties 1/3 on every edge."""
    return Gibbs(eta, mixing=weights(network))


def colors(network: Network) -> list[np.ndarray]:
    """The groups in which `Gibbs` updates: three on an odd circle, which is not bipartite."""
    found = network.coloring()
    return [np.flatnonzero(found == color) for color in range(found.max() + 1)]


class Sweep:
    """One sweep over unit Gaussians in one coordinate, x+ = A x + c + noise of covariance Q, from N(0, I).

    An implementation of Algorithm 2 that is independent of the sampler. Neighbours in one group use each other's old
    values.

    Parameters
    ----------
    network
        The network of ties.
    eta
        As in `Gibbs`.
    groups
        Groups of agents that are drawn together, in order.
    """

    def __init__(self, network: Network, eta: float, groups: Sequence[np.ndarray]) -> None:
        n = network.num_agents
        ties = network.adjacency.toarray() * SIGMA / eta
        variance = 1.0 / (1.0 + ties.sum(axis=1))
        self.A, self.c, self.Q = np.eye(n), np.zeros(n), np.zeros((n, n))
        for members in groups:
            step, new = np.eye(n), np.zeros(n)
            step[members] = ties[members] * variance[members, None]
            new[members] = variance[members]
            # f_i has precision and mean 1, so that it adds the variance to the conditional mean
            self.A, self.c, self.Q = step @ self.A, step @ self.c + new, step @ self.Q @ step.T + np.diag(new)

    @cached_property
    def moments(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Mean and covariance of all agents after 0, 1, ..., 40 rounds."""
        found = [(np.zeros(len(self.c)), np.eye(len(self.c)))]
        for _ in range(ROUNDS):
            mean, cov = found[-1]
            found.append((self.A @ mean + self.c, self.A @ cov @ self.A.T + self.Q))
        return found

    def path(self, seen: np.ndarray) -> Gaussian:
        """The joint law of seen'x at all rounds, such as one agent or the average."""
        rows = [seen]
        for _ in range(ROUNDS):
            rows.append(rows[-1] @ self.A)
        # cov(x_j+m, x_j) = A^m cov(x_j), by m and j
        lagged = np.array(rows) @ np.array([cov @ seen for _, cov in self.moments]).T
        j, k = np.indices(lagged.shape)
        cov = lagged[np.abs(k - j), np.minimum(j, k)]
        return Gaussian(np.array([mean @ seen for mean, _ in self.moments]), cov)


def draws(law: Gaussian, sets: int, rng: np.random.Generator) -> np.ndarray:
    """Sets of 100 chains of a path's law, shape (round, set, chain, dim)."""
    drawn = law.mean[:, None] + np.linalg.cholesky(law.cov) @ rng.standard_normal((law.dim, sets * CHAINS * DIM))
    return drawn.reshape(law.dim, sets, CHAINS, DIM)


def fitted_distance(draws: np.ndarray, sd: float) -> np.ndarray:
    """W2 between N(1, sd^2 I) and the Gaussian fitted to draws, shape (..., chain, dim) -> (...)."""
    mean = draws.mean(axis=-2)
    away = draws - mean[..., None, :]
    cov = np.swapaxes(away, -1, -2) @ away / (draws.shape[-2] - 1)
    sds = np.sqrt(np.clip(np.linalg.eigvalsh(cov), 0.0, None))
    return np.sqrt(((mean - 1.0) ** 2).sum(axis=-1) + ((sds - sd) ** 2).sum(axis=-1))


class Path(NamedTuple):
    """The law of one agent's path, and the sd of the posterior."""

    law: Gaussian
    sd: float

    def curves(self, sets: int, rng: np.random.Generator) -> np.ndarray:
        """Distances by round for sets of 100 chains drawn from the law, shape (round, set)."""
        sizes = [min(BLOCK, sets - done) for done in range(0, sets, BLOCK)]
        return np.concatenate([fitted_distance(draws(self.law, size, rng), self.sd) for size in sizes], axis=1)


def limit_distance(sweep: Sweep, agent: int = 0) -> np.ndarray:
    """Distances by round of one agent's law itself, as for infinitely many chains."""
    sd = len(sweep.c) ** -0.5
    found = [(mean[agent] - 1.0) ** 2 + (np.sqrt(cov[agent, agent]) - sd) ** 2 for mean, cov in sweep.moments]
    return np.sqrt(DIM * np.array(found))


def summary(curves: np.ndarray) -> dict[Number, np.ndarray]:
    """The slope of log distance by iteration, and the least distance, of curves of shape (round, ...)."""
    k = np.arange(len(curves)) - (len(curves) - 1) / 2.0
    slope = np.tensordot(k, np.log(curves), axes=1) / (k @ k)
    return {"slope": slope, "distance": curves.min(axis=0)}


# Candidates for the position in the distance, as weights of the agents.
MEASURED: dict[str, Callable[[int], np.ndarray]] = {
    "the first agent": lambda n: np.eye(n)[0],
    "the second agent": lambda n: np.eye(n)[1],
    "the last agent": lambda n: np.eye(n)[-1],
    "the agents' average": lambda n: np.full(n, 1.0 / n),
}


@dataclass(frozen=True)
class Fit:
    """A reading of the tables, and the largest difference of its law from their numbers, in printed 2-sigma errors."""

    measured: str
    dim: int
    eta: float
    worst: float


@cache
def search(kind: str, sets: int, etas: tuple[float, ...], dims: tuple[int, ...]) -> list[Fit]:
    """All readings, sorted by their fit to both tables on one kind of graph, best first.

    Coordinates are independent and identical, so a subset of them has the law of a smaller dimension.
    """
    worst: dict[tuple[str, int, float], float] = {}
    for at, n in enumerate(NODES):
        network = GRAPHS[kind](n)
        for eta in etas:
            sweep = Sweep(network, eta, colors(network))
            for measured, seen in MEASURED.items():
                # the same random numbers for every eta and every seed of the experiment
                drawn = draws(sweep.path(seen(n)), sets, np.random.default_rng(n))
                for dim in dims:
                    found = summary(fitted_distance(drawn[..., :dim], n**-0.5))
                    off = max(off_by(number, kind, at, found[number].mean()) for number in PRINTED)
                    worst[measured, dim, eta] = max(off, worst.get((measured, dim, eta), 0.0))
    return sorted((Fit(*reading, off) for reading, off in worst.items()), key=lambda fit: fit.worst)


def off_by(number: Number, kind: str, at: int, value: float) -> float:
    """The difference from the printed number, in printed 2-sigma errors."""
    mean, error = PRINTED[number][kind]
    return float(abs(value - mean[at]) / error[at])


@dataclass(frozen=True)
class Reached:
    """Results of `accord.sample` and of the law on one kind of graph.

    Parameters
    ----------
    paths
        The first agent's path, by node count.
    law, ours
        Both tables' numbers for sets of 100 chains, shape (node count, set).
    curves
        Distances for the sets of `accord.sample`, shape (node count, round, set).
    expected, limit
        Mean distances by the law, and distances of the law itself, shape (node count, round).
    rates
        Contraction rate by round, -log of the spectral radius.
    score, bound
        The largest score of a mean or variance of the chains against the law, and its bound.
    """

    paths: list[Path]
    law: dict[Number, np.ndarray]
    ours: dict[Number, np.ndarray]
    curves: np.ndarray
    expected: np.ndarray
    limit: np.ndarray
    rates: np.ndarray
    score: float
    bound: float


@cache
def reached(kind: str, seed: int, seeds: int, sets: int) -> Reached:
    """The tables' numbers from `seeds` sets of 100 chains of `accord.sample`, and from `sets` sets of the law."""
    paths, exact_curves, curves, limits, rates, scores = [], [], [], [], [], []
    streams = np.random.default_rng([seed, list(GRAPHS).index(kind)]).spawn(len(NODES))
    for n, rng in zip(NODES, streams, strict=True):
        network = GRAPHS[kind](n)
        sweep = Sweep(network, ETA, colors(network))
        paths.append(Path(sweep.path(np.eye(n)[0]), n**-0.5))
        exact_curves.append(paths[-1].curves(sets, rng))
        start = rng.standard_normal((seeds * CHAINS, n, DIM))
        chains, number = seeds * CHAINS, int(rng.integers(2**63))
        run = whole_run(
            *(unit_gaussians(n), network, method(network)), draws=ROUNDS, burn_in=0, thin=1, chains=chains, seed=number,
            init=start, keep=[0],
        )  # fmt: skip
        drawn = np.concatenate([start[:, :1], run.draws[:, :, 0].astype(float)], axis=1)
        exact = [(mean[0], cov[0, 0]) for mean, cov in sweep.moments]
        tally = Tally(*np.repeat(np.array(exact).T[:, :, None], DIM, axis=2))
        tally.add(drawn)
        scores += [np.abs(tally.mean_scores()).max(), np.abs(tally.variance_scores()).max()]
        sets_of_chains = np.moveaxis(drawn, 0, 1).reshape(ROUNDS + 1, seeds, CHAINS, DIM)
        curves.append(fitted_distance(sets_of_chains, n**-0.5))
        limits.append(limit_distance(sweep))
        rates.append(-np.log(np.abs(np.linalg.eigvals(sweep.A)).max()))
    tests = 2 * len(NODES) * (ROUNDS + 1) * DIM
    numbers = _numbers(exact_curves), _numbers(curves)
    shown = np.stack(curves), np.stack([curve.mean(axis=1) for curve in exact_curves]), np.stack(limits)
    return Reached(paths, *numbers, *shown, np.array(rates), max(scores), bound(tests))


def _numbers(curves: Sequence[np.ndarray]) -> dict[Number, np.ndarray]:
    found = [summary(curve) for curve in curves]
    return {number: np.stack([each[number] for each in found]) for number in PRINTED}


class Reading(NamedTuple):
    """A way to run a circle: its network, the groups in order, and the agent of the distance."""

    network: Network
    groups: list[np.ndarray]
    agent: int


def _parts(n: int, far: bool) -> Reading:
    # even and odd agents. Agents 0 and n - 1 are neighbours in one group
    return Reading(Network.ring(n), [np.arange(0, n, 2), np.arange(1, n, 2)], n // 2 if far else 0)


CIRCLES: dict[str, Callable[[int], Reading]] = {
    "three colours": lambda n: Reading(Network.ring(n), colors(Network.ring(n)), 0),
    "two parts, one agent after another": lambda n: Reading(
        Network.ring(n), [np.arange(0, n - 1, 2), np.array([n - 1]), np.arange(1, n, 2)], 0
    ),
    "two parts at once": lambda n: _parts(n, far=False),
    "two parts at once, the agent opposite": lambda n: _parts(n, far=True),
    "all agents at once": lambda n: Reading(Network.ring(n), [np.arange(n)], 0),
    "a circle of one agent less": lambda n: Reading(Network.ring(n - 1), colors(Network.ring(n - 1)), 0),
    "a circle of one agent more": lambda n: Reading(Network.ring(n + 1), colors(Network.ring(n + 1)), 0),
}


@cache
def circle_readings(sets: int) -> dict[str, tuple[list[Path], dict[Number, np.ndarray]]]:
    """The paths for each reading of circles, and both tables' numbers by the laws, shape (node count, set)."""
    found = {}
    for name, reading in CIRCLES.items():
        paths = []
        for n in NODES:
            network, groups, agent = reading(n)
            own = Sweep(network, ETA, groups).path(np.eye(network.num_agents)[agent])
            paths.append(Path(own, network.num_agents**-0.5))
        curves = [path.curves(sets, np.random.default_rng(n)) for path, n in zip(paths, NODES, strict=True)]
        found[name] = paths, _numbers(curves)
    return found


def law_check() -> Claim:
    """Check that `Sweep` equals the sampler's law on the smallest tree and circle."""
    apart = 0.0
    n = NODES[0]
    for graph in GRAPHS.values():
        network = graph(n)
        exact = law(unit_gaussians(n, 1), network, method(network), init=Gaussian(np.zeros(1), np.eye(1)))
        for k, (mean, cov) in enumerate(Sweep(network, ETA, colors(network)).moments):
            joint = exact.at(k).joint
            apart = max(apart, float(np.abs(mean - joint.mean).max()), float(np.abs(cov - joint.cov).max()))
    return Claim(
        "accord.law",
        "Algorithm 2 written out as matrices is the sampler's exact law",
        Verdict.of(apart < SAME),
        f"largest difference of a mean or covariance in {ROUNDS} iterations on {n} nodes; bound {SAME:g}",
        law=apart,
        kind="check",
    )


def is_within(number: Number, kind: str, at: int, sets: np.ndarray) -> Verdict:
    """Whether the law's number, a mean over sets, is within the printed error."""
    mean, error = (float(part[at]) for part in PRINTED[number][kind])
    return mean_of(sets - mean).within(error)


def looked_at_again(number: Number, kind: str, at: int, sets: np.ndarray, path: Path, close_sets: int) -> np.ndarray:
    """The sets, or `close_sets` new ones if the given sets do not decide whether the law is within the printed error.

    A number has at most two looks, with independent sets.
    """
    if close_sets <= len(sets) or is_within(number, kind, at, sets) is not Verdict.UNDECIDED:
        return sets
    return summary(path.curves(close_sets, np.random.default_rng([at, close_sets])))[number]


def rising(sets: np.ndarray) -> Verdict:
    """Whether means over sets, shape (nodes, set), increase with the number of nodes."""
    means = [mean_of(row) for row in sets]
    return Verdict.all(after.less(before).above(0.0) for before, after in pairwise(means))


def printed_claims(number: Number, found: dict[str, Reached], close_sets: int) -> list[Claim]:
    """A claim for each printed number, which holds if the law is within the printed 2-sigma error."""
    claims = []
    for kind, reach in found.items():
        for at, n in enumerate(NODES):
            mean, error = (float(part[at]) for part in PRINTED[number][kind])
            first, ours = reach.law[number][at], reach.ours[number][at]
            exact = looked_at_again(number, kind, at, first, reach.paths[at], close_sets)
            off = off_by(number, kind, at, exact.mean())
            why = f"the law's number is {off:.2f} printed 2-sigma errors away; ours is {between(ours)}"
            verdict = is_within(number, kind, at, exact)
            if verdict is Verdict.UNDECIDED or exact is not first:
                doubt = mean_of(exact).doubt / error
                why += f". The law's is a mean over {len(exact):,} sets, whose doubt is {doubt:.2g} of these errors"
            if verdict is Verdict.FAILS:
                away = five_seed_score(number, kind, at, exact)
                why += f". The printed mean of five seeds is {away:.1f} of its own sds away from the law's"
            if verdict is Verdict.FAILS and kind == "circle":
                why += ". The paper does not state how it runs a circle that is not bipartite: see the remarks"
            text = f"{LABEL[number]} on a {kind} of {n} nodes: {mean:g} +- {error:g}"
            claims.append(Claim(SOURCE[number], text, verdict, why, mean, float(ours.mean()), float(exact.mean())))
    return claims


def checks(number: Number, found: dict[str, Reached]) -> list[Claim]:
    """Checks of the sampler against the law: equations, chains, and this table's numbers."""
    scores = []
    for reach in found.values():
        ours, exact = reach.ours[number], reach.law[number]
        error = exact.std(axis=1, ddof=1) * np.sqrt(1.0 / ours.shape[1] + 1.0 / exact.shape[1])
        scores.append((ours.mean(axis=1) - exact.mean(axis=1)) / error)
    worst, most = float(np.abs(scores).max()), bound(np.size(scores))
    chains = [(reach.score, reach.bound) for reach in found.values()]
    return [
        law_check(),
        Claim(
            "accord.sample",
            "the first agent's chains have the exact law at every iteration, on trees and circles",
            Verdict.of(all(score < limit for score, limit in chains)),
            f"largest scores of means and variances {listed(score for score, _ in chains)}; bound {chains[0][1]:.3g}",
            ours=max(score for score, _ in chains),
            kind="check",
        ),
        Claim(
            "accord.sample",
            f"the table's numbers ({LABEL[number]}) are the law's",
            Verdict.of(worst < most),
            f"largest of {np.size(scores)} scores of means over sets of {CHAINS} chains; bound {most:.3g}",
            ours=worst,
            kind="check",
        ),
    ]


def reading_remarks(number: Number, sets: int, close_sets: int) -> list[Claim]:
    """Remarks on the readings of odd circles, which are not bipartite."""
    claims = []
    for name, (paths, numbers) in circle_readings(sets).items():
        exact = [
            looked_at_again(number, "circle", at, numbers[number][at], path, close_sets)
            for at, path in enumerate(paths)
        ]
        offs = [off_by(number, "circle", at, found.mean()) for at, found in enumerate(exact)]
        scores = [five_seed_score(number, "circle", at, found) for at, found in enumerate(exact)]
        claims.append(
            Claim(
                "not in the paper",
                f"circles run as '{name}' have all four printed numbers within the printed errors",
                Verdict.all(is_within(number, "circle", at, found) for at, found in enumerate(exact)),
                f"the law's {listed(found.mean() for found in exact)} for {listed(NODES)} nodes are {listed(offs)} "
                f"printed 2-sigma errors away; the printed means, of five seeds, are {listed(scores)} of their own sds "
                f"away ({bound(len(NODES)):.3g} is exceeded by one of four with a chance of 0.001). Number: the "
                "largest of the former",
                law=max(offs),
                kind="remark",
            )
        )
    return claims


def table_rows(number: Number, found: dict[str, Reached]) -> list[list[Any]]:
    """Rows with the printed numbers, ours, the law's, and the limit of infinitely many chains."""
    rows = []
    for kind, reach in found.items():
        endless = summary(reach.limit.T)[number]
        for at, n in enumerate(NODES):
            row = [kind, n, *(part[at] for part in PRINTED[number][kind])]
            for sets in (reach.ours[number][at], reach.law[number][at]):
                row += [sets.mean(), 2 * sets.std(ddof=1)]
            rows.append([*row, endless[at]])
    return rows


def draw_table(axis: Any, number: Number, found: dict[str, Reached]) -> None:
    """Plot printed intervals, our intervals, and the law's lines by the number of nodes."""
    for (kind, reach), color in zip(found.items(), ("blue", "vermillion"), strict=True):
        style = {"color": COLORS[color], "ls": "none", "capsize": 3}
        ours, nodes = reach.ours[number], np.array(NODES)
        axis.errorbar(nodes * 0.96, *PRINTED[number][kind], marker="s", mfc="white", label=f"{kind}, printed", **style)
        axis.errorbar(
            nodes * 1.04, ours.mean(axis=1), 2 * ours.std(axis=1, ddof=1), marker="o", label=f"{kind}, accord", **style
        )
        axis.plot(nodes, reach.law[number].mean(axis=1), color=COLORS[color], lw=1, label=f"{kind}, exact law")
    axis.set_xscale("log")
    axis.set_xticks(NODES, labels=map(str, NODES))
    axis.set(xlabel="nodes", ylabel=LABEL[number], title="means and 2-sigma over sets of 100 chains")
    axis.minorticks_off()
    axis.legend(ncols=2, loc="best")


def five_seed_score(number: Number, kind: str, at: int, sets: np.ndarray) -> float:
    """The difference of the printed mean of five seeds from the law's mean, in its sds by the law."""
    return float(abs(PRINTED[number][kind].mean[at] - sets.mean()) / (sets.std(ddof=1) / np.sqrt(SEEDS)))


def between(values: np.ndarray) -> str:
    """Mean and 2-sigma over sets as text."""
    return f"{values.mean():.3g} +- {2 * values.std(ddof=1):.2g}"
