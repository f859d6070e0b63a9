"""The progress of a run in the layout of Lightning's loops; tested with lightning 2.6.6."""

from __future__ import annotations

import pytest
import torch

from tests.runs.plain import Net, batches, quiet_trainer


@pytest.mark.parametrize(
    ("steps", "begun", "completed", "batch"),
    [(3, 1, 0, 3), (9, 2, 1, 3), (12, 2, 2, 0)],
    ids=["in the first epoch", "in the second epoch", "after two epochs"],
)
def test_an_epoch_that_is_running_is_begun_and_not_completed(steps, begun, completed, batch):
    trainer = quiet_trainer(max_epochs=2, max_steps=steps)
    trainer.fit(Net(), batches(6))
    trainer.save_checkpoint("run.ckpt")
    loop = torch.load("run.ckpt")["loops"]["fit_loop"]
    expected = {"ready": begun, "started": begun, "completed": completed, "processed": completed}
    assert loop["epoch_progress"] == {"total": expected, "current": expected}
    assert loop["epoch_loop.batch_progress"]["current"]["completed"] == batch
    assert loop["epoch_loop.batch_progress"]["total"]["completed"] == steps
