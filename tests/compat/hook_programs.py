"""Programs that note every hook that a Trainer calls, for Lightning and for lightlib in its place.

``python tests/compat/hook_programs.py`` with the Python of an environment that has Lightning 2.6.6 writes
hooks_2_6.json and drawn_2_6.json again.
"""

from __future__ import annotations

import enum
import json
import logging
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

STORED = Path(__file__).with_name("hooks_2_6.json")
STORED_DRAWN = Path(__file__).with_name("drawn_2_6.json")

_STAGES = ("validation", "test", "predict")
_PLAIN = [
    "on_fit_start", "on_fit_end", "on_train_start", "on_train_end", "on_train_epoch_start", "on_train_epoch_end",
    "on_after_backward",
    *(f"on_{stage}_{moment}" for stage in _STAGES for moment in ("start", "epoch_start", "epoch_end", "end")),
]  # fmt: skip
# The arguments of each hook of modules and callbacks.
SHARED: dict[str, str] = {
    "setup": "stage",
    "teardown": "stage",
    **dict.fromkeys(_PLAIN, ""),
    "on_train_batch_start": "batch, batch_idx",
    "on_train_batch_end": "outputs, batch, batch_idx",
    **{f"on_{stage}_batch_start": "batch, batch_idx, dataloader_idx=0" for stage in _STAGES},
    **{f"on_{stage}_batch_end": "outputs, batch, batch_idx, dataloader_idx=0" for stage in _STAGES},
    "on_before_backward": "loss",
    "on_before_optimizer_step": "optimizer",
    "on_before_zero_grad": "optimizer",
    "on_save_checkpoint": "checkpoint",
    "on_load_checkpoint": "checkpoint",
}
OF_CALLBACK = {
    **SHARED,
    "on_sanity_check_start": "",
    "on_sanity_check_end": "",
    "on_exception": "exception",
    "state_dict": "",
    "load_state_dict": "state_dict",
}
TRANSFER = {
    "on_before_batch_transfer": "batch, dataloader_idx",
    "transfer_batch_to_device": "batch, device, dataloader_idx",
    "on_after_batch_transfer": "batch, dataloader_idx",
}
LOADERS = dict.fromkeys(
    ("prepare_data", "train_dataloader", "val_dataloader", "test_dataloader", "predict_dataloader"), ""
)
OF_MODULE = {
    **SHARED,
    "prepare_data": "",
    "configure_model": "",
    "configure_callbacks": "",
    "configure_optimizers": "",
    **{f"on_{stage}_model_{mode}": "" for stage in _STAGES for mode in ("eval", "train")},
    "on_validation_model_zero_grad": "",
    "training_step": "batch, batch_idx",
    "validation_step": "batch, batch_idx, dataloader_idx=0",
    "test_step": "batch, batch_idx, dataloader_idx=0",
    "predict_step": "batch, batch_idx, dataloader_idx=0",
}
del OF_MODULE["on_predict_model_train"]  # the base class has none
# Hooks which a module rarely overrides, for they take a part of the step over.
OF_STEP = {
    "backward": "loss",
    "optimizer_step": "epoch, batch_idx, optimizer, optimizer_closure=None",
    "optimizer_zero_grad": "epoch, batch_idx, optimizer",
    "configure_gradient_clipping": "optimizer, gradient_clip_val=None, gradient_clip_algorithm=None",
    "lr_scheduler_step": "scheduler, metric",
    **TRANSFER,
}
OF_DATA = {
    **LOADERS,
    "setup": "stage",
    "teardown": "stage",
    "state_dict": "",
    "load_state_dict": "state_dict",
    "on_exception": "exception",
}


def described(value: Any) -> str:
    """Return the kind of an argument in a word."""
    import lightning.pytorch as pl

    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    if isinstance(value, BaseException):
        return type(value).__name__
    kinds = {torch.Tensor: "Tensor", torch.optim.Optimizer: "Optimizer", torch.device: "device"}
    kinds |= {pl.Trainer: "Trainer", pl.LightningModule: "Module", torch.optim.lr_scheduler.LRScheduler: "Schedule"}
    for kind, word in kinds.items():
        if isinstance(value, kind):
            return word
    if isinstance(value, dict):
        return "{" + ", ".join(key for key in value if key == "loss") + "}"
    return "call" if callable(value) else type(value).__name__


