"""The names of checkpoint files: templates filled with metrics, which never lead out of their folder."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import torch

from lightlib.errors import MisconfigurationException

__all__ = ["check_template", "fields", "fill", "may_be"]

_FIELD = re.compile(r"\{([^{}:]*)(?::([^{}]*))?\}")
_NOT_IN_A_NAME = re.compile(r'[\x00-\x1f/\\<>:"|?*]')
_WRITTEN_NUMBER = r"[-+0-9.,_%eEnaifNAIF]*"


def fields(template: str) -> list[str]:
    """Return the names of the metrics in a template.

    Example:
        >>> fields("{epoch}-{step}-{val/loss:.2f}")
        ['epoch', 'step', 'val/loss']
    """
    return [match[1] for match in _FIELD.finditer(template)]


def fill(template: str, metrics: Mapping[str, Any], *, insert_names: bool = True, equals: str = "=") -> str:
    """Return `template` with its fields replaced by the metrics; a metric that is not there is written as "nan".

    Characters that separate folders, or that some systems forbid in names, become "_" in what the metrics contribute.

    Raises:
        MisconfigurationException: A number cannot be written as the field says.

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
    """Whether `fill` may have made `name` of `template`, with a version behind it or none.

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
