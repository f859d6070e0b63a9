"""The steps of schedules, the values that plateau schedulers read, and the warnings about both."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.optim import SGD
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR, MultiStepLR, ReduceLROnPlateau, SequentialLR, StepLR

from lightlib.core.optimization.schedules import SchedulerConfig, Schedules
from lightlib.core.progress.plan import Plan
from lightlib.core.progress.progress import Progress
from lightlib.errors import MisconfigurationException
from tests.runs.plain import Net, Unsized, batches, calling, quiet_trainer, scheduled, subclass, with_methods
from tests.runs.steps import OwnSchedule


class TestWhen:
    @pytest.mark.parametrize(
        ("interval", "frequency", "count"), [("step", 1, 6), ("step", 4, 1), ("epoch", 1, 3), ("epoch", 2, 1)]
    )
    def test_counts(self, interval, frequency, count):
        own = OwnSchedule()

        def configure(parameters):
            return [SGD(parameters, lr=0.1)], [{"scheduler": own, "interval": interval, "frequency": frequency}]

        quiet_trainer(max_epochs=3, accumulate_grad_batches=2).fit(Net(configure), batches(4))
        assert own.count == count

    def test_unknown_length(self):
        own = OwnSchedule()
        quiet_trainer(max_epochs=2).fit(Net(lambda p: ([SGD(p, lr=0.1)], [own])), Unsized(batches(3)))
        assert own.count == 2

    def test_not_in_an_epoch_that_is_cut(self):
        own = OwnSchedule()
        quiet_trainer(max_steps=5, max_epochs=-1).fit(Net(lambda p: ([SGD(p, lr=0.1)], [own])), batches(4))
        assert own.count == 1

    def test_not_in_manual_optimization(self):
        def training_step(self, batch, batch_idx):
            self.optimizers().step()

        own = OwnSchedule()
        trainer = quiet_trainer()
        module = with_methods(
            Net(lambda p: ([SGD(p, lr=0.1)], [{"scheduler": own, "interval": "step"}])),
            training_step,
            automatic_optimization=False,
        )
        trainer.fit(module, batches(2))
        assert own.count == 0
        assert trainer.lr_scheduler_configs[0].scheduler is own

    @pytest.mark.filterwarnings("ignore:precision='16-mixed' computes in float16 on the CPU")
    def test_not_when_the_scaler_skipped_the_step(self):
        def on_after_backward(self):
            if self.trainer.progress.batch in (0, 2):
                self.net[0].weight.grad[0, 0] = torch.inf

        own = OwnSchedule()

        def configure(parameters):
            return [SGD(parameters, lr=0.1)], [{"scheduler": own, "interval": "step"}]

        trainer = quiet_trainer(precision="16-mixed")
        trainer.fit(with_methods(Net(configure), on_after_backward), batches(5))
        assert own.count == trainer.global_step == 3


class Plateau(Net):
    """Logs a number in training or validation; a plateau scheduler reads it."""

    def __init__(self, values, logs, interval="epoch", monitor="x", **config):
        def configure(parameters):
            optimizer = SGD(parameters, lr=1.0)
            plateau = ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
            config_ = {"scheduler": plateau, "interval": interval, "monitor": monitor, **config}
            return {"optimizer": optimizer, "lr_scheduler": config_}

        super().__init__(configure)
        self.values, self.logs = values, logs

    def training_step(self, batch, batch_idx):
        if self.logs == "step":
            self.log("x", self.values[self.global_step])
        elif self.logs == "epoch":
            self.log("x", self.values[self.current_epoch], on_step=False, on_epoch=True)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        if self.logs == "validation":
            self.log("x", self.values[self.current_epoch])

    def rates(self, **arguments):
        trainer = quiet_trainer(max_epochs=3, **arguments)
        trainer.fit(self, batches(1), batches(1))
        return trainer.optimizers[0].param_groups[0]["lr"]


class TestPlateau:
    @pytest.mark.parametrize("logs", ["epoch", "validation", "step"])
    @pytest.mark.parametrize(
        ("values", "rate"), [([3.0, 2.0, 1.0], 1.0), ([1.0, 2.0, 3.0], 0.25), ([1.0, 2.0, 0.5], 0.5)]
    )
    def test_reads_the_value_of_the_epoch(self, logs, values, rate):
        assert Plateau(values, logs).rates() == rate

    def test_at_every_step(self):
        assert Plateau([1.0, 2.0, 3.0], "step", interval="step").rates() == 0.25

    def test_with_a_frequency(self):
        # reads after the second epoch only
        assert Plateau([1.0, 2.0, 3.0], "validation", frequency=2).rates(check_val_every_n_epoch=2) == 1.0

    def test_is_a_warning_when_it_is_not_strict(self):
        with pytest.warns(UserWarning, match="reads 'y', which was not logged.*the learning rate does not change"):
            assert Plateau([1.0] * 3, "validation", monitor="y", strict=False).rates() == 1.0

    def test_an_object_of_ones_own_that_takes_the_value(self):
        class Reads(OwnSchedule):
            def step(self, value):
                seen.append(float(value))

        def training_step(self, batch, batch_idx):
            self.log("x", float(self.current_epoch), on_step=False, on_epoch=True)

        seen = []

        def configure(parameters):
            return [SGD(parameters, lr=0.1)], [{"scheduler": Reads(), "reduce_on_plateau": True, "monitor": "x"}]

        quiet_trainer(max_epochs=3).fit(calling(Net(configure), training_step), batches(1))
        assert seen == [0.0, 1.0, 2.0]


class TestSaid:
    def lines(self, caplog, configure, **arguments):
        with caplog.at_level("INFO", logger="lightlib"):
            quiet_trainer(max_epochs=2, **arguments).fit(Net(configure), batches(4))
        return [message for message in caplog.messages if "LR" in message or "Own" in message]

    @pytest.mark.parametrize(
        ("config", "line"),
        [
            ({}, "ExponentialLR: every epoch = 2 optimizer steps"),
            ({"frequency": 2}, "ExponentialLR: every 2 epochs = 4 optimizer steps"),
            ({"interval": "step"}, "ExponentialLR: every optimizer step"),
            ({"interval": "step", "frequency": 3}, "ExponentialLR: every 3 optimizer steps"),
        ],
    )
    def test_every_schedule_in_one_line(self, caplog, config, line):
        configure = scheduled(partial(ExponentialLR, gamma=0.9), **config)
        assert self.lines(caplog, configure, accumulate_grad_batches=2) == [line]

    def test_once_however_often_it_runs(self, caplog):
        module, trainer = Net(scheduled(partial(StepLR, step_size=1))), quiet_trainer()
        with caplog.at_level("INFO", logger="lightlib"):
            for epochs in (1, 2, 3):
                trainer.max_epochs = epochs
                trainer.fit(module, batches(4))
        assert [message for message in caplog.messages if "StepLR" in message] == [
            "StepLR: every epoch = 4 optimizer steps"
        ]

    def test_all_kinds(self):
        optimizer = SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
        configs = [
            SchedulerConfig(ReduceLROnPlateau(optimizer), monitor="x", reduce_on_plateau=True),
            SchedulerConfig(LambdaLR(optimizer, lambda step: 1.0)),
        ]
        assert Schedules(configs, lambda *_: None, dict).describe(Plan()) == [
            "ReduceLROnPlateau: every epoch, reads 'x'",
            "LambdaLR: every epoch",
        ]
        assert Schedules(configs, lambda *_: None, dict, automatic=False).describe(Plan()) == [
            "ReduceLROnPlateau: stepped by the module (manual optimization)",
            "LambdaLR: stepped by the module (manual optimization)",
        ]


def test_state_of_schedules_goes_back():
    one, other = OwnSchedule(), OwnSchedule()
    schedules = Schedules([SchedulerConfig(one, interval="step"), SchedulerConfig(other)], lambda s, _: s.step(), dict)
    schedules.step_batch(Progress())
    state = schedules.state_dict()
    assert state == [{"count": 1}, {"count": 0}]
    fresh = Schedules([SchedulerConfig(OwnSchedule()), SchedulerConfig(OwnSchedule())], lambda *_: None, dict)
    fresh.load_state_dict(state)
    assert fresh.state_dict() == state


@pytest.mark.parametrize("within_others", [False, True])
def test_a_checkpoint_with_milestones_is_read_as_plain_values(tmp_path, within_others):
    def configure(parameters):
        optimizer = SGD(parameters, lr=1.0)
        schedule = MultiStepLR(optimizer, [1, 2, 2])
        if within_others:
            schedule = SequentialLR(optimizer, [schedule, StepLR(optimizer, 1)], [9])
        return [optimizer], [schedule]

    trainer = quiet_trainer(max_epochs=1)
    trainer.fit(Net(configure), batches(1))
    trainer.save_checkpoint(tmp_path / "end.ckpt")  # a warning would be an error
    torch.load(tmp_path / "end.ckpt", weights_only=True)
    resumed = quiet_trainer(max_epochs=3)
    resumed.fit(Net(configure), batches(1), ckpt_path=tmp_path / "end.ckpt")
    assert resumed.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.001)


class Validated(Net):
    """Its validations log 1, 2, 3, …; a schedule notes each value that it reads, and the batch before which it did."""

    def __init__(self, interval, frequency):
        read = self.read = []

        class Reads(OwnSchedule):
            def step(self, value):
                read.append((float(value), module.trainer.progress.batch))

            def state_dict(self):
                return {}

            def load_state_dict(self, state):
                pass

        module, config = self, {"interval": interval, "frequency": frequency, "reduce_on_plateau": True, "monitor": "x"}
        super().__init__(lambda p: ([SGD(p, lr=0.1)], [{"scheduler": Reads(), **config}]))

    def validation_step(self, batch, batch_idx):
        self.log("x", float(self.trainer.progress.batch))


class TestValidationsWithinAnEpoch:
    """A schedule that reads a metric of the validation at its batch steps after that validation."""

    @pytest.mark.parametrize(
        ("interval", "frequency", "arguments", "read"),
        [
            ("step", 2, {"val_check_interval": 2}, [2, 4, 6, 8]),
            ("step", 4, {"val_check_interval": 2}, [4, 8]),
            ("step", 2, {"val_check_interval": 4, "accumulate_grad_batches": 2}, [4, 8]),
            ("batch", 2, {"val_check_interval": 2}, [2, 4, 6, 8]),
            ("batch", 4, {"val_check_interval": 2, "accumulate_grad_batches": 2}, [4, 8]),
            ("step", 4, {}, [4, 8]),
            ("step", 4, {"val_check_interval": 4, "check_val_every_n_epoch": None}, [4, 8]),
            ("step", 8, {"check_val_every_n_epoch": 2}, [8]),
            ("step", 3, {"max_steps": 3, "val_check_at_end": True}, [3]),
        ],
    )
    def test_it_is_never_one_validation_late(self, interval, frequency, arguments, read):
        module = Validated(interval, frequency)
        quiet_trainer(**{"max_epochs": 2, **arguments}).fit(module, batches(4), batches(1))
        assert module.read == [(float(n), n) for n in read]

    def test_a_step_without_a_validation_reads_the_last_one(self):
        module = Validated("step", 1)
        quiet_trainer(max_epochs=1, val_check_interval=1, limit_train_batches=1).fit(module, batches(4), batches(1))
        quiet = quiet_trainer(max_epochs=1, val_check_interval=2)
        with pytest.raises(MisconfigurationException, match="reads 'x', which was not logged"):
            quiet.fit(Validated("step", 1), batches(4), batches(1))
        late = Validated("step", 3)
        quiet_trainer(max_epochs=2, val_check_interval=2).fit(late, batches(4), batches(1))
        assert (module.read, late.read) == ([(1.0, 1)], [(2.0, 2), (6.0, 6)])

    def test_a_checkpoint_within_the_validation(self, tmp_path):
        """The resumed run validates again, and then steps, once."""

        def on_validation_batch_end(self, outputs, batch, batch_idx):
            if self.trainer.progress.batch == 2:
                self.trainer.save_checkpoint(tmp_path / "within.ckpt")

        def fit(kind, **arguments):
            module = kind("step", 2)
            trainer = quiet_trainer(max_epochs=1, val_check_interval=2, num_sanity_val_steps=0)
            trainer.fit(module, batches(4), batches(1), **arguments)
            return module.read

        assert fit(subclass(Validated, on_validation_batch_end)) == [(2.0, 2), (4.0, 4)]
        assert fit(Validated, ckpt_path=tmp_path / "within.ckpt") == [(2.0, 2), (4.0, 4)]
