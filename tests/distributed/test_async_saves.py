"""Background checkpoints with two processes: the same files, and the same decisions on failures."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import pytest

from lightlib.callbacks import ModelCheckpoint
from lightlib.checkpoint import formats
from lightlib.checkpoint.storage import filesystem
from lightlib.errors import CheckpointWriteError
from tests.distributed.test_callbacks import built, loader, trainer_of
from tests.processes.ranks import ranks

pytestmark = pytest.mark.processes


def saved(rank: int, root: str, strategy: str, options: dict[str, Any]) -> Any:
    best = ModelCheckpoint(Path(root) / "a", monitor="val_loss", save_top_k=2, save_last=True, **options)
    steps = ModelCheckpoint(Path(root) / "b", every_n_train_steps=2, save_last="link", **options)
    trainer_of(root, 2, best, steps, max_epochs=3, strategy=strategy).fit(built(), loader(2), loader(2))
    return [
        {os.path.basename(path): float(value) for path, value in one.best_k_models.items()} for one in (best, steps)
    ]


@pytest.mark.parametrize(
    ("strategy", "kind"), [pytest.param("ddp", "file", marks=pytest.mark.slow), ("fsdp", "directory")]
)
def test_the_files_are_those_that_are_written_at_once(tmp_path: Path, strategy: str, kind: str) -> None:
    found = {}
    for name, options in {"now": {}, "later": {"async_save": True}}.items():
        first, second = ranks(2, saved, str(tmp_path / name), strategy, {**options, "format": kind})
        assert first == second
        files = sorted(str(path.relative_to(tmp_path / name)) for path in (tmp_path / name).glob("?/*"))
        found[name] = first, files
        for path in (tmp_path / name).glob("?/*.ckpt"):
            formats.verify(str(path))
    assert found["now"] == found["later"]
    assert len(found["now"][1]) == 5


def failing(rank: int, root: str, errors: str) -> Any:
    callback = ModelCheckpoint(
        root, monitor="val_loss", save_top_k=2, save_last=True, async_save=True, save_errors=errors, filename="{step}"
    )
    real, calls = filesystem.write, []

    def write(path: Any, produce: Any) -> None:
        calls.append(path)
        if len(calls) == 2:
            raise CheckpointWriteError(f"The checkpoint {path!r} could not be written: disk full.")
        real(path, produce)

    filesystem.write = write
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            trainer_of(root, 2, callback, max_epochs=4).fit(built(slow={0: 0.02, 1: 0.02}), loader(2), loader(2))
            end = ""
        except Exception as error:  # noqa: BLE001  its own, or the other's
            end = str(error)
    (Path(root) / f"rank{rank}.txt").write_text(end)
    kept = sorted(os.path.basename(path) for path in callback.best_k_models)
    return kept, end, [str(one.message) for one in said if "disk full" in str(one.message)]


def test_a_failure_is_one_on_all(tmp_path: Path) -> None:
    first, second = ranks(2, failing, str(tmp_path), "warn")
    assert first[0] == second[0]
    assert first[1] == second[1] == ""
    assert [name for name in sorted(os.listdir(tmp_path)) if name.startswith("step")] == first[0]
    assert len(first[2]) == 1
    assert second[2] == []


def test_a_failure_ends_all(tmp_path: Path) -> None:
    ended = "rank 1: ended with exit code 1 and without a result"
    try:
        _, (_, end, _) = ranks(2, failing, str(tmp_path), "raise")
    except AssertionError as error:
        if ended not in str(error):
            raise
        end = ended  # while it waited for rank 0
    assert end  # otherwise its collective has found that rank 0 has left
    assert "last.ckpt' could not be written: disk full" in (tmp_path / "rank0.txt").read_text()
    assert len([name for name in os.listdir(tmp_path) if name.endswith(".ckpt")]) == 1
