"""Draws the tables of Lightning's absent and ignored names in docs/differences.md.

They come from tests/compatibility/lightning_2_6.json, which tests compare with the code.

python scripts/absent_names.py            print the tables
python scripts/absent_names.py --check    fail if docs/differences.md differs
python scripts/absent_names.py --write    put them into docs/differences.md
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tests" / "compatibility" / "lightning_2_6.json"
PAGE = ROOT / "docs" / "differences.md"
START = "<!-- names: written by scripts/absent_names.py --write -->"
END = "<!-- end of names -->"
HEADS = {
    "absent": ("not there", "why, and the replacement"),
    "ignored": ("accepted, without effect", "why"),
}
# How a name of a section is written in a program; otherwise it is the name itself.
FORMS = {
    "Trainer arguments": "Trainer({}=…)",
    "Trainer methods": "trainer.{}",
    "Trainer properties": "trainer.{}",
    "Module methods": "Module.{}",
    "Module properties": "Module.{}",
    "DataModule": "DataModule.{}",
    "Callback": "Callback.{}",
    "strategy names": 'strategy="{}"',
    "precision names": 'precision="{}"',
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
    """Return the tables, one row per reason."""
    content = json.loads(LIST.read_text(encoding="utf-8"))
    return "\n\n".join(table(status, list(entries(content))) for status in HEADS)


def table(status: str, found: list[tuple[str, str, str]]) -> str:
    """Return the table of the names that have this status."""
    rows: dict[str, list[str]] = {}
    for one, name, why in found:
        if one == status:
            rows.setdefault(why, []).append(f"`{name}`")
    lines = [f"| {' | '.join(HEADS[status])} |", "|---|---|"]
    lines += [f"| {', '.join(dict.fromkeys(names))} | {why[0].upper()}{why[1:]}. |" for why, names in rows.items()]
    return "\n".join(lines)


def entries(content: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield status, name and reason of every name that differs, with arguments of methods and classes."""
    for section, names in content.items():
        if not isinstance(names, dict) or section == "statuses":
            continue
        for name, entry in names.items():
            own = written(section, name)
            if entry["status"] != "same":
                yield entry["status"], own, entry["why"]
            for argument, one in entry.get("arguments", {}).items():
                if "why" in one:
                    yield one["status"], f"{own}({argument}=…)", one["why"]


def written(section: str, name: str) -> str:
    """Return how a name is written in a program."""
    owner = f"{section.removesuffix(' members')}.{{}}" if section.endswith(" members") else "{}"
    return FORMS.get(section, owner).format(name)


if __name__ == "__main__":
    sys.exit(main())
