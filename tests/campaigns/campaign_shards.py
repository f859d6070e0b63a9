"""Shard campaign: the directory of a 7 B decoder, written and read back by simulated ranks."""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.distributed.tensor import DTensor, Shard, init_device_mesh

from lightlib.checkpoint import formats
from lightlib.checkpoint.directory import reader, writer
from lightlib.checkpoint.directory.tensors import BLOCK, Chunk
from lightlib.checkpoint.storage.label import Label
from tests.checkpoint.directory.writers import in_threads

Shapes = dict[str, tuple[int, ...]]
ROOM = 80  # MiB that a rank may hold in addition to its shard: the index, blocks of bytes, one tensor


def shapes_of(layers: int, width: int, hidden: int, words: int) -> Shapes:
    """Return the names and shapes of the parameters of a Llama."""
    of_layer: Shapes = {
        **{f"self_attn.{name}_proj.weight": (width, width) for name in "qkvo"},
        "mlp.gate_proj.weight": (hidden, width),
        "mlp.up_proj.weight": (hidden, width),
        "mlp.down_proj.weight": (width, hidden),
        "input_layernorm.weight": (width,),
        "post_attention_layernorm.weight": (width,),
    }
    inner = {f"model.layers.{number}.{name}": shape for number in range(layers) for name, shape in of_layer.items()}
    return {
        "model.embed_tokens.weight": (words, width),
        **inner,
        "model.norm.weight": (width,),
        "lm_head.weight": (words, width),
    }


MODELS = {"7b": (32, 4096, 11008, 32000), "small": (4, 512, 1376, 4000)}


