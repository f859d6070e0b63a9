"""`lightlib plan`: compares strategies for the model of a configuration; trains nothing."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from lightlib import report
from lightlib.command.train import ConfigurationCLI, prepare
from lightlib.config.build import Raised
from lightlib.config.hyperparameters import RecordingInstantiator
from lightlib.core.module.hook_defaults import DataHooks
from lightlib.core.module.overrides import overrides
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.simulation.candidates import FAMILIES
from lightlib.simulation.plan import plan
from lightlib.tree import map_children

EPILOG = """All other options are those of `lightlib fit`: --config run.yaml --model.width 512 …
The module is built without memory (but for --measure), and one batch is read from its loader.

examples
  lightlib plan --config run.yaml --devices 8 --nodes 4 --memory 80GB
  lightlib plan --config run.yaml --devices 8 --memory 80GB --strategies fsdp,tensor --batch 1,2,4
  lightlib plan --config run.yaml --devices 8 --memory 80GB --flops 990T --link 400GB/s --between 50GB/s
"""
_FLAGS = ("--measure", "--json", "-h", "--help")
_PREFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "p": 10**15}
_BINARY = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command itself."""
    parser.add_argument("--devices", type=int, default=1, metavar="N", help="devices of each machine; default: 1")
    parser.add_argument("--nodes", type=int, default=1, metavar="N", help="machines; default: 1")
    parser.add_argument("--memory", metavar="80GB", help="of one device; without it, nothing is recommended")
    parser.add_argument("--strategies", default="all", metavar="A,B", help=f"all, or of {', '.join(FAMILIES)}")
    parser.add_argument("--batch", metavar="1,2,4", help="samples of one process; default: as the loader gives them")
    parser.add_argument("--headroom", type=float, default=0.1, metavar="0.1", help="share of memory that stays free")
    parser.add_argument("--flops", metavar="990T", help="operations of a device in a second: estimates time")
    parser.add_argument("--link", metavar="400GB/s", help="what a device sends within its machine")
    parser.add_argument("--between", metavar="50GB/s", help="what a device sends to other machines")
    parser.add_argument("--measure", action="store_true", help="run a step that cannot be simulated, on the CPU")
    parser.add_argument("--json", action="store_true", help="for programs")


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words of the command itself, and those of the configuration.

    Example:
        >>> split(["--config", "run.yaml", "--devices", "8", "--json", "--model.width=64"])
        (['--devices', '8', '--json'], ['--config', 'run.yaml', '--model.width=64'])
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_arguments(parser)
    names = {option for action in parser._actions for option in action.option_strings}  # noqa: SLF001  it has no method
    plan_words, rest, left = list[str](), list[str](), list(words)
    while left:
        word = left.pop(0)
        name = word.partition("=")[0]
        chosen = plan_words if name in {*names, "-h", "--help"} else rest
        chosen.append(word)
        if chosen is plan_words and name == word and name not in _FLAGS and left:
            plan_words.append(left.pop(0))
    return plan_words, rest


def run(options: argparse.Namespace) -> int:
    """Print the plan."""
    numbers = {name: _amount(f"--{name}", getattr(options, name)) for name in ("memory", "flops", "link", "between")}
    sizes = _sizes(options.batch)
    strategies = FAMILIES if options.strategies == "all" else options.strategies.split(",")
    cli = _PlanCLI(options.measure, *prepare(["fit", *options.arguments]))
    table = plan(
        cli.model,
        _batch_of(cli.model, cli.datamodule),
        devices=options.devices,
        nodes=options.nodes,
        memory=None if numbers["memory"] is None else int(numbers["memory"]),
        strategies=strategies,
        batch_sizes=sizes,
        precision=cli.trainer.get("precision") or "32-true",
        headroom=options.headroom,
        flops=numbers["flops"],
        link=numbers["link"],
        between=numbers["between"],
        measured=options.measure,
    )
    print(json.dumps(table.as_dict(), indent=2) if options.json else table)
    return 0


