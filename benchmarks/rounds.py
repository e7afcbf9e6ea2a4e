"""The time of a round relative to its floor, and its growth with sizes.

The floor is a compiled loop with the same gradients (or proximal steps) and the same normal numbers as the round, and
only a step with them. Both sides run in one process, in turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import problems
from measured import Line, Ratio, against, compared, duration, effort, enough, fastest, side_by_side

import accord
from accord.base.compiler import Program
from accord.engines.draws import assemble, draw_noise
from accord.engines.local import LocalEngine
from accord.engines.loop import once_known
from accord.engines.round import everywhere
from accord.samplers.proximal import proximal_point

# goal for the ratio of a round to its floor
MOST = 1.15
# goal for the slope of a time
LINEAR = 1.05
# a step at which all shapes are stable
STEP = 1e-6
# Slopes use sizes whose round takes this multiple of the smallest size's, which is mostly fixed cost.
BEYOND = 4.0


def advancing(
    post: accord.Posterior, net: accord.Network, sampler: Any, chains: int
) -> tuple[LocalEngine, Callable[[int], Any]]:
    """The local engine of a method, and its rounds as a function of their number."""
    engine = LocalEngine(post, net, sampler.bind(post, net), chains=chains, seed=0, keep=np.arange(1))
    # memory for one record
    engine.capacity = 1
    carry = engine.start(np.broadcast_to(post.init, (post.num_agents, post.dim)), None)
    return engine, lambda rounds: engine.advance(carry, rounds)


# --- over the floor ---


class Shape(NamedTuple):
    """A method on a posterior and a network."""

    name: str
    posterior: Callable[[], accord.Posterior]
    network: Callable[[], accord.Network]
    sampler: Any
    chains: int
    # arrays in the method's state besides positions, for a second floor
    beside: int = 0

    def advancing(self) -> tuple[LocalEngine, Callable[[int], Any]]:
        return advancing(self.posterior(), self.network(), self.sampler, self.chains)


def _ring(agents: int) -> Callable[[], accord.Network]:
    return partial(accord.Network.ring, agents)


def _random(agents: int, share: float) -> Callable[[], accord.Network]:
    return partial(accord.Network.erdos_renyi, agents, share, seed=0)


DESGLD = accord.samplers.DESGLD(STEP)
GTDULA = accord.samplers.GTDULA(1e-8, 0.3, 0.3)


def shapes(small: bool) -> Iterator[Shape]:
    n, chains, many, rows, wide = (10, 4, 1000, 100, 1000) if small else (100, 100, 100_000, 1000, 100_000)
    name = f"N={n}, {chains} chains, d=2"
    quadratic = partial(problems.linear, n, 2, 50)
    yield Shape(f"ring, {name}, linear", quadratic, _ring(n), DESGLD, chains)
    yield Shape(f"ring, {name}, logistic, 50 rows", partial(problems.logistic, n, 2, 50), _ring(n), DESGLD, chains)
    yield Shape(f"random graph, {name}, linear", quadratic, _random(n, 0.5 if small else 0.1), DESGLD, chains)
    yield Shape(f"ring, {name}, linear", quadratic, _ring(n), accord.samplers.DADMMS(2.0), chains, beside=1)
    large = partial(problems.gaussian, many, 10)
    yield Shape(f"ring, N={many:,}, d=10, Gaussian", large, _ring(many), DESGLD, 1)
    yield Shape(f"ring, N={many:,}, d=10, Gaussian", large, _ring(many), GTDULA, 1, beside=2)
    name = f"ring, N=10, d=54, {10 * rows:,} rows, logistic"
    yield Shape(name, partial(problems.logistic, 10, 54, rows), _ring(10), DESGLD, 1)
    yield Shape(f"ring, N=10, d={wide:,}", partial(problems.spheres, 10, wide), _ring(10), DESGLD, 1)


def over_floors(small: bool) -> Iterator[Line]:
    for shape in shapes(small):
        yield from over_floor(shape, **effort(small))


def over_floor(shape: Shape, repeats: int, seconds: float) -> Iterator[Line]:
    """The ratio of a round to its floor and, if the shape has one, to its second floor."""
    name = type(shape.sampler).__name__
    engine, own = shape.advancing()
    floors = [(name, 0, MOST)]
    if shape.beside:
        floors.append((f"{name}, floor with arrays", shape.beside, None))
    for what, beside, most in floors:
        least = floor(engine, repeats=7, seconds=seconds / 4, beside=beside)
        found, ours, bare = compared(own, least, repeats=repeats, seconds=seconds)
        yield Line(what, shape.name, found, against(ours, bare), most=most)


def floor(engine: LocalEngine, *, repeats: int, seconds: float, beside: int = 0) -> Callable[[int], Any]:
    """The floor as a function of the number of rounds: x <- x - step grad f_i(x) + noise, or a proximal point.

    The fastest of three variants: noise drawn one round ahead, after the previous state or without an order, or in the
    round. Each round reads and writes `beside` more arrays.
    """
    problem, chains = engine.problem, engine.chains
    step = _proximal if isinstance(problem.sampler, accord.samplers.DADMMS) else _gradient

    def draw(k: Any) -> Any:
        return draw_noise(problem, k, chains)

    def moved(problem: Any, k: Any, state: Any, noise: Any) -> Any:
        x, *others = state
        x = everywhere(step, problem.agents(k), (x, assemble(problem, noise, chains)))
        return [x, *(other + STEP * x for other in others)]

    def ahead(following: Callable[[Any, Any], Any], problem: Any, state: Any, rounds: Any) -> Any:
        def round(k: Any, both: Any) -> Any:
            state = moved(problem, k, *both)
            return state, draw(following(state, k + 1))

        return jax.lax.fori_loop(0, rounds, round, (state, draw(jnp.int32(0))))[0]

    def within(problem: Any, state: Any, rounds: Any) -> Any:
        return jax.lax.fori_loop(0, rounds, lambda k, state: moved(problem, k, state, draw(k)), state)

    def run(way: Callable[..., Any]) -> Callable[[int], Any]:
        # the compiler options of the engine's rounds
        return partial(Program(way, static=()).of(chains), problem, state)

    x = jnp.zeros((problem.index.size, problem.dim, chains), problem.degree.dtype)
    state = [x, *(jnp.zeros_like(x) for _ in range(beside))]
    ways = partial(ahead, once_known), partial(ahead, lambda _, k: k), within
    return fastest([run(way) for way in ways], repeats=repeats, seconds=seconds)


def _gradient(agent, x, noise):
    return x - STEP * agent.gradient(x, noise.batch) + STEP * noise.normal


def _proximal(agent, x, noise):
    return proximal_point(agent, x + STEP * noise.normal, jnp.asarray(4.0, x.dtype), start=x, tolerance=STEP).point


# --- the gate of continuous integration ---

# fast shapes, each with its usual ratio to the floor
WATCHED = (
    (Shape("ring", partial(problems.linear, 100, 2, 50), _ring(100), DESGLD, 20), 1.3),
    (Shape("random graph", partial(problems.linear, 100, 2, 50), _random(100, 0.1), DESGLD, 20), 1.6),
    (Shape("rows", partial(problems.logistic, 10, 20, 100), _ring(10), DESGLD, 1), 1.1),
)
# largest multiple of the usual ratio
MARGIN = 1.5
# measurements, one of which must pass, because other work on the machine disturbs them
_TRIES = 5


def watched() -> Iterator[Line]:
    for shape, usual in WATCHED:
        yield not_worse(shape, usual)


def not_worse(shape: Shape, usual: float) -> Line:
    """The first measurement within `MARGIN` times the usual ratio, or the last one."""
    for _ in range(_TRIES):
        line = next(over_floor(shape, repeats=11, seconds=0.02))._replace(most=MARGIN * usual)
        if line.verdict == "met":
            break
    return line


# --- growth ---


def growth(small: bool) -> Iterator[Line]:
    """Slopes of the time of a round on log-log scales."""
    turns = effort(small, 5, 0.05)

    def line(name: str, at: Callable[[int], tuple[accord.Posterior, accord.Network, int]], sizes: list[int]) -> Line:
        works = {}
        for size in sizes[:2] if small else sizes:
            post, net, chains = at(size)
            works[size] = advancing(post, net, DESGLD, chains)[1]
        return slope(name, works, **turns)

    gaussian = cache(partial(problems.gaussian, dim=2))
    many = [10**k for k in range(2, 7)]
    yield line("agents on a ring, d=2, Gaussian", lambda n: (gaussian(n), accord.Network.ring(n), 1), many)
    yield line("agents, 8-regular, d=2, Gaussian", lambda n: (gaussian(n), regular(n), 1), many)
    gaussian.cache_clear()
    regular.cache_clear()
    ring = accord.Network.ring(10)
    yield line("parameters, 10 agents", lambda dim: (problems.spheres(10, dim), ring, 1), [10**k for k in range(6)])
    rows = [10**k for k in range(1, 6)]
    yield line("rows of 10 agents, d=10, logistic", lambda rows: (problems.logistic(10, 10, rows // 10), ring, 1), rows)
    few = problems.linear(10, 5, 50)
    yield line("chains, 10 agents, d=5, linear", lambda chains: (few, ring, chains), [10**k for k in range(5)])


@cache
def regular(agents: int) -> accord.Network:
    """A network of four random cycles through all agents."""
    rng = np.random.default_rng(0)
    cycles = [rng.permutation(agents) for _ in range(4)]
    edges = np.concatenate([np.stack([cycle, np.roll(cycle, 1)], axis=1) for cycle in cycles])
    return accord.Network.from_edges(agents, np.unique(np.sort(edges, axis=1), axis=0))


def slope(name: str, works: dict[int, Callable[[int], Any]], repeats: int, seconds: float) -> Line:
    """The log-log slope of the time of a round, for functions of the number of rounds by size."""
    rounds = {size: enough(work, seconds) for size, work in works.items()}
    found = side_by_side({size: partial(works[size], rounds[size]) for size in works}, repeats)
    sizes = np.array(list(works))
    times = np.array([found[size] / rounds[size] for size in works])
    typical = np.median(times, axis=1)
    beyond = typical >= BEYOND * typical[0]
    if beyond.sum() < 2:
        beyond[-2:] = True
    each = np.polyfit(np.log(sizes[beyond]), np.log(times[beyond]), 1)[0]
    first, last = sizes[beyond][[0, -1]]
    note = " to ".join(f"{duration(typical[sizes == size][0])} at {size:,}" for size in (first, last))
    jax.clear_caches()
    return Line(name, f"{first:,} to {last:,}", Ratio.of(each), note, most=LINEAR)
