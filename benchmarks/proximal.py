"""A round of D-ADMMS over one evaluation of gradient and Hessian, which the least Newton step takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import problems
from measured import Line, against, at_most, compared, effort
from rounds import advancing

import accord
from accord.engines.local import LocalEngine
from accord.engines.round import everywhere

TITLE = "D-ADMMS"
ABOUT = (
    "A round of D-ADMMS, whose proximal steps are solved by Newton's method, over the gradients and Hessians of all "
    "agents and chains, evaluated once each, in a loop of the same kind. The note has the times of both."
)
GOAL = at_most(4.0)


def lines(small: bool) -> Iterator[Line]:
    for agents, dim, chains, rows in (
        ((4, 3, 2, 5),) if small else ((20, 30, 1, 100), (20, 30, 16, 100), (10, 11, 16, 60))
    ):
        post, net = problems.logistic(agents, dim, rows), accord.Network.ring(agents)
        for penalty in (1.0, 10.0):
            method = accord.samplers.DADMMS(penalty, noise="common")
            engine, own = advancing(post, net, method, chains)
            found, ours, theirs = compared(own, expansions(engine), **effort(small))
            shape = f"logistic, ring, N={agents}, d={dim}, {rows} rows an agent, {chains} chains, rho={penalty:g}"
            yield Line("DADMMS", shape, found, GOAL, against(ours, theirs))


def expansions(engine: LocalEngine) -> Callable[[int], Any]:
    """All gradients and Hessians: a function of how many times."""
    problem = engine.problem

    def both(agent: Any, x: Any) -> Any:
        # all of both is used, so that none is left out of the program; hardly anything is added to x
        return x + 1e-9 * (agent.gradient(x) + agent.hessian(x).sum(axis=0))

    @jax.jit
    def run(problem: Any, x: Any, times: Any) -> Any:
        return jax.lax.fori_loop(0, times, lambda k, x: everywhere(both, problem.agents(k), (x,)), x)

    x = jnp.zeros((problem.index.size, problem.dim, engine.chains))
    return lambda times: run(problem, x, times)
