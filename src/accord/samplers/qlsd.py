"""QLSD: Langevin steps at a hub whose agents send gradients rounded stochastically to a few levels."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..base.checks import whole_number
from ..base.pytree import pytree, static
from .agent import Noise
from .compressed import Compressed
from .protocol import Needs


@pytree
class QLSD(Compressed):
    """Quantised Langevin stochastic dynamics, with memory terms.

    The hub updates `x+ = x - step_size sum_i (eta_i + c_i) + sqrt(2 step_size) w`. From agent i:
    `c_i = C(grad f_i(x) - eta_i)`, `eta_i+ = eta_i + memory c_i`. C rounds every entry of a vector v at random to a
    multiple of `|v| / levels`, up or down, with mean v.

    Vono, Plassier, Durmus, Dieuleveut and Moulines 2022 (arXiv 2106.00797): QLSD with `memory=0`, and otherwise the
    memory of QLSD++ without its control variates for minibatches. All agents participate. C is the compression of QSGD
    (Alistarh et al. 2017). A draw is x, the same at every agent. Its mean is exact on Gaussian posteriors, and rounding
    adds `step_size^2 sum_i Var c_i` to the variance of each step, so that draws are too wide. Var c_i is at most omega
    times the mean square of the rounded vector, omega = min(d / levels^2, sqrt(d) / levels) for d parameters. Without
    memory this vector is the agent's gradient, which does not vanish at the mode if shards differ. With memory it is
    the gradient's fluctuation, and differences between shards do not matter. In both cases the error decreases with the
    step. The first two messages, the start and a gradient, are uncompressed. Unstable above `step_size H = 2`, H the
    Hessian of F. Without memory it is stable on quadratic potentials while
    `step_size (H + omega H^-1/2 sum_i H_i^2 H^-1/2) < 2`. At `temperature=0` it converges to the mode with memory, and
    fluctuates near the mode without. With one parameter nothing is rounded. Any agent can be the hub. If no agent is a
    neighbour of all others, sums use a spanning tree.

    Parameters
    ----------
    step_size
        Step on F, > 0, a number. Plans do not choose it, because rounding has no law.
    levels
        Levels of rounding, >= 1. One level keeps little more than signs. An encoded message takes
        `method.message_bits(d)` bits. Runs send and count uncompressed numbers.
    memory
        Rate from 0 to 1. None: 1 / (1 + omega), the largest rate known to be stable.
    batch_size
        Rows that each gradient reads, drawn with replacement. None: all rows. Rounding includes the minibatch noise.
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
    >>> method = accord.samplers.QLSD(step_size=0.05, levels=2)
    >>> run = accord.sample(post, accord.Network.star(3), method, draws=10, chains=2, seed=0)
    >>> run.draws.shape
    (2, 10, 3, 2)
    >>> method.message_bits(100)  # in place of 3,200
    332
    """

    levels: int = static(default=4)
    memory: float | None = static(default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("levels", self.levels, 1)
        if self.memory is not None and not 0 <= self.memory <= 1:
            raise ValueError(f"memory must be a number from 0 to 1, found {self.memory}")

    def needs(self, dim: int) -> Needs:
        return super().needs(dim)._replace(key=True)

    def compressed(self, difference: Float[Array, " dim"], noise: Noise) -> Float[Array, " dim"]:
        unit = jnp.linalg.norm(difference) / self.levels
        # all multiples of a zero vector are zero
        multiples = jnp.abs(difference) / jnp.where(unit > 0, unit, 1.0)
        below = jnp.floor(multiples)
        up = jax.random.uniform(noise.random_key(), difference.shape, difference.dtype) < multiples - below
        return jnp.sign(difference) * unit * (below + up)

    def rate(self, dim: int) -> float:
        return 1.0 / (1.0 + self.omega(dim)) if self.memory is None else self.memory

    def omega(self, dim: int) -> float:
        """Largest variance of rounding a vector of `dim` numbers, in units of its square norm."""
        return min(dim / self.levels**2, math.sqrt(dim) / self.levels)

    def message_bits(self, dim: int) -> int:
        # the norm, and the sign and level (from 0) of each entry
        return 32 + dim * (1 + math.ceil(math.log2(self.levels + 1)))
