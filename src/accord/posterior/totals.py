"""Totals: sums over all agents of functions of their data, of which nothing but the sum is heard."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
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

# Points that an agent evaluates at a time, at most, and numbers, one for each row and point, that are held then: at
# most, and where agents are taken one after another and rows in parts, so that the processor's caches hold them.
AT_ONCE, _NUMBERS, _IN_CACHE = 128, 1_000_000, 2**18
# Programs at a time, beside the first: while the cores of one wait for each other, those of another have work.
_AT_A_TIME = 2
# Numbers of rows times positions in a program below which threads would cost more than they save.
_WORTH_THREADS = 2**16
# Pieces from which on few points are worth a program of their own, which does not fill them up with others.
_MANY_PIECES = 16

F = TypeVar("F", bound=Callable[..., PyTree])


@runtime_checkable
class Totals(Protocol):
    """The sum over all agents of `function(potential, shard, *arguments)`, as arrays of NumPy.

    It is a function of a module that JAX can trace, and runs in the float width of a run. `coordinates` are those that
    potential and shard are to be in, where they are not the user's.

    Many positions go in one message: with `points`, shape (point, dim), it is the sum of
    `function(potential, shard, point, *arguments)` for each of them, on a leading axis. Agents evaluate some of them at
    a time, `at_once` at most, by a program that is the same however many points there are. What can be made anew
    anywhere (`__array__`) is sent to other machines as it is, and becomes an array there.
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
    """Mark a function as a sum over an agent's rows, of which it may be given some at a time, and the prior.

    It is called with some of the rows and as large a part of the prior, and what it returns is added up: so are values
    and derivatives of the potential.
    """
    vars(function)[_MARK] = True
    return function


def sums_rows(function: Callable[..., PyTree]) -> bool:
    """Whether a function is marked as a sum over rows."""
    return getattr(function, _MARK, False)


def parts_of(rows: int) -> int:
    """Parts of so many rows of an agent, of which functions that are marked as sums over rows are given one at a time.

    Large ones: where few rows at a time are multiplied, threads wait for each other more than they multiply.
    """
    return ceil(rows * AT_ONCE / _IN_CACHE)


