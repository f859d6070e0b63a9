"""Corruption campaign: a file that was truncated or altered never loads as a checkpoint."""

from __future__ import annotations

import argparse
import io
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightlib import Module, Trainer, report
from lightlib.callbacks import ModelCheckpoint
from lightlib.checkpoint import formats
from lightlib.checkpoint.directory.tensors import read_tensors
from lightlib.checkpoint.file import archive
from lightlib.errors import CheckpointError

FORMS = ("file", "directory")


class Net(Module):
    """A small network with a state of everything: Adam, a schedule, dropout."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, 1))

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        loss = self.layers(batch[0]).square().mean()
        self.log("loss", loss, on_epoch=True)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters())
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2)]


def trainer(folder: Path, **arguments: Any) -> Trainer:
    """Return a quiet Trainer that writes into `folder`."""
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    return Trainer(accelerator="cpu", devices=1, default_root_dir=folder, **{**quiet, **arguments})


def batches() -> DataLoader[Any]:
    """Return eight batches of two rows."""
    rows = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
    return DataLoader(TensorDataset(rows), 2, shuffle=True)


def written(folder: Path, form: str, width: int = 24) -> Path:
    """Write a checkpoint of a run of one epoch; return its path."""
    run = trainer(folder, max_epochs=1, enable_checkpointing=False)
    torch.manual_seed(0)
    run.fit(Net(width), batches())
    path = folder / f"{form}.ckpt"
    run.save_checkpoint(path, format=form)
    return path


# Ways to damage the bytes of a file: each takes the bytes and a random generator, and returns the damaged bytes.


def _cut(data: bytearray, chance: random.Random) -> bytearray:
    return data[: chance.randrange(len(data))]


def _cut_near_the_end(data: bytearray, chance: random.Random) -> bytearray:
    return data[: len(data) - chance.randint(1, min(400, len(data)))]


def _flip(data: bytearray, chance: random.Random) -> bytearray:
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return data


def _flip_several(data: bytearray, chance: random.Random) -> bytearray:
    for _ in range(chance.randint(2, 9)):
        data = _flip(data, chance)
    return data


def _zeros(data: bytearray, chance: random.Random) -> bytearray:
    start, size = chance.randrange(len(data)), chance.choice((1, 16, 512, 4096))
    data[start : start + size] = bytes(len(data[start : start + size]))
    return data


def _noise(data: bytearray, chance: random.Random) -> bytearray:
    start, size = chance.randrange(len(data)), chance.choice((1, 16, 512, 4096))
    data[start : start + size] = chance.randbytes(len(data[start : start + size]))
    return data


def _lost(data: bytearray, chance: random.Random) -> bytearray:
    start = chance.randrange(len(data))
    del data[start : start + chance.choice((1, 2, 64, 512))]
    return data


def _more(data: bytearray, chance: random.Random) -> bytearray:
    start = chance.choice((chance.randrange(len(data)), len(data)))
    data[start:start] = chance.randbytes(chance.choice((1, 2, 64, 512)))
    return data


def _moved(data: bytearray, chance: random.Random) -> bytearray:
    size = chance.choice((1, 8, 64, 512))
    one, other = (chance.randrange(max(1, len(data) - size)) for _ in range(2))
    if abs(one - other) >= size:
        data[one : one + size], data[other : other + size] = data[other : other + size], data[one : one + size]
    return data


DAMAGES: tuple[Callable[[bytearray, random.Random], bytearray], ...] = (
    _cut, _cut_near_the_end, _flip, _flip_several, _zeros, _noise, _lost, _more, _moved,
)  # fmt: skip
FREQUENT = (_cut, _cut_near_the_end, _flip, _flip, _flip)


def damage(path: Path, chance: random.Random) -> str:
    """Damage a checkpoint at random; return a description of the damage."""
    file = path
    if path.is_dir():
        files = sorted(part for part in path.rglob("*") if part.is_file())
        file = chance.choice(files)
        if chance.random() < 0.05:
            file.unlink()
            return f"{file.name} removed"
    before = file.read_bytes()
    while True:
        kind = chance.choice(FREQUENT if chance.random() < 0.6 else DAMAGES)
        data = bytes(kind(bytearray(before), chance))
        if data != before:
            file.write_bytes(data)
            places = [k for k, (one, other) in enumerate(zip(before, data, strict=False)) if one != other][:3]
            return f"{file.name}{kind.__name__} {len(before)} -> {len(data)} bytes, first differences at {places}"


def seen_by(path: Path) -> dict[str, str]:
    """Return the error that each way of reading a checkpoint reports, or "" if it noticed none."""
    ways: dict[str, Callable[[], object]] = {
        "load": lambda: read_tensors(formats.load(str(path), "cpu")),
        "verify": lambda: formats.verify(str(path)),
    }
    said = dict.fromkeys(ways, "")
    for name, way in ways.items():
        try:
            way()
        except CheckpointError as error:
            said[name] = str(error).splitlines()[0]
    formats.label_of(str(path))  # raises nothing, whether the label is readable or not
    return said


def random_damages(form: str, count: int, seed: int, folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Damage copies of a checkpoint; yield each damage and the errors that it caused."""
    good = written(folder, form)
    assert not any(seen_by(good).values())
    for k in range(count):
        chance = random.Random(f"{seed} {form} {k}")
        copy = folder / f"copy-{form}.ckpt"
        shutil.copytree(good, copy) if good.is_dir() else shutil.copy(good, copy)
        done = damage(copy, chance)
        yield f"--seed {seed} case {k} ({form}): {done}", seen_by(copy)
        shutil.rmtree(copy) if copy.is_dir() else copy.unlink()


