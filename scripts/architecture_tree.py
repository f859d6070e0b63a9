"""Writes docs/tree.md: the tree of the packages, with the first docstring line of every file.

python scripts/architecture_tree.py            print the tree
python scripts/architecture_tree.py --check    fail if docs/tree.md shows another one
python scripts/architecture_tree.py --write    write docs/tree.md
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (ROOT / "lightlib", ROOT / "lightlib_lightning")
PAGE = ROOT / "docs" / "tree.md"
ABOVE = """# The tree of files

Each file with its purpose, which is the first line of its docstring. `python scripts/architecture_tree.py --write`
writes this page; [architecture.md](architecture.md) explains the folders.
"""


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail if docs/tree.md shows another tree")
    parser.add_argument("--write", action="store_true", help="write docs/tree.md")
    options = parser.parse_args(arguments)
    if options.write:
        PAGE.write_text(page(), encoding="utf-8")
    elif options.check:
        if not is_current():
            print("docs/tree.md is out of date: run `python scripts/architecture_tree.py --write`", file=sys.stderr)
            return 1
    else:
        print(tree())
    return 0


def is_current() -> bool:
    """Return whether docs/tree.md shows the tree as it is."""
    return PAGE.exists() and PAGE.read_text(encoding="utf-8") == page()


def page() -> str:
    """Return the text of docs/tree.md."""
    return f"{ABOVE}\n```text\n{tree()}\n```\n"


def tree() -> str:
    """Return the tree of the packages, one line per file with its purpose."""
    rows = [row for top in PACKAGES for row in ((f"{top.name}/", first_line(top / "__init__.py")), *branches(top, ""))]
    width = max(len(drawing) for drawing, _ in rows)
    return "\n".join(f"{drawing:{width}}  {purpose}".rstrip() for drawing, purpose in rows)


def branches(folder: Path, indent: str) -> Iterator[tuple[str, str]]:
    """Yield the drawing and the purpose of all that is in `folder`: files first, then folders."""
    files = sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")
    folders = sorted({path.parent for path in folder.glob("*/*.py")})
    entries = [*files, *folders]
    for path in entries:
        corner, bar = ("└── ", "    ") if path == entries[-1] else ("├── ", "│   ")
        if path.is_dir():
            yield f"{indent}{corner}{path.name}/", first_line(path / "__init__.py")
            yield from branches(path, indent + bar)
        else:
            yield f"{indent}{corner}{path.name}", first_line(path)


def first_line(path: Path) -> str:
    """Return the first line of the docstring of the file, or an empty string."""
    if not path.exists():
        return ""
    return docstring_at_top(path.read_text(encoding="utf-8")).partition("\n")[0]


def docstring_at_top(text: str) -> str:
    """Return the docstring at the start of a file's text, or an empty string; do not parse the rest."""
    found = re.match(r'"""(.*?)"""|\'\'\'(.*?)\'\'\'|"([^"\n]*)"', text, re.DOTALL)
    return inspect.cleandoc(next(filter(None, found.groups()), "")) if found else ""


if __name__ == "__main__":
    sys.exit(main())
