"""A run that is resumed anywhere ends as the run that was never interrupted."""

from __future__ import annotations

import signal

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from lightlib.callbacks import Callback, ModelCheckpoint
from lightlib.data.combined import CombinedLoader
from lightlib.errors import CheckpointError
from lightlib.precision import MixedPrecision
from tests.processes.programs import Program
from tests.runs.plain import Net, Unsized, batches, loader, quiet_trainer, same_weights, samples, subclass, with_methods
from tests.runs.resumable import Everything, Noisy, SavesEverywhere, fresh, loaders, run, trainer_for


def same_states(one, other):
    """Whether two trainers hold the same optimizers, schedules, counters and metrics."""
    assert one.progress == other.progress
    torch.testing.assert_close(
        [o.state_dict() for o in one.optimizers], [o.state_dict() for o in other.optimizers], rtol=0, atol=0
    )
    for ours, theirs in zip(one.lr_scheduler_configs, other.lr_scheduler_configs, strict=True):
        assert ours.scheduler.state_dict() == theirs.scheduler.state_dict()
    torch.testing.assert_close(dict(one.callback_metrics), dict(other.callback_metrics), rtol=0, atol=0, equal_nan=True)


def check_every_step(folder, make_data, only=None, **arguments):
    """Run once with a save after each step; resume from each or some of them; compare the final states."""
    saves = SavesEverywhere(folder)
    whole, trainer = run(fresh(), trainer_for(saves, **arguments), make_data())
    assert len(saves.rows) == trainer.global_step
    for step, rows in saves.rows.items():
        if only is not None and step not in only:
            continue
        module, again = run(fresh(99), trainer_for(**arguments), make_data(), folder / f"{step}.ckpt", seed=5)
        assert same_weights(module, whole), f"resumed after step {step}"
        assert again.logger.rows == trainer.logger.rows[rows:], f"resumed after step {step}"
        same_states(again, trainer)
    return whole, trainer


