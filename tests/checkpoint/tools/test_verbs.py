"""The verbs: inspect checkpoints, verify them, and convert them."""

from __future__ import annotations

import errno
import json
import os
import sys

import h5py
import pytest
import torch
from packaging.version import Version

from lightlib.checkpoint import Label, consolidate, convert, export, inspect, load, verify
from lightlib.errors import CheckpointError, CheckpointWriteError, MisconfigurationException, UnknownNameError
from tests.checkpoint.samples import LABEL, content, malicious, same, write
from tests.processes import programs

KINDS = ["file", "directory", "torch", "old"]


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


# inspect


@pytest.mark.parametrize("kind", KINDS)
def test_inspect_finds_what_is_in_it(tmp_path, kind):
    path = write(tmp_path, kind)
    found = inspect(path)
    assert found.kind == ("directory" if kind == "directory" else "file")
    assert found.bytes > 0
    assert found.resumable
    assert found.step == 7
    assert {name: (one.shape, one.dtype, one.bytes) for name, one in found.tensors.items()} == {
        "model.embed.weight": ((3, 4), "float32", 48),
        "model.head.weight": ((3, 4), "float32", 48),
        "model.head.bias": ((3,), "float32", 12),
        "steps": ((), "int64", 8),
    }
    parts = {part.name: part for part in found.parts}
    assert (parts["optimizer_states"].tensors, parts["optimizer_states"].elements) == (3, 25)
    assert parts["state_dict"].elements == 28
    assert parts["lr_schedulers"].tensors == 0
    assert found.hyperparameters == {"lr": 0.1, "hub": {"api_key": "***"}, "note": "a\x1b[2Jb"}
    assert found.callbacks == ("EarlyStopping{'monitor': 'v', 'mode': 'min'}",)


@pytest.mark.parametrize("kind", ["file", "directory", "old"])
def test_inspect_finds_who_wrote_it(tmp_path, kind):
    found = inspect(write(tmp_path, kind))
    assert found.writer == f"lightlib (format {1 if kind == 'old' else 2})"
    assert found.label == LABEL
    assert (found.epoch, found.epoch_batch, found.batch, found.step) == (1, 4, 14, 7)
    assert (found.strategy, found.precision, found.world_size) == ("ddp(2)", "32-true", 2)
    assert found.versions == {"torch": "2.13.0"}


def test_tied_weights_have_their_bytes_once(tmp_path):
    (part,) = [one for one in inspect(write(tmp_path, "file")).parts if one.name == "state_dict"]
    assert (part.tensors, part.elements, part.bytes) == (4, 28, 48 + 12 + 8)


def test_inspect_prints_what_people_ask_for(tmp_path):
    text = str(inspect(os.path.relpath(write(tmp_path, "file"))))
    expected = """\
last.ckpt: a file of lightlib (format 2), SIZE kB
  run         5f0c, save 3
  position    epoch 1, 4 batches into it, 14 batches in total, 7 steps
  written by  2 processes, ddp(2), 32-true, torch 2.13.0
  resume      yes
  parts       state_dict         4 tensors    28 numbers   68 bytes
              loops              no tensors
              lightlib           no tensors
              optimizer_states   3 tensors    25 numbers   100 bytes
              lr_schedulers      no tensors
              callbacks          no tensors
  largest     model.embed.weight   float32 [3, 4]   48 bytes
              model.head.weight    float32 [3, 4]   48 bytes
              model.head.bias      float32 [3]      12 bytes
              steps                int64 []         8 bytes
  hparams     lr = 0.1
              hub = {'api_key': '***'}
              note = 'a\\x1b[2Jb'
  callbacks   EarlyStopping{'monitor': 'v', 'mode': 'min'}"""
    lines = text.splitlines()
    lines[0] = lines[0].rpartition(", ")[0] + ", SIZE kB"
    assert [line.rstrip() for line in lines] == expected.splitlines()


def test_weights_alone_are_said_to_be_no_run(tmp_path):
    found = inspect(write(tmp_path, "file", weights_only=True))
    assert not found.resumable
    assert found.label.weights_only
    assert "resume      no: it has only weights" in str(found)


