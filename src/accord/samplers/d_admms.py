"""D-ADMMS: consensus ADMM with a noisy proximal step."""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Self

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ..base.checks import positive
from ..base.pytree import checked, pytree, static
from ..network import Network
from .agent import Agent, Inbox, Noise
from .protocol import HasLaw, Langevin, Monitored, Needs, Tunable
from .proximal import proximal_point
from .schedules import Step, as_step, at


class DADMMSState(NamedTuple):
    position: Float[Array, " dim"]
    dual: Float[Array, " dim"]


class DADMMSInfo(NamedTuple):
    # Error of a proximal step that missed its tolerance, in standard deviations of the step's noise, else 0. None for a
    # closed form.
    unsolved_error: Float[Array, ""] | None
    # Gradients and Hessian-vector products of the step. None for a closed form, which takes one gradient.
    gradients: Int[Array, ""] | None


@pytree
class DADMMS(Tunable, Langevin, HasLaw, Monitored):
    """Distributed ADMM-based sampler.

    From agent i:
    `x_i+ = argmin_x f_i(x) + p_i' x + rho sum_{j in N_i} |x - (x_i + x_j)/2|^2 + 2 sqrt(rho deg_i) w_i' x`,
    `p_i+ = p_i + rho sum_{j in N_i} (x_i+ - x_j+)`, with p_i = 0 at the start.

    D-ADMMS paper, eqs. 4-5 with the noise of eqs. 40-41 (eq. 6 prints wrong signs). The degree-weighted average makes
    implicit Langevin steps of size h = 1 / (2 rho sum_i deg_i) on F. The noise above is the `calibrated` one, which has
    the temperature of that step on every graph. The `published` noise is `sqrt(2) deg_i w_i` with temperature r / (2
    rho) on an r-regular graph, so that its error bars are right only at rho = r/2. Any rho is stable on convex
    potentials if proximal steps are solved. Use ``whiten=True`` if columns have units a thousand times apart. Use it as
    well in single precision if the posterior is 1e5 standard deviations or more from zero: rounding grows with rho, and
    a round then moves positions by little more than their last digit. Every agent needs a neighbour. At `temperature=0`
    this is C-ADMM, which converges to the mode.

    Proximal steps have a closed form for quadratic potentials. Others use Newton's method with conjugate gradients,
    preconditioned by the agent's Hessian at init up to a few hundred parameters.

    Parameters
    ----------
    rho
        Penalty > 0, a number or a schedule of the round. Larger values are more accurate and mix more slowly. None: a
        plan chooses it, in whitened coordinates.
    calibration
        Scale of the noise: "calibrated" (default) or "published".
    tolerance
        Allowed error of each proximal step, as a fraction of the standard deviation of the step's noise (at temperature
        0, of 1e-6 times that at temperature 1). A run warns if a step misses it.
    temperature, noise
        As in `Sampler`.

    Raises
    ------
    ValueError
        A parameter out of range, or an agent without a neighbour.

    Examples
    --------
    >>> import accord
    >>> post = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0, 2.0, 3.0])
    >>> method = accord.samplers.DADMMS(rho=2.0, noise="common")
    >>> run = accord.sample(post, accord.Network.ring(3), method, draws=10, chains=2, seed=0)
    >>> run.draws.shape
    (2, 10, 3, 1)
    """

    rho: Step | None = checked(as_step, default=None)
    calibration: str = static(default="calibrated")
    tolerance: float = static(default=1e-3)

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("tolerance", self.tolerance)
        if self.calibration not in _NOISE:
            raise ValueError(f'calibration must be "calibrated" or "published", found {self.calibration!r}')

    def needs(self, dim: int) -> Needs:
        return Needs("neighbour_sum", common=self.noise == "common", eigenvectors=True, differences=1)

    def init(self, agent: Agent, position: Float[Array, " dim"], noise: Noise) -> DADMMSState:
        return DADMMSState(position, jnp.zeros_like(position))

    def message(self, agent: Agent, state: DADMMSState) -> Float[Array, " dim"]:
        return state.position

    def transition(
        self, agent: Agent, state: DADMMSState, inbox: Inbox, noise: Noise
    ) -> tuple[DADMMSState, DADMMSInfo]:
        x, degree = state.position, agent.degree
        # The dual step that ends round k - 1 needs the neighbours' positions of that round, which arrive with the
        # messages of round k: one exchange serves both steps. Before round 0 there is no dual step.
        earlier = jnp.where(agent.round > 0, at(self.rho, jnp.maximum(agent.round - 1, 0)), 0.0)
        dual = state.dual + agent.facts.caution * earlier * inbox.differences()
        rho = at(self.rho, agent.round)
        strength = 2.0 * rho * degree
        noise_scale, _ = _NOISE[self.calibration]
        scale = noise_scale(rho, degree)
        center = x - inbox.disagreement() / (2.0 * degree) - dual / strength - scale * noise.normal
        spread = scale * max(self.temperature**0.5, _COLD)
        if self.noise == "common":
            spread = spread * self.common_scale(agent)
        found = proximal_point(agent, center, strength, start=x, tolerance=self.tolerance * spread)
        state = DADMMSState(found.point, dual)
        # a closed form has no error, and counts as the round's one gradient
        if agent.shard.quadratic is not None:
            return state, DADMMSInfo(None, None)
        return state, DADMMSInfo(found.error / spread, found.evaluations)

    def common_scale(self, agent: Agent) -> Array:
        _, common = _NOISE[self.calibration]
        return common(agent)

    tunable: ClassVar[tuple[str, ...]] = ("rho",)

    def with_step(self, step: float, network: Network) -> Self:
        return self.filled(rho=1.0 / (2.0 * step * float(network.degrees.sum())))

    def conserved(self, agent: Agent, state: DADMMSState) -> Float[Array, " dim"]:
        return state.dual

    def langevin_step(self, network: Network) -> Step:
        total = float(network.degrees.sum())
        if callable(self.rho):
            return lambda k: 1.0 / (2.0 * total * at(self.rho, k))
        return 1.0 / (2.0 * total * at(self.rho, 0))

    def warning(self, statistics: dict[str, np.ndarray]) -> str | None:
        worst = float(statistics.get("unsolved_error", np.zeros(1)).max())
        if worst == 0:
            return None
        return (
            f"a proximal step of D-ADMMS missed its tolerance: its error was {worst:.3g} standard deviations of the "
            "step's noise, and draws may be off by as much: raise rho, use whiten=True if units of parameters are far "
            "apart, or check that every potential is convex"
        )


# Noise scale for the tolerance at temperature 0, relative to that at temperature 1.
_COLD = 1e-6

# For each calibration: the noise's scale s_i at the proximal centre, and the factor of common noise. The
# degree-weighted average has noise sum_i deg_i s_i w_i / D, D = sum_i deg_i. A common w with the factor
# sqrt(sum_i deg_i^2 s_i^2) / (D s_i) keeps its variance and gives every agent the same noise.
_NOISE = {
    "calibrated": (
        lambda rho, degree: (rho * degree) ** -0.5,
        lambda agent: (agent.degree / agent.facts.degree_sum) ** 0.5,
    ),
    "published": (
        lambda rho, degree: 0.5**0.5 / rho,
        lambda agent: agent.facts.degree_square_sum**0.5 / agent.facts.degree_sum,
    ),
}