class TestEveryStep:
    @pytest.mark.parametrize("accumulate", [1, 2, 3])
    def test_all_in_one_process(self, tmp_path, accumulate):
        whole, trainer = check_every_step(tmp_path, loaders, accumulate_grad_batches=accumulate)
        unsaved, _ = run(fresh(), trainer_for(accumulate_grad_batches=accumulate), loaders())
        assert same_weights(whole, unsaved), "saving changes nothing"
        assert trainer.global_step == 2 * -(-7 // accumulate)
        assert len({rate for _, row in trainer.logger.rows for rate in [row.get("loss_step")]}) > 4

    @pytest.mark.processes
    @pytest.mark.parametrize("arguments", [{}, {"persistent_workers": True}], ids=str)
    def test_with_workers(self, tmp_path, arguments):
        check_every_step(tmp_path, lambda: loaders(2, **arguments), only=(1, 3, 4, 6), accumulate_grad_batches=2)

    @pytest.mark.processes
    @pytest.mark.parametrize("sanity", [0, 1])
    def test_with_workers_for_validation(self, tmp_path, sanity):
        def data():
            return loaders(val={"num_workers": 1, "persistent_workers": True, "shuffle": True})

        with pytest.warns(UserWarning, match="The validation loader shuffles"):
            check_every_step(tmp_path, data, only=(1, 5, 7), num_sanity_val_steps=sanity)

    @pytest.mark.parametrize(
        "arguments",
        [
            {"val_check_interval": 1.0},
            {"val_check_interval": 5, "check_val_every_n_epoch": None},
            {"limit_train_batches": 5, "val_check_interval": 2, "check_val_every_n_epoch": 2},
            {"max_epochs": -1, "max_steps": 10},  # not resumed after the last step: then there is nothing to do
            {"gradient_clip_val": 0.3, "log_every_n_steps": 3},
            {"precision": "bf16-mixed"},
        ],
        ids=str,
    )
    def test_with_other_settings(self, tmp_path, arguments):
        check_every_step(tmp_path, loaders, only=(1, 3, 5, 7, 9), **arguments)

    @pytest.mark.parametrize("n", [26, 28])
    def test_with_a_generator_of_its_own(self, tmp_path, n):
        check_every_step(tmp_path, lambda: loaders(n=n, generator=torch.Generator().manual_seed(4)))

    @pytest.mark.processes
    @pytest.mark.parametrize("persistent", [False, True])
    def test_with_a_generator_of_its_own_and_workers(self, tmp_path, persistent):
        def data():
            return loaders(2, n=28, persistent_workers=persistent, generator=torch.Generator().manual_seed(4))

        check_every_step(tmp_path, data, only=(3, 7, 9))

    @pytest.mark.processes
    @pytest.mark.parametrize("workers", [0, 1])
    def test_with_a_validation_loader_that_has_a_generator(self, tmp_path, workers):
        def data():
            generator = torch.Generator().manual_seed(4)
            return loaders(val={"shuffle": True, "generator": generator, "num_workers": workers})

        with pytest.warns(UserWarning, match="The validation loader shuffles"):
            check_every_step(tmp_path, data, only=(2, 5, 7, 12), limit_val_batches=2)

    @pytest.mark.parametrize("mode", ["sequential", "min_size", "max_size_cycle"])
    def test_with_combined_loaders(self, tmp_path, mode):
        def data():
            together = [loaders(n=12)[0], loaders(n=20)[0]]
            return CombinedLoader(together, mode), loaders()[1]

        def training_step(self, batch, batch_idx):
            if not isinstance(batch[0], torch.Tensor):
                batch = [torch.cat(parts) for parts in zip(*batch, strict=True)]
            return Everything.training_step(self, batch, batch_idx)

        both, saves = subclass(Everything, training_step), SavesEverywhere(tmp_path)
        torch.manual_seed(1)
        whole, trainer = run(both(), trainer_for(saves), data())
        for step, rows in saves.rows.items():
            torch.manual_seed(99)
            module, again = run(both(), trainer_for(), data(), tmp_path / f"{step}.ckpt", seed=5)
            assert same_weights(module, whole), f"resumed after step {step}"
            assert again.logger.rows == trainer.logger.rows[rows:]

    @pytest.mark.processes
    @pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
    @pytest.mark.parametrize("workers", [0, 1])
    def test_with_torchdatas_stateful_loader(self, tmp_path, workers):
        torchdata = pytest.importorskip("torchdata.stateful_dataloader")

        def data():
            own = torchdata.StatefulDataLoader(Noisy(26), 4, shuffle=True, num_workers=workers)
            return own, loaders()[1]

        check_every_step(tmp_path, data, only=(3, 7, 9))

    def test_what_was_logged_before_and_waits_for_the_loggers(self, tmp_path):
        """A value of one batch is handed over two steps later; one of an earlier epoch is read at the end."""

        def training_step(self, batch, batch_idx):
            if batch_idx == 1:
                self.accuracy(self.net(batch[0]), batch[1])
                self.log("rare", 7.1, prog_bar=True)
                self.log("rare_metric", self.accuracy)
            return self.loss(batch)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.02)

        def numbers(trainer):
            tensors = {**trainer.logged_metrics, **trainer.callback_metrics}
            return {name: value.item() for name, value in tensors.items()}, trainer.progress_bar_metrics

        arguments = {"log_every_n_steps": 4, "val_check_interval": 1.0, "check_val_every_n_epoch": 2, "max_epochs": 3}
        sparse, saves = subclass(Everything, training_step, configure_optimizers), SavesEverywhere(tmp_path)
        _, trainer = run(sparse(), trainer_for(saves, **arguments), loaders())
        assert {"rare", "rare_metric"} <= set(trainer.logger.rows[0][1])
        assert trainer.progress_bar_metrics == {"rare": 7.1}
        for step in (2, 3, 15):
            _, again = run(sparse(), trainer_for(**arguments), loaders(), tmp_path / f"{step}.ckpt", seed=5)
            assert again.logger.rows == trainer.logger.rows[saves.rows[step] :], f"resumed after step {step}"
            assert numbers(again) == numbers(trainer), f"resumed after step {step}"

    @pytest.mark.parametrize("own", [0, 1])
    def test_from_the_start_of_an_epoch_with_a_generator_of_its_own(self, tmp_path, own):
        """The loader has drawn a seed already, its sampler no order yet."""

        class Saves(Callback):
            def on_train_epoch_start(self, trainer, pl_module):
                trainer.save_checkpoint(tmp_path / f"{trainer.current_epoch}.ckpt")

        def data():
            seeded = [{}, {"generator": torch.Generator().manual_seed(4)}]
            return [loader(20, shuffle=True, **seeded[own]), loader(20, shuffle=True, **seeded[1])], loaders()[1]

        def training_step(self, batch, batch_idx):
            return sum(Everything.training_step(self, one, batch_idx) for one in batch)

        class Begun(Callback):
            def __init__(self):
                self.epochs = []

            def on_train_epoch_start(self, trainer, pl_module):
                self.epochs.append(trainer.current_epoch)

        two = subclass(Everything, training_step)
        torch.manual_seed(1)
        whole, trainer = run(two(), trainer_for(Saves()), data())
        for epoch in (0, 1):
            begun = Begun()
            module, _ = run(two(), trainer_for(begun), data(), tmp_path / f"{epoch}.ckpt", seed=5)
            assert same_weights(module, whole), f"resumed in epoch {epoch}"
            assert begun.epochs == list(range(epoch + 1, trainer.current_epoch)), "the hook ran twice"

    @pytest.mark.parametrize("precision", ["bf16-true", "64-true"])
    @pytest.mark.parametrize("kind", ["NAdam", "ASGD"])
    def test_what_an_optimizer_keeps_in_another_dtype_than_its_parameters(self, tmp_path, kind, precision):
        """It is cast to that of the parameter by torch when it is loaded."""
        make = getattr(torch.optim, kind)

        def net():
            return Net(lambda parameters: make(parameters, lr=0.02))

        saves, arguments = SavesEverywhere(tmp_path), {"precision": precision, "limit_val_batches": 0}
        whole, trainer = run(net(), trainer_for(saves, **arguments), [loader(28)])
        module, again = run(net(), trainer_for(**arguments), [loader(28)], tmp_path / "3.ckpt")
        assert same_weights(module, whole)
        same_states(again, trainer)
        dtypes = {value.dtype for state in trainer.optimizers[0].state.values() for value in state.values()}
        assert len(dtypes) > 1, "all have one dtype here, so this test shows nothing"

    def test_another_precision_casts_what_an_optimizer_keeps(self, tmp_path):
        def net():
            return Net(lambda parameters: torch.optim.Adam(parameters, foreach=True))

        run(net(), trainer_for(SavesEverywhere(tmp_path), limit_val_batches=0), [loader(28)])
        other = trainer_for(precision="bf16-true", limit_val_batches=0)
        with pytest.warns(UserWarning, match="precision: '32-true' then, 'bf16-true' now"):
            run(net(), other, [loader(28)], tmp_path / "3.ckpt")
        assert all(state["exp_avg"].dtype == torch.bfloat16 for state in other.optimizers[0].state.values())

    def test_with_loaders_that_are_made_anew(self, tmp_path):
        """Every second epoch another data set, which depends on the epoch."""

        def train_dataloader(self):
            seen.append(self.current_epoch)
            x, y = samples(12, seed=self.current_epoch)
            return DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True)

        arguments = {"max_epochs": 5, "reload_dataloaders_every_n_epochs": 2, "limit_val_batches": 0}
        reloads, seen, saves = subclass(Everything, train_dataloader), [], SavesEverywhere(tmp_path)
        whole, trainer = run(reloads(), trainer_for(saves, **arguments), ())
        assert seen == [0, 2, 4]
        for step in (1, 3, 7, 13):
            module, again = run(reloads(), trainer_for(**arguments), (), tmp_path / f"{step}.ckpt", seed=5)
            assert same_weights(module, whole), f"resumed after step {step}"
            assert again.logger.rows == trainer.logger.rows[saves.rows[step] :]

    def test_with_another_sampler(self, tmp_path):
        def data():
            weighted = WeightedRandomSampler(torch.arange(1.0, 27.0), 26)
            return loaders(shuffle=False, sampler=weighted)

        check_every_step(tmp_path, data)

    def test_with_a_batch_sampler(self, tmp_path):
        def data():
            sampler = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(range(26)), 5, drop_last=True)
            return loaders(batch_size=1, shuffle=False, batch_sampler=sampler)

        check_every_step(tmp_path, data)

    def test_without_a_length(self, tmp_path):
        check_every_step(tmp_path, lambda: (Unsized(batches(7)), loaders()[1]), accumulate_grad_batches=2)

    def test_with_several_loaders(self, tmp_path):
        def training_step(self, batch, batch_idx):
            return sum(Everything.training_step(self, batch[name], batch_idx) for name in ("a", "b"))

        def data():
            return {"a": loader(20, shuffle=True), "b": loader(10, shuffle=True)}, loaders()[1]

        two, saves = subclass(Everything, training_step), SavesEverywhere(tmp_path)
        torch.manual_seed(1)
        whole, trainer = run(two(), trainer_for(saves), data())
        for step, rows in saves.rows.items():
            module, again = run(two(), trainer_for(), data(), tmp_path / f"{step}.ckpt", seed=5)
            assert same_weights(module, whole), f"resumed after step {step}"
            assert again.logger.rows == trainer.logger.rows[rows:]


