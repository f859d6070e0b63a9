"""Schedule-free optimizers in a run: the numbers of the package's README, files, and refusals."""

from __future__ import annotations

import pytest
import torch
from schedulefree import AdamWScheduleFree, RAdamScheduleFree, SGDScheduleFree
from torch.nn.functional import mse_loss

import lightlib as L
from lightlib.callbacks import EMAWeightAveraging, ModelCheckpoint
from lightlib.errors import MisconfigurationException
from lightlib.report import PossibleUserWarning
from tests.callbacks.averaging.plain_loop import QUIET, Net, data
from tests.runs.modules import Manual
from tests.runs.plain import Net as PlainNet
from tests.runs.plain import batches, quiet_trainer, same_weights

KINDS = (AdamWScheduleFree, RAdamScheduleFree, SGDScheduleFree)
every = pytest.mark.parametrize("kind", KINDS)


class Free(Net):
    """Two layers without batch norm: its statistics belong to the weights that are trained."""

    def __init__(self, kind=AdamWScheduleFree):
        super().__init__()
        self.net[1] = torch.nn.Identity()
        self.configure = lambda parameters: kind(parameters, lr=0.02)


def fit(*callbacks, epochs=2, module=None, **arguments):
    module = module or Free()
    trainer = L.Trainer(**QUIET, max_epochs=epochs, enable_checkpointing=False, callbacks=list(callbacks))
    trainer.fit(module, data(), data(3, 2), **arguments)
    return module


def plain(kind, epochs=2, exactly=False):
    """Train as the README describes; `exactly` puts the trained weights back after `eval`, which rounds."""
    module = Free(kind)
    optimizer, losses = module.configure_optimizers(), []
    for epoch in range(epochs):
        optimizer.train()
        for x, y in data():
            optimizer.zero_grad()
            mse_loss(module.net(x), y).backward()
            optimizer.step()
        trained = [p.detach().clone() for p in module.parameters()]
        optimizer.eval()
        with torch.no_grad():
            losses.append(sum(float(mse_loss(module.net(x), y)) for x, y in data(3, 2)) / 3)
        if exactly and epoch < epochs - 1:
            optimizer.train()
            with torch.no_grad():
                for parameter, before in zip(module.parameters(), trained, strict=True):
                    parameter.copy_(before)
    return module, losses


class TestNumbers:
    @every
    def test_are_those_of_the_readme(self, kind):
        readme, losses = plain(kind)
        module = fit(module=Free(kind))
        assert module.validated == pytest.approx(losses, rel=1e-5)
        for name, value in readme.state_dict().items():
            torch.testing.assert_close(module.state_dict()[name], value, rtol=1e-5, atol=1e-6)
        assert same_weights(module, plain(kind, exactly=True)[0])

    def test_neither_validation_nor_checkpoints_change_the_training(self, tmp_path):
        """Nor does a sanity check, which comes before the first step."""
        saves = ModelCheckpoint(tmp_path, every_n_train_steps=2, save_top_k=-1)
        options = QUIET | {"num_sanity_val_steps": 2, "val_check_interval": 2}
        module = Free()
        L.Trainer(**options, max_epochs=2, callbacks=[saves]).fit(module, data(), data(3, 2))
        other = Free()
        L.Trainer(**QUIET, max_epochs=2, enable_checkpointing=False, limit_val_batches=0).fit(other, data())
        assert same_weights(module, other)

    def test_a_test_after_the_fit_sees_the_average(self):
        module = Free()
        trainer = L.Trainer(**QUIET, max_epochs=1, enable_checkpointing=False)
        trainer.fit(module, data(), data(3, 2))
        (metrics,) = trainer.validate(module, data(3, 2), verbose=False)
        assert metrics["val_loss"] == pytest.approx(module.validated[0], rel=1e-6)  # another order of sums

    def test_in_manual_optimization(self):
        modules = Manual(AdamWScheduleFree), PlainNet(AdamWScheduleFree)
        for module in modules:
            quiet_trainer(max_epochs=2).fit(module, batches(6))
        assert same_weights(*modules)


