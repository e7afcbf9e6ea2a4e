"""Draws of the mesh engine in a new process, with the number of devices set before JAX starts.

python mesh_worker.py OUTPUT.npz CASE ... [--coordinator ADDRESS --processes N --process I]
"""

import argparse

import jax
import numpy as np
from tables import AGENTS, LINKS, METHODS, NETWORKS, OVER_LINKS, unequal_shards

import accord
from accord.samplers import (
    DASG,
    DESGLD,
    DGLMC,
    DMAHMC,
    FSGLD,
    GCMC,
    GTBAOAB,
    GTDULA,
    QLSD,
    AsynchronousULA,
    EventTriggeredULA,
    Gibbs,
    HubSGLD,
    ProximalDESGLD,
    Replicated,
    SplitGTBAOAB,
)

ALL = {
    **METHODS,
    "DASG": lambda: DASG(0.1, 0.4),
    "AsynchronousULA": lambda: AsynchronousULA(0.02, 0.15),
    "EventTriggeredULA": lambda: EventTriggeredULA(0.02, 0.15, 0.3),
    "HubSGLD": lambda: HubSGLD(0.01, (1, 2, 3, 1, 2, 3), batch_size=2),
    "ProximalDESGLD": lambda: ProximalDESGLD(0.05, "simplex", 0.05),
    "FSGLD": lambda: FSGLD(0.01, (1, 2, 3, 1, 2, 3), batch_size=2),
    "QLSD": lambda: QLSD(0.02, 2, batch_size=2),
    "Replicated": lambda: Replicated(warmup=20),
    "Replicated-mala": lambda: Replicated("mala", warmup=0, step_size=0.1),
    "Gibbs-rejection": lambda: Gibbs(0.3, "rejection"),
    "GCMC-mala": lambda: GCMC(0.3, tolerances=(2.0, 1.0), rounds_per_tolerance=5),
    "GCMC-tolerances": lambda: GCMC(0.3, "exact", tolerances=(2.0, 1.0), rounds_per_tolerance=5),
    "DGLMC-defaults": lambda: DGLMC(),
    "DMAHMC": lambda: DMAHMC(0.1, 2),
    "GTDULA-common": lambda: GTDULA(0.02, 0.15, 0.1, noise="common"),
    "GTBAOAB-whitened": lambda: GTBAOAB(0.4, 1.0, mix_rounds=3),
    "SplitGTBAOAB-whitened": lambda: SplitGTBAOAB(0.4, 1.0, mix_rounds=2),
    "DESGLD-mixed": lambda: DESGLD(0.02, mix_rounds=3),
    "DESGLD-batch": lambda: DESGLD(0.02, batch_size=2),
}


def problem(case):
    """The posterior, network and method of a case such as "star/DESGLD"."""
    name, method = case.split("/")
    if name in LINKS:
        return unequal_shards(2, AGENTS), LINKS[name], OVER_LINKS[method]()
    # the smallest network with a missing edge, as starting a process per agent takes seconds
    network = accord.Network.path(3) if name == "three" else NETWORKS[name]
    return unequal_shards(2, network.num_agents), network, ALL[method]()


def draw(case, engine):
    """A short run of a case."""
    post, network, method = problem(case)
    n = network.num_agents
    start = accord.Gaussian([1.0, -1.0], np.eye(2))
    return accord.sample(
        post,
        network,
        accord.Rounds(method, burn_in=20, thin=2, init=start, whiten=case.endswith("whitened")),
        draws=10,
        chains=3,
        seed=7,
        engine=engine,
        keep=[0, n - 2, n - 1],
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("output")
    parser.add_argument("cases", nargs="+")
    parser.add_argument("--coordinator")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--process", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.processes > 1:
        jax.distributed.initialize(arguments.coordinator, arguments.processes, arguments.process)
    found = {"devices": np.array(len(jax.devices()))}
    for case in arguments.cases:
        run = draw(case, "mesh")
        found[f"{case}/draws"], found[f"{case}/average"] = run.draws, run.average
        found[f"{case}/error"] = run.statistics["consensus_error"]
        found[f"{case}/bytes"] = run.traffic.bytes_sent
    if arguments.process == 0:
        np.savez(arguments.output, **found)


if __name__ == "__main__":
    main()
