"""Coarse answers: each agent adds Gaussian noise to its numbers and rounds them before they enter a sum.

Importance weights forgive noise. If agent k adds noise of sd s_k to f_k and rounds the result to multiples of h_k, then
E exp(-noise) = exp((s_k^2 + h_k^2 / 12) / 2) at every position. Each agent adds this exponent to its potential, so that
the mean weight is right everywhere. Derivatives only shape proposals, and get noise without such a correction.

All sds and grids follow from public facts: the number of agents, of rows and of parameters, and the points of the sum.
A number is an integer of a public width modulo 2^bits. An agent clips it to +-(2^(bits - 1) - 1) / num_agents steps of
its grid, so that no sum wraps.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import reduce
from math import floor, log10
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from jaxtyping import Bool, Float, Int64

from ..base.counters import Normals
from .coordinates import Coordinates
from .masks import Masks
from .totals import Together

# Largest sd of the noise in a sum of potentials near the mode: 10% of the effective draws.
_TOTAL = 0.325
# Growth of the noise: its share of a Gaussian's rise beyond the radius of near points.
_FAR = 0.1
# Radius of near points minus the square root of the dimension, in standard deviations.
_NEAR = 3.0
# Grid of values relative to their noise.
_STEP = 0.5
# Noise of an agent's potential at the origin, relative to other positions: its error is an error of the evidence.
_AT_ORIGIN = 0.05
# Noise in a sum of gradients at points, per coordinate, and its largest share of the radius per root of the dimension.
_GRADIENT, _GRADIENT_FAR = 0.2, 0.1
# Noise in the gradient of a summed expansion, all coordinates together, and most per coordinate.
_EXPANDED, _EXPANDED_MOST = 0.3, 0.15
# Noise in a number of a summed Hessian times the dimension, and its largest size.
_HESSIAN, _HESSIAN_MOST = 0.15, 0.05
# Noise in a summed third derivative times dim^1.5, and its largest size.
_THIRD, _THIRD_MOST = 0.3, 0.1
# Noise in a sum of quadrature errors.
_QUADRATURE = 1e-3
# Range of a width relative to the rise of a Gaussian and of an agent whose rows differ from the others.
_ROOM = 8.0
# Rise of an agent's potential at a far position, relative to a Gaussian's over all agents, above which it is not shown.
_SHOWN = 2.0
# Radius up to which rows of an agent that differ from the others count in this rise, relative to that of near points.
_UNLIKE = 2.0
# Least range of values.
_RISE = 200.0
# Least range in steps of the grid.
_LEVELS = 500
# Largest width of a number in bytes.
_WIDEST = 4
# Rise of an agent's potential above its value at the origin from which on a position has no mass.
_MASSLESS = 1e6
# A sum of potentials at a position at which an agent's number is clipped.
_NOWHERE = 1e12

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "coarse_kind"
# Sums the messages of all agents, given the coder of their numbers, and the coder of these numbers and the flag.
Sender = Callable[["Coder", "Coder"], np.ndarray]


def coarse(kind: str) -> Callable[[F], F]:
    """Mark a function with the kind of its numbers: "value", "slope", "expansion", "jet", "error" or "private"."""

    def marked(function: F) -> F:
        vars(function)[_MARK] = kind
        return function

    return marked


def sigma(num_agents: int) -> float:
    """The sd of an agent's noise in its potential at a near point: .325 / sqrt(num_agents), rounded down to 2 digits.

    It depends on nothing but the number of agents, as an sd that depends on rows would reveal something of them.
    """
    exact = _TOTAL / num_agents**0.5
    digits = 1 - floor(log10(exact))
    return floor(exact * 10**digits) / 10**digits


class Coder(NamedTuple):
    """Noise, grid and width of the numbers in an agent's message.

    Parameters
    ----------
    num_agents
        Number of agents of the sum.
    first
        Index of the first number of each number's point, shape (number,).
    noise, grid
        Sd of an agent's noise and rounding grid of each number, shape (number,), > 0.
    width
        Bytes of each number, 1 to 4, shape (number,).
    added
        Correction that each agent adds to its numbers, shape (number,).
    value
        Whether each number is a value of the potential, shape (number,).
    near
        Whether a clipped number is an error, shape (number,). Values clipped from below are always an error.
    shown
        Largest size of a number that is shown, shape (number,), inf if only its width limits it. At a position where F
        is steep, a small change of a row changes it by more than any noise, so an agent shows nothing but that.
    """

    num_agents: int
    first: np.ndarray
    noise: np.ndarray
    grid: np.ndarray
    width: np.ndarray
    added: np.ndarray
    value: np.ndarray
    near: np.ndarray
    shown: np.ndarray

    @property
    def most(self) -> np.ndarray:
        """The largest integer of an agent, shape (number,): all agents together cannot exceed half the modulus."""
        return (np.left_shift(1, 8 * self.width - 1) - 1) // self.num_agents

    def noisy(self, part: Float[np.ndarray, " number"], generator: Normals) -> np.ndarray:
        """An agent's numbers with correction and noise. A number that is not finite is `inf`."""
        with np.errstate(over="ignore", invalid="ignore"):
            found = part + self.added + self.noise * generator.standard_normal(part.shape)
        return np.where(np.isfinite(found), found, np.inf)

    def rounded(self, noisy: Float[np.ndarray, " number"]) -> tuple[Int64[np.ndarray, " number"], bool]:
        """Noisy numbers as integers mod 2^(8 width), and whether one was clipped that must not be."""
        levels, most = np.rint(noisy / self.grid), self.most
        low, high = levels < -most, levels > most
        # a position without mass is clipped on purpose, also near the mode
        massless = ((self.added > 0.0) & (noisy > _MASSLESS))[self.first]
        matters = self.near & ~massless
        high &= matters & (noisy < _NOWHERE / 10.0)
        clipped = bool((low & (self.value | matters)).any() or high.any())
        # values without their gradients would look like another mode
        hidden = np.where(self.value, most, 0.0)
        levels = np.where(self._hidden(noisy), hidden, np.clip(levels, -most, most))
        return levels.astype(np.int64) & self.mask, clipped

    def unclipped(self, noisy: Float[np.ndarray, " number"]) -> Bool[np.ndarray, " number"]:
        """Whether the integer of each noisy number shows the number."""
        return ~self._hidden(noisy) & (np.abs(np.rint(noisy / self.grid)) < self.most)

    def _hidden(self, noisy: Float[np.ndarray, " number"]) -> Bool[np.ndarray, " number"]:
        """Whether each number is of a point whose value is sent as clipped, and the other numbers as 0."""
        size = np.where(self.value, noisy, np.abs(noisy))
        high = (np.rint(size / self.grid) > self.most) | (size > self.shown)
        hidden = np.zeros(noisy.size, bool)
        hidden[self.first[high]] = True
        return np.asarray(hidden[self.first] & self.value[self.first])

    def message(self, noisy: Float[np.ndarray, " number"]) -> Int64[np.ndarray, " number"]:
        """Noisy numbers as integers mod 2^(8 width), then 1 if one was clipped that must not be, else 0."""
        levels, clipped = self.rounded(noisy)
        return np.append(levels, int(clipped))

    def encoded(self, part: Float[np.ndarray, " number"], generator: Normals) -> Int64[np.ndarray, " number"]:
        """An agent's numbers as integers mod 2^(8 width)."""
        return self.rounded(self.noisy(part, generator))[0]

    @property
    def mask(self) -> np.ndarray:
        """The largest integer of each width, shape (number,)."""
        return np.left_shift(1, 8 * self.width) - 1

    def packed(self, numbers: Int64[np.ndarray, " number"]) -> np.ndarray:
        """Integers as bytes, `width` bytes of each, shape (byte,)."""
        return np.ascontiguousarray(numbers, "<i8").view(np.uint8).reshape(-1, 8)[self._used]

    def unpacked(self, found: np.ndarray) -> Int64[np.ndarray, " number"]:
        """The inverse of `packed`. Raises `ValueError` for another number of bytes."""
        used = self._used
        if found.shape != (used.sum(),) or found.dtype != np.uint8:
            raise ValueError(f"a message has {found.size} bytes, not {used.sum()}")
        whole = np.zeros(used.shape, np.uint8)
        whole[used] = found
        return whole.view("<i8")[:, 0]

    @property
    def _used(self) -> np.ndarray:
        """Which of the 8 bytes of a number travel, shape (number, 8)."""
        return np.arange(8) < self.width[:, None]

    def added_up(self, parts: Sequence[Int64[np.ndarray, " number"]]) -> Int64[np.ndarray, " number"]:
        """The sum of integers mod 2^(8 width)."""
        return np.sum(parts, axis=0, dtype=np.int64) & self.mask

    def decoded(self, total: Int64[np.ndarray, " number"]) -> Float[np.ndarray, " number"]:
        """The sum of the agents' numbers.

        A value above half the range of one agent is 1e12, as an agent may have clipped its number there.
        """
        half = np.left_shift(1, 8 * self.width - 1)
        levels = np.where(total >= half, total - 2 * half, total)
        return np.where(self.value & (levels > self.most // 2), _NOWHERE, levels * self.grid)

    def beside(self, other: Coder) -> Coder:
        """A coder of the numbers of both, in this order."""
        pairs: dict[str, Any] = {
            name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in _OF_NUMBERS
        }
        return self._replace(first=np.append(self.first, self.first.size + other.first), **pairs)

    def wider(self) -> Coder:
        """The coder with wider numbers. Raises `ArithmeticError` if all of them have the largest width."""
        if (self.width == _WIDEST).all():
            raise ArithmeticError(
                f"agents have numbers that coarse answers of {_WIDEST} bytes cannot carry: scale the data, or sample "
                "without coarse answers"
            )
        return self._replace(width=np.minimum(self.width + 1, _WIDEST))


# Fields of a coder with one value for each number.
_OF_NUMBERS = ("noise", "grid", "width", "added", "value", "near", "shown")
# The coder of a flag. It is wide, as sums of masks that do not cancel must not look like a number of agents.
FLAG = Coder(
    num_agents=1,
    first=np.zeros(1, int),
    noise=np.zeros(1),
    grid=np.ones(1),
    width=np.full(1, _WIDEST),
    added=np.zeros(1),
    value=np.zeros(1, bool),
    near=np.zeros(1, bool),
    shown=np.full(1, np.inf),
)


class Noise:
    """The noise of all sums of a run, a function of public facts only.

    Parameters
    ----------
    num_agents, dim, rows
        Number of agents, of parameters and of rows of all agents.

    Attributes
    ----------
    sigma
        Sd of an agent's noise in its potential at near points.
    origins
        F at the origin of coordinates, by the bytes of the origin. The first one has little noise.
    """

    def __init__(self, num_agents: int, dim: int, rows: int) -> None:
        self.num_agents, self.dim, self.rows = num_agents, dim, rows
        self.sigma, self.origins = sigma(num_agents), dict[bytes, float]()
        self._place: Coordinates | None = None
        self._regions: list[tuple[np.ndarray, np.ndarray]] = []

    @property
    def of_origin(self) -> float:
        """Sd of the noise in F at the first origin, which shifts the log evidence."""
        return _AT_ORIGIN * self.sigma * self.num_agents**0.5

    def at_origin(self, place: Coordinates) -> float:
        """F at the origin of coordinates in which points have been evaluated."""
        return self.origins[_key(place)]

    def know(self, place: Coordinates, regions: Sequence[tuple[np.ndarray, np.ndarray]]) -> None:
        """Measure radii from these regions of mass too: means (dim,) and factors (dim, dim) in coordinates `place`."""
        self._place, self._regions = place, list(regions)

    def radius(self, place: Coordinates | None, points: Float[np.ndarray, "point dim"]) -> np.ndarray:
        """Distance of points from the nearest known region of mass, in its standard deviations, shape (point,).

        Without coordinates the distance is unknown and 0 is returned.
        """
        if place is None:
            return np.zeros(len(points))
        found = np.linalg.norm(points, axis=1)
        if self._regions and self._place is not None and _key(place) == _key(self._place):
            for mean, factor in self._regions:
                found = np.minimum(found, np.linalg.norm(np.linalg.solve(factor, (points - mean).T), axis=0))
        return found

    def value(self, radius: np.ndarray) -> np.ndarray:
        """Sd of the noise in F at points, shape (point,)."""
        return np.asarray(self._value(radius) * (1.0 + _STEP**2 / 12.0) ** 0.5 * self.num_agents**0.5)

    def correction(self, radius: np.ndarray) -> np.ndarray:
        """What all agents together add to F at points, shape (point,), half the variance of the noise."""
        return np.asarray(np.square(self.value(radius)) / 2.0)

    def gradient(self, radius: np.ndarray) -> np.ndarray:
        """Sd of the noise in each coordinate of the gradient of F at points, shape (point,)."""
        return np.asarray(self._gradient(radius) * (1.0 + 1.0 / 12.0) ** 0.5)

    @property
    def expanded(self) -> tuple[float, float, float]:
        """Sds of the noise in a number of the gradient, of the Hessian and of the third derivatives of an expansion."""
        gradient = min(_EXPANDED / self.dim**0.5, _EXPANDED_MOST)
        return gradient, min(_HESSIAN / self.dim, _HESSIAN_MOST), min(_THIRD / self.dim**1.5, _THIRD_MOST)

    @property
    def near(self) -> float:
        """Radius of near points."""
        return self.dim**0.5 + _NEAR

    def expanded_gradient(self, radius: np.ndarray) -> np.ndarray:
        """Sd of the noise in each coordinate of the gradient of an expansion at points, before rounding, (point,)."""
        return self.expanded[0] * self._times(radius)

    @property
    def blur(self) -> float:
        """About the largest eigenvalue of a symmetric matrix of the noise in a Hessian."""
        return self.expanded[1] * max(2.0 * self.dim**0.5, 3.0)

    def _times(self, radius: np.ndarray) -> np.ndarray:
        """Noise of the derivatives of an expansion, relative to that of near points."""
        return np.maximum(1.0, _short(radius / self.near))

    def _value(self, radius: np.ndarray) -> np.ndarray:
        """Sd of an agent's noise in its potential."""
        beyond = np.maximum(0.0, np.square(radius) - self.near**2)
        return np.maximum(self.sigma, _short(_FAR * beyond / 2.0 / self.num_agents))

    def _gradient(self, radius: np.ndarray) -> np.ndarray:
        """Sd of the noise in each coordinate of a summed gradient, before rounding."""
        return np.maximum(_GRADIENT, _short(_GRADIENT_FAR * radius / self.dim**0.5))

    def coder(self, kind: str, radius: np.ndarray) -> Coder:
        """The coder of a sum at points of these radii, shape (point,), with all numbers of a point in a row."""
        dim, count, root = self.dim, len(radius), self.num_agents**0.5
        expands = kind in ("expansion", "jet")
        gradients = dim if expands or kind == "slope" else 0
        hessians = dim * (dim + 1) // 2 if expands else 0
        thirds = hessians * (dim + 2) // 3 if kind == "jet" else 0
        noise = np.empty((count, 1 + gradients + hessians + thirds))
        of_gradient, third = slice(1, 1 + gradients), slice(1 + gradients + hessians, None)
        noise[:, 0] = _QUADRATURE / root if kind == "error" else self._value(radius)
        if kind == "slope":
            noise[:, of_gradient] = self._gradient(radius)[:, None] / root
        if expands:
            noise[:, of_gradient] = self.expanded_gradient(radius)[:, None] / root
            noise[:, 1 + gradients :] = self.expanded[1] * self._times(radius)[:, None] / root
            noise[:, third] = self.expanded[2] / root
        grid = noise.copy()
        grid[:, 0] *= _STEP
        # of a Gaussian, and of an agent whose rows are unlike the others: sqrt(rows) / num_agents sds per row
        unlike = self.rows**0.5 / self.num_agents
        slope = unlike + radius
        need = np.empty_like(noise)
        need[:, 0] = np.maximum(_ROOM * slope * np.maximum(radius, 1.0), _RISE if kind != "error" else 1.0)
        need[:, 1:] = _ROOM * slope[:, None]
        need[:, third] = _ROOM
        bits = np.log2(2.0 * self.num_agents * np.maximum(need / grid, _LEVELS).max(axis=0))
        width = np.clip(np.ceil((bits + 0.1) / 8.0), 1, _WIDEST).astype(np.int64)
        if expands:
            # values of expansions are not relative to the value at an origin
            width[0], width[1 : third.start] = _WIDEST, np.maximum(width[1 : third.start], 3)
        added = np.zeros_like(noise)
        if kind in ("value", "slope"):
            # expansions only shape proposals
            added[:, 0] = (np.square(noise[:, 0]) + np.square(grid[:, 0]) / 12.0) / 2.0
        value = np.broadcast_to((np.arange(noise.shape[1]) == 0) & (kind != "error"), noise.shape)
        near = np.broadcast_to((radius < self.near)[:, None], noise.shape)
        rise = _SHOWN / 2.0 * np.square(radius) + _ROOM * unlike * np.minimum(radius, _UNLIKE * self.near)
        shown = np.where(near, np.inf, rise[:, None])
        shown[:, of_gradient] *= 2.0 / np.maximum(radius, 1.0)[:, None]
        if expands:
            # values of expansions have no origin
            shown[:, 0] = np.inf
        return Coder(
            self.num_agents,
            np.repeat(np.arange(count) * noise.shape[1], noise.shape[1]),
            noise.ravel(),
            grid.ravel(),
            np.broadcast_to(width, noise.shape).ravel(),
            added.ravel(),
            value.ravel(),
            near.ravel(),
            shown.ravel(),
        )

    def coder_of_origin(self) -> Coder:
        """The coder of the potential at an origin: little noise at the first one. Its noise is not corrected."""
        noise, no = np.array([self.sigma * (1.0 if self.origins else _AT_ORIGIN)]), np.zeros(1, bool)
        width, shown = np.array([_WIDEST]), np.full(1, np.inf)
        return Coder(self.num_agents, np.zeros(1, int), noise, noise * _STEP, width, np.zeros(1), no, ~no, shown)


def _short(x: np.ndarray) -> np.ndarray:
    """Numbers rounded to 9 binary digits. Radii of two machines differ in the last digits, and grids must not."""
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.rint(mantissa * 512.0) / 512.0, exponent)


def secret_generator() -> np.random.Generator:
    """A generator of noise, seeded by the operating system."""
    return np.random.default_rng(int.from_bytes(os.urandom(32), "big"))


class Each(Protocol):
    """Computes the agents' summands, on a leading axis."""

    def each(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """The summands."""
        ...


class CoarseTotals:
    """Totals of numbers to which each agent adds noise and which it rounds.

    Values and slopes in coordinates are relative to each agent's own potential at their origin. That potential travels
    once, in the first message that needs it. If an agent's number is clipped where it must not be, a flag in its
    message asks all agents for wider integers with the same noise.

    Parameters
    ----------
    here
        Totals over all agents.
    noise
        The noise of the run.
    generators
        One for each agent. None: seeded by the operating system. Pass them in tests only.
    masks
        The masks of the agents after key agreement. Empty: messages are not masked.

    Attributes
    ----------
    sent
        Bytes of one agent's messages in the last sum.
    sums
        Messages of each agent in the last sum.

    Raises
    ------
    ArithmeticError
        When called: the numbers of an agent do not fit into the widest integers, or the function has no coarse answers.
    """

    def __init__(
        self,
        here: Each,
        noise: Noise,
        generators: Sequence[Normals] | None = None,
        masks: Sequence[Masks] = (),
    ) -> None:
        self.here, self.noise, self.sent, self.sums = here, noise, 0, 1
        made: list[Normals]
        made = [secret_generator() for _ in range(noise.num_agents)] if generators is None else list(generators)
        self._generators, self._masks, self._count = made, masks, 0

    def __call__(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> np.ndarray:
        """The sum over all agents.

        In the options, `coder` stands for the coder that follows from the points, and `radii`, shape (point,), for
        their distances.
        """
        points, several = options.pop("points", None), isinstance(function, Together)
        given: Coder | None = options.pop("coder", None)
        known: np.ndarray | None = options.pop("radii", None)
        functions = function.functions if isinstance(function, Together) else (function,)
        kinds = [getattr(one, _MARK, "") for one in functions]
        if points is None or not all(kinds):
            raise ArithmeticError(f"{getattr(function, '__name__', 'this function')} has no coarse answers")
        place: Coordinates | None = options.get("coordinates")
        points = points if several else (points,)
        relative = tuple(kind in ("value", "slope") and place is not None for kind in kinds)
        radii = (
            tuple(self.noise.radius(place, np.asarray(some, np.float64)) for some in points)
            if known is None
            else (known,)
        )
        coders = [given or self.noise.coder(kind, radius) for kind, radius in zip(kinds, radii, strict=True)]
        needs_origin = place is not None and any(relative) and _key(place) not in self.noise.origins
        coder = reduce(Coder.beside, [*coders, self.noise.coder_of_origin()] if needs_origin else coders)
        total = self._summed(coder, Question(functions, arguments, points, options, radii, relative, needs_origin))
        if needs_origin:
            assert place is not None
            self.noise.origins[_key(place)] = float(total[-1])
        found, begin = list[np.ndarray](), 0
        for kind, own, some, is_relative in zip(kinds, coders, points, relative, strict=True):
            part = total[begin : begin + own.noise.size].reshape(len(some), -1)
            if kind in ("slope", "expansion", "jet"):
                part[:, 1:] = np.where(part[:, :1] < _NOWHERE, part[:, 1:], 0.0)
            if is_relative:
                assert place is not None
                part[:, 0] += self.noise.at_origin(place)
            found.append(part)
            begin += own.noise.size
        if several:
            return np.concatenate([part.ravel() for part in found])
        return found[0][:, 0] if found[0].shape[1] == 1 else found[0]

    def _summed(self, coder: Coder, question: Question) -> np.ndarray:
        """The decoded sums, (number,). If an agent's numbers do not fit, all send wider ones with the same noise."""
        self.sent, self.sums, wide, send = 0, 0, coder, self._sender(coder, question)
        while True:
            whole = wide.beside(FLAG)
            summed = send(wide, whole)
            self.sent += int(whole.width.sum())
            self.sums += 1
            # the last number counts the agents with clipped numbers
            if summed[-1] == 0:
                return wide.decoded(summed[:-1])
            if summed[-1] > self.noise.num_agents:
                raise RuntimeError("the masks did not cancel: agents have different keys, or numbers of another sum")
            wide = wide.wider()

    def _sender(self, coder: Coder, question: Question) -> Sender:
        """The function that sums the agents' messages of a question, whose noise follows `coder`."""
        pairs = zip(question.answered(self.here), self._generators, strict=True)
        noisy = [coder.noisy(part, own) for part, own in pairs]

        def send(wide: Coder, whole: Coder) -> np.ndarray:
            messages = [wide.message(one) for one in noisy]
            self._count += 1
            if self._masks:
                messages = [
                    own.masked_integers(self._count, message, whole.mask)
                    for own, message in zip(self._masks, messages, strict=True)
                ]
            return whole.added_up(messages)

        return send


class Question(NamedTuple):
    """Functions that agents evaluate, each at points of its own.

    Parameters
    ----------
    functions, arguments, points, options
        As in `Totals`, with one array of points for each function.
    radii
        Distances of the points of each function, from which their noise follows, see `Noise.radius`.
    relative
        Whether a function's potentials are relative to each agent's own potential at the origin of the coordinates.
    needs_origin
        Whether this potential is sent too.
    """

    functions: tuple[Callable[..., Any], ...]
    arguments: tuple[Any, ...]
    points: tuple[Any, ...]
    options: dict[str, Any]
    radii: tuple[np.ndarray, ...]
    relative: tuple[bool, ...]
    needs_origin: bool

    def answered(self, here: Each) -> np.ndarray:
        """Each agent's numbers, function by function, then its potential at the origin if needed, (agent, number)."""
        found, base = list[np.ndarray](), None
        for function, some, is_relative in zip(self.functions, self.points, self.relative, strict=True):
            points = np.asarray(some, np.float64)
            asked = np.concatenate([np.zeros((1, points.shape[1])), points]) if is_relative else points
            numbers = np.asarray(here.each(function, *self.arguments, points=asked, **self.options), np.float64)
            numbers = numbers.reshape(*numbers.shape[:2], -1).copy()
            if is_relative:
                base = numbers[:, 0, 0].copy() if base is None else base
                numbers = numbers[:, 1:]
                numbers[..., 0] -= base[:, None]
            found.append(numbers.reshape(len(numbers), -1))
        if self.needs_origin:
            assert base is not None
            found.append(base[:, None])
        return np.concatenate(found, axis=1)


def _key(place: Coordinates) -> bytes:
    """The origin of coordinates as bytes."""
    return np.asarray(place.origin, np.float64).tobytes()
