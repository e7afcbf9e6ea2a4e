"""The meter for other families and more rows, and an attacker who fits the most exposed row, given all other rows.

All sites have as many rows, and the model has an intercept. The attacker begins one column sd away from the row, knows
its response only to that accuracy, and does not use `mode_of`.

    python benchmarks/meter_families.py
"""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy

import accord
from accord.federation import meter
from accord.federation.engine import prior_limit
from accord.posterior.coarse import CoarseTotals
from accord.posterior.coordinates import place_shard
from accord.posterior.potential import Shard
from accord.samplers.by_sums.evaluations import mode_of

# Family, rows of a site, columns, sites and whether an attacker fits the most exposed row.
CASES = [
    ("logistic", 30, 3, 3, False),
    ("logistic", 100, 3, 3, False),
    ("logistic", 1000, 3, 3, False),
    ("logistic", 100, 6, 10, False),
    ("logistic", 300, 12, 5, False),
    ("logistic", 1000, 12, 5, False),
    ("poisson", 100, 4, 3, True),
    ("poisson", 1000, 4, 5, False),
    ("linear", 100, 4, 3, True),
    ("linear", 1000, 8, 5, False),
]
# Draws of all chains.
DRAWS = 4000


def shard(kind: str, rows: int, beta: np.ndarray, numbers: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Rows and responses of a site."""
    X = np.column_stack([np.ones(rows), numbers.standard_normal((rows, beta.size - 1))])
    eta = X @ beta
    if kind == "linear":
        return X, eta + numbers.standard_normal(rows)
    if kind == "poisson":
        return X, numbers.poisson(np.exp(eta)).astype(float)
    return X, (numbers.random(rows) < 1.0 / (1.0 + np.exp(-eta))).astype(float)


def measured(kind: str, rows: int, dim: int, sites: int, seed: int, *, attacked: bool) -> tuple[np.ndarray, str]:
    """Sds of cells, (row, cell), and a line with them, the forecast, and the errors of the attacker in these sds."""
    numbers = np.random.default_rng(seed)
    beta = numbers.normal(0.0, 0.5, dim)
    shards = [shard(kind, rows, beta, numbers) for _ in range(sites)]
    post = getattr(accord.models, f"{kind}_regression")(shards, prior_variance=4.0)
    # as at a site of a study
    post = post.near_prior(prior_limit(post.dim))
    own, cells, asked, information = post.alone(0), meter.Cells.of(shards[0]), [], [0.0]
    usual = CoarseTotals._summed

    def recorded(self: Any, coder: Any, question: Any) -> Any:
        part = question.answered(own.totals_here())[0]
        noisy = coder.noisy(part, numbers)
        shown = coder.unclipped(noisy)
        information[0] = information[0] + meter.information(own, cells, question, coder, part, shown)
        sd = np.sqrt(coder.noise**2 + coder.grid**2 / 12.0)
        off = (np.rint(noisy / coder.grid) * coder.grid - coder.added - part) / sd
        if mode_of not in question.functions:
            asked.append((question, np.where(shown, 1.0 / sd, 0.0), np.where(shown, off, 0.0)))
        return usual(self, coder, question)

    CoarseTotals._summed = recorded
    try:
        options: dict[str, Any] = {"engine": accord.engines.Local(coarse=True), "progress": False, "seed": seed}
        accord.sample(post, accord.Network.star(sites), accord.samplers.Importance(), draws=DRAWS // 4, **options)
    finally:
        CoarseTotals._summed = usual
    values = cells.values
    units, two = values.std(axis=0), np.array([len(np.unique(column)) == 2 for column in values.T])
    scaled = (information[0] * units[:, None] * units)[:, ~two][:, :, ~two]
    sds = np.sqrt(np.diagonal(np.linalg.inv(scaled), axis1=1, axis2=2))
    expected = meter.forecast(sites, rows * sites, DRAWS, bounded=kind == "logistic")
    line = f"{kind} n {rows} d {dim} sites {sites}: median {np.median(sds):.2g}, least {sds.min():.2g}"
    line += f", forecast {expected:.2g}"
    if attacked:
        worst = int(np.argmin(sds.min(axis=1)))
        off = attack(own, cells, worst, asked, numbers, units) / units
        line += f"; attacker's errors in column sds {np.array2string(np.abs(off), precision=2)}"
        line += f", sds by the meter {np.array2string(sds[worst], precision=2)}"
    return sds, line


def attack(
    own: Any, cells: Any, worst: int, asked: list[Any], numbers: np.random.Generator, units: np.ndarray
) -> np.ndarray:
    """Errors of an attacker who fits one row by least squares to the site's answers without all other rows."""
    row, truth = jax.tree.map(lambda leaf: leaf[worst], cells.rows), cells.values[worst]

    def model(x: jax.Array) -> jax.Array:
        one, found = Shard(meter._with_cells(row, cells.kept, x), np.int32(1), None, None), []
        for question, root, _ in asked:
            place, parts, base = question.options["coordinates"], [], None
            for function, points, relative in zip(question.functions, question.points, question.relative, strict=True):

                def at(z: jax.Array, function: Any = function, place: Any = place, question: Any = question) -> Any:
                    return jnp.ravel(
                        function(own.potential.within(place), place_shard(one, place), z, *question.arguments)
                    )

                part = jax.vmap(at)(jnp.asarray(np.asarray(points, float)))
                if relative:
                    base = at(jnp.zeros(own.dim))[0] if base is None else base
                    part = part.at[:, 0].add(-base)
                parts.append(part.ravel())
            parts += [base[None]] if question.needs_origin else []
            found.append(jnp.where(root > 0.0, jnp.concatenate(parts), 0.0) * root)
        return jnp.concatenate(found)

    run, slope = jax.jit(model), jax.jit(jax.jacfwd(model))
    observed = np.asarray(run(truth)) + np.concatenate([off for *_, off in asked])
    tried = [
        scipy.optimize.least_squares(
            lambda x: np.nan_to_num(np.asarray(run(x)) - observed),
            truth + units * numbers.standard_normal(truth.size),
            jac=lambda x: np.nan_to_num(np.asarray(slope(x))),
            x_scale="jac",
            max_nfev=300,
        )
        for _ in range(4)
    ]
    return np.asarray(min(tried, key=lambda fit: fit.cost).x - truth)


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    # the artificial columns are far from usual scales in some runs
    warnings.simplefilter("ignore")
    for kind, rows, dim, sites, attacked in CASES:
        print(measured(kind, rows, dim, sites, 0, attacked=attacked)[1], flush=True)


if __name__ == "__main__":
    main()
