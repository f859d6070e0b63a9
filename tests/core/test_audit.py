"""The audit: the content of a checkpoint, user state that is missing from it, and no false alarm."""

from __future__ import annotations

import random

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchmetrics.classification import MulticlassAccuracy

import lightlib as L
from lightlib.core.audit import audit
from tests.runs.plain import Net, batches, calling, loader, quiet_trainer, samples, with_methods
from tests.runs.resumable import Everything, loaders, trainer_for


class Looks(L.Callback):
    """Asks for an audit within a fit, after some steps."""

    not_in_checkpoint = ("step", "found")

    def __init__(self, step=3):
        self.step = step
        self.found = None

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step == self.step and self.found is None:
            self.found = audit(trainer)


def looked(module, *data, callbacks=(), **arguments):
    """The audit within a fit."""
    looks = Looks()
    arguments = {"limit_val_batches": 0, **arguments}
    quiet_trainer(callbacks=[looks, *callbacks], max_epochs=2, **arguments).fit(module, *(data or [loader(16)]))
    return looks.found


def changes(found):
    """Return the names of state that changed and is saved."""
    return found.captured.get("changed since training began", "").split(", ")


def names(found):
    return [one.where for one in found.missing]


def fix_of(found, where):
    return next(one for one in found.missing if one.where == where).fix


class TestNoFalseAlarm:
    @pytest.mark.processes
    def test_all_that_a_run_has(self):
        looks = Looks()
        trainer = trainer_for(looks, L.callbacks.EarlyStopping("val_loss"), L.callbacks.Timer())
        torch.manual_seed(1)
        trainer.fit(Everything(), *loaders(1))
        found = looks.found
        assert names(found) == []
        assert found.captured["module"].endswith("of Everything, 116 numbers")
        assert found.captured["optimizers"] == "AdamW"
        assert found.captured["schedules"] == "ExponentialLR, ReduceLROnPlateau"
        assert found.captured["position"] == "epoch 0, batch 3 of it, step 3"
        assert found.captured["training data"] == "DataLoader with RandomSampler"
        assert found.captured["logged this epoch"] == "accuracy, largest, loss, sometimes"
        assert "EarlyStopping" in found.captured["callbacks"]
        assert found.captured["loggers"] == "Rows"
        assert "A checkpoint of this run contains:" in str(found)

    def test_before_and_after_a_fit(self):
        trainer = quiet_trainer()
        assert audit(trainer).complete
        trainer.fit(Net(), loader(8))
        found = audit(trainer)
        assert found.complete
        assert found.captured["position"] == "epoch 1, batch 0 of it, step 2"
        assert str(found).endswith("Nothing is known to be missing.")

    def test_what_is_saved_by_the_user(self):
        def training_step(self, batch, batch_idx):
            self.count += 1
            self.mean += 1

        def on_save_checkpoint(self, checkpoint):
            checkpoint["mine"] = self.count, self.register.get_state()

        class Counts(L.Callback):
            def __init__(self):
                self.batches = 0

            def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
                self.batches += 1

            def state_dict(self):
                return {"batches": self.batches}

        class Data(L.DataModule):
            seen = 0

            def train_dataloader(self):
                self.seen += 1
                return loader(16)

            def state_dict(self):
                return {"seen": self.seen}

        module = calling(Net, training_step, on_save_checkpoint)
        module.count, module.register = 0, torch.Generator()
        module.register_buffer("mean", torch.zeros(2))
        assert names(looked(module, Data(), callbacks=[Counts()])) == []
        assert audit(quiet_trainer(callbacks=[Counts()])).complete

    def test_settings_do_not_change(self):
        module = Net()
        module.rate, module.names, module.sizes = 0.1, ["a", "b"], {"x": 1}
        module.criterion = nn.CrossEntropyLoss()
        module.blocks = nn.ModuleList([nn.Linear(2, 2)])
        module.path = __file__
        assert names(looked(module)) == []


class Forgets(Net):
    """Changes while it is trained, in every way."""

    def __init__(self):
        super().__init__()
        self.count, self.history, self.best = 0, [], None
        self.numbers = numpy.random.default_rng(0)
        self.noise = torch.Generator()
        self.dice = random.Random(0)
        self.average = torch.zeros(2)
        self.source, self.unused = iter(range(99)), iter(range(99))
        self.plain = [nn.Linear(2, 2)]
        self.accuracy = MulticlassAccuracy(3)
        self.inner = nn.Module()
        self.inner.calls = 0

    def training_step(self, batch, batch_idx):
        self.count += 1
        next(self.source)
        self.inner.calls += 1
        loss = super().training_step(batch, batch_idx)
        self.history.append(loss.item())
        self.best = min(self.best or 9.0, loss.item())
        self.accuracy.update(self.net(batch[0]), batch[1])
        return loss


