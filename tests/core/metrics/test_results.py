"""`self.log`: where it may be called, how values are reduced, and when they can be read."""

from __future__ import annotations

import math

import pytest
import torch
import torchmetrics

from lightlib.callbacks import ModelCheckpoint
from lightlib.callbacks.callback import Callback
from lightlib.core.metrics.batch_size import BatchSize
from lightlib.core.trainer import Trainer
from lightlib.errors import LoggingError
from lightlib.report import PossibleUserWarning
from tests.runs.logs import Base, Several, logged, logging_in, run, verb_of
from tests.runs.plain import Net, batches, calling, quiet_trainer, with_methods

TRAINING_STEP = (
    "training_step", "on_train_batch_start", "on_train_batch_end", "on_before_backward", "backward",
    "on_after_backward", "on_before_optimizer_step", "optimizer_step", "optimizer_zero_grad", "on_before_zero_grad",
    "configure_gradient_clipping", "lr_scheduler_step",
)  # fmt: skip
EVALUATION_STEP = tuple(
    name
    for stage in ("validation", "test")
    for name in (f"{stage}_step", f"on_{stage}_batch_start", f"on_{stage}_batch_end")
)
EPOCH = (
    "on_train_start", "on_train_epoch_start", "on_train_epoch_end", "on_validation_start", "on_validation_epoch_start",
    "on_validation_epoch_end", "on_test_start", "on_test_epoch_start", "on_test_epoch_end",
)  # fmt: skip
BETWEEN = ("configure_optimizers", "train_dataloader", "on_save_checkpoint")
NOWHERE = (
    "setup", "on_fit_start", "on_train_end", "on_fit_end", "on_validation_end", "on_test_end", "predict_step",
    "on_predict_start", "on_predict_batch_end", *BETWEEN,
)  # fmt: skip


class TestWhere:
    @pytest.mark.parametrize("hook", TRAINING_STEP)
    def test_around_the_training_step(self, hook):
        rows, trainer = run(logging_in(hook), verb_of(hook))
        assert logged(rows) == [(1, "v", 1.0), (2, "v", 2.0)]
        assert trainer.callback_metrics == {"v": 2.0}
        rows, trainer = run(logging_in(hook, on_epoch=True), verb_of(hook))
        assert logged(rows) == [(1, "v_step", 1.0), (2, "v_step", 2.0), (2, "v_epoch", 1.5)]
        assert trainer.callback_metrics == {"v": 1.5, "v_step": 2.0, "v_epoch": 1.5}
        rows, trainer = run(logging_in(hook, on_step=False, on_epoch=True), verb_of(hook))
        assert logged(rows) == [(2, "v", 1.5)]
        assert trainer.callback_metrics == {"v": 1.5}

    @pytest.mark.parametrize("hook", EVALUATION_STEP)
    def test_around_an_evaluation_step(self, hook):
        at = 2 if "validation" in hook else 0  # the optimizer step at which it happens
        rows, trainer = run(logging_in(hook), verb_of(hook))
        assert logged(rows) == [(at, "v", 1.5)]
        assert trainer.callback_metrics == {"v": 1.5}
        rows, trainer = run(logging_in(hook, on_step=True), verb_of(hook))
        assert logged(rows) == [(at, "v_step", 1.0), (at, "v_step", 2.0), (at, "v_epoch", 1.5)]
        assert trainer.callback_metrics == {"v": 1.5, "v_epoch": 1.5}, "no values of single steps, as in Lightning"
        rows, trainer = run(logging_in(hook, on_step=True, on_epoch=False), verb_of(hook))
        assert logged(rows) == [(at, "v", 1.0), (at, "v", 2.0)]
        assert trainer.callback_metrics == {}

    @pytest.mark.parametrize("hook", EPOCH)
    def test_once_per_epoch(self, hook):
        at = 0 if "test" in hook else 2
        rows, trainer = run(logging_in(hook), verb_of(hook))
        assert logged(rows) == [(at, "v", 1.0)]
        assert trainer.callback_metrics == {"v": 1.0}
        with pytest.raises(
            LoggingError, match=rf"on_step=True\) was called in `{hook}`, which is called once per epoch"
        ):
            run(logging_in(hook, on_step=True), verb_of(hook))

    @pytest.mark.parametrize("hook", NOWHERE)
    def test_where_it_has_no_meaning(self, hook, tmp_path):
        module = logging_in(hook)
        where = "outside of a run" if hook in BETWEEN else f"in `{hook}`"
        with pytest.raises(LoggingError, match=f"was called {where}, where it has no meaning"):  # noqa: PT012
            _, trainer = run(module, verb_of(hook))
            trainer.save_checkpoint(tmp_path / "one.ckpt")

    def test_neither_on_step_nor_on_epoch(self):
        with pytest.raises(LoggingError, match="on_step=False, on_epoch=False"):
            run(logging_in("training_step", on_step=False))

    def test_outside_of_a_run(self):
        with pytest.warns(UserWarning, match="was called outside a Trainer's run"):
            Base().log("v", 1.0)

    def test_in_a_callback(self):
        class Logs(Callback):
            def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
                pl_module.log("by_module", batch_idx)
                self.log("by_callback", batch_idx, on_epoch=True)

            def on_validation_epoch_end(self, trainer, pl_module):
                self.log_dict({"v1": 1, "v2": 2})

        callback = Logs()
        _, trainer = run(Base(), callbacks=[callback])
        assert trainer.callback_metrics == {
            "by_module": 1, "by_callback": 0.5, "by_callback_step": 1, "by_callback_epoch": 0.5, "v1": 1, "v2": 2,
        }  # fmt: skip
        with pytest.raises(RuntimeError, match="Logs logs outside of a run"):
            callback.log("v", 1.0)

    def test_nothing_stays_of_the_sanity_check(self):
        seen, at_end = {}, []

        logs = with_methods(
            Base,
            validation_step=lambda self, *_: self.log("v", 1.0, on_step=True, on_epoch=True, prog_bar=True),
            on_train_start=lambda self: seen.update(self.trainer.callback_metrics | self.trainer.progress_bar_metrics),
        )
        rows, _ = run(logs, num_sanity_val_steps=2, limit_train_batches=1, callbacks=[ReadsAtSanityEnd(at_end)])
        assert at_end == [({"v": 1, "v_epoch": 1}, {"v_step": 1, "v_epoch": 1})]
        assert seen == {}
        assert {step for step, *_ in logged(rows)} == {1}


