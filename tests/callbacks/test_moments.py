"""Questions that a callback asks in its hooks, compared with counts by hand."""

from __future__ import annotations

import pytest

from lightlib.callbacks import (
    end_of_epoch,
    every_n_epochs,
    every_n_inner_iters,
    every_n_train_iters,
    is_last_train_epoch,
    is_last_train_iter,
)
from lightlib.callbacks.callback import Callback
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from tests.runs.plain import Net, batches, quiet_trainer


class Asks(Callback):
    """Notes the batches and epochs for which a question is answered with yes."""

    def __init__(self, ask):
        self.ask, self.batches, self.epochs, self.late = ask, [], [], []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if self.ask(trainer):
            self.batches.append((trainer.current_epoch, batch_idx))

    def on_train_epoch_end(self, trainer, pl_module):
        if self.ask(trainer):
            self.epochs.append(trainer.current_epoch)

    def on_fit_epoch_end(self, trainer, pl_module):
        if self.ask(trainer):
            self.late.append(trainer.current_epoch - 1)


def asked(ask, num_batches=3, **arguments):
    callback = Asks(ask)
    quiet_trainer(**{"max_epochs": 4, "callbacks": callback, **arguments}).fit(Net(), batches(num_batches))
    return callback


def every_batch_of(*epochs):
    return [(epoch, batch) for epoch in epochs for batch in range(3)]


@pytest.mark.parametrize(
    ("n", "start", "expected"), [(2, 0, [1, 3]), (2, 1, [2]), (1, 2, [2, 3]), (3, 0, [2]), (0, 0, []), (5, 0, [])]
)
def test_every_n_epochs(n, start, expected):
    found = asked(lambda trainer: every_n_epochs(trainer, n, start))
    assert (found.batches, found.epochs, found.late) == (every_batch_of(*expected), expected, expected)


@pytest.mark.parametrize(
    ("n", "start", "expected"),
    [(5, 0, [(1, 1), (3, 0)]), (5, 1, [(1, 2), (3, 1)]), (12, 0, [(3, 2)]), (0, 0, [])],
)
def test_every_n_train_iters_counts_batches_of_the_run(n, start, expected):
    assert asked(lambda trainer: every_n_train_iters(trainer, n, start)).batches == expected


def test_every_n_inner_iters():
    assert [index for index in range(7) if every_n_inner_iters(index, 3)] == [2, 5]


def test_the_end_of_an_epoch():
    assert asked(end_of_epoch).batches == [(epoch, 2) for epoch in range(4)]


@pytest.mark.parametrize(
    ("arguments", "epoch", "last"),
    [
        ({"max_epochs": 2}, 1, (1, 2)),
        ({"max_epochs": -1, "max_steps": 4}, 1, (1, 0)),
        ({"max_epochs": -1, "max_steps": 3, "accumulate_grad_batches": 2}, 1, (1, 1)),
        ({"max_epochs": 1.5}, 1, (1, 1)),
        ({"max_epochs": 9, "max_steps": 6}, 1, (1, 2)),
    ],
)
def test_the_last_epoch_and_the_last_batch(arguments, epoch, last):
    found = asked(is_last_train_epoch, **arguments)
    assert {where for where, _ in found.batches} == {epoch}
    assert found.epochs == [epoch]
    assert asked(is_last_train_iter, **arguments).batches == [last]


def test_the_last_epoch_is_unknown_without_a_length():
    class Endless:
        def __iter__(self):
            return iter(batches(3))

    callback = Asks(is_last_train_epoch)
    quiet_trainer(max_epochs=-1, max_steps=4, callbacks=callback).fit(Net(), Endless())
    assert callback.batches == []


def test_a_resumed_run_counts_on(tmp_path):
    class Saves(Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if trainer.global_step == 4:
                trainer.save_checkpoint(tmp_path / "four.ckpt")

    questions = [lambda trainer: every_n_train_iters(trainer, 2), lambda trainer: every_n_epochs(trainer, 2)]
    full = [Asks(ask) for ask in questions]
    quiet_trainer(max_epochs=4, callbacks=[Saves(), *full]).fit(Net(), batches(3))
    again = [Asks(ask) for ask in questions]
    quiet_trainer(max_epochs=4, callbacks=again).fit(Net(), batches(3), ckpt_path=tmp_path / "four.ckpt")
    for first, second in zip(full, again, strict=True):
        assert (second.batches, second.epochs) == (first.batches, first.epochs)  # what was noted before is restored


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ((1.5,), ArgumentTypeError, r"every_n_epochs\(n=1\.5 \(float\)\)"),
        ((-1,), MisconfigurationException, r"(?s)every_n_epochs\(n=-1\).*an int >= 0"),
        ((1, -2), MisconfigurationException, r"every_n_epochs\(start=-2\)"),
        ((1, "2"), ArgumentTypeError, r"every_n_epochs\(start='2' \(str\)\)"),
    ],
)
def test_wrong_intervals(arguments, kind, message):
    with pytest.raises(kind, match=message):
        every_n_epochs(quiet_trainer(), *arguments)
