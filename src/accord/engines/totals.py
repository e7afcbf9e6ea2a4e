"""The totals engine: a hub that holds no data, and hears nothing of it but sums over all agents.

The hub's rounds are a compiled program, which runs in a thread of its own. Where the method asks, the program waits,
and the thread that called the engine has the total made. So whoever makes totals works in the caller's thread, in its
float width, may run programs of JAX, hears Ctrl-C, and what it raises is what the caller gets.
"""

from __future__ import annotations

import itertools
import queue
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar
from weakref import WeakValueDictionary

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.buffer_callback import buffer_callback
from jax.tree_util import Partial
from jaxtyping import Array

from ..base.errors import DataError
from ..base.pytree import pytree, unchecked
from ..network import Network
from ..posterior import Posterior
from ..posterior.coordinates import Coordinates
from ..posterior.potential import Potential, Shard
from ..posterior.totals import Totals
from ..samplers.agent import Agent, Facts
from ..samplers.protocol import Sampler
from .arrays import Programs
from .build import build_problem
from .collectives import Collectives
from .local import LocalEngine
from .loop import Carry
from .round import Problem

T = TypeVar("T")


class Asked(NamedTuple):
    """Sent with every question, as an agent needs it to answer: the method, and the facts that all agents know."""

    sampler: Sampler
    facts: Facts
    shared: Any


def answers(potential: Potential, shard: Shard, asked: Asked, rounds: Array, states: Any) -> Any:
    """An agent's messages for several states of the hub, asked in these rounds; all of them on a leading axis.

    A total is of functions that are the same for all agents: the agent that the method's `message` sees has its data,
    but no `index`, `degree` or `own`, and reading one is an `AttributeError`.
    """

    def one(round: Array, state: Any) -> Any:
        agent = unchecked(Agent, shard=shard, round=round, facts=asked.facts, shared=asked.shared, potential=potential)
        return asked.sampler.message(agent, state)

    return jax.vmap(one)(rounds, states)


@pytree
class HubCollectives(Collectives):
    """A hub alone, whose questions a `QueryServer` has answered."""

    # The server's number, and not the server: every run of the same shapes is then the same program.
    server: Array
    asked: Asked
    # of an agent without data, whose answer has the shapes of everybody's
    prior: Potential
    round: Array | None = None

    def at(self, round: Any) -> HubCollectives:
        """The collectives in a round, which agents are told with the question."""
        return replace(self, round=jnp.asarray(round, jnp.int32))

    def query(self, state: Any, answer: Callable[[Any], Any], num_agents: int) -> Any:
        """The sum of all agents' answers to a state of the hub; all chains ask in one total."""
        ask = buffer_callback(_ask, self.answer_shapes(state), vmap_method="broadcast_all")
        return ask(self.server, self.round, state)

    def answer_shapes(self, state: Any) -> Any:
        """Shapes and types of the answer to one state, found without data."""

        def alone(asked: Asked, prior: Potential, state: Any) -> Any:
            many = jax.tree.map(lambda leaf: leaf[None], state)
            found = answers(prior, _NO_DATA, asked, jnp.zeros(1, jnp.int32), many)
            return jax.tree.map(lambda leaf: leaf[0], found)

        return jax.eval_shape(alone, self.asked, self.prior, state)


class _Query(NamedTuple):
    """Questions of all chains, on a leading axis, and what the answers will look like."""

    rounds: np.ndarray
    states: Any
    due: Any
    reply: Future


class QueryServer:
    """Takes a program's questions to the thread that started it, where the totals are made.

    Parameters
    ----------
    totals, coordinates
        Who makes them, and the coordinates that the method moves in, or None.
    asked
        What goes with every question.
    """

    def __init__(self, totals: Totals, asked: Asked, coordinates: Coordinates | None) -> None:
        self.totals, self.asked, self.coordinates = totals, asked, coordinates
        self.number = next(_numbers)
        _servers[self.number] = self
        self._queries: queue.SimpleQueue[_Query | None] = queue.SimpleQueue()

    def ask(self, rounds: np.ndarray, states: Any, due: Any) -> Any:
        """The sum of all agents' `answers`, from the thread of a program; raises `CancelledError` if there is none."""
        query = _Query(rounds, states, due, Future())
        self._queries.put(query)
        return query.reply.result()

    def run(self, work: Callable[[], T]) -> T:
        """Run `work`, a program, in a thread of its own, answer its questions in this one, and return its result.

        Raises
        ------
        BaseException
            What the totals raised, or else what the program did.
        """
        failure: BaseException | None = None
        with ThreadPoolExecutor(1) as pool:
            job = pool.submit(work)
            job.add_done_callback(lambda _: self._queries.put(None))
            # to the end of the program in any case: it may still be asking
            while True:
                query = None
                try:
                    query = self._queries.get()
                    if query is None:
                        break
                    if failure is None:
                        query.reply.set_result(self._answered(query))
                except BaseException as error:
                    failure = error if failure is None else failure
                if query is not None and failure is not None:
                    query.reply.cancel()
        if failure is not None:
            raise failure
        return job.result()

    def _answered(self, query: _Query) -> Any:
        found = self.totals(answers, self.asked, query.rounds, query.states, coordinates=self.coordinates)
        came, due = (jax.tree.map(np.shape, total) for total in (found, query.due))
        if came != due:
            raise ValueError(f"totals of the shapes {came} came where {due} were due, the first axis the questions'")
        return jax.tree.map(lambda leaf, like: np.asarray(leaf, like.dtype), found, query.due)


