"""Tests of the rows of docs/differences.md: the name of a test is the statement of a row."""

from __future__ import annotations

import pathlib
import signal
from functools import partial

import pytest
import torch
from torch.utils.data import DataLoader

from lightlib import Callback, DataModule, Trainer
from lightlib.callbacks import EarlyStopping, LambdaCallback, ModelCheckpoint
from lightlib.data.combined import CombinedLoader
from lightlib.errors import CheckpointError, MisconfigurationException
from lightlib.loggers.logger import Logger
from lightlib.precision import MixedPrecision, precision
from scripts.names_of_lightning import is_current
from tests.runs import quiet
from tests.runs.modules import Weight
from tests.runs.plain import calling, raising, scheduled, sgd, with_methods

QUIET = quiet.QUIET | {"max_epochs": 1}
STEP_LR = partial(torch.optim.lr_scheduler.StepLR, step_size=1)


class Net(Weight):
    """The loss is weight * batch, so the gradient of a batch is its value."""

    def __init__(self, configure=sgd):
        super().__init__(configure)
        self.seen = []

    def training_step(self, batch, batch_idx):
        self.seen.append(batch.item())
        self.log("value", batch, on_step=False, on_epoch=True)
        return super().training_step(batch, batch_idx)


class Validated(Net):
    def validation_step(self, batch, batch_idx):
        self.log("val", self.weight.detach())


class Recorder(Logger):
    """Keeps the metrics that it receives."""

    name, version = "recorder", 0

    def __init__(self):
        self.rows = []

    def log_metrics(self, metrics, step=None):
        self.rows.append((step, dict(metrics)))

    def log_hyperparams(self, *arguments, **options):
        pass


def trainer(**arguments):
    return Trainer(**{**QUIET, **arguments})


def numbers(n, **arguments):
    return DataLoader(torch.arange(float(n)), batch_size=1, **arguments)


def ones(n):
    return [torch.ones(1)] * n


# numbers


def test_the_last_short_window_is_divided_by_its_true_size():
    gradients = []
    note = LambdaCallback(on_before_optimizer_step=lambda t, net, o: gradients.append(net.weight.grad.item()))
    trainer(accumulate_grad_batches=4, callbacks=[note]).fit(Net(), ones(10))
    assert gradients == [1.0, 1.0, 1.0]


def test_the_last_window_of_a_loader_that_ends_early_is_stepped():
    steps = []
    note = LambdaCallback(on_before_optimizer_step=lambda t, net, o: steps.append(t.progress.epoch_batch))
    stream = (batch for batch in ones(5))
    trainer(accumulate_grad_batches=2, limit_train_batches=10, callbacks=[note]).fit(Net(), stream)
    assert steps == [1, 3, 4]


def test_a_sum_and_a_weight_give_the_gradient_of_all_tokens():
    net = with_methods(
        Net, training_step=lambda self, batch, batch_idx: {"loss": (self.weight * batch).sum(), "weight": len(batch)}
    )
    trainer(accumulate_grad_batches=2).fit(net, [torch.tensor([6.0]), torch.tensor([0.0, 0.0])])
    assert net.weight.item() == pytest.approx(-0.1 * 6 / 3)


def test_the_frequency_of_a_schedule_counts_optimizer_steps_over_the_run():
    rates = []
    note = LambdaCallback(on_train_batch_end=lambda t, *_: rates.append(t.optimizers[0].param_groups[0]["lr"]))
    halves = partial(STEP_LR, gamma=0.5)
    net = Net(scheduled(halves, lr=1.0, interval="step", frequency=2))
    trainer(max_epochs=2, callbacks=[note]).fit(net, ones(3))
    assert rates == [1.0, 0.5, 0.5, 0.25, 0.25, 0.125]


def test_each_of_several_values_of_a_batch_counts():
    def training_step(self, batch, batch_idx):
        for value in (1.0, 2.0, 6.0):
            self.log("value", value, on_step=False, on_epoch=True)
        return self.weight * batch

    fit = trainer()
    fit.fit(with_methods(Net, training_step), ones(1))
    assert fit.callback_metrics["value"].item() == 3.0


