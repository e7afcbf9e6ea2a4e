"""The posterior in a dozen sums beside pooled NUTS: sums, hops, bytes, evaluations of all rows, seconds, errors.

Needs scikit-learn and BlackJAX (pip install 'accord[demo]'). All of it in one run, everything included: the mode, pilot
batches, the certificate, compilation. NUTS is BlackJAX's on the pooled data, with a dense metric and 1,000 adaptation
steps, for as many draws; its gradients are those of all chains, adaptation included. Errors are against a longer run of
it: of means in posterior sds, of sds relative, the largest over parameters.

    python benchmarks/sums.py --sets wine,breast-cancer-1 --draws 1000
"""

import argparse
import multiprocessing
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from no_knobs import SETS, least_ess, posterior
from rich.table import Table

import accord
from accord.base.terminal import console
from accord.base.text import human_bytes
from accord.posterior.pooled_nuts import nuts_chain

CHAINS, SEED, AGENTS = 4, 0, 10


def _logistic(X, y, variance):
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    order = np.argsort(X[:, 0], kind="stable")
    X = np.column_stack([np.ones(len(X)), X])
    return accord.models.logistic_regression(
        [(X[rows], y[rows].astype(float)) for rows in np.array_split(order, AGENTS)], variance
    )


def _synthetic(count, dim):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((count, dim))
    y = rng.random(count) < 1.0 / (1.0 + np.exp(-X @ rng.standard_normal(dim) / dim**0.5))
    return X, y


PROBLEMS = {
    "diabetes": lambda: posterior("diabetes", AGENTS),
    "wine": lambda: _logistic(*SETS["wine"](), 10.0),
    "digits": lambda: _logistic(*SETS["digits"](), 10.0),
    "breast-cancer-1": lambda: _logistic(*SETS["breast-cancer"](), 1.0),
    "breast-cancer-3.2": lambda: _logistic(*SETS["breast-cancer"](), 10.0),
    "logistic-20000x100": lambda: _logistic(*_synthetic(20_000, 100), 1.0),
}


def by_nuts(post, draws):
    """Draws of pooled NUTS, its gradients with adaptation, and its seconds."""
    start = jnp.asarray(post.init, jnp.result_type(float))

    @jax.jit
    @jax.vmap
    def both(key):
        return nuts_chain(key, post.logdensity, start, draws=draws, warmup=1000, dense=True)

    began = time.perf_counter()
    made = jax.block_until_ready(both(jax.random.split(jax.random.key(SEED), CHAINS)))
    return np.asarray(made.positions, np.float64), float(made.gradients.sum()), time.perf_counter() - began


def line(name, draws, reference):
    """One row of the table."""
    post = PROBLEMS[name]()
    made, gradients, seconds = by_nuts(post, draws)
    long = by_nuts(post, reference)[0] if reference else made
    mean, sd = long.mean(axis=(0, 1)), long.std(axis=(0, 1))
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = accord.sample(post, accord.Network.ring(AGENTS), draws=draws, chains=CHAINS, seed=SEED, progress=False)
    own = time.perf_counter() - began
    rows, traffic = post.sizes.sum(), run.traffic
    values, slopes = traffic.value_rows.sum() / rows, traffic.gradient_rows.sum() / rows
    weighted = run.points is not None
    effective = run.points.effective if weighted else least_ess(run.draws[:, :, 0])[0]
    found = (run.points.mean, run.points.sd) if weighted else (run.average.mean((0, 1)), run.average.std((0, 1)))
    nuts_ess = least_ess(made)[0]
    return [
        name,
        f"{len(post.init)}",
        run.settings["method"].split("(")[0] + ("" if run.certificate.holds else ", uncertified"),
        f"{traffic.sums}",
        f"{traffic.exchanges}",
        human_bytes(int(traffic.bytes_sent.max())),
        f"{effective:.0f}",
        f"{values / effective:.2f}",
        f"{slopes / effective:.2f}",
        f"{own:.1f}",
        f"{gradients / nuts_ess:.2f}",
        f"{seconds:.1f}",
        f"{own / effective / (seconds / nuts_ess):.2f}",
        f"{(np.abs(found[0] - mean) / sd).max():.3f}",
        f"{np.abs(found[1] / sd - 1.0).max():.3f}",
    ]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sets", default=",".join(PROBLEMS))
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--reference", type=int, default=5000, help="draws a chain of the long run; 0: none")
    options = parser.parse_args()
    table = Table(box=None)
    for heading in (
        "posterior",
        "d",
        "method",
        "sums",
        "hops",
        "bytes",
        "effective",
        "values/eff",
        "gradients/eff",
        "s",
    ):
        table.add_column(heading)
    for heading in ("NUTS gradients/eff", "NUTS s", "s/eff over NUTS'", "mean error", "sd error"):
        table.add_column(heading)
    # a process each: nothing is compiled before
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for name in options.sets.split(","):
            table.add_row(*pool.apply(line, (name, options.draws, options.reference)))
    console().print(table)


if __name__ == "__main__":
    main()
