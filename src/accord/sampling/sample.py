"""`accord.sample`: checks what is given, opens a session, and returns the run of the method in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

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
from ..samplers.engine import Builder, engine_name
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
        The posterior, one shard an agent.
    network
        Who talks to whom; as many agents as shards.
    method
        The method, from `accord.samplers`. None takes `Auto()`: `Importance()`, and where that is not certified
        `ChEES()`. A method that walks from round to round stands for `accord.Rounds(method)`, which has options for
        burn-in, thinning, starts and coordinates; `accord.Rounds()` chooses such a method. On links that are not
        reliable None takes that.
    draws
        Draws of each chain.
    chains
        Independent chains.
    seed
        From 0 to 2**64 - 1. Draws depend on it and on nothing else: not on the engine or `keep`.
    engine
        "local": all agents on one device; "mesh": spread over all devices that JAX sees; "silo": a process an agent;
        or one of `accord.engines.Local`, `Mesh` and `Silo` with options, such as `Local(masks=True)`.
    keep
        "agents": the draws of every agent; "average": none, only the average; or a sequence of agent numbers. Memory
        depends on what is kept only. The average is always kept.
    checkpoint
        A folder that the run is kept in while it runs. The same call takes a run up where it was lost, and ends with
        the draws that it would have had undisturbed, bit by bit; of a finished run it returns the draws, and with more
        `draws` it goes on from there (methods by sums do not). The folder belongs to one run, which it recognises by
        everything given here and by values of the posterior's functions, not by their code. One run at a time uses a
        folder; several processes may each have their own disk.
    progress
        Show what is being done, on standard error: a line that moves on a terminal or changes in a notebook, and a line
        every ten seconds elsewhere. False shows nothing; nor does None where the environment has ACCORD_PROGRESS=off.

    Returns
    -------
    Run
        Interrupted by Ctrl-C or SIGTERM, it holds what was drawn until then, and says so in
        `run.settings["interrupted"]`.

    Raises
    ------
    ValueError
        Something does not fit: numbers out of range, a disconnected network, a step above the stability bound of a
        Gaussian posterior (the bound is printed), draws that this machine's memory cannot hold, a checkpoint folder
        that belongs to another run or is in use, ...
    ArithmeticError
        The posterior has no mode to begin at.
    DivergenceError
        A chain became non-finite; its `run` holds what was drawn before.
    RuntimeError
        This process was forked from one that had used JAX.
    """
    draws, chains = whole_number("draws", draws, 1), whole_number("chains", chains, 1)
    seed_words(seed)
    kept = _kept_agents(keep, network.num_agents)
    post.require_unchanged()
    builder, chosen = engine_of(engine), _method(method, network)
    job = Job(post, network, draws, chains, seed, kept, builder.masks)
    folder = None if checkpoint is None else Path(checkpoint)
    chosen.check(job, builder)
    # the checkpoint folder of this process is for this run alone
    alone = nullcontext() if folder is None else held(process_folder(folder))
    try:
        with terminations(), alone, Progress(chosen.title(job), progress):
            stage("reading the data")
            with opened(job, chosen, builder, folder) as session:
                return chosen.run(session)
    except AgentLostError as lost:
        options = {"draws": draws, "chains": chains, "seed": seed, "progress": progress}
        return go_on_without(lost, sample, job, chosen, builder, checkpoint=folder, keep=keep, **options)


def _method(method: Sampler | BySums | Rounds | None, network: Network) -> BySums | Rounds:
    """The method with all that its run needs."""
    if method is None:
        return Auto() if network.unreliable is None else Rounds()
    if isinstance(method, BySums | Rounds):
        return method
    return Rounds(method)


def engine_of(engine: str | Builder) -> Builder:
    """The builder of an engine that is given by name, or as it is."""
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
    """The session of a run: methods by sums have theirs in double precision, with sums that are kept in the folder."""
    in_double = jax.enable_x64(True) if isinstance(method, BySums) else nullcontext()
    with in_double, engine.placed(job.post) as placed:
        prepare_latents(placed, job.keep)
        here = replace(job, post=placed)
        if not isinstance(method, BySums):
            yield Session(here, engine=engine, checkpoint=checkpoint)
            return
        totals = placed.totals(job.network, masks=engine.masks, consensus=engine.consensus)
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
    """The same totals, kept in a folder that is this run's alone."""
    settings = {"engine": engine_name(engine), "seed": job.seed, "chains": job.chains, "masks": job.masks}
    if engine.consensus is not None:
        settings["consensus"] = engine.consensus
    # points are as many as the draws, so that another number of draws is another run
    parts = fingerprint(job.post, job.network, None, method=repr(method), **{"number of draws": job.draws}, **settings)
    folder = process_folder(checkpoint)
    claim(folder, parts)
    return RecordedTotals(totals, folder / "sums", combined(parts))
