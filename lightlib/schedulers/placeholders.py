"""Placeholders for numbers of a run, such as its optimizer steps, with arithmetic."""

from __future__ import annotations

import ast
import dataclasses
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from lightlib.errors import ArgumentTypeError, MisconfigurationException, shown

_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
}
_NODES: dict[type, str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//"}
_MEANINGS = {
    "NUM_EPOCHS": "epochs that the run begins",
    "UPDATE_STEPS_PER_EPOCH": "optimizer steps of an epoch",
    "TOTAL_UPDATE_STEPS": "optimizer steps of the run",
    "TRAIN_DATALOADER_LEN": "training batches of an epoch, on each process",
    "EVAL_DATALOADER_LEN": "validation batches, on each process",
}


@dataclass(frozen=True)
class Placeholder:
    """A number of the run that is known only when it begins, or an expression of such numbers.

    It is put in wherever `configure_optimizers` returns it: in arguments of a `functools.partial`, also of nested ones,
    in dicts, lists and dataclasses. ``+``, ``-``, ``*`` and ``//`` combine placeholders and ints.

    Args:
        name: A number of the run, or one of these operators.
        operands: Two of them, with an operator.

    Example:
        >>> NUM_EPOCHS * UPDATE_STEPS_PER_EPOCH - 1
        NUM_EPOCHS * UPDATE_STEPS_PER_EPOCH - 1
        >>> (NUM_EPOCHS * 7).value({"NUM_EPOCHS": 3}.get)
        21
    """

    name: str
    operands: tuple[Any, ...] = ()

    def __add__(self, other: Placeholder | int) -> Placeholder:
        return _combined("+", self, other)

    def __radd__(self, other: Placeholder | int) -> Placeholder:
        return _combined("+", other, self)

    def __sub__(self, other: Placeholder | int) -> Placeholder:
        return _combined("-", self, other)

    def __rsub__(self, other: Placeholder | int) -> Placeholder:
        return _combined("-", other, self)

    def __mul__(self, other: Placeholder | int) -> Placeholder:
        return _combined("*", self, other)

    def __rmul__(self, other: Placeholder | int) -> Placeholder:
        return _combined("*", other, self)

    def __floordiv__(self, other: Placeholder | int) -> Placeholder:
        return _combined("//", self, other)

    def __rfloordiv__(self, other: Placeholder | int) -> Placeholder:
        return _combined("//", other, self)

    def __index__(self) -> int:
        raise ArgumentTypeError(
            f"The placeholder {self} was used as a number.",
            expected="an argument of a functools.partial that configure_optimizers returns; the run puts it in.",
            fix="partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=TOTAL_UPDATE_STEPS)",
        )

    __int__ = __float__ = __index__

    def __repr__(self) -> str:
        if not self.operands:
            return self.name
        first, second = self.operands
        loose = self.name in ("*", "//")
        left = f"({first!r})" if loose and getattr(first, "name", "") in ("+", "-") else repr(first)
        bracketed = getattr(second, "operands", ()) and (loose or self.name == "-")
        return f"{left} {self.name} {f'({second!r})' if bracketed else repr(second)}"

    def value(self, number_of: Callable[[str], Any]) -> int:
        """Return the number.

        Args:
            number_of: Returns the number of the run with this name; `inf` if it has no limit.

        Raises:
            MisconfigurationException: A number is not known in this run, or the result makes no sense.
        """
        if self.operands:
            first, second = (
                operand.value(number_of) if isinstance(operand, Placeholder) else operand for operand in self.operands
            )
            if self.name == "//" and second == 0:
                raise MisconfigurationException(
                    f"{self} divides by 0 in this run.", expected="a number above 0.", fix="correct the expression."
                )
            return int(_OPERATIONS[self.name](first, second))
        number = number_of(self.name)
        if number is None or number == math.inf:
            raise MisconfigurationException(
                f"The placeholder {self} ({_MEANINGS[self.name]}) is not known in this run.",
                expected="a limit (max_steps or max_epochs), and loaders that have a length.",
                fix="Trainer(max_steps=…), or a number in its place.",
            )
        return int(number)


def _combined(sign: str, first: Any, second: Any) -> Placeholder:
    for operand in (first, second):
        if isinstance(operand, bool) or not isinstance(operand, (int, Placeholder)):
            raise ArgumentTypeError(
                f"A placeholder is combined by {sign} with {shown(operand)}.",
                expected="an int or a placeholder.",
                fix="UPDATE_STEPS_PER_EPOCH * 7",
            )
    return Placeholder(sign, (first, second))


NUM_EPOCHS = Placeholder("NUM_EPOCHS")
UPDATE_STEPS_PER_EPOCH = Placeholder("UPDATE_STEPS_PER_EPOCH")
TOTAL_UPDATE_STEPS = Placeholder("TOTAL_UPDATE_STEPS")
TRAIN_DATALOADER_LEN = Placeholder("TRAIN_DATALOADER_LEN")
EVAL_DATALOADER_LEN = Placeholder("EVAL_DATALOADER_LEN")


def expression(text: str) -> Placeholder | None:
    """Return the placeholder that a text writes, as in a configuration; None if it writes none.

    Example:
        >>> expression("NUM_EPOCHS * 2"), expression("cosine")
        (NUM_EPOCHS * 2, None)
    """
    if not any(name in text for name in _MEANINGS):
        return None
    try:
        parsed = _read(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, Placeholder) else None


def _read(node: ast.AST) -> Placeholder | int:
    if isinstance(node, ast.Name) and node.id in _MEANINGS:
        return Placeholder(node.id)
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _NODES:
        return _combined(_NODES[type(node.op)], _read(node.left), _read(node.right))
    raise ValueError(ast.dump(node))


def resolved(given: Any, number_of: Callable[[str], Any]) -> Any:
    """Return `given` with numbers for the placeholders in it.

    Args:
        given: Any object; partials, mappings, lists, tuples and dataclasses are searched, and copied if they have one.
        number_of: As for `Placeholder.value`.

    Example:
        >>> resolved({"total": [NUM_EPOCHS + 1, "a"]}, {"NUM_EPOCHS": 3}.get)
        {'total': [4, 'a']}
    """
    if isinstance(given, Placeholder):
        return given.value(number_of)
    if isinstance(given, partial):
        args, named = resolved(given.args, number_of), resolved(given.keywords, number_of)
        func = resolved(given.func, number_of)
        same = args is given.args and named is given.keywords and func is given.func
        return given if same else partial(func, *args, **named)
    if isinstance(given, Mapping):
        entries = {key: resolved(value, number_of) for key, value in given.items()}
        return entries if any(entries[key] is not given[key] for key in entries) else given
    if isinstance(given, (list, tuple)):
        items = [resolved(value, number_of) for value in given]
        if all(new is old for new, old in zip(items, given, strict=True)):
            return given
        return type(given)(*items) if hasattr(given, "_fields") else type(given)(items)
    if dataclasses.is_dataclass(given) and not isinstance(given, type):
        values = {field.name: getattr(given, field.name) for field in dataclasses.fields(given) if field.init}
        resolved_values = resolved(values, number_of)
        return given if resolved_values is values else dataclasses.replace(given, **resolved_values)
    return given
