"""`accord.sample`: an engine driven in chunks, its draws recorded and kept on disk."""
