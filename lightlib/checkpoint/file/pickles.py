"""Pickles, looked at without building any of what is in them, so that nothing can happen by looking."""

from __future__ import annotations

import pickletools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import torch

__all__ = ["Refused", "Strange", "check", "check_content", "first_foreign", "is_real_shortage", "place_of"]

DEEPEST = 200  # levels of containers; the deepest of real checkpoints have about 20
MOST = 10**7  # values that a file may expand to when it says the same list many times
PICKLES_OF_OLD_FILES = 5  # before 1.6 torch wrote no zip files, but pickles one after the other
# torch calls these when a file says so. With other arguments than torch.save writes they take memory or time.
NOT_CALLED = ("builtins.bytearray", "__builtin__.bytearray")
ENCODERS = ("_codecs.encode",)
TORCHS = ("torch.", "collections.OrderedDict", "collections.Counter", "_codecs.encode")
HARMLESS = ("set", "complex", "bytearray", "frozenset")


class Refused(Exception):
    """An object that is not built unless the file is trusted: its name and its place."""


class Strange(Exception):
    """A pickle that no program writes; the text says what is strange about it."""


class Circular(Strange):
    """A pickle in which something holds itself, as objects do that know what holds them."""


NO_PICKLE = "torch.save did not write it, or it is damaged"


@dataclass(eq=False)
class _Node:
    """A container, or an object with what it is made of."""

    kind: str
    parts: list[tuple[str, Any]] = field(default_factory=list)  # with the place of each within this one
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
    """Return what a pickle would build: containers and calls as nodes, other values as they are.

    Raises:
        Strange: It is no pickle, or does what no pickle does.
    """
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}

    def take(count: int | None) -> list[Any]:
        place = marks.pop() if count is None else len(stack) - count
        if place < 0 or place > len(stack):
            raise IndexError
        taken = stack[place:]
        del stack[place:]
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
                held = [("", value) for value in take(None)] if name == "INST" else []
                stack.append(_Node(name, held, argument.replace(" ", ".")))
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
        raise Strange(NO_PICKLE) from error


class _Bounded:
    """A file in which no more is asked for than is there."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        here = file.tell()
        self._end = file.seek(0, 2)
        file.seek(here)
        self.tell, self.readline = file.tell, file.readline

    def read(self, count: int) -> bytes:
        return self._file.read(max(0, min(count, self._end - self._file.tell())))


def check(files: Iterable[BinaryIO]) -> None:
    """Refuse pickles that ask for what torch.save never asks for.

    Args:
        files: Each at the beginning of one pickle.

    Raises:
        Refused: One calls something that takes memory or time as the file wants it, or holds objects of other classes
            than torch's that hold themselves.
        Strange: One is damaged, or nested so deeply, in itself, or so often that to work with it is dangerous.
    """
    for file in files:
        root = _read(_Bounded(file))
        try:
            _measure(root)
        except Circular:
            for place, part in root.parts:
                foreign = next((node.name for node in _within(part) if node.name and not _known(node.name)), None)
                if foreign is not None:
                    raise Refused(foreign, place) from None
            raise
        for name, place, call in _calls(root):
            if name in NOT_CALLED or (name in ENCODERS and not _stands_for_bytes(call)):
                raise Refused(name.replace("__builtin__", "builtins"), place)


def _within(root: Any) -> Iterator[_Node]:
    """Yield each node once, also where they are nested in themselves or too deeply for their places to be said."""
    todo, seen = [root], set[int]()
    while todo:
        node = todo.pop()
        if isinstance(node, _Node) and id(node) not in seen:
            seen.add(id(node))
            yield node
            todo += reversed([*node.nodes])


def _stands_for_bytes(call: _Node) -> bool:
    """Whether a call of `encode` is the one that torch.save writes bytes as."""
    arguments = call.parts[1][1] if call.kind == "REDUCE" else None
    values = [value for _, value in arguments.parts] if isinstance(arguments, _Node) else []
    return len(values) == 2 and isinstance(values[0], str) and values[1] == "latin1"


def _measure(root: Any) -> None:
    """Refuse what is nested too deeply, holds itself, or expands to too much."""
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
                        raise Circular("something in it holds itself")
                    todo.append(part)
        else:
            below = [done[id(part)] for part in node.nodes]
            depth = 1 + max((one for one, _ in below), default=0)
            size = len(node.parts) + 1 + sum(one for _, one in below)
            if depth > DEEPEST:
                raise Strange(f"it is nested more than {DEEPEST} levels deep")
            if size > MOST and size > 100 * len(begun):
                raise Strange(f"it expands to {size} values")
            done[id(node)] = depth, size
            todo.pop()


def _calls(root: Any) -> Iterator[tuple[str, str, _Node]]:
    """Yield the name of each class and function, the place where it is, and what it is called with.

    What an object is made of has the place of the object.
    """
    todo = [("", False, root, root)] if isinstance(root, _Node) else []
    seen: set[int] = set()
    while todo:
        place, inside, node, above = todo.pop()
        if node.name:
            yield node.name, place, above
        if id(node) not in seen:
            seen.add(id(node))
            for own, part in reversed(node.parts):
                if isinstance(part, _Node):
                    within = inside or (node.kind in _OBJECTS and not own)
                    todo.append((place if within else place + own, within, part, node))


def place_of(name: str, files: Iterable[BinaryIO]) -> str:
    """Return the place of the first object of a class or function of this name, ``['a'][1]``; "" when unknown."""
    return next((place for found, place in _names(files) if found.rpartition(".")[2] == name.rpartition(".")[2]), "")


def first_foreign(files: Iterable[BinaryIO]) -> tuple[str, str] | None:
    """Return the name and the place of the first object that is not torch's."""
    return next(((name, place) for name, place in _names(files) if not _known(name)), None)


