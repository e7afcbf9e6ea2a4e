"""Warnings about a run's draws, each with the number found and a remedy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy

from .certificate import Certificate
from .diagnostics import QUARTILES, SQUARES_K, diagnostics, pareto, pareto_k
from .findings import FEATURES, TOLERANCE, Balance, Expected, Findings

# Vehtari et al. 2021: below this many effective draws, or above this R-hat, neither says much itself.
_FEWEST, _RHAT = 400, 1.01
# What a variance may be off by where the sd is off by the tolerance. An agent whose distance from the average has this
# share of the average's variance is too wide by that, the two being about independent.
_SHARE = (1.0 + TOLERANCE) ** 2 - 1.0
# Monte Carlo errors beyond which a temperature is not that of the law.
_ERRORS = 4.0
# Draws whose tails have no variance have a Pareto k above 0.5. Estimates of it scatter: for Student's t with three
# degrees of freedom, whose k is 1/3, one in fifty is above this at some hundred draws.
_TAILS = 0.6
# How many of what quartiles call one a standard deviation is at most: 2 for the exponential of a normal variable, 1.5
# for Student's t with 3 degrees.
_WIDEST = 3.0
# Chance that draws of the posterior are said not to be in balance with its gradient, in all parameters together, and
# how far off they must be to matter: a standard deviation wrong by one percent, and as much of a skewness.
_FALSE_ALARM, _MATTERS = 1e-4, 0.01
# What the means of the functions in FEATURES are off by where a variance is off by all of itself: E h'(u), u normal.
# The last is odd about a Gaussian, and sees no variance.
_PER_VARIANCE = np.array([1.0, 0.6057, np.nan])
# Distance from the prior's mean in its sds, and share of its sd, where data adds at most 4% of the prior's precision.
_SAME_MEAN, _SAME_SD = 0.1, 0.98
# Of a variance, what draws that are few must miss of it to be those of chains that have not gone far.
_NARROW = -0.5
# Parameters of agents whose effective draws are counted, some milliseconds each; the least mixed where there are more.
_COUNTED = 500


# The agent, None for the average, and the parameter of each of some series of draws.
Owners = list[tuple[int | None, int]]


class Drawn(NamedTuple):
    """The parts of a run to look at, named as `Run` has them."""

    average: np.ndarray
    kept: np.ndarray
    agents: np.ndarray
    names: tuple[str, ...]
    findings: Findings
    certificate: Certificate | None = None
    weighted: bool = False
    # on the scale of `run.draws`, and the names there
    shown: np.ndarray | None = None
    shown_names: tuple[str, ...] = ()
    # name, mean and sd of the prior, and sd of the column
    coefficients: tuple[tuple[str, float, float, float], ...] = ()


def complaints(drawn: Drawn, sites: Sequence[str] | None = None) -> list[str]:
    """Warnings about a run's draws: the numbers found and a remedy, a sentence each.

    Parameters
    ----------
    drawn
        Its draws, and what is known beyond them.
    sites
        Names of all agents, to name them by.
    """
    if drawn.findings.target_temperature == 0:
        # an optimiser's positions are no draws
        return []
    names, series = _Names(drawn.names, sites), _series(drawn)
    found = drawn.findings
    first = [_bias(drawn, names), _certified(drawn.certificate)]
    mixing, short = _mixing(*series, names)
    last = [
        # tails of weighted points are the certificate's affair: points of large weights are repeated there
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
    """A complaint about what few draws alone may be the cause of, which longer runs mend."""


class _Names(NamedTuple):
    parameters: tuple[str, ...]
    sites: Sequence[str] | None

    def agent(self, agent: int) -> str:
        return f"agent {agent}" if self.sites is None else str(self.sites[agent])

    def where(self, d: int, agent: int | None) -> str:
        """A parameter of an agent, or with None of the average."""
        return f"{self.parameters[d]} " + ("in the average" if agent is None else f"at {self.agent(agent)}")


def _bias(drawn: Drawn, names: _Names) -> str:
    """The error that the law says, of the average and of the agents that were kept."""
    expected = drawn.findings.expected
    if expected is None:
        return ""
    mean = np.concatenate([expected.average_mean[None], expected.mean[drawn.agents]])
    sd = np.concatenate([expected.average_sd[None], expected.sd[drawn.agents]]) - 1.0
    errors = np.stack([np.abs(mean), np.abs(sd)])
    if errors.max() <= TOLERANCE:
        return ""
    what, row, d = np.unravel_index(int(errors.argmax()), errors.shape)
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
        f"allowed{average}. Smaller steps (with DADMMS a larger rho), more mix_rounds or noise='common' lessen it; "
        "numbers that are left out are chosen to keep within it, and accord.plan says at what cost"
        + (f". {drawn.findings.left_out}" if drawn.findings.left_out else "")
    )


def _certified(certificate: Certificate | None) -> str:
    """What is not as it should be with the weights that the draws were drawn by."""
    if certificate is None or certificate.holds:
        return ""
    return f"the draws are not certified: {certificate.why}"


def _mixing(series: np.ndarray, owners: Owners, names: _Names) -> tuple[str, bool]:
    """Effective draws and R-hat of the average and of every kept agent, and whether these say that the run is short."""
    if series.shape[1] < 4:
        text = f"{series.shape[1]} draws a chain are too few to tell how many are effective: more draws are needed"
        return text, False
    still = np.flatnonzero(np.ptp(series, axis=1).min(axis=0) == 0)
    if still.size:
        agent, d = owners[still[0]]
        text = (
            f"the draws of {names.where(d, agent)} are all the same in a chain: larger steps, more rounds between "
            "draws (thin) or a longer burn_in are needed"
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
        parts.append(f"R-hat is {rhat[most]:.3f} for {names.where(d, agent)}, above {_RHAT}")
    if not parts:
        return "", False
    advice = "more draws, more rounds between them (thin) or a longer burn_in are needed"
    return f"{', and '.join(parts)}: {advice}", True


def _of_longer_runs(found: Findings, faulty: bool) -> str:
    """What more draws will not mend, and what so few would not have shown."""
    if faulty:
        return ", and will not mend what else is warned of here, which comes first"
    if found.balance is None:
        return ". Whether these draws are the posterior's, which longer runs do not mend, was not looked at"
    unseen = _unseen(found.balance)
    return "" if unseen <= TOLERANCE else f". So few draws do not show a standard deviation that is {unseen:.0%} off"


def _unseen(balance: Balance) -> float:
    """The error of a standard deviation, relative to itself, that a balance would not have seen in every parameter."""
    # where no error is known nothing is seen
    return float(np.nan_to_num(_errors_allowed(balance) * balance.error[0], nan=np.inf).max() / 2.0)


def _errors_allowed(balance: Balance) -> float:
    """How many Monte Carlo errors a balance may be off by, of all its numbers."""
    return float(scipy.stats.t.isf(_FALSE_ALARM / (2 * balance.off.size), max(1, balance.batches - 1)))


def _unbalanced(found: Findings, names: _Names, short: bool) -> str:
    """The parameter whose draws are furthest from balance with the gradient of F, beyond what the law says."""
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
                f"the draws of {names.parameters[d]} cover {np.sqrt(max(1.0 + share, 0.0)):.0%} of what the slope of "
                f"the posterior there says that they should (Stein's identity): the chains have not gone far. Longer "
                f"steps, or whiten=True, help where more rounds do not; more rounds come first"
            )
        number = f"the sd is about {np.sqrt(max(1.0 + share, 0.0)) - 1.0:+.1%} off"
    else:
        number = f"the shape, skewness above all, is off by {balance.off[feature, d]:+.2g}"
    noise, larger = (", or minibatches heat the draws", "a larger batch_size, ") if found.left_out else ("", "")
    return (
        f"the draws of {names.parameters[d]} do not fit the slope of the posterior there (Stein's identity): {number}, "
        f"{far[feature, d]:.1f} Monte Carlo errors where {allowed:.1f} are allowed. The step is too long for the "
        f"posterior beyond its Gaussian approximation{noise}: {larger}smaller steps, or Importance(), ChEES() or "
        "Replicated(), which correct for it"
    )


def _by_law(expected: Expected) -> np.ndarray:
    """The balance that a law predicts on a Gaussian, (feature, dim), by Gauss and Hermite."""
    nodes, weight = np.polynomial.hermite_e.hermegauss(20)
    v, weight = nodes[:, None] * expected.average_sd, weight / weight.sum()
    # draws are centred, and what their mean is off by is in the slope
    return np.stack([weight @ (h.function(v) * (v + expected.average_mean) - h.slope(v)) for h in FEATURES])


def _strayed(found: Findings) -> str:
    """Draws where there is no mass, by F alone."""
    balance = found.balance
    if balance is None or not balance.rise > balance.allowed:
        return ""
    return (
        f"a draw is where the posterior has no mass: F there is {balance.rise:.0f} above its mean over the draws, and "
        f"{balance.allowed:.0f} is all that so many draws of a posterior with tails no heavier than exponential reach. "
        "Where its tails are not heavier, chains have strayed to where the step is too long for the method, which "
        "does not reject: smaller steps, or Importance(), ChEES() or Replicated(); standard deviations say nothing, "
        "quantiles little"
    )


def _unvisited(found: Findings, names: _Names) -> str:
    """Modes that no draw is of."""
    balance = found.balance
    if balance is None or not balance.mass.size:
        return ""
    most = int(balance.mass.argmax())
    where = ", ".join(f"{n} = {x:.3g}" for n, x in zip(names.parameters[:6], balance.modes[most], strict=False))
    return (
        f"the posterior has another mode that no draw is of, at {where}, with about {balance.mass[most]:.2g} times the "
        "mass of the one that the draws are of (Laplace's approximation). Where these are names of the same thing, as "
        "of components of a mixture, order them in the model; otherwise Importance() weighs modes"
    )


def _uninformed(drawn: Drawn) -> str:
    """The coefficient of which the posterior is most like its prior, where data says next to nothing about it."""
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
        f"the data says next to nothing about the coefficient of {name}{others}: its posterior (mean "
        f"{own.mean():.3g}, sd {own.std():.3g}) is its prior (mean {loc:.3g}, sd {sd:.3g}). The column has the sd "
        f"{of_column:.3g}, so the prior allows some {sd * of_column:.2g} a standard deviation of the column: check the "
        "column's unit, widen the prior or leave the column out"
    )


def _tails(series: np.ndarray, owners: Owners, names: _Names) -> str:
    """Tails so heavy that a standard deviation says nothing, as rare excursions make them too."""
    low, middle, high = np.quantile(series.astype(np.float64), [0.25, 0.5, 0.75], axis=(0, 1))
    spread = np.maximum((high - low) / QUARTILES, np.finfo(float).tiny)
    # a chain that stays away for long has no tail that thins out, and no large k
    wide = series.std(axis=(0, 1), dtype=np.float64) / spread
    wide[np.ptp(series, axis=(0, 1)) == 0] = 0.0
    k = np.nan_to_num(pareto_k(series), nan=-np.inf)
    if not (k.max() > _TAILS or wide.max() > _WIDEST):
        return ""
    worst = int(k.argmax() if k.max() > _TAILS else wide.argmax())
    (agent, d), x = owners[worst], series[..., worst].astype(np.float64)
    reach = np.abs(x - middle[worst]).max() / spread[worst]
    tail = f"Pareto k is {k[worst]:.2f}, above 0.5 there is none; " if k[worst] > _TAILS else ""
    return (
        f"the draws of {names.where(d, agent)} have tails too heavy for a standard deviation: {tail}"
        f"they reach {reach:.0f} of what their "
        f"quartiles call one, {spread[worst]:.3g}, from the median, and their sd is {x.std():.3g}. Where the posterior "
        "is not like that, chains have strayed to where the step is too long for the method, which does not reject: "
        "smaller steps, or Replicated(), which rejects, tell; quantiles are what can be reported"
    )


def unreliable_sd(draws: np.ndarray, names: Sequence[str]) -> str:
    """A warning about the parameter whose standard deviation rests on the fewest draws; empty where none does.

    Parameters
    ----------
    draws
        On the scale of `run.draws`, shape (chain, draw, dim).
    names
        Of the parameters, (dim,).
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
        f"makes {share:.1%} of the variance, and the Pareto k of squares is {ks[worst]:.2f}, above {SQUARES_K}. Report "
        "quantiles instead, or the standard deviation of a transform such as the log"
    )


