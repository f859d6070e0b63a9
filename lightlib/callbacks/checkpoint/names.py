"""CheckpointNames: names of checkpoint files, from templates that are filled with metrics."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from lightlib.checkpoint.storage import filesystem
from lightlib.errors import MisconfigurationException

__all__ = ["CheckpointNames", "check_template", "fields", "fill", "free_name", "may_be"]

_FIELD = re.compile(r"\{([^{}:]*)(?::([^{}]*))?\}")
_NOT_IN_A_NAME = re.compile(r'[\x00-\x1f/\\<>:"|?*]')
_WRITTEN_NUMBER = r"[-+0-9.,_%eEnaifNAIF]*"


@dataclass(frozen=True)
class CheckpointNames:
    """The names that one callback gives to its files.

    Attributes:
        folder: Where they are; None while it is unknown.
        template: Of the names; None for the default one.
        last: The template of the last checkpoint.
        insert_names: Whether ``{epoch}`` becomes ``epoch=3`` or ``3``.
        equals, join: What stands between a metric's name and its value, and between the parts of a name.
        ending: The extension.

    Example:
        >>> names = CheckpointNames("runs", "{epoch}", "last", True, "=", "-", ".ckpt")
        >>> names.path({"epoch": 3}, version=1), names.is_ranked("runs/epoch=3.ckpt"), names.is_ranked("runs/last.ckpt")
        ('runs/epoch=3-v1.ckpt', True, False)
    """

    folder: str | None
    template: str | None
    last: str
    insert_names: bool
    equals: str
    join: str
    ending: str

    @property
    def depth(self) -> int:
        """How many folders the template makes below `folder`."""
        return (self.template or "").count("/")

    @property
    def ranked_template(self) -> str:
        """The template of all checkpoints but the last one."""
        return self.template or f"{{epoch}}{self.join}{{step}}"

    def path(
        self,
        metrics: Mapping[str, Any],
        template: str | None = None,
        version: int | None = None,
        prefix: str | None = None,
    ) -> str:
        """Return the path of a checkpoint with these metrics.

        Raises:
            MisconfigurationException: A number does not fit its format.
        """
        name = fill(template or self.ranked_template, metrics, insert_names=self.insert_names, equals=self.equals)
        versions = [f"v{version}"] if version is not None else []
        file = self.join.join([*([prefix] if prefix else []), name, *versions]) + self.ending
        return filesystem.join(self.folder, file) if self.folder else file

    def is_last(self, path: str) -> bool:
        """Whether `path` may be a last checkpoint of this callback."""
        return self._matches(path, self.last)

    def is_ranked(self, path: str) -> bool:
        """Whether `path` may be another checkpoint of this callback, and not the last one."""
        return not self.is_last(path) and self._matches(path, self.ranked_template)

    def may_be_ours(self, path: str) -> bool:
        """Whether `path` may be any checkpoint of this callback."""
        return self.is_last(path) or self.is_ranked(path)

    def last_files(self, folder: str) -> set[str]:
        """Return the files in `folder` that may be last checkpoints, of this run or an earlier one."""
        start = self.last.partition("{")[0]
        return {
            filesystem.join(folder, name)
            for name in filesystem.names_in(folder)
            if name.startswith(start) and name.endswith(self.ending)
        }

    def _matches(self, path: str, template: str) -> bool:
        start = filesystem.join(self.folder or "", "")
        return path.startswith(start) and may_be(
            path[len(start) :].removesuffix(self.ending),
            template,
            insert_names=self.insert_names,
            equals=self.equals,
            join=self.join,
        )


def free_name(
    name: Callable[..., str], is_free: Callable[[str], bool], broadcast: Callable[[str], str], first_version: int | None
) -> str:
    """Return the first free name: without a version, or with the lowest one. All processes call this.

    Args:
        name: Returns a name; ``name(ver=1)`` one with a version.
        is_free: Whether a file may be written under a name.
        broadcast: Returns rank zero's name on all ranks.
        first_version: The lowest version; None: take the name even if it is not free.
    """
    path, version = broadcast(name()), first_version
    while version is not None and not is_free(path):
        path = broadcast(name(ver=version))
        version += 1
    return path


def fields(template: str) -> list[str]:
    """Return the names of the metrics in a template.

    Example:
        >>> fields("{epoch}-{step}-{val/loss:.2f}")
        ['epoch', 'step', 'val/loss']
    """
    return [match[1] for match in _FIELD.finditer(template)]


def fill(template: str, metrics: Mapping[str, Any], *, insert_names: bool = True, equals: str = "=") -> str:
    """Return `template` with its fields replaced by the metrics; a missing metric is written as "nan".

    In names and values of metrics, characters that separate folders or that some systems forbid in names become "_".

    Raises:
        MisconfigurationException: A number does not fit the format of its field.

    Example:
        >>> fill("{epoch}-{val/loss:.2f}", {"epoch": 3, "val/loss": 0.1234})
        'epoch=3-val_loss=0.12'
        >>> fill("{epoch:02d}", {"epoch": 3}, insert_names=False)
        '03'
    """

    def value_of(match: re.Match[str]) -> str:
        name, form = match[1], match[2] or ""
        value = metrics.get(name, float("nan"))
        value = value.item() if isinstance(value, torch.Tensor) else value
        try:
            text = "nan" if math.isnan(value) else format(value, form)
        except ValueError as error:
            raise MisconfigurationException(
                f"The metric {name!r} = {value!r} does not fit {match[0]!r} in the file name {template!r}: {error}.",
                expected="a format that fits the number, such as {epoch:03d} or {val_loss:.2f}.",
                fix="change the format in ModelCheckpoint(filename=…).",
            ) from error
        return _NOT_IN_A_NAME.sub("_", f"{name}{equals}{text}" if insert_names else text)

    return _FIELD.sub(value_of, template)


def may_be(name: str, template: str, *, insert_names: bool = True, equals: str = "=", join: str = "-") -> bool:
    """Whether `name` may be a filled `template`, with or without a version after it.

    Example:
        >>> may_be("epoch=3-val_loss=0.12-v1", "{epoch}-{val/loss:.2f}"), may_be("mine", "{epoch}-{step}")
        (True, False)
    """
    pattern, place = "", 0
    for match in _FIELD.finditer(template):
        metric = _NOT_IN_A_NAME.sub("_", f"{match[1]}{equals}") if insert_names else ""
        pattern += re.escape(template[place : match.start()]) + re.escape(metric) + _WRITTEN_NUMBER
        place = match.end()
    pattern += re.escape(template[place:])
    return re.fullmatch(rf"{pattern}({re.escape(join)}v\d+)?", name) is not None


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
