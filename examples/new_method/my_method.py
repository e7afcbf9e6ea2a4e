"""Template of a custom method: copy this file, rename the classes, and write your recursion at the comments.

It runs unchanged on the hospitals' data: accord run examples/new_method/config.toml
docs/new-method.md explains each part.
"""

from typing import NamedTuple

import jax
import numpy as np

import accord
from accord.samplers.protocol import (
    Bound,
    HasLaw,
    Langevin,
    Needs,
    Step,
    Tunable,
    as_step,
    at,
    checked,
    pytree,
    rescaled,
)


class MyState(NamedTuple):
    """State of an agent between rounds."""

    position: jax.Array  # the draw, shape (dim,). Add further arrays of your recursion


@pytree
class MyMethod(Tunable, Langevin, HasLaw):
    """One sentence with the name of the method.

    From agent i: `x_i+ = sum_j W_ij x_j - step_size grad f_i(x_i) + sqrt(2 step_size) w_i`.

    The paper and its equation. The law of the draws, of one agent or of the average. The conditions on the weights W
    and on the step.

    Parameters
    ----------
    step_size
        > 0, a number or a schedule of the round. None: a plan chooses it.
    temperature, noise
        As in `Sampler`.
    """

    step_size: Step | None = checked(as_step, default=None)

    def needs(self, dim):
        # one exchange with the neighbours, `dim` standard normals, one gradient of f_i over all rows
        return Needs("mix", common=self.noise == "common")

    def init(self, agent, position, noise):
        return MyState(position)

    def message(self, agent, state):
        # your message, the only data that neighbours receive in a round
        return state.position

    def update(self, agent, state, inbox, noise):
        # your recursion
        step = at(self.step_size, agent.round)
        gradient = agent.gradient(state.position)
        return MyState(inbox.mix() - step * gradient + (2.0 * step) ** 0.5 * noise.normal)

    def bind(self, post, network):
        return Bound(self, network.weights("metropolis"))

    # --- Tunable: a plan can choose the step ---

    tunable = ("step_size",)

    def with_step(self, step, network):
        return self.filled(step_size=step * network.num_agents)

    # --- Langevin: the step of the average of all agents on F = sum_i f_i ---

    def langevin_step(self, network):
        return rescaled(self.step_size, 1.0 / network.num_agents)


def check():
    """Compare 4,000 chains after 30 rounds on a ring of six agents with the method's exact law."""
    post = accord.models.gaussian(means=[-1.0, 0.0, 1.0, 2.0, 0.0, 1.0], covariances=[1.0, 2.0, 3.0, 1.0, 2.0, 3.0])
    network, method = accord.Network.ring(6), MyMethod(0.05)
    run = accord.sample(post, network, accord.Rounds(method, burn_in=29), draws=1, chains=4000, seed=0)
    law = accord.law(post, network, method).at(30)
    for i in range(6):
        x, agent = run.draws[:, 0, i, 0].astype(float), law.agent(i)
        mean, variance = agent.mean[0], agent.cov[0, 0]
        z_mean = (x.mean() - mean) / np.sqrt(variance / x.size)
        z_variance = (x.var() / variance - 1.0) / np.sqrt(2.0 / x.size)
        print(f"agent {i}: the mean is off by {z_mean:+.1f} and the variance by {z_variance:+.1f} Monte Carlo errors")
        assert max(abs(z_mean), abs(z_variance)) < 4.0


if __name__ == "__main__":
    check()
