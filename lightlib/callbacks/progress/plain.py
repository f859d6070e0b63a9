"""PlainProgressBar: a line of text now and then, for logs, pipes and terminals without colour."""

from __future__ import annotations

import sys

from lightlib.callbacks.progress.text import Moment, line
from lightlib.callbacks.progress.timed import TimedProgressBar
from lightlib.errors import wrong_value


class PlainProgressBar(TimedProgressBar):
    """Progress as lines: one every `interval` seconds at most, the first after a second, and one for every epoch.

    A validation within training has a line of its own only when it takes longer than `interval`: one each `interval`
    seconds from its start.

    Args:
        interval: Seconds between two lines. Default: 10.

    Raises:
        MisconfigurationException: `interval` is not above 0.

    Example:
        >>> PlainProgressBar(interval=60.0).is_enabled
        True
    """

    leave = True

    def __init__(self, interval: float = 10.0) -> None:
        super().__init__()
        if not interval > 0:
            fix = "PlainProgressBar(interval=10.0), or Trainer(enable_progress_bar=False) for none."
            raise wrong_value("PlainProgressBar", "interval", interval, "seconds above 0", fix=fix)
        self.seconds_between_draws = interval
        self.seconds_before_first = min(1.0, interval)
        self.seconds_before_nested = interval

    def draw(self, stage: str, moment: Moment) -> None:
        sys.stdout.write(line(moment) + "\n")
        sys.stdout.flush()

    def close(self, stage: str, moment: Moment | None) -> None:
        if moment is not None:
            self.draw(stage, moment)

    def leave_epoch(self, moment: Moment) -> None:
        self.draw("train", moment)