def _series(drawn: Drawn) -> tuple[np.ndarray, Owners]:
    """Draws (chain, draw, series) of the average and the kept agents, and the agent and parameter of each."""
    dim = drawn.average.shape[2]
    owners: Owners = [(None, d) for d in range(dim)]
    parts = [drawn.average]
    for place, agent in enumerate(drawn.agents):
        own = drawn.kept[:, :, place]
        # at a hub, and where draws were combined, all agents have the same
        if not np.array_equal(own, drawn.average):
            parts.append(own)
            owners += [(int(agent), d) for d in range(dim)]
    series = np.concatenate(parts, axis=2)
    if len(owners) <= _COUNTED:
        return series, owners
    half = series.shape[1] // 2
    if half < 2:
        return series[..., :_COUNTED], owners[:_COUNTED]
    # how far the halves of chains are apart, which few effective draws and chains that disagree both show
    halves = np.stack([series[:, :half], series[:, half : 2 * half]])
    spread = halves.var(axis=2, dtype=np.float64).mean(axis=(0, 1))
    apart = halves.mean(axis=2, dtype=np.float64).var(axis=(0, 1)) / np.maximum(spread, np.finfo(float).tiny)
    worst = np.argsort(-apart)[:_COUNTED]
    return series[..., worst], [owners[i] for i in worst]


