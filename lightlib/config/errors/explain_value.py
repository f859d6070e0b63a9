"""Errors about values: of the wrong type, and which would be right."""

from __future__ import annotations

import ast
import re
from dataclasses import replace

from lightlib.config.errors.invocation import Invocation, plain
from lightlib.config.errors.parser_message import ParserMessage, split_types
from lightlib.errors import MisconfigurationException, closest, nearest

__all__ = ["kinds", "wrong_value"]

_KINDS = {  # a type as text: what it is called, what several are, and an example
    "int": ("a whole number", "whole numbers", "10"),
    "float": ("a number", "numbers", "0.1"),
    "bool": ("true, false", "true or false", "true"),
    "str": ("text", "texts", "text"),
    "NoneType": ("null", "null", "null"),
    "list": ("a list", "lists", "[…]"),
    "set": ("a list", "lists", "[…]"),
    "tuple": ("a list", "lists", "[…]"),
    "dict": ("a mapping", "mappings", "{name: …}"),
    "timedelta": ("a duration", "durations", "1:00:00"),
    "Path": ("a path", "paths", "path/of/a/file"),
    "PathLike": ("a path", "paths", "path/of/a/file"),
}


def wrong_value(said: ParserMessage, asked: Invocation) -> MisconfigurationException:
    """The value is not of the type that is asked for."""
    key = asked.without_verb(said.key)
    types = said.types or _told(said.reason)
    members = re.search(r"member of <enum .*>: \{(.+)\}", said.reason)
    if members:
        names = f"Literal[{', '.join(map(repr, members[1].split(',')))}]"
        types = tuple(one for one in types if one.startswith("<class"))
        types = (names, *types)
    if said.reason.startswith("Cannot take") and not said.types:
        types = (str(getattr(asked.action(key), "_typehint", "another value")),)
    spot = asked.spot(f"{key}.{said.nested}" if said.nested else key, said.value)
    if said.nested:
        return MisconfigurationException(
            f"{plain(key)} has no argument {said.nested!r}, which was given{spot.text}.",
            expected=f"{kinds(types)} for {plain(key)}.",
            fix=f"--{plain(key)}=…",
        )
    if spot.in_file and not said.value_type and str(asked.value(key)) == said.value:
        said = replace(said, value_type=type(asked.value(key)).__name__)
    if spot.in_file and said.value_type in ("bool", "int", "float") and said.value:
        said = replace(said, value=asked.written(key, said.value))
    value = _shown(said, spot.in_file)
    of_class = f" of {said.class_path}" if said.class_path and said.owner != said.key else ""
    name = key.rpartition(".")[2] if of_class else key
    if said.value and "${" in said.value:
        return _not_interpolated(f"{name}{of_class}", said.value, spot.text, asked)
    choices = _choices(types)
    near = nearest(said.value or "", choices)
    return MisconfigurationException(
        f"{name}{of_class} got {value}{spot.text}.{near}",
        expected=f"{kinds(types)}.",
        fix=_fix(key, types, choices, said, spot.in_file),
    )


def _not_interpolated(what: str, value: str, where: str, asked: Invocation) -> MisconfigurationException:
    own = asked.main.prog == "lightlib"
    return MisconfigurationException(
        f"{what} got {value!r}{where}, which nothing has replaced by what it refers to.",
        expected="a value; or interpolation switched on, with which `${key}` is the value of another key.",
        fix=f"{asked.command} --interpolate …"
        if own
        else 'mode = {"parser_mode": "omegaconf+"}; LightningCLI(…, parser_kwargs={**mode, "fit": mode, "test": mode})',
    )


def _told(reason: str) -> tuple[str, ...]:
    kind = re.sub(r"^Expected an? ", "", reason)
    return (kind if _kind(kind) != kind else reason.removeprefix("Expected "),)


def kinds(types: tuple[str, ...]) -> str:
    """Return types, as jsonargparse writes them, in words.

    Example:
        >>> kinds(("<class 'int'>", "list[str]", "typing.Literal['a', 'b']", "<class 'NoneType'>"))
        "a whole number, a list of texts, 'a', 'b' or null"
    """
    named = [word for one in types for word in _kind(one).split(", ")]
    named = [*(word for word in dict.fromkeys(named) if word != "null"), *(["null"] if "null" in named else [])]
    return " or ".join([", ".join(named[:-1]), named[-1]] if len(named) > 1 else named)


