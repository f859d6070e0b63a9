"""Entry point of the command `lightlib`: selects the subcommand and imports only its modules.

An installed package adds a command by an entry point of the group `lightlib.commands`: a module with `SECTION` and
`ABOUT`, its heading and its line in the help; `add_arguments(parser)`; and `run(arguments)`, which returns the exit
status. It may have `EPILOG`, the end of its help, and `split(words)`, which returns the words of the command and those
that it passes on as ``arguments.arguments``.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from lightlib import errors
from lightlib.errors import LightlibError, closest, nearest
from lightlib.registry import modules
from lightlib.version import __version__

RUNS = ("fit", "validate", "test", "predict")
HELP = """usage: lightlib COMMAND [options]

Train PyTorch models from configuration files and the command line.

run a model
  fit         train and validate
  validate    validate with the weights of a checkpoint
  test        test with the weights of a checkpoint
  predict     predict with the weights of a checkpoint
  plan        compare strategies: memory, messages, what fits; runs nothing

search hyperparameters
  search      preview the plan of an experiment file
  experiment  run the trials of an experiment file, and look at them

run a loop of your own
  fabric      run a script that has a Fabric, on the devices of the options

begin and look
  init        write a small project that runs and tests at once
  plot        draw the learning curves of a run
  checkpoint  inspect, verify, convert, consolidate or export checkpoints

{plugins}find out what is wrong
  doctor      versions, devices, networks, a self-test, and what to do
  env         the block that a bug report needs

options of fit, validate, test and predict, besides what their --help shows
  --verbose        print which configuration file overrides which
  --allow PACKAGE  class paths may name these packages only (repeatable)
  --interpolate    resolve ${...} in files (pip install omegaconf)

examples
  lightlib init my_project --template classifier
  lightlib fit --config config.yaml --trainer.max_epochs 3
  lightlib fit --model pkg.Model --data pkg.Data --print_config > config.yaml
  lightlib test --config config.yaml --ckpt_path best
  lightlib COMMAND --help

Class paths are looked for in the current folder first. A configuration names
classes to build: treat it as code.
"""
_BEFORE = ("-c", "--config", "--print_config", "--verbose", "--interpolate", "--allow")  # a run, not a part of one
_COMPLETION = ("--print_completion", "--print_shtab")  # jsonargparse's, newer and older
_MODULES = {
    "init": "lightlib.command.init",
    "plot": "lightlib.command.plot.plot",
    "doctor": "lightlib.command.doctor.doctor",
    "env": "lightlib.command.doctor.env",
    "fabric": "lightlib.command.fabric",
    "checkpoint": "lightlib.checkpoint.tools.command",
    "search": "lightlib.command.search",
    "experiment": "lightlib.command.experiment",
    "plan": "lightlib.command.plan",
}

_INSTEAD = {  # commands of Determined that lightlib does not have
    "run": "a job of any command is for a scheduler, such as sbatch; trials may be commands: lightlib experiment run",
    "model": "the registry of MLflow: mlflow.register_model",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit status: 0 done, 1 failed, 2 invalid arguments, 130 Ctrl-C.

    Example:
        >>> main(["--version"]) == 0
        lightlib ...
        True
    """
    words = list(sys.argv[1:] if argv is None else argv)
    at: int | None = None
    try:
        names = (*RUNS, *commands())
        at = next((i for i, word in enumerate(words) if word in names), None)
        completion = bool(words) and words[0].startswith(_COMPLETION)
        if not completion and (at is None or _asks_for_help(words[:at])):
            return _without_command(words)
        command = RUNS[0] if at is None or completion else words[at]
        first = next((word for word in words[:at] if word.startswith("-")), "")
        if (at and command not in RUNS) or (not completion and first and first.partition("=")[0] not in _BEFORE):
            _refuse(f"`{words[0]}` stands before the command.", f"lightlib {command} {' '.join(words[:at])}")
        if command in RUNS:
            from lightlib.command.train import run  # optional: torch, only for those commands

            return run(words)
        return _run_command(command, words[words.index(command) + 1 :])
    except LightlibError as error:
        if _in_code_of_users(error) or _is_one_of_several():
            raise
        sys.stderr.write(f"{error}\n")
        return 2
    except KeyboardInterrupt:
        if at is not None and words[at] in (*RUNS, "fabric"):  # their traceback is that of the user's code
            raise
        sys.stderr.write("Interrupted.\n")
        return 130


