"""Data from CSV files, and rules that split rows over agents."""

from .csv import Table, at_sites, read
from .splits import SPLITS, by_column, by_label, dirichlet, iid, split

__all__ = ["SPLITS", "Table", "at_sites", "by_column", "by_label", "dirichlet", "iid", "read", "split"]
