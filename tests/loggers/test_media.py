"""Media of a run, read back from the files of each logger."""

from __future__ import annotations

import io
import json
import wave
from pathlib import Path

import numpy
import PIL.Image
import pytest
import torch
from matplotlib.figure import Figure as Plot
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lightlib.core.trainer import Trainer
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.loggers import CometLogger, CSVLogger, DummyLogger, JSONLLogger, Logger, TensorBoardLogger
from lightlib.loggers.media import Audio, Figure, Histogram, Image, Table, Text
from lightlib.report import LightlibWarning, rank_zero_only
from tests.processes.ranks import ranks
from tests.runs.plain import QUIET, Net, loader, with_methods

PIXELS = torch.arange(60, dtype=torch.uint8).reshape(3, 4, 5)


def items():
    return {
        "val/image": Image(PIXELS, caption="first"),
        "val/plot": Figure(Plot(figsize=(1, 1), dpi=50)),
        "weights": Histogram([0.0, 1.0, 1.0, 3.0], bins=3),
        "note": Text("a *text*"),
        "scores": Table(["class", "recall"], [["cat", 0.5]]),
        "sound": Audio(torch.tensor([0.0, 0.5]), 8000),
    }


def shows(*names):
    """A module that logs these items, by default all of them, at the end of each epoch."""

    def on_train_epoch_end(self):
        for name in names or items():
            self.trainer.log_media(name, items()[name])

    return with_methods(Net, on_train_epoch_end)


def pixels_of(png):
    return torch.from_numpy(numpy.array(PIL.Image.open(io.BytesIO(png)))).permute(2, 0, 1)


def fit(*loggers, module=None, **settings):
    Trainer(**{**QUIET, "logger": loggers}, **{"max_epochs": 2, **settings}).fit(module or shows(), loader(8))


def test_in_event_files(tmp_path):
    logger = TensorBoardLogger(tmp_path, default_hp_metric=False)
    fit(logger)
    events = EventAccumulator(logger.log_dir, size_guidance={"images": 0, "tensors": 0, "audio": 0, "histograms": 0})
    events.Reload()
    first, second = events.Images("val/image")
    assert ((first.step, second.step), (first.width, first.height)) == ((2, 4), (5, 4))
    assert torch.equal(pixels_of(second.encoded_image_string), PIXELS)
    plot = events.Images("val/plot")[0]
    assert (plot.width, plot.height) == (50, 50)
    histogram = events.Histograms("weights")[0].histogram_value
    assert (histogram.num, histogram.sum, histogram.min, histogram.max, histogram.sum_squares) == (4, 5, 0, 3, 11)
    assert (list(histogram.bucket)[-3:], list(histogram.bucket_limit)[-3:]) == ([1, 2, 1], [1, 2, 3])
    texts = {name: events.Tensors(f"{name}/text_summary")[0].tensor_proto.string_val[0] for name in ("note", "scores")}
    assert texts == {"note": b"a *text*", "scores": b"| class | recall |\n|---|---|\n| cat | 0.5 |"}
    audio = events.Audio("sound")[0]
    with wave.open(io.BytesIO(audio.encoded_audio_string)) as file:
        assert (file.getframerate(), file.getnframes(), audio.sample_rate) == (8000, 2, 8000)


@pytest.mark.parametrize("kind", [CSVLogger, JSONLLogger])
def test_as_files(tmp_path, kind):
    logger = kind(tmp_path)
    fit(logger)
    media = Path(logger.log_dir, "media")
    endings = {"val/image": "png", "val/plot": "png", "weights": "json", "note": "txt", "scores": "csv", "sound": "wav"}
    expected = sorted(f"{name}/{step:08d}.{ending}" for name, ending in endings.items() for step in (2, 4))
    assert sorted(path.relative_to(media).as_posix() for path in media.rglob("*.*")) == expected
    assert torch.equal(pixels_of((media / "val/image/00000004.png").read_bytes()), PIXELS)
    assert json.loads((media / "weights/00000002.json").read_text())["counts"] == [1, 2, 1]
    assert (media / "note/00000002.txt").read_text() == "a *text*"


