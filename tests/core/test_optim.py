"""All that configure_optimizers may return: forms, factories, when schedules step, and what is said about them."""

from __future__ import annotations

import re
from functools import partial

import pytest
import torch
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    OneCycleLR,
    PolynomialLR,
    ReduceLROnPlateau,
    StepLR,
)

from lightlib.core.optim import Schedules, SchedulerConfig, configure
from lightlib.core.plan import Plan
from lightlib.core.progress import Progress
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.report import PossibleUserWarning
from tests.core.plain import Net, Unsized, batches, quiet_trainer

PLAN = Plan(num_batches=10, max_epochs=3, accumulate=2)


class Returns(torch.nn.Module):
    """Returns what the test wants; `configure_optimizers` is all that is asked of it."""

    automatic_optimization = True

    def __init__(self, returned):
        super().__init__()
        self.layer, self.other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
        self.returned = returned

    def configure_optimizers(self):
        return self.returned(self)


def configured(returned, plan=PLAN):
    return configure(Returns(returned), plan)


def sgd(module, **arguments):
    return SGD(module.parameters(), lr=1.0, **arguments)


def two(module):
    return [SGD(module.layer.parameters(), lr=1.0), Adam(module.other.parameters(), lr=1.0)]


def with_schedule(make, **config):
    """The dict form with one schedule, and further entries in its dict."""

    def returned(module):
        optimizer = sgd(module)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": make(optimizer), **config}}

    return returned


def both_with_schedules(module):
    one, other = two(module)
    return [one, other], [StepLR(one, 1), {"scheduler": StepLR(other, 1), "interval": "step", "name": "second"}]


class Own:
    """A schedule that is no LRScheduler: it has a step and a state."""

    def __init__(self, optimizer=None):
        self.count = 0

    def step(self, *values):
        self.count += 1

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


class TestForms:
    @pytest.mark.parametrize(
        ("returned", "kinds"),
        [
            (sgd, [SGD]),
            (lambda module: [sgd(module)], [SGD]),
            (lambda module: (sgd(module),), [SGD]),
            (two, [SGD, Adam]),
            (lambda module: tuple(two(module)), [SGD, Adam]),
            (lambda module: (two(module), []), [SGD, Adam]),
            (lambda module: {"optimizer": sgd(module)}, [SGD]),
            (lambda module: [{"optimizer": one} for one in two(module)], [SGD, Adam]),
            (lambda module: tuple({"optimizer": one} for one in two(module)), [SGD, Adam]),
            (lambda module: SGD, [SGD]),
            (lambda module: partial(SGD, lr=0.5), [SGD]),
            (lambda module: {"optimizer": partial(Adam, lr=0.5)}, [Adam]),
            (lambda module: [[partial(SGD, lr=0.5)], []], [SGD]),
        ],
    )
    def test_optimizers(self, returned, kinds):
        optimizers, configs = configured(returned)
        assert [type(optimizer) for optimizer in optimizers] == kinds
        assert configs == []

    @pytest.mark.parametrize("returned", [lambda module: None, lambda module: [], lambda module: ([], [])])
    def test_none(self, returned):
        with pytest.warns(UserWarning, match="configure_optimizers returned no optimizer"):
            assert configured(returned) == ([], [])

    def test_lists_of_optimizers_and_schedulers(self):
        (one, other), (first, second) = configured(both_with_schedules)
        assert (first.interval, first.frequency, first.name, first.monitor, first.strict) == ("epoch", 1, None, None, True)
        assert (second.interval, second.name) == ("step", "second")
        assert (first.scheduler.optimizer, second.scheduler.optimizer) == (one, other)

    def test_one_scheduler_without_a_list(self):
        def returned(module):
            optimizer = sgd(module)
            return [optimizer], StepLR(optimizer, 1)

        _, configs = configured(returned)
        assert [type(config.scheduler) for config in configs] == [StepLR]

    def test_dict(self):
        _, (config,) = configured(with_schedule(lambda o: StepLR(o, 1), interval="step", frequency=3, name="x"))
        assert (config.interval, config.frequency, config.name) == ("step", 3, "x")

    def test_dicts(self):
        def returned(module):
            one, other = two(module)
            return {"optimizer": one, "lr_scheduler": StepLR(one, 1)}, {"optimizer": other}

        optimizers, (config,) = configured(returned)
        assert config.scheduler.optimizer is optimizers[0]

    def test_no_schedule_after_all(self):
        assert configured(lambda module: {"optimizer": sgd(module), "lr_scheduler": None})[1] == []

    def test_monitor_beside_the_scheduler_or_in_its_dict(self):
        for make in (
            lambda o: {"optimizer": o, "lr_scheduler": ReduceLROnPlateau(o), "monitor": "x"},
            lambda o: {"optimizer": o, "lr_scheduler": {"scheduler": ReduceLROnPlateau(o), "monitor": "x"}},
        ):
            _, (config,) = configured(lambda module, make=make: make(sgd(module)))
            assert (config.monitor, config.reduce_on_plateau) == ("x", True)

    def test_any_object_with_step_and_state(self):
        own = Own()
        _, (config,) = configured(lambda module: ([sgd(module)], [own]))
        assert config.scheduler is own