def empty_shards(shapes: Shapes, size: int, dtype: torch.dtype) -> dict[str, DTensor]:
    """Return the shards of this rank, which have no memory yet: a model on the meta device, sharded by rows."""
    mesh = init_device_mesh("cpu", (size,))
    shards = {}
    for name, shape in shapes.items():
        rows = -(-shape[0] // size)
        count = max(0, min(rows, shape[0] - mesh.get_local_rank() * rows))
        local = torch.empty(count, *shape[1:], dtype=dtype)
        local.untyped_storage().resize_(0)
        stride = torch.empty(shape, device="meta").stride()
        shards[name] = DTensor.from_local(
            local, mesh, [Shard(0)], run_check=False, shape=torch.Size(shape), stride=stride
        )
    return shards


def filled(shards: dict[str, DTensor]) -> dict[str, DTensor]:
    """Return the same shards with values."""
    return {
        name: DTensor.from_local(
            values_of(name, like).contiguous(), like.device_mesh, like.placements,
            run_check=False, shape=like.shape, stride=like.stride(),
        )
        for name, like in shards.items()
    }  # fmt: skip


def values_of(name: str, tensor: DTensor) -> torch.Tensor:
    """Return the values of a shard: each row of the complete tensor has its number, which depends on the name."""
    (chunk,) = tensor.__create_chunk_list__()
    sizes = tuple(chunk.sizes)
    rows = torch.arange(chunk.offsets[0], chunk.offsets[0] + sizes[0]) if sizes[0] else torch.arange(0)
    numbers = ((rows * 31 + sum(name.encode())) % 241).to(tensor.dtype)
    return numbers if len(sizes) == 1 else numbers[:, None].expand(sizes)


class Memory:
    """The peak of this process's memory within a block, above that at its start, in MiB."""

    def __enter__(self) -> Memory:  # noqa: PYI034  Self is in typing from Python 3.11 on
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        self._before, self.peak = _memory("VmRSS"), 0.0
        return self

    def __exit__(self, *error: object) -> None:
        self.peak = _memory("VmHWM") - self._before


def _memory(name: str) -> float:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def write(path: str, shapes: Shapes, size: int) -> float:
    """Write the directory, one rank after the other; return the largest memory of a rank above that before."""
    current, turn, peaks = threading.local(), threading.Lock(), []
    write_shard = writer._write_shard

    def in_turn(task: Any, tensors: Any) -> Any:
        with turn, Memory() as memory:
            shards = {f"state_dict/{name}": tensor for name, tensor in filled(current.shards).items()}
            written = write_shard(task, shards)
            del shards
        peaks.append(memory.peak)
        return written

    def save(_: int) -> None:
        current.shards = empty_shards(shapes, size, torch.bfloat16)
        reader.save({"state_dict": dict(current.shards)}, path, Label(run="7b"))

    with mock.patch.object(writer, "_write_shard", in_turn):
        in_threads(size, save)
    return max(peaks)


def read(path: str, shapes: Shapes, size: int) -> float:
    """Read the directory, one rank after the other, and compare; return the largest memory of a rank."""
    turn, peaks = threading.Lock(), []

    def load(_: int) -> None:
        shards = empty_shards(shapes, size, torch.bfloat16)
        with turn, Memory() as memory:
            stored = formats.load(path)["state_dict"]
            found = {name: stored[name].read_part(like) for name, like in shards.items()}
            for name, tensor in found.items():
                assert tensor.to_local().shape == shards[name].to_local().shape
                assert torch.equal(tensor.to_local(), values_of(name, tensor)), name
        peaks.append(memory.peak)
        del stored, found, tensor

    in_threads(size, load)
    return max(peaks)


def plan(path: str, shapes: Shapes, size: int) -> tuple[int, float, float]:
    """Write the index of weights and Adam states in 32 bits, with files that have no bytes.

    Returns:
        The bytes of the index, and the seconds to plan and write it, and to read it on one rank.
    """

    def without_bytes(task: Any, tensors: Any) -> Any:
        chunks, at = {}, 0
        for name in task.names:
            shard = writer._shard(name, tensors[name])
            assert shard is not None
            length = torch.Size(shard.box[1]).numel() * 4
            chunks[name] = Chunk(*shard.box, task.shard, at, length, (0,) * -(-length // BLOCK))
            at += length
        with open(os.path.join(task.folder, task.shard), "wb") as file:
            file.truncate(at)
        return writer.WrittenFile(at, chunks)

    def save(_: int) -> None:
        weights = empty_shards(shapes, size, torch.float32)
        kinds = ("exp_avg", "exp_avg_sq")
        adam = {
            i: {kind: empty_shards({kind: shape}, size, torch.float32)[kind] for kind in kinds}
            for i, shape in enumerate(shapes.values())
        }
        reader.save({"state_dict": weights, "optimizer_states": [{"state": adam}]}, path, Label(run="7b"))

    with (
        mock.patch.object(writer, "_write_shard", without_bytes),
        mock.patch.object(writer, "_memory", return_value=None),
    ):
        begun = time.monotonic()
        in_threads(size, save)
        planned = time.monotonic() - begun
    begun = time.monotonic()
    reader.load(path)
    return os.path.getsize(f"{path}/index.json"), planned, time.monotonic() - begun


def command(arguments: list[str] | None = None) -> int:
    """Run the campaign with these command-line arguments; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.campaign_shards", description=__doc__)
    parser.add_argument("--model", choices=MODELS, default="7b")
    parser.add_argument("--write", type=int, default=64, help="ranks that write")
    parser.add_argument("--read", type=int, nargs="+", default=[64, 48], help="ranks that read")
    parser.add_argument("--plan", type=int, nargs="*", default=[8, 16, 32, 64], help="ranks for which to plan alone")
    given = parser.parse_args(arguments)
    shapes = shapes_of(*MODELS[given.model])
    total = sum(torch.Size(shape).numel() for shape in shapes.values())
    print(f"{len(shapes)} tensors, {total / 1e9:.2f} billion parameters", flush=True)
    folder = tempfile.mkdtemp(prefix="campaign_shards-")
    bad = 0
    try:
        path = f"{folder}/all.ckpt"
        steps: list[tuple[str, Callable[[str, Shapes, int], float], int]] = [("written", write, given.write)]
        for name, work, size in [*steps, *(("read", read, size) for size in given.read)]:
            begun, shard = time.monotonic(), total * 2 / size / 2**20
            peak = work(path, shapes, size)
            fits = peak <= shard + ROOM
            bad += not fits
            print(
                f"{name} by {size} ranks in {time.monotonic() - begun:.0f} s: a shard has {shard:.0f} MiB, a rank held "
                f"at most {peak:.0f} MiB{'' if fits else '  TOO MUCH'}",
                flush=True,
            )
        for size in given.plan:
            length, planned, parsed = plan(f"{folder}/plan-{size}.ckpt", shapes, size)
            print(
                f"planned with Adam for {size} ranks: index {length / 1e6:.2f} MB, "
                f"{length / size / 1e3:.1f} kB a rank, written in {planned:.1f} s, read in {parsed:.1f} s",
                flush=True,
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(command())
