"""Importance sampling at 20,000 effective draws beside long pooled NUTS: errors of every agent, on four networks.

Needs scikit-learn and BlackJAX (pip install 'accord[demo]'). Breast cancer with 30 covariates at prior sd 1, its rows
sorted by the first covariate and dealt to 10 or 30 agents. Errors are the largest over parameters, of means in
posterior sds, of sds relative: of the weighted points, and of the draws.

    python benchmarks/sums_accuracy.py
"""

import jax
import numpy as np
import sums
from rich.table import Table

import accord
from accord.base.terminal import console
from accord.posterior.pooled_nuts import nuts
from accord.results.diagnostics import diagnostics

DRAWS, CHAINS, REFERENCE = 5000, 4, 20_000


def posterior(agents):
    sums.AGENTS = agents
    return sums.PROBLEMS["breast-cancer-1"]()


def main():
    with jax.enable_x64(True):
        long = np.asarray(nuts(posterior(10), draws=REFERENCE, chains=CHAINS), np.float64)
    mean, sd = long.mean(axis=(0, 1)), long.std(axis=(0, 1))
    ess = diagnostics(long)[0].min()
    table = Table(box=None, title=f"reference: {REFERENCE * CHAINS} draws of NUTS, {ess:.0f} effective at least")
    for heading in ("network", "sums", "effective", "agents differ", "mean error", "sd error", "of draws: mean", "sd"):
        table.add_column(heading)
    networks = {
        "ring of 10": accord.Network.ring(10),
        "star of 10": accord.Network.star(10),
        "random, 10": accord.Network.erdos_renyi(10, 0.4, seed=1),
        "ring of 30": accord.Network.ring(30),
    }
    for name, network in networks.items():
        run = accord.sample(posterior(network.num_agents), network, draws=DRAWS, chains=CHAINS, progress=False)
        every = run.draws.astype(np.float64)
        # of the agent that is the furthest off
        drawn_mean, drawn_sd = every.mean(axis=(0, 1)), every.std(axis=(0, 1))
        table.add_row(
            name + ("" if run.certificate.holds else ", uncertified"),
            f"{run.traffic.sums}",
            f"{run.points.effective:.0f}",
            f"{np.ptp(every, axis=2).max():g}",
            f"{np.abs((run.points.mean - mean) / sd).max():.4f}",
            f"{np.abs(run.points.sd / sd - 1.0).max():.4f}",
            f"{np.abs((drawn_mean - mean) / sd).max():.4f}",
            f"{np.abs(drawn_sd / sd - 1.0).max():.4f}",
        )
    console().print(table)


if __name__ == "__main__":
    main()
