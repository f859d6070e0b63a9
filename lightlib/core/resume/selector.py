"""Selector: the checkpoint of an epoch or of a step, among those in the folders of a run."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lightlib.checkpoint import formats
from lightlib.checkpoint.tools.inspection import inspect
from lightlib.core.resume.checkpoint_list import ListedCheckpoint, newest_first
from lightlib.errors import CheckpointError, MisconfigurationException, few

_WORDS = re.compile(r"(epoch|step):(.*)", re.DOTALL)
_SHOWN = 8


@dataclass(frozen=True)
class Selector:
    """A checkpoint by its number.

    Attributes:
        kind: "epoch": the number of the epoch in which it was saved, from 0, as in names of files. "step": its
            optimizer steps.
        number: The number.
    """

    kind: str
    number: int

    @classmethod
    def of(cls, given: str) -> Selector | None:
        """Return the selector of ``"epoch:20"`` or ``"step:500"``; None for anything else.

        Raises:
            MisconfigurationException: There is no number.

        Example:
            >>> Selector.of("epoch:20"), Selector.of("runs/epoch=20.ckpt")
            (Selector(kind='epoch', number=20), None)
        """
        match = _WORDS.fullmatch(given)
        if match is None or os.path.exists(given):  # a file may have any name
            return None
        if not re.fullmatch(r"[0-9]+", match[2]):
            raise MisconfigurationException(
                f"ckpt_path={given!r}: {match[2]!r} is no number.",
                expected=f"'{match[1]}:' and a number from 0 on, as in '{match[1]}:20'.",
                fix=f"ckpt_path='{match[1]}:20', or a path.",
            )
        return cls(match[1], int(match[2]))

    def path(self, seen: Sequence[ListedCheckpoint], folders: Sequence[str]) -> str:
        """Return the newest checkpoint of the epoch or step, preferably one from which a run can resume.

        Raises:
            CheckpointError: There is none; the error lists those that there are.
        """
        ordered = newest_first(seen)
        ordered = [
            *(checkpoint for checkpoint in ordered if checkpoint.is_resumable),
            *(checkpoint for checkpoint in ordered if not checkpoint.is_resumable),
        ]
        there: dict[int, str] = {}
        for checkpoint, number in self._numbers(ordered):
            if number == self.number:
                return checkpoint.path
            there.setdefault(number, os.path.basename(checkpoint.path.rstrip("/")))
        where = f" in {few(folders)}" if folders else ""
        numbers = sorted(there, key=lambda number: (abs(number - self.number), number))
        shown_numbers = ", ".join(f"{number} ({there[number]!r})" for number in sorted(numbers[:_SHOWN]))
        more = f" and {len(there) - _SHOWN} more" if len(there) > _SHOWN else ""
        raise CheckpointError(
            f"ckpt_path='{self.kind}:{self.number}', but there is no checkpoint of {self.kind} {self.number}{where}.",
            expected=f"one of the {self.kind}s {shown_numbers}{more}."
            if there
            else "a checkpoint in a folder of this run.",
            fix=f"ckpt_path='{self.kind}:{numbers[0]}'" if there else "pass a path, or ckpt_path=None to begin a run.",
        )

    def _numbers(self, checkpoints: Sequence[ListedCheckpoint]) -> Iterator[tuple[ListedCheckpoint, int]]:
        """Yield the checkpoints with their epoch or step; damaged ones are left out."""
        for checkpoint in checkpoints:
            if self.kind == "step" and checkpoint.label is not None:
                yield checkpoint, checkpoint.label.step
                continue
            try:
                summary: Any = inspect(checkpoint.path)
                content = None if summary.epoch is not None else formats.load(checkpoint.path, "meta")
            except CheckpointError:
                continue
            if self.kind == "step":
                number = summary.step if content is None else content.get("global_step")
            elif content is None:
                number = summary.epoch - (summary.epoch > 0 and summary.epoch_batch == 0)
            else:
                number = content.get("epoch")
            if isinstance(number, int):
                yield checkpoint, number
