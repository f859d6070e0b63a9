"""Words: errors and warnings of code that Fabric shares with the Trainer, in terms of Fabric."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lightlib.errors import LightlibError

_WORDS = (
    ("Trainer(use_distributed_sampler", "fabric.setup_dataloaders(loader, use_distributed_sampler"),
    ("Trainer(logger=", "Fabric(loggers="),
    ("logger is ", "loggers is "),
    ("Trainer(", "Fabric("),
    ("self.manual_backward(loss)", "fabric.backward(loss)"),
    ("the Trainer has", "Fabric has"),
    ("an argument of the Trainer", "an argument of Fabric"),
    ("the Trainer", "Fabric"),
    ("another Trainer", "another Fabric"),
    ("This Trainer", "This Fabric"),
    ("one Trainer for all fits", "one Fabric"),
    ("all Trainers of a program", "every Fabric of a program"),
    ("Trainer got", "Fabric got"),
)


@contextmanager
def in_words_of_fabric() -> Iterator[None]:
    """Let errors that are raised inside name Fabric where they would name the Trainer.

    Example:
        >>> with in_words_of_fabric():
        ...     raise LightlibError("devices is 'two'.", fix="Trainer(devices=2)")
        Traceback (most recent call last):
            ...
        lightlib.errors.LightlibError: devices is 'two'.
          Fix: Fabric(devices=2)
    """
    try:
        yield
    except LightlibError as error:
        text = str(error)
        for trainers, fabrics in _WORDS:
            text = text.replace(trainers, fabrics)
        error.args = (text,)
        raise
