"""Schedules by batch, by hand, with begin and end, converted from epochs, and those of timm."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.optim import SGD
from torch.optim.lr_scheduler import (
    ConstantLR,
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiStepLR,
    PolynomialLR,
    StepLR,
)

from lightlib.core.optimization.schedules import SchedulerConfig, Schedules, step_scheduler
from lightlib.core.progress.plan import Plan
from lightlib.errors import MisconfigurationException
from tests.runs.plain import Net, batches, quiet_trainer, with_methods
from tests.runs.steps import OwnSchedule


class Recorded(Net):
    """Records the learning rate of each batch."""

    def on_train_batch_start(self, batch, batch_idx):
        self.rates = [*getattr(self, "rates", []), self.optimizers().param_groups[0]["lr"]]


def rates(*schedulers, num_batches=4, **arguments):
    module = Recorded(lambda parameters: ([SGD(parameters, lr=0.1)], list(schedulers)))
    quiet_trainer(**arguments).fit(module, batches(num_batches))
    return module.rates


def plain_rates(build, count, step_after):
    """Return the learning rate of `count` batches; the schedule steps after batch n if `step_after(n)`."""
    optimizer = SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    scheduler, values = build(optimizer), []
    for n in range(1, count + 1):
        values.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if step_after(n):
            scheduler.step()
    return values


class TestIntervals:
    @pytest.mark.parametrize(
        ("interval", "frequency", "count"), [("batch", 1, 15), ("batch", 4, 3), ("manual", 1, 0), ("step", 1, 9)]
    )
    def test_counts(self, interval, frequency, count):
        own = OwnSchedule()
        config = {"scheduler": own, "interval": interval, "frequency": frequency}
        rates(config, num_batches=5, max_epochs=3, accumulate_grad_batches=2)
        assert own.count == count

    def test_rates_by_batch(self):
        build = partial(ExponentialLR, gamma=0.9)
        found = rates({"scheduler": build, "interval": "batch"}, max_epochs=2, accumulate_grad_batches=3)
        assert found == plain_rates(build, 8, lambda n: True)

    def test_the_module_steps_a_manual_one(self):
        def on_train_batch_end(self, outputs, batch, batch_idx):
            if batch_idx == 1:
                self.lr_schedulers().step()

        build = partial(ExponentialLR, gamma=0.5)
        module = Recorded(lambda p: ([SGD(p, lr=0.1)], [{"scheduler": build, "interval": "manual"}]))
        quiet_trainer(max_epochs=2).fit(with_methods(module, on_train_batch_end), batches(4))
        assert module.rates == plain_rates(build, 8, lambda n: n in (2, 6))

    @pytest.mark.parametrize(
        ("entries", "text"),
        [
            ({"interval": "batch", "frequency": 2}, "OwnSchedule: every 2 batches"),
            ({"interval": "manual"}, 'OwnSchedule: stepped by the module (interval "manual")'),
            ({"begin": 1, "end": 2}, "OwnSchedule: every epoch = 4 optimizer steps, after epoch 1 and up to epoch 2"),
        ],
    )
    def test_descriptions(self, entries, text):
        config = SchedulerConfig(OwnSchedule(), **entries)
        assert Schedules([config], step_scheduler, dict).describe(Plan(num_batches=4, max_epochs=2)) == [text]

    def test_timms_description(self):
        config = SchedulerConfig(Timm(), counts=True)
        text = "Timm: counts every optimizer step and every epoch"
        assert Schedules([config], step_scheduler, dict).describe(Plan(num_batches=4, max_epochs=2)) == [text]

    @pytest.mark.parametrize("max_steps", [-1, 3, 4])
    def test_batches_of_the_run(self, max_steps):
        own = OwnSchedule()
        trainer = quiet_trainer(max_epochs=2, max_steps=max_steps, accumulate_grad_batches=3)
        trainer.fit(Net(lambda p: ([SGD(p, lr=0.1)], [{"scheduler": own, "interval": "batch"}])), batches(5))
        assert own.count == trainer.progress.batch == trainer.plan.total_batches


class TestBeginAndEnd:
    def test_two_in_turn(self):
        first = {"scheduler": partial(LinearLR, start_factor=0.1, total_iters=5), "end": 5}
        second = {"scheduler": partial(CosineAnnealingLR, T_max=15), "begin": 5, "end": 20}
        found = rates({**first, "interval": "step"}, {**second, "interval": "step"}, max_epochs=6)
        warm = [0.1 * (0.1 + 0.9 * t / 5) for t in range(5)]
        cosine = [
            0.1 * (1 + torch.cos(torch.tensor(torch.pi * t / 15, dtype=torch.float64)).item()) / 2 for t in range(16)
        ]
        assert found == pytest.approx([*warm, *cosine, *[cosine[-1]] * 3], abs=1e-12)

    def test_every_third_epoch_from_the_second_on(self):
        build = partial(ExponentialLR, gamma=0.5)
        found = rates({"scheduler": build, "begin": 1, "end": 7, "frequency": 3}, num_batches=1, max_epochs=12)
        assert found == plain_rates(build, 12, lambda n: n in (4, 7))

    def test_one_that_is_computed_from_the_first_rate(self):
        config = {"scheduler": partial(LambdaLR, lr_lambda=lambda t: 0.5**t + (t == 0)), "begin": 2}
        assert rates(config, num_batches=1, max_epochs=5) == [0.1, 0.1, 0.1, 0.05, 0.025]

    def test_one_that_changes_the_rate_at_once(self):
        with pytest.raises(MisconfigurationException, match="ConstantLR has a 'begin', but changes the learning rate"):
            rates({"scheduler": ConstantLR, "begin": 2}, max_epochs=5)

    @pytest.mark.parametrize(
        "entries", [{"begin": -1}, {"begin": 1.5}, {"end": 0}, {"begin": 3, "end": 3}, {"end": True}]
    )
    def test_wrong_bounds(self, entries):
        with pytest.raises(MisconfigurationException, match=r"begin=.* and end="):
            rates({"scheduler": partial(StepLR, step_size=1), **entries})

    def test_one_that_begins_after_the_run(self):
        with pytest.warns(UserWarning, match="StepLR begins after epoch 9, but this run has 2"):
            rates({"scheduler": partial(StepLR, step_size=1), "begin": 9}, max_epochs=2)

    @pytest.mark.parametrize(
        ("begin", "end", "frequency"), [(0, None, 1), (2, None, 3), (0, 7, 2), (3, 5, 1), (9, 12, 1)]
    )
    def test_calls_are_those_that_are_due(self, begin, end, frequency):
        config = SchedulerConfig(None, begin=begin, end=end, frequency=frequency)
        for intervals in range(15):
            assert config.calls(intervals) == sum(config.due(n) for n in range(1, intervals + 1))


class TestConverted:
    """Accumulation of 2 over 5 batches: 3 optimizer steps per epoch."""

    @pytest.mark.filterwarnings("ignore:PolynomialLR is built for 15 steps")
    @pytest.mark.parametrize(
        ("in_epochs", "in_steps"),
        [
            (partial(CosineAnnealingLR, T_max=4), partial(CosineAnnealingLR, T_max=12)),
            (partial(StepLR, step_size=2, gamma=0.5), partial(StepLR, step_size=6, gamma=0.5)),
            (partial(MultiStepLR, milestones=[1, 3]), partial(MultiStepLR, milestones=[3, 9])),
            (partial(ExponentialLR, gamma=0.5), partial(ExponentialLR, gamma=0.5 ** (1 / 3))),
            (PolynomialLR, partial(PolynomialLR, total_iters=15)),
        ],
    )
    def test_equals_the_explicit_one(self, in_epochs, in_steps):
        found = rates(
            {"scheduler": in_epochs, "convert_to_iter_based": True},
            num_batches=5, max_epochs=4, accumulate_grad_batches=2,
        )  # fmt: skip
        assert found == plain_rates(in_steps, 20, lambda n: (n - 1) % 5 in (1, 3, 4))

    def test_bounds_too(self):
        build = partial(ExponentialLR, gamma=0.5)
        found = rates(
            {"scheduler": build, "convert_to_iter_based": True, "begin": 1, "end": 2}, max_epochs=3, num_batches=2
        )
        assert found == plain_rates(partial(ExponentialLR, gamma=0.5**0.5), 6, lambda n: n in (3, 4))

    @pytest.mark.parametrize(
        ("entries", "message"),
        [
            ({"scheduler": OwnSchedule()}, "with an OwnSchedule|OwnSchedule"),
            ({"scheduler": partial(LambdaLR, lr_lambda=lambda t: 1.0)}, "convert_to_iter_based"),
            ({"scheduler": partial(StepLR, step_size=1), "interval": "step"}, "interval='step'"),
        ],
    )
    def test_what_cannot_be_converted(self, entries, message):
        with pytest.raises(MisconfigurationException, match=message):
            rates({"convert_to_iter_based": True, **entries})

    def test_no_bool(self):
        with pytest.raises(TypeError, match="convert_to_iter_based=1"):
            rates({"scheduler": partial(StepLR, step_size=1), "convert_to_iter_based": 1})


class Timm:
    """The calls that one of timm's schedulers gets."""

    def __init__(self):
        self.calls = []

    def step(self, epoch, metric=None):
        self.calls.append(("step", epoch) if metric is None else ("step", epoch, float(metric)))

    def step_update(self, num_updates, metric=None):
        self.calls.append(("update", num_updates))

    def state_dict(self):
        return {"calls": self.calls}

    def load_state_dict(self, state):
        self.calls = list(state["calls"])


