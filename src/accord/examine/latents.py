"""Draws of latents that stay at the agents."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from ..network import Network
from ..posterior import Posterior
from ..posterior.latent_keepers import agents_here
from ..posterior.local_draws import latents_of
from ..results.run import Run
from ..samplers.engine import Builder
from .agents import agents_of

# Function from an agent to its latents by name, (chain, draw, group, ...), or (chain, draw, ...) for a single group.
Ask = Callable[[int], dict[str, np.ndarray]]


class LocalDraws(Mapping[int, dict[str, np.ndarray]]):
    """A mapping from agents to draws of their own latents by name, matched to the draws of the parameters.

    Shapes are (chain, draw, group, ...), or (chain, draw, ...) if all rows of an agent are one group. Draws are made at
    first use, in the process that has the agent's data. With several processes, each has only its own agents.
    """

    def __init__(self, agents: np.ndarray, here: Sequence[int], ask: Ask) -> None:
        self._kept, self._ask = [int(agent) for agent in agents], ask
        self._agents = [agent for agent in self._kept if agent in here]
        self._found: dict[int, dict[str, np.ndarray]] = {}

    def __getitem__(self, agent: int) -> dict[str, np.ndarray]:
        if agent not in self._kept:
            raise KeyError(f"there are no draws of agent {agent}: the run kept agents {self._kept}")
        if agent not in self._agents:
            raise KeyError(
                f"the latents of agent {agent} are drawn in the process that has its data: this process has agents "
                f"{self._agents}"
            )
        if agent not in self._found:
            self._found[agent] = self._ask(agent)
        return self._found[agent]

    def __iter__(self) -> Iterator[int]:
        return iter(self._agents)

    def __len__(self) -> int:
        return len(self._agents)

    def __repr__(self) -> str:
        # no values, as they belong to a site
        return f"<LocalDraws of {len(self)} agents>"


def latents(run: Run, post: Posterior, network: Network, *, engine: str | Builder = "local") -> LocalDraws:
    """Draws of each agent's own latents at the run's draws; see `LocalDraws`.

    Parameters
    ----------
    run, post, network, engine
        As in `accord.loo`. The run must have kept draws of agents.

    Raises
    ------
    ValueError
        The posterior has no `local`; its data is in other processes, where each agent's latents are in a file; or the
        run is of another posterior or network.
    """
    if "local" in run.settings:
        raise ValueError(
            f"each agent stores its latents in a file at its site, {run.settings['local']}, and never sends them"
        )
    if not post.has_latents:
        raise ValueError("agents have no latents of their own: the posterior was made without local")
    with agents_of(run, post, network, engine) as agents:
        here, post = agents_here(agents.placed), agents.post
    if not here or not run.agents.size:
        raise ValueError(
            "latents need draws of agents and the agents' data in this process: sample with keep='agents' in the "
            "process with the data"
        )
    free, seed = run.moved.kept, int(run.settings.get("seed", 0))

    def ask(agent: int) -> dict[str, np.ndarray]:
        return latents_of(post.alone(agent), free[:, :, int(np.flatnonzero(run.agents == agent)[0])], seed)

    return LocalDraws(run.agents, here, ask)
