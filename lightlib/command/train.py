"""`lightlib fit`, `validate`, `test` and `predict`: LightningCLI for any model and any data."""

from __future__ import annotations

import argparse
import inspect
import os
import sys
from collections.abc import Collection, Sequence
from typing import Any

import jsonargparse
from torch import nn

from lightlib import optional, report
from lightlib.cli import ArgsType, LightningArgumentParser, LightningCLI
from lightlib.command.predictions import PredictionFiles
from lightlib.core.trainer import Trainer
from lightlib.errors import MisconfigurationException

# Allowed in every configuration, in addition to `--allow`: nothing here builds or calls an object by its name.
_HARMLESS = (
    "lightlib.accelerators",
    "lightlib.callbacks",
    "lightlib.cli.ReduceLROnPlateau",
    "lightlib.config.optimizers.ReduceLROnPlateau",
    "lightlib.launch.environment.environment.Environment",
    "lightlib.launch.environment.slurm",
    "lightlib.loggers",
    "lightlib.optim",
    "lightlib.precision",
    "lightlib.profilers",
    "lightlib.strategies",
    "torch.optim",
    "torch.nn.modules",
    *(f"torch.nn.{name}" for name in nn.modules.__all__),
)

_BOOLEANS = ("true", "false", "yes", "no")


class ConfigurationCLI(LightningCLI):
    """LightningCLI that parses given words, and prints overridden values if `--verbose` is given."""

    def __init__(self, words: list[str], verbose: bool, restricted: bool, parser_kwargs: dict[str, Any]) -> None:
        self._words, self._verbose, self._restricted = words, verbose, restricted
        super().__init__(parser_kwargs=parser_kwargs)

    def _requested_verbs(self) -> Collection[str]:
        return [verb for verb in self.subcommands() if [verb] == self._words[:1]] or self.subcommands()

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        trainer = super().instantiate_trainer(**kwargs)
        if self._writes_predictions():
            trainer.callbacks.append(PredictionFiles())
        return trainer

    def _prepare_subcommand_kwargs(self, subcommand: str) -> dict[str, Any]:
        arguments = super()._prepare_subcommand_kwargs(subcommand)
        return {**arguments, "return_predictions": False} if self._writes_predictions() else arguments

    def _writes_predictions(self) -> bool:
        verb = self.subcommand
        return verb == "predict" and self.config[verb].get("return_predictions") is not False

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        try:
            self._parse_words(parser, self._words)
        except Exception as error:
            if not type(error).__module__.startswith("omegaconf."):
                raise
            place = parser.sources.where(getattr(error, "full_key", None) or "")
            problem = str(error).partition("\n")[0].rstrip(".")
            raise MisconfigurationException(
                f"--interpolate cannot resolve a value{f' ({place})' if place else ''}: {problem}.",
                expected="${...} with the key of a value of the configuration files: ${trainer.max_epochs}.",
                fix="correct the key; in the arguments of a class it has `init_args`: ${model.init_args.width}.",
            ) from error
        if self._verbose:
            for line in parser.sources.overridden():
                report.info(line)
        if self._restricted and self.config[self.config["subcommand"]].get("weights_only") is False:
            raise MisconfigurationException(
                "--allow was given, and `weights_only` is false: such a checkpoint can name any code.",
                expected="weights_only: null or true, with which a checkpoint is only data.",
                fix="delete `weights_only`; or leave out --allow, if you trust configuration and checkpoint.",
            )


def run(words: Sequence[str]) -> int:
    """Run one of the four commands; return its exit status."""
    ConfigurationCLI(*prepare(words))
    return 0


def prepare(words: Sequence[str]) -> tuple[list[str], bool, bool, dict[str, Any]]:
    """Apply the options of the command itself; return the arguments of a `ConfigurationCLI`."""
    rest, options = _own_options(words)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    if options.allow is not None:
        _restrict([package for text in options.allow for package in _packages(text)])
    if options.interpolate:
        _check_interpolation()
    mode = {"parser_mode": "omegaconf+"} if options.interpolate else {}
    kwargs: dict[str, Any] = {verb: dict(mode) for verb in LightningCLI.subcommands()}
    return rest, options.verbose, options.allow is not None, {"prog": "lightlib", **mode, **kwargs}


def _own_options(words: Sequence[str]) -> tuple[list[str], argparse.Namespace]:
    """Take the options of the command itself out of a command line."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--allow", action="append", nargs="?", const="")
    parser.add_argument("--interpolate", action="store_true")
    options, rest = parser.parse_known_args(words)
    # With a value it is the argument of Trainer.validate and test.
    flags = (word for word, value in zip(rest, [*rest[1:], ""], strict=True) if value.lower() not in _BOOLEANS)
    options.verbose = "--verbose" in flags
    return [word for word in rest if word != "--verbose" or not options.verbose], options


def _packages(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    wrong = [name for name in names if not all(part.isidentifier() for part in name.split("."))]
    if wrong or not names:
        raise MisconfigurationException(
            f"--allow got {text!r}.",
            expected="names of packages or modules.",
            fix="--allow my_package,torchvision.models",
        )
    return names


def _restrict(allowed: Sequence[str]) -> None:
    """Let configurations name only these packages, and those parts of lightlib and torch that do no harm."""
    parameters = inspect.signature(jsonargparse.set_parsing_settings).parameters
    if "import_path_allowlist" not in parameters:
        raise MisconfigurationException(
            f"--allow was given, but jsonargparse {jsonargparse.__version__} cannot restrict class paths.",
            expected="jsonargparse 4.53 or newer.",
            fix="pip install --upgrade jsonargparse",
        )
    jsonargparse.set_parsing_settings(
        import_path_denylist=["*"],
        import_path_allowlist=[*_HARMLESS, *allowed],
        instantiate_subclass_spec_in_any=False,
    )


def _check_interpolation() -> None:
    optional.load("omegaconf", "--interpolate")
