"""Section 6.3 of the D-ADMMS paper: its data and methods, and its equations in NumPy.

The section states all numbers except the rounds (20, as in the authors' script) and the choices in common.py. There is
no exact law here. The equations in NumPy, with independent noise, replace it in checks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
from scipy.special import expit

from accord import Network, Posterior, Sampler
from accord.models import logistic_regression
from accord.samplers import DADMMS, DESGHMC, DESGLD, DULA
from accord.samplers.schedules import Polynomial

from .common import PRIOR_VARIANCE, RHO, ULA, ULA_CONSENSUS, ULA_OFFSET, ULA_STEP

ROWS, DIM, ROUNDS = 50, 3, 20
ROW_VARIANCE, SGLD_STEP = 20.0, 0.0003
# 50 agents on a complete network: chi_1 = chi_2 = 0.9
MANY = Polynomial(ULA_STEP, ULA_OFFSET, 0.9), Polynomial(ULA_CONSENSUS, ULA_OFFSET, 0.9)
METHODS: dict[str, Callable[[str, int], Sampler]] = {
    "D-ADMMS": lambda kind, n: DADMMS(RHO, calibration="published"),
    "C-ADMM": lambda kind, n: DADMMS(RHO, temperature=0.0),
    "D-SGLD": lambda kind, n: DESGLD(SGLD_STEP),
    "D-SGHMC": lambda kind, n: DESGHMC(0.02, 30.0),
    "D-ULA": lambda kind, n: DULA(*(MANY if (kind, n) == ("complete", 50) else ULA[kind])),
}


class Data:
    """Random data of section 6.3.1: rows (agent, row, 3) and labels 0 or 1."""

    def __init__(self, agents: int, rng: np.random.Generator) -> None:
        x = PRIOR_VARIANCE**0.5 * rng.standard_normal(DIM)
        self.X = ROW_VARIANCE**0.5 * rng.standard_normal((agents, ROWS, DIM))
        self.y = (rng.random((agents, ROWS)) <= expit(self.X @ x)).astype(float)
        self.prior = 1.0 / (PRIOR_VARIANCE * agents)

    @cached_property
    def post(self) -> Posterior:
        """The posterior given all data."""
        return logistic_regression(list(zip(self.X, self.y, strict=True)), prior_variance=PRIOR_VARIANCE)

    def accuracy(self, x: np.ndarray) -> np.ndarray:
        """The share of correct labels for positions (trial, ..., 3), shape (trial, ...)."""
        rows, labels = self.X.reshape(-1, DIM), self.y.ravel() == 1
        return np.stack([((one @ rows.T >= 0) == labels).mean(axis=-1) for one in x])

    def gradient(self, x: np.ndarray) -> np.ndarray:
        """The gradient of every agent's potential (eq. 30), shape (..., agent, 3)."""
        off = expit(np.einsum("nrd,...nd->...nr", self.X, x)) - self.y
        return np.einsum("nrd,...nr->...nd", self.X, off) + self.prior * x

    def minimum(self, start: np.ndarray, center: np.ndarray | float = 0.0, strength: float = 0.0) -> np.ndarray:
        """The minimum of every f_i(x) + strength |x - center|^2 / 2, by damped Newton steps."""

        def value(x: np.ndarray) -> np.ndarray:
            logits = np.einsum("nrd,...nd->...nr", self.X, x)
            loss = (np.logaddexp(0.0, logits) - self.y * logits).sum(axis=-1)
            return loss + (self.prior * x**2 + strength * (x - center) ** 2).sum(axis=-1) / 2.0

        x = start
        for _ in range(200):
            slope = self.gradient(x) + strength * (x - center)
            p = expit(np.einsum("nrd,...nd->...nr", self.X, x))
            H = np.einsum("nrd,...nr,nre->...nde", self.X, p * (1.0 - p), self.X)
            step = np.linalg.solve(H + (self.prior + strength) * np.eye(DIM), slope[..., None])[..., 0]
            size, before = np.ones(x.shape[:-1]), value(x)
            # a tolerance for rounding, so that the loop ends
            while (worse := value(x - size[..., None] * step) > before + 1e-12 * (1.0 + np.abs(before))).any():
                size = np.where(worse, size / 2.0, size)
            x = x - size[..., None] * step
            if np.abs(step).max() < 1e-10:
                break
        return x

    def written_out(self, name: str, network: Network, x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """All rounds of eq. 22 (D-SGLD) or eqs. 4-5 (D-ADMMS and C-ADMM) from positions (trial, agent, 3)."""
        found, p, degree = [x], np.zeros_like(x), float(network.max_degree)
        W, A = network.mixing(), network.adjacency.toarray()
        for _ in range(ROUNDS):
            w = rng.standard_normal(x.shape)
            if name == "D-SGLD":
                x = W @ x - SGLD_STEP * self.gradient(x) + (2.0 * SGLD_STEP) ** 0.5 * w
            else:
                # regular networks only
                pull = p + (2.0**0.5 * degree * w if name == "D-ADMMS" else 0.0)
                center = (x + A @ x / degree) / 2.0 - pull / (2.0 * RHO * degree)
                x = self.minimum(x, center, 2.0 * RHO * degree)
                p = p + RHO * (degree * x - A @ x)
            found.append(x)
        return np.stack(found, axis=1)
