"""Evaluation loaders with names: metrics, limits and intervals of each, counted by plain loops."""

from __future__ import annotations

import re

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from lightlib import CombinedLoader
from lightlib.callbacks import Callback, EarlyStopping, LambdaCallback, ModelCheckpoint
from lightlib.conventions import Conventions, Order, following
from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError
from lightlib.loggers import CSVLogger
from tests.processes.ranks import ranks
from tests.runs.modules import Validated
from tests.runs.plain import Net, Rows, batches, loader, momentum, network, quiet_trainer, same_weights, sgd

CLEAN, NOISY = 10, 7  # samples, in batches of 4
OPTIONS = {"enable_progress_bar": False, "logger": False}


def loaders(**arguments):
    return {"clean": loader(CLEAN, **arguments), "noisy": loader(NOISY, **arguments)}


def loss_of(net, n, limit=None):
    """The mean loss of the samples of a loader, by a loop over its batches."""
    total = count = 0
    with torch.no_grad():
        for x, y in list(loader(n))[:limit]:
            total, count = total + torch.nn.functional.cross_entropy(net(x), y) * len(y), count + len(y)
    return (total / count).item()


def losses_by_hand(epochs, due, limits=(None, None), configure=sgd):
    """Train by a loop; return for each epoch the losses of the loaders that are due, by the names of the metrics."""
    net, rows = network(), []
    optimizer = configure(net.parameters())
    for epoch in range(epochs):
        for x, y in batches(2):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
        found = {"clean": loss_of(net, CLEAN, limits[0]), "noisy": loss_of(net, NOISY, limits[1])}
        rows.append({f"val_loss/{name}": found[name] for name in due(epoch + 1)})
    return rows


def validated(rows):
    """The rows of a logger that are of validations."""
    return [{name: value for name, value in row.items() if name != "epoch"} for _, row in rows if "epoch" in row]


def plateau(parameters, monitor="val_loss/noisy", **options):
    optimizer = momentum(parameters)
    options = {"patience": 0, "threshold": 10.0, "factor": 0.5, **options}
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, **options)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": monitor}}


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.processes)])
def test_intervals_and_limits_of_each_loader(workers):
    rows, read = Rows(), []

    class Reads(Callback):
        def on_validation_batch_end(self, trainer, module, outputs, batch, batch_idx, dataloader_idx=0):
            read.append((trainer.current_epoch, dataloader_idx))

    trainer = quiet_trainer(
        max_epochs=5, logger=rows, callbacks=[Reads()], check_val_every_n_epoch={"noisy": 2},
        limit_val_batches={"clean": 2, "noisy": 0.5},
    )  # fmt: skip
    trainer.fit(Validated(), batches(2), loaders(num_workers=workers))

    def due(epoch):
        return ["clean", "noisy"] if epoch % 2 == 0 else ["clean"]

    expected = losses_by_hand(5, due, limits=(2, 1))
    assert validated(rows.rows) == [pytest.approx(row) for row in expected]
    assert [list(row) for row in validated(rows.rows)] == [list(row) for row in expected]
    assert read == [(epoch, k) for epoch in range(5) for k in ((0, 0, 1) if epoch % 2 else (0, 0))]
    assert trainer.num_val_batches == [2, 1]
    assert trainer.callback_metrics["val_loss/noisy"] == pytest.approx(expected[3]["val_loss/noisy"])  # the latest


