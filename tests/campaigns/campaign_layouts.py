"""Layout campaign: a run saved under each strategy resumes under each other strategy."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.distributed.layouts import CONTINUED, FORMATS, LAYOUTS, SAVED, Case, cases


def table(found: list[Case], kind: str) -> str:
    """Return the errors by layout: saved in rows, loaded in columns."""
    by_pair = {(case.saved, case.loaded): case for case in found if case.kind == kind}
    loaded = list(dict.fromkeys(case.loaded for case in found))
    width = max(map(len, LAYOUTS)) + 2
    lines = [f"{kind}:".ljust(width) + "".join(name.rjust(width) for name in loaded)]
    for saved in dict.fromkeys(case.saved for case in found):
        row = (by_pair[saved, name] for name in loaded)
        cells = (f"{case.error:.1e}" + ("" if case.right else " WRONG") for case in row)
        lines.append(saved.ljust(width) + "".join(cell.rjust(width) for cell in cells))
    return "\n".join(lines)


def main() -> int:
    """Run the campaign; return 0 if every pair is right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--saved", nargs="+", choices=list(LAYOUTS), default=list(LAYOUTS), metavar="LAYOUT")
    parser.add_argument("--loaded", nargs="+", choices=list(LAYOUTS), default=list(LAYOUTS), metavar="LAYOUT")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    given = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        found = cases(Path(folder), given.saved, given.loaded, tuple(given.formats))
    print(f"saved after {SAVED} steps (rows), {CONTINUED} more under another layout (columns): relative error of the")
    print("weights against one uninterrupted run on one device, float32")
    for kind in given.formats:
        print(table(found, kind))
    wrong = [case for case in found if not case.right]
    samples = sum(not case.samples for case in found)
    worst = max(case.error for case in found)
    print(f"{len(found)} pairs, {len(wrong)} wrong, {samples} with other samples, largest error {worst:.1e}", end=", ")
    print(f"{time.monotonic() - began:.0f} s")
    return min(len(wrong), 1)


if __name__ == "__main__":
    sys.exit(main())
