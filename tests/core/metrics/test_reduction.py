"""Values of `self.log` over pretended processes: by a strategy, and metrics of some of them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torchmetrics import MeanMetric

from lightlib.core.metrics.reduction import EachValue, Reduction
from lightlib.core.metrics.slots import Slot, Table
from lightlib.errors import LoggingError


def table(*values, reduction="mean", **options):
    """Return the table of an evaluation with one name, and values of batches with their sizes."""
    slot = Slot("v", "", bar=False, logger=True, on_step=False, on_epoch=True, reduction=reduction, **options)
    for value, size in values:
        slot.add(value, size)
    return Table(training=False, slots={("v", "", 0): slot}), slot


class TestAStrategyThatReduces:
    """The other process logged 5.0 for a batch of 4 samples."""

    @pytest.mark.parametrize(
        ("reduction", "expected"), [("mean", (1 * 2 + 3 * 2 + 5 * 4) / 8), ("sum", 9.0), ("max", 5.0), ("min", 1.0)]
    )
    def test_means_weigh_by_samples(self, reduction, expected):
        theirs = {"mean": iter([5.0 * 4, 4.0])}.get(reduction, iter([5.0]))
        join = {"max": torch.maximum, "min": torch.minimum}.get(reduction, torch.add)
        logged, slot = table((1.0, 2), (3.0, 2), reduction=reduction, synced=True)
        EachValue(lambda value, how: join(value, torch.as_tensor(next(theirs))))(logged)
        assert slot.shared
        assert slot.value == expected

    def test_a_value_without_sync_dist_is_left_alone(self):
        logged, slot = table((1.0, 2))
        EachValue(lambda value, how: pytest.fail("reduced"))(logged)
        assert not slot.shared


def test_a_metric_that_a_process_without_a_batch_cannot_find():
    metric = MeanMetric()
    metric.update(1.0)
    logged, slot = table(metric=metric)
    slot.count = 1
    processes = SimpleNamespace(all_gather_object=lambda mine: [mine, (1, {})])
    strategy = SimpleNamespace(collectives=processes, data=processes, data_place=0, world_size=2)
    with pytest.raises(LoggingError, match="a process without a batch did not log it"):
        Reduction(strategy, {}.__getitem__)(logged)
