"""Exact laws of methods on Gaussian posteriors, by differentiating the very functions that the engines run."""

from .impulse_response import Response, respond
from .law import Law, Moments, law

__all__ = ["Law", "Moments", "Response", "law", "respond"]
