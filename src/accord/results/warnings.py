"""Warnings about a run's draws, each with the value found and a remedy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy

from .certificate import Certificate
from .diagnostics import QUARTILES, SQUARES_K, diagnostics, pareto, pareto_k
from .findings import FEATURES, TOLERANCE, Balance, Expected, Findings

# Smallest ESS (Vehtari et al. 2021).
_FEWEST = 400
# Largest R-hat (Vehtari et al. 2021).
_RHAT = 1.01
# Relative error of a variance if the sd is off by the tolerance. The distance of an agent from the average is about
# independent of the average, so this share of the average's variance widens the agent's sd by the tolerance.
_SHARE = (1.0 + TOLERANCE) ** 2 - 1.0
# Largest deviation of a temperature from the law's, in Monte Carlo errors.
_ERRORS = 4.0
# Largest Pareto k of a tail. The variance is infinite above 0.5, but estimates scatter: with some hundred draws of
# Student's t with 3 degrees of freedom, whose k is 1/3, one estimate in fifty is above this limit.
_TAILS = 0.6
# Largest ratio of sd to robust sd (IQR / 1.349): 2 for a log-normal variable, 1.5 for Student's t with 3 degrees.
_WIDEST = 3.0
# Probability of a false alarm of Stein's identity, over all parameters together.
_FALSE_ALARM = 1e-4
# Smallest relative error of an sd that Stein's identity warns about.
_MATTERS = 0.01
# Sensitivity of the mean of each feature to a relative error in the variance: E h'(u), u ~ N(0, 1). The last feature
# is even, so its test is insensitive to the variance.
_PER_VARIANCE = np.array([1.0, 0.6057, np.nan])
# Largest distance between posterior and prior mean, in prior sds, of an uninformed coefficient.
_SAME_MEAN = 0.1
# Smallest ratio of posterior to prior sd of an uninformed coefficient: data adds at most 4% of the prior's precision.
_SAME_SD = 0.98
# Relative error of the variance below which a short run is called narrow.
_NARROW = -0.5
# Largest number of series with ESS and R-hat, some milliseconds each. Of more series the least mixed are checked.
_COUNTED = 500


# The agent (None for the average) and the parameter of each series of draws.
Owners = list[tuple[int | None, int]]


class Drawn(NamedTuple):
    """The parts of a `Run` that are checked, with the names of the fields of `Run`."""

    average: np.ndarray
    kept: np.ndarray
    agents: np.ndarray
    names: tuple[str, ...]
    findings: Findings
    certificate: Certificate | None = None
    weighted: bool = False
    # draws in the user's parameters
    shown: np.ndarray | None = None
    # names of the user's parameters
    shown_names: tuple[str, ...] = ()
    # name, prior mean, prior sd and sd of the column
    coefficients: tuple[tuple[str, float, float, float], ...] = ()


def complaints(drawn: Drawn, sites: Sequence[str] | None = None) -> list[str]:
    """Warnings about a run's draws, each with the values found and a remedy.

    Parameters
    ----------
    drawn
        Draws and findings.
    sites
        Names of all agents, or None.
    """
    if drawn.findings.target_temperature == 0:
        # positions of an optimiser are no draws
        return []
    names, series = _Names(drawn.names, sites), _series(drawn)
    found = drawn.findings
    first = [_bias(drawn, names), uncertified(drawn.certificate)]
    # sum-based and one-shot methods have no rounds
    has_rounds = drawn.certificate is None and not found.estimated
    mixing, short = _mixing(*series, names, has_rounds)
    last = [
        # repeated points look like tails; the certificate checks the tails of weighted points
        "" if drawn.weighted else _tails(*series, names),
        "" if drawn.shown is None else unreliable_sd(drawn.shown, drawn.shown_names),
        _disagreement(drawn, names),
        _strayed(found),
        _heat(found, short) or _unmeasured(found),
        _unbalanced(found, names, short),
        _unvisited(found, names),
        "" if short else _uninformed(drawn),
    ]
    if short and drawn.certificate is None:
        mixing += _of_longer_runs(found, any(text and not isinstance(text, _Short) for text in first + last))
    return [text for text in (*first, mixing, *last) if text]


class _Short(str):
    """A warning that a longer run may remove."""


class _Names(NamedTuple):
    parameters: tuple[str, ...]
    sites: Sequence[str] | None

    def agent(self, agent: int) -> str:
        return f"agent {agent}" if self.sites is None else str(self.sites[agent])

    def where(self, d: int, agent: int | None) -> str:
        """A parameter with its agent, or with "the average" for None."""
        return f"{self.parameters[d]} " + ("in the average" if agent is None else f"at {self.agent(agent)}")


def _bias(drawn: Drawn, names: _Names) -> str:
    """Warning about the largest error that is expected in the average and the kept agents."""
    expected = drawn.findings.expected
    if expected is None:
        return ""
    mean = np.concatenate([expected.average_mean[None], expected.mean[drawn.agents]])
    sd = np.concatenate([expected.average_sd[None], expected.sd[drawn.agents]]) - 1.0
    errors = np.stack([np.abs(mean), np.abs(sd)])
    if errors.max() <= TOLERANCE:
        return ""
    what, row, d = np.unravel_index(int(errors.argmax()), errors.shape)
    if drawn.findings.estimated:
        number = (
            f"the mean of {names.parameters[d]} is off by about {mean[row, d]:+.2g} sds of the draws"
            if what == 0
            else f"the sd of {names.parameters[d]} is about {1.0 + sd[row, d]:.3g} times the posterior's"
        )
        return (
            f"the combined draws do not fit the slope of the posterior (Stein's identity): {number}, and "
            f"{TOLERANCE:g} is allowed. Combined shards give the posterior only under the conditions of the method, "
            "such as many rows per shard. Use Importance() or ChEES(), which need no such conditions"
        )
    place = names.where(int(d), None if row == 0 else int(drawn.agents[row - 1]))
    number = (
        f"the mean of {place} is off by {mean[row, d]:+.2g} posterior sds"
        if what == 0
        else f"the sd of {place} is {1.0 + sd[row, d]:.3g} times the posterior's"
    )
    own = errors[:, 0].max()
    average = f"; the average is right within {own:.2g} posterior sds" if row > 0 and own <= TOLERANCE else ""
    return (
        f"by the method's exact law on the Gaussian nearest to the posterior {number}, more than the {TOLERANCE:g} "
        f"allowed{average}. Smaller steps (for DADMMS a larger rho), more mix_rounds or noise='common' reduce the "
        "error. Arguments that you omit are chosen to meet the limit. accord.plan forecasts the cost"
        + (f". {drawn.findings.left_out}" if drawn.findings.left_out else "")
    )


def uncertified(certificate: Certificate | None) -> str:
    """Warning about the failed checks of a certificate; empty if there are none."""
    if certificate is None or certificate.holds:
        return ""
    return f"the draws are not certified: {certificate.why}"


def _mixing(series: np.ndarray, owners: Owners, names: _Names, has_rounds: bool = True) -> tuple[str, bool]:
    """Warning about ESS and R-hat of the average and the kept agents, and whether the run is too short."""
    if series.shape[1] < 4:
        return f"{series.shape[1]} draws per chain are too few to estimate ESS and R-hat: take more draws", False
    still = np.flatnonzero(np.ptp(series, axis=1).min(axis=0) == 0)
    if still.size:
        agent, d = owners[still[0]]
        text = (
            f"the draws of {names.where(d, agent)} are all equal in a chain: take larger steps, more rounds between "
            "draws (thin) or a longer burn_in"
        )
        return text, False
    ess, rhat = diagnostics(series)
    parts = []
    # a single chain has no R-hat
    fewest, most = int(np.argmin(ess)), int(np.argmax(np.nan_to_num(rhat)))
    if ess[fewest] < _FEWEST:
        agent, d = owners[fewest]
        parts.append(f"ESS is {ess[fewest]:.0f} for {names.where(d, agent)}, below {_FEWEST}")
    if rhat[most] > _RHAT:
        agent, d = owners[most]
        # rounded up, as a value that rounds to the limit is above it
        parts.append(f"R-hat is {np.ceil(1000 * rhat[most]) / 1000:.3f} for {names.where(d, agent)}, above {_RHAT}")
    if not parts:
        return "", False
    advice = "take more draws" + (", more rounds between draws (thin) or a longer burn_in" if has_rounds else "")
    return f"{', and '.join(parts)}: {advice}", True


def _of_longer_runs(found: Findings, faulty: bool) -> str:
    """A further sentence about problems that more draws do not fix, or that few draws do not reveal."""
    if faulty:
        return ". Fix the other warnings first: more draws do not fix them"
    if found.estimated:
        return ". These draws do not reveal a bias below their Monte Carlo error"
    if found.balance is None:
        return ". Bias, which more draws do not fix, was not tested"
    unseen = _unseen(found.balance)
    return "" if unseen <= TOLERANCE else f". These draws do not reveal a standard deviation that is {unseen:.0%} off"


def _unseen(balance: Balance) -> float:
    """Largest relative error of a standard deviation that Stein's identity may miss, over all parameters."""
    # an unknown error hides everything
    return float(np.nan_to_num(_errors_allowed(balance) * balance.error[0], nan=np.inf).max() / 2.0)