def _known(name: str) -> bool:
    return name.startswith(TORCHS) or name.split(".", 1)[-1] in HARMLESS


def _names(files: Iterable[BinaryIO]) -> Iterator[tuple[str, str]]:
    try:
        for file in files:
            for name, place, _ in _calls(_read(_Bounded(file))):
                yield name, place
    except Strange:
        return


def check_content(content: Any, map_location: Any, size: int) -> None:
    """Refuse tensors that are none, or are larger than the file of `size` bytes that they came from.

    Raises:
        Strange: There are some.
    """
    todo, seen = [("", content)], set[int]()
    while todo:
        place, value = todo.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            problem = _problem(value, map_location, size)
            if problem:
                raise Strange(f"the tensor at {place} {problem}")
        elif isinstance(value, Mapping):
            todo += [
                (f"{place}[{key!r}]" if isinstance(key, (str, int)) else place, part) for key, part in value.items()
            ]
        elif isinstance(value, (list, tuple, set)):
            todo += [(f"{place}[{k}]", part) for k, part in enumerate(value)]


def _problem(tensor: torch.Tensor, map_location: Any, size: int) -> str:
    if tensor.is_meta:
        wanted = map_location.values() if isinstance(map_location, Mapping) else [map_location]
        return "" if "meta" in map(str, wanted) else "has no values"
    if type(tensor) not in {torch.Tensor, torch.nn.Parameter} or tensor.layout != torch.strided:
        return ""
    held, claimed = tensor.untyped_storage().nbytes(), tensor.numel() * tensor.element_size()
    if held > size:
        return f"has {held} bytes, more than the file"
    return f"says to have {claimed} bytes, and has {held}" if claimed > max(2**30, 64 * held) else ""


def is_real_shortage(error: Exception, size: int) -> bool:
    """Whether there is too little memory, and not a file of `size` bytes that asks for more than it holds."""
    asked = re.search(r"tried to allocate (\d+) bytes", str(error)) if isinstance(error, RuntimeError) else None
    return isinstance(error, MemoryError) or (asked is not None and int(asked[1]) <= size)
