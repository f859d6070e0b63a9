"""Accepted forms of data, how often each is read, and how a batch reaches the step."""

from __future__ import annotations

import logging
import multiprocessing
import os
from typing import NamedTuple

import numpy
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from lightlib.core.module.datamodule import DataModule
from lightlib.data.combined import CombinedLoader
from lightlib.errors import MisconfigurationException
from lightlib.report import PossibleUserWarning
from tests.data.reads import OwnOrder
from tests.runs.plain import Net, Unsized, batches, loader, quiet_trainer, samples, with_methods


class Reads(Net):
    """Keeps the batches that its steps are given."""

    def __init__(self):
        super().__init__()
        self.seen, self.validated, self.epochs = [], [], []

    def training_step(self, batch, batch_idx):
        self.seen.append(batch)
        self.epochs.append((self.current_epoch, batch_idx, self.trainer.is_last_batch))
        return sum(p.sum() for p in self.parameters())

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        self.validated.append(batch)

    def test_step(self, batch, batch_idx):
        pass

    def predict_step(self, batch, batch_idx):
        return batch


def read(data, val=None, module=None, **arguments):
    """Train on `data` and return the trainer and the module, which has kept the batches."""
    module = module or Reads()
    trainer = quiet_trainer(**({} if val is not None else {"limit_val_batches": 0}), **arguments)
    trainer.fit(module, data, val)
    return trainer, module


