"""WeightAveraging and EMAWeightAveraging: the numbers of torch's AveragedModel, files, bad arguments."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.optim.swa_utils import get_ema_avg_fn, get_ema_multi_avg_fn

import lightlib as L
from lightlib.callbacks import EMAWeightAveraging, ModelCheckpoint, WeightAveraging
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.strategies import DeepSpeedStrategy
from tests.callbacks.averaging.plain_loop import QUIET, Net, data, plain
from tests.runs.plain import raising, with_methods


def fit(*callbacks, epochs=2, module=None, **arguments):
    module = module or Net()
    trainer = L.Trainer(**QUIET, max_epochs=epochs, enable_checkpointing=False, callbacks=list(callbacks))
    trainer.fit(module, data(), data(3, 2), **arguments)
    return module


def same(found, wanted):
    """Whether two states have the same tensors, bit for bit; counters of batches are those of the training."""
    return list(found) == list(wanted) and all(
        torch.equal(value, wanted[name]) for name, value in found.items() if not name.endswith("num_batches_tracked")
    )


def each_step(step, epoch):
    return step is not None


class TestNumbers:
    @pytest.mark.parametrize("buffers", [True, False])
    @pytest.mark.parametrize(
        "options", [{}, {"avg_fn": get_ema_avg_fn(0.9)}, {"multi_avg_fn": get_ema_multi_avg_fn(0.9)}]
    )
    def test_are_those_of_torch(self, options, buffers):
        _, averaged, losses = plain(each_step, use_buffers=buffers, **options)
        module = fit(WeightAveraging(use_buffers=buffers, **options))
        assert same(module.net.state_dict(), averaged.state_dict())
        assert module.validated == pytest.approx(losses, rel=1e-6)

    def test_of_an_exponential_average_from_a_step_on(self):
        def updates(step, epoch):
            return step is not None and step >= 4 and step % 3 == 0

        _, averaged, losses = plain(updates, use_buffers=True, avg_fn=get_ema_avg_fn(0.8))
        module = fit(EMAWeightAveraging(decay=0.8, update_every_n_steps=3, update_starting_at_step=4))
        assert same(module.net.state_dict(), averaged.state_dict())
        assert module.validated == pytest.approx(losses, rel=1e-6)

    def test_of_an_average_over_epochs(self):
        class Epochs(WeightAveraging):
            def should_update(self, step_idx=None, epoch_idx=None):
                return epoch_idx is not None and epoch_idx >= 1

        _, averaged, _ = plain(lambda step, epoch: epoch is not None and epoch >= 1, epochs=4, use_buffers=True)
        assert same(fit(Epochs(), epochs=4).net.state_dict(), averaged.state_dict())

    def test_without_an_update_the_weights_are_left_alone(self):
        trained, _, _ = plain(each_step)
        module = fit(EMAWeightAveraging(update_starting_at_step=1000))
        assert same(module.net.state_dict(), trained.state_dict())

    def test_counters_are_copied(self):
        module = fit(EMAWeightAveraging(decay=0.9))
        assert int(module.net[1].num_batches_tracked) == 12

    def test_the_training_is_not_changed(self):
        seen = {}

        class Sees(L.Callback):
            def on_train_batch_end(self, trainer, pl_module, *rest):
                seen[trainer.global_step] = pl_module.net[0].weight.detach().clone()

        fit(EMAWeightAveraging(decay=0.5), Sees())
        trained, _, _ = plain(each_step)
        assert torch.equal(seen[12], trained[0].weight)


class TestFiles:
    def test_hold_the_average_and_the_trained_weights(self, tmp_path):
        saves = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
        callbacks = [EMAWeightAveraging(decay=0.9), saves]
        trainer = L.Trainer(**QUIET, max_epochs=2, callbacks=callbacks)
        trainer.fit(Net(), data(), data(3, 2))
        trained, averaged, _ = plain(each_step, use_buffers=True, avg_fn=get_ema_avg_fn(0.9))
        content = torch.load(tmp_path / "epoch=1.ckpt", weights_only=True)
        assert same(content["state_dict"], {f"net.{name}": value for name, value in averaged.state_dict().items()})
        wanted = {f"net.{name}": value for name, value in trained.state_dict().items()}
        assert same(content["current_model_state"], wanted)
        assert content["averaging_state"] == {"n_averaged": torch.tensor(12)}
        loaded = Net.load_from_checkpoint(tmp_path / "epoch=1.ckpt")
        assert same(loaded.net.state_dict(), averaged.state_dict())

    def test_of_weights_alone_hold_the_average(self, tmp_path):
        saves = ModelCheckpoint(tmp_path, filename="{epoch}", save_weights_only=True)
        trainer = L.Trainer(**QUIET, max_epochs=2, callbacks=[WeightAveraging(), saves])
        trainer.fit(Net(), data(), data(3, 2))
        content = torch.load(tmp_path / "epoch=1.ckpt", weights_only=True)
        _, averaged, _ = plain(each_step, use_buffers=True)
        assert same(content["state_dict"], {f"net.{name}": value for name, value in averaged.state_dict().items()})
        assert "current_model_state" not in content
        assert "averaging_state" not in content

    @pytest.mark.parametrize("kind", ["file", "directory"])
    @pytest.mark.parametrize("step", [3, 6, 9])
    def test_are_resumed_bit_for_bit(self, tmp_path, kind, step):
        class SavesAt(L.Callback):
            def on_train_batch_end(self, trainer, *rest):
                if trainer.global_step == step:
                    trainer.save_checkpoint(tmp_path / "a.ckpt", format=kind)

        def average():
            return EMAWeightAveraging(decay=0.9, update_every_n_steps=2)

        whole = fit(average(), SavesAt(), epochs=3)
        module = fit(average(), epochs=3, ckpt_path=tmp_path / "a.ckpt")
        assert same(module.state_dict(), whole.state_dict())
        assert module.validated == whole.validated[-len(module.validated) :]

    def test_of_a_run_without_an_average_begin_one(self, tmp_path):
        trainer = L.Trainer(**QUIET, max_epochs=1, enable_checkpointing=False, limit_val_batches=0)
        trainer.fit(Net(), data())
        trainer.save_checkpoint(tmp_path / "a.ckpt")
        module = fit(WeightAveraging(), epochs=2, ckpt_path=tmp_path / "a.ckpt")
        _, averaged, _ = plain(lambda step, epoch: step is not None and step >= 6, use_buffers=True)
        assert same(module.net.state_dict(), averaged.state_dict())

    def test_a_test_of_a_file_sees_the_average(self, tmp_path):
        trainer = L.Trainer(**QUIET, max_epochs=1, callbacks=[WeightAveraging(), ModelCheckpoint(tmp_path)])
        module = Net()
        trainer.fit(module, data(), data(3, 2))
        (path,) = tmp_path.iterdir()
        other = L.Trainer(**QUIET, callbacks=[WeightAveraging()])
        (metrics,) = other.validate(Net(), data(3, 2), ckpt_path=path, verbose=False)
        assert metrics["val_loss"] == pytest.approx(module.validated[0], rel=1e-6)  # kernels differ with alignment


class TestWrongArguments:
    @pytest.mark.parametrize(
        ("make", "error", "text"),
        [
            (lambda: WeightAveraging(avg_fn=3), ArgumentTypeError, "avg_fn=3"),
            (lambda: WeightAveraging(decay=0.9), ArgumentTypeError, "decay=0.9"),
            (lambda: WeightAveraging(avg_fn=max, multi_avg_fn=max), MisconfigurationException, "both avg_fn and"),
            (lambda: EMAWeightAveraging(decay=1.2), MisconfigurationException, "decay=1.2"),
            (lambda: EMAWeightAveraging(decay="much"), ArgumentTypeError, "'much'"),
            (lambda: EMAWeightAveraging(avg_fn=max), ArgumentTypeError, "avg_fn="),
            (lambda: EMAWeightAveraging(update_every_n_steps=0), MisconfigurationException, "every_n_steps=0"),
            (lambda: EMAWeightAveraging(update_starting_at_epoch=-1), MisconfigurationException, "at_epoch=-1"),
        ],
    )
    def test_are_refused(self, make, error, text):
        with pytest.raises(error, match=text) as caught:
            make()
        assert "Expected: " in str(caught.value)
        assert "Fix: " in str(caught.value)

    def test_two_averages(self):
        with pytest.raises(MisconfigurationException, match="two callbacks that put other weights"):
            fit(WeightAveraging(), EMAWeightAveraging())


def test_a_strategy_that_trains_copies_of_the_parameters_is_refused():
    callback = WeightAveraging()
    trainer = SimpleNamespace(callbacks=[callback], strategy=DeepSpeedStrategy())
    with pytest.raises(MisconfigurationException, match="WeightAveraging got a DeepSpeedStrategy"):
        callback.setup(trainer, Net(), "fit")


def test_an_exception_in_validation_leaves_the_trained_weights():
    module = with_methods(Net, validation_step=raising(ValueError("no")))
    with pytest.raises(ValueError, match="no"):
        fit(EMAWeightAveraging(decay=0.9), module=module)
    trained, _, _ = plain(each_step, epochs=1)
    assert same(module.net.state_dict(), trained.state_dict())
