"""A callback that keeps an average of the weights, and a plain loop that keeps the same one."""

from __future__ import annotations

import torch
from torch.nn import functional as F

import lightlib as L

DECAY = 0.9


class Average(L.Callback):
    """An average of the parameters after each step, and for biases the sum of their squares in float64."""

    def __init__(self):
        self.average, self.squares, self.loaded, self.steps = {}, {}, 0, 0

    def on_fit_start(self, trainer, pl_module):
        if not self.average:
            self.average = {name: p.detach().clone() for name, p in pl_module.named_parameters()}
            self.squares = {
                name: torch.zeros_like(p, dtype=torch.float64)
                for name, p in pl_module.named_parameters()
                if name.endswith("bias")
            }

    def on_accumulation_end(self, trainer, pl_module):
        self.steps += 1
        with torch.no_grad():
            for name, parameter in pl_module.named_parameters():
                self.average[name].lerp_(parameter.detach(), 1 - DECAY)
                if name in self.squares:
                    self.squares[name] += parameter.detach().double() ** 2

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state_dict):
        self.steps = state_dict["steps"]

    def sharded_state(self, trainer, pl_module):
        return {"average": self.average, "squares": self.squares}

    def load_sharded_state(self, trainer, pl_module, state):
        self.loaded += 1
        self.average, self.squares = state["average"], state["squares"]


def plain_average(module, forward, batches):
    """Train `module` by `forward` in a plain loop; return the average and the sums of squares."""
    average = {name: p.detach().clone() for name, p in module.named_parameters()}
    squares = {name: torch.zeros_like(p).double() for name, p in average.items() if name.endswith("bias")}
    optimizer = module.configure_optimizers()
    for x, y in batches:
        optimizer.zero_grad()
        F.cross_entropy(forward(x), y).backward()
        optimizer.step()
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                average[name].lerp_(parameter, 1 - DECAY)
                if name in squares:
                    squares[name] += parameter.detach().double() ** 2
    return average, squares


def same(one, other):
    """Whether two dictionaries have the same tensors, bit for bit."""
    return list(one) == list(other) and all(torch.equal(value, other[name]) for name, value in one.items())
