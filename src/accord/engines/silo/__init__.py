"""One process an agent, which sends what its method's `message` returns to its neighbours, and nothing else."""
