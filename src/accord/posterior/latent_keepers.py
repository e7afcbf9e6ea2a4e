"""Latents of agents at the end of a run: agents in other processes save their own to files."""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from .posterior import Posterior


@runtime_checkable
class LatentKeepers(Protocol):
    """Agents that save their latents to files where their data lies, and send them nowhere."""

    def prepare_latents(self) -> None:
        """Raise `OSError`, which names the agent, if an agent cannot write a file."""
        ...

    def keep_latents(self, run: str, agents: Sequence[int], positions: Sequence[np.ndarray], seed: int) -> list[str]:
        """Have agents draw latents at their own positions, each (chain, draw, dim), and write them to files.

        Returns one error message per agent, "" on success.
        """
        ...

    def latents_place(self, run: str) -> str:
        """The path of the files of a run, as one pattern for all agents."""
        ...


def agents_here(placed: Posterior) -> tuple[int, ...]:
    """The agents with latents whose data lies in this process."""
    if placed.latents is None:
        return ()
    return placed.held if placed.owners is None else tuple(placed.owners.mine)


def prepare_latents(placed: Posterior, agents: np.ndarray) -> None:
    """Check before a run that agents can write their latents after it."""
    keepers = _keepers(placed)
    if keepers is not None and agents.size:
        keepers.prepare_latents()


def keep_latents(
    placed: Posterior, agents: np.ndarray, positions: Float[np.ndarray, "chain draw agent dim"], seed: int
) -> dict[str, str]:
    """Have agents in other processes save latents at a run's draws. Returns the settings to record in the run."""
    keepers = _keepers(placed)
    if keepers is None or agents.size == 0:
        return {}
    # a unique name, so that no run overwrites another's files
    run = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"
    own = [np.ascontiguousarray(positions[:, :, place]) for place in range(agents.size)]
    try:
        troubles = keepers.keep_latents(run, agents.tolist(), own, seed)
    except TimeoutError as error:
        # a lost site costs its latents, and not the draws
        warnings.warn(f"not all agents saved their latents: {error}", stacklevel=3)
        troubles = [""] * agents.size
    for agent, trouble in zip(agents, troubles, strict=True):
        if trouble:
            warnings.warn(f"agent {agent} did not save its latents: {trouble}", stacklevel=3)
    return {"local": keepers.latents_place(run)}


def _keepers(placed: Posterior) -> LatentKeepers | None:
    owners = placed.owners
    return owners if placed.latents is not None and isinstance(owners, LatentKeepers) else None
