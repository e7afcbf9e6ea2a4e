"""A run as a card in a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..base.page import bullets, number, paragraph, table
from .certificate import Certificate

# Parameters that a card shows.
SHOWN = 20
_FORMATS = {"ess": ",.0f", "rhat": ".3f"}
_HEADINGS = {"ess": "ESS", "rhat": "R-hat"}


def card(
    title: str,
    line: str,
    certificate: Certificate | None,
    names: Sequence[str],
    columns: Mapping[str, np.ndarray],
) -> str:
    """A line, what the certificate says, and a table of the first parameters' `columns`, each (parameter,)."""
    parts = [f"<strong>{title}</strong>", paragraph(line)]
    if certificate is not None:
        parts.append(paragraph("Certified." if certificate.holds else "Not certified:"))
        parts += [] if certificate.holds else [bullets(c.text for c in certificate.checks if not c.holds)]
    head = ["", *(_HEADINGS.get(name, name) for name in columns)]
    rows = []
    for d, name in enumerate(names[:SHOWN]):
        sd = columns["sd"][d]
        decimals = int(np.clip(1 - np.floor(np.log10(sd)), 0, 8)) if sd > 0 else 3
        cells = [format(values[d], _FORMATS.get(key, f".{decimals}f")) for key, values in columns.items()]
        rows.append([name, *map(number, cells)])
    parts.append(table(head, rows))
    if len(names) > SHOWN:
        parts.append(paragraph(f"and {len(names) - SHOWN} parameters more: run.summary() has them"))
    parts.append(paragraph("run.summary() warns of draws that are not to be relied on; accord.report writes a page."))
    return "".join(parts)
