"""Explain jsonargparse's errors: unknown keys, wrong values and missing arguments, with file and line."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence

from lightlib.config.errors.explain_key import missing, unknown_key
from lightlib.config.errors.explain_value import wrong_value
from lightlib.config.errors.invocation import Invocation, plain
from lightlib.config.errors.parser_message import ParserMessage, parse_message
from lightlib.config.yaml.file import ConfigError, Sources, load, text_of

# The texts are the same in every version since jsonargparse 4.39.
_UNKNOWN = re.compile(
    r"(?:[Uu]nrecognized arguments: -+|(?:Option|Key) '|"
    r"(?:Subcommand '(?P<verb>[^']+)'|Group '(?P<group>[^']+)') does not accept (?:option|nested key) ')"
    r"(?P<option>[^ '=]+?)\+?(?=[ '=]|$)(?P<before>' is not accepted before)?"
)
_MISSING = re.compile(r"(?:the following arguments are required: |Key \")(?P<names>[^\"]+)(?:\" is required .*)?")


def explain(
    text: str,
    *,
    parser: argparse.ArgumentParser,
    sources: Sources | None = None,
    argv: Sequence[str] | None = None,
) -> str:
    r"""Return an error of jsonargparse with its place in the configuration.

    Unknown keys, wrong values and missing arguments are explained. Any other text stays as it is; the place is added
    where it is known. The words are by default those given to the parser, or ``sys.argv``.
    """
    if getattr(parser, "_inner_parser", False):  # parses one class; the parser around it reports its errors
        return text
    message, invocation = parse_message(text), Invocation(parser, sources, argv)
    if "\n  Fix: " in message.reason and not message.reason.startswith("Invalid content"):  # one of our own errors
        return message.reason
    if error := _file_error(message, invocation):
        return str(error)
    if unknown := _UNKNOWN.match(message.reason):
        return str(unknown_key(unknown.groupdict(), message, invocation))
    if lacking := _MISSING.fullmatch(message.reason):
        return str(missing(lacking["names"].split(", "), message, invocation))
    if message.key and message.value is not None:
        return str(wrong_value(message, invocation))
    place = invocation.location(message.key).text if message.key else ""
    return f"{text}\n  Configured: {plain(invocation.without_verb(message.key))}{place}." if place else text


def _file_error(message: ParserMessage, invocation: Invocation) -> ConfigError | None:
    """Return the error of a configuration file by reading it again, with its name."""
    named = re.search(r"(?:does not exist|not a file|not readable|sub-config file):? *'?(.+?)'?(?::|$)", message.reason)
    takes_object = any("." in kind for kind in message.types)  # a file may stand in its place
    is_file = takes_object and (message.value or "").endswith((".yaml", ".yml", ".json"))
    if "://" in message.reason or not (named or is_file):
        return None
    path = named[1] if named else message.value or ""
    typed = [flag.value for flag in invocation.flags if flag.value]
    path = next((value for value in typed if os.path.abspath(value) == os.path.normpath(path)), path)
    try:
        load(text_of(path), path)
    except ConfigError as error:
        return error
    return None