def test_inspect_as_json(tmp_path):
    values = json.loads(json.dumps(inspect(write(tmp_path, "directory")).as_dict()))
    assert values["label"]["run"] == "5f0c"
    assert values["tensors"]["steps"] == {"shape": [], "dtype": "int64", "bytes": 8}


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_inspect_reads_no_tensors(tmp_path, kind):
    big = {"state_dict": {"big": torch.zeros(2**22)}}
    path = write(tmp_path, kind, **big)
    if kind == "file" and Version(torch.__version__) < Version("2.13"):
        pytest.skip("older releases of torch read the bytes of tensors that they put on the device meta")
    before = read_bytes()
    assert inspect(path).tensors["big"].bytes == 2**24
    assert read_bytes() - before < 2**20


def read_bytes() -> int:
    """Return the number of bytes that this process has read from files, cached or not."""
    if not os.path.exists("/proc/self/io"):
        pytest.skip("the system does not count what a process reads")
    with open("/proc/self/io") as file:
        return int(next(line for line in file if line.startswith("rchar")).split()[1])


def test_strange_values_in_known_places_are_an_error(tmp_path):
    for change in ({"lightlib": {"format": "new"}}, {"callbacks": 3}, {"hyper_parameters": [1]}):
        path = write(tmp_path, "file", **change)
        with pytest.raises(CheckpointError, match="damaged or written by another program"):
            inspect(path)


# verify


@pytest.mark.parametrize(
    ("kind", "note"), [("file", ""), ("directory", ""), ("torch", "CRC-32"), ("old", "no checksums")]
)
def test_verify_says_what_was_compared(tmp_path, kind, note):
    found = verify(path := write(tmp_path, kind))
    assert (found.checksums > 0) == (kind != "old")
    assert note in found.note
    assert bool(note) == bool(found.note)
    assert str(found).startswith(f"{path}: {'no damage found' if kind == 'old' else 'intact'}. ")


@pytest.mark.parametrize("kind", ["file", "directory", "torch"])
def test_verify_finds_a_flipped_bit(tmp_path, kind):
    path = write(tmp_path, kind)
    name = path if kind != "directory" else os.path.join(path, next(n for n in os.listdir(path) if n != "index.json"))
    with open(name, "r+b") as file:
        data = bytearray(file.read())
        place = data.index(torch.arange(3.0).numpy().tobytes()) + 5
        data[place] ^= 4
        file.seek(0)
        file.write(data)
    with pytest.raises(CheckpointError, match=r"last|torch"):
        verify(path)


@pytest.mark.parametrize("cut", [1, 100, 3000])
@pytest.mark.parametrize("kind", ["file", "torch", "old"])
def test_verify_finds_a_cut(tmp_path, kind, cut):
    path = write(tmp_path, kind)
    os.truncate(path, max(0, os.path.getsize(path) - cut))
    with pytest.raises(CheckpointError):
        verify(path)


