"""Figures, bounds and one-shot methods from the papers behind accord's methods."""
