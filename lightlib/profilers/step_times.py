"""StepTimes: the time of training by category, each second counted once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

NEXT_BATCH = "[TrainData].next"
RUN_BATCH = "run_training_batch"
SAVE = "save_checkpoint"
VALIDATE = "run_validation"

# In the order in which they are shown, with what they mean.
CATEGORIES = {
    "data": "waiting for the next batch",
    "transfer": "moving batches to the device",
    "forward": "training_step",
    "backward": "gradients, with their synchronization",
    "optimizer": "optimizer steps",
    "hooks": "callbacks, and hooks of the module",
    "logging": "loggers",
    "checkpoints": "collecting and writing them",
    "validation": "loops over the validation loaders, with their data and hooks",
    "the rest": "clearing and clipping gradients, schedules, lightlib itself",
}
_OF_OPTIMIZER = (".optimizer_step", ".configure_gradient_clipping", ".lr_scheduler_step", ".optimizer_zero_grad")
_INSEPARABLE = (SAVE, VALIDATE)  # what runs within them is part of them


@cache
def category_of(action: str) -> str | None:
    """Return the category of an action that the Trainer measures; None for other names.

    Example:
        >>> category_of("[LightningModule]Net.training_step"), category_of("my own block")
        ('forward', None)
    """
    categories = {NEXT_BATCH: "data", RUN_BATCH: "the rest", SAVE: "checkpoints", VALIDATE: "validation"}
    if action in categories:
        return categories[action]
    kind = action.partition("]")[0] + "]"
    if action.endswith(".batch_to_device"):
        return "transfer"
    if action.endswith(".backward"):
        return "backward"
    if kind == "[LightningModule]" and action.endswith(".training_step"):
        return "forward"
    if kind == "[Optimizer]" or (kind == "[LightningModule]" and action.endswith(_OF_OPTIMIZER)):
        return "optimizer"
    return {"[LightningModule]": "hooks", "[Callback]": "hooks", "[Logger]": "logging"}.get(kind)


@dataclass(slots=True)
class _Running:
    name: str
    began: float
    inner: float = 0.0  # seconds of the actions within it

    def add_inner(self, seconds: float) -> None:
        self.inner += seconds


class StepTimes:
    """Sums up how long each action took without the actions within it, from the second training batch on.

    The first one also starts workers, allocates memory, compiles and imports, so it is kept apart. Actions of other
    names count for the action around them.

    Attributes:
        first: Seconds of the first batch, with the wait for it.
        seconds: By action, without the actions within it.
        batches: How many training batches were measured.

    Example:
        >>> times = StepTimes()
        >>> for name, start, stop in 2 * (("[TrainData].next", 0.0, 3.0), ("run_training_batch", 3.0, 4.0)):
        ...     at = 4.0 * (times.first > 0)
        ...     times.start(name, at + start)
        ...     times.stop(name, at + stop)
        >>> times.total, times.by_category()["data"], times.by_category()["the rest"]
        (4.0, 3.0, 1.0)
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.batches = 0
        self.first = 0.0
        self._running: list[_Running] = []
        self._began: float | None = None
        self._ended = 0.0
        self._warm = False  # the first batch is over

    @property
    def total(self) -> float:
        """Seconds from the end of the first training batch to the end of the last action."""
        return 0.0 if self._began is None or not self._warm else max(0.0, self._ended - self._began)

    def start(self, action: str, now: float) -> None:
        if category_of(action) is None or (self._running and self._running[-1].name in _INSEPARABLE):
            return
        if self._began is None:
            if action not in (NEXT_BATCH, RUN_BATCH):
                return
            self._began = now
        self._running.append(_Running(action, now))

    def stop(self, action: str, now: float) -> None:
        if not any(running.name == action for running in self._running):
            return
        while (ended := self._running.pop()).name != action:
            pass  # an exception has left it open
        duration = now - ended.began
        if self._running:
            self._running[-1].add_inner(duration)
        own_seconds = max(0.0, duration - ended.inner)
        self.seconds[action] = self.seconds.get(action, 0.0) + own_seconds
        self.batches += action == RUN_BATCH
        self._ended = now
        if action == RUN_BATCH and not self._warm:
            self._end_first(now)

    def _end_first(self, now: float) -> None:
        assert self._began is not None
        self.first, self._began, self._warm = now - self._began, now, True
        self.batches, self.seconds = 0, {}

    def by_category(self) -> dict[str, float]:
        """Return the seconds of each category; "the rest" is the remainder of `total`."""
        sums = dict.fromkeys(CATEGORIES, 0.0)
        for action, seconds in self.seconds.items():
            category = category_of(action)
            if category is not None and category != "the rest":
                sums[category] += seconds
        sums["the rest"] = max(0.0, self.total - sum(sums.values()))
        return sums

    def longest(self, category: str) -> str:
        """Return the action that took longest in a category; empty if there is none."""
        of_it = {name: seconds for name, seconds in self.seconds.items() if category_of(name) == category}
        return max(of_it, key=lambda name: of_it[name], default="")
