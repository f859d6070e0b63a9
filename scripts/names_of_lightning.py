"""Writes docs/names.md, the names of Lightning that differ here or are absent, from statuses.json.

python scripts/names_of_lightning.py --check    fail if the page differs
python scripts/names_of_lightning.py --write    write the page
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lightlib_lightning import statuses

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "names.md"
HEAD = """# Names of Lightning that differ or are missing

`scripts/names_of_lightning.py` writes this page from [statuses.json](../lightlib_lightning/statuses.json), which lists
every public name of Lightning 2.6.6. Those that are not here have the same meaning. `lightlib compat check` finds the
places of a project that use them. [Differences](differences.md) has the behaviour.
"""
HEADS = {
    "different": ("## Different", "there, with another default or meaning", "how"),
    "ignored": ("## Ignored", "accepted, without effect", "why"),
    "later": ("## Later", "not there yet", "why, and what to use"),
    "absent": ("## Absent", "not there", "why"),
}


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--check", action="store_true", help="fail if docs/names.md differs")
    mode.add_argument("--write", action="store_true", help="write docs/names.md")
    options = parser.parse_args(arguments)
    if options.write:
        PAGE.write_text(page(), encoding="utf-8")
    elif not is_current():
        print("docs/names.md is out of date: run `python scripts/names_of_lightning.py --write`", file=sys.stderr)
        return 1
    return 0


def is_current() -> bool:
    """Return whether docs/names.md is as it would be written now."""
    return PAGE.read_text(encoding="utf-8") == page()


def page() -> str:
    """Return the text of docs/names.md: a table, one row per reason, of each status that a name has."""
    found = list(statuses.entries())
    used = {status for status, _, _ in found}
    return "\n".join([HEAD, *(f"{table(status, found)}\n" for status in HEADS if status in used)])


def table(status: str, found: list[tuple[str, str, str]]) -> str:
    """Return the table of the names that have this status."""
    rows: dict[str, list[str]] = {}
    for one, name, why in found:
        if one == status:
            rows.setdefault(why, []).append(f"`{name}`")
    title, *heads = HEADS[status]
    lines = [title, "", f"| {' | '.join(heads)} |", "|---|---|"]
    for why, names in rows.items():
        mark = f'<a id="{statuses.anchor(status, why)}"></a>'
        first = why.partition(" ")[0]
        sentence = why if "_" in first else f"{why[0].upper()}{why[1:]}"  # a name keeps its case
        lines.append(f"| {mark}{', '.join(dict.fromkeys(names))} | {sentence}. |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
