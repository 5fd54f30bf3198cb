# SPDX-License-Identifier: LGPL-2.1-or-later
"""Sphinx's configuration of the site; ``./run docs`` builds it into build/docs."""

from __future__ import annotations

import sys
from pathlib import Path

_DOCS = Path(__file__).parent
sys.path[:0] = [str(_DOCS), str(_DOCS.parent / "drgn_scripts")]

project = "kcensus"
copyright = "the authors of kcensus"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton", "site_pages"]
exclude_patterns = ["pictures"]
# What has no language is a command, as in the README.
highlight_language = "sh"
nitpick_ignore_regex = [
    # Libraries whose documentation is elsewhere: the site is built without network.
    (r"py:.*", r"(?!kcensus).*"),
    # Modules, and names that are not public, are in signatures; they have no page.
    (r"py:mod", r".*"),
    (r"py:.*", r"kcensus\.(?!plots\.)\w+\..*"),
]

myst_enable_extensions = ["attrs_inline", "deflist"]
myst_heading_anchors = 3
# Options begin with two dashes.
smartquotes = False
default_role = "literal"

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
python_maximum_signature_line_length = 80

html_theme = "furo"
html_title = "kcensus"
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True, "top_of_page_buttons": []}
copybutton_prompt_text = r"\$ |>>> |\.\.\. |crash> "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True

linkcheck_timeout = 20
linkcheck_anchors = False
