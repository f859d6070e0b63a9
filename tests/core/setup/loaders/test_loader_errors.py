"""Bad input: objects that are no loaders, empty loaders, wrong lengths; data sets are served."""

from __future__ import annotations

import gc
import re
import traceback

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, TensorDataset

from lightlib.core.module.datamodule import DataModule
from lightlib.data.combined import CombinedLoader
from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError
from lightlib.report import PossibleUserWarning
from tests.runs.bad_input import Net, Validated, loader, refused, refuses_fit, said, trainer, with_methods

__all__ = ["said"]

TYPE, WRONG = ArgumentTypeError, MisconfigurationException
LOADERS = "a DataLoader, a Dataset, an iterable of batches, or a list or dict of them."
WRAP = "train_dataloaders=DataLoader(dataset, batch_size=32)"
RETURN = "return DataLoader(dataset, batch_size=32)"
ONE_BATCH = "at least one batch."
LOOK = "check the data set, its split, and drop_last with a batch size larger than the data set."
EACH_TIME = "at least one batch each time it is iterated."
READ_ONCE = "check the data set; a generator or iterator can be read only once: pass a list, or a DataLoader."
DATAMODULE = "an instance of lightlib.DataModule."


class Nothing(IterableDataset):
    """Yields nothing, and has no length."""

    def __iter__(self):
        return iter(())


class Stream:
    """Batches; its length may be wrong."""

    def __init__(self, batches, length):
        self.batches, self.length = batches, length

    def __len__(self):
        return self.length

    def __iter__(self):
        return iter([(torch.randn(1, 2), torch.randn(1, 1)) for _ in range(self.batches)])


class Order(Sampler):
    """The indices of four samples; its length may be wrong."""

    def __init__(self, indices, length):
        self.indices, self.length = indices, length

    def __len__(self):
        return self.length

    def __iter__(self):
        return iter(range(self.indices))


def make_loader():
    """A function that was not called."""


def data(**methods):
    """Return a data module of a class named Data with these methods."""
    return type("Data", (DataModule,), {name: (lambda self, value=value: value) for name, value in methods.items()})()


@pytest.mark.parametrize(
    ("given", "what", "fix"),
    [
        (3, "train_dataloaders is 3 (int).", WRAP),
        ("data/train.csv", "train_dataloaders is 'data/train.csv' (str).", WRAP),
        (b"data", "train_dataloaders is b'data' (bytes).", WRAP),
        ([], "train_dataloaders is [], which holds no loader.", WRAP),
        ({}, "train_dataloaders is {}, which holds no loader.", WRAP),
        (CombinedLoader([]), "train_dataloaders is an empty CombinedLoader, which holds no loader.", WRAP),
        (DataLoader, "train_dataloaders is the class DataLoader.", "train_dataloaders=DataLoader(…)"),
        (TensorDataset, "train_dataloaders is the class TensorDataset.", "train_dataloaders=TensorDataset(…)"),
        (DataModule, "train_dataloaders is the class DataModule.", "datamodule=DataModule()"),
        (make_loader, "train_dataloaders is an object of type function.", "call it: train_dataloaders=make_loader()"),
        (
            nn.Linear(2, 1),
            "train_dataloaders is Linear(in_features=2, out_features=1, bias=True) (Linear).",
            "the module comes first: trainer.fit(module, train_dataloaders=loader)",
        ),
        (
            [loader(), DataLoader],
            "train_dataloaders holds loaders, but also the class DataLoader.",
            "train_dataloaders=DataLoader(…)",
        ),
        ([loader(), 3], "train_dataloaders holds loaders, but also 3 (int).", WRAP),
        ({"a": loader(), "b": 3}, "train_dataloaders['b'] is 3 (int).", WRAP),
        ({"a": [loader(), loader()], "b": []}, "train_dataloaders['b'] is [], which holds no loader.", WRAP),
    ],
)
def test_what_is_no_loader(given, what, fix):
    expected = "a list of loaders, or a list of batches." if "but also" in what else LOADERS
    refuses_fit(Net(), given, error=(TYPE, what, expected, fix))


def test_the_arguments_in_the_wrong_order():
    module = Net()
    with refused(
        TYPE,
        "train_dataloaders is Net(***) (Net).",
        LOADERS,
        "the module comes first: trainer.fit(module, train_dataloaders=loader)",
    ):
        trainer().fit(loader(), module)
    assert module.steps == 0


