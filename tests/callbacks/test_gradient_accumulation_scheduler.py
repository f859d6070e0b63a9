"""GradientAccumulationScheduler: which epoch accumulates how much."""

from __future__ import annotations

import math
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR

from lightlib.callbacks import GradientAccumulationScheduler, LambdaCallback
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.report import LightlibWarning
from lightlib.schedulers import NUM_EPOCHS, TOTAL_UPDATE_STEPS, UPDATE_STEPS_PER_EPOCH
from tests.callbacks.fake_trainer import FakeTrainer
from tests.callbacks.line import Line, line_trainer
from tests.runs.plain import Net, Unsized, batches, loader, quiet_trainer, with_methods

AUTOMATIC = SimpleNamespace(automatic_optimization=True)


def test_schedule():
    callback, trainer = GradientAccumulationScheduler({4: 4, 2: 8}), FakeTrainer()
    callback.on_train_start(trainer, AUTOMATIC)
    used = []
    for epoch in range(6):
        trainer.progress.epoch = epoch
        callback.on_train_epoch_start(trainer, AUTOMATIC)
        used.append(trainer.accumulate_grad_batches)
    assert used == [1, 1, 8, 8, 4, 4]
    assert callback.going_to_accumulate_grad_batches()
    assert not GradientAccumulationScheduler({3: 1}).going_to_accumulate_grad_batches()


def test_resumed_within_an_epoch_and_fit_again():
    callback, trainer = GradientAccumulationScheduler({2: 8}), FakeTrainer()
    trainer.progress.epoch = 2
    callback.on_train_start(trainer, AUTOMATIC)
    assert trainer.accumulate_grad_batches == 8
    callback.on_train_start(trainer, AUTOMATIC)


@pytest.mark.parametrize("scheduling", [{}, {-1: 2}, {0: 0}])
def test_refused(scheduling):
    with pytest.raises(MisconfigurationException, match="at least one entry, epochs >= 0"):
        GradientAccumulationScheduler(scheduling)


@pytest.mark.parametrize("scheduling", [3, None, {"0": 2}, {0: 2.0}, {0: True}])
def test_wrong_type(scheduling):
    with pytest.raises(ArgumentTypeError, match="a dict from epochs to numbers of batches"):
        GradientAccumulationScheduler(scheduling)


def test_together_with_the_trainers_own():
    with pytest.raises(
        MisconfigurationException, match=r"accumulate_grad_batches=2\)(.|\n)*GradientAccumulationScheduler\(\{0: 2\}\)"
    ):
        GradientAccumulationScheduler({0: 4}).setup(FakeTrainer(accumulate_grad_batches=2), AUTOMATIC, "fit")


def test_manual_optimization():
    with pytest.raises(MisconfigurationException, match="automatic_optimization = False"):
        GradientAccumulationScheduler({0: 4}).on_train_start(
            FakeTrainer(), SimpleNamespace(automatic_optimization=False)
        )


class Reads(Net):
    """Reads the number of steps of the run in `configure_optimizers` and at the start of each epoch."""

    def __init__(self, data=None):
        super().__init__()
        self.read, self.data = [], data

    def configure_optimizers(self):
        self.read.append(self.trainer.estimated_stepping_batches)
        return super().configure_optimizers()

    def on_train_epoch_start(self):
        self.read.append(self.trainer.estimated_stepping_batches)

    def train_dataloader(self):
        return self.data(self.trainer.current_epoch)


@pytest.mark.parametrize(
    ("arguments", "steps"),
    [
        ({"max_epochs": 2}, 3 + 10),
        ({"max_epochs": 5}, 3 + 10 + 10 + 2 + 2),
        ({"max_epochs": 5, "max_steps": 14}, 14),
        ({"max_epochs": 5, "limit_train_batches": 6}, 2 + 6 + 6 + 1 + 1),
        ({"max_epochs": 5, "limit_train_batches": 0.7}, 2 + 7 + 7 + 1 + 1),
        ({"max_epochs": 3.5}, 3 + 10 + 10 + 1),
        ({"max_epochs": 3, "overfit_batches": 5}, 2 + 5 + 5),
        ({"max_epochs": 5, "fast_dev_run": 5}, 2),
        ({"max_epochs": 4, "reload_dataloaders_every_n_epochs": 1}, 3 + 10 + 10 + 2),
    ],
)
def test_the_number_of_steps_is_that_of_all_epochs(arguments, steps):
    module = Reads(lambda epoch: batches(10))
    trainer = quiet_trainer(callbacks=[GradientAccumulationScheduler({0: 4, 1: 1, 3: 8})], **arguments)
    trainer.fit(module)
    assert trainer.global_step == steps
    assert set(module.read) == {steps}
    assert trainer.estimated_stepping_batches == steps, "after the run"


