"""How Sphinx builds the site; run ``docs/build``."""

from __future__ import annotations

import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path.insert(0, str(HERE))

project = "ddlsched"
author = "The ddlsched maintainers"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_gallery.gen_gallery",
    "bars_from",
    "from_tables",
]
exclude_patterns = ["_build", "examples/*.py", "examples/README.rst", "sg_execution_times.rst"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
# Fields of views have the same names in several classes; headings of pages skip levels on purpose.
suppress_warnings = ["myst.header", "config.cache", "ref.python"]
nitpicky = False
smartquotes = False  # would make one dash of the two before an option that is quoted in prose

html_theme = "pydata_sphinx_theme"
html_title = "ddlsched"
html_show_sourcelink = False
html_theme_options = {
    "navbar_align": "left",
    "show_nav_level": 1,
    "navigation_with_keys": True,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}
html_css_files = ["site.css"]
html_static_path = ["_static"]

# Pages without pages under them have no use for a list of such.
html_sidebars = {page: [] for page in ("index", "start", "concepts", "reference", "results", "architecture")}

autosummary_generate = True
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_google_docstring = False
napoleon_use_ivar = True


def scrape_figure(block: tuple[str, str, int], variables: dict, settings: dict) -> str:  # noqa: ARG001 (sphinx-gallery's)
    """Keep the figure that an example has made under the name ``figure``."""
    from sphinx_gallery.scrapers import figure_rst

    figure = variables["example_globals"].pop("figure", None)
    if figure is None:
        return ""
    path = next(variables["image_path_iterator"])
    figure.savefig(path, dpi=180)
    return figure_rst([path], settings["src_dir"])


sphinx_gallery_conf = {
    "examples_dirs": ["examples"],
    "gallery_dirs": ["gallery"],
    "image_scrapers": (scrape_figure,),
    "capture_repr": (),
    "download_all_examples": False,
    "show_signature": False,
    "show_memory": False,
    "min_reported_time": 1e6,
    "abort_on_example_error": True,
    "copyfile_regex": r"",
    "reset_modules": (),
}


def _outside(app: object, docname: str, source: list[str]) -> None:  # noqa: ARG001 (Sphinx's)
    """Turn links to files outside of the site into names, those to examples into the gallery, and take pictures in."""
    picture = r"<img src=\"(images/[^\"]+)\" width=\"(\d+)\" alt=\"([^\"]*)\">"
    source[0] = re.sub(picture, r"```{image} \1\n:alt: \3\n:width: \2px\n```", source[0])
    source[0] = source[0].replace("](examples/README.rst)", "](gallery/index.rst)")
    source[0] = re.sub(r"\]\(examples/(plot_\w+)\.py\)", r"](gallery/\1.rst)", source[0])
    source[0] = re.sub(r"\[([^\]]+)\]\((?:\.\./|\.\./\.\./)[^)\s]*\)", r"\1", source[0])


def _broken_well(app: object, page: str, template: str, context: dict, doctree: object) -> None:  # noqa: ARG001
    """Keep options whole where a line is broken, mark lines of code, and put a colon behind a parameter."""
    if "body" in context:
        body = context["body"].replace("</strong> -- ", "</strong>: ")
        body = re.sub(r"(?<=[\s>(\[])--[a-z][a-z-]*", r'<span class="option">\g<0></span>', body)
        context["body"] = re.sub(r"(?<=<pre>).*?(?=</pre>)", _lines_apart, body, flags=re.DOTALL)


def _lines_apart(code: re.Match[str]) -> str:
    lines = re.sub(r"[^\n]+\n", r'<span class="line">\g<0></span>', code[0])
    # Words with a hyphen, outside of tags and of options, which are whole already.
    return re.sub(r"(?<![\w.-])\w[\w.]*-[\w.-]+(?![^<]*>)", r'<span class="word">\g<0></span>', lines)


def setup(app: object) -> None:
    """Connect what is done to each page."""
    app.connect("html-page-context", _broken_well)  # type: ignore[attr-defined]
    app.connect("source-read", _outside)  # type: ignore[attr-defined]
