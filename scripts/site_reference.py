"""Makes the pages of the reference: API, Trainer arguments, hooks, YAML keys and the command line.

Each page is reStructuredText, as docstrings are; those of the API leave the text to Sphinx's autodoc.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import docstring_parser

from lightlib import Module, Trainer
from lightlib.callbacks import Callback
from lightlib.cli import LightningCLI
from lightlib.command.main import HELP, RUNS, commands, parser_of
from lightlib.core.run.hooks import HOOKS, STEPS
from lightlib.index import INDEX, MODULE
from scripts.site_pages import GENERATED, decisions

# By page: its title, and what it is about.
OVERVIEWS = {
    f"{GENERATED}/api": ("API", "Every public class and function, by package"),
    f"{GENERATED}/trainer-arguments": ("Arguments of the Trainer", "Every argument, its default and its meaning"),
    f"{GENERATED}/hooks": ("Hooks", "Every method that a module or a callback may define"),
    f"{GENERATED}/command-line": ("Command line", "Every command of `lightlib` and its options"),
    f"{GENERATED}/yaml-keys": ("YAML keys", "Every key of a configuration file"),
}


class _ParsersOnly(LightningCLI):
    """Makes the parsers of the command line and ends before it reads words."""

    def __init__(self) -> None:
        self.parsers: dict[str, argparse.ArgumentParser] = {}
        try:
            super().__init__()
        except InterruptedError:
            self.parsers = dict(self._subcommand_parsers)

    def parse_arguments(self, *_: Any) -> None:
        raise InterruptedError


def write(docs: Path) -> None:
    """Write the pages below `docs`, and remove those of names that are gone."""
    pages = dict(all_pages())
    for old in (docs / GENERATED).glob("*.rst"):
        if f"{GENERATED}/{old.stem}" not in pages:
            old.unlink()
    for page, text in pages.items():
        path = docs / f"{page}.rst"
        path.parent.mkdir(exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:  # an unchanged page is not read again
            path.write_text(text, encoding="utf-8")


def all_pages() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each page."""
    areas = public_names()
    yield f"{GENERATED}/api", api_page(areas)
    yield f"{GENERATED}/trainer-arguments", arguments_page()
    yield f"{GENERATED}/hooks", hooks_page()
    yield f"{GENERATED}/command-line", commands_page()
    yield f"{GENERATED}/yaml-keys", keys_page()
    yield f"{GENERATED}/decisions", decisions_page()
    places = home_of_each(areas)
    for area, names in areas.items():
        yield f"{GENERATED}/{area}", area_page(area, names, places)
        for name in names:
            if places[area, name] == f"{area}.{name}":
                yield f"{GENERATED}/{area}.{name}", object_page(area, name)


def public_names() -> dict[str, list[str]]:
    """Return the public names of each package of the index, and of each module that it names."""
    areas = {package: [row.name for row in rows if row.file != MODULE] for package, rows in INDEX.items()}
    for package, rows in INDEX.items():
        for row in rows:
            area = f"{package}.{row.name}"
            if row.file == MODULE and area not in areas:
                areas[area] = list(importlib.import_module(area).__all__)
    return dict(sorted(areas.items()))


def home_of_each(areas: Mapping[str, Sequence[str]]) -> dict[tuple[str, str], str]:
    """Return where each name is documented: an object with several names under the first of them."""
    homes: dict[int, str] = {}
    found = {}
    for area in sorted(areas, key=lambda area: (area.count("."), area)):
        for name in areas[area]:
            value = value_of(area, name)
            own = f"{area}.{name}"
            shared = isinstance(value, type) or inspect.isroutine(value)
            called = getattr(value, "__name__", name) == name
            found[area, name] = homes.setdefault(id(value), own) if shared and called else own
    return found


def value_of(area: str, name: str) -> Any:
    """Return a public object."""
    return getattr(importlib.import_module(area), name)


