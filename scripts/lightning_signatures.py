"""Adds names and arguments of Lightning's utilities, plugins and Fabric to statuses.json.

Run it with an interpreter whose environment has Lightning: `python scripts/lightning_signatures.py`. Entries that are
there are kept; new ones get the status same.
"""

from __future__ import annotations

import importlib
import inspect
import json
import warnings
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "lightlib_lightning"
WRITTEN = FOLDER / "statuses.json"
# Sections by Lightning's package; a name is listed for the first one that has it.
SECTIONS = ("pytorch.utilities", "pytorch.plugins", "fabric.utilities", "fabric.plugins", "fabric")


def arguments_of(value: object) -> dict[str, Any] | None:
    """Return the arguments of a function or class as in statuses.json; None if it has no signature."""
    if not (inspect.isfunction(value) or inspect.isclass(value)) or issubclass_of_enum(value):
        return None
    try:
        parameters = [p for p in inspect.signature(value).parameters.values() if p.name not in ("self", "cls")]
    except (TypeError, ValueError):
        return None
    return {written(p): default_of(p) for p in parameters}


def issubclass_of_enum(value: object) -> bool:
    """Whether it is an enumeration or a protocol: their constructors are not called."""
    return inspect.isclass(value) and (hasattr(value, "__members__") or getattr(value, "_is_protocol", False))


def written(parameter: inspect.Parameter) -> str:
    """Return the name with its stars."""
    stars = {inspect.Parameter.VAR_POSITIONAL.name: "*", inspect.Parameter.VAR_KEYWORD.name: "**"}
    return f"{stars.get(parameter.kind.name, '')}{parameter.name}"


def default_of(parameter: inspect.Parameter) -> dict[str, Any]:
    """Return the entry of an argument."""
    if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        return {}
    if parameter.default is inspect.Parameter.empty:
        return {"required": True}
    plain = parameter.default is None or type(parameter.default) in (bool, int, float, str)
    return {"default": parameter.default} if plain else {}


def found() -> dict[str, dict[str, Any]]:
    """Return the entries of all sections, of names that are defined in or exported by Lightning's package."""
    names = json.loads((FOLDER / "lightning_2_6.json").read_text(encoding="utf-8"))
    sections: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for path in sorted(names, key=lambda path: (path.count("."), path)):
        section = next((one for one in SECTIONS if path == one or path.startswith(f"{one}.")), None)
        if section is None:
            continue
        module = importlib.import_module(f"lightning.{path}")
        for name in names[path].split():
            value = getattr(module, name)
            home = getattr(value, "__module__", None)
            exported = name in getattr(module, "__all__", ())
            if not exported and home != module.__name__ and isinstance(home, str):
                continue
            entry: dict[str, Any] = {"status": "same", "in": path}
            arguments = arguments_of(value)
            if arguments is not None:
                entry["arguments"] = arguments
            sections[section].setdefault(name, entry)
    return sections


def text_of(table: dict[str, Any]) -> str:
    """Return the file's text: one line for each name."""
    parts = []
    for section, content in table.items():
        if isinstance(content, dict):
            rows = ",\n".join(
                f"    {json.dumps(name)}: {json.dumps(entry, ensure_ascii=False)}" for name, entry in content.items()
            )
            parts.append(f"  {json.dumps(section)}: {{\n{rows}\n  }}")
        else:
            parts.append(f"  {json.dumps(section)}: {json.dumps(content, ensure_ascii=False)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> None:
    """Add the missing names."""
    table = json.loads(WRITTEN.read_text(encoding="utf-8"))
    for section, entries in found().items():
        kept = table.setdefault(section, {})
        for name, entry in entries.items():
            kept.setdefault(name, entry)
    WRITTEN.write_text(text_of(table), encoding="utf-8")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
