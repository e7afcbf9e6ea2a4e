"""Engines: they execute rounds and carry messages, on one device, many devices, or one process an agent."""
