"""Parse an error text of jsonargparse: the innermost reason, with its key and value."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, replace

_KEY = re.compile(r'Parser key "([^"]+)"(?: element \d+)?:\s*(.*)')
_HELP = re.compile(r"--([\w.]+)\.help: (.*)")
_CALLED = re.compile(r"Type (.*?) expects a function or a callable class: ")
_NO_PATH = re.compile(r"-?\s*Expected a (?:config )?path but .* either not accessible or invalid")
_CLASS = re.compile(r"Problem with given class_path '([^']+)':")
_NESTED = re.compile(r"NestedArg\(key='([^']*)', val='?(.*?)'?\)", re.DOTALL)
_GOT = re.compile(r"(.*?)\. Got value: (.*)", re.DOTALL)
_UNION = "Does not validate against any of the Union subtypes"


@dataclass(frozen=True)
class ParserMessage:
    """The innermost reason of an error text."""

    reason: str
    key: str = ""  # with `init_args` as in a file
    class_path: str = ""  # of the class whose arguments are wrong
    owner: str = ""  # the key of that class
    types: tuple[str, ...] = ()  # the expected ones, as text: "<class 'int'>"
    value: str | None = None
    value_type: str = ""
    nested: str = ""  # of a flag `--key.nested value`


def parse_message(text: str) -> ParserMessage:
    """Return the innermost reason of an error text of jsonargparse."""
    return _innermost(text, ParserMessage(""))


def _innermost(text: str, message: ParserMessage) -> ParserMessage:
    text = textwrap.dedent(text.strip("\n")).removeprefix("Validation failed: ")
    called = _CALLED.match(text)
    if called:
        text, message = text[called.end() :], replace(message, types=message.types or (called[1],))
    first, _, rest = text.partition("\n")
    key = _KEY.fullmatch(first)
    if key:
        name = f"{message.key}.init_args.{key[1]}" if message.class_path and message.owner == message.key else key[1]
        if message.key and not message.class_path and message.key != key[1]:
            name = f"{message.key}.{key[1]}"  # a dataclass within another value
        inner = textwrap.dedent(rest.strip("\n"))
        inner = f"{key[2]}\n{inner}".strip("\n")
        return _innermost(inner, replace(message, key=name, types=(), value=None, value_type="", nested=""))
    helped = _HELP.fullmatch(first)
    if helped:
        return _innermost(f"{helped[2]}\n{rest}", replace(message, key=f"{helped[1]}.help"))
    if _NO_PATH.fullmatch(first):
        return _innermost(rest.removeprefix("- "), message)
    if first == _UNION:
        return _best_of_union(rest, message)
    problem = _CLASS.fullmatch(first)
    if problem:
        return _innermost(rest, replace(message, class_path=problem[1], owner=message.key))
    got = _GOT.fullmatch(text) if called or text.startswith(("Expected", "Not a valid subclass")) else None
    if got:
        message = _with_value(message, got[2].partition("\nSubclass types")[0], "")
        text = got[1]
    expected = re.match(r"Expected an? ((?:<|typing\.|tuple).*)", text)
    types = message.types or ((expected[1],) if expected else ())
    return replace(message, reason=text, types=types)


def _best_of_union(text: str, message: ParserMessage) -> ParserMessage:
    lines = text.split("\n")
    end = next((at for at in range(len(lines) - 1, -1, -1) if lines[at].startswith("Given value type: ")), len(lines))
    types = lines[0].removeprefix("Subtypes: ") if lines[0].startswith("Subtypes: ") else ""
    kind = re.search(r"'(?:[\w.]*\.)?(\w+)'", lines[end]) if end < len(lines) else None
    value = "\n".join(lines[end + 1 :]).removeprefix("Given value: ") if end < len(lines) else None
    message = _with_value(replace(message, types=split_types(types)), value, kind[1] if kind else "")
    body = "\n".join(lines[2:end] if lines[1:2] == ["Errors:"] else lines[1:end])
    indent = re.search(r"^ *(?=\S)", body, re.MULTILINE)
    items = re.split(rf"^{indent[0]}- ", body, flags=re.MULTILINE)[1:] if indent else []
    reasons = [
        _innermost(f"{first}\n{textwrap.dedent(rest)}", message)
        for first, _, rest in (item.partition("\n") for item in items)
    ]
    return max(reasons, key=_weight, default=replace(message, reason=text))


def _weight(message: ParserMessage) -> int:
    """Rank a reason: an error of a named class is the most useful, "not None" the least."""
    if message.reason.startswith("Expected a <class 'NoneType'>"):
        return 0
    if (
        message.class_path
        or "import path" in message.reason.lower()
        or message.reason.startswith("Expected an instantiatable")
    ):
        return 3
    if message.reason.startswith(("Expected a", "Not a valid subclass", "Does not implement", "Cannot take a Union")):
        return 1
    return 2


def _with_value(message: ParserMessage, value: str | None, kind: str) -> ParserMessage:
    nested = _NESTED.fullmatch(value.strip()) if value else None
    if nested:
        return replace(message, nested=nested[1], value=nested[2], value_type="str")
    built = re.fullmatch(r"Namespace\(class_path='([^']+)'.*\)", value or "", re.DOTALL)
    return replace(
        message, value=built[1] if built else value, value_type="str" if built else kind or message.value_type
    )


def split_types(text: str) -> tuple[str, ...]:
    """Return the items of a list of types, as text."""
    items, depth = [""], 0
    for letter in text.strip().removeprefix("[").removesuffix("]"):
        depth += (letter in "[(") - (letter in "])")
        if letter == "," and not depth:
            items.append("")
        else:
            items[-1] += letter
    return tuple(item.strip() for item in items if item.strip())
