"""Warnings about a run's draws, each with the number found and a remedy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .certificate import Certificate
from .diagnostics import diagnostics, pareto_k
from .findings import TOLERANCE, Findings

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
# What a normal distribution's quartiles are apart, in standard deviations.
_QUARTILES = 1.349
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
    found = (
        _bias(drawn, names),
        _certified(drawn.certificate),
        _mixing(*series, names),
        # tails of weighted points are the certificate's affair: points of large weights are repeated there
        "" if drawn.weighted else _tails(*series, names),
        _disagreement(drawn, names),
        _heat(drawn.findings) or _unmeasured(drawn.findings),
    )
    return [text for text in found if text]


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


def _mixing(series: np.ndarray, owners: Owners, names: _Names) -> str:
    """Effective draws and R-hat of the average and of every kept agent."""
    if series.shape[1] < 4:
        return f"{series.shape[1]} draws a chain are too few to tell how many are effective: more draws are needed"
    still = np.flatnonzero(np.ptp(series, axis=1).min(axis=0) == 0)
    if still.size:
        agent, d = owners[still[0]]
        return (
            f"the draws of {names.where(d, agent)} are all the same in a chain: larger steps, more rounds between "
            "draws (thin) or a longer burn_in are needed"
        )
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
        return ""
    return f"{', and '.join(parts)}: more draws, more rounds between them (thin) or a longer burn_in are needed"


def _tails(series: np.ndarray, owners: Owners, names: _Names) -> str:
    """Tails so heavy that a standard deviation says nothing, as rare excursions make them too."""
    k = pareto_k(series)
    if not np.nanmax(k, initial=-np.inf) > _TAILS:
        return ""
    worst = int(np.nanargmax(k))
    (agent, d), x = owners[worst], series[..., worst].astype(np.float64)
    low, middle, high = np.quantile(x, [0.25, 0.5, 0.75])
    spread = (high - low) / _QUARTILES
    reach = np.abs(x - middle).max() / spread if spread > 0 else np.inf
    return (
        f"the draws of {names.where(d, agent)} have tails too heavy for a standard deviation: Pareto k is "
        f"{k[worst]:.2f}, above 0.5 there is none; they reach {reach:.0f} of what their "
        f"quartiles call one, {spread:.3g}, from the median, and their sd is {x.std():.3g}. Where the posterior is not "
        "like that, chains have strayed to where the step is too long for the method, which does not reject: smaller "
        "steps, or Replicated(), which rejects, tell; quantiles are what can be reported"
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


def _heat(found: Findings) -> str:
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
        return f"{number}: too wide. Minibatches heat, so a larger batch_size or smaller steps help; so may whiten=True"
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
