"""PretendAccelerator passes lightlib's conformance tests, and the Trainer finds it by its name."""

from __future__ import annotations

import pytest
from lightlib_pretend import PretendAccelerator

import lightlib as L
from lightlib.errors import MisconfigurationException
from lightlib.testing import BoringModule, check_accelerator


def test_it_conforms() -> None:
    """Every check of the kit passes."""
    check_accelerator(PretendAccelerator)


def test_the_trainer_finds_it_by_its_name() -> None:
    """The entry point makes the name known, and the run states its hardware."""
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = L.Trainer(accelerator="pretend", devices=1, max_steps=2, **quiet)
    trainer.fit(BoringModule())
    assert isinstance(trainer.accelerator, PretendAccelerator)
    assert trainer.global_step == 2


def test_cards_that_are_not_there() -> None:
    """The error states the value and the valid numbers."""
    with pytest.raises(MisconfigurationException, match=r"devices=3 was given(?s:.)*a number from 1 to 2"):
        L.Trainer(accelerator="pretend", devices=3)