class TestTimm:
    EXPECTED = (("update", 1), ("update", 2), ("step", 1), ("update", 3), ("update", 4), ("step", 2))

    def test_calls(self):
        timm = Timm()
        rates(timm, num_batches=3, max_epochs=2, accumulate_grad_batches=2)
        assert tuple(timm.calls) == self.EXPECTED

    def test_with_a_metric(self):
        def on_train_epoch_end(self):
            self.log("m", float(self.current_epoch) + 0.5)

        timm = Timm()
        module = Recorded(lambda p: {"optimizer": SGD(p, lr=0.1), "lr_scheduler": timm, "monitor": "m"})
        quiet_trainer(max_epochs=2).fit(with_methods(module, on_train_epoch_end), batches(1))
        assert timm.calls == [("update", 1), ("step", 1, 0.5), ("update", 2), ("step", 2, 1.5)]

    def test_resumed(self, tmp_path):
        quiet_trainer(max_epochs=1, accumulate_grad_batches=2, default_root_dir=tmp_path).fit(
            module := Net(lambda p: ([SGD(p, lr=0.1)], [Timm()])), batches(3)
        )
        module.trainer.save_checkpoint(tmp_path / "file.ckpt")
        timm = Timm()
        trainer = quiet_trainer(max_epochs=2, accumulate_grad_batches=2, default_root_dir=tmp_path)
        trainer.fit(Net(lambda p: ([SGD(p, lr=0.1)], [timm])), batches(3), ckpt_path=tmp_path / "file.ckpt")
        assert tuple(timm.calls) == self.EXPECTED

    def test_a_module_that_steps_it(self):
        def lr_scheduler_step(self, scheduler, metric):
            scheduler.step(self.current_epoch + 1)

        timm = Timm()
        module = Recorded(lambda p: ([SGD(p, lr=0.1)], [timm]))
        quiet_trainer(max_epochs=2).fit(with_methods(module, lr_scheduler_step), batches(2))
        assert timm.calls == [("step", 1), ("step", 2)]

    @pytest.mark.parametrize("entries", [{"interval": "step"}, {"frequency": 2}, {"begin": 1}])
    def test_what_it_decides_itself(self, entries):
        with pytest.raises(MisconfigurationException, match="counts steps and epochs itself"):
            rates({"scheduler": Timm(), **entries})


@pytest.mark.filterwarnings("error")
def test_no_warning_about_the_order_after_a_resume(tmp_path):
    def configure(parameters):
        return [SGD(parameters, lr=0.1)], [partial(StepLR, step_size=1)]

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if (self.current_epoch, batch_idx) == (0, 1):
            self.trainer.save_checkpoint(tmp_path / "file.ckpt")

    quiet_trainer(max_epochs=1).fit(with_methods(Net(configure), on_train_batch_end), batches(2))
    trainer = quiet_trainer(max_epochs=2)
    trainer.fit(module := Net(configure), batches(2), ckpt_path=tmp_path / "file.ckpt")
    assert module.optimizers().param_groups[0]["lr"] == pytest.approx(0.001)


def test_batches_of_a_plan():
    assert Plan(num_batches=5, accumulate=2, max_epochs=3).total_batches == 15
    assert Plan(num_batches=5, accumulate=2, max_epochs=3, max_steps=4).total_batches == 7
    assert Plan(num_batches=5, accumulate=2, max_epochs=3, last_epoch_batches=2).total_batches == 12
