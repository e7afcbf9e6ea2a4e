"""ChEES-HMC (Hoffman, Radul & Sountsov 2021): many chains of Hamiltonian Monte Carlo in lockstep.

All chains take the same number of leapfrog steps of the same size, so a step of all chains is one sum over the network.
Warm-up adapts the step size, the trajectory length and the scale from all chains together. After warm-up they are
frozen, and every transition is an exact Metropolis transition.

The scale follows from positions and gradients: it is the matrix S with S cov(gradients) S = cov(positions), the minimum
of Fisher's divergence. For a Gaussian posterior it is the covariance wherever the chains are, so that it is right long
before the chains are.

A transition is a pure function of the seed, the state and F, so a run resumes bit for bit from any state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular

from ...base.checks import whole_number

# From positions, (chain, dim), to F, (chain,), and its gradients, (chain, dim), by one sum over the network. The target
# is proportional to exp(-F). A non-finite number rejects the proposal of its chain.
Evaluate = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]

# Warm-up transitions.
WARMUP = 64

# Streams of random numbers, part of their key.
_STARTS, _TRANSITIONS, _GROUPS, _GATHERED = 1, 2, 3, 4
# Target acceptance rate: the optimum of long trajectories in many dimensions (Beskos et al. 2013).
_ACCEPTANCE = 0.651
# Lower limit of acceptance probabilities in the harmonic mean. A few stuck chains in 512 still shorten the step.
_LEAST_ACCEPTANCE = 0.03
# Lower limit for a trajectory that left the support with little energy error, as a shorter step would leave it too.
_EDGE_ACCEPTANCE = 0.5
# Largest energy error of such a trajectory, half a step before.
_KEPT = 10.0
# Gain of the log step per error of the acceptance, about a Newton step: acceptance falls by 0.65 per unit of log step.
_STEP_GAIN = 1.5
# Power of the transition's number by which the gain decays, and its first number after a fit of the scale.
_STEP_DECAY = 0.6
_ADAPTED = 2
# First step times dim**(1/4): short enough for a high acceptance rate of a standard normal.
_FIRST_STEP = 1.5
# Longest first step.
_LONGEST_FIRST_STEP = 1.0
# First trajectory length before jitter, in standard deviations: the optimum for a normal, tan(2 T) = 2 T.
_FIRST_LENGTH = 2.25
# Adam's learning rate for the log length, without momentum as in the paper.
_LENGTH_RATE = 0.05
# Adam's decay rate of the squared gradient.
_LENGTH_MEMORY = 0.95
# Most leapfrog steps per transition before the scale is final, and later. A whitened target needs 2 to 10 steps. Early
# transitions are short, as many short ones lose energy sooner than few long ones.
_MOST_STEPS = (8, 32, 64)
# Shares of warm-up at which the scale is fitted. The last one is final.
_SCALED_AT = (*(k / 16 for k in range(8)), 10 / 16)
# Chains are astray if their F is above the median by this many differences between the median and the lowest tenth.
_ASTRAY = 5.0
# Transitions without a move after which a chain is stuck, and largest share of stuck chains that are moved. More stuck
# chains may be in a narrow mode.
_STUCK, _MOST_STUCK = 5, 0.05
# Energy error of a divergence: exp(-1000) is 0 in double precision.
_DIVERGED = 1000.0


class LockstepState(NamedTuple):
    """The state of all chains and of the adaptation: arrays and numbers for `numpy.savez`, without NaN.

    Parameters
    ----------
    positions
        Positions of the chains, shape (chain, dim). After warm-up these are the draws.
    values, gradients
        F and its gradients at the positions, shapes (chain,) and (chain, dim).
    transition
        Transitions so far.
    calls, warmup_calls
        Calls of `evaluate` so far, and until the end of warm-up.
    divergences, warmup_divergences
        Divergent trajectories (a non-finite value or an energy error above 1000) so far, and until the end of warm-up.
        Both include replaced starts.
    acceptance
        Mean acceptance probability of the last transition, in [0, 1]; 0 before the first.
    log_step, log_length
        Logarithms of the step size and of the longest trajectory, in whitened coordinates.
    mean_log_step, mean_log_length
        Their weighted averages since the last fit of the scale, which are used after warm-up.
    length_square
        Adam's running mean of the squared gradient for the log length.
    adapted
        Adapting transitions since the last fit of the scale.
    scale
        Lower triangular, (dim, dim). A whitened position z is the position scale @ z.
    still
        Transitions of each chain since its last move, (chain,).
    counted
        Transitions in `sums` and `squares`.
    sums, squares
        Sums over chains and transitions of positions and of gradients, (2, dim), and of their outer products,
        (2, dim, dim).
    """

    positions: np.ndarray
    values: np.ndarray
    gradients: np.ndarray
    transition: int
    calls: int
    warmup_calls: int
    divergences: int
    warmup_divergences: int
    acceptance: float
    log_step: float
    log_length: float
    mean_log_step: float
    mean_log_length: float
    length_square: float
    adapted: int
    scale: np.ndarray
    still: np.ndarray
    counted: int
    sums: np.ndarray
    squares: np.ndarray


class _Move(NamedTuple):
    """Ends of the trajectories of all chains. Divergent trajectories (`alive` is false) end at their start.

    Shapes are (chain, dim) or (chain,). `edge`: whether a trajectory met a non-finite value with little energy error.
    """

    positions: np.ndarray
    values: np.ndarray
    gradients: np.ndarray
    momenta: np.ndarray
    acceptance: np.ndarray
    alive: np.ndarray
    edge: np.ndarray
    calls: int


def begin(evaluate: Evaluate, positions: np.ndarray, seed: int) -> LockstepState:
    """The state before the first transition; one call of `evaluate`.

    A start at which F or its gradient is not finite is replaced by another chain's start, drawn at random.

    Parameters
    ----------
    evaluate
        F and its gradients.
    positions
        Starts of at least two chains, shape (chain, dim), in coordinates in which the posterior is about standard
        normal.
    seed
        Integer from 0 to 2**64 - 1.

    Raises
    ------
    ArithmeticError
        F or its gradient is finite at no start.
    """
    positions = np.array(positions, np.float64, order="C")
    if positions.ndim != 2 or len(positions) < 2 or positions.shape[1] < 1:
        raise ValueError(f"positions must have shape (chain, dim), with two chains or more, found {positions.shape}")
    chains, dim = positions.shape
    values, gradients = _evaluated(evaluate, positions)
    finite = _finite(positions) & np.isfinite(values) & _finite(gradients)
    if not finite.any():
        raise ArithmeticError(f"F or its gradient is not finite at any of the {chains} starts")
    taken = np.arange(chains)
    taken[~finite] = _generator(seed, _STARTS, 0).choice(np.flatnonzero(finite), size=int((~finite).sum()))
    log_step = float(np.log(min(_FIRST_STEP * dim**-0.25, _LONGEST_FIRST_STEP)))
    log_length = float(np.log(_FIRST_LENGTH))
    return LockstepState(
        positions=positions[taken],
        values=values[taken],
        gradients=gradients[taken],
        transition=0,
        calls=1,
        warmup_calls=1,
        divergences=int((~finite).sum()),
        warmup_divergences=int((~finite).sum()),
        acceptance=0.0,
        log_step=log_step,
        log_length=log_length,
        mean_log_step=log_step,
        mean_log_length=log_length,
        length_square=0.0,
        adapted=0,
        scale=np.eye(dim),
        still=np.zeros(chains, int),
        counted=0,
        sums=np.zeros((2, dim)),
        squares=np.zeros((2, dim, dim)),
    )


def transition(evaluate: Evaluate, state: LockstepState, *, seed: int, warmup: int = WARMUP) -> LockstepState:
    """One transition of all chains, with one call of `evaluate` per leapfrog step.

    It adapts while `state.transition < warmup`. Later transitions leave exp(-F) exactly invariant.

    Parameters
    ----------
    evaluate
        F and its gradients.
    state
        From `begin` or the previous transition.
    seed
        Integer from 0 to 2**64 - 1, the same for all transitions of a run.
    warmup
        Number of adapting transitions, the same for all transitions of a run. 0 keeps the first step, length and scale.
    """
    seed, warmup = _seed(seed), whole_number("warmup", warmup, 0)
    number = int(state.transition)
    adapts, fits = number < warmup, _fits(warmup)
    if number < fits[-1]:
        state = _gathered(state, seed)
    if adapts and number in fits:
        state = _rescaled(state)
    step = float(np.exp(state.log_step if adapts else state.mean_log_step))
    time = _jitter(number) * float(np.exp(state.log_length if adapts else state.mean_log_length))
    most = _MOST_STEPS[(number >= fits[-1]) + (not adapts)]
    count = int(np.clip(np.ceil(time / step), 1, most))

    generator = _generator(seed, _TRANSITIONS, number)
    start = generator.standard_normal(state.positions.shape)
    uniform = generator.random(len(start))
    move = _trajectories(evaluate, state, start, step, count)
    accepted = uniform < move.acceptance
    new = state._replace(
        positions=np.where(accepted[:, None], move.positions, state.positions),
        values=np.where(accepted, move.values, state.values),
        gradients=np.where(accepted[:, None], move.gradients, state.gradients),
        transition=number + 1,
        calls=int(state.calls) + move.calls,
        divergences=int(state.divergences) + int((~move.alive).sum()),
        acceptance=float(move.acceptance.mean()),
        still=np.where(accepted, 0, state.still + 1),
    )
    if not adapts:
        return new
    new = new._replace(warmup_calls=new.calls, warmup_divergences=new.divergences)
    new = _adapted_step(new, move)
    if number >= fits[-1]:
        return _adapted_length(new, state, move, min(time, count * step))
    before, after = max(k for k in fits if k <= number), min(k for k in fits if k > number)
    # the second half of the transitions between two fits
    return _accumulated(new) if number >= before + (after - before) // 2 else new


def settled(warmup: int) -> int:
    """The transition of a warm-up after which the scale is final and no chain takes another one's position."""
    return _fits(warmup)[-1]


