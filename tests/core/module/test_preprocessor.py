"""use_preprocessor: a submodule that gets each batch of every stage, in the mode of the module."""

from __future__ import annotations

import copy
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lightlib.cli import LightningCLI
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from tests.cli.parts import QUIET
from tests.runs.plain import Net, batches, network, quiet_trainer, same_weights, subclass


class Normalise(nn.Module):
    """Centres the inputs, and scales them in training."""

    def __init__(self, mean: float = 0.5, scale: float = 2.0):
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean))
        self.scale, self.seen = scale, []

    def forward(self, batch):
        self.seen.append(self.training)
        return (batch[0] - self.mean) * (self.scale if self.training else 1.0), batch[1]


class Preprocessed(Net):
    """A classifier with a preprocessor, in all stages."""

    def __init__(self, preprocessor: nn.Module | None = None):
        super().__init__()
        self.use_preprocessor(preprocessor)

    def validation_step(self, batch, batch_idx):
        assert not self.training
        self.log("val_loss", self.loss(batch))

    test_step = validation_step

    def predict_step(self, batch, batch_idx):
        return batch[0]

    def train_dataloader(self):
        return batches(2)


def test_it_normalises_in_every_stage_with_the_right_flag():
    module, data, (x, y) = Preprocessed(Normalise()), batches(3), batches(1, seed=3)[0]
    trainer = quiet_trainer(max_epochs=2)
    trainer.fit(module, data, [(x, y)])
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        for inputs, targets in data:
            optimizer.zero_grad()
            F.cross_entropy(net((inputs - 0.5) * 2), targets).backward()
            optimizer.step()
    assert same_weights(module.net, net)
    assert module.preprocessor.seen == ([True] * 3 + [False]) * 2
    expected = pytest.approx(F.cross_entropy(net(x - 0.5), y).item())
    assert trainer.callback_metrics["val_loss"].item() == expected
    assert trainer.validate(module, [(x, y)], verbose=False)[0]["val_loss"] == expected
    assert trainer.test(module, [(x, y)], verbose=False)[0]["val_loss"] == expected
    assert trainer.predict(module, [(x, y)])[0].equal(x - 0.5)
    assert module.preprocessor.seen[8:] == [False] * 3


def test_it_comes_after_the_hook_and_neither_is_needed():
    hooked = subclass(
        Preprocessed, on_after_batch_transfer=lambda self, batch, dataloader_idx: (batch[0] + 10, batch[1])
    )
    x, y = batches(1)[0]
    trainer = quiet_trainer()
    assert trainer.predict(hooked(Normalise()), [(x, y)])[0].equal(x + 10 - 0.5)
    assert trainer.predict(hooked(), [(x, y)])[0].equal(x + 10)
    assert trainer.predict(Preprocessed(), [(x, y)])[0] is x


def test_it_is_moved_and_saved_with_the_module(tmp_path):
    module = Preprocessed(Normalise(mean=0.25))
    assert module.to(torch.float64).preprocessor.mean.dtype is torch.float64
    assert copy.deepcopy(module).to("meta").preprocessor.mean.is_meta
    trainer = quiet_trainer()
    trainer.fit(module.float(), batches(1), batches(1))
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    other = Preprocessed.load_from_checkpoint(tmp_path / "a.ckpt", preprocessor=Normalise())
    assert other.preprocessor.mean.item() == 0.25
    other.use_preprocessor(None)
    assert not other.preprocesses
    assert "preprocessor.mean" not in other.state_dict()


def test_a_configuration_is_built(monkeypatch):
    config = {"class_path": f"{__name__}.Normalise", "init_args": {"mean": 2.0}}
    x, y = batches(1)[0]
    assert quiet_trainer().predict(Preprocessed(config), [(x, y)])[0].equal(x - 2)
    monkeypatch.setattr(sys, "argv", ["main.py"])
    words = [f"--model.preprocessor={__name__}.Normalise", "--model.preprocessor.mean=3.0"]
    cli = LightningCLI(Preprocessed, args=["fit", *QUIET, "--trainer.limit_val_batches=0", *words])
    assert cli.model.preprocessor.mean.item() == 3.0
    assert cli.model.preprocessor.seen == [True] * 4


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        (3, ArgumentTypeError, r"`preprocessor` of Preprocessed is 3 \(int\)"),
        (Normalise, ArgumentTypeError, r"(?s)the class Normalise.*pass an instance: Normalise\(\)"),
        (len, ArgumentTypeError, "an instance of torch.nn.Module that returns the batch"),
        (nn.Linear(1, 1), MisconfigurationException, "has the trained parameters 'weight', 'bias'"),
        ({"type": "Normalise"}, MisconfigurationException, "is a dict with the key 'type'"),
        ({"class_path": 3}, MisconfigurationException, "is a dict with class_path=3"),
        ({"class_path": "torch.nn.Lineal"}, MisconfigurationException, r"'torch.nn.Lineal', which cannot be imported"),
        ({"class_path": "datetime.timedelta"}, ArgumentTypeError, r"`preprocessor` of Preprocessed is .*timedelta"),
    ],
)
def test_another_kind_is_refused(given, kind, message):
    with pytest.raises(kind, match=message):
        Preprocessed(given)