def _without_command(words: Sequence[str]) -> int:
    if not words or _asks_for_help(words):
        sys.stdout.write(_help())
        return 0 if words else 2
    if words[0] in ("--version", "-V", "version"):
        sys.stdout.write(f"lightlib {__version__}\n")
        return 0
    if words[0].startswith("-"):
        _refuse(f"`{words[0]}` was given without a command.", f"lightlib fit {' '.join(words)}")
    if words[0] in _INSTEAD:
        _refuse_absent(f"lightlib {words[0]}", _INSTEAD[words[0]])
    names = (*RUNS, *commands())
    meant = closest(words[0], names)
    raise LightlibError(
        f"There is no command {words[0]!r}.{nearest(words[0], names)}",
        expected=f"one of {', '.join(names)}.",
        fix=" ".join(["lightlib", meant, *words[1:]]) if meant else "lightlib --help",
    )


def commands() -> dict[str, str]:
    """Return the modules of the commands that do not run a module, those of installed packages at the end."""
    return {**_MODULES, **modules("commands", {**dict.fromkeys(RUNS, "lightlib.command.train"), **_MODULES})}


def _help() -> str:
    """Return the help, with a section for the commands of each installed package."""
    added = {name: importlib.import_module(place) for name, place in commands().items() if name not in _MODULES}
    sections = (f"{module.SECTION}\n  {name:<11} {module.ABOUT}\n\n" for name, module in added.items())
    return HELP.replace("{plugins}", "".join(sections))


def _asks_for_help(words: Sequence[str]) -> bool:
    return any(word in ("-h", "--help", "help") for word in words)


def _refuse(problem: str, fix: str) -> NoReturn:
    raise LightlibError(problem, expected=f"one of {', '.join((*RUNS, *commands()))} first.", fix=fix)


def _refuse_absent(command: str, instead: str) -> NoReturn:
    raise LightlibError(f"There is no command `{command}`.", expected="a command that `--help` lists.", fix=instead)


def _run_command(command: str, words: Sequence[str]) -> int:
    module: Any = importlib.import_module(commands()[command])
    if words and words[0] in getattr(module, "INSTEAD", ()):
        _refuse_absent(f"lightlib {command} {words[0]}", module.INSTEAD[words[0]])
    parser = parser_of(command)
    passed_on: Sequence[str] = ()
    if hasattr(module, "split"):
        words, passed_on = module.split(words)
    status: int = module.run(parser.parse_args(words, argparse.Namespace(arguments=passed_on)))
    return status


def parser_of(command: str) -> argparse.ArgumentParser:
    """Return the parser of a command that does not run a module: all but `RUNS`."""
    module: Any = importlib.import_module(commands()[command])
    about = next(line.strip() for line in _help().splitlines() if line.strip().startswith(f"{command} "))
    parser = _Parser(
        prog=f"lightlib {command}",
        description=f"{about.removeprefix(command).strip().capitalize()}.",
        epilog=getattr(module, "EPILOG", None),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    if command in ("checkpoint", "search", "experiment"):
        module.add_commands(parser.add_subparsers(title="commands", metavar="COMMAND", required=True))
    elif command != "env":
        module.add_arguments(parser)
    return parser


class _Parser(argparse.ArgumentParser):
    """Reports invalid arguments as a `LightlibError`, with the nearest valid word."""

    def error(self, message: str) -> NoReturn:
        wrong = re.match(r"unrecognized arguments: (\S+)|argument .*?: invalid choice: '(.*?)'", message)
        problem = f"{self.prog}: {message.partition(' (choose from')[0]}."
        raise LightlibError(
            problem + (nearest(wrong[1] or wrong[2], _vocabulary(self)) if wrong else ""),
            expected=f"what `{self.prog} --help` lists.",
            fix=f"{self.prog} --help",
        )


def _vocabulary(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the options, choices and commands of a parser and of those below it."""
    for action in parser._actions:  # noqa: SLF001  argparse has no public access
        yield from action.option_strings
        yield from map(str, action.choices or ())
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for below in action.choices.values():
                yield from _vocabulary(below)


def _is_one_of_several() -> bool:
    """Return whether there are other ranks: an uncaught error ends them, and the first failure is reported."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_initialized() and distributed.get_world_size() > 1


def _in_code_of_users(error: BaseException) -> bool:
    """Return whether the error passed through the user's own code; then its traceback is of interest."""
    frames = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    library_folder = os.path.dirname(os.__file__)
    return any(
        not name.startswith((*errors.FOLDERS, library_folder, "<")) and "site-packages" not in name
        for name in frames[1:]
    )
