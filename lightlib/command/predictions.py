"""PredictionFiles: the output of `lightlib predict`, one file per process and loader."""

from __future__ import annotations

import itertools
import os
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from lightlib import report
from lightlib.callbacks.callback import Callback
from lightlib.checkpoint.file.archive import not_plain
from lightlib.checkpoint.storage import filesystem
from lightlib.errors import LightlibError
from lightlib.tree import to_device

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer

FOLDER = "predictions"


class PredictionFiles(Callback):
    """Collects the outputs of `predict_step` on the CPU and writes them after the last batch.

    The files are ``predictions/rank_0-loader_0.pt`` and so on, in the folder of the run's logs. Each is a list of
    what was returned for each batch of this process, in order, which ``torch.load`` reads.
    """

    def __init__(self) -> None:
        self._outputs: list[list[Any]] = []

    def on_predict_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._outputs = []

    def on_predict_batch_end(
        self,
        trainer: Trainer,
        pl_module: Module,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        while len(self._outputs) <= dataloader_idx:
            self._outputs.append([])
        self._outputs[dataloader_idx].append(to_device(outputs, torch.device("cpu")))

    def on_predict_end(self, trainer: Trainer, pl_module: Module) -> None:
        """Write the files.

        Raises:
            CheckpointWriteError: One could not be written.
            LightlibError: What was returned cannot be pickled.
        """
        written, self._outputs = self._outputs, []
        folder = trainer.strategy.broadcast(_free_folder(trainer.log_dir or trainer.default_root_dir))
        returned = any(output is not None for outputs in written for output in outputs)
        if not trainer.strategy.reduce_boolean_decision(returned, all=False):
            report.info("predict_step returned None for every batch: there are no predictions to write.")
            return
        for loader, outputs in enumerate(written):
            path = os.path.join(folder, f"rank_{trainer.global_rank}-loader_{loader}.pt")
            try:
                filesystem.write(path, partial(torch.save, outputs))
            except (AttributeError, TypeError) as error:
                raise LightlibError(
                    f"The predictions could not be written to {path!r}: {error}.",
                    expected="tensors, numbers, strings, lists and dicts of them.",
                    fix="return these from predict_step, or --return_predictions false and write them there.",
                ) from error
        trainer.strategy.barrier("predictions")
        plain = "" if not_plain(written) is None else ", weights_only=False"
        report.info(
            f"Predictions: {os.path.join(folder, '')}, a list of what predict_step returned for each batch in "
            f"rank_N-loader_N.pt; torch.load(path{plain}) reads it."
        )


def _free_folder(root: str) -> str:
    """Return a folder in which nothing is, so that the predictions of an earlier run stay."""
    names = itertools.chain([FOLDER], (f"{FOLDER}-{number}" for number in itertools.count(1)))
    return next(folder for name in names if not filesystem.exists(folder := os.path.join(root, name)))
