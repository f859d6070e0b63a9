"""Errors about classes: not importable, of the wrong kind, with wrong or missing arguments."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import jsonargparse

from lightlib.config.errors.invocation import Invocation, plain
from lightlib.config.errors.parser_message import ParserMessage, as_dict
from lightlib.errors import MisconfigurationException, closest, nearest

__all__ = [
    "abstract",
    "ambiguous",
    "as_yaml",
    "class_path_of",
    "denied",
    "missing_arguments",
    "no_such_name",
    "not_called",
    "not_imported",
    "unknown_argument",
    "wrong_kind",
]

_MOST = 20  # names listed in full


def unknown_argument(option: str, said: ParserMessage, asked: Invocation) -> MisconfigurationException:
    """The class has no such argument; or what was said is not where it belongs."""
    owner, given = asked.without_verb(said.owner), as_dict(said)
    if option == "class_path" and "class_path" in given:
        return _beside_class_path(owner, given, asked)
    if _is_implied(said):
        return _without_class(option, owner, said, asked)
    accepted = accepted_by(said.class_path, asked, owner)
    spot, near = asked.spot(f"{owner}.init_args.{option}", said.value), closest(option, accepted)
    near = "" if option.startswith(f"{near}.") else near  # what is below it is wrong
    value = said.value if said.nested else asked.value(f"{owner}.init_args.{option}")
    return MisconfigurationException(
        f"{said.class_path} has no argument {option!r}{spot.text}.{nearest(option, accepted) if near else ''}",
        expected=f"accepted are: {', '.join(accepted)}." if accepted else "no arguments: it accepts none.",
        fix=_assignment(f"{owner}.init_args.{near}", as_yaml(value), spot.in_file) if near else "delete it.",
    )


def missing_arguments(names: list[str], said: ParserMessage, asked: Invocation) -> MisconfigurationException:
    """The class needs arguments that were not given."""
    owner, several = asked.without_verb(said.owner), len(names) > 1
    spot = asked.class_spot(owner, said.class_path)
    flags = " ".join(f"--{plain(owner)}.{name}=…" for name in names)
    lines = "".join(f"\n      {name}: …" for name in names)
    return MisconfigurationException(
        f"{said.class_path}{spot.text} is missing its argument{'s' * several} {_listed(names)}.",
        expected=f"a value for {'each, for they have' if several else 'it, for it has'} no default.",
        fix=f"{flags} on the command line, or in a file, below `{owner}`:\n    init_args:{lines}",
    )


def no_such_name(name: str, said: ParserMessage, asked: Invocation) -> MisconfigurationException:
    """A name without a dot is neither a class path nor the short name of a known class."""
    key, spot = asked.without_verb(said.key), asked.class_spot(said.key, name)
    if _is_module(name):
        here = _classes_in(sys.modules.get(name), loaded(said.base))
        return MisconfigurationException(
            f"{plain(key)} got {name!r}{spot.text}, which is a module, not a class.",
            expected="the path of a class in it.",
            fix=_assignment(key, f"{name}.{here[0] if here else 'ClassName'}", spot.in_file, class_path=True),
        )
    if said.nested:
        return MisconfigurationException(
            f"{plain(key)}.{said.nested}{asked.spot(f'{key}.{said.nested}').text} has no meaning, for {plain(key)} is "
            f"{name!r}, which has no arguments.",
            expected="a class with this argument.",
            fix=f"--{plain(key)}=my_module.MyClass --{plain(key)}.{said.nested}={said.value}",
        )
    classes = {one.__name__: one for one in reversed(_subclasses(loaded(_base(said, asked))))}
    known = sorted(classes)
    near = closest(name, known)
    meant = _public(_path(classes[near])) if near == name else _name(classes[near]) if near else f"my_module.{name}"
    if not known:
        expected = "a path with a dot: `module.name`."
    elif len(known) <= _MOST:
        expected = f"the path of a class, `module.Class`, or one of {', '.join(known)}."
    else:
        expected = f"the path of a class, `module.Class`, or the name of one of the {len(known)} known subclasses of "
        expected += f"{_public(_base(said, asked))}."
    return MisconfigurationException(
        f"{plain(key)} got {name!r}{spot.text}, which is no known name and no class path."
        f"{f' Did you mean {meant!r}?' if near == name else nearest(name, known)}",
        expected=expected,
        fix=_assignment(key, meant, spot.in_file, class_path=True),
    )


def not_imported(said: ParserMessage, asked: Invocation) -> MisconfigurationException:
    """A class path that does not lead to a class; the import's own error is told."""
    key, path = asked.without_verb(said.key), class_path_of(said)
    module, _, name = path.rpartition(".")
    spot = asked.class_spot(key, path)
    what = f"{plain(key)} got {path!r}{spot.text}, which cannot be imported: {said.reason}"
    missing = re.search(r"No module named '([\w.]+)'", said.reason)
    if missing and f"{path}.".startswith(f"{missing[1]}."):
        package = missing[1].partition(".")[0]
        folder = asked.sources.folder
        near = closest(package, _modules_in(folder))
        return MisconfigurationException(
            what,
            expected=f"a module in {folder} or in an installed package.",
            fix=_assignment(key, near + path.removeprefix(package), spot.in_file, class_path=True)
            if near
            else f"start in the folder that holds {package}, install its package, or mend the path.",
        )
    if "has no attribute" in said.reason or "cannot import name" in said.reason:
        if not said.base:  # a function would do
            found = vars(sys.modules[module]) if module in sys.modules else {}
            here = [one for one, value in found.items() if callable(value)]
            expected, example = f"a function or a class in {module}.", "function_name"
        else:
            here = _classes_in(sys.modules.get(module), loaded(said.base))
            expected, example = f"a class in {module}.", "ClassName"
            if here:
                expected = f"one of {', '.join(here[:_MOST])}, which are in {module}."
        near = closest(name, here, example)
        return MisconfigurationException(
            f"{what}.{nearest(name, here)}",
            expected=expected,
            fix=_assignment(key, f"{module}.{near}", spot.in_file, class_path=bool(said.base)),
        )
    return MisconfigurationException(
        what,
        expected="a module that can be imported.",
        fix=f'python -c "import {module}" shows where it fails; install what it misses, or mend it.',
    )


