"""A simulated world: collectives return at once, and no value is read from a tensor."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, distributed

from lightlib.errors import FOLDERS, MisconfigurationException
from lightlib.simulation.fake import moved_by_assignment
from lightlib.simulation.mailbox import Mailbox
from lightlib.strategies.axes import replicate
from lightlib.strategies.axes.tensor import trial
from lightlib.strategies.axes.tensor.tensor_axis import Tensor as TensorAxis
from lightlib.strategies.axes.tensor.verify import FirstForward
from lightlib.strategies.group import consistency
from lightlib.strategies.group.collectives import ProcessGroup
from lightlib.torch_private import fake_mode, forget_meshes, generic_kernels, join_fake_group, meshes_outside_of_fake

_NOT_THE_USERS = (str(Path(torch.__file__).parent), *FOLDERS, "<")


@contextmanager
def joined(rank: int, size: int) -> Iterator[None]:
    """Be one process of a group in which every collective returns at once.

    Raises:
        MisconfigurationException: This process belongs to a group already.
    """
    if distributed.is_initialized():
        raise MisconfigurationException(
            f"A plan was begun in a process of a run of {distributed.get_world_size()} processes.",
            expected="a program of one process: the processes of a plan are simulated.",
            fix="make the plan before training, in a program of its own: lightlib plan --config …",
        )
    join_fake_group(rank, size)
    try:
        yield
    finally:
        distributed.destroy_process_group()
        forget_meshes()


@contextmanager
def without_values(mailbox: Mailbox) -> Iterator[None]:
    """Simulate tensors on the CPU; where lightlib itself reads values, it gets those of this process."""
    with ExitStack() as stack:
        for owner, name, substitute in (
            (consistency, "check_equal", _nothing),
            (consistency, "share_values", _nothing),
            (ProcessGroup, "all_gather_object", lambda self, obj: [obj] * self.size),
            (ProcessGroup, "broadcast", lambda self, obj, src=0: obj),
            (ProcessGroup, "reduce", lambda self, tensor, group=None, reduce_op="mean": tensor),
            (ProcessGroup, "barrier", _nothing),
            (distributed, "broadcast_object_list", _nothing),
            (
                replicate,
                "used_anywhere",
                lambda parameters, *_: [parameter.grad is not None for parameter in parameters],
            ),
            (FirstForward, "_compare", _nothing),
            (TensorAxis, "_check_gradients", _nothing),
            (trial, "_same", _same_shapes),
            (torch.random, "fork_rng", lambda *_, **__: nullcontext()),
        ):
            stack.enter_context(mock.patch.object(owner, name, substitute))
        stack.enter_context(meshes_outside_of_fake())
        stack.enter_context(mailbox.in_place_of_messages())
        stack.enter_context(generic_kernels())
        stack.enter_context(moved_by_assignment())
        stack.enter_context(fake_mode())
        yield


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing, in place of a function that changes neither memory nor messages of a step."""


def _same_shapes(expected: Sequence[Tensor], received: Sequence[Tensor]) -> bool:
    """Compare shapes in place of values."""
    return [(tensor.shape, tensor.dtype) for tensor in expected] == [
        (tensor.shape, tensor.dtype) for tensor in received
    ]


def line_of(error: BaseException) -> str:
    """Return the place in the user's code that raised: outside of torch, of lightlib and of installed packages."""
    places = ((frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__))
    user_lines = [f"{file}:{line}" for file, line in places if not file.startswith(_NOT_THE_USERS)]
    return user_lines[-1] if user_lines else ""
