"""MetricCallback: numbers counted by hand, in each stage, with several loaders, and after a resume."""

from __future__ import annotations

import pytest
import torch
import torchmetrics
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

import lightlib as L
from lightlib.callbacks import History, ModelCheckpoint
from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError
from lightlib.evaluation import Metric, MetricCallback
from tests.evaluation.modules import Listed, Losses, Predicts, loader, losses_by_hand, outputs_by_hand
from tests.runs.bad_input import refused
from tests.runs.plain import QUIET, Net, quiet_trainer, with_methods
from tests.runs.saves_at import SavesAt


def accuracy():
    return MulticlassAccuracy(3, average="micro")


def counted(net, n):
    logits, y = outputs_by_hand(net, n)
    return float((logits.argmax(1) == y).sum() / n)


def test_validation_and_test_without_code_in_the_module():
    module = Predicts()
    trainer = quiet_trainer(callbacks=[MetricCallback([accuracy(), Losses()], stages=("val", "test"))])
    (found,) = trainer.validate(module, loader(7), verbose=False)
    expected = losses_by_hand(module.net, 7)
    assert found == {
        "val_accuracy": pytest.approx(counted(module.net, 7)),
        **{f"val_{k}": v for k, v in expected.items()},
    }
    (tested,) = trainer.test(module, loader(7), verbose=False)
    assert {name.replace("test", "val"): value for name, value in tested.items()} == found


def test_validation_and_test_under_one_name():
    module, history = Predicts(), History()
    shared = MetricCallback([accuracy(), Losses()], stages=("val", "test"), prefix="eval_")
    trainer = quiet_trainer(callbacks=[shared, history], max_epochs=1)
    trainer.fit(module, loader(8), loader(7))
    (tested,) = trainer.test(module, loader(11), verbose=False)
    for n, value in zip((7, 11), history.values("eval_accuracy"), strict=True):
        assert value == pytest.approx(counted(module.net, n))
    losses = losses_by_hand(module.net, 11)
    assert tested == {
        "eval_accuracy": pytest.approx(counted(module.net, 11)), **{f"eval_{k}": v for k, v in losses.items()},
    }  # fmt: skip
    assert shared.higher_is_better("eval_accuracy") is True


def test_each_epoch_starts_from_zero():
    history = History()
    module = Predicts()
    nets = []

    class Keeps(L.Callback):
        def on_validation_epoch_end(self, trainer, pl_module):
            nets.append({name: value.clone() for name, value in pl_module.net.state_dict().items()})

    callbacks = [MetricCallback([accuracy(), Losses()]), Keeps(), history]
    quiet_trainer(callbacks=callbacks, max_epochs=3, num_sanity_val_steps=2).fit(module, loader(8), loader(7))
    assert len(nets) == 4
    for epoch, state in enumerate(nets[1:]):
        module.net.load_state_dict(state)
        assert history.values("val_accuracy")[epoch] == pytest.approx(counted(module.net, 7))
        for name, value in losses_by_hand(module.net, 7).items():
            assert history.values(f"val_{name}")[epoch] == value


class SeedStyle(L.Callback):
    """The callback that users of other trainers write: update per step, compute and reset per epoch."""

    def __init__(self):
        self.metric, self.values = MulticlassF1Score(3), []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.metric.update(outputs["preds"], batch[1])

    def on_train_epoch_end(self, trainer, pl_module):
        self.values.append(float(self.metric.compute()))
        self.metric.reset()


def test_it_equals_a_callback_written_by_hand():
    history, by_hand = History(), SeedStyle()
    callbacks = [by_hand, MetricCallback({"f1": MulticlassF1Score(3)}, stages="train", prefix="{stage}/"), history]
    quiet_trainer(callbacks=callbacks, max_epochs=3, limit_val_batches=0).fit(Predicts(), loader(10))
    assert history.values("train/f1") == by_hand.values
    assert len(set(by_hand.values)) > 1


