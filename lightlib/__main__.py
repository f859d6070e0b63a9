"""`python -m lightlib`: see command/main.py."""

from __future__ import annotations

import sys

from lightlib.command.main import main

sys.exit(main())
