"""The help of `lightlib fit` and of every LightningCLI: read as a person reads it, at several widths."""

from __future__ import annotations

import argparse
import enum
import os
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import jsonargparse
import pytest
import torch

import lightlib
from lightlib.config.help import words as help_words
from lightlib.config.help.formatter import HelpFormatter, with_base_classes


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


def said(parser, words, capsys):
    with pytest.raises(SystemExit) as end:
        parser.parse_args(words)
    assert not end.value.code
    return capsys.readouterr().out


def test_top_of_the_help_of_fit(cli, capsys):
    text = said(cli, ["fit", "--help"], capsys)
    assert text.startswith(
        """\
usage: lightlib fit [--config FILE] [--model CLASS] [--data CLASS] [--optimizer CLASS]
                    [--lr_scheduler CLASS] [options]

Train and validate model.

Options
  -h, --help
      Show this help message and exit.
  -c, --config  file
      A file.
  --print_config[=flags]
"""
    )


def test_an_option_has_its_type_its_default_and_its_sentences(cli, capsys):
    text = said(cli, ["fit", "--help"], capsys)
    for expected in (
        "  --trainer.num_nodes  int, default 1\n      Machines.\n",
        '  --trainer.strategy  str or Strategy (class), default auto\n      "auto" (one device,',
        "  --trainer.max_steps  int, default -1\n      Optimizer steps. -1: no limit.\n",
        "  --trainer.barebones  true|false, default false\n",
        "  --trainer.check_val_every_n_epoch  int or null, default 1\n",
        "  --trainer.callbacks  list of Callback or Callback (class)\n",
        "  --seed_everything  true|false or int, default true\n",
        "  --model  Module (class), required\n      The name or the class path of a subclass of Module.\n",
    ):
        assert expected in text


def test_every_argument_of_the_trainer_is_described(cli, capsys):
    text = said(cli, ["fit", "--help"], capsys)
    undescribed = re.findall(r"^  (--trainer\.\w+)  .*\n(?!      )", text, re.MULTILINE)
    assert undescribed == []


def test_groups_have_a_title_and_a_sentence(cli, capsys):
    text = said(cli, ["fit", "--help"], capsys)
    titles = re.findall(r"^[A-Z]\w[\w ]*$", text, re.MULTILINE)
    assert titles == ["Options", "Trainer", "Model", "Data", "Optimizer", "Learning rate scheduler", "Fit"]
    assert "\nTrainer\n  Where, for how long and with what the model runs.\n\n  --trainer.accelerator" in text
    assert "\nOptimizer\n  What changes the weights." in text
    assert "Base class for all optimizers" not in text


def test_classes_are_named_once_at_the_end_of_a_group(cli, capsys):
    text = said(cli, ["fit", "--help"], capsys)
    assert "known subclasses" not in text
    assert "Show the help for" not in text
    assert text.count("--trainer.callbacks.help [CLASS]") == 1
    assert "  Classes and their arguments: --optimizer.help [CLASS]\n" in text
    assert "  All of them from a file: --trainer FILE\n" in text
    assert "  Append to a list: --trainer.devices+, " in text


def test_list_of_commands(cli, capsys):
    start, _, end = said(cli, ["--help"], capsys).partition("Options\n")
    assert start == "usage: lightlib [options] {fit,test} …\n\nTrain models, 100% of them, with lightlib.\n\n"
    assert end.partition("Commands\n")[2] == (
        "  lightlib COMMAND --help shows the options of a command.\n\n"
        "  fit   Train a model.\n"
        "  test  Test it at 100%.\n"
    )


