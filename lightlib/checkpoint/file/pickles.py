"""Reads pickles without building their objects, so that reading is safe."""

from __future__ import annotations

import contextlib
import pickletools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import torch

from lightlib.checkpoint.file import standard

DEEPEST = 200  # levels of containers; the deepest of real checkpoints have about 20
MOST = 10**7  # values to which a file may expand by repeating a list
PICKLES_OF_OLD_FILES = 5  # before 1.6 torch wrote pickles one after the other instead of a zip file
# torch calls these if a file names them. With other arguments than torch.save writes they use memory or time.
NOT_CALLED = ("builtins.bytearray", "__builtin__.bytearray")
ENCODERS = ("_codecs.encode",)
TORCHS = ("torch.", "collections.OrderedDict", "collections.Counter", "_codecs.encode", *standard.NAMES)
HARMLESS = ("set", "complex", "bytearray", "frozenset")


class Refused(Exception):
    """An object that is built only if the file is trusted: its name and its path in the file."""


class InvalidPickleError(Exception):
    """A pickle that no program writes; the message states the reason."""


class CircularPickleError(InvalidPickleError):
    """A pickle with a container or an object that contains itself, for example through a parent reference."""


NO_PICKLE = "torch.save did not write it, or it is damaged"


@dataclass(eq=False)
class _Node:
    """A container or an object, with its parts."""

    kind: str
    parts: list[tuple[str, Any]] = field(default_factory=list)  # with the path of each within this one
    name: str = ""  # of a class or function

    def add(self, values: list[Any], pairs: bool) -> None:
        if not pairs:
            self.parts += [(f"[{len(self.parts) + k}]", value) for k, value in enumerate(values)]
            return
        for key, value in zip(values[::2], values[1::2], strict=True):
            self.parts += [("", key)] if isinstance(key, _Node) else []
            self.parts.append(("" if isinstance(key, _Node) else f"[{key!r}]", value))

    @property
    def nodes(self) -> Iterator[_Node]:
        return (part for _, part in self.parts if isinstance(part, _Node))


_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_ADDED = {"APPEND": (1, False), "SETITEM": (2, True), "APPENDS": (None, False), "ADDITEMS": (None, False),
          "SETITEMS": (None, True)}  # fmt: skip
_EMPTY = ("EMPTY_LIST", "EMPTY_DICT", "EMPTY_SET", "EMPTY_TUPLE")
_FROM_MARK = {"LIST": False, "DICT": True, "TUPLE": False, "FROZENSET": False}
_CALLS = {"REDUCE": 2, "NEWOBJ": 2, "NEWOBJ_EX": 3, "BINPERSID": 1}
_OBJECTS = (*_CALLS, "OBJ", "INST")


