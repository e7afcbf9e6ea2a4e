"""A hundred kills: runs that are killed at random times and resumed have the draws of an uninterrupted run.

Prints a table with one row per engine and method: the number of kills, the number of kills after progress since the
previous one, the number of runs, and the largest difference between their draws and an uninterrupted run. With
`--kills 0.1` there are a tenth of the kills.
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
    """Killed runs of a method.

    Parameters
    ----------
    engine, method
        As in `mesh_worker`.
    draws
        Draws of a run, for a few seconds.
    kills
        Number of kills.
    processes
        Processes of a run.
    agents
        Whether to kill an agent's process, which restarts by itself, instead of a process of the run.
    """

    engine: str
    method: str
    draws: int
    kills: int
    processes: int = 1
    agents: bool = False

    @property
    def name(self):
        """The name in the table."""
        return f"{self.engine}, {self.processes} processes" if self.processes > 1 else self.engine

    @property
    def victim(self):
        """The kind of the killed process."""
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


# --- a run in its own process ---


def draw(case, folder):
    """The run of a case, resumed if there is a checkpoint."""
    import accord
    from accord.engines import recorded_totals

    options = {"engine": case.engine, "checkpoint": folder, "progress": False, "seed": 7}
    if case.method == "sums":
        import killed

        # write each sum at once
        recorded_totals._SECONDS = 0.0
        return accord.sample(killed.many_parameters(40, 25), accord.Network.ring(4), draws=case.draws, **options)
    import mesh_worker

    post, network, method = mesh_worker.problem(case.method)
    options |= {"checkpoint_every": EVERY}
    return walk(post, network, accord.Rounds(method, burn_in=100, thin=2), draws=case.draws, chains=2, **options)


def run(place, folder, out, port, process):
    """Run a process of a case."""
    from accord.engines.processes import join

    case = CASES[place]
    if case.processes == 1:
        found = draw(case, folder)
    else:
        with join(f"127.0.0.1:{port}", case.processes, process):
            found = draw(case, folder)
    if process == 0:
        np.savez(out, draws=found.draws, average=found.average)


# --- kills ---


class Running:
    """The processes of a run."""

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
        """Wait at most `seconds`. Returns whether all processes ended."""
        ends = time.monotonic() + seconds
        while any(one.poll() is None for one in self.processes):
            if time.monotonic() > ends:
                return False
            time.sleep(0.02)
        return True

    def kill(self, chance):
        """Kill a random process or agent, and then the other processes of the run within a second. Returns success."""
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
        # a process may have ended by itself before
        return any(one.returncode == -signal.SIGKILL for one in self.processes)

    def has_ended_well(self):
        """Whether the run ended with draws."""
        return all(one.returncode == 0 for one in self.processes) and self.out.is_file()


def newest(folder):
    """The newest stored round or sum, -1 without any."""
    rounds = [path.stem.rpartition("-")[2] for path in folder.glob("**/*.npz")]
    return max((int(one) for one in rounds if one.isdigit()), default=-1)


def disturbed(place, folder, log, chance, seconds, kills):
    """Kill a run at random times and resume it. Returns the numbers of kills and of kills after progress."""
    count, ahead, running, before = 0, 0, Running(place, folder, log), -1
    while not running.wait(chance.uniform(0.0, seconds) if count < kills else 600.0):
        if count == kills:
            raise SystemExit(f"{CASES[place]} does not end, see {log.name}")
        if not running.kill(chance):
            continue
        count += 1
        ahead, before = ahead + (newest(folder) > before), newest(folder)
        if not running.case.agents:
            running = Running(place, folder, log)
    if not running.has_ended_well():
        raise SystemExit(f"{CASES[place]} has failed, see {log.name}")
    return count, ahead


def difference(found, expected):
    """The largest difference of two arrays, infinite for different shapes."""
    return float(np.abs(found - expected).max()) if found.shape == expected.shape else np.inf


def largest(*numbers):
    """The largest number, NaN if there is a NaN."""
    return float(np.max(numbers))


def row(place, folder, chance, part):
    """A row of the table."""
    case, kills, ahead, runs, apart = CASES[place], 0, 0, 0, 0.0
    due = max(1, round(case.kills * part))
    with open(folder / "log", "a") as log:
        # the second run finds compiled programs, as killed runs do
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
            # a restarting agent costs less time than a restarting run
            longest = seconds / 2 if case.agents else seconds
            count, further = disturbed(place, own, log, chance, longest, due - kills)
            with np.load(own / "out.npz") as kept:
                apart = largest(apart, *(difference(kept[name], expected[name]) for name in expected))
            kills, ahead, runs = kills + count, ahead + further, runs + 1
    return kills, (case.name, case.method, case.victim, kills, ahead, runs, f"{apart:.1e}", f"{seconds:.0f}"), apart


HEADER = ("engine", "method", "killed", "kills", "progress", "runs", "apart", "uninterrupted (s)")


def begin_ray():
    """Start a Ray cluster that outlives the drivers, with agents as descendants of this process."""
    import ray

    ray.init(include_dashboard=False, _node_ip_address="127.0.0.1", log_to_driver=False, logging_level="ERROR")
    os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=float, default=1.0, help="fraction of the hundred kills")
    parser.add_argument("--only", default="", help="only this engine")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--folder", type=Path, help="folder of all files, by default a temporary one")
    for hidden in ("--run", "--port", "--process"):
        parser.add_argument(hidden, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run is not None:
        run(arguments.run, arguments.folder / "kept", arguments.folder / "out.npz", arguments.port, arguments.process)
        return
    if not arguments.inside:
        # agents import modules of the tests
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
    print(f"{total} kills, draws are at most {worst:.1e} from uninterrupted runs")
    if worst != 0.0:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
