"""NeptuneLogger: raises an error that explains why it was removed."""

from __future__ import annotations

from typing import Any

from lightlib.errors import MisconfigurationException
from lightlib.loggers.logger import DummyLogger


class NeptuneLogger(DummyLogger):
    """Cannot be used: neptune.ai has closed its service.

    Raises:
        MisconfigurationException: Always.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        raise MisconfigurationException(
            "NeptuneLogger cannot be used: neptune.ai has closed its service, so there is no server to log to.",
            expected="a logger whose service exists.",
            fix="use TensorBoardLogger or CSVLogger for files, AimLogger for a page, or WandbLogger for a service.",
        )
