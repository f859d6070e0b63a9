"""AdvancedProfiler: which functions each action spends its time in, by cProfile."""

from __future__ import annotations

import os
import pstats
from cProfile import Profile
from io import StringIO

from lightlib import safe_files
from lightlib.errors import wrong_value
from lightlib.profilers.profiler import Profiler, not_started, started_twice


class AdvancedProfiler(Profiler):
    """Measures every function call, per action. Python runs several times slower meanwhile.

    Python runs one profiler at a time: calls in a nested action are listed under that action only.

    Args:
        dirpath: The folder of the files; the trainer's `log_dir` when only `filename` is given.
        filename: The start of the files' names. Without both arguments the summary is shown at the end.
        line_count_restriction: How much is shown per action: a share of the lines (a float up to 1) or a number of them
            (an int). Default: 1.0, all.
        dump_stats: Also write the statistics as ``.prof`` files, which `pstats` and snakeviz read. Default: False.

    Raises:
        MisconfigurationException: `line_count_restriction` is not above 0, or a float above 1.

    Example:
        >>> profiler = AdvancedProfiler(line_count_restriction=5)
        >>> with profiler.profile("sort"):
        ...     numbers = sorted(range(100), key=lambda x: -x)
        >>> "Profile of sort" in profiler.summary()
        True
    """

    default_filename = "advanced"

    def __init__(
        self,
        dirpath: str | os.PathLike[str] | None = None,
        filename: str | None = None,
        line_count_restriction: float = 1.0,
        dump_stats: bool = False,
    ) -> None:
        super().__init__(dirpath, filename)
        whole = isinstance(line_count_restriction, int) or line_count_restriction > 1
        if line_count_restriction <= 0 or (whole and line_count_restriction % 1):
            expected = "a share of the lines, 0.0 < x <= 1.0, or a number of lines, an int >= 1"
            raise wrong_value("AdvancedProfiler", "line_count_restriction", line_count_restriction, expected, 20)
        self.line_count_restriction = int(line_count_restriction) if whole else line_count_restriction
        self.dump_stats = dump_stats
        self.profiled_actions: dict[str, Profile] = {}
        self._running: list[str] = []
        self._over = False

    def setup(self, stage: str, local_rank: int | None = None, log_dir: str | None = None) -> None:
        super().setup(stage, local_rank, log_dir)
        if self._over:  # the measurements belong to the previous run
            self.profiled_actions.clear()
            self._over = False

    def start(self, action_name: str) -> None:
        if action_name in self._running:
            raise started_twice(action_name)
        if self._running:
            self.profiled_actions[self._running[-1]].disable()
        self._running.append(action_name)
        self.profiled_actions.setdefault(action_name, Profile()).enable()

    def stop(self, action_name: str) -> None:
        if action_name not in self._running:
            raise not_started(action_name, self._running)
        self.profiled_actions[self._running[-1]].disable()
        self._running.remove(action_name)
        if self._running:
            self.profiled_actions[self._running[-1]].enable()

    def summary(self) -> str:
        parts = []
        for name, profile in self.profiled_actions.items():
            text = StringIO()
            statistics = pstats.Stats(profile, stream=text).strip_dirs().sort_stats("cumulative")
            statistics.print_stats(self.line_count_restriction)
            parts.append(f"Profile of {name}\n{text.getvalue().strip()}")
        return "\n\n".join(parts)

    def describe(self) -> None:
        super().describe()
        if self.dump_stats:
            for name, profile in self.profiled_actions.items():
                with safe_files.exporting(self.path_of(name, ".prof")) as place:
                    profile.dump_stats(place)

    def teardown(self, stage: str | None) -> None:
        if self._running:
            self.profiled_actions[self._running[-1]].disable()
        self._running.clear()
        self._over = True
