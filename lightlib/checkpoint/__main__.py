"""`python -m lightlib.checkpoint`: see command.py."""

from __future__ import annotations

import sys

from lightlib.checkpoint.tools.command import main

sys.exit(main(sys.argv[1:]))
