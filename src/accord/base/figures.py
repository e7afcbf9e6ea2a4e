"""Shared style of figures, and figures as inline SVG in HTML pages."""

from __future__ import annotations

import hashlib
import io
import re
import warnings
from collections.abc import Callable
from html import escape
from typing import Any

# Colours of Okabe and Ito, distinguishable under every kind of colour blindness.
COLORS = {
    "blue": "#0072B2",
    "vermillion": "#D55E00",
    "green": "#009E73",
    "purple": "#CC79A7",
    "orange": "#E69F00",
    "sky": "#56B4E9",
}
# Colour of lines and text.
INK = "#222222"
# Colour of secondary lines and text.
SOFT = "#5c5c5c"
# Matplotlib settings for figures in a page: transparent, with the page's font size.
_LOOK: dict[Any, Any] = {
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 8,
    # text instead of paths, and deterministic ids
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
    # labels of parameters and sites may contain a dollar sign
    "text.parse_math": False,
}
_VARIABLES = {color.lower(): name for name, color in {**COLORS, "ink": INK, "soft": SOFT}.items()}
_NUMBERS = re.compile(r' (?:d|x|y|x1|y1|x2|y2|points|transform|width|height)="[^"]*"')


def require() -> None:
    """Raise `ImportError` with the remedy if matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError("figures need matplotlib: pip install 'accord[plot]'") from error


def axes(width: float, height: float) -> Any:
    """Axes of a new pyplot figure, width and height in inches."""
    require()
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(width, height), layout="constrained")[1]


def inline(draw: Callable[[Any], None], alt: str, width: float, height: float) -> str:
    """A self-contained inline SVG with the page's colours.

    Parameters
    ----------
    draw
        A function that draws on given axes.
    alt
        Alternative text, unique within the page.
    width, height
        Inches of 96 pixels.
    """
    require()
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    file = io.StringIO()
    with mpl.rc_context(_LOOK), warnings.catch_warnings():
        # the reader's browser has its own fonts
        warnings.filterwarnings("ignore", "Glyph ")
        drawn = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(drawn)
        draw(drawn.subplots())
        drawn.savefig(file, format="svg", metadata={"Date": None})
    return _within_page(file.getvalue(), alt, width)


def _within_page(svg: str, alt: str, width: float) -> str:
    """Matplotlib's SVG without header, metadata and style, with ids that are unique within the page."""
    body = svg[svg.index("<svg") :]
    box = re.search(r'viewBox="([^"]*)"', body)
    assert box is not None
    inner = body[body.index(">") + 1 : body.rindex("</svg>")]
    inner = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", inner, flags=re.DOTALL)
    own = hashlib.sha256(alt.encode()).hexdigest()[:8]
    # text between tags may be any label and stays unchanged
    inner = re.sub(r"<[^>]*>", lambda tag: _tag(tag[0], own), inner)
    inner = re.sub(r"\n\s*", "\n", inner).strip()
    return f'<svg role="img" aria-label="{escape(alt)}" viewBox="{box[1]}" width="{96 * width:.0f}">{inner}</svg>'


def _tag(tag: str, own: str) -> str:
    """The tag with ids prefixed by `own`, rounded numbers, and the page's font and colours."""
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