@pytest.mark.parametrize("of_module", [False, True])
@pytest.mark.parametrize("kind", ["dict", "sequential"])
def test_every_call_and_its_table(capsys, kind, of_module):
    given = loaders() if kind == "dict" else CombinedLoader(loaders(), "sequential")
    module, trainer = Validated(), quiet_trainer(limit_predict_batches={"clean": 1}, limit_test_batches={"noisy": 1})
    if of_module:
        module.val_dataloader = module.test_dataloader = module.predict_dataloader = lambda served=given: served
        given = None
    assert trainer.validate(module, given) == [
        {"val_loss/clean": pytest.approx(loss_of(module.net, CLEAN))},
        {"val_loss/noisy": pytest.approx(loss_of(module.net, NOISY))},
    ]
    assert re.search(r"validate metric +clean +noisy\n.*\n val_loss +\S+ +\S+\n", capsys.readouterr().out)
    assert trainer.test(module, given, verbose=False) == [
        {"test_loss/clean": pytest.approx(loss_of(module.net, CLEAN))},
        {"test_loss/noisy": pytest.approx(loss_of(module.net, NOISY, 1))},
    ]
    assert [len(outputs) for outputs in trainer.predict(module, given)] == [1, 2]


@pytest.mark.parametrize("named", [True, False])
def test_what_is_logged_when_all_loaders_are_read_is_in_one_column(capsys, named):
    given = loaders() if named else list(loaders().values())
    endings = ["clean", "noisy"] if named else ["dataloader_idx_0", "dataloader_idx_1"]

    class AtEnd(Callback):
        def on_validation_epoch_end(self, trainer, module):
            for number, ending in enumerate(endings):
                module.log(f"acc/{ending}", float(number), add_dataloader_idx=False)

    quiet_trainer(callbacks=[AtEnd()]).validate(Validated(), given)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["acc", "0", "1"] in rows
    assert sum(row[0].startswith("acc") for row in rows if row) == 1


def test_one_loader_with_a_name_keeps_it():
    found = quiet_trainer().validate(Validated(), {"clean": loader(CLEAN)}, verbose=False)
    assert found == [{"val_loss/clean": pytest.approx(loss_of(network(), CLEAN))}]


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (lambda: list(loaders().values()), ["/dataloader_idx_0", "/dataloader_idx_1"]),
        (lambda: {"a": loader(4), "b": [loader(4), loader(4)]}, [f"/dataloader_idx_{i}" for i in range(3)]),
        (lambda: loader(4), [""]),
    ],
)
def test_loaders_without_names(given, names):
    found = quiet_trainer().validate(Validated(), given(), verbose=False)
    assert [list(values) for values in found] == [[f"val_loss{name}"] for name in names]


def test_loaders_that_are_read_together_are_one():
    module = Validated()
    module.loss = lambda batch: Net.loss(module, batch["clean"])
    given = CombinedLoader({"clean": loader(8), "noisy": loader(8)}, "min_size")
    assert quiet_trainer().validate(module, given, verbose=False) == [
        {"val_loss": pytest.approx(loss_of(module.net, 8))}
    ]


def test_another_convention_numbers_them():
    with following(Conventions(order=Order(numbers_loaders=True))):
        first, second = quiet_trainer().validate(Validated(), {1: loader(4), "b/c": loader(4)}, verbose=False)
    assert (list(first), list(second)) == (["val_loss/dataloader_idx_0"], ["val_loss/dataloader_idx_1"])


def test_batches_of_the_entire_run():
    rows = Rows()
    intervals = {"clean": 2, "noisy": [(0, 3), (6, 4)]}
    trainer = quiet_trainer(
        max_epochs=3, logger=rows, val_check_interval=intervals, check_val_every_n_epoch=None, log_every_n_steps=0
    )
    trainer.fit(Validated(), batches(4), loaders())
    found = [(step, [name[9:] for name in row if name != "epoch"]) for step, row in rows.rows]
    both = ["clean", "noisy"]
    assert found == [(2, ["clean"]), (3, ["noisy"]), (4, ["clean"]), (6, ["clean"]), (8, both), (10, ["clean"]),
                     (12, both)]  # fmt: skip


class Asks(Callback):
    """Requests a validation after the first batch."""

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.progress.batch == 1:
            trainer.request_validation()


