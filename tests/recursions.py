"""NumPy implementations of every method with linear rounds, from its paper's recursion, agent by agent.

They use none of the library's rounds, exchanges, gradients or weights, only a method's fields and a network's edges
and, for Gibbs, its colours. Positions are (agent, dim, chain), and noise is `propagation.RoundNoise`.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from accord.samplers import (
    DADMMS,
    DASG,
    DESGHMC,
    DESGLD,
    DGLMC,
    DULA,
    ELF,
    EXTRASGLD,
    FALD,
    FSGLD,
    GCMC,
    GTBAOAB,
    GTDULA,
    DIGingSGLD,
    Gibbs,
    HubSGLD,
    SplitGTBAOAB,
    StaleSGLD,
)


def by_hand(sampler, net, potentials, start, noises):
    """Positions (agent, dim, chain) after each round, from these starts and this noise.

    `noises` begins with the noise before round 0: rows for a first gradient.
    """
    return list(RECURSIONS[type(sampler)](sampler, Edges(net), potentials, start, *noises))


class Potentials(NamedTuple):
    """Potentials x' H_i x / 2 - b_i' x of the agents."""

    H: np.ndarray
    b: np.ndarray
    # (agent, row numbers) -> estimate of (H_i, b_i), if potentials are sums over rows
    some: Callable | None = None

    def gradient(self, x, rows=None):
        return np.stack([self.slope(i, x[i], None if rows is None else rows[i]) for i in range(len(self.b))])

    def slope(self, i, x, rows=None):
        H, b = (self.H[i], self.b[i]) if rows is None else self.some(i, rows)
        return H @ x - b[:, None]

    def proximal(self, i, strength, center):
        """argmin f_i + strength |x - center|^2 / 2."""
        d = len(self.b[i])
        return np.linalg.solve(self.H[i] + strength * np.eye(d), strength * center + self.b[i][:, None])

    def root(self, i, strength):
        """A root of the covariance of exp(-f_i - strength |x|^2 / 2)."""
        return np.linalg.cholesky(np.linalg.inv(self.H[i] + strength * np.eye(len(self.b[i]))))


class Edges:
    def __init__(self, net):
        self.n, self.colors = net.num_agents, net.coloring()
        self.neighbours = [[] for _ in range(self.n)]
        for i, j in net.edges:
            self.neighbours[i].append(int(j))
            self.neighbours[j].append(int(i))
        self.degree = np.array([len(found) for found in self.neighbours])

    def sum(self, x):
        """The sum of the neighbours' values at each agent."""
        return np.stack([sum((x[j] for j in self.neighbours[i]), np.zeros_like(x[i])) for i in range(self.n)])

    def weights(self, rule):
        W = np.zeros((self.n, self.n))
        for i in range(self.n):
            for j in self.neighbours[i]:
                metropolis = 1.0 / (1.0 + max(self.degree[i], self.degree[j]))
                W[i, j] = {
                    "metropolis": metropolis,
                    "lazy": metropolis / 2.0,
                    "max-degree": 1.0 / (1.0 + self.degree.max()),
                    "laplacian": self._even(),
                }[rule]
        return W + np.diag(1.0 - W.sum(axis=1))

    def along(self, step):
        """I - step L."""
        L = np.diag(self.degree).astype(float)
        for i in range(self.n):
            L[i, self.neighbours[i]] -= 1.0
        return np.eye(self.n) - step * L

    def _even(self):
        values = np.linalg.eigvalsh(np.eye(self.n) - self.along(1.0))
        return 2.0 / (values[1] + values[-1])


def polynomial(W, rounds):
    """T_K(W / s) / T_K(1 / s) by eigenvalues, s the second largest absolute one, and W for one exchange."""
    if rounds == 1:
        return W
    values, vectors = np.linalg.eigh(W)
    s = max(abs(values[0]), abs(values[-2]))
    if s < 1e-12:
        return W
    T = np.polynomial.chebyshev.Chebyshev.basis(rounds)
    return vectors @ np.diag(T(values / s) / T(1.0 / s)) @ vectors.T


def mixed(P, x):
    """sum_j P_ij x_j."""
    return np.stack([sum(P[i, j] * x[j] for j in range(len(x))) for i in range(len(x))])


def given(sampler, edges):
    """The matrix of one step's exchanges, for a mixing rule or a custom matrix."""
    mixing = sampler.mixing
    W = edges.weights(mixing) if isinstance(mixing, str) else np.asarray(mixing.matrix)
    return polynomial(W, sampler.mix_rounds)


def at(step, k):
    return float(step(k)) if callable(step) else float(step)