@pytest.mark.parametrize("call", ["validate", "test", "predict"])
def test_the_argument_is_named_as_it_was_written(call):
    module = with_methods(Validated, test_step=lambda self, batch, batch_idx: None, forward=lambda self, batch: None)
    with refused(TYPE, "dataloaders is 3 (int).", LOADERS, "dataloaders=DataLoader(dataset, batch_size=32)"):
        getattr(trainer(), call)(module, 3)


class TestDataModules:
    """The data module itself, and its return values."""

    @pytest.mark.parametrize(
        ("given", "what", "fix"),
        [
            (DataModule, "datamodule is the class DataModule.", "datamodule=DataModule()"),
            (3, "datamodule is 3 (int).", "subclass lightlib.DataModule, or pass loaders."),
            (loader(), "datamodule is an object of type DataLoader.", "subclass lightlib.DataModule, or pass loaders."),
        ],
    )
    def test_what_is_none(self, given, what, fix):
        module = Net()
        with refused(TYPE, what, DATAMODULE, fix):
            trainer().fit(module, datamodule=given)
        assert module.steps == 0

    @pytest.mark.parametrize(("argument", "expected"), [("datamodule", DATAMODULE), ("train_dataloaders", LOADERS)])
    def test_one_of_another_package(self, argument, expected):
        theirs = type("LightningDataModule", (), {"__module__": "lightning.core"})()
        with refused(
            TYPE,
            f"{argument} is an object of type LightningDataModule.",
            expected,
            "start the program by `lightlib compat run …`, or import it from lightlib: "
            "`import lightlib as L` instead of `import lightning as L`.",
        ):
            trainer().fit(Net(), **{argument: theirs})

    def test_with_loaders_beside_it(self):
        module = Net()
        with refused(
            WRONG,
            "Both `datamodule` and `val_dataloaders` were given.",
            "one of the two.",
            "leave out one of them.",
        ):
            trainer().fit(module, None, loader(), datamodule=data(train_dataloader=loader()))
        assert module.steps == 0

    @pytest.mark.parametrize(
        ("value", "what", "fix"),
        [
            (None, "Data.train_dataloader() is None, which holds no loader.", RETURN),
            ([], "Data.train_dataloader() is [], which holds no loader.", RETURN),
            (3, "Data.train_dataloader() is 3 (int).", RETURN),
            ("x", "Data.train_dataloader() is 'x' (str).", RETURN),
            (DataLoader, "Data.train_dataloader() is the class DataLoader.", "return DataLoader(…)"),
            ({"a": loader(), "b": None}, "Data.train_dataloader()['b'] is None, which holds no loader.", RETURN),
        ],
    )
    def test_what_it_returns(self, value, what, fix):
        refuses_fit(Net(), data(train_dataloader=value), error=(TYPE, what, LOADERS, fix))

    def test_nothing_to_validate(self):
        error = (TYPE, "Data.val_dataloader() is None, which holds no loader.", LOADERS, RETURN)
        refuses_fit(Validated(), data(train_dataloader=loader(), val_dataloader=None), error=error)

    def test_a_loader_in_place_of_a_method(self):
        given = type("Data", (DataModule,), {"train_dataloader": loader()})()
        error = (
            TYPE,
            "Data.train_dataloader is an object of type DataLoader.",
            "a method that returns loaders.",
            "def train_dataloader(self): return DataLoader(dataset, batch_size=32)",
        )
        refuses_fit(Net(), given, error=error)

    def test_a_method_of_the_module(self):
        module = with_methods(train_dataloader=lambda self: None)
        with refused(TYPE, "Given.train_dataloader() is None, which holds no loader.", LOADERS, RETURN):
            trainer().fit(module)
        assert module.steps == 0


@pytest.mark.parametrize(
    ("call", "argument", "method"),
    [
        ("fit", "train_dataloaders", "train_dataloader"),
        ("validate", "dataloaders", "val_dataloader"),
        ("test", "dataloaders", "test_dataloader"),
        ("predict", "dataloaders", "predict_dataloader"),
    ],
)
def test_no_data_at_all(call, argument, method):
    module = with_methods(Net, test_step=print, forward=print, validation_step=print)
    module.validation_step = lambda batch, batch_idx: None
    module.test_step = lambda batch, batch_idx: None
    with refused(
        WRONG,
        f"trainer.{call}() has no data.",
        f"`{argument}`, a data module, or a method `{method}` of the module.",
        f"trainer.{call}(module, {argument}=loader)",
    ):
        getattr(trainer(limit_val_batches=0 if call == "fit" else 1), call)(module)
    assert module.steps == 0