def every_bit(folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the same for every flipped bit and every truncated length of a small single-file checkpoint."""
    path = folder / "small.ckpt"
    formats.save({"state_dict": {"a": torch.arange(20.0), "b": torch.ones(3)}, "lightlib": {"format": 2}}, str(path),
                 formats.Label(run="1f", step=3))  # fmt: skip
    good = path.read_bytes()
    for size in range(len(good)):
        yield f"cut to {size} of {len(good)} bytes", {"load": _said(good[:size])}
    for place in range(8 * len(good)):
        data = bytearray(good)
        data[place // 8] ^= 1 << place % 8
        yield f"bit {place % 8} of byte {place // 8}", {"load": _said(bytes(data))}


def _said(data: bytes) -> str:
    try:
        archive.load(io.BytesIO(data))
    except CheckpointError as error:
        return str(error).splitlines()[0]
    return ""


def falls_back(form: str, seed: int, folder: Path) -> str:
    """Damage the newest one or two checkpoints of a run and resume with "auto"; return the failure."""
    chance = random.Random(f"{seed} {form} auto")
    keep: dict[str, Any] = {"every_n_train_steps": 2, "save_top_k": -1, "filename": "{step}", "format": form}
    run = trainer(folder, max_steps=8, callbacks=[ModelCheckpoint(folder / "kept", **keep)])
    torch.manual_seed(seed)
    net = Net()
    run.fit(net, batches())
    kept = sorted((folder / "kept").glob("step=*.ckpt"))
    broken = kept[-chance.choice((1, 1, 2)) :]
    done = [f"{path.name}: {damage(path, chance)}" for path in broken]
    said: list[str] = []
    resumed = trainer(folder, max_steps=8, callbacks=[ModelCheckpoint(folder / "kept", **keep)])
    other = Net()
    try:
        with _collect_warnings(said):
            resumed.fit(other, batches(), ckpt_path="auto")
    except Exception as error:  # noqa: BLE001  a finding
        return f"{done}: {type(error).__name__}: {error}"
    newest = broken[-1].name
    if not any(newest in text and "skipped" in text for text in said):
        return f"{done}: no warning names {newest}: {said}"
    same = all(torch.equal(value, other.state_dict()[name]) for name, value in net.state_dict().items())
    return "" if same else f"{done}: the run ended otherwise"


class _collect_warnings:  # noqa: N801  used as a function
    """Collect warnings of lightlib."""

    def __init__(self, said: list[str]) -> None:
        self._said, self._warn = said, report.warn

    def __enter__(self) -> None:
        report.warn = lambda message, *args, **kwargs: self._said.append(message)

    def __exit__(self, *error: object) -> None:
        report.warn = self._warn


def command(arguments: list[str] | None = None) -> int:
    """Run the campaign with these command-line arguments; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.campaign_corruption", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--count", type=int, default=3000, help="random damages of each format")
    parser.add_argument("--resumes", type=int, default=25, help='runs of each format that resume with "auto"')
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--small", action="store_true", help="not every bit of a file")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    report.info = lambda *args, **kwargs: None
    folder, begun = Path(tempfile.mkdtemp(prefix="campaign_corruption-")), time.monotonic()
    os.chdir(folder)
    unseen = 0
    sources = {f"{form}: random damages": random_damages(form, given.count, given.seed, folder) for form in given.only}
    if "file" in given.only and not given.small:
        sources["file: every length and every bit"] = every_bit(folder)
    for name, source in sources.items():
        cases = [(done, [way for way, text in said.items() if not text]) for done, said in source]
        missed = [f"{done}: not noticed by {', '.join(ways)}" for done, ways in cases if ways]
        print(f"{name}: {len(cases)} damages, {len(missed)} not noticed", *missed[:20], sep="\n    ", flush=True)
        unseen += len(missed)
    for form in given.only:
        wrong = []
        for seed in range(given.seed, given.seed + given.resumes):
            place = folder / f"auto-{form}-{seed}"
            place.mkdir()
            wrong += [f"seed {seed}: {text}" for text in [falls_back(form, seed, place)] if text]
        done = f'{form}: {given.resumes} runs resumed with "auto", {len(wrong)} of them incorrectly'
        print(done, *wrong[:20], sep="\n    ", flush=True)
        unseen += len(wrong)
    print(f"{time.monotonic() - begun:.0f} s, {unseen} not right")
    if not unseen:
        shutil.rmtree(folder)
    return int(bool(unseen))


if __name__ == "__main__":
    sys.exit(command())
