"""Parse an error text of jsonargparse: the innermost reason, with its key and value."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, replace

_HEADER = re.compile(
    r"Validation failed: |-?\s*Expected a (?:config )?path but (?s:.*?) either not accessible or invalid(?=\n)"
    r'|(?:Parser key "|--(?=[\w.]+\.help: ))(?P<key>[^":]+)"?(?: element \d+)?:'
    r"|Problem with given class_path '(?P<class_path>[^']+)':"
    r"|Type (?P<type>.*?) expects a function or a callable class: "
)
_UNION = re.compile(
    r"(?:- )?Does not validate against any of the Union subtypes\n *Subtypes: \[(?P<types>[^\n]*)\]\n *Errors:\n"
    r"(?P<errors>(?P<indent> *)- .*)\n *Given value type: <class '(?:[\w.]*\.)?(?P<kind>\w+)'>\n"
    r" *Given value: (?P<value>.*)",
    re.DOTALL,
)
_GOT = re.compile(r"(?P<reason>.*?)\. Got value: (?P<value>.*?)(?:\n\s*Subclass types.*)?", re.DOTALL)
_NESTED = re.compile(r"NestedArg\(key='([^']*)', val='?(.*?)'?\)", re.DOTALL)


@dataclass(frozen=True)
class ParserMessage:
    """The innermost reason of an error text."""

    reason: str
    key: str = ""  # with `init_args` as in a file
    class_path: str = ""  # of the class whose arguments are wrong
    owner: str = ""  # the key of that class
    types: tuple[str, ...] = ()  # the expected ones, as in a configuration: "int"
    value: str | None = None
    value_type: str = ""
    nested: str = ""  # of a flag `--key.nested value`

    @property
    def names_type(self) -> bool:
        """Whether the reason only names the expected type."""
        return bool(
            re.match(r"Expected an? (?:<|typing\.|member of)|Not a valid subclass|Cannot take a Union", self.reason)
        )


def parse_message(text: str) -> ParserMessage:
    """Return the innermost reason of an error text of jsonargparse."""
    return _innermost(text, ParserMessage(""))


def _innermost(text: str, message: ParserMessage) -> ParserMessage:
    text = textwrap.dedent(text.strip("\n"))
    while header := _HEADER.match(text):
        message = _below(header, message)
        first, _, rest = text[header.end() :].partition("\n")
        text = f"{first.strip()}\n{textwrap.dedent(rest)}".strip("\n")
    if union := _UNION.fullmatch(text):
        message = replace(_with_value(message, union["value"], union["kind"]), types=split_types(union["types"]))
        items = f"\n{union['errors']}".split(f"\n{union['indent']}- ")[1:]
        return max((_innermost(f"{union['indent']}  {item}", message) for item in items), key=_weight)
    if got := _GOT.fullmatch(text):
        text, message = got["reason"], _with_value(message, got["value"])
    expected = re.match(r"Expected an? ((?:<|typing\.|tuple).*)", text)
    return replace(message, reason=text, types=message.types or (split_types(expected[1]) if expected else ()))


def _below(header: re.Match[str], message: ParserMessage) -> ParserMessage:
    """Return the message with the key, class or type that a header line has for the lines below it."""
    if header["class_path"]:
        return replace(message, class_path=header["class_path"], owner=message.key)
    if header["type"]:
        return replace(message, types=message.types or split_types(header["type"]))
    key = header["key"]
    if key is None:
        return message
    if message.class_path and message.owner == message.key:
        key = f"{message.key}.init_args.{key}"
    elif message.key not in ("", key):  # a dataclass within another value
        key = f"{message.key}.{key}"
    return replace(message, key=key, types=(), value=None, value_type="", nested="")


def _weight(message: ParserMessage) -> int:
    """Rank a reason: an error of a named class is the most useful, "not None" the least."""
    if message.reason.startswith("Expected a <class 'NoneType'>"):
        return 0
    if message.class_path or re.search("import path|^Expected an instantiatable", message.reason, re.IGNORECASE):
        return 3
    return 1 if message.names_type else 2


def _with_value(message: ParserMessage, value: str, kind: str = "") -> ParserMessage:
    if nested := _NESTED.fullmatch(value.strip()):
        return replace(message, nested=nested[1], value=nested[2], value_type="str")
    if built := re.fullmatch(r"Namespace\(class_path='([^']+)'.*\)", value, re.DOTALL):
        return replace(message, value=built[1], value_type="str")
    return replace(message, value=value, value_type=kind or message.value_type)


def split_types(text: str) -> tuple[str, ...]:
    """Return the items of a list of types: "int" for "<class 'int'>"."""
    items, depth = [""], 0
    for letter in text:
        depth += (letter in "[(") - (letter in "])")
        if letter == "," and not depth:
            items.append("")
        else:
            items[-1] += letter
    return tuple(re.sub(r"^<(?:class|enum) '([^']+)'>$", r"\1", item.strip()) for item in items if item.strip())