def noting(base: type, name: str, arguments: str, owner: str, before: str = "") -> Callable[..., Any]:
    """Return a method `name` with these arguments that notes its call, then calls that of `base`."""
    whole = ", ".join(part for part in ("self", before, arguments) if part)
    passed = [part.split("=")[0].strip() for part in f"{before}, {arguments}".split(",") if part.strip()]
    body = f"def {name}({whole}): return _noted(self, [{', '.join(passed)}])"

    def noted(self: Any, values: list[Any]) -> Any:
        trainer = values[0] if before else self.trainer
        where = "" if trainer is None else f" @{trainer.current_epoch}:{trainer.global_step}"
        modes = ""
        module = values[1] if before else self
        loading = name.endswith(
            "_dataloader"
        )  # Lightning calls some of these without gradients, of which tensors may stay
        if trainer is not None and isinstance(module, torch.nn.Module) and not loading and name != "on_exception":
            modes = f" {'train' if module.training else 'eval'}{'' if torch.is_grad_enabled() else ' no_grad'}"
        said = ", ".join(described(value) for value in (values[2:] if before else values))
        self.calls.append(f"{owner}.{name}({said}){where}{modes}")
        return self.answer(name, base, values)

    space: dict[str, Any] = {"_noted": noted}
    exec(body, space)
    return space[name]


def recorders(extra: bool) -> tuple[type, type, type]:
    """Return the classes of a module, a data module and a callback that note their calls."""
    import lightning.pytorch as pl

    def answer(self: Any, name: str, base: type, values: list[Any]) -> Any:
        raising = self.options.get("raises", {}).get(f"{type(self).__name__}.{name}")
        if raising is not None:
            seen = sum(call.startswith(f"{self.owner}.{name}(") for call in self.calls)
            if seen == raising:
                raise RuntimeError("on purpose")
        special = getattr(self, f"do_{name}", None)
        if special is not None:
            return special(*values)
        return getattr(base, name)(self, *values)

    def build(name: str, base: type, owner: str, hooks: dict[str, str], before: str = "") -> type:
        methods: dict[str, Any] = {
            hook: noting(base, hook, arguments, owner, "" if hook in ("state_dict", "load_state_dict") else before)
            for hook, arguments in hooks.items()
        }
        # The calls are output: as an attribute, a resumed run would continue them with those of the checkpoint.
        members = {**methods, "answer": answer, "owner": owner, "not_in_checkpoint": ("calls",)}
        return type(name, (base,), {**members, "trainer": None} if before else members)

    module = build("Net", pl.LightningModule, "module", {**OF_MODULE, **LOADERS, **(OF_STEP if extra else {})})
    data = build("Data", pl.LightningDataModule, "data", {**OF_DATA, **(TRANSFER if extra else {})})
    callback = build("Listener", pl.Callback, "callback", OF_CALLBACK, "trainer, pl_module")
    data.do_state_dict = callback.do_state_dict = lambda self: {"number": 1}
    data.do_load_state_dict = callback.do_load_state_dict = lambda self, state: None
    return _with_answers(module), _with_loaders(data), callback


def _with_loaders(kind: type) -> type:
    def loader(self: Any, n: int) -> DataLoader[Any]:
        return DataLoader(TensorDataset(torch.arange(2.0 * n).reshape(-1, 1)), batch_size=2)

    kind.do_train_dataloader = lambda self: loader(self, self.options.get("train", 4))
    for stage in ("val", "test", "predict"):

        def several(self: Any) -> Any:
            given = [loader(self, 2), loader(self, 1)][: self.options.get("loaders", 1)]
            return given[0] if len(given) == 1 else given

        setattr(kind, f"do_{stage}_dataloader", several)
    kind.__init__ = _init(kind)
    return kind


def _init(kind: type) -> Callable[..., None]:
    def init(self: Any, calls: list[str], options: dict[str, Any]) -> None:
        super(kind, self).__init__()
        self.calls, self.options = calls, options
        if isinstance(self, torch.nn.Module):
            self.layer = torch.nn.Linear(1, 1)
            self.automatic_optimization = not options.get("manual", False)

    return init


