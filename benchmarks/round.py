"""Time of one round over the floor that no implementation can go below: its gradients and its normal numbers alone.

Prints one line a case. Both sides run in one process, in turn, several times; the ratio is of the medians.
"""

import argparse
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

import accord
from accord.engines.local import LocalEngine
from accord.engines.noise import Stream, bits, joined, normals
from accord.engines.round import everywhere


def regression(agents, dim, rows, model, seed=0):
    rng = np.random.default_rng(seed)
    shards = []
    for _ in range(agents):
        X = rng.standard_normal((rows, dim))
        y = X.sum(axis=1) + rng.standard_normal(rows)
        shards.append((X, (y > 0).astype(float) if model == "logistic" else y))
    if model == "logistic":
        return accord.models.logistic_regression(shards)
    return accord.models.linear_regression(shards, noise_scale=1.0)


def gaussian(agents, dim, seed=0):
    rng = np.random.default_rng(seed)
    factor = rng.standard_normal((agents, dim, dim))
    covariances = np.eye(dim) + factor @ np.swapaxes(factor, 1, 2) / dim
    return accord.models.gaussian(rng.standard_normal((agents, dim)), covariances)


def floor(engine, chains, dim):
    """x <- x - step grad f_i(x) + noise: the gradients of all agents and as many normals, in one loop."""
    problem = engine.problem

    def draw(k):
        words = bits(problem.seed, chains, k, Stream.NORMAL, problem.index, dim)
        return normals(words, jnp.float32)

    @jax.jit
    def run(problem, x, rounds):
        def body(k, carry):
            # the noise is drawn a round ahead, as the engine does: the faster of the two orders
            x, noise = carry
            gradient = everywhere(lambda agent, own: agent.gradient(own), problem.agents(k), (x,))
            return x - 0.001 * gradient + joined(noise, dim), draw(k + 1)

        return jax.lax.fori_loop(0, rounds, body, (x, draw(0)))[0]

    x = jnp.zeros((problem.index.size, dim, chains))
    return lambda rounds: run(problem, x, rounds)


def measure(name, post, net, sampler, chains, rounds, repeats):
    engine = LocalEngine(post, net, sampler.bind(post, net), chains=chains, seed=0, keep=np.arange(1))
    carry = engine.start(np.zeros((post.num_agents, post.dim)), None)
    sides = {"round": lambda: engine.advance(carry, rounds), "floor": lambda: bare(rounds)}
    bare = floor(engine, chains, post.dim)
    seconds = {side: [] for side in sides}
    for repeat in range(repeats + 1):
        for side, work in sides.items():
            start = time.perf_counter()
            jax.block_until_ready(work())
            if repeat > 0:  # the first compiles
                seconds[side].append((time.perf_counter() - start) / rounds)
    median = {side: statistics.median(values) for side, values in seconds.items()}
    numbers = post.num_agents * post.dim * chains
    print(
        f"{name:<58} round {1e6 * median['round']:>9.1f} us  floor {1e6 * median['floor']:>9.1f} us  "
        f"ratio {median['round'] / median['floor']:.2f}  {1e9 * median['round'] / numbers:.1f} ns a number",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    ring, random = accord.Network.ring(100), accord.Network.erdos_renyi(100, 0.1, seed=0)
    small = regression(100, 2, 50, "linear")
    rows = regression(100, 2, 50, "logistic")
    desgld = accord.samplers.DESGLD(0.001)
    measure("DESGLD, linear regression, ring of 100, 100 chains, d=2", small, ring, desgld, 100, 2000, repeats)
    measure("DESGLD, linear regression, random 100, 100 chains, d=2", small, random, desgld, 100, 2000, repeats)
    measure("DESGLD, logistic regression, ring of 100, 100 chains, d=2", rows, ring, desgld, 100, 200, repeats)
    large = gaussian(100_000, 10)
    net = accord.Network.ring(100_000)
    measure("DESGLD, Gaussian, ring of 100,000, 1 chain, d=10", large, net, desgld, 1, 20, repeats)
    gtdula = accord.samplers.GTDULA(1e-8, 0.3, 0.3)
    measure("GTDULA, Gaussian, ring of 100,000, 1 chain, d=10", large, net, gtdula, 1, 20, repeats)


if __name__ == "__main__":
    main()
