"""Sums over the network during warm-up: counted, and stopped at a limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..base.interruptions import let_through
from ..base.memory import require_matrices
from ..network import Network
from ..network.averaging import Averaging
from ..posterior import Posterior
from ..posterior.coordinates import Coordinates
from ..posterior.masks import masked_bytes
from ..posterior.newton import Expansion
from ..posterior.potential import Potential, Shard
from ..posterior.totals import Totals, of_rows
from ..results.traffic import Traffic

# More exchanges than any run takes.
_MOST_EXCHANGES = 10**9
# Matrices that Newton's method holds beside the agents' own: the sum, scaled, its eigenvectors, and the next one.
_MATRICES = 4


class NetworkSums:
    """The sum over all agents of a function of (potential, shard, arguments): up a spanning tree and down again.

    Parameters
    ----------
    post, network
        As in `accord.sample`; the posterior in the user's parameters.
    max_exchanges
        Exchanges that all sums together may take, one after another.
    totals
        What makes them; None: the posterior's own.
    masks
        Whether they are masked, which takes more bytes.
    averaging
        How they are made by gossip; None: over a tree.

    Attributes
    ----------
    count
        Sums so far.
    agents_here
        Agents whose data this process holds.
    exchanges
        Exchanges so far.
    bytes_sent
        Bytes that each agent sent so far, shape (agent,).
    gradients
        Gradients that each agent evaluated so far; a Hessian counts as one for each parameter, its product with a
        vector as two.
    values
        Values without a gradient that each agent evaluated so far.
    """

    def __init__(
        self,
        post: Posterior,
        network: Network,
        max_exchanges: int = _MOST_EXCHANGES,
        totals: Totals | None = None,
        masks: bool = False,
        averaging: Averaging | None = None,
    ) -> None:
        self.sizes, self.max_exchanges, self.masks = post.sizes, max_exchanges, masks
        self.agents_here = len(post.held)
        self.count, self.exchanges, self.gradients, self.values = 0, 0, 0, 0
        self.bytes_sent = np.zeros(network.num_agents, np.int64)
        self._totals = post.totals(network, masks=masks) if totals is None else totals
        tree = network.aggregation
        # of one sum: exchanges, and messages of each agent
        self._each = 2 * tree.height if averaging is None else averaging.exchanges
        self._messages = tree.sums_sent if averaging is None else averaging.messages

    @property
    def spent(self) -> Traffic:
        """The traffic of the sums so far."""
        return Traffic(
            exchanges=self.exchanges,
            bytes_sent=self.bytes_sent,
            gradient_rows=self.gradients * self.sizes,
            sums=self.count,
            value_rows=self.values * self.sizes,
        )

    def __call__(
        self,
        function: Callable[..., PyTree],
        *arguments: Any,
        gradients: int = 0,
        values: int = 0,
        **options: Any,
    ) -> PyTree:
        """The sum of `function(potential, shard, *arguments)`, for which each agent evaluates gradients and values.

        `options` are those of `Totals`.

        Raises
        ------
        ArithmeticError
            It would exceed the exchanges that are allowed.
        """
        let_through()
        each = self._each
        self.exchanges += each
        if self.exchanges > self.max_exchanges:
            raise ArithmeticError(
                f"one sum over this network takes {each} exchanges, and {self.exchanges // each} sums are "
                f"more than the {self.max_exchanges} exchanges that warm-up may take: raise max_exchanges, or add edges"
            )
        found = self._totals(function, *arguments, **options)
        leaves = jax.tree.leaves(found)
        sent = masked_bytes(sum(leaf.size for leaf in leaves)) if self.masks else sum(leaf.nbytes for leaf in leaves)
        self.bytes_sent = self.bytes_sent + (sent * self._messages).astype(np.int64)
        self.count += 1
        self.gradients += gradients
        self.values += values
        return found


def expand(sums: NetworkSums, *positions: np.ndarray, coordinates: Coordinates | None = None) -> Expansion:
    """The mean of F's expansions at some positions, each (dim,); one sum of (d + 1)(d + 2) / 2 numbers."""
    dim = positions[0].size
    require_hessians(dim, sums.agents_here)
    points, gradients = np.stack(positions), len(positions) * (1 + dim)
    if len(positions) == 1:
        # by the program that expansions in coordinates have too, which takes seconds to compile
        place = Coordinates(np.zeros(dim), np.eye(dim)) if coordinates is None else coordinates
        (found,) = sums(expansion_of, np.inf, points=points, at_once=1, gradients=gradients, coordinates=place)
    else:
        offsets = points - points[0]
        found = sums(mean_expansion, points[0], offsets, gradients=gradients, coordinates=coordinates)
    numbers = np.asarray(found, np.float64)
    return Expansion(float(numbers[0]), numbers[1 : 1 + dim], unpacked(numbers[1 + dim :], dim))


def require_hessians(dim: int, agents: int) -> None:
    """Raise `ValueError` unless memory holds the Hessians of so many agents and what is made of their sum."""
    require_matrices(
        "Hessians of the agents here and what Newton's method makes of their sum",
        dim,
        agents + _MATRICES,
        f"they grow with the square of {dim:,} parameters; give all numbers of a method that walks, as DESGLD(1e-6)",
    )


def unpacked(upper: np.ndarray, dim: int) -> np.ndarray:
    """Symmetric matrices (..., dim, dim) from their upper halves, (..., number) as `np.triu_indices` orders them."""
    rows, columns = np.triu_indices(dim)
    whole = np.zeros((*upper.shape[:-1], dim, dim))
    whole[..., rows, columns] = whole[..., columns, rows] = upper
    return whole


def finite(numbers: Float[Array, " number"], most: Float[Array, ""] | float) -> Float[Array, " number"]:
    """A value and its derivatives; where one of them is no number, the value is `most` and there is no slope.

    Masks carry no others. No number is larger than `most`; where that is infinite, numbers stay as they are.
    """
    nowhere = jnp.zeros_like(numbers).at[0].set(most)
    return jnp.where(jnp.isfinite(numbers).all() | jnp.isinf(most), jnp.clip(numbers, -most, most), nowhere)


def expansion_at(potential: Potential, shard: Shard, x: Float[Array, " dim"]) -> Float[Array, " number"]:
    """An agent's value, gradient and upper half of the Hessian at a position."""
    value, gradient, hessian = potential.expansion(shard, x)
    return jnp.concatenate([value[None], gradient, hessian[np.triu_indices(x.size)]])


@of_rows
def expansion_of(
    potential: Potential, shard: Shard, x: Float[Array, " dim"], most: Float[Array, ""]
) -> Float[Array, " number"]:
    """An agent's value, gradient and upper half of the Hessian; `most` as `finite` has it."""
    return finite(expansion_at(potential, shard, x), most)


@of_rows
def mean_expansion(
    potential: Potential, shard: Shard, origin: Float[Array, " dim"], offsets: Float[Array, "look dim"]
) -> Float[Array, " number"]:
    """An agent's value, gradient and upper half of the Hessian: their means over positions."""
    # one after another: all Hessians at once would take memory
    return jax.lax.map(lambda offset: expansion_at(potential, shard, origin + offset), offsets).mean(axis=0)
