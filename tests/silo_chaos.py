"""A silo run of eight agents, and a context that kills their processes at random times."""

import os
import random
import signal
import threading
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from tables import walk

import accord
from accord.samplers import GTDULA
from accord.sampling import chunks

AGENTS, ROUNDS = 8, 2000


def log_likelihood(x, rows):
    return -jnp.sum((rows - x[None]) ** 2, axis=1) / 2.0


def log_prior(x):
    return -jnp.sum(x**2) / 20.0


def draw(engine, **options):
    """A run of two thousand rounds on a ring."""
    rng = np.random.default_rng(3)
    shards = [rng.standard_normal((2 + agent, 50)) for agent in range(AGENTS)]
    post = accord.Posterior(log_likelihood, log_prior, shards, np.zeros(50))
    sampler = GTDULA(0.005, 0.2, 0.15)
    return walk(
        post,
        accord.Network.ring(AGENTS),
        accord.Rounds(sampler, burn_in=1000, thin=2),
        draws=500,
        chains=2,
        seed=5,
        engine=engine,
        **options,
    )


class Kills:
    """Kills a random agent's process a random time after random rounds of a run."""

    def __init__(self, count, seed):
        self.random, self.victims = random.Random(seed), set()
        self.due = sorted(self.random.randrange(ROUNDS * 7 // 10) for _ in range(count))

    def __enter__(self):
        self.after = chunks._ProgressLine.after

        def after(line, rounds, error):
            self.after(line, rounds, error)
            while self.due and self.due[0] <= line.recorder.rounds:
                self.due.pop(0)
                threading.Timer(self.random.random(), self.kill).start()

        chunks._ProgressLine.after = after

    def __exit__(self, *reason):
        chunks._ProgressLine.after = self.after

    def kill(self):
        agents = [agent for agent in agents_below(os.getpid()) if agent not in self.victims]
        if agents:
            victim = self.random.choice(agents)
            os.kill(victim, signal.SIGKILL)
            self.victims.add(victim)
        else:
            threading.Timer(0.5, self.kill).start()


def agents_below(ancestor):
    """The ids of agents' processes among the descendants of a process."""
    parents, agents = {}, []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # the process name in brackets may contain brackets and spaces
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if b"WorkerProcess" in (folder / "cmdline").read_bytes():
                agents.append(int(folder.name))
        except (OSError, ValueError):
            continue  # the process has ended

    def is_below(process):
        while process in parents and process != ancestor:
            process = parents[process]
        return process == ancestor

    return [agent for agent in agents if is_below(agent)]
