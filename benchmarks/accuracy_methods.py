"""Methods with rounds, and their steps on each target of `accuracy_targets.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from accuracy_targets import Target

import accord
from accord.samplers import (
    DADMMS,
    DASG,
    DESGHMC,
    DESGLD,
    DGLMC,
    DMAHMC,
    DULA,
    ELF,
    EXTRASGLD,
    FALD,
    FSGLD,
    GCMC,
    GTBAOAB,
    GTDULA,
    QLSD,
    AsynchronousULA,
    DIGingSGLD,
    EventTriggeredULA,
    Gibbs,
    HubSGLD,
    ProximalDESGLD,
    Replicated,
    SplitGTBAOAB,
    StaleSGLD,
)
from accord.samplers.convex_sets import Box
from accord.samplers.schedules import Polynomial, diminishing

# edge weight and consensus step of "max-degree" on rings and paths
EDGE = 1.0 / 3.0
# first step of D-ULA with diminishing steps, by target
FIRST = {"linear": 0.002646, "logistic": 0.00285, "power": 0.1108}
# most leapfrog steps of D-MAHMC
MOST_LEAPFROG = 16
PAPER = DULA(Polynomial(0.00082, 230.0, 0.05), Polynomial(0.48, 230.0, 0.05))


class Entry(NamedTuple):
    """A row of the table. With `powers`, `make` gets the Langevin step on F: 2**power / F's largest curvature."""

    label: str
    make: Callable[[Target, float], accord.Sampler]
    powers: tuple[int, int, int] | None = None

    def sampler(self, target: Target) -> accord.Sampler:
        if self.powers is None:
            return self.make(target, np.nan)
        power = self.powers[list(FIRST).index(target.name)]
        return self.make(target, 2.0**power / target.curvatures[-1])


def desghmc(t: Target, h: float) -> DESGHMC:
    # friction removes a tenth of the velocity per step
    step = np.sqrt(0.1 * h * t.agents)
    return DESGHMC(step, 0.1 / step)


def event_triggered(t: Target, h: float) -> EventTriggeredULA:
    # the noise size of a round, so that agents skip about half of the rounds
    return EventTriggeredULA(h, EDGE, float(np.sqrt(2.0 * h * t.agents * t.post.dim)))


def gt(t: Target, h: float, noise: str = "independent") -> GTDULA:
    return GTDULA(h, EDGE, EDGE, noise=noise)


def leapfrog(t: Target, remainder: bool) -> DMAHMC:
    # half the largest stable step, and trajectories of about the widest standard deviation
    smallest, largest = np.sqrt(t.curvatures[[0, -1]])
    return DMAHMC(1.0 / largest, int(np.clip(np.ceil(largest / smallest), 1, MOST_LEAPFROG)), remainder)


def dadmms(t: Target, h: float, **options) -> DADMMS:
    return DADMMS(1.0 / (2.0 * h * float(t.net.degrees.sum())), **options)


def dasg(t: Target, h: float) -> DASG:
    root = min(np.sqrt(h * t.curvatures[0]), 1.0)
    return DASG(h * t.agents, (1.0 - root) / (1.0 + root))


def gibbs(t: Target, h: float, conditional: str = "exact", recentre: bool = False) -> Gibbs:
    return Gibbs(h / Gibbs(1.0).langevin_step(t.net), conditional, recentre=recentre)


def dglmc(t: Target, h: float) -> DGLMC:
    """DG-LMC with rho_i in proportion to the guideline's 1 / M_i, and four steps at a quarter of their bound."""
    own = t.post.hessians()
    hessians = np.where(np.isfinite(own), own, 0.0), t.surrogate.hessians()
    largest = np.maximum(*(np.linalg.eigvalsh(each)[:, -1] for each in hessians))
    rho = h * largest.sum() / largest
    return DGLMC(rho, 0.25 * rho / (1.0 + rho * largest), 4)


def gcmc(t: Target, h: float, conditional: str = "mala") -> GCMC:
    return GCMC(h * t.agents, conditional)


def falling(t: Target, h: float) -> GCMC:
    rho = h * t.agents
    return GCMC(rho, tolerances=(8.0 * rho, 4.0 * rho, 2.0 * rho))