class _PlanCLI(ConfigurationCLI):
    """Builds the module without memory and the data module, and runs nothing; `trainer` has the arguments only."""

    trainer: Any

    def __init__(self, with_memory: bool, *arguments: Any) -> None:
        self._with_memory = with_memory
        super().__init__(*arguments)

    def _instantiator(self, key: str) -> Any:
        instantiator = super()._instantiator(key)
        return instantiator if key == "data" or self._with_memory else _WithoutMemory(instantiator)

    def instantiate_trainer(self, **kwargs: Any) -> Any:
        return self._get(self.config_init, "trainer", {})

    def _run_subcommand(self, verb: str) -> None:
        """Run nothing."""


class _WithoutMemory:
    """An instantiator that builds on the meta device, or with memory if that is not possible."""

    def __init__(self, instantiator: RecordingInstantiator) -> None:
        self._build = instantiator

    def __deepcopy__(self, memo: Any) -> _WithoutMemory:
        return self

    def __call__(self, class_type: type, *args: Any, **kwargs: Any) -> Any:
        try:
            with torch.device("meta"):
                return self._build(class_type, *args, **kwargs)
        except Raised as raised:
            if not isinstance(raised.error, (RuntimeError, NotImplementedError)):
                raise
            text = str(raised.error).partition("\n")[0]
            report.warn(
                f"{class_type.__name__} cannot be built without memory ({text:.200}), so it is built with it.",
                report.PossibleUserWarning,
            )
            return self._build(class_type, *args, **kwargs)


def _batch_of(module: Any, datamodule: Any) -> Any:
    """Return the first batch of training, as a fit of one process would read it."""
    source = module if datamodule is None else datamodule
    if not overrides(source, DataHooks, "train_dataloader"):
        raise MisconfigurationException(
            f"{type(source).__name__} has no `train_dataloader`, so there is no batch to plan with.",
            expected="a data module, or a module with loaders: --data package.Data.",
            fix="lightlib plan --config run.yaml --data package.Data; or lightlib.plan(module, batch, …) in a program.",
        )
    source.prepare_data()
    source.setup("fit")
    batch = _first(source.train_dataloader())
    for hook in ("on_before_batch_transfer", "on_after_batch_transfer"):
        if overrides(source, DataHooks, hook):
            batch = getattr(source, hook)(batch, 0)
    return batch


def _first(loader: Any) -> Any:
    """Return the first batch; of several loaders, the first of each in the same structure."""
    if isinstance(loader, (Mapping, list, tuple)):
        return map_children(_first, loader)
    for batch in loader:
        return batch
    raise MisconfigurationException(
        f"The training loader ({type(loader).__name__}) has no batch.",
        expected="at least one batch, whose shapes the plan uses.",
        fix="check the data set's length, batch_size and drop_last.",
    )


def _amount(option: str, text: str | None) -> float | None:
    """Return a number with a unit.

    Example:
        >>> _amount("--memory", "80GB"), _amount("--memory", "24GiB"), _amount("--flops", "990T")
        (80000000000.0, 25769803776.0, 990000000000000.0)
    """
    if text is None:
        return None
    match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([kmgtp]i?)?(?:b|flops?)?(?:/s)?\s*", text.lower())
    unit = match[2] or "" if match else ""
    if match is None or unit not in {**_PREFIXES, **_BINARY} or not float(match[1]):
        example = "990T" if option == "--flops" else "80GB"
        raise MisconfigurationException(
            f"{option} got {text!r}.",
            expected="a number greater than 0 with a unit: kB, MB, GB, TB, KiB, MiB, GiB, …",
            fix=f"{option} {example}",
        )
    return float(match[1]) * {**_PREFIXES, **_BINARY}[unit]


def _sizes(text: str | None) -> list[int]:
    if text is None:
        return []
    if not all(part.strip().isdigit() for part in text.split(",")):
        raise ArgumentTypeError(
            f"--batch got {text!r}.",
            expected="numbers of samples, with commas between them.",
            fix="--batch 1,2,4",
        )
    return [int(part) for part in text.split(",")]
