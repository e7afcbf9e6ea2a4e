"""Rounds of the engines beside the local one: DE-SGLD of four agents on a ring.

Every engine runs in a process of its own, one after another, with the local engine beside it in turn. "mesh, 4 devices"
are four virtual ones of this machine's processor. Processes that wait for each other sleep, and a sleeping processor of
a virtual machine wakes slowly: what two processes take depends on what else keeps it awake.
Ray listens beyond loopback unless told not to; where that matters run it where nothing else is:

    unshare -n sh -c 'ip link set lo up; exec "$@"' _ python benchmarks/bench.py --only engines
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import numpy as np
import problems
from measured import Line, Ratio, Skipped, against, side_by_side

import accord

TITLE = "Engines"
ABOUT = """\
A round of DE-SGLD on a ring of 4 with 4 chains on other engines, over one on the local engine in the same process, in
turn; and over a bare exchange, a loop that does nothing but pass as many numbers on to the next device, the least
that a round on a mesh can cost. The note has the times of both."""
AGENTS, CHAINS = 4, 4
_MARK = "measured "
# rounds timed at once
ROUNDS = {10: 1000, 100: 1000, 1_000: 500, 100_000: 20}


posterior = partial(problems.spheres, AGENTS)


def bare(dim):
    """A function of a number of rounds, in each of which every device passes its agents' numbers on to the next."""
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    devices = jax.devices()
    mesh = Mesh(np.array(devices), ("device",))
    route = [(place, (place + 1) % len(devices)) for place in range(len(devices))]
    whole = np.ones((AGENTS, dim * CHAINS))
    rows = jax.make_array_from_callback(whole.shape, NamedSharding(mesh, P("device")), lambda index: whole[index])

    def shifts(x, rounds):
        return jax.lax.fori_loop(0, rounds, lambda _, x: jax.lax.ppermute(x, "device", route), x)

    program = jax.jit(jax.shard_map(shifts, mesh=mesh, in_specs=(P("device"), P()), out_specs=P("device")))
    return lambda rounds: jax.block_until_ready(program(rows, rounds))


def measure(builder: Any, dim: int, repeats: int) -> dict[str, list[float]]:
    """Seconds of a round of an engine, of the local one beside it, and of a mesh's bare exchange, (repeat,)."""
    from accord.engines.agreement import bind
    from accord.engines.local import LocalEngine
    from accord.engines.mesh.engine import MeshEngine

    post, net, sampler = posterior(dim), accord.Network.ring(AGENTS), accord.samplers.DESGLD(0.05)
    rounds, options = ROUNDS[dim], {"chains": CHAINS, "seed": 0, "keep": np.arange(1), "fingerprint": {}}
    with builder.placed(post) as placed:
        machines = {
            "engine": builder.build(placed, net, bind(placed, net, sampler), **options),
            "local": LocalEngine.build(post, net, bind(post, net, sampler), **options),
        }
        carries = {name: machine.start(np.zeros((AGENTS, dim)), None) for name, machine in machines.items()}

        def advance(name: str) -> Any:
            carries[name] = machines[name].advance(carries[name], rounds)
            return carries[name]

        # as many rounds of each: what several processes do must be the same
        sides: dict[str, Callable[[], Any]] = {name: partial(advance, name) for name in machines}
        if builder is MeshEngine:
            sides["bare"] = partial(bare(dim), rounds)
        seconds = side_by_side(sides, repeats)
        for machine in machines.values():
            machine.close()
    return {name: (found / rounds).tolist() for name, found in seconds.items()}


def work(kind, dims, repeats, address, process):
    """Measure one engine in this process; process 0 prints a line of JSON for every dimension."""
    from accord.engines.mesh.engine import MeshEngine

    def report(builder):
        for dim in dims:
            found = measure(builder, dim, repeats)
            if process == 0:
                print(_MARK + json.dumps([dim, found]), flush=True)

    if kind == "silo":
        with accord.Silo() as sites:
            report(sites)
    elif kind == "mesh, 4 devices":
        report(MeshEngine)
    else:
        from accord.engines.mesh.processes import join

        with join(address, 2, process):
            report(MeshEngine)


# devices a process
KINDS = {"mesh, 4 devices": 4, "mesh, 2 processes": 1, "silo": 1}


def start(kind, dims, repeats):
    """All lines that the process, or processes, of an engine print."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    devices = f"--xla_force_host_platform_device_count={KINDS[kind]}"
    environment = {**os.environ, "XLA_FLAGS": devices, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, __file__, "--repeats", str(repeats), "--dims", *map(str, dims)]
    command += ["--kind", kind, "--address", address, "--process"]
    count = 2 if kind == "mesh, 2 processes" else 1
    with tempfile.TemporaryFile("w+") as output:
        # not a pipe: what Ray leaves running for a moment would hold it open
        running = [subprocess.Popen([*command, str(i)], env=environment, stdout=output) for i in range(count)]
        if any([process.wait() for process in running]):
            raise SystemExit(f"the benchmark of {kind!r} failed")
        output.seek(0)
        # others print too: what a process reports is marked
        return [json.loads(line.removeprefix(_MARK)) for line in output if line.startswith(_MARK)]


def lines(small: bool) -> Iterator[Line | Skipped]:
    dims, repeats = ([10], 3) if small else ([10, 1000, 100_000], 5)
    for kind in KINDS:
        if kind == "silo" and importlib.util.find_spec("ray") is None:
            yield Skipped(kind, "No module named 'ray'")
            continue
        for dim, found in start(kind, dims, repeats):
            shape = f"ring, N={AGENTS}, {CHAINS} chains, d={dim:,}"
            for other in ("local", "bare"):
                if other in found:
                    own, beside = np.array(found["engine"]), np.array(found[other])
                    what = f"{kind}, over {'the local engine' if other == 'local' else 'a bare exchange'}"
                    note = against(float(np.median(own)), float(np.median(beside)))
                    yield Line(what, shape, Ratio.of(own / beside), None, note)


def main() -> None:
    """One of the processes of an engine."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--dims", type=int, nargs="+", choices=list(ROUNDS))
    parser.add_argument("--kind")
    parser.add_argument("--address")
    parser.add_argument("--process", type=int)
    arguments = parser.parse_args()
    work(arguments.kind, arguments.dims, arguments.repeats, arguments.address, arguments.process)


if __name__ == "__main__":
    main()
