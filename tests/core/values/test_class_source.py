"""The source of the user's classes while their file is edited."""

from __future__ import annotations

import importlib.util
import linecache

import pytest

from lightlib.core.values.class_source import saves, stored, updated

TEXT = """
class Average:
    def __init__(self):
        self.value, self.seen, self.__hidden = 0.0, 0, 1

    def update(self, x):
        self.seen += 1
        self.last = x

    def state_dict(self):
        return {"value": self.value, "hidden": self.__hidden, **{name: self.value for name in "ab"}}

    def load_state_dict(self, state):
        self.value = state["value"]
"""
EDITED = {
    "as it was": TEXT,
    "lines added": "import os\n\n\n" + TEXT,
    "another method there": TEXT.replace(
        "    def update", "    def reset(self):\n        self.seen = 0\n\n    def update"
    ),
    "other attributes": TEXT.replace('self.value, "hidden"', 'self.seen, "hidden"').replace(
        "{name: self.value", "{name: 0"
    ),
    "half a line": TEXT.replace("{name: self.value for name in", "{name: (self.value for"),
    "an open string": TEXT.replace("self.seen += 1", 'self.seen += """'),
    "cut": TEXT[:60],
    "empty": "",
}


@pytest.mark.parametrize("edit", EDITED)
def test_a_file_that_is_edited_while_its_program_runs(edit, tmp_path):
    path = tmp_path / "program.py"
    path.write_text(TEXT)
    spec = importlib.util.spec_from_file_location("edited_program", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    path.write_text(EDITED[edit])
    linecache.checkcache(str(path))
    kind = module.Average
    assert [saves(kind, name) for name in ("value", "_Average__hidden", "seen", "last")] == [True, True, False, False]
    assert stored(kind) <= {"value", "seen", "last", "__hidden"}
    assert updated(kind) <= {"seen"}
