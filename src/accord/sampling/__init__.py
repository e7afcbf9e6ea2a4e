"""`accord.sample` and `accord.plan`: run an engine in chunks, record the draws, write checkpoints."""
