"""Sum-based methods: `Auto` (the default), `Importance` and its exact fallback `ChEES`."""
