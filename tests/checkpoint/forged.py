"""Forged files: any content, with correct checksums."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import OrderedDict

import torch

from lightlib.checkpoint.file.records import RecordWriter
from lightlib.checkpoint.file.trailer import writer
from lightlib.checkpoint.storage.label import Label


class Call:
    """Is pickled as the call of a function, which happens when the pickle is loaded."""

    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments

    def __call__(self):
        """Do nothing: pickle requires an object that looks callable."""


class Named:
    """Is pickled as the name of a class or function, which need not exist."""

    def __init__(self, name):
        self.name = name

    def __call__(self):
        """Do nothing: pickle requires an object that looks callable."""


class Storage:
    """Is pickled as a reference to a record with a tensor's numbers."""

    def __init__(self, elements, record="0", location="cpu", kind=torch.FloatStorage):
        self.reference = ("storage", kind, record, location, elements)


class _Pickler(pickle._Pickler):
    dispatch = dict(pickle._Pickler.dispatch)  # noqa: RUF012  as in the class above

    def persistent_id(self, value):
        return value.reference if isinstance(value, Storage) else None

    def save_named(self, value):
        module, _, name = value.name.rpartition(".")
        self.write(f"c{module}\n{name}\n".encode())

    dispatch[Named] = save_named


def pickled(value, protocol=2):
    """Return a pickle of a value that may hold `Call`, `Named` and `Storage`."""
    out = io.BytesIO()
    _Pickler(out, protocol).dump(value)
    return out.getvalue()


def tensor(elements=10, offset=0, shape=(10,), stride=(1,), **storage):
    """Return the call that builds a tensor."""
    held = Storage(elements, **storage)
    return Call(torch._utils._rebuild_tensor_v2, held, offset, shape, stride, False, OrderedDict())


def zipped(data, numbers=b"\0" * 40, name="archive/data.pkl", more=None, method=zipfile.ZIP_STORED):
    """Return a file as torch.save writes it, around a pickle."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as file:
        file.writestr(name, data)
        file.writestr("archive/byteorder", b"little")
        for record in "01":
            file.writestr(f"archive/data/{record}", numbers)
        file.writestr("archive/version", b"3\n")
        for other, held in (more or {}).items():
            file.writestr(other, held)
    return out.getvalue()


def sealed(content, label=None):
    """Return a file as lightlib writes it, around anything that can be pickled."""
    out = io.BytesIO()
    with RecordWriter(out) as file:
        torch.save(content, file)
        file.finish(writer(label or Label(), "records"))
    return out.getvalue()
