"""Studies of sites in two networks with a slow link that loses packets have the draws of one process.

The link has a delay of 100 ms and loses 5% of the packets in each direction. `two_networks.py silo` runs three agents,
one here and two at the far end. `cut` also cuts the link for 90 seconds. `rejoin` does so with Ray's default settings,
under which Ray drops the node and the node joins again. `flower` runs a federation with the server here and the sites
at the far end. Each study ends with an error if draws differ.
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
# Ray's settings for unreliable networks, as in docs/silo.md.
PATIENT = {"RAY_health_check_failure_threshold": "60", "RAY_gcs_rpc_server_reconnect_timeout_s": "600"}
# Shell loop that restarts a command.
AGAIN = 'while true; do "$@"; sleep 1; done'
# Tolerance of draws, for the order of sums in double precision.
APART = 1e-9


def draw(engine, draws):
    """A run on a ring of three, with ten rounds per draw."""
    import silo_chaos

    import accord

    rng = np.random.default_rng(3)
    shards = [rng.standard_normal((2 + agent, 50)) for agent in range(3)]
    post = accord.Posterior(silo_chaos.log_likelihood, silo_chaos.log_prior, shards, np.zeros(50))
    sampler = accord.samplers.GTDULA(0.005, 0.2, 0.15)
    return accord.sample(
        post,
        accord.Network.ring(3),
        accord.Rounds(sampler, burn_in=100, thin=10),
        draws=draws,
        chains=2,
        seed=5,
        engine=engine,
    )


@contextlib.contextmanager
def cluster(link, folder, settings):
    """A context with the arguments of a `Silo` on Ray's head here and a node at the far end.

    Both restart if they end. `settings` are environment variables of Ray.
    """
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
        command = ["sh", "-c", AGAIN, "_", *there, str(Path(sys.executable).parent / "ray"), "start", *words, *common]
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
        # their subprocesses end with the namespace
        for one in nodes:
            one.kill()
            one.wait()


def compare(found, expected, link):
    apart = float(np.abs(found - expected).max())
    sent, lost = link.counts()
    print(f"{sent} packets, {lost} of them lost, draws are {apart:.1e} from one process")
    if not apart <= APART:
        raise SystemExit("draws differ from one process")


def silo(link, folder, draws=20, settings=PATIENT):
    """A run of three agents over the link."""
    import accord

    with cluster(link, folder, settings) as places, accord.Silo(**places, start_timeout=240.0) as sites:
        began = time.monotonic()
        found = draw(sites, draws)
        print(f"{100 + 10 * draws} rounds in {time.monotonic() - began:.0f} s, restarts {sites.restarts}")
    compare(found.draws, draw("local", draws).draws, link)


def cut(link, folder, settings=PATIENT, seconds=90.0):
    """A run of three agents, with the link cut in the middle."""
    import ray

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
        print(f"the link is back, {sum(one['Alive'] for one in ray.nodes())} of 2 nodes count as alive", flush=True)

    SiloEngine.record = recorded
    silo(link, folder, 40, settings)


def rejoin(link, folder):
    """The same with Ray's default settings, under which Ray drops the node."""
    cut(link, folder, {})


def flower(link, folder):
    """A federation with the server here and the sites at the far end, with TLS."""
    # an example outside of packages
    sys.path.insert(0, str(HERE.parent / "examples" / "federation"))
    import run

    import accord

    study = run.study_of(exact=True)
    with contextlib.closing(run.Federation(folder, study, host=NEAR, there=link.there)) as federation:
        federation.start_superlink()
        federation.register()
        for site in study.sites:
            federation.start_supernode(site)
        began = time.monotonic()
        (folder / "run.log").write_text(federation.run())
    found = accord.Run.load(folder / "results" / "run.nc")
    print(f"{found.traffic.sums} sums in {time.monotonic() - began:.0f} s")
    compare(found.draws, run.drawn_here(folder, study), link)


STUDIES = {"silo": silo, "cut": cut, "rejoin": rejoin, "flower": flower}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", choices=list(STUDIES))
    parser.add_argument("--folder", type=Path, help="folder of logs, by default a temporary one")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not arguments.inside:
        environment = {
            **os.environ, "JAX_ENABLE_X64": "1", "JAX_PLATFORMS": "cpu", "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32),
            # agents import modules of the tests
            "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH", "")])),
        }  # fmt: skip
        command = [*PRIVATE, sys.executable, __file__, "--inside", *sys.argv[1:]]
        raise SystemExit(subprocess.run(command, env=environment).returncode)
    link = Link()
    with tempfile.TemporaryDirectory(prefix="two-", ignore_cleanup_errors=True) as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        STUDIES[arguments.study](link, folder)
    link.close()


if __name__ == "__main__":
    main()