def forbid(monkeypatch, name, word):
    """Let `os.open` or the like refuse paths that contain `word`, as without permission."""
    original = getattr(os, name)

    def refuse(path, *args, **kwargs):
        if word in os.fspath(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return original(path, *args, **kwargs)

    monkeypatch.setattr(os, name, refuse)


# load


@pytest.mark.parametrize("kind", KINDS)
def test_load_reads_all_of_it(tmp_path, kind):
    found, expected = load(write(tmp_path, kind)), content()
    if kind == "torch":
        del expected["lightlib"]
    if kind == "old":
        expected["lightlib"]["format"] = 1
    assert same(found, expected)


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_load_to_another_device(tmp_path, kind):
    found = load(write(tmp_path, kind), map_location="meta")
    assert found["state_dict"]["steps"].device.type == "meta"
    assert found["optimizer_states"][0]["state"][0]["exp_avg"].device.type == "meta"


def test_no_code_is_run_without_trust(tmp_path):
    path, canary = malicious(tmp_path)
    calls = [
        lambda: load(path),
        lambda: inspect(path),
        lambda: verify(path),
        lambda: convert(path, "d"),
        lambda: export(path, "w.safetensors"),
    ]
    for call in calls:
        with pytest.raises(CheckpointError, match=r"can only be loaded by running code(.|\n)*trust"):
            call()
    assert not canary.exists()
    assert load(path, trust=True)["state_dict"] == {}
    assert canary.exists()


# convert and consolidate


def test_there_and_back_is_the_same(tmp_path):
    path = write(tmp_path, "file")
    convert(path, "there")
    assert os.path.isdir("there")
    assert inspect("there").label == LABEL
    consolidate("there", "back.ckpt")
    assert same(load("back.ckpt"), content())
    assert same(torch.load("back.ckpt"), content())
    assert inspect("back.ckpt").label == LABEL
    assert verify("back.ckpt").checksums > 0


def test_a_foreign_file_gets_checksums(tmp_path):
    path = write(tmp_path, "torch")
    convert(path, "mine.ckpt", "file")
    assert same(load("mine.ckpt"), load(path))
    assert not verify("mine.ckpt").note
    convert(path, "mine")
    assert same(load("mine"), load(path))


def test_convert_to_safetensors(tmp_path):
    convert(write(tmp_path, "file"), "w.safetensors")
    found, expected = load("w.safetensors")["state_dict"], content()["state_dict"]
    assert sorted(found) == sorted(expected)
    assert all(same(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda path: convert(path, "x", "zip"), UnknownNameError, "Unknown format 'zip'"),
        (lambda path: convert(path, "x.ckpt", "safetensors"), MisconfigurationException, "wrong suffix"),
        (lambda path: convert(path, "x.safetensors", "file"), MisconfigurationException, "wrong suffix"),
        (lambda path: convert("none.ckpt", "x"), CheckpointError, "There is no checkpoint 'none.ckpt'"),
        (lambda path: convert(path, path, "file", overwrite=True), MisconfigurationException, "are the same"),
        (lambda path: convert(path, "there"), CheckpointWriteError, "The file 'there' already exists"),
        (lambda path: convert(path, "there", overwrite=True), CheckpointWriteError, "The file 'there' already exists"),
        (lambda path: convert(path, "folder", "file", overwrite=True), CheckpointWriteError, "The folder"),
        (lambda path: consolidate(path, "x.ckpt"), MisconfigurationException, "is already a file"),
        (lambda path: consolidate("none", "x.ckpt"), CheckpointError, "There is no checkpoint 'none'"),
        (lambda path: consolidate("folder", "x.ckpt"), CheckpointError, "folder"),
        (lambda path: export(path, "x.pt"), MisconfigurationException, r"does not end in \.safetensors or \.h5"),
        (lambda path: export(path, "x.safetensors", dtype="int8"), UnknownNameError, "Unknown dtype 'int8'"),
        (lambda path: export(path, "x.safetensors", strip="net."), MisconfigurationException, "begins with 'net.'"),
        (lambda path: export(path, "there/x.safetensors"), CheckpointWriteError, "x.safetensors"),
        (lambda path: verify("none"), CheckpointError, "There is no checkpoint 'none'"),
        (lambda path: inspect("folder"), CheckpointError, "folder"),
        (lambda path: inspect("there"), CheckpointError, "could not be read as a checkpoint"),
    ],
)
def test_what_cannot_be_done_is_said_and_leaves_all_as_it_is(tmp_path, call, error, text):
    path = os.path.relpath(write(tmp_path, "file"))
    (tmp_path / "there").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine.txt").write_text("mine")
    before = {name: os.path.getmtime(name) for name in ("there", "folder/mine.txt", path)}
    with pytest.raises(error, match=text):
        call(path)
    assert {name: os.path.getmtime(name) for name in before} == before
    assert sorted(os.listdir()) == sorted([path, "there", "folder"])


def test_overwrite_replaces_like_by_like(tmp_path):
    path = write(tmp_path, "file")
    other = write(tmp_path / "other", "file", epoch=5)
    convert(other, "copy.ckpt", "file")
    convert(path, "copy.ckpt", "file", overwrite=True)
    assert load("copy.ckpt")["epoch"] == 1
    convert(other, "d")
    convert(path, "d", overwrite=True)
    assert load("d")["epoch"] == 1


