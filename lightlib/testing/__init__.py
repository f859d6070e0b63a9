"""For packages that extend lightlib: conformance tests of their plugins, and a small module."""

from __future__ import annotations

from lightlib.testing.accelerator import check_accelerator
from lightlib.testing.axis import check_axis
from lightlib.testing.callback import check_callback
from lightlib.testing.logger import check_logger
from lightlib.testing.module import BoringModule
from lightlib.testing.strategy import CHECKS, check_strategy

__all__ = [
    "CHECKS",
    "BoringModule",
    "check_accelerator",
    "check_axis",
    "check_callback",
    "check_logger",
    "check_strategy",
]
