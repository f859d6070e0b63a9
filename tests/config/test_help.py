"""The help of `lightlib fit` and of every LightningCLI, as a user sees it, at several widths."""

from __future__ import annotations

import argparse
import enum
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jsonargparse
import pytest
import torch

import lightlib
from lightlib.config.help import HelpFormatter


class Parser(jsonargparse.ArgumentParser):
    """As LightningCLI's parser: the help of one class is made by a parser of the same type."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(formatter_class=HelpFormatter, **kwargs)


class Kind(enum.Enum):
    wide = 1
    deep = 2


@dataclass
class Size:
    """How big it is.

    Args:
        width: Takes 100% of the page, whatever %s and %(this)s may be.
    """

    width: int = 3


class Net(lightlib.LightningModule):
    """A net of mine. It is not deep.

    Args:
        hidden: Units of the hidden layer (default: 32). They are many. They are all used.
        kind: One of :class:`Kind`.
        mode: ``"min"`` or ``"max"``.
        size: How big.
        optimizer: makes an optimizer
        classes: How many
            of them,
            on three lines.
    """

    def __init__(
        self,
        classes: int,
        hidden: int = 32,
        kind: Kind = Kind.wide,
        mode: Literal["min", "max"] = "min",
        size: Size = Size(),  # noqa: B008
        optimizer: Callable[[Iterable[Any]], torch.optim.Optimizer] = torch.optim.SGD,
        batch_size: int = 1,
    ) -> None: ...


class Digits(lightlib.LightningDataModule):
    """Digits."""

    def __init__(self, batch_size: int = 2) -> None: ...


def parser_of_fit() -> Parser:
    parser = Parser(description="Train and validate model.")
    parser.add_argument("-c", "--config", action=jsonargparse.ActionConfigFile, help="a file")
    parser.add_argument("--seed_everything", type=bool | int, default=True, help="The seed.")
    parser.add_class_arguments(lightlib.Trainer, "trainer", fail_untyped=False, instantiate=False, sub_configs=True)
    parser.add_subclass_arguments(lightlib.Module, "model", fail_untyped=False, required=True)
    parser.add_subclass_arguments(lightlib.LightningDataModule, "data", fail_untyped=False, required=False)
    for key, kind, first in (
        ("optimizer", torch.optim.Optimizer, "params"),
        ("lr_scheduler", torch.optim.lr_scheduler.LRScheduler, "optimizer"),
    ):
        parser.add_subclass_arguments((kind,), key, instantiate=False, fail_untyped=False, skip={first})
    skipped = {"model", "train_dataloaders", "val_dataloaders", "datamodule"}
    parser.add_method_arguments(lightlib.Trainer, "fit", skip=skipped)
    return parser


@pytest.fixture(scope="module")
def cli() -> Parser:
    parser = Parser(prog="lightlib", description="Train models, 100%% of them, with %(prog)s.")
    commands = parser.add_subcommands()
    commands.add_subcommand("fit", parser_of_fit(), help="Train a model.")
    commands.add_subcommand("test", Parser(description="Test a model."), help="Test it at 100%.")
    return parser


@pytest.fixture(scope="module")
def small() -> Parser:
    parser = Parser(prog="main.py")
    parser.add_class_arguments(Net, "model", fail_untyped=False)
    parser.add_class_arguments(Digits, "data", fail_untyped=False)
    parser.link_arguments("data.batch_size", "model.batch_size")
    return parser


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")


def printed(parser, words, capsys):
    with pytest.raises(SystemExit) as end:
        parser.parse_args(words)
    assert not end.value.code
    return capsys.readouterr().out


def test_top_of_the_help_of_fit(cli, capsys):
    assert printed(cli, ["fit", "--help"], capsys).startswith(
        """\
usage: lightlib fit [--config FILE] [options]

Train and validate model.

options:
  -h, --help
      Show this help message and exit.
  -c CONFIG, --config CONFIG
      a file
