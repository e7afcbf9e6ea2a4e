"""Tables that benchmarks write into pages of docs/, between comments with their names. Other text stays."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"
PACKAGES = ("accord", "jax", "jaxlib", "numpy", "scipy", "blackjax", "numpyro", "ray")


def fill(page: Path, name: str, text: str) -> None:
    """Replace the text between `<!-- name -->` and `<!-- end of name -->` in a page."""
    before, found, rest = page.read_text("utf-8").partition(f"<!-- {name} -->\n")
    _, ended, after = rest.partition(f"<!-- end of {name} -->")
    if not found or not ended:
        raise ValueError(f"{page} has no place for {name!r}")
    page.write_text(f"{before}{found}\n{text.strip()}\n\n{ended}{after}", "utf-8")


def table(head: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> str:
    """A Markdown table with left-aligned `texts` first columns and right-aligned numbers."""
    rule = ["---" if column < texts else "---:" for column in range(len(head))]
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, rule, *rows))


def measured_on() -> str:
    """Text with processor, cores, and versions of packages."""
    information = Path("/proc/cpuinfo")
    named = platform.processor() or platform.machine()
    if information.exists():
        lines = information.read_text().splitlines()
        named = next((line.split(":", 1)[1].strip() for line in lines if "model name" in line), named)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    machine = f"{named}, {cores} cores, {platform.system()}"
    found = [f"Python {platform.python_version()}"]
    for package in PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            pass
    return f"{machine}, with {', '.join(found)}"
