"""Agents that leave for good: the run goes on for the posterior of those who are left."""

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
    """The run of those who are left, after an agent was lost; the same error where they cannot go on.

    Nothing of the lost agent may stay in what the others hold, and it took its part of every tracked sum with it: the
    others begin anew, with the posterior of their own rows, from their last draws where they walk.

    Parameters
    ----------
    lost
        Who, and what was drawn before.
    sample
        `accord.sample`.
    job, method, engine, checkpoint, keep, options
        The run, and the arguments of `accord.sample` that it does not hold.
    """
    post, network, gone = job.post, job.network, lost.agent
    if network.num_agents == 1:
        raise lost
    try:
        left = network.without(gone)
    except ValueError as error:
        raise lost from error
    others = post.with_shards([post.source(agent) for agent in range(post.num_agents) if agent != gone])
    # only an engine that can do without an agent says that one is lost
    engine.dismiss(gone)
    drawn = "before its first draw" if lost.run is None else f"after {lost.run.average.shape[1]} draws of each chain"
    what = f"agent {network.labels[gone]} left for good {drawn}: the run is of the other {left.num_agents} agents' data"
    warnings.warn(f"{what} ({lost})", stacklevel=3)
    folder = None if checkpoint is None else checkpoint / f"without-{network.labels[gone]}"
    if lost.run is not None and isinstance(method, Rounds):
        method = replace(method, init=_last(lost.run, gone, network.num_agents))
    run = sample(others, left, method, engine=engine, keep=_kept(keep, gone), checkpoint=folder, **options)
    told = ", and ".join(filter(None, (what, run.settings.get("left"))))
    return replace(run, settings={**run.settings, "left": told}, before=lost.run if run.before is None else run.before)


def _kept(keep: Any, gone: int) -> Any:
    """What is kept of the agents that are left, by their new numbers."""
    if isinstance(keep, str):
        return keep
    numbers = [int(i) - (int(i) > gone) for i in keep if int(i) != gone]
    return numbers or "average"


def _last(run: Run, gone: int, num_agents: int) -> np.ndarray:
    """Where the others were at the last draw, (chain, agent, dim); the average where their own were not kept."""
    drawn = run.moved
    last = np.repeat(drawn.average[:, -1:], num_agents, axis=1)
    last[:, run.agents] = drawn.kept[:, -1]
    return np.delete(last, gone, axis=1)
