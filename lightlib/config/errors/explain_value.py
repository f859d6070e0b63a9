"""Explain wrong values: the value received, the expected types, and a value that fits."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

from lightlib.config.errors.invocation import Invocation, Setting, assignment, imported, plain
from lightlib.config.errors.parser_message import ParserMessage, split_types
from lightlib.errors import MisconfigurationException, closest
from lightlib.translations import fix_for_import

_EXAMPLES = {"int": "10", "float": "0.1", "bool": "true", "str": "text", "NoneType": "null", "dict": "{name: …}"}


def wrong_value(message: ParserMessage, invocation: Invocation) -> MisconfigurationException:
    """Return the error for a value that its argument does not accept."""
    key, name = invocation.without_verb(message.key), plain(invocation.without_verb(message.key))
    if message.nested and message.names_type:
        return MisconfigurationException(
            f"{name} has no argument {message.nested!r}{invocation.location(f'{key}.{message.nested}').text}.",
            expected=f"{_type_names(message)} for {name}.",
            fix=f"--{name}=…",
        )
    if message.class_path and message.owner != message.key:
        name = f"{key.rpartition('.')[2]} of {message.class_path}"
    class_path = message.class_path if message.owner == message.key else ""
    location = invocation.location(key, class_path or message.value)
    value, choices = class_path or message.value or "", _choices(message)
    reason = "" if message.names_type else f": {message.reason.removesuffix('.')}"
    meant = closest(value, choices or _classes_next_to(value, message.types))
    shown = _shown(value, message, location)
    expected, fix = f"{_type_names(message, choices)}.", ""
    if "${" in value:
        expected = "a value; with interpolation, `${key}` is the value of another key."
        fix = 'LightningCLI(…, parser_kwargs={"parser_mode": "omegaconf+"})'
        fix = f"{invocation.command} --interpolate …" if invocation.main.prog == "lightlib" else fix
    elif reason.startswith(": Importing"):
        fix = "name a class of a package that is allowed."
        if "'*' entry" in reason:
            fix = f"--allow {value.rpartition('.')[0]}, if you trust it and this configuration."
    elif class_path:
        fix = fix_for_import(reason)
    return MisconfigurationException(
        f"{name} got {shown}{location.text}{reason}.{f' Did you mean {meant!r}?' if meant else ''}",
        expected=expected,
        fix=fix
        or assignment(
            "class_path" if class_path and location.in_file else key,
            meant or (choices or [_example(message, location, shown)])[0],
            location.in_file,
        ),
    )


def _shown(value: str, message: ParserMessage, location: Setting) -> str:
    """Return the value as it was written, cut to 80 characters; text has quotes."""
    kind = message.value_type
    if location.in_file and str(location.value) == message.value:
        kind = kind or type(location.value).__name__
        if kind in ("int", "float", "bool"):
            return location.written
    text = " ".join(value.split())[:80]
    return text if kind in ("dict", "list") and message.value == value else repr(text)


def _classes_next_to(path: str, types: tuple[str, ...]) -> list[str]:
    """Return the paths of the public classes and functions of an expected type in the module of `path`."""
    module = sys.modules.get(path.rpartition(".")[0])
    if module is None or imported(path) is not None:
        return []
    objects = [imported(name) for kind in types for name in re.findall(r"(?:\w+\.)+\w+", kind)]
    bases = tuple(base for base in objects if isinstance(base, type))
    bases = tuple(base for base in bases if base.__module__ != "collections.abc") or bases
    lazy = set(getattr(module, "__all__", ())) - set(vars(module))  # imported on first use
    matching = (name for name, member in vars(module).items() if _is_of(member, bases) and not name.startswith("_"))
    return [f"{module.__name__}.{name}" for name in (*matching, *lazy)]


def _is_of(member: object, bases: tuple[type, ...]) -> bool:
    if isinstance(member, type):
        return issubclass(member, bases) and member not in bases
    return isinstance(member, bases)


def _choices(message: ParserMessage) -> list[str]:
    """Return the values of an enumeration or a Literal."""
    members = re.search(r"member of <enum .*>: \{(.+)\}", message.reason)
    if members:
        return members[1].split(",")
    literals = (re.search(r"Literal\[(.*)\]", kind) for kind in message.types)
    return [choice.strip("'\"") for match in literals if match for choice in split_types(match[1])]


def _type_names(message: ParserMessage, choices: Sequence[str] = ()) -> str:
    """Return the expected types in the form of a configuration, `choices` in place of their type."""
    names = [
        name
        for name in message.types
        if name != "NoneType" and not (choices and ("Literal[" in name or f"<enum '{name}'>" in message.reason))
    ]
    names += [*map(repr, choices), *(["null"] if "NoneType" in message.types else [])]
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _example(message: ParserMessage, location: Setting, shown: str) -> str:
    """Return a value of the expected type."""
    kinds = message.types
    if "str" in kinds and location.in_file and message.value:
        return shown if shown.startswith(("'", '"')) else f'"{shown}"'
    first = next((kind for kind in kinds if kind != "NoneType"), "NoneType") if "bool" not in kinds else "bool"
    items = re.fullmatch(r"(?:typing\.)?[lL]ist\[(.+)\]", first)
    inner = items[1] if items else first
    example = _EXAMPLES.get(inner.partition("[")[0].rpartition(".")[2], "my_module.MyClass" if "." in inner else "…")
    return f"[{example}]" if items else example
