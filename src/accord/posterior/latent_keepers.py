"""Latents of agents at the end of a run: where they may be asked for, and where agents elsewhere keep theirs."""

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
    """Agents that keep their own latents where their data lies, and show them to nobody."""

    def prepare_latents(self) -> None:
        """Raise `OSError`, which names the agent, where one has no place for a file."""
        ...

    def keep_latents(self, run: str, agents: Sequence[int], positions: Sequence[np.ndarray], seed: int) -> list[str]:
        """Let some agents draw latents at their own positions, each (chain, draw, dim), and write them to a file.

        Returns what kept an agent from it, for each; "" where nothing did.
        """
        ...

    def latents_place(self, run: str) -> str:
        """Where the files of a run are, by a pattern that is the same for all agents."""
        ...


def agents_here(placed: Posterior) -> tuple[int, ...]:
    """The agents with latents whose data lies in this process."""
    if placed.latents is None:
        return ()
    return placed.held if placed.owners is None else tuple(placed.owners.mine)


def prepare_latents(placed: Posterior, agents: np.ndarray) -> None:
    """Let agents that will keep their latents look for a place, so that a run does not end without one."""
    keepers = _keepers(placed)
    if keepers is not None and agents.size:
        keepers.prepare_latents()


def keep_latents(
    placed: Posterior, agents: np.ndarray, positions: Float[np.ndarray, "chain draw agent dim"], seed: int
) -> dict[str, str]:
    """Let agents elsewhere draw their latents at the draws that a run keeps of them; what to note of it in the run."""
    keepers = _keepers(placed)
    if keepers is None or agents.size == 0:
        return {}
    # no two runs have one name, so that no file is in the way of another
    run = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"
    own = [np.ascontiguousarray(positions[:, :, place]) for place in range(agents.size)]
    try:
        troubles = keepers.keep_latents(run, agents.tolist(), own, seed)
    except TimeoutError as error:
        # of a site that is gone for good; the draws are here
        warnings.warn(f"not all agents have kept their latents: {error}", stacklevel=3)
        troubles = [""] * agents.size
    for agent, trouble in zip(agents, troubles, strict=True):
        if trouble:
            warnings.warn(f"agent {agent} has not kept its latents: {trouble}", stacklevel=3)
    return {"local": keepers.latents_place(run)}


def _keepers(placed: Posterior) -> LatentKeepers | None:
    owners = placed.owners
    return owners if placed.latents is not None and isinstance(owners, LatentKeepers) else None
