"""The charts of two spawned processes: steps and values of a logger in fit and validate, and saves."""

import json
from pathlib import Path

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only
from torch.utils.data import DataLoader, TensorDataset


class Calls(Logger):
    """Appends its calls to a file: they are made in a process that ends."""

    name, version, save_dir = "calls", "0", "out"

    @rank_zero_only
    def note(self, *call):
        with Path("calls.jsonl").open("a") as file:
            file.write(json.dumps(call) + "\n")

    def log_metrics(self, metrics, step=None):
        self.note(step, sorted((name, round(float(value), 5)) for name, value in metrics.items()))

    def log_hyperparams(self, *args, **kwargs):
        pass

    def save(self):
        self.note("save")

    def after_save_checkpoint(self, checkpoint_callback):
        self.note("checkpoint", Path(checkpoint_callback.best_model_path).name)

    def finalize(self, status):
        self.note(status)


class Sizes(Callback):
    """Logs values of its own."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.log("size", float(len(batch[0])), reduce_fx="sum", on_step=True, on_epoch=True, sync_dist=True)

    def on_validation_epoch_end(self, trainer, pl_module):
        self.log("rank", float(trainer.global_rank + 1), sync_dist=True, reduce_fx="max")


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.2), torch.nn.Linear(4, 1))

    def training_step(self, batch, batch_idx):
        loss = (self.layers(batch[0]) - batch[1]).square().mean()
        self.log("loss", loss, on_step=True, on_epoch=True, sync_dist=True)
        self.log("local", loss, on_step=True, on_epoch=False)  # the number of rank zero
        self.log("first", batch[0][0, 0], on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, batch_idx):
        loss = (self.layers(batch[0]) - batch[1]).square().mean()
        self.log("val", loss, on_step=True, on_epoch=True, sync_dist=True)
        self.log_dict({"a": loss * 2, "b": batch[0].sum()}, sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 3), "interval": "step"}]


def data(count):
    inputs = torch.arange(count * 3.0).reshape(count, 3).sin()
    return TensorDataset(inputs, inputs.sum(1, keepdim=True))


def calls():
    """Return the calls, and apart from them the saved files, which lightlib writes at the next save point.

    The saves of the logger before checkpoints are left out: only lightlib makes them.
    """
    noted = [json.loads(line) for line in Path("calls.jsonl").read_text().splitlines()]
    kept = [call for call in noted if call[0] != "checkpoint"]
    single = [call for number, call in enumerate(kept) if call != ["save"] or kept[number - 1] != call]
    return single, [call[1] for call in noted if call[0] == "checkpoint"]


def run():
    seed_everything(3)
    Path("calls.jsonl").write_text("")
    files = ModelCheckpoint("files", filename="{epoch}-{step}", save_top_k=2, monitor="val_epoch")
    trainer = Trainer(
        accelerator="cpu", devices=2, strategy="ddp_spawn", logger=Calls(), log_every_n_steps=3, max_epochs=3,
        callbacks=[files, EarlyStopping("val_epoch", patience=3), Sizes(), LearningRateMonitor("step")],
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    model, val = Model(), DataLoader(data(11), batch_size=2)
    trainer.fit(model, DataLoader(data(26), batch_size=3, shuffle=True), val)
    fitted, saved = calls()
    metrics = trainer.validate(model, val, verbose=False)
    return {
        "calls": fitted,
        "saved": saved,
        # lightlib knows the position that Lightning leaves in the spawned processes
        "validated": [[row for row in call[1] if row[0] != "epoch"] for call in calls()[0][len(fitted) :] if call[1:]],
        "best": Path(files.best_model_path).name,
        "weights": [round(value, 5) for value in model.layers[0].weight.flatten().tolist()],
        "end": [trainer.interrupted, trainer.state.finished, trainer.state.fn == "validate"],
        "metrics": [{name: round(value, 5) for name, value in each.items()} for each in metrics],
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(run()))
