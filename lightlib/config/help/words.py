"""The words of the help: types, defaults and docstrings, as they are said to a person."""

from __future__ import annotations

import collections.abc
import importlib
import inspect
import os
import re
import types
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from pathlib import PurePath
from typing import Annotated, Any, ForwardRef, Literal, NewType, TypeVar, Union, get_args, get_origin

import torch
from jsonargparse import Namespace

__all__ = [
    "as_sentence",
    "cleaned",
    "default_in_words",
    "known_subclasses",
    "sentences",
    "type_in_words",
    "without_default",
]

LONGEST_DEFAULT = 60
NONE = type(None)
TENSORS = (torch.Tensor, torch.nn.Parameter)  # left out of what else there is: nobody writes one into a configuration
PLAIN: dict[Any, str] = {bool: "true|false", int: "int", float: "float", str: "str", dict: "dict", list: "list"}
LISTS = (list, set, frozenset, collections.abc.Iterable, collections.abc.Sequence, collections.abc.Collection)
MAPPINGS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
NO_CLASSES = (bool, int, float, complex, str, bytes, list, tuple, dict, set, range, Enum, os.PathLike, type)
ROLE = re.compile(r":[\w:]+:`(?:(?P<text>[^`<]+?) ?<[^`]*>|~?(?P<path>[^`]*))`")
LINK = re.compile(r"`(?P<text>[^`<]+?) ?(?:<[^`]*>)?`_+")
END_OF_SENTENCE = re.compile(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)(?<!etc\.)(?<!vs\.)\s+(?=[A-Z0-9\"'(`*-])")
IN_BRACKETS = re.compile(r"\s*\((?:optional, ?)?default:? (?P<value>(?:[^()]|\([^()]*\))*)\)", re.IGNORECASE)
AS_SENTENCE = re.compile(r"(?:(?<=^)|(?<=[.!?] ))Defaults?(?: is| to|:)? (?P<value>[^\s:;]+?)\.(?= |$)")
EXPLAINED = re.compile(r"\bDefault ([^\s:;]+)(?=: )")


def type_in_words(kind: Any, with_none: bool = False) -> str:
    """Return a type as a person would say it.

    Args:
        kind: A class or any type hint.
        with_none: Whether None is worth a word; it is where it is not the default.

    Example:
        >>> type_in_words(Union[str, list[int], None]), type_in_words(Literal["min", "max"])
        ('str or list of int', 'min|max')
        >>> from torch.optim import Optimizer
        >>> type_in_words(Union[Optimizer, list[Optimizer], bool])
        'Optimizer or list of Optimizer or true|false (class)'
    """
    classes: list[str] = []
    words = _words(kind, classes)
    if not with_none:
        words = [word for word in words if word != "null"]
    lists = [word for word in words if word.startswith("list of ") and " or " in word]
    for several in lists:
        if set(several.removeprefix("list of ").split(" or ")) <= set(words):
            words[words.index(several)] = "list of them"
    words.sort(key="list of them".__eq__)
    said = " or ".join(dict.fromkeys(words)) or "null"
    return f"{said} (class)" if classes else said


def _words(kind: Any, classes: list[str]) -> list[str]:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in (None, NONE):
        return ["null"]
    if kind in (Any, inspect.Parameter.empty, object):
        return ["any"]
    if origin in (Union, types.UnionType):
        arguments = tuple(one for one in arguments if one not in TENSORS) or arguments
        return [word for argument in arguments for word in _words(argument, classes)]
    if origin is Literal:
        return ["|".join("null" if value is None else str(value) for value in arguments)]
    if origin is Annotated or isinstance(kind, NewType):
        return _words(arguments[0] if arguments else kind.__supertype__, classes)
    if isinstance(kind, TypeVar):
        return _words(kind.__bound__ or Any, classes)
    if origin is not None:
        return [_container(origin, arguments, classes)]
    return [_leaf(kind, classes)]


def _container(origin: Any, arguments: tuple[Any, ...], classes: list[str]) -> str:
    def inner(argument: Any) -> str:
        return " or ".join(dict.fromkeys(_words(argument, classes)))

    if origin in LISTS or (origin is tuple and arguments[-1:] == (Ellipsis,)):
        return f"list of {inner(arguments[0])}" if arguments else "list"
    if origin is tuple:
        return f"({', '.join(inner(argument) for argument in arguments)})"
    if origin in MAPPINGS:
        return f"dict of {inner(arguments[1])}" if len(arguments) == 2 else "dict"
    if origin is collections.abc.Callable:
        makes = inner(arguments[-1]) if arguments else "any"
        return f"function that returns {makes}" if makes not in ("any", "null") else "function"
    if origin is type:
        return f"class {arguments[0].__name__}" if arguments and hasattr(arguments[0], "__name__") else "class"
    return _leaf(origin, classes)


def _leaf(kind: Any, classes: list[str]) -> str:
    if kind in PLAIN:
        return PLAIN[kind]
    if kind in (Callable, collections.abc.Callable) or isinstance(kind, types.FunctionType):
        return "function"
    if isinstance(kind, (str, ForwardRef)):
        return (kind if isinstance(kind, str) else kind.__forward_arg__).rpartition(".")[2]
    if not isinstance(kind, type):
        # What jsonargparse makes of a hint that it cannot resolve: Unvalidated<list[Some] | null>, Untyped.
        hint = re.sub(r"^\w*?<(.*)>$", r"\1", str(kind)).replace(" | ", " or ").replace(" or null", "")
        return "any" if hint == "Untyped" else re.sub(r"\b(?:\w+\.)+(?=\w)", "", hint)
    if issubclass(kind, Enum):
        return "|".join(kind.__members__)
    if issubclass(kind, os.PathLike):
        return "path"
    if not issubclass(kind, NO_CLASSES) and kind.__module__ not in ("builtins", "datetime", "decimal", "uuid"):
        classes.append(kind.__name__)
    return kind.__name__


def default_in_words(value: Any) -> str:
    """Return a default as it would be written in a configuration file, shortened.

    Example:
        >>> default_in_words(True), default_in_words((0.9, 0.999)), default_in_words({"a": None})
        ('true', '(0.9, 0.999)', '{a: null}')
        >>> default_in_words({"class_path": "torch.optim.SGD", "init_args": {"lr": 0.5, "momentum": 0}})
        'SGD(lr=0.5)'
    """
    said = _value(value)
    return said if len(said) <= LONGEST_DEFAULT else said[: LONGEST_DEFAULT - 2].rstrip(" ,") + " …"


def _value(value: Any) -> str:
    plain = value.as_dict() if isinstance(value, Namespace) else value
    if isinstance(plain, Mapping) and "class_path" in plain:
        return _instance(str(plain["class_path"]), plain.get("init_args") or {})
    if isinstance(plain, Mapping):
        return "{" + ", ".join(f"{key}: {_value(one)}" for key, one in plain.items()) + "}"
    if isinstance(plain, (list, tuple)):
        inside = ", ".join(map(_value, plain))
        return f"[{inside}]" if isinstance(plain, list) else f"({inside})"
    if plain is None or isinstance(plain, bool):
        return {None: "null", True: "true", False: "false"}[plain]
    if isinstance(plain, Enum):
        return plain.name
    if isinstance(plain, (str, PurePath)):
        return str(plain) or '""'
    if isinstance(plain, (int, float)):
        return repr(plain)
    name = getattr(plain, "__name__", None)
    return name if isinstance(name, str) else type(plain).__name__


def _instance(path: str, arguments: Mapping[str, Any]) -> str:
    module, _, name = path.rpartition(".")
    try:
        signature = inspect.signature(getattr(importlib.import_module(module), name))
        usual = {one.name: one.default for one in signature.parameters.values()}
    except (ImportError, AttributeError, TypeError, ValueError):  # the arguments are said all the same
        usual = {}
    own = [
        f"{key}={_value(one)}"
        for key, one in arguments.items()
        if key not in usual or _value(one) != _value(usual[key])
    ]
    return f"{name}({', '.join(own)})" if own else name


def cleaned(text: str) -> str:
    r"""Return the text of a docstring on one line, without its markup.

    Example:
        >>> cleaned("One of ``'a'``,\n see :class:`~torch.nn.Linear` or `the paper <https://example.org>`_.")
        "One of 'a', see Linear or the paper."
    """
    text = re.split(r"\n\s*\n|\n\s*\.\. ", text.strip(), maxsplit=1)[0]
    text = ROLE.sub(lambda found: found["text"] or found["path"].rpartition(".")[2], text)
    text = LINK.sub(lambda found: found["text"], text)
    return " ".join(text.replace("``", "").replace("`", "").split())


def sentences(text: str, number: int) -> str:
    """Return the first sentences of a text.

    Example:
        >>> sentences("Samples, e.g. 3. No more than 4.5! Else it fails.", 2)
        'Samples, e.g. 3. No more than 4.5!'
    """
    return " ".join(END_OF_SENTENCE.split(text)[:number])


def as_sentence(text: str) -> str:
    """Return a text with a capital letter, unless it begins with a name of code, and a full stop.

    Example:
        >>> as_sentence("decay of the weights (L2)"), as_sentence("torch.nn.ReLU or another")
        ('Decay of the weights (L2).', 'torch.nn.ReLU or another.')
    """
    if re.match(r"[a-z]+(?![\w.(])|[a-z]+\.(?:\s|$)", text):
        text = text[0].upper() + text[1:]
    return f"{text}." if text[-1:].isalnum() or text.endswith((")", '"')) else text


def without_default(text: str, default: Any) -> str:
    """Return a description without the words that repeat the default.

    Example:
        >>> without_default("Batches per step. Default 1.", 1), without_default("rate (default: 1e-3)", 0.001)
        ('Batches per step.', 'rate')
        >>> without_default("Steps. Default -1: no limit.", -1), without_default("Steps. Default 2: few.", None)
        ('Steps. -1: no limit.', 'Steps. Default 2: few.')
    """

    def kept(found: re.Match[str]) -> str:
        return "" if _same(found["value"], default) else found.group()

    text = AS_SENTENCE.sub(kept, IN_BRACKETS.sub(kept, text))
    text = EXPLAINED.sub(lambda found: found[1] if _same(found[1], default) else found[0], text)
    return " ".join(text.split())


def _same(said: str, default: Any) -> bool:
    said = said.strip(" .\"'")
    if said.lower() in (str(default).lower(), default_in_words(default).lower()):
        return True
    try:
        return not isinstance(default, bool) and float(said) == float(default)
    except (TypeError, ValueError):
        return False


def known_subclasses(base: type, registered: Iterable[str] = ()) -> list[str]:
    """Return the short names of subclasses, sorted: the `registered` ones, and others that are loaded and can be made.

    Where some are registered, what lightlib and torch have besides them is left out: it is not for configurations.

    Example:
        >>> from torch.optim.lr_scheduler import LRScheduler
        >>> "StepLR" in known_subclasses(LRScheduler), known_subclasses(LRScheduler, ["LinearLR"])
        (True, ['LinearLR'])
    """
    found = set(registered)
    left_out = ("lightlib.", "torch.") if found else ()
    waiting: list[type] = base.__subclasses__()
    while waiting:
        one = waiting.pop()
        waiting += one.__subclasses__()
        made_for_all = not (one.__name__.startswith("_") or "<locals>" in one.__qualname__ or inspect.isabstract(one))
        if made_for_all and not one.__module__.startswith(left_out):
            found.add(one.__name__)
    return sorted(found, key=str.lower)