class ReadsAtSanityEnd(Callback):
    def __init__(self, found):
        self.found = found

    def on_sanity_check_end(self, trainer, pl_module):
        self.found.append((trainer.callback_metrics, trainer.progress_bar_metrics))


class Each(Base):
    """Logs each batch's numbers as one value, with these arguments."""

    def __init__(self, data, **arguments):
        super().__init__()
        self.data, self.arguments = data, {"on_epoch": True, "on_step": False, **arguments}

    def training_step(self, batch, batch_idx):
        self.log("v", batch.mean(), **self.arguments)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        self.log("w", batch.mean(), **self.arguments)

    def train_dataloader(self):
        return self.data

    val_dataloader = train_dataloader


UNEVEN = [torch.tensor([1.0, 2.0, 4.0]), torch.tensor([5.0, 9.0, 0.5]), torch.tensor([100.0])]


class TestReductions:
    def test_a_mean_counts_every_sample_once(self):
        _, trainer = run(Each(UNEVEN))
        by_hand = torch.cat(UNEVEN).double().mean().float()
        assert trainer.callback_metrics == {"v": by_hand, "w": by_hand}

    def test_with_a_batch_size_of_ones_own(self):
        _, trainer = run(Each(UNEVEN, batch_size=1))
        by_hand = torch.stack([batch.mean() for batch in UNEVEN]).mean()
        torch.testing.assert_close(trainer.callback_metrics["v"], by_hand)

    @pytest.mark.parametrize(
        ("reduce_fx", "expected"),
        [
            ("sum", 2.5 + 1.5 - 1.0), (torch.sum, 3.0), (sum, 3.0), ("min", -1.0), (torch.min, -1.0), (min, -1.0),
            ("max", 2.5), (torch.max, 2.5), (max, 2.5), ("mean", 1.0), (torch.mean, 1.0), ("SUM", 3.0),
        ],
    )  # fmt: skip
    def test_by_name_or_function(self, reduce_fx, expected):
        data = [torch.tensor([2.0, 3.0]), torch.tensor([1.0, 2.0]), torch.tensor([-1.0, -1.0])]
        _, trainer = run(Each(data, reduce_fx=reduce_fx))
        assert trainer.callback_metrics == {"v": expected, "w": expected}

    def test_unknown(self):
        with pytest.raises(LoggingError, match="uses an unknown reduction"):
            run(Each(UNEVEN, reduce_fx="median"))

    @pytest.mark.parametrize("reduce_fx", ["mean", "sum", "min", "max"])
    @pytest.mark.parametrize("place", [0, 1, 2])
    def test_nan_stays_nan(self, reduce_fx, place):
        data = [torch.tensor([float(i)]) for i in range(3)]
        data[place] = torch.tensor([math.nan])
        _, trainer = run(Each(data, reduce_fx=reduce_fx))
        assert trainer.callback_metrics["v"].isnan()

    def test_sums_are_in_double_precision(self):
        data = [torch.tensor([2.0**24])] + [torch.tensor([1.0])] * 64
        rows, _ = run(Each(data, reduce_fx="sum"))
        assert logged(rows) == [(65, "v", 2.0**24 + 64)]

    def test_a_value_of_an_epochs_end_is_replaced_if_the_epoch_continues(self, tmp_path):
        def logs(self):
            self.log("batches", float(self.trainer.progress.epoch_batch))
            if self.trainer.progress.epoch_batch == 3:
                self.trainer.save_checkpoint(tmp_path / "end.ckpt")

        module = with_methods(Base, on_train_epoch_end=logs)
        arguments = {"limit_val_batches": 0, "max_epochs": None}
        trainer = quiet_trainer(max_steps=2, **arguments)
        trainer.fit(module, UNEVEN)
        assert trainer.callback_metrics == {"batches": 2.0}
        trainer.save_checkpoint(tmp_path / "within.ckpt")
        trainer.max_steps = 3
        trainer.fit(module, UNEVEN)
        assert trainer.callback_metrics == {"batches": 3.0}
        for name in ("within", "end"):
            resumed = quiet_trainer(max_steps=3, **arguments)
            resumed.fit(module, UNEVEN, ckpt_path=tmp_path / f"{name}.ckpt")
            assert resumed.callback_metrics == {"batches": 3.0}

    def test_every_epoch_begins_anew(self):
        logs = calling(
            Base, training_step=lambda self, *_: self.log("v", float(self.current_epoch), on_step=True, on_epoch=True)
        )
        rows, _ = run(logs, max_epochs=3, limit_val_batches=0)
        assert [value for *_, name, value in logged(rows) if name == "v_epoch"] == [0, 1, 2]

    def test_a_value_that_is_changed_later_is_logged_as_it_was(self):
        def training_step(self, batch, batch_idx):
            value = torch.tensor(1.0)
            self.log("v", value, on_step=True, on_epoch=True)
            value.add_(100)

        rows, _ = run(calling(Base, training_step), limit_val_batches=0)
        assert {value for *_, value in logged(rows)} == {1.0}

    def test_a_value_without_its_graph(self):
        def training_step(self, batch, batch_idx):
            loss = Base.training_step(self, batch, batch_idx)
            self.log("v", loss, enable_graph=True)
            assert not self.trainer.callback_metrics["v"].requires_grad
            return loss

        run(with_methods(Base, training_step), limit_val_batches=0)

    def test_now_and_then(self):
        """An epoch that logs no value does not log the value of the epoch before."""

        def training_step(self, batch, batch_idx):
            if self.current_epoch != 1 and batch_idx == 0:
                self.log("v", float(self.current_epoch + 1), on_step=True, on_epoch=True)

        rows, _ = run(calling(Base, training_step), max_epochs=3, limit_val_batches=0)
        assert logged(rows) == [(1, "v_step", 1), (2, "v_epoch", 1), (5, "v_step", 3), (6, "v_epoch", 3)]

    def test_steps_between_two_hand_overs(self):
        def training_step(self, batch, batch_idx):
            self.log("v", float(self.global_step), on_step=True, on_epoch=True)
            return Base.training_step(self, batch, batch_idx)

        def train_dataloader(self):
            return [torch.ones(1)] * 7

        rows, _ = run(with_methods(Base, training_step, train_dataloader), log_every_n_steps=3, limit_val_batches=0)
        assert logged(rows) == [(3, "v_step", 2), (6, "v_step", 5), (7, "v_epoch", 3)]