_numbers = itertools.count()
# a run that has ended leaves its number only
_servers: WeakValueDictionary[int, QueryServer] = WeakValueDictionary()


def _ask(context: Any, results: Any, server: Any, round: Any, state: Any) -> None:
    """Ask a server with buffers of a program, whose leading axes are those that it was mapped over."""
    rounds = np.asarray(round)

    def together(buffer: Any) -> np.ndarray:
        leaf = np.asarray(buffer)
        # a copy: the buffer is the program's own
        return leaf.reshape(rounds.size, *leaf.shape[rounds.ndim :]).copy()

    states, due = jax.tree.map(together, (state, results))
    found = _servers[int(np.asarray(server).flat[0])].ask(rounds.ravel().copy(), states, due)
    for buffer, leaf in zip(jax.tree.leaves(results), jax.tree.leaves(found), strict=True):
        written = np.asarray(buffer)
        written[...] = leaf.reshape(written.shape)


class TotalsEngine(LocalEngine):
    """Runs a method that only asks, such as `Replicated`, where nothing but `Posterior.totals` is known of the data.

    The hub's own arithmetic, which is small, is done on the CPU, which must be among JAX's platforms: other devices are
    left to those who make totals.
    Parameters are those of `ArrayEngine`.

    Raises
    ------
    TypeError
        The method needs more than totals of its questions.
    """

    @classmethod
    def check(cls, post: Posterior, sampler: Sampler) -> None:
        """Raise `TypeError` unless all that a round of the method takes is `inbox.query`."""
        inbox = sampler.needs(post.dim).inbox
        if inbox != "query":
            raise TypeError(
                f"{type(sampler).__name__} needs inbox.{inbox}(), and the totals engine has inbox.query() alone, as "
                "Replicated needs it: take another engine, or another method"
            )

    def _problem(self, post: Posterior, network: Network, seed: int) -> Problem:
        sampler = self.bound.sampler
        self.check(post, sampler)
        if jax.tree.leaves(self.bound.own):
            raise TypeError(f"{type(sampler).__name__} gives each agent numbers of its own, which no total can read")
        totals = post.in_parameters().totals(network)
        with self._as_hub():
            nothing = _NO_DATA._replace(size=jnp.zeros(network.num_agents, jnp.int32))
            problem = build_problem(post, network, self.bound, seed, shards=nothing)
            host: Any = jax.tree.map(np.asarray, (problem.facts, problem.shared))
            asked = Asked(sampler, *host)
            self.server = QueryServer(totals, asked, post.coordinates)
            prior = replace(problem.potential, log_likelihood=Partial(_of_no_rows), latents=None, rowwise=False)
            return replace(
                problem,
                potential=replace(prior, log_likelihood=Partial(_unseen)),
                collectives=HubCollectives(jnp.int32(self.server.number), asked, prior),
            )

    def _programs(self) -> Programs:
        wide = self.problem.degree.dtype == np.float64

        def here(program: Any) -> Any:
            def run(*arguments: Any, **options: Any) -> Any:
                # float width and device are each thread's own
                with jax.enable_x64(wide), self._as_hub():
                    return jax.block_until_ready(program(*arguments, **options))

            return run

        def asking(program: Any) -> Any:
            return lambda *arguments, **options: self.server.run(partial(program, *arguments, **options))

        start, record, finite = map(here, super()._programs())
        return Programs(start, asking(record), finite)

    def _rows(self, rows: np.ndarray) -> Array:
        with self._as_hub():
            return super()._rows(rows)

    def message_bytes(self, carry: Carry) -> int:
        """Bytes of the answer that one agent gives one chain."""
        collectives = self.problem.collectives
        assert isinstance(collectives, HubCollectives)
        shapes = collectives.answer_shapes(jax.tree.map(lambda leaf: leaf[0, ..., 0], carry.state))
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))

    @contextmanager
    def _as_hub(self) -> Iterator[None]:
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            yield


_NO_DATA = Shard((), 0, None)


def _of_no_rows(params: Any, rows: Any) -> Array:
    return jnp.zeros(())


def _unseen(params: Any, rows: Any) -> Array:
    raise DataError("the hub of the totals engine holds no data: a method reads it by inbox.query(state) alone")
