"""archive: a file that torch.load and zip tools read, with a label, and checksums of every byte."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import threading
import warnings
import zipfile
from collections import OrderedDict

import pytest
import torch

from lightlib.checkpoint.file import archive, records, trailer
from lightlib.checkpoint.storage import filesystem as storage
from lightlib.checkpoint.storage.label import Label
from lightlib.errors import ArgumentTypeError, CheckpointError, CheckpointWriteError
from tests.checkpoint.forged import pickled, tensor, zipped

LABEL = Label(run="1f", serial=2, epoch=1, batch=30, step=15)
WHOLE = "a complete file that Trainer.save_checkpoint or Lightning wrote."
ANOTHER = "use another checkpoint; this one is truncated, damaged, or not a checkpoint."


def content(version=2):
    shared = torch.arange(6.0)
    return {
        "state_dict": OrderedDict(
            weight=torch.nn.Parameter(shared.view(2, 3)), view=shared[2:5], bits=torch.ones(3, dtype=torch.bfloat16),
            nothing=torch.empty(0, 4), large=torch.arange(100_000.0),
        ),
        "numbers": [1, 2.5, None, True, "text", (1, {2, 3}), 2**80, b"bytes"],
        "lightlib": {"format": version},
    }  # fmt: skip


def same(one, other):
    for name, value in one["state_dict"].items():
        assert other["state_dict"][name].equal(value)
        assert other["state_dict"][name].dtype == value.dtype
    assert {**other, "state_dict": 0} == {**one, "state_dict": 0}


@pytest.fixture
def path(tmp_path):
    archive.save(content(), tmp_path / "a.ckpt", LABEL)
    return tmp_path / "a.ckpt"


def error_of(path, **arguments):
    with pytest.raises(CheckpointError) as caught:
        archive.load(path, **arguments)
    return str(caught.value)


class TestWritten:
    def test_it_is_read_again(self, path):
        same(content(), archive.load(path))
        assert archive.label_of(path) == LABEL
        assert archive.verify(path) == 1 + 9  # one digest, and nine records with bytes

    @pytest.mark.parametrize("mmap", [False, True])
    def test_torch_reads_it(self, path, mmap):
        same(content(), torch.load(path, weights_only=True, mmap=mmap))

    def test_views_share_their_memory(self, path):
        loaded = archive.load(path)["state_dict"]
        assert loaded["view"].data_ptr() == loaded["weight"].data_ptr() + 8

    @pytest.mark.processes
    def test_zip_tools_find_nothing_wrong(self, path):
        with zipfile.ZipFile(path) as file:
            assert file.testzip() is None
            assert all(one.CRC for one in file.infolist() if one.file_size)
        program = shutil.which("unzip")
        if program is not None:
            assert subprocess.run([program, "-tqq", path], check=False).returncode == 0

    def test_before_the_trailer_are_the_bytes_of_torch(self, path):
        plain = io.BytesIO()
        torch.save(content(), plain)
        theirs, ours = plain.getvalue(), path.read_bytes()
        until = theirs.index(b".data/serialization_id")  # a number of the run of torch
        assert theirs[:until] == ours[:until]

    def test_the_trailer_is_plain_text(self, path):
        text = zipfile.ZipFile(path).comment.decode("ascii")
        values = json.loads(text.splitlines()[0])
        assert list(values) == ["version", "label", "size", "covers", "sha256"]
        assert (values["version"], values["label"]["run"], values["covers"]) == (1, "1f", "records")
        assert path.read_bytes()[values["size"] :].decode() == text

    def test_a_label_may_hold_any_text(self, tmp_path):
        label = Label(run='PK\x05\x06 "ü\n', step=-3)
        archive.save(content(), tmp_path / "a.ckpt", label)
        assert archive.label_of(tmp_path / "a.ckpt") == label
        same(content(), archive.load(tmp_path / "a.ckpt"))

    def test_a_store(self):
        pytest.importorskip("fsspec")
        archive.save(content(), "memory://archive/a.ckpt", LABEL)
        same(content(), archive.load("memory://archive/a.ckpt"))
        assert archive.label_of("memory://archive/a.ckpt") == LABEL
        assert archive.verify("memory://archive/a.ckpt") > 1
        assert archive.load("memory://archive/a.ckpt", "meta", check=False)["state_dict"]["weight"].is_meta
        storage.remove("memory://archive/a.ckpt")

    def test_nothing_but_tensors_that_are_empty(self, tmp_path):
        archive.save({"state_dict": {"a": torch.empty(0)}}, tmp_path / "a.ckpt", LABEL)
        assert archive.load(tmp_path / "a.ckpt")["state_dict"]["a"].shape == (0,)

    def test_torchs_own_checksums_are_as_before(self, path, monkeypatch):
        assert torch.serialization.get_crc32_options()
        seen, save = [], torch.save

        def fails(content, file, **options):
            seen.append(torch.serialization.get_crc32_options())
            save(content, file, **options)
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(torch, "save", fails)
        with pytest.raises(CheckpointWriteError, match="No space left"):
            archive.save(content(), path, LABEL)
        assert (seen, torch.serialization.get_crc32_options()) == ([False], True)
        same(content(), archive.load(path))

    def test_two_at_once(self, tmp_path):
        """The user's settings for torch.save are restored, also where all threads share them."""
        path = [tmp_path / f"{k}.ckpt" for k in range(4)]
        threads = [threading.Thread(target=archive.save, args=(content(), one, LABEL)) for one in path]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert torch.serialization.get_crc32_options()
        for one in path:
            same(content(), archive.load(one))

    def test_no_thread_stays(self, tmp_path):
        before = set(threading.enumerate())
        archive.save(content(), tmp_path / "a.ckpt", LABEL)
        archive.load(tmp_path / "a.ckpt")
        with pytest.raises(CheckpointWriteError):
            archive.save({"lock": threading.Lock()}, tmp_path / "b.ckpt", LABEL)
        assert set(threading.enumerate()) == before