def kicks(sampler, edges, noise, scale=None):
    """Each agent's noise of a round times sqrt(temperature), rescaled if it is common."""
    if noise.normal is None:
        return 0.0
    w = np.sqrt(sampler.temperature) * noise.normal
    if sampler.noise == "common":
        scale = np.full(edges.n, edges.n**-0.5) if scale is None else scale
        w = scale[:, None, None] * w
    return w


def desgld(method, edges, potentials, x, before, *noises):
    P = given(method, edges)
    for k, noise in enumerate(noises):
        h = at(method.step_size, k)
        x = mixed(P, x) - h * potentials.gradient(x, noise.rows) + np.sqrt(2.0 * h) * kicks(method, edges, noise)
        yield x


def extra(method, edges, potentials, x, before, *noises):
    # published EXTRA sums all disagreement by W - W~; schedules rescale the sum
    P = given(method, edges)
    memory = P - (method.blend * np.eye(edges.n) + (1.0 - method.blend) * P)
    past = np.zeros_like(x)
    for k, noise in enumerate(noises):
        h, following = at(method.step_size, k), at(method.step_size, k + 1)
        moved = mixed(P, x) + past - h * potentials.gradient(x, noise.rows)
        past, x = following / h * (past + mixed(memory, x)), moved + np.sqrt(2.0 * h) * kicks(method, edges, noise)
        yield x


def diging(method, edges, potentials, x, before, *noises):
    P, slope = given(method, edges), potentials.gradient(x, before.rows)
    y = slope
    for k, noise in enumerate(noises):
        h = at(method.step_size, k)
        x = mixed(P, x) - h * y + np.sqrt(2.0 * h) * kicks(method, edges, noise)
        old, slope = slope, potentials.gradient(x, noise.rows)
        y = mixed(P, y) + slope - old
        yield x


def desghmc(method, edges, potentials, x, before, *noises):
    P, v = given(method, edges), np.zeros_like(x)
    for k, noise in enumerate(noises):
        h, friction = at(method.step_size, k), method.friction
        v = (
            v
            - h * (friction * v + potentials.gradient(x, noise.rows))
            + np.sqrt(2.0 * friction * h) * kicks(method, edges, noise)
        )
        x = mixed(P, x) + h * v
        yield x


def dasg(method, edges, potentials, x, before, *noises):
    P, y = given(method, edges), x
    for k, noise in enumerate(noises):
        new = mixed(P, y) - at(method.step_size, k) * potentials.gradient(y, noise.rows)
        x, y = new, (1.0 + method.momentum) * new - method.momentum * x
        yield x


def dula(method, edges, potentials, x, before, *noises):
    first = at(method.consensus_step, 0)
    P = polynomial(edges.along(first), method.mix_rounds)
    for k, noise in enumerate(noises):
        h, share = at(method.step_size, k) * edges.n, at(method.consensus_step, k) / first
        pull = share * (x - mixed(P, x))
        x = x - pull - h * potentials.gradient(x, noise.rows) + np.sqrt(2.0 * h) * kicks(method, edges, noise)
        yield x


def gtdula(method, edges, potentials, x, before, *noises):
    first, slope = at(method.consensus_step, 0), potentials.gradient(x, before.rows)
    d = slope
    P = polynomial(edges.along(first), method.mix_rounds)
    for k, noise in enumerate(noises):
        h = at(method.step_size, k) * edges.n
        pull = at(method.consensus_step, k) / first * (x - mixed(P, x))
        blend = at(method.tracking_step, k) / first * (d - mixed(P, d))
        new = x - pull - h * d + np.sqrt(2.0 * h) * kicks(method, edges, noise)
        now = potentials.gradient(new, noise.rows)
        x, d, slope = new, d - blend + now - slope, now
        yield x


def gtbaoab(method, edges, potentials, x, before, *noises):
    P, v, slope = given(method, edges), np.zeros_like(x), potentials.gradient(x, before.rows)
    d = slope
    for k, noise in enumerate(noises):
        h = at(method.step_size, k)
        kept = np.exp(-method.friction * h)
        v = mixed(P, v) - h * edges.n * mixed(P, d)
        y = mixed(P, x) + h / 2.0 * v
        v = kept * v + np.sqrt((1.0 - kept**2) * edges.n) * kicks(method, edges, noise)
        x = y + h / 2.0 * v
        now = potentials.gradient(x, noise.rows)
        d, slope = mixed(P, d) + now - slope, now
        yield x