def wrong_kind(base: str, said: ParserMessage, asked: Invocation) -> MisconfigurationException:
    """The path leads to something, but not to a subclass of what is asked for."""
    key, path = asked.without_verb(said.key), class_path_of(said)
    spot, found, parent = asked.class_spot(key, path), loaded(path), loaded(said.base or base)
    wanted = _public(said.base or base)
    what = f"not a subclass of {wanted}"
    if inspect.ismodule(found):
        what = "a module"
    elif found is not None and not isinstance(found, type):
        what = (
            f"a function, and not annotated to return a {wanted}"
            if callable(found)
            else f"of type {type(found).__name__}"
        )
    here = _classes_in(sys.modules.get(path.rpartition(".")[0]), parent) if parent is not None else []
    known = sorted({one.__name__ for one in _subclasses(parent)})
    if here:
        fix = _assignment(key, f"{path.rpartition('.')[0]}.{here[0]}", spot.in_file, class_path=True)
    elif 0 < len(known) <= _MOST:
        fix = f"one of {', '.join(known)}, or the path of a subclass of your own."
    else:
        fix = f"name a class that is derived from {wanted}."
    return MisconfigurationException(
        f"{plain(key)} got {path!r}{spot.text}, which is {what}.",
        expected=f"the path of a subclass of {wanted}.",
        fix=fix,
    )


def not_called(path: str, said: ParserMessage, asked: Invocation) -> MisconfigurationException:
    """The path leads to a class whose objects are no functions."""
    key = asked.without_verb(said.key)
    return MisconfigurationException(
        f"{plain(key)} got {path!r}{asked.class_spot(key, path).text}, a class whose objects cannot be called.",
        expected="the path of a function, or of a class with `__call__`.",
        fix="name a function; or define __call__ in the class.",
    )


