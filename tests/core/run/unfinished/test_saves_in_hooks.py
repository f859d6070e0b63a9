"""`trainer.save_checkpoint` in a hook writes at once, and a run resumes exactly from its file."""

from __future__ import annotations

import os

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric

from lightlib.callbacks import Callback, EarlyStopping, ModelCheckpoint
from lightlib.checkpoint import load
from lightlib.errors import MisconfigurationException
from lightlib.report import PossibleUserWarning
from tests.runs.plain import Net, Rows, batches, quiet_trainer, same_weights, samples, with_methods
from tests.runs.resumable import Everything, fresh, loaders, run, trainer_for

EXACT = (
    "on_train_start",
    "on_train_epoch_start",
    "on_train_batch_start",
    "on_train_batch_end",
    "on_accumulation_end",
    "on_validation_start",
    "on_validation_epoch_start",
    "on_validation_batch_start",
    "on_validation_batch_end",
    "on_validation_epoch_end",
    "on_validation_end",
    "on_train_epoch_end",
    "on_fit_epoch_end",
    "on_train_end",
)
REPEATS_ITS_BATCH = ("on_before_backward", "on_after_backward", "on_before_optimizer_step")


def saves_in(hook, path, call):
    """Return a callback that saves when `hook` is called for the `call`-th time."""

    def save(self, trainer, pl_module, *args):
        self.calls += 1
        if self.calls == call:
            trainer.save_checkpoint(path)
            assert os.path.exists(path)
            self.rows = len(trainer.logger.rows)

    attributes = {hook: save, "calls": 0, "rows": None, "not_in_checkpoint": ("calls", "rows")}
    return type("Saves", (Callback,), attributes)()


class Counts(Callback):
    """Counts the calls that follow those of the callback that saves, and changes the weights with each."""

    def __init__(self):
        self.calls = dict.fromkeys(EXACT[1:-1], 0)

    def state_dict(self):
        return dict(self.calls)

    def load_state_dict(self, state_dict):
        self.calls = dict(state_dict)


def _counting(hook):
    def count(self, trainer, pl_module, *args):
        self.calls[hook] += 1
        if hook == "on_train_batch_end":
            assert set(args[0]) == {"loss"}
            assert len(args[1]) == 2
            pl_module.log("size", float(len(args[1][0])), on_step=True, on_epoch=True)
        with torch.no_grad():
            pl_module.net[0].bias.add_(0.001)

    return count


for _name in EXACT[1:-1]:
    if "_validation_" not in _name or _name == "on_validation_end":
        setattr(Counts, _name, _counting(_name))


def data():
    return DataLoader(TensorDataset(*samples(26)), 4, shuffle=True), loaders()[1]


def trained(*callbacks, **arguments):
    after = Counts()
    settings = {"max_epochs": 3, "num_sanity_val_steps": 0, **arguments}
    return after, trainer_for(*callbacks, after, EarlyStopping("val_loss", patience=50), **settings)


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("hook", EXACT)
def test_the_resumed_run_ends_as_the_one_that_continued(tmp_path, hook, accumulate):
    saves = saves_in(hook, tmp_path / "a.ckpt", 1 if hook in ("on_train_start", "on_train_end") else 5)
    if hook in ("on_train_epoch_start", "on_train_epoch_end", "on_fit_epoch_end"):
        saves.calls = 3  # the second epoch
    counted, trainer = trained(saves, accumulate_grad_batches=accumulate)
    complete, trainer = run(fresh(), trainer, data())
    counted_again, other = trained(accumulate_grad_batches=accumulate)
    resumed, other = run(fresh(9), other, data(), tmp_path / "a.ckpt", seed=5)
    assert same_weights(resumed, complete)
    assert counted_again.calls == counted.calls
    assert other.progress == trainer.progress
    assert other.early_stopping_callback.wait_count == trainer.early_stopping_callback.wait_count
    assert other.logger.rows == trainer.logger.rows[saves.rows :]


def test_saving_changes_nothing(tmp_path):
    savers = [saves_in(hook, tmp_path / f"{hook}.ckpt", 2) for hook in EXACT[1:-1]]
    complete, trainer = run(fresh(), trained(*savers, accumulate_grad_batches=3)[1], data())
    without, other = run(fresh(), trained(accumulate_grad_batches=3)[1], data())
    assert same_weights(complete, without)
    assert trainer.logger.rows == other.logger.rows


