"""Draws of one of two mesh processes, which can read the data of their own agents only.

python shares_worker.py OUTPUT.npz ADDRESS PROCESS
"""

import sys
from functools import partial

import jax
import numpy as np

import accord
from accord.engines.processes import join
from accord.samplers import DESGLD, DGLMC, Gibbs, Importance

AGENTS = 6
METHODS = {
    "minibatches": lambda: DESGLD(0.02, batch_size=2),
    "left-out numbers": lambda: DGLMC(),
    "common mode": lambda: Gibbs(0.3, "rejection", recentre=True),
}


def shard(agent, owner):
    assert jax.process_index() == owner, f"process {jax.process_index()} reads the data of agent {agent}"
    rng = np.random.default_rng(agent)
    X = rng.standard_normal((3 + 2 * agent, 2))
    return X, (rng.random(len(X)) < 0.5).astype(float)


def draw(owners, method, engine, checkpoint=None):
    """A short run with data that only process `owners[agent]` can read."""
    sources = [partial(shard, agent, owners[agent]) for agent in range(AGENTS)]
    post = accord.models.logistic_regression(sources, 4.0, names=["a", "b"])
    net = accord.Network.ring(AGENTS)
    walk = accord.Rounds(METHODS[method](), burn_in=20, thin=1)
    return accord.sample(post, net, walk, draws=10, chains=2, seed=2, engine=engine, checkpoint=checkpoint)


def effects(params, latents, row):
    return -0.5 * latents["effect"] ** 2


def likelihood(params, latents, rows):
    X, y = rows
    return -0.5 * (y - X @ params - latents["effect"]) ** 2


def prior(params):
    return -0.5 * (params**2).sum()


def draw_latents(owners, engine):
    """The latents of a run with one effect per agent."""
    sources = [partial(shard, agent, owners[agent]) for agent in range(AGENTS)]
    post = accord.Posterior(likelihood, prior, sources, np.zeros(2), local=accord.Local(effects, {"effect": 0.0}))
    net = accord.Network.ring(AGENTS)
    run = accord.sample(post, net, Importance(), draws=10, chains=2, seed=2, engine=engine)
    return accord.latents(run, post, net, engine=engine)


def main(output, address, process):
    # two agents per device and two devices per process, the last device has no agent
    owners = [0, 0, 0, 0, 1, 1]
    with join(address, 2, int(process)):
        runs = {method: draw(owners, method, "mesh") for method in METHODS}
        # with a checkpoint, and resumed
        kept = [draw(owners, "minibatches", "mesh", f"{output}-kept").draws for _ in range(2)]
        np.testing.assert_array_equal(kept, [runs["minibatches"].draws] * 2)
        local = draw_latents(owners, "mesh")
        own = [agent for agent, owner in enumerate(owners) if owner == int(process)]
        assert list(local) == own, list(local)
        np.savez(f"{output}-latents-{process}", **{str(agent): local[agent]["effect"] for agent in own})
        try:
            local[5 - own[0]]
        except KeyError as error:
            assert "are drawn in the process that has its data" in str(error)
        else:
            raise AssertionError("the latents of another process' agent were drawn")
    if int(process) == 0:
        np.savez(output, **{f"{name}/draws": run.draws for name, run in runs.items()})


if __name__ == "__main__":
    main(*sys.argv[1:])
