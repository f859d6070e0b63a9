"""Stores given as mappings: their addresses and options, and runs that save to them and resume."""

from __future__ import annotations

import os
import pickle
from typing import ClassVar

import pytest
import torch

import lightlib as L
from lightlib.callbacks import ModelCheckpoint
from lightlib.checkpoint import formats, storage_url
from lightlib.checkpoint.storage import filesystem, options
from lightlib.checkpoint.storage.mapping import storage_of
from lightlib.checkpoint.storage.options import options_of, remember
from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError
from tests.campaigns import faulty_store
from tests.runs.plain import QUIET, Net, loader, momentum

fsspec = pytest.importorskip("fsspec")
from fsspec.implementations.memory import MemoryFileSystem  # noqa: E402  it needs fsspec
from fsspec.registry import _registry  # noqa: E402  as above

RUN = {name: value for name, value in QUIET.items() if name != "enable_checkpointing"}
KEYS = {"access_key": "me", "secret_key": "hidden", "endpoint_url": "http://minio:9000"}
WRONG = MisconfigurationException
ACCOUNT = "https://models.blob.core.windows.net"


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch):
    monkeypatch.setattr(options, "_known", {})


@pytest.fixture(params=["s3", "gs", "az"])
def fake(request, monkeypatch):
    """A store in memory that is opened by the protocol of a real one, and notes its options."""

    class Fake(MemoryFileSystem):
        protocol = request.param
        store: ClassVar[dict] = {}
        pseudo_dirs: ClassVar[list] = [""]
        opened: ClassVar[list] = []
        cachable = False

        def __init__(self, **given):
            super().__init__(**given)
            self.opened.append(given)

        @classmethod
        def _strip_protocol(cls, path):
            return super()._strip_protocol(path.removeprefix(f"{request.param}://"))

    monkeypatch.setitem(_registry, request.param, Fake)
    return Fake