class TestReaders:
    def test_the_x_axis_can_be_logged(self):
        logs = calling(
            Base, training_step=lambda self, batch, batch_idx: self.log_dict({"v": 1.0, "step": 10.0 * batch_idx})
        )
        rows, _ = run(logs, limit_val_batches=0)
        assert rows == [(0, {"v": 1.0, "epoch": 0}), (10, {"v": 1.0, "epoch": 0})]

    def test_logger_and_progress_bar_are_chosen_by_value(self):
        def training_step(self, batch, batch_idx):
            self.log("all", 1, prog_bar=True)
            self.log("bar", torch.tensor(2.0), prog_bar=True, logger=False, on_epoch=True)
            self.log("none", 3, logger=False)

        rows, trainer = run(calling(Base, training_step), limit_val_batches=0)
        assert logged(rows, "") == [(1, "all", 1), (1, "epoch", 0), (2, "all", 1), (2, "epoch", 0)]
        assert trainer.progress_bar_metrics == {"all": 1.0, "bar_step": 2.0, "bar_epoch": 2.0}
        assert {type(value) for value in trainer.progress_bar_metrics.values()} == {float}
        assert trainer.logged_metrics == {"all": 1}
        assert trainer.callback_metrics == {"all": 1, "bar": 2, "bar_step": 2, "bar_epoch": 2, "none": 3}
        assert all(isinstance(value, torch.Tensor) for value in trainer.callback_metrics.values())

    def test_at_each_moment_of_training(self):
        seen = []

        def training_step(self, batch, batch_idx):
            self.log("v", batch.mean(), on_step=True, on_epoch=True)
            return Base.training_step(self, batch, batch_idx)

        def on_train_batch_end(self, *_):
            seen.append({name: value.item() for name, value in self.trainer.callback_metrics.items()})

        module = with_methods(Base, training_step, on_train_batch_end, on_train_epoch_end=on_train_batch_end)
        run(module, limit_val_batches=0)
        assert seen == [{"v": 1, "v_step": 1}, {"v": 3, "v_step": 3}, {"v": 2, "v_step": 3, "v_epoch": 2}]

    def test_validation_within_training_keeps_what_training_logged(self):
        seen = {}

        def on_validation_epoch_end(self):
            seen["epoch_end"] = dict(self.trainer.callback_metrics)

        def on_validation_end(self):
            seen["end"] = dict(self.trainer.callback_metrics)

        module = with_methods(Each(UNEVEN, on_step=True), on_validation_epoch_end, on_validation_end)
        _, trainer = run(module, max_epochs=1)
        assert seen["end"].keys() == {"v", "v_step", "w", "w_epoch"}
        assert trainer.callback_metrics.keys() == {"v", "v_step", "v_epoch", "w", "w_epoch"}

    def test_returned_by_validate_and_test(self, capsys):
        def validation_step(self, batch, batch_idx):
            self.log("v", batch.mean(), on_step=True, on_epoch=True)
            self.log("only_step", 1.0, on_step=True, on_epoch=False)

        module = with_methods(Base, validation_step, on_validation_epoch_end=lambda self: self.log("end", 7))
        trainer = quiet_trainer()
        assert trainer.validate(module, verbose=False) == [{"v_epoch": 2.0, "end": 7.0}]
        assert capsys.readouterr().out == ""
        assert trainer.validate(module) == [{"v_epoch": 2.0, "end": 7.0}]
        assert "validate metric" in capsys.readouterr().out
        assert trainer.test(Base()) == [{}]


