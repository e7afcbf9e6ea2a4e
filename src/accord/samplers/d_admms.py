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
    # Error of the proximal step if it missed its tolerance, in standard deviations of that step's noise; else 0.
    # None of a closed form.
    unsolved_error: Float[Array, ""] | None
    # Gradients and products with Hessians that it took; None where it takes one, in closed form.
    gradients: Int[Array, ""] | None


@pytree
class DADMMS(Tunable, Langevin, HasLaw, Monitored):
    """Distributed ADMM-based sampler.

    From agent i:
    `x_i+ = argmin_x f_i(x) + p_i' x + rho sum_{j in N_i} |x - (x_i + x_j)/2|^2 + 2 sqrt(rho deg_i) w_i' x`,
    `p_i+ = p_i + rho sum_{j in N_i} (x_i+ - x_j+)`, with p_i = 0 at the start.

    D-ADMMS paper, eqs. 4-5 with the noise of eqs. 40-41 (eq. 6 prints wrong signs). The degree-weighted average makes
    implicit Langevin steps of size h = 1 / (2 rho sum_i deg_i) on F. The noise above is the `calibrated` one, which has
    the temperature of that step on every graph; the `published` noise is `sqrt(2) deg_i w_i`, whose temperature is
    r / (2 rho) on an r-regular graph, so that its error bars are right only at rho = r/2. Any rho is stable on convex
    potentials whose proximal steps are solved: columns in units a thousand times apart want ``whiten=True``. So do
    posteriors 1e5 standard deviations or more from zero in single precision, whose positions are rounded by more the
    larger rho is: a round then moves them by little more than their last digit. Every agent needs a neighbour. At
    `temperature=0` this is C-ADMM, which converges to the mode.

    The proximal step is solved in closed form for quadratic potentials, and else by Newton's method with conjugate
    gradients, preconditioned by the agent's Hessian at init up to a few hundred parameters.

    Parameters
    ----------
    rho
        Penalty > 0, a number or a schedule of the round; large is accurate and slow. None: chosen by a plan, in
        whitened coordinates.
    calibration
        "calibrated" (default) or "published": the scale of the noise.
    tolerance
        Error allowed in each proximal step, as a fraction of the standard deviation of the noise that the step
        adds (at temperature zero, of a millionth of that at temperature one). A run in which a step misses it warns.
    temperature, noise
        As in `Sampler`.

    Raises
    ------
    ValueError
        A number out of its range, or an agent without a neighbour.

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
        # The dual step that ends round k - 1 needs the neighbours' positions of that round. They arrive now, with
        # the message of round k: one exchange serves both steps. Before round 0 there was no dual step.
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
        # a closed form misses nothing, and takes one gradient as any round does
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
            "step's noise, and draws may be as far off; raise rho, take whiten=True where parameters have units far "
            "apart, or check that every potential is convex"
        )


# The noise against which proximal steps of the optimiser are judged, relative to that at temperature one.
_COLD = 1e-6

# For each calibration: the noise's scale s_i at the proximal centre, and what common noise is multiplied by. The
# degree-weighted average has noise sum_i deg_i s_i w_i / D, D = sum_i deg_i; a shared w scaled by
# sqrt(sum_i deg_i^2 s_i^2) / (D s_i) leaves its variance as it is and gives every agent the same noise.
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
