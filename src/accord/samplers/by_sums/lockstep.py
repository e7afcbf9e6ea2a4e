"""ChEES-HMC (Hoffman, Radul & Sountsov 2021): many chains of Hamiltonian Monte Carlo that move in lockstep.

All chains take the same number of leapfrog steps of the same size, so that each step of all of them is one sum over the
network. During warm-up the chains together find the step size, the length of trajectories and the scale of what they
sample; then all three are frozen, and every transition is an exact Metropolis transition.

Everything is a pure function of (seed, transition number), the state and what the network answers: a run that was
stopped after any transition goes on bit for bit from the state it left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular

from ...base.checks import whole_number

# Positions, shape (chain, dim), to F there, shape (chain,), and its gradients, shape (chain, dim). One sum over the
# network a call; the target is proportional to exp(-F). What is not finite there rejects the proposal of its chain.
Ask = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]

# Warm-up transitions. From starts about as wide as the posterior, 50 found the same step, length and scale; from starts
# twice as wide, some of them where F is very steep, only 100 did.
WARMUP = 100

# What random numbers are for, in their key.
_STARTS, _TRANSITIONS = 1, 2
# Acceptance that the step size is adapted to: the optimum of long trajectories in many dimensions (Beskos et al. 2013).
_ACCEPTANCE = 0.651
# Acceptance probabilities count as no less than this in their harmonic mean. It lets one chain in 128 that is stuck
# where F is steep shorten the step of all until it moves.
_LEAST_ACCEPTANCE = 1e-3
# And so much where a trajectory that kept its energy met the edge of where F is finite: a shorter step would meet it
# too. The step still shortens where most chains do.
_EDGE_ACCEPTANCE = 0.5
# Energy error, half a step on, up to which a trajectory counts as having kept it.
_KEPT = 10.0
# The log step moves by so much times the error of the acceptance, divided by a power of the transition's number. Where
# trajectories are long acceptance falls by 0.65 for a unit of the log step, so that this is about a Newton step.
_STEP_GAIN, _STEP_DECAY = 1.5, 0.6
# First step, times dim**(-1/4), and its largest value: what a standard normal accepts too well rather than too badly.
_FIRST_STEP, _LONGEST_FIRST_STEP = 1.5, 1.0
# First length of trajectories before jitter, in standard deviations: the optimum of the criterion for a normal target
# is 2.25, where tan(2 T) = 2 T.
_FIRST_LENGTH = 2.25
# Adam on the log length, without momentum as in the paper: rate, memory of the squared gradient.
_LENGTH_RATE, _LENGTH_MEMORY = 0.05, 0.95
# Most leapfrog steps of a transition: until the first whitening, until the second, and later. A whitened target takes
# 2 to 10, and 64 of a tenth of a standard deviation each are a whole period of it; longer ones would spend the sums of
# many transitions on one. Before, step and scale are not known, and where chains are far out, many short transitions
# lose their energy sooner than few long ones.
_MOST_STEPS = (8, 16, 64)
# When chains begin to count for the scale, and when they are whitened and counted anew: shares of warm-up.
_COUNTED_FROM = 0.1
_WHITENED_AT = (0.25, 0.5)
# Energy error above which a trajectory counts as diverged: exp(-1000) is 0 in double precision.
_DIVERGED = 1000.0


class LockstepState(NamedTuple):
    """All that a run needs to go on: arrays and numbers only, for `numpy.savez`; nothing in it is ever NaN.

    Parameters
    ----------
    positions
        Where the chains are, in the coordinates of `ask`; shape (chain, dim). After warm-up these are the draws.
    values, gradients
        F and its gradients there; shapes (chain,) and (chain, dim).
    transition
        Transitions so far.
    calls, warmup_calls
        Calls of `ask` so far, and how many of them were for `begin` and for warm-up.
    divergences, warmup_divergences
        Trajectories so far, one chain each, that met a value that is not finite or an energy error above 1000, and how
        many of them were in warm-up. Starts that were replaced count among both.
    acceptance
        Mean over the chains of the last transition's acceptance probabilities, in [0, 1]; 0 before the first.
    log_step, log_length
        Logarithms of the step size and of the longest trajectory, in the units of whitened coordinates.
    mean_log_step, mean_log_length
        Their weighted averages since the last whitening, which hold after warm-up.
    length_square
        Adam's running mean of the squared gradient for the log length.
    adapted
        Transitions that adapted since the last whitening.
    scale
        Lower triangular, (dim, dim): a whitened position z stands for scale @ z.
    counted
        Transitions since the scale began to be counted.
    sums, squares
        Sums of the positions of each chain over these, (chain, dim), and of their outer products, (dim, dim).
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
    """Trajectories from all chains: where they end, and how well. Where `alive` is false, they end where they began.

    Shapes (chain, dim) of positions, gradients and momenta, (chain,) of values, acceptance probabilities, `alive`, and
    `edge`: whether the trajectory met a value that is not finite though it had kept its energy.
    """

    positions: np.ndarray
    values: np.ndarray
    gradients: np.ndarray
    momenta: np.ndarray
    acceptance: np.ndarray
    alive: np.ndarray
    edge: np.ndarray
    calls: int


