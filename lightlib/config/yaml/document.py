"""One YAML document: plain values, each key once, nothing that runs code; errors name the line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple, NoReturn

import yaml

from lightlib.errors import MisconfigurationException

DEEPEST = 100  # levels of mappings and lists within each other
MOST_NODES = 100_000  # values in all, each alias counted as often as it is used

_MAP, _SEQ, _MERGE = "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq", "tag:yaml.org,2002:merge"
_TIMESTAMP, _FLOAT = "tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:float"
_BASE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_BASE):  # type: ignore[misc]  # one of two classes, by what is installed
    """PyYAML's safe loader with the scalars of jsonargparse: a date stays a string, 1e-3 is a float."""

    yaml_implicit_resolvers: ClassVar[dict[str, list[tuple[str, re.Pattern[str]]]]] = {
        first: [(tag, pattern) for tag, pattern in known if tag not in (_TIMESTAMP, _FLOAT)]
        for first, known in _BASE.yaml_implicit_resolvers.items()
    }


_FLOATS = (
    r"[-+]?\d[\d_]*\.[\d_]*([eE][-+]?\d+)?",
    r"[-+]?\d[\d_]*[eE][-+]?\d+",
    r"\.[\d_]+([eE][-+]\d+)?",
    r"[-+]?\d[\d_]*(:[0-5]?\d)+\.[\d_]*",
    r"[-+]?\.(inf|Inf|INF)",
    r"\.(nan|NaN|NAN)",
)
_Loader.add_implicit_resolver(_FLOAT, re.compile(rf"^(?:{'|'.join(_FLOATS)})$", re.ASCII), list("-+0123456789."))


class Dumper(yaml.SafeDumper):  # type: ignore[misc]  # PyYAML has no types
    """Writes plain values so that the loader above reads the same: the text "1e-3" gets quotes."""

    yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers

    def ignore_aliases(self, data: Any) -> bool:
        return True


_TAGS = frozenset(tag for tag in _BASE.yaml_constructors if tag)
_FIXES = {  # a problem reported by PyYAML (either implementation) → the usual fix
    "mapping values are not allowed": "one `key: value` in a line, not deeper than a line above it that has a value; "
    "a value that holds `: ` needs quotes.",
    "could not find expected ':'": "write `key: value`, with a space after the colon.",
    "expected <block end>": "give keys of one level the same number of spaces.",
    "did not find expected key": "give keys of one level the same number of spaces, and close every bracket and quote.",
    "expected ',' or": "close the bracket, or put a comma before this.",
    "unexpected end of stream": "close the quote or the bracket that was opened.",
    "did not find expected node content": "close the bracket, or write the value that is missing.",
    "cannot start any token": "put the value in quotes.",
    "undefined alias": "write `&name` before what `*name` repeats; a value that begins with * needs quotes.",
    "block sequence entries are not allowed": "put `- ` on a line of its own.",
}


class ConfigError(MisconfigurationException):
    """A configuration cannot be read; the message names the file, the line and the column."""


class Entry(NamedTuple):
    """One key of a document."""

    place: str  # "run.yaml, line 7"
    value: Any
    written: str  # of a single value: `yes` for True


