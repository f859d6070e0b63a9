"""`--until TIME` of workers: the time as a moment, and a stop at that moment."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date, datetime, time, timedelta

from lightlib.errors import MisconfigurationException

_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")
_CLOCK = re.compile(r"(\d{1,2}):(\d\d)(?::(\d\d))?")
_LOOK = 30.0  # seconds between two looks at the clock, which a sleep of the machine moves


def moment_of(text: str, now: datetime) -> datetime:
    """Return the moment that a text means, with its time zone.

    Args:
        text: A duration (``"90m"``, ``"2h30m"``, ``"1d"``), the next such time of the day (``"18:30"``), or a date with
            or without a time (``"2026-11-29T08:00"``), in the local time zone unless it has another one.
        now: With the local time zone.

    Raises:
        MisconfigurationException: It is none of these, or not after `now`.

    Example:
        >>> from datetime import timezone
        >>> moment_of("2h30m", datetime(2026, 11, 28, 12, tzinfo=timezone.utc)).isoformat()
        '2026-11-28T14:30:00+00:00'
    """
    try:
        moment = _parsed(text.strip(), now)
    except (ValueError, OverflowError, OSError):
        moment = None
    if moment is not None and moment > now:
        return moment
    problem = (
        "is no time" if moment is None else f"was at {moment:%Y-%m-%d %H:%M:%S}, and it is {now:%Y-%m-%d %H:%M:%S}"
    )
    raise MisconfigurationException(
        f"--until is {text!r}, which {problem}.",
        expected="a duration such as 90m, 2h30m or 1d, a time of the day such as 18:30, or a later date such as "
        f"{now + timedelta(days=1):%Y-%m-%dT08:00}.",
        fix=f"--until {text.strip()}m, for minutes" if text.strip().isdecimal() and int(text) else "--until 2h30m",
    )


def _parsed(text: str, now: datetime) -> datetime | None:
    parts = _DURATION.fullmatch(text.replace(" ", ""))
    if text and parts is not None:
        days, hours, minutes, seconds = (int(group or 0) for group in parts.groups())
        return now + timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    clock = _CLOCK.fullmatch(text)
    if clock is None:
        return datetime.fromisoformat(re.sub("[zZ]$", "+00:00", text)).astimezone()
    hour, minute, second = (int(group or 0) for group in clock.groups())
    at = time(hour, minute, second)
    today = _on(now.date(), at)
    return today if today > now else _on(now.date() + timedelta(days=1), at)


def _on(day: date, at: time) -> datetime:
    return datetime.combine(day, at).astimezone()


@contextmanager
def calling_at(moment: datetime | None, call: Callable[[], None]) -> Iterator[None]:
    """Call a function at a moment, from a thread, unless this block has ended before.

    Args:
        moment: With its time zone. None: never.
        call: The function.
    """
    if moment is None:
        yield
        return
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            left = (moment - datetime.now().astimezone()).total_seconds()
            if left <= 0:
                call()
                return
            over.wait(min(left, _LOOK))

    thread = threading.Thread(target=watch, name="lightlib until", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
