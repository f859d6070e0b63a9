"""PublishCheckpoint, PublishAdapter: write the best weights when a fit ends, or an adapter of peft."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from lightlib import report
from lightlib.callbacks.callback import Callback
from lightlib.callbacks.checkpoint.folder import absolute, on_rank_zero
from lightlib.callbacks.checkpoint.model_checkpoint import ModelCheckpoint
from lightlib.callbacks.checkpoint.saved import saver_for
from lightlib.callbacks.monitored import check_monitor
from lightlib.checkpoint import formats
from lightlib.checkpoint.directory.tensors import read_tensors
from lightlib.checkpoint.storage import filesystem
from lightlib.checkpoint.tools.publish import check_keys, publish
from lightlib.errors import LightlibError, MisconfigurationException, check_type, wrong_type

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer


class PublishCheckpoint(Callback):
    """Writes ``NAME-1a2b3c4d.ckpt`` when `fit` ends: the weights alone, with the first digits of the file's SHA-256.

    The weights are those of the best checkpoint of a `ModelCheckpoint`; without a metric, of its newest one.
    `torch.load` reads the file. The same weights have the same name, in any run. It is written by rank zero, and no
    run removes it. A run that ends by an exception or a signal publishes nothing.

    Args:
        filename: What the name begins with. Default: the name of the checkpoint.
        dirpath: The folder, local or remote. Default: the folder of the checkpoint.
        keys: The entries of the checkpoint to keep. Default: ``("state_dict",)``. With ``"hyper_parameters"``,
            `load_from_checkpoint` needs no arguments.
        monitor: The metric of the `ModelCheckpoint`, if there are several. Default: the first one.

    Attributes:
        published_path: The file; empty before.

    Raises:
        ArgumentTypeError: An argument has the wrong type.
        MisconfigurationException: `filename` has a folder, or `keys` no ``"state_dict"``; when `fit` begins: there is
            no such `ModelCheckpoint`.
        CheckpointError: When `fit` ends: the checkpoint cannot be read, or has not all `keys`.
        CheckpointWriteError: When `fit` ends: the file cannot be written.

    Example:
        >>> from lightlib.callbacks import ModelCheckpoint
        >>> callbacks = [ModelCheckpoint(monitor="val_loss"), PublishCheckpoint("classifier", dirpath="released")]
    """

    priority = "lowest"
    after_module = True

    def __init__(
        self,
        filename: str | None = None,
        dirpath: str | os.PathLike[str] | None = None,
        keys: Sequence[str] = ("state_dict",),
        monitor: str | None = None,
    ) -> None:
        super().__init__()
        argument: object = filename
        if argument is not None and not (argument and isinstance(argument, str)):
            expected = "a name, or None for that of the checkpoint"
            raise wrong_type("PublishCheckpoint", "filename", filename, expected, "'classifier'")
        if filename is not None and os.path.basename(filename) != filename:
            raise MisconfigurationException(
                f"PublishCheckpoint(filename={filename!r}) has a folder.",
                expected="a name; its folder is another argument.",
                fix=f"PublishCheckpoint({os.path.basename(filename)!r}, dirpath={os.path.dirname(filename)!r})",
            )
        check_keys("PublishCheckpoint", keys)
        if monitor is not None:
            check_monitor("PublishCheckpoint", monitor)
        self.filename, self.dirpath, self.keys, self.monitor = filename, absolute(dirpath), tuple(keys), monitor
        self.published_path = ""

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        if stage == "fit" and not trainer.fast_dev_run:
            _check(trainer, "PublishCheckpoint", self.monitor)

    def on_fit_end(self, trainer: Trainer, pl_module: Module) -> None:
        if trainer.fast_dev_run:
            return
        saver, path = _best(trainer, "PublishCheckpoint", self.monitor)
        if not path:
            return
        source_folder, _, name = path.rpartition("/" if filesystem.is_remote(path) else os.sep)
        stem = self.filename or name.removesuffix(saver.FILE_EXTENSION)
        target = filesystem.join(self.dirpath or source_folder, stem)
        written = on_rank_zero(trainer, partial(publish, path, target, keys=self.keys), LightlibError)
        self.published_path = str(trainer.strategy.broadcast(written))
        report.info(f"Published: {self.published_path!r}.")


class PublishAdapter(Callback):
    """Writes the adapter of a model of the ``peft`` package when `fit` ends, in the layout that peft reads.

    The weights are those of the best checkpoint of a `ModelCheckpoint`; without a metric, of its newest one. The folder
    has ``adapter_config.json`` and ``adapter_model.safetensors``, for ``PeftModel.from_pretrained(base, dirpath)``; its
    ``merge_and_unload()`` adds the adapter to the base. It is written by rank zero, under every strategy. A run that
    ends by an exception or a signal publishes nothing.

    Args:
        dirpath: The folder. Files of an earlier adapter in it are replaced. Default: ``adapter`` in the folder of the
            checkpoint.
        monitor: The metric of the `ModelCheckpoint`, if there are several. Default: the first one.

    Raises:
        ArgumentTypeError: An argument has the wrong type.
        MisconfigurationException: When `fit` begins: there is no such `ModelCheckpoint`; when training begins: the
            module does not have exactly one model of peft, or the folder is remote.
        CheckpointError: When `fit` ends: the checkpoint cannot be read.

    Example:
        >>> from lightlib.callbacks import ModelCheckpoint
        >>> callbacks = [ModelCheckpoint(monitor="val_loss", save="trainable"), PublishAdapter("released/adapter")]
    """

    priority = "lowest"
    after_module = True

    def __init__(self, dirpath: str | os.PathLike[str] | None = None, monitor: str | None = None) -> None:
        super().__init__()
        check_type("PublishAdapter", "dirpath", dirpath, str | os.PathLike | None, "a folder", "'released/adapter'")
        if monitor is not None:
            check_monitor("PublishAdapter", monitor)
        self.dirpath, self.monitor = absolute(dirpath), monitor

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        if stage == "fit" and not trainer.fast_dev_run:
            _check(trainer, "PublishAdapter", self.monitor)

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        _model_of_peft(pl_module)
        folder = self.dirpath or saver_for(trainer, "PublishAdapter", self.monitor, compares=False).dirpath
        if folder is not None and filesystem.is_remote(folder):
            raise MisconfigurationException(
                f"PublishAdapter writes to {folder!r}.",
                expected="a local folder: peft writes the files itself.",
                fix="PublishAdapter('adapter')",
            )

    def on_fit_end(self, trainer: Trainer, pl_module: Module) -> None:
        if trainer.fast_dev_run:
            return
        _, path = _best(trainer, "PublishAdapter", self.monitor)
        if path:
            folder = self.dirpath or os.path.join(os.path.dirname(path), "adapter")
            on_rank_zero(trainer, partial(self._write, pl_module, path, folder), LightlibError)
            report.info(f"Published: {folder!r}.")

    @staticmethod
    def _write(module: Module, path: str, folder: str) -> None:
        prefix, model = _model_of_peft(module)
        weights = read_tensors(formats.load(path, "cpu")["state_dict"])
        model_state = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
        model.save_pretrained(folder, state_dict=model_state)


def _model_of_peft(module: Module) -> tuple[str, Any]:
    """Return the model of peft in a module, and the beginning of its names."""
    models = [
        (f"{name}." if name else "", part)
        for name, part in module.named_modules()
        if type(part).__module__.partition(".")[0] == "peft" and hasattr(part, "save_pretrained")
    ]
    if len(models) == 1:
        return models[0]
    raise MisconfigurationException(
        f"PublishAdapter finds {len(models)} models of peft in {type(module).__name__}.",
        expected="one.",
        fix="self.model = peft.get_peft_model(base, peft.LoraConfig(target_modules=[…])) in __init__ or "
        "configure_model; the changes of lightlib.transforms.lora are published by PublishCheckpoint.",
    )


def _check(trainer: Trainer, owner: str, monitor: str | None) -> None:
    """Refuse a run without checkpoints that lightlib writes and reads."""
    saver_for(trainer, owner, monitor, compares=False)
    store = trainer.strategy.extension.store
    if store is not None:
        raise MisconfigurationException(
            f"{owner} with the checkpoints of {type(getattr(store, 'plugin', store)).__name__}.",
            expected="checkpoints that lightlib writes.",
            fix="leave out one of the two, and publish the weights yourself.",
        )


def _best(trainer: Trainer, owner: str, monitor: str | None) -> tuple[ModelCheckpoint, str]:
    """Return the callback and its best checkpoint, or newest one, on all ranks: empty, with a warning, without any."""
    saver = saver_for(trainer, owner, monitor, compares=False)
    path: str = trainer.strategy.broadcast(saver.best_model_path or saver.last_model_path)
    if not path:
        report.warn(f"{owner}: no checkpoint was saved, so nothing is published.")
    return saver, path
