"""A hundred kills: runs that are killed at random moments and taken up again draw what they would have drawn.

Prints a table: for each engine and method how many kills there were, how many of them came after the run had gone on
from where the kill before had left it, how many runs that were, and how far their draws are from those of a run that
nobody disturbed. `--kills 0.1` is a tenth of it.
"""

import argparse
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from lossy_link import PRIVATE
from several import HERE, environment
from tables import walk


class Case(NamedTuple):
    """Runs of a method, and what is killed of them.

    Parameters
    ----------
    engine, method
        As in `mesh_worker`.
    draws
        Of a run, which with them takes some seconds.
    kills
        How many.
    processes
        Of a run.
    agents
        Whether an agent's process is killed, which comes back by itself, and not one of the run's own.
    """

    engine: str
    method: str
    draws: int
    kills: int
    processes: int = 1
    agents: bool = False

    @property
    def name(self):
        """What the table calls it."""
        return f"{self.engine}, {self.processes} processes" if self.processes > 1 else self.engine

    @property
    def victim(self):
        """What is killed."""
        return "an agent" if self.agents else "a process" if self.processes > 1 else "the run"


CASES = [
    Case("local", "ring/GTDULA", 6000, 15),
    Case("local", "ring/Gibbs-rejection", 4000, 15),
    Case("local", "sums", 400, 15),
    Case("mesh", "ring/DESGLD", 4000, 15),
    Case("mesh", "ring/Gibbs", 300, 15, processes=2),
    Case("silo", "three/GTDULA", 1000, 10),
    Case("silo", "three/Gibbs", 500, 15, agents=True),
]
# Rounds between two checkpoints.
EVERY = 20


# --- a run, in a process of its own ---


def draw(case, folder):
    """The run of a case, from its newest checkpoint if there is one."""
    import accord
    from accord.engines import recorded_totals

    options = {"engine": case.engine, "checkpoint": folder, "checkpoint_every": EVERY, "progress": False, "seed": 7}
    if case.method == "sums":
        import killed

        # each sum is written at once
        recorded_totals._SECONDS = 0.0
        return accord.sample(killed.many_parameters(40, 25), accord.Network.ring(4), draws=case.draws, **options)
    import mesh_worker

    post, network, method = mesh_worker.problem(case.method)
    return walk(post, network, accord.Rounds(method, burn_in=100, thin=2), draws=case.draws, chains=2, **options)


def run(place, folder, out, port, process):
    """What a process of a run does."""
    from accord.engines.processes import join

    case = CASES[place]
    if case.processes == 1:
        found = draw(case, folder)
    else:
        with join(f"127.0.0.1:{port}", case.processes, process):
            found = draw(case, folder)
    if process == 0:
        np.savez(out, draws=found.draws, average=found.average)


# --- what kills it ---