def _errors_allowed(balance: Balance) -> float:
    """Critical value of Stein's identity, in Monte Carlo errors, over all features and parameters."""
    return float(scipy.stats.t.isf(_FALSE_ALARM / (2 * balance.off.size), max(1, balance.batches - 1)))


def _unbalanced(found: Findings, names: _Names, short: bool) -> str:
    """Warning about the parameter that violates Stein's identity most, beyond the law's prediction."""
    balance = found.balance
    if balance is None or not found.agreeing or _heat(found, short):
        return ""
    law = np.zeros_like(balance.off) if found.expected is None else _by_law(found.expected)
    low, high = np.minimum(law, 0.0), np.maximum(law, 0.0)
    beyond = np.where(balance.off > high, balance.off - high, np.minimum(balance.off - low, 0.0))
    matters = 2.0 * _MATTERS * np.nan_to_num(_PER_VARIANCE, nan=0.5)[:, None] * found.target_temperature
    with np.errstate(divide="ignore", invalid="ignore"):
        far = np.where((np.abs(beyond) > matters) & (balance.error > 0), np.abs(beyond) / balance.error, 0.0)
    allowed = _errors_allowed(balance)
    if not far.max() > allowed:
        return ""
    feature, d = np.unravel_index(int(far.argmax()), far.shape)
    if feature < 2:
        share = balance.off[feature, d] / _PER_VARIANCE[feature] / found.target_temperature
        if short and share < _NARROW:
            return _Short(
                f"the sd of {names.parameters[d]} is {np.sqrt(max(1.0 + share, 0.0)):.0%} of the sd that the slope of "
                f"the posterior implies (Stein's identity): the chains have not explored the posterior. Take more "
                f"rounds first. If they do not help, take longer steps or whiten=True"
            )
        number = f"the sd is about {np.sqrt(max(1.0 + share, 0.0)) - 1.0:+.1%} off"
    else:
        number = f"the shape, mostly the skewness, is off by {balance.off[feature, d]:+.2g}"
    noise, larger = (", or minibatches heat the draws", "a larger batch_size, ") if found.left_out else ("", "")
    return (
        f"the draws of {names.parameters[d]} do not fit the slope of the posterior (Stein's identity): {number}, "
        f"{far[feature, d]:.1f} Monte Carlo errors, {allowed:.1f} allowed. The step is too long where the posterior "
        f"differs from its Gaussian approximation{noise}: use {larger}smaller steps, or Importance(), ChEES() or "
        "Replicated(), which have no step-size bias"
    )


