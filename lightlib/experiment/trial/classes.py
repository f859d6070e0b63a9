"""The classes of a trial: the class path of an entrypoint, and the parameters of a class."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from lightlib import translations
from lightlib.errors import MisconfigurationException, nearest
from lightlib.experiment.trial.modules import first_on_path


class Parameters(NamedTuple):
    """The parameters of a constructor.

    Attributes:
        names: Those that a configuration can set, also inherited ones that ``**kwargs`` passes on.
        takes_any: Whether it has ``**kwargs``.
    """

    names: frozenset[str]
    takes_any: bool


def class_path(written: str, context: Path, where: str = "") -> str:
    """Return the class path of an entrypoint.

    Args:
        written: ``"module:Class"``; with ``":Class"`` the module is the one Python file at the top of the context that
            defines the class.
        context: The folder of the program.
        where: The file and line of the entrypoint, for errors.

    Raises:
        MisconfigurationException: No file, or several, define the class.

    Example:
        >>> class_path("model:Classifier", Path("."))
        'model.Classifier'
        >>> _ = Path("net.py").write_text("class Net: pass")
        >>> class_path(":Net", Path("."))
        'net.Net'
    """
    module, _, name = written.partition(":")
    if module:
        return f"{module}.{name}"
    top = name.partition(".")[0]
    files = sorted(path for path in context.glob("*.py") if path.stem.isidentifier() and path.stem != "__init__")
    classes = {file: _classes_in(file) for file in files}
    matches = [file for file, names in classes.items() if top in names]
    if len(matches) == 1:
        return f"{matches[0].stem}.{name}"
    names = ", ".join(file.name for file in matches or files) or "there are none"
    near = "" if matches else nearest(top, {name for names in classes.values() for name in names})
    problem = f"is defined in {f'{len(matches)} files' if matches else f'no Python file of {context}'}: {names}.{near}"
    raise MisconfigurationException(
        f"The class {top!r} of the entrypoint{f' ({where})' if where else ''} {problem}",
        expected="a class that exactly one file of the context defines at its top level.",
        fix=f"entrypoint: {matches[0].stem if matches else 'module'}:{name}",
    )


def _classes_in(file: Path) -> set[str]:
    """Return the classes that a file defines at its top level; none if it is not valid Python."""
    try:
        tree = ast.parse(file.read_bytes(), filename=file.name)
    except (SyntaxError, ValueError):
        return set()
    return {node.name for node in tree.body if isinstance(node, ast.ClassDef)}


def parameters(path: str, context: Path) -> Parameters:
    """Return the parameters of the constructor of a class, which is imported.

    Args:
        path: The class path, ``"module.Class"``.
        context: The folder that is searched for modules first.

    Raises:
        MisconfigurationException: The class cannot be imported.

    Example:
        >>> parameters("torch.optim.SGD", Path(".")).takes_any
        False
    """
    from lightlib.config.parser import LightningArgumentParser  # optional: jsonargparse, which is slow to import

    kind = imported(translations.class_path(path), context, path)
    with first_on_path(context):
        parser = LightningArgumentParser(exit_on_error=False)
        add = parser.add_class_arguments if isinstance(kind, type) else parser.add_function_arguments
        names = add(kind, fail_untyped=False)
    constructor: Any = kind
    if isinstance(kind, type):
        constructor = constructor.__init__
    signature_parameters = inspect.signature(constructor).parameters.values()
    return Parameters(
        frozenset(names), any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature_parameters)
    )


def imported(path: str, context: Path, written: str = "") -> Any:
    """Return the object at a path, ``"module.Class"``.

    Args:
        path: Of the object.
        context: The folder that is searched for modules first.
        written: The path as errors name it. Default: `path`.

    Raises:
        MisconfigurationException: It cannot be imported.
    """
    with first_on_path(context):
        try:
            return _imported(path)
        except Exception as error:
            raise MisconfigurationException(
                f"{written or path!r} cannot be imported: {type(error).__name__}: {error}",
                expected=f"module.Class, which can be imported in {context}.",
                fix=translations.fix_for_import(str(error)) or "correct the class path, or the error in the module.",
            ) from error


def _imported(path: str) -> Any:
    name, *rest = path.split(".")
    target: Any = importlib.import_module(name)
    for attribute in rest:
        name = f"{name}.{attribute}"
        if isinstance(target, ModuleType) and not hasattr(target, attribute):
            importlib.import_module(name)
        target = getattr(target, attribute)
    return target
