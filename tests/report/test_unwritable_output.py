"""Output that cannot be written ends no run: one warning, and everything else as with a terminal."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import warnings

import pytest
import torch
from torch.utils.data import DataLoader

import lightlib
from lightlib import report
from lightlib.callbacks import (
    MetricPrinter,
    ModelSummary,
    PlainProgressBar,
    ProgressBar,
    RichModelSummary,
    RichProgressBar,
    TQDMProgressBar,
)
from tests.runs import modules
from tests.runs.modules import Regression
from tests.runs.quiet import QUIET


class Net(modules.Validated, Regression):
    """Prints."""

    def on_train_epoch_end(self):
        self.print("from the module")
        self.trainer.print("from the trainer")


class Broken:
    """A stream that cannot be written, like a pipe without a reader, a full disk, or a closed file."""

    encoding = "utf-8"

    def __init__(self, error, terminal):
        self.error, self.terminal, self.tries = error, terminal, 0

    def write(self, text):
        self.tries += 1
        raise self.error

    def flush(self):
        raise self.error

    def isatty(self):
        return self.terminal

    def fileno(self):
        raise OSError("no file")


ERRORS = {
    "pipe": BrokenPipeError(32, "Broken pipe"),
    "disk": OSError(28, "No space left on device"),
    "closed": ValueError("I/O operation on closed file."),
}
WRITERS = {
    "plain": lambda: [PlainProgressBar(interval=1e-9)],
    "rich": lambda: [RichProgressBar(refresh_rate=1e6, console_kwargs={"force_terminal": True})],
    "rich, with epochs": lambda: [RichProgressBar(refresh_rate=1e6, leave=True)],
    "tqdm": lambda: [TQDMProgressBar()],
    "tqdm, with epochs": lambda: [TQDMProgressBar(leave=True)],
    "printer": lambda: [MetricPrinter(1)],
    "summary": lambda: [ModelSummary()],
    "rich summary": lambda: [RichModelSummary()],
}


def fitted(callbacks):
    kinds = {"enable_progress_bar": ProgressBar, "enable_model_summary": ModelSummary}
    shown = [name for name, kind in kinds.items() if any(isinstance(callback, kind) for callback in callbacks)]
    seen, options = [], {name: value for name, value in QUIET.items() if name not in shown}
    ends = lightlib.callbacks.LambdaCallback(on_fit_end=lambda trainer, module: seen.append(trainer.global_step))
    data = DataLoader(torch.ones(4, 1), batch_size=2)
    trainer = lightlib.Trainer(devices=1, max_epochs=2, callbacks=[*callbacks, ends], **options)
    module = Net()
    trainer.fit(module, data, data)
    trainer.validate(module, data)
    assert seen == [4]


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("writer", WRITERS)
def test_the_run_continues_with_one_warning(writer, error, terminal, monkeypatch):
    stream = Broken(ERRORS[error], terminal)
    report.once.clear()
    with monkeypatch.context() as patched, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        patched.setattr(sys, "stdout", stream)
        fitted(WRITERS[writer]())
        assert sys.stdout is stream
    assert stream.tries > 0
    texts = [str(one.message) for one in caught if "output of the run cannot be written" in str(one.message)]
    assert len(texts) == 1


@pytest.mark.parametrize("writer", WRITERS)
def test_no_streams_at_all(writer, monkeypatch):
    report.once.clear()
    with monkeypatch.context() as patched, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patched.setattr(sys, "stdout", None)
        patched.setattr(sys, "stderr", None)
        fitted(WRITERS[writer]())


def test_a_mistake_in_what_is_written_is_no_output_error():
    for error in (ValueError("bad format"), AttributeError("'X' object has no attribute 'y'"), TypeError("x")):

        def fails(error=error):
            raise error

        with pytest.raises(type(error), match=str(error)[:10]):
            report.write_output(fails)


def test_an_own_file_is_the_callers(tmp_path):
    file = (tmp_path / "log").open("w")
    file.close()
    with pytest.raises(ValueError, match="closed file"):
        lightlib.Trainer(**QUIET).print("x", file=file)


def test_a_pipe_without_a_reader(monkeypatch):
    """A real one: the reader closes its end before the run writes."""
    reader, writer = os.pipe()
    os.close(reader)
    report.once.clear()
    with monkeypatch.context() as patched, open(writer, "wb", buffering=0) as file:
        stream = io.TextIOWrapper(file, write_through=True)
        patched.setattr(sys, "stdout", stream)
        with pytest.warns(report.LightlibWarning, match="BrokenPipeError"):
            fitted([PlainProgressBar(interval=1e-9)])
        with contextlib.suppress(BrokenPipeError):
            stream.detach()
