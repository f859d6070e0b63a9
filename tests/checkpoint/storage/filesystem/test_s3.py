"""S3: with a server that throttles, hangs and drops connections, saves are equal to local ones."""

from __future__ import annotations

import os

import pytest

from lightlib.checkpoint.storage import filesystem, retries
from lightlib.errors import CheckpointWriteError, MisconfigurationException
from tests.campaigns import faulty_store
from tests.campaigns.faulty_store import BUCKET, PART, Faults

pytestmark = pytest.mark.processes

pytest.importorskip("s3fs", reason="pip install s3fs")
pytest.importorskip("moto.server", reason="pip install 'moto[s3]' flask flask-cors")

SMALL, LARGE = os.urandom(1000), os.urandom(PART * 2 + 1000)
STORE = "a store that can be accessed and written."
CHECK = "check the address, the credentials and the quota."


@pytest.fixture(scope="module")
def server():
    with faulty_store.store() as found:
        yield found


@pytest.fixture
def store(server, monkeypatch, request):
    """The server without a fault planned, an empty folder in it, and short pauses."""
    faulty_store.quickly(monkeypatch.setattr)
    server.faults.__init__()
    yield server
    server.faults.__init__()


@pytest.fixture
def folder(request):
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    return f"s3://{BUCKET}/{name}"


def produce(content):
    return lambda file: file.write(content) and None


def read(path):
    with filesystem.open_for_reading(path) as file:
        return file.read()


def keys(store, folder):
    start = folder.removeprefix(f"s3://{BUCKET}/") + "/"
    return [key.removeprefix(start) for key in store.names() if key.startswith(start)]


class TestOneFault:
    @pytest.mark.parametrize("fault", ["throttled 503", "throttled 429", "dropped", "cut upload", "lost answer"])
    @pytest.mark.parametrize("kind", ["PutObject", "HeadObject", "DeleteObject"])
    def test_of_a_small_object(self, store, folder, kind, fault):
        path = filesystem.join(folder, "a.ckpt")
        filesystem.write(path, produce(b"older"))
        store.faults.planned = [(kind, fault)] * 3
        filesystem.write(path, produce(SMALL))
        assert read(path) == SMALL
        assert keys(store, folder) == ["a.ckpt"]
        filesystem.remove(path)
        assert keys(store, folder) == filesystem.names_in(folder) == []
        assert store.faults.planned == []

    @pytest.mark.parametrize("fault", ["broken 500", "cut upload", "lost answer"])
    @pytest.mark.parametrize("kind", ["UploadPart", "CompleteMultipartUpload"])
    def test_of_an_upload_in_parts(self, store, folder, kind, fault):
        path = filesystem.join(folder, "a.ckpt")
        filesystem.write(path, produce(b"older"))
        store.faults.planned = [(kind, fault)] * 3
        filesystem.write(path, produce(LARGE))
        assert read(path) == LARGE
        assert store.open_uploads() == []

    @pytest.mark.parametrize("fault", ["throttled 503", "cut answer"])
    def test_while_it_is_read(self, store, folder, fault):
        path = filesystem.join(folder, "a.ckpt")
        filesystem.write(path, produce(LARGE))
        store.faults.planned = [("GetObject", fault)] * 3
        assert read(path) == LARGE

    def test_an_answer_that_comes_too_late(self, store, folder):
        path = filesystem.join(folder, "a.ckpt")
        store.faults.planned = [("PutObject", "delayed")]
        filesystem.write(path, produce(SMALL))
        assert read(path) == SMALL


