"""EfficientConvBN in a run: the numbers of a loop without it, from fewer kept bytes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from lightlib.callbacks import ChannelsLast, EfficientConvBN, LambdaCallback
from lightlib.errors import MisconfigurationException
from lightlib.report import PossibleUserWarning
from lightlib.strategies import FSDPStrategy, PipelineStrategy, TensorParallelStrategy
from tests.callbacks.memory.images import Net, by_hand, fit
from tests.runs.plain import same_weights


def kept_bytes(module, callbacks):
    """Return the bytes that a run keeps for backward, all batches together."""
    total = []

    class Counts(type(module)):
        def training_step(self, batch, batch_idx):
            kept = {}

            def keep(tensor):
                kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
                return tensor

            with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                loss = super().training_step(batch, batch_idx)
            total.append(sum(kept.values()))
            return loss

    module.__class__ = Counts
    fit(module, callbacks=callbacks)
    return sum(total)


def test_the_numbers_of_a_loop_without_it():
    module = Net(frozen=True)
    fit(module, callbacks=[EfficientConvBN(["net"])])
    for one, two in zip(module.net.parameters(), by_hand(frozen=True).parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-5)
    assert not any("forward" in vars(part) for part in module.modules())


def test_it_keeps_a_fifth_fewer_bytes():
    assert kept_bytes(Net(frozen=True), [EfficientConvBN()]) < 0.8 * kept_bytes(Net(frozen=True), [])


def test_the_pairs_are_printed(caplog):
    caplog.set_level("INFO", logger="lightlib")
    fit(Net(frozen=True), callbacks=[EfficientConvBN()])
    assert "EfficientConvBN: fused net.0 + net.1, net.3 + net.4." in caplog.messages


def test_the_rest_is_printed_with_a_reason(caplog):
    caplog.set_level("INFO", logger="lightlib")
    module = Net(frozen=True)
    module.net[1].register_forward_hook(lambda *_: None)
    fit(module, callbacks=[EfficientConvBN()])
    assert "fused net.3 + net.4; not fused: net.1 (it or its convolution has hooks" in caplog.text


def test_batch_norms_that_train_are_not_touched_and_that_is_a_warning():
    module = Net()
    with pytest.warns(PossibleUserWarning, match="has no effect: all of its batch norms are in training mode"):
        fit(module, callbacks=[EfficientConvBN()])
    assert same_weights(module.net, by_hand())


def test_a_resumed_run_ends_with_the_same_bits(tmp_path):
    def save(trainer, *_):
        trainer.save_checkpoint(tmp_path / f"{trainer.global_step}.ckpt")

    whole, module = Net(frozen=True), Net(frozen=True)
    fit(whole, callbacks=[EfficientConvBN(), LambdaCallback(on_train_batch_end=save)])
    fit(module, tmp_path / "2.ckpt", callbacks=[EfficientConvBN()])
    assert same_weights(module.net, whole.net)


def test_what_is_refused():
    module = Net()
    module.net = nn.Sequential(nn.Flatten(), nn.Linear(192, 3))
    with pytest.raises(MisconfigurationException, match=r"(?s)EfficientConvBN has fused nothing.*leave the callback"):
        fit(module, callbacks=[EfficientConvBN()])
    with pytest.raises(MisconfigurationException, match="modules holds 'backbone', which matches no module of Net"):
        fit(Net(), callbacks=[EfficientConvBN(["backbone"])])


@pytest.mark.parametrize("callback", [EfficientConvBN(), ChannelsLast()])
@pytest.mark.parametrize("strategy", [FSDPStrategy, TensorParallelStrategy, PipelineStrategy])
def test_strategies_that_shard_are_refused(callback, strategy):
    with pytest.raises(MisconfigurationException, match=f"{type(callback).__name__} got a {strategy.__name__}, which"):
        callback.setup(SimpleNamespace(strategy=strategy()), Net(), "fit")