def _kind(text: str) -> str:
    bare = _bare(text)
    short, inner = _name_of(bare), bare.partition("[")[2]
    items = split_types(f"[{inner}") if inner else ()
    if short in ("Union", "Optional"):
        return ", ".join(_kind(one) for one in (*items, *(["NoneType"] if short == "Optional" else [])))
    if short == "Literal":
        return ", ".join(items)
    if short == "tuple" and items and "..." not in items:
        return f"a list of {len(items)} values ({' / '.join(_kind(one) for one in items)})"
    if short == "Callable":
        return "the path of a function or of a class"
    if short in ("list", "set") and items:
        return f"a list of {_several(items[0])}"
    if short == "dict" and len(items) > 1:
        return f"a mapping of {_several(items[0])} to {_several(items[1])}"
    if short in _KINDS:
        return _KINDS[short][0]
    return (
        f"{'an' if short[0] in 'AEIOU' else 'a'} {short} (class_path and init_args)"
        if re.fullmatch(r"[\w.]+\.\w+", bare)
        else bare
    )


def _several(text: str) -> str:
    name = _name_of(_bare(text))
    return _KINDS[name][1] if name in _KINDS else f"{name} (class_path and init_args)"


def _name_of(bare: str) -> str:
    name = bare.partition("[")[0].rpartition(".")[2]
    return name.lower() if name in ("List", "Dict", "Tuple", "Set") else name


def _bare(text: str) -> str:
    found = re.fullmatch(r"<(?:class|enum) '([^']+)'>", text.strip())
    return found[1] if found else text.strip()


def _choices(types: tuple[str, ...]) -> list[str]:
    found = (re.search(r"Literal\[(.*)\]", one) for one in types)
    return [choice.strip("'\"") for one in found if one for choice in split_types(f"[{one[1]}]")]


def _shown(said: ParserMessage, in_file: bool) -> str:
    value = " ".join((said.value or "").split())
    if said.value is None:
        return "a value of the wrong type"
    if said.value_type in ("dict", "Namespace"):
        return f"the mapping {value:.80}"
    if said.value_type == "list":
        return f"the list {value:.80}"
    return f"{value:.80}" if in_file and said.value_type in ("int", "float", "bool") else repr(value[:80])


def _fix(key: str, types: tuple[str, ...], choices: list[str], said: ParserMessage, in_file: bool) -> str:
    name, flag = key.rpartition(".")[2], plain(key)
    bare = [one for one in map(_bare, types) if one != "NoneType"] or ["NoneType"]
    items = next((split_types(one[one.index("[") :])[0] for one in bare if _name_of(one) == "list" and "[" in one), "")
    if items and said.value_type != "list":
        inner = _bare(items)
        if "." in inner:  # a list of objects
            return f"write\n    {name}:\n    - class_path: …" if in_file else f"--{flag}+=my_module.MyClass"
        example = said.value if _fits(said.value, inner) else _KINDS.get(inner, ("", "", "…"))[2]
        return f"{name}: [{example}]" if in_file else f"--{flag}=[{example}]"
    if choices:
        example = closest(said.value or "", choices, choices[0])
    elif "str" in bare and "bool" not in bare and said.value_type in ("int", "float", "bool"):
        example = f'"{said.value}"'
    elif "bool" in bare:
        example = "true"
    else:
        example = _KINDS.get(_name_of(bare[0]), ("", "", "my_module.MyClass" if "." in bare[0] else "…"))[2]
    if example == "my_module.MyClass" and in_file:
        return f"write\n    {name}:\n      class_path: {example}"
    return f"{name}: {example}" if in_file else f"--{flag}={example}"


def _fits(value: str | None, kind: str) -> bool:
    """Whether a single value would be right as an item of a list."""
    try:
        return value is not None and (kind == "str" or type(ast.literal_eval(value)).__name__ == kind)
    except (ValueError, SyntaxError):
        return False
