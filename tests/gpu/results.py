"""The file of results, into which the cases of all calls are merged, and its page."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lightlib.errors import MisconfigurationException

BEGIN, END = "<!-- results -->", "<!-- end of the results -->"
_CELLS = {"failed": "**failed**", "not reached": "not reached"}
_IDENTITY = ("devices", "pretended", "torch", "lightlib")


class Results:
    """Results of a machine, in a JSON file that is written after each case.

    Args:
        path: The file; it may exist.
        machine: What `device.facts` returns. Default: as in the file.

    Raises:
        MisconfigurationException: The file is not one of results, or holds those of another machine.
    """

    def __init__(self, path: Path, machine: dict[str, Any] | None = None) -> None:
        self.path = path
        found = _read(path) if path.exists() or machine is None else {"machine": machine, "parts": {}}
        self.machine: dict[str, Any] = found["machine"]
        self.parts: dict[str, dict[str, dict[str, Any]]] = found["parts"]
        if machine is not None and (other := [key for key in _IDENTITY if self.machine.get(key) != machine[key]]):
            first = other[0]
            raise MisconfigurationException(
                f"{path} holds results with {first} {self.machine.get(first)!r}, and this run has {machine[first]!r}.",
                expected="one file of results for each machine and version.",
                fix="--results ANOTHER.json, or delete the file.",
            )

    def add(self, part: str, case: str, outcome: dict[str, Any]) -> None:
        """Add or replace the result of a case, and write the file."""
        self.parts.setdefault(part, {})[case] = outcome
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_name(f".{self.path.name}.new")
        beside.write_text(json.dumps({"machine": self.machine, "parts": self.parts}, indent=1), encoding="utf-8")
        os.replace(beside, self.path)

    def passed(self, part: str, case: str) -> bool:
        return self.parts.get(part, {}).get(case, {}).get("state") == "passed"

    def page(self) -> str:
        """Return the tables of all parts, in Markdown."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        machine = dict(self.machine)
        devices = machine.pop("devices")
        kind = "**pretended, on a CPU with gloo: no GPU was used.** " if machine.pop("pretended") else ""
        versions = ", ".join(f"{name} {value}" for name, value in machine.items())
        yield f"{kind}{len(devices)} x {devices[0]}; {versions}."
        for name, cases in self.parts.items():
            states = [case["state"] for case in cases.values()]
            days = sorted({case["date"] for case in cases.values()})
            counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
            took = sum(case["seconds"] for case in cases.values())
            yield f"\n### {name}\n\n{days[-1]}: {counts}; {took:.0f} s.\n"
            yield from _table(cases)
            for case, found in cases.items():
                if found["state"] == "failed":
                    problem = found["problem"].partition("\n")[0].replace("|", "\\|")
                    yield f"\n- {case}: {problem}"


def write_page(results: Results, page: Path) -> None:
    """Write the results between the two marks of a page.

    Raises:
        MisconfigurationException: The results are pretended, or the page has no marks.
    """
    if results.machine["pretended"]:
        raise MisconfigurationException(
            f"{results.path} holds results of a pretended run, on a CPU.",
            expected="results of GPUs: those of a CPU do not belong there.",
            fix="run `make gpu` on a machine with a GPU.",
        )
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise MisconfigurationException(
            f"{page} has no place for results.", expected=f"a line {BEGIN} and a line {END}.", fix="add them."
        )
    page.write_text(f"{before}{begin}\n\n{results.page()}\n\n{end}{after}", encoding="utf-8")


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        machine = {"pretended": found["machine"]["pretended"], **found["machine"]}
        return {"machine": machine, "parts": dict(found["parts"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MisconfigurationException(
            f"{path} cannot be read as results ({type(error).__name__}: {error}).",
            expected="a JSON file that `make gpu` has written.",
            fix="--results with the name of such a file, or of a new one.",
        ) from error


def _table(cases: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Yield a table with a column for each second half of the names, or for each figure."""
    halves = {name: name.partition("/")[::2] for name in cases}
    columns = list(dict.fromkeys(column for _, column in halves.values()))
    if columns != [""]:
        cells = {halves[name]: _cell(case) for name, case in cases.items()}
        yield from _rows(["case", *columns])
        for row in dict.fromkeys(row for row, _ in halves.values()):
            yield f"| {' | '.join([row, *(cells.get((row, column), '') for column in columns)])} |"
        return
    figures = list(dict.fromkeys(key for case in cases.values() for key in case["figures"]))
    yield from _rows(["case", "result", *figures])
    for name, case in cases.items():
        values = [_number(case["figures"].get(key, "")) for key in figures]
        yield f"| {' | '.join([name, _CELLS.get(case['state'], case['state']), *values])} |"


def _rows(titles: list[str]) -> list[str]:
    return [f"| {' | '.join(titles)} |", f"|{'---|' * len(titles)}"]


def _cell(case: dict[str, Any]) -> str:
    if case["state"] == "passed":
        return _number(next(iter(case["figures"].values()), "passed"))
    return _CELLS.get(case["state"], case["problem"].partition(",")[0])


def _number(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
