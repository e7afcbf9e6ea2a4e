"""accord: draws of one posterior from data that stays with its owners, who talk over a network."""

from . import balance, combine, data, datasets, metrics, models, samplers, schedules, theory
from .compiler import guard
from .engines.silo.engine import Silo
from .errors import DivergenceError
from .gaussian import Gaussian
from .law import Law, law
from .network import Network
from .plan import Plan, plan
from .posterior import Posterior
from .run import Run
from .sample import sample
from .sampler import Sampler

__all__ = [
    "DivergenceError",
    "Gaussian",
    "Law",
    "Network",
    "Plan",
    "Posterior",
    "Run",
    "Sampler",
    "Silo",
    "balance",
    "combine",
    "data",
    "datasets",
    "law",
    "metrics",
    "models",
    "plan",
    "sample",
    "samplers",
    "schedules",
    "theory",
]
__version__ = "0.1.0"

# importing makes no array, so that nothing has been compiled yet
guard()