class TestOtherWaysToOptimize:
    def check(self, folder, make, **arguments):
        saves = SavesEverywhere(folder)
        data = lambda: [loader(22, shuffle=True)]  # noqa: E731
        whole, trainer = run(make(), trainer_for(saves, limit_val_batches=0, **arguments), data())
        assert saves.rows
        for step in saves.rows:
            module, again = run(
                make(), trainer_for(limit_val_batches=0, **arguments), data(), folder / f"{step}.ckpt", seed=5
            )
            assert same_weights(module, whole), f"resumed after step {step}"
            assert again.progress == trainer.progress

    @pytest.mark.filterwarnings("ignore:precision='16-mixed' computes in float16 on the CPU")
    def test_loss_scaling(self, tmp_path):
        settings = {"init_scale": 2.0**18, "growth_interval": 3}
        self.check(tmp_path, lambda: Net(dropout=0.2), plugins=MixedPrecision("16-mixed", scaler=settings))

    def test_manual(self, tmp_path):
        def training_step(self, batch, batch_idx):
            one, other = self.optimizers()
            optimizer = one if batch_idx % 2 else other
            optimizer.zero_grad()
            self.manual_backward(Net.training_step(self, batch, batch_idx))
            optimizer.step()

        def configure_optimizers(self):
            return torch.optim.Adam(self.net[0].parameters()), torch.optim.Adam(self.net[3].parameters())

        by_hand = subclass(Net, training_step, configure_optimizers, automatic_optimization=False)
        self.check(tmp_path, lambda: by_hand(dropout=0.2))

    def test_lbfgs(self, tmp_path):
        self.check(tmp_path, lambda: Net(lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3), dropout=0.2))

    def test_weighted_losses(self, tmp_path):
        def training_step(self, batch, batch_idx):
            return {"loss": Net.training_step(self, batch, batch_idx) * len(batch[1]), "weight": len(batch[1])}

        self.check(tmp_path, lambda: with_methods(Net(dropout=0.2), training_step), accumulate_grad_batches=2)


