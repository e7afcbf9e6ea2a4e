"""A passive attacker computes the rows of one site from the answers of that site in an honest run.

The attacker knows more than a study reveals: the answers of the site without masks, all responses, and the sds of the
noise. He fits the cells by least squares, from the truth and from random starts. Errors are in sds of a column, for the
best assignment of rows with equal responses.

The last table is about an attacker who has all other rows of the site, and fits one row. It compares his errors with
the meter (`accord.federation.meter`), which is the bound of their sds.

    python benchmarks/attacks.py [repetitions]
    python benchmarks/attacks.py meter [repetitions]
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy

import accord
from accord.federation import meter
from accord.posterior.coarse import CoarseTotals

# Variance of the prior of the coefficients.
PRIOR = 4.0
SITES = 3
# Newton steps to the mode of a site's rows.
MODE_STEPS = 25
# Random starts of the attacker.
STARTS = 2


class Answer(NamedTuple):
    """The numbers of one sum that the attacked site sent, and where.

    Parameters
    ----------
    kind
        Name of the function.
    origin, factor
        Coordinates, (dim,) and (dim, dim).
    points
        In these coordinates, (point, dim).
    numbers, sd
        Numbers of each point and sds of their noise, (point, number).
    """

    kind: str
    origin: np.ndarray
    factor: np.ndarray
    points: np.ndarray
    numbers: np.ndarray
    sd: np.ndarray


class Run(NamedTuple):
    """A run of all sites.

    Parameters
    ----------
    X, y
        Rows and responses of the attacked site.
    answers
        Its answers.
    information
        Of each row's cells given all other rows, by the meter, (row, dim, dim).
    """

    X: np.ndarray
    y: np.ndarray
    answers: list[Answer]
    information: np.ndarray


def run_of(rows: int, dim: int, seed: int, exact: bool) -> Run:
    """A run whose first site is attacked."""
    numbers = np.random.default_rng(seed)
    beta = numbers.normal(0.0, 1.0, dim)

    def shard(count: int) -> tuple[np.ndarray, np.ndarray]:
        X = numbers.standard_normal((count, dim))
        return X, (numbers.random(count) < 1.0 / (1.0 + np.exp(-X @ beta))).astype(float)

    shards = [shard(rows), *(shard(20 * dim) for _ in range(SITES - 1))]
    post = accord.models.logistic_regression(shards, prior_variance=PRIOR)
    alone, cells, information = post.alone(0), meter.Cells.of(shards[0]), np.zeros((rows, dim, dim))
    answers: list[Answer] = []
    usual = CoarseTotals._summed

    def recorded(self: Any, coder: Any, question: Any) -> Any:
        parts = question.answered(self.here)
        noisy = coder.noisy(parts[0], numbers)
        found, _ = coder.rounded(noisy)
        # columns of X come before the response
        shown = meter.information(alone, cells, question, coder, parts[0], coder.unclipped(noisy))
        information[:] += shown[:, :dim, :dim]
        half = np.left_shift(1, 8 * coder.width - 1)
        levels = np.where(found >= half, found - 2 * half, found)
        sent = levels * coder.grid - coder.added
        sd = np.sqrt(coder.noise**2 + coder.grid**2 / 12.0)
        clipped = ~coder.unclipped(noisy)
        if exact:
            sent, sd = parts[0], 1e-14 * (1.0 + np.abs(parts[0]))
        place = question.options["coordinates"]
        sd, begin = np.where(clipped, 1e9, sd), 0
        for function, some in zip(question.functions, question.points, strict=True):
            points = np.asarray(some)
            # numbers of the first point
            width = int((coder.first[begin:] == begin).sum())
            own = slice(begin, begin + len(points) * width)
            answers.append(
                Answer(
                    function.__name__,
                    place.origin,
                    place.factor if place.factor.ndim == 2 else np.diag(place.factor),
                    points,
                    sent[own].reshape(len(points), width),
                    sd[own].reshape(len(points), width),
                )
            )
            begin = own.stop
        return usual(self, coder, question)

    CoarseTotals._summed = recorded
    try:
        accord.sample(
            post,
            accord.Network.star(SITES),
            accord.samplers.Importance(),
            seed=seed,
            engine=accord.engines.Local(coarse=True),
            progress=False,
        )
    finally:
        CoarseTotals._summed = usual
    return Run(*shards[0], answers, information)


def predicted(X: jax.Array, y: np.ndarray, answers: list[Answer]) -> jax.Array:
    """All numbers that the site sends, given its rows, divided by the sds of their noise."""
    dim = X.shape[1]
    upper = np.triu_indices(dim)
    triples = np.array([(i, j, k) for i in range(dim) for j in range(i, dim) for k in range(j, dim)]).T
    found = []

    def potential(theta: jax.Array) -> jax.Array:
        logit = X @ theta
        prior = theta @ theta / PRIOR + dim * np.log(2.0 * np.pi * PRIOR)
        return jnp.sum(jax.nn.softplus(logit) - y * logit) + prior / (2.0 * SITES)

    for one in answers:

        def at(z: jax.Array, one: Answer = one) -> jax.Array:
            return potential(one.origin + one.factor @ z)

        values = jax.vmap(at)(one.points)[:, None]
        parts, gradients, hessians = [values], jax.grad(at), jax.hessian(at)
        if one.kind in ("value_of", "slope_of"):
            parts = [values - at(jnp.zeros(X.shape[1]))]
        if one.kind == "mode_of":
            # at the mode, found without derivatives: they follow from the gradient there, which is 0
            z = jnp.zeros(X.shape[1])
            for _ in range(MODE_STEPS):
                z = jax.lax.stop_gradient(z - jnp.linalg.solve(hessians(z), gradients(z)))
            z = z - jnp.linalg.solve(jax.lax.stop_gradient(hessians(z)), gradients(z))
            hessian = hessians(z)
            found.append((jnp.concatenate([values[0], hessian @ z, hessian[upper]]) / one.sd[0]).ravel())
            continue
        if one.numbers.shape[1] > 1:
            parts.append(jax.vmap(gradients)(one.points))
        if one.kind in ("expansion_of", "jet_of"):
            parts.append(jax.vmap(hessians)(one.points)[:, upper[0], upper[1]])
        if one.kind == "jet_of":
            parts.append(jax.vmap(jax.jacfwd(hessians))(one.points)[:, *triples])
        found.append((jnp.concatenate(parts, axis=1) / one.sd).ravel())
    return jnp.concatenate(found)


def errors(found: np.ndarray, X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Absolute errors of the cells, for the best assignment of rows with equal responses."""
    cost = np.abs(found[:, None] - X[None]).sum(axis=2) + 1e6 * (y[:, None] != y[None])
    rows, columns = scipy.optimize.linear_sum_assignment(cost)
    return np.abs(found[rows] - X[columns])


