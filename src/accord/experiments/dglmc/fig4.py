"""DG-LMC, figure 4: a Bayesian neural network 784-128-10 on digits in 50 shards; what DG-LMC and D-SGLD predict.

Not stated, and so chosen here: the number of rounds, of which the first half is dropped; standard normal priors; whole
shards for every gradient; the first eight test pictures as the examples. The outer sigma is taken as softmax, as ten
sigmoids are no probabilities of one label. The printed gamma of DG-LMC is above the paper's own bound for stable steps,
so that a quarter of that bound is taken, as the guidelines do; D-SGLD's epsilon is twice the step, as in Ahn et al.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from ... import datasets
from ...base.figures import COLORS, figure
from ...network import Network
from ...results.run import Run
from ...samplers import DGLMC, HubSGLD
from ...samplers.conditional import curvatures
from ...samplers.protocol import Sampler
from .. import neural as networks
from ..frame import Claim, Experiment, Progress, Size, write_table
from ..longrun import LongRuns, cost, judged, setting
from .laws import LOCAL, PAPER, STEP

RHO, GAMMA = 0.02, 0.005  # "ran DG-LMC with constant hyperparameters across workers"
EPSILON = 1e-5  # "D-SGLD using a step-size of 10^-5"
EXAMPLES = 8
INTERVAL = (0.05, 0.5, 0.95)
FEW = 0.05  # of test pictures: "except for a few testing examples"
SETTLED = 0.01  # an accuracy that differs by less between the halves of the draws is called settled
LOOK = dict(zip(("DG-LMC", "D-SGLD"), ((COLORS["blue"], "o", -0.12), (COLORS["vermillion"], "s", 0.12)), strict=True))


class Found(NamedTuple):
    """Probabilities of the labels of the test pictures under each draw, shape (draw, row, label)."""

    probabilities: np.ndarray
    run: Run

    def accuracy(self, labels: np.ndarray, draws: slice = slice(None)) -> float:
        """Of the posterior predictive law's most probable label."""
        return float((self.probabilities[draws].mean(axis=0).argmax(axis=1) == labels).mean())

    def is_settled(self, labels: np.ndarray) -> bool:
        """Whether both halves of the draws are right about as often."""
        half = len(self.probabilities) // 2
        return abs(self.accuracy(labels, slice(half)) - self.accuracy(labels, slice(half, None))) < SETTLED

    def intervals(self, labels: np.ndarray) -> np.ndarray:
        """Credible intervals and medians of the probability of one label of each picture, shape (3, row)."""
        return np.quantile(self.probabilities[:, np.arange(len(labels)), labels], INTERVAL, axis=0)


def run(size: Size, seed: int, folder: Path, progress: Progress) -> list[Claim]:
    """Figure 4, with so many rows and shards, and so many rounds."""
    numbers, digits = size.numbers, datasets.mnist()
    networks.require()
    rng, runs, module = np.random.default_rng(seed), LongRuns("dglmc-fig4", size, seed, folder), networks.perceptron()
    parts = np.array_split(rng.permutation(len(digits.y_train))[: numbers["rows"]], numbers["shards"])
    start = networks.start(module, seed)
    post = networks.posterior(module, [(digits.x_train[part], digits.y_train[part]) for part in parts], start, 1.0)
    pictures, labels = digits.x_test[: numbers["looked_at"]], digits.y_test[: numbers["looked_at"]]
    progress("curvature of the shards", 0.0)
    curvature = curvatures(post)
    bound = RHO / (1.0 + RHO * curvature)
    methods: dict[str, Sampler] = {
        "DG-LMC": DGLMC(rho=RHO, step_size=STEP * float(bound.min()), local_steps=LOCAL),
        "D-SGLD": HubSGLD(EPSILON / 2.0, local_steps=LOCAL),
    }
    found: dict[str, Found] = {}
    for k, (name, sampler) in enumerate(methods.items()):

        def told(share: float, k: int = k, name: str = name) -> None:
            progress(name, (k + share) / len(methods))

        told(0.0)
        half, thin = numbers["rounds"] // 2, numbers["thin"]
        options: dict[str, Any] = {
            "draws": half // thin,
            "burn_in": half,
            "thin": thin,
            "chains": 1,
            "seed": seed,
            "keep": [0],
        }
        drawn = runs.run(name, post, Network.star(len(parts)), sampler, told=told, **options)
        logs = networks.log_probabilities(module, start, drawn.draws[0, :, 0], pictures)
        found[name] = Found(np.exp(np.asarray(logs, np.float64)), drawn)
    write(folder, found, labels)
    draw(folder, found, labels)
    runs.done()
    sigmoids = jax.nn.sigmoid(module.apply({"params": start}, pictures[:EXAMPLES])).sum(axis=1).mean()
    return [
        *number_claims(curvature, float(bound.min()), float(sigmoids), post.sizes),
        *predictive_claims(found, labels, size),
        cost(f.run for f in found.values()),
    ]


def examples(found: dict[str, Found]) -> tuple[np.ndarray, int]:
    """The examples' most probable labels under DG-LMC, and which of them it is least sure of."""
    mean = found["DG-LMC"].probabilities[:, :EXAMPLES].mean(axis=0)
    return mean.argmax(axis=1), int(mean.max(axis=1).argmin())