class TestModule:
    def test_within_a_fit(self):
        found = looked(Forgets())
        assert names(found) == ["module.source"]
        assert changes(found) == [
            "module.accuracy",
            "module.count",
            "module.history",
            "module.best",
            "module.inner.calls",
        ]
        assert "module.source: an iterator (range_iterator), whose position cannot be saved" in str(found)
        assert fix_of(found, "module.source").startswith("store the number of items taken")
        assert not found.complete

    def test_before_a_fit_nothing_has_changed(self):
        assert audit(quiet_trainer()).complete

    def test_an_open_file(self, tmp_path):
        def setup(self, stage):
            self.file, self.unused = open(tmp_path / "log", "w"), open(tmp_path / "other", "w")  # noqa: SIM115

        def teardown(self, stage):
            self.file.close()
            self.unused.close()

        found = looked(
            with_methods(Net, setup, teardown, on_train_batch_end=lambda self, *_: self.file.write("one line"))
        )
        assert names(found) == ["module.file"]
        assert fix_of(found, "module.file") == "open it in setup, in append mode"

    def test_what_appears_in_the_run(self):
        def training_step(self, batch, batch_idx):
            self.last = batch_idx

        found = looked(calling(Net, training_step))
        assert found.complete
        assert changes(found) == ["module.last"]


class Averages(L.Callback):
    def __init__(self, decay=0.9):
        self.decay, self.weights, self.updates = decay, {}, 0

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.updates += 1
        for name, value in pl_module.state_dict().items():
            self.weights[name] = value.clone()


class Cached(Dataset):
    def __init__(self):
        self.reads, self.noise = 0, numpy.random.default_rng(0)

    def __len__(self):
        return 16

    def __getitem__(self, index):
        self.reads += 1
        x, y = batches(1)[0]
        return x[0], y[0]


class TestOthers:
    def test_a_callback(self):
        found = looked(Net(), callbacks=[Averages()])
        assert found.complete
        assert changes(found) == ["Averages.weights", "Averages.updates"]

    def test_a_subclass_of_ours(self):
        class Stops(L.callbacks.EarlyStopping):
            mine = 0

            def on_train_epoch_start(self, trainer, pl_module):
                self.mine += 1

        def logs(module, *args):
            module.log("x", 1.0)
            return Net.training_step(module, *args)

        module = type("Logs", (Net,), {"training_step": logs})()
        trainer = quiet_trainer(callbacks=[Stops("x")], limit_val_batches=0, max_epochs=2)
        trainer.fit(module, loader(8))
        found = audit(trainer)
        assert found.complete
        assert changes(found) == ["Stops.mine"]

    def test_a_data_module(self):
        class Data(L.DataModule):
            def __init__(self):
                super().__init__()
                self.moved = 0

            def on_after_batch_transfer(self, batch, dataloader_idx):
                self.moved += 1
                return batch

            def train_dataloader(self):
                return loader(16)

        found = looked(Net(), Data())
        assert found.complete
        assert changes(found) == ["datamodule.moved"]

    @pytest.mark.processes
    @pytest.mark.parametrize("workers", [0, 1])
    def test_a_data_set(self, workers):
        found = looked(Net(), DataLoader(Cached(), 4, num_workers=workers))
        in_workers = ["data set of the training loader.reads"] if workers else []
        assert names(found) == in_workers
        assert ("StatefulDataLoader" in str(found)) == bool(workers)
        assert ("data set of the training loader.reads" in changes(found)) == (not workers)
        assert found.captured["training data"] == "DataLoader with SequentialSampler, 1 generator"

    @pytest.mark.processes
    def test_a_data_set_whose_state_nobody_asks_workers_for(self):
        class Stateful(Cached):
            def state_dict(self):
                return {"reads": self.reads}

            def load_state_dict(self, state):
                self.reads = state["reads"]

        found = looked(Net(), DataLoader(Stateful(), 4, num_workers=1))
        assert [one.what for one in found.missing if one.where == "data set of the training loader"] == [
            "it has a state_dict, which a plain DataLoader does not ask its workers for"
        ]
        found = looked(Net(), DataLoader(Stateful(), 4))
        assert found.complete
        assert "data set of the training loader.state_dict()" in changes(found)

    def test_a_metric_that_is_no_attribute_of_the_module(self):
        accuracy = MulticlassAccuracy(3)

        def training_step(self, batch, batch_idx):
            accuracy(self.net(batch[0]), batch[1])
            self.log("accuracy", accuracy, on_epoch=True, on_step=False)

        assert names(looked(calling(Net, training_step))) == ["the metric logged as 'accuracy'"]


class Unlike(tuple):
    """A tuple that refuses all operations of tuples, like the irreps of e3nn."""

    __slots__ = ()

    def __len__(self):
        raise NotImplementedError

    def __iter__(self):
        raise NotImplementedError

    __eq__ = __iter__
    __hash__ = None


def test_containers_that_refuse_to_be_looked_into(tmp_path):
    def training_step(self, batch, batch_idx):
        self.batches += 1

    class Data(Dataset):
        def __init__(self):
            self.irreps = Unlike((torch.Generator(), 2))

        def __len__(self):
            return 4

        def __getitem__(self, index):
            return samples(1, index)[0][0], samples(1, index)[1][0]

    module, trainer = calling(Net, training_step), quiet_trainer()
    module.irreps, module.inside, module.batches = Unlike((1, 2)), {"deep": [Unlike((3,))]}, 0
    trainer.fit(module, DataLoader(Data(), 2))
    found = trainer.audit_state()
    assert found.complete
    assert changes(found) == ["module.batches"]
    trainer.save_checkpoint(tmp_path / "holds.ckpt")
