"""CheckpointNames: names of checkpoint files, from templates that are filled with metrics."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from lightlib.checkpoint.storage import filesystem
from lightlib.errors import MisconfigurationException

_FIELD = re.compile(r"\{\{|\}\}|\{([^{}:]*)(?::([^{}]*))?\}")  # a doubled brace is a brace
_NOT_IN_A_NAME = re.compile(r'[\x00-\x1f/\\<>:"|?*]')
_WRITTEN_NUMBER = r"[-+0-9.,_%eEnaifNAIF]*"


@dataclass(frozen=True)
class CheckpointNames:
    """The names that one callback gives to its files.

    Attributes:
        folder: Where they are; None while it is unknown.
        template: Of the names of all checkpoints but the last one. Doubled braces stand for braces.
        last: The template of the last checkpoint.
        insert_names: Whether ``{epoch}`` becomes ``epoch=3`` or ``3``.
        equals, join: What stands between a metric's name and its value, and between the parts of a name.
        ending: The extension.

    Example:
        >>> names = CheckpointNames("runs", "{epoch}-{val/loss:.2f}", "last", True, "=", "-", ".ckpt")
        >>> names.path({"epoch": 3, "val/loss": 0.1234}, version=1)
        'runs/epoch=3-val_loss=0.12-v1.ckpt'
        >>> names.is_ranked("runs/epoch=3-val_loss=0.12.ckpt"), names.is_ranked("runs/last.ckpt")
        (True, False)
    """

    folder: str | None
    template: str
    last: str
    insert_names: bool
    equals: str
    join: str
    ending: str

    @property
    def depth(self) -> int:
        """How many folders the template makes below `folder`."""
        return self.template.count("/")

    def path(
        self,
        metrics: Mapping[str, Any],
        template: str | None = None,
        version: int | None = None,
        prefix: str | None = None,
    ) -> str:
        """Return the path of a checkpoint with these metrics; a missing one is written as "nan".

        In names and values of metrics, characters that separate folders or that some systems forbid become "_".

        Raises:
            MisconfigurationException: A number does not fit its format.
        """
        template = template or self.template
        name, place = "", 0
        for match in _FIELD.finditer(template):
            name += template[place : match.start()]
            if match[1] is None:
                name += match[0][0]
            else:
                value = metrics.get(match[1], math.nan)
                value = value.item() if isinstance(value, torch.Tensor) else value
                try:
                    text = "nan" if math.isnan(value) else format(value, match[2] or "")
                except ValueError as error:
                    raise _misfit(match, value, template, error) from error
                name += _NOT_IN_A_NAME.sub("_", f"{match[1]}{self.equals}{text}" if self.insert_names else text)
            place = match.end()
        name += template[place:]
        versions = [f"v{version}"] if version is not None else []
        file = self.join.join([*([prefix] if prefix else []), name, *versions]) + self.ending
        return filesystem.join(self.folder, file) if self.folder else file

    def is_last(self, path: str) -> bool:
        """Whether `path` may be a last checkpoint of this callback."""
        return self._matches(path, self.last)

    def is_ranked(self, path: str) -> bool:
        """Whether `path` may be another checkpoint of this callback, and not the last one."""
        return not self.is_last(path) and self._matches(path, self.template)

    def may_be_of_callback(self, path: str) -> bool:
        """Whether `path` may be any checkpoint of this callback."""
        return self.is_last(path) or self.is_ranked(path)

    def _matches(self, path: str, template: str) -> bool:
        """Whether `path` may be a filled `template`, with or without a version after it."""
        pattern, place = re.escape(filesystem.join(self.folder or "", "")), 0
        for match in _FIELD.finditer(template):
            pattern += re.escape(template[place : match.start()])
            if match[1] is None:
                pattern += re.escape(match[0][0])
            else:
                metric = _NOT_IN_A_NAME.sub("_", f"{match[1]}{self.equals}") if self.insert_names else ""
                pattern += re.escape(metric) + _WRITTEN_NUMBER
            place = match.end()
        pattern += re.escape(template[place:])
        return re.fullmatch(rf"{pattern}({re.escape(self.join)}v\d+)?({re.escape(self.ending)})?", path) is not None


def _misfit(match: re.Match[str], value: Any, template: str, error: ValueError) -> MisconfigurationException:
    return MisconfigurationException(
        f"The metric {match[1]!r} = {value!r} does not fit {match[0]!r} in the file name {template!r}: {error}.",
        expected="a format that fits the number, such as {epoch:03d} or {val_loss:.2f}.",
        fix="change the format in ModelCheckpoint(filename=…).",
    )


def fields(template: str) -> list[str]:
    """Return the names of the metrics in a template.

    Example:
        >>> fields("{epoch}-{step}-{val/loss:.2f}")
        ['epoch', 'step', 'val/loss']
    """
    return [match[1] for match in _FIELD.finditer(template) if match[1] is not None]


def check_template(template: str) -> None:
    """Check that no file of this name can leave its folder.

    Raises:
        MisconfigurationException: The template is an absolute path, goes upwards, or holds a NUL.
    """
    plain = _FIELD.sub("x", template).replace("\\", "/")
    if "\0" in plain:
        raise MisconfigurationException(
            f"ModelCheckpoint(filename={template!r}) holds the character NUL.",
            expected="the name of a file, which has no such character.",
            fix=f"ModelCheckpoint(filename={template.replace(chr(0), '')!r})",
        )
    if plain.startswith("/") or ".." in plain.split("/") or re.match(r"[A-Za-z]:", plain):
        raise MisconfigurationException(
            f"ModelCheckpoint(filename={template!r}) leads out of the folder of checkpoints.",
            expected="a name relative to dirpath.",
            fix="give the folder as ModelCheckpoint(dirpath=…) and only the name as filename.",
        )
