"""Draws docs/images/search.svg and search-page.png: the table of a search that runs, and its page.

python scripts/pictures_of_a_search.py     needs chromium and pillow; not run by the tests

The output is real: the project of `lightlib init search` is searched in a pseudo-terminal.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from scripts.picture_of_a_run import in_a_terminal, screen, svg  # noqa: E402  the folder has to be known first

IMAGES = ROOT / "docs" / "images"
WIDTH, HEIGHT, MOST_BYTES = 1100, 1250, 100_000
DRAWN = re.compile(r"\r\x1b\[2K(?:\x1b\[1A\x1b\[2K)+")  # a new drawing of the table begins
LIGHTLIB = [sys.executable, "-m", "lightlib"]


def main() -> int:
    """Search, and put the pictures in their places."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*LIGHTLIB, "init", "search", "digits"], cwd=folder, check=True)
        project = f"{folder}/digits"
        command = ["experiment", "run", "search.yaml", "--slots", "2"]
        code, output = in_a_terminal([*LIGHTLIB, *command], project)
        if code:
            raise SystemExit(output)
        drawings = [match.start() for match in DRAWN.finditer(output)]
        lines = screen(output[: drawings[len(drawings) * 2 // 3]])
        (IMAGES / "search.svg").write_text(svg(lines, f"lightlib {' '.join(command)}"), encoding="utf-8")
        (page,) = Path(project).glob("experiments/*/report.html")
        take(page, IMAGES / "search-page.png")
    return 0


def take(page: Path, picture: Path) -> None:
    """Write a PNG of a page."""
    import PIL.Image  # optional: pillow

    new = page.with_suffix(".png")
    browser = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    size = [f"--window-size={WIDTH},{HEIGHT}", f"--user-data-dir={page.parent}/browser", "--virtual-time-budget=20000"]
    subprocess.run([*browser, *size, f"--screenshot={new}", page.as_uri()], check=True)
    PIL.Image.open(new).convert("RGB").quantize(128).save(picture, optimize=True)
    if picture.stat().st_size > MOST_BYTES:
        raise SystemExit(f"{picture} has {picture.stat().st_size:,} bytes, more than {MOST_BYTES:,}.")


if __name__ == "__main__":
    sys.exit(main())
