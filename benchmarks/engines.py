"""Rounds per second of the engines, and what each costs over the local one: DE-SGLD of four agents on a ring.

Prints a table. Every engine runs in a process of its own, one after another, with the local engine beside it in turn;
the overhead is of the medians in that process. "mesh, 4 devices" are four virtual ones of this machine's processor.
"bare exchange" is the least that a round on a mesh can cost: a loop that does nothing but pass as many numbers on to
the next device. Processes that wait for each other sleep, and a sleeping processor of a virtual machine wakes slowly:
what two processes take depends on what else keeps it awake.
Ray listens beyond loopback unless told not to; where that matters run it where nothing else is:

    unshare -n sh -c 'ip link set lo up; exec "$@"' _ python benchmarks/engines.py
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

AGENTS, CHAINS = 4, 4
_MARK = "measured "
# rounds timed at once
ROUNDS = {10: 1000, 100: 1000, 1_000: 500, 100_000: 20}


def posterior(dim):
    import jax.numpy as jnp

    import accord

    def log_likelihood(x, rows):
        return -jnp.sum((rows - x[None]) ** 2, axis=1) / 2.0

    def log_prior(x):
        return jnp.zeros(())

    rows = np.random.default_rng(0).standard_normal((AGENTS, 1, dim))
    return accord.Posterior(log_likelihood, log_prior, list(rows), np.zeros(dim))


def bare(dim):
    """A function of a number of rounds, in each of which every device passes its agents' numbers on to the next."""
    import jax
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


def measure(builder, dim, repeats):
    """Median seconds of a round of an engine, of the local one beside it, and of a mesh's bare exchange."""
    import jax

    import accord
    from accord.engines.agreement import bind
    from accord.engines.local import LocalEngine
    from accord.engines.mesh.engine import MeshEngine

    post, net, sampler = posterior(dim), accord.Network.ring(AGENTS), accord.samplers.DESGLD(0.05)
    rounds, seconds = ROUNDS[dim], {"engine": [], "local": [], "bare": []}
    shift = bare(dim) if builder is MeshEngine else None
    with builder.placed(post) as placed:
        machines = {
            "engine": builder.build(
                placed, net, bind(placed, net, sampler), chains=CHAINS, seed=0, keep=np.arange(1), fingerprint={}
            ),
            "local": LocalEngine.build(
                post, net, bind(post, net, sampler), chains=CHAINS, seed=0, keep=np.arange(1), fingerprint={}
            ),
        }
        carries = {name: machine.start(np.zeros((AGENTS, dim)), None) for name, machine in machines.items()}
        for repeat in range(repeats + 1):
            for name, machine in machines.items():
                start = time.perf_counter()
                carries[name] = jax.block_until_ready(machine.advance(carries[name], rounds))
                if repeat > 0:  # the first compiles
                    seconds[name].append((time.perf_counter() - start) / rounds)
            if shift is not None:
                start = time.perf_counter()
                shift(rounds)
                if repeat > 0:
                    seconds["bare"].append((time.perf_counter() - start) / rounds)
        for machine in machines.values():
            machine.close()
    return {name: statistics.median(values) for name, values in seconds.items() if values}


def work(kind, dims, repeats, address, process):
    """Measure one engine in this process; process 0 prints a line of JSON for every dimension."""
    import accord
    from accord.engines.local import LocalEngine
    from accord.engines.mesh.engine import MeshEngine

    def report(builder):
        for dim in dims:
            found = measure(builder, dim, repeats)
            if process == 0:
                print(_MARK + json.dumps([dim, found]), flush=True)

    if kind == "local":
        report(LocalEngine)
    elif kind == "silo":
        with accord.Silo() as sites:
            report(sites)
    elif kind == "mesh, 4 devices":
        report(MeshEngine)
    else:
        from accord.engines.mesh.processes import join

        with join(address, 2, process):
            report(MeshEngine)


# devices a process
KINDS = {"local": 1, "mesh, 4 devices": 4, "mesh, 2 processes": 1, "silo": 1}


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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--dims", type=int, nargs="+", default=list(ROUNDS), choices=list(ROUNDS))
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--kind", help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    parser.add_argument("--process", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.kind is not None:
        work(arguments.kind, arguments.dims, arguments.repeats, arguments.address, arguments.process)
        return
    print(f"{'engine':<20} {'dim':>7} {'us a round':>12} {'rounds/s':>10} {'beside local':>14} {'bare exchange':>16}")
    for kind in arguments.kinds:
        for dim, found in start(kind, arguments.dims, arguments.repeats):
            engine, local = found["engine"], found["local"]
            overhead = f"{1e6 * (engine - local):+.0f} us"
            least = f"{1e6 * found['bare']:.0f} us" if "bare" in found else "-"
            line = f"{kind:<20} {dim:>7,} {1e6 * engine:>12.1f} {1 / engine:>10,.0f} {overhead:>14} {least:>16}"
            print(line, flush=True)


if __name__ == "__main__":
    main()