class TestAnotherTorch:
    """A version with another file layout: the digest then covers all bytes."""

    @pytest.fixture
    def whole(self, tmp_path, monkeypatch):
        monkeypatch.setattr(records, "HEADER_SIZE", 31)  # makes torch's files look unfamiliar
        archive.save(content(), tmp_path / "b.ckpt", LABEL)
        monkeypatch.undo()
        return tmp_path / "b.ckpt"

    def test_it_is_written_and_read(self, whole):
        assert json.loads(zipfile.ZipFile(whole).comment.splitlines()[0])["covers"] == "all"
        same(content(), archive.load(whole))
        same(content(), torch.load(whole, weights_only=True))
        assert (archive.verify(whole), archive.label_of(whole)) == (1, LABEL)
        assert zipfile.ZipFile(whole).testzip() is None

    def test_damage_is_found(self, whole):
        data = bytearray(whole.read_bytes())
        for place in range(0, len(data), 9973):
            data[place] ^= 4
            with pytest.raises(CheckpointError):
                archive.load(io.BytesIO(data))
            data[place] ^= 4


class TestRefusedToWrite:
    def test_what_cannot_be_pickled(self, path):
        before = path.read_bytes()
        with pytest.raises(CheckpointWriteError) as caught:
            archive.save({"state_dict": {}, "mine": [1, {"x": threading.Lock()}]}, path, LABEL)
        what, expected, fix = str(caught.value).splitlines()
        assert what.startswith(f"The checkpoint '{path}' could not be written: it has an object that cannot be ")
        assert "pickled at ['mine'][1]['x'] (lock): " in what
        assert expected == "  Expected: tensors, numbers, strings, lists and dicts of them."
        assert fix.endswith("earlier checkpoints are unchanged.")
        assert path.read_bytes() == before

    def test_what_torch_refuses(self, path):
        storage_ = torch.ones(4)
        with pytest.raises(CheckpointWriteError, match="view the same data as different types"):
            archive.save({"a": storage_, "b": storage_.view(torch.int32)}, path, LABEL)
        same(content(), archive.load(path))