def _by_law(expected: Expected) -> np.ndarray:
    """The values of Stein's identity that a law predicts on a Gaussian, (feature, dim), by Gauss-Hermite quadrature."""
    nodes, weight = np.polynomial.hermite_e.hermegauss(20)
    v, weight = nodes[:, None] * expected.average_sd, weight / weight.sum()
    # draws are centred, so the error of their mean appears in the slope
    return np.stack([weight @ (h.function(v) * (v + expected.average_mean) - h.slope(v)) for h in FEATURES])


def _strayed(found: Findings) -> str:
    """Warning about draws at which F is implausibly large."""
    balance = found.balance
    if balance is None or not balance.rise > balance.allowed:
        return ""
    return (
        f"a draw is where the posterior has no mass: F there is {balance.rise:.0f} above its mean over the draws, and "
        f"with exponential or lighter tails this number of draws stays below {balance.allowed:.0f}. Unless the tails "
        "are heavier, chains have strayed into a region in which the step is too long. Standard deviations and "
        "quantiles are unreliable: use smaller steps, or Importance(), ChEES() or Replicated()"
    )


def _unvisited(found: Findings, names: _Names) -> str:
    """Warning about modes without draws."""
    balance = found.balance
    if balance is None or not balance.mass.size:
        return ""
    most = int(balance.mass.argmax())
    where = ", ".join(f"{n} = {x:.3g}" for n, x in zip(names.parameters[:6], balance.modes[most], strict=False))
    return (
        f"the posterior has another mode that has no draws, at {where}, with about {balance.mass[most]:.2g} times the "
        "mass of the mode with the draws (Laplace's approximation). If the modes differ only by a permutation of "
        "labels, such as components of a mixture, order the labels in the model. Otherwise use Importance(), which "
        "samples several modes"
    )


