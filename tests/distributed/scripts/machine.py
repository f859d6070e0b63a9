"""A user's script, started once on each of two machines or once for each process, without RANK."""

from __future__ import annotations

import json
import sys

if sys.argv[2] == "compat":
    import lightlib_lightning

    lightlib_lightning.install()
    import lightning as L
else:
    import lightlib as L  # as with an import of one of the two

import torch
from torch.utils.data import DataLoader, TensorDataset

KIND, _, DEVICES = sys.argv[1:4]
WHERE = {"accelerator": "cpu", "devices": int(DEVICES), "num_nodes": 2, "strategy": "ddp"}
OFF = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)


class Line(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.ones_(self.layer.weight)

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        return self.layer(batch[0]).sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.5)


if KIND == "trainer":
    trainer = L.Trainer(max_epochs=1, **WHERE, **OFF)
    module = Line()
    data = TensorDataset(torch.arange(1.0, trainer.world_size + 1).unsqueeze(1))
    trainer.fit(module, DataLoader(data, batch_size=1))
    found = [trainer.global_rank, trainer.local_rank, trainer.node_rank, trainer.world_size, module.layer.weight.item()]
else:
    fabric = L.Fabric(**WHERE)
    fabric.launch()
    total = fabric.all_reduce(torch.tensor(float(fabric.global_rank)), reduce_op="sum").item()
    found = [fabric.global_rank, fabric.local_rank, fabric.node_rank, fabric.world_size, total]
sys.stdout.write(f"RESULT {json.dumps(found)}\n")
