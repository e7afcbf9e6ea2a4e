"""Opens the session of a run: its data where the agents are, its sums masked, made by gossip and kept on disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax

from ..engines.arrays import process_folder
from ..engines.fingerprint import claim, combined, fingerprint
from ..engines.recorded_totals import RecordedTotals
from ..posterior.latent_keepers import prepare_latents
from ..posterior.totals import Totals
from ..samplers.by_sums.method import BySums
from ..samplers.engine import Builder, engine_name
from ..samplers.session import Job, Session
from .rounds import Rounds


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
