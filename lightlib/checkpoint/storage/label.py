"""Label: which run wrote a checkpoint, and when in that run; read without reading the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

__all__ = ["Label"]


@dataclass(frozen=True)
class Label:
    """Which run wrote a checkpoint, and when.

    Attributes:
        run: The name of the run, drawn at its start and kept by every fit that continues it.
        serial: The number of this save within the run, from 1; of two at the same batch the later one is higher.
        epoch, batch, step: Where the run was: epochs completed, batches done in all, optimizer steps done.
        weights_only: Whether it holds no more than weights, so that no run can be resumed from it.

    Example:
        >>> Label(run="1f", serial=2, batch=20) > Label(run="1f", serial=1, batch=20)
        True
        >>> Label.of(Label(run="1f", step=7).as_dict()).step
        7
    """

    run: str = ""
    serial: int = 0
    epoch: int = 0
    batch: int = 0
    step: int = 0
    weights_only: bool = False

    @property
    def age(self) -> tuple[int, int]:
        """What checkpoints of one run are ordered by."""
        return self.batch, self.serial

    def __gt__(self, other: Label) -> bool:
        return self.age > other.age

    def __lt__(self, other: Label) -> bool:
        return self.age < other.age

    def as_dict(self) -> dict[str, Any]:
        """Return the label as plain values."""
        return asdict(self)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Label:
        """Return the label that `as_dict` gave, without what a newer version may have added.

        Raises:
            TypeError: A value has another type than it should.
        """
        kinds = {"str": str, "int": int, "bool": bool}
        known = {field.name: values[field.name] for field in fields(cls) if field.name in values}
        for field in fields(cls):
            if field.name in known and type(known[field.name]) is not kinds[str(field.type)]:
                raise TypeError(f"{field.name}={known[field.name]!r} in the label of a checkpoint")
        return cls(**known)
