"""Models with Keras's methods train as in a plain loop; the real package runs if it is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from importlib.util import find_spec

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import lightlib as L
from lightlib.errors import MisconfigurationException
from tests.runs.plain import quiet_trainer, same_weights
from tests.runs.saves_at import SavesAt


class KerasLike(nn.Module):
    """The part of a Keras model on torch that `Module.from_model` needs."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.kernel, self.bias = nn.Parameter(torch.randn(4, 2)), nn.Parameter(torch.zeros(2))
        self.seen = nn.Parameter(torch.zeros(()), requires_grad=False)  # a variable that is not trained
        self.built, self.losses, self.modes = True, [], []

    @property
    def trainable_weights(self):
        return [self.kernel, self.bias]

    def forward(self, *args, **kwargs):  # as the torch backend does: all that it gets goes to `call`
        return self.call(*args, **kwargs)

    def call(self, inputs, training=None):
        self.modes.append(training)
        x = inputs["x"] if isinstance(inputs, dict) else inputs
        if training:
            self.seen += 1
        self.losses = [0.01 * self.kernel.square().sum()]  # a regularizer
        return x @ self.kernel + self.bias


def keras_mse(y_true, y_pred, sample_weight=None):
    """Return a loss that is not symmetric: errors above count twice."""
    errors = (y_pred - y_true).clamp(min=0).square() + (y_pred - y_true).square()
    return (errors if sample_weight is None else errors * sample_weight[:, None]).mean()


def data(weights=False):
    generator = torch.Generator().manual_seed(1)
    rows = [(torch.randn(8, 4, generator=generator), torch.randn(8, 2, generator=generator)) for _ in range(5)]
    return [(x, y, torch.arange(8.0)) for x, y in rows] if weights else rows


def by_hand(epochs, rows, loss=keras_mse):
    model = KerasLike()
    optimizer = torch.optim.SGD(model.trainable_weights, 0.05, momentum=0.9)
    for _ in range(epochs):
        for x, y, *weights in rows:
            optimizer.zero_grad()
            predictions = model(x, training=True)
            (loss(y, predictions, *weights) + model.losses[0]).backward()
            optimizer.step()
    return model


def module_of(model, loss=keras_mse):
    return L.Module.from_model(model, loss, partial(torch.optim.SGD, lr=0.05, momentum=0.9))


@pytest.mark.parametrize("weights", [False, True])
def test_it_trains_as_a_plain_loop(weights):
    model, rows = KerasLike(), data(weights)
    quiet_trainer(max_epochs=3).fit(module_of(model), rows)
    assert same_weights(model, by_hand(3, rows))
    assert model.seen == 15


def test_it_is_evaluated_in_another_mode():
    model = KerasLike()
    module = module_of(model)
    trainer = quiet_trainer(max_epochs=1)
    trainer.fit(module, data(), data())
    assert model.modes == [True] * 5 + [False] * 5
    found = trainer.callback_metrics["val_loss"]
    (predicted, *_) = trainer.predict(module, data())
    torch.testing.assert_close(predicted, data()[0][0] @ model.kernel + model.bias)
    assert model.modes[10:] == [False] * 5
    with torch.no_grad():
        expected = torch.stack([keras_mse(y, x @ model.kernel + model.bias) for x, y in data()]).mean()
    torch.testing.assert_close(found, expected)


def test_it_resumes_bit_for_bit(tmp_path):
    quiet_trainer(max_epochs=3, callbacks=[SavesAt(tmp_path / "a.ckpt", 7)]).fit(module_of(KerasLike()), data())
    resumed = KerasLike(seed=5)
    quiet_trainer(max_epochs=3).fit(module_of(resumed), data(), ckpt_path=tmp_path / "a.ckpt")
    assert same_weights(resumed, by_hand(3, data()))


def test_several_inputs_are_one_argument():
    model = KerasLike()
    quiet_trainer(max_epochs=2).fit(module_of(model), [({"x": x}, y) for x, y in data()])
    assert same_weights(model, by_hand(2, data()))


def test_a_loss_of_torch_keeps_its_order():
    def loss(predictions, targets):
        return mse_loss(predictions, targets) + predictions.mean()

    model = KerasLike()
    quiet_trainer(max_epochs=2).fit(module_of(model, loss), data())
    assert same_weights(model, by_hand(2, data(), lambda y, p: loss(p, y)))


def test_a_model_that_is_not_built_is_refused():
    model = KerasLike()
    model.built = False
    with pytest.raises(MisconfigurationException, match=r"KerasLike is not built[\s\S]*Fix: model\.build\(\(None, "):
        module_of(model)


REAL = """
import sys
import keras, torch
import lightlib as L

keras.utils.set_random_seed(3)
model = keras.Sequential([keras.layers.Dense(8, activation="relu", kernel_regularizer="l2"), keras.layers.Dense(2)])
model.build((None, 4))
begin = [weight.copy() for weight in model.get_weights()]
rows = [(torch.randn(8, 4), torch.randn(8, 2)) for _ in range(4)]
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
loss, optimizer = keras.losses.MeanSquaredError(), lambda parameters: torch.optim.SGD(parameters, 0.1)
module = L.Module.from_model(model, loss, optimizer)
L.Trainer(max_epochs=2, accelerator="cpu", **quiet).fit(module, rows)
trained = model.get_weights()
model.set_weights(begin)
optimizer = torch.optim.SGD([weight.value for weight in model.trainable_weights], 0.1)
for x, y in rows * 2:
    optimizer.zero_grad()
    (loss(y, model(x, training=True)) + sum(model.losses)).backward()
    optimizer.step()
assert all((a == b).all() for a, b in zip(trained, model.get_weights(), strict=True))
print("equal")
"""


@pytest.mark.processes
@pytest.mark.skipif(find_spec("keras") is None, reason="keras is not installed")
def test_a_model_of_the_real_package_trains_as_a_plain_loop():
    environment = {**os.environ, "KERAS_BACKEND": "torch"}
    ended = subprocess.run([sys.executable, "-c", REAL], env=environment, capture_output=True, text=True, check=False)
    assert ended.stdout == "equal\n", ended.stderr
