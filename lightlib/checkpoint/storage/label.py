"""Label: the run that wrote a checkpoint, and its position; readable without the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Label:
    """The run that wrote a checkpoint, and its position.

    Attributes:
        run: The name of the run, drawn at its start and kept by every fit that resumes it.
        serial: The number of this save within the run, from 1; of two saves at the same batch the later is higher.
        epoch, batch, step: The position of the run: completed epochs, batches in total, optimizer steps.
        weights_only: Whether it holds only weights, so that no run can be resumed from it.

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
        """The sort key of the checkpoints of one run."""
        return self.batch, self.serial

    def __gt__(self, other: Label) -> bool:
        return self.age > other.age

    def as_dict(self) -> dict[str, Any]:
        """Return the label as plain values."""
        return asdict(self)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Label:
        """Return the label from the values of `as_dict`; ignore values that a newer version may have added."""
        kinds = {"str": str, "int": int, "bool": bool}
        fields_present = {field.name: values[field.name] for field in fields(cls) if field.name in values}
        for field in fields(cls):
            if field.name in fields_present and type(fields_present[field.name]) is not kinds[str(field.type)]:
                raise TypeError(f"{field.name}={fields_present[field.name]!r} in the label of a checkpoint")
        return cls(**fields_present)
