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
from math import floor, log10
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from jaxtyping import Float, Int64

from ..base.counters import Normals
from .coordinates import Coordinates
from .masks import Masks

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
# Noise in a sum of quadrature errors.
_QUADRATURE = 1e-3
# Range of a width relative to the rise of a Gaussian and of an agent whose rows differ from the others.
_ROOM = 8.0
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


def coarse(kind: str) -> Callable[[F], F]:
    """Mark a function with the kind of its numbers: "value", "slope", "expansion" or "error"."""

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
    per_point
        Numbers of each point, of which the first is the value.
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
    """

    num_agents: int
    per_point: int
    noise: np.ndarray
    grid: np.ndarray
    width: np.ndarray
    added: np.ndarray
    value: np.ndarray
    near: np.ndarray

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
        is_relative = self.added[:: self.per_point] > 0.0
        massless = np.repeat(is_relative & (noisy[:: self.per_point] > _MASSLESS), self.per_point)
        matters = self.near & ~massless
        high &= matters & (noisy < _NOWHERE / 10.0)
        clipped = bool((low & (self.value | matters)).any() or high.any())
        levels = np.clip(levels, -most, most).reshape(-1, self.per_point)
        # values without their gradients would look like another mode
        lost = ((low | (noisy / self.grid > most)) & ~self.value).reshape(levels.shape).any(axis=1)
        levels[:, 0] = np.where(lost & self.value[:: self.per_point], most[:: self.per_point], levels[:, 0])
        return levels.ravel().astype(np.int64) & self.mask, clipped

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
        """A coder of the numbers of both, in this order. Its messages are packed and added, not decoded."""
        pairs: dict[str, Any] = {
            name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in _OF_NUMBERS
        }
        return self._replace(per_point=1, **pairs)

    def wider(self) -> Coder:
        """The coder with wider numbers. Raises `ArithmeticError` if all of them have the largest width."""
        if (self.width == _WIDEST).all():
            raise ArithmeticError(
                f"agents have numbers that coarse answers of {_WIDEST} bytes cannot carry: scale the data, or sample "
                "without coarse answers"
            )
        return self._replace(width=np.minimum(self.width + 1, _WIDEST))


# Fields of a coder with one value for each number.
_OF_NUMBERS = ("noise", "grid", "width", "added", "value", "near")
# The coder of a flag. It is wide, as sums of masks that do not cancel must not look like a number of agents.
FLAG = Coder(1, 1, np.zeros(1), np.ones(1), np.full(1, _WIDEST), np.zeros(1), np.zeros(1, bool), np.zeros(1, bool))


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
    def expanded(self) -> tuple[float, float]:
        """Sds of the noise in a coordinate of the gradient and in a number of the Hessian of an expansion."""
        hessian = min(_HESSIAN / self.dim, _HESSIAN_MOST)
        return min(_EXPANDED / self.dim**0.5, _EXPANDED_MOST), hessian

    def _value(self, radius: np.ndarray) -> np.ndarray:
        """Sd of an agent's noise in its potential."""
        beyond = np.maximum(0.0, np.square(radius) - (self.dim**0.5 + _NEAR) ** 2)
        return np.maximum(self.sigma, _short(_FAR * beyond / 2.0 / self.num_agents))

    def _gradient(self, radius: np.ndarray) -> np.ndarray:
        """Sd of the noise in each coordinate of a summed gradient, before rounding."""
        return np.maximum(_GRADIENT, _short(_GRADIENT_FAR * radius / self.dim**0.5))

    def coder(self, kind: str, radius: np.ndarray) -> Coder:
        """The coder of a sum at points of these radii, shape (point,), with all numbers of a point in a row."""
        dim, count = self.dim, len(radius)
        gradients = {"slope": dim, "expansion": dim}.get(kind, 0)
        hessians = dim * (dim + 1) // 2 if kind == "expansion" else 0
        noise, root = np.empty((count, 1 + gradients + hessians)), self.num_agents**0.5
        noise[:, 0] = {"error": _QUADRATURE / root, "expansion": self.sigma}.get(kind, self._value(radius))
        if kind == "slope":
            noise[:, 1:] = self._gradient(radius)[:, None] / root
        if kind == "expansion":
            gradient, hessian = self.expanded
            further = np.maximum(1.0, _short(radius / (dim**0.5 + _NEAR)))[:, None]
            noise[:, 1 : 1 + dim], noise[:, 1 + dim :] = gradient * further / root, hessian / root
        grid = noise.copy()
        grid[:, 0] *= _STEP
        # of a Gaussian, and of an agent whose rows are unlike the others: sqrt(rows) / num_agents sds per row
        slope = self.rows**0.5 / self.num_agents + radius
        need = np.empty_like(noise)
        need[:, 0] = np.maximum(_ROOM * slope * np.maximum(radius, 1.0), _RISE if kind != "error" else 1.0)
        need[:, 1:] = _ROOM * slope[:, None]
        bits = np.log2(2.0 * self.num_agents * np.maximum(need / grid, _LEVELS).max(axis=0))
        width = np.clip(np.ceil((bits + 0.1) / 8.0), 1, _WIDEST).astype(np.int64)
        if kind == "expansion":
            # values of expansions are not relative to the value at an origin
            width = np.where(np.arange(width.size) == 0, _WIDEST, np.maximum(width, 3))
        added = np.zeros_like(noise)
        if kind in ("value", "slope"):
            # expansions only shape proposals
            added[:, 0] = (np.square(noise[:, 0]) + np.square(grid[:, 0]) / 12.0) / 2.0
        value = np.broadcast_to((np.arange(noise.shape[1]) == 0) & (kind != "error"), noise.shape)
        near = np.broadcast_to((radius < dim**0.5 + _NEAR)[:, None], noise.shape)
        return Coder(
            self.num_agents,
            noise.shape[1],
            noise.ravel(),
            grid.ravel(),
            np.broadcast_to(width, noise.shape).ravel(),
            added.ravel(),
            value.ravel(),
            near.ravel(),
        )

    def coder_of_origin(self) -> Coder:
        """The coder of the potential at an origin: little noise at the first one. Its noise is not corrected."""
        noise, no = np.array([self.sigma * (1.0 if self.origins else _AT_ORIGIN)]), np.zeros(1, bool)
        return Coder(self.num_agents, 1, noise, noise * _STEP, np.array([_WIDEST]), np.zeros(1), no, ~no)


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
        """The sum over all agents."""
        kind, points = getattr(function, _MARK, None), options.pop("points", None)
        if kind is None or points is None:
            raise ArithmeticError(f"{getattr(function, '__name__', 'this function')} has no coarse answers")
        place: Coordinates | None = options.get("coordinates")
        is_relative = kind in ("value", "slope") and place is not None
        needs_origin = is_relative and place is not None and _key(place) not in self.noise.origins
        coder = self.noise.coder(kind, self.noise.radius(place, np.asarray(points, np.float64)))
        question = Question(function, arguments, points, options, is_relative)
        total, of_origin = self._summed(coder, question, needs_origin)
        total = total.reshape(-1, coder.per_point)
        if kind in ("slope", "expansion"):
            total[:, 1:] = np.where(total[:, :1] < _NOWHERE, total[:, 1:], 0.0)
        if is_relative:
            assert place is not None
            if needs_origin:
                self.noise.origins[_key(place)] = of_origin
            total[:, 0] += self.noise.at_origin(place)
        return total[:, 0] if coder.per_point == 1 else total

    def _summed(self, coder: Coder, question: Question, needs_origin: bool) -> tuple[np.ndarray, float]:
        """The decoded sums, (number,), and the sum of the potentials at the origin if `needs_origin`, else 0."""
        parts, base = question.answered(self.here)
        noisy = [coder.noisy(part, own) for part, own in zip(parts, self._generators, strict=True)]
        first, bases = self.noise.coder_of_origin(), list[np.ndarray]()
        if needs_origin:
            bases = [first.noisy(one[None], own) for one, own in zip(base, self._generators, strict=True)]
        self.sent, self.sums = 0, 0
        while True:
            messages, count = list[np.ndarray](), coder.noise.size
            for agent, one in enumerate(noisy):
                own, clipped = coder.rounded(one)
                if bases:
                    origin, too_large = first.rounded(bases[agent])
                    own, clipped = np.concatenate([own, origin]), clipped or too_large
                messages.append(np.append(own, int(clipped)))
            # the last number counts the agents with clipped numbers
            whole = (coder.beside(first) if bases else coder).beside(FLAG)
            summed = self._added(messages, whole)
            self.sent += int(whole.width.sum())
            self.sums += 1
            if summed[-1] == 0:
                break
            coder = coder.wider()
        total = coder.decoded(summed[:count])
        return total, float(first.decoded(summed[count:-1])[0]) if bases else 0.0

    def _added(self, messages: Sequence[np.ndarray], coder: Coder) -> np.ndarray:
        """The sum of messages of a coder's numbers, masked if there are masks."""
        self._count += 1
        if self._masks:
            pairs = zip(self._masks, messages, strict=True)
            messages = [own.masked_integers(self._count, message, coder.mask) for own, message in pairs]
        return coder.added_up(messages)


class Question(NamedTuple):
    """A function that agents evaluate at points.

    Parameters
    ----------
    function, arguments, points, options
        As in `Totals`.
    is_relative
        Whether potentials are relative to each agent's own potential at the origin of the coordinates.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    points: Any
    options: dict[str, Any]
    is_relative: bool

    def answered(self, here: Each) -> tuple[np.ndarray, np.ndarray]:
        """Each agent's numbers, (agent, number), and its potential at the origin, (agent,), 0 if not relative."""
        points = np.asarray(self.points, np.float64)
        if self.is_relative:
            points = np.concatenate([np.zeros((1, points.shape[1])), points])
        found = np.asarray(here.each(self.function, *self.arguments, points=points, **self.options), np.float64)
        parts = found.reshape(*found.shape[:2], -1).copy()
        base = np.zeros(len(parts))
        if self.is_relative:
            base, parts = parts[:, 0, 0].copy(), parts[:, 1:].copy()
            parts[..., 0] -= base[:, None]
        return parts.reshape(len(parts), -1), base


def _key(place: Coordinates) -> bytes:
    """The origin of coordinates as bytes."""
    return np.asarray(place.origin, np.float64).tobytes()
