"""lightlib, from this repository."""

from __future__ import annotations

from functools import partial

import lightlib as framework
from benchmarks.peers import lightning_style

__all__ = ["predict", "train", "train_with_defaults", "validate"]

train = partial(lightning_style.train, framework)
train_with_defaults = partial(lightning_style.train_with_defaults, framework)
validate = partial(lightning_style.validate, framework)
predict = partial(lightning_style.predict, framework)
