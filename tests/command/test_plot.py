"""`lightlib plot`: reading logs, refusing mistakes, and drawing with matplotlib and plotly."""

from __future__ import annotations

import argparse
import base64
import csv
import hashlib
import html
import json
import math
import os
import pathlib
import re
import struct
import subprocess
import sys

import plotly
import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.tensorboard import SummaryWriter

from lightlib import Module, Trainer
from lightlib.callbacks import LearningRateMonitor, ModelCheckpoint
from lightlib.command.plot import curves, page, panels, picture, plot
from lightlib.errors import LightlibError, MisconfigurationException, UnknownNameError
from lightlib.loggers import CSVLogger, TensorBoardLogger
from tests.processes import programs
from tests.runs.pages import Tags


def call(*arguments):
    """Run `lightlib plot`; without --format only the page."""
    parser = argparse.ArgumentParser()
    plot.add_arguments(parser)
    arguments = [str(argument) for argument in arguments]
    if "--format" not in arguments:
        arguments += ["--format", "html"]
    return plot.run(parser.parse_args(arguments))


def traces_of(path):
    """Return the traces and the layout that plotly draws on a page."""
    text = pathlib.Path(path).read_text(encoding="utf-8")
    start = text.rindex("Plotly.newPlot(")
    decoder = json.JSONDecoder()
    traces, end = decoder.raw_decode(text, text.index("[", start))
    layout, _ = decoder.raw_decode(text, text.index("{", end))
    return traces, layout


def lines_of(path):
    """Return the traces of a page by name; with several runs, a name begins with its run."""
    return {trace["name"]: trace for trace in traces_of(path)[0]}


def titles_of(path):
    return [annotation["text"] for annotation in traces_of(path)[1]["annotations"]]


def runs_of(path):
    return list(dict.fromkeys(trace.get("legendgroup") for trace in traces_of(path)[0]))


def x_title_of(path):
    return traces_of(path)[1]["xaxis"]["title"]["text"]


def csv_run(folder, text):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.csv").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def simple(tmp_path):
    return csv_run(tmp_path / "simple", "step,train_loss,val_loss\n0,2.0,\n1,1.0,1.5\n2,0.5,\n3,0.75,1.25\n")


@pytest.fixture
def in_tmp(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


# Real runs


class Net(Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))

    def training_step(self, batch, batch_idx):
        loss = (self.weight * batch).square().mean()
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", (self.weight * batch).square().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


