"""What jsonargparse says → what happened and where, what was expected, and what to write instead."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Sequence

from lightlib.config.errors import explain_class, explain_key
from lightlib.config.errors.explain_key import Case
from lightlib.config.errors.explain_value import wrong_value
from lightlib.config.errors.invocation import Invocation, plain
from lightlib.config.errors.parser_message import taken_apart
from lightlib.config.yaml.file import ConfigError, Sources, load, text_of
from lightlib.errors import MisconfigurationException, nearest

__all__ = ["explain"]


Tell = Callable[[Case], MisconfigurationException | None]


def explain(
    message: str,
    *,
    parser: argparse.ArgumentParser,
    sources: Sources | None = None,
    argv: Sequence[str] | None = None,
) -> str:
    r"""Return an error text of jsonargparse as one of ours; a text that is not known is returned as it is.

    Args:
        message: What `parser.error` was called with.
        parser: The parser whose error it is: the main one, or that of a sub-command.
        sources: The files that were read.
        argv: The words of the command line. Default: what the parser was given, or ``sys.argv``.

    Example:
        >>> import jsonargparse
        >>> parser = jsonargparse.ArgumentParser(prog="train.py")
        >>> action = parser.add_argument("--width", type=int)
        >>> message = 'Parser key "width":\n  Expected a <class \'int\'>. Got value: ten'
        >>> print(explain(message, parser=parser, argv=["--width", "ten"]))
        width got 'ten' (on the command line).
          Expected: a whole number.
          Fix: --width=10
    """
    if getattr(parser, "_inner_parser", False):  # of one class: the text goes into that of the parser around it
        return message
    said, asked = taken_apart(message), Invocation(parser, sources, argv)
    if "\n  Fix: " in said.reason and not said.reason.startswith("Invalid content"):  # one of ours already
        return said.reason
    path = explain_class.class_path_of(said)
    error = _bad_part(path) if said.base and path.endswith((".yaml", ".yml", ".json")) else None
    if error is not None:
        return str(error)
    for pattern, tell in _TELL:
        match = re.match(pattern, said.reason)
        error = tell(Case(match.groupdict(), said, asked)) if match else None
        if error is not None:
            return str(error)
    return message


def _bad_file(case: Case) -> MisconfigurationException | None:
    found, said, asked = case.found, case.said, case.asked
    key = asked.without_verb(said.key)
    absolute = found["path"]
    typed = [flag.value for flag in asked.flags if flag.key == plain(key) and flag.value]
    path = next((one for one in typed if os.path.abspath(one) == os.path.normpath(absolute)), absolute)
    try:
        text_of(path)
    except ConfigError as error:
        return error
    return None


def _elsewhere(case: Case) -> MisconfigurationException | None:
    return MisconfigurationException(
        f"The configuration {case.found['path']!r} does not exist, or cannot be reached.",
        expected="the address of a file that can be read from here.",
        fix="download it, look at it, for it names classes to build, and pass the file.",
    )


def _bad_part(path: str) -> MisconfigurationException | None:
    """Read a file again that stands for a part of a configuration, for its mistake was told without its name."""
    try:
        load(text_of(path), path)
    except ConfigError as error:
        return error
    return None


def _bad_text(case: Case) -> MisconfigurationException | None:
    said, asked = case.said, case.asked
    for flag in asked.flags:
        if flag.key == plain(said.key) and flag.value:
            try:
                load(flag.value, f"--{flag.key}")
            except ConfigError as error:
                return error
    return None


def _no_mapping_at_top(case: Case) -> MisconfigurationException | None:
    found = case.found
    return MisconfigurationException(
        f"A configuration holds {found['text'].strip() or 'nothing'!r:.80}.",
        expected="a mapping: lines of `key: value`.",
        fix="for instance `trainer:`, and indented below it `max_epochs: 3`.",
    )


def _print_flags(case: Case) -> MisconfigurationException | None:
    found = case.found
    known = ("skip_default", "skip_null", "comments")
    if found["value"] == "comments":  # it is known where its package is
        return MisconfigurationException(
            f"{found['option']} got 'comments', but ruamel.yaml, which writes them, is not installed.",
            expected="nothing, skip_default or skip_null; or comments, with that package.",
            fix="pip install ruamel.yaml",
        )
    return MisconfigurationException(
        f"{found['option']} got {found['value']!r}.{nearest(found['value'], known)}",
        expected="nothing, or some of skip_default, skip_null (skip_unset) and comments, with commas between.",
        fix=f"{found['option']}=skip_default",
    )


def _import_failed(case: Case) -> MisconfigurationException | None:
    """What an import raised can be any text: it is known by the class path that it is about."""
    said, asked = case.said, case.asked
    path = explain_class.class_path_of(said)
    asked_for = said.base or any("Callable" in one for one in said.types)
    about_path = said.class_path == path or (asked_for and re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)+", path))
    return explain_class.not_imported(said, asked) if path and said.key and about_path else None


# Anchored on what has been the same since jsonargparse 4.39; the first that matches and knows what to say is taken.
_TELL: tuple[tuple[str, Tell], ...] = (
    (r"[Uu]nrecognized arguments: (?P<words>.+)", explain_key.unrecognized),
    (
        r"Subcommand '(?P<verb>[^']+)' does not accept (?:option|nested key) '(?P<option>[^']+)'",
        explain_key.unknown_key,
    ),
    (r"Group '(?P<group>[^']+)' does not accept (?:option|nested key) '(?P<option>[^']+)'", explain_key.unknown_key),
    (r"Option '(?P<option>[^']+)' is not accepted before subcommand (?P<before>.+)", explain_key.unknown_key),
    (r"(?:Option|Key) '(?P<option>[^']+)' is not (?:accepted|expected)", explain_key.unknown_key),
    (r"the following arguments are required: (?P<names>.+)", explain_key.required),
    (r"Key \"(?P<names>[^\"]+)\" is required but not included", explain_key.required),
    (r"expected \"\w+\" to be one of \{.*\}, but it was not provided", explain_key.no_verb),
    (r"argument (?P<name>[^:]+): invalid choice: (?P<value>.+?) \(choose from (?P<choices>.*)\)", explain_key.choice),
    (r"(?P<value>.+) not among choices (?P<choices>.+)", explain_key.choice),
    (r"Linked \"(?P<target>[^\"]+)\" must be given via \"(?P<source>[^\"]+)\"", explain_key.linked),
    (r"argument (?P<option>[^:]+): expected (?:one|at least one|\d+) arguments?", explain_key.no_value),
    (r"(?:Path|File) does not exist:? *'?(?P<path>\w+://[^']+)'?$", _elsewhere),
    (r"(?:File does not exist|Path is not a file|File is not readable):? *'?(?P<path>.+?)'?$", _bad_file),
    (r"Invalid content in sub-config file (?P<path>.+?):", lambda case: _bad_part(case.found["path"])),
    (r"[\s\S]*in \"<unicode string>\", line \d+", _bad_text),
    (r"Unable to load config [\"'](?P<value>.*?)[\"']", explain_key.no_mapping),
    (r"Unexpected config: (?P<text>[\s\S]*)", _no_mapping_at_top),
    (r"Invalid option \"(?P<value>[^\"]*)\" for (?P<option>\S+)", _print_flags),
    (
        r"Importing '(?P<path>[^']+)' is not allowed, denied by the '(?P<entry>[^']+)' entry",
        lambda case: explain_class.denied(case.found["path"], case.found["entry"], case.said, case.asked),
    ),
    (
        r"Expected a dot import path string: (?P<name>\w+)$",
        lambda case: explain_class.no_such_name(case.found["name"], case.said, case.asked),
    ),
    (
        r"Import path .*?does not (?:correspond to a subclass of|implement protocol) (?P<base>.+)",
        lambda case: explain_class.wrong_kind(case.found["base"], case.said, case.asked),
    ),
    (
        r"Expected an import path corresponding to a (?:typing\.)?[Tt]ype\[(?P<base>.+)\]",
        lambda case: explain_class.wrong_kind(case.found["base"], case.said, case.asked),
    ),
    (
        r"Expected '(?P<path>[^']+)' to be a class that instantiates into callable",
        lambda case: explain_class.not_called(case.found["path"], case.said, case.asked),
    ),
    (
        r"Expected an instantiatable class, but .*is (?:abstract|a protocol)",
        lambda case: explain_class.abstract(case.said, case.asked),
    ),
    (
        r"Multiple subclasses with name (?P<name>\w+)\. .*?ambiguity: (?P<paths>.+)\.$",
        lambda case: explain_class.ambiguous(case.found["name"], case.found["paths"], case.said, case.asked),
    ),
    (
        r"Expected an? |Not a valid subclass of|Does not implement protocol|Cannot take a Union of no types",
        lambda case: wrong_value(case.said, case.asked),
    ),
    (r"", _import_failed),
)