class Document:
    """One YAML document, parsed and checked when it is made.

    Attributes:
        value: The document as plain Python values; each alias is a new object.
        entries: Its keys, by their dotted paths; an item of a list has its index.
    """

    def __init__(self, text: str, name: str | None = None, *, mapping: bool = False) -> None:
        self.text = text.removeprefix("\ufeff")
        self.name = name or "the given text"
        self.value: Any = None
        self.entries: dict[str, Entry] = {}
        self._count = 0
        self._above: list[yaml.Node] = []
        self._scalars = _Loader("")
        try:
            self._check_events()
            root = yaml.compose(self.text, Loader=_Loader)
            if root is not None:
                self.value = self._read(root, "")
            del self._scalars  # it cannot be pickled
        except yaml.MarkedYAMLError as error:
            self._fail_broken(error)
        except yaml.YAMLError as error:
            self._fail(0, 0, f"this cannot be read: {error}.", "text in UTF-8.", "save the file as UTF-8 text.")
        if mapping and not isinstance(root, yaml.MappingNode):
            single = "a list" if isinstance(root, yaml.SequenceNode) else "a single value"
            raise ConfigError(
                f"{self.name} holds {'nothing' if root is None else single} at the top.",
                expected="a mapping: lines of `key: value`.",
                fix="for instance `trainer:`, and indented below it `max_epochs: 3`.",
            )

    def _check_events(self) -> None:
        """Check the depth and the tags before the nodes are composed, which recurses."""
        unprintable = yaml.reader.Reader.NON_PRINTABLE.search(self.text)
        if unprintable:
            line = self.text.count("\n", 0, unprintable.start())
            column = unprintable.start() - self.text.rfind("\n", 0, unprintable.start()) - 1
            problem = f"the character {unprintable.group()!r} is not allowed."
            self._fail(line, column, problem, "printable text.", 'delete it, or write it as "\\x…" in double quotes.')
        depth = documents = 0
        for event in yaml.parse(self.text, Loader=_Loader):
            mark: Any = event.start_mark
            line, column = mark.line, mark.column
            documents += isinstance(event, yaml.DocumentStartEvent)
            if documents > 1:
                fix = "delete the line `---`, or make two files of it: `--config first.yaml --config second.yaml`."
                self._fail(line, column, "a second document begins.", "one document in a file.", fix)
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST:
                self._fail_large(line, column, deep=True)
            tag = getattr(event, "tag", None)
            if tag is not None and tag != "!" and tag not in _TAGS:
                self._fail_tag(line, column, tag)

    # values
    def _read(self, node: yaml.Node, path: str, at: yaml.Node | None = None) -> Any:
        """Return the value of a node; note its parts in `entries`, and itself at `path`, if it stands `at` a node."""
        self._enter(node)
        is_list = isinstance(node, yaml.SequenceNode) and node.tag == _SEQ
        is_map = isinstance(node, yaml.MappingNode) and node.tag == _MAP
        value: Any = [] if is_list else {} if is_map else self._scalar(node)
        if at is not None:
            mark: Any = at.start_mark
            written = node.value if isinstance(node, yaml.ScalarNode) else ""
            self.entries[path] = Entry(f"{self.name}, line {mark.line + 1}", value, written)
        below = f"{path}." if path else ""
        if is_list:
            value.extend(self._read(child, f"{below}{index}", child) for index, child in enumerate(node.value))
        elif is_map:
            pairs = {self._key(key): (key, child) for key, child in self._pairs(node)}
            value.update((name, self._read(child, f"{below}{name}", key)) for name, (key, child) in pairs.items())
        self._above.pop()
        return value

    def _enter(self, node: yaml.Node) -> None:
        """Count a value, and refuse one that contains itself, is one too many or too deep."""
        if any(node is ancestor for ancestor in self._above):
            fix = "write the value out instead of the alias."
            self._fail(*_position(node), "this value contains itself.", "values that end.", fix)
        self._above.append(node)
        self._count += 1
        if self._count > MOST_NODES or len(self._above) > DEEPEST + 1:
            alias_in = max(map(_position, self._above))
            self._fail_large(*alias_in, deep=len(self._above) > DEEPEST + 1)

    def _scalar(self, node: yaml.Node) -> Any:
        try:
            return self._scalars.construct_object(node, deep=True)
        except (ValueError, yaml.YAMLError):
            kind, fix = node.tag.rpartition(":")[2], "put it in quotes, if it is text."
            self._fail(*_position(node), f"this cannot be read as {kind}.", f"a value of type {kind}.", fix)

    def _key(self, node: yaml.Node) -> Any:
        if not isinstance(node, yaml.ScalarNode):
            self._fail(*_position(node), "a list or mapping is used as a key.", "a name.", "name the key.")
        return self._scalar(node)

    def _pairs(self, node: yaml.Node) -> Iterator[tuple[yaml.Node, yaml.Node]]:
        """Yield keys and values: first those that `<<` brings in (the first of a list wins), then the node's own."""
        first: dict[tuple[str, str], int] = {}
        for key, value in node.value:
            if key.tag == _MERGE:
                for mapping in reversed(value.value) if value.tag == _SEQ else (value,):
                    if not isinstance(mapping, yaml.MappingNode):
                        problem = "`<<` is followed by something that is not a mapping."
                        self._fail(*_position(mapping), problem, "an alias of a mapping.", "<<: *name")
                    self._enter(mapping)
                    yield from self._pairs(mapping)
                    self._above.pop()
            elif isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in first:
                    begun = first[key.tag, key.value]
                    problem = f"the key {key.value!r} stands here again; the first is in line {begun + 1}."
                    self._fail(*_position(key), problem, "each key once.", "delete one of the two, or join them.")
                first[key.tag, key.value] = key.start_mark.line
        yield from ((key, value) for key, value in node.value if key.tag != _MERGE)

    # errors
    def _fail(self, line: int, column: int, problem: str, expected: str, fix: str) -> NoReturn:
        lines = self.text.split("\n")
        shown, at = (lines[line].rstrip("\r") if line < len(lines) else ""), f"  {line + 1} | "
        start = max(0, column - 80)
        caret = f"{'|':>{len(at) - 1}} {' ' * (column - start)}^"
        raise ConfigError(
            f"{self.name}, line {line + 1}, column {column + 1}: {problem}\n"
            f"{at}{shown[start : start + 120]}\n{caret}".replace("\t", " "),
            expected=expected,
            fix=fix,
        )

    def _fail_broken(self, error: yaml.MarkedYAMLError) -> NoReturn:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line, mark.column) if mark else (0, 0)
        lines = self.text.split("\n")
        if not "".join(lines[line:]).strip():  # the end: show the last line there is
            line = max((at for at, line_text in enumerate(lines) if line_text.strip()), default=0)
            column = len(lines[line].rstrip())
        tabs = (
            at
            for at, line_text in enumerate(lines[: line + 2])
            if "\t" in line_text[: len(line_text) - len(line_text.lstrip())]
        )
        tab = next((at for at in tabs if at >= line - 1), None)
        if tab is not None:
            column, fix = lines[tab].index("\t"), "replace the tabs by spaces in your editor."
            self._fail(tab, column, "a tab stands in the indentation.", "spaces; YAML has no tabs.", fix)
        problem = error.problem or "this is not YAML"
        fix = next((fix for phrase, fix in _FIXES.items() if phrase in problem), "compare with the lines above it.")
        opened = ""
        if error.context and error.context_mark and error.context_mark.line != line:
            opened = f", {error.context} that begins in line {error.context_mark.line + 1}"
        self._fail(line, column, f"{problem}{opened}.", "YAML.", fix)

    def _fail_large(self, line: int, column: int, deep: bool) -> NoReturn:
        problem = f"the values are more than {MOST_NODES}, when each alias is replaced by what it stands for."
        problem = f"this is nested more than {DEEPEST} levels deep." if deep else problem
        expected = f"at most {MOST_NODES} values in {DEEPEST} levels."
        self._fail(line, column, problem, expected, "a configuration holds settings; put data in a file of its own.")

    def _fail_tag(self, line: int, column: int, tag: str) -> NoReturn:
        shown = tag.replace("tag:yaml.org,2002:", "!!")
        if "python" in tag:
            problem = f"the tag {shown} would run Python code when the file is read, and is refused."
        else:
            problem = f"the tag {shown} is unknown: it would build an object when the file is read, and is refused."
        fix = "build objects with `class_path:` and `init_args:`, or delete the tag."
        self._fail(line, column, problem, "plain values: text, numbers, true, false, null, lists and mappings.", fix)


def _position(node: yaml.Node) -> tuple[int, int]:
    mark: Any = node.start_mark
    return mark.line, mark.column