def split_gtbaoab(method, edges, potentials, x, before, *noises):
    # default expansions of quadratic potentials are exact, so that the remainder is zero
    center, slopes, curvatures = method.expansions or (0.0 * x[0, :, 0], -potentials.b, potentials.H)

    def known(x):
        return slopes[..., None] + np.einsum("ijk,ikc->ijc", curvatures, x - center[:, None])

    P, v, left = given(method, edges), np.zeros_like(x), potentials.gradient(x, before.rows) - known(x)
    d = left
    for k, noise in enumerate(noises):
        h, near = at(method.step_size, k), mixed(P, x)
        kept = np.exp(-method.friction * h)
        whole = sum(slopes)[:, None] + np.einsum("jk,ikc->ijc", sum(curvatures), near - center[:, None])
        v = mixed(P, v) - h * (whole + edges.n * mixed(P, d))
        y = near + h / 2.0 * v
        v = kept * v + np.sqrt((1.0 - kept**2) * edges.n) * kicks(method, edges, noise)
        x = y + h / 2.0 * v
        now = potentials.gradient(x, noise.rows) - known(x)
        d, left = mixed(P, d) + now - left, now
        yield x


def dadmms(method, edges, potentials, x, before, *noises):
    # eqs. 4 and 5: x from the previous duals, the duals from all new x
    p, degree = np.zeros_like(x), edges.degree[:, None, None]
    for k, noise in enumerate(noises):
        rho = at(method.rho, k)
        if method.calibration == "calibrated":
            scale, common = 2.0 * np.sqrt(rho * degree), np.sqrt(edges.degree / edges.degree.sum())
        else:
            scale = np.sqrt(2.0) * degree
            common = np.full(edges.n, np.sqrt((edges.degree**2).sum()) / edges.degree.sum())
        # argmin f_i + p_i x + rho sum_j |x - (x_i + x_j) / 2|^2 + noise_i x
        pull = rho * (degree * x + edges.sum(x)) - p - scale * kicks(method, edges, noise, common)
        x = np.stack(
            [
                potentials.proximal(i, 2.0 * rho * edges.degree[i], pull[i] / (2.0 * rho * edges.degree[i]))
                for i in range(edges.n)
            ]
        )
        p = p + rho * (degree * x - edges.sum(x))
        yield x


def gibbs(method, edges, potentials, x, before, *noises):
    W = edges.weights(method.mixing)
    for k, noise in enumerate(noises):
        x, w = x.copy(), kicks(method, edges, noise)
        for color in range(edges.colors.max() + 1):
            for i in np.flatnonzero(edges.colors == color):
                ties = {j: W[i, j] / at(method.eta, k) for j in edges.neighbours[i]}
                strength = sum(ties.values())
                center = sum(tie * x[j] for j, tie in ties.items()) / strength
                x[i] = potentials.proximal(i, strength, center) + potentials.root(i, strength) @ w[i]
        yield x


def dglmc(method, edges, potentials, x, before, *noises):
    # U_i(z) = f_i(A_i^+ z), z_i = A_i x_i at the start
    A = [np.eye(x.shape[1])] * edges.n if method.operators is None else method.operators
    z, inverse = [A[i] @ x[i] for i in range(edges.n)], [np.linalg.pinv(a) for a in A]
    rho, step = (np.broadcast_to(np.asarray(number, float), edges.n) for number in (method.rho, method.step_size))
    cov = np.linalg.inv(sum(A[i].T @ A[i] / rho[i] for i in range(edges.n)))
    for noise in noises:
        kick = np.sqrt(method.temperature) * np.linalg.cholesky(cov) @ noise.normal[0]
        theta = cov @ sum(A[i].T @ z[i] / rho[i] for i in range(edges.n)) + kick
        for i, h in enumerate(step):
            for k in range(method.local_steps[i]):
                kick = np.sqrt(2.0 * h * method.temperature) * noise.local[i, k, : len(A[i])]
                slope = inverse[i].T @ potentials.slope(i, inverse[i] @ z[i])
                z[i] = (1.0 - h / rho[i]) * z[i] + h / rho[i] * A[i] @ theta - h * slope + kick
        yield np.stack([theta] * edges.n)


def gcmc(method, edges, potentials, x, before, *noises):
    z, rho = x, method.rho
    for noise in noises:
        theta = z.mean(axis=0) + np.sqrt(method.temperature * rho / edges.n) * noise.normal[0]
        own = np.sqrt(method.temperature) * noise.local[:, 0]
        z = np.stack(
            [potentials.proximal(i, 1.0 / rho, theta) + potentials.root(i, 1.0 / rho) @ own[i] for i in range(edges.n)]
        )
        yield np.stack([theta] * edges.n)


