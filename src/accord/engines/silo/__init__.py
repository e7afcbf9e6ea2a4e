"""The silo engine, with one process per agent, which sends only its method's `message` to its neighbours."""