@pytest.mark.parametrize("columns", [50, 60, 80, 100, 160])
def test_lines_are_as_wide_as_the_terminal_but_not_wider_than_100(cli, capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    text = said(cli, ["fit", "--help"], capsys)
    width = max(40, min(columns, 100))
    longest = [len(line) for line in text.splitlines() if not line.lstrip().startswith("--")]
    assert width - 8 < max(longest) <= width


def test_no_colours_but_on_a_terminal(cli, capsys, monkeypatch):
    assert "\x1b" not in said(cli, ["fit", "--help"], capsys)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    text = said(cli, ["fit", "--help"], capsys)
    assert "\x1b[1mTrainer\x1b[0m\n" in text
    assert "  \x1b[36m--trainer.num_nodes\x1b[0m  \x1b[2mint, default 1\x1b[0m\n" in text
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert "\x1b" not in said(cli, ["fit", "--help"], capsys)


def test_arguments_of_an_own_class(small):
    text = small.format_help()
    for expected in (
        "usage: main.py --model.classes INT [options]\n",
        "\nModel\n  A net of mine.\n\n  --model.classes  int, required\n      How many of them, on three lines.\n",
        "  --model.hidden  int, default 32\n      Units of the hidden layer. They are many.\n  --model.kind",
        "  --model.kind  wide|deep, default wide\n      One of Kind.\n",
        '  --model.mode  min|max, default min\n      "min" or "max".\n',
        "  --model.optimizer  function that returns Optimizer (class), default SGD\n      Makes an optimizer.\n",
        "\nModel.size\n  How big.\n\n  --model.size.width  int, default 3\n      Takes 100% of the page, ",
        " page, whatever %s and %(this)s may be.\n",
        "  --data.batch_size  int, default 2\n",
        "\nLinked arguments\n  They follow from others, and cannot be given.\n\n  data.batch_size --> model.",
    ):
        assert expected in text
    assert "They are all used" not in text
    assert "_EMPTY_HELP_" not in text


def test_help_of_one_class(cli, capsys):
    text = said(cli, ["fit", "--optimizer.help", "Adam"], capsys)
    assert text.startswith(
        "torch.optim.Adam\n  Implements Adam algorithm.\n\n  Subclasses: AdamW\n\n"
        "  In a file: class_path and init_args under optimizer.\n\n"
        "Arguments\n  --optimizer.lr  float, default 0.001\n      Learning rate."
    )
    assert "  --optimizer.eps  float, default 1e-08\n      Term added to the denominator" in text
    assert "(default:" not in text


def test_help_of_a_base_class_names_its_subclasses(cli, capsys):
    asked = list(with_base_classes(cli, ["fit", "--trainer.callbacks.help"]))
    assert asked == ["fit", "--trainer.callbacks.help=lightlib.callbacks.callback.Callback"]
    words = " ".join(said(cli, asked, capsys).split())
    listed = words.partition("Subclasses: ")[2]  # with those of other tests among them
    assert listed.index("CheckpointGC, ") < listed.index("EarlyStopping, ") < listed.index("ModelCheckpoint, ")
    words = " ".join(said(cli, ["fit", "--lr_scheduler.help"], capsys).split())
    listed = words.partition("Subclasses: ")[2]
    assert listed.index("ChainedScheduler, ") < listed.index("ConstantLR, ") < listed.index("CosineAnnealingLR, ")


@pytest.mark.parametrize(
    "words",
    [
        ["fit", "--optimizer.help", "--trainer.max_epochs", "3"],
        ["fit", "--trainer.callbacks.help", "EarlyStopping"],
        ["fit", "--trainer.callbacks.help=EarlyStopping"],
        ["fit", "--nothing.help"],
        [],
    ],
)
def test_a_class_that_is_given_or_not_needed_is_left_as_it_is(cli, words):
    assert list(with_base_classes(cli, words)) == words


def test_an_error_shows_a_short_usage(cli, capsys):
    with pytest.raises(SystemExit) as end:
        cli.parse_args(["fit", "--model", "Module", "--trainer.max_epochs", "three"])
    assert end.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("usage: lightlib fit [--config FILE]")
    assert len(lines) < 20
    assert "three" in "\n".join(lines)


def test_print_config_is_as_before(cli, capsys):
    text = said(cli, ["fit", "--model", "lightlib.Module", "--trainer.max_epochs", "3", "--print_config"], capsys)
    assert "  max_epochs: 3\n" in text


def test_defaults_are_those_of_the_default_configuration_file(tmp_path):
    path = tmp_path / "defaults.yaml"
    path.write_text("epochs: 7\n")
    parser = Parser(prog="fit", default_config_files=[str(path)])
    parser.add_argument("--epochs", type=int, default=3, help="Passes.")
    assert "  --epochs  int, default 7\n      Passes.\n" in parser.format_help()


def test_the_environment_is_named_where_it_is_read():
    parser = Parser(prog="fit", default_env=True, env_prefix="PL")
    parser.add_argument("--trainer.epochs", type=int, default=3)
    assert "the environment: --trainer.epochs as PL_TRAINER__EPOCHS.\n" in parser.format_help()
    assert "environment" not in parser.format_usage()


def test_plain_arguments_of_argparse():
    parser = Parser(prog="main.py", usage="%(prog)s [anything]", epilog="The\nend.")
    parser.add_argument("file", type=Path, help="what to read")
    parser.add_argument("--fast", action="store_true", help="do not wait (50%% less)")
    parser.add_argument("--level", choices=["low", "high"], default="low", help="how much, now %(default)s")
    parser.add_argument("--yes", action=jsonargparse.ActionYesNo, default=True, help="no questions")
    parser.add_argument("--hidden", help=argparse.SUPPRESS)
    parser.add_argument("--array", default=torch.ones(2, 2), help="a tensor")
    text = parser.format_help()
    for expected in (
        "usage: main.py [anything]\n",
        "Arguments\n  file  path, required\n      What to read.\n",
        "  --fast\n      Do not wait (50% less).\n",
        "  --level  low|high, default low\n      How much, now low.\n",
        "  --yes, --no_yes  default true\n      No questions.\n",
        "  --array  default Tensor\n",
        "\n\nThe end.\n",
    ):
        assert expected in text
    assert "--hidden" not in text


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (bool, "true|false"),
        (int | None, "int"),
        (float | torch.Tensor, "float"),
        (dict[str, int], "dict of int"),
        (tuple[int, ...], "list of int"),
        (tuple[float, str], "(float, str)"),
        (str | os.PathLike, "str or path"),
        (timedelta | str, "timedelta or str"),
        (Callable[..., Any] | None, "function"),
        (type[torch.nn.Module], "class Module"),
        (torch.optim.Adam | list[int], "Adam or list of int (class)"),
        (int | str | list[int | str], "int or str or list of them"),
        (Any, "any"),
        (type(None), "null"),
        ("package.Some", "Some"),
    ],
)
def test_types_in_words(kind, words):
    assert help_words.type_in_words(kind) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("", '""'),
        (None, "null"),
        (1e-8, "1e-08"),
        ([1, "a"], "[1, a]"),
        (torch.nn.functional.relu, "relu"),
        (timedelta, "timedelta"),
        (jsonargparse.Namespace(class_path="torch.optim.Adam", init_args={"lr": 0.1, "eps": 1e-8}), "Adam(lr=0.1)"),
        ({"class_path": "nowhere.Some", "init_args": {"a": 1}}, "Some(a=1)"),
        ("long " * 30, "long " * 11 + "lon …"),
    ],
)
def test_defaults_in_words(value, words):
    assert help_words.default_in_words(value) == words
