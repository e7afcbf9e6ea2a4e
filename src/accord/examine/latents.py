"""Draws of the latents that stay at the agents."""

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


def latents(run: Run, post: Posterior, network: Network, *, engine: str | Builder = "local") -> LocalDraws:
    """Draws of the latents that each agent has of its own, at the run's draws; see `LocalDraws`.

    Parameters
    ----------
    run, post, network, engine
        As in `accord.loo`; a run that keeps draws of agents.

    Raises
    ------
    ValueError
        The posterior has no `local`, or its data lies in other processes, where each agent has its latents in a file;
        or the run is of another posterior or network.
    """
    if "local" in run.settings:
        raise ValueError(
            f"each agent has its own latents in a file at its site, {run.settings['local']}, and never sends them"
        )
    if not post.has_latents:
        raise ValueError("no agent has latents of its own: the posterior was made without local")
    with agents_of(run, post, network, engine) as agents:
        here, post = agents_here(agents.placed), agents.post
    if not here or not run.agents.size:
        raise ValueError(
            "latents are drawn where the agents' data lies, at the end of a run that keeps draws of agents, and this "
            "run has none"
        )
    free, seed = run.moved.kept, int(run.settings.get("seed", 0))

    def ask(agent: int) -> dict[str, np.ndarray]:
        return latents_of(post.alone(agent), free[:, :, int(np.flatnonzero(run.agents == agent)[0])], seed)

    return LocalDraws(run.agents, here, ask)
