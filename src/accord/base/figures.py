"""One look for all figures: colours, sizes, and drawings within a page."""

from __future__ import annotations

import hashlib
import io
import re
import warnings
from collections.abc import Callable
from html import escape
from typing import Any

# Okabe and Ito's colours, which differ under every kind of colour blindness.
COLORS = {
    "blue": "#0072B2",
    "vermillion": "#D55E00",
    "green": "#009E73",
    "purple": "#CC79A7",
    "orange": "#E69F00",
    "sky": "#56B4E9",
}
# Of lines and letters, and of those that stand back.
INK, SOFT = "#222222", "#5c5c5c"
# Within a page, whose letters are as large on any screen, a drawing is transparent and its colours are the page's.
_LOOK: dict[Any, Any] = {
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 8,
    # text as text and fixed ids: small files, the same for the same data
    "svg.fonttype": "none",
    "svg.hashsalt": "accord",
    "text.color": INK,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": SOFT,
    # labels of parameters and sites are anybody's: a dollar is a dollar
    "text.parse_math": False,
}
_VARIABLES = {color.lower(): name for name, color in {**COLORS, "ink": INK, "soft": SOFT}.items()}
_NUMBERS = re.compile(r' (?:d|x|y|x1|y1|x2|y2|points|transform|width|height)="[^"]*"')


def require() -> None:
    """Raise `ImportError` with what to do where matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError("figures need matplotlib: pip install 'accord[plot]'") from error


def axes(width: float, height: float) -> Any:
    """Axes of a figure of their own, in inches, for a person to look at."""
    require()
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(width, height), layout="constrained")[1]


def inline(draw: Callable[[Any], None], alt: str, width: float, height: float) -> str:
    """A drawing as a part of a page: an SVG that names no other file, with the page's colours.

    Parameters
    ----------
    draw
        Draws upon the axes that it is given.
    alt
        What the drawing shows, for those who do not see it; of no other drawing in the page.
    width, height
        In inches of 96 pixels at the size of the page's letters.
    """
    require()
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    file = io.StringIO()
    with mpl.rc_context(_LOOK), warnings.catch_warnings():
        # letters that this machine's font lacks are drawn by the reader's
        warnings.filterwarnings("ignore", "Glyph ")
        drawn = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(drawn)
        draw(drawn.subplots())
        drawn.savefig(file, format="svg", metadata={"Date": None})
    return _within_page(file.getvalue(), alt, width)


def _within_page(svg: str, alt: str, width: float) -> str:
    """What matplotlib wrote, without its head and its names of other files, and with names of its own."""
    body = svg[svg.index("<svg") :]
    box = re.search(r'viewBox="([^"]*)"', body)
    assert box is not None
    inner = body[body.index(">") + 1 : body.rindex("</svg>")]
    inner = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", inner, flags=re.DOTALL)
    # ids must be different in all drawings of a page
    own = hashlib.sha256(alt.encode()).hexdigest()[:8]
    # what stands between tags is anybody's text, and stays
    inner = re.sub(r"<[^>]*>", lambda tag: _tag(tag[0], own), inner)
    inner = re.sub(r"\n\s*", "\n", inner).strip()
    return f'<svg role="img" aria-label="{escape(alt)}" viewBox="{box[1]}" width="{96 * width:.0f}">{inner}</svg>'


def _tag(tag: str, own: str) -> str:
    """A tag of a drawing whose ids begin with `own`: short numbers, and letters and colours of the page."""
    tag = re.sub(r' id="(?:figure|axes|patch|text|line2d|matplotlib\.axis|xtick|ytick|legend)[^"]*"', "", tag)
    tag = re.sub(r' id="([^"]+)"', rf' id="{own}-\1"', tag).replace("url(#", f"url(#{own}-")
    tag = tag.replace(' xlink:href="#', f' href="#{own}-')
    tag = _NUMBERS.sub(lambda found: re.sub(r"-?\d+\.\d{3,}", _shorter, found[0]), tag)
    tag = re.sub(r"font-family: [^;\"]*;? ?|(?<=px) '[^;\"]*", "", tag)
    tag = re.sub(r"#[0-9a-f]{6}\b", lambda found: _variable(found[0]), tag)
    return re.sub(r" ?\n", " ", tag)


def _shorter(found: re.Match[str]) -> str:
    return f"{float(found[0]):.2f}".rstrip("0").rstrip(".")


def _variable(color: str) -> str:
    return f"var(--{_VARIABLES[color]})" if color in _VARIABLES else color
