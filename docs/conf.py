"""Sphinx configuration of the pages: `make docs`."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes

import accord

HERE = Path(__file__).parent
# Inherited by the kernels that run the pages: they hide XLA's messages and give all plots one style.
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
# a name in single backticks is a link if Sphinx knows the name, and code otherwise
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

autodoc_typehints = "none"  # signatures have the types
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

# pages of the site that are files outside of docs/
_BESIDE = {"contributing": "CONTRIBUTING.md", "changelog": "CHANGELOG.md"}
# doctest needs an empty line after an output; a reader does not
_LAST_LINE = re.compile(r"\n\n```$", re.MULTILINE)
# the file name of a notebook cell
_CELL = re.compile(r"\S*/ipykernel_\d+/\d+\.py:(\d+)")


def as_a_page_here(app: Any, name: str, source: list[str]) -> None:
    """Complete the pages: files outside of docs/, thumbnails of the gallery, names of the reference."""
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
        text = text.replace("\n| experiment", f"\n{thumbnails()}\n| experiment", 1)
        text += "\n```{toctree}\n:hidden:\n:glob:\n\n*/README\n```\n"
    if name == "api/index":
        text = re.sub(r"^- \[.*\]\((\w+)\.md\).*$", with_names, text, flags=re.MULTILINE)
    source[0] = _LAST_LINE.sub("\n```", text)


def thumbnails() -> str:
    """The first figure of each page of the gallery, as a link to the page."""
    pages = sorted(path.parent for path in (HERE / "gallery").glob("*/README.md"))
    figures = [(page.name, one.name) for page in pages for one in sorted(page.glob("figure*.png"))[:1]]
    one = ":::{{figure}} {0}/{1}\n:target: {0}/README.html\n:alt: First figure of {0}\n\n{0}\n:::\n"
    return "::::{container} gallery\n" + "".join(one.format(*figure) for figure in figures) + "::::\n"


def with_names(entry: re.Match[str]) -> str:
    """An entry of the index of the reference, with links to all names of its page."""
    page = (HERE / "api" / f"{entry[1]}.md").read_text("utf-8")
    names = [
        f"{{py:obj}}`{name.rpartition('.')[2]} <{module}.{name}>`"
        for module, table in re.findall(r"currentmodule:: (\S+)(.*?)(?=\.\. currentmodule|```)", page, flags=re.DOTALL)
        for name in re.findall(r"^   ([\w.]+)$", table, flags=re.MULTILINE)
    ]
    return f"{entry[0]}\n\n  {', '.join(names)}\n"


def skip(app: Any, what: str, name: str, member: Any, skipped: bool, options: Any) -> bool | None:
    """Skip fields of named tuples, which have no docstring of their own."""
    return True if str(getattr(member, "__doc__", "")).startswith("Alias for field number") else None


def without_paths(app: Any, doctree: nodes.document) -> None:
    """Replace file names in shown warnings by line numbers of their cells."""
    for block in doctree.findall(nodes.literal_block):
        if "stderr" in block.get("classes", ()):
            text = _CELL.sub(r"line \1", block.astext())
            block.children = [nodes.Text(text)]
            block.rawsource = text


def setup(app: Any) -> None:
    """Entry point of Sphinx."""
    app.connect("autodoc-skip-member", skip)
    app.connect("source-read", as_a_page_here)
    app.connect("doctree-read", without_paths)
