"""The house rules as data, and functions that find the files that break them.

docs/architecture.md, "Folders and import order", explains them.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from scripts.architecture_tree import docstring_at_top

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "lightlib"
ADDED = "lightlib_lightning"  # a package that `lightlib` does not know

# The order of the package. A folder or file may import from the lines above its own and, in its own line, from anything
# to its left up to the nearest `|`. Those on the two sides of a `|` do not import each other.
ORDER = (
    "version | start_folder | index",
    "lazy | safe_files | signatures | torch_private | tree",
    "errors > optional > paths > report > conventions > registry > translations",
    "accelerators",
    "checkpoint.storage > checkpoint.file > checkpoint.directory > checkpoint > checkpoint.tools",
    "precision | profilers | optim | schedulers | transforms | losses | loggers.media > loggers > loggers.services",
    "launch.environment > launch.start > launch.watch > launch",
    "callbacks > callbacks.checkpoint > callbacks.progress > callbacks.summary > callbacks.averaging",
    "callbacks.presets | callbacks.finetuning | callbacks.memory | callbacks.monitors",
    "callbacks.pruning | callbacks.records",
    "samplers > data.streams > data.datasets > data",
    "strategies.group > distributed > strategies.axes > strategies.axes.tensor",
    "strategies.pipeline > strategies > strategies.deepspeed",
    "core.progress > core.metrics > core.optimization > core.values",
    "core.resume > core.module > core.setup > core.run > core",
    "fabric | tuner | evaluation | simulation",
    "testing",
    "config.yaml > config.errors > config",
    "experiment.ledger > experiment.searchers | experiment.file",
    "experiment",
    "cli > experiment.trial > experiment.machine > experiment.work",
    "experiment.report | experiment.engines",
    "command.doctor > command.plot > command.experiments > command",
    "__init__ > __main__",
    "lightlib_lightning.tools > lightlib_lightning.internals > lightlib_lightning",
    "lightlib_lightning.command | lightlib_lightning.plugins",
    "lightlib_lightning.shims.lightning | lightlib_lightning.shims.lightning_fabric",
    "lightlib_lightning.shims.pytorch_lightning",
)
# Any file may import these under `if TYPE_CHECKING`: callbacks, loggers and hooks get them as arguments.
FOR_TYPING = ("lightlib.core.trainer", "lightlib.core.module.module", "lightlib.core.run.run")

MAX_FILE_LINES = 600
MAX_LINES_OF: dict[str, int] = {
    "lightlib/core/run/loop.py": 300,
    "lightlib/core/trainer.py": 900,  # one class, without bases made for length
    "lightlib/fabric/fabric.py": 900,  # the same
}
MAX_FUNCTION_LINES = 60
MAX_FILES = 19  # of a folder
MAX_PURPOSE = 100
# `import lightlib` must cost little more than `import torch`: only these may be imported at the top of a file.
AT_TOP = frozenset({*sys.stdlib_module_names, PACKAGE, ADDED, "torch", "packaging", "typing_extensions"})
# Files that are imported when a program asks for one of their names, and the package that they may import at the top.
ON_USE = {
    f"{PACKAGE}.command.experiments.board": "rich",
    f"{ADDED}.tools.rich_columns": "rich",
    f"{PACKAGE}.experiment.ledger.journal": "optuna",
    f"{PACKAGE}.experiment.ledger.ledger": "optuna",
    f"{PACKAGE}.experiment.samplers": "optuna",
    f"{PACKAGE}.experiment.work.sampler_options": "optuna",
    f"{ADDED}.tools.tqdm_bar": "tqdm",
    f"{ADDED}.tools.values": "lightning_utilities",
}
# Only the command line may import these at the top; the rest of the package does not import it.
OF_COMMAND_LINE = frozenset({"jsonargparse", "yaml"})
COMMAND_LINE = (f"{PACKAGE}.cli", f"{PACKAGE}.config.", f"{PACKAGE}.command.train")
SLOW_PARTS_OF_TORCH = ("torch.distributed.checkpoint", "torch.utils.tensorboard", "torch.onnx", "torch._dynamo")


@dataclass(frozen=True)
class Import:
    """One import: the module, its line, and how it is imported."""

    target: str
    line: int
    local: bool
    typing: bool
    explained: bool


@dataclass
class File:
    """One Python file: its text, and on demand its imports and functions."""

    path: Path
    root: Path

    def __post_init__(self) -> None:
        self.name = self.path.relative_to(self.root).as_posix()
        self.text = self.path.read_text(encoding="utf-8")
        self.lines = self.text.splitlines()
        self.module = self.name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def room(self) -> str:
        """Its place in the order: its folder, or its own name at the top of the package."""
        return room_of(self.module, self.path.name == "__init__.py")

    @cached_property
    def _found(self) -> _Found:
        found = _Found(self)
        found.visit(ast.parse(self.text, filename=self.name))
        return found

    @property
    def imports(self) -> list[Import]:
        return self._found.imports

    @property
    def functions(self) -> list[tuple[str, int, int]]:
        """Name, line and length of each."""
        return self._found.functions


@dataclass
class _Found(ast.NodeVisitor):
    """Collects the imports and functions in a file's syntax tree."""

    file: File
    imports: list[Import] = field(default_factory=list)
    functions: list[tuple[str, int, int]] = field(default_factory=list)
    _local: bool = False
    _typing: bool = False

    def visit_If(self, node: ast.If) -> None:
        outer = self._typing
        self._typing = outer or ast.unparse(node.test).endswith("TYPE_CHECKING")
        for child in node.body:
            self.visit(child)
        self._typing = outer
        for child in node.orelse:
            self.visit(child)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        body = node.body[1:] if ast.get_docstring(node) is not None else node.body
        if body:
            self.functions.append((node.name, node.lineno, (body[-1].end_lineno or 0) - body[0].lineno + 1))
        outer, self._local = self._local, True
        self.generic_visit(node)
        self._local = outer

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815  # the name is ast's

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._add(alias.name, node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = node.module or ""
        if node.level:
            module = self.file.module.split(".")
            package = module if self.file.path.name == "__init__.py" else module[:-1]
            base = ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])])
        for alias in node.names:
            self._add(f"{base}.{alias.name}" if self._is_module(f"{base}.{alias.name}") else base, node)

    def _add(self, target: str, node: ast.Import | ast.ImportFrom) -> None:
        text = "\n".join(self.file.lines[node.lineno - 1 : node.end_lineno])
        explained = re.search(r"#\s*optional:\s*\S", text) is not None
        found = Import(target, node.lineno, self._local, self._typing, explained)
        if found not in self.imports:
            self.imports.append(found)

    def _is_module(self, name: str) -> bool:
        path = self.file.root / name.replace(".", "/")
        return path.with_suffix(".py").exists() or path.is_dir()


