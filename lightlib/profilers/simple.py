"""SimpleProfiler: how often each action ran and how long it took."""

from __future__ import annotations

import os
from array import array
from time import monotonic, perf_counter

from lightlib.profilers.bottleneck import table
from lightlib.profilers.profiler import Profiler, RunFacts, not_started, started_twice
from lightlib.profilers.step_times import StepTimes


class SimpleProfiler(Profiler):
    """Measures the duration of every action by the wall clock.

    On a GPU, where work is only queued, the time of an action is that of queueing it; see `PyTorchProfiler`.

    Args:
        dirpath: The folder of the summary; the trainer's `log_dir` when only `filename` is given.
        filename: The start of the summary's file name. Without both arguments the summary is shown at the end.
        extended: Show also the number of calls and the share of the run's time. Default: True.

    Example:
        >>> profiler = SimpleProfiler()
        >>> with profiler.profile("sum"):
        ...     total = sum(range(10))
        >>> len(profiler.recorded_durations["sum"])
        1
    """

    default_filename = "simple"

    def __init__(
        self, dirpath: str | os.PathLike[str] | None = None, filename: str | None = None, extended: bool = True
    ) -> None:
        super().__init__(dirpath, filename)
        self.extended = extended
        self.current_actions: dict[str, float] = {}
        self.recorded_durations: dict[str, array[float]] = {}
        self.start_time = monotonic()
        self.step_times = StepTimes()
        self._facts = RunFacts()
        self._over = False

    def start(self, action_name: str) -> None:
        if action_name in self.current_actions:
            raise started_twice(action_name)
        self.current_actions[action_name] = now = perf_counter()
        self.step_times.start(action_name, now)

    def stop(self, action_name: str) -> None:
        end = perf_counter()
        if action_name not in self.current_actions:
            raise not_started(action_name, self.current_actions)
        duration = end - self.current_actions.pop(action_name)
        self.recorded_durations.setdefault(action_name, array("d")).append(duration)
        self.step_times.stop(action_name, end)

    def setup(self, stage: str, local_rank: int | None = None, log_dir: str | None = None) -> None:
        super().setup(stage, local_rank, log_dir)
        if self._over:  # the measurements belong to the previous run
            self.recorded_durations.clear()
            self.step_times = StepTimes()
            self._over = False
        if not self.current_actions and not self.recorded_durations:
            self.start_time = monotonic()

    def summary(self) -> str:
        passed = monotonic() - self.start_time
        actions = sorted(self.recorded_durations.items(), key=lambda action: sum(action[1]), reverse=True)
        calls = sum(len(times) for _, times in actions)
        rows = [["Action", "Mean duration (s)", "Calls", "Total time (s)", "Percentage %"]]
        rows += [["Total", "-", str(calls), f"{passed:.5g}", "100"]] if self.extended else []
        for name, times in actions:
            total = sum(times)
            numbers = f"{total / len(times):.5g}", str(len(times)), f"{total:.5g}", f"{100 * total / passed:.5g}"
            rows.append([name, *numbers])
        if not self.extended:
            rows = [[name, mean, total] for name, mean, _, total, _ in rows]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        titles, *shown = [" | ".join(map(str.ljust, row, widths)) for row in rows]
        lines = ["Profile (an action contains those that run within it)", titles, "-" * len(titles), *shown]
        lines += ["", *parts] if (parts := table(self.step_times, self._facts)) else []
        return "\n".join(line.rstrip() for line in lines)

    def inspect(self, facts: RunFacts) -> None:
        self._facts = facts

    def teardown(self, stage: str | None) -> None:
        self.current_actions.clear()
        self._over = True
