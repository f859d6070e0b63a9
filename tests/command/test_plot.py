"""`lightlib plot`: what it reads, what it refuses, and what is drawn."""

from __future__ import annotations

import argparse
import html.parser
import json
import math
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys

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


def call(*arguments):
    """Run `lightlib plot`; without --format only HTML, which is quick."""
    parser = argparse.ArgumentParser()
    plot.add_arguments(parser)
    arguments = [str(argument) for argument in arguments]
    if "--format" not in arguments:
        arguments += ["--format", "html"]
    return plot.run(parser.parse_args(arguments))


def data_of(path):
    """Return what a page draws."""
    text = pathlib.Path(path).read_text(encoding="utf-8")
    return json.loads(re.search(r'id="data">(.*?)</script>', text).group(1))


def lines_of(path):
    drawn = data_of(path)
    return {(drawn["runs"][line["run"]], line["name"]): line for panel in drawn["panels"] for line in panel["lines"]}


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
    """A run that was stopped after two epochs and went on to four, in both kinds of logs."""
    folder = tmp_path_factory.mktemp("runs")
    fit(folder, 2)
    fit(folder, 4, ckpt_path="last")
    return folder


def test_a_run_is_drawn_from_either_log_alike(trained, tmp_path, capsys):
    events = [one for one in os.listdir(trained / "tensorboard" / "version_0") if "tfevents" in one]
    assert len(events) == 2, "the run went on in a second file"
    for kind in ("csv", "tensorboard"):
        assert call(trained / kind / "version_0", "--output", tmp_path / kind) == 0
    one, other = data_of(tmp_path / "csv" / "curves.html"), data_of(tmp_path / "tensorboard" / "curves.html")
    assert [panel["title"] for panel in one["panels"]] == ["loss", "learning rate"]
    assert [panel["title"] for panel in other["panels"]] == ["loss", "learning rate"]
    by_name = {line["name"]: line for line in one["panels"][0]["lines"]}
    assert by_name["train_loss_step"]["x"] == list(range(1, 17))
    assert by_name["train_loss_epoch"]["x"] == by_name["val_loss"]["x"] == [4, 8, 12, 16]
    assert [by_name[name]["perStep"] for name in ("train_loss_step", "train_loss_epoch", "val_loss")] == [1, 0, 0]
    assert [by_name[name]["stage"] for name in ("train_loss_step", "train_loss_epoch", "val_loss")] == [0, 0, 1]
    for line in other["panels"][0]["lines"]:
        assert line["x"] == by_name[line["name"]]["x"]
        assert line["y"] == pytest.approx(by_name[line["name"]]["y"], rel=1e-6)
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
    assert data_of(tmp_path / "curves.html")["x"] == "epoch"
    assert lines["version_0", "val_loss"]["x"] == [1, 2, 3, 4]
    assert lines["version_0", "train_loss_step"]["x"] == [step / 4 for step in range(1, 17)]


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
    assert data_of(tmp_path / "curves.html")["x"] == "seconds"
    assert lines_of(tmp_path / "curves.html")["run", "loss"]["x"] == [1, 11, 21, 22, 32]


def test_an_unfinished_epoch_is_as_long_as_the_one_before_it(tmp_path):
    rows = "".join(f"{step},{(step - 1) // 10},1\n" for step in range(1, 26))
    call(csv_run(tmp_path / "run", "step,epoch,loss\n" + rows), "--x", "epoch")
    assert lines_of(tmp_path / "run" / "curves.html")["run", "loss"]["x"] == [step / 10 for step in range(1, 26)]


def test_time_does_not_run_backwards_where_a_run_went_back_to_an_earlier_step():
    run = curves.Run(
        "run", "run", {"loss": curves.Curve({0: 1.0, 10: 1.0, 20: 1.0})}, seconds={0: 1.0, 10: 9.0, 20: 3.0}
    )
    (panel,), _ = panels.make_panels([run], ["loss"], "time")
    assert [x for x, _ in panel.lines[0].points] == [1.0, 9.0, 9.0]


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
    assert data_of("curves.html")["runs"] == ["version_0", "version_2", "version_10"]
    assert "3 runs in lightning_logs: version_0, version_2, version_10\n" in capsys.readouterr().out


