"""The site's settings. From the top of a checkout:

    pip install . --group docs && python -m sphinx -W docs docs/_build

The site is built and read without a network. The extensions in `_ext/` generate the reference from the code.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs" / "_ext")]

from page_source import source_of  # noqa: E402

import npformer  # noqa: E402

project = "npformer"
author = "The npformer authors"
version = release = npformer.__version__
html_title = f"npformer {version}"
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_search_scorer = str(ROOT / "docs" / "_static" / "scorer.js")
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False
html_theme_options = {"source_repository": "https://github.com/npformer/npformer/", "source_directory": "docs/"}

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.linkcode",
    "numpydoc",
    "repository_links",
    "mathml",
    "public_names",
    "command_line",
    "stage_tables",
    "weight_tables",
    "field_guide",
    "tables",
    "live_views",
]
exclude_patterns = ["_build", "_ext", "jupyter_execute", ".jupyter_cache"]  # the last two are outputs of earlier builds
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb"}
nitpicky = True  # warns about references to missing names
nitpick_ignore_regex = [("py:class", r"D\[k\].*")]  # from the docstring of get() in collections.abc
default_role = "literal"  # docstrings write names between single backticks

myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 4
nb_execution_mode = "cache"  # runs changed notebooks; with -D nb_execution_mode=off the committed output is shown
nb_execution_excludepatterns = ["learn/datasets.ipynb"]  # needs Java and seven engines; the lane `extras` runs it
nb_execution_timeout = 1200  # maximum seconds per cell
nb_execution_show_tb = True
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # on busy machines two threads slow down notebooks
nb_merge_streams = True

numpydoc_show_class_members = False
autodoc_typehints = "none"  # docstrings already have types and shapes
autodoc_member_order = "bysource"
add_module_names = False
linkcode_resolve = source_of
toc_object_entries = False  # each name has its own heading
smartquotes = False  # quotes and dots in text are often code