ENTRIES = (
    Entry("DE-SGLD", lambda t, h: DESGLD(h * t.agents), (-10, -4, -8)),
    Entry("DE-SGLD, diminishing steps", lambda t, _: DESGLD(diminishing(FIRST[t.name] * t.agents))),
    Entry("Proximal DE-SGLD, no bounds", lambda t, h: ProximalDESGLD(h * t.agents, Box()), (-10, -4, -8)),
    Entry("DE-SGHMC", desghmc, (-10, -4, -8)),
    Entry("D-ULA", lambda t, h: DULA(h, EDGE), (-10, -4, -8)),
    Entry("D-ULA, diminishing steps", lambda t, _: DULA(diminishing(FIRST[t.name]), EDGE)),
    Entry("D-ULA, steps of the D-ADMMS paper", lambda t, _: PAPER),
    Entry("Event-triggered ULA", event_triggered, (-10, -4, -8)),
    Entry("Asynchronous ULA, half active", lambda t, h: AsynchronousULA(h, EDGE), (-10, -4, -8)),
    Entry("GT-DULA", gt, (-9, -4, -7)),
    Entry("GT-DULA, common noise", lambda t, h: gt(t, h, "common"), (-5, -4, -5)),
    Entry("EXTRA-SGLD", lambda t, h: EXTRASGLD(h * t.agents, 0.1), (-10, -4, -8)),
    Entry("EXTRA-SGLD, common noise", lambda t, h: EXTRASGLD(h * t.agents, noise="common"), (-5, -2, -5)),
    Entry("DIGing-SGLD", lambda t, h: DIGingSGLD(h * t.agents), (-9, -4, -7)),
    Entry("DIGing-SGLD, common noise", lambda t, h: DIGingSGLD(h * t.agents, noise="common"), (-5, -4, -5)),
    Entry("GT-BAOAB, tuned", lambda t, _: GTBAOAB()),
    Entry("Split GT-BAOAB, tuned", lambda t, _: SplitGTBAOAB()),
    Entry("D-MAHMC", lambda t, _: leapfrog(t, True)),
    Entry("D-MAHMC, Taylor approximation", lambda t, _: leapfrog(t, False)),
    Entry("D-ADMMS as published", lambda t, h: dadmms(t, h, calibration="published"), (-3, 0, -2)),
    Entry("D-ADMMS calibrated", dadmms, (-10, -4, -8)),
    Entry("D-ADMMS calibrated, common noise", lambda t, h: dadmms(t, h, noise="common"), (-5, -1, -4)),
    Entry("D-ASG", dasg, (-14, -12, -14)),
    Entry("Gibbs, exact conditionals", gibbs, (-9, -3, -7)),
    Entry("Gibbs, exact conditionals, recentred", lambda t, h: gibbs(t, h, recentre=True), (-8, -3, -6)),
    Entry("Gibbs, rejection", lambda t, h: gibbs(t, h, "rejection"), (-9, -6, -7)),
    Entry("Gibbs, rejection, recentred", lambda t, h: gibbs(t, h, "rejection", True), (-8, -6, -6)),
    Entry("Gibbs, MALA", lambda t, h: gibbs(t, h, "mala"), (-9, -3, -7)),
    Entry("Gibbs, MALA, recentred", lambda t, h: gibbs(t, h, "mala", True), (-8, -3, -6)),
    Entry("DG-LMC, defaults", lambda t, _: DGLMC()),
    Entry("DG-LMC, rho chosen", dglmc, (-6, -2, -6)),
    Entry("GCMC, exact conditionals", lambda t, h: gcmc(t, h, "exact"), (-5, -2, -5)),
    Entry("GCMC, MALA", gcmc, (-5, -2, -5)),
    Entry("GCMC, MALA, falling tolerances", falling, (-5, -2, -5)),
    Entry("D-SGLD with a hub", lambda t, h: HubSGLD(h), (-7, -2, -6)),
    Entry("D-SGLD with a hub, 10 local steps", lambda t, h: HubSGLD(h / 10.0, 10), (-7, -2, -6)),
    Entry("FSGLD, 10 local steps", lambda t, h: FSGLD(h / 10.0, 10), (-2, 2, -2)),
    Entry("FA-LD", lambda t, h: FALD(h), (-4, 0, -4)),
    Entry("FA-LD, 10 local steps", lambda t, h: FALD(h / 10.0, 10), (-3, -2, -3)),
    Entry("FA-LD, 10 local steps, common noise", lambda t, h: FALD(h / 10.0, 10, 1.0), (-3, -2, -3)),
    Entry("StaleSGLD, 5 rounds late", lambda t, h: StaleSGLD(h, 5), (-7, -3, -7)),
    Entry("QLSD, 2 levels, no memory", lambda t, h: QLSD(h, 2, memory=0.0), (-4, 0, -4)),
    Entry("QLSD, 2 levels", lambda t, h: QLSD(h, 2), (-4, 0, -4)),
    Entry("D-ELF, a quarter of the entries", lambda t, h: ELF(h), (-4, 0, -4)),
    Entry("Replicated NUTS", lambda t, _: Replicated("nuts", warmup=500)),
    Entry("Replicated HMC", lambda t, _: Replicated("hmc", warmup=500)),
    Entry("Replicated MALA", lambda t, _: Replicated("mala", warmup=500)),
)
