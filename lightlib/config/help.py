"""HelpFormatter: jsonargparse's help with one option a line, short usage and plain docstrings."""

from __future__ import annotations

import re
import shutil
from argparse import SUPPRESS, Action
from collections.abc import Iterable, Iterator
from typing import Any

from jsonargparse import ActionConfigFile, DefaultHelpFormatter  # type: ignore[attr-defined]  # in its __all__

from lightlib.registry import BUILT_IN

WIDEST, NARROWEST, INDENT = 100, 40, 6
SENTENCES = 2  # of the description of an argument
_ROLE = re.compile(r":[\w:]+:`(?:(?P<text>[^`<]+?) ?<[^`]*>|~?(?P<path>[^`]*))`")
_LINK = re.compile(r"`(?P<text>[^`<]+?) ?(?:<[^`]*>)?`_+")
_END_OF_SENTENCE = re.compile(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)(?<!etc\.)(?<!vs\.)\s+(?=[A-Z0-9\"'(`*-])")
_OF_TENSORS = re.compile(r"given subclass of Tensor\b")
_MODULES = re.compile(r"\b(?:\w+\.)+(?=\w)")


# The group of the registry for a base class, and whether its classes are known by their names there.
_REGISTERED = {
    "Accelerator": "accelerators",
    "Callback": "callbacks",
    "LRScheduler": "schedulers",
    "Logger": "loggers",
    "Optimizer": "optimizers",
    "Strategy": "strategies",
}
_NAMED_AS_CLASSES = ("callbacks", "optimizers", "schedulers")


class HelpFormatter(DefaultHelpFormatter):
    """The `formatter_class` of our parsers.

    The usage shows the required options only. Each option has its own line; the first two sentences of its
    description, its type and its default follow below it. Lines are as wide as the terminal, at most 100 characters.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        width = max(NARROWEST, min(shutil.get_terminal_size().columns, WIDEST))
        super().__init__(*args, **{"width": width, "max_help_position": INDENT, **kwargs})  # type: ignore[no-untyped-call]

    def add_usage(self, usage: str | None, actions: Iterable[Action], *args: Any, **kwargs: Any) -> None:
        """Add the usage: configuration files, required options and positional arguments."""
        actions = list(actions)
        if usage is None and len(actions) > 1:
            files = [
                f"[{action.option_strings[-1]} FILE]" for action in actions if isinstance(action, ActionConfigFile)
            ]
            required = [
                f"{action.option_strings[0]} …" for action in actions if action.required and action.option_strings
            ]
            positional = [_positional(action) for action in actions if not action.option_strings]
            words = [self._prog.replace(" [options]", ""), *files, *required, "[options]", *positional]
            usage = " ".join(word for word in words if word).replace("%", "%%")
        super().add_usage(usage, actions, *args, **kwargs)

    def start_section(self, heading: str | None) -> None:
        """Begin a group of options, titled by the first sentence of its docstring, or the names of its classes."""
        if heading is not None and heading != SUPPRESS:
            classes = re.findall(r"(\w+)'>", heading)
            heading = " or ".join(classes) or _sentences(plain_text(heading), 1).removesuffix(".")
        super().start_section(heading)

    def add_argument(self, action: Action) -> None:
        """Add an option; the help of Tensor is left out, since no configuration holds one."""
        if not _OF_TENSORS.search(action.help or ""):
            super().add_argument(action)

    def _format_action_invocation(self, action: Action) -> str:
        text: str = super()._format_action_invocation(action)
        return text.replace(" \b", "")  # jsonargparse hides the space of --print_config[=flags] with a backspace

    def _get_help_string(self, action: Action) -> str:
        described, text = action.help or "", super()._get_help_string(action)
        if not text.startswith(described):
            return text
        details, _, classes = text.removeprefix(described).removesuffix(")").partition(", known subclasses: ")
        kinds = set(re.findall(r"\w+", self._get_type_str(action) or ""))
        names = set() if "Tensor" in kinds else {_MODULES.sub("", path) for path in classes.split(", ") if path}
        names |= {name for kind in kinds & _REGISTERED.keys() for name in _registered(_REGISTERED[kind])}
        details += f", known subclasses: {', '.join(sorted(names))}" if names else ""
        return f"{_sentences(plain_text(described), SENTENCES)}{details}{')' if details else ''}"


def _registered(group: str) -> Iterator[str]:
    """Yield the names of the classes of a group of the registry, which need not be imported yet."""
    for name, path in BUILT_IN.get(group, {}).items():
        attribute = path.rpartition(":")[2]
        if attribute[0].isupper():
            yield name if group in _NAMED_AS_CLASSES else attribute


def _positional(action: Action) -> str:
    """Return a positional argument as it is written in the usage; those that are links have none."""
    if action.help == SUPPRESS or action.nargs == 0:
        return ""
    return "{" + ",".join(action.choices) + "} …" if action.choices else str(action.metavar or action.dest).upper()


def plain_text(text: str) -> str:
    """Return the first paragraph of a docstring on one line, without its markup."""
    text = re.split(r"\n\s*\n|\n\s*\.\. ", text.strip(), maxsplit=1)[0]
    text = _ROLE.sub(lambda role: role["text"] or role["path"].rpartition(".")[2], text)
    text = _LINK.sub(lambda link: link["text"], text)
    return " ".join(text.replace("``", "").replace("`", "").split())


def _sentences(text: str, number: int) -> str:
    return " ".join(_END_OF_SENTENCE.split(text)[:number])
