"""Lightning's names in the tests of this folder."""

from __future__ import annotations

import pytest

from lightlib import compat


@pytest.fixture(autouse=True)
def as_lightning():
    """Switch compat on for one test."""
    compat.install()
    yield
    compat.uninstall()