def test_results_are_kept_on_the_device_on_request():
    module = Predicts()
    trainer = quiet_trainer(callbacks=[MetricCallback(Losses(collect_device="gpu"), prefix="")])
    assert trainer.validate(module, loader(7), verbose=False) == [losses_by_hand(module.net, 7)]


def test_several_loaders_have_numbers_of_their_own():
    module, callback = Predicts(), MetricCallback(accuracy())
    trainer = quiet_trainer(callbacks=[callback])
    trainer.validate(module, [loader(7), loader(4)], verbose=False)
    for index, n in enumerate((7, 4)):
        value = trainer.callback_metrics[f"val_accuracy/dataloader_idx_{index}"]
        assert float(value) == pytest.approx(counted(module.net, n))


def test_metrics_of_chosen_loaders():
    module, loaders = Predicts(), {"clean": loader(7), "noisy": loader(4)}
    callbacks = [MetricCallback(accuracy(), loaders="clean"), MetricCallback(Losses(), loaders=["noisy"])]
    clean, noisy = quiet_trainer(callbacks=callbacks).validate(module, loaders, verbose=False)
    expected = {"val_accuracy/clean": pytest.approx(counted(module.net, 7))}
    expected |= {f"val_{name}/noisy": value for name, value in losses_by_hand(module.net, 4).items()}
    assert clean == noisy == expected  # logged at the end of all loaders


def test_a_loader_that_is_not_due_has_no_number():
    history = History()
    callbacks = [MetricCallback(accuracy()), history]
    trainer = quiet_trainer(max_epochs=4, callbacks=callbacks, check_val_every_n_epoch={"noisy": 2})
    trainer.fit(Predicts(), loader(10), {"clean": loader(7), "noisy": loader(4)})
    assert len(history.values("val_accuracy/clean")) == 4
    assert len(history.values("val_accuracy/noisy")) == 2


@pytest.mark.parametrize(
    ("loaders", "names", "kind", "message"),
    [
        (
            {"clean": loader(7)},
            ["claen"],
            UnknownNameError,
            "loader in loaders of MetricCallback: 'claen'. Did you mean",
        ),
        ([loader(7)], ["clean"], MisconfigurationException, "these loaders have no names"),
        ([], [], ArgumentTypeError, r"MetricCallback\(loaders=\[\]"),
        ([], [1], ArgumentTypeError, r"MetricCallback\(loaders=\[1\]"),
    ],
)
def test_wrong_names_of_loaders(loaders, names, kind, message):
    module = Predicts()
    with pytest.raises(kind, match=message):
        quiet_trainer(callbacks=[MetricCallback(accuracy(), loaders=names)]).fit(module, loader(10), loaders)
    with pytest.raises(MisconfigurationException, match="are read together"):
        MetricCallback(accuracy(), stages="train", loaders=["clean"])


def test_the_direction_of_a_loaders_number():
    callback = MetricCallback({"acc": accuracy()}, prefix="{stage}/")
    assert callback.higher_is_better("val/acc/clean") is callback.higher_is_better("val/acc") is True


def test_a_collection_and_wrappers():
    collection = torchmetrics.MetricCollection([accuracy(), MulticlassF1Score(3)], prefix="c_")
    by_class = torchmetrics.ClasswiseWrapper(MulticlassAccuracy(3, average=None), prefix="of_")
    module = Predicts()
    trainer = quiet_trainer(callbacks=[MetricCallback([collection, {"each": by_class}])])
    (found,) = trainer.validate(module, loader(7), verbose=False)
    logits, y = outputs_by_hand(module.net, 7)
    reference = MulticlassAccuracy(3, average=None)(logits, y)
    assert found["val_c_MulticlassAccuracy"] == pytest.approx(counted(module.net, 7))
    assert [found[f"val_each_of_{i}"] for i in range(3)] == pytest.approx(reference.tolist())


def test_the_arguments_of_update_are_chosen():
    module = Predicts()
    as_keywords = MetricCallback(
        {"b": accuracy()}, inputs=lambda batch, outputs: {"preds": outputs["preds"], "target": batch[1] * 0}
    )
    (found,) = quiet_trainer(callbacks=[as_keywords]).validate(module, loader(7), verbose=False)
    logits, _ = outputs_by_hand(module.net, 7)
    assert found["val_b"] == pytest.approx(float((logits.argmax(1) == 0).float().mean()))


