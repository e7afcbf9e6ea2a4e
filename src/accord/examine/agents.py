"""The agents of a finished run, with their data placed, after checks that the run is of their posterior."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import jax
import numpy as np

from ..base.progress import Progress
from ..engines.silo.engine import Silo
from ..network import Network
from ..posterior import Posterior
from ..posterior.totals import Totals
from ..results.run import Run
from ..samplers.by_sums.evaluations import value_of
from ..samplers.engine import Builder, is_coarse
from ..sampling.sample import engine_of

# Error for queries of single agents after a run with masked sums.
MASKED = (
    "No numbers of single sites: the sums of this run are masked, and the log likelihood of a single site would reveal "
    "its rows. Sample without masks if all sites agree"
)
# Error for queries after a run with coarse answers.
COARSE = (
    "No numbers of the sites: this run has coarse answers, and exact sums at its points would reveal what their noise "
    "hides. Sample without coarse=True if all sites agree"
)
# The same after a run with `Private`.
PRIVATE = (
    "No numbers of the rows: they have no noise, so the guarantee of Private() would not hold. Sample with another "
    "method if all sites agree"
)
# Largest relative difference between a stored log density and the agents' sum.
_APART = 1e-6
# Relative rounding error of a log density.
_ROUNDING = 1e-11


@dataclass(frozen=True)
class Agents:
    """The agents of a run.

    Parameters
    ----------
    post
        The run's posterior.
    placed
        The same posterior with its data placed at the agents.
    network
        The network of the agents.
    masks
        Whether sums are masked.
    """

    post: Posterior
    placed: Posterior
    network: Network
    masks: bool

    @property
    def totals(self) -> Totals:
        """Sums over all agents, masked if the run or the engine masks sums."""
        return self.placed.totals(self.network, masks=self.masks)

    def log_density(self, positions: np.ndarray) -> np.ndarray:
        """-F at positions (point, dim) by one sum, shape (point,)."""
        return -np.asarray(self.totals(value_of, points=positions), np.float64)


@contextmanager
def agents_of(
    run: Run, post: Posterior, network: Network, engine: str | Builder, *, single: bool = False
) -> Iterator[Agents]:
    """Context manager: the agents of a run in double precision, if the run is of this posterior and network.

    Parameters
    ----------
    run, post, network
        The run with its posterior and its network.
    engine
        Engine that places the data, as in `accord.sample`.
    single
        Whether the caller requests numbers of single agents. Such requests fail if sums are masked.

    Raises
    ------
    TypeError
        An argument has another type.
    ValueError
        The run has coarse answers, is of another posterior or of other agents, its sums are masked and `single` is set,
        or the posterior has changed.
    """
    require_types(run, post, network)
    builder = engine_of(engine)
    if "private" in run.settings:
        raise ValueError(PRIVATE)
    if run.settings.get("coarse") or is_coarse(builder):
        raise ValueError(COARSE)
    masks = bool(run.settings.get("masks")) or builder.masks
    if single and masks:
        raise ValueError(MASKED)
    post.require_unchanged()
    post = _matching(run, post, network)
    with Progress("querying the agents"), jax.enable_x64(True), builder.placed(post) as placed:
        agents = Agents(post, placed, network, masks)
        _require_density(run, agents)
        yield agents


def require_types(run: Run, post: Posterior, network: Network) -> None:
    """Raise `TypeError` unless the arguments are a run, a posterior and a network."""
    for what, found, kind in (("run", run, Run), ("post", post, Posterior), ("network", network, Network)):
        if not isinstance(found, kind):
            raise TypeError(f"{what} must be an accord.{kind.__name__}, found {type(found).__name__}")


@contextmanager
def kept_running(engine: str | Builder) -> Iterator[Builder]:
    """Context manager: the engine, with processes that serve several queries if `engine` is a name."""
    builder = engine_of(engine)
    with builder if isinstance(engine, str) and isinstance(builder, Silo) else nullcontext():
        yield builder


def _matching(run: Run, post: Posterior, network: Network) -> Posterior:
    """The posterior with the run's quadrature and coordinates; `ValueError` if names or sizes differ from the run's."""
    count = run.traffic.bytes_sent.size
    for what, found in (("posterior", post), ("network", network)):
        if found.num_agents != count:
            raise ValueError(f"the run has {count} agents, and the {what} has {found.num_agents}: use the run's {what}")
    if post.names != run.names or post.variables != run.variables:
        raise ValueError(
            f"the run has the parameters {_listed(run.names)}, and the posterior has {_listed(post.names)}: pass the "
            "run's posterior"
        )
    known = (("sites", run.info.sites, post.info.sites), ("rows", run.info.rows, _rows_of(post)))
    for what, own, others in known:
        if own and others and own != others:
            raise ValueError(
                f"the {what} of the run's agents are {_listed(own)}, and the posterior's are {_listed(others)}: pass "
                "the run's posterior"
            )
    if _stored(run) is None:
        _require_words(run, post)
    # the run has "nodes" if it was repeated with a finer quadrature over latents
    post = post.finely() if "nodes" in run.settings else post
    post = post.in_parameters()
    if post.dim != run.moved.average.shape[2]:
        raise ValueError(
            f"the run has {run.moved.average.shape[2]} unconstrained coordinates, and the posterior has {post.dim}: "
            "pass the run's posterior, with its constraints"
        )
    return post


def _stored(run: Run) -> tuple[np.ndarray, np.ndarray] | None:
    """Positions (point, dim) and log densities (point,) that the run stored, or None."""
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
            raise ValueError(f"the run has the {what} {own}, and the posterior has {others}: pass the run's posterior")


def _require_density(run: Run, agents: Agents) -> None:
    """Raise `ValueError` unless the agents' log density equals the run's stored log density at three positions."""
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
    # differences between positions cancel additive constants
    apart = np.abs((found - found[-1]) - (stored - stored[-1])) - _ROUNDING * np.abs(stored)
    if not np.allclose(found, stored, rtol=_APART, atol=_APART) or apart.max() > _APART:
        worst = int(np.argmax(np.abs(found - stored)))
        raise ValueError(
            f"the posterior is not the run's posterior: its log density at a point of the run is {found[worst]:.8g}, "
            f"and the run stored {stored[worst]:.8g}. Pass the posterior with the run's rows, prior and model"
        )


def _rows_of(post: Posterior) -> tuple[int, ...]:
    """Number of rows of each agent; empty if unknown."""
    return post.info.rows or post.counted_rows


def _listed(names: Sequence[object]) -> str:
    return ", ".join(map(str, names[:5])) + (f", ... ({len(names)})" if len(names) > 5 else "")
