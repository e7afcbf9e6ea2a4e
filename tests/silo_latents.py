"""A silo run with rows and effects that are canaries, and searches for these in a process and in files.

python -c "import silo_latents; silo_latents.main(...)" is the driver. Another process searches it, because a process
that searches for values contains them.
"""

import os
import pickle
import sys
from functools import partial
from pathlib import Path

import jax
import numpy as np
from tables import walk
from unsealed import unsealed

import accord
from accord.samplers import DESGLD, Importance

AGENTS, SPREAD = 3, 0.01
# with an underscore, so that the search does not find this file
CANARY = 58_213.794615
OPTIONS = {"draws": 50, "chains": 2, "seed": 2**63 + 11}
# step far below the stability limit
METHODS = {"Importance": (Importance(), {}), "DESGLD": (DESGLD(1e-5), {"burn_in": 20, "checkpoint_every": 20})}


def rows(agent):
    """Rows of an agent in two groups, with values that identify the agent."""
    group = np.array([0.0, 0.0, 1.0, 1.0, 1.0])
    noise = SPREAD * np.random.default_rng(agent).standard_normal(5)
    return CANARY + 1000.0 * agent + group + noise, group


def at_site(folder, agent):
    found = np.load(Path(folder) / f"site-{agent}.npz")
    return found["y"], found["group"]


def log_likelihood(params, latents, rows):
    return -0.5 * ((rows[0] - params["shift"] - latents["effect"]) / SPREAD) ** 2


def log_prior(params):
    return -0.5 * (params["shift"] / SPREAD) ** 2


def log_prior_of_effects(params, latents, row):
    # centred at the first row, so that Newton's method starts close
    return -0.5 * ((latents["effect"] - row[0]) / 3.0) ** 2


def group(rows):
    return rows[1]


def posterior(folder):
    """The posterior of rows in a folder, with effects equal to the canaries minus a small shift."""
    local = accord.Local(log_prior_of_effects, {"effect": 0.0}, group)
    sources = [partial(at_site, folder, agent) for agent in range(AGENTS)]
    return accord.Posterior(log_likelihood, log_prior, sources, {"shift": 0.0}, local=local)


def write_rows(folder):
    folder.mkdir()
    for agent in range(AGENTS):
        y, groups = rows(agent)
        np.savez(folder / f"site-{agent}.npz", y=y, group=groups)


def draw(folder, method, engine, **options):
    net = accord.Network.ring(AGENTS)
    sampler, own = METHODS[method]
    return walk(posterior(folder), net, sampler, engine=engine, **{**OPTIONS, **own, **options})


def leaked_latents(potential, shard, positions):
    """An agent's latents, a forbidden request."""
    return jax.vmap(
        lambda x: potential.latents.draw(potential.unravel(x), potential.log_likelihood, shard, jax.random.PRNGKey(0))[
            "effect"
        ]
    )(positions)


def main(folder, method, leaks):
    """Run, write all files of a driver, and wait for the search."""
    folder = Path(folder)
    # without encryption, as the search is for message content
    with unsealed(), jax.enable_x64(True), accord.Silo(latents=str(folder / "kept")) as sites:
        run = draw(folder / "rows", method, sites, checkpoint=folder / "checkpoint")
        run.save(folder / "run.nc")
        (folder / "run.pickle").write_bytes(pickle.dumps(run))
        (folder / "run.txt").write_text(f"{run!r}\n{run.settings}\n{run.summary()}")
        (folder / "public").mkdir()
        np.save(folder / "public" / "draws.npy", run.draws)
        if leaks:
            (folder / "leaked").mkdir()
            with sites.placed(posterior(folder / "rows")) as held:
                leaked = held.each(leaked_latents, np.asarray(run.draws[0, :8, 0]))
                np.save(folder / "leaked" / "by-agent.npy", leaked)
        print("look", flush=True)
        sys.stdin.readline()


# --- the search ---


def doubles(values):
    """Some numbers as bytes."""
    values = np.asarray(values, np.float64).ravel()
    return {values[place : place + 1].tobytes() for place in _some(values)}


def floats(values):
    """Some numbers in single precision, each with the next one, as four bytes match by chance."""
    values = np.asarray(values, np.float32).ravel()
    return {values[place : place + 2].tobytes() for place in _some(values)}


def _some(values):
    return sorted({0, len(values) // 2, len(values) - 2})


def texts(values):
    """Numbers as text, with seven characters."""
    return {f"{value:.10f}"[:7].encode() for value in np.asarray(values).ravel()}


def memory(process):
    """The written and the shared memory of a process, in pieces."""
    page = os.sysconf("SC_PAGESIZE")
    with open(f"/proc/{process}/mem", "rb") as content, open(f"/proc/{process}/pagemap", "rb") as pages:
        for line in Path(f"/proc/{process}/maps").read_text().splitlines():
            span, mode, *rest = line.split()
            first, last = (int(end, 16) for end in span.split("-"))
            if mode[0] != "r" or (mode[1] != "w" and mode[3] != "s") or rest[-1].startswith("[v"):
                continue
            # skip pages that were never touched
            pages.seek(first // page * 8)
            entries = np.frombuffer(pages.read((last - first) // page * 8), np.uint64)
            there = np.concatenate([[0], (entries >> np.uint64(62) != 0).astype(int), [0]])
            edges = np.flatnonzero(np.diff(there))
            for begin, end in zip(edges[::2], edges[1::2], strict=True):
                content.seek(first + int(begin) * page)
                yield content.read(int(end - begin) * page)


def files(*places):
    """Contents of files, and of all files below folders."""
    for place in places:
        for path in [Path(place), *sorted(Path(place).rglob("*"))]:
            if path.is_file():
                yield path.read_bytes()


def holds(pieces, wanted):
    """The wanted byte strings in some pieces."""
    found = set()
    for piece in pieces:
        found |= {pattern for pattern in wanted if pattern not in found and pattern in piece}
    return found
