"""Corrupted checkpoints: every truncation and bit flip is detected; "auto" takes an intact one.

The same with thousands of damages is `make campaign-corruption`.
"""

from __future__ import annotations

import io

import pytest
import torch

from lightlib.checkpoint.file import archive
from lightlib.checkpoint.storage.label import Label
from lightlib.errors import CheckpointError
from tests.campaigns.campaign_corruption import FORMS, falls_back, random_damages


@pytest.mark.parametrize("form", FORMS)
def test_random_damages_are_noticed(form, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cases = list(random_damages(form, 220, seed=1, folder=tmp_path))
    assert len(cases) == 220
    assert [f"{done}: not by {way}" for done, said in cases for way, text in said.items() if not text] == []


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", range(3))
def test_auto_takes_the_last_whole_one(form, seed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert falls_back(form, seed, tmp_path) == ""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "a.ckpt"
    content = {"state_dict": {"a": torch.arange(20.0), "b": torch.ones(3)}, "lightlib": {"format": 2}}
    archive.save(content, path, Label(run="1f", step=3))
    return path.read_bytes()


def refused(data):
    with pytest.raises(CheckpointError) as caught:
        archive.load(io.BytesIO(data))
    return str(caught.value).splitlines()[0]


def test_every_length(whole):
    assert {refused(whole[:size]) for size in range(100, len(whole), 7)} <= {
        "The file object could not be read as a checkpoint: it ends too early."
    }
    assert all(refused(whole[:size]) for size in range(len(whole) - 400, len(whole)))


def test_every_byte_of_the_end(whole):
    """The list of records, the end of the zip file, and the trailer, its marker included."""
    for place in range(len(whole) - 450, len(whole)):
        data = bytearray(whole)
        data[place] ^= 1 << place % 8
        refused(bytes(data))


def test_what_differs_is_named(whole):
    record = whole.index(torch.arange(20.0).numpy().tobytes())
    for place, text in ((record, "its record 'data/0' differs from its checksum."), (60, "its bytes differ from its ")):
        data = bytearray(whole)
        data[place] ^= 1
        assert text in refused(bytes(data))


def test_a_trailer_of_another_file(whole, tmp_path):
    archive.save({"state_dict": {"a": torch.arange(20.0)}, "lightlib": {"format": 2}}, tmp_path / "b.ckpt", Label())
    other = (tmp_path / "b.ckpt").read_bytes()
    trailer = other[other.rindex(b'{"version"') :]
    assert "bytes were written before its trailer" in refused(whole[: whole.rindex(b'{"version"')] + trailer)
