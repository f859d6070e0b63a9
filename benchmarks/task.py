"""The task that every framework trains: a network, data, a loss, and the services that are on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, TensorDataset

__all__ = [
    "BARE",
    "CPU",
    "IN_MEMORY",
    "LOGGED",
    "LOGGED_EVERYWHERE",
    "REALISTIC",
    "Clock",
    "Place",
    "Rows",
    "Switches",
    "Task",
    "tiny",
]

LOG_EVERY = 50
MAX_NORM = 1.0
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Switches:
    """Services in addition to forward, backward and the optimizer's step.

    Attributes:
        log: The arguments of `self.log("loss", loss, …)`; None for no such call.
        bar: A progress bar that shows the last loss, in a terminal.
        tensorboard: Scalars are written every 50 steps.
        accuracy: A torchmetrics Accuracy is updated at every step.
        clip: Gradients are clipped to the norm 1.
        schedule: A learning-rate schedule advances at every step.
        in_memory: Data are read as in most scripts on small data: from a TensorDataset, without batched fetching.
    """

    log: dict[str, bool] | None = None
    bar: bool = False
    tensorboard: bool = False
    accuracy: bool = False
    clip: bool = False
    schedule: bool = False
    in_memory: bool = False


_EVERYWHERE = {"on_step": True, "on_epoch": True, "prog_bar": True}
BARE = Switches()
IN_MEMORY = Switches(in_memory=True)
LOGGED = Switches(log={})
LOGGED_EVERYWHERE = Switches(log=_EVERYWHERE)
REALISTIC = Switches(log=_EVERYWHERE, bar=True, tensorboard=True, accuracy=True, clip=True, schedule=True)


@dataclass(frozen=True)
class Place:
    """The device of a benchmark.

    Attributes:
        accelerator: The argument of a Trainer.
        device: That of this process.
    """

    accelerator: Any = "cpu"
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def wait(self) -> None:
        """Wait until the device is done."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)


CPU = Place()


class Rows(Dataset[Batch]):
    """Rows of two tensors, taken a batch at a time, so that loading costs little and the rest can be seen."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs, self.targets = inputs, targets

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> Batch:
        return self.inputs[index], self.targets[index]

    def __getitems__(self, indices: list[int]) -> Batch:
        first, count = indices[0], len(indices)  # a loader requests them in order
        return self.inputs[first : first + count], self.targets[first : first + count]


class Clock:
    """A collate function that looks at the time at every batch, from number `first` to number `last`.

    Every framework asks a DataLoader for its batches, so that what passes between two of them is a step, whatever a
    framework does in it, and what comes before the first and after the last is left out. With data in memory it is the
    network that looks, for the DataLoader has no collate function of ours there.
    """

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last
        self.seen = 0
        self.times: list[float] = []
        self.worked = 0.0

    def __call__(self, batch: Batch) -> Batch:
        if self.first <= self.seen <= self.last:
            if self.seen == self.first:
                self.worked -= process_time()
            elif self.seen == self.last:
                self.worked += process_time()
            self.times.append(perf_counter())
        self.seen += 1
        return batch

    @property
    def typical(self) -> float:
        """Seconds of the median step: without disturbances, and without work that only some steps do."""
        assert len(self.times) == self.last - self.first + 1, f"only {self.seen} batches were requested"
        return median(after - before for before, after in pairwise(self.times))

    @property
    def mean(self) -> float:
        """Processor seconds per step, of all threads in this program, with the work that only some steps do."""
        assert len(self.times) == self.last - self.first + 1, f"only {self.seen} batches were requested"
        return self.worked / (self.last - self.first)


@dataclass
class Task:
    """One training run.

    Attributes:
        new_network: Makes the network, with the same weights every time.
        rows: The data of one epoch; there is only one.
        batch_size: Rows per batch.
        classes: Of the accuracy.
        switches: What is done besides.
        folder: Where logs go.
        clock: Sees every batch.
        place: Where the network is.
    """

    new_network: Callable[[], nn.Module]
    rows: Rows
    batch_size: int
    classes: int
    switches: Switches
    folder: Path
    clock: Clock
    learning_rate: float = 0.01
    place: Place = CPU

    @property
    def batches(self) -> int:
        return len(self.rows) // self.batch_size

    def network(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            network = self.new_network()
        if self.switches.in_memory:
            network.register_forward_pre_hook(self._look)
        return network

    def _look(self, *_: Any) -> None:
        self.clock((self.rows.inputs, self.rows.targets))

    def loader(self) -> DataLoader[Any]:
        if self.switches.in_memory:
            return DataLoader(TensorDataset(self.rows.inputs, self.rows.targets), self.batch_size)
        return DataLoader(self.rows, self.batch_size, collate_fn=self.clock)

    def on_device(self) -> Iterable[Batch]:
        """Return the loader, or on another device than the CPU its batches on that device."""
        device = self.place.device
        if device.type == "cpu":
            return self.loader()
        return ((inputs.to(device), targets.to(device)) for inputs, targets in self.loader())

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(logits, targets)

    def accuracy(self) -> Any:
        from torchmetrics.classification import MulticlassAccuracy  # optional: torchmetrics

        return MulticlassAccuracy(self.classes)

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, self.learning_rate)

    def schedule(self, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.LambdaLR(optimizer, decay)

    def writer(self) -> Any:
        from torch.utils.tensorboard import SummaryWriter  # optional: tensorboard

        return SummaryWriter(self.folder)


def decay(step: int) -> float:
    """The schedule: slowly towards zero."""
    return 1 / (1 + 1e-4 * step)


def tiny(steps: int, warm_up: int, switches: Switches, folder: Path, place: Place = CPU) -> Task:
    """Return a task with steps so small that the overhead of a framework is visible."""
    batch_size, features, classes = 16, 32, 2
    generator = torch.Generator().manual_seed(0)
    count = batch_size * (warm_up + steps + 1)
    rows = Rows(
        torch.randn(count, features, generator=generator), torch.randint(classes, (count,), generator=generator)
    )
    clock = Clock(warm_up, warm_up + steps)
    return Task(_tiny_network, rows, batch_size, classes, switches, folder, clock, place=place)


def _tiny_network() -> nn.Module:
    parts: Sequence[nn.Module] = (nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
    return nn.Sequential(*parts)
