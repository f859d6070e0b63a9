"""Runs the code cells of a notebook in IPython, up to the first error: `notebook.py FILE`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib as mpl
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from matplotlib_inline.backend_inline import configure_inline_support
from traitlets.config import Config

INLINE = "module://matplotlib_inline.backend_inline"


def main(path: str) -> int:
    """Return 0 if all cells succeed. For each picture that a notebook would show, print the number of its cell."""
    shell = InteractiveShell.instance(config=Config(HistoryManager={"enabled": False}))
    mpl.use(INLINE)  # as a kernel does
    configure_inline_support(shell, INLINE)
    shell.display_pub = CapturingDisplayPublisher()
    for number, cell in enumerate(json.loads(Path(path).read_text(encoding="utf-8"))["cells"], 1):
        if cell["cell_type"] != "code":
            continue
        result = shell.run_cell("".join(cell["source"]))
        if not result.success:
            return 1
        shown = [output["data"] for output in shell.display_pub.outputs]
        shell.display_pub.outputs.clear()
        shown += [shell.display_formatter.format(result.result)[0]] if result.result is not None else []
        for data in shown:
            if "image/png" in data:
                print(f"cell {number} shows a picture")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