class TestMapping:
    @pytest.mark.parametrize(
        ("storage", "url", "found"),
        [
            ({"type": "s3", "bucket": "b"}, "s3://b", {}),
            ({"type": "s3", "bucket": "b", "prefix": "/run/1/"}, "s3://b/run/1", {}),
            (
                {"type": "s3", "bucket": "b", **KEYS},
                "s3://b",
                {"key": "me", "secret": "hidden", "endpoint_url": "http://minio:9000"},
            ),
            ({"type": "gcs", "bucket": "b", "prefix": "run"}, "gs://b/run", {}),
            (
                {"type": "azure", "container": "c", "connection_string": "AccountName=a"},
                "az://c",
                {"connection_string": "AccountName=a"},
            ),
            ({"type": "azure", "container": "c", "account_url": ACCOUNT}, "az://c", {"account_name": "models"}),
            (
                {"type": "azure", "container": "c", "account_url": "https://blobs.example:10000", "credential": "k"},
                "az://c",
                {"account_name": "blobs", "account_host": "blobs.example", "credential": "k"},
            ),
        ],
    )
    def test_stores(self, storage, url, found):
        assert storage_url(storage) == url
        assert options_of(f"{url}/last.ckpt") == found

    def test_folders(self, tmp_path):
        host = os.path.realpath(tmp_path)
        assert storage_url({"type": "shared_fs", "host_path": tmp_path}) == host
        inside = {"type": "shared_fs", "host_path": str(tmp_path), "storage_path": "runs/1"}
        assert storage_url(inside) == os.path.join(host, "runs", "1")
        assert storage_url({**inside, "storage_path": str(tmp_path / "runs")}) == os.path.join(host, "runs")
        assert storage_url({"type": "directory", "container_path": str(tmp_path)}) == host

    @pytest.mark.parametrize(
        ("storage", "kind", "what"),
        [
            ("s3://b", ArgumentTypeError, r"The store of checkpoints is 's3://b' \(str\)"),
            ({"bucket": "b"}, UnknownNameError, "Unknown type of a store None"),
            ({"type": "S3", "bucket": "b"}, UnknownNameError, "Unknown type of a store 'S3'. Did you mean 's3'"),
            ({"type": "s3"}, WRONG, "'s3' has no 'bucket'"),
            ({"type": "s3", "bucket": 3}, ArgumentTypeError, "'s3' has bucket: int"),
            ({"type": "s3", "bucket": ""}, ArgumentTypeError, "'s3' has bucket: str"),
            ({"type": "s3", "bucket": "b", "acces_key": "k"}, WRONG, "Did you mean 'access_key'"),
            ({"type": "s3", "bucket": "b", "access_key": "k"}, WRONG, "access_key, but no secret_key"),
            ({"type": "s3", "bucket": "b", "secret_key": "k"}, WRONG, "secret_key, but no access_key"),
            ({"type": "s3", "bucket": "b/c"}, WRONG, "bucket: 'b/c'"),
            ({"type": "gcs", "bucket": "b", "prefix": "../c"}, WRONG, "prefix without '..'"),
            ({"type": "gcs", "bucket": "b", "save_trial_best": 1}, WRONG, "CheckpointGC"),
            (
                {"type": "azure", "container": "c", "connection_string": "a", "account_url": ACCOUNT},
                WRONG,
                "'azure' has connection_string and account_url",
            ),
            (
                {"type": "azure", "container": "c", "connection_string": "a", "credential": "k"},
                WRONG,
                "'azure' has connection_string and credential",
            ),
            ({"type": "azure", "container": "c"}, WRONG, "neither connection_string nor account_url"),
            ({"type": "azure", "container": "c", "account_url": "x"}, WRONG, "account_url 'x'"),
            ({"type": "shared_fs"}, WRONG, "'shared_fs' has no 'host_path'"),
            (
                {"type": "shared_fs", "host_path": "/mnt", "storage_path": "../etc"},
                WRONG,
                "leads out of host_path",
            ),
            (
                {"type": "shared_fs", "host_path": "/mnt", "storage_path": "/mnt2/a"},
                WRONG,
                "leads out of host_path",
            ),
            ({"type": "directory", "host_path": "/mnt"}, WRONG, "has the key 'host_path'"),
        ],
    )
    def test_refused(self, storage, kind, what):
        with pytest.raises(kind, match=what):
            storage_url(storage)
        if isinstance(storage, dict):
            with pytest.raises(kind, match=what):
                ModelCheckpoint(storage)

    def test_no_secret_is_in_an_error_or_shown(self):
        with pytest.raises(MisconfigurationException) as error:
            storage_url({"type": "s3", "bucket": "b", "secret_key": "hidden"})
        assert "hidden" not in str(error.value)
        with pytest.raises(ArgumentTypeError) as error:
            storage_url({"type": "s3", "bucket": "b", **KEYS, "secret_key": ["hidden"]})
        assert "hidden" not in str(error.value)
        callback = ModelCheckpoint({"type": "s3", "bucket": "b", **KEYS})
        assert "hidden" not in repr(callback) + repr(callback._storage) + repr(vars(callback))
        assert callback.dirpath == "s3://b"
        assert "hidden" not in repr(callback.state_dict())


class TestOptions:
    def test_the_nearest_address_counts(self):
        remember("s3://b", {"key": "all"})
        remember("s3://b/run/", {"key": "run"})
        found = {name: options_of(name).get("key") for name in ("s3://b", "s3://b/x", "s3://b/run/1", "s3://b/runs")}
        assert found == {"s3://b": "all", "s3://b/x": "all", "s3://b/run/1": "run", "s3://b/runs": "all"}
        assert options_of("s3://bc/x") == {}
        remember("s3://b/run", {})
        assert options_of("s3://b/run/1") == {"key": "all"}

    def test_a_copy_in_another_process_remembers_them(self, monkeypatch):
        callback = ModelCheckpoint({"type": "s3", "bucket": "b", **KEYS})
        trainer = L.Trainer(**QUIET, default_root_dir={"type": "gcs", "bucket": "logs"})
        assert trainer.default_root_dir == "gs://logs"
        copied = pickle.dumps((callback, storage_of({"type": "azure", "container": "c", "connection_string": "a"})))
        monkeypatch.setattr(options, "_known", {})
        pickle.loads(copied)
        assert options_of("s3://b/last.ckpt")["secret"] == "hidden"
        assert options_of("az://c/last.ckpt") == {"connection_string": "a"}