class TestSeveralLoaders:
    def test_names_get_the_name_of_the_loader(self):
        rows, trainer = run(Several())
        assert trainer.callback_metrics == {
            "v/a": 3, "v_epoch/a": 3, "v/b": 10, "v_epoch/b": 10, "own_0": 3, "own_1": 10, "all": 1,
        }  # fmt: skip
        steps = [(name, value) for _, name, value in logged(rows, "v_step")]
        assert steps == [
            ("v_step/a", 1.5),
            ("v_step/a", 6),
            ("v_step/b", 10),
        ]

    def test_returned_one_dictionary_per_loader(self):
        assert quiet_trainer().validate(Several(), verbose=False) == [
            {"v_epoch/a": 3, "own_0": 3, "all": 1},
            {"v_epoch/b": 10, "own_1": 10, "all": 1},
        ]

    def test_the_suffix_is_not_for_users(self):
        with pytest.raises(LoggingError, match="contains '/dataloader_idx_'"):
            run(Base(), callbacks=[Suffix()])


class Suffix(Callback):
    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        pl_module.log("v/dataloader_idx_0", 1.0)


# Regressions
@pytest.mark.filterwarnings("ignore::lightlib.report.LightlibWarning")
class TestBatchSize:
    def test_the_batch_size_of_many_tensors(self):
        with pytest.warns(PossibleUserWarning, match=r"differ \(4 and 3\)"):
            assert BatchSize()([torch.ones(4)] * 1000 + [torch.ones(3)]) == 4


