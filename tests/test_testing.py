"""Tools for third parties: a small module, and the tests of a strategy, in one process."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

import lightlib as L
from lightlib import testing
from lightlib.errors import UnknownNameError
from lightlib.strategies.single import SingleDeviceStrategy
from lightlib.testing import CHECKS, BoringModule, check_strategy
from lightlib.testing.kit import worst_weight
from lightlib.testing.module import samples
from tests.runs import quiet

QUIET = quiet.QUIET | {"devices": 1}


def only(*names):
    return [name for name in CHECKS if name not in names]


class TestBoringModule:
    def test_it_has_everything_that_the_trainer_asks_for(self):
        module = BoringModule()
        trainer = L.Trainer(**QUIET, max_epochs=2)
        trainer.fit(module)
        assert set(trainer.callback_metrics) >= {"train_loss", "train_loss_step", "train_loss_epoch", "val_loss"}
        losses = (
            trainer.validate(module, verbose=False)[0]["val_loss"],
            trainer.test(module, verbose=False)[0]["test_loss"],
        )
        with torch.no_grad():
            assert losses[0] == losses[1] < float(BoringModule().loss(samples(37).tensors))
        assert torch.cat(trainer.predict(module)).shape == (37, 4)

    def test_it_is_built_again_from_a_checkpoint(self, tmp_path):
        module = BoringModule(depth=1, lr=0.5)
        trainer = L.Trainer(**QUIET, max_steps=1)
        trainer.fit(module)
        trainer.save_checkpoint(tmp_path / "one.ckpt")
        again = BoringModule.load_from_checkpoint(tmp_path / "one.ckpt")
        assert (len(again.model), again.lr) == (4, 0.5)


class Halving(SingleDeviceStrategy):
    """A strategy with the errors that `wrong` names."""

    wrong = ""

    def clip_gradients(self, optimizer, value, algorithm):
        return super().clip_gradients(optimizer, value if self.wrong != "clip" else 2 * value, algorithm)

    def load_optimizer_state(self, optimizer, state):
        if self.wrong != "load":
            super().load_optimizer_state(optimizer, state)

    def module_state(self):
        state = dict(super().module_state())
        if self.wrong == "names":
            state["module.first"] = state.pop("model.0.weight")
        return state

    def forward_backward(self, batch, batch_idx, backward, sync):
        try:
            return super().forward_backward(batch, batch_idx, backward, sync)
        except ValueError as error:
            if self.wrong == "error":
                raise KeyError("something else") from error
            raise


def wrong(what):
    def make():
        strategy = Halving()
        strategy.wrong = what
        return strategy

    return make


class TestCheckStrategy:
    def test_one_device_passes(self):
        check_strategy(SingleDeviceStrategy)

    @pytest.mark.parametrize(
        ("what", "check", "text"),
        [
            ("clip", "clips_norm", r"the weight 'model\..*' is off by .* of its size after training, more than 1e-05"),
            ("clip", "clips_value", r"the weight 'model\..*' is off by"),
            ("load", "loads", r"the weight 'model\..*' is off by .* after resuming from a checkpoint of one device"),
            ("names", "trains", r"the weights after training .*: missing \['model.0.weight'\], new \['module.first'\]"),
            ("error", "raises", r"a step raised ValueError\('.*'\), and KeyError was raised"),
        ],
    )
    def test_a_wrong_one_is_told_what_differs(self, what, check, text):
        message = rf"The strategy Halving fails the check '{check}': {text}.*\n  Expected: .+\n  Fix: ."
        with pytest.raises(AssertionError, match=message):
            check_strategy(wrong(what), without=only(check))

    def test_a_tolerance_and_arguments_of_the_trainer(self):
        check_strategy(wrong("clip"), without=only("clips_norm"), tolerance=10.0)
        with pytest.raises(AssertionError, match="is off by"):
            check_strategy(SingleDeviceStrategy, without=only("trains"), precision="bf16-true")

    def test_checks_have_names(self):
        with pytest.raises(UnknownNameError, match=r"'predict'.*\n.*predicts"):
            check_strategy(SingleDeviceStrategy, without=["predict"])

    def test_every_check_is_described(self):
        for name in CHECKS:
            assert f'``"{name}"``' in check_strategy.__doc__


@pytest.mark.parametrize("file", sorted(Path(testing.__file__).parent.glob("*.py")), ids=lambda file: file.name)
def test_it_needs_no_package_for_tests(file):
    tree = ast.parse(file.read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not {name for name in imported if name.split(".")[0] in ("pytest", "tests", "hypothesis")}


def test_a_weight_that_is_nan_is_the_worst_one():
    weights = {"a": torch.ones(2), "b": torch.ones(2)}
    assert worst_weight({"a": torch.ones(2), "b": torch.full((2,), torch.nan)}, weights) == (float("inf"), "b")
    assert worst_weight({}, weights) == (0.0, "")