class Sized(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return torch.tensor(float(index))


class Streams(IterableDataset):
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return iter(torch.arange(float(self.n)))


class SaysLength(Streams):
    def __init__(self, n, says):
        super().__init__(n)
        self.says = says

    def __len__(self):
        return self.says


class Two(NamedTuple):
    left: object
    right: object


class TestForms:
    def test_a_list_of_batches(self):
        given = batches(3)
        trainer, module = read(given)
        assert trainer.num_training_batches == 3
        assert all(seen is batch for seen, batch in zip(module.seen, given, strict=True))

    def test_a_tuple_of_batches(self):
        _, module = read(tuple({"x": torch.ones(2)} for _ in range(4)))
        assert len(module.seen) == 4

    @pytest.mark.parametrize("convert", [torch.Tensor.clone, torch.Tensor.numpy], ids=["tensors", "numpy"])
    def test_a_pair_of_arrays(self, convert, caplog):
        x, y = samples(70)
        caplog.set_level(logging.INFO, "lightlib")
        logging.getLogger("lightlib").addHandler(caplog.handler)
        try:
            trainer, module = read((convert(x), convert(y)))
        finally:
            logging.getLogger("lightlib").removeHandler(caplog.handler)
        assert "Training data: a TensorDataset is served in batches of 32, shuffled." in caplog.messages
        assert trainer.num_training_batches == 3
        assert [len(a) for a, _ in module.seen] == [32, 32, 6]
        seen = torch.cat([a for a, _ in module.seen])
        assert not seen.equal(x)
        assert seen.sort(0).values.equal(x.sort(0).values)

    def test_one_array(self):
        _, module = read(numpy.zeros((40, 2), dtype="float32"))
        assert [batch[0].shape for batch in module.seen] == [(32, 2), (8, 2)]

    @pytest.mark.parametrize("where", ["module", "datamodule", "hparams"])
    def test_a_data_set_in_batches_of_the_size_that_is_asked_for(self, where):
        module, data = Reads(), None
        if where == "module":
            module.batch_size = 5
        elif where == "hparams":
            module.save_hyperparameters({"batch_size": 5})
        else:
            data = DataModule()
            data.batch_size, data.train_dataloader = 5, Sized
        quiet_trainer(limit_val_batches=0).fit(module, *([data] if data else [Sized()]))
        assert [len(batch) for batch in module.seen] == [5, 5]

    def test_data_sets_for_evaluation_are_not_shuffled(self):
        _, module = read(batches(1), Sized())
        assert module.validated[0].tolist() == list(range(10))
        assert quiet_trainer().predict(module, Sized())[0].tolist() == list(range(10))

    def test_several_loaders_in_a_named_tuple(self):
        _, module = read(Two(loader(4), Sized()))
        assert isinstance(module.seen[0], Two)
        assert len(module.seen[0].left[0]) == 4
        assert len(module.seen[0].right) == 10

    @pytest.mark.parametrize(
        ("given", "text"),
        [
            ([], "holds no loader"),
            (DataLoader(Sized(), batch_size=20, drop_last=True), "length 0"),
            ((torch.ones(3), torch.ones(2)), r"arrays of the shapes \(3,\), \(2,\)"),
            (iter([]), "gave no batch in epoch 0"),
            (7, "7"),
            (DataLoader, "class"),
        ],
    )
    def test_refused(self, given, text):
        with pytest.raises(Exception, match=text) as error:
            read(given)
        assert "Expected:" in str(error.value)
        assert "Fix:" in str(error.value)


class TestLength:
    """Whether a batch is the last one is known before it runs."""

    @pytest.mark.parametrize("n", [1, 4])
    @pytest.mark.parametrize("sized", [True, False])
    def test_is_last_batch(self, n, sized):
        trainer, module = read(batches(n) if sized else Unsized(batches(n)), max_epochs=2)
        assert module.epochs == [(epoch, i, i == n - 1) for epoch in range(2) for i in range(n)]
        assert trainer.num_training_batches == (n if sized else float("inf"))

    @pytest.mark.parametrize(("limit", "expected"), [(3, 3), (9, 5), (1.0, 5), (0.5, 2), (1, 1)])
    def test_limits(self, limit, expected):
        trainer, module = read(batches(5), limit_train_batches=limit)
        assert trainer.num_training_batches == len(module.seen) == expected

    def test_nothing_is_read_that_is_not_used(self):
        taken = []

        class Counts(Unsized):
            def __iter__(self):
                for batch in self.items:
                    taken.append(len(module.seen))
                    yield batch

        module = Reads()
        read(Counts(batches(5)), module=module, limit_train_batches=3)
        assert taken == [0, 0, 1]  # without a length one batch is read ahead

    def test_an_iterable_data_set_without_a_length(self):
        trainer, module = read(DataLoader(Streams(10), batch_size=4))
        assert trainer.num_training_batches == float("inf")
        assert [len(batch) for batch in module.seen] == [4, 4, 2]

    def test_an_iterable_data_set_with_the_right_length(self):
        trainer, module = read(DataLoader(SaysLength(10, 10), batch_size=4), max_epochs=2)
        assert trainer.num_training_batches == 3
        assert [last for *_, last in module.epochs] == [False, False, True] * 2

    def test_an_iterable_data_set_that_ends_early(self):
        with pytest.warns(PossibleUserWarning, match="has a length of 3 batches, but it ended after 2"):
            trainer, module = read(DataLoader(SaysLength(8, 12), batch_size=4), accumulate_grad_batches=3)
        assert module.epochs == [(0, 0, False), (0, 1, True)]
        assert trainer.global_step == 1

    def test_a_sampler_that_promises_too_much(self):
        class Promises(torch.utils.data.SequentialSampler):
            def __len__(self):
                return 20

        with pytest.raises(MisconfigurationException, match="has a length of 5 batches, but it ended after 3"):
            read(DataLoader(Sized(), batch_size=4, sampler=Promises(Sized())))

    def test_a_loader_that_raises_behind_its_length(self):
        class Joined(DataLoader):
            def __iter__(self):
                for left, _ in zip(super().__iter__(), range(4), strict=True):
                    yield left

            def __len__(self):
                return 3

        with pytest.raises(ValueError, match="longer than"):
            list(Joined(Sized(), batch_size=4))
        trainer, module = read(Joined(Sized(), batch_size=4), max_epochs=2)
        assert (trainer.global_step, len(module.seen)) == (6, 6)


class CountsIterators(Unsized):
    """Counts how often it is iterated."""

    def __init__(self, items):
        super().__init__(items)
        self.iterated = 0

    def __iter__(self):
        self.iterated += 1
        return super().__iter__()


class SaysPid(Dataset):
    """Samples that hold the process id of their reader."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.tensor(os.getpid())


class TestIterators:
    def test_one_per_epoch(self):
        train, val = CountsIterators(batches(6)), CountsIterators(batches(2))
        read(train, val, max_epochs=3, val_check_interval=2, num_sanity_val_steps=1)
        assert train.iterated == 3
        assert val.iterated == 1 + 3 * 3

    @pytest.mark.processes
    def test_persistent_workers_live_through_validations_and_epochs(self):
        def workers(seen):
            return {pid for batch in seen for pid in batch.tolist()}

        arguments = {"batch_size": 1, "num_workers": 2, "persistent_workers": True}
        module, val = Reads(), DataLoader(SaysPid(), **arguments)
        read(DataLoader(SaysPid(), **arguments), val, module, max_epochs=3, val_check_interval=4)
        assert len(workers(module.seen)) == 2
        assert len(workers(module.validated)) == 2
        assert os.getpid() not in workers(module.seen) | workers(module.validated)
        assert val._iterator is None, "the loader itself is as it was"

    @pytest.mark.processes
    def test_workers_end_with_the_run(self):
        def alive(pid):
            return pid in {process.pid for process in multiprocessing.active_children()}

        for persistent in (False, True):
            module = Reads()
            data = DataLoader(SaysPid(), batch_size=1, num_workers=1, persistent_workers=persistent)
            trainer, module = read(data, module=module, max_epochs=-1, max_steps=3)
            assert trainer.global_step == 3
            assert not alive(module.seen[0].item())

    def test_reload_every_n_epochs(self):
        asked = []

        def train_dataloader(self):
            asked.append(("train", self.current_epoch))
            return batches(1 + self.current_epoch)

        def val_dataloader(self):
            asked.append(("val", self.current_epoch))
            return batches(1)

        module = with_methods(Reads, train_dataloader, val_dataloader)
        trainer = quiet_trainer(max_epochs=5, reload_dataloaders_every_n_epochs=2)
        trainer.fit(module)
        assert [epoch for name, epoch in asked if name == "train"] == [0, 2, 4]
        assert [epoch for name, epoch in asked if name == "val"] == [0, 2, 4]
        assert len(module.seen) == 1 + 1 + 3 + 3 + 5

    def test_loaders_are_asked_for_once(self):
        asked = []

        def train_dataloader(self):
            asked.append("train")
            return batches(2)

        def val_dataloader(self):
            asked.append("val")
            return batches(2)

        def configure_optimizers(self):
            asked.append(self.trainer.estimated_stepping_batches)
            return Reads.configure_optimizers(self)

        module = with_methods(Reads, train_dataloader, val_dataloader, configure_optimizers)
        quiet_trainer(max_epochs=3, num_sanity_val_steps=1).fit(module)
        assert asked == ["train", "val", 6]


class TestSettings:
    def test_overfit_batches_takes_the_same_batches_in_the_data_sets_order(self):
        module, data = Reads(), DataLoader(Sized(), batch_size=3, shuffle=True)
        trainer = quiet_trainer(overfit_batches=2, max_epochs=2)
        with pytest.warns(UserWarning, match="overfit_batches: the training loader shuffles"):
            trainer.fit(module, data, DataLoader(Sized(), batch_size=3))
        assert type(data.sampler).__name__ == "RandomSampler"  # the user's loader is as it was
        assert [batch.tolist() for batch in module.seen] == [[0, 1, 2], [3, 4, 5]] * 2
        assert [batch.tolist() for batch in module.validated] == [[0, 1, 2], [3, 4, 5]] * 2

    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            ({"batch_size": 3, "shuffle": True}, [[0, 1, 2], [3, 4, 5]]),
            ({"batch_size": 3, "sampler": WeightedRandomSampler([1.0] * 10, 10)}, [[0, 1, 2], [3, 4, 5]]),
            ({"batch_size": 2, "sampler": SubsetRandomSampler([7, 2, 5, 1, 3])}, [[7, 2], [5, 1]]),
            ({"batch_size": 2, "sampler": OwnOrder(10)}, [[0, 1], [2, 3]]),
            ({"batch_sampler": BatchSampler(OwnOrder(10), 4, False)}, [[0, 1, 2, 3], [4, 5, 6, 7]]),
            ({"batch_size": None, "shuffle": True}, [0, 1]),
        ],
    )
    def test_overfit_batches_with_any_sampler_that_shuffles(self, arguments, expected):
        module = Reads()
        with pytest.warns(UserWarning, match="overfit_batches") as caught:
            quiet_trainer(overfit_batches=2, max_epochs=2).fit(
                module, DataLoader(Sized(), **arguments), DataLoader(Sized(), **arguments)
            )
        texts = [str(one.message) for one in caught]
        assert [text.split("(")[0] for text in texts] == [
            "overfit_batches: the training loader shuffles ", "overfit_batches: the validation loader shuffles ",
        ]  # fmt: skip
        for seen in (module.seen, module.validated):
            assert [batch.tolist() for batch in seen] == expected * 2

    def test_overfit_batches_leaves_fixed_orders_and_batches_of_the_users_making(self):
        module, own = Reads(), [[4, 2], [0], [9]]
        data = DataLoader(Sized(), batch_sampler=own), DataLoader(Sized(), 2, sampler=[5, 3, 1])
        quiet_trainer(overfit_batches=2).fit(module, *data)
        assert [batch.tolist() for batch in module.seen] == [[4, 2], [0]]
        assert [batch.tolist() for batch in module.validated] == [[5, 3], [1]]

    def test_set_epoch_is_called_on_whatever_has_it(self):
        told = []

        class Sampler(torch.utils.data.SequentialSampler):
            def set_epoch(self, epoch):
                told.append(("sampler", epoch))

        class BatchSampler(torch.utils.data.BatchSampler):
            def set_epoch(self, epoch):
                told.append(("batch_sampler", epoch))

        class Data(Sized):
            def set_epoch(self, epoch):
                told.append(("dataset", epoch))

        data = Data()
        read(DataLoader(data, batch_sampler=BatchSampler(Sampler(data), 5, drop_last=False)), max_epochs=2)
        assert [sorted(told[:3]), sorted(told[3:])] == [
            [("batch_sampler", epoch), ("dataset", epoch), ("sampler", epoch)] for epoch in range(2)
        ]
        told.clear()
        read(DataLoader(data, 5, sampler=Sampler(data)), max_epochs=2)
        assert [sorted(told[:2]), sorted(told[2:])] == [[("dataset", epoch), ("sampler", epoch)] for epoch in range(2)]

    @pytest.mark.parametrize(("base", "expected"), [("Counts", []), ("StatefulDataLoader", [0, 1])])
    def test_set_epoch_of_a_data_set_is_left_to_a_loader_that_counts_its_epochs(self, base, expected):
        told = []

        class Data(Streams):
            def set_epoch(self, epoch):
                told.append(epoch)

        def load_state_dict(self, state):
            raise AssertionError

        state = {"state_dict": lambda self: {}, "load_state_dict": load_state_dict}
        kind = type("Own", (type(base, (DataLoader,), state),), {})
        read(kind(Data(10), batch_size=5), max_epochs=2)
        assert told == expected

    @pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.processes)])
    @pytest.mark.parametrize("batched", [False, True])
    def test_set_epoch_of_the_samplers_of_evaluations(self, batched, workers):
        """Lightning's `_set_sampler_epoch`: within `fit` and outside, for a sampler and within a batch sampler."""
        told = []

        class Sampler(torch.utils.data.SequentialSampler):
            def set_epoch(self, epoch):
                told.append(epoch)

        data = Sized()
        sampler = Sampler(data)
        batch_sampler = torch.utils.data.BatchSampler(sampler, 5, False)
        options = {"batch_sampler": batch_sampler} if batched else {"sampler": sampler, "batch_size": 5}
        own = DataLoader(data, num_workers=workers, **options)
        trainer, module = read(batches(2), own, max_epochs=3, check_val_every_n_epoch=2, num_sanity_val_steps=1)
        assert told == [0, 1]
        for call in (trainer.validate, trainer.test):
            call(module, own, verbose=False)
        trainer.predict(module, own)
        trainer.validate(module, [own, own], verbose=False)
        assert told == [0, 1, 3, 3, 3, 3, 3]
        quiet_trainer().test(module, own, verbose=False)
        assert told[7:] == [0], "a Trainer that has trained nothing"

    def test_an_evaluation_reads_the_samples_of_its_epoch(self):
        class Sampler(torch.utils.data.Sampler):
            epoch = None

            def set_epoch(self, epoch):
                self.epoch = epoch

            def __iter__(self):
                return iter([self.epoch, self.epoch + 1])

            def __len__(self):
                return 2

        module = Reads()
        trainer = quiet_trainer(max_epochs=3)
        trainer.fit(module, batches(2), batches(1))
        module.validated.clear()
        trainer.validate(module, DataLoader(Sized(), sampler=Sampler()), verbose=False)
        assert [batch.tolist() for batch in module.validated] == [[3], [4]]

    def test_samples_are_counted(self):
        counted = []

        class Counts(Reads):
            def on_train_batch_end(self, outputs, batch, batch_idx):
                data = self.trainer.run.train_data
                counted.append(data.loaded.samples(data.position))

        read(DataLoader(Sized(), batch_size=4), module=Counts())
        read(DataLoader(Sized(), batch_size=4), module=Counts(), limit_train_batches=2)
        read(batches(2), module=Counts())
        assert counted == [4, 8, 10, 4, 8, None, None]

    def test_a_validation_loader_that_shuffles(self):
        with pytest.warns(PossibleUserWarning, match="The validation loader shuffles"):
            read(batches(1), loader(8, shuffle=True))


class TestTransfer:
    """`on_before_batch_transfer`, `transfer_batch_to_device` and `on_after_batch_transfer`, in this order."""

    class Moves:
        def __init__(self):
            super().__init__()
            self.moved = []

        def on_before_batch_transfer(self, batch, dataloader_idx):
            self.moved.append(("before", dataloader_idx))
            return batch + 1

        def transfer_batch_to_device(self, batch, device, dataloader_idx):
            self.moved.append((str(device), dataloader_idx))
            return batch * 2

        def on_after_batch_transfer(self, batch, dataloader_idx):
            self.moved.append(("after", dataloader_idx))
            return batch - 3

    def test_by_the_module(self):
        class Own(self.Moves, Reads):
            pass

        _, module = read([torch.tensor([5.0])], module=Own())
        assert module.seen[0].item() == (5 + 1) * 2 - 3
        assert module.moved == [("before", 0), ("cpu", 0), ("after", 0)]

    def test_by_the_data_module_with_the_index_of_the_loader(self):
        class Data(self.Moves, DataModule):
            def val_dataloader(self):
                return {"a": [torch.tensor([1.0])], "b": [torch.tensor([2.0])]}

        module, data = Reads(), Data()
        quiet_trainer().validate(module, datamodule=data, verbose=False)
        assert [batch.item() for batch in module.validated] == [1, 3]
        assert [index for _, index in data.moved] == [0, 0, 0, 1, 1, 1]

    def test_the_data_module_has_precedence_hook_by_hook(self):
        class Data(DataModule):
            def train_dataloader(self):
                return [torch.tensor([5.0])]

            def on_before_batch_transfer(self, batch, dataloader_idx):
                return batch + 10

        class Own(self.Moves, Reads):
            pass

        module = Own()
        with pytest.warns(UserWarning, match="Both the data module and the module define `on_before_batch_transfer`"):
            quiet_trainer(limit_val_batches=0).fit(module, datamodule=Data())
        assert module.seen[0].item() == (5 + 10) * 2 - 3
        assert module.moved == [("cpu", 0), ("after", 0)]

    def test_on_the_cpu_nothing_is_copied(self):
        given = [TensorDataset(torch.ones(2))[0], {"x": torch.ones(2), "meta": object()}]
        _, module = read(given)
        assert module.seen[0] is given[0]
        assert module.seen[1] is given[1]


# Regressions
@pytest.mark.filterwarnings("ignore::lightlib.report.LightlibWarning")
class TestRegressions:
    def test_a_limit_with_loaders_that_cycle(self):
        steps = []

        validating = with_methods(validation_step=lambda self, batch, batch_idx: steps.append(batch_idx))
        both = CombinedLoader({"a": batches(5), "b": batches(3)}, mode="max_size_cycle")
        quiet_trainer(limit_val_batches=2).fit(validating, batches(1), both)
        assert steps == [0, 1]

    def test_validation_loaders_are_reloaded_once_in_an_epoch(self):
        epochs = []

        def val_dataloader(self):
            epochs.append(self.current_epoch)
            return batches(1)

        settings = {"max_epochs": 2, "val_check_interval": 0.25, "reload_dataloaders_every_n_epochs": 1}
        quiet_trainer(**settings).fit(
            with_methods(Net, val_dataloader, validation_step=lambda self, batch, batch_idx: None), batches(4)
        )
        assert epochs == [0, 1]
