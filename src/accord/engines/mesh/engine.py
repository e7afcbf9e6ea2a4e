"""The mesh engine, with agents sharded over many devices.

Every device runs the same round on its own rows of agents (`jax.shard_map`). Sums over neighbours first fetch the
needed rows of other devices, one shift around the devices after another. Sums over all agents are all-reduces.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh as Devices
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from ...base.compiler import Program, compiled
from ...base.pytree import unchecked
from ...network import Network
from ...posterior import Posterior
from ...samplers.protocol import Bound
from ..arrays import ArrayBuilder, ArrayEngine, Programs
from ..build import build_problem, by_color
from ..draws import RawNoise
from ..links import LinkedExchange
from ..local import LocalEngine
from ..loop import Carry, Records, finite, record, start
from ..processes import everyones, require_alike
from ..round import Exchange, Problem, own_state
from .collectives import AGENTS, MeshCollectives
from .halo import fetched
from .shares import Shares


def _specs(problem: Problem) -> Problem:
    """Partition specs of a problem, which shard rows of agents and replicate the rest."""
    apart, everywhere = P(AGENTS), P()
    exchange, links = problem.exchange, problem.links
    operators = {
        "mix": None if exchange.mix is None else apart,
        "neighbours": None if exchange.neighbours is None else apart,
        "coefficients": None if exchange.coefficients is None else everywhere,
    }
    fixed = {name: getattr(exchange, name) for name in ("total", "averaged", "differences")}
    return unchecked(
        Problem,
        sampler=everywhere,
        potential=everywhere,
        shards=apart,
        index=apart,
        degree=apart,
        members=None if problem.members is None else apart,
        own=apart,
        facts=everywhere,
        shared=everywhere,
        exchange=unchecked(Exchange, **operators, **fixed),
        links=None if links is None else _linked(links),
        seed=everywhere,
        collectives=apart,
        num_agents=problem.num_agents,
    )


def _linked(links: LinkedExchange) -> LinkedExchange:
    """Partition specs of links, which shard rows of agents and replicate the rest."""
    apart = {name: P(AGENTS) for name in ("senders", "weights", "pushing", "edges")}
    shared = {name: P() for name in ("exchanges", "outage", "seed")} | {"table": None if links.table is None else P()}
    fixed = {name: getattr(links, name) for name in ("burst", "delay", "schedule", "needs")}
    return unchecked(LinkedExchange, **apart, **shared, **fixed)


def _carry_specs(problem: Problem) -> Any:
    needs = problem.needs
    everywhere: Any = P()
    rows: Any = P() if needs.at_hub else P(AGENTS)
    # noise has axes (chain, number), with the numbers of one agent after another
    numbers: Any = P() if needs.at_hub else P(None, AGENTS)
    noise = RawNoise(everywhere if needs.common else numbers, numbers, numbers, numbers, everywhere)
    return Carry(rows, noise, everywhere, rows)


@compiled(static_argnames=("mesh", "chains"))
def _start(problem: Problem, mean: Array, factor: Array | None, mesh: Devices, chains: int) -> Carry:
    rows = (P(AGENTS), None if factor is None else P(AGENTS))
    return _on(mesh, partial(start, chains=chains), (_specs(problem), *rows), _carry_specs(problem))(
        problem, mean, factor
    )


@partial(Program, static=("mesh", "chains", "capacity"))
def _record(
    problem: Problem, carry: Carry, draws: Array, thin: Array, keep: Array, mesh: Devices, chains: int, capacity: int
) -> tuple[Carry, Records]:
    specs = (_specs(problem), _carry_specs(problem), P(), P(), P())
    program = partial(record, chains=chains, capacity=capacity)
    return _on(mesh, program, specs, (_carry_specs(problem), P()))(problem, carry, draws, thin, keep)


@compiled(static_argnames="mesh")
def _finite(problem: Problem, carry: Carry, mesh: Devices) -> Array:
    def everyones(problem: Problem, carry: Carry) -> Array:
        return problem.collectives.everyones(finite(problem, carry))

    return _on(mesh, everyones, (_specs(problem), _carry_specs(problem)), P())(problem, carry)


def _on(mesh: Devices, function: Any, in_specs: Any, out_specs: Any) -> Any:
    # replication holds by construction, and the checker does not see it through loops
    return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


class MeshEngine(ArrayEngine):
    """Runs a method on all devices of JAX. Parameters as in `ArrayEngine`."""

    @classmethod
    def states_here(cls, num_agents: int) -> int:
        """The number of agents per process, rounded up."""
        return -(-num_agents // jax.process_count())

    @classmethod
    @contextmanager
    def placed(cls, post: Posterior) -> Iterator[Posterior]:
        """The posterior, with several processes split so that each reads the data of its own agents."""
        several = jax.process_count() > 1 and not post.is_read
        yield post.with_data_at(Shares(post)) if several else post

    @classmethod
    def build(cls, post: Posterior, network: Network, bound: Bound, **options: Any) -> ArrayEngine:
        """The engine. Raises `ValueError` unless all processes have the same fingerprint."""
        require_alike(options["fingerprint"])
        return super().build(post, network, bound, **options)

    @classmethod
    def preliminary(cls, post: Posterior, network: Network, bound: Bound, *, chains: int = 1) -> ArrayEngine:
        """An engine for computations before round 0, on one device if this process has all data."""
        if not post.is_held_elsewhere:
            return LocalEngine.preliminary(post, network, bound, chains=chains)
        return super().preliminary(post, network, bound, chains=chains)

    def states(self, carry: Carry) -> Any:
        """The method's states of all agents and chains, in every process host arrays (agent, ..., chain)."""
        gathered = multihost_utils.process_allgather(own_state(self.problem, carry.state), tiled=True)
        return jax.tree.map(lambda leaf: np.asarray(leaf)[: self.num_agents], gathered)

    def _problem(self, post: Posterior, network: Network, seed: int) -> Problem:
        devices, needs = jax.devices(), self.bound.sampler.needs(post.dim)
        self.mesh = Devices(np.array(devices), (AGENTS,))
        self.rows = -(-network.num_agents // len(devices))
        total = self.rows * len(devices)
        place = partial(fetched, devices=len(devices), rows=self.rows)
        shares = post.owners if isinstance(post.owners, Shares) else None
        shards = None if shares is None else shares.stacked(needs.eigenvectors, post.extent, post.coordinates)
        whole = build_problem(post, network, self.bound, seed, place, shards=shards)
        spread = dataclasses.replace(
            whole,
            shards=self._padded(whole.shards) if shares is None else self._joined(whole.shards, shares.mine.start),
            index=jnp.arange(total, dtype=jnp.uint32),
            degree=self._padded(whole.degree),
            members=self._members(network) if needs.turns == "by color" else None,
            own=self._padded(whole.own),
            links=self._linked(whole.links),
            collectives=MeshCollectives(jnp.arange(total) < network.num_agents),
        )
        specs = jax.tree.broadcast(_specs(spread), spread, is_leaf=lambda x: isinstance(x, P))
        return jax.tree.map(self._put, spread, specs)

    def _programs(self) -> Programs:
        programs = (_start, _record.of(self.chains), _finite)
        return Programs(*(partial(program, mesh=self.mesh) for program in programs))

    def _rows(self, rows: np.ndarray) -> Array:
        return self._put(self._padded(rows), P(AGENTS))

    def agreed(self, number: float) -> float:
        if jax.process_count() == 1:
            return number
        return float(multihost_utils.process_allgather(np.float32(number)).min())

    def _held(self) -> Posterior | None:
        return self.post.owners.held if isinstance(self.post.owners, Shares) else super()._held()

    def _everyones(self, text: str) -> list[str]:
        return everyones(text)

    def _layout(self) -> str:
        return f"{jax.process_count()} with {jax.device_count()} devices"

    def _joined(self, own: Any, first: int) -> Any:
        """Arrays over all agents from each process' own rows, which start at row `first`."""
        width = self.rows * jax.local_device_count()

        def join(part: Array) -> Array:
            held = np.asarray(part)
            held = np.concatenate([held, np.repeat(held[:1], width - len(held), axis=0)])
            shape = (self.rows * self.mesh.size, *held.shape[1:])

            def rows(index: Any) -> np.ndarray:
                return held[index[0].start - first : index[0].stop - first]

            return jax.make_array_from_callback(shape, NamedSharding(self.mesh, P(AGENTS)), rows)

        return jax.tree.map(join, own)

    def _put(self, whole: Any, spec: P) -> Array:
        """A whole host array, equal in all processes, as a sharded array. Sharded arrays stay unchanged."""
        if isinstance(whole, Array) and not whole.is_fully_addressable:
            return whole
        host = np.asarray(whole)
        return jax.make_array_from_callback(host.shape, NamedSharding(self.mesh, spec), lambda index: host[index])

    def _padded(self, tree: Any) -> Any:
        """Rows of agents, padded with copies of the first row to equal numbers on all devices."""
        extra = self.rows * self.mesh.size - self.num_agents
        if extra == 0:
            return tree
        return jax.tree.map(lambda leaf: jnp.concatenate([leaf, jnp.repeat(leaf[:1], extra, axis=0)]), tree)

    def _linked(self, links: LinkedExchange | None) -> LinkedExchange | None:
        if links is None:
            return None
        parts = {name: getattr(links, name) for name in ("senders", "weights", "pushing", "edges")}
        return dataclasses.replace(links, **self._padded(parts))

    def _members(self, network: Network) -> Array:
        """The rows of each colour on each device, (device * color, slot)."""
        colors = network.coloring()
        parts = [colors[first : first + self.rows] for first in range(0, self.rows * self.mesh.size, self.rows)]
        slots = max(int(np.bincount(part, minlength=1).max()) if part.size else 1 for part in parts)
        tables = [by_color(part, self.rows, slots, int(colors.max()) + 1) for part in parts]
        return jnp.asarray(np.concatenate(tables))


class Mesh(ArrayBuilder):
    """Options of the engine "mesh", which uses all devices of JAX. Parameters as in `ArrayBuilder`."""

    _kind = MeshEngine
