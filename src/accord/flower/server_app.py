"""The ServerApp of a study: it leads the run, and sees sums of the sites' answers."""

from __future__ import annotations

from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from ..network import Network
from ..sampling.sample import sample
from .channel import NodeChannel
from .engine import Channel, Flower, keep_draws
from .study import StudyDocument

# Seconds that an answer is waited for before the site is asked anew; a site that comes back has forgotten the question.
_PATIENCE = 120.0


def grid_channel(grid: Grid) -> NodeChannel:
    """Requests as messages of Flower's grid."""

    def exchange(requests: dict[int, bytes]) -> dict[int, bytes]:
        messages = [
            Message(RecordDict({"packet": ConfigRecord({"bytes": request})}), node, "query")
            for node, request in requests.items()
        ]
        found = {}
        for reply in grid.send_and_receive(messages, timeout=_PATIENCE) if messages else ():
            # a node that has gone has no content
            if reply.has_content():
                found[reply.metadata.src_node_id] = bytes(reply.content["packet"]["bytes"])
        return found

    return NodeChannel(lambda: set(grid.get_node_ids()), exchange, _tell)


def app_of(study: StudyDocument) -> ServerApp:
    """The ServerApp of a study, which keeps its run in the folder that the run's config names as `output`."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        folder = Path(str(context.run_config["output"]))
        folder.mkdir(parents=True, exist_ok=True)
        lead(study, grid_channel(grid), folder)

    return app


def lead(study: StudyDocument, channel: Channel, folder: Path) -> None:
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
