"""Restart a run without an agent that has left for good."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..base.errors import AgentLostError
from ..results.run import Run
from ..samplers.by_sums.method import BySums
from ..samplers.session import Job
from .rounds import Rounds


def go_on_without(
    lost: AgentLostError,
    sample: Callable[..., Run],
    job: Job,
    method: BySums | Rounds,
    engine: Any,
    *,
    checkpoint: Path | None,
    keep: Any,
    **options: Any,
) -> Run:
    """The run of the remaining agents after one was lost. Re-raises `lost` if they cannot continue.

    The remaining agents restart with the posterior of their own rows, because their states and tracked sums contain
    contributions of the lost agent. Round-based methods start from the last draws.

    Parameters
    ----------
    lost
        The error, with the lost agent and the draws before the loss.
    sample
        `accord.sample`.
    job, method, engine, checkpoint, keep, options
        The run, and the remaining arguments of `accord.sample`.
    """
    post, network, gone = job.post, job.network, lost.agent
    if network.num_agents == 1:
        raise lost
    try:
        left = network.without(gone)
    except ValueError as error:
        raise lost from error
    others = post.with_shards([post.source(agent) for agent in range(post.num_agents) if agent != gone])
    engine.dismiss(gone)
    drawn = "before its first draw" if lost.run is None else f"after {lost.run.average.shape[1]} draws of each chain"
    what = f"agent {network.labels[gone]} left for good {drawn}: the run uses the other {left.num_agents} agents' data"
    warnings.warn(f"{what} ({lost})", stacklevel=3)
    folder = None if checkpoint is None else checkpoint / f"without-{network.labels[gone]}"
    if lost.run is not None and isinstance(method, Rounds):
        method = replace(method, init=_last(lost.run, gone, network.num_agents))
    run = sample(others, left, method, engine=engine, keep=_kept(keep, gone), checkpoint=folder, **options)
    note = ", and ".join(filter(None, (what, run.settings.get("left"))))
    return replace(run, settings={**run.settings, "left": note}, before=lost.run if run.before is None else run.before)


def _kept(keep: Any, gone: int) -> Any:
    """`keep` for the remaining agents, by their new numbers."""
    if isinstance(keep, str):
        return keep
    numbers = [int(i) - (int(i) > gone) for i in keep if int(i) != gone]
    return numbers or "average"


def _last(run: Run, gone: int, num_agents: int) -> np.ndarray:
    """The last draw of each remaining agent, (chain, agent, dim). Agents that were not kept have the average's."""
    drawn = run.moved
    last = np.repeat(drawn.average[:, -1:], num_agents, axis=1)
    last[:, run.agents] = drawn.kept[:, -1]
    return np.delete(last, gone, axis=1)