def attack(X: np.ndarray, y: np.ndarray, answers: list[Answer], seed: int, fits: bool) -> dict[str, float]:
    """Median and least errors of the attacker, and of the bounds. Without `fits`, of the bounds only."""
    observed = np.concatenate([(one.numbers / one.sd).ravel() for one in answers])
    model = jax.jit(lambda x: predicted(x.reshape(X.shape), y, answers))
    slope = jax.jit(jax.jacfwd(model))
    jacobian = np.asarray(slope(X.ravel()))
    information = jacobian.T @ jacobian
    dim = X.shape[1]

    def sds(matrix: np.ndarray) -> np.ndarray:
        return np.sqrt(np.diagonal(np.linalg.pinv(matrix, rcond=1e-15)))

    alone = [information[k : k + dim, k : k + dim] for k in range(0, X.size, dim)]
    bounds = {
        "bound": sds(information),
        "with columns known": sds(information + np.eye(X.size)),
        "other rows known": np.concatenate([sds(one) for one in alone]),
    }
    numbers = np.random.default_rng(seed)
    starts = [X + 0.1 * numbers.standard_normal(X.shape)]
    starts += [numbers.standard_normal(X.shape) for _ in range(STARTS)]
    found: dict[str, np.ndarray] = {}
    for name, own in (("near start", starts[:1]), ("random starts", starts[1:])) if fits else ():
        # the attacker knows that columns have mean 0 and sd 1
        tried = [
            scipy.optimize.least_squares(
                lambda x: np.concatenate([np.asarray(model(x)) - observed, x]),
                start.ravel(),
                jac=lambda x: np.concatenate([np.asarray(slope(x)), np.eye(X.size)]),
                max_nfev=30,
            )
            for start in own
        ]
        best = min(tried, key=lambda fit: fit.cost)
        found[name] = errors(best.x.reshape(X.shape), X, y)
    return {
        f"{name} {what}": float(f(value))
        for name, value in {**bounds, **found}.items()
        for what, f in (("median", np.median), ("least", np.min))
    }


