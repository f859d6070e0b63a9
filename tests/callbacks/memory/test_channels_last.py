"""ChannelsLast in a run: the bits of a loop with the network and batches in this format."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lightlib.callbacks import ChannelsLast, LambdaCallback
from lightlib.errors import MisconfigurationException
from lightlib.transforms import to_channels_last
from tests.callbacks.memory.images import Net, by_hand, data, fit, network
from tests.runs.plain import quiet_trainer, same_weights, subclass, with_methods


def in_format(module):
    four = [parameter for parameter in module.parameters() if parameter.ndim == 4]
    assert four
    return all(parameter.is_contiguous(memory_format=torch.channels_last) for parameter in four)


def test_the_bits_of_a_loop_in_this_format():
    module = Net()
    fit(module, callbacks=[ChannelsLast()])
    assert module.formats == [True] * 6
    assert in_format(module)
    assert same_weights(module.net, by_hand(channels_last=True))
    for one, two in zip(module.net.parameters(), by_hand().parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-5)


def test_batches_of_evaluations_and_the_next_run():
    module, seen = Net(), []
    note = LambdaCallback(
        on_validation_batch_start=lambda trainer, m, batch, *_: seen.append(
            batch[0].is_contiguous(memory_format=torch.channels_last)
        )
    )
    trainer = quiet_trainer(callbacks=[ChannelsLast(), note])
    trainer.validate(module, data(2), verbose=False)
    assert seen == [True, True]
    assert trainer.strategy.extension.move is None
    fit(module)  # without the callback batches are as the loader gives them
    assert module.formats == [False] * 6


def test_a_method_of_the_user_that_moves_batches_is_called():
    moves = subclass(Net, transfer_batch_to_device=lambda self, batch, device, dataloader_idx: (batch[0] * 2, batch[1]))
    module, plain = moves(), moves()
    fit(module, callbacks=[ChannelsLast()])
    fit(plain)
    assert module.formats == [True] * 6
    for one, two in zip(module.net.parameters(), plain.net.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-5)


def test_layers_of_configure_model():
    def configure_model(self):
        if self.net is None:
            self.net = network()

    module = with_methods(Net, configure_model)
    module.net = None
    fit(module, callbacks=[ChannelsLast()])
    assert in_format(module)
    assert same_weights(module.net, by_hand(channels_last=True))


def test_a_resumed_run_ends_with_the_same_bits(tmp_path):
    def save(trainer, *_):
        trainer.save_checkpoint(tmp_path / f"{trainer.global_step}.ckpt")

    whole, module = Net(), Net()
    fit(whole, callbacks=[ChannelsLast(), LambdaCallback(on_train_batch_end=save)])
    fit(module, tmp_path / "2.ckpt", callbacks=[ChannelsLast()])
    assert same_weights(module.net, whole.net)


def test_the_function_keeps_values_and_parameters():
    net = network()
    before, values = list(net.parameters()), [parameter.clone() for parameter in net.parameters()]
    assert to_channels_last(net) is net
    assert in_format(net)
    for parameter, old, value in zip(net.parameters(), before, values, strict=True):
        assert parameter is old
        assert parameter.equal(value)
    batch = {"x": torch.ones(2, 3, 4, 4), "y": [torch.ones(3), "name"]}
    changed = to_channels_last(batch)
    assert changed["x"].is_contiguous(memory_format=torch.channels_last)
    assert changed["y"][0] is batch["y"][0]


def test_what_is_refused():
    module = Net()
    module.net = nn.Sequential(nn.Flatten(), nn.Linear(192, 3))
    with pytest.raises(MisconfigurationException, match=r"(?s)Net has no parameter of four dimensions.*leave it out"):
        fit(module, callbacks=[ChannelsLast()])
