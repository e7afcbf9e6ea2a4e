"""Forecasts of methods that ask for nothing but sums: what a run would take, from its beginning or on a Gaussian."""

from __future__ import annotations

import time
from collections.abc import Callable

import jax
import numpy as np

from .. import models
from ..fitting.evaluations import slopes, values
from ..fitting.network_sums import NetworkSums
from ..network import Network
from ..posterior import Posterior
from ..posterior.coordinates import Coordinates
from ..results.traffic import Traffic
from ..samplers.by_totals import ByTotals
from ..samplers.chees import ChEES
from ..samplers.costs import total_traffic
from ..samplers.importance import Importance
from ..tuning.forecast import Cost, SumsForecast
from .certificate import ENOUGH, MOVED, MOVES, followed
from .chees import lockstep_chains, walk
from .importance import Batches, looked
from .start import Start, start_without_points

# Times that a sum is timed, the fastest of which counts.
_TIMES = 3


def forecast_by_totals(
    post: Posterior, network: Network, method: ByTotals, *, draws: int, chains: int, seed: int
) -> SumsForecast:
    """Forecast what `chains` chains of so many effective draws take.

    Importance sampling begins as a run does, with the mode, lines and batches that proposals are fitted to, which is
    most of its sums and few of its evaluations. How many effective draws a point is then worth is known from points
    that took no part in the fit, so that what is forecast is the rest: a batch of values, and the certificate.

    ChEES looks for its start as a run does; then it moves as many chains on a standard normal posterior of as many
    parameters, over no network. Its sums are counted. A posterior that is not Gaussian takes more.

    Parameters
    ----------
    post, network
        As in `accord.sample`.
    method
        The method.
    draws, chains
        As in `accord.sample`, each draw taken for an effective one.
    seed
        Of points and chains, as the run's.

    Raises
    ------
    ArithmeticError
        The posterior has no mode to begin at.
    """
    return _FORECASTS[type(method)](post, network, method, draws, chains, seed)


def _importance(
    post: Posterior, network: Network, method: Importance, draws: int, chains: int, seed: int
) -> SumsForecast:
    target = draws * chains
    with jax.enable_x64(True):
        batches = _begun(post, network, method, seed)
        # the second time all programs are compiled
        began = time.perf_counter()
        batches = _begun(post, network, method, seed)
        seconds = time.perf_counter() - began
        sums, spent = batches.sums, batches.sums.spent
        found, due = batches.found, batches.due(target)
        assert found is not None
        points, doubt = found.points[: batches.size], _doubt(batches, due, target)
        if due:
            spent += total_traffic(network, due) + Traffic(value_rows=due * post.sizes)
            seconds += due / len(points) * _fastest(lambda: values(sums, batches.place, points))
        if not doubt:
            # what is refused without them takes no moves
            moved = np.resize(points, (MOVED, post.dim))
            spent += total_traffic(network, MOVED * (1 + post.dim), MOVES)
            spent += Traffic(gradient_rows=MOVES * MOVED * post.sizes)
            seconds += MOVES * _fastest(lambda: slopes(sums, batches.place, moved))
    basis = f"a point of the last proposal is worth {batches.efficiency:.2g} draws"
    return SumsForecast(method, Cost.of(spent, seconds), basis, doubt)


def _begun(post: Posterior, network: Network, method: Importance, seed: int) -> Batches:
    batches = looked(NetworkSums(post, network), post, method, seed=seed, tell=_silent)
    batches.fit()
    return batches


def _doubt(batches: Batches, due: int, target: int) -> str:
    """Why a certificate will not hold, as far as that is known before points are weighed."""
    tails = followed(batches.skeleton)
    if not tails.holds:
        return tails.text
    assert batches.found is not None
    if due == 0 and batches.found.effective < ENOUGH * target:
        return f"a point is expected to be worth {batches.efficiency:.2g} effective draws, too few to go on"
    return ""


def _chees(post: Posterior, network: Network, method: ChEES, draws: int, chains: int, seed: int) -> SumsForecast:
    count = lockstep_chains(method, chains)
    with jax.enable_x64(True):
        sums = NetworkSums(post, network)
        start_without_points(sums, post, seed)
        began = time.perf_counter()
        sums = NetworkSums(post, network)
        start = start_without_points(sums, post, seed)
        seconds, spent = time.perf_counter() - began, sums.spent
        _on_a_normal(post.dim, method, draws, chains, seed)
        began = time.perf_counter()
        normal, doubt = _on_a_normal(post.dim, method, draws, chains, seed)
        # what all agents do alike, and sums that take next to nothing
        seconds += time.perf_counter() - began
        z = start.positions(count, seed)
        seconds += normal * _fastest(lambda: slopes(sums, start.place, z))
        spent += total_traffic(network, count * (1 + post.dim), normal)
        spent += Traffic(gradient_rows=normal * count * post.sizes)
    basis = f"{count} chains on the nearest Gaussian; what is not Gaussian takes more"
    return SumsForecast(method, Cost.of(spent, seconds), basis, doubt)


def _on_a_normal(dim: int, method: ChEES, draws: int, chains: int, seed: int) -> tuple[int, str]:
    """Sums that chains in lockstep take on a standard normal posterior, and why they are not certified there."""
    post = models.quadratic(np.eye(dim)[None], np.zeros((1, dim)))
    sums = NetworkSums(post, Network.empty(1))
    start = Start(Coordinates(np.zeros(dim), np.eye(dim)), np.zeros((0, dim)))
    names = tuple(map(str, range(dim)))
    found = walk(sums, method, start, names, chains=chains, target=draws * chains, seed=seed, tell=_silent)
    return sums.count, "" if found.certificate.holds else f"on a Gaussian already, {found.certificate.why}"


# What makes the forecast of each method.
_FORECASTS: dict[type[ByTotals], Callable[..., SumsForecast]] = {Importance: _importance, ChEES: _chees}


def _fastest(ask: Callable[[], object]) -> float:
    """The seconds of a sum without compiling: the first is not timed, and other work only adds to the others."""
    times = []
    for _ in range(1 + _TIMES):
        began = time.perf_counter()
        ask()
        times.append(time.perf_counter() - began)
    return min(times[1:])


def _silent(what: str) -> None:
    """Nothing is told of a forecast's steps."""
