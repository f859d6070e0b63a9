"""Errors for checkpoint files that cannot be read or written, with the cause and the fix."""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from lightlib import optional
from lightlib.checkpoint.file import pickles
from lightlib.checkpoint.file.records import CorruptionError
from lightlib.conventions import leniency
from lightlib.errors import CheckpointError, CheckpointWriteError, shown
from lightlib.translations import fix_for_import

_COMPLETE_FILE = "a complete file that Trainer.save_checkpoint or Lightning wrote."
_ANOTHER = "use another checkpoint; this one is truncated, damaged, or not a checkpoint."
_PLAIN_VALUES = "tensors and plain values; only with compat do files also hold hyperparameters that are objects."
_VARIABLE = "Where the call cannot be changed, set TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1."
_SHOWN = 6  # of the objects that need trust
_TRUST = (
    "if you trust the source of the file, pass trust=True to lightlib.checkpoint.load, or weights_only=False to fit "
    "and load_from_checkpoint; it may run any code."
)


def refused(name: str, objects: Sequence[tuple[str, str]]) -> CheckpointError:
    """Return the error for a file with objects that need trust: the path of each, and its class or function."""
    if len(objects) == 1:
        ((path, kind),) = objects
        problem = f"a Python object{f' at {path}' if path else ''} that can only be loaded by running code: {kind}"
    else:
        shown_ones = ", ".join(f"{path} ({kind})" if path else kind for path, kind in objects[:_SHOWN])
        more = f" and {len(objects) - _SHOWN} more" if len(objects) > _SHOWN else ""
        problem = f"Python objects that can only be loaded by running code: {shown_ones}{more}"
    fix = f"{_TRUST} {_VARIABLE}" if leniency().keeps_objects else _TRUST
    return CheckpointError(f"{name} has {problem}.", expected=_PLAIN_VALUES, fix=fix)


def unreadable(
    name: str,
    error: Exception,
    trusted: bool = False,
    needing_trust: Callable[[Collection[str]], Sequence[tuple[str, str]]] | None = None,
) -> CheckpointError:
    """Return the error for a file that raised `error`.

    Args:
        needing_trust: Returns the objects in the file that need trust, from the name that torch has refused.
    """
    if needs_trust(error) and needing_trust is not None:
        named = re.search(r"GLOBAL ([\w.]+)", str(error))
        kinds = [named[1]] if named else []
        if objects := needing_trust(kinds) or [("", kind) for kind in kinds]:
            return refused(name, objects)
    if trusted and isinstance(error, (ImportError, AttributeError)):
        return _missing_class(name, error)
    fix = _ANOTHER
    if isinstance(error, RuntimeError) and "map_location" in str(error):
        fix = 'pass map_location="cpu": it was saved on a device that this machine does not have.'
    return CheckpointError(
        f"{name} could not be read as a checkpoint: {_reason(error, trusted)}.", expected=_COMPLETE_FILE, fix=fix
    )


def _missing_class(name: str, error: ImportError | AttributeError) -> CheckpointError:
    """Return the error for a trusted file with objects of a class that this process cannot import."""
    module = (getattr(error, "name", None) or "") if isinstance(error, ImportError) else ""
    root = module.partition(".")[0]
    fix = "run it where the classes of these objects can be imported by the same names."
    if translated := fix_for_import(str(error), in_command=False):
        fix = translated
    elif root:
        fix = f"install `{root}`, or add its folder to PYTHONPATH."
    return CheckpointError(
        f"{name} holds objects of classes that cannot be imported: {error}.",
        expected="the packages and modules of the program that wrote the file.",
        fix=fix,
    )


def unreachable(path: str, error: Exception) -> CheckpointError:
    """Return the error for a URL that cannot be accessed."""
    return CheckpointError(
        f"{path!r} cannot be accessed: {error}",
        expected="a path, or a URL with a protocol that fsspec knows and whose package is installed.",
        fix=f"{optional.STORES}; or use a local path.",
    )


def needs_trust(error: Exception) -> bool:
    """Whether torch refused an object; its message recommends loading the file unsafely, so it is not shown."""
    return isinstance(error, pickle.UnpicklingError)


def _reason(error: Exception, trusted: bool) -> str:
    if isinstance(error, (CorruptionError, pickles.InvalidPickleError)):
        return str(error)
    if isinstance(error, EOFError):
        return "it is empty or ends too early"
    if isinstance(error, IsADirectoryError):
        return "it is a directory"
    if isinstance(error, OSError):
        return "it is truncated" if error.errno == 22 else str(error)
    if type(error) is RuntimeError and str(error):
        text = re.sub(r"^\[enforce fail at [^\]]*\] [^.]*\. ", "", str(error))  # a position in torch's sources
        return text.split(". ")[0].splitlines()[0]
    return f"{type(error).__name__}: {error}" if trusted else "torch.save did not write it, or it is damaged"


def not_a_checkpoint(name: str, path: Any, content: Any) -> CheckpointError:
    """Return the error for a file with other content than a checkpoint."""
    where = f"{str(path)!r}" if isinstance(path, (str, os.PathLike)) else "file"
    fix = "use a file that Trainer.save_checkpoint or Lightning wrote."
    if not isinstance(content, dict):
        actual = f"it is {_shown(content)}"
    elif "state_dict" in content:
        actual = f"its 'state_dict' is {_shown(content['state_dict'])}"
    else:
        actual = f"it is a dict with the keys {sorted(key for key in content if isinstance(key, str))[:6]}"
        if content and all(isinstance(value, torch.Tensor) for value in content.values()):
            fix = f"these are plain weights: module.load_state_dict(torch.load({where}))"
    return CheckpointError(
        f"{name} is not a checkpoint: {actual}.",
        expected="a dict with 'state_dict', as Trainer.save_checkpoint writes it.",
        fix=fix,
    )


def _shown(value: Any) -> str:
    try:
        return shown(value)
    except Exception:  # noqa: BLE001  a file may have objects that cannot be shown
        return f"an object of type {type(value).__name__}"


def not_picklable(path: str | os.PathLike[str], where: str | None, error: Exception) -> CheckpointWriteError:
    """Return the error for content that cannot be pickled; `where` is the path of the object in it, if known."""
    return CheckpointWriteError(
        f"The checkpoint {os.fspath(path)!r} could not be written: it has an object that cannot be pickled"
        f"{'' if where is None else f' at {where}'}: {error}.",
        expected="tensors, numbers, strings, lists and dicts of them.",
        fix="remove it from what on_save_checkpoint or state_dict returns; earlier checkpoints are unchanged.",
    )
