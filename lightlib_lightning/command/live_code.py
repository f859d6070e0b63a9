"""Leaves out the code of a program that does not run with Lightning 2.6: branches for other versions."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from typing import Any, TypeAlias

from packaging.version import Version

__all__ = ["without_other_versions"]

_Comparison: TypeAlias = Callable[[Any, Any], bool]
_VERSION = Version("2.6.6")
_NAMED = re.compile(
    r"(?:LIGHTNING|PL)(?:_VERSION)?_(GREATER_EQUAL|GREATER|LESS_EQUAL|LESS|GE|GT|LE|LT)_(\d+(?:_\d+)*)$", re.IGNORECASE
)
# How a program writes each comparison: as Python does, as a requirement, and in the name of a function or flag.
_WRITTEN: dict[_Comparison, tuple[str, ...]] = {
    operator.ge: ("GtE", ">=", "ge", "greater_equal"),
    operator.gt: ("Gt", ">", "gt", "greater"),
    operator.le: ("LtE", "<=", "le", "less_equal"),
    operator.lt: ("Lt", "<", "lt", "less"),
    operator.eq: ("Eq", "==", "eq"),
    operator.ne: ("NotEq", "!=", "ne"),
}
_COMPARISONS = {name: compare for compare, names in _WRITTEN.items() for name in names}
_MIRRORED: dict[_Comparison | None, _Comparison] = {
    operator.ge: operator.le, operator.gt: operator.lt, operator.le: operator.ge, operator.lt: operator.gt,
}  # fmt: skip
_REQUIRED = re.compile(r"^(?:pytorch[-_])?lightning\s*(>=|<=|==|!=|>|<)\s*([\d.]+)")


def without_other_versions(tree: ast.Module, is_lightning: Callable[[str], bool]) -> ast.Module:
    r"""Return a parsed file with only the branches that run with Lightning 2.6, where a test of the version decides.

    Args:
        tree: It is changed in place.
        is_lightning: Whether a name of the file stands for a module of Lightning.

    Example:
        >>> code = "if Version(pl.__version__) >= Version('2.0'):\n    new()\nelse:\n    old()"
        >>> ast.unparse(without_other_versions(ast.parse(code), lambda name: name == "pl"))
        'new()'
    """
    changed: ast.Module = _Pruner(is_lightning).visit(tree)
    return changed


class _Pruner(ast.NodeTransformer):
    """Replaces an `if` of a known outcome by the branch that runs."""

    def __init__(self, is_lightning: Callable[[str], bool]) -> None:
        self._is_lightning = is_lightning
        self._known: dict[str, bool] = {}  # variables of the file

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        """Note a variable that is such a test: ``NEW = Version(pl.__version__) >= Version("2")``."""
        outcome = self._outcome(node.value)
        for target in node.targets:
            if outcome is not None and isinstance(target, ast.Name):
                self._known[target.id] = outcome
        return self.generic_visit(node)

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        """Keep the branch that runs."""
        outcome = self._outcome(node.test)
        if outcome is None:
            return self.generic_visit(node)
        kept: list[ast.stmt] = []
        for statement in node.body if outcome else node.orelse:
            visited = self.visit(statement)
            kept.extend(visited if isinstance(visited, list) else [visited])
        return kept or [ast.copy_location(ast.Pass(), node)]

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        """Keep the value that is used."""
        outcome = self._outcome(node.test)
        if outcome is None:
            return self.generic_visit(node)
        visited: ast.AST = self.visit(node.body if outcome else node.orelse)
        return visited

    def _outcome(self, test: ast.expr) -> bool | None:
        """Return the outcome of a test with Lightning 2.6; None if it is unknown."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self._outcome(test.operand)
            return None if inner is None else not inner
        if isinstance(test, ast.BoolOp):
            decides = isinstance(test.op, ast.Or)
            parts = [self._outcome(part) for part in test.values]
            return decides if decides in parts else None if None in parts else not decides
        if isinstance(test, (ast.Name, ast.Attribute)):
            name = test.id if isinstance(test, ast.Name) else test.attr
            named = _NAMED.search(name)
            if named:
                return bool(_COMPARISONS[named[1].lower()](_VERSION, _version(named[2].replace("_", "."))))
            return self._known.get(name) if isinstance(test, ast.Name) else None
        if isinstance(test, ast.Call):
            return self._of_call(test)
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            return self._of_comparison(test.left, test.ops[0], test.comparators[0])
        return None

    def _of_call(self, test: ast.Call) -> bool | None:
        name = ast.unparse(test.func).rpartition(".")[2]
        arguments = [part.value for part in test.args if isinstance(part, ast.Constant)]
        if name == "RequirementCache" and arguments and isinstance(arguments[0], str):
            required = _REQUIRED.match(arguments[0])
            return None if required is None else bool(_COMPARISONS[required[1]](_VERSION, _version(required[2])))
        if name == "compare_version" and len(test.args) == 3 and arguments and "lightning" in str(arguments[0]):
            word = ast.unparse(test.args[1]).rpartition(".")[2]
            compare = _COMPARISONS.get(word)
            return None if compare is None else bool(compare(_VERSION, _version(str(arguments[-1]))))
        return None

    def _of_comparison(self, left: ast.expr, sign: ast.cmpop, right: ast.expr) -> bool | None:
        compare = _COMPARISONS.get(type(sign).__name__)
        if self._is_version(right) and not self._is_version(left):
            left, right, compare = right, left, _MIRRORED.get(compare, compare)
        text = next((constant.value for constant in ast.walk(right) if isinstance(constant, ast.Constant)), None)
        if compare is None or not self._is_version(left) or not isinstance(text, str) or not re.match(r"\d", text):
            return None
        return bool(compare(_VERSION, _version(text)))

    def _is_version(self, node: ast.expr) -> bool:
        """Whether it is ``pl.__version__``, as it is or within ``Version(…)``."""
        while isinstance(node, ast.Call) and len(node.args) == 1:
            node = node.args[0]
        if isinstance(node, ast.Constant):
            return False
        text = ast.unparse(node)
        return text.rpartition(".")[2] == "__version__" and self._is_lightning(text.partition(".")[0])


def _version(text: str) -> Version:
    """Return a version as far as it has numbers: that of a release also for its candidates."""
    numbers = re.match(r"\d+(?:\.\d+)*", text)
    return Version(numbers[0] if numbers else "0")
