"""The ServerApp of a study: it leads the run, and sees sums of the sites' answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from ..network import Network
from ..sampling.sample import sample
from . import packets
from .engine import Flower, keep_draws
from .study import StudyDocument

# Seconds between two words about who is waited for, and between two looks at who has come.
_TELL, _LOOK = 30.0, 1.0
# Seconds that an answer is waited for before the site is asked anew; a site that comes back has forgotten the question.
_PATIENCE = 600.0


class GridChannel:
    """Requests to sites as messages of Flower's grid; it waits for sites that are away, and says for whom.

    Parameters
    ----------
    grid
        Flower's.
    sites
        The names of the sites.
    tell
        What is told of waiting.
    """

    def __init__(self, grid: Grid, sites: Iterable[str], tell: Callable[[str], None]) -> None:
        self.grid, self.sites, self.tell = grid, tuple(sites), tell
        # by node, of those that have said who they are
        self._names: dict[int, str] = {}

    def __call__(self, requests: dict[str, bytes]) -> dict[str, bytes]:
        """The answer of each site to its request."""
        answers: dict[str, bytes] = {}
        told = time.monotonic()
        while missing := [site for site in requests if site not in answers]:
            nodes = set(self.grid.get_node_ids())
            due = {node: self._names.get(node) for node in nodes if self._names.get(node) in (None, *missing)}
            # who a new node is shows in its answer to what all are asked first
            first = next(iter(requests.values()))
            found = self._exchanged({node: first if name is None else requests[name] for node, name in due.items()})
            for node, answer in found.items():
                name = self._name(node, answer)
                if name in requests:
                    answers[name] = answer
            if time.monotonic() - told > _TELL:
                self.tell(f"waiting for {', '.join(site for site in requests if site not in answers)}")
                told = time.monotonic()
            if len(answers) < len(requests) and not found:
                time.sleep(_LOOK)
        return answers

    def _name(self, node: int, answer: bytes) -> str:
        """The site of a node, which its first answer says."""
        if node not in self._names:
            head = packets.read(answer).head
            if "site" not in head:
                raise ValueError(f"a node has not said which site it is: {head.get('error', 'no name')}")
            self._names[node] = str(head["site"])
        return self._names[node]

    def _exchanged(self, requests: dict[int, bytes]) -> dict[int, bytes]:
        messages = [
            Message(RecordDict({"packet": ConfigRecord({"bytes": request})}), node, "query")
            for node, request in requests.items()
        ]
        found = {}
        for reply in self.grid.send_and_receive(messages, timeout=_PATIENCE) if messages else ():
            # a node that has gone has no content
            if reply.has_content():
                found[reply.metadata.src_node_id] = bytes(reply.content["packet"]["bytes"])
        return found


def app_of(study: StudyDocument) -> ServerApp:
    """The ServerApp of a study, which keeps its run in the folder that the run's config names as `output`."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        folder = Path(str(context.run_config["output"]))
        folder.mkdir(parents=True, exist_ok=True)
        lead(study, GridChannel(grid, study.sites, _tell), folder)

    return app


def lead(study: StudyDocument, channel: Any, folder: Path) -> None:
    """Sample a study's posterior, and keep the run in a folder; a run that was lost is taken up there."""
    engine = Flower(study, channel)
    options = {key: value for key, value in study.run.items() if key in ("draws", "chains", "seed")}
    network = Network.star(len(study.sites))
    _tell(f"study {study.hash}; run {engine.session}; sites {', '.join(study.sites)}")
    post = engine.model()
    run = sample(
        post, network, engine=engine, masks=engine.masks, checkpoint=folder / "sums", progress=False, **options
    )
    run.save(folder / "run.nc")
    keep_draws(engine, run.draws[:, :, 0], study.run.get("seed", 0))
    _tell(f"{run.traffic.sums} sums, {run.seconds:.0f} s; {folder / 'run.nc'}")
    print(run.summary().to_string(), flush=True)


def _tell(text: str) -> None:
    print(f"accord: {text}", flush=True)
