"""Attributes of a Trainer, its helpers, and the moments at which a checkpoint may be taken."""

from __future__ import annotations

import math
import os

import pytest
import torch

from lightlib.callbacks import Callback
from lightlib.errors import MisconfigurationException
from lightlib.loggers import CSVLogger
from tests.runs.bad_input import refused
from tests.runs.plain import Net, batches, calling, loader, quiet_trainer, with_methods
from tests.runs.steps import Keeps, Steps, on


class TestViews:
    def test_before_any_run(self):
        trainer = quiet_trainer(max_epochs=3)
        assert (trainer.current_epoch, trainer.global_step, trainer.should_stop) == (0, 0, False)
        assert trainer.num_training_batches == math.inf
        assert (trainer.num_val_batches, trainer.num_sanity_val_batches) == ([], [])
        assert trainer.callback_metrics == trainer.logged_metrics == trainer.progress_bar_metrics == {}
        assert trainer.optimizers == trainer.lr_scheduler_configs == []
        for name in ("lightning_module", "model", "datamodule", "logger", "scaler", "gradient_norm", "train_dataloader",
                     "val_dataloaders", "progress_bar_callback", "checkpoint_callback", "val_check_batch"):  # fmt: skip
            assert getattr(trainer, name) is None, name
        assert (trainer.elapsed, trainer.data_wait) == (0.0, 0.0)
        assert (trainer.world_size, trainer.global_rank, trainer.num_devices, trainer.device_ids) == (1, 0, 1, [0])
        assert trainer.precision == "32-true"

    def test_the_number_of_steps_before_any_run(self):
        with refused(
            MisconfigurationException,
            "estimated_stepping_batches was read before fit: with max_epochs=3 it depends on the number of training "
            "batches.",
            "to be read in configure_optimizers, or later.",
            "move it into configure_optimizers, or use a schedule factory: lambda optimizer, total_steps: ….",
        ):
            _ = quiet_trainer(max_epochs=3).estimated_stepping_batches
        assert quiet_trainer(max_epochs=-1).estimated_stepping_batches == math.inf
        assert quiet_trainer(max_epochs=-1, max_steps=7).estimated_stepping_batches == 7

    def test_limits_are_those_of_the_arguments(self):
        trainer = quiet_trainer(max_epochs=3, limit_val_batches=7, gradient_clip_val=0.5, accumulate_grad_batches=2)
        assert (trainer.max_epochs, trainer.max_steps, trainer.min_epochs) == (3, -1, None)
        assert (trainer.limit_val_batches, trainer.limit_train_batches) == (7, 1.0)
        assert (trainer.gradient_clip_val, trainer.accumulate_grad_batches, trainer.log_every_n_steps) == (0.5, 2, 50)

    def test_numbers_of_batches(self):
        seen = {}

        def look(trainer, module):
            seen.update(train=trainer.num_training_batches, val=trainer.num_val_batches, every=trainer.val_check_batch)
            seen.update(sanity=trainer.num_sanity_val_batches)

        limits = {"limit_train_batches": 4, "limit_val_batches": 2, "num_sanity_val_steps": 1}
        trainer = quiet_trainer(**limits, val_check_interval=0.5, callbacks=[on(on_train_start=look)])
        trainer.fit(Steps(), batches(6), [loader(12), loader(4)])
        assert seen == {"train": 4, "val": [2, 1], "every": 2, "sanity": [1, 1]}
        trainer.test(trainer.model, batches(3), verbose=False)
        assert trainer.num_test_batches == [3]

    def test_the_sanity_check_has_batches_in_a_fit_alone(self):
        trainer = quiet_trainer(num_sanity_val_steps=2)
        trainer.validate(Steps(), batches(3), verbose=False)
        assert (trainer.num_val_batches, trainer.num_sanity_val_batches) == ([3], [])
        trainer.fit(trainer.model, batches(1), batches(3))
        trainer.test(trainer.model, batches(1), verbose=False)
        assert trainer.num_sanity_val_batches == [2]

    def test_processes_on_one_cpu_are_numbered(self):
        assert quiet_trainer(devices=2).device_ids == [0, 1]

    def test_numbers_and_loaders_in_configure_optimizers(self):
        seen = []

        def configure_optimizers(self):
            trainer = self.trainer
            seen.append((trainer.num_training_batches, trainer.train_dataloader, trainer.num_val_batches))

        first, second = batches(2), batches(3)
        trainer, module = quiet_trainer(), calling(Steps, configure_optimizers)
        trainer.fit(module, first, batches(1))
        trainer.fit(module, second, batches(4))
        assert [(number, len(data), val) for number, data, val in seen] == [(2, 2, [1]), (3, 3, [4])]
        assert all(seen[i][1] is data for i, data in enumerate((first, second)))

    def test_loaders_are_those_that_were_given(self):
        train, val, trainer = batches(2), batches(1), quiet_trainer()
        trainer.fit(Steps(), train, val)
        assert trainer.train_dataloader is train
        assert trainer.val_dataloaders is val
        trainer.predict(trainer.model, val)
        assert trainer.predict_dataloaders is val

    @pytest.mark.parametrize(("limit", "marks"), [(1.0, [0, 0, 0, 1]), (2, [0, 1])])
    def test_is_last_batch(self, limit, marks):
        seen = []

        sees = calling(Net, training_step=lambda self, batch, batch_idx: seen.append(int(self.trainer.is_last_batch)))
        quiet_trainer(limit_train_batches=limit, max_epochs=2).fit(sees, batches(4))
        assert seen == marks * 2

    def test_an_evaluation_leaves_what_belongs_to_the_training(self):
        module, trainer, train = Steps(), quiet_trainer(), batches(2)
        trainer.fit(module, train, batches(1))
        (optimizer,) = trainer.optimizers
        trainer.test(module, batches(3), verbose=False)
        assert trainer.optimizers == [optimizer]
        assert trainer.train_dataloader is train
        assert (trainer.num_training_batches, trainer.estimated_stepping_batches) == (2, 2)
        trainer.test(Steps(), batches(3), verbose=False)
        assert trainer.optimizers == []

    def test_what_was_part_of_lightnings_inside(self):
        trainer = quiet_trainer()
        with pytest.raises(
            AttributeError, match=r"'Trainer' object has no attribute 'fit_loop'.*use `trainer\.progress`"
        ):
            trainer.fit_loop  # noqa: B018  the property raises
        with pytest.raises(AttributeError, match=r"^'Trainer' object has no attribute 'nothing'\.$"):
            trainer.nothing  # noqa: B018  the property raises

    def test_log_dir(self, tmp_path):
        assert quiet_trainer(default_root_dir=tmp_path).log_dir == str(tmp_path)
        logger = CSVLogger(tmp_path, name="a", version=3)
        assert quiet_trainer(logger=logger).log_dir == os.path.join(tmp_path, "a", "version_3")

    def test_loggers_can_be_set(self, tmp_path):
        trainer, logger = quiet_trainer(), Keeps()
        trainer.logger = logger
        assert (trainer.logger, trainer.loggers) == (logger, [logger])
        trainer.loggers = None
        assert (trainer.logger, trainer.loggers) == (None, [])


