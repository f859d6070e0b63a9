"""Subclasses of EarlyStopping that override or call Lightning's private methods, as real projects do."""

import json

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import EarlyStopping
from torch.utils.data import DataLoader


class Relative(EarlyStopping):
    """Compares relative improvements."""

    def _evaluate_stopping_criteria(self, current):
        self.seen.append([round(current.item(), 5), self.order_dict[self.mode]])
        if self.monitor_op(current, self.best_score.to(current.device) * (1 - 0.4)):
            self.best_score, self.wait_count = current, 0
            return False, None
        self.wait_count += 1
        return self.wait_count >= self.patience, "no relative improvement"


class Phases(EarlyStopping):
    """Decides where to check in `setup`, and starts another phase instead of stopping once."""

    def setup(self, trainer, pl_module, stage):
        self.seen.append(self._check_on_train_epoch_end)
        if self._check_on_train_epoch_end is None:
            self._check_on_train_epoch_end = False
        super().setup(trainer, pl_module, stage)

    def _evaluate_stopping_criteria(self, current):
        stops, reason = super()._evaluate_stopping_criteria(current)
        self.seen.append([stops, self.wait_count, self.stopping_reason.name])
        if stops and not any(entry == "phase" for entry in self.seen):
            self.seen.append("phase")
            self.wait_count = 0
            return False, reason
        return stops, reason


class AfterWarmup(EarlyStopping):
    """Writes the hook again."""

    def on_validation_end(self, trainer, pl_module):
        self.seen.append([self._check_on_train_epoch_end, self._should_skip_check(trainer)])
        if self._check_on_train_epoch_end or self._should_skip_check(trainer) or trainer.global_step < 4:
            return
        self._run_early_stopping_check(trainer)


class AtTheEnd(EarlyStopping):
    """Looks at the metric once."""

    def on_validation_end(self, trainer, pl_module):
        pass

    def on_train_epoch_end(self, trainer, pl_module):
        pass

    def on_train_end(self, trainer, pl_module):
        self._run_early_stopping_check(trainer)
        self.seen.append([self.wait_count, round(self.best_score.item(), 5), trainer.should_stop])


class From(EarlyStopping):
    """Begins with an epoch, and is silent about a metric that is not there."""

    def _run_early_stopping_check(self, trainer):
        self.seen.append(trainer.current_epoch)
        if trainer.current_epoch >= 2 and self.monitor in trainer.callback_metrics:
            super()._run_early_stopping_check(trainer)


class Skips(EarlyStopping):
    """Skips checks of every second epoch."""

    def _should_skip_check(self, trainer):
        self.seen.append(trainer.current_epoch)
        return super()._should_skip_check(trainer) or trainer.current_epoch % 2 == 1


class Tolerant(EarlyStopping):
    """Takes a metric that is not there for no reason to fail."""

    def _validate_condition_metric(self, logs):
        self.seen.append("val_loss" in logs)
        return self.monitor in logs and super()._validate_condition_metric(logs)


class Told(EarlyStopping):
    """Words improvements."""

    def _improvement_message(self, current):
        self.seen.append([round(current.item(), 5), round(self.best_score.item(), 5)])
        return "better"


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch).square().mean()

    def validation_step(self, batch, batch_idx):
        epoch = self.current_epoch
        self.log("val_loss", torch.tensor([8.0, 4.0, 3.0, 3.5, 1.0, 2.0, 2.5, 3.0, 0.5, 4.0, 4.5, 5.0][epoch]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


STOPPERS = {
    "relative": lambda: Relative("val_loss", patience=2),
    "phases": lambda: Phases("val_loss", patience=2),
    "warmup": lambda: AfterWarmup("val_loss", patience=2, check_on_train_epoch_end=False),
    "warmup by rhythm": lambda: AfterWarmup("val_loss", patience=2),
    "at the end": lambda: AtTheEnd("val_loss", patience=2),
    "from": lambda: From("val_loss", patience=1),
    "skips": lambda: Skips("val_loss", patience=2),
    "tolerant": lambda: Tolerant("nothing", patience=1),
    "told": lambda: Told("val_loss", patience=2, verbose=True, check_finite=False),
}


def run(name, **arguments):
    seed_everything(5)
    stopper = STOPPERS[name]()
    stopper.seen = []
    loader = DataLoader(torch.ones(4, 1), batch_size=2)
    trainer = Trainer(
        accelerator="cpu", max_epochs=12, callbacks=[stopper], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, **arguments,
    )  # fmt: skip
    trainer.fit(Model(), loader, loader)
    return {
        "seen": stopper.seen, "end": [trainer.current_epoch, trainer.global_step],
        "state": [stopper.wait_count, stopper.stopped_epoch, round(stopper.best_score.item(), 5)],
        "reason": stopper.stopping_reason.name,
    }  # fmt: skip


if __name__ == "__main__":
    results = {name: run(name) for name in STOPPERS}
    results["warmup, often"] = run("warmup by rhythm", val_check_interval=0.5, num_sanity_val_steps=0)
    by_hand = EarlyStopping("loss", patience=1)
    results["by hand"] = [by_hand._evaluate_stopping_criteria(torch.tensor(value))[0] for value in (2.0, 1.0, 1.5)]
    print("\n" + json.dumps(results))
