"""Sphinx's settings. ``nox -s docs`` builds the site, through tools/docs_site.py."""

from __future__ import annotations

import blutrain

project = "BluTrain"
author = copyright = "BluTrain developers"
release = version = blutrain.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
exclude_patterns = ["html"]
source_suffix = {".rst": "restructuredtext", ".md": "markdown"}

# Docstrings name errors as code does, without their package, and two packages have errors of one name.
suppress_warnings = ["ref.python"]

# One backtick in docstrings is code, as in the rest of what we write.
default_role = "code"

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
python_maximum_signature_line_length = 100

html_theme = "furo"
html_title = f"BluTrain {release}"