def undocumented() -> list[str]:
    """Return the public names without a docstring, and the public methods that lightlib defines without one."""
    places = home_of_each(public_names())
    objects = {place: value_of(area, name) for (area, name), place in places.items() if place == f"{area}.{name}"}
    documented = {
        place: value for place, value in objects.items() if isinstance(value, type) or inspect.isroutine(value)
    }
    for place, value in list(documented.items()):
        for name, member in vars(value).items() if isinstance(value, type) else ():
            called = getattr(member, "__name__", name) == name  # a lambda is a value, which the class describes
            if name[0] != "_" and called and (inspect.isroutine(member) or isinstance(member, property)):
                documented[f"{place}.{name}"] = getattr(value, name)
    return [place for place, value in documented.items() if not inspect.getdoc(value)]


def api_page(areas: Mapping[str, Sequence[str]]) -> str:
    """Return the page that lists the packages."""
    rows = [(f":doc:`{area}`", first_line(importlib.import_module(area)), str(len(areas[area]))) for area in areas]
    text = "Every public name, by the package from which it is imported."
    tree = ".. toctree::\n   :hidden:\n\n" + indented("\n".join(areas))
    return page("API", text, table(("package", "about", "names"), rows), tree)


def area_page(area: str, names: Sequence[str], places: Mapping[tuple[str, str], str]) -> str:
    """Return the page of a package: its docstring and its names."""
    rows = [(f":doc:`{name} <{places[area, name]}>`", about(area, name)) for name in names]
    documentation = inspect.getdoc(importlib.import_module(area)) or ""
    return page(area, f".. py:module:: {area}", documentation, table(("name", "about"), rows))


def about(area: str, name: str) -> str:
    """Return the line about a name in the table of its package."""
    value = value_of(area, name)
    return first_line(value) if isinstance(value, type) or inspect.isroutine(value) else f"``{short(repr(value))}``"


def object_page(area: str, name: str) -> str:
    """Return the page of a class, a function or a constant."""
    value = value_of(area, name)
    kind = "autoclass" if isinstance(value, type) else "autofunction" if inspect.isroutine(value) else "autodata"
    options = {
        "autoclass": "   :members:\n   :show-inheritance:\n",
        "autofunction": "",
        "autodata": "   :no-value:\n",
    }[kind]
    if kind == "autoclass" and (others := documented_ancestors(value)):
        options += f"   :inherited-members: {', '.join(others)}\n"
    return ":orphan:\n\n" + page(name, f".. py:currentmodule:: {area}", f".. {kind}:: {area}.{name}\n{options}")


def documented_ancestors(value: type) -> list[str]:
    """Return the names of the ancestors with pages of their own, and of those from other packages.

    Nothing, if those of lightlib all have: then no member has to be documented again.
    """
    public = {id(value_of(area, name)) for area, names in public_names().items() for name in names}
    ancestors = value.__mro__[1:]
    private = [one for one in ancestors if one.__module__.startswith("lightlib.") and id(one) not in public]
    return sorted({one.__name__ for one in ancestors if one not in private}) if private else []


def arguments_page() -> str:
    """Return the page of the Trainer's arguments."""
    documented = docstring_parser.parse(inspect.getdoc(Trainer) or "", docstring_parser.DocstringStyle.GOOGLE)
    meanings = {each.arg_name: each.description or "" for each in documented.params}
    defaults = inspect.signature(Trainer).parameters
    rows = [(f"``{name}``", f"``{given.default!r}``", meanings[name]) for name, given in defaults.items()]
    text = "All are keyword-only. In a configuration file each is a key below ``trainer:``."
    return page("Arguments of the Trainer", text, table(("argument", "default", "meaning"), rows))


def hooks_page() -> str:
    """Return the page of the hooks and steps."""
    rows = []
    for name in (*STEPS, "configure_optimizers", *HOOKS):
        owners = [kind for kind in (Module, Callback) if hasattr(kind, name)]
        where = ", ".join(f":py:meth:`{kind.__name__} <lightlib.{kind.__name__}.{name}>`" for kind in owners)
        if owners:
            rows.append((f"``{name}``", where, first_line(getattr(owners[-1], name))))
    text = (
        "In the order in which they fire, which :doc:`/lifecycle` draws. ``print(trainer.hooks)`` lists those of a run."
    )
    return page("Hooks", text, table(("hook", "method of", "when"), rows))


