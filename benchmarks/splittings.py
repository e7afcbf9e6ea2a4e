"""GT-BAOAB beside its variants: other splittings, noise, tracking and mixing, other frictions and numbers of exchanges.

Needs scikit-learn and BlackJAX (pip install 'accord[demo]'). Step and exchanges K are those that a plan chooses for
GT-BAOAB; "shorter" is the first step, each 0.7 of the one before, with which a variant is stable (not tracked) or
exact to 1% of a standard deviation (OBABO) on the Gaussian nearest to the posterior; "fewer" is half of K. "Exact"
columns are of that Gaussian: any agent's worst errors of mean and standard deviation, in standard deviations, and the
most gradients (rounds) and exchanges per effective draw of a mean. "Measured" ones are of runs on the posterior, all
with the same random numbers, against long pooled NUTS. MC error is that of one mean, not of the worst.

    python benchmarks/splittings.py --set wine --network star
"""

import argparse
import sys
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
from no_knobs import NETWORKS, SEED, SETS, moments, nuts, posterior
from rich.console import Console
from rich.table import Column, Table

import accord
from accord.base.pytree import pytree, static
from accord.exact.impulse_response import respond
from accord.samplers import GTBAOAB, SplitGTBAOAB
from accord.samplers.gt_baoab import GTBAOABState
from accord.tuning.forecast import gaussian_model

CHAINS, BURN_IN, BATCH = 8, 300, 250
FRICTIONS, EXCHANGES = (0.1, 0.2, 0.3, 0.4, 0.7, 1.0), (1, 2, 4, 6, 8, 16)
COLUMNS = ("step", "K", "exact: mean", "sd", "gradients", "exchanges")
COLUMNS += ("measured: mean", "sd", "MC error", "gradients", "for sds", "exchanges")


@pytree
class Splitting(GTBAOAB):
    """Kicks B, drifts A and noise O, each a share of the step: "BAOA" is GT-BAOAB, "BOBA" OBABO, whose O's meet."""

    path: str = static(default="BAOA", kw_only=True)

    def init(self, agent, position, noise):
        gradient = self.tracked(agent, position)
        return GTBAOABState(position, jnp.zeros_like(position), gradient, gradient)

    def update(self, agent, state, inbox, noise):
        x, v, d = inbox.mix()
        v, force = self.heard(agent, state, x, v, d)
        x, v = self.moved(x, v, force, agent.num_agents**0.5 * noise.normal)
        gradient = self.tracked(agent, x)
        return GTBAOABState(x, v, d + gradient - state.gradient, gradient)

    def heard(self, agent, state, x, v, d):
        return v, agent.num_agents * d

    def tracked(self, agent, x):
        return agent.gradient(x)

    def moved(self, x, v, force, normal):
        for letter in self.path:
            step = self.step_size / self.path.count(letter)
            if letter == "B":
                v = v - step * force
            elif letter == "A":
                x = x + step * v
            else:
                kept = jnp.exp(-self.friction * step)
                v = kept * v + (1.0 - kept**2) ** 0.5 * normal
        return x, v


@pytree
class ABOBA(Splitting):
    """OBABO's chain, whose gradients are taken and messages sent half a drift after the draw."""

    def position(self, state):
        return state.position - self.step_size / 2.0 * state.velocity


@pytree
class Euler(Splitting):
    """Kick, friction and noise at once, as in DE-SGHMC."""

    def moved(self, x, v, force, normal):
        kept = 1.0 - self.friction * self.step_size
        v = kept * v - self.step_size * force + (2.0 * (1.0 - kept)) ** 0.5 * normal
        return x + self.step_size * v, v


@pytree
class Untracked(Splitting):
    """Every agent is driven by N times its own gradient."""

    def heard(self, agent, state, x, v, d):
        return v, agent.num_agents * state.gradient


@pytree
class OwnVelocity(Splitting):
    """Velocities are not mixed and need not be sent."""

    def heard(self, agent, state, x, v, d):
        return state.velocity, agent.num_agents * d


@pytree
class Turning(Splitting):
    """Between kicks F's Gaussian part turns positions into velocities, exactly; kicks are of what it leaves."""

    def moved(self, x, v, force, normal):
        step = self.step_size
        kept = jnp.exp(-self.friction * step)
        v = v - step * (force - x)
        x, v = self.turned(x, v)
        return self.turned(x, kept * v + (1.0 - kept**2) ** 0.5 * normal)

    def turned(self, x, v):
        c, s = jnp.cos(self.step_size / 2.0), jnp.sin(self.step_size / 2.0)
        return c * x + s * v, c * v - s * x


