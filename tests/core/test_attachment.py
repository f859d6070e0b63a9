"""Another Trainer is used with the module of a run, which then continues as without."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.utils.data import DataLoader

import lightlib
from lightlib.errors import MisconfigurationException
from tests.processes.ranks import ranks
from tests.runs.quiet import QUIET

DATA = torch.linspace(-1.0, 2.0, 16).reshape(8, 2)


def loader():
    return DataLoader(DATA, batch_size=2)


class Net(lightlib.Module):
    """Logs in each step; `seen` are the counters and modes of its training steps."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layer = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.0))
        self.frozen = torch.nn.BatchNorm1d(2, affine=False)
        self.lr, self.seen = 0.1, []

    def forward(self, x):
        return self.layer(self.frozen(x)).square().mean()

    def on_train_start(self):
        self.frozen.eval()

    def training_step(self, batch, batch_idx):
        loss = self(batch)
        self.log("loss", loss, on_epoch=True)
        if self.lr:
            modes = [part.training for part in self.modules()]
            self.seen.append((self.current_epoch, self.global_step, self.trainer.max_epochs, modes))
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val", self(batch))

    def test_step(self, batch, batch_idx):
        self.log("test", self(batch))

    def predict_step(self, batch, batch_idx):
        return self(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), self.lr)


class Uses(lightlib.Callback):
    """Calls `use(module)` in a hook, at its second call."""

    def __init__(self, hook, use):
        self.calls, self.use = 0, use
        setattr(self, hook, self.call)

    def call(self, trainer, module, *args):
        self.calls += 1
        if self.calls == 2:
            self.use(module)
            assert module.trainer is trainer
        self.log("calls", self.calls, on_step=False, on_epoch=True)


def other(**options):
    return lightlib.Trainer(devices=1, **{**QUIET, **options})


def trained(module):
    """Train with another Trainer, which changes nothing: the learning rate is 0."""
    module.lr = 0.0
    buffers = copy.deepcopy(dict(module.named_buffers()))
    other(max_epochs=1, limit_val_batches=0).fit(module, loader())
    module.load_state_dict(buffers, strict=False)
    module.lr = 0.1


def fails(module):
    class Fails(lightlib.Callback):
        def on_validation_batch_end(self, *args):
            raise ValueError("in the inner run")

    with pytest.raises(ValueError, match="in the inner run"):
        other(callbacks=[Fails()]).validate(module, loader(), verbose=False)


def is_refused(module):
    with pytest.raises(MisconfigurationException):
        other(limit_val_batches=2.0).validate(module, "no loader", verbose=False)


USES = {
    "validate": lambda module: other().validate(module, loader(), verbose=False),
    "test": lambda module: other().test(module, loader(), verbose=False),
    "predict": lambda module: other().predict(module, loader()),
    "fit": trained,
    "in half precision": lambda module: other(precision="bf16-true").validate(module, loader(), verbose=False),
    "an error": fails,
    "an error before the first batch": is_refused,
    "a copy": lambda module: other().validate(copy.deepcopy(module), loader(), verbose=False),
    "another module": lambda module: other().validate(Net(), loader(), verbose=False),
}
FIT = {"max_epochs": 2, "accumulate_grad_batches": 2, "num_sanity_val_steps": 0}


def fitted(hook, use):
    module = Net()
    callback = Uses(hook, use)
    trainer = other(**FIT, callbacks=[callback])
    trainer.fit(module, loader(), loader())
    assert callback.calls >= 2
    metrics = {name: value.item() for name, value in trainer.callback_metrics.items()}
    return {name: value.tolist() for name, value in module.state_dict().items()}, module.seen, metrics


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("hook", ["on_train_batch_end", "on_train_epoch_end", "on_validation_epoch_end"])
def test_the_run_continues_as_without(hook, use):
    if (hook, use) == ("on_validation_epoch_end", "fit"):
        pytest.skip("a fit within a validation trains with the modes of the validation")
    assert fitted(hook, USES[use]) == fitted(hook, lambda module: None)


@pytest.mark.parametrize("use", ["validate", "predict", "in half precision", "an error", "another module"])
@pytest.mark.parametrize("verb", ["validate", "test", "predict"])
def test_an_evaluation_continues_as_without(verb, use):
    def found(use):
        name = "validation" if verb == "validate" else verb
        callback = Uses(f"on_{name}_batch_end", use)
        callback.log = lambda *args, **kwargs: None
        module = Net()
        quiet = {} if verb == "predict" else {"verbose": False}
        result = getattr(other(callbacks=[callback], inference_mode=False), verb)(module, loader(), **quiet)
        return str(result), [str(parameter.dtype) for parameter in module.parameters()]

    assert found(USES[use]) == found(lambda module: None)


def test_parameters_stay_the_same_objects():
    module = Net()
    before = list(map(id, module.parameters()))

    def use(module):
        USES["in half precision"](module)
        assert list(map(id, module.parameters())) == before
        assert {parameter.dtype for parameter in module.parameters()} == {torch.float32}

    other(**FIT, callbacks=[Uses("on_train_batch_end", use)]).fit(module, loader(), loader())


