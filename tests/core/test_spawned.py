"""Results of a Trainer's spawned processes in the process that starts them."""

from __future__ import annotations

import pytest

from tests.processes import programs

PROGRAM = """
import torch
from torch.utils.data import DataLoader
import lightlib as L


class Seen(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.seen, self.last, self.kind = 0, torch.zeros(()), None

    def forward(self, batch):
        self.seen, self.last, self.kind = self.seen + len(batch), batch.sum(), torch.float16
        return batch

    def get_extra_state(self):
        return {"seen": self.seen, "last": [self.last], "kind": self.kind}

    def set_extra_state(self, state):
        self.seen, (self.last,), self.kind = state["seen"], state["last"], state["kind"]


class Model(L.Module):
    def __init__(self):
        super().__init__()
        self.seen, self.layer = Seen(), torch.nn.Linear(1, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(self.seen(batch)).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


model = Model()
torch.nn.init.zeros_(model.layer.weight)
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
trainer = L.Trainer(accelerator="cpu", devices=2, strategy="ddp_fork", max_epochs=1, **quiet)
trainer.fit(model, DataLoader(torch.arange(6.0)[:, None], batch_size=3))
print(model.seen.seen, model.seen.last.item(), model.seen.kind, round(model.layer.weight.item(), 4))
"""


@pytest.mark.processes
def test_an_extra_state_of_any_objects_comes_back(tmp_path):
    (tmp_path / "extra.py").write_text(PROGRAM)
    done = programs.run(tmp_path / "extra.py", cwd=tmp_path)
    # rank 0 reads 0, 2 and 4, rank 1 reads 1, 3 and 5: the gradient of the weight is the mean of all
    assert "3 6.0 torch.float16 -0.25\n" in done.stdout, done.stdout + done.stderr
