"""Client-only Gibbs, figure 2: the sampler against D-SGLD with fixed and with diminishing steps.

(a) N(1, I) at each of the 7 nodes of a binary tree, 5 dimensions, W2 of the first agent as in `gibbs-table1`. (b), (c)
f_i = |x - c_i|^1.5 with the Euclidean norm, as printed (`accord.models.power` sums over coordinates instead), 4 agents
on a path in the order of their centres 0, 0.5, 1, 1.5, 5 dimensions, and the L2 error of the mean of 100 chains. The
paper does not state the path, eta (here 0.01, 0.1 and 1, in (b) the first, in (c) the last), or the steps of the
diminishing baseline (here eta / (1 + k)^0.55). It prints D-SGLD with the wrong sign of the gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from accord import Network, Posterior, Sampler
from accord.samplers import DESGLD, Gibbs
from accord.samplers.schedules import at, diminishing

from ...base.figures import COLORS, figure
from ..agreement import Tally, bound
from ..frame import Claim, Experiment, Progress, Size, listed, whole_run, write_table
from ..verdicts import Estimate, Verdict, mean_of, moving
from .common import CHAINS, DIM, PAPER, Sweep, colors, fitted_distance, unit_gaussians, weights

REPEATS = 3  # "We repeat each experiment three times"
ETAS = (0.01, 0.1, 1.0)
TREE, PATH = Network.tree(3), Network.path(4)
CENTERS = np.array([0.0, 0.5, 1.0, 1.5])
TRUTH = CENTERS.mean()  # mean of every coordinate, because the target is symmetric under x -> 1.5 - x
POWER = {"b": ETAS[0], "c": ETAS[-1]}
ANY_ETA = 10.0 ** np.arange(-6, 7)
METHODS: dict[str, Callable[[float, Any], Sampler]] = {
    "Gibbs": lambda eta, mixing: Gibbs(eta, mixing=mixing),
    # a constant schedule, because accord refuses a fixed step that diverges
    "D-SGLD": lambda eta, mixing: DESGLD(diminishing(eta, chi=0.0), mixing=mixing),
    "D-SGLD, diminishing": lambda eta, mixing: DESGLD(diminishing(eta), mixing=mixing),
}
LOOK = dict(zip(METHODS, (("blue", "-"), ("vermillion", "--"), ("green", ":")), strict=True))
Curves = dict[tuple[str, str, float], np.ndarray]  # by panel, method and eta, shape (round, repeat)


def walk(name: str, eta: float, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """The exact mean and variance of a coordinate of the first agent on the Gaussian target, by round."""
    W, n = weights(TREE), TREE.num_agents
    step = getattr(METHODS[name](eta, None), "step_size", None)
    sweep = Sweep(TREE, eta, colors(TREE))
    mean, cov, found = np.zeros(n), np.eye(n), [(0.0, 1.0)]
    for k in range(rounds):
        A, c, Q = sweep.A, sweep.c, sweep.Q
        if step is not None:
            h = float(at(step, k))
            A, c, Q = W - h * np.eye(n), np.full(n, h), 2.0 * h * np.eye(n)
        mean, cov = A @ mean + c, A @ cov @ A.T + Q
        found.append((mean[0], cov[0, 0]))
    means, variances = np.array(found).T
    return means, variances


def power_target() -> Posterior:
    """The target exp(-sum_i |x - c_i|^1.5) with Euclidean norms."""

    def log_likelihood(x: jax.Array, center: jax.Array) -> jax.Array:
        square = jnp.sum((x - center) ** 2)
        # the gradient at 0 is 0, where differentiation of the power gives NaN
        away = square > 0
        return -jnp.where(away, jnp.where(away, square, 1.0) ** 0.75, 0.0)

    return Posterior(log_likelihood, lambda x: 0.0 * x.sum(), [np.full(DIM, c) for c in CENTERS], np.zeros(DIM))


def chains(post: Posterior, network: Network, sampler: Sampler, rounds: int, rng: np.random.Generator) -> np.ndarray:
    """Three times 100 chains from N(0, I), including the start, shape (round, repeat, chain, agent, dim)."""
    start = rng.standard_normal((REPEATS * CHAINS, network.num_agents, DIM))
    options = {"chains": len(start), "init": start, "seed": int(rng.integers(2**63))}
    run = whole_run(post, network, sampler, draws=rounds, burn_in=0, thin=1, **options)
    x = np.concatenate([start[:, None], run.draws.astype(float)], axis=1)
    return np.moveaxis(x, 0, 1).reshape(rounds + 1, REPEATS, CHAINS, *start.shape[1:])


def run(size: Size, seed: int, folder: Path, progress: Progress) -> list[Claim]:
    """Run figure 2."""
    rounds, rng = size.numbers, np.random.default_rng(seed)
    curves: Curves = {}
    scores, ends, floor, steps = [], [], 0.0, rounds["gaussian"]
    for name, share in zip(METHODS, (0.0, 0.1, 0.2), strict=True):
        progress(f"(a) {name}", share)
        for eta in ETAS:
            sampler = METHODS[name](eta, weights(TREE))
            x = chains(unit_gaussians(TREE.num_agents), TREE, sampler, steps, rng)[..., 0, :]
            tally = Tally(*(np.repeat(part[:, None], DIM, axis=1) for part in walk(name, eta, steps)))
            tally.add(np.moveaxis(x.reshape(steps + 1, -1, DIM), 0, 1))
            scores += [np.abs(tally.mean_scores()).max(), np.abs(tally.variance_scores()).max()]
            curves["a", name, eta] = fitted_distance(x, TREE.num_agents**-0.5)
    for panel, eta in POWER.items():
        for name, make in METHODS.items():
            progress(f"({panel}) {name}", 0.3 if panel == "b" else 0.6)
            sampler = Gibbs(eta, "rejection") if name == "Gibbs" else make(eta, "metropolis")
            x = chains(power_target(), PATH, sampler, rounds[panel], rng)
            average = x.mean(axis=3)
            for whose, seen in (("", x[..., 0, :]), (", average", average)):
                curves[panel + whose, name, eta] = np.linalg.norm(seen.mean(axis=2) - TRUTH, axis=-1)
            if name == "Gibbs":
                last = average[-1].reshape(-1, DIM)
                ends.append(np.abs(last.mean(axis=0) - TRUTH) / (last.std(axis=0, ddof=1) / np.sqrt(len(last))))
                # the error of 100 draws, from the spread of the average at the smallest eta
                floor = floor or float(np.sqrt((last.var(axis=0, ddof=1) / CHAINS).sum()))
    each = ((key, k, curve[k]) for key, curve in curves.items() for k in shown_rounds(curve))
    rows = [[*key, k, values.mean(), 2 * values.std(ddof=1)] for key, k, values in each]
    write_table(folder / "curves.csv", ["panel", "method", "eta", "iteration", "distance", "distance_2sigma"], rows)
    draw(folder, curves)
    law_check = scored(
        "on the Gaussian target the first agent has the law of its recursion, under all methods at every iteration",
        *(max(scores), bound(2 * len(METHODS) * len(ETAS) * (steps + 1) * DIM)),
    )
    mean_check = scored(
        f"on the power target the average of the agents under Gibbs has the mean {TRUTH:g}, by symmetry",
        *(float(np.max(ends)), bound(np.size(ends))),
    )
    return [law_check, mean_check, *gaussian_claims(curves, steps), *power_claims(curves, floor)]


def shown_rounds(curve: np.ndarray) -> np.ndarray:
    """At most about 300 rounds, which are written and drawn."""
    return np.arange(0, len(curve), 1 + len(curve) // 302)


def draw(folder: Path, curves: Curves) -> None:
    """Draw the three panels."""
    with figure(folder, "figure", panels=3) as axes:
        for (panel, name, eta), curve in curves.items():
            axis, (color, style) = axes["abc".index(panel[0])], LOOK[name]
            shown = {"color": COLORS[color], "ls": style, "lw": 0.8 if "average" in panel else 1.6}
            if panel == "a":
                shown |= {"marker": "osv"[ETAS.index(eta)], "ms": 4, "markevery": len(shown_rounds(curve)) // 10 + 1}
            whose = f"eta {eta:g}" if panel == "a" else panel[3:] or "first agent"
            k = shown_rounds(curve)
            axis.plot(k, curve[k].mean(axis=1), label=f"{name}, {whose}", **shown)
        axes[0].set(ylim=(0.1, 50.0), ylabel="W2, first agent (units of x)", title="(a) Gaussian target")
        for axis, (panel, eta) in zip(axes[1:], POWER.items(), strict=True):
            axis.set(ylim=(0.03, 8.0), ylabel="L2 error of the mean of 100 chains (units of x)")
            axis.set_title(f"({panel}) power 1.5, eta = {eta:g}")
        for axis in axes:
            axis.set(yscale="log", xlabel="iteration")
            axis.legend(loc="upper right", ncols=2, fontsize=7)


def scored(text: str, score: float, most: float) -> Claim:
    """A check that a score is below its bound."""
    return Claim("accord.sample", text, Verdict.of(score < most), f"score; bound {most:.3g}", ours=score, kind="check")


def gaussian_claims(curves: Curves, steps: int) -> list[Claim]:
    """Claims on figure 2(a) by the law. `ours` are the chains' last distances."""

    def limit(name: str, eta: float, rounds: int) -> float:
        last = [part[-1] for part in walk(name, eta, rounds)]
        return float(np.sqrt(DIM * ((last[0] - 1.0) ** 2 + (np.sqrt(last[1]) - TREE.num_agents**-0.5) ** 2)))

    def radius(eta: float) -> float:
        return float(np.abs(np.linalg.eigvals(Sweep(TREE, eta, colors(TREE)).A)).max())

    rates, limits = [-np.log(radius(eta)) for eta in ETAS], [limit("Gibbs", eta, 4000) for eta in ETAS]
    widest, least = max(map(radius, ANY_ETA)), np.linalg.eigvalsh(weights(TREE))[0]
    wrong = float(np.linalg.eigvalsh(weights(TREE))[-1] + ETAS[0])
    ends = {key[1:]: float(curve[-1].mean()) for key, curve in curves.items() if key[0] == "a"}
    last, slow = [ends[name, ETAS[-1]] for name in METHODS], [limit(name, ETAS[0], steps) for name in METHODS]
    order = "Gibbs, D-SGLD, D-SGLD with diminishing steps"
    return [
        Claim(
            "section 6, figure 2(a)",
            "a larger step size of the Gibbs sampler yields faster convergence but also leads to more bias",
            Verdict.of(bool((np.diff(rates) > 0).all() and (np.diff(limits) > 0).all())),
            f"law for eta = {listed(ETAS)}: contraction exp(-{listed(rates)}) an iteration, W2 in the end "
            f"{listed(limits)}. Numbers: the last of these",
            ours=last[0],
            law=limits[-1],
        ),
        Claim(
            "section 6",
            "the Gibbs sampler converges with any step size",
            Verdict.of(widest < 1.0),
            f"spectral radius of a sweep, less 1, at most so much for eta from {ANY_ETA[0]:g} to {ANY_ETA[-1]:g}; what "
            "it converges to is far from the posterior for a large one",
            law=widest - 1.0,
        ),
        Claim(
            "section 6, figure 2(a)",
            "a large step size results in divergence of D-SGLD",
            Verdict.of(ETAS[-1] > 1.0 + least and last[1] > 1e3 * last[0]),
            f"it is stable below eta = {1.0 + least:.3g}, 1 + the least eigenvalue of the weights. W2 in the end with "
            f"eta = {ETAS[-1]:g}: {order} {listed(last)}",
            ours=last[1],
            law=limit("D-SGLD", ETAS[-1], steps),
        ),
        Claim(
            "section 6, figure 2(b)",
            "D-SGLD with diminishing step sizes is slow when the initial step size is small",
            Verdict.of(slow[2] > max(slow[:2])),
            f"W2 by the law after {steps} iterations with eta = {ETAS[0]:g}: {order} {listed(slow)}",
            ours=ends[list(METHODS)[2], ETAS[0]],
            law=slow[2],
        ),
        Claim(
            "section 6",
            "D-SGLD proceeds along + eta grad f_i",
            Verdict.of(wrong < 1.0),
            "with that sign a round has this spectral radius with the smallest eta and diverges; the sign is -",
            law=wrong,
        ),
    ]


