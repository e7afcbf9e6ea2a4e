"""accord: sampling of one posterior from data that stays with its owners."""

from . import data, engines, federation, metrics, models, network, posterior, samplers, tuning
from .base.errors import DivergenceError
from .base.gaussian import Gaussian
from .base.text import __version__
from .engines.silo.engine import Silo
from .examine.alone import alone
from .examine.comparison import Comparison, compare
from .examine.latents import latents
from .examine.loo import loo
from .examine.meta_analysis import meta_analysis
from .examine.predictive import predictive_check
from .examine.report import report
from .examine.reweighting import leave_each_out, leave_out, update
from .examine.rows import log_likelihood
from .examine.sites import plot_sites
from .models.bridges import from_numpyro, from_pymc
from .network import Network
from .posterior import Local, Posterior
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
    "compare",
    "data",
    "engines",
    "federation",
    "from_numpyro",
    "from_pymc",
    "latents",
    "law",
    "leave_each_out",
    "leave_out",
    "log_likelihood",
    "loo",
    "meta_analysis",
    "metrics",
    "models",
    "network",
    "plan",
    "plot_sites",
    "posterior",
    "predictive_check",
    "report",
    "sample",
    "samplers",
    "tuning",
    "update",
]
