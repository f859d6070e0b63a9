"""Tensors that callbacks keep by parameter: saved and restored in one process, and errors."""

from __future__ import annotations

import pytest
import torch

import lightlib as L
from lightlib.checkpoint import convert, inspect, load
from lightlib.core.resume import callback_tensors as module_of_the_hook
from lightlib.errors import ArgumentTypeError, CheckpointError, MisconfigurationException
from lightlib.strategies import DeepSpeedStrategy
from lightlib.strategies.single import SingleDeviceStrategy
from lightlib.strategies.strategy import Strategy
from tests.callbacks.moving_average import Average, plain_average, same
from tests.runs.plain import Net, batches, loader, quiet_trainer, same_weights

STEPS = 6
FORMATS = ("file", "directory")


class SavesAt(L.Callback):
    """Writes a checkpoint after so many steps."""

    def __init__(self, step, path, kind="file"):
        self.step, self.path, self.kind = step, path, kind

    def on_accumulation_end(self, trainer, *args):
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path, format=self.kind)


def adam(parameters):
    return torch.optim.AdamW(parameters, lr=0.05)


def fitted(*callbacks, module=None, data=None, **options):
    """Train for some steps; return the module."""
    torch.manual_seed(5)
    module = module or Net(adam)
    resume = {name: options.pop(name) for name in ("ckpt_path", "resume") if name in options}
    trainer = quiet_trainer(**{"max_epochs": 1, **options}, callbacks=list(callbacks))
    trainer.fit(module, data or batches(STEPS), **resume)
    return module


@pytest.mark.parametrize("kind", FORMATS)
def test_it_is_that_of_a_plain_loop_and_saved(kind, tmp_path):
    callback, path = Average(), tmp_path / "one.ckpt"
    fitted(callback, SavesAt(4, path, kind))
    plain = Net(adam)
    average, squares = plain_average(plain, plain.net, batches(STEPS))
    assert same(callback.average, average)
    assert same(callback.squares, squares)
    plain = Net(adam)
    average, squares = plain_average(plain, plain.net, batches(STEPS)[:4])
    saved = load(path)["lightlib"]["callback_tensors"]
    assert list(saved) == ["Average"]
    assert list(saved["Average"]) == ["average", "squares"]
    assert same(saved["Average"]["average"], average)
    assert same(saved["Average"]["squares"], squares)
    assert "average" not in str(load(path)["lightlib"].get("user"))  # the attribute is saved once
    assert inspect(path).callbacks == ("Average",)
    convert(path, tmp_path / "other.ckpt")
    assert same(load(tmp_path / "other.ckpt")["lightlib"]["callback_tensors"]["Average"]["average"], average)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_resumed_run_ends_with_the_same_bits(kind, tmp_path):
    def data():
        return loader(4 * STEPS, shuffle=True)

    uninterrupted, resumed, path = Average(), Average(), tmp_path / "one.ckpt"
    whole = fitted(uninterrupted, data=data(), max_epochs=2)
    fitted(Average(), SavesAt(4, path, kind), data=data(), max_steps=4, max_epochs=2)
    ended = fitted(resumed, data=data(), max_epochs=2, ckpt_path=path)
    assert resumed.loaded == 1
    assert resumed.steps == uninterrupted.steps == 2 * STEPS
    assert same_weights(whole, ended)
    assert same(resumed.average, uninterrupted.average)
    assert same(resumed.squares, uninterrupted.squares)
    assert {value.dtype for value in resumed.squares.values()} == {torch.float64}


