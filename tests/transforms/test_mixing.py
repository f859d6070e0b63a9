"""MixUpCutMix against loops with torchvision's transforms, its resume, and batches that do not fit."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from lightlib.cli import LightningCLI
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.optional import is_installed
from lightlib.transforms import MixUpCutMix
from tests.cli.parts import QUIET
from tests.core.module.test_preprocessor import Preprocessed
from tests.runs.plain import momentum, network, quiet_trainer, same_weights, samples
from tests.runs.resumable import SavesEverywhere, run, trainer_for

needs_torchvision = pytest.mark.skipif(not is_installed("torchvision"), reason="needs torchvision, of the extra guides")


def images(n):
    """`n` images of one channel and 2 x 3 pixels with a class, shuffled, and some for validation."""
    x, y = samples(n)
    data = TensorDataset(x.view(-1, 1, 2, 3), y)
    return DataLoader(data, 4, shuffle=True), DataLoader(data, 8)


def classifier(preprocessor=None, dropout=0.0):
    module = Preprocessed(preprocessor)
    module.net, module.configure = nn.Sequential(nn.Flatten(), network(dropout)), momentum
    return module


@needs_torchvision
@pytest.mark.parametrize("options", [{"cutmix": None}, {"mixup": None}, {"probability": 0.6}], ids=str)
def test_a_run_has_the_bits_of_a_loop_with_torchvision(options):
    from torchvision.transforms import v2  # optional: torchvision

    train, val = images(24)
    trainer = quiet_trainer(max_epochs=2, limit_val_batches=0)
    module, _ = run(classifier(MixUpCutMix(3, **options, label_smoothing=0.1)), trainer, [train])
    kinds = [v2.MixUp(alpha=0.2, num_classes=3), v2.CutMix(alpha=1.0, num_classes=3)]
    mix = v2.RandomChoice([kinds[0]] * ("mixup" not in options) + [kinds[1]] * ("cutmix" not in options))
    net = classifier().net
    optimizer = momentum(net.parameters())
    torch.manual_seed(11)
    for _ in range(2):
        for x, y in train:
            soft = F.one_hot(y, 3) * 0.9 + 0.1 / 3
            mixed, labels = v2.RandomApply([mix], p=options.get("probability", 1.0))(x, soft)
            optimizer.zero_grad()
            F.cross_entropy(net(mixed), labels).backward()
            optimizer.step()
    assert same_weights(module.net, net)
    losses = [F.cross_entropy(net(x), y, reduction="sum") for x, y in val]  # without mixing
    (found,) = quiet_trainer().validate(module, val, verbose=False)
    assert found["val_loss"] == pytest.approx(sum(losses).item() / 24)


@needs_torchvision
def test_images_and_labels_are_mixed_by_the_same_share():
    mixing, x, y = MixUpCutMix(4, cutmix=None), torch.rand(4, 3, 8, 8), torch.arange(4)
    mixed, labels = mixing((x, y))
    share = labels[0, 0]
    torch.testing.assert_close(mixed, share * x + (1 - share) * x.roll(1, 0))
    torch.testing.assert_close(labels, share * torch.eye(4) + (1 - share) * torch.eye(4).roll(1, 0))
    by_name = MixUpCutMix(4, keys=("image", "label"))
    found = by_name({"name": "a", "image": x, "label": labels})
    assert (found["name"], found["label"].shape, found["image"].shape) == ("a", (4, 4), x.shape)
    assert by_name.eval()(found) is found


@needs_torchvision
@pytest.mark.parametrize("accumulate", [1, 2])
def test_resumed_after_every_step(tmp_path, accumulate):
    def made():
        return classifier(MixUpCutMix(3, probability=0.7, label_smoothing=0.1), dropout=0.2)

    saves = SavesEverywhere(tmp_path)
    full, trainer = run(made(), trainer_for(saves, accumulate_grad_batches=accumulate), images(26))
    assert len(saves.rows) == trainer.global_step > 6
    for step in saves.rows:
        again = trainer_for(accumulate_grad_batches=accumulate)
        module, _ = run(made(), again, images(26), tmp_path / f"{step}.ckpt", seed=5)
        assert same_weights(module, full), f"resumed after step {step}"


@needs_torchvision
def test_from_the_command_line(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["main.py"])
    words = ["--model.preprocessor=lightlib.transforms.MixUpCutMix", "--model.preprocessor.num_classes=3"]
    options = ["--model.preprocessor.cutmix=null", "--model.preprocessor.label_smoothing=0.1"]
    monkeypatch.setattr(Preprocessed, "train_dataloader", lambda self: images(8)[0])
    monkeypatch.setattr(
        Preprocessed, "loss", lambda self, batch: F.cross_entropy(self.net(batch[0].flatten(1)), batch[1])
    )
    cli = LightningCLI(Preprocessed, args=["fit", *QUIET, "--trainer.limit_val_batches=0", *words, *options])
    assert cli.model.preprocessor.label_smoothing == 0.1
    assert len(cli.model.preprocessor.mix.transforms[0].transforms) == 1


X, Y = torch.rand(4, 3, 8, 8), torch.arange(4)


@needs_torchvision
@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ((X, Y + 7), r"num_classes=4\) got labels from 7 to 10(?s:.)*from 0 to 3(?s:.)*MixUpCutMix\(11\)"),
        ((X, Y - 1), r"got labels from -1 to 2"),
        ((X, Y.float()), r"labels of shape \(4,\) and torch.float32(?s:.)*probabilities \(batch, 4\)"),
        ((X, torch.rand(4, 3)), r"labels of shape \(4, 3\)"),
        ((X, Y[:, None]), r"labels of shape \(4, 1\) and torch.int64"),
        ((X, Y[:3]), r"labels of shape \(3,\)(?s:.)*each of 4 images"),
        ((X, [0, 1, 2, 3]), r"labels : \[0, 1, 2, 3\] \(list\)"),
        ((X[0], Y), r"images of shape \(3, 8, 8\)"),
        (((X * 255).byte(), Y), r"images of shape \(4, 3, 8, 8\) and torch.uint8(?s:.)*images.float\(\) / 255"),
        ({"image": X, "label": Y}, r"keys=\(0, 1\)\): the batch has the entries 'image', 'label'"),
    ],
)
def test_batches_that_do_not_fit(batch, message):
    with pytest.raises(MisconfigurationException, match=message):
        MixUpCutMix(4)(batch)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"num_classes": None}, ArgumentTypeError, r"num_classes=None(?s:.)*MixUpCutMix\(num_classes=10\)"),
        ({"num_classes": 1}, MisconfigurationException, "num_classes=1"),
        ({"mixup": 0}, MisconfigurationException, r"mixup=0(?s:.)*> 0, or None for none of it"),
        ({"cutmix": -1.0}, MisconfigurationException, r"cutmix=-1.0"),
        ({"mixup": None, "cutmix": None}, MisconfigurationException, r"CrossEntropyLoss\(label_smoothing=0.1\)"),
        ({"label_smoothing": 1}, MisconfigurationException, "label_smoothing=1"),
        ({"probability": 0}, MisconfigurationException, "probability=0"),
        ({"keys": "labels"}, ArgumentTypeError, "keys='labels'"),
    ],
)
def test_bad_arguments(options, kind, message):
    with pytest.raises(kind, match=message):
        MixUpCutMix(**{"num_classes": 3, **options})


def test_torchvision_is_named_where_it_is_missing(monkeypatch):
    for name in ("torchvision", "torchvision.transforms.v2"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        MisconfigurationException, match=r"MixUpCutMix needs the package torchvision(?s:.)*torchvision>="
    ):
        MixUpCutMix(3)
