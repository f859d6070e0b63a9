"""Offline evaluation: equal to that of the run bit for bit; wrong and incomplete dumps."""

from __future__ import annotations

import json
import os
import tempfile

import pytest
import torch
from torchmetrics import MeanSquaredError
from torchmetrics.classification import MulticlassAccuracy

import lightlib as L
from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError
from lightlib.evaluation import MetricCallback, PredictionDump, evaluate_offline
from lightlib.evaluation.dump import DumpIndex
from lightlib.evaluation.order import Sharding
from tests.evaluation.modules import Listed, Losses, Predicts, loader, losses_by_hand
from tests.runs.bad_input import refused
from tests.runs.plain import quiet_trainer, with_methods


class Squared(MeanSquaredError):
    """Of the first logit, in float32: its last bits depend on the order of the sum."""

    def update(self, preds, target):
        super().update(preds[:, 0], target.float())


def metrics():
    return [MulticlassAccuracy(3), Squared(), Listed(), Losses()]


@pytest.mark.parametrize("stage", ["val", "test"])
def test_it_equals_the_run(tmp_path, stage):
    module = Predicts()
    callbacks = [MetricCallback(metrics(), stages=stage), PredictionDump(tmp_path, stages=stage)]
    trainer = quiet_trainer(callbacks=callbacks)
    verb = trainer.test if stage == "test" else trainer.validate
    (online,) = verb(module, loader(7), verbose=False)
    assert len(online) == 6
    assert evaluate_offline(tmp_path, metrics()) == online
    by_hand = losses_by_hand(module.net, 7)
    assert {name: online[f"{stage}_{name}"] for name in by_hand} == pytest.approx(by_hand)


def test_predictions_and_several_loaders(tmp_path):
    module = Predicts()

    module = with_methods(Predicts, predict_step=lambda self, batch, batch_idx, dataloader_idx=0: self.net(batch[0]))
    trainer = quiet_trainer(callbacks=[PredictionDump(tmp_path, overwrite=True)])
    for loaders, endings in (
        ([loader(7), loader(5)], ("/dataloader_idx_0", "/dataloader_idx_1")),
        ({"clean": loader(7), "noisy": loader(5)}, ("/clean", "/noisy")),
    ):
        trainer.predict(module, loaders)
        found = evaluate_offline(tmp_path, Losses(), prefix="")
        for ending, n in zip(endings, (7, 5), strict=True):
            for name, value in losses_by_hand(module.net, n).items():
                assert found[name + ending] == value


def test_a_dump_without_endings_numbers_its_loaders():
    index = DumpIndex([[2, 2]], [Sharding(), Sharding()], [])
    assert read_back(index).endings == ["/dataloader_idx_0", "/dataloader_idx_1"]


def read_back(index):
    with tempfile.TemporaryDirectory() as folder:
        index.write(folder)
        return DumpIndex.read(folder)


def test_what_is_written_is_selected(tmp_path):
    module = Predicts()
    dump = PredictionDump(tmp_path, select=lambda batch, outputs: ((None, batch[1]), outputs))
    quiet_trainer(callbacks=[dump]).test(module, loader(7), verbose=False)
    (first, *_) = sorted(tmp_path.glob("test/*.pt"))
    (inputs, target), outputs = torch.load(first, weights_only=True)["value"]
    assert inputs is None
    assert target.equal(loader(7).dataset.tensors[1][:2])
    assert outputs.shape == (2, 3)
    assert evaluate_offline(tmp_path, Losses(), prefix="") == pytest.approx(losses_by_hand(module.net, 7))


def test_at_a_url():
    module, path = Predicts(), "memory://dumps/of-a-test"
    quiet_trainer(callbacks=[PredictionDump(path)]).test(module, loader(7), verbose=False)
    assert evaluate_offline(path, Losses(), prefix="") == pytest.approx(losses_by_hand(module.net, 7))


def test_validations_within_fit_are_not_written(tmp_path):
    quiet_trainer(callbacks=[PredictionDump(tmp_path, stages="val")]).fit(Predicts(), loader(4), loader(4))
    assert not (tmp_path / "val").exists()