class TestFiles:
    def test_at_the_end_of_epochs_from_a_model_checkpoint(self, tmp_path):
        def checkpoint():
            return ModelCheckpoint(tmp_path, "{epoch}", monitor="val_loss", save_top_k=-1, save_last=True)

        arguments = {"max_epochs": 3, "val_check_interval": 1.0, "enable_checkpointing": True}
        first = checkpoint()
        whole, trainer = run(fresh(), trainer_for(first, **arguments), loaders())
        assert {path.name for path in tmp_path.iterdir()} == {
            "epoch=0.ckpt",
            "epoch=1.ckpt",
            "epoch=2.ckpt",
            "last.ckpt",
        }
        for epoch in (0, 1):
            second = checkpoint()
            second.enable_version_counter = False
            module, again = run(
                fresh(99), trainer_for(second, **arguments), loaders(), tmp_path / f"epoch={epoch}.ckpt", seed=5
            )
            assert same_weights(module, whole)
            same_states(again, trainer)
            ours, theirs = second.state_dict(), first.state_dict()
            assert {**ours, "lightlib": None} == {**theirs, "lightlib": None}  # the lists of files to remove differ

    def test_more_epochs_than_the_saved_run_had(self, tmp_path):
        _, first = run(fresh(), trainer_for(max_epochs=2), loaders())
        first.save_checkpoint(tmp_path / "two.ckpt")
        module, _ = run(fresh(99), trainer_for(max_epochs=3), loaders(), tmp_path / "two.ckpt", seed=5)
        whole, _ = run(fresh(), trainer_for(max_epochs=3), loaders())
        assert same_weights(module, whole)

    def test_the_same_trainer_goes_on(self):
        validates = subclass(validation_step=lambda self, batch, batch_idx: None)
        module = validates(dropout=0.3)
        trainer = quiet_trainer(max_epochs=-1, max_steps=5)
        torch.manual_seed(11)
        data = loader(28, shuffle=True)
        trainer.fit(module, data, batches(1))
        assert (trainer.current_epoch, trainer.progress.epoch_batch) == (0, 5)
        trainer.validate(module, batches(1), verbose=False)
        trainer.max_steps = 14
        trainer.fit(module, data, batches(1))
        whole = validates(dropout=0.3)
        torch.manual_seed(11)
        quiet_trainer(max_epochs=-1, max_steps=14).fit(whole, loader(28, shuffle=True), batches(1))
        assert same_weights(module, whole)

    def test_what_the_file_holds(self, tmp_path):
        run(fresh(), trainer_for(SavesEverywhere(tmp_path)), loaders())
        content = torch.load(tmp_path / "5.ckpt", weights_only=True)
        assert list(content) == [
            "epoch",
            "global_step",
            "pytorch-lightning_version",
            "state_dict",
            "loops",
            "optimizer_states",
            "lr_schedulers",
            "callbacks",
            "lightlib",
        ]
        assert (content["epoch"], content["global_step"]) == (0, 5)
        fit = content["loops"]["fit_loop"]
        assert set(content["loops"]) == {"fit_loop", "validate_loop", "test_loop", "predict_loop"}
        assert fit["epoch_loop.batch_progress"]["current"] == {
            "ready": 5, "completed": 5, "started": 5, "processed": 5,
        }  # fmt: skip
        assert fit["epoch_loop.state_dict"] == {"_batches_that_stepped": 5}
        assert content["lightlib"]["progress"] == {
            "epoch": 0,
            "epoch_batch": 5,
            "batch": 5,
            "step": 5,
            "validated": 3,
            "begun": 1,
        }
        assert content["lightlib"]["data"]["samples"] == 20


