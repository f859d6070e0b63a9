"""Accumulation windows: shared parameters, weights of zero, micro-batches, changes in an epoch."""

from __future__ import annotations

import pytest
import torch

from lightlib.callbacks import GradientAccumulationScheduler
from lightlib.core.optimization.window import Window
from tests.runs.plain import Net, batches, calling, quiet_trainer, same_weights, with_methods
from tests.runs.resumable import SaveAtStep


def gradient(net):
    return net.net[0].weight.grad.clone()


def gradient_of(net, batch):
    """The gradient of one batch alone."""
    net.zero_grad()
    net.training_step(batch, 0).backward()
    return gradient(net)


@pytest.mark.filterwarnings("ignore::lightlib.report.LightlibWarning")
class TestWindow:
    def test_parameters_that_two_optimizers_share_are_corrected_once(self):
        found = []

        shared = with_methods(
            training_step=lambda self, batch, batch_idx: None if batch_idx else self.loss(batch),
            configure_optimizers=lambda self: [torch.optim.SGD(self.parameters(), lr=0.1) for _ in range(2)],
            on_before_optimizer_step=lambda self, optimizer: found.append(gradient(self)),
        )
        data = batches(2)
        quiet_trainer(accumulate_grad_batches=2).fit(shared, data)
        torch.testing.assert_close(found, [gradient_of(Net(), data[0])] * 2)

    @pytest.mark.parametrize("weights", [(0.0, 2.0), (2.0, 0.0), (0.0, 0.0)])
    def test_a_weight_that_is_a_tensor_of_zero(self, weights):
        found = []

        def training_step(self, batch, batch_idx):
            weight = torch.tensor(weights[batch_idx])
            return {"loss": Net.training_step(self, batch, batch_idx) * weight, "weight": weight}

        def on_before_optimizer_step(self, optimizer):
            found.append(gradient(self))

        data = batches(2)
        quiet_trainer(accumulate_grad_batches=2).fit(with_methods(Net, training_step, on_before_optimizer_step), data)
        used = [gradient_of(Net(), batch) for batch, weight in zip(data, weights, strict=True) if weight]
        torch.testing.assert_close(found, used or [torch.zeros_like(found[0])])

    def test_batches_in_micro_batches_have_the_gradient_of_all_samples(self):
        weight, samples = torch.tensor(2.0, requires_grad=True), torch.arange(12.0).reshape(3, 2, 2)
        window = Window()
        window.open(planned=3)
        for batch in samples:
            for micro_batch in batch:
                window.loss_of((weight * micro_batch).square().mean(), parts=2).backward()
        assert window.taken == 3
        window.close([torch.optim.SGD([weight], lr=0.1)])
        torch.testing.assert_close(weight.grad, (2 * 2.0 * samples**2).mean())

    def test_another_accumulation_within_an_epoch_begins_with_the_next(self):
        zeroed = []

        def on_before_zero_grad(self, optimizer):
            zeroed.append((self.trainer.current_epoch, self.trainer.progress.epoch_batch))

        def on_train_batch_end(self, outputs, batch, batch_idx):
            if batch_idx == 2:
                self.trainer.accumulate_grad_batches = 2

        module = with_methods(Net, on_before_zero_grad, on_train_batch_end)
        quiet_trainer(accumulate_grad_batches=3, max_epochs=2).fit(module, batches(6))
        assert zeroed == [(0, 0), (0, 3), (1, 0), (1, 2), (1, 4)]

    def test_accumulation_of_a_schedule_after_a_resume_within_an_epoch(self, tmp_path):
        path = tmp_path / "a.ckpt"
        schedule = GradientAccumulationScheduler({0: 2})
        whole, rest = Net(), Net()
        quiet_trainer(callbacks=[schedule, SaveAtStep(path, 1)]).fit(whole, batches(8))
        trainer = quiet_trainer(callbacks=GradientAccumulationScheduler({0: 2}))
        trainer.fit(rest, batches(8), ckpt_path=path)
        assert trainer.global_step == 4
        assert same_weights(whole, rest)

    def test_a_limit_that_is_set_within_an_epoch(self):
        def on_train_batch_end(self, outputs, batch, batch_idx):
            self.trainer.max_steps = 4

        trainer = quiet_trainer()
        trainer.fit(with_methods(Net, on_train_batch_end), batches(8))
        assert trainer.global_step == 4


@pytest.mark.filterwarnings("ignore::lightlib.report.LightlibWarning")
class TestBrokenWindow:
    def test_gradients_of_a_broken_window_are_not_used(self):
        found, failing = [], [True]

        def training_step(self, batch, batch_idx):
            if batch_idx == 1 and failing:
                failing.clear()
                raise ValueError("broken off")

        def on_before_optimizer_step(self, optimizer):
            found.append(gradient(self))

        module = calling(Net, training_step, on_before_optimizer_step)
        net, trainer, data = module, quiet_trainer(accumulate_grad_batches=2), batches(2)
        with pytest.raises(ValueError, match="broken off"):
            trainer.fit(net, data)
        trainer.fit(net, data)
        torch.testing.assert_close(found, [gradient_of(Net(), data[1])])
