"""How steps are chosen for the comparison: by one rule, from the exact law of each method on a Gaussian surrogate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import accord
from accord.samplers import (
    DADMMS,
    DASG,
    DESGHMC,
    DESGLD,
    DGLMC,
    DULA,
    EXTRASGLD,
    FALD,
    FSGLD,
    GCMC,
    GTDULA,
    DIGingSGLD,
    Gibbs,
    HubSGLD,
    StaleSGLD,
)

# Powers of two: the Langevin step on F times the largest eigenvalue of F's Hessian.
LOWEST, HIGHEST, START = -14, 6, -4


@dataclass(frozen=True)
class Budget:
    """What every method may use: rounds with their burn-in, kept draws after thinning, chains.

    `search` is False in smoke tests: the first step of the grid that is stable.
    """

    rounds: int
    burn_in: int
    thin: int
    chains: int
    warmup: int = 500
    search: bool = True

    @property
    def draws(self) -> int:
        """Draws kept of each chain."""
        return (self.rounds - self.burn_in) // self.thin


class Surrogate:
    """A Gaussian posterior over a network, in units of its own sds."""

    def __init__(self, gaussian: accord.Posterior, net: accord.Network, post: accord.Posterior) -> None:
        self.gaussian, self.net, self.post = gaussian, net, post
        self.law = gaussian.exact()
        self.agents = gaussian.num_agents
        self.curvatures, self._axes = np.linalg.eigh(gaussian.hessians().sum(axis=0))
        self.largest = float(self.curvatures[-1])
        self.distance = self._axes.T @ (post.init - self.law.mean)

    def wasserstein2(self, found: accord.Gaussian) -> float:
        scale = self.law.sd
        pair = [accord.Gaussian(g.mean / scale, g.cov / np.outer(scale, scale)) for g in (found, self.law)]
        return accord.metrics.wasserstein2(*pair)

    def start_left(self, step: float, budget: Budget) -> float:
        """How far the mean of the draws still is from the posterior's, as a mode of curvature c decays by step c."""
        rate, rounds = step * self.curvatures, budget.rounds - budget.burn_in
        left = np.exp(-rate * budget.burn_in) * -np.expm1(-rate * rounds) / (rate * rounds)
        return float(np.linalg.norm(self._axes @ (left * self.distance) / self.law.sd))

    def monte_carlo(self, step: float, draws: int) -> float:
        """Error of the mean of so many Langevin steps: a mode of curvature c forgets in 2 / (step c) of them."""
        times = np.maximum(1.0, 2.0 / (step * self.curvatures))
        cov = (self._axes * (times / self.curvatures)) @ self._axes.T
        return float(np.sqrt(np.sum(np.diag(cov) / self.law.sd**2) / draws))


@dataclass(frozen=True, eq=False)
class Family:
    """A method up to its step.

    `make(surrogate, h, variant)` has the Langevin step h on F; `variants` are values of a second number to try.
    """

    method: str
    make: Callable[[Surrogate, float, float], accord.Sampler]
    variants: tuple[float, ...] = (0.0,)


@dataclass(frozen=True, eq=False)
class Choice:
    """A method with the numbers that the rule chose, and what its law on the surrogate says: W2 in sds."""

    sampler: accord.Sampler
    worst: float
    average: float
    error: float


def edge_weight(s: Surrogate) -> float:
    """The consensus step whose weights are those of "max-degree"."""
    return 1.0 / (1.0 + s.net.max_degree)


def desghmc(s: Surrogate, h: float, damping: float) -> DESGHMC:
    # h = step / (friction N) with the friction that takes the share `damping` of the velocity in a step
    step = np.sqrt(damping * h * s.agents)
    return DESGHMC(step, damping / step)


def dadmms(s: Surrogate, h: float, **options) -> DADMMS:
    return DADMMS(1.0 / (2.0 * h * float(s.net.degrees.sum())), **options)


def dasg(s: Surrogate, h: float, _: float) -> DASG:
    step = h * s.agents
    root = min(np.sqrt(step * s.curvatures[0] / s.agents), 1.0)
    return DASG(step, (1.0 - root) / (1.0 + root))


def gibbs(s: Surrogate, h: float, **options) -> Gibbs:
    return Gibbs(h / Gibbs(1.0).langevin_step(s.net), **options)


