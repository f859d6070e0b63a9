"""Communication: the device and ranks of a Fabric, the launch of its processes, and its collectives."""

from __future__ import annotations

import builtins
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from lightlib import report
from lightlib.accelerators.accelerator import Accelerator
from lightlib.core.processes import Processes
from lightlib.data.seed import rng_state, set_rng_state
from lightlib.errors import ArgumentTypeError, MisconfigurationException, shown
from lightlib.fabric.placement import Placement
from lightlib.fabric.refusals import not_launched
from lightlib.fabric.replaced import Replaced
from lightlib.fabric.words import in_words_of_fabric
from lightlib.launch.environment.detect import own
from lightlib.launch.start.spawn import launch_function
from lightlib.signatures import Reduction
from lightlib.strategies.strategy import Strategy
from lightlib.tree import map_children, map_tensors, to_device

T = TypeVar("T")


class Communication:
    """The processes of a Fabric; abstract base of :class:`lightlib.fabric.fabric.Fabric`."""

    strategy: Strategy
    accelerator: Accelerator
    devices: Sequence[torch.device]
    _processes: Processes
    _placements: list[Placement]
    _launched: bool
    _replaced: Replaced

    # where it runs
    @property
    def device(self) -> torch.device:
        """The device of this process."""
        return self.strategy.root_device

    @property
    def global_rank(self) -> int:
        """The rank of this process among all."""
        return self.strategy.global_rank

    @property
    def local_rank(self) -> int:
        """The rank of this process on its machine."""
        return self.strategy.local_rank

    @property
    def node_rank(self) -> int:
        """The number of this machine."""
        return self.strategy.node_rank

    @property
    def world_size(self) -> int:
        """The number of processes."""
        return self.strategy.world_size

    @property
    def is_global_zero(self) -> bool:
        """Whether this process has rank 0, which writes files and prints."""
        return self.strategy.is_global_zero

    # launching
    def launch(self, function: Callable[..., Any] | None = None, *args: Any, **kwargs: Any) -> Any:
        """Start the other processes unless a launcher has, connect to them, and call ``function(fabric, …)`` in each.

        A script is run again in each process (strategy ``"ddp"`` and most strategies), up to and beyond this call. With
        ``"ddp_spawn"``, ``"ddp_fork"`` or ``"ddp_notebook"`` the function runs in new processes. With one process
        `launch` may be left out.

        Args:
            function: Called with this Fabric first. Default: nothing is called.
            args, kwargs: Its further arguments.

        Returns:
            What the function returns here, or on rank 0 if it ran in new processes.

        Raises:
            ArgumentTypeError: `function` cannot be called with a Fabric.
            MisconfigurationException: There is no function, and the strategy can only run one.

        Example:
            >>> import lightlib
            >>> def train(fabric, epochs):
            ...     return f"{epochs} epochs on rank {fabric.global_rank}"
            >>> lightlib.Fabric(accelerator="cpu").launch(train, 3)
            '3 epochs on rank 0'
        """
        if function is not None:
            _check_function(function)
        with in_words_of_fabric():
            spawns = self.strategy.launcher not in (None, "subprocess") and not self.strategy.environment.launched
            if spawns and not self._launched:
                if function is None:
                    raise _needs_function(self.strategy)
                return self._spawned(function, args, kwargs)
            self._begin()
        return None if function is None else function(self, *args, **kwargs)

    def _begin(self) -> None:
        """Connect this process to the other ranks, which see from now on whether it fails or hangs."""
        if self._launched:
            return
        self._processes.ready()
        self._launched = True
        watch = self._processes.watch
        if watch is not None:
            watch.start(self._position, lambda kind: None, self._described)

    def _ready(self, call: str) -> None:
        """Raise if `launch` had to come before; with one process it is not needed."""
        if self._launched:
            return
        if self.strategy.world_size > 1:
            raise not_launched(call, self.strategy)
        self._begin()

    def _position(self) -> tuple[int, ...]:
        return (sum(placement.forwards for placement in self._placements),)

    def _described(self) -> str:
        return f"forward pass {self._position()[0]}"

    def _spawned(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        environment, method = self.strategy.environment, self.strategy.launcher
        assert method is not None
        call = partial(_in_child, self, function, args, kwargs, rng_state())
        return launch_function(call, environment.local_size, method, environment)

    def __getstate__(self) -> dict[str, Any]:  # for a new process
        return {name: value for name, value in vars(self).items() if name != "_processes"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._processes = Processes(self)

    # exchanging
    def barrier(self, name: str | None = None) -> None:
        """Return when every process has called this."""
        self._ready("barrier")
        self.strategy.barrier(name)

    def broadcast(self, obj: T, src: int = 0) -> T:
        """Return the object of rank `src`, on every process."""
        self._ready("broadcast")
        return self.strategy.broadcast(obj, src)

    def all_gather(self, data: Any, group: Any = None, sync_grads: bool = False) -> Any:
        """Return the values of all processes, stacked along a new first dimension; unchanged with one process.

        Args:
            data: A tensor, a number, or a collection of them; of the same shapes on every process.
            group: Of torch.distributed. Default: all processes.
            sync_grads: Whether gradients flow through. Default False.

        Raises:
            ArgumentTypeError: `data` holds neither tensors nor numbers.

        Example:
            >>> import lightlib
            >>> lightlib.Fabric(accelerator="cpu").all_gather({"loss": 0.5})
            {'loss': tensor(0.5000)}
        """
        self._ready("all_gather")
        given = self._as_tensors("all_gather", data)
        return map_tensors(lambda tensor: self.strategy.all_gather(tensor, group, sync_grads), given)

    def all_reduce(self, data: Any, group: Any = None, reduce_op: Reduction | None = "mean") -> Any:
        """Return the values reduced over all processes, the same on each.

        Args:
            data: A tensor, a number, or a collection of them; of the same shapes on every process.
            group: Of torch.distributed. Default: all processes.
            reduce_op: ``"mean"`` (default), ``"sum"``, ``"min"`` or ``"max"``.

        Raises:
            ArgumentTypeError: `data` holds neither tensors nor numbers.

        Example:
            >>> import lightlib
            >>> lightlib.Fabric(accelerator="cpu").all_reduce(torch.tensor([1.0, 2.0]), reduce_op="sum")
            tensor([1., 2.])
        """
        self._ready("all_reduce")
        given, how = self._as_tensors("all_reduce", data), str(reduce_op or "sum")
        reduce = self._replaced.all_reduce or self.strategy.reduce
        return map_tensors(lambda tensor: reduce(tensor, group, how), given)

    def _as_tensors(self, call: str, data: Any) -> Any:
        found = []

        def convert(value: Any) -> Any:
            if isinstance(value, (bool, int, float)):
                value = torch.tensor(value, device=self.device)
            if isinstance(value, Tensor):
                found.append(value)
                return value
            return map_children(convert, value)

        converted = convert(data)
        if not found:
            raise ArgumentTypeError(
                f"fabric.{call} got {shown(data)}, which holds no tensor and no number.",
                expected="a tensor, a number, or a collection of them.",
                fix=f"fabric.{call}(tensor); other objects are exchanged by fabric.broadcast(obj).",
            )
        return converted

    @contextmanager
    def rank_zero_first(self, local: bool = False) -> Iterator[None]:
        """Return a context that rank 0 runs through first, then all other ranks.

        Args:
            local: The first process of each machine goes first, where machines share no disk. Default False.

        Example:
            >>> import lightlib
            >>> with lightlib.Fabric(accelerator="cpu").rank_zero_first():
            ...     print("downloaded once")
            downloaded once
        """
        self._ready("rank_zero_first")
        rank = self.local_rank if local else self.global_rank
        if rank > 0:
            self.strategy.collectives.barrier("rank_zero_first")
        try:
            yield
        finally:
            if rank == 0:
                self.strategy.collectives.barrier("rank_zero_first")

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print on the first process of each machine."""
        if self.local_rank == 0:
            write = builtins.print
            if kwargs.get("file") is None:
                report.write_output(write, *args, **kwargs)
            else:
                write(*args, **kwargs)

    def to_device(self, obj: Any) -> Any:
        """Return a module, or the tensors in a collection, on the device of this process.

        Example:
            >>> import lightlib
            >>> lightlib.Fabric(accelerator="cpu").to_device({"x": torch.ones(1)})
            {'x': tensor([1.])}
        """
        self._ready("to_device")
        if isinstance(obj, nn.Module) and self._replaced.to_device is not None:
            self._replaced.to_device(obj)
            return obj
        return obj.to(self.device) if isinstance(obj, nn.Module) else to_device(obj, self.device)


def _check_function(function: Any) -> None:
    if not callable(function):
        raise ArgumentTypeError(
            f"fabric.launch got {shown(function)}.",
            expected="a function that takes the Fabric as its first argument.",
            fix="fabric.launch(train), without calling it.",
        )
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a function of C
        return
    if not parameters:
        name = getattr(function, "__name__", type(function).__name__)
        raise ArgumentTypeError(
            f"fabric.launch got the function {name}, which takes no arguments.",
            expected="a function that takes the Fabric as its first argument.",
            fix=f"def {name}(fabric): …",
        )


def _needs_function(strategy: Strategy) -> MisconfigurationException:
    return MisconfigurationException(
        f"fabric.launch() got no function, and the strategy starts its processes by {strategy.launcher!r}.",
        expected="the function that these processes run.",
        fix="fabric.launch(train) with def train(fabric): …; or strategy='ddp' in a script.",
    )


def _in_child(
    fabric: Communication,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    random_numbers: dict[str, Any],
    rank: int,
) -> Any:
    """Run the function as rank `rank`; rank 0 returns its result to the process that started it."""
    set_rng_state(random_numbers)  # a new interpreter has a different state
    environment, strategy = own(), fabric.strategy
    assert environment is not None, "launch_function sets it"
    report.rank_zero_only.rank = environment.rank
    strategy.use(strategy.accelerator, list(strategy.devices), strategy.precision, environment)
    returned = fabric.launch(function, *args, **kwargs)
    return map_tensors(lambda tensor: tensor.detach().cpu(), returned) if rank == 0 else None