def commands_page() -> str:
    """Return the page of the commands."""
    runs = heading("lightlib fit, validate, test, predict", "-")
    keys = (
        "Their options are the keys of a configuration file: ``--trainer.max_epochs 3``. :doc:`yaml-keys` lists them."
    )
    sections = [section for name in commands() for section in command_sections(parser_of(name))]
    overview = f".. code-block:: text\n\n{indented(HELP.replace('{plugins}', ''))}"
    assert set(RUNS) == {"fit", "validate", "test", "predict"}
    return page("Command line", ":doc:`/cli` is the guide.", overview, runs, keys, *sections)


def command_sections(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the section of a command, and those of its subcommands."""
    yield heading(parser.prog, "-")
    yield f".. code-block:: text\n\n{indented(parser.format_help())}"
    for action in parser._actions:  # noqa: SLF001  argparse has no public list of its options
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for subparser in action.choices.values():
                yield from command_sections(subparser)


def keys_page() -> str:
    """Return the page of the keys of a configuration file."""
    parsers = _ParsersOnly().parsers
    rows = [(f"``{key}``", f"``{default}``", meaning) for key, default, meaning in keys_of(parsers["fit"])]
    more = {
        verb: [key for key, *_ in keys_of(parsers[verb]) if f"``{key}``" not in {row[0] for row in rows}]
        for verb in RUNS[1:]
    }
    others = "\n".join(f"- {verb}: {', '.join(f'``{key}``' for key in keys)}" for verb, keys in more.items() if keys)
    text = (
        "A key with dots is nested: ``trainer.max_epochs`` is ``max_epochs:`` below ``trainer:``. On the command line "
        "it is an option, ``--trainer.max_epochs 3``. ``model``, ``data``, ``optimizer`` and ``lr_scheduler`` take a "
        "``class_path`` and ``init_args``. :doc:`/cli` is the guide."
    )
    return page(
        "YAML keys", text, heading("fit", "-"), table(("key", "default", "meaning"), rows),
        heading("Only for other commands", "-"), others,
    )  # fmt: skip


def keys_of(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str, str]]:
    """Yield the key, the default and the meaning of each option that a configuration file may hold."""
    for action in parser._actions:  # noqa: SLF001  argparse has no public list of its options
        if action.default != argparse.SUPPRESS and action.dest != "config":
            yield action.dest, str(action.default), action.help or ""


def decisions_page() -> str:
    """Return the page that lists the decision records."""
    records = "\n".join(f"- :doc:`/decisions/{record.stem}`" for record in decisions())
    return page("Decisions", "Why lightlib is built as it is.", records)


def overview_as_text() -> str:
    """Return each public object with its signature and docstring, as Markdown for language models."""
    areas = public_names()
    places = home_of_each(areas)
    parts = ["# API"]
    for (area, name), place in places.items():
        value = value_of(area, name)
        if place == f"{area}.{name}" and (isinstance(value, type) or inspect.isroutine(value)):
            parts.append(f"## {place}\n\n```text\n{name}{signature(value)}\n\n{inspect.getdoc(value)}\n```")
    return "\n\n".join(parts)


def signature(value: Any) -> str:
    """Return the signature of an object, or nothing if it has none."""
    try:
        return str(inspect.signature(value))
    except ValueError:
        return ""


def first_line(value: type | ModuleType | Any) -> str:
    """Return the first paragraph of a docstring as one line."""
    return " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split())


def short(text: str) -> str:
    """Return the start of a text that is too long for a table."""
    return text if len(text) <= 60 else f"{text[:57]}..."


def page(title: str, *blocks: str) -> str:
    """Return a page with a title."""
    return "\n\n".join([heading(title, "="), *(block.strip("\n") for block in blocks if block)]) + "\n"


def heading(text: str, line: str) -> str:
    """Return a heading."""
    return f"{text}\n{line * len(text)}"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; its cells are reStructuredText."""
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for row in (heads, *rows):
        for i, cell in enumerate(row):
            text = re.sub(r"\s*\n\s*", " ", cell) or " "
            lines.append(f"   {'* -' if i == 0 else '  -'} {text}".rstrip())
    return "\n".join(lines)


def indented(text: str) -> str:
    """Return a text as the content of a directive."""
    return "\n".join(f"   {line}".rstrip() for line in text.splitlines())
