"""The errors that scripts/constraints.py finds in a file of pinned versions."""

from __future__ import annotations

import pytest
from packaging.requirements import Requirement

from scripts.constraints import FILE, SEPARATE, form_problems, pins
from tests.architecture.rules import ROOT


def test_the_file_is_in_form() -> None:
    text = FILE.read_text(encoding="utf-8")
    assert list(form_problems(text)) == []
    assert "torch==2.13.0" in map(str, pins(text))


@pytest.mark.parametrize("extra", SEPARATE)
def test_an_extra_of_a_separate_environment_is_pinned_in_its_range(extra: str) -> None:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has none")
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"][extra]
    pinned = {pin.name: next(iter(pin.specifier)).version for pin in pins(FILE.read_text("utf-8"))}
    assert [line for line in declared if pinned[Requirement(line).name] not in Requirement(line).specifier] == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("numpy>=2", "`numpy>=2` is not of the form name==version."),
        ("numpy==2.*", "`numpy==2.*` is not of the form name==version."),
        ("torch==2.13.0+cpu", "`torch==2.13.0+cpu` names a build (cpu) that only some machines have."),
        ("rich==15.0.0\nnumpy==2.4.6", "the lines are not sorted by name."),
    ],
)
def test_a_line_out_of_form_is_found(text: str, problem: str) -> None:
    assert list(form_problems(text)) == [problem]
