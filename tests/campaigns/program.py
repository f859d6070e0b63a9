"""The program that the campaigns kill: all that a resume can get wrong, and ckpt_path="auto"."""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from schedulefree import AdamWScheduleFree
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset
from torchmetrics.classification import MulticlassAccuracy

import lightlib as L
from lightlib.callbacks import (
    ActivationMonitor,
    BaseFinetuning,
    BatchSizeFinder,
    Callback,
    EarlyStopping,
    EMAWeightAveraging,
    History,
    LearningRateFinder,
    LearningRateMonitor,
    ModelCheckpoint,
    ModelPruning,
    NormMonitor,
    PreciseBN,
    QuantizationAwareTraining,
    SpikeDetection,
    StochasticWeightAveraging,
)
from lightlib.data import MixtureDataset
from lightlib.loggers import CSVLogger, TensorBoardLogger
from lightlib.losses import ReferenceModel, group_advantages, grpo_loss, token_log_probs
from lightlib.optim import MuonAdamW
from lightlib.samplers import ClassBalancedSampler, RepeatSampler
from tests.campaigns import phases
from tests.campaigns.own_state import ChangesData, Epochs, KeepsOddState, KeepsOwnState, Slowing
from tests.gpu.device import PretendedAccelerator

STRATEGIES = {"one": 1, "ddp": 2, "fsdp": 2, "pipeline": 2, "ddp3": 3}  # with how many processes
OUTCOME = "outcome.pt"
_SWITCHES = (
    *("plain", "own", "batteries", "phased", "pruned", "sampled", "sized", "odd", "trainable", "muon", "free"),
    *("counted", "several", "compiled", "short", "rounded", "policy", "mixed"),
)


@dataclass(frozen=True)
class Configuration:
    """One way to train.

    Attributes:
        strategy: "one" (device), "ddp", "fsdp" or "pipeline", which have two processes, or "ddp3".
        workers: Of both loaders; they draw noise from all three generators.
        accumulate: Batches per optimizer step.
        precision: "fp32", or "fp16" with a loss scaler.
        asynchronous: Whether checkpoints are written in the background.
        format: "file", "directory", or "" for the strategy's own.
        epochs: The length of the run.
        plain: Leave out what takes time and touches no file: workers' noise, TensorBoard.
        own: Keep state in objects of the user's, which no method of theirs saves.
        batteries: Use the callbacks with state that are left out otherwise: an average of the weights, a search.
        phased: Use the callbacks that change the training from an epoch on: a frozen layer, an average of the weights
            of the last epochs, and exact statistics of batch norms.
        pruned: Prune weights, which go back to their first values.
        sampled: Draw as many samples of each class in several passes per epoch, in place of a plain shuffle.
        sized: Search for the batch size, which the loaders of the module then have.
        accelerator: The accelerator: "cpu", "cuda" or "pretended", the CPU in the place of a GPU.
        odd: Keep state of odd kinds (queues, records of NumPy, a replay buffer) and in odd places (the class, the
            optimizer), which no method saves.
        trainable: Leave frozen weights out of the checkpoints, with `phased` until they are trained.
        muon: Step with Muon and AdamW.
        free: Step with a schedule-free optimizer, which validates and saves an average.
        counted: End, validate, save and lower the learning rate by the number of samples.
        several: Validate on two loaders with names, one of them in every second epoch only.
        short: Run out of memory with more than two samples, so that batches are trained in parts.
        compiled: Compile the blocks, compute their activations again, and keep their inputs on the CPU.
        rounded: Train linear layers with weights that are rounded to 4 bits.
        policy: Sample answers in each step and train on their rewards, with a reference model.
        mixed: Read two data sets in proportion, and watch norms and activations of layers, and spikes of the loss.
    """

    strategy: str = "one"
    workers: int = 0
    accumulate: int = 1
    precision: str = "fp32"
    asynchronous: bool = False
    format: str = ""
    epochs: int = 3
    plain: bool = False
    own: bool = False
    batteries: bool = False
    phased: bool = False
    pruned: bool = False
    sampled: bool = False
    sized: bool = False
    odd: bool = False
    trainable: bool = False
    muon: bool = False
    free: bool = False
    counted: bool = False
    several: bool = False
    compiled: bool = False
    short: bool = False
    rounded: bool = False
    policy: bool = False
    mixed: bool = False
    accelerator: str = "cpu"

    @property
    def processes(self) -> int:
        """How many processes train."""
        return STRATEGIES[self.strategy]

    @property
    def name(self) -> str:
        """Name of this configuration in the reports; `named` parses it."""
        parts = [self.strategy, f"workers{self.workers}", f"accumulate{self.accumulate}", self.precision]
        parts += ["async" if self.asynchronous else "sync", *([self.format] if self.format else [])]
        parts += [f"epochs{self.epochs}"] if self.epochs != 3 else []
        parts += [self.accelerator] if self.accelerator != "cpu" else []
        return "-".join([*parts, *(name for name in _SWITCHES if getattr(self, name))])

    @classmethod
    def named(cls, name: str) -> Configuration:
        """Return the configuration of this name."""
        strategy, *parts = name.split("-")
        found: dict[str, Any] = {"strategy": strategy}
        for part in parts:
            for key in ("workers", "accumulate", "epochs"):
                if part.startswith(key):
                    found[key] = int(part.removeprefix(key))
            if part in ("fp32", "fp16"):
                found["precision"] = part
            if part in ("async", "sync"):
                found["asynchronous"] = part == "async"
            if part in ("file", "directory"):
                found["format"] = part
            if part in ("cuda", "pretended"):
                found["accelerator"] = part
            if part in _SWITCHES:
                found[part] = True
        return cls(**found)