def test_a_callback_that_returns_minus_one_skips_the_rest_of_the_epoch():
    net = Net()
    skips = LambdaCallback(on_train_batch_start=lambda t, net, batch, i: -1 if i == 2 else None)
    trainer(max_epochs=2, callbacks=[skips]).fit(net, numbers(5))
    assert net.seen == [0.0, 1.0, 0.0, 1.0]


def test_validate_returns_values_that_no_logger_gets():
    net = with_methods(Net, validation_step=lambda self, batch, batch_idx: self.log("value", 2.0, logger=False))
    assert trainer().validate(net, ones(1), verbose=False) == [{"value": 2.0}]


@pytest.mark.parametrize(("every", "number"), [(1, 3), (1.0, 1)])
def test_one_is_a_number_of_batches(tmp_path, every, number):
    saver = ModelCheckpoint(tmp_path, monitor="val", save_top_k=-1)
    trainer(val_check_interval=every, callbacks=[saver], enable_checkpointing=True).fit(Validated(), ones(3), ones(1))
    assert len(list(tmp_path.glob("*.ckpt"))) == number


def test_without_a_validation_epochs_are_saved_at_any_interval_of_validations(tmp_path):
    saver = ModelCheckpoint(tmp_path, save_top_k=-1)
    trainer(check_val_every_n_epoch=2, callbacks=[saver], enable_checkpointing=True).fit(Net(), ones(3))
    assert len(list(tmp_path.glob("*.ckpt"))) == 1


def test_files_of_one_name_are_kept(tmp_path):
    saver = ModelCheckpoint(tmp_path, filename="a", save_top_k=-1)
    trainer(max_epochs=2, callbacks=[saver], enable_checkpointing=True).fit(Net(), ones(3))
    assert sorted(path.name for path in tmp_path.glob("*.ckpt")) == ["a-v1.ckpt", "a.ckpt"]


class Dropped(Net):
    """Random numbers in the step, from the global generator."""

    def training_step(self, batch, batch_idx):
        self.seen.append((batch.item(), torch.rand(()).item()))
        self.log("value", batch, on_step=False, on_epoch=True)
        return (self.weight * batch).sum()


def test_a_resume_within_an_epoch_goes_on_with_the_next_batch_and_the_same_random_numbers():
    loader = numbers(10, shuffle=True)
    torch.manual_seed(3)
    whole = Dropped()
    uninterrupted = trainer(max_epochs=2)
    uninterrupted.fit(whole, loader)
    torch.manual_seed(3)
    first = Dropped()
    cut = trainer(max_epochs=2, max_steps=4)
    cut.fit(first, loader)
    cut.save_checkpoint("cut.ckpt")
    torch.manual_seed(99)
    rest = Dropped()
    resumed = trainer(max_epochs=2)
    resumed.fit(rest, loader, ckpt_path="cut.ckpt")
    assert rest.seen == whole.seen
    assert rest.seen[:4] == first.seen
    assert rest.weight.equal(whole.weight)


def test_a_mean_over_a_resumed_epoch_is_that_of_the_whole_epoch():
    cut = trainer(max_steps=4)
    cut.fit(Net(), numbers(10))
    cut.save_checkpoint("cut.ckpt")
    resumed = trainer()
    resumed.fit(Net(), numbers(10), ckpt_path="cut.ckpt")
    assert resumed.callback_metrics["value"].item() == 4.5


@pytest.mark.parametrize("automatic", [True, False])
def test_a_checkpoint_is_chosen_by_the_metric_of_its_own_weights(automatic):
    def training_step(self, batch, batch_idx):
        loss = (self.weight * batch).sum()
        if automatic:
            return loss
        self.optimizers().zero_grad()
        self.manual_backward(loss)
        self.optimizers().step()
        return None

    net = with_methods(Validated, training_step)
    net.automatic_optimization = automatic
    best = ModelCheckpoint("saved", monitor="val", every_n_train_steps=2, save_top_k=-1)
    trainer(callbacks=[best], enable_checkpointing=None, val_check_interval=2).fit(net, ones(6), ones(1))
    stored = {path: torch.load(path)["state_dict"]["weight"].item() for path in best.best_k_models}
    assert len(stored) == 3
    assert {path: score.item() for path, score in best.best_k_models.items()} == pytest.approx(stored)


