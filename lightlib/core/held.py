"""What the user's objects hold: attributes, whether a run changes them, and who saves them."""

from __future__ import annotations

import ast
import inspect
import io
import textwrap
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from lightlib.core.generators import is_generator

__all__ = ["Owner", "changed", "fingerprints", "modules_in", "saves", "stored", "updated"]

_SAVERS = ("state_dict", "on_save_checkpoint", "get_extra_state", "__getstate__")
_BEFORE_OR_AFTER = (
    "__init__", "__post_init__", "setup", "teardown", "prepare_data", "configure_model", "configure_optimizers",
    "configure_callbacks", "load_state_dict", "on_load_checkpoint", "set_extra_state", "on_fit_start", "on_fit_end",
    "train_dataloader", "val_dataloader", "test_dataloader", "predict_dataloader", "__setstate__", "__getstate__",
)  # fmt: skip
_MUTATE = frozenset(
    ("append", "appendleft", "extend", "insert", "add", "update", "pop", "popleft", "popitem", "remove", "discard",
     "setdefault", "subtract")
)  # fmt: skip
_LIBRARIES = ("torch", "torchmetrics", "lightlib", "numpy", "torchdata", "torchvision", "collections", "builtins")
_SHORT, _LONG = 64, 10_000


class Owner:
    """One of the user's objects.

    Args:
        place: How it is called in the audit, ``"module.encoder"``.
        held: The object.
        ours: The names of attributes that are not the user's.
        kind: ``"module"``, ``"callback"``, ``"data module"`` or ``"data set"``.
        saved: Whether all of it is in a state of its own.
        elsewhere: Whether copies of it are used, in worker processes: then this one does not change.
    """

    def __init__(
        self, place: str, held: Any, ours: Iterable[str], kind: str, saved: bool = False, elsewhere: bool = False
    ) -> None:
        self.place, self.held, self.kind, self.saved, self.elsewhere = place, held, kind, saved, elsewhere
        self._ours = frozenset(ours)

    def attributes(self) -> Iterator[tuple[str, Any]]:
        """Yield the attributes that the user gave it."""
        for name, value in list(getattr(self.held, "__dict__", {}).items()):
            if name not in self._ours and not name.startswith("__"):
                yield name, value


def fingerprints(owners: list[Owner]) -> dict[tuple[str, str], Any]:
    """Return something small for every attribute, which differs when the attribute has changed."""
    return {(owner.place, name): _print(value) for owner in owners for name, value in owner.attributes()}


def changed(before: Any, value: Any) -> bool:
    """Whether an attribute has changed since its fingerprint was taken."""
    return bool(before != _print(value))


def _print(value: Any, depth: int = 0) -> Any:
    kind = type(value)
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return repr(value) if value != value else (kind.__name__, value)
    if isinstance(value, torch.Tensor):
        version = None if value.is_inference() else value._version  # noqa: SLF001  it has no public name
        return "tensor", id(value), version
    if kind.__module__ == "numpy":
        return ("array", value.tobytes()) if value.nbytes <= _LONG else ("array", id(value))
    if is_generator(value) or isinstance(value, (nn.Module, DataLoader, Dataset, type)) or callable(value):
        return None
    if depth < 3 and isinstance(value, Mapping) and len(value) <= _LONG:
        return "mapping", len(value), [(_print(k, 3), _print(v, depth + 1)) for k, v in list(value.items())[-_SHORT:]]
    if depth < 3 and isinstance(value, (list, tuple, set, frozenset, deque)):
        items = value if isinstance(value, (list, tuple)) else list(value)
        return kind.__name__, len(items), [_print(one, depth + 1) for one in items[-_SHORT:]]
    own = getattr(value, "__dict__", None)
    if depth < 2 and isinstance(own, dict) and kind.__module__.split(".")[0] not in _LIBRARIES:
        return kind.__name__, [(name, _print(one, depth + 1)) for name, one in list(own.items())[:_SHORT]]
    return kind.__name__