def _read(file: Any) -> Any:
    """Return the structure of a pickle: containers and calls as nodes, other values unchanged."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}

    def take(count: int | None) -> list[Any]:
        start = marks.pop() if count is None else len(stack) - count
        if start < 0 or start > len(stack):
            raise IndexError
        taken = stack[start:]
        del stack[start:]
        return taken

    try:
        argument: Any
        for operation, argument, _ in pickletools.genops(file):
            name = operation.name
            if name in _ADDED:
                count, pairs = _ADDED[name]
                values = take(count)
                stack[-1].add(values, pairs)
            elif name in _EMPTY:
                stack.append(_Node(name))
            elif name in _FROM_MARK or name in _TUPLES:
                node = _Node(name)
                node.add(take(_TUPLES.get(name)), _FROM_MARK.get(name, False))
                stack.append(node)
            elif name in _CALLS:
                stack.append(_Node(name, [("", value) for value in take(_CALLS[name])]))
            elif name == "BUILD":
                stack[-2].parts.append(("", stack.pop()))
            elif name in {"GLOBAL", "INST"}:
                node_values = [("", value) for value in take(None)] if name == "INST" else []
                stack.append(_Node(name, node_values, argument.replace(" ", ".")))
            elif name == "OBJ":
                stack.append(_Node(name, [("", value) for value in take(None)]))
            elif name == "STACK_GLOBAL":
                stack.append(_Node("GLOBAL", name=".".join(map(str, take(2)))))
            elif name.startswith("EXT"):
                stack.append(_Node("GLOBAL", name=f"copyreg.extension_{argument}"))
            elif name == "MARK":
                marks.append(len(stack))
            elif name in {"POP", "POP_MARK"}:
                take(None if name == "POP_MARK" or (marks and marks[-1] == len(stack)) else 1)
            elif name == "DUP":
                stack.append(stack[-1])
            elif name in {"PUT", "BINPUT", "LONG_BINPUT"}:
                memo[argument] = stack[-1]
            elif name == "MEMOIZE":
                memo[len(memo)] = stack[-1]
            elif name in {"GET", "BINGET", "LONG_BINGET"}:
                stack.append(memo[argument])
            elif name not in {"PROTO", "FRAME", "STOP"}:
                stack.append(argument)
        return stack.pop()
    except (AttributeError, EOFError, IndexError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise InvalidPickleError(NO_PICKLE) from error


class _Bounded:
    """A file that limits reads to its size."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        here = file.tell()
        self._end = file.seek(0, 2)
        file.seek(here)
        self.tell, self.readline = file.tell, file.readline

    def read(self, count: int) -> bytes:
        return self._file.read(max(0, min(count, self._end - self._file.tell())))


def check(files: Iterable[BinaryIO]) -> None:
    """Refuse pickles with calls or nesting that torch.save never writes; each file is at the beginning of one pickle.

    Raises:
        Refused: A pickle has a call with which the file controls memory or time, or has objects that contain
            themselves and are not of torch's classes.
        InvalidPickleError: A pickle is damaged, or is nested too deeply, in itself, or too often to be safe.
    """
    for file in files:
        root = _read(_Bounded(file))
        try:
            _measure(root)
        except CircularPickleError:
            for path, part in root.parts:
                foreign = next((node.name for node in _within(part) if node.name and not _is_harmless(node.name)), None)
                if foreign is not None:
                    raise Refused(foreign, path) from None
            raise
        for name, path, call in _calls(root):
            if name in NOT_CALLED or (name in ENCODERS and not _stands_for_bytes(call)):
                raise Refused(_of_python_3(name), path)


def _within(root: Any) -> Iterator[_Node]:
    """Yield each node once, even if nodes are nested in themselves or very deeply."""
    todo, ids = [root], set[int]()
    while todo:
        node = todo.pop()
        if isinstance(node, _Node) and id(node) not in ids:
            ids.add(id(node))
            yield node
            todo += reversed([*node.nodes])


def _stands_for_bytes(call: _Node) -> bool:
    """Whether a call of `encode` is the form in which torch.save writes bytes."""
    arguments = call.parts[1][1] if call.kind == "REDUCE" else None
    values = [value for _, value in arguments.parts] if isinstance(arguments, _Node) else []
    return len(values) == 2 and isinstance(values[0], str) and values[1] == "latin1"


def _measure(root: Any) -> None:
    """Refuse nodes that are nested too deeply, contain themselves, or expand to too many values."""
    done: dict[int, tuple[int, int]] = {}
    begun: set[int] = set()
    todo = [root] if isinstance(root, _Node) else []
    while todo:
        node = todo[-1]
        if id(node) in done:
            todo.pop()
        elif id(node) not in begun:
            begun.add(id(node))
            for part in node.nodes:
                if id(part) not in done:
                    if id(part) in begun:
                        raise CircularPickleError("an object in it contains itself")
                    todo.append(part)
        else:
            below = [done[id(part)] for part in node.nodes]
            depth = 1 + max((depth_below for depth_below, _ in below), default=0)
            size = len(node.parts) + 1 + sum(size_below for _, size_below in below)
            if depth > DEEPEST:
                raise InvalidPickleError(f"it is nested more than {DEEPEST} levels deep")
            if size > MOST and size > 100 * len(begun):
                raise InvalidPickleError(f"it expands to {size} values")
            done[id(node)] = depth, size
            todo.pop()


