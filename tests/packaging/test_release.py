"""scripts/release.py: notes of changes, refusals of a release, and the metadata that a build adds."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import types
import zipfile
from pathlib import Path

import pytest

from scripts import release
from tests.architecture.rules import ROOT

HEAD = "# Changelog\n\nAll changes.\n\n"
OLD = "## [0.1.0] - 2026-01-02\n\nThe first.\n\n### Added\n\n- All.\n"


@pytest.fixture
def project(tmp_path):
    """A tree with a version, notes, and a commit."""
    for folder in ("changes", "lightlib"):
        (tmp_path / folder).mkdir()
    (tmp_path / "changes/README.md").write_text("# Changes\n")
    (tmp_path / "lightlib/version.py").write_text('"""Version."""\n\n__version__ = "0.1.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(HEAD + OLD)
    return tmp_path


def commit(project):
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "x"]):
        names = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *names, *command], cwd=project, check=True)


def test_notes_are_joined_by_kind_and_removed(project):
    (project / "changes/b.fixed.md").write_text("`fit` ends.\nNothing is to be done.\n")
    (project / "changes/a.fixed.md").write_text("- `test` ends.\n")
    (project / "changes/c.added.md").write_text("`plot` draws.\n")
    release.write_notes("0.2.0", "2026-03-04", project)
    new = (
        "## [0.2.0] - 2026-03-04\n\n### Added\n\n- `plot` draws.\n\n"
        "### Fixed\n\n- `test` ends.\n- `fit` ends.\n  Nothing is to be done.\n\n"
    )
    assert (project / "CHANGELOG.md").read_text() == HEAD + new + OLD
    assert (project / "lightlib/version.py").read_text() == '"""Version."""\n\n__version__ = "0.2.0"\n'
    assert [path.name for path in (project / "changes").iterdir()] == ["README.md"]


def test_a_section_that_is_written_gets_its_date_and_the_rest(project):
    (project / "CHANGELOG.md").write_text(HEAD + OLD.replace("2026-01-02", "unreleased"))
    (project / "changes/c.added.md").write_text("More.\n")
    (project / "changes/d.security.md").write_text("Safe.\n")
    release.write_notes("0.1.0", "2026-03-04", project)
    expected = OLD.replace("2026-01-02", "2026-03-04") + "- More.\n\n### Security\n\n- Safe.\n"
    assert (project / "CHANGELOG.md").read_text() == HEAD + expected


def test_a_note_without_a_kind_is_refused_and_nothing_is_lost(project):
    (project / "changes/c.new.md").write_text("More.\n")
    with pytest.raises(release.Refused, match=r"changes/c.new.md has no kind"):
        release.write_notes("0.2.0", "2026-03-04", project)
    assert (project / "CHANGELOG.md").read_text() == HEAD + OLD


@pytest.mark.processes
def test_a_tree_that_can_be_released(project):
    commit(project)
    release.check_tree("0.1.0", False, project)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("break_it", "text"),
    [
        (lambda p: (p / "new.py").write_text(""), "1 files are not committed, such as new.py"),
        (lambda p: subprocess.run(["git", "tag", "v0.1.0"], cwd=p, check=True), "the tag v0.1.0 exists"),
    ],
    ids=["not clean", "tagged"],
)
def test_a_tree_is_refused(project, break_it, text):
    commit(project)
    break_it(project)
    with pytest.raises(release.Refused, match=text):
        release.check_tree("0.1.0", False, project)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("version", "name", "content", "text"),
    [
        ("0.2.0", "changes/README.md", "", "lightlib/version.py has another version"),
        ("0.1.0", "changes/a.fixed.md", "", "changes/ has 1 notes"),
        ("0.1.0", "CHANGELOG.md", HEAD, "CHANGELOG.md has no section"),
        ("0.1.0", "CHANGELOG.md", OLD.replace("2026-01-02", "unreleased"), "CHANGELOG.md has no date for"),
    ],
)
def test_a_release_is_refused(project, version, name, content, text):
    (project / name).write_text(content)
    commit(project)
    with pytest.raises(release.Refused, match=text):
        release.check_tree(version, False, project)


def test_a_word_is_no_version(capsys):
    with pytest.raises(SystemExit):
        release.main(["notes", "next"])
    assert "'next' is no version" in capsys.readouterr().err


def test_the_files_of_a_wheel():
    good = [*release.NEEDED, "lightlib-1.dist-info/licenses/LICENSE", "lightlib-1.dist-info/entry_points.txt"]
    assert list(release.problems_of_wheel(good)) == []
    for name in ("tests/a.py", "lightlib/__pycache__/a.pyc", "lightlib/core/tests/a.py", "conftest.py"):
        assert len(list(release.problems_of_wheel([*good, name]))) == 1
    for name in good:
        assert len(list(release.problems_of_wheel([other for other in good if other != name]))) == 1


def test_templates_have_no_doubles(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
        for path in sorted((ROOT / "lightlib/command/templates").rglob("*-tpl")):
            wheel.write(path, path.relative_to(ROOT))
        assert release.doubles(wheel) == []
        wheel.writestr("lightlib/command/templates/x", "same")
        wheel.writestr("lightlib/command/templates/y", "same")
        assert release.doubles(wheel) == ["lightlib/command/templates/y = lightlib/command/templates/x"]


def test_a_release_is_tried_with_each_python(capsys):
    here, absent = sys.executable, "python3.0"
    assert release.interpreters([here], dry_run=False) == [here]
    assert release.interpreters([absent, here], dry_run=True) == [here]
    assert "not tried: python3.0" in capsys.readouterr().out
    for names, dry_run in (([absent, here], False), ([absent], True)):
        with pytest.raises(release.Refused, match=r"python3.0: not installed here"):
            release.interpreters(names, dry_run)


def test_the_program_of_the_readme_is_the_one_it_shows():
    program = release.program_of_readme()
    assert program.startswith("import torch\n")
    assert "L.Trainer(" in program


@pytest.fixture
def hook(monkeypatch):
    """packaging/hatch_build.py, in a place without an address."""
    base = types.ModuleType("hatchling.metadata.plugin.interface")
    base.MetadataHookInterface = type("MetadataHookInterface", (), {"root": str(ROOT)})
    for name in ("hatchling", "hatchling.metadata", "hatchling.metadata.plugin"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, base.__name__, base)
    for name in ("LIGHTLIB_REPOSITORY", "GITHUB_SERVER_URL", "GITHUB_REPOSITORY"):
        monkeypatch.delenv(name, raising=False)
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "packaging" / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_address_is_made_up(hook):
    metadata = {"version": "0.1.0"}
    hook.Addresses().update(metadata)
    assert metadata["urls"] == {}
    assert metadata["readme"]["text"] == Path(ROOT, "README.md").read_text()


@pytest.mark.parametrize(
    "variables",
    [
        {"LIGHTLIB_REPOSITORY": "https://forge.example/team/lightlib/"},
        {"GITHUB_SERVER_URL": "https://forge.example", "GITHUB_REPOSITORY": "team/lightlib"},
    ],
)
def test_links_of_the_readme_are_those_of_the_repository(hook, monkeypatch, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    metadata = {"version": "0.1.0"}
    hook.Addresses().update(metadata)
    assert metadata["urls"]["Source"] == "https://forge.example/team/lightlib"
    assert metadata["urls"]["Changelog"] == "https://forge.example/team/lightlib/blob/v0.1.0/CHANGELOG.md"
    text = hook.with_addresses("[a](docs/a.md#b) ![c](d.svg) [e](https://x.y) [f](#g)", "https://h/i", "v1")
    assert text == "[a](https://h/i/blob/v1/docs/a.md#b) ![c](https://h/i/raw/v1/d.svg) [e](https://x.y) [f](#g)"
    assert "](docs/" not in metadata["readme"]["text"]
