"""The callbacks that a Trainer adds by itself."""

from __future__ import annotations

import pytest

from lightlib.callbacks import (
    ModelSummary,
    PlainProgressBar,
    RichModelSummary,
    RichProgressBar,
)
from lightlib.core.trainer import Trainer


@pytest.mark.parametrize(
    ("bar", "summary"), [(RichProgressBar, RichModelSummary), (PlainProgressBar, ModelSummary), (None, ModelSummary)]
)
def test_the_summary_is_drawn_as_the_bar_is(bar, summary):
    made = Trainer(accelerator="cpu", callbacks=[bar()] if bar else None, enable_progress_bar=bar is not None)
    assert [type(one) for one in made.callbacks if isinstance(one, ModelSummary)] == [summary]