def test_by_hand_the_step_is_the_latest(tmp_path):
    logger = CSVLogger(tmp_path)
    logger.log_media("a", Text("x"))
    logger.log_metrics({"loss": 1.0}, 7)
    logger.log_media("a", Text("y"))
    assert sorted(path.name for path in Path(logger.log_dir, "media", "a").iterdir()) == [
        "00000000.txt",
        "00000007.txt",
    ]
    with pytest.raises(MisconfigurationException, match="leads out of save_dir"):
        logger.log_media("../a", Text("x"))


def test_at_a_url(memory):
    logger = CSVLogger("memory://runs", name="a", version=0)
    logger.log_media("note", Text("x"), 3)
    assert memory.cat_file("/runs/a/version_0/media/note/00000003.txt") == b"x"


def test_a_kind_that_no_logger_records_is_reported_once(tmp_path):
    class Few(DummyLogger):
        media_kinds = (Text,)

        def log_media(self, name, media, step=None):
            notes.append((name, media.text, step))

    notes = []
    with pytest.warns(
        LightlibWarning, match=r"The Image 'val/image' is not recorded, nor is any other Image: Few cannot"
    ):
        fit(Few(), module=shows("val/image", "note"))
    assert notes == [("note", "a *text*", 2), ("note", "a *text*", 4)]


def test_a_logger_that_raises_does_not_end_the_run(tmp_path):
    class Broken(DummyLogger):
        def log_media(self, name, media, step=None):
            raise OSError("no space")

    logger = CSVLogger(tmp_path)
    with pytest.warns(LightlibWarning) as caught:
        fit(Broken(), logger)
    texts = [str(warning.message) for warning in caught]
    assert len(texts) == 2
    assert texts[0].startswith("Broken.log_media raised OSError: no space")
    assert texts[1].startswith("Broken.log_media failed 12 times")
    assert Path(logger.log_dir, "media", "note", "00000004.txt").exists()


def test_without_loggers_or_a_run_nothing_happens():
    trainer = Trainer(**QUIET, max_epochs=1)
    trainer.log_media("note", Text("x"))
    trainer.fit(shows(), loader(8))
    Trainer(**{**QUIET, "logger": True}, fast_dev_run=True).fit(shows(), loader(8))
    assert Logger.media_kinds.fget(CometLogger()) == ()


def test_the_sanity_check_records_nothing(tmp_path):
    validates = with_methods(validation_step=lambda self, batch, batch_idx: self.trainer.log_media("note", Text("x")))
    logger = CSVLogger(tmp_path)
    settings = {**QUIET, "logger": logger, "num_sanity_val_steps": 1, "max_epochs": 1}
    Trainer(**settings).fit(validates, loader(8), loader(4))
    assert [path.name for path in Path(logger.log_dir, "media", "note").iterdir()] == ["00000002.txt"]


def test_a_tensor_is_no_media():
    with pytest.raises(
        ArgumentTypeError, match=r"got a Tensor\.\n.*\n  Fix: trainer\.log_media\('x', Image\(tensor\)\)"
    ):
        Trainer(**QUIET).log_media("x", PIXELS)


def test_other_ranks_write_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    for logger in (CSVLogger(tmp_path, version=0), TensorBoardLogger(tmp_path, version=0)):
        logger.log_media("note", Text("x"), 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.processes
def test_with_two_processes_those_of_rank_zero_are_recorded(tmp_path):
    ranks(2, _of_each_rank, tmp_path)
    (file,) = tmp_path.rglob("*.txt")
    assert file.read_text() == "rank 0"


def _of_each_rank(rank, folder):
    settings = {**QUIET, "logger": CSVLogger(folder), "devices": 2, "strategy": "ddp", "max_epochs": 1}
    Trainer(**settings).fit(
        with_methods(on_train_epoch_end=lambda self: self.trainer.log_media("note", Text(f"rank {self.global_rank}"))),
        loader(8),
    )
