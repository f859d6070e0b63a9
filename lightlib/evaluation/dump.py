"""PredictionDump: writes batches and outputs of an evaluation to files, for later metrics."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from lightlib.callbacks.callback import Callback
from lightlib.callbacks.monitored import endings_of
from lightlib.checkpoint.storage import filesystem
from lightlib.data.lengths import numbered_endings
from lightlib.errors import CheckpointError, MisconfigurationException, check_type, shown
from lightlib.evaluation.exchange import compact, write
from lightlib.evaluation.order import Sharding, sharded_loaders
from lightlib.evaluation.stages import check_stages, without_hooks_of

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer

Stage = Literal["val", "test", "predict"]
STAGES: tuple[Stage, ...] = get_args(Stage)
_INDEX, _FORMAT = "index.json", 2  # 1: without checksums
_OURS = re.compile(r"index\.json|loader\d+\.batch\d{6,}\.rank\d+\.pt")


def _digest(entries: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()


def _damaged_index(path: str, reason: str) -> CheckpointError:
    return CheckpointError(
        f"{path!r} is damaged: {reason}.",
        expected="the index of a dump, as it was written.",
        fix="write the dump again.",
    )


@dataclass(frozen=True)
class DumpIndex:
    """The content of a dump; it is written last, so a dump without one is incomplete.

    Attributes:
        batches: By rank, the number of batches of each loader.
        shardings: How the ranks shared each loader.
        endings: Of the names of metrics, by loader.
    """

    batches: list[list[int]]
    shardings: list[Sharding]
    endings: list[str]

    def write(self, folder: str) -> None:
        entries = {"format": _FORMAT, **asdict(self)}
        content = json.dumps({**entries, "sha256": _digest(entries)}, indent=1).encode()
        filesystem.write(filesystem.join(folder, _INDEX), lambda file: _put(file, content))

    @classmethod
    def read(cls, folder: str) -> DumpIndex:
        """Read the index of a dump.

        Raises:
            CheckpointError: It is damaged.
        MisconfigurationException: There is none, or one of another format.
        """
        path = filesystem.join(folder, _INDEX)
        if not filesystem.exists(path):
            raise MisconfigurationException(
                f"There is no {path!r}.",
                expected="a complete dump: the index is written when all batches are.",
                fix="run trainer.test or trainer.predict with callbacks=[PredictionDump(path)] to its end.",
            )
        with filesystem.open_for_reading(path) as file:
            data = file.read()
        try:
            content = json.loads(data)
            version, digest = content["format"], content.pop("sha256", None)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise _damaged_index(path, repr(error)) from error
        if version == _FORMAT and digest != _digest(content):
            raise _damaged_index(path, "it differs from its checksum")
        if version != _FORMAT:
            raise MisconfigurationException(
                f"{path!r} has the format {version!r}.",
                expected=f"{_FORMAT}.",
                fix="write the dump again, or read it with the version of lightlib that wrote it.",
            )
        shardings = [Sharding(**each) for each in content["shardings"]]
        return cls(content["batches"], shardings, content.get("endings") or [*numbered_endings(len(shardings))])


class PredictionDump(Callback):
    """Writes the batches of an evaluation and the outputs of its steps to files, one for each batch.

    :func:`evaluate_offline` computes metrics from them, with the numbers that `MetricCallback` would have had. Every
    rank writes its batches. Files hold tensors on the CPU and plain values, and reading them runs no code.

    Args:
        path: A folder, local or remote. Each stage has one in it.
        stages: ``"test"``, ``"predict"``, and ``"val"`` for `trainer.validate`; those within `fit` are not written.
            Default: ``("test", "predict")``.
        select: A function of the batch and the output that returns both as they are to be written, for instance
            without the images. Default: all of both.
        overwrite: Replace an earlier dump of the stage. Default: False, which refuses to begin.

    Raises:
        ArgumentTypeError: `path` is no path, or `select` no function.
        UnknownNameError: There is no such stage.
        MisconfigurationException: In a run: there is a dump already, or a value could not be read back safely.

    Example:
        >>> dump = PredictionDump("dumps/first", select=lambda batch, outputs: ((None, batch[1]), outputs))
        >>> dump.folder("test")
        'dumps/first/test'
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        stages: Stage | Sequence[Stage] = ("test", "predict"),
        select: Callable[[Any, Any], tuple[Any, Any]] | None = None,
        overwrite: bool = False,
    ) -> None:
        super().__init__()
        check_type("PredictionDump", "path", path, (str, os.PathLike), "a path or a URL", "'dumps'")
        expected = "a function of the batch and the output that returns both"
        example = "lambda batch, outputs: (batch[1], outputs)"
        check_type("PredictionDump", "select", select, Callable | None, expected, example)
        self.path, self.stages = os.fspath(path), check_stages("PredictionDump", stages, STAGES)
        self.select, self.overwrite = select, overwrite
        self._place = 0
        self._writes = False  # whether this process is the first of those that read the same data
        self._counts: list[int] | None = None  # batches of each loader; None while nothing is written
        without_hooks_of(self, self.stages)

    @property
    def state_key(self) -> str:
        """Several of these can be used together when they differ in path or stages."""
        return self._generate_state_key(path=self.path, stages=self.stages)

    def folder(self, stage: str) -> str:
        """Return the folder of a stage."""
        return filesystem.join(self.path, stage)

    def _begin(self, stage: str, trainer: Trainer) -> None:
        if trainer.state.fn == "fit":
            self._counts = None
            return
        strategy = trainer.strategy
        places = strategy.collectives.all_gather_object(strategy.data_place)
        self._place = places[strategy.global_rank]
        self._writes = places.index(self._place) == strategy.global_rank
        self._counts = [0] * len(sharded_loaders(trainer, stage))
        there: list[str] = strategy.broadcast(self._files_of(stage) if trainer.is_global_zero else [])
        if there and not self.overwrite:
            raise MisconfigurationException(
                f"PredictionDump({self.path!r}): {self.folder(stage)!r} holds a dump already ({there[0]}).",
                expected="a new folder.",
                fix=f"PredictionDump({self.path!r}, overwrite=True), or another path.",
            )
        for name in sorted(there, key=lambda name: name != _INDEX) if trainer.is_global_zero else ():
            filesystem.remove(filesystem.join(self.folder(stage), name))
        strategy.barrier()

    def _files_of(self, stage: str) -> list[str]:
        return [name for name in filesystem.names_in(self.folder(stage)) if _OURS.fullmatch(name)]

    def _write(self, stage: str, batch: Any, outputs: Any, loader: int) -> None:
        if self._counts is None:
            return
        pair: Any = (batch, outputs) if self.select is None else self.select(batch, outputs)
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise MisconfigurationException(
                f"PredictionDump: select returned {shown(pair)}.",
                expected="a tuple of the batch and the output.",
                fix="select=lambda batch, outputs: (batch[1], outputs)",
            )
        content = compact(list(pair))
        if self._writes:
            write(file_of(self.folder(stage), loader, self._counts[loader], self._place), content)
        self._counts[loader] += 1

    def _end(self, stage: str, trainer: Trainer) -> None:
        counts, self._counts = self._counts, None
        if counts is None:
            return
        gathered = dict(reversed(trainer.strategy.collectives.all_gather_object((self._place, counts))))
        if trainer.is_global_zero:
            shardings = [sharding for _, sharding in sharded_loaders(trainer, stage)]
            known_shardings = (
                shardings if len(gathered) == trainer.strategy.data_size else [Sharding() for _ in shardings]
            )
            batches, endings = [gathered[place] for place in sorted(gathered)], list(endings_of(trainer))
            DumpIndex(batches, known_shardings, endings).write(self.folder(stage))
        trainer.strategy.barrier()

    # hooks
    def on_validation_epoch_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._begin("val", trainer)

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._write("val", batch, outputs, dataloader_idx)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        self._end("val", trainer)

    def on_test_epoch_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._begin("test", trainer)

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._write("test", batch, outputs, dataloader_idx)

    def on_test_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        self._end("test", trainer)

    def on_predict_epoch_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._begin("predict", trainer)

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._write("predict", batch, outputs, dataloader_idx)

    def on_predict_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        self._end("predict", trainer)


def file_of(folder: str, loader: int, batch: int, place: int) -> str:
    """Return the path of a batch of a rank."""
    return filesystem.join(folder, f"loader{loader}.batch{batch:06d}.rank{place}.pt")


def _put(file: Any, content: bytes) -> None:
    file.write(content)
