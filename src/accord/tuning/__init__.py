"""Before a run: exact laws of methods, warm-up, forecasts, plans. After it: what the method's law says of its draws."""

from .impulse_response import Response, respond
from .law import Law, Moments, law
from .plan import Plan
from .warmup import Warmup, warm_up

__all__ = ["Law", "Moments", "Plan", "Response", "Warmup", "law", "respond", "warm_up"]
