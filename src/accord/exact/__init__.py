"""Exact laws of methods on Gaussian posteriors, by differentiating the very functions that the engines run."""
