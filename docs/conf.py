"""The site: `make docs`. Its pages are the Markdown files of this folder; `site_pages.py` adds what is read from the code."""

import sys
import tomllib
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))  # site_pages

project = "HSFL"
author = copyright = "The HSFL maintainers, Apache-2.0"
release = version = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["project"]["version"]

extensions = ["myst_parser", "site_pages"]
exclude_patterns = ["figures", "examples", "results"]  # folders of files that pages show
myst_enable_extensions = ["colon_fence"]
smartquotes = False  # --set is an option
myst_heading_anchors = 3
suppress_warnings = ["myst.header"]  # a page may begin its sections where it likes

html_theme = "furo"
html_title = f"HSFL {release}"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_copy_source = False  # site_pages writes the Markdown of each page, with what is generated
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1f5fa8", "color-brand-content": "#1f5fa8"},
    "dark_css_variables": {"color-brand-primary": "#7fb2ee", "color-brand-content": "#7fb2ee"},
}
pygments_style, pygments_dark_style = "friendly", "github-dark"
highlight_language = "none"  # indented blocks are commands; blocks in fences name their language
