"""A method of your own: copy this file, rename the classes, and write your recursion where it says so.

It runs as it is, on the hospitals' data: accord run examples/new_method/config.toml
What each part is for: docs/new-method.md.
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
    """What an agent remembers from one round to the next."""

    position: jax.Array  # the draw, of shape (dim,); add what else your recursion remembers


@pytree
class MyMethod(Tunable, Langevin, HasLaw):
    """One sentence: which method this is.

    From agent i: `x_i+ = sum_j W_ij x_j - step_size grad f_i(x_i) + sqrt(2 step_size) w_i`.

    The paper and its equation. What the draws target, and for whom: one agent, or the average of all. The conditions on
    the weights W and on the step.

    Parameters
    ----------
    step_size
        > 0, a number or a schedule of the round; None: chosen by a plan.
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
        # your message: all that the neighbours see in a round
        return state.position

    def update(self, agent, state, inbox, noise):
        # your recursion
        step = at(self.step_size, agent.round)
        gradient = agent.gradient(state.position)
        return MyState(inbox.mix() - step * gradient + (2.0 * step) ** 0.5 * noise.normal)

    def bind(self, post, network):
        return Bound(self, network.weights("metropolis"))

    # --- Tunable: the step may be left out ---

    tunable = ("step_size",)

    def with_step(self, step, network):
        return self.filled(step_size=step * network.num_agents)

    # --- Langevin: the step that the average of all agents makes on F = sum_i f_i ---

    def langevin_step(self, network):
        return rescaled(self.step_size, 1.0 / network.num_agents)


def check():
    """4,000 chains, after 30 rounds on a ring of six agents, have the mean and covariance of the method's exact law."""
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