class TestOthersFiles:
    """Files of torch.save and Lightning have no trailer."""

    @pytest.mark.parametrize("version", [1, 2])  # 2: read and written again by the user
    def test_of_torch(self, tmp_path, version):
        torch.save(content(version), tmp_path / "a.pt")
        same(content(version), archive.load(tmp_path / "a.pt"))
        assert archive.label_of(tmp_path / "a.pt") is None
        assert archive.verify(tmp_path / "a.pt") == 0

    def test_their_checksums_are_compared(self, tmp_path):
        torch.save(content(1), tmp_path / "a.pt")
        data = bytearray((tmp_path / "a.pt").read_bytes())
        data[len(data) // 2] ^= 1
        (tmp_path / "a.pt").write_bytes(data)
        assert "its record 'data/3' differs from its checksum" in error_of(tmp_path / "a.pt")
        with pytest.raises(CheckpointError, match="data/3"):
            archive.verify(tmp_path / "a.pt")

    def test_without_checksums(self, tmp_path):
        torch.serialization.set_crc32_options(False)
        try:
            torch.save(content(1), tmp_path / "a.pt")
        finally:
            torch.serialization.set_crc32_options(True)
        same(content(1), archive.load(tmp_path / "a.pt"))

    def test_of_torch_before_1_6(self, tmp_path):
        torch.save(content(1), tmp_path / "a.pt", _use_new_zipfile_serialization=False)
        same(content(1), archive.load(tmp_path / "a.pt"))
        assert archive.verify(tmp_path / "a.pt") == 0
        assert archive.label_of(tmp_path / "a.pt") is None

    def test_ours_was_never_a_file_before_1_6(self, tmp_path):
        torch.save(content(2), tmp_path / "a.pt", _use_new_zipfile_serialization=False)
        assert "its end is damaged" in error_of(tmp_path / "a.pt")

    def test_a_comment_of_somebody_else(self, tmp_path):
        torch.save(content(1), tmp_path / "a.pt")
        with zipfile.ZipFile(tmp_path / "a.pt", "a") as file:
            file.comment = b"of mine"
        same(content(1), archive.load(tmp_path / "a.pt"))
        torch.save(content(2), tmp_path / "a.pt")
        with zipfile.ZipFile(tmp_path / "a.pt", "a") as file:
            file.comment = b"of mine"
        assert "its end is damaged" in error_of(tmp_path / "a.pt")

    def test_a_newer_trailer(self, path, monkeypatch):
        monkeypatch.setattr(trailer, "NEWEST", 2)
        archive.save(content(), path, LABEL)
        monkeypatch.undo()
        assert error_of(path).splitlines() == [
            "The file's trailer has version 2, which is newer than this version of lightlib.",
            "  Expected: a version of at most 1.",
            "  Fix: pip install --upgrade lightlib",
        ]


class TestRead:
    def test_open_files(self, path):
        data = path.read_bytes()
        with path.open("rb") as file:
            same(content(), archive.load(file))
        same(content(), archive.load(io.BytesIO(data)))
        behind = io.BytesIO(b"before" + data)
        behind.seek(6)
        same(content(), archive.load(behind))

        class Stream:
            """A stream that can only be read forward."""

            read = io.BytesIO(data).read

        same(content(), archive.load(Stream()))

    @pytest.mark.processes
    def test_a_pipe(self, path):
        with subprocess.Popen(
            [sys.executable, "-c", f"import sys; sys.stdout.buffer.write(open({str(path)!r}, 'rb').read())"],
            stdout=subprocess.PIPE,
        ) as program:
            same(content(), archive.load(program.stdout))

    def test_where_tensors_go(self, path):
        assert archive.load(path, "meta")["state_dict"]["weight"].is_meta
        assert archive.load(path, {"cpu": "meta"})["state_dict"]["weight"].is_meta
        seen = []
        archive.load(path, lambda storage, location: seen.append(location) or storage)
        assert set(seen) == {"cpu"}

    def test_tensors_that_stay_in_the_file(self, path):
        loaded = archive.load(path, mmap=True)
        same(content(), loaded)
        before = path.read_bytes()
        loaded["state_dict"]["large"].zero_()  # a copy in memory of the pages that are written
        assert path.read_bytes() == before
        archive.save(content(), path, LABEL)  # another file of this name
        assert loaded["state_dict"]["view"].equal(content()["state_dict"]["view"])

    def test_without_comparing(self, path):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        assert archive.load(path, "meta", check=False)["state_dict"]["large"].shape == (100_000,)
        assert "differs from its checksum" in error_of(path)

    @pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
    def test_a_device_that_is_not_here(self):
        data = zipped(pickled({"state_dict": {"a": tensor(location="cuda:0")}}))
        assert error_of(io.BytesIO(data)).endswith(
            '  Fix: pass map_location="cpu": it was saved on a device that this machine does not have.'
        )
        assert archive.load(io.BytesIO(data), "cpu")["state_dict"]["a"].equal(torch.zeros(10))

    @pytest.mark.parametrize("given", [3, None, ["a.ckpt"]])
    def test_no_path(self, given):
        with pytest.raises(ArgumentTypeError, match="The path of a checkpoint is"):
            archive.load(given)

    def test_absent(self, tmp_path):
        for call in (archive.load, archive.verify):
            with pytest.raises(FileNotFoundError):
                call(tmp_path / "a.ckpt")
        assert archive.label_of(tmp_path / "a.ckpt") is None
        assert archive.label_of(tmp_path) is None

    def test_a_protocol_that_is_not_known(self):
        pytest.importorskip("fsspec")
        text = error_of("nowhere://bucket/a.ckpt")
        assert text.startswith("'nowhere://bucket/a.ckpt' cannot be accessed: Protocol not known: nowhere")

    def test_a_folder(self, tmp_path):
        text = error_of(tmp_path)
        assert text.splitlines()[0] == f"'{tmp_path}' could not be read as a checkpoint: it is a directory."

    @pytest.mark.parametrize("data", [b"", b"hello\nworld\n", bytes(range(256)) * 9, b"PK\x03\x04", b"\x80\x02."])
    def test_something_else(self, data):
        what, expected, fix = error_of(io.BytesIO(data)).splitlines()
        assert what.startswith("The file object could not be read as a checkpoint: ")
        assert (expected, fix) == (f"  Expected: {WHOLE}", f"  Fix: {ANOTHER}")

    def test_memory_that_is_really_short(self, path, monkeypatch):
        def short(*args, **kwargs):
            raise MemoryError("no more")

        monkeypatch.setattr(torch, "load", short)
        with pytest.raises(MemoryError, match="no more"):
            archive.load(path)


def test_large_files_are_checked_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "PIECE", 1000)
    monkeypatch.setattr(records, "LARGE", 1000)
    archive.save(content(), tmp_path / "a.ckpt", LABEL)
    same(content(), archive.load(tmp_path / "a.ckpt"))


def test_saving_again_and_again_costs_no_memory(tmp_path):
    """No warning of torch, and none of Python about files that were left open."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(20):
            archive.save(content(), tmp_path / "a.ckpt", Label(step=step))
        assert archive.label_of(tmp_path / "a.ckpt").step == 19
