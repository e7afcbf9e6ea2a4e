"""Small texts: numbers of things, and cells of CSV files."""

from __future__ import annotations

from typing import Any


def counted(count: int, noun: str) -> str:
    """A number of things: "1 paper", "2 experiments"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def no_formula(cell: Any) -> Any:
    """A cell of a CSV file: a text that a spreadsheet would run as a formula begins with a single quote."""
    if not isinstance(cell, str):
        return cell
    # the csv module does not quote a carriage return, which would begin another line
    text = cell.replace("\r\n", "\n").replace("\r", "\n")
    return f"'{text}" if cell.startswith(("=", "+", "-", "@", "\t", "\r")) else text
