"""Studies of sites in two networks with a slow link between them, which loses packets: draws are those of one process.

The link takes 100 ms and loses 5% of the packets, in each direction. `two_networks.py silo` is three agents, one here
and two there; `cut` is the same with the link cut for 90 seconds in the middle, and `rejoin` with Ray as it is by
itself, which gives up a node that is away so long, and a node that joins again; `flower` is a federation whose server
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
# Ray's settings for networks that are away at times, as docs/silo.md has them.
PATIENT = {"RAY_health_check_failure_threshold": "60", "RAY_gcs_rpc_server_reconnect_timeout_s": "600"}
AGAIN = 'while true; do "$@"; sleep 1; done'
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
    """Ray's head here and a node there, with folders of their own; the arguments of a silo on them.

    Either is begun again where it ends. `settings` are variables that Ray reads.
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
    """The same, where Ray gives up the node."""
    cut(link, folder, {})


def flower(link, folder):
    """A federation whose server is here and whose sites are there, with TLS."""
    # an example, and no package
    sys.path.insert(0, str(HERE.parent / "examples" / "federation"))
    import run

    import accord
    from accord.flower import StudyDocument

    study = StudyDocument.read(run.HERE / "study.toml")
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
        STUDIES[arguments.study](link, folder)
    link.close()


if __name__ == "__main__":
    main()
