"""Weights in an HDF5 file, for programs that read .h5: one data set for each tensor, under its name."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from typing import cast

from torch import Tensor

from lightlib import optional
from lightlib.checkpoint.storage import filesystem
from lightlib.errors import CheckpointWriteError

SUFFIXES = (".h5", ".hdf5")


def save(tensors: Mapping[str, Tensor], path: str | os.PathLike[str], metadata: Mapping[str, str]) -> None:
    """Write tensors under their names, and the metadata as attributes of the file.

    Raises:
        CheckpointWriteError: A tensor is not dense, or has a dtype that NumPy lacks; or the file cannot be written.
        MisconfigurationException: h5py is not installed.
    """
    package, name = optional.load("h5py", "Writing .h5 files"), os.fspath(path)
    arrays = {}
    for key, tensor in tensors.items():
        try:
            arrays[key] = tensor.detach().cpu().numpy()
        except (TypeError, RuntimeError) as error:
            raise CheckpointWriteError(
                f"{key!r} cannot be written to {name!r}: {error}.",
                expected="dense tensors of a dtype that NumPy has, which is not bfloat16.",
                fix="export(…, dtype='float32').",
            ) from error
    content = io.BytesIO()
    with package.File(content, "w") as file:
        file.attrs.update(metadata)
        for key, array in arrays.items():
            file.create_dataset(key, data=array)
    data = content.getbuffer()
    filesystem.write(name, lambda target: cast("None", target.write(data)))