class TestFiles:
    def test_hold_the_average(self, tmp_path):
        saves = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
        module = Free()
        L.Trainer(**QUIET, max_epochs=2, callbacks=[saves]).fit(module, data(), data(3, 2))
        loaded = Free.load_from_checkpoint(tmp_path / "epoch=1.ckpt")
        assert same_weights(loaded, module)
        content = torch.load(tmp_path / "epoch=1.ckpt", weights_only=True)
        assert all(group["train_mode"] for group in content["optimizer_states"][0]["param_groups"])

    def test_of_weights_alone_hold_the_average(self, tmp_path):
        saves = ModelCheckpoint(tmp_path, filename="{epoch}", save_weights_only=True)
        module = Free()
        L.Trainer(**QUIET, max_epochs=1, callbacks=[saves]).fit(module, data(), data(3, 2))
        assert same_weights(Free.load_from_checkpoint(tmp_path / "epoch=0.ckpt"), module)

    @pytest.mark.parametrize("form", ["file", "directory"])
    @pytest.mark.parametrize(
        ("hook", "step"),
        [("on_train_batch_end", 3), ("on_train_batch_end", 9), ("on_validation_batch_end", 6)],
    )
    def test_are_resumed_bit_for_bit(self, tmp_path, form, hook, step):
        """Also one that is saved within a validation, while the module has the average."""

        class SavesAt(L.Callback):
            pass

        def save(self, trainer, *rest):
            if trainer.global_step == step and not (tmp_path / "a.ckpt").exists():
                trainer.save_checkpoint(tmp_path / "a.ckpt", format=form)

        setattr(SavesAt, hook, save)
        complete = fit(SavesAt(), epochs=3)
        module = fit(epochs=3, ckpt_path=tmp_path / "a.ckpt")
        assert same_weights(module, complete)
        assert module.validated == complete.validated[-len(module.validated) :]
        assert same_weights(complete, fit(epochs=3))

    def test_after_the_fit_continue_it(self, tmp_path):
        trainer = L.Trainer(**QUIET, max_epochs=1, enable_checkpointing=False)
        trainer.fit(Free(), data(), data(3, 2))
        trainer.save_checkpoint(tmp_path / "a.ckpt")
        assert same_weights(fit(epochs=2, ckpt_path=tmp_path / "a.ckpt"), fit(epochs=2))


def test_an_exception_in_validation_leaves_the_trained_weights():
    module, seen = Free(), []

    class Fails(L.Callback):
        def on_validation_start(self, trainer, pl_module):
            seen[:] = [p.detach().clone() for p in pl_module.parameters()]

        def on_validation_batch_end(self, *args):
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fit(Fails(), module=module)
    assert all(torch.equal(p, before) for p, before in zip(module.parameters(), seen, strict=True))


def test_nothing_is_added_for_other_optimizers():
    class Sees(L.Callback):
        def on_train_start(self, trainer, pl_module):
            names.extend(type(callback).__name__ for callback in trainer.run.callbacks)

    names = []
    fit(Sees(), module=Net())
    assert "Sees" in names
    assert "ScheduleFree" not in names
    fit(Sees(), module=Free())
    assert names[-1] == "ScheduleFree"


def test_a_schedule_warns():
    def scheduled(parameters):
        optimizer = AdamWScheduleFree(parameters)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    with pytest.warns(PossibleUserWarning, match=r"AdamWScheduleFree is .*, and the run has a schedule \(StepLR\)"):
        quiet_trainer().fit(PlainNet(scheduled), batches(2))


def test_another_average_is_refused():
    with pytest.raises(MisconfigurationException, match="two callbacks that put other weights"):
        fit(EMAWeightAveraging(decay=0.9))
