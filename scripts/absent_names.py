"""Draws the tables of Lightning's names that differ or are absent in docs/differences.md.

They come from lightlib_lightning/statuses.json, which tests compare with the code.

python scripts/absent_names.py            print the tables
python scripts/absent_names.py --check    fail if docs/differences.md differs
python scripts/absent_names.py --write    put them into docs/differences.md
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lightlib_lightning import statuses

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "differences.md"
START = "<!-- names: written by scripts/absent_names.py --write -->"
END = "<!-- end of names -->"
HEADS = {
    "different": ("### Different", "there, with another default or meaning", "how"),
    "ignored": ("### Ignored", "accepted, without effect", "why"),
    "later": ("### Later", "not there yet", "why, and what to use"),
    "absent": ("### Absent", "not there", "why"),
}


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail if docs/differences.md shows other tables")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/differences.md")
    options = parser.parse_args(arguments)
    if options.write:
        PAGE.write_text(page_with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    elif options.check:
        if not is_current():
            print("docs/differences.md is out of date: run `python scripts/absent_names.py --write`", file=sys.stderr)
            return 1
    else:
        print(tables())
    return 0


def is_current() -> bool:
    """Return whether docs/differences.md shows the tables as they are."""
    text = PAGE.read_text(encoding="utf-8")
    return page_with_tables(text) == text


def page_with_tables(page: str) -> str:
    """Return the text of `page` with the present tables between its two marks."""
    if page.count(START) != 1 or page.count(END) != 1:
        raise SystemExit(f"{PAGE.name} needs exactly one line `{START}` and, after it, one line `{END}`.")
    before, _, rest = page.partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}\n{tables()}\n{END}{after}"


def tables() -> str:
    """Return the tables, one row per reason, of the statuses that a name has."""
    found = list(statuses.entries())
    used = {status for status, _, _ in found}
    return "\n\n".join(table(status, found) for status in HEADS if status in used)


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
        lines.append(f"| {mark}{', '.join(dict.fromkeys(names))} | {why[0].upper()}{why[1:]}. |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
