"""Shared by the conformance checks: their errors, comparisons, processes and folders."""

from __future__ import annotations

import io
import math
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lightlib.callbacks.callback import Callback
from lightlib.errors import LightlibError, UnknownNameError
from lightlib.launch.start.process_errors import ProcessFailedError
from lightlib.launch.start.spawn import launch_function
from lightlib.strategies.strategy import Strategy

if TYPE_CHECKING:
    from lightlib.core.trainer import Trainer

SAVED_AT = 6  # optimizer steps: in the middle of the second epoch of 4


def failure(kind: str, check: str, what: str, expected: str, fix: str) -> AssertionError:
    """Return the error of a failed check.

    Args:
        kind: The kind of plugin, such as ``"logger"``.
        check: The name of the check.
        what: The difference, with the value received.
        expected: The requirement.
        fix: How to meet it.

    Example:
        >>> print(failure("logger", "members", "Mine.name is 3.", "str or None.", "return a str."))
        The logger fails the check 'members': Mine.name is 3.
          Expected: str or None.
          Fix: return a str.
    """
    text = f"The {kind} fails the check {check!r}: {what}"
    return AssertionError(str(LightlibError(text, expected=expected, fix=fix)))


def check_class(kind: str, check: str, made: object, base: type) -> None:
    """Fail unless the class of a plugin, which a user's function made, inherits from `base`."""
    if not isinstance(made, base):
        package = ".".join(base.__module__.split(".")[:2])
        raise failure(
            kind,
            check,
            f"make_{kind} returned {made!r}.",
            f"an object of a class that inherits from {package}.{base.__name__}.",
            f"class {type(made).__name__}({base.__name__}): ...",
        )


def selected(kind: str, checks: Iterable[str], without: Iterable[str]) -> list[str]:
    """Return the names of the checks that are not left out.

    Raises:
        UnknownNameError: No check has a name in `without`.
    """
    names, left_out = list(checks), tuple(without)
    for name in left_out:
        if name not in names:
            raise UnknownNameError(f"check of {kind}", name, tuple(names))
    return [name for name in names if name not in left_out]


def equal(one: Any, other: Any) -> bool:
    """Whether two states are equal, with their tensors and arrays; NaN is equal to NaN."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
    if hasattr(one, "tobytes") and hasattr(other, "tobytes"):  # arrays of NumPy
        return bool(one.tobytes() == other.tobytes())
    return bool(one == other) or bool(one != one and other != other)


def relative_error(found: Any, wanted: Tensor) -> float:
    """Return the error of a weight in relation to its norm; `inf` for another shape and for NaN."""
    if not isinstance(found, Tensor) or found.shape != wanted.shape:
        return math.inf
    wanted = wanted.float()
    error = float((found.detach().float().cpu() - wanted).norm() / wanted.norm().clamp(min=1e-6))
    return math.inf if math.isnan(error) else error


def worst_weight(found: Mapping[str, Any], wanted: Mapping[str, Tensor]) -> tuple[float, str]:
    """Return the greatest error of the weights that are there, and the name of the weight."""
    errors = ((relative_error(found[name], value), name) for name, value in wanted.items() if name in found)
    return max(errors, default=(0.0, ""))


def through_file(state: Any) -> Any:
    """Return `state` as a checkpoint file restores it."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def in_processes(run: Callable[[], None], processes: int, method: str) -> None:
    """Call `run` in new processes; the failure of a check in any of them is raised here."""
    try:
        launch_function(partial(_on_rank, run), processes, method)
    except ProcessFailedError as error:
        if not isinstance(error.__cause__, AssertionError):
            raise
        raise AssertionError(str(error.__cause__)) from error


def _on_rank(run: Callable[[], None], rank: int) -> None:  # noqa: ARG001  what a launched function gets
    torch.set_num_threads(1)
    run()


@contextmanager
def shared_folder(strategy: Strategy) -> Iterator[Path]:
    """Yield a temporary folder, the same on all ranks."""
    made = Path(tempfile.mkdtemp(prefix="lightlib-")) if strategy.is_global_zero else None
    try:
        yield strategy.broadcast(made)  # type: ignore[misc]  # rank zero made one
    finally:
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)


class SavesOnce(Callback):
    """Saves a checkpoint within the second epoch."""

    priority = "lowest"

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
        if trainer.global_step == SAVED_AT:
            trainer.save_checkpoint(self.path)
