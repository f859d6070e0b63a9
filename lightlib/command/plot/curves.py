"""Reads the learning curves of a run from metrics.csv and TensorBoard's event files."""

from __future__ import annotations

import csv
import math
import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from lightlib.errors import LightlibError, MisconfigurationException, closest
from lightlib.loggers import event_files, log_files
from lightlib.loggers.log_files import filesystem, is_url

_CSV_NAME, _EVENTS_MARK = "metrics.csv", "tfevents"
_DEPTH = 3  # as in logs/name/version_0
_MOST_NOTES = 5  # on broken lines of one file


@dataclass
class Run:
    """The logged values of one run."""

    name: str
    path: str
    curves: dict[str, dict[int, float]] = field(default_factory=dict)  # by metric and step, some NaN or infinite
    epoch_ends: dict[int, int] = field(default_factory=dict)  # by epoch, counted from 0: the last step logged in it
    seconds: dict[int, float] = field(default_factory=dict)  # by step: training time; only event files have it
    notes: list[str] = field(default_factory=list)  # defects of the files, and how each was handled
    _last: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, step: int, value: float, source: str) -> None:
        """Store one number; it replaces one of the same step."""
        if name == "epoch" and math.isfinite(value):
            self.epoch_ends[int(value)] = max(step, self.epoch_ends.get(int(value), step))
        elif name not in ("epoch", "step"):
            previous, self._last[name] = self._last.get(name, step), step
            self.curves.setdefault(name, {})[step] = value
            note = f"{source}: the steps go back"
            if step < previous and not any(present.startswith(note) for present in self.notes):
                self.notes.append(
                    f"{note}, first in {name!r} from {previous} to {step}; if a step was logged twice, the later value "
                    "counts."
                )

    def points(self, name: str) -> list[tuple[int, float]]:
        """Return the steps and values of a metric in the order of the steps."""
        return sorted(self.curves.get(name, {}).items())


# Finding


def find_runs(path: str) -> list[str]:
    """Return the folders and files that hold logs: `path` itself, or those below it."""
    path = path if is_url(path) else os.path.normpath(os.path.expanduser(path))
    if log_files.size_of(path) is not None:
        if not (path.endswith(".csv") or _EVENTS_MARK in os.path.basename(path)):
            raise MisconfigurationException(
                f"{path!r} is not a log of a run.",
                expected=f"a run's folder, a {_CSV_NAME}, or an event file of TensorBoard (events.out.tfevents.…).",
                fix=f"lightlib plot {os.path.dirname(path) or '.'}",
            )
        return [path]
    folders = list(_runs_below(path, _DEPTH))
    if not folders:
        parent, name = os.path.split(path.rstrip("/"))
        likely = closest(name, log_files.folder_names(parent or ".") + log_files.file_names(parent or "."))
        files, key = filesystem(path)
        exists = files.exists(key)
        near = f" Did you mean {os.path.join(parent, likely)!r}?" if likely and not exists else ""
        raise MisconfigurationException(
            f"{path!r} {'has no logs' if exists else 'does not exist'}.{near}",
            expected=f"{_CSV_NAME} (CSVLogger) or event files (TensorBoardLogger), {_DEPTH} folders deep.",
            fix="give the folder of a run; by default it is in lightning_logs/, where the run was started.",
        )
    return folders


