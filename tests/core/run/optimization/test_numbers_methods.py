"""Manual optimization, LBFGS and overridden methods against loops written by hand, bit for bit."""

from __future__ import annotations

from contextlib import nullcontext
from unittest import mock

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from lightlib.core.module.module import Module
from lightlib.errors import MisconfigurationException
from tests.runs.bad_input import refused
from tests.runs.plain import Net, batches, network, quiet_trainer, same_weights, with_methods


def nets():
    """A generator and a discriminator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        generator = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 6))
        return generator, torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))


def optimizers(generator, discriminator):
    return (
        torch.optim.Adam(generator.parameters(), lr=0.01, betas=(0.5, 0.999)),
        torch.optim.Adam(discriminator.parameters(), lr=0.02, betas=(0.5, 0.999)),
    )


def score(discriminator, x, real):
    logits = discriminator(x)
    return binary_cross_entropy_with_logits(logits, torch.full_like(logits, float(real)))


class TestManual:
    def test_gan_with_toggling(self):
        frozen = []

        class Gan(Module):
            automatic_optimization = False

            def __init__(self):
                super().__init__()
                self.generator, self.discriminator = nets()

            def training_step(self, batch, batch_idx):
                one, other = self.optimizers()
                x, _ = batch
                noise = torch.randn(len(x), 2)
                with self.toggled_optimizer(one):
                    frozen.append(all(not p.requires_grad for p in self.discriminator.parameters()))
                    loss = score(self.discriminator, self.generator(noise), real=True)
                    one.zero_grad()
                    self.manual_backward(loss)
                    one.step()
                self.toggle_optimizer(other)
                frozen.append(all(not p.requires_grad for p in self.generator.parameters()))
                fake = self.generator(noise)
                loss = (score(self.discriminator, x, real=True) + score(self.discriminator, fake, real=False)) / 2
                other.zero_grad()
                self.manual_backward(loss)
                other.step()
                self.untoggle_optimizer(other)

            def configure_optimizers(self):
                return optimizers(self.generator, self.discriminator)

        data, module = batches(8), Gan()
        torch.manual_seed(11)
        trainer = quiet_trainer(max_epochs=2)
        trainer.fit(module, data)

        generator, discriminator = nets()
        one, other = optimizers(generator, discriminator)
        torch.manual_seed(11)
        for _ in range(2):
            for x, _ in data:
                noise = torch.randn(len(x), 2)
                discriminator.requires_grad_(False)
                one.zero_grad()
                score(discriminator, generator(noise), real=True).backward()
                one.step()
                discriminator.requires_grad_(True)
                fake = generator(noise).detach()
                other.zero_grad()
                ((score(discriminator, x, real=True) + score(discriminator, fake, real=False)) / 2).backward()
                other.step()
        assert all(frozen)
        assert all(p.requires_grad for p in module.parameters())
        assert trainer.global_step == 16  # batches, and not the steps of both
        assert same_weights(module.generator, generator)
        assert same_weights(module.discriminator, discriminator)

    def test_accumulation_clipping_and_schedule_by_the_user(self):
        def training_step(self, batch, batch_idx):
            optimizer, schedule = self.optimizers(), self.lr_schedulers()
            self.manual_backward(Net.training_step(self, batch, batch_idx) / 3)
            if batch_idx % 3 == 2 or self.trainer.is_last_batch:
                self.clip_gradients(optimizer, gradient_clip_val=0.2, gradient_clip_algorithm="norm")
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.2, momentum=0.9)
            return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)]

        data, module = batches(8), with_methods(Net, training_step, configure_optimizers, automatic_optimization=False)
        trainer = quiet_trainer()
        trainer.fit(module, data)

        net = network()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
        for i, (x, y) in enumerate(data):
            (cross_entropy(net(x), y) / 3).backward()
            if i % 3 == 2 or i == 7:
                torch.nn.utils.clip_grad_norm_(net.parameters(), 0.2)
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
        assert trainer.global_step == 3
        assert same_weights(module.net, net)

    def test_step_with_a_closure_and_the_raw_optimizer_count_alike(self):
        def training_step(self, batch, batch_idx):
            optimizer = self.optimizers(use_pl_optimizer=batch_idx % 2 == 0)

            def closure():
                optimizer.zero_grad()
                loss = Net.training_step(self, batch, batch_idx)
                self.manual_backward(loss)
                return loss

            optimizer.step(closure=closure)

        data, module = batches(6), with_methods(Net, training_step, automatic_optimization=False)
        trainer = quiet_trainer()
        trainer.fit(module, data)
        net = network()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for x, y in data:
            optimizer.zero_grad()
            cross_entropy(net(x), y).backward()
            optimizer.step()
        assert trainer.global_step == 6
        assert same_weights(module.net, net)


class TestLBFGS:
    @pytest.mark.parametrize("clip", [None, 0.3])
    def test_evaluates_each_batch_several_times(self, clip):
        def configure(parameters):
            return torch.optim.LBFGS(parameters, lr=0.5, max_iter=4)

        data, module = batches(4, size=8), Net(configure)
        trainer = quiet_trainer(max_epochs=2, gradient_clip_val=clip)
        trainer.fit(module, data)

        net = network()
        optimizer = configure(net.parameters())
        for _ in range(2):
            for x, y in data:

                def closure(x=x, y=y):
                    optimizer.zero_grad()
                    loss = cross_entropy(net(x), y)
                    loss.backward()
                    if clip is not None:
                        torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
                    return loss

                optimizer.step(closure)
        assert trainer.global_step == 8
        assert same_weights(module.net, net)


class Sharp(torch.optim.Optimizer):
    """Evaluates the loss twice, at the weights and a little uphill, and steps by the second gradient."""

    def __init__(self, parameters, lr=0.1, up=0.05):
        super().__init__(parameters, {"lr": lr, "up": up})

    @torch.no_grad()
    def step(self, closure=None):
        assert closure is not None, "it needs a closure"
        loss = closure()
        group = self.param_groups[0]
        moves = [p.grad * group["up"] for p in group["params"]]
        for p, move in zip(group["params"], moves, strict=True):
            p.add_(move)
        with torch.enable_grad():
            closure()
        for p, move in zip(group["params"], moves, strict=True):
            p.sub_(move).sub_(p.grad, alpha=group["lr"])
        return loss


class Once(Sharp):
    """Takes a closure and calls it once."""

    def step(self, closure=None):
        loss = closure() if closure is not None else None
        for p in self.param_groups[0]["params"]:
            p.data.sub_(p.grad, alpha=0.1)
        return loss


class Needs(Sharp):
    """Needs a closure, according to its signature."""

    def step(self, closure):
        return super().step(closure)


class Bare(Once):
    """Takes no closure."""

    def step(self):
        super().step()


class TestOptimizersOfOthers:
    @pytest.mark.parametrize("clip", [None, 0.3])
    @pytest.mark.parametrize("kind", [Sharp, Once, Needs, Bare])
    def test_step_with_a_closure(self, kind, clip):
        data, module = batches(4, size=8), Net(kind)
        trainer = quiet_trainer(max_epochs=2, gradient_clip_val=clip)
        trainer.fit(module, data)

        net = network()
        optimizer = kind(net.parameters())
        for x, y in data * 2:

            @torch.enable_grad()
            def closure(x=x, y=y):
                optimizer.zero_grad()
                loss = cross_entropy(net(x), y)
                loss.backward()
                if clip is not None:
                    torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
                return loss

            if kind is Bare:
                closure()
                optimizer.step()
            else:
                optimizer.step(closure)
        assert trainer.global_step == 8
        assert same_weights(module.net, net)

    def test_accumulation_with_one_call_of_the_closure(self):
        data, module, plain = batches(5), Net(Once), Net()
        trainer = quiet_trainer(accumulate_grad_batches=2)
        trainer.fit(module, data)
        quiet_trainer(accumulate_grad_batches=2).fit(plain, data)
        assert trainer.global_step == 3
        assert same_weights(module, plain)

    def test_accumulation_with_several_calls_of_the_closure_is_an_error(self):
        with refused(
            MisconfigurationException,
            "The optimizer called its closure a second time, with accumulate_grad_batches=2.",
            "one call per step: the earlier batches of the window are gone, and cannot be evaluated again.",
            "Trainer(accumulate_grad_batches=1) with a larger batch, or manual optimization.",
        ):
            quiet_trainer(accumulate_grad_batches=2).fit(Net(Sharp), batches(4))

    @pytest.mark.filterwarnings("ignore:precision='16-mixed' computes in float16 on the CPU")
    def test_a_scaled_loss(self):
        module, plain, data = Net(Once), Net(), batches(3)
        quiet_trainer(precision="16-mixed").fit(module, data)
        quiet_trainer(precision="16-mixed").fit(plain, data)
        assert same_weights(module, plain)
        with refused(
            MisconfigurationException,
            "Needs.step needs its closure, which it does not get with a loss scaler ('16-mixed'): the gradients of "
            "each call would have to be unscaled and checked for overflow.",
            "an optimizer that steps without a closure.",
            "use precision='bf16-mixed' or '32-true', which do not scale the loss, or another optimizer.",
        ):
            quiet_trainer(precision="16-mixed").fit(Net(Needs), data)


class TestOverridden:
    @pytest.mark.parametrize("accumulate", [1, 3])
    def test_optimizer_step_with_a_warm_up(self, accumulate):
        seen = []

        def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
            seen.append((epoch, batch_idx))
            for group in optimizer.param_groups:
                group["lr"] = 0.1 * min(1.0, (self.trainer.global_step + 1) / 5)
            optimizer.step(closure=optimizer_closure)

        data, module = batches(10), with_methods(Net, optimizer_step)
        arguments = {"accumulate_grad_batches": accumulate, "gradient_clip_val": 0.5}
        quiet_trainer(max_epochs=2, **arguments).fit(module, data)

        net, steps, expected = network(), 0, []
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for epoch in range(2):
            for start in range(0, 10, accumulate):
                window = data[start : start + accumulate]
                optimizer.zero_grad()
                for x, y in window:
                    (cross_entropy(net(x), y) / len(window)).backward()
                torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
                optimizer.param_groups[0]["lr"] = 0.1 * min(1.0, (steps + 1) / 5)
                optimizer.step()
                expected.append((epoch, start + len(window) - 1))
                steps += 1
        assert seen == expected
        assert same_weights(module.net, net)

    def test_optimizer_step_may_leave_out_a_step(self):
        def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
            if batch_idx % 2 == 0:
                optimizer.step(closure=optimizer_closure)
            else:
                optimizer_closure()

        data, module = batches(6), with_methods(Net, optimizer_step)
        trainer = quiet_trainer()
        trainer.fit(module, data)
        net = network()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for x, y in data[::2]:
            optimizer.zero_grad()
            cross_entropy(net(x), y).backward()
            optimizer.step()
        assert trainer.global_step == 3
        assert same_weights(module.net, net)

    @pytest.mark.parametrize("step", [lambda optimizer: None, lambda optimizer: optimizer.step()])
    def test_optimizer_step_that_never_calls_its_closure_is_an_error(self, step):
        def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
            if batch_idx == 1:
                step(optimizer)
            else:
                optimizer.step(closure=optimizer_closure)

        with refused(
            MisconfigurationException,
            "The closure of batch 1 was never called, so training_step and backward did not run.",
            "`optimizer_step` to pass the closure to optimizer.step, and optimizer.step to call it.",
            "optimizer.step(closure=optimizer_closure) in Given.optimizer_step, or optimizer_closure() alone to "
            "skip the update.",
        ):
            quiet_trainer().fit(with_methods(Net, optimizer_step), batches(3))

    def test_backward(self):
        def backward(self, loss):
            loss.backward(retain_graph=True)
            loss.backward()

        data, module = batches(6), with_methods(Net, backward)
        quiet_trainer(accumulate_grad_batches=2).fit(module, data)
        net = network()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for i, (x, y) in enumerate(data):
            if i % 2 == 0:
                optimizer.zero_grad()
            loss = cross_entropy(net(x), y) / 2
            loss.backward(retain_graph=True)
            loss.backward()
            if i % 2 == 1:
                optimizer.step()
        assert same_weights(module.net, net)

    def test_lr_scheduler_step(self):
        class Halves:
            """A scheduler of no library."""

            def __init__(self, optimizer):
                self.optimizer, self.calls = optimizer, 0

            def step(self, calls):
                self.calls = calls
                self.optimizer.param_groups[0]["lr"] = 0.2 * 0.5**calls

            def state_dict(self):
                return {"calls": self.calls}

            def load_state_dict(self, state):
                self.calls = state["calls"]

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.2)
            return [optimizer], [{"scheduler": Halves(optimizer), "interval": "step", "frequency": 2}]

        def lr_scheduler_step(self, scheduler, metric):
            scheduler.step(calls=scheduler.calls + 1)

        data, module = batches(7), with_methods(Net, configure_optimizers, lr_scheduler_step)
        quiet_trainer().fit(module, data)
        net = network()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.2)
        for i, (x, y) in enumerate(data):
            optimizer.param_groups[0]["lr"] = 0.2 * 0.5 ** (i // 2)
            optimizer.zero_grad()
            cross_entropy(net(x), y).backward()
            optimizer.step()
        assert same_weights(module.net, net)

    def test_optimizer_zero_grad(self):
        seen = []

        def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
            """Gradients decay in place of vanishing."""
            seen.append((epoch, batch_idx))
            for p in self.parameters():
                if p.grad is not None:
                    p.grad.mul_(0.5)

        data, module = batches(5), with_methods(Net, optimizer_zero_grad)
        quiet_trainer(accumulate_grad_batches=2).fit(module, data)
        net = network()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for i, (x, y) in enumerate(data):
            if i in (2, 4):
                for p in net.parameters():
                    p.grad.mul_(0.5)
            (cross_entropy(net(x), y) / (1 if i == 4 else 2)).backward()
            if i in (1, 3, 4):
                optimizer.step()
        assert seen == [(0, 0), (0, 2), (0, 4)]
        assert same_weights(module.net, net)

    def test_an_optimizer_drops_its_gradients_in_its_own_way(self):
        class Decays(torch.optim.SGD):
            """Gradients decay in place of vanishing."""

            def zero_grad(self, set_to_none=True):
                for p in self.param_groups[0]["params"]:
                    if p.grad is not None:
                        p.grad.mul_(0.5)

        data, module = batches(4), Net(lambda parameters: Decays(parameters, lr=0.1))
        quiet_trainer().fit(module, data)
        net = network()
        optimizer = Decays(net.parameters(), lr=0.1)
        for x, y in data:
            optimizer.zero_grad()
            cross_entropy(net(x), y).backward()
            optimizer.step()
        assert same_weights(module.net, net)

    @pytest.mark.parametrize("profiled", [False, True])
    def test_gradients_of_frozen_parameters_are_dropped(self, profiled):
        seen = []

        def on_before_optimizer_step(self, optimizer):
            seen.append([p.grad is None for p in self.net.parameters()])
            for p in self.net.parameters():
                p.requires_grad = False
            self.net[0].weight.requires_grad = True

        with torch.profiler.profile() if profiled else nullcontext() as profile:
            quiet_trainer().fit(with_methods(Net, on_before_optimizer_step), batches(3))
        assert seen[0] == [False] * len(seen[0])
        assert seen[1:] == [[False, *[True] * (len(seen[0]) - 1)]] * 2
        if profiled:
            names = [event.key for event in profile.key_averages() if event.key.startswith("Optimizer.zero_grad")]
            assert names == ["Optimizer.zero_grad#SGD.zero_grad"]

    def test_a_zero_grad_that_was_replaced_is_called(self):
        with mock.patch.object(torch.optim.SGD, "zero_grad") as replaced:
            quiet_trainer().fit(Net(), batches(3))
        assert replaced.call_count == 3

    def test_configure_gradient_clipping(self):
        def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
            assert (gradient_clip_val, gradient_clip_algorithm) == (None, None)
            torch.nn.utils.clip_grad_norm_(self.net[3].parameters(), 0.1)

        data, module = batches(6), with_methods(Net, configure_gradient_clipping)
        quiet_trainer().fit(module, data)
        net = network()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for x, y in data:
            optimizer.zero_grad()
            cross_entropy(net(x), y).backward()
            torch.nn.utils.clip_grad_norm_(net[3].parameters(), 0.1)
            optimizer.step()
        assert same_weights(module.net, net)

    def test_hooks_may_change_gradients_before_the_step(self):
        def on_after_backward(self):
            for p in self.parameters():
                p.grad.add_(0.01)

        def on_before_optimizer_step(self, optimizer):
            for p in self.parameters():
                p.grad.mul_(2)

        data, module = batches(6), with_methods(Net, on_after_backward, on_before_optimizer_step)
        quiet_trainer(accumulate_grad_batches=2, gradient_clip_val=0.5).fit(module, data)
        net = network()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for i, (x, y) in enumerate(data):
            if i % 2 == 0:
                optimizer.zero_grad()
            (cross_entropy(net(x), y) / 2).backward()
            for p in net.parameters():
                p.grad.add_(0.01)
            if i % 2 == 1:
                for p in net.parameters():
                    p.grad.mul_(2)
                torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
                optimizer.step()
        assert same_weights(module.net, net)