def _with_answers(kind: type) -> type:
    def training_step(self: Any, batch: Any, batch_idx: int) -> Any:
        loss = self.layer(batch[0]).pow(2).mean() * 1e-3
        if batch_idx in self.options.get("none", ()):
            return None
        if batch_idx in self.options.get("stop", ()):
            self.trainer.should_stop = True
        self.log("loss", loss, on_epoch=True)
        if not self.automatic_optimization:
            for optimizer in self.optimizers():
                optimizer.zero_grad()
                self.manual_backward(self.layer(batch[0]).pow(2).mean())
                optimizer.step()
            return None if self.options.get("returns") is None else {"loss": loss, "more": 1}
        return {"loss": loss, "more": 1} if self.options.get("returns") == "dict" else loss

    def validation_step(self: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        self.log("val", self.layer(batch[0]).mean())
        return {"loss": batch[0].mean()}

    def configure_optimizers(self: Any) -> Any:
        if not self.automatic_optimization:
            return [torch.optim.SGD(self.parameters(), lr=0.1), torch.optim.SGD(self.parameters(), lr=0.1)]
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        kind = self.options.get("schedule")
        if kind is None:
            return optimizer
        if kind == "plateau":
            schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "val"}}
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        return [optimizer], [{"scheduler": schedule, "interval": kind}]

    kind.do_training_step, kind.do_configure_optimizers = training_step, configure_optimizers
    kind.do_validation_step = kind.do_test_step = validation_step
    kind.do_predict_step = lambda self, batch, batch_idx, dataloader_idx=0: self.layer(batch[0])
    return _with_loaders(kind)


def program(
    arguments: dict[str, Any],
    *,
    calls_of: tuple[str, ...] = ("fit",),
    extra: bool = False,
    data: bool = False,
    monitor: str = "",
    resume: dict[str, Any] | None = None,
    **options: Any,
) -> list[str]:
    """Run a Trainer with these arguments, and return the calls in order."""
    import lightning.pytorch as pl

    torch.manual_seed(0)
    net, data_kind, callback_kind = recorders(extra)
    calls: list[str] = []
    options["loaders"] = options.get("loaders", 1)

    def listener(name: str) -> Any:
        made = callback_kind()
        made.calls, made.options, made.owner = calls, options, name
        return made

    with tempfile.TemporaryDirectory() as folder:

        def trainer(**changed: Any) -> Any:
            callbacks: list[Any] = [listener("callback")]
            if monitor:
                callbacks.append(pl.callbacks.ModelCheckpoint(folder, monitor=monitor, **options.get("checkpoint", {})))
            return pl.Trainer(
                **{
                    "accelerator": "cpu",
                    "logger": False,
                    "enable_progress_bar": False,
                    "enable_model_summary": False,
                    "enable_checkpointing": bool(monitor),
                    "max_epochs": 2,
                    "default_root_dir": folder,
                    "callbacks": callbacks,
                    **arguments,
                    **changed,
                }
            )

        module = net(calls, options)
        given = {"datamodule": data_kind(calls, options)} if data else {}
        this = trainer()
        if resume is not None:
            this.fit(module, **given)
            this.save_checkpoint(f"{folder}/resume.ckpt")
            calls.append("--- resumed")
            this, module = trainer(**resume), net(calls, options)
            given = {
                **({"datamodule": data_kind(calls, options)} if data else {}),
                "ckpt_path": f"{folder}/resume.ckpt",
            }
        for name in calls_of:
            calls.append(f"--- {name}")
            try:
                getattr(this, name)(module, **given)
            except RuntimeError as error:
                calls.append(f"--- raised {error}")
    return calls