class TestEmpty:
    """Nothing to train on is found before training."""

    @pytest.mark.parametrize(
        ("given", "what"),
        [
            (DataLoader([]), "a DataLoader of length 0"),
            (DataLoader(TensorDataset(torch.ones(3, 2)), batch_size=4, drop_last=True), "a DataLoader of length 0"),
            (TensorDataset(torch.ones(0, 2), torch.ones(0, 1)), "a TensorDataset of length 0"),
            (torch.ones(0, 2), "a TensorDataset of length 0"),
            (np.ones((0, 2)), "a TensorDataset of length 0"),
            ([loader(), DataLoader([])], "a DataLoader of length 0"),
            (Stream(3, length=0), "a Stream of length 0"),
        ],
    )
    def test_a_length_of_zero(self, given, what):
        refuses_fit(Net(), given, error=(WRONG, f"The training data are empty: {what}.", ONE_BATCH, LOOK))

    @pytest.mark.parametrize("given", [DataLoader(Nothing()), Nothing(), Stream(0, length=3), (one for one in ())])
    def test_nothing_is_read(self, given):
        error = (WRONG, "The training loader gave no batch in epoch 0.", EACH_TIME, READ_ONCE)
        refuses_fit(Net(), given, error=error)

    def test_one_of_several_loaders_reads_nothing(self):
        what = 'CombinedLoader(mode="max_size_cycle"): loader 0 of 2 (counted from 0) gave no batch when it was '
        what += "started again, after 0 batches of the combination."
        fix = 'check its data set, or mode="max_size", which gives None for loaders that have ended.'
        error = (WRONG, what, "loaders with at least one batch, which can be iterated again.", fix)
        refuses_fit(Net(), [iter(()), loader()], error=error)

    def test_a_generator_in_its_second_epoch(self):
        module = Net()
        with refused(WRONG, "The training loader gave no batch in epoch 1.", EACH_TIME, READ_ONCE):
            trainer(max_epochs=2).fit(module, (batch for batch in list(loader())))
        assert module.steps == 4

    @pytest.mark.parametrize("kind", [Net, Validated])
    @pytest.mark.parametrize("given", [[], {}, CombinedLoader([])])
    def test_no_validation_loaders_are_no_validation(self, kind, given):
        module, run = kind(), trainer()
        run.fit(module, loader(), given)
        assert (module.steps, run.num_val_batches, run.callback_metrics) == (4, [], {})

    def test_a_method_that_returns_no_validation_loaders(self, caplog):
        module, run = with_methods(Validated, val_dataloader=lambda self: []), trainer()
        with caplog.at_level("INFO", logger="lightlib"):
            run.fit(module, loader())
        assert "val_dataloader returned no loaders: this run does not validate." in caplog.messages
        assert (module.steps, run.num_val_batches, run.callback_metrics) == (4, [], {})
        expected = "`dataloaders`, a data module, or a method `val_dataloader` of the module."
        fix = "trainer.validate(module, dataloaders=loader)"
        with refused(WRONG, "trainer.validate() has no data.", expected, fix):
            run.validate(module)

    def test_an_empty_validation(self):
        error = (WRONG, "The validation data are empty: a DataLoader of length 0.", ONE_BATCH, LOOK)
        refuses_fit(Validated(), loader(), DataLoader([]), error=error)

    def test_a_validation_that_reads_nothing(self):
        error = (WRONG, "The validation loader gave no batch.", EACH_TIME, READ_ONCE)
        refuses_fit(Validated(), loader(), DataLoader(Nothing()), error=error)

    def test_the_second_of_two(self):
        module = with_methods(validation_step=lambda self, batch, batch_idx, dataloader_idx=0: None)
        error = (WRONG, "The validation loader gave no batch in position 1 of 2.", EACH_TIME, READ_ONCE)
        refuses_fit(module, loader(), [loader(), DataLoader(Nothing())], error=error)

    @pytest.mark.parametrize("call", ["validate", "test", "predict"])
    def test_an_evaluation(self, call):
        module = with_methods(
            Validated, test_step=lambda self, batch, batch_idx: None, forward=lambda self, batch: None
        )
        name = {"validate": "validation"}.get(call, call)
        name = {"predict": "predict"}.get(name, name)
        with refused(WRONG, f"The {name} loader gave no batch.", EACH_TIME, READ_ONCE):
            getattr(trainer(), call)(module, DataLoader(Nothing()))