@pytest.mark.parametrize("target", ["closed/x.ckpt", "closed/x", "closed/x.safetensors"])
def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch, target):
    path = write(tmp_path, "file")
    (tmp_path / "closed").mkdir(mode=0o500)
    if os.geteuid() == 0:  # root may write anywhere
        forbid(monkeypatch, "open", "closed")
        forbid(monkeypatch, "mkdir", "closed")
    with pytest.raises(CheckpointWriteError, match=r"closed(.|\n)*Permission denied(.|\n)*Fix:"):
        convert(path, target, "file" if target.endswith(".ckpt") else None)
    assert os.listdir("closed") == []


# export


@pytest.mark.parametrize("kind", KINDS)
def test_export_keeps_names_values_and_place(tmp_path, kind):
    safetensors = pytest.importorskip("safetensors")
    export(write(tmp_path, kind), "w.safetensors")
    with safetensors.safe_open("w.safetensors", framework="pt") as file:
        metadata = file.metadata()
        assert len(metadata.pop("lightlib.sha256")) == 64
        assert metadata == {"format": "pt", "epoch": "1", "global_step": "7"}
        assert {name: file.get_tensor(name).tolist() for name in file.keys()} == {  # noqa: SIM118  no mapping
            name: value.tolist() for name, value in content()["state_dict"].items()
        }
    found = inspect("w.safetensors")
    assert (found.kind, found.step, found.resumable) == ("safetensors", 7, False)
    assert str(found).startswith("w.safetensors: a safetensors file, ")
    assert found.tensors == inspect(str(tmp_path / "w.safetensors")).tensors
    assert load("w.safetensors", map_location="meta")["state_dict"]["steps"].device.type == "meta"


@pytest.mark.parametrize("kind", KINDS)
def test_export_to_hdf5(tmp_path, kind):
    export(write(tmp_path, kind), "w.h5", dtype="float64")
    with h5py.File("w.h5") as file:
        assert dict(file.attrs) == {"format": "pt", "epoch": "1", "global_step": "7"}
        assert {name: data[()].tolist() for name, data in file.items()} == {
            name: value.tolist() for name, value in content()["state_dict"].items()
        }
        assert file["model.head.bias"].dtype == "float64"
    with pytest.raises(CheckpointWriteError, match=r"w\.h5(.|\n)*Fix: .*overwrite=True"):
        export(write(tmp_path, kind), "w.h5")


def test_hdf5_needs_its_package_and_dtypes_of_numpy(tmp_path, monkeypatch):
    path = write(tmp_path, "file")
    with pytest.raises(
        CheckpointWriteError, match=r"cannot be written to 'w\.h5'(.|\n)*Fix: export\(…, dtype='float32'"
    ):
        export(path, "w.h5", dtype="bfloat16")
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(MisconfigurationException, match=r"needs the package h5py(.|\n)*pip install 'h5py>="):
        export(path, "w.h5")
    assert not (tmp_path / "w.h5").exists()


def test_export_strips_a_prefix_and_casts(tmp_path):
    export(write(tmp_path, "file"), "w.safetensors", strip="model.", dtype="bfloat16")
    state = load("w.safetensors")["state_dict"]
    assert sorted(state) == ["embed.weight", "head.bias", "head.weight", "steps"]
    assert state["head.bias"].dtype == torch.bfloat16
    assert state["steps"].dtype == torch.int64


def test_a_prefix_may_not_make_two_names_one(tmp_path):
    state = {"model.a": torch.ones(1), "a": torch.zeros(1)}
    path = write(tmp_path, "file", state_dict=state)
    with pytest.raises(MisconfigurationException, match=r"Without 'model\.' the weight 'model\.a'"):
        export(path, "w.safetensors", strip="model.")


def test_views_and_strides_are_written_as_they_are_seen(tmp_path):
    base = torch.arange(12.0).view(3, 4)
    path = write(tmp_path, "file", state_dict={"turned": base.t(), "row": base[1], "base": base, "empty": base[:0]})
    export(path, "w.safetensors")
    state = load("w.safetensors")["state_dict"]
    assert state["turned"].equal(base.t())
    assert state["row"].equal(base[1])
    assert state["empty"].shape == (0, 4)


