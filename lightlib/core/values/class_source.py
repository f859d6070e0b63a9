"""Reads the source of the user's classes: the attributes that their methods change, store, and save."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from functools import cache
from tokenize import TokenError
from types import CodeType
from typing import Any

_SAVERS = ("state_dict", "on_save_checkpoint", "get_extra_state", "sharded_state", "__getstate__")
_BEFORE_OR_AFTER = (
    "__init__", "__post_init__", "setup", "teardown", "prepare_data", "configure_model", "configure_optimizers",
    "configure_callbacks", "load_state_dict", "on_load_checkpoint", "set_extra_state", "load_sharded_state",
    "on_fit_start", "on_fit_end",
    "train_dataloader", "val_dataloader", "test_dataloader", "predict_dataloader", "__setstate__", "__getstate__",
)  # fmt: skip
_MUTATE = frozenset(
    ("append", "appendleft", "extend", "insert", "add", "update", "pop", "popleft", "popitem", "remove", "discard",
     "setdefault", "subtract")
)  # fmt: skip
# Objects of classes from these packages are not compared and saved attribute by attribute.
LIBRARIES = frozenset(
    (*sys.stdlib_module_names, "torch", "torchmetrics", "lightlib", "numpy", "torchdata", "torchvision", "tqdm", "rich",
     "omegaconf", "jsonargparse")
) - {"__main__"}  # fmt: skip


def root_of(kind: type) -> str:
    """Return the package that defines a class."""
    return kind.__module__.partition(".")[0]


@cache
def is_of_torch(kind: type) -> bool:
    """Whether torch defines a class and all its bases: the classes that FSDP2 creates may inherit from the user's."""
    return all(root_of(base) in ("torch", "builtins", "typing") for base in kind.__mro__)


@cache
def saves(kind: Any, name: str) -> bool:
    """Whether a method of the user that writes to a checkpoint reads an attribute."""
    read = _saved(kind)
    return read is None or name in read


@cache
def _saved(kind: Any) -> frozenset[str] | None:
    """Return the attributes that the user's methods for checkpoints read, None if they read all."""
    names: set[str] = set()
    done: set[Any] = set()
    waiting = [method for saver in _SAVERS[:-1] if (method := _of_class(kind, saver)) is not None]
    while waiting:
        method = waiting.pop()
        code = getattr(inspect.unwrap(method), "__code__", None)
        if _is_ours(method) or code is None or code in done:
            continue
        done.add(code)
        read = _read_by(method, code)
        if read is None:
            return None
        names |= read
        for name in read:
            of_kind = _of_class(kind, name)
            of_kind = of_kind.fget if isinstance(of_kind, property) else getattr(of_kind, "__func__", of_kind)
            if callable(of_kind):  # self.pack(), whose result is saved
                waiting.append(of_kind)
            elif isinstance(of_kind, (list, tuple, set, frozenset)):  # the names of attributes
                names |= {name for name in of_kind if isinstance(name, str)}
        if "super" in code.co_names:
            waiting += [vars(base)[method.__name__] for base in kind.__mro__ if method.__name__ in vars(base)]
    return frozenset(names)


def _of_class(kind: type, name: str) -> Any:
    return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)


def _read_by(method: Any, code: Any) -> set[str] | None:
    """Return the attributes of its object that a method reads, None if it reads all."""
    text = _source(method)
    tree, names = _parsed(text) if text else None, set(_names_in(code))
    if tree is None or not _is_of(tree, code, names):  # without source: every attribute of any object that it reads
        return None if names & _READ_ALL else names
    self_name = code.co_varnames[0] if code.co_argcount else "self"
    names_read: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == self_name:
            if node.attr == "__dict__":
                return None
            names_read |= _as_compiled(node.attr, names) if isinstance(node.ctx, ast.Load) else set()
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _READ_ALL):
            continue
        if not any(isinstance(argument, ast.Name) and argument.id == self_name for argument in node.args):
            continue
        if node.func.id != "getattr":
            return None
        chosen = [argument for argument in node.args[1:2] if isinstance(argument, ast.Constant)] or _listed(tree)
        names_read |= {
            constant.value
            for constant in chosen
            if isinstance(constant, ast.Constant) and isinstance(constant.value, str)
        }
    return names_read


