"""State that users keep in objects of their own, which no method of theirs saves."""

from __future__ import annotations

import enum
import queue
import random
from collections import UserList, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.utils.data import Sampler
from torchmetrics.classification import MulticlassAccuracy

from lightlib.callbacks import Callback

__all__ = ["ChangesData", "Epochs", "KeepsOddState", "KeepsOwnState", "Slowing"]


@dataclass
class Pace:
    """The weight of the loss, and its history."""

    factor: float = 1.0
    past: list[float] = field(default_factory=list)


class Memory:
    """Losses of earlier batches, from which one is drawn."""

    def __init__(self) -> None:
        self.losses: deque[float] = deque(maxlen=5)
        self.draws = random.Random(6)


class KeepsOwnState:
    """A mixin for the campaign's module: its loss depends on all of its state."""

    freezes: bool  # layers, from the second epoch on: not with DDP, which waits for their gradients

    def keep(self) -> None:
        """Create all the state."""
        self.pace, self.memory, self.level = Pace(), Memory(), 0
        self.noise, self.table = torch.Generator().manual_seed(7), np.zeros(3)
        self.by_hand = MulticlassAccuracy(3)

    def on_train_epoch_start(self) -> None:
        """Change settings that a run resumed within the epoch does not set again."""
        module: Any = self
        self.level += 1
        module.model[-2].p = 0.1 * self.level
        module.model[-2].train(module.current_epoch % 2 == 0)
        if self.freezes:
            module.model[0].requires_grad_(module.current_epoch == 0)
        if self.freezes and module.current_epoch == 1:
            self.extra.requires_grad_(True)
            module.optimizers().add_param_group({"params": [self.extra], "lr": 0.01})

    def weighted(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss weighted by all of the state."""
        module: Any = self
        number = float(loss.detach())
        self.memory.losses.append(number)
        self.pace.factor *= 0.99
        self.pace.past.append(number)
        self.table[module.global_step % 3] += 0.1
        self.by_hand.update(*(torch.randint(3, (4,)).to(loss.device) for _ in range(2)))
        old = self.memory.draws.choice(self.memory.losses)
        noise = torch.rand((), generator=self.noise) + self.table.sum() + self.by_hand.compute()
        return loss * self.pace.factor * (1 + 0.1 * (old + noise)) + (self.extra.sum() if self.freezes else 0.0)

    extra: torch.nn.Parameter


class Kind(enum.Enum):
    """The parity of a step."""

    EVEN = 0
    ODD = 1


class Table(dict[Any, float]):
    """A dict with an attribute."""

    hits = 0


class KeepsOddState:
    """A mixin for the campaign's module: state of the kinds and in the places that are hardest to see."""

    batches = 0  # in the class, which each process begins with

    def keep_odd(self) -> None:
        """Create all the state."""
        self.options, self.waiting, self.raw = SimpleNamespace(factor=1.0), queue.Queue[float](), bytearray(3)
        self.records, self.dice = np.zeros(3, dtype=[("x", "f4"), ("p", "f8")]), np.random.SeedSequence(5)
        self.masked, self.many = np.ma.masked_array(np.zeros(2), [False, True]), UserList([0.0])
        self.bank, self.replay = torch.zeros(5000, 64), deque[Any](maxlen=40)
        self.by_kind: dict[Kind, Any] = {Kind.EVEN: {"sum": 0.0, "opaque": object()}}
        self.table = Table()

    def weighted_odd(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss weighted by all of the state."""
        module: Any = self
        number, step = float(loss.detach()), module.global_step
        KeepsOddState.batches += 1
        self.options.factor *= 0.99
        self.waiting.put(number)
        self.raw[step % 3] = (self.raw[step % 3] + 1) % 200
        self.records["p"][step % 3] += 0.1
        self.masked[step % 2] = number
        self.many.append(number)
        self.bank.data[step % 5000].add_(0.1)
        self.replay.append((torch.full((3,), number), np.full(2, number), None if step % 3 else torch.ones(1)))
        self.by_kind.setdefault(Kind(step % 2), {"sum": 0.0})["sum"] += number
        self.table[step % 4], self.table.hits = number, self.table.hits + 1
        drawn = self.dice.spawn(1)[0].generate_state(1)[0] % 100
        total = KeepsOddState.batches + self.waiting.qsize() + sum(self.raw) + len(self.many) + self.table.hits
        total += self.records["p"].sum() + float(self.bank.sum()) + float(self.masked.sum() or 0.0) + int(drawn)
        total += sum(float(x.sum()) + float(y.sum()) for x, y, _ in self.replay) + self.by_kind[Kind.EVEN]["sum"]
        return loss * self.options.factor * (1 + 0.001 * float(total))


class Slowing(torch.optim.AdamW):
    """Shrinks its steps by an attribute that no state_dict holds."""

    scale = 1.0

    def step(self, closure: Any = None) -> Any:
        self.scale *= 0.999
        for group in self.param_groups:
            group["weight_decay"] = 0.01 * self.scale
        return super().step(closure)


class Epochs(Sampler[int]):
    """Counts its epochs, and draws samples from the global generator by weights that training changes."""

    def __init__(self, count: int) -> None:
        self.weights, self.epoch = torch.ones(count), 0

    def __len__(self) -> int:
        return len(self.weights)

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        for _ in range(len(self.weights) - self.epoch % 2):
            yield int(torch.multinomial(self.weights, 1))
        yield from range(self.epoch % 2)


class ChangesData(Callback):
    """Changes the sampler's weights and the data set's noise, and adds noise from its own generator."""

    def __init__(self) -> None:
        self.generator, self.batches = np.random.default_rng(8), 0

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        trainer.train_dataloader.dataset.noise *= 1.1

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.batches += 1
        trainer.train_dataloader.sampler.weights[self.batches % 7] += 0.5
        if self.batches % 5 == 0:
            pl_module.model[-1].bias.data += 0.01 * float(self.generator.normal())
