"""The configuration of the site: `make docs` builds it with Sphinx from these pages and the docstrings."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import roles
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT))

from lightlib.version import __version__  # noqa: E402  the folder has to be known first
from scripts import site_pages, site_reference  # noqa: E402

project = "lightlib"
version = release = __version__
copyright = "lightlib contributors"  # noqa: A001  Sphinx's name
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
templates_path = ["_templates"]

html_theme = "furo"
html_search_scorer = str(DOCS / "_static" / "search.js")
html_title = f"lightlib {__version__}"
html_theme_options = {"navigation_with_keys": True}
html_show_sphinx = False
pygments_dark_style = "github-dark"  # the default one underlines imported names

myst_heading_anchors = 6
myst_url_schemes = ("http", "https", "mailto", "tree")

default_role = "code_or_name"
autodoc_default_options = {"member-order": "bysource"}
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_custom_sections = [("Attributes", "params_style")]  # a list; Sphinx would call them variables
napoleon_use_rtype = False
maximum_signature_line_length = 90
python_use_unqualified_type_names = True
add_module_names = False
toc_object_entries_show_parents = "hide"

nitpicky = True
# Types of annotations and of "Raises:" are names as the code has them: of other packages, of type variables, of private
# modules. What a docstring links to by a role of its own, and every link between pages, is checked.
nitpick_ignore_regex = [("py:(class|exc|obj)", ".*")]

# A link of a page to a file outside of docs/: it is copied into the site, as text.
OUTSIDE = re.compile(r"\]\(((?:\.\./)+[^)\s#]+)(?:#[^)\s]*)?\)")
FILES = "files"
NAME = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*(?:\(\))?")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the functions that Sphinx calls."""
    roles.register_local_role("code_or_name", code_or_name)
    app.connect("builder-inited", lambda app: site_reference.write(Path(app.srcdir)))
    app.connect("source-read", read)
    app.connect("doctree-read", leave_out)
    app.connect("doctree-resolved", link_files)
    app.connect("build-finished", write_texts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def code_or_name(*call: Any) -> tuple[list[nodes.Node], list[nodes.system_message]]:
    """Make text in single backticks code, and a link where it is a public name."""
    _, source, text, _, inliner = call[:5]  # docutils gives a role these, and options
    text = text.replace("\x00", "\\")
    code = nodes.literal(source, text, classes=["code"])
    if not NAME.fullmatch(text):
        return [code], []
    env: BuildEnvironment = inliner.document.settings.env
    name = text.removesuffix("()")
    link = addnodes.pending_xref(source, code, refdomain="py", reftype="obj", refdoc=env.docname, refexplicit=True)
    link["reftarget"] = HOMES.get(name.removeprefix("lightlib."), name)
    link["py:module"], link["py:class"] = (env.ref_context.get(key) for key in ("py:module", "py:class"))
    return [link], []


def homes() -> dict[str, str]:
    """Return where each public name that is unique is documented."""
    places = site_reference.home_of_each(site_reference.public_names())
    found: dict[str, set[str]] = {}
    for (area, name), place in places.items():
        found.setdefault(name, set()).add(place)
        found.setdefault(f"{area}.{name}".removeprefix("lightlib."), set()).add(place)
    return {name: next(iter(several)) for name, several in found.items() if len(several) == 1}


HOMES = homes()


def read(app: Sphinx, page: str, source: list[str]) -> None:
    """Complete the start page, and mark links to files outside of docs/."""
    path = Path(app.env.doc2path(page))
    if path.suffix != ".md":
        return
    text = source[0]
    if page == "index":
        text = site_pages.site_index(text, site_reference.OVERVIEWS)
    if page == "gallery":
        text = site_pages.with_code(text)
    text = OUTSIDE.sub(lambda link: marked(path, link), text)
    source[0] = re.sub(r"\]\((?:\./)?decisions/?\)", f"]({site_pages.GENERATED}/decisions.rst)", text)


def marked(page: Path, link: re.Match[str]) -> str:
    """Return a link to a file outside of docs/ with the scheme ``tree:`` and its path in the repository."""
    target = (page.parent / link[1]).resolve()
    if not target.is_relative_to(ROOT) or target.is_relative_to(DOCS):
        return link[0]
    return f"](tree:{target.relative_to(ROOT).as_posix()})"


def leave_out(app: Sphinx, _: nodes.document) -> None:
    """Leave the pages of the last shelf out of the search, and the records of decisions out of the side bar."""
    page = app.env.docname
    if site_pages.unsearched(page):
        app.env.metadata[page]["nosearch"] = "true"
    if page.startswith("decisions/"):
        app.env.metadata[page]["orphan"] = "true"


def link_files(app: Sphinx, doctree: nodes.document, page: str) -> None:
    """Lead links to files of the repository to their copies in the site."""
    for link in doctree.findall(nodes.reference):
        address = link.get("refuri", "")
        if address.startswith("tree:"):
            name = address.removeprefix("tree:").rstrip("/")
            link["refuri"] = f"{'../' * page.count('/')}{FILES}/{name}.txt"
            copy(ROOT / name, Path(app.outdir) / FILES / f"{name}.txt")


def copy(source: Path, target: Path) -> None:
    """Copy a file as text; of a folder, the list of its files."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        names = sorted(path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file())
        target.write_text("\n".join(name for name in names if "__pycache__" not in name) + "\n", encoding="utf-8")
    else:
        shutil.copyfile(source, target)


def write_texts(app: Sphinx, error: Exception | None) -> None:
    """Write llms.txt and llms-full.txt."""
    if error is None:
        out = Path(app.outdir)
        (out / "llms.txt").write_text(site_pages.llms(site_reference.OVERVIEWS), encoding="utf-8")
        (out / "llms-full.txt").write_text(site_pages.llms_full(site_reference.overview_as_text()), encoding="utf-8")