def errors_of_rows(run: Run, seed: int) -> np.ndarray:
    """Errors of an attacker who has all other rows and fits one row after another by least squares, (row, dim)."""
    observed = np.concatenate([(one.numbers / one.sd).ravel() for one in run.answers])
    model = jax.jit(lambda x, row: predicted(jnp.asarray(run.X).at[row].set(x), run.y, run.answers))
    slope, numbers = jax.jit(jax.jacfwd(model)), np.random.default_rng(seed)
    found = [
        scipy.optimize.least_squares(
            lambda x, row=row: np.asarray(model(x, row)) - observed,
            true + 0.1 * numbers.standard_normal(true.size),
            jac=lambda x, row=row: np.asarray(slope(x, row)),
            max_nfev=30,
        ).x
        for row, true in enumerate(run.X)
    ]
    return np.array(found) - run.X


def against_the_meter(rows: int, dim: int, seeds: range) -> tuple[np.ndarray, np.ndarray]:
    """Sds of cells by the meter, and errors of the attacker divided by them, (run, row, dim)."""
    runs = [run_of(rows, dim, seed, exact=False) for seed in seeds]
    sds = np.sqrt([np.diagonal(np.linalg.inv(run.information), axis1=1, axis2=2) for run in runs])
    return sds, np.array([errors_of_rows(run, seed) for seed, run in zip(seeds, runs, strict=True)]) / sds


def table_of_the_meter(repetitions: int) -> None:
    """Print sds by the meter, and the attacker's root mean square error relative to them, with its standard error."""
    for dim in (3, 6):
        for rows in (8, 20, 50):
            sds, off = against_the_meter(rows, dim, range(repetitions))
            squares = np.square(off).mean(axis=(1, 2))
            rms, error = squares.mean() ** 0.5, squares.std(ddof=1) / (2.0 * squares.mean() ** 0.5 * repetitions**0.5)
            shown = f"{np.median(sds):.2g} / {np.median(sds.min(axis=(1, 2))):.2g}"
            print(
                f"meter d {dim} n {rows}: {shown}; attacker's error in these sds {rms:.2f} +- {error:.2f}", flush=True
            )


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    if sys.argv[1:2] == ["meter"]:
        table_of_the_meter(int(sys.argv[2]) if len(sys.argv) > 2 else 20)
        return
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    print("sds of a column; median cell / most exposed cell, median over runs")
    for exact in (True, False):
        for dim in (3, 6):
            for rows in (8, 20, 50):
                all_found = []
                for seed in range(repetitions):
                    X, y, answers, _ = run_of(rows, dim, seed, exact)
                    all_found.append(attack(X, y, answers, seed, not exact))
                shown = {key: np.median([one[key] for one in all_found]) for key in all_found[0]}
                names = dict.fromkeys(key.rsplit(" ", 1)[0] for key in shown)
                cells = [f"{name} {shown[f'{name} median']:.2g} / {shown[f'{name} least']:.2g}" for name in names]
                print(f"{'exact' if exact else 'coarse'} d {dim} n {rows}: " + "; ".join(cells), flush=True)


if __name__ == "__main__":
    main()
