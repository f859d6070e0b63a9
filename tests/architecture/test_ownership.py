"""Tests that a function assigns only to attributes of its own object, except for listed cases."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.architecture.ownership import ALLOWED, allowed_by, foreign_assignments
from tests.architecture.rules import File, package_files


def test_no_function_assigns_to_attributes_of_another_object() -> None:
    used = set()
    problems = []
    for file in package_files():
        for line, target in foreign_assignments(file):
            row = allowed_by(file.name, target)
            used.add(row)
            if row is None:
                problems.append(f"{file.name}:{line}: {target}")
    assert not problems, (
        "these assign to an attribute of another object. Fix: give its class a method or a constructor argument; "
        "where another library asks for it, add a row with the reason to tests/architecture/ownership.py:\n"
        + "\n".join(problems)
    )
    unused = [row for index, row in enumerate(ALLOWED) if index not in used]
    assert not unused, f"nothing needs these rows of ALLOWED any more: {unused}"


@pytest.mark.parametrize(
    ("body", "targets"),
    [
        ("other.count = 1", ["other.count"]),
        ("other.count += 1", ["other.count"]),
        ("a, (other.x, *other.y) = 1, (2, 3)", ["other.x", "other.y"]),
        ("setattr(other, 'count', 1)", ["other.'count'"]),
        ("self.part.count = 1", ["self.part.count"]),
        ("self.count = 1", []),
        ("made = dict()\n    made.count = 1", []),
        ("other.count: int", []),
        ("other['count'] = 1", []),
    ],
)
def test_finds_assignments_to_attributes_of_other_objects(tmp_path: Path, body: str, targets: list[str]) -> None:
    path = tmp_path / "file.py"
    path.write_text(f"def function(self, other):\n    {body}\n")
    assert sorted(target for _, target in foreign_assignments(File(path, tmp_path))) == targets
