"""Collective operations for any program: the same calls work on one process and on many."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

from lightlib.errors import ArgumentTypeError, MisconfigurationException, shown, wrong_value
from lightlib.report import rank_zero_only
from lightlib.strategies.group.collectives import Collectives, ProcessGroup, SingleProcess
from lightlib.tree import map_tensors, tensors_in

__all__ = [
    "all_gather", "all_gather_object", "all_reduce", "barrier", "broadcast", "collect_results", "gather",
    "is_rank_zero", "local_rank", "local_zero_first", "rank", "rank_zero_first", "rank_zero_only", "shared_seed",
    "world_size",
]  # fmt: skip

T = TypeVar("T")
_LOCAL_RANKS = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")


# where this process is
def world_size() -> int:
    """Return how many processes there are: of the process group, or else those that torchrun has started.

    Example:
        >>> world_size(), rank(), is_rank_zero()
        (1, 0, True)
    """
    return dist.get_world_size() if _is_distributed() else int(os.environ.get("WORLD_SIZE") or 1)


def rank() -> int:
    """Return the number of this process among all, from 0."""
    return dist.get_rank() if _is_distributed() else int(os.environ.get("RANK") or 0)


def local_rank() -> int:
    """Return the number of this process among those of its machine, from 0.

    It is read from the variable that the launcher sets: torchrun and lightlib, SLURM, Open MPI, Intel MPI.

    Raises:
        MisconfigurationException: There are several processes, and none of these variables is set.
    """
    variable = next((os.environ[name] for name in _LOCAL_RANKS if name in os.environ), None)
    if variable is None and world_size() > 1:
        raise MisconfigurationException(
            f"The local rank of process {rank()} of {world_size()} is unknown.",
            expected=f"one of the variables {', '.join(_LOCAL_RANKS)}.",
            fix="start the processes with lightlib's Trainer, torchrun, srun or mpirun, or set LOCAL_RANK.",
        )
    return int(variable or 0)


def is_rank_zero() -> bool:
    """Return whether this is the first of all processes."""
    return rank() == 0


# waiting
def barrier() -> None:
    """Return when every process has called this."""
    _collectives().barrier()


@contextmanager
def rank_zero_first() -> Iterator[None]:
    """Let the first process run a block before all other ranks, for instance to download data to a shared disk.

    Example:
        >>> with rank_zero_first():
        ...     print("downloaded")
        downloaded
    """
    with _first(rank() == 0):
        yield


@contextmanager
def local_zero_first() -> Iterator[None]:
    """Let the first process of each machine run a block before the rest, where machines share no disk."""
    with _first(local_rank() == 0):
        yield


@contextmanager
def _first(goes_first: bool) -> Iterator[None]:
    if not goes_first:
        barrier()
    try:
        yield
    finally:
        if goes_first:  # also after an exception: other ranks must not wait forever
            barrier()


# exchanging values
def broadcast(value: T, src: int = 0) -> T:
    """Return the value of process `src` on every process.

    Args:
        value: Anything that can be pickled. Tensors in collections come on the device of the receiving process, if they
            were on a GPU.
        src: The process. Default: 0.

    Raises:
        MisconfigurationException: There is no such process.
    """
    _check_rank(src, "src")
    if world_size() == 1:
        return value
    kinds = [tensor.device.type for tensor in tensors_in(value)]
    sent = map_tensors(Tensor.cpu, value) if any(kind != "cpu" for kind in kinds) else value
    received, of_source = _collectives().broadcast((sent, kinds), src)
    if rank() == src:
        return value
    each = iter(of_source)
    moved: T = map_tensors(lambda tensor: tensor if next(each) == "cpu" else tensor.to(_device()), received)
    return moved


def all_gather_object(value: T) -> list[T]:
    """Return the values of all processes, in the order of their ranks.

    Example:
        >>> all_gather_object({"name": "a"})
        [{'name': 'a'}]
    """
    return _collectives().all_gather_object(value)


def all_reduce(value: Any, op: Literal["mean", "sum", "min", "max"] = "mean") -> Any:
    """Return the mean, sum, minimum or maximum over all processes of each tensor and number in a collection.

    Args:
        value: A tensor, a number, or a nested collection of them, with equal shapes on all processes. Integers
            become floating point for a mean.
        op: ``"mean"``, ``"sum"``, ``"min"`` or ``"max"``. Default: ``"mean"``.

    Returns:
        The same structure, on the same devices; numbers become tensors without dimensions.

    Raises:
        ArgumentTypeError: It holds something else.
        MisconfigurationException: Another `op`, or structures or shapes that differ between processes.

    Example:
        >>> all_reduce({"loss": 2.0}, "sum")
        {'loss': tensor(2.)}
    """
    if op not in ("mean", "sum", "min", "max"):
        raise wrong_value("all_reduce", "op", op, "'mean', 'sum', 'min' or 'max'", fix="all_reduce(value, 'mean')")
    tensors = _as_tensors(value, "all_reduce")
    _check_same(tensors, "all_reduce", lambda tensor: (tuple(tensor.shape), tensor.dtype))
    collectives = _collectives()

    def reduced(tensor: Tensor) -> Tensor:
        if op == "mean" and not tensor.is_floating_point() and not tensor.is_complex():
            tensor = tensor.float()
        result: Tensor = collectives.reduce(tensor, reduce_op=op)
        return result.to(tensor.device)

    return map_tensors(reduced, tensors)


def all_gather(value: Any) -> Any:
    """Return the rows of all processes, joined along the first dimension in the order of their ranks.

    Args:
        value: A tensor, a number, or a nested collection of them. Processes may have different numbers of rows, also
            none; all other dimensions and the dtypes are equal.

    Returns:
        The same structure; each tensor has shape ``(sum of rows, ...)``. Numbers and tensors without dimensions
        become one row.

    Raises:
        ArgumentTypeError: It holds something else.
        MisconfigurationException: Structures, dtypes or other dimensions differ between processes.

    Example:
        >>> all_gather({"scores": torch.ones(3), "loss": 0.5})
        {'scores': tensor([1., 1., 1.]), 'loss': tensor([0.5000])}
    """
    tensors = map_tensors(torch.atleast_1d, _as_tensors(value, "all_gather"))
    described = _check_same(tensors, "all_gather", lambda tensor: (tuple(tensor.shape[1:]), tensor.dtype))
    if world_size() == 1:
        return tensors
    collectives, each = _collectives(), iter(range(len(described[0])))

    def joined(tensor: Tensor) -> Tensor:
        position = next(each)
        rows = [descriptions[position][0] for descriptions in described]
        padded = tensor.new_zeros((max(rows), *tensor.shape[1:]))
        padded[: len(tensor)] = tensor.detach()
        parts = collectives.all_gather(padded)
        return torch.cat([part[:n] for part, n in zip(parts, rows, strict=True)])

    return map_tensors(joined, tensors)


def gather(value: Any, dst: int = 0) -> Any | None:
    """Return the rows of all processes as :func:`all_gather` does on process `dst`, and None on all other ranks.

    Raises:
        MisconfigurationException: There is no process `dst`, or as of :func:`all_gather`.
    """
    _check_rank(dst, "dst")
    joined = all_gather(value)
    return joined if rank() == dst else None


def collect_results(results: Sequence[T], size: int) -> list[T]:
    """Return the results of all samples of a data set in its order, on every process.

    Samplers such as torch's `DistributedSampler` give sample ``i`` to process ``i % world_size`` and repeat samples
    so that all processes have equally many: the results are interleaved, and what was repeated is left out.

    Args:
        results: Of the samples of this process, one for each, in the order in which it got them.
        size: The number of samples of the data set.

    Raises:
        MisconfigurationException: All processes together have fewer results.

    Example:
        >>> collect_results(["a", "b", "c"], 2)
        ['a', 'b']
    """
    parts = all_gather_object(list(results))
    longest = max(map(len, parts))
    ordered = [part[row] for row in range(longest) for part in parts if row < len(part)]
    if len(ordered) < size:
        raise MisconfigurationException(
            f"collect_results got {len(ordered)} results of {len(parts)} processes for {size} samples.",
            expected="at least one result for each sample.",
            fix=f"collect_results(results, {len(ordered)}), or return a result for every sample.",
        )
    return ordered[:size]


def shared_seed() -> int:
    """Return a random seed that is equal on all processes, drawn from the first one's generator of torch.

    Example:
        >>> 0 <= shared_seed() < 2**32
        True
    """
    return broadcast(int(torch.randint(2**32, (), dtype=torch.int64)))


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


def _collectives() -> Collectives:
    if world_size() == 1:
        return SingleProcess()
    if not _is_distributed():
        raise MisconfigurationException(
            f"Process {rank()} of {world_size()} exchanges values, but there is no process group yet.",
            expected="a call within a run of the Trainer, after fabric.launch(), or after init_process_group.",
            fix="torch.distributed.init_process_group() at the start of the program.",
        )
    return ProcessGroup(_device())


def _device() -> torch.device:
    """Return the device that the process group exchanges tensors on."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None or dist.get_backend() == "gloo":
        return torch.device("cpu")
    return torch.device(accelerator.type, torch.accelerator.current_device_index())