@pytest.mark.parametrize("hook", REPEATS_ITS_BATCH)
def test_within_a_batch_the_file_stands_for_the_batches_before_it(tmp_path, hook):
    saves = saves_in(hook, tmp_path / "a.ckpt", 3)
    with pytest.warns(PossibleUserWarning, match=r"the batch that is running: a resumed run repeats it"):
        quiet_trainer(callbacks=[saves], logger=Rows()).fit(Net(), batches(5))
    assert load(tmp_path / "a.ckpt")["lightlib"]["progress"]["batch"] == 2
    complete, resumed = Net(), Net()
    quiet_trainer().fit(complete, batches(5))
    trainer = quiet_trainer()
    trainer.fit(resumed, batches(5), ckpt_path=tmp_path / "a.ckpt")
    assert trainer.global_step == 5
    assert same_weights(resumed, complete)  # the batch draws no random numbers


def test_after_the_step_of_a_batch_the_file_stands_for_that_batch(tmp_path):
    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
        Net.optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure)
        if batch_idx == 2:
            self.trainer.save_checkpoint(tmp_path / "a.ckpt")

    complete, resumed = with_methods(Net, optimizer_step), Net()
    with pytest.warns(PossibleUserWarning, match="a resumed run continues with the next one"):
        quiet_trainer().fit(complete, batches(5))
    progress = load(tmp_path / "a.ckpt")["lightlib"]["progress"]
    assert (progress["batch"], progress["step"]) == (3, 3)
    quiet_trainer().fit(resumed, batches(5), ckpt_path=tmp_path / "a.ckpt")
    assert same_weights(resumed, complete)


def test_a_hook_that_raises_after_the_save_leaves_the_file(tmp_path):
    class Fails(Callback):
        def on_train_batch_end(self, trainer, *args):
            trainer.save_checkpoint(tmp_path / "a.ckpt")
            raise ValueError("after the save")

    with pytest.raises(ValueError, match="after the save"):
        quiet_trainer(callbacks=[Fails()]).fit(Net(), batches(3))
    assert load(tmp_path / "a.ckpt")["global_step"] == 1


def test_the_files_of_a_run_that_is_killed_between_two_saves(tmp_path):
    """A save of ModelCheckpoint that waits for its save point is made up for, after the validation that is due."""

    class Kills(Callback):
        def on_validation_end(self, trainer, pl_module):
            if trainer.progress.batch == 6:
                trainer.save_checkpoint(tmp_path / "mine.ckpt")
                raise KeyboardInterrupt

    def saver(folder):
        return ModelCheckpoint(tmp_path / folder, every_n_train_steps=6, monitor="val_loss", save_top_k=-1)

    saves = {"enable_checkpointing": True, "max_epochs": 1}
    run(fresh(), trainer_for(saver("complete"), **saves), loaders())
    with pytest.raises(SystemExit):
        run(fresh(), trainer_for(Kills(), saver("killed"), **saves), loaders())
    run(fresh(9), trainer_for(saver("killed"), **saves), loaders(), tmp_path / "mine.ckpt", seed=5)
    assert sorted(os.listdir(tmp_path / "killed")) == sorted(os.listdir(tmp_path / "complete"))
    for name in os.listdir(tmp_path / "complete"):
        one, other = (load(tmp_path / folder / name) for folder in ("complete", "killed"))
        assert one["lightlib"]["progress"] == other["lightlib"]["progress"]
        assert all(torch.equal(value, other["state_dict"][key]) for key, value in one["state_dict"].items())


class LogsSteps(Net):
    """Logs the mean of the step counter over a validation as a torchmetric, which its last hook of one reads."""

    def __init__(self):
        super().__init__()
        self.steps, self.read = MeanMetric(), []

    def validation_step(self, batch, batch_idx):
        self.steps.update(float(self.trainer.global_step))
        self.log("steps", self.steps)

    def on_validation_end(self):
        self.read.append(self.steps.compute().item())


def test_a_metric_that_was_read_is_reset_before_the_next_validation(tmp_path):
    def fit(module, *callbacks, path=None):
        one = quiet_trainer(callbacks=list(callbacks), logger=Rows(), val_check_interval=1)
        one.fit(module, batches(3), batches(2), ckpt_path=path)
        return module.read, [row["steps"] for _, row in one.logger.rows if "steps" in row]

    assert fit(LogsSteps(), saves_in("on_validation_end", tmp_path / "a.ckpt", 1)) == ([1, 2, 3], [1, 2, 3])
    assert fit(LogsSteps(), path=tmp_path / "a.ckpt") == ([1, 2, 3], [2, 3])


class First(Callback):
    def on_validation_end(self, trainer, pl_module):
        pass


class Second(First):
    pass


def test_callbacks_in_another_order_are_named(tmp_path):
    saves = saves_in("on_validation_end", tmp_path / "a.ckpt", 2)
    run(fresh(), trainer_for(saves, First(), Second()), data())
    with pytest.warns(UserWarning, match=r"within on_validation_end, and First, Second had yet to be called"):
        run(fresh(9), trainer_for(Second(), First()), data(), tmp_path / "a.ckpt")


