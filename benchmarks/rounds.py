"""Time of one round over the floor that no implementation can go below: its gradients and its normal numbers alone.

Both sides run in one process, in turn, each in one compiled loop; the floor draws the same normals and takes the same
gradients, or proximal steps, and does nothing else with them than a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import problems
from measured import Line, Skipped, against, at_most, compared, effort, fastest

import accord
from accord.base.program import Program
from accord.engines.draws import assemble, draw_noise
from accord.engines.local import LocalEngine
from accord.engines.loop import once_known
from accord.engines.round import everywhere
from accord.samplers.proximal import proximal_point

TITLE = "A round over its floor"
ABOUT = (
    "One round over the gradients (or proximal steps) and the normal numbers that it needs, with the same shapes, in a "
    "loop of the same kind. The note has the time of a round and that of its floor. Where agents and parameters are "
    "many both wait for memory, and a round also writes new states beside those that neighbours still read: of 100,000 "
    "agents one array of them with DE-SGLD, and three with GT-DULA. *Its arrays too*: over a floor that also reads and "
    "writes, in their places, the arrays that the method keeps beside positions: D-ADMMS one, GT-DULA two. Below one: "
    "the floor does less than the round, but XLA made worse loops of it, or the machine was slow for longer."
)
GOAL = at_most(1.15)
# small enough that no shape diverges: numbers that are no numbers take other times
STEP = 1e-6


class Shape(NamedTuple):
    """A posterior, a network and a method; posteriors are made when their turn has come."""

    name: str
    posterior: Callable[[], accord.Posterior]
    network: Callable[[], accord.Network]
    sampler: Any
    chains: int
    # arrays of the method's state beside positions, with which a second floor is measured
    beside: int = 0


def _random(agents: int, share: float) -> Callable[[], accord.Network]:
    return partial(accord.Network.erdos_renyi, agents, share, seed=0)


def shapes(small: bool) -> Iterator[Shape]:
    """All that are measured; small ones have the same names and hardly any numbers."""
    n, chains, many, rows, wide = (10, 4, 1000, 100, 1000) if small else (100, 100, 100_000, 1000, 100_000)
    desgld, gtdula = accord.samplers.DESGLD(STEP), accord.samplers.GTDULA(1e-8, 0.3, 0.3)

    def ring(agents: int) -> Callable[[], accord.Network]:
        return partial(accord.Network.ring, agents)

    name = f"N={n}, {chains} chains, d=2"
    quadratic = partial(problems.linear, n, 2, 50)
    yield Shape(f"ring, {name}, linear", quadratic, ring(n), desgld, chains)
    yield Shape(f"ring, {name}, logistic, 50 rows", partial(problems.logistic, n, 2, 50), ring(n), desgld, chains)
    yield Shape(f"random graph, {name}, linear", quadratic, _random(n, 0.5 if small else 0.1), desgld, chains)
    yield Shape(f"ring, {name}, linear", quadratic, ring(n), accord.samplers.DADMMS(2.0), chains, beside=1)
    large = partial(problems.gaussian, many, 10)
    yield Shape(f"ring, N={many:,}, d=10, Gaussian", large, ring(many), desgld, 1)
    yield Shape(f"ring, N={many:,}, d=10, Gaussian", large, ring(many), gtdula, 1, beside=2)
    name = f"ring, N=10, d=54, {10 * rows:,} rows, logistic"
    yield Shape(name, partial(problems.logistic, 10, 54, rows), ring(10), desgld, 1)
    yield Shape(f"ring, N=10, d={wide:,}", partial(problems.spheres, 10, wide), ring(10), desgld, 1)
    agents, pictures = (2, 2) if small else (10, 27)
    name = f"ring, N={agents}, LeNet-5, {pictures} images"
    for method in (desgld,) if small else (desgld, gtdula):
        yield Shape(name, partial(problems.lenet, agents, pictures), ring(agents), method, 1)


def lines(small: bool) -> Iterator[Line | Skipped]:
    """A line a shape."""
    for shape in shapes(small):
        try:
            yield from measured(shape, **effort(small))
        except ImportError as error:
            yield Skipped(shape.name, str(error))


def advancing(
    post: accord.Posterior, net: accord.Network, sampler: Any, chains: int
) -> tuple[LocalEngine, Callable[[int], Any]]:
    """The local engine of a method, and its rounds as a function of their number."""
    engine = LocalEngine(post, net, sampler.bind(post, net), chains=chains, seed=0, keep=np.arange(1))
    # of one record: rounds are measured, not the memory of draws
    engine.capacity = 1
    carry = engine.start(np.broadcast_to(post.init, (post.num_agents, post.dim)), None)
    return engine, lambda rounds: engine.advance(carry, rounds)


def measured(shape: Shape, repeats: int, seconds: float) -> Iterator[Line]:
    """The line of one shape, by so many repeats of so many seconds each; and that over its second floor, if any."""
    post, name = shape.posterior(), type(shape.sampler).__name__
    engine, own = advancing(post, shape.network(), shape.sampler, shape.chains)
    floors = [(name, 0, GOAL)]
    if shape.beside:
        floors.append((f"{name}, its arrays too", shape.beside, None))
    for what, beside, goal in floors:
        least = floor(engine, post.init, repeats=7, seconds=seconds / 4, beside=beside)
        found, ours, bare = compared(own, least, repeats=repeats, seconds=seconds)
        yield Line(what, shape.name, found, goal, against(ours, bare))


WATCHED_FOR = "Small shapes whose rounds are to be at most half as slow again, beside their floors, as they were."
_DESGLD = accord.samplers.DESGLD(STEP)
# Shapes that take moments, each with the ratio that it has where nothing is amiss.
WATCHED = (
    (
        Shape("ring", partial(problems.linear, 100, 2, 50), partial(accord.Network.ring, 100), _DESGLD, 20),
        1.3,
    ),
    (
        Shape("random graph", partial(problems.linear, 100, 2, 50), _random(100, 0.1), _DESGLD, 20),
        1.6,
    ),
    (
        Shape("rows", partial(problems.logistic, 10, 20, 100), partial(accord.Network.ring, 10), _DESGLD, 1),
        1.1,
    ),
)
# A ratio so many times as large as usual is a round that has become slower.
MARGIN = 1.5
# Measurements of which one has to be good: on a machine that does other work too many are not.
_TRIES = 5


def watched() -> Iterator[Line]:
    """A line for each shape that is watched, which is to be at most half as slow again as it was."""
    for shape, usual in WATCHED:
        yield not_worse(shape, usual)


def not_worse(shape: Shape, usual: float) -> Line:
    """The line of a shape whose ratio is to be at most `MARGIN` times what is usual: the first that is, or the last."""
    for _ in range(_TRIES):
        line = next(measured(shape, repeats=11, seconds=0.02))._replace(goal=at_most(MARGIN * usual))
        if line.verdict == "met":
            break
    return line


def floor(
    engine: LocalEngine, start: np.ndarray, *, repeats: int, seconds: float, beside: int = 0
) -> Callable[[int], Any]:
    """x <- x - step grad f_i(x) + noise, or the proximal point of x + noise: a function of a number of rounds.

    Gradients are of minibatches where the engine's method takes these, whose rows are noise too. The noise is drawn a
    round ahead, once the state before it is known, as the engine does, or at any time, or in the round: whichever is
    fastest here. So many arrays `beside` x are read and written in every round, in their places. It is compiled as the
    engine's rounds are.
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

    shape = problem.index.size, problem.dim, chains
    x = jnp.broadcast_to(jnp.asarray(start, problem.degree.dtype)[:, None], shape)
    state = [x, *(jnp.zeros_like(x) for _ in range(beside))]
    ways = partial(ahead, once_known), partial(ahead, lambda _, k: k), within
    runs = [_run(Program(way, static=()).of(chains), problem, state) for way in ways]
    return fastest(runs, repeats=repeats, seconds=seconds)


def _run(program: Any, problem: Any, state: Any) -> Callable[[int], Any]:
    return lambda rounds: program(problem, state, rounds)


def _gradient(agent, x, noise):
    return x - STEP * agent.gradient(x, noise.batch) + STEP * noise.normal


def _proximal(agent, x, noise):
    return proximal_point(agent, x + STEP * noise.normal, jnp.asarray(4.0, x.dtype), start=x, tolerance=STEP).point