class TestHelpers:
    def test_print_without_a_bar(self, capsys):
        quiet_trainer().print("a", 1, sep="-")
        assert capsys.readouterr().out == "a-1\n"

    def test_init_module(self):
        with quiet_trainer(precision="64-true").init_module():
            assert torch.nn.Linear(1, 1).weight.dtype is torch.float64
        assert torch.nn.Linear(1, 1).weight.dtype is torch.float32

    def test_log_metrics_now(self):
        logger, told = Keeps(), []

        def log(trainer, module, *_):
            trainer.log_metrics_now({"now": torch.tensor(1.5), "other": 2}, step=7)
            trainer.log_metrics_now({"now": 3.0})

        callback = on(on_train_batch_end=log, on_log=lambda trainer, module, metrics: told.append(metrics))
        quiet_trainer(logger=logger, callbacks=[callback]).fit(Net(), batches(1))
        assert logger.given == [(7, {"now": 1.5, "other": 2.0, "epoch": 0}), (1, {"now": 3.0, "epoch": 0})]
        assert told == [metrics for _, metrics in logger.given]

    def test_rebuild_hooks(self):
        calls = []

        def patch(trainer, module):
            module.on_train_batch_start = lambda batch, batch_idx: calls.append(batch_idx)
            trainer.rebuild_hooks()

        quiet_trainer(callbacks=[on(on_train_start=patch)]).fit(Net(), batches(2))
        assert calls == [0, 1]

    def test_without_rebuilding_a_patched_hook_is_not_seen(self):
        calls = []

        def patch(trainer, module):
            module.on_train_batch_start = lambda batch, batch_idx: calls.append(batch_idx)

        quiet_trainer(callbacks=[on(on_train_start=patch)]).fit(Net(), batches(2))
        assert calls == []

    @pytest.mark.parametrize("change", ["append", "extend", "insert", "remove", "clear", "__iadd__"])
    def test_callbacks_are_closed_while_it_runs(self, change):
        def add(trainer, module):
            with pytest.raises(
                MisconfigurationException, match=r"trainer\.callbacks can no longer be changed; the run has started"
            ):
                getattr(trainer.callbacks, change)(Callback())

        trainer = quiet_trainer(callbacks=[on(on_train_start=add)])
        trainer.fit(Net(), batches(1))
        trainer.callbacks.append(Callback())
        assert len(trainer.callbacks) == 2

    def test_a_callback_added_between_two_runs_joins(self):
        trainer, module, calls = quiet_trainer(), Net(), []
        trainer.fit(module, batches(1))
        trainer.callbacks.append(on(on_train_start=lambda *_: calls.append(1)))
        for epochs in (2, 3):
            trainer.max_epochs = epochs
            trainer.fit(module, batches(1))
        assert calls == [1, 1]

    def test_the_table_of_hooks_can_be_printed(self):
        trainer = quiet_trainer(callbacks=[on(on_train_start=lambda *_: None)])
        trainer.fit(Steps(), batches(1), batches(1))
        assert "LambdaCallback" in str(trainer.hooks)