def test_a_model_from_model_needs_no_module():
    net = torch.nn.Linear(6, 3)
    module = L.Module.from_model(net, torch.nn.CrossEntropyLoss())
    trainer = quiet_trainer(callbacks=[MetricCallback(accuracy())])
    (found,) = trainer.validate(module, loader(7), verbose=False)
    assert found["val_accuracy"] == pytest.approx(counted(net, 7))


def run(tmp_path, saved_at=None, resumed=None):
    torch.manual_seed(3)
    history = History()
    callbacks = [MetricCallback([accuracy(), Listed(), Losses()], stages="train"), history]
    callbacks += [SavesAt(tmp_path / "saved.ckpt", saved_at)] if saved_at else []
    trainer = quiet_trainer(callbacks=callbacks, max_epochs=3, limit_val_batches=0)
    trainer.fit(Predicts(dropout=0.3), loader(10, shuffle=True), ckpt_path=resumed)
    names = ("train_accuracy", "train_listed", "train_loss/mean", "train_loss/last", "train_loss/count")
    return {name: history.values(name) for name in names}


@pytest.mark.parametrize("step", [1, 4, 5, 7])
def test_a_resumed_epoch_has_the_numbers_of_an_unbroken_one(tmp_path, step):
    whole = run(tmp_path, saved_at=step)
    assert all(len(values) == 3 for values in whole.values())
    assert run(tmp_path, resumed=tmp_path / "saved.ckpt") == whole


def fitted(folder, max_steps, resumed=None, again=None, with_metrics=True, **arguments):
    """The last metrics of a run that ends at a step; with `again` a second fit trains up to that one."""
    torch.manual_seed(3)
    callbacks = [MetricCallback([accuracy(), Listed(), Losses()], stages="train")] if with_metrics else []
    callbacks += [ModelCheckpoint(folder, save_last=True)]
    limits = {"max_epochs": None, "max_steps": max_steps, "limit_val_batches": 0}
    trainer, module = quiet_trainer(callbacks=callbacks, enable_checkpointing=True, **limits), Predicts(dropout=0.3)
    trainer.fit(module, loader(10, shuffle=True), ckpt_path=resumed, **arguments)
    if again is not None:
        trainer.max_steps = again
        trainer.fit(module, loader(10, shuffle=True))
    return trainer.callback_metrics


@pytest.mark.parametrize(("step", "end"), [(3, 5), (3, 10), (7, 10)])
def test_an_epoch_that_a_limit_interrupts_is_continued(tmp_path, step, end):
    unbroken = fitted(tmp_path / "unbroken", end)
    assert unbroken["train_loss/count"] == 10
    assert fitted(tmp_path / "stopped", step) != unbroken
    assert fitted(tmp_path / "resumed", end, tmp_path / "stopped/last.ckpt") == unbroken
    assert fitted(tmp_path / "again", step, again=end) == unbroken


@pytest.mark.parametrize("arguments", [{"resume": {"callbacks": False}}, {}])
def test_an_epoch_without_its_first_metrics_is_reported(tmp_path, arguments):
    fitted(tmp_path / "stopped", 3, with_metrics=bool(arguments))
    with pytest.warns(UserWarning, match="metrics of this epoch leave out its first 3 batches"):
        found = fitted(tmp_path / "resumed", 5, tmp_path / "stopped/last.ckpt", **arguments)
    assert found["train_loss/count"] == 4


class Plain(Metric):
    def process(self, batch, outputs):
        self.results.extend(batch[1].tolist())

    def compute_metrics(self, results):
        return {"sum": sum(results), **({"classes": len(self.dataset_meta["classes"])} if self.dataset_meta else {})}


