"""Round times of the mesh and silo engines relative to the local engine: DE-SGLD of four agents on a ring.

Every engine runs in its own process, in turns with the local engine. "mesh, 4 devices" are four virtual devices of this
machine's processor. Ray listens on all network interfaces. To restrict it to loopback:

    unshare -n sh -c 'ip link set lo up; exec "$@"' _ python benchmarks/bench.py --only engines
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import numpy as np
import problems
from measured import Line, Ratio, Skipped, against, in_process, report, side_by_side

import accord
from accord.engines.consensus_mode import bind
from accord.engines.local import LocalEngine
from accord.engines.mesh.engine import MeshEngine

AGENTS, CHAINS = 4, 4
# rounds of one timing, by dimension
ROUNDS = {10: 1000, 1_000: 500, 100_000: 20}
# number of devices in the process, by engine
DEVICES = {"mesh, 4 devices": 4, "silo": 1}


def lines(small: bool) -> Iterator[Line | Skipped]:
    dims, repeats = ([10], 3) if small else (list(ROUNDS), 5)
    for kind, devices in DEVICES.items():
        flags = f"--xla_force_host_platform_device_count={devices}"
        arguments = kind, str(repeats), *map(str, dims)
        try:
            found = in_process(__file__, *arguments, XLA_FLAGS=flags, JAX_PLATFORMS="cpu")
        except ChildProcessError as error:
            yield Skipped(kind, str(error))
            continue
        for dim, seconds in found:
            own = np.array(seconds.pop("engine"))
            for name, other in seconds.items():
                note = against(float(np.median(own)), float(np.median(other)))
                shape = f"ring, N={AGENTS}, {CHAINS} chains, d={dim:,}"
                yield Line(f"{kind}, over {name}", shape, Ratio.of(own / np.array(other)), note)


def measure(builder: Any, dim: int, repeats: int) -> dict[str, list[float]]:
    """Seconds of a round of an engine, of the local engine and, for a mesh, of a bare exchange, (repeat,)."""
    post, net = problems.spheres(AGENTS, dim), accord.Network.ring(AGENTS)
    method, options = bind(post, net, accord.samplers.DESGLD(0.05)), {"chains": CHAINS, "seed": 0}
    options |= {"keep": np.arange(1), "fingerprint": {}}
    with builder.placed(post) as placed:
        machines = {
            "engine": builder.build(placed, net, method, **options),
            "the local engine": LocalEngine.build(post, net, method, **options),
        }
        carries = {name: machine.start(np.zeros((AGENTS, dim)), None) for name, machine in machines.items()}

        def advance(name: str) -> Any:
            carries[name] = machines[name].advance(carries[name], ROUNDS[dim])
            return carries[name]

        sides: dict[str, Callable[[], Any]] = {name: partial(advance, name) for name in machines}
        if builder is MeshEngine:
            sides["a bare exchange"] = partial(bare(dim), ROUNDS[dim])
        seconds = side_by_side(sides, repeats)
        for machine in machines.values():
            machine.close()
    return {name: (found / ROUNDS[dim]).tolist() for name, found in seconds.items()}


def bare(dim: int) -> Callable[[int], Any]:
    """A function that runs rounds of communication only: each device sends its agents' arrays to the next device."""
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    devices = jax.devices()
    mesh = Mesh(np.array(devices), ("device",))
    route = [(place, (place + 1) % len(devices)) for place in range(len(devices))]
    rows = jax.device_put(np.ones((AGENTS, dim * CHAINS)), NamedSharding(mesh, P("device")))

    def shifts(x, rounds):
        return jax.lax.fori_loop(0, rounds, lambda _, x: jax.lax.ppermute(x, "device", route), x)

    return partial(jax.jit(jax.shard_map(shifts, mesh=mesh, in_specs=(P("device"), P()), out_specs=P("device"))), rows)


def main() -> None:
    """Measure one engine in this process."""
    kind, repeats, *dims = sys.argv[1:]

    def each(builder: Any) -> None:
        for dim in map(int, dims):
            report([dim, measure(builder, dim, int(repeats))])

    if kind == "silo":
        with accord.Silo() as sites:
            each(sites)
    else:
        each(MeshEngine)


if __name__ == "__main__":
    main()