def package_files(root: Path = ROOT) -> list[File]:
    """Return the files of the package, and of the one that is added to it."""
    return [File(path, root) for top in (PACKAGE, ADDED) for path in sorted((root / top).rglob("*.py"))]


def room_of(module: str, is_folder: bool) -> str:
    """Return the place of a module in the order: its folder, or its own name at the top of the package."""
    top, *names = module.split(".")
    if top == ADDED:
        names.insert(0, top)
    names = names or ["__init__"]
    return ".".join(names if is_folder or len(names) == 1 else names[:-1])


def allowed(room: str) -> set[str] | None:
    """Return the rooms from which `room` may import; None if it has no place in the order."""
    above: set[str] = set()
    for line in ORDER:
        for column in line.split(" | "):
            rooms = column.split(" > ")
            if room in rooms:
                return above | set(rooms[: rooms.index(room) + 1])
        above |= {name for column in line.split(" | ") for name in column.split(" > ")}
    return None


def wrong_order(file: File) -> Iterator[str]:
    """Imports against the order, and imports of the package root."""
    may = allowed(file.room)
    if may is None:
        yield f"{file.name}: `{file.room}` has no place in the order; give it one in ORDER of {_this_file()}."
        return
    for found in file.imports:
        target = found.target.split(".")
        if target[0] not in (PACKAGE, ADDED) or (found.typing and found.target in FOR_TYPING):
            continue
        where = f"{file.name}:{found.line}"
        is_folder = (file.root / found.target.replace(".", "/")).is_dir()
        if target == [PACKAGE]:
            yield f"{where}: imports the package root; import from the file that defines the name."
        elif file.path.name in ("__init__.py", "__main__.py") and found.target.startswith(
            file.module.removesuffix("__main__").rstrip(".") + "."
        ):
            continue  # a folder exports names of its files and folders
        elif (other := room_of(found.target, is_folder)) not in may:
            yield (
                f"{where}: imports {found.target} against the order; {file.room} may import what comes before it in "
                f"ORDER of {_this_file()}, and {other} does not. Move the code to where both may import it, or pass "
                "the object as an argument."
            )


