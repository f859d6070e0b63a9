"""Malicious files: each is refused, and its canary stays absent, which shows that no code was run."""

from __future__ import annotations

import base64
import contextlib
import importlib
import io
import json
import marshal
import os
import pickle
import random
import subprocess
import sys
import tarfile
import zipfile
from collections import Counter, OrderedDict
from pathlib import Path

import pytest
import torch

from lightlib.checkpoint import formats
from lightlib.checkpoint.file import archive
from lightlib.checkpoint.storage import filesystem
from lightlib.checkpoint.storage.label import Label
from lightlib.core.module.datamodule import DataModule
from lightlib.core.module.module import Module
from lightlib.errors import CheckpointError, MisconfigurationException
from tests.checkpoint.forged import Call, Named, Storage, pickled, sealed, tensor, zipped
from tests.runs.bad_input import Net, loader, trainer

CANARY = "canary"
SHELL = f"touch {CANARY}"
PYTHON = f"open({CANARY!r}, 'w').close()"
PLAIN = "  Expected: tensors and plain values; only with compat do files also hold hyperparameters that are objects."
TRUST = (
    "  Fix: if you trust the source of the file, pass trust=True to lightlib.checkpoint.load, or weights_only=False to "
    "fit and load_from_checkpoint; it may run any code."
)
SELF = "tests.checkpoint.file.pickles.test_malicious"


def touched(*args, **kwargs):
    """The class or function that files name."""
    Path(CANARY).touch()
    return {}


class Touching:
    """Creates the canary at every use."""

    __init__ = __call__ = __setstate__ = __setitem__ = touched

    def __new__(cls, *args, **kwargs):  # noqa: ARG004  accepts any arguments
        touched()
        return super().__new__(cls)


class Sized(Net):
    """Accepts any hyperparameters of a file."""

    def __init__(self, **kwargs):
        super().__init__()
        self.save_hyperparameters()


def code():
    return compile(PYTHON, "<checkpoint>", "exec")