"""
    )


def test_an_option_has_two_sentences_its_type_and_its_default(cli, capsys):
    text = printed(cli, ["fit", "--help"], capsys)
    for expected in (
        "  --trainer.num_nodes NUM_NODES\n      Number of machines. Default 1. (type: int, default: 1)\n",
        '  --trainer.strategy STRATEGY\n      "auto" (one device,',
        "  --trainer.max_steps MAX_STEPS\n      Optimizer steps. ",
        "(type: bool | int, default: True)\n",
        "\n  --optimizer.help [CLASS_PATH_OR_NAME]\n",
    ):
        assert expected in text
    assert "<class '" not in text


def test_nothing_but_text_is_printed(cli, capsys):
    text = printed(cli, ["fit", "--help"], capsys)
    assert "\n  --print_config[=flags]\n" in text
    assert text.replace("\n", "").isprintable()


def test_every_argument_of_the_trainer_is_described(cli, capsys):
    text = printed(cli, ["fit", "--help"], capsys)
    assert re.findall(r"^  (--trainer\.\w+) .*\n      \(type:", text, re.MULTILINE) == []


def test_known_subclasses_are_named_before_they_are_imported(cli, capsys):
    words = " ".join(printed(cli, ["fit", "--help"], capsys).split())
    callbacks = words.partition("--trainer.callbacks CALLBACKS")[2].partition("known subclasses: ")[2].partition(")")[0]
    assert {"CheckpointGC", "EarlyStopping", "ModelCheckpoint"} <= set(callbacks.split(", "))
    strategies = words.partition("--trainer.strategy STRATEGY")[2].partition("known subclasses: ")[2].partition(")")[0]
    assert "SingleDeviceStrategy" in strategies


def test_list_of_commands(cli, capsys):
    text = printed(cli, ["--help"], capsys)
    assert text.startswith("usage: lightlib [options] {fit,test} …\n\nTrain models, 100% of them, with lightlib.\n")
    assert "Train a model." in text
    assert "Test it at 100%." in text


@pytest.mark.parametrize("columns", [50, 60, 80, 100, 160])
def test_lines_are_as_wide_as_the_terminal_but_not_wider_than_100(cli, capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    text = printed(cli, ["fit", "--help"], capsys)
    width = max(40, min(columns, 100))
    longest = [len(line) for line in text.splitlines() if line.startswith("      ") and " " in line.strip()]
    assert width - 8 < max(longest) <= width


def test_arguments_of_a_class(small):
    text = small.format_help()
    for expected in (
        "usage: main.py --model.classes … [options]\n",
        "\nA net of mine:\n",
        "  --model.classes CLASSES\n      How many of them, on three lines. (required, type: int)\n",
        "      Units of the hidden layer (default: 32). They are many. (type: int, default: 32)\n",
        "      One of Kind. (type: Kind, default: wide)\n",
        "  --model.size.width WIDTH\n      Takes 100% of the page, whatever %s and %(this)s may be.",
    ):
        assert expected in text
    assert "They are all used" not in text
    assert ":class:" not in text
    assert "_EMPTY_HELP_" not in text


def test_help_of_one_class(cli, capsys):
    text = printed(cli, ["fit", "--optimizer.help", "Adam"], capsys)
    assert "\nImplements Adam algorithm:\n" in text
    assert "  --optimizer.eps EPS\n      term added to the denominator" in text
    assert "subclass of Tensor" not in text
    assert "MaskedTensor" not in text


def test_an_error_shows_a_short_usage(cli, capsys):
    with pytest.raises(SystemExit) as end:
        cli.parse_args(["fit", "--model", "Module", "--trainer.max_epochs", "three"])
    assert end.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("usage: lightlib fit [--config FILE]")
    assert len(lines) < 20
    assert "three" in "\n".join(lines)


def test_the_configuration_can_be_printed(cli, capsys):
    text = printed(cli, ["fit", "--model", "lightlib.Module", "--trainer.max_epochs", "3", "--print_config"], capsys)
    assert "  max_epochs: 3\n" in text


def test_defaults_are_those_of_the_default_configuration_file(tmp_path):
    path = tmp_path / "defaults.yaml"
    path.write_text("epochs: 7\n")
    parser = Parser(prog="fit", default_config_files=[str(path)])
    parser.add_argument("--epochs", type=int, default=3, help="Passes.")
    assert "Passes. (type: int, default: 7)\n" in parser.format_help()


def test_environment_variables_are_shown_where_they_are_read():
    parser = Parser(prog="fit", default_env=True, env_prefix="PL")
    parser.add_argument("--trainer.epochs", type=int, default=3)
    assert "ENV:   PL_TRAINER__EPOCHS\n" in parser.format_help()


def test_plain_arguments_of_argparse():
    parser = Parser(prog="main.py", usage="%(prog)s [anything]", epilog="The\nend.")
    parser.add_argument("file", type=Path, help="what to read")
    parser.add_argument("--fast", action="store_true", help="do not wait (50%% less)")
    parser.add_argument("--level", choices=["low", "high"], default="low", help="how much, now %(default)s")
    parser.add_argument("--hidden", help=argparse.SUPPRESS)
    text = parser.format_help()
    for expected in ("usage: main.py [anything]\n", "what to read", "do not wait", "how much, now low", "The end.\n"):
        assert expected in text
    assert "--hidden" not in text
