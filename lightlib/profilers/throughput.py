"""Throughput: batches, samples, items and operations per second over a window of updates."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from lightlib.errors import MisconfigurationException, check_int, check_type


class _Update(NamedTuple):
    time: float
    batches: int
    samples: int
    lengths: int | None
    flops: float | None


class Throughput:
    """Computes rates from the totals of a loop: of this process, and of all processes if there are several.

    Rates are those between the oldest and the latest of the last `window_size` updates, so :meth:`compute` has them
    only once that many were made. Padding counts as work in items and operations.

    Args:
        available_flops: Operations per second that this process's devices can do at most, for the utilization (MFU).
        world_size: The number of processes.
        window_size: How many updates a rate spans. Default: 100.
        separator: Follows ``device`` in the names of this process's rates. Default: ``/``.
        data_size: The number of processes that read different data, if some work on the same batch. Default:
            `world_size`.

    Raises:
        ArgumentTypeError: `world_size`, `window_size` or `data_size` is no int, or `separator` no string.
        MisconfigurationException: `world_size` or `data_size` is below 1, or `window_size` below 2.

    Example:
        >>> throughput = Throughput(world_size=2, window_size=2)
        >>> for done in (1, 2):
        ...     throughput.update(time=0.5 * done, batches=done, samples=8 * done)
        >>> rates = throughput.compute()
        >>> rates["device/samples_per_sec"], rates["samples_per_sec"], rates["time"]
        (16.0, 32.0, 1.0)
    """

    def __init__(
        self,
        available_flops: float | None = None,
        world_size: int = 1,
        window_size: int = 100,
        separator: str = "/",
        *,
        data_size: int | None = None,
    ) -> None:
        super().__init__()
        check_int("Throughput", "world_size", world_size, 1)
        check_int("Throughput", "window_size", window_size, 2)
        if data_size is not None:
            check_int("Throughput", "data_size", data_size, 1)
        check_type("Throughput", "separator", separator, str, "a string", '"/"')
        self.available_flops, self.world_size, self.separator = available_flops, world_size, separator
        self.data_size = world_size if data_size is None else data_size
        self._updates: deque[_Update] = deque(maxlen=window_size)

    def update(
        self, *, time: float, batches: int, samples: int, lengths: int | None = None, flops: float | None = None
    ) -> None:
        """Add the totals of this process so far.

        Args:
            time: Seconds since the loop began.
            batches: Batches so far.
            samples: Samples so far.
            lengths: Items so far, such as tokens.
            flops: Operations since the last update, not in total.

        Raises:
            ValueError: A total has not increased, or there are fewer samples than batches or fewer items than samples.
        """
        update = _Update(time, batches, samples, lengths, flops)
        last = self._updates[-1] if self._updates else None
        for name in ("time", "batches", "samples", "lengths"):
            now, before = getattr(update, name), getattr(last, name, None)
            if now is not None and before is not None and now <= before:
                raise _wrong(f"{name}={now!r} after {before!r}", "a total that increases with every update.")
        if samples < batches:
            raise _wrong(f"samples={samples!r} with batches={batches!r}", "at least as many samples as batches.")
        if lengths is not None and lengths < samples:
            raise _wrong(f"lengths={lengths!r} with samples={samples!r}", "at least as many items as samples.")
        self._updates.append(update)

    def compute(self) -> dict[str, float]:
        """Return totals and rates by name: ``time``, ``batches``, ``samples`` and ``lengths`` of this process so far.

        With a full window also ``device/batches_per_sec``, ``device/samples_per_sec``, ``device/items_per_sec``,
        ``device/flops_per_sec`` and ``device/mfu``, as far as they are known, and with several processes the rates of
        all of them, without ``device/``.
        """
        if not self._updates:
            return {}
        first, last = self._updates[0], self._updates[-1]
        metrics: dict[str, float] = {"time": last.time, "batches": last.batches, "samples": last.samples}
        if last.lengths is not None:
            metrics["lengths"] = last.lengths
        if len(self._updates) != self._updates.maxlen:
            return metrics
        seconds = last.time - first.time
        rates = {"batches": last.batches - first.batches, "samples": last.samples - first.samples}
        if last.lengths is not None and first.lengths is not None:
            rates["items"] = last.lengths - first.lengths
        for name, count in rates.items():
            metrics |= self._rate(name, count / seconds, self.data_size)
        known_flops = [update.flops for update in self._updates if update.flops is not None]
        if len(known_flops) == len(self._updates):
            rate = sum(known_flops[1:]) / seconds  # those of the first one were done before it
            metrics |= self._rate("flops", rate, self.world_size)
            if self.available_flops:
                metrics[f"device{self.separator}mfu"] = rate / self.available_flops
        return metrics

    def reset(self) -> None:
        """Forget all updates."""
        self._updates.clear()

    def _rate(self, name: str, rate: float, processes: int) -> dict[str, float]:
        full = f"{name}_per_sec"
        of_all = {full: rate * processes} if self.world_size > 1 else {}
        return {f"device{self.separator}{full}": rate, **of_all}


def _wrong(argument: str, expected: str) -> MisconfigurationException:
    return MisconfigurationException(
        f"Throughput.update got {argument}.", expected=expected, fix="pass the totals since the loop began."
    )