def test_the_number_of_steps_without_a_length():
    schedule = GradientAccumulationScheduler({0: 4, 1: 1})
    module = Reads(lambda epoch: Unsized(batches(10)))
    trainer = quiet_trainer(callbacks=[schedule], max_epochs=9, max_steps=8)
    trainer.fit(module)
    assert trainer.global_step == 8
    assert set(module.read) == {8}
    module = Reads(lambda epoch: Unsized(batches(10)))
    quiet_trainer(callbacks=[schedule], max_epochs=2).fit(module)
    assert module.read == [math.inf] * 3


def test_loaders_that_change_their_length():
    """The steps that were made count as they were made, and the rest by the present loader."""
    module = Reads(lambda epoch: batches(10 if epoch == 0 else 5))
    trainer = quiet_trainer(
        callbacks=[GradientAccumulationScheduler({1: 2})], max_epochs=3, reload_dataloaders_every_n_epochs=1
    )
    trainer.fit(module)
    assert trainer.global_step == 10 + 3 + 3 == trainer.estimated_stepping_batches
    assert module.read[:2] == [10 + 5 + 5] * 2
    assert module.read[-1] == 16


def test_a_hook_that_sets_the_accumulation():
    """No callback announces it: the number that is read afterwards is right."""

    def on_train_epoch_end(self):
        self.trainer.accumulate_grad_batches = 4

    def on_train_batch_start(self, batch, batch_idx):
        if batch_idx == 0:
            self.read.append(self.trainer.estimated_stepping_batches)

    module = with_methods(Reads(lambda epoch: batches(10)), on_train_epoch_end, on_train_batch_start)
    trainer = quiet_trainer(max_epochs=3)
    trainer.fit(module)
    assert trainer.global_step == 10 + 3 + 3
    assert (module.read[0], module.read[2::2]) == (30, [30, 16, 16])


@pytest.mark.parametrize("scheduling", [{0: 4, 1: 1, 2: 3}, {1: 4, 2: 3}])
@pytest.mark.parametrize("at", [(0, 4), (0, 5), (1, 0), (1, 3), (2, 9)])
def test_the_number_of_steps_in_a_resumed_run(tmp_path, at, scheduling):
    def save(trainer, module, outputs, batch, batch_idx):
        if (trainer.current_epoch, batch_idx) == at:
            trainer.save_checkpoint(tmp_path / "file.ckpt")

    def fit(module, *callbacks, **arguments):
        schedule = GradientAccumulationScheduler(scheduling)
        trainer = quiet_trainer(callbacks=[schedule, *callbacks], max_epochs=4)
        trainer.fit(module, **arguments)
        return trainer

    whole = fit(first := Reads(lambda epoch: batches(10)), LambdaCallback(on_train_batch_end=save))
    resumed = fit(second := Reads(lambda epoch: batches(10)), ckpt_path=tmp_path / "file.ckpt")
    assert whole.global_step == resumed.global_step == 10 + 3 + 4 + 4
    assert {*first.read, *second.read} == {21}
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)


def scheduled(scheduler):
    def configure(parameters):
        return [torch.optim.SGD(parameters, lr=0.1)], [scheduler]

    return Net(configure)


@pytest.mark.parametrize(
    "scheduler",
    [
        partial(OneCycleLR, max_lr=0.1),
        lambda optimizer, total_steps: OneCycleLR(optimizer, max_lr=0.1, total_steps=total_steps),
        partial(OneCycleLR, max_lr=0.1, total_steps=TOTAL_UPDATE_STEPS),
        partial(OneCycleLR, max_lr=0.1, total_steps=TOTAL_UPDATE_STEPS + NUM_EPOCHS - 3),
    ],
)
@pytest.mark.filterwarnings("error")
def test_schedules_get_the_sum(scheduler):
    module = scheduled({"scheduler": scheduler, "interval": "step"})
    trainer = quiet_trainer(max_epochs=3, callbacks=[GradientAccumulationScheduler({0: 4, 2: 1})])
    trainer.fit(module, loader(40))
    (config,) = trainer.lr_scheduler_configs
    assert (config.scheduler.total_steps, config.scheduler.last_epoch) == (3 + 3 + 10, 16)


