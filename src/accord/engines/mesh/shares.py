"""Processes of a mesh as data owners, which read only the shards of the agents on their own devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import PyTree

from ...network import Network
from ...posterior import Posterior
from ...posterior.coordinates import Coordinates
from ...posterior.masks import Masks, Words, added
from ...posterior.potential import Shard
from ...posterior.shards import Extent
from ...posterior.totals import MaskedTotals, Totals


class Shares:
    """The agents of each process, and functions of their data. Implements `DataOwners`.

    Parameters
    ----------
    post
        Posterior with functions or files as shards.

    Raises
    ------
    ValueError
        A process would have no agent.
    """

    def __init__(self, post: Posterior) -> None:
        owners = [device.process_index for device in jax.devices()]
        rows = -(-post.num_agents // len(owners))
        self.spans = []
        for process in range(jax.process_count()):
            first = rows * owners.index(process)
            self.spans.append(range(first, min(first + rows * owners.count(process), post.num_agents)))
            if not self.spans[-1]:
                raise ValueError(
                    f"process {process} would have no agent: {post.num_agents} agents fill "
                    f"{-(-post.num_agents // rows)} of {len(owners)} devices. Start fewer processes."
                )
        self.mine = self.spans[jax.process_index()]
        self.held = post.alone(*self.mine)

    def stacked(self, spectral: bool, extent: Extent, coordinates: Coordinates | None) -> Shard:
        """The shards of this process' agents, with quadratic forms in `coordinates`."""
        held = self.held if coordinates is None else self.held.transformed(coordinates)
        return held.stacked(spectral=spectral, agents=self.mine, extent=extent)

    def each(self, function: Callable[..., PyTree], arguments: tuple[Any, ...], own: tuple[Any, ...]) -> PyTree:
        """The value of a function at every agent, in all processes."""
        found = self.held.each(
            function, *arguments, own=jax.tree.map(lambda leaf: leaf[self.mine.start : self.mine.stop], own)
        )
        return jax.tree.map(self._gathered, found)

    def totals(self, network: Network, masks: bool = False) -> Totals:
        """Sums over all agents, in all processes.

        With masks, each process masks the numbers of its agents and sends only the sum of their masked words.
        """
        if masks:
            return self._masked()
        own = self.held.totals(network)

        def total(function: Callable[..., PyTree], *arguments: Any, **options: Any) -> PyTree:
            part = own(function, *arguments, **options)
            sums = jax.tree.leaves(part)
            sent = np.concatenate([leaf.reshape(-1).view(np.uint8) for leaf in sums])
            # as bytes, because JAX would round double precision
            everyones = np.asarray(multihost_utils.process_allgather(sent))
            places = np.cumsum([0, *(leaf.nbytes for leaf in sums)])
            found = []
            for leaf, first, last in zip(sums, places[:-1], places[1:], strict=True):
                parts = np.ascontiguousarray(everyones[:, first:last]).view(leaf.dtype)
                found.append(parts.sum(axis=0).reshape(leaf.shape))
            treedef: Any = jax.tree.structure(part)
            return treedef.unflatten(found)

        return total

    def _masked(self) -> MaskedTotals:
        own = [Masks(agent, self.held.num_agents) for agent in self.mine]
        publics = self._gathered(np.stack([np.frombuffer(one.public, np.uint8) for one in own]))
        for one in own:
            one.agree([row.tobytes() for row in publics])

        def gathered(count: int, words: Words) -> Words:
            # as bytes, because JAX would round words
            everyones = np.asarray(multihost_utils.process_allgather(words.view(np.uint8)))
            return added(*np.ascontiguousarray(everyones).view(np.uint64))

        here = self.held.totals_here()
        return MaskedTotals(here, own, gathered)

    def _gathered(self, part: np.ndarray) -> np.ndarray:
        # as bytes, because JAX would round double precision
        part = np.ascontiguousarray(part)
        sent = np.zeros((max(map(len, self.spans)), part[0].nbytes), np.uint8)
        sent[: len(part)] = part.reshape(len(part), -1).view(np.uint8)
        parts = np.asarray(multihost_utils.process_allgather(sent))
        rows = np.concatenate([part[: len(span)] for part, span in zip(parts, self.spans, strict=True)])
        return rows.view(part.dtype).reshape(-1, *part.shape[1:])
