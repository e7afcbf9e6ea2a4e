"""How Sphinx builds the pages of this folder: `make docs`."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes

import accord

HERE = Path(__file__).parent
# Kernels that run the pages inherit these: nothing is shown of what XLA says of this machine, and pictures look alike.
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["MATPLOTLIBRC"] = str(HERE / "matplotlibrc")
os.environ["ACCORD_PROGRESS"] = "off"
os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"  # tqdm's, where a page imports NumPyro

project = "accord"
author = copyright = "The accord developers"
version = release = accord.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "numpydoc"]
exclude_patterns = ["_templates"]
templates_path = ["_templates"]
autosummary_generate = True
# of a name in single backticks a link where there is such a name, and code in any case
default_role = "py:obj"
nitpicky = True
nitpick_ignore_regex = [("py:obj", "(?s).*")]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
suppress_warnings = ["myst-nb.lexer"]  # of pages that are not run
nb_execution_timeout = 240
# ArviZ 1.0 needs Python 3.12
nb_execution_excludepatterns = [] if sys.version_info >= (3, 12) else ["arviz.md"]
nb_execution_raise_on_error = True
nb_merge_streams = True

autodoc_typehints = "none"  # signatures have them; docstrings say what they mean
autodoc_member_order = "bysource"
numpydoc_show_class_members = False  # the template of a class lists them
numpydoc_xref_param_type = False

html_theme = "pydata_sphinx_theme"
html_title = "accord"
html_static_path = ["_static"]
html_css_files = ["accord.css"]
html_copy_source = False
html_sidebars = {"start": []}  # a page alone in its section
html_theme_options = {
    "navbar_end": ["theme-switcher"],
    "header_links_before_dropdown": 6,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "show_prev_next": True,
}

# pages of this site that are files beside docs/
_BESIDE = {"contributing": "CONTRIBUTING.md", "changelog": "CHANGELOG.md"}
# doctest wants an empty line after what is printed; a reader does not
_LAST_LINE = re.compile(r"\n\n```$", re.MULTILINE)
# how Python names a cell of a notebook
_CELL = re.compile(r"\S*/ipykernel_\d+/\d+\.py:(\d+)")


def as_a_page_here(app: Any, name: str, source: list[str]) -> None:
    """Pages as the site has them: with those that lie beside docs/, and links to them; the gallery names its pages."""
    text = source[0]
    if name in _BESIDE:
        beside = HERE.parent / _BESIDE[name]
        app.env.note_dependency(str(beside))
        text = re.sub(
            r"\]\((?!https?:|#)(docs/)?", lambda link: "](" if link[1] else "](../", beside.read_text("utf-8")
        )
    for page, path in _BESIDE.items():
        text = text.replace(f"](../{path})", f"]({page}.md)")
    if name == "gallery/README":
        text += "\n```{toctree}\n:hidden:\n:glob:\n\n*/README\n```\n"
    source[0] = _LAST_LINE.sub("\n```", text)


def skip(app: Any, what: str, name: str, member: Any, skipped: bool, options: Any) -> bool | None:
    """Leave out what Python says of the fields of a named tuple: that they are fields."""
    return True if str(getattr(member, "__doc__", "")).startswith("Alias for field number") else None


def without_paths(app: Any, doctree: nodes.document) -> None:
    """Warnings that a page shows name the line of its cell, and no file of the machine that ran it."""
    for block in doctree.findall(nodes.literal_block):
        if "stderr" in block.get("classes", ()):
            text = _CELL.sub(r"line \1", block.astext())
            block.children = [nodes.Text(text)]
            block.rawsource = text


def setup(app: Any) -> None:
    """What Sphinx calls."""
    app.connect("autodoc-skip-member", skip)
    app.connect("source-read", as_a_page_here)
    app.connect("doctree-read", without_paths)
