"""Methods that need nothing but sums over all agents: the default, importance sampling, and its exact fallback."""
