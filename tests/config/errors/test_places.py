"""Errors of constructors name the place in the configuration that set the arguments."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from lightlib.callbacks import Callback
from lightlib.cli import LightningCLI
from lightlib.config.errors.places import Places
from lightlib.errors import MisconfigurationException
from tests.cli.parts import PointsOfLine, SteepLine

HERE = "tests.config.errors.test_places"


class Picky(Callback):
    def __init__(self, how: str = "well") -> None:
        if how == "named":
            raise ValueError(f"how is {how!r}")
        if how == "unnamed":
            raise RuntimeError("it broke")


class Narrow(SteepLine):
    def __init__(self, width: int = 3, note: str = "") -> None:
        if width < 1:
            raise MisconfigurationException(f"width is {width}.", expected="at least 1.", fix="width: 3")
        super().__init__(width)


@pytest.fixture(autouse=True)
def _program(monkeypatch):
    monkeypatch.setattr("sys.argv", ["main.py"])


def told(*words: str, **options) -> str:
    """Return the text of the error that building raises, with its notes."""
    with pytest.raises((ValueError, RuntimeError)) as caught:
        LightningCLI(
            Narrow, PointsOfLine, args=["--seed_everything=7", *words], run=False, **options
        ).model.configure_optimizers()
    return "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])


RUN = "trainer:\n  logger: false\n"
STOPS = """\
trainer:
  callbacks:
  - ModelSummary
  - class_path: EarlyStopping
    init_args: {monitor: x, patience: 1}
  - class_path: lightning.pytorch.callbacks.EarlyStopping
    init_args:
      monitor: x
      patience: -1
"""
WELL = STOPS.replace("-1", "1")
STOP = ("--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor=x", "--trainer.callbacks.patience=-1")
PICKY = f"trainer:\n  callbacks+:\n    class_path: {HERE}.Picky\n    init_args:\n      how: "
TWO = "trainer.callbacks (a.yaml, line 2, and on the command line), trainer.enable_checkpointing (on the command line)"
CASES: list[tuple[list[str], tuple[str, ...], str]] = [  # files, options, and the place
    ([RUN + "  strategy: dpp\n"], (), "trainer.strategy (a.yaml, line 3)"),
    ([RUN + "  precision: 17-mixed\n"], (), "trainer.precision (a.yaml, line 3)"),
    (["trainer: {devices: 0}\n"], (), "trainer.devices (a.yaml, line 1)"),
    ([RUN + "  val_check_interval: 1.5\n  max_epochs: 3\n"], (), "trainer.val_check_interval (a.yaml, line 3)"),
    ([RUN + "  strategy: ddp\n"], ("--trainer.strategy=dpp",), "trainer.strategy (on the command line)"),
    ([RUN + "  strategy: ddp\n", "trainer:\n\n  strategy: dpp\n"], (), "trainer.strategy (b.yaml, line 3)"),
    (
        ["trainer:\n  callbacks: [ModelSummary]\n"],
        ("--trainer.enable_checkpointing=false", "--trainer.callbacks+=ModelCheckpoint"),
        TWO,
    ),
    (["model:\n  note: x\n  width: 0\n"], (), "model.width (a.yaml, line 3)"),
    (["model:\n  width: 2\n"], ("--model.width=-1",), "model.width (on the command line)"),
    ([STOPS], (), "trainer.callbacks.patience (a.yaml, line 9)"),
    ([WELL, STOPS], (), "trainer.callbacks.patience (b.yaml, line 9)"),
    ([WELL], STOP, "trainer.callbacks.patience (on the command line)"),
    ([PICKY + "named"], (), "trainer.callbacks.how (a.yaml, line 5)"),
    ([PICKY + "well", PICKY + "named"], (), "trainer.callbacks.how (b.yaml, line 5)"),
    ([PICKY + "unnamed"], (), "trainer.callbacks (a.yaml, line 3)"),
    ([PICKY + "unnamed", PICKY + "well"], (), "trainer.callbacks (b.yaml, line 2)"),  # the list: either may be it
    (["optimizer:\n  class_path: SGD\n  init_args: {lr: -1}\n"], (), "optimizer (a.yaml, line 2)"),
    ([], ("--optimizer=SGD", "--optimizer.momentum=-1"), "optimizer.momentum (on the command line)"),
    (
        ["optimizer: SGD\nlr_scheduler:\n  class_path: LinearLR\n  init_args: {start_factor: 2}\n"],
        (),
        "lr_scheduler (a.yaml, line 3)",
    ),
]


@pytest.mark.filterwarnings("ignore:The configuration's `optimizer`")
@pytest.mark.parametrize(("files", "words", "expected"), CASES)
def test_the_place_is_told(files, words, expected) -> None:
    named: list[str] = []
    for name, content in zip(("a.yaml", "b.yaml"), files, strict=False):
        Path(name).write_text(content)
        named += ["--config", name]
    assert f"  Configured: {expected}." in told(*named, *words)


def test_what_was_not_configured_has_no_place() -> None:
    assert "Configured" not in told(trainer_defaults={"strategy": "dpp"})


def test_a_variable_is_told(monkeypatch) -> None:
    monkeypatch.setenv("MY_TRAINER__STRATEGY", "dpp")
    text = told(parser_kwargs={"default_env": True, "env_prefix": "MY"})
    assert "  Configured: trainer.strategy (in the environment variable MY_TRAINER__STRATEGY).\n" in text


def test_the_place_stands_before_what_was_expected() -> None:
    lines = told("--trainer.strategy=dpp").splitlines()
    assert [line.partition(":")[0].strip() for line in lines[1:]] == ["Configured", "Expected", "Fix"]
    assert lines[0] == "Unknown strategy 'dpp'. Did you mean 'ddp'?"


def test_places_go_along_to_other_processes() -> None:
    places = pickle.loads(pickle.dumps(Places({"width": "model.width (a.yaml, line 2)"}, "model (a.yaml, line 1)")))
    error = ValueError("the widths differ")  # another word
    places.add_to(error)
    assert vars(error)["__notes__"] == ["  Configured: model (a.yaml, line 1)."]


@pytest.mark.parametrize(
    ("given", "fix"),
    [
        ("precision: 16-mixd", "trainer.precision: 16-mixed"),
        ("max_epochs: -3", "trainer.max_epochs: -1"),
        ("gradient_clip_val: -1.0", "trainer.gradient_clip_val: 1.0"),
    ],
)
def test_how_to_mend_it_is_said_as_it_is_configured(tmp_path, given, fix):
    (tmp_path / "run.yaml").write_text(f"trainer:\n  {given}\n", encoding="utf-8")
    text = told("--config=run.yaml")
    assert "(run.yaml, line 2)" in text
    assert f"Fix: {fix}" in text
    assert "Trainer(" not in text
