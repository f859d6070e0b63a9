"""ImagePreprocessor against the formula, in a run, and with input that does not fit."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import lightlib as L
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.transforms import ImagePreprocessor
from tests.runs.plain import momentum, quiet_trainer

MEAN, STD = [123.675, 116.28, 103.53], [58.395, 57.12, 57.375]


def images(*sizes, channels=3):
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(256, (channels, *size), dtype=torch.uint8, generator=generator) for size in sizes]


def test_the_formula_for_images_of_two_sizes():
    given = images((5, 7), (6, 4))
    found, labels = ImagePreprocessor(MEAN, STD, bgr_to_rgb=True, pad_size_divisor=4, pad_value=9.0)((given, "labels"))
    assert labels == "labels"
    assert found.shape == (2, 3, 8, 8)
    assert found.dtype == torch.float32
    for out, image in zip(found, given, strict=True):
        height, width = image.shape[1:]
        for channel, (mean, std) in enumerate(zip(MEAN, STD, strict=True)):
            expected = (image[2 - channel].float() - mean) / std
            assert torch.allclose(out[channel, :height, :width], expected, atol=1e-6)
        assert (out[:, height:] == 9).all()
        assert (out[:, :, width:] == 9).all()


def test_a_tensor_a_dict_and_images_alone():
    batch = torch.stack(images((4, 4), (4, 4)))
    plain = ImagePreprocessor(127.5, 127.5)
    expected = (batch.float() - 127.5) / 127.5
    assert torch.equal(plain(batch), expected)
    assert torch.equal(plain(list(batch)), expected)
    inputs = ImagePreprocessor(127.5, 127.5, key="inputs")({"inputs": batch, "ids": 3})
    assert torch.equal(inputs["inputs"], expected)
    assert inputs["ids"] == 3
    assert ImagePreprocessor(pad_size_divisor=3)(batch).shape == (2, 3, 6, 6)
    assert not plain.state_dict()


def test_a_run_equals_a_plain_loop():
    given = [(image, n % 2) for n, image in enumerate(images(*[(4, 3), (3, 4)] * 6))]

    def collate(samples):
        return [image for image, _ in samples], torch.tensor([label for _, label in samples])

    def model():
        torch.manual_seed(1)
        return nn.Sequential(nn.Flatten(), nn.Linear(48, 2))

    loader = DataLoader(given, 4, collate_fn=collate)
    module = L.Module.from_model(
        model(), nn.CrossEntropyLoss(), momentum, preprocessor=ImagePreprocessor(MEAN, STD, pad_size_divisor=4)
    )
    quiet_trainer(max_epochs=2, limit_val_batches=0).fit(module, loader)
    net = model()
    optimizer = momentum(net.parameters())
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    for _ in range(2):
        for raw, labels in loader:
            x = torch.zeros(len(raw), 3, 4, 4)
            for out, image in zip(x, raw, strict=True):
                out[:, : image.shape[1], : image.shape[2]] = (image.float() - mean) / std
            optimizer.zero_grad()
            F.cross_entropy(net(x), labels).backward()
            optimizer.step()
    assert torch.allclose(module.model[1].weight, net[1].weight, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"mean": MEAN}, MisconfigurationException, "std=None"),
        ({"mean": MEAN, "std": [1.0]}, MisconfigurationException, "as many numbers"),
        ({"mean": 0, "std": 0}, MisconfigurationException, "not 0"),
        ({"mean": "imagenet", "std": 1}, ArgumentTypeError, "mean='imagenet'"),
        ({"pad_size_divisor": 0}, MisconfigurationException, "pad_size_divisor=0"),
        ({"bgr_to_rgb": "yes"}, ArgumentTypeError, "bgr_to_rgb='yes'"),
    ],
)
def test_wrong_arguments(options, error, text):
    with pytest.raises(error, match=text):
        ImagePreprocessor(**options)


@pytest.mark.parametrize(
    ("options", "batch", "error", "text"),
    [
        ({"key": "image"}, {"images": 1}, MisconfigurationException, "the entries 'images'"),
        ({}, (torch.ones(3, 4),), ArgumentTypeError, r"of the shape \(3, 4\)"),
        ({}, (["a.jpg"],), ArgumentTypeError, "a list of tensors"),
        ({"mean": MEAN, "std": STD}, (torch.ones(1, 2, 4, 4),), MisconfigurationException, "with 2 channels"),
        ({"bgr_to_rgb": True}, (torch.ones(1, 4, 4, 4),), MisconfigurationException, "with 4 channels"),
    ],
)
def test_batches_that_do_not_fit(options, batch, error, text):
    with pytest.raises(error, match=text):
        ImagePreprocessor(**options)(batch)
