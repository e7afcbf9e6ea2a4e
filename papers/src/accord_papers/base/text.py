"""Counts with nouns, and cells of CSV files."""

from __future__ import annotations

from typing import Any


def counted(count: int, noun: str) -> str:
    """A count with its noun: "1 paper", "2 experiments"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def no_formula(cell: Any) -> Any:
    """A CSV cell that no spreadsheet runs as a formula: such text gets a leading single quote."""
    if not isinstance(cell, str):
        return cell
    # the csv module does not quote carriage returns, which would start a new line
    text = cell.replace("\r\n", "\n").replace("\r", "\n")
    return f"'{text}" if cell.startswith(("=", "+", "-", "@", "\t", "\r")) else text
