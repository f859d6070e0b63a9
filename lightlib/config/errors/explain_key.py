"""Errors about keys, options and sub-commands: misspelt, missing, or in a wrong place."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import NamedTuple

from lightlib.config.errors import explain_class
from lightlib.config.errors.invocation import Invocation, plain
from lightlib.config.errors.parser_message import ParserMessage
from lightlib.errors import MisconfigurationException, nearest

__all__ = ["Case", "choice", "linked", "no_mapping", "no_value", "no_verb", "required", "unknown_key", "unrecognized"]


class Case(NamedTuple):
    """A text that was recognised: its parts, the reason it is, and what was asked for."""

    found: dict[str, str]
    said: ParserMessage
    asked: Invocation


def unknown_key(case: Case) -> MisconfigurationException:
    """A key that nothing has: misspelt, or at the wrong level, or before the sub-command."""
    found, said, asked = case.found, case.said, case.asked
    option = f"{found['group']}.{found['option']}" if found.get("group") else found["option"]
    if said.class_path:
        return explain_class.unknown_argument(option, said, asked)
    asked.verb = found.get("verb") or asked.verb
    section = option.partition(".")[0]
    if found.get("verb") and section in asked.verbs:
        spot = asked.spot(section)
        return MisconfigurationException(
            f"{section!r}{spot.text} is the section of a sub-command, but the file was given after {found['verb']!r}.",
            expected=f"--config before {found['verb']}; or, in a file after it, all keys without `{section}:`.",
            fix=f"{asked.main.prog} --config {_file_of(spot.text)} {found['verb']}",
        )
    key = asked.without_verb(f"{said.key}.{option}" if said.key else option)
    early = found.get("before") or (asked.parser is asked.main and asked.verbs and not found.get("verb"))
    if early and (key in asked.options() or key.partition(".")[0] in _groups(asked)):
        spot = asked.spot(key)
        return MisconfigurationException(
            f"{key!r}{spot.text} is a key of the sub-command, but the file was given before it.",
            expected=f"--config after {asked.verb}; or, in a file before it, all keys below `{asked.verb}:`.",
            fix=f"{asked.main.prog} {asked.verb} --config {_file_of(spot.text)}",
        )
    return _no_such_key(key, asked)


def _no_such_key(key: str, asked: Invocation) -> MisconfigurationException:
    near, options = asked.nearest_key(key), asked.options()
    parts, meant = key.split("."), near.split(".")
    known_to = (
        at for at in range(len(parts)) if not any(f"{one}.".startswith(_first(parts, at + 1)) for one in options)
    )
    level = next(known_to, len(parts) - 1)
    wrong, group = ".".join(parts[: level + 1]), ".".join(parts[:level])
    if near and meant[-1] == parts[-1] and len(meant) != len(parts):
        wrong, group = key, ""  # the name is right, and stands at the wrong level
    spot, known = asked.spot(wrong), _below(group, asked)
    if not near:
        hint, fix = "", f"delete it; `{asked.command} --help` lists what there is."
    elif len(meant) != len(parts):
        hint = f" Did you mean {near!r}?"
        fix = f"write\n{_as_lines(near, explain_class.as_yaml(asked.value(key)))}" if spot.in_file else f"--{near}=…"
    else:
        hint = f" Did you mean {meant[level]!r}?"
        value = explain_class.as_yaml(asked.value(key)) if level == len(parts) - 1 else ""
        fix = f"{meant[level]}: {value}".rstrip() if spot.in_file else f"--{near}=…"
    where = f"an argument of {group}" if group else f"a key of `{asked.command}`"
    return MisconfigurationException(
        f"{wrong!r}{spot.text} is not {where}.{hint}",
        expected=f"one of {', '.join(known)}." if len(known) <= 12 else f"what `{asked.command} --help` lists.",
        fix=fix,
    )


def _first(parts: list[str], count: int) -> str:
    return ".".join(parts[:count]) + "."


def unrecognized(case: Case) -> MisconfigurationException:
    """Words of the command line that belong to nothing."""
    found, said, asked = case.found, case.said, case.asked
    words = found["words"].split()
    option, equals, value = words[0].partition("=")
    key = option.lstrip("-").removesuffix("+")
    if said.class_path and words[0].startswith("-"):
        return explain_class.unknown_argument(key, said, asked)
    if not words[0].startswith("-"):
        return _left_over(words, asked)
    if asked.parser is asked.main and asked.verbs:
        verb = asked.verb or next(iter(asked.verbs))
        asked.verb = verb
        if key.partition(".")[0] in _groups(asked):
            rest = [word for word in words if word != verb]
            return MisconfigurationException(
                f"{option} stands before the sub-command." if verb in asked.argv else f"{option} has no sub-command.",
                expected=f"the sub-command first: {', '.join(asked.verbs)}.",
                fix=f"put the sub-command first: {asked.main.prog} {verb} {' '.join(rest)}",
            )
    if key in _COMPLETION:
        return _completion(option, value if equals else next(iter(words[1:2]), "shtab-bash"), asked)
    near = asked.nearest_key(key)
    value = value if equals else next((word for word in words[1:2] if not word.startswith("-")), "…")
    return MisconfigurationException(
        f"{option} is not an option of `{asked.command}`.{f' Did you mean --{near}?' if near else ''}",
        expected=f"an option that `{asked.command} --help` lists.",
        fix=f"--{near}={value}" if near else "delete it.",
    )


def _left_over(words: list[str], asked: Invocation) -> MisconfigurationException:
    if words[0] in asked.verbs:
        return MisconfigurationException(
            f"{words[0]!r} is a second sub-command.",
            expected="one sub-command in a command line.",
            fix=f"{asked.command} …, and then {asked.main.prog} {words[0]} …",
        )
    left = ", ".join(repr(word) for word in words)
    options = [f"--{word}" for word in words if re.match(r"[\w.]+=", word)]
    one = len(words) == 1
    return MisconfigurationException(
        f"{left} {'belongs' if one else 'belong'} to no option.",
        expected="`--option value` or `--option=value`; a value with spaces in quotes.",
        fix=" ".join(options) if options else f"delete {'it' if one else 'them'}, or write the option before.",
    )


def required(case: Case) -> MisconfigurationException:
    """Something must be given and was not."""
    found, said, asked = case.found, case.said, case.asked
    names = [name.strip() for name in found["names"].split(",")]
    if said.class_path:
        return explain_class.missing_arguments(names, said, asked)
    asked.verb = next((name.partition(".")[0] for name in names if name.partition(".")[0] in asked.verbs), asked.verb)
    names = [asked.without_verb(f"{said.key}.{name}" if said.key else name) for name in names]
    values = ["my_module.MyClass" if _is_class(name, asked) else "…" for name in names]
    flags = " ".join(f"--{name}={value}" for name, value in zip(names, values, strict=True))
    lines = "\n".join(
        _as_lines(f"{name}.class_path" if value.startswith("my") else name, value)
        for name, value in zip(names, values, strict=True)
    )
    return MisconfigurationException(
        f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} missing.",
        expected="a value on the command line or in a configuration file.",
        fix=f"{asked.command} {flags}\n  or, in a file for --config:\n{lines}",
    )


def no_verb(case: Case) -> MisconfigurationException:
    """No sub-command was given."""
    asked = case.asked
    first = next(iter(asked.verbs), "fit")
    return MisconfigurationException(
        "The sub-command is missing.",
        expected=f"one of {', '.join(asked.verbs)}.",
        fix=f"{asked.main.prog} {first} {' '.join(asked.argv)}".rstrip(),
    )


def choice(case: Case) -> MisconfigurationException:
    """A value, or a sub-command, that is not one of those there are."""
    found, said, asked = case.found, case.said, case.asked
    value = found["value"].strip("'\"")
    choices = re.findall(r"[^\s,'\"()\[\]]+", found["choices"]) or ["…"]
    name = found.get("name") or f"--{plain(asked.without_verb(said.key))}"
    if name.lstrip("-") in _COMPLETION:
        return _completion(f"--{name.lstrip('-')}", value, asked)
    near = nearest(value, choices)
    meant = re.search(r"'(.+)'", near)
    if name == "subcommand":
        rest = " ".join(word for word in asked.argv if word != value)
        return MisconfigurationException(
            f"{value!r} is not a sub-command.{near}",
            expected=f"one of {', '.join(choices)}.",
            fix=f"{asked.main.prog} {meant[1] if meant else choices[0]} {rest}".rstrip(),
        )
    spot = asked.spot(name.lstrip("-"), value)
    return MisconfigurationException(
        f"{name.lstrip('-')} got {value!r}{spot.text}.{near}",
        expected=f"one of {', '.join(choices)}.",
        fix=f"{name}={meant[1] if meant else choices[0]}",
    )


_COMPLETION = ("print_completion", "print_shtab")


def _completion(option: str, value: str, asked: Invocation) -> MisconfigurationException:
    """The script that completes options was asked for without the package that makes it, or behind a sub-command."""
    shell = re.search("bash|zsh|tcsh", value)
    kind = (
        f"shtab-{shell[0] if shell else 'bash'}" if option.endswith("completion") else (shell[0] if shell else "bash")
    )
    call = f"{asked.main.prog} {option}={kind}"
    if find_spec("shtab") is None:
        return MisconfigurationException(
            f"{option} got {value!r}, but the package shtab, which makes the script, is not installed.",
            expected="shtab.",
            fix=f"pip install shtab, and then {call}",
        )
    return MisconfigurationException(
        f"{option} got {value!r}{f' after {asked.verb!r}' if asked.verb else ''}.",
        expected="it alone, without a sub-command, and with the name of a shell.",
        fix=call,
    )


def linked(case: Case) -> MisconfigurationException:
    """An argument that a program fills from another one was given itself."""
    found, asked = case.found, case.asked
    target, source = asked.without_verb(found["target"]), asked.without_verb(found["source"])
    spot = asked.spot(target)
    value = next((flag.value for flag in asked.flags if flag.key == target and flag.value), None)
    return MisconfigurationException(
        f"{target} was given{spot.text}, but this program fills it from {source}.",
        expected=f"{source} alone.",
        fix=f"--{source.partition(',')[0]}={value or '…'}",
    )


def no_value(case: Case) -> MisconfigurationException:
    """An option without a value."""
    found, asked = case.found, case.asked
    spellings = found["option"].split("/")
    option = next((one for one in spellings if one in asked.argv), spellings[-1])
    at = next((at for at, word in enumerate(asked.argv) if word == option), None)
    following = asked.argv[at + 1] if at is not None and at + 1 < len(asked.argv) else ""
    negative = following.startswith("-") and not following.startswith("--")
    return MisconfigurationException(
        f"{option} has no value.",
        expected=f"`{option} VALUE` or `{option}=VALUE`.",
        fix=f"{option}={following}" if negative else f"write the value behind it, or delete {option}.",
    )


def no_mapping(case: Case) -> MisconfigurationException:
    """A single value where a group of arguments was asked for."""
    found, said, asked = case.found, case.said, case.asked
    key = asked.without_verb(said.key)
    some = _below(key, asked)
    name = some[0] if some else "name"
    spot = asked.spot(key, found["value"])
    return MisconfigurationException(
        f"{key} got {found['value']!r}{spot.text}, but it is a group of arguments.",
        expected=f"a mapping of the arguments of {key}, or the path of a YAML file that holds one.",
        fix=f"write\n{_as_lines(f'{key}.{name}', '…')}" if spot.in_file else f"--{key}.{name}=…",
    )


def _below(group: str, asked: Invocation) -> list[str]:
    """Return the names that stand directly below a group, or at the top."""
    start = f"{group}." if group else ""
    names = (key.removeprefix(start).partition(".")[0] for key in asked.options() if key.startswith(start))
    return sorted(set(names) - {"print_config", "help"})


def _groups(asked: Invocation) -> set[str]:
    return {key.partition(".")[0] for key in asked.options()}


def _is_class(key: str, asked: Invocation) -> bool:
    kind = getattr(asked.action(key), "_typehint", None)
    kinds = [kind, *getattr(kind, "__args__", ())]
    return any(isinstance(one, type) and one.__module__ not in ("builtins", "datetime", "pathlib") for one in kinds)


def _as_lines(key: str, value: str) -> str:
    """Return a dotted key and its value as lines of YAML, indented as part of an error."""
    parts = key.split(".")
    lines = [f"{'  ' * (level + 2)}{part}:" for level, part in enumerate(parts)]
    return "\n".join([*lines[:-1], f"{lines[-1]} {value}"])


def _file_of(spot: str) -> str:
    found = re.match(r" \((.+), line \d+\)", spot)
    return found[1] if found else "FILE"
