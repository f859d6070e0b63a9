"""The glossary as patterns: words that the project's prose and names avoid, with their replacements.

`python -m tests.architecture.words [PATH…]` prints each place. CONTRIBUTING.md, "Plain English", explains the list.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Pattern → what to write instead. Matched without regard to case, on word boundaries.
GLOSSARY = {
    r"alike": "the same, identically",
    r"anew": "again, new",
    r"beside": "next to, alongside",
    r"come what may": "always",
    r"comes? whole": "is complete",
    r"deals? out|dealt": "shards, distributes",
    r"elsewhere": "name the place; spawned",
    r"for all that is known|as it were": "leave it out",
    r"go(?:es|ing)? wrong|went wrong|gone wrong": "fails",
    r"goes on|go on|going on|went on|gone on": "continues, resumes",
    r"hears?|heard|hearing": "receives",
    r"mend(?:s|ed|ing)?": "fix",
    r"mute": "dummy",
    r"nobody|somebody|anybody|whoever": "the user, the caller, no rank, any object",
    r"says?|said|saying": "log, warn, report, print, state",
    r"spread(?:s|ing)?": "sharded, distributed",
    r"takes? over|took over|taken over|taking over": "restores, loads, adopts",
    r"tells?|told|telling": "log, warn, report, notify",
    r"the meeting|a meeting|meets? at|met at": "rendezvous",
    r"the others|no other|(?<!the )others": "other ranks, the rest",
    r"what is asked|is asked for|asked for|was asked": "the request, requested",
    r"whole(?! numbers?\b)": "full, complete, entire",
    r"wish(?:es|ed)?": "request",
}
# A docstring's first line states what the thing is; these words begin a riddle there.
FIRST_LINE = {r"what": "name the thing", r"who|whose|whom": "name the thing", r"which of": "name the thing"}

_RULES = re.compile("|".join(rf"(?P<w{index}>\b(?:{words})\b)" for index, words in enumerate(GLOSSARY)), re.IGNORECASE)
_FIRST = re.compile(
    "|".join(rf"(?P<w{index}>\b(?:{words})\b)" for index, words in enumerate(FIRST_LINE)), re.IGNORECASE
)
_WORD_OF_NAME = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_PACKAGES = ("lightlib", "lightlib_lightning")
_PUBLIC = ("start_anew", "tell")  # a method of loggers; one of Python's files
_CODE = re.compile(r"```.*?```|``[^`]*``|`[^`\n]*`|\]\([^)\n]*\)", re.DOTALL)  # and targets of links


@dataclass(frozen=True)
class Finding:
    """One use of a word that the glossary replaces."""

    file: str
    line: int
    word: str
    instead: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: “{self.word}” → {self.instead}: {self.text}"


def findings(paths: list[Path], root: Path = ROOT) -> Iterator[Finding]:
    """Yield each use of a glossary word in the prose of these `.py` and `.md` files, except in this one."""
    for path in paths:
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.suffix == ".py" and file != Path(__file__):
                yield from _in_python(file, root)
            elif file.suffix == ".md":
                yield from _in_text(_name(file, root), 1, file.read_text(encoding="utf-8"))


def _in_python(file: Path, root: Path) -> Iterator[Finding]:
    text, name = file.read_text(encoding="utf-8"), _name(file, root)
    tree = ast.parse(text)
    docstrings = list(_docstrings(tree))
    for docstring in docstrings:
        first = str(docstring.value).strip().partition("\n")[0]
        yield from _in_text(name, docstring.lineno, str(docstring.value))
        yield from _in_text(name, docstring.lineno, first, _FIRST, FIRST_LINE)
    if name.partition("/")[0] in _PACKAGES:
        yield from _in_names(name, tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or node in docstrings:
            continue
        if " " in node.value:
            yield from _in_text(name, node.lineno, node.value)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield from _in_text(name, token.start[0], token.string)


def _in_names(name: str, tree: ast.Module) -> Iterator[Finding]:
    """Yield each use in the name of a function or class of the packages."""
    replacements = list(GLOSSARY.values())
    for node in ast.walk(tree):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.name not in _PUBLIC:
            for word in _WORD_OF_NAME.findall(node.name):
                if match := _RULES.fullmatch(word):
                    yield Finding(name, node.lineno, word, replacements[int(str(match.lastgroup)[1:])], node.name)


def _docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                yield first.value


def _in_text(
    name: str, line: int, text: str, rules: re.Pattern[str] = _RULES, glossary: dict[str, str] = GLOSSARY
) -> Iterator[Finding]:
    prose = _CODE.sub(lambda match: re.sub(r"[^\n]", "·", match[0]), text)
    replacements = list(glossary.values())
    for match in rules.finditer(prose):
        above = prose[: match.start()].count("\n")
        shown = text.splitlines()[above].strip() if text.strip() else text
        yield Finding(name, line + above, match[0], replacements[int(str(match.lastgroup)[1:])], shown)


def _name(file: Path, root: Path) -> str:
    return file.relative_to(root).as_posix() if file.is_relative_to(root) else str(file)


if __name__ == "__main__":
    places = list(
        findings(
            [Path(arg).resolve() for arg in sys.argv[1:]]
            or [ROOT / "lightlib", ROOT / "lightlib_lightning", ROOT / "docs"]
        )
    )
    sys.stdout.write("\n".join([*map(str, places), f"{len(places)} places"]) + "\n")
    sys.exit(bool(places))
