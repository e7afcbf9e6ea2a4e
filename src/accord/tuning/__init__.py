"""Warm-up, exact laws of methods, forecasts of bias and cost, and plans."""

from .impulse_response import Response, respond
from .law import Law, Moments, law
from .plan import Plan
from .warmup import Warmup, warm_up

__all__ = ["Law", "Moments", "Plan", "Response", "Warmup", "law", "respond", "warm_up"]
