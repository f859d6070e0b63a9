"""Entries that a user adds to one checkpoint with `save_checkpoint(…, extra=…)`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightlib.checkpoint.file.archive import not_plain
from lightlib.checkpoint.storage.content import OURS, Content
from lightlib.errors import ArgumentTypeError, MisconfigurationException, wrong_type
from lightlib.tree import map_tensors

_TAKEN = frozenset({*Content.__annotations__, OURS, "state_dict"})


def checked_extra(extra: object) -> dict[str, Any]:
    """Return the entries, with copies of their tensors: the save may wait until they have changed.

    Raises:
        ArgumentTypeError: They are no dict of names, or a value is neither a tensor nor plain.
        MisconfigurationException: A checkpoint has an entry of that name.
    """
    if extra is None:
        return {}
    if not isinstance(extra, Mapping) or not all(isinstance(name, str) for name in extra):
        fix = 'trainer.save_checkpoint(path, extra={"vocabulary": words})'
        raise wrong_type("save_checkpoint", "extra", extra, "a dict of names with tensors and plain values", fix=fix)
    place = not_plain(dict(extra))
    if place is not None:
        raise ArgumentTypeError(
            f"save_checkpoint got extra with an object that is no plain value at {place}.",
            expected="tensors, numbers, strings, lists and dicts of them, which are read safely.",
            fix="add its state_dict, or the values from which it is made.",
        )
    _refuse_taken(extra, _TAKEN)
    return dict(map_tensors(lambda tensor: tensor.detach().clone(), dict(extra)))


def add_extra(content: dict[str, Any], extra: Mapping[str, Any]) -> None:
    """Add the entries to a checkpoint.

    Raises:
        MisconfigurationException: A hook of the module, a callback or the data module has added such an entry.
    """
    _refuse_taken(extra, content)
    content |= extra


def _refuse_taken(extra: Mapping[str, Any], names: Any) -> None:
    taken = next((name for name in extra if name in names), None)
    if taken is not None:
        raise MisconfigurationException(
            f"save_checkpoint got extra={{{taken!r}: …}}, but a checkpoint has an entry {taken!r} already.",
            expected="other names.",
            fix=f"extra={{{'my_' + taken!r}: …}}",
        )
