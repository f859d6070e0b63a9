"""The state of a Trainer after a call in processes that it started."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes import programs

PROGRAM = """
import sys
import torch
from lightlib_lightning.order import LIGHTNING
import lightlib
from lightlib import conventions
from tests.runs.quiet import QUIET

class Net(lightlib.Module):
    def __init__(self, fails):
        super().__init__()
        self.layer, self.fails = torch.nn.Linear(1, 1), fails

    def training_step(self, batch, batch_idx):
        if self.fails:
            raise ValueError("no more")
        return self.layer(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

def fit(fails):
    trainer = lightlib.Trainer(**{**QUIET, "devices": 2}, strategy="ddp_fork", max_epochs=1, limit_val_batches=0)
    try:
        trainer.fit(Net(fails), torch.utils.data.DataLoader(torch.ones(4, 1)))
    except Exception as error:
        print(type(error).__name__)
    state = trainer.state
    print(state.fn, state.stage, state.status, state.finished, state.stopped, trainer.interrupted)

fit(False)
fit(True)
conventions.use(LIGHTNING)
fit(True)
"""


@pytest.mark.processes
def test_the_starting_process_knows_how_the_call_ended(tmp_path: Path):
    """With compat the values are those of Lightning 2.6.6: fit, None, "interrupted", False, True, True."""
    (tmp_path / "program.py").write_text(PROGRAM)
    done = programs.run(tmp_path / "program.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith(("fit ", "Process"))]
    assert lines == [
        "fit None finished True True False",
        "ProcessRaisedError",
        "fit None failed False True False",
        "ProcessRaisedError",
        "fit None interrupted False True True",
    ]