class TwoOptimizers(Net):
    def __init__(self, manual):
        super().__init__()
        self.other = torch.nn.Parameter(torch.zeros(()))
        self.automatic_optimization = not manual

    def training_step(self, batch, batch_idx):
        loss = (self.weight + self.other) * batch.sum()
        if self.automatic_optimization:
            return loss
        for optimizer in self.optimizers(use_pl_optimizer=False):
            optimizer.zero_grad()
        loss.backward()
        for optimizer in self.optimizers(use_pl_optimizer=False):
            optimizer.step()
        return None

    def configure_optimizers(self):
        return [torch.optim.SGD([self.weight], 0.1), torch.optim.SGD([self.other], 0.2)]


@pytest.mark.parametrize("manual", [True, False])
def test_several_optimizers_work_in_both_modes_and_count_one_step_per_batch(manual):
    net = TwoOptimizers(manual)
    run = trainer(max_steps=5)
    run.fit(net, ones(10))
    assert run.global_step == 5
    assert net.weight.item() == pytest.approx(-0.5)
    assert net.other.item() == pytest.approx(-1.0)


def test_a_step_that_returns_none_is_no_step():
    def training_step(self, batch, batch_idx):
        return None if batch_idx % 2 else Net.training_step(self, batch, batch_idx)

    run = trainer()
    run.fit(with_methods(Net, training_step), ones(4))
    assert run.global_step == 2


def test_a_step_that_the_loss_scaler_skips_is_not_counted():
    def training_step(self, batch, batch_idx):
        return (self.weight * batch).sum() * (1e38 if batch_idx % 2 else 1.0)

    net = with_methods(Net(scheduled(STEP_LR, interval="step")), training_step)
    run = trainer(plugins=[MixedPrecision("16-mixed", scaler=torch.amp.GradScaler("cpu"))])
    precision._warn_of_float16_on_cpu.cache_clear()
    with pytest.warns(UserWarning, match="float16 on the CPU"):
        run.fit(net, ones(4))
    assert (run.global_step, net.lr_schedulers().last_epoch) == (2, 2)


def test_manual_optimization_leaves_the_schedules_to_the_module():
    def configure_optimizers(self):
        optimizers = TwoOptimizers.configure_optimizers(self)
        return optimizers, [torch.optim.lr_scheduler.StepLR(optimizer, 1) for optimizer in optimizers]

    net = with_methods(TwoOptimizers(manual=True), configure_optimizers)
    trainer(max_epochs=2).fit(net, ones(2))
    assert [schedule.last_epoch for schedule in net.lr_schedulers()] == [0, 0]


def test_a_schedule_that_does_not_fit_the_run_is_reported_before_training():
    cycle = partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=1.0, total_steps=3)
    with pytest.raises(MisconfigurationException, match=r"total_steps=3.*but this run calls it 5 times"):
        trainer().fit(Net(scheduled(cycle, interval="step")), ones(5))


def test_a_schedule_per_epoch_that_will_never_step_is_reported():
    with pytest.warns(UserWarning, match="the learning rate will never change"):
        trainer(max_steps=3).fit(Net(scheduled(STEP_LR)), ones(5))


def test_16_mixed_on_the_cpu_is_float16():
    def training_step(self, batch, batch_idx):
        self.dtype_seen = torch.mm(batch, batch).dtype
        return (self.weight * batch).sum()

    net = with_methods(Net, training_step)
    precision._warn_of_float16_on_cpu.cache_clear()  # it warns once per process
    with pytest.warns(UserWarning, match="float16 on the CPU"):
        trainer(precision="16-mixed").fit(net, [torch.ones(1, 1)])
    assert net.dtype_seen is torch.float16


