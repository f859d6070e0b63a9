"""RestoreBest: the weights after a fit."""

from __future__ import annotations

import pytest
import torch

from lightlib.callbacks import ModelCheckpoint, RestoreBest
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.report import LightlibWarning
from tests.callbacks.checkpoint.best import Net, Stop, by_hand, fit, saver
from tests.runs.plain import with_methods


class TestRestoreBest:
    def test_the_weights_are_those_of_the_plain_loop_and_of_the_file(self, tmp_path):
        best, restores = saver(tmp_path, save_last=True), RestoreBest()
        module, _ = fit(tmp_path, restores, best)
        assert best.best_model_path == restores.restored_path == str(tmp_path / "epoch=1.ckpt")
        expected = by_hand(2)
        assert all(torch.equal(value, expected[name]) for name, value in module.net.state_dict().items())
        saved = torch.load(best.best_model_path, weights_only=True)["state_dict"]
        assert all(torch.equal(value, saved[name]) for name, value in module.state_dict().items())
        assert module.seen == 12
        assert module.loaded == 1
        last = torch.load(best.last_model_path, weights_only=True)["state_dict"]
        assert torch.equal(last["net.0.weight"], by_hand(4)["0.weight"])  # checkpoints are not changed

    def test_in_the_background_too(self, tmp_path):
        module, _ = fit(tmp_path, saver(tmp_path, async_save=True), RestoreBest())
        assert torch.equal(module.net[0].weight, by_hand(2)["0.weight"])

    def test_a_directory(self, tmp_path):
        module, _ = fit(tmp_path, saver(tmp_path, format="directory"), RestoreBest())
        assert torch.equal(module.net[0].weight, by_hand(2)["0.weight"])

    def test_of_two_the_named_one(self, tmp_path):
        callbacks = [saver(tmp_path), ModelCheckpoint(tmp_path, "max-{epoch}", monitor="val_loss", mode="max")]
        extra = ModelCheckpoint(tmp_path, "other-{epoch}", monitor="epoch_number", mode="max")

        def validation_step(self, batch, batch_idx):
            Net.validation_step(self, batch, batch_idx)
            self.log("epoch_number", float(self.current_epoch))

        module = with_methods(Net, validation_step)
        fit(tmp_path, *callbacks, extra, RestoreBest("epoch_number"), module=module)
        assert torch.equal(module.net[0].weight, by_hand(4)["0.weight"])

    def test_a_resumed_run_ends_with_the_same_bits(self, tmp_path):
        whole, _ = fit(tmp_path / "whole", saver(tmp_path / "whole", save_last=True), RestoreBest())
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            fit(tmp_path / "cut", saver(tmp_path / "cut", save_last=True), RestoreBest(), Stop(3))
        module, _ = fit(
            tmp_path / "cut", saver(tmp_path / "cut", save_last=True), RestoreBest(), Stop(None), ckpt_path="auto"
        )
        assert all(torch.equal(value, whole.state_dict()[name]) for name, value in module.state_dict().items())

    def test_a_run_that_was_complete_ends_with_the_best_again(self, tmp_path):
        fit(tmp_path, saver(tmp_path, save_last=True), RestoreBest())
        module, _ = fit(tmp_path, saver(tmp_path, save_last=True), RestoreBest(), ckpt_path="last")
        assert torch.equal(module.net[0].weight, by_hand(2)["0.weight"])

    def test_an_exception_leaves_the_weights(self, tmp_path):
        module = Net()
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            fit(tmp_path, saver(tmp_path), RestoreBest(), Stop(3), module=module)
        assert torch.equal(module.net[0].weight, by_hand(3)["0.weight"])

    def test_without_a_save_the_last_ones_stay(self, tmp_path):
        with pytest.warns(LightlibWarning, match=r"ModelCheckpoint\(monitor='val_loss'\) has saved no checkpoint"):
            module, _ = fit(tmp_path, saver(tmp_path, save_top_k=0), RestoreBest())
        assert torch.equal(module.net[0].weight, by_hand(4)["0.weight"])

    @pytest.mark.parametrize(
        ("callbacks", "what"),
        [
            ([], r"finds no ModelCheckpoint .*only ModelCheckpoint\(monitor=None\)"),
            ([ModelCheckpoint(monitor="val_loss"), "accuracy"], "with monitor='accuracy' among"),
        ],
    )
    def test_refused_before_training(self, tmp_path, callbacks, what):
        monitor = callbacks.pop() if callbacks and isinstance(callbacks[-1], str) else None
        module = Net()
        with pytest.raises(MisconfigurationException, match=what):
            fit(tmp_path, *callbacks, RestoreBest(monitor), module=module)
        assert module.seen == 0

    def test_wrong_argument(self):
        with pytest.raises(ArgumentTypeError, match=r"RestoreBest\(monitor=3 \(int\)\)"):
            RestoreBest(3)

    def test_a_dry_run_restores_nothing(self, tmp_path):
        module, _ = fit(tmp_path, RestoreBest(), fast_dev_run=2)
        assert module.seen == 2
