"""DataModule.from_datasets: the batches of its loaders, and the arguments of its `__init__`."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils.data import BatchSampler, IterableDataset, SequentialSampler, TensorDataset

from lightlib.core.module.datamodule import DataModule
from lightlib.core.module.module import Module
from lightlib.core.module.overrides import overrides
from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError
from tests.runs.plain import Net, quiet_trainer, samples, with_methods


class Takes(DataModule):
    def __init__(self, name, batch_size=7, *, num_workers=3):
        super().__init__()
        self.save_hyperparameters()


class TakesOne(DataModule):
    def __init__(self, batch_size):
        super().__init__()
        self.got = {"batch_size": batch_size}


class TakesAll(DataModule):
    def __init__(self, **arguments):
        super().__init__()
        self.got = arguments


def data(n=6):
    return TensorDataset(*samples(n))


def test_loaders_of_data_sets():
    module = DataModule.from_datasets(data(), [data(2), data(3)], {"a": data(4)}, batch_size=2)
    trainer = quiet_trainer(limit_val_batches=0)
    trainer.fit(Net(), datamodule=module)
    assert trainer.global_step == 3
    assert [len(loader) for loader in module.val_dataloader()] == [1, 2]
    assert {name: len(loader) for name, loader in module.test_dataloader().items()} == {"a": 2}
    assert str(module) == "DataModule(train: 3 batches; val: 1 batches, 2 batches; test: 2 batches)"


@pytest.mark.parametrize(
    ("kind", "more", "expected"),
    [(TakesOne, {}, {"batch_size": 4}), (TakesAll, {"name": "x"}, {"batch_size": 4, "num_workers": 0, "name": "x"})],
)
def test_init_gets_what_it_takes_of_batch_size_and_num_workers(kind, more, expected):
    assert kind.from_datasets(data(), batch_size=4, **more).got == expected


def test_hyperparameters_of_a_subclass():
    module = Takes.from_datasets(data(), batch_size=4, name="x")
    assert module.hparams == {"name": "x", "batch_size": 4, "num_workers": 0}
    assert next(iter(module.train_dataloader()))[1].shape == (4,)


def test_a_loader_that_is_set_to_the_one_of_the_base_is_none():
    class Data(DataModule):
        def __init__(self):
            super().__init__()
            self.val_dataloader = super().val_dataloader

        def val_dataloader(self):
            return []

    assert not overrides(Data(), DataModule, "val_dataloader")


def numbers(loader):
    return [batch[0].tolist() for batch in loader]


class TestArgumentsOfTheLoaders:
    numbered = TensorDataset(torch.arange(6))

    def test_collate_fn_makes_the_batches_of_all_stages(self):
        module = DataModule.from_datasets(
            self.numbered, self.numbered, batch_size=3, collate_fn=lambda samples: sum(int(x) for (x,) in samples)
        )
        assert list(module.val_dataloader()) == [3, 12]
        assert sum(module.train_dataloader()) == 15

    def test_further_arguments_replace_the_defaults(self):
        module = DataModule.from_datasets(
            *[self.numbered] * 4, batch_size=4, train_kwargs={"shuffle": False, "drop_last": True},
            eval_kwargs={"batch_size": 5},
        )  # fmt: skip
        assert numbers(module.train_dataloader()) == [[0, 1, 2, 3]]
        for loader in (module.val_dataloader(), module.test_dataloader(), module.predict_dataloader()):
            assert numbers(loader) == [[0, 1, 2, 3, 4], [5]]

    def test_a_sampler_replaces_shuffling(self):
        module = DataModule.from_datasets(self.numbered, batch_size=4, train_kwargs={"sampler": [5, 0, 5]})
        assert numbers(module.train_dataloader()) == [[5, 0, 5]]

    def test_a_batch_sampler_replaces_the_batch_size(self):
        batches = BatchSampler(SequentialSampler(range(6)), 4, drop_last=False)
        module = DataModule.from_datasets(self.numbered, batch_size=2, train_kwargs={"batch_sampler": batches})
        assert numbers(module.train_dataloader()) == [[0, 1, 2, 3], [4, 5]]

    def test_a_class_that_takes_collate_fn_gets_it(self):
        assert TakesAll.from_datasets(self.numbered, collate_fn=len).got["collate_fn"] is len
        assert "collate_fn" not in TakesAll.from_datasets(self.numbered).got

    @pytest.mark.parametrize("name", ["train_kwargs", "eval_kwargs"])
    def test_unknown_arguments_are_refused(self, name):
        with pytest.raises(UnknownNameError, match=rf"argument of a DataLoader in {name} 'drop_lst'.*'drop_last'"):
            DataModule.from_datasets(self.numbered, **{name: {"drop_lst": True}})
        with pytest.raises(ArgumentTypeError, match=rf"DataModule.from_datasets\({name}=8 \(int\)\)"):
            DataModule.from_datasets(self.numbered, **{name: 8})
        with pytest.raises(UnknownNameError, match="'dataset'"):
            DataModule.from_datasets(self.numbered, **{name: {"dataset": []}})


class TestLimits:
    def test_5000_samples_of_50000_are_313_batches_of_16(self):
        numbers = TensorDataset(torch.arange(50_000))
        everything = DataModule.from_datasets(numbers, numbers, batch_size=16)
        assert len(everything.train_dataloader()) == 3125
        limited = DataModule.from_datasets(numbers, numbers, batch_size=16, limit_samples=5000)
        assert len(limited.train_dataloader()) == len(limited.val_dataloader()) == 313
        drawn = torch.cat([batch for (batch,) in limited.train_dataloader()])
        assert drawn.sort().values.equal(torch.arange(5000))

    def test_of_single_stages_and_by_indices(self):
        numbers = TensorDataset(torch.arange(10))
        module = DataModule.from_datasets(numbers, numbers, numbers, limit_samples={"train": [7, 2], "val": -3})
        read = [[int(x) for (x,) in loader] for loader in (module.train_dataloader(), module.val_dataloader())]
        assert [sorted(read[0]), read[1], len(module.test_dataloader())] == [[2, 7], [7, 8, 9], 10]

    def test_a_run(self):
        trainer = quiet_trainer(limit_val_batches=0)
        trainer.fit(Net(), datamodule=DataModule.from_datasets(data(20), batch_size=4, limit_samples=9))
        assert trainer.global_step == 3

    @pytest.mark.parametrize(
        ("limit", "kind", "text"),
        [
            (0, MisconfigurationException, "limit_samples got 0"),
            ([], MisconfigurationException, r"limit_samples got \[\]"),
            (0.5, ArgumentTypeError, "limit_samples got 0.5"),
            (True, ArgumentTypeError, "limit_samples got True"),
            ([1, "2"], ArgumentTypeError, "a list of their indices"),
            ([1, 6], MisconfigurationException, "got indices from 1 to 6 for 6 samples"),
            ({"valid": 5}, UnknownNameError, "valid"),
        ],
    )
    def test_errors(self, limit, kind, text):
        with pytest.raises(kind, match=text):
            DataModule.from_datasets(data(), limit_samples=limit).train_dataloader()

    def test_a_stream_has_no_samples_to_limit(self):
        class Stream(IterableDataset):
            def __iter__(self):
                return iter(range(3))

        with pytest.raises(ArgumentTypeError, match="which has no length"):
            DataModule.from_datasets(Stream(), limit_samples=2).train_dataloader()


class TestAutomatic:
    def test_workers_are_the_cores_of_this_process(self, monkeypatch):
        monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(6)), raising=False)
        module = DataModule.from_datasets(data(), num_workers="auto", train_kwargs={"pin_memory": "auto"})
        assert module.train_dataloader().num_workers == 6
        assert module.train_dataloader().pin_memory == torch.cuda.is_available()
        module.trainer = trainer = quiet_trainer()
        for processes, workers in ((2, 3), (12, 1)):
            here = replace(trainer.strategy.environment, local_size=processes, world_size=processes)
            monkeypatch.setattr(trainer.strategy, "environment", here)
            assert module.train_dataloader().num_workers == workers

    def test_another_word(self):
        with pytest.raises(MisconfigurationException, match=r"num_workers of .* is 'atuo'.*auto"):
            DataModule.from_datasets(data(), num_workers="atuo")

    def test_a_part_of_arrays_is_validated_and_not_trained(self):
        x, y = torch.arange(20.0)[:, None], torch.arange(20)
        found = []
        for split in (0.2, 4):
            module = DataModule.from_datasets((x, y), batch_size=3, validation_split=split)
            trained = torch.cat([labels for _, labels in module.train_dataloader()])
            validated = torch.cat([labels for _, labels in module.val_dataloader()])
            assert sorted([*trained.tolist(), *validated.tolist()]) == list(range(20))
            found.append(validated.tolist())
        assert len(found[0]) == 4
        assert found[0] == found[1]

    @pytest.mark.parametrize(
        ("split", "val", "text"),
        [
            (0.2, (torch.ones(2),), "and a val_dataset"),
            (20, None, "for 20 samples"),
            (0.01, None, "for 20 samples"),
            (-0.5, None, "validation_split=-0.5"),
            (1.5, None, "validation_split=1.5"),
            (1.0, None, "validation_split=1.0 for 20 samples"),
        ],
    )
    def test_a_part_that_cannot_be(self, split, val, text):
        with pytest.raises(MisconfigurationException, match=text):
            DataModule.from_datasets((torch.ones(20, 2),), val, validation_split=split)

    def test_inputs_and_targets_as_two_arguments(self):
        module = Module.from_model(torch.nn.Linear(2, 2), torch.nn.CrossEntropyLoss(), torch.optim.SGD)
        with pytest.raises(MisconfigurationException, match="looks like its targets") as error:
            quiet_trainer(max_epochs=1).fit(module, torch.ones(6, 2), torch.zeros(6, dtype=torch.int64))
        assert "fit(module, (x, y))" in str(error.value)
        with pytest.raises(ArgumentTypeError, match=r"\(x, y\), batch_size=2, validation_split=0.5\)"):
            quiet_trainer(max_epochs=1).fit(module, torch.ones(6, 2), batch_size=2, validation_split=0.5)
        with pytest.raises(ArgumentTypeError, match=r"CrossEntropyLoss\(weight="):
            quiet_trainer(max_epochs=1).fit(module, torch.ones(6, 2), class_weight={0: 1.0})

    def test_datasets_with_arguments_run(self):
        """The call of pytorch-accelerated's scripts: data sets, a batch size, collate_fn and arguments of loaders."""
        sizes = []

        def collate(items):
            sizes.append(len(items))
            return torch.utils.data.default_collate(items)

        module = DataModule.from_datasets(
            data(20), data(12), batch_size=8, collate_fn=collate,
            train_kwargs={"drop_last": True}, eval_kwargs={"batch_size": 5},
        )  # fmt: skip
        trainer = quiet_trainer(max_epochs=1)

        def validation_step(self, batch, batch_idx):
            self.log("seen", float(len(batch[0])), reduce_fx="sum")

        trainer.fit(with_methods(Net, validation_step), datamodule=module)
        assert sizes == [8, 8, 5, 5, 2]
        assert float(trainer.callback_metrics["seen"]) == 12
