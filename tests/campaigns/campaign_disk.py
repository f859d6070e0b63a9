"""Disk campaign: a save that fills the disk at any byte loses no checkpoint, and the run resumes."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lightlib.checkpoint import formats
from lightlib.checkpoint.storage import filesystem
from lightlib.errors import CheckpointWriteError
from tests.campaigns.full_disk import Disk, Limit, Tmpfs, in_tmpfs, tmpfs_allowed
from tests.campaigns.short_run import At, checkpoints, differences, state_of, train, weights_in

FULL_AT = 8  # the save after this step fills the disk
TMPFS = 64 * 2**20
REASONS = ("No space left on device", "File too large", "Input/output error")


def contents(folder: str) -> dict[str, bytes]:
    """Return every file below a folder, hidden ones included, but not the lock and ballast files."""
    files = [
        path for path in Path(folder).rglob("*") if path.is_file() and path.name not in (".lightlib.lock", ".ballast")
    ]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def positions(size: int, count: int) -> list[int]:
    """Return `count` positions within `size` bytes: the first and the last ones, and between them evenly."""
    edges = {0, 1, 63, size - 1, size - 2, size - 64}
    inner = count - len(edges)
    return sorted(edges | {size * (i + 1) // (inner + 1) for i in range(inner)})


def saves(disk: Any, folder: str, format: str, count: int) -> tuple[int, list[str]]:  # noqa: A002
    """Within one run, try a save at each of `count` positions; then train to the end.

    Returns:
        The number of saves tried, and the problems found.
    """
    expected = state_of(train(epochs=1))
    found: list[str] = []
    rooms: list[int] = []

    def fill(trainer: Any) -> None:
        trainer.save_checkpoint(os.path.join(folder, "measured.ckpt"), format=format)
        rooms.extend(places(disk, os.path.join(folder, "measured.ckpt"), count))
        before, files = state_of(trainer), contents(folder)
        for room, name in [(room, name) for room in rooms for name in ("new.ckpt", "older.ckpt")]:
            path = os.path.join(folder, name)
            disk.set(room)
            try:
                trainer.save_checkpoint(path, format=format)
                found.append(f"{room}: {name} was saved")
            except CheckpointWriteError as error:
                found.extend(f"{room}: {name}: {problem}" for problem in _unclear(error, path))
            except Exception as error:  # noqa: BLE001  it is to be reported
                found.append(f"{room}: {name}: {type(error).__name__}: {error}")
            finally:
                disk.set()
            found.extend(f"{room}: {name}: {change}" for change in _changes(files, contents(folder)))
            found.extend(f"{room}: {name}: changed {part}" for part in differences(before, state_of(trainer)))
        trainer.save_checkpoint(os.path.join(folder, "new.ckpt"), format=format)
        formats.verify(os.path.join(folder, "new.ckpt"))

    first = At(
        4, lambda trainer: trainer.at_save_point(lambda: trainer.save_checkpoint(f"{folder}/older.ckpt", format=format))
    )
    with disk.mounted():
        trainer = train(first, At(FULL_AT - 1, lambda trainer: trainer.at_save_point(lambda: fill(trainer))), epochs=1)
    return 2 * len(rooms), found + [f"at the end: {part}" for part in differences(expected, state_of(trainer))]


def places(disk: Any, like: str, count: int) -> list[int]:
    """Return at how many bytes a disk of this kind is full during a save of the size of `like`."""
    if isinstance(disk, Disk):
        return positions(filesystem.size_of(like), count)
    # A limit applies to each file, and a tmpfs block exists or does not: a save can succeed with slightly less room
    # than the full size.
    files = [filesystem.join(like, name) for name in filesystem.names_in(like)] or [like]
    return sorted({int(room * 0.8) for room in positions(max(map(filesystem.size_of, files)), count)})


def _unclear(error: CheckpointWriteError, path: str) -> Iterator[str]:
    text = str(error)
    for part in (
        f"The checkpoint '{path}",
        " MiB are free",
        "  Expected: ",
        "  Fix: ",
        "earlier checkpoints are unchanged",
    ):
        if part not in text:
            yield f"the error does not contain {part!r}: {text}"
    if not any(reason in text for reason in REASONS):
        yield f"the error gives no reason: {text}"


def _changes(before: dict[str, bytes], after: dict[str, bytes]) -> Iterator[str]:
    yield from (f"lost {name}" for name in before if name not in after)
    yield from (f"left behind {name}" for name in after if name not in before)
    yield from (f"changed {name}" for name in before if name in after and before[name] != after[name])


def run(disk: Any, folder: str, room: int, expected: dict[str, Any], **how: Any) -> list[str]:
    """Train with only `room` bytes left for the save after step 8; return the problems found.

    The run ends or continues, depending on `save_errors`. If it ends, it is resumed.
    """
    callback = checkpoints(folder, save_top_k=-1, **how)
    kept: dict[str, bytes] = {}

    def fill(trainer: Any) -> None:
        if callback._transactions.writer is not None:
            callback._transactions.writer.join()
        kept.update(contents(folder))
        disk.set(room)

    problems: list[str] = []
    with disk.mounted(), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            trainer = train(callback, At(FULL_AT, fill), At(FULL_AT + 1, lambda trainer: _empty(callback, disk)))
            if how["save_errors"] == "raise":
                problems.append("no error was raised")
        except CheckpointWriteError as error:
            disk.set()
            trainer = None
            problems += [] if how["save_errors"] == "raise" else [f"raised {error}"]
            problems += _unclear(error, f"{os.path.realpath(folder)}/step={FULL_AT}.ckpt")
        except Exception as error:  # noqa: BLE001  it is to be reported
            return [f"{type(error).__name__}: {error}"]
        finally:
            disk.set()
        lost = [one for one in _changes(kept, contents(folder)) if "last.ckpt" not in one and one[:4] != "left"]
        hidden = [name for name in contents(folder) if name.rpartition("/")[2].startswith(".") or name.startswith(".")]
        problems += lost + [f"left behind {name}" for name in hidden]
        if how["save_errors"] == "warn" and not any("could not be written" in str(one.message) for one in said):
            problems.append("there was no warning")
        if trainer is None:
            trainer = train(checkpoints(folder, save_top_k=-1, **how), ckpt_path="last")
    problems += [f"at the end: {part}" for part in differences(expected["state"], state_of(trainer))]
    weights = weights_in(folder)
    wanted = set(expected["weights"]) - ({f"step={FULL_AT}.ckpt"} if how["save_errors"] == "warn" else set())
    if set(weights) != wanted:
        problems.append(f"kept {sorted(weights)} and not {sorted(wanted)}")
    for name in set(weights) & wanted:
        problems += [f"{name}: {part}" for part in differences(expected["weights"][name], weights[name])]
    return problems


def _empty(callback: Any, disk: Any) -> None:
    """Give the disk room again after the save that fills it."""
    if callback._transactions.writer is not None:
        callback._transactions.writer.join()
    disk.set()


def campaign(disk: Any, folder: str, count: int, words: str) -> tuple[int, int]:
    """Run the campaign on one kind of disk; return the number of saves tried, and of wrong ones."""
    tried = bad = 0
    for form in ("file", "directory"):
        count_of_saves, problems = saves(disk, f"{folder}/{form}-saves", form, count)
        tried, bad = tried + count_of_saves, bad + bool(problems)
        print(f"{words}, {form}: {count_of_saves} saves in a run: {'; '.join(problems[:5]) or 'all right'}", flush=True)
        for asynchronous in (False, True):
            for errors in ("raise", "warn"):
                how = {"format": form, "save_errors": errors, "async_save": asynchronous}
                name = f"{folder}/{form}-{errors}-{asynchronous}"
                # This name must be as long as those of the other runs: it is stored in the files.
                state = state_of(train(checkpoints(f"{name}-expected", save_top_k=-1, format=form)))
                expected = {"state": state, "weights": weights_in(f"{name}-expected")}
                rooms = places(disk, f"{name}-expected/step={FULL_AT}.ckpt", count)
                wrong = {}
                for room in rooms:
                    if found := run(disk, f"{name}-{room:08}", room, expected, **how):
                        wrong[room] = found
                    shutil.rmtree(f"{name}-{room:08}")
                tried, bad = tried + len(rooms), bad + len(wrong)
                told = [f"{room}: {'; '.join(found[:3])}" for room, found in wrong.items()][:3]
                where = f"{words}, {form}, {'in the background' if asynchronous else 'at once'}, save_errors={errors!r}"
                print(f"{where}: {len(rooms)} runs: {' | '.join(told) or 'all right'}", flush=True)
    return tried, bad


def main(arguments: list[str] | None = None) -> int:
    """Run the campaign with these command-line arguments; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.campaign_disk", description=__doc__)
    parser.add_argument("--positions", type=int, default=60, help="of a save at which the disk is full")
    parser.add_argument("--only", choices=("file object", "limit", "tmpfs"), nargs="+", help="kinds of full disks")
    parser.add_argument("--inside", help=argparse.SUPPRESS)  # the folder of the tmpfs, in the process that has it
    given = parser.parse_args(arguments)
    begun = time.monotonic()
    if given.inside is not None:
        tried, bad = campaign(Tmpfs(given.inside), given.inside, given.positions, "tmpfs")
        print(f"tmpfs: {tried} saves, {bad} wrong")
        return int(bad > 0)
    only = given.only or ("file object", "limit", "tmpfs")
    failed = False
    for words, disk in (("file object", Disk()), ("limit", Limit())):
        if words in only:
            with tempfile.TemporaryDirectory() as folder:
                tried, bad = campaign(disk, folder, given.positions, words)
            print(f"{words}: {tried} saves, {bad} wrong")
            failed |= bad > 0
    if "tmpfs" in only and not tmpfs_allowed():
        print("tmpfs: not done, for this user may not mount one")
    elif "tmpfs" in only:
        with tempfile.TemporaryDirectory() as folder:
            more = ["--inside", folder, "--positions", str(given.positions)]
            failed |= in_tmpfs(folder, TMPFS, "tests.campaigns.campaign_disk", more) != 0
    print(f"{time.monotonic() - begun:.0f} s: {'wrong' if failed else 'all right'}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