class TestLimits:
    """Limits that do not fit the loaders."""

    @pytest.mark.parametrize(
        ("argument", "name"), [("limit_train_batches", "training"), ("limit_val_batches", "validation")]
    )
    def test_a_fraction_that_leaves_nothing(self, argument, name):
        error = (
            WRONG,
            f"{argument}=0.1 of 4 {name} batches leaves none.",
            "at least 0.25, or an int.",
            f"Trainer({argument}=1) runs one batch.",
        )
        refuses_fit(Validated(), loader(), loader(), error=error, **{argument: 0.1})

    def test_a_fraction_by_the_name_of_a_loader_that_leaves_nothing(self):
        error = (
            WRONG,
            "limit_val_batches={'b': 0.1} of 4 validation batches leaves none.",
            "at least 0.25, or an int.",
            "Trainer(limit_val_batches={'b': 1}) runs one batch.",
        )
        loaders = {"a": loader(), "b": loader()}
        refuses_fit(Validated(), loader(), loaders, error=error, limit_val_batches={"a": 2, "b": 0.1})

    def test_a_fraction_of_an_unknown_length(self):
        error = (
            WRONG,
            "limit_train_batches=0.5 is a fraction, but the training loader has no length.",
            "an int (a number of batches) or 1.0 for loaders without a length.",
            "Trainer(limit_train_batches=100)",
        )
        refuses_fit(Net(), (batch for batch in loader()), error=error, limit_train_batches=0.5)

    def test_validation_that_would_never_run(self):
        error = (
            WRONG,
            "val_check_interval=10 is more than the 4 training batches of an epoch: validation would never run.",
            "at most 4 batches.",
            "use a smaller int, a float (a fraction of the epoch), or check_val_every_n_epoch=None to count ***",
        )
        refuses_fit(Validated(), loader(), loader(), error=error, val_check_interval=10)

    def test_a_part_of_an_endless_epoch(self):
        error = (
            WRONG,
            "val_check_interval=0.5 is a fraction of an epoch, but the training loader has no length.",
            "1.0 (at the end), an int (batches), or a time.",
            "Trainer(val_check_interval=1000)",
        )
        refuses_fit(Validated(), (batch for batch in loader()), loader(), error=error, val_check_interval=0.5)


class TestWrongLengths:
    """Loaders with a length that differs from their number of batches."""

    def test_a_sampler_that_ends_early(self):
        module = Net()
        given = DataLoader(TensorDataset(torch.randn(4, 2), torch.randn(4, 1)), sampler=Order(2, length=4))
        with refused(
            WRONG,
            "The training loader has a length of 4 batches, but it ended after 2.",
            "as many batches as its length.",
            "correct the sampler's __len__, or Trainer(limit_train_batches=2).",
        ):
            trainer().fit(module, given)
        assert module.steps == 2

    def test_a_sampler_that_goes_on(self):
        module = Net()
        given = DataLoader(TensorDataset(torch.randn(4, 2), torch.randn(4, 1)), sampler=Order(4, length=3))
        text = "The training loader has a length of 3 batches, but it has more; the rest is not used."
        with pytest.warns(PossibleUserWarning, match=re.escape(text)):
            trainer().fit(module, given)
        assert module.steps == 3

    def test_any_iterable_that_ends_early(self):
        module = Net()
        text = "The training loader has a length of 4 batches, but it ended after 3: schedules and intervals that count"
        with pytest.warns(PossibleUserWarning, match=re.escape(text)):
            trainer().fit(module, Stream(3, length=4))
        assert module.steps == 3

    def test_any_iterable_that_goes_on_is_cut(self):
        module = Net()
        trainer().fit(module, Stream(5, length=4))
        assert module.steps == 4

    @pytest.mark.parametrize("given", [Stream(4, length=4), loader(), iter(loader())])
    def test_right_lengths_say_nothing(self, given):
        module = Net()
        trainer().fit(module, given)
        assert module.steps == 4


