"""Totals: sums over all agents of functions of their data. Callers see only the sum."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import ceil, floor, log2
from typing import Any, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree
from numpy.typing import ArrayLike

from ..base.compiler import Program, as_here
from ..base.interruptions import let_through
from ..base.progress import step
from ..network.averaging import Averaging
from .coordinates import Coordinates, place_shard
from .masks import Masks, Words, added, decoded, encoded
from .potential import Potential, Shard

# Default and largest batch size over points.
AT_ONCE = 128
# Largest number of (row, point) pairs in a batch of one agent.
_NUMBERS = 1_000_000
# Number of (row, point) pairs that fit into the processor's caches.
_IN_CACHE = 2**18
# Threads for batches after the first. Two programs at a time keep all cores busy.
_AT_A_TIME = 2
# Smallest number of data values times points in a batch for which threads save time.
_WORTH_THREADS = 2**16
# Number of cache-sized pieces from which on a few points get a smaller batch instead of padding.
_MANY_PIECES = 16

F = TypeVar("F", bound=Callable[..., PyTree])


@runtime_checkable
class Totals(Protocol):
    """The sum over all agents of `function(potential, shard, *arguments)`, as NumPy arrays.

    `function` is a module-level function that JAX can trace. It runs in the float width of the run. With `coordinates`,
    the potential and the shard are functions of these coordinates instead of the user's parameters.

    With `points`, shape (point, dim), one message carries the sums of `function(potential, shard, point, *arguments)`
    at all points, on a leading axis. Agents evaluate the points in padded batches of at most `at_once`, so that one
    program serves any number of points. `points` may also be an object with `__array__`: it is sent to other machines
    as it is, and becomes an array there.
    """

    def __call__(
        self,
        function: Callable[..., PyTree],
        *arguments: Any,
        coordinates: Coordinates | None = None,
        points: ArrayLike | None = None,
        at_once: int = AT_ONCE,
    ) -> PyTree:
        """The sum."""
        ...


_MARK = "sums_rows"


def of_rows(function: F) -> F:
    """Mark a function as additive over an agent's rows, so that it can be evaluated in chunks of rows.

    Each chunk has some of the rows and the same share of the log prior. The results of all chunks are added. Values and
    derivatives of the potential are additive.
    """
    vars(function)[_MARK] = True
    return function


def sums_rows(function: Callable[..., PyTree]) -> bool:
    """Whether a function is marked with `of_rows`."""
    return getattr(function, _MARK, False)


def parts_of(rows: int) -> int:
    """Number of parts to split an agent's rows into, for functions marked with `of_rows`.

    A part and AT_ONCE points fill the processor's caches. With smaller parts, threads mostly wait for each other.
    """
    return ceil(rows * AT_ONCE / _IN_CACHE)


@dataclass(frozen=True)
class Together:
    """Several functions in one message, each at points of its own.

    `Totals` called with this function get a tuple as `points`, an array for each function. The sum is one flat array:
    the numbers of the first function at all its points, then the numbers of the next function.

    Parameters
    ----------
    functions
        Functions of a potential, a shard and a point, each with one array of numbers.
    """

    functions: tuple[Callable[..., PyTree], ...]

    @property
    def __name__(self) -> str:
        return " and ".join(function.__name__ for function in self.functions)

    def __call__(self, potential: Potential, shard: Shard, *points: Float[Array, "point dim"]) -> Array:
        """The numbers of one agent, shape (number,)."""
        found = [
            jnp.ravel(jax.vmap(partial(function, potential, shard))(some))
            for function, some in zip(self.functions, points, strict=True)
        ]
        return jnp.concatenate(found)


class TotalsHere:
    """Totals over agents whose shards lie in this process.

    Parameters
    ----------
    potential, shards
        A posterior's `potential` and the result of `stacked`, in the user's parameters.
    parts
        Number of equal parts of each shard's rows. Functions marked with `of_rows` are evaluated one part at a time,
        which saves memory and uses the processor's caches.
    """

    def __init__(self, potential: Potential, shards: Shard, parts: int = 1) -> None:
        self.potential, self.shards, self.parts = potential, shards, parts

    def __call__(self, function: Callable[..., PyTree], *arguments: Any, **options: Any) -> PyTree:
        """The sum over the agents in this process."""
        return self._made(_total, function, arguments, 0, **options)

    def each(self, function: Callable[..., PyTree], *arguments: Any, **options: Any) -> PyTree:
        """The summands of the agents in this process, on a leading axis."""
        return self._made(_each, function, arguments, 1, **options)

    def _made(
        self,
        program: Program,
        function: Callable[..., PyTree],
        arguments: tuple[Any, ...],
        axis: int,
        **options: Any,
    ) -> PyTree:
        """The sum of a program's results over all chunks of rows; `axis` is the axis of points in a result."""
        several = isinstance(function, Together)
        functions = function.functions if isinstance(function, Together) else (function,)
        points = options.pop("points", None)
        found: list[PyTree] = [None] * len(functions)
        for shards in self._chunks(*functions):
            for number, (one, some) in enumerate(zip(functions, points if several else (points,), strict=True)):
                made = self._of_chunk(program, one, arguments, axis, shards, points=some, **options)
                found[number] = made if found[number] is None else jax.tree.map(np.add, found[number], made)
        if not several:
            return found[0]
        return np.concatenate([np.reshape(part, (*np.shape(part)[:axis], -1)) for part in found], axis=axis)

    def _of_chunk(
        self,
        program: Program,
        function: Callable[..., PyTree],
        arguments: tuple[Any, ...],
        axis: int,
        shards: Shard,
        **options: Any,
    ) -> PyTree:
        """A program's result for one chunk of rows."""
        parts = self.parts if sums_rows(function) else 1
        at_once, together = _at_once(shards, parts, **options)
        run = partial(program.of(at_once), function, together, parts, self.potential, shards)
        held = sum(np.size(leaf) for leaf in jax.tree.leaves(shards.rows))
        return self._over_points(
            run, arguments, axis, spread=at_once * held >= _WORTH_THREADS, **{**options, "at_once": at_once}
        )

    def _chunks(self, *functions: Callable[..., PyTree]) -> Iterator[Shard]:
        """The chunks of rows: here a single one."""
        yield self.shards

    def _over_points(
        self,
        program: Callable[..., PyTree],
        arguments: tuple[Any, ...],
        axis: int,
        spread: bool,
        coordinates: Coordinates | None = None,
        points: ArrayLike | None = None,
        at_once: int = AT_ONCE,
    ) -> PyTree:
        """A program's results at all points, evaluated in batches, in several threads with `spread`."""
        if points is None:
            return jax.tree.map(np.asarray, program(coordinates, None, arguments))
        points = np.asarray(points)
        blocks = -(-len(points) // at_once)
        # padding: all blocks use one program
        rest = np.repeat(points[-1:], blocks * at_once - len(points), axis=0)
        parts = np.concatenate([points, rest]).reshape(blocks, at_once, -1)

        def at(part: np.ndarray) -> PyTree:
            return jax.tree.map(np.asarray, program(coordinates, part, arguments))

        # returns after compilation, before the computation ends
        first = program(coordinates, parts[0], arguments)
        workers = ThreadPoolExecutor(_AT_A_TIME)
        found: list[PyTree] = [first]
        try:
            for done, one in enumerate((workers.map if spread else map)(as_here(at), parts[1:]), 1):
                step(done, blocks)
                let_through()
                found.append(one)
        finally:
            # no program keeps running after an interrupt
            workers.shutdown(cancel_futures=True)
            jax.block_until_ready(first)

        def joined(*leaves: Any) -> np.ndarray:
            whole = np.concatenate([np.asarray(leaf) for leaf in leaves], axis=axis)
            return whole[(slice(None),) * axis + (slice(len(points)),)]

        return jax.tree.map(joined, *found)


def _at_once(
    shards: Shard, parts: int, *, points: ArrayLike | None = None, at_once: int = AT_ONCE, **_: Any
) -> tuple[int, int]:
    """The batch size over points, and the number of agents in a piece of the data."""
    agents = shards.size.shape[0]
    rows = max([1, *(leaf.shape[1] // parts for leaf in jax.tree.leaves(shards.rows) if leaf.ndim > 1)])
    if points is None:
        at_once = 1
    elif rows * parts * agents * AT_ONCE >= _MANY_PIECES * _IN_CACHE:
        at_once = min(at_once, 2 ** ceil(log2(max(1, len(np.asarray(points))))))
    at_once = min(at_once, 2 ** floor(log2(max(1.0, _NUMBERS / rows))))
    fit = max(1, _IN_CACHE // (rows * at_once))
    # pieces of nearly equal size
    return at_once, ceil(agents / ceil(agents / fit))


class ConsensusTotals:
    """Totals by gossip: each agent averages with its neighbours until all agree to a precision.

    Parameters
    ----------
    here
        Totals over all agents.
    averaging
        The averaging method.

    Attributes
    ----------
    apart
        The largest difference between agents' sums of the first number at any point of the last call with points. For
        F, the difference between the agents' log densities.
    """

    def __init__(self, here: TotalsHere, averaging: Averaging) -> None:
        self.here, self.averaging, self.apart = here, averaging, 0.0

    def __call__(self, function: Callable[..., PyTree], *arguments: Any, **options: Any) -> PyTree:
        """The first agent's estimate of the sum."""

        def agreed(leaf: np.ndarray) -> np.ndarray:
            own = np.asarray(leaf, np.float64)
            sums = self.averaging.sums(own.reshape(len(own), -1)).reshape(own.shape)
            if options.get("points") is not None:
                self.apart = float(np.ptp(sums.reshape(*sums.shape[:2], -1)[..., 0], axis=0).max())
            return sums[0].astype(leaf.dtype)

        return jax.tree.map(agreed, self.here.each(function, *arguments, **options))


class MaskedTotals:
    """Totals of words that each agent masks before sending; see `masks`.

    Sums are exact up to num_agents * 2^-65 and rounding to double precision. Their dtype is double precision if it is
    enabled, else the dtype of the function's result.

    Parameters
    ----------
    here
        Totals over the agents in this process.
    masks
        The masks of these agents, in the same order, after key agreement with all other agents.
    gathered
        `gathered(count, words)`: the words of sum number `count`, summed over all processes. None: this is the only
        process.

    Raises
    ------
    ArithmeticError
        When called: some agents have numbers that are NaN, infinite, or not below 2^62 / num_agents in size. The sum
        and the names of these agents stay unknown.
    RuntimeError
        When called: the masks did not cancel.
    """

    def __init__(
        self, here: TotalsHere, masks: Sequence[Masks], gathered: Callable[[int, Words], Words] | None = None
    ) -> None:
        self.here, self.masks, self._gathered = here, masks, gathered
        self._count, self._lock = 0, threading.Lock()

    def __call__(self, function: Callable[..., PyTree], *arguments: Any, **options: Any) -> PyTree:
        """The sum over all agents."""
        return self.numbered(None, function, *arguments, **options)

    def numbered(self, count: int | None, function: Callable[..., PyTree], *arguments: Any, **options: Any) -> PyTree:
        """The sum over all agents, with an unused sequence number `count`. None: the next number."""
        leaves: list[np.ndarray]
        treedef: Any
        leaves, treedef = jax.tree.flatten(self.here.each(function, *arguments, **options))
        num_agents = self.masks[0].num_agents
        plain = [encoded([leaf[row] for leaf in leaves], num_agents) for row in range(len(self.masks))]
        # one sum at a time
        with self._lock:
            self._count = self._count + 1 if count is None else count
            words = added(*(own.masked(self._count, one) for own, one in zip(self.masks, plain, strict=True)))
            if self._gathered is not None:
                words = self._gathered(self._count, words)
        shapes = [jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) for leaf in leaves]
        return treedef.unflatten(decoded(words, shapes, num_agents))


def masked_here(here: TotalsHere, num_agents: int) -> MaskedTotals:
    """Masked totals over agents whose data lies in this process. Each agent has its own keys."""
    return MaskedTotals(here, agreed_masks(num_agents))


def agreed_masks(num_agents: int) -> list[Masks]:
    """The masks of agents in this process, after key agreement."""
    masks = [Masks(agent, num_agents) for agent in range(num_agents)]
    publics = [one.public for one in masks]
    for one in masks:
        one.agree(publics)
    return masks


_program = partial(Program, static=("function", "together", "parts"))


@_program
def _total(function: Callable[..., PyTree], together: int, parts: int, *arguments: Any) -> PyTree:
    """The sum of a function over agents. `arguments` as in `_over_pieces`."""

    def add(sums: PyTree, first: Array, found: PyTree) -> PyTree:
        return jax.tree.map(lambda total, leaf: total + leaf.sum(axis=0), sums, found)

    return _over_pieces(add, (), function, together, parts, *arguments)


@_program
def _each(
    function: Callable[..., PyTree], together: int, parts: int, potential: Potential, shards: Shard, *arguments: Any
) -> PyTree:
    """A function's value for each agent, on a leading axis."""

    def add(own: PyTree, first: Array, found: PyTree) -> PyTree:
        return jax.tree.map(lambda whole, leaf: whole.at[first + np.arange(together)].add(leaf), own, found)

    return _over_pieces(add, shards.size.shape, function, together, parts, potential, shards, *arguments)


def _over_pieces(
    add: Callable[[PyTree, Array, PyTree], PyTree],
    kept: tuple[int, ...],
    function: Callable[..., PyTree],
    together: int,
    parts: int,
    potential: Potential,
    shards: Shard,
    coordinates: Coordinates | None,
    points: Float[Array, "point dim"] | None,
    arguments: tuple[Any, ...],
) -> PyTree:
    """A function's values for pieces of the data, accumulated by `add`.

    A piece has one of `parts` parts of the rows of `together` agents. `add(sums, first, found)` adds the values `found`
    of the agents from index `first` on, shape (together, ...), to `sums`, shape (*kept, ...).
    """
    num_agents = shards.size.shape[0]
    divided = potential.divided(parts)
    moved = divided if coordinates is None else divided.within(coordinates)

    def one(shard: Shard) -> PyTree:
        own = shard if coordinates is None else place_shard(shard, coordinates)
        if points is None:
            return function(moved, own, *arguments)
        return jax.vmap(lambda x: function(moved, own, x, *arguments))(points)

    # jit: one trace serves eval_shape and the loop
    @jax.jit
    def of(piece: Array) -> tuple[Array, PyTree]:
        # the last piece overlaps the one before: agents that were counted there add zero
        begun = piece // parts * together
        first = jnp.minimum(begun, num_agents - together)
        new = first + np.arange(together) >= begun
        found = _of_each(one, _some(shards, first, together, piece % parts, parts))

        def counted(leaf: Array) -> Array:
            # booleans become integers, and integers get the dtype of their sum
            wide = leaf.astype(jax.eval_shape(jnp.sum, leaf).dtype)
            return jnp.where(new.reshape(-1, *(1,) * (leaf.ndim - 1)), wide, 0)

        return first, jax.tree.map(counted, found)

    def more(piece: Array, sums: PyTree) -> PyTree:
        return add(sums, *of(jax.lax.convert_element_type(piece, jnp.int32)))

    shapes = jax.eval_shape(of, jax.ShapeDtypeStruct((), jnp.int32))[1]
    nothing = jax.tree.map(lambda leaf: jnp.zeros(kept + leaf.shape[1:], leaf.dtype), shapes)
    return jax.lax.fori_loop(0, ceil(num_agents / together) * parts, more, nothing)


def _of_each(function: Callable[[Shard], PyTree], shards: Shard) -> PyTree:
    """A function's values for stacked agents. A single agent runs without `vmap`, which slows matrix products."""
    if shards.size.shape[0] > 1:
        return jax.vmap(function)(shards)
    alone = function(jax.tree.map(lambda leaf: leaf[0], shards))
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], alone)


def _some(shards: Shard, first: Array, agents: int, part: Array, parts: int) -> Shard:
    """One part of the rows of `agents` agents, from index `first` on."""
    here = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, first, agents), shards)
    if parts == 1:
        return here
    rows = jax.tree.leaves(shards.rows)[0].shape[1] // parts

    def cut(leaf: Array) -> Array:
        return jax.lax.dynamic_slice_in_dim(leaf, part * rows, rows, axis=1)

    return here._replace(rows=jax.tree.map(cut, here.rows), size=jnp.clip(here.size - part * rows, 0, rows))
