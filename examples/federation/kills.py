"""A federation whose processes are killed one after another, and whose draws still equal the draws of one process.

The script prints a table with each kill and its outcome, and with the result of a search for a site's rows in all
files.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
from run import HERE, Federation, drawn_here

import accord
from accord.flower import StudyDocument, audit

# A number that occurs once in a site's file and must occur in no other file.
CANARY = "57.31337"


def lines_of(federation: Federation, site: str, kind: str) -> int:
    with suppress(FileNotFoundError):
        return sum(line.get("kind") == kind for line in audit.read(federation.folder / site / "kept"))
    return 0


def wait_for(federation: Federation, site: str, kind: str, more: int) -> None:
    """Wait until a site has answered `more` further questions of a kind."""
    due, ends = lines_of(federation, site, kind) + more, time.monotonic() + 600.0
    while lines_of(federation, site, kind) < due:
        if time.monotonic() > ends:
            raise SystemExit(f"{site} has not answered {more} more {kind}, see the logs in {federation.folder}")
        time.sleep(0.2)


def kill_server_app(federation: Federation) -> None:
    """Kill the process of the ServerApp, a child of the SuperLink."""
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            words = (entry / "cmdline").read_bytes()
            if b"flwr-serverapp" in words and os.getpgid(int(entry.name)) == federation.processes["superlink"].pid:
                os.kill(int(entry.name), signal.SIGKILL)


def run_in_thread(federation: Federation) -> tuple[threading.Thread, list[str]]:
    output: list[str] = []

    def run() -> None:
        try:
            output.append(federation.run())
        except RuntimeError as error:
            output.append(str(error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, output


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path)
    folder = parser.parse_args().folder or Path(tempfile.mkdtemp(prefix="accord-kills-"))
    folder.mkdir(parents=True, exist_ok=True)
    study = StudyDocument.read(HERE / "study.toml")
    rows: list[tuple[str, str]] = []
    with ExitStack() as stack:
        # without TLS, so that messages are readable
        federation = Federation(folder, study, tls=False)
        stack.callback(federation.close)
        data = folder / study.sites[0] / "rows.csv"
        lines = data.read_text().splitlines()
        data.write_text("\n".join([lines[0], f"{CANARY}{lines[1][lines[1].index(',') :]}", *lines[2:]]) + "\n")
        federation.start_superlink()
        federation.register()
        for site in study.sites:
            federation.start_supernode(site)
        second = study.sites[1]

        thread, _ = run_in_thread(federation)
        wait_for(federation, second, "meet", 3)
        federation.kill(second)
        time.sleep(5.0)
        federation.start_supernode(second)
        wait_for(federation, second, "meet", 1)
        rows.append((f"SuperNode of {second}, while sites agree", "the same run continued after its restart"))

        wait_for(federation, second, "sum", 4)
        kill_server_app(federation)
        thread.join(timeout=120)
        rows.append(("ServerApp, after 4 sums", "the run ended; restarted below"))
        sums = lines_of(federation, second, "sum")

        thread, _ = run_in_thread(federation)
        wait_for(federation, second, "sum", 2)
        federation.kill("superlink")
        thread.join(timeout=120)
        federation.start_superlink()
        rows.append(("SuperLink, in the second run", "restarted with its database"))

        federation.run()
        again = lines_of(federation, second, "sum") - sums
        run = accord.Run.load(folder / "results" / "run.nc")
        apart = float(np.abs(run.draws - drawn_here(folder, study)).max())
        rows.append(("all of these", f"{run.traffic.sums} sums, {sums} + {again} requests; draws {apart:.1e} apart"))
    # the SuperLink's database has all messages uncompressed
    looked = [path for path in folder.rglob("*") if path.is_file() and path != data]
    found = [str(path) for path in looked if CANARY.encode() in path.read_bytes()]
    packed = np.float64(CANARY).tobytes()
    found += [str(path) for path in looked if packed in path.read_bytes()]
    rows.append((f"{len(looked)} files, database and logs, for a cell", f"found in {found or 'none'}"))
    assert CANARY.encode() in data.read_bytes()
    width = max(len(what) for what, _ in rows)
    for what, came in rows:
        print(f"{what:<{width}}  {came}")
    if found or apart > 1e-9:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
