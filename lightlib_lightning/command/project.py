"""Scans a project for its use of Lightning: names that run unchanged, differ or are absent."""

from __future__ import annotations

import ast
import re
import warnings
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from lightlib_lightning.command.findings import FAILING, Finding, Place, of_path
from lightlib_lightning.command.live_code import without_other_versions
from lightlib_lightning.command.uses import Uses
from lightlib_lightning.finder import ROOTS

__all__ = ["FAILING", "STATUSES", "Finding", "scan"]

STATUSES = ("unchanged", "differs", "later", "absent", "private", "unknown")

_SKIPPED = {".git", ".venv", "venv", "node_modules", "__pycache__", ".tox", ".mypy_cache", "build", "dist"}
_PATH = re.compile(r"(?<![\w./-])(?:lightning|pytorch_lightning|lightning_fabric)(?:\.\w+)+")
_OWN = re.compile(r"\bself\.(_\w+)(?:: [^=\n]*)? = |^\s+def (?=_)(\w+)", re.MULTILINE)  # of the project's classes
_KEY = re.compile(r"\b(?:class_path|_target_)\W+$")


def scan(path: Path) -> list[Finding]:
    """Return the uses of Lightning in a file, or in all Python and YAML files of a folder, by file and line.

    Raises:
        FileNotFoundError: There is nothing at `path`.
    """
    if not path.exists():
        raise FileNotFoundError(path)
    root = path if path.is_dir() else path.parent
    findings: set[Finding] = set()
    own_modules: set[str] = set()
    for file in _files(path):
        name = file.relative_to(root).as_posix()
        text = file.read_text(encoding="utf-8", errors="replace")
        findings.update(_scan_python(name, text) if file.suffix == ".py" else _scan_yaml(name, text))
        own_modules.update(f"{match[1] or match[2]}" for match in _OWN.finditer(text))
    return sorted(
        finding for finding in findings if not (finding.status == "private" and _of_object(finding.name) in own_modules)
    )


def _of_object(name: str) -> str:
    """Return the attribute in a name such as ``Trainer._x``; empty for other names."""
    match = re.fullmatch(r"\w+\.(\w+)", name)
    return match[1] if match else ""


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for file in sorted(path.rglob("*")):
        inside = file.relative_to(path).parts
        if file.suffix in {".py", ".yaml", ".yml"} and file.is_file() and not _SKIPPED.intersection(inside):
            yield file


def _scan_yaml(file: str, text: str) -> Iterator[Finding]:
    for number, line in enumerate(text.splitlines(), 1):
        code = line.partition("#")[0]
        for match in _PATH.finditer(code):
            finding = of_path(file, number, match[0])
            if finding.status != "unknown" or _KEY.search(code[: match.start()]):
                yield finding


def _scan_python(file: str, text: str) -> Iterator[Finding]:
    if not any(root in text for root in ROOTS):
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes and the like are not our subject
            tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 0
        yield Finding(file, line, "unknown", file, f"it cannot be parsed: {getattr(error, 'msg', error)}")
        return
    visitor = _Imports(file)
    visitor.visit(tree)
    tree = without_other_versions(tree, lambda name: name in visitor.bound)
    imports = _Imports(file)
    imports.visit(tree)
    yield from imports.found
    uses = Uses(file, imports.bound)
    for node, place in _walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from _of_text(file, node.lineno, node.value)
        elif imports.bound:
            yield from uses.of(node, place)


def _walk(tree: ast.AST) -> Iterator[tuple[ast.AST, Place]]:
    """Yield all nodes, as `ast.walk` does, with their places."""
    waiting = deque([(tree, Place())])
    while waiting:
        node, place = waiting.popleft()
        yield node, place
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                waiting.append((child, Place(child.name, conditional=place.conditional, owner=place.owner)))
            elif isinstance(child, ast.ClassDef):
                waiting.append((child, replace(place, statement=None, owner=child.name)))
            elif isinstance(child, ast.stmt):
                branch = place.conditional or isinstance(node, (ast.If, ast.Try))
                tried = place.tried or _is_tried(node, child)
                statement = None if hasattr(child, "body") else child
                waiting.append((child, Place(place.function, statement, branch, tried, place.owner)))
            else:
                inside = place if place.statement is not None else replace(place, statement=child)
                waiting.append((child, inside))


def _is_tried(node: ast.AST, child: ast.stmt) -> bool:
    """Whether a statement of `node` may fail: in a `try`, or after a question for the attribute."""
    if isinstance(node, ast.Try):
        return bool(node.handlers) and (child in node.body or child in node.orelse)
    return isinstance(node, ast.If) and child in node.body and "hasattr(" in ast.unparse(node.test)


def _of_text(file: str, line: int, text: str) -> Iterator[Finding]:
    """Yield the finding for a string that is a path, such as that of a patched name, if something is wrong with it."""
    if _PATH.fullmatch(text):
        finding = of_path(file, line, text)
        if finding.status in ("later", "absent", "private"):
            yield finding


def _is_lightning(path: str) -> bool:
    return path.partition(".")[0] in ROOTS


class _Imports(ast.NodeVisitor):
    """Collects the names of a file that stand for Lightning's, and the findings of its imports."""

    def __init__(self, file: str) -> None:
        self.bound: dict[str, str] = {}
        self.found: list[Finding] = []
        self._file = file
        self._tried = self._conditional = self._failed = False

    def visit_Try(self, node: ast.Try) -> None:
        outer, failed = self._tried, self._failed
        self._tried, self._failed = True, False  # whatever the handlers catch: the project expects a failure
        for child in (*node.body, *node.orelse):
            self.visit(child)
        self._tried = outer or not self._failed  # else the handlers run
        self._failed = failed
        for handler in node.handlers:
            self.visit(handler)
        self._tried = outer
        for child in node.finalbody:
            self.visit(child)

    def visit_If(self, node: ast.If) -> None:
        outer, self._conditional = self._conditional, True  # one branch for each version, for instance
        self.generic_visit(node)
        self._conditional = outer

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if _is_lightning(alias.name):
                root = alias.name.partition(".")[0]
                self.bound[alias.asname or root] = alias.name if alias.asname else root
                self._add(node.lineno, alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.module and not node.level and _is_lightning(node.module):
            for alias in node.names:
                if alias.name == "*":
                    self._add(node.lineno, node.module)
                else:
                    self.bound[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                    self._add(node.lineno, f"{node.module}.{alias.name}")

    def _add(self, line: int, path: str) -> None:
        finding = of_path(self._file, line, path)
        if finding.status in ("private", "unknown") and self._tried:
            self._failed = True
        elif finding.status != "unknown" or not self._conditional:
            self.found.append(finding)