def _uninformed(drawn: Drawn) -> str:
    """Warning about the coefficient whose posterior is closest to its prior."""
    found = []
    for name, loc, sd, of_column in drawn.coefficients:
        if name in drawn.names:
            own = drawn.average[..., drawn.names.index(name)].astype(np.float64)
            if abs(own.mean() - loc) < _SAME_MEAN * sd and own.std() > _SAME_SD * sd:
                found.append((name, loc, sd, of_column, own))
    if not found:
        return ""
    name, loc, sd, of_column, own = max(found, key=lambda one: one[4].std() / one[2])
    others = f" and of {len(found) - 1} more" if len(found) > 1 else ""
    return (
        f"the data has almost no information about the coefficient of {name}{others}: its posterior (mean "
        f"{own.mean():.3g}, sd {own.std():.3g}) is its prior (mean {loc:.3g}, sd {sd:.3g}). The column has the sd "
        f"{of_column:.3g}, so the prior allows effects of about {sd * of_column:.2g} per standard deviation of the "
        "column: check the column's unit, widen the prior or leave the column out"
    )


def _tails(series: np.ndarray, owners: Owners, names: _Names) -> str:
    """Warning about tails too heavy for a standard deviation. Rare excursions of chains look the same."""
    low, middle, high = np.quantile(series.astype(np.float64), [0.25, 0.5, 0.75], axis=(0, 1))
    spread = np.maximum((high - low) / QUARTILES, np.finfo(float).tiny)
    # a chain that stays away for long has a small Pareto k
    wide = series.std(axis=(0, 1), dtype=np.float64) / spread
    wide[np.ptp(series, axis=(0, 1)) == 0] = 0.0
    k = np.nan_to_num(pareto_k(series), nan=-np.inf)
    if not (k.max() > _TAILS or wide.max() > _WIDEST):
        return ""
    worst = int(k.argmax() if k.max() > _TAILS else wide.argmax())
    (agent, d), x = owners[worst], series[..., worst].astype(np.float64)
    reach = np.abs(x - middle[worst]).max() / spread[worst]
    tail = f"Pareto k is {k[worst]:.2f}, and the variance is infinite above 0.5. " if k[worst] > _TAILS else ""
    return (
        f"the draws of {names.where(d, agent)} have tails too heavy for a standard deviation. {tail}The furthest draw "
        f"is {reach:.0f} robust standard deviations (IQR / {QUARTILES} = {spread[worst]:.3g}) from the median, and the "
        f"sd is {x.std():.3g}. Either the posterior has such tails, or chains have strayed into a region in which the "
        "step is too long. To check, rerun with smaller steps, or Replicated(), which rejects. Report quantiles"
    )


def unreliable_sd(draws: np.ndarray, names: Sequence[str]) -> str:
    """Warning about the parameter whose standard deviation depends on the fewest draws; empty if there is none.

    Parameters
    ----------
    draws
        Draws in the user's parameters, shape (chain, draw, dim).
    names
        Names of the parameters, (dim,).
    """
    if draws[..., 0].size < _FEWEST:
        return ""
    apart = np.square(draws - draws.mean(axis=(0, 1), dtype=np.float64)).reshape(-1, draws.shape[2])
    varied = np.flatnonzero(apart.max(axis=0) > 0)
    with np.errstate(divide="ignore"):
        ks = {int(d): pareto(np.log(apart[:, d])) for d in varied if np.isfinite(apart[:, d]).all()}
    worst = max(ks, key=lambda d: ks[d], default=None)
    if worst is None or ks[worst] <= SQUARES_K:
        return ""
    share = apart[:, worst].max() / apart[:, worst].sum()
    return (
        f"the standard deviation of {names[worst]} rests on few of {len(apart):,} draws and may be far off: one draw "
        f"contributes {share:.1%} of the variance, and the Pareto k of squares is {ks[worst]:.2f}, above {SQUARES_K}. "
        "Report quantiles, or the standard deviation of a transform such as the log"
    )


