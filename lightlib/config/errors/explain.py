"""Explain jsonargparse's errors: unknown keys, wrong values and missing arguments, with file and line."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Mapping, Sequence

from lightlib.config.errors.explain_key import missing, unknown_key, unrecognized
from lightlib.config.errors.explain_value import wrong_value
from lightlib.config.errors.invocation import Invocation, plain
from lightlib.config.errors.parser_message import ParserMessage, parse_message
from lightlib.config.yaml.file import ConfigError, Sources, load, text_of
from lightlib.errors import MisconfigurationException

Explanation = Callable[[Mapping[str, str], ParserMessage, Invocation], MisconfigurationException | None]
_FILES = (".yaml", ".yml", ".json")


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
    error: MisconfigurationException | None = _file_error(message, invocation)
    for pattern, explanation in _EXPLAINED:
        match = None if error else re.match(pattern, message.reason)
        error = explanation(match.groupdict(), message, invocation) if match else error
    if error is None and message.key and message.value is not None:
        error = wrong_value(message, invocation)
    if error is not None:
        return str(error)
    location = invocation.location(message.key).text if message.key else ""
    return f"{text}\n  Configured: {plain(invocation.without_verb(message.key))}{location}." if location else text


def _file_error(message: ParserMessage, invocation: Invocation) -> ConfigError | None:
    """Return the error of a configuration file by reading it again, with its name."""
    named = re.search(r"(?:does not exist|not a file|not readable|sub-config file):? *'?(.+?)'?(?::|$)", message.reason)
    path = named[1] if named else message.value or ""
    takes_file = path.endswith(_FILES) and any("." in kind for kind in message.types)  # in place of an object
    if "://" in message.reason or not (named or takes_file):
        return None
    typed = [flag.value for flag in invocation.flags if flag.value]
    path = next((value for value in typed if os.path.abspath(value) == os.path.normpath(path)), path)
    try:
        load(text_of(path), path)
    except ConfigError as error:
        return error
    return None


# The texts are the same in every version since jsonargparse 4.39.
_EXPLAINED: tuple[tuple[str, Explanation], ...] = (
    (r"[Uu]nrecognized arguments: (?P<words>.+)", unrecognized),
    (r"Subcommand '(?P<verb>[^']+)' does not accept (?:option|nested key) '(?P<option>[^']+)'", unknown_key),
    (r"Group '(?P<group>[^']+)' does not accept (?:option|nested key) '(?P<option>[^']+)'", unknown_key),
    (r"Option '(?P<option>[^']+)' is not accepted before subcommand (?P<before>.+)", unknown_key),
    (r"(?:Option|Key) '(?P<option>[^']+)' is not (?:accepted|expected)(?! before)", unknown_key),
    (r"the following arguments are required: (?P<names>.+)", missing),
    (r"Key \"(?P<names>[^\"]+)\" is required but not included", missing),
)
