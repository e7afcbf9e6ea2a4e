"""DG-LMC, figure 2: DG-LMC and D-SGLD on a toy Gaussian with N = 1 and N = 10 local steps.

The paper states d = 2, n = 20,000 rows, b = 10 workers, rho = 1 / (5 M), gamma = rho / (4 (rho M + 1)), T = 100,000.
For D-SGLD it states minibatches of n / (10 b) rows, and a step at which the posterior approximation is similar to
DG-LMC's at N = 1. It omits these choices: Sigma_0 and Sigma_1 (in toy.py); an even split of the prior; equal W2 to the
posterior as the meaning of similar; autocorrelations along the flattest direction of F; several chains instead of one.
Chains start from draws of their stationary law, which D-SGLD would need thousands of rounds to reach.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from accord import Gaussian, Network, law
from accord.samplers import DGLMC, HubSGLD

from ...base.figures import COLORS, figure
from ..frame import Claim, Experiment, Progress, Size, whole_run, write_table
from ..verdicts import Verdict
from .laws import PAPER
from .toy import TESTED, B, Found, Law, Problem, gibbs_law, problem, similar_step, visits_law, worst_score

LOCAL = 1, 10  # "N = 1" and "N = 10"
BURN_IN, LAGS = 0.1, 200  # share of T, and number of lags
SAME = 1e-9  # tolerance for rounding between law and closed form
METHODS = {"DG-LMC": (COLORS["blue"], "Blues"), "D-SGLD": (COLORS["green"], "Greens")}


def run(size: Size, seed: int, folder: Path, progress: Progress) -> list[Claim]:
    """Run figure 2."""
    count, chains, rounds = (size.numbers[name] for name in ("rows", "chains", "rounds"))
    data, seeds = np.random.default_rng(seed).spawn(2)
    known, batch = problem(count, data), count // (10 * B)
    steepest = float(np.linalg.eigvalsh(known.hessian)[-1])
    rho = 1.0 / (5.0 * steepest)
    gamma = 0.25 * rho / (rho * steepest + 1.0)
    network, flattest = Network.star(B), np.linalg.eigh(known.hessian)[1][:, 0]
    wanted = known.error(gibbs_law(known, DGLMC(rho, gamma, 1), 1))
    step, full = (similar_step(known, size, wanted) for size in (batch, np.inf))
    found, apart = {}, 0.0
    for number, steps in enumerate(LOCAL):
        progress(f"N = {steps}", number / len(LOCAL))
        gibbs_method, hub_method = DGLMC(rho, gamma, steps), HubSGLD(step, steps, batch)
        laws = gibbs_law(known, gibbs_method, steps), visits_law(known, batch, step, steps)
        exact = law(known.cheap, network, gibbs_method).stationary().agent(0)
        apart = max(apart, float(np.abs(exact.cov / laws[0].cov - 1.0).max()))
        pairs = zip(METHODS, (known.cheap, known.post), (gibbs_method, hub_method), laws, strict=True)
        for name, post, method, one in pairs:
            burnt, begun = round(BURN_IN * rounds), Gaussian(known.target.mean, one.cov)
            options = {"chains": chains, "seed": int(seeds.integers(2**63)), "init": begun}
            made = whole_run(post, network, method, draws=rounds - burnt, burn_in=burnt, thin=1, **options)
            # D-SGLD's chains move between agents, and the average has the autocorrelation of one chain
            along = (made.average - known.target.mean) @ flattest
            found[name, steps] = Found(one, made.draws - known.target.mean, along)
    columns = ["method", "local_steps", "lag", "acf_law", "acf_chains"]
    rows = [
        [name, steps, lag, one.law.memory(lag), one.memory(lag)]
        for (name, steps), one in found.items()
        for lag in range(LAGS)
    ]
    write_table(folder / "autocorrelation.csv", columns, rows)
    plot(folder, known, found)
    progress("claims", 1.0)
    return claims(known, found, apart, visits_law(known, np.inf, full, 1))


def plot(folder: Path, known: Problem, found: dict[tuple[str, int], Found]) -> None:
    """Plot draws of both methods with contours of the posteriors, and autocorrelations."""
    local = known.rows.mean(axis=1)
    sd = np.sqrt(np.diag(np.linalg.inv(known.hessian)))
    view = [[m - 3.5 * s, m + 3.5 * s] for m, s in zip(known.target.mean, sd, strict=True)]
    circle = np.array([np.cos(np.linspace(0, 2 * np.pi, 90)), np.sin(np.linspace(0, 2 * np.pi, 90))])
    root = np.linalg.cholesky(np.linalg.inv(known.hessian)) @ circle
    with figure(folder, "figure", panels=len(LOCAL), rows=3) as axes:
        for column, steps in enumerate(LOCAL):
            for axis, (name, (color, shades)) in zip(axes[:, column], METHODS.items(), strict=False):
                draws = (found[name, steps].draws + known.target.mean).reshape(-1, 2)
                axis.hist2d(*draws.T, bins=50, range=view, cmap=shades, cmin=1, rasterized=True)
                axis.grid(visible=False)
                for center in local:
                    axis.plot(*(center[:, None] + root), color="0.7", lw=0.6)

                axis.plot(*(known.target.mean[:, None] + root / B**0.5), color=COLORS["vermillion"], lw=1.5)
                axis.set(
                    title=f"{name}, N = {steps}", xlabel="theta_1 (units of theta)", ylabel="theta_2 (units of theta)"
                )
                one = found[name, steps]
                for lags, kept, options in (
                    (range(LAGS), one.law.memory, {"label": f"{name}, law"}),
                    (
                        range(0, LAGS, 8),
                        one.memory,
                        {"marker": "o", "ls": "", "ms": 3, "mfc": "none", "label": "chains"},
                    ),
                ):
                    axes[2, column].plot(lags, list(map(kept, lags)), color=color, **options)
            axes[2, column].set(title=f"N = {steps}", xlabel="lag (rounds)", ylabel="autocorrelation")
            axes[2, column].legend()
        axes[0, 0].plot([], [], color=COLORS["vermillion"], label="posterior, 1 sd")
        axes[0, 0].plot([], [], color="0.7", lw=0.6, label="local posteriors, 1 sd")
        axes[0, 0].legend(loc="upper left")


def claims(known: Problem, found: dict[tuple[str, int], Found], apart: float, full: Law) -> list[Claim]:
    """Claims of section 5.1 on figure 2, and of Proposition 2 on N."""
    worst, limit = worst_score(found)
    errors = {key: known.error(one.law) for key, one in found.items()}
    growth = {name: errors[name, 10] / errors[name, 1] for name in METHODS}
    width = float(np.sqrt(np.trace(known.target.cov)))
    rounds = {key: one.law.rounds for key, one in found.items()}
    changed = float(np.abs(found["DG-LMC", 10].law.cov / found["DG-LMC", 1].law.cov - 1.0).max())
    return [
        Claim(
            "accord.law",
            "the closed form of DG-LMC's stationary law is that of its rounds",
            Verdict.of(apart < SAME),
            f"largest relative difference of a covariance, N = 1 and 10; bound {SAME:g}",
            law=apart,
            kind="check",
        ),
        Claim(
            "accord.sample",
            "draws of both methods have the exact means, covariances and autocorrelations, N = 1 and 10",
            Verdict.of(worst < limit),
            f"largest score over chains of moments and of products at lags {TESTED}; bound {limit:.3g}, which draws of "
            "that law exceed with a chance of 0.001",
            ours=worst,
            kind="check",
        ),
        Claim(
            "section 5.1, figure 2",
            "DG-LMC's posterior approximation is robust to N in contrast to D-SGLD",
            Verdict.of(abs(np.log(growth["DG-LMC"])) < abs(np.log(growth["D-SGLD"]))),
            f"W2 to the posterior over its size, sqrt(tr cov): {listed({k: v / width for k, v in errors.items()})}; "
            f"from N = 1 to 10 it changes by factors {growth['DG-LMC']:.3g} and {growth['D-SGLD']:.3g}; the claim "
            "holds if DG-LMC's is closer to 1. Number: D-SGLD's",
            law=growth["D-SGLD"],
        ),
        Claim(
            "section 5.1, figure 2",
            "DG-LMC exhibits better mixing properties while achieving similar performances (N = 1)",
            Verdict.of(rounds["DG-LMC", 1] < rounds["D-SGLD", 1]),
            f"rounds of autocorrelation along the flattest direction at one W2: {listed(rounds)}. Number: D-SGLD's "
            "over DG-LMC's, N = 1. The definition of similar sets D-SGLD's step, and therefore its mixing",
            law=rounds["D-SGLD", 1] / rounds["DG-LMC", 1],
        ),
        Claim(
            "section 5.1, figure 2",
            "DG-LMC exhibits better mixing properties (N = 10)",
            Verdict.of(rounds["DG-LMC", 10] < rounds["D-SGLD", 10]),
            f"{listed(rounds)} rounds; at N = 10 D-SGLD's W2 is {errors['D-SGLD', 10] / errors['DG-LMC', 10]:.3g} "
            "times DG-LMC's. Number: D-SGLD's rounds over DG-LMC's",
            law=rounds["D-SGLD", 10] / rounds["DG-LMC", 10],
        ),
        Claim(
            "not in the paper",
            "it mixes better than D-SGLD with full gradients, such as its own are, too (N = 1)",
            Verdict.of(rounds["DG-LMC", 1] < full.rounds),
            f"D-SGLD with full gradients and DG-LMC's W2 takes {full.rounds:.3g} rounds. Number: these over DG-LMC's",
            law=full.rounds / rounds["DG-LMC", 1],
            kind="remark",
        ),
        Claim(
            "Proposition 2",
            "with N_i = N for all workers the stationary law is that of N = 1",
            Verdict.of(changed < 1e-3),
            "largest relative difference of a covariance of theta between N = 10 and N = 1; equal: below 0.001. A "
            "local kernel with a finite step does not preserve the conditional law of z, and the effect on theta "
            "depends on the frequency of draws of theta",
            law=changed,
        ),
    ]


def listed(numbers: dict[tuple[str, int], float]) -> str:
    """Numbers by method and N as text."""
    return ", ".join(f"{name} N = {steps} {value:.3g}" for (name, steps), value in numbers.items())


EXPERIMENT = Experiment(
    name="dglmc-fig2",
    title="DG-LMC and D-SGLD on a toy Gaussian, with one and with ten local steps",
    paper=PAPER,
    figure="Figure 2",
    sizes={
        "small": Size(minutes=0.4, memory=1.0, numbers={"rows": 2_000, "chains": 16, "rounds": 1_500}),
        "paper": Size(minutes=6.0, memory=2.0, numbers={"rows": 20_000, "chains": 8, "rounds": 100_000}),
    },
    run=run,
)
