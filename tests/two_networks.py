"""Studies of sites in two networks with a slow link between them that loses packets: they draw what one process draws.

`two_networks.py silo` is three agents, one here and two there, over a link that loses 5% of the packets and takes 100 ms
in each direction; `cut` is the same with the link cut for 90 seconds in the middle; `flower` is a federation whose server
is here and whose sites are there. Each ends with an error where draws are others.
"""

import argparse
import contextlib
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from lossy_link import FAR, NEAR, PRIVATE, Link
from several import HERE

PORT = 6379
# Draws of engines differ by the order of their sums, in double precision.
APART = 1e-9


def draw(engine, draws):
    """Ten rounds for each draw, on a ring of three."""
    import silo_chaos

    import accord

    rng = np.random.default_rng(3)
    shards = [rng.standard_normal((2 + agent, 50)) for agent in range(3)]
    post = accord.Posterior(silo_chaos.log_likelihood, silo_chaos.log_prior, shards, np.zeros(50))
    sampler = accord.samplers.GTDULA(0.005, 0.2, 0.15)
    return accord.sample(
        post, accord.Network.ring(3), sampler, draws=draws, burn_in=100, thin=10, chains=2, seed=5, engine=engine
    )


@contextlib.contextmanager
def cluster(link, folder, settings):
    """Ray's head here and a node there, with folders of their own; the arguments of a silo on them."""
    common = ["--block", "--num-cpus=1", "--object-store-memory=100000000"]
    head = ["--head", f"--port={PORT}", f"--node-ip-address={NEAR}", "--include-dashboard=false"]
    node = [f"--address={NEAR}:{PORT}", f"--node-ip-address={FAR}"]
    nodes = []
    for name, there, words, resources in (
        ("near", [], head, '{"near": 1}'),
        ("far", link.there, node, '{"far": 2}'),
    ):
        own = folder / name
        own.mkdir()
        environment = {**os.environ, "TMPDIR": str(own), **settings}
        command = [*there, str(Path(sys.executable).parent / "ray"), "start", *words, *common]
        with open(folder / f"{name}.log", "w") as log:
            nodes.append(
                subprocess.Popen(
                    [*command, f"--temp-dir={own}", f"--resources={resources}"],
                    env=environment, stdout=log, stderr=log,
                )
            )  # fmt: skip
        time.sleep(5.0)
    try:
        yield {"address": f"{NEAR}:{PORT}", "resources": [{"near": 1}, {"far": 1}, {"far": 1}]}
    finally:
        import ray

        ray.shutdown()
        # what they have begun ends with the network
        for one in nodes:
            one.kill()
            one.wait()


def compare(found, expected, link):
    apart = float(np.abs(found - expected).max())
    sent, lost = link.counts()
    print(f"{sent} packets, {lost} of them lost; draws are {apart:.1e} from those of one process")
    if not apart <= APART:
        raise SystemExit("draws are not those of one process")


def silo(link, folder, draws=20):
    """A run of three agents over the link."""
    import accord

    with cluster(link, folder, {}) as places, accord.Silo(**places, start_timeout=240.0) as sites:
        began = time.monotonic()
        found = draw(sites, draws)
        print(f"{100 + 10 * draws} rounds in {time.monotonic() - began:.0f} s, restarts {sites.restarts}")
    compare(found.draws, draw("local", draws).draws, link)


def cut(link, folder, seconds=90.0, draws=60):
    """A run of three agents, with the link cut in the middle."""
    from accord.engines.silo.engine import SiloEngine

    record, begun = SiloEngine.record, []

    def recorded(self, *arguments):
        if not begun:
            begun.append(time.monotonic())
            threading.Thread(target=interrupt, daemon=True).start()
        return record(self, *arguments)

    def interrupt():
        time.sleep(2.0)
        link.cut()
        print(f"the link is cut for {seconds:g} s", flush=True)
        time.sleep(seconds)
        link.mend()
        print("the link is back", flush=True)

    SiloEngine.record = recorded
    silo(link, folder, draws)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", choices=["silo", "cut"])
    parser.add_argument("--folder", type=Path, help="where logs are kept; a temporary folder by default")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not arguments.inside:
        environment = {
            **os.environ, "JAX_ENABLE_X64": "1", "JAX_PLATFORMS": "cpu", "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32),
            # agents import what the study gives them
            "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH", "")])),
        }  # fmt: skip
        command = [*PRIVATE, sys.executable, __file__, "--inside", *sys.argv[1:]]
        raise SystemExit(subprocess.run(command, env=environment).returncode)
    link = Link()
    with tempfile.TemporaryDirectory(prefix="two-", ignore_cleanup_errors=True) as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        {"silo": silo, "cut": cut}[arguments.study](link, folder)
    link.close()


if __name__ == "__main__":
    main()
