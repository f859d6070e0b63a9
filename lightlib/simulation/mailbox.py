"""Mailbox: messages between the stages of a simulated pipeline, as shapes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from lightlib.strategies.pipeline import schedule
from lightlib.strategies.pipeline.chain import Chain
from lightlib.strategies.pipeline.training import Training
from lightlib.torch_private import flattened, structured


class NotSentError(Exception):
    """A stage needs a message of the one before, which has not been simulated yet."""


@dataclass(frozen=True)
class _Described:
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass
class Mailbox:
    """The inputs of stages, by their index; the processes of a pipeline are simulated one after the other.

    Attributes:
        letters: Trees with a description in place of each tensor.
    """

    letters: dict[int, Any] = field(default_factory=dict)

    @contextmanager
    def in_place_of_messages(self) -> Iterator[None]:
        """Let pipelines read and write here, and number micro-batches without values."""
        with ExitStack() as stack:
            for owner, name, substitute in (
                (Chain, "forward", self._forward),
                (Training, "_calls", _calls),
                (Training, "_exchanged", _exchanged),
                (schedule, "_broken", lambda value: False),
                (schedule, "number_of", Tensor.storage_offset),  # each is a view of 0, 1, 2, …
            ):
                stack.enter_context(mock.patch.object(owner, name, substitute))
            yield

    def _put(self, stage: int, value: Any) -> None:
        leaves, structure = flattened(value)
        described = [_Described(tuple(x.shape), x.dtype) if isinstance(x, Tensor) else x for x in leaves]
        self.letters[stage] = described, structure

    def _take(self, stage: int) -> Any:
        if stage not in self.letters:
            raise NotSentError(f"stage {stage}")
        described, structure = self.letters[stage]
        leaves = [torch.empty(x.shape, dtype=x.dtype) if isinstance(x, _Described) else x for x in described]
        return structured(leaves, structure)

    @property
    def _forward(self) -> Any:
        def forward(chain: Any, call: Any, observe: Any = None) -> Any:
            value: Any = None
            for index in sorted(chain.stages):
                if index and chain.ranks[index - 1] != chain.rank:
                    value = self._take(index)
                received, value = value, chain.stages[index](value, call)
                if observe is not None:
                    observe(index, received, value)
                if index + 1 < len(chain.ranks) and chain.ranks[index + 1] != chain.rank:
                    self._put(index + 1, value)
            return value

        return forward


def _calls(training: Any, parts: Any, batch_idx: int) -> Any:
    """Return the calls of the pipelined part where they are needed, as if the first stage had sent its message."""
    needed = training.chain.rank == training.chain.ranks[0] or training.chain.captures
    calls = [training._call(part, index, batch_idx) if needed else None for index, part in enumerate(parts)]  # noqa: SLF001  it replaces a method
    return calls, list(range(len(parts))), 0


def _exchanged(*_: Any) -> Any:
    """Return a loss as if the last stage had sent it."""
    return {"loss": torch.zeros(())}
