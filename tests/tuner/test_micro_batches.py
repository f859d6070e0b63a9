"""MicroBatches: batches that run out of memory are trained in parts, as a loop in the test does."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from lightlib.callbacks import GradientAccumulationScheduler, LambdaCallback, MicroBatches
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.launch.watch.failure import OtherRankError
from tests.processes.ranks import ranks
from tests.runs import plain
from tests.runs.bad_input import with_methods
from tests.runs.modules import LogsLoss, Manual
from tests.runs.plain import Net, batches, momentum, quiet_trainer, same_weights

pytestmark = pytest.mark.filterwarnings("ignore:Neither max_epochs")


class Narrow(nn.Module):
    """A network with a buffer that has memory for a number of samples, after `late` calls for any."""

    not_in_checkpoint = ("calls",)

    def __init__(self, most, late=0, noise=1.0):
        super().__init__()
        self.net, self.noise = plain.network(dropout=0.5 * noise), noise
        self.register_buffer("seen", torch.zeros(()))
        self.most, self.late, self.calls = most, late, []

    def forward(self, x):
        self.calls.append(len(x))
        self.seen += len(x)  # it changes before memory runs out
        noise = self.noise * torch.rand(())
        if len(x) > self.most and len(self.calls) > self.late:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return self.net(x) + noise


def fitted(net, data, **arguments):
    torch.manual_seed(4)
    module = LogsLoss(momentum, on_step=True, on_epoch=True)
    module.net = net
    trainer = quiet_trainer(**{"accumulate_grad_batches": "auto", **arguments})
    trainer.fit(module, data)
    return module, trainer


def by_hand(data, size, late=0):
    """Train on micro-batches of `size` samples, after `late` batches in one piece."""
    torch.manual_seed(4)
    net = Narrow(99)
    optimizer, losses = momentum(net.parameters()), []
    for i, (x, y) in enumerate(data):
        optimizer.zero_grad()
        parts = [slice(None)] if i < late else _slices(len(x), size)
        value = 0.0
        for part in parts:
            share = len(x[part]) / len(x)
            loss = cross_entropy(net(x[part]), y[part])
            (loss * share).backward()
            value += float(loss.detach()) * share
        optimizer.step()
        losses.append(value)
    return net, losses


def _slices(length, size):
    number = -(-length // size)
    return [slice(i * length // number, (i + 1) * length // number) for i in range(number)]


@pytest.mark.parametrize(("most", "size"), [(8, 8), (5, 4), (3, 2), (1, 1), (99, 99)])
def test_equals_a_loop_over_micro_batches(most, size, monkeypatch):
    said = []
    monkeypatch.setattr("lightlib.report.info", said.append)
    data = [*batches(3, 16), *batches(1, 7)]
    module, trainer = fitted(Narrow(most), data)
    expected, losses = by_hand(data, size)
    for (name, ours), theirs in zip(module.net.state_dict().items(), expected.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7, msg=name)
    means = [value * len(x) for value, (x, _) in zip(losses, data, strict=True)]
    mean = sum(means) / sum(len(x) for x, _ in data)
    assert float(trainer.callback_metrics["loss_epoch"]) == pytest.approx(mean, rel=1e-5)
    assert trainer.global_step == 4
    assert len([text for text in said if "ran out of memory" in text]) == (most < 16)


def test_batches_before_memory_ran_out_are_in_one_piece():
    data = batches(5, 8)
    module, _ = fitted(Narrow(3, late=2), data)
    expected, _ = by_hand(data, 2, late=2)
    torch.testing.assert_close(module.net.state_dict(), expected.state_dict())
    assert module.net.calls == [8, 8, 8, 4, *[2] * 12]


def test_a_size_from_the_start_needs_no_failure():
    data = batches(4, 8)
    module, _ = fitted(Narrow(2), data, accumulate_grad_batches=1, callbacks=[MicroBatches(size=2)])
    expected, _ = by_hand(data, 2)
    torch.testing.assert_close(module.net.state_dict(), expected.state_dict())
    assert set(module.net.calls) == {2}


def test_a_resumed_run_begins_with_the_size(tmp_path):
    data = batches(6, 8)
    whole, _ = fitted(Narrow(3), data)
    _, trainer = fitted(Narrow(3), data, max_steps=2)
    trainer.save_checkpoint(tmp_path / "2.ckpt")
    net = Narrow(3)
    torch.manual_seed(0)
    module = LogsLoss(momentum, on_step=True, on_epoch=True)
    module.net = net
    quiet_trainer(accumulate_grad_batches="auto").fit(module, data, ckpt_path=tmp_path / "2.ckpt")
    assert same_weights(module, whole)
    assert set(net.calls) == {2}


def test_a_sample_that_does_not_fit_ends_the_run():
    with pytest.raises(torch.OutOfMemoryError) as raised:
        fitted(Narrow(0), batches(2, 4))
    assert "Fix: Trainer(activation_checkpointing=True)" in "\n".join(raised.value.__notes__)


def test_other_errors_are_raised():
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        fitted(nn.Linear(2, 3), batches(2, 4))


def test_weighted_losses_are_sums():
    def training_step(self, batch, batch_idx):
        x, y = batch
        return {"loss": cross_entropy(self.net(x), y, reduction="sum"), "weight": len(x)}

    data = batches(4, 7)
    halves, all_at_once = (with_methods(Net(momentum), training_step) for _ in range(2))
    quiet_trainer(callbacks=[MicroBatches(size=3)]).fit(halves, data)
    quiet_trainer().fit(all_at_once, data)
    torch.testing.assert_close(halves.state_dict(), all_at_once.state_dict())


def _several(net, x, y):
    scores = net(x)
    sizes = [scores.square().mean(), scores.abs().mean()]
    return {"class_loss": cross_entropy(scores, y), "size_losses": sizes, "row_loss": scores.square(), "scores": scores}


def test_several_losses_are_those_of_the_batch():
    seen = []
    keep = LambdaCallback(on_train_batch_end=lambda trainer, module, outputs, batch, i: seen.append(outputs))
    module = with_methods(Net, training_step=lambda self, batch, batch_idx: _several(self.net, *batch))
    trainer, data = quiet_trainer(callbacks=[MicroBatches(size=3), keep]), batches(3, 7)  # of 2, 2 and 3 samples
    trainer.fit(module, data)
    net, expected = Net().net, []
    optimizer = plain.sgd(net.parameters())
    for x, y in data:
        losses = _several(net, x, y)
        terms = {"class_loss": losses["class_loss"], "size_losses": sum(losses["size_losses"])}
        terms["row_loss"] = losses["row_loss"].mean()
        optimizer.zero_grad()
        sum(terms.values()).backward()
        optimizer.step()
        expected.append({name: term.detach() for name, term in {"loss": sum(terms.values()), **terms}.items()})
    torch.testing.assert_close(module.net.state_dict(), net.state_dict())
    for outputs, losses in zip(seen, expected, strict=True):
        torch.testing.assert_close([outputs["loss"], outputs["class_loss"]], [losses["loss"], losses["class_loss"]])
        assert outputs["scores"].shape == outputs["row_loss"].shape == (7, 3)
    torch.testing.assert_close({name: trainer.callback_metrics[name] for name in losses}, losses)


def test_logged_values_of_uneven_parts_are_those_of_the_batch():
    found = []
    for callbacks in ([], [MicroBatches(size=3)]):
        trainer = quiet_trainer(callbacks=callbacks)
        trainer.fit(LogsLoss(momentum, on_step=True, on_epoch=True), batches(3, 7))
        found.append(trainer.callback_metrics)
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("size", [2, 3])
def test_a_batch_is_skipped_if_a_part_is(size):
    def step(self, batch, batch_idx):
        return None if len(batch[0]) == 2 else cross_entropy(self.net(batch[0]), batch[1])

    module, expected = (with_methods(Net, training_step=step) for _ in range(2))
    trainer = quiet_trainer(callbacks=[MicroBatches(size=size)])
    trainer.fit(module, [*batches(1, size + 2), *batches(2, 3 if size == 3 else 1)])  # in parts of 2, or of 2 and 3
    quiet_trainer().fit(expected, batches(2, 3 if size == 3 else 1))
    assert trainer.global_step == 2
    torch.testing.assert_close(module.state_dict(), expected.state_dict())


class TestRefused:
    @pytest.mark.parametrize(("size", "error"), [(0, MisconfigurationException), (2.5, ArgumentTypeError)])
    def test_sizes(self, size, error):
        with pytest.raises(error, match="size"):
            MicroBatches(size=size)

    @pytest.mark.parametrize(
        ("module", "arguments", "reason"),
        [
            (Manual, {}, "automatic_optimization=False"),
            (Net, {"callbacks": [GradientAccumulationScheduler({0: 2})]}, "GradientAccumulationScheduler"),
            (Net, {"accumulate_grad_batches": 2, "callbacks": [MicroBatches()]}, "several batches make a step"),
        ],
    )
    def test_runs(self, module, arguments, reason):
        with pytest.raises(MisconfigurationException, match=reason):
            quiet_trainer(**{"accumulate_grad_batches": "auto", **arguments}).fit(module(), batches(2))

    def test_other_words(self):
        with pytest.raises(ArgumentTypeError, match=r"accumulate_grad_batches is 'often'.*\n.*at least 1, or \"auto\""):
            quiet_trainer(accumulate_grad_batches="often")


# two processes
def _short(rank, strategy):
    net = Narrow(99 if rank else 3, noise=0.0)  # memory runs out on one of them
    module, _ = fitted(net, batches(3, 8, seed=rank), devices=2, strategy=strategy, use_distributed_sampler=False)
    return module.net.net.state_dict(), net.calls


@pytest.mark.processes
def test_all_ranks_halve_together():
    found = ranks(2, _short, "ddp")
    net = plain.network()
    optimizer = momentum(net.parameters())
    for pair in zip(batches(3, 8, seed=0), batches(3, 8, seed=1), strict=True):
        optimizer.zero_grad()
        (sum(cross_entropy(net(x), y) for x, y in pair) / 2).backward()
        optimizer.step()
    for weights, calls in found:
        assert set(calls[-12:]) == {2}
        for name, value in net.state_dict().items():
            torch.testing.assert_close(weights[name], value, rtol=1e-5, atol=1e-6)


def _sharded(rank, strategy):
    with pytest.raises((MisconfigurationException, OtherRankError), match="where no rank can stop alone"):
        quiet_trainer(devices=2, strategy=strategy, accumulate_grad_batches="auto").fit(Net(), batches(2))
    return True


@pytest.mark.processes
@pytest.mark.parametrize("strategy", ["fsdp", "tensor", "zero1"])
def test_strategies_that_exchange_within_forward_are_refused(strategy):
    assert ranks(2, _sharded, strategy) == [True, True]