class Running:
    """The processes of a run, until they end."""

    def __init__(self, place, folder, log):
        self.case, self.out = CASES[place], folder / "out.npz"
        port = random.randrange(20000, 30000)
        words = [sys.executable, __file__, "--run", str(place), "--folder", str(folder), "--port", str(port)]
        kept = {"JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
        self.processes = [
            subprocess.Popen(
                [*words, "--process", str(i)], env={**environment(2), **kept}, stdout=log, stderr=log
            )
            for i in range(self.case.processes)
        ]  # fmt: skip

    def wait(self, seconds):
        """Whether all have ended within so many seconds."""
        ends = time.monotonic() + seconds
        while any(one.poll() is None for one in self.processes):
            if time.monotonic() > ends:
                return False
            time.sleep(0.02)
        return True

    def kill(self, chance):
        """Kill one of them, or of its agents, at once, and the others of the run within a second."""
        if self.case.agents:
            import silo_chaos

            agents = silo_chaos.agents_below(os.getpid())
            if agents:
                os.kill(chance.choice(agents), signal.SIGKILL)
            return bool(agents)
        chance.choice(self.processes).kill()
        if len(self.processes) > 1:
            time.sleep(chance.random())
        for one in self.processes:
            one.kill()
            one.wait()
        # one may have ended by itself a moment before
        return any(one.returncode == -signal.SIGKILL for one in self.processes)

    def has_ended_well(self):
        """Whether its draws are there."""
        return all(one.returncode == 0 for one in self.processes) and self.out.is_file()


def newest(folder):
    """The newest round or sum that is kept."""
    rounds = [path.stem.rpartition("-")[2] for path in folder.glob("**/*.npz")]
    return max((int(one) for one in rounds if one.isdigit()), default=-1)


def disturbed(place, folder, log, chance, seconds, kills):
    """A run that is killed at random moments, at most so often; how often it was, and how often it had gone on."""
    count, went_on, running, before = 0, 0, Running(place, folder, log), -1
    while not running.wait(chance.uniform(0.0, seconds) if count < kills else 600.0):
        if count == kills:
            raise SystemExit(f"{CASES[place]} does not end, see {log.name}")
        if not running.kill(chance):
            continue
        count += 1
        went_on, before = went_on + (newest(folder) > before), newest(folder)
        if not running.case.agents:
            running = Running(place, folder, log)
    if not running.has_ended_well():
        raise SystemExit(f"{CASES[place]} has failed, see {log.name}")
    return count, went_on


def difference(found, expected):
    """The largest difference of two arrays, infinite where there are more of one."""
    return float(np.abs(found - expected).max()) if found.shape == expected.shape else np.inf


def largest(*numbers):
    """The largest, or NaN where one is."""
    return float(np.max(numbers))


def row(place, folder, chance, part):
    """A row of the table."""
    case, kills, went_on, runs, apart = CASES[place], 0, 0, 0, 0.0
    due = max(1, round(case.kills * part))
    with open(folder / "log", "a") as log:
        # the second time its programs are compiled, as they are for those that are killed
        for calm in (folder / "compiling", folder / "calm"):
            began = time.monotonic()
            calm.mkdir()
            disturbed(place, calm, log, chance, 0.0, 0)
            seconds = time.monotonic() - began
        with np.load(folder / "calm" / "out.npz") as kept:
            expected = dict(kept)
        while kills < due:
            own = folder / str(runs)
            own.mkdir()
            # an agent that comes back costs the run less than one that begins anew
            longest = seconds / 2 if case.agents else seconds
            count, further = disturbed(place, own, log, chance, longest, due - kills)
            with np.load(own / "out.npz") as kept:
                apart = largest(apart, *(difference(kept[name], expected[name]) for name in expected))
            kills, went_on, runs = kills + count, went_on + further, runs + 1
    return kills, (case.name, case.method, case.victim, kills, went_on, runs, f"{apart:.1e}", f"{seconds:.0f}"), apart


HEADER = ("engine", "method", "killed", "kills", "went on", "runs", "apart", "seconds undisturbed")


def begin_ray():
    """A cluster that outlives the drivers, whose agents are below this process."""
    import ray

    ray.init(include_dashboard=False, _node_ip_address="127.0.0.1", log_to_driver=False, logging_level="ERROR")
    os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=float, default=1.0, help="the part of the hundred that is wanted")
    parser.add_argument("--only", default="", help="the engine, if one only")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--folder", type=Path, help="where everything is kept; a temporary folder by default")
    for hidden in ("--run", "--port", "--process"):
        parser.add_argument(hidden, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run is not None:
        run(arguments.run, arguments.folder / "kept", arguments.folder / "out.npz", arguments.port, arguments.process)
        return
    if not arguments.inside:
        # agents import what the runs give them
        path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH", "")]))
        own = {"PYTHONPATH": path, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token"}
        own["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        command = [*PRIVATE, "sh", "-c", 'ip link set lo up; exec "$@"', "_", sys.executable, __file__, "--inside"]
        raise SystemExit(subprocess.run([*command, *sys.argv[1:]], env={**os.environ, **own}).returncode)
    seed = secrets.randbelow(2**31) if arguments.seed is None else arguments.seed
    print("seed", seed)
    chance, total, worst = random.Random(seed), 0, 0.0
    line = "{:<18}{:<22}{:<11}{:>6}{:>9}{:>6}{:>9}{:>21}"
    print(line.format(*HEADER), flush=True)
    with tempfile.TemporaryDirectory(prefix="kills-", ignore_cleanup_errors=True) as temporary:
        folder = arguments.folder or Path(temporary)
        for place, case in enumerate(CASES):
            if not case.engine.startswith(arguments.only):
                continue
            if case.engine == "silo" and "RAY_ADDRESS" not in os.environ:
                begin_ray()
            (folder / str(place)).mkdir(parents=True)
            kills, found, apart = row(place, folder / str(place), chance, arguments.kills)
            total, worst = total + kills, largest(worst, apart)
            print(line.format(*found), flush=True)
    print(f"{total} kills; draws are at most {worst:.1e} from those of runs that nobody disturbed")
    if worst != 0.0:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
