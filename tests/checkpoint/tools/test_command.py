"""The command line: its output and its exit codes."""

from __future__ import annotations

import argparse
import errno
import json
import os

import pytest

from lightlib.checkpoint import load
from lightlib.checkpoint.storage import filesystem
from lightlib.checkpoint.tools import command
from tests.checkpoint.samples import content, malicious, same, write
from tests.processes import programs


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "file")
    write(tmp_path, "directory")
    write(tmp_path, "torch")
    malicious(tmp_path)
    damaged = bytearray((tmp_path / "last.ckpt").read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (tmp_path / "damaged.ckpt").write_bytes(damaged)
    (tmp_path / "empty.ckpt").write_bytes(b"")
    (tmp_path / "text.ckpt").write_text("hello")
    (tmp_path / "folder").mkdir()
    return tmp_path


DONE = [
    (
        "inspect last.ckpt",
        ["last.ckpt: a file of lightlib (format 2)", "epoch 1, 4 batches into it", "api_key': '***'"],
    ),
    ("inspect last-directory", ["last-directory: a directory of lightlib (format 2)", "resume      yes"]),
    ("inspect torch.ckpt", ["torch.ckpt: a file of Lightning 2.6.0"]),
    ("inspect last.ckpt --tensors", ["  model.head.bias  float32 [3]"]),
    ("verify last.ckpt last-directory", ["last.ckpt: intact.", "last-directory: intact.", "checksums compared."]),
    ("verify torch.ckpt", ["no lightlib checksum"]),
    ("convert last.ckpt new", ["new: written, ", "7 tensors."]),
    ("convert last.ckpt new.ckpt --to file", ["new.ckpt: written"]),
    ("convert last-directory new.ckpt", ["new.ckpt: written"]),
    ("convert last.ckpt torch.ckpt --to file --overwrite", ["torch.ckpt: written"]),
    ("consolidate last-directory new.ckpt", ["new.ckpt: written"]),
    ("export last.ckpt w.safetensors", ["w.safetensors: written", "4 tensors."]),
    ("export last-directory w.safetensors --strip model. --dtype bfloat16", ["w.safetensors: written"]),
    ("--help", ["inspect", "verify", "convert", "consolidate", "export", "examples:", "exit codes:"]),
    ("convert --help", ["--overwrite", "--trust", "ANY code"]),
]


@pytest.mark.parametrize(("line", "texts"), DONE, ids=[line for line, _ in DONE])
def test_commands_that_do(folder, capsys, line, texts):
    assert command.main(line.split()) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    for text in texts:
        assert text in printed.out


FAILED = [
    ("inspect none.ckpt", 1, ["There is no checkpoint 'none.ckpt'", "Expected:", "Fix:"]),
    ("inspect lst.ckpt", 1, ["Did you mean 'last.ckpt'?"]),
    ("inspect empty.ckpt", 1, ["'empty.ckpt' (0 bytes) could not be read", "Expected:", "Fix:"]),
    ("inspect text.ckpt", 1, ["could not be read as a checkpoint"]),
    ("inspect folder", 1, ["'folder'", "Expected:", "Fix:"]),
    ("inspect malicious.ckpt", 1, ["can only be loaded by running code", "  Here: --trust\n"]),
    ("verify damaged.ckpt", 1, ["'damaged.ckpt'", "could not be read", "Fix:"]),
    ("verify damaged.ckpt last.ckpt none.ckpt", 1, ["'damaged.ckpt'", "There is no checkpoint 'none.ckpt'"]),
    ("convert damaged.ckpt new", 1, ["'damaged.ckpt'"]),
    ("convert last.ckpt torch.ckpt --to file", 1, ["The file 'torch.ckpt' already exists", "--overwrite"]),
    ("convert last.ckpt text.ckpt/new.ckpt --to file", 1, ["text.ckpt/new.ckpt", "Expected:", "Fix:"]),
    ("consolidate last.ckpt new.ckpt", 2, ["is already a file"]),
    ("consolidate folder new.ckpt", 1, ["'folder'"]),
    ("export last.ckpt new.pt", 2, ["does not end in .safetensors", "'new.safetensors'"]),
    ("export last.ckpt w.safetensors --strip net.", 2, ["begins with 'net.'", "'model.'"]),
    ("export last.ckpt w.safetensors --dtype int4", 2, ["invalid choice: 'int4'"]),
    ("convert last.ckpt new --to zip", 2, ["invalid choice: 'zip'"]),
    ("convert last.ckpt", 2, ["the following arguments are required: target"]),
    ("inspct last.ckpt", 2, ["invalid choice: 'inspct'"]),
    ("", 2, ["required: COMMAND"]),
]


@pytest.mark.parametrize(("line", "code", "texts"), FAILED, ids=[line for line, *_ in FAILED])
def test_commands_that_do_not(folder, capsys, line, code, texts):
    before = sorted(os.listdir())
    assert command.main(line.split()) == code
    printed = capsys.readouterr()
    for text in texts:
        assert text in printed.err
    assert "Traceback" not in printed.err
    assert sorted(os.listdir()) == before


def test_a_damaged_one_does_not_keep_the_others_from_being_verified(folder, capsys):
    assert command.main(["verify", "damaged.ckpt", "last.ckpt"]) == 1
    assert capsys.readouterr().out.startswith("last.ckpt: intact.")


def test_json_is_json(folder, capsys):
    assert command.main(["inspect", "last.ckpt", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["step"], found["hyperparameters"]["hub"]) == ("file", 7, {"api_key": "***"})


def test_trust_is_a_door_of_its_own(folder, capsys):
    assert command.main(["inspect", "malicious.ckpt"]) == 1
    assert not (folder / "canary").exists()
    assert command.main(["inspect", "malicious.ckpt", "--trust"]) == 0
    assert (folder / "canary").exists()


def test_nothing_from_a_file_reaches_the_terminal_as_a_command(folder, capsys):
    command.main(["inspect", "last.ckpt"])
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize("line", ["inspect last.ckpt", "verify last.ckpt", "convert last.ckpt new"])
def test_a_file_that_may_not_be_read(folder, capsys, monkeypatch, line):
    os.chmod("last.ckpt", 0)
    if os.geteuid() == 0:  # root may read anything
        original = filesystem.open_for_reading

        def refuse(path):
            if os.path.basename(path) == "last.ckpt":
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
            return original(path)

        monkeypatch.setattr(filesystem, "open_for_reading", refuse)
    assert command.main(line.split()) == 1
    error = capsys.readouterr().err
    assert "'last.ckpt'" in error
    assert "Permission denied" in error
    assert not os.path.exists("new")


def test_warnings_are_one_line(folder, capsys):
    write(folder / "more", "file", state_dict={"a": content()["state_dict"]["steps"], "_extra_state": {"x": 1}})
    assert command.main(["export", "more/last.ckpt", "w.safetensors"]) == 0
    assert capsys.readouterr().err == (
        "Warning: '_extra_state' of 'more/last.ckpt' are not tensors and are not written to 'w.safetensors'.\n"
    )


def test_the_commands_can_be_part_of_another_command_line(folder, capsys):
    parser = argparse.ArgumentParser(prog="other")
    command.add_commands(parser.add_subparsers())
    assert command.run(parser.parse_args(["consolidate", "last-directory", "new.ckpt"])) == 0
    assert same(load("new.ckpt"), content())


@pytest.mark.processes
def test_python_m(folder):
    done = programs.run("-m", "lightlib.checkpoint", "verify", "last.ckpt")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("last.ckpt: intact.")
    failed = programs.run("-m", "lightlib.checkpoint", "inspect", "none")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr.startswith("Error: There is no checkpoint 'none'.")