def gibbs_rejection(s: Surrogate, h: float, **options) -> Gibbs:
    """With eta at most where rejection takes few tries (`Gibbs`): sum_j sigma_ij / (beta_i dim)."""
    weights = s.net.weights("metropolis")
    ties = np.asarray(weights.sum(axis=1)).ravel() - weights.diagonal()
    bound = float((ties / (np.linalg.eigvalsh(s.gaussian.hessians())[:, -1] * s.gaussian.dim)).min())
    sampler = gibbs(s, h, **options)
    if sampler.eta > bound:
        raise ValueError(f"eta {sampler.eta:.3g} is above {bound:.3g}")
    return sampler


def dglmc(s: Surrogate, h: float, _: float) -> DGLMC:
    """The guideline's rho_i = 1 / M_i times a number, with steps of a quarter of their bounds, hence four of them.

    M_i is the larger of the surrogate's and, where it is finite, the posterior's own at its init.
    """
    found = s.post.hessians()
    found = np.where(np.isfinite(found), found, 0.0)
    largest = np.maximum(*(np.linalg.eigvalsh(H)[:, -1] for H in (found, s.gaussian.hessians())))
    rho = h * largest.sum() / largest
    return DGLMC(rho, 0.25 * rho / (1.0 + rho * largest), 4)


def gt(s: Surrogate, h: float, **options) -> GTDULA:
    return GTDULA(h, edge_weight(s), edge_weight(s), **options)


FAMILIES = {
    "DESGLD": Family("DESGLD", lambda s, h, _: DESGLD(h * s.agents)),
    "DESGHMC": Family("DESGHMC", desghmc, variants=(0.1, 0.5)),
    "DULA": Family("DULA", lambda s, h, _: DULA(h, edge_weight(s))),
    "GTDULA": Family("GTDULA", lambda s, h, _: gt(s, h)),
    "GTDULA common": Family("GTDULA", lambda s, h, _: gt(s, h, noise="common")),
    "EXTRASGLD": Family("EXTRASGLD", lambda s, h, blend: EXTRASGLD(h * s.agents, blend), variants=(0.5, 0.1)),
    "EXTRASGLD common": Family("EXTRASGLD", lambda s, h, _: EXTRASGLD(h * s.agents, noise="common")),
    "DIGingSGLD": Family("DIGingSGLD", lambda s, h, _: DIGingSGLD(h * s.agents)),
    "DIGingSGLD common": Family("DIGingSGLD", lambda s, h, _: DIGingSGLD(h * s.agents, noise="common")),
    "DADMMS published": Family("DADMMS", lambda s, h, _: dadmms(s, h, calibration="published")),
    "DADMMS": Family("DADMMS", lambda s, h, _: dadmms(s, h)),
    "DADMMS common": Family("DADMMS", lambda s, h, _: dadmms(s, h, noise="common")),
    "DASG": Family("DASG", dasg),
    "Gibbs": Family("Gibbs", lambda s, h, _: gibbs(s, h)),
    "Gibbs recentred": Family("Gibbs", lambda s, h, _: gibbs(s, h, recentre=True)),
    "Gibbs rejection": Family("Gibbs", lambda s, h, _: gibbs_rejection(s, h)),
    "Gibbs rejection recentred": Family("Gibbs", lambda s, h, _: gibbs_rejection(s, h, recentre=True)),
    "DGLMC": Family("DGLMC", dglmc),
    "GCMC": Family("GCMC", lambda s, h, _: GCMC(h * s.agents, conditional="exact")),
    "HubSGLD": Family("HubSGLD", lambda s, h, _: HubSGLD(h)),
    "FSGLD 10": Family("FSGLD", lambda s, h, _: FSGLD(h / 10.0, local_steps=10)),
    "FALD": Family("FALD", lambda s, h, _: FALD(h)),
    "FALD 10": Family("FALD", lambda s, h, _: FALD(h / 10.0, 10)),
    "FALD 10 common": Family("FALD", lambda s, h, _: FALD(h / 10.0, 10, 1.0)),
    "StaleSGLD": Family("StaleSGLD", lambda s, h, _: StaleSGLD(h, 5)),
    "HubSGLD 10": Family("HubSGLD", lambda s, h, _: HubSGLD(h / 10.0, local_steps=10)),
}


def choose(s: Surrogate, family: Family, budget: Budget) -> Choice:
    """The numbers of least predicted error, by walking the grid of steps from its middle to where the error rises.

    Raises
    ------
    ValueError
        No step of the grid is stable.
    """
    found = [walk(s, family, variant, budget) for variant in family.variants[: None if budget.search else 1]]
    best = min(found, key=lambda choice: choice.error)
    if not np.isfinite(best.error):
        raise ValueError(f"no step of the grid is stable for {family.method} on the Gaussian surrogate")
    return best


