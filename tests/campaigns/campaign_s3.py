"""S3 campaign: runs that save to a store with faults end as those that save to a disk."""

from __future__ import annotations

import argparse
import collections
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from lightlib.checkpoint import formats
from lightlib.checkpoint.storage import filesystem
from tests.campaigns import faulty_store
from tests.campaigns.faulty_store import BUCKET, KINDS, Faults, Store
from tests.campaigns.short_run import checkpoints, differences, state_of, train, weights_in


def compare_with_local(store: Store, there: str, here: str, width: int = 64, **given: Any) -> list[str]:
    """Train halfway and then to the end, with a store and with a disk; return the differences."""
    local, remote = ({}, {})
    for folder, found in ((here, local), (there, remote)):
        for epochs in (1, 2):
            callback = checkpoints(folder, **given)
            trainer = train(callback, width=width, epochs=epochs, ckpt_path=None if epochs == 1 else "last")
            found |= {f"epochs {epochs}: {name}": value for name, value in state_of(trainer).items()}
            found[f"best {epochs}"] = callback.best_model_path.removeprefix(folder)
        for name, weights in weights_in(folder).items():
            formats.verify(filesystem.join(folder, name))
            found |= {f"{name}: {key}": value for key, value in weights.items()}
    names = [key for key in local if not hasattr(local[key], "equal")]
    problems = [f"{key}: {local.pop(key)!r} and {remote.pop(key)!r}" for key in names if local[key] != remote[key]]
    for key in names:
        local.pop(key, None), remote.pop(key, None)
    start = there.removeprefix(f"s3://{BUCKET}/") + "/"
    objects = {key.removeprefix(start).split("/")[0] for key in store.names() if key.startswith(start)}
    if objects != {name for name in filesystem.names_in(here) if not name.startswith(".")}:
        problems.append(f"names: {sorted(objects)} and {filesystem.names_in(here)}")
    # If the answer to CreateMultipartUpload is lost, the upload's id is unknown, so the client cannot abort it.
    lost = sum(
        n for (kind, fault), n in store.faults.met.items() if kind == "CreateMultipartUpload" and fault in UNKNOWN
    )
    if len(store.open_uploads()) > lost:
        problems.append(f"uploads neither completed nor given up: {store.open_uploads()}, {lost} of them unknown")
    return problems + differences(local, remote)


UNKNOWN = ("lost answer", "cut answer", "delayed")


def main(arguments: list[str] | None = None) -> int:
    """Run the campaign with these command-line arguments; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.campaign_s3", description=__doc__)
    parser.add_argument("--runs", type=int, default=40, help="how many runs")
    parser.add_argument("--share", type=float, default=0.2, help="of the requests that meet a fault")
    parser.add_argument("--seed", type=int, default=0, help="the first of the seeds of the faults")
    parser.add_argument("--only", choices=KINDS, nargs="+", default=[], help="kinds of faults")
    given = parser.parse_args(arguments)
    faulty_store.quickly(setattr)
    met: collections.Counter[str] = collections.Counter()
    asked, bad, begun = 0, 0, time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(given.seed, given.seed + given.runs):
            how = {"format": ("file", "directory")[number % 2], "async_save": number % 4 > 1}
            width = 100_000 if number % 5 == 4 else 64  # 12 MB: an upload in parts
            with faulty_store.store(Faults(given.share, tuple(given.only or KINDS), seed=number, limit=3)) as store:
                problems = _problems(store, f"s3://{BUCKET}/{number}", str(Path(folder, str(number))), width, **how)
                asked += sum(store.faults.asked.values())
                met.update(fault for (_, fault), count in store.faults.met.items() for _ in range(count))
                count = sum(store.faults.met.values())
            bad += bool(problems)
            words = how["format"] + ", in the background" * how["async_save"] + ", in parts" * (width > 64)
            print(
                f"--seed {number} --runs 1: {words}: {count} faults: {'; '.join(problems[:5]) or 'equal'}", flush=True
            )
    print(", ".join(f"{fault} {count}" for fault, count in met.most_common()))
    print(
        f"{given.runs} runs, {asked} requests, {sum(met.values())} faults in {time.monotonic() - begun:.0f} s: "
        f"{bad} not equal to the same run on a disk"
    )
    return int(bad > 0)


def _problems(store: Store, there: str, here: str, width: int, **how: Any) -> list[str]:
    try:
        return compare_with_local(store, there, here, width, **how)
    except Exception as error:  # noqa: BLE001  the other runs are to be seen as well
        return [f"{type(error).__name__}: {error}"]


if __name__ == "__main__":
    sys.exit(main())