def test_several_runs_are_told_apart_by_the_shortest_names(in_tmp):
    for name in ("a", "b"):
        csv_run(in_tmp / name / "version_0", "step,loss\n0,1\n")
    call("a", "b/version_0/metrics.csv", "a/version_0")  # one of them twice
    assert data_of("curves.html")["runs"] == ["a/version_0", "b/version_0"]


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
        assert lines_of("curves.html")["version_0", "loss"]["y"] == [1, 0.5]
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
    assert lines["run", "loss"]["y"] == [0.5, 0.25]
    assert lines["run", "extra"]["y"] == [0, 1, 2]
    assert lines["run", "both/one"]["y"] == [1]
    assert lines["run", "both/two"]["y"] == [2]


def test_tensorboards_new_scalars_are_read_and_its_place_holder_is_not(tmp_path):
    writer = SummaryWriter(str(tmp_path / "run"))
    writer.add_scalar("loss", 0.25, 7, new_style=True)
    writer.add_scalar("hp_metric", -1, 0)
    writer.add_text("note", "hello", 0)
    writer.add_histogram("weights", torch.arange(4.0), 0)
    writer.close()
    call(tmp_path / "run")
    lines = lines_of(tmp_path / "run" / "curves.html")
    assert list(lines) == [("run", "loss")]
    assert lines["run", "loss"]["y"] == [0.25]


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
    line = lines_of(tmp_path / "run" / "curves.html")["run", "loss"]
    assert (line["x"], line["y"]) == ([0, 10, 20, 30], [1, 2, 1, 2])
    assert "tfevents.2.second: the steps go back, first in 'loss' from 20 to 10" in capsys.readouterr().err


# What is wrong with what was given


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["simpel"], r"'simpel' does not exist. Did you mean 'simple'\?\n.*Expected: the folder of a run"),
        (["elsewhere/version_0"], r"'elsewhere/version_0' does not exist\.\n"),
        (["simple/version_3"], r"'simple/version_3' does not exist\."),
        (["notes.txt"], r"'notes.txt' is no log of a run\."),
        (["nothing"], r"There are no logs in 'nothing'\.\n.*metrics.csv"),
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
        (["--x", "tim"], "Unknown x-axis 'tim'. Did you mean 'time'?"),
        (["--format", "htm"], "Unknown format 'htm'. Did you mean 'html'?"),
    ],
)
def test_a_misspelt_name_gets_the_nearest(simple, arguments, what):
    with pytest.raises(UnknownNameError, match=re.escape(what)):
        call(simple, *arguments)


def test_a_run_without_numbers_is_left_out_beside_others(simple, in_tmp, capsys):
    csv_run(in_tmp / "empty", "step,loss\n")
    call("simple", "empty")
    assert data_of("simple/curves.html")["runs"] == ["simple"]
    assert "Warning: empty: no number was logged in 'empty'; it is not drawn." in capsys.readouterr().err


def test_broken_lines_are_left_out_with_their_numbers(tmp_path, capsys):
    text = 'step,loss,acc\n0,1,0.5\n1,oops,0.6\n2,3\n3,"4,5\n,1,1\n5,0.5,0.7\n' + "x\n" * 9 + "7,0.2"
    call(csv_run(tmp_path / "run", text))
    lines = lines_of(tmp_path / "run" / "curves.html")
    assert lines["run", "loss"]["x"] == [0, 5]
    assert lines["run", "acc"]["y"] == [0.5, 0.6, 0.7]
    said = capsys.readouterr().err
    assert "the last line was not written to its end and is left out: '7,0.2'" in said
    assert "line 3: 'oops' in column 'loss' is no number, left out." in said
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
        assert lines_of(tmp_path / "run" / "curves.html")["run", "loss"]["x"] == list(range(49))
        assert "ends within an event, at byte" in capsys.readouterr().err


