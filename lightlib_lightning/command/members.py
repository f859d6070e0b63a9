"""Members of Lightning's private classes that compat serves, read from the code of the stand-ins."""

from __future__ import annotations

import ast
import functools
from dataclasses import dataclass, field
from pathlib import Path

from lightlib_lightning.objects import PRIVATE
from lightlib_lightning.tools.lacking import NOT_LIGHTNINGS

__all__ = ["VIEWS", "View", "view", "view_of"]

_FOLDER = Path(__file__).parents[1] / "internals"
# The class behind an attribute of a Trainer that is a view.
VIEWS = {
    "_accelerator_connector": "AcceleratorConnector",
    "_callback_connector": "CallbackConnector",
    "_checkpoint_connector": "CheckpointConnector",
    "_data_connector": "DataConnector",
    "_evaluation_loop": "EvaluationLoop",
    "_logger_connector": "LoggerConnector",
    "_signal_connector": "SignalConnector",
    "fit_loop": "FitLoop",
    "predict_loop": "PredictionLoop",
    "test_loop": "EvaluationLoop",
    "validate_loop": "EvaluationLoop",
}
_ASSIGNED = {"EvaluationLoop": {"_print_results"}}  # attributes that act when they are assigned, besides properties


@dataclass
class View:
    """The members of a stand-in for one of Lightning's private classes.

    Attributes:
        names: Its members.
        settable: Those that act when they are assigned.
        views: The classes of the views that its properties return.
    """

    names: set[str] = field(default_factory=set)
    settable: set[str] = field(default_factory=set)
    views: dict[str, str] = field(default_factory=dict)


def view_of(private: str) -> View | None:
    """Return the stand-in for a class of Lightning's, such as ``_FitLoop``; None for other names."""
    place, _, name = PRIVATE.get(private, "").partition(":")
    return view(name) if place.endswith((".connectors", ".loops")) else None


@functools.cache
def view(name: str) -> View | None:
    """Return the members of a class of the folder internals. Its file is read, not imported.

    Example:
        >>> sorted(view("FitLoop").settable), view("FitLoop").views
        (['max_epochs'], {'epoch_loop': 'EpochLoop', '_data_source': 'DataSource'})
    """
    node = _classes().get(name)
    if node is None:
        return None
    members = View(settable=set(_ASSIGNED.get(name, ())))
    for base in node.bases:
        inherited = view(ast.unparse(base))
        if inherited is not None:
            members.names |= inherited.names
            members.settable |= inherited.settable
            members.views |= inherited.views
    for member in node.body:
        if isinstance(member, ast.FunctionDef):
            members.names.add(member.name)
            members.names |= {attribute.attr for attribute in ast.walk(member) if _is_set(attribute)}  # type: ignore[attr-defined]  # by `_is_set`
            decorators = [ast.unparse(decorator) for decorator in member.decorator_list]
            members.settable |= {member.name} if f"{member.name}.setter" in decorators else set()
            returned = ast.unparse(member.returns) if member.returns is not None else ""
            if returned in _classes():
                members.views[member.name] = returned
    members.names -= NOT_LIGHTNINGS
    return members


def _is_set(node: ast.AST) -> bool:
    """Whether a node sets an attribute of the object."""
    return isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"


@functools.cache
def _classes() -> dict[str, ast.ClassDef]:
    trees = [ast.parse((_FOLDER / file).read_text("utf-8")) for file in ("served.py", "connectors.py", "loops.py")]
    return {node.name: node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}
