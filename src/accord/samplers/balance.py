"""Numbers of local steps with which fast and slow agents finish a round at the same time."""

from __future__ import annotations

import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from ..base.checks import positive
from ..base.compiler import compiled
from ..posterior import Posterior


def balanced_steps(average: float, seconds: Sequence[float] | np.ndarray) -> tuple[int, ...]:
    """Local steps `N_i = average b q_i`, at least 1, with q_i = (1 / seconds_i) / sum_k 1 / seconds_k and b agents.

    Ahn et al. 2014, and section 3.2.2 of the DG-LMC paper.

    Parameters
    ----------
    average
        Mean number of steps over the agents, > 0.
    seconds
        Time of one local step at each agent, > 0, shape (agent,). `gradient_seconds` measures it.

    Examples
    --------
    >>> balanced_steps(4, [1.0, 1.0, 2.0])
    (5, 5, 2)
    """
    positive("average", average)
    seconds = np.asarray(seconds, np.float64)
    if seconds.ndim != 1 or not (np.isfinite(seconds).all() and (seconds > 0).all()):
        raise ValueError(f"seconds must be one number > 0 for each agent, found {seconds}")
    speed = 1.0 / seconds
    return tuple(max(1, round(n)) for n in average * seconds.size * speed / speed.sum())


def gradient_seconds(post: Posterior, repeats: int = 20) -> np.ndarray:
    """Median seconds of one gradient of each agent's potential on this machine, shape (agent,).

    Each shard is timed with its own rows, unpadded. Agents on separate machines measure their own time with
    `post.alone(agent)`.
    """
    gradient = compiled(post.potential.gradient)
    x = jnp.asarray(post.init, jnp.result_type(float))
    found = []
    for agent in post.held:
        own = jax.tree.map(lambda leaf: leaf[0], post.stacked(agents=[agent])._replace(quadratic=None))
        jax.block_until_ready(gradient(own, x))
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            jax.block_until_ready(gradient(own, x))
            times.append(time.perf_counter() - start)
        found.append(np.median(times))
    return np.array(found)
