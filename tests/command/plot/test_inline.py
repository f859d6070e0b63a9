"""`lightlib.plot` in a notebook: the picture of `lightlib plot`, its warnings, and its errors."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

import lightlib
from lightlib.command.plot import plot as command
from lightlib.command.plot.inline import Curves
from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError
from lightlib.report import LightlibWarning


def logged(*values):
    """Write the logs of a run, in ``run``."""
    Path("run").mkdir()
    lines = [f"0,{step},{value}" for step, value in enumerate(values)]
    Path("run/metrics.csv").write_text("\n".join(["epoch,step,loss", *lines, ""]))


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_it_draws_the_picture_of_the_command():
    logged(3.0, 2.0, 2.5)
    curves = lightlib.plot("run", metrics="lo*", smooth=0.5, x="epoch")
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    words = ["run", "--metrics", "lo*", "--smooth", "0.5", "--x", "epoch", "--format", "png"]
    assert command.run(parser.parse_args(words)) == 0
    assert curves._repr_png_() == Path("run/curves.png").read_bytes()


def test_defects_of_the_logs_are_warnings_at_the_line_of_the_user():
    logged(3.0, "nan")
    with pytest.warns(LightlibWarning, match="loss is not finite") as caught:
        curves = lightlib.plot(Path("run"))
    assert caught[0].filename == __file__
    assert curves.notes == [str(caught[0].message)]


def test_a_file_is_not_replaced():
    Curves(b"first").save("a.png")
    with pytest.raises(FileExistsError):
        Curves(b"second").save("a.png")
    assert Path("a.png").read_bytes() == b"first"


@pytest.mark.parametrize(
    ("runs", "options", "error", "text"),
    [
        ([], {}, MisconfigurationException, r"plot\(\) got no run"),
        ([3], {}, ArgumentTypeError, r"plot\(\) got 3 \(int\)"),
        (["run"], {"smooth": "0.5"}, ArgumentTypeError, r"plot\(smooth='0.5' \(str\)\)"),
        (["run"], {"smooth": 1.0}, MisconfigurationException, r"plot\(smooth=1.0\)"),
        (["run"], {"x": "steps"}, UnknownNameError, r"Unknown axis 'steps'. Did you mean 'step'"),
        (["run"], {"metrics": ["los"]}, UnknownNameError, r"(?s)Did you mean 'loss'.*Fix: metrics="),
        (["rum"], {}, MisconfigurationException, r"Did you mean 'run'"),
    ],
)
def test_a_mistake_has_a_fix(runs, options, error, text):
    logged(3.0, 2.0)
    with pytest.raises(error, match=text):
        lightlib.plot(*runs, **options)
