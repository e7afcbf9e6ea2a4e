"""Figures, bounds and one-shot methods of the papers that accord's methods come from."""
