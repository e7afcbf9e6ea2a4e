"""DG-LMC, table 1: how rho, step, rounds and gradients scale with the dimension and the accuracy, measured exactly.

The paper states equal m, M, rho, gamma and N at all workers, the start z = mode, and accuracy in W2. It omits these
choices: Gaussian potentials without operators, half of their curvatures m and half M; M / m; 10 workers; and the shares
of the error. Here rho is the largest with error epsilon / 2, gamma the largest with error 3 epsilon / 4 from rho and
gamma together, and t the first round within epsilon. Gaussians have Lipschitz Hessians, so both rows of the table
apply.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from accord import Network, law
from accord.metrics import wasserstein2
from accord.models import quadratic
from accord.samplers import DGLMC

from ...base.figures import COLORS, figure
from ...theory.dg_lmc import LIPSCHITZ_HESSIAN, SMOOTH, Powers
from ..frame import Claim, Experiment, Progress, Size, write_table
from ..verdicts import Verdict
from .laws import PAPER
from .scaling import B, Needs, Sweep, curvatures, error, slope, sweep

DIMS = 2 ** np.arange(1, 10)
ACCURACIES = 2.0 ** -np.arange(4, 13)
FIXED_DIM, FIXED_ACCURACY = 16, 2.0**-8
SAME_POWER, SAME = 0.1, 1e-8  # tolerances for exponents, and for rounding
HALVED = ". On Gaussians all depends on epsilon / sqrt(d), so powers of d are half of the bounds' powers"
QUANTITIES = {"rho": "rho", "step_size": "gamma", "rounds": "t_mix with N = 1"}


def run(size: Size, seed: int, folder: Path, progress: Progress) -> list[Claim]:
    """Run table 1 by exact laws, without draws."""
    dims, accuracies = (values[: size.numbers["points"]] for values in (DIMS, ACCURACIES))
    at = (dims, np.array([FIXED_ACCURACY])), (np.array([FIXED_DIM]), accuracies)
    progress("N = 1", 0.0)
    one = [sweep(some, accurate) for some, accurate in at]
    progress("N of guideline 3.2.2", 0.5)
    guided = [sweep(some, accurate, guided=True) for some, accurate in at]
    rows = [
        [along, value, *found]
        for sweeps in (one, guided)
        for along, line in zip(("dim", "accuracy"), sweeps, strict=True)
        for value, found in zip(line.at, line.found, strict=True)
    ]
    write_table(folder / "needs.csv", ["along", "value", *Needs._fields], rows)
    plot(folder, one)
    progress("claims", 1.0)
    return [check(), *orders(one), *others(one, guided)]


def plot(folder: Path, lines: list[Sweep]) -> None:
    """Plot the needs relative to the first point, and the printed orders."""
    with figure(folder, "figure", panels=2, title="markers: measured, N = 1; dashes: table 1 with H3") as axes:
        for axis, line, which in zip(axes, lines, ("dim", "accuracy"), strict=True):
            for (name, label), color, marker in zip(QUANTITIES.items(), COLORS.values(), "os^", strict=False):
                values = np.array([getattr(one, name) for one in line.found], float)
                printed = (line.at / line.at[0]) ** float(getattr(getattr(LIPSCHITZ_HESSIAN, name), which))
                axis.loglog(line.at, values / values[0], marker=marker, ms=4, color=color, label=label)
                axis.loglog(line.at, printed, "--", lw=1, color=color)
            axis.set(ylabel="over the value at the first point")
            axis.legend()
        axes[0].set(title=f"accuracy {FIXED_ACCURACY:g}", xlabel="dimension d")
        axes[1].set(title=f"dimension {FIXED_DIM}", xlabel="accuracy epsilon in W2 (units of theta)")
        axes[1].invert_xaxis()


def check() -> Claim:
    """Check of the closed form against `accord.law`, by round and in the limit."""
    dim, rho, step, steps, apart = 4, 0.05, 0.01, 3, 0.0
    post = quadratic(np.broadcast_to(np.diag(curvatures(dim)) / B, (B, dim, dim)), np.zeros((B, dim)))
    exact = law(post, Network.star(B), DGLMC(rho, step, steps), init=np.zeros(dim))
    for rounds in (0, 1, 7, 60, np.inf):
        # theta_t of the paper is what the hub draws in round t + 1
        one = (exact.stationary() if rounds == np.inf else exact.at(int(rounds) + 1)).agent(0)
        apart = max(apart, abs(wasserstein2(one, post.exact()) / error(dim, rho, step, steps, rounds) - 1.0))
    text = "W2 by the closed form is that of the exact law, after 0, 1, 7, 60 and infinitely many rounds"
    why = f"largest relative difference; bound {SAME:g}"
    return Claim("accord.law", text, Verdict.of(apart < SAME), why, law=apart, kind="check")


def orders(lines: list[Sweep]) -> list[Claim]:
    """Claims that the printed orders are sufficient, and remarks on whether they are necessary."""
    found = []
    ends = [f"{line.at[0]:g} to {line.at[-1]:.2g}" for line in lines]
    for name, label in QUANTITIES.items():
        printed: Powers = getattr(LIPSCHITZ_HESSIAN, name)
        dim, accuracy = (line.power(name) for line in lines)
        # a larger rho and step than printed, and fewer rounds, are better
        sign = -1.0 if name == "rounds" else 1.0
        enough = sign * (dim - printed.dim) > -SAME_POWER and sign * (accuracy - printed.accuracy) < SAME_POWER
        needed = max(abs(dim - printed.dim), abs(accuracy - printed.accuracy)) < SAME_POWER
        order = f"{label} of order d^{printed.dim} epsilon^{printed.accuracy}"
        why = f"measured d^{dim:.3g} (d = {ends[0]}) and epsilon^{accuracy:.3g} ({ends[1]}), logarithms divided out; "
        why += f"{SAME_POWER:g} is allowed. Numbers: powers of d"
        for source, text, holds, kind, more in (
            ("table 1, H1, H2, H3", "is enough", enough, "claim", ""),
            ("not in the paper", "is needed on Gaussians", needed, "remark", HALVED),
        ):
            numbers: dict[str, Any] = {"paper": float(printed.dim), "law": dim, "kind": kind}
            found.append(Claim(source, f"{order} {text}", Verdict.of(holds), why + more, **numbers))
    return found


def others(one: list[Sweep], guided: list[Sweep]) -> list[Claim]:
    """Claims on gradients without H3 and on the error of rho, and a remark on several local steps."""
    gradients = [line.power("gradients") for line in one]
    printed = SMOOTH.gradients
    bias = slope(DIMS, np.array([error(int(dim), 1e-4, None) for dim in DIMS]))
    steps, rounds, many = ([line.power(name) for line in guided] for name in ("local_steps", "rounds", "gradients"))
    same = max(abs(a - b) for a, b in zip(many, gradients, strict=True)) < SAME_POWER
    return [
        Claim(
            "table 1, H1, H2",
            f"gradients of order d^{printed.dim} epsilon^{printed.accuracy} are enough",
            Verdict.of(gradients[0] < printed.dim + SAME_POWER and gradients[1] > printed.accuracy - SAME_POWER),
            f"measured d^{gradients[0]:.3g} and epsilon^{gradients[1]:.3g}; Gaussians do not test how sharp it is",
            paper=float(printed.dim),
            law=gradients[0],
        ),
        Claim(
            "section 3.1.2, Proposition 3",
            "for Gaussians its bound on W2(pi_rho, pi), of order d, has the right asymptotics as d grows",
            Verdict.of(abs(bias - 1.0) < SAME_POWER),
            f"power of d in W2 at rho = 1e-4; {SAME_POWER:g} is allowed. It is read as sqrt(2 / m_U) max(A, B), as in "
            "table 1. Errors of d directions add up in squares",
            paper=1.0,
            law=bias,
        ),
        Claim(
            "not in the paper",
            "with N of guideline 3.2.2 rounds are of a lower order, and gradients of the same",
            Verdict.of(rounds[1] > gradients[1] + SAME_POWER and same),
            f"N as d^{steps[0]:.3g} epsilon^{steps[1]:.3g}, rounds as d^{rounds[0]:.3g} epsilon^{rounds[1]:.3g}, "
            f"gradients as d^{many[0]:.3g} epsilon^{many[1]:.3g}. Number: the power of epsilon in rounds",
            law=rounds[1],
            kind="remark",
        ),
    ]


EXPERIMENT = Experiment(
    name="dglmc-table1",
    title="How DG-LMC's numbers and mixing time scale with the dimension and the accuracy, measured on Gaussians",
    paper=PAPER,
    figure="Table 1",
    sizes={
        "small": Size(minutes=0.2, memory=0.5, numbers={"points": 9}),
        "paper": Size(minutes=0.2, memory=0.5, numbers={"points": 9}),
    },
    run=run,
)