def _series(drawn: Drawn) -> tuple[np.ndarray, Owners]:
    """Draws (chain, draw, series) of the average and the kept agents, and the agent and parameter of each."""
    dim = drawn.average.shape[2]
    owners: Owners = [(None, d) for d in range(dim)]
    parts = [drawn.average]
    for place, agent in enumerate(drawn.agents):
        own = drawn.kept[:, :, place]
        # agents at a hub and agents with combined draws have the draws of the average
        if not np.array_equal(own, drawn.average):
            parts.append(own)
            owners += [(int(agent), d) for d in range(dim)]
    series = np.concatenate(parts, axis=2)
    if len(owners) <= _COUNTED:
        return series, owners
    half = series.shape[1] // 2
    if half < 2:
        return series[..., :_COUNTED], owners[:_COUNTED]
    # variance between half-chains: large if there are few effective draws or if chains disagree
    halves = np.stack([series[:, :half], series[:, half : 2 * half]])
    spread = halves.var(axis=2, dtype=np.float64).mean(axis=(0, 1))
    apart = halves.mean(axis=2, dtype=np.float64).var(axis=(0, 1)) / np.maximum(spread, np.finfo(float).tiny)
    worst = np.argsort(-apart)[:_COUNTED]
    return series[..., worst], [owners[i] for i in worst]


def _disagreement(drawn: Drawn, names: _Names) -> str:
    """Warning about the agent furthest from the average, in standard deviations of the average."""
    if not drawn.agents.size or not drawn.findings.agreeing:
        return ""
    average = drawn.average.astype(np.float64)
    sd = average.std(axis=(0, 1))
    varied = sd > 0
    if not varied.any():
        return ""
    square = [np.square(drawn.kept[:, :, i] - average).mean(axis=(0, 1)) for i in range(drawn.agents.size)]
    ratio = np.where(varied, np.sqrt(np.stack(square)) / np.where(varied, sd, 1.0), 0.0)
    allowed = _SHARE**0.5
    if not ratio.max() > allowed:
        return ""
    place, d = np.unravel_index(int(ratio.argmax()), ratio.shape)
    return (
        f"the agents disagree: {names.agent(int(drawn.agents[place]))} is {ratio[place, d]:.2f} sds away from the "
        f"average in {names.parameters[d]} (root mean square). Above {allowed:.2f} this alone makes an agent's sd "
        f"wrong by more than {TOLERANCE:.0%}. More mix_rounds, smaller steps, noise='common', gradient tracking "
        "(GTDULA, GTBAOAB) or more edges reduce the distance. The average may still be right"
    )


def _heat(found: Findings, short: bool) -> str:
    """Warning about a temperature of the average's draws that differs from the law's."""
    if not found.measured:
        return ""
    target = found.target_temperature
    law = target if found.expected is None else target * float(np.square(found.expected.average_sd).mean())
    # the law averages over parameters and the measurement over directions, so allow both temperatures
    low, high = min(target, law), max(target, law)
    slack = _SHARE * target + _ERRORS * found.temperature_error
    if low - slack <= found.temperature <= high + slack:
        return ""
    left_out = ", which leaves out the noise of minibatches," if found.left_out else ""
    number = (
        f"the average's draws have the temperature {found.temperature:.2f} ± {found.temperature_error:.2g}, and the "
        f"method's law{left_out} predicts {law:.2f}"
    )
    if found.temperature > high:
        remedy = (
            "Minibatches heat, so a larger batch_size or smaller steps help" if found.left_out else "Smaller steps help"
        )
        return f"{number}: too wide. {remedy}. Rounds(whiten=True) may help too"
    if short:
        return _Short(f"{number}: too narrow, as draws of a short run are. Take more rounds first")
    return f"{number}: too narrow. A longer burn_in helps if all chains start at one point, else smaller steps"


def _unmeasured(found: Findings) -> str:
    """Warning about minibatch noise that neither the law nor a measured temperature covers."""
    if not found.left_out or found.measured:
        return ""
    return (
        "the predicted bias leaves out the noise of minibatches, which makes the draws wider, and the temperature of "
        "the draws was not measured: compare with a run with a larger batch_size or all rows"
    )
