"""Reporter: the metrics of validations, of which some leave out a loader."""

from __future__ import annotations

import pytest

from lightlib.experiment.messages import Messages
from lightlib.experiment.trial.reporter import Reporter
from tests.runs.modules import Validated
from tests.runs.plain import batches, loader, quiet_trainer


@pytest.mark.parametrize(("metric", "epochs"), [("val_loss/noisy", [1, 3]), ("val_loss/clean", [0, 1, 2, 3])])
def test_a_validation_without_the_loader_of_the_metric_is_not_reported(tmp_path, metric, epochs):
    messages = Messages(tmp_path)
    trainer = quiet_trainer(
        max_epochs=4, callbacks=[Reporter(messages, [metric])], check_val_every_n_epoch={"noisy": 2}
    )
    trainer.fit(Validated(), batches(2), {"clean": loader(4), "noisy": loader(8)})
    found = [message for message in Messages(tmp_path).new() if message["kind"] == "validated"]
    assert [message["epoch"] for message in found] == epochs
    assert all(("val_loss/noisy" in message["metrics"]) == bool(message["epoch"] % 2) for message in found)
