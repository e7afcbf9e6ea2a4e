"""The ServerApp of a study: it carries the entries of the sites, and has no part in what they compute."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid, ServerApp

from ..document import StudyDocument
from .board import lead
from .channel import Broken, NodeChannel
from .errors import ended_in_words

# Errors of messages that were not delivered, which are sent again.
_LOST = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE)
_MORE = {
    ErrorCode.INVALID_FAB: " (its SuperNode has --trusted-entities, which takes no app that comes from a folder)",
    ErrorCode.LOAD_CLIENT_APP_EXCEPTION: " (is the same version of accord[flower] installed there? See its log)",
}


class GridPost:
    """Transport of requests over Flower's grid."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def nodes(self) -> Collection[int]:
        """See `Post`."""
        return set(self.grid.get_node_ids())

    def send(self, requests: dict[int, bytes]) -> dict[str, int]:
        """See `Post`."""
        messages = [
            Message(RecordDict({"packet": ConfigRecord({"bytes": request})}), node, "query")
            for node, request in requests.items()
        ]
        names = self.grid.push_messages(messages)
        # a message that was not sent has no name, and is sent again later
        return {name: node for name, node in zip(names, requests, strict=False) if name}

    def replies(self, messages: Collection[str]) -> dict[str, bytes | Broken | None]:
        """See `Post`."""
        found: dict[str, bytes | Broken | None] = {}
        for reply in self.grid.pull_messages(messages):
            found[reply.metadata.reply_to_message_id] = _content(reply)
        return found


def _content(reply: Message) -> bytes | Broken | None:
    """The content of a reply, an error, or None if the message was not delivered."""
    if reply.has_content():
        return bytes(reply.content["packet"]["bytes"])
    if reply.error.code in _LOST:
        return None
    return Broken(f"{reply.error.reason}{_MORE.get(reply.error.code, '')}")


def app_of(study: StudyDocument) -> ServerApp:
    """The ServerApp of a study. It stores entries and run in the folder `output` of the run config."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        folder = Path(str(context.run_config["output"]))
        with ended_in_words(_log):
            folder.mkdir(parents=True, exist_ok=True)
            lead(study, NodeChannel(GridPost(grid), _log), folder, _log)

    return app


def _log(text: str) -> None:
    print(f"accord: {text}", flush=True)
