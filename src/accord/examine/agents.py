"""The agents of a finished run, with their data in place: first they confirm that the run is of their posterior."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import jax
import numpy as np

from ..engines.silo.engine import Silo
from ..network import Network
from ..posterior import Posterior
from ..posterior.totals import Totals
from ..results.run import Run
from ..samplers.by_sums.evaluations import value_of
from ..samplers.engine import Builder
from ..sampling.sample import engine_of

# Why a run with masked sums has no answers of single agents.
MASKED = (
    "No site by itself: the sums of this run are masked, and a site's own log likelihood at the points would reveal "
    "its rows; sample without masks if all sites allow that"
)
# Relative difference that is allowed between a stored log density and the agents' sum.
_APART = 1e-6
# Rounding of a log density, relative to itself.
_ROUNDING = 1e-11


@dataclass(frozen=True)
class Agents:
    """The agents of a run.

    Parameters
    ----------
    post
        The run's posterior, in the user's parameters.
    placed
        The same posterior with its data where the agents are.
    network
        Who talks to whom.
    masks
        Whether sums are masked.
    """

    post: Posterior
    placed: Posterior
    network: Network
    masks: bool

    @property
    def totals(self) -> Totals:
        """Sums over all agents, masked where those of the run or the engine are."""
        return self.placed.totals(self.network, masks=self.masks)

    def log_density(self, positions: np.ndarray) -> np.ndarray:
        """-F at positions (point, dim); (point,), by one sum."""
        return -np.asarray(self.totals(value_of, points=positions), np.float64)


@contextmanager
def agents_of(
    run: Run, post: Posterior, network: Network, engine: str | Builder, *, single: bool = False
) -> Iterator[Agents]:
    """The agents of a run, in double precision, after checks that the run is of this posterior and network.

    Parameters
    ----------
    run, post, network
        The run, and the posterior and the network that it was sampled with.
    engine
        What places the data, as in `accord.sample`.
    single
        Whether numbers of single agents are returned, which a run with masked sums refuses.

    Raises
    ------
    TypeError
        An argument is of another type.
    ValueError
        The run is of another posterior or of other agents, its sums are masked, or the posterior has changed.
    """
    for what, found, kind in (("run", run, Run), ("post", post, Posterior), ("network", network, Network)):
        if not isinstance(found, kind):
            raise TypeError(f"{what} must be an accord.{kind.__name__}, found {type(found).__name__}")
    builder = engine_of(engine)
    masks = bool(run.settings.get("masks")) or builder.masks
    if single and masks:
        raise ValueError(MASKED)
    post.require_unchanged()
    post = _matching(run, post, network)
    with jax.enable_x64(True), builder.placed(post) as placed:
        agents = Agents(post, placed, network, masks)
        _require_density(run, agents)
        yield agents


@contextmanager
def kept_running(engine: str | Builder) -> Iterator[Builder]:
    """The engine, whose processes stay for several questions where it is named here."""
    builder = engine_of(engine)
    with builder if isinstance(engine, str) and isinstance(builder, Silo) else nullcontext():
        yield builder


def _matching(run: Run, post: Posterior, network: Network) -> Posterior:
    """The posterior as the run integrated it, in the user's parameters; `ValueError` where names or sizes differ."""
    count = run.traffic.bytes_sent.size
    for what, found in (("posterior", post), ("network", network)):
        if found.num_agents != count:
            raise ValueError(f"the run is of {count} agents, and the {what} of {found.num_agents}: give the run's own")
    if post.names != run.names or post.variables != run.variables:
        raise ValueError(
            f"the run is of the parameters {_listed(run.names)}, and the posterior of {_listed(post.names)}: give the "
            "run's own posterior"
        )
    known = (("sites", run.info.sites, post.info.sites), ("rows", run.info.rows, _rows_of(post)))
    for what, own, others in known:
        if own and others and own != others:
            raise ValueError(
                f"the {what} of the run's agents are {_listed(own)}, and those of the posterior {_listed(others)}: "
                "give the run's own posterior"
            )
    if _stored(run) is None:
        _require_words(run, post)
    # the run was repeated with more nodes where its integrals over latents were too coarse
    post = post.finely() if "nodes" in run.settings else post
    post = post.in_parameters()
    if post.dim != run.moved.average.shape[2]:
        raise ValueError(
            f"methods moved in {run.moved.average.shape[2]} numbers in the run, and in {post.dim} in the posterior: "
            "give the run's own posterior, with its constraints"
        )
    return post


def _stored(run: Run) -> tuple[np.ndarray, np.ndarray] | None:
    """Positions (point, dim) with the log density that the run stored there, (point,); None if it stored none."""
    if run.points is not None:
        return run.points.positions, run.points.log_density
    if "lp" in run.statistics:
        return run.moved.average.reshape(-1, run.moved.average.shape[2]), run.statistics["lp"].ravel()
    return None


def _require_words(run: Run, post: Posterior) -> None:
    """Raise `ValueError` if the run and the posterior name different models, formulas or priors."""
    for what in ("model", "formula", "priors"):
        own, others = getattr(run.info, what), getattr(post.info, what)
        if own and others and own != others:
            raise ValueError(f"the run has the {what} {own}, and the posterior {others}: give the run's own posterior")


def _require_density(run: Run, agents: Agents) -> None:
    """Raise `ValueError` unless the agents' log density is the one that the run stored, at three positions."""
    known = _stored(run)
    if known is None:
        return
    positions, density = known
    finite = np.flatnonzero(np.isfinite(density))
    if not finite.size:
        return
    order = finite[np.argsort(density[finite], kind="stable")]
    chosen = order[[len(order) // 2, 3 * len(order) // 4, -1]]
    stored, found = density[chosen], agents.log_density(positions[chosen])
    # differences do not have the constant that rows have in common
    apart = np.abs((found - found[-1]) - (stored - stored[-1])) - _ROUNDING * np.abs(stored)
    if not np.allclose(found, stored, rtol=_APART, atol=_APART) or apart.max() > _APART:
        worst = int(np.argmax(np.abs(found - stored)))
        raise ValueError(
            f"the posterior is not the one of the run: its log density at a point of the run is {found[worst]:.8g}, "
            f"and the run has {stored[worst]:.8g} there; give the rows, prior and model that the run was sampled from"
        )


def _rows_of(post: Posterior) -> tuple[int, ...]:
    """Rows of each agent; empty where they were not counted."""
    return post.info.rows or post.counted_rows


def _listed(names: Sequence[object]) -> str:
    return ", ".join(map(str, names[:5])) + (f", ... ({len(names)})" if len(names) > 5 else "")
