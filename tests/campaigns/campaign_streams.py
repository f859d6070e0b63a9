"""Stream campaign: killed runs that resume with two or three ranks read each sample once."""

from __future__ import annotations

import argparse
import importlib
import os
import random
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.campaigns.campaign_kill import preload
from tests.campaigns.runner import in_jobs, run
from tests.data.streams.libraries import BATCH, LIBRARIES, SAMPLES, Library, Place
from tests.data.streams.program import EPOCHS, Death, Make, main, problems, rows_of

STEPS = EPOCHS * SAMPLES // BATCH // 2
BUCKET = "streams"


def one_case(make: Make, place: Place, where: Path, seed: int, early: bool, workers: int, sizes: list[int]) -> str:
    """Run without a kill, then kill runs of as many ranks and resume them with each of `sizes`; return a line each."""
    rng, first = random.Random(f"{seed}/{make.__name__}"), sizes[0]

    def attempt(name: str, number: int, size: int, death: Death | None) -> list[int]:
        part = partial(main, make, place, where / name, number, death, early, workers)
        ended = run(part, size, where / f"{name}-{number}")
        return ended.codes

    if any(codes := attempt("reference", 0, first, None)):
        return f"FAILED  the run without a kill: {codes}\n{_output(where, 'reference-0')}"
    reference = rows_of(where / "reference")
    if found := problems(reference, reference, True):
        return f"FAILED  the run without a kill: {'; '.join(found)}"
    lines = []
    for size in sizes:
        death = Death(rng.randint(4, STEPS - 2), rng.choice([None, *range(first)]))
        attempt(f"to{size}", 0, first, death)
        if any(codes := attempt(f"to{size}", 1, size, None)):
            lines.append(f"FAILED  {first} -> {size}, {death}: {codes}\n{_output(where, f'to{size}-1')}")
            continue
        rows = rows_of(where / f"to{size}")
        found = problems(reference, rows, size == first)
        at = f"resumed after {min(rows[-1])}" if len(rows) > 1 else "never resumed"
        lines.append(f"{'DIFFERS ' if found else 'equal   '}{first} -> {size}, {death}, {at}: {'; '.join(found)}")
    return "\n".join(lines)


def _output(where: Path, name: str) -> str:
    texts = [path.read_text().splitlines()[-12:] for path in sorted(where.glob(f"{name}.rank*.txt"))]
    return "\n".join("    " + line for text in texts for line in text)


@contextmanager
def data_of(library: Library, folder: Path, store: str, endpoint: str = "") -> Iterator[Place]:
    """Write the samples of a library, into a store if it is "s3"."""
    data = folder / "data"
    data.mkdir(parents=True)
    with in_child(lambda: library.write(data)):
        pass
    if store == "folder":
        yield Place(str(data))
        return
    import boto3

    client = boto3.client(
        "s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key="test"
    )
    client.create_bucket(Bucket=BUCKET)
    for path in data.rglob("*"):
        if path.is_file():
            public = {"ACL": "public-read"}  # webdataset reads with curl, without a key
            client.upload_file(str(path), BUCKET, path.relative_to(data).as_posix(), ExtraArgs=public)
    yield Place(str(folder / "local"), f"s3://{BUCKET}", endpoint)


@contextmanager
def in_child(work: Callable[[], object]) -> Iterator[None]:
    """Do `work` in a forked process: this one, which forks the ranks, gets none of its threads."""
    if not in_jobs(1, work):
        raise RuntimeError("the data could not be written")
    yield


def command(arguments: list[str] | None = None) -> int:
    """Run the campaign with these command-line arguments; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.campaign_streams", description=__doc__)
    parser.add_argument("--only", nargs="+", default=list(LIBRARIES), help="libraries, or loaders of them")
    parser.add_argument("--store", choices=("folder", "s3"), nargs="+", default=["folder"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=1, help="seeds from --seed on")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--early", action="store_true", help="make the loader before fit, not in train_dataloader")
    parser.add_argument("--sizes", type=int, nargs="+", default=[2, 3], help="ranks; the first number begins")
    parser.add_argument("--keep", action="store_true")
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    preload()
    bad = 0
    for library in LIBRARIES.values():
        loaders = [one for one in library.loaders if set(given.only) & {one.__name__, _name(library)}]
        try:
            importlib.import_module(library.module)
        except ImportError as error:
            if loaders:
                print(f"skipped {_name(library)}: {error}", flush=True)
            continue
        for make in loaders:
            for store in given.store:
                for seed in range(given.seed, given.seed + given.runs):
                    bad += _shown(library, make, store, seed, given)
    return int(bad > 0)


def _name(library: Library) -> str:
    return next(name for name, one in LIBRARIES.items() if one is library)


def _shown(library: Library, make: Make, store: str, seed: int, given: argparse.Namespace) -> bool:
    folder = Path(tempfile.mkdtemp(prefix="campaign_streams-"))
    begun = time.monotonic()
    try:
        with served(store) as endpoint, data_of(library, folder, store, endpoint) as place:
            text = one_case(make, place, folder / "runs", seed, given.early, given.workers, given.sizes)
    except Exception as error:  # noqa: BLE001  the other libraries are to be seen as well
        text = f"FAILED  {type(error).__name__}: {error}"
    print(f"{make.__name__}, {store}, --seed {seed} ({time.monotonic() - begun:.0f} s)\n{text}", flush=True)
    if not given.keep:
        shutil.rmtree(folder, ignore_errors=True)
    return "FAILED" in text or "DIFFERS" in text


@contextmanager
def served(store: str) -> Iterator[str]:
    """Serve an empty S3 store from a process of its own; yield its address, or "" for a folder."""
    if store == "folder":
        yield ""
        return
    import subprocess

    from lightlib.launch.environment.environment import free_port

    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    endpoint = f"http://127.0.0.1:{port}"
    names = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "S3_ENDPOINT_URL": endpoint}
    os.environ.update(
        {**names, "AWS_DEFAULT_REGION": "us-east-1", "AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": "true"}
    )
    try:
        _wait_for(endpoint)
        yield endpoint
    finally:
        server.terminate()
        server.wait()


def _wait_for(endpoint: str) -> None:
    import urllib.request

    for _ in range(600):
        try:
            urllib.request.urlopen(f"{endpoint}/moto-api", timeout=5).close()
            return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"no server at {endpoint}")


if __name__ == "__main__":
    sys.exit(command())