class TestStartedAgain:
    """A launcher restarts the same command after a failure: one line of code starts and resumes."""

    def trainer(self, folder, epochs=2):
        keeps = ModelCheckpoint(folder, every_n_train_steps=2, save_last=True)
        return quiet_trainer(max_epochs=epochs, enable_checkpointing=None, callbacks=keeps)

    def test_last_is_the_last_one_if_there_is_one(self, tmp_path, monkeypatch, caplog):
        caplog.set_level("INFO", "lightlib")
        monkeypatch.setenv("SLURM_JOB_ID", "1")
        first, second = self.trainer(tmp_path), self.trainer(tmp_path, 3)
        first.fit(Net(), loader(6), ckpt_path="last")
        said = f"ckpt_path='last': there is no last checkpoint in '{tmp_path}', so the run begins from nothing."
        assert said in caplog.messages
        caplog.clear()
        second.fit(Net(), loader(6), ckpt_path="last")
        assert (first.global_step, second.global_step, second.current_epoch) == (4, 6, 3)
        assert said not in caplog.messages

    def test_elsewhere_it_has_to_be_there(self, tmp_path):
        with pytest.raises(CheckpointError, match="there is no last checkpoint"):
            self.trainer(tmp_path).fit(Net(), loader(6), ckpt_path="last")


class TestSignals:
    @pytest.mark.processes
    @pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
    def test_stopped_and_resumed(self, tmp_path, number, code):
        process = Program("-m", "tests.runs.resumable", tmp_path, cwd=tmp_path)
        try:
            assert "batch 8\n" in process.stdout
            process.send_signal(number)
            (tmp_path / "sent").touch()
            _, errors = process.communicate()
        finally:
            process.kill()
        assert process.returncode == code, errors
        path = tmp_path / "interrupted.ckpt"
        assert f'trainer.fit(module, …, ckpt_path="{path}")' in errors
        saved = torch.load(path, weights_only=True)["lightlib"]["progress"]
        assert saved["batch"] == 9  # the second epoch's windows end after batches 9, 11, 13 and 14

        arguments = {"accumulate_grad_batches": 2}
        callback = ModelCheckpoint(tmp_path, save_top_k=0)
        more = {"enable_checkpointing": True, **arguments}
        module, again = run(fresh(99), trainer_for(callback, **more), loaders(), path, seed=5)
        whole, trainer = run(fresh(), trainer_for(**arguments), loaders())
        assert same_weights(module, whole)
        same_states(again, trainer)


class TestTheUsersObjects:
    @pytest.mark.processes
    @pytest.mark.parametrize(
        "arguments", [{"shuffle": True}, {"num_workers": 2, "persistent_workers": True}, {"batch_size": None}], ids=str
    )
    def test_a_loader_is_left_as_it_was(self, arguments):
        data = DataLoader(TensorDataset(*samples(8)), **{"batch_size": 4, **arguments})
        before = dict(vars(data))
        quiet_trainer().fit(Net(), data)
        assert vars(data) == before
        assert all(vars(data)[name] is value for name, value in before.items())

    @pytest.mark.processes
    def test_a_loader_whose_workers_run_already(self, tmp_path):
        train, val = loaders(workers=2, persistent_workers=True)
        next(iter(train))
        started = train._iterator
        check_every_step(tmp_path, lambda: (train, val), only=(3, 7, 9))
        assert train._iterator is started
        started._shutdown_workers()