def write(folder: Path, found: dict[str, Found], labels: np.ndarray) -> None:
    """The intervals that the figure shows, and all labels of all examples."""
    rows = []
    for name, one in found.items():
        low, middle, high = np.quantile(one.probabilities[:, :EXAMPLES], INTERVAL, axis=0)
        for picture, label in np.ndindex(low.shape):
            numbers = [low[picture, label], middle[picture, label], high[picture, label]]
            rows.append([name, picture, labels[picture], label, *numbers])
    write_table(folder / "probabilities.csv", ["method", "picture", "digit", "label", "5%", "50%", "95%"], rows)


def draw(folder: Path, found: dict[str, Found], labels: np.ndarray) -> None:
    """Both panels of the paper: medians and intervals."""
    likely, doubtful = examples(found)
    with figure(folder, "figure", panels=2, title="medians and 90% credible intervals over draws") as axes:
        for name, one in found.items():
            color, marker, shift = LOOK[name]
            some = one.probabilities[:, np.arange(len(likely)), likely], one.probabilities[:, doubtful]
            for axis, values in zip(axes, some, strict=True):
                low, middle, high = np.quantile(values, INTERVAL, axis=0)
                at, off = np.arange(len(middle)) + shift, [middle - low, high - middle]
                axis.errorbar(at, middle, off, fmt=marker, color=color, ms=4, capsize=2, label=name)
        named = [f"{k + 1}: {label}" for k, label in enumerate(likely)]
        axes[0].set_xticks(np.arange(len(likely)), named)
        axes[0].set(xlabel="test picture: its most probable label", ylabel="probability of that label")
        axes[1].set_xticks(np.arange(10))
        axes[1].set(xlabel=f"label of test picture {doubtful + 1}, a {labels[doubtful]}", ylabel="probability")
        for axis in axes:
            axis.set_ylim(-0.03, 1.03)
            axis.legend(loc="best")


def number_claims(curvature: np.ndarray, bound: float, sigmoids: float, sizes: np.ndarray) -> list[Claim]:
    """What section 5.3 says of the model and of steps."""
    share = EPSILON / 2.0 * len(sizes) * float(curvature.max()) / 2.0
    rows = f"M_i up to {curvature.max():,.0f} at the start, by power iterations on shards of {sizes.max():,} rows"
    return [
        Claim(
            "section 5.3",
            "the k-th of ten sigmoids is the probability of the label k",
            abs(sigmoids - 1.0) < 0.01,
            "their sum at the start, mean over the examples; softmax is taken",
            paper=1.0,
            ours=sigmoids,
        ),
        Claim(
            "section 5.3",
            f"gamma = {GAMMA} with rho = {RHO} is a step within guideline 3.2.1",
            bound >= GAMMA,
            f"the law is rho / (1 + rho M_i), which it must not exceed: {rows}; a quarter of it is taken",
            paper=GAMMA,
            law=bound,
        ),
        Claim(
            "not in the paper",
            "D-SGLD's step is stable where the chain starts",
            share < 1.0,
            f"the step over 2 q_i / M_i, q_i = 1 / {len(sizes)}: {rows}",
            ours=share,
            kind="remark",
        ),
    ]


def predictive_claims(found: dict[str, Found], labels: np.ndarray, size: Size) -> list[Claim]:
    """What section 5.3 says of figure 4."""
    settled = all(one.is_settled(labels) for one in found.values())
    right = [one.accuracy(labels) for one in found.values()]
    likely = [one.probabilities.mean(axis=0).argmax(axis=1) for one in found.values()]
    (low, _, high), (other_low, _, other_high) = (one.intervals(likely[0]) for one in found.values())
    differ = float(((likely[0] != likely[1]) | (low > other_high) | (other_low > high)).mean())
    tried = (
        (
            "except for a few test pictures DG-LMC and D-SGLD say the same of the uncertainty",
            differ < FEW,
            f"share of test pictures with another most probable label or with 90% intervals apart; a few: {FEW:.0%}",
            differ,
        ),
        (
            "posterior accuracies of DG-LMC and D-SGLD on the test set are similar",
            abs(right[0] - right[1]) < 0.02,
            f"difference of {right[0]:.3f} and {right[1]:.3f}; similar: within 0.02",
            right[0] - right[1],
        ),
    )
    size_of_run = f"; {setting(size)}" + ("" if settled else "; accuracies still move")
    return [
        judged(settled, "section 5.3, figure 4", text, holds, why + size_of_run, ours)
        for text, holds, why, ours in tried
    ]


EXPERIMENT = Experiment(
    name="dglmc-fig4",
    title="What DG-LMC and D-SGLD predict with a Bayesian neural network on digits",
    paper=PAPER,
    figure="Figure 4",
    sizes={
        "small": Size(
            minutes=0.8,
            memory=1.5,
            numbers={"rows": 2500, "shards": 10, "rounds": 60, "thin": 1, "looked_at": 500},
        ),
        "paper": Size(
            minutes=2500.0,
            memory=8.0,
            numbers={"rows": 60_000, "shards": 50, "rounds": 5000, "thin": 10, "looked_at": 10_000},
        ),
    },
    run=run,
)