def test_a_dump_is_replaced_on_request_only(tmp_path):
    module = Predicts()
    quiet_trainer(callbacks=[PredictionDump(tmp_path)]).test(module, loader(7), verbose=False)
    (tmp_path / "test" / "mine.txt").write_text("kept")
    with refused(
        MisconfigurationException,
        "PredictionDump(***holds a dump already***",
        "a new folder.",
        "PredictionDump(***overwrite=True), or another path.",
    ):
        quiet_trainer(callbacks=[PredictionDump(tmp_path)]).test(module, loader(3), verbose=False)
    quiet_trainer(callbacks=[PredictionDump(tmp_path, overwrite=True)]).test(module, loader(3), verbose=False)
    assert len(list(tmp_path.glob("test/*.pt"))) == 2
    assert (tmp_path / "test" / "mine.txt").read_text() == "kept"
    assert evaluate_offline(tmp_path, Losses(), prefix="") == pytest.approx(losses_by_hand(module.net, 3))


class Fails(L.Callback):
    def on_test_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if batch_idx == 1:
            raise RuntimeError("killed")


def test_an_incomplete_dump_is_refused(tmp_path):
    with pytest.raises(RuntimeError, match="killed"):
        quiet_trainer(callbacks=[PredictionDump(tmp_path), Fails()]).test(Predicts(), loader(7), verbose=False)
    with refused(MisconfigurationException, "There is no ***index.json'.", "a complete dump***", "run trainer.test***"):
        evaluate_offline(tmp_path, Losses())


def test_which_stage(tmp_path):
    module = Predicts()
    with pytest.raises(MisconfigurationException, match="holds no dump"):
        evaluate_offline(tmp_path, Losses())
    for verb in ("test", "predict"):
        getattr(quiet_trainer(callbacks=[PredictionDump(tmp_path)]), verb)(module, loader(3))
    with pytest.raises(MisconfigurationException, match="holds dumps of test and predict"):
        evaluate_offline(tmp_path, Losses())
    found = evaluate_offline(tmp_path, Losses(), "predict")
    assert {name.replace("predict", "test"): v for name, v in found.items()} == evaluate_offline(
        tmp_path, Losses(), "test"
    )


def test_objects_are_not_written(tmp_path):
    dump = PredictionDump(tmp_path, select=lambda batch, outputs: (Losses(), outputs))
    with pytest.raises(MisconfigurationException, match="cannot be read back safely"):
        quiet_trainer(callbacks=[dump]).test(Predicts(), loader(3), verbose=False)
    dump = PredictionDump(tmp_path / "b", select=lambda batch, outputs: outputs)
    with pytest.raises(MisconfigurationException, match="select returned"):
        quiet_trainer(callbacks=[dump]).test(Predicts(), loader(3), verbose=False)


def test_bad_input(tmp_path):
    with pytest.raises(ArgumentTypeError, match=r"PredictionDump\(path=3"):
        PredictionDump(3)
    with pytest.raises(ArgumentTypeError, match=r"PredictionDump\(select='x'"):
        PredictionDump("a", select="x")
    with pytest.raises(UnknownNameError, match="stages of PredictionDump"):
        PredictionDump("a", stages="train")
    with pytest.raises(ArgumentTypeError, match=r"evaluate_offline\(path=3 \(int\)\)"):
        evaluate_offline(3, Losses())
    with pytest.raises(ArgumentTypeError, match="evaluate_offline got"):
        evaluate_offline("a", "accuracy")
    with pytest.raises(ArgumentTypeError, match=r"evaluate_offline\(inputs="):
        evaluate_offline("a", Losses(), inputs=3)
    with pytest.raises(ArgumentTypeError, match=r"evaluate_offline\(prefix="):
        evaluate_offline("a", Losses(), prefix=3)
    with pytest.raises(UnknownNameError, match="stage of evaluate_offline"):
        evaluate_offline("a", Losses(), "train")
    os.makedirs(tmp_path / "test")
    (tmp_path / "test" / "index.json").write_text(json.dumps({"format": 0}))
    with pytest.raises(MisconfigurationException, match="has the format 0"):
        evaluate_offline(tmp_path, Losses())