def modules_in(value: Any) -> bool:
    """Whether a plain list or dict holds modules, which are then no part of the module that holds it."""
    items = value.values() if isinstance(value, dict) else value
    return type(value) in (list, tuple, dict) and any(isinstance(one, nn.Module) for one in list(items)[:_SHORT])


def is_open_file(value: Any) -> bool:
    """Whether a value is a file that is written."""
    return isinstance(value, io.IOBase) and not value.closed and value.writable()


def is_iterator(value: Any) -> bool:
    """Whether a value has a place that cannot be saved."""
    return isinstance(value, Iterator) and not isinstance(value, io.IOBase) and not hasattr(value, "state_dict")


def saves(owner: Owner, name: str) -> bool:
    """Whether a method of the user's that writes into a checkpoint speaks of an attribute."""
    if owner.saved:
        return True
    for saver in _SAVERS[:3]:
        method = getattr(type(owner.held), saver, None)
        if method is None or _is_ours(method):
            continue
        text = _source(method)
        if text is None or f"self.{name}" in text or f'"{name}"' in text or "__dict__" in text or "vars(self)" in text:
            return True
    return False


def has_saver(owner: Owner) -> bool:
    """Whether the user wrote a method that writes into a checkpoint."""
    methods = (getattr(type(owner.held), saver, None) for saver in _SAVERS[:3])
    return any(method is not None and not _is_ours(method) for method in methods)


def _is_ours(method: Any) -> bool:
    return str(getattr(method, "__module__", "")).split(".")[0] in _LIBRARIES


def updated(kind: type) -> frozenset[str]:
    """Return the attributes that a class's methods make from their former values while a run goes on.

    Counters, sums, lists that grow: what `__init__` gives them is not what a resumed run needs. It is read from the
    source; without one nothing is returned.
    """
    methods = (method for one in kind.__mro__ for method in _methods(one) if method.name not in _BEFORE_OR_AFTER)
    return frozenset(name for method in methods for node in ast.walk(method) for name in _updates(node))


def stored(kind: type) -> frozenset[str]:
    """Return the attributes that the user's methods of a class store; all others come from classes that are ours."""
    nodes = (node for one in kind.__mro__ for method in _methods(one) for node in ast.walk(method))
    return frozenset(
        name
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and (name := _own(node))
    )


@cache
def _methods(kind: type) -> tuple[ast.FunctionDef, ...]:
    """Return the methods of a class of the user's, as far as its source can be read."""
    text = None if kind.__module__.split(".")[0] in _LIBRARIES else _source(kind)
    body = ast.parse(text).body if text else []
    owner = body[0] if body else None
    return (
        tuple(one for one in owner.body if isinstance(one, ast.FunctionDef)) if isinstance(owner, ast.ClassDef) else ()
    )


def _updates(node: ast.AST) -> set[str]:
    if isinstance(node, ast.AugAssign):
        return _names([node.target])
    if isinstance(node, ast.Assign):
        stored = _names(node.targets)
        whole = {name for target in node.targets if (name := _own(target))}
        read = {name for one in ast.walk(node.value) if (name := _own(one))}
        return (stored - whole) | (whole & read)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _MUTATE:
        return _names([node.func.value])
    return set()


def _names(targets: list[Any]) -> set[str]:
    """Return the attributes of `self` that are stored into, also by an index."""
    found = set()
    for target in targets:
        part = target
        while isinstance(part, ast.Subscript):
            part = part.value
        if name := _own(part):
            found.add(name)
    return found


def _own(node: Any) -> str | None:
    is_own = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    return node.attr if is_own else None


def _source(what: type | Callable[..., Any]) -> str | None:
    try:
        return textwrap.dedent(inspect.getsource(what))
    except (OSError, TypeError):  # typed at a prompt, or made elsewhere
        return None
