"""Methods on links that lose, delay, change or carry one way: every agent's error by law and by simulation.

Writes the tables of docs/links.md. Ten agents with Gaussian potentials whose means are up to some posterior standard
deviations of the common posterior apart, and whose curvatures are up to six times; common noise; steps are the same on
all links. `--small` is a smoke test.
"""

import argparse
import itertools
import time
import warnings
from dataclasses import fields
from pathlib import Path

import jax
import numpy as np
from rich.console import Console

import accord
from accord.base.pytree import pytree
from accord.samplers import DADMMS, DESGLD, EXTRASGLD, GTBAOAB, GTDULA
from accord.samplers.protocol import HasLaw

PAGE = Path(__file__).resolve().parent.parent / "docs" / "links.md"
MARK = "<!-- tables -->"
AGENTS, CHAINS, BURN_IN, DRAWS = 10, 64, 1000, 3000
# Numbers that all links hold, above which the matrices of a law take too long here.
MOST_HELD = 700


@pytree
class DroppedGTDULA(GTDULA):
    """GT-DULA that averages its trackers over what arrives."""

    def needs(self, dim):
        return super().needs(dim)._replace(pushed=())

    conserved = HasLaw.conserved


@pytree
class DroppedGTBAOAB(GTBAOAB):
    """The same of GT-BAOAB."""

    def needs(self, dim):
        return super().needs(dim)._replace(pushed=())

    conserved = HasLaw.conserved


@pytree
class DroppedDADMMS(DADMMS):
    """D-ADMMS whose duals learn of what arrives."""

    def needs(self, dim):
        return super().needs(dim)._replace(differences=None)

    def transition(self, agent, state, inbox, noise):
        apart = agent.degree * state.position - inbox.neighbour_sum()
        return super().transition(agent, state, inbox._replace(differenced=apart), noise)

    conserved = HasLaw.conserved


@pytree
class DroppedEXTRASGLD(EXTRASGLD):
    """The same of EXTRA-SGLD."""

    def needs(self, dim):
        return super().needs(dim)._replace(differences=None)

    def update(self, agent, state, inbox, noise):
        return super().update(agent, state, inbox._replace(differenced=state.position - inbox.mix()), noise)

    conserved = HasLaw.conserved


def posterior():
    """The posterior, and how far the means of its parts are from its own, in its standard deviations."""
    rng = np.random.default_rng(0)
    means, curvatures = rng.normal(0, 2, AGENTS), rng.uniform(0.5, 3, AGENTS)
    post = accord.models.gaussian(means, 1.0 / curvatures)
    exact = post.exact()
    return post, float(np.abs(means - exact.mean[0]).max() / exact.sd[0])


def methods(post):
    """The methods, and what each becomes when messages are just dropped."""
    h = float(post.exact().sd[0])
    plain = [
        GTDULA(0.002, 0.09, 0.09, noise="common"),
        GTBAOAB(0.5 * h, 1.0, mix_rounds=16),
        DADMMS(8.0, noise="common"),
        DESGLD(0.02, noise="common"),
        EXTRASGLD(0.02, noise="common"),
    ]
    dropped = {GTDULA: DroppedGTDULA, GTBAOAB: DroppedGTBAOAB, DADMMS: DroppedDADMMS, EXTRASGLD: DroppedEXTRASGLD}
    naive = []
    for method in plain:
        cls = dropped.get(type(method))
        numbers = {field.name: getattr(method, field.name) for field in fields(method)}
        naive.append(None if cls is None else cls(**numbers))
    return list(zip(plain, naive, strict=True))


def one_way(network):
    """A direction for each edge such that news reach everybody: a depth-first search and its way back."""
    import networkx as nx

    tree, directed = nx.dfs_tree(network.to_networkx(), 0), []
    order = {node: place for place, node in enumerate(nx.dfs_preorder_nodes(network.to_networkx(), 0))}
    for i, j in network.edges.tolist():
        down = tree.has_edge(i, j) or tree.has_edge(j, i)
        first, last = sorted((i, j), key=order.get)
        directed.append((first, last) if down else (last, first))
    return directed