def test_a_callback_and_a_data_module_of_both():
    class Data(lightlib.DataModule):
        def val_dataloader(self):
            assert self.trainer is not None
            return loader()

        train_dataloader = val_dataloader

    data = Data()

    class Logs(lightlib.Callback):
        inner = None

        def on_validation_epoch_end(self, trainer, module):
            self.log("by_callback", float(trainer.max_epochs or 0))

        def on_train_epoch_end(self, trainer, module):
            if self.inner is None:
                self.inner = other(callbacks=[self], max_epochs=7)
                assert self.inner.validate(module, datamodule=data, verbose=False)[0]["by_callback"] == 7
            self.log("epochs", float(trainer.max_epochs))
            assert data.trainer is trainer

    trainer = other(**FIT, callbacks=[Logs()])
    trainer.fit(Net(), data)
    assert trainer.callback_metrics["by_callback"] == trainer.callback_metrics["epochs"] == 2


def test_a_module_of_a_fabric():
    fabric = lightlib.Fabric(accelerator="cpu", devices=1)
    module = Net()
    _, optimizer = fabric.setup(module, torch.optim.SGD(module.parameters(), 0.1))
    other().validate(module, loader(), verbose=False)
    assert module.fabric is fabric
    assert module.optimizers() is optimizer


class TestTheSameTrainer:
    def test_is_refused_within_training(self):
        class Validates(lightlib.Callback):
            def on_train_epoch_end(self, trainer, module):
                trainer.validate(module, loader())

        with pytest.raises(MisconfigurationException, match=r"trainer.validate\(\) was called within trainer.fit\(\)"):
            other(**FIT, callbacks=[Validates()]).fit(Net(), loader(), loader())

    def test_is_refused_within_an_evaluation_and_works_afterwards(self):
        class Tests(lightlib.Callback):
            def on_predict_batch_end(self, trainer, module, *args):
                with pytest.raises(MisconfigurationException, match=r"lightlib.Trainer\(logger=False\).test"):
                    trainer.test(module, loader())

        trainer, module = other(callbacks=[Tests()]), Net()
        assert len(trainer.predict(module, loader())) == 4
        assert trainer.test(module, loader(), verbose=False)[0]["test"] > 0

    def test_may_test_when_training_has_ended(self):
        results = []

        class Tests(lightlib.Callback):
            def on_fit_end(self, trainer, module):
                results.extend(trainer.test(module, loader(), verbose=False))

        other(**FIT, callbacks=[Tests()]).fit(Net(), loader(), loader())
        assert results[0]["test"] > 0

    def test_works_after_an_error(self):
        trainer, module = other(**FIT), Net()
        module.training_step = lambda batch, batch_idx: 1 / 0
        with pytest.raises(ZeroDivisionError):
            trainer.fit(module, loader(), loader())
        assert trainer.validate(module, loader(), verbose=False)[0]["val"] > 0

    def test_a_copy_of_a_running_one_may_run(self):
        class Copies(lightlib.Callback):
            def on_train_epoch_end(self, trainer, module):
                if not trainer.current_epoch:
                    twin = copy.deepcopy(trainer)
                    twin.validate(copy.deepcopy(module), loader(), verbose=False)

        other(**FIT, callbacks=[Copies()]).fit(Net(), loader(), loader())


def on_two(use):
    def call(module):
        inner = lightlib.Trainer(devices=2, strategy="ddp", **QUIET)
        inner.validate(module, loader(), verbose=False)

    module = Net()
    callback = Uses("on_train_batch_end", call if use else lambda module: None)
    trainer = lightlib.Trainer(devices=2, strategy="ddp", max_epochs=2, callbacks=[callback], **QUIET)
    trainer.fit(module, loader(), loader())
    assert callback.calls == 4
    return [parameter.tolist() for parameter in module.parameters()], module.seen


def both(rank):
    return on_two(False), on_two(True)


@pytest.mark.processes
def test_on_two_processes():
    for without, nested in ranks(2, both):
        assert nested == without


class TestGradients:
    """`fit` turns gradients on, and afterwards the mode is as before."""

    def weights(self):
        module = Net()
        other(max_epochs=1, limit_val_batches=0).fit(module, loader())
        return [parameter.tolist() for parameter in module.parameters()]

    def test_in_no_grad(self):
        expected = self.weights()
        with torch.no_grad():
            assert self.weights() == expected
            assert not torch.is_grad_enabled()
        assert torch.is_grad_enabled()

    def test_after_a_generator_that_left_it_off(self):
        def numbers():
            with torch.no_grad():
                yield 1
                yield 2

        expected, generator = self.weights(), numbers()
        next(generator)
        assert self.weights() == expected
        assert not torch.is_grad_enabled()
        generator.close()

    def test_in_a_hook_of_an_evaluation(self):
        class Trains(lightlib.Callback):
            def on_validation_end(self, trainer, module):
                other(max_epochs=1, limit_val_batches=0).fit(Net(), loader())
                assert not torch.is_grad_enabled()

        other(callbacks=[Trains()], inference_mode=False).validate(Net(), loader(), verbose=False)

    def test_after_an_error_the_mode_is_as_before(self):
        module = Net()
        module.training_step = lambda batch, batch_idx: 1 / 0
        with torch.no_grad():
            with pytest.raises(ZeroDivisionError):
                other(max_epochs=1, limit_val_batches=0).fit(module, loader())
            assert not torch.is_grad_enabled()

    def test_inference_mode_is_named(self):
        with torch.inference_mode(), pytest.raises(MisconfigurationException, match=r"within torch.inference_mode\(\)"):
            other(max_epochs=1, limit_val_batches=0).fit(Net(), loader())

    def test_with_a_loop_of_the_user(self):
        class Mine(lightlib.Trainer):
            def run_training(self, run):
                assert torch.is_grad_enabled()
                super().run_training(run)

        module = Net()
        with torch.no_grad():
            Mine(devices=1, max_epochs=1, limit_val_batches=0, **QUIET).fit(module, loader())
        assert module.global_step == 4
