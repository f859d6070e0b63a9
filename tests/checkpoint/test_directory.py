"""A checkpoint directory: complete or absent, read by any layout, every byte accounted for."""

from __future__ import annotations

import json
import os
import threading
import zlib
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn

from lightlib.checkpoint.directory import reader
from lightlib.checkpoint.directory.index import gap_in
from lightlib.checkpoint.directory.tensors import BLOCK, LazyTensor, Shards, read_tensors
from lightlib.checkpoint.storage import filesystem, swap
from lightlib.checkpoint.storage.label import Label
from lightlib.errors import CheckpointError, CheckpointWriteError
from tests.processes.ranks import ranks

LABEL = Label(run="ab", serial=3, epoch=1, batch=20, step=10)


def content(fill: float = 1.0) -> dict[str, Any]:
    weight = torch.arange(12.0).view(4, 3) * fill
    return {
        "epoch": 1,
        "state_dict": OrderedDict(weight=weight, scale=torch.tensor(fill, dtype=torch.bfloat16), extra={"version": 2}),
        "optimizer_states": [
            {
                "state": {0: {"step": torch.tensor(3.0), "exp_avg": weight / 2}, 1: {"momentum_buffer": None}},
                "param_groups": [{"lr": 0.1, "betas": (0.9, 0.99), "params": [0, 1]}],
            }
        ],
        "callbacks": {"EMA": {"mean": torch.ones(3, dtype=torch.int8), "best": float("inf")}},
        "lightlib": {"format": 2, "rng": {"torch": torch.get_rng_state(), "python": (3, (1, 2), None)}},
    }


def saved(path: str = "one.ckpt", fill: float = 1.0, label: Label = LABEL) -> dict[str, Any]:
    given = content(fill)
    reader.save(given, path, label)
    return given


def assert_same(found: Any, wanted: Any) -> None:
    if isinstance(wanted, torch.Tensor):
        assert found.dtype == wanted.dtype
        assert torch.equal(found, wanted)
    elif isinstance(wanted, dict):
        assert list(found) == list(wanted)
        for key in wanted:
            assert_same(found[key], wanted[key])
    elif isinstance(wanted, (list, tuple)):
        assert type(found) is type(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other)
    else:
        assert found == wanted


# one process
def test_a_checkpoint_comes_back_as_it_was():
    given = saved()
    found = reader.load("one.ckpt")
    assert isinstance(found["state_dict"]["weight"], LazyTensor)
    assert isinstance(found["optimizer_states"][0]["state"][0]["step"], LazyTensor)
    assert torch.equal(found["callbacks"]["EMA"]["mean"], given["callbacks"]["EMA"]["mean"])
    assert_same(read_tensors(found), given)
    assert reader.label_of("one.ckpt") == LABEL
    assert reader.verify("one.ckpt") == 7
    names = os.listdir("one.ckpt")
    assert len(names) == 2
    assert os.listdir(".") == ["one.ckpt"]
    mode = os.stat(Path("one.ckpt", names[0])).st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    assert mode == 0o666 & ~mask


def test_a_stored_tensor_is_read_when_it_is_used():
    given = saved()["state_dict"]["weight"]
    stored = reader.load("one.ckpt")["state_dict"]["weight"]
    assert repr(stored) == "LazyTensor('state_dict/weight', shape=(4, 3), dtype=torch.float32)"
    assert (stored.shape, stored.dtype, stored.numel(), stored.dim()) == (given.shape, given.dtype, 12, 2)
    assert torch.equal(torch.cat([stored, stored]), torch.cat([given, given]))
    assert torch.equal(stored.clone(), given)
    assert torch.equal(stored[1:], given[1:])
    assert len(stored) == len(list(stored)) == 4
    assert torch.equal(2 - stored * 2 + stored, 2 - given)
    assert torch.equal(stored > 3, given > 3)
    with pytest.raises(AttributeError):
        stored.nothing_of_the_kind  # noqa: B018


def test_a_module_loads_stored_tensors():
    module, other = (nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)) for _ in range(2))
    reader.save({"state_dict": module.state_dict()}, "one.ckpt", LABEL)
    other.load_state_dict(reader.load("one.ckpt")["state_dict"])
    assert_same(dict(other.state_dict()), dict(module.state_dict()))
    assert_same(read_tensors(reader.load("one.ckpt")["state_dict"]), dict(module.state_dict()))