def conditions(network, name):
    rng = np.random.default_rng(1)
    half = [network.edges[rng.random(len(network.edges)) < 0.5].tolist() for _ in range(16)]
    yield "all arrive", {}
    for loss in (0.01, 0.05, 0.3):
        yield f"loss {loss:.0%}", {"loss": loss}
    yield "loss 30% in outages of 10", {"loss": 0.3, "burst": 10}
    for delay in (3, 20):
        yield f"up to {delay} rounds late", {"delay": delay}
    yield "half of the edges in turns", {"schedule": half}
    if name != "star":
        yield "one way", {"directed": one_way(network)}
        yield "one way, loss 30%", {"directed": one_way(network), "loss": 0.3}


def error(means, variances, exact):
    """The worst agent's error of the mean in posterior sds, and the least and largest sd over the posterior's."""
    with np.errstate(invalid="ignore", over="ignore"):
        ratio = np.sqrt(variances) / exact.sd[0]
        off = np.abs(means - exact.mean[0]).max() / exact.sd[0]
    if not np.isfinite(off) or off > 1e3:
        return "unstable"
    return f"{off:.3f}, {ratio.min():.2f}..{ratio.max():.2f}"


def by_law(post, network, method):
    links = network.unreliable
    if AGENTS * network.max_degree * (1 + links.delay[1]) > MOST_HELD:
        return "not made"
    try:
        law = accord.law(post, network, method).stationary()
    except (ArithmeticError, ValueError) as failure:
        text = str(failure)
        if "settled" in text:
            return "not settled"
        return "unstable" if "unstable" in text or "overflows" in text else "refused"
    agents = [law.agent(i) for i in range(AGENTS)]
    return error(np.array([a.mean[0] for a in agents]), np.array([a.cov[0, 0] for a in agents]), post.exact())


def by_simulation(post, network, method, draws):
    try:
        run = accord.sample(post, network, method, draws=draws, burn_in=BURN_IN, chains=CHAINS, seed=0, progress=False)
    except accord.DivergenceError:
        return "unstable"
    except ValueError:
        return "refused"
    draws = run.draws[..., 0].astype(float)
    return error(draws.mean(axis=(0, 1)), draws.var(axis=(0, 1)), post.exact())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true")
    small = parser.parse_args().small
    console, (post, spread), began = Console(), posterior(), time.time()
    networks = {
        "ring": accord.Network.ring(AGENTS),
        "random": accord.Network.erdos_renyi(AGENTS, 0.4, seed=3),
        "star": accord.Network.star(AGENTS),
    }
    lines = [MARK, "", "## Measured", ""]
    lines += [
        f"Ten agents, one parameter, means of the agents' potentials up to {spread:.0f} posterior standard "
        "deviations from the common one. Each entry: the worst agent's error of the mean in posterior standard "
        "deviations, then the least and the largest agent's standard deviation over the posterior's. *Law*: "
        "`accord.law(...).stationary()`. *Drawn*: "
        f"{CHAINS} chains of {DRAWS:,} draws. *Dropped*: drawn by the same method without running sums, averaging over "
        "what arrives. Draws begin after 1,000 rounds, which late messages may need many times over; laws are settled. "
        "Steps are the same on all links, so that some are unstable; a plan would take others. *Not "
        f"made* is a law whose links hold more than {MOST_HELD} numbers. The "
        "command that wrote this: `make links`.",
        "",
    ]
    for name, network in itertools.islice(networks.items(), 1 if small else None):
        for method, naive in methods(post):
            label = type(method).__name__
            lines += [
                f"### {label} on the {name} graph",
                "",
                "| links | law | drawn | dropped |",
                "| --- | --- | --- | --- |",
            ]
            for what, options in itertools.islice(conditions(network, name), 2 if small else None):
                linked = network.links(**options)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    row = [
                        by_law(post, linked, method) if not small else "",
                        by_simulation(post, linked, method, 50 if small else DRAWS),
                        "" if naive is None else by_simulation(post, linked, naive, 50 if small else DRAWS),
                    ]
                lines.append(f"| {what} | {' | '.join(row)} |")
                console.print(name, label, what, *row, f"{time.time() - began:.0f} s", highlight=False)
            lines.append("")
    if not small:
        PAGE.write_text(PAGE.read_text(encoding="utf-8").partition(MARK)[0] + "\n".join(lines).rstrip() + "\n")


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    main()