class TestLateValues:
    def test_total_steps_into_a_function(self):
        def make(optimizer, total_steps):
            return LinearLR(optimizer, total_iters=total_steps)

        _, (config,) = configured(lambda m: {"optimizer": sgd(m), "lr_scheduler": {"scheduler": make, "interval": "step"}})
        assert config.scheduler.total_iters == 15

    def test_all_three(self):
        def make(optimizer, epochs, steps_per_epoch, total_steps, factor=0.5):
            seen.append((epochs, steps_per_epoch, total_steps, factor))
            return StepLR(optimizer, 1)

        seen = []
        configured(lambda module: ([sgd(module)], [make]))
        assert seen == [(3, 5, 15, 0.5)]

    def test_what_is_bound_stays(self):
        make = partial(OneCycleLR, max_lr=1.0, total_steps=15)
        _, (config,) = configured(lambda m: {"optimizer": sgd(m), "lr_scheduler": {"scheduler": make, "interval": "step"}})
        assert config.scheduler.total_steps == 15

    def test_one_cycle_with_its_highest_rate_alone(self):
        make = partial(OneCycleLR, max_lr=0.5)
        _, (config,) = configured(lambda m: {"optimizer": sgd(m), "lr_scheduler": {"scheduler": make, "interval": "step"}})
        assert config.scheduler.total_steps == 15

    def test_one_cycle_when_only_the_steps_are_known(self):
        make = partial(OneCycleLR, max_lr=0.5)
        plan = Plan(max_steps=40)
        _, (config,) = configured(
            lambda m: {"optimizer": sgd(m), "lr_scheduler": {"scheduler": make, "interval": "step"}}, plan
        )
        assert config.scheduler.total_steps == 40

    @pytest.mark.parametrize("name", ["total_steps", "epochs", "steps_per_epoch"])
    def test_what_the_run_cannot_tell(self, name):
        scope = {}
        exec(f"def make(optimizer, {name}): return None", scope)  # noqa: S102  one function per name
        with pytest.raises(MisconfigurationException, match=f"make asks for `{name}`, which this run cannot tell"):
            configured(lambda module: ([sgd(module)], [scope["make"]]), Plan())

    def test_of_an_optimizer(self):
        def make(parameters, total_steps):
            return SGD(parameters, lr=1 / total_steps)

        (optimizer,), _ = configured(lambda module: make)
        assert optimizer.param_groups[0]["lr"] == 1 / 15

    def test_classes_and_partials_of_schedulers(self):
        _, (config,) = configured(lambda module: {"optimizer": SGD, "lr_scheduler": partial(StepLR, step_size=2)})
        assert config.scheduler.step_size == 2
        _, (config,) = configured(lambda module: {"optimizer": SGD, "lr_scheduler": Own})
        assert isinstance(config.scheduler, Own)

    def test_in_a_run(self):
        rates = []

        class Reads(Net):
            def on_before_optimizer_step(self, optimizer):
                rates.append(optimizer.param_groups[0]["lr"])

        def configure(parameters):
            optimizer = SGD(parameters, lr=0.1)
            schedule = partial(OneCycleLR, max_lr=0.2)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

        quiet_trainer(max_epochs=2, accumulate_grad_batches=2).fit(Reads(configure), batches(5))
        optimizer = SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
        schedule, expected = OneCycleLR(optimizer, 0.2, total_steps=6), []
        for _ in range(6):
            expected.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        assert rates == expected