def _is_of(tree: ast.Module, code: CodeType, names: set[str]) -> bool:
    """Whether a text is that of a function: its file may have been edited since the program began."""
    function = tree.body[0] if tree.body else None
    body = function.body if isinstance(function, ast.FunctionDef) and function.name == code.co_name else []
    attributes = {node.attr for statement in body for node in ast.walk(statement) if isinstance(node, ast.Attribute)}
    return bool(body) and all(_as_compiled(name, names) for name in attributes)


def _as_compiled(name: str, names: set[str]) -> set[str]:
    """Return the names of compiled code for one in a text: `self.__a` is read as `_Class__a`."""
    private = name.startswith("__") and not name.endswith("__")
    return {each for each in names if each == name or (private and each.endswith(name))}


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _listed(tree: ast.AST) -> list[ast.expr]:
    """Return the items of the lists and tuples in a method: names of attributes."""
    kinds = (ast.List, ast.Tuple, ast.Set)
    return [item for node in ast.walk(tree) if isinstance(node, kinds) for item in node.elts]


_READ_ALL = frozenset(("vars", "getattr", "__dict__", "asdict", "deepcopy", "copy"))


def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except SyntaxError:  # a lambda within a line, or a file that has been edited
        return None


def _is_ours(method: Any) -> bool:
    return str(getattr(method, "__module__", "")).partition(".")[0] in LIBRARIES


@cache
def updated(kind: Any) -> frozenset[str]:
    """Return the attributes that a class's methods update from their former values during a run.

    Counters, sums, lists that grow: a resumed run needs more than their initial values. They are read from the source;
    without source the result is empty.
    """
    methods = (method for base in kind.__mro__ for method in _methods(base) if method.name not in _BEFORE_OR_AFTER)
    return frozenset(name for method in methods for node in ast.walk(method) for name in _updates(node))


@cache
def stored(kind: Any) -> frozenset[str]:
    """Return the attributes that the user's methods of a class store; the rest come from lightlib's classes."""
    nodes = (node for base in kind.__mro__ for method in _methods(base) for node in ast.walk(method))
    return frozenset(
        name
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and (name := _self_attribute(node))
    )


@cache
def _methods(kind: type) -> tuple[ast.FunctionDef, ...]:
    """Return the methods of a user's class, if its source can be read."""
    text = None if root_of(kind) in LIBRARIES else _source(kind)
    tree = _parsed(text) if text else None
    owner = tree.body[0] if tree is not None and tree.body else None
    nodes = owner.body if isinstance(owner, ast.ClassDef) else []
    return tuple(node for node in nodes if isinstance(node, ast.FunctionDef))


def _updates(node: ast.AST) -> set[str]:
    if isinstance(node, ast.AugAssign):
        return _names([node.target])
    if isinstance(node, ast.Assign):
        stored = _names(node.targets)
        replaced = {name for target in node.targets if (name := _self_attribute(target))}
        read = {name for child in ast.walk(node.value) if (name := _self_attribute(child))}
        return (stored - replaced) | (replaced & read)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _MUTATE:
        return _names([node.func.value])
    return set()


def _names(targets: list[Any]) -> set[str]:
    """Return the attributes of `self` that are assigned to, also through an index."""
    names = set()
    for target in targets:
        node = target
        while isinstance(node, ast.Subscript):
            node = node.value
        if name := _self_attribute(node):
            names.add(name)
    return names


def _self_attribute(node: Any) -> str | None:
    is_own = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    return node.attr if is_own else None


@cache
def _source(target: type | Callable[..., Any]) -> str | None:
    try:
        return textwrap.dedent(inspect.getsource(target))
    except (OSError, TypeError, SyntaxError, TokenError):  # typed at a prompt, generated, or being edited
        return None
