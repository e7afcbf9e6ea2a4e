"""`accord.sample`: check the arguments, open a session and run the method in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..base.checks import whole_number
from ..base.errors import AgentLostError, unknown_name_error
from ..base.interruptions import terminations
from ..base.progress import Progress, stage
from ..engines.arrays import process_folder
from ..engines.checkpoint import held
from ..engines.fingerprint import claim, combined, fingerprint
from ..engines.local import Local
from ..engines.mesh.engine import Mesh
from ..engines.noise import seed_words
from ..engines.recorded_totals import RecordedTotals
from ..engines.silo.engine import Silo
from ..network import Network
from ..posterior import Posterior
from ..posterior.latent_keepers import prepare_latents
from ..posterior.totals import Totals
from ..results.run import Run
from ..samplers.by_sums.auto import Auto
from ..samplers.by_sums.method import BySums
from ..samplers.engine import Builder, engine_name, is_coarse, is_whole
from ..samplers.protocol import Sampler
from ..samplers.session import Job, Session
from .agent_loss import go_on_without
from .rounds import Rounds

ENGINES: dict[str, Callable[..., Builder]] = {"local": Local, "mesh": Mesh, "silo": Silo}


def sample(
    post: Posterior,
    network: Network,
    method: Sampler | BySums | Rounds | None = None,
    *,
    draws: int = 1000,
    chains: int = 4,
    seed: int = 0,
    engine: str | Builder = "local",
    keep: str | Sequence[int] = "agents",
    checkpoint: str | Path | None = None,
    progress: bool | None = None,
) -> Run:
    """Draw from a posterior whose data stays with the agents of a network.

    Parameters
    ----------
    post
        The posterior, one shard per agent.
    network
        The agents and the edges between them, one agent per shard.
    method
        A method from `accord.samplers`. None: `Auto()`, which runs `Importance()` and falls back to `ChEES()` if the
        certificate fails, or `accord.Rounds()` on unreliable links. A round-based method such as `DESGLD(0.1)` stands
        for `accord.Rounds(DESGLD(0.1))`, which has options for burn-in, thinning, starts and coordinates.
        `accord.Rounds()` chooses such a method.
    draws
        Draws per chain.
    chains
        Independent chains.
    seed
        From 0 to 2**64 - 1. The draws depend on the seed, not on the engine or `keep`.
    engine
        "local": all agents on one device. "mesh": agents spread over all devices that JAX sees. "silo": one process per
        agent. Or an engine with options, such as `accord.engines.Local(masks=True)`.
    keep
        "agents": the draws of every agent. "average": only the average. Or a sequence of agent numbers. The average is
        always kept. Memory grows with the number of agents kept.
    checkpoint
        Folder for checkpoints. The same call resumes an interrupted run, and its draws are bit for bit the draws of an
        uninterrupted one. For a finished run the call returns the draws. With more `draws` a round-based run continues.
        The folder belongs to one run, identified by these arguments and by values of the posterior's functions, not by
        their code. One run at a time can use it. Each of several processes may use its own disk.
    progress
        Show progress on standard error: a live line in a terminal or notebook, a line every ten seconds elsewhere.
        None: unless the environment has ACCORD_PROGRESS=off.

    Returns
    -------
    Run
        After Ctrl-C or SIGTERM, the draws so far, with `run.settings["interrupted"]` set.

    Raises
    ------
    ValueError
        A number is out of range, the network is disconnected, the step exceeds the stability bound for a Gaussian
        posterior, the draws do not fit in memory, or the checkpoint folder is in use or belongs to another run.
    ArithmeticError
        The posterior has no mode to start from.
    DivergenceError
        A chain became non-finite. The error's `run` has the draws before that.
    RuntimeError
        This process was forked from one that had used JAX.
    KeyboardInterrupt
        Ctrl-C or SIGTERM before the first draw.
    """
    require_problem(post, network)
    draws, chains = whole_number("draws", draws, 1), whole_number("chains", chains, 1)
    if checkpoint == "":
        raise ValueError("checkpoint is empty: name a folder, or omit it")
    seed_words(seed)
    kept = _kept_agents(keep, network.num_agents)
    post.require_unchanged()
    builder, chosen = engine_of(engine), _method(method, network)
    noisy = is_coarse(builder) or (isinstance(chosen, BySums) and chosen.noisy)
    job = Job(post, network, draws, chains, seed, kept, builder.masks, noisy, is_whole(builder))
    folder = None if checkpoint is None else Path(checkpoint)
    if job.coarse and folder is not None:
        raise ValueError(
            "a run with coarse answers or Private() cannot be resumed, as answers would be made again: omit checkpoint"
        )
    chosen.check(job, builder)
    lock = nullcontext() if folder is None else held(process_folder(folder))
    try:
        with terminations(), lock, Progress(chosen.title(job), progress):
            stage("reading the data")
            with opened(job, chosen, builder, folder) as session:
                return chosen.run(session)
    except KeyboardInterrupt:
        again = "" if folder is None else f". The same call continues from {folder}"
        raise KeyboardInterrupt(f"interrupted: the run keeps no draws{again}") from None
    except AgentLostError as lost:
        options = {"draws": draws, "chains": chains, "seed": seed, "progress": progress}
        return go_on_without(lost, sample, job, chosen, builder, checkpoint=folder, keep=keep, **options)


def require_problem(post: Any, network: Any) -> None:
    """Raise `TypeError` unless the arguments are a posterior and a network."""
    if not isinstance(post, Posterior) or not isinstance(network, Network):
        raise TypeError(
            "the first argument must be an accord.Posterior and the second an accord.Network, found "
            f"{type(post).__name__} and {type(network).__name__}"
        )


def _method(method: Sampler | BySums | Rounds | None, network: Network) -> BySums | Rounds:
    """The method, with the default filled in and a bare round-based method wrapped in `Rounds`."""
    if method is None:
        return Auto() if network.unreliable is None else Rounds()
    if isinstance(method, BySums | Rounds):
        return method
    return Rounds(method)


def engine_of(engine: str | Builder) -> Builder:
    """The builder of an engine given by name, or the engine itself."""
    if not isinstance(engine, str):
        if isinstance(engine, type) and engine in ENGINES.values():
            raise TypeError(f"engine must be an object: write {engine.__name__}(), found the class")
        if not callable(getattr(engine, "build", None)):
            raise TypeError(f"engine must be a name or have a method `build`, found {engine!r}")
        return engine
    if engine not in ENGINES:
        raise unknown_name_error("engine", engine, ENGINES)
    return ENGINES[engine]()


def _kept_agents(keep: str | Sequence[int], num_agents: int) -> np.ndarray:
    if isinstance(keep, str):
        choices = {"agents": np.arange(num_agents), "average": np.array([], dtype=np.int64)}
        if keep not in choices:
            raise unknown_name_error("keep", keep, choices)
        return choices[keep]
    kept = np.asarray(keep)
    if kept.ndim != 1 or kept.size == 0 or kept.dtype.kind not in "iu":
        raise ValueError(f'keep must be "agents", "average" or a list of agent numbers, found {keep!r}')
    if kept.min() < 0 or kept.max() >= num_agents or np.unique(kept).size != kept.size:
        raise ValueError(f"keep must hold different agent numbers from 0 to {num_agents - 1}, found {keep!r}")
    return kept


@contextmanager
def opened(job: Job, method: BySums | Rounds, engine: Builder, checkpoint: Path | None = None) -> Iterator[Session]:
    """The session of a run. Sum-based methods run in double precision and record their sums in `checkpoint`."""
    in_double = jax.enable_x64(True) if isinstance(method, BySums) else nullcontext()
    with in_double, engine.placed(job.post) as placed:
        prepare_latents(placed, job.keep)
        here = replace(job, post=placed)
        if not isinstance(method, BySums):
            yield Session(here, engine=engine, checkpoint=checkpoint)
            return
        totals = placed.totals(job.network, masks=engine.masks, consensus=engine.consensus, coarse=job.coarse)
        recorded = None if checkpoint is None else _recorded(totals, job, method, engine, checkpoint)
        finer = None
        if placed.is_coarse:
            finely = replace(job, post=job.post.finely())
            finer = partial(opened, finely, method, engine, None if checkpoint is None else checkpoint / "finely")
        try:
            yield Session(here, totals, recorded=recorded, finer=finer)
        finally:
            if recorded is not None:
                recorded.write()


def _recorded(totals: Totals, job: Job, method: BySums, engine: Builder, checkpoint: Path) -> RecordedTotals:
    """Totals that are also recorded in the run's checkpoint folder."""
    settings = {"engine": engine_name(engine), "seed": job.seed, "chains": job.chains, "masks": job.masks}
    if engine.consensus is not None:
        settings["consensus"] = engine.consensus
    # the number of points depends on the number of draws
    parts = fingerprint(job.post, job.network, None, method=repr(method), **{"number of draws": job.draws}, **settings)
    folder = process_folder(checkpoint)
    claim(folder, parts)
    return RecordedTotals(totals, folder / "sums", combined(parts))
