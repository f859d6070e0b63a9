"""Bugs that a review found, one test each: the next run, resumes, odd but legal inputs."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import os
import signal
import weakref
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from lightlib.callbacks import GradientAccumulationScheduler
from lightlib.callbacks.callback import Callback
from lightlib.core.metrics.slots import batch_size_of
from lightlib.core.module.loading import _present_device
from lightlib.core.trainer import Trainer
from lightlib.data.combined import CombinedLoader
from lightlib.report import PossibleUserWarning
from lightlib.tree import to_device
from tests.core.plain import QUIET, Net, batches, loader, quiet_trainer, same_weights

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.filterwarnings("ignore::lightlib.report.LightlibWarning")


def gradient(net):
    return net.net[0].weight.grad.clone()


def gradient_of(net, batch):
    """The gradient of one batch alone."""
    net.zero_grad()
    net.training_step(batch, 0).backward()
    return gradient(net)


class Numbers(Dataset):
    """The numbers from `start` on."""

    def __init__(self, n, start=0):
        self.n, self.start = n, start

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return self.start + i


class Seen(Net):
    """Keeps what its batches were."""

    not_in_checkpoint = ("seen",)

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.seen = []

    def training_step(self, batch, batch_idx):
        self.seen.append(torch.utils._pytree.tree_map(lambda x: x.tolist(), batch))
        return self.net(torch.ones(1, 6)).mean()


class SaveAtStep(Callback):
    """Saves a checkpoint at one step."""

    def __init__(self, path, step):
        self.path, self.step = path, step

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)


class Stateful:
    """A loader without a length that keeps its own position."""

    def __init__(self, n):
        self.n, self.at = n, 0

    def __iter__(self):
        while self.at < self.n:
            self.at += 1
            yield torch.tensor([self.at])
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def saved_and_resumed(tmp_path, make_loader, step, **arguments):
    """What an uninterrupted run saw, and what it saw after step `step` when it was resumed there."""
    path = tmp_path / "a.ckpt"
    whole = Seen()
    quiet_trainer(callbacks=SaveAtStep(path, step), **arguments).fit(whole, make_loader())
    rest = Seen()
    quiet_trainer(**arguments).fit(rest, make_loader(), ckpt_path=path)
    return whole.seen[step:], rest.seen


class TestTheNextRun:
    def test_estimated_steps_are_those_of_the_fit_that_is_being_built(self):
        estimates = []

        class Estimating(Net):
            def configure_optimizers(self):
                estimates.append(self.trainer.estimated_stepping_batches)
                return super().configure_optimizers()

        net, trainer = Estimating(), quiet_trainer()
        trainer.fit(net, loader(8))
        trainer.max_epochs = 3
        trainer.fit(net, loader(16))
        assert estimates == [2, 12]

    def test_means_of_an_epoch_that_a_second_fit_finishes(self):
        class Logging(Net):
            def training_step(self, batch, batch_idx):
                self.log("i", float(batch_idx), on_step=False, on_epoch=True)
                return super().training_step(batch, batch_idx)

        net, trainer = Logging(), quiet_trainer(max_steps=3)
        trainer.fit(net, batches(10))
        trainer.max_steps = -1
        trainer.fit(net, batches(10))
        assert trainer.callback_metrics["i"] == 4.5

    def test_gradients_of_a_broken_window_are_not_used(self):
        found, failing = [], [True]

        class Failing(Net):
            def training_step(self, batch, batch_idx):
                if batch_idx == 1 and failing:
                    failing.clear()
                    raise ValueError("broken off")
                return super().training_step(batch, batch_idx)

            def on_before_optimizer_step(self, optimizer):
                found.append(gradient(self))

        net, trainer, data = Failing(), quiet_trainer(accumulate_grad_batches=2), batches(2)
        with pytest.raises(ValueError, match="broken off"):
            trainer.fit(net, data)
        trainer.fit(net, data)
        torch.testing.assert_close(found, [gradient_of(Net(), data[1])])

    def test_a_state_that_cannot_be_saved_does_not_keep_teardown_away(self, tmp_path):
        called = []

        class Net2(Net):
            def training_step(self, batch, batch_idx):
                os.kill(os.getpid(), signal.SIGINT)
                return super().training_step(batch, batch_idx)

            def on_save_checkpoint(self, checkpoint):
                raise ValueError("no")

            def teardown(self, stage):
                called.append(stage)

        trainer = Trainer(**{**QUIET, "enable_checkpointing": True}, max_epochs=1, default_root_dir=tmp_path)
        with pytest.raises(SystemExit):
            trainer.fit(Net2(), batches(2))
        assert called == ["fit"]

    def test_the_last_batch_is_let_go(self):
        references = []

        class Logging(Net):
            def training_step(self, batch, batch_idx):
                references.append(weakref.ref(batch[0]))
                self.log("x", 1.0, on_epoch=True)
                return super().training_step(batch, batch_idx)

        net, trainer = Logging(), quiet_trainer()
        trainer.fit(net, loader(4))
        assert [reference() for reference in references] == [None]


class TestWindow:
    def test_parameters_that_two_optimizers_share_are_corrected_once(self):
        found = []

        class Shared(Net):
            def training_step(self, batch, batch_idx):
                return None if batch_idx else super().training_step(batch, batch_idx)

            def configure_optimizers(self):
                return [torch.optim.SGD(self.parameters(), lr=0.1) for _ in range(2)]

            def on_before_optimizer_step(self, optimizer):
                found.append(gradient(self))

        data = batches(2)
        quiet_trainer(accumulate_grad_batches=2).fit(Shared(), data)
        torch.testing.assert_close(found, [gradient_of(Net(), data[0])] * 2)

    @pytest.mark.parametrize("weights", [(0.0, 2.0), (2.0, 0.0), (0.0, 0.0)])
    def test_a_weight_that_is_a_tensor_of_zero(self, weights):
        found = []

        class Weighted(Net):
            def training_step(self, batch, batch_idx):
                weight = torch.tensor(weights[batch_idx])
                return {"loss": super().training_step(batch, batch_idx) * weight, "weight": weight}

            def on_before_optimizer_step(self, optimizer):
                found.append(gradient(self))

        data = batches(2)
        quiet_trainer(accumulate_grad_batches=2).fit(Weighted(), data)
        used = [gradient_of(Net(), batch) for batch, weight in zip(data, weights, strict=True) if weight]
        torch.testing.assert_close(found, used or [torch.zeros_like(found[0])])

    def test_another_accumulation_within_an_epoch_begins_with_the_next(self):
        zeroed = []

        class Changing(Net):
            def on_before_zero_grad(self, optimizer):
                zeroed.append((self.trainer.current_epoch, self.trainer.progress.epoch_batch))

            def on_train_batch_end(self, outputs, batch, batch_idx):
                if batch_idx == 2:
                    self.trainer.accumulate_grad_batches = 2

        quiet_trainer(accumulate_grad_batches=3, max_epochs=2).fit(Changing(), batches(6))
        assert zeroed == [(0, 0), (0, 3), (1, 0), (1, 2), (1, 4)]

    def test_accumulation_of_a_schedule_after_a_resume_within_an_epoch(self, tmp_path):
        path = tmp_path / "a.ckpt"
        schedule = GradientAccumulationScheduler({0: 2})
        whole, rest = Net(), Net()
        quiet_trainer(callbacks=[schedule, SaveAtStep(path, 1)]).fit(whole, batches(8))
        trainer = quiet_trainer(callbacks=GradientAccumulationScheduler({0: 2}))
        trainer.fit(rest, batches(8), ckpt_path=path)
        assert trainer.global_step == 4
        assert same_weights(whole, rest)

    def test_a_limit_that_is_set_within_an_epoch(self):
        class Limiting(Net):
            def on_train_batch_end(self, outputs, batch, batch_idx):
                self.trainer.max_steps = 4

        trainer = quiet_trainer()
        trainer.fit(Limiting(), batches(8))
        assert trainer.global_step == 4


class TestOptimization:
    def test_a_clip_value_of_zero_is_no_clipping(self):
        with_zero, without = Net(), Net()
        quiet_trainer(gradient_clip_val=0).fit(with_zero, batches(3))
        quiet_trainer().fit(without, batches(3))
        assert same_weights(with_zero, without)

    def test_every_batch_runs_when_optimizer_step_leaves_out_the_first_optimizer(self):
        class Alternating(Seen):
            def configure_optimizers(self):
                return [torch.optim.SGD(self.parameters(), lr=0.1) for _ in range(2)]

            def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
                if batch_idx % 2 == 0 or optimizer is not self.optimizers()[0]:
                    optimizer.step(optimizer_closure)

        net = Alternating()
        quiet_trainer().fit(net, [torch.tensor([i]) for i in range(4)])
        assert net.seen == [[0], [1], [2], [3]]

    def test_a_skipped_batch_is_no_step_with_an_optimizer_step_of_its_own(self):
        class Skipping(Net):
            def training_step(self, batch, batch_idx):
                return None if batch_idx % 2 else super().training_step(batch, batch_idx)

            def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
                optimizer.step(optimizer_closure)

        trainer = quiet_trainer()
        trainer.fit(Skipping(), batches(4))
        assert trainer.global_step == 2

    def test_nested_outputs_have_no_graph(self):
        found = []

        class Nested(Net):
            def training_step(self, batch, batch_idx):
                out = self.net(batch[0])
                return {"loss": out.mean(), "of": {"class": out}, "all": [out, (out, "text")]}

            def on_train_batch_end(self, outputs, batch, batch_idx):
                leaves = [outputs["of"]["class"], outputs["all"][0], outputs["all"][1][0]]
                found.extend(leaf.requires_grad for leaf in leaves)

        quiet_trainer().fit(Nested(), batches(1))
        assert found == [False] * 3


class TestResume:
    def test_loaders_that_share_a_step_and_have_generators_of_their_own(self, tmp_path):
        def both():
            a, b = (torch.Generator().manual_seed(seed) for seed in (1, 2))
            return {
                "a": DataLoader(Numbers(8), 2, shuffle=True, generator=a),
                "b": DataLoader(Numbers(6, 100), 2, shuffle=True, generator=b),
            }

        expected, found = saved_and_resumed(tmp_path, both, 2, max_epochs=2)
        assert found == expected

    @pytest.mark.parametrize("step", [1, 3, 7, 8])
    def test_a_stateful_loader_without_a_length_loses_no_batch(self, tmp_path, step):
        expected, found = saved_and_resumed(tmp_path, lambda: Stateful(8), step)
        assert found == expected

    def test_stateful_loaders_together(self, tmp_path):
        expected, found = saved_and_resumed(tmp_path, lambda: [Stateful(8), Stateful(8)], 3)
        assert found == expected

    def test_a_loader_that_iterates_in_its_own_way(self, tmp_path):
        class Endless:
            def __init__(self, inner):
                self.inner = inner

            def __len__(self):
                return len(self.inner)

            def __iter__(self):
                while True:
                    yield from self.inner

        class OneIterator(DataLoader):
            """As timm's MultiEpochsDataLoader: one iterator, made in the constructor."""

            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
                object.__setattr__(self, "batch_sampler", Endless(self.batch_sampler))
                self.iterator = super().__iter__()

            def __len__(self):
                return len(self.batch_sampler)

            def __iter__(self):
                for _ in range(len(self)):
                    yield next(self.iterator)

        expected, found = saved_and_resumed(tmp_path, lambda: OneIterator(Numbers(8), 2), 2)
        assert found == expected

    def test_after_an_interrupted_validation(self, tmp_path):
        class Dropping(Net):
            interrupt = False
            not_in_checkpoint = ("seen",)

            def __init__(self):
                super().__init__()
                self.seen = []

            def training_step(self, batch, batch_idx):
                x = torch.nn.functional.dropout(batch[0])
                self.seen.append(x.sum().item())
                return self.net(x).mean()

            def validation_step(self, batch, batch_idx):
                torch.rand(1)
                if self.interrupt and batch_idx == 1 and self.current_epoch == 1:
                    os.kill(os.getpid(), signal.SIGINT)

        def run(interrupt=False, **arguments):
            torch.manual_seed(3)
            net = Dropping()
            net.interrupt = interrupt
            settings = {**QUIET, "enable_checkpointing": True, "max_epochs": 3, "default_root_dir": tmp_path}
            with pytest.raises(SystemExit) if interrupt else contextlib.nullcontext():
                Trainer(**settings).fit(net, batches(4), batches(4), **arguments)
            return net.seen

        whole, first = run(), run(interrupt=True)
        assert len(first) == 8
        assert first + run(ckpt_path=tmp_path / "checkpoints" / "interrupted.ckpt") == whole


