"""Values that `self.log` accepts, and the errors for all other values."""

from __future__ import annotations

import pytest
import torch

from lightlib.errors import LoggingError
from lightlib.report import PossibleUserWarning
from tests.runs.logs import Base, logged, run
from tests.runs.plain import calling, with_methods


class TestValues:
    def test_one_name_with_two_meanings_in_one_hook(self):
        def training_step(self, batch, batch_idx):
            self.log("v", 1.0)
            self.log("v", 1.0, on_epoch=True)

        with pytest.raises(LoggingError, match=r"on_epoch=None and then on_epoch=True"):
            run(with_methods(Base, training_step))

    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (torch.ones(2), r"got a tensor of shape \(2,\)"),
            (torch.ones(0), r"got a tensor of shape \(0,\)"),
            ("high", "got 'high'"),
            ([1.0], r"got \[1.0\]"),
            ({"a": 1.0}, "log_dict"),
            (None, "got None"),
            (torch.tensor(1j), "complex|1j|tensor"),
        ],
    )
    def test_values(self, value, text):
        with pytest.raises(LoggingError, match=text) as error:
            run(with_methods(Base, training_step=lambda self, batch, batch_idx: self.log("v", value)))
        assert "Fix:" in str(error.value)

    def test_a_name_that_is_none(self):
        with pytest.raises(LoggingError, match=r"got the name 3 \(int\)"):
            run(with_methods(Base, training_step=lambda self, batch, batch_idx: self.log(3, 1.0)))

    def test_integers_are_logged_as_floats_with_a_warning(self):
        logs = calling(Base, training_step=lambda self, batch, batch_idx: self.log("v", torch.tensor(3), on_epoch=True))
        with pytest.warns(PossibleUserWarning, match="got an integer tensor"):
            rows, _ = run(logs, limit_val_batches=0)
        assert logged(rows)[-1] == (2, "v_epoch", 3.0)

    @pytest.mark.parametrize("value", [torch.tensor([[2.0]]), torch.tensor(2.0, dtype=torch.bfloat16), True, 2])
    def test_everything_with_one_number_is_taken(self, value):
        logs = calling(Base, training_step=lambda self, batch, batch_idx: self.log("v", value))
        rows, trainer = run(logs, limit_val_batches=0)
        assert logged(rows)[0] == (1, "v", float(value))
        assert trainer.callback_metrics["v"].shape == ()

    def test_a_batch_without_a_clear_size(self):
        def training_step(self, batch, batch_idx):
            self.log("v", 1.0, on_epoch=True)
            return Base.training_step(self, batch, batch_idx)

        def train_dataloader(self):
            return [{"x": torch.ones(3), "y": torch.ones(2)}]

        with pytest.warns(PossibleUserWarning, match=r"first dimensions differ \(3 and 2\)"):
            run(with_methods(Base, training_step, train_dataloader), limit_val_batches=0)
