"""Checkpoint files, and fingerprints that tell one run from another."""
