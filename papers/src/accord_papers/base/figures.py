"""Style of all figures: colours, sizes and files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Okabe and Ito's palette, safe for colour-blind readers.
COLORS = {
    "blue": "#0072B2",
    "vermillion": "#D55E00",
    "green": "#009E73",
    "purple": "#CC79A7",
    "orange": "#E69F00",
    "sky": "#56B4E9",
}
_LOOK: dict[Any, Any] = {
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 8,
    # text as text and fixed ids: small, reproducible files
    "svg.fonttype": "none",
    "svg.hashsalt": "accord",
}
_PANEL = (4.6, 3.6)


def require() -> None:
    """Raise `ImportError` with the install command if matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError("figures need matplotlib: pip install accord-papers") from error


@contextmanager
def figure(folder: Path, name: str, *, panels: int = 1, rows: int = 1, title: str = "") -> Iterator[Any]:
    """Context manager that yields a row of axes, shape (panels,), and writes the figure on exit.

    Parameters
    ----------
    folder, name
        The figure is written to `name.png` and `name.svg` in the folder.
    panels, rows
        Axes in a row, and rows. With several rows the array has the shape (rows, panels).
    title
        Title above all axes.
    """
    require()
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context(_LOOK):
        # no pyplot: no window and no global list of figures
        drawn = Figure(figsize=(_PANEL[0] * panels, _PANEL[1] * rows), layout="constrained")
        FigureCanvasAgg(drawn)
        axes = drawn.subplots(rows, panels, squeeze=False)
        drawn.suptitle(title)
        yield axes[0] if rows == 1 else axes
        drawn.savefig(folder / f"{name}.png", dpi=120)
        drawn.savefig(folder / f"{name}.svg", metadata={"Date": None})
