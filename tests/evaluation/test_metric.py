"""Metric: arguments, its use in a loop of the user's, and wrong results."""

from __future__ import annotations

import pytest
import torch

from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError
from lightlib.evaluation import Metric, MetricCallback
from lightlib.evaluation.exchange import compact, read, write
from lightlib.evaluation.order import Sharding, in_order, sharding_of
from tests.evaluation.modules import Losses, Predicts, loader, losses_by_hand
from tests.runs.bad_input import refused
from tests.runs.plain import quiet_trainer


def test_in_a_loop_of_the_users():
    module, metric = Predicts(), Losses(prefix="p")
    for _ in range(2):
        with torch.no_grad():
            for batch in loader(7):
                metric.process(batch, module.net(batch[0]))
        expected = {name.replace("loss/", "p/"): value for name, value in losses_by_hand(module.net, 7).items()}
        assert metric.evaluate(7) == expected
        assert metric.results == []


def test_more_results_than_samples_are_dropped():
    metric = Losses(prefix="")
    metric.results = [torch.tensor(1.0), torch.tensor(3.0), torch.tensor(100.0)]
    assert metric.evaluate(size=2) == {"mean": 2.0, "last": 3.0, "count": 2.0}


def test_no_results_are_no_numbers():
    with pytest.warns(UserWarning, match="Losses has no results"):
        assert Losses().evaluate() == {}


class Wrong(Metric):
    returned = None

    def process(self, batch, outputs):
        self.results.append(0)

    def compute_metrics(self, results):
        return self.returned


@pytest.mark.parametrize(
    ("returned", "kind", "match"),
    [
        (3.0, MisconfigurationException, "Wrong.compute_metrics returned 3.0"),
        ({"a": "much"}, ArgumentTypeError, "The metric 'a' is 'much'"),
        ({"a": torch.ones(2)}, ArgumentTypeError, "The metric 'a' is tensor"),
    ],
)
def test_what_compute_metrics_must_return(returned, kind, match):
    metric = Wrong()
    metric.returned = returned
    with pytest.raises(kind, match=match):
        quiet_trainer(callbacks=[MetricCallback(metric)]).validate(Predicts(), loader(4), verbose=False)


def test_arguments():
    with pytest.raises(UnknownNameError, match="collect_device of Losses"):
        Losses(collect_device="cuda")
    with pytest.raises(ArgumentTypeError, match=r"Losses\(prefix=1"):
        Losses(prefix=1)
    with pytest.raises(ArgumentTypeError, match=r"Losses\(collect_dir=3"):
        Losses(collect_dir=3)
    with refused(
        MisconfigurationException,
        "Losses(collect_device='gpu', collect_dir='x').",
        "collect_dir with collect_device='cpu' only***",
        "Losses(collect_dir='x')",
    ):
        Losses(collect_device="gpu", collect_dir="x")
    assert Losses().prefix == "loss"
    with pytest.raises(TypeError, match="abstract"):
        Metric()


class TestOrder:
    def test_batches_of_ranks_take_turns(self):
        parts = [[["a0", "a1"], ["c0"]], [["b0"]]]
        assert in_order("M", parts, Sharding()) == ["a0", "a1", "b0", "c0"]

    @pytest.mark.parametrize("size", [1, 2, 3, 4])
    @pytest.mark.parametrize("repeats", [True, False])
    def test_samples_of_ranks_take_turns(self, size, repeats):
        for total in range(1, 14):
            for batch in (1, 2, 5):
                rows = [list(range(rank, total, size)) for rank in range(size)]
                if repeats:  # as DistributedSampler does
                    longest = -(-total // size)
                    rows = [[(rank + i * size) % total for i in range(longest)] for rank in range(size)]
                parts = [[row[i : i + batch] for i in range(0, len(row), batch)] for row in rows]
                assert in_order("M", parts, Sharding(total, batch, repeats)) == list(range(total))

    def test_repeated_samples_need_results_of_their_own(self):
        with refused(
            MisconfigurationException,
            "M has 4 results for 7 samples, of which the sampler repeats 1.",
            "one result for each sample***",
            "***DistributedSampler***",
        ):
            in_order("M", [[["a"], ["b"]], [["c"], ["d"]]], Sharding(7, 2, repeats=True))

    def test_what_is_known_of_a_loader(self):
        assert sharding_of([1, 2], training=False, shards=True) == Sharding()
        assert sharding_of(loader(7), training=False, shards=True) == Sharding(7, 2)
        assert sharding_of(loader(7), training=True, shards=True) == Sharding(7, 2, repeats=True)
        assert sharding_of(loader(7, drop_last=True), training=False, shards=True) == Sharding()
        assert sharding_of(loader(7), training=False, shards=False) == Sharding()
        sampler = torch.utils.data.DistributedSampler(range(7), 2, 0)
        assert sharding_of(loader(7, sampler=sampler), training=False, shards=True) == Sharding(7, 2, repeats=True)
        dropping = torch.utils.data.DistributedSampler(range(7), 2, 0, drop_last=True)
        assert sharding_of(loader(7, sampler=dropping), training=False, shards=True) == Sharding(6, 2)


def test_files_hold_no_code(tmp_path):
    path = str(tmp_path / "file.pt")
    write(path, compact({"a": [torch.ones(10)[:2], "b", 3, None]}))
    assert read(path)["a"][0].untyped_storage().nbytes() == 8
    with pytest.raises(MisconfigurationException, match="cannot be read back safely"):
        write(path, {"a": Losses()})