KINDS = [
    torch.randn(3, dtype=torch.float64),
    torch.randn(2, 2, dtype=torch.complex64).conj(),
    torch.randn(4, 3).t(),
    torch.randn(4, 6)[::2, 1:4],
    torch.randn(3).to(torch.float8_e4m3fn),
    torch.tensor([True, False]),
    torch.tensor(7),
    torch.empty(0, 4),
    torch.ones(2, requires_grad=True) * 2,
    torch.eye(3).to_sparse(),
    nn.Parameter(torch.ones(3)),
    torch.ones(3).expand(2, 3),
]


@pytest.mark.parametrize("tensor", KINDS, ids=lambda tensor: f"{tensor.dtype} {tuple(tensor.shape)}")
def test_every_kind_of_tensor(tensor: torch.Tensor):
    reader.save({"state_dict": {"x": tensor}}, "one.ckpt", LABEL)
    found = reader.load("one.ckpt")["state_dict"]["x"].read()
    reader.verify("one.ckpt")
    assert found.dtype == tensor.dtype
    assert found.layout == tensor.layout
    first, second = (t.detach().to_dense() for t in (found, tensor))
    assert torch.equal(first.to(torch.complex128), second.to(torch.complex128))


@pytest.mark.filterwarnings("ignore")  # torch is about to drop them
def test_a_quantized_tensor():
    tensor = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8)
    reader.save({"state_dict": {"x": tensor}}, "one.ckpt", LABEL)
    reader.verify("one.ckpt")
    assert torch.equal(reader.load("one.ckpt")["state_dict"]["x"].read(), tensor)


def test_what_is_loaded_can_be_saved_again():
    given = saved()
    reader.save(reader.load("one.ckpt"), "two.ckpt", LABEL)
    reader.save(reader.load("one.ckpt"), "one.ckpt", LABEL)
    for path in ("one.ckpt", "two.ckpt"):
        assert_same(read_tensors(reader.load(path)), given)


def test_tensors_of_one_memory_are_written_once():
    weight = torch.randn(1000)
    reader.save({"state_dict": {"a": weight, "b": weight}}, "one.ckpt", LABEL)
    assert filesystem.size_of("one.ckpt") < 6000
    reader.verify("one.ckpt")
    assert_same(read_tensors(reader.load("one.ckpt")["state_dict"]), {"a": weight, "b": weight})