def power_claims(curves: Curves, floor: float) -> list[Claim]:
    """Claims on figures 2(b) and (c) by the last third of the iterations."""
    claims, near = [], 2.0 * floor
    for whose, seen in (("", "first agent"), (", average", "agents' average")):
        found = [[last_third(curves[panel + whose, name, eta]) for name in METHODS] for panel, eta in POWER.items()]
        small, large = ([one.value for one in each] for each in found)
        slow, loose = found
        why = (
            f"mean L2 errors of the {seen} in the last third of the iterations: Gibbs, D-SGLD, D-SGLD with diminishing "
            f"steps {{}}; converged is below twice the error of 100 draws of the posterior, {floor:.2g}. The "
            "doubt is that of Gibbs. "
        )
        claims += [
            Claim(
                "section 6, figure 2(b)",
                f"D-SGLD with diminishing steps is slow with a small first step, and Gibbs converges ({seen})",
                Verdict.all([slow[0].below(near), slow[2].above(near)]),
                why.format(listed(small))
                + "The same eta is not the same step: a Gibbs sweep moves the average by eta / "
                "sum of sigma over edges, D-SGLD by eta / n",
                ours=small[0],
                doubt=slow[0].doubt,
            ),
            Claim(
                "section 6, figure 2(c)",
                f"D-SGLD does not converge with a large step, and Gibbs does ({seen})",
                Verdict.all([loose[0].below(near), loose[1].above(near)]),
                why.format(listed(large))
                + "With loose ties an agent stays near its own minimiser, under Gibbs as under "
                "D-SGLD; the average's mean is right for both, by symmetry",
                ours=large[0],
                doubt=loose[0].doubt,
            ),
        ]
    return claims


def last_third(curve: np.ndarray) -> Estimate:
    """The mean of distances, shape (round, repeat), over the last third of the rounds, with its uncertainty."""
    thirds = [curve[2 * end // 3 : end] for end in (len(curve), len(curve) // 2, len(curve) // 4)]
    return moving(mean_of(thirds[0].mean(axis=0)), *(float(third.mean()) for third in thirds[1:]))


EXPERIMENT = Experiment(
    name="gibbs-fig2",
    title="Bipartite Gibbs against D-SGLD with fixed and diminishing steps: Gaussian and power-1.5 targets",
    paper=PAPER,
    figure="Figure 2",
    sizes={
        "small": Size(minutes=0.4, memory=1.2, numbers={"gaussian": 150, "b": 300, "c": 30}),
        "paper": Size(minutes=3.0, memory=1.5, numbers={"gaussian": 150, "b": 2000, "c": 300}),
    },
    run=run,
)