class TestRefused:
    @pytest.mark.parametrize("returned", [3, "sgd", [3], ([3], []), {"optimizer": 3}, object()])
    def test_no_optimizer(self, returned):
        with pytest.raises(ArgumentTypeError, match="where an optimizer belongs"):
            configured(lambda module: returned)

    @pytest.mark.parametrize("schedule", [3, "cosine", [1]])
    def test_no_scheduler(self, schedule):
        with pytest.raises(ArgumentTypeError, match="where a scheduler belongs"):
            configured(lambda module: {"optimizer": sgd(module), "lr_scheduler": schedule})

    @pytest.mark.parametrize(
        ("config", "text"),
        [
            ({"interval": "steps"}, "interval='steps'. Did you mean 'step'?"),
            ({"interval": "batch"}, "interval='batch'"),
            ({"frequency": 0}, "frequency=0"),
            ({"frequency": 1.5}, "frequency=1.5"),
            ({"intervall": "step"}, "the unknown key 'intervall'. Did you mean 'interval'?"),
        ],
    )
    def test_entries_of_the_dict(self, config, text):
        with pytest.raises(MisconfigurationException, match=re.escape(text)):
            configured(with_schedule(lambda o: StepLR(o, 1), **config))

    def test_a_dict_without_a_scheduler(self):
        with pytest.raises(MisconfigurationException, match="no key 'scheduler'"):
            configured(lambda module: {"optimizer": sgd(module), "lr_scheduler": {"interval": "step"}})

    def test_a_plateau_without_a_metric(self):
        with pytest.raises(MisconfigurationException, match="ReduceLROnPlateau has no metric to read"):
            configured(with_schedule(ReduceLROnPlateau))

    def test_a_schedule_of_another_optimizer(self):
        with pytest.raises(MisconfigurationException, match="belongs to an optimizer that configure_optimizers does not return"):
            configured(lambda module: ([sgd(module)], [StepLR(sgd(module), 1)]))

    def test_two_of_one_name(self):
        def returned(module):
            optimizer = sgd(module)
            return [optimizer], [{"scheduler": StepLR(optimizer, 1), "name": "x"} for _ in range(2)]

        with pytest.raises(MisconfigurationException, match="'x', 'x'"):
            configured(returned)


class TestMisfit:
    @pytest.mark.parametrize(
        ("make", "config", "text"),
        [
            (lambda o: CosineAnnealingLR(o, T_max=4), {"interval": "step"}, r"T_max=4.*calls it 15 times: it goes on after"),
            (lambda o: CosineAnnealingLR(o, T_max=40), {"interval": "step"}, r"T_max=40.*calls it 15 times: it stops before"),
            (lambda o: CosineAnnealingLR(o, T_max=15), {}, r"T_max=15.*calls it 3 times"),
            (lambda o: PolynomialLR(o, total_iters=4), {"interval": "step", "frequency": 5}, "calls it 3 times"),
            (lambda o: OneCycleLR(o, 1.0, total_steps=30), {"interval": "step"}, "total_steps=30.*stops before its end"),
        ],
    )
    def test_warns(self, make, config, text):
        with pytest.warns(PossibleUserWarning, match=text):
            configured(with_schedule(make, **config))

    def test_one_cycle_that_would_raise_is_an_error_before(self):
        with pytest.raises(MisconfigurationException, match=r"total_steps=4\), but this run calls it 15 times: it would raise"):
            configured(with_schedule(lambda o: OneCycleLR(o, 1.0, total_steps=4), interval="step"))

    def test_an_epoch_schedule_in_a_run_of_less_than_an_epoch(self):
        with pytest.warns(UserWarning, match="StepLR steps at the end of every epoch, but this run ends before its first"):
            configured(with_schedule(lambda o: StepLR(o, 1)), Plan(num_batches=10, max_steps=4))

    @pytest.mark.parametrize(
        ("make", "config"),
        [
            (lambda o: CosineAnnealingLR(o, T_max=15), {"interval": "step"}),
            (lambda o: CosineAnnealingLR(o, T_max=3), {}),
            (lambda o: LinearLR(o, total_iters=4), {"interval": "step"}),  # a warm-up is meant to end early
            (lambda o: StepLR(o, 4), {"interval": "step"}),
        ],
    )
    def test_is_silent_when_it_fits(self, make, config):
        configured(with_schedule(make, **config))

    def test_is_silent_when_the_length_is_unknown(self):
        configured(with_schedule(lambda o: CosineAnnealingLR(o, T_max=4), interval="step"), Plan())
        configured(with_schedule(lambda o: CosineAnnealingLR(o, T_max=4)), Plan(max_steps=100))