@pytest.fixture(autouse=True)
def canary(tmp_path, monkeypatch):
    """Check that the canary is absent at the end; importing `payload_module` would create it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("payload_module.py").write_text(f"import pathlib\npathlib.Path({CANARY!r}).touch()\nclass Thing: pass\n")
    yield
    assert not os.path.exists(CANARY), "code of the file was run"
    assert "payload_module" not in sys.modules


def content(real=False, **more):
    """Return a checkpoint that builds and resumes `Net`, with more values to forge or for torch.save."""
    module = Net()
    forged = {"layer.weight": tensor(shape=(1, 2), stride=(2, 1)), "layer.bias": tensor(shape=(1,))}
    return {
        "state_dict": dict(module.state_dict()) if real else forged,
        "epoch": 0,
        "global_step": 0,
        "pytorch-lightning_version": "2.6.0",
        "loops": {},
        "optimizer_states": [torch.optim.SGD(module.parameters(), 0.1).state_dict()],
        "lr_schedulers": [],
        "callbacks": {},
        **more,
    }


# Functions that a pickle can call. Each would create the canary, or import a module that does.
CALLS = {
    "os.system": lambda: Call(os.system, SHELL),
    "posix.system by its old name": lambda: Call(Named("posix.system"), SHELL),
    "os.mkdir": lambda: Call(os.mkdir, CANARY),
    "subprocess.Popen": lambda: Call(subprocess.Popen, ["touch", CANARY]),
    "subprocess.check_output": lambda: Call(subprocess.check_output, ["touch", CANARY]),
    "builtins.exec": lambda: Call(exec, PYTHON),
    "builtins.eval": lambda: Call(eval, f"open({CANARY!r}, 'w')"),
    "__builtin__.eval": lambda: Call(Named("__builtin__.eval"), f"open({CANARY!r}, 'w')"),
    "builtins.open": lambda: Call(open, CANARY, "w"),
    "builtins.getattr": lambda: Call(Call(getattr, Named("os"), "system"), SHELL),
    "builtins.__import__": lambda: Call(__import__, "payload_module"),
    "importlib.import_module": lambda: Call(importlib.import_module, "payload_module"),
    "runpy.run_path": lambda: Call(Named("runpy.run_path"), "payload_module.py"),
    "a class of a module": lambda: Named("payload_module.Thing"),
    "a function of a module": lambda: Call(touched),
    "a class": lambda: Call(Touching),
    "an object with a state": lambda: Call(Named("copyreg._reconstructor"), Named(f"{SELF}.Touching"), object, None),
    "pickle.loads": lambda: Call(pickle.loads, pickled(Call(os.system, SHELL))),
    "marshal and types": lambda: Call(
        Call(Named("types.FunctionType"), Call(marshal.loads, marshal.dumps(code())), {})
    ),
    "torch.load": lambda: Call(torch.load, "inner.pt", None),
    "torch.storage._load_from_bytes": lambda: Call(torch.storage._load_from_bytes, _inner()),
    "torch.hub.load": lambda: Call(torch.hub.load, ".", "touched"),
    "torch.jit.load": lambda: Call(torch.jit.load, "inner.pt"),
    "torch.serialization.load": lambda: Call(Named("torch.serialization.load"), "inner.pt"),
    "torch.utils.collect_env.run": lambda: Call(Named("torch.utils.collect_env.run"), SHELL),
    "functools.partial": lambda: Call(Call(Named("functools.partial"), os.system, SHELL)),
    "operator.methodcaller": lambda: Call(Call(Named("operator.methodcaller"), "touch"), Call(Path, CANARY)),
    "pathlib.Path.touch": lambda: Call(Named("pathlib.Path.touch"), Call(Path, CANARY)),
    "numpy's own pickles": lambda: Call(
        Named("numpy._core.multiarray._reconstruct"), Named("numpy.ndarray"), (0,), b"b"
    ),
    "webbrowser.open": lambda: Call(Named("webbrowser.open"), f"file://{CANARY}"),
    "code.InteractiveInterpreter": lambda: Call(Named("code.InteractiveInterpreter")),
    "a callable of torch's rebuilding": lambda: Call(
        torch._tensor._rebuild_from_type_v2, os.system, torch.Tensor, (SHELL,), {}
    ),
    "a hook of a tensor": lambda: Call(
        torch._tensor._rebuild_from_type_v2, torch._utils._rebuild_parameter, Named(f"{SELF}.Touching"), (), {}
    ),
    "a parameter with a state": lambda: Call(
        torch._utils._rebuild_parameter_with_state, tensor(), True, OrderedDict(), {"a": Named(f"{SELF}.Touching")}
    ),
    "a full module": lambda: Call(Named(f"{SELF}.Touching")),
}  # fmt: skip


def _inner():
    out = io.BytesIO()
    torch.save(Call(os.system, SHELL), out)
    return out.getvalue()


def refused(path, needs_trust=True):
    """Expect, from every way in, an error that explains how a file is trusted; return it."""
    texts = []
    ways = {
        "load": lambda: archive.load(path),
        "formats": lambda: formats.load(path, "cpu"),
        "open file": lambda: archive.load(io.BytesIO(Path(path).read_bytes())),
        "load_from_checkpoint": lambda: Net.load_from_checkpoint(path),
        "fit": lambda: trainer().fit(Net(), loader(), ckpt_path=path),
    }
    for name, way in ways.items():
        with pytest.raises(CheckpointError) as caught:
            way()
        texts.append(str(caught.value))
        assert not os.path.exists(CANARY), name
        what, expected, fix = texts[-1].splitlines()
        if needs_trust:
            assert "that can only be loaded by running code: " in what
            assert (expected, fix) == (PLAIN, TRUST)
        assert caught.value.__cause__ is None or not needs_trust  # torch's text advises to load it all the same
    return texts[0]


class TestCalls:
    """Pickles that call something."""

    @pytest.mark.parametrize("name", CALLS)
    def test_it_is_refused(self, name):
        Path("inner.pt").write_bytes(_inner())
        Path("a.ckpt").write_bytes(zipped(pickled(content(mine={"deep": [1, CALLS[name]()]}))))
        text = refused("a.ckpt")
        if name != "a hook of a tensor":
            assert "at ['mine']['deep'][1]" in text

    @pytest.mark.parametrize("name", ["os.system", "builtins.exec", "a class of a module", "a class"])
    def test_in_a_file_with_our_trailer(self, name):
        data = zipped(pickled(content(mine=CALLS[name]())))
        Path("a.ckpt").write_bytes(_with_trailer(data))
        assert archive.label_of("a.ckpt") == Label(run="forged", step=9)
        assert "at ['mine']" in refused("a.ckpt")

    @pytest.mark.parametrize(
        "key",
        [
            "state_dict", "epoch", "global_step", "pytorch-lightning_version", "loops", "hparams_name",
            "hyper_parameters", "hparams_type", "datamodule_hparams_name", "datamodule_hyper_parameters",
            "optimizer_states", "lr_schedulers", "MixedPrecision", "callbacks", "lightlib", "Data",
            "native_amp_scaling_state",
        ],
    )  # fmt: skip
    def test_at_every_key_that_is_read(self, key):
        """As the value, within it, and as a key of it."""
        payload = Call(os.system, SHELL)
        for value in (payload, {"format": 2, "x": payload}, [payload], {payload: 1}):
            Path("a.ckpt").write_bytes(zipped(pickled(content(**{key: value}))))
            assert refused("a.ckpt").splitlines()[0].endswith(": posix.system.")

    def test_as_a_key(self):
        Path("a.ckpt").write_bytes(zipped(pickled({**content(), Call(os.system, SHELL): 1})))
        refused("a.ckpt")

    def test_as_the_whole_content(self):
        Path("a.ckpt").write_bytes(zipped(pickled(Call(os.system, SHELL))))
        assert "has a Python object that can only" in refused("a.ckpt")

    def test_in_the_reference_to_a_storage(self):
        for k in range(5):
            held = Storage(10)
            held.reference = tuple(
                Call(os.system, SHELL) if k == place else part for place, part in enumerate(held.reference)
            )
            call = Call(torch._utils._rebuild_tensor_v2, held, 0, (10,), (1,), False, OrderedDict())
            Path("a.ckpt").write_bytes(zipped(pickled(content(mine=call))))
            refused("a.ckpt")

    def test_a_store(self):
        pytest.importorskip("fsspec")
        filesystem.write(
            "memory://malicious/a.ckpt", lambda file: file.write(zipped(pickled(Call(os.system, SHELL)))) and None
        )
        for way in (
            lambda: archive.load("memory://malicious/a.ckpt"),
            lambda: Net.load_from_checkpoint("memory://malicious/a.ckpt"),
            lambda: trainer().fit(Net(), loader(), ckpt_path="memory://malicious/a.ckpt"),
        ):
            with pytest.raises(CheckpointError, match=r"posix\.system"):
                way()
        filesystem.remove("memory://malicious/a.ckpt")

    def test_other_calls_that_read(self):
        Path("a.ckpt").write_bytes(zipped(pickled(content(mine=Call(os.system, SHELL)))))
        module = Net()
        module.validation_step = module.test_step = module.predict_step = print
        for call in ("validate", "test", "predict"):
            with pytest.raises(CheckpointError, match=r"posix\.system"):
                getattr(trainer(), call)(module, loader(), ckpt_path="a.ckpt")
        with pytest.raises(CheckpointError, match=r"posix\.system"):
            DataModule.load_from_checkpoint("a.ckpt")
        with pytest.raises(CheckpointError, match=r"posix\.system"):
            archive.load("a.ckpt", mmap=True)
        with pytest.raises(CheckpointError, match=r"posix\.system"):
            archive.load("a.ckpt", "meta", check=False)

    def test_it_is_trusted_only_when_that_is_said(self):
        Path("a.ckpt").write_bytes(zipped(pickled(content(mine=Call(os.mkdir, "trusted")))))
        refused("a.ckpt")
        archive.load("a.ckpt", trust=True)
        assert os.path.exists("trusted")


def _with_trailer(data):
    """Add a forged trailer."""
    from lightlib.checkpoint.file import records, trailer

    source = records.SharedReader(io.BytesIO(data))
    comment = trailer.writer(Label(run="forged", step=9), "records")
    data = data[:-2] + len(comment(0, "0" * 64)).to_bytes(2, "little")
    source = records.SharedReader(io.BytesIO(data))
    digest = records.digest(
        source, records.layout(records.SharedReader(io.BytesIO(data + comment(0, "0" * 64)))), len(data)
    )
    return data + comment(len(data), digest)


class TestOtherForms:
    """Files that are no zip files, or contain other records than torch.save writes."""

    @pytest.mark.filterwarnings("ignore:Detected pickle protocol")
    @pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
    def test_a_plain_pickle(self, protocol):
        Path("a.ckpt").write_bytes(pickle.dumps(content(mine=Call(os.system, SHELL)), protocol))
        refused("a.ckpt", needs_trust=protocol in {2, 4})

    @pytest.mark.parametrize("place", range(4))
    def test_torch_before_1_6(self, place):
        """Several pickles one after the other: a number, a version, the system, the content."""
        parts = [
            0x1950A86A20F9469CFC6C,
            1001,
            {"protocol_version": 1001, "little_endian": True},
            content(state_dict={}),
        ]
        parts[3]["optimizer_states"] = []
        parts[place] = Call(os.system, SHELL)
        Path("a.ckpt").write_bytes(b"".join(pickled(part) for part in [*parts, []]))
        refused("a.ckpt", needs_trust=True)

    def test_torch_before_0_2(self):
        """A tar file of pickles with member names that lead out of it."""
        with tarfile.open("a.ckpt", "w") as file:
            for name in ("sys_info", "pickle", "storages", "tensors", f"../{CANARY}", f"{os.getcwd()}/{CANARY}"):
                held = pickled(Call(os.system, SHELL))
                entry = tarfile.TarInfo(name)
                entry.size = len(held)
                file.addfile(entry, io.BytesIO(held))
        refused("a.ckpt", needs_trust=False)

    def test_torchscript(self):
        Path("a.ckpt").write_bytes(
            zipped(pickled(content()), more={"archive/constants.pkl": pickled(()), "archive/code/__torch__.py": PYTHON})
        )
        with pytest.warns(UserWarning, match="TorchScript"):
            refused("a.ckpt", needs_trust=False)

    @pytest.mark.parametrize(
        "name",
        [f"../{CANARY}", f"/{CANARY}", f"archive/../../{CANARY}", f"archive/data/../../{CANARY}", f"other/{CANARY}"],
    )
    def test_names_that_lead_out_of_the_file(self, name):
        Path("a.ckpt").write_bytes(zipped(pickled(content()), more={name: b"payload"}))
        assert f"its record {name!r} is not in the same folder as the rest" in refused("a.ckpt", needs_trust=False)
        assert sorted(os.listdir()) == ["a.ckpt", "payload_module.py"]

    @pytest.mark.parametrize("record", ["../0", "../../../../etc/passwd", "/etc/passwd", "0/../0", "\0", ""])
    def test_records_outside_of_the_file(self, record):
        Path("a.ckpt").write_bytes(zipped(pickled(content(mine=tensor(record=record)))))
        refused("a.ckpt", needs_trust=False)

    def test_a_nested_archive(self):
        """The record of a tensor is read as numbers, even if it is a file with a payload."""
        inner = zipped(pickled(Call(os.system, SHELL)))
        size = len(inner)
        outer = pickled(content(mine=tensor(size, shape=(size,), kind=torch.ByteStorage, record="inner")))
        Path("a.ckpt").write_bytes(zipped(outer, more={"archive/data/inner": inner, "archive/x.py": PYTHON}))
        loaded = archive.load("a.ckpt")
        assert bytes(loaded["mine"].to(torch.uint8).tolist()) == inner

    def test_two_pickles_of_one_name(self):
        for first, second in ((content(), Call(os.system, SHELL)), (Call(os.system, SHELL), content())):
            with pytest.warns(UserWarning, match="Duplicate name"):
                data = zipped(pickled(first), more={"archive/data.pkl": pickled(second)})
            Path("a.ckpt").write_bytes(data)
            refused("a.ckpt", needs_trust=False)

    def test_another_file_behind_it(self):
        good, bad = zipped(pickled(content())), zipped(pickled(Call(os.system, SHELL)))
        Path("a.ckpt").write_bytes(good + bad)
        refused("a.ckpt", needs_trust=False)

    def test_a_name_that_makes_torch_read_another_format(self):
        Path("a.safetensors").write_bytes(zipped(pickled(Call(os.system, SHELL))))
        with pytest.raises(CheckpointError):
            archive.load("a.safetensors")
        with pytest.raises(CheckpointError):
            archive.load("a.safetensors", mmap=True)


class TestMuchFromLittle:
    """Files that try to use excessive memory or time."""

    def test_compressed_records(self):
        Path("a.ckpt").write_bytes(
            zipped(pickled(content(mine=tensor(2**22))), b"\0" * 2**24, method=zipfile.ZIP_DEFLATED)
        )
        assert os.path.getsize("a.ckpt") < 2**16
        assert "its record 'data.pkl' is compressed, which torch.save never does" in refused(
            "a.ckpt", needs_trust=False
        )

    def test_a_size_that_the_file_does_not_have(self):
        data = bytearray(zipped(pickled(content())))
        place = data.index(b"PK\x01\x02")
        data[place + 20 : place + 28] = (2**31).to_bytes(4, "little") * 2
        Path("a.ckpt").write_bytes(data)
        assert "is longer than the file" in refused("a.ckpt", needs_trust=False)

    def test_records_that_lie_over_each_other(self):
        data = bytearray(zipped(pickled(content())))
        first = data.index(b"PK\x01\x02")
        second = data.index(b"PK\x01\x02", first + 1)
        data[second + 42 : second + 46] = data[first + 42 : first + 46]
        Path("a.ckpt").write_bytes(data)
        assert "overlaps another one" in refused("a.ckpt", needs_trust=False)

    @pytest.mark.parametrize("function", [bytearray, Named("__builtin__.bytearray")])
    def test_memory_by_a_call_that_torch_allows(self, function):
        for call in (
            Call(function, 2**40),
            Call(torch._tensor._rebuild_from_type_v2, function, bytearray, (2**40,), None),
        ):
            Path("a.ckpt").write_bytes(zipped(pickled(content(mine=[call]))))
            assert "at ['mine'][0] that can only be loaded by running code: builtins.bytearray." in refused("a.ckpt")

    @pytest.mark.parametrize("codec", ["idna", "punycode", "zlib_codec", "utf-32", 3])
    def test_time_by_a_call_that_torch_allows(self, codec):
        Path("a.ckpt").write_bytes(zipped(pickled(content(mine=Call(Named("_codecs.encode"), "x", codec)))))
        assert "_codecs.encode" in refused("a.ckpt")

    def test_bytes_are_no_such_call(self):
        Path("a.ckpt").write_bytes(zipped(pickled(content(mine=b"\xff\0bytes"))))
        assert archive.load("a.ckpt")["mine"] == b"\xff\0bytes"

    @pytest.mark.parametrize(
        ("call", "reason"),
        [
            (lambda: tensor(2**50, record="1"), "record size (40 bytes) does not match expected size"),
            (lambda: tensor(10, shape=(2**40,), stride=(0,)), "claims 4398046511104 bytes, but has 40"),
            (lambda: tensor(10, shape=(2**32, 2**32), stride=(0, 0)), "overflow"),
            (lambda: tensor(10, shape=(1000,)), "not resizable"),
            (lambda: tensor(10, offset=2**62, shape=(1,)), "overflow"),
            (lambda: tensor(10, offset=-1, shape=(1,)), "invalid storage offset"),
            (lambda: tensor(10, offset=5, shape=(5,), stride=(-1,)), "overflow"),
            (lambda: tensor("ten", record="1"), "torch.save did not write it, or it is damaged"),
            (lambda: tensor(-5, record="1"), "torch.save did not write it, or it is damaged"),
            (lambda: Call(torch.FloatTensor, 2**60), "tried to allocate"),
            (lambda: Call(torch.FloatTensor, 2**44), "tried to allocate"),
            (lambda: Call(torch.FloatTensor, 2**24), "has 67108864 bytes, more than the file"),
            (
                lambda: Call(torch._utils._rebuild_meta_tensor_no_storage, torch.float32, (2**40,), (1,), False),
                "the tensor at ['mine'] has no values",
            ),
        ],
    )
    def test_tensors(self, call, reason):
        Path("a.ckpt").write_bytes(zipped(pickled(content(mine=call()))))
        assert reason in refused("a.ckpt", needs_trust=False)

    @pytest.mark.parametrize(
        ("place", "reason"), [("meta", "the tensor at ['mine'] has no values"), ("nowhere", "tagged")]
    )
    def test_places_where_nothing_is(self, place, reason):
        data = zipped(pickled(content(mine=tensor(location=place, record="1"))))
        with pytest.raises(CheckpointError) as caught:
            archive.load(io.BytesIO(data))
        assert reason in str(caught.value)
        archive.load(io.BytesIO(data), "cpu")

    @pytest.mark.parametrize("opened", [b"]", b"}", b"(", b")"])
    def test_nesting(self, opened):
        """As a value, and as a key, which Python hashes by recursion in C."""
        many = 20_000
        if opened == b"]":
            data = b"\x80\x02" + b"]" * many + b"a" * (many - 1) + b"."
        elif opened == b"}":
            data = b"\x80\x02" + b"}K\0" * many + b"}" + b"s" * many + b"."
        elif opened == b"(":
            data = b"\x80\x02" + b"(" * many + b"t" * many + b"."
        else:
            data = b"\x80\x02}" + b")" + b"\x85" * many + b"K\0s."
        Path("a.ckpt").write_bytes(zipped(data))
        with pytest.raises(CheckpointError, match="it is nested more than 200 levels deep"):
            archive.load("a.ckpt")

    def test_a_list_that_is_in_itself(self):
        itself = []
        itself.append(itself)
        Path("a.ckpt").write_bytes(zipped(pickled(content(mine=itself))))
        assert "an object in it contains itself" in refused("a.ckpt", needs_trust=False)

    def test_an_object_that_knows_what_holds_it(self):
        """As in OmegaConf's containers: the file is complete, and loads if it is trusted."""
        config = pytest.importorskip("omegaconf").OmegaConf.create({"optimizer": {"lr": 0.1}})
        torch.save({"state_dict": Net().state_dict(), "hyper_parameters": config}, "a.ckpt")
        text = refused("a.ckpt").splitlines()[0]
        assert "has a Python object at ['hyper_parameters'] that can only be loaded by running code: omegaconf" in text
        assert archive.load("a.ckpt", trust=True)["hyper_parameters"] == config

    def test_a_thousand_million_laughs(self):
        laughs = ["ha"] * 10
        for _ in range(12):
            laughs = [laughs] * 10
        Path("a.ckpt").write_bytes(zipped(pickled(content(mine=laughs))))
        assert "it expands to " in refused("a.ckpt", needs_trust=False)

    @pytest.mark.parametrize(
        "data",
        [b"\x80\x02X\xff\xff\xff\x7f.", b"\x80\x04\x8d" + b"\xff" * 7 + b"\x7f.", b"\x80\x02\x8b\xff\xff\xff\x7f.",
         b"\x80\x02}r\xff\xff\xff\xff.", b"\x80\x02h\xff.", b"\x80\x02.", b"\x80\x02t.", b"\x80\x02R.",
         b"\x80\x02]\x81b."],
    )  # fmt: skip
    def test_lengths_that_are_not_there(self, data):
        for held in (zipped(data), data, pickled(0x1950A86A20F9469CFC6C) + pickled(1001) + data):
            Path("a.ckpt").write_bytes(held)
            refused("a.ckpt", needs_trust=False)

    def test_a_counter_and_an_ordered_dict_are_plain(self):
        Path("a.ckpt").write_bytes(sealed(content(real=True, mine=[Counter("abc"), OrderedDict(a={1}), complex(1, 2)])))
        assert archive.load("a.ckpt")["mine"] == [Counter("abc"), OrderedDict(a={1}), complex(1, 2)]