def test_a_requested_validation_and_one_at_the_end_read_all():
    rows = Rows()
    intervals = {"clean": 2, "noisy": 3}
    trainer = quiet_trainer(
        max_epochs=4, logger=rows, callbacks=[Asks()], check_val_every_n_epoch=intervals, val_check_at_end=True
    )
    trainer.fit(Validated(), batches(2), loaders())
    found = [(step, [name[9:] for name in row if name != "epoch"]) for step, row in rows.rows]
    both = ["clean", "noisy"]
    assert found == [(1, both), (4, ["clean"]), (6, ["noisy"]), (8, both)]


def test_a_loader_that_is_not_due_is_not_iterated():
    class Counted:
        def __init__(self):
            self.passes = 0

        def __len__(self):
            return 1

        def __iter__(self):
            self.passes += 1
            return iter(batches(1))

    noisy = Counted()
    trainer = quiet_trainer(max_epochs=6, check_val_every_n_epoch={"noisy": 3}, num_sanity_val_steps=1)
    trainer.fit(Validated(), batches(2), {"clean": loader(4), "noisy": noisy})
    assert noisy.passes == 3  # the sanity check reads all


def test_an_old_value_is_not_taken_for_a_new_one(tmp_path):
    values = [3.0, 4.0, 2.0]  # of the loader that is due in epochs 2, 4, 6

    def step(batch, batch_idx, dataloader_idx=0):
        index = (module.current_epoch + 1) // 2 - 1
        module.log("v", values[index] if dataloader_idx else -float(module.current_epoch))

    module = Net(lambda parameters: plateau(parameters, "v/noisy", patience=1, threshold=1e-4))
    module.validation_step = step
    noisy = ModelCheckpoint(tmp_path / "noisy", "{epoch}", monitor="v/noisy", save_top_k=-1, save_last=True)
    clean = ModelCheckpoint(tmp_path / "clean", "{epoch}", monitor="v/clean", save_top_k=-1)
    stopping = EarlyStopping("v/noisy", patience=2)
    trainer = quiet_trainer(
        max_epochs=7,
        callbacks=[noisy, clean, stopping],
        check_val_every_n_epoch={"noisy": 2},
        enable_checkpointing=True,
    )
    trainer.fit(module, batches(2), {"clean": loader(4), "noisy": loader(4)})
    assert {path.rpartition("=")[2]: v.item() for path, v in noisy.best_k_models.items()} == {
        "1.ckpt": 3.0, "3.ckpt": 4.0, "5.ckpt": 2.0,
    }  # fmt: skip
    assert len(clean.best_k_models) == 7
    assert (stopping.wait_count, stopping.best_score.item(), trainer.current_epoch) == (0, 2.0, 7)
    scheduler = module.lr_schedulers()
    assert (scheduler.last_epoch, scheduler.num_bad_epochs, scheduler.best) == (3, 0, 2.0)


def test_a_metric_of_the_training_is_read_at_the_end_of_each_epoch(tmp_path):
    saver = ModelCheckpoint(tmp_path, "{epoch}", monitor="loss", save_top_k=-1)
    logs = LambdaCallback(on_train_epoch_end=lambda trainer, module: module.log("loss", 1.0))
    callbacks = [logs, saver, EarlyStopping("loss", patience=9)]
    trainer = quiet_trainer(
        max_epochs=3, callbacks=callbacks, check_val_every_n_epoch={"noisy": 2}, enable_checkpointing=True
    )
    trainer.fit(Validated(), batches(2), loaders())
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"epoch={epoch}.ckpt" for epoch in range(3)]


def test_files_of_a_logger(tmp_path):
    trainer = quiet_trainer(max_epochs=2, logger=CSVLogger(tmp_path, "", ""), check_val_every_n_epoch={"noisy": 2})
    trainer.fit(Validated(), batches(2), loaders())
    head, first, second = (tmp_path / "metrics.csv").read_text().splitlines()
    rows = [dict(zip(head.split(","), line.split(","), strict=True)) for line in (first, second)]
    assert set(rows[0]) == {"epoch", "step", "val_loss/clean", "val_loss/noisy"}
    assert rows[0]["val_loss/noisy"] == ""
    assert float(rows[1]["val_loss/noisy"])


