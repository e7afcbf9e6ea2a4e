"""Carry the entries of a study over Flower."""
