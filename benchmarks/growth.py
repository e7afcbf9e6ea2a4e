"""How the time of a round grows with agents, parameters, rows and chains: slopes on doubly logarithmic scales."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import jax
import numpy as np
import problems
from measured import Line, Ratio, at_most, duration, effort, enough, side_by_side
from rounds import advancing

import accord
from accord.engines.operators import gather

TITLE = "Growth"
ABOUT = """\
Slope of the logarithm of a round's time over that of a size, DE-SGLD, by least squares over the sizes at which a
round takes four times that of the smallest or more: 1 is linear, and below it are fixed costs. Sizes take turns, and
the slope is taken in each turn. The note has the times at the least and the largest size of the slope.
*Sums over neighbours alone* are those of two numbers of each neighbour on the same networks, and nothing else of a
round: neighbours at random lie in ever farther memory, so that their sums, and with them a round, grow by more than the
agents do."""
GOAL = at_most(1.05)
STEP = 1e-6
# a round at the smallest size is mostly fixed cost: beyond it begins at so many times that
BEYOND = 4.0


def lines(small: bool) -> Iterator[Line]:
    desgld = accord.samplers.DESGLD(STEP)
    turns = effort(small, 5, 0.05)

    def line(name: str, at: Callable[[int], tuple[accord.Posterior, accord.Network, int]], sizes: list[int]) -> Line:
        chosen = sizes[:2] if small else sizes
        works = {size: advancing(post, net, desgld, chains)[1] for size in chosen for post, net, chains in [at(size)]}
        return slope(name, works, **turns)

    gaussian = cache(partial(problems.gaussian, dim=2))

    def of_agents(network: Callable[[int], accord.Network], agents: int) -> Any:
        return gaussian(agents), network(agents), 1

    many = [10**k for k in range(2, 7)]
    yield line("agents on a ring, d=2, Gaussian", partial(of_agents, accord.Network.ring), many)
    yield line("agents, 8-regular, d=2, Gaussian", partial(of_agents, regular), many)
    gaussian.cache_clear()
    alone = {size: neighbour_sums(regular(size)) for size in (many[:2] if small else many)}
    yield slope("sums over neighbours alone, 8-regular, d=2", alone, **turns)._replace(goal=None)
    regular.cache_clear()
    ring = accord.Network.ring(10)
    yield line("parameters, 10 agents", lambda dim: (problems.spheres(10, dim), ring, 1), [10**k for k in range(6)])
    rows = [10**k for k in range(1, 6)]
    yield line("rows of 10 agents, d=10, logistic", lambda rows: (problems.logistic(10, 10, rows // 10), ring, 1), rows)
    few = problems.linear(10, 5, 50)
    yield line("chains, 10 agents, d=5, linear", lambda chains: (few, ring, chains), [10**k for k in range(5)])


@cache
def regular(agents: int) -> accord.Network:
    """Four cycles through all agents, at random: of a million agents drawn in seconds. A few agents miss an edge."""
    rng = np.random.default_rng(0)
    cycles = [rng.permutation(agents) for _ in range(4)]
    edges = np.concatenate([np.stack([cycle, np.roll(cycle, 1)], axis=1) for cycle in cycles])
    return accord.Network.from_edges(agents, np.unique(np.sort(edges, axis=1), axis=0))


def neighbour_sums(network: accord.Network) -> Callable[[int], Any]:
    """x_i <- the sum of x_j over the neighbours j, over the most that any agent has: a function of rounds."""

    @jax.jit
    def run(neighbours: Any, x: Any, rounds: Any) -> Any:
        # the scale keeps numbers as large as they are
        return jax.lax.fori_loop(0, rounds, lambda _, x: neighbours(x) / neighbours.columns.shape[1], x)

    return partial(run, gather(network.adjacency), np.ones((network.num_agents, 2), np.float32))


def slope(name: str, works: dict[int, Callable[[int], Any]], repeats: int, seconds: float) -> Line:
    """The line of a slope, of functions of a number of rounds at each size."""
    rounds = {size: enough(work, seconds) for size, work in works.items()}
    found = side_by_side({size: partial(works[size], rounds[size]) for size in works}, repeats)
    sizes = np.array(list(works))
    times = np.array([found[size] / rounds[size] for size in works])
    typical = np.median(times, axis=1)
    beyond = typical >= BEYOND * typical[0]
    if beyond.sum() < 2:
        beyond[-2:] = True
    each = np.polyfit(np.log(sizes[beyond]), np.log(times[beyond]), 1)[0]
    least, most = sizes[beyond][[0, -1]]
    note = " to ".join(f"{duration(typical[sizes == size][0])} at {size:,}" for size in (least, most))
    jax.clear_caches()
    return Line(name, f"{least:,} to {most:,}", Ratio.of(each), GOAL, note)
