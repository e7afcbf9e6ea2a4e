"""DE-SGLD on three networks: W2 to the posterior by round, and the bound of Theorem 1."""

from __future__ import annotations

from pathlib import Path

from accord.samplers import DESGLD

from ...theory import constants, de_sgld, start
from ..frame import Claim, Experiment, Progress, Size
from ..verdicts import Verdict
from .common import PAPER
from .networks import Results, compare, shared_claims

STEP = 0.009  # "Tune the step size eta = 0.009"


def run(size: Size, seed: int, folder: Path, progress: Progress) -> list[Claim]:
    """Run the figure."""
    found = compare(DESGLD(STEP), size, seed, folder, progress)
    return [*shared_claims(found), *theorem(found)]


def theorem(found: Results) -> list[Claim]:
    """Claims on Theorem 1, on connected networks."""
    known, begun = constants(found.post), start(found.post)
    connected = {kind: one for kind, one in found.by_network.items() if one.network.is_connected}
    most = {kind: de_sgld.max_step(one.network, known) for kind, one in connected.items()}
    tight = []
    for kind, one in connected.items():
        for k in range(len(one.exact) if STEP < most[kind] else 0):
            bound = de_sgld.bound(one.network, known, begun, step_size=STEP, rounds=k + 1)
            tight += [bound.average / one.exact[k, -1], bound.agents / one.agents[k]]
    found_range = Claim(
        "Theorem 1, results (DE-SGLD)",
        f"its steps include the printed {STEP:g} on the fully connected and the circular network",
        Verdict.of(all(STEP < bound for bound in most.values())),
        "the step must be below min((1 + lambda_N) / L, 1 / (L + mu)): "
        + ", ".join(f"{kind} {bound:.3g}" for kind, bound in most.items())
        + f", with L = {known.largest:.3g} and mu = {known.smallest:.3g} of these data. Number: the smallest",
        paper=STEP,
        law=min(most.values()),
    )
    if not tight:
        return [found_range]
    kept = Claim(
        "Theorem 1 (corrected as in accord_papers.theory.de_sgld)",
        "W2 of the average, and the mean of the agents', are below its bounds at every round",
        Verdict.of(min(tight) >= 1.0),
        f"bound over exact distance from round 1 on, where the step is in range ({len(tight) // 2} rounds): at least "
        f"{min(tight):.3g}, at most {max(tight):.3g}: true, and too loose to choose numbers by. Number: the smallest",
        law=min(tight),
    )
    return [found_range, kept]


EXPERIMENT = Experiment(
    name="desgld-fig-networks",
    title="DE-SGLD on a fully connected, a circular and a disconnected network: W2 to the posterior by round",
    paper=PAPER,
    figure="Results (DE-SGLD method)",
    sizes={
        "small": Size(minutes=0.4, memory=1.0, numbers={"agents": 100, "rounds": 40, "runs": 100}),
        "paper": Size(minutes=1.0, memory=1.5, numbers={"agents": 100, "rounds": 100, "runs": 400}),
    },
    run=run,
)
