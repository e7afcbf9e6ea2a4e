"""The ClientApp of every study: it passes entries to the site whose policy `--node-config` names."""

from __future__ import annotations

import jax
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from ..policy import SitePolicy
from .board import answered, failed

app = ClientApp()


@app.query()
def answer(message: Message, context: Context) -> Message:
    """The site's next entries."""
    found = _answer(context, bytes(message.content["packet"]["bytes"]))
    return Message(RecordDict({"packet": ConfigRecord({"bytes": found})}), reply_to=message)


def _answer(context: Context, request: bytes) -> bytes:
    try:
        policy = SitePolicy.read(str(context.node_config["policy"]))
    except (KeyError, ValueError) as error:
        # the reason stays in the site's own log
        print(f"accord: no policy: {error!r}. Start the SuperNode with --node-config='policy=\"/path/to/site.toml\"'")
        return failed("a site's policy cannot be read, see its log")
    # every message has its own process: the cache avoids repeated compilation
    jax.config.update("jax_compilation_cache_dir", str(policy.folder / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    return answered(policy, request, log=lambda text: print(f"accord: {text}", flush=True))