# resume
class Saves(Callback):
    """Saves before each batch of the validations, and after each step."""

    def __init__(self, folder):
        self.folder = folder

    def _save(self, trainer):
        trainer.save_checkpoint(self.folder / f"{len(list(self.folder.iterdir()))}.ckpt")

    def on_validation_batch_start(self, trainer, *args):
        self._save(trainer)

    def on_train_batch_end(self, trainer, *args):
        self._save(trainer)

    def on_train_epoch_end(self, trainer, *args):
        self._save(trainer)


@pytest.mark.filterwarnings("ignore:.*within a validation")
def test_resumed_anywhere_it_logs_and_ends_the_same(tmp_path):
    def fitted(path=None, *callbacks):
        rows, module = Rows(), Validated(plateau)
        trainer = quiet_trainer(
            max_epochs=4, logger=rows, callbacks=[*callbacks, Asks(), EarlyStopping("val_loss/noisy", patience=9)],
            check_val_every_n_epoch={"clean": 1, "noisy": 2}, limit_val_batches={"clean": 1},
        )  # fmt: skip
        trainer.fit(module, batches(2), loaders(), ckpt_path=path)
        return module, rows.rows, trainer

    module, rows, trainer = fitted(None, Saves(tmp_path))
    number_of_saves = len(list(tmp_path.iterdir()))
    assert number_of_saves == 8 + 4 + 3 + 4 + 2 * 2  # the requested validation reads three batches
    for number in range(number_of_saves):
        again, later, other = fitted(tmp_path / f"{number}.ckpt")
        assert same_weights(again, module), number
        assert later == rows[len(rows) - len(later) :], number
        rates = [each.optimizers[0].param_groups[0]["lr"] for each in (trainer, other)]
        assert rates[0] == rates[1] < 0.1, number
        assert other.early_stopping_callback.wait_count == trainer.early_stopping_callback.wait_count


# ranks
def of_rank(rank, strategy):
    rows = Rows()
    trainer = quiet_trainer(
        max_epochs=3, logger=rows, strategy=strategy, devices=2, limit_val_batches={"clean": 1},
        check_val_every_n_epoch={"noisy": 2}, num_sanity_val_steps=1,
    )  # fmt: skip
    module = Validated(lambda parameters: torch.optim.SGD(parameters, lr=0.0))
    trainer.fit(module, batches(4), {"clean": loader(CLEAN, size=2), "noisy": Stream(), "last": loader(1)})
    return validated(rows.rows), trainer.validate(module, loaders(), verbose=False)


class Stream(IterableDataset):
    """Seven samples, of which the ranks get different numbers."""

    def __iter__(self):
        return iter(loader(NOISY).dataset)


@pytest.mark.processes
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_ranks_have_the_numbers_of_one_device(strategy):
    net = network()
    of_all = {
        "val_loss/clean": loss_of(net, CLEAN, 1),
        "val_loss/noisy": loss_of(net, NOISY),
        "val_loss/last": loss_of(net, 1),
    }
    without = {name: value for name, value in of_all.items() if name != "val_loss/noisy"}
    for rows, (clean, noisy) in ranks(2, of_rank, strategy):
        assert rows in ([], [pytest.approx(row, rel=1e-5) for row in (without, of_all, without)])
        assert clean == {"val_loss/clean": pytest.approx(loss_of(net, CLEAN, 2), rel=1e-5)}
        assert noisy == {"val_loss/noisy": pytest.approx(loss_of(net, NOISY), rel=1e-5)}