def _check_rank(number: object, argument: str) -> None:
    if type(number) is not int or not 0 <= number < world_size():
        raise MisconfigurationException(
            f"{argument} is {number!r}, with {world_size()} process{'es' * (world_size() > 1)}.",
            expected=f"a rank from 0 to {world_size() - 1}.",
            fix=f"{argument}=0",
        )


def _as_tensors(value: Any, call: str) -> Any:
    """Return `value` with its numbers as tensors."""

    def convert(part: Any) -> Any:
        if isinstance(part, Tensor):
            return part
        if isinstance(part, (bool, int, float, complex)):
            return torch.tensor(part)
        if isinstance(part, dict):
            return {key: convert(item) for key, item in part.items()}
        if isinstance(part, tuple) and hasattr(part, "_fields"):
            return type(part)(*map(convert, part))
        if isinstance(part, (list, tuple)):
            return type(part)(map(convert, part))
        raise ArgumentTypeError(
            f"{call} got {shown(part)}.",
            expected="tensors, numbers, and lists, tuples and dicts of them.",
            fix="all_gather_object(value) for other objects.",
        )

    return convert(value)


def _check_same(
    tensors: Any, call: str, compared: Callable[[Tensor], tuple[Any, ...]]
) -> list[list[tuple[int, tuple[Any, ...]]]]:
    """Compare the tensors of all processes; return for each process the rows and properties of its tensors.

    Raises:
        MisconfigurationException: They differ, on every process: an operation on them would hang or mix them up.
    """
    local = [(len(tensor) if tensor.dim() else 1, compared(tensor)) for tensor in tensors_in(tensors)]
    by_rank = all_gather_object(local)
    first = [properties for _, properties in by_rank[0]]
    other = next(
        (i for i, rank_tensors in enumerate(by_rank) if [properties for _, properties in rank_tensors] != first), None
    )
    if other is not None:
        raise MisconfigurationException(
            f"{call} got {_named(by_rank[0])} on rank 0 and {_named(by_rank[other])} on rank {other}.",
            expected="the same structure, dtypes and shapes on all processes"
            + (", but for the first dimension." if call == "all_gather" else "."),
            fix="all_gather_object(value) exchanges values of any shape.",
        )
    return by_rank


def _named(described: list[tuple[int, tuple[Any, ...]]]) -> str:
    each = [f"{dtype} of shape (…, {', '.join(map(str, shape))})" for _, (shape, dtype) in described]
    return "; ".join(each[:3]) + ("; …" if len(each) > 3 else "") if each else "no tensor"