def _disagreement(drawn: Drawn, names: _Names) -> str:
    """How far agents are from their average, over its standard deviation."""
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
        f"the agents disagree: {names.agent(int(drawn.agents[place]))} is {ratio[place, d]:.2f} sds of the average "
        f"away from it in {names.parameters[d]} (root mean square), and above {allowed:.2f} that alone makes an "
        f"agent's sd wrong by more than {TOLERANCE:.0%}. More mix_rounds, smaller steps, noise='common', gradient "
        "tracking (GTDULA, GTBAOAB) or more edges bring them together; the average may be right all the same"
    )


def _heat(found: Findings, short: bool) -> str:
    """The temperature of the average's draws beside the law's."""
    if not found.measured:
        return ""
    target = found.target_temperature
    law = target if found.expected is None else target * float(np.square(found.expected.average_sd).mean())
    # a law that is itself off speaks of the parameters one by one, the measure of all directions alike
    low, high = min(target, law), max(target, law)
    slack = _SHARE * target + _ERRORS * found.temperature_error
    if low - slack <= found.temperature <= high + slack:
        return ""
    left_out = ", which leaves out the noise of minibatches," if found.left_out else ""
    number = (
        f"the average's draws have the temperature {found.temperature:.2f}, give or take "
        f"{found.temperature_error:.2g}, where the method's law{left_out} has {law:.2f}"
    )
    if found.temperature > high:
        remedy = (
            "Minibatches heat, so a larger batch_size or smaller steps help" if found.left_out else "Smaller steps help"
        )
        return f"{number}: too wide. {remedy}; so may Rounds(whiten=True) where it is not taken yet"
    if short:
        return _Short(f"{number}: too narrow, as the draws of a short run are; more rounds come first")
    return f"{number}: too narrow. A longer burn_in helps where all chains begin at one point, else smaller steps"


def _unmeasured(found: Findings) -> str:
    """A complaint about noise that the law leaves out, where no temperature shows it."""
    if not found.left_out or found.measured:
        return ""
    return (
        "what the method's law says of these draws leaves out the noise of minibatches, which makes them wider, and "
        "their temperature, which would show it, was not measured: compare with a run with a larger batch_size or all "
        "rows"
    )