def test_a_few_rows_are_read_without_the_others(monkeypatch: pytest.MonkeyPatch):
    rows = torch.randn(3 * BLOCK // 4 // 1024, 1024)
    reader.save({"state_dict": {"x": rows}}, "one.ckpt", LABEL)
    stored = reader.load("one.ckpt")["state_dict"]["x"]
    lengths = []
    read = Shards.read
    monkeypatch.setattr(Shards, "read", lambda *args: lengths.append(len((found := read(*args))[0])) or found)
    assert torch.equal(stored.box((5, 7), (2, 9)), rows[5:7, 7:16])
    assert lengths == [BLOCK]
    assert torch.equal(stored.read(), rows)
    assert lengths == [BLOCK, 3 * BLOCK]
    assert reader.verify("one.ckpt") == 4


# overwriting an earlier checkpoint
def older(kind: str) -> None:
    if kind == "directory":
        saved("one.ckpt", 2.0)
    elif kind == "link":
        saved("epoch.ckpt", 2.0)
        os.symlink("epoch.ckpt", "one.ckpt")
    elif kind == "file":
        Path("one.ckpt").write_text("older")
    elif kind == "empty":
        os.mkdir("one.ckpt")


@pytest.mark.parametrize("exchanging", [True, False])
@pytest.mark.parametrize("kind", ["directory", "link", "file", "empty"])
def test_an_older_checkpoint_of_the_name_is_replaced(kind: str, exchanging: bool, monkeypatch: pytest.MonkeyPatch):
    if not exchanging:
        monkeypatch.setattr(swap, "exchanged", lambda one, other: False)
    older(kind)
    given = saved()
    assert_same(read_tensors(reader.load("one.ckpt")), given)
    assert not os.path.islink("one.ckpt")
    assert sorted(os.listdir(".")) == (["epoch.ckpt", "one.ckpt"] if kind == "link" else ["one.ckpt"])
    if kind == "link":
        reader.verify("epoch.ckpt")


@pytest.mark.parametrize("exchanging", [True, False])
def test_at_every_instant_one_of_the_two_is_there(exchanging: bool, monkeypatch: pytest.MonkeyPatch):
    if not exchanging:
        monkeypatch.setattr(swap, "exchanged", lambda one, other: False)
    saved("one.ckpt", 2.0, Label(serial=1))
    seen = []

    def looking(call: Any) -> Any:
        def looked(*args: Any, **kwargs: Any) -> Any:
            result = call(*args, **kwargs)
            there = [name for name in os.listdir(".") if not name.startswith(".")]
            serials = [label.serial for name in there if (label := reader.label_of(name)) is not None]
            assert serials
            seen.append((there, serials))
            return result

        return looked

    for module, name in ((os, "rename"), (os, "replace"), (os, "unlink"), (os, "rmdir"), (os, "mkdir")):
        monkeypatch.setattr(module, name, looking(getattr(module, name)))
    saved("one.ckpt", 1.0, Label(serial=2))
    monkeypatch.undo()
    assert len(seen) > 4
    assert seen[0] == (["one.ckpt"], [1])
    assert seen[-1] == (["one.ckpt"], [2])


@pytest.mark.parametrize("name", ["notes.txt", "shard-1.bin"])
def test_a_folder_with_other_things_is_left_alone(name: str):
    os.mkdir("runs")
    Path("runs", name).write_text("mine")
    with pytest.raises(CheckpointWriteError, match="other files in it") as raised:
        saved("runs")
    assert name in str(raised.value)
    assert "runs/last.ckpt" in str(raised.value)
    assert os.listdir("runs") == [name]
    assert os.listdir(".") == ["runs"]


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("before", [False, True])
def test_what_fails_leaves_nothing_behind(number: int, before: bool, monkeypatch: pytest.MonkeyPatch):
    if before:
        saved("one.ckpt", 2.0)
    there = sorted(str(path) for path in Path().rglob("*"))
    write, calls = filesystem.write, []

    def failing(path: str, produce: Any) -> None:
        calls.append(path)
        if len(calls) > number:
            raise filesystem.write_error(path, OSError(28, "No space left on device"))
        write(path, produce)

    monkeypatch.setattr(filesystem, "write", failing)
    with pytest.raises(CheckpointWriteError, match="No space left") as raised:
        saved()
    assert ".part" not in str(raised.value)
    assert "'one.ckpt/" in str(raised.value)
    assert sorted(str(path) for path in Path().rglob("*")) == there
    if before:
        reader.verify("one.ckpt")


def test_what_is_no_plain_value_is_refused_before_anything_is_written():
    with pytest.raises(CheckpointWriteError, match=r"\['callbacks'\]\['EMA'\]\['hook'\] there is an object"):
        reader.save(content() | {"callbacks": {"EMA": {"hook": object()}}}, "one.ckpt", LABEL)
    assert os.listdir(".") == []


# damaged, foreign, hostile
def every_file() -> list[Path]:
    return sorted(Path("one.ckpt").iterdir())


def test_every_flipped_bit_is_found():
    saved()
    for path in every_file():
        data = bytearray(path.read_bytes())
        step = 1 if len(data) < 300 else 37
        for place in [*range(0, len(data), step), len(data) - 1, len(data) - 2]:
            data[place] ^= 1 << (place % 8)
            path.write_bytes(data)
            with pytest.raises(CheckpointError):
                reader.verify("one.ckpt")
            if path.name == "index.json":
                assert reader.label_of("one.ckpt") is None
            data[place] ^= 1 << (place % 8)
        path.write_bytes(data)
    reader.verify("one.ckpt")


def test_a_flipped_bit_is_found_when_it_is_read():
    saved()
    shard = next(path for path in every_file() if path.name != "index.json")
    data = bytearray(shard.read_bytes())
    data[5] ^= 4
    shard.write_bytes(data)
    found = reader.load("one.ckpt")["state_dict"]
    with pytest.raises(CheckpointError, match=r"'state_dict/weight' in 'shard-.*' do not match their checksum"):
        found["weight"].read()
    found["scale"].read()


@pytest.mark.parametrize("change", ["shorter", "longer", "empty", "missing"])
@pytest.mark.parametrize("which", [0, 1])
def test_a_file_of_another_size_is_found(change: str, which: int):
    saved()
    path = every_file()[which]
    data = path.read_bytes()
    if change == "missing":
        path.unlink()
    else:
        path.write_bytes({"shorter": data[:-1], "longer": data + b"\0", "empty": b""}[change])
    for call in (reader.verify, reader.load):
        with pytest.raises(CheckpointError) as raised:
            call("one.ckpt")
        assert "Fix:" in str(raised.value)
        if change == "missing":
            assert ("is missing" if which else "not complete") in str(raised.value)
    assert reader.label_of("one.ckpt") is None


def changed(change: Any) -> None:
    """Write an index as an attacker would, with a correct checksum."""
    path = Path("one.ckpt/index.json")
    given = json.loads(path.read_bytes())
    del given["checksum"]
    change(given)
    text = json.dumps(given, separators=(",", ":")).encode()[:-1]
    path.write_bytes(text + f',"checksum":"{zlib.crc32(text):08x}"}}\n'.encode())


def first_chunk(given: dict[str, Any]) -> dict[str, Any]:
    return given["tensors"]["state_dict/weight"]["chunks"][0]


def rename_shard(given: dict[str, Any], name: str) -> None:
    given["shards"] = {name: next(iter(given["shards"].values()))}
    for entry in given["tensors"].values():
        for chunk in entry["chunks"]:
            chunk["shard"] = name


HOSTILE = {
    "a file outside": lambda given: rename_shard(given, "../../secret"),
    "an absolute file": lambda given: rename_shard(given, "/etc/passwd"),
    "an object": lambda given: given["content"].update(callbacks={"!": "object", "of": "os.system"}),
    "deep": lambda given: given["content"].update(a=json.loads("[" * 200 + "]" * 200)),
    "a tensor from nowhere": lambda given: given["content"].update(a={"!": "tensor", "of": "none"}),
    "a huge tensor": lambda given: given["tensors"]["state_dict/weight"].update(shape=[2**40, 3]),
    "a negative size": lambda given: given["tensors"]["state_dict/weight"].update(shape=[-4, 3]),
    "another dtype": lambda given: given["tensors"]["state_dict/weight"].update(dtype="float64"),
    "no dtype": lambda given: given["tensors"]["state_dict/weight"].update(dtype="load"),
    "a chunk twice": lambda given: given["tensors"]["state_dict/weight"]["chunks"].append(first_chunk(given)),
    "no chunk": lambda given: given["tensors"]["state_dict/weight"].update(chunks=[]),
    "another place": lambda given: first_chunk(given).update(at=4),
    "a longer chunk": lambda given: first_chunk(given).update(bytes=96),
    "no checksums": lambda given: first_chunk(given).update(crc32=""),
    "a chunk beyond": lambda given: first_chunk(given).update(offsets=[1, 0]),
    "a bool": lambda given: first_chunk(given).update(at=False),
    "pickled": lambda given: given["tensors"]["state_dict/weight"].update(saved=True),
    "a label": lambda given: given["label"].update(serial="3"),
    "more": lambda given: given.update(more=1),
    "no weights": lambda given: given["content"].pop("state_dict"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_index_is_refused(name: str):
    saved()
    changed(HOSTILE[name])
    with pytest.raises(CheckpointError):
        read_tensors(reader.load("one.ckpt"))


def test_a_newer_format_is_named():
    saved()
    changed(lambda given: given.update(format=3, more="unknown"))
    with pytest.raises(CheckpointError, match=r"format 3, which is newer(.|\n)*pip install --upgrade"):
        reader.load("one.ckpt")


def test_directories_of_others_are_refused():
    import torch.distributed.checkpoint as dcp

    with pytest.warns(UserWarning, match="single process"):
        dcp.save({"x": torch.ones(3)}, checkpoint_id="theirs")
    with pytest.raises(CheckpointError, match=r"written by torch.distributed.checkpoint(.|\n)*dcp_to_torch theirs"):
        reader.load("theirs")
    Path("theirs/meta.pt").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"sharded checkpoint of Lightning(.|\n)*consolidate_checkpoint theirs"):
        reader.load("theirs")
    os.mkdir("empty")
    with pytest.raises(CheckpointError, match="is empty"):
        reader.load("empty")
    with pytest.raises(CheckpointError, match="does not exist"):
        reader.load("nowhere")
    saved("run/last.ckpt")
    with pytest.raises(CheckpointError, match=r"without an index.json: it has last.ckpt(.|\n)*the checkpoint itself"):
        reader.load("run")
    assert reader.label_of("theirs") is None


def test_parts_have_to_be_all_of_a_tensor():
    assert gap_in((4, 4), [((0, 0), (2, 4)), ((2, 0), (2, 2)), ((2, 2), (2, 2))]) is None
    assert gap_in((), [((), ())]) is None
    assert gap_in((0, 3), []) is None
    assert gap_in((4, 4), [((0, 0), (2, 4))]) == "do not cover it"
    assert gap_in((4, 4), [((0, 0), (3, 4)), ((2, 0), (1, 4))]) == "overlap"
    assert gap_in((4,), [((2,), (3,))]) == "exceed it"
    assert gap_in((4,), [((0, 0), (2, 2))]) == "have another number of dimensions"


# on a store
def test_a_store_has_no_half_checkpoint(monkeypatch: pytest.MonkeyPatch):
    path = "memory://bucket/one.ckpt"
    given = content()
    reader.save(given, path, LABEL)
    assert_same(read_tensors(reader.load(path)), given)
    first = filesystem.names_in(path)
    write = filesystem.write

    def failing(name: str, produce: Any) -> None:
        if name.endswith("index.json"):
            raise CheckpointWriteError("the store is away")
        write(name, produce)

    monkeypatch.setattr(filesystem, "write", failing)
    with pytest.raises(CheckpointWriteError, match="the store is away"):
        reader.save(content(2.0), path, LABEL)
    monkeypatch.undo()
    assert filesystem.names_in(path) == first
    assert_same(read_tensors(reader.load(path)), given)
    reader.save(content(3.0), path, LABEL)
    reader.verify(path)
    assert len(filesystem.names_in(path)) == 2
    filesystem.remove(path)
    assert reader.label_of(path) is None


# several processes
SHAPES = {"even": (8, 6), "uneven": (5, 3), "few": (1, 4), "cube": (4, 2, 6)}


def values() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(*shape, generator=generator) for name, shape in SHAPES.items()}


def joined() -> None:
    distributed.init_process_group("gloo")


def meshes(size: int) -> dict[str, Any]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard

    line = init_device_mesh("cpu", (size,))
    square = init_device_mesh("cpu", (2, size // 2))
    return {
        "rows": (line, (Shard(0),)),
        "columns": (line, (Shard(1),)),
        "copies": (line, (Replicate(),)),
        "hybrid": (square, (Replicate(), Shard(0))),
        "blocks": (square, (Shard(0), Shard(1))),
        "twice": (square, (Shard(0), Shard(0))),
    }


def written_in_parts(rank: int, folder: str, size: int) -> int:
    from torch.distributed.tensor import distribute_tensor

    joined()
    for layout, (mesh, placements) in meshes(size).items():
        spread = {name: distribute_tensor(value, mesh, placements) for name, value in values().items()}
        own = {"all": torch.arange(3.0), f"of {rank}": torch.full((2,), float(rank))}
        state = {rank: {"step": torch.tensor(float(rank)), "note": f"{rank}", "m": None}}
        reader.save(
            {
                "state_dict": spread | own,
                "optimizer_states": [{"state": state, "param_groups": [{"lr": 0.1}]}],
                "rank": rank,
                "callbacks": {"EMA": {"mean": spread["even"], "mine": object() if rank else 1}},
            },
            f"{folder}/{layout}",
            LABEL,
        )
    return filesystem.size_of(f"{folder}/copies")


def read_in_parts(rank: int, folder: str, size: int) -> None:
    from torch.distributed.tensor import distribute_tensor

    joined()
    wanted = values()
    for written in meshes(size):
        found = reader.load(f"{folder}/{written}")["state_dict"]
        for mesh, placements in meshes(size).values():
            for name, value in wanted.items():
                like = distribute_tensor(torch.zeros_like(value), mesh, placements)
                part = found[name].read_part(like)
                assert part.placements == like.placements
                assert part.to_local().shape == like.to_local().shape
                assert torch.equal(part.full_tensor(), value)


@pytest.mark.processes
def test_any_layout_reads_what_any_other_wrote(tmp_path: Path):
    ranks(4, written_in_parts, str(tmp_path), 4)
    assert len(list(tmp_path.iterdir())) == 6
    for path in tmp_path.iterdir():
        reader.verify(path)
        found = read_tensors(reader.load(path))
        assert_same({name: found["state_dict"][name] for name in SHAPES}, values())
        assert [found["state_dict"][f"of {rank}"][0].item() for rank in range(4)] == [0, 1, 2, 3]
        assert [found["optimizer_states"][0]["state"][rank]["note"] for rank in range(4)] == ["0", "1", "2", "3"]
        assert found["rank"] == 0
        assert_same(found["callbacks"]["EMA"], {"mean": values()["even"], "mine": 1})
        shards = [name for name in os.listdir(path) if name.startswith("shard")]
        assert len(shards) == 4
        sizes = sum(os.path.getsize(path / name) for name in shards)
        tensors = [*(value.numel() for value in values().values()), 3, 4 * 2, 4]  # the mean is one of the values
        assert sizes == 4 * sum(tensors)
    ranks(2, read_in_parts, str(tmp_path), 2)


def broken(rank: int, folder: str, failing: int, phase: str) -> str:
    joined()
    path = f"{folder}/{phase}{failing}"
    given: dict[str, Any] = {"state_dict": {f"of {rank}": torch.ones(3)}}
    if rank == failing and phase == "encode":
        given["state_dict"]["bad"] = object()
    if rank == failing and phase == "write":
        filesystem.write = no_space
    try:
        reader.save(given, path, LABEL)
    except CheckpointWriteError as error:
        text = str(error)
    filesystem.write = WRITE
    reader.save({"state_dict": {f"of {rank}": torch.ones(3)}}, path, LABEL)
    return text


WRITE = filesystem.write


def no_space(path: str, produce: Any) -> None:
    raise OSError(28, "No space left on device", path)


@pytest.mark.processes
@pytest.mark.parametrize("phase", ["encode", "write"])
@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_on_one_is_an_error_on_all(phase: str, failing: int, tmp_path: Path):
    texts = ranks(2, broken, str(tmp_path), failing, phase)
    assert texts[0] == texts[1]
    assert ("['state_dict']['bad']" if phase == "encode" else f"(process {failing} of 2)") in texts[0]
    assert [path.name for path in tmp_path.iterdir()] == [f"{phase}{failing}"]
    reader.verify(tmp_path / f"{phase}{failing}")


def on_another_machine(rank: int, folder: str) -> str:
    joined()
    if rank == 1:  # the same path, which means another place
        os.chdir(folder)
        os.mkdir("elsewhere")
        os.chdir("elsewhere")
    else:
        os.chdir(folder)
    try:
        reader.save({"state_dict": {f"of {rank}": torch.ones(3)}}, "one", LABEL)
    except CheckpointWriteError as error:
        return str(error)
    return ""


@pytest.mark.processes
def test_processes_that_do_not_share_a_disk_are_told(tmp_path: Path):
    for text in ranks(2, on_another_machine, str(tmp_path)):
        assert "the first process does not see the file of process 1" in text
        assert "Fix: use a shared file system" in text
    assert [path.name for path in tmp_path.rglob("*")] == ["elsewhere"]


def disagreeing(rank: int, folder: str) -> str:
    joined()
    try:
        reader.save({"state_dict": {"x": torch.ones(3 + rank)}}, f"{folder}/one", LABEL)
    except CheckpointWriteError as error:
        return str(error)
    return ""


@pytest.mark.processes
def test_processes_that_disagree_are_told(tmp_path: Path):
    for text in ranks(2, disagreeing, str(tmp_path)):
        assert "'state_dict/x': (3,) torch.float32, (4,) torch.float32" in text
    assert list(tmp_path.iterdir()) == []


def alone(rank: int, folder: str) -> None:
    joined()
    if rank == 1:
        reader.save({"state_dict": {"x": torch.ones(3)}}, f"{folder}/one", LABEL, alone=True)


@pytest.mark.processes
def test_one_of_several_writes_alone(tmp_path: Path):
    ranks(2, alone, str(tmp_path))
    reader.verify(tmp_path / "one")


def beside(rank: int, folder: str) -> None:
    """Write in a thread over its own group, while the main thread keeps running collectives."""
    joined()
    group = distributed.new_group(backend="gloo")
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for number in range(5):
                given = {"state_dict": {f"of {rank}": torch.full((1000,), float(number))}}
                reader.save(given, f"{folder}/{number}", LABEL, group)
        except BaseException as error:  # noqa: BLE001  checked below
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    going = torch.ones(())
    while going > 0:
        sums = torch.ones(100)
        distributed.all_reduce(sums)
        assert sums.sum() == 200
        going = torch.tensor(float(thread.is_alive()))
        distributed.all_reduce(going)
    thread.join()
    assert not errors


@pytest.mark.processes
def test_a_thread_writes_while_the_run_goes_on(tmp_path: Path):
    ranks(2, beside, str(tmp_path))
    for number in range(5):
        found = read_tensors(reader.load(tmp_path / str(number)))["state_dict"]
        assert sorted(found) == ["of 0", "of 1"]
        assert found["of 1"].unique().tolist() == [number]
