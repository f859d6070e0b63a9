"""Shared by the conformance checks: the base class of the kits, and comparisons with one device."""

from __future__ import annotations

import io
import math
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from lightlib.callbacks.callback import Callback
from lightlib.errors import LightlibError, MisconfigurationException, UnknownNameError

if TYPE_CHECKING:
    from lightlib.core.trainer import Trainer

SAVED_AT = 6  # optimizer steps: in the middle of the second epoch of 4


@dataclass
class Kit:
    """The checks of one kind of plugin: the methods named ``test_…``, each on a new instance with an empty folder.

    Attributes:
        kind: Of the plugins, for the errors.
        base: The class of lightlib from which plugins inherit.
        documentation: States what each check expects, as the errors do.
        make: The user's function, which returns a new plugin.
        check: The name of the check that runs.
        folder: For its files.
        stack: Its contexts are left after the check.
    """

    kind: ClassVar[str]
    base: ClassVar[type]
    documentation: ClassVar[str | None]
    make: Callable[..., Any]
    check: str = ""
    folder: Path = Path()
    stack: ExitStack = field(default_factory=ExitStack)

    @classmethod
    def checks(cls) -> tuple[str, ...]:
        """Return the names of the checks, in their order."""
        return tuple(name.removeprefix("test_") for name in vars(cls) if name.startswith("test_"))

    @classmethod
    def run(cls, make: Callable[..., Any], without: Iterable[str] = ()) -> None:
        """Run the checks, except those of `without`."""
        for name in selected(f"a {cls.kind}", cls.checks(), without):
            with ExitStack() as stack:
                folder = tempfile.TemporaryDirectory(prefix="lightlib-", ignore_cleanup_errors=True)
                kit = cls(make, name, Path(stack.enter_context(folder)), stack)
                getattr(kit, f"test_{name}")()

    def subject(self) -> str:
        """Return the name of the plugin in messages."""
        return self.kind

    def unmet(self, what: str, fix: str) -> str:
        """Return the message of a failed check: the difference with the value, the requirement, and how to meet it."""
        expected = re.search(rf'``"{self.check}"``[^:]*: (.+?)\n\s*(?:- |\n)', self.documentation or "", re.DOTALL)
        text = f"The {self.subject()} fails the check {self.check!r}: {what}"
        return str(LightlibError(text, expected=" ".join(expected[1].split()) if expected else "", fix=fix))

    def made(self, *arguments: Any) -> Any:
        """Return a new plugin of the right class."""
        plugin = self.make(*arguments)
        assert isinstance(plugin, self.base), self.foreign(plugin)
        return plugin

    def foreign(self, made: object) -> str:
        """Return the message for a plugin of another class."""
        package, name = ".".join(self.base.__module__.split(".")[:2]), self.base.__name__
        fix = f"from {package} import {name}; class {type(made).__name__}({name})"
        return self.unmet(f"make_{self.kind} returned {made!r}.", fix)

    @contextmanager
    def succeeds(self, what: str, fix: str) -> Iterator[None]:
        """Let an exception of the block fail the check; `what` names the call."""
        try:
            yield
        except Exception as error:
            raise AssertionError(self.unmet(f"{what} raised {type(error).__name__}: {error}", fix)) from error

    def call(self, plugin: object, method: str, *arguments: Any, types: tuple[type, ...] = ()) -> Any:
        """Call a method, which must succeed; its value is of one of the types, if any are given, and no empty text."""
        texts = [repr(str(value) if isinstance(value, torch.device) else value) for value in arguments]
        shown = f"{type(plugin).__name__}.{method}({', '.join(texts)})"
        with self.succeeds(shown, f"handle these arguments in {method}."):
            value = getattr(plugin, method)(*arguments)
        if types:
            self.typed(shown, value, *types, right=value != "")
        return value

    def typed(self, what: str, value: Any, *types: type, right: bool = True, fix: str = "let `{}` return {}.") -> None:
        """Fail unless a value is of one of the types, and `right`; the fix gets the member's name and the types."""
        names = " or ".join("None" if kind is type(None) else kind.__name__ for kind in types)
        valid = isinstance(value, types) and (bool in types or not isinstance(value, bool)) and right
        fix = fix.format(what.partition(".")[2].partition("(")[0], names)
        assert valid, self.unmet(f"{what} is {value!r}, a {type(value).__name__}.", fix)

    def constant(self, what: str, first: object, again: object) -> None:
        """Fail unless two readings of a value are equal."""
        fix = f"compute `{what.partition('.')[2]}` once and store it."
        assert again == first, self.unmet(f"{what} was {first!r} and is now {again!r}.", fix)

    def through_file(self, what: str, state: Any, fix: str) -> Any:
        """Return a state as a checkpoint file restores it."""
        try:
            torch.save(state, file := io.BytesIO())
            file.seek(0)
            return torch.load(file, weights_only=True)
        except Exception as error:
            text = f"{what} returned {state!r}, which a checkpoint cannot hold: {error}"
            raise AssertionError(self.unmet(text, fix)) from error


def selected(kind: str, checks: Iterable[str], without: Iterable[str]) -> list[str]:
    """Return the names of the checks that are not left out.

    Raises:
        UnknownNameError: No check has a name in `without`.
        MisconfigurationException: Python leaves out assertions, so that every plugin would pass.
    """
    if not __debug__:
        raise MisconfigurationException(
            f"{kind.capitalize()} cannot be checked: Python was started with -O or PYTHONOPTIMIZE, without `assert`.",
            expected="assertions, of which the checks are made.",
            fix="python -m pytest, without -O and PYTHONOPTIMIZE.",
        )
    names = list(checks)
    for name in (left_out := set(without)).difference(names):
        raise UnknownNameError(f"check of {kind}", name, names)
    return [name for name in names if name not in left_out]


def equal(one: Any, other: Any) -> bool:
    """Whether two states are equal, with their tensors and arrays; NaN is equal to NaN."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
    if hasattr(one, "tobytes") and hasattr(other, "tobytes"):  # arrays of NumPy
        return bool(one.tobytes() == other.tobytes())
    return bool(one == other) or bool(one != one and other != other)


def relative_error(found: Any, wanted: Tensor) -> float:
    """Return the error of a weight in relation to its norm; `inf` for another shape and for NaN."""
    if not isinstance(found, Tensor) or found.shape != wanted.shape:
        return math.inf
    wanted = wanted.float()
    error = float((found.detach().float().cpu() - wanted).norm() / wanted.norm().clamp(min=1e-6))
    return math.inf if math.isnan(error) else error


def worst_weight(found: Mapping[str, Any], wanted: Mapping[str, Tensor]) -> tuple[float, str]:
    """Return the greatest error of the weights that are there, and the name of the weight."""
    errors = ((relative_error(found[name], value), name) for name, value in wanted.items() if name in found)
    return max(errors, default=(0.0, ""))


class SavesOnce(Callback):
    """Saves a checkpoint within the second epoch."""

    priority = "lowest"

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
        if trainer.global_step == SAVED_AT:
            trainer.save_checkpoint(self.path)
