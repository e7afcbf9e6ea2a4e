"""The ClientApp of every study: it hands what arrives to the site that its SuperNode's `--node-config` names."""

from __future__ import annotations

import jax
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from .policy import SitePolicy
from .site import Site
from .wire import packet

app = ClientApp()


@app.query()
def answer(message: Message, context: Context) -> Message:
    """The site's answer to a request."""
    found = _answer(context, bytes(message.content["packet"]["bytes"]))
    return Message(RecordDict({"packet": ConfigRecord({"bytes": found})}), reply_to=message)


def _answer(context: Context, request: bytes) -> bytes:
    try:
        policy = SitePolicy.read(str(context.node_config["policy"]))
    except (KeyError, ValueError) as error:
        # what is wrong with it is the site's own affair
        print(f"accord: no policy: {error!r}; start the SuperNode with --node-config='policy=\"/path/to/site.toml\"'")
        return packet({"error": "a site's policy cannot be read, see its log", "refused": False}).to_bytes()
    # every message has a process of its own, which need not compile what one before it has
    jax.config.update("jax_compilation_cache_dir", str(policy.folder / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    return Site(policy, tell=lambda text: print(f"accord: {text}", flush=True)).answer(request)
