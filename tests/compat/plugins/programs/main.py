"""Small programs with plugins of Lightning's kind, run by Lightning and by lightlib.

``python main.py CASE [DEVICES]`` prints one line of JSON on the first process.
"""

from __future__ import annotations

import json
import os
import sys
import warnings

import checkpoints
import precisions
import registered
import strategies
import torch

MODULES = strategies, precisions, checkpoints, registered


def main() -> None:
    warnings.simplefilter("ignore")
    case, devices = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1
    torch.manual_seed(0)
    found = next(getattr(module, case) for module in MODULES if hasattr(module, case))(devices)
    if int(os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0"))) == 0:
        print("RESULT " + json.dumps(found), flush=True)  # noqa: T201  the test reads it


if __name__ == "__main__":
    main()