def cycles(files: list[File]) -> Iterator[str]:
    """Import cycles, also for typing except of Trainer, Module and Run."""
    edges = {
        file.module: {found.target for found in file.imports if not (found.typing and found.target in FOR_TYPING)}
        for file in files
    }
    done: set[str] = set()

    def walk(module: str, path: list[str]) -> Iterator[str]:
        if module in path:
            cycle = " → ".join([*path[path.index(module) :], module])
            yield f"{cycle}: an import cycle; move the shared code into a file that imports neither."
        elif module not in done and module in edges:
            for target in sorted(edges[module]):
                yield from walk(target, [*path, module])
            done.add(module)

    for module in sorted(edges):
        yield from walk(module, [])


def unexplained_imports(file: File) -> Iterator[str]:
    """Imports inside functions without a reason, and slow imports at the top of a file."""
    at_top = AT_TOP | OF_COMMAND_LINE if file.module.startswith(COMMAND_LINE) else AT_TOP
    for found in file.imports:
        where = f"{file.name}:{found.line}"
        root = found.target.split(".")[0]
        slow = found.target.startswith(SLOW_PARTS_OF_TORCH) or (root not in at_top and root != ON_USE.get(file.module))
        if found.local and not found.explained:
            yield (
                f"{where}: imports {found.target} inside a function; move it to the top, or write "
                "`# optional: <package>` on its line if the package is optional or slow to import."
            )
        if slow and not found.local and not found.typing:
            yield (
                f"{where}: imports {found.target} at the top, which slows `import {PACKAGE}` down; import it in "
                "the function that uses it, with `# optional: <package>` on the line."
            )


def wrong_size(file: File) -> Iterator[str]:
    """Files and functions that are too long."""
    limit = MAX_LINES_OF.get(file.name, MAX_FILE_LINES)
    if len(file.lines) > limit:
        yield f"{file.name}: {len(file.lines)} lines, at most {limit}; split it by subject."
    for name, line, length in file.functions:
        if length > MAX_FUNCTION_LINES:
            yield (
                f"{file.name}:{line}: {name} has {length} lines without its docstring, at most {MAX_FUNCTION_LINES}; "
                "move its steps into functions."
            )


def crowded(files: list[File]) -> Iterator[str]:
    """Folders with too many files."""
    for folder, count in Counter(file.path.parent for file in files).items():
        if count > MAX_FILES:
            name = folder.relative_to(files[0].root).as_posix()
            yield f"{name}/: {count} files, at most {MAX_FILES}; move one subject to a folder of its own."


def wrong_purpose(file: File) -> Iterator[str]:
    """Files without a purpose in one line, or with a name that is too general."""
    first = docstring_at_top(file.text).partition("\n")[0]
    if not first:
        yield f"{file.name}: begins without a docstring; its first line states the purpose of the file."
    elif len(first) > MAX_PURPOSE:
        yield f"{file.name}: the first docstring line has {len(first)} characters, at most {MAX_PURPOSE}; shorten it."
    if {"utils", "util", "utilities", "helpers", "misc"} & {part.removesuffix(".py") for part in Path(file.name).parts}:
        yield f"{file.name}: the name is too general; move the code to its user, or name the subject."


def _this_file() -> str:
    return Path(__file__).relative_to(ROOT).as_posix()
