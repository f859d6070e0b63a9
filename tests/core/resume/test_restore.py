"""The parts of a checkpoint that a fit restores, and its warnings about a run that has changed."""

from __future__ import annotations

import contextlib
import os
import signal
import warnings

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from lightlib.callbacks import EarlyStopping, LambdaCallback
from lightlib.callbacks.callback import Callback
from lightlib.core.resume.options import Resume
from lightlib.core.trainer import Trainer
from lightlib.errors import CheckpointError, MisconfigurationException
from tests.processes.ranks import ranks
from tests.runs import plain
from tests.runs.modules import LogsLoss, Seen
from tests.runs.plain import QUIET, Net, batches, quiet_trainer, same_weights, with_methods
from tests.runs.resumable import Everything, SaveAtStep, SavesEverywhere, fresh, loaders, run, trainer_for


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The folder of a run that was saved after each of its steps, and the run."""
    folder = tmp_path_factory.mktemp("saved")
    module, trainer = run(fresh(), trainer_for(SavesEverywhere(folder)), loaders())
    return folder, module, trainer


def resumed(path, resume, **arguments):
    module, trainer = fresh(9), trainer_for(**arguments)
    torch.manual_seed(3)
    trainer.fit(module, *loaders(), ckpt_path=path, resume=resume)
    return module, trainer


class TestParts:
    def test_weights_alone_start_at_epoch_0(self, saved):
        folder, whole, _ = saved
        loaded = torch.load(folder / "14.ckpt")["state_dict"]
        with pytest.warns(UserWarning, match="before its first epoch"):
            module, trainer = resumed(folder / "14.ckpt", "weights", max_epochs=0)
        assert trainer.progress.batch == trainer.progress.epoch == 0
        assert not trainer.continues
        for name, value in module.state_dict().items():
            assert torch.equal(value, loaded[name])
        assert same_weights(module, whole)

    def test_weights_of_a_file_that_has_no_more(self, saved, tmp_path):
        folder, *_ = saved
        content = torch.load(folder / "3.ckpt")
        torch.save({"state_dict": content["state_dict"]}, tmp_path / "w.ckpt")
        _, trainer = resumed(tmp_path / "w.ckpt", "weights", max_epochs=1)
        assert trainer.progress.epoch == 1
        with pytest.raises(CheckpointError, match=r"holds weights alone.*\n.*\n.*resume='weights'"):
            resumed(tmp_path / "w.ckpt", None)

    def test_without_optimizers(self, saved):
        folder, _, before = saved
        started = {}

        class Looks(Callback):
            def on_train_start(self, trainer, pl_module):
                started["state"] = dict(trainer.optimizers[0].state)
                started["step"] = trainer.global_step
                started["last"] = trainer.lr_scheduler_configs[0].scheduler.last_epoch

        module, trainer = fresh(9), trainer_for(Looks())
        trainer.fit(module, *loaders(), ckpt_path=folder / "5.ckpt", resume={"optimizers": False})
        assert started == {"state": {}, "step": 5, "last": 5}
        assert trainer.progress == before.progress

    def test_without_the_place_in_the_data_the_epoch_begins_anew(self, saved):
        folder, *_ = saved
        _, trainer = resumed(folder / "5.ckpt", {"data": False})
        assert trainer.global_step == 5 + 7 + 7
        assert trainer.progress.batch == 5 + 7 + 7

    def test_progress_takes_data_and_sums_with_it(self):
        parts = Resume.of({"progress": False})
        assert (parts.data, parts.metrics, parts.optimizers) == (False, False, True)

    def test_not_strict(self, saved):
        folder, *_ = saved

        class Larger(Everything):
            def __init__(self):
                super().__init__()
                self.extra = torch.nn.Linear(2, 2)

        with pytest.raises(CheckpointError, match=r"Missing key\(s\) in state_dict: \"extra.weight\""):
            trainer_for().fit(Larger(), *loaders(), ckpt_path=folder / "5.ckpt", resume="weights")
        trainer = trainer_for(max_epochs=1)
        trainer.fit(
            Larger(),
            *loaders(),
            ckpt_path=folder / "5.ckpt",
            resume={
                **dict.fromkeys(("optimizers", "schedules", "progress", "callbacks", "datamodule", "random"), False),
                "strict": False,
            },
        )
        assert trainer.global_step == 7

    @pytest.mark.parametrize(
        ("given", "text"),
        [
            ("weight", r"Unknown resume 'weight'\. Did you mean 'weights'\?"),
            ({"optimizer": False}, r"Unknown part of resume 'optimizer'\. Did you mean 'optimizers'\?"),
            ({"optimizers": "no"}, r"resume has optimizers='no'.*\n.*: True or False\."),
            ({"strict": "shape"}, r"resume has strict='shape'.*\n.*: True, False, \"shapes\" or None\."),
            ({"changes": "error"}, r"Unknown changes of resume 'error'"),
            (3, r"resume is 3"),
        ],
    )
    def test_what_is_no_choice_of_parts(self, saved, given, text):
        with pytest.raises(MisconfigurationException, match=text):
            resumed(saved[0] / "5.ckpt", given)

    def test_parts_of_no_checkpoint(self):
        with pytest.raises(MisconfigurationException, match=r"resume='weights' \(str\), but no ckpt_path"):
            resumed(None, "weights")


class TestChanges:
    def test_the_same_run_is_silent(self, saved):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            resumed(saved[0] / "5.ckpt", None)

    def test_each_difference_is_said(self, saved):
        module, trainer = fresh(9), trainer_for(accumulate_grad_batches=2, gradient_clip_val=1.0)
        with pytest.warns(UserWarning, match="The run is not the one that wrote the checkpoint") as caught:
            trainer.fit(module, *loaders(n=30, batch_size=5), ckpt_path=saved[0] / "7.ckpt")
        text = str(next(w.message for w in caught if "not the one" in str(w.message)))
        assert "accumulate_grad_batches: 1 then, 2 now" in text
        assert "gradient_clip_val: None then, 1.0 now" in text
        assert "26" in text
        assert "30" in text

    def test_refused(self, saved):
        module, trainer = fresh(9), trainer_for(precision="bf16-mixed")
        with pytest.raises(CheckpointError, match="precision: '32-true' then, 'bf16-mixed' now"):
            trainer.fit(module, *loaders(), ckpt_path=saved[0] / "7.ckpt", resume={"changes": "refuse"})
        assert trainer.global_step == 0

    def test_ignored(self, saved):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            module, trainer = fresh(9), trainer_for(gradient_clip_val=1.0)
            trainer.fit(module, *loaders(), ckpt_path=saved[0] / "7.ckpt", resume={"changes": "ignore"})

    def test_a_changed_hyperparameter(self, tmp_path):
        class Sized(Everything):
            def __init__(self, width):
                super().__init__()
                self.save_hyperparameters()

        trainer = trainer_for(SavesEverywhere(tmp_path))
        trainer.fit(Sized(4), *loaders())
        with pytest.warns(UserWarning, match="hyperparameter width: 4 then, 5 now"):
            trainer_for().fit(Sized(5), *loaders(), ckpt_path=tmp_path / "5.ckpt")


class TestWishes:
    def test_a_stop_that_waits_for_min_epochs_is_kept(self, tmp_path):
        """EarlyStopping asks in epoch 0; min_steps=5 lets the stop happen at step 5, also in a resumed run."""

        class Asks(Callback):
            def on_train_batch_end(self, trainer, pl_module, *_):
                if trainer.global_step == 2:
                    trainer.should_stop = True

        arguments = {"min_steps": 5, "min_epochs": 0}
        whole, trainer = run(fresh(), trainer_for(Asks(), SavesEverywhere(tmp_path), **arguments), loaders())
        assert trainer.global_step == 5
        again, other = run(fresh(9), trainer_for(Asks(), **arguments), loaders(), tmp_path / "3.ckpt", seed=5)
        assert other.global_step == 5
        assert same_weights(again, whole)

    def test_a_stop_that_was_refused_stays_refused(self, tmp_path):
        def stopping():
            return EarlyStopping("val_loss", patience=0, min_delta=100.0, check_finite=False)

        class AtTheEnd(Callback):
            def on_train_epoch_end(self, trainer, pl_module):
                trainer.save_checkpoint(tmp_path / f"{trainer.current_epoch}.ckpt")

        arguments = {"max_epochs": 4, "min_epochs": 3, "val_check_interval": 1.0}
        whole, trainer = run(fresh(), trainer_for(stopping(), AtTheEnd(), **arguments), loaders())
        again, other = run(fresh(9), trainer_for(stopping(), **arguments), loaders(), tmp_path / "1.ckpt", seed=5)
        assert other.progress == trainer.progress
        assert same_weights(again, whole)


# Regressions
class Numbers(Dataset):
    """The numbers from `start` on."""

    def __init__(self, n, start=0):
        self.n, self.start = n, start

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return self.start + i


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
    """Return the batches after step `step`, of an uninterrupted run and of one resumed there."""
    path = tmp_path / "a.ckpt"
    whole = Seen()
    quiet_trainer(callbacks=SaveAtStep(path, step), **arguments).fit(whole, make_loader())
    rest = Seen()
    quiet_trainer(**arguments).fit(rest, make_loader(), ckpt_path=path)
    return whole.seen[step:], rest.seen


@pytest.mark.filterwarnings("ignore::lightlib.report.LightlibWarning")
class TestRegressions:
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
        def run(interrupt=False, **arguments):
            def training_step(self, batch, batch_idx):
                x = torch.nn.functional.dropout(batch[0])
                seen.append(x.sum().item())
                return self.net(x).mean()

            def validation_step(self, batch, batch_idx):
                torch.rand(1)
                if interrupt and batch_idx == 1 and self.current_epoch == 1:
                    os.kill(os.getpid(), signal.SIGINT)

            torch.manual_seed(3)
            seen, net = [], with_methods(Net, training_step, validation_step)
            settings = {**QUIET, "enable_checkpointing": True, "max_epochs": 3, "default_root_dir": tmp_path}
            with pytest.raises(SystemExit) if interrupt else contextlib.nullcontext():
                Trainer(**settings).fit(net, batches(4), batches(4), **arguments)
            return seen

        whole, first = run(), run(interrupt=True)
        assert len(first) == 8
        assert first + run(ckpt_path=tmp_path / "checkpoints" / "interrupted.ckpt") == whole


def _ended(rank, max_steps, file, ckpt_path=None, **arguments):
    torch.manual_seed(0)
    module, save = (
        LogsLoss(on_step=True, on_epoch=True, sync_dist=True),
        lambda trainer, _: trainer.save_checkpoint(file),
    )
    callbacks = [LambdaCallback(on_train_end=save)]
    trainer = quiet_trainer(max_steps=max_steps, max_epochs=-1, callbacks=callbacks, **arguments)
    trainer.fit(module, plain.batches(6, seed=rank), ckpt_path=ckpt_path)
    return {name: float(value) for name, value in trainer.callback_metrics.items()}


def test_the_metrics_of_an_epoch_that_a_limit_ended(tmp_path):
    """A run that continues at its end has the value of the epoch, and one that trains on that of more batches."""
    ended, longer = _ended(0, 4, tmp_path / "4.ckpt"), _ended(0, 5, tmp_path / "5.ckpt")
    assert ended["loss"] == ended["loss_epoch"] != ended["loss_step"]
    assert _ended(0, 4, tmp_path / "again.ckpt", tmp_path / "4.ckpt") == ended
    assert _ended(0, 5, tmp_path / "again.ckpt", tmp_path / "4.ckpt") == longer


def _in_two_ranks(rank, root):
    files = [f"{root}/{name}.ckpt" for name in ("4", "again")]
    ddp = {"devices": 2, "strategy": "ddp", "use_distributed_sampler": False}
    return [_ended(rank, 4, files[0], **ddp), _ended(rank, 4, files[1], files[0], **ddp)]


@pytest.mark.processes
def test_the_reduced_metrics_of_an_epoch_that_a_limit_ended(tmp_path):
    for ended, resumed_at_its_end in ranks(2, _in_two_ranks, str(tmp_path)):
        assert resumed_at_its_end == ended
