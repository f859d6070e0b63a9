"""RankMetricFiles: the values of each rank's shard, compared with plain torch, and a stop and resume."""

from __future__ import annotations

import json

import pytest
import torch
from torch.nn.functional import cross_entropy

from lightlib.callbacks import RankMetricFiles
from lightlib.errors import ArgumentTypeError
from lightlib.loggers import CSVLogger
from tests.processes.ranks import ranks
from tests.runs.modules import LogsLoss
from tests.runs.plain import batches, loader, network, quiet_trainer
from tests.runs.saves_at import SavesAt


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def losses(data):
    net, found = network(), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in data:
        loss = cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def fit(callback, *more, **arguments):
    settings = {"max_epochs": 1, "log_every_n_steps": 1, "callbacks": [callback, *more]}
    quiet_trainer(**settings).fit(LogsLoss(), batches(4), **arguments)


def test_one_process(tmp_path):
    fit(RankMetricFiles(tmp_path))
    found = rows(tmp_path / "rank_0" / "metrics.jsonl")
    assert [(row["step"], row["loss"]) for row in found] == list(enumerate(losses(batches(4)), 1))


def test_in_the_folder_of_the_run(tmp_path):
    trainer = quiet_trainer(callbacks=RankMetricFiles(), logger=CSVLogger(tmp_path), log_every_n_steps=1)
    trainer.fit(LogsLoss(), batches(2))
    assert len(rows(tmp_path / "lightning_logs" / "version_0" / "rank_0" / "metrics.jsonl")) == 2


def test_a_resumed_run_has_the_same_file(tmp_path):
    fit(RankMetricFiles(tmp_path / "full"))
    fit(RankMetricFiles(tmp_path / "again"), SavesAt(tmp_path / "two.ckpt", 2))
    fit(RankMetricFiles(tmp_path / "again"), ckpt_path=tmp_path / "two.ckpt")
    full, again = (tmp_path / name / "rank_0" / "metrics.jsonl" for name in ("full", "again"))
    assert full.read_bytes() == again.read_bytes()


def test_a_new_callback_begins_a_new_file(tmp_path):
    for _ in range(2):
        fit(RankMetricFiles(tmp_path))
    assert len(rows(tmp_path / "rank_0" / "metrics.jsonl")) == 4


@pytest.mark.processes
def test_two_ranks(tmp_path):
    first, second = ranks(2, _of_each_rank, tmp_path)
    assert first != second, "each rank has its own batch"
    for rank, loss in enumerate((first, second)):
        (row, *_) = rows(tmp_path / "all" / f"rank_{rank}" / "metrics.jsonl")
        assert row["loss"] == pytest.approx(loss, rel=1e-6)
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["rank_1"]
    assert len(rows(tmp_path / "one" / "rank_1" / "metrics.jsonl")) == 2


def _of_each_rank(rank, folder):
    settings = {"devices": 2, "strategy": "ddp", "max_epochs": 1, "log_every_n_steps": 1}
    callbacks = [RankMetricFiles(folder / "all"), RankMetricFiles(folder / "one", ranks=[1])]
    for callback in callbacks:
        quiet_trainer(**settings, callbacks=callback).fit(LogsLoss(), loader(16))
    x, y = loader(16).dataset.tensors
    return cross_entropy(network()(x[rank::2][:4]), y[rank::2][:4]).item()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"folder": 3}, r"RankMetricFiles\(folder=3 \(int\)\)"),
        ({"folder": "s3://bucket"}, r"(?s)folder='s3://bucket'.*a local path"),
        ({"ranks": 1}, r"RankMetricFiles\(ranks=1 \(int\)\)"),
        ({"ranks": [-1]}, r"(?s)ranks=\[-1\].*Fix: RankMetricFiles\(ranks=\[0\]\)"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ArgumentTypeError, match=message):
        RankMetricFiles(**arguments)
