"""training_length: conversions to the Trainer's arguments, and its errors."""

from __future__ import annotations

import pytest

from lightlib import training_length
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from tests.runs.plain import Net, loader, quiet_trainer


@pytest.mark.parametrize(
    ("length", "arguments"),
    [
        ({"records": 10, "batch_size": 3}, {"max_steps": 3}),
        ({"records": 2, "batch_size": 3}, {"max_steps": 1}),
        ({"batches": 900}, {"max_steps": 900}),
        ({"batches": 7, "accumulate_grad_batches": 3}, {"max_steps": 2}),
        ({"batches": 2, "accumulate_grad_batches": 3}, {"max_steps": 1}),
        ({"records": 100, "batch_size": 4, "accumulate_grad_batches": 5}, {"max_steps": 5}),
        ({"epochs": 64}, {"max_epochs": 64}),
    ],
)
def test_conversions(length, arguments):
    assert training_length(**length) == arguments


@pytest.mark.parametrize(("records", "batches"), [(10, 3), (2, 1)])
def test_a_run_of_so_many_records(records, batches):
    trainer = quiet_trainer(limit_val_batches=0, **training_length(records=records, batch_size=3))
    trainer.fit(Net(), loader(10, 3))
    assert trainer.global_step == trainer.progress.batch == batches


@pytest.mark.parametrize(
    ("length", "kind", "text"),
    [
        ({}, MisconfigurationException, "training_length got no length"),
        ({"epochs": 1, "batches": 2}, MisconfigurationException, "training_length got epochs=1, batches=2"),
        ({"records": 10}, MisconfigurationException, r"records=10\) without a batch size"),
        ({"batches": 0}, MisconfigurationException, r"batches=0"),
        ({"epochs": 1.5}, ArgumentTypeError, r"epochs=1.5"),
        ({"records": 8, "batch_size": "4"}, ArgumentTypeError, r"batch_size='4'"),
    ],
)
def test_errors(length, kind, text):
    with pytest.raises(kind, match=text):
        training_length(**length)
