"""Configuration documents: their sections as data, models and priors."""
