"""Each precision on the CPU against a loop by hand with autocast, GradScaler and casts, bit for bit."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.nn.functional import cross_entropy

from lightlib.precision import MixedPrecision
from tests.runs.modules import Manual
from tests.runs.plain import (
    Net,
    batches,
    calling,
    momentum,
    network,
    quiet_trainer,
    same_weights,
    scheduled,
    with_methods,
)

SCALER = {"init_scale": 1024.0, "growth_interval": 3}
pytestmark = pytest.mark.filterwarnings("ignore:precision='16-mixed' computes in float16 on the CPU")


def with_overflow(n, at):
    """Batches that make float16 gradients infinite at the places `at`."""
    return [(x * 1e5, y) if i in at else (x, y) for i, (x, y) in enumerate(batches(n))]


class Records(Net):
    """Remembers the scale of the loss after every batch."""

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.scales = [*getattr(self, "scales", ()), self.trainer.scaler.get_scale()]


class TestFloat16Mixed:
    @pytest.mark.parametrize("clip", [None, 0.3])
    def test_one_batch_per_step(self, clip):
        data, module = with_overflow(9, at=(1, 5)), Records(lambda p: torch.optim.AdamW(p, lr=0.01))
        trainer = quiet_trainer(plugins=MixedPrecision("16-mixed", scaler=SCALER), gradient_clip_val=clip)
        trainer.fit(module, data)

        net, scales, steps = network(), [], 0
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cpu", **SCALER)
        for x, y in data:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = cross_entropy(net(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
            before = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            steps += scaler.get_scale() >= before
            scales.append(scaler.get_scale())
        assert steps == 7
        assert module.scales == scales
        assert trainer.global_step == steps
        assert same_weights(module.net, net)

    def test_accumulation(self):
        data, module = with_overflow(10, at=(4,)), Records()
        trainer = quiet_trainer(plugins=MixedPrecision("16-mixed", scaler=SCALER), accumulate_grad_batches=3)
        trainer.fit(module, data)

        net = network()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", **SCALER)
        for window in (data[:3], data[3:6], data[6:9], data[9:]):
            optimizer.zero_grad()
            for x, y in window:
                with torch.autocast("cpu", torch.float16):
                    loss = cross_entropy(net(x), y)
                scaler.scale(loss / len(window)).backward()
            scaler.step(optimizer)
            scaler.update()
        assert trainer.global_step == 3
        assert trainer.scaler.state_dict() == scaler.state_dict()
        assert same_weights(module.net, net)

    def test_a_schedule_does_not_move_when_the_step_was_skipped(self):
        rates = []

        configure = scheduled(partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.5), interval="step")

        def on_train_batch_end(self, outputs, batch, batch_idx):
            rates.append(self.trainer.optimizers[0].param_groups[0]["lr"])

        trainer = quiet_trainer(plugins=MixedPrecision("16-mixed", scaler=SCALER))
        trainer.fit(with_methods(Net(configure), on_train_batch_end), with_overflow(3, at=(1,)))
        assert rates == [0.05, 0.05, 0.025]

    def test_manual_optimization(self):
        class Clips(Manual, Records):
            pass

        def clip(module, optimizer):
            module.clip_gradients(optimizer, 0.3, "norm")

        data, module = with_overflow(6, at=(2,)), Clips(before_step=clip)
        trainer = quiet_trainer(plugins=MixedPrecision("16-mixed", scaler=SCALER))
        trainer.fit(module, data)

        net, scales = network(), []
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", **SCALER)
        for x, y in data:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = cross_entropy(net(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.3)
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        assert module.scales == scales
        assert trainer.global_step == 5
        assert same_weights(module.net, net)


class TestOthers:
    @pytest.mark.parametrize("accumulate", [1, 3])
    def test_bfloat16_mixed(self, accumulate):
        data, module = batches(10), Net(lambda p: torch.optim.AdamW(p, lr=0.01))
        quiet_trainer(precision="bf16-mixed", accumulate_grad_batches=accumulate, gradient_clip_val=0.5).fit(
            module, data
        )

        net = network()
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        for start in range(0, 10, accumulate):
            window = data[start : start + accumulate]
            optimizer.zero_grad()
            for x, y in window:
                with torch.autocast("cpu", torch.bfloat16):
                    loss = cross_entropy(net(x), y)
                (loss / len(window)).backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
        assert next(module.parameters()).dtype == torch.float32
        assert same_weights(module.net, net)

    @pytest.mark.parametrize(("precision", "dtype"), [("64-true", torch.float64), ("bf16-true", torch.bfloat16)])
    def test_one_dtype_for_everything(self, precision, dtype):
        made = []

        module = calling(Net(momentum), training_step=lambda self, batch, batch_idx: made.append(torch.zeros(1).dtype))
        data = batches(7)
        quiet_trainer(precision=precision, accumulate_grad_batches=2).fit(module, data)

        net = network().to(dtype)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        for start in range(0, 7, 2):
            window = data[start : start + 2]
            optimizer.zero_grad()
            for x, y in window:
                (cross_entropy(net(x.to(dtype)), y) / len(window)).backward()
            optimizer.step()
        assert set(made) == {dtype}
        assert next(module.parameters()).dtype == dtype
        assert same_weights(module.net, net)
