"""What masks cost: a total of 4,000 numbers, masked and plain, in time and in bytes.

Prints one line a number of agents. Agents are in this process, and both sides take turns. `an agent's` is what one
agent does for one sum beside the total itself: what each does at its own site, where agents have processes of their
own. Agreeing on keys is once for a run. Bytes are those of the message that an agent sends its parent in the tree.
"""

import argparse
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

import accord
from accord.posterior.masks import Masks, encoded


def log_likelihood(params, rows):
    return jnp.zeros(rows.shape[0])


def log_prior(params):
    return jnp.zeros(())


def own_row(potential, shard):
    return shard.rows[0]


def timed(work):
    start = time.perf_counter()
    found = work()
    return 1e3 * (time.perf_counter() - start), found


def agreement(agents):
    """Masks of all agents, and the milliseconds that each took for its keys."""
    masks = [Masks(agent, agents) for agent in range(agents)]
    publics = [one.public for one in masks]
    return masks, statistics.median(timed(lambda one=one: one.agree(publics))[0] for one in masks)


def measure(agents, numbers, repeats):
    rows = np.random.default_rng(0).standard_normal((agents, 1, numbers))
    post = accord.Posterior(log_likelihood, log_prior, list(rows), np.zeros(1))
    net = accord.Network.ring(agents)
    masks, keys = agreement(agents)
    sides = {
        "plain": post.totals(net),
        "masked": post.totals(net, masks=True),
    }
    milliseconds = {side: [] for side in [*sides, "own"]}
    for repeat in range(repeats + 1):
        found = {}
        for side, total in sides.items():
            taken, found[side] = timed(lambda total=total: total(own_row))
            milliseconds[side].append(taken)
        taken, words = timed(lambda count=repeat + 1: masks[0].masked(count, encoded([rows[0, 0]], agents)))
        milliseconds["own"].append(taken)
        np.testing.assert_allclose(found["masked"], found["plain"], atol=1e-12)
    # the first compiles
    median = {side: statistics.median(taken[1:]) for side, taken in milliseconds.items()}
    print(
        f"{agents:>3} agents, {numbers:,} numbers: plain {median['plain']:.2f} ms, all agents masked "
        f"{median['masked']:.1f} ms, an agent's masks {median['own']:.2f} ms, its keys once {keys:.2f} ms; a message "
        f"{found['plain'].nbytes:,} bytes plain, {words.nbytes:,} masked",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--numbers", type=int, default=4000)
    parser.add_argument("--agents", type=int, nargs="+", default=[10, 30])
    parser.add_argument("--repeats", type=int, default=31)
    arguments = parser.parse_args()
    with jax.enable_x64(True):
        for agents in arguments.agents:
            measure(agents, arguments.numbers, arguments.repeats)


if __name__ == "__main__":
    main()