class TestSavePoint:
    def test_at_once_outside_of_training(self):
        calls, trainer = [], quiet_trainer()
        trainer.at_save_point(lambda: calls.append("before"))
        trainer.fit(Net(), batches(1))
        trainer.at_save_point(lambda: calls.append("after"))
        assert calls == ["before", "after"]

    @pytest.mark.parametrize(
        ("hook", "batch", "expected"),
        [
            ("on_train_batch_start", 0, (0, 2, 1, 1)),  # at the end of the accumulation window, after its validation
            ("on_train_batch_end", 1, (0, 2, 1, 1)),
            ("on_train_batch_end", 2, (0, 4, 2, 2)),
        ],
    )
    def test_within_a_window_at_its_end(self, hook, batch, expected):
        seen, validations = [], []

        class Asks(Callback):
            def on_validation_end(self, trainer, pl_module):
                validations.append(trainer.global_step)

        def ask(self, trainer, pl_module, *args):
            if args[-1] == batch:
                p = trainer.progress
                trainer.at_save_point(lambda: seen.append((p.epoch, p.epoch_batch, p.step, len(validations))))

        setattr(Asks, hook, ask)
        trainer = quiet_trainer(accumulate_grad_batches=2, val_check_interval=2, callbacks=[Asks()])
        trainer.fit(Steps(), batches(4), batches(1))
        assert seen == [expected]

    def test_in_a_validation_after_it(self):
        order = []

        class Asks(Callback):
            def on_validation_end(self, trainer, pl_module):
                trainer.at_save_point(lambda: order.append("saved"))
                order.append("validated")

            def on_train_epoch_end(self, trainer, pl_module):
                order.append("epoch")

        quiet_trainer(callbacks=[Asks()]).fit(Steps(), batches(2), batches(1))
        assert order == ["validated", "saved", "epoch"]

    def test_at_the_end_of_an_epoch_when_it_is_counted(self):
        seen = []

        class Asks(Callback):
            def on_train_epoch_end(self, trainer, pl_module):
                trainer.at_save_point(lambda: seen.append(trainer.current_epoch))

        quiet_trainer(max_epochs=2, callbacks=[Asks()]).fit(Net(), batches(2))
        assert seen == [1, 2]

    def test_what_is_asked_while_saving_runs_at_once(self):
        seen = []

        class Asks(Callback):
            def on_train_batch_end(self, trainer, *_):
                trainer.at_save_point(lambda: trainer.at_save_point(lambda: seen.append(trainer.global_step)))

        quiet_trainer(callbacks=[Asks()]).fit(Net(), batches(2))
        assert seen == [1, 2]


@pytest.mark.filterwarnings("ignore::lightlib.report.LightlibWarning")
class TestState:
    def test_stage(self):
        stages = []

        def on_train_start(self):
            self.note()

        def training_step(self, batch, batch_idx):
            self.note()
            return Net.training_step(self, batch, batch_idx)

        def validation_step(self, batch, batch_idx):
            self.note()

        def note(self):
            stages.append((self.trainer.state.fn, self.trainer.state.stage, self.trainer.training))

        trainer = quiet_trainer(num_sanity_val_steps=1)
        trainer.fit(with_methods(Net, on_train_start, training_step, validation_step, note), batches(1), batches(1))
        training, validating = ("fit", "train", True), ("fit", "validate", False)
        assert stages == [("fit", "sanity_check", False), training, training, validating]
        assert trainer.state.stage is None