def test_the_restored_tensors_are_the_callbacks_own(tmp_path):
    class SharesMemory(Average):
        def sharded_state(self, trainer, pl_module):
            weights = dict(pl_module.named_parameters())
            return {"one": weights, "two": weights}

        def load_sharded_state(self, trainer, pl_module, state):
            self.state = state

    fitted(SharesMemory(), SavesAt(STEPS, tmp_path / "one.ckpt"))
    callback = SharesMemory()
    module = fitted(callback, ckpt_path=tmp_path / "one.ckpt")
    for kind in ("one", "two"):
        assert same(callback.state[kind], dict(module.named_parameters()))
        assert not any(value.requires_grad for value in callback.state[kind].values())
    name = "net.0.bias"
    callback.state["one"][name].zero_()
    assert callback.state["two"][name].any()
    assert module.get_parameter(name).any()


def test_callbacks_can_be_left_out(tmp_path):
    path = tmp_path / "one.ckpt"
    fitted(Average(), SavesAt(4, path))
    for resume in ({"callbacks": False}, "weights"):
        callback = Average()
        fitted(callback, ckpt_path=path, resume=resume)
        assert callback.loaded == 0


def test_a_checkpoint_without_tensors_is_resumed(tmp_path):
    fitted(Average(), SavesAt(4, tmp_path / "one.ckpt"))
    content = torch.load(tmp_path / "one.ckpt")
    del content["lightlib"]["callback_tensors"]
    torch.save(content, tmp_path / "old.ckpt")
    callback = Average()
    fitted(callback, ckpt_path=tmp_path / "old.ckpt")
    assert callback.loaded == 0
    assert callback.steps == STEPS


def test_tensors_of_weights_alone_are_not_saved(tmp_path):
    trainer = quiet_trainer(callbacks=[Average()])
    trainer.fit(Net(adam), batches(2))
    trainer.save_checkpoint(tmp_path / "weights.ckpt", weights_only=True)
    assert "callback_tensors" not in load(tmp_path / "weights.ckpt")["lightlib"]


def test_a_callback_that_the_run_does_not_have_and_one_that_cannot_load(tmp_path):
    class Saves(Average):
        not_in_checkpoint = ("average", "squares", "steps", "loaded")
        state_dict = L.Callback.state_dict
        load_sharded_state = L.Callback.load_sharded_state

    fitted(Saves(), SavesAt(4, tmp_path / "one.ckpt"))
    with pytest.warns(UserWarning, match=r"the tensors of a callback that this run does not have: .*Saves"):
        fitted(ckpt_path=tmp_path / "one.ckpt")
    with pytest.warns(UserWarning, match=r"Saves, which has no load_sharded_state: they are left out\. Define"):
        fitted(Saves(), ckpt_path=tmp_path / "one.ckpt")
    fitted(Average(), SavesAt(4, tmp_path / "two.ckpt"))
    with pytest.warns(UserWarning, match="state of a callback that this run does not have: Average") as caught:
        fitted(ckpt_path=tmp_path / "two.ckpt")
    assert len([one for one in caught if "Average" in str(one.message)]) == 1