class TestServed:
    """A data set or arrays in place of a loader are no error: lightlib serves them, with a message."""

    @pytest.mark.parametrize(
        "given",
        [
            TensorDataset(torch.randn(5, 2), torch.randn(5, 1)),
            (torch.randn(5, 2), torch.randn(5, 1)),
            (np.ones((5, 2), "float32"), np.ones((5, 1), "float32")),
        ],
    )
    def test_it_is_said(self, said, given):
        module = Net()
        trainer().fit(module, given)
        assert "Training data: a TensorDataset is served in batches of 32, shuffled." in said
        assert module.steps == 1

    def test_in_batches_of_the_size_that_the_module_has(self, said):
        module = Net()
        module.batch_size = 2
        trainer().fit(module, TensorDataset(torch.randn(5, 2), torch.randn(5, 1)))
        assert "Training data: a TensorDataset is served in batches of 2, shuffled." in said
        assert module.steps == 3

    def test_validation_is_not_shuffled(self, said):
        dataset = TensorDataset(torch.randn(5, 2), torch.randn(5, 1))
        trainer().validate(Validated(), dataset, verbose=False)
        assert "Validation data: a TensorDataset is served in batches of 32." in said

    @pytest.mark.parametrize(
        ("given", "kind", "what", "expected", "fix"),
        [
            (
                (torch.ones(3, 2), torch.ones(2, 1)), WRONG,
                "The training data are arrays of the shapes (3, 2), (2, 1).",
                "arrays with one first dimension: the number of samples.", "pass (x, y) with len(x) == len(y).",
            ),
            (
                torch.tensor(1.0), WRONG, "The training data are arrays of the shapes ().",
                "arrays with one first dimension: the number of samples.", "pass (x, y) with len(x) == len(y).",
            ),
            (
                np.array(["a", "b"]), TYPE, "The training data cannot be made into tensors: ***", "arrays of numbers.",
                "convert them first, for instance with array.astype('float32').",
            ),
        ],
    )  # fmt: skip
    def test_arrays_that_cannot_be(self, given, kind, what, expected, fix):
        refuses_fit(Net(), given, error=(kind, what, expected, fix))


def test_a_mode_that_is_not_known():
    with refused(
        UnknownNameError,
        "Unknown mode of CombinedLoader 'min_siz'. Did you mean 'min_size'?",
        "one of 'max_size', 'max_size_cycle', 'min_size', 'sequential'.",
        "***",
    ):
        CombinedLoader([loader()], mode="min_siz")


def test_a_validation_loader_that_shuffles():
    given = DataLoader(TensorDataset(torch.randn(4, 2), torch.randn(4, 1)), shuffle=True)
    with pytest.warns(PossibleUserWarning, match="The validation loader shuffles: its batches differ between runs"):
        trainer().fit(Validated(), loader(), given)


class Broken(Dataset):
    """The user's own error at the third sample."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        if index == 2:
            raise LookupError("sample 2 is broken")
        return torch.ones(2), torch.ones(1)


class TestTheUsersOwnErrors:
    """They pass through unchanged, with the lines of the user's code."""

    def test_in_the_data_set(self):
        module = Net()
        with pytest.raises(LookupError) as caught:
            trainer().fit(module, DataLoader(Broken()))
        assert type(caught.value) is LookupError
        assert str(caught.value) == "sample 2 is broken"
        assert caught.value.__cause__ is None
        assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "__getitem__"
        assert module.steps == 2

    @pytest.mark.processes
    def test_in_a_worker(self):
        text = ""
        try:
            trainer().fit(Net(), DataLoader(Broken(), num_workers=1))
        except LookupError as error:
            text = str(error)
        gc.collect()  # torch's own frames refer to the error, and keep the worker
        assert "Caught LookupError in DataLoader worker process 0" in text
        assert "in __getitem__" in text
        assert "sample 2 is broken" in text

    @pytest.mark.parametrize(
        "name", ["training_step", "configure_optimizers", "setup", "on_train_batch_end", "train_dataloader"]
    )
    def test_in_the_module(self, name):
        def broken(self, *args):
            raise KeyError("mine")

        module = with_methods(**{name: broken})
        with pytest.raises(KeyError) as caught:
            trainer().fit(module, *(() if name == "train_dataloader" else (loader(),)))
        assert type(caught.value) is KeyError
        assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "broken"
