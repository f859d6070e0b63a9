"""The weights after training equal those of a loop written by hand, bit for bit."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import ExponentialLR, OneCycleLR, ReduceLROnPlateau, StepLR

from tests.runs.modules import Validated
from tests.runs.plain import Net, Unsized, batches, loader, network, quiet_trainer, same_weights, sgd, with_methods

OPTIMIZERS = {
    "sgd": sgd,
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}


def by_hand(configure, data, epochs=1, accumulate=1, clip=lambda parameters: None, dropout=0.0, max_steps=None):
    """The usual training loop: forward, backward, clip, step, with accumulation."""
    net = network(dropout)
    optimizer = configure(net.parameters())
    steps = 0
    for _ in range(epochs):
        window = []
        for i, batch in enumerate(data):
            window.append(batch)
            if len(window) < accumulate and i + 1 < len(data):
                continue
            optimizer.zero_grad()
            for x, y in window:
                loss = cross_entropy(net(x), y)
                (loss / len(window)).backward()
            clip(list(net.parameters()))
            optimizer.step()
            window, steps = [], steps + 1
            if steps == max_steps:
                return net
    return net


class TestOptimizers:
    @pytest.mark.parametrize("name", OPTIMIZERS)
    def test_plain(self, name):
        data, module = batches(7), Net(OPTIMIZERS[name])
        quiet_trainer(max_epochs=3).fit(module, data)
        assert same_weights(module.net, by_hand(OPTIMIZERS[name], data, epochs=3))

    @pytest.mark.parametrize("name", OPTIMIZERS)
    def test_accumulation_divides_a_short_last_window_by_its_own_size(self, name):
        data, module = batches(10), Net(OPTIMIZERS[name])
        trainer = quiet_trainer(max_epochs=2, accumulate_grad_batches=3)
        trainer.fit(module, data)
        assert trainer.global_step == 8
        assert same_weights(module.net, by_hand(OPTIMIZERS[name], data, epochs=2, accumulate=3))

    def test_two_in_automatic_mode_step_on_one_loss(self):
        def configure(parameters):
            first, second = list(parameters)[:2], list(module.net.parameters())[2:]
            return [torch.optim.SGD(first, lr=0.1), torch.optim.Adam(second, lr=0.01)]

        data, module = batches(6), Net(configure)
        trainer = quiet_trainer(accumulate_grad_batches=2)
        trainer.fit(module, data)
        assert trainer.global_step == 3

        net = network()
        one, other = torch.optim.SGD(net[0].parameters(), lr=0.1), torch.optim.Adam(net[3].parameters(), lr=0.01)
        for i, (x, y) in enumerate(data):
            if i % 2 == 0:
                one.zero_grad()
                other.zero_grad()
            (cross_entropy(net(x), y) / 2).backward()
            if i % 2 == 1:
                one.step()
                other.step()
        assert same_weights(module.net, net)


class TestClipping:
    @pytest.mark.parametrize("accumulate", [1, 3])
    @pytest.mark.parametrize(
        ("algorithm", "value", "clip"),
        [
            ("norm", 0.2, lambda parameters: torch.nn.utils.clip_grad_norm_(parameters, 0.2)),
            ("value", 0.02, lambda parameters: torch.nn.utils.clip_grad_value_(parameters, 0.02)),
        ],
    )
    def test_after_accumulation(self, algorithm, value, clip, accumulate):
        data, module = batches(10), Net(OPTIMIZERS["momentum"])
        arguments = {"gradient_clip_val": value, "gradient_clip_algorithm": algorithm}
        quiet_trainer(accumulate_grad_batches=accumulate, **arguments).fit(module, data)
        clipped = by_hand(OPTIMIZERS["momentum"], data, accumulate=accumulate, clip=clip)
        assert same_weights(module.net, clipped)
        assert not same_weights(clipped, by_hand(OPTIMIZERS["momentum"], data, accumulate=accumulate))

    def test_the_norm_before_clipping_can_be_read(self):
        norms = []

        reads = with_methods(on_train_batch_end=lambda self, *_: norms.append(self.trainer.gradient_norm.item()))
        data, expected = batches(3), []
        quiet_trainer(gradient_clip_val=0.2).fit(reads, data)

        def clip(parameters):
            expected.append(torch.nn.utils.clip_grad_norm_(parameters, 0.2).item())

        by_hand(OPTIMIZERS["sgd"], data, clip=clip)
        assert norms == expected


def with_schedule(schedule, **config):
    def configure(parameters):
        optimizer = torch.optim.SGD(parameters, lr=0.2)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule(optimizer), **config}}

    return configure


class TestSchedules:
    @pytest.mark.parametrize(("accumulate", "frequency"), [(1, 1), (3, 1), (1, 2), (3, 2)])
    def test_per_step(self, accumulate, frequency):
        data = batches(10)
        configure = with_schedule(lambda o: ExponentialLR(o, 0.7), interval="step", frequency=frequency)
        module = Net(configure)
        quiet_trainer(max_epochs=2, accumulate_grad_batches=accumulate).fit(module, data)

        net, steps = network(), 0
        optimizer = torch.optim.SGD(net.parameters(), lr=0.2)
        schedule = ExponentialLR(optimizer, 0.7)
        for _ in range(2):
            for start in range(0, 10, accumulate):
                window = data[start : start + accumulate]
                optimizer.zero_grad()
                for x, y in window:
                    (cross_entropy(net(x), y) / len(window)).backward()
                optimizer.step()
                steps += 1
                if steps % frequency == 0:
                    schedule.step()
        assert same_weights(module.net, net)

    def test_one_cycle_over_the_whole_run(self):
        data = batches(10)

        def configure(parameters):
            optimizer = torch.optim.SGD(parameters, lr=0.1)
            total = module.trainer.estimated_stepping_batches
            schedule = OneCycleLR(optimizer, max_lr=0.3, total_steps=total)
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

        module = Net(configure)
        quiet_trainer(max_epochs=2, accumulate_grad_batches=4).fit(module, data)

        net = network()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        schedule = OneCycleLR(optimizer, max_lr=0.3, total_steps=6)
        for _ in range(2):
            for window in (data[:4], data[4:8], data[8:]):
                optimizer.zero_grad()
                for x, y in window:
                    (cross_entropy(net(x), y) / len(window)).backward()
                optimizer.step()
                schedule.step()
        assert same_weights(module.net, net)

    @pytest.mark.parametrize("frequency", [1, 2])
    def test_per_epoch(self, frequency):
        data = batches(4)
        module = Net(with_schedule(lambda o: StepLR(o, 1, 0.5), frequency=frequency))
        quiet_trainer(max_epochs=5).fit(module, data)

        net = network()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.2)
        schedule = StepLR(optimizer, 1, 0.5)
        for epoch in range(5):
            for x, y in data:
                optimizer.zero_grad()
                cross_entropy(net(x), y).backward()
                optimizer.step()
            if (epoch + 1) % frequency == 0:
                schedule.step()
        assert same_weights(module.net, net)

    def test_plateau_reads_what_validation_logged(self):
        data, held_out = batches(4), batches(3, seed=5)
        configure = with_schedule(lambda o: ReduceLROnPlateau(o, factor=0.3, patience=0), monitor="val_loss")
        module = Validated(configure)
        quiet_trainer(max_epochs=12).fit(module, data, held_out)

        net, rates = network(), set()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.2)
        schedule = ReduceLROnPlateau(optimizer, factor=0.3, patience=0)
        for _ in range(12):
            for x, y in data:
                optimizer.zero_grad()
                cross_entropy(net(x), y).backward()
                optimizer.step()
            with torch.no_grad():
                schedule.step(torch.stack([cross_entropy(net(x), y) for x, y in held_out]).mean())
            rates.add(optimizer.param_groups[0]["lr"])
        assert len(rates) > 1
        assert same_weights(module.net, net)


class TestLimits:
    def test_limit_train_batches_shortens_the_last_window(self):
        data, module = batches(10), Net()
        quiet_trainer(max_epochs=2, limit_train_batches=7, accumulate_grad_batches=3).fit(module, data)
        assert same_weights(module.net, by_hand(OPTIMIZERS["sgd"], data[:7], epochs=2, accumulate=3))

    @pytest.mark.parametrize("accumulate", [1, 3])
    def test_max_steps_stops_within_an_epoch(self, accumulate):
        data, module = batches(10), Net(OPTIMIZERS["adamw"])
        trainer = quiet_trainer(max_epochs=-1, max_steps=6, accumulate_grad_batches=accumulate)
        trainer.fit(module, data)
        assert trainer.global_step == 6
        assert same_weights(module.net, by_hand(OPTIMIZERS["adamw"], data, 9, accumulate, max_steps=6))

    def test_unknown_length(self):
        data, module = batches(7), Net()
        quiet_trainer(max_epochs=2).fit(module, Unsized(data))
        assert same_weights(module.net, by_hand(OPTIMIZERS["sgd"], data, epochs=2))

    def test_unknown_length_with_accumulation(self):
        # The window is known to be short only when it ends: the gradients are multiplied by 4 / 2 then, which is exact.
        data, module = batches(10), Net()
        quiet_trainer(max_epochs=2, accumulate_grad_batches=4).fit(module, Unsized(data))
        assert same_weights(module.net, by_hand(OPTIMIZERS["sgd"], data, epochs=2, accumulate=4))

    def test_unknown_length_with_a_limit_and_accumulation(self):
        data, module = batches(10), Net()
        quiet_trainer(limit_train_batches=8, accumulate_grad_batches=3).fit(module, Unsized(data))
        assert same_weights(module.net, by_hand(OPTIMIZERS["sgd"], data[:8], accumulate=3))


class TestRandomness:
    """Everything draws from the global generator in the same order as in a plain loop."""

    @pytest.mark.processes
    @pytest.mark.parametrize("workers", [0, 2])
    @pytest.mark.parametrize("dropout", [0.0, 0.3])
    def test_shuffled_loader_and_dropout(self, dropout, workers):
        module = Net(dropout=dropout)
        torch.manual_seed(11)
        quiet_trainer(max_epochs=3, accumulate_grad_batches=2).fit(
            module, loader(30, shuffle=True, num_workers=workers)
        )
        torch.manual_seed(11)
        data = loader(30, shuffle=True, num_workers=workers)
        expected = by_hand(OPTIMIZERS["sgd"], data, epochs=3, accumulate=2, dropout=dropout)
        torch.manual_seed(12)
        other = by_hand(OPTIMIZERS["sgd"], data, epochs=3, accumulate=2, dropout=dropout)
        assert same_weights(module.net, expected)
        assert not same_weights(expected, other)

    @pytest.mark.processes
    def test_persistent_workers(self):
        module, arguments = Net(dropout=0.2), {"shuffle": True, "num_workers": 2, "persistent_workers": True}
        torch.manual_seed(11)
        quiet_trainer(max_epochs=3).fit(module, loader(20, **arguments))
        torch.manual_seed(11)
        expected = by_hand(OPTIMIZERS["sgd"], loader(20, **arguments), epochs=3, dropout=0.2)
        assert same_weights(module.net, expected)

    def test_own_generator(self):
        module = Net(dropout=0.2)
        torch.manual_seed(11)
        quiet_trainer(max_epochs=2).fit(module, loader(20, shuffle=True, generator=torch.Generator().manual_seed(4)))
        torch.manual_seed(11)
        data = loader(20, shuffle=True, generator=torch.Generator().manual_seed(4))
        assert same_weights(module.net, by_hand(OPTIMIZERS["sgd"], data, epochs=2, dropout=0.2))

    def test_the_sanity_check_draws_nothing(self):
        module = with_methods(Net(dropout=0.3), validation_step=lambda self, batch, batch_idx: torch.rand(5))
        torch.manual_seed(11)
        trainer = quiet_trainer(num_sanity_val_steps=2, check_val_every_n_epoch=5)
        trainer.fit(module, loader(20, shuffle=True), batches(3))
        torch.manual_seed(11)
        assert same_weights(module.net, by_hand(OPTIMIZERS["sgd"], loader(20, shuffle=True), dropout=0.3))

    def test_validation_loader_draws_as_in_a_plain_loop(self):
        module = with_methods(Net(dropout=0.3), validation_step=lambda self, batch, batch_idx: self.net(batch[0]))
        torch.manual_seed(11)
        quiet_trainer(max_epochs=2).fit(module, loader(20, shuffle=True), loader(8))

        torch.manual_seed(11)
        net, train, held_out = network(0.3), loader(20, shuffle=True), loader(8)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(2):
            for x, y in train:
                optimizer.zero_grad()
                cross_entropy(net(x), y).backward()
                optimizer.step()
            net.eval()
            for x, _ in held_out:
                net(x)
            net.train()
        assert same_weights(module.net, net)


class TestLosses:
    def test_weighted_sums_equal_one_big_batch(self):
        """Batches of 3, 8, 1, 6 and 2 samples in windows of two: every sample counts the same."""
        x, y = samples_of([3, 8, 1, 6, 2])

        def training_step(self, batch, batch_idx):
            x, y = batch
            return {"loss": cross_entropy(self.net(x), y, reduction="sum"), "weight": len(y)}

        module = with_methods(Net, training_step)
        quiet_trainer(accumulate_grad_batches=2).fit(module, list(zip(x, y, strict=True)))

        net = network()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for window in (slice(0, 2), slice(2, 4), slice(4, 5)):
            optimizer.zero_grad()
            cross_entropy(net(torch.cat(x[window])), torch.cat(y[window])).backward()
            optimizer.step()
        torch.testing.assert_close(module.net.state_dict(), net.state_dict(), rtol=1e-6, atol=1e-7)

    def test_a_weight_may_be_a_tensor_and_may_be_zero(self):
        x, y = samples_of([3, 8, 4, 4])
        counted = [3, 8, 0, 4]

        def training_step(self, batch, batch_idx):
            x, y = batch
            n = counted[batch_idx]
            weight = torch.tensor(float(n)) if batch_idx % 2 else n
            return {"loss": cross_entropy(self.net(x), y, reduction="sum") * (n > 0), "weight": weight}

        module = with_methods(Net, training_step)
        quiet_trainer(accumulate_grad_batches=4).fit(module, list(zip(x, y, strict=True)))

        net = network()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        used = [0, 1, 3]
        cross_entropy(net(torch.cat([x[i] for i in used])), torch.cat([y[i] for i in used])).backward()
        optimizer.step()
        torch.testing.assert_close(module.net.state_dict(), net.state_dict(), rtol=1e-6, atol=1e-7)

    def test_none_skips_the_batch(self):
        def training_step(self, batch, batch_idx):
            return None if batch_idx in (1, 4) else Net.training_step(self, batch, batch_idx)

        data, module = batches(6), with_methods(Net(OPTIMIZERS["adamw"]), training_step)
        trainer = quiet_trainer(max_epochs=2)
        trainer.fit(module, data)
        kept = [batch for i, batch in enumerate(data) if i not in (1, 4)]
        assert trainer.global_step == 8
        assert same_weights(module.net, by_hand(OPTIMIZERS["adamw"], kept, epochs=2))

    def test_none_within_a_window_is_not_counted(self):
        def training_step(self, batch, batch_idx):
            return None if batch_idx in (1, 2, 3, 6, 7) else Net.training_step(self, batch, batch_idx)

        data, module = batches(8), with_methods(Net, training_step)
        trainer = quiet_trainer(accumulate_grad_batches=2)  # the windows hold 1, 0, 2 and 0 losses
        trainer.fit(module, data)
        assert trainer.global_step == 2
        net = network()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for window in ([0], [4, 5]):
            optimizer.zero_grad()
            for i in window:
                (cross_entropy(net(data[i][0]), data[i][1]) / len(window)).backward()
            optimizer.step()
        assert same_weights(module.net, net)


def samples_of(sizes):
    """Batches of these sizes, as two lists."""
    generator = torch.Generator().manual_seed(3)
    x = [torch.randn(n, 6, generator=generator) for n in sizes]
    return x, [torch.randint(0, 3, (n,), generator=generator) for n in sizes]
