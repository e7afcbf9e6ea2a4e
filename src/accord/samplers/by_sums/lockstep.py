"""ChEES-HMC (Hoffman, Radul & Sountsov 2021): many chains of Hamiltonian Monte Carlo in lockstep.

All chains take the same number of leapfrog steps of the same size, so a step of all chains is one sum over the network.
Warm-up adapts the step size, the trajectory length and the scale from all chains together. After warm-up they are
frozen, and every transition is an exact Metropolis transition.

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

# Warm-up transitions. 50 suffice from starts about as wide as the posterior, 100 from starts twice as wide.
WARMUP = 100

# Streams of random numbers, part of their key.
_STARTS, _TRANSITIONS = 1, 2
# Target acceptance rate: the optimum of long trajectories in many dimensions (Beskos et al. 2013).
_ACCEPTANCE = 0.651
# Lower limit of acceptance probabilities in the harmonic mean. One stuck chain in 128 still shortens the step.
_LEAST_ACCEPTANCE = 1e-3
# Lower limit for a trajectory that left the support with little energy error, as a shorter step would leave it too.
_EDGE_ACCEPTANCE = 0.5
# Largest energy error of such a trajectory, half a step before.
_KEPT = 10.0
# Gain of the log step per error of the acceptance, about a Newton step: acceptance falls by 0.65 per unit of log step.
_STEP_GAIN = 1.5
# Power of the transition's number by which the gain decays.
_STEP_DECAY = 0.6
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
# Most leapfrog steps per transition before the first whitening, before the second, and later. A whitened target needs
# 2 to 10 steps. Early transitions are short, as many short ones lose energy sooner than few long ones.
_MOST_STEPS = (8, 16, 64)
# Share of warm-up before positions enter the covariance.
_COUNTED_FROM = 0.1
# Shares of warm-up at which coordinates are whitened and the covariance is reset.
_WHITENED_AT = (0.25, 0.5)
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
        Their weighted averages since the last whitening, which are used after warm-up.
    length_square
        Adam's running mean of the squared gradient for the log length.
    adapted
        Adapting transitions since the last whitening.
    scale
        Lower triangular, (dim, dim). A whitened position z is the position scale @ z.
    counted
        Transitions in `sums` and `squares`.
    sums, squares
        Sums of positions per chain, (chain, dim), and of outer products of all positions, (dim, dim).
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
        counted=0,
        sums=np.zeros((chains, dim)),
        squares=np.zeros((dim, dim)),
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
    adapts = number < warmup
    step = float(np.exp(state.log_step if adapts else state.mean_log_step))
    time = _jitter(number) * float(np.exp(state.log_length if adapts else state.mean_log_length))
    most = _MOST_STEPS[sum(number >= round(share * warmup) for share in _WHITENED_AT)]
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
    )
    if not adapts:
        return new
    new = new._replace(warmup_calls=new.calls, warmup_divergences=new.divergences)
    new = _adapted_step(new, move)
    new = _adapted_length(new, state, move, min(time, count * step))
    return _rescaled(new, warmup)


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


def _rescaled(state: LockstepState, warmup: int) -> LockstepState:
    """Accumulate the covariance of positions, and at fixed transitions whiten by it and reset the adaptation."""
    number = state.transition
    if number > round(_COUNTED_FROM * warmup) and number <= round(_WHITENED_AT[-1] * warmup):
        state = state._replace(
            counted=int(state.counted) + 1,
            sums=state.sums + state.positions,
            squares=state.squares + state.positions.T @ state.positions,
        )
    if number not in [round(share * warmup) for share in _WHITENED_AT] or state.counted < 1:
        return state
    relative = _relative_covariance(state)
    state = state._replace(counted=0, sums=np.zeros_like(state.sums), squares=np.zeros_like(state.squares))
    if relative is None:
        return state
    # the narrowest direction limited the step, and now has width one
    narrowest = float(np.sqrt(np.linalg.eigvalsh(relative)[0]))
    dim = len(relative)
    longest = min(_FIRST_STEP * dim**-0.25, _LONGEST_FIRST_STEP)
    log_step = float(min(state.mean_log_step - np.log(narrowest), np.log(longest)))
    log_length = float(np.log(_FIRST_LENGTH))
    return state._replace(
        scale=np.ascontiguousarray(np.asarray(state.scale) @ np.linalg.cholesky(relative)),
        log_step=log_step,
        log_length=log_length,
        mean_log_step=log_step,
        mean_log_length=log_length,
        length_square=0.0,
        adapted=0,
    )


def _relative_covariance(state: LockstepState) -> np.ndarray | None:
    """The covariance of the accumulated positions, in the current whitened coordinates, (dim, dim); None if singular.

    It is shrunk towards a multiple of the identity by oracle approximating shrinkage (Chen, Wiesel, Eldar & Hero 2010),
    with the number of independent draws estimated from the variance of the chains' means.
    """
    chains, dim = state.sums.shape
    draws = chains * int(state.counted)
    mean = state.sums.sum(axis=0) / draws
    scale = np.asarray(state.scale)
    half = solve_triangular(scale, state.squares / draws - np.outer(mean, mean), lower=True)
    cov = solve_triangular(scale, half.T, lower=True)
    cov = (cov + cov.T) / 2.0
    means = solve_triangular(scale, (state.sums / state.counted).T, lower=True)
    between, trace = means.var(axis=1, ddof=1).sum(), cov.trace()
    if not (np.isfinite(cov).all() and trace > 0.0 and between > 0.0):
        return None
    count = np.clip(chains * trace / between, chains / 2.0, draws)
    square = (cov**2).sum()
    spread = square - trace**2 / dim
    share = 0.0
    if dim > 1 and spread > 0.0:
        share = min(1.0, ((1.0 - 2.0 / dim) * square + trace**2) / ((count + 1.0 - 2.0 / dim) * spread))
    shrunk = (1.0 - share) * cov + share * trace / dim * np.eye(dim)
    return shrunk if np.linalg.eigvalsh(shrunk)[0] > 1e-10 * trace / dim else None


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
