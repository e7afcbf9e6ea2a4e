"""DE-SGHMC on three networks: W2 to the posterior by round, and the ranges of Theorem 7."""

from __future__ import annotations

from pathlib import Path

from accord.samplers import DESGHMC

from ...theory import constants, de_sghmc
from ..frame import Claim, Experiment, Progress, Size
from ..verdicts import Verdict
from .common import PAPER
from .networks import Results, compare, shared_claims

# "The stepsize and the friction coefficient are tuned to eta = 0.1 and gamma = 7"
STEP, FRICTION = 0.1, 7.0


def run(size: Size, seed: int, folder: Path, progress: Progress) -> list[Claim]:
    """Run the figure."""
    found = compare(DESGHMC(STEP, FRICTION), size, seed, folder, progress)
    return [*shared_claims(found), *theorem(found)]


def theorem(found: Results) -> list[Claim]:
    """Claims on the ranges of Theorem 7. Its bounds have constants that the slides do not state."""
    known = constants(found.post)
    connected = {kind: one.network for kind, one in found.by_network.items() if one.network.is_connected}
    most = {kind: de_sghmc.max_step(network, known) for kind, network in connected.items()}
    # the range of frictions exists only for steps in their range
    ranges = {
        kind: de_sghmc.friction_range(network, known, step_size=most[kind] / 2.0) for kind, network in connected.items()
    }
    return [
        Claim(
            "Theorem 7, results (DE-SGHMC)",
            f"its steps include the printed {STEP:g} on the fully connected and the circular network",
            Verdict.of(all(STEP < bound for bound in most.values())),
            "the step must be below sqrt((1 + lambda_N) / (2 (L + mu))): "
            + ", ".join(f"{kind} {bound:.3g}" for kind, bound in most.items())
            + f", with L = {known.largest:.3g} and mu = {known.smallest:.3g} of these data. Number: the smallest",
            paper=STEP,
            law=min(most.values()),
        ),
        Claim(
            "Theorem 7, results (DE-SGHMC)",
            "its frictions include one that keeps as much of a velocity as the printed numbers, 1 - gamma eta",
            Verdict.of(all(1.0 - FRICTION * STEP <= one.velocity_kept for one in ranges.values())),
            "at half the largest step it may keep "
            + ", ".join(f"{kind} {one.velocity_kept:.2g}" for kind, one in ranges.items())
            + ": almost none, so the theorem only covers DE-SGLD with the step eta^2. Number: the largest",
            paper=1.0 - FRICTION * STEP,
            law=max(one.velocity_kept for one in ranges.values()),
        ),
    ]


EXPERIMENT = Experiment(
    name="desghmc-fig-networks",
    title="DE-SGHMC on a fully connected, a circular and a disconnected network: W2 to the posterior by round",
    paper=PAPER,
    figure="Results (DE-SGHMC)",
    sizes={
        "small": Size(minutes=0.4, memory=1.0, numbers={"agents": 100, "rounds": 40, "runs": 100}),
        "paper": Size(minutes=1.0, memory=1.5, numbers={"agents": 100, "rounds": 100, "runs": 400}),
    },
    run=run,
)