class TestForGood:
    def test_throttled(self, store, folder, monkeypatch):
        monkeypatch.setattr(retries, "ATTEMPTS", 3)
        path = filesystem.join(folder, "a.ckpt")
        filesystem.write(path, produce(b"older"))
        store.faults.always = {"UploadPart": "throttled 503"}
        times = []
        with pytest.raises(CheckpointWriteError) as caught:
            filesystem.write(path, lambda file: times.append(file.write(LARGE)))
        text = str(caught.value)
        assert text.startswith(
            f"The checkpoint {path!r} could not be written: [Errno 16] Please reduce your request rate. Tried 3 "
        )
        assert text.endswith(f" s.\n  Expected: {STORE}\n  Fix: {CHECK}")
        assert store.open_uploads() == []
        assert read(path) == b"older"

    def test_forbidden(self, store, folder):
        path = filesystem.join(folder, "a.ckpt")
        store.faults.always = {"PutObject": "forbidden"}
        with pytest.raises(CheckpointWriteError) as caught:
            filesystem.write(path, produce(SMALL))
        assert str(caught.value) == (
            f"The checkpoint {path!r} could not be written: Access Denied.\n  Expected: {STORE}\n  Fix: {CHECK}"
        )
        assert store.faults.asked["PutObject"] == 1
        with pytest.raises(
            MisconfigurationException, match=f"ModelCheckpoint cannot write into '{folder}': Access Denied"
        ):
            filesystem.check_writable(folder, "ModelCheckpoint")

    def test_no_such_bucket(self, store):
        with pytest.raises(
            CheckpointWriteError, match=r"'s3://nowhere/a' could not be written: .*bucket does not exist"
        ):
            filesystem.write("s3://nowhere/a", produce(SMALL))

    def test_an_error_of_the_one_who_writes(self, store, folder):
        path = filesystem.join(folder, "a.ckpt")
        filesystem.write(path, produce(b"older"))

        def fails(file):
            file.write(LARGE)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            filesystem.write(path, fails)
        assert store.faults.met == {}
        assert store.open_uploads() == []
        assert read(path) == b"older"

    def test_an_upload_that_cannot_be_given_up_is_said(self, store, folder, monkeypatch):
        monkeypatch.setattr(retries, "ATTEMPTS", 2)
        path = filesystem.join(folder, "a.ckpt")
        store.faults.always = {"UploadPart": "forbidden", "AbortMultipartUpload": "forbidden"}
        with (
            pytest.warns(
                UserWarning, match=r"upload of 's3://.*a\.ckpt' could not be discarded: Access Denied\. It is not a"
            ),
            pytest.raises(CheckpointWriteError, match="Access Denied"),
        ):
            filesystem.write(path, produce(LARGE))
        store.abort_uploads()


class TestFolders:
    def test_the_index_goes_first_and_comes_last(self, store, folder):
        for name in ("b", "index.json", "a/c"):
            filesystem.write(filesystem.join(folder, f"x/{name}"), produce(SMALL))
        order = []
        next_fault = Faults.next

        def noted(faults, request):
            order.append((request.kind, request.path.rpartition("/")[2]))
            return next_fault(faults, request)

        store.faults.next = noted.__get__(store.faults)
        filesystem.copy(filesystem.join(folder, "x"), filesystem.join(folder, "y"))
        filesystem.remove(filesystem.join(folder, "x"))
        del store.faults.next
        assert [name for kind, name in order if kind == "PutObject"] == ["c", "b", "index.json"]
        removed = [name for kind, name in order if kind.startswith("Delete")]
        assert removed[0] == "index.json"
        assert keys(store, folder) == ["y/a/c", "y/b", "y/index.json"]
        assert filesystem.size_of(filesystem.join(folder, "y")) == 3 * len(SMALL)

    def test_objects_that_the_store_forgets_to_remove(self, store, folder):
        """If the answer names no error but an object is still there, the request is repeated."""
        for name in ("a", "b"):
            filesystem.write(filesystem.join(folder, name), produce(SMALL))
        store.faults.planned = [("DeleteObjects", "lost answer"), ("DeleteObjects", "throttled 503")] * 2
        filesystem.remove(folder)
        assert keys(store, folder) == []
        with pytest.raises(FileNotFoundError):
            filesystem.remove(folder)


def test_a_run_with_faults_is_equal_to_a_local_one(store, folder, tmp_path):
    """Saved, stopped, resumed, the best kept and the rest removed, in both formats."""
    from tests.campaigns.campaign_s3 import compare_with_local

    store.faults.__init__(share=0.15, seed=2, kinds=("throttled 503", "throttled 429", "dropped", "lost answer"))
    for kind in ("file", "directory"):
        assert compare_with_local(store, f"{folder}/{kind}", str(tmp_path / kind), format=kind) == []
    assert sum(store.faults.met.values()) > 10