@pytest.mark.parametrize(
    ("scheduler", "what"),
    [
        (
            {"scheduler": partial(OneCycleLR, max_lr=1, epochs=2, steps_per_epoch=UPDATE_STEPS_PER_EPOCH)},
            "UPDATE_STEPS_PE",
        ),
        ({"scheduler": lambda optimizer, steps_per_epoch: None}, "lambda"),
        ({"scheduler": partial(CosineAnnealingLR, T_max=2), "convert_to_iter_based": True}, "convert_to_iter_based"),
    ],
)
def test_the_steps_of_an_epoch_are_refused_where_they_differ(scheduler, what):
    trainer = quiet_trainer(max_epochs=3, callbacks=[GradientAccumulationScheduler({0: 4, 2: 1})])
    with pytest.raises(
        MisconfigurationException, match=f"{what}.* needs the optimizer steps of an epoch, but they differ"
    ):
        trainer.fit(scheduled(scheduler), loader(40))
    trainer = quiet_trainer(max_epochs=2, callbacks=[GradientAccumulationScheduler({0: 4, 2: 1})])
    trainer.fit(scheduled({"scheduler": partial(OneCycleLR, max_lr=1, epochs=2), "interval": "step"}), loader(40))
    assert trainer.lr_scheduler_configs[0].scheduler.total_steps == 6, "the third epoch is never reached"


def test_the_numbers_of_the_run():
    def read(scheduling):
        trainer = quiet_trainer(max_epochs=3, callbacks=[GradientAccumulationScheduler(scheduling)])
        trainer.fit(with_methods(on_fit_start=lambda self: configs.append(self.trainer.run_config)), loader(40))
        return configs[-1].gradient_accumulation_steps, configs[-1].num_update_steps_per_epoch

    configs = []
    assert read({0: 4, 2: 1}) == (4, None)
    assert read({0: 4}) == (4, 3)


def test_another_schedule_in_a_resumed_run_is_reported(tmp_path):
    def fit(scheduling, **arguments):
        trainer = quiet_trainer(max_epochs=3, callbacks=[GradientAccumulationScheduler(scheduling)])
        trainer.fit(Net(), loader(40), **arguments)
        return trainer

    def save(scheduling):
        path = tmp_path / "file.ckpt"
        saves = LambdaCallback(on_train_epoch_start=lambda trainer, module: trainer.save_checkpoint(path))
        quiet_trainer(max_epochs=2, callbacks=[GradientAccumulationScheduler(scheduling), saves]).fit(Net(), loader(40))

    save({0: 4, 1: 1})
    with pytest.warns(LightlibWarning, match=r"batches: \[\[0, 4\], \[1, 1\]\] then, \[\[0, 4\], \[1, 2\]\] now"):
        trainer = fit({0: 4, 1: 2}, ckpt_path=tmp_path / "file.ckpt")
    assert trainer.global_step == 3 + 5 + 5
    with pytest.warns(LightlibWarning, match=r"accumulate_grad_batches: \[\[0, 4\], \[1, 1\]\] then, 1 now"):
        quiet_trainer(max_epochs=2).fit(Net(), loader(40), ckpt_path=tmp_path / "file.ckpt")


def test_a_given_number_of_steps_needs_no_steps_of_an_epoch():
    module = scheduled({"scheduler": partial(OneCycleLR, max_lr=0.1, total_steps=7), "interval": "step"})
    trainer = quiet_trainer(max_epochs=-1, max_steps=7)
    trainer.fit(module, Unsized(batches(5)))
    assert trainer.lr_scheduler_configs[0].scheduler.total_steps == 7


def test_gradient_accumulation_scheduler(tmp_path):
    steps = []
    watch = LambdaCallback(on_train_epoch_end=lambda trainer, module: steps.append(trainer.global_step))
    run = line_trainer(tmp_path, GradientAccumulationScheduler({1: 2, 2: 4}), watch)
    run.fit(Line())
    assert steps == [4, 6, 7]