def hub_sgld(method, edges, potentials, x, before, *noises, conducive=lambda i, share, x: 0.0):
    # a draw is the arriving chain, and agent i makes N_i steps with it
    steps = np.broadcast_to(method.local_steps, edges.n)
    share, leaving = steps / steps.sum(), x
    for noise in noises:
        x = leaving[noise.order]
        moved, rows = [], None if noise.rows is None else noise.rows.reshape(edges.n, steps.max(), -1)
        for i in range(edges.n):
            own = x[i]
            for k in range(steps[i]):
                kick = np.sqrt(2.0 * method.step_size * method.temperature) * noise.local[i, k]
                slope = potentials.slope(i, own, None if rows is None else rows[i, k]) / share[i]
                own = own - method.step_size * (slope + conducive(i, share[i], own)) + kick
            moved.append(own)
        leaving = np.stack(moved)
        yield x


def fsgld(method, edges, potentials, *noises):
    if method.surrogates is None:
        P, b = potentials.H, potentials.b
    else:
        means, P = method.surrogates
        b = np.einsum("nij,nj->ni", P, means)

    def conducive(i, share, x):
        return P.sum(axis=0) @ x - b.sum(axis=0)[:, None] - (P[i] @ x - b[i][:, None]) / share

    return hub_sgld(method, edges, potentials, *noises, conducive=conducive)


def stale_sgld(method, edges, potentials, x, before, *noises):
    age = np.broadcast_to(method.staleness, edges.n)
    known = [potentials.gradient(x, before.rows)]
    for k, noise in enumerate(noises):
        h = at(method.step_size, k)
        late = sum(known[max(0, k - age[i])][i] for i in range(edges.n))
        kick = np.sqrt(2.0 * h * method.temperature) * noise.normal[0]
        x = np.stack([x.mean(axis=0) - h * late + kick] * edges.n)
        known.append(potentials.gradient(x, noise.rows))
        yield x


def elf(method, edges, potentials, x, before, *noises):
    # all entries kept; round 0 averages the starts
    assert method.kept == x.shape[1] and method.kept_down is None
    h, slope = method.step_size, 0.0
    for k, noise in enumerate(noises):
        total = x.mean(axis=0)
        if k > 0:
            total = total - h * slope + np.sqrt(2.0 * h * method.temperature) * noise.normal[0]
        x = np.stack([total] * edges.n)
        slope = potentials.gradient(x, noise.rows).sum(axis=0)
        yield x


def fald(method, edges, potentials, x, before, *noises):
    # a draw is the hub's average, from which every agent makes its local steps
    weights = np.ones(edges.n) if method.weights is None else np.array(method.weights)
    p, rho = weights / weights.sum(), method.correlation
    for t, noise in enumerate(noises):
        theta, h = np.einsum("i,idc->dc", p, x), at(method.step_size, t)
        rows = None if noise.rows is None else noise.rows.reshape(edges.n, method.local_steps, -1)
        moved = []
        for i in range(edges.n):
            own = theta
            for k in range(method.local_steps):
                kick = 0.0
                if rho > 0:
                    kick = kick + rho * noise.normal[0, k]
                if rho < 1:
                    kick = kick + np.sqrt((1.0 - rho**2) / p[i]) * noise.local[i, k]
                slope = potentials.slope(i, own, None if rows is None else rows[i, k]) / p[i]
                own = own - h * slope + np.sqrt(2.0 * h * method.temperature) * kick
            moved.append(own)
        x = np.stack(moved)
        yield np.stack([theta] * edges.n)


# --- potentials from data or moments ---


def regression(shards, noise_scale, prior_variance):
    """Potentials of a linear regression with equal parts of the prior."""
    dim = shards[0][0].shape[1]
    prior = np.eye(dim) / (prior_variance * len(shards))

    def some(i, rows):
        X, y = shards[i]
        # rows with replacement, from integers modulo the number of rows
        chosen, weight = rows % len(y), len(y) / len(rows) / noise_scale**2
        return weight * X[chosen].T @ X[chosen] + prior, weight * X[chosen].T @ y[chosen]

    H = np.stack([X.T @ X / noise_scale**2 + prior for X, _ in shards])
    return Potentials(H, np.stack([X.T @ y / noise_scale**2 for X, y in shards]), some)


def gaussian_potentials(means, covariances):
    """Potentials of Gaussians."""
    H = np.linalg.inv(covariances)
    return Potentials(H, np.einsum("nij,nj->ni", H, means))


RECURSIONS = {
    DESGLD: desgld,
    EXTRASGLD: extra,
    DIGingSGLD: diging,
    DESGHMC: desghmc,
    DASG: dasg,
    DULA: dula,
    GTDULA: gtdula,
    GTBAOAB: gtbaoab,
    SplitGTBAOAB: split_gtbaoab,
    DADMMS: dadmms,
    Gibbs: gibbs,
    DGLMC: dglmc,
    GCMC: gcmc,
    HubSGLD: hub_sgld,
    FSGLD: fsgld,
    ELF: elf,
    FALD: fald,
    StaleSGLD: stale_sgld,
}
