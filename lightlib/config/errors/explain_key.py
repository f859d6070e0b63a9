"""Explain unknown keys, with the nearest known one, and missing arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jsonargparse

from lightlib.config.errors.invocation import Invocation, Setting, assignment, imported, plain
from lightlib.config.errors.parser_message import ParserMessage
from lightlib.errors import MisconfigurationException, closest

_MOST = 12  # keys listed in an error


def unknown_key(groups: Mapping[str, str], message: ParserMessage, invocation: Invocation) -> MisconfigurationException:
    """Return the error for a key that no argument has, or one in a file on the wrong side of the sub-command.

    The groups are the names in the reason: option, group, verb, and before.
    """
    option, verb = groups["option"], groups["verb"]
    if message.class_path:
        return _unknown_argument(option, message, invocation)
    section = option.partition(".")[0]
    above = groups["group"] or message.key
    key = invocation.without_verb(f"{above}.{option}" if above else option)
    early = groups["before"] or (invocation.parser is invocation.main and invocation.verbs and not verb)
    invocation = invocation.of_verb(verb or invocation.verb or (next(iter(invocation.verbs)) if early else None))
    if verb and section in invocation.verbs:
        return _wrong_side(section, invocation, f"--config FILE {verb}")
    if early and key.partition(".")[0] in _below("", invocation):
        return _wrong_side(key, invocation, f"{invocation.verb} --config FILE")
    near, location, group = invocation.nearest_key(key), invocation.location(key), key.rpartition(".")[0]
    while group and not _below(group, invocation):
        group = group.rpartition(".")[0]
    keys = _below(group, invocation)
    value = _written(location, key)
    fix = f"delete it; `{invocation.command} --help` lists the keys."
    if near:
        fix = f"write\n{_as_lines(near, value)}" if location.in_file else f"--{near}={value}"
    return MisconfigurationException(
        f"{key!r}{location.text} is not {f'an argument of {group}' if group else f'a key of `{invocation.command}`'}."
        f"{f' Did you mean {near!r}?' if near else ''}",
        expected=f"one of {', '.join(keys)}."
        if 0 < len(keys) <= _MOST
        else f"a key that `{invocation.command} --help` lists.",
        fix=fix,
    )


def missing(names: Sequence[str], message: ParserMessage, invocation: Invocation) -> MisconfigurationException:
    """Return the error for required arguments, of the program or of a class."""
    if message.class_path:
        owner, path = invocation.without_verb(message.owner), message.class_path
        subject = f"{path}{invocation.location(owner, path).text} is missing {', '.join(map(repr, names))}."
        names = [f"{owner}.init_args.{name}" for name in names]
    else:
        verb = next((name.partition(".")[0] for name in names if name.partition(".")[0] in invocation.verbs), None)
        invocation = invocation.of_verb(verb)
        names = [invocation.without_verb(f"{message.key}.{name}" if message.key else name) for name in names]
        subject = f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} missing."
    lines = "\n".join(_as_lines(name, "…") for name in names)
    return MisconfigurationException(
        subject,
        expected="a value on the command line or in a configuration file.",
        fix=f"{invocation.command} {' '.join(f'--{plain(name)}=…' for name in names)}\n"
        f"  or, in a file for --config:\n{lines}",
    )


def _wrong_side(key: str, invocation: Invocation, right: str) -> MisconfigurationException:
    location = invocation.location(key)
    file = location.place.rpartition(", line ")[0] or "FILE"
    option = f"--config {file}" if location.in_file else f"--{key}={_written(location, key)}"
    return MisconfigurationException(
        f"{key!r}{location.text} is on the wrong side of the sub-command.",
        expected="options after the sub-command; --config before it for a file with its section, after it for another.",
        fix=f"{invocation.main.prog} {right.replace('--config FILE', option)}",
    )


def _unknown_argument(option: str, message: ParserMessage, invocation: Invocation) -> MisconfigurationException:
    """Return the error for an argument that a class does not have."""
    owner = invocation.without_verb(message.owner)
    key = owner if option == "class_path" else f"{owner}.init_args.{option}"
    location = invocation.location(key, message.value if message.nested else None)
    if option == "class_path":
        return MisconfigurationException(
            f"{plain(owner)}{location.text} has other keys next to `class_path`.",
            expected="class_path, init_args and dict_kwargs.",
            fix="indent the arguments of the class below `init_args:`.",
        )
    accepted = _accepted_by(message.class_path, invocation.skipped(owner))
    near = closest(option, accepted)
    near = "" if option.startswith(f"{near}.") else near  # a key below it is wrong
    value = message.value if message.nested else _written(location, key)
    other = assignment("class_path" if location.in_file else owner, "my_module.MyClass", location.in_file)
    return MisconfigurationException(
        f"{message.class_path} has no argument {option!r}{location.text}.{f' Did you mean {near!r}?' if near else ''}",
        expected=f"one of {', '.join(accepted)}." if accepted else "no arguments.",
        fix=assignment(f"{owner}.init_args.{near}", value or "…", location.in_file)
        if near
        else f"delete it; or name the class that has it first: {other}",
    )


def _accepted_by(class_path: str, skipped: set[str]) -> list[str]:
    """Return the names of the arguments that a class accepts in a configuration."""
    target = imported(class_path)
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    add: Any = parser.add_class_arguments if isinstance(target, type) else parser.add_function_arguments
    try:
        names = add(target, "x", fail_untyped=False, skip=skipped)
    except Exception:  # noqa: BLE001  # the list is an extra: a class that has none must not hide the mistake
        return []
    return sorted({name.split(".")[1] for name in names if "." in name})


def _below(group: str, invocation: Invocation) -> list[str]:
    """Return the keys directly below a group, or at the top."""
    start = f"{group}." if group else ""
    names = (key.removeprefix(start).partition(".")[0] for key in invocation.options() if key.startswith(start))
    return sorted(set(names) - {"print_config", "help"})


def _written(setting: Setting, key: str) -> str:
    """Return the value of a key as it is written; "…" for mappings, lists, missing values and other keys."""
    return (setting.written if setting.key == plain(key) else "") or "…"


def _as_lines(key: str, value: str) -> str:
    """Return a dotted key and its value as lines of YAML, indented as part of an error."""
    parts = key.split(".")
    lines = [f"{'  ' * (level + 2)}{part}:" for level, part in enumerate(parts)]
    return "\n".join([*lines[:-1], f"{lines[-1]} {value}"])
