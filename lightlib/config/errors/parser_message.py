"""What jsonargparse said, taken apart: the innermost reason, and the key and value it is about."""

from __future__ import annotations

import ast
import re
import textwrap
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["ParserMessage", "as_dict", "split_types", "taken_apart"]

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
    """One reason.

    Attributes:
        reason: The innermost text.
        key: The dotted key it is about, with `init_args` as in a file; empty when none is named.
        class_path: The class whose arguments it is about, as jsonargparse spells it.
        owner: The key at which that class stands.
        types: What was tried, as text: ``("<class 'int'>", "<class 'NoneType'>")``.
        value: The value as text, when it was told.
        value_type: Its type's name.
        nested: Of a flag ``--key.nested value``: ``nested``.
    """

    reason: str
    key: str = ""
    class_path: str = ""
    owner: str = ""
    types: tuple[str, ...] = ()
    value: str | None = None
    value_type: str = ""
    nested: str = ""

    @property
    def base(self) -> str:
        """The path of the class that is asked for, when one is."""
        found = (re.search(r"<class '([\w.]+\.\w+)'>|\b((?:\w+\.)+\w+)\]", one) for one in self.types)
        return next((one[1] or one[2] for one in found if one and not one[0].startswith("typing.")), "")


def taken_apart(message: str) -> ParserMessage:
    r"""Return the innermost reason of an error text of jsonargparse.

    Example:
        >>> said = taken_apart('Parser key "a.b":\n  Expected a <class \'int\'>. Got value: ten')
        >>> said.key, said.reason, said.value
        ('a.b', "Expected a <class 'int'>", 'ten')
    """
    return _innermost(message, ParserMessage(""))


def _innermost(text: str, said: ParserMessage) -> ParserMessage:
    text = textwrap.dedent(text.strip("\n")).removeprefix("Validation failed: ")
    called = _CALLED.match(text)
    if called:
        text, said = text[called.end() :], replace(said, types=said.types or (called[1],))
    first, _, rest = text.partition("\n")
    key = _KEY.fullmatch(first)
    if key:
        name = f"{said.key}.init_args.{key[1]}" if said.class_path and said.owner == said.key else key[1]
        if said.key and not said.class_path and said.key != key[1]:
            name = f"{said.key}.{key[1]}"  # a dataclass within another value
        inner = textwrap.dedent(rest.strip("\n"))
        inner = f"{key[2]}\n{inner}".strip("\n")
        return _innermost(inner, replace(said, key=name, types=(), value=None, value_type="", nested=""))
    helped = _HELP.fullmatch(first)
    if helped:
        return _innermost(f"{helped[2]}\n{rest}", replace(said, key=f"{helped[1]}.help"))
    if _NO_PATH.fullmatch(first):
        return _innermost(rest.removeprefix("- "), said)
    if first == _UNION:
        return _best_of_union(rest, said)
    problem = _CLASS.fullmatch(first)
    if problem:
        return _innermost(rest, replace(said, class_path=problem[1], owner=said.key))
    got = _GOT.fullmatch(text) if called or text.startswith(("Expected", "Not a valid subclass")) else None
    if got:
        said = _with_value(said, got[2].partition("\nSubclass types")[0], "")
        text = got[1]
    return replace(said, reason=text)


def _best_of_union(text: str, said: ParserMessage) -> ParserMessage:
    lines = text.split("\n")
    end = next((at for at in range(len(lines) - 1, -1, -1) if lines[at].startswith("Given value type: ")), len(lines))
    types = lines[0].removeprefix("Subtypes: ") if lines[0].startswith("Subtypes: ") else ""
    kind = re.search(r"'(?:[\w.]*\.)?(\w+)'", lines[end]) if end < len(lines) else None
    value = "\n".join(lines[end + 1 :]).removeprefix("Given value: ") if end < len(lines) else None
    if kind and value and kind[1].endswith("Error"):  # jsonargparse 4.39 sometimes takes its own error for the value
        return _innermost(value, replace(said, types=split_types(types), value=None))
    said = _with_value(replace(said, types=split_types(types)), value, kind[1] if kind else "")
    items: list[list[str]] = []
    body = lines[2:end] if lines[1:2] == ["Errors:"] else lines[1:end]
    indent = next((len(line) - len(line.lstrip()) for line in body if line.strip()), 0)
    for line in body:
        if line[indent:].startswith("- "):
            items.append([line[indent + 2 :]])
        elif items:
            items[-1].append(line)
    reasons = [_innermost(_item(one), said) for one in items]
    return max(reasons, key=_weight, default=replace(said, reason=text))


def _item(lines: list[str]) -> str:
    return "\n".join([lines[0], textwrap.dedent("\n".join(lines[1:]))])


def _weight(said: ParserMessage) -> int:
    """Return how much a reason tells: that a value is not None says the least."""
    if said.reason.startswith("Expected a <class 'NoneType'>"):
        return 0
    if said.class_path or "import path" in said.reason.lower() or said.reason.startswith("Expected an instantiatable"):
        return 3
    if said.reason.startswith(("Expected a", "Not a valid subclass", "Does not implement", "Cannot take a Union")):
        return 1
    return 2


def _with_value(said: ParserMessage, value: str | None, kind: str) -> ParserMessage:
    nested = _NESTED.fullmatch(value.strip()) if value else None
    if nested:
        return replace(said, nested=nested[1], value=nested[2], value_type="str")
    return replace(said, value=value, value_type=kind or said.value_type)


def split_types(text: str) -> tuple[str, ...]:
    """Return the items of a list of types, as text.

    Example:
        >>> split_types("[typing.Literal['a', 'b'], dict[str, int], <class 'NoneType'>]")
        ("typing.Literal['a', 'b']", 'dict[str, int]', "<class 'NoneType'>")
    """
    items, depth = [""], 0
    for letter in text.strip().removeprefix("[").removesuffix("]"):
        depth += (letter in "[(") - (letter in "])")
        if letter == "," and not depth:
            items.append("")
        else:
            items[-1] += letter
    return tuple(item.strip() for item in items if item.strip())


def as_dict(said: ParserMessage) -> dict[str, Any]:
    """Return the value when it is a mapping of plain values, else an empty one."""
    try:
        value = ast.literal_eval(said.value or "")
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return {}
    return value if isinstance(value, dict) else {}
