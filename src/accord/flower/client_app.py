"""The ClientApp of every study: it hands what arrives to the site that its SuperNode's `--node-config` names."""

from __future__ import annotations

import jax
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from .policy import SitePolicy
from .site import Site

app = ClientApp()


@app.query()
def answer(message: Message, context: Context) -> Message:
    """The site's answer to a request."""
    policy = SitePolicy.read(str(context.node_config["policy"]))
    # every message has a process of its own, which need not compile what one before it has
    jax.config.update("jax_compilation_cache_dir", str(policy.folder / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    found = Site(policy).answer(bytes(message.content["packet"]["bytes"]))
    return Message(RecordDict({"packet": ConfigRecord({"bytes": found})}), reply_to=message)
