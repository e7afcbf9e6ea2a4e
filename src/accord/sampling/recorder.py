"""Record the draws and statistics of a run, and build its `Run`."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from ..network import Network
from ..posterior import Posterior
from ..posterior.latent_keepers import keep_latents
from ..results.run import Run, Traffic
from ..results.unconstrained import in_both_scales
from ..samplers.by_sums.integration import integration_check
from ..samplers.costs import messages_per_round, rows_per_gradient
from ..samplers.protocol import Bound, Monitored
from ..samplers.session import Job, Session
from ..tuning.forecast import Forecast
from ..tuning.warmup import Warmup
from .balance import Measured, measure, num_evaluated
from .diagnostics import agreeing, examination


@dataclass
class Recorder:
    """Draws and statistics recorded so far. `run` builds a `Run` from them."""

    post: Posterior
    network: Network
    bound: Bound
    agent_indices: np.ndarray
    chains: int
    draws: int
    burn_in: int
    thin: int
    seed: int
    warmup: Warmup | None = None
    # the reason for the choice of the method or its numbers; empty if the user gave both
    chosen: str = ""
    forecast: Forecast | None = None
    # measurements of the draws of a finished run
    measured: Measured | None = None
    # settings entries with the places of the agents' latents
    kept_latents: dict[str, str] = field(default_factory=dict)
    checked: Traffic = field(default_factory=Traffic)
    is_interrupted: bool = False
    count: int = 0
    rounds: int = 0
    message_bytes: int = 0
    began: float = field(default_factory=time.perf_counter)
    agent_draws: np.ndarray | None = None
    average: np.ndarray | None = None
    statistics: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # read now: after the loss of an agent, `run` cannot request them
        self.sizes = self.post.sizes

    def append(self, records: Any, count: int) -> None:
        """Append the first `count` draws of an engine's records."""
        # engines record (draw, agent, dim, chain)
        average, agents = np.moveaxis(records.average[:count], -1, 0), np.moveaxis(records.draws[:count], -1, 0)
        self.put(self.count, average, agents, {name: values[:count].T for name, values in records.statistics.items()})
        self.count += count

    def put(self, first: int, average: np.ndarray, agents: np.ndarray, statistics: dict[str, np.ndarray]) -> None:
        """Store draws from number `first` on, arrays (chain, draw, ...). Draws beyond `draws` are dropped."""
        if self.average is None or self.agent_draws is None:
            self.average = np.empty((self.chains, self.draws, *average.shape[2:]), average.dtype)
            self.agent_draws = np.empty((self.chains, self.draws, *agents.shape[2:]), agents.dtype)
            self.statistics = {n: np.empty((self.chains, self.draws), v.dtype) for n, v in statistics.items()}
        span = slice(first, first + average.shape[1])
        fits = slice(max(0, self.draws - first))
        self.average[:, span] = average[:, fits]
        self.agent_draws[:, span] = agents[:, fits]
        for name, values in statistics.items():
            self.statistics[name][:, span] = values[:, fits]

    @property
    def total_rounds(self) -> int:
        """Rounds of the whole run."""
        return self.burn_in + self.draws * self.thin

    @property
    def seconds(self) -> float:
        """Wall seconds so far, with the time before an interruption."""
        return time.perf_counter() - self.began

    def measure(self) -> None:
        """Check the draws of a finished sum-based run over the agents: quadrature, F and its gradient."""
        self._measure_latents()
        self._measure_balance()

    def keep_latents(self) -> None:
        """Have remote agents draw their latents at the draws so far and store them at their sites."""
        assert self.agent_draws is not None
        own = self.agent_draws[:, : self.count]
        self.kept_latents = keep_latents(self.post, self.agent_indices, own, self.seed)

    def _measure_latents(self) -> None:
        """Warn if the quadrature over latents is not accurate enough."""
        if self.post.latents is None or self.average is None or self.count == 0:
            return
        post = self.post.in_parameters()
        with jax.enable_x64(True):
            session = Session(Job(post, self.network))
            check = integration_check(session, self.average[:, : self.count].astype(np.float64))
        self.checked = session.traffic
        if check is not None and not check.holds:
            warnings.warn(f"the draws are unreliable: {check.text}", stacklevel=4)

    def _measure_balance(self) -> None:
        """Measure F and its gradient at the draws, if the run had a warm-up and so already used sums."""
        sampler = self.bound.sampler
        comparable = sampler.temperature > 0 and sampler.samples_posterior and agreeing(sampler)
        if self.warmup is None or self.count < self.draws or not comparable:
            return
        assert self.average is not None
        needs, traffic = sampler.needs(self.post.dim), self._traffic()
        count = num_evaluated(
            self.post, self.chains, self.rounds * float(np.max(needs.gradients)), float(np.max(traffic.bytes_sent))
        )
        if count:
            place = (self.post, self.network, sampler.temperature)
            self.measured = measure(*place, self.average, count, self.warmup, self.seed)

    def run(self) -> Run:
        """The run so far."""
        assert self.average is not None and self.agent_draws is not None
        sampler = self.bound.sampler
        return Run(
            **in_both_scales(self.post, self.average[:, : self.count], self.agent_draws[:, : self.count], self.network),
            agents=self.agent_indices,
            statistics=self.summarised(),
            traffic=self._traffic(),
            seconds=self.seconds,
            settings={
                "method": repr(sampler),
                "network": repr(self.network),
                "burn_in": self.burn_in,
                "thin": self.thin,
                "seed": self.seed,
                **({"temperature": sampler.temperature} if sampler.temperature != 1.0 else {}),
                **({"chosen": self.chosen} if self.chosen else {}),
                **({"interrupted": True} if self.is_interrupted else {}),
                **self.kept_latents,
            },
            examine=examination(self.post, self.network, sampler, self.warmup, self.forecast, self.measured),
        )

    def summarised(self) -> dict[str, np.ndarray]:
        """The statistics of the run so far, (chain, draw), as the method reports them."""
        sampler, monitored = self.bound.sampler, self._monitored()
        rounds = self.burn_in + (np.arange(self.count) + 1) * self.thin
        return sampler.summarise(monitored, rounds) if isinstance(sampler, Monitored) else monitored

    def _monitored(self) -> dict[str, np.ndarray]:
        return {name: values[:, : self.count] for name, values in self.statistics.items()}

    def _traffic(self) -> Traffic:
        monitored = self._monitored()

        def count(name: str, otherwise: Any) -> Any:
            return monitored[name][:, -1].mean(dtype=np.float64) if name in monitored else otherwise

        needs = self.bound.sampler.needs(self.post.dim)
        exchanges, messages = messages_per_round(needs, self.network)
        times = count("evaluations", self.rounds)
        gradients = count("gradients", self.rounds * needs.gradients)
        own = Traffic(
            self.rounds,
            round(times * exchanges),
            times * messages * self.message_bytes,
            gradients * rows_per_gradient(needs, self.sizes),
            round(times) if needs.sums else 0,
        )
        spent = own + self.checked + self.bound.spent + (Traffic() if self.warmup is None else self.warmup.spent)
        if self.measured is not None:
            spent = spent + self.measured.spent
        return replace(
            spent,
            bytes_sent=np.round(spent.bytes_sent).astype(np.int64),
            gradient_rows=np.round(spent.gradient_rows),
        )