def begin(ask: Ask, positions: np.ndarray, seed: int) -> LockstepState:
    """The state before the first transition; one call of `ask`.

    A chain that starts where F or its gradient is not finite starts from the place of another instead, drawn at random.

    Parameters
    ----------
    ask
        F and its gradients.
    positions
        Where the chains start, shape (chain, dim); at least two chains, in coordinates in which the posterior is about
        standard normal.
    seed
        Whole number from 0 to 2**64 - 1.

    Raises
    ------
    ArithmeticError
        F or its gradient is finite at no start.
    """
    positions = np.array(positions, np.float64, order="C")
    if positions.ndim != 2 or len(positions) < 2 or positions.shape[1] < 1:
        raise ValueError(f"positions must have shape (chain, dim), with two chains or more, found {positions.shape}")
    chains, dim = positions.shape
    values, gradients = _answer(ask, positions)
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


def transition(ask: Ask, state: LockstepState, *, seed: int, warmup: int = WARMUP) -> LockstepState:
    """One transition of all chains; as many calls of `ask` as it takes leapfrog steps.

    While `state.transition < warmup` it adapts. Later transitions leave exp(-F) exactly invariant.

    Parameters
    ----------
    ask
        F and its gradients.
    state
        From `begin` or from the transition before.
    seed
        Whole number from 0 to 2**64 - 1, the same for all transitions of a run.
    warmup
        Transitions that adapt, the same for all transitions of a run; 0 keeps the first step, length and scale.
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
    move = _trajectories(ask, state, start, step, count)
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
    """Nested R-hat (Margossian et al. 2024, arXiv 2110.13017): near 1 where groups of chains agree.

    Chains of a group should have begun at one place and the groups at different ones. Then it tells from few draws a
    chain whether the chains have forgotten where they began: it exceeds 1 by about the squared error of a group's mean
    over twice the variance of the draws.

    Parameters
    ----------
    draws
        Shape (chain, draw, dim).
    groups
        Superchains, at least two: chains next to one another, as many in each.

    Returns
    -------
    np.ndarray
        Shape (dim,), at least 1; NaN for a parameter that never changes.
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
    # one chain has no variance between chains, and one draw none within
    between_chains = by_chain.var(axis=1, ddof=1).mean(axis=0) if chains > 1 else 0.0
    within_chains = draws.var(axis=1, ddof=1).mean(axis=0) if count > 1 else 0.0
    within = between_chains + within_chains
    ratio = np.full(draws.shape[2], np.inf)
    np.divide(between_groups, within, out=ratio, where=within > 0)
    ratio[(within == 0) & (between_groups == 0)] = np.nan
    return np.sqrt(1.0 + ratio)


# --- one transition ---


