"""Manual optimization of two models against a plain loop; clipping by a function."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import ExponentialLR, StepLR

from lightlib.core.module.module import Module
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from tests.runs.plain import Net, batches, network, quiet_trainer, same_weights, with_methods
from tests.runs.resumable import SaveAtStep


def clip(parameters):
    """Clip to a norm that every gradient of these tests exceeds."""
    clip_grad_norm_(parameters, 0.05)


def tools(first, second):
    """Two optimizers, and a schedule for each."""
    one, two = torch.optim.AdamW(first, lr=0.02), torch.optim.SGD(second, lr=0.1, momentum=0.9)
    return [one, two], [ExponentialLR(one, 0.9), StepLR(two, 2, gamma=0.5)]


def losses_of(first, second, x, y):
    """The loss of each model; the second one learns the output of the first one."""
    scores = first(x)
    return cross_entropy(scores, y), (second(x) - scores.detach()).square().mean()


class Two(Module):
    """Two models with a loss, an optimizer and a schedule each; `order` is the order of their steps."""

    automatic_optimization = False

    def __init__(self, order=(0, 1)):
        super().__init__()
        self.first, self.second, self.order = network(), network(dropout=0.2), order

    def training_step(self, batch, batch_idx):
        optimizers, losses = self.optimizers(), losses_of(self.first, self.second, *batch)
        for loss in losses:
            self.manual_backward(loss)
        for i in self.order:
            optimizers[i].step(clip_grads=clip)
            optimizers[i].zero_grad()
            self.lr_schedulers()[i].step()

    def configure_optimizers(self):
        return tools(self.first.parameters(), self.second.parameters())


def by_hand(data, epochs, order):
    """Train the two models in a plain loop; return them."""
    first, second = network(), network(dropout=0.2)
    optimizers, schedules = tools(first.parameters(), second.parameters())
    models = [first, second]
    torch.manual_seed(5)
    for _ in range(epochs):
        for x, y in data:
            for loss in losses_of(first, second, x, y):
                loss.backward()
            for i in order:
                clip_grad_norm_(models[i].parameters(), 0.05)
                optimizers[i].step()
                optimizers[i].zero_grad()
                schedules[i].step()
    return first, second, [optimizer.param_groups[0]["lr"] for optimizer in optimizers]


def equals(module, expected):
    """Whether the weights and the learning rates are those of the plain loop."""
    first, second, rates = expected
    found = [optimizer.param_groups[0]["lr"] for optimizer in module.optimizers(use_pl_optimizer=False)]
    return same_weights(module.first, first) and same_weights(module.second, second) and found == rates


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_models_two_losses_two_optimizers(order):
    module, data = Two(order), batches(5)
    torch.manual_seed(5)
    quiet_trainer(max_epochs=2).fit(module, data)
    assert equals(module, by_hand(data, 2, order))


def test_they_resume_bit_for_bit(tmp_path):
    data, path = batches(5), tmp_path / "7.ckpt"
    torch.manual_seed(5)
    quiet_trainer(max_epochs=3, callbacks=[SaveAtStep(path, 7)]).fit(Two(), data)
    torch.manual_seed(99)
    resumed = Two()
    quiet_trainer(max_epochs=3).fit(resumed, data, ckpt_path=path)
    assert equals(resumed, by_hand(data, 3, (0, 1)))


def test_the_gradient_of_an_output_that_is_no_loss():
    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        scores = self.net(batch[0])
        self.manual_backward(scores, gradient=scores.detach().sign())
        optimizer.step()

    module, data, net = with_methods(Net, training_step, automatic_optimization=False), batches(3), network()
    quiet_trainer().fit(module, data)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, _ in data:
        optimizer.zero_grad()
        scores = net(x)
        scores.backward(scores.detach().sign())
        optimizer.step()
    assert same_weights(module.net, net)


@pytest.mark.parametrize("retain", [True, False])
def test_a_second_backward_needs_the_graph(retain):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.manual_backward(loss, retain_graph=retain)
        self.manual_backward(loss)
        found.append([p.grad for p in self.parameters()])
        self.optimizers().step()

    found, data, twice = [], batches(1), with_methods(Net, training_step, automatic_optimization=False)
    if not retain:
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            quiet_trainer().fit(twice, data)
        return
    quiet_trainer().fit(twice, data)
    net = network()
    (2 * cross_entropy(net(data[0][0]), data[0][1])).backward()
    for ours, theirs in zip(found[0], net.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs.grad)


class Clipped(Net):
    """Clips by a function of the user's, which records its arguments."""

    automatic_optimization = False

    def __init__(self, function, by_closure=False, **arguments):
        super().__init__(**arguments)
        self.function, self.by_closure = function, by_closure
        self.unused = nn.Parameter(torch.ones(1))

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()

        def closure():
            optimizer.zero_grad()
            loss = self.loss(batch)
            self.manual_backward(loss)
            return loss

        if self.by_closure:
            optimizer.step(closure, clip_grads=self.function)
        else:
            closure()
            optimizer.step(clip_grads=self.function)


class TestClipGrads:
    @pytest.mark.parametrize("by_closure", [False, True])
    def test_it_gets_the_parameters_with_gradients(self, by_closure):
        def function(parameters):
            seen.append(len(parameters))
            clip(parameters)

        seen, data, net = [], batches(3), network()
        module = Clipped(function, by_closure)
        quiet_trainer().fit(module, data)
        assert seen == [4, 4, 4]
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for x, y in data:
            optimizer.zero_grad()
            cross_entropy(net(x), y).backward()
            clip_grad_norm_(net.parameters(), 0.05)
            optimizer.step()
        assert same_weights(module.net, net)

    @pytest.mark.filterwarnings("ignore:precision='16-mixed' computes in float16 on the CPU")
    @pytest.mark.parametrize("by_closure", [False, True])
    def test_gradients_are_unscaled_before(self, by_closure):
        def function(parameters):
            norms.append(clip_grad_norm_(parameters, 0.05).item())

        norms, plain, data = [], [], batches(1)
        quiet_trainer(precision="16-mixed").fit(Clipped(function, by_closure), data)
        net = network()
        with torch.autocast("cpu", torch.float16):
            loss = cross_entropy(net(data[0][0]), data[0][1])
        loss.backward()
        plain.append(clip_grad_norm_(net.parameters(), 0.05).item())
        assert norms == pytest.approx(plain, rel=1e-2)

    def test_the_hook_sees_clipped_gradients(self):
        def on_before_optimizer_step(self, optimizer):
            norms.append(torch.cat([p.grad.flatten() for p in self.net.parameters()]).norm().item())

        norms = []
        quiet_trainer().fit(with_methods(Clipped(clip), on_before_optimizer_step), batches(2))
        assert norms == pytest.approx([0.05, 0.05], rel=1e-4)

    def test_in_an_overridden_step(self):
        def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
            optimizer.step(optimizer_closure, clip_grads=clip)

        module, data, net = with_methods(Net, optimizer_step), batches(4), network()
        quiet_trainer(accumulate_grad_batches=2).fit(module, data)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for i in (0, 2):
            optimizer.zero_grad()
            for x, y in data[i : i + 2]:
                (cross_entropy(net(x), y) / 2).backward()
            clip_grad_norm_(net.parameters(), 0.05)
            optimizer.step()
        assert same_weights(module.net, net)

    def test_something_else(self):
        with pytest.raises(ArgumentTypeError, match=r"clip_grads=1\.0") as error:
            quiet_trainer().fit(Clipped(1.0), batches(1))
        assert isinstance(error.value, MisconfigurationException)
        assert "a function of a list of parameters" in str(error.value)
