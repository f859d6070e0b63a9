"""Publish: the weights of a checkpoint in a small file that has its hash in its name."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import BinaryIO

from lightlib.checkpoint import formats
from lightlib.checkpoint.file import archive
from lightlib.checkpoint.storage import filesystem
from lightlib.checkpoint.storage.content import FROZEN
from lightlib.checkpoint.storage.label import Label
from lightlib.checkpoint.tools.verbs import load
from lightlib.errors import CheckpointError, MisconfigurationException, wrong_type

_DIGITS = 8
_ENDING = ".ckpt"


def publish(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str] | None = None,
    *,
    keys: Sequence[str] = ("state_dict",),
    trust: bool = False,
) -> str:
    """Write some entries of a checkpoint, by default its weights, to a file with its hash in its name; return the path.

    The name ends with the first eight hexadecimal digits of the SHA-256 of the file: ``classifier-1a2b3c4d.ckpt``. The
    same entries make the same file, whichever run they come from: it does not hold the run and its position.
    `torch.load` reads it, and `load_from_checkpoint` if the module needs no arguments or `keys` has
    ``"hyper_parameters"``. The file is held in memory.

    Args:
        source: A file, also Lightning's, or a directory; a local path or a URL.
        target: The path without hash and ending; its folder is made. Default: that of the source.
        keys: The entries to keep.
        trust: Also read Python objects that can only be read by running code that the file names.

    Raises:
        ArgumentTypeError: `keys` is not a list of names.
        CheckpointError: The source is missing, damaged, not a checkpoint, needs trust, or has not all `keys`.
        CheckpointWriteError: The target cannot be written.
        MisconfigurationException: `keys` has no ``"state_dict"``.

    Example:
        >>> import torch
        >>> from lightlib.checkpoint import publish
        >>> torch.save({"state_dict": {"weight": torch.zeros(2)}, "optimizer_states": [{}]}, "run.ckpt")
        >>> path = publish("run.ckpt", "released")
        >>> from pathlib import Path
        >>> hash = hashlib.sha256(Path(path).read_bytes()).hexdigest()
        >>> path == f"released-{hash[:8]}.ckpt", list(torch.load(path))
        (True, ['state_dict'])
    """
    check_keys("publish", keys)
    old = os.fspath(source)
    formats.kind_of(old)  # raises if it is missing
    content = load(old, "cpu", trust)
    missing = [key for key in keys if key not in content]
    if missing:
        raise CheckpointError(
            f"{old!r} has no entry {missing[0]!r}.",
            expected=f"one of {', '.join(map(repr, sorted(map(str, content))))}.",
            fix='publish(source, target, keys=("state_dict",))',
        )
    kept = {key: content[key] for key in (*keys, *([FROZEN] if FROZEN in content else []))}
    # Without the run and its position, so that the same weights make the same bytes, and the same name.
    data = archive.to_bytes(kept, Label(weights_only="optimizer_states" not in kept))
    stem = os.fspath(target) if target is not None else old.rstrip("/" + os.sep)
    path = f"{stem.removesuffix(_ENDING)}-{hashlib.sha256(data).hexdigest()[:_DIGITS]}{_ENDING}"

    def produce(file: BinaryIO) -> None:
        file.write(data)

    filesystem.write(path, produce)
    return path


def check_keys(owner: str, keys: object) -> None:
    """Check the entries to keep.

    Raises:
        ArgumentTypeError: They are not a list of names.
        MisconfigurationException: The weights are not among them.
    """
    if isinstance(keys, str) or not isinstance(keys, Sequence) or not all(isinstance(key, str) for key in keys):
        raise wrong_type(owner, "keys", keys, "a list of names", '("state_dict",)')
    if "state_dict" not in keys:
        raise MisconfigurationException(
            f"{owner}(keys={keys!r}) has no weights.",
            expected='names with "state_dict" among them.',
            fix=f"{owner}(…, keys={('state_dict', *keys)!r})",
        )