class Noisy(Dataset):
    """Samples to which Python, NumPy and torch add noise, in the process that loads them."""

    def __init__(self, count: int, noise: float) -> None:
        generator = torch.Generator().manual_seed(count)
        self.x = torch.randn(count, 6, generator=generator)
        self.y = (self.x @ torch.randn(6, 3, generator=torch.Generator().manual_seed(0))).argmax(1)
        self.noise = noise

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        noise = random.random() + float(np.random.rand()) - 1 + torch.randn(6) if self.noise else 0.0
        return self.x[index] + self.noise * noise, self.y[index]


class Classifier(L.Module):
    """Dropout, accumulated metrics of both kinds, AdamW, a schedule per step."""

    def __init__(self, batch_norm: bool) -> None:
        super().__init__()
        first = [nn.Linear(6, 16), *([nn.BatchNorm1d(16)] if batch_norm else []), nn.Tanh(), nn.Dropout(0.2)]
        self.model = nn.Sequential(*first, nn.Linear(16, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 3))
        self.lr, self.interval, self.most = 0.02, "step", 99
        self.accuracy, self.val_accuracy = MulticlassAccuracy(3), MulticlassAccuracy(3)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        logits = self.model(x)
        if len(x) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        loss = cross_entropy(logits, y)
        self.accuracy(logits, y)
        self.log("loss", loss, on_step=True, on_epoch=True, batch_size=len(y))
        self.log("largest", logits.max(), on_step=False, on_epoch=True, reduce_fx="max")
        self.log("accuracy", self.accuracy, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        logits = self.model(x)
        self.val_accuracy(logits, y)
        self.log("val_loss", cross_entropy(logits, y), sync_dist=True)
        self.log("val_accuracy", self.val_accuracy)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], self.lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
        return [optimizer], [{"scheduler": schedule, "interval": self.interval}]


class Owner(KeepsOwnState, Classifier):
    """The same module, with user state."""

    def __init__(self, batch_norm: bool, freezes: bool) -> None:
        super().__init__(batch_norm)
        self.freezes = freezes
        self.keep()
        if freezes:
            self.extra = nn.Parameter(torch.ones(2), requires_grad=False)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self.weighted(super().training_step(batch, batch_idx))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], lr=0.02)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.9)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class Odd(KeepsOddState, Classifier):
    """The same module, with state of odd kinds."""

    def __init__(self, batch_norm: bool) -> None:
        super().__init__(batch_norm)
        self.keep_odd()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self.weighted_odd(super().training_step(batch, batch_idx))

    def configure_optimizers(self) -> Any:
        return Slowing(self.parameters(), lr=0.02)


class Orthogonal(Classifier):
    """The same module, with Muon for its hidden layers."""

    def configure_optimizers(self) -> Any:
        optimizer = MuonAdamW(self, lr=0.02)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class Free(Classifier):
    """The same module, with a schedule-free optimizer."""

    def configure_optimizers(self) -> Any:
        return AdamWScheduleFree(self.parameters(), lr=0.02, warmup_steps=5)


