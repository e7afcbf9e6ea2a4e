"""A federation whose processes are killed one after another, and whose draws still equal the draws of one process.

The script prints a table with each kill and its outcome, with a check that no site made two entries of one step, and
with the result of a search for a site's rows in all files.
"""

from __future__ import annotations

import argparse
import base64
import os
import signal
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
from run import Federation, drawn_here, run_of, study_of

import accord
from accord.federation import EntryFolder, audit

# A number that occurs once in a site's file and must occur in no other file.
CANARY = "57.31337"


def step_of(federation: Federation, site: str) -> int:
    """The last step of which a site has made its entry."""
    with suppress(FileNotFoundError):
        return max((line.get("step", -1) for line in audit.read(federation.folder / site / "kept")), default=-1)
    return -1


def wait_for(federation: Federation, site: str, step: int) -> None:
    """Wait until a site has made its entry of a step."""
    ends = time.monotonic() + 900.0
    while step_of(federation, site) < step:
        if time.monotonic() > ends:
            raise SystemExit(f"{site} has made no entry of step {step}, see the logs in {federation.folder}")
        time.sleep(0.2)


def made_twice(federation: Federation) -> list[str]:
    """The entries that differ from an earlier entry of their site and step, in audit files or at the server."""
    found = []
    board = EntryFolder(federation.folder / "results" / "entries").all(federation.study.sites)
    for site in federation.study.sites:
        kept = federation.folder / site / "kept"
        stored = EntryFolder(kept / federation.study.hash[:16] / "entries").all([site])
        hashes: dict[int, set[str]] = {}
        for line in audit.read(kept):
            if "step" in line:
                hashes.setdefault(line["step"], set()).add(line["hash"])
        found += [f"{site}, step {step}" for step, each in hashes.items() if len(each) > 1]
        found += [f"{site}, step {step}" for (step, _), entry in stored.items() if board.get((step, site)) != entry]
    return found


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
    # without noise, so that draws can be compared
    study = study_of(exact=True)
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
        wait_for(federation, second, 3)
        federation.kill(second)
        time.sleep(5.0)
        federation.start_supernode(second)
        wait_for(federation, second, 5)
        rows.append((f"SuperNode of {second}, while sites agree", "the same run continued after its restart"))

        wait_for(federation, second, 11)
        kill_server_app(federation)
        thread.join(timeout=120)
        rows.append((f"ServerApp, after step {step_of(federation, second)}", "the run ended; restarted below"))

        before = step_of(federation, second)
        thread, _ = run_in_thread(federation)
        wait_for(federation, second, before + 3)
        federation.kill("superlink")
        thread.join(timeout=120)
        federation.start_superlink()
        rows.append((f"SuperLink, after step {step_of(federation, second)}", "restarted with its database"))

        federation.run()
        runs = [accord.Run.load(folder / "results" / "run.nc")]
        runs += [accord.Run.load(run_of(folder, study, site)) for site in study.sites]
        here = drawn_here(folder, study)
        apart = max(float(np.abs(run.draws - here).max()) for run in runs)
        rows.append(("all of these", f"{runs[0].traffic.sums} sums; draws {apart:.1e} apart"))
        twice = made_twice(federation)
        rows.append(("entries of one step that differ", ", ".join(twice) or "none"))
    # the SuperLink's database has all messages uncompressed
    looked = [path for path in folder.rglob("*") if path.is_file() and path != data]
    found = [str(path) for path in looked if CANARY.encode() in path.read_bytes()]
    packed = np.float64(CANARY).tobytes()
    # arrays in entries are base64, where a number begins at any of three places
    forms = [
        packed,
        *(
            base64.b64encode(bytes(shift) + packed + bytes(2))[first : first + 10]
            for shift, first in enumerate((0, 2, 3))
        ),
    ]
    found += [str(path) for path in looked if any(form in path.read_bytes() for form in forms)]
    rows.append((f"{len(looked)} files, database and logs, for a cell", f"found in {found or 'none'}"))
    assert CANARY.encode() in data.read_bytes()
    width = max(len(what) for what, _ in rows)
    for what, came in rows:
        print(f"{what:<{width}}  {came}")
    if found or twice or apart > 1e-9:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
