"""Section 6.2 of the D-ADMMS paper: its data, methods and networks, and their recursions as matrices.

The paper states all numbers of the methods, 100 trials, and x_i(0) ~ N(0, I). Other choices are as in the authors'
scripts, which the paper's first footnote names: 50 rounds, Metropolis weights for S, agent 0 for "an agent", the true x
drawn from the prior, covariances of trials divided by their number. v(0) of D-SGHMC is 0 (N(0, I) in the scripts).

The scripts differ from the printed equations: an agent mixes the values that earlier agents computed in the same round,
and the proximal step of D-ADMMS sums over agents 0 .. deg_i - 1 instead of the neighbours. `recursion` has both forms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy.linalg import block_diag

from accord import Gaussian, Network, Posterior, Sampler
from accord.models import linear_regression
from accord.samplers import DADMMS, DESGHMC, DESGLD, DULA
from accord.samplers.schedules import Polynomial

from ...base.figures import COLORS

PAPER = (
    "Tzikas, Romao, Pilanci, Abate and Kochenderfer: Distributed Markov Chain Monte Carlo Sampling based on the "
    "Alternating Direction Method of Multipliers (2024)"
)
XI, PRIOR_VARIANCE = 4.0, 10.0
ROUNDS, TRIALS = 50, 100
RHO, SGLD_STEP, SGHMC_STEP, FRICTION = 5.0, 0.009, 0.1, 7.0
ULA_STEP, ULA_CONSENSUS, ULA_OFFSET = 0.00082, 0.48, 230.0
START = Gaussian(np.zeros(2), np.eye(2))

NETWORKS: dict[str, Callable[[int], Network]] = {
    "complete": Network.complete,
    "ring": Network.ring,
    "no edges": Network.empty,
}
# chi_1 of D-ULA. chi_2 is 0.05 on all networks.
_CONSENSUS_DECAY = {"complete": 0.55, "ring": 0.05, "no edges": 0.05}
ULA = {
    kind: (Polynomial(ULA_STEP, ULA_OFFSET, 0.05), Polynomial(ULA_CONSENSUS, ULA_OFFSET, chi))
    for kind, chi in _CONSENSUS_DECAY.items()
}

# Each method on a kind of network. `published` is the paper's form, the last two forms are accord's.
METHODS: dict[str, Callable[[str], Sampler]] = {
    "D-ADMMS": lambda kind: DADMMS(RHO, calibration="published"),
    "C-ADMM": lambda kind: DADMMS(RHO, temperature=0.0),
    "D-SGLD": lambda kind: DESGLD(SGLD_STEP),
    "D-SGHMC": lambda kind: DESGHMC(SGHMC_STEP, FRICTION),
    "D-ULA": lambda kind: DULA(*ULA[kind]),
    "calibrated": lambda kind: DADMMS(RHO),
    "common noise": lambda kind: DADMMS(RHO, noise="common"),
}
# Line styles. Dashes differ, so that coinciding curves are visible.
STYLE: dict[str, dict[str, str]] = {
    "D-ADMMS": {"color": COLORS["blue"], "ls": "-"},
    "C-ADMM": {"color": "0.2", "ls": "--"},
    "D-SGLD": {"color": COLORS["vermillion"], "ls": "-"},
    "D-SGHMC": {"color": COLORS["orange"], "ls": "-"},
    "D-ULA": {"color": COLORS["purple"], "ls": "-"},
    "calibrated": {"color": COLORS["sky"], "ls": ":"},
    "common noise": {"color": COLORS["green"], "ls": "-."},
}
BASELINES = ("D-SGLD", "D-SGHMC", "D-ULA")
# Methods that accord refuses on a network without edges. By eq. 4 each agent goes to its own mode there.
ALONE = ("D-ADMMS", "C-ADMM")


def methods_on(kind: str) -> tuple[str, ...]:
    """The methods on a kind of network."""
    return (*ALONE, *BASELINES) if kind == "no edges" else tuple(METHODS)


def regression(agents: int, rows: int, rng: np.random.Generator, dim: int = 2) -> Posterior:
    """The posterior of section 6.2.1 with random data."""
    x = PRIOR_VARIANCE**0.5 * rng.standard_normal(dim)
    Z = rng.standard_normal((agents, rows, dim))
    y = Z @ x + XI * rng.standard_normal((agents, rows))
    return linear_regression(list(zip(Z, y, strict=True)), noise_scale=XI, prior_variance=PRIOR_VARIANCE)


@dataclass(frozen=True)
class Recursion:
    """The recursion s+ = A(k) s + c(k) + B(k) w on s = (x, second), with the agents' positions stacked in x.

    Parameters
    ----------
    step
        `step(k)` returns A, c and B of round k.
    """

    step: Callable[[int], tuple[np.ndarray, np.ndarray, np.ndarray]]

    def walk(self, start: Gaussian, agents: int, rounds: int) -> Iterator[Gaussian]:
        """Yield the joint law of the agents after 0, 1, ..., `rounds` rounds from independent starts."""
        mean, cov = np.tile(start.mean, agents), np.kron(np.eye(agents), start.cov)
        size = mean.size
        extra = len(self.step(0)[1]) - size
        mean, cov = np.pad(mean, (0, extra)), np.pad(cov, (0, extra))
        for k in range(rounds + 1):
            yield Gaussian(mean[:size], cov[:size, :size])
            A, c, B = self.step(k)
            half = A @ cov @ A.T + B @ B.T
            mean, cov = A @ mean + c, (half + half.T) / 2.0


def recursion(name: str, kind: str, post: Posterior, rho: float = RHO, scripts: bool = False) -> Recursion:
    """Eqs. 4-5 and 22-25 as matrices, or the form of the authors' scripts."""
    network, d = NETWORKS[kind](post.num_agents), post.dim
    H, b = block_diag(*post.hessians()), -post.gradients(np.zeros(d)).ravel()
    wide, eye, eta = np.eye(d), np.eye(len(b)), SGHMC_STEP

    def mixing(S: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """M and R in x+ = M (R x + ...), for x+ = S x + ... or, in place, x+ = L x+ + (S - L) x + ... (L: `lower`)."""
        lower = np.kron(np.tril(S, -1), wide) if scripts else 0.0 * eye
        return np.linalg.inv(eye - lower), np.kron(S, wide) - lower

    def langevin(S: np.ndarray, step: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        M, R = mixing(S)
        return M @ (R - step * H), step * M @ b, (2.0 * step) ** 0.5 * M

    def kinetic() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        M, R = mixing(network.mixing())
        keep, shock = (1.0 - eta * FRICTION) * eye, (2.0 * FRICTION * eta) ** 0.5 * eye
        A = np.block([[M @ (R - eta**2 * H), eta * M @ keep], [-eta * H, keep]])
        return A, np.concatenate([eta**2 * M @ b, eta * b]), np.vstack([eta * M @ shock, shock])

    def admm() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        n, degrees = post.num_agents, network.degrees.astype(float)
        tied = np.arange(n)[None] < degrees[:, None] if scripts else network.adjacency.toarray()
        D, pull, L = np.diag(degrees), np.kron(np.diag(degrees) + tied, wide), np.kron(network.laplacian, wide)
        shock = {
            "D-ADMMS": 2.0**0.5 * D,
            "C-ADMM": 0.0 * D,
            "calibrated": 2.0 * np.sqrt(rho * D),
            # w / sqrt(rho sum_i deg_i) at each centre, times the strength 2 rho deg_i of the proximal step
            "common noise": 2.0 * rho * degrees[:, None] / np.sqrt(rho * max(degrees.sum(), 1.0)),
        }
        P = np.linalg.inv(H + 2.0 * rho * np.kron(D, wide))
        # the duals sum to zero, and rounding errors in the sum would never decay
        kept = np.kron(np.eye(n) - 1.0 / n, wide)
        x = [rho * P @ pull, -P, P @ b, P @ np.kron(shock[name], wide)]
        A = np.block([[x[0], x[1]], [rho * L @ x[0], kept + rho * L @ x[1]]])
        return A, np.concatenate([x[2], rho * L @ x[2]]), np.vstack([x[3], rho * L @ x[3]])

    if name == "D-ULA":
        alpha, zeta, n = *ULA[kind], post.num_agents
        return Recursion(lambda k: langevin(np.eye(n) - zeta(k) * network.laplacian, n * alpha(k)))
    made = {"D-SGLD": lambda: langevin(network.mixing(), SGLD_STEP), "D-SGHMC": kinetic}.get(name, admm)()
    return Recursion(lambda k: made)