def grouped(state: LockstepState, size: int, seed: int) -> LockstepState:
    """The state with groups of `size` chains, each at the position of one chain.

    Half of the positions are the furthest ones in a coordinate, so that nested R-hat detects chains that do not leave
    such a place. The others are drawn at random.
    """
    chains = len(state.positions)
    numbers, order = _generator(seed, _GROUPS, 0), np.argsort(state.positions, axis=0, kind="stable")
    count = -(-chains // size)
    # rows of chains that are lowest and highest in each coordinate, the furthest ones first
    levels = np.concatenate([order, order[::-1]], axis=1)[: count // 2]
    furthest = dict.fromkeys(int(chain) for level in levels for chain in numbers.permutation(level))
    chosen = list(furthest)[: count // 2]
    others = numbers.permutation(np.setdiff1d(np.arange(chains), chosen))
    return _moved(state, np.repeat([*chosen, *others[: count - len(chosen)]], size)[:chains])


def relocated(state: LockstepState, positions: np.ndarray, values: np.ndarray, gradients: np.ndarray) -> LockstepState:
    """The state of the chains in other coordinates, in which they have about unit variances, after one evaluation."""
    own = begin(lambda _: (values, gradients), positions, 0)
    counts = ("transition", "calls", "warmup_calls", "divergences", "warmup_divergences", "still")
    kept = {name: getattr(state, name) for name in counts}
    return _accumulated(own._replace(**kept | {"calls": int(state.calls) + 1}))


def nested_rhat(draws: np.ndarray, groups: int) -> np.ndarray:
    """Nested R-hat (Margossian et al. 2024, arXiv 2110.13017): near 1 if groups of chains agree.

    Chains of a group should start at one point, and groups at different points. Then nested R-hat detects from few
    draws per chain whether the chains still depend on their starts. It exceeds 1 by about the squared error of a
    group's mean over twice the variance of the draws.

    Parameters
    ----------
    draws
        Shape (chain, draw, dim).
    groups
        Number of groups (superchains) of consecutive chains, all of one size, >= 2.

    Returns
    -------
    np.ndarray
        Shape (dim,), at least 1; NaN for a constant parameter.
    """
    draws = np.asarray(draws, np.float64)
    if draws.ndim != 3 or 0 in draws.shape or not 2 <= groups <= len(draws) or len(draws) % groups:
        raise ValueError(
            "draws must have shape (chain, draw, dim), and groups, at least 2, must divide the number of chains; found "
            f"shape {draws.shape} and {groups} groups"
        )
    chains, count = len(draws) // groups, draws.shape[1]
    if chains * count == 1:
        raise ValueError("a group of one chain needs at least two draws")
    by_chain = draws.mean(axis=1).reshape(groups, chains, -1)
    between_groups = by_chain.mean(axis=1).var(axis=0, ddof=1)
    # no variance between chains with one chain, none within with one draw
    between_chains = by_chain.var(axis=1, ddof=1).mean(axis=0) if chains > 1 else 0.0
    within_chains = draws.var(axis=1, ddof=1).mean(axis=0) if count > 1 else 0.0
    within = between_chains + within_chains
    ratio = np.full(draws.shape[2], np.inf)
    np.divide(between_groups, within, out=ratio, where=within > 0)
    ratio[(within == 0) & (between_groups == 0)] = np.nan
    return np.sqrt(1.0 + ratio)


# --- one transition ---


def _trajectories(evaluate: Evaluate, state: LockstepState, momenta: np.ndarray, step: float, count: int) -> _Move:
    """Leapfrog steps of all chains, stopped early if all chains have met a non-finite value.

    Only the positions on a trajectory decide whether it stops, as its reverse passes the same positions. A rule on the
    energy error would not be reversible before the end of the trajectory.
    """
    scale, start = np.asarray(state.scale), momenta
    positions, values, gradients = state.positions, state.values, state.gradients
    alive, edge, calls = np.ones(len(momenta), bool), np.zeros(len(momenta), bool), 0
    before = state.values + 0.5 * (start**2).sum(axis=1)
    with np.errstate(over="ignore", invalid="ignore"):
        momenta = momenta - step / 2.0 * (gradients @ scale)
        for number in range(1, count + 1):
            positions = positions + step * (momenta @ scale.T)
            kept = alive & (values + 0.5 * (momenta**2).sum(axis=1) - before <= _KEPT)
            alive &= _finite(positions)
            # stopped chains stay at their start, as every sum is over all chains
            positions = np.where(alive[:, None], positions, state.positions)
            values, gradients = _evaluated(evaluate, positions)
            calls += 1
            alive &= np.isfinite(values) & _finite(gradients)
            edge |= kept & ~alive
            if not alive.any():
                break
            gradients = np.where(alive[:, None], gradients, 0.0)
            momenta = momenta - (step / 2.0 if number == count else step) * (gradients @ scale)
        error = values + 0.5 * (momenta**2).sum(axis=1) - before
        # also false for NaN
        alive &= error <= _DIVERGED
        acceptance = np.where(alive, np.exp(-np.maximum(error, 0.0)), 0.0)
    back = alive[:, None]
    return _Move(
        np.where(back, positions, state.positions),
        np.where(alive, values, state.values),
        np.where(back, gradients, state.gradients),
        np.where(back, momenta, start),
        acceptance,
        alive,
        edge,
        calls,
    )


def _evaluated(evaluate: Evaluate, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """F and its gradients in double precision. `evaluate` gets a copy, which it may keep or overwrite."""
    values, gradients = evaluate(positions.copy())
    values, gradients = np.array(values, np.float64), np.array(gradients, np.float64, order="C")
    if values.shape != positions.shape[:1] or gradients.shape != positions.shape:
        raise ValueError(
            f"evaluate must return arrays of shapes {positions.shape[:1]} and {positions.shape}, found {values.shape} "
            f"and {gradients.shape}"
        )
    return values, gradients


def _finite(rows: np.ndarray) -> np.ndarray:
    """Whether each row is finite, shape (chain,)."""
    return np.isfinite(rows).all(axis=1)


# --- adaptation ---


def _adapted_step(state: LockstepState, move: _Move) -> LockstepState:
    """A step of stochastic approximation towards the target harmonic mean of acceptance probabilities.

    The error is averaged over many chains, so gains decay slowly and few transitions suffice. After warm-up the
    weighted average of the log steps is used.
    """
    least = np.where(move.edge, _EDGE_ACCEPTANCE, _LEAST_ACCEPTANCE)
    harmonic = 1.0 / (1.0 / np.maximum(move.acceptance, least)).mean()
    adapted = int(state.adapted) + 1
    log_step = float(state.log_step + _STEP_GAIN * adapted**-_STEP_DECAY * (harmonic - _ACCEPTANCE))
    # weights proportional to the number of the transition
    share = 2.0 / (adapted + 1.0)
    mean = float((1.0 - share) * state.mean_log_step + share * log_step)
    return state._replace(log_step=log_step, mean_log_step=mean, adapted=adapted)


def _adapted_length(state: LockstepState, before: LockstepState, move: _Move, time: float) -> LockstepState:
    """A step of Adam that increases the ChEES criterion in the log length (section 3 of the paper).

    The criterion is the mean squared change, in a transition, of the squared distance to the mean. Here distances are
    in whitened coordinates, so that all directions count equally.
    """
    total = move.acceptance.sum()
    if not total > 0.0:
        return state
    scale = np.asarray(state.scale)
    start, end = (solve_triangular(scale, x.T, lower=True).T for x in (before.positions, move.positions))
    weights = move.acceptance / total
    start = start - start.mean(axis=0)
    end = end - weights @ end
    changes = (end**2).sum(axis=1) - (start**2).sum(axis=1)
    gradient = float(time * (weights @ (changes * (end * move.momenta).sum(axis=1))))
    if not np.isfinite(gradient):
        return state
    adapted = int(state.adapted)
    square = float(_LENGTH_MEMORY * state.length_square + (1.0 - _LENGTH_MEMORY) * gradient**2)
    unbiased = square / (1.0 - _LENGTH_MEMORY**adapted)
    rise = _LENGTH_RATE * gradient / np.sqrt(unbiased) if unbiased > 0.0 else 0.0
    # not limited by the most steps: after a temporarily short step the length would take long to recover
    log_length = float(state.log_length + rise)
    share = 2.0 / (adapted + 1.0)
    mean = float((1.0 - share) * state.mean_log_length + share * log_length)
    return state._replace(log_length=log_length, mean_log_length=mean, length_square=square)


def _fits(warmup: int) -> list[int]:
    """The transitions before which the scale is fitted."""
    return sorted({round(share * warmup) for share in _SCALED_AT})


def _gathered(state: LockstepState, seed: int) -> LockstepState:
    """The state after chains that are astray or stuck took the positions of other chains.

    A warm-up from far starts would else wait for the slowest chain.
    """
    low, middle = np.quantile(state.values, [0.1, 0.5])
    bad = state.values > middle + _ASTRAY * max(middle - low, state.positions.shape[1] ** 0.5)
    stuck = np.asarray(state.still) >= _STUCK
    if stuck.mean() <= _MOST_STUCK:
        bad |= stuck
    if not bad.any():
        return state
    chosen = np.arange(len(bad))
    good = np.flatnonzero(~bad)
    chosen[bad] = _generator(seed, _GATHERED, int(state.transition)).choice(good, size=int(bad.sum()))
    return _moved(state, chosen)


def _moved(state: LockstepState, chosen: np.ndarray) -> LockstepState:
    """The state with each chain at the position of a chosen chain."""
    return state._replace(
        positions=state.positions[chosen],
        values=state.values[chosen],
        gradients=state.gradients[chosen],
        still=np.zeros(len(chosen), int),
    )


def _accumulated(state: LockstepState) -> LockstepState:
    """The state with the moments of its positions and gradients added."""
    both = np.stack([state.positions, state.gradients])
    return state._replace(
        counted=int(state.counted) + 1,
        sums=state.sums + both.sum(axis=1),
        squares=state.squares + np.swapaxes(both, 1, 2) @ both,
    )


def _rescaled(state: LockstepState) -> LockstepState:
    """Fit the scale to the accumulated moments, or at first to the starts' moments, and reset the adaptation."""
    if state.counted == 0:
        state = _accumulated(state)
    scale, chains, dim = np.asarray(state.scale), *state.positions.shape
    draws = chains * int(state.counted)
    means = state.sums / draws
    positions, gradients = state.squares / draws - means[:, :, None] * means[:, None]
    state = state._replace(counted=0, sums=np.zeros_like(state.sums), squares=np.zeros_like(state.squares))
    half = solve_triangular(scale, positions, lower=True)
    both = solve_triangular(scale, half.T, lower=True), scale.T @ gradients @ scale
    # a flat or truncated potential may have no gradients
    if not all(np.isfinite(one).all() and one.trace() > 0.0 for one in both):
        return state
    relative = _of_least_divergence(*both, (dim / chains) ** 3)
    # the narrowest direction limited the step, and now has width one
    narrowest = float(np.sqrt(np.linalg.eigvalsh(relative)[0]))
    longest = min(_FIRST_STEP * dim**-0.25, _LONGEST_FIRST_STEP)
    log_step = float(min(state.mean_log_step - np.log(narrowest), np.log(longest)))
    log_length = float(np.log(_FIRST_LENGTH))
    return state._replace(
        scale=np.ascontiguousarray(scale @ np.linalg.cholesky(relative)),
        log_step=log_step,
        log_length=log_length,
        mean_log_step=log_step,
        mean_log_length=log_length,
        length_square=0.0,
        adapted=_ADAPTED,
    )


def _of_least_divergence(positions: np.ndarray, gradients: np.ndarray, ridge: float) -> np.ndarray:
    """The matrix S with S gradients S = positions, for two covariances with a ridge relative to their mean eigenvalues.

    Fisher's divergence of a Gaussian with covariance S is least (Seyboldt, Carlson & Carpenter 2026, arXiv 2603.18845).
    The two covariances of a Gaussian have the same noise, so that S is exact and needs a ridge only with few chains.
    """
    positions, gradients = (m + ridge * np.trace(m) / len(m) * np.eye(len(m)) for m in (positions, gradients))
    root, inverse = _power(gradients, 0.5), _power(gradients, -0.5)
    found = inverse @ _power(root @ positions @ root, 0.5) @ inverse
    return np.asarray((found + found.T) / 2.0)


def _power(matrix: np.ndarray, power: float) -> np.ndarray:
    """A power of a symmetric, positive definite matrix."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2.0)
    return np.asarray((vectors * np.maximum(values, 1e-12 * values[-1]) ** power) @ vectors.T)


# --- random numbers ---


def _seed(seed: int) -> int:
    return whole_number("seed", seed, 0, 2**64 - 1)


def _generator(seed: int, stream: int, number: int) -> np.random.Generator:
    """A generator keyed by seed, stream and transition number."""
    key = np.array([_seed(seed), stream << 48 | number], np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


def _jitter(number: int) -> float:
    """Halton's sequence in base 2, in (0, 1). It is evenly spread, so that few transitions cover all lengths."""
    share, part, number = 0.0, 0.5, number + 1
    while number:
        share += part * (number & 1)
        part, number = part / 2.0, number >> 1
    return share