class Policy(Classifier):
    """The same module, which samples a group of classes for each sample and gets a reward for the right one."""

    def __init__(self, batch_norm: bool) -> None:
        super().__init__(batch_norm)
        self.reference = ReferenceModel(self.model)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = (part.repeat_interleave(4, 0) for part in batch)
        logits = self.model(x)
        answers = torch.multinomial(logits.detach().float().softmax(1), 1)
        rewards = (answers[:, 0] == y).float()
        policy, reference = (token_log_probs(scores[:, None], answers) for scores in (logits, self.reference(x)))
        self.log("reward", rewards.mean(), on_step=True, on_epoch=True, batch_size=len(y))
        return grpo_loss(policy, group_advantages(rewards, 4), reference_log_probs=reference)


class Several(Classifier):
    """The same module, with a plateau schedule that reads a loss of one of several loaders."""

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.log("val_loss", cross_entropy(self.model(batch[0]), batch[1]), sync_dist=True)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), self.lr)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "val_loss/noisy"}}


class Sized(Classifier):
    """The same module, with loaders of its own and a batch size that is searched for."""

    def __init__(self, batch_norm: bool, how: Configuration) -> None:
        super().__init__(batch_norm)
        self.how, self.batch_size = how, 2

    def train_dataloader(self) -> DataLoader:
        return loaders(self.how, self.batch_size)[0]

    def val_dataloader(self) -> DataLoader:
        return loaders(self.how, self.batch_size)[1]


class Unfreezes(BaseFinetuning):
    """Freezes layers for one epoch, with their batch norms."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self.names = names

    def freeze_before_training(self, pl_module: Any) -> None:
        self.freeze(self.layers(pl_module), train_bn=False)

    def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
        if epoch == 1:
            self.unfreeze_and_add_param_group(self.layers(pl_module), optimizer)

    def layers(self, pl_module: Any) -> list[nn.Module]:
        """Return the layers that this process has: a stage of a pipeline has some of them."""
        return [part for name, part in pl_module.model.named_children() if name in self.names]


class MovingAverage(Callback):
    """A moving average of the gradient norm, which all ranks know; it is logged and has state."""

    def __init__(self) -> None:
        self.value = torch.zeros(())

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.gradient_norm is not None:
            self.value = 0.9 * self.value + 0.1 * trainer.gradient_norm.detach().float()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            trainer.log_metrics_now({"moving_average": self.value})

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.value = state_dict["value"]


class TellsPhase(Callback):
    """Reports to the campaign where the run is; it has no state."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        phases.enter("train")

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        phases.event("batch")

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        phases.event("epoch end")

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        phases.enter("validate")

    def on_validation_batch_end(self, *args: Any, **kwargs: Any) -> None:
        phases.event("validation batch")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        phases.enter("start" if trainer.sanity_checking else "train")

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        phases.enter("end")


def loaders(how: Configuration, batch_size: int = 4) -> tuple[DataLoader, Any]:
    parts = 1 if how.strategy in ("one", "pipeline") else how.processes  # processes that have data of their own
    noise = 0.0 if how.plain and how.workers else 0.1
    size: dict[str, Any] = {"batch_size": batch_size, "num_workers": how.workers}
    order: dict[str, Any] = {"sampler": Epochs(51 * parts - 1)} if how.own else {"shuffle": True}
    data: Any = Noisy(51 * parts - 1, noise)
    if how.mixed:
        sources = {"clean": data, "noisy": Noisy(20 * parts, 2 * noise)}
        data = MixtureDataset(sources, {"clean": 0.7, "noisy": 0.3}, num_samples=51 * parts - 1, seed=3)
    if how.sampled:
        order = {"sampler": RepeatSampler(ClassBalancedSampler(data.y, 17 * parts), 3)}
    validation: Any = DataLoader(Noisy(16 * parts, noise), **size)
    if how.several:
        validation = {"clean": validation, "noisy": DataLoader(Noisy(12 * parts, 2 * noise), **size)}
    return DataLoader(data, **order, **size), validation


