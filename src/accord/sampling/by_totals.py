"""Runs of methods that need nothing but totals: importance sampling, and its exact fallback."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..base.interruptions import hold, interruptions, let_through
from ..base.progress import stage
from ..engines.arrays import process_folder
from ..engines.engine import Builder
from ..fitting.evaluations import values
from ..fitting.network_sums import NetworkSums
from ..network import Network
from ..posterior import Posterior
from ..posterior.newton import NotIdentifiedError
from ..posterior.totals import ConsensusTotals, Totals
from ..results.certificate import INTERRUPTED, Certificate, Check
from ..results.complaints import unreliable_sd
from ..results.points import Points
from ..results.run import Run
from ..results.scales import for_all, in_both_scales
from ..results.traffic import Traffic
from ..samplers.by_totals import ByTotals
from ..samplers.chees import ChEES
from ..samplers.importance import Importance
from ..storage.fingerprint import claim, combined, fingerprint
from ..storage.recorded_totals import RecordedTotals
from ..sums.chees import walk
from ..sums.importance import importance
from ..sums.start import Start, start_without_points
from .integration import INTEGRATION, integration_check, some_of
from .latents import agents_here, keep_latents, prepare_latents
from .questions import Questions

# How far agents' log densities may be apart where sums are made by gossip, and draws at which that is looked at.
_APART, _LOOKED_AT = 0.01, 100


@dataclass(frozen=True)
class Drawn:
    """What a method drew.

    Parameters
    ----------
    draws
        Shape (chain, draw, dim), of every agent.
    statistics
        By name, each (chain, draw).
    certificate
        What was checked of them.
    points
        The weighted points, where there are some.
    start
        Where another method may begin.
    """

    draws: np.ndarray
    statistics: dict[str, np.ndarray]
    certificate: Certificate
    points: Points | None = None
    start: Start | None = None


def draw_importance(
    sums: NetworkSums,
    post: Posterior,
    method: Importance,
    *,
    draws: int,
    chains: int,
    seed: int,
    tell: Callable[[str], None],
    start: Start | None,
) -> Drawn:
    """Draws by importance sampling."""
    found = importance(sums, post, method, target=draws * chains, seed=seed, tell=tell)
    # where too few points were drawn, the chains are as long as these allow
    points = found.points(post)
    taken = points.chains(chains, min(draws, points.weight.size // chains), seed)
    return Drawn(points.positions[taken], {}, found.certificate, points, found.start)


def draw_chees(
    sums: NetworkSums,
    post: Posterior,
    method: ChEES,
    *,
    draws: int,
    chains: int,
    seed: int,
    tell: Callable[[str], None],
    start: Start | None,
) -> Drawn:
    """Draws by chains in lockstep."""
    tell("start")
    start = start_without_points(sums, post, seed) if start is None else start
    target = draws * chains
    found = walk(sums, method, start, post.unconstrained_names, chains=chains, target=target, seed=seed, tell=tell)
    # a chain of the run is several in lockstep, one after another, each thinned to its part
    count, length = found.positions.shape[:2]
    own = -(-draws // (count // chains))
    taken = np.unique(np.linspace(0, length - 1, own).round().astype(int))
    z = found.positions[:, taken].reshape(chains, -1, post.dim)[:, :draws]
    acceptance = np.broadcast_to(found.acceptance[taken], (count, taken.size)).reshape(chains, -1)[:, :draws]
    x = start.place.origin + z @ start.place.factor.T
    return Drawn(x, {"acceptance_rate": acceptance}, found.certificate, start=start)


def _agreed(drawn: Drawn, gossip: ConsensusTotals, sums: NetworkSums) -> Check:
    """Whether agents whose sums are made by gossip have the same log density at draws.

    `sums` are those of `gossip`, and are not recalled from a disk: nobody knows what agents were apart then.
    """
    values(sums, None, some_of(drawn.draws, _LOOKED_AT))
    holds = gossip.apart <= _APART
    text = f"agents' log densities are {gossip.apart:.2g} apart at most, {_APART} is allowed"
    remedy = (
        "" if holds else f": consensus={gossip.averaging.precision:g} is relative to F, which is large; ask for less"
    )
    return Check("consensus", gossip.apart, _APART, holds, text + remedy)


# How each method draws.
DRAW: dict[type[ByTotals], Callable[..., Drawn]] = {Importance: draw_importance, ChEES: draw_chees}
# Doubles that each holds of a draw of so many parameters. Importance: a point in both coordinates and as a draw, its
# density, its proposal's, its weight and its place. ChEES: positions and gradients, one by one and stacked, positions
# and their squares side by side, and F.
DOUBLES: dict[type[ByTotals], Callable[[int], int]] = {
    Importance: lambda dim: 3 * dim + 4,
    ChEES: lambda dim: 6 * dim + 1,
}


def sample_by_totals(
    post: Posterior,
    network: Network,
    methods: list[ByTotals],
    *,
    draws: int,
    chains: int,
    seed: int,
    builder: Builder,
    engine: str,
    keep: np.ndarray,
    checkpoint: str | Path | None,
    masks: bool,
    consensus: float | None,
) -> Run:
    """A run of the first of some methods whose certificate holds, or of the last; arguments as `sample` has them.

    Raises
    ------
    ArithmeticError
        The posterior has no mode to begin at.
    """
    network.require_connected()
    began = time.perf_counter()
    settings = {"engine": engine, "seed": seed, "chains": chains, "draws": draws, "masks": masks}
    if consensus is not None:
        settings |= {"consensus": consensus}
    with jax.enable_x64(True), builder.placed(post) as placed:
        prepare_latents(placed, keep)
        made = placed.totals(network, masks=masks, consensus=consensus)
        gossip = made if isinstance(made, ConsensusTotals) else None
        averaging = None if gossip is None else gossip.averaging
        totals: Totals = made
        if checkpoint is not None:
            # points are as many as the draws, so that another number of draws is another run
            kept = {"methods": repr(methods), "number of draws": draws}
            parts = fingerprint(post, network, None, **kept, **settings)
            folder = process_folder(Path(checkpoint))
            claim(folder, parts)
            totals = RecordedTotals(made, folder / "sums", combined(parts))
        sums = NetworkSums(placed, network, totals=totals, masks=masks, averaging=averaging)
        checked = NetworkSums(placed, network, totals=made, masks=masks, averaging=averaging)

        def checks(drawn: Drawn) -> list[Check]:
            integrated = integration_check(sums, placed, drawn.draws)
            found = [] if integrated is None else [integrated]
            return found if gossip is None else [*found, _agreed(drawn, gossip, checked)]

        # what one of several processes leaves, the others would wait for
        with interruptions(anywhere=jax.process_count() == 1) as stopped:

            def tell(what: str) -> None:
                stage(what)
                let_through()

            try:
                options = {"draws": draws, "chains": chains, "seed": seed, "tell": tell}
                method, drawn, why = _first(sums, placed, methods, checks, **options)
            finally:
                if isinstance(totals, RecordedTotals):
                    totals.write()
            failed = [check.name for check in drawn.certificate.checks if not check.holds]
            interrupted = stopped()
            refined = INTEGRATION in failed and not interrupted and placed.is_coarse
            if not refined:
                # of what was drawn nothing is lost any more
                hold()
        spent = sums.spent + checked.spent
        kept_latents = {} if refined else keep_latents(placed, keep, for_all(drawn.draws, keep.size), seed)
    if refined:
        # the same by more nodes
        again = sample_by_totals(
            post.finely(),
            network,
            methods,
            draws=draws,
            chains=chains,
            seed=seed,
            builder=builder,
            engine=engine,
            keep=keep,
            checkpoint=None if checkpoint is None else Path(checkpoint) / "finely",
            masks=masks,
            consensus=consensus,
        )
        return replace(again, traffic=again.traffic + spent, seconds=time.perf_counter() - began)
    if interrupted:
        warnings.warn(f"interrupted: the run keeps {drawn.draws.shape[1]} draws a chain", stacklevel=3)
    elif not drawn.certificate.holds:
        warnings.warn(f"the draws of {type(method).__name__} are not certified: {drawn.certificate.why}", stacklevel=3)
    scales = in_both_scales(placed, drawn.draws, keep.size, network)
    if drawn.certificate.holds and (text := unreliable_sd(scales["average"], scales["names"])):
        warnings.warn(text, stacklevel=3)
    return Run(
        **scales,
        agents=keep,
        statistics={"consensus_error": np.zeros(drawn.draws.shape[:2]), **drawn.statistics},
        traffic=Traffic() + spent,
        seconds=time.perf_counter() - began,
        settings={"method": repr(method), "network": repr(network), "seed": seed, "masks": masks}
        | ({"consensus": consensus} if consensus is not None else {})
        | ({"chosen": why} if why else {})
        | ({"interrupted": True} if interrupted else {})
        | kept_latents,
        points=drawn.points,
        certificate=drawn.certificate,
        agents_data=Questions(post, network, builder, masks, agents_here(placed)),
    )


def _first(
    sums: NetworkSums,
    post: Posterior,
    methods: list[ByTotals],
    checks: Callable[[Drawn], list[Check]],
    **options: Any,
) -> tuple[ByTotals, Drawn, str]:
    """The first method whose draws are certified, its draws, and why it was taken."""
    reasons: list[str] = []
    start: Start | None = None
    kept: tuple[ByTotals, Drawn] | None = None
    for method in methods:
        name = type(method).__name__
        try:
            drawn = DRAW[type(method)](sums, post, method, start=start, **options)
            if any(check.name == INTERRUPTED for check in drawn.certificate.checks):
                break
            stage("integrals over latents")
            certificate = Certificate((*drawn.certificate.checks, *checks(drawn)))
            drawn = replace(drawn, certificate=certificate)
        except KeyboardInterrupt:
            if kept is None:
                raise
            # what was drawn before is not certified, and better than nothing
            return *kept, "; ".join([*reasons, f"{name} was interrupted before it had drawn"])
        except NotIdentifiedError:
            raise
        except (ArithmeticError, np.linalg.LinAlgError) as error:
            why = str(error)
            if isinstance(error, np.linalg.LinAlgError):
                why = (
                    f"a matrix cannot be factorised ({error}), as where parameters are collinear: give them a proper "
                    "prior, or centre and scale their columns"
                )
            if method is methods[-1]:
                if isinstance(error, ArithmeticError):
                    raise
                raise ArithmeticError(why) from error
            reasons.append(f"{name} did not begin: {why}")
            # what is next may take long
            warnings.warn(f"{reasons[-1]}; {type(methods[len(reasons)]).__name__} goes on, by many sums", stacklevel=4)
            continue
        failed = [check.name for check in drawn.certificate.checks if not check.holds]
        # what integrals over latents are off, they are off for all methods
        if not failed or failed == [INTEGRATION] or method is methods[-1]:
            break
        reasons.append(f"{name} is not certified: {drawn.certificate.why}")
        start, kept = drawn.start, (method, drawn)
    if len(methods) == 1:
        return method, drawn, ""
    certified = "is certified" if drawn.certificate.holds else f"is not certified: {drawn.certificate.why}"
    return method, drawn, "; ".join([*reasons, f"{name} {certified}"])