class Noise(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.rand(())


@pytest.mark.processes
def test_what_workers_draw_does_not_depend_on_their_number():
    def drawn(workers):
        torch.manual_seed(1)
        module = Net()
        Trainer(**QUIET).fit(module, DataLoader(Noise(), batch_size=None, num_workers=workers))
        return module.seen

    assert drawn(1) == drawn(2)
    assert len(set(drawn(2))) == 4


def test_generators_of_samplers_are_in_the_checkpoint(tmp_path):
    def data():
        return DataLoader(torch.arange(6.0), batch_size=None, shuffle=True, generator=torch.Generator().manual_seed(2))

    whole, rest, loader = Net(), Net(), data()
    trainer = Trainer(**QUIET)
    trainer.fit(whole, loader)
    trainer.save_checkpoint(tmp_path / "one.ckpt")
    trainer.max_epochs = 2
    trainer.fit(whole, loader)
    Trainer(**{**QUIET, "max_epochs": 2}).fit(rest, data(), ckpt_path=tmp_path / "one.ckpt")
    assert rest.seen == whole.seen
    assert len(whole.seen) == 12


def test_logged_values_are_detached_also_with_enable_graph():
    def training_step(self, batch, batch_idx):
        loss = (self.weight * batch).sum()
        self.log("loss", loss, enable_graph=True)
        assert not self.trainer.callback_metrics["loss"].requires_grad
        return loss

    trainer().fit(with_methods(Net, training_step), ones(1))


# order and counting


def test_gradients_are_zeroed_before_the_training_step():
    order = []

    def training_step(self, batch, batch_idx):
        order.append("step")
        return Net.training_step(self, batch, batch_idx)

    trainer().fit(
        with_methods(Net, training_step, on_before_zero_grad=lambda self, optimizer: order.append("zero_grad")), ones(1)
    )
    assert order == ["zero_grad", "step"]


def test_loaders_are_asked_for_once_per_fit_and_before_the_optimizers():
    order = []

    def train_dataloader(self):
        order.append("train")
        return ones(2)

    def val_dataloader(self):
        order.append("val")
        return ones(2)

    def configure_optimizers(self):
        order.append("optimizers")
        assert self.trainer.estimated_stepping_batches == 4
        return Validated.configure_optimizers(self)

    trainer(max_epochs=2).fit(with_methods(Validated, train_dataloader, val_dataloader, configure_optimizers))
    assert order == ["train", "val", "optimizers"]


def test_a_schedule_per_epoch_steps_after_on_train_epoch_end():
    rates = []

    def on_train_epoch_end(self):
        rates.append(self.optimizers().param_groups[0]["lr"])

    trainer(max_epochs=2).fit(with_methods(Net(scheduled(STEP_LR, lr=1.0)), on_train_epoch_end), ones(1))
    assert rates == pytest.approx([1.0, 0.1])


def test_the_x_axis_of_the_loggers_is_global_step():
    logger = Recorder()
    run = trainer(logger=logger, log_every_n_steps=2)

    def training_step(self, batch, batch_idx):
        loss = Net.training_step(self, batch, batch_idx)
        self.log("loss", loss)
        return loss

    run.fit(with_methods(Net, training_step), ones(4))
    assert [step for step, row in logger.rows if "loss" in row] == [2, 4]
    assert [step for step, row in logger.rows if "value" in row] == [4]


def test_the_loss_in_on_train_batch_end_is_the_one_that_was_returned():
    losses = []
    net = Net()
    torch.nn.init.ones_(net.weight)
    note = LambdaCallback(on_train_batch_end=lambda t, m, outputs, batch, i: losses.append(outputs["loss"].item()))
    trainer(accumulate_grad_batches=2, callbacks=[note]).fit(net, ones(2))
    assert losses == [1.0, 1.0]


def test_a_file_that_a_hook_saves_has_the_accumulated_gradients():
    saved = []

    class Saves(Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if batch_idx == 0:
                trainer.save_checkpoint("asked.ckpt")
                saved.append(torch.load("asked.ckpt", weights_only=True))

    net = Net()
    trainer(accumulate_grad_batches=2, callbacks=[Saves()]).fit(net, ones(4))
    resumed = Net()
    trainer(accumulate_grad_batches=2).fit(resumed, ones(4), ckpt_path="asked.ckpt")
    assert saved[0]["global_step"] == 0
    assert resumed.weight.equal(net.weight)


def test_callbacks_are_called_by_priority_and_checkpoints_last():
    first = LambdaCallback()
    first.priority = "high"
    normal, checkpoint = LambdaCallback(), ModelCheckpoint("saved")
    assert trainer(callbacks=[checkpoint, normal, first], enable_checkpointing=None).callbacks == [
        first,
        normal,
        checkpoint,
    ]


def test_a_stop_within_an_epoch_leaves_current_epoch():
    def training_step(self, batch, batch_idx):
        self.trainer.should_stop = batch_idx == 1
        return Net.training_step(self, batch, batch_idx)

    def on_train_epoch_end(self):
        self.ended += 1

    run, net = trainer(max_epochs=2), with_methods(Net, training_step, on_train_epoch_end, ended=0)
    run.fit(net, ones(4))
    assert (run.current_epoch, run.global_step, net.ended) == (0, 2, 1)


def test_a_checkpoint_beyond_max_epochs_ends_well(caplog):
    first = trainer(max_epochs=3)
    first.fit(Net(), ones(2))
    first.save_checkpoint("done.ckpt")
    run = trainer(max_epochs=2)
    with caplog.at_level("INFO", logger="lightlib"):
        run.fit(Net(), ones(2), ckpt_path="done.ckpt")
    assert any(message.startswith("Nothing to train: the run is already at epoch 3") for message in caplog.messages)
    assert (run.current_epoch, run.global_step) == (3, 6)


def test_a_training_loader_that_gives_no_batch_is_an_error():
    with pytest.raises(MisconfigurationException, match="gave no batch in epoch 1"):
        trainer(max_epochs=2).fit(Net(), iter(ones(2)))


def test_an_iterable_that_ends_before_its_limit_is_validated():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(ones(3))

    seen = []
    net = Validated()
    net.on_validation_end = lambda: seen.append(run.global_step)
    run = trainer(max_epochs=2, limit_train_batches=5, num_sanity_val_steps=0)
    run.fit(net, DataLoader(Stream(), batch_size=None), ones(1))
    assert seen == [3, 6]


@pytest.mark.parametrize("kind", [True, "link"])
def test_the_last_file_is_the_latest_state(kind, tmp_path):
    def validation_step(self, batch, batch_idx):
        self.log("val", 1.0)

    def fit(epochs, path=None):
        keep = ModelCheckpoint(tmp_path, monitor="val", save_last=kind)
        arguments = {"callbacks": [keep], "enable_checkpointing": None, "max_epochs": epochs}
        trainer(**arguments).fit(with_methods(Validated, validation_step), ones(2), ones(1), ckpt_path=path)
        last = tmp_path / "last.ckpt"
        assert torch.load(last)["global_step"] == 2 * epochs
        assert {file.name for file in tmp_path.glob("*.ckpt")} == {"epoch=0-step=2.ckpt", "last.ckpt"}

    fit(3)
    fit(4, tmp_path / "last.ckpt")


def test_overfit_batches_leaves_validation_off():
    run = trainer(overfit_batches=2, limit_val_batches=0)
    run.fit(Validated(), ones(4), ones(4))
    assert (run.global_step, "val" in run.callback_metrics) == (2, False)


def test_loaders_can_be_trained_on_one_after_the_other():
    net = Net()
    trainer().fit(net, CombinedLoader([numbers(2), numbers(3)], mode="sequential"))
    assert net.seen == [0, 1, 0, 1, 2]


def test_a_step_gets_its_batch():
    with pytest.raises(MisconfigurationException, match="each call gets one batch"):
        trainer().fit(with_methods(Net, training_step=lambda self, dataloader_iter: next(dataloader_iter)), ones(1))


def test_lbfgs_does_not_accumulate():
    second = with_methods(Net, configure_optimizers=lambda self: torch.optim.LBFGS(self.parameters()))
    with pytest.raises(MisconfigurationException, match="LBFGS together with accumulate_grad_batches=2"):
        trainer(accumulate_grad_batches=2).fit(second, ones(2))


def test_epochs_are_counted_on_with_the_same_module_and_anew_with_another():
    run, net = trainer(), Net()
    run.fit(net, ones(1))
    run.max_epochs = 3
    run.fit(net, ones(1))
    assert (run.current_epoch, run.global_step) == (3, 3)
    run.fit(Net(), ones(1))
    assert (run.current_epoch, run.global_step) == (3, 3)


# loading and saving


def test_arguments_that_the_class_does_not_take_are_an_error():
    run = trainer()
    run.fit(Net(), ones(1))
    run.save_checkpoint("net.ckpt")
    with pytest.raises(CheckpointError, match="Net has no argument 'unknown'"):
        Net.load_from_checkpoint("net.ckpt", unknown=1)


def test_ckpt_path_last_without_a_last_checkpoint_is_an_error():
    with pytest.raises(CheckpointError, match="there is no last checkpoint"):
        trainer(callbacks=[ModelCheckpoint("saved")], enable_checkpointing=None).fit(Net(), ones(1), ckpt_path="last")


def test_hyperparameters_are_stored_as_plain_values():
    class WithPath(Net):
        def __init__(self, folder):
            super().__init__()
            self.save_hyperparameters()

    run = trainer()
    run.fit(WithPath(pathlib.Path("data")), ones(1))
    run.save_checkpoint("plain.ckpt")
    assert WithPath.load_from_checkpoint("plain.ckpt").hparams.folder == "data"


class _Payload:
    def __reduce__(self):
        return pathlib.Path.touch, (pathlib.Path("ran"),)


def test_a_checkpoint_is_read_without_running_code():
    torch.save({"state_dict": {}, "payload": _Payload()}, "bad.ckpt")
    with pytest.raises(CheckpointError, match="weights_only=False"):
        Net.load_from_checkpoint("bad.ckpt")
    assert not pathlib.Path("ran").exists()


def test_no_loader_is_rebuilt():
    loader = numbers(4)

    run = trainer()
    run.predict(with_methods(Net, forward=lambda self, batch: batch), loader)
    assert run.predict_dataloaders is loader
    run.fit(Net(), loader)
    assert run.train_dataloader is loader


# errors and warnings


def test_a_monitored_validation_without_data_and_data_without_a_step_are_errors():
    with pytest.raises(MisconfigurationException, match="no validation loaders, so nothing logs this metric"):
        trainer(callbacks=EarlyStopping("val_loss")).fit(Validated(), ones(1))
    with pytest.raises(MisconfigurationException, match="no validation_step"):
        trainer().fit(Net(), ones(1), ones(1))
    trainer(limit_val_batches=0).fit(Validated(), ones(1))


@pytest.mark.parametrize("verb", ["validate", "test", "predict"])
def test_an_evaluation_of_no_loaders_is_an_error(verb):
    with pytest.raises(MisconfigurationException, match=r"dataloaders is \[\], which holds no loader"):
        getattr(trainer(), verb)(Validated(), [])


def test_a_schedule_that_cannot_be_saved_is_an_error_also_in_manual_optimization():
    class Steps:
        def step(self):
            pass

    def configure_optimizers(self):
        return TwoOptimizers.configure_optimizers(self), [Steps()]

    with pytest.raises(MisconfigurationException, match="where a scheduler belongs"):
        trainer().fit(with_methods(TwoOptimizers(manual=True), configure_optimizers), ones(1))


def test_a_misspelt_hook_is_reported():
    with pytest.warns(UserWarning, match="Did you mean 'on_validation_epoch_end'"):
        trainer().fit(with_methods(Net, on_validaton_epoch_end=lambda self: None), ones(1))


def test_hooks_with_other_arguments_are_refused_before_the_run():
    class OfOne(Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx):
            pass

    with pytest.raises(MisconfigurationException, match=r"Lightning 2\.0 removed `dataloader_idx`"):
        trainer(callbacks=OfOne())

    class Data(DataModule):
        prepared = False

        def prepare_data(self):
            Data.prepared = True

        def setup(self):
            pass

    with pytest.raises(MisconfigurationException, match=r"Data.setup has the arguments \(self\)"):
        trainer().fit(Net(), datamodule=Data())
    assert not Data.prepared


def test_an_unknown_trainer_argument_is_answered_with_the_nearest():
    with pytest.raises(TypeError, match="Did you mean 'max_epochs'"):
        Trainer(max_epoch=1)
    with pytest.raises(TypeError, match=r"from_datasets\(train_dataset=\(x, y\), batch_size=8\)"):
        trainer().fit(Net(), ones(1), batch_size=8)


def test_an_unknown_key_of_a_scheduler_is_an_error():
    with pytest.raises(MisconfigurationException, match="Did you mean 'interval'"):
        trainer().fit(Net(scheduled(STEP_LR, intervall="step")), ones(1))


def test_the_inside_of_the_trainer_is_not_lightnings():
    with pytest.raises(AttributeError, match=r"trainer\.progress"):
        trainer().fit_loop  # noqa: B018


# the end of a run


class Torn(Callback):
    def __init__(self):
        self.calls = []

    def on_exception(self, trainer, pl_module, exception):
        self.calls.append(type(exception).__name__)

    def teardown(self, trainer, pl_module, stage):
        self.calls.append("teardown")


def test_teardown_is_called_after_an_exception():
    torn = Torn()
    with pytest.raises(ZeroDivisionError):
        trainer(callbacks=[torn]).fit(with_methods(Net, training_step=raising(ZeroDivisionError)), ones(1))
    assert torn.calls == ["ZeroDivisionError", "teardown"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_run_at_the_next_step_boundary_with_a_checkpoint(number, code):
    def training_step(self, batch, batch_idx):
        if batch_idx == 2:
            signal.raise_signal(number)

    torn, net = Torn(), calling(Net, training_step)
    run = trainer(callbacks=[torn, ModelCheckpoint("saved")], enable_checkpointing=None, accumulate_grad_batches=2)
    with pytest.raises(SystemExit) as raised:
        run.fit(net, ones(8))
    assert raised.value.code == code
    assert len(net.seen) == 4
    assert torch.load("saved/interrupted.ckpt")["global_step"] == 2
    assert torn.calls[-1] == "teardown"
    assert run.interrupted


def test_a_logger_that_raises_does_not_end_the_run():
    class Broken(Recorder):
        def log_metrics(self, metrics, step=None):
            raise ConnectionError("the service is away")

    run = trainer(logger=Broken(), log_every_n_steps=1)
    with pytest.warns(UserWarning, match="the service is away"):
        run.fit(Net(), ones(2))
    assert run.global_step == 2


def test_a_run_that_only_max_steps_can_end_is_refused_after_an_epoch_without_a_loss():
    silent = with_methods(Net, training_step=lambda self, batch, batch_idx: None)
    with pytest.raises(MisconfigurationException, match="Only max_steps=5 ends this run"):
        trainer(max_epochs=-1, max_steps=5).fit(silent, ones(2))


def test_the_optimizers_of_torch_step_without_a_closure_and_those_of_others_with_one():
    class Own(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    def configure_optimizers(self):
        optimizer = self.kind(self.parameters(), lr=0.1)
        optimizer.register_step_pre_hook(lambda optimizer, args, options: calls.append(len(args[1:])))
        return optimizer

    calls, nets = [], []
    for kind in (torch.optim.SGD, Own):
        nets.append(with_methods(Net, configure_optimizers))
        nets[-1].kind = kind
        trainer().fit(nets[-1], ones(1))
    assert calls[:2] == [0, 1]
    assert nets[0].weight == nets[1].weight


def test_data_sets_of_training_loaders_are_told_the_epoch():
    class Told(torch.utils.data.TensorDataset):
        def set_epoch(self, epoch):
            told.append(epoch)

    told = []
    trainer(max_epochs=2).fit(Tensors(), DataLoader(Told(torch.ones(4)), batch_size=2))
    assert told == [0, 1]


def test_the_number_of_steps_before_fit_is_an_error():
    with pytest.raises(MisconfigurationException, match="estimated_stepping_batches was read before fit"):
        _ = trainer().estimated_stepping_batches


# names


def test_the_tables_of_names_are_current():
    assert is_current(), "docs/names.md is out of date: run `python scripts/names_of_lightning.py --write`"


# additions


def test_data_sets_and_tensors_are_served():
    run = trainer()
    run.fit(Tensors(), torch.arange(64.0))
    assert run.num_training_batches == 2


class Tensors(Net):
    def training_step(self, batch, batch_idx):
        return (self.weight * batch[0]).sum()