def test_the_data_set_describes_itself():
    data = loader(5)
    data.dataset.metainfo = {"classes": ["a", "b", "c"]}
    (found,) = quiet_trainer(callbacks=[MetricCallback(Plain(), prefix="")]).validate(Predicts(), data, verbose=False)
    assert found == {"sum": float(sum(data.dataset.tensors[1])), "classes": 3.0}
    with pytest.warns(
        UserWarning, match="Plain reads dataset_meta, but the data set has no attribute `metainfo`"
    ) as all_:
        quiet_trainer(callbacks=[MetricCallback(Plain())]).validate(Predicts(), loader(5), verbose=False)
    assert len(all_) == 1


def test_hooks_of_other_stages_are_not_called():
    trainer = quiet_trainer(callbacks=[MetricCallback(accuracy())])
    trainer.fit(Predicts(), loader(4), loader(4))
    called = str(trainer.hooks)
    assert "on_validation_batch_end" in called
    assert "MetricCallback.on_train_batch_end" not in called
    assert "MetricCallback.on_test_batch_end" not in called


class TestBadInput:
    def test_arguments(self):
        with refused(ArgumentTypeError, "MetricCallback got ***", "metrics of torchmetrics***", "MetricCallback(***"):
            MetricCallback("accuracy")
        with refused(ArgumentTypeError, "***Losses***", "***", "pass an instance: Losses(…)"):
            MetricCallback([Losses])
        with refused(ArgumentTypeError, "***named 'a'.", "***", "Losses(prefix='a') in a list***"):
            MetricCallback({"a": Losses()})
        with refused(MisconfigurationException, "MetricCallback got no metric.", "one or several.", "***"):
            MetricCallback([])
        with refused(MisconfigurationException, "***two metrics named 'accuracy'.", "a name for each.", "***"):
            MetricCallback([accuracy(), accuracy()])
        with pytest.raises(UnknownNameError, match="stages of MetricCallback"):
            MetricCallback(accuracy(), stages="valid")
        with pytest.raises(MisconfigurationException, match="at least one stage"):
            MetricCallback(accuracy(), stages=())
        with pytest.raises(ArgumentTypeError, match=r"MetricCallback\(stages=3"):
            MetricCallback(accuracy(), stages=3)
        with pytest.raises(ArgumentTypeError, match=r"MetricCallback\(inputs="):
            MetricCallback(accuracy(), inputs="preds")
        with pytest.raises(ArgumentTypeError, match=r"MetricCallback\(prefix=1"):
            MetricCallback(accuracy(), prefix=1)
        with pytest.raises(MisconfigurationException, match="training and evaluation would log under one name"):
            MetricCallback(accuracy(), stages=("train", "val"), prefix="p/")

    def test_a_step_without_predictions_fails_before_training(self):
        def training_step(self, batch, batch_idx):
            self.steps += 1
            return Net.training_step(self, batch, batch_idx)

        module = with_methods(
            Net, training_step, steps=0, validation_step=lambda self, batch, batch_idx: {"logits": self.net(batch[0])}
        )
        arguments = {**QUIET, "num_sanity_val_steps": 1, "max_epochs": 1, "callbacks": [MetricCallback(accuracy())]}
        with refused(
            MisconfigurationException,
            "MetricCallback found no predictions and targets: the step returned a dict with 'logits'.",
            '{"preds": …***',
            "***inputs=lambda batch, outputs***",
        ):
            L.Trainer(**arguments).fit(module, loader(4), loader(4))
        assert module.steps == 0

    def test_a_metric_that_is_no_single_number(self):
        callback = MetricCallback({"each": MulticlassAccuracy(3, average=None)})
        with pytest.raises(MisconfigurationException, match=r"'each' is a tensor of shape \(3,\)"):
            quiet_trainer(callbacks=[callback]).validate(Predicts(), loader(4), verbose=False)

    def test_two_numbers_of_one_name(self):
        with pytest.raises(MisconfigurationException, match="two metrics give the name 'classes'"):
            quiet_trainer(callbacks=[MetricCallback([Plain(), Plain()])]).validate(
                Predicts(), with_meta(loader(4)), verbose=False
            )


def with_meta(given):
    given.dataset.metainfo = {"classes": []}
    return given