def _runs_below(folder: str, depth: int) -> Iterator[str]:
    names = log_files.file_names(folder)
    if _CSV_NAME in names or any(_EVENTS_MARK in name for name in names):
        yield folder
    elif depth:
        for name in sorted(log_files.folder_names(folder), key=_natural):
            yield from _runs_below(log_files.below(folder, name), depth - 1)


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort key that puts version_2 before version_10."""
    return [(int(token), "") if token.isdecimal() else (-1, token) for token in re.split(r"(\d+)", name)]


# Reading


def read_run(path: str, name: str) -> Run:
    """Read the logs of one run. Damaged parts are left out and reported in the run's `notes`.

    In a folder with both kinds of logs a metric is taken from metrics.csv, which has all digits, and from the event
    files if it is only there.
    """
    run, from_events = Run(name, path), Run(name, path)
    try:
        if log_files.size_of(path) is None:
            names = sorted(event_files.sizes(path), key=lambda file: ("/" in file, file))
            # A version below a version is a run of its own.
            events = {file: log_files.below(path, file) for file in names if not re.match(r"version_\d+/", file)}
            table = log_files.below(path, _CSV_NAME) if _CSV_NAME in log_files.file_names(path) else None
        else:
            events, table = ({}, path) if path.endswith(".csv") else ({os.path.basename(path): path}, None)
        if table is not None:
            _read_csv(run, table)
        _read_events(from_events, events)
    except (OSError, csv.Error) as error:
        raise LightlibError(
            f"The logs in {path!r} cannot be read: {error}",
            expected="files that this user may read.",
            fix="look at the permissions of the folder and its files.",
        ) from error
    return Run(
        name,
        path,
        {**from_events.curves, **run.curves},
        run.epoch_ends or from_events.epoch_ends,
        from_events.seconds,
        run.notes + from_events.notes,
    )


def _open(path: str) -> BinaryIO:
    files, key = filesystem(path)
    file: BinaryIO = files.open(key, "rb")
    return file


# metrics.csv


def _read_csv(run: Run, path: str) -> None:
    with _open(path) as file:
        text = file.read().decode("utf-8-sig", errors="backslashreplace")
    if not text.strip():
        run.notes.append(f"{path} is empty.")
        return
    rest = text[text.rfind("\n") + 1 :]
    if rest:  # a truncated number still looks like a number
        run.notes.append(f"{path}: the last line is incomplete and is left out: {rest[:60]!r}")
        text = text[: -len(rest)]
    lines = text.split("\n")
    header = next(csv.reader(lines[:1]), [])
    if "step" not in header:
        raise MisconfigurationException(
            f"{path!r} has no column 'step'; its first line has {', '.join(map(repr, header[:8])) or 'nothing'}.",
            expected="a metrics.csv as CSVLogger writes it: a line of names with 'step', then lines of numbers.",
            fix="give the metrics.csv of a run.",
        )
    for name in sorted({name for name in header if header.count(name) > 1}):
        run.notes.append(f"{path}: several columns are named {name!r}; the last one that has a number counts.")
    broken: list[str] = []
    for number, line in enumerate(lines[1:], 2):
        if line.strip():
            broken += (f"{path}, line {number}: {defect}" for defect in _read_row(run, path, header, line.rstrip("\r")))
    run.notes.extend(broken[:_MOST_NOTES])
    if len(broken) > _MOST_NOTES:
        run.notes.append(f"{path}: {len(broken) - _MOST_NOTES} more like these.")


def _read_row(run: Run, path: str, header: list[str], line: str) -> Iterator[str]:
    """Read one line alone, so that a stray quote cannot swallow the next ones. Yield its defects."""
    try:
        cells = next(csv.reader([line])) if '"' in line else line.split(",")
    except csv.Error as error:
        yield f"left out, {error}."
        return
    if len(cells) != len(header):
        yield f"left out, it has {len(cells)} values for {len(header)} columns."
        return
    row: dict[str, float] = {}
    for name, cell in zip(header, cells, strict=True):
        if cell:
            try:
                row[name] = float(cell)
            except ValueError:
                yield f"{cell[:40]!r} in column {name!r} is not a number, left out."
    step = row.get("step", math.nan)
    if not math.isfinite(step):
        yield "left out, it has no step."
        return
    for name, value in row.items():
        run.add(name, int(step), value, path)


# Event files


def _read_events(run: Run, files: dict[str, str]) -> None:
    """Read event files in the order of their names, which begin with the second in which they were made."""
    idle, end = 0.0, None
    for name, path in files.items():
        folder, _, _ = name.rpartition("/")
        started = None
        for wall_time, step, scalars in _records(run, path):
            if not folder:
                if started is None:
                    started = wall_time
                    idle += started if end is None else max(0.0, started - end)
                end = max(wall_time, end or wall_time)
                if scalars:
                    run.seconds[step] = max(0.0, wall_time - idle)
            for tag, value in scalars:
                run.add(_full_name(tag, folder), step, value, path)
    hp_metric = run.curves.get("hp_metric")
    if hp_metric is not None and set(hp_metric.values()) == {-1.0}:
        del run.curves["hp_metric"]  # a placeholder that makes TensorBoard show its page of hyperparameters


def _full_name(tag: str, folder: str) -> str:
    """Return the metric's name. Curves of `add_scalars` share one tag, in folders named tag_curve."""
    if not folder:
        return tag
    return f"{tag}/{folder.removeprefix(tag.replace('/', '_') + '_')}"


def _records(run: Run, path: str) -> Iterator[tuple[float, int, list[tuple[str, float]]]]:
    """Yield time, step and numbers of each event. A record is: length, checksum, event, checksum."""
    try:
        from tensorboard.compat.proto.event_pb2 import Event  # type: ignore[import-untyped]  # optional: tensorboard
        from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import (  # type: ignore[import-untyped]  # optional: tensorboard
            masked_crc32c,
        )
    except ImportError as error:
        raise MisconfigurationException(
            f"Reading event files needs the package 'tensorboard', which cannot be imported: {error}",
            expected="'tensorboard' installed in this environment.",
            fix="pip install tensorboard, or give the metrics.csv of a run.",
        ) from error
    position, damaged = 0, 0
    with _open(path) as file:
        while head := file.read(12):
            length = struct.unpack("<Q", head[:8])[0] if len(head) == 12 else 0
            if len(head) == 12 and masked_crc32c(head[:8]) != struct.unpack("<I", head[8:])[0]:
                run.notes.append(f"{path}: damaged at byte {position}; the rest is not read.")
                break
            record = file.read(length + 4)
            if len(head) < 12 or len(record) < length + 4:
                run.notes.append(f"{path}: ends within an event, at byte {position}; the events before it are read.")
                break
            position += len(head) + len(record)
            event, scalars = Event(), []
            try:
                event.ParseFromString(record[:-4])
                scalars = [
                    (value.tag, number) for value in event.summary.value if (number := _number(value)) is not None
                ]
            except Exception:  # noqa: BLE001  # protobuf's DecodeError, whose place depends on its version
                damaged += 1
                continue
            # The checksum is slow in Python, so events without numbers, such as images, are not checked.
            if scalars and masked_crc32c(record[:-4]) != struct.unpack("<I", record[-4:])[0]:
                damaged += 1
            else:
                yield event.wall_time, event.step, scalars
    if damaged:
        run.notes.append(f"{path}: {damaged} {'event is' if damaged == 1 else 'events are'} damaged and left out.")


def _number(value: Any) -> float | None:
    """Return the number of a summary's value, in either of TensorBoard's two encodings; None if it is no number."""
    from tensorboard.util import tensor_util  # type: ignore[import-untyped]  # optional: tensorboard

    if value.WhichOneof("value") == "simple_value":
        return float(value.simple_value)
    if value.WhichOneof("value") != "tensor" or value.metadata.plugin_data.plugin_name not in ("scalars", ""):
        return None
    array = tensor_util.make_ndarray(value.tensor)
    return float(array) if array.shape == () and array.dtype.kind == "f" else None
