"""Help that a person can read: groups, short types, sentences of docstrings, as wide as a terminal."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import sys
import textwrap
from argparse import SUPPRESS, Action, _SubParsersAction
from collections.abc import Iterable, Iterator
from dataclasses import MISSING
from importlib.util import find_spec
from itertools import zip_longest
from typing import Any

from jsonargparse import ActionYesNo, DefaultHelpFormatter
from jsonargparse._actions import ActionConfigFile, _ActionConfigLoad
from jsonargparse._common import defaults_cache, parent_parser
from jsonargparse._formatters import get_env_var
from jsonargparse._link_arguments import ActionLink

from lightlib.config.help.words import (
    as_sentence,
    cleaned,
    default_in_words,
    known_subclasses,
    sentences,
    type_in_words,
    without_default,
)
from lightlib.registry import BUILT_IN

__all__ = ["HelpFormatter", "with_base_classes"]

WIDEST, NARROWEST = 100, 40
BOLD, CYAN, DIM = "1", "36", "2"
# What stands under the title of a group in place of the docstring of a class that is written for those who extend it.
SENTENCES = {
    "trainer": "Where, for how long and with what the model runs.",
    "model": "What is trained: a class of yours.",
    "data": "Where the batches come from: a class of yours.",
    "optimizer": "What changes the weights. It takes the place of the model's own configure_optimizers.",
    "lr_scheduler": "What changes the learning rate of that optimizer.",
}
TITLES = {"lr_scheduler": "Learning rate scheduler"}
NAMED_AS_CLASSES = ("callbacks", "optimizers", "schedulers")
FLAGS = re.compile(r"supported flags are: (.*?)\.?$")
REGISTERED = {
    "Accelerator": "accelerators",
    "Callback": "callbacks",
    "LRScheduler": "schedulers",
    "Logger": "loggers",
    "Optimizer": "optimizers",
    "Strategy": "strategies",
}
USUAL = {
    "options": "Options",
    "optional arguments": "Options",
    "positional arguments": "Arguments",
    "subcommands": "Commands",
}
NO_TEXT = "_EMPTY_HELP_"  # of jsonargparse until 4.49
COMMANDS_HELP = "For more details of each subcommand, add it as an argument followed by --help."
HELP_OF_CLASS = re.compile(r"Help for (?P<option>--\S+?)(?:\.help)?=(?P<path>\S+)$")
ANY_SUBCLASS = re.compile(
    r'One or more arguments specifying "class_path" and "init_args" for any (?P<what>subclass.*)', re.DOTALL
)


def with_base_classes(parser: Any, words: Iterable[str]) -> Iterator[str]:
    """Yield the words of a command line, with the base class behind every ``--trainer.callbacks.help`` that has none.

    jsonargparse asks for a class where several are possible; the help of the base class lists them all.
    """
    given = list(words)
    for word, following in zip_longest(given, given[1:], fillvalue="-"):
        action = _class_help_of(parser, word) if following.startswith("-") else None
        kinds = getattr(action, "_help_types", None) or getattr(action, "_baseclasses", None)
        if action is None or action.nargs is not None or not kinds:
            yield word
        else:
            yield f"{word}={kinds[0].__module__}.{kinds[0].__qualname__}"


def _class_help_of(parser: Any, word: str) -> Action | None:
    """Return the option of a parser, or of one of its commands, that shows the help of a class."""
    if not word.endswith(".help"):
        return None
    for action in vars(parser)["_actions"]:
        if word in action.option_strings:
            return action  # type: ignore[no-any-return]
        commands = action.choices.values() if isinstance(action, _SubParsersAction) else ()
        found = (_class_help_of(command, word) for command in commands)
        if one := next(filter(None, found), None):
            return one
    return None


class HelpFormatter(DefaultHelpFormatter):
    """The `formatter_class` of our parsers.

    Every option has a line of its own with its name, its type in plain words and its default, and below it the first
    two sentences of its description. The lines are as wide as the terminal, but not wider than 100. There are colours
    where the output is a terminal and ``NO_COLOR`` is not set.

    Example:
        >>> import jsonargparse
        >>> parser = jsonargparse.ArgumentParser(prog="fit", formatter_class=HelpFormatter)
        >>> _ = parser.add_argument("--epochs", type=int, default=3, help="Passes over the data.")
        >>> print(parser.format_help().partition("exit.")[2])
        <BLANKLINE>
        <BLANKLINE>
          --epochs  int, default 3
              Passes over the data.
        <BLANKLINE>
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call]
        self._columns = max(NARROWEST, min(shutil.get_terminal_size().columns, WIDEST))
        self._options: list[Action] = []
        self._blocks: list[str] = []
        self._group: _Group | None = None
        self._purpose = ""
        self._of_class: re.Match[str] | None = None

    # what argparse calls, in this order
    def add_usage(
        self, usage: str | None, actions: Iterable[Action], groups: Any = (), prefix: str | None = None
    ) -> None:
        """Add the line that says how a call looks. It has no colours: errors show it on stderr."""
        self._options = list(actions)
        if usage == SUPPRESS:
            return
        program = self._prog.replace(" [options]", "")
        start = "usage: " if prefix is None else prefix
        if usage is not None:
            words = usage.replace("%(prog)s", program).replace("%%", "%").split()
        elif self._inner:
            return
        else:
            words = [program, *_call(self._options, short=prefix is not None)]
        indent = " " * min(len(f"{start}{program} "), self._columns // 3)
        self._blocks.append("\n".join(self._wrapped(" ".join(words), start, indent)))

    def add_text(self, text: str | None) -> None:
        """Add a paragraph, to the group that is open or to the whole."""
        if text is None or text == SUPPRESS:
            return
        self._of_class = self._of_class or HELP_OF_CLASS.match(text)
        if HELP_OF_CLASS.match(text):
            self._blocks.append("\n".join(self._about_class()))
            return
        if text == COMMANDS_HELP:
            text = "%(prog)s COMMAND --help shows the options of a command."
        said = text.replace("%(prog)s", self._prog.replace(" [options]", "")).replace("%%", "%")
        paragraphs = ["\n".join(self._wrapped(" ".join(one.split()))) for one in re.split(r"\n\s*\n", said)]
        if self._group is None:
            self._purpose = self._purpose or cleaned(said)
            self._blocks += paragraphs
        else:
            self._group.texts += [one for one in paragraphs if one]

    def start_section(self, heading: str | None) -> None:
        """Begin a group of options."""
        self._group = _Group("" if heading in (None, SUPPRESS) else str(heading))

    def add_arguments(self, actions: Iterable[Action]) -> None:
        """Add options to the group that is open."""
        assert self._group is not None
        self._group.actions += [action for action in actions if action.help != SUPPRESS]

    def end_section(self) -> None:
        """End the group; one with nothing in it is not shown."""
        group, self._group = self._group, None
        if group is not None and (group.actions or group.texts):
            self._blocks.append("\n".join(self._shown(group)))

    def format_help(self) -> str:
        """Return all that was added."""
        parser: Any = parent_parser.get()
        if parser is not None and parser.default_env and not self._inner and len(self._blocks) > 1:
            example = self._example()
            said = f"Options are also read from the environment: {example.option_strings[0]} as "
            self._blocks.append("\n".join(self._wrapped(f"{said}{get_env_var(parser, example)}.")))
        return "\n\n".join(block for block in self._blocks if block) + "\n" if self._blocks else ""

    def _example(self) -> Action:
        """Return the option whose variable is shown: the first one of a group, if there is any."""
        options = [action for action in self._options if action.option_strings and not _is_class_help(action)]
        typed = [action for action in options if hasattr(action, "_typehint")] or options[-1:]
        return next((action for action in typed if "." in action.dest), typed[0])

    # one group
    def _shown(self, group: _Group) -> list[str]:
        title, sentence = self._heading(group)
        lines = [self._coloured(title, BOLD)] if title else []
        lines += self._wrapped(sentence, "  ") if sentence else []
        lines += [f"  {line}" for text in group.texts for line in text.splitlines()]
        listed = [
            action for action in group.actions if not (_is_class_help(action) or type(action) is _ActionConfigLoad)
        ]
        for number, action in enumerate(listed):
            lines += [""] if number == 0 and len(lines) > 1 else []
            lines += self._option(action)
        notes = self._notes(group)
        return [*lines, "", *notes] if notes else lines

    def _heading(self, group: _Group) -> tuple[str, str]:
        title = cleaned(group.title).removesuffix(":")
        key = group.key
        if title.lower() in USUAL:
            return USUAL[title.lower()], ""
        if title == "Linked arguments":
            return title, "They follow from others, and cannot be given."
        if title == self._purpose.removesuffix("."):  # the arguments of the method that this command runs
            return self._prog.split()[-1].capitalize(), ""
        if key is None or (self._of_class is not None and self._of_class["option"].startswith(f"--{key}")):
            return ("Arguments" if self._of_class else title), ""
        shown = TITLES.get(key) or key.replace("_", " ").capitalize()
        if key in SENTENCES and (key == "trainer" or group.takes_any_class):
            return shown, SENTENCES[key]
        sentence = "" if title.startswith("<class '") else sentences(title, 1)
        return shown, as_sentence(sentence)

    def _notes(self, group: _Group) -> list[str]:
        """Say once at the end of a group what jsonargparse says at each option."""
        classes = [
            action.option_strings[0] + _class_or_nothing(action)
            for action in group.actions
            if _is_class_help(action) and "class" in type_in_words(getattr(action, "_typehint", object))
        ]
        appended = [name for action in group.actions for name in action.option_strings if name.endswith("+")]
        files = [action.option_strings[0] for action in group.actions if type(action) is _ActionConfigLoad]
        notes = [
            (files, "All of them from a file: " + ", ".join(f"{name}\xa0FILE" for name in files)),
            (appended, "Append to a list: " + ", ".join(appended)),
            (classes, "Classes and their arguments: " + ", ".join(classes)),
        ]
        if self._of_class is not None:
            notes = notes[1:]
        lines = [line for wanted, text in notes if wanted for line in self._wrapped(text, "  ", "      ")]
        return [self._coloured(line, DIM) for line in lines]

    # one option
    def _option(self, action: Action) -> list[str]:
        if isinstance(action, _SubParsersAction):
            return self._commands(action)
        if isinstance(action, ActionLink):
            late = "  once both are built" if action.apply_on == "instantiate" else ""
            return [f"  {self._coloured(action.option_strings[0].removeprefix('--'), CYAN)}{late}"]
        metavar = str(action.metavar or "")
        names = ", ".join(name for name in action.option_strings if not name.endswith("+")) or metavar or action.dest
        names += metavar.strip("\b") if metavar.startswith("\b") else ""  # --print_config[=flags]
        about = ", ".join(filter(None, self._about(action)))
        if len(names) + len(about) + 4 <= self._columns:
            lines = [f"  {self._coloured(names, CYAN)}  {self._coloured(about, DIM)}".rstrip()]
        else:
            lines = [f"  {self._coloured(names, CYAN)}"]
            lines += [self._coloured(line, DIM) for line in self._wrapped(about, "      ")]
        return lines + self._wrapped(self._description(action), "      ")

    def _about(self, action: Action) -> list[str]:
        """Return the type and the default (or that it is required)."""
        default = self._default(action)
        kind = getattr(action, "_typehint", None) or action.type
        if isinstance(action, ActionYesNo) or action.nargs == 0:
            said = ""
        elif isinstance(action, ActionConfigFile):
            said = "file"
        elif action.choices is not None and not isinstance(action, _SubParsersAction):
            said = "|".join(map(str, action.choices))
        elif kind is not None:
            said = type_in_words(kind, with_none=default is not None)
        else:
            said = "" if str(action.metavar).startswith("\b") else str(action.metavar or "")
        if default is SUPPRESS:
            return [said]
        if default is None or default is MISSING:
            return [said, "required" if default is MISSING or action.required or _is_required(action) else ""]
        return [said, "" if action.nargs == 0 and default is False else f"default {default_in_words(default)}"]

    def _default(self, action: Action) -> Any:
        read = defaults_cache.get()
        return action.default if read is None else read.get(action.dest)

    def _description(self, action: Action) -> str:
        text = action.help or ""
        found = ANY_SUBCLASS.match(text)
        if found:
            kinds = re.sub(r"\{(.*)\}", lambda one: one[1].replace(",", " or "), found["what"])
            return f"The name or the class path of a {kinds}"
        if text == NO_TEXT:
            return ""
        default = self._default(action)
        known = {"default": default_in_words(default), "prog": self._prog.replace(" [options]", "")}
        said = re.sub(r"%\((\w+)\)s", lambda one: known.get(one[1], one[0]), cleaned(text))
        from_docstring = hasattr(action, "_typehint")
        if not from_docstring:
            flags = FLAGS.search(said)
            if flags:
                said = f"Print the configuration that all other arguments make, and exit. Flags: {flags[1]}."
            return as_sentence(said.replace("%%", "%"))
        said = without_default(re.sub(r"^\([^()]*\): ", "", said), default)
        said = said if self._inner else sentences(said, 2)
        return said if text.startswith("`") else as_sentence(said)

    def _commands(self, action: Action) -> list[str]:
        """List the sub-commands with what each does."""
        subactions = list(action._get_subactions())  # type: ignore[attr-defined]  # noqa: SLF001  there is no other way
        width = max((len(one.dest) for one in subactions), default=0) + 4
        lines: list[str] = []
        for one in subactions:
            first, *rest = self._wrapped(one.help or "", " " * width) or [""]
            lines += [
                f"  {self._coloured(one.dest, CYAN)}{' ' * (width - 2 - len(one.dest))}{first.strip()}".rstrip(),
                *rest,
            ]
        return lines

    # the help of one class: --optimizer.help Adam
    @property
    def _inner(self) -> bool:
        return bool(getattr(parent_parser.get(), "_inner_parser", False))

    def _about_class(self) -> list[str]:
        assert self._of_class is not None
        option, path = self._of_class["option"], self._of_class["path"]
        lines = [self._coloured(path, BOLD)]
        try:
            module, _, name = path.rpartition(".")
            kind = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):  # a class within another one, or one that was made in __main__
            return lines
        docstring = cleaned(kind.__dict__.get("__doc__") or "")
        lines += self._wrapped(sentences(docstring, 3), "  ")
        known = known_subclasses(kind, _registered(REGISTERED.get(kind.__name__, "")))
        if known:
            lines += ["", *self._wrapped("Subclasses: " + ", ".join(known), "  ", "      ")]
        return [
            *lines,
            "",
            *self._wrapped(f"In a file: class_path and init_args under {option.removeprefix('--')}.", "  "),
        ]

    # lines
    def _wrapped(self, text: str, first: str = "", rest: str | None = None) -> list[str]:
        lines = textwrap.wrap(
            text,
            self._columns,
            initial_indent=first,
            subsequent_indent=first if rest is None else rest,
            break_long_words=False,
            break_on_hyphens=False,
        )
        return [line.replace("\xa0", " ") for line in lines]

    def _coloured(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if text and _colours() else text


class _Group:
    """One group of options, as argparse hands it over."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.texts: list[str] = []
        self.actions: list[Action] = []

    @property
    def key(self) -> str | None:
        """What all its options begin with: ``trainer`` of ``--trainer.max_epochs``."""
        names = [action.dest for action in self.actions if action.option_strings]
        if len(names) == 1 and not self.takes_any_class and "." not in names[0]:
            return None
        first = {name.partition(".")[0] for name in names}
        if len(first) != 1:
            return None
        loaded = [action.dest for action in self.actions if type(action) is _ActionConfigLoad]
        return max(loaded, key=len) if loaded else first.pop()

    @property
    def takes_any_class(self) -> bool:
        """Whether it stands for ``--model CLASS``."""
        return any(action.help is not None and ANY_SUBCLASS.match(action.help) for action in self.actions)


def _colours() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _registered(group: str) -> Iterable[str]:
    """Return the names of the classes of a group of the registry whose packages are installed."""
    for name, path in BUILT_IN.get(group, {}).items():
        module, _, attribute = path.partition(":")
        if attribute[0].isupper() and any(map(find_spec, {one.partition(".")[0] for one in module.split("|")})):
            yield name if group in NAMED_AS_CLASSES else attribute


def _is_class_help(action: Action) -> bool:
    return (
        action.dest.endswith(".help")
        and action.option_strings[:1] == [f"--{action.dest}"]
        and action.default == SUPPRESS
    )


def _class_or_nothing(action: Action) -> str:
    return "" if action.nargs == 0 else "\xa0[CLASS]"


def _is_required(action: Action) -> bool:
    parser: Any = parent_parser.get()
    return action.dest in {*getattr(parser, "required_args", ()), *getattr(parser, "_extra_required_keys", ())}


def _call(actions: Iterable[Action], *, short: bool) -> list[str]:
    """Return the words of a call: files, classes, what is required, and the rest as ``[options]``."""
    words: list[str] = []
    positional: list[str] = []
    for action in actions:
        kind = getattr(action, "_typehint", None)
        if isinstance(action, ActionLink) or action.help == SUPPRESS:
            continue
        if isinstance(action, _SubParsersAction):
            positional += ["{" + ",".join(action.choices) + "}" if len(action.choices) < 8 else "COMMAND", "…"]
        elif not action.option_strings:
            positional.append(str(action.metavar or action.dest).upper())
        elif isinstance(action, ActionConfigFile):
            words.append(f"[{action.option_strings[-1]}\xa0FILE]")
        elif action.help is not None and ANY_SUBCLASS.match(action.help):
            words.append(f"[{action.option_strings[0]}\xa0CLASS]")
        elif action.required or _is_required(action):
            value = type_in_words(kind or action.type or str).removesuffix(" (class)")
            words.append(f"{action.option_strings[0]}\xa0{value.upper() if value.isidentifier() else 'VALUE'}")
    return positional if short else [*words, "[options]", *positional]
