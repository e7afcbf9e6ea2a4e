"""The HTML card that a notebook shows for a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..base.page import bullets, number, paragraph, table
from .certificate import Certificate

# Largest number of parameters in a card.
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
    """HTML of a run: `line`, the verdict of the certificate and a table of the first `SHOWN` parameters.

    `columns` maps statistics to arrays, (parameter,).
    """
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
        parts.append(paragraph(f"{len(names) - SHOWN} more parameters: see run.summary()"))
    parts.append(paragraph("run.summary() also warns about unreliable draws. accord.report writes a report."))
    return "".join(parts)
