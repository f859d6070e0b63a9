"""SpikeDetection: ends the run at a loss far above the mean of the last ones, and names the batches."""

from __future__ import annotations

import json
import math
import os
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from lightlib import report, safe_files
from lightlib.callbacks.callback import Callback
from lightlib.errors import (
    ArgumentTypeError,
    LightlibError,
    MisconfigurationException,
    check_int,
    check_number,
    check_word,
    shown,
    wrong_type,
)

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer

_FILE = "skip_batches.json"


class TrainingSpikeException(LightlibError, RuntimeError):
    """A loss is far above the mean of the last ones.

    Args:
        batch_idx: The index of the batch within its epoch.
        file: The file that lists the batches to leave out.
    """

    def __init__(self, batch_idx: int, file: str = "") -> None:
        super().__init__(
            f"Training spike detected in batch {batch_idx}",
            expected="a loss near the mean of the last ones, or better.",
            fix=f"resume from an earlier checkpoint, without the batches in {file or 'the list of the detection'}: "
            "this batch, and the one before it, which may have spoilt the weights.",
        )
        self.batch_idx = batch_idx


class FabricSpikeDetection:
    """Looks for spikes of the loss in a loop with Fabric.

    A loss is a spike if it is worse than the last one, and differs from the mean of the last `window` losses by at
    least `atol` and by at least `rtol` times that mean. A loss that is not finite is one, too. A spike on any process
    raises :class:`TrainingSpikeException` on all, and the first process writes the numbers of this batch and of the
    one before it to a file; numbers that are in the file stay.

    Args:
        mode: ``"min"`` if a lower value is better, or ``"max"``. Default: ``"min"``.
        window: How many of the last losses the mean is of. Default: 10.
        warmup: The first batch of an epoch, from 0, that can be a spike. Default: 1.
        atol: The smallest difference, in units of the loss. Default: none.
        rtol: The smallest difference as a multiple of the mean. None: none. Default: 2.0.
        exclude_batches_path: The file, or its folder if it does not end in ``.json``. Default: ``skip_batches.json`` in
            the working directory.
        finite_only: Whether a loss that is not finite is always a spike. Otherwise NaN is left out of the mean, and
            infinity is judged by its distance. Default: True.

    Raises:
        ArgumentTypeError: An argument of another type.
        MisconfigurationException: An argument out of range, or another `mode`; the file holds something else.
        TrainingSpikeException: While training: there is a spike.

    Example:
        >>> detection = FabricSpikeDetection(window=3, rtol=1.0)
        >>> [detection.is_spike(loss, batch) for batch, loss in enumerate([1.0, 1.2, 0.9, 2.4])]
        [False, False, False, True]
    """

    def __init__(
        self,
        mode: Literal["min", "max"] = "min",
        window: int = 10,
        warmup: int = 1,
        atol: float | None = None,
        rtol: float | None = 2.0,
        exclude_batches_path: str | os.PathLike[str] | None = None,
        finite_only: bool = True,
    ) -> None:
        name = "SpikeDetection"
        check_word(name, "mode", mode, ("min", "max"))
        check_int(name, "window", window, 1)
        check_int(name, "warmup", warmup, 0)
        for argument, value in (("atol", atol), ("rtol", rtol)):
            if value is not None:
                check_number(name, argument, value, least=0, meaning=", or None", example=2.0)
        if exclude_batches_path is not None and not isinstance(exclude_batches_path, (str, os.PathLike)):
            raise wrong_type(name, "exclude_batches_path", exclude_batches_path, "a path, or None", f"'{_FILE}'")
        self.mode, self.window, self.warmup, self.atol, self.rtol = mode, window, warmup, atol, rtol
        self.exclude_batches_path, self.finite_only = exclude_batches_path, finite_only
        self.last_val = 0.0
        self.bad_batches: list[int] = []
        self._values: deque[float] = deque(maxlen=window)

    @property
    def running_mean(self) -> float:
        """The mean of the last losses; NaN without any."""
        return math.fsum(self._values) / len(self._values) if self._values else math.nan

    def is_spike(self, loss: float, batch_idx: int) -> bool:
        """Return whether a loss is a spike; otherwise it joins the mean, if it is finite."""
        spike = batch_idx >= self.warmup and self._differs(loss)
        if not spike:
            self.note(loss)
        return spike

    def note(self, loss: float) -> None:
        """Add a loss to the mean, if it is finite."""
        if math.isfinite(loss):
            self._values.append(loss)
            self.last_val = loss

    def _differs(self, loss: float) -> bool:
        if self.finite_only and not math.isfinite(loss):
            return True
        change, mean = loss - self.last_val, self.running_mean
        if (change <= 0 if self.mode == "min" else change >= 0) or math.isnan(mean):
            return False
        distance = abs(loss - mean)
        by_atol = self.atol is None or distance >= abs(self.atol)
        return by_atol and (self.rtol is None or distance >= abs(self.rtol * mean))

    def on_train_batch_end(self, fabric: Any, loss: Tensor, batch: Any, batch_idx: int) -> None:
        """Check the loss of a batch; all processes call this.

        Args:
            fabric: The Fabric.
            loss: The loss, with one element.
            batch: The batch, which is not used.
            batch_idx: Its index within the epoch.
        """
        self.decide(fabric.strategy, fabric.global_rank, loss, batch_idx, os.getcwd())

    def decide(self, strategy: Any, rank: int, loss: Tensor | None, batch_idx: int, folder: str) -> None:
        """Check the loss of this process, and raise if there is a spike on any.

        Args:
            strategy: Its processes decide together.
            rank: The number of this process.
            loss: None if this process has no loss for the batch.
            batch_idx: Its index within the epoch.
            folder: Where the file is written by default.
        """
        value = None if loss is None else float(loss)
        here = value is not None and batch_idx >= self.warmup and self._differs(value)
        if not strategy.reduce_boolean_decision(here, all=False):
            if value is not None:
                self.note(value)
            return
        self.bad_batches += [batch_idx - 1, batch_idx]
        file = self.file(folder)
        if rank == 0:
            _add(file, self.bad_batches)
        raise TrainingSpikeException(batch_idx, str(file))

    def file(self, folder: str) -> Path:
        """Return the file that lists the batches; by default in `folder`.

        Raises:
            MisconfigurationException: There is such a file with another content.
        """
        path = Path(folder if self.exclude_batches_path is None else self.exclude_batches_path)
        path = path if path.suffix == ".json" else path / _FILE
        _listed(path)
        return path

    def state_dict(self) -> dict[str, Any]:
        """Return the losses of the mean, and the batches that were spikes."""
        return {"last_val": self.last_val, "values": list(self._values), "bad_batches": list(self.bad_batches)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore `state_dict`."""
        self.last_val = float(state_dict["last_val"])
        self._values = deque(state_dict["values"], maxlen=self.window)
        self.bad_batches = list(state_dict["bad_batches"])


class SpikeDetection(Callback):
    """Ends the run at a spike of the loss; see :class:`FabricSpikeDetection` for the rule and the arguments.

    Each batch waits for the device, and with several processes for all of them, so it costs most where steps are
    short. The file is by default in the Trainer's `default_root_dir`. The error's note names the epoch, the batch, the
    step, the loss, and three layers with the largest gradients for their weights.

    Args:
        arguments: Those of :class:`FabricSpikeDetection`, with the same names and defaults.

    Raises:
        TrainingSpikeException: While training: the loss of a batch is a spike.

    Example:
        >>> SpikeDetection(warmup=100).detection.warmup
        100
    """

    def __init__(
        self,
        mode: Literal["min", "max"] = "min",
        window: int = 10,
        warmup: int = 1,
        atol: float | None = None,
        rtol: float | None = 2.0,
        exclude_batches_path: str | os.PathLike[str] | None = None,
        finite_only: bool = True,
    ) -> None:
        super().__init__()
        self.detection = FabricSpikeDetection(mode, window, warmup, atol, rtol, exclude_batches_path, finite_only)

    @property
    def bad_batches(self) -> list[int]:
        """The batches that were spikes, and those before them."""
        return self.detection.bad_batches

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        if stage == "fit":
            self.detection.file(os.fspath(trainer.default_root_dir))  # before a spike would find another content

    def on_train_batch_end(self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if loss is not None and not isinstance(loss, Tensor):
            raise ArgumentTypeError(
                f"SpikeDetection got {shown(outputs)} from training_step.",
                expected="a loss, or a dict with it.",
                fix='return {"loss": loss} from training_step.',
            )
        folder, mean = os.fspath(trainer.default_root_dir), self.detection.running_mean
        try:
            self.detection.decide(trainer.strategy, trainer.global_rank, loss, batch_idx, folder)
        except TrainingSpikeException as spike:
            here = "no loss" if loss is None else f"the loss {float(loss):.5g}"
            place = f"epoch {trainer.current_epoch}, batch {batch_idx}, optimizer step {trainer.global_step}"
            text = f"{place}: {here}, after a mean of {mean:.5g} over the last {self.detection.window} losses."
            report.add_note(spike, f"{text}{_suspects(trainer, pl_module)}")
            raise

    def state_dict(self) -> dict[str, Any]:
        return self.detection.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.detection.load_state_dict(state_dict)


def _suspects(trainer: Trainer, module: Module) -> str:
    """Return the layers with gradients that are not finite, or largest for the weights; all processes call this."""
    strategy = trainer.strategy
    if strategy.divides_parameters or not strategy.steps_parameters:
        return ""
    layers = {name: list(part.parameters(recurse=False)) for name, part in module.named_modules()}
    trained = {name: [p for p in part if p.grad is not None] for name, part in layers.items()}
    trained = {name: part for name, part in trained.items() if part}
    if not trained:
        return ""
    pairs = [[(p, p.grad) for p in part] for part in trained.values()]
    gradients = strategy.norms(pairs).tolist()
    weights = strategy.norms([[(p, p.detach()) for p in part] for part in trained.values()]).tolist()
    rows = [(g / w if w else g, name, g, w) for name, g, w in zip(trained, gradients, weights, strict=True)]
    rows.sort(key=lambda row: (math.isfinite(row[0]), -row[0] if math.isfinite(row[0]) else 0.0))
    texts = [f"{name or type(module).__name__} (gradient {g:.3g}, weights {w:.3g})" for _, name, g, w in rows[:3]]
    return f" The layers with the largest gradients for their weights: {', '.join(texts)}."


def _listed(file: Path) -> list[int]:
    """Return the numbers in a file; none if there is no such file."""
    if not file.exists():
        return []
    try:
        return [int(number) for number in json.loads(file.read_text("utf-8"))]
    except (TypeError, ValueError) as error:
        raise MisconfigurationException(
            f"SpikeDetection found {str(file)!r}, which is no list of batches.",
            expected="no such file, or one that an earlier run has written.",
            fix="SpikeDetection(exclude_batches_path='another.json')",
        ) from error


def _add(file: Path, batches: list[int]) -> None:
    """Add the numbers of batches to those in a file."""
    before = _listed(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    listed = [*before, *(batch for batch in batches if batch not in before)]
    safe_files.replace(file, json.dumps(listed, indent=4).encode())
