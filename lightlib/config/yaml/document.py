"""One YAML document: plain values, each key once, nothing that runs code; errors name the line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple, NoReturn

import yaml

from lightlib.errors import MisconfigurationException

__all__ = ["DEEPEST", "MOST_NODES", "ConfigError", "Document", "Dumper", "Place"]

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


class _Composer(yaml.composer.Composer, yaml.resolver.Resolver):  # type: ignore[misc]  # PyYAML has no types
    """Composes nodes from a stream of events, so that each event is checked before it is used."""

    yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers

    def __init__(self, events: Iterator[yaml.Event]) -> None:
        yaml.composer.Composer.__init__(self)
        yaml.resolver.Resolver.__init__(self)
        self._events = events
        self._next: yaml.Event | None = None

    def peek_event(self) -> yaml.Event | None:
        if self._next is None:
            self._next = next(self._events, None)
        return self._next

    def check_event(self, *kinds: type) -> bool:
        return isinstance(self.peek_event(), kinds)

    def get_event(self) -> yaml.Event | None:
        event, self._next = self.peek_event(), None
        return event


_TAGS = frozenset(tag for tag in _BASE.yaml_constructors if tag)
_FIXES = {  # a problem reported by PyYAML (either implementation) → the usual fix
    "mapping values are not allowed": "one `key: value` in a line; a value that holds `: ` needs quotes.",
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


class Place(NamedTuple):
    """Where something stands: the file's name, and line and column, counted from 1.

    Example:
        >>> str(Place("run.yaml", 7, 3))
        'run.yaml, line 7'
    """

    name: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.name}, line {self.line}"


class Document:
    """One YAML document, parsed once and checked when it is made."""

    def __init__(self, text: str, name: str | None = None, *, mapping: bool = False) -> None:
        self.text = text.removeprefix("\ufeff")
        self.name = name or "the given text"
        self._sizes: dict[int, tuple[int, int]] = {}
        try:
            self._root: yaml.Node | None = _Composer(self._checked_events()).get_single_node()
            if self._root is not None:
                self._measure(self._root)
        except yaml.MarkedYAMLError as error:
            self._fail_broken(error)
        except yaml.YAMLError as error:
            self._fail(0, 0, f"this cannot be read: {error}.", "text in UTF-8.", "save the file as UTF-8 text.")
        if mapping and not isinstance(self._root, yaml.MappingNode):
            what = (
                "nothing"
                if self._root is None
                else "a list"
                if isinstance(self._root, yaml.SequenceNode)
                else "a single value"
            )
            raise ConfigError(
                f"{self.name} holds {what} at the top.",
                expected="a mapping: lines of `key: value`.",
                fix="for instance `trainer:`, and indented below it `max_epochs: 3`.",
            )

    def value(self) -> Any:
        """Return the document as plain Python values; each alias is a new object."""
        return None if self._root is None else self._value(self._root)

    def places(self) -> dict[str, Place]:
        """Return where each key stands, by its dotted path."""
        return {path: self._place(at) for path, at, _ in self._below(self._root, "")}

    def written(self) -> dict[Place, str]:
        """Map the places of keys to their values as written: ``yes`` for True."""
        single = ((at, value.value) for _, at, value in self._below(self._root, "") if value.id == "scalar")
        return {self._place(at): text for at, text in single}

    # checks
    def _checked_events(self) -> Iterator[yaml.Event]:
        unprintable = yaml.reader.Reader.NON_PRINTABLE.search(self.text)
        if unprintable:
            line = self.text.count("\n", 0, unprintable.start())
            column = unprintable.start() - self.text.rfind("\n", 0, unprintable.start()) - 1
            what = f"the character {unprintable.group()!r} is not allowed."
            self._fail(line, column, what, "printable text.", 'delete it, or write it as "\\x…" in double quotes.')
        depth = count = documents = 0
        for event in yaml.parse(self.text, Loader=_Loader):
            mark: Any = event.start_mark
            line, column = mark.line, mark.column
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    fix = "delete the line `---`, or make two files of it: `--config first.yaml --config second.yaml`."
                    self._fail(line, column, "a second document begins.", "one document in a file.", fix)
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            count += isinstance(event, yaml.NodeEvent)
            if depth > DEEPEST or count > MOST_NODES:
                self._fail_large(line, column, depth > DEEPEST)
            tag = getattr(event, "tag", None)
            if tag is not None and tag != "!" and tag not in _TAGS:
                self._fail_tag(line, column, tag)
            yield event

    def _measure(self, node: yaml.Node) -> tuple[int, int]:
        """Return how many values a node holds and how deep, each alias counted; refuse a key that stands twice."""
        known = self._sizes.get(id(node))
        mark = node.start_mark
        if known is not None:
            if known == (0, 0):
                fix = "write the value out instead of the alias."
                self._fail(mark.line, mark.column, "this value contains itself.", "values that end.", fix)
            return known
        self._sizes[id(node)] = (0, 0)  # under way
        if isinstance(node, yaml.MappingNode):
            self._check_keys(node)
        children = [] if isinstance(node, yaml.ScalarNode) else node.value
        below = [self._measure(one) for child in children for one in (child if isinstance(child, tuple) else (child,))]
        size, depth = 1 + sum(size for size, _ in below), 1 + max((depth for _, depth in below), default=0)
        if size > MOST_NODES or depth > DEEPEST + 1:
            self._fail_large(mark.line, mark.column, depth > DEEPEST + 1)
        self._sizes[id(node)] = size, depth
        return size, depth

    def _check_keys(self, node: yaml.MappingNode) -> None:
        first: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            line, column, name = key.start_mark.line, key.start_mark.column, (key.tag, key.value)
            if name in first:
                what = f"the key {key.value!r} stands here again; the first is in line {first[name] + 1}."
                self._fail(line, column, what, "each key once.", "delete one of the two, or join them.")
            first[name] = line

    def _value(self, node: yaml.Node) -> Any:
        mark = node.start_mark
        if node.tag == _SEQ:
            return [self._value(one) for one in node.value]
        if node.tag != _MAP:
            try:
                return _Loader("").construct_object(node, deep=True)
            except (ValueError, yaml.YAMLError):
                kind, fix = node.tag.rpartition(":")[2], "put it in quotes, if it is text."
                self._fail(mark.line, mark.column, f"this cannot be read as {kind}.", f"a value of type {kind}.", fix)
        found: dict[Any, Any] = {}
        for key, value in self._pairs(node):
            name = self._value(key)
            if isinstance(name, (list, dict, set)):
                mark = key.start_mark
                self._fail(mark.line, mark.column, "a list or mapping is used as a key.", "a name.", "name the key.")
            found[name] = self._value(value)
        return found

    def _pairs(self, node: yaml.Node) -> Iterator[tuple[yaml.Node, yaml.Node]]:
        """Yield keys and values: first those that `<<` brings in (the first of a list wins), then the node's own."""
        for key, value in node.value:
            if key.tag == _MERGE:
                for one in reversed(value.value) if value.tag == _SEQ else (value,):
                    if one.tag != _MAP:
                        mark = one.start_mark
                        what = "`<<` is followed by something that is not a mapping."
                        self._fail(mark.line, mark.column, what, "an alias of a mapping.", "<<: *name")
                    yield from self._pairs(one)
        yield from ((key, value) for key, value in node.value if key.tag != _MERGE)

    def _below(self, node: yaml.Node | None, prefix: str) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
        """Yield for each key its dotted path, the node where it stands, and that of its value."""
        below: list[tuple[str, yaml.Node, yaml.Node]] = []
        if node is not None and node.tag == _MAP:
            below = [(str(self._value(key)), key, value) for key, value in self._pairs(node)]
        elif node is not None and node.tag == _SEQ:
            below = [(str(index), value, value) for index, value in enumerate(node.value)]
        for key, at, value in below:
            yield f"{prefix}{key}", at, value
            yield from self._below(value, f"{prefix}{key}.")

    def _place(self, node: yaml.Node) -> Place:
        mark: Any = node.start_mark
        return Place(self.name, mark.line + 1, mark.column + 1)

    # errors
    def _fail(self, line: int, column: int, what: str, expected: str, fix: str) -> NoReturn:
        lines = self.text.split("\n")
        shown, at = (lines[line].rstrip("\r") if line < len(lines) else ""), f"  {line + 1} | "
        start = max(0, column - 80)
        caret = f"{'|':>{len(at) - 1}} {' ' * (column - start)}^"
        raise ConfigError(
            f"{self.name}, line {line + 1}, column {column + 1}: {what}\n"
            f"{at}{shown[start : start + 120]}\n{caret}".replace("\t", " "),
            expected=expected,
            fix=fix,
        )

    def _fail_broken(self, error: yaml.MarkedYAMLError) -> NoReturn:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line, mark.column) if mark else (0, 0)
        lines = self.text.split("\n")
        if not "".join(lines[line:]).strip():  # the end: show the last line there is
            line = max((at for at, one in enumerate(lines) if one.strip()), default=0)
            column = len(lines[line].rstrip())
        tabs = (at for at, one in enumerate(lines[: line + 2]) if "\t" in one[: len(one) - len(one.lstrip())])
        tab = next((at for at in tabs if at >= line - 1), None)
        if tab is not None:
            column, fix = lines[tab].index("\t"), "replace the tabs by spaces in your editor."
            self._fail(tab, column, "a tab stands in the indentation.", "spaces; YAML has no tabs.", fix)
        problem = error.problem or "this is not YAML"
        if "mapping values are not allowed" in problem and self._is_too_deep(lines, line):
            what = "this line is indented further than the one above it, which has a value already."
            expected = "keys of one level with the same number of spaces."
            self._fail(line, column, what, expected, "give both lines the same number of spaces.")
        fix = next((fix for known, fix in _FIXES.items() if known in problem), "compare with the lines above it.")
        opened = ""
        if error.context and error.context_mark and error.context_mark.line != line:
            opened = f", {error.context} that begins in line {error.context_mark.line + 1}"
        self._fail(line, column, f"{problem}{opened}.", "YAML.", fix)

    @staticmethod
    def _is_too_deep(lines: list[str], line: int) -> bool:
        """Whether a line `key: value` stands below and within another one that has a value."""
        pair = re.compile(r"(\s*)(?:- +)?[^\s:#'\"][^:]*:(\s.*)?$")
        above = next((one for one in reversed(lines[:line]) if one.strip() and not one.lstrip().startswith("#")), "")
        outer, inner = pair.match(above), pair.match(lines[line])
        return bool(outer and inner and (outer[2] or "").strip() and len(inner[1]) > len(outer[1]))

    def _fail_large(self, line: int, column: int, deep: bool) -> NoReturn:
        if deep:
            what, expected = f"this is nested more than {DEEPEST} levels deep.", f"at most {DEEPEST} levels."
        else:
            what = f"the values are more than {MOST_NODES}, when each alias is replaced by what it stands for."
            expected = f"at most {MOST_NODES}."
        self._fail(line, column, what, expected, "a configuration holds settings; put data in a file of its own.")

    def _fail_tag(self, line: int, column: int, tag: str) -> NoReturn:
        shown = tag.replace("tag:yaml.org,2002:", "!!")
        if "python" in tag:
            what = f"the tag {shown} would run Python code when the file is read, and is refused."
        else:
            what = f"the tag {shown} is unknown: it would build an object when the file is read, and is refused."
        fix = "build objects with `class_path:` and `init_args:`, or delete the tag."
        self._fail(line, column, what, "plain values: text, numbers, true, false, null, lists and mappings.", fix)