# bad input
@pytest.mark.parametrize(
    ("arguments", "given", "kind", "message"),
    [
        ({"limit_val_batches": {"claen": 1}}, "dict", UnknownNameError, "'claen'. Did you mean 'clean'"),
        ({"check_val_every_n_epoch": {"x": 1}}, "dict", UnknownNameError, "in check_val_every_n_epoch: 'x'"),
        ({"limit_val_batches": {"clean": 1}}, "list", MisconfigurationException, "these loaders have no names"),
        ({"check_val_every_n_epoch": {"clean": 1}}, "list", MisconfigurationException, "these loaders have no names"),
        ({"limit_val_batches": {"clean": 1.5}}, "dict", MisconfigurationException, "limit_val_batches is 1.5"),
        ({"limit_val_batches": {}}, "dict", MisconfigurationException, "limit_val_batches is {}"),
        ({"limit_test_batches": {1: 1}}, "dict", MisconfigurationException, "which are texts"),
        ({"check_val_every_n_epoch": {"clean": 0}}, "dict", MisconfigurationException, "check_val_every_n_epoch is 0"),
        (
            {"val_check_interval": {"clean": 2}, "check_val_every_n_epoch": None}, "dict", MisconfigurationException,
            "val_check_interval has no entry for the validation loaders 'noisy'",
        ),
        ({"callbacks": [EarlyStopping("val_loss")]}, "dict", MisconfigurationException, "monitor='val_loss/clean'"),
        ({}, 1, ArgumentTypeError, "A validation loader has the name 1"),
        ({}, "", MisconfigurationException, "A validation loader has the name ''"),
        ({}, "a/b", MisconfigurationException, "A validation loader has the name 'a/b'"),
    ],
)  # fmt: skip
def test_wrong(arguments, given, kind, message):
    val = {"dict": loaders(), "list": list(loaders().values())}.get(given, {given: loader(4)})
    module = Validated()
    with pytest.raises(kind, match=re.escape(message)) as caught:
        quiet_trainer(num_sanity_val_steps=1, **arguments).fit(module, batches(2), val)
    assert "Fix:" in str(caught.value)
    assert same_weights(module, Validated())  # nothing was trained


def test_intervals_that_need_the_entire_run():
    with pytest.raises(MisconfigurationException, match="with check_val_every_n_epoch=None also batches by the names"):
        quiet_trainer(val_check_interval={"clean": 2, "noisy": 4})
    trainer = quiet_trainer(val_check_interval={"clean": 2, "noisy": 4}, check_val_every_n_epoch=None)
    trainer.check_val_every_n_epoch = 1
    with pytest.raises(MisconfigurationException, match="counted from the start of each epoch"):
        trainer.fit(Validated(), batches(4), loaders())


def test_a_loader_without_a_batch_is_named():
    class Empty(IterableDataset):
        def __iter__(self):
            return iter(())

    with pytest.raises(MisconfigurationException, match="The validation loader gave no batch in 'noisy'"):
        quiet_trainer().validate(Validated(), {"clean": loader(4), "noisy": DataLoader(Empty())})


def test_a_limit_that_leaves_a_loader_out():
    rows = Rows()
    trainer = quiet_trainer(
        max_epochs=2, logger=rows, limit_val_batches={"clean": 0}, check_val_every_n_epoch={"noisy": 2}
    )
    trainer.fit(Validated(), batches(2), loaders())
    assert [sorted(row) for _, row in rows.rows] == [["epoch", "val_loss/noisy"]]


def test_no_loaders_are_limited():
    module = Validated()
    module.val_dataloader = list
    trainer = quiet_trainer(limit_val_batches={"clean": 1}, check_val_every_n_epoch={"clean": 2})
    trainer.fit(module, batches(2))
    assert trainer.num_val_batches == []


@pytest.mark.parametrize("arguments", [{"fast_dev_run": 1}, {"overfit_batches": 1}])
def test_arguments_that_replace_the_limits(arguments):
    trainer = quiet_trainer(limit_val_batches={"clean": 2, "noisy": 2}, **arguments)
    trainer.fit(Validated(), loader(8), loaders())
    assert trainer.num_val_batches == [1, 1]