def callbacks(how: Configuration, where: Path) -> Iterator[Callback]:
    options: dict[str, Any] = {"async_save": True} if how.asynchronous else {}
    if how.format:
        options["format"] = how.format
    if how.trainable:
        options["save"] = "trainable"
    folder = where / "checkpoints"
    yield TellsPhase()
    yield MovingAverage()
    yield from [ChangesData()] if how.own else []
    frozen = ("3",) if how.strategy == "pipeline" else ("0", "1")  # each stage has to train something
    yield from [Unfreezes(frozen), StochasticWeightAveraging(0.005, 2, 2), PreciseBN(3)] if how.phased else []
    yield from [QuantizationAwareTraining(layers="model.*", group_size=2)] if how.rounded else []
    watching = [NormMonitor(layers="model.*"), ActivationMonitor("model.*"), SpikeDetection(rtol=99.0)]
    yield from watching * how.mixed
    yield from [ModelPruning("random_unstructured", amount=0.2)] if how.pruned else []
    yield from [BatchSizeFinder(steps_per_trial=1, max_val=4)] if how.sized else []
    yield from [ModelCheckpoint(folder, "counted-{step}", every="37sp", save_top_k=-1, **options)] * how.counted
    if how.batteries:
        yield LearningRateFinder(1e-4, 0.1, 20, early_stop_threshold=None)
        yield EMAWeightAveraging(decay=0.8, update_every_n_steps=2)
        yield History()
    yield LearningRateMonitor("step")
    loss = "val_loss/noisy" if how.several else "val_loss"
    yield EarlyStopping(loss, patience=99 if how.pruned else 4)  # pruning resets the weights
    yield ModelCheckpoint(folder, "best-{epoch}-{step}", monitor=loss, save_top_k=2, save_last=True, **options)
    yield ModelCheckpoint(folder, "every-{step}", every_n_train_steps=3 if how.accumulate == 1 else 2, **options)


def main(how: Configuration, where: Path) -> None:
    """Train, or resume training, and save the outcome."""
    L.seed_everything(5, verbose=False)
    batch_norm = how.strategy in ("one", "ddp", "ddp3") and not how.short  # a part may be a single sample
    module = Sized(batch_norm, how) if how.sized else Classifier(batch_norm)
    if how.own:
        module = Owner(batch_norm, freezes=how.strategy == "one")
    if how.odd:
        module = Odd(batch_norm)
    for switch, kind in (("muon", Orthogonal), ("free", Free), ("several", Several), ("policy", Policy)):
        module = kind(batch_norm) if getattr(how, switch) else module
    lengths: dict[str, Any] = {"max_epochs": how.epochs, "val_check_interval": 0.5}
    if how.several:
        lengths["check_val_every_n_epoch"] = {"noisy": 2}
    if how.counted:
        module.interval = "29sp"
        lengths = {"max_duration": f"{how.epochs * 50 * how.processes}sp", "val_check_interval": "43sp"}
    more: dict[str, Any] = {"accumulate_grad_batches": how.accumulate}
    if how.short:
        module.most, more = 2, {"accumulate_grad_batches": "auto"}
    if how.compiled:
        again = ["model.*"] if how.strategy == "pipeline" else ["model"]
        more |= {"compile": {"target": again, "backend": "aot_eager"}, "activation_offload": ["model.*"]}
        more["activation_checkpointing"] = {"target": again, "save": ["linear"]}
    loggers: list[Any] = [CSVLogger(where, "csv", 0, flush_logs_every_n_steps=4)]
    loggers += [] if how.plain else [TensorBoardLogger(where, "tensorboard", 0)]
    trainer = L.Trainer(
        accelerator=PretendedAccelerator() if how.accelerator == "pretended" else how.accelerator,
        devices=how.processes,
        strategy="auto" if how.strategy == "one" else how.strategy.rstrip("3"),
        precision="16-mixed" if how.precision == "fp16" else "32-true",
        **lengths,
        gradient_clip_val=1.0,
        log_every_n_steps=2,
        logger=loggers,
        callbacks=list(callbacks(how, where)),
        default_root_dir=where,
        enable_progress_bar=False,
        enable_model_summary=False,
        **more,
    )
    trainer.fit(module, *(() if how.sized else loaders(how)), ckpt_path="auto")
    outcome = {
        "weights": trainer.strategy.module_state(),
        "optimizer": [trainer.strategy.optimizer_state(optimizer) for optimizer in trainer.optimizers],
        "schedules": [config.scheduler.state_dict() for config in trainer.lr_scheduler_configs],
        "callbacks": {callback.state_key: callback.state_dict() for callback in trainer.callbacks},
        "metrics": dict(trainer.callback_metrics),
        "progress": trainer.progress.state_dict(),
    }
    if trainer.is_global_zero:
        torch.save(outcome, where / OUTCOME)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("where", type=Path, help="an empty folder, or the folder of a killed run to resume")
    parser.add_argument("name", nargs="?", default=Configuration().name, help="as campaign_kill names it")
    given = parser.parse_args()
    torch.set_num_threads(1)
    main(Configuration.named(given.name), given.where.resolve())