def abstract(said: ParserMessage, asked: Invocation) -> MisconfigurationException:
    """The class cannot be built."""
    key, path = asked.without_verb(said.key), class_path_of(said)
    left = sorted(getattr(loaded(path), "__abstractmethods__", ()))
    methods = f": {', '.join(left)} is left to subclasses" if left else ""
    return MisconfigurationException(
        f"{plain(key)} got {path!r}{asked.class_spot(key, path).text}, which is abstract{methods}.",
        expected="a class that can be built.",
        fix="name a subclass that defines every method, or define them.",
    )


def ambiguous(name: str, paths: str, said: ParserMessage, asked: Invocation) -> MisconfigurationException:
    """Several classes have this short name."""
    key, spot = asked.without_verb(said.key), asked.class_spot(said.key, name)
    return MisconfigurationException(
        f"{plain(key)} got {name!r}{spot.text}, which is the name of several classes.",
        expected=f"one of {paths}.",
        fix=_assignment(key, paths.partition(", ")[0], spot.in_file, class_path=True),
    )


def denied(path: str, entry: str, said: ParserMessage, asked: Invocation) -> MisconfigurationException:
    """Class paths are restricted, and this one is not among those that are allowed."""
    package = path.partition(".")[0]
    if entry == "*":
        expected = "a class of a package that --allow names."
        fix = f"--allow {path.rpartition('.')[0]}, if you trust it and this configuration."
    else:
        expected = f"no path of {entry}: what is in it can run commands or other code."
        fix = "do what is needed in a class of your own, and name that."
    return MisconfigurationException(
        f"{plain(asked.without_verb(said.key)) or 'The configuration'} got {path!r}"
        f"{asked.class_spot(said.key, path).text}, and importing {package} is not allowed.",
        expected=expected,
        fix=fix,
    )


def accepted_by(class_path: str, asked: Invocation, owner: str) -> list[str]:
    """Return the names of the arguments that a class accepts in a configuration."""
    found = loaded(class_path)
    if found is None:
        return []
    skipped = getattr(asked.action(owner), "sub_add_kwargs", {}).get("skip", ())
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    add: Any = parser.add_class_arguments if isinstance(found, type) else parser.add_function_arguments
    try:
        names = add(found, "x", fail_untyped=False, skip={one for one in skipped if isinstance(one, str)})
    except Exception:  # noqa: BLE001  # the list is an extra: whatever hinders it must not hide the mistake that is told
        return []
    return sorted({name.split(".")[1] for name in names if "." in name})


def class_path_of(said: ParserMessage) -> str:
    """Return the class path that an error is about."""
    if said.class_path and said.owner == said.key:
        return said.class_path
    value = said.value or ""
    inner = re.search(r"'class_path': '([^']+)'|^\['([^']+)'", value)
    return (inner[1] or inner[2]) if inner else value


def loaded(path: str) -> Any:
    """Return the object at a path, if its module was imported already; nothing is imported here."""
    module, _, name = path.rpartition(".")
    if path in sys.modules and not hasattr(sys.modules.get(module), name):
        return sys.modules[path]
    return getattr(sys.modules.get(module), name, None)


def _is_implied(said: ParserMessage) -> bool:
    """Whether no class was named, so that the base class was taken, which cannot be meant."""
    base = loaded(said.base)
    return base is not None and base is loaded(said.class_path) and bool(_subclasses(base))


def _beside_class_path(owner: str, given: dict[str, Any], asked: Invocation) -> MisconfigurationException:
    beside = [name for name in given if name not in ("class_path", "init_args", "dict_kwargs")]
    spot = asked.spot(f"{owner}.{beside[0]}" if beside else owner)
    lines = "".join(f"\n      {name}: {as_yaml(given[name])}" for name in beside)
    return MisconfigurationException(
        f"{_listed(beside)} of {plain(owner)} stands beside `class_path`{spot.text}.",
        expected="the arguments of the class below `init_args`.",
        fix=f"below `class_path: {given['class_path']}`:\n    init_args:{lines}",
    )


