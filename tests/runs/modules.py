"""Small modules that many tests share: variants of the classifier of plain.py, and one weight."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import mse_loss

from lightlib.core.module.module import Module
from tests.runs.plain import Net, sgd


class Regression(Net):
    """Minimizes the mean squared error, or the mean square of the output if batches have no target.

    Args:
        net: The network, or the number of inputs of a linear layer with one output.
        configure: Gets the parameters and returns the result of configure_optimizers.
    """

    def __init__(self, net=1, configure=sgd):
        super().__init__(configure, net=nn.Linear(net, 1) if isinstance(net, int) else net)

    def loss(self, batch):
        x, *target = batch if isinstance(batch, (list, tuple)) else (batch,)
        return mse_loss(self.net(x), target[0]) if target else self.net(x).square().mean()


class Validated(Net):
    """Logs the loss of validation and test, and predicts; also with several loaders."""

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        self.log("val_loss", self.loss(batch))

    def test_step(self, batch, batch_idx, dataloader_idx=0):
        self.log("test_loss", self.loss(batch))

    def predict_step(self, batch, batch_idx, dataloader_idx=0):
        return self.net(batch[0])


class LogsLoss(Net):
    """Logs its loss as "loss".

    Args:
        options: Arguments of `log`.
        configure: Gets the parameters and returns the result of configure_optimizers.
    """

    def __init__(self, configure=sgd, **options):
        super().__init__(configure)
        self.options = options

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss, **self.options)
        return loss


class Manual(Net):
    """Optimizes by hand, with each of its optimizers in turn.

    Args:
        configure: Gets the parameters and returns the result of configure_optimizers.
        before_step: Called with the module and the optimizer before each step.
    """

    automatic_optimization = False

    def __init__(self, configure=sgd, before_step=lambda module, optimizer: None):
        super().__init__(configure)
        self.before_step = before_step

    def training_step(self, batch, batch_idx):
        optimizers = self.optimizers()
        for optimizer in optimizers if isinstance(optimizers, list) else [optimizers]:
            optimizer.zero_grad()
            self.manual_backward(super().training_step(batch, batch_idx))
            self.before_step(self, optimizer)
            optimizer.step()


class Seen(Net):
    """Keeps its batches as plain lists, also when it is saved and loaded; any batch will do."""

    not_in_checkpoint = ("seen",)

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.seen = []

    def training_step(self, batch, batch_idx):
        self.seen.append(torch.utils._pytree.tree_map(lambda x: x.tolist(), batch))
        return self.net(torch.ones(1, 6)).mean()


class Holds(Module):
    """Has these children.

    Args:
        loss: Gets the module and a batch, and returns the loss.
        children: By their names, which may be `loss`.
    """

    def __init__(self, loss=None, /, **children):
        super().__init__()
        self.loss = loss
        for name, child in children.items():
            setattr(self, name, child)

    def training_step(self, batch, batch_idx):
        return self.loss(self, batch)

    def configure_optimizers(self):
        return sgd(self.parameters())


class Weight(Module):
    """One weight of zero; the gradient of a batch is the batch's sum."""

    def __init__(self, configure=sgd):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.configure = configure

    def training_step(self, batch, batch_idx):
        return (self.weight * batch).sum()

    def configure_optimizers(self):
        return self.configure(self.parameters())
