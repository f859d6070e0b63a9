"""`make gpu`, or `python -m tests.gpu`: everything that needs a GPU, into one file of results."""

from __future__ import annotations

import importlib.util
import sys

NEEDED = ("torch", "torchmetrics", "packaging", "numpy")


def main() -> int:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"Error: {sys.executable} has no {' and no '.join(missing)}.\n  Expected: an environment with lightlib's "
            f"dependencies; lightlib itself may be the folder it runs in.\n  Fix: pip install {' '.join(missing)}",
            file=sys.stderr,
        )
        return 2
    from tests.gpu import command  # optional: torch, which may be missing

    return command.main()


if __name__ == "__main__":
    sys.exit(main())
