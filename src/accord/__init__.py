"""accord: draws of one posterior from data that stays with its owners, who talk over a network."""

import sys

from . import balance, combine, data, datasets, engines, metrics, models, samplers, schedules, theory
from .adapters import from_numpyro, from_pymc
from .base.errors import DivergenceError
from .base.gaussian import Gaussian
from .base.text import __version__
from .engines.mesh import processes
from .engines.silo.engine import Silo
from .exact.law import Law, law
from .examine.alone import alone
from .examine.comparison import Comparison, compare
from .examine.latents import latents
from .examine.loo import loo
from .examine.predictive import predictive_check
from .examine.report import report
from .examine.reweighting import leave_each_out, leave_out, update
from .examine.rows import log_likelihood
from .examine.sites import plot_sites
from .flower import Flower
from .network import Network
from .posterior import Local, Posterior
from .posterior import pooled_nuts as reference
from .results.run import Run
from .samplers import conditional, convex_sets
from .samplers.protocol import Sampler
from .sampling.planning import plan
from .sampling.rounds import Rounds
from .sampling.sample import sample
from .tuning import warmup
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
    "alone",
    "balance",
    "combine",
    "compare",
    "conditional",
    "convex_sets",
    "data",
    "datasets",
    "engines",
    "from_numpyro",
    "from_pymc",
    "latents",
    "law",
    "leave_each_out",
    "leave_out",
    "log_likelihood",
    "loo",
    "metrics",
    "models",
    "plan",
    "plot_sites",
    "predictive_check",
    "processes",
    "reference",
    "report",
    "sample",
    "samplers",
    "schedules",
    "theory",
    "update",
    "warmup",
]

# Paths that users import these modules by, whatever room they lie in: `from accord.warmup import warm_up`.
for _name, _module in {
    "conditional": conditional,
    "convex_sets": convex_sets,
    "processes": processes,
    "reference": reference,
    "warmup": warmup,
}.items():
    sys.modules[f"{__name__}.{_name}"] = _module
