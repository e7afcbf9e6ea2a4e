"""Pooled chains of the subset draws, and the moments of each agent's draws."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...base.gaussian import Gaussian


class Moments(NamedTuple):
    """Sample means (agent, dim) and covariances (agent, dim, dim) of the subset draws, with their inverses."""

    means: np.ndarray
    covariances: np.ndarray
    precisions: np.ndarray

    def product(self) -> Gaussian:
        """The product of the Gaussians with these moments, normalised: precision `sum_i S_i^-1`."""
        precision = self.precisions.sum(axis=0)
        cov = np.linalg.inv(precision)
        mean = np.linalg.solve(precision, np.einsum("nij,nj->i", self.precisions, self.means))
        return Gaussian(mean, (cov + cov.T) / 2)


def pooled(subsets: np.ndarray) -> np.ndarray:
    """Subset draws (chain, draw, agent, dim) with chains and draws merged, shape (agent, point, dim)."""
    chains, draws, agents, dim = subsets.shape
    return np.moveaxis(subsets.reshape(chains * draws, agents, dim), 1, 0)


def moments(points: np.ndarray) -> Moments:
    """Moments of points (agent, point, dim).

    Raises
    ------
    ArithmeticError
        The points of an agent lie in a plane, so that their covariance is singular.
    """
    means = points.mean(axis=1)
    centred = points - means[:, None]
    covariances = np.einsum("nti,ntj->nij", centred, centred) / (points.shape[1] - 1)
    # unit variances, so that different units of parameters do not look like a plane
    sd = np.sqrt(np.einsum("nii->ni", covariances))
    smallest = np.full(len(points), 0.0)
    varied = (sd > 0).all(axis=1)
    scaled = covariances[varied] / (sd[varied][:, :, None] * sd[varied][:, None, :])
    smallest[varied] = np.linalg.eigvalsh(scaled)[:, 0]
    if not (smallest > 1e-10).all():
        agent = int(np.argmax(~(smallest > 1e-10)))
        raise ArithmeticError(
            f"the subset draws of agent {agent} lie in a plane: their correlation matrix has the eigenvalue "
            f"{smallest[agent]:.3g}. Increase draws"
        )
    precisions = np.linalg.inv(covariances)
    return Moments(means, covariances, (precisions + np.swapaxes(precisions, 1, 2)) / 2)
