"""Checks that a start method of multiprocessing can be used here, and pickles the function for it."""

from __future__ import annotations

import ast
import os
import pickle
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from lightlib.errors import MisconfigurationException, owner
from lightlib.launch.start.program import is_interactive


def check_fork() -> None:
    """Refuse a fork where the system has none, or after CUDA was used."""
    if not hasattr(os, "fork"):
        raise MisconfigurationException(
            f"The start method 'fork' was requested, which {sys.platform} does not have.",
            expected="'spawn', or a script.",
            fix=f'{owner()}(strategy="ddp_spawn"), or {owner()}(strategy="ddp") in a script.',
        )
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise MisconfigurationException(
            "CUDA was already used in this process, and a fork of it cannot use CUDA.",
            expected="no tensor on a GPU and no call that initializes CUDA before the processes are started.",
            fix="restart, and move tensors to the GPU only within the Module; in a script use "
            f'{owner()}(strategy="ddp") or "ddp_spawn".',
        )


def check_guard(method: str) -> None:
    """Refuse an unguarded script: a new process would run it up to this point again."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    frame: Any = sys._getframe()  # noqa: SLF001  public in all but name
    while frame is not None and not (frame.f_code.co_name == "<module>" and frame.f_globals is vars(main)):
        frame = frame.f_back
    named = main.__spec__ is not None and main.__spec__.name.endswith("__main__")  # not imported again
    if frame is None or named or file is None or not Path(file).is_file():
        return
    tree, line = ast.parse(Path(file).read_bytes()), frame.f_lineno
    within = next((node for node in tree.body if node.lineno <= line <= (node.end_lineno or node.lineno)), None)
    if within is None or (isinstance(within, ast.If) and "__name__" in ast.unparse(within.test)):
        return
    raise MisconfigurationException(
        f"The start method {method!r} imports {Path(file).name} again in each process, and line {line} of it, which "
        "starts them, is not guarded.",
        expected='the lines that start the training below `if __name__ == "__main__":`.',
        fix=f'put them there, or use {owner()}(strategy="ddp"), which needs no such line.',
    )


def pickled(function: Callable[[int], Any], method: str) -> bytes:
    """Return the pickled function. Its tensors are copied; multiprocessing itself would share the parameters."""
    try:
        data = pickle.dumps(function)
    except Exception as error:
        raise MisconfigurationException(
            _what_fails(function),
            expected=f"picklable objects, which the start method {method!r} needs: no lambdas, no classes or functions "
            "defined in functions, no open files.",
            fix=f'{owner()}(strategy="ddp_fork"), which pickles nothing, or {owner()}(strategy="ddp") in a script.',
        ) from error
    if (is_interactive() or not hasattr(sys.modules["__main__"], "__file__")) and b"__main__" in data:
        raise MisconfigurationException(
            f"The start method {method!r} was requested in a notebook or an interactive session, with classes or "
            "functions that are defined in it: a new process cannot import them.",
            expected="classes from a file that can be imported, or forked processes.",
            fix=f'{owner()}(strategy="ddp_notebook"), or write the classes to a file and import them.',
        )
    return data


def _what_fails(function: Any) -> str:
    """Return where the innermost object that cannot be pickled is held, its kind, and why it cannot."""
    value, place, ids = function, "", {id(function)}
    while True:
        failing = (
            (step, member)
            for step, member in _members_of(value)
            if id(member) not in ids and _why_not_pickled(member) is not None
        )
        first = next(failing, None)
        if first is None:
            break
        step, value = first
        ids.add(id(value))
        place = place + step if step is not None else "" if isinstance(value, dict) else type(value).__name__
    place = re.sub(r"^\['(\w+)'\]", r"\1", re.sub(r"\._modules\['(\w+)'\]", r".\1", place))
    kind = getattr(value, "__qualname__", None) or f"an object of {type(value).__name__}"
    return f"{place or 'The function'} ({kind}) cannot be sent to a new process: {_why_not_pickled(value)}."


def _members_of(value: Any) -> Iterator[tuple[str | None, Any]]:
    """Yield the objects that are pickled with one, each with the expression after it; None for arguments."""
    if isinstance(value, partial):
        yield from ((None, keyword) for keyword in (*value.keywords.values(), *reversed(value.args)))
    elif isinstance(value, dict):
        for key, entry in value.items():
            yield f"[{key!r}]", entry
    elif isinstance(value, (list, tuple)):
        for index, entry in enumerate(value):
            yield f"[{index}]", entry
    else:
        try:
            state = value.__reduce_ex__(2)[2]
        except Exception:  # noqa: BLE001  it cannot be pickled itself
            return
        for part in state if isinstance(state, tuple) else (state,):
            for name, entry in part.items() if isinstance(part, dict) else ():
                yield f".{name}", entry


def _why_not_pickled(value: Any) -> Exception | None:
    try:
        pickle.dumps(value)
    except Exception as error:  # noqa: BLE001  it is returned
        return error
    return None