def fit(folder, max_epochs, ckpt_path=None):
    loader = DataLoader(torch.linspace(-1, 1, 16), batch_size=4)
    trainer = Trainer(
        max_epochs=max_epochs,
        accelerator="cpu",
        logger=[CSVLogger(folder, "csv", 0), TensorBoardLogger(folder, "tensorboard", 0)],
        callbacks=[LearningRateMonitor("step"), ModelCheckpoint(save_last=True)],
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Net(), loader, loader, ckpt_path=ckpt_path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run that was stopped after two epochs and resumed to four, in both kinds of logs."""
    folder = tmp_path_factory.mktemp("runs")
    fit(folder, 2)
    fit(folder, 4, ckpt_path="last")
    return folder


def test_a_run_is_drawn_from_either_log_alike(trained, tmp_path, capsys):
    events = [one for one in os.listdir(trained / "tensorboard" / "version_0") if "tfevents" in one]
    assert len(events) == 2, "the resumed run wrote a second file"
    for kind in ("csv", "tensorboard"):
        assert call(trained / kind / "version_0", "--output", tmp_path / kind) == 0
    pages = [tmp_path / kind / "curves.html" for kind in ("csv", "tensorboard")]
    assert [titles_of(page) for page in pages] == [["loss", "learning rate"]] * 2
    csv_lines, event_lines = map(lines_of, pages)
    assert csv_lines["train_loss_step"]["x"] == list(range(1, 17))
    assert csv_lines["train_loss_epoch"]["x"] == csv_lines["val_loss"]["x"] == [4, 8, 12, 16]
    with (trained / "csv" / "version_0" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    for name, line in csv_lines.items():
        assert line["y"] == [float(row[name]) for row in rows if row[name]], "every digit of the log is drawn"
        assert event_lines[name]["x"] == line["x"]
        assert event_lines[name]["y"] == pytest.approx(line["y"], rel=1e-6)
    names = ("train_loss_step", "train_loss_epoch", "val_loss")
    assert [csv_lines[name]["mode"] for name in names] == ["lines", "lines+markers", "lines+markers"]
    colors = [csv_lines[name]["line"]["color"] for name in names]
    assert colors[0] == colors[1] != colors[2]
    assert "Warning" not in capsys.readouterr().err


def test_the_default_is_png_and_html_in_the_folder_of_the_run(trained, capsys):
    folder = trained / "csv" / "version_0"
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    for _ in range(2):  # our own files are replaced
        assert call(folder, "--format", "png,html", "--smooth", "0.6") == 0
    content = (folder / "curves.png").read_bytes()
    width, height = struct.unpack(">II", content[16:24])
    assert content.startswith(b"\x89PNG")
    assert width > 500
    assert height > 300
    assert {path.name for path in folder.iterdir() if path.is_file()} == {*before, "curves.png", "curves.html"}
    assert all((folder / name).read_bytes() == content for name, content in before.items())
    said = capsys.readouterr().out
    assert re.search(r"val_loss +[\d.e-]+ +[\d.e-]+ +\d+\n", said)
    assert f"Wrote {folder / 'curves.png'}" in said
    assert f"Wrote {folder / 'curves.html'}" in said


def test_epochs_are_counted_when_they_are_done(trained, tmp_path):
    call(trained / "csv" / "version_0", "--x", "epoch", "--output", tmp_path)
    lines = lines_of(tmp_path / "curves.html")
    assert x_title_of(tmp_path / "curves.html") == "epoch"
    assert lines["val_loss"]["x"] == [1, 2, 3, 4]
    assert lines["train_loss_step"]["x"] == pytest.approx([step / 4 for step in range(1, 17)])


def test_time_comes_from_event_files_without_the_pause_between_them(tmp_path, monkeypatch):
    for number, (start, steps) in enumerate([(1000.0, (0, 10, 20)), (5000.0, (30, 40))]):
        with monkeypatch.context() as patch:
            patch.setattr("time.time", lambda second=start: second)
            writer = SummaryWriter(str(tmp_path / "run"), filename_suffix=f".{number}")
            writer.flush()
        for step in steps:
            writer.add_scalar("loss", 1.0, step, walltime=start + 1 + step % 30)
        writer.close()
    call(tmp_path / "run", "--x", "time", "--output", tmp_path)
    assert x_title_of(tmp_path / "curves.html") == "seconds"
    assert lines_of(tmp_path / "curves.html")["loss"]["x"] == [1, 11, 21, 22, 32]


def test_an_unfinished_epoch_is_as_long_as_the_one_before_it(tmp_path):
    rows = "".join(f"{step},{(step - 1) // 10},1\n" for step in range(1, 26))
    call(csv_run(tmp_path / "run", "step,epoch,loss\n" + rows), "--x", "epoch")
    assert lines_of(tmp_path / "run" / "curves.html")["loss"]["x"] == pytest.approx(
        [step / 10 for step in range(1, 26)]
    )


def test_time_does_not_run_backwards_where_a_run_went_back_to_an_earlier_step():
    run = curves.Run("run", "run", {"loss": {0: 1.0, 10: 1.0, 20: 1.0}}, seconds={0: 1.0, 10: 9.0, 20: 3.0})
    drawn, _ = panels.make_panels([run], ["loss"], "time")
    assert drawn["loss"][0].x == [1.0, 9.0, 9.0]


def test_metrics_csv_has_no_times(simple):
    with pytest.raises(MisconfigurationException, match=r"'simple' in .* have no times.*\n.*event files.*\n.*--x step"):
        call(simple, "--x", "time")
    with pytest.raises(MisconfigurationException, match=r"have no epochs"):
        call(simple, "--x", "epoch")


# Which runs


def test_a_folder_of_runs_means_all_of_them_in_their_order(in_tmp, capsys):
    for number in (10, 2, 0):
        csv_run(in_tmp / "lightning_logs" / f"version_{number}", f"step,loss\n0,{number}\n")
    call("lightning_logs")
    assert runs_of("curves.html") == ["version_0", "version_2", "version_10"]
    assert "3 runs in lightning_logs: version_0, version_2, version_10\n" in capsys.readouterr().out


def test_several_runs_are_told_apart_by_the_shortest_names(in_tmp):
    for name in ("a", "b"):
        csv_run(in_tmp / name / "version_0", "step,loss\n0,1\n")
    call("a", "b/version_0/metrics.csv", "a/version_0")  # one of them twice
    assert runs_of("curves.html") == ["a/version_0", "b/version_0"]


def test_one_run_below_a_folder_is_drawn_in_its_own_folder(in_tmp):
    csv_run(in_tmp / "logs" / "net" / "version_0", "step,loss\n0,1\n")
    call("logs")
    assert (in_tmp / "logs" / "net" / "version_0" / "curves.html").exists()


def test_logs_at_a_url_are_read(in_tmp):
    import fsspec

    files = fsspec.filesystem("memory")
    files.pipe_file("/plots/version_0/metrics.csv", b"step,loss\n0,1\n1,0.5\n")
    try:
        call("memory://plots/version_0")
        assert lines_of("curves.html")["loss"]["y"] == [1, 0.5]
    finally:
        files.rm("/plots", recursive=True)


def test_of_both_logs_the_csv_counts_and_events_add_what_only_they_have(tmp_path):
    writer = SummaryWriter(str(tmp_path / "run"))
    for step in range(3):
        writer.add_scalar("loss", -1.0, step)
        writer.add_scalar("extra", step, step)
    writer.add_scalars("both", {"one": 1.0, "two": 2.0}, 0)
    writer.close()
    csv_run(tmp_path / "run", "step,loss\n0,0.5\n1,0.25\n")
    call(tmp_path / "run")
    lines = lines_of(tmp_path / "run" / "curves.html")
    assert lines["loss"]["y"] == [0.5, 0.25]
    assert lines["extra"]["y"] == [0, 1, 2]
    assert lines["both/one"]["y"] == [1]
    assert lines["both/two"]["y"] == [2]


def test_tensorboards_new_scalars_are_read_and_its_place_holder_is_not(tmp_path):
    writer = SummaryWriter(str(tmp_path / "run"))
    writer.add_scalar("loss", 0.25, 7, new_style=True)
    writer.add_scalar("hp_metric", -1, 0)
    writer.add_text("note", "hello", 0)
    writer.add_histogram("weights", torch.arange(4.0), 0)
    writer.close()
    call(tmp_path / "run")
    lines = lines_of(tmp_path / "run" / "curves.html")
    assert list(lines) == ["loss"]
    assert lines["loss"]["y"] == [0.25]


def test_of_a_step_that_was_logged_twice_the_later_value_counts(tmp_path, capsys):
    for number, steps in enumerate([(0, 10, 20), (10, 30)]):
        writer = SummaryWriter(str(tmp_path / "run"), filename_suffix=f".{number}")
        for step in steps:
            writer.add_scalar("loss", number + 1, step)
        writer.close()
    first, second = sorted((tmp_path / "run").iterdir(), key=lambda path: path.name[-1])
    first.rename(first.with_name("events.out.tfevents.1.first"))
    second.rename(second.with_name("events.out.tfevents.2.second"))
    call(tmp_path / "run")
    line = lines_of(tmp_path / "run" / "curves.html")["loss"]
    assert (line["x"], line["y"]) == ([0, 10, 20, 30], [1, 2, 1, 2])
    assert "tfevents.2.second: the steps go back, first in 'loss' from 20 to 10" in capsys.readouterr().err


# errors in the arguments


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["simpel"], r"'simpel' does not exist. Did you mean 'simple'\?\n.*\n.*Fix: give the folder of a run"),
        (["absent/version_0"], r"'absent/version_0' does not exist\.\n"),
        (["simple/version_3"], r"'simple/version_3' does not exist\."),
        (["notes.txt"], r"'notes.txt' is not a log of a run\."),
        (["nothing"], r"'nothing' has no logs\.\n.*metrics.csv"),
        (["simple", "--smooth", "1"], r"--smooth is 1\."),
        (["simple", "--smooth", "nan"], r"--smooth is nan\."),
        (["simple", "--output", "notes.txt"], r"--output is 'notes.txt'\."),
        (["simple", "--format", ","], r"--format is empty"),
        (["empty.csv"], r"No number was logged in 'empty.csv'\.\n  empty.csv is empty\."),
        (["header.csv"], r"No number was logged in 'header.csv'\.\n  Expected: logs with at least one metric"),
        (["other.csv"], r"'other.csv' has no column 'step'; its first line has 'epoch', 'loss'"),
    ],
)
def test_what_cannot_be_drawn_is_said(simple, in_tmp, arguments, what):
    (in_tmp / "notes.txt").write_text("hello")
    (in_tmp / "nothing").mkdir()
    (in_tmp / "empty.csv").write_text("")
    (in_tmp / "header.csv").write_text("step,loss\n")
    (in_tmp / "other.csv").write_text("epoch,loss\n1,2\n")
    with pytest.raises(MisconfigurationException, match=what):
        call(*arguments)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--metrics", "train_loss,val_los"], "Unknown metric 'val_los'. Did you mean 'val_loss'?"),
        (["--format", "htm"], "Unknown format 'htm'. Did you mean 'html'?"),
    ],
)
def test_a_misspelt_name_gets_the_nearest(simple, arguments, what):
    with pytest.raises(UnknownNameError, match=re.escape(what)):
        call(simple, *arguments)


def test_a_run_without_numbers_is_left_out_beside_others(simple, in_tmp, capsys):
    csv_run(in_tmp / "empty", "step,loss\n")
    call("simple", "empty")
    assert set(lines_of("simple/curves.html")) == {"train_loss", "val_loss"}
    assert "Warning: empty: no number was logged in 'empty'; it is not drawn." in capsys.readouterr().err


def test_broken_lines_are_left_out_with_their_numbers(tmp_path, capsys):
    text = 'step,loss,acc\n0,1,0.5\n1,oops,0.6\n2,3\n3,"4,5\n,1,1\n5,0.5,0.7\n' + "x\n" * 9 + "7,0.2"
    call(csv_run(tmp_path / "run", text))
    lines = lines_of(tmp_path / "run" / "curves.html")
    assert lines["loss"]["x"] == [0, 5]
    assert lines["acc"]["y"] == [0.5, 0.6, 0.7]
    said = capsys.readouterr().err
    assert "the last line is incomplete and is left out: '7,0.2'" in said
    assert "line 3: 'oops' in column 'loss' is not a number, left out." in said
    assert "line 4: left out, it has 2 values for 3 columns." in said
    assert "line 5: left out, it has 2 values for 3 columns." in said
    assert "line 6: left out, it has no step." in said
    assert "8 more like these." in said


def events(folder):
    writer = SummaryWriter(str(folder))
    for step in range(50):
        writer.add_scalar("loss", 1 / (step + 1), step)
    writer.close()
    (path,) = folder.iterdir()
    return path, path.read_bytes()


def test_of_a_truncated_event_file_what_is_whole_is_drawn(tmp_path, capsys):
    path, content = events(tmp_path / "run")
    for cut in (1, 6, 30):
        path.write_bytes(content[: len(content) - cut])
        call(tmp_path / "run")
        assert lines_of(tmp_path / "run" / "curves.html")["loss"]["x"] == list(range(49))
        assert "ends within an event, at byte" in capsys.readouterr().err


def test_a_damaged_event_is_left_out(tmp_path, capsys):
    path, content = events(tmp_path / "run")
    at = content.index(b"loss", 500)
    path.write_bytes(content[:at] + b"lost" + content[at + 4 :])
    call(tmp_path / "run")
    line = lines_of(tmp_path / "run" / "curves.html")["loss"]
    assert len(line["x"]) == 49
    assert "1 event is damaged and left out." in capsys.readouterr().err
    start = record_of(content, at)
    path.write_bytes(content[:start] + b"\xff" + content[start + 1 :])
    call(tmp_path / "run")
    assert len(lines_of(tmp_path / "run" / "curves.html")["loss"]["x"]) < 50
    assert f"damaged at byte {start}; the rest is not read." in capsys.readouterr().err


def record_of(content, inside):
    """Return the start of the record that contains byte `inside`."""
    at = 0
    while True:
        following = at + 16 + struct.unpack("<Q", content[at : at + 8])[0]
        if following > inside:
            return at
        at = following


# Names and panels


@pytest.mark.parametrize(
    ("name", "panel"),
    [
        ("train_loss", "loss"),
        ("val_loss_epoch", "loss"),
        ("valid/loss", "loss"),
        ("loss/train", "loss"),
        ("my-val_loss", "my_loss"),
        ("val_acc/dataloader_idx_1", "acc"),
        ("train", "train"),
        ("value", "value"),
        ("lr-SGD", "learning rate"),
        ("lr-Adam-1/pg2", "learning rate"),
        ("lr-Adam-momentum", "lr-Adam-momentum"),
        ("clr", "clr"),
    ],
)
def test_training_and_validation_share_a_panel(name, panel):
    assert panels.family(name) == panel


def test_loaders_with_names_share_the_panel_of_their_metric():
    names = ["train_loss", "val_loss/clean", "val_loss_epoch/noisy", "val_acc/clean", "val/f1", "val_iou/car"]
    run = curves.Run("run", "run", {name: {1: 0.5, 2: 0.4} for name in names})
    shown, _ = panels.make_panels([run], names, "step")
    assert {title: [line.name for line in lines] for title, lines in shown.items()} == {
        "loss": ["train_loss", "val_loss/clean", "val_loss_epoch/noisy"],
        "acc": ["val_acc/clean"], "f1": ["val/f1"], "iou/car": ["val_iou/car"],
    }  # fmt: skip
    assert panels.chosen([run], ["acc"]) == ["val_acc/clean"]


def test_metrics_are_chosen_by_name_pattern_or_panel(tmp_path):
    run = curves.read_run(str(csv_run(tmp_path / "r", "step,a_step,a_epoch,val_b,train_b,c\n0,1,1,1,1,1\n")), "r")
    assert panels.chosen([run], ["a"]) == ["a_step", "a_epoch"]
    assert panels.chosen([run], ["val_*", "c"]) == ["val_b", "c"]
    assert panels.chosen([run], ["b"]) == ["val_b", "train_b"]
    assert panels.chosen([run], []) == ["a_step", "a_epoch", "val_b", "train_b", "c"]


def test_the_best_is_told_only_where_the_name_says_which_end_is_good(tmp_path):
    text = "step,loss,val_accuracy,height,lr-SGD\n0,2,0.1,1,1\n1,1,0.9,2,1\n2,nan,0.5,3,1\n"
    run = curves.read_run(str(csv_run(tmp_path / "r", text)), "r")
    rows = {row.name: row for row in panels.summary([run], list(run.curves))}
    assert (rows["loss"].best, rows["loss"].not_finite) == ((1, 1.0), [2])
    assert rows["val_accuracy"].best == (1, 0.9)
    assert rows["height"].best is rows["lr-SGD"].best is None
    assert rows["loss"].cells() == ["r", "loss", "nan", "1", "1"]


# Numbers


def test_smoothing_is_a_weighted_mean_that_continues_after_a_gap():
    smooth = panels.smoothed([4.0, 0.0, math.nan, 2.0], 0.5)
    assert smooth[:2] == [4.0, pytest.approx((4 * 0.5 + 0) / 1.5)]
    assert math.isnan(smooth[2])
    assert smooth[3] == pytest.approx((4 * 0.25 + 0 + 2) / 1.75)


def test_only_values_per_step_are_smoothed_and_learning_rates_are_not(tmp_path):
    rows = "".join(f"{step},{step % 2},{step},1\n" for step in range(8))
    call(csv_run(tmp_path / "run", "step,train_loss,val_loss_epoch,lr-SGD\n" + rows), "--smooth", "0.5")
    lines = lines_of(tmp_path / "run" / "curves.html")
    assert set(lines) == {"train_loss", "train_loss (smoothed)", "val_loss_epoch", "lr-SGD"}
    assert lines["train_loss (smoothed)"]["y"] == pytest.approx(panels.smoothed(lines["train_loss"]["y"], 0.5))
    assert lines["train_loss"]["opacity"] < lines["train_loss (smoothed)"]["opacity"] == 1


def test_values_that_are_not_finite_are_marked_gaps(tmp_path, capsys):
    folder = csv_run(tmp_path / "run", "step,loss\n0,1\n1,nan\n2,0.5\n3,-inf\n4,1e308\n5,0.25\n")
    call(folder, "--format", "png,html")
    lines = lines_of(folder / "curves.html")
    assert lines["loss"]["y"] == [1, None, 0.5, None, None, 0.25]
    assert lines["loss"]["mode"] == "lines+markers", "0.5 stands alone between two gaps"
    marks = lines["not finite"]
    assert (marks["x"], marks["y"], marks["mode"]) == ([1, 3, 4], [0.25] * 3, "markers")
    note = "run: loss is not finite (NaN or infinite) at 3 of 6 steps, first at step 1; its line has gaps there."
    assert f"Warning: {note}" in capsys.readouterr().err
    assert note in (folder / "curves.html").read_text(encoding="utf-8")


def test_every_value_of_a_long_run_is_drawn(tmp_path):
    rows = "".join(f"{step},{step % 97}\n" for step in range(20_000))
    call(csv_run(tmp_path / "run", "step,loss\n" + rows))
    assert lines_of(tmp_path / "run" / "curves.html")["loss"]["y"] == [step % 97 for step in range(20_000)]


# Files


@pytest.mark.parametrize("name", ["curves.png", "curves.html"])
def test_only_our_own_files_are_replaced(simple, name):
    (simple / name).write_text("mine")
    with pytest.raises(MisconfigurationException, match=r"exists, and was not written by `lightlib plot`"):
        call(simple, "--format", "png,html")
    assert (simple / name).read_text() == "mine"
    assert sorted(path.name for path in simple.iterdir()) == sorted([name, "metrics.csv"])


def test_a_folder_that_cannot_be_written_is_said(simple, in_tmp):
    (in_tmp / "file").write_text("")
    with pytest.raises(LightlibError, match=r"'file/below/curves.html' cannot be written: .*\n.*\n.*--output DIR"):
        call("simple", "--output", "file/below")


@pytest.mark.parametrize(
    ("kind", "package"), [("png", "matplotlib"), ("html", "plotly"), ("png,html", "matplotlib"), ("png,html", "plotly")]
)
def test_a_missing_package_is_named_before_anything_is_written(simple, monkeypatch, kind, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MisconfigurationException) as caught:
        call(simple, "--format", kind)
    lines = str(caught.value).splitlines()
    assert re.match(rf"`--format (png|html)` needs the package '{package}', which cannot be imported: ", lines[0])
    assert lines[1:] == [
        f"  Expected: '{package}' installed in this environment.",
        "  Fix: pip install matplotlib plotly",
    ]
    assert [path.name for path in simple.iterdir()] == ["metrics.csv"]


@pytest.mark.processes
def test_only_the_packages_in_use_are_imported(simple):
    code = (
        "import argparse, sys; from lightlib.command.plot import plot; p = argparse.ArgumentParser();"
        "plot.add_arguments(p); assert not {'plotly', 'matplotlib'} & set(sys.modules);"
        "plot.run(p.parse_args([sys.argv[1], '--format', 'html']));"
        "assert not {'torch', 'matplotlib'} & set(sys.modules)"
    )
    done = programs.interpreter("-c", code, simple)
    assert (done.returncode, done.stderr) == (0, "")


# The page

EVIL = "</script><script>alert(1)</script>\"'&<img src=x onerror=alert(2)>\x1b[31m$\\frac{"


@pytest.fixture
def evil(tmp_path):
    name = EVIL.replace('"', '""')
    return csv_run(tmp_path / "<b>run</b>", f'step,"{name}",_hidden\n0,1,1\n1,nan,2\n')


def test_names_from_logs_are_only_text(evil, capsys):
    call(evil, "--format", "png,html")
    text = (evil / "curves.html").read_text(encoding="utf-8")
    tags = Tags(text)
    assert set(tags.tags) == {
        "html", "head", "meta", "title", "style", "body", "div", "script", "table", "tr", "td", "p",
    }  # fmt: skip
    assert not [name for name, _ in tags.attributes if name.startswith("on")]
    assert EVIL in tags.texts, "it stands in the table as it is"
    escaped = html.escape(EVIL, quote=False)  # plotly reads a part of HTML in names
    traces, layout = traces_of(evil / "curves.html")
    assert traces[0]["name"] == layout["annotations"][0]["text"] == escaped
    assert layout["title"]["text"] == "Learning curves of b&gt;"
    assert "\x1b" not in "".join(capsys.readouterr())


def test_the_page_needs_no_network_and_its_policy_allows_its_own_scripts_only(simple):
    call(simple)
    text = (simple / "curves.html").read_text(encoding="utf-8")
    tags = Tags(text)
    assert not [value for name, value in tags.attributes if name in ("src", "href")]
    policy = dict(tags.attributes)["content"]
    assert policy.startswith("default-src 'none'; ")
    assert not re.search(r"https?:|\*|unsafe-eval|script-src[^;]*unsafe", policy)
    hashes = [hashlib.sha256(script.encode()).digest() for script in tags.scripts]
    assert re.findall(r"'sha256-(.*?)'", policy) == [base64.b64encode(digest).decode() for digest in hashes]
    assert plotly.offline.get_plotlyjs() in text, "plotly's script is part of the page"


def test_one_button_makes_all_panels_logarithmic(tmp_path):
    call(csv_run(tmp_path / "run", "step,a,b,c\n0,1,1,1\n"))
    _, layout = traces_of(tmp_path / "run" / "curves.html")
    (menu,) = layout["updatemenus"]
    assert [button["label"] for button in menu["buttons"]] == ["Linear", "Logarithmic"]
    assert menu["buttons"][1]["args"] == [dict.fromkeys(["yaxis.type", "yaxis2.type", "yaxis3.type"], "log")]
    assert [layout[axis]["matches"] for axis in ("xaxis", "xaxis2", "xaxis3")] == ["x"] * 3


def test_runs_of_an_experiment_share_panels_and_are_told_apart_by_colour(tmp_path):
    for name, values in {"one": "8,2", "two": "4,1"}.items():
        rows = "".join(f"{step},{value},{value}\n" for step, value in enumerate(values.split(",")))
        csv_run(tmp_path / name, "step,train_loss_epoch,val_loss\n" + rows)
    call(tmp_path, "--format", "png,html", "--output", tmp_path / "pictures")
    lines = lines_of(tmp_path / "pictures" / "curves.html")
    assert [lines[f"{run} · val_loss"]["y"] for run in ("one", "two")] == [[8, 2], [4, 1]]
    assert lines["one · val_loss"]["legendgrouptitle"]["text"] == lines["one · val_loss"]["legendgroup"] == "one"
    style = {name: (line["line"]["color"], line["line"]["dash"]) for name, line in lines.items()}
    assert style["one · val_loss"][0] == style["one · train_loss_epoch"][0] != style["two · val_loss"][0]
    assert style["one · val_loss"][1] == style["two · val_loss"][1] == "solid"
    assert style["one · train_loss_epoch"][1] == "dash"
    assert (tmp_path / "pictures" / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_picture_has_the_values_of_the_log(simple, monkeypatch):
    from matplotlib.figure import Figure

    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    call(simple, "--format", "png")
    (axes,) = figures[0].axes
    drawn = [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines]
    assert drawn == [([0, 1, 2, 3], [2.0, 1.0, 0.5, 0.75]), ([1, 3], [1.5, 1.25])]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["train_loss", "val_loss"]


def test_a_picture_of_many_panels_says_what_it_leaves_out(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(picture, "MOST_PANELS", 2)
    call(csv_run(tmp_path / "run", "step,a,b,c\n0,1,1,1\n"), "--format", "png")
    assert "The PNG has the first 2 of 3 panels; choose with --metrics." in capsys.readouterr().err


def test_pictures_do_not_depend_on_the_users_settings_of_matplotlib(simple):
    import matplotlib as mpl

    with mpl.rc_context({"lines.linewidth": 20, "font.size": 40}):
        call(simple, "--format", "png")
        assert mpl.rcParams["font.size"] == 40
    first = (simple / "curves.png").read_bytes()
    call(simple, "--format", "png")
    assert (simple / "curves.png").read_bytes() == first


def test_pages_are_known_by_their_mark(simple):
    call(simple)
    assert page.MARK in (simple / "curves.html").read_text()


@pytest.mark.processes
def test_no_other_package_is_needed(tmp_path):
    csv_run(tmp_path / "run", "step,loss\n0,1\n")
    code = "import sys; sys.modules['optuna'] = None; from lightlib.command.main import main; sys.exit(main())"
    words = [sys.executable, "-c", code, "plot", "run"]
    subprocess.run(words, cwd=tmp_path, env=programs.environment(), check=True)
    assert (tmp_path / "run" / "curves.png").exists()