def _calls(root: Any) -> Iterator[tuple[str, str, _Node]]:
    """Yield the name of each class and function, its path, and the call that uses it.

    The parts of an object have the path of the object.
    """
    todo = [("", False, root, root)] if isinstance(root, _Node) else []
    ids: set[int] = set()
    while todo:
        path, inside, node, above = todo.pop()
        if node.name:
            yield node.name, path, above
        if id(node) not in ids:
            ids.add(id(node))
            for key, part in reversed(node.parts):
                if isinstance(part, _Node):
                    within = inside or (node.kind in _OBJECTS and not key)
                    todo.append((path if within else path + key, within, part, node))


def foreign(files: Iterable[BinaryIO], names: Collection[str] = ()) -> list[tuple[str, str]]:
    """Return the objects of classes with these `names`, else of classes that are not torch's: their paths and classes.

    A name is complete or its last part alone. A path is ``['a'][1]``; of an object its own class is returned only.
    """
    names_by_path: dict[tuple[str, str], None] = {}
    objects: set[str] = set()
    with contextlib.suppress(InvalidPickleError):
        for file in files:
            for name, path, above in _calls(_read(_Bounded(file))):
                is_foreign = (name in names or name.rpartition(".")[2] in names) if names else not _is_harmless(name)
                if is_foreign and path not in objects:
                    names_by_path[path, _of_python_3(name)] = None
                    objects |= {path} if above.kind in _OBJECTS else set()
    return list(names_by_path)


def _of_python_3(name: str) -> str:
    return name.replace("__builtin__", "builtins")


def _is_harmless(name: str) -> bool:
    return name.startswith(TORCHS) or name.split(".", 1)[-1] in HARMLESS


def check_content(content: Any, map_location: Any, size: int) -> None:
    """Refuse tensors without values, or larger than the file of `size` bytes that they came from."""
    todo, ids = [("", content)], set[int]()
    while todo:
        path, value = todo.pop()
        if id(value) in ids:
            continue
        ids.add(id(value))
        if isinstance(value, torch.Tensor):
            problem = _problem(value, map_location, size)
            if problem:
                raise InvalidPickleError(f"the tensor at {path} {problem}")
        elif isinstance(value, Mapping):
            todo += [(f"{path}[{key!r}]" if isinstance(key, (str, int)) else path, part) for key, part in value.items()]
        elif isinstance(value, (list, tuple, set)):
            todo += [(f"{path}[{k}]", part) for k, part in enumerate(value)]
        elif isinstance(value, standard.CLASSES):
            todo += [(path + place, part) for place, part in standard.parts(value)]


def _problem(tensor: torch.Tensor, map_location: Any, size: int) -> str:
    if tensor.is_meta:
        devices = map_location.values() if isinstance(map_location, Mapping) else [map_location]
        return "" if "meta" in map(str, devices) else "has no values"
    if type(tensor) not in {torch.Tensor, torch.nn.Parameter} or tensor.layout != torch.strided:
        return ""
    stored, claimed = tensor.untyped_storage().nbytes(), tensor.numel() * tensor.element_size()
    if stored > size:
        return f"has {stored} bytes, more than the file"
    return f"claims {claimed} bytes, but has {stored}" if claimed > max(2**30, 64 * stored) else ""


def is_real_shortage(error: Exception, size: int) -> bool:
    """Whether memory is short, as opposed to a file of `size` bytes that requests more than it contains."""
    request = re.search(r"tried to allocate (\d+) bytes", str(error)) if isinstance(error, RuntimeError) else None
    return isinstance(error, MemoryError) or (request is not None and int(request[1]) <= size)
