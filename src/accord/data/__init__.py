"""Data from CSV files, rules that split rows over agents, and studies: named columns by site, for formulas."""

from .agreement import Agreed
from .cells import Dates
from .csv import Table, at_sites, read
from .elsewhere import StudyAtSites, study_at_sites
from .policy import Policy
from .splits import SPLITS, by_column, by_label, dirichlet, iid, split
from .studies import Study, as_study, describe, study

__all__ = [
    "SPLITS",
    "Agreed",
    "Dates",
    "Policy",
    "Study",
    "StudyAtSites",
    "Table",
    "as_study",
    "at_sites",
    "by_column",
    "by_label",
    "describe",
    "dirichlet",
    "iid",
    "read",
    "split",
    "study",
    "study_at_sites",
]