def test_other_callbacks_are_not_called(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(L.Callback, "sharded_state", lambda *args: calls.append(args) or {})
    monkeypatch.setattr(module_of_the_hook, "_checked", lambda *args: calls.append(args))
    fitted(L.callbacks.TerminateOnNaN(), SavesAt(4, tmp_path / "one.ckpt"))
    assert not calls
    assert "callback_tensors" not in load(tmp_path / "one.ckpt")["lightlib"]


def test_two_callbacks_need_two_keys():
    class Tensors(L.Callback):
        def sharded_state(self, trainer, pl_module):
            return {}

    with pytest.raises(MisconfigurationException, match="Two callbacks would save their state under the key"):
        fitted(Tensors(), Tensors())


WEIGHT = "net.0.weight"
WRONG = {
    "a name": (
        lambda module: {"average": {"net.0.wieght": torch.zeros(8, 6)}},
        MisconfigurationException,
        (
            r"Wrong\.sharded_state returned 'net.0.wieght' in 'average', which is no parameter of Net on this proc.*\. "
            r"Did you mean 'net.0.weight'\?\n.*Expected: names from pl_module.named_param.*\n.*Fix: use those names"
        ),
    ),
    "a shape": (
        lambda module: {"average": {WEIGHT: torch.zeros(3)}},
        MisconfigurationException,
        (
            r"Wrong\.sharded_state returned a tensor for 'net.0.weight' in 'average' with shape \(3,\); the parameter "
            r"has shape \(8, 6\)\.\n.*Expected: .*placement of the parameter\.\n.*Fix: make it from the parameter"
        ),
    ),
    "no groups": (
        lambda module: {WEIGHT: torch.zeros(8, 6)},
        ArgumentTypeError,
        (
            r"Wrong\.sharded_state returned tensor\(.* for 'net.0.weight'\.\n.*Expected: tensors by parameter name, "
            r"under a name of their own.*\n.*Fix: return \{'average': tensors\}"
        ),
    ),
    "a number": (
        lambda module: {"average": {WEIGHT: 3}},
        ArgumentTypeError,
        r"Wrong\.sharded_state returned 3 \(int\) for 'net.0.weight' in 'average'",
    ),
    "None": (lambda module: None, ArgumentTypeError, r"Wrong\.sharded_state returned None"),
    "a name that is no text": (lambda module: {0: {}}, ArgumentTypeError, r"Wrong\.sharded_state returned \{\} .* 0\."),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_refused_by_the_save(case, tmp_path):
    state, error, text = WRONG[case]

    class Wrong(L.Callback):
        def sharded_state(self, trainer, pl_module):
            return state(pl_module)

    with pytest.raises(error, match=text):
        fitted(Wrong(), SavesAt(2, tmp_path / "one.ckpt"))
    assert not (tmp_path / "one.ckpt").exists()


def test_what_does_not_fit_is_refused_by_the_resume(tmp_path):
    path = tmp_path / "one.ckpt"
    fitted(Average(), SavesAt(4, path))
    changes = {
        r"'net.0.wieght' is not a parameter": lambda held: held.update({"net.0.wieght": held.pop(WEIGHT)}),
        r"'net.0.weight' has shape \(3,\), the parameter \(8, 6\)": lambda held: held.update({WEIGHT: torch.zeros(3)}),
        r"'net.0.weight' is of type str": lambda held: held.update({WEIGHT: "weight"}),
    }
    for text, change in changes.items():
        content = torch.load(path)
        change(content["lightlib"]["callback_tensors"]["Average"]["average"])
        torch.save(content, tmp_path / "other.ckpt")
        with pytest.raises(
            CheckpointError, match=rf"tensors of the callback Average .* do not fit Net: {text}\.\n.*Exp"
        ):
            fitted(Average(), ckpt_path=tmp_path / "other.ckpt")


def test_a_strategy_that_cannot_gather_refuses(tmp_path):
    class Engine(SingleDeviceStrategy):
        parameter_tensors = Strategy.parameter_tensors
        place_parameter_tensors = Strategy.place_parameter_tensors

    message = r"A callback has `sharded_state`, and {} can neither gather nor place tensors by parameter\.\n.*Expected"
    with pytest.raises(MisconfigurationException, match=message.format("Engine")):
        fitted(Average(), SavesAt(2, tmp_path / "one.ckpt"), strategy=Engine())
    fitted(Average(), SavesAt(4, tmp_path / "one.ckpt"))
    with pytest.raises(MisconfigurationException, match=message.format("Engine")):
        fitted(Average(), strategy=Engine(), ckpt_path=tmp_path / "one.ckpt")
    for method in (DeepSpeedStrategy().parameter_tensors, DeepSpeedStrategy().place_parameter_tensors):
        with pytest.raises(MisconfigurationException, match=message.format("DeepSpeedStrategy")):
            method({})


def test_the_audit_names_the_callback():
    class Tensors(L.Callback):
        def sharded_state(self, trainer, pl_module):
            return {}

    trainer = quiet_trainer(callbacks=[Tensors()])
    trainer.fit(Net(adam), batches(1))
    assert trainer.audit_state().captured["callbacks"] == "Tensors"
