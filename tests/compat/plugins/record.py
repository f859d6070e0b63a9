"""Records programs/main.py: `python -m tests.compat.plugins.record`, where Lightning 2.6 is installed."""

from __future__ import annotations

from pathlib import Path

from tests.compat.recorded_programs import record

SEVERAL = {"steps", "reducing", "checkpoint_io", "layer_sync", "spawned"}
SINGLE_ONLY = """
    backward backward_manual backward_accumulated stepping stepping_manual lifecycle exception precision_inputs
    precision_steps precision_contexts precision_double precision_state checkpoint_io_set checkpoint_async
    strategy_checkpoints from_scratch accelerator
"""
SINGLE = [*SINGLE_ONLY.split(), *sorted(SEVERAL - {"spawned"})]
CASES = [(name, 1) for name in SINGLE] + [(name, 2) for name in sorted(SEVERAL)]

if __name__ == "__main__":
    record(Path(__file__).parent, CASES)