class TestWhen:
    @pytest.mark.parametrize(("interval", "frequency", "count"), [("step", 1, 6), ("step", 4, 1), ("epoch", 1, 3), ("epoch", 2, 1)])
    def test_counts(self, interval, frequency, count):
        own = Own()

        def configure(parameters):
            return [SGD(parameters, lr=0.1)], [{"scheduler": own, "interval": interval, "frequency": frequency}]

        quiet_trainer(max_epochs=3, accumulate_grad_batches=2).fit(Net(configure), batches(4))
        assert own.count == count

    def test_unknown_length(self):
        own = Own()
        quiet_trainer(max_epochs=2).fit(Net(lambda p: ([SGD(p, lr=0.1)], [own])), Unsized(batches(3)))
        assert own.count == 2

    def test_not_in_an_epoch_that_is_cut(self):
        own = Own()
        quiet_trainer(max_steps=5, max_epochs=-1).fit(Net(lambda p: ([SGD(p, lr=0.1)], [own])), batches(4))
        assert own.count == 1

    def test_not_in_manual_optimization(self):
        class Manual(Net):
            automatic_optimization = False

            def training_step(self, batch, batch_idx):
                self.optimizers().step()

        own = Own()
        trainer = quiet_trainer()
        trainer.fit(Manual(lambda p: ([SGD(p, lr=0.1)], [{"scheduler": own, "interval": "step"}])), batches(2))
        assert own.count == 0
        assert trainer.lr_scheduler_configs[0].scheduler is own

    @pytest.mark.filterwarnings("ignore:precision='16-mixed' computes in float16 on the CPU")
    def test_not_when_the_scaler_skipped_the_step(self):
        class Overflows(Net):
            def on_after_backward(self):
                if self.trainer.progress.batch in (0, 2):
                    self.net[0].weight.grad[0, 0] = torch.inf

        own = Own()

        def configure(parameters):
            return [SGD(parameters, lr=0.1)], [{"scheduler": own, "interval": "step"}]

        trainer = quiet_trainer(precision="16-mixed")
        trainer.fit(Overflows(configure), batches(5))
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
    @pytest.mark.parametrize(("values", "rate"), [([3.0, 2.0, 1.0], 1.0), ([1.0, 2.0, 3.0], 0.25), ([1.0, 2.0, 0.5], 0.5)])
    def test_reads_the_value_of_the_epoch(self, logs, values, rate):
        assert Plateau(values, logs).rates() == rate

    def test_at_every_step(self):
        assert Plateau([1.0, 2.0, 3.0], "step", interval="step").rates() == 0.25

    def test_with_a_frequency(self):
        # reads after the second epoch only
        assert Plateau([1.0, 2.0, 3.0], "validation", frequency=2).rates(check_val_every_n_epoch=2) == 1.0

    def test_a_metric_that_nobody_logged(self):
        with pytest.raises(MisconfigurationException, match=r"reads 'y', which was not logged[\s\S]*there are: 'x'"):
            Plateau([1.0] * 3, "validation", monitor="y").rates()

    def test_is_a_warning_when_it_is_not_strict(self):
        with pytest.warns(UserWarning, match="reads 'y', which was not logged.*it keeps its rate"):
            assert Plateau([1.0] * 3, "validation", monitor="y", strict=False).rates() == 1.0

    def test_an_object_of_ones_own_that_takes_the_value(self):
        class Reads(Own):
            def step(self, value):
                seen.append(float(value))

        class Logs(Net):
            def training_step(self, batch, batch_idx):
                self.log("x", float(self.current_epoch), on_step=False, on_epoch=True)
                return super().training_step(batch, batch_idx)

        seen = []

        def configure(parameters):
            return [SGD(parameters, lr=0.1)], [{"scheduler": Reads(), "reduce_on_plateau": True, "monitor": "x"}]

        quiet_trainer(max_epochs=3).fit(Logs(configure), batches(1))
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
        def configure(parameters):
            optimizer = SGD(parameters, lr=0.1)
            return [optimizer], [{"scheduler": ExponentialLR(optimizer, 0.9), **config}]

        assert self.lines(caplog, configure, accumulate_grad_batches=2) == [line]

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
    one, other = Own(), Own()
    schedules = Schedules([SchedulerConfig(one, "step"), SchedulerConfig(other)], lambda s, _: s.step(), dict)
    schedules.step_batch(Progress())
    state = schedules.state_dict()
    assert state == [{"count": 1}, {"count": 0}]
    fresh = Schedules([SchedulerConfig(Own()), SchedulerConfig(Own())], lambda *_: None, dict)
    fresh.load_state_dict(state)
    assert fresh.state_dict() == state