class TestCheckpoints:
    def test_hyperparameters_that_are_kinds_of_strings(self, tmp_path):
        numpy = pytest.importorskip("numpy")

        class Kind(str, enum.Enum):
            SMALL = "small"

        class Configured(Net):
            def __init__(self, kind=Kind.SMALL, name="x", table=None):
                super().__init__()
                self.save_hyperparameters()

        trainer = quiet_trainer()
        trainer.fit(Configured(name=numpy.str_("x"), table={Kind.SMALL: 1}), batches(1))
        trainer.save_checkpoint(tmp_path / "a.ckpt")
        found = torch.load(tmp_path / "a.ckpt", weights_only=True)["hyper_parameters"]
        assert found == {"kind": "small", "name": "x", "table": {"small": 1}}

    @pytest.mark.parametrize("location", ["cuda:99", "cpu"])
    def test_storages_of_absent_devices_go_to_the_cpu(self, location):
        assert _present_device("storage", location) == "storage"

    def test_storages_of_other_kinds_of_devices_are_left_to_torch(self):
        assert _present_device("storage", "xpu:0") is None


class TestData:
    def test_a_limit_with_loaders_that_cycle(self):
        steps = []

        class Validating(Net):
            def validation_step(self, batch, batch_idx):
                steps.append(batch_idx)

        both = CombinedLoader({"a": batches(5), "b": batches(3)}, mode="max_size_cycle")
        quiet_trainer(limit_val_batches=2).fit(Validating(), batches(1), both)
        assert steps == [0, 1]

    def test_validation_loaders_are_reloaded_once_in_an_epoch(self):
        epochs = []

        class Validating(Net):
            def validation_step(self, batch, batch_idx):
                pass

            def val_dataloader(self):
                epochs.append(self.current_epoch)
                return batches(1)

        settings = {"max_epochs": 2, "val_check_interval": 0.25, "reload_dataloaders_every_n_epochs": 1}
        quiet_trainer(**settings).fit(Validating(), batches(4))
        assert epochs == [0, 1]

    def test_packed_sequences_keep_their_sizes_on_the_cpu(self):
        packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)])
        moved = to_device({"x": [packed]}, torch.device("meta"))["x"][0]
        assert moved.data.device.type == "meta"
        assert moved.batch_sizes.device.type == "cpu"

    def test_a_defaultdict_stays_one(self):
        batch = collections.defaultdict(list, a=torch.ones(1))
        moved = to_device(batch, torch.device("meta"))
        assert moved["a"].is_meta
        assert moved["b"] == []
        assert not batch["a"].is_meta

    def test_a_dataclass_keeps_what_is_not_in_its_constructor(self):
        @dataclasses.dataclass(frozen=True)
        class Batch:
            x: torch.Tensor
            n: int = dataclasses.field(default=0, init=False)

        batch = Batch(torch.ones(1))
        object.__setattr__(batch, "n", 5)
        moved = to_device(batch, torch.device("meta"))
        assert (moved.x.is_meta, moved.n) == (True, 5)

    def test_the_batch_size_of_many_tensors(self):
        with pytest.warns(PossibleUserWarning, match=r"differ \(4 and 3\)"):
            assert batch_size_of([torch.ones(4)] * 1000 + [torch.ones(3)]) == 4