class TotalsHere:
    """Totals over agents whose shards lie in this process.

    Parameters
    ----------
    potential, shards
        A posterior's, in the user's parameters: its `potential` and what `stacked` returns.
    parts
        Parts of as many rows each that shards are taken in where functions allow that; memory then holds what one part
        is worth, which the processor's caches may hold too.
    """

    def __init__(self, potential: Potential, shards: Shard, parts: int = 1) -> None:
        self.potential, self.shards, self.parts = potential, shards, parts

    def __call__(self, function: Callable[..., PyTree], *arguments: Any, **options: Any) -> PyTree:
        """The sum over these agents."""
        return self._made(_total, function, arguments, 0, **options)

    def each(self, function: Callable[..., PyTree], *arguments: Any, **options: Any) -> PyTree:
        """What is summed: these agents' own, on a leading axis."""
        return self._made(_each, function, arguments, 1, **options)

    def _made(
        self,
        program: Program,
        function: Callable[..., PyTree],
        arguments: tuple[Any, ...],
        axis: int,
        **options: Any,
    ) -> PyTree:
        """The sum of what a program says of each piece; what it says of many points has them on this axis."""
        parts = self.parts if sums_rows(function) else 1
        found: PyTree = None
        for shards in self._chunks(function):
            at_once, together = _at_once(shards, parts, **options)
            said = partial(program.of(at_once), function, together, parts, self.potential, shards)
            held = sum(np.size(leaf) for leaf in jax.tree.leaves(shards.rows))
            spread = at_once * held >= _WORTH_THREADS
            some = self._over_points(said, arguments, axis, spread, **{**options, "at_once": at_once})
            found = some if found is None else jax.tree.map(np.add, found, some)
        return found

    def _chunks(self, function: Callable[..., PyTree]) -> Iterator[Shard]:
        """What the rows come in, for a function that is given all chunks: here one."""
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
        """What a program says, of some points at a time, which become one axis again; `spread` over threads."""
        if points is None:
            return jax.tree.map(np.asarray, program(coordinates, None, arguments))
        points = np.asarray(points)
        blocks = -(-len(points) // at_once)
        # as many in the last block as in any other: one program does for all
        rest = np.repeat(points[-1:], blocks * at_once - len(points), axis=0)
        parts = np.concatenate([points, rest]).reshape(blocks, at_once, -1)

        def at(part: np.ndarray) -> PyTree:
            return jax.tree.map(np.asarray, program(coordinates, part, arguments))

        # it returns when it is compiled, before its numbers are there
        first = program(coordinates, parts[0], arguments)
        workers = ThreadPoolExecutor(_AT_A_TIME)
        found: list[PyTree] = [first]
        try:
            for done, one in enumerate((workers.map if spread else map)(as_here(at), parts[1:]), 1):
                step(done, blocks)
                let_through()
                found.append(one)
        finally:
            # none of them runs on after an interrupt
            workers.shutdown(cancel_futures=True)
            jax.block_until_ready(first)

        def joined(*leaves: Any) -> np.ndarray:
            whole = np.concatenate([np.asarray(leaf) for leaf in leaves], axis=axis)
            return whole[(slice(None),) * axis + (slice(len(points)),)]

        return jax.tree.map(joined, *found)


def _at_once(
    shards: Shard, parts: int, *, points: ArrayLike | None = None, at_once: int = AT_ONCE, **_: Any
) -> tuple[int, int]:
    """Points at which a piece of the rows is evaluated at a time, and of how many agents a piece has some rows."""
    agents = shards.size.shape[0]
    rows = max([1, *(leaf.shape[1] // parts for leaf in jax.tree.leaves(shards.rows) if leaf.ndim > 1)])
    if points is None:
        at_once = 1
    elif rows * parts * agents * AT_ONCE >= _MANY_PIECES * _IN_CACHE:
        at_once = min(at_once, 2 ** ceil(log2(max(1, len(np.asarray(points))))))
    at_once = min(at_once, 2 ** floor(log2(max(1.0, _NUMBERS / rows))))
    fit = max(1, _IN_CACHE // (rows * at_once))
    # pieces alike
    return at_once, ceil(agents / ceil(agents / fit))


class ConsensusTotals:
    """Totals by gossip: each agent averages with its neighbours until all agree to a precision.

    What comes back is the sum as the first agent has it.

    Parameters
    ----------
    here
        All agents.
    averaging
        How they agree.

    Attributes
    ----------
    apart
        How far agents' own sums of the first number at points were apart, at most, when they were asked for last: of F,
        how far their log densities are.
    """

    def __init__(self, here: TotalsHere, averaging: Averaging) -> None:
        self.here, self.averaging, self.apart = here, averaging, 0.0

    def __call__(self, function: Callable[..., PyTree], *arguments: Any, **options: Any) -> PyTree:
        """The sum, as the first agent has it."""

        def agreed(leaf: np.ndarray) -> np.ndarray:
            own = np.asarray(leaf, np.float64)
            sums = self.averaging.sums(own.reshape(len(own), -1)).reshape(own.shape)
            if options.get("points") is not None:
                self.apart = float(np.ptp(sums.reshape(*sums.shape[:2], -1)[..., 0], axis=0).max())
            return sums[0].astype(leaf.dtype)

        return jax.tree.map(agreed, self.here.each(function, *arguments, **options))


class MaskedTotals:
    """Totals of words that each agent masks before anybody else has them; see `masks`.

    Sums miss the exact ones by at most num_agents * 2^-65 and by rounding to double precision. They come back as
    doubles where these are enabled, else in the types that the function returns.

    Parameters
    ----------
    here
        The agents whose data lies in this process.
    masks
        Theirs, in the same order; they have agreed on keys with those of all other agents.
    gathered
        `gathered(count, words)`: the sum over all processes of their words, of the sum with this number; None: there is
        no other process.

    Raises
    ------
    ArithmeticError
        When called: some agents have numbers that are NaN, infinite, or not below 2^62 / num_agents in size. Who that
        is is not known, and nothing of the sum is.
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
        """The sum with a number, which no sum before may have had; None: the next one."""
        leaves: list[np.ndarray]
        treedef: Any
        leaves, treedef = jax.tree.flatten(self.here.each(function, *arguments, **options))
        num_agents = self.masks[0].num_agents
        plain = [encoded([leaf[row] for leaf in leaves], num_agents) for row in range(len(self.masks))]
        # sums of several threads, one after another
        with self._lock:
            self._count = self._count + 1 if count is None else count
            words = added(*(own.masked(self._count, one) for own, one in zip(self.masks, plain, strict=True)))
            if self._gathered is not None:
                words = self._gathered(self._count, words)
        shapes = [jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) for leaf in leaves]
        return treedef.unflatten(decoded(words, shapes, num_agents))


def masked_here(here: TotalsHere, num_agents: int) -> MaskedTotals:
    """Masked totals over agents that all have their data in this process, each with keys of its own."""
    masks = [Masks(agent, num_agents) for agent in range(num_agents)]
    publics = [one.public for one in masks]
    for one in masks:
        one.agree(publics)
    return MaskedTotals(here, masks)


_program = partial(Program, static=("function", "together", "parts"))


@_program
def _total(function: Callable[..., PyTree], together: int, parts: int, *arguments: Any) -> PyTree:
    """The sum over agents of what a function says of them; arguments as `_over_pieces` has them."""

    def add(sums: PyTree, first: Array, found: PyTree) -> PyTree:
        return jax.tree.map(lambda total, leaf: total + leaf.sum(axis=0), sums, found)

    return _over_pieces(add, (), function, together, parts, *arguments)


@_program
def _each(
    function: Callable[..., PyTree], together: int, parts: int, potential: Potential, shards: Shard, *arguments: Any
) -> PyTree:
    """What a function says of each agent, on a leading axis."""

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
    """What a function says of pieces of the data, so many agents and one of so many parts of their rows each, added up.

    `add(sums, first, found)` adds what is found of the agents from the first one on, on a leading axis; sums have
    `kept` leading axes in its place.
    """
    num_agents = shards.size.shape[0]
    divided = potential.divided(parts)
    moved = divided if coordinates is None else divided.within(coordinates)

    def one(shard: Shard) -> PyTree:
        own = shard if coordinates is None else place_shard(shard, coordinates)
        if points is None:
            return function(moved, own, *arguments)
        return jax.vmap(lambda x: function(moved, own, x, *arguments))(points)

    # traced once, though it is asked for its shapes too
    @jax.jit
    def of(piece: Array) -> tuple[Array, PyTree]:
        # the last piece has as many agents as any other, and those that were counted before count as nothing
        begun = piece // parts * together
        first = jnp.minimum(begun, num_agents - together)
        new = first + np.arange(together) >= begun
        found = _of_each(one, _some(shards, first, together, piece % parts, parts))

        def counted(leaf: Array) -> Array:
            # truths are counted, and whole numbers as wide as their sum
            wide = leaf.astype(jax.eval_shape(jnp.sum, leaf).dtype)
            return jnp.where(new.reshape(-1, *(1,) * (leaf.ndim - 1)), wide, 0)

        return first, jax.tree.map(counted, found)

    def more(piece: Array, sums: PyTree) -> PyTree:
        return add(sums, *of(jax.lax.convert_element_type(piece, jnp.int32)))

    shapes = jax.eval_shape(of, jax.ShapeDtypeStruct((), jnp.int32))[1]
    nothing = jax.tree.map(lambda leaf: jnp.zeros(kept + leaf.shape[1:], leaf.dtype), shapes)
    return jax.lax.fori_loop(0, ceil(num_agents / together) * parts, more, nothing)


def _of_each(function: Callable[[Shard], PyTree], shards: Shard) -> PyTree:
    """A function of each agent, on a leading axis; products for one alone take longer where they have that axis too."""
    if shards.size.shape[0] > 1:
        return jax.vmap(function)(shards)
    alone = function(jax.tree.map(lambda leaf: leaf[0], shards))
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], alone)


def _some(shards: Shard, first: Array, agents: int, part: Array, parts: int) -> Shard:
    """A part of the rows of so many agents from the first on."""
    here = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, first, agents), shards)
    if parts == 1:
        return here
    rows = jax.tree.leaves(shards.rows)[0].shape[1] // parts

    def cut(leaf: Array) -> Array:
        return jax.lax.dynamic_slice_in_dim(leaf, part * rows, rows, axis=1)

    return here._replace(rows=jax.tree.map(cut, here.rows), size=jnp.clip(here.size - part * rows, 0, rows))
