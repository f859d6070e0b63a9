"""Subclasses of ModelCheckpoint that override or call Lightning's private methods, as projects do."""

import json
import os

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader


class Gated(ModelCheckpoint):
    """Saves a ranked file only while another metric is in a band."""

    def _save_topk_checkpoint(self, trainer, monitor_candidates):
        self.seen.append(sorted(monitor_candidates))
        if monitor_candidates["band"] > 0:
            super()._save_topk_checkpoint(trainer, monitor_candidates)


class Late(ModelCheckpoint):
    """Saves nothing in the first epochs."""

    def _should_skip_saving_checkpoint(self, trainer):
        return trainer.current_epoch < 2 or super()._should_skip_saving_checkpoint(trainer)


class Written(ModelCheckpoint):
    """Writes the hooks again."""

    def on_train_epoch_end(self, trainer, pl_module):
        self.seen.append([self._should_save_on_train_epoch_end(trainer), self._every_n_epochs])
        if self._should_skip_saving_checkpoint(trainer) or not self._should_save_on_train_epoch_end(trainer):
            return
        candidates = self._monitor_candidates(trainer)
        if self._every_n_epochs >= 1 and (trainer.current_epoch + 1) % self._every_n_epochs == 0:
            self._save_topk_checkpoint(trainer, candidates)
            self.seen.append(os.path.exists(self.best_model_path))
        self._save_last_checkpoint(trainer, candidates)

    def on_validation_end(self, trainer, pl_module):
        pass


class AtTheEnd(ModelCheckpoint):
    """Saves a last time when training has ended."""

    def on_train_end(self, trainer, pl_module):
        if self._last_global_step_saved != trainer.global_step:
            candidates = self._monitor_candidates(trainer)
            self._save_topk_checkpoint(trainer, candidates)
            self._save_last_checkpoint(trainer, candidates)  # without save_last it writes nothing
        self.seen.append([self._last_global_step_saved, os.path.basename(self._last_checkpoint_saved)])


class Phases(ModelCheckpoint):
    """Decides in `setup` when to save, and looks at each save."""

    def setup(self, trainer, pl_module, stage):
        self.seen.append(self._save_on_train_epoch_end)
        if self._save_on_train_epoch_end is None:
            self._save_on_train_epoch_end = False
        super().setup(trainer, pl_module, stage)

    def _monitor_candidates(self, trainer):
        candidates = super()._monitor_candidates(trainer)
        return {**candidates, "val_loss": -candidates["val_loss"]}

    def _save_monitor_checkpoint(self, trainer, monitor_candidates):
        super()._save_monitor_checkpoint(trainer, monitor_candidates)
        self.seen.append([monitor_candidates["epoch"].item(), round(self.kth_value.item(), 4)])

    def _update_best_and_save(self, current, trainer, monitor_candidates):
        self.seen.append(round(current.item(), 4))
        super()._update_best_and_save(current, trainer, monitor_candidates)


class OwnFiles(ModelCheckpoint):
    """Writes its files itself."""

    def _save_checkpoint(self, trainer, filepath):
        trainer.save_checkpoint(filepath, True)
        self._last_global_step_saved = trainer.global_step
        self._last_checkpoint_saved = filepath
        self.seen.append(os.path.basename(filepath))

    def _save_none_monitor_checkpoint(self, trainer, monitor_candidates):
        self.seen.append("none")
        super()._save_none_monitor_checkpoint(trainer, monitor_candidates)


class Idle(ModelCheckpoint):
    """Saves only for another callback."""

    def on_train_epoch_end(self, trainer, pl_module):
        pass

    def on_train_end(self, trainer, pl_module):
        pass


class SaveAll(Callback):
    """Has the callbacks save."""

    def on_train_end(self, trainer, pl_module):
        for one in trainer.checkpoint_callbacks:
            if not one._should_skip_saving_checkpoint(trainer):
                candidates = one._monitor_candidates(trainer)
                one._save_topk_checkpoint(trainer, candidates)
                one.seen.append(os.path.exists(one.best_model_path))
                one._save_last_checkpoint(trainer, candidates)
                one.seen.append([os.path.islink(one.last_model_path), one._should_skip_saving_checkpoint(trainer)])


class Model(LightningModule):
    def __init__(self, fails=False):
        super().__init__()
        self.layer, self.fails = torch.nn.Linear(1, 1), fails

    def training_step(self, batch, batch_idx):
        if self.fails and self.current_epoch == 2 and batch_idx == 1:
            raise ValueError
        return self.layer(batch).square().mean()

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", torch.tensor([8.0, 4.0, 5.0, 3.5, 6.0][self.current_epoch]))
        self.log("band", float(self.current_epoch != 3))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class OnError(ModelCheckpoint):
    """Decides itself whether to save after an error."""

    def _should_save_on_exception(self, trainer):
        self.seen.append(super()._should_save_on_exception(trainer))
        return False


MONITORED = {"monitor": "val_loss", "save_top_k": 2, "filename": "{epoch}-{step}"}
KINDS = {
    "gated": lambda: Gated("kept", **MONITORED),
    "late": lambda: Late("kept", **MONITORED),
    "late, by steps": lambda: Late("kept", every_n_train_steps=1, save_top_k=-1),
    "written": lambda: Written("kept", **MONITORED, save_last=True, every_n_epochs=2),
    "at the end": lambda: AtTheEnd("kept", every_n_epochs=2),
    "at the end, best": lambda: AtTheEnd("kept", every_n_epochs=2, **MONITORED),
    "phases": lambda: Phases("kept", **MONITORED),
    "own files": lambda: OwnFiles("kept", save_top_k=1),
    "own files, last": lambda: OwnFiles("kept", save_top_k=1, save_last=True),
    "save all": lambda: Idle("kept", save_last=True),
    "save all, link": lambda: Idle("kept", save_last="link", monitor="val_loss"),
    "on error": lambda: OnError("kept", save_top_k=0, save_on_exception=True),
}


def run(name, folder):
    seed_everything(5)
    os.makedirs(folder)
    os.chdir(folder)
    saver = KINDS[name]()
    saver.seen = []
    loader = DataLoader(torch.ones(4, 1), batch_size=2)
    trainer = Trainer(
        accelerator="cpu", max_epochs=5, callbacks=[saver, *([SaveAll()] if "all" in name else [])],
        logger=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    try:
        trainer.fit(Model(fails=name == "on error"), loader, loader)
    except ValueError:
        saver.seen.append("error")
    files = sorted(os.listdir("kept")) if os.path.isdir("kept") else []
    loaded = {file: torch.load(os.path.join("kept", file), weights_only=False) for file in files}
    return {
        "seen": saver.seen, "files": {file: [one["global_step"]] for file, one in loaded.items()},
        "paths": [os.path.basename(path) for path in (saver.best_model_path, saver.last_model_path)],
        "best": {os.path.basename(path): round(score.item(), 5) for path, score in saver.best_k_models.items()},
        "step": saver._last_global_step_saved,
    }  # fmt: skip


if __name__ == "__main__":
    here = os.getcwd()
    results = {name: run(name, os.path.join(here, name.replace(" ", "_"))) for name in KINDS}
    print("\n" + json.dumps(results))
