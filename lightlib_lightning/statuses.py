"""How lightlib stands to each public name of Lightning: reads statuses.json."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from importlib import resources
from typing import Any

__all__ = ["anchor", "entries", "sections", "written"]

# How a name of a section is written in a program; otherwise it is the name itself.
_FORMS = {
    "Trainer arguments": "Trainer({}=…)",
    "Trainer methods": "trainer.{}",
    "Trainer properties": "trainer.{}",
    "Module methods": "Module.{}",
    "Module properties": "Module.{}",
    "DataModule": "DataModule.{}",
    "Callback": "Callback.{}",
    "Fabric arguments": "Fabric({}=…)",
    "strategy names": 'strategy="{}"',
    "precision names": 'precision="{}"',
    "fabric": "lightning.fabric: {}",
}


@functools.cache
def sections() -> dict[str, dict[str, Any]]:
    """Return the entries of all names, by section.

    Example:
        >>> sections()["Trainer methods"]["fit"]["status"]
        'different'
    """
    table = json.loads(resources.files(__package__).joinpath("statuses.json").read_text("utf-8"))
    return {name: content for name, content in table.items() if isinstance(content, dict) and name != "statuses"}


def written(section: str, name: str) -> str:
    """Return how a name is written in a program.

    Example:
        >>> written("Trainer arguments", "plugins"), written("Timer members", "start_time")
        ('Trainer(plugins=…)', 'Timer.start_time')
    """
    owner = f"{section.removesuffix(' members')}.{{}}" if section.endswith(" members") else "{}"
    return _FORMS.get(section, owner).format(name)


def entries() -> Iterator[tuple[str, str, str]]:
    """Yield status, name and reason of every name that is not the same, with arguments of methods and classes."""
    for section, names in sections().items():
        for name, entry in names.items():
            shown = written(section, name)
            if entry["status"] != "same":
                yield entry["status"], shown, entry["why"]
            for argument, status in entry.get("arguments", {}).items():
                if "why" in status:
                    yield status["status"], f"{shown}({argument}=…)", status["why"]


@functools.cache
def _anchors() -> dict[tuple[str, str], str]:
    anchors: dict[tuple[str, str], str] = {}
    for status, name, why in entries():
        slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        anchors.setdefault((status, why), f"{status}-{slug}")
    return anchors


def anchor(status: str, why: str) -> str:
    """Return the anchor of a reason's row in docs/names.md; empty if it has none.

    Example:
        >>> anchor("different", sections()["Callback"]["teardown"]["why"])
        'different-callback-teardown'
    """
    return _anchors().get((status, why), "")
