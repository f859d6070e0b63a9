"""Records programs/main.py: `python -m tests.compat.fabric.record`, where Lightning 2.6 is installed."""

from __future__ import annotations

from pathlib import Path

from tests.compat.recorded_programs import record

SINGLE = ["methods", "checkpoints", "wrapping", "scratch", "samples"]
SEVERAL = ["methods", "checkpoints", "hooked", "controlled", "samples"]
CASES = [(name, 1) for name in SINGLE] + [(name, 2) for name in SEVERAL]

if __name__ == "__main__":
    record(Path(__file__).parent, CASES)
