"""accord: draws of one posterior from data that stays with its owners, who talk over a network."""

from . import data, engines, metrics, models, network, posterior, samplers, tuning
from .base.errors import DivergenceError
from .base.gaussian import Gaussian
from .base.text import __version__
from .engines.silo.engine import Silo
from .flower import Flower
from .models.bridges import from_numpyro, from_pymc
from .network import Network
from .posterior import Local, Posterior
from .results.comparison import Comparison, compare
from .results.run import Run
from .samplers.protocol import Sampler
from .sampling.planning import plan
from .sampling.rounds import Rounds
from .sampling.sample import sample
from .tuning.law import Law, law
from .tuning.plan import Plan

__all__ = [
    "Comparison",
    "DivergenceError",
    "Flower",
    "Gaussian",
    "Law",
    "Local",
    "Network",
    "Plan",
    "Posterior",
    "Rounds",
    "Run",
    "Sampler",
    "Silo",
    "__version__",
    "compare",
    "data",
    "engines",
    "from_numpyro",
    "from_pymc",
    "law",
    "metrics",
    "models",
    "network",
    "plan",
    "posterior",
    "sample",
    "samplers",
    "tuning",
]
