"""Studies of named columns by site, matrices of CSV files, and rules that split rows over agents."""

from .cells import Dates
from .policy import Policy
from .remote import RemoteStudy, at_sites, study_at_sites
from .splits import SPLITS, by_column, by_label, dirichlet, iid, split
from .studies import Matrix, Study, as_study, describe, study
from .summaries import Agreed

__all__ = [
    "SPLITS",
    "Agreed",
    "Dates",
    "Matrix",
    "Policy",
    "Study",
    "RemoteStudy",
    "as_study",
    "at_sites",
    "by_column",
    "by_label",
    "describe",
    "dirichlet",
    "iid",
    "split",
    "study",
    "study_at_sites",
]