@pytest.mark.filterwarnings("ignore::lightlib.report.LightlibWarning")
class TestInARun:
    def test_a_metric_of_several_numbers(self):
        def validation_step(self, batch, batch_idx):
            self.accuracy(self.net(batch[0]), batch[1])
            self.log("accuracy", self.accuracy)

        module = with_methods(Net, validation_step)
        module.accuracy = torchmetrics.classification.MulticlassAccuracy(3, average="none")
        with pytest.raises(LoggingError, match=r"'accuracy', …\) got a metric whose value is a tensor of shape \(3,\)"):
            quiet_trainer().fit(module, batches(1), batches(2))

    def test_the_logger_can_be_used_in_a_fast_dev_run(self):
        def on_train_start(self):
            self.logger.experiment.add_image("input", torch.rand(1, 2, 2), 0)

        settings = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False}
        Trainer(fast_dev_run=True, **settings).fit(with_methods(Net, on_train_start), batches(2))
        assert Trainer(fast_dev_run=True, logger=False, **settings).loggers == []


@pytest.mark.parametrize("value", [True, torch.tensor(True)], ids=["bool", "tensor"])
def test_a_boolean_is_a_number_for_callbacks(value):
    """As with Lightning 2.6.6: torch subtracts no boolean tensors."""
    logs = calling(Net, training_step=lambda self, batch, batch_idx: self.log("value", value))
    trainer = quiet_trainer()
    trainer.fit(logs, batches(1))
    assert trainer.callback_metrics["value"] - 0.5 == 0.5


@pytest.mark.filterwarnings("ignore:self.log.*got an integer tensor")
def test_whole_numbers_have_the_default_dtype(tmp_path):
    """Values and file names of Lightning 2.6.6; numbers that a float32 does not hold stay exact."""
    values = {"number": 3, "flag": True, "tensor": torch.tensor(5), "half": torch.tensor(0.5, dtype=torch.bfloat16)}
    large = {"large": 2**24 + 1, "large_tensor": torch.tensor(2**24 + 1)}
    module = calling(Net, training_step=lambda self, batch, batch_idx: self.log_dict({**values, **large}))
    save = ModelCheckpoint(dirpath=tmp_path, filename="{number}-{flag}-{tensor}")
    trainer = quiet_trainer(callbacks=[save], enable_checkpointing=True)
    trainer.fit(module, batches(1))
    found = trainer.callback_metrics
    assert {name: (found[name].dtype, found[name].item()) for name in ("number", "flag", "tensor")} == {
        "number": (torch.float32, 3.0),
        "flag": (torch.float32, 1.0),
        "tensor": (torch.float32, 5.0),
    }
    assert [found[name].item() for name in large] == [2**24 + 1] * 2
    assert [file.name for file in tmp_path.glob("*.ckpt")] == ["number=3.0-flag=1.0-tensor=5.0.ckpt"]


def _logs_loss_twice(read):
    """Return a module that logs one name in training and validation, and reads it after batches and epochs."""

    def training_step(self, batch, batch_idx):
        self.log("loss", float(self.trainer.global_step))
        return Net.training_step(self, batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        self.log("loss", 100.0 + self.trainer.global_step)

    def on_train_batch_end(self, *_):
        read.append(self.trainer.callback_metrics["loss"].item())

    def on_train_epoch_end(self):
        read.append(self.trainer.callback_metrics["loss"].item())

    methods = (training_step, validation_step, on_train_batch_end, on_train_epoch_end)
    return with_methods(Net, **{method.__name__: method for method in methods})


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize("bar", [False, True])
def test_the_value_that_was_logged_last_is_read(resumed, bar, tmp_path):
    """Also where training logs it per step, and validation afterwards; as recorded with Lightning 2.6.6."""
    read: list[float] = []

    def fit(read, ckpt_path=None):
        save = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=2, save_top_k=-1, enable_version_counter=False)
        arguments = {"max_epochs": 2, "val_check_interval": 2, "enable_progress_bar": bar}
        trainer = quiet_trainer(**arguments, callbacks=[save], enable_checkpointing=True)
        trainer.fit(_logs_loss_twice(read), batches(3), batches(1), ckpt_path=ckpt_path)

    fit(read)
    if resumed:
        read.clear()
        fit(read, tmp_path / "step=2.ckpt")
    assert read == [0.0, 1.0, 2.0, 2.0, 3.0, 4.0, 5.0, 5.0][2 if resumed else 0 :]
    read.clear()
    trainer = quiet_trainer(max_epochs=2, enable_progress_bar=bar)
    trainer.fit(_logs_loss_twice(read), batches(3), batches(1))
    assert read == [0.0, 1.0, 2.0, 103.0, 3.0, 4.0, 5.0, 106.0]
    assert trainer.callback_metrics["loss"] == 106.0
