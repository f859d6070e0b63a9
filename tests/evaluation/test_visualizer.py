"""SampleVisualizer: images and tables that a logger received, pixel by pixel, and wrong input."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError
from lightlib.evaluation import SampleVisualizer
from lightlib.loggers import CSVLogger
from lightlib.loggers.media import Image, Table, draw_bounding_boxes, make_grid
from tests.runs.bad_input import refused
from tests.runs.plain import Net as Base
from tests.runs.plain import Rows, quiet_trainer, with_methods


class Net(Base):
    """Classifies images of 2 x 3 pixels."""

    def training_step(self, batch, batch_idx):
        return super().training_step((batch[0].flatten(1), batch[1]), batch_idx)

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        return {"preds": self.net(batch[0].flatten(1)), "target": batch[1]}

    test_step = validation_step


class Media(Rows):
    """Keeps images and tables."""

    media_kinds = (Image, Table)

    def __init__(self):
        super().__init__()
        self.media = []

    def log_media(self, name, media, step=None):
        self.media.append((name, media, step))


def data(n, size=4):
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(n, 1, 2, 3, generator=generator)
    return DataLoader(TensorDataset(images, torch.randint(0, 3, (n,), generator=generator)), batch_size=size)


def shown(callback, verb="validate", loaders=None, **arguments):
    logger = Media()
    module = Net()
    trainer = quiet_trainer(logger=logger, callbacks=[callback], **arguments)
    getattr(trainer, verb)(module, loaders or data(10), verbose=False)
    return logger.media, module


def test_the_first_batch_and_its_predictions():
    media, module = shown(SampleVisualizer(num_samples=3))
    (name, image, step), (other, table, _) = media
    images, target = data(10).dataset[:3]
    assert (name, other, step) == ("val/samples", "val/samples/predictions", 0)
    assert image.pixels.equal(Image(make_grid(images)).pixels)
    with torch.no_grad():
        predicted = module.net(images.flatten(1)).argmax(1)
    assert table.columns == ["sample", "prediction", "target"]
    assert table.rows == [[i, int(predicted[i]), int(target[i])] for i in range(3)]


def test_every_n_batches_of_an_evaluation_have_names_of_their_own():
    media, _ = shown(SampleVisualizer(every_n_batches=2, stages="test"), "test", data(10, size=2))
    assert [name for name, item, _ in media if isinstance(item, Image)] == [
        f"test/samples/batch{index}" for index in (0, 2, 4)
    ]


def test_several_loaders():
    media, _ = shown(SampleVisualizer(), loaders=[data(4), data(4)])
    assert [name for name, _, _ in media[::2]] == ["val/samples", "val/samples/dataloader_idx_1"]
    media, _ = shown(SampleVisualizer(), loaders={"clean": data(4), "noisy": data(4)})
    assert [name for name, _, _ in media[::2]] == ["val/samples/clean", "val/samples/noisy"]


def test_each_epoch_of_training_and_no_sanity_check():
    logger = Media()
    callbacks = [SampleVisualizer(stages=("train", "val"), columns=2)]
    trainer = quiet_trainer(logger=logger, callbacks=callbacks, max_epochs=2, num_sanity_val_steps=1)
    trainer.fit(Net(), data(8), data(4))
    found = [(name, step) for name, item, step in logger.media if isinstance(item, Image)]
    assert found == [("train/samples", 1), ("val/samples", 2), ("train/samples", 3), ("val/samples", 4)]


def test_samples_are_drawn_by_a_function():
    box = torch.tensor([[0, 0, 1, 1]])

    def draw(batch, outputs):
        return [draw_bounding_boxes(image, box) for image in batch[0]]

    media, _ = shown(SampleVisualizer(draw, num_samples=2))
    expected = torch.stack([draw_bounding_boxes(image, box) for image in data(10).dataset[:2][0]])
    assert media[0][1].pixels.equal(Image(make_grid(expected)).pixels)


def test_files_of_a_logger(tmp_path):
    logger = CSVLogger(tmp_path, name="", version="")
    quiet_trainer(logger=logger, callbacks=[SampleVisualizer()]).validate(Net(), data(4), verbose=False)
    names = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("media/**/*.*")}
    assert names == {"media/val/samples/00000000.png", "media/val/samples/predictions/00000000.csv"}


def test_outputs_without_predictions_show_the_images_alone():
    silent = with_methods(Net, validation_step=lambda self, batch, batch_idx: None)
    logger = Media()
    quiet_trainer(logger=logger, callbacks=[SampleVisualizer()]).validate(silent, data(4), verbose=False)
    assert [name for name, _, _ in logger.media] == ["val/samples"]


class TestBadInput:
    def test_arguments(self):
        with pytest.raises(ArgumentTypeError, match=r"SampleVisualizer\(draw='x'"):
            SampleVisualizer(draw="x")
        for name in ("num_samples", "every_n_batches", "columns"):
            with pytest.raises(MisconfigurationException, match=rf"SampleVisualizer\({name}=0\)"):
                SampleVisualizer(**{name: 0})
            with pytest.raises(ArgumentTypeError, match=rf"SampleVisualizer\({name}=1.5 \(float\)\)"):
                SampleVisualizer(**{name: 1.5})
        with pytest.raises(UnknownNameError, match="stages of SampleVisualizer"):
            SampleVisualizer(stages="validation")

    def test_no_images(self):
        flat = DataLoader(TensorDataset(torch.rand(4, 6), torch.zeros(4, dtype=torch.long)), batch_size=2)
        with refused(
            MisconfigurationException,
            "SampleVisualizer found no images: the batch has no such tensor.",
            "a tensor (number, channels, height, width).",
            "SampleVisualizer(draw=***",
        ):
            shown(SampleVisualizer(), loaders=flat)
        with pytest.raises(MisconfigurationException, match="draw returned None"):
            shown(SampleVisualizer(draw=lambda batch, outputs: None))

    def test_no_logger(self):
        with pytest.warns(UserWarning, match="SampleVisualizer: there is no logger"):
            quiet_trainer(callbacks=[SampleVisualizer()]).validate(Net(), data(4), verbose=False)
