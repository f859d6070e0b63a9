"""Exchange of collected results: ranks pass them to rank zero, which shares the numbers."""

from __future__ import annotations

import io
import os
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from lightlib.checkpoint.file import archive
from lightlib.checkpoint.storage import filesystem
from lightlib.checkpoint.storage.label import Label
from lightlib.errors import CheckpointError, MisconfigurationException
from lightlib.tree import map_tensors

if TYPE_CHECKING:
    from lightlib.strategies.strategy import Strategy

_VALUE = "value"
Broadcast = Callable[[Any], Any]
_FIX = "collect_dir=None, which exchanges results of any type between the processes."


def from_rank_zero(
    is_rank_zero: bool, broadcast: Broadcast, compute: Callable[[], dict[str, float]]
) -> dict[str, float]:
    """Return the numbers that rank zero computes on every rank; an error there is one on every rank."""
    values: dict[str, float] = {}
    error: Exception | None = None
    if is_rank_zero:
        try:
            values = compute()
        except Exception as raised:  # noqa: BLE001  raised below, when other ranks know of it
            error = raised
    values, failure = broadcast((values, None if error is None else f"{type(error).__name__}: {error}"))
    if error is not None:
        raise error
    if failure is not None:
        raise MisconfigurationException(
            f"Metrics could not be computed on rank 0: {failure}",
            expected="numbers from rank 0.",
            fix="see the traceback of rank 0.",
        )
    return values


def by_place(strategy: Strategy, state: Any, folder: str | os.PathLike[str] | None = None) -> list[Any]:
    """Return the states of all ranks that read different data, in their order.

    Args:
        strategy: Of the run.
        state: Of this rank.
        folder: Pass states through files in this folder; then only rank zero gets them, and other ranks an empty list.

    Raises:
        MisconfigurationException: A state cannot be written to the folder, or read back safely; on every rank.
    """
    if strategy.world_size == 1:
        return [state]
    collectives = strategy.collectives
    if folder is None:
        gathered = collectives.all_gather_object((strategy.data_place, state))
        return _one_per_place(gathered)
    name = collectives.broadcast(uuid.uuid4().hex)
    path = filesystem.join(folder, f"{name}.rank{strategy.global_rank}.pt")
    _agree(collectives.all_gather_object(_error_of(lambda: write(path, state))), "written")
    gathered, error = [], None
    if strategy.is_global_zero:
        paths = [filesystem.join(folder, f"{name}.rank{rank}.pt") for rank in range(strategy.world_size)]
        error = _error_of(lambda: gathered.extend(map(read, paths)))
    places = collectives.all_gather_object(strategy.data_place)
    errors = collectives.all_gather_object(error)
    filesystem.remove(path)
    _agree(errors, "read")
    return _one_per_place(list(zip(places, gathered, strict=False)))


def compact(value: Any) -> Any:
    """Return a collection with plain tensors on the CPU, none of them a view of a larger one, which a file would hold.

    All ranks that hold a part of a DTensor call this.
    """

    def moved(tensor: Tensor) -> Tensor:
        if type(tensor) is not Tensor:  # a DTensor, or one that waits for a collective, which `clone` does
            tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor.clone()
        local = tensor.detach().cpu()
        return local.clone() if local.untyped_storage().nbytes() > local.nbytes else local

    return map_tensors(moved, value)


def write(path: str, value: Any) -> None:
    """Write a value, made by `compact`, to a file, local or remote, that is complete or absent.

    Raises:
        MisconfigurationException: It holds objects that could not be read back safely.
    """
    try:
        data = archive.to_bytes({_VALUE: value}, Label(weights_only=True))
        archive.load(io.BytesIO(data), "cpu", of_any_kind=True)
    except Exception as error:  # torch raises UnpicklingError, RuntimeError and so on
        reason = str(error).partition("\n")[0]
        raise MisconfigurationException(
            f"What {path!r} is to hold cannot be read back safely: {reason}",
            expected="tensors, numbers, strings, and lists, tuples and dicts of them.",
            fix="convert other objects to such values.",
        ) from error
    filesystem.write(path, lambda file: _put(file, data))


def read(path: str) -> Any:
    """Return the value in a file that `write` has written; no code in it is run.

    Raises:
        CheckpointError: It is missing, or differs from its checksum.
    """
    try:
        content = archive.load(path, "cpu", of_any_kind=True)
        return content[_VALUE]
    except (FileNotFoundError, KeyError) as error:
        problem = "is missing" if isinstance(error, FileNotFoundError) else "holds something else"
        raise CheckpointError(
            f"{path!r} {problem}.", expected="all files of a dump, as it was written.", fix="write the dump again."
        ) from error


def _put(file: Any, content: bytes) -> None:
    file.write(content)


def _one_per_place(gathered: list[tuple[int, Any]]) -> list[Any]:
    states_by_place: dict[int, Any] = {}
    for place, state in gathered:
        states_by_place.setdefault(place, state)
    return [states_by_place[place] for place in sorted(states_by_place)]


def _error_of(call: Callable[[], None]) -> str | None:
    try:
        call()
    except Exception as error:  # noqa: BLE001  raised on all ranks by `_agree`
        return f"{type(error).__name__}: {error}"
    return None


def _agree(errors: list[str | None], verb: str) -> None:
    failure = next(((rank, error) for rank, error in enumerate(errors) if error is not None), None)
    if failure is not None:
        raise MisconfigurationException(
            f"The results of rank {failure[0]} could not be {verb}: {failure[1]}",
            expected="a folder that all ranks share, and tensors, numbers, strings and collections of them.",
            fix=_FIX,
        )