def test_a_callback_that_was_removed_is_not_called(tmp_path):
    saves = saves_in("on_validation_end", tmp_path / "a.ckpt", 2)
    run(fresh(), trainer_for(saves, First(), Second()), data())
    run(fresh(9), trainer_for(Second()), data(), tmp_path / "a.ckpt")


class Holds:
    """An object that no checkpoint can hold."""

    def __init__(self, tensor):
        self.tensor = tensor


def test_a_batch_that_cannot_be_stored_is_named(tmp_path):
    saves = saves_in("on_train_batch_end", tmp_path / "a.ckpt", 2)
    with pytest.warns(PossibleUserWarning, match=r"the arguments of Given.on_train_batch_end(.|\n)*Holds"):
        quiet_trainer(callbacks=[saves], logger=Rows()).fit(
            with_methods(
                training_step=lambda self, batch, batch_idx: Net.training_step(self, batch.tensor, batch_idx),
                on_train_batch_end=lambda self, outputs, batch, batch_idx: None,
            ),
            [Holds(batch) for batch in batches(4)],
        )
    assert load(tmp_path / "a.ckpt")["global_step"] == 2


@pytest.mark.parametrize("hook", ["on_save_checkpoint", "state_dict"])
def test_a_save_within_a_save_is_refused(tmp_path, hook):
    class Nested(Callback):
        def state_dict(self):
            return self.save() if hook == "state_dict" else {}

        def on_save_checkpoint(self, trainer, pl_module, checkpoint):
            self.save()

        def save(self):
            self.trainer.save_checkpoint(tmp_path / "b.ckpt")

    callback = Nested()
    trainer = callback.trainer = quiet_trainer(callbacks=[callback])
    trainer.fit(Net(), batches(1))
    with pytest.raises(MisconfigurationException, match=r"b.ckpt.* was called within another save"):
        trainer.save_checkpoint(tmp_path / "a.ckpt")
    assert not os.listdir(tmp_path)


class TwoFrequencies(Everything):
    """One optimizer steps with each batch, the other with the gradients of three."""

    def __init__(self, clears_to_none=True):
        super().__init__()
        self.automatic_optimization = False
        self.clears_to_none = clears_to_none
        self.seen = 0

    def training_step(self, batch, batch_idx):
        often, rarely = self.optimizers()
        self.manual_backward(super().training_step(batch, batch_idx))
        self.seen += 1
        often.step()
        often.zero_grad(set_to_none=self.clears_to_none)
        if self.seen % 3 == 0:
            rarely.step()
            rarely.zero_grad(set_to_none=self.clears_to_none)

    def configure_optimizers(self):
        parts = self.net[4].parameters(), self.net[0].parameters()
        return [torch.optim.AdamW(parameters, lr=0.02) for parameters in parts]


@pytest.mark.parametrize("clears_to_none", [True, False])
@pytest.mark.parametrize("step", [3, 4, 5, 8])
def test_gradients_that_the_module_accumulates(tmp_path, step, clears_to_none):
    saves = saves_in("on_train_batch_end", tmp_path / "a.ckpt", step)
    torch.manual_seed(1)
    complete, _ = run(TwoFrequencies(clears_to_none), trainer_for(saves), data())
    resumed, _ = run(TwoFrequencies(clears_to_none), trainer_for(), data(), tmp_path / "a.ckpt", seed=5)
    assert same_weights(resumed, complete)


def test_gradients_that_a_step_has_used_are_not_stored(tmp_path):
    def training_step(self, batch, batch_idx):
        for optimizer in self.optimizers():
            optimizer.zero_grad()
        self.manual_backward(Everything.training_step(self, batch, batch_idx))
        for optimizer in self.optimizers():
            optimizer.step()

    saver = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1)
    run(with_methods(TwoFrequencies, training_step), trainer_for(saver, enable_checkpointing=True), data())
    assert "unfinished" not in load(tmp_path / "step=3.ckpt")["lightlib"]


def test_gradients_that_optimizer_zero_grad_keeps(tmp_path):
    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
        optimizer_closure()
        if self.trainer.progress.batch % 3 == 2:
            optimizer.step()

    def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
        if self.trainer.progress.batch % 3 == 0:
            optimizer.zero_grad()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.02)

    def made(seed):
        torch.manual_seed(seed)
        return with_methods(Everything, optimizer_step, optimizer_zero_grad, configure_optimizers)

    saves = saves_in("on_train_batch_end", tmp_path / "a.ckpt", 5)
    complete, _ = run(made(1), trainer_for(saves), data())
    resumed, _ = run(made(9), trainer_for(), data(), tmp_path / "a.ckpt", seed=5)
    assert same_weights(resumed, complete)
