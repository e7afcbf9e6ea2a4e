"""The papers' theorems as functions, with equation numbers, one module per paper.

Arguments are the network, the `Constants` of the problem (`constants(post)` for a Gaussian posterior) and the
parameters of the method. Docstrings mention corrected misprints, which follow from the paper's proofs. docs/theory.md
compares the results with exact laws.
"""

from . import d_admms, de_sghmc, de_sgld, dg_lmc, gibbs, gt_dula
from .problem import Constants, Start, constants, start

__all__ = ["Constants", "Start", "constants", "d_admms", "de_sghmc", "de_sgld", "dg_lmc", "gibbs", "gt_dula", "start"]
