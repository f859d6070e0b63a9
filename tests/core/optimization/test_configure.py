"""Everything that configure_optimizers may return: forms, factories, and mismatches with the run."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LinearLR,
    OneCycleLR,
    PolynomialLR,
    ReduceLROnPlateau,
    StepLR,
)

from lightlib.core.optimization.configure import configure
from lightlib.core.progress.plan import Plan
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.report import PossibleUserWarning
from tests.runs.modules import Seen
from tests.runs.plain import Net, batches, quiet_trainer, same_weights, with_methods
from tests.runs.steps import OwnSchedule

PLAN = Plan(num_batches=10, max_epochs=3, accumulate=2)


class Returns(torch.nn.Module):
    """A module with a `configure_optimizers` that returns the value given by the test."""

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
        assert (first.interval, first.frequency, first.name, first.monitor, first.strict) == (
            "epoch",
            1,
            None,
            None,
            True,
        )
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
        own = OwnSchedule()
        _, (config,) = configured(lambda module: ([sgd(module)], [own]))
        assert config.scheduler is own


class TestLateValues:
    def test_total_steps_into_a_function(self):
        def make(optimizer, total_steps):
            return LinearLR(optimizer, total_iters=total_steps)

        _, (config,) = configured(
            lambda m: {"optimizer": sgd(m), "lr_scheduler": {"scheduler": make, "interval": "step"}}
        )
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
        _, (config,) = configured(
            lambda m: {"optimizer": sgd(m), "lr_scheduler": {"scheduler": make, "interval": "step"}}
        )
        assert config.scheduler.total_steps == 15

    def test_one_cycle_with_its_highest_rate_alone(self):
        make = partial(OneCycleLR, max_lr=0.5)
        _, (config,) = configured(
            lambda m: {"optimizer": sgd(m), "lr_scheduler": {"scheduler": make, "interval": "step"}}
        )
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
        exec(f"def make(optimizer, {name}): return None", scope)
        with pytest.raises(MisconfigurationException, match=f"make needs `{name}`, which is unknown in this run"):
            configured(lambda module: ([sgd(module)], [scope["make"]]), Plan())

    def test_of_an_optimizer(self):
        def make(parameters, total_steps):
            return SGD(parameters, lr=1 / total_steps)

        (optimizer,), _ = configured(lambda module: make)
        assert optimizer.param_groups[0]["lr"] == 1 / 15

    def test_classes_and_partials_of_schedulers(self):
        _, (config,) = configured(lambda module: {"optimizer": SGD, "lr_scheduler": partial(StepLR, step_size=2)})
        assert config.scheduler.step_size == 2
        _, (config,) = configured(lambda module: {"optimizer": SGD, "lr_scheduler": OwnSchedule})
        assert isinstance(config.scheduler, OwnSchedule)

    def test_in_a_run(self):
        rates = []

        def on_before_optimizer_step(self, optimizer):
            rates.append(optimizer.param_groups[0]["lr"])

        def configure(parameters):
            optimizer = SGD(parameters, lr=0.1)
            schedule = partial(OneCycleLR, max_lr=0.2)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

        module = with_methods(Net(configure), on_before_optimizer_step)
        quiet_trainer(max_epochs=2, accumulate_grad_batches=2).fit(module, batches(5))
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

    def test_a_dict_without_a_scheduler(self):
        with pytest.raises(MisconfigurationException, match="no key 'scheduler'"):
            configured(lambda module: {"optimizer": sgd(module), "lr_scheduler": {"interval": "step"}})

    def test_a_plateau_without_a_metric(self):
        with pytest.raises(MisconfigurationException, match="ReduceLROnPlateau has no metric to read"):
            configured(with_schedule(ReduceLROnPlateau))

    def test_a_schedule_of_another_optimizer(self):
        with pytest.raises(
            MisconfigurationException, match="belongs to an optimizer that configure_optimizers does not return"
        ):
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
            (
                lambda o: CosineAnnealingLR(o, T_max=4),
                {"interval": "step"},
                r"T_max=4.*calls it 15 times: it continues after",
            ),
            (
                lambda o: CosineAnnealingLR(o, T_max=40),
                {"interval": "step"},
                r"T_max=40.*calls it 15 times: it stops before",
            ),
            (lambda o: CosineAnnealingLR(o, T_max=15), {}, r"T_max=15.*calls it 3 times"),
            (lambda o: PolynomialLR(o, total_iters=4), {"interval": "step", "frequency": 5}, "calls it 3 times"),
            (
                lambda o: OneCycleLR(o, 1.0, total_steps=30),
                {"interval": "step"},
                "total_steps=30.*stops before its end",
            ),
        ],
    )
    def test_warns(self, make, config, text):
        with pytest.warns(PossibleUserWarning, match=text):
            configured(with_schedule(make, **config))

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


# Regressions
@pytest.mark.filterwarnings("ignore::lightlib.report.LightlibWarning")
class TestSteps:
    def test_a_clip_value_of_zero_is_no_clipping(self):
        with_zero, without = Net(), Net()
        quiet_trainer(gradient_clip_val=0).fit(with_zero, batches(3))
        quiet_trainer().fit(without, batches(3))
        assert same_weights(with_zero, without)

    def test_every_batch_runs_when_optimizer_step_leaves_out_the_first_optimizer(self):
        def configure_optimizers(self):
            return [torch.optim.SGD(self.parameters(), lr=0.1) for _ in range(2)]

        def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
            if batch_idx % 2 == 0 or optimizer is not self.optimizers()[0]:
                optimizer.step(optimizer_closure)

        net = with_methods(Seen, configure_optimizers, optimizer_step)
        quiet_trainer().fit(net, [torch.tensor([i]) for i in range(4)])
        assert net.seen == [[0], [1], [2], [3]]

    def test_a_skipped_batch_is_no_step_with_an_optimizer_step_of_its_own(self):
        def training_step(self, batch, batch_idx):
            return None if batch_idx % 2 else Net.training_step(self, batch, batch_idx)

        def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
            optimizer.step(optimizer_closure)

        trainer = quiet_trainer()
        trainer.fit(with_methods(Net, training_step, optimizer_step), batches(4))
        assert trainer.global_step == 2

    def test_nested_outputs_have_no_graph(self):
        found = []

        def training_step(self, batch, batch_idx):
            out = self.net(batch[0])
            return {"loss": out.mean(), "of": {"class": out}, "all": [out, (out, "text")]}

        def on_train_batch_end(self, outputs, batch, batch_idx):
            leaves = [outputs["of"]["class"], outputs["all"][0], outputs["all"][1][0]]
            found.extend(leaf.requires_grad for leaf in leaves)

        quiet_trainer().fit(with_methods(Net, training_step, on_train_batch_end), batches(1))
        assert found == [False] * 3
