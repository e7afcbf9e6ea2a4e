"""Draws of the latents that stay at the agents."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

# `ask(agent)`: the agent's latents by name, (chain, draw, group, ...), or (chain, draw, ...) where it is one group.
Ask = Callable[[int], dict[str, np.ndarray]]


class LocalDraws(Mapping[int, dict[str, np.ndarray]]):
    """By agent, a dict of the agent's own latents' draws by name, each matched to the draw of the parameters.

    Shapes are (chain, draw, group, ...), or (chain, draw, ...) where all rows of an agent are one group. They are drawn
    where the agent's data lies when they are first asked for: where processes run together, each has its own agents'.
    """

    def __init__(self, agents: np.ndarray, here: Sequence[int], ask: Ask) -> None:
        self._kept, self._ask = [int(agent) for agent in agents], ask
        self._agents = [agent for agent in self._kept if agent in here]
        self._found: dict[int, dict[str, np.ndarray]] = {}

    def __getitem__(self, agent: int) -> dict[str, np.ndarray]:
        if agent not in self._kept:
            raise KeyError(f"there are no draws of agent {agent}: those of agents {self._kept} were kept")
        if agent not in self._agents:
            raise KeyError(
                f"the latents of agent {agent} are drawn in the process that has its data: this one has those of "
                f"agents {self._agents}"
            )
        if agent not in self._found:
            self._found[agent] = self._ask(agent)
        return self._found[agent]

    def __iter__(self) -> Iterator[int]:
        return iter(self._agents)

    def __len__(self) -> int:
        return len(self._agents)

    def __repr__(self) -> str:
        # what belongs to a site is shown to who asks for it only
        return f"<LocalDraws of {len(self)} agents>"
