"""Draws docs/images/lr-find.png: the curve of the finder, by the program of docs/tuning.md.

python scripts/picture_of_rates.py
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "images" / "lr-find.png"


def main() -> int:
    """Run the first program of the page, and draw its curve."""
    import matplotlib as mpl  # optional: matplotlib

    mpl.use("Agg")
    page = (ROOT / "docs" / "tuning.md").read_text(encoding="utf-8")
    program = re.search(r"^```python\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    assert program is not None
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(program[1], "docs/tuning.md", "exec"), names)  # noqa: S102  a page of this project
    figure = names["curve"].plot(suggest=True)
    figure.set_size_inches(6, 3.6)
    figure.tight_layout()
    figure.savefig(PICTURE, dpi=100, metadata={"Software": None})
    return 0


if __name__ == "__main__":
    sys.exit(main())