def test_a_damaged_event_is_left_out(tmp_path, capsys):
    path, content = events(tmp_path / "run")
    at = content.index(b"loss", 500)
    path.write_bytes(content[:at] + b"lost" + content[at + 4 :])
    call(tmp_path / "run")
    line = lines_of(tmp_path / "run" / "curves.html")["run", "loss"]
    assert len(line["x"]) == 49
    assert "1 event is damaged and left out." in capsys.readouterr().err
    start = record_of(content, at)
    path.write_bytes(content[:start] + b"\xff" + content[start + 1 :])
    call(tmp_path / "run")
    assert len(lines_of(tmp_path / "run" / "curves.html")["run", "loss"]["x"]) < 50
    assert f"damaged at byte {start}; what comes after it is not read." in capsys.readouterr().err


def record_of(content, inside):
    """Return where the record begins which byte `inside` is in."""
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
    assert (rows["loss"].best, rows["loss"].step, rows["loss"].not_finite) == (1.0, 1, 1)
    assert (rows["val_accuracy"].best, rows["val_accuracy"].step) == (0.9, 1)
    assert rows["height"].best is rows["lr-SGD"].best is None
    assert math.isnan(rows["loss"].last)


# Numbers


def test_thinning_keeps_every_extreme():
    points = [(float(x), math.sin(x / 50)) for x in range(100_000)]
    points[43_210] = (43_210.0, 99.0)
    points[77_777] = (77_777.0, -99.0)
    points[5] = (5.0, math.nan)
    thin = panels.thinned(points, 1000)
    assert len(thin) == 1000
    assert sum(point.count for point in thin) == 99_999
    assert max(point.high for point in thin) == 99.0
    assert min(point.low for point in thin) == -99.0
    assert [number for number, point in enumerate(thin) if point.broken] == [0]
    assert panels.thinned(points[:3], 3)[0] == panels.Point(0.0, 0.0, 0.0, 0.0, 1, broken=False)


def test_smoothing_is_a_weighted_mean_and_goes_on_after_a_gap():
    values = [4.0, 0.0, math.nan, 2.0]
    smooth = panels.smoothed(panels.thinned(list(enumerate(values)), 9), 0.5)
    assert smooth == [4.0, pytest.approx((4 * 0.5 + 0) / 1.5), None, pytest.approx((4 * 0.25 + 0 + 2) / 1.75)]


def test_what_is_not_finite_is_a_gap_and_is_said(tmp_path, capsys):
    folder = csv_run(tmp_path / "run", "step,loss\n0,1\n1,nan\n2,0.5\n3,-inf\n4,1e308\n5,0.25\n")
    call(folder, "--format", "png,html", "--smooth", "0.5")
    line = lines_of(folder / "curves.html")["run", "loss"]
    assert line["y"] == [1, None, 0.5, None, None, 0.25]
    assert line["broken"] == line["odd"] == [1, 3, 4]
    said = "run: loss is not finite (NaN or infinite) at 3 of 6 steps, first at step 1; there its line has a gap."
    assert f"Warning: {said}" in capsys.readouterr().err
    assert said in (folder / "curves.html").read_text()


def test_a_long_run_makes_a_small_page(tmp_path):
    rows = "".join(f"{step},{step % 97}\n" for step in range(20_000))
    call(csv_run(tmp_path / "run", "step,loss\n" + rows))
    line = lines_of(tmp_path / "run" / "curves.html")["run", "loss"]
    assert len(line["x"]) == 1000
    assert sum(line["count"]) == 20_000
    assert min(line["low"]) == 0
    assert max(line["high"]) == 96
    assert (tmp_path / "run" / "curves.html").stat().st_size < 100_000


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