def sections(chosen, model, net):
    numbers, K = (chosen.step_size, chosen.friction), {"mix_rounds": chosen.mix_rounds}
    fewer, obabo = {"mix_rounds": max(1, chosen.mix_rounds // 2)}, Splitting(*numbers, **K, path="BOBA")
    aboba = ABOBA(*numbers, **K, path="BOBA")
    splittings = {
        "BAOAB": chosen,
        "OBABO": obabo,
        "ABOBA": aboba,
        "Euler": Euler(*numbers, **K),
        "turning": Turning(*numbers, **K),
    }
    splittings |= {"OBABO, shorter": shortened(obabo, model, net, 0.01)}
    mixing = {
        "independent noise": replace(chosen, noise="independent"),
        "not tracked, shorter": shortened(Untracked(*numbers, **K), model, net),
        "x, d mixed": OwnVelocity(*numbers, **K),
        "x, d mixed, fewer": OwnVelocity(*numbers, **fewer),
        "x, v, d mixed, fewer": replace(chosen, **fewer),
        "split, fewer": SplitGTBAOAB(*numbers, **fewer),
        "split, one": SplitGTBAOAB(*numbers, mix_rounds=1),
    }
    frictions = {f"friction {friction:g}": replace(chosen, friction=friction) for friction in FRICTIONS}
    return splittings, mixing, frictions, {f"K = {count}": replace(chosen, mix_rounds=count) for count in EXCHANGES}


def shortened(sampler, model, net, tolerance=np.inf):
    while (found := exact(model, net, sampler)) is None or max(found[:2]) > tolerance:
        sampler = replace(sampler, step_size=0.7 * sampler.step_size)
    return sampler


def exact(model, net, sampler):
    try:
        found = respond(model, net, sampler)
    except ArithmeticError:
        return None
    true, rounds = found.exact, found.memory.max()
    error, ratio = np.abs(found.mean - true.mean) / true.sd, np.abs(found.sd / true.sd - 1.0)
    return error.max(), ratio.max(), rounds, sampler.mix_rounds * rounds


def measured(post, net, sampler, truth, draws):
    # burn-in is cut off here: without it one program is compiled, not two
    options = {"chains": CHAINS, "draws": draws + BURN_IN, "burn_in": 0, "thin": 1, "seed": SEED, "progress": False}
    try:
        own = accord.sample(post, net, sampler, **options).draws[:, BURN_IN:].astype(np.float64)
    except accord.DivergenceError:
        return None
    (mean, sd, known), centre, spread = truth, own.mean(axis=(0, 1)), own.std(axis=(0, 1))
    rounds, for_sds = memory(own), memory((own - centre) ** 2)
    noise, error = np.sqrt(rounds / (CHAINS * draws) + 1.0 / known.min()), (np.abs(centre - mean) / sd).max()
    return error, np.abs(spread / sd - 1.0).max(), noise, rounds, for_sds, sampler.mix_rounds * rounds


def memory(series):
    """Rounds per effective draw; ArviZ's estimate leaves out the negative autocorrelation that velocities make."""
    batches = series.reshape(-1, BATCH, *series.shape[2:]).mean(axis=1)
    return BATCH * float((batches.var(axis=0, ddof=1) / series.var(axis=(0, 1))).max())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", default="breast-cancer", choices=list(SETS))
    parser.add_argument("--network", default="ring", choices=list(NETWORKS))
    parser.add_argument("--batches", type=int, default=20, help=f"of {BATCH} rounds in each of {CHAINS} chains")
    arguments = parser.parse_args()
    net, draws = NETWORKS[arguments.network](), BATCH * arguments.batches
    post = posterior(arguments.set, net.num_agents)
    plan = accord.plan(post, net, [GTBAOAB()], progress=False)
    post, truth = post.transformed(plan.warmup.coordinates), moments(nuts(arguments.set, True, 2 * draws)[0])
    model, chosen, done = gaussian_model(post, plan.warmup).whitened, plan.best.sampler, {}
    columns = [Column(no_wrap=True), *(Column(name, justify="right") for name in COLUMNS)]
    table = Table(*columns, title=f"{arguments.set}, {net!r}, friction {chosen.friction:g}")
    for rows in sections(chosen, model, net):
        for label, sampler in rows.items():
            if repr(sampler) not in done:
                found = measured(post, net, sampler, truth, draws)
                done[repr(sampler)] = exact(model, net, sampler) or ["unstable", *[""] * 3], found or ["diverged"]
            cells = [sampler.step_size, sampler.mix_rounds, *(cell for part in done[repr(sampler)] for cell in part)]
            table.add_row(label, *(cell if isinstance(cell, str) else f"{round(cell, 3):.3g}" for cell in cells))
        table.add_section()
    Console(width=None if sys.stdout.isatty() else 160).print(table)


if __name__ == "__main__":
    main()