def walk(s: Surrogate, family: Family, variant: float, budget: Budget) -> Choice:
    """The best of one variant: steps by a factor of four, then by two; the error has one valley."""
    tried: dict[int, Choice] = {}

    def look(power: int) -> float:
        if power not in tried:
            tried[power] = evaluated(s, family, variant, 2.0**power / s.largest, budget)
        return tried[power].error

    here = START
    while not np.isfinite(look(here)) and here > LOWEST:
        here -= 2
    for stride in (2, 1) if budget.search else ():
        moved = True
        while moved:
            moved = False
            for there in (here + stride, here - stride):
                if LOWEST <= there <= HIGHEST and look(there) < look(here):
                    here, moved = there, True
                    break
    return tried[here]


def evaluated(s: Surrogate, family: Family, variant: float, h: float, budget: Budget) -> Choice:
    """The predicted error with one step: of the law, of what is left of the start, of the number of draws."""
    try:
        sampler = family.make(s, h, variant)
        worst, average = predicted(s, sampler)
    except (ValueError, ArithmeticError):
        return Choice(DESGLD(), np.inf, np.inf, np.inf)
    step = float(sampler.langevin_step(s.net))
    noise = np.sqrt(sampler.temperature) * s.monte_carlo(step, budget.chains * (budget.rounds - budget.burn_in))
    start = s.start_left(step, budget)
    return Choice(sampler, worst, average, float(np.sqrt(worst**2 + noise**2 + start**2)))


def predicted(s: Surrogate, sampler: accord.Sampler) -> tuple[float, float]:
    """W2 of the worst agent and of the average to the surrogate, in its sds."""
    if isinstance(sampler, HubSGLD):
        # agents hold different chains: their average says nothing of the posterior's width
        return s.wasserstein2(travelling(s, sampler)), np.nan
    if isinstance(sampler, FSGLD):
        # surrogates of Gaussian potentials are exact: every visit makes Langevin steps on F
        return s.wasserstein2(langevin(s, sampler.step_size)), np.nan
    moments = accord.law(s.gaussian, s.net, sampler).stationary()
    return max(s.wasserstein2(moments.agent(i)) for i in range(s.agents)), s.wasserstein2(moments.average)


def langevin(s: Surrogate, step: float) -> accord.Gaussian:
    """The stationary law of Langevin steps on F."""
    precision = s.gaussian.hessians().sum(axis=0)
    kept = precision - step / 2.0 * precision @ precision
    if not np.linalg.eigvalsh(kept)[0] > 0:
        raise ValueError(f"unstable: step {step:.4g}")
    cov = np.linalg.inv(kept)
    return accord.Gaussian(s.law.mean, (cov + cov.T) / 2.0)


def travelling(s: Surrogate, sampler: HubSGLD) -> accord.Gaussian:
    """Stationary mean and covariance of one chain that makes its steps at an agent picked at random each round.

    Its law is a mixture, but its first two moments are closed under the random affine maps x -> A x + c + noise.
    """
    count, dim = int(np.max(sampler.local_steps)), s.gaussian.dim
    hessians = s.agents * s.gaussian.hessians()
    linear = -s.agents * s.gaussian.gradients(np.zeros(dim))
    once = np.eye(dim) - sampler.step_size * hessians
    A, c, Q = np.broadcast_to(np.eye(dim), once.shape), np.zeros((s.agents, dim)), np.zeros(once.shape)
    for _ in range(count):
        A = once @ A
        c = np.einsum("nij,nj->ni", once, c) + sampler.step_size * linear
        Q = once @ Q @ np.swapaxes(once, 1, 2) + 2.0 * sampler.step_size * np.eye(dim)
    first = A.mean(axis=0)
    second = np.mean([np.kron(a, a) for a in A], axis=0)
    radius = max(np.abs(np.linalg.eigvals(first)).max(), np.sqrt(np.abs(np.linalg.eigvals(second)).max()))
    if not radius < 1:
        raise ValueError(f"unstable: spectral radius {radius:.4g}")
    mean = np.linalg.solve(np.eye(dim) - first, c.mean(axis=0))
    # deviations from the mean: y -> A y + (A mean + c - mean) + noise, whose middle term averages to zero
    shift = A @ mean + c - mean
    added = (Q + shift[:, :, None] * shift[:, None, :]).mean(axis=0)
    cov = np.linalg.solve(np.eye(dim**2) - second, added.ravel()).reshape(dim, dim)
    return accord.Gaussian(mean, (cov + cov.T) / 2.0)