PROGRAMS: dict[str, Callable[[], list[str]]] = {
    "fit": lambda: program({}),
    "fit with every hook of the step": lambda: program({"gradient_clip_val": 0.5}, extra=True, schedule="epoch"),
    "fit with a data module": lambda: program({}, extra=True, data=True, schedule="step"),
    "four verbs": lambda: program({"max_epochs": 1}, calls_of=("fit", "validate", "test", "predict"), extra=True),
    "four verbs with a data module": lambda: program(
        {"max_epochs": 1}, calls_of=("fit", "validate", "test", "predict"), data=True
    ),
    "several loaders": lambda: program({"max_epochs": 1}, calls_of=("fit", "validate", "test", "predict"), loaders=2),
    "validation within the epoch": lambda: program({"val_check_interval": 2}, train=5),
    "validation every second epoch": lambda: program({"check_val_every_n_epoch": 2, "max_epochs": 3}, train=2),
    "validation across epochs": lambda: program(
        {"check_val_every_n_epoch": None, "val_check_interval": 3, "max_epochs": 3}, train=2
    ),
    "no validation": lambda: program({"limit_val_batches": 0}),
    "no sanity check": lambda: program({"num_sanity_val_steps": 0}),
    "no sanity check, validation every second epoch": lambda: program(
        {"num_sanity_val_steps": 0, "check_val_every_n_epoch": 2, "max_epochs": 3}, train=2
    ),
    "limits": lambda: program({"limit_train_batches": 2, "limit_val_batches": 1, "max_epochs": 1}),
    "accumulation": lambda: program({"accumulate_grad_batches": 2}, train=5),
    "accumulation with every hook of the step": lambda: program(
        {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5}, train=5, extra=True, schedule="step"
    ),
    "dictionaries": lambda: program({"max_epochs": 1}, returns="dict"),
    "steps without a loss": lambda: program({"max_epochs": 1}, none=(1, 3)),
    "manual": lambda: program({"max_epochs": 1}, manual=True),
    "manual with every hook of the step": lambda: program({"max_epochs": 1}, manual=True, returns="dict", extra=True),
    "plateau": lambda: program({}, schedule="plateau", extra=True),
    "max_steps": lambda: program({"max_steps": 6, "max_epochs": -1}),
    "max_steps within a window": lambda: program({"max_steps": 2, "accumulate_grad_batches": 2}, train=8),
    "should_stop": lambda: program({"max_epochs": 3}, stop=(1,)),
    "fast_dev_run": lambda: program({"fast_dev_run": True}),
    "checkpoint of a metric": lambda: program({}, monitor="val"),
    "checkpoint every two steps": lambda: program({}, monitor="loss", checkpoint={"every_n_train_steps": 2}, data=True),
    "resume": lambda: program({"max_epochs": 1}, resume={"max_epochs": 2}),
    "resume with a data module": lambda: program(
        {"max_epochs": 1}, resume={"max_epochs": 2}, data=True, schedule="epoch"
    ),
    "reload": lambda: program({"reload_dataloaders_every_n_epochs": 1, "max_epochs": 3}, train=2),
    "error in training_step": lambda: program({}, raises={"Net.training_step": 2}),
    "error in validation_step": lambda: program({}, raises={"Net.validation_step": 4}),
    "error in the sanity check": lambda: program({}, raises={"Net.validation_step": 1}, data=True),
    "error in test_step": lambda: program({}, calls_of=("test",), raises={"Net.test_step": 1}, data=True),
    "error in predict_step": lambda: program({}, calls_of=("predict",), raises={"Net.predict_step": 2}),
    "error in setup": lambda: program({}, raises={"Net.setup": 1}),
    "error in configure_optimizers": lambda: program({}, raises={"Net.configure_optimizers": 1}),
}


def drawn(reload: int = 0, shuffle: bool = False, fits: int = 1, workers: int = 0) -> dict[str, Any]:
    """Train a module that draws random numbers wherever it can, in several fits, and return them."""
    import lightning.pytorch as pl

    seen: dict[str, Any] = {"train": [], "val": [], "steps": [], "validation": []}

    class Draws(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.example_input_array = torch.ones(1, 1)
            self.layer = torch.nn.Linear(1, 1)

        def forward(self, x: Any) -> Any:
            return self.layer(x) * torch.rand(1)

        def data(self, kind: str) -> DataLoader[Any]:
            seen[kind].append(torch.rand(1).item())
            samples, train = torch.rand(8, 1), kind == "train"
            return DataLoader(samples, batch_size=2, shuffle=shuffle and train, num_workers=workers if train else 0)

        def train_dataloader(self) -> Any:
            return self.data("train")

        def val_dataloader(self) -> Any:
            return self.data("val")

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            seen["steps"].append(torch.rand(1).item())
            return self(batch).pow(2).mean()

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            seen["validation"].append(torch.rand(1).item())

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    torch.manual_seed(7)
    net = Draws()
    trainer = pl.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        max_epochs=3,
        reload_dataloaders_every_n_epochs=reload,
    )
    trainer.fit(net)
    for _ in range(fits - 1):
        trainer.fit_loop.max_epochs += 1
        trainer.fit(net)
    return {**seen, "weight": net.layer.weight.item()}


DRAWN: dict[str, dict[str, Any]] = {
    "once": {},
    "shuffled": {"shuffle": True},
    "reloaded": {"reload": 1},
    "three fits": {"shuffle": True, "fits": 3},
    "three fits, reloaded": {"reload": 1, "fits": 3},
    "two fits, reloaded, a worker": {"shuffle": True, "reload": 1, "fits": 2, "workers": 1},
}


def record() -> dict[str, list[str]]:
    """Run all programs with the Lightning that is imported."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    return {name: run() for name, run in PROGRAMS.items()}


if __name__ == "__main__":
    STORED.write_text(json.dumps(record(), indent=0) + "\n", encoding="utf-8")
    STORED_DRAWN.write_text(json.dumps({name: drawn(**how) for name, how in DRAWN.items()}) + "\n", encoding="utf-8")