def _trajectories(ask: Ask, state: LockstepState, momenta: np.ndarray, step: float, count: int) -> _Move:
    """Leapfrog steps of all chains, which stop early where all have met a value that is not finite.

    Whether a trajectory is given up depends on the places on it alone, which its reverse passes too: a rule about the
    energy at its beginning would not be reversible, and waits until its end.
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
            # chains that are given up wait where they were, as the network is asked about all or none
            positions = np.where(alive[:, None], positions, state.positions)
            values, gradients = _answer(ask, positions)
            calls += 1
            alive &= np.isfinite(values) & _finite(gradients)
            edge |= kept & ~alive
            if not alive.any():
                break
            gradients = np.where(alive[:, None], gradients, 0.0)
            momenta = momenta - (step / 2.0 if number == count else step) * (gradients @ scale)
        error = values + 0.5 * (momenta**2).sum(axis=1) - before
        # false for NaN as well
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


def _answer(ask: Ask, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """F and its gradients in double precision; `ask` gets a copy, which it may keep or overwrite."""
    values, gradients = ask(positions.copy())
    values, gradients = np.array(values, np.float64), np.array(gradients, np.float64, order="C")
    if values.shape != positions.shape[:1] or gradients.shape != positions.shape:
        raise ValueError(
            f"ask must return arrays of shapes {positions.shape[:1]} and {positions.shape}, found {values.shape} and "
            f"{gradients.shape}"
        )
    return values, gradients


def _finite(rows: np.ndarray) -> np.ndarray:
    """Which rows are finite, shape (chain,)."""
    return np.isfinite(rows).all(axis=1)


# --- adaptation ---


def _adapted_step(state: LockstepState, move: _Move) -> LockstepState:
    """A stochastic approximation of the step at which the harmonic mean of acceptance probabilities is as it should be.

    The error is averaged over many chains, so that few transitions find the step: gains fall only slowly, and what
    holds later is the average over the steps tried.
    """
    least = np.where(move.edge, _EDGE_ACCEPTANCE, _LEAST_ACCEPTANCE)
    harmonic = 1.0 / (1.0 / np.maximum(move.acceptance, least)).mean()
    adapted = int(state.adapted) + 1
    log_step = float(state.log_step + _STEP_GAIN * adapted**-_STEP_DECAY * (harmonic - _ACCEPTANCE))
    # later ones weigh more: number n as n does
    share = 2.0 / (adapted + 1.0)
    mean = float((1.0 - share) * state.mean_log_step + share * log_step)
    return state._replace(log_step=log_step, mean_log_step=mean, adapted=adapted)


def _adapted_length(state: LockstepState, before: LockstepState, move: _Move, time: float) -> LockstepState:
    """A step of Adam up the ChEES criterion, with respect to the log length (section 3 of the paper).

    The criterion is how much the squared distance to the mean changes in a transition, squared; here in whitened
    coordinates, where all directions count alike.
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
    # not bounded by the step: one that is short for a while would leave a length that takes long to grow again
    log_length = float(state.log_length + rise)
    share = 2.0 / (adapted + 1.0)
    mean = float((1.0 - share) * state.mean_log_length + share * log_length)
    return state._replace(log_length=log_length, mean_log_length=mean, length_square=square)


def _rescaled(state: LockstepState, warmup: int) -> LockstepState:
    """Counts the chains' positions and, at fixed transitions, whitens by what was counted and begins anew."""
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
    # the step was as long as the narrowest direction allowed, and all are one wide now
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
    """The covariance of what was counted, in the whitened coordinates so far, (dim, dim); None where there is none.

    It is shrunk towards a multiple of the identity as the oracle approximating shrinkage does (Chen, Wiesel, Eldar &
    Hero 2010), for as many independent draws as the chains' means show.
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
    """Random numbers that depend on these three alone."""
    key = np.array([_seed(seed), stream << 48 | number], np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


def _jitter(number: int) -> float:
    """Halton's sequence in base 2, in (0, 1): fills it evenly, so that few transitions see all lengths."""
    share, part, number = 0.0, 0.5, number + 1
    while number:
        share += part * (number & 1)
        part, number = part / 2.0, number >> 1
    return share