def _without_class(option: str, owner: str, said: ParserMessage, asked: Invocation) -> MisconfigurationException:
    key = plain(owner)
    spot = asked.spot(f"{owner}.init_args.{option}", said.value if said.nested else None)
    known = [one for one in _subclasses(loaded(said.base)) if option in accepted_by(_path(one), asked, owner)]
    example = min(map(_name, known), key=len, default="my_module.MyClass")
    named = next((flag for flag in asked.flags if flag.key == key), None)
    if spot.in_file:
        fix = f"`class_path: {example}`, and beside it `init_args:`, with {option} below."
    elif named:
        fix = f"put --{key}={named.value} before --{key}.{option}."
    else:
        fix = f"--{key}={example} --{key}.{option}={said.value if said.nested else '…'}"
    return MisconfigurationException(
        f"{key} has the argument {option!r}{spot.text}, but which class it is was not said before.",
        expected="its class first, then its arguments.",
        fix=fix,
    )


def _base(said: ParserMessage, asked: Invocation) -> str:
    """Return the path of the class that is asked for."""
    kind = getattr(asked.action(asked.without_verb(said.key).removesuffix(".help")), "_typehint", None)
    kinds = (one for one in (kind, *getattr(kind, "__args__", ())) if isinstance(one, type))
    return said.base or next((_path(one) for one in kinds if one.__module__ != "builtins"), "")


def _public(path: str) -> str:
    """Return the shortest path at which the same class is found: ``torch.optim.Optimizer``."""
    found, parts = loaded(path), path.split(".")
    shorter = (".".join([*parts[:count], parts[-1]]) for count in range(1, len(parts)))
    return next((one for one in shorter if found is not None and loaded(one) is found), path)


def _name(kind: type) -> str:
    """Return what to write for a class: its short name where one is known, else its path."""
    ours = kind.__module__.partition(".")[0] in ("torch", "lightlib")
    return kind.__name__ if ours else _public(_path(kind))


def _path(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _subclasses(base: Any) -> list[type]:
    """Return the public subclasses that were imported, in the order of their definition."""
    found: dict[type, None] = {}
    waiting: list[type] = list(type.__subclasses__(base)) if isinstance(base, type) and base is not object else []
    while waiting:
        one = waiting.pop(0)
        if one not in found:
            found[one] = None
            waiting += type.__subclasses__(one)
    return [one for one in found if not one.__name__.startswith("_") and not inspect.isabstract(one)]


def _classes_in(module: Any, base: Any) -> list[str]:
    """Return the names of the classes in a module: subclasses of `base`, or all when there is none."""
    wanted = base if isinstance(base, type) else object
    return (
        [
            name
            for name, one in vars(module).items()
            if isinstance(one, type) and issubclass(one, wanted) and one is not base and not name.startswith("_")
        ]
        if inspect.ismodule(module)
        else []
    )


def _modules_in(folder: str) -> list[str]:
    folders = (one for one in Path(folder).iterdir() if one.suffix == ".py" or (one / "__init__.py").is_file())
    return [one.stem for one in folders]


def _is_module(name: str) -> bool:
    try:
        return name in sys.modules or importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def as_yaml(value: Any) -> str:
    """Return a single value as YAML has it, and … for any other."""
    if isinstance(value, bool):
        return str(value).lower()
    return "…" if value is None or isinstance(value, (dict, list)) else str(value)


def _assignment(key: str, value: str, in_file: bool, *, class_path: bool = False) -> str:
    """Return what to write: a line of a file, or a flag."""
    if in_file:
        return f"class_path: {value}" if class_path else f"{key.rpartition('.')[2]}: {value}"
    return f"--{plain(key)}={value}"


def _listed(names: list[str]) -> str:
    return ", ".join(repr(name) for name in names)
