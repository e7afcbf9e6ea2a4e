"""ELF: Langevin steps at a hub with the largest numbers of gradients' changes alone, and error feedback."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..base.checks import whole_number
from ..base.pytree import pytree, static
from ..network import Network
from ..posterior import Posterior
from .agent import Noise
from .compressed import Compressed
from .protocol import Bound


@pytree
class ELF(Compressed):
    """Error feedback Langevin: agents send the largest numbers of what their gradients changed by.

    The hub makes `x+ = x - step_size sum_i g_i + sqrt(2 step_size) w` and tells `v+ = v + C(x+ - v)`. From agent i:
    `g_i+ = g_i + C(grad f_i(v+) - g_i)`. C keeps the `kept` largest numbers of a vector, and puts zeros for the others.

    Karagulyan and Richtarik 2023 (arXiv 2303.04622): D-ELF compresses what agents send (`kept`), P-ELF what the hub
    tells (`kept_down`), B-ELF both; by EF21 and EF21-P (Richtarik, Sokolov and Fatkhullin 2021). A draw is x, the same
    at every agent. What is left out of g_i is sent later, so that the error is like that of gradients up to some
    d / kept rounds old, for d parameters (`StaleSGLD`): draws are too wide by the order of the step, while largest
    numbers without feedback are off at any step. How shards differ does not matter. With all numbers kept it is
    Langevin on F. The first two messages, of a start and of a gradient, are whole. Unstable beyond `step_size H = 2`, H
    the Hessian of F, and with fewer numbers before that. At `temperature=0` it ends at the mode. The hub is any agent:
    on a graph where none is everybody's neighbour the sum runs over a spanning tree.

    Parameters
    ----------
    step_size
        Step on F, > 0, a number. No plan chooses it, as largest numbers have no law.
    kept
        Numbers that an agent sends in a round, from 1 to the number of parameters; None: a quarter of them, rounded up.
        A code of a message takes `method.message_bits(d)` bits; runs send, and count, whole numbers.
    kept_down
        Numbers that the hub tells in a round; None: all.
    batch_size
        Rows that each gradient reads, drawn with replacement; None reads all.
    temperature
        As in `Sampler`. The hub's noise is one draw for all.

    Raises
    ------
    ValueError
        A number out of its range.

    Examples
    --------
    >>> import accord
    >>> post = accord.models.gaussian([[-1.0, 0.0], [0.0, 1.0], [1.0, 2.0]], [[[1.0, 0.5], [0.5, 2.0]]] * 3)
    >>> method = accord.samplers.ELF(step_size=0.05, kept=1)
    >>> run = accord.sample(post, accord.Network.star(3), method, draws=10, chains=2, seed=0)
    >>> run.draws.shape
    (2, 10, 3, 2)
    """

    kept: int | None = static(default=None)
    kept_down: int | None = static(default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("kept", "kept_down"):
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name), 1)

    def bind(self, post: Posterior, network: Network) -> Bound:
        for name in ("kept", "kept_down"):
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name), 1, post.dim)
        return super().bind(post, network)

    def compressed(self, difference: Float[Array, " dim"], noise: Noise) -> Float[Array, " dim"]:
        return _largest(difference, self._numbers(difference.size))

    def handed_down(self, known: Float[Array, " dim"], position: Float[Array, " dim"]) -> Float[Array, " dim"]:
        return position if self.kept_down is None else known + _largest(position - known, self.kept_down)

    def rate(self, dim: int) -> float:
        return 1.0

    def _numbers(self, dim: int) -> int:
        return math.ceil(dim / 4) if self.kept is None else self.kept

    def message_bits(self, dim: int) -> int:
        # each number, and which one it is
        return self._numbers(dim) * (32 + math.ceil(math.log2(dim)))


def _largest(x: Float[Array, " dim"], count: int) -> Float[Array, " dim"]:
    """The vector with zeros for all but its largest numbers."""
    if count >= x.size:
        return x
    chosen = jax.lax.top_k(jnp.abs(x), count)[1]
    return jnp.zeros_like(x).at[chosen].set(x[chosen])