class TestNames:
    """Classes and functions that are named by text, which was enough in other libraries."""

    PAYLOADS = (
        f"{SELF}.touched",
        f"{SELF}.Touching",
        "payload_module.Thing",
        "os.system",
        f"!!python/object/apply:os.system [{SHELL!r}]",
        base64.b64encode(pickled(Call(os.system, SHELL))).decode(),
        pickled(Call(os.system, SHELL)).decode("latin1"),
        json.dumps({"py/object": f"{SELF}.Touching"}),
        f"${{oc.env:{SHELL}}}",
        f"__import__('os').system({SHELL!r})",
    )

    @pytest.mark.parametrize("payload", PAYLOADS, ids=range(len(PAYLOADS)))
    @pytest.mark.parametrize(
        "key",
        [
            "_class_path",
            "class_path",
            "_instantiator",
            "_target_",
            "py/object",
            "hparams_type",
            "__class__",
            "init_args",
        ],
    )
    def test_in_hyperparameters(self, key, payload):
        named = {key: payload, "init_args": {"command": SHELL, "class_path": payload}}
        held = {**content(real=True), "hyper_parameters": {**named, "inner": named}, "hparams_name": "kwargs", **named}
        Path("a.ckpt").write_bytes(sealed(held))
        module = Sized.load_from_checkpoint("a.ckpt")
        assert type(module) is Sized
        assert module.hparams["inner"] == named
        with pytest.raises(CheckpointError):
            Net.load_from_checkpoint("a.ckpt", unknown=1)
        assert type(Module.load_from_checkpoint.__func__(Net, "a.ckpt")) is Net

    @pytest.mark.parametrize("payload", PAYLOADS, ids=range(len(PAYLOADS)))
    def test_in_the_state_of_a_run(self, payload):
        named = {"class_path": payload, "_target_": payload, "__reduce__": payload}
        for key in ("loops", "callbacks", "lightlib", "hparams_name", "MixedPrecision"):
            Path("a.ckpt").write_bytes(sealed(content(real=True, **{key: named if key != "hparams_name" else payload})))
            with contextlib.suppress(MisconfigurationException, UserWarning):
                trainer().fit(Net(), loader(), ckpt_path="a.ckpt")
            assert not os.path.exists(CANARY), key

    @pytest.mark.parametrize(
        "text",
        [
            f"x: !!python/object/apply:os.system ['{SHELL}']",
            f"!!python/object/apply:os.system ['{SHELL}']",
            f"x: !!python/object/new:subprocess.Popen [['touch', '{CANARY}']]",
            f"x: !!python/name:{SELF}.touched",
            f"x: !!python/object:{SELF}.Touching {{}}",
            "x: !!python/module:payload_module",
            "x: !!python/object/apply:importlib.import_module ['payload_module']",
            "x: !mine 1",
            "a: &a [x]\nb: &b [*a, *a]\nc: [*b, *b]\nd: *nothing",
            "- 1\n- 2",
            "x: [1",
        ],
    )
    def test_in_a_file_of_hyperparameters(self, text):
        Path("a.ckpt").write_bytes(sealed(content(real=True)))
        Path("hparams.yaml").write_text(text)
        with pytest.raises(CheckpointError, match=r"hparams_file='hparams.yaml'"):
            Sized.load_from_checkpoint("a.ckpt", hparams_file="hparams.yaml")

    def test_in_the_label(self):
        Path("a.ckpt").write_bytes(sealed(content(real=True), Label(run=f"../../{CANARY}; {SHELL}")))
        assert archive.label_of("a.ckpt").run == f"../../{CANARY}; {SHELL}"
        archive.load("a.ckpt")


def test_pickles_that_were_changed_at_random():
    """1000 pickles with changed bytes and correct checksums: each loads, or fails with our error."""
    good = pickled(content(mine=tensor(), text="text", call=Call(torch.Size, [2]), ordered=OrderedDict(a=1)))
    chance = random.Random(0)
    refusals = 0
    for _ in range(1000):
        data = bytearray(good)
        for _ in range(chance.choice((1, 1, 2, 5))):
            data[chance.randrange(2, len(data))] = chance.choice(
                (chance.randrange(256), ord(chance.choice("cRb()}]th\x85q.")))
            )
        try:
            archive.load(io.BytesIO(zipped(bytes(data))))
        except CheckpointError:  # any other error fails the test
            refusals += 1
    assert refusals > 500
