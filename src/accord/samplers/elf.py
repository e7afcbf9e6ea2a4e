"""ELF: Langevin steps at a hub with top-k gradient differences and error feedback."""

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
    """Error feedback Langevin: agents send the largest entries of their gradient differences.

    The hub updates `x+ = x - step_size sum_i g_i + sqrt(2 step_size) w` and sends C(x+ - v), `v+ = v + C(x+ - v)`. From
    agent i: `g_i+ = g_i + C(grad f_i(v+) - g_i)`. C keeps the `kept` largest entries of a vector and sets the others to
    zero.

    Karagulyan and Richtarik 2023 (arXiv 2303.04622): D-ELF compresses the agents' messages (`kept`), P-ELF the hub's
    messages (`kept_down`), B-ELF both, with EF21 and EF21-P (Richtarik, Sokolov and Fatkhullin 2021). A draw is x, the
    same at every agent. Omitted entries of g_i are sent later, so that the error is like that of gradients up to about
    d / kept rounds old, for d parameters (`StaleSGLD`): draws are too wide by the order of the step. Without feedback,
    top-k gradients are biased at any step. Differences between shards do not matter. With all entries kept it is
    Langevin on F. The first two messages, the start and a gradient, are uncompressed. Unstable above `step_size H = 2`,
    H the Hessian of F, and earlier with fewer entries. At `temperature=0` it converges to the mode. Any agent can be
    the hub. If no agent is a neighbour of all others, sums use a spanning tree.

    Parameters
    ----------
    step_size
        Step on F, > 0, a number. Plans do not choose it, because top-k compression has no law.
    kept
        Entries that an agent sends in a round, from 1 to the number of parameters. None: a quarter of them, rounded up.
        An encoded message takes `method.message_bits(d)` bits. Runs send and count uncompressed numbers.
    kept_down
        Entries that the hub sends in a round. None: all.
    batch_size
        Rows that each gradient reads, drawn with replacement. None: all rows.
    temperature
        As in `Sampler`. The hub draws one noise for all.

    Raises
    ------
    ValueError
        A parameter out of range.

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
        # each entry and its index
        return self._numbers(dim) * (32 + math.ceil(math.log2(dim)))


def _largest(x: Float[Array, " dim"], count: int) -> Float[Array, " dim"]:
    if count >= x.size:
        return x
    chosen = jax.lax.top_k(jnp.abs(x), count)[1]
    return jnp.zeros_like(x).at[chosen].set(x[chosen])
