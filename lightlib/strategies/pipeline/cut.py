"""A step in two halves: up to its call of the pipelined part, and from the result of that call on."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch
from torch import nn

from lightlib.accelerators.accelerator import Accelerator
from lightlib.errors import FOLDERS, MisconfigurationException
from lightlib.strategies.pipeline.stage import AbsentLayer, AbsentLayerError, Call
from lightlib.torch_private import answered, shadowed
from lightlib.tree import tensors_in

RULE = "in a pipeline, a step calls the pipelined part exactly once, and no parameter is used before that call."
Place = tuple[str, int]  # file and line
_NOT_THE_USERS = (str(Path(torch.__file__).parent), *FOLDERS, "<frozen")


class _Stopped(BaseException):
    """The step has called the part; not an Exception, so that the step does not catch it."""


class Cut:
    """Both sides of the call of `part` in the steps of `module`."""

    def __init__(
        self, module: nn.Module, part: nn.Module, name: str, device: torch.device, accelerator: Accelerator
    ) -> None:
        self.module, self.part, self.device, self.accelerator = module, part, device, accelerator
        self.name = f"self.{name}" if name else "self"

    def capture(self, step: Callable[..., Any], seed: int, args: tuple[Any, ...]) -> Call | None:
        """Return the arguments with which `step` calls the part, or None when it does not call it.

        Raises:
            MisconfigurationException: A parameter was used before.
        """
        calls: list[Call] = []
        where = ""

        def stop(*args: Any, **named: Any) -> NoReturn:
            nonlocal where
            calls.append((args, named))
            if any(tensor.requires_grad for tensor in tensors_in(calls)):
                where = _line(_places(traceback.walk_stack(sys._getframe(1))))  # noqa: SLF001  the way to know who calls
            raise _Stopped

        try:
            with self._quiet(), self._seeded(seed), answered(self.part, stop):
                step(*args)
        except _Stopped:
            pass
        except (AbsentLayerError, TypeError) as error:
            if not isinstance(error, AbsentLayerError) and AbsentLayer.__name__ not in str(error):
                raise
            raise self._used_before(_line(reversed(_places(traceback.walk_tb(error.__traceback__))))) from error
        if where:
            raise self._used_before(where)
        return calls[0] if calls else None

    def replay(self, step: Callable[..., Any], name: str, seed: int, args: tuple[Any, ...], output: Any) -> Any:
        """Return the result of `step`, with `output` as the answer to its call of the part.

        Raises:
            MisconfigurationException: It calls the part twice, or not at all.
        """
        calls: list[list[Place]] = []

        def answer(*args: Any, **named: Any) -> Any:  # noqa: ARG001
            calls.append(_places(traceback.walk_stack(sys._getframe(1))))  # noqa: SLF001
            if len(calls) > 1:
                raise MisconfigurationException(
                    f"The step calls {self.name} twice: at {_line(calls[0])} and at {_line(calls[1])}.",
                    expected=RULE,
                    fix=f"call {self.name} once with everything, for instance with a concatenated batch.",
                )
            return output

        with self._seeded(seed), answered(self.part, answer):
            result = step(*args)
        if not calls:
            raise self.never(name)
        return result

    def never(self, name: str) -> MisconfigurationException:
        """Return the error for a step that does not call the part."""
        code = getattr(getattr(type(self.module), name, None), "__code__", None)
        where = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
        part = f"{self.name}(…)"
        return MisconfigurationException(
            f"{name}{where} does not call {part}, the part of {type(self.module).__name__} that the pipeline cuts.",
            expected=RULE,
            fix=f"call {part} in the step, or name what it calls: ParallelPlan(pipelined='…') in parallel_plan().",
        )

    def _used_before(self, where: str) -> MisconfigurationException:
        return MisconfigurationException(
            f"The step uses a parameter before it calls {self.name}, at {where}.",
            expected=RULE,
            fix=f"move the layer into {self.name}, or use it after the call; what stands before may only prepare data.",
        )

    @contextmanager
    def _seeded(self, seed: int) -> Iterator[None]:
        """Draw the same random numbers for one micro-batch on each process."""
        with self.accelerator.fork_rng(self.device):
            torch.default_generator.manual_seed(seed)  # torch.manual_seed formats a stack for each kind of device
            self.accelerator.manual_seed(seed)
            yield

    def _quiet(self) -> AbstractContextManager[None]:
        """Log nothing: the process that runs the step to its end does."""
        return shadowed(self.module, {"log": _nothing, "log_dict": _nothing})


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Do nothing."""


def _places(frames: Iterable[tuple[FrameType, int]]) -> list[Place]:
    return [(frame.f_code.co_filename, line) for frame, line in frames]


def _line(places: Iterable[Place]) -> str:
    """Return the first of `places`, innermost first, that is neither torch's nor this library's."""
    return next((f"{file}:{line}" for file, line in places if not file.startswith(_NOT_THE_USERS)), "the step")
