"""ChEES-HMC on totals: an exact Markov chain for posteriors that importance sampling does not fit."""

from __future__ import annotations

from dataclasses import dataclass

from ..base.checks import whole_number
from .by_totals import ByTotals


@dataclass(frozen=True, kw_only=True)
class ChEES(ByTotals):
    """Hamiltonian Monte Carlo of many chains in lockstep, whose every leapfrog step is one total of all chains.

    From agent i: f_i and grad f_i at the positions of all chains, summed over a tree of the network. All agents hold
    the same chains. Step size, trajectory length (by the ChEES criterion) and scale are found by all chains together in
    warm-up; after it every transition is an exact Metropolis transition, so that draws have no bias whatever the step.

    Not from the papers: Hoffman, Radul & Sountsov (2021), "An Adaptive-MCMC Scheme for Setting Trajectory Lengths in
    Hamiltonian Monte Carlo"; convergence by nested R-hat (Margossian et al. 2024, arXiv 2110.13017).

    Parameters
    ----------
    lockstep
        Chains that move together, >= 16; rounded up to a multiple of the run's chains, each of which is made of as many
        of them, one after another.
    warmup
        Transitions that adapt, >= 0.
    max_transitions
        Transitions after warm-up, >= 1. It ends with what there is as soon as more would be needed for the draws that
        are asked for.

    Raises
    ------
    ValueError
        A number out of its range.
    """

    lockstep: int = 128
    warmup: int = 100
    max_transitions: int = 1000

    def __post_init__(self) -> None:
        whole_number("lockstep", self.lockstep, 16)
        whole_number("warmup", self.warmup, 0)
        whole_number("max_transitions", self.max_transitions, 1)
