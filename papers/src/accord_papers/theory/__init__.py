"""The papers' theorems as functions, with equation numbers; one module a paper.

Each takes the network, the `Constants` of the problem (`constants(post)` finds those of a Gaussian posterior) and the
numbers of the method. Misprints that can be seen from the paper's own proof are corrected, and the docstring says so;
docs/theory.md tells which results hold on exact laws, by how much, and which do not.
"""

from . import d_admms, de_sghmc, de_sgld, dg_lmc, gibbs, gt_dula
from .problem import Constants, Start, constants, start

__all__ = ["Constants", "Start", "constants", "d_admms", "de_sghmc", "de_sgld", "dg_lmc", "gibbs", "gt_dula", "start"]