def test_what_is_no_tensor_is_left_out_with_a_warning(tmp_path):
    path = write(tmp_path, "file", state_dict={"a": torch.ones(1), "_extra_state": {"x": 1}})
    with pytest.warns(UserWarning, match="'_extra_state' of .* are not tensors"):
        export(path, "w.safetensors")
    assert list(load("w.safetensors")["state_dict"]) == ["a"]


def test_a_sparse_weight_is_refused(tmp_path):
    path = write(tmp_path, "file", state_dict={"a": torch.eye(2).to_sparse()})
    with pytest.raises(CheckpointWriteError, match="'a' cannot be written"):
        export(path, "w.safetensors")


@pytest.mark.parametrize(
    "data",
    [b"", b"1234567", b"\xff" * 40, (3).to_bytes(8, "little") + b"[1]", (2).to_bytes(8, "little") + b"{}left over"],
)
def test_a_damaged_safetensors_file_is_refused(tmp_path, data):
    (tmp_path / "w.safetensors").write_bytes(data)
    for call in (load, inspect, verify):
        with pytest.raises(CheckpointError, match="could not be read as safetensors"):
            call("w.safetensors")


@pytest.mark.parametrize(
    ("shape", "end"),
    [
        ([-1], 4),
        ([-1, -1], 4),
        ([2**62, 4], 0),  # the product of 64 bits is 0
        ([2**64], 0),
        ([0, 2**62, 2**62], 0),  # an empty tensor with strides that overflow
        ([1.0], 4),
        ([True], 4),
        ("1", 4),
        ([[1]], 4),
        ([2], 4),
        ([1], 2**70),
        ([1], 4.0),
        ([1e400], 0),
    ],
)
def test_a_shape_that_no_tensor_has_is_refused(tmp_path, shape, end):
    header = json.dumps({"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, end]}}).encode()
    data = b"\0" * (4 if end else 0)
    (tmp_path / "w.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)
    for call in (load, inspect, verify):
        with pytest.raises(CheckpointError, match="could not be read as safetensors"):
            call("w.safetensors")


@pytest.mark.parametrize("epoch", ["²", "9" * 5000, "-1", ""])
def test_what_another_program_noted_as_the_epoch_is_no_number(tmp_path, epoch):
    header = json.dumps({"__metadata__": {"epoch": epoch, "global_step": "7"}}).encode()
    (tmp_path / "w.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    assert load("w.safetensors") == {"state_dict": {}, "global_step": 7}


def test_safetensors_cut_or_grown_are_refused(tmp_path):
    export(write(tmp_path, "file"), "w.safetensors")
    data = (tmp_path / "w.safetensors").read_bytes()
    for changed in (data[:-1], data + b"1", data[:50]):
        (tmp_path / "w.safetensors").write_bytes(changed)
        with pytest.raises(CheckpointError, match="could not be read as safetensors"):
            verify("w.safetensors")


def test_without_safetensors_the_install_command_is_said(tmp_path, monkeypatch):
    path = write(tmp_path, "file")
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(MisconfigurationException, match=r"pip install 'safetensors>="):
        export(path, "w.safetensors")


# remote, and the package


def test_verbs_take_urls(tmp_path):
    path = write(tmp_path, "file")
    convert(path, "memory://verbs/copy.ckpt", "file")
    convert("memory://verbs/copy.ckpt", "memory://verbs/directory")
    export("memory://verbs/directory", "memory://verbs/w.safetensors")
    for url in ("memory://verbs/copy.ckpt", "memory://verbs/directory", "memory://verbs/w.safetensors"):
        assert inspect(url).tensors["steps"].dtype == "int64"
        verify(url)
    assert same(load("memory://verbs/directory"), content())
    with pytest.raises(CheckpointWriteError, match="already"):
        convert(path, "memory://verbs/copy.ckpt", "file")


@pytest.mark.processes
def test_the_package_is_imported_on_use():
    code = (
        "import sys, lightlib, lightlib.checkpoint;"
        "assert not [name for name in sys.modules if name.startswith('lightlib.checkpoint.')];"
        "assert 'inspect' in dir(lightlib.checkpoint)"
    )
    done = programs.interpreter("-c", code)
    assert done.returncode == 0, done.stderr


def test_the_public_names():
    assert Label.of(LABEL.as_dict()) == LABEL