def fit(folder, epochs, ckpt_path=None, **options):
    L.seed_everything(5)
    module, saver = Net(momentum, dropout=0.5), ModelCheckpoint(folder, "{epoch}", save_last=True, **options)
    trainer = L.Trainer(**RUN, max_epochs=epochs, callbacks=saver)
    trainer.fit(module, loader(12, shuffle=True), ckpt_path=ckpt_path)
    return module, trainer


def mapping(protocol):
    return {
        "s3": {"type": "s3", "bucket": "models", "prefix": "run", **KEYS},
        "gs": {"type": "gcs", "bucket": "models", "prefix": "run"},
        "az": {"type": "azure", "container": "models", "prefix": "run", "connection_string": "AccountName=a"},
    }[protocol]


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_saved_to_and_resumed_from_a_store(fake, kind, tmp_path):
    storage = mapping(fake.protocol)
    whole, _ = fit(tmp_path, 3, format=kind)
    fit(storage, 2, format=kind)
    url = storage_url(storage)
    assert filesystem.names_in(url) == ["epoch=1.ckpt", "last.ckpt"]
    module, trainer = fit(storage, 3, "auto", format=kind)
    assert trainer.ckpt_path.startswith(url)
    assert all(torch.equal(value, whole.state_dict()[name]) for name, value in module.state_dict().items())
    assert filesystem.names_in(url) == ["epoch=2.ckpt", "last.ckpt"]
    expected = storage_of(storage).options
    assert fake.opened
    assert all({name: given.get(name) for name in expected} == dict(expected) for given in fake.opened)


@pytest.fixture(scope="module")
def server():
    pytest.importorskip("s3fs", reason="pip install s3fs")
    pytest.importorskip("moto.server", reason="pip install 'moto[s3]' flask flask-cors")
    with faulty_store.store() as found:
        yield found


@pytest.mark.processes
def test_with_the_client_of_s3_and_a_server(server, monkeypatch, tmp_path):
    monkeypatch.setitem(fsspec.config.conf, "s3", {})  # nothing but the mapping knows the server
    keys = {"access_key": "key", "secret_key": "secret", "endpoint_url": server.address}
    storage = {"type": "s3", "bucket": faulty_store.BUCKET, "prefix": "mapped", **keys}
    whole, _ = fit(tmp_path, 2)
    fit(storage, 1)
    assert "mapped/last.ckpt" in server.names()
    module, _ = fit(storage, 2, "auto")
    assert all(torch.equal(value, whole.state_dict()[name]) for name, value in module.state_dict().items())


def test_saved_to_memory_and_to_a_shared_folder(tmp_path):
    _, trainer = fit({"type": "shared_fs", "host_path": str(tmp_path), "storage_path": "runs/1"}, 1)
    assert sorted(path.name for path in (tmp_path / "runs" / "1").glob("*.ckpt")) == ["epoch=0.ckpt", "last.ckpt"]
    trainer.save_checkpoint("memory://mapped/one.ckpt")
    filesystem.copy("memory://mapped/one.ckpt", str(tmp_path / "two.ckpt"))
    one, two = (formats.load(path)["state_dict"] for path in ("memory://mapped/one.ckpt", str(tmp_path / "two.ckpt")))
    assert all(torch.equal(value, two[name]) for name, value in one.items())


def test_options_of_one_save(fake, tmp_path):
    _, trainer = fit(tmp_path, 1)
    url = f"{fake.protocol}://other/one.ckpt"
    trainer.save_checkpoint(url, storage_options={"token": "t"})
    assert fake.opened[-1]["token"] == "t"
    assert list(formats.load(url)["state_dict"])
    assert fake.opened[-1]["token"] == "t"
    with pytest.raises(ArgumentTypeError, match="storage_options of the type list"):
        trainer.save_checkpoint(url, storage_options=["t"])
