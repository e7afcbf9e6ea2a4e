"""Importance sampling with shared proposals and exact totals: the whole posterior in a dozen sums."""

from __future__ import annotations

from dataclasses import dataclass

from ..base.checks import whole_number
from .by_totals import ByTotals


@dataclass(frozen=True, kw_only=True)
class Importance(ByTotals):
    """Adaptive multiple importance sampling whose proposals all agents draw alike and whose weights are totals.

    From agent i: its sums of derivatives on the way to the mode, and `f_i(x_b) - f_i(mode)` at the points x_b of each
    batch, summed over a tree of the network. Points are drawn from shared counters and never sent. Every agent then
    knows F at all points, has the same weights, and goes on in the same way, so that all hold the same draws, on any
    connected network, without bias as far as the certificate of the run (`run.certificate`) holds.

    Not from the papers: our own. The nearest are adaptive multiple importance sampling (Cornuet, Marin, Mira & Robert
    2012, arXiv 0907.1254), whose weights these are, Pareto smoothed importance sampling (Vehtari et al. 2024), whose k
    the certificate reads, and the exploration of hyperparameters in INLA (Rue, Martino & Chopin 2009).

    1. The mode by Newton's method, and coordinates in which the posterior is about standard normal there.
    2. F along half-lines from the mode and at points scattered around it. Where F rises slowly on a half-line, a
       skeleton of components follows it. Where F is below one of its tangents, other modes are looked for, and the
       half-lines of each are followed too.
    3. Small batches of points from a mixture of t distributions, with gradients, the first around the mode; each next
       proposal is fitted to the weighted points, as far as that is expected to be more efficient; where these are too
       few, to some transitions of Hamiltonian Monte Carlo.
    4. Large batches from the last proposal, values only, until enough effective draws are there; and where weights
       have a heavy tail, some around the heaviest points (incremental mixtures, Raftery & Bao 2010).
    5. The draws: the points of all batches in a random order, each as often as its weight says (systematic resampling).

    Parameters
    ----------
    batch
        Points of a batch that the proposal is fitted to, >= 100; None: 16 for each parameter, and at least 256. Later
        batches are as large as the effective draws that are missing ask for.
    max_batches
        Batches after which it ends with what there is, >= 1.
    search
        Number of points scattered around the mode in search of other modes, >= 0. The certificate states how likely
        these points notice another mode. Take more, such as 10,000, where narrow modes are possible.

    Raises
    ------
    ValueError
        A number out of its range.

    Examples
    --------
    >>> import accord
    >>> post = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0, 2.0, 3.0])
    >>> run = accord.sample(post, accord.Network.ring(3), accord.samplers.Importance(), draws=250)
    >>> run.draws.shape, run.certificate.holds
    ((4, 250, 3, 1), True)
    """

    batch: int | None = None
    max_batches: int = 20
    search: int = 384

    def __post_init__(self) -> None:
        if self.batch is not None:
            whole_number("batch", self.batch, 100)
        whole_number("max_batches", self.max_batches, 1)
        whole_number("search", self.search, 0)
