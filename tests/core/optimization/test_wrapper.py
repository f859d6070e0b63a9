"""Optimizers in the user's hands: LightningOptimizer, toggling, manual optimization with clipping."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import StepLR

from lightlib.core.module.module import Module
from lightlib.core.optimization.wrapper import LightningOptimizer
from lightlib.errors import MisconfigurationException
from tests.runs.modules import Manual
from tests.runs.plain import Net, batches, network, quiet_trainer, raising, same_weights, with_methods


class Shared(Module):
    """Two optimizers that share the parameter `both`; `frozen` never requires gradients."""

    automatic_optimization = False

    def __init__(self, check):
        super().__init__()
        self.one, self.other, self.both = (nn.Parameter(torch.ones(1)) for _ in range(3))
        self.frozen = nn.Parameter(torch.ones(1), requires_grad=False)
        self.check = check

    def training_step(self, batch, batch_idx):
        optimizers = self.optimizers()
        self.check(self, *optimizers)
        optimizers[0].step()

    def state(self):
        return "".join(name[0] for name in ("one", "two", "both", "frozen") if self.needs(name))

    def needs(self, name):
        return getattr(self, {"two": "other"}.get(name, name)).requires_grad

    def configure_optimizers(self):
        return (
            torch.optim.SGD([self.one, self.both, self.frozen], lr=0.1),
            torch.optim.SGD([self.other, self.both], lr=0.1),
        )


def run_check(check):
    module = Shared(check)
    quiet_trainer().fit(module, batches(1))
    assert module.state() == "otb"
    return module


class TestToggle:
    def test_by_hand(self):
        def check(module, one, other):
            module.toggle_optimizer(one)
            assert module.state() == "ob"  # shared parameters stay on, frozen ones stay frozen
            module.untoggle_optimizer(one)
            assert module.state() == "otb"
            module.toggle_optimizer(other)
            assert module.state() == "tb"
            module.untoggle_optimizer(other)

        run_check(check)

    def test_as_a_context_also_after_an_error(self):
        def check(module, one, other):
            with module.toggled_optimizer(one):
                assert module.state() == "ob"
            with pytest.raises(ZeroDivisionError), module.toggled_optimizer(other):
                raise ZeroDivisionError
            assert module.state() == "otb"

        run_check(check)

    def test_of_the_handle(self):
        def check(module, one, other):
            with one.toggle_model(sync_grad=False):
                assert module.state() == "ob"
            with other.toggle_model():
                assert module.state() == "tb"

        run_check(check)

    def test_another_one_without_untoggling_first(self):
        def check(module, one, other):
            module.toggle_optimizer(one)
            module.toggle_optimizer(other)
            assert module.state() == "tb"
            module.untoggle_optimizer(other)
            module.untoggle_optimizer(one)  # a second time changes nothing

        run_check(check)

    def test_the_raw_optimizer_will_do(self):
        def check(module, one, other):
            with module.toggled_optimizer(one.optimizer):
                assert module.state() == "ob"

        run_check(check)


class TestHandle:
    def test_attributes_pass_through(self):
        def during(module, optimizer):
            raw = module.optimizers(use_pl_optimizer=False)
            assert optimizer.optimizer is raw
            assert optimizer.param_groups is raw.param_groups
            assert optimizer.state is raw.state
            assert optimizer.defaults is raw.defaults
            assert optimizer.state_dict()["param_groups"][0]["lr"] == 0.1
            optimizer.param_groups[0]["lr"] = 0.1
            assert repr(optimizer).startswith("LightningOptimizer(SGD")
            with pytest.raises(AttributeError, match="nothing"):
                optimizer.nothing  # noqa: B018  the property raises

        quiet_trainer().fit(Manual(before_step=during), batches(1))

    def test_is_an_optimizer_to_isinstance(self):
        def during(module, optimizer):
            assert isinstance(optimizer, LightningOptimizer)
            assert isinstance(optimizer, torch.optim.SGD)
            assert not isinstance(optimizer, torch.optim.Adam)

        quiet_trainer().fit(Manual(before_step=during), batches(1))

    def test_a_schedule_can_be_built_on_it(self):
        def on_train_start(self):
            self.schedule = StepLR(self.optimizers(), 1, gamma=0.5)

        def on_train_epoch_end(self):
            self.schedule.step()
            rates.append(self.optimizers().param_groups[0]["lr"])

        rates = []
        quiet_trainer(max_epochs=2).fit(with_methods(Manual, on_train_start, on_train_epoch_end), batches(1))
        assert rates == [0.05, 0.025]

    def test_one_or_a_list(self):
        seen = []
        run_check(lambda module, *optimizers: seen.append((optimizers, module.optimizers(use_pl_optimizer=False))))
        (handles, raw), *_ = seen
        assert [handle.optimizer for handle in handles] == raw
        assert all(type(handle) is LightningOptimizer for handle in handles)

    def test_step_with_a_closure_returns_its_loss(self):
        def training_step(self, batch, batch_idx):
            def closure():
                optimizer.zero_grad()
                loss = self.loss(batch)
                self.manual_backward(loss)
                return loss

            optimizer = self.optimizers()
            losses.append(optimizer.step(closure).item())
            losses.append(optimizer.step(closure=closure).item())

        losses, module = [], with_methods(Net, training_step, automatic_optimization=False)
        trainer = quiet_trainer()
        trainer.fit(module, batches(1))
        assert losses[1] < losses[0]
        assert trainer.global_step == 1
        net, (x, y) = network(), batches(1)[0]
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            cross_entropy(net(x), y).backward()
            optimizer.step()
        assert same_weights(module.net, net)

    def test_step_returns_what_the_optimizer_returns(self):
        class Telling(torch.optim.SGD):
            def step(self, closure=None):
                super().step(closure)
                return "stepped"

        def training_step(self, batch, batch_idx):
            optimizer = self.optimizers()
            self.manual_backward(self.loss(batch))
            returned.append(optimizer.step())

        returned = []
        module = with_methods(Manual(configure=lambda parameters: Telling(parameters, lr=0.1)), training_step)
        quiet_trainer().fit(module, batches(1))
        assert returned == ["stepped"]

    def test_one_that_no_run_made_steps_by_itself(self):
        weight = nn.Parameter(torch.ones(1))
        handle = LightningOptimizer(torch.optim.SGD([weight], lr=0.1))
        weight.grad = torch.ones(1)
        handle.step()
        assert handle.step(closure=lambda: "loss") == "loss"
        assert weight.item() == pytest.approx(0.8)
        with pytest.raises(MisconfigurationException, match="LightningOptimizer of SGD that no run made"):
            handle.toggle_model().__enter__()

    def test_hooks_run_around_its_step(self):
        def on_before_optimizer_step(self, optimizer):
            calls.append(type(optimizer).__name__)

        calls = []
        quiet_trainer().fit(with_methods(Manual, on_before_optimizer_step), batches(2))
        assert calls == ["SGD", "SGD"]

    def test_nothing_is_left_on_the_optimizer(self):
        module = Manual()
        trainer = quiet_trainer(precision="bf16-mixed")
        trainer.fit(module, batches(1))
        assert not trainer.optimizers[0]._optimizer_step_post_hooks
        assert not trainer.optimizers[0]._optimizer_step_pre_hooks

    def test_nothing_is_left_after_an_error(self):
        trainer = quiet_trainer(precision="bf16-mixed")
        with pytest.raises(ZeroDivisionError):
            trainer.fit(with_methods(Manual, on_train_batch_end=raising(ZeroDivisionError)), batches(1))
        assert not trainer.optimizers[0]._optimizer_step_post_hooks


class TestSchedulers:
    def test_none_one_several(self):
        def on_train_start(self):
            found.append(self.lr_schedulers())

        def with_schedules(count):
            def configure(parameters):
                optimizer = torch.optim.SGD(parameters, lr=0.1)
                return [optimizer], [StepLR(optimizer, 1) for _ in range(count)]

            return configure

        found = []
        for count in range(3):
            quiet_trainer().fit(with_methods(Manual(with_schedules(count)), on_train_start), batches(1))
        none, one, several = found
        assert none is None
        assert isinstance(one, StepLR)
        assert [type(each) for each in several] == [StepLR, StepLR]


class TestClipping:
    @pytest.mark.filterwarnings("ignore:precision='16-mixed' computes in float16 on the CPU")
    def test_with_a_loss_scaler(self):
        """Gradients are unscaled before they are clipped, once."""

        def during(module, optimizer):
            module.clip_gradients(optimizer, gradient_clip_val=0.05, gradient_clip_algorithm="norm")
            norms.append(torch.cat([p.grad.flatten() for p in module.parameters()]).norm().item())

        norms, module, data = [], Manual(before_step=during), batches(4)
        trainer = quiet_trainer(precision="16-mixed")
        trainer.fit(module, data)
        assert norms == pytest.approx([0.05] * 4, rel=1e-4)
        assert trainer.global_step == 4
        assert trainer.gradient_norm > 0.05

        net = network()
        optimizer, scaler = torch.optim.SGD(net.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
        for x, y in data:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = cross_entropy(net(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 0.05)
            scaler.step(optimizer)
            scaler.update()
        for ours, theirs in zip(module.net.parameters(), net.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)

    @pytest.mark.parametrize(("algorithm", "norm"), [("value", None), (None, float)])
    def test_the_algorithm_is_norm_unless_said(self, algorithm, norm):
        def during(module, optimizer):
            module.clip_gradients(optimizer, 0.01, algorithm)
            assert max(p.grad.abs().max() for p in module.parameters()) <= 0.01

        trainer = quiet_trainer()
        trainer.fit(Manual(before_step=during), batches(1))
        assert (trainer.gradient_norm is None) == (norm is None)

    def test_without_a_value_nothing_is_clipped(self):
        def during(module, optimizer):
            before = [p.grad.clone() for p in module.parameters()]
            module.clip_gradients(optimizer)
            assert all(map(torch.equal, before, [p.grad for p in module.parameters()]))

        quiet_trainer().fit(Manual(before_step=during), batches(1))

    def test_a_value_that_contradicts_the_trainers(self):
        def configure_gradient_clipping(self, optimizer, gradient_clip_val, gradient_clip_algorithm):
            self.clip_gradients(optimizer, 2.0, gradient_clip_algorithm)

        with pytest.raises(
            MisconfigurationException, match=r"gradient_clip_val=2\.0, but the Trainer has gradient_clip_val=1\.0"
        ):
            quiet_trainer(gradient_clip_val=1.0).fit(with_methods(Net, configure_gradient_clipping), batches(1))
