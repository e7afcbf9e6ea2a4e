"""Who executes a round and carries the messages."""