def test_without_matplotlib_only_html_is_drawn_and_a_png_by_name_is_refused(simple, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    parser = argparse.ArgumentParser()
    plot.add_arguments(parser)
    assert plot.run(parser.parse_args([str(simple)])) == 0
    assert (simple / "curves.html").exists()
    assert not (simple / "curves.png").exists()
    said = capsys.readouterr().err
    assert "Warning: No PNG was drawn. A PNG needs the package 'matplotlib'" in said
    with pytest.raises(
        MisconfigurationException, match=r"(?s)needs the package 'matplotlib'.*pip install lightlib\[plot\]"
    ):
        call(simple, "--format", "png")


@pytest.mark.processes
def test_neither_torch_nor_matplotlib_is_imported_for_a_page(simple):
    code = (
        "import argparse, sys; from lightlib.command.plot import plot; p = argparse.ArgumentParser(); plot.add_arguments(p);"
        "plot.run(p.parse_args([sys.argv[1], '--format', 'html']));"
        "assert not {'torch', 'matplotlib.figure', 'numpy'} & set(sys.modules)"
    )
    done = programs.interpreter("-c", code, simple)
    assert (done.returncode, done.stderr) == (0, "")


# The page

EVIL = "</script><script>alert(1)</script>\"'&<img src=x onerror=alert(2)>\x1b[31m$\\frac{"


@pytest.fixture
def evil(tmp_path):
    name = EVIL.replace('"', '""')
    return csv_run(tmp_path / "<b>run</b>", f'step,"{name}",_hidden\n0,1,1\n1,nan,2\n')


class Tags(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.texts, self.attributes = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.texts.append(data)


def test_names_from_logs_are_only_text(evil, capsys):
    call(evil, "--format", "png,html")
    text = (evil / "curves.html").read_text(encoding="utf-8")
    tags = Tags()
    tags.feed(text)
    assert tags.tags.count("script") == 2
    assert "img" not in tags.tags
    assert "b" not in tags.tags
    assert not [name for name, _ in tags.attributes if name.startswith("on")]
    assert EVIL in tags.texts, "it stands in the table as it is"
    assert data_of(evil / "curves.html")["panels"][0]["lines"][0]["name"] == EVIL
    assert "\x1b" not in "".join(capsys.readouterr())


def test_the_page_needs_nothing_else_and_runs_no_other_script(simple):
    call(simple)
    text = (simple / "curves.html").read_text(encoding="utf-8")
    urls = set(re.findall(r"https?://[^\s\"'<]+", text))
    assert urls == {"http://www.w3.org/2000/svg"}, "the name of SVG, which nothing is loaded from"
    assert not re.search(r"<link|\ssrc=|@import|url\(|fetch\(|innerHTML|eval\(", text)
    assert "default-src 'none'" in text
    assert "script-src 'sha256-" in text


# The page's script in Node, with as much of a browser as it uses.
BROWSER = """
class Node_ {
  constructor(name) { Object.assign(this, { name, attributes: {}, children: [], listeners: {}, style: {}, text: "" }); }
  setAttribute(key, value) { this.attributes[key] = String(value); }
  append(child) { this.children.push(child); child.parentNode = this; }
  replaceChildren() { this.children = []; }
  addEventListener(kind, listener) { this.listeners[kind] = listener; }
  set textContent(text) { this.text = text; }
  get textContent() { return this.text + this.children.map((child) => child.textContent).join(""); }
  getBoundingClientRect() { return { left: 0, top: 0, width: 560, height: 300 }; }
  all(name) { return [...(this.name === name ? [this] : []), ...this.children.flatMap((child) => child.all(name))]; }
}
const known = {};
for (const id of ["data", "runs", "log", "smooth", "weight", "panels"]) known[id] = new Node_(id);
known.data.text = require("fs").readFileSync(0, "utf-8");
globalThis.document = {
  getElementById: (id) => known[id],
  createElement: (name) => new Node_(name),
  createElementNS: (_, name) => new Node_(name),
};
const figures = () => known.panels.children.map((figure) => ({
  text: figure.all("text").map((one) => one.text),
  paths: figure.children[1].all("path").map((one) => one.attributes.d),
  classes: figure.children[1].all("g").map((one) => one.attributes.class),
  caption: figure.children[0].textContent,
  values: figure.children[2].textContent,
}));
"""
ACTS = """
const found = { first: figures() };
const svg = known.panels.children[0].children[1];
svg.listeners.pointermove({ clientX: 300 });
found.hover = figures();
known.log.listeners.change({ target: { checked: true } });
found.log = figures();
known.smooth.listeners.input({ target: { value: "0.5" } });
found.smooth = figures();
const box = known.runs.children[0].children[0];
box.checked = false;
box.listeners.change();
found.hidden = figures();
console.log(JSON.stringify(found));
"""


@pytest.fixture(scope="module")
def node():
    found = shutil.which("node")
    if found is None:
        pytest.skip("needs node")
    return found


def played(node, path):
    """Return what the page shows at first, and after each of the acts."""
    text = path.read_text(encoding="utf-8")
    script = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)[-1]
    code = f"{BROWSER}\n{script.replace(chr(34) + 'use strict' + chr(34) + ';', '')}\n{ACTS}"
    data = re.search(r'id="data">(.*?)</script>', text).group(1)
    done = subprocess.run([node, "-e", code], input=data, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.processes
def test_the_script_draws_hovers_scales_smooths_and_hides(node, tmp_path):
    csv_run(tmp_path / "one", "step,train_loss,val_loss\n0,8,\n1,nan,\n2,2,1.5\n3,0,\n4,4,1.25\n")
    csv_run(tmp_path / "two", "step,train_loss\n" + "".join(f"{step},{step + 1}\n" for step in range(5)))
    call(tmp_path / "one", tmp_path / "two", "--output", tmp_path)
    found = played(node, tmp_path / "curves.html")
    (first,) = found["first"]
    assert first["caption"] == "losstrain_lossval_loss▲ not finite"
    assert first["text"] == ["0", "2", "4", "6", "8", "0", "1", "2", "3", "4", "step"]
    assert "c0" in first["classes"]
    assert "c1" in first["classes"]
    assert first["paths"][0].count("M") == 2, "a gap at the NaN"
    (hover,) = found["hover"]
    assert hover["values"] == "step 2● one · train_loss: 2● one · val_loss: 1.5● two · train_loss: 3"
    (log,) = found["log"]
    assert "at or below 0, not drawn: 1" in log["caption"]
    assert log["paths"][0].count("M") == 3, "and one at the zero"
    assert len(found["smooth"][0]["paths"]) == len(log["paths"]) + 2, "values per step get a smooth line each"
    (hidden,) = found["hidden"]
    assert len(hidden["paths"]) == 2
    assert "c0" not in hidden["classes"]


@pytest.mark.processes
def test_the_script_draws_large_steps_and_close_values(node, tmp_path):
    rows = "1000000,1.00001,-3\n1000100,1.00002,-1\n1000200,1.00005,-2\n"
    call(csv_run(tmp_path / "run", "step,a,b\n" + rows))
    found = played(node, tmp_path / "run" / "curves.html")
    ticks = found["first"][0]["text"]
    assert ticks[:5] == ["1.00001", "1.00002", "1.00003", "1.00004", "1.00005"]
    assert ticks[5:] == ["1000000", "1000050", "1000100", "1000150", "1000200", "step"]
    assert found["log"][1]["text"] == ["nothing above 0 to draw"]


@pytest.mark.processes
def test_the_script_shows_names_as_text(node, evil):
    call(evil)
    found = played(node, evil / "curves.html")
    assert EVIL in found["first"][0]["caption"]


def test_a_picture_of_many_panels_says_what_it_leaves_out(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(picture, "MOST_PANELS", 2)
    call(csv_run(tmp_path / "run", "step,a,b,c\n0,1,1,1\n"), "--format", "png")
    assert "The PNG has the first 2 of 3 panels; --metrics chooses others." in capsys.readouterr().err


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
